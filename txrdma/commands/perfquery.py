"""
C{txrdma perfquery}: what ports have counted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Final

from twisted.internet.task import deferLater
from twisted.python import usage

from txrdma.commands.attributefields import attributeDict
from txrdma.commands.counters import added, changed, counterNames, Rates, ratesTable
from txrdma.commands.fabrics import confirmed, count, FabricOptions, opened, Session, TARGETS, tellJSON, where
from txrdma.commands.fabrics import seconds as timeOption
from txrdma.commands.tables import show
from txrdma.error import InvalidRequest
from txrdma.iba.path import IBPath
from txrdma.iba.verbs import NodeType
from txrdma.mad import pma
from txrdma.mad.attributes import Attribute
from txrdma.mad.messages import ClassPortInfo
from txrdma.mad.pma import PerformanceCapability, PortCounters, PortCountersExtended
from txrdma.mad.smp import NodeInfo

ALL_PORTS: Final = 0xFF
_ADDITIONAL: Final = 1 << 1
"""Of ClassPortInfo's CapabilityMask2: the extended counters have errors, too (IBA 16.1.3.1)."""

_CLEARED: Final = {
    PortCounters: {"counterSelect": 0xFFFF, "counterSelect2": 1},
    PortCountersExtended: {"counterSelect": 0xFFFF, "counterSelect2": 0xFFFFFFFF},
}

KINDS: Final[dict[str, type[Attribute]]] = {
    "counters": PortCounters,
    "extended": PortCountersExtended,
    "xmtsl": pma.PortXmitDataSL,
    "rcvsl": pma.PortRcvDataSL,
    "xmtdisc": pma.PortXmitDiscardDetails,
    "rcverr": pma.PortRcvErrorDetails,
    "speeds": pma.PortExtendedSpeedsCounters,
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
}


class CommandOptions(FabricOptions):
    """Which counters, of which ports."""

    synopsis = "[options] [TARGET [PORTS]]"
    longdesc = (
        "Show what ports have counted. PORTS are numbers, as 1,4-7; without, it is the port of the LID, and "
        "of a switch all of them together. --watch shows rates, of the extended counters where there are. "
        + TARGETS
    )
    optFlags = [
        ["extended", "x", "The counters of 64 bits (as --kind extended)."],
        ["all-ports", "a", "All ports of the node, added."],
        ["loop-ports", "l", "All ports of the node, or those given, one after the other."],
        ["reset", "r", "Clear the counters when they are read."],
        ["reset-only", "R", "Clear the counters, and don't show them."],
        ["yes", "y", "Don't ask before counters are cleared."],
    ]
    optParameters = [
        ["kind", "k", "counters", "Which counters: " + ", ".join(KINDS) + "."],
        ["mask", None, None, "CounterSelect of what to clear. [default: everything]", count],
        ["watch", "w", None, "Show rates every so many seconds, until Ctrl-C.", timeOption],
        ["count", "c", 0, "Stop --watch after so many times.", count],
    ]

    def parseArgs(self, target: str = "", ports: str = "") -> None:
        self["target"], self["ports"] = target, portNumbers(ports)

    def postOptions(self) -> None:
        if self["extended"]:
            self["kind"] = "extended"
        if self["kind"] not in KINDS:
            raise usage.UsageError(f"--kind {self['kind']}: there are {', '.join(KINDS)}")
        if self["watch"] and (self["reset"] or self["reset-only"]):
            raise usage.UsageError("--watch and clearing don't go together: the rates would be wrong")


def portNumbers(text: str) -> list[int]:
    """
    C{"1,4-7"} as numbers.

    @raise usage.UsageError: these are none.
    """
    found: list[int] = []
    for part in text.split(",") if text else ():
        low, dash, high = part.partition("-")
        try:
            first, last = int(low), int(high if dash else low)
        except ValueError:
            raise usage.UsageError(f"ports {text!r}: say them as 1,4-7") from None
        if not 0 <= first <= last <= 255:
            raise usage.UsageError(f"ports {text!r}: they are from 0 to 255")
        found += range(first, last + 1)
    return found


@dataclass(frozen=True, slots=True)
class Counted:
    """Whose counters: what its performance agent can, and which ports."""

    path: IBPath
    info: ClassPortInfo
    ports: Sequence[int]
    isSum: bool

    def can(self, capability: PerformanceCapability) -> bool:
        """Whether the agent says that it can."""
        return bool(self.info.capabilityMask & capability)

    @property
    def hasExtended(self) -> bool:
        """Whether it has counters of 64 bits."""
        return self.can(PerformanceCapability.EXTENDED_WIDTH) or self.can(
            PerformanceCapability.EXTENDED_WIDTH_NO_IETF
        )

    def hides(self, kind: type[Attribute]) -> frozenset[str]:
        """Fields that mean nothing here."""
        if kind is PortCountersExtended and not self.info.capabilityMask2 & _ADDITIONAL:
            names = [field.name for field in PortCountersExtended.fields]
            return frozenset(["counterSelect2", *names[names.index("symbolErrorCounter") :]])
        if kind is PortCounters and not self.can(PerformanceCapability.XMIT_WAIT):
            return frozenset(("counterSelect2", "portXmitWait"))
        return frozenset()


