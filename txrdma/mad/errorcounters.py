"""
Counters of errors, and which of them are beyond what is bearable.

Follows InfiniBand Architecture vol. 1, 16.1.3.5 (PortCounters). Thresholds are those of infiniband-diags.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final

from twisted.internet.defer import Deferred

from txrdma.error import DeviceUnavailable, InvalidRequest
from txrdma.iba.path import IBPath, MADEndPort
from txrdma.iba.types import GUID
from txrdma.mad.errors import MADFailure
from txrdma.mad.fabric import Node, Port
from txrdma.mad.messages import ClassPortInfo
from txrdma.mad.paths import toLID
from txrdma.mad.pma import (
    PerformanceCapability,
    PortCounters,
    PortCountersExtended,
    PortRcvErrorDetails,
    PortXmitDiscardDetails,
)
from txrdma.mad.rpcs import RPCs
from txrdma.mad.schedule import MADSchedule

ALL_PORTS: Final = 0xFF
DEFAULT_THRESHOLDS: Final = Path("/etc/infiniband-diags/error_thresholds")

ERROR_COUNTERS: Final = (
    "symbolErrorCounter",
    "linkErrorRecoveryCounter",
    "linkDownedCounter",
    "portRcvErrors",
    "portRcvRemotePhysicalErrors",
    "portRcvSwitchRelayErrors",
    "portXmitDiscards",
    "portXmitConstraintErrors",
    "portRcvConstraintErrors",
    "localLinkIntegrityErrors",
    "excessiveBufferOverrunErrors",
    "vl15Dropped",
    "qp1Dropped",
    "portXmitWait",
)
DATA_COUNTERS: Final[tuple[str, ...]] = ("portXmitData", "portRcvData", "portXmitPkts", "portRcvPkts")
UNICAST_COUNTERS: Final = (
    "portUnicastXmitPkts",
    "portUnicastRcvPkts",
    "portMulticastXmitPkts",
    "portMulticastRcvPkts",
)
COMMON: Final = ("portRcvSwitchRelayErrors",)
"""What counts in healthy fabrics, too: packets of multicast that come back to where they came from."""

_ERROR_BITS: Final = 0x0FFF
_DATA_BITS: Final = 0xF000
_WAIT_AND_QP1: Final = 0x03
_OUTSTANDING: Final = 64


# Thresholds.


@dataclass(frozen=True, slots=True)
class Thresholds:
    """
    How many errors of each kind are bearable: none, unless it is said.

    C{portXmitWait} is a sign of traffic, not of an error, and is looked at only where a threshold is said.
    """

    limits: Mapping[str, int] = field(default_factory=dict)
    suppressed: frozenset[str] = frozenset()

    def exceeded(self, counters: PortCounters, capabilities: int = 0) -> dict[str, int]:
        """Those counters that are beyond."""
        found = {}
        for name in ERROR_COUNTERS:
            if name in self.suppressed or not self._isCounted(name, capabilities):
                continue
            value = getattr(counters, name)
            if value > self.limits.get(name, 0):
                found[name] = value
        return found

    def _isCounted(self, name: str, capabilities: int) -> bool:
        if name == "portXmitWait":
            return name in self.limits and bool(capabilities & PerformanceCapability.XMIT_WAIT)
        return name != "qp1Dropped" or bool(capabilities & PerformanceCapability.QP1_DROP)

    def suppressing(self, names: Iterable[str]) -> Thresholds:
        """The same, without looking at these."""
        return Thresholds(self.limits, self.suppressed | {counterName(name) for name in names})


def counterName(text: str) -> str:
    """
    A counter, as infiniband-diags or as we write it: C{"PortXmitDiscards"}.

    @raise InvalidRequest: no port counts such errors.
    """
    for name in ERROR_COUNTERS:
        if name.lower() == text.strip().lower():
            return name
    raise InvalidRequest(f"there is no counter {text!r}, but {', '.join(map(shownName, ERROR_COUNTERS))}")


def shownName(name: str) -> str:
    """A counter as infiniband-diags writes it: C{"PortXmitDiscards"}."""
    return _SHOWN.get(name, name[:1].upper() + name[1:])


_SHOWN: Final = {"vl15Dropped": "VL15Dropped", "qp1Dropped": "QP1Dropped"}


def parseThresholds(text: str, name: str = "thresholds") -> Thresholds:
    """
    Read a file of infiniband-diags: lines C{PortXmitDiscards=100}; what stands behind C{#} is nothing.

    @raise InvalidRequest: a line is something else; says which.
    """
    limits = {}
    for number, line in enumerate(text.splitlines(), 1):
        said = line.partition("#")[0].strip()
        if not said:
            continue
        counter, sign, value = said.partition("=")
        try:
            if not sign:
                raise InvalidRequest("a counter and a number, as PortXmitDiscards=100")
            limits[counterName(counter)] = int(value, 0)
        except (InvalidRequest, ValueError) as error:
            raise InvalidRequest(f"{name}, line {number}: {error}") from error
    return Thresholds(limits)


def readThresholds(path: str = "") -> Thresholds:
    """
    Read a file; without a path the host's, if it has one.

    @raise InvalidRequest: it is not there, or says something else.
    """
    if not path and not DEFAULT_THRESHOLDS.exists():
        return Thresholds()
    try:
        return parseThresholds(Path(path or DEFAULT_THRESHOLDS).read_text(encoding="utf-8"), path)
    except (OSError, UnicodeDecodeError) as error:
        raise InvalidRequest(f"thresholds {path}: {error}") from error


# Counters.


@dataclass(slots=True)
class Counted:
    """
    What a port has counted.

    @ivar number: of the port; C{ALL_PORTS} of a switch's all together.
    @ivar errors: those beyond their thresholds; C{data} all of traffic, where it was asked for; C{details}
        what the discards and errors were, likewise.
    """

    node: Node
    number: int
    errors: dict[str, int] = field(default_factory=dict)
    data: dict[str, int] = field(default_factory=dict)
    details: dict[str, int] = field(default_factory=dict)


@dataclass(slots=True)
class CounterReport:
    """
    What all ports have counted.

    @ivar ports: those with errors, and all others when data was asked for; node by node.
    @ivar silent: the nodes that did not tell, and why.
    """

    ports: list[Counted] = field(default_factory=list)
    silent: list[tuple[Node, str]] = field(default_factory=list)
    nodesChecked: int = 0
    portsChecked: int = 0

    @property
    def bad(self) -> list[Counted]:
        """Ports with errors; not the sums of switches."""
        return [port for port in self.ports if port.errors and port.number != ALL_PORTS]


class CounterSurvey:
    """
    Asks all ports for their counters, many at a time.

    Switches that can are asked for the sum of their ports first; only where that is beyond a threshold are
    the ports asked one by one.

    @ivar progress: is called with how many nodes are done, and how many there are.
    """

    def __init__(
        self,
        rpcs: RPCs,
        endPort: MADEndPort,
        thresholds: Thresholds | None = None,
        *,
        withData: bool = False,
        withDetails: bool = False,
        clear: str = "",
        maxOutstanding: int = _OUTSTANDING,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """
        @param clear: C{"errors"}, C{"data"} or C{"errors data"}: what to set to zero after it was read.
        """
        self._rpcs = MADSchedule(rpcs, maxOutstanding)
        self._endPort = endPort
        self._thresholds = thresholds or Thresholds()
        self._withData = withData
        self._withDetails = withDetails
        words = clear.split()
        self._clear = (_ERROR_BITS if "errors" in words else 0) | (_DATA_BITS if "data" in words else 0)
        self._done = 0
        self.progress = progress

    def run(self, nodes: Iterable[Node]) -> Deferred[CounterReport]:
        """Ask these."""
        return Deferred.fromCoroutine(self._run(list(nodes)))

    async def _run(self, nodes: list[Node]) -> CounterReport:
        report = CounterReport()
        found: dict[GUID, list[Counted]] = {}

        async def look(node: Node) -> None:
            try:
                found[node.guid] = await self._ofNode(node, report)
                report.nodesChecked += 1
            except (MADFailure, DeviceUnavailable) as error:
                report.silent.append((node, str(error)))
            self._done += 1
            if self.progress is not None:
                self.progress(self._done, len(nodes))

        await self._rpcs.run(mqueue=(look(node) for node in nodes))
        for node in nodes:
            report.ports += found.get(node.guid, [])
        return report

    async def _ofNode(self, node: Node, report: CounterReport) -> list[Counted]:
        ports = [port for port in countingPorts(node) if port.lid]
        if not ports:
            raise DeviceUnavailable("it has no LID, so its counters cannot be asked for")
        path = toLID(self._endPort, ports[0].lid)
        capabilities = (await self._rpcs.PerformanceGet(ClassPortInfo, path)).capabilityMask
        found: list[Counted] = []
        report.portsChecked += len(ports)
        if node.isSwitch and capabilities & PerformanceCapability.ALL_PORT_SELECT:
            total = await self._ofPort(node, ALL_PORTS, path, capabilities)
            if not total.errors and not self._withData:
                if self._clear:
                    await self._clearPort(ALL_PORTS, path, capabilities)
                return []
            found.append(total)
        for port in ports:
            where = toLID(self._endPort, port.lid)
            counted = await self._ofPort(node, port.number, where, capabilities)
            if counted.errors or counted.data:
                found.append(counted)
            if self._clear:
                await self._clearPort(port.number, where, capabilities)
        return found

    async def _ofPort(self, node: Node, number: int, path: IBPath, capabilities: int) -> Counted:
        counters = await self._rpcs.PerformanceGet(PortCounters(portSelect=number), path)
        counted = Counted(node, number, self._thresholds.exceeded(counters, capabilities))
        if self._withData:
            counted.data = await self._data(counters, number, path, capabilities)
        if self._withDetails and counted.errors:
            counted.details = await self._details(number, path)
        return counted

    async def _data(
        self, counters: PortCounters, number: int, path: IBPath, capabilities: int
    ) -> dict[str, int]:
        extended = PerformanceCapability.EXTENDED_WIDTH | PerformanceCapability.EXTENDED_WIDTH_NO_IETF
        if not capabilities & extended:
            return {name: getattr(counters, name) for name in DATA_COUNTERS}
        wide = await self._rpcs.PerformanceGet(PortCountersExtended(portSelect=number), path)
        names = DATA_COUNTERS
        if capabilities & PerformanceCapability.EXTENDED_WIDTH:
            names += UNICAST_COUNTERS
        return {name: getattr(wide, name) for name in names}

    async def _details(self, number: int, path: IBPath) -> dict[str, int]:
        """Those that are not zero; who does not have them has none."""
        found: dict[str, int] = {}
        for kind in (PortRcvErrorDetails, PortXmitDiscardDetails):
            try:
                told = await self._rpcs.PerformanceGet(kind(portSelect=number), path)
            except MADFailure:
                continue
            names = (each.name for each in kind.fields if each.name.startswith("port"))
            values = ((name, getattr(told, name)) for name in names if name != "portSelect")
            found.update((name, value) for name, value in values if value)
        return found

    async def _clearPort(self, number: int, path: IBPath, capabilities: int) -> None:
        second = _WAIT_AND_QP1 if self._clear & _ERROR_BITS else 0
        zeros = PortCounters(portSelect=number, counterSelect=self._clear, counterSelect2=second)
        await self._rpcs.PerformanceSet(zeros, path)
        if self._clear & _DATA_BITS and capabilities & PerformanceCapability.EXTENDED_WIDTH:
            wide = PortCountersExtended(portSelect=number, counterSelect=0xFF)
            await self._rpcs.PerformanceSet(wide, path)


def countingPorts(node: Node) -> list[Port]:
    """The ports that count: of hosts those that have told something, of switches all but the inner one."""
    if not node.isSwitch:
        return [node.ports[number] for number in sorted(node.ports) if node.ports[number].raw]
    first = 0 if node.switchInfo is not None and node.switchInfo.enhancedPort0 else 1
    return [node.port(number) for number in range(first, node.info.numPorts + 1)]
