"""
Tables of the monitor: their rows, the meaning of their columns, and pages selected by filter and order.

Values are taken from the model when a row is shown, and filters and sorting read only their own columns,
since a large fabric has sixty thousand ports.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from copy import copy
from heapq import merge
from itertools import islice
from operator import itemgetter
from typing import Any, Final, Generic, TypeVar

from txrdma.fabric.cables import Cable, CABLE_CELLS, cablePorts
from txrdma.fabric.health import Cause
from txrdma.fabric.model import Node, Port
from txrdma.fabric.tables import Firmware
from txrdma.iba.types import GUID
from txrdma.kit.values import frozen
from txrdma.monitor.diagnosis.findinglog import Acknowledgement, Entry
from txrdma.monitor.diagnosis.journal import FabricEvent, KINDS
from txrdma.monitor.series.exposition import guidText
from txrdma.monitor.web.searches import Search
from txrdma.monitor.web.watch import NODE_TYPES, nodeType, PageContext, printable

Schema = dict[str, Any]
Row = TypeVar("Row")
T = TypeVar("T")

GUID_TEXT: Final[Schema] = {"type": "string", "pattern": "^0x[0-9a-f]{16}$"}
IDENTITY: Final[Schema] = {"type": "string", "pattern": "^[0-9a-f]{16}$"}
TEXT: Final[Schema] = {"type": "string"}
NUMBER: Final[Schema] = {"type": "number"}
COUNT: Final[Schema] = {"type": "integer", "minimum": 0}
TRUTH: Final[Schema] = {"type": "boolean"}
SEVERITIES: Final = ("info", "warning", "critical")

MOST_ROWS: Final = 1000
"""Maximum number of rows of a page."""

PIECE: Final = 1000
"""Rows that are searched at a time, which takes some milliseconds."""

SHOWN: Final = 200
"""Rows whose values are taken at a time, which takes some milliseconds."""

_FIRST: Final = itemgetter(0)


def orNull(schema: Schema) -> Schema:
    """Return the schema of a value that may be unknown."""
    return {**schema, "type": [schema["type"], "null"]}


def choice(*values: str) -> Schema:
    """Return the schema of a text that is one of several."""
    return {"type": "string", "enum": list(values)}


def record(**properties: Schema) -> Schema:
    """Return the schema of an object with exactly these properties."""
    return {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }


def rowsOf(item: Schema) -> Schema:
    """Return the schema of a list of items."""
    return {"type": "array", "items": item}


def described(schema: Schema, text: str) -> Schema:
    """Return a schema with a description."""
    return {**schema, "description": text}


@frozen
class Column(Generic[Row]):
    """
    A column of a table of the monitor.

    @ivar name: name of the value in JSON.
    @ivar schema: JSON schema of the value.
    @ivar text: description of the value.
    @ivar value: returns the value of a row.
    """

    name: str
    schema: Schema
    text: str
    value: Callable[[PageContext, Row], Any]


class Table(Generic[Row]):
    """
    A table whose rows are of one kind.

    @ivar name: name of a row's schema.
    @ivar columns: columns in order.
    @ivar searched: names of the columns that are searched.
    """

    def __init__(
        self,
        name: str,
        searched: tuple[str, ...],
        take: Callable[[PageContext, Mapping[str, Any]], Iterable[Row]],
        ranked: tuple[str, ...],
        rank: Callable[..., Any],
        *columns: Column[Row],
    ) -> None:
        """
        @param take: returns the rows of a fabric; it gets the same values as a search.
        @param rank: returns the key by which rows are sorted by default, the highest first, from the values
            of the columns C{ranked}; C{int} without columns preserves the order of each fabric.
        """
        text = "Name of the fabric; empty if it has none"
        self.name = name
        self._take = take
        self._ranked, self._rank = ranked, rank
        self.columns = (*columns, Column[Row]("fabric", TEXT, text, lambda context, _: context.watch.fabric))
        self.searched = searched
        self._values = {column.name: column.value for column in self.columns}

    @property
    def schema(self) -> Schema:
        """Return the JSON schema of a row."""
        return record(**{one.name: described(one.schema, one.text) for one in self.columns})

    def toDict(self, context: PageContext, row: Row) -> dict[str, Any]:
        """Return a row as a dictionary for JSON."""
        return {name: value(context, row) for name, value in self._values.items()}

    def showing(self, take: Callable[[PageContext, Mapping[str, Any]], Iterable[Row]]) -> Table[Row]:
        """Return the same table with other rows."""
        other = copy(self)
        other._take = take
        return other

    async def page(self, contexts: Sequence[PageContext], wanted: Mapping[str, Any]) -> dict[str, Any]:
        """
        Return a page of the rows of one or several fabrics for JSON.

        @param wanted: values of columns by their names, C{search} for a text in the searched columns,
            C{sort}: the name of a column, with a leading dash for the highest first, C{limit} and C{offset}.
            Values of None are ignored.
        """
        return await self._found(self._page, contexts, wanted)

    async def find(
        self, context: PageContext, wanted: Mapping[str, Any], limit: int = MOST_ROWS
    ) -> tuple[int, list[Row]]:
        """Return the number of rows of a fabric that match, and the first of them."""
        wanted = {**wanted, "limit": limit, "offset": 0}
        total, chosen = await self._found(self._search, [context], wanted)
        return total, [row for _context, row in chosen]

    async def _found(
        self,
        search: Callable[[Sequence[PageContext], Mapping[str, Any]], Search[T]],
        contexts: Sequence[PageContext],
        wanted: Mapping[str, Any],
    ) -> T:
        request = (search, tuple(one.watch.fabric for one in contexts), tuple(sorted(wanted.items())))
        state = [context.state for context in contexts]
        return await contexts[0].watch.searches.result(request, state, search(contexts, wanted))

    def _search(
        self, contexts: Sequence[PageContext], wanted: Mapping[str, Any]
    ) -> Search[tuple[int, list[tuple[PageContext, Row]]]]:
        """
        Search rows in pieces of L{PIECE}.

        @return: the number of rows that were found, and those from C{offset} on, with their contexts.
        """
        offset, most = wanted["offset"], wanted["offset"] + wanted["limit"]
        names, rank, isReversed = self._order(wanted.get("sort"))
        taken = [self._values[name] for name in names]
        total = pending = 0
        runs: list[list[tuple[Any, PageContext, Row]]] = []
        for context in contexts:
            left = iter(self._take(context, wanted))
            while piece := list(islice(left, PIECE)):
                if pending >= PIECE:
                    yield
                    pending = 0
                pending += len(piece)
                found = self.filtered(context, piece, wanted)
                total += len(found)
                run = [(rank(*[take(context, row) for take in taken]), context, row) for row in found]
                run.sort(key=_FIRST, reverse=isReversed)
                runs.append(run[:most])
        chosen = []
        for number, (_key, context, row) in enumerate(merge(*runs, key=_FIRST, reverse=isReversed)):
            if number >= most:
                break
            if number >= offset:
                chosen.append((context, row))
            if number % PIECE == PIECE - 1:
                yield
        return total, chosen

    def filtered(self, context: PageContext, rows: list[Row], wanted: Mapping[str, Any]) -> list[Row]:
        for name, value in wanted.items():
            taken = self._values.get(name)
            if taken is not None and value is not None:
                rows = [row for row in rows if taken(context, row) == value]
        search = (wanted.get("search") or "").lower()
        if search:
            texts = [self._values[name] for name in self.searched]
            rows = [row for row in rows if any(search in str(text(context, row)).lower() for text in texts)]
        return rows

    def merged(self, pages: Iterable[Mapping[str, Any]], wanted: Mapping[str, Any]) -> dict[str, Any]:
        """
        Return a page of the rows of several pages for JSON.

        @param pages: pages from the first row on, each in the order of C{wanted}.
        """
        names, rank, isReversed = self._order(wanted.get("sort"))
        runs, offset = [page["rows"] for page in pages], wanted["offset"]
        rows = merge(*runs, key=lambda row: rank(*map(row.get, names)), reverse=isReversed)
        shown = list(islice(rows, offset, offset + wanted["limit"]))
        total = sum(page["total"] for page in pages)
        return {"total": total, "offset": offset, "limit": wanted["limit"], "rows": shown}

    def _order(self, order: str | None) -> tuple[tuple[str, ...], Callable[..., Any], bool]:
        """Return the columns of an order, the key of their values, and whether the highest is first."""
        if not order:
            return self._ranked, self._rank, True
        return (order.removeprefix("-"),), lambda value: (value is not None, value), order.startswith("-")

    def _page(self, contexts: Sequence[PageContext], wanted: Mapping[str, Any]) -> Search[dict[str, Any]]:
        total, chosen = yield from self._search(contexts, wanted)
        rows = []
        for number, pair in enumerate(chosen):
            if number and not number % SHOWN:
                yield
            rows.append(self.toDict(*pair))
        return {"total": total, "offset": wanted["offset"], "limit": wanted["limit"], "rows": rows}


def pageSchema(name: str) -> Schema:
    """Return the schema of a page of rows whose schema has this name."""
    page = record(
        total=described(COUNT, "Rows on all pages"),
        offset=described(COUNT, "Rows before this page"),
        limit=described(COUNT, "Most rows of this page"),
        rows=rowsOf({"$ref": f"#/components/schemas/{name}"}),
    )
    away = rowsOf(record(fabric=TEXT, problem=TEXT))
    page["properties"]["away"] = described(away, "Of several processes: fabrics whose rows are missing")
    return page


# The tables.


def _rate(counter: str) -> Callable[[PageContext, Port], float | None]:
    return lambda context, port: context.rate(port, counter)


def _firmware(of: Callable[[Firmware], Any]) -> Callable[[PageContext, Node], Any]:
    """Return a function that returns a value of a node's firmware; None if that is unknown."""

    def value(context: PageContext, node: Node) -> Any:
        known = context.poller.firmware.get(node.guid)
        return None if known is None else of(known)

    return value


