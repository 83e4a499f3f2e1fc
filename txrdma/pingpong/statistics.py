"""
Statistics of samples: percentiles, mean, deviation, histogram.

Samples are whole nanoseconds, so their sums are exact. Percentiles of up to a million samples are exact
(nearest rank); beyond that, samples are counted by their leading eleven bits, with errors of at most 0.05 %.
"""

from __future__ import annotations

from array import array
from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from math import ceil, sqrt
from typing import Final

EXACT: Final = 1 << 20
"""Number of samples that are stored exactly, in 8 MiB."""

_BITS: Final = 11


@dataclass(frozen=True, slots=True)
class Summary:
    """Summary of samples; all values except C{count} are in nanoseconds."""

    count: int
    minimum: int
    median: int
    mean: float
    p90: int
    p99: int
    p999: int
    maximum: int
    deviation: float


@dataclass(frozen=True, slots=True)
class Bin:
    """Number of samples from C{low} up to, but not including, C{high}."""

    low: int
    high: int
    count: int


class Samples:
    """Samples in nanoseconds, stored in bounded memory."""

    def __init__(self, samples: Iterable[int] = (), exact: int = EXACT) -> None:
        """@param exact: number of samples that are stored exactly."""
        self._exact = exact
        self._samples = array("Q")
        self._counts: Counter[int] = Counter()
        self._count = self._total = self._squares = self._minimum = self._maximum = 0
        for sample in samples:
            self.add(sample)

    def __len__(self) -> int:
        return self._count + len(self._samples)

    def add(self, sample: int) -> None:
        """Add a sample."""
        self._samples.append(sample)
        if len(self._samples) > self._exact:
            self._compress()

    def percentiles(self, *shares: Fraction) -> list[int]:
        """Return, for each share from 0 to 1, the smallest sample that this share of them does not exceed."""
        table, count = self._table(), len(self)
        if not count:
            raise ValueError("there are no samples")
        answers = []
        for share in shares:
            left = max(1, ceil(share * count))
            for value, times in table:
                left -= times
                if left <= 0:
                    answers.append(value)
                    break
        return answers

    def summary(self) -> Summary:
        """Return the summary of the samples."""
        median, p90, p99, p999 = self.percentiles(
            Fraction(1, 2), Fraction(9, 10), Fraction(99, 100), Fraction(999, 1000)
        )
        samples, count = self._samples, len(self)
        total = self._total + sum(samples)
        squares = self._squares + sum(sample * sample for sample in samples)
        return Summary(
            count=count,
            minimum=self._least(),
            median=median,
            mean=total / count,
            p90=p90,
            p99=p99,
            p999=p999,
            maximum=self._most(),
            deviation=sqrt(count * squares - total * total) / count,
        )

    def histogram(self, bins: int = 16) -> list[Bin]:
        """Return bins of equal width from the minimum to the 99th percentile, and one for larger samples."""
        least, most = self._least(), self._most()
        (p99,) = self.percentiles(Fraction(99, 100))
        width = max(1, -(-(p99 + 1 - least) // bins))
        edges = list(range(least, p99 + 1, width))
        beyond = edges[-1] + width
        counts = [0] * len(edges)
        left = len(self)
        for value, times in self._table():
            if value < beyond:
                counts[(value - least) // width] += times
                left -= times
        found = [Bin(low, low + width, count) for low, count in zip(edges, counts, strict=True)]
        if left:
            found.append(Bin(beyond, most + 1, left))
        return found

    def _least(self) -> int:
        samples = self._samples
        if not self._count:
            return min(samples)
        return min(self._minimum, min(samples, default=self._minimum))

    def _most(self) -> int:
        return max(self._maximum, max(self._samples, default=0))

    def _table(self) -> Sequence[tuple[int, int]]:
        """Return each value with its count, in ascending order."""
        counts = Counter(self._samples)
        if not self._count:
            return sorted(counts.items())
        counts = self._counts + _rough(counts)
        least, most = self._least(), self._most()
        return sorted((min(max(value, least), most), times) for value, times in counts.items())

    def _compress(self) -> None:
        """Replace the exact samples by counts of their leading bits."""
        samples = self._samples
        least, most = self._least(), self._most()
        self._minimum, self._maximum = least, most
        self._total += sum(samples)
        self._squares += sum(sample * sample for sample in samples)
        self._counts.update(_rough(Counter(samples)))
        self._count += len(samples)
        del samples[:]


def _rough(counts: Counter[int]) -> Counter[int]:
    """Round values to the middle of the range with the same leading bits."""
    rough: Counter[int] = Counter()
    for value, times in counts.items():
        shift = max(0, value.bit_length() - _BITS)
        rough[(value >> shift << shift) + (1 << shift >> 1)] += times
    return rough
