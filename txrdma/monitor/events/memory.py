"""State of a monitor after a restart, from the events in its history: findings, changes, nodes and links."""

from __future__ import annotations

import json
from collections.abc import Callable

from txrdma.error import DeviceUnavailable
from txrdma.fabric.managerwatch import STILL_SECONDS
from txrdma.monitor.diagnosis.findinglog import FindingLog, Key, MOST_CLEARED
from txrdma.monitor.diagnosis.journal import entryOf, Journal
from txrdma.monitor.diagnosis.presence import Presence, STATES
from txrdma.monitor.diagnosis.thresholds import ErrorThresholds
from txrdma.monitor.events.alerts import FormerAlerts
from txrdma.monitor.events.notificationqueue import QUEUED, restored
from txrdma.monitor.events.notifier import RAISED
from txrdma.monitor.reading.counterreader import SILENT_TIMES
from txrdma.monitor.reading.poller import UNSUBSCRIBED_SECONDS
from txrdma.monitor.series.historystore import HistoryStore


def secondsToFind(kind: str, thresholds: ErrorThresholds, intervalSeconds: float) -> float:
    """Return the seconds in which a new process finds an older fault; 0 if one sweep is enough."""
    several = {
        "node-silent": intervalSeconds * (1 << SILENT_TIMES),  # it is asked more and more seldom
        "sm-still": STILL_SECONDS + 2 * intervalSeconds,
        "no-notices": UNSUBSCRIBED_SECONDS + 2 * intervalSeconds,
    }
    return max(thresholds.periodOf(kind), several.get(kind, 0.0))


def formerAlerts(store: HistoryStore) -> FormerAlerts:
    """Return the alerts of a previous process, or raise L{DeviceUnavailable}. Blocks."""
    sent = {Key(*json.loads(one.subject)): one.detail for one in store.states(RAISED)}
    return FormerAlerts(sent, restored(store.states(QUEUED)))


def restoreState(
    store: HistoryStore,
    findingLog: FindingLog,
    presence: Presence,
    journal: Journal,
    heldUntil: Callable[[str], float],
) -> FormerAlerts:
    """Restore the state of a previous process; return its alerts, or raise L{DeviceUnavailable}. Blocks."""
    findings = [*store.states("finding-raised"), *store.states("finding-cleared", most=MOST_CLEARED)]
    states, changes = store.states(*STATES), store.changes()
    try:
        entries = [entryOf(event) for event in findings]
        alerts = formerAlerts(store)
        presence.restore(states)
    except (ValueError, TypeError, KeyError) as error:
        raise DeviceUnavailable(f"events of the history are invalid: {error!r}") from error
    journal.changes.extend(changes)
    findingLog.restore(entries, heldUntil)
    return alerts
