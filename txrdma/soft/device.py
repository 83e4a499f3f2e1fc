"""
The software device: verbs of InfiniBand without any hardware.

Combines ports, memory, queues and queue pairs with two routes: RoCE v2 over UDP, and shared memory for peers
on the same host. Protection domains and address handles follow InfiniBand Architecture vol. 1, 10.2.2.2
and 10.2.3.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from secrets import randbelow, randbits
from typing import BinaryIO, cast, Final, TYPE_CHECKING

from zope.interface import implementer

from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from txrdma import __version__
from txrdma.error import DeviceUnavailable, InvalidRequest, ResourceExhausted
from txrdma.iba.types import GID, GUID, MACAddress, MTU, PKey, QPN
from txrdma.iba.verbs import (
    Access,
    AddressVector,
    AtomicCapability,
    Capacity,
    DeviceAttributes,
    GIDEntry,
    NodeType,
    PortAttributes,
    QPAttributes,
    QPKind,
)
from txrdma.interfaces import (
    AsyncEvent,
    IAddressHandle,
    ICompletionChannel,
    ICompletionQueue,
    IMemoryRegion,
    IProtectionDomain,
    IQueuePair,
    IReactorDevice,
    IServiceClaims,
    ISharedReceiveQueue,
    IVerbsDevice,
)
from txrdma.kit.delayedcalls import Timer
from txrdma.kit.listeners import Listeners
from txrdma.kit.values import replace
from txrdma.soft.core.completion import SoftCompletionChannel, SoftCompletionQueue
from txrdma.soft.core.memory import Domain, KeyTable
from txrdma.soft.core.netdev import shareOf
from txrdma.soft.core.queuepair import DeviceCalls, SoftQueuePair
from txrdma.soft.core.recent import RecentNumbers
from txrdma.soft.core.route import Route
from txrdma.soft.core.routeport import RoutePort
from txrdma.soft.core.sharedreceives import SoftSharedReceiveQueue
from txrdma.soft.hostinterfaces import HostInterfaces, openHostInterfaces
from txrdma.soft.objectlimits import checkAvailable, checkCapacity, checkRange, LIMITS
from txrdma.soft.opening import isTaken, openPort, udpPorts
from txrdma.soft.ports import PKEYS, SoftPort
from txrdma.soft.shared.sharedmemoryport import SharedMemoryPort

if TYPE_CHECKING:
    from txrdma.soft.rc.peers import RoutesPort

_log = Logger()

_NUMBERS_REMEMBERED: Final = 1 << 14

_GSI: Final = QPN(1)


@implementer(IAddressHandle)
class SoftAddressHandle:
    """The address of a port, for datagrams; its C{domain} is None after C{close}."""

    def __init__(
        self, domain: Domain, address: AddressVector, closed: Callable[[SoftAddressHandle], None]
    ) -> None:
        self.domain: Domain | None = domain
        self.address = address
        self._onClosed = closed

    def __repr__(self) -> str:
        return f"<SoftAddressHandle {self.address}>"

    def close(self) -> None:
        self.domain = None
        self._onClosed(self)


@implementer(IProtectionDomain)
class SoftProtectionDomain(Domain):
    """A protection domain: memory and queue pairs that may access each other."""

    def __init__(self, device: SoftDevice) -> None:
        self.device = device
        self._queuePairs: dict[SoftQueuePair, None] = {}
        self._closed = False

    def allocateMemory(self, length: int, access: Access) -> IMemoryRegion:
        self._checkOpen()
        self._checkLength(length)
        return self.device.keys.allocate(self, length, access)

    def registerMemory(self, buffer: memoryview, access: Access) -> IMemoryRegion:
        self._checkOpen()
        self._checkLength(memoryview(buffer).nbytes)
        return self.device.keys.register(self, buffer, access)

    def createAddressHandle(self, address: AddressVector) -> IAddressHandle:
        self._checkOpen()
        handles, limits = self.device.addressHandles, self.device.limits
        checkAvailable(handles, limits.maxAddressHandles, "address handles")
        self.device.admit(QPAttributes(address=address), QPAttributes())
        handle = SoftAddressHandle(self, address, lambda handle: handles.pop(handle, None))
        handles[handle] = None
        return handle

    def createSharedReceiveQueue(self, maxReceive: int, maxSegments: int) -> ISharedReceiveQueue:
        self._checkOpen()
        queues, limits = self.device.sharedReceiveQueues, self.device.limits
        checkRange("maxReceive", maxReceive, 1, limits.maxSharedReceiveQueueRequests)
        checkRange("maxSegments", maxSegments, 0, limits.maxSharedReceiveQueueSegments)
        checkAvailable(queues, limits.maxSharedReceiveQueues, "shared receive queues")
        queue = SoftSharedReceiveQueue(
            self, maxReceive, maxSegments, self.device.notify, lambda queue: queues.pop(queue, None)
        )
        queues[queue] = None
        return queue

    def createQueuePair(
        self,
        kind: QPKind,
        send: ICompletionQueue,
        receive: ICompletionQueue,
        capacity: Capacity,
        shared: ISharedReceiveQueue | None = None,
    ) -> IQueuePair:
        self._checkOpen()
        if shared is not None and (
            not isinstance(shared, SoftSharedReceiveQueue) or shared.domain is not self
        ):
            raise InvalidRequest(f"{shared!r} is not a shared receive queue of this domain")
        queuePair = self.device.newQueuePair(self, kind, send, receive, capacity, shared)
        self._queuePairs[queuePair] = None
        return queuePair

    def forget(self, queuePair: SoftQueuePair) -> None:
        self._queuePairs.pop(queuePair, None)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for queuePair in tuple(self._queuePairs):
            queuePair.close()
        for queue in tuple(self.device.sharedReceiveQueues):
            if queue.domain is self:
                queue.close()
        for handle in tuple(self.device.addressHandles):
            if handle.domain is self:
                handle.close()
        for region in self.device.keys.regionsOf(self):
            region.close()
        self.device.domains.pop(self, None)

    def _checkOpen(self) -> None:
        if self._closed:
            raise InvalidRequest("the protection domain is closed")

    def _checkLength(self, length: int) -> None:
        checkRange("the length of a memory region", length, 1, self.device.limits.maxMemoryRegionLength)


@implementer(IVerbsDevice, IReactorDevice, IServiceClaims)
class SoftDevice:
    """
    A device with one or more ports, each at one IP address of this host.

    @ivar share: upper 8 bits of all queue pair numbers, if the device shares port 4791 with others.
    """

    limits = LIMITS
    isAttended = False

    def __init__(
        self,
        reactor: IReactorTime,
        ports: Sequence[SoftPort],
        name: str = "soft",
        closed: Callable[[], None] = lambda: None,
        interfaces: HostInterfaces | None = None,
    ) -> None:
        self.name = name
        self.ports = tuple(ports)
        self.share = shareOf(self.ports[0].udpPort)
        self.portCount = len(self.ports)
        self.keys = KeyTable(LIMITS.maxMemoryRegions)
        guid = GUID.fromMAC(self.ports[0].mac)
        self.attributes = DeviceAttributes(
            NodeType.CHANNEL_ADAPTER,
            guid,
            guid,
            firmware=__version__,  # there is none: the version of this package
            atomics=AtomicCapability.HCA,
            acknowledgesByProgram=True,
            canMigrate=True,
            canDisarm=True,
        )
        for number, port in enumerate(self.ports, 1):
            port.adopt(number, self.notify)
        if self.portCount > 1:
            _linkSiblings(self.ports)
        # Objects of the device.
        self.domains: dict[SoftProtectionDomain, None] = {}
        self.addressHandles: dict[SoftAddressHandle, None] = {}
        self.sharedReceiveQueues: dict[SoftSharedReceiveQueue, None] = {}
        self._queuePairs: dict[SoftQueuePair, None] = {}
        self._numbers: set[QPN] = set()
        self._oldNumbers = RecentNumbers(_NUMBERS_REMEMBERED)
        self._channels: dict[SoftCompletionChannel, None] = {}
        self._completionQueues: dict[SoftCompletionQueue, None] = {}
        self._reactor = reactor
        self._listeners: Listeners[[AsyncEvent]] = Listeners(
            _log, "Unexpected error: {listener!r} failed to handle {event}"
        )
        self._events: list[AsyncEvent] = []
        self._eventTimer = Timer(reactor)
        self._calls = DeviceCalls(self, self.keys, self.connect, self.admit, self.notify, self.forget)
        self._closed = False
        self._onClosed = closed
        self._interfaces = interfaces
        self._routePorts = [route for port in self.ports for route in port.routes]
        self.canRest = all(route.canRest for route in self._routePorts)
        if interfaces is not None:
            interfaces.watch(reactor, self.readInterfaces)

    def __repr__(self) -> str:
        return f"<SoftDevice {self.name} {', '.join(f'{p.address} port {p.udpPort}' for p in self.ports)}>"

    # Attributes.

    def gids(self, port: int) -> Sequence[GID]:
        return tuple(entry.gid for entry in self._port(port).gidTable())

    def gidTable(self, port: int) -> Sequence[GIDEntry]:
        return self._port(port).gidTable()

    def pkeys(self, port: int) -> Sequence[PKey]:
        self._port(port)
        return PKEYS

    def portAttributes(self, port: int) -> PortAttributes:
        return self._port(port).attributes()

    def setPortEnabled(self, port: int, isEnabled: bool) -> None:
        """Enable or disable a port for RoCE; shared memory is not affected."""
        self._checkOpen()
        self._port(port).setEnabled(isEnabled)

    def readInterfaces(self) -> None:
        """Read the state of the host's interfaces, and raise events for changes."""
        for port in self.ports:
            port.readInterfaces()

    def drive(self) -> bool:
        return True in [route.drive() for route in self._routePorts]

    def descriptors(self) -> Sequence[int]:
        return ()

    def attend(self) -> None:
        """Do nothing: the device has no events while it is off the reactor."""

    def rest(self) -> None:
        for route in self._routePorts:
            route.rest()
        if self._interfaces is not None:
            self._interfaces.rest()
        if self._eventTimer.isPending:
            self._eventTimer.stop()
            self._deliverEvents()

    def wake(self) -> None:
        if self._closed:
            return
        for route in self._routePorts:
            route.wake()
        if self._interfaces is not None:
            self._interfaces.wake()

    @property
    def address(self) -> str:
        return self.ports[0].address

    @property
    def port(self) -> int:
        return self.ports[0].udpPort

    @property
    def mac(self) -> MACAddress:
        return self.ports[0].mac

    @property
    def routes(self) -> Sequence[RoutePort]:
        return self.ports[0].routes

    # IServiceClaims

    def claimService(self, serviceID: int) -> Callable[[], None]:
        with ExitStack() as undo:
            for route in self._routePorts:
                undo.callback(route.claimService(serviceID))
            return undo.pop_all().close

    # Objects.

    def createProtectionDomain(self) -> IProtectionDomain:
        self._checkOpen()
        checkAvailable(self.domains, self.limits.maxProtectionDomains, "protection domains")
        domain = SoftProtectionDomain(self)
        self.domains[domain] = None
        return domain

    def createChannel(self) -> ICompletionChannel:
        self._checkOpen()
        channel = SoftCompletionChannel(self._channels.pop)
        self._channels[channel] = None
        return channel

    def createCompletionQueue(self, depth: int, channel: ICompletionChannel) -> ICompletionQueue:
        self._checkOpen()
        if not isinstance(channel, SoftCompletionChannel) or channel not in self._channels:
            raise InvalidRequest(f"{channel!r} is not an open channel of this device")
        checkRange("the depth", depth, 1, self.limits.maxCompletionQueueDepth)
        checkAvailable(self._completionQueues, self.limits.maxCompletionQueues, "completion queues")
        queue = SoftCompletionQueue(depth, channel, self.notify, self._completionQueues.pop)
        self._completionQueues[queue] = None
        return queue

    def subscribe(self, listener: Callable[[AsyncEvent], None]) -> Callable[[], None]:
        return self._listeners.add(listener)

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        for domain in tuple(self.domains):
            domain.close()
        for queue in tuple(self._completionQueues):
            queue.close()
        for channel in tuple(self._channels):
            channel.close()
        for port in self.ports:
            port.close()
        self._listeners.clear()
        self._eventTimer.stop()
        self._onClosed()

    # txrdma.soft.core.queuepair.DeviceCalls

    def connect(self, queuePair: SoftQueuePair) -> Route:
        """
        Return the port's first route that reaches the peer; raises L{ResourceExhausted} for a second GSI.
        """
        attributes = queuePair.attributes
        if queuePair.number == _GSI and any(
            other is not queuePair
            and (other.number, other.attributes.port) == (_GSI, attributes.port)
            and other.route
            for other in self._queuePairs
        ):
            raise ResourceExhausted(f"queue pair 1 of port {attributes.port} of {self.name} is in use")
        for port in self._port(attributes.port or 1).routes:
            if attributes.alternateAddress is not None and isinstance(port, SharedMemoryPort):
                continue  # shared memory has no alternate path
            route = port.connect(queuePair)
            if route is not None:
                return route
        if attributes.alternateAddress is not None:
            raise InvalidRequest(f"no route of {self!r} has alternate paths: only RoCE v2 has")
        raise DeviceUnavailable(f"no route of {self!r} leads to {attributes.address}")

    def admit(self, requested: QPAttributes, current: QPAttributes) -> None:
        """Check attributes of a queue pair against the limits of the device, and against its ports."""
        port = current.port if requested.port is None else requested.port
        if requested.port is not None:
            self._port(requested.port)
        for vector in (requested.address, requested.alternateAddress):
            if vector is not None:
                self._port(vector.port).checkPath(vector)
        address = requested.address or current.address
        if address is not None and port not in (None, address.port):
            raise InvalidRequest(
                f"the queue pair is on port {port}, but its address is on port {address.port}"
            )
        for index in (requested.pkeyIndex, requested.alternatePKeyIndex):
            if index is not None and not 0 <= index < len(PKEYS):
                raise InvalidRequest(f"the port has no P_Key {index}")
        if requested.maxRDAtomic is not None:
            checkRange("maxRDAtomic", requested.maxRDAtomic, 0, self.limits.maxRDAtomic)
        if requested.maxDestRDAtomic is not None:
            checkRange("maxDestRDAtomic", requested.maxDestRDAtomic, 0, self.limits.maxDestRDAtomic)
        # A path MTU is not changed by a migration, so the port of the alternate path has to carry it, too.
        mtu = requested.pathMTU or current.pathMTU
        if requested.pathMTU is not None and requested.pathMTU > self._port(port or 1).activeMTU:
            raise InvalidRequest(f"{requested.pathMTU!r} is more than the port's active MTU")
        if requested.alternateAddress is not None and mtu is not None:
            if mtu > self._port(requested.alternateAddress.port).activeMTU:
                raise InvalidRequest(f"{mtu!r} is more than the active MTU of the alternate path's port")

    def notify(self, event: AsyncEvent) -> None:
        if self._listeners and not self._closed:
            self._events.append(event)
            self._eventTimer.ensure(0, self._deliverEvents)

    def forget(self, queuePair: SoftQueuePair) -> None:
        self._queuePairs.pop(queuePair, None)
        self._numbers.discard(queuePair.number)
        self._oldNumbers.add(queuePair.number)
        cast(SoftProtectionDomain, queuePair.domain).forget(queuePair)

    def newQueuePair(
        self,
        domain: SoftProtectionDomain,
        kind: QPKind,
        send: ICompletionQueue,
        receive: ICompletionQueue,
        capacity: Capacity,
        shared: SoftSharedReceiveQueue | None,
    ) -> SoftQueuePair:
        if kind not in (QPKind.RC, QPKind.UD, QPKind.GSI):
            raise InvalidRequest(f"queue pairs are RC, UD or GSI here, not {kind!r}")
        for queue in (send, receive):
            if queue not in self._completionQueues:
                raise InvalidRequest(f"{queue!r} is not an open completion queue of this device")
        if shared is not None:
            capacity = replace(capacity, maxReceive=0, maxReceiveSegments=0)
        checkCapacity(capacity, self.limits)
        checkAvailable(self._queuePairs, self.limits.maxQueuePairs, "queue pairs")
        isGSI = kind is QPKind.GSI
        number = QPN(0)
        # 0 and 1 are for management (IBA 3.5.3)
        while number < 2 or number in self._numbers or number in self._oldNumbers:
            number = QPN(randbelow(0xFFFFFF) if self.share is None else self.share << 16 | randbits(16))
        number = _GSI if isGSI else number
        queuePair = SoftQueuePair(
            self._calls,
            domain,
            QPKind.UD if isGSI else kind,
            number,
            cast(SoftCompletionQueue, send),
            cast(SoftCompletionQueue, receive),
            capacity,
            shared,
        )
        self._queuePairs[queuePair] = None
        self._numbers.add(number)
        return queuePair

    def _deliverEvents(self) -> None:
        events, self._events = self._events, []
        for event in events:
            self._listeners.notify(event)

    def _checkOpen(self) -> None:
        if self._closed:
            raise DeviceUnavailable(f"{self!r} is closed")

    def _port(self, number: int) -> SoftPort:
        if not 1 <= number <= self.portCount:
            raise InvalidRequest(f"there is no port {number}; they are 1 to {self.portCount}")
        return self.ports[number - 1]


