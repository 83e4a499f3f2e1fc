"""
Checks of a fabric: links below their best mode, duplicate identifiers, and subnet managers.

Follows InfiniBand Architecture vol. 1, 14.2.5.6 (PortInfo) and 14.4 (subnet managers).
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, NamedTuple

from txrdma.fabric.errorcounters import ALL_PORTS, CounterReport, shownName
from txrdma.fabric.linkspeeds import fastest, LaneSpeed, RATES
from txrdma.fabric.model import Fabric, Node, Port, Problem
from txrdma.iba.path import IBDRPath, MADEndPort
from txrdma.iba.types import GUID
from txrdma.iba.verbs import PhysicalState, PortState
from txrdma.kit.rawfields import peek
from txrdma.mad.errors import MADFailure
from txrdma.mad.layouts.smp import PortInfo, SMInfo
from txrdma.mad.layouts.values import LANES, PathMTU, PortCapability, SMState
from txrdma.mad.paths import toLID
from txrdma.mad.rpcs import RPCs
from txrdma.mad.schedule import MADSchedule

_NO_LINK: Final = "no-link"
_ZERO: Final = GUID(bytes(8))
_HIGHEST_UNICAST: Final = 0xBFFF
_widthSupported, _widthEnabled = peek(PortInfo, "linkWidthSupported"), peek(PortInfo, "linkWidthEnabled")
_neighborMTU, _physicalState = peek(PortInfo, "neighborMTU"), peek(PortInfo, "portPhysicalState")
_LINK_UP: Final = int(PhysicalState.LINK_UP)
_capabilities, _masterLID = peek(PortInfo, "capabilityMask"), peek(PortInfo, "masterSMLID")
_IS_SM: Final = int(PortCapability.SM)
_FDR10: Final = int(LaneSpeed.FDR10)

_PIECE: Final = 1000
"""Number of links or ports that are checked between two pauses."""


@dataclass(frozen=True, slots=True)
class Cause:
    """
    Identity of the finding that explains another one.

    @ivar where: readable location of that finding, for display only.
    """

    kind: str
    where: str = field(compare=False)
    guid: GUID | None = None
    port: int | None = None

    def __str__(self) -> str:
        return f"{self.kind} at {self.where}"


@dataclass(frozen=True, slots=True)
class Finding:
    """
    A fault that a check has found.

    @ivar kind: one of the kinds of L{txrdma.fabric.advice.ADVICE}, or the kind of a fabric's problem.
    @ivar where: readable location.
    @ivar guid: GUID of the node, if the location is a node or port.
    @ivar port: number of the port, if the location is a port.
    @ivar cause: the finding that explains this one; None for none.
    """

    kind: str
    where: str
    text: str
    guid: GUID | None = None
    port: int | None = None
    cause: Cause | None = None


def _about(kind: str, port: Port, text: str) -> Finding:
    return Finding(kind, str(port), text, port.node.guid, port.number)


def _aboutNode(kind: str, node: Node, text: str) -> Finding:
    return Finding(kind, str(node), text, node.guid)


# Links.


class LinkMode(NamedTuple):
    """Width and speed of a link: number of lanes, and Gbit/s of each lane; 0 if unknown."""

    lanes: int
    gigabits: float


def activeMode(port: Port) -> LinkMode:
    """Return the active width and speed of a port's link."""
    return LinkMode(port.width, port.laneGigabits)


def bestMode(port: Port, asEnabled: bool = False) -> LinkMode:
    """
    Return the best width and speed that both ends of a link support.

    @param asEnabled: consider only widths and speeds that both ends have also enabled.
    """
    ends = [port] if port.peer is None else [port, port.peer]
    if not all(end.raw for end in ends):
        return LinkMode(0, 0.0)
    widths, speeds = 0xFF, -1
    for end in ends:
        widths &= _widthSupported(end.raw)
        speeds &= end.supportedSpeeds
        if asEnabled:
            widths &= _widthEnabled(end.raw)
            speeds &= end.enabledSpeeds
    return LinkMode(_mostLanes(widths), RATES.get(fastest(speeds), 0.0))


@lru_cache
def _mostLanes(widths: int) -> int:
    return max((lanes for flag, lanes in LANES.items() if widths & flag), default=0)


def belowBest(port: Port, asEnabled: bool = False) -> list[str]:
    """Return the better width and speed that a link could have: C{["12X", "53.125 Gbps"]}; else empty."""
    active, best = activeMode(port), bestMode(port, asEnabled)
    parts = []
    if 0 < active.lanes < best.lanes:
        parts.append(f"{best.lanes}X")
    if 0 < active.gigabits < best.gigabits:
        parts.append("FDR10" if best.gigabits == RATES[_FDR10] else f"{best.gigabits} Gbps")
    return parts


def hasLink(port: Port) -> bool:
    """Return whether the physical state of the port is LinkUp."""
    return bool(port.raw) and _physicalState(port.raw) == _LINK_UP


