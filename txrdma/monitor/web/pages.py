"""Pages of the monitor for people: tables that work without JavaScript, and placeholders for scripts."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Mapping
from itertools import islice
from typing import Any, Final
from urllib.parse import urlencode

from twisted.web.template import Tag

from txrdma.fabric.errorcounters import shownName
from txrdma.fabric.metricnames import FAMILIES
from txrdma.fabric.model import Node, Port
from txrdma.fabric.portcounters import Meter
from txrdma.fabric.rates import bitsEachSecond
from txrdma.iba.types import GUID
from txrdma.kit.values import frozen
from txrdma.monitor.diagnosis.findinglog import Action, Entry, LONGEST_COMMENT
from txrdma.monitor.diagnosis.journal import KINDS
from txrdma.monitor.reading.details import CAUSES
from txrdma.monitor.series.exposition import correctionMeanings, guidText
from txrdma.monitor.web.blastradius import blastSection
from txrdma.monitor.web.layout import (
    ago,
    amount,
    badge,
    changeTable,
    choose,
    drawing,
    errors,
    exactTime,
    facts,
    findingTable,
    frame,
    gauge,
    health,
    LINK_COLUMNS,
    linkTable,
    mode,
    neighbour,
    nodeLink,
    pager,
    Part,
    portLink,
    Row,
    searchForm,
    section,
    sortable,
    subjectLink,
    table,
    tags,
    timeline,
    timeTag,
    title,
    whatToDo,
)
from txrdma.monitor.web.parameters import listing, Parameter, ServedPath, TIME
from txrdma.monitor.web.past import MOST_DIFFERENCES, Past, past
from txrdma.monitor.web.routes import (
    findingOf,
    GUID_PARAMETER,
    ID_PARAMETER,
    nodeOf,
    overview,
    PORT_PARAMETER,
    portOf,
)
from txrdma.monitor.web.tables import CABLES, CHANGES, FINDINGS, LINKS, NODES, PORTS, SEVERITIES, TEXT
from txrdma.monitor.web.tracing import traced
from txrdma.monitor.web.watch import NODE_TYPES, PageContext, printable

Values = dict[str, Any]

_DAY: Final = 86400
_RANGES: Final = ((3600, "hour"), (_DAY, "day"), (7 * _DAY, "week"), (28 * _DAY, "4 weeks"))
_FEW: Final = 8
_CORRECTIONS: Final = correctionMeanings()
_MOST_SUGGESTED: Final = 500
_MOST_CLEARED: Final = 100
_SWITCH_LINKS: Final = LINKS.showing(
    lambda context, _: (
        one for one, other in context.fabric.links() if one.node.isSwitch and other.node.isSwitch
    )
)


@frozen
class Page(ServedPath):
    """A page for people; C{make} makes it."""

    make: Callable[[PageContext, Values], Coroutine[Any, Any, Tag]]


# Pages.


async def _overview(context: PageContext, values: Values) -> Tag:
    verdict, colour = health(context)
    state, statistics = overview(context), context.poller.statistics
    tiles = (
        ("Switches", state["switches"], "/nodes?type=switch"),
        ("Hosts", state["nodes"] - state["switches"], "/nodes?type=host"),
        ("Links", state["links"], "/links"),
        ("Gone", state["nodesGone"] + state["linksGone"], "/changes"),
    )
    shown = [
        tags.li(tags.a(tags.span(f"{count:,}", class_="count"), " ", name, href=link))
        for name, count, link in tiles
    ]
    counts = ", ".join(f"{count} {severity}" for severity, count in reversed(state["findings"].items()))
    summary = counts if context.open else "The first sweep is in progress."
    if colour == "ok":
        summary = "Nothing is wrong with any node, port or link."
    banner = {"id": "banner", "data-live": "yes", "aria-label": "Is all well?", "class_": f"banner {colour}"}
    causes = [entry for entry in context.open if not entry.finding.cause][:_FEW]
    more = tags.p(tags.a(f"All {len(context.open)} findings", href="/findings"))
    page = await LINKS.page([context], {"sort": "-load", "limit": _FEW, "offset": 0})
    links = linkTable(page["rows"], "No link is known yet.")
    changes = changeTable(
        context, context.poller.findings.journal.since(0)[:_FEW], "Nothing has changed since the start."
    )
    work = facts(
        ("Rounds of readings", f"{statistics.turns:,}, the last took {statistics.turnSeconds:.2f} s"),
        ("Ports read", f"{statistics.readings:,}"),
        ("Sweeps", f"{statistics.sweeps:,}, last {statistics.sweepSeconds:.2f} s"),
        ("Without an answer", f"{statistics.silences:,}"),
    )
    parts = [
        tags.section(tags.p(verdict, class_="verdict"), tags.p(summary), **banner),
        tags.ul(shown, class_="tiles", id="tiles", **{"data-live": "yes"}),
        section(
            *("Findings", findingTable(context, causes), more if len(context.open) > len(causes) else ""),
            name="findings",
        ),
        section("Topology", drawing(False), name="picture", isLive=False),
        section("Busiest links", links, name="busiest"),
        section("Latest changes", changes, name="changes"),
        section("The monitor's own work", work, name="work"),
    ]
    return frame(context, "/", "Overview", parts, "topology")


async def _nodes(context: PageContext, values: Values) -> Tag:
    page = await NODES.page([context], values)
    rows = (
        [
            nodeLink(row["guid"], row["name"]),
            [row["type"].capitalize(), " ", badge("silent") if row["isSilent"] else ""],
            row["lid"] or "–",
            f"{row['links']} of {row['ports']}",
            badge(context.findingsAt(GUID.fromString(row["guid"]))[0].severity.name.lower())
            if row["findings"]
            else "–",
            tags.code(row["guid"]),
        ]
        for row in page["rows"]
    )
    form = searchForm("/nodes", values, "Name or GUID", choose("type", "Type", values["type"], NODE_TYPES))
    columns = {head: head.lower() for head in ("Name", "Type", "LID", "Links", "Findings", "GUID")}
    shown = table("Nodes", sortable("/nodes", values, columns), rows, "No node is like that.")
    listed = section("All nodes that are there", shown, pager("/nodes", values, page["total"]), name="rows")
    return frame(context, "/nodes", "Nodes", [form, listed])


async def _links(context: PageContext, values: Values) -> Tag:
    page = await LINKS.page([context], values)
    form = searchForm("/links", values, "Name or GUID of an end")
    shown = linkTable(page["rows"], "No link is like that.", sortable("/links", values, LINK_COLUMNS))
    listed = section("All links", shown, pager("/links", values, page["total"]), name="rows")
    return frame(context, "/links", "Links", [form, listed])


_CABLE_COLUMNS: Final = {
    "Port": "name",
    "Neighbour": "peerName",
    "Cable": "partNumber",
    "Serial": "serial",
    "Length": "metres",
    "Temperature": "celsius",
    "Received": "receivedDBm",
    "Watts": "watts",
}


async def _cables(context: PageContext, values: Values) -> Tag:
    page = await CABLES.page([context], values)
    rows = (
        [
            [nodeLink(row["guid"], row["name"]), " port ", portLink(row["guid"], row["port"])],
            neighbour(row),
            *(_cableName(row), row["serial"] or "–", *_measured(row)),
            "–" if row["watts"] is None else f"{row['watts']:g} W",
        ]
        for row in page["rows"]
    )
    form = searchForm("/cables", values, "Name, GUID, or serial number")
    heads = sortable("/cables", values, _CABLE_COLUMNS)
    shown = table("Cables", heads, rows, "No cable is like that.")
    listed = section("Ends of all cables", shown, pager("/cables", values, page["total"]), name="rows")
    intro = "Cables are read a minute after changes and every 15 minutes by default, from devices of NVIDIA."
    return frame(context, "/cables", "Cables", [tags.p(intro), form, listed])


def _cableName(row: Row) -> str:
    if not row["isKnown"]:
        return "unknown"
    return " ".join(filter(None, (row["vendor"], row["partNumber"], row["kind"]))) or "–"


def _measured(row: Row) -> list[str]:
    """Return length, temperature and received power of a cable."""
    parts = (("metres", "m"), ("celsius", "°C"), ("receivedDBm", "dBm"))
    return ["–" if row[name] is None else f"{row[name]:g} {unit}" for name, unit in parts]


async def _node(context: PageContext, values: Values) -> Tag:
    node = nodeOf(context, values["guid"])
    row = NODES.toDict(context, node)
    ports = [PORTS.toDict(context, port) for port in node.ports.values() if port.number]
    path = f"/trace?{urlencode({'from': row['guid']})}"
    known = facts(
        ("Type", [row["type"].capitalize(), " ", badge("silent") if row["isSilent"] else ""]),
        ("GUID", tags.code(row["guid"])),
        ("LID", row["lid"] or "–"),
        ("Ports with a link", f"{row['links']} of {row['ports']}"),
        ("Vendor and device", f"{node.vendorID:#08x}, {node.deviceID:#06x}"),
        ("Firmware and board", f"{row['firmware']}, {row['board']}" if row["firmware"] else "–"),
        ("Serial and part number", ", ".join(filter(None, (row["serial"], row["partNumber"]))) or "–"),
        ("Up for", f"{row['uptime'] / _DAY:.1f} days" if row["uptime"] is not None else "–"),
    )
    heads = ["Port", "State", "Mode", "Neighbour", "Sent", "Received", "Load", "Errors/s"]
    parts = [
        known,
        "" if node.isSwitch else tags.p(tags.a("Path from here", href=path)),
        section("Findings here", findingTable(context, context.findingsAt(node.guid)), name="findings"),
        section("Ports", table("Ports", heads, map(_portCells, ports), "No port is known."), name="ports"),
        await blastSection(context, node),
    ]
    return frame(context, "/nodes", title(node), parts)


def _portCells(row: Row) -> list[Part]:
    return [
        portLink(row["guid"], row["port"]),
        row["state"].capitalize(),
        mode(row) if row["isLinked"] else "–",
        neighbour(row),
        amount(row["transmitRate"], "B/s"),
        amount(row["receiveRate"], "B/s"),
        gauge(row["load"]),
        errors(row["errorRate"]),
    ]


async def _port(context: PageContext, values: Values) -> Tag:
    port = portOf(context, values)
    node, row = port.node, PORTS.toDict(context, port)
    cable = CABLES.toDict(context, port)
    cableName = f"{_cableName(cable)}, serial {cable['serial']}" if cable["serial"] else _cableName(cable)
    meter = context.meter(port)
    found = [one for one in context.findingsAt(node.guid) if one.finding.port in (None, port.number)]
    counters = _counterRows(meter, {name: text for name, (_family, text) in FAMILIES.items()})
    corrections = _counterRows(context.corrections(port), _CORRECTIONS)
    causes = context.causes(port)
    reasons = [
        [shownName(name), text, amount(causes[name])]
        for named in CAUSES.values()
        for name, text in named.items()
        if name in causes
    ]
    heads = ["Counter", "Meaning", "Value", "Each second", "Since the start"]
    state = f"{row['state'].capitalize()}, {row['physicalState'].lower().replace('_', ' ')}"
    now = facts(
        ("Node", nodeLink(node.guid, title(node))),
        ("Neighbour", neighbour(row)),
        ("State", state),
        ("Mode", mode(row)),
        ("Sent", amount(row["transmitRate"], "B/s")),
        ("Received", amount(row["receiveRate"], "B/s")),
        ("Load", gauge(row["load"])),
        ("Waits for credits", gauge(row["wait"])),
        ("Errors each second", errors(row["errorRate"])),
        ("Wrong bits before correction", _share(row["rawBitErrorRate"])),
        ("Cable", cableName),
        ("Its length, temperature and received power", ", ".join(_measured(cable))),
    )
    counted = table("Counters", heads, counters, "The counters were not read yet.")
    parts = [
        section("Now", now, name="now"),
        section("Findings here", findingTable(context, found), name="findings"),
        _charts(context, port, values),
        await blastSection(context, port),
        section("Counters", counted, name="counters"),
    ]
    if reasons:
        dropped = table("Causes", ["Cause", "Meaning", "Value"], reasons, "")
        parts.append(section("Why packets were dropped", dropped, name="causes"))
    if corrections:
        corrected = table("Error correction", heads, corrections, "")
        parts.append(section("Error correction", corrected, name="error-correction"))
    return frame(context, "/nodes", f"{title(node)} port {port.number}", parts, "charts")


def _share(rate: float | None) -> str:
    return "–" if rate is None else f"{rate:.1e}"


def _counterRows(meter: Meter | None, meanings: Mapping[str, str]) -> list[list[Part]]:
    """Rows for the valid counters of a meter; none without a meter."""
    return [
        [shownName(name), text, amount(meter.value(name)), amount(meter.rate(name), "/s")]
        + [f"{meter.total(name):,}"]
        for name, text in meanings.items()
        if meter is not None and name in meter.layout.indices
    ]


def _rangeMenu(linkTo: Callable[[int, str], str], chosen: str = "") -> Tag:
    """Links to other ranges of time, by their seconds and names."""
    links = [
        tags.a(f"Last {text}", href=linkTo(seconds, text))(
            **({"aria-current": "true"} if text == chosen else {})
        )
        for seconds, text in _RANGES
    ]
    return tags.nav([[each, " "] for each in links], class_="choices", **{"aria-label": "Range of time"})


def _charts(context: PageContext, port: Port, values: Values) -> Tag:
    guid, number = guidText(port.node.guid), port.number
    if context.watch.reader is None:
        text = tags.p(f"No charts: {context.watch.noHistory}.", class_="empty")
        return section("Over time", text, name="charts", isLive=False)
    chosen = values["range"] or "hour"
    path = f"/nodes/{guid}/ports/{number}"
    choices = _rangeMenu(lambda _seconds, text: f"{path}?{urlencode({'range': text})}", chosen)
    seconds = next(seconds for seconds, text in _RANGES if text == chosen)
    bits = f"{bitsEachSecond(port):.0f}"
    data = {"data-guid": guid, "data-port": str(number), "data-seconds": str(seconds), "data-bits": bits}
    instead = tags.noscript(tags.p("Charts need JavaScript; the numbers are in the REST interface."))
    return section(
        "Over time", choices, tags.div(instead, id="charts", **data), name="over-time", isLive=False
    )


async def _findings(context: PageContext, values: Values) -> Tag:
    total, open_ = await FINDINGS.find(context, {**values, "isOpen": True})
    _total, closed = await FINDINGS.find(context, {**values, "isOpen": False}, _MOST_CLEARED)
    choice = choose("severity", "Severity", values["severity"], SEVERITIES)
    heading = "There now" if total == len(open_) else f"There now (the worst {len(open_)} of {total})"
    parts = [
        searchForm("/findings", values, "Place or text", choice),
        section(heading, findingTable(context, open_), name="open"),
        section("Cleared", findingTable(context, closed, isCleared=True), name="closed"),
    ]
    return frame(context, "/findings", "Findings", parts)


async def _finding(context: PageContext, values: Values) -> Tag:
    entry = findingOf(context, values)
    found, known = entry.finding, entry.acknowledgement
    noted: Part = "–"
    if known is not None:
        noted = [printable(known.user), ", ", timeTag(known.at, context.now)]
    now = facts(
        ("Severity", badge(entry.severity.name.lower())),
        ("Where", subjectLink(context, found.guid, found.port, found.where)),
        ("What", printable(found.text)),
        ("What to do", whatToDo(entry)),
        ("Since", timeTag(entry.firstSeen, context.now)),
        ("Cleared", "–" if entry.clearedAt is None else timeTag(entry.clearedAt, context.now)),
        ("Raised", "once" if entry.times == 1 else f"{entry.times} times"),
        ("Acknowledged by", noted),
    )
    rows = (
        [timeTag(one.at, context.now), printable(one.user), printable(one.text)] for one in entry.comments
    )
    comments = table("Comments", ["When", "Who", "What"], rows, "There is no comment.")
    parts = [
        section("State", now, name="state"),
        section("Comments", comments, name="comments"),
        _actions(context, entry),
    ]
    return frame(context, "/findings", f"Finding: {found.kind}", parts)


def _actions(context: PageContext, entry: Entry) -> Part:
    """Form of an operator's actions on a finding; what else is needed for a viewer."""
    if not context.isOperator:
        return tags.p("To acknowledge or comment it, log in as an operator.", class_="empty")
    actions = [(Action.COMMENT, "Comment")]
    if entry.acknowledgement is not None:
        actions.insert(0, (Action.UNACKNOWLEDGE, "End the acknowledgement"))
    elif entry.clearedAt is None:
        actions.insert(0, (Action.ACKNOWLEDGE, "Acknowledge"))
    buttons = [
        [tags.button(text, type="submit", name="action", value=action.value), " "] for action, text in actions
    ]
    comment = tags.textarea(name="comment", rows="3", maxlength=str(LONGEST_COMMENT))
    note = tags.p("An acknowledged finding is not sent until it is raised anew or its severity changes.")
    form = tags.form(method="post", action=f"/findings/{entry.identity}")
    form(tags.label("Comment ", comment), tags.p(buttons), note)
    return section("Acknowledge or comment", form, name="actions", isLive=False)


