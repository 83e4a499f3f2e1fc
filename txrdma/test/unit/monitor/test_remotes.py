"""Fabrics whose monitors are other processes: pages, REST and metrics of a front end, and hostile answers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted.internet.error import ConnectionRefusedError
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import InvalidRequest, PeerViolation
from txrdma.monitor.config import parseConfig
from txrdma.monitor.web import remotes
from txrdma.monitor.web.remotes import (
    conforming,
    LISTING_SECONDS,
    MOST_AT_ONCE,
    MOST_PAGE,
    MOST_STATE,
    POLL_SECONDS,
    STATE_SECONDS,
)
from txrdma.monitor.web.tables import (
    CABLES,
    CHANGES,
    COUNT,
    FINDINGS,
    GUID_TEXT,
    LINKS,
    NODES,
    NUMBER,
    orNull,
    PORTS,
    record,
    Table,
    TEXT,
    TRUTH,
)
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.nets.fattree import fatTree
from txrdma.tap import duty
from txrdma.tap.fabrics import FabricsService
from txrdma.test.support.httpagents import Prepared, PreparedAgent, Requested
from txrdma.test.support.monitor.fetching import Answer, Connection
from txrdma.test.unit.monitor.test_exposition import parsed
from txrdma.test.unit.monitor.test_fabrics import ServiceTestCase

FRONT = """
web.listen = ""
poll = {{interval = 4, settle = 0.1, survey = 0, notices = false}}

[fabrics.west]
port = "sim:fattree:4"

[fabrics.north]
url = "http://shard:9315/fabrics/north/"
authorization-file = '{folder}/authorization'

