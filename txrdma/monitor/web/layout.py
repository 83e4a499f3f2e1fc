"""Frame and parts of the monitor's pages, by C{twisted.web.template}, which escapes all text."""

from __future__ import annotations

from collections.abc import Generator, Iterable, Sequence
from datetime import datetime, timezone
from itertools import chain
from math import ceil
from typing import Any, Final
from urllib.parse import urlencode

from twisted.web.template import Tag

from txrdma.fabric.model import Node
from txrdma.iba.types import GUID
from txrdma.kit.pathprefix import OUTSIDE
from txrdma.monitor.diagnosis.findinglog import Entry
from txrdma.monitor.diagnosis.journal import FabricEvent
from txrdma.monitor.series.exposition import guidText
from txrdma.monitor.web.watch import PageContext, printable, Watch

Part = Any
"""Part of a page: a tag, a text, a number, or a list of these; Twisted has no type for it."""

Row = dict[str, Any]
"""Row of a listing in REST."""


class _Tags:
    """Elements of HTML by their names: C{twisted.web.template.tags} lacks newer ones."""

    def __getattr__(self, name: str) -> Tag:
        return Tag(name)


tags: Final = _Tags()

MENU: Final = (
    ("/", "Overview"),
    ("/nodes", "Nodes"),
    ("/links", "Links"),
    ("/cables", "Cables"),
    ("/findings", "Findings"),
    ("/changes", "Changes"),
    ("/topology", "Topology"),
    ("/trace", "Path"),
)
"""Pages to which each page has links."""

_FOR_PROGRAMS: Final = (
    ("/api/v1/openapi.json", "REST"),
    ("/metrics", "metrics"),
    ("/files/grafana.json", "Grafana dashboard"),
    ("/files/alerts.yml", "alert rules"),
)
SCRIPTS: Final = {
    "topology": ("vendor/graphology.umd.min.js", "vendor/sigma.min.js", "topology.js", "timeline.js"),
    "charts": ("vendor/uPlot.iife.min.js", "charts.js"),
}
"""Scripts of pages with a drawing, in addition to the common one."""

ROWS_AT_A_TIME: Final = 30
"""Rows of a table between two pauses; to make and to flatten them takes some milliseconds."""

_UNITS: Final = ("", "k", "M", "G", "T", "P")


# Values.


def timeTag(at: float, now: float) -> Tag:
    """Time of an event: its age, with the exact time in the tooltip."""
    iso = datetime.fromtimestamp(at, timezone.utc).isoformat(timespec="seconds")
    return tags.time(f"{ago(now - at)} ago", datetime=iso, title=exactTime(at))


def exactTime(at: float) -> str:
    """Time as text: C{"2026-07-01 12:00:00 UTC"}."""
    return datetime.fromtimestamp(at, timezone.utc).strftime("%Y-%m-%d %H:%M:%S UTC")


def ago(seconds: float) -> str:
    """Duration as text: C{"3 min"}."""
    for size, unit in ((86400, "d"), (3600, "h"), (60, "min")):
        if seconds >= 2 * size:
            return f"{int(seconds // size)} {unit}"
    return f"{max(0, int(seconds))} s"


def amount(value: float | None, unit: str = "") -> str:
    """Number with three digits and a prefix: C{"1.25 GB/s"}; a dash for one that is not known."""
    if value is None:
        return "–"
    size = 0
    while abs(value) >= 999.5 and size < len(_UNITS) - 1:
        value /= 1000
        size += 1
    shown = f"{value:.3g}" if size or value != int(value) else f"{int(value)}"
    return f"{shown} {_UNITS[size]}{unit}".strip()


def percent(share: float | None) -> str:
    """Share in percent; a dash for one that is not known."""
    if share is None:
        return "–"
    return "< 1 %" if 0 < share < 0.01 else f"{share:.0%}".replace("%", " %")


