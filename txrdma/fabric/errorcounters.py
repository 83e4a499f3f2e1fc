"""
Error counters of ports, and their comparison with thresholds.

Follows InfiniBand Architecture vol. 1, 16.1.3.5 (PortCounters). Thresholds are those of infiniband-diags.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, NamedTuple

from twisted.internet.defer import Deferred

from txrdma.error import InvalidRequest
from txrdma.fabric.model import Node, Port
from txrdma.fabric.texts import readText
from txrdma.iba.path import IBPath, MADEndPort
from txrdma.iba.types import GUID
from txrdma.mad.errors import MADError, MADFailure
from txrdma.mad.layouts.capabilities import PerformanceCapability2
from txrdma.mad.layouts.messages import ClassPortInfo
from txrdma.mad.layouts.pma import (
    PerformanceCapability,
    PortCounters,
    PortCountersExtended,
    PortRcvErrorDetails,
    PortXmitDiscardDetails,
)
from txrdma.mad.paths import toLID
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
    *("portUnicastXmitPkts", "portUnicastRcvPkts"),
    *("portMulticastXmitPkts", "portMulticastRcvPkts"),
)
UNCORRECTABLE: Final = "portFECUncorrectableBlockCtr"
"""
Counter of blocks that error correction could not correct. It is in another attribute, which
L{txrdma.fabric.errorcorrection} reads.
"""

COMMON: Final = ("portRcvSwitchRelayErrors",)
"""Counters that also grow in healthy fabrics, by multicast packets that return to their source port."""

_ERROR_BITS: Final = 0x0FFF
_DATA_BITS: Final = 0xF000
_WAIT_AND_QP1: Final = 0x03
_WIDE_DATA: Final = 0x0F
_WIDE_CASTS: Final = 0xF0
_WIDE_ERRORS: Final = 0x3FFF
"""CounterSelect2 in a Set of PortCountersExtended that clears all error counters."""

_WIDE: Final = PerformanceCapability.EXTENDED_WIDTH | PerformanceCapability.EXTENDED_WIDTH_NO_IETF
_ADDITIONAL: Final = PerformanceCapability2.ADDITIONAL_PORT_COUNTERS_EXTENDED
"""Bit of CapabilityMask2: error counters are available with 64 bits."""

_OUTSTANDING: Final = 64


# Thresholds.


@dataclass(frozen=True, slots=True)
class Thresholds:
    """
    Largest values of error counters that are not reported: zero unless a limit is given.

    C{portXmitWait} indicates traffic, not an error, and is compared only if a limit is given for it.
    """

    limits: Mapping[str, int] = field(default_factory=dict)
    suppressed: frozenset[str] = frozenset()

    def exceeded(
        self, counters: PortCounters | PortCountersExtended, capabilities: int = 0
    ) -> dict[str, int]:
        """Return the counters that exceed their thresholds, with their values."""
        names = [name for name in ERROR_COUNTERS if name not in self.suppressed]
        values = {name: getattr(counters, name) for name in names if self._isCounted(name, capabilities)}
        return {name: value for name, value in values.items() if value > self.limits.get(name, 0)}

    def _isCounted(self, name: str, capabilities: int) -> bool:
        if name == "portXmitWait":
            return name in self.limits and bool(capabilities & PerformanceCapability.XMIT_WAIT)
        return name != "qp1Dropped" or bool(capabilities & PerformanceCapability.QP1_DROP)

    def suppressing(self, names: Iterable[str]) -> Thresholds:
        """Return a copy of these thresholds that ignores further counters."""
        return Thresholds(self.limits, self.suppressed | {counterName(name) for name in names})


def counterName(text: str) -> str:
    """
    Return the field name of a counter, whose name may be in the spelling of infiniband-diags or txrdma.

    @raise InvalidRequest: there is no such counter.
    """
    known = (*ERROR_COUNTERS, UNCORRECTABLE)
    for name in known:
        if name.lower() == text.strip().lower():
            return name
    raise InvalidRequest(f"there is no counter {text!r}, but {', '.join(map(shownName, known))}")


def shownName(name: str) -> str:
    """Return a counter's name in the spelling of infiniband-diags: C{"PortXmitDiscards"}."""
    return _SHOWN.get(name, name[:1].upper() + name[1:])