[fabrics.south]
url = "http://shard:9315/fabrics/south"
"""


class ConfigTests(SynchronousTestCase):
    def test_urls(self) -> None:
        """A section with a URL is a fabric of another process, and has no settings of a monitor."""
        path = Path(self.mktemp()).resolve()
        path.write_text("Bearer secret\n")
        path.chmod(0o600)
        text = f"""
            history.file = "/x/{{fabric}}"
            [fabrics.north]
            port = "sim:fattree:4"
            [fabrics.south]
            url = "https://{{fabric}}.example.org/fabrics/south"
            authorization-file = '{path}'
            [fabrics.west]
            url = "http://west:9315"
            """
        config = parseConfig(text)
        self.assertEqual([one.fabric for one in config.fabrics], ["north"])
        south = ("south", "https://south.example.org/fabrics/south", "Bearer secret")
        self.assertEqual(config.remotes, (south, ("west", "http://west:9315", "")))
        self.assertTrue(parseConfig("[fabrics.west]\nurl = 'http://west'").hasSections)

    def test_mistakes(self) -> None:
        """Invalid URLs, and settings of a monitor beside a URL, are reported with their lines."""
        text = "[fabrics.north]\nurl = 'ftp://x'\n[fabrics.south]\nurl = 'http://x'\nport = 'sim:fattree:4'\n"
        error = self.assertRaises(InvalidRequest, parseConfig, text, "file")
        lines = str(error).split("\n")
        self.assertEqual(lines[1], "file, line 5: fabrics.south.port: there is no such key")
        self.assertIn("file, line 2: fabrics.north.url: is a URL", lines[0])
        for end in ("?x=1", "/#x", "/a?"):
            text = f"[fabrics.north]\nurl = 'http://x{end}'\n"
            self.assertIn("without ? and #", str(self.assertRaises(InvalidRequest, parseConfig, text)))


class ConformingTests(SynchronousTestCase):
    def test_conforming(self) -> None:
        """Values that conform remain; unknown properties are dropped, and texts are printable."""
        schema = record(name=TEXT, count=COUNT, guid=orNull(GUID_TEXT), isThere=TRUTH, rate=NUMBER)
        value = {"name": "a\u202eb", "count": 3, "isThere": True, "rate": 2, "more": [1]}
        expected = {"name": "a\ufffdb", "count": 3, "guid": None, "isThere": True, "rate": 2}
        self.assertEqual(conforming(schema, value), expected)

    def test_refused(self) -> None:
        """Values of another type or range do not conform."""
        huge = float("inf")
        cases: tuple[tuple[Any, tuple[Any, ...]], ...] = (
            (TEXT, (None, 1, [], {})),
            (COUNT, (None, True, -1, 1.0, "1", 1 << 64)),
            (NUMBER, (True, huge, -huge, huge - huge, "1", 10**400)),
            (TRUTH, (None, 0, "true")),
            (GUID_TEXT, ("", "0x1", "0x0000000000000001\n", 1, "x0x0000000000000001")),
            (record(a=TEXT), (None, [], "a", {"b": "c"}, {"a": None})),
        )
        for schema, values in cases:
            for value in values:
                self.assertRaises(PeerViolation, conforming, schema, value)

    @settings(max_examples=30)
    @given(st.sampled_from((NODES, PORTS, LINKS, CABLES, FINDINGS, CHANGES)), st.data())
    def test_orders(self, table: Table[Any], data: st.DataObject) -> None:
        """Whatever a monitor sends is refused, or can be merged with other rows in every order."""
        values = st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9)
        known = st.sampled_from(("0x0000000000000001", "0123456789abcdef", "host", "info", 1, 0.5, True))
        rows = []
        for _ in range(2):
            sent = {one.name: data.draw(known | values) for one in table.columns}
            good = {one.name: data.draw(st.sampled_from(_valid(one.schema))) for one in table.columns}
            for row in (sent, good):
                try:
                    rows.append(conforming(table.schema, row))
                except PeerViolation:
                    self.assertIs(row, sent)
        for sort in (None, *(f"{sign}{one.name}" for sign in ("", "-") for one in table.columns)):
            wanted = {"sort": sort, "offset": 0, "limit": 9}
            page = table.merged([{"total": 1, "rows": [row]} for row in rows], wanted)
            self.assertEqual((page["total"], len(page["rows"]), len(rows) >= 2), (len(rows), len(rows), True))


def _valid(schema: dict[str, Any]) -> list[Any]:
    """Return values that conform to the schema of a column."""
    kinds, chosen = schema["type"], schema.get("enum")
    texts = chosen or {"^0x": ["0x00000000000000ff"], "^[0": ["0123456789abcdef"]}.get(
        schema.get("pattern", "")[:3], ["", "a", "\u202e"]
    )
    of = {"string": texts, "integer": [0, 7], "number": [0, 1.5, 9], "boolean": [True, False]}
    return [*of[kinds if isinstance(kinds, str) else kinds[0]], *([None] if "null" in kinds else [])]


def body(content: object) -> Prepared:
    """Return an answer with a body, as JSON unless it is bytes."""
    return Prepared(200, content if isinstance(content, bytes) else json.dumps(content).encode())


class RemoteTestCase(ServiceTestCase):
    """
    The process of another monitor, which has two fabrics, and an agent that sends requests to it.

    @ivar faults: answers in place of those of the monitor, by a part of their URL; None for no answer.
    """

    def setUp(self) -> None:
        super().setUp()
        self.faults: dict[str, Prepared | Exception | None] = {}
        self.agent = PreparedAgent()
        self.agent.usual = self.answered
        self.patch(remotes, "quietAgent", lambda reactor: self.agent)

    def answered(self, request: Requested) -> Prepared | Exception | None:
        for part, answer in self.faults.items():
            if part in request.url:
                return answer
        parts = urlsplit(request.url)
        found = self.get(f"{parts.path}?{parts.query}")
        return Prepared(found.code, found.body)


class FrontTestCase(RemoteTestCase):
    """A front end with a fabric of its own, and the two fabrics of another process."""

    def setUp(self) -> None:
        super().setUp()
        Path(self.folder, "authorization").write_text("Bearer secret\n")
        Path(self.folder, "authorization").chmod(0o600)
        self.west = SimulatedFabric(self.clock, fatTree(4))
        self.addCleanup(self.west.close)
        config = parseConfig(FRONT.format(folder=self.folder))
        self.front = FabricsService(self.clock, config, reopen={"west": self.west.attach})
        self.front.startService()
        self.addCleanup(self.front.stopService)
        self.pump(5.0)

    def asked(self, path: str, **heads: str) -> Answer:
        """Return the front end's answer."""
        connection = Connection(self.front.site.factory)
        connection.ask(path, **heads)
        self.pump(1.0)
        return connection.answer

    def rows(self, path: str) -> Any:
        return self.asked(f"/api/v1/{path}").json


