"""C{txrdma monitor}: shows the findings and the busiest links of a fabric in a terminal."""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any, Final, TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.python import usage

from txrdma.commands.common.session import FabricOptions, opened
from txrdma.commands.common.tables import consoleFor, needTables
from txrdma.commands.common.values import count, seconds
from txrdma.error import ResourceExhausted
from txrdma.fabric.advice import Severity
from txrdma.fabric.linktraffic import busiest
from txrdma.kit.strings import printable
from txrdma.monitor.diagnosis.thresholds import ErrorThresholds, MOST_BIT_ERRORS
from txrdma.monitor.reading.poller import FabricPoller
from txrdma.monitor.reading.settings import PollerSettings

if TYPE_CHECKING:
    from rich.console import Group

_STYLES: Final = {Severity.INFO: "cyan", Severity.WARNING: "yellow", Severity.CRITICAL: "bold red"}


class CommandOptions(FabricOptions):
    """Options of C{txrdma monitor}: polling interval, and number of links and rounds."""

    longdesc = (
        "Watch a fabric until Ctrl-C: findings as they are raised and cleared, and the busiest links. It "
        "is twistd fabric-monitor without history, pages and alerts. With --json, prints one line per "
        "round."
    )
    optParameters = [
        ["interval", "i", 10.0, "Seconds between readings of the counters.", seconds],
        ["links", "n", 10, "Number of links to show.", count],
        ["rounds", None, 0, "Number of rounds. [default: until Ctrl-C]", count],
    ]

    def postOptions(self) -> None:
        if not 0.1 <= self["interval"] <= 3600:
            raise usage.UsageError(f"--interval {self['interval']:g}: expected 0.1 to 3600 seconds")


def prepare(options: CommandOptions) -> None:
    """Exit if C{rich} is needed but missing."""
    if not options["json"]:
        needTables()


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run C{txrdma monitor}: poll, and show each round."""
    ended: Deferred[None] = Deferred()
    with opened(reactor, options) as session:
        interval: float = options["interval"]
        settings = PollerSettings(intervalSeconds=interval, settleSeconds=min(2.0, interval))
        show = _toJSON if options["json"] else _Screen(options["links"])

        def isDone(began: float) -> None:
            if ended.called:
                return
            try:
                show(poller)
            except Exception:  # usually, the reader has closed the pipe
                ended.errback()
                return
            if options["rounds"] and poller.statistics.turns >= options["rounds"]:
                ended.callback(None)

        thresholds = ErrorThresholds(mostBitErrors=MOST_BIT_ERRORS)
        poller = FabricPoller(reactor, session.agent, settings, thresholds=thresholds, onRound=isDone)
        try:
            poller.start()
        except ResourceExhausted:  # another program receives the notices: only poll
            settings = PollerSettings(
                intervalSeconds=interval, settleSeconds=settings.settleSeconds, wantsNotices=False
            )
            poller = FabricPoller(reactor, session.agent, settings, thresholds=thresholds, onRound=isDone)
            poller.start()
        try:
            await ended
        finally:
            if isinstance(show, _Screen):
                show.close()
            await poller.stop()


def summaryOf(poller: FabricPoller) -> str:
    """Return a line about a fabric: its size, and the number and duration of the last round."""
    nodes = [] if poller.fabric is None else list(poller.fabric.nodes.values())
    switches = sum(node.isSwitch for node in nodes)
    statistics = poller.statistics
    return (
        f"{len(nodes)} nodes, {switches} of them switches; round {statistics.turns} took "
        f"{statistics.turnSeconds * 1000:.0f} ms; {statistics.notices} notices"
    )


def _toJSON(poller: FabricPoller) -> None:
    loads = [] if poller.fabric is None else busiest(poller.fabric, poller.sent, 10)
    shown = {
        "statistics": asdict(poller.statistics),
        "findings": [entry.toDict() for entry in poller.findings.log.open.values()],
        "busiest": [load.toDict() for load in loads],
    }
    print(json.dumps(shown), flush=True)


class _Screen:
    """Shows the last round on a terminal; elsewhere prints all rounds."""

    def __init__(self, links: int) -> None:
        from rich.live import Live

        self._links = links
        self._console = consoleFor()
        self._live = Live(console=self._console, auto_refresh=False)
        if self._console.is_terminal:
            self._live.start()

    def __call__(self, poller: FabricPoller) -> None:
        screen = screenOf(poller, self._links)
        if self._console.is_terminal:
            self._live.update(screen, refresh=True)
        else:
            self._console.print(screen)

    def close(self) -> None:
        """Restore the terminal; the last round stays visible."""
        self._live.stop()


def screenOf(poller: FabricPoller, links: int) -> Group:
    """Return the text of a round for a terminal."""
    from rich.console import Group
    from rich.table import Table
    from rich.text import Text

    findings = Table("Severity", "Finding", "Where", "What", box=None, expand=True)
    entries = sorted(poller.findings.log.open.values(), key=lambda entry: (-entry.severity, entry.firstSeen))
    for entry in entries:
        found = entry.finding
        cells = (entry.severity.name.lower(), found.kind, found.where, found.text)
        findings.add_row(*(Text(printable(cell)) for cell in cells), style=_STYLES[entry.severity])
    busy = Table("Link from", "To", "Load", "Gbit/s", box=None, expand=True)
    for load in [] if poller.fabric is None else busiest(poller.fabric, poller.sent, links):
        share = f"{100 * load.share:.0f} %" if load.share is not None else ""
        busy.add_row(
            *(Text(printable(cell)) for cell in (load.port, load.peer, share, f"{load.gigabits:.2f}"))
        )
    well = Text("all is well", style="green")
    shown = busy if busy.row_count else Text("no link carries data")
    return Group(Text(summaryOf(poller)), findings if entries else well, shown)