_SHOWN: Final = {"vl15Dropped": "VL15Dropped", "qp1Dropped": "QP1Dropped"}


def parseThresholds(text: str, name: str = "thresholds") -> Thresholds:
    """
    Parse an infiniband-diags thresholds file: lines C{PortXmitDiscards=100}, comments after C{#}.

    @raise InvalidRequest: a line is invalid; the message contains its number.
    """
    limits = {}
    for number, line in enumerate(text.splitlines(), 1):
        setting = line.partition("#")[0].strip()
        if not setting:
            continue
        counter, sign, value = setting.partition("=")
        try:
            if not sign:
                raise InvalidRequest("a counter and a number, as PortXmitDiscards=100")
            limits[counterName(counter)] = int(value, 0)
        except (InvalidRequest, ValueError) as error:
            raise InvalidRequest(f"{name}, line {number}: {error}") from error
    return Thresholds(limits)


def readThresholds(path: str = "") -> Thresholds:
    """
    Read a thresholds file; without a path the host's C{DEFAULT_THRESHOLDS}, if it exists.

    @raise InvalidRequest: the file cannot be read or parsed.
    """
    # The method of Path raises PermissionError before Python 3.14.
    if not path and not os.path.exists(DEFAULT_THRESHOLDS):
        return Thresholds()
    named = path or str(DEFAULT_THRESHOLDS)
    return parseThresholds(readText("thresholds", named), named)


# Counters.


@dataclass(slots=True)
class Counted:
    """
    Counters read from a port.

    @ivar number: port number; C{ALL_PORTS} for the sum of all ports of a switch.
    @ivar errors: error counters that exceed their thresholds.
    @ivar data: traffic counters, if requested.
    @ivar details: causes of errors and discards, if requested.
    @ivar isWide: whether the error counters have 64 bits.
    """

    node: Node
    number: int
    errors: dict[str, int] = field(default_factory=dict)
    data: dict[str, int] = field(default_factory=dict)
    details: dict[str, int] = field(default_factory=dict)
    isWide: bool = False


@dataclass(slots=True)
class CounterReport:
    """
    Counters of all queried ports.

    @ivar ports: ports with errors, or all ports if only data was requested; grouped by node.
    @ivar silent: nodes that did not answer every query, and the reasons.
    @ivar nodesChecked: number of nodes of which all ports were read.
    @ivar portsChecked: number of ports that were read, also as a part of a switch's sum.
    """

    ports: list[Counted] = field(default_factory=list)
    silent: list[tuple[Node, str]] = field(default_factory=list)
    nodesChecked: int = 0
    portsChecked: int = 0

    @property
    def bad(self) -> list[Counted]:
        """Ports with errors, without the sums of switches."""
        return [port for port in self.ports if port.errors and port.number != ALL_PORTS]


class CounterCapabilities(NamedTuple):
    """Capabilities of a performance management agent: both CapabilityMasks of its ClassPortInfo."""

    mask: int
    mask2: int

    @property
    def hasSums(self) -> bool:
        """Whether the sum of the counters of all ports of a switch can be queried."""
        return bool(self.mask & PerformanceCapability.ALL_PORT_SELECT)

    @property
    def isWide(self) -> bool:
        """Whether traffic counters with 64 bits are available."""
        return bool(self.mask & _WIDE)

    @property
    def hasCasts(self) -> bool:
        """Whether unicast and multicast packets are counted separately."""
        return bool(self.mask & PerformanceCapability.EXTENDED_WIDTH)

    @property
    def hasWideErrors(self) -> bool:
        """Whether error counters have 64 bits, too; PortCountersExtended then contains all counters."""
        return self.isWide and bool(self.mask2 & _ADDITIONAL)


class _Unaddressed(Exception):
    """A node has no LID."""


@dataclass(slots=True)
class _NodeReading:
    """
    What was read from a node.

    @ivar wanted: number of its ports with counters.
    @ivar read: number of ports that were read.
    @ivar counted: counters of the ports to report.
    """

    wanted: int = 0
    read: int = 0
    counted: list[Counted] = field(default_factory=list)


