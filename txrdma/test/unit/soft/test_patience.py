"""
Tests for L{txrdma.soft.core.roundtrip}.
"""

from __future__ import annotations

import math

from hypothesis import example, given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.times import ackTimeoutSeconds
from txrdma.soft.core.roundtrip import FIRST_TIMEOUT, LONGEST_TIMEOUT, RetryTimer, RoundTrip, SHORTEST_TIMEOUT

SECONDS = st.floats(0, 5, allow_subnormal=False)


class RoundTripTests(SynchronousTestCase):
    """L{RoundTrip} measures what is sent once, and waits accordingly (RFC 6298)."""

    def setUp(self) -> None:
        self.trip = RoundTrip()
        self.now = 0.0
        self.end = 0

    def measure(self, *samples: float) -> float:
        """Send a packet for each sample, and have it acknowledged after so many seconds."""
        for seconds in samples:
            self.end += 1
            self.trip.sent(self.end, self.now)
            self.now += seconds
            self.trip.acknowledged(self.end, self.now)
        return self.trip.timeout

    def test_first(self) -> None:
        """Before anything is measured there is a guess; the first sample counts three times (2.1, 2.2)."""
        self.assertEqual(self.trip.timeout, FIRST_TIMEOUT)
        self.assertAlmostEqual(self.measure(0.2), 0.2 + 4 * 0.1)

    def test_second(self) -> None:
        """Later samples change variation and mean by a quarter and an eighth (2.3)."""
        timeout = self.measure(0.2, 0.1)
        self.assertAlmostEqual(timeout, (0.2 * 7 / 8 + 0.1 / 8) + 4 * (0.1 * 3 / 4 + 0.1 / 4))

    @given(delay=st.floats(1e-6, 0.9))
    def test_stable(self, delay: float) -> None:
        """Where every round trip is the same the timeout comes near it, but never below it."""
        self.setUp()
        for _ in range(100):
            self.assertGreater(self.measure(delay), delay)
        self.assertLess(self.trip.timeout, delay + 1.01 * SHORTEST_TIMEOUT)

    @given(
        calls=st.lists(
            st.one_of(SECONDS, st.sampled_from(("expired", "answered", "duplicateAcknowledged", "rewound")))
        )
    )
    def test_bounds(self, calls: list[float | str]) -> None:
        """Whatever happens the timeout is no shorter than a reactor's turn and no longer than a second."""
        self.setUp()
        for call in calls:
            if isinstance(call, str):
                getattr(self.trip, call)()
            else:
                self.measure(call)
            self.assertTrue(SHORTEST_TIMEOUT <= self.trip.timeout <= LONGEST_TIMEOUT)

    @given(samples=st.lists(SECONDS, max_size=10))
    def test_doubles(self, samples: list[float]) -> None:
        """Each silence doubles the timeout, up to a second; an answer makes it what it was."""
        self.setUp()
        usual = before = self.measure(*samples)
        for _ in range(10):
            self.trip.expired()
            self.assertEqual(self.trip.timeout, min(2 * before, LONGEST_TIMEOUT))
            before = self.trip.timeout
        self.trip.answered()
        self.assertEqual(self.trip.timeout, usual)

    def test_sentAgain(self) -> None:
        """What was sent again measures nothing: the first one may be acknowledged (Karn's rule)."""
        usual = self.measure(0.001)
        self.trip.sent(10, self.now)
        self.trip.rewound()
        self.trip.acknowledged(10, self.now + 0.5)
        self.assertEqual(self.trip.timeout, usual)

    def test_oneAtATime(self) -> None:
        """The packet that is measured is acknowledged by what acknowledges those behind it, too."""
        self.trip.sent(5, 0.0)
        self.trip.sent(9, 0.15)
        self.trip.acknowledged(4, 0.16)
        self.assertEqual(self.trip.timeout, FIRST_TIMEOUT)
        self.trip.acknowledged(9, 0.2)
        self.assertAlmostEqual(self.trip.timeout, 0.2 + 4 * 0.1)

    def test_longerWay(self) -> None:
        """Two acknowledgements of one packet keep the timeout doubled, until the longer way is measured."""
        usual = self.measure(*[0.001] * 50)
        self.trip.duplicateAcknowledged()
        self.assertEqual(self.trip.timeout, usual)
        for _ in range(6):
            self.trip.expired()
        self.trip.answered()
        self.trip.duplicateAcknowledged()
        self.assertEqual(self.trip.timeout, 64 * usual)
        timeout = self.measure(0.3)
        self.assertTrue(0.3 < timeout < 64 * usual)
        self.trip.duplicateAcknowledged()
        self.assertEqual(self.trip.timeout, timeout)

    def test_sleeper(self) -> None:
        """An acknowledgement that this process has slept over counts for a second at most."""
        self.measure(*[0.001] * 50)
        self.assertEqual(self.measure(1e6), LONGEST_TIMEOUT)
        self.assertLess(self.measure(*[0.001] * 50), 0.02)


