"""The transport ignores C{pauseProducing}."""

from __future__ import annotations

from typing import Any

from twisted.internet import tcp

_Connection: Any = tcp.Connection

_Connection.pauseProducing = lambda self: None
