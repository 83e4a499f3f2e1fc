"""
Endpoints of streams over the byte transfer layer.
"""

from __future__ import annotations

from typing import Any

from zope.interface import implementer

from twisted.internet.defer import Deferred, fail
from twisted.internet.error import CannotListenError, ConnectError
from twisted.internet.interfaces import (
    IListeningPort,
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
)
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.btl.connections import ClientEndpoint, ServerEndpoint
from txrdma.btl.lifeline import DevicePlaces
from txrdma.btl.stream.end import BTLEnd, BTLTransport
from txrdma.error import RDMAError
from txrdma.messages.interfaces import IMessageProtocol, IMessageProtocolFactory
from txrdma.streams.connection import Declining
from txrdma.streams.port import Connecting, StreamPort
from txrdma.streams.transport import Address

_log = Logger()


@implementer(IStreamClientEndpoint)
class StreamClientEndpoint:
    """An endpoint that connects to a listener of streams."""

    def __init__(self, reactor: Any, stream: IStreamClientEndpoint, device: DevicePlaces = None) -> None:
        """
        @param stream: leads to the listener, for the exchange.
        @param device: see L{DevicePlaces}.
        """
        self._reactor, self._stream, self._device = reactor, stream, device

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        """
        Connect to the peer and make a protocol, as L{IStreamClientEndpoint} asks.

        @return: fails as the endpoint of the exchange does, or with another C{ConnectError}.
        """
        try:
            protocolFactory.doStart()
        except Exception:
            return fail()
        attempt = _Connecting(self._reactor, protocolFactory)
        endpoint = ClientEndpoint(self._reactor, self._stream, self._device)
        connecting: Deferred[Any] = endpoint.connect(attempt)
        return connecting.addCallbacks(lambda _: attempt.protocol, attempt.failed)


@implementer(IMessageProtocolFactory)
class _Connecting(Connecting):
    """One attempt of a client."""

    def __init__(self, reactor: Any, factory: IProtocolFactory) -> None:
        super().__init__(factory)
        self._end = BTLEnd(reactor, True, self._dress, self.ended)

    def buildProtocol(self, peer: Address) -> IMessageProtocol:
        self.make(peer)
        return self._end

    def _dress(self, end: BTLEnd) -> BTLTransport:
        return BTLTransport(end, self.protocol)

    def known(self, error: BaseException) -> BaseException | None:
        """Find the error of the exchange by TCP."""
        return error.__cause__ if isinstance(error.__cause__, ConnectError) else None


@implementer(IStreamServerEndpoint)
class StreamServerEndpoint:
    """An endpoint that listens for streams."""

    def __init__(self, reactor: Any, stream: IStreamServerEndpoint, device: DevicePlaces = None) -> None:
        """
        @param stream: where to listen, for the exchange.
        @param device: see L{DevicePlaces}.
        """
        self._reactor, self._stream, self._device = reactor, stream, device

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[IListeningPort]:
        """
        Listen with a factory, as L{IStreamServerEndpoint} asks.

        @return: fails with C{CannotListenError}.
        """
        endpoint = ServerEndpoint(self._reactor, self._stream, self._device)
        listening: Deferred[Any] = endpoint.listen(_Accepting(self._reactor, protocolFactory))

        def failed(failure: Failure) -> Failure:
            failure.trap(RDMAError)
            error = failure.value
            cause = None if error is None else error.__cause__
            return Failure(CannotListenError("", 0, error) if cause is None else cause)

        return listening.addCallbacks(lambda port: StreamPort(port, protocolFactory, "btl"), failed)


@implementer(IMessageProtocolFactory)
class _Accepting:
    """The ends of connections that a port accepts."""

    def __init__(self, reactor: Any, factory: IProtocolFactory) -> None:
        self._reactor, self._factory = reactor, factory

    def buildProtocol(self, peer: Address) -> IMessageProtocol:
        return BTLEnd(self._reactor, False, self._dress)

    def _dress(self, end: BTLEnd) -> BTLTransport:
        return BTLTransport(end, self._factory.buildProtocol(end.peer) or Declining())
