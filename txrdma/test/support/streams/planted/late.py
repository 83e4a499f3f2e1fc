"""
The end that closes is notified two seconds late.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import tcp

_Connection: Any = tcp.Connection

_lose = _Connection.loseConnection


def _late(self: Any) -> None:
    self.reactor.callLater(2, _lose, self)


_Connection.loseConnection = _late
