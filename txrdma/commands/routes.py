"""C{txrdma routes}: the forwarding tables of one or all switches."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any, Final

from twisted.python import usage

from txrdma.commands.common.progress import ProgressBar
from txrdma.commands.common.rows import hexGUID, printJSON, showRows
from txrdma.commands.common.session import Session, TARGETS
from txrdma.commands.common.sweeping import asking, printProblems, SweepOptions, swept
from txrdma.commands.common.values import count
from txrdma.error import InvalidRequest
from txrdma.fabric.adaptive import (
    AdaptiveTable,
    adaptiveTable,
    MELLANOX,
    NO_GROUPS,
    UNKNOWN_ROUTES,
)
from txrdma.fabric.model import Fabric, Node, Problem
from txrdma.fabric.nodenames import NodeNames
from txrdma.fabric.routeuse import BALANCE_COLUMNS, balances, usesOf
from txrdma.fabric.routing import FIRST_MULTICAST, linearTable, multicastTable, NO_PORT
from txrdma.iba.path import IBPath
from txrdma.iba.types import GUID
from txrdma.iba.verbs import NodeType
from txrdma.mad.errors import MADFailure
from txrdma.mad.layouts.smp import NodeDescription, NodeInfo, PortInfo, SwitchInfo
from txrdma.mad.paths import toLID
from txrdma.mad.rpcs import RPCs
from txrdma.mad.schedule import MADSchedule

_FIRST_PORT: Final = 12
"""Column of port 0 in the text of a multicast forwarding table."""

_WORDS: Final = {
    NodeType.CHANNEL_ADAPTER: "Channel Adapter",
    NodeType.SWITCH: "Switch",
    NodeType.ROUTER: "Router",
}


@dataclass(slots=True)
class RouteTables:
    """
    A switch and its forwarding tables.

    @ivar linear: output port of each LID.
    @ivar adaptive: groups of ports of a switch that routes adaptively.
    @ivar multicast: output ports of each multicast LID.
    @ivar groups: capacity of the multicast table.
    """

    path: IBPath
    info: NodeInfo
    name: str
    lid: int
    linear: bytes = b""
    adaptive: AdaptiveTable = NO_GROUPS
    multicast: dict[int, list[int]] = field(default_factory=dict)
    groups: int = 1

    def narrow(self, port: int) -> None:
        """Remove routes that do not use this output port."""
        self.linear = bytes(each if each == port else NO_PORT for each in self.linear)
        self.multicast = {mlid: exits for mlid, exits in self.multicast.items() if port in exits}


def span(text: str) -> range:
    """Parse a range of LIDs, such as C{"7"} or C{"3-9"}; raise C{ValueError} for another text."""
    first, sign, last = text.partition("-")
    try:
        low, high = int(first, 0), int(last if sign else first, 0)
    except ValueError:
        low = high = -1
    if not 0 <= low <= high <= 0xFFFF:
        raise ValueError("expected a LID, or a range such as 3-9")
    return range(low, high + 1)


class CommandOptions(SweepOptions):
    """Options of C{txrdma routes}: one or all switches, and the tables."""

    synopsis = "[options] [SWITCH]"
    longdesc = (
        "Show the forwarding tables of switches, as ibroute and dump_fts do: for each LID the output "
        "port and the destination. Without SWITCH, which is a TARGET, the tables of all switches are "
        "shown. --over lists the hosts reached over a link of SWITCH, in both directions; --balance "
        "shows the number of LIDs that each switch forwards by each port to other switches. With --load of a "
        "snapshot with tables and no --device nothing is sent. Tables that could not be read are not shown; "
        "then an error is printed and the exit status is 1. " + TARGETS
    )
    optFlags = [
        ["multicast", "M", "Show multicast tables: the ports of each multicast LID."],
        ["no-destinations", "n", "Do not look up the owners of the LIDs."],
        ["all", "a", "Include LIDs without a port."],
        ["balance", None, "Show how evenly the links between switches are used."],
    ]
    optParameters = [
        ["lids", "l", None, "Only these LIDs: 7, or 3-9.", span],
        ["port", "p", None, "Only routes by this port.", count],
        ["over", None, None, "List the hosts reached over the link at this port of SWITCH.", count],
    ]

    def parseArgs(self, switch: str = "") -> None:
        self["switch"] = switch

    def postOptions(self) -> None:
        super().postOptions()
        if self["over"] is not None and not self["switch"]:
            raise usage.UsageError("--over needs SWITCH")
        if self["balance"] and self["switch"]:
            raise usage.UsageError("--balance excludes SWITCH")
        if (self["balance"] or self["over"] is not None) and self["multicast"]:
            raise usage.UsageError("--over and --balance exclude --multicast")


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run C{txrdma routes}: print forwarding tables, or the use of links."""
    isUse = options["balance"] or options["over"] is not None
    owners: dict[int, str] = {}
    with asking(reactor, options) as session:
        fabric = Fabric()
        if isUse and options["load"] and session.loaded is None:
            raise InvalidRequest(
                "--load: with --device, or without tables in the snapshot, its links may be old"
            )
        if not options["switch"] or options["load"] or isUse:
            fabric = await swept(session)
        if isUse:
            show = await _used(session, fabric)
        else:
            switch = options["switch"]
            tables = [await _oneOf(session, switch)] if switch else _allOf(session, fabric)
            tables = await _read(session, tables, fabric)
            if options["port"] is not None:
                for each in tables:
                    each.narrow(options["port"])
            if not (options["no-destinations"] or options["multicast"]):
                owners = _owners(fabric, session.names) if fabric.nodes else await _asked(session, tables)
    if isUse:
        show()
    else:
        _print(options, tables, owners)
    printProblems(fabric)
    if fabric.problems:
        raise SystemExit(1)