async def _changes(context: PageContext, values: Values) -> Tag:
    since = values["since"]
    if since is None:
        since = context.now - _DAY
    wanted = {**values, "since": since}
    total, changes = await CHANGES.find(context, wanted, values["offset"] + values["limit"])
    nothing = "Nothing has changed in this time, or since the monitor runs."
    shown = changeTable(context, changes[values["offset"] :], nothing)
    pages = pager("/changes", {**values, "since": int(since)}, total)
    parts = [
        _rangeMenu(lambda seconds, _text: f"/changes?{urlencode({'since': int(context.now - seconds)})}"),
        searchForm("/changes", values, "Place or text", choose("kind", "Change", values["kind"], KINDS)),
        section(f"Changes of the last {ago(context.now - since)}", shown, pages, name="rows"),
    ]
    return frame(context, "/changes", "Changes", parts)


async def _topology(context: PageContext, values: Values) -> Tag:
    begin, end = values["from"], values["to"]
    if begin is None:
        page = await _SWITCH_LINKS.page([context], values)
        shown = linkTable(page["rows"], "No two switches are linked.")
        pages = pager("/topology", values, page["total"])
        listed = [section("Links between switches", shown, pages, name="rows", isLive=False)]
    elif end is None:
        listed = _pastSections(context, await past(context, begin), values)
    else:
        found = await past(context, None if end == "now" else float(end), begin)
        listed = await _differenceSections(context, found, values)
    sliders = "" if context.watch.history is None else timeline(_RANGES)
    live = tags.div(listed, id="past", **{"data-live": "yes"})
    parts = [drawing(True, sliders), _comparisons(context), live]
    return frame(context, "/topology", "Topology", parts, "topology")


