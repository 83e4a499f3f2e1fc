"""
Opening a port of a software device: its sockets, and which of the routes it has.
"""

from __future__ import annotations

import sys
from typing import cast, Final

from twisted.internet.interfaces import IReactorFDSet, IReactorTime
from twisted.logger import Logger

from txrdma.error import DeviceUnavailable
from txrdma.iba.pcap import RoCECapture
from txrdma.iba.types import MTU
from txrdma.iba.verbs import QPKind
from txrdma.soft._netdev import activeMTU
from txrdma.soft._route import Owner, Route, RoutePort
from txrdma.soft.hostinterfaces import Interfaces
from txrdma.soft.ports import SoftPort
from txrdma.soft.rc.roce import RoCEPort
from txrdma.soft.rc.udp import UDPCarrier
from txrdma.soft.shared.attachment import SharingReactor
from txrdma.soft.shared.routes import SharedMemoryPort

_log = Logger()

ROUTES: Final = ("auto", "rocev2", "shared-memory")

_ATTEMPTS: Final = 4


class _DatagramsOnly:
    """A port for the datagrams of a device whose connections may not use it."""

    def __init__(self, port: RoutePort, carrier: UDPCarrier) -> None:
        self._port = port
        self._carrier = carrier

    @property
    def resting(self) -> _DatagramsOnly:
        """Datagrams may be lost at any time."""
        return self

    def rest(self) -> None:
        self._carrier.setReading(False)

    def wake(self) -> None:
        self._carrier.setReading(True)

    def connect(self, owner: Owner) -> Route | None:
        return self._port.connect(owner) if owner.kind is QPKind.UD else None

    def setEnabled(self, isEnabled: bool) -> None:
        self._port.setEnabled(isEnabled)

    def close(self) -> None:
        self._port.close()


def openPort(
    reactor: object,
    interfaces: Interfaces | None,
    address: str,
    port: int | None,
    route: str,
    capture: RoCECapture | None,
    mtu: MTU | None,
) -> SoftPort:
    """
    Open a port; parameters are those of L{openSoftDevice <txrdma.soft.device.openSoftDevice>}.

    @raise DeviceUnavailable: there is no such address, or the port is taken.
    """
    interface = None if interfaces is None else interfaces.interfaceOf(address)
    if interface is None:
        interfaces = (
            None  # an address can be ours though no interface has it: then there is nothing to follow
        )
    longest = activeMTU(None if interface is None else interface.mtu, ":" in address, mtu)
    # Somebody else may have our name for shared memory at a UDP port that is free (a process that is just
    # closing, or none of ours): then any other port will do.
    left = _ATTEMPTS if port is None and route != "rocev2" else 1
    while True:
        left -= 1
        carrier = UDPCarrier(IReactorFDSet(reactor), address, port)
        roce = RoCEPort(IReactorTime(reactor), carrier, capture, longest)
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
    routes.append(_DatagramsOnly(roce, carrier) if route == "shared-memory" else roce)
    return SoftPort(address, roce.port, routes, mtu, interfaces)


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
