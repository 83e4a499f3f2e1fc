"""Factories that wrap a user's factory until it is known whether a connection uses SMC."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zope.interface import implementer

from twisted.internet.interfaces import IAddress, ILoggingContext, IProtocol, IProtocolFactory
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.tcp import Connection

Build = Callable[[], "IProtocol | None"]
"""Builds the user's protocol for one connection."""


class HandshakeFactory(Factory):
    """Wraps a user's factory, to handle connections before the user's protocols are built."""

    noisy = False

    def __init__(self, wrapped: IProtocolFactory) -> None:
        self.wrapped = wrapped

    def doStart(self) -> None:
        self.wrapped.doStart()

    def doStop(self) -> None:
        self.wrapped.doStop()

    def logPrefix(self) -> str:
        if ILoggingContext.providedBy(self.wrapped):
            return ILoggingContext(self.wrapped).logPrefix()
        return type(self.wrapped).__name__

    def builder(self, address: IAddress | None) -> Build:
        """Return a function that builds the user's protocol for a connection to this address."""
        wrapped: Any = self.wrapped  # it may get None as the address
        return lambda: wrapped.buildProtocol(address)


class AcceptingFactory(HandshakeFactory):
    """Wraps a server's factory, to decide on accepted connections."""

    def buildProtocol(  # type: ignore[override]  # HandshakeProtocol has no factory of Twisted's kind
        self, addr: IAddress | None
    ) -> IProtocol:
        return HandshakeProtocol(self, self.builder(addr))

    def connectionAccepted(self, transport: Connection, build: Build) -> None:
        """Connect a protocol to an accepted connection, or close it; C{build} builds the user's protocol."""
        raise NotImplementedError


@implementer(ILoggingContext)
class HandshakeProtocol(Protocol):
    """Passes an accepted connection to its factory, which handles it immediately."""

    def __init__(self, accepting: AcceptingFactory, build: Build) -> None:
        self._accepting = accepting
        self._build = build

    def logPrefix(self) -> str:
        return self._accepting.logPrefix()

    def makeConnection(self, transport: Any) -> None:
        try:
            self._accepting.connectionAccepted(transport, self._build)
        except BaseException:
            transport.abortConnection()  # no other code refers to it; the error is logged by the port
            raise
