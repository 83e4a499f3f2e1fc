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
from txrdma.iba.types import MTU
from txrdma.iba.verbs import QPKind
from txrdma.soft.core.netdev import activeMTU
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.core.route import Route
from txrdma.soft.core.routeport import RoutePort
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
    """A RoCE port for datagrams only, of a device whose connections use shared memory; made on first use."""

    canRest = True  # datagrams may be lost

    def __init__(self, carrier: UDPCarrier, makePort: Callable[[], RoutePort]) -> None:
        self._carrier = carrier
        self._makePort = makePort
        self._port: RoutePort | None = None
        self._isEnabled = True

    def rest(self) -> None:
        self._carrier.setReading(False)

    def wake(self) -> None:
        self._carrier.setReading(True)

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
) -> SoftPort:
    """Open a port; for parameters and errors see L{openSoftDevice <txrdma.soft.device.openSoftDevice>}."""
    interface = None if interfaces is None else interfaces.interfaceOf(address)
    if interface is None:
        interfaces = None  # a local address without an interface: nothing to watch
    longest = activeMTU(None if interface is None else interface.mtu, ":" in address, mtu)
    # The rendezvous name of a free UDP port may be taken, by a process that is closing or of another user:
    # then another port is tried.
    left = _ATTEMPTS if not port and route != "rocev2" else 1
    while True:
        left -= 1
        carrier = UDPCarrier(IReactorFDSet(reactor), address, port)
        shared: SharedMemoryPort | None = None
        try:
            if route != "rocev2":
                needed = route == "shared-memory" or left > 0
                shared = _sharedMemory(reactor, address, carrier.port, needed, runtime)
            break
        except DeviceUnavailable:
            carrier.close()
            if left == 0:
                raise
            port = 0
        except BaseException:
            carrier.close()
            raise

    def makeRoCE() -> RoCEPort:
        # Not at the top: the import takes 15 ms, and shared memory does not need it.
        from txrdma.soft.rc.roce import RoCEPort

        lanes = None if shared is None else shared.datagrams
        return RoCEPort(IReactorTime(reactor), carrier, capture, longest, lanes)

    with ExitStack() as undo:
        undo.callback(carrier.close)
        routes: list[RoutePort] = [] if shared is None else [shared]
        if shared is not None:
            undo.callback(shared.close)
        routes.append(_DatagramsOnly(carrier, makeRoCE) if route == "shared-memory" else makeRoCE())
        undo.callback(routes[-1].close)
        made = SoftPort(address, carrier.port, routes, mtu, interfaces)
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
