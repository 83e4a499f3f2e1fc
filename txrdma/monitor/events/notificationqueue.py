"""
Queues of alerts for channels: they survive failures of the receiver and a restart of the process.

An alert is stored until the channel has sent it: at least once, so that a killed process may send it twice.
"""

from __future__ import annotations

import json
from collections.abc import Awaitable, Callable, Iterable, Mapping, Sequence
from typing import Final

from twisted.internet.defer import CancelledError, Deferred, maybeDeferred, TimeoutError
from twisted.internet.error import ConnectError, ConnectionClosed
from twisted.internet.interfaces import IReactorTime

from txrdma.error import DeviceUnavailable, RDMAError
from txrdma.kit.delayedcalls import cancelCall, Timer
from txrdma.kit.lease import RENEW_SECONDS
from txrdma.monitor.diagnosis.findinglog import Key
from txrdma.monitor.diagnosis.journal import FabricEvent, readValid
from txrdma.monitor.events.alerts import Alert
from txrdma.monitor.events.channels import AlertChannel
from txrdma.monitor.supervisor import SupervisedLoop

RETRY_SECONDS: Final = 15.0
"""Seconds until a channel that failed is tried again; doubled after each further failure."""

LONGEST_RETRY_SECONDS: Final = 300.0

_MOST_DOUBLINGS: Final = 10

STOP_SECONDS: Final = 5.0
"""Seconds that a channel has to finish sending when the monitor stops."""

MOST_ALERTS: Final = 1000
"""Maximum number of alerts that wait for a channel; the oldest are dropped."""

QUEUED: Final = "notification-queued"
"""Kind of the events of alerts that wait, whose subject is the name of the queue and a number."""

DROPPED: Final = "notification-dropped"
_SENT: Final = "notification-sent"


def restored(events: Iterable[FabricEvent]) -> dict[str, dict[int, Alert]]:
    """Return the alerts that a previous process has not sent, by the names of their queues, in order."""
    found: dict[str, dict[int, Alert]] = {}
    for queue, number, alert in readValid(events, _queuedIn):
        found.setdefault(queue, {})[number] = alert
    return found


def _queuedIn(event: FabricEvent) -> tuple[str, int, Alert]:
    """Return the queue, the number and the alert of an event."""
    (queue, number), (key, isRaised, finding) = json.loads(event.subject), event.detail
    return queue, number, Alert(Key.fromStored(key), isRaised, finding)


def ended(kind: str, queue: str, numbers: Iterable[int], now: float) -> list[FabricEvent]:
    """Return the events of alerts that were sent or dropped."""
    return [FabricEvent(now, kind, queue, "", subject=json.dumps([queue, number])) for number in numbers]


