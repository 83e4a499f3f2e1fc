"""
Poller of a fabric: sweeps, readings and notices, on a reactor, for as long as a monitor runs.

Counters are read once in an interval, those of ports without a link now and then. A whole sweep finds what
came and went. Traps say when one is due, and so do states of ports, of which some are looked at in each
interval: a subnet manager consumes PortStateChange, and drops repeated traps.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable
from typing import Final

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import DeviceUnavailable, RDMAError
from txrdma.fabric.discovery import Sweep
from txrdma.fabric.errorcounters import countingPorts
from txrdma.fabric.health import Finding, hasLink
from txrdma.fabric.model import Fabric, Node, Port
from txrdma.iba.types import GUID
from txrdma.mad.agent import MADAgent
from txrdma.mad.errors import MADError, MADFailure
from txrdma.mad.layouts.messages import MADRequest, Notice
from txrdma.mad.layouts.smp import PortInfo
from txrdma.mad.layouts.traps import Trap
from txrdma.mad.paths import toLID
from txrdma.mad.portwatch import PortEvent, PortLost
from txrdma.mad.schedule import MADSchedule
from txrdma.mad.server import MADServer
from txrdma.mad.subscription import Subscription
from txrdma.monitor._counters import Meter
from txrdma.monitor._pacing import BackOff
from txrdma.monitor.judging import ErrorJudge, fabricFindings, Place
from txrdma.monitor.ledger import Ledger, LedgerEvent, LedgerRules
from txrdma.monitor.presence import Presence
from txrdma.monitor.readings import kindOf, ReadingKind
from txrdma.rawfields import peek, span
from txrdma.values import frozen, record

_log = Logger()

_SWEEP: Final = "sweep"
_COUNTERS: Final = "counters"
_MONITOR: Final = "monitor"
_MOST_BACK_OFF: Final = 300.0
_SILENT_TIMES: Final = 3
"""Intervals in a row without an answer after which a node is reported as silent."""

_CHANGES: Final = frozenset(
    (Trap.GID_IN_SERVICE, Trap.GID_OUT_OF_SERVICE, Trap.LINK_STATE_CHANGE, Trap.LOCAL_CHANGES)
    + (Trap.SYSTEM_IMAGE_GUID_CHANGE,)
)
"""Traps after which the fabric may have other nodes or links."""

_FEWEST_NODES: Final = 2
"""Fewest nodes of a fabric with a link."""

_RETRIES: Final = 2
_ARRIVAL: Final = span(PortInfo, "localPortNum")
_state, _physicalState = peek(PortInfo, "portState"), peek(PortInfo, "portPhysicalState")


@frozen
class PollerSettings:
    """
    Settings of a poller: how often it looks at what.

    @ivar intervalSeconds: time between readings of the counters.
    @ivar sweepSeconds: time between whole sweeps while nothing seems to change.
    @ivar settleSeconds: time from a sign of change to a sweep, and between sweeps until their findings are
        settled.
    @ivar lookSeconds: time in which the states of all ports are looked at once.
    @ivar timeoutSeconds: time to wait for the answer of a node, three times.
    @ivar maxOutstanding: most datagrams on their way at a time; one to a node.
    @ivar wantsNotices: subscribe to the notices of the SA.
    """

    intervalSeconds: float = 10.0
    sweepSeconds: float = 300.0
    settleSeconds: float = 2.0
    lookSeconds: float = 60.0
    timeoutSeconds: float = 0.5
    maxOutstanding: int = 64
    wantsNotices: bool = True


DEFAULT_RULES: Final = LedgerRules({_SWEEP: 1.0})
"""Rules of findings: a sweep's have to be there in a second one, since datagrams are lost."""


