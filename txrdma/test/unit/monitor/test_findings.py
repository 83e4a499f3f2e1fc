"""Findings: detection from a fabric and its counters, raising and clearing."""

from __future__ import annotations

import re
from pathlib import Path

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

import txrdma
from txrdma.fabric.advice import ADVICE, adviceOn, Severity
from txrdma.fabric.discovery import Sweep
from txrdma.fabric.health import Finding, locatedFindings
from txrdma.fabric.model import Fabric
from txrdma.fabric.portcounters import CounterLayout, Meter
from txrdma.iba.types import GUID
from txrdma.monitor.diagnosis.findinglog import (
    Cleared,
    Entry,
    FindingEvent,
    FindingLog,
    FindingRules,
    Key,
    MOST_CLEARED,
    Raised,
)
from txrdma.monitor.diagnosis.tallies import TallyLimit
from txrdma.monitor.diagnosis.thresholds import _KINDS, ErrorThresholds
from txrdma.monitor.reading import surveyor
from txrdma.monitor.reading.surveyor import Surveyor
from txrdma.test.support.mad.simulated import FabricTestCase
from txrdma.test.unit.monitor.test_poller import PollerTestCase

GUID_A, GUID_B = GUID(bytes(7) + b"\1"), GUID(bytes(7) + b"\2")


def width(text: str = "1 of 4 lanes", guid: GUID = GUID_A, port: int = 1) -> Finding:
    """Return a finding about a link's width."""
    return Finding("width", f"node {guid} port {port}", text, guid, port)


def output(events: list[FindingEvent]) -> list[str]:
    """Return events by their kind."""
    return [f"{type(each).__name__} {each.entry.finding.kind}" for each in events]


