"""State that all pages share about one fabric, and the context of one request."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping, Sequence
from dataclasses import field
from functools import cached_property
from typing import Any, Final

from txrdma.fabric.cables import Cable
from txrdma.fabric.errorcorrection import SYMBOLS
from txrdma.fabric.model import Fabric, Node, Port
from txrdma.fabric.portcounters import Meter
from txrdma.fabric.rates import bitErrorRate
from txrdma.iba.types import GUID
from txrdma.iba.verbs import NodeType
from txrdma.kit import strings
from txrdma.kit.values import record
from txrdma.monitor.diagnosis.findinglog import Entry
from txrdma.monitor.diagnosis.thresholds import DEFAULT_FLAPS, DEFAULT_LIMITS
from txrdma.monitor.reading.poller import FabricPoller
from txrdma.monitor.series.history import HistoryWriter
from txrdma.monitor.series.promqlreader import PromQLReader
from txrdma.monitor.series.remotewriter import RemoteWriter
from txrdma.monitor.web.searches import Searches

_ERRORS: Final = tuple({limit.counter for limit in (*DEFAULT_LIMITS, DEFAULT_FLAPS)})
_TYPES: Final = {NodeType.SWITCH: "switch", NodeType.CHANNEL_ADAPTER: "host", NodeType.ROUTER: "router"}

NODE_TYPES: Final = (*_TYPES.values(), "other")
"""Types of nodes as pages name them; a channel adapter is a host."""


def nodeType(node: Node) -> str:
    """Return the type of a node, one of L{NODE_TYPES}."""
    return _TYPES.get(node.type, "other")


def printable(text: str) -> str:
    """Return text of a peer with U+FFFD for each unprintable character, such as controls of direction."""
    return strings.printable(text, "\N{REPLACEMENT CHARACTER}")


@record(eq=False)
class Watch:
    """
    The state that all pages share, for as long as the monitor runs.

    @ivar poller: polls the fabric; C{history} stores the counters, or is None; C{remote} sends them to an
        engine, or is None; C{engine} reads them there, or is None.
    @ivar fabric: name of the fabric where there are several, C{fabrics}; else C{""}.
    @ivar isActive: False for a standby; C{active} is the name of the active monitor then.
    @ivar isSure: returns False while another monitor may have become the active one.
    @ivar note: sentence at the top of all pages; C{""} for none.
    @ivar readJobs: returns the output of Slurm's C{squeue}; None if jobs are not shown.
    @ivar searches: runs searches of tables, while there is a site.
    @ivar seconds: returns the time in seconds since 1970.
    """

    poller: FabricPoller
    history: HistoryWriter | None
    seconds: Callable[[], float]
    remote: RemoteWriter | None = None
    engine: PromQLReader | None = None
    fabric: str = ""
    fabrics: Sequence[str] = ()
    isActive: bool = True
    active: str = ""
    isSure: Callable[[], bool] = lambda: True
    note: str = ""
    readJobs: Callable[[], Coroutine[Any, Any, str]] | None = None
    searches: Searches = field(init=False)

    @property
    def reader(self) -> PromQLReader | HistoryWriter | None:
        """The reader of the history for charts: from the engine, or from the database."""
        return self.engine or self.history

    @property
    def noHistory(self) -> str:
        """Reason for which there is no history here, where there is none."""
        if not self.isActive:
            return f"this is a standby: the history is that of {self.active or 'the active monitor'}"
        return "no history is stored; set history.file in the configuration"

    def livenessProblem(self) -> str:
        """Return why a restart would help; C{""} if it would not."""
        return "" if self.poller.supervisor.isAlive() else "a loop of the monitor hangs"

    def readinessProblem(self) -> str:
        """Return why another monitor should be used instead; C{""} if there is no reason."""
        if not self.isActive:
            return "standby"
        isKnown = self.poller.fabric is not None or self.poller.topologyWatch.remembered is not None
        return "" if isKnown else "the first sweep is in progress"

    def context(self, isOperator: bool = False, isRefresh: bool = False) -> PageContext:
        """Return the context of one request, whose user may be an operator."""
        return PageContext(self, isOperator, isRefresh)


class PageContext:
    """
    The state of the fabric that pages show while one request is answered.

    @ivar fabric: the last known fabric; before the first sweep that of a former process, or empty.
    @ivar knownAt: time of the last event of a former process, if C{fabric} is from that process; else None.
    @ivar isOperator: whether the user may acknowledge findings.
    @ivar isRefresh: whether an open page is updated, of which only the live parts are needed.
    """

    def __init__(self, watch: Watch, isOperator: bool = False, isRefresh: bool = False) -> None:
        self.isOperator = isOperator
        self.isRefresh = isRefresh
        self.watch = watch
        self.poller = watch.poller
        topologyWatch = watch.poller.topologyWatch
        isOld = watch.poller.fabric is None and topologyWatch.remembered is not None
        self.fabric = watch.poller.fabric or topologyWatch.remembered or Fabric()
        self.knownAt = topologyWatch.rememberedAt if isOld else None
        self.now = watch.seconds()

    @property
    def state(self) -> tuple[object, ...]:
        """Return a value that is equal until there are newer readings, nodes, links or findings."""
        poller, changes = self.poller, self.poller.findings.journal.changes
        return poller.version, poller.statistics.turns, changes[-1] if changes else None, self.knownAt

    @cached_property
    def open(self) -> list[Entry]:
        """Return open findings, the most severe first, then the latest."""
        entries = self.poller.findings.log.open.values()
        return sorted(entries, key=lambda entry: (-entry.severity, -entry.firstSeen))

    @cached_property
    def _byNode(self) -> dict[GUID | None, list[Entry]]:
        found: dict[GUID | None, list[Entry]] = {}
        for entry in self.open:
            found.setdefault(entry.finding.guid, []).append(entry)
        return found

    def findingsAt(self, node: GUID) -> list[Entry]:
        """Return the open findings at a node and its ports, the most severe first."""
        return self._byNode.get(node, [])

    def meter(self, port: Port) -> Meter | None:
        """Return the meter of a port's counters; None if they were never read."""
        return self.poller.meters.get((port.node.guid, port.number))

    def cable(self, port: Port) -> Cable | None:
        """Return the cable at a port; None if it is unknown."""
        return self.poller.cables.cables.get((port.node.guid, port.number))

    def causes(self, port: Port) -> Mapping[str, int]:
        """Return the number of packets that a port has dropped for each cause; empty if unknown."""
        return self.poller.details.causes.get((port.node.guid, port.number), {})

    def corrections(self, port: Port) -> Meter | None:
        """Return the meter of a port's error correction counters; None if they were never read."""
        return self.poller.corrections.meters.get((port.node.guid, port.number))

    def rate(self, port: Port, counter: str) -> float | None:
        """Return the growth of a port's counter per second; None if unknown."""
        meter = self.meter(port)
        return None if meter is None else meter.rate(counter)

    def isSilent(self, node: Node) -> bool:
        """Return whether a node did not answer when its counters were last read."""
        return any(
            meter is not None and meter.isSilent for meter in (self.meter(port) for port in node.linked())
        )

    def load(self, port: Port) -> float | None:
        """Return the share of its link's data rate that a port sends, 0 to 1; None if unknown."""
        return self.poller.load(port)

    def waitShare(self, port: Port) -> float | None:
        """Return the share of time for which a port waits for credits; None if zero or unknown."""
        wait = self.poller.congestion.wait((port.node.guid, port.number))
        return None if wait is None else wait.share

    def rawBitErrorRate(self, port: Port) -> float | None:
        """Return the share of wrong bits, one for each corrected symbol; None if unknown, or full."""
        meter = self.corrections(port)
        rate = None if meter is None else meter.rate(SYMBOLS)
        return None if rate is None else bitErrorRate(port, rate, 1.0)

    def errorRate(self, port: Port) -> float | None:
        """Return the errors per second of a port, of all kinds with a limit; None if unknown."""
        meter = self.meter(port)
        if meter is None or meter.isSilent or meter.seconds <= 0:
            return None
        if meter.grown is meter.layout.nothing:
            return 0.0
        indices = meter.layout.indices
        return sum(meter.grown[indices[name]] for name in _ERRORS if name in indices) / meter.seconds
