"""Parts of commands that query all processes of this user, once or repeatedly."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TYPE_CHECKING

from twisted.internet.task import deferLater
from twisted.python import usage

from txrdma.commands.common.counted import CounterRates
from txrdma.commands.common.options import TableOptions
from txrdma.commands.common.tables import lines, makeTable, show
from txrdma.unix.answers import askAll, IUNIXReactor

if TYPE_CHECKING:
    from rich.table import Table

Entries = Sequence[dict[str, Any]]

_OTHER_FORM = (KeyError, TypeError, AttributeError)
"""What reading an answer of another version of txrdma may raise."""


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
            raise usage.UsageError(f"--watch {seconds[0]}: this is not a number of seconds") from None

    def postOptions(self) -> None:
        _inRange("--timeout", self["timeout"])


def entriesBy(
    answers: Entries, rowsOf: Callable[[dict[str, Any]], Iterable[Mapping[str, Any]]]
) -> list[dict[str, Any]]:
    """Return entries for JSON and tables: one for each row of a process, and each that did not answer."""
    entries: list[dict[str, Any]] = []
    for answer in answers:
        if "error" in answer:
            entries.append(answer)
            continue
        try:
            process = {"pid": answer["pid"], "command": answer["command"]}
            entries += [{**process, **row} for row in rowsOf(answer)]
        except _OTHER_FORM as error:
            entries.append({"pid": answer["pid"], "error": _notShown(error)})
    return entries


def processTable(
    columns: Sequence[str],
    cellsOf: Callable[[dict[str, Any]], Iterable[str]],
    entries: Entries,
    isRated: bool = False,
) -> Table:
    """
    Return a table of processes: for each entry its process and further cells, or the error of its query.

    @param cellsOf: returns the cells of an entry after the first.
    @param isRated: whether entries may have rates instead of counters.
    """
    from rich.markup import escape

    isRate = isRated and any("seconds" in entry for entry in entries)
    table = makeTable("process", *columns, title="in a second" if isRate else None)
    for entry in entries:
        try:
            process = lines(entry["pid"], " ".join(entry.get("command", ())[1:])[:40])
            cells = (process, *([entry["error"]] if "error" in entry else cellsOf(entry)))
        except _OTHER_FORM as error:
            cells = (str(entry["pid"]), _notShown(error))
        table.add_row(*map(escape, cells))
    return table


def _notShown(error: Exception) -> str:
    return f"not shown: it probably has another version of txrdma ({error!r})"


async def watch(
    reactor: IUNIXReactor,
    options: WatchingOptions,
    namespace: str,
    entriesOf: Callable[[list[dict[str, Any]]], Entries],
    table: Callable[[Entries], Table],
    empty: str,
    summed: Callable[[list[dict[str, Any]]], list[dict[str, Any]]] | None = None,
) -> None:
    """
    Query processes and print their entries as JSON or as a table, once or repeatedly.

    @param namespace: of the processes' status sockets.
    @param entriesOf: makes entries from their answers.
    @param empty: printed instead of a table without entries.
    @param summed: for entries with counters: adds their sum. Counters are printed first, and then their rates
        since the previous query; a sum of rates is that of the processes that have rates.
    """
    rates, isFirst = CounterRates(), True
    while True:
        entries = entriesOf(await askAll(namespace, reactor, options["timeout"]))
        if summed is not None:
            changed = rates.since(entries, reactor.seconds())
            entries, isFirst = summed(list(entries if isFirst else changed)), False
        if options["json"]:  # one line per report with --watch
            print(json.dumps(entries, indent=None if options["watch"] else 2), flush=True)
        elif entries:
            show(table(entries))
        else:
            print(empty, flush=True)
        if not options["watch"]:
            return
        await deferLater(reactor, options["interval"])
