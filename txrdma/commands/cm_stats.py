"""C{txrdma cm-stats}: messages of communication managers, per process of this user and in total."""

from __future__ import annotations

from functools import partial
from typing import Any, Final

from txrdma.cm.status import NAMESPACE
from txrdma.commands.common.counted import number, withSums
from txrdma.commands.common.tables import lines
from txrdma.commands.common.watching import processTable, watch, WatchingOptions
from txrdma.unix.answers import IUNIXReactor

WHATS: Final = ("sent", "retried", "received", "duplicate", "stray", "dropped")
"""Counters of each kind of message, in the order of their columns."""

KINDS: Final = (*("REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "LAP", "APR"), *("SIDRREQ", "SIDRREP"))
"""Kinds of messages, in the order of their rows."""


class CommandOptions(WatchingOptions):
    """Options of C{txrdma cm-stats}: interval and timeout."""

    longdesc = (
        "Count the messages that the communication managers of this user's processes have sent and "
        "received, by kind, for each process and in total: retransmissions, duplicates, messages for "
        "unknown connections, and requests dropped because a listener's backlog was full. With --watch, "
        "the first report shows totals, and each later one rates per second."
    )


def _cells(entry: dict[str, Any]) -> tuple[str, ...]:
    gauges, counters = entry["gauges"], entry["counters"]
    states = sorted(gauges["connections"].items())
    kinds = [kind for kind in KINDS if any(counters.get(kind, {}).values())]
    counts = [[counters[kind].get(what, 0) for kind in kinds] for what in WHATS]
    return (
        lines(*(f"{n:,} {state}" for state, n in states), f"{gauges['listeners']} listeners"),
        lines(*kinds),
        *(lines(*(number(count) if count else "-" for count in column)) for column in counts),
    )


countersTable = partial(processTable, ("connections", "message", *WHATS), _cells, isRated=True)


async def run(reactor: IUNIXReactor, options: CommandOptions) -> None:
    """Run C{txrdma cm-stats}, once or repeatedly."""
    empty = "No process of yours has a communication manager."
    await watch(reactor, options, NAMESPACE, list, countersTable, empty, withSums)
