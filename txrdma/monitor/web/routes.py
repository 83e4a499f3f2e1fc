"""Routes of the REST interface: their answers, parameters and schemas."""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Sequence
from dataclasses import asdict
from typing import Any, Final, TypeVar

from txrdma.error import InvalidRequest
from txrdma.fabric.metricnames import CAUSE_FAMILIES, FAMILIES
from txrdma.fabric.model import Node, Port
from txrdma.fabric.portcounters import Meter
from txrdma.iba.types import GUID
from txrdma.kit.values import frozen
from txrdma.monitor.diagnosis.findinglog import Entry
from txrdma.monitor.series.level import DEFAULT_LEVELS
from txrdma.monitor.series.rows import STORED_COUNTERS
from txrdma.monitor.web.blastradius import BLAST_SCHEMA, blastRadius
from txrdma.monitor.web.parameters import listing, Missing, Parameter, ServedPath, TIME, Wrong
from txrdma.monitor.web.past import changeTimes, DIFFERENCE_TABLE, past, PAST_SCHEMA, TIMES_SCHEMA
from txrdma.monitor.web.tables import (
    CABLES,
    CHANGES,
    choice,
    COUNT,
    described,
    FINDINGS,
    GUID_TEXT,
    IDENTITY,
    LINKS,
    NODES,
    NUMBER,
    orNull,
    pageSchema,
    PORTS,
    record,
    rowsOf,
    Schema,
    SEVERITIES,
    Table,
    TEXT,
    TRUTH,
)
from txrdma.monitor.web.topology import topology, TOPOLOGY_SCHEMA
from txrdma.monitor.web.tracing import TRACE_SCHEMA, traced
from txrdma.monitor.web.watch import PageContext

Answer = dict[str, Any]
Values = dict[str, Any]
T = TypeVar("T")

_HOUR: Final = 3600.0


@frozen
class WebRoute(ServedPath):
    """
    Route of the REST interface.

    @ivar name: name of the operation.
    @ivar schema: JSON schema of the answer.
    @ivar answer: makes the answer about one fabric; in pieces of JSON if it is large.
    @ivar table: table of a listing, which can be that of several fabrics, in place of C{answer}.
    """

    name: str
    text: str
    schema: Schema
    answer: Callable[[PageContext, Values], Coroutine[Any, Any, Answer | list[bytes]]] | None
    table: Table[Any] | None = None


def _listingRoute(
    path: str, text: str, table: Table[Any], *filters: str, more: Sequence[Parameter] = ()
) -> WebRoute:
    parameters = (*more, *listing(table, *filters))
    return WebRoute(path, parameters, path[1:], text, pageSchema(table.name), None, table)


# Answers.


def overview(context: PageContext) -> Answer:
    """Return the state of health for JSON."""
    poller, fabric = context.poller, context.fabric
    worst = poller.findings.log.worst()
    found = dict.fromkeys(SEVERITIES, 0)
    for entry in context.open:
        found[entry.severity.name.lower()] += 1
    return {
        "isActive": context.watch.isActive,
        "isWell": poller.fabric is not None and worst is None,
        "isKnown": poller.fabric is not None,
        "knownAt": context.knownAt,
        "worst": None if worst is None else worst.name.lower(),
        "nodes": len(fabric.nodes),
        "switches": sum(node.isSwitch for node in fabric.nodes.values()),
        "links": len(poller.topologyWatch.linked),
        "nodesGone": len(poller.topologyWatch.missingNodes),
        "linksGone": len(poller.topologyWatch.missingLinks),
        "findings": found,
        "at": context.now,
        "statistics": asdict(poller.statistics),
    }


def nodeOf(context: PageContext, text: str) -> Node:
    """Return the node with this GUID, or raise L{Missing}."""
    node = context.fabric.nodes.get(GUID.fromString(text))
    if node is None:
        raise Missing(f"there is no node {text}")
    return node


def portOf(context: PageContext, values: Values) -> Port:
    """Return the port that the parameters C{guid} and C{port} name, or raise L{Missing}."""
    port = nodeOf(context, values["guid"]).known(values["port"])
    if port is None:
        raise Missing(f"node {values['guid']} has no port {values['port']}")
    return port


async def _node(context: PageContext, values: Values) -> Answer:
    node = nodeOf(context, values["guid"])
    found = [FINDINGS.toDict(context, one) for one in context.findingsAt(node.guid)]
    return {
        **NODES.toDict(context, node),
        "vendorId": node.vendorID,
        "deviceId": node.deviceID,
        "portRows": [PORTS.toDict(context, port) for port in node.ports.values() if port.number],
        "findingRows": found,
    }


async def _port(context: PageContext, values: Values) -> Answer:
    port = portOf(context, values)
    meter, corrections = context.meter(port), context.corrections(port)
    names = () if corrections is None else corrections.layout.names
    return {
        **PORTS.toDict(context, port),
        "counters": _every(meter, Meter.value, FAMILIES),
        "rates": _every(meter, Meter.rate, FAMILIES),
        "causes": {name: context.causes(port).get(name) for name in CAUSE_FAMILIES},
        "errorCorrection": _every(corrections, Meter.value, names),
        "errorCorrectionRates": _every(corrections, Meter.rate, names),
    }


