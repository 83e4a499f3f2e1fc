"""Blast radius of a node or cable, from the forwarding tables of the last survey and the jobs of Slurm."""

from __future__ import annotations

from collections.abc import Callable, Coroutine
from functools import partial
from math import inf
from typing import Any, Final

from txrdma.error import InvalidRequest, RDMAError
from txrdma.fabric.blastradius import BlastRadius, Element, Loss
from txrdma.fabric.lossjson import jobDict
from txrdma.fabric.model import Node
from txrdma.fabric.nodenames import NodeNames
from txrdma.fabric.pace import Pace
from txrdma.fabric.slurmjobs import HostsByName, parsedJobs, SlurmJob
from txrdma.kit.values import record as valueRecord
from txrdma.monitor.series.exposition import guidText
from txrdma.monitor.web.layout import facts, nodeLink, Part, section, table, tags
from txrdma.monitor.web.searches import Search
from txrdma.monitor.web.tables import COUNT, described, GUID_TEXT, NUMBER, orNull, record, rowsOf, TEXT
from txrdma.monitor.web.watch import PageContext, printable

MOST_HOSTS: Final = 100
"""Maximum number of hosts or jobs in each list of an answer; its counts have all."""

_FEW: Final = 10

_JOBS_SECONDS: Final = 60.0
"""Seconds until the jobs of Slurm are read again, when a page needs them."""

_HOST_UNITS: Final = 20
"""Work of finding a host by its name, in units of L{Pace}."""

_HOST: Final = record(guid=GUID_TEXT, name=TEXT)
_JOB: Final = record(
    **dict.fromkeys(("job", "name", "user"), TEXT),
    hosts=COUNT,
    hostsCutOff=COUNT,
    lostPaths=described(COUNT, "Lost paths between hosts of the job"),
    hostsWithLessBandwidth=COUNT,
)
_JOBS: Final = record(
    total=described(COUNT, "Jobs that have nodes"),
    withHostsCutOff=described(COUNT, "Jobs of which hosts are cut off"),
    withLostPaths=described(COUNT, "Jobs that lose paths between their hosts"),
    rows=described(
        rowsOf(_JOB), f"The first {MOST_HOSTS} jobs that lose anything, those that lose most first"
    ),
)
BLAST_SCHEMA: Final = record(
    hostsCutOff=described(COUNT, "Hosts that cannot reach the largest remaining part of the fabric"),
    switchesCutOff=described(COUNT, "Switches that cannot reach it"),
    lostPaths=described(orNull(COUNT), "Paths between hosts that it carries; null before the first survey"),
    paths=described(orNull(COUNT), "All paths between hosts"),
    switchesWithoutTables=described(COUNT, "Switches whose tables are unknown: their paths do not count"),
    hostsWithLessBandwidth=described(COUNT, "Other hosts that share links of which some are lost"),
    leastBandwidth=described(NUMBER, "Smallest share of these links that remains, 0 to 1"),
    surveyedAt=described(orNull(NUMBER), "Time at which the tables were read, in seconds since 1970"),
    cutOff=described(rowsOf(_HOST), f"The first {MOST_HOSTS} hosts that are cut off"),
    mostAffected=described(
        rowsOf(record(guid=GUID_TEXT, name=TEXT, lostPaths=COUNT)),
        f"The {MOST_HOSTS} hosts with the most lost paths, from and to them",
    ),
    jobs=described(orNull(_JOBS), "Jobs of Slurm; null if they are not configured, or unknown"),
    jobsUnknown=described(TEXT, "Reason for which the jobs are unknown"),
)
"""JSON schema of a blast radius."""


@valueRecord(eq=False)
class _Read:
    """Output of Slurm's C{squeue}, or the C{problem} why it could not be read."""

    text: str
    problem: str = ""


@valueRecord
class _Jobs:
    """
    Jobs of Slurm, with the adapters of their hosts.

    @ivar problem: why they are unknown; C{""} if they are known.
    """

    jobs: list[SlurmJob]
    adapters: list[list[list[Node]]]
    problem: str = ""


async def blastRadius(context: PageContext, element: Element) -> dict[str, Any]:
    """
    Return what would be lost without a node, or without the cable at a port, for JSON.

    Links and tables are prepared once for all requests until the fabric changes or is surveyed again. Jobs
    are read at most once a minute.
    """
    poller, searches, fabric = context.poller, context.watch.searches, context.watch.fabric
    state: tuple[object, ...] = (poller.version, poller.surveyedAt, context.knownAt)
    radius = await searches.result(("blast-radius", fabric), state, _prepared(context))
    jobs = None
    if context.watch.readJobs is not None:
        minute = context.now // _JOBS_SECONDS
        read = await searches.shared(("squeue", fabric), minute, partial(_read, context.watch.readJobs))
        state = (*state, read)
        jobs = await searches.result(("jobs", fabric), state, _jobsIn(context, read))
    key = (element.guid, 0) if isinstance(element, Node) else (element.node.guid, element.number)
    if not radius.has(element):
        return _toDict(context, Loss(), jobs)
    found = _found(context, radius, element, jobs)
    return await searches.result(("blast-radius", fabric, key), state, found)


def _prepared(context: PageContext) -> Search[BlastRadius]:
    radius = BlastRadius(context.fabric, context.poller.linear)
    yield from radius.steps()
    return radius


async def _read(readJobs: Callable[[], Coroutine[Any, Any, str]]) -> _Read:
    try:
        return _Read(await readJobs())
    except RDMAError as error:
        return _Read("", str(error))


