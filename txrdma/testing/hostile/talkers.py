"""Ends of connections in simulations with a hostile peer: for streams, and for messages."""

from __future__ import annotations

from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from twisted.internet.protocol import connectionDone, Protocol
from twisted.python.failure import Failure

from txrdma.cm.connections.protocol import RDMAProtocol
from txrdma.error import RDMAError


class Talker:
    """
    An end of a connection.

    @ivar received: number of received bytes.
    @ivar lost: reason of the connection's end, or None.
    """

    transport: Any = None
    isMade = False
    received = 0
    lost: BaseException | None = None

    def connectionMade(self) -> None:
        self.isMade = True

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.lost = reason.value

    @property
    def isOpen(self) -> bool:
        """Whether the connection is established, and has not ended."""
        return self.isMade and self.lost is None

    def send(self, data: bytes) -> None:
        """Send bytes, if the connection is open."""
        raise NotImplementedError

    def close(self) -> None:
        """Close the connection in order."""
        if self.isOpen:
            self.transport.loseConnection()

    def abort(self) -> None:
        """Abort the connection."""
        if self.isOpen:
            self.transport.abortConnection()


class StreamTalker(Talker, Protocol):
    """An end of a stream connection."""

    transport: Any = None

    def dataReceived(self, data: bytes) -> None:
        self.received += len(data)

    def send(self, data: bytes) -> None:
        if self.isOpen:
            self.transport.write(data)


class MessageTalker(Talker, RDMAProtocol):
    """An end of a message connection."""

    transport: Any = None

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        self.received += len(data)

    def send(self, data: bytes) -> None:
        if self.isOpen:
            with suppress(RDMAError):
                self.transport.sendMessage(data)


@dataclass
class Pair:
    """
    The two ends of a connection.

    @ivar server: the server's end, or None before it exists.
    """

    client: Talker
    server: Talker | None = None

    @property
    def isMade(self) -> bool:
        """Whether both ends are connected."""
        return self.client.isMade and self.server is not None and self.server.isMade

    @property
    def isOver(self) -> bool:
        """Whether both ends have ended."""
        return self.client.lost is not None and self.server is not None and self.server.lost is not None
