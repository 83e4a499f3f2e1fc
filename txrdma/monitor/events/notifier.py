"""
Sends alerts to all channels, once, and again to a channel that failed.

An alert is stored as sent before it is sent, together with its queues: see
L{txrdma.monitor.events.notificationqueue}.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Container, Iterable, Sequence
from typing import Final

from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from txrdma.error import DeviceUnavailable, RDMAError
from txrdma.fabric.health import Finding
from txrdma.kit.logs import errorText
from txrdma.monitor.diagnosis.findinglog import (
    Annotated,
    Cleared,
    Entry,
    FindingEvent,
    Key,
    SeverityChanged,
)
from txrdma.monitor.diagnosis.journal import FabricEvent
from txrdma.monitor.events.alerts import Alert, AlertRules, AlertTracker, FormerAlerts
from txrdma.monitor.events.channels import AlertChannel
from txrdma.monitor.events.notificationqueue import (
    DROPPED,
    ended,
    MOST_ALERTS,
    NotificationQueue,
    RETRY_SECONDS,
)
from txrdma.monitor.series.history import HistoryWriter
from txrdma.monitor.supervisor import SupervisedLoop, Supervisor

_log = Logger()

RAISED: Final = "alert-raised"
"""Kind of the events of open findings that were sent."""

_CLEARED: Final = "alert-cleared"

MEMORY_SECONDS: Final = 30.0
"""Seconds to wait for the database: one that hangs does not prevent alerts."""


class Notifier:
    """Sends the events of a finding log to channels, from L{start} to L{stop}."""

    def __init__(
        self,
        reactor: IReactorTime,
        rules: AlertRules,
        channels: Sequence[AlertChannel],
        memory: HistoryWriter | None = None,
        supervisor: Supervisor | None = None,
        mustStore: bool = False,
        isSure: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        @param memory: stores the sent alerts; without it a new process sends everything again.
        @param mustStore: send only stored alerts, since another process may have replaced this one.
        @param isSure: returns False while another process may have replaced this one: nothing is sent.
        """
        self._reactor = reactor
        self._tracker = AlertTracker(rules, reactor.seconds())
        self._memory = memory
        self._supervisor = Supervisor(reactor) if supervisor is None else supervisor
        self._isSure = isSure
        self._queues = [self._queue(channel) for channel in channels]
        self._loop = self._supervisor.add(
            SupervisedLoop(reactor, "notifications", self._take, self._untilNext, isPeriodic=False)
        )
        self._due: list[Alert] = []
        self._added: list[NotificationQueue] = []  # have not got the open alerts
        self._mustStore = mustStore
        self._isStarted = False

    def _queue(self, channel: AlertChannel) -> NotificationQueue:
        queue = NotificationQueue(self._reactor, channel, self._store, self._openAlerts, self._isSure)
        self._supervisor.add(queue.loop)
        return queue

    def _openAlerts(self) -> list[Alert]:
        return [Alert(key, True, finding) for key, finding in self._tracker.sent.items()]

    def restore(self, former: FormerAlerts, openKeys: Container[Key], cleared: Iterable[Entry]) -> None:
        """Set the alerts of a previous process, before L{start}: see L{AlertTracker.restore}."""
        self._tracker.restore(former.sent, openKeys, cleared)
        queued, now = dict(former.queued), self._reactor.seconds()
        for queue in self._queues:
            queue.restore(queued.pop(queue.channel.queue, {}))
        if self._memory is not None:
            for name, alerts in queued.items():
                self._memory.append(ended(DROPPED, name, alerts, now))

    def start(self) -> None:
        """Send queued alerts, and then those that become due."""
        self._isStarted = True
        for queue in self._queues:
            with _log.failuresHandled("alerts of {name} wait for the next one", name=queue.channel.name):
                queue.repeat()
                queue.send()
        self._loop.start()

    def stop(self) -> Deferred[None]:
        """Stop. The Deferred fires when all channels have sent their messages, or after their time limit."""
        self._isStarted = False
        self._loop.stop()
        return Deferred.fromCoroutine(self._end())

    async def _end(self) -> None:
        for ending in [queue.stop() for queue in self._queues]:
            await ending
        for loop in (self._loop, *(queue.loop for queue in self._queues)):
            self._supervisor.remove(loop)

    def change(
        self, rules: AlertRules, channels: Sequence[AlertChannel], openEntries: Iterable[Entry] = ()
    ) -> None:
        """
        Set the rules and channels; sent alerts are not sent again.

        Alerts that wait for a channel wait for its replacement, which has the same queue name, or are dropped
        without one. A new channel gets all open ones.

        @param openEntries: open findings: the new rules may select other ones.
        """
        self._tracker.change(rules, openEntries, self._reactor.seconds())
        before = {queue.channel.queue: queue for queue in self._queues}
        self._queues = []
        for channel in channels:
            queue = before.pop(channel.queue, None)
            if queue is None:
                queue = self._queue(channel)
                self._added.append(queue)
            else:
                queue.replaceChannel(channel)
            self._queues.append(queue)
            if self._isStarted:
                queue.repeat()
        for queue in before.values():
            self._supervisor.remove(queue.loop)
            dropped = queue.discard()
            if self._memory is not None:
                self._memory.append(dropped)
        self._added = [queue for queue in self._added if queue in self._queues]
        pause = self._untilNext()
        if pause is not None:
            self._loop.runIn(pause)

    def findingChanged(self, event: FindingEvent) -> None:
        """Process an event of the finding log."""
        now = self._reactor.seconds()
        if isinstance(event, Cleared):
            self._tracker.cleared(event.entry, now)
        elif isinstance(event, Annotated):
            self._tracker.annotated(event.entry)
        elif isinstance(event, SeverityChanged):
            self._tracker.severityChanged(event.entry, now)
        else:
            self._tracker.raised(event.entry, now)
        self._loop.runIn(self._leastPause())  # in the next reactor iteration, once for many events

    def findings(self) -> list[Finding]:
        """Return findings about channels whose last attempt failed."""
        return [
            Finding("notification-failed", queue.channel.name, queue.loop.problem + _lost(queue.dropped))
            for queue in self._queues
            if queue.loop.problem
        ]

    async def _store(self, events: Sequence[FabricEvent], isNeeded: bool = False) -> None:
        """Store events for the next process, now if needed, else later; the history reports its errors."""
        if self._memory is not None and events:
            try:
                await self._memory.appendNow(events).addTimeout(MEMORY_SECONDS, self._reactor)
            except (RDMAError, TimeoutError) as error:
                if isNeeded:
                    raise DeviceUnavailable(f"alerts wait for the history: {error}") from error
                _log.debug("cannot store yet which alerts were sent: {why}", why=errorText(error))
                self._memory.append(events)

    # Sending.

    def _untilNext(self) -> float | None:
        """Return the time until alerts may be due."""
        now = self._reactor.seconds()
        deadline = self._tracker.deadline(now)
        if self._due or self._added:
            deadline = now
        return None if deadline is None else max(deadline - now, self._leastPause())

    def _leastPause(self) -> float:
        return RETRY_SECONDS if self._loop.failures else 0.0

    async def _take(self) -> bool:
        """Store due alerts and their queues, then send them. False if there are none."""
        now = self._reactor.seconds()
        self._due += self._tracker.take(now, self._loop.step)
        excess = max(0, len(self._due) - MOST_ALERTS)
        del self._due[:excess]
        for queue in self._queues:
            queue.dropped += excess
        keys, added = {one.key for one in self._due}, tuple(self._added)
        opened = [one for one in self._openAlerts() if one.key not in keys] if added else []
        if not (self._due or opened):
            self._added.clear()
            return False
        events = [_eventOf(one, now) for one in self._due]
        queued = [
            (queue, queue.number([*opened, *self._due] if queue in added else self._due))
            for queue in self._queues
        ]
        for queue, numbered in queued:
            events += queue.eventsOf(numbered)
        with self._loop.step("storing"):
            try:
                await self._store(events, self._mustStore)
            except DeviceUnavailable:
                # They may be stored nevertheless: those of the next attempt replace them.
                for queue, numbered in queued:
                    queue.takeBack(numbered)
                raise
        self._due.clear()
        self._added = [queue for queue in self._added if queue not in added]
        dropped: list[FabricEvent] = []
        for queue, numbered in queued:
            with self._loop.step(queue.channel.name):
                dropped += queue.admit(numbered)
            if queue not in self._queues:  # it was removed meanwhile
                dropped += queue.discard()
            with self._loop.step(queue.channel.name):
                queue.send()
        await self._store(dropped)
        return True


def _eventOf(alert: Alert, now: float) -> FabricEvent:
    kind = RAISED if alert.isRaised else _CLEARED
    where = alert.finding["where"]
    return FabricEvent(now, kind, where, "", subject=json.dumps(alert.key), detail=alert.finding)


def _lost(number: int) -> str:
    return f"; {number} older alerts were dropped, because the queue was full" if number else ""