class PatienceTests(SynchronousTestCase):
    """L{RetryTimer} ends as the attributes say, whatever the round trip is."""

    @given(timeout=st.integers(1, 22), retryCount=st.integers(0, 7), delay=st.floats(1e-5, 2))
    def test_end(self, timeout: int, retryCount: int, delay: float) -> None:
        """The end comes C{retryCount} + 1 timeouts after the last progress, and as many tries before it."""
        patience = RetryTimer(timeout, retryCount)
        patience.begin(0.0)
        patience.roundTrip.sent(1, 0.0)
        patience.progressed(1, delay)
        seconds = max(ackTimeoutSeconds(timeout), SHORTEST_TIMEOUT)
        now, tries = delay, 0
        while not patience.isExpired(deadline := patience.deadline()):
            self.assertTrue(now < deadline <= now + seconds)
            now = deadline
            patience.tried()
            patience.resent(now)
            tries += 1
        self.assertAlmostEqual(deadline, delay + seconds * (retryCount + 1))
        self.assertGreaterEqual(tries, retryCount)

    @given(timeout=st.integers(20, 31), retryCount=st.integers(1, 7), delay=st.floats(1e-5, 2))
    def test_few(self, timeout: int, retryCount: int, delay: float) -> None:
        """A silent peer is tried about once a second, however long the patience is."""
        patience = RetryTimer(timeout, retryCount)
        patience.begin(0.0)
        patience.roundTrip.sent(1, 0.0)
        patience.progressed(1, delay)
        tries, now = 0, delay
        while now < delay + 120 and not patience.isExpired(now):
            now = patience.deadline()
            patience.tried()
            patience.resent(now)
            tries += 1
        self.assertLess(tries, now - delay + 10)

    def test_never(self) -> None:
        """The timeout of code 0 has no end, but tries, unless there are no retries at all."""
        patience = RetryTimer(0, 1)
        for _ in range(1000):
            self.assertFalse(patience.isExpired(1e9))
            self.assertLess(patience.deadline(), math.inf)
            patience.tried()
        self.assertEqual(RetryTimer(0, 0).deadline(), math.inf)

    @given(timeout=st.integers(1, 20), retryCount=st.integers(1, 7), slept=st.floats(0, 1e4))
    @example(timeout=1, retryCount=1, slept=0.015625)  # a moment before the end
    def test_slept(self, timeout: int, retryCount: int, slept: float) -> None:
        """A process that was busy until all was over makes its tries, and waits after the last one."""
        patience = RetryTimer(timeout, retryCount)
        patience.begin(0.0)
        now, tries = slept, 0
        while not patience.isExpired(now):
            patience.tried()
            patience.resent(now)
            tries += 1
            now = max(now, patience.deadline())
        self.assertGreaterEqual(tries, retryCount)
        end = max(ackTimeoutSeconds(timeout), SHORTEST_TIMEOUT) * (retryCount + 1)
        self.assertGreaterEqual(now, slept + SHORTEST_TIMEOUT if slept > end else end)

    def test_moved(self) -> None:
        """By another path all tries are left, and the round trip is not known."""
        patience = RetryTimer(14, 1)
        patience.roundTrip.sent(1, 0.0)
        patience.progressed(1, 0.001)
        self.assertLess(patience.deadline(), 0.02)
        patience.moved(1.0)
        self.assertAlmostEqual(patience.deadline(), 1.0 + ackTimeoutSeconds(14))
