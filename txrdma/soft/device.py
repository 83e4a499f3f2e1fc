"""
The software device: verbs of InfiniBand without any hardware.

Puts together memory, queues and queue pairs of this room with the two ways out: UDP, and shared memory for
peers on the same host.
"""

from __future__ import annotations

import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from secrets import randbelow
from typing import cast, Final

from zope.interface import implementer

from twisted.internet.interfaces import IDelayedCall, IReactorFDSet, IReactorTime
from twisted.logger import Logger

from txrdma.error import DeviceUnavailable, InvalidRequest, ResourceExhausted
from txrdma.iba.pcap import RoCECapture
from txrdma.iba.types import GID, MTU, QPN
from txrdma.iba.verbs import (
    Access,
    AddressVector,
    AsyncEvent,
    Capacity,
    DeviceLimits,
    PortAttributes,
    PortState,
    QPAttributes,
    QPKind,
)
from txrdma.interfaces import (
    IAddressHandle,
    ICompletionChannel,
    ICompletionQueue,
    IMemoryRegion,
    IProtectionDomain,
    IQueuePair,
    IVerbsDevice,
)
from txrdma.soft._netdev import activeMTU, interfaceOf, softMAC
from txrdma.soft._route import Owner, Route, RoutePort
from txrdma.soft.completion import SoftCompletionChannel, SoftCompletionQueue
from txrdma.soft.memory import Domain, KeyTable
from txrdma.soft.queuepair import SoftQueuePair
from txrdma.soft.roce import RoCEPort
from txrdma.soft.sharedmemory import SharedMemoryPort, SharingReactor
from txrdma.soft.udp import UDPCarrier

_log = Logger()

ROUTES: Final = ("auto", "rocev2", "shared-memory")

_ATTEMPTS: Final = 4

LIMITS: Final = DeviceLimits(
    maxQueuePairs=1 << 16,
    maxQueuePairRequests=1 << 16,
    maxSegments=256,
    maxCompletionQueues=1 << 16,
    maxCompletionQueueDepth=1 << 22,
    maxMemoryRegions=1 << 20,
    maxMemoryRegionLength=1 << 40,
    maxInline=1 << 31,  # the longest message (IBA 9.7.7.1.1.1); inline bytes are not copied when posted
    maxRDAtomic=16,
    maxDestRDAtomic=16,
    maxProtectionDomains=1 << 16,
    maxAddressHandles=1 << 20,
    maxSharedReceiveQueues=1 << 16,
    maxSharedReceiveQueueRequests=1 << 16,
    maxSharedReceiveQueueSegments=256,
)


@implementer(IAddressHandle)
@dataclass(frozen=True)
class SoftAddressHandle:
    """The way to a port, for datagrams."""

    address: AddressVector

    def close(self) -> None:
        """There is nothing to let go of."""


@implementer(IProtectionDomain)
class SoftProtectionDomain(Domain):
    """Memory and queue pairs that may reach each other."""

    def __init__(self, device: SoftDevice) -> None:
        self.device = device
        self._queuePairs: dict[SoftQueuePair, None] = {}
        self._closed = False

    def allocateMemory(self, length: int, access: Access) -> IMemoryRegion:
        """New zeroed memory that peers of the same host can map."""
        self._checkOpen()
        _checkAccess(access)
        if length > LIMITS.maxMemoryRegionLength:
            raise InvalidRequest(f"a memory region has at most {LIMITS.maxMemoryRegionLength} bytes")
        return self.device.keys.allocate(self, length, access)

    def registerMemory(self, buffer: memoryview, access: Access) -> IMemoryRegion:
        """Give writable, contiguous memory a key."""
        self._checkOpen()
        _checkAccess(access)
        return self.device.keys.register(self, buffer, access)

    def createAddressHandle(self, address: AddressVector) -> IAddressHandle:
        """The way to a port, for datagrams."""
        self._checkOpen()
        self.device.admit(QPAttributes(address=address))
        return SoftAddressHandle(address)

    def createQueuePair(
        self, kind: QPKind, send: ICompletionQueue, receive: ICompletionQueue, capacity: Capacity
    ) -> IQueuePair:
        """A new queue pair, in C{RESET}."""
        self._checkOpen()
        queuePair = self.device._newQueuePair(self, kind, send, receive, capacity)
        self._queuePairs[queuePair] = None
        return queuePair

    def close(self) -> None:
        """Let go of it, of its queue pairs first, then of its memory."""
        if self._closed:
            return
        self._closed = True
        for queuePair in tuple(self._queuePairs):
            queuePair.close()
        for region in self.device.keys.regionsOf(self):
            region.close()
        self.device._domains.pop(self, None)

    def _checkOpen(self) -> None:
        if self._closed:
            raise InvalidRequest("the protection domain is closed")


