"""
A port of a software device: one IP address of this host, and the routes that begin there.

Follows InfiniBand Architecture vol. 1, 11.2.1.2 (port attributes) and annex A17 (GIDs of RoCE v2).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

from txrdma.error import InvalidRequest
from txrdma.iba.types import DEFAULT_PKEY, GID, MTU, PKey
from txrdma.iba.verbs import (
    AddressVector,
    GIDEntry,
    GIDType,
    LinkLayer,
    PhysicalState,
    PortAttributes,
    PortState,
)
from txrdma.soft._netdev import activeMTU, interfaceOf, laneCount, softMAC
from txrdma.soft._route import RoutePort

NO_GID: Final = GID(bytes(16))
PKEYS: Final[Sequence[PKey]] = (DEFAULT_PKEY,)


class SoftPort:
    """
    One port of a device.

    @ivar number: from 1, given by the device.
    @ivar routes: where routes begin, in the order in which they are tried.
    @ivar mac: locally administered; its last two bytes are the UDP port.
    """

    def __init__(
        self, address: str, udpPort: int, routes: Sequence[RoutePort], mtu: MTU | None = None
    ) -> None:
        """
        @param routes: are the port's from now on, and closed with it.
        @param mtu: the largest payload of a packet, where the interface's own MTU allows more.
        """
        self.number = 0
        self.address = address
        self.udpPort = udpPort
        self.routes = list(routes)
        self.mac = softMAC(address, udpPort)
        self.isEnabled = True
        self._gid = GID.fromIP(address)
        self._mtu = mtu

    def __repr__(self) -> str:
        return f"<SoftPort {self.number} {self.address} port {self.udpPort}>"

    def gidTable(self) -> Sequence[GIDEntry]:
        """The IP address, as RoCE v2 writes it."""
        interface = interfaceOf(self.address)
        return (GIDEntry(self._gid, GIDType.ROCE_V2, "" if interface is None else interface.name),)

    def attributes(self) -> PortAttributes:
        """What the port is at present: as the network interface is."""
        interface = interfaceOf(self.address)
        isUp = self.isEnabled and (interface is None or interface.isUp)
        rate = 0 if interface is None else interface.rate
        return PortAttributes(
            PortState.ACTIVE if isUp else PortState.DOWN,
            maxMTU=MTU.MTU_4096,
            activeMTU=activeMTU(self.address, self._mtu),
            rate=rate,
            netdev="" if interface is None else interface.name,
            mac=self.mac,
            physicalState=PhysicalState.LINK_UP if isUp else PhysicalState.DISABLED,
            linkLayer=LinkLayer.ETHERNET,
            width=laneCount(rate),
        )

    def checkWay(self, vector: AddressVector) -> None:
        """
        Look whether a way can begin here.

        @raise InvalidRequest: the port has no such GID, or the way leads nowhere.
        """
        table = self.gidTable()
        if not 0 <= vector.sgidIndex < len(table) or table[vector.sgidIndex].gid == NO_GID:
            raise InvalidRequest(f"the port has no GID {vector.sgidIndex}")
        if vector.dgid.ip is None:
            raise InvalidRequest(f"{vector.dgid} leads nowhere")

    def setEnabled(self, isEnabled: bool) -> None:
        """By command."""
        self.isEnabled = isEnabled
        for route in self.routes:
            route.setEnabled(isEnabled)

    def close(self) -> None:
        """Close its sockets."""
        self.isEnabled = False
        for route in self.routes:
            route.close()