def _print(options: CommandOptions, tables: list[RouteTables], owners: dict[int, str]) -> None:
    chosen = options["lids"]
    if options["json"]:
        printJSON([tablesDict(each, options["multicast"], chosen, owners) for each in tables])
        return
    for each in tables:
        if options["multicast"]:
            lines = multicastText(each, chosen, owners)
        else:
            lines = linearText(each, chosen, owners, options["all"])
        for line in lines:
            print(line)


async def _used(session: Session, fabric: Fabric) -> Callable[[], None]:
    """
    Read the forwarding tables and compute the use of links.

    @return: a function that prints the result.
    @raise InvalidRequest: the selected port has no link.
    """
    options, names = session.options, session.names
    tables = _allOf(session, fabric)
    if options["over"] is None:
        tables = await _read(session, tables, fabric, withGroups=True)
        linear = {each.info.nodeGUID: each.linear for each in tables}
        adaptive = {each.info.nodeGUID: each.adaptive for each in tables}
        even = [one for one in balances(fabric, linear, adaptive) if one is not None]
        if options["json"]:
            return lambda: printJSON([each.toDict(names) for each in even])
        return lambda: showRows(BALANCE_COLUMNS, [each.row(names) for each in even])
    chosen = (await _oneOf(session, options["switch"])).info.nodeGUID
    node = fabric.nodes.get(chosen)
    port = None if node is None else node.ports.get(options["over"])
    if port is None or port.peer is None:
        raise InvalidRequest(f"port {options['over']} of {options['switch']} has no link")
    ends = {port.node.guid, port.peer.node.guid}
    tables = [each for each in tables if each.info.nodeGUID in ends]
    tables = await _read(session, tables, fabric, withGroups=True)
    linear = {each.info.nodeGUID: each.linear for each in tables}
    uses = list(usesOf(fabric, port, linear, {each.info.nodeGUID: each.adaptive for each in tables}))
    if options["json"]:
        return lambda: printJSON([each.toDict(names) for each in uses])
    return lambda: print("\n".join(line for each in uses for line in each.text(names)))


async def linearTables(session: Session, fabric: Fabric) -> dict[GUID, bytes]:
    """Read the linear forwarding tables of all switches; failures become problems of the fabric."""
    tables = await _read(session, _allOf(session, fabric), fabric)
    return {each.info.nodeGUID: each.linear for each in tables}