def _linkFindings(fabric: Fabric) -> Iterator[Finding | None]:
    for number, (one, other) in enumerate(fabric.links(), 1):
        if not number % _PIECE:
            yield None
        if not (one.raw and other.raw):
            continue
        there = f"the link to {other}"
        if one.state is not PortState.ACTIVE or other.state is not PortState.ACTIVE:
            states = dict.fromkeys((one.state.name, other.state.name))
            yield _about("state", one, f"{there} is {' and '.join(states)}")
            continue
        best = bestMode(one, asEnabled=True)
        active = LinkMode(min(one.width, other.width), min(one.laneGigabits, other.laneGigabits))
        if active.lanes < best.lanes:
            yield _about("width", one, f"{there} runs with {active.lanes} of {best.lanes} lanes")
        if active.gigabits < best.gigabits:
            rates = f"{active.gigabits} of {best.gigabits} Gbit/s a lane"
            yield _about("speed", one, f"{there} runs at {rates}")
        here, far = _neighborMTU(one.raw), _neighborMTU(other.raw)
        if here != far:
            mtus = f"{PathMTU(here).name} here, {PathMTU(far).name} there"
            yield _about("mtu", one, f"{there} has different MTUs: {mtus}")


# Identifiers.


def _identifierFindings(fabric: Fabric) -> Iterator[Finding | None]:
    owners: dict[int, Port] = {}
    for number, port in enumerate(fabric.endPorts(), 1):
        if not number % _PIECE:
            yield None
        if not port.lid:
            if port.node.isSwitch or hasLink(port):
                yield _about("no-lid", port, "it has no LID")
            continue
        lids = port.lids
        if lids[-1] > _HIGHEST_UNICAST:
            yield _about("bad-lid", port, f"its LIDs {lids[0]} to {lids[-1]} are not for unicast")
        for lid in lids:
            owner = owners.setdefault(lid, port)
            if owner is not port:
                owners[lid], later = sorted((owner, port), key=_rank)
                yield _about("duplicate-lid", later, f"LID {lid} is that of {owners[lid]}, too")
    isLarge = len(fabric.nodes) > _PIECE
    for check in (_guidFindings, _nameFindings, _machineFindings):
        yield from check(fabric)
        if isLarge:
            yield None


def _rank(port: Port) -> tuple[bytes, int]:
    """Return a sort key for ports that share an identifier, since sweeps find ports in varying order."""
    return port.node.guid.raw, port.number


def _guidFindings(fabric: Fabric) -> Iterator[Finding | None]:
    ports: dict[GUID, list[tuple[Node, int]]] = defaultdict(list)
    for count, node in enumerate(list(fabric.nodes.values()), 1):
        if not count % _PIECE:
            yield None
        if node.guid == _ZERO:
            yield _aboutNode("no-guid", node, "its GUID is zero")
        for number, guid in node.portGUIDs.items():
            ports[guid].append((node, number))
    for guid, owners in ports.items():
        if len(owners) > 1:
            first, *others = sorted((node.port(number) for node, number in owners), key=_rank)
            for port in others:
                yield _about("duplicate-guid", port, f"its GUID {guid} is that of {first}, too")


def _nameFindings(fabric: Fabric) -> Iterator[Finding | None]:
    """Report names shared by hosts of different enclosures, not by switches: many keep the vendor's name."""
    named: dict[str, list[Node]] = defaultdict(list)
    for count, node in enumerate(list(fabric.hosts()), 1):
        if not count % _PIECE:
            yield None
        if node.description:
            named[node.description].append(node)
    for name, nodes in named.items():
        if len(nodes) > 1 and len({node.systemImageGUID for node in nodes}) > 1:
            first, *others = sorted(nodes, key=lambda node: node.guid.raw)
            text = f"{name!r} is the name of {len(others)} more, {others[0].guid} for one"
            yield Finding("duplicate-name", str(first), text, first.guid)


def _machineFindings(fabric: Fabric) -> Iterator[Finding | None]:
    """Report machines whose adapters have different host names, the first words of their descriptions."""
    machines: dict[GUID, list[tuple[str, Node]]] = defaultdict(list)
    for count, node in enumerate(list(fabric.hosts()), 1):
        if not count % _PIECE:
            yield None
        words = node.description.split()
        machine = node.systemImageGUID
        if words and machine != _ZERO:
            machines[machine].append((words[0], node))
    for several in machines.values():
        if len({name for name, _node in several}) > 1:
            names: dict[str, Node] = {}
            for name, node in sorted(several, key=lambda one: one[1].guid.raw):
                names.setdefault(name, node)
            first, *others = names.values()
            text = f"{', '.join(map(str, others))} is in the same machine, by its system image GUID"
            yield _aboutNode("two-names", first, text)


# All checks.


def isolation(fabric: Fabric) -> list[Problem]:
    """Return the problem of a sweep that found only the local node, because its port has no link."""
    if len(fabric.nodes) != 1:
        return []
    only = next(iter(fabric.nodes.values()))
    if any(map(hasLink, only.ports.values())):
        return []
    return [Problem(_NO_LINK, str(only), "it has no link, so nothing else was seen")]


