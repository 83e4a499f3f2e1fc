"""Topologies at earlier times, and differences between two, in REST and on the page."""

from __future__ import annotations

from html import unescape
from typing import Any

from twisted.internet.defer import Deferred, fail, maybeDeferred
from twisted.internet.task import deferLater

from txrdma.error import DeviceUnavailable
from txrdma.fabric.advice import Severity
from txrdma.monitor.diagnosis.findinglog import FindingRules
from txrdma.monitor.series.history import HistoryWriter
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.monitor.web import past
from txrdma.monitor.web.searches import MOST_READS
from txrdma.test.support.monitor.fetching import Connection
from txrdma.test.unit.monitor.test_pages import PageTestCase, Seen


class PastTests(PageTestCase):
    """A monitor with a history: right is linked to c and d, left to a and b, and b to right, too."""

    def setUp(self) -> None:
        super().setUp()
        self.store = HistoryStore(self.where())
        self.addCleanup(self.store.close)
        self.reads = 0
        self.watch.history = HistoryWriter(self.clock, self.store, self.inThread, self.clock.seconds)
        self.watch.history.start()
        self.poller.findings.journal.store = self.watch.history.append
        self.started(60.0)

    def where(self) -> str:
        """Return the path or URL of a new history."""
        return str(self.mktemp())

    def inThread(self, function: Any, *arguments: Any) -> Deferred[Any]:
        self.reads += arguments == (self.store,)
        return maybeDeferred(function, *arguments)

    def json(self, path: str) -> Any:
        answer = self.page(f"/api/v1/{path}")
        self.assertEqual(answer.code, 200, answer)
        return answer.json

    def cut(self, name: str, number: int = 1) -> int:
        """Cut a cable, wait until that is known, and return a time before it."""
        before = int(self.clock.seconds())
        self.fabric.cut(name, number)
        self.pump(60.0)
        return before

    def test_past(self) -> None:
        """A host that is gone was there before; its switch has one host less now."""
        before = self.cut("c")
        found = self.json(f"topology/at?at={before}")
        self.assertHas(found, at=before, since=None, switches=2, hosts=4, links=7, missing=0, findings=0)
        self.assertEqual([node["hosts"] for node in found["nodes"]], [2, 3])
        self.assertHas(found["edges"][0], links=2, down=0, worst=None, change=None, load=None)
        now = self.json("topology/at?at=1e9")
        self.assertHas(now, hosts=3, links=6, missing=0, findings=1)
        self.assertEqual([node["hosts"] for node in now["nodes"]], [2, 2])
        self.assertEqual(now["at"], self.clock.seconds() - 0.5)

    def test_difference(self) -> None:
        """Differences are listed, and drawn at the switches and bundles of links that they concern."""
        before = self.cut("c")
        found = self.json(f"topology/difference?from={before}")
        self.assertEqual(
            {kind: count for kind, count in found["differences"].items() if count},
            {"node-removed": 1, "finding-raised": 1},
        )
        left, right = found["nodes"]
        self.assertHas(left, change=None, hostsAdded=0, hostsRemoved=0)
        self.assertHas(right, change=None, hostsAdded=0, hostsRemoved=1, worst=None)
        listed = self.json(f"differences?from={before}")["rows"]
        self.assertEqual([row["kind"] for row in listed], ["node-removed", "finding-raised"])
        self.assertHas(listed[0], guid=self.guid("c"), port=None, after="")
        kept = self.json(f"differences?from={before}&kind=finding-raised")
        self.assertEqual((kept["total"], kept["rows"][0]["after"].partition(":")[0]), (1, "node-gone"))
        self.fabric.heal("c")
        self.pump(90.0)
        self.assertEqual(self.json(f"differences?from={before}")["rows"], [])

    def test_links(self) -> None:
        """A missing link between switches is down, and the bundle has changed; the worst finding is shown."""
        before = self.cut("left", 3)
        (edge,) = self.json("topology/at?at=1e9")["edges"]
        self.assertHas(edge, links=1, down=1, worst="warning", change=None)
        (edge,) = self.json(f"topology/difference?from={before}")["edges"]
        self.assertHas(edge, links=1, down=1, change="changed")
        self.fabric.cut("left", 4)
        self.pump(60.0)
        found = self.json(f"topology/difference?from={before}")  # right cannot be reached any more
        self.assertHas(found["edges"][0], links=0, down=0, change="removed")
        self.assertEqual([node["change"] for node in found["nodes"]], [None, "removed"])

    def test_times(self) -> None:
        """Times of changes are returned from when states are known."""
        before = self.cut("c")
        found = self.json("topology/times")
        self.assertLess(found["since"], 10.0)
        self.assertEqual(found["begin"], found["since"])
        self.assertEqual(sum(mark["changes"] for mark in found["marks"]), 2)
        self.assertTrue(all(mark["at"] > before for mark in found["marks"]))
        self.assertEqual(self.json(f"topology/times?end={before}")["marks"], [])
        later = self.json("topology/times?begin=1e6&end=2e6")
        self.assertHas(later, begin=1e6, end=2e6, marks=[])

    def test_shared(self) -> None:
        """Equal requests about the past are answered from one reading, those about now until it changes."""
        self.patch(past, "_SLOTS", 1 << 60)
        before = self.cut("c")
        self.reads = 0
        for _ in range(3):
            self.json(f"topology/at?at={before - 30}")
            self.json(f"differences?from={before - 30}&to={before - 20}")
            self.json(f"topology/difference?from={before - 30}")
            self.pump(20.0)
        self.assertEqual(self.reads, 3)
        self.poller.diagnosis.version += 1  # as with each sweep
        self.json(f"topology/difference?from={before - 30}")
        self.assertEqual(self.reads, 3)
        self.cut("b", 2)
        self.json(f"topology/at?at={before - 30}")
        self.json(f"topology/difference?from={before - 30}")
        self.assertEqual(self.reads, 4)

    def test_otherSeverities(self) -> None:
        """Findings of the past have the severities of the present configuration."""
        self.cut("left", 3)
        at = int(self.clock.seconds())
        self.pump(120.0)
        worst = []
        for severity in (Severity.INFO, Severity.CRITICAL):
            self.poller.findings.log.change(FindingRules({}, severities={"link-gone": severity}))
            worst.append(self.json(f"topology/at?at={at}")["edges"][0]["worst"])
        self.assertEqual(worst, ["info", "critical"])

    def test_sharedTimes(self) -> None:
        """Times of changes are read once for all browsers until something changes."""
        self.patch(past, "_SLOTS", 1 << 60)
        self.patch(past, "MOST_MARKS", 2)
        self.cut("c")
        self.reads = 0
        found = []
        for _ in range(3):
            found.append(self.json(f"topology/times?begin={self.clock.seconds() - 70.0}"))
            self.pump(0.5)
        self.assertEqual(self.reads, 1)
        self.assertEqual([sum(mark["changes"] for mark in one["marks"]) for one in found], [2] * 3)
        self.assertEqual(len({one["end"] for one in found}), 3)
        self.cut("b", 2)
        marks = self.json("topology/times?begin=0")["marks"]
        self.assertGreater(sum(mark["changes"] for mark in marks), 2)
        self.assertEqual(self.reads, 2)

    def test_most(self) -> None:
        """Of many differences some are listed, and all are counted."""
        self.patch(past, "MOST_DIFFERENCES", 1)
        before = self.cut("c")
        self.assertEqual(sum(self.json(f"topology/difference?from={before}")["differences"].values()), 2)
        self.assertEqual(len(self.json(f"differences?from={before}")["rows"]), 1)

    def test_crowd(self) -> None:
        """Few requests read the history at a time, so that they do not delay what is written to it."""
        history = self.watch.history
        assert history is not None
        active = most = 0

        async def slowly(_work: object) -> None:
            nonlocal active, most
            active += 1
            most = max(most, active)
            await deferLater(self.clock, 0.1)
            active -= 1

        self.patch(history, "read", slowly)
        connections = [Connection(self.site.factory) for _ in range(8)]
        for at, connection in enumerate(connections):
            connection.ask(f"/api/v1/topology/at?at={at}")
        self.pump(2.0)
        self.assertEqual([each.answer.code for each in connections], [404] * 8)
        self.assertEqual(most, MOST_READS)

    def test_page(self) -> None:
        """The page has sliders, and tables of a state or of differences; old times count as the first."""
        before = self.cut("c")
        page = self.page("/topology").text
        self.assertIn('id="timeline-from"', page)
        self.assertIn("Links between switches", page)
        page = self.page(f"/topology?from={before}").text
        self.assertIn("Findings then", page)
        self.assertIn("No findings.", page)
        page = self.page(f"/topology?from={before}&to=now").text
        self.assertIn("node removed", page)
        self.assertIn("Nothing differs.", self.page(f"/topology?from=0&to={before}").text)
        links = {link for link in Seen(page).links if "to=now" in link}
        self.assertEqual(links, {"/topology?from=0&to=now"})  # the clock is at 0
        self.assertIn("node removed", self.page(links.pop()).text)

    def test_changes(self) -> None:
        """Each change leads to the topology after it, where a history has that."""
        self.cut("c")
        (link, *_) = sorted(link for link in Seen(self.page("/changes").text).links if "topology?" in link)
        seen = unescape(self.page(link).text)
        self.assertIn("Findings then", seen)
        self.assertIn("Hosts</dt><dd>3<", seen)
        self.assertIn(link, self.page("/").text)
        self.watch.history = None
        self.pump(20.0)
        self.assertNotIn("topology?", self.page("/changes").text)

    def test_wrong(self) -> None:
        """Times in the wrong order are exchanged; what is not a time is refused."""
        found = self.json("topology/difference?from=40&to=30")
        self.assertEqual((found["since"], found["at"]), (30, 40))
        found = self.json("topology/difference?from=1e11&to=30")
        self.assertEqual((found["since"], found["at"]), (30, self.clock.seconds() - 0.5))
        self.assertEqual(self.json("differences?from=1e11")["rows"], [])
        self.assertEqual(self.page("/api/v1/topology/at").code, 400)
        self.assertEqual(self.page("/topology?from=20&to=yesterday").code, 400)

    def test_unreadable(self) -> None:
        """If the database cannot be read, JSON and pages have the reason."""
        assert self.watch.history is not None
        self.patch(self.watch.history, "_inThread", lambda *_: fail(DeviceUnavailable("the disk is away")))
        answer = self.page("/api/v1/topology/at?at=20")
        self.assertEqual((answer.code, answer.json["error"]), (503, "the disk is away"))
        answer = self.page("/topology?from=20")
        self.assertEqual((answer.code, "the disk is away" in answer.text), (503, True))

    def test_noHistory(self) -> None:
        """Without a history there are no sliders, and the reason is given."""
        self.watch.history = None
        page = self.page("/topology").text
        self.assertNotIn('id="timeline"', page)
        self.assertIn("history.file", page)
        for path in ("/topology?from=20", "/api/v1/topology/at?at=20", "/api/v1/topology/times"):
            self.assertEqual(self.page(path).code, 404)

    def test_restart(self) -> None:
        """A difference includes changes while no monitor was running."""
        before = int(self.clock.seconds())
        self.poller.stop()
        self.fabric.cut("left", 3)
        restarted = self.made()
        restarted.topologyWatch.restore(
            self.store.states("node-came", "node-gone", "link-came", "link-changed", "link-gone")
        )
        restarted.findings.journal.store = self.poller.findings.journal.store
        self.poller = self.watch.poller = restarted
        self.started(60.0)
        kinds = self.json(f"topology/difference?from={before}")["differences"]
        self.assertHas(kinds, **{"link-removed": 1, "finding-raised": 1})
