"""
Polls a fabric: sweeps, counter readings and notices on a reactor.

A round reads the counters of all linked ports once per interval, and the port states of some nodes in
rotation: a subnet manager clears PortStateChange and drops repeated traps, so traps alone are not enough.
Traps and counters show which nodes may have changed; only these are queried again (a refresh). A whole sweep
every few minutes finds what both have missed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Awaitable, Callable, Mapping
from contextlib import suppress
from itertools import chain
from math import inf
from typing import Final

from twisted.internet.defer import CancelledError, Deferred, DeferredLock, maybeDeferred
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import RDMAError
from txrdma.fabric.adaptive import Adaptive, STATIC
from txrdma.fabric.congestion import congestionFindings
from txrdma.fabric.discovery import MAX_PER_NODE, Sweep
from txrdma.fabric.health import Finding, locatedFindings, managerFindings
from txrdma.fabric.managerwatch import ManagerWatch
from txrdma.fabric.model import Fabric, Node, Port
from txrdma.fabric.rates import shareOf
from txrdma.fabric.refreshing import hasOtherLID, Refresh
from txrdma.fabric.routeuse import Linear
from txrdma.fabric.tables import Firmware
from txrdma.iba.types import GUID
from txrdma.mad.agent import MADAgent
from txrdma.mad.errors import MADFailure
from txrdma.mad.layouts.messages import MADRequest, Notice
from txrdma.mad.layouts.smp import SMInfo
from txrdma.mad.paths import toLID
from txrdma.mad.portwatch import PortEvent, PortLost
from txrdma.mad.schedule import MADSchedule
from txrdma.mad.server import MADServer
from txrdma.mad.subscription import Subscription
from txrdma.monitor.collecting.pool import CollectorPool
from txrdma.monitor.diagnosis.fabricdiagnosis import Check, FabricDiagnosis, MANAGERS, SWEEP
from txrdma.monitor.diagnosis.findinglog import FindingEvent, FindingLog, FindingRules
from txrdma.monitor.diagnosis.findingreports import FindingReports
from txrdma.monitor.diagnosis.journal import Journal
from txrdma.monitor.diagnosis.thresholds import ErrorThresholds
from txrdma.monitor.diagnosis.topologywatch import TopologyWatch
from txrdma.monitor.reading.changesigns import ChangeSigns, UnplannedSweeps
from txrdma.monitor.reading.congestion import CongestionReader
from txrdma.monitor.reading.counterreader import CounterReader
from txrdma.monitor.reading.details import DetailReader
from txrdma.monitor.reading.fec import CorrectionReader
from txrdma.monitor.reading.locallink import anyAnswers, isNeighbourSilent
from txrdma.monitor.reading.replaced import ReplacedFabrics
from txrdma.monitor.reading.settings import PollerSettings, RETRIES
from txrdma.monitor.reading.statistics import PollerStatistics
from txrdma.monitor.supervisor import LATE_SECONDS, SupervisedLoop, Supervisor

_log = Logger()

_CONGESTION: Final = "congestion"
_MONITOR: Final = "monitor"
_MASTER: Final = "master"
_SWEEPS: Final = 2
"""
Maximum number of sweeps in a row. If known nodes did not answer the first one, the local link may have been
down meanwhile.
"""

_LATE_PERIODS: Final = 3
"""Periods of a loop after which it is late, where that is more than L{LATE_SECONDS}."""

_MOST_DOUBLINGS: Final = 10
"""Most failed sweeps or refreshes in a row that double the pause until the next one."""

_LATER_SHARE: Final = 4
"""Share of the outstanding datagrams that sweeps after the first one may use."""

_PIECE: Final = 2000
"""Number of nodes beyond which the processing of a sweep has pauses."""

_SWITCHES: Final = 32
"""Number of nodes whose ports are examined between two pauses."""

_LEAST_OUTSTANDING: Final = 8
UNSUBSCRIBED_SECONDS: Final = 60.0
"""Seconds without a subscription after which this is reported."""


DEFAULT_RULES: Final = FindingRules({SWEEP: 1.0, MANAGERS: 1.0, "tables": 1.0, _CONGESTION: 120.0})
"""Findings of a sweep must be found twice, since datagrams are lost; congestion must last."""


class FabricPoller:
    """
    Polls one fabric, from L{start} to L{stop}.

    @ivar diagnosis: the model of the fabric, its changes, and its findings, with C{findings} and C{cables}.
    @ivar meters: meters of all ports whose counters were read, by GUID and port number. C{details} has the
        causes of dropped packets, C{corrections} the counters of error correction, C{congestion} the waits of
        ports for credits.
    @ivar manager: state of the master SM.
    @ivar statistics: work so far.
    @ivar supervisor: supervises all loops of the monitor; C{sweeps} and C{rounds} are loops of the poller.
    @ivar firmware: firmware of nodes that the last survey has found; C{linear} has the forwarding tables,
        C{adaptive} the groups of adaptive routing. C{surveyedAt} is the reactor's time of that survey: minus
        infinity before the first.
    """

    adaptive: Adaptive = STATIC
    surveyedAt = -inf
    _unsubscribedSince = _sweptAt = _roundBegan = 0.0
    _isIsolated = _isUnheard = _areLIDsDoubtful = False
    _lost = ""
    _pauseSeconds: float | None = None
    _server: MADServer | None = None
    _subscription: Subscription | None = None

    def __init__(
        self,
        reactor: IReactorTime,
        agent: MADAgent,
        settings: PollerSettings | None = None,
        rules: FindingRules = DEFAULT_RULES,
        thresholds: ErrorThresholds | None = None,
        notify: Callable[[FindingEvent], object] = lambda event: None,
        onRound: Callable[[float], object] = lambda began: None,
        check: Check = locatedFindings,
        supervisor: Supervisor | None = None,
        collectors: CollectorPool | None = None,
        lock: DeferredLock | None = None,
    ) -> None:
        """
        @param agent: sends the requests; the poller does not close it. When its port is lost, the poller
            waits until the agent has opened it again.
        @param notify: called with each event of a finding, as when it is raised or has another cause.
        @param onRound: called after each round of readings with the time at which it began; the next round
            waits for its Deferred or coroutine.
        @param check: yields the faults that the answers to a sweep show, and None for pauses.
        @param supervisor: supervises the loops of the poller beside others; it runs while the poller does.
        @param collectors: processes that read counters and states of ports for the poller, which connects to
            them while it runs. The poller makes sweeps itself.
        @param lock: lock that pollers of one process share, because each processes its results in pieces that
            fit into a reactor iteration; None for one poller.
        """
        self.manager = ManagerWatch()
        self.statistics = PollerStatistics()
        self.firmware: Mapping[GUID, Firmware] = {}
        self.linear: Linear = {}
        self._reactor = reactor
        self._agent = agent
        self._settings = settings = settings or PollerSettings()
        thresholds = ErrorThresholds() if thresholds is None else thresholds
        self._thresholds = thresholds
        self.findings = FindingReports(rules, reactor.seconds, notify)
        self.diagnosis = FabricDiagnosis(
            *(reactor, self.findings, thresholds, check),
            DeferredLock() if lock is None else lock,
        )
        self.cables = self.diagnosis.cables
        self._collectors = collectors
        self._onRound = onRound
        self._reader = CounterReader(
            reactor,
            agent if collectors is None else collectors,
            thresholds,
            settings,
            self.statistics,
            *(self._sign, self._nodeSilent, self._lidIsWrong),
        )
        self.meters = self._reader.meters
        self.details = DetailReader(self.meters)
        self.corrections = CorrectionReader(self.meters, thresholds, reactor.seconds)
        self.congestion = CongestionReader(self.meters)
        self._optional = (self.details, self.corrections, self.congestion)
        self._rotation: deque[Node] = deque()
        self._replaced = ReplacedFabrics(reactor)
        self._signs = ChangeSigns()
        self._running: dict[Deferred[None], None] = {}
        self._unplanned = UnplannedSweeps()
        self.supervisor = Supervisor(reactor) if supervisor is None else supervisor
        self.sweeps = self._addVital(
            "sweep", self._sweep, self._untilSweep, lambda: self._settings.sweepSeconds
        )
        self.rounds = self._addVital(
            "round", self._runRound, self._untilRound, lambda: self._settings.intervalSeconds
        )
        self._refreshes = self.supervisor.add(
            SupervisedLoop(reactor, "refresh", self._refreshSigned, self._untilRefresh, isPeriodic=False)
        )
        self._loops = (self.sweeps, self.rounds, self._refreshes)
        self._unwatchPort: Callable[[], None] = lambda: None

    def _addVital(
        self,
        name: str,
        run: Callable[[], Awaitable[bool | None]],
        pauseSeconds: Callable[[], float | None],
        periodSeconds: Callable[[], float],
    ) -> SupervisedLoop:
        """Add a loop on which the watchdog depends, and which is late after several periods."""

        def lateSeconds() -> float:
            return max(LATE_SECONDS, _LATE_PERIODS * periodSeconds())

        loop = SupervisedLoop(self._reactor, name, run, pauseSeconds, lateSeconds, isVital=True)
        return self.supervisor.add(loop)

    def start(self) -> None:
        """
        Sweep, subscribe to notices, and poll from now on.

        @raise txrdma.error.ResourceExhausted: another program on this host receives the notices.
        """
        self._unwatchPort = self._agent.watch(self._portChanged)
        if self._settings.wantsNotices:
            self._server = MADServer(self._agent)
            self._subscription = Subscription(
                self._reactor, self._agent, self._server, None, self._noticeReceived
            )
            self._subscription.start()
        self.supervisor.start(self._reportSelf)
        if self._collectors is not None:
            self._collectors.start()
        self.sweeps.start()
        self.rounds.start(self._settings.intervalSeconds)
        self._refreshes.start(None)

    def change(self, settings: PollerSettings, rules: FindingRules, check: Check) -> None:
        """Apply new settings, except for the subscription to notices; shorter intervals apply at once."""
        self._settings = settings
        now = self._reactor.seconds()
        self.rounds.runIn(max(0.0, self._roundBegan + settings.intervalSeconds - now))
        self.sweeps.runIn(max(0.0, self._sweptAt + settings.sweepSeconds - now))
        self.diagnosis.check = check
        self.findings.change(rules)
        self._reader.change(settings)
        if self._collectors is not None:
            self._collectors.change(settings.timeoutSeconds, settings.maxOutstanding)
        self._run(Deferred.fromCoroutine(self.diagnosis.judgeTouched()))

    def resume(self, findingLog: FindingLog, topologyWatch: TopologyWatch, journal: Journal) -> None:
        """Continue from the state of another process, which only a sweep that begins now can contradict."""
        self._cancelAll()
        self.diagnosis.resume(findingLog, topologyWatch, journal)
        self.sweeps.runIn(0.0)

    def stop(self) -> Deferred[None]:
        """Stop polling; fires when the SA has confirmed the end of the subscription, or did not in time."""
        self._unwatchPort()
        self.supervisor.stop()
        for loop in self._loops:
            loop.stop()
        self._cancelAll()
        return Deferred.fromCoroutine(self._leave())

    async def _leave(self) -> None:
        if self._collectors is not None:
            await self._collectors.stop()
        if self._subscription is not None:
            await self._subscription.stop()
        if self._server is not None:
            self._server.stop()

    def _run(self, work: Deferred[None]) -> None:
        """Register work that L{stop} cancels, and log its failure."""
        self._running[work] = None

        def ended(result: object) -> None:
            del self._running[work]
            if isinstance(result, Failure) and not result.check(CancelledError, RDMAError):
                _log.failure("while polling the fabric", result)

        work.addBoth(ended)

    def _cancelAll(self) -> None:
        for loop in self._loops:
            loop.cancel()
        for work in list(self._running):
            work.cancel()

    # The port.

    def _portChanged(self, event: PortEvent) -> None:
        """Handle the loss, the return or a change of the local port."""
        if isinstance(event, PortLost):
            self._lost = event.reason
            self._markUnread()
            self._cancelAll()
        else:
            if self._lost or self._isUnheard:
                self._lost = ""
                self._reader.backOff.clear()
            self.sweeps.runIn(0.0)
        self._reportSelf()

    def _markUnread(self) -> None:
        """Record that no port can be read now."""
        for meter in chain(self.meters.values(), self.corrections.meters.values()):
            meter.missed()

    @property
    def fabric(self) -> Fabric | None:
        """Return the latest model of the fabric; None before the first sweep."""
        return self.diagnosis.fabric

    @property
    def version(self) -> int:
        """Return a number that grows with each change of C{fabric}, including the states of its ports."""
        return self.diagnosis.version

    @property
    def topologyWatch(self) -> TopologyWatch:
        """Return the missing nodes and links."""
        return self.diagnosis.topologyWatch

    def isOffline(self) -> bool:
        """Return whether no node can be queried."""
        return bool(self._lost) or self._isIsolated or self.fabric is None

    def isUnanswered(self) -> bool:
        """Return whether no node can be queried, or none has answered a request to its LID."""
        return self._isUnheard or self.isOffline()

    def _reportSelf(self) -> None:
        """Report faults of the local port and of the loops; a lost port explains failed loops."""
        name, now = self._agent.port.name, self._reactor.seconds()
        found = [Finding("port-lost", name, self._lost)] if self._lost else []
        if self._subscription is None or self._subscription.isStanding or self.isOffline():
            self._unsubscribedSince = now
        elif now - self._unsubscribedSince >= UNSUBSCRIBED_SECONDS:
            found.append(Finding("no-notices", name, "the subnet administration accepts no subscription"))
        if not self._lost:
            found += self.supervisor.findings()
        self.findings.report(_MONITOR, found)

    # Sweeps.

    async def _sweep(self) -> bool:
        """Sweep the fabric; False without a port."""
        if self._lost:  # its return begins a sweep
            return False
        began = self._reactor.seconds()
        self._unplanned.begin(began)
        self._pauseSeconds = None
        managers: list[Finding] | None = []
        try:
            sweep, isCutOff = await self._takeSweep()
            if not (sweep.fabric.isLocalOnly or isCutOff):
                managers = await self._askManagers(sweep.fabric)
        finally:
            now = self._sweptAt = self._reactor.seconds()
            self.statistics.sweepSeconds = now - began
        self.statistics.sweeps += 1
        await self._judgeSweep(sweep, isCutOff, managers, now)
        return True

    async def _takeSweep(self) -> tuple[Sweep, bool]:
        """Sweep, twice if known nodes are silent; return the sweep, and whether the local port is cut off."""
        settings = self._settings
        most, perNode = settings.maxOutstanding, MAX_PER_NODE
        if self.fabric is not None:  # in the background
            most, perNode = max(_LEAST_OUTSTANDING, most // _LATER_SHARE), 1
        for _ in range(_SWEEPS):
            sweep = Sweep(
                *(self._agent, most, settings.maxHops),
                maxPerNode=perNode,
                mostNodes=settings.mostNodes,
                isWhole=True,
            )
            fabric = await sweep.run()
            self._replaced.watch(fabric)
            await self._pause(fabric)
            isDoubtful = not sweep.bounds.isFull and await self.diagnosis.lacksSilent(fabric)
            isCutOff = isDoubtful and await self._isCutOff(fabric)
            if isCutOff or not isDoubtful:
                break
        return sweep, isCutOff

    async def _askManagers(self, fabric: Fabric) -> list[Finding] | None:
        """Return the findings about subnet managers; None if asking them failed."""
        with self.sweeps.step("asking subnet managers"):
            managers = await managerFindings(self._agent, self._agent.port.endPort, fabric)
            await self._pause(fabric)
            return managers
        return None

    async def _judgeSweep(
        self, sweep: Sweep, isCutOff: bool, managers: list[Finding] | None, now: float
    ) -> None:
        """Handle the result of a sweep, which may have seen only a part of the fabric."""
        fabric = sweep.fabric
        if isCutOff:
            self._pauseSeconds = self._leastPause()
            self._cutOff()
            self.diagnosis.judgeCutOff(fabric)
        elif self.diagnosis.lacksBranch(sweep):
            await self._sweptPartly(fabric)
        elif fabric.isLocalOnly and self.topologyWatch.present:
            self._pauseSeconds = self._settings.settleSeconds
            self._cutOff()
            with self.sweeps.step("checking the fabric"):
                await self.diagnosis.judgeAlone(fabric)
        elif sweep.bounds.isFull and self.fabric is not None:
            await self._sweptPartly(fabric)
        else:
            await self._swept(fabric, now)
            if managers is not None:
                self.diagnosis.judgeManagers(managers)

    def _sweepSoon(self, seconds: float) -> None:
        """Schedule a sweep, because something may have changed."""
        now = self._reactor.seconds()  # the pause after a sweep is four times its duration
        at = self._unplanned.next(now, max(now + seconds, self._sweptAt + 4 * self.statistics.sweepSeconds))
        if at is not None:
            self.sweeps.runIn(at - now)

    async def _isCutOff(self, fabric: Fabric) -> bool:
        """Return whether the node next to the local port does not answer now."""
        return await isNeighbourSilent(self._agent, fabric, self._settings.timeoutSeconds)

    def _cutOff(self) -> None:
        """Query no node but the local one until a sweep has found others."""
        self._isIsolated = True
        self._markUnread()

    def _linkIsUp(self) -> None:
        """Query all nodes again after the link of the local port was down."""
        if self._isIsolated:
            self._isIsolated = False
            self._reader.backOff.clear()

    async def _sweptPartly(self, fabric: Fabric) -> None:
        """Handle a sweep that left out a part of the fabric: nodes that it lacks need not be missing."""
        self._linkIsUp()
        if self._areLIDsDoubtful and self.fabric is not None:
            known = self.fabric.nodes
            self._areLIDsDoubtful = any(
                node.lid != known[guid].lid for guid, node in fabric.nodes.items() if guid in known
            )
        with self.sweeps.step("checking the fabric"):
            await self.diagnosis.judgePart(fabric)

    def _untilSweep(self) -> float:
        """Return the time until the next sweep, which may settle a finding."""
        settings = self._settings
        usual = settings.sweepSeconds
        if self._pauseSeconds is not None:
            return self._pauseSeconds
        least = self._leastPause()
        failures = self.sweeps.failures
        if failures:
            return self._backedOff(least, failures)
        settles = self.diagnosis.settlesIn(self._reactor.seconds())
        return usual if settles is None else min(usual, max(settles, least))

    def _leastPause(self) -> float:
        """Return the shortest time between two sweeps."""
        return max(self._settings.settleSeconds, 4 * self.statistics.sweepSeconds)

    async def _swept(self, fabric: Fabric, now: float) -> None:
        """Handle a whole sweep: its fabric replaces the former one, and nodes that it lacks are missing."""
        isFirst = self.fabric is None
        self.diagnosis.replace(fabric)
        self._signs.fabricReplaced()
        self._areLIDsDoubtful = False
        self._linkIsUp()
        await self._nodesChanged(self.sweeps, fabric, now)
        with self.sweeps.step("checking the fabric"):
            await self.diagnosis.judgeWhole(fabric)
        if isFirst:
            self.rounds.runIn(0.0)

    async def _nodesChanged(self, loop: SupervisedLoop, fabric: Fabric, now: float) -> None:
        """Process nodes and links that have appeared or disappeared, in steps of a loop's run."""
        self.diagnosis.version += 1
        await self._pause(fabric)
        self._rotation = deque(node for node in fabric.ordered() if node.lid)
        await self._pause(fabric)
        await self._follow(loop, fabric, now)
        await self._pause(fabric)
        with loop.step("forgetting counters"):
            self._reader.retain(fabric.nodes, self.topologyWatch.missingNodes)
        await self._pause(fabric)
        with loop.step("forgetting errors"):
            self._thresholds.retain(fabric.nodes.keys() | self.topologyWatch.missingNodes.keys())
        for one in self._optional:
            await self._pause(fabric)
            with loop.step("forgetting optional counters"):
                one.retain(fabric.nodes)
        await self._pause(fabric)

    async def _pause(self, fabric: Fabric) -> None:
        """Let the reactor process other events, if the fabric is large."""
        if len(fabric.nodes) > _PIECE:
            await deferLater(self._reactor, 0.0)

    async def _follow(self, loop: SupervisedLoop, fabric: Fabric, now: float) -> None:
        """Process changes of nodes and links; the counters of returned nodes have restarted."""
        with loop.step("following nodes"):
            for guid in await self.diagnosis.follow(fabric, now):
                self._reader.forget(guid)

    # Signs of change.

    def _noticeReceived(self, notice: Notice, request: MADRequest) -> None:
        """Query the node of a notice; sweep if it is unknown."""
        self.statistics.notices += 1
        if self.fabric is None:
            return
        if self._signs.noticed(notice, self.fabric, self.version):
            self._sweepSoon(self._settings.settleSeconds)
        if not self._signs.isEmpty:
            self._scheduleRefresh()

    def _nodeSilent(self, guid: GUID) -> None:
        """Query a node that is silent for the first time by its route: its LID may have changed."""
        node = None if self.fabric is None else self.fabric.nodes.get(guid)
        if node is not None:
            self._run(Deferred.fromCoroutine(self._seek(node)))

    async def _seek(self, node: Node) -> None:
        if await hasOtherLID(self._agent, node, self._settings.timeoutSeconds, RETRIES):
            self._reader.backOff.answered(node.guid)
            self._lidIsWrong(node.guid)

    def _lidIsWrong(self, guid: GUID) -> None:
        """Sweep soon, with the usual pauses: a node has an unknown LID, and so may others."""
        self._areLIDsDoubtful = True
        self._sweepSoon(0.0)

    def _sign(self, guid: GUID) -> None:
        """Query a node soon, together with others that may have changed."""
        self._signs.nodes[guid] = None
        self._scheduleRefresh()

    def _scheduleRefresh(self) -> None:
        self._refreshes.runIn(self._settings.settleSeconds)

    def _untilRefresh(self) -> float | None:
        settings, failures = self._settings, self._refreshes.failures
        if not self._signs.isEmpty:
            return settings.settleSeconds
        if failures:  # they count until a refresh succeeds, even if nothing changes any more
            return self._backedOff(settings.settleSeconds, failures)
        return None

    def _backedOff(self, seconds: float, failures: int) -> float:
        """Return a pause that doubles with each failure in a row, up to the time between sweeps."""
        return float(min(self._settings.sweepSeconds, seconds * (1 << min(failures - 1, _MOST_DOUBLINGS))))

    async def _refreshSigned(self) -> bool:
        """Refresh all nodes with a sign of change; False during a sweep, or while the port is down."""
        fabric = self.fabric
        if self.isOffline() or fabric is None:
            self._signs.clear()
        elif not self.sweeps.isRunning:
            nodes = [fabric.nodes[guid] for guid in self._signs.nodes if guid in fabric.nodes]
            self._signs.nodes.clear()
            try:
                await self._refresh(fabric, nodes)
            except Exception:  # the signs are forgotten: what has changed is found by a sweep
                self._sweepSoon(self._settings.settleSeconds)
                raise
            return True
        return False

    def _refreshOf(self, schedule: MADSchedule, fabric: Fabric) -> Refresh:
        end, seconds = self._agent.port.endPort, self._settings.timeoutSeconds
        return Refresh(schedule, end, fabric, seconds, RETRIES)

    async def _refresh(self, fabric: Fabric, nodes: list[Node]) -> None:
        """Query nodes with a sign of change again."""
        schedule = MADSchedule(self._agent, self._settings.maxOutstanding)
        refresh = self._refreshOf(schedule, fabric)
        self.statistics.refreshes += 1

        async def refreshNode(node: Node) -> None:
            try:
                await refresh.refresh(node, isThorough=True)
            except MADFailure as error:
                refresh.unclear = f"{node}: {error}"

        await schedule.run(mqueue=(refreshNode(node) for node in nodes))
        await refresh.finish()
        if any(fabric.byGUID(guid) is None for guid in self._signs.newNodes):
            refresh.unclear = "a new node has appeared"
        self._signs.newNodes.clear()
        await self._refreshed(self._refreshes, refresh, fabric, wasSign=True)

    async def _refreshed(self, loop: SupervisedLoop, refresh: Refresh, fabric: Fabric, wasSign: bool) -> None:
        """Store the changes of a refresh, and refresh its nodes until their findings are settled."""
        self.statistics.stateReads += refresh.asked
        if self.fabric is not fabric or self.diagnosis.isResuming:  # a sweep has seen it, or will
            return
        now = self._reactor.seconds()
        if refresh.changed and self.topologyWatch.hasLostSilentNode():
            refresh.unclear = "a silent node has lost a link"
        if refresh.unclear:
            _log.debug("a sweep is needed: {why}", why=refresh.unclear)
            self._sweepSoon(self._settings.settleSeconds)
        if refresh.changed or refresh.isIncomplete or wasSign:
            self.diagnosis.touch(refresh.touched)
            if refresh.isRelinked:
                await self._nodesChanged(loop, fabric, now)
            elif refresh.changed:
                self.diagnosis.version += 1
                await self._follow(loop, fabric, now)
            with loop.step("checking what has changed"):
                await self.diagnosis.judgeTouched()
        again = {node.guid for node in refresh.changed}
        if self.diagnosis.isTouchedPending:
            again |= refresh.touched
        for guid in again & fabric.nodes.keys():
            self._sign(guid)

    # Rounds.

    def _untilRound(self) -> float:
        """Return the time until the next round; a longer round skips intervals."""
        interval = self._settings.intervalSeconds
        passed = self._reactor.seconds() - self._roundBegan
        overruns = int(passed / interval)
        self.statistics.overruns += overruns
        return (overruns + 1) * interval - passed

    async def _runRound(self) -> bool:
        """Read all counters once; False while no node can be queried."""
        self._roundBegan = self._reactor.seconds()
        self._reportSelf()
        fabric = self.fabric
        if self.isOffline() or fabric is None:
            return False
        asking = Deferred.fromCoroutine(self._askManager())
        try:
            await self._round(fabric, asking)
        finally:
            asking.addErrback(lambda _: None)
            asking.cancel()
        return True

    async def _round(self, fabric: Fabric, asking: Deferred[None]) -> None:
        """Read the counters of all nodes that are due, and the states of some."""
        reader, statistics, step = self._reader, self.statistics, self.rounds.step
        began, version = self._reactor.seconds(), self.version
        nodes = [node for node in fabric.nodes.values() if node.lid]
        # Nodes that rest after silences are not asked in this round, and cannot be silent in it.
        due = [node.guid for node in nodes if not node.isLocal and reader.backOff.isDue(node.guid, began)]
        await self._pause(fabric)
        stateNodes = self._nextStates(fabric)
        schedule = MADSchedule(self._agent, self._settings.maxOutstanding)
        refresh = self._refreshOf(schedule, fabric)
        await self._pause(fabric)
        try:
            with step("reading counters"):
                await reader.read(nodes, version, stateNodes)
            with step("reading states"):
                await self._readStates(schedule, refresh, nodes, stateNodes)
        finally:
            statistics.requests, statistics.timeouts = self._agent.sent, self._agent.late
            if self._collectors is not None:
                statistics.requests += self._collectors.sent
                statistics.timeouts += self._collectors.late
        with step("following changes"):
            await self._refreshed(self.rounds, refresh, fabric, wasSign=False)
        if self._collectors is not None:
            others = (node for node in nodes if not node.isLocal and reader.wasHeard(node.guid))
            await self._heard(await anyAnswers(self._agent, others, self._settings.timeoutSeconds), fabric)
        elif due:
            await self._heard(any(map(reader.wasHeard, due)), fabric)
        statistics.turns += 1
        statistics.turnSeconds = self._reactor.seconds() - began
        with step("asking the master subnet manager"):
            await asking
        if not self._areLIDsDoubtful:  # what was read by a LID may be another node's
            with step("judging counters"):
                self._judgeCounters()
            await self._pause(fabric)
        if self.diagnosis.isUnsettled:
            with step("checking what has changed"):
                await self.diagnosis.judgeTouched()
        with step("reporting a round"):
            await maybeDeferred(self._onRound, began)
        with step("freeing former nodes"):
            await self._replaced.free()

    async def _heard(self, isHeard: bool, fabric: Fabric) -> None:
        """Process whether another node than the local one has answered this process in a round."""
        if not isHeard and await self._isCutOff(fabric):
            self._cutOff()
            self.sweeps.cancel()  # it would wait for each node that it knows
            self.sweeps.runIn(self._settings.settleSeconds)
            return
        if not isHeard:  # the local link may be down, or the local port have no LID
            for meter in self.corrections.meters.values():
                meter.missed()
            self._sweepSoon(0.0)
        elif self._isUnheard:  # the others rest, and were not at fault
            self._reader.backOff.clear()
        self._isUnheard = not isHeard

    async def _readStates(
        self, schedule: MADSchedule, refresh: Refresh, nodes: list[Node], stateNodes: set[GUID]
    ) -> None:
        """Read the states of changed nodes, and optional counters of C{stateNodes}."""
        changed = [node for node in nodes if node.guid in self._reader.changed]
        # This process reads optional counters itself: nodes that collectors reach would seem to have none.
        wereRead = [node for node in nodes if node.guid in stateNodes and not self._isUnheard]
        optional = []
        for number, node in enumerate(wereRead, 1):
            optional += [(one, node) for one in self._optional if one.isWanted(node)]
            if not number % _SWITCHES:
                await deferLater(self._reactor, 0.0)
        end, seconds = self._agent.port.endPort, self._settings.timeoutSeconds

        async def readState(node: Node) -> None:
            with self.rounds.step("reading states"), suppress(MADFailure):  # counters show if it is silent
                await refresh.refresh(node)

        async def readOptional(
            reader: DetailReader | CorrectionReader | CongestionReader, node: Node
        ) -> None:
            with self.rounds.step("reading optional counters"):
                await reader.read(node, schedule, end, seconds)

        reasons = (readOptional(reader, node) for reader, node in optional)
        await schedule.run(mqueue=chain(map(readState, changed), reasons))
        await refresh.finish()

    async def _askManager(self) -> None:
        """Query the state of the master SM, and subscribe to notices again when it has changed."""
        watch, end = self.manager, self._agent.port.endPort
        if not end.smLID:
            watch.silent(0, "")
        else:
            try:
                path, seconds = toLID(end, end.smLID), self._settings.timeoutSeconds
                info = await self._agent.SubnGet(SMInfo, path, timeoutSeconds=seconds, retries=RETRIES)
            except MADFailure as error:
                if self.fabric is not None and await self._isCutOff(self.fabric):
                    return
                watch.silent(end.smLID, str(error))
            else:
                if watch.answered(end.smLID, info, self._reactor.seconds()):
                    self._areLIDsDoubtful = True
                    self._sweepSoon(self._settings.settleSeconds)
                    if self._subscription is not None:
                        self._subscription.renew()
        self.findings.report(_MASTER, watch.findings(self._reactor.seconds()))

    def _nextStates(self, fabric: Fabric) -> set[GUID]:
        """Return the nodes whose states are read in this round: all nodes in rotation."""
        settings = self._settings
        share = settings.intervalSeconds / settings.stateSeconds
        count = min(len(self._rotation), int(len(self._rotation) * share) + 1)
        chosen = {node.guid for node in list(self._rotation)[:count]}
        self._rotation.rotate(-count)
        return chosen

    # Findings.

    def _judgeCounters(self) -> None:
        """Report findings of counters, and of what has read them."""
        self.diagnosis.judgeCounters(self._reader.silent(), self._agent.port.name if self._isUnheard else "")
        collectors = self._collectors  # a former process may have had some
        self.findings.report("collectors", [] if collectors is None else collectors.findings())
        assert self.fabric is not None  # its counters were read
        congested = congestionFindings(self.fabric, self.congestion.current(), self.load)
        self.findings.report(
            *(_CONGESTION, congested + self.congestion.findings()),
            isUnknown=lambda key: self._isUnheard,
        )

    def sent(self, port: Port) -> float | None:
        """Return the octets of data that a port sends per second; None if unknown."""
        meter = self.meters.get((port.node.guid, port.number))
        return None if meter is None else meter.rate("portXmitData")

    def load(self, port: Port) -> float | None:
        """Return the share of its data rate that a port sends; None if unknown."""
        rate = self.sent(port)
        return None if rate is None else shareOf(port, rate)
