"""C{txrdma perfquery}: reads, watches and clears performance counters of ports."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from twisted.internet.task import deferLater
from twisted.python import usage

from txrdma.commands.common.attributefields import attributeDict
from txrdma.commands.common.options import columns
from txrdma.commands.common.rows import printJSON, showRows
from txrdma.commands.common.session import FabricOptions, opened, Session, TARGETS, where
from txrdma.commands.common.values import count, portNumbers
from txrdma.commands.common.values import seconds as timeOption
from txrdma.error import InvalidRequest
from txrdma.fabric.errorcorrection import REED_SOLOMON
from txrdma.fabric.errorcounters import ALL_PORTS, CounterCapabilities
from txrdma.fabric.rates import added, changed, counterNames, errorNames, Increase, Rates, TRAFFIC, WORD
from txrdma.iba.path import IBPath
from txrdma.iba.verbs import NodeType
from txrdma.mad.errors import MADError, MADFailure
from txrdma.mad.layouts import pma
from txrdma.mad.layouts.attributes import Attribute
from txrdma.mad.layouts.messages import ClassPortInfo
from txrdma.mad.layouts.pma import PerformanceCapability, PortCounters, PortCountersExtended
from txrdma.mad.layouts.smp import NodeInfo, PortInfoExtended, SwitchInfo
from txrdma.mad.schedule import MADSchedule

_CLEARED: Final = {PortCounters: {"counterSelect2": 3}, PortCountersExtended: {"counterSelect2": 0xFFFFFFFF}}
"""Select fields besides C{counterSelect} of a Set that clears counters."""

KINDS: Final[dict[str, type[Attribute]]] = {
    "counters": PortCounters,
    "extended": PortCountersExtended,
    "xmtsl": pma.PortXmitDataSL,
    "rcvsl": pma.PortRcvDataSL,
    "xmtdisc": pma.PortXmitDiscardDetails,
    "rcverr": pma.PortRcvErrorDetails,
    "speeds": pma.PortExtendedSpeedsCounters,
    "rsfec": pma.PortExtendedSpeedsCountersRSFEC,
    "oprcv": pma.PortOpRcvCounters,
    "flow": pma.PortFlowCtlCounters,
    "vloppackets": pma.PortVLOpPackets,
    "vlopdata": pma.PortVLOpData,
    "vlflowerrors": pma.PortVLXmitFlowCtlUpdateErrors,
    "vlwait": pma.PortVLXmitWaitCounters,
    "vlcongestion": pma.SwPortVLCongestion,
    "rcvcc": pma.PortRcvConCtrl,
    "slfecn": pma.PortSLRcvFECN,
    "slbecn": pma.PortSLRcvBECN,
    "xmitcc": pma.PortXmitConCtrl,
    "vltimecc": pma.PortVLXmitTimeCong,
    "samples": pma.PortSamplesControl,
    "result": pma.PortSamplesResult,
    "result64": pma.PortSamplesResultExtended,
}

ALIASES: Final = {
    "extended_speeds": "speeds",
    "oprcvcounters": "oprcv",
    "flowctlcounters": "flow",
    "vlxmitflowctlerrors": "vlflowerrors",
    "vlxmitcounters": "vlwait",
    "swportvlcong": "vlcongestion",
    "slrcvfecn": "slfecn",
    "slrcvbecn": "slbecn",
    "vlxmittimecc": "vltimecc",
    "smplctl": "samples",
}
"""Options of infiniband-diags' perfquery, and the names of their kinds; both names are accepted."""

_SAMPLED: Final = (pma.PortSamplesControl, pma.PortSamplesResult, pma.PortSamplesResultExtended)
_MOST_OUTSTANDING: Final = 16


