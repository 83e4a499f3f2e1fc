"""C{txrdma smc-stats}: statistics of C{smc:} endpoints, per process of this user and in total."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import partial
from typing import Any

from txrdma.commands.common.counted import number, withSums
from txrdma.commands.common.tables import lines, size
from txrdma.commands.common.watching import entriesBy, processTable, watch, WatchingOptions
from txrdma.smc.status.control import NAMESPACE
from txrdma.unix.answers import IUNIXReactor


class CommandOptions(WatchingOptions):
    """Options of C{txrdma smc-stats}: interval and timeout."""

    longdesc = (
        "Show SMC-R statistics since process start, for each process of this user and in total: "
        "connections by mode, fallbacks by reason, bytes, writes and reads by size, number and duration "
        "of waits for buffer space, and allocated buffers. With --watch, the first report shows totals, "
        "and each later one rates per second."
    )


def entriesOf(answers: Sequence[dict[str, Any]]) -> list[dict[str, Any]]:
    """Return entries for JSON and tables: one for each process."""
    return entriesBy(answers, lambda answer: [answer["statistics"]] if "statistics" in answer else [])


def _counts(counts: Mapping[str, Mapping[str, float]]) -> Iterator[str]:
    """Yield a line for each outer name with its nonzero counts."""
    for outer, inner in sorted(counts.items()):
        parts = [f"{number(count)} {name}" for name, count in sorted(inner.items()) if count]
        if parts:
            yield f"{outer}: {', '.join(parts)}"


def _sizes(counts: Mapping[str, float]) -> Iterator[str]:
    for bound, count in counts.items():
        if count:
            where = f"up to {size(int(bound))}" if bound.isdigit() else "larger"
            yield f"  {where}: {number(count)}"


def _direction(counters: Mapping[str, Any], verb: str) -> str:
    parts = [f"{size(int(counters['bytes']))} in {number(counters[verb])} {verb}", *_sizes(counters["sizes"])]
    parts.append(f"CDC messages: {number(counters['messages'])}")
    if counters.get("blocks"):
        parts.append(
            f"waited for buffer space: {number(counters['blocks'])} times, {counters['blockedSeconds']:.3f} s"
        )
    return lines(*parts)


def _cells(entry: dict[str, Any]) -> tuple[str, ...]:
    counters, gauges = entry["counters"], entry["gauges"]
    return (
        lines(
            *(f"now {line}" for line in _counts(gauges["connections"])),
            *(f"made {line}" for line in _counts(counters["connections"])),
            *(f"fell back, {line}" for line in _counts(counters["fallbacks"])),
            *(f"refused, {reason}: {number(n)}" for reason, n in counters["refused"].items() if n),
            f"{gauges['linkGroups']} link groups, {gauges['links']} links",
        ),
        _direction(counters["sent"], "writes"),
        _direction(counters["received"], "reads"),
        lines(
            *(
                f"{gauges['ringsUsed'].get(bound, 0)} of {count} rings of {size(int(bound))}"
                for bound, count in gauges["rings"].items()
            ),
            f"{size(gauges['ringBytesUsed'])} of {size(gauges['ringBytes'])} in use",
            f"{size(gauges['ringBytesUnread'])} unread",
        ),
    )


statisticsTable = partial(processTable, ("connections", "sent", "received", "buffers"), _cells, isRated=True)


async def run(reactor: IUNIXReactor, options: CommandOptions) -> None:
    """Run C{txrdma smc-stats}, once or repeatedly."""
    empty = "No process of yours has used an smc: endpoint."
    await watch(reactor, options, NAMESPACE, entriesOf, statisticsTable, empty, withSums)