def _cell(of: Callable[[Cable, int], Any]) -> Callable[[PageContext, Port], Any]:
    """Return a function that returns a value of a port's cable; None if that is unknown."""

    def value(context: PageContext, port: Port) -> Any:
        cable = context.cable(port)
        known = None if cable is None else of(cable, port.width)
        return printable(known) if isinstance(known, str) else known

    return value


def _guid(context: PageContext, port: Port) -> str:
    return guidText(port.node.guid)


def _textOf(guid: GUID | None) -> str | None:
    return None if guid is None else guidText(guid)


def _description(context: PageContext, port: Port) -> str:
    return printable(port.node.description)


def _ofPeer(of: Callable[[PageContext, Port], Any]) -> Callable[[PageContext, Port], Any]:
    return lambda context, port: None if port.peer is None else of(context, port.peer)


def linkErrors(context: PageContext, port: Port) -> float | None:
    """Return the errors per second at both ends of a port's link; None if those of neither end are known."""
    ends = [port] if port.peer is None else [port, port.peer]
    known = [rate for rate in (context.errorRate(end) for end in ends) if rate is not None]
    return sum(known) if known else None


def _nodeRank(kind: str, guid: str) -> tuple[int, int]:
    """Rank nodes by their types, then by their GUIDs, the lowest first."""
    return -NODE_TYPES.index(kind), -int(guid, 16)


