"""
Counters that processes tell of: sums over processes, rates between two looks.

They are dictionaries of numbers, some of them in dictionaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

Numbers = Mapping[str, Any]


def added(many: Iterable[Numbers]) -> dict[str, Any]:
    """The sum of statistics, number by number."""
    total: dict[str, Any] = {}
    for each in many:
        for name, value in each.items():
            if isinstance(value, Mapping):
                total[name] = added([total.get(name, {}), value])
            else:
                total[name] = total.get(name, 0) + value
    return total


def differences(new: Numbers, old: Numbers, seconds: float) -> dict[str, Any]:
    """Subtract older counters from new ones, and divide by the seconds between the two."""
    return {
        name: differences(value, old.get(name, {}), seconds)
        if isinstance(value, Mapping)
        else (value - old.get(name, 0)) / seconds
        for name, value in new.items()
    }


class Rates:
    """Converts counters of two successive looks into rates per second."""

    def __init__(self) -> None:
        self._before: dict[object, Numbers] = {}
        self._at = 0.0

    def since(self, entries: Sequence[dict[str, Any]], now: float) -> list[dict[str, Any]]:
        """
        Entries of a look with rates instead of counters, without processes that are new since the last look.

        @param now: the time of the look in seconds.
        """
        before, seconds = self._before, now - self._at
        self._before = {each["pid"]: each["counters"] for each in entries if "counters" in each}
        self._at = now
        found = []
        for each in entries:
            if "counters" not in each:
                found.append(each)
            elif each["pid"] in before and seconds > 0:
                rates = differences(each["counters"], before[each["pid"]], seconds)
                found.append({**each, "counters": rates, "seconds": round(seconds, 3)})
        return found


def number(value: float) -> str:
    """A count, or a rate, for people."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
