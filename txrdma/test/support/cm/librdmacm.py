"""
A librdmacm without a kernel: channels whose ids connect within this process, in simulated time.

It implements what L{txrdma.cm.rdmacm.library.EventChannel} expects of the real one: events arrive in order,
after the calls that cause them. A destroyed id gets no more events, and the events of its peer depend on the
state of both.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import replace
from itertools import count
from typing import Any, Final

from twisted.internet.interfaces import IReactorTime

from txrdma.cm.connections import adapter as adapters
from txrdma.cm.layouts.messages import RejectReason
from txrdma.cm.rdmacm import manager as kernels
from txrdma.cm.rdmacm.library import CMEvent, Ends, EventKind, Parameters, Prepared
from txrdma.error import DeviceUnavailable, InvalidRequest
from txrdma.iba.types import GID, QPN

DELAY_SECONDS: Final = 1e-3
TIMEWAIT_SECONDS: Final = 0.5

_NOTHING: Final = Parameters(QPN(0), 0, 0, 0, 0, b"")

ROUTE: Final = Prepared(
    pathMTU=3,
    destinationQPN=QPN(17),
    rqPSN=1,
    sqPSN=2,
    timeout=14,
    retryCount=7,
    rnrRetry=7,
    dlid=0,
    pathBits=0,
    isGlobal=True,
    flowLabel=0,
    hopLimit=64,
    trafficClass=0,
    serviceLevel=0,
)
"""The usual attributes of a queue pair."""


class Identifier:
    """
    A communication identifier.

    @ivar output: the parameters that it has sent.
    @ivar psn: the first PSN of its peer.
    @ivar closing: state of its end, by the specification's name; empty before the first DREQ.
    """

    def __init__(self, channel: FakeChannel, number: int) -> None:
        self.channel, self.number = channel, number
        self.source = self.destination = ("", 0)
        self.peer: Identifier | None = None
        self.output = _NOTHING
        self.psn = 0x1000 + number
        self.isReady = self.isEstablished = False
        self.closing = ""


class FakeKernel:
    """The kernel's connection manager for all devices of a test."""

    def __init__(self, clock: IReactorTime) -> None:
        self.clock = clock
        self.ids: dict[int, Identifier] = {}
        self.listeners: dict[tuple[str, int], Identifier] = {}
        self._numbers = count(1)
        self.ports = count(40_000)

    def channel(self) -> FakeChannel:
        """Create a channel, as opening librdmacm does."""
        return FakeChannel(self)

    def made(self, channel: FakeChannel) -> Identifier:
        """Create an id of a channel."""
        identifier = Identifier(channel, next(self._numbers))
        self.ids[identifier.number] = identifier
        channel.identifiers.add(identifier.number)
        return identifier

    def sendEvent(
        self,
        identifier: Identifier,
        kind: EventKind,
        output: Parameters = _NOTHING,
        status: int = 0,
        seconds: float = DELAY_SECONDS,
    ) -> None:
        """Deliver an event to an id, unless it is destroyed before."""

        def happen() -> None:
            if identifier.number in self.ids:
                identifier.channel.events.append(CMEvent(kind, identifier.number, 0, status, output))

        self.clock.callLater(seconds, happen)

    def ask(self, client: Identifier) -> None:
        """Deliver a REQ to a listener."""

        def happen() -> None:
            if client.number not in self.ids:
                return
            listener = self.listeners.get(client.destination)
            if listener is None:
                self.sendEvent(client, EventKind.REJECTED, status=int(RejectReason.INVALID_SERVICE_ID))
                return
            server = self.made(listener.channel)
            server.peer, client.peer = client, server
            server.source, server.destination = client.destination, client.source
            happened = CMEvent(EventKind.CONNECT_REQUEST, server.number, listener.number, 0, client.output)
            listener.channel.events.append(happened)

        self.clock.callLater(DELAY_SECONDS, happen)

    def part(self, identifier: Identifier) -> None:
        """Send a DREQ, or the DREP that the peer's DREQ waits for; otherwise do nothing."""
        if not identifier.closing:
            identifier.closing = "DREQ_SENT"
            self.clock.callLater(DELAY_SECONDS, self._deliverDREQ, identifier)
        elif identifier.closing == "DREQ_RCVD":
            self._rest(identifier)
            self.clock.callLater(DELAY_SECONDS, self._deliverDREP, identifier.peer)

    def _deliverDREQ(self, sender: Identifier) -> None:
        """Deliver a DREQ. One that crosses that of its receiver waits for an answer, too."""
        peer = sender.peer
        assert peer is not None
        if peer.number not in self.ids or peer.closing == "TIMEWAIT":
            self.clock.callLater(DELAY_SECONDS, self._deliverDREP, sender)
        elif peer.closing != "DREQ_RCVD":
            peer.closing = "DREQ_RCVD"
            self.sendEvent(peer, EventKind.DISCONNECTED, seconds=0.0)

    def _deliverDREP(self, receiver: Identifier) -> None:
        if receiver.number not in self.ids:
            return
        if receiver.closing == "DREQ_SENT":
            self.sendEvent(receiver, EventKind.DISCONNECTED, seconds=0.0)
        if receiver.closing in ("DREQ_SENT", "DREQ_RCVD"):
            self._rest(receiver)

    def _rest(self, identifier: Identifier) -> None:
        identifier.closing = "TIMEWAIT"
        self.sendEvent(identifier, EventKind.TIMEWAIT_EXIT, seconds=TIMEWAIT_SECONDS)

    def destroyed(self, identifier: Identifier) -> None:
        """Report the end of an id to its peer."""
        self.ids.pop(identifier.number, None)
        for address, listener in tuple(self.listeners.items()):
            if listener is identifier:
                del self.listeners[address]
        peer = identifier.peer
        if peer is None or peer.number not in self.ids or identifier.closing in ("DREQ_SENT", "TIMEWAIT"):
            return
        if identifier.isEstablished or (peer.isEstablished and identifier.isReady):
            self.part(identifier)
        else:
            self.sendEvent(peer, EventKind.REJECTED, status=int(RejectReason.CONSUMER_REJECT))


