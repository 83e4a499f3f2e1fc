"""
A base class for protocols of messages, and a factory for them.
"""

from __future__ import annotations

from collections.abc import Callable

from zope.interface import implementer

from twisted.python.failure import Failure

from txrdma.cm.interfaces import IRDMAProtocol, IRDMATransport
from txrdma.cm.layouts.messages import CMPath
from txrdma.cm.terms import MessagePeer
from txrdma.messages import IMessageProtocolFactory


@implementer(IRDMAProtocol)
class MessageProtocol:
    """
    A protocol that does nothing until it is subclassed: see L{IRDMAProtocol}.

    @ivar transport: from C{makeConnection} on.
    """

    answer = b""
    transport: IRDMATransport

    def makeConnection(self, transport: IRDMATransport) -> None:
        """Take the transport, and call C{connectionMade}."""
        self.transport = transport
        self.connectionMade()

    def connectionMade(self) -> None:
        """Begin: the connection is established."""

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        """Take a message of the peer."""

    def writeReceived(self, length: int, immediate: int) -> None:
        """Note that the peer has written into memory of this end."""

    def writeCompleted(self, identifier: int) -> None:
        """Note that a write of this end is in the peer's memory."""

    def pathMigrated(self, path: CMPath) -> None:
        """Note that the connection has gone over to its alternate path."""

    def connectionLost(self, reason: Failure) -> None:
        """End: nothing comes any more."""


@implementer(IMessageProtocolFactory)
class MessageFactory:
    """A factory that calls a class, or any function, for each connection."""

    def __init__(self, make: Callable[[], IRDMAProtocol | None]) -> None:
        """
        @param make: makes a protocol without arguments; None rejects.
        """
        self._make = make

    def buildProtocol(self, peer: MessagePeer) -> IRDMAProtocol | None:
        """Make a protocol, whoever the peer is."""
        return self._make()
