"""
Counters over time: growth, resets, counters that are full, gaps, windows and back-off.
"""

from __future__ import annotations

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.fabric.portcounters import CounterLayout, hasRestarted, Meter
from txrdma.kit.backoff import BackOff
from txrdma.monitor.diagnosis.tallies import Exceeded, Tallies, Tally, TallyLimit

LAYOUT = CounterLayout({"data": 32, "errors": 4, "wide": 64}, {"data": 4, "wide": 4})
FULL = 0xFFFF_FFFF


class MeterTests(SynchronousTestCase):
    """A meter reports the growth of a port's counters, or that it is unknown."""

    def setUp(self) -> None:
        self.meter = Meter(LAYOUT)

    def test_first(self) -> None:
        """The first reading is the baseline: earlier counts are not growth, and there is no rate."""
        self.assertIsNone(self.meter.value("data"))
        self.assertFalse(self.meter.read((100, 7, 100), 10.0))
        self.assertEqual((self.meter.total("errors"), self.meter.rate("errors")), (0, None))
        self.assertEqual(self.meter.value("data"), 400)

    def test_unit(self) -> None:
        """Data is counted in words of 4 octets, independent of the link width; errors are counted singly."""
        self.meter.read((100, 1, 0), 10.0)
        self.assertTrue(self.meter.read((150, 3, 0), 12.0))
        self.assertEqual((self.meter.rate("data"), self.meter.rate("errors")), (100.0, 1.0))
        self.assertEqual((self.meter.total("data"), self.meter.value("data")), (200, 600))

    def test_reset(self) -> None:
        """A lower value means that the counter was reset; its value is the minimum growth since then."""
        self.meter.read((1000, 5, 0), 0.0)
        self.meter.read((30, 6, 0), 10.0)
        self.assertEqual((self.meter.total("data"), self.meter.total("errors")), (120, 1))
        self.assertEqual(self.meter.resetAt, 10.0)
        self.meter.read((40, 6, 0), 20.0)
        self.assertEqual((self.meter.total("data"), self.meter.resetAt), (160, 10.0))

    def test_noWrap(self) -> None:
        """A decreasing 64-bit counter was reset and did not wrap, which would take decades."""
        self.meter.read((0, 0, (1 << 64) - 10), 0.0)
        self.meter.read((0, 0, 5), 1.0)
        self.assertEqual((self.meter.total("wide"), self.meter.resetAt), (20, 1.0))

    def test_stuck(self) -> None:
        """A full 32-bit data counter has neither a value nor a rate."""
        self.meter.read((5, 0, 0), 0.0)
        for second in (1.0, 2.0):
            self.meter.read((FULL, 0, 0), second)
            self.assertEqual((self.meter.rate("data"), self.meter.value("data")), (None, None))
        self.meter.read((50, 0, 0), 3.0)
        self.assertEqual(self.meter.rate("data"), 200.0)

    def test_stuckWide(self) -> None:
        """A 64-bit counter that firmware derives from a 32-bit one is full when that one is."""
        self.meter.read((0, 0, FULL - 1), 0.0)
        self.meter.read((0, 0, FULL), 1.0)
        self.assertIsNone(self.meter.rate("wide"))
        self.meter.read((0, 0, FULL + 1), 2.0)
        self.assertEqual(self.meter.rate("wide"), 4.0)

    def test_fullErrors(self) -> None:
        """Errors are counted until the counter is full, and its value is that of the port."""
        self.meter.read((0, 12, 0), 0.0)
        self.meter.read((0, 15, 0), 1.0)
        self.assertEqual((self.meter.total("errors"), self.meter.value("errors")), (3, 15))
        self.assertIsNone(self.meter.rate("errors"))

    def test_gap(self) -> None:
        """A silent node has no rates and no values; afterwards the rate is the average of the gap."""
        self.meter.read((0, 0, 0), 0.0)
        self.meter.read((10, 0, 0), 1.0)
        self.meter.missed()
        self.assertEqual((self.meter.rate("data"), self.meter.value("data")), (None, None))
        self.meter.read((110, 0, 0), 11.0)
        self.assertEqual(self.meter.rate("data"), 40.0)

    def test_unknown(self) -> None:
        """A counter that a port does not have is unknown, not zero."""
        self.meter.read((0, 0, 0), 0.0)
        self.meter.read((1, 1, 1), 1.0)
        self.assertEqual((self.meter.value("waits"), self.meter.rate("waits")), (None, None))
        self.assertEqual(self.meter.total("waits"), 0)

    def test_sameTime(self) -> None:
        """Two readings at the same time have growth but no rate."""
        self.meter.read((0, 0, 0), 1.0)
        self.meter.read((1, 0, 0), 1.0)
        self.assertEqual((self.meter.total("data"), self.meter.rate("data")), (4, None))

    def test_glitch(self) -> None:
        """Growth beyond that of any link is dropped, and so is the way back."""
        self.meter.read((0, 0, 1000), 0.0)
        self.meter.read((10, 1, (1 << 63) + 1000), 10.0)
        self.assertEqual(
            (self.meter.rate("wide"), self.meter.total("wide"), self.meter.total("data")), (0, 0, 40)
        )
        self.meter.read((20, 1, 1100), 20.0)
        self.assertEqual((self.meter.total("wide"), self.meter.total("data")), (4400, 80))

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
        """
        For any sequence of growth, full counters, resets and silence, a meter never reports more than the
        port has counted.
        """
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
    """All counters of a restarted node begin anew; whoever clears some leaves others as they were."""

    BITS = CounterLayout(
        {"symbolErrorCounter": 16, "portXmitData": 64, "portRcvPkts": 64}, {"portXmitData": 4}
    )

    def restarted(self, *ports: tuple[tuple[int, int, int], tuple[int, int, int]]) -> bool:
        """Return whether two readings of each port of a node show a restart."""
        meters = [Meter(self.BITS) for _ in ports]
        for meter, readings in zip(meters, ports, strict=True):
            for now, values in enumerate(readings):
                meter.read(values, float(now))
        return hasRestarted(meters)

    def test_restart(self) -> None:
        """All counters of all ports are lower, or were zero."""
        self.assertTrue(self.restarted(((3, 900, 90), (40, 5, 1)), ((0, 0, 0), (0, 7, 7))))
        self.assertTrue(self.restarted(((40, 900, 90), (2, 5, 1)), ((0, 800, 80), (1, 0, 0))))

    def test_errorsCleared(self) -> None:
        """Traffic that continues shows that only counters of errors were cleared."""
        self.assertFalse(self.restarted(((3, 900, 90), (0, 905, 91)), ((7, 800, 80), (0, 805, 81))))

    def test_dataCleared(self) -> None:
        """Errors that remain show that only counters of traffic were cleared."""
        self.assertFalse(self.restarted(((3, 900, 90), (3, 5, 1)), ((0, 800, 80), (0, 5, 1))))

    def test_onePort(self) -> None:
        """Another port that counts on shows that only one port was cleared."""
        self.assertFalse(self.restarted(((3, 900, 90), (0, 5, 1)), ((0, 800, 80), (0, 805, 81))))

    def test_nothing(self) -> None:
        """Counters that have only grown, and ports that were not read, show no restart."""
        self.assertFalse(self.restarted(((0, 900, 90), (0, 905, 91))))
        self.assertFalse(hasRestarted([Meter(self.BITS)]))


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

    def test_limits(self) -> None:
        """A port above a limit is reported with its count until the errors have left the window."""
        few, many = TallyLimit("errors", 2, 60.0), TallyLimit("errors", 100, 3600.0)
        tallies: Tallies[str] = Tallies([few, many])
        tallies.add("a", "errors", 2, 0.0)
        tallies.add("b", "other", 500, 0.0)
        self.assertEqual(tallies.exceeded(1.0), [])
        tallies.add("a", "errors", 1, 2.0)
        self.assertEqual(tallies.exceeded(3.0), [Exceeded("a", few, 3)])
        self.assertEqual(tallies.exceeded(62.0), [])
        self.assertEqual(len(tallies), 1)
        self.assertEqual((tallies.exceeded(3700.0), len(tallies)), ([], 0))


class BackOffTests(SynchronousTestCase):
    """Silent nodes are asked at growing intervals."""

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
        """A node that is silent for years is still asked at the longest interval."""
        pace: BackOff[str] = BackOff(1.0, 60.0)
        self.assertEqual({pace.silent("a", 0.0) for _ in range(5000)}, {1.0, 2.0, 4.0, 8.0, 16.0, 32.0, 60.0})
