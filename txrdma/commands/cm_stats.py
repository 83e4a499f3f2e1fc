"""
C{txrdma cm-stats}: messages of communication managers, per process of this user and in total.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Final, TYPE_CHECKING

from txrdma.cm.status import NAMESPACE
from txrdma.commands.common.counted import askedOfAll, number, thenRates, withSums
from txrdma.commands.common.tables import lines, makeTable
from txrdma.commands.common.watching import watch, WatchingOptions
from txrdma.unix.answers import IReactor

if TYPE_CHECKING:
    from rich.table import Table

WHATS: Final = ("sent", "retried", "received", "duplicate", "stray", "dropped")
"""Counters of each kind of message, in the order of their columns."""

KINDS: Final = (
    *("REQ", "MRA", "REJ", "REP", "RTU", "DREQ", "DREP", "LAP", "APR"),
    *("SIDRREQ", "SIDRREP"),
)
"""Kinds of messages, in the order of their rows."""


class CommandOptions(WatchingOptions):
    """Options of C{txrdma cm-stats}: interval and timeout."""

    longdesc = (
        "Count the messages that the communication managers of this user's processes have sent and "
        "received, by kind, for each process and in total: retransmissions, duplicates, messages for "
        "unknown connections, and requests dropped because a listener's backlog was full. With --watch, "
        "the first report shows totals, and each later one rates per second."
    )


async def entries(reactor: IReactor, timeout: float) -> list[dict[str, Any]]:
    """Return entries for JSON and tables: one for each process, and their sum if there are several."""
    return withSums(await askedOfAll(reactor, NAMESPACE, timeout))


def countersTable(found: Sequence[dict[str, Any]]) -> Table:
    """Return a table of the counters that L{entries} returns, or of their rates."""
    from rich.markup import escape

    isRate = any("seconds" in entry for entry in found)
    columns = ("process", "connections", "message", *WHATS)
    table = makeTable(*columns, title="in a second" if isRate else None)
    for entry in found:
        if "error" in entry:
            table.add_row(str(entry["pid"]), escape(entry["error"]))
            continue
        gauges = entry["gauges"]
        states = sorted(gauges["connections"].items())
        head = [
            lines(entry["pid"], " ".join(entry["command"][1:])[:40]),
            lines(*(f"{n:,} {state}" for state, n in states), f"{gauges['listeners']} listeners"),
        ]
        counters = entry["counters"]
        kinds = [kind for kind in KINDS if any(counters.get(kind, {}).values())]
        counts = [[counters[kind].get(what, 0) for kind in kinds] for what in WHATS]
        cells = [lines(*(number(count) if count else "-" for count in column)) for column in counts]
        table.add_row(*map(escape, head), lines(*kinds), *cells)
    return table


async def run(reactor: IReactor, options: CommandOptions) -> None:
    """Run C{txrdma cm-stats}, once or repeatedly."""

    async def ask() -> list[dict[str, Any]]:
        return await entries(reactor, options["timeout"])

    nobody = "No process of yours has a communication manager."
    await watch(reactor, options, thenRates(ask, reactor.seconds), countersTable, nobody)
