"""C{txrdma trace}: traces the path of packets from one port to another, hop by hop."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from functools import partial
from typing import Any, Final

from twisted.python import usage

from txrdma.commands.common.rows import hexGUID, printJSON
from txrdma.commands.common.session import FabricOptions, Session, TARGETS
from txrdma.commands.common.sweeping import asking
from txrdma.commands.common.values import count, fileName
from txrdma.fabric.nodenames import NodeNames
from txrdma.fabric.routing import (
    DirectView,
    Hop,
    NoRoute,
    QueryView,
    RecordedView,
    SAView,
    Stop,
    trace,
    traceMulticast,
)
from txrdma.fabric.tracerecords import tracedBySA
from txrdma.iba.types import LID
from txrdma.iba.verbs import NodeType
from txrdma.mad.layouts.sa import PathRecord

_WORDS: Final = {NodeType.CHANNEL_ADAPTER: "ca", NodeType.SWITCH: "switch", NodeType.ROUTER: "router"}


class CommandOptions(FabricOptions):
    """Options of C{txrdma trace}: the two ends, or a multicast LID."""

    synopsis = "[options] [FROM] TO"
    longdesc = (
        "Follow a packet through the forwarding tables of the switches, hop by hop, as ibtracert does: "
        "the port where it leaves, and the node and port where it arrives. With --sa, tables and links "
        "are read from the SA, the path record is shown, too, and trace records are used if the SA "
        "supports them. FROM and TO are each a TARGET; FROM is the local port by default. For a "
        "multicast LID, all branches are followed, or with FROM and TO the path between these. "
        + TARGETS
        + " With --load nothing is sent. The exit status is 1 if the packet does not arrive."
    )
    optFlags = [["no-info", "n", "Print numbers only, as ibtracert -n."]]
    optParameters = [
        ["multicast", "m", None, "Follow a packet for this multicast LID, as 0xc000.", count],
        ["load", None, "", "Trace in a snapshot with tables instead of querying the fabric.", fileName],
    ]

    def parseArgs(self, *targets: str) -> None:
        self["targets"] = targets

    def postOptions(self) -> None:
        isMulticast = self["multicast"] is not None
        if len(self["targets"]) > 2 or not self["targets"] and not isMulticast:
            raise usage.UsageError("expected [FROM [TO]]" if isMulticast else "expected [FROM] TO")
        if self["load"] and (self["device"] or self["sa"]):
            raise usage.UsageError("--load excludes --device and --sa: a snapshot has no records of the SA")


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run C{txrdma trace}: print the path hop by hop, exit with 1 if it does not reach its destination."""
    isMulticast = options["multicast"] is not None
    with asking(reactor, options, needsTables=True) as session:
        record, why = None, ""
        try:
            if isMulticast:
                hops = await _multicast(session)
            else:
                record, hops = await _unicast(session)
        except NoRoute as error:
            hops, why = error.hops, str(error)
        if options["json"]:
            path = None if record is None else record.toDict()
            shown = [hopDict(hop, session.names) for hop in hops]
            printJSON({"reached": not why, "reason": why, "pathRecord": path, "hops": shown})
        else:
            isTree = isMulticast and len(options["targets"]) < 2
            isNumbered = bool(options["no-info"])
            for line in described(hops, session.names, record, isTree, not why, isNumbered):
                print(line)
    if why:
        raise NoRoute(why, hops)


def _view(session: Session) -> QueryView:
    if session.loaded is not None:
        return RecordedView(session.readings, session.loaded.fabric, session.endPort.lid)
    if session.options["sa"]:
        return SAView(session.agent, session.endPort)
    return DirectView(session.agent)


async def _unicast(session: Session) -> tuple[PathRecord | None, list[Hop]]:
    """Return the SA's PathRecord, only with C{--sa}, and the hops of the path."""
    *sources, target = session.options["targets"]
    source = await lidOf(session, sources[0]) if sources else None
    lid = await lidOf(session, target)
    view = _view(session)
    if not session.options["sa"]:
        return None, await trace(view, lid, source)
    slid = source or session.endPort.lid
    query = PathRecord.query(slid=slid, dlid=lid, reversible=True, numbPath=1)
    record = await session.agent.SubnAdmGet(query)
    hops = await tracedBySA(session.agent, view, slid, lid)
    return record, await trace(view, lid, source) if hops is None else hops