def _every(meter: Meter | None, take: Callable[[Meter, str], float | None], names: Iterable[str]) -> Answer:
    """Return a value of each named counter of a meter, by name; an empty answer if the meter is None."""
    return {} if meter is None else {name: take(meter, name) for name in names}


def findingOf(context: PageContext, values: Values) -> Entry:
    """Return the finding that the parameter C{id} names, or raise L{Missing}."""
    entry = context.poller.findings.log.find(values["id"])
    if entry is None:
        raise Missing(f"there is no finding {values['id']}")
    return entry


def findingAnswer(context: PageContext, entry: Entry) -> Answer:
    """Return a finding with its comments for JSON."""
    return {**FINDINGS.toDict(context, entry), "commentRows": [one._asdict() for one in entry.comments]}


async def _finding(context: PageContext, values: Values) -> Answer:
    return findingAnswer(context, findingOf(context, values))


async def _overview(context: PageContext, values: Values) -> Answer:
    return overview(context)


async def _history(context: PageContext, values: Values) -> Answer:
    if context.watch.reader is None:
        raise Missing(context.watch.noHistory)
    portKey = (GUID.fromString(values["guid"]), values["port"])
    end = context.now if values["end"] is None else values["end"]
    begin = end - _HOUR if values["begin"] is None else values["begin"]
    try:
        points = await context.watch.reader.series(
            portKey, values["counter"], int(begin), int(end) + 1, values["resolution"] or ""
        )
    except InvalidRequest as error:
        raise Wrong(str(error)) from error
    shown = [{**point._asdict(), "rate": point.rate} for point in points]
    return {"begin": begin, "end": end, "points": shown}


async def _trace(context: PageContext, values: Values) -> Answer:
    begin, end = nodeOf(context, values["from"]), nodeOf(context, values["to"])
    return await traced(context, begin, end)


async def _blastRadius(context: PageContext, values: Values) -> Answer:
    isPort = values["port"] is not None
    return await blastRadius(context, portOf(context, values) if isPort else nodeOf(context, values["guid"]))


async def _topology(context: PageContext, values: Values) -> list[bytes]:
    watch = context.watch
    return await watch.searches.result(("topology", watch.fabric), context.state, topology(context))


async def _times(context: PageContext, values: Values) -> Answer:
    return await changeTimes(context, values["begin"], values["end"])


async def _topologyAt(context: PageContext, values: Values) -> list[bytes]:
    return (await past(context, values["at"])).pieces


async def _difference(context: PageContext, values: Values) -> list[bytes]:
    return (await past(context, values["to"], values["from"])).pieces


async def _differences(context: PageContext, values: Values) -> Answer:
    found = await past(context, values["to"], values["from"])
    return await found.table().page([context], values)


# Schemas.


OVERVIEW_SCHEMA: Final = record(
    isActive=described(TRUTH, "It is no standby"),
    isWell=described(TRUTH, "The fabric is known, and there is no finding"),
    isKnown=described(TRUTH, "There was a sweep"),
    knownAt=described(orNull(NUMBER), "Time of the last stored event, before the first sweep"),
    worst=orNull(TEXT),
    **dict.fromkeys(("nodes", "switches", "links", "nodesGone", "linksGone"), COUNT),
    findings=record(**dict.fromkeys(SEVERITIES, COUNT)),
    at=NUMBER,
    statistics={"type": "object", "additionalProperties": NUMBER},
)


def _more(schema: Schema, **properties: Schema) -> Schema:
    return {
        **schema,
        "properties": {**schema["properties"], **properties},
        "required": [*schema["required"], *properties],
    }


_PROBLEM: Final = described(TEXT, "Why the monitor is away, so that the state is its last one; empty if not")

FABRICS_SCHEMA: Final = record(rows=rowsOf(_more(OVERVIEW_SCHEMA, fabric=TEXT, problem=_PROBLEM)))
"""Schema of the states of all fabrics."""

_ROWS: Final = {
    table.name: rowsOf({"$ref": f"#/components/schemas/{table.name}"}) for table in (PORTS, FINDINGS)
}
_NODE: Final = _more(
    NODES.schema, vendorId=COUNT, deviceId=COUNT, portRows=_ROWS["Port"], findingRows=_ROWS["Finding"]
)
FINDING_SCHEMA: Final = _more(FINDINGS.schema, commentRows=rowsOf(record(at=NUMBER, user=TEXT, text=TEXT)))
"""Schema of a finding with its comments."""

_OF_COUNTERS: Final = ("counters", "rates", "causes", "errorCorrection", "errorCorrectionRates")
_COUNTERS: Final[Schema] = {"type": "object", "additionalProperties": orNull(NUMBER)}
_POINT: Final = record(
    at=NUMBER, seconds=NUMBER, grown=orNull(COUNT), rate=orNull(NUMBER), peak=orNull(NUMBER)
)
_HISTORY: Final = record(begin=NUMBER, end=NUMBER, points=rowsOf(_POINT))

