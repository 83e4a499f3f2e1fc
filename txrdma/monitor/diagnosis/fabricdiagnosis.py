"""
What the answers of a fabric mean: which nodes and links have changed, and which findings are certain.

Datagrams are lost, sweeps leave out parts of a large fabric, and the link of the local port may be down. So
each kind of result decides about those findings only that it can show or refute.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterable
from dataclasses import replace
from itertools import chain
from typing import Final, TypeVar

from twisted.internet.defer import DeferredLock
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater

from txrdma.fabric.cables import CableWatch
from txrdma.fabric.discovery import Sweep
from txrdma.fabric.health import Finding
from txrdma.fabric.managerwatch import ManagerWatch
from txrdma.fabric.model import Fabric, localPortIn
from txrdma.fabric.sweepbounds import LEFT_OUT, UNPROCESSED
from txrdma.iba.types import GUID
from txrdma.monitor.diagnosis.findinglog import FindingLog, Key
from txrdma.monitor.diagnosis.findingreports import FindingReports
from txrdma.monitor.diagnosis.journal import Journal
from txrdma.monitor.diagnosis.thresholds import ErrorThresholds
from txrdma.monitor.diagnosis.topologywatch import TopologyWatch

SWEEP: Final = "sweep"
COUNTERS: Final = "counters"
MANAGERS: Final = "managers"

_PIECE: Final = 2000
"""Number of links that are looked up between two pauses."""

Check = Callable[[Fabric], Iterable[Finding | None]]
T = TypeVar("T")


def _always(key: Key) -> bool:
    return True


class FabricDiagnosis:
    """
    Model of a fabric, its changes, and the findings about it.

    @ivar fabric: latest model of the fabric; None before the first whole sweep.
    @ivar version: number that grows with each change of C{fabric}, including the states of its ports.
    @ivar findings: the log of findings and the journal, and reports to them.
    @ivar topologyWatch: missing nodes and links; C{cables} are the cables and modules of all surveys.
    @ivar isResuming: whether the state is that of another process, which only a sweep can contradict.
    """

    fabric: Fabric | None = None
    version = 0
    isResuming = False
    _flapping: Collection[Key] = frozenset()

    def __init__(
        self,
        reactor: IReactorTime,
        findings: FindingReports,
        thresholds: ErrorThresholds,
        check: Check,
        lock: DeferredLock,
    ) -> None:
        """
        @param check: yields the faults that the answers to a sweep show, and None for pauses.
        @param lock: held while a result is processed in pieces.
        """
        self.findings = findings
        self.check = check
        self.topologyWatch = TopologyWatch()
        self.cables = CableWatch()
        self._reactor = reactor
        self._thresholds = thresholds
        self._lock = lock
        self._touched: set[GUID] = set()

    def resume(self, findingLog: FindingLog, topologyWatch: TopologyWatch, journal: Journal) -> None:
        """Continue from the state of another process."""
        self.findings.resume(findingLog, journal)
        self.topologyWatch = topologyWatch
        self.isResuming = True

    # Sweeps.

    def replace(self, fabric: Fabric) -> None:
        """Use the fabric of a whole sweep from now on."""
        self.fabric = fabric
        self.isResuming = False
        self._touched.clear()

    async def follow(self, fabric: Fabric, now: float) -> list[GUID]:
        """
        Add the changes of nodes and links to the journal; one fabric at a time.

        @return: nodes that were missing, and have returned.
        """
        async with self._lock:  # until the changes are in the journal: the next ones are added after them
            topologyWatch, gone = self.topologyWatch, set(self.topologyWatch.missingNodes)
            self.findings.journal.add(await self._inPieces(topologyWatch.follow(fabric, now)))
        self._thresholds.linksChanged(topologyWatch.lost, topologyWatch.came, now)
        self.cables.cameUp(chain.from_iterable(topologyWatch.came), now)
        returned = list(gone.intersection(fabric.nodes))
        for guid in returned:
            self._thresholds.restarted(guid, now)
        return returned

    async def judgeWhole(self, fabric: Fabric) -> None:
        """Judge a whole sweep, after L{follow}: nodes that it lacks are missing."""
        silent = {key.location for key in self.findings.log.open if key.kind == "node-silent"}
        self.topologyWatch.swept(fabric, silent)
        self.findings.report(SWEEP, self._withCauses(await self._checked(fabric)))

    async def judgePart(self, fabric: Fabric) -> None:
        """Judge a sweep that left out a part of the fabric: nodes that it lacks need not be missing."""
        self.isResuming = False
        found = [one for one in await self._checked(fabric) if one.kind in (LEFT_OUT, UNPROCESSED)]
        self.findings.report(SWEEP, found, isUnknown=_always)

    async def judgeAlone(self, fabric: Fabric) -> None:
        """Judge a sweep that found only the local node: its link is down, so no node is reported missing."""
        self.findings.report(SWEEP, await self._checked(fabric), isUnknown=_always)

    def judgeCutOff(self, fabric: Fabric) -> None:
        """Judge a sweep during which the local link went down: what it lacks is not reported missing."""
        local = next(node for node in fabric.nodes.values() if node.isLocal)
        port = local.port(localPortIn(local.raw))
        text = "the node at the other end of its link no longer answers, so no other nodes are judged"
        found = Finding("unreachable", str(port), text, local.guid, port.number)
        self.findings.report(SWEEP, [found], isUnknown=_always)

    def judgeManagers(self, found: Collection[Finding]) -> None:
        """Report faults of managers; unless ours is the master, the local port may be the reason for some."""
        known = ManagerWatch.unwatched(found)
        doubted = ("sm-silent", "other-sm") if len(known) < len(found) else ()
        known = [one for one in known if one.kind not in doubted]
        self.findings.report(MANAGERS, known, isUnknown=lambda key: key.kind in doubted)

    async def lacksSilent(self, fabric: Fabric) -> bool:
        """
        Return whether a sweep has not found all known links, and had no answer from some nodes: the link of
        the local port may have been down meanwhile.
        """
        isSilent = any(one.kind == "unreachable" for one in fabric.problems)
        if not isSilent or fabric.isLocalOnly:
            return False
        for number, (end, _other) in enumerate(list(self.topologyWatch.linked), 1):
            port = fabric.portAt(*end)
            if port is None or port.peer is None:
                return True
            if not number % _PIECE:
                await deferLater(self._reactor, 0.0)
        return False

    def lacksBranch(self, sweep: Sweep) -> bool:
        """Return whether an exception kept a sweep from following a link that was known before."""
        if self.fabric is None:
            return False
        ports = (self.fabric.portAt(*key) for key in sweep.unprocessed)
        return any(port is not None and port.peer is not None for port in ports)

    def settlesIn(self, now: float) -> float | None:
        """Return the time until another sweep may settle a finding; None if there is none to settle."""
        waits = [self.findings.log.settlesIn(source, now) for source in (SWEEP, MANAGERS)]
        return min((wait for wait in waits if wait is not None), default=None)

    # Refreshes.

    def touch(self, guids: Collection[GUID]) -> None:
        """Record that nodes were refreshed, until the next whole sweep."""
        self._touched |= set(guids)

    @property
    def isTouchedPending(self) -> bool:
        """Return whether a finding at a refreshed node must be found again to be raised."""
        return self.findings.log.isPending(SWEEP, set(map(str, self._touched)))

    @property
    def isUnsettled(self) -> bool:
        """Return whether findings of the last sweep may have other causes now, or have ended."""
        isOther = self.findings.log.current("flapping").keys() != self._flapping
        return isOther or self.findings.log.isClearing(SWEEP)

    async def judgeTouched(self) -> None:
        """Report findings at nodes that were refreshed since the last sweep, and clear those of others."""
        fabric = self.fabric
        if fabric is None or self.isResuming:
            return
        touched = {str(guid) for guid in self._touched}
        checked = await self._checked(fabric)
        if self.fabric is not fabric:  # a sweep has seen more
            return
        known = {key[1:] for key in self.findings.log.open if key.source == SWEEP}
        # Datagrams are lost: what is new at other nodes waits for the next sweep, and so does what the last
        # one has not reached or asked, since a refresh does not ask it again.
        unasked = {problem.kind for problem in fabric.problems}
        found = []
        for one in self._withCauses(checked):
            portKey = one.where if one.guid is None else str(one.guid)
            port = fabric.portAt(one.guid, one.port) if one.kind == "link-gone" else None
            isAsked = one.kind not in unasked and (port is None or bool(port.raw))
            isNew = (portKey in touched and isAsked) or one.kind == UNPROCESSED
            if isNew or (one.kind, portKey, one.port) in known:
                found.append(one)
        opened = self.findings.log.open  # what was left out, only another sweep can find
        self.findings.report(SWEEP, found, isUnknown=lambda key: key.kind == LEFT_OUT or key not in opened)

    # Counters.

    def judgeCounters(self, silent: Iterable[GUID], unheardAt: str) -> None:
        """
        Judge the counters of all ports.

        @param silent: nodes that did not answer several times in a row.
        @param unheardAt: name of the local port if no other node has answered it; else C{""}.
        """
        fabric, now = self.fabric, self._reactor.seconds()
        assert fabric is not None  # whose counters were read
        silent = [guid for guid in silent if guid in fabric.nodes]
        found = self._thresholds.findings(
            *(fabric, now, self.topologyWatch.missingAt(), self.cables.serialOf),
            self.findings.log.rules.ignored,
        )
        self.findings.journal.add(self._thresholds.moves.events(fabric, now))
        missing = self.topologyWatch.missingNodes
        found = [
            replace(one, where=f"{missing[one.guid].where} port {one.port}") if one.guid in missing else one
            for one in found
        ]
        if unheardAt and silent:
            text = "no other node answers it for counters: it may have no LID, or no route leads to it"
            found.append(Finding("counters-silent", unheardAt, text))
        elif silent:
            text = "it does not answer for its counters"
            found += [
                Finding("node-silent", str(fabric.nodes[guid]), text, guid)
                for guid in silent
                if guid not in missing  # those of another process, until the next sweep
            ]
        found += self.topologyWatch.silent()
        self.findings.report(
            *(COUNTERS, found, {str(guid) for guid in silent}),
            lambda key: bool(unheardAt) and key.kind == "node-silent",
        )

    # Checks.

    def _withCauses(self, checked: list[Finding]) -> list[Finding]:
        """Return findings of a sweep with those about missing nodes and links, and their causes."""
        flapping = self.findings.log.current("flapping")
        self._flapping = flapping.keys()
        found = (entry.finding for entry in flapping.values())
        return self.topologyWatch.findings(checked, found, self.findings.log.rules.ignored)

    async def _checked(self, fabric: Fabric) -> list[Finding]:
        """Return the faults of the fabric; one fabric at a time."""
        async with self._lock:
            return await self._inPieces(self.check(fabric))

    async def _inPieces(self, found: Iterable[T | None]) -> list[T]:
        """Return what is found, with a pause for each None."""
        results = []
        for one in found:
            if one is None:
                await deferLater(self._reactor, 0.0)
            else:
                results.append(one)
        return results