class NotificationQueue:
    """
    Queue of the alerts that wait for a channel.

    @ivar channel: sends the alerts; a new configuration may replace it.
    @ivar loop: passes the alerts to the channel; its problem is the error of the last attempt.
    @ivar dropped: number of alerts dropped since the last success, because the queue was full.
    """

    def __init__(
        self,
        reactor: IReactorTime,
        channel: AlertChannel,
        store: Callable[[Sequence[FabricEvent]], Awaitable[None]],
        openAlerts: Callable[[], Iterable[Alert]],
        isSure: Callable[[], bool],
    ) -> None:
        """
        @param store: stores events, and handles its errors.
        @param openAlerts: returns the alerts of open findings that were sent, to repeat them.
        @param isSure: returns False while another process may be sending the alerts: they wait.
        """
        self.channel = channel
        self.dropped = 0
        self._reactor = reactor
        self._store = store
        self._openAlerts = openAlerts
        self._isSure = isSure
        self._repeats = Timer(reactor)
        self._waiting: dict[int, Alert] = {}
        self._repeated: dict[int, Alert] = {}
        self._number = 0
        self._attempt: Deferred[None] | None = None
        self.loop = SupervisedLoop(
            *(reactor, channel.name, self._sendWaiting, self._untilNext),
            isReported=False,
            isPeriodic=False,
            expected=(RDMAError, OSError, ConnectError, ConnectionClosed, TimeoutError),
        )
        self.loop.start(None)

    def restore(self, alerts: dict[int, Alert]) -> None:
        """Put alerts that a previous process has not sent in front of the queue."""
        self._waiting = {**alerts, **self._waiting}
        self._number = max([self._number, *alerts])

    def number(self, alerts: Sequence[Alert]) -> dict[int, Alert]:
        """Return alerts with their numbers in the queue."""
        first = self._number + 1
        self._number += len(alerts)
        return dict(enumerate(alerts, first))

    def takeBack(self, numbered: Mapping[int, Alert]) -> None:
        """Give the numbers of the last alerts, which were not admitted, to the next ones."""
        self._number -= len(numbered)

    def eventsOf(self, numbered: Mapping[int, Alert]) -> list[FabricEvent]:
        """Return the events to store before L{admit} is called."""
        queue, now = self.channel.queue, self._reactor.seconds()
        return [
            FabricEvent(
                *(now, QUEUED, queue, ""),
                subject=json.dumps([queue, number]),
                detail=[one.key, one.isRaised, one.finding],
            )
            for number, one in numbered.items()
        ]

    def admit(self, numbered: Mapping[int, Alert]) -> list[FabricEvent]:
        """Queue alerts; returns the events of those that are dropped for them."""
        self._waiting.update(numbered)
        oldest = list(self._waiting)[: max(0, len(self._waiting) - MOST_ALERTS)]
        for number in oldest:
            del self._waiting[number]
        self.dropped += len(oldest)
        return ended(DROPPED, self.channel.queue, oldest, self._reactor.seconds())

    def send(self) -> None:
        """Send queued alerts, unless the channel is busy or waits for its next attempt."""
        if self._waiting and not self.loop.isDue:
            self.loop.runNow()

    def repeat(self) -> None:
        """Begin to send open findings again periodically, if the channel needs that."""
        self._repeats.stop()
        if self.channel.repeatSeconds:
            self._repeats.start(self.channel.repeatSeconds, self._repeat)

    def _repeat(self) -> None:
        """Send open findings again, if nothing else waits; they are not stored, and receivers know them."""
        self.repeat()
        alerts = dict(enumerate(self._openAlerts()))
        if alerts and not self._waiting and not self.loop.isRunning:
            self._repeated = alerts
            if not self.loop.isDue:
                self.loop.runNow()

    def _untilNext(self) -> float | None:
        """Return the time until the next attempt, doubled with each failure; None if none waits."""
        failures = self.loop.failures
        if failures:
            return min(RETRY_SECONDS * (1 << min(failures - 1, _MOST_DOUBLINGS)), LONGEST_RETRY_SECONDS)
        if not self._waiting:
            return None
        return 0.0 if self._isSure() else RENEW_SECONDS

    async def _sendWaiting(self) -> bool | None:
        """
        Send all queued alerts, and delete them from the store when the channel has sent them.

        @return: None while another process may be sending them.
        """
        alerts = dict(self._waiting) or self._repeated
        if not alerts:
            return False
        if not self._isSure():
            return None
        self._attempt = maybeDeferred(self.channel.send, self.channel.named(alerts.values()))
        try:
            await self._attempt
        except CancelledError:
            raise DeviceUnavailable("no response in time") from None
        finally:
            self._attempt = None
        self.dropped = 0
        if alerts is self._repeated:
            self._repeated = {}
        else:
            sent = [number for number in alerts if self._waiting.pop(number, None) is not None]
            await self._store(ended(_SENT, self.channel.queue, sent, self._reactor.seconds()))
        return True

    def replaceChannel(self, channel: AlertChannel) -> None:
        """Replace the channel; the new one is tried immediately."""
        self.channel = channel
        self.loop.name = channel.name
        if not self.loop.isRunning:
            self.loop.cancel()  # so that it begins with the shortest pause
            if self._waiting:
                self.loop.runNow()

    def stop(self) -> Deferred[None]:
        """Stop; fires when the channel has sent its current message, or after L{STOP_SECONDS}."""
        self._repeats.stop()
        done = self.loop.stop()
        if self._attempt is not None:
            late = self._reactor.callLater(STOP_SECONDS, self._giveUp)
            done.addCallback(lambda _: cancelCall(late))
        return done

    def discard(self) -> list[FabricEvent]:
        """Stop for ever; returns the events of the alerts that waited, which are dropped."""
        self.stop()
        numbers, self._waiting = list(self._waiting), {}
        return ended(DROPPED, self.channel.queue, numbers, self._reactor.seconds())

    def _giveUp(self) -> None:
        if self._attempt is not None:
            self._attempt.cancel()