def _linkSiblings(ports: Sequence[SoftPort]) -> None:
    """Link the RoCE ports of a device, because paths can migrate between them."""
    from txrdma.soft.rc.roce import RoCEPort  # not at the top: see L{openPort}

    siblings: dict[int, RoutesPort] = {}
    for number, port in enumerate(ports, 1):
        for route in port.routes:
            if isinstance(route, RoCEPort):
                siblings[number] = route
                route.siblings = siblings


def _openPorts(
    addresses: Sequence[str], numbers: Sequence[int], make: Callable[..., SoftPort]
) -> tuple[list[SoftPort], Callable[[], None]]:
    """
    Open a port at each address, at the first of these UDP ports that is free at all of them.

    @return: the ports, and a function that closes them.
    """
    for tried, number in enumerate(numbers, 1):
        isLast = tried == len(numbers)
        with ExitStack() as undo:
            ports = []
            try:
                for address in addresses:
                    ports.append(make(address=address, port=number, isLast=isLast))
                    undo.callback(ports[-1].close)
            except DeviceUnavailable as error:
                if isLast or not isTaken(error):
                    raise
            else:
                return ports, undo.pop_all().close
    raise AssertionError("there is a last port")


def _closeCapture(file: BinaryIO) -> None:
    """Close a capture file; what could not be written is lost."""
    with suppress(OSError):
        file.close()


