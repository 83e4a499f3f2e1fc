"""State of a monitor after a restart, from the events in its history: findings, changes, nodes and links."""

from __future__ import annotations

import json
from collections.abc import Callable

from txrdma.fabric.managerwatch import STILL_SECONDS
from txrdma.monitor.collecting.pool import MISSING_SECONDS
from txrdma.monitor.diagnosis.fabricstate import TOPOLOGY_KINDS
from txrdma.monitor.diagnosis.findinglog import FindingLog, Key, MOST_CLEARED
from txrdma.monitor.diagnosis.journal import entryOf, Journal, readValid
from txrdma.monitor.diagnosis.thresholds import ErrorThresholds
from txrdma.monitor.diagnosis.topologywatch import TopologyWatch
from txrdma.monitor.events.alerts import FormerAlerts
from txrdma.monitor.events.notificationqueue import QUEUED, restored
from txrdma.monitor.events.notifier import RAISED
from txrdma.monitor.reading.counterreader import SILENT_TIMES
from txrdma.monitor.reading.poller import UNSUBSCRIBED_SECONDS
from txrdma.monitor.reading.settings import PollerSettings
from txrdma.monitor.series.historystore import HistoryStore


def secondsToFind(kind: str, thresholds: ErrorThresholds, settings: PollerSettings) -> float:
    """Return the seconds in which a new process finds an older fault; 0 if one sweep is enough."""
    intervalSeconds = settings.intervalSeconds
    inRotation = settings.stateSeconds + 4 * intervalSeconds
    several = {
        **dict.fromkeys(("slow-receiver", "link-full", "congestion", "counter-full"), inRotation),
        # A silent node is asked more and more seldom.
        **dict.fromkeys(("node-silent", "counters-silent"), intervalSeconds * (1 << SILENT_TIMES)),
        "sm-still": STILL_SECONDS + 2 * intervalSeconds,
        "no-notices": UNSUBSCRIBED_SECONDS + 2 * intervalSeconds,
        "collector-missing": MISSING_SECONDS + 2 * intervalSeconds,
    }
    return max(thresholds.periodOf(kind), several.get(kind, 0.0))


def formerAlerts(store: HistoryStore) -> FormerAlerts:
    """Return the alerts of a previous process, or raise L{DeviceUnavailable}. Blocks."""
    sent = readValid(store.states(RAISED), lambda one: (Key.fromStored(json.loads(one.subject)), one.detail))
    return FormerAlerts(dict(sent), restored(store.states(QUEUED)))


def restoreState(
    store: HistoryStore,
    findingLog: FindingLog,
    topologyWatch: TopologyWatch,
    journal: Journal,
    heldUntil: Callable[[str], float],
) -> FormerAlerts:
    """
    Restore the state of a previous process, without invalid events, which are logged. Blocks.

    @return: the alerts of that process.
    @raise txrdma.error.DeviceUnavailable: the history cannot be read.
    """
    findings = [*store.states("finding-raised"), *store.states("finding-cleared", most=MOST_CLEARED)]
    states, changes, alerts = store.states(*TOPOLOGY_KINDS), store.changes(), formerAlerts(store)
    topologyWatch.restore(states)
    journal.changes.extend(changes)
    findingLog.restore(readValid(findings, entryOf), heldUntil)
    return alerts
