"""
Poller of a fabric: sweeps, readings and notices, on a reactor, for as long as a monitor runs.

Counters are read once in an interval, those of ports without a link now and then. Traps and counters say
where something has changed, and only those nodes are asked again. States of ports are looked at in turn, as
well: a subnet manager consumes PortStateChange, and drops repeated traps. A whole sweep now and then, in the
background, finds the rest.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from itertools import chain
from typing import Final

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import DeviceUnavailable, RDMAError
from txrdma.fabric.discovery import Sweep
from txrdma.fabric.excess import LEFT_OUT
from txrdma.fabric.health import Finding, managerFindings
from txrdma.fabric.model import Fabric, Node
from txrdma.fabric.refreshing import hasOtherLID, leadingTo, Refresh
from txrdma.iba.types import GID, GUID
from txrdma.mad.agent import MADAgent
from txrdma.mad.errors import MADFailure
from txrdma.mad.layouts.messages import MADRequest, Notice
from txrdma.mad.layouts.smp import SMInfo
from txrdma.mad.layouts.traps import detailsOf, Trap
from txrdma.mad.paths import toLID
from txrdma.mad.portwatch import PortEvent, PortLost
from txrdma.mad.schedule import MADSchedule
from txrdma.mad.server import MADServer
from txrdma.mad.subscription import Subscription
from txrdma.monitor.corrections import CorrectionReader
from txrdma.monitor.counterreader import CounterReader
from txrdma.monitor.details import DetailReader
from txrdma.monitor.judging import ErrorJudge, fabricFindings
from txrdma.monitor.ledger import Key, Ledger, LedgerEvent, LedgerRules
from txrdma.monitor.managers import ManagerWatch
from txrdma.monitor.presence import Presence
from txrdma.monitor.settings import PollerSettings
from txrdma.monitor.statistics import PollerStatistics

_log = Logger()

_SWEEP: Final = "sweep"
_COUNTERS: Final = "counters"
_MONITOR: Final = "monitor"
_MANAGERS: Final = "managers"
_MASTER: Final = "master"
_CHANGES: Final = frozenset(
    (Trap.GID_IN_SERVICE, Trap.GID_OUT_OF_SERVICE, Trap.LINK_STATE_CHANGE, Trap.LOCAL_CHANGES)
    + (Trap.SYSTEM_IMAGE_GUID_CHANGE,)
)
"""Traps after which the fabric may have other nodes or links."""

_FEWEST_NODES: Final = 2
"""Fewest nodes of a fabric with a link."""

_RETRIES: Final = 2
_LATER_SHARE: Final = 4
"""Part of the datagrams on their way that sweeps after the first one may take."""

_LEAST_OUTSTANDING: Final = 8
UNHEARD_SECONDS: Final = 60.0
"""Seconds without a standing subscription after which that is reported."""


DEFAULT_RULES: Final = LedgerRules({_SWEEP: 1.0, _MANAGERS: 1.0, "tables": 1.0})
"""Rules of findings: a sweep's have to be there in a second look, since datagrams are lost."""