class LedgerTests(SynchronousTestCase):
    """Findings are raised, remain, and are cleared when they have been absent for long enough."""

    def findingLog(self, raiseSeconds: float = 0.0, **rules: object) -> FindingLog:
        return FindingLog(FindingRules({"sweep": raiseSeconds}, **rules))  # type: ignore[arg-type]  # by name

    def test_comesAndGoes(self) -> None:
        """A finding is raised once, seen again, and cleared once."""
        findingLog = self.findingLog()
        self.assertEqual(output(findingLog.observe("sweep", [width()], 10.0)), ["Raised width"])
        self.assertEqual(findingLog.observe("sweep", [width("2 of 4 lanes")], 20.0), [])
        (entry,) = findingLog.open.values()
        self.assertEqual((entry.firstSeen, entry.lastSeen, entry.finding.text), (10.0, 20.0, "2 of 4 lanes"))
        self.assertEqual((entry.severity, findingLog.worst()), (Severity.WARNING, Severity.WARNING))
        self.assertEqual(findingLog.observe("sweep", [], 30.0), [])
        self.assertEqual(findingLog.observe("sweep", [], 59.0), [])
        self.assertEqual(output(findingLog.observe("sweep", [], 60.0)), ["Cleared width"])
        self.assertEqual((entry.clearedAt, findingLog.open, findingLog.worst()), (60.0, {}, None))
        self.assertEqual([one.toDict()["advice"] for one in findingLog.closed], [ADVICE["width"].text])

    def test_debounced(self) -> None:
        """A finding that disappears within the delay is not raised; one that remains has its first time."""
        findingLog = self.findingLog(15.0)
        self.assertEqual(findingLog.observe("sweep", [width()], 0.0), [])
        self.assertEqual(findingLog.observe("sweep", [], 10.0), [])
        for now in (20.0, 30.0):
            self.assertEqual(findingLog.observe("sweep", [width()], now), [])
        (event,) = findingLog.observe("sweep", [width()], 40.0)
        self.assertEqual(event.entry.firstSeen, 20.0)

    def test_again(self) -> None:
        """A finding that returns is the same one, and its delay until it is cleared doubles each time."""
        findingLog = self.findingLog()
        findingLog.observe("sweep", [width()], 0.0)
        findingLog.observe("sweep", [], 1.0)
        (cleared,) = findingLog.observe("sweep", [], 31.0)
        (again,) = findingLog.observe("sweep", [width()], 40.0)
        self.assertIs(again.entry, cleared.entry)
        self.assertEqual((again.entry.times, again.entry.firstSeen, again.entry.clearedAt), (2, 0.0, None))
        self.assertEqual(len(findingLog.closed), 0)
        findingLog.observe("sweep", [], 41.0)
        self.assertEqual(findingLog.observe("sweep", [], 100.9), [])
        self.assertEqual(output(findingLog.observe("sweep", [], 101.0)), ["Cleared width"])

    def test_manyReturn(self) -> None:
        """Thousands of findings that return at once are not compared with all others that were cleared."""
        findingLog = self.findingLog()
        found = [Finding("width", f"node {number}", "narrow") for number in range(MOST_CLEARED)]
        for now, seen in ((0.0, found), (1.0, []), (31.0, [])):
            findingLog.observe("sweep", seen, now)
        self.patch(Entry, "__eq__", self.fail)
        self.assertEqual(len(findingLog.observe("sweep", found[::-1], 40.0)), len(found))
        self.assertEqual(len(findingLog.closed), 0)

    def test_longAfter(self) -> None:
        """A finding that returns an hour later is a new one."""
        for back, expected in ((3630.9, (2, 0.0)), (3631.0, (1, 3631.0))):
            findingLog = self.findingLog()
            for now, found in ((0.0, [width()]), (1.0, []), (31.0, [])):
                findingLog.observe("sweep", found, now)
            (event,) = findingLog.observe("sweep", [width()], back)
            self.assertEqual((event.entry.times, event.entry.firstSeen), expected)

    def test_unknown(self) -> None:
        """A finding remains while its location cannot be read."""
        findingLog = self.findingLog()
        findingLog.observe("sweep", [width()], 0.0)
        for now in (10.0, 100.0, 1000.0):
            events = findingLog.observe("sweep", [], now, lambda key: key.location == str(GUID_A))
            self.assertEqual(events, [])
        findingLog.observe("sweep", [], 1001.0)
        self.assertEqual(len(findingLog.observe("sweep", [], 1031.0)), 1)

    def test_pending(self) -> None:
        """A delayed finding is pending at its location; a report after the delay can raise it."""
        findingLog = self.findingLog(15.0)
        self.assertIsNone(findingLog.settlesIn("sweep", 0.0))
        findingLog.observe("sweep", [width()], 10.0)
        waits = [findingLog.settlesIn("sweep", now) for now in (12.5, 24.75, 30.0)]
        self.assertEqual((waits, findingLog.settlesIn("counters", 12.5)), ([12.5, 0.25, 0.0], None))
        for source, location, expected in (
            ("sweep", GUID_A, True),
            ("sweep", GUID_B, False),
            ("counters", GUID_A, False),
        ):
            self.assertIs(findingLog.isPending(source, {str(location)}), expected)

    def test_sources(self) -> None:
        findingLog = self.findingLog(clearSeconds=0.0)
        findingLog.observe("sweep", [width()], 0.0)
        self.assertEqual(findingLog.observe("counters", [], 10.0), [])
        self.assertEqual(len(findingLog.observe("sweep", [], 10.0)), 1)

    def test_joined(self) -> None:
        """Several findings of a kind at one location are one, with the first texts."""
        findingLog = self.findingLog()
        (event,) = findingLog.observe("sweep", [width(f"text {number}") for number in (1, 1, 2, 3, 4)], 0.0)
        self.assertEqual(event.entry.finding.text, "text 1; text 2; text 3; ...")

    def test_rules(self) -> None:
        """Rules can ignore kinds, or change their severity."""
        findingLog = self.findingLog(ignored={"speed"}, severities={"width": Severity.CRITICAL})
        found = [width(), Finding("speed", "x", "slow", GUID_A, 1)]
        self.assertEqual([one.entry.severity for one in findingLog.observe("sweep", found, 0.0)], [2])

    def test_changedWhileAway(self) -> None:
        """A finding that returns has the severity of the current rules."""
        findingLog = self.findingLog(clearSeconds=0.0)
        for found in ([width()], []):
            findingLog.observe("sweep", found, 0.0)
        findingLog.change(FindingRules({}, severities={"width": Severity.CRITICAL}))
        (event,) = findingLog.observe("sweep", [width()], 1.0)
        self.assertEqual((event.entry.times, event.entry.severity), (2, Severity.CRITICAL))

    def test_bounded(self) -> None:
        """Cleared findings are removed, so that memory is bounded."""
        findingLog = self.findingLog(clearSeconds=0.0)
        for number in range(3000):
            findingLog.observe("sweep", [width(port=number)], float(number))
        self.assertEqual((len(findingLog.open), len(findingLog.closed)), (1, MOST_CLEARED))
        self.assertLessEqual(len(findingLog._returning), MOST_CLEARED)

    @settings(max_examples=50, deadline=None)
    @given(st.lists(st.tuples(st.integers(1, 40), st.sets(st.integers(1, 3))), max_size=30))
    def test_alternates(self, steps: list[tuple[int, set[int]]]) -> None:
        """For any sequence, each finding is raised and cleared alternately, and only with its cause."""
        findingLog = self.findingLog(15.0, clearSeconds=20.0)
        now = 0.0
        raised: set[Key] = set()
        seen: dict[int, float] = {}
        for seconds, ports in steps:
            now += seconds
            seen.update((port, now) for port in ports)
            for event in findingLog.observe("sweep", [width(port=port) for port in ports], now):
                key = event.entry.key
                if isinstance(event, Raised):
                    self.assertNotIn(key, raised)
                    self.assertIn(key.port, ports)
                    raised.add(key)
                else:
                    self.assertIsInstance(event, Cleared)
                    assert key.port is not None
                    self.assertGreaterEqual(now - seen[key.port], 20.0)
                    raised.remove(key)
        self.assertEqual(set(findingLog.open), raised)


