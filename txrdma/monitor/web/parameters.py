"""Parameters of requests: declared once, for their description and for parsing."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from math import isfinite
from typing import Any, Final, TypeVar
from urllib.parse import unquote

from txrdma.kit.values import frozen
from txrdma.monitor.web.tables import choice, COUNT, MOST_ROWS, Schema, Table, TEXT

_INTEGER: Final = re.compile(r"-?[0-9]{1,18}")
_NUMBER: Final = re.compile(r"-?[0-9]{1,18}(\.[0-9]*)?([eE][-+]?[0-9]{1,3})?")

TIME: Final[Schema] = {"type": "number", "minimum": 0, "maximum": 1e12}
"""Schema of a time in seconds since 1970."""


class Wrong(Exception):
    """A request is invalid; the message says why."""


class Missing(Exception):
    """The requested object does not exist; the message names it."""


@frozen
class Parameter:
    """
    Parameter of a request to the monitor.

    @ivar schema: JSON schema of its value.
    @ivar text: meaning of the value, for its description.
    @ivar isInPath: whether it is a segment of the path, instead of a part of the query.
    @ivar isNeeded: whether a request without it is invalid.
    """

    name: str
    schema: Schema
    text: str
    isInPath: bool = False
    isNeeded: bool = False

    def read(self, text: str) -> Any:
        """
        Value of the parameter in a request.

        @raise Wrong: the text does not match the schema.
        """
        schema = self.schema
        kind = schema["type"]
        value: Any = text
        if kind in ("integer", "number"):
            if not (_INTEGER if kind == "integer" else _NUMBER).fullmatch(text):
                raise Wrong(f"{self.name} is a number, not {text!r}")
            value = int(text) if kind == "integer" else float(text)
            if not isfinite(value) or not schema.get("minimum", value) <= value <= schema.get(
                "maximum", value
            ):
                raise Wrong(f"{self.name} is out of its range: {text}")
        elif kind == "boolean":
            if text not in ("true", "false"):
                raise Wrong(f"{self.name} is true or false, not {text!r}")
            value = text == "true"
        elif "enum" in schema and text not in schema["enum"]:
            raise Wrong(f"{self.name} is one of {', '.join(schema['enum'])}")
        elif "pattern" in schema and not re.search(schema["pattern"].replace("$", r"\Z"), text):
            raise Wrong(f"{self.name} is like {schema['pattern']}, not {text!r}")
        elif len(text) > schema.get("maxLength", len(text)):
            raise Wrong(f"{self.name} has {len(text)} characters; at most {schema['maxLength']} are allowed")
        return value

    @property
    def description(self) -> Schema:
        """OpenAPI's description of the parameter."""
        return {
            "name": self.name,
            "in": "path" if self.isInPath else "query",
            "required": self.isInPath or self.isNeeded,
            "description": self.text,
            "schema": self.schema,
        }


@frozen
class ServedPath:
    """
    What is served at a path.

    @ivar path: path with the names of parameters in braces: C{"/nodes/{guid}"}.
    """

    path: str
    parameters: tuple[Parameter, ...]


_SomeRoute = TypeVar("_SomeRoute", bound=ServedPath)


def routed(
    routes: Iterable[_SomeRoute],
    segments: Sequence[bytes],
    query: Mapping[bytes, Sequence[bytes]],
    missing: str,
) -> tuple[_SomeRoute, dict[str, Any]]:
    """
    Return the route of a request and the values of its parameters; None for missing ones without a default.

    @param segments: segments of the path, decoded or not.
    @param query: query of the request, decoded, with a list of values for each name.
    @raise Missing: no route has this path; C{missing} is the message.
    @raise Wrong: a parameter is unknown, given twice, missing, or invalid.
    """
    for route in routes:
        values = _inPath(route, segments)
        if values is not None:
            return route, {**values, **_inQuery(route.parameters, query)}
    raise Missing(missing)


def _inQuery(parameters: Sequence[Parameter], query: Mapping[bytes, Sequence[bytes]]) -> dict[str, Any]:
    """Return the values of the parameters in a query, with their defaults."""
    known = {one.name: one for one in parameters if not one.isInPath}
    values = {name: one.schema.get("default") for name, one in known.items()}
    for key, given in query.items():
        name = key.decode("utf-8", "replace")
        if name not in known:
            raise Wrong(f"there is no parameter {name!r}; known are: {', '.join(known) or 'none'}")
        if len(given) > 1:
            raise Wrong(f"{name} is given {len(given)} times")
        try:
            values[name] = known[name].read(given[0].decode("utf-8"))
        except UnicodeDecodeError:
            raise Wrong(f"{name} is not UTF-8") from None
    for name, one in known.items():
        if one.isNeeded and values[name] is None:
            raise Wrong(f"{name} is missing")
    return values


def _inPath(route: ServedPath, segments: Sequence[bytes]) -> dict[str, Any] | None:
    """Values of the parameters in a path; None if it is another path."""
    parts = route.path.strip("/").split("/")
    if len(parts) != len(segments):
        return None
    known = {f"{{{one.name}}}": one for one in route.parameters if one.isInPath}
    pairs = [
        (part, unquote(one.decode("utf-8", "replace"))) for part, one in zip(parts, segments, strict=True)
    ]
    if any(part not in known and part != text for part, text in pairs):
        return None
    return {known[part].name: known[part].read(text) for part, text in pairs if part in known}


def listing(table: Table[Any], *filters: str, sort: str | None = None) -> tuple[Parameter, ...]:
    """
    Parameters of a page of rows: search, order, limit and offset, and filters by columns.

    @param sort: usual order.
    """
    columns = {column.name: column for column in table.columns}
    names = [column.name for column in table.columns]
    order = choice(*names, *(f"-{name}" for name in names))
    return (
        *(Parameter(name, _single(columns[name].schema), columns[name].text) for name in filters),
        Parameter("search", {**TEXT, "maxLength": 200}, f"Text within {', '.join(table.searched)}"),
        Parameter(
            "sort", order if sort is None else {**order, "default": sort}, "Order; with a dash highest first"
        ),
        Parameter("limit", {**COUNT, "minimum": 1, "maximum": MOST_ROWS, "default": 100}, "Most rows"),
        Parameter("offset", {**COUNT, "maximum": 10**9, "default": 0}, "Rows to skip"),
    )


def _single(schema: Schema) -> Schema:
    """Schema without null, which a query cannot express."""
    kind = schema["type"]
    return {**schema, "type": kind[0] if isinstance(kind, list) else kind}
