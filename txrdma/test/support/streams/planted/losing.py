"""The last received byte of a connection is lost."""

from __future__ import annotations

from typing import Any

from twisted.internet import tcp

_Connection: Any = tcp.Connection

_received = _Connection._dataReceived


def _losing(self: Any, data: bytes) -> object:
    if len(data) > 1 and not hasattr(self, "hasLost"):
        self.hasLost = True
        data = data[:-1]
    return _received(self, data)


_Connection._dataReceived = _losing
