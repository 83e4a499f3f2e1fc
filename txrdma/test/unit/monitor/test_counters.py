"""Counters over time: growth, resets, counters that are full, gaps, windows and back-off."""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.fabric.portcounters import CounterLayout, hasRestarted, Meter
from txrdma.kit.backoff import BackOff
from txrdma.mad.layouts.capabilities import PerformanceCapability2
from txrdma.mad.layouts.messages import ClassPortInfo
from txrdma.mad.layouts.pma import PerformanceCapability
from txrdma.monitor.diagnosis.tallies import Tallies, Tally, TallyLimit
from txrdma.monitor.reading.attributes import kindOf

LAYOUT = CounterLayout({"data": 32, "errors": 4, "wide": 64}, {"data": 4, "wide": 4})
FULL = 0xFFFF_FFFF


Shown = tuple[int | None, float | None, int]
WIDEST = 1 << 64
GLITCH = (1 << 63) + 1000

RESET = (0, 1000, 5, 0), (10, 30, 6, 0)
STUCK = (1, 0, 0, 0), (2, FULL, 0, 0), (3, FULL, 0, 0)
SHORT = (0, 0, 0, FULL - 1), (1, 0, 0, FULL)
LEAP = (0, 0, 0, 1000), (10, 10, 1, GLITCH)
METERS: tuple[tuple[str, tuple[tuple[int, ...], ...], dict[str, Shown]], ...] = (
    # A reading is a time and the counters' values, or None for a silent node.
    ("earlier counts are no growth", ((10, 100, 7, 100),), {"data": (400, None, 0), "errors": (7, None, 0)}),
    ("growth", ((10, 100, 1, 0), (12, 150, 3, 0)), {"data": (600, 100.0, 200), "errors": (3, 1.0, 2)}),
    ("the value is the least growth", RESET, {"data": (120, 12.0, 120), "errors": (6, 0.1, 1)}),
    ("after a reset", (*RESET, (20, 40, 6, 0)), {"data": (160, 4.0, 160)}),
    ("64 bits do not wrap", ((0, 0, 0, WIDEST - 10), (1, 0, 0, 5)), {"wide": (20, 20.0, 20)}),
    ("full data is unknown", STUCK, {"data": (None, None, 4 * FULL)}),
    ("a reset ends that", (*STUCK, (4, 50, 0, 0)), {"data": (200, 200.0, 4 * FULL + 200)}),
    ("32 bits shown in 64 are full, too", SHORT, {"wide": (None, None, 4)}),
    ("64 bits are not full", (*SHORT, (2, 0, 0, FULL + 1)), {"wide": (4 << 32, 4.0, 8)}),
    ("full errors have a value", ((0, 0, 12, 0), (1, 0, 15, 0)), {"errors": (15, None, 3)}),
    ("a silent node has no values", ((0, 0, 0, 0), (1, 10, 0, 0), ()), {"data": (None, None, 40)}),
    ("the rate is that of the gap", ((1, 10, 0, 0), (), (11, 110, 0, 0)), {"data": (440, 40.0, 400)}),
    ("a port does not have it", ((0, 0, 0, 0), (1, 1, 1, 1)), {"waits": (None, None, 0)}),
    ("in no time there is no rate", ((1, 0, 0, 0), (1, 1, 0, 0)), {"data": (4, None, 4)}),
    ("no link can do that", LEAP, {"wide": (4 * GLITCH, 0.0, 0), "data": (40, 4.0, 40)}),
    ("nor the way back", (*LEAP, (20, 20, 1, 1100)), {"wide": (4400, 440.0, 4400), "data": (80, 4.0, 80)}),
)


