"""
Gets of attributes that store answers in a fabric's model, and failures in its problems; and Gets that verify
the identity of nodes that were read before.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from twisted.internet.defer import Deferred

from txrdma.fabric.model import Fabric, isSame, Node, Port, Problem
from txrdma.iba.path import IBDRPath, IBPath, MADEndPort
from txrdma.mad.errors import MADError, MADFailure
from txrdma.mad.layouts.smp import ExtendedPortInfo, NodeDescription, NodeInfo, PortInfo, SwitchInfo
from txrdma.mad.paths import toLID
from txrdma.mad.rpcs import RPCs
from txrdma.mad.schedule import MADSchedule


class Asker:
    """Queries the attributes of nodes for a sweep, through a L{MADSchedule}."""

    def __init__(self, fabric: Fabric, schedule: MADSchedule) -> None:
        self._fabric = fabric
        self._schedule = schedule

    async def node(self, path: IBPath) -> NodeInfo | None:
        """Query the NodeInfo of the node at the end of a path; None without an answer."""
        info: NodeInfo | None = await self._answer(path, "NodeInfo", self._schedule.SubnGet(NodeInfo, path))
        return info

    async def description(self, node: Node, path: IBPath) -> None:
        """Query the NodeDescription, and set the node's description."""
        answer = await self._answer(path, "NodeDescription", self._schedule.SubnGet(NodeDescription, path))
        if answer is not None:
            node.description = answer.text

    async def switch(self, node: Node, path: IBPath) -> None:
        """Query and set the switch's SwitchInfo; None without an answer."""
        node.switchInfo = await self._answer(path, "SwitchInfo", self._schedule.SubnGet(SwitchInfo, path))

    async def port(self, port: Port, path: IBPath) -> None:
        """Query and set the port's PortInfo, and ExtendedPortInfo (Mellanox) if the port may run at FDR10."""
        answer = await self._answer(path, "PortInfo", self._schedule.SubnGet(PortInfo, path, port.number))
        if answer is None:
            return
        port.setInfo(answer.encode())
        if port.number and port.mayRunFDR10:
            asked = self._schedule.SubnGet(ExtendedPortInfo, path, port.number)
            vendors = await self._answer(path, "", asked)
            port.vendors = b"" if vendors is None else vendors.encode()

    async def _answer(self, path: IBPath, what: str, asked: Deferred[Any]) -> Any:
        """
        Await the answer to a Get. A failure is recorded as a problem of the fabric, and None is returned.

        @param what: name of the attribute; C{""} for an optional attribute, whose refusal is not a problem.
        """
        try:
            return await asked
        except MADError as error:
            if what:
                self.problem("refused", path, f"{what}: {error}")
        except MADFailure as error:
            self.problem("unreachable", path, f"{what}: {error}".removeprefix(": "))
        return None

    def problem(self, kind: str, path: IBPath, text: str) -> None:
        """Record a problem of the node at the end of a path."""
        where = str(path) if isinstance(path, IBDRPath) else f"lid {path.dlid}"
        self._fabric.problems.append(Problem(kind, where, text))


async def moved(
    rpcs: RPCs, endPort: MADEndPort, nodes: Iterable[Node], maxOutstanding: int
) -> list[tuple[Node, str]]:
    """
    Verify that nodes still have their LIDs.

    @return: nodes of which another one has a LID now, with a text about it; not those that do not answer.
    """
    found: dict[Node, str] = {}
    schedule = MADSchedule(rpcs, maxOutstanding)

    async def ask(node: Node, lid: int) -> None:
        try:
            info = await schedule.SubnGet(NodeInfo, toLID(endPort, lid))
        except MADFailure:
            return
        if not isSame(info.encode(), node.raw):
            found[node] = f"node {info.nodeGUID} has its LID {lid} now"

    lids = ((node, lid) for node in nodes for lid in {node.lid, *(port.lid for port in node.linked())} if lid)
    await schedule.run(mqueue=(ask(node, lid) for node, lid in lids))
    return list(found.items())
