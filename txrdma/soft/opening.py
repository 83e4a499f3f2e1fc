"""Opening a port of a software device: its sockets and its routes."""

from __future__ import annotations

import errno
import sys
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from secrets import randbelow
from typing import cast, Final, TYPE_CHECKING

from twisted.internet.interfaces import IReactorFDSet, IReactorTime
from twisted.logger import Logger

from txrdma.error import DeviceUnavailable
from txrdma.iba.types import MTU, ROCE_PORT
from txrdma.iba.verbs import QPKind
from txrdma.kit.logs import advised, errorText, RateLimitedLogger
from txrdma.soft.core.netdev import longestDatagram, portOfShare, shareOf, SHARES
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.core.route import Route
from txrdma.soft.core.routeport import RoutePort
from txrdma.soft.hostinterfaces import HostInterfaces
from txrdma.soft.ports import SoftPort
from txrdma.soft.rc.udp import UDPCarrier
from txrdma.soft.shared.sharedmemoryport import SharedMemoryPort
from txrdma.soft.shared.sharedqueuepair import SharingReactor
from txrdma.soft.shared.unixpackets import DirectoryRendezvous
from txrdma.unix.sharing import whyNoSharedMemory
from txrdma.unix.sockets import Reactor

if TYPE_CHECKING:
    from txrdma.iba.pcap import RoCECapture
    from txrdma.soft.rc.roce import RoCEPort

_rateLimited = RateLimitedLogger(Logger())

ROUTES: Final = ("auto", "rocev2", "shared-memory")

_ATTEMPTS: Final = 4

_TAKEN: Final = (errno.EADDRINUSE, errno.EEXIST)
"""Errors for a name in use: an abstract one, and one in a directory."""


class _DatagramsOnly(RoutePort):
    """A RoCE port for datagrams only, of a device whose connections use shared memory; made on first use."""

    canRest = True  # datagrams may be lost

    def __init__(self, carrier: UDPCarrier, makePort: Callable[[], RoutePort]) -> None:
        self._carrier = carrier
        self._makePort = makePort
        self._port: RoutePort | None = None
        self._isEnabled = True

    def rest(self) -> None:
        self._carrier.setReading(False)
        if self._port is not None:
            self._port.rest()

    def wake(self) -> None:
        self._carrier.setReading(True)
        if self._port is not None:
            self._port.wake()

    def connect(self, owner: SoftQueuePair) -> Route | None:
        if owner.kind is not QPKind.UD:
            return None
        if self._port is None:
            self._port = self._makePort()
            self._port.setEnabled(self._isEnabled)
        return self._port.connect(owner)

    def claimService(self, serviceID: int) -> Callable[[], None]:
        return super().claimService(serviceID) if self._port is None else self._port.claimService(serviceID)

    def setEnabled(self, isEnabled: bool) -> None:
        self._isEnabled = isEnabled
        if self._port is not None:
            self._port.setEnabled(isEnabled)

    def close(self) -> None:
        if self._port is not None:
            self._port.close()
        self._carrier.close()


def udpPorts(port: int | None) -> Sequence[int]:
    """
    Return the UDP ports to try for a device.

    Without a given port these are the ports of shares, from a random one on: a new device should not get the
    numbers of one that has just closed. The name for shared memory of a free port may be taken, by a process
    that is closing or of another user, so that any port is tried several times.
    """
    if port is not None:
        return [port] if port else [0] * _ATTEMPTS
    if sys.platform != "linux":
        return ROCE_PORT, 0
    first = randbelow(SHARES)
    return [*(portOfShare((first + number) % SHARES + 1) for number in range(SHARES)), 0]


def isTaken(error: DeviceUnavailable) -> bool:
    """Return whether a port could not be opened because another program has its UDP port, or its name."""
    cause = error.__cause__
    return isinstance(cause, OSError) and cause.errno in _TAKEN


def openPort(
    reactor: object,
    interfaces: HostInterfaces | None,
    address: str,
    port: int,
    route: str,
    capture: RoCECapture | None,
    mtu: MTU | None,
    runtime: str | None,
    isLast: bool,
) -> SoftPort:
    """
    Open a port; for other parameters and errors see L{openSoftDevice <txrdma.soft.device.openSoftDevice>}.

    @param port: the UDP port. If it is that of a share, the device shares port 4791 with others.
    @param isLast: whether no other UDP port will be tried.
    """
    interface = None if interfaces is None else interfaces.interfaceOf(address)
    if interface is None:
        interfaces = None  # a local address without an interface: nothing to watch
    longest = longestDatagram(None if interface is None else interface.mtu, ":" in address, mtu)

    def makeRoCE() -> RoCEPort:
        # Not at the top: the import takes 15 ms, and shared memory does not need it.
        lanes = None if shared is None else shared.datagrams
        share = shareOf(carrier.port)
        if share is not None:
            from txrdma.soft.rc.wellknown import SharingPort

            return SharingPort(cast(Reactor, reactor), carrier, address, share, capture, longest, lanes)
        from txrdma.soft.rc.roce import RoCEPort

        return RoCEPort(IReactorTime(reactor), carrier, capture, longest, lanes)

    with ExitStack() as undo:
        carrier = UDPCarrier(IReactorFDSet(reactor), address, port)
        undo.callback(carrier.close)
        shared: SharedMemoryPort | None = None
        if route != "rocev2":
            shared = _sharedMemory(reactor, address, carrier.port, route == "shared-memory", isLast, runtime)
        routes: list[RoutePort] = [] if shared is None else [shared]
        if shared is not None:
            undo.callback(shared.close)
        routes.append(_DatagramsOnly(carrier, makeRoCE) if route == "shared-memory" else makeRoCE())
        undo.callback(routes[-1].close)
        made = SoftPort(address, carrier.port, routes, mtu, interfaces, longest)
        undo.pop_all()
    return made


def _whyNoSharedMemory() -> str:
    """Return why there is no shared memory route; empty if there may be one."""
    if sys.platform != "linux":
        return "the shared memory route needs Linux"
    try:
        return whyNoSharedMemory()
    except OSError as error:
        return advised(error)


def _sharedMemory(
    reactor: object,
    address: str,
    port: int,
    isNeeded: bool,
    isLast: bool,
    runtime: str | None,
) -> SharedMemoryPort | None:
    """
    Open the shared memory of a device; return None if that is impossible and UDP is used instead.

    @param isNeeded: shared memory was requested.
    @param isLast: no other UDP port will be tried.
    @raise DeviceUnavailable: it is impossible, but needed; or another device has the port.
    """
    try:
        why = _whyNoSharedMemory()
        if why:
            raise DeviceUnavailable(why)
        rendezvous = None if runtime is None else DirectoryRendezvous(cast(Reactor, reactor), runtime)
        sharing = cast(SharingReactor, reactor)
        return SharedMemoryPort(sharing, address, port, rendezvous=rendezvous)
    except DeviceUnavailable as error:
        if isNeeded or (isTaken(error) and not isLast):
            raise
        _rateLimited.warn(
            address,
            "the software device at {address} uses UDP instead of shared memory: {error}",
            address=address,
            error=errorText(error),
        )
        return None