async def _oneOf(session: Session, target: str) -> RouteTables:
    path = await session.toManagement(target)
    info = await session.rpcs.SubnGet(NodeInfo, path)
    description = (await session.rpcs.SubnGet(NodeDescription, path)).text
    if info.nodeType is not NodeType.SWITCH:
        raise InvalidRequest(f"{target} is {description or info.nodeGUID}, which is not a switch")
    lid = (await session.rpcs.SubnGet(PortInfo, path, 0)).lid
    return RouteTables(path, info, session.names.name(info.nodeGUID, description), lid)


def _allOf(session: Session, fabric: Fabric) -> list[RouteTables]:
    byLID = session.options["sa"] or session.options["load"]  # routes of a snapshot may be old
    return [
        RouteTables(
            toLID(session.endPort, node.lid) if byLID or node.route is None else node.route,
            *(node.info, session.names.name(node.guid, node.description), node.lid),
        )
        for node in sorted(fabric.switches(), key=lambda node: node.guid.raw)
    ]


async def _read(
    session: Session, tables: list[RouteTables], fabric: Fabric, withGroups: bool = False
) -> list[RouteTables]:
    """
    Read the tables of all switches concurrently; record failures as problems of the fabric.

    @param withGroups: also those of adaptive routing.
    @return: the tables that were read.
    """
    schedule = MADSchedule(session.readings, session.options["outstanding"])
    isMulticast = session.options.get("multicast", False)
    isRecorded = session.loaded is not None
    done = 0
    found: set[GUID] = set()
    with ProgressBar("reading tables") as progress:

        async def read(each: RouteTables) -> None:
            nonlocal done
            path = toLID(session.endPort, each.lid) if isRecorded else each.path
            node = fabric.nodes.get(each.info.nodeGUID)
            try:
                known = node.switchInfo if isRecorded and node is not None else None
                info = known or await schedule.SubnGet(SwitchInfo, path)
                if isMulticast:
                    each.groups = info.multicastFDBCap or 1
                    each.multicast = await multicastTable(schedule, path, each.info.numPorts, info)
                else:
                    each.linear = await linearTable(schedule, path, info)
                found.add(each.info.nodeGUID)
                if withGroups and node is not None and node.vendorID == MELLANOX:
                    each.adaptive = await _adaptive(schedule, each, path, node, fabric)
            except MADFailure as error:
                fabric.problems.append(Problem("unreachable", str(path), f"{each.name}: {error}"))
            done += 1
            progress(done, len(tables))

        await schedule.run(mqueue=(read(each) for each in tables))
    return [each for each in tables if each.info.nodeGUID in found]


async def _adaptive(
    rpcs: RPCs, tables: RouteTables, path: IBPath, node: Node, fabric: Fabric
) -> AdaptiveTable:
    """Read the groups of a switch; record as a problem of the fabric that they are unknown."""
    try:
        return await adaptiveTable(rpcs, path, node, len(tables.linear) - 1) or NO_GROUPS
    except UNKNOWN_ROUTES as error:
        text = f"{tables.name}: its adaptive routes are unknown ({error}), static ones are shown"
        fabric.problems.append(Problem("contradiction", str(path), text))
        return NO_GROUPS


# Owners of LIDs.


def _owners(fabric: Fabric, names: NodeNames) -> dict[int, str]:
    owners = {}
    for port in fabric.endPorts():
        if port.lid:
            info = port.node.info
            name = names.name(port.node.guid, port.node.description)
            owners.update(_ownersOf(port.lid, port.lmc, info.nodeType, hexGUID(port.guid), name))
    return owners


async def _asked(session: Session, tables: list[RouteTables]) -> dict[int, str]:
    """Query the node at each LID for its name and GUID; omit LIDs without an answer."""
    owners: dict[int, str] = {}
    schedule = MADSchedule(session.rpcs, session.options["outstanding"])

    async def ask(lid: int) -> None:
        path = toLID(session.endPort, lid)
        try:
            info = await schedule.SubnGet(NodeInfo, path)
            description = (await schedule.SubnGet(NodeDescription, path)).text
            number = 0 if info.nodeType is NodeType.SWITCH else info.localPortNum
            port = await schedule.SubnGet(PortInfo, path, number)
        except MADFailure:
            return
        name = session.names.name(info.nodeGUID, description)
        every = _ownersOf(port.lid, port.lmc, info.nodeType, hexGUID(info.portGUID), name)
        if lid in every:
            owners[lid] = every[lid]

    chosen = session.options["lids"]
    lids = {lid for each in tables for lid, _port in valid(each, chosen)}
    await schedule.run(mqueue=(ask(lid) for lid in sorted(lids)))
    return owners


