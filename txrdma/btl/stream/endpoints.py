"""Endpoints of streams over the byte transfer layer."""

from __future__ import annotations

from typing import Any

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError, DNSLookupError
from twisted.internet.interfaces import (
    IAddress,
    IListeningPort,
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
)

from txrdma.btl.connections import ClientEndpoint, ServerEndpoint
from txrdma.btl.ends import DeviceSpecs
from txrdma.btl.stream.end import BTLEnd, BTLTransport
from txrdma.messages.address import MessageAddress
from txrdma.streams.endpoints import AcceptedStreams, StreamAttempt


@implementer(IStreamClientEndpoint)
class StreamClientEndpoint:
    """An endpoint that connects to a listener of streams."""

    def __init__(
        self,
        reactor: Any,
        stream: IStreamClientEndpoint,
        device: DeviceSpecs = None,
        destination: IAddress | None = None,
    ) -> None:
        """
        @param stream: the TCP endpoint of the listener, for the exchange.
        @param device: see L{DeviceSpecs}.
        @param destination: address of the listener, for the error of a cancelled attempt.
        """
        self._reactor, self._endpoint = reactor, ClientEndpoint(reactor, stream, device)
        self._destination = destination

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """
        Connect to the peer and make a protocol, as L{IStreamClientEndpoint} asks.

        @return: fails as the endpoint of the exchange does, with C{ConnectingCancelledError} if cancelled, or
            with another C{ConnectError}.
        """
        return _Connecting(self._reactor, protocolFactory).connect(self._endpoint, self._destination)


class _Connecting(StreamAttempt[BTLEnd]):
    """One attempt of a client."""

    transportClass = BTLTransport

    def __init__(self, reactor: Any, factory: IProtocolFactory) -> None:
        super().__init__(factory)
        self.end = BTLEnd(reactor, True, self.makeTransport, self.ended)

    def known(self, error: BaseException) -> BaseException | None:
        """Return the error of the exchange by TCP, if there is one."""
        return error.__cause__ if isinstance(error.__cause__, (ConnectError, DNSLookupError)) else None


@implementer(IStreamServerEndpoint)
class StreamServerEndpoint:
    """An endpoint that listens for streams."""

    def __init__(self, reactor: Any, stream: IStreamServerEndpoint, device: DeviceSpecs = None) -> None:
        """
        @param stream: the TCP endpoint to listen on, for the exchange.
        @param device: see L{DeviceSpecs}.
        """
        self._reactor, self._endpoint = reactor, ServerEndpoint(reactor, stream, device)

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        """
        Listen with a factory, as L{IStreamServerEndpoint} asks.

        @return: fails with C{CannotListenError}.
        """
        return _AcceptedBTLStreams(self._reactor, protocolFactory).listen(self._endpoint, "btl")


class _AcceptedBTLStreams(AcceptedStreams[BTLEnd]):
    """The connections that a port accepts."""

    transportClass = BTLTransport

    def buildProtocol(self, peer: MessageAddress) -> BTLEnd:
        return BTLEnd(self._reactor, False, self.makeTransport)