@implementer(IVerbsDevice)
class SoftDevice:
    """
    A device with one port, at one IP address of this host.

    @ivar routes: where routes begin, in the order in which they are tried.
    @ivar mac: locally administered; its last two bytes are the UDP port.
    """

    portCount = 1
    limits = LIMITS

    def __init__(
        self,
        reactor: IReactorTime,
        address: str,
        port: int,
        routes: Sequence[RoutePort],
        name: str = "soft",
        mtu: MTU | None = None,
        closed: Callable[[], None] = lambda: None,
    ) -> None:
        """
        @param routes: are the device's from now on, and closed with it.
        @param closed: called at the end of C{close}.
        """
        self.name = name
        self.address = address
        self.port = port
        self.routes = list(routes)
        self.keys = KeyTable(LIMITS.maxMemoryRegions)
        self.mac = softMAC(address, port)
        self._reactor = reactor
        self._gids = (GID.fromIP(address),)
        self._mtu = mtu
        self._queuePairs: dict[QPN, SoftQueuePair] = {}
        self._domains: dict[SoftProtectionDomain, None] = {}
        self._channels: dict[SoftCompletionChannel, None] = {}
        self._completionQueues: dict[SoftCompletionQueue, None] = {}
        self._listeners: dict[object, Callable[[AsyncEvent], None]] = {}
        self._events: list[AsyncEvent] = []
        self._telling: IDelayedCall | None = None
        self._closed = False
        self._tellClosed = closed

    def __repr__(self) -> str:
        return f"<SoftDevice {self.name} {self.address} port {self.port}>"

    # What it is.

    def gids(self, port: int) -> Sequence[GID]:
        """The GID table: the IP address, as RoCE v2 writes it."""
        self._checkPort(port)
        return self._gids

    def portAttributes(self, port: int) -> PortAttributes:
        """What the port is at present: as the network interface is."""
        self._checkPort(port)
        interface = interfaceOf(self.address)
        isUp = (interface is None or interface.isUp) and not self._closed
        return PortAttributes(
            PortState.ACTIVE if isUp else PortState.DOWN,
            maxMTU=MTU.MTU_4096,
            activeMTU=activeMTU(self.address, self._mtu),
            netdev="" if interface is None else interface.name,
            mac=self.mac,
        )

    # What is made from it.

    def createProtectionDomain(self) -> IProtectionDomain:
        """A new set of memory and queue pairs."""
        self._checkOpen()
        domain = SoftProtectionDomain(self)
        self._domains[domain] = None
        return domain

    def createChannel(self) -> ICompletionChannel:
        """A descriptor that becomes readable when an armed completion queue has something."""
        self._checkOpen()
        channel = SoftCompletionChannel(self._channels.pop)
        self._channels[channel] = None
        return channel

    def createCompletionQueue(self, depth: int, channel: ICompletionChannel) -> ICompletionQueue:
        """A queue for C{depth} completions."""
        self._checkOpen()
        if not isinstance(channel, SoftCompletionChannel):
            raise InvalidRequest(f"{channel!r} is no channel of a software device")
        if not 1 <= depth <= LIMITS.maxCompletionQueueDepth:
            raise InvalidRequest(f"the depth is from 1 to {LIMITS.maxCompletionQueueDepth}, not {depth}")
        if len(self._completionQueues) >= LIMITS.maxCompletionQueues:
            raise ResourceExhausted(f"the device has its {LIMITS.maxCompletionQueues} completion queues")
        queue = SoftCompletionQueue(depth, channel, self.notify, self._completionQueues.pop)
        self._completionQueues[queue] = None
        return queue

    def subscribe(self, listener: Callable[[AsyncEvent], None]) -> Callable[[], None]:
        """Hear asynchronous events; the answer ends it."""
        key = object()
        self._listeners[key] = listener

        def unsubscribe() -> None:
            self._listeners.pop(key, None)

        return unsubscribe

    def close(self) -> None:
        """Let go of the device, and before that of everything that was made from it."""
        if self._closed:
            return
        self._closed = True
        for domain in tuple(self._domains):
            domain.close()
        for queue in tuple(self._completionQueues):
            queue.close()
        for channel in tuple(self._channels):
            channel.close()
        for route in self.routes:
            route.close()
        self._listeners.clear()
        if self._telling is not None:
            self._telling.cancel()
            self._telling = None
        self._tellClosed()

    # What queue pairs ask for: see txrdma.soft.queuepair.Host.

    def connect(self, queuePair: SoftQueuePair) -> Route:
        """The first route that leads there."""
        for port in self.routes:
            route = port.connect(queuePair)
            if route is not None:
                _log.debug("{queuePair!r} takes {route}", queuePair=queuePair, route=route.name)
                return route
        raise DeviceUnavailable(f"no route of {self!r} leads to {queuePair.attributes.address}")

    def admit(self, attributes: QPAttributes) -> None:
        """
        Look whether the device has what is named.

        @raise InvalidRequest: it has not.
        """
        ports = [attributes.port]
        for vector in (attributes.address, attributes.alternateAddress):
            if vector is not None:
                ports.append(vector.port)
                if not 0 <= vector.sgidIndex < len(self._gids):
                    raise InvalidRequest(f"the port has no GID {vector.sgidIndex}")
                if vector.dgid.ip is None:
                    raise InvalidRequest(f"{vector.dgid} leads nowhere")
        for port in ports:
            if port is not None:
                self._checkPort(port)
        if attributes.pkeyIndex not in (None, 0):
            raise InvalidRequest(f"the port has no P_Key {attributes.pkeyIndex}")
        if attributes.pathMTU is not None and attributes.pathMTU > self.portAttributes(1).activeMTU:
            raise InvalidRequest(f"{attributes.pathMTU!r} is more than the port's active MTU")

    def notify(self, event: AsyncEvent) -> None:
        """Tell those who listen, in a turn of the reactor of its own."""
        if self._listeners and not self._closed:
            self._events.append(event)
            if self._telling is None:
                self._telling = self._reactor.callLater(0, self._tell)

    def forget(self, queuePair: SoftQueuePair) -> None:
        """It is closed."""
        self._queuePairs.pop(queuePair.number, None)
        cast(SoftProtectionDomain, queuePair.domain)._queuePairs.pop(queuePair, None)

    def _tell(self) -> None:
        self._telling = None
        events, self._events = self._events, []
        for event in events:
            for key, listener in tuple(self._listeners.items()):
                if key in self._listeners:
                    try:
                        listener(event)
                    except Exception:
                        _log.failure("while {listener!r} heard {event}", listener=listener, event=event)

    def _newQueuePair(
        self,
        domain: SoftProtectionDomain,
        kind: QPKind,
        send: ICompletionQueue,
        receive: ICompletionQueue,
        capacity: Capacity,
    ) -> SoftQueuePair:
        if kind not in (QPKind.RC, QPKind.UD):
            raise InvalidRequest(f"queue pairs are RC or UD here, not {kind!r}")
        if not isinstance(send, SoftCompletionQueue) or not isinstance(receive, SoftCompletionQueue):
            raise InvalidRequest("these are not completion queues of a software device")
        for name, most in (
            ("maxSend", LIMITS.maxQueuePairRequests),
            ("maxReceive", LIMITS.maxQueuePairRequests),
            ("maxSendSegments", LIMITS.maxSegments),
            ("maxReceiveSegments", LIMITS.maxSegments),
            ("maxInline", LIMITS.maxInline),
        ):
            if not 0 <= getattr(capacity, name) <= most:
                raise InvalidRequest(f"{name} is at most {most}, not {getattr(capacity, name)}")
        if len(self._queuePairs) >= LIMITS.maxQueuePairs:
            raise ResourceExhausted(f"the device has its {LIMITS.maxQueuePairs} queue pairs")
        number = QPN(0)
        while number < 2 or number in self._queuePairs:  # 0 and 1 are for management (IBA 3.5.3)
            number = QPN(randbelow(0xFFFFFF))
        capacity = replace(capacity, maxInline=LIMITS.maxInline)
        queuePair = SoftQueuePair(self, domain, kind, number, send, receive, capacity)
        self._queuePairs[number] = queuePair
        return queuePair

    def _checkOpen(self) -> None:
        if self._closed:
            raise DeviceUnavailable(f"{self!r} is closed")

    def _checkPort(self, port: int) -> None:
        if port != 1:
            raise InvalidRequest(f"there is no port {port}; the only one is 1")