class FrontTests(FrontTestCase):
    """Pages and REST of the front end."""

    def test_fabrics(self) -> None:
        """The list of fabrics has those of other processes, with their states."""
        rows = {row["fabric"]: row for row in self.rows("fabrics")["rows"]}
        self.assertEqual(list(rows), ["west", "north", "south"])
        for name, hosts in (("west", 4), ("north", 4), ("south", 8)):
            self.assertEqual(rows[name]["nodes"] - rows[name]["switches"], hosts)
            self.assertEqual((rows[name]["problem"], rows[name]["isActive"]), ("", True))
        text = self.asked("/").text
        self.assertEqual(text.count("All is well"), 3)
        self.assertNotIn("away", text)

    def test_authorization(self) -> None:
        """Each monitor gets the header of its section only."""
        found = {
            one.url.split("/")[4]: one.headers.getRawHeaders("Authorization") for one in self.agent.requests
        }
        self.assertEqual(found, {"north": ["Bearer secret"], "south": None})

    def test_listings(self) -> None:
        """Listings have the rows of all processes, with the fabric, and filters, orders and pages."""
        every = self.rows("nodes?type=host&sort=-name")
        names = [row["name"] for row in every["rows"]]
        self.assertEqual((every["total"], names), (16, sorted(names, reverse=True)))
        self.assertEqual(every["away"], [])
        first = {row["fabric"] for row in every["rows"] if row["name"] == "h00000"}
        self.assertEqual(first, {"west", "north", "south"})
        page = self.rows("nodes?type=host&sort=-name&limit=5&offset=5")
        self.assertEqual((page["total"], page["rows"]), (16, every["rows"][5:10]))
        for name in ("nodes", "ports", "links", "cables"):
            page = self.rows(f"{name}?limit=1000")
            self.assertEqual({row["fabric"] for row in page["rows"]}, {"west", "north", "south"}, name)
            self.assertEqual(page["total"], len(page["rows"]), name)
        types = [row["type"] for row in self.rows("nodes")["rows"]]
        self.assertEqual(types, sorted(types, reverse=True))
        answer = self.asked("/api/v1/nodes?limit=1000&offset=1")
        self.assertEqual((answer.code, "at most 1000" in answer.text), (400, True))
        self.assertEqual(self.rows("ports?isLinked=false")["away"], [])

    def test_schema(self) -> None:
        """OpenAPI describes all fabrics; rows of other processes have the columns that it describes."""
        whole = self.rows("openapi.json")
        names = whole["paths"]["/ports"]["servers"][1]["variables"]["fabric"]["enum"]
        self.assertEqual(names, ["west", "north", "south"])
        for row in self.rows("ports")["rows"]:
            self.assertEqual(set(row), set(whole["components"]["schemas"]["Port"]["properties"]))
        page = whole["paths"]["/nodes"]["get"]["responses"]["200"]["content"]["application/json"]["schema"]
        self.assertEqual(set(page["properties"]), set(self.rows("nodes")))

    def test_findings(self) -> None:
        """The page lists the open findings of all processes, the worst first, and finds nodes by name."""
        self.fabrics["south"].cut("h00003")
        self.pump(20.0)
        self.west.cut("h00002")
        self.pump(POLL_SECONDS + 20.0)
        text = self.asked("/").text
        self.assertIn("Findings (2)", text)
        places = [text.index(f'href="/fabrics/{fabric}/nodes/0x') for fabric in ("west", "south")]
        self.assertEqual(places, sorted(places))
        found = self.rows("findings?isOpen=true")["rows"]
        self.assertEqual([row["fabric"] for row in found], ["west", "south"])
        text = self.asked("/?search=h00001").text
        self.assertIn("Findings (0)", text)
        self.assertIn("Nodes (3)", text)
        for fabric in ("west", "north", "south"):
            self.assertIn(f'href="/fabrics/{fabric}/nodes/0x', text)
        self.assertIn('value="h00001"', text)
        self.assertEqual(self.asked("/?search=" + "x" * 201).code, 400)
        self.assertEqual(self.asked("/?find=x").code, 400)

    def test_updated(self) -> None:
        """The page is requested again as often as states are read, except for the result of a search."""
        text = self.asked("/").text
        self.assertIn(f'data-poll="{POLL_SECONDS:g}"', text)
        self.assertIn('src="/static/monitor.js"', text)
        self.assertEqual(text.count("data-live"), 2)
        self.assertNotIn("monitor.js", self.asked("/?search=x").text)

    def test_redirects(self) -> None:
        """Pages of a fabric of another process lead to that process; there is no such page for others."""
        self.assertIn('href="/fabrics/north/nodes"', self.asked("/fabrics/west/nodes").text)
        for path, place in (
            ("/fabrics/north", "/fabrics/north/"),
            ("/fabrics/north/", "/fabrics/north/"),
            ("/fabrics/north/nodes?search=a%20b&x=%2F", "/fabrics/north/nodes?search=a%20b&x=%2F"),
            ("/fabrics/south/api/v1/nodes", "/fabrics/south/api/v1/nodes"),
            ("/fabrics/south/a%2F..%0d%0ab", "/fabrics/south/a%2F..%0D%0Ab"),
        ):
            answer = self.asked(path)
            self.assertEqual((answer.code, answer.heads["location"]), (307, f"http://shard:9315{place}"))
        self.assertEqual(self.asked("/fabrics/east/").code, 404)

    def test_away(self) -> None:
        """A monitor that is away stays in all lists, with the reason, its last state and its findings."""
        self.fabrics["south"].cut("h00003")
        self.pump(POLL_SECONDS + 20.0)
        self.faults["south"] = ConnectionRefusedError()
        with capturedLogs() as logs:
            self.pump(60.0)
        warned = [one for one in logs if one["log_level"].name == "warn"]
        self.assertEqual(len(warned), 1)
        row = self.rows("fabrics")["rows"][2]
        self.assertEqual((row["fabric"], sum(row["findings"].values())), ("south", 1))
        self.assertIn("refused", row["problem"])
        text = self.asked("/").text
        self.assertIn("away", text)
        self.assertIn("its state is the last known one", text)
        self.assertIn("Findings (1)", text)
        page = self.rows("nodes")
        self.assertEqual([one["fabric"] for one in page["away"]], ["south"])
        self.assertEqual({one["fabric"] for one in page["rows"]}, {"west", "north"})
        self.assertIn("Without those of south", self.asked("/?search=h00001").text)
        found: dict[Any, float] = parsed(self.asked("/metrics").text)
        name = "txrdma_monitor_remote_age_seconds"
        age = {one: found[name, frozenset({("fabric", one)})] for one in ("north", "south")}
        self.assertLess(age["north"], POLL_SECONDS + 1)
        self.assertGreater(age["south"], 50.0)
        self.assertEqual(self.asked("/readyz").code, 200)
        self.faults.clear()
        self.pump(POLL_SECONDS + 1)
        self.assertEqual(self.rows("fabrics")["rows"][2]["problem"], "")
        self.assertEqual(self.rows("nodes")["away"], [])
        self.assertNotIn("away", self.asked("/").text)

    def test_restarted(self) -> None:
        """A monitor that has restarted, and knows the fabric by its history, says since when."""
        state = self.get("/fabrics/south/api/v1/overview").json
        known = {"isKnown": False, "isWell": False, "knownAt": state["at"] - 600}
        self.faults["south/api/v1/overview"] = body({**state, **known})
        self.pump(POLL_SECONDS + 1)
        self.assertIn("last known 10 min ago", self.asked("/").text)

    def test_hanging(self) -> None:
        """A monitor that accepts requests and does not answer is away after the time limit."""
        self.faults["south"] = None
        self.pump(POLL_SECONDS + STATE_SECONDS + 1)
        self.assertIn("no response in 5 s", self.rows("fabrics")["rows"][2]["problem"])
        self.assertEqual(self.rows("links")["total"] > 0, True)

    def test_waitingListing(self) -> None:
        """Few listings are requested at a time; all have the rows of the others after the time limit."""
        self.faults["south/api/v1/links"] = None
        several = [Connection(self.front.site.factory) for _ in range(MOST_AT_ONCE + 1)]
        for limit, one in enumerate(several, 1):
            one.ask(f"/api/v1/links?limit={limit}")
        self.pump(LISTING_SECONDS - 1)
        asked = [one.url for one in self.agent.requests if "south/api/v1/links" in one.url]
        self.assertEqual(len(asked), MOST_AT_ONCE)
        self.assertEqual({one.transport.value() for one in several}, {b""})
        self.pump(2.0)
        for one in several:
            (away,) = one.answer.json["away"]
            self.assertEqual(away, {"fabric": "south", "problem": "no response in 30 s"})

    def test_gone(self) -> None:
        """A browser that leaves ends the requests that only it waits for."""
        self.faults["links"] = None
        connection = Connection(self.front.site.factory)
        connection.ask("/api/v1/links")
        self.pump(1.0)
        connection.close()
        self.assertEqual(self.agent.cancelled, 2)

    def test_invalid(self) -> None:
        """A monitor whose answers do not conform counts as away, with the reason, and nothing is shown."""
        evil = "<script>alert(1)</script>"
        for answer, reason in (
            (b"[" * 60_000, "not JSON"),
            (b"\xff", "not JSON"),
            (b"1" * (MOST_STATE + 1), "too long"),
            ([], "[] as whole"),
            ({}, "None as isActive"),
            ({"isActive": evil}, "<script>al"),
        ):
            self.faults["south"] = body(answer)
            with capturedLogs():
                self.pump(POLL_SECONDS + 1)
            self.assertIn(reason, self.rows("fabrics")["rows"][2]["problem"])
            text = self.asked("/").text
            self.assertIn("away", text)
            self.assertNotIn("<script>", text)
        self.faults["south"] = Prepared(401)
        self.pump(POLL_SECONDS + 1)
        self.assertIn("answers 401", self.rows("fabrics")["rows"][2]["problem"])

    def test_hostileRows(self) -> None:
        """Rows with wrong values are not shown; names are escaped, and at most as many as were requested."""
        good = self.rows("nodes?type=host&limit=1")["rows"][0]
        evil = '"><script>alert(1)</script>\u202e'
        page: dict[str, Any] = {"total": 5, "rows": [{**good, "name": evil, "fabric": evil}] * 5}
        self.faults["south/api/v1/nodes"] = body(page)
        text = self.asked("/?search=x").text
        self.assertIn("&lt;script&gt;alert(1)&lt;/script&gt;\ufffd", text)
        self.assertNotIn("<script>", text)
        found = self.rows("nodes?limit=3&sort=name")
        self.assertEqual(found["rows"][0]["fabric"], "south")
        self.assertEqual(len(found["rows"]), 3)
        page["rows"][0] = {**good, "guid": "../../"}
        self.faults["south/api/v1/nodes"] = body(page)
        self.pump(5.0)
        self.assertEqual([one["fabric"] for one in self.rows("nodes?limit=3")["away"]], ["south"])

    def test_tooLong(self) -> None:
        """Neither a state nor a page fills the memory, whatever texts and names they have."""
        good = self.rows("nodes?type=host&limit=1")["rows"][0]
        for length, fabrics in ((MOST_PAGE // 2, []), (MOST_PAGE, ["south"])):
            page = {"total": 1, "rows": [{**good, "name": "x" * length}]}
            self.faults["south/api/v1/nodes"] = body(page)
            self.pump(2.0)
            self.assertEqual([one["fabric"] for one in self.rows("nodes")["away"]], fabrics)
        state = self.get("/fabrics/south/api/v1/overview").json
        for length, problem in ((MOST_STATE // 2, ""), (MOST_STATE, "the monitor's answer is too long, ")):
            self.faults["south/api/v1/overview"] = body({**state, "statistics": {"x" * length: 1}})
            self.pump(POLL_SECONDS + 1)
            self.assertEqual(self.rows("fabrics")["rows"][2]["problem"].partition("or was")[0], problem)

    def test_stop(self) -> None:
        """The end of the service ends its requests to other monitors."""
        self.faults["links"] = self.faults["south/api/v1/overview"] = None
        connection = Connection(self.front.site.factory)
        connection.ask("/api/v1/links")
        self.pump(POLL_SECONDS)
        self.successResultOf(self.front.stopService())
        self.assertEqual(self.agent.cancelled, 3)

    def test_shared(self) -> None:
        """Equal requests of the same time are sent to each monitor once."""
        self.agent.requests.clear()
        several = [Connection(self.front.site.factory) for _ in range(10)]
        for one in several:
            one.ask("/api/v1/links?limit=7")
        self.pump(0.5)
        self.assertEqual({one.answer.code for one in several}, {200})
        self.assertEqual(len([one for one in self.agent.requests if "/links" in one.url]), 2)

    def test_reload(self) -> None:
        """A new authorization is used at once; other fabrics need a restart."""
        text = FRONT.format(folder=self.folder)
        Path(self.folder, "authorization").write_text("Bearer other\n")
        self.front.reloadBy(lambda: parseConfig(text))
        self.assertTrue(self.front.reload())
        self.agent.requests.clear()
        self.pump(0.1)
        found = [one.headers.getRawHeaders("Authorization") for one in self.agent.requests]
        self.assertIn(["Bearer other"], found)
        self.front.reloadBy(lambda: parseConfig(text.replace("fabrics.south]", "fabrics.east]")))
        with capturedLogs() as logs:
            self.assertFalse(self.front.reload())
        self.assertIn("needs a restart", logs[-1]["log_format"])

    def test_reloadURL(self) -> None:
        """The state of a fabric is read from another URL at once; nothing of the former URL is shown."""
        text = FRONT.format(folder=self.folder)
        self.fabrics["south"].cut("h00003")
        self.pump(POLL_SECONDS + 20.0)
        self.faults["south"] = None
        self.pump(POLL_SECONDS)
        self.front.reloadBy(lambda: parseConfig(text.replace("/fabrics/south", "/fabrics/north/")))
        self.assertTrue(self.front.reload())
        self.assertEqual(self.agent.cancelled, 1)
        row = self.rows("fabrics")["rows"][2]
        self.assertEqual((row["fabric"], row["isKnown"], row["nodes"]), ("south", False, 0))
        self.assertEqual(row["problem"], "there was no answer yet")
        row = self.rows("fabrics")["rows"][2]
        self.assertEqual((row["isKnown"], row["nodes"], row["problem"]), (True, 5, ""))
        self.assertIn("Findings (0)", self.asked("/").text)

    def test_reloadWithoutTLS(self) -> None:
        """A URL with TLS, which is not installed, leaves the configuration as it was."""
        self.patch(duty, "find_spec", lambda name: None)
        text = FRONT.format(folder=self.folder).replace("http:", "https:")
        self.front.reloadBy(lambda: parseConfig(text))
        with capturedLogs() as logs:
            self.assertFalse(self.front.reload())
        self.assertIn("fabrics.north.url needs TLS", logs[-1]["why"])
        self.assertEqual(self.rows("nodes")["away"], [])
        self.assertEqual({one.url[:5] for one in self.agent.requests}, {"http:"})


class OnlyRemoteTests(RemoteTestCase):
    def test_noManagementPort(self) -> None:
        """A front end without a fabric of its own needs no management port."""
        config = parseConfig("web.listen = ''\n[fabrics.south]\nurl = 'http://shard/fabrics/south'\n")
        front = FabricsService(self.clock, config)
        self.clock.advance(1.0)
        front.startService()
        self.pump(1.0)
        expected = {"/": "All is well", "/?search=h0": "Nodes (8)", "/metrics": "remote_age"}
        for path, text in expected.items():
            connection = Connection(front.site.factory)
            connection.ask(path)
            self.pump(1.0)
            self.assertIn(text, connection.answer.text)
        self.successResultOf(front.stopService())
