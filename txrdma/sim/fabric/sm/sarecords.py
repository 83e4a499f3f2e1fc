"""
Records that the SA of a simulated fabric makes from nodes, and matching of records with queries.

Follows InfiniBand Architecture vol. 1, 15.2.5 (records) and 15.4.4 (component masks).
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import Final

from txrdma.kit.rawfields import span
from txrdma.mad.layouts import sa
from txrdma.mad.layouts.sa import componentsOf, Record
from txrdma.mad.layouts.smp import PortInfo
from txrdma.sim.fabric.agents.sma import ARBITRATION, LANES, nodeInfoAt, portInfoAt, SubnetManagementAgents
from txrdma.sim.fabric.model import pkeys
from txrdma.sim.fabric.model.forwarding import tableOf
from txrdma.sim.fabric.model.nodes import guidCap, MULTICAST_CAP, SimulatedPort

_ARBITRATION_BLOCKS: Final = (1, 3)
_LID: Final = span(PortInfo, "lid")


class Matcher:
    """Compares encoded records with a query, by the bits of the components in its mask."""

    def __init__(self, wanted: Record, mask: int, leaveOut: Iterable[str] = ()) -> None:
        """@param leaveOut: components that are not compared."""
        size = wanted.size * 8
        self.bits = 0
        for offset, width in _components(type(wanted), mask, frozenset(leaveOut)):
            self.bits |= ((1 << width) - 1) << (size - offset - width)
        self.value = int.from_bytes(wanted.encode(), "big") & self.bits

    def matches(self, record: bytes) -> bool:
        """Return whether an encoded record matches the query."""
        return int.from_bytes(record, "big") & self.bits == self.value


def _components(kind: type[Record], mask: int, leaveOut: frozenset[str]) -> Iterator[tuple[int, int]]:
    """Yield the bit offset and width of each component in a component mask."""
    masks, owners = componentsOf(kind)
    fields = {field.name: field for field in kind.fields}
    for name, bits in masks.items():
        if not mask & bits or name in leaveOut:
            continue
        owner = owners[name]
        base = 0
        field = fields.get(name)
        if owner is not None:
            outer = fields[owner]
            base = outer.offset
            field = next(inner for inner in outer.type.fields if inner.name == name)
        assert field is not None
        if field.count is None:
            yield base + field.offset, field.width
            continue
        first = bits & -bits
        for index in range(field.count):
            if mask & first << index:
                yield base + field.offset + index * field.width, field.width


ONLY_OF_SWITCHES: Final[dict[type[Record], tuple[str, ...]]] = {
    sa.PKeyTableRecord: ("portNum",),
    sa.SLtoVLMappingTableRecord: ("inputPortNum", "outputPortNum"),
    sa.VLArbitrationTableRecord: ("outputPortNum",),
}
"""Components that are compared at switches only: elsewhere the LID names the port (IBA 15.2.5.3, 9, 15)."""


class SARecords:
    """Makes encoded records from nodes, one at a time."""

    def __init__(self, sma: SubnetManagementAgents) -> None:
        self._sma = sma
        self._makers: dict[type[Record], Callable[[SimulatedPort], Iterator[bytes]]] = {
            sa.NodeRecord: self._node,
            sa.PortInfoRecord: self._ports,
            sa.SwitchInfoRecord: self._switch,
            sa.LinearForwardingTableRecord: self._forwarding,
            sa.MulticastForwardingTableRecord: self._multicast,
            sa.SMInfoRecord: self._manager,
            sa.LinkRecord: self._links,
            sa.GUIDInfoRecord: self._guids,
            sa.PKeyTableRecord: self._pkeys,
            sa.SLtoVLMappingTableRecord: self._lanes,
            sa.VLArbitrationTableRecord: self._arbitration,
        }

    def knows(self, kind: type[Record]) -> bool:
        """Return whether records of this kind are made from nodes."""
        return kind in self._makers

    def all(
        self, kind: type[Record], ends: Iterable[SimulatedPort], matcher: Matcher, adapters: Matcher
    ) -> Iterator[bytes]:
        """
        Yield the records of a kind that match a query.

        @param ends: end ports whose records can match.
        @param matcher: matcher for the records of switches.
        @param adapters: matcher for the records of other nodes.
        """
        make = self._makers[kind]
        for port in ends:
            matches = (matcher if port.node.isSwitch else adapters).matches
            yield from (raw for raw in make(port) if matches(raw))

    @staticmethod
    def _node(port: SimulatedPort) -> Iterator[bytes]:
        described = port.node.description.encode("utf-8", "surrogateescape")[:64].ljust(64, b"\0")
        yield _lid(port) + bytes(2) + nodeInfoAt(port) + described

    @staticmethod
    def _ports(port: SimulatedPort) -> Iterator[bytes]:
        for one in port.node.ports if port.node.isSwitch else (port,):
            yield _lid(port) + bytes((one.number, 0)) + portInfoAt(one, one.number)

    @staticmethod
    def _switch(port: SimulatedPort) -> Iterator[bytes]:
        if port.node.isSwitch:
            yield _lid(port) + bytes(2) + port.node.switchInfo

    @staticmethod
    def _forwarding(port: SimulatedPort) -> Iterator[bytes]:
        if port.node.isSwitch:
            table = tableOf(port.node)
            for block in range(-(-len(table) // 64)):
                part = bytes(table[block * 64 : block * 64 + 64]).ljust(64, b"\xff")
                yield _lid(port) + block.to_bytes(2, "big") + bytes(4) + part

    @staticmethod
    def _multicast(port: SimulatedPort) -> Iterator[bytes]:
        for (position, block), part in sorted((port.node.multicast or {}).items()):
            if block * 32 < MULTICAST_CAP and any(part):
                yield _lid(port) + (position << 12 | block).to_bytes(2, "big") + bytes(4) + part

    def _manager(self, port: SimulatedPort) -> Iterator[bytes]:
        manager = self._sma.managers.get(port)
        if manager is not None:
            yield _lid(port) + bytes(2) + manager.info().encode()

    @staticmethod
    def _links(port: SimulatedPort) -> Iterator[bytes]:
        for one in port.node.external if port.node.isSwitch else (port,):
            if one.neighbor is not None:
                yield _lid(port) + bytes((one.number, one.neighbor.number)) + _lid(one.neighbor.end)

    @staticmethod
    def _guids(port: SimulatedPort) -> Iterator[bytes]:
        tables = port.tables or {}
        for block in range(-(-guidCap(port) // 8)):
            default = (port.guid.raw if block == 0 else b"").ljust(64, b"\0")
            yield _lid(port) + bytes((block, 0)) + bytes(4) + tables.get((0x14, block), default)

    @staticmethod
    def _pkeys(port: SimulatedPort) -> Iterator[bytes]:
        node = port.node
        for one in node.ports if node.isSwitch else (port,):
            for block in range(pkeys.blocks(one)):
                head = _lid(port) + block.to_bytes(2, "big") + bytes((one.number, 0, 0, 0))
                yield head + pkeys.block(one, block)

    def _lanes(self, port: SimulatedPort) -> Iterator[bytes]:
        node = port.node
        pairs = [(0, 0)]
        if node.isSwitch:
            pairs = [(i, o.number) for o in node.external for i in range(node.numPorts + 1) if i != o.number]
        for incoming, outgoing in pairs:
            content = self._sma.attributeOf(port, LANES, incoming << 8 | outgoing)
            yield _lid(port) + bytes((incoming, outgoing)) + bytes(4) + content[:8]

    def _arbitration(self, port: SimulatedPort) -> Iterator[bytes]:
        node = port.node
        for number in range(node.numPorts + 1) if node.isSwitch else (port.number,):
            for block in _ARBITRATION_BLOCKS:
                content = self._sma.attributeOf(port, ARBITRATION, block << 16 | number)
                yield _lid(port) + bytes((number, block)) + bytes(4) + content


def _lid(port: SimulatedPort) -> bytes:
    return bytes(port.info[_LID])