class AdviceTests(SynchronousTestCase):
    def test_everyKind(self) -> None:
        """All kinds of findings that txrdma reports have specific advice."""
        package = Path(txrdma.__file__).parent
        kinds = set(_KINDS.values())
        for path in [*(package / "fabric").glob("*.py"), *(package / "monitor").glob("*.py")]:
            reported = r'(?:Finding|Problem|_about|_aboutNode|problem|_at)\((?:fabric, )?\s*"([a-z-]+)"'
            kinds |= set(re.findall(reported, path.read_text()))
        self.assertIn("duplicate-lid", kinds)
        self.assertEqual(kinds - set(ADVICE), set())

    def test_sentences(self) -> None:
        """Advice is a sentence, also for an unknown kind."""
        for kind in (*ADVICE, "new-kind"):
            self.assertTrue(adviceOn(kind).text.endswith("."), kind)


LAYOUT = CounterLayout({"symbolErrorCounter": 16, "linkDownedCounter": 8, "portRcvErrors": 16})


class JudgeTests(FabricTestCase):
    """Errors of ports against limits, and links that flap."""

    def setUp(self) -> None:
        super().setUp()
        self.swept: Fabric = self.answerTo(Sweep(self.agent).run(), 3)
        self.renew()

    def renew(self) -> None:
        self.thresholds = ErrorThresholds([TallyLimit("symbolErrorCounter", 10, 600.0)])
        self.meters: dict[tuple[str, int], Meter] = {}

    def read(self, name: str, number: int, now: float, symbols: int = 0, downs: int = 0) -> None:
        """Add a reading of a port."""
        meter = self.meters.setdefault((name, number), Meter(LAYOUT))
        meter.read((symbols, downs, 0), now)
        self.thresholds.read((self.fabric.node(name).guid, number), meter, now)

    def found(self, now: float) -> list[tuple[str, str]]:
        return [
            (one.kind, one.where.partition(" (")[0] + one.where[-7:])
            for one in self.thresholds.findings(self.swept, now)
        ]

    def test_rate(self) -> None:
        """Only errors within the window are judged, not earlier ones."""
        self.read("left", 2, 0.0, symbols=5000)
        self.read("left", 2, 10.0, symbols=5010)
        self.assertEqual(self.found(10.0), [])
        self.read("left", 2, 20.0, symbols=5011)
        self.assertEqual(self.found(20.0), [("symbol-errors", "left port 2")])
        text = self.thresholds.findings(self.swept, 20.0)[0].text
        self.assertEqual(text, "SymbolErrorCounter 11 in 10 minutes, 10 are allowed")
        self.assertEqual(self.found(700.0), [])
        self.assertEqual(len(self.thresholds), 0)

    def test_flapping(self) -> None:
        """A link that goes down repeatedly is one finding, although both ends count it."""
        ends = (("left", 3), ("right", 3))
        for now, downs in ((0.0, 7), (100.0, 8), (200.0, 9)):
            self.assertEqual(self.found(now), [])
            for name, number in ends:
                self.read(name, number, now, downs=downs)
        (found,) = self.thresholds.findings(self.swept, 200.0)
        self.assertEqual((found.kind, found.text), ("flapping", "its link went down 2 times in 10 minutes"))
        self.assertEqual(self.found(801.0), [])

    def test_restart(self) -> None:
        """
        The link changes of a node that restarts are not flapping: all its counters are reset, unless those of
        its neighbour are, too, because they were cleared; or it answers again after silence.
        """
        for reset, returned, kinds in (("b", "", []), ("left b", "", ["flapping"]), ("", "b", [])):
            self.renew()
            self.read("left", 2, 0.0, downs=7)
            self.read("left", 2, 100.0, downs=9)
            self.assertEqual(self.found(100.0), [("flapping", "left port 2")])
            for names, report in ((reset, self.thresholds.reset), (returned, self.thresholds.restarted)):
                for name in names.split():
                    report(self.fabric.node(name).guid, 200.0)
            self.assertEqual([kind for kind, _where in self.found(200.0)], kinds, (reset, returned))
            self.assertEqual((self.found(2000.0), len(self.thresholds)), ([], 0))

    def test_training(self) -> None:
        """Errors of both ends of a link are not counted while it is trained."""
        self.read("left", 2, 0.0)
        self.read("b", 1, 0.0)
        self.read("left", 2, 10.0, symbols=6)
        self.read("b", 1, 41.0, symbols=70)  # read shortly before its peer
        self.read("left", 2, 42.0, symbols=100, downs=1)
        self.read("left", 2, 60.0, symbols=200, downs=1)
        self.read("b", 1, 61.0, symbols=90)
        self.assertEqual(self.found(61.0), [])
        self.read("left", 2, 80.0, symbols=205, downs=1)
        self.assertEqual(self.found(80.0), [("symbol-errors", "left port 2")])

    def test_missing(self) -> None:
        """Errors while a link is missing, and when it is back, are not counted."""
        link = ((self.fabric.node("left").guid, 2), (self.fabric.node("b").guid, 1))
        self.read("left", 2, 0.0)
        self.read("left", 2, 10.0, symbols=50)
        self.thresholds.linksChanged({link}, set(), 12.0)
        self.read("left", 2, 100.0, symbols=90)
        self.thresholds.linksChanged(set(), {link}, 200.0)
        self.read("left", 2, 205.0, symbols=150)
        self.assertEqual(self.found(205.0), [])
        self.read("left", 2, 300.0, symbols=161)
        self.assertEqual(self.found(300.0), [("symbol-errors", "left port 2")])
        self.assertEqual((self.found(1000.0), len(self.thresholds)), ([], 0))

    def test_moved(self) -> None:
        """A port whose cable was moved to another port has a link, and its errors count."""
        left, b, c = ((self.fabric.node(name).guid, at) for name, at in (("left", 2), ("b", 1), ("c", 1)))
        for before, after, now in ((b, c, 0.0), (c, b, 100.0)):
            self.thresholds.linksChanged({(left, before)}, {(left, after)}, now)
        self.read("left", 2, 200.0)
        self.read("left", 2, 210.0, symbols=11)
        self.assertEqual(self.found(210.0), [("symbol-errors", "left port 2")])

    def test_resetOfOnePort(self) -> None:
        """A reset of one port's counters hides no flapping, neither of its link nor of another."""
        self.read("left", 2, 0.0, downs=7)
        self.read("left", 1, 0.0, symbols=7)
        self.read("left", 1, 50.0, symbols=0)
        self.read("left", 2, 100.0, downs=9)
        self.read("left", 2, 110.0, downs=0)
        self.assertEqual(self.found(110.0), [("flapping", "left port 2")])