def _comparisons(context: PageContext) -> Part:
    """Links to the differences between earlier times and now, which work without scripts."""
    if context.watch.history is None:
        return tags.p(f"Earlier topologies need a history: {context.watch.noHistory}.")
    links = [
        tags.a(f"1 {text} ago" if text[0].isalpha() else f"{text} ago", href=f"/topology?{urlencode(query)}")
        for seconds, text in _RANGES
        for query in ({"from": max(0, int(context.now - seconds)), "to": "now"},)
    ]
    label = {"aria-label": "Compare with an earlier time"}
    return tags.nav("Compare with ", [[each, " "] for each in links], class_="choices", **label)


def _pastSections(context: PageContext, found: Past, values: Values) -> list[Part]:
    """Tables of a past topology."""
    offset, limit = values["offset"], values["limit"]
    rows = (
        [
            *(subjectLink(context, bundle.ends[at], None, bundle.names[at]) for at in (0, 1)),
            bundle.links,
            tags.span(str(bundle.down), class_="badge warning") if bundle.down else 0,
            badge(bundle.worst) if bundle.worst else "–",
        ]
        for bundle in found.bundles[offset : offset + limit]
    )
    heads = ["From", "To", "Links", "Missing", "Worst finding"]
    counts = facts(*((name.capitalize(), count) for name, count in found.counts.items()))
    links = table("Links between switches", heads, rows, "No two switches are linked.")
    findings = findingTable(context, found.findings[:_MOST_CLEARED])
    pages = pager("/topology", values, len(found.bundles))
    return [
        section(f"At {exactTime(found.at)}", counts, name="counts", isLive=False),
        section("Findings then", findings, name="findings", isLive=False),
        section("Links between switches then", links, pages, name="rows", isLive=False),
    ]


