"""Searches of large tables: in pieces, and once for equal requests."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any
from unittest.mock import Mock

from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase
from twisted.web import template

from txrdma.fabric.health import Finding
from txrdma.fabric.model import Port
from txrdma.monitor.web import html, layout, tables, topology
from txrdma.monitor.web.searches import _Shared, MOST_RESULTS, MOST_SEARCHES, Search, Searches
from txrdma.monitor.web.site import MOST_AT_ONCE
from txrdma.monitor.web.watch import PageContext
from txrdma.sim.clock import SimulatedClock
from txrdma.test.support.monitor.fetching import Connection
from txrdma.test.unit.monitor.test_rest import SiteTestCase


class SearchesTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = SimulatedClock()
        self.searches = Searches(self.clock)
        self.begun: list[str] = []
        self.ended: list[str] = []

    def search(self, name: str, pieces: int = 3) -> Search[str]:
        self.begun.append(name)
        try:
            for _ in range(pieces):
                yield
        finally:
            self.ended.append(name)
        return f"{name} found"

    def begin(self, name: str, state: object = 0, pieces: int = 3) -> Deferred[str]:
        return self.result(name, state, self.search(name, pieces))

    def result(self, name: str, state: object, search: Search[str]) -> Deferred[str]:
        return Deferred.fromCoroutine(self.searches.result(name, state, search))

    def test_short(self) -> None:
        """A search of one piece has its result at once, and is not cached."""
        for _ in range(2):
            self.assertEqual(self.successResultOf(self.begin("a", pieces=0)), "a found")
        self.assertEqual(self.begun, ["a", "a"])

    def test_shared(self) -> None:
        """Equal requests share a search, during it and afterwards, until the state changes."""
        several = [self.begin("a") for _ in range(3)]
        self.clock.pump([0.0] * 5)
        self.assertEqual([self.successResultOf(one) for one in several], ["a found"] * 3)
        self.assertEqual(self.successResultOf(self.begin("a")), "a found")
        self.assertEqual(self.begun, ["a"])
        newer = self.begin("a", state=1)
        self.clock.pump([0.0] * 5)
        self.assertEqual(self.successResultOf(newer), "a found")
        self.assertEqual(self.begun, ["a", "a"])

    def test_left(self) -> None:
        """A search ends when its last requester disconnects; the next request begins another one."""
        one, other = self.begin("a"), self.begin("a")
        one.cancel()
        self.failureResultOf(one, CancelledError)
        self.assertEqual(self.ended, [])
        other.cancel()
        self.failureResultOf(other, CancelledError)
        self.clock.pump([0.0] * 5)
        again = self.begin("a")
        self.clock.pump([0.0] * 5)
        self.assertEqual(self.successResultOf(again), "a found")
        self.assertEqual(self.begun, ["a", "a"])

    def test_failed(self) -> None:
        """All requests have the failure of their search, which is not cached."""

        def broken() -> Search[str]:
            yield
            raise ValueError

        several = [self.result("a", 0, broken()) for _ in range(2)]
        self.clock.pump([0.0] * 3)
        for one in several:
            self.failureResultOf(one, ValueError)
        again = self.begin("a")
        self.clock.pump([0.0] * 5)
        self.assertEqual(self.successResultOf(again), "a found")

    def test_turns(self) -> None:
        """Concurrent searches are limited; queued ones that are cancelled are not run."""
        names = [str(number) for number in range(MOST_SEARCHES)]
        running = [self.begin(name, pieces=9) for name in names]
        waiting, left = self.begin("a", pieces=1), self.begin("b", pieces=1)
        left.cancel()
        self.failureResultOf(left, CancelledError)
        self.clock.pump([0.0] * 5)
        self.assertEqual([self.successResultOf(one) for one in running], [f"{name} found" for name in names])
        self.assertEqual(self.successResultOf(waiting), "a found")
        self.assertEqual([name for name in self.ended if name != "b"][0], "0")

    def test_results(self) -> None:
        """The newest results are cached."""
        for number in range(MOST_RESULTS + 1):
            self.begin(str(number))
            self.clock.pump([0.0] * 5)
        oldest, *known = [self.begin(str(number)) for number in range(MOST_RESULTS + 1)]
        self.assertNoResult(oldest)
        found = [self.successResultOf(one) for one in known]
        self.assertEqual(found, [f"{number} found" for number in range(1, MOST_RESULTS + 1)])

    def test_stopped(self) -> None:
        found = self.begin("a")
        self.searches.stop()
        self.failureResultOf(found, CancelledError)


class PageTests(SiteTestCase):
    def test_shared(self) -> None:
        """Equal requests have one text for a short time, and until there are newer readings or findings."""
        self.started()
        made = []
        flatten = template.flattenString

        def counted(request: Any, page: Any) -> Any:
            made.append(page)
            return flatten(request, page)

        self.patch(html, "flattenString", counted)
        bodies = {self.get("/").text for _ in range(3)}
        self.assertEqual((len(bodies), len(made)), (1, 1))
        self.assertNotEqual(self.get("/", X_Forwarded_Prefix="/ib").text, bodies.pop())
        self.assertEqual([self.get(path).code for path in ("/nodes?type=host", "/nothing")], [200, 404])
        self.assertEqual(len(made), 4)
        self.pump(self.settings.intervalSeconds)
        self.get("/")
        self.assertEqual(len(made), 5)
        self.poller.findings.report("test", [Finding("width", "somewhere", "of a test")])
        self.assertIn("of a test", self.get("/").text)

    def test_turns(self) -> None:
        """Browsers that wait for the same page are answered in several reactor iterations."""
        self.started()
        self.patch(tables, "PIECE", 1)
        connections = [Connection(self.site.factory) for _ in range(5)]
        for connection in connections:
            connection.ask("/links")
        answered = []
        fire = _Shared.fire

        def counted(shared: Any, result: object) -> Iterator[None]:
            for _ in fire(shared, result):
                answered.append(sum(connection.transport.value() != b"" for connection in connections))
                yield

        self.patch(_Shared, "fire", counted)
        self.clock.pump([0.0] * 100)
        self.assertEqual(answered[-5:], [1, 2, 3, 4, 5])

    def test_pauses(self) -> None:
        """A page with long tables is made in pieces with the same text, and serves others meanwhile."""
        self.started()
        self.loseHost()
        paths = ("/nodes", "/links", "/findings", "/changes")
        whole = {path: self.get(path, X_Forwarded_Prefix="/ib").text for path in paths}
        self.patch(layout, "ROWS_AT_A_TIME", 1)
        self.watch.searches = Searches(self.clock)  # without a cached page
        for path in paths:
            connection = Connection(self.site.factory)
            connection.ask(path, X_Forwarded_Prefix="/ib")
            if whole[path].count("<tr>") > 3:
                self.assertEqual(connection.transport.value(), b"", path)
            self.assertEqual(self.get("/api/v1/overview").code, 200)
            self.clock.pump([0.0] * 100)
            self.assertEqual(connection.answer.text, whole[path], path)


class ChangeTests(SiteTestCase):
    def test_nodeRemoved(self) -> None:
        """A node that a refresh removes during a search does not end it."""
        self.started()
        self.patch(tables, "PIECE", 1)
        connection = Connection(self.site.factory)
        connection.ask("/api/v1/nodes?search=left")
        self.assertEqual(connection.transport.value(), b"")
        del self.sweptFabric.nodes[self.fabric.node("c").guid]
        self.clock.pump([0.0] * 100)
        self.assertEqual([row["name"] for row in connection.answer.json["rows"]], ["left"])


class CrowdTests(SiteTestCase):
    def test_iterations(self) -> None:
        """Some of many requests are answered at once, others later; those without connection are dropped."""
        self.started()
        self.clock.advance(0.0)
        connections = [Connection(self.site.factory) for _ in range(2 * MOST_AT_ONCE + 2)]
        for connection in connections:
            connection.ask("/api/v1/overview")
        self.assertEqual(self.answered(connections), MOST_AT_ONCE)
        connections.pop().close()
        self.clock.advance(0.0)
        self.assertEqual(self.answered(connections), 2 * MOST_AT_ONCE + 1)
        self.assertEqual({connection.answer.code for connection in connections}, {200})

    def test_failing(self) -> None:
        """A request that raises an exception does not affect those that wait after it."""
        self.started()
        self.clock.advance(0.0)
        connections = [Connection(self.site.factory) for _ in range(MOST_AT_ONCE + 2)]
        for connection in connections:
            connection.ask("/api/v1/overview")
        self.site.factory._waiting[0].processNow = Mock(side_effect=RuntimeError("simulated"))  # type: ignore[method-assign]  # for the test
        self.clock.advance(0.0)
        self.assertEqual(self.answered(connections), MOST_AT_ONCE + 1)
        self.assertTrue(connections[MOST_AT_ONCE].transport.disconnecting)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def answered(self, connections: list[Connection]) -> int:
        return sum(connection.transport.value() != b"" for connection in connections)


class PieceTests(SiteTestCase):
    """Tables whose pieces are a row each."""

    def setUp(self) -> None:
        super().setUp()
        self.started()
        self.whole = {path: self.rows(path) for path in self.paths}
        self.patch(tables, "PIECE", 1)
        self.patch(tables, "SHOWN", 1)

    paths = (
        *("ports", "ports?sort=name", "ports?sort=-transmitRate", "ports?search=LEFT&limit=5&offset=3"),
        *("nodes?type=host", "nodes?limit=2&offset=5", "nodes?sort=-uptime", "links?sort=-load"),
        *("findings", "changes"),
    )

    def test_same(self) -> None:
        """A search in pieces finds the same rows in the same order, and serves others meanwhile."""
        for path in self.paths:
            connection = Connection(self.site.factory)
            connection.ask(f"/api/v1/{path}")
            isLong = len(self.whole[path]) > 1 or "limit" in path
            self.assertEqual(connection.transport.value() == b"", isLong, path)
            self.assertEqual(self.get("/api/v1/overview").code, 200)
            self.clock.pump([0.0] * 500)
            self.assertEqual(connection.answer.json["rows"], self.whole[path], path)

    def test_shown(self) -> None:
        """The values of many rows that a short search has found are read in pieces, too."""
        self.patch(tables, "PIECE", 1000)
        connection = Connection(self.site.factory)
        connection.ask("/api/v1/ports")
        self.assertEqual(connection.transport.value(), b"")
        self.clock.pump([0.0] * 100)
        self.assertEqual(connection.answer.json["rows"], self.whole["ports"])

    def test_topology(self) -> None:
        """The topology is made in pieces, too, once for all browsers."""
        whole = self.get("/api/v1/topology").json
        made = []
        edge = topology.edge

        def counted(context: PageContext, ports: list[Port]) -> Any:
            made.append(ports)
            return edge(context, ports)

        self.patch(topology, "edge", counted)
        self.patch(topology, "_SWITCHES_AT_A_TIME", 1)
        self.patch(topology, "_EDGES_AT_A_TIME", 1)
        self.pump(self.settings.intervalSeconds)
        made.clear()
        connections = [Connection(self.site.factory) for _ in range(3)]
        for connection in connections:
            connection.ask("/api/v1/topology")
            self.assertEqual(connection.transport.value(), b"")
        self.clock.pump([0.0] * 50)
        self.assertEqual([connection.answer.json for connection in connections], [whole] * 3)
        self.assertEqual(len(made), len(whole["edges"]))

    def test_shared(self) -> None:
        """Browsers with the same page have one search, until the next round of readings."""
        searches = []
        search = tables.LINKS.filtered

        def counted(*given: Any) -> Any:
            searches.append(given)
            return search(*given)

        self.patch(tables.LINKS, "filtered", counted)
        counts = []
        for _ in range(2):
            searches.clear()
            connections = [Connection(self.site.factory) for _ in range(5)]
            for connection in connections:
                connection.ask("/links?sort=load")
            self.clock.pump([0.0] * 200)
            for connection in connections:
                self.assertEqual((connection.answer.code, "All links" in connection.answer.text), (200, True))
            counts.append(len(searches))
            self.pump(self.settings.intervalSeconds)
        links = len(self.whole["links?sort=-load"])
        self.assertEqual(counts, [links, links])
