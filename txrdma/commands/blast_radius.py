"""C{txrdma blast-radius}: hosts, paths and Slurm jobs that are lost without cables or switches."""

from __future__ import annotations

import sys
from collections.abc import Iterable, Sequence
from typing import Any, Final

from twisted.python import usage

from txrdma.commands.common.interruption import endedBySignals
from txrdma.commands.common.progress import ProgressBar, worked
from txrdma.commands.common.rows import printJSON, showRows
from txrdma.commands.common.session import nodeNames, opened
from txrdma.commands.common.sweeping import endWith, recorded, SweepOptions, swept
from txrdma.commands.common.values import count, fileName
from txrdma.commands.routes import linearTables
from txrdma.error import InvalidRequest
from txrdma.fabric.blastradius import BlastRadius, Element, isEnd, Loss, Rank
from txrdma.fabric.lossjson import elementKind, elementText, lossDict, nodeName, rankDict
from txrdma.fabric.model import Fabric, Node, Port
from txrdma.fabric.nodenames import NodeNames
from txrdma.fabric.parts import located
from txrdma.fabric.slurm import hostList
from txrdma.fabric.slurmjobs import HostsByName, parsedJobs, queueText, readJobs, SlurmJob, SQUEUE

_FEW: Final = 10
"""Rows of a table by default."""

_SQUEUE_SECONDS: Final = 60.0


