"""Statistics of samples."""

from __future__ import annotations

import statistics
from fractions import Fraction
from math import ceil

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.pingpong.statistics import Samples

NANOSECONDS = st.integers(0, 1 << 62)
SEVERAL = st.lists(st.one_of(NANOSECONDS, st.integers(0, 50)), min_size=1, max_size=300)
SHARES = st.fractions(0, 1)


class ExactTests(SynchronousTestCase):
    """Few samples, which are stored exactly."""

    @given(SEVERAL, SHARES)
    def test_percentiles(self, values: list[int], share: Fraction) -> None:
        """A percentile is the smallest sample that this fraction of samples does not exceed."""
        samples = Samples(values)
        self.assertEqual(samples._count, 0)
        (found,) = samples.percentiles(share)
        self.assertEqual(found, sorted(values)[max(1, ceil(share * len(values))) - 1])

    @given(SEVERAL)
    def test_summaryIsThatOfSamples(self, values: list[int]) -> None:
        summary = Samples(values).summary()
        extent = (len(values), min(values), max(values))
        self.assertEqual((summary.count, summary.minimum, summary.maximum), extent)
        for found, right in (
            (summary.mean, statistics.fmean(values)),
            (summary.deviation, statistics.pstdev(values)),
        ):
            self.assertLessEqual(abs(found - right), right * 1e-12)
        self.assertLessEqual(summary.median, summary.p90)
        self.assertLessEqual(summary.p90, summary.p99)
        self.assertLessEqual(summary.p99, summary.p999)

    @given(SEVERAL, st.integers(1, 40))
    def test_histogram(self, values: list[int], bins: int) -> None:
        """Each sample is in one bin; bins are adjacent and have one width, except the last one."""
        found = Samples(values).histogram(bins)
        self.assertEqual(sum(bin.count for bin in found), len(values))
        self.assertEqual([bin.high for bin in found[:-1]], [bin.low for bin in found[1:]])
        for bin in found:
            self.assertEqual(bin.count, sum(bin.low <= value < bin.high for value in values))
        self.assertLessEqual(len(found), bins + 1)
        self.assertLessEqual(len({bin.high - bin.low for bin in found[:-1]}), 1)

    def test_known(self) -> None:
        """The percentiles of 1 to 1000 are correct."""
        summary = Samples(range(1, 1001)).summary()
        self.assertEqual((summary.median, summary.p90, summary.p99, summary.p999), (500, 900, 990, 999))
        self.assertEqual(summary.mean, 500.5)

    def test_withoutSamplesThereAreNoStatistics(self) -> None:
        self.assertRaises(ValueError, Samples().summary)


class RoughTests(SynchronousTestCase):
    """Many samples, which are stored approximately."""

    @given(SEVERAL, SHARES)
    def test_percentiles(self, values: list[int], share: Fraction) -> None:
        """A percentile is correct within 0.05 %."""
        samples = Samples(values, exact=20)
        (found,) = samples.percentiles(share)
        right = sorted(values)[max(1, ceil(share * len(values))) - 1]
        self.assertLessEqual(abs(found - right), right * 0.0005)
        self.assertEqual(not samples._count, len(values) <= 20)

    @given(SEVERAL)
    def test_sumsAndExtremesAreExact(self, values: list[int]) -> None:
        rough, exact = Samples(values, exact=7).summary(), Samples(values).summary()
        for name in ("count", "minimum", "maximum", "mean", "deviation"):
            self.assertEqual(getattr(rough, name), getattr(exact, name), name)

    @given(SEVERAL)
    def test_histogram(self, values: list[int]) -> None:
        """Each sample is in one bin."""
        found = Samples(values, exact=7).histogram()
        self.assertEqual(sum(bin.count for bin in found), len(values))

    def test_memoryIsBoundedByRangeOfSamples(self) -> None:
        samples = Samples(exact=1000)
        for index in range(100_000):
            samples.add(1_000_000 + index * 7919 % 1_000_003)
        self.assertEqual(len(samples), 100_000)
        self.assertLessEqual(len(samples._samples), 1000)
        self.assertLessEqual(len(samples._counts), 1025)
