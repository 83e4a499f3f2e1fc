"""One received byte is changed."""

from __future__ import annotations

from typing import Any

from twisted.internet import tcp

_Connection: Any = tcp.Connection

_received = _Connection._dataReceived


def _mixing(self: Any, data: bytes) -> object:
    return _received(self, bytes([data[0] ^ 1]) + data[1:] if data else data)


_Connection._dataReceived = _mixing