class CounterSurvey:
    """
    Survey of all ports' counters, with many Gets outstanding at a time.

    A switch that supports it is first queried for the sum of its ports; only if the sum exceeds a threshold
    are the ports queried one by one. Errors are read from the 64-bit counters if a port has them, as the
    others saturate early.

    @ivar progress: called with the number of completed nodes and the number of all nodes.
    @ivar done: number of completed nodes.
    @ivar report: what was read, complete when the survey ends, also when it is cancelled.
    """

    def __init__(
        self,
        rpcs: RPCs,
        endPort: MADEndPort,
        thresholds: Thresholds | None = None,
        *,
        withData: bool = False,
        dataOnly: bool = False,
        withDetails: bool = False,
        clear: str = "",
        maxOutstanding: int = _OUTSTANDING,
        progress: Callable[[int, int], None] | None = None,
    ) -> None:
        """
        @param withData: also read the traffic counters of ports with errors.
        @param dataOnly: read only traffic counters, of all ports.
        @param withDetails: also read the causes of errors and discards.
        @param clear: counters to set to zero after reading: C{"errors"}, C{"data"} or C{"errors data"}.
        """
        self._rpcs = MADSchedule(rpcs, maxOutstanding)
        self._endPort = endPort
        self._thresholds = thresholds or Thresholds()
        self._withData = withData
        self._dataOnly = dataOnly
        self._withDetails = withDetails
        words = clear.split()
        self._clearsErrors, self._clearsData = "errors" in words, "data" in words
        self.done = 0
        self.report = CounterReport()
        self.progress = progress

    def run(self, nodes: Iterable[Node]) -> Deferred[CounterReport]:
        """
        Read the counters of these nodes' ports.

        @return: fires with the report; fails with L{DeviceUnavailable<txrdma.error.DeviceUnavailable>} if the
            local port is lost.
        """
        return Deferred.fromCoroutine(self._run(list(nodes)))

    async def _run(self, nodes: list[Node]) -> CounterReport:
        report = self.report
        found: dict[GUID, _NodeReading] = {}

        async def readNode(node: Node) -> None:
            try:
                await self._ofNode(node, found.setdefault(node.guid, _NodeReading()))
            except (MADFailure, _Unaddressed) as error:
                report.silent.append((node, str(error)))
            self.done += 1
            if self.progress is not None:
                self.progress(self.done, len(nodes))

        try:
            await self._rpcs.run(mqueue=(readNode(node) for node in nodes))
        finally:  # cleared counters are lost unless they are reported
            for node in nodes:
                reading = found.get(node.guid, _NodeReading())
                report.ports += reading.counted
                report.portsChecked += reading.read
                report.nodesChecked += reading.read > 0 and reading.read == reading.wanted
        return report

    async def _ofNode(self, node: Node, found: _NodeReading) -> None:
        """Read a node's counters: of a switch at its one LID, of a host at the LID of each port."""
        ports = [port for port in countingPorts(node) if port.lid]
        if not ports:
            raise _Unaddressed("it has no LID, so its counters cannot be read")
        found.wanted = len(ports)
        if node.isSwitch or len(ports) == 1:
            await self._ofPorts(node, ports, found)
            return
        # Each port of a host has its own path: one without a link does not hide the others.
        failures: list[tuple[Port, MADFailure]] = []
        for port in ports:
            try:
                await self._ofPorts(node, [port], found)
            except MADFailure as error:
                failures.append((port, error))
        if len(failures) == len(ports):
            raise failures[0][1]
        self.report.silent += ((node, f"port {port.number}: {error}") for port, error in failures)

    async def _ofPorts(self, node: Node, ports: list[Port], found: _NodeReading) -> None:
        """Read the counters of all ports of a switch, or of one port of another node."""
        path = toLID(self._endPort, ports[0].lid)
        answer = await self._rpcs.PerformanceGet(ClassPortInfo, path)
        able = CounterCapabilities(answer.capabilityMask, answer.capabilityMask2)
        if node.isSwitch and able.hasSums and not self._dataOnly:
            try:
                total = await self._ofPort(node, ALL_PORTS, path, able)
                if not total.errors:
                    await self._clear(ALL_PORTS, path, able)
                    found.read = len(ports)
                    return
                found.counted.append(total)
            except MADError:
                pass  # the sum only saves queries of the ports
        for port in ports:
            where = toLID(self._endPort, port.lid)
            try:
                counted = await self._ofPort(node, port.number, where, able)
                found.read += 1
                if counted.errors or self._dataOnly:
                    found.counted.append(counted)
                await self._clear(port.number, where, able)
            except MADError as error:  # after a refusal, unlike a timeout, other ports may still be readable
                self.report.silent.append((node, f"port {port.number}: {error}"))

    async def _ofPort(self, node: Node, number: int, path: IBPath, able: CounterCapabilities) -> Counted:
        """Read the error and data counters that this command shows for a port, by few requests."""
        counted = Counted(node, number, isWide=able.hasWideErrors)
        wide: PortCountersExtended | None = None
        plain: PortCounters | None = None
        if able.hasWideErrors or (self._dataOnly and able.isWide):
            wide = await self._wide(number, path)
        if wide is None:
            counted.isWide = False
            plain = await self._rpcs.PerformanceGet(PortCounters(portSelect=number), path)
        if not self._dataOnly:
            counters = plain or wide
            assert counters is not None  # one of them was queried
            counted.errors = self._thresholds.exceeded(counters, able.mask)
        if self._dataOnly or (self._withData and counted.errors):
            if able.isWide and not (self._dataOnly or able.hasWideErrors):
                wide = await self._wide(number, path)
            names = DATA_COUNTERS + (UNICAST_COUNTERS if wide is not None and able.hasCasts else ())
            counted.data = {name: getattr(wide or plain, name) for name in names}
        if self._withDetails and counted.errors:
            counted.details = await self._details(node, number, path)
        return counted

    async def _wide(self, number: int, path: IBPath) -> PortCountersExtended | None:
        """Query the 64-bit counters; None if the port refuses, although its node announces them."""
        try:
            return await self._rpcs.PerformanceGet(PortCountersExtended(portSelect=number), path)
        except MADError:
            return None

    async def _details(self, node: Node, number: int, path: IBPath) -> dict[str, int]:
        """Query the nonzero causes of errors and discards; an empty dictionary without these attributes."""
        found: dict[str, int] = {}
        for kind in (PortRcvErrorDetails, PortXmitDiscardDetails):
            try:
                answer = await self._rpcs.PerformanceGet(kind(portSelect=number), path)
            except MADError:
                continue
            except MADFailure as error:
                whose = "all ports" if number == ALL_PORTS else f"port {number}"
                self.report.silent.append((node, f"{whose}: {kind.__name__}: {error}"))
                continue
            names = (each.name for each in kind.fields if each.name.startswith("port"))
            values = ((name, getattr(answer, name)) for name in names if name != "portSelect")
            found.update((name, value) for name, value in values if value)
        return found

    async def _clear(self, number: int, path: IBPath, able: CounterCapabilities) -> None:
        """Clear the selected counters in all attributes that contain them."""
        first = (_ERROR_BITS if self._clearsErrors else 0) | (_DATA_BITS if self._clearsData else 0)
        if not first:
            return
        second = _WAIT_AND_QP1 if self._clearsErrors else 0
        await self._rpcs.PerformanceSet(
            PortCounters(portSelect=number, counterSelect=first, counterSelect2=second), path
        )
        data = (_WIDE_DATA | (_WIDE_CASTS if able.hasCasts else 0)) if self._clearsData else 0
        errors = _WIDE_ERRORS if self._clearsErrors and able.hasWideErrors else 0
        if able.isWide and (data or errors):
            wide = PortCountersExtended(portSelect=number, counterSelect=data, counterSelect2=errors)
            await self._rpcs.PerformanceSet(wide, path)


def countingPorts(node: Node) -> list[Port]:
    """Return the ports with counters: the known ones of a host; those of a switch, and an enhanced port 0."""
    if not node.isSwitch:
        return [port for port in node.ports.values() if port.raw]
    first = 0 if node.switchInfo is not None and node.switchInfo.enhancedPort0 else 1
    return [node.port(number) for number in range(first, node.numPorts + 1)]
