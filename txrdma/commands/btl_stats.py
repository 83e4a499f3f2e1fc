"""C{txrdma btl-stats}: counters of the byte transfer layer, per process of this user and in total."""

from __future__ import annotations

from functools import partial
from typing import Any

from txrdma.btl.status import NAMESPACE
from txrdma.commands.common.counted import number, withSums
from txrdma.commands.common.tables import lines
from txrdma.commands.common.watching import processTable, watch, WatchingOptions
from txrdma.unix.answers import IUNIXReactor


class CommandOptions(WatchingOptions):
    """Options of C{txrdma btl-stats}: interval and timeout."""

    longdesc = (
        "Show the counters of the byte transfer layer in this user's processes, for each process and in "
        "total, by the names of Open MPI's usnic component. With --watch, the first report shows totals, "
        "and each later one rates per second; for maxima, whose names begin with max_, it shows the "
        "increase."
    )


def summed(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Add an entry for all processes if there are several: sums, and for maxima the largest value."""
    counted = [entry["counters"] for entry in found if "counters" in entry]
    several = withSums(found)
    if several is not found:
        for name in several[-1]["counters"]:
            if name.startswith("max_"):
                several[-1]["counters"][name] = max(each.get(name, 0) for each in counted)
    return several


def _cells(entry: dict[str, Any]) -> tuple[str, ...]:
    gauges = entry["gauges"]
    counters = {name: value for name, value in entry["counters"].items() if value}
    now = [f"{gauges['modules']} modules", f"{gauges['peers']:,} peers"]
    queued = f"{gauges['queuedBytes']:,} bytes queued"
    return lines(*now, queued), lines(*counters), lines(*map(number, counters.values()))


countersTable = partial(processTable, ("now", "counter", "value"), _cells, isRated=True)


async def run(reactor: IUNIXReactor, options: CommandOptions) -> None:
    """Run C{txrdma btl-stats}, once or repeatedly."""
    empty = "No process of yours has a module of the byte transfer layer."
    await watch(reactor, options, NAMESPACE, list, countersTable, empty, summed)
