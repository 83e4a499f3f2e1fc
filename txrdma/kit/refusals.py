"""Connections that a server refuses because it has too many."""

from __future__ import annotations

from typing import Any

from twisted.internet.protocol import Protocol


class Refusal(Protocol):
    """
    Closes an accepted connection at once.

    A factory may build None for this, but Twisted's TLS then logs errors, and leaves the connection open.
    """

    def connectionMade(self) -> None:
        transport: Any = self.transport
        transport.abortConnection()