def gauge(share: float | None) -> Part:
    """Load as a bar with its number."""
    if share is None:
        return tags.span("–", class_="unknown")
    filled = tags.rect(width=f"{share * 100:.0f}", height="10", class_="full" if share > 0.8 else "")
    bar = tags.svg(filled, viewBox="0 0 100 10", preserveAspectRatio="none", **{"aria-hidden": "true"})
    return tags.span(bar, " ", tags.span(percent(share), class_="number"), class_="gauge")


def badge(word: str) -> Tag:
    """Severity, or state, in its colour."""
    return tags.span(word, class_=f"badge {word}")


def errors(rate: float | None) -> Part:
    """Errors per second, coloured if there are any."""
    if not rate:
        return amount(rate)
    return tags.span(f"{rate:.2g}", class_="badge warning")


# Links.


def nodeLink(guid: GUID | str, name: str) -> Tag:
    """Link to the page of a node."""
    text = guid if isinstance(guid, str) else guidText(guid)
    return tags.a(printable(name) or text, href=f"/nodes/{text}")


def portLink(guid: str, number: int, text: str = "") -> Tag:
    """Link to the page of a port."""
    return tags.a(text or str(number), href=f"/nodes/{guid}/ports/{number}")


def subjectLink(context: PageContext, guid: GUID | None, number: int | None, where: str) -> Part:
    """Link to the node or port of a subject; only its name if it no longer exists."""
    node = None if guid is None else context.fabric.nodes.get(guid)
    if node is None:
        return printable(where)
    if number and node.known(number) is not None:
        return portLink(guidText(node.guid), number, f"{title(node)} port {number}")
    return nodeLink(node.guid, title(node))


def title(node: Node) -> str:
    """Name of a node, or its GUID if it has none."""
    return printable(node.description).strip() or guidText(node.guid)


# Tables.


def _shown(cell: Part) -> Part:
    return str(cell) if isinstance(cell, (int, float)) else cell


def _body(rows: Iterable[Sequence[Part]]) -> Generator[Tag, None, None]:
    """Yield rows of a table when they are flattened, and pauses, which the element of the page renders."""
    for number, row in enumerate(rows):
        if number and not number % ROWS_AT_A_TIME:
            yield Tag("", render="pause")
        yield tags.tr([tags.td(_shown(cell)) for cell in row])


def table(caption: str, heads: Iterable[Part], rows: Iterable[Sequence[Part]], empty: str) -> Part:
    """
    Table with a caption for screen readers.

    @param empty: text in place of a table without rows.
    """
    left = iter(rows)
    first = next(left, None)
    if first is None:
        return tags.p(empty, class_="empty")
    top = tags.thead(tags.tr([tags.th(head, scope="col") for head in heads]))
    made = tags.table(tags.caption(caption), top, tags.tbody(_body(chain([first], left))))
    return tags.div(made, class_="scroll", tabindex="0", role="region", **{"aria-label": f"Table: {caption}"})


def _changed(path: str, query: dict[str, Any], **values: Any) -> str:
    """Return a link to a page with other values in its query."""
    return f"{path}?{urlencode({name: value for name, value in {**query, **values}.items() if value})}"


def sortable(path: str, query: dict[str, Any], columns: dict[str, str]) -> list[Part]:
    """
    Sortable column heads; the link of one reverses the order if the table is sorted by it.

    @param columns: names of the columns by their heads.
    """
    now, heads = query.get("sort") or "", []
    for text, column in columns.items():
        other = f"-{column}" if now == column else column
        mark = " ▲" if now == column else " ▼" if now == f"-{column}" else ""
        heads.append(tags.a(f"{text}{mark}", href=_changed(path, query, sort=other, offset=0)))
    return heads


