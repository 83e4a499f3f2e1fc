"""
Reads the counters of all ports and the states of some, in rounds, with one outstanding datagram per node.

A subnet manager may reassign LIDs at any time. If counters are lower than before, or have counted errors, the
reader therefore first identifies the node: another one may have its LID.

This is the monitor's busiest code, so it uses neither Deferreds nor coroutines.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Collection, Iterable, Iterator, Sequence
from functools import wraps
from itertools import takewhile
from typing import Any, Concatenate, Final, ParamSpec

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime

from txrdma.error import DeviceUnavailable
from txrdma.fabric.errorcounters import countingPorts
from txrdma.fabric.health import hasLink
from txrdma.fabric.model import Node, Port, PortKey
from txrdma.fabric.portcounters import hasRestarted, intervalClock, Meter
from txrdma.fabric.refreshing import withoutArrival
from txrdma.iba.path import IBPath
from txrdma.iba.types import GUID
from txrdma.kit.backoff import BackOff
from txrdma.kit.values import record
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.answers import rawKind
from txrdma.mad.core.frames import NO_KEYS
from txrdma.mad.errors import MADError, MADFailure, MADTimeoutError
from txrdma.mad.layouts.attributes import Attribute, RPCS
from txrdma.mad.layouts.messages import ClassPortInfo
from txrdma.mad.layouts.smp import NodeInfo, PortInfo
from txrdma.mad.paths import toLID
from txrdma.monitor.collecting.pool import CollectedCall, CollectorPool, Contradict
from txrdma.monitor.diagnosis.thresholds import ErrorThresholds
from txrdma.monitor.reading.attributes import kindOf, ReadingKind
from txrdma.monitor.reading.fec import NO_ATTRIBUTE
from txrdma.monitor.reading.settings import PollerSettings, RETRIES
from txrdma.monitor.reading.statistics import PollerStatistics

SILENT_TIMES: Final = 3
"""Intervals in a row without an answer after which a node is reported as silent."""

_MOST_BACK_OFF: Final = 300.0
_PERFORMANCE_GET: Final = RPCS["PerformanceGet"]


_RAW_PORT_INFO: Final = rawKind(PortInfo)
"""PortInfo as bytes: it rarely changes, and decoding takes ten times as long."""

P = ParamSpec("P")


@record
class _PortReading:
    """
    A port whose counters are read.

    @ivar readAt: time of the reading before the last one that had errors.
    """

    portKey: PortKey
    path: IBPath
    hasLink: bool
    meter: Meter | None = None
    requests: tuple[bytes, ...] = ()
    readAt: float = 0.0


class _Visit(CollectedCall):
    """
    Requests to one node, one after the other; the same object serves all of them.

    @ivar reading: kind of reading of the node's ports; None until its ClassPortInfo is known.
    @ivar stops: all ports, for the state C{version} of the fabric; C{pending}: those of this round.
    @ivar at: index of the current port in C{pending}; C{part}: of the attribute, whose C{values} follow those
        of earlier ones.
    @ivar doubted: ports whose readings count only if the node is still at their LID.
    @ivar states: ports whose states remain to be read.
    @ivar asking: the outstanding request: the visit itself, or one for a state or the identity.
    @ivar contradict: called if the node answers; None unless this process makes the requests, because the
        node has not answered its collector.
    """

    __slots__ = (
        *("asking", "at", "contradict", "doubted", "guid", "part", "pending", "reader", "reading", "state"),
        *("states", "stops", "values", "version"),
    )

    def __init__(self, reader: CounterReader, guid: GUID) -> None:
        super().__init__(_PERFORMANCE_GET, ClassPortInfo, b"", 0, NO_KEYS, 0)
        self.reader = reader
        self.guid = guid
        self.reading: ReadingKind | None = None
        self.version = -1
        self.stops: list[_PortReading] = []
        self.pending: list[_PortReading] = []
        self.at = self.part = 0
        self.values: tuple[int, ...] = ()
        self.doubted: list[_PortReading] = []
        self.states: list[tuple[Port, IBPath]] = []
        self.state = _SubnGet(self, _RAW_PORT_INFO, reader._stated)
        self.asking: CollectedCall = self
        self.contradict: Contradict | None = None

    def answered(self, answer: Any) -> None:
        self.reader._answered(self, answer)

    def failed(self, error: Exception) -> None:
        """Continue after a refusal; end the visit of a silent node."""
        self.reader._failed(self, error)

    def collected(self, ports: Sequence[bytes | int], contradict: Contradict | None) -> None:
        self.reader._collected(self, ports, contradict)

    def silent(self, error: MADTimeoutError, contradict: Contradict) -> None:
        self.reader._silent(self, contradict)

    def lost(self) -> None:
        """Continue the visit without the collector that was lost."""
        self.reader._lost(self)


class _SubnGet(CollectedCall):
    """Request of a visit for something other than counters."""

    __slots__ = ("process", "visit")

    def __init__(self, visit: _Visit, kind: type[Attribute], process: Callable[[_Visit, Any], None]) -> None:
        """@param process: called with the visit, and with the answer or None if there is none."""
        super().__init__(RPCS["SubnGet"], kind, b"", 0, NO_KEYS, 0)
        self.visit, self.process = visit, process

    def answered(self, answer: Any) -> None:
        self.process(self.visit, answer)

    def failed(self, error: Exception) -> None:
        if isinstance(error, MADFailure):
            self.process(self.visit, None)
        else:
            self.visit.failed(error)

    def lost(self) -> None:
        self.visit.lost()


def _step(
    process: Callable[Concatenate[CounterReader, _Visit, P], None],
) -> Callable[Concatenate[CounterReader, _Visit, P], None]:
    """Decorate a step of a visit: an exception ends the visit; a visit that has ended skips the step."""

    @wraps(process)
    def step(reader: CounterReader, visit: _Visit, /, *args: P.args, **kwargs: P.kwargs) -> None:
        if visit in reader._running:
            try:
                process(reader, visit, *args, **kwargs)
            except Exception as error:
                reader._broken(visit, error)

    return step


class CounterReader:
    """
    Reads counters and states, in rounds.

    @ivar meters: meters of all ports whose counters were read, by GUID and port number.
    @ivar backOff: nodes that do not answer.
    @ivar statistics: C{readings}, C{silences} and C{stateReads} are the reader's.
    @ivar changed: nodes with ports whose state changed in this round.
    """

    def __init__(
        self,
        reactor: IReactorTime,
        agent: MADAgent | CollectorPool,
        thresholds: ErrorThresholds,
        settings: PollerSettings,
        statistics: PollerStatistics,
        onDowned: Callable[[GUID], object],
        onSilent: Callable[[GUID], object],
        onUnknownNode: Callable[[GUID], object],
        choose: Callable[[ClassPortInfo], ReadingKind] = kindOf,
    ) -> None:
        """
        @param choose: returns the kind of reading of a node's ports, by the capabilities of its agent.
        @param onDowned: called with the GUID of a node if a port's LinkDowned counter has grown.
        @param onSilent: called with the GUID of a node that has stopped answering.
        @param onUnknownNode: called with the GUID of a node whose LID belongs to another node.
        """
        self.meters: dict[PortKey, Meter] = {}
        self.backOff: BackOff[GUID] = BackOff(settings.intervalSeconds, _MOST_BACK_OFF)
        self.statistics = statistics
        self.changed: set[GUID] = set()
        self._seconds, self._intervalSeconds = reactor.seconds, intervalClock(reactor.seconds)
        self._agent = agent
        self._collectors = agent if isinstance(agent, CollectorPool) else None
        self._thresholds = thresholds
        self._settings = settings
        self._onDowned = onDowned
        self._onSilent = onSilent
        self._onUnknownNode = onUnknownNode
        self._choose = choose
        self._visits: dict[GUID, _Visit] = {}
        self._waiting: Iterator[_Visit] = iter(())
        self._interrupted: deque[_Visit] = deque()
        self._running: dict[_Visit, None] = {}
        self._isFilling = False
        self._done: Deferred[None] | None = None
        self._error: Exception | None = None

    def change(self, settings: PollerSettings) -> None:
        """Use other settings from the next round on."""
        self.backOff.change(settings.intervalSeconds)
        self._settings = settings

    def forget(self, guid: GUID) -> None:
        """Query a node's capabilities again: it may have restarted with other firmware."""
        if guid in self._visits:
            self._visits[guid] = _Visit(self, guid)
        self.backOff.answered(guid)

    def retain(self, known: Collection[GUID], gone: Collection[GUID]) -> None:
        """
        Drop the state of nodes that are no longer in the fabric.

        @param gone: nodes that have disappeared and may return: their meters stay, without values.
        """
        missing = set(self._visits).difference(known)
        if not missing:
            return
        raws = {guid.raw for guid in missing}  # bytes have their hash, unlike GUIDs
        for portKey in [one for one in self.meters if one[0].raw in raws]:
            self.meters[portKey].missed()
            if portKey[0] not in gone:
                del self.meters[portKey]
        for guid in missing.difference(gone):
            del self._visits[guid]
            self.backOff.answered(guid)

    def silent(self) -> list[GUID]:
        """Return the nodes that did not answer several times in a row."""
        return [guid for guid in self.backOff if self.backOff.times(guid) >= SILENT_TIMES]

    def wasHeard(self, guid: GUID) -> bool:
        """Return whether a node has answered when it was asked last."""
        visit = self._visits.get(guid)
        return visit is not None and bool(visit.pending) and not self.backOff.times(guid)

    # Rounds.

    def read(self, nodes: Iterable[Node], version: int, wholly: Collection[GUID] = ()) -> Deferred[None]:
        """
        Read the counters of all nodes that are not backed off.

        @param version: number of the fabric's state; the same number means that nothing has changed.
        @param wholly: nodes of which all states are read, and the counters of ports without a link: most
            switches have many.
        @return: fires when all have answered or timed out; fails with L{DeviceUnavailable} if the local port
            is lost, and with the first exception if the visit of a node failed, after all others. Cancelling
            it ends the round.
        """
        self.changed.clear()
        self._error = None
        self._waiting = self._visitsTo(nodes, version, wholly)
        done = self._done = Deferred(lambda _: self._stop())
        self._fill()
        return done

    def _visitsTo(self, nodes: Iterable[Node], version: int, wholly: Collection[GUID]) -> Iterator[_Visit]:
        """Yield visits to the nodes that are due, each prepared when it is taken."""
        now = self._seconds()
        for node in nodes:
            if self.backOff.isDue(node.guid, now):
                try:
                    visit = self._visitTo(node, version, node.guid in wholly)
                except Exception as error:
                    self._error = self._error or error
                else:
                    if visit.pending:
                        yield visit

    def _visitTo(self, node: Node, version: int, isWhole: bool) -> _Visit:
        """Return the visit to a node, with the requests of this round."""
        guid = node.guid
        visit = self._visits.get(guid)
        if visit is None:
            visit = self._visits[guid] = _Visit(self, guid)
        if visit.version != version:
            before, visit.stops = visit.stops, self._stopsOf(node)
            self._readdressed(before, visit.stops)
            visit.version = version
        visit.at = 0
        visit.doubted.clear()
        if isWhole:
            visit.pending = visit.stops
            visit.states = self._statesOf(node)
        else:
            visit.pending = [each for each in visit.stops if self._isWanted(each)]
            visit.states = []
        return visit

    def _stopsOf(self, node: Node) -> list[_PortReading]:
        end, guid = self._agent.port.endPort, node.guid
        ports = [(port, port.lid) for port in countingPorts(node)]  # a switch has one LID for all
        paths = {lid: toLID(end, lid) for lid in {lid for _port, lid in ports if lid}}
        return [_PortReading((guid, port.number), paths[lid], hasLink(port)) for port, lid in ports if lid]

    def _statesOf(self, node: Node) -> list[tuple[Port, IBPath]]:
        """Return the ports whose states are read, and the paths to them."""
        end, own = self._agent.port.endPort, node.lid
        ports = [port for port in node.ports.values() if port.raw]
        paths = {lid: toLID(end, lid or own) for lid in {port.lid for port in ports}}
        return [(port, paths[port.lid]) for port in ports]

    def _readdressed(self, before: list[_PortReading], now: list[_PortReading]) -> None:
        """Restart the meters of ports whose LID has changed: the last values may have been another node's."""
        lids = {stop.portKey: stop.path.dlid for stop in before}
        for stop in now:
            if lids.get(stop.portKey, stop.path.dlid) != stop.path.dlid:
                self.meters.pop(stop.portKey, None)

    def _isWanted(self, stop: _PortReading) -> bool:
        """Return False for a port without a link whose counters were constant when last read."""
        if stop.hasLink:
            return True
        meter = stop.meter or self.meters.get(stop.portKey)
        return meter is None or meter.isSilent or any(meter.grown)

    def _stop(self) -> None:
        self._done = None
        self._waiting = iter(())
        self._interrupted.clear()
        running, self._running = self._running, {}
        for visit in running:
            visit.asking.forget(visit.asking)

    def _fill(self) -> None:
        """Begin visits up to C{maxOutstanding}; one that ends at once returns to the outer loop."""
        if self._isFilling:
            return
        self._isFilling = True
        isAll = False
        try:
            while len(self._running) < self._mostVisits():
                visit = self._interrupted.popleft() if self._interrupted else next(self._waiting, None)
                if visit is None:
                    isAll = True
                    break
                self._running[visit] = None
                self._resume(visit)
        finally:
            self._isFilling = False
        if isAll and not self._running and self._done is not None:
            done, self._done = self._done, None
            failed, self._error = self._error, None
            if failed is None:
                done.callback(None)
            else:
                done.errback(failed)

    @_step
    def _resume(self, visit: _Visit) -> None:
        """Begin a visit, or continue it after a collector is lost."""
        visit.asking = visit
        visit.part = 0
        visit.contradict = None
        self._continue(visit)

    def _lost(self, visit: _Visit) -> None:
        """Continue a visit whose collector is lost, when there is room for it."""
        if visit in self._running:
            del self._running[visit]
            self._interrupted.append(visit)
            self._fill()

    def _mostVisits(self) -> int:
        return self._settings.maxOutstanding if self._collectors is None else self._collectors.mostCalls

    def _ask(self, visit: _Visit) -> None:
        """Request the next part of a port's counters; at first, what the node's agent can count."""
        stop = visit.pending[visit.at]
        kind = visit.reading
        if kind is None:
            visit.kind, visit.content = ClassPortInfo, b""
        elif visit.contradict is None and self._isCollected(visit, kind, stop.path):
            return
        else:
            requests = stop.requests
            if not requests:
                requests = stop.requests = kind.requests(stop.portKey[1])
            visit.kind = kind.parts[visit.part]
            visit.content = requests[visit.part]
        self._issue(visit, visit, stop.path)

    def _issue(self, visit: _Visit, call: CollectedCall, path: IBPath) -> None:
        """Make a call of a visit."""
        collectors = self._collectors
        agent = self._agent if collectors is None or visit.contradict is None else collectors.agent
        agent.issue(call, path, self._settings.timeoutSeconds, RETRIES)

    def _isCollected(self, visit: _Visit, kind: ReadingKind, path: IBPath) -> bool:
        """Let a collector read this port, and the next ones that have the same LID, if there is one."""
        if self._collectors is None:
            return False
        rest = takewhile(lambda stop: stop.path.dlid == path.dlid, visit.pending[visit.at :])
        numbers = bytes(stop.portKey[1] for stop in rest)
        return self._collectors.issueSeries(visit, path, kind.attributes, numbers)

    @_step
    def _collected(self, visit: _Visit, ports: Sequence[bytes | int], contradict: Contradict | None) -> None:
        """Store the readings of a collector."""
        kind = visit.reading
        assert kind is not None  # it was known when the collector was asked
        visit.part = 0  # others may have been read without a collector
        for content in ports:
            if isinstance(content, bytes):
                self._took(visit, kind, kind.decode(content))
            elif (meter := self.meters.get(visit.pending[visit.at].portKey)) is not None:
                meter.missed()
            visit.at += 1
        visit.contradict = contradict
        if contradict is not None or ports:
            self._continue(visit)
        else:
            self._unanswered(visit, isRefusal=False)

    @_step
    def _silent(self, visit: _Visit, contradict: Contradict) -> None:
        """Make the request that a node has not answered its collector."""
        visit.contradict = contradict
        self._ask(visit)

    @_step
    def _answered(self, visit: _Visit, answer: Any) -> None:
        kind = visit.reading
        if kind is None:
            visit.reading = self._choose(answer)
            self._ask(visit)
            return
        values = answer if not visit.part else visit.values + answer
        visit.part += 1
        if visit.part < len(kind.parts):
            visit.values = values
            self._ask(visit)
            return
        self._took(visit, kind, values)
        self._next(visit)

    def _next(self, visit: _Visit) -> None:
        visit.at += 1
        visit.part = 0
        self._continue(visit)

    def _continue(self, visit: _Visit) -> None:
        """Read the next port; after the last one settle the visit."""
        if visit.at < len(visit.pending):
            self._ask(visit)
            return
        guid = visit.guid
        times = self.backOff.times(guid)
        if times:
            if times >= SILENT_TIMES:
                self._thresholds.restarted(guid, self._seconds())
            self.backOff.answered(guid)
        if visit.contradict is not None:
            visit.contradict()
        self._settle(visit)

    def _settle(self, visit: _Visit) -> None:
        """End a visit when all states are known, and the identity, if it matters."""
        if visit.doubted:
            visit.asking = _SubnGet(visit, NodeInfo, self._identified)
            self._issue(visit, visit.asking, visit.doubted[0].path)
            return
        if visit.states:
            (port, path), asking = visit.states[-1], visit.state
            asking.modifier = port.number
            visit.asking = asking
            self._issue(visit, asking, path)
            return
        del self._running[visit]
        self._fill()

    @_step
    def _stated(self, visit: _Visit, raw: bytes | None) -> None:
        """Compare the state of a port with the known one; do not ask for others if there is no answer."""
        if raw is None:
            visit.states = []
        else:
            self.statistics.stateReads += 1
            before = visit.states.pop()[0].raw
            if raw != before and withoutArrival(raw) != withoutArrival(before):
                self.changed.add(visit.guid)
        self._settle(visit)

    @_step
    def _identified(self, visit: _Visit, info: NodeInfo | None) -> None:
        """
        Accept the readings at a LID, or drop them: another node's counters are irrelevant.

        A node that does not answer is assumed to be the known one.
        """
        visit.asking = visit
        lid = visit.doubted[0].path.dlid
        here = [stop for stop in visit.doubted if stop.path.dlid == lid]
        visit.doubted = [stop for stop in visit.doubted if stop.path.dlid != lid]
        if info is None or info.nodeGUID == visit.guid:
            if hasRestarted(stop.meter for stop in visit.pending if stop.meter is not None):
                self._thresholds.reset(visit.guid, self._seconds())
            for stop in here:
                self._judged(stop)
        else:
            for stop in visit.stops:
                if stop.path.dlid == lid:
                    self.meters.pop(stop.portKey, None)
                    stop.meter = None
            self._onUnknownNode(visit.guid)
        self._settle(visit)

    def _judged(self, stop: _PortReading) -> None:
        meter = stop.meter
        assert meter is not None  # it was read
        self._thresholds.read(stop.portKey, meter, meter.readAt, meter.readAt - stop.readAt)
        at = meter.layout.indices.get("linkDownedCounter")
        if at is not None and meter.grown[at]:
            self._onDowned(stop.portKey[0])

    def _took(self, visit: _Visit, kind: ReadingKind, values: tuple[int, ...]) -> None:
        """Store a reading in the port's meter; new errors count after C{_identified} has checked the node."""
        stop = visit.pending[visit.at]
        portKey, meter = stop.portKey, stop.meter
        if meter is None or meter.layout is not kind.layout:
            meter = self.meters.get(portKey)
            if meter is None or meter.layout is not kind.layout:
                meter = self.meters[portKey] = Meter(kind.layout)
            stop.meter = meter
        now = self._seconds()
        self.statistics.readings += 1
        isFirst, before = not meter.values, meter.readAt
        hasGrown = meter.read(values, now, self._intervalSeconds())
        if (hasGrown or meter.resetAt == now) and self._thresholds.isConcerned(meter, now):
            stop.readAt = before
            visit.doubted.append(stop)
        elif isFirst:
            self._thresholds.readFull(portKey, meter)

    @_step
    def _failed(self, visit: _Visit, error: Exception) -> None:
        """Process a refusal, or that there was no answer."""
        if not isinstance(error, MADFailure):
            raise error
        if not isinstance(error, MADError):
            self._unanswered(visit, isRefusal=False)
        elif visit.reading is not None:
            self._unanswered(visit, isRefusal=True)
        elif error.status in NO_ATTRIBUTE:  # without a ClassPortInfo it has what every node has
            visit.reading = self._choose(ClassPortInfo())
            self._ask(visit)
        else:  # which may pass: the node is not silent, and is asked again in the next round
            self._settle(visit)

    def _unanswered(self, visit: _Visit, isRefusal: bool) -> None:
        """Continue with the next port after a refusal; otherwise end the visit."""
        left = visit.pending[visit.at :]
        for stop in left[:1] if isRefusal else left:
            meter = self.meters.get(stop.portKey)
            if meter is not None:
                meter.missed()
        if isRefusal:
            self._next(visit)
            return
        self.statistics.silences += 1
        if not self.backOff.times(visit.guid):
            self._onSilent(visit.guid)
        self.backOff.silent(visit.guid, self._seconds())
        visit.states = []
        self._settle(visit)

    def _broken(self, visit: _Visit, error: Exception) -> None:
        """
        End the visit of a node after an exception.

        The round reads the other nodes, and then fails. If the management port is lost, it fails at once.
        """
        self._running.pop(visit, None)  # it may have made no call that can be cancelled
        if isinstance(error, DeviceUnavailable):
            done = self._done
            self._stop()
            if done is not None:
                done.errback(error)
        else:
            self._error = self._error or error
            self._fill()