def _findingRank(clearedAt: float | None, severity: str, firstSeen: float) -> tuple[float, ...]:
    """Rank findings as each fabric lists its own: open ones first, and the worst of these."""
    if clearedAt is None:
        return 1, SEVERITIES.index(severity), firstSeen
    return 0, clearedAt


_RATE: Final = orNull(NUMBER)
_GUID: Final = orNull(GUID_TEXT)


def _ofCause(of: Callable[[Cause], Any], instead: str | None = None) -> Callable[[PageContext, Entry], Any]:
    """Return a function that returns a value of a finding's cause, or something else without one."""
    return lambda _, entry: instead if entry.finding.cause is None else of(entry.finding.cause)


def _acknowledged(of: Callable[[Acknowledgement], Any]) -> Callable[[PageContext, Entry], Any]:
    """Return a function that returns a value of a finding's acknowledgement; None without one."""
    return lambda _, entry: None if entry.acknowledgement is None else of(entry.acknowledgement)


NODES: Final[Table[Node]] = Table(
    "Node",
    ("name", "guid"),
    lambda context, _: list(context.fabric.nodes.values()),  # which may change while they are searched
    *(("type", "guid"), _nodeRank),
    Column("guid", GUID_TEXT, "GUID of the node", lambda context, node: guidText(node.guid)),
    Column("name", TEXT, "Node description, set by the node", lambda _, node: printable(node.description)),
    Column("type", choice(*NODE_TYPES), "Type of the node", lambda context, node: nodeType(node)),
    Column("lid", COUNT, "LID of a switch or a host's first port; 0 for none", lambda _, node: int(node.lid)),
    Column("ports", COUNT, "Number of ports", lambda context, node: node.numPorts),
    Column("links", COUNT, "Number of ports with a link", lambda context, node: len(node.linked())),
    Column("isSilent", TRUTH, "It did not answer when asked last", PageContext.isSilent),
    Column("findings", COUNT, "Its open findings", lambda context, node: len(context.findingsAt(node.guid))),
    Column("firmware", orNull(TEXT), "Version of the firmware", _firmware(str)),
    Column("board", orNull(TEXT), "Board and its configuration (PSID)", _firmware(lambda one: one.board)),
    Column("uptime", orNull(COUNT), "Seconds since its start", _firmware(lambda one: one.uptimeSeconds)),
    Column("serial", orNull(TEXT), "Serial number", _firmware(lambda one: one.serial or None)),
    Column("partNumber", orNull(TEXT), "Part number", _firmware(lambda one: one.partNumber or None)),
)

