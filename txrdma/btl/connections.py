"""
Connections for protocols of messages: to a host and a port of TCP, where both ends find each other.
"""

from __future__ import annotations

from typing import Any, cast, Final

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import HostnameEndpoint, TCP4ServerEndpoint, TCP6ServerEndpoint
from twisted.internet.error import CannotListenError, ConnectError
from twisted.internet.interfaces import (
    IAddress,
    IListeningPort,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
)
from twisted.internet.protocol import connectionDone, Factory
from twisted.internet.protocol import Protocol as StreamProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.btl.lifeline import DevicePlaces, Lifeline
from txrdma.btl.transport import MessageTransport
from txrdma.error import RDMAError, Refused, ResourceExhausted
from txrdma.messages import (
    IMessageClientEndpoint,
    IMessageProtocol,
    IMessageProtocolFactory,
    IMessageServerEndpoint,
)

_log = Logger()

TIMEOUT: Final = 30.0
"""Seconds until the TCP connection stands."""

MOST_OPENING: Final = 128
"""Exchanges of a listener that go on at a time; clients beyond wait for their turn."""

MOST_WAITING: Final = 4096
"""Clients of a listener that wait for their turn; those beyond are closed."""

_EARLY: Final = 4096
"""Bytes that a client may say before its turn."""


@implementer(IMessageProtocol)
class MessageProtocol:
    """
    A protocol that does nothing until it is subclassed: see L{IMessageProtocol}.

    @ivar transport: from C{makeConnection} on.
    """

    transport: MessageTransport

    def makeConnection(self, transport: MessageTransport) -> None:
        """Take the transport, and call C{connectionMade}."""
        self.transport = transport
        self.connectionMade()

    def connectionMade(self) -> None:
        """Begin: the connection is established."""

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        """Take a message of the peer, in order."""

    def connectionLost(self, reason: Failure) -> None:
        """End: nothing comes any more."""


class Opening:
    """The exchange of one end, until its protocol is connected or it has failed."""

    def __init__(
        self, reactor: Any, device: DevicePlaces, factory: IMessageProtocolFactory, isClient: bool
    ) -> None:
        self.answer: Deferred[Any] = Deferred(lambda _: self.lifeline.cancel())
        self._reactor, self._factory = reactor, factory
        self.lifeline = Lifeline(reactor, device, self._established, self._failed, isClient)

    def _established(self, lifeline: Lifeline) -> MessageTransport | None:
        try:
            protocol = self._factory.buildProtocol(lifeline.peerHost)
        except Exception:
            self._failed(Failure())
            return None
        if protocol is None:
            self._failed(Failure(Refused("the factory makes no protocol for this peer")))
            return None
        transport = MessageTransport(lifeline, protocol)
        lifeline.user = transport  # its protocol may send, and end, at once
        try:
            transport.begin(self._reactor)
        except Exception:
            _log.failure("{transport}: its program failed", transport=transport)
            transport.abortConnection()
        if not self.answer.called:
            self.answer.callback(protocol)
        return transport

    def _failed(self, failure: Failure) -> None:
        if not self.answer.called:
            self.answer.errback(failure)


@implementer(IMessageClientEndpoint)
class ClientEndpoint:
    """Connects to a listener of the byte transfer layer."""

    def __init__(self, reactor: Any, stream: IStreamClientEndpoint, device: DevicePlaces = None) -> None:
        """
        @param stream: leads to the listener, for the exchange.
        @param device: see L{DevicePlaces}.
        """
        self._reactor, self._stream, self._device = reactor, stream, device

    def connect(self, factory: IMessageProtocolFactory) -> Deferred[Any]:
        """
        Connect, with a protocol of the factory. The Deferred can be cancelled.

        @return: fires with the protocol, whose transport is a L{MessageTransport}; fails with
            L{Refused} where nobody listens, with L{Unreachable<txrdma.btl.errors.Unreachable>} where packets
            do not pass, or with another L{RDMAError}.
        """
        return Deferred.fromCoroutine(self._connect(factory))

    async def _connect(self, factory: IMessageProtocolFactory) -> Any:
        opening = Opening(self._reactor, self._device, factory, True)
        exchange = Factory.forProtocol(lambda: opening.lifeline)
        exchange.noisy = False
        try:
            await self._stream.connect(exchange)
        except ConnectError as error:
            raise Refused(f"the exchange by TCP: {error}") from error
        return await opening.answer