class MeterTests(SynchronousTestCase):
    """A meter reports the growth of a port's counters, or that it is unknown."""

    def test_reported(self) -> None:
        """The value, the rate and the total of a counter after some readings."""
        for case, readings, counters in METERS:
            meter = Meter(LAYOUT)
            for reading in readings:
                if reading:
                    meter.read(reading[1:], float(reading[0]))
                else:
                    meter.missed()
            for name, expected in counters.items():
                reported = meter.value(name), meter.rate(name), meter.total(name)
                self.assertEqual(reported, expected, (case, name))

    def test_grown(self) -> None:
        """The first reading is no growth, and others are if a counter has grown."""
        meter = Meter(LAYOUT)
        grown = [meter.read((100, errors, 0), at) for at, errors in ((1.0, 0), (2.0, 0), (3.0, 1))]
        self.assertEqual(grown, [False, False, True])

    STEPS = st.lists(
        st.one_of(
            st.tuples(st.just("grow"), st.integers(0, 3), st.integers(0, FULL // 2)),
            st.sampled_from([("clear", 0, 0), ("read", 0, 0), ("silent", 0, 0)]),
        ),
        max_size=40,
    )

    @settings(max_examples=200, deadline=None)
    @given(STEPS)
    def test_againstAPort(self, steps: list[tuple[str, int, int]]) -> None:
        """For any growth, reset, full counter and silence, a meter reports at most what was counted."""
        meter = Meter(LAYOUT)
        full = (FULL, 15, (1 << 64) - 1)
        port, truth = [0, 0, 0], [0, 0, 0]
        isExact = True
        meter.read((0, 0, 0), 0.0)
        now = 0.0
        for what, errors, words in steps:
            now += 1.0
            if what == "grow":
                for index, more in enumerate((words, errors, words)):
                    truth[index] += more
                    isExact = isExact and port[index] + more <= full[index]
                    port[index] = min(full[index], port[index] + more)
            elif what == "clear":
                isExact = isExact and not any(port)
                port = [0, 0, 0]
            elif what == "silent":
                meter.missed()
                self.assertIsNone(meter.rate("errors"))
            else:
                fell = any(new < old for new, old in zip(port, meter.values, strict=True))
                meter.read((port[0], port[1], port[2]), now)
                self.assertEqual(meter.resetAt == now, fell)
                for name in LAYOUT.names:
                    rate = meter.rate(name)
                    self.assertTrue(rate is None or rate >= 0)
        meter.read((port[0], port[1], port[2]), now + 1.0)
        if isExact:
            self.assertEqual(meter.counted, truth)
        else:
            self.assertTrue(
                all(reported <= real for reported, real in zip(meter.counted, truth, strict=True))
            )


class RestartTests(SynchronousTestCase):
    """All counters of a restarted node start again at 0; after a reset of some, the others continue."""

    BITS = CounterLayout(
        {"symbolErrorCounter": 16, "portXmitData": 64, "portRcvPkts": 64}, {"portXmitData": 4}
    )

    def test_restarts(self) -> None:
        """A node has restarted if no counter of any port contradicts that."""
        for case, ports, isRestart in (
            ("all are lower, or were zero", (((3, 900, 90), (40, 5, 1)), ((0, 0, 0), (0, 7, 7))), True),
            ("so they are", (((40, 900, 90), (2, 5, 1)), ((0, 800, 80), (1, 0, 0))), True),
            ("traffic continues", (((3, 900, 90), (0, 905, 91)), ((7, 800, 80), (0, 805, 81))), False),
            ("errors remain", (((3, 900, 90), (3, 5, 1)), ((0, 800, 80), (0, 5, 1))), False),
            ("another port counts on", (((3, 900, 90), (0, 5, 1)), ((0, 800, 80), (0, 805, 81))), False),
            ("all have only grown", (((0, 900, 90), (0, 905, 91)),), False),
            ("none was read", ((),), False),
        ):
            meters = [Meter(self.BITS) for _ in ports]
            for meter, readings in zip(meters, ports, strict=True):
                for now, values in enumerate(readings):
                    meter.read(values, float(now))
            self.assertEqual(hasRestarted(meters), isRestart, case)


class TallyTests(SynchronousTestCase):
    """Errors of the last minutes, compared with limits."""

    @settings(max_examples=100, deadline=None)
    @given(st.lists(st.tuples(st.floats(0.01, 20), st.integers(1, 5)), max_size=200))
    def test_precise(self, steps: list[tuple[float, int]]) -> None:
        """A tally is within a thirtieth of its window of the exact sum, in a bounded number of parts."""
        tally = Tally(60.0)
        now, seen = 0.0, list[tuple[float, int]]()
        for seconds, count in steps:
            now += seconds
            tally.add(count, now)
            seen.append((now, count))
            reported = tally.sum(now)
            self.assertLessEqual(reported, sum(count for at, count in seen if now - at < 62.0))
            self.assertGreaterEqual(reported, sum(count for at, count in seen if now - at < 58.0))
            self.assertLessEqual(len(tally._parts), 31)

    def test_gap(self) -> None:
        """Errors of a longer time are distributed over it, and removed together."""
        for seconds, at, left in ((30.0, 100.0, 60), (30.0, 145.0, 30), (600.0, 100.0, 6), (600.0, 130.0, 3)):
            tally = Tally(60.0)
            tally.add(60, 100.0, seconds)
            self.assertLessEqual(abs(tally.sum(at) - left), 2)
            tally.remove(60, 100.0)
            self.assertEqual(tally.sum(at), 0)
            self.assertGreaterEqual(min((count for _at, count in tally._parts), default=0), 0)

    def test_limits(self) -> None:
        """A port above a limit is reported with its count until the errors have left the window."""
        few, many = TallyLimit("errors", 2, 60.0), TallyLimit("errors", 100, 3600.0)
        tallies: Tallies[str] = Tallies()
        tallies.change([few, many])
        tallies.add("a", "errors", 2, 0.0)
        tallies.add("b", "other", 500, 0.0)
        self.assertEqual(tallies.exceeded(1.0), [])
        tallies.add("a", "errors", 1, 2.0)
        self.assertEqual(tallies.exceeded(3.0), [("a", few, 3)])
        self.assertEqual(tallies.exceeded(62.0), [])
        self.assertEqual(len(tallies), 1)
        self.assertEqual((tallies.exceeded(3700.0), len(tallies)), ([], 0))

    def test_changed(self) -> None:
        """Errors within a window count for another limit of this window, and not for another window."""
        tallies: Tallies[str] = Tallies()
        tallies.change([TallyLimit("errors", 100, 60.0)])
        tallies.add("a", "errors", 50, 0.0)
        few = TallyLimit("errors", 10, 60.0)
        tallies.change([few])
        self.assertEqual(tallies.exceeded(1.0), [("a", few, 50)])
        self.assertEqual(tallies.since("a", few, -1.0), 50)
        tallies.change([TallyLimit("errors", 10, 90.0)])
        self.assertEqual((tallies.exceeded(1.0), len(tallies)), ([], 0))

    def test_removed(self) -> None:
        """Errors that are removed later count at no time, neither before nor after they leave the window."""
        few = TallyLimit("errors", 2, 60.0)
        tallies: Tallies[str] = Tallies()
        tallies.change([few])
        tallies.add("a", "errors", 2, 0.0)
        tallies.add("a", "errors", 3, 10.0)
        tallies.remove("a", "errors", 3, 10.0)
        tallies.remove("b", "errors", 3, 10.0)
        self.assertEqual(tallies.exceeded(30.0), [])
        tallies.add("a", "errors", 3, 75.0)
        self.assertEqual(tallies.exceeded(75.0), [("a", few, 3)])
        tallies.remove("a", "errors", 2, 0.0)  # they have left the window
        self.assertEqual(tallies.exceeded(75.0), [("a", few, 3)])


class BackOffTests(SynchronousTestCase):
    """Silent nodes are queried at growing intervals."""

    def test_grows(self) -> None:
        """The interval doubles up to the longest one; an answer resets it."""
        pace: BackOff[str] = BackOff(1.0, 5.0)
        self.assertTrue(pace.isDue("a", 0.0))
        self.assertEqual([pace.silent("a", 10.0) for _ in range(4)], [1.0, 2.0, 4.0, 5.0])
        self.assertEqual([pace.isDue("a", now) for now in (14.9, 15.0)], [False, True])
        self.assertTrue(pace.isDue("b", 10.0))
        self.assertEqual((pace.times("a"), len(pace)), (4, 1))
        pace.answered("a")
        self.assertTrue(pace.isDue("a", 10.0))
        self.assertEqual((pace.times("a"), len(pace)), (0, 0))

    def test_forEver(self) -> None:
        """A node that is silent for years is still queried at the longest interval."""
        pace: BackOff[str] = BackOff(1.0, 60.0)
        self.assertEqual({pace.silent("a", 0.0) for _ in range(5000)}, {1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0})


class KindTests(SynchronousTestCase):
    def test_same(self) -> None:
        """Nodes with the same counters have one kind of reading, although other capabilities differ."""
        casts, noCasts = PerformanceCapability.EXTENDED_WIDTH, PerformanceCapability.EXTENDED_WIDTH_NO_IETF
        more = PerformanceCapability2.ADDITIONAL_PORT_COUNTERS_EXTENDED

        def kinds(mask2: int, *masks: int) -> int:
            infos = (ClassPortInfo(capabilityMask=mask, capabilityMask2=mask2) for mask in masks)
            return len({id(kindOf(info)) for info in infos})

        self.assertEqual(kinds(more, casts, noCasts, casts | noCasts), 1)
        self.assertEqual(kinds(0, casts, casts | noCasts), 1)
        self.assertEqual(kinds(0, 0, casts, noCasts, casts | PerformanceCapability.XMIT_WAIT), 4)