def pager(path: str, query: dict[str, Any], total: int) -> Part:
    """Links to the previous and next pages, and the position of this one."""
    offset, limit = query["offset"], query["limit"]
    if total <= limit and not offset:
        return tags.p(f"{total} in all", class_="pager")
    before = _changed(path, query, offset=max(0, offset - limit))
    after = _changed(path, query, offset=offset + limit)
    return tags.nav(
        tags.a("← Before", href=before) if offset else "",
        f" {offset + 1} to {min(offset + limit, total)} of {total} ",
        tags.a("After →", href=after) if offset + limit < total else "",
        class_="pager",
        **{"aria-label": "Pages of rows"},
    )


def searchForm(path: str, query: dict[str, Any], label: str, *more: Part) -> Tag:
    """Form of a search, which a browser without scripts sends, too."""
    text = tags.input(type="search", name="search", value=query.get("search") or "")
    form = tags.form(method="get", action=path, role="search", class_="filters")
    return form(tags.label(label, " ", text), *more, " ", tags.button("Show", type="submit"))


def choose(name: str, label: str, now: str | None, options: Iterable[str]) -> Tag:
    """A form's selection of one of several options, or of all."""
    several = [
        tags.option(value.replace("-", " ") or "all", value=value)(
            **({"selected": "selected"} if value == (now or "") else {})
        )
        for value in ("", *options)
    ]
    return tags.label(label, " ", tags.select(several, name=name))


def facts(*pairs: tuple[str, Part]) -> Tag:
    """List of facts, with names and values."""
    return tags.dl([tags.div(tags.dt(name), tags.dd(_shown(value))) for name, value in pairs], class_="facts")


def section(heading: str, *parts: Part, name: str, isLive: bool = True) -> Tag:
    """Section of a page with a heading, which a script replaces by its name if it is live."""
    more = {"aria-labelledby": f"{name}-heading", **({"data-live": "yes"} if isLive else {})}
    return tags.section(tags.h2(heading, id=f"{name}-heading"), *parts, id=name, **more)


# Tables and drawings of several pages.


LINK_COLUMNS: Final = {
    "From": "name",
    "To": "peerName",
    "Mode": "speed",
    "State": "state",
    "Load": "load",
    "Load back": "peerLoad",
    "Errors/s": "errorRate",
}
"""Columns of links by their heads."""


def _notesLink(entry: Entry) -> str:
    """Text of the link to the page of a finding: what operators have noted."""
    known, number = entry.acknowledgement, len(entry.comments)
    texts = [] if known is None else [f"Acknowledged by {printable(known.user)}"]
    texts += [f"{number} comment{'s' if number > 1 else ''}"] if number else []
    return ", ".join(texts) or "Details"


def whatToDo(entry: Entry) -> str:
    """Return the advice on a finding, or what explains it."""
    cause = entry.finding.cause
    return entry.advice if cause is None else f"Explained by {printable(str(cause))}."


def findingTable(context: PageContext, entries: list[Entry], isCleared: bool = False) -> Part:
    """Table of open findings, or of cleared ones."""
    rows = (
        [
            badge(entry.severity.name.lower()),
            subjectLink(context, entry.finding.guid, entry.finding.port, entry.finding.where),
            [
                tags.strong(printable(entry.finding.text)),
                tags.br(),
                whatToDo(entry),
                tags.br(),
                tags.a(_notesLink(entry), href=f"/findings/{entry.identity}"),
            ],
            timeTag((entry.clearedAt or entry.lastSeen) if isCleared else entry.firstSeen, context.now),
        ]
        for entry in entries
    )
    heads = ["Severity", "Where", "What, and what to do", "Cleared" if isCleared else "Since"]
    if isCleared:
        return table("Findings that were cleared", heads, rows, "No finding was cleared.")
    return table("Findings", heads, rows, "No findings.")


