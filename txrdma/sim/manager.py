"""
The manager of a simulated fabric's subnet: it sees all nodes at once, and sends nothing.

Follows InfiniBand Architecture vol. 1, 14.4 (what a subnet manager does). It gives LIDs, brings ports to
ACTIVE, and lays the ways through the switches.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from txrdma.iba.types import LID
from txrdma.iba.verbs import NodeType, PortState
from txrdma.mad.smp import SMInfo
from txrdma.mad.values import PortCapability, SMState
from txrdma.sim.madport import SUBNET_TIMEOUT
from txrdma.sim.nodes import endPorts, SimulatedNode, SimulatedPort
from txrdma.sim.routing import Routing

GID_PREFIX: Final = 0xFE80000000000000
PRIORITY: Final = 4
_HIGHEST_LID: Final = 0xBFFF
_ROOM_OF_TABLE: Final = 64


class SubnetManager:
    """
    The manager.

    @ivar port: where it is.
    @ivar ports: whom each base LID belongs to.
    @ivar sweeps: how often it looked.
    """

    def __init__(self, nodes: Mapping[str, SimulatedNode], port: SimulatedPort, lmc: int = 0) -> None:
        self.nodes = nodes
        self.port = port
        self.ports: dict[int, SimulatedPort] = {}
        self.sweeps = 0
        self._lmc = lmc
        self.routing: Routing | None = None

    @property
    def lid(self) -> LID:
        return self.port.lid

    def info(self) -> SMInfo:
        """What it says of itself."""
        return SMInfo(guid=self.port.guid, actCount=self.sweeps, priority=PRIORITY, smState=SMState.MASTER)

    def sweep(self) -> None:
        """
        Look at everything, and make it work.

        @raise ValueError: there are more ports than LIDs.
        """
        self.sweeps += 1
        present = self._present()
        self._assign(present)
        isSM = int(PortCapability.SM).to_bytes(4, "big")
        self.port.info[20:24] = bytes(
            one | other for one, other in zip(self.port.info[20:24], isSM, strict=True)
        )
        smLID = self.lid.to_bytes(2, "big")
        for port in present:
            self._activate(port, smLID)
        top = max((lid + (1 << port.lmc) - 1 for lid, port in self.ports.items()), default=0)
        switches = [node for node in self.nodes.values() if node.isSwitch]
        self.routing = Routing(switches, top)
        for switch in switches:
            switch.linear = None
            info = switch.switchInfo
            info[6:8] = top.to_bytes(2, "big")
            info[11] &= ~0x04
            if top >= int.from_bytes(info[:2], "big"):
                info[0:2] = (_HIGHEST_LID + 1).to_bytes(2, "big")

    def table(self, switch: SimulatedNode) -> bytearray:
        """The forwarding table that a switch has got."""
        if self.routing is None:
            return bytearray(b"\xff" * _ROOM_OF_TABLE)
        return self.routing.table(switch)

    def _present(self) -> list[SimulatedPort]:
        """All end ports that are to be managed: hosts first, so that theirs are the first LIDs."""
        nodes = sorted(self.nodes.values(), key=lambda node: node.kind is NodeType.SWITCH)
        return [
            port
            for node in nodes
            if not node.isDead
            for port in endPorts(node)
            if node.isSwitch or port.way is not None
        ]

    def _assign(self, present: Iterable[SimulatedPort]) -> None:
        """A LID for everybody who has none, or somebody else's."""
        taken: dict[int, SimulatedPort] = {}
        without = []
        for port in present:
            lid, lmc = port.lid, 0 if port.node.isSwitch else self._lmc
            wanted = range(lid, lid + (1 << lmc))
            if (
                lid
                and lid % (1 << lmc) == 0
                and wanted[-1] <= _HIGHEST_LID
                and not taken.keys() & set(wanted)
            ):
                taken |= dict.fromkeys(wanted, port)
                port.info[34] = port.info[34] & 0xF8 | lmc
            else:
                without.append((port, lmc))
        following = 1
        for port, lmc in without:
            step = 1 << lmc
            following = -(-following // step) * step or step
            while taken.keys() & set(range(following, following + step)) or not following:
                following += step
            if following + step - 1 > _HIGHEST_LID:
                raise ValueError(f"{len(taken)} LIDs are not enough")
            port.info[16:18] = following.to_bytes(2, "big")
            port.info[34] = port.info[34] & 0xF8 | lmc
            taken |= dict.fromkeys(range(following, following + step), port)
            following += step
        self.ports = {lid: port for lid, port in taken.items() if port.lid == lid}

    @staticmethod
    def _activate(port: SimulatedPort, smLID: bytes) -> None:
        """Say to a port, and on a switch to all others, that they are managed."""
        info = port.info
        info[8:16] = GID_PREFIX.to_bytes(8, "big")
        info[18:20] = smLID
        info[51] = info[51] & 0xE0 | SUBNET_TIMEOUT
        for one in port.node.ports if port.node.isSwitch else (port,):
            peer = one.way
            if peer is None or one.state not in (PortState.INIT, PortState.ARMED):
                continue
            for end, other in ((one, peer), (peer, one)):
                mtu = min(end.info[41] & 15, other.info[41] & 15)
                lanes = min(end.info[37] >> 4, other.info[37] >> 4)
                end.info[36] = end.info[36] & 0x0F | mtu << 4
                end.info[43] = end.info[43] & 0x0F | lanes << 4
                end.become(PortState.ACTIVE, end.physicalState)