PORTS: Final[Table[Port]] = Table(
    "Port",
    ("name", "guid", "peerName", "peerGuid"),
    lambda context, _: (port for port in context.fabric.ports() if port.number),
    *((), int),
    Column("guid", GUID_TEXT, "GUID of the node", _guid),
    Column("name", TEXT, "Node description", _description),
    Column("port", COUNT, "Number of the port", lambda context, port: port.number),
    Column("state", TEXT, "State: DOWN, INIT, ARMED, ACTIVE", lambda context, port: port.state.name),
    Column("physicalState", TEXT, "Physical state", lambda context, port: port.physicalState.name),
    Column("isLinked", TRUTH, "It has a link", lambda context, port: port.peer is not None),
    Column("width", COUNT, "Lanes in use; 0 if unknown", lambda context, port: port.width),
    Column("speed", TEXT, "Active speed of a lane by name: HDR", lambda context, port: port.speed),
    Column("peerGuid", _GUID, "GUID of the node linked to", _ofPeer(_guid)),
    Column("peerName", orNull(TEXT), "Name of the node linked to", _ofPeer(_description)),
    Column("peerPort", orNull(COUNT), "Port linked to", _ofPeer(lambda context, peer: peer.number)),
    Column("transmitRate", _RATE, "Octets of data sent each second", _rate("portXmitData")),
    Column("receiveRate", _RATE, "Octets of data received each second", _rate("portRcvData")),
    Column("load", _RATE, "Share of the link sent at, 0 to 1", PageContext.load),
    Column("wait", _RATE, "Share of time in which it waits for credits, 0 to 1", PageContext.waitShare),
    Column("errorRate", _RATE, "Errors each second", PageContext.errorRate),
    Column("rawBitErrorRate", _RATE, "Share of wrong bits before correction", PageContext.rawBitErrorRate),
)

_OF_LINKS: Final = ("guid", "name", "port", "peerGuid", "peerName", "peerPort", "state", "width", "speed")
"""Columns of ports that links have, too."""

LINKS: Final[Table[Port]] = Table(
    "Link",
    ("name", "guid", "peerName", "peerGuid"),
    lambda context, _: (one for one, _other in context.fabric.links()),
    *((), int),
    *(column for column in PORTS.columns if column.name in _OF_LINKS),
    Column("load", _RATE, "Share of the link used there, 0 to 1", PageContext.load),
    Column("peerLoad", _RATE, "Share used back", _ofPeer(PageContext.load)),
    Column("errorRate", _RATE, "Errors each second at both ends", linkErrors),
)

_OF_CABLES: Final = {
    "kind": (TEXT, "Kind: active cable, optical module, copper"),
    "vendor": (TEXT, "Maker of the cable or module"),
    "partNumber": (TEXT, "Part number"),
    "revision": (TEXT, "Revision"),
    "serial": (TEXT, "Serial number, usually the same at both ends of a cable"),
    "metres": (NUMBER, "Length in metres"),
    "celsius": (NUMBER, "Temperature in degrees Celsius"),
    "hotCelsius": (NUMBER, "Temperature of its alarm"),
    "receivedDBm": (NUMBER, "Received power of the weakest lane, in dBm"),
    "lowDBm": (NUMBER, "Received power of its alarm"),
    "sentDBm": (NUMBER, "Sent power of the weakest lane, in dBm"),
    "watts": (NUMBER, "Maximum consumption"),
}

