"""
Opening a port of a software device: its sockets and its routes.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from contextlib import ExitStack
from typing import cast, Final, TYPE_CHECKING

from twisted.internet.interfaces import IReactorFDSet, IReactorTime
from twisted.logger import Logger

from txrdma.error import DeviceUnavailable
from txrdma.iba.types import MTU, ROCE_PORT
from txrdma.iba.verbs import QPKind
from txrdma.soft.core.netdev import activeMTU, sharedPort
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.core.route import Route
from txrdma.soft.core.routeport import RoutePort
from txrdma.soft.host.member import PortMember
from txrdma.soft.hostinterfaces import HostInterfaces
from txrdma.soft.ports import SoftPort
from txrdma.soft.rc.udp import UDPCarrier
from txrdma.soft.shared.routes import SharedMemoryPort
from txrdma.soft.shared.sharedqueuepair import SharingReactor
from txrdma.soft.shared.unixpackets import DirectoryRendezvous
from txrdma.unix.sockets import Reactor

if TYPE_CHECKING:
    from txrdma.iba.pcap import RoCECapture
    from txrdma.soft.rc.roce import RoCEPort

_log = Logger()

ROUTES: Final = ("auto", "rocev2", "shared-memory")

_ATTEMPTS: Final = 4


class _DatagramsOnly(RoutePort):
    """A RoCE port for datagrams only, of a device whose connections use shared memory."""

    canRest = True  # datagrams may be lost

    def __init__(
        self, carrier: UDPCarrier, makePort: Callable[[], RoutePort], member: PortMember | None
    ) -> None:
        """
        @param makePort: makes the port on first use, or now if it has a C{member}, which needs it.
        """
        self._carrier = carrier
        self._member = member
        self._makePort = makePort
        self._port: RoutePort | None = None if member is None else makePort()
        self._isEnabled = True

    def rest(self) -> None:
        self._carrier.setReading(False)
        if self._member is not None:
            self._member.rest()

    def wake(self) -> None:
        self._carrier.setReading(True)
        if self._member is not None:
            self._member.wake()

    def connect(self, owner: SoftQueuePair) -> Route | None:
        if owner.kind is not QPKind.UD:
            return None
        if self._port is None:
            self._port = self._makePort()
            self._port.setEnabled(self._isEnabled)
        return self._port.connect(owner)

    def setEnabled(self, isEnabled: bool) -> None:
        self._isEnabled = isEnabled
        if self._port is not None:
            self._port.setEnabled(isEnabled)

    def close(self) -> None:
        if self._port is not None:
            self._port.close()
        self._isEnabled = False
        self._carrier.close()


def openPort(
    reactor: object,
    interfaces: HostInterfaces | None,
    address: str,
    port: int | None,
    route: str,
    capture: RoCECapture | None,
    mtu: MTU | None,
    runtime: str | None = None,
    share: int | None = None,
) -> SoftPort:
    """
    Open a port; for parameters and errors see L{openSoftDevice <txrdma.soft.device.openSoftDevice>}.

    @param share: of the device, if it may share RoCE's port with other devices.
    """
    interface = None if interfaces is None else interfaces.interfaceOf(address)
    if interface is None:
        interfaces = None  # a local address without an interface: nothing to watch
    longest = activeMTU(None if interface is None else interface.mtu, ":" in address, mtu)
    # The rendezvous name of a free UDP port may be taken, by a process that is closing or of another user:
    # then another port is tried, as when a process of another user claims to coordinate RoCE's port.
    left = 1 if port else _ATTEMPTS
    while True:
        left -= 1
        canShare = share is not None and port in (None, ROCE_PORT)
        carrier = UDPCarrier(IReactorFDSet(reactor), address, port, isShared=canShare)
        shared: SharedMemoryPort | None = None
        member: PortMember | None = None
        try:
            number = carrier.port
            if share is not None and canShare and number == ROCE_PORT:
                member = PortMember(cast(Reactor, reactor), address, share, carrier.bound, carrier.isAlone)
                number = sharedPort(number, share << 16)
            if route != "rocev2":
                needed = route == "shared-memory" or left > 0
                shared = _sharedMemory(reactor, address, number, needed, runtime)
            break
        except BaseException as error:
            carrier.close()
            if member is not None:
                member.close()
            if left == 0 or not isinstance(error, DeviceUnavailable):
                raise
            if port is None:
                _log.warn("another UDP port than RoCE's is used: {error}", error=error)
            port = 0

    def makeRoCE() -> RoCEPort:
        # Not at the top: the import takes 15 ms, and shared memory does not need it.
        from txrdma.soft.rc.roce import RoCEPort

        lanes = None if shared is None else shared.datagrams
        return RoCEPort(IReactorTime(reactor), carrier, capture, longest, lanes, member)

    with ExitStack() as undo:
        if member is not None:
            undo.callback(member.close)
        undo.callback(carrier.close)
        routes: list[RoutePort] = [] if shared is None else [shared]
        if shared is not None:
            undo.callback(shared.close)
        isRarelyUsed = route == "shared-memory"
        routes.append(_DatagramsOnly(carrier, makeRoCE, member) if isRarelyUsed else makeRoCE())
        undo.callback(routes[-1].close)
        made = SoftPort(address, carrier.port, routes, mtu, interfaces, member)
        undo.pop_all()
    return made


def _sharedMemory(
    reactor: object,
    address: str,
    port: int,
    isNeeded: bool,
    runtime: str | None,
) -> SharedMemoryPort | None:
    try:
        if sys.platform != "linux":
            raise DeviceUnavailable("the shared memory route needs Linux")
        rendezvous = None if runtime is None else DirectoryRendezvous(cast(Reactor, reactor), runtime)
        sharing = cast(SharingReactor, reactor)
        return SharedMemoryPort(sharing, address, port, rendezvous=rendezvous)
    except DeviceUnavailable as error:
        if isNeeded:
            raise
        _log.warn("no shared memory at {address}: {error}", address=address, error=error)
        return None
