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


def _isLower(new: Numbers, old: Numbers) -> bool:
    """Return whether a counter is lower than before."""
    pairs = ((value, old[name]) for name, value in new.items() if name in old)
    return any(_isLower(*pair) if isinstance(pair[0], Mapping) else pair[0] < pair[1] for pair in pairs)


class CounterRates:
    """Converts the counters of two successive reports of a process into rates per second."""

    def __init__(self) -> None:
        self._before: dict[object, tuple[float, Numbers]] = {}

    def since(self, entries: Sequence[dict[str, Any]], now: float) -> list[dict[str, Any]]:
        """
        Return entries with rates since the last report of their process, without new processes.

        A process that does not answer is compared with its last report when it answers again. If a counter is
        lower than before, another process has the PID now.

        @param now: time in seconds.
        """
        before, self._before = self._before, {}
        found = []
        for each in entries:
            pid, counters = each["pid"], each.get("counters")
            at, known = before.get(pid, (now, {}))
            if counters is None:
                found.append(each)
                if pid in before:
                    self._before[pid] = at, known
                continue
            self._before[pid] = now, counters
            if now > at and not _isLower(counters, known):
                rates = differences(counters, known, now - at)
                found.append({**each, "counters": rates, "seconds": round(now - at, 3)})
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