@implementer(IMessageServerEndpoint)
class ServerEndpoint:
    """Listens for peers of the byte transfer layer."""

    def __init__(self, reactor: Any, stream: IStreamServerEndpoint, device: DevicePlaces = None) -> None:
        """
        @param stream: where to listen, for the exchange.
        @param device: see L{DevicePlaces}.
        """
        self._reactor, self._stream, self._device = reactor, stream, device

    def listen(self, factory: IMessageProtocolFactory) -> Deferred[IListeningPort]:
        """
        Listen, with a protocol for each connection, made when that is established.

        @return: fires with the port; fails with L{ResourceExhausted} where it is taken.
        """
        listening = self._stream.listen(_Accepting(self._reactor, self._device, factory))

        def failed(failure: Failure) -> Failure:
            failure.trap(CannotListenError)
            error = ResourceExhausted(str(failure.value))
            error.__cause__ = failure.value
            return Failure(error)

        return listening.addErrback(failed)


class _Waiting(StreamProtocol):
    """A client whose exchange waits for its turn; then it is the way of its lifeline."""

    def __init__(self, accepting: _Accepting, peer: IAddress | None) -> None:
        self.peer = peer
        self._accepting = accepting
        self._lifeline: Lifeline | None = None
        self._early = b""

    def dataReceived(self, data: bytes) -> None:
        if self._lifeline is not None:
            self._lifeline.dataReceived(data)
            return
        self._early += data
        if len(self._early) > _EARLY:
            transport: Any = self.transport
            transport.abortConnection()

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        if self._lifeline is not None:
            self._lifeline.connectionLost(reason)
        else:
            self._accepting.waiting.pop(self, None)

    def begin(self, lifeline: Lifeline) -> None:
        """Let the client have its exchange; the lifeline hears what came before."""
        self._lifeline, transport = lifeline, cast(Any, self.transport)
        lifeline.makeConnection(transport)  # type: ignore[no-untyped-call]  # of Twisted's
        early, self._early = self._early, b""
        if early:
            lifeline.dataReceived(early)


class _Accepting(Factory):
    """
    The exchanges of clients that connect.

    @ivar waiting: clients that wait for their turn, in order.
    """

    noisy = False

    def __init__(self, reactor: Any, device: DevicePlaces, factory: IMessageProtocolFactory) -> None:
        self._reactor, self._device, self._factory = reactor, device, factory
        self._opening = 0
        self.waiting: dict[_Waiting, None] = {}

    def buildProtocol(self, addr: IAddress | None) -> Lifeline | _Waiting | None:
        if self._opening < MOST_OPENING:
            return self._begin(addr)
        if len(self.waiting) >= MOST_WAITING:
            return None
        waiting = _Waiting(self, addr)
        self.waiting[waiting] = None
        return waiting

    def _begin(self, addr: IAddress | None) -> Lifeline:
        self._opening += 1
        opening = Opening(self._reactor, self._device, self._factory, False)

        def ended(result: Any) -> None:
            self._opening -= 1
            while self.waiting and self._opening < MOST_OPENING:
                first = next(iter(self.waiting))
                del self.waiting[first]
                first.begin(self._begin(first.peer))
            if isinstance(result, Failure):
                if result.check(RDMAError) is None:
                    _log.failure("a connection of {peer} fails", result, peer=addr)
                else:
                    _log.warn("no connection of {peer}: {error}", peer=addr, error=result.value)

        opening.answer.addBoth(ended)
        return opening.lifeline


def connect(
    reactor: Any, host: str, port: int, factory: IMessageProtocolFactory, device: DevicePlaces = None
) -> Deferred[Any]:
    """
    Connect to a host and a port: see L{ClientEndpoint.connect}.

    @param host: a name or an IP address.
    @param device: a device, or several, by which messages are striped: see L{DevicePlaces}.
    """
    stream = HostnameEndpoint(reactor, host, port, TIMEOUT)
    return ClientEndpoint(reactor, stream, device).connect(factory)


def listen(
    reactor: Any,
    port: int,
    factory: IMessageProtocolFactory,
    interface: str = "",
    device: DevicePlaces = None,
) -> Deferred[IListeningPort]:
    """
    Listen at a port: see L{ServerEndpoint.listen}.

    @param port: of TCP; 0 is any that is free.
    @param interface: the IP address to listen at; none is all that are IPv4.
    @param device: a device, or several, by which messages are striped: see L{DevicePlaces}.
    """
    kind = TCP6ServerEndpoint if ":" in interface else TCP4ServerEndpoint
    return ServerEndpoint(reactor, kind(reactor, port, interface=interface), device).listen(factory)
