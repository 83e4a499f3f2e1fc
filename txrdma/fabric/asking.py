"""
Gets of subnet management attributes, whose answers go into a fabric's model and whose failures into its
problems.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred

from txrdma.fabric.model import Fabric, Node, Port, Problem
from txrdma.iba.path import IBDRPath, IBPath
from txrdma.mad.errors import MADError, MADFailure
from txrdma.mad.layouts.smp import ExtendedPortInfo, NodeDescription, NodeInfo, PortInfo, SwitchInfo
from txrdma.mad.schedule import MADSchedule


class Asker:
    """Asks nodes about themselves, by a schedule, on behalf of a sweep."""

    def __init__(self, fabric: Fabric, schedule: MADSchedule) -> None:
        self._fabric = fabric
        self._schedule = schedule

    async def node(self, path: IBPath) -> NodeInfo | None:
        """The NodeInfo of the node at the end of a path; None without an answer."""
        info: NodeInfo | None = await self._answer(path, "NodeInfo", self._schedule.SubnGet(NodeInfo, path))
        return info

    async def description(self, node: Node, path: IBPath) -> None:
        """Set the node's description from its NodeDescription."""
        answer = await self._answer(path, "NodeDescription", self._schedule.SubnGet(NodeDescription, path))
        if answer is not None:
            node.description = answer.text

    async def switch(self, node: Node, path: IBPath) -> None:
        """Set the switch's SwitchInfo; None without an answer."""
        node.switchInfo = await self._answer(path, "SwitchInfo", self._schedule.SubnGet(SwitchInfo, path))

    async def port(self, port: Port, path: IBPath) -> None:
        """Set the port's PortInfo, and its ExtendedPortInfo (Mellanox) where the port may run at FDR10."""
        answer = await self._answer(path, "PortInfo", self._schedule.SubnGet(PortInfo, path, port.number))
        if answer is None:
            return
        port.tell(answer.encode())
        if port.number and port.mayRunFDR10:
            asked = self._schedule.SubnGet(ExtendedPortInfo, path, port.number)
            vendors = await self._answer(path, "", asked)
            port.vendors = b"" if vendors is None else vendors.encode()

    async def _answer(self, path: IBPath, what: str, asked: Deferred[Any]) -> Any:
        """
        The answer to one Get; None without one, which is recorded as a problem of the fabric.

        @param what: name of the attribute; C{""} for one that not all nodes know, whose refusal is no
            problem.
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
        """Note a problem at the end of a path."""
        where = str(path) if isinstance(path, IBDRPath) else f"lid {path.dlid}"
        self._fabric.problems.append(Problem(kind, where, text))