class FabricPoller:
    """
    Poller of one fabric, from L{start} to L{stop}.

    @ivar fabric: the fabric as it is known at present; None before the first sweep.
    @ivar meters: meters of all ports whose counters were read, by place. C{details} has causes of what some
        of them have dropped, C{corrections} the counters of error correction.
    @ivar ledger: findings. C{presence} knows nodes and links that are gone, C{manager} the master SM.
    @ivar statistics: work so far.
    @ivar version: number that grows with each change of C{fabric}, its ports' states included.
    """

    def __init__(
        self,
        reactor: IReactorTime,
        agent: MADAgent,
        settings: PollerSettings | None = None,
        rules: LedgerRules = DEFAULT_RULES,
        judge: ErrorJudge | None = None,
        notify: Callable[[LedgerEvent], object] = lambda event: None,
        onRound: Callable[[float], object] = lambda began: None,
        check: Callable[[Fabric], list[Finding]] = fabricFindings,
    ) -> None:
        """
        @param agent: asks for the poller, and is not closed by it. One that can open its port again is waited
            for when the port is lost.
        @param notify: called with each finding that is raised or cleared.
        @param onRound: called after each round of readings with the time at which it began.
        @param check: returns the faults that the answers to a sweep show.
        """
        self.fabric: Fabric | None = None
        self.ledger = Ledger(rules)
        self.presence = Presence()
        self.manager = ManagerWatch()
        self.statistics = PollerStatistics()
        self.version = 0
        self._reactor = reactor
        self._agent = agent
        self._settings = settings = settings or PollerSettings()
        self._judge = ErrorJudge() if judge is None else judge
        self._check = check
        self._notify = notify
        self._onRound = onRound
        self._reader = CounterReader(
            *(reactor, agent, self._judge, settings.intervalSeconds, settings.timeoutSeconds, _RETRIES),
            settings.maxOutstanding,
            *(self._sign, self._missed, self._mistook),
        )
        self.meters = self._reader.meters
        self.details = DetailReader(self.meters)
        self.corrections = CorrectionReader(self.meters, self._judge, reactor.seconds)
        self._optional = (self.details, self.corrections)
        self._rotation: deque[Node] = deque()
        self._signs: dict[GUID, None] = {}
        self._strangers: set[GUID] = set()
        self._touched: set[GUID] = set()
        self._unheardSince = self._sweptAt = 0.0
        self._running: dict[Deferred[None], None] = {}
        self._isReading = self._isSweeping = self._isStarted = self._isBlind = self._isDoubtful = False
        self._lost = ""
        self._turnTimer: IDelayedCall | None = None
        self._sweepTimer: IDelayedCall | None = None
        self._signTimer: IDelayedCall | None = None
        self._unwatch: Callable[[], None] = lambda: None
        self._server: MADServer | None = None
        self._subscription: Subscription | None = None

    def start(self) -> None:
        """
        Sweep, subscribe to notices, and poll from now on.

        @raise txrdma.error.ResourceExhausted: another program on this host gets the notices.
        """
        self._isStarted = True
        self._unwatch = self._agent.watch(self._happened)
        if self._settings.wantsNotices:
            self._server = MADServer(self._agent)
            self._subscription = Subscription(self._reactor, self._agent, self._server, None, self._heard)
            self._subscription.start()
        self._sweepIn(0.0)
        self._turnTimer = self._reactor.callLater(self._settings.intervalSeconds, self._turn)

    def change(
        self, settings: PollerSettings, rules: LedgerRules, check: Callable[[Fabric], list[Finding]]
    ) -> None:
        """
        Poll by other settings from the next round on; all that is known stays.

        Whether it subscribes to notices is decided by L{start}.
        """
        self._settings = settings
        self._check = check
        self.ledger.change(rules)
        self._reader.change(settings.intervalSeconds, settings.timeoutSeconds, settings.maxOutstanding)
        self._judgeTouched()

    def stop(self) -> Deferred[None]:
        """End polling; fires when the SA has answered to the end of the subscription, or has not in time."""
        self._isStarted = False
        self._unwatch()
        for timer in (self._turnTimer, self._sweepTimer, self._signTimer):
            if timer is not None and timer.active():
                timer.cancel()
        for work in list(self._running):
            work.cancel()
        return Deferred.fromCoroutine(self._leave())

    async def _leave(self) -> None:
        if self._subscription is not None:
            await self._subscription.stop()
        if self._server is not None:
            self._server.stop()

    def _run(self, work: Deferred[None]) -> None:
        """Keep work that is to be cancelled at the end, and log what breaks it."""
        self._running[work] = None

        def ended(result: object) -> None:
            del self._running[work]
            if isinstance(result, Failure) and not result.check(CancelledError, RDMAError):
                _log.failure("while polling the fabric", result)

        work.addBoth(ended)

    # The port.

    def _happened(self, event: PortEvent) -> None:
        """Handle the loss, the return or a change of our own port."""
        if isinstance(event, PortLost):
            self._lost = event.reason
            self._unread()
            for work in list(self._running):
                work.cancel()
        else:
            if self._lost:
                self._lost = ""
                self._reader.backOff.clear()
            self._sweepIn(0.0)
        self._tellPort()

    def _unread(self) -> None:
        """Note that no port can be read at present."""
        self._reader.missed()
        self.corrections.missed()

    def _isDeaf(self) -> bool:
        """True while nobody can be asked, or heard."""
        return bool(self._lost) or self._isBlind or self.fabric is None

    def _tellPort(self) -> None:
        name, now = self._agent.port.name, self._reactor.seconds()
        found = [Finding("port-lost", name, self._lost)] if self._lost else []
        if self._subscription is None or self._subscription.isStanding or self._isDeaf():
            self._unheardSince = now
        elif now - self._unheardSince >= UNHEARD_SECONDS:
            found.append(Finding("no-notices", name, "the subnet administration accepts no subscription"))
        self._observe(_MONITOR, found)

    # Sweeps.

    def _sweepIn(self, seconds: float) -> None:
        """Sweep after so many seconds, unless a sweep is due earlier."""
        at = self._reactor.seconds() + seconds
        timer = self._sweepTimer
        if timer is not None and timer.active():
            if timer.getTime() <= at:
                return
            timer.cancel()
        self._sweepTimer = self._reactor.callLater(seconds, self._sweepNow)

    def _sweepNow(self) -> None:
        if self._lost or not self._isStarted:
            return
        if self._isSweeping:
            self._sweepIn(self._settings.settleSeconds)
            return
        self._isSweeping = True
        self._run(Deferred.fromCoroutine(self._sweep()))

    async def _sweep(self) -> None:
        began = self._reactor.seconds()
        settings = self._settings
        most, hops, nodes = settings.maxOutstanding, settings.maxHops, settings.mostNodes
        if self.fabric is None:
            sweep = Sweep(self._agent, most, hops, mostNodes=nodes, isWhole=True)
        else:  # in the background
            most = max(_LEAST_OUTSTANDING, most // _LATER_SHARE)
            sweep = Sweep(self._agent, most, hops, maxPerNode=1, mostNodes=nodes, isWhole=True)
        managers: list[Finding] = []
        try:
            fabric = await sweep.run()
            if len(fabric.nodes) >= _FEWEST_NODES:
                managers = await managerFindings(self._agent, self._agent.port.endPort, fabric)
        except RDMAError:  # our port is gone: its return begins a sweep, too
            self._sweepIn(self._settings.settleSeconds)
            raise
        finally:
            self._isSweeping = False
        now = self._reactor.seconds()
        statistics = self.statistics
        statistics.sweeps += 1
        statistics.sweepSeconds = now - began
        self._sweptAt = now
        if len(fabric.nodes) < _FEWEST_NODES and self.presence.present:
            self._blind(fabric)
            self._sweepIn(self._settings.settleSeconds)
        elif sweep.bounds.isFull and self.fabric is not None:
            self._overwhelmed(fabric)
            self._sweepIn(self._untilSweep(now))
        else:
            self._swept(fabric, now)
            self._observe(_MANAGERS, self.manager.unwatched(managers))
            self._sweepIn(self._untilSweep(now))

    def _blind(self, fabric: Fabric) -> None:
        """Handle a sweep that saw nothing beyond our own port: the other nodes are not gone, we are."""
        self._isBlind = True
        self._unread()
        self._observe(_SWEEP, self._check(fabric), isUnknown=lambda key: True)

    def _overwhelmed(self, fabric: Fabric) -> None:
        """Handle a sweep that came to its bounds: of nodes that it did not find, none has to be gone."""
        found = [Finding(one.kind, one.where, one.text) for one in fabric.problems if one.kind == LEFT_OUT]
        self._observe(_SWEEP, found, isUnknown=lambda key: True)

    def _untilSweep(self, now: float) -> float:
        """Time until the next sweep: until it settles a finding, with pauses of four times its duration."""
        usual = self._settings.sweepSeconds
        waits = [self.ledger.settlesIn(source, now) for source in (_SWEEP, _MANAGERS)]
        settles = min((wait for wait in waits if wait is not None), default=usual)
        return min(usual, max(settles, self._settings.settleSeconds, 4 * self.statistics.sweepSeconds))

    def _swept(self, fabric: Fabric, now: float) -> None:
        self.fabric = fabric
        self._touched.clear()
        self._isDoubtful = False
        if self._isBlind:
            self._isBlind = False
            self._reader.backOff.clear()
        self._entered(fabric, now)
        self._observe(_SWEEP, self._check(fabric) + self.presence.findings())

    def _entered(self, fabric: Fabric, now: float) -> None:
        """Follow nodes and links that have come and gone."""
        self.version += 1
        for guid in self.presence.swept(fabric, now):
            self._judge.restarted(guid, now)
            self._reader.forget(guid)
        self._reader.keep(fabric.nodes, self.presence.nodes)
        self._judge.keep(fabric.nodes.keys() | self.presence.nodes.keys())
        for one in self._optional:
            one.keep(fabric.nodes)
        self._rotation = deque(node for node in fabric.ordered() if node.lid)

    def _judgeTouched(self) -> None:
        """
        Judge nodes that were looked at since the last sweep; of others only what is there no more.

        A sweep's own findings wait for the next sweep, since datagrams are lost.
        """
        if self.fabric is None:
            return
        touched = {str(guid) for guid in self._touched}
        opened = {key[1:] for key in self.ledger.open if key.source == _SWEEP}
        found = []
        for one in self._check(self.fabric) + self.presence.findings():
            place = one.where if one.guid is None else str(one.guid)
            if place in touched or (one.kind, place, one.port) in opened:
                found.append(one)
        self._observe(_SWEEP, found, isUnknown=lambda key: key not in self.ledger.open)

    # Signs of change.

    def _heard(self, notice: Notice, request: MADRequest) -> None:
        """Look at the node that a notice is about; sweep if it is not known."""
        self.statistics.notices += 1
        if notice.trapNumber not in _CHANGES or self.fabric is None:
            return
        details = detailsOf(notice)
        gid = getattr(details, "gid", None)
        node: Node | None
        if not isinstance(gid, GID):
            port = self.fabric.byLID(getattr(details, "lid", 0))
            node = None if port is None else port.node
        else:
            node = leadingTo(self.fabric.byGUID(gid.guid))
            if node is None:  # gone is what is not known; what has come may be found by its switch's trap
                if notice.trapNumber == Trap.GID_IN_SERVICE:
                    self._strangers.add(gid.guid)
                    self._signIn()
                return
        if node is None:
            self._sweepIn(self._settings.settleSeconds)
        else:
            self._sign(node.guid)

    def _missed(self, guid: GUID) -> None:
        """Look by its route for a node that is silent for the first time: it may have got another LID."""
        node = None if self.fabric is None else self.fabric.nodes.get(guid)
        if node is not None:
            self._run(Deferred.fromCoroutine(self._seek(node)))

    async def _seek(self, node: Node) -> None:
        if await hasOtherLID(self._agent, node, self._settings.timeoutSeconds, _RETRIES):
            self._reader.backOff.answered(node.guid)
            self._mistook(node.guid)

    def _mistook(self, guid: GUID) -> None:
        """Sweep soon, with the usual pauses: a node has another LID than is known here, and so may others."""
        self._isDoubtful = True
        rested = self._reactor.seconds() - self._sweptAt
        self._sweepIn(max(0.0, 4 * self.statistics.sweepSeconds - rested))

    def _sign(self, guid: GUID) -> None:
        """Look at a node soon, together with others that give a sign of change."""
        self._signs[guid] = None
        self._signIn()

    def _signIn(self) -> None:
        if self._signTimer is None or not self._signTimer.active():
            self._signTimer = self._reactor.callLater(self._settings.settleSeconds, self._lookAtSigns)

    def _lookAtSigns(self) -> None:
        fabric = self.fabric
        if not self._isStarted or self._isDeaf() or fabric is None:
            self._signs.clear()
        elif self._isSweeping:
            self._signTimer = self._reactor.callLater(self._settings.settleSeconds, self._lookAtSigns)
        else:
            nodes = [fabric.nodes[guid] for guid in self._signs if guid in fabric.nodes]
            self._signs.clear()
            self._run(Deferred.fromCoroutine(self._refresh(fabric, nodes)))

    def _refreshOf(self, schedule: MADSchedule, fabric: Fabric) -> Refresh:
        end, seconds = self._agent.port.endPort, self._settings.timeoutSeconds
        return Refresh(schedule, end, fabric, seconds, _RETRIES)

    async def _refresh(self, fabric: Fabric, nodes: list[Node]) -> None:
        """Ask nodes with a sign of change again."""
        schedule = MADSchedule(self._agent, self._settings.maxOutstanding)
        refresh = self._refreshOf(schedule, fabric)
        self.statistics.refreshes += 1

        async def look(node: Node) -> None:
            try:
                await refresh.look(node, isThorough=True)
            except DeviceUnavailable:
                raise
            except MADFailure as error:
                refresh.unclear = f"{node}: {error}"

        await schedule.run(mqueue=(look(node) for node in nodes))
        await refresh.finish()
        strangers, self._strangers = self._strangers, set()
        if any(fabric.byGUID(guid) is None for guid in strangers):
            refresh.unclear = "somebody is new"
        self._refreshed(refresh, fabric, wasSign=True)

    def _refreshed(self, refresh: Refresh, fabric: Fabric, wasSign: bool) -> None:
        """Take what a refresh has changed; look again at that place, until that is settled."""
        self.statistics.looks += refresh.asked
        if self.fabric is not fabric:  # a sweep has seen it
            return
        now = self._reactor.seconds()
        if refresh.unclear:
            _log.debug("a sweep is needed: {why}", why=refresh.unclear)
            self._sweepIn(self._settings.settleSeconds)
        if refresh.changed or wasSign:
            self._touched |= refresh.touched
            if refresh.isRelinked:
                self._entered(fabric, now)
            elif refresh.changed:
                self.version += 1
            self._judgeTouched()
        again = {node.guid for node in refresh.changed}
        if self.ledger.isPending(_SWEEP, set(map(str, self._touched))):
            again |= refresh.touched
        for guid in again & fabric.nodes.keys():
            self._sign(guid)

    # Rounds.

    def _turn(self) -> None:
        self._turnTimer = self._reactor.callLater(self._settings.intervalSeconds, self._turn)
        self._tellPort()
        if self._isDeaf() or self.fabric is None:
            return
        if self._isReading:
            self.statistics.overruns += 1
            return
        self._isReading = True
        self._run(asking := Deferred.fromCoroutine(self._askManager()))
        self._run(Deferred.fromCoroutine(self._round(self.fabric, asking)))

    async def _round(self, fabric: Fabric, asking: Deferred[None]) -> None:
        """Read the counters of all nodes that are due, and look at the states of some."""
        reader, statistics = self._reader, self.statistics
        began, silences, looks = self._reactor.seconds(), reader.silences, reader.looks
        nodes = [node for node in fabric.nodes.values() if node.lid]
        due = sum(reader.backOff.isDue(node.guid, began) for node in nodes)
        toLook = self._nextToLook(fabric)
        schedule = MADSchedule(self._agent, self._settings.maxOutstanding)
        refresh = self._refreshOf(schedule, fabric)
        try:
            await reader.read(nodes, self.version, toLook)
            changed = [node for node in nodes if node.guid in reader.changed]
            looked = [node for node in nodes if node.guid in toLook]
            optional = [(one, node) for one in self._optional for node in looked if one.isWanted(node)]
            how = schedule, self._agent.port.endPort, self._settings.timeoutSeconds, _RETRIES
            states = (self._look(refresh, node) for node in changed)
            reasons = (reader.look(node, *how) for reader, node in optional)
            await schedule.run(mqueue=chain(states, reasons))
            await refresh.finish()
        finally:
            self._isReading = False
            statistics.readings, statistics.silences = reader.readings, reader.silences
            statistics.looks += reader.looks - looks
            statistics.requests, statistics.timeouts = self._agent.sent, self._agent.late
        self._refreshed(refresh, fabric, wasSign=False)
        if due > 1 and reader.silences - silences >= due - 1:
            self._sweepIn(0.0)  # who alone answers is we: it may be our own link
        statistics.turns += 1
        statistics.turnSeconds = self._reactor.seconds() - began
        await asking
        if not self._isDoubtful:  # what was read by a LID may be another node's
            self._judgeCounters(self.fabric or fabric)
        if self.ledger.isClearing(_SWEEP):
            self._judgeTouched()
        self._onRound(began)

    async def _askManager(self) -> None:
        """Ask the master SM for its state; a new one has to be told what we want to hear."""
        watch, end = self.manager, self._agent.port.endPort
        if not end.smLID:
            watch.silent(0, "")
        else:
            try:
                path, seconds = toLID(end, end.smLID), self._settings.timeoutSeconds
                info = await self._agent.SubnGet(SMInfo, path, timeoutSeconds=seconds, retries=_RETRIES)
            except DeviceUnavailable:
                raise
            except MADFailure as error:
                watch.silent(end.smLID, str(error))
            else:
                if watch.told(end.smLID, info, self._reactor.seconds()):
                    self._isDoubtful = True
                    self._sweepIn(self._settings.settleSeconds)
                    if self._subscription is not None:
                        self._subscription.renew()
        self._observe(_MASTER, watch.findings(self._reactor.seconds()))

    def _nextToLook(self, fabric: Fabric) -> set[GUID]:
        """Nodes whose states are looked at in this round: all in turn."""
        settings = self._settings
        share = settings.intervalSeconds / settings.lookSeconds
        count = min(len(self._rotation), int(len(self._rotation) * share) + 1)
        chosen = {node.guid for node in list(self._rotation)[:count]}
        self._rotation.rotate(-count)
        return chosen

    @staticmethod
    async def _look(refresh: Refresh, node: Node) -> None:
        """Enter what has changed at a node's ports."""
        try:
            await refresh.look(node)
        except DeviceUnavailable:
            raise
        except MADFailure:  # its counters tell whether it is silent
            return

    # Findings.

    def _judgeCounters(self, fabric: Fabric) -> None:
        now = self._reactor.seconds()
        silent = [guid for guid in fabric.nodes if self._reader.isSilent(guid)]
        found = self._judge.findings(fabric, now, self.presence.links)
        found += [
            Finding("node-silent", str(fabric.nodes[guid]), "it does not answer for its counters", guid)
            for guid in silent
        ]
        self._observe(_COUNTERS, found, {str(guid) for guid in silent})

    def report(self, source: str, found: Iterable[Finding]) -> None:
        """
        Enter findings of another part of a monitor.

        @param source: name of that part.
        @param found: all that it finds now: what it found before and finds no more is cleared in time.
        """
        self._observe(source, found)

    def _observe(
        self,
        source: str,
        found: Iterable[Finding],
        silent: Collection[str] = (),
        isUnknown: Callable[[Key], bool] = lambda key: False,
    ) -> None:
        """
        Enter all that a source finds now.

        @param silent: GUIDs of nodes that could not be asked, as text.
        @param isUnknown: returns True for findings that could not be looked for otherwise.
        """
        now = self._reactor.seconds()
        events = self.ledger.observe(
            *(source, found, now),
            lambda key: isUnknown(key) or (key.place in silent and key.kind != "node-silent"),
        )
        for event in events:
            try:
                self._notify(event)
            except Exception:
                _log.failure("while {event!r} was told", event=event)
