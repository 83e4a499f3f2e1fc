"""
Counters of processes: sums over processes, and rates between two reports.

Counters are dictionaries of numbers and of such dictionaries.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final

ALL: Final = "all"
"""The label of sums over all processes, in place of a PID."""

Numbers = Mapping[str, Any]


def added(many: Iterable[Numbers]) -> dict[str, Any]:
    """Return the sum of counters, for each name."""
    total: dict[str, Any] = {}
    for each in many:
        for name, value in each.items():
            if isinstance(value, Mapping):
                total[name] = added([total.get(name, {}), value])
            else:
                total[name] = total.get(name, 0) + value
    return total


def differences(new: Numbers, old: Numbers, seconds: float) -> dict[str, Any]:
    """Return rates: the differences of new and old counters, divided by the seconds between them."""
    return {
        name: differences(value, old.get(name, {}), seconds)
        if isinstance(value, Mapping)
        else (value - old.get(name, 0)) / seconds
        for name, value in new.items()
    }


class CounterRates:
    """Converts the counters of two successive reports into rates per second."""

    def __init__(self) -> None:
        self._before: dict[object, Numbers] = {}
        self._at = 0.0

    def since(self, entries: Sequence[dict[str, Any]], now: float) -> list[dict[str, Any]]:
        """Return entries with rates since the last report, without new processes. Times are in seconds."""
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


def withSums(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add an entry with sums if several processes have counters."""
    names = {"counters", "gauges"}
    counted = [each for each in entries if names <= each.keys()]
    if len(counted) < 2:
        return entries
    sums = {name: added(each[name] for each in counted) for name in sorted(names)}
    return [*entries, {"pid": ALL, "command": [], **sums}]


def number(value: float) -> str:
    """Format a count or a rate."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
