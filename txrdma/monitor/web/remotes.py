"""
Fabrics whose monitors are other processes: their states, findings and listings, read by REST.

Another process may be hostile, or have another version: its answers are limited in size and time, and have
to conform to the schemas of this version.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Coroutine, Mapping
from reprlib import repr as shortened
from typing import Any, Final
from urllib.parse import quote, urlencode

from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.web.server import Request

from txrdma.error import DeviceUnavailable, PeerViolation
from txrdma.kit.httprequests import fetch, late, quietAgent
from txrdma.monitor.supervisor import SupervisedLoop
from txrdma.monitor.web.rest import sendText
from txrdma.monitor.web.routes import OVERVIEW_SCHEMA
from txrdma.monitor.web.tables import COUNT, FINDINGS, record, Schema, SEVERITIES, SHOWN, Table
from txrdma.monitor.web.watch import printable

POLL_SECONDS: Final = 10.0
"""Seconds between two readings of a monitor's state."""

STATE_SECONDS: Final = 5.0
"""Seconds for an answer about the state, until the monitor counts as away."""

LISTING_SECONDS: Final = 30.0
"""Seconds for a page of a listing: on a busy host a search of all ports of a large fabric takes some."""

MOST_STATE: Final = 64 << 10
"""Maximum octets of a state, which is read every ten seconds, and remains in memory."""

MOST_PAGE: Final = 2 << 20
"""
Maximum octets of a page of a listing: usual ones of 1,000 rows have less than one million. Malicious JSON of
this size blocks the reactor for more than half a second.
"""

MOST_AT_ONCE: Final = 4
"""Maximum number of requests to a monitor at a time; others wait."""

MOST_FINDINGS: Final = 100
"""Maximum number of findings that are read with the state: the worst."""

OPEN_FINDINGS: Final = {"isOpen": True, "limit": MOST_FINDINGS, "offset": 0}
"""Values of the listing of these findings."""

_MOST_NUMBER: Final = 1 << 64
_KINDS: Final[Mapping[str, Any]] = {
    "string": str,
    "integer": int,
    "number": (int, float),
    "boolean": bool,
    "object": dict,
    "array": list,
}
_PAGE: Final = record(total=COUNT, rows={"type": "array"})
_UNKNOWN: Final = {
    **dict.fromkeys(("isActive", "isWell", "isKnown"), False),
    **dict.fromkeys(("knownAt", "worst")),
    **dict.fromkeys(("nodes", "switches", "links", "nodesGone", "linksGone", "at"), 0),
    "findings": dict.fromkeys(SEVERITIES, 0),
    "statistics": {},
}


def conforming(schema: Schema, value: Any, name: str = "whole") -> Any:
    """
    Return the parts of a value from JSON that a schema describes; texts are printable.

    A missing property is null, where the schema permits that: versions may differ.

    @param name: name of the value, for the message.
    @raise PeerViolation: the value does not conform.
    """
    kinds = schema["type"]
    if value is None and "null" in kinds:
        return None
    kind = kinds if isinstance(kinds, str) else kinds[0]
    if not isinstance(value, _KINDS[kind]) or isinstance(value, bool) != (kind == "boolean"):
        raise PeerViolation(f"the monitor's answer has {printable(shortened(value))} as {name}")
    if kind == "object":
        of: dict[str, Any] = schema.get("properties") or dict.fromkeys(value, schema["additionalProperties"])
        return {each: conforming(one, value.get(each), each) for each, one in of.items()}
    if kind == "string":
        pattern = schema.get("pattern", "").replace("$", r"\Z")
        if value not in schema.get("enum", (value,)) or not re.search(pattern, value):
            raise PeerViolation(f"the monitor's answer has {printable(value[:50])!r} as {name}")
        return printable(value)
    if kind in ("integer", "number") and not schema.get("minimum", -_MOST_NUMBER) <= value < _MOST_NUMBER:
        raise PeerViolation(f"the monitor's answer has a number out of range as {name}")
    return value


