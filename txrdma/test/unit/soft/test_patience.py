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
    """L{RoundTrip} measures round trips and derives timeouts (RFC 6298)."""

    def setUp(self) -> None:
        self.trip = RoundTrip()
        self.now = 0.0
        self.end = 0

    def measure(self, *samples: float) -> float:
        """Send a packet for each sample, acknowledged after this many seconds."""
        for seconds in samples:
            self.end += 1
            self.trip.sent(self.end, self.now)
            self.now += seconds
            self.trip.acknowledged(self.end, self.now)
        return self.trip.timeout

    def test_firstSampleInitializesEstimate(self) -> None:
        self.assertEqual(self.trip.timeout, FIRST_TIMEOUT)
        self.assertAlmostEqual(self.measure(0.2), 0.2 + 4 * 0.1)

    def test_laterSamplesSmooth(self) -> None:
        timeout = self.measure(0.2, 0.1)
        self.assertAlmostEqual(timeout, (0.2 * 7 / 8 + 0.1 / 8) + 4 * (0.1 * 3 / 4 + 0.1 / 4))

    @given(delay=st.floats(1e-6, 0.9))
    def test_stableRoundTripConvergesFromAbove(self, delay: float) -> None:
        self.setUp()
        for _ in range(100):
            self.assertGreater(self.measure(delay), delay)
        self.assertLess(self.trip.timeout, delay + 1.01 * SHORTEST_TIMEOUT)

    @given(
        calls=st.lists(
            st.one_of(SECONDS, st.sampled_from(("expired", "answered", "duplicateAcknowledged", "rewound")))
        )
    )
    def test_timeoutBounds(self, calls: list[float | str]) -> None:
        self.setUp()
        for call in calls:
            if isinstance(call, str):
                getattr(self.trip, call)()
            else:
                self.measure(call)
            self.assertTrue(SHORTEST_TIMEOUT <= self.trip.timeout <= LONGEST_TIMEOUT)

    @given(samples=st.lists(SECONDS, max_size=10))
    def test_silenceDoublesUntilAnswer(self, samples: list[float]) -> None:
        self.setUp()
        usual = before = self.measure(*samples)
        for _ in range(10):
            self.trip.expired()
            self.assertEqual(self.trip.timeout, min(2 * before, LONGEST_TIMEOUT))
            before = self.trip.timeout
        self.trip.answered()
        self.assertEqual(self.trip.timeout, usual)

    def test_retransmittedPacketIsNotMeasured(self) -> None:
        usual = self.measure(0.001)
        self.trip.sent(10, self.now)
        self.trip.rewound()
        self.trip.acknowledged(10, self.now + 0.5)
        self.assertEqual(self.trip.timeout, usual)

    def test_cumulativeAcknowledgementMeasures(self) -> None:
        self.trip.sent(5, 0.0)
        self.trip.sent(9, 0.15)
        self.trip.acknowledged(4, 0.16)
        self.assertEqual(self.trip.timeout, FIRST_TIMEOUT)
        self.trip.acknowledged(9, 0.2)
        self.assertAlmostEqual(self.trip.timeout, 0.2 + 4 * 0.1)

    def test_duplicateAcknowledgementsKeepTimeoutDoubled(self) -> None:
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

    def test_sampleIsLimitedToOneSecond(self) -> None:
        self.measure(*[0.001] * 50)
        self.assertEqual(self.measure(1e6), LONGEST_TIMEOUT)
        self.assertLess(self.measure(*[0.001] * 50), 0.02)

    def test_clockThatIsSetBackMeasuresNothing(self) -> None:
        for samples in ((), (0.001,) * 50):
            self.setUp()
            usual, expected = self.measure(*samples), self.trip.expected
            self.assertEqual(self.measure(-3600.0), usual)
            self.assertEqual(self.trip.expected, expected)


class PatienceTests(SynchronousTestCase):
    """L{RetryTimer} gives up when the attributes require it, with any round trip."""

    @given(timeout=st.integers(1, 22), retryCount=st.integers(0, 7), delay=st.floats(1e-5, 2))
    def test_endAfterRetryCount(self, timeout: int, retryCount: int, delay: float) -> None:
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
    def test_silentPeerIsTriedOncePerSecond(self, timeout: int, retryCount: int, delay: float) -> None:
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

    def test_timeoutZeroNeverEnds(self) -> None:
        patience = RetryTimer(0, 1)
        for _ in range(1000):
            self.assertFalse(patience.isExpired(1e9))
            self.assertLess(patience.deadline(), math.inf)
            patience.tried()
        self.assertEqual(RetryTimer(0, 0).deadline(), math.inf)

    @given(timeout=st.integers(1, 20), retryCount=st.integers(1, 7), slept=st.floats(0, 1e4))
    @example(timeout=1, retryCount=1, slept=0.015625)  # shortly before the end
    def test_sleptProcessStillRetries(self, timeout: int, retryCount: int, slept: float) -> None:
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

    def test_migrationResetsEstimateAndRetries(self) -> None:
        patience = RetryTimer(14, 1)
        patience.roundTrip.sent(1, 0.0)
        patience.progressed(1, 0.001)
        self.assertLess(patience.deadline(), 0.02)
        patience.moved(1.0)
        self.assertAlmostEqual(patience.deadline(), 1.0 + ackTimeoutSeconds(14))
