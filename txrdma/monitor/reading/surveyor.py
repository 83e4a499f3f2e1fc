"""
Surveys a fabric's tables periodically: forwarding tables, P_Keys, virtual lanes, firmware, cables.

They are read once the fabric has settled after a change of its links, and otherwise rarely. While links go
up and down all the time they are read once an hour; findings wait for a survey without a change.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Cooperator
from twisted.logger import Logger

from txrdma.error import DeviceUnavailable
from txrdma.fabric.health import Finding
from txrdma.fabric.routechecks import routeFindings
from txrdma.fabric.tables import tableFindings, TableSurvey, UnableNodes
from txrdma.kit.logs import errorText
from txrdma.mad.agent import MADAgent
from txrdma.monitor.diagnosis.cablestates import cableEvents
from txrdma.monitor.reading.poller import FabricPoller
from txrdma.monitor.supervisor import SupervisedLoop

_log = Logger()

TABLES: Final = "tables"
"""Source of the findings in the finding log."""

SETTLE_SECONDS: Final = 60.0
"""Seconds without a change of the fabric after which its tables are read again."""

UNSETTLED_SECONDS: Final = 3600.0
"""Seconds of changes without end, as of a link that flaps, after which tables are read nevertheless."""

_OUTSTANDING: Final = 16
_YIELD_SECONDS: Final = 0.0
_LATE_SECONDS: Final = 3600.0
"""Seconds after which a survey is late: that of a large fabric takes minutes."""


class Surveyor:
    """
    Surveys one fabric's tables, from L{start} to L{stop}.

    @ivar surveys: number of surveys so far.
    """

    def __init__(
        self, reactor: IReactorTime, agent: MADAgent, poller: FabricPoller, everySeconds: float
    ) -> None:
        """@param everySeconds: time between surveys of a fabric that does not change; 0 for no surveys."""
        self.surveys = 0
        self._reactor = reactor
        self._agent = agent
        self._poller = poller
        self._everySeconds = everySeconds
        self._unable = UnableNodes()
        self._cooperator = Cooperator(
            scheduler=lambda call: reactor.callLater(_YIELD_SECONDS, call), started=False
        )
        self._loop = SupervisedLoop(
            *(reactor, "survey", self._surveyIfDue, lambda: SETTLE_SECONDS, lambda: _LATE_SECONDS)
        )
        self._changes = self._surveyed = -1
        self._surveyedAt = self._settledAt = 0.0
        self._isAgain = False

    def start(self) -> None:
        """Begin to survey, as soon as the fabric is known and has settled."""
        if self._everySeconds:
            self._cooperator.start()
            self._poller.supervisor.add(self._loop)
            self._settledAt = self._reactor.seconds()
            self._loop.start(SETTLE_SECONDS)

    def change(self, everySeconds: float) -> None:
        """Use another interval from now on."""
        self.stop()
        self._everySeconds = everySeconds
        self.start()

    def stop(self) -> None:
        """Stop the surveys; the current one is lost, and begins again after L{start}. Idempotent."""
        if self._loop.isRunning:
            self._surveyed = -1
        self._loop.stop()
        self._loop.cancel()
        if self._loop in self._poller.supervisor.loops:
            self._poller.supervisor.remove(self._loop)
            self._cooperator.stop()

    async def _surveyIfDue(self) -> bool:
        """Survey the fabric if that is due, and it has settled; otherwise False."""
        changes, before = self._poller.topologyWatch.changes, self._changes
        self._changes = changes
        now = self._reactor.seconds()
        if self._poller.isUnanswered():
            self._settledAt = now
            return False
        if changes != before and now - self._settledAt < UNSETTLED_SECONDS:
            return False  # wait until nothing has changed for a while
        self._settledAt = now
        isDue = self._isAgain or now - self._surveyedAt >= self._everySeconds
        if changes == self._surveyed and not isDue and not self._loop.failures:
            return False
        self._surveyed, self._surveyedAt = changes, now
        try:
            await self._survey()
        except DeviceUnavailable as error:  # which the poller reports, and follows
            _log.debug("no survey: {error}", error=errorText(error))
            self._surveyed = -1  # survey soon after the port, or its link, has returned
            return False
        return True

    def _inSteps(self, steps: Iterator[Any]) -> Deferred[Any]:
        """Take the steps of an iterator, between which the reactor does other work."""
        return self._cooperator.cooperate(steps).whenDone()

    async def _survey(self) -> None:
        """Read the tables, and report what they show unless the fabric has changed meanwhile."""
        fabric = self._poller.fabric
        assert fabric is not None  # it was there when this began
        changes, began = self._poller.topologyWatch.changes, self._reactor.seconds()
        endPort = self._agent.port.endPort
        tables = await TableSurvey(self._agent, endPort, fabric, _OUTSTANDING, self._unable).run()
        self._unable.retain(fabric.nodes)
        routes = await routeFindings(
            *(self._agent, endPort, fabric, tables.linear), self._inSteps, tables.adaptive
        )
        if self._poller.isUnanswered():  # then what did not answer may be there
            raise DeviceUnavailable("the link of the local port is down, or it has no LID")
        self.surveys += 1
        self._poller.firmware = tables.firmware
        self._poller.linear, self._poller.adaptive = tables.linear, tables.adaptive
        self._poller.surveyedAt = self._reactor.seconds()
        cables = self._poller.cables
        await self._inSteps(cables.reading(tables.cables, fabric.nodes, began))
        await self._inSteps(map(self._poller.findings.journal.add, cableEvents(cables, fabric, began)))
        found: list[Finding] = []
        await self._inSteps(_collecting(found, tableFindings(fabric, tables)))
        if changes == self._poller.topologyWatch.changes:
            self._poller.findings.report(TABLES, [*found, *routes, *cables.findings(fabric)])
            findingLog = self._poller.findings.log
            # another survey confirms findings, and the absence of earlier ones
            isNew = findingLog.settlesIn(TABLES, self._reactor.seconds()) is not None
            self._isAgain = isNew or findingLog.isClearing(TABLES)


def _collecting(found: list[Finding], checks: Iterable[Finding | None]) -> Iterator[None]:
    """Add the findings of checks to a list; yield, as a step, for each None among them."""
    for one in checks:
        if one is None:
            yield
        else:
            found.append(one)