def _ownersOf(lid: int, lmc: int, kind: NodeType, guid: str, name: str) -> dict[int, str]:
    """Return descriptions of all LIDs of a port, as in ibroute; those after the first have a path number."""
    many = 1 << lmc
    owners = {lid + at: f"(path #{at + 1} out of {many}: portguid {guid})" for at in range(1, many)}
    owners[lid] = f"({_WORDS.get(kind, 'Node')} portguid {guid}: {name!r})"
    return owners


# Output.


def valid(tables: RouteTables, chosen: range | None = None) -> Iterator[tuple[int, int]]:
    """Yield each LID that has an output port, with the port."""
    for lid, port in enumerate(tables.linear):
        if lid and port != NO_PORT and (chosen is None or lid in chosen):
            yield lid, port


def linearText(
    tables: RouteTables, chosen: range | None, owners: dict[int, str], isAll: bool = False
) -> Iterator[str]:
    """Yield the lines of a linear table as ibroute does, with C{isAll} also for LIDs without a port."""
    top = max(0, len(tables.linear) - 1)
    low, high = (chosen[0], min(chosen[-1], top)) if chosen else (0, top)
    guid = hexGUID(tables.info.nodeGUID)
    yield f"Unicast lids [{low:#x}-{high:#x}] of switch Lid {tables.lid} guid {guid} ({tables.name}):"
    yield "  Lid  Out   Destination"
    yield "       Port     Info "
    ports = dict(valid(tables, chosen))
    for lid in range(low, high + 1) if isAll else ports:
        if lid not in ports:
            yield f"{lid:#06x} {NO_PORT:03} {': (illegal port)' if owners else ''}"
            continue
        yield (
            f"{lid:#06x} {ports[lid]:03} : {owners[lid]}" if lid in owners else f"{lid:#06x} {ports[lid]:03} "
        )
    yield f"{high - low + 1} lids dumped " if isAll else f"{len(ports)} valid lids dumped "


def multicastText(tables: RouteTables, chosen: range | None, owners: dict[int, str]) -> Iterator[str]:
    """Yield the lines of C{ibroute -M}: a row for each group, with a cross at each output port."""
    guid = hexGUID(tables.info.nodeGUID)
    every = chosen or range(FIRST_MULTICAST, FIRST_MULTICAST + tables.groups)
    low, high = every[0], every[-1]
    yield f"Multicast mlids [{low:#x}-{high:#x}] of switch Lid {tables.lid} guid {guid} ({tables.name}):"
    ports = range(tables.info.numPorts + 1)
    if len(ports) > 10:
        yield " " * _FIRST_PORT + "".join(f"{port // 10 % 10} " if port % 10 == 0 else "  " for port in ports)
    yield "Ports: ".rjust(_FIRST_PORT) + "".join(f"{port % 10} " for port in ports)
    yield " MLid"
    total = 0
    for mlid, exits in tables.multicast.items():
        if mlid in every:
            total += 1
            crosses = "".join("x " if port in exits else "  " for port in ports)
            yield f"{mlid:#06x}".ljust(_FIRST_PORT) + crosses
    yield f"{total} valid mlids dumped "


def tablesDict(
    tables: RouteTables, isMulticast: bool, chosen: range | None, owners: dict[int, str]
) -> dict[str, Any]:
    """Return the linear or multicast forwarding table of a switch for JSON."""
    shown: dict[str, Any] = {"guid": str(tables.info.nodeGUID), "name": tables.name, "lid": tables.lid}
    if isMulticast:
        shown["multicast"] = [
            {"mlid": mlid, "ports": exits}
            for mlid, exits in tables.multicast.items()
            if chosen is None or mlid in chosen
        ]
    else:
        shown["linear"] = [
            {"lid": lid, "port": port, "destination": owners.get(lid)} for lid, port in valid(tables, chosen)
        ]
    return shown
