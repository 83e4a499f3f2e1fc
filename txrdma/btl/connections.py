"""
Endpoints of message protocols over the byte transfer layer: both ends meet over a TCP connection.

A listener bounds what unknown clients can use: each must introduce itself in time, and a limited number of
clients exchange introductions at a time, of which one IP address has a share. Others are queued, or closed.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, cast, Final, overload, TypeVar

from zope.interface import implementer

from twisted.internet.defer import CancelledError, Deferred, fail
from twisted.internet.endpoints import TCP4ServerEndpoint, TCP6ServerEndpoint
from twisted.internet.error import ConnectError, DNSLookupError
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

from txrdma.btl.ends import checkSpecs, DeviceSpecs, severalDevices, tcpEndpointTo
from txrdma.btl.introductions import isDecidable
from txrdma.btl.lifeline import PeerConnection
from txrdma.btl.transport import BTLMessageTransport
from txrdma.error import InvalidRequest, MalformedDevice, RDMAError, Refused
from txrdma.kit.cancelling import cancellable
from txrdma.kit.delayedcalls import Timer
from txrdma.kit.logs import errorText, RateLimitedLogger
from txrdma.kit.refusals import Refusal
from txrdma.kit.shutdown import failingOnShutdown, IRefusesOnShutdown
from txrdma.messages.address import addressOfTCP, MessageAddress
from txrdma.messages.interfaces import (
    IMessageClientEndpoint,
    IMessageProtocolFactory,
    IMessageServerEndpoint,
)
from txrdma.messages.protocol import MessageFactory, MessageProtocol
from txrdma.messages.transport import protocolFor
from txrdma.verbs.devices import sharedDevice

_log = Logger()
_rateLimited = RateLimitedLogger(_log)

_ProtocolT = TypeVar("_ProtocolT")

TIMEOUT: Final = 30.0
"""Seconds in which the TCP connection must be established."""

MOST_OPENING: Final = 128
"""Concurrent exchanges of a listener; further clients are queued."""

MOST_OPENING_PER_ADDRESS: Final = 32
"""Concurrent exchanges of one IP address; its further clients are queued."""

MOST_WAITING: Final = 4096
"""Clients of a listener that are queued or have not introduced themselves; further ones are closed."""

MOST_WAITING_PER_ADDRESS: Final = 1024
"""Such clients of one IP address; further ones are closed."""

INTRODUCTION_SECONDS: Final = 10.0
"""
Seconds in which a client must introduce itself, or it is closed. Before that it opens its device and
registers memory, which takes seconds on a slow machine.
"""

_EARLY: Final = 4096
"""Largest number of bytes that a client may send before its exchange begins."""


class PeerOpening:
    """
    The exchange of one end, until its protocol is connected or it has failed.

    @ivar answer: fires with the protocol, or fails; with C{CancelledError} if it is cancelled.
    """

    def __init__(
        self, reactor: Any, device: DeviceSpecs, factory: IMessageProtocolFactory, isClient: bool
    ) -> None:
        self.answer: Deferred[Any] = Deferred(lambda _: self.lifeline.cancel())
        self._reactor, self._factory = reactor, factory
        self.lifeline = PeerConnection(reactor, device, self._established, self._failed, isClient)

    def _established(self, lifeline: PeerConnection) -> BTLMessageTransport | None:
        try:
            protocol = protocolFor(self._factory, addressOfTCP(lifeline.peerHost))
        except Exception:
            self._raised("buildProtocol")
            return None
        if protocol is None:
            self._failed(Failure(Refused("the factory has no protocol for this peer")))
            return None
        if self.answer.called:
            return None  # the factory cancelled the attempt
        try:
            transport = BTLMessageTransport(lifeline, protocol)
            lifeline.user = transport  # first: makeConnection may send and close
            transport.begin(self._reactor)
        except Exception:
            self._raised("the start of the transport")
            return None
        if not self.answer.called:
            self.answer.callback(protocol)
        return transport

    def _raised(self, what: str) -> None:
        """Fail the attempt by the current exception, or log it if the attempt has been cancelled."""
        if self.answer.called:
            _log.failure("{what} raised an exception after the attempt had been cancelled", what=what)
        self._failed(Failure())

    def _failed(self, failure: Failure) -> None:
        if not self.answer.called:
            self.answer.errback(failure)


@implementer(IMessageClientEndpoint)
class ClientEndpoint:
    """Connects to a listener of the byte transfer layer."""

    def __init__(self, reactor: Any, stream: IStreamClientEndpoint, device: DeviceSpecs = None) -> None:
        """
        @param stream: the TCP endpoint of the listener, for the exchange.
        @param device: see L{DeviceSpecs}.
        """
        checkSpecs(device)
        self._reactor, self._stream, self._device = reactor, stream, device

    @overload
    def connect(self, factory: MessageFactory[_ProtocolT]) -> Deferred[_ProtocolT]: ...

    @overload
    def connect(self, factory: IMessageProtocolFactory) -> Deferred[Any]: ...

    def connect(self, factory: Any) -> Deferred[Any]:
        """
        Connect.

        @return: fires with the protocol, whose transport is a L{BTLMessageTransport}; fails with L{Refused}
            if there is no listener, with L{Unreachable<txrdma.btl.errors.Unreachable>} if packets do not
            arrive, or with another L{RDMAError}. It can be cancelled.
        """
        connecting = cancellable(Deferred.fromCoroutine(self._connect(factory)), CancelledError())
        return failingOnShutdown(self._reactor, connecting)

    async def _connect(self, factory: IMessageProtocolFactory) -> Any:
        opening = PeerOpening(self._reactor, self._device, factory, True)
        exchange = Factory.forProtocol(lambda: opening.lifeline)
        exchange.noisy = False
        try:
            await self._stream.connect(exchange)
        except (ConnectError, DNSLookupError) as error:
            raise Refused(f"the TCP connection for the exchange failed: {error}") from error
        except ValueError as error:
            raise InvalidRequest(f"the endpoint of the exchange cannot be used: {error}") from error
        return await opening.answer


@implementer(IListeningPort)
class _ListeningPort:
    """A port that listens for peers, by its port for TCP connections."""

    def __init__(self, port: IListeningPort) -> None:
        self._port = port

    def __repr__(self) -> str:
        return f"<btl {self._port!r}>"

    def startListening(self) -> None:
        """Do nothing: the endpoint has started to listen."""

    def stopListening(self) -> Deferred[None] | None:
        """Stop listening. Connections stay open. Idempotent."""
        return self._port.stopListening()

    def getHost(self) -> MessageAddress:
        """The address of the TCP port."""
        return addressOfTCP(self._port.getHost())


@implementer(IMessageServerEndpoint)
class ServerEndpoint:
    """Listens for peers of the byte transfer layer."""

    def __init__(self, reactor: Any, stream: IStreamServerEndpoint, device: DeviceSpecs = None) -> None:
        """
        @param stream: the TCP endpoint to listen on, for the exchange.
        @param device: see L{DeviceSpecs}.
        """
        checkSpecs(device)
        self._reactor, self._stream, self._device = reactor, stream, device

    def listen(self, factory: IMessageProtocolFactory | MessageFactory[Any]) -> Deferred[IListeningPort]:
        """
        Listen. Protocols are made when connections are established.

        @return: fires with the port; fails with C{CannotListenError} if it is in use, and with
            L{txrdma.error.MalformedDevice} if a device string is malformed. A device that is not available
            yet is opened for the first client.
        """
        try:
            self._checkDevices()
        except (MalformedDevice, InvalidRequest):
            return fail()
        listening = self._stream.listen(_ListenerClients(self._reactor, self._device, factory))
        return listening.addCallback(_ListeningPort)

    def _checkDevices(self) -> None:
        """Open and close the devices that device strings name."""
        for each in severalDevices(self._device):
            if isinstance(each, str):
                try:
                    sharedDevice(self._reactor, each).close()
                except RDMAError:
                    pass  # it may be plugged in later


class _Client(StreamProtocol):
    """A client of a listener: it buffers the introduction until its exchange begins, then passes data on."""

    def __init__(self, accepting: _ListenerClients, reactor: Any, peer: IAddress | None) -> None:
        self.peer, self.host = peer, getattr(peer, "host", None)
        self._accepting = accepting
        self._lifeline: PeerConnection | None = None
        self._timer = Timer(reactor)
        self._early = b""

    def connectionMade(self) -> None:
        self._timer.startAndRead(INTRODUCTION_SECONDS, self._introductionTimedOut)

    def dataReceived(self, data: bytes) -> None:
        if self._lifeline is not None:
            self._lifeline.dataReceived(data)
            return
        self._early += data
        if len(self._early) > _EARLY:
            self.abort()
        elif self in self._accepting.unintroduced and isDecidable(self._early):
            self._timer.stop()
            self._accepting.introduced(self)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self._timer.stop()
        if self._lifeline is not None:
            self._lifeline.connectionLost(reason)
        else:
            self._accepting.remove(self)

    def begin(self, lifeline: PeerConnection) -> None:
        """Begin the exchange, with the bytes that were received before."""
        self._lifeline, transport = lifeline, cast(Any, self.transport)
        lifeline.makeConnection(transport)  # type: ignore[no-untyped-call]  # of Twisted's
        early, self._early = self._early, b""
        lifeline.dataReceived(early)

    def _introductionTimedOut(self) -> None:
        _rateLimited.warn(
            self.host,
            "Closing a connection from {peer}, which did not introduce itself in time",
            peer=self.peer,
        )
        self.abort()

    def abort(self) -> None:
        """Close the TCP connection at once."""
        transport: Any = self.transport
        transport.abortConnection()


@implementer(IRefusesOnShutdown)
class _ListenerClients(Factory):
    """
    The clients of a listener.

    @ivar unintroduced: clients that have not introduced themselves.
    @ivar queued: clients that have, and are queued, in order.
    """

    noisy = False

    def __init__(self, reactor: Any, device: DeviceSpecs, factory: IMessageProtocolFactory) -> None:
        self._reactor, self._device, self._factory = reactor, device, factory
        self._exchanges = 0
        self._isBeginning = False
        self._exchangesOf = Counter[Any]()  # by IP address
        self._clientsOf = Counter[Any]()  # clients that are not in an exchange, by IP address
        self.unintroduced: dict[_Client, None] = {}
        self.queued: dict[_Client, None] = {}

    def buildProtocol(self, addr: IAddress | None) -> _Client | Refusal:
        client = _Client(self, self._reactor, addr)
        clients = len(self.unintroduced) + len(self.queued)
        if (
            self._exchanges + clients >= MOST_OPENING + MOST_WAITING
            or self._clientsOf[client.host] >= MOST_WAITING_PER_ADDRESS
        ):
            return Refusal()
        self.unintroduced[client] = None
        self._clientsOf[client.host] += 1
        return client

    def introduced(self, client: _Client) -> None:
        """Queue a client that has introduced itself, and begin what can begin."""
        del self.unintroduced[client]
        self.queued[client] = None
        self._beginNext()

    def remove(self, client: _Client) -> None:
        """Remove a client that has no exchange."""
        if client in self.unintroduced or client in self.queued:
            self.unintroduced.pop(client, None)
            self.queued.pop(client, None)
            self._clientsOf.subtract([client.host])
            self._clientsOf += Counter()  # without zeros

    def _beginNext(self) -> None:
        """Begin exchanges up to the limits, of all clients and of one address."""
        if self._isBeginning:
            return  # an exchange has failed at once: the loop goes on, without recursion
        self._isBeginning = True
        try:
            while self._exchanges < MOST_OPENING and (first := self._next()) is not None:
                self.remove(first)
                try:
                    first.begin(self._begin(first.peer, first.host))
                except Exception:  # the caller may be another client
                    _log.failure("the exchange with {peer} could not begin", peer=first.peer)
                    first.abort()
        finally:
            self._isBeginning = False

    def _next(self) -> _Client | None:
        """Return the first client whose address has less than its share of the exchanges."""
        for each in self.queued:
            if self._exchangesOf[each.host] < MOST_OPENING_PER_ADDRESS:
                return each
        return None

    def _begin(self, peer: IAddress | None, host: str | None) -> PeerConnection:
        opening = PeerOpening(self._reactor, self._device, self._factory, False)
        self._exchanges += 1
        self._exchangesOf[host] += 1

        def ended(result: Any) -> None:
            self._exchanges -= 1
            self._exchangesOf.subtract([host])
            self._exchangesOf += Counter()
            self._beginNext()
            if isinstance(result, Failure):
                if result.check(RDMAError) is None:
                    _log.failure("A connection from {peer} failed", result, peer=peer)
                else:
                    _rateLimited.warn(
                        host,
                        "Rejecting a connection from {peer}: {error}",
                        peer=peer,
                        error=errorText(result.value),
                    )

        opening.answer.addBoth(ended)
        return opening.lifeline


@overload
def connect(
    reactor: Any, host: str, port: int, factory: None = None, device: DeviceSpecs = None
) -> Deferred[MessageProtocol]: ...


@overload
def connect(
    reactor: Any, host: str, port: int, factory: MessageFactory[_ProtocolT], device: DeviceSpecs = None
) -> Deferred[_ProtocolT]: ...


@overload
def connect(
    reactor: Any, host: str, port: int, factory: IMessageProtocolFactory, device: DeviceSpecs = None
) -> Deferred[Any]: ...


def connect(
    reactor: Any, host: str, port: int, factory: Any = None, device: DeviceSpecs = None
) -> Deferred[Any]:
    """
    Connect to a host and a port: see L{ClientEndpoint.connect}.

    @param host: a name or an IP address.
    @param factory: None makes a L{MessageProtocol}, for programs that only use its transport.
    @param device: a device, or several all of which carry messages: see L{DeviceSpecs}.
    """
    stream = tcpEndpointTo(reactor, host, port, TIMEOUT)
    return ClientEndpoint(reactor, stream, device).connect(factory or MessageFactory(MessageProtocol))


def listen(
    reactor: Any,
    port: int,
    factory: IMessageProtocolFactory | MessageFactory[Any],
    interface: str = "",
    device: DeviceSpecs = None,
) -> Deferred[IListeningPort]:
    """
    Listen at a port: see L{ServerEndpoint.listen}.

    @param port: the TCP port; 0 is any free port.
    @param interface: the IP address to listen on; empty is any IPv4 address.
    @param device: a device, or several all of which carry messages: see L{DeviceSpecs}.
    """
    kind = TCP6ServerEndpoint if ":" in interface else TCP4ServerEndpoint
    return ServerEndpoint(reactor, kind(reactor, port, interface=interface), device).listen(factory)
