"""
Counters that processes tell of: how they are asked for, sums over processes, rates between two looks.

They are dictionaries of numbers, some of them in dictionaries.
"""

from __future__ import annotations

from collections.abc import Callable, Coroutine, Iterable, Mapping, Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred, gatherResults

from txrdma.unix.answers import askProcess, IReactor, processesIn

ALL: Final = "all"
"""The name under which sums over all processes are shown."""

Numbers = Mapping[str, Any]

Ask = Callable[[], Coroutine[Deferred[Any], Any, list[dict[str, Any]]]]
"""Function that asks processes, and returns an entry of each."""


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


async def askedOfAll(reactor: IReactor, namespace: str, timeout: float) -> list[dict[str, Any]]:
    """
    Ask every process of our user that answers in a namespace for its counters and gauges.

    @param timeout: seconds for each of them.
    @return: an entry of each; one that does not answer has an C{error} in the place of these.
    """
    return await gatherResults(
        [Deferred.fromCoroutine(_asked(reactor, namespace, pid, timeout)) for pid in processesIn(namespace)]
    )


async def _asked(reactor: IReactor, namespace: str, pid: int, timeout: float) -> dict[str, Any]:
    try:
        answer = await askProcess(reactor, namespace, pid, timeout)
        return {
            "pid": pid,
            "command": [str(word) for word in answer["command"]],
            "counters": dict(answer["counters"]),
            "gauges": dict(answer["gauges"]),
        }
    except Exception as error:  # whatever it is, the other processes' answers are still wanted
        return {"pid": pid, "error": f"no answer: {error or type(error).__name__}"}


def withSums(entries: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Entries of processes, and one more with their sums where several have counted."""
    counted = [each for each in entries if "error" not in each]
    if len(counted) < 2:
        return entries
    sums = {name: added(each[name] for each in counted) for name in ("counters", "gauges")}
    return [*entries, {"pid": ALL, "command": [], **sums}]


def thenRates(ask: Ask, seconds: Callable[[], float]) -> Ask:
    """
    Wrap a question so that it gives counters the first time, and rates since the time before afterwards.

    @param seconds: returns the present time in seconds.
    """
    rates = Rates()
    isFirst = True

    async def asked() -> list[dict[str, Any]]:
        nonlocal isFirst
        found = await ask()
        changed = rates.since(found, seconds())
        found, isFirst = (found if isFirst else changed), False
        return found

    return asked


def number(value: float) -> str:
    """A count, or a rate, for people."""
    return f"{value:,}" if isinstance(value, int) else f"{value:,.1f}"
