"""
The last byte of what comes is lost, once in a connection.
"""

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