def changeTable(context: PageContext, changes: list[FabricEvent], empty: str) -> Part:
    """Table of changes, with their times, which lead to the topology after them if there is a history."""

    def when(at: float) -> Tag:
        shown = timeTag(at, context.now)
        return shown if context.watch.history is None else tags.a(shown, href=f"/topology?from={ceil(at)}")

    rows = (
        [
            when(change.at),
            change.kind.replace("-", " "),
            subjectLink(context, change.guid, change.port, change.where),
            printable(change.text),
        ]
        for change in changes
    )
    return table("Changes", ["When", "Change", "Where", "What"], rows, empty)


def mode(row: Row) -> str:
    """Width and speed of a link: C{"4x HDR"}."""
    return f"{row['width']}x {row['speed']}" if row["width"] and row["speed"] else "–"


def neighbour(row: Row) -> Part:
    """Links to the port at the other end of a link and its node; a dash if there is no link, or no more."""
    if row["peerGuid"] is None:
        return "–"
    peer = portLink(row["peerGuid"], row["peerPort"])
    return [nodeLink(row["peerGuid"], row["peerName"]), " port ", peer]


def linkTable(rows: list[Row], empty: str, heads: Iterable[Part] = LINK_COLUMNS) -> Part:
    """Table of links, with the load of both directions."""
    cells = (
        [
            [nodeLink(row["guid"], row["name"]), " port ", portLink(row["guid"], row["port"])],
            *(neighbour(row), mode(row), row["state"].capitalize()),
            *(gauge(row["load"]), gauge(row["peerLoad"]), errors(row["errorRate"])),
        ]
        for row in rows
    )
    return table("Links", heads, cells, empty)


def timeline(ranges: Iterable[tuple[int, str]]) -> Tag:
    """
    Sliders that choose the time of a topology, and the one that it is compared with; a script shows them.

    @param ranges: ranges of time, by their seconds and names.
    """

    def slider(name: str, label: str) -> list[Tag]:
        identifier = f"timeline-{name}"
        chosen = tags.input(type="range", id=identifier, list="timeline-marks", autocomplete="off")
        return [
            tags.label(label, **{"for": identifier}),
            chosen,
            tags.output(id=f"{identifier}-text", **{"for": identifier}),
        ]

    options = [tags.option(f"the last {text}", value=str(seconds)) for seconds, text in ranges]
    options.append(tags.option("all that is known", value="0"))
    buttons = (("earlier", "Earlier change"), ("later", "Later change"), ("now", "Now"))
    checkbox = tags.input(type="checkbox", id="timeline-compare", autocomplete="off")
    controls = tags.div(
        tags.label("Range ", tags.select(options, id="timeline-range", autocomplete="off")),
        [tags.button(text, type="button", id=f"timeline-{name}") for name, text in buttons],
        tags.label(checkbox, " Compare with"),
        class_="filters",
    )
    sliders = [*slider("from", "Time"), *slider("to", "Compared with")]
    label = {"role": "group", "aria-label": "Time of the topology"}
    listed = tags.datalist(id="timeline-marks")
    return tags.div(controls, sliders, listed, id="timeline", class_="timeline", hidden="hidden", **label)


def drawing(isLarge: bool, *above: Part) -> Tag:
    """Place for the drawing of a topology, which a script shows, with other controls above it."""
    colours = [tags.option(name, value=name) for name in ("load", "errors")]
    controls = tags.div(
        tags.label("Find a switch ", tags.input(type="search", id="topology-search", autocomplete="off")),
        tags.label("Colour by ", tags.select(colours, id="topology-colour")),
        tags.button("+", type="button", id="topology-in", **{"aria-label": "Nearer"}),
        tags.button("−", type="button", id="topology-out", **{"aria-label": "Farther"}),
        tags.button("Whole", type="button", id="topology-whole"),
        class_="filters",
    )
    label = {"aria-label": "Switches and their links; the table of links has the same"}
    size = "topology large" if isLarge else "topology"
    place = tags.div(id="topology", class_=size, role="img", **label)
    legend = tags.figcaption(id="topology-legend")
    return tags.figure(above, controls, place, legend, id="topology-figure", hidden="hidden")