async def _differenceSections(context: PageContext, found: Past, values: Values) -> list[Part]:
    """Tables of the differences between two states."""
    wanted = {name: values[name] for name in ("search", "offset", "limit")}
    page = await found.table().page([context], wanted)

    def where(row: Row) -> Part:
        guid = None if row["guid"] is None else GUID.fromString(row["guid"])
        return subjectLink(context, guid, row["port"], row["where"])

    rows = (
        [
            *(row["kind"].replace("-", " "), where(row)),
            row["before"] or "–",
            row["after"] or "–",
        ]
        for row in page["rows"]
    )
    shown = table("Differences", ["Difference", "Where", "Before", "After"], rows, "Nothing differs.")
    total = sum(found.kinds.values())
    counts = facts(*((kind.replace("-", " "), count) for kind, count in found.kinds.items() if count))
    few = f"The first {MOST_DIFFERENCES:,} of {total:,} are listed."
    listed = tags.p(few) if total > MOST_DIFFERENCES else ""
    pages = pager("/topology", values, page["total"])
    heading = f"Differences from {exactTime(found.since or 0.0)} to {exactTime(found.at)}"
    return [section(heading, counts, listed, shown, pages, name="rows", isLive=False)]


async def _resolved(context: PageContext, text: str) -> tuple[Node | None, str]:
    """Return the node with a GUID or name; else None and the reason."""
    wanted = text.strip()
    try:
        node = context.fabric.nodes.get(GUID.fromString(wanted))
    except ValueError:
        node = None
    if node is not None:
        return node, ""
    total, named = await NODES.find(context, {"name": wanted}, 1)
    if not total and wanted:
        total, named = await NODES.find(context, {"search": wanted}, 1)
    if total == 1:
        return named[0], ""
    if not total:
        return None, f"No node is called {printable(wanted)!r}."
    return None, f"{total} nodes are like {printable(wanted)!r}: expected a GUID."


