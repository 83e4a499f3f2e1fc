"""
Finding out what a fabric consists of from its administration: all of it, or only where to ask.

Follows InfiniBand Architecture vol. 1, 15.2.5 (records). Nodes without a LID are not known there.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any, Final

from twisted.internet.defer import Deferred, DeferredList
from twisted.python.failure import Failure

from txrdma.iba.path import IBPath, MADEndPort
from txrdma.iba.types import LID
from txrdma.mad.errors import MADError, MADFailure
from txrdma.mad.fabric import Fabric, Node, Port, Problem
from txrdma.mad.paths import toAdministration, toLID
from txrdma.mad.rpcs import RPCs
from txrdma.mad.sa import LinkRecord, NodeRecord, PortInfoRecord, Record, SwitchInfoRecord
from txrdma.mad.schedule import MADSchedule, MAX_OUTSTANDING
from txrdma.mad.smp import NodeDescription, NodeInfo, PortInfo, SwitchInfo

_TABLES: Final[tuple[type[Record], ...]] = (NodeRecord, LinkRecord, PortInfoRecord, SwitchInfoRecord)


class AdministeredSweep:
    """
    A fabric as its administration knows it, by four tables.

    @ivar fabric: what was found so far.
    """

    def __init__(self, agent: RPCs, administration: IBPath) -> None:
        """
        @param agent: remains its owner's.
        """
        self.fabric = Fabric()
        self._agent = agent
        self._administration = administration
        self._ends: dict[LID, Node] = {}

    def run(self) -> Deferred[Fabric]:
        """
        Ask for the tables.

        @return: fires with the fabric; what it lacks because a table was refused is a problem of it. Fails
            when the table of nodes is not to be had.
        """
        return Deferred.fromCoroutine(self._run())

    async def _run(self) -> Fabric:
        calls = [self._agent.call("SubnAdmGetTable", kind, self._administration) for kind in _TABLES]
        waiting: Deferred[list[tuple[bool, Any]]] = DeferredList(calls, consumeErrors=True)
        try:
            told = await waiting
        finally:
            for call in calls:
                call.cancel()
        tables = [self._table(kind, *answer) for kind, answer in zip(_TABLES, told, strict=True)]
        takers: tuple[Callable[[Any], None], ...] = (self._node, self._link, self._port, self._switch)
        for take, records in zip(takers, tables, strict=True):
            for record in records:
                take(record)
        return self.fabric

    def _table(self, kind: type[Record], succeeded: bool, told: Any) -> list[Any]:
        if succeeded:
            return list(told)
        assert isinstance(told, Failure)
        error = told.value
        assert error is not None
        if kind is NodeRecord or not isinstance(error, MADFailure):
            raise error
        sort = "refused" if isinstance(error, MADError) else "unreachable"
        self._problem(sort, "administration", f"{kind.__name__}: {error}")
        return []

    def _problem(self, sort: str, where: str, text: str) -> None:
        self.fabric.problems.append(Problem(sort, where, text))

    def _node(self, record: NodeRecord) -> None:
        node, _ = self.fabric.add(record.nodeInfo)
        node.description = record.nodeDescription.text
        other = self._ends.setdefault(record.lid, node)
        if other is not node:
            self._problem("duplicate-lid", f"lid {record.lid}", f"{node.guid} has it, and {other.guid}")

    def _link(self, record: LinkRecord) -> None:
        one = self._end(record.fromLID, record.fromPort)
        other = self._end(record.toLID, record.toPort)
        if one is not None and other is not None and not self.fabric.link(one, other):
            where = f"lid {record.fromLID} port {record.fromPort}"
            self._problem("contradiction", where, f"leads to {other}, but is linked to {one.peer}")

    def _end(self, lid: LID, number: int) -> Port | None:
        node = self._ends.get(lid)
        if node is None:
            self._problem("contradiction", f"lid {lid}", "there is a link to it, but no node")
            return None
        return node.port(number)

    def _port(self, record: PortInfoRecord) -> None:
        node = self._ends.get(record.endPortLID)
        if node is None:
            self._problem("contradiction", f"lid {record.endPortLID}", "there is a port, but no node")
            return
        node.port(record.portNum).raw = record.portInfo.encode()

    def _switch(self, record: SwitchInfoRecord) -> None:
        node = self._ends.get(record.lid)
        if node is not None:
            node.switchInfo = record.switchInfo


class LIDSweep:
    """
    A fabric whose links its administration tells; everything else is asked from the nodes, by LID.

    @ivar fabric: what was found so far.
    @ivar progress: is called after answers, with how many nodes have told, and how many there are.
    """

    def __init__(self, agent: RPCs, endPort: MADEndPort, maxOutstanding: int = MAX_OUTSTANDING) -> None:
        """
        @param agent: remains its owner's.
        """
        self.fabric = Fabric()
        self.progress: Callable[[int, int], None] | None = None
        self._schedule = MADSchedule(agent, maxOutstanding)
        self._endPort = endPort
        self._ends: dict[LID, Node] = {}
        self._links: list[LinkRecord] = []

    def run(self) -> Deferred[Fabric]:
        """
        Ask for the links, and then all nodes at their ends.

        @return: fires with the fabric, whatever the problems. Fails when the administration tells no links.
        """
        return self._schedule.run(self._run())

    async def _run(self) -> Fabric:
        self._links = await self._schedule.SubnAdmGetTable(LinkRecord, toAdministration(self._endPort))
        lids = {self._endPort.lid: None}
        for link in self._links:
            lids.update({link.fromLID: None, link.toLID: None})
        await self._schedule.mqueue(self._node(lid, len(lids)) for lid in lids)
        for link in self._links:
            self._join(link)
        return self.fabric

    async def _node(self, lid: LID, count: int) -> None:
        try:
            await self._asked(lid)
        except MADFailure as error:
            sort = "refused" if isinstance(error, MADError) else "unreachable"
            self.fabric.problems.append(Problem(sort, f"lid {lid}", str(error)))
        if self.progress is not None:
            self.progress(len(self._ends), count)

    async def _asked(self, lid: LID) -> None:
        ask, path = self._schedule.SubnGet, toLID(self._endPort, lid)
        info = await ask(NodeInfo, path)
        node, isNew = self.fabric.add(info)
        self._ends[lid] = node
        if isNew:
            node.description = (await ask(NodeDescription, path)).text
            if node.isSwitch:
                node.switchInfo = await ask(SwitchInfo, path)
        for number in self._numbers(node, info):
            node.port(number).raw = (await ask(PortInfo, path, number)).encode()

    @staticmethod
    def _numbers(node: Node, info: NodeInfo) -> Iterator[int]:
        return iter(range(info.numPorts + 1)) if node.isSwitch else iter((info.localPortNum,))

    def _join(self, link: LinkRecord) -> None:
        one, other = self._ends.get(link.fromLID), self._ends.get(link.toLID)
        if one is None or other is None:
            return  # who did not answer is a problem already
        if not self.fabric.link(one.port(link.fromPort), other.port(link.toPort)):
            text = (
                f"leads to {other.guid} port {link.toPort}, but is linked to {one.port(link.fromPort).peer}"
            )
            self.fabric.problems.append(
                Problem("contradiction", f"lid {link.fromLID} port {link.fromPort}", text)
            )