# The frame.


def health(context: PageContext) -> tuple[str, str]:
    """State of health as text, and the class of its colour."""
    worst, isKnown = context.poller.findings.log.worst(), context.poller.fabric is not None
    level = None if worst is None else worst.name.lower()
    return verdict(isKnown, context.knownAt, context.now, len(context.open), level)


def verdict(
    isKnown: bool, knownAt: float | None, now: float, count: int, worst: str | None
) -> tuple[str, str]:
    """State of health, by the number of findings and the worst severity, and the class of its colour."""
    if knownAt is not None:
        return f"Discovering the fabric: last known {ago(now - knownAt)} ago", "info"
    if not isKnown:
        return "Discovering the fabric…", "info"
    if worst is None:
        return "All is well", "ok"
    return f"{count} finding{'s' if count > 1 else ''}", worst


def _menu(label: str, links: Iterable[tuple[str, str]], now: str) -> Tag:
    """Links to pages, with the current one marked."""
    shown = [
        tags.li(tags.a(text, href=link, **({"aria-current": "page"} if link == now else {})))
        for link, text in links
    ]
    return tags.nav(tags.ul(shown), **{"aria-label": label})


def fabricMenu(watch: Watch, path: str) -> Part:
    """Links to the same page of all fabrics, if there are several."""
    links = {name: f"{OUTSIDE}fabrics/{name}{path or '/'}" for name in watch.fabrics}
    if not links:
        return ""
    return _menu("Fabrics", [(link, name) for name, link in links.items()], links.get(watch.fabric, ""))


def head(heading: str, *more: Part) -> Tag:
    """Head of a page, with more of its elements before the style of all pages."""
    return tags.head(
        tags.meta(charset="utf-8"),
        tags.meta(name="viewport", content="width=device-width, initial-scale=1"),
        tags.meta(name="color-scheme", content="light dark"),
        tags.title(f"{heading} · Fabric monitor"),
        tags.link(rel="icon", href="/static/icon.svg", type="image/svg+xml"),
        *more,
        tags.link(rel="stylesheet", href="/static/monitor.css"),
    )


def foot() -> Tag:
    """Foot of a page: whether the page is up to date, and links for programs."""
    files = [tags.a(text, href=link) for link, text in _FOR_PROGRAMS]
    live = tags.span("", id="live", role="status")
    return tags.footer(live, " For programs: ", files[0], [[", ", link] for link in files[1:]])


def frame(context: PageContext, path: str, heading: str, parts: Part, drawing: str = "") -> Tag:
    """
    A whole page with its frame.

    @param path: path of the page in the menu.
    @param drawing: one of L{SCRIPTS}; C{""} for none.
    """
    state, colour = health(context)
    watch, live = context.watch, {"data-live": "yes"}
    standby = f"This is a standby; {watch.active or 'no monitor'} is active."
    scripts = ("monitor.js", *SCRIPTS.get(drawing, ()))
    style = tags.link(rel="stylesheet", href="/static/vendor/uPlot.min.css") if drawing == "charts" else ""
    header = tags.header(
        tags.a("Fabric monitor", href=f"{OUTSIDE}" if watch.fabric else "/", class_="brand"),
        fabricMenu(watch, path),
        tags.a(state, href="/findings", id="health", class_=f"badge {colour}", **live),
        _menu("Pages", MENU, path),
    )
    body = tags.body(
        tags.a("Skip to the content", href="#main", class_="skip"),
        header,
        tags.main(
            tags.p(watch.note if watch.isActive else standby, id="standby", class_="empty", **live),
            *(tags.h1(heading), parts),
            id="main",
        ),
        foot(),
    )
    loaded = [tags.script(src=f"/static/{script}", defer="defer") for script in scripts]
    return tags.html(head(heading, style, loaded), body, lang="en")
