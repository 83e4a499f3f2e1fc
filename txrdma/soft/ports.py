"""
A port of a software device: one IP address of this host, and its routes.

Follows InfiniBand Architecture vol. 1, 11.2.1.2 (port attributes), 11.6.3.3 (port events) and annex A17 (GIDs
of RoCE v2).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from twisted.logger import Logger

from txrdma.error import DeviceUnavailable, InvalidRequest, WireError
from txrdma.iba.types import DEFAULT_PKEY, GID, MTU, PKey, ROCE_PORT
from txrdma.iba.verbs import (
    AddressVector,
    AsyncEventKind,
    CM_SUPPORTED,
    GIDEntry,
    GIDType,
    LinkLayer,
    PhysicalState,
    PortAttributes,
    PortState,
)
from txrdma.interfaces import AsyncEvent
from txrdma.kit.logs import errorText
from txrdma.ports.netlink import NetworkInterface
from txrdma.soft.core.netdev import activeMTU, laneCount, shareOf, softMAC
from txrdma.soft.core.routeport import RoutePort
from txrdma.soft.hostinterfaces import HostInterfaces
from txrdma.soft.objectlimits import checkRange

_log = Logger()

NO_GID: Final = GID(bytes(16))
PKEYS: Final[Sequence[PKey]] = (DEFAULT_PKEY,)

_PATH_RANGES: Final = {
    "hopLimit": 0xFF,
    "trafficClass": 0xFF,
    "flowLabel": 0xFFFFF,
    "serviceLevel": 15,
    "dlid": 0xFFFF,
    "sourcePathBits": 0x7F,
}
"""The largest values of fields of an address vector (IBA 11.2.2.1)."""


class SoftPort:
    """
    A port of a software device.

    @ivar number: from 1, given by the device.
    @ivar routes: the kinds of routes, in the order in which they are tried.
    @ivar mac: locally administered; its last two bytes are the UDP port.
    @ivar isEnabled: False while the port is disabled.
    """

    def __init__(
        self,
        address: str,
        udpPort: int,
        routes: Sequence[RoutePort],
        mtu: MTU | None = None,
        interfaces: HostInterfaces | None = None,
        longestDatagram: int = 0,
    ) -> None:
        """
        @param routes: routes, which the port owns and closes.
        @param mtu: the largest payload of a packet, where the interface's own MTU allows more.
        @param longestDatagram: see L{PortAttributes}.
        @param interfaces: finds the interface of the address; if None, the port is always up.
        """
        self.number = 0
        self.address = address
        self.udpPort = udpPort
        self.routes = list(routes)
        self.mac = softMAC(address, udpPort)
        self.isEnabled = True
        self._gid = GID.fromIP(address)
        self._mtu, self._longestDatagram = mtu, longestDatagram
        self._interfaces = interfaces
        self._interface: NetworkInterface | None = None
        self._closed = False
        self._notify: Callable[[AsyncEvent], None] = lambda event: None
        self.readInterfaces()

    def __repr__(self) -> str:
        return f"<SoftPort {self.number} {self.address} port {self.udpPort}>"

    def adopt(self, number: int, notify: Callable[[AsyncEvent], None]) -> None:
        """Become the device's port with that number, and report the port's events to C{notify}."""
        self.number = number
        self._notify = notify

    # Attributes.

    @property
    def hasAddress(self) -> bool:
        """Whether the host had the address at the last refresh."""
        return self._interfaces is None or self._interface is not None

    @property
    def isActive(self) -> bool:
        """Whether the port could carry traffic at the last refresh."""
        if self._closed or not self.isEnabled:
            return False
        return self._interfaces is None or (self._interface is not None and self._interface.isRunning)

    @property
    def _netdev(self) -> str:
        return "" if self._interface is None else self._interface.name

    def gidTable(self) -> Sequence[GIDEntry]:
        """Return the IP address as a GID of RoCE v2; zeros while the host does not have it."""
        self.readInterfaces()
        return (GIDEntry(self._gid if self.hasAddress else NO_GID, GIDType.ROCE_V2, self._netdev),)

    def attributes(self) -> PortAttributes:
        self.readInterfaces()
        interface = self._interface
        rate = 0 if self._interfaces is None or interface is None else self._interfaces.rate(interface.name)
        if self.isActive:
            state, physical = PortState.ACTIVE, PhysicalState.LINK_UP
        elif self.isEnabled and interface is not None and interface.isUp and not self._closed:
            state, physical = PortState.DOWN, PhysicalState.POLLING
        else:
            state, physical = PortState.DOWN, PhysicalState.DISABLED
        return PortAttributes(
            state,
            maxMTU=MTU.MTU_4096,
            activeMTU=self.activeMTU,
            longestDatagram=self._longestDatagram,
            rate=rate,
            netdev=self._netdev,
            mac=self.mac,
            physicalState=physical,
            linkLayer=LinkLayer.ETHERNET,
            width=laneCount(rate),
            capabilities=CM_SUPPORTED if self.udpPort == ROCE_PORT or shareOf(self.udpPort) else 0,
        )

    @property
    def activeMTU(self) -> MTU:
        """The largest payload that the interface allowed at the last refresh."""
        mtu = None if self._interface is None else self._interface.mtu
        return activeMTU(mtu, ":" in self.address, self._mtu)

    def checkPath(self, vector: AddressVector) -> None:
        """Check an address vector of this port; raises L{InvalidRequest}."""
        if vector.sgidIndex != 0 or not self.hasAddress:
            raise InvalidRequest(f"port {self.number} has no GID {vector.sgidIndex} at present")
        if vector.dgid.ip is None:
            raise InvalidRequest(f"{vector.dgid} is not an IP address")
        for name, most in _PATH_RANGES.items():
            checkRange(name, getattr(vector, name), 0, most)

    # Changes.

    def readInterfaces(self) -> None:
        """Read the state of the host's interfaces, and raise events for changes."""
        if self._interfaces is None or self._closed:
            return
        hadAddress, wasActive = self.hasAddress, self.isActive
        try:
            self._interface = self._interfaces.interfaceOf(self.address)
        except (DeviceUnavailable, WireError) as error:
            _log.debug(
                "the interface of {address} can't be read: {error}",
                address=self.address,
                error=errorText(error),
            )
        self._compare(hadAddress, wasActive)

    def setEnabled(self, isEnabled: bool) -> None:
        if isEnabled == self.isEnabled:
            return
        wasActive = self.isActive
        self.isEnabled = isEnabled
        for route in self.routes:
            route.setEnabled(isEnabled)
        self._compare(self.hasAddress, wasActive)

    def _compare(self, hadAddress: bool, wasActive: bool) -> None:
        hasAddress, isActive = self.hasAddress, self.isActive
        if self.number and (wasActive, hadAddress) != (isActive, hasAddress):
            self._log(hasAddress, isActive)
        if wasActive and not isActive:
            self._emit(AsyncEventKind.PORT_ERROR)
        if hadAddress != hasAddress:
            self._emit(AsyncEventKind.GID_CHANGE)
        if isActive and not wasActive:
            self._emit(AsyncEventKind.PORT_ACTIVE)

    def _emit(self, kind: AsyncEventKind) -> None:
        self._notify(AsyncEvent(kind, port=self.number))

    def _log(self, hasAddress: bool, isActive: bool) -> None:
        if isActive:
            text = "software RDMA at {address}: the interface is up"
        elif not self.isEnabled:
            text = "software RDMA at {address}: the port was taken down"
        elif hasAddress:
            text = "software RDMA at {address}: the interface is down"
        else:
            text = "software RDMA at {address}: the host has lost the address"
        _log.info(text, address=self.address)

    def close(self) -> None:
        self._closed = True
        for route in self.routes:
            route.close()
