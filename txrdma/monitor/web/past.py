"""
The fabric at an earlier time, and the differences between two times, from the events in the history.

They are made in the thread of the history, each once for equal requests; the latest ones are retained.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator, Mapping
from functools import cached_property, partial
from itertools import chain
from math import ceil, log2
from typing import Any, Final, NamedTuple, TypeVar

from txrdma.fabric.model import breakUp, Fabric, Node
from txrdma.iba.types import GUID
from txrdma.kit.values import record as valueRecord
from txrdma.monitor.diagnosis.fabricstate import (
    DIFFERENCES,
    differences,
    fabricOf,
    FabricState,
    hasOtherRate,
    Link,
    StateDifference,
)
from txrdma.monitor.diagnosis.findinglog import Entry, FindingLog
from txrdma.monitor.series.exposition import guidText
from txrdma.monitor.series.history import HistoryWriter
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.monitor.web.parameters import Missing
from txrdma.monitor.web.searches import Search
from txrdma.monitor.web.tables import (
    choice,
    Column,
    COUNT,
    described,
    GUID_TEXT,
    NUMBER,
    orNull,
    record,
    rowsOf,
    Schema,
    Table,
    TEXT,
)
from txrdma.monitor.web.topology import (
    BUNDLE,
    bundleEnds,
    encoded,
    levels,
    nodeRows,
    positions,
    SWITCH,
    WORST,
)
from txrdma.monitor.web.watch import PageContext, printable, Watch

T = TypeVar("T")

MOST_DIFFERENCES: Final = 10_000
"""Maximum number of differences that are listed; all are counted."""

MOST_MARKS: Final = 200
"""Maximum number of marks of a slider."""

_SLOTS: Final = 8
"""Maximum number of results that are retained for each fabric: those of large ones have some megabytes."""

_RECENT_SECONDS: Final = 60.0
"""Age up to which events of a state may not be stored yet."""

_CHANGE: Final[Schema] = {
    "type": ["string", "null"],
    "enum": ["added", "removed", "changed", None],
    "description": "Difference from the earlier state",
}
_NODES: Final = rowsOf(
    record(
        **SWITCH,
        change=_CHANGE,
        hostsAdded=described(COUNT, "Hosts that were added to the switch"),
        hostsRemoved=described(COUNT, "Hosts that were removed from it"),
    )
)
_EDGES: Final = rowsOf(record(**BUNDLE, worst=described(WORST, "Worst finding at its ports"), change=_CHANGE))
PAST_SCHEMA: Final = record(
    at=described(NUMBER, "Time of the state"),
    since=described(orNull(NUMBER), "Time of the earlier state, with which it is compared"),
    **dict.fromkeys(("switches", "hosts", "links", "missing", "findings"), COUNT),
    differences=record(**dict.fromkeys(DIFFERENCES, COUNT)),
    shape=choice("levels", "free"),
    nodes=_NODES,
    edges=_EDGES,
)
"""JSON schema of a topology at a time, and of the differences between two."""

TIMES_SCHEMA: Final = record(
    since=described(orNull(NUMBER), "Time since which states are known"),
    begin=NUMBER,
    end=NUMBER,
    marks=rowsOf(record(at=NUMBER, changes=COUNT)),
)
"""JSON schema of the times of changes."""


def _guidOf(difference: StateDifference) -> str | None:
    return None if difference.guid is None else guidText(difference.guid)


DIFFERENCE_TABLE: Final[Table[StateDifference]] = Table(
    "Difference",
    ("where", "before", "after", "guid"),
    lambda context, _: (),
    *((), int),
    Column("kind", choice(*DIFFERENCES), "Kind of the difference", lambda _, one: one.kind),
    Column("where", TEXT, "Location, as readable text", lambda _, one: printable(one.where)),
    Column("guid", orNull(GUID_TEXT), "GUID of the node", lambda _, one: _guidOf(one)),
    Column("port", orNull(COUNT), "Number of the port", lambda _, one: one.port),
    Column("before", TEXT, "Earlier state; empty for none", lambda _, one: printable(one.before)),
    Column("after", TEXT, "Later state; empty for none", lambda _, one: printable(one.after)),
)
"""Differences between two states."""


class Bundle(NamedTuple):
    """Links between two switches at a time, as a row of a page."""

    ends: tuple[GUID, GUID]
    names: tuple[str, str]
    links: int
    down: int
    worst: str | None
    change: str | None


@valueRecord
class Past:
    """
    The fabric at a time, or its differences from an earlier one.

    @ivar at: time of the state; C{since} is that of the earlier one, or None.
    @ivar counts: number of nodes, links and findings by name.
    @ivar kinds: number of differences by kind; C{rows} are the first L{MOST_DIFFERENCES}.
    @ivar findings: findings that were open, the most severe first.
    @ivar pieces: JSON by L{PAST_SCHEMA}.
    """

    at: float
    since: float | None
    counts: dict[str, int]
    kinds: dict[str, int]
    rows: list[StateDifference]
    findings: list[Entry]
    bundles: list[Bundle]
    pieces: list[bytes]

    def table(self) -> Table[StateDifference]:
        """Return the table of the differences."""
        return DIFFERENCE_TABLE.showing(lambda context, _: self.rows)


class _PastContext(PageContext):
    """Context of a past topology, which has no counters."""

    def __init__(self, watch: Watch, fabric: Fabric, findings: list[Entry]) -> None:
        super().__init__(watch)
        self.fabric = fabric
        self._findings = findings

    @cached_property
    def open(self) -> list[Entry]:
        return self._findings

    def isSilent(self, node: Node) -> bool:
        return any(entry.finding.kind == "node-silent" for entry in self.findingsAt(node.guid))


def historyOf(context: PageContext) -> HistoryWriter:
    """Return the history, or raise L{Missing}."""
    if context.watch.history is None:
        raise Missing(context.watch.noHistory)
    return context.watch.history


def _eventsOf(context: PageContext) -> object:
    """Return a value that is equal until there are newer events."""
    journal = context.poller.findings.journal
    return journal, journal.number


async def changeTimes(context: PageContext, begin: float | None, end: float | None) -> dict[str, Any]:
    """
    Return the times of changes, about L{MOST_MARKS}, for JSON; of all times without C{begin}.

    Browsers that show the last hour request slightly different times, and are answered by one reading.
    """
    history, watch, last = historyOf(context), context.watch, context.now if end is None else end
    least, state = begin or 0.0, _eventsOf(context)
    step = 2.0 ** ceil(log2(max(1.0, (last - least) / MOST_MARKS)))
    first = least - least % step

    async def read() -> tuple[float | None, list[tuple[float, int]]]:
        async with watch.searches.reads:
            return await history.read(lambda store: store.changeTimes(first, last, MOST_MARKS))

    wanted = first, end
    request = ("times", watch.fabric, hash(wanted) % _SLOTS)
    since, marks = await watch.searches.shared(request, (wanted, state), read)
    least = max(least, last if since is None else since)
    return {
        "since": since,
        "begin": min(least, last),
        "end": last,
        "marks": [{"at": at, "changes": changes} for at, changes in marks if at > least],
    }


async def past(context: PageContext, at: float | None, since: float | None = None) -> Past:
    """
    Return the fabric at a time, compared with an earlier one.

    @param at: time of the state, or None for now.
    @param since: time of the earlier state, or None for no comparison; if it is later, both are exchanged.
    @raise Missing: there is no history, or it has no events.
    """
    history, watch = historyOf(context), context.watch
    if at is not None and at >= context.now:
        at = None
    end = context.now if at is None else at
    if since is not None and since > end:
        since, at = end, None if since >= context.now else since
    isRecent = at is None or at > context.now - _RECENT_SECONDS
    state = since, at, _eventsOf(context) if isRecent else None, watch.poller.findings.log.rules
    work = partial(_read, watch, context.now if at is None else at, since)
    request = ("past", watch.fabric, hash((since, at)) % _SLOTS)

    async def read() -> Past | None:
        async with watch.searches.reads:
            return await history.read(work)

    found = await watch.searches.shared(request, state, read)
    if found is None:
        raise Missing("the history has no events yet")
    return found


# In the thread of the history.


def _read(watch: Watch, at: float, since: float | None, store: HistoryStore) -> Past | None:
    after = store.stateAt(at)
    before = None if since is None else store.stateAt(since)
    if after is None or (before is None and since is not None):
        return None
    return _made(watch, after, before)


def _made(watch: Watch, after: FabricState, before: FabricState | None) -> Past:
    _rate(after.findings, watch.poller.findings.log)
    kinds = dict.fromkeys(DIFFERENCES, 0)
    rows: list[StateDifference] = []
    for one in differences(before, after) if before is not None else ():
        kinds[one.kind] += 1
        if len(rows) < MOST_DIFFERENCES:
            rows.append(one)
    former = after if before is None else before
    links = dict.fromkeys(chain(after.links, after.missing, former.links))
    fabric = fabricOf({**former.nodes, **after.nodes}, links)
    context = _PastContext(watch, fabric, after.findings)
    drawing = _Drawing(context, former, after, links)
    switches = sum(node.guid in after.nodes for node in fabric.switches())
    counts = {
        "switches": switches,
        "hosts": len(after.nodes) - switches,
        "links": len(after.links),
        "missing": len(after.missing),
        "findings": len(after.findings),
    }
    since = None if before is None else before.at
    head = {"at": after.at, "since": since, **counts, "differences": kinds}
    bundles, pieces = list(drawing.bundles()), drawing.pieces(head)
    breakUp(fabric.nodes.values())
    return Past(after.at, since, counts, kinds, rows, after.findings, bundles, pieces)


def _rate(findings: list[Entry], log: FindingLog) -> None:
    """Set the severities of findings by the current rules, and sort the most severe to the front."""
    for entry in findings:
        entry.severity = log.severityOf(entry.finding)
    findings.sort(key=lambda entry: (-entry.severity, -entry.firstSeen))


def _completed(search: Search[T]) -> T:
    """Return the result of a search without pauses."""
    while True:
        try:
            next(search)
        except StopIteration as end:
            found: T = end.value
            return found


def _changeOf(was: bool, isThere: bool) -> str | None:
    return None if was == isThere else "added" if isThere else "removed"


class _Drawing:
    """Drawing of a fabric as it was at a time, with marks on what has changed since an earlier time."""

    def __init__(
        self, context: PageContext, before: FabricState, after: FabricState, links: Mapping[Link, Any]
    ) -> None:
        self._context = context
        self._before = before
        self._after = after
        self._joined: dict[tuple[GUID, GUID], list[Link]] = {}
        self._added: Counter[GUID] = Counter()
        self._removed: Counter[GUID] = Counter()
        self._hosts: Counter[GUID] = Counter()
        self._worst: dict[tuple[GUID, int], str] = {}
        for entry in reversed(after.findings):  # the most severe last
            guid, port = entry.finding.guid, entry.finding.port
            if guid is not None and port is not None:
                self._worst[guid, port] = entry.severity.name.lower()
        isSwitch = {guid for guid, node in context.fabric.nodes.items() if node.isSwitch}
        for link in links:
            one, other = link[0][0], link[1][0]
            if one in isSwitch and other in isSwitch:
                if one != other:
                    self._joined.setdefault((one, other), []).append(link)
            elif one in isSwitch or other in isSwitch:
                switch = one if one in isSwitch else other
                was, isThere = link in before.links, link in after.links
                self._hosts[switch] += isThere
                self._added[switch] += isThere and not was
                self._removed[switch] += was and not isThere

    def bundles(self) -> Iterator[Bundle]:
        """Yield the bundles of links between switches."""
        before, after, nodes = self._before, self._after, self._context.fabric.nodes
        ranks = (None, "info", "warning", "critical")
        for ends, links in self._joined.items():
            there = [link for link in links if link in after.links]
            was = [link for link in links if link in before.links]
            isChanged = there != was or any(
                hasOtherRate(before.links[link], after.links[link]) for link in there
            )
            change = _changeOf(bool(was), bool(there)) or ("changed" if isChanged else None)
            worst = max((self._worst.get(end) for link in links for end in link), key=ranks.index)
            names = printable(nodes[ends[0]].description), printable(nodes[ends[1]].description)
            down = sum(link in after.missing for link in links)
            yield Bundle(ends, names, len(there), down, worst, change)

    def pieces(self, head: Mapping[str, Any]) -> list[bytes]:
        """Return the JSON of the drawing."""
        fabric = self._context.fabric
        level = levels(fabric, self._joined)
        position = {} if level is None else _completed(positions(fabric, level, self._joined))
        nodes = (
            {
                **row,
                "hosts": self._hosts[guid],
                "change": _changeOf(guid in self._before.nodes, guid in self._after.nodes),
                "hostsAdded": self._added[guid],
                "hostsRemoved": self._removed[guid],
            }
            for guid, row in nodeRows(self._context, level, position)
        )
        edges = (
            {
                **bundleEnds(one.ends),
                "links": one.links,
                "down": one.down,
                "load": None,
                "errorRate": None,
                "worst": one.worst,
                "change": one.change,
            }
            for one in self.bundles()
        )
        shape = "free" if level is None else "levels"
        return _completed(encoded({**head, "shape": shape}, nodes, edges))