async def _trace(context: PageContext, values: Values) -> Tag:
    begin, end = values["from"] or "", values["to"] or ""
    traces: list[Part] = []
    if begin and end:
        first, why = await _resolved(context, begin)
        last, whyLast = await _resolved(context, end)
        if first is None or last is None:
            traces = [tags.p(why or whyLast, class_="empty", role="alert")]
        else:
            traces = [_pathSection(context, await traced(context, first, last))]
    hosts = islice((node for node in context.fabric.nodes.values() if not node.isSwitch), _MOST_SUGGESTED)
    form = tags.form(method="get", action="/trace", class_="filters")(
        tags.label("From ", tags.input(name="from", list="hosts", value=begin, required="required")),
        tags.label("To ", tags.input(name="to", list="hosts", value=end, required="required")),
        tags.datalist([tags.option(value=title(node)) for node in hosts], id="hosts"),
        tags.button("Trace", type="submit"),
    )
    intro = tags.p("Where the forwarding tables send packets. Names or GUIDs of two nodes:")
    return frame(context, "/trace", "Path between two nodes", [intro, form, traces])


def _exits(hop: Row) -> list[Part]:
    """Return links to the port by which packets leave, and to those that may be chosen instead."""
    more = [[" or ", portLink(hop["guid"], port)] for port in hop["others"]]
    return [portLink(hop["guid"], hop["exit"]), *more]


