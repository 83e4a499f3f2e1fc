"""Every end is reported as C{ConnectionLost}."""

from __future__ import annotations

from typing import Any

from twisted.internet import tcp
from twisted.internet.error import ConnectionLost
from twisted.python.failure import Failure

_Connection: Any = tcp.Connection

_lost = _Connection.connectionLost


def _frightening(self: Any, reason: Failure) -> object:
    return _lost(self, Failure(ConnectionLost()))


_Connection.connectionLost = _frightening