async def _multicast(session: Session) -> list[Hop]:
    """Return the hops to all members of a multicast group, or to one target."""
    lids = [await lidOf(session, target) for target in session.options["targets"]]
    mlid = session.options["multicast"]
    hops = await traceMulticast(_view(session), mlid, lids[0] if lids else None)
    return hops if len(lids) < 2 else destinationOf(hops, lids[1], mlid)


def destinationOf(hops: list[Hop], lid: int, mlid: int) -> list[Hop]:
    """Return the hops of a multicast tree that lead to a LID; raise L{NoRoute} if no branch does."""
    at = next((index for index, hop in enumerate(hops) if hop.stop.owns(lid)), -1)
    if at < 0:
        raise NoRoute(f"a packet for {mlid:#06x} does not reach LID {lid}", [])
    branch = [replace(hops[at], exit=0)]
    while hops[at].parent >= 0:
        at = hops[at].parent
        branch.append(hops[at])
    branch.reverse()
    return [replace(hop, parent=number - 1) for number, hop in enumerate(branch)]


async def lidOf(session: Session, target: str) -> LID:
    """Return the LID of a target's port."""
    return (await session.toServices(target)).dlid


def _branches(hops: list[Hop], isTree: bool) -> Iterator[tuple[str, Hop, Stop]]:
    """Yield the exit to each stop after the first, indented by its depth in a tree, the hop, and the stop."""
    for before, hop in zip(hops, hops[1:], strict=False):
        if hop.stop is not before.stop:  # otherwise another exit of the same stop
            indent = "  " * (hop.depth - 1) if isTree else ""
            yield f"{indent}[{hops[hop.parent].exit}]", hops[hop.parent], hop.stop


def described(
    hops: list[Hop],
    names: NodeNames,
    record: PathRecord | None = None,
    isTree: bool = False,
    isWhole: bool = True,
    isNumbered: bool = False,
) -> Iterator[str]:
    """
    Yield lines in the format of ibtracert; hops of a multicast tree are indented by their depth.

    @param isNumbered: only GUIDs and port numbers, as C{ibtracert -n}.
    """
    if not hops:
        return
    if record is not None and not isNumbered:
        rate = f"{record.rate.gigabits} Gbit/s" if record.rate.gigabits else f"rate {int(record.rate)}"
        mtu = record.mtu.name.removeprefix("MTU_")
        yield f"Path record: LID {record.slid} to {record.dlid}, SL {record.serviceLevel}, MTU {mtu}, {rate}"
    end = _shortEnd if isNumbered else partial(_end, names)
    yield f"From {end(hops[0].stop)}"
    for branch, before, stop in _branches(hops, isTree):
        port = f"{{{hexGUID(stop.portGUID)}}}[{stop.entry}]"
        if not isNumbered:
            name = names.name(stop.info.nodeGUID, stop.description)
            port = f'{_WORDS.get(stop.info.nodeType, "node")} port {port} lid {_lids(stop)} "{name}"'
        yield f"{branch} -> {port}"
        if before.others and not isNumbered:
            yield f"    adaptive routing: also by ports {' '.join(map(str, before.others))}"
    if isWhole and not isTree:
        yield f"To {end(hops[-1].stop)}"


def _shortEnd(stop: Stop) -> str:
    return f"{{{hexGUID(stop.info.nodeGUID)}}}[{0 if stop.isSwitch else stop.entry}]"


def _end(names: NodeNames, stop: Stop) -> str:
    name = names.name(stop.info.nodeGUID, stop.description)
    port = 0 if stop.isSwitch else stop.entry
    word = _WORDS.get(stop.info.nodeType, "node")
    return f'{word} {{{hexGUID(stop.info.nodeGUID)}}} portnum {port} lid {_lids(stop)} "{name}"'


def _lids(stop: Stop) -> str:
    return f"{stop.lid}-{stop.lid + (1 << stop.lmc) - 1}"


def hopDict(hop: Hop, names: NodeNames) -> dict[str, Any]:
    """Return a hop for JSON."""
    stop = hop.stop
    return {
        "type": stop.info.nodeType.name,
        "nodeGUID": str(stop.info.nodeGUID),
        "portGUID": str(stop.portGUID),
        "name": names.name(stop.info.nodeGUID, stop.description),
        "lid": stop.lid,
        "lmc": stop.lmc,
        "entry": stop.entry,
        "exit": hop.exit or None,
        "others": list(hop.others),
        "parent": None if hop.parent < 0 else hop.parent,
    }
