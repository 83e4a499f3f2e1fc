"""
Subnet manager of a simulated fabric, which accesses all nodes directly, without SMPs.

Follows InfiniBand Architecture vol. 1, 14.4 (functions of a subnet manager). It assigns LIDs, brings ports to
ACTIVE, and fills forwarding tables.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Final

from txrdma.iba.types import LID
from txrdma.iba.verbs import NodeType, PortState
from txrdma.kit.graphs import distances
from txrdma.kit.rawfields import peek, poke
from txrdma.mad.layouts.smp import PortInfo, SwitchInfo
from txrdma.sim.fabric.model.forwarding import exits
from txrdma.sim.fabric.model.nodes import (
    endPorts,
    setPortStateChange,
    SimulatedNode,
    SimulatedPort,
    SUBNET_TIMEOUT,
)
from txrdma.sim.fabric.sm.routing import Routing

GID_PREFIX: Final = 0xFE80000000000000
_HIGHEST_LID: Final = 0xBFFF
_FIRST_MLID: Final = 0xC000

_linearCap, _setLinearCap = peek(SwitchInfo, "linearFDBCap"), poke(SwitchInfo, "linearFDBCap")
_setTop = poke(SwitchInfo, "linearFDBTop")
_setPrefix, _setSMLID = poke(PortInfo, "gidPrefix"), poke(PortInfo, "masterSMLID")
_setTimeout, _setMTU, _setLanes = (
    poke(PortInfo, name) for name in ("subnetTimeOut", "neighborMTU", "operationalVLs")
)
_mtuCap, _vlCap = peek(PortInfo, "mtuCap"), peek(PortInfo, "vlCap")


class SubnetManager:
    """
    Subnet manager (SM) of a simulated fabric.

    @ivar port: port of the SM.
    @ivar ports: end ports by their base LIDs.
    @ivar sweeps: number of sweeps so far.
    """

    def __init__(self, nodes: Mapping[str, SimulatedNode], port: SimulatedPort, lmc: int = 0) -> None:
        self.nodes = nodes
        self.port = port
        self.ports: dict[int, SimulatedPort] = {}
        self.sweeps = 0
        self._lmc = lmc

    @property
    def lid(self) -> LID:
        return self.port.lid

    def sweep(self) -> None:
        """Assign LIDs, bring ports to ACTIVE, update tables; raise C{ValueError} for too many ports."""
        self.sweeps += 1
        reachable = self.reachable()
        present = self._present(reachable)
        self._assign(present)
        for port in present:
            self._activate(port, self.lid)
        top = max((lid + (1 << port.lmc) - 1 for lid, port in self.ports.items()), default=0)
        switches = [node for node in self.nodes.values() if node.isSwitch and node in reachable]
        routing = Routing(switches, top)
        for switch in switches:
            switch.linear = None
            switch.routing = routing.table
            info = switch.switchInfo
            setPortStateChange(info, False)
            _setTop(info, top)
            if top >= _linearCap(info):
                _setLinearCap(info, _HIGHEST_LID + 1)

    def lay(self, mlid: int, members: Iterable[SimulatedPort]) -> None:
        """Set multicast tables for a group: a tree along the paths from its members to the first member."""
        block, index = divmod(mlid - _FIRST_MLID, 32)
        masks: dict[SimulatedNode, int] = {}
        first: SimulatedPort | None = None
        for member in members:
            first = first or member
            for out in (member, *exits(member, first.lid)):
                for port in (out, out.neighbor):
                    if port is not None and port.node.isSwitch:
                        masks[port.node] = masks.get(port.node, 0) | 1 << port.number
        for node in self.nodes.values():
            if node.isSwitch:
                _setMulticast(node, block, index, masks.get(node, 0))

    def reachable(self) -> set[SimulatedNode]:
        """Return the nodes that a sweep from the SM's port would find."""
        return set(distances([self.port.node], self._beside))

    def _beside(self, node: SimulatedNode) -> list[SimulatedNode]:
        """Return the nodes that answer behind the ports of a switch, or behind the SM's port."""
        ports = node.external if node.isSwitch else [self.port] if node is self.port.node else []
        neighbors = (port.neighbor for port in ports)
        return [peer.node for peer in neighbors if peer is not None and not peer.node.isDead]

    def _present(self, reachable: set[SimulatedNode]) -> list[SimulatedPort]:
        """Return the end ports to manage, those of switches last, so that hosts get the lowest LIDs."""
        nodes = sorted(self.nodes.values(), key=lambda node: node.kind is NodeType.SWITCH)
        return [
            port
            for node in nodes
            if node in reachable
            for port in endPorts(node)
            if node.isSwitch or port is self.port or port.neighbor is not None
        ]

    def _assign(self, present: Iterable[SimulatedPort]) -> None:
        """Assign LIDs to ports that have none, an invalid one, or that of another port."""
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
                port.lmc = lmc
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
            port.lid, port.lmc = following, lmc
            taken |= dict.fromkeys(range(following, following + step), port)
            following += step
        self.ports = {lid: port for lid, port in taken.items() if port.lid == lid}

    @staticmethod
    def _activate(port: SimulatedPort, smLID: int) -> None:
        """Bring a port, or all ports of a switch, to ACTIVE, and set its master SM."""
        info = port.info
        _setPrefix(info, GID_PREFIX)
        _setSMLID(info, smLID)
        _setTimeout(info, SUBNET_TIMEOUT)
        for one in port.node.ports if port.node.isSwitch else (port,):
            peer = one.neighbor
            if peer is None or one.state not in (PortState.INIT, PortState.ARMED):
                continue
            for end, other in ((one, peer), (peer, one)):
                _setMTU(end.info, min(_mtuCap(end.info), _mtuCap(other.info)))
                _setLanes(end.info, min(_vlCap(end.info), _vlCap(other.info)))
                end.become(PortState.ACTIVE, end.physicalState)


def _setMulticast(switch: SimulatedNode, block: int, index: int, ports: int) -> None:
    """Set the output ports of a multicast LID in a switch's multicast forwarding table."""
    table = switch.multicast = switch.multicast or {}
    for position in range(switch.numPorts // 16 + 1):
        mask = ports >> position * 16 & 0xFFFF
        part = bytearray(table.get((position, block), bytes(64)))
        part[index * 2 : index * 2 + 2] = mask.to_bytes(2, "big")
        if mask or (position, block) in table:
            table[position, block] = bytes(part)