class CommandOptions(FabricOptions):
    """Options of C{txrdma perfquery}: the counters and the ports."""

    synopsis = "[options] [TARGET [PORTS]]"
    longdesc = (
        "Show the counters of ports. PORTS are numbers, as 1,4-7, or all; the default is the port of the "
        "LID, and for a switch the sum of all ports. --watch shows rates, of the extended counters if "
        "the port has them and no --kind is given; it marks counters that are full or were cleared; with "
        "--reset they are cleared after each reading. The exit status is 1 if a port was not read or "
        "cleared. " + TARGETS
    )
    optFlags = [
        ["extended", "x", "64-bit counters (as --kind extended)."],
        ["all-ports", "a", "Show the sum of all ports of the node."],
        ["loop-ports", "l", "Show all ports of the node, or the given ones, separately."],
        ["reset", "r", "Clear the counters after reading them."],
        ["reset-only", "R", "Clear the counters without showing them."],
        ["yes", "y", "Do not ask for confirmation before counters are cleared."],
    ]
    optParameters = [
        ["kind", "k", None, "Kind of counters, as listed below. [default: counters]"],
        ["mask", None, None, "CounterSelect of the counters to clear. [default: all]", count],
        ["watch", "w", None, "Show rates every N seconds, until Ctrl-C.", timeOption],
        ["count", "c", 0, "Number of readings of --watch; 0 for no limit.", count],
    ]

    appendix = (
        "Kinds of counters and their attributes:",
        "",
        *columns(*((name, kind.__name__) for name, kind in KINDS.items())),
    )

    def parseArgs(self, target: str = "", ports: str = "", *rest: str) -> None:
        if rest:
            raise usage.UsageError("expected TARGET and PORTS; for CounterSelect use --mask")
        self["target"] = target
        self["all-ports"] = self["all-ports"] or ports in ("all", str(ALL_PORTS))
        self["ports"] = [] if ports in ("all", str(ALL_PORTS)) else portNumbers(ports)

    def postOptions(self) -> None:
        self["isConfirmed"] = self["extended"] or self["kind"] is not None
        kind = "extended" if self["extended"] else self["kind"] or "counters"
        self["kind"] = ALIASES.get(kind.replace("-", "_"), kind)
        if self["kind"] not in KINDS:
            raise usage.UsageError(f"--kind {self['kind']}: expected one of {', '.join(KINDS)}")
        isSampled = KINDS[self["kind"]] in _SAMPLED
        if isSampled and (self["watch"] or self["reset"] or self["reset-only"]):
            raise usage.UsageError(f"--kind {self['kind']}: samples have no --watch, --reset, --reset-only")
        if self["mask"] is not None and not isSampled:
            self.checkRanges(("mask", 1, (1 << _widthOf(KINDS[self["kind"]], "counterSelect")) - 1))
        if self["watch"] and self["reset-only"]:
            raise usage.UsageError("--watch and --reset-only don't go together: there would be no rates")
        if self["watch"] and self["mask"] is not None:
            raise usage.UsageError("--watch and --mask don't go together: rates are those of all counters")