def _jobsIn(context: PageContext, read: _Read) -> Search[_Jobs]:
    """Parse jobs, and find the adapters of their hosts."""
    hosts, found, pace = HostsByName(NodeNames()), _Jobs([], [], read.problem), Pace()
    for node in list(context.fabric.nodes.values()):
        hosts.add(node)
        if pace.isDue(_HOST_UNITS):
            yield
    try:
        for job in parsedJobs(read.text):
            if pace.isDue(_HOST_UNITS * (1 + len(job.hosts))):
                yield
            found.jobs.append(job)
            found.adapters.append(hosts.of(job))
    except InvalidRequest as error:
        found.problem = str(error)
    return found


def _found(
    context: PageContext, radius: BlastRadius, element: Element, jobs: _Jobs | None
) -> Search[dict[str, Any]]:
    adapters = [] if jobs is None else jobs.adapters
    return _toDict(context, (yield from radius.without([element], adapters)), jobs)


def _toDict(context: PageContext, loss: Loss, jobs: _Jobs | None) -> dict[str, Any]:
    at = context.poller.surveyedAt
    isKnown = at > -inf
    slower = loss.slower
    return {
        "hostsCutOff": len(loss.cutOff),
        "switchesCutOff": len(loss.switches),
        "lostPaths": loss.paths if isKnown else None,
        "paths": loss.total if isKnown else None,
        "switchesWithoutTables": loss.unread,
        "hostsWithLessBandwidth": len(slower),
        "leastBandwidth": min((one.share for one in loss.reduced), default=1.0),
        "surveyedAt": at if isKnown else None,
        "cutOff": [_host(host) for host in loss.cutOff[:MOST_HOSTS]],
        "mostAffected": [{**_host(host), "lostPaths": paths} for host, paths in loss.byHost[:MOST_HOSTS]],
        "jobs": None if jobs is None or jobs.problem else _jobsDict(loss, jobs.jobs),
        "jobsUnknown": "" if jobs is None else printable(jobs.problem),
    }


def _jobsDict(loss: Loss, jobs: list[SlurmJob]) -> dict[str, Any]:
    return {
        "total": len(jobs),
        "withHostsCutOff": sum(one.cutOff > 0 for one in loss.jobs),
        "withLostPaths": sum(one.paths > 0 for one in loss.jobs),
        "rows": [jobDict(one, jobs[one.job]) for one in loss.jobs[:MOST_HOSTS]],
    }


def _host(node: Node) -> dict[str, Any]:
    return {"guid": guidText(node.guid), "name": printable(node.description)}


async def blastSection(context: PageContext, element: Element) -> Part:
    """
    Return the section of a page that says what would be lost without a node or cable; nothing where an open
    page is updated, which keeps its section.
    """
    if context.isRefresh:
        return ""
    what = "cable"
    if isinstance(element, Node):
        what = "switch" if element.isSwitch else "node"
    elif element.peer is None:
        return ""
    found = await blastRadius(context, element)
    paths = "unknown until the tables are read"
    if found["lostPaths"] is not None:
        paths = f"{found['lostPaths']:,} of {found['paths']:,}"
        if found["switchesWithoutTables"]:
            paths += f"; the tables of {found['switchesWithoutTables']} switches are unknown"
    slower = f"{found['hostsWithLessBandwidth']:,}"
    if found["hostsWithLessBandwidth"]:
        slower += f", down to {100 * found['leastBandwidth']:.3g} % of the links that they share"
    shown = facts(
        ("Hosts cut off", f"{found['hostsCutOff']:,}"),
        ("Paths between hosts that are lost", paths),
        ("Hosts with less bandwidth", slower),
        *_jobFacts(found),
    )
    rows = [
        (nodeLink(row["guid"], row["name"]), f"{row['lostPaths']:,}") for row in found["mostAffected"][:_FEW]
    ]
    affected = table("Most affected hosts", ("Host", "Lost paths, from and to"), rows, "") if rows else ""
    off = found["cutOff"][:_FEW]
    links: list[Part] = []
    for row in off:
        links += [nodeLink(row["guid"], row["name"]), ", "]
    more = f" and {found['hostsCutOff'] - len(off)} more" if found["hostsCutOff"] > len(off) else ""
    listed = tags.p("Cut off: ", links[:-1], more) if off else ""
    jobs = _jobTable(found["jobs"]["rows"]) if found["jobs"] is not None else ""
    intro = tags.p("Lost paths are those of the present forwarding tables, until there are others.")
    parts = shown, listed, jobs, affected, intro
    return section(f"Without this {what}", *parts, name="blast-radius", isLive=False)


def _jobFacts(found: dict[str, Any]) -> list[tuple[str, Part]]:
    jobs = found["jobs"]
    if jobs is not None:
        lost = f"{jobs['withHostsCutOff']:,} of {jobs['total']:,}"
        return [("Jobs that lose hosts", lost), ("Jobs that lose paths", f"{jobs['withLostPaths']:,}")]
    return [("Jobs that lose hosts", f"unknown: {found['jobsUnknown']}")] if found["jobsUnknown"] else []


def _jobTable(jobs: list[dict[str, Any]]) -> Part:
    if not jobs:
        return ""
    heads = ("Job", "User", "Name", "Hosts", "Cut off", "Lost paths", "Less bandwidth")
    names = ("job", "user", "name", "hosts", "hostsCutOff", "lostPaths", "hostsWithLessBandwidth")
    rows = ([row[name] for name in names] for row in jobs[:_FEW])
    return table("Jobs that lose hosts, paths or bandwidth", heads, rows, "")