async def carryOut(reactor: Any, options: CommandOptions) -> None:
    """C{txrdma perfquery}."""
    kind = KINDS[options["kind"]]
    with opened(reactor, options) as session:
        counted = await whose(session)
        if kind is PortCountersExtended and not counted.hasExtended:
            raise InvalidRequest(f"{where(counted.path)} has no counters of 64 bits")
        if options["watch"]:
            await _watch(session, counted, PortCountersExtended if counted.hasExtended else kind)
            return
        if options["reset"] or options["reset-only"]:
            confirmed(f"clear the counters of {where(counted.path)}", options["yes"])
        told = [] if options["reset-only"] else await readAll(session, counted, kind)
        if options["reset"] or options["reset-only"]:
            for port in counted.ports:
                await clear(session, counted, kind, port)
    _tell(options, counted, kind, told)


async def whose(session: Session) -> Counted:
    """Find out which ports are meant, and what can be asked there."""
    options = session.options
    path = await session.toServices(options["target"])
    info = await session.rpcs.PerformanceGet(ClassPortInfo, path)
    wantsAll, loops, ports = options["all-ports"], options["loop-ports"], options["ports"]
    if ports and not wantsAll:
        return Counted(path, info, ports, False)
    node = await session.agent.SubnGet(NodeInfo, path)
    isSwitch = node.nodeType is NodeType.SWITCH
    if not ports and not loops and not wantsAll and not isSwitch:
        return Counted(path, info, [node.localPortNum], False)
    first = 0 if isSwitch else 1
    every = ports or (range(1, node.numPorts + 1) if isSwitch else [node.localPortNum])
    if loops and not wantsAll:
        return Counted(path, info, ports or (range(first, node.numPorts + 1) if isSwitch else every), False)
    if not ports and info.capabilityMask & PerformanceCapability.ALL_PORT_SELECT:
        return Counted(path, info, [ALL_PORTS], False)
    return Counted(path, info, every, True)


async def read(session: Session, counted: Counted, kind: type[Attribute], port: int) -> Any:
    """The counters of one port."""
    return await session.rpcs.PerformanceGet(_asked(kind, port), counted.path)


async def readAll(session: Session, counted: Counted, kind: type[Attribute]) -> list[Any]:
    """The counters of all ports that are meant, one after the other or added."""
    told = [await read(session, counted, kind, port) for port in counted.ports]
    return [added(told, ALL_PORTS)] if counted.isSum and told else told


async def clear(session: Session, counted: Counted, kind: type[Attribute], port: int) -> None:
    """Clear the counters of one port."""
    values = dict(_CLEARED.get(kind, {"counterSelect": 0xFFFF}))
    if session.options["mask"] is not None:
        values = {"counterSelect": session.options["mask"]}
    if kind is PortCounters and not counted.can(PerformanceCapability.XMIT_WAIT):
        values.pop("counterSelect2", None)
    if kind is PortCountersExtended and not counted.info.capabilityMask2 & _ADDITIONAL:
        values.pop("counterSelect2", None)
    await session.rpcs.PerformanceSet(_asked(kind, port, **values), counted.path)


def _asked(kind: type[Attribute], port: int, **values: int) -> Attribute:
    return kind(portSelect=port, **values)  # type: ignore[call-arg]  # all of KINDS have it


def _tell(options: CommandOptions, counted: Counted, kind: type[Attribute], told: list[Any]) -> None:
    hidden = counted.hides(kind)
    if options["json"]:
        counters = [
            {name: value for name, value in attributeDict(one).items() if name not in hidden} for one in told
        ]
        tellJSON({"attribute": kind.__name__, "path": where(counted.path), "ports": counters})
        return
    for one in told:
        print(f"# {kind.__name__}: {where(counted.path)} port {one.portSelect}")
        for line in str(one).splitlines():
            if line.partition(":")[0] not in hidden:
                print(line)
    if options["reset"] or options["reset-only"]:
        print("cleared")


async def _watch(session: Session, counted: Counted, kind: type[Attribute]) -> None:
    """Rates, until Ctrl-C."""
    options, clock = session.options, session.reactor
    names = [name for name in counterNames(kind) if name not in counted.hides(kind)]
    before, then = await readAll(session, counted, kind), clock.seconds()
    shown = 0
    while not options["count"] or shown < options["count"]:
        await deferLater(clock, options["watch"])
        after, now = await readAll(session, counted, kind), clock.seconds()
        rates = [
            Rates(one.portSelect, now - then, changed(one, other, names))
            for one, other in zip(before, after, strict=True)
        ]
        if options["json"]:
            import json

            print(json.dumps([each.toDict() for each in rates]), flush=True)
        else:
            show(ratesTable(rates))
        before, then = after, now
        shown += 1