@dataclass(frozen=True, slots=True)
class CounterSource:
    """Ports to read, and the capabilities of their performance management agent."""

    path: IBPath
    able: CounterCapabilities
    ports: Sequence[int]
    isSum: bool

    def hides(self, kind: type[Attribute]) -> frozenset[str]:
        """Return the names of an attribute's fields that this agent does not support."""
        if kind is PortCountersExtended and not self.able.hasWideErrors:
            names = [field.name for field in PortCountersExtended.fields]
            return frozenset(["counterSelect2", *names[names.index("symbolErrorCounter") :]])
        if kind is PortCounters and not self.able.mask & PerformanceCapability.XMIT_WAIT:
            return frozenset(("counterSelect2", "portXmitWait"))
        return frozenset()


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run C{txrdma perfquery}: print, watch or clear counters."""
    kind = KINDS[options["kind"]]
    with opened(reactor, options) as session:
        counted = await counterSource(session)
        if kind is PortCountersExtended and not counted.able.isWide:
            raise InvalidRequest(f"{where(counted.path)} has no 64-bit counters")
        if kind is pma.PortExtendedSpeedsCounters and await _correctsByReedSolomon(session, counted):
            kind = pma.PortExtendedSpeedsCountersRSFEC
        name = await session.nameAt(counted.path)
        isClearing = options["reset"] or options["reset-only"]
        if isClearing:
            await session.confirmed(f"clear the counters of {where(counted.path)}", counted.path)
        if options["watch"]:
            await _watch(session, counted, watched(counted, kind, options["isConfirmed"]))
            return
        found = await reading(session, counted, [kind])
        isUseless = not found.counters and len(found.failures) == len(counted.ports)
        if found.failures and (isUseless or not isClearing):
            await found.fail(session, counted)
    answers = [found.counters[port][0] for port in counted.ports if port in found.counters]
    if counted.isSum and answers and kind not in _SAMPLED and not found.failures:
        answers = [added(answers, ALL_PORTS)]
    _print(options, counted, kind, answers, name)
    if found.failures:
        for line in found.text(counted):
            print(f"not cleared: {line}", file=sys.stderr)
        raise SystemExit(1)
    if isClearing and not options["json"]:
        print("cleared")


async def counterSource(session: Session) -> CounterSource:
    """Return the ports that the options select, and the capabilities of their agent."""
    options = session.options
    path = await session.toServices(options["target"])
    info = await session.rpcs.PerformanceGet(ClassPortInfo, path)
    able = CounterCapabilities(info.capabilityMask, info.capabilityMask2)
    wantsAll, loops, ports = options["all-ports"], options["loop-ports"], options["ports"]
    if ports and not wantsAll:
        return CounterSource(path, able, ports, False)
    node = await session.agent.SubnGet(NodeInfo, path)
    isSwitch = node.nodeType is NodeType.SWITCH
    if not ports and not loops and not wantsAll and not isSwitch:
        return CounterSource(path, able, [node.localPortNum], False)
    first = 1
    if isSwitch and loops and (await session.agent.SubnGet(SwitchInfo, path)).enhancedPort0:
        first = 0  # base port 0 has no counters
    every = ports or (range(first, node.numPorts + 1) if isSwitch else [node.localPortNum])
    if loops:
        return CounterSource(path, able, every, False)
    if not ports and able.hasSums:
        return CounterSource(path, able, [ALL_PORTS], False)
    return CounterSource(path, able, every, True)


async def _correctsByReedSolomon(session: Session, counted: CounterSource) -> bool:
    """Return whether extended speeds use RS-FEC counters, by the PortInfoExtended of the first port."""
    if not counted.able.mask & PerformanceCapability.RS_FEC:
        return False
    port = 1 if counted.ports[0] in (0, ALL_PORTS) else counted.ports[0]
    try:
        answers = await session.agent.SubnGet(PortInfoExtended, counted.path, port)
    except MADError:
        return False
    return answers.fecModeActive in REED_SOLOMON


@dataclass(slots=True)
class Reading:
    """
    Counters of ports as they were read at one time.

    @ivar counters: attributes by port, in the order in which they were requested.
    @ivar times: time in seconds at which each port was read.
    @ivar failures: why ports were not read, or not cleared.
    """

    counters: dict[int, list[Any]] = field(default_factory=dict)
    times: dict[int, float] = field(default_factory=dict)
    failures: dict[int, MADFailure] = field(default_factory=dict)

    async def fail(self, session: Session, counted: CounterSource) -> None:
        """Raise the error of the first port that was not read, or not cleared."""
        error = next(self.failures[port] for port in counted.ports if port in self.failures)
        if isinstance(error, MADError):
            await session.checkPorts(counted.path, counted.ports, error)
        raise error

    def text(self, counted: CounterSource) -> Iterator[str]:
        """Return why ports were not read or not cleared: a line for each reason, with its ports."""
        for text in dict.fromkeys(map(str, self.failures.values())):
            ports = [port for port, error in sorted(self.failures.items()) if str(error) == text]
            which = f" port {', '.join(map(str, ports))}" if len(counted.ports) > 1 else ""
            yield f"{where(counted.path)}{which}: {text}"


async def reading(session: Session, counted: CounterSource, kinds: Sequence[type[Attribute]]) -> Reading:
    """
    Read the counters of all selected ports concurrently; with C{--reset}, clear those of each port at once.

    With C{--reset-only}, they are only cleared.
    """
    options = session.options
    schedule = MADSchedule(session.rpcs, _MOST_OUTSTANDING)
    found = Reading()

    async def one(port: int) -> None:
        try:
            if not options["reset-only"]:
                answers = [await schedule.PerformanceGet(_asked(kind, port), counted.path) for kind in kinds]
                found.counters[port], found.times[port] = answers, session.reactor.seconds()
            if options["reset"] or options["reset-only"]:
                for kind in kinds:
                    await schedule.PerformanceSet(_clearing(options, counted, kind, port), counted.path)
        except MADFailure as error:
            found.failures[port] = error

    await schedule.run(mqueue=(one(port) for port in counted.ports))
    return found


def _clearing(options: FabricOptions, counted: CounterSource, kind: type[Attribute], port: int) -> Attribute:
    values = {"counterSelect": (1 << _widthOf(kind, "counterSelect")) - 1, **_CLEARED.get(kind, {})}
    if options["mask"] is not None:
        values = {"counterSelect": options["mask"]}
    for name in counted.hides(kind):
        values.pop(name, None)
    return _asked(kind, port, **values)


def _widthOf(kind: type[Attribute], name: str) -> int:
    return next(field.width for field in kind.fields if field.name == name)


def _asked(kind: type[Attribute], port: int, **values: int) -> Attribute:
    if not any(field.name == "portSelect" for field in kind.fields):
        return kind()  # a result is that of the sampled port
    return kind(portSelect=port, **values)  # type: ignore[call-arg]  # just checked


def _print(
    options: CommandOptions, counted: CounterSource, kind: type[Attribute], answers: list[Any], name: str
) -> None:
    hidden = counted.hides(kind)
    if options["json"]:
        counters = [attributeDict(one) for one in answers]
        for each in counters:
            for field in hidden:
                each.pop(field, None)
        known = {"name": name} if name else {}
        printJSON({"attribute": kind.__name__, "path": where(counted.path), **known, "ports": counters})
        return
    for one in answers:
        port = getattr(one, "portSelect", counted.ports[0])
        print(f"# {kind.__name__}: {where(counted.path)} port {port}{f' ({name})' if name else ''}")
        for line in str(one).splitlines():
            if line.partition(":")[0] not in hidden:
                print(line)


@dataclass(frozen=True, slots=True)
class Watched:
    """Counters of an attribute that are read repeatedly."""

    kind: type[Attribute]
    names: list[str]


def watched(counted: CounterSource, kind: type[Attribute], isConfirmed: bool) -> list[Watched]:
    """
    Return the attributes and counters to read repeatedly.

    @param isConfirmed: read only this attribute; otherwise, if the port has 64-bit counters, read these, and
        the error counters that they lack.
    """
    if isConfirmed or not counted.able.isWide:
        return [Watched(kind, [name for name in counterNames(kind) if name not in counted.hides(kind)])]
    wide = watched(counted, PortCountersExtended, True)
    hidden = counted.hides(PortCounters)
    known = {*wide[0].names, *hidden}
    errors = [name for name in errorNames(PortCounters) if name not in known]
    return [*wide, Watched(PortCounters, errors)] if errors else wide


async def _watch(session: Session, counted: CounterSource, kinds: list[Watched]) -> None:
    """
    Print rates until Ctrl-C or the last reading. A failed reading of a port is reported; its next one is
    compared with the last successful one.
    """
    options, clock = session.options, session.reactor
    attributes = [each.kind for each in kinds]
    found = await reading(session, counted, attributes)
    if len(found.failures) == len(counted.ports):
        await found.fail(session, counted)
    before: dict[int, Reading] = {}
    shown = 0
    while True:
        for line in found.text(counted):
            print(line, file=sys.stderr, flush=True)
        if shown and (rates := _rates(counted, kinds, before, found)):
            _showRates(options, rates)
        for port in found.counters:
            if options["reset"] and port not in found.failures:
                found.counters[port] = [_asked(kind, port) for kind in attributes]
            before[port] = found
        if options["count"] and shown == options["count"]:
            return
        await deferLater(clock, options["watch"])
        shown += 1
        found = await reading(session, counted, attributes)


def _rates(
    counted: CounterSource, kinds: list[Watched], before: dict[int, Reading], after: Reading
) -> list[Rates]:
    """
    Return the rates of ports that were read now and before.

    Their sum takes their place if it is wanted, and if all of them were read at the same two times.

    @param before: the last reading of each port.
    """
    ports = [port for port in counted.ports if port in before and port in after.counters]
    readings = [
        (port, after.times[port] - each.times[port], each.counters[port], after.counters[port])
        for port in ports
        for each in [before[port]]
    ]
    isWhole = len(ports) == len(counted.ports) and len({id(before[port]) for port in ports}) == 1
    if counted.isSum and isWhole:
        columns = (zip(*(each[index] for each in readings), strict=True) for index in (2, 3))
        olds, news = ([added(each, ALL_PORTS) for each in column] for column in columns)
        readings = [(ALL_PORTS, sum(each[1] for each in readings) / len(readings), olds, news)]
    rates = []
    for port, seconds, olds, news in readings:
        difference = Increase({})
        for each, old, new in zip(kinds, olds, news, strict=True):
            difference = difference.joined(changed(old, new, each.names))
        rates.append(Rates(port, seconds, difference))
    return rates


def _showRates(options: FabricOptions, rates: list[Rates]) -> None:
    if options["json"]:
        print(json.dumps([each.toDict() for each in rates]), flush=True)
        return
    showRows(_COLUMNS, [_ratesRow(each) for each in rates])
    sys.stdout.flush()


_COLUMNS: Final = ("Port", "Sent MB/s", "Received MB/s", "Sent packets/s", "Received packets/s", "Besides")


def _ratesRow(rates: Rates) -> list[str]:
    """Return table cells: traffic per second, and increases of other counters."""
    others = [f"{name} +{number}" for name, number in rates.counted.items() if number and name not in TRAFFIC]
    others += [f"{name} is full: clear it" for name in rates.increase.saturated]
    others += [f"{name} was cleared" for name in rates.increase.cleared]
    return [
        "all" if rates.port == ALL_PORTS else str(rates.port),
        f"{rates.perSecond('portXmitData', WORD) / 1e6:,.3f}",
        f"{rates.perSecond('portRcvData', WORD) / 1e6:,.3f}",
        f"{rates.perSecond('portXmitPkts'):,.0f}",
        f"{rates.perSecond('portRcvPkts'):,.0f}",
        ", ".join(others),
    ]