class FakeChannel:
    """A channel with the methods of L{txrdma.cm.rdmacm.library.EventChannel}."""

    def __init__(self, kernel: FakeKernel) -> None:
        self.kernel = kernel
        self.events: deque[CMEvent] = deque()
        self.identifiers: set[int] = set()
        self._isOpen = True

    def _id(self, number: int) -> Identifier:
        if number not in self.identifiers:
            raise InvalidRequest(f"there is no id {number}")
        return self.kernel.ids[number]

    def fileno(self) -> int:
        return 1 if self._isOpen else -1

    def close(self) -> None:
        self._isOpen = False
        for number in tuple(self.identifiers):
            self.destroy(number)

    def take(self) -> CMEvent | None:
        while self.events:
            event = self.events.popleft()
            if event.identifier in self.identifiers:
                return event
        return None

    def create(self, space: int) -> int:
        return self.kernel.made(self).number

    def destroy(self, number: int) -> None:
        identifier = self._id(number)
        self.identifiers.discard(number)
        self.kernel.destroyed(identifier)

    def listen(self, number: int, host: str, port: int, backlog: int) -> None:
        if (host, port) in self.kernel.listeners:
            raise InvalidRequest("the address is taken")
        self.kernel.listeners[host, port] = self._id(number)

    def resolveAddress(self, number: int, source: str, host: str, port: int, seconds: float) -> None:
        identifier = self._id(number)
        identifier.source, identifier.destination = (source, next(self.kernel.ports)), (host, port)
        self.kernel.sendEvent(identifier, EventKind.ADDR_RESOLVED)

    def resolveRoute(self, number: int, seconds: float) -> None:
        self.kernel.sendEvent(self._id(number), EventKind.ROUTE_RESOLVED)

    def connect(self, number: int, output: Parameters) -> None:
        identifier = self._id(number)
        identifier.output = output
        self.kernel.ask(identifier)

    def accept(self, number: int, output: Parameters) -> None:
        identifier = self._id(number)
        identifier.output, identifier.isReady = output, True
        self.kernel.sendEvent(self._peerOf(identifier), EventKind.CONNECT_RESPONSE, output)

    def establish(self, number: int) -> None:
        identifier = self._id(number)
        identifier.isReady = identifier.isEstablished = True
        self._confirm(self._peerOf(identifier))

    def communicating(self, number: int) -> None:
        self._confirm(self._id(number))

    def reject(self, number: int, privateData: bytes) -> None:
        identifier = self._id(number)
        output = Parameters(QPN(0), 0, 0, 0, 0, privateData)
        status = int(RejectReason.CONSUMER_REJECT)
        self.kernel.sendEvent(self._peerOf(identifier), EventKind.REJECTED, output, status)
        identifier.peer = None

    def disconnect(self, number: int) -> None:
        self.kernel.part(self._id(number))

    def ends(self, number: int) -> Ends:
        identifier = self._id(number)
        source, destination = identifier.source, identifier.destination
        return Ends(source, destination, GID.fromIP(source[0]), GID.fromIP(destination[0]), 0xFFFF)

    def prepared(self, number: int) -> Prepared:
        identifier = self._id(number)
        peer = self._peerOf(identifier)
        return replace(ROUTE, destinationQPN=peer.output.qpn, rqPSN=identifier.psn, sqPSN=peer.psn)

    def _peerOf(self, identifier: Identifier) -> Identifier:
        peer = identifier.peer
        if peer is None or peer.number not in self.kernel.ids:
            raise DeviceUnavailable("the peer is gone")
        return peer

    def _confirm(self, server: Identifier) -> None:
        """Report to the passive end, once, that the connection is established."""
        if not server.isEstablished:
            server.isEstablished = True
            self.kernel.sendEvent(server, EventKind.ESTABLISHED)


def useFakeKernel(patch: Callable[[Any, str, Any], object], clock: Callable[[], IReactorTime]) -> None:
    """Let all devices use the kernel's manager, by one fake kernel: C{patch} is C{TestCase.patch}."""
    kernel: list[FakeKernel] = []

    def channel() -> FakeChannel:
        if not kernel:
            kernel.append(FakeKernel(clock()))
        return kernel[0].channel()

    patch(adapters, "isManaged", lambda device: True)
    patch(kernels, "EventChannel", channel)
