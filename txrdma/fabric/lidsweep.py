"""Sweep of a fabric by LIDs: links are queried from the SA, all other attributes from the nodes."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from txrdma.fabric.asking import Asker
from txrdma.fabric.model import Fabric, isSame
from txrdma.fabric.sasweep import missingLinks, RecordSweep
from txrdma.fabric.sweepbounds import MOST_NODES
from txrdma.iba.path import MADEndPort
from txrdma.iba.types import LID
from txrdma.mad.layouts.sa import LinkRecord
from txrdma.mad.paths import toLID
from txrdma.mad.rpcs import RPCs
from txrdma.mad.schedule import MADSchedule, MAX_OUTSTANDING


class LIDSweep(RecordSweep):
    """
    A sweep that queries the links from the SA, and everything else from the nodes by their LIDs.

    Its progress counts the LIDs. Silent nodes at the ends of links are reported when they are queried.
    """

    def __init__(
        self,
        agent: RPCs,
        endPort: MADEndPort,
        maxOutstanding: int = MAX_OUTSTANDING,
        mostNodes: int = MOST_NODES,
    ) -> None:
        """
        @param agent: sends the queries; the sweep does not close it.
        @param mostNodes: limit of nodes; see L{Bounds}.
        """
        super().__init__(mostNodes)
        self._schedule = MADSchedule(agent, maxOutstanding)
        self._asker = Asker(self.fabric, self._schedule)
        self._endPort = endPort
        self._links: list[LinkRecord] = []
        self._done = 0

    def run(self) -> Deferred[Fabric]:
        """
        Get the LinkRecords, and then the attributes of all nodes at their ends.

        @return: fires with the fabric, even if it has problems. Fails if the SA does not return the links.
        """
        return self._schedule.run(self._run())

    async def _run(self) -> Fabric:
        self._links = await self._schedule.SubnAdmGetTable(LinkRecord)
        lids = {self._endPort.lid: None}
        for link in self._links:
            lids.update({link.fromLID: None, link.toLID: None})
        await self._schedule.mqueue(self._node(lid, len(lids)) for lid in lids)
        for link in self._links:
            self._link(link)
        self.fabric.problems += missingLinks(self.fabric, self._links)
        return self.fabric

    async def _node(self, lid: LID, count: int) -> None:
        """Query the node at a LID and its ports, all those of a switch."""
        path = toLID(self._endPort, lid)
        info = await self._asker.node(path)
        if info is not None and info.nodeGUID not in self.fabric.nodes:
            if not self._bounds.admits(self.fabric, info.numPorts):
                self._bounds.fill(self.fabric)
                info = None
        if info is not None:
            node, isNew = self.fabric.add(info)
            self._ends[lid] = node
            if isNew:
                await self._asker.description(node, path)
                if node.isSwitch:
                    await self._asker.switch(node, path)
            elif not isSame(info.encode(), node.raw) or node.isSwitch or node.known(info.localPortNum):
                self._problem("duplicate-guid", f"lid {lid}", f"another one has the GUID of {node}")
                del self._ends[lid]
            if lid in self._ends:
                for number in range(node.numPorts + 1) if node.isSwitch else (info.localPortNum,):
                    await self._asker.port(node.port(number), path)
        self._done += 1
        if self.progress is not None:
            self.progress(self._done, count)
