"""A configuration with settings in most sections, and a monitor that starts without its history."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import closing
from typing import Any, Final

from twisted.internet import reactor as theReactor

from txrdma.monitor.config import parseConfig
from txrdma.monitor.series.history import HistoryWriter
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.tap.monitor import MonitorService
from txrdma.testing.reactors import waitUntil

_reactor: Any = theReactor

WHOLE = """
port = "sim:fattree:4"

[web]
listen = ""

[poll]
interval = 1
notices = false

[metrics]
counters = ["PortXmitData", "symbolErrorCounter"]

[findings]
clear = 5.0
ignored = ["vl15-dropped"]

[findings.severity]
width = "critical"

[alerts]
delay = 5
group = 1
severity = "info"
log = "findings.log"

[alerts.mail]
host = "mail.example.org"
from = "fabric@example.org"
to = ["ops@example.org"]

[alerts.webhooks.ours]
url = "http://alerts.example.org:9093/api/v2/alerts"

[alerts.webhooks.chat]
url = "https://chat.example.org/hook"
format = "webhook"

[alerts.silences.works]
kind = "node-gone"
where = "rack 7*"
until = 2026-12-24T18:00:00Z

[limits.SymbolErrorCounter]
most = 7

[limits.PortXmitWait]
most = 1000000
seconds = 60
"""

_WITHOUT: Final = """
port = "sim:fattree:4"
web.listen = ""
poll = {interval = 0.1, settle = 0.1, survey = 0, notices = false}
findings.clear = 0.1
history = {%s = "%s", events = {days = 36500}}
"""


async def attachedLater(history: str, attach: Callable[[], object]) -> list[str]:
    """
    Run a monitor that starts while its history cannot be used.

    It monitors meanwhile, and writes when the history can be used again.

    @param attach: makes the history usable.
    @return: the locations of all changes in the history.
    """
    usual, HistoryWriter.batchSeconds = HistoryWriter.batchSeconds, 0.2
    service = MonitorService(
        _reactor, parseConfig(_WITHOUT % ("url" if "://" in history else "file", history))
    )
    poller = service.poller

    def isStopped() -> bool:
        return "history-stopped" in {entry.finding.kind for entry in poller.findings.log.open.values()}

    service.privilegedStartService()
    service.startService()
    try:
        await waitUntil(_reactor, isStopped)
        turns = poller.statistics.turns
        await waitUntil(_reactor, lambda: poller.statistics.turns > turns + 1)
        attach()
        await waitUntil(_reactor, lambda: not isStopped())
    finally:
        HistoryWriter.batchSeconds = usual
        await service.stopService()
    with closing(HistoryStore(history)) as store:
        points = store.series(next(iter(poller.meters)), "portXmitData", 0, 1 << 40, "readings")
        assert points, "there are no readings"
        return [event.where for event in store.changes()]