CABLES: Final[Table[Port]] = Table(
    "Cable",
    ("name", "guid", "peerName", "serial", "partNumber", "vendor"),
    lambda context, _: cablePorts(context.fabric.nodes.values()),
    *((), int),
    *(column for column in PORTS.columns if column.name in _OF_LINKS[:6]),
    Column("isKnown", TRUTH, "The cable can be read", lambda context, port: context.cable(port) is not None),
    *(
        Column(name, orNull(_OF_CABLES[name][0]), _OF_CABLES[name][1], _cell(value))
        for name, value in CABLE_CELLS
    ),
)

FINDINGS: Final[Table[Entry]] = Table(
    "Finding",
    ("where", "text", "guid", "kind"),
    lambda context, _: (*context.open, *reversed(context.poller.findings.log.closed)),
    *(("clearedAt", "severity", "firstSeen"), _findingRank),
    Column("id", IDENTITY, "Identity of the finding", lambda _, entry: entry.identity),
    Column("kind", TEXT, "Kind of the finding", lambda _, entry: entry.finding.kind),
    Column("severity", choice(*SEVERITIES), "Severity", lambda _, entry: entry.severity.name.lower()),
    Column("where", TEXT, "Location, as readable text", lambda _, entry: printable(entry.finding.where)),
    Column("guid", _GUID, "GUID of the node", lambda _, entry: _textOf(entry.finding.guid)),
    Column("port", orNull(COUNT), "Number of the port", lambda _, entry: entry.finding.port),
    Column("text", TEXT, "Fault in words", lambda _, entry: printable(entry.finding.text)),
    Column("cause", TEXT, "A finding that explains it", _ofCause(lambda one: printable(str(one)), "")),
    Column("causeKind", orNull(TEXT), "Kind of that finding", _ofCause(lambda one: one.kind)),
    Column("causeGuid", _GUID, "GUID of its node", _ofCause(lambda one: _textOf(one.guid))),
    Column("causePort", orNull(COUNT), "Number of its port", _ofCause(lambda one: one.port)),
    Column("advice", TEXT, "What to do", lambda _, entry: entry.advice),
    Column("firstSeen", NUMBER, "Seconds since 1970", lambda _, entry: entry.firstSeen),
    Column("lastSeen", NUMBER, "Seconds since 1970", lambda _, entry: entry.lastSeen),
    Column("clearedAt", orNull(NUMBER), "Seconds since 1970", lambda _, entry: entry.clearedAt),
    Column("times", COUNT, "Times that it was raised", lambda _, entry: entry.times),
    Column("isOpen", TRUTH, "It is there", lambda _, entry: entry.clearedAt is None),
    Column(
        *("isAcknowledged", TRUTH, "An operator has acknowledged it"),
        lambda _, entry: entry.acknowledgement is not None,
    ),
    Column("acknowledgedBy", orNull(TEXT), "Name of that operator", _acknowledged(lambda one: one.user)),
    Column("acknowledgedAt", orNull(NUMBER), "Seconds since 1970", _acknowledged(lambda one: one.at)),
    Column("comments", COUNT, "Number of comments", lambda _, entry: len(entry.comments)),
)

CHANGES: Final[Table[FabricEvent]] = Table(
    "Change",
    ("where", "text", "guid"),
    lambda context, wanted: context.poller.findings.journal.since(wanted["since"]),
    *(("at",), float),
    Column("at", NUMBER, "Seconds since 1970", lambda _, change: change.at),
    Column("kind", choice(*KINDS), "Kind of the change", lambda _, change: change.kind),
    Column("where", TEXT, "Location, as readable text", lambda _, change: printable(change.where)),
    Column("text", TEXT, "Change in words", lambda _, change: printable(change.text)),
    Column("guid", _GUID, "GUID of the node", lambda _, change: _textOf(change.guid)),
    Column("port", orNull(COUNT), "Number of the port", lambda _, change: change.port),
)