GUID_PARAMETER: Final = Parameter("guid", GUID_TEXT, "GUID of a node", isInPath=True)
ID_PARAMETER: Final = Parameter("id", IDENTITY, "Identity of a finding", isInPath=True)
PORT_PARAMETER: Final = Parameter("port", {**COUNT, "maximum": 255}, "Number of a port", isInPath=True)
_BETWEEN: Final = (
    Parameter("from", TIME, "Earlier time, seconds since 1970", isNeeded=True),
    Parameter("to", TIME, "Later time; now without"),
)
_COUNTER: Final = Parameter("counter", choice(*STORED_COUNTERS), "Counter; data is in octets", isInPath=True)

ROUTES: Final = (
    WebRoute("/overview", (), "overview", "Is all well?", OVERVIEW_SCHEMA, _overview),
    _listingRoute("/nodes", "Nodes: switches, then hosts, then routers", NODES, "type", "isSilent"),
    WebRoute("/nodes/{guid}", (GUID_PARAMETER,), "node", "A node with its ports and findings", _NODE, _node),
    _listingRoute("/ports", "Ports of all nodes", PORTS, "guid", "state", "isLinked"),
    WebRoute(
        *("/ports/{guid}/{port}", (GUID_PARAMETER, PORT_PARAMETER), "port", "A port with its counters"),
        _more(PORTS.schema, **dict.fromkeys(_OF_COUNTERS, _COUNTERS)),
        _port,
    ),
    _listingRoute("/links", "Links, each once", LINKS, "state"),
    _listingRoute("/cables", "Cables and modules at ports with a link", CABLES, "guid", "isKnown"),
    _listingRoute(
        *("/findings", "Findings: those that are there, the worst first, then those cleared", FINDINGS),
        *("severity", "kind", "guid", "port", "isOpen", "isAcknowledged"),
    ),
    WebRoute(
        *("/findings/{id}", (ID_PARAMETER,), "finding", "A finding with its comments"),
        *(FINDING_SCHEMA, _finding),
    ),
    WebRoute(
        "/history/{guid}/{port}/{counter}",
        (
            *(GUID_PARAMETER, PORT_PARAMETER, _COUNTER),
            Parameter("begin", TIME, "Seconds since 1970; an hour before the end without"),
            Parameter("end", TIME, "Seconds since 1970; now without"),
            Parameter(
                "resolution",
                choice(*(level.name for level in DEFAULT_LEVELS)),
                "Level of detail; the finest that still has the beginning without",
            ),
        ),
        *("history", "Growth of a counter over time", _HISTORY, _history),
    ),
    WebRoute(
        "/trace",
        (
            Parameter("from", GUID_TEXT, "GUID of the first node", isNeeded=True),
            Parameter("to", GUID_TEXT, "GUID of the last node", isNeeded=True),
        ),
        *("trace", "Path of packets from one node to another, with the load of each hop"),
        *(TRACE_SCHEMA, _trace),
    ),
    WebRoute(
        "/blast-radius",
        (
            Parameter("guid", GUID_TEXT, "GUID of a node", isNeeded=True),
            Parameter("port", {**COUNT, "maximum": 255}, "Number of its port, for the cable there"),
        ),
        *("blastRadius", "What would be lost without a node or a cable"),
        *(BLAST_SCHEMA, _blastRadius),
    ),
    _listingRoute(
        *("/changes", "Changes since a time, the latest first", CHANGES, "kind", "guid"),
        more=(Parameter("since", {**TIME, "default": 0}, "Seconds since 1970"),),
    ),
    WebRoute(
        *("/topology", (), "topology", "Switches and the links between them, laid out"),
        *(TOPOLOGY_SCHEMA, _topology),
    ),
    WebRoute(
        "/topology/at",
        (Parameter("at", TIME, "Seconds since 1970", isNeeded=True),),
        *("topologyAt", "Switches and the links between them at a time", PAST_SCHEMA, _topologyAt),
    ),
    WebRoute(
        *("/topology/difference", _BETWEEN, "topologyDifference"),
        *("Switches and links of two times, with their differences", PAST_SCHEMA, _difference),
    ),
    WebRoute(
        "/topology/times",
        (
            Parameter("begin", TIME, "Seconds since 1970; all that is known without"),
            Parameter("end", TIME, "Seconds since 1970; now without"),
        ),
        *("topologyTimes", "Times of changes, those of nearly the same time together", TIMES_SCHEMA, _times),
    ),
    WebRoute(
        *("/differences", (*_BETWEEN, *listing(DIFFERENCE_TABLE, "kind", "guid")), "differences"),
        "Differences between two times: nodes, links, their rates, and findings",
        *(pageSchema(DIFFERENCE_TABLE.name), _differences),
    ),
)
"""All routes; paths are below C{/api/v1}."""

LISTINGS: Final = tuple(route for route in ROUTES if route.table is not None)
"""Routes that can answer for several fabrics."""
