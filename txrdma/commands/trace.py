"""
C{txrdma trace}: the way of packets from one port to another.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, Final

from twisted.python import usage

from txrdma.commands.fabrics import count, FabricOptions, opened, Session, TARGETS, tellJSON
from txrdma.commands.nodenames import NodeNames
from txrdma.commands.rows import hexGUID
from txrdma.iba.verbs import NodeType
from txrdma.mad.routing import AdministeredView, DirectView, Hop, IView, NoRoute, Stop, trace, traceMulticast
from txrdma.mad.sa import PathRecord

_WORDS: Final = {NodeType.CHANNEL_ADAPTER: "ca", NodeType.SWITCH: "switch", NodeType.ROUTER: "router"}


class CommandOptions(FabricOptions):
    """From where to where."""

    synopsis = "[options] [FROM] TO"
    longdesc = (
        "Follow a packet through the forwarding tables of the switches, hop by hop, as ibtracert does: the "
        "port that it leaves by, then what it comes to and the port there. With --sa the tables and links "
        "are those that the administration knows, and its path record is told, too. FROM and TO are each a "
        "TARGET; FROM is our own port unless said. " + TARGETS + " The exit status is 1 when it does not "
        "get there."
    )
    optParameters = [
        ["multicast", "m", None, "Follow a packet for this multicast LID, as 0xc000: all its ways.", count]
    ]

    def parseArgs(self, *targets: str) -> None:
        self["targets"] = targets

    def postOptions(self) -> None:
        most = 1 if self["multicast"] is not None else 2
        if len(self["targets"]) > most or not self["targets"] and most == 2:
            raise usage.UsageError("say [FROM] TO" if most == 2 else "say at most FROM: TO is the group")


async def carryOut(reactor: Any, options: CommandOptions) -> None:
    """C{txrdma trace}."""
    with opened(reactor, options) as session:
        sources, target = options["targets"], ""
        if options["multicast"] is None:
            *sources, target = sources
        source = await lidOf(session, sources[0]) if sources else None
        view: IView = (
            AdministeredView(session.agent, session.endPort) if options["sa"] else DirectView(session.agent)
        )
        record, why = None, ""
        try:
            if options["multicast"] is not None:
                hops = await traceMulticast(view, options["multicast"], source)
            else:
                lid = await lidOf(session, target)
                if options["sa"]:
                    record = await _recordOf(session, source, lid)
                hops = await trace(view, lid, source)
        except NoRoute as error:
            hops, why = error.hops, str(error)
        if options["json"]:
            path = None if record is None else record.toDict()
            told = [hopDict(hop, session.names) for hop in hops]
            tellJSON({"reached": not why, "reason": why, "pathRecord": path, "hops": told})
        else:
            for line in described(
                *(hops, session.names, record), isTree=options["multicast"] is not None, isWhole=not why
            ):
                print(line)
    if why:
        raise NoRoute(why, hops)


async def lidOf(session: Session, target: str) -> int:
    """The LID of what was typed."""
    return (await session.toServices(target)).dlid


async def _recordOf(session: Session, source: int | None, lid: int) -> PathRecord:
    query = PathRecord.query(slid=source or session.endPort.lid, dlid=lid, reversible=True, numbPath=1)
    return await session.agent.SubnAdmGet(query, session.administration)


def described(
    hops: list[Hop],
    names: NodeNames,
    record: PathRecord | None = None,
    isTree: bool = False,
    isWhole: bool = True,
) -> Iterator[str]:
    """As ibtracert has it; ways of multicast are indented by how far they are."""
    if not hops:
        return
    if record is not None:
        rate = f"{record.rate.gigabits} Gbit/s" if record.rate.gigabits else f"rate {int(record.rate)}"
        mtu = record.mtu.name.removeprefix("MTU_")
        yield f"Path record: LID {record.slid} to {record.dlid}, SL {record.serviceLevel}, MTU {mtu}, {rate}"
    yield f"From {_end(hops[0].stop, names)}"
    for before, hop in zip(hops, hops[1:], strict=False):
        indent = "  " * (hop.depth - 1) if isTree else ""
        stop = hop.stop
        if stop is before.stop:
            continue  # one more way out of what was told
        text = f"{_WORDS.get(stop.info.nodeType, 'node')} port {{{hexGUID(stop.portGUID)}}}[{stop.entry}]"
        name = names.name(stop.info.nodeGUID, stop.description)
        yield f'{indent}[{hops[hop.parent].exit}] -> {text} lid {_lids(stop)} "{name}"'
    if isWhole and not isTree:
        yield f"To {_end(hops[-1].stop, names)}"


def _end(stop: Stop, names: NodeNames) -> str:
    name = names.name(stop.info.nodeGUID, stop.description)
    port = 0 if stop.isSwitch else stop.entry
    word = _WORDS.get(stop.info.nodeType, "node")
    return f'{word} {{{hexGUID(stop.info.nodeGUID)}}} portnum {port} lid {_lids(stop)} "{name}"'


def _lids(stop: Stop) -> str:
    return f"{stop.lid}-{stop.lid + (1 << stop.lmc) - 1}"


def hopDict(hop: Hop, names: NodeNames) -> dict[str, Any]:
    """A step, for programs."""
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
        "parent": None if hop.parent < 0 else hop.parent,
    }