def _checkAccess(access: Access) -> None:
    if access & Access.REMOTE_ATOMIC:
        raise InvalidRequest("atomic operations are not supported")


class _DatagramsOnly:
    """A port for the datagrams of a device whose connections may not use it."""

    def __init__(self, port: RoutePort) -> None:
        self._port = port

    def connect(self, owner: Owner) -> Route | None:
        return self._port.connect(owner) if owner.kind is QPKind.UD else None

    def close(self) -> None:
        self._port.close()


def openSoftDevice(
    reactor: object,
    address: str = "127.0.0.1",
    port: int | None = None,
    route: str = "auto",
    pcap: str | None = None,
    mtu: MTU | None = None,
) -> SoftDevice:
    """
    Open a software device at an IP address of this host.

    @param port: its UDP port; without it that of RoCE v2, or any other when that one is taken.
    @param route: one of L{ROUTES}: which ways its connections may take.
    @param pcap: the name of a file that records all packets.
    @param mtu: the largest payload of a packet, where the interface's own MTU allows more.
    @raise DeviceUnavailable: there is no such address, the port is taken, or the file can't be written.
    """
    try:
        file = None if pcap is None else open(pcap, "wb")
    except OSError as error:
        raise DeviceUnavailable(f"no packets can be recorded: {error}") from error
    with ExitStack() as undo:
        capture = None
        if file is not None:
            undo.callback(file.close)
            capture = RoCECapture(file)
        # Somebody else may have our name for shared memory at a UDP port that is free (a process that is just
        # closing, or none of ours): then any other port will do.
        left = _ATTEMPTS if port is None and route != "rocev2" else 1
        while True:
            left -= 1
            carrier = UDPCarrier(IReactorFDSet(reactor), address, port)
            roce = RoCEPort(IReactorTime(reactor), carrier, capture, activeMTU(address, mtu))
            routes: list[RoutePort] = []
            try:
                if route != "rocev2":
                    needed = route == "shared-memory" or left > 0
                    routes += _sharedMemory(reactor, address, roce.port, capture, needed)
                break
            except DeviceUnavailable:
                roce.close()
                if left == 0:
                    raise
                port = 0
        undo.callback(roce.close)
        routes.append(_DatagramsOnly(roce) if route == "shared-memory" else roce)
        closing = undo.pop_all()
    name = "soft" if address == "127.0.0.1" else "soft:" + address.replace(":", r"\:")
    return SoftDevice(IReactorTime(reactor), address, roce.port, routes, name, mtu, closing.close)


def _sharedMemory(
    reactor: object, address: str, port: int, capture: RoCECapture | None, isNeeded: bool
) -> list[RoutePort]:
    """The way to other processes of this host, if the system has it."""
    try:
        if sys.platform != "linux":
            raise DeviceUnavailable("the shared memory route needs Linux")
        return [SharedMemoryPort(cast(SharingReactor, reactor), address, port, capture)]
    except DeviceUnavailable as error:
        if isNeeded:
            raise
        _log.warn("{address} goes without shared memory: {error}", address=address, error=error)
        return []