class FabricFindingTests(FabricTestCase):
    """Findings of a fabric have the same location in every sweep."""

    def kinds(self) -> list[tuple[str, str]]:
        fabric: Fabric = self.answerTo(Sweep(self.agent).run(), 30)
        return [(one.kind, one.where) for one in locatedFindings(fabric) if one is not None]

    def test_unreachable(self) -> None:
        """A silent node is found at the port that leads to it."""
        self.fabric.silence("c")
        (found,) = self.kinds()
        right = self.fabric.node("right")
        self.assertEqual(found, ("unreachable", f"right ({right.guid}) port 1"))

    def test_names(self) -> None:
        """Two hosts with one name are a finding; two switches with one name are not."""
        a = self.fabric.node("a").description
        self.fabric.node("b").description = a
        self.assertEqual([kind for kind, _where in self.kinds()], ["duplicate-name"])


class SurveyTests(PollerTestCase):
    """Tables are read again after a change, when the fabric is quiet; faults in them are findings."""

    slowBecause = "it polls a fabric for an hour, and reads all its tables"

    def started(self, seconds: float = 35.0) -> None:
        super().started(seconds)
        self.surveyor = Surveyor(self.clock, self.agent, self.poller, 900.0)
        self.surveyor.start()
        self.addCleanup(self.surveyor.stop)

    def test_routes(self) -> None:
        """A corrupted route is raised once, and cleared when it is repaired."""
        self.started()
        self.pump(1000.0)
        self.assertEqual((self.output(), self.surveyor.surveys), ([], 1))
        self.assertEqual(len(self.poller.linear), 2)
        table = self.fabric.linearOf(self.fabric.node("right"))
        lid = self.lid("b", 1)  # the monitor's packets do not use this route
        before, table[lid] = table[lid], 7
        self.pump(1200.0)
        self.assertEqual(self.output(), [("raised", "unreachable-lid", "b")])
        table[lid] = before
        self.pump(1200.0)
        self.assertEqual(self.output(), [("cleared", "unreachable-lid", "b")])

    def test_cables(self) -> None:
        """A hot module and an exchanged cable are findings; nodes whose cables are unknown are not."""
        self.fabric.haveModule("left", 3)
        self.started()
        self.pump(200.0)
        guid = self.fabric.node("left").guid
        self.assertEqual(set(self.poller.cables.cables), {(guid, 3)})
        self.fabric.haveModule("left", 3, temperature=90 << 8, serialNumber=b"OTHER".ljust(16))
        self.pump(1200.0)
        raised = [("raised", kind, "left") for kind in ("module-hot", "cable-changed")]
        self.assertEqual(self.output(), raised)
        self.fabric.haveModule("left", 3, temperature=50 << 8)
        self.pump(1200.0)
        self.assertEqual(self.output(), [("cleared", "module-hot", "left")])

    def test_otherLIDs(self) -> None:
        """Tables that nodes have read while LIDs were assigned anew are not attributed to other nodes."""
        self.fabric.haveModule("left", 3, serialNumber=b"LEFT".ljust(16))
        self.fabric.haveModule("right", 3, serialNumber=b"RIGHT".ljust(16))
        self.started()
        self.pump(1019.99)
        self.assertEqual(self.surveyor.surveys, 1)
        self.fabric.wire.latencySeconds = 0.01
        self.pump(0.02)
        one, other = self.fabric.port("left", 0), self.fabric.port("right", 0)
        one.lid, other.lid = other.lid, one.lid
        self.fabric.manage("d")
        self.pump(1200.0)
        self.assertEqual((self.output(), self.surveyor.surveys), ([], 3))
        serials = [self.poller.cables.cables[self.portKey(name, 3)].serial for name in ("left", "right")]
        self.assertEqual(serials, ["LEFT", "RIGHT"])

    def test_changed(self) -> None:
        """A survey that a reload of the configuration ends is begun again soon."""
        patched = self.patch(surveyor, "routeFindings", lambda *args: Deferred())
        self.started()
        self.pump(2 * surveyor.SETTLE_SECONDS + 10.0)
        patched.restore()
        self.surveyor.change(900.0)
        self.pump(2 * surveyor.SETTLE_SECONDS + 10.0)
        self.assertEqual(self.surveyor.surveys, 1)

    def flap(self, times: int) -> None:
        """Let a link between the switches go down and up."""
        for _ in range(times):
            self.fabric.cut("left", 3)
            self.pump(25.0)
            self.fabric.heal("left", 3)
            self.pump(25.0)

    def test_busyFabric(self) -> None:
        """While links change, tables are not read."""
        self.clock.advance(2 * surveyor.UNSETTLED_SECONDS)  # the monitor starts late
        self.started()
        self.flap(10)
        self.assertEqual(self.surveyor.surveys, 0)
        self.pump(300.0)
        self.assertGreater(self.surveyor.surveys, 0)

    def test_lateFabric(self) -> None:
        """While the links of a fabric that is found after a long time change, tables are not read."""
        self.patch(surveyor, "UNSETTLED_SECONDS", 300.0)
        late = Surveyor(self.clock, self.agent, self.poller, 900.0)
        late.start()
        self.addCleanup(late.stop)
        self.pump(600.0)
        PollerTestCase.started(self)
        self.flap(4)
        self.assertEqual(late.surveys, 0)

    def test_alwaysBusy(self) -> None:
        """While a link goes up and down without end, tables are read after a longer time."""
        self.patch(surveyor, "UNSETTLED_SECONDS", 300.0)
        self.started()
        self.flap(8)
        self.assertEqual((self.surveyor.surveys, len(self.poller.linear)), (1, 2))

    def test_ownLink(self) -> None:
        """While the local link is down no tables are read: no node counts as one that does not answer."""
        self.fabric.haveModule("left", 3)
        self.started()
        self.fabric.linearOf(self.fabric.node("right"))[self.lid("b", 1)] = 7
        self.pump(1200.0)
        self.assertEqual(self.output(), [("raised", "unreachable-lid", "b")])
        self.fabric.cut("a")
        self.pump(4 * 3600.0)
        self.assertEqual(self.output(), [("raised", "no-link", "a")])
        self.assertEqual(len(self.poller.linear), 2)
        self.fabric.heal("a")
        self.pump(1200.0)
        self.assertEqual(set(self.poller.firmware), {self.fabric.node("left").guid})

    def test_ownPort(self) -> None:
        """Nor are they read while the local port is not active, so that no node answers."""
        self.fabric.haveModule("left", 3)
        self.started()
        self.fabric.linearOf(self.fabric.node("right"))[self.lid("b", 1)] = 7
        self.pump(1200.0)
        self.assertEqual(self.output(), [("raised", "unreachable-lid", "b")])
        self.fabric._resweepSeconds = None
        self.fabric.cut("a")
        self.fabric.heal("a")
        self.pump(3600.0)
        self.assertNotIn("cleared", {what for what, _kind, _where in self.output()})
        self.fabric.sweep()
        self.pump(1200.0)
        self.assertEqual(set(self.poller.firmware), {self.fabric.node("left").guid})

    def test_ownLinkMeanwhile(self) -> None:
        """A survey during which the local link goes down is repeated when that is up again."""
        routes: Deferred[list[Finding]] = Deferred()
        patched = self.patch(surveyor, "routeFindings", lambda *args: routes)
        self.started()
        self.pump(2 * surveyor.SETTLE_SECONDS + 10.0)
        self.fabric.cut("a")
        self.pump(60.0)
        patched.restore()
        routes.callback([])
        self.pump(60.0)
        self.assertEqual((self.surveyor.surveys, self.poller.linear), (0, {}))
        self.fabric.heal("a")
        self.pump(300.0)
        self.assertEqual((self.surveyor.surveys, len(self.poller.linear)), (1, 2))

    def test_portLost(self) -> None:
        """A survey that the loss of the local port has ended is repeated soon after the port's return."""
        self.fabric.wire.latencySeconds = 0.05
        self.started()
        self.surveyor.change(6 * 3600.0)
        self.pump(120.02)
        self.assertEqual(self.surveyor.surveys, 0)
        self.agent.portLost("it is pulled out")
        self.pump(300.0)
        self.assertEqual(self.surveyor.surveys, 1)

    def test_stop(self) -> None:
        """A stopped survey leaves no delayed calls."""
        self.fabric.wire.latencySeconds = 0.05
        self.started(60.0)
        self.pump(120.3)
        self.surveyor.stop()
        self.pump(1000.0)
        self.assertEqual(self.flushLoggedErrors(), [])


class BitErrorTests(PollerTestCase):
    """The limit of symbol errors depends on the speed of the link."""

    limits = ()
    mostBitErrors = 1e-14

    def test_rate(self) -> None:
        """Three errors in 12 minutes are too many at 200 Gbit/s, two are not."""
        self.started()
        self.fabric.setCounters("left", 2, symbolErrorCounter=2)
        self.pump(30.0)
        self.assertEqual(self.output(), [])
        self.fabric.setCounters("left", 2, symbolErrorCounter=3)
        self.pump(30.0)
        self.assertEqual(self.output(), [("raised", "symbol-ber", "left")])
        self.pump(900.0)
        self.assertEqual(self.output(), [("cleared", "symbol-ber", "left")])
