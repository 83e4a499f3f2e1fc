"""Description of the REST interface by OpenAPI 3.1, made from its routes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final

import txrdma
from txrdma.monitor.diagnosis.findinglog import Action, LONGEST_COMMENT
from txrdma.monitor.web.parameters import Parameter
from txrdma.monitor.web.past import DIFFERENCE_TABLE
from txrdma.monitor.web.routes import (
    FABRICS_SCHEMA,
    FINDING_SCHEMA,
    ID_PARAMETER,
    LISTINGS,
    ROUTES,
    WebRoute,
)
from txrdma.monitor.web.tables import (
    CABLES,
    CHANGES,
    choice,
    described,
    FINDINGS,
    LINKS,
    NODES,
    PORTS,
    record,
    Schema,
    TEXT,
)

BASE: Final = "/api/v1"

_TABLES: Final = (NODES, PORTS, LINKS, CABLES, FINDINGS, CHANGES, DIFFERENCE_TABLE)
_ERROR: Final = record(error=described(TEXT, "What is wrong, for people"))


_OF_HISTORY: Final = ("history", "topologyAt", "topologyDifference", "topologyTimes", "differences")
"""Routes that read the history."""


def _answer(text: str, schema: Schema, kind: str = "application/json") -> dict[str, Any]:
    return {"description": text, "content": {kind: {"schema": schema}}}


def _refused(text: str) -> dict[str, Any]:
    return _answer(text, {"$ref": "#/components/schemas/Error"})


def _get(name: str, summary: str, answers: dict[str, Any], *parameters: Parameter) -> dict[str, Any]:
    operation = {"operationId": name, "summary": summary, "responses": answers}
    return {"get": {**operation, "parameters": [one.description for one in parameters]}}


def _path(route: WebRoute) -> dict[str, Any]:
    answers = {"200": _answer(route.text, route.schema), "400": _refused("A parameter has no such value")}
    if any(one.isInPath or one.isNeeded for one in route.parameters):
        answers["404"] = _refused("There is no such node, port, finding, or history")
    if route.name in _OF_HISTORY:
        answers["404"] = _refused("There is no history of this")
        answers["503"] = _refused("The database or the engine of the history does not answer")
    return _get(route.name, route.text, answers, *route.parameters)


_ACT: Final = {
    **record(
        action=choice(*(action.value for action in Action)),
        comment={**TEXT, "maxLength": LONGEST_COMMENT},
    ),
    "required": ["action"],
}
_ACTION: Final = {
    "post": {
        "operationId": "annotate",
        "summary": "Acknowledge a finding, end its acknowledgement, or comment it, as an operator",
        "parameters": [ID_PARAMETER.description],
        "requestBody": {"required": True, "content": {"application/json": {"schema": _ACT}}},
        "responses": {
            "200": _answer("The finding after it", FINDING_SCHEMA),
            "400": _refused("The body is invalid"),
            "403": _refused("The user is no operator, or the request is from a page of another site"),
            "404": _refused("There is no such finding"),
            "409": _refused("The state of the finding, or the number of its comments, does not permit it"),
            "415": _refused("The body is not announced as JSON"),
            "503": _refused("This is a standby"),
        },
    }
}

_EVENTS: Final = _get(
    *("events", "Server-sent events: round, finding, fabric, and resync when some were lost"),
    {
        "200": _answer("Events, each with an object as JSON", TEXT, "text/event-stream"),
        "503": _refused("There are too many readers"),
    },
)
_FABRICS: Final = _get(
    "fabrics", "State of each fabric", {"200": _answer("A row for each fabric", FABRICS_SCHEMA)}
)


def description(prefix: str = "", fabrics: Sequence[str] = ()) -> dict[str, Any]:
    """
    Return the description of all routes for JSON.

    @param prefix: path below which the site is served.
    @param fabrics: names of the fabrics, for the site of several; each has all routes.
    """
    server: dict[str, Any] = {"url": f"{prefix}{BASE}"}
    paths = {**{route.path: _path(route) for route in ROUTES}, "/events": _EVENTS}
    paths["/findings/{id}"] = {**paths["/findings/{id}"], **_ACTION}
    if fabrics:
        paths["/fabrics"] = {**_FABRICS, "servers": [server]}
        name = {"default": fabrics[0], "enum": list(fabrics), "description": "Name of the fabric"}
        several, server = server, {"url": f"{prefix}/fabrics/{{fabric}}{BASE}", "variables": {"fabric": name}}
        for route in LISTINGS:
            paths[route.path]["servers"] = [several, server]
    tables = {table.name: table.schema for table in _TABLES}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "txrdma fabric monitor",
            "version": txrdma.__version__,
            "description": "An InfiniBand fabric as it is known at present. GUIDs are written 0x and 16 "
            "digits, times are seconds since 1970, rates of data are octets each second, null is unknown.",
        },
        "servers": [server],
        "paths": paths,
        "components": {
            "schemas": {**tables, "Error": _ERROR},
            "securitySchemes": {
                "token": {"type": "http", "scheme": "bearer"},
                "password": {"type": "http", "scheme": "basic"},
            },
        },
        "security": [{}, {"token": []}, {"password": []}],
    }
