"""
IP multicast groups: a datagram to a group reaches all queue pairs that are attached to it.

On RoCE v2 a multicast GID is an IP group, whose members receive at UDP port 4791 (annex A17). Packets to it
have the queue pair number 0xFFFFFF (InfiniBand Architecture vol. 1, 10.5).
"""

from __future__ import annotations

from txrdma.iba.types import MULTICAST_QPN
from txrdma.soft.rc._packets import Incoming
from txrdma.soft.rc.peers import PortRoute, RoutesPort, UDPPeer


class AttachedRoutes(PortRoute):
    """
    The routes of a device's queue pairs that are attached to a group, as one route.

    @ivar port: the port whose socket receives for the group.
    """

    number = MULTICAST_QPN

    def __init__(self, port: RoutesPort) -> None:
        self.port = port
        self.routes: dict[PortRoute, None] = {}
        port.register(self)

    def received(self, run: Incoming, peer: UDPPeer, now: float) -> bool:
        isAccepted = False
        for route in list(self.routes):
            try:
                isAccepted = route.received(run, peer, now) or isAccepted
            except Exception:
                route.port.fail(route)
        return isAccepted

    def transmit(self, now: float) -> bool:
        return False

    def deliver(self) -> None:
        for route in list(self.routes):
            route.port.turn(route)

    def fail(self) -> None:
        for route in list(self.routes):
            route.port.fail(route)
