"""
Sweep of a fabric by querying all its nodes, ports and links from the SA.

Follows InfiniBand Architecture vol. 1, 15.2.5 (records). The SA does not list nodes without a LID.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from itertools import count
from typing import Any, Final

from twisted.internet.defer import Deferred

from txrdma.fabric.model import Fabric, isSame, Node, Port, Problem
from txrdma.fabric.sweepbounds import Bounds, MOST_NODES, MOST_PROBLEMS
from txrdma.fabric.texts import listed
from txrdma.iba.types import GUID, LID
from txrdma.iba.verbs import PhysicalState
from txrdma.mad.errors import MADError, MADFailure
from txrdma.mad.layouts.sa import LinkRecord, NodeRecord, PortInfoRecord, Record, SwitchInfoRecord
from txrdma.mad.rpcs import RPCs
from txrdma.mad.schedule import MADSchedule

_TABLES: Final[tuple[type[Record], ...]] = (NodeRecord, LinkRecord, PortInfoRecord, SwitchInfoRecord)


class RecordSweep:
    """
    Base of sweeps that get the links from the SA.

    @ivar fabric: fabric as discovered so far.
    @ivar progress: called after answers with the number of completed queries and the number of all queries.
    """

    def __init__(self, mostNodes: int) -> None:
        self.fabric = Fabric()
        self.progress: Callable[[int, int], None] | None = None
        self._bounds = Bounds(mostNodes)
        self._ends: dict[LID, Node] = {}

    def _problem(self, sort: str, where: str, text: str) -> None:
        if len(self.fabric.problems) < MOST_PROBLEMS:
            self.fabric.problems.append(Problem(sort, where, text))

    def _link(self, record: LinkRecord) -> None:
        one = self._end(record.fromLID, record.fromPort)
        other = self._end(record.toLID, record.toPort)
        if one is not None and other is not None and not self.fabric.link(one, other):
            where = f"lid {record.fromLID} port {record.fromPort}"
            self._problem("contradiction", where, f"leads to {other}, but is linked to {one.peer}")

    def _end(self, lid: LID, number: int) -> Port | None:
        node = self._ends.get(lid)
        if node is None:
            self._unknownEnd(lid)
            return None
        if not 0 < number <= node.numPorts:
            text = f"there is a link of port {number} of {node.numPorts}"
            self._problem("contradiction", f"lid {lid}", text)
            return None
        return node.port(number)

    def _unknownEnd(self, lid: LID) -> None:
        """There is no node with the LID at the end of a link."""


class SASweep(RecordSweep):
    """A sweep that queries four tables from the SA. Its progress counts the tables."""

    def __init__(self, agent: RPCs, mostNodes: int = MOST_NODES) -> None:
        """
        @param agent: sends the queries; the sweep does not close it.
        @param mostNodes: limit of nodes; see L{Bounds}.
        """
        super().__init__(mostNodes)
        self._schedule = MADSchedule(agent)
        self._lids: dict[tuple[GUID, int], LID] = {}

    def run(self) -> Deferred[Fabric]:
        """
        Query the tables from the SA.

        @return: fires with the fabric; missing tables become problems. Fails without the NodeRecords.
        """
        return self._schedule.run(self._run())

    async def _run(self) -> Fabric:
        tables: dict[type[Record], list[Any]] = {}
        done = count(1)

        async def read(kind: type[Record]) -> None:
            try:
                tables[kind] = await self._schedule.call("SubnAdmGetTable", kind)
            except MADFailure as error:
                if kind is NodeRecord:
                    raise
                sort = "refused" if isinstance(error, MADError) else "unreachable"
                self._problem(sort, "SA", f"{kind.__name__}: {error}")
            if self.progress is not None:
                self.progress(next(done), len(_TABLES))

        await self._schedule.mqueue(read(kind) for kind in _TABLES)
        handlers: tuple[Callable[[Any], None], ...] = (self._node, self._link, self._port, self._switch)
        for take, kind in zip(handlers, _TABLES, strict=True):
            for record in tables.get(kind, ()):
                take(record)
        # An empty table lacks all records.
        if PortInfoRecord in tables:
            self.fabric.problems += missingPorts(self.fabric)
        if LinkRecord in tables:
            self.fabric.problems += missingLinks(self.fabric, tables[LinkRecord])
        return self.fabric

    def _node(self, record: NodeRecord) -> None:
        info = record.nodeInfo
        if info.nodeGUID not in self.fabric.nodes and not self._bounds.admits(self.fabric, info.numPorts):
            self._bounds.fill(self.fabric)
            return
        node, isNew = self.fabric.add(info)
        node.description = record.nodeDescription.text
        if not isNew and not isSame(record.nodeInfo.encode(), node.raw):
            self._problem("duplicate-guid", f"lid {record.lid}", f"another one has the GUID of {node}")
        other = self._ends.setdefault(record.lid, node)
        if other is not node:
            self._problem("duplicate-lid", f"lid {record.lid}", f"{node} has it, and {other}")
        key = node.guid, 0 if node.isSwitch else record.nodeInfo.localPortNum
        lid = self._lids.setdefault(key, record.lid)
        if lid != record.lid:
            self._problem(
                "duplicate-guid", f"lid {record.lid}", f"{node} has LID {lid} at port {key[1]}, too"
            )

    def _unknownEnd(self, lid: LID) -> None:
        if not self._bounds.isFull:
            self._problem("contradiction", f"lid {lid}", "there is a link to it, but no node")

    def _port(self, record: PortInfoRecord) -> None:
        node = self._ends.get(record.endPortLID)
        if node is None:
            if not self._bounds.isFull:
                self._problem("contradiction", f"lid {record.endPortLID}", "there is a port, but no node")
            return
        if record.portNum > node.numPorts:
            text = f"there is a port {record.portNum} of {node.numPorts}"
            self._problem("contradiction", f"lid {record.endPortLID}", text)
            return
        node.port(record.portNum).setInfo(record.portInfo.encode())

    def _switch(self, record: SwitchInfoRecord) -> None:
        node = self._ends.get(record.lid)
        if node is not None:
            node.switchInfo = record.switchInfo


# Missing records: some SAs truncate long tables, and return only records that the requester may read.


def missingPorts(fabric: Fabric) -> Iterator[Problem]:
    """Return a problem for nodes whose ports are missing in the SA's PortInfoRecords."""
    missing = []
    for node in fabric.nodes.values():
        known = sum(1 for port in node.ports.values() if port.raw)
        wanted = node.numPorts + 1 if node.isSwitch else 1
        if known < wanted:
            missing.append(f"{node} has {known} of {wanted}")
    yield from _incomplete("the table of ports lacks some", missing)


def missingLinks(fabric: Fabric, links: Iterable[LinkRecord]) -> Iterator[Problem]:
    """Return problems for links that LinkRecords lack although a port is up, or have one way only."""
    up = PhysicalState.LINK_UP
    ends = {(link.fromLID, link.fromPort): (link.toLID, link.toPort) for link in links}
    found_ = {*ends, *ends.values()}
    ports = (port for port in fabric.ports() if port.number and port.physicalState is up)
    alone = [str(port) for port in ports if (port.lid, port.number) not in found_]
    yield from _incomplete("the table of links lacks those of ports that are up", alone)
    single = [
        f"lid {one[0]} port {one[1]} to lid {other[0]} port {other[1]}"
        for one, other in ends.items()
        if other not in ends
    ]
    yield from _incomplete("the table of links has some in one direction only", single)


def _incomplete(what: str, missing: list[str]) -> Iterator[Problem]:
    if missing:
        yield Problem("incomplete", "SA", f"{what}: {listed(missing)}")