@record
class PollerStatistics:
    """
    Work of a poller so far.

    @ivar readings: ports whose counters were read.
    @ivar silences: nodes that did not answer when they were asked.
    @ivar turns: rounds of readings; C{overruns} are intervals in which the round before was not done yet.
    @ivar turnSeconds: duration of the last round; C{sweepSeconds} that of the last sweep.
    @ivar looks: ports whose states were looked at between sweeps.
    @ivar notices: notices that the SA has reported.
    """

    readings: int = 0
    silences: int = 0
    turns: int = 0
    overruns: int = 0
    turnSeconds: float = 0.0
    sweeps: int = 0
    sweepSeconds: float = 0.0
    looks: int = 0
    notices: int = 0


class FabricPoller:
    """
    Poller of one fabric, from L{start} to L{stop}.

    @ivar fabric: the fabric as the last whole sweep found it, with later states of ports; None before the
        first.
    @ivar meters: meters of all ports whose counters were read, by place.
    @ivar ledger: findings. C{presence} knows nodes and links that are gone.
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
    ) -> None:
        """
        @param agent: asks for the poller, and is not closed by it. One that can open its port again is waited
            for when the port is lost.
        @param notify: called with each finding that is raised or cleared.
        @param onRound: called after each round of readings with the time at which it began.
        """
        self.fabric: Fabric | None = None
        self.meters: dict[Place, Meter] = {}
        self.ledger = Ledger(rules)
        self.presence = Presence()
        self.statistics = PollerStatistics()
        self.version = 0
        self._reactor = reactor
        self._agent = agent
        self._settings = settings = settings or PollerSettings()
        self._judge = ErrorJudge() if judge is None else judge
        self._notify = notify
        self._onRound = onRound
        self._backOff: BackOff[GUID] = BackOff(settings.intervalSeconds, _MOST_BACK_OFF)
        self._kinds: dict[GUID, ReadingKind] = {}
        self._rotation: deque[Node] = deque()
        self._toLook: dict[GUID, None] = {}
        self._running: dict[Deferred[None], None] = {}
        self._isReading = self._isSweeping = self._isStarted = self._isBlind = False
        self._lost = ""
        self._turnTimer: IDelayedCall | None = None
        self._sweepTimer: IDelayedCall | None = None
        self._unwatch: Callable[[], None] = lambda: None
        self._server: MADServer | None = None
        self._subscription: Subscription | None = None

    # Life.

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

    def stop(self) -> Deferred[None]:
        """End polling; fires when the SA has answered to the end of the subscription, or has not in time."""
        self._isStarted = False
        self._unwatch()
        for timer in (self._turnTimer, self._sweepTimer):
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
            for meter in self.meters.values():
                meter.missed()
            for work in list(self._running):
                work.cancel()
        else:
            if self._lost:
                self._lost = ""
                self._backOff.clear()
            self._sweepIn(0.0)
        self._tellPort()

    def _tellPort(self) -> None:
        name = self._agent.port.name
        found = [Finding("port-lost", name, self._lost)] if self._lost else []
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
        try:
            fabric = await Sweep(self._agent, self._settings.maxOutstanding).run()
        except RDMAError:  # our port is gone: its return begins a sweep, too
            self._sweepIn(self._settings.settleSeconds)
            raise
        finally:
            self._isSweeping = False
        now = self._reactor.seconds()
        statistics = self.statistics
        statistics.sweeps += 1
        statistics.sweepSeconds = now - began
        if len(fabric.nodes) < _FEWEST_NODES and self.fabric is not None:
            self._blind(fabric)
            self._sweepIn(self._settings.settleSeconds)
        else:
            self._swept(fabric, now)
            self._sweepIn(self._untilSweep(now))

    def _blind(self, fabric: Fabric) -> None:
        """Handle a sweep that saw nothing beyond our own port: the other nodes are not gone, we are."""
        self._isBlind = True
        for meter in self.meters.values():
            meter.missed()
        self._observe(_SWEEP, fabricFindings(fabric), isBlind=True)

    def _untilSweep(self, now: float) -> float:
        """Time until the next sweep: until it settles a finding, with pauses of four times its duration."""
        usual, settles = self._settings.sweepSeconds, self.ledger.settlesIn(_SWEEP, now)
        if settles is None:
            return usual
        return min(usual, max(settles, self._settings.settleSeconds, 4 * self.statistics.sweepSeconds))

    def _swept(self, fabric: Fabric, now: float) -> None:
        self.fabric = fabric
        self.version += 1
        if self._isBlind:
            self._isBlind = False
            self._backOff.clear()
        for guid in self.presence.swept(fabric, now):
            self._judge.restarted(guid, now)
            self._backOff.answered(guid)
            self._kinds.pop(guid, None)
        known, gone = fabric.nodes, self.presence.nodes
        for place, meter in list(self.meters.items()):
            if place[0] not in known:
                meter.missed()
                if place[0] not in gone:
                    del self.meters[place]
        for guid in [guid for guid in self._kinds if guid not in known and guid not in gone]:
            del self._kinds[guid]
            self._backOff.answered(guid)
        self._rotation = deque(node for node in fabric.ordered() if node.lid)
        self._judgeFabric()

    def _judgeFabric(self) -> None:
        if self.fabric is not None:
            self._observe(_SWEEP, fabricFindings(self.fabric) + self.presence.findings())

    # Notices.

    def _heard(self, notice: Notice, request: MADRequest) -> None:
        """Look at a switch whose link has changed; sweep after other changes."""
        self.statistics.notices += 1
        if notice.trapNumber in _CHANGES:
            self._sweepIn(self._settings.settleSeconds)

    # Rounds.

    def _turn(self) -> None:
        self._turnTimer = self._reactor.callLater(self._settings.intervalSeconds, self._turn)
        self._tellPort()
        if self._lost or self._isBlind or self.fabric is None:
            return
        if self._isReading:
            self.statistics.overruns += 1
            return
        self._isReading = True
        self._run(Deferred.fromCoroutine(self._round(self.fabric)))

    async def _round(self, fabric: Fabric) -> None:
        """Read the counters of all nodes that are due, and look at the states of some."""
        began, silences = self._reactor.seconds(), self.statistics.silences
        schedule = MADSchedule(self._agent, self._settings.maxOutstanding)
        due = [node for node in fabric.nodes.values() if node.lid and self._backOff.isDue(node.guid, began)]
        toLook = self._nextToLook(fabric)

        async def visit(node: Node) -> None:
            await self._read(schedule, node, node.guid in toLook)
            if node.guid in toLook and not self._backOff.times(node.guid):
                await self._look(schedule, node)

        try:
            await schedule.run(mqueue=(visit(node) for node in due))
        finally:
            self._isReading = False
        if len(due) > 1 and self.statistics.silences - silences >= len(due) - 1:
            self._sweepIn(0.0)  # who alone answers is we: it may be our own link
        self.statistics.turns += 1
        self.statistics.turnSeconds = self._reactor.seconds() - began
        self._judgeCounters(self.fabric or fabric)
        self._onRound(began)

    def _nextToLook(self, fabric: Fabric) -> set[GUID]:
        """Nodes whose states are looked at in this round: all in turn, and those with a sign of change."""
        settings = self._settings
        share = settings.intervalSeconds / settings.lookSeconds
        count = min(len(self._rotation), int(len(self._rotation) * share) + 1)
        chosen = {node.guid for node in list(self._rotation)[:count]} | self._toLook.keys()
        self._rotation.rotate(-count)
        self._toLook.clear()
        return chosen

    def _isIdle(self, port: Port) -> bool:
        """True of a port without a link whose counters stood still when they were read last."""
        meter = self.meters.get((port.node.guid, port.number))
        return not (hasLink(port) or meter is None or meter.isSilent or any(meter.grown))

    async def _read(self, schedule: MADSchedule, node: Node, isWhole: bool) -> None:
        """
        Read the counters of a node's ports, one after the other.

        @param isWhole: read those of ports without a link, too: most switches have many.
        """
        ports = [port for port in countingPorts(node) if port.lid and (isWhole or not self._isIdle(port))]
        seconds = self._settings.timeoutSeconds
        place = 0
        try:
            kind = self._kinds.get(node.guid)
            if kind is None and ports:
                path = toLID(self._agent.port.endPort, ports[0].lid)
                kind = self._kinds[node.guid] = await kindOf(schedule, path, seconds, _RETRIES)
            for place, port in enumerate(ports):  # noqa: B007 (used when one of them is silent)
                assert kind is not None  # there is a port
                await self._readPort(schedule, port, kind)
        except DeviceUnavailable:
            raise
        except MADFailure:
            self.statistics.silences += 1
            self._backOff.silent(node.guid, self._reactor.seconds())
            for port in ports[place:]:
                meter = self.meters.get((node.guid, port.number))
                if meter is not None:
                    meter.missed()
        else:
            if self._backOff.times(node.guid) >= _SILENT_TIMES:
                self._judge.restarted(node.guid, self._reactor.seconds())
            self._backOff.answered(node.guid)

    async def _readPort(self, schedule: MADSchedule, port: Port, kind: ReadingKind) -> None:
        place = (port.node.guid, port.number)
        path = toLID(self._agent.port.endPort, port.lid)
        meter = self.meters.get(place)
        try:
            values = await kind.ask(schedule, path, port.number, self._settings.timeoutSeconds, _RETRIES)
        except MADError:  # a port that is refused says nothing about the others
            if meter is not None:
                meter.missed()
            return
        now = self._reactor.seconds()
        if meter is None or meter.layout is not kind.layout:
            meter = self.meters[place] = Meter(kind.layout)
        self.statistics.readings += 1
        if meter.read(values, now) or meter.resetAt == now:
            self._judge.read(place, meter, now)
            if meter.grown[kind.layout.places["linkDownedCounter"]]:
                self._toLook[place[0]] = None

    async def _look(self, schedule: MADSchedule, node: Node) -> None:
        """Look at the states of a node's ports; sweep if a link has come or gone."""
        wasSettled = True
        for port in [port for port in node.ports.values() if port.raw]:
            path = toLID(self._agent.port.endPort, port.lid or node.lid)
            try:
                told = await schedule.SubnGet(
                    PortInfo,
                    path,
                    port.number,
                    timeoutSeconds=self._settings.timeoutSeconds,
                    retries=_RETRIES,
                )
            except DeviceUnavailable:
                raise
            except MADFailure:
                return
            self.statistics.looks += 1
            raw = told.encode()
            if _withoutArrival(raw) != _withoutArrival(port.raw):
                if (_state(raw), _physicalState(raw)) != (_state(port.raw), _physicalState(port.raw)):
                    self._sweepIn(self._settings.settleSeconds)
                port.tell(raw)
                self.version += 1
                wasSettled = False
        if not wasSettled:
            self._judgeFabric()
            self._sweepIn(self._untilSweep(self._reactor.seconds()))

    # Findings.

    def _judgeCounters(self, fabric: Fabric) -> None:
        now = self._reactor.seconds()
        silent = [guid for guid in fabric.nodes if self._backOff.times(guid) >= _SILENT_TIMES]
        found = self._judge.findings(fabric, now)
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
        self, source: str, found: Iterable[Finding], silent: Collection[str] = (), isBlind: bool = False
    ) -> None:
        """
        Enter all that a source finds now.

        @param silent: GUIDs of nodes that could not be asked, as text; with C{isBlind} all of them.
        """
        now = self._reactor.seconds()
        events = self.ledger.observe(
            source, found, now, lambda key: isBlind or (key.place in silent and key.kind != "node-silent")
        )
        for event in events:
            try:
                self._notify(event)
            except Exception:
                _log.failure("while {event!r} was told", event=event)


def _withoutArrival(raw: bytes) -> bytes:
    """PortInfo without the number of the port that the question came in by, which says nothing."""
    return raw[: _ARRIVAL.start] + raw[_ARRIVAL.stop :]