def findings(fabric: Fabric) -> list[Finding]:
    """Return faults of a swept fabric: problems of the sweep, faulty identifiers and links."""
    return [one for one in _findings(fabric) if one is not None]


def _findings(fabric: Fabric) -> Iterator[Finding | None]:
    for problem, times in Counter(fabric.problems).items():
        if problem.kind == _NO_LINK:
            continue  # as below
        text = problem.text + (f" ({times} times)" if times > 1 else "")
        yield Finding(problem.kind, problem.where, text)
    yield from _identifierFindings(fabric)
    for problem in isolation(fabric):
        yield _aboutNode(problem.kind, next(iter(fabric.nodes.values())), problem.text)
    yield from _linkFindings(fabric)


def locatedFindings(fabric: Fabric) -> Iterator[Finding | None]:
    """
    Yield L{findings} of a fabric, and None for pauses after milliseconds of work, in which the fabric may
    change. A location known by a directed route is named by the last known port of that route, so that its
    name does not depend on the route of a sweep.
    """
    start = next((node for node in fabric.nodes.values() if node.isLocal), None)
    for one in _findings(fabric):
        yield one if one is None or one.guid or start is None else _located(start, one)


def _located(start: Node, finding: Finding) -> Finding:
    if not finding.where.startswith("DR "):
        return finding
    node: Node | None = start
    last: Port | None = None
    for hop in IBDRPath.fromString(finding.where).drPath:
        port = None if node is None else node.known(hop)
        if port is None:
            break
        last, node = port, None if port.peer is None else port.peer.node
    if last is None:
        return finding
    return Finding(finding.kind, str(last), finding.text, last.node.guid, last.number)


def counterFindings(report: CounterReport) -> list[Finding]:
    """Return faults in a counter report: ports with errors, and nodes that did not answer."""
    found = []
    for counted in report.ports:
        if counted.errors and counted.number != ALL_PORTS:
            parts = ", ".join(f"{shownName(name)} {value}" for name, value in counted.errors.items())
            found.append(_about("errors", counted.node.port(counted.number), parts))
    return found + [_aboutNode("counters-silent", node, why) for node, why in report.silent]


async def managerFindings(rpcs: RPCs, endPort: MADEndPort, fabric: Fabric) -> list[Finding]:
    """Query the subnet managers, and return faults: no master SM, several, or ports that use another SM."""
    if not endPort.smLID:
        return [Finding("no-sm", "our port", "it knows no subnet manager")]
    found: list[Finding] = []
    masters: dict[GUID, int] = {}
    try:
        info = await rpcs.SubnGet(SMInfo, toLID(endPort, endPort.smLID))
        if info.smState is not SMState.MASTER:
            text = f"the subnet manager that is known to us is {info.smState.name}"
            found.append(Finding("no-sm", f"LID {endPort.smLID}", text))
        else:
            masters[info.guid] = endPort.smLID
    except MADFailure as error:
        found.append(Finding("sm-silent", f"LID {endPort.smLID}", f"the subnet manager: {error}"))
    schedule = MADSchedule(rpcs)

    async def ask(port: Port) -> None:
        try:
            info = await schedule.SubnGet(SMInfo, toLID(endPort, port.lid))
        except MADFailure as error:
            found.append(_about("sm-silent", port, f"it reports a subnet manager: {error}"))
            return
        if info.smState is SMState.MASTER:
            masters.setdefault(info.guid, port.lid)

    others = (
        port for port in fabric.endPorts() if _capabilities(port.raw) & _IS_SM and port.lid != endPort.smLID
    )
    await schedule.run(mqueue=(ask(port) for port in list(others) if port.lid))
    if len(masters) > 1:
        lids = ", ".join(f"LID {lid}" for lid in sorted(masters.values()))
        text = f"{len(masters)} subnet managers think they are in charge: {lids}"
        found.append(Finding("several-sms", "subnet managers", text))
    return found + list(_otherManagers(fabric, endPort.smLID))


def recordedManagers(fabric: Fabric) -> list[Finding]:
    """Return faults of subnet management in a snapshot: ports whose SM differs from that of most ports."""
    ports = [port for port in fabric.endPorts() if hasLink(port) and port.lid]
    if not ports:
        return []
    masters = Counter(port.info.masterSMLID for port in ports)
    most = masters.most_common(1)[0][0]
    if not most:
        return [Finding("no-sm", "all ports", "they know no subnet manager")]
    return list(_otherManagers(fabric, most, "that of most"))


def _otherManagers(fabric: Fabric, lid: int, description: str = "ours") -> Iterator[Finding]:
    for port in fabric.endPorts():
        masters = _masterLID(port.raw)
        if masters != lid and hasLink(port) and port.lid:
            text = f"its subnet manager is at LID {masters}, {description} at LID {lid}"
            yield _about("other-sm", port, text)
