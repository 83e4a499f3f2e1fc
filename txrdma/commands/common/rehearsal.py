"""
Rehearsals: the monitor of a simulated fabric, with planned faults, on a simulated clock.

The fabric is that of a snapshot, the thresholds and rules for alerts are those of a configuration, and the
traffic and errors those of a history. Nothing is sent, and nothing is written.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any, Final

from twisted.internet.defer import Deferred, succeed

from txrdma.error import InvalidRequest
from txrdma.fabric.blastradius import Element
from txrdma.fabric.model import Fabric, PortKey
from txrdma.fabric.recording import Recording
from txrdma.iba.types import GUID
from txrdma.mad.agent import MADAgent
from txrdma.monitor.config import MonitorConfig
from txrdma.monitor.diagnosis.findinglog import Cleared, FindingEvent, Raised
from txrdma.monitor.diagnosis.thresholds import ErrorThresholds
from txrdma.monitor.events.alerts import Alert
from txrdma.monitor.events.channels import AlertChannel
from txrdma.monitor.events.notifier import Notifier
from txrdma.monitor.reading.poller import FabricPoller
from txrdma.monitor.reading.surveyor import Surveyor
from txrdma.sim.clock import SimulatedClock
from txrdma.sim.faultplan import Fault, FaultPlan
from txrdma.sim.twin import LATENCY_SECONDS, Twin
from txrdma.tap.monitor import checkOf

_END_SECONDS: Final = 10.0


@dataclass(frozen=True, slots=True)
class Expectation:
    """
    A finding that a fault is expected to raise.

    @ivar where: pattern for its location; C{""} for the fault's node, or a neighbour whose link it concerns.
    @ivar withinSeconds: time from the fault in which it is raised; None for the whole rehearsal.
    @ivar isNotified: whether it is also expected to be sent.
    """

    fault: Fault
    kind: str
    where: str = ""
    withinSeconds: float | None = None
    isNotified: bool = False

    def __str__(self) -> str:
        parts = [f"{self.kind} at {self.where or self.fault.where}"]
        if self.withinSeconds is not None:
            parts.append(f"within {self.withinSeconds:g} s")
        return " ".join(parts) + (", and an alert" if self.isNotified else "")


@dataclass(frozen=True, slots=True)
class RehearsalPlan:
    """
    Plan of a rehearsal.

    @ivar warmUpSeconds: time before the beginning of the plan, in which the monitor sees the fabric as it is.
    @ivar durationSeconds: time from the beginning of the plan to its end.
    """

    faults: tuple[Fault, ...]
    expectations: tuple[Expectation, ...]
    warmUpSeconds: float
    durationSeconds: float


@dataclass(slots=True)
class Happening:
    """
    Something that happens in a rehearsal.

    @ivar at: time from the beginning of the plan, in seconds; negative before it.
    @ivar what: C{fault}, C{raised}, C{cleared}, C{alert} or C{alert-cleared}.
    @ivar isExpected: whether an expectation describes it; None for faults, ends, what was there before,
        and findings that another one explains.
    """

    at: float
    what: str
    text: str
    kind: str = ""
    severity: str = ""
    where: str = ""
    guid: str | None = None
    port: int | None = None
    isExpected: bool | None = None


class _Channel(AlertChannel):
    """A channel that records alerts."""

    name = queue = "rehearsal"

    def __init__(self, sent: Callable[[Sequence[Alert]], object]) -> None:
        self._sent = sent

    def send(self, alerts: Sequence[Alert]) -> Deferred[None]:
        self._sent(alerts)
        return succeed(None)


class Rehearsal:
    """
    A rehearsal: L{run} advances its clock.

    @ivar happenings: what has happened, in order of time.
    @ivar missing: expectations that were not met, after the end.
    @ivar fabric: simulation of the recorded fabric.
    """

    def __init__(
        self,
        recording: Recording,
        config: MonitorConfig,
        plan: RehearsalPlan,
        beginSeconds: float,
        background: Mapping[PortKey, Mapping[str, float]] | None = None,
    ) -> None:
        """
        @param beginSeconds: simulated time at which the plan begins, in seconds since 1970, for silences.
        @param background: growth of counters per second, by port; data in octets.
        @raise InvalidRequest: the fabric does not have the node, port or counter of a fault.
        """
        self.happenings: list[Happening] = []
        self.missing = list(plan.expectations)
        self._plan = plan
        self._begin = beginSeconds
        clock = self._clock = SimulatedClock()
        clock.rightNow = beginSeconds - plan.warmUpSeconds
        fabric = self.fabric = Twin(clock, [recording], latencySeconds=LATENCY_SECONDS)
        try:
            self._faults = FaultPlan(fabric, plan.faults, lambda text: self._add("fault", text))
        except ValueError as error:
            raise InvalidRequest(str(error)) from error
        fabric.growAs(background or {})
        self._agent = MADAgent(clock, fabric.attach())
        thresholds = ErrorThresholds(config.limits, config.flaps, config.mostBitErrors)
        self._poller = FabricPoller(
            *(clock, self._agent, config.settings, config.rules, thresholds),
            notify=self._findingChanged,
            check=checkOf(config),
        )
        channel = _Channel(self._sent)
        self._notifier = Notifier(clock, config.alerts, [channel], supervisor=self._poller.supervisor)
        self._surveyor = Surveyor(clock, self._agent, self._poller, config.surveySeconds)
        self._guids = {id(one): self._faults.guidsOf(one.fault) for one in plan.expectations}

    def elements(self, fabric: Fabric) -> Iterator[tuple[Fault, Element]]:
        """Yield the faults that take a node or link away, with that node or port of the recorded fabric."""
        for fault in self._plan.faults:
            port = self._faults.portOf(fault)
            known = fabric.nodes[port.node.guid].known(port.number)
            if known is not None and fault.kind in ("flap", "cut", "lost"):
                yield fault, known.node if fault.kind == "lost" else known

    def run(self) -> Generator[tuple[int, int] | None, None, None]:
        """Run in short steps, and yield the simulated seconds done and their total; it ends when closed."""
        plan, clock = self._plan, self._clock
        start, total = clock.seconds(), round(plan.warmUpSeconds + plan.durationSeconds)
        self._poller.start()
        self._notifier.start()
        self._surveyor.start()
        try:
            for until in (self._begin, self._begin + plan.durationSeconds):
                for _step in self._advance(until):
                    yield round(clock.seconds() - start), total
                if until == self._begin:
                    self._faults.start()
        finally:
            self._stop()

    def _advance(self, until: float) -> Iterator[None]:
        clock = self._clock
        while clock.calls and clock.calls[0].getTime() <= until:
            clock.advance(max(0.0, clock.calls[0].getTime() - clock.seconds()))
            yield
        clock.rightNow = max(until, clock.rightNow)

    def _stop(self) -> None:
        self._faults.stop()
        self._surveyor.stop()
        self._notifier.stop()
        self._poller.stop()
        for _step in self._advance(self._clock.seconds() + _END_SECONDS):
            pass  # the end of its subscription is confirmed
        self._agent.close()
        self.fabric.close()

    # Events.

    def _add(self, what: str, text: str, finding: Mapping[str, Any] | None = None) -> Happening:
        at = self._clock.seconds() - self._begin
        one = Happening(at, what, text)
        if finding is not None:
            one.kind, one.severity, one.where = finding["kind"], finding["severity"], finding["where"]
            one.guid, one.port = finding["guid"], finding["port"]
        self.happenings.append(one)
        return one

    def _findingChanged(self, event: FindingEvent) -> None:
        self._notifier.findingChanged(event)
        if not isinstance(event, (Cleared, Raised)):
            return
        found = event.entry.finding
        what = "cleared" if isinstance(event, Cleared) else "raised"
        one = self._add(what, found.text, event.entry.toDict())
        if what == "raised" and one.at >= 0:
            isExpected = self._isExpected(one, found.guid, isSent=False)
            one.isExpected = None if found.cause and not isExpected else isExpected

    def _sent(self, alerts: Sequence[Alert]) -> None:
        for alert in alerts:
            found = alert.finding
            one = self._add("alert" if alert.isRaised else "alert-cleared", found["text"], found)
            if alert.isRaised and one.at >= 0:
                guid = None if found["guid"] is None else GUID.fromString(found["guid"])
                one.isExpected = self._isExpected(one, guid, isSent=True)

    def _isExpected(self, one: Happening, guid: GUID | None, isSent: bool) -> bool:
        """Return whether a finding was expected; its expectations are met."""
        isExpected = False
        for each in self._plan.expectations:
            if one.kind != each.kind or one.at < each.fault.atSeconds:
                continue
            if each.where:
                isThere = fnmatchcase(one.where, each.where)
            else:
                isThere = guid in self._guids[id(each)]
            isInTime = each.withinSeconds is None or one.at <= each.fault.atSeconds + each.withinSeconds
            if isThere and isInTime:
                isExpected = True
                if each.isNotified == isSent and each in self.missing:
                    self.missing.remove(each)
        return isExpected

    @property
    def unexpected(self) -> list[Happening]:
        """Findings that were raised after the beginning of the plan, and that no expectation describes."""
        return [one for one in self.happenings if one.what == "raised" and one.isExpected is False]
