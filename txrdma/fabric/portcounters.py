"""
Counters of one port over time: their growth, their resets and their rates.

Follows InfiniBand Architecture vol. 1, 16.1.3.5 (PortCounters) and 16.1.4.11 (PortCountersExtended): a
counter stops at its highest value until it is set to zero. None of them wraps: a value that is lower than
before was set to zero in between, by another program or by a restart of its node.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from math import inf
from operator import add, sub
from typing import Final

_STUCK: Final = 0xFFFF_FFFF
"""Value at which firmware leaves counters of 64 bits, too, when it feeds them from counters of 32 bits."""

_FASTEST: Final = 1e11
"""Largest plausible growth of a counter per second; a link of 12 lanes of XDR sends 7.5e10 words."""

_TRAFFIC: Final = ("Data", "Pkts")
"""Ends of the names of counters of traffic."""


class CounterLayout:
    """
    Order, widths and units of the counters in a reading.

    @ivar names: names of the counters, in the order of a reading's values.
    @ivar indices: index of each counter, by its name.
    """

    __slots__ = ("_full", "_others", "_traffic", "_units", "indices", "names", "nothing")

    def __init__(self, bits: Mapping[str, int], units: Mapping[str, int] | None = None) -> None:
        """
        @param bits: width of each counter, by its name, in the order of a reading's values.
        @param units: units of the counters, if not 1: 4 for data, which is counted in words of 4 octets.
        """
        self.names = tuple(bits)
        self.indices = {name: index for index, name in enumerate(bits)}
        self.nothing = [0] * len(bits)
        self._full = tuple((1 << width) - 1 for width in bits.values())
        self._units = tuple((units or {}).get(name, 1) for name in bits)
        self._traffic = tuple(index for name, index in self.indices.items() if name.endswith(_TRAFFIC))
        self._others = tuple(index for index in self.indices.values() if index not in self._traffic)

    def unit(self, name: str) -> int:
        """Return the unit of a counter: 4 octets for data, else 1."""
        return self._units[self.indices[name]]

    def isFull(self, index: int, value: int) -> bool:
        """Return whether a value is the maximum, at which the counter stops."""
        full = self._full[index]
        return value == full or (value == _STUCK and full > _STUCK)

    def beganAnew(self, before: Sequence[int], values: Sequence[int]) -> bool:
        """
        Return whether counters may all have been set to zero between two readings: those of traffic are
        lower, and another one, if any had counted, has changed.
        """
        others = [index for index in self._others if before[index]]
        return all(values[index] < before[index] for index in self._traffic if before[index]) and (
            not others or any(values[index] != before[index] for index in others)
        )


def intervalClock(seconds: Callable[[], float]) -> Callable[[], float]:
    """Return the clock for intervals beside a clock: its C{steadySeconds}, which is never set, or itself."""
    steady: Callable[[], float] = getattr(seconds, "steadySeconds", seconds)
    return steady


class Meter:
    """
    The last reading of one port's counters, and their growth from reading to reading.

    Counters are only read, never set to zero, since other programs may read them, too.

    @ivar layout: order of the values in readings.
    @ivar values: values of the last reading; C{()} before the first.
    @ivar readAt: time of the last reading.
    @ivar seconds: time between the last two readings; 0 before the second.
    @ivar grown: growth of each counter between the last two readings. After a reset, or at the counter's
        maximum, it is the smallest possible growth; 0 if it is more than any link can carry.
    @ivar resetAt: time of the last reading with a counter lower than before; minus infinity without one.
    @ivar isSilent: whether a later attempt to read the counters had no answer.
    """

    __slots__ = (
        *("_first", "_intervalAt", "_isAnew", "grown", "isSilent", "layout", "readAt", "resetAt"),
        *("seconds", "values"),
    )

    def __init__(self, layout: CounterLayout) -> None:
        self.layout = layout
        self.values: tuple[int, ...] = ()
        self.readAt = self._intervalAt = -inf
        self.seconds = 0.0
        self.grown = layout.nothing
        self._first: Sequence[int] = ()
        self.resetAt = -inf
        self._isAnew = False
        self.isSilent = False

    def read(self, values: tuple[int, ...], now: float, intervalNow: float | None = None) -> bool:
        """
        Store a reading of all counters.

        @param intervalNow: time of a clock that is never set, for C{seconds}; None if C{now} is one.
        @return: whether a counter has grown since the previous reading.
        """
        before, self.values = self.values, values
        intervalNow = now if intervalNow is None else intervalNow
        self.seconds = intervalNow - self._intervalAt if before else 0.0
        self.readAt, self._intervalAt = now, intervalNow
        self.isSilent = False
        if not before:
            self._first = values
        if not before or values == before:
            self.grown = self.layout.nothing
            return False
        grown = self.grown = list(map(sub, values, before))
        isReset, most = min(grown) < 0, _FASTEST * self.seconds or inf
        if not isReset and max(grown) <= most:
            return True
        counted = map(sub, before, self._first)
        grown = [value if more < 0 else more for value, more in zip(values, grown, strict=True)]
        self.grown = [more if more <= most else 0 for more in grown]
        self._first = list(map(sub, values, map(add, counted, self.grown)))  # as if nothing had been reset
        if isReset:
            self.resetAt = now
            self._isAnew = self.layout.beganAnew(before, values)
        return any(self.grown)

    @property
    def isAnew(self) -> bool:
        """Whether no counter has kept its value between the last two readings: zero before, or reset."""
        if self.resetAt == self.readAt:
            return self._isAnew
        return all(value == more for value, more in zip(self.values, self.grown, strict=True))

    @property
    def counted(self) -> list[int]:
        """Return the growth of each counter since the first reading."""
        return list(map(sub, self.values, self._first)) if self.values else self.layout.nothing

    def full(self, names: Iterable[str]) -> tuple[str, ...]:
        """Return those of these counters that are at their maximum."""
        layout, values = self.layout, self.values
        several = ((name, layout.indices.get(name)) for name in names)
        return tuple(name for name, at in several if at is not None and layout.isFull(at, values[at]))

    def missed(self) -> None:
        """Record that a reading had no answer: there are no rates until the next one."""
        self.isSilent = True

    def value(self, name: str) -> int | None:
        """
        Return the last value of a counter; data in octets.

        @return: None if unknown: no answer, no such counter, or data in a counter at its maximum.
        """
        index = self.layout.indices.get(name)
        if index is None or self.isSilent or not self.values:
            return None
        value, unit = self.values[index], self.layout.unit(name)
        return None if unit != 1 and self.layout.isFull(index, value) else value * unit

    def rate(self, name: str) -> float | None:
        """
        Return the growth of a counter per second between the last two readings; data in octets.

        @return: None if unknown: fewer than two readings, a gap, no such counter, or one at its maximum.
        """
        index = self.layout.indices.get(name)
        if index is None or self.isSilent or self.seconds <= 0:
            return None
        if self.layout.isFull(index, self.values[index]):
            return None
        return self.grown[index] * self.layout.unit(name) / self.seconds

    def total(self, name: str) -> int:
        """Return the growth of a counter since the first reading, data in octets; 0 without readings."""
        index = self.layout.indices.get(name)
        return 0 if index is None else self.counted[index] * self.layout.unit(name)


def hasRestarted(meters: Iterable[Meter]) -> bool:
    """
    Return whether the last readings of all ports of a node show that it has restarted: all counters of all
    ports began anew. A program that clears error counters, or the counters of one port, leaves others
    unchanged.
    """
    known = [meter for meter in meters if meter.values and not meter.isSilent]
    return any(meter.resetAt == meter.readAt for meter in known) and all(meter.isAnew for meter in known)