class CommandOptions(SweepOptions):
    """Options of C{txrdma blast-radius}: the elements to remove, or all, and the jobs."""

    synopsis = "[options] NODE[:PORT]... | --all"
    longdesc = (
        "Show what would be lost without all of the given nodes and cables together: hosts that are cut off, "
        "paths between hosts that the present forwarding tables lead over them (until the subnet manager "
        "computes other routes), hosts with less bandwidth, and Slurm jobs on these hosts. NODE is a LID, a "
        "GUID or a name; with a PORT the cable at that port is meant. --all ranks every switch and cable by "
        "itself, single points of failure first. With --load nothing is sent; paths are then those of the "
        "snapshot, if it has tables. The exit status is 1 if something was not read."
    )
    optFlags = [
        ["all", "a", "Rank all switches and cables, each by itself."],
        ["squeue", None, "Read the jobs of Slurm by running squeue."],
    ]
    optParameters = [
        ["jobs", "j", "", "Read the jobs of Slurm from a file with the output of squeue.", fileName],
        ["most", "m", _FEW, "Maximum number of rows of each table; JSON has all.", count],
    ]

    def parseArgs(self, *elements: str) -> None:
        self["elements"] = elements

    def postOptions(self) -> None:
        super().postOptions()
        if bool(self["elements"]) == bool(self["all"]):
            raise usage.UsageError("expected NODE or NODE:PORT, or --all")
        if self["jobs"] and self["squeue"]:
            raise usage.UsageError("--jobs excludes --squeue")
        if self["load"] and self["device"]:
            raise usage.UsageError("--load excludes --device: tables of now and links of then do not match")


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run C{txrdma blast-radius}: print what is lost without the elements, or rank all."""
    jobs = await chosenJobs(reactor, options)
    if options["load"]:
        recording, names = recorded(options["load"]), nodeNames(options)
        fabric, linear = recording.fabric, recording.linearTables()
    else:
        with opened(reactor, options) as session:
            fabric, names = await swept(session), session.names
            linear = await linearTables(session, fabric)
    elements = [elementOf(fabric, text, names) for text in options["elements"]]
    byName, radius = HostsByName.among(fabric.nodes.values(), names), BlastRadius(fabric, linear)
    mapped = [byName.of(job) for job in jobs]
    with ProgressBar("following paths") as progress:
        await worked(reactor, radius.steps(), progress)
        for element, text in zip(elements, options["elements"], strict=True):
            if not radius.has(element):
                raise InvalidRequest(f"{text}: this port has no link")
        if options["all"]:
            ranks = await worked(reactor, radius.ranking(mapped), progress)
        else:
            loss = await worked(reactor, radius.without(elements, mapped), progress)
    if options["json"]:
        printJSON(
            [rankDict(rank, names) for rank in ranks]
            if options["all"]
            else lossDict(elements, loss, names, jobs)
        )
    elif options["all"]:
        _printRanks(ranks, names, options["most"], bool(jobs))
    else:
        _printLoss(elements, loss, names, jobs, options["most"])
    unknown = byName.unknown(jobs)
    if unknown:
        print(f"hosts of jobs that are not in the fabric: {hostList(unknown)}", file=sys.stderr)
    if radius.unread:
        text = f"the tables of {radius.unread} switches are unknown: paths through them do not count"
        print(text if linear else "no forwarding tables are known: paths are not counted", file=sys.stderr)
    endWith(fabric)
    if radius.unread and linear:
        raise SystemExit(1)


async def chosenJobs(reactor: Any, options: usage.Options) -> list[SlurmJob]:
    """Return the jobs of C{--squeue} or C{--jobs}; none without these options."""
    if options["squeue"]:
        return list(parsedJobs(await queueText(reactor, SQUEUE, _SQUEUE_SECONDS)))
    with endedBySignals():
        return readJobs(options["jobs"]) if options["jobs"] else []


def elementOf(fabric: Fabric, text: str, names: NodeNames) -> Element:
    """
    Return the node or the port that C{NODE} or C{NODE:PORT} names; a GUID has colons, too.

    @raise InvalidRequest: there is no such node or port.
    """
    node, colon, number = text.rpartition(":")
    try:
        return located(fabric, text, names)
    except InvalidRequest:
        if not colon or not number.isdecimal():
            raise
    port = located(fabric, node, names).known(int(number))
    if port is None or not port.number:
        raise InvalidRequest(f"{text}: {node} has no port {number}")
    return port


# Output.


def _printLoss(
    elements: Sequence[Element], loss: Loss, names: NodeNames, jobs: Sequence[SlurmJob], most: int
) -> None:
    removed = [f"{elementKind(one)} {elementText(one, names)}" for one in elements]
    print(f"Without {' and '.join(removed)}:")
    if loss.cutOff:
        print(f"{_counted(len(loss.cutOff), 'host')} cut off: {_hosts(loss.cutOff, names)}")
    else:
        print("no host is cut off")
    if loss.switches:
        print(f"{len(loss.switches)} switches cut off: {_hosts(loss.switches, names)}")
    if loss.total:
        share = f"{100 * loss.paths / loss.total:.3g} %"
        print(f"{loss.paths} of {loss.total} paths between hosts lost ({share}) until there are other routes")
    print(f"{_counted(len(loss.slower), 'host')} with less bandwidth")
    if loss.byHost and most:
        print("\nLost paths, from and to:")
        rows = [(nodeName(host, names), paths) for host, paths in loss.byHost[:most]]
        showRows(("Host", "Paths"), rows)
        _printMore(len(loss.byHost) - most, "hosts")
    if loss.reduced and most:
        print("\nLess bandwidth:")
        rows_ = [
            (
                *(_hosts(one.nodes, names), len(one.hosts), f"{one.before:g}", f"{one.after:g}"),
                f"{100 * one.share:.3g} %",
            )
            for one in loss.reduced[:most]
        ]
        showRows(("Links of", "Hosts", "Gbit/s", "Remaining", "Share"), rows_)
        _printMore(len(loss.reduced) - most, "groups of links")
    if jobs:
        off = sum(bool(one.cutOff) for one in loss.jobs)
        paths = sum(bool(one.paths) for one in loss.jobs)
        print(f"\nOf {_counted(len(jobs), 'job')}, {off} lose hosts, {paths} lose paths between their hosts:")
    if loss.jobs and most:
        showRows(
            ("Job", "User", "Name", "Hosts", "Cut off", "Lost paths", "Less bandwidth"),
            [
                (job.identifier, job.user, job.name, len(job.hosts), one.cutOff, one.paths, one.reduced)
                for one, job in ((one, jobs[one.job]) for one in loss.jobs[:most])
            ],
        )
        _printMore(len(loss.jobs) - most, "jobs")


def _printRanks(ranks: Sequence[Rank], names: NodeNames, most: int, hasJobs: bool) -> None:
    """Print a ranking; cables that only lead to one host each are counted in one row."""
    cables = [rank for rank in ranks if rank.cutOff == 1 and _isToHost(rank.element)]
    few = {id(rank) for rank in cables[1:]} if len(cables) > 1 else set()
    rows = []
    for rank in [rank for rank in ranks if id(rank) not in few][:most]:
        isMany = bool(few) and rank is cables[0]
        what = f"each of {len(cables)} cables to one host" if isMany else elementText(rank.element, names)
        share = f"{100 * rank.share:.3g} %"
        row = [what, elementKind(rank.element), rank.cutOff, rank.paths, rank.slower, share]
        rows.append([*row, rank.jobsCutOff, rank.jobsWithPaths] if hasJobs else row)
    columns = ("Without", "Kind", "Cut off", "Lost paths", "Slower hosts", "Least")
    showRows((*columns, "Jobs cut off", "Jobs with lost paths") if hasJobs else columns, rows)
    _printMore(len(ranks) - len(few) - most, "switches and cables")


def _isToHost(element: Element) -> bool:
    return isinstance(element, Port) and element.peer is not None and isEnd(element.peer.node)


def _printMore(count: int, what: str) -> None:
    if count > 0:
        print(f"... and {count} more {what}: see --most and --json")


def _counted(count: int, what: str) -> str:
    return f"1 {what}" if count == 1 else f"{count} {what}s"


def _hosts(nodes: Iterable[Node], names: NodeNames) -> str:
    return hostList(nodeName(node, names) for node in nodes)
