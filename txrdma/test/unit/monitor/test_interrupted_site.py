"""
The site of a monitor of which one call of one function raises an exception: the exception is logged once, the
request gets an answer or loses its connection, and other requests and readers of events are served.
"""

from __future__ import annotations

from types import ModuleType
from typing import Any
from unittest.mock import Mock

from twisted.internet.address import IPv4Address

from txrdma.monitor.web import (
    actions,
    blastradius,
    events,
    fabrics,
    html,
    layout,
    metrics,
    pages,
    parameters,
    past,
    rest,
    routes,
    scrapes,
    searches,
    site,
    tables,
    topology,
    tracing,
    watch,
)
from txrdma.test.support.interruptions import Interruptions
from txrdma.test.support.monitor.fetching import Connection
from txrdma.test.unit.monitor.test_rest import SiteTestCase

MODULES: tuple[ModuleType, ...] = (
    *(actions, blastradius, events, fabrics, html, layout, metrics, pages, parameters, past, rest, routes),
    *(scrapes, searches, site, tables, topology, tracing, watch),
)

TRIVIAL = ("buildProtocol", "_clientOf", "failed", "failures", "connectionLost")
"""Functions that answer after an exception."""

ADDRESS = IPv4Address("TCP", "192.0.2.1", 1234)
EVENTS, OTHER = "/api/v1/events", "/api/v1/overview"


class InterruptionTests(SiteTestCase):
    """Requests of which a function raises once, between those of others."""

    slowBecause = "it makes a request for each function"
    reader: Connection
    STRIDE = 1

    def setUp(self) -> None:
        super().setUp()
        self.started()
        self.isArmed = False
        owners: list[Any] = list(MODULES)
        for module in MODULES:
            classes = [each for each in vars(module).values() if isinstance(each, type)]
            owners += [each for each in classes if each.__module__ == module.__name__]
        self.calls = Interruptions(self.patch, owners, lambda *_: self.isArmed, TRIVIAL)

    def paths(self) -> list[str]:
        """Return paths whose answers together use most functions."""
        node = f"nodes/{self.guid('left')}"
        names = ["overview", "nodes", "links", "findings", "changes", "cables", node, f"{node}/ports/2"]
        names += [
            f"trace?from={self.guid('a')}&to={self.guid('b')}",
            "topology",
            "nodes?search=left&sort=name",
        ]
        found = [path for name in names for path in (f"/{name}", f"/api/v1/{name}")]
        return [*found, "/", "/nothing", "/metrics", "/healthz", "/static/style.css", EVENTS]

    def ask(self, path: str) -> Connection:
        """Make a request, and let the fabric change meanwhile."""
        connection = Connection(self.site.factory, ADDRESS)
        try:
            connection.ask(path)
            self.pump(0.2)
            self.site.hub.fabricChanged()
            self.pump(0.2)
        except ZeroDivisionError:  # as the reactor, which closes the connection, or the caller
            self.escaped += 1
            connection.transport.loseConnection()
        return connection

    def play(self, path: str) -> list[str]:
        """Make a request in which a function may raise; return what is wrong."""
        self.escaped, wrong, reader = 0, list[str](), self.reader
        self.poller.diagnosis.version += 1
        self.isArmed = True
        victim = self.ask(path)
        self.isArmed = False
        self.flushWarnings()  # of coroutines that are not awaited
        if path != EVENTS and not victim.isEnding:
            wrong.append("the request hangs")
        victim.close()
        logged = len(self.flushLoggedErrors(ZeroDivisionError)) + self.escaped
        if logged != self.calls.hasRaised:
            wrong.append(f"it was logged {logged} times")
        wrong += [f"logged as well: {each.value!r}" for each in self.flushLoggedErrors()]
        before = len(reader.transport.value())
        for other in (OTHER, "/nodes", path):
            bystander = self.ask(other)
            if other != EVENTS and (not bystander.isEnding or bystander.answer.code not in (200, 404)):
                wrong.append(f"then {other} is answered by {bystander.transport.value()[:60]!r}")
            bystander.close()
        self.poller.diagnosis.version += 1
        self.site.hub.fabricChanged()
        self.pump(0.2)
        if reader.isEnding or b"event: round" not in reader.transport.value()[before:]:
            wrong.append("the reader gets no events")
        if self.escaped > logged:
            wrong.append("another request failed")
        if (number := len(self.site.hub.readers)) != 1:
            wrong.append(f"{number} readers")
        if (number := self.site.factory._connections) != 1:
            wrong.append(f"{number} connections")
        waiting = [each for each in self.watch.searches._results.values() if each.waiting or not each.found]
        if waiting or self.watch.searches._turns.tokens != searches.MOST_SEARCHES:
            wrong.append("a search is unfinished")
        if wrong:
            reader.close()
            self.reader = self.ask(EVENTS)
        return wrong

    def test_partOfAnswer(self) -> None:
        """If a part of an answer was sent before an exception, the connection closes before its end."""

        async def send(_watch: Any, request: Any) -> None:
            request.write(b'{"rows": [')
            raise ZeroDivisionError("a test's")

        self.patch(rest, "_send", send)
        connection = self.ask(OTHER)
        self.assertTrue(connection.transport.disconnected)
        self.assertTrue(connection.transport.value().endswith(b'{"rows": [\r\n'))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_sending(self) -> None:
        """After an exception while events are sent, readers get further ones, and reload everything."""
        self.reader = self.ask(EVENTS)
        begin = len(self.reader.transport.value())
        restore = self.patch(
            events.EventHub, "_send", Mock(side_effect=ZeroDivisionError("a test's"))
        ).restore
        self.site.hub.publish("lost", {})
        restore()
        self.site.hub.publish("next", {})
        found = self.reader.transport.value()[begin:]
        self.assertEqual([name in found for name in (b"resync", b"next", b"lost")], [True, True, False])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 2)  # of the reload, too

    def test_each(self) -> None:
        """The first call of each function, in the first request that makes it."""
        self.reader = self.ask(EVENTS)
        known, found, number = set(), {}, 0
        for path in self.paths():
            self.calls.begin()
            if wrong := self.play(path):
                found[path, "", ""] = wrong
            sites = [each for each in self.calls.counts if each not in known]
            known.update(sites)
            for function in sites:
                number += 1
                if number % self.STRIDE:
                    continue
                self.calls.begin(function, 1)
                if wrong := self.play(path):
                    found[path, function[0].__name__, function[1]] = wrong
        self.assertGreater(len(known), 100)
        self.assertEqual(found, {}, "\n".join(f"{key}: {value}" for key, value in found.items()))