def openSoftDevice(
    reactor: object,
    addresses: str | Sequence[str] = "127.0.0.1",
    port: int | None = None,
    route: str = "auto",
    pcap: str | None = None,
    mtu: MTU | None = None,
    runtime: str | None = None,
) -> SoftDevice:
    """
    Open a software device at one or more IP addresses of this host, each of which is a port.

    @param port: UDP port, 0 for any free one; by default one of 24792 to 25045, for a device that shares
        port 4791 (RoCE v2) with others.
    @param route: one of L{ROUTES <txrdma.soft.opening.ROUTES>}: the routes of its connections.
    @param pcap: name of a file that records all packets; implies the route C{rocev2}.
    @param mtu: the largest payload of a packet, where the interface's own MTU allows more.
    @param runtime: a directory in which processes of different network namespaces find each other, to share
        memory.
    @raise DeviceUnavailable: there is no such address, the port is in use, or the file can't be written.
    """
    if isinstance(addresses, str):
        addresses = (addresses,)
    if pcap is not None:
        if route == "shared-memory":
            raise ValueError("only the packets of route=rocev2 can be recorded")
        route = "rocev2"
    try:
        file = None if pcap is None else open(pcap, "wb")
    except OSError as error:
        raise DeviceUnavailable(f"the capture file can't be written: {error}") from error
    with ExitStack() as undo:
        capture = None
        if file is not None:
            from txrdma.iba.pcap import RoCECapture  # rarely used, and slow to import

            undo.callback(_closeCapture, file)
            try:
                capture = RoCECapture(file)
            except OSError as error:
                raise DeviceUnavailable(f"the capture file can't be written: {error}") from error
        interfaces = openHostInterfaces()
        if interfaces is not None:
            undo.callback(interfaces.close)
        make = partial(openPort, reactor, interfaces, route=route, capture=capture, mtu=mtu, runtime=runtime)
        ports, close = _openPorts(addresses, udpPorts(port), make)
        undo.callback(close)
        name = "soft" if addresses == ("127.0.0.1",) else "soft:" + ",".join(addresses).replace(":", r"\:")
        closing = ExitStack()
        device = SoftDevice(IReactorTime(reactor), ports, name, closing.close, interfaces)
        closing.push(undo.pop_all())
    return device
