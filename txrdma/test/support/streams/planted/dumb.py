"""The transport never sends a half-close."""

from __future__ import annotations

from typing import Any

from twisted.internet import tcp

_Connection: Any = tcp.Connection

_Connection.loseWriteConnection = lambda self: None
