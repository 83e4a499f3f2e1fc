"""Base classes for message protocols and their factories."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Generic

from typing_extensions import TypeVar
from zope.interface import implementer

from twisted.internet.protocol import Factory
from twisted.python.failure import Failure

from txrdma.messages.interfaces import IMessageProtocol, IMessageProtocolFactory

_ProtocolT = TypeVar("_ProtocolT", default=Any)


@implementer(IMessageProtocol)
class MessageProtocol:
    """
    A protocol that does nothing until it is subclassed.

    @ivar transport: available from C{makeConnection} on.
    """

    transport: Any  # each kind of connection has a transport with more methods

    def makeConnection(self, transport: Any) -> None:
        self.transport = transport
        self.connectionMade()

    def connectionMade(self) -> None:
        """Called when the connection is established."""

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        """Called with each message of the peer, in order."""

    def connectionLost(self, reason: Failure) -> None:
        """Called once, when the connection has ended."""


@implementer(IMessageProtocolFactory)
class MessageFactory(Factory, Generic[_ProtocolT]):
    """
    A factory that calls a class, or any function, for each connection.

    C{Factory.forProtocol} does the same; this is for programs with static types, whose message protocols are
    no C{IProtocol}, and for functions that reject connections.
    """

    noisy = False

    def __init__(self, make: Callable[[], _ProtocolT | None]) -> None:
        """@param make: makes a protocol without arguments; None rejects the connection."""
        self._make = make

    def buildProtocol(self, addr: object) -> Any:  # for Twisted it is no IProtocol
        protocol: Any = self._make()
        if protocol is not None:
            protocol.factory = self
        return protocol