def _pathSection(context: PageContext, trace: Row) -> Tag:
    rows = [
        [
            str(number),
            [nodeLink(hop["guid"], hop["name"]), tags.br(), "switch" if hop["isSwitch"] else "host"],
            hop["entry"] or "–",
            _exits(hop) if hop["exit"] else "–",
            amount(hop["rate"], "B/s") if hop["exit"] else "",
            gauge(hop["load"]) if hop["exit"] else "",
            errors(hop["errorRate"]) if hop["exit"] else "",
        ]
        for number, hop in enumerate(trace["hops"])
    ]
    heads = ["Hop", "Node", "In by port", "Out by port", "Sent there", "Load there", "Errors/s"]
    failure = "The path is unknown" if trace["surveyedAt"] is None else "It does not get there"
    verdict = f"{len(rows) - 1} links" if trace["isReached"] else f"{failure}: {trace['reason']}"
    reached = tags.p(verdict, class_="verdict" if trace["isReached"] else "empty", role="status")
    at = trace["surveyedAt"]
    read = tags.p("By the tables of ", timeTag(at, context.now), ".") if at is not None else ""
    return section("Path", reached, table("Hops", heads, rows, "There is no hop."), read, name="path")


_NAME: Final = {**TEXT, "maxLength": 200}
_RANGE: Final = Parameter("range", {"type": "string", "enum": [text for _, text in _RANGES]}, "Range of time")

_TIMES: Final = (
    Parameter("from", TIME, "Time of the state that is shown, or of the earlier one of two"),
    Parameter("to", {"type": "string", "pattern": "^(now|[0-9]{1,12})$"}, "Time to compare it with"),
)

PAGES: Final = (
    Page("", (), _overview),
    Page("/nodes", listing(NODES, "type"), _nodes),
    Page("/nodes/{guid}", (GUID_PARAMETER,), _node),
    Page("/nodes/{guid}/ports/{port}", (GUID_PARAMETER, PORT_PARAMETER, _RANGE), _port),
    Page("/links", listing(LINKS), _links),
    Page("/cables", listing(CABLES), _cables),
    Page("/findings", listing(FINDINGS, "severity"), _findings),
    Page("/findings/{id}", (ID_PARAMETER,), _finding),
    Page("/changes", (Parameter("since", TIME, "Since"), *listing(CHANGES, "kind")), _changes),
    Page("/topology", (*_TIMES, *listing(LINKS, sort="-load")), _topology),
    Page("/trace", (Parameter("from", _NAME, "Node"), Parameter("to", _NAME, "Node")), _trace),
)
"""Pages for people; each can be bookmarked."""
