"""
Base of commands that query all processes of this user, once or repeatedly.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any, TYPE_CHECKING

from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import deferLater
from twisted.python import usage

from txrdma.commands.common.options import TableOptions
from txrdma.commands.common.tables import show

if TYPE_CHECKING:
    from rich.table import Table

Entries = Sequence[dict[str, Any]]


def _inRange(name: str, seconds: float) -> float:
    if 0.05 <= seconds <= 86400:
        return seconds
    raise usage.UsageError(f"{name} {seconds:g}: expected 0.05 to 86400 seconds")


class WatchingOptions(TableOptions):
    """Options for the interval of repeated queries, and for their timeout."""

    synopsis = "[options] [--watch [SECONDS]]"
    optFlags = [["watch", "w", "Repeat every second, or every SECONDS, until Ctrl-C."]]
    optParameters = [["timeout", "t", 3.0, "Seconds to wait for each process.", float]]

    def parseArgs(self, *seconds: str) -> None:
        if seconds and (len(seconds) > 1 or not self["watch"]):
            raise usage.UsageError(f"{' '.join(seconds)}: only --watch is followed by seconds")
        try:
            self["interval"] = _inRange("--watch", float(seconds[0]) if seconds else 1.0)
        except ValueError:
            raise usage.UsageError(f"--watch {seconds[0]}: this is no number of seconds") from None

    def postOptions(self) -> None:
        _inRange("--timeout", self["timeout"])


async def watch(
    reactor: IReactorTime,
    options: WatchingOptions,
    ask: Callable[[], Awaitable[Entries]],
    table: Callable[[Entries], Table],
    nobody: str,
) -> None:
    """
    Query processes and print their entries as JSON or as a table, once or repeatedly.

    @param nobody: printed instead of a table without entries.
    """
    while True:
        entries = await ask()
        if options["json"]:  # one line per report with --watch
            print(json.dumps(entries, indent=None if options["watch"] else 2), flush=True)
        elif entries:
            show(table(entries))
        else:
            print(nobody, flush=True)
        if not options["watch"]:
            return
        await deferLater(reactor, options["interval"])