class RemoteFabric:
    """
    A fabric whose monitor is another process, which is read from L{start} to L{stop}.

    @ivar name: name of the fabric in this process.
    @ivar state: last state of the monitor for JSON, as of C{/api/v1/overview}.
    @ivar findings: the worst of its open findings then, as a page of them.
    """

    def __init__(
        self,
        reactor: Any,
        name: str,
        url: str,
        authorization: str,
        pause: Callable[[], Coroutine[Any, Any, None]],
    ) -> None:
        """
        @param url: URL of the monitor's pages, which browsers also use.
        @param authorization: value of the Authorization header; C{""} for none.
        @param pause: lets the reactor process other events.
        """
        self.name = name
        self._url = ""
        self._reactor, self._agent, self._pause = reactor, quietAgent(reactor), pause
        self._atOnce = DeferredSemaphore(MOST_AT_ONCE)
        self._loop = SupervisedLoop(reactor, f"reading of {name}", self._poll, lambda: POLL_SECONDS)
        self.change(url, authorization)

    def start(self) -> None:
        """Begin to read the state periodically."""
        self._loop.start()

    def stop(self) -> Deferred[None]:
        """End the current reading, and begin no other one; fires when it has ended."""
        self._loop.cancel()
        return self._loop.stop()

    def change(self, url: str, authorization: str) -> None:
        """Use another URL and authorization, and read the state at once: that of another URL is unknown."""
        url, self._headers = url.rstrip("/"), {"Authorization": authorization} if authorization else {}
        if url != self._url:
            self._url, self.state, self.findings = url, _UNKNOWN, {"total": 0, "rows": []}
            self._loop.cancel()  # it reads the former URL
        self._loop.runIn(0.0)

    @property
    def problem(self) -> str:
        """Return why the monitor is away, so that its state is the last one; C{""} if it answers."""
        return self._loop.problem or ("" if self.state is not _UNKNOWN else "there was no answer yet")

    def age(self) -> float:
        """Return the seconds since the monitor has last answered, or since L{start}."""
        return self._loop.age()

    async def page(self, path: str, table: Table[Any], wanted: Mapping[str, Any]) -> dict[str, Any]:
        """
        Return a page of a listing, as L{Table.page} does for fabrics of this process.

        @param path: path of the listing below C{/api/v1}.
        @raise DeviceUnavailable: the monitor is away.
        @raise PeerViolation: its answer is invalid.
        """
        if self.problem:
            raise DeviceUnavailable(self.problem)
        reading: Deferred[dict[str, Any]] = self._atOnce.run(self._page, path, table, wanted, LISTING_SECONDS)
        return await reading.addTimeout(LISTING_SECONDS, self._reactor, late)  # with its wait for others

    def redirect(self, request: Request) -> bytes:
        """Answer a request for a page of the fabric with its address at the monitor."""
        path = "/".join(quote(one, safe="") for one in request.postpath or ())
        _, mark, query = request.uri.partition(b"?")
        request.setHeader("Location", f"{self._url}/{path}".encode() + mark + query)
        return sendText(request, 307, "This is a page of the fabric's own monitor.")

    async def _poll(self) -> bool:
        state = conforming(OVERVIEW_SCHEMA, await self._answer("/overview", STATE_SECONDS, MOST_STATE))
        self.findings = await self._page("/findings", FINDINGS, OPEN_FINDINGS, STATE_SECONDS)
        self.state = state
        return True

    async def _page(
        self, path: str, table: Table[Any], wanted: Mapping[str, Any], seconds: float
    ) -> dict[str, Any]:
        given = {name: value for name, value in wanted.items() if value is not None}
        for name in [name for name, value in given.items() if isinstance(value, bool)]:
            given[name] = str(given[name]).lower()
        answer = await self._answer(f"{path}?{urlencode(given)}", seconds, MOST_PAGE)
        page, schema = conforming(_PAGE, answer), table.schema
        rows: list[dict[str, Any]] = []
        for row in page["rows"][: wanted["limit"]]:
            rows.append({**conforming(schema, row), "fabric": self.name})
            if not len(rows) % SHOWN:
                await self._pause()
        return {"total": page["total"], "rows": rows}

    async def _answer(self, path: str, seconds: float, most: int) -> Any:
        url = f"{self._url}/api/v1{path}"
        answer = await fetch(*(self._agent, self._reactor, url, self._headers, seconds, most))
        if answer.code != 200:
            raise DeviceUnavailable(f"the monitor answers {answer.code}")
        if not answer.isWhole:
            raise DeviceUnavailable("the monitor's answer is too long, or was cut off")
        try:
            return json.loads(answer.body)
        except (ValueError, RecursionError) as error:
            raise PeerViolation("the monitor's answer is not JSON") from error
