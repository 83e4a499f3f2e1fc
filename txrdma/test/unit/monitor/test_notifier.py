"""Alerts: when, to which channels and in which format they are sent, exactly once, also after a kill."""

from __future__ import annotations

import json
import os
from collections.abc import Sequence
from dataclasses import replace
from datetime import datetime, timedelta
from email import message_from_bytes
from errno import ENOSPC
from pathlib import Path
from typing import Any
from unittest.mock import Mock

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.internet.testing import MemoryReactorClock
from twisted.logger import capturedLogs, formatEvent
from twisted.mail.smtp import AUTHDeclinedError, SMTPDeliveryError, SMTPTimeoutError
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.fabric.advice import Severity
from txrdma.fabric.health import Cause, Finding
from txrdma.kit.lease import RENEW_SECONDS
from txrdma.monitor.diagnosis.findinglog import Cleared, Entry, Key, Raised, Resumed
from txrdma.monitor.events import alerts
from txrdma.monitor.events.alerts import (
    Alert,
    AlertRules,
    AlertTracker,
    FormerAlerts,
    GRACE_SECONDS,
    Silence,
    WeeklyTime,
)
from txrdma.monitor.events.channels import (
    AlertChannel,
    labelsOf,
    LineChannel,
    MailChannel,
    mailOf,
    MailSettings,
    postedAlerts,
    REPEAT_SECONDS,
    webhookMessage,
)
from txrdma.monitor.events.notificationqueue import NotificationQueue, RETRY_SECONDS
from txrdma.monitor.events.notifier import MEMORY_SECONDS, Notifier
from txrdma.monitor.events.restoring import formerAlerts
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.test.support.monitor.alerts import AbsentMemory, alertsOf, entryOf, RecordingOutlet, StoredMemory

MAIL = MailSettings("mail", "fabric@example.org", ("ops@example.org",))
RULES = AlertRules(delaySeconds=60.0, groupSeconds=10.0)
NONE = FormerAlerts({}, {})


class NotifierTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.clock.advance(5000.0)
        self.channel = RecordingOutlet()

    def started(
        self,
        rules: AlertRules = RULES,
        memory: Any = None,
        former: FormerAlerts = NONE,
        openKeys: Sequence[Key] = (),
        ended: Sequence[Entry] = (),
        **more: Any,
    ) -> Notifier:
        notifier = Notifier(self.clock, rules, [self.channel], memory, **more)
        notifier.restore(former, openKeys, ended)
        notifier.start()
        self.addCleanup(notifier.stop)
        return notifier

    def test_oneAlertFails(self) -> None:
        """An alert that cannot be made delays no other one, and is sent later."""
        notifier, entries = self.started(), [entryOf(where=where) for where in ("leaf 1", "leaf 2")]
        usual, failures = Entry.toDict, [ZeroDivisionError("simulated")]

        def toDict(entry: Entry) -> dict[str, Any]:
            if entry is entries[0] and failures:
                raise failures.pop()
            return usual(entry)

        self.patch(Entry, "toDict", toDict)
        for entry in entries:
            notifier.findingChanged(Raised(entry))
        self.clock.pump([70.0])
        self.assertEqual(self.channel.wheres(), ["leaf 2"])
        self.clock.pump([RETRY_SECONDS])
        self.assertEqual(self.channel.wheres(), ["leaf 1"])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_oneTimeFails(self) -> None:
        """An alert whose silences cannot be determined is sent, and delays no other one."""

        def holds(silence: Silence, entry: Entry) -> bool:
            if entry.finding.where == "leaf 1":
                raise ZeroDivisionError("simulated")
            return False

        self.patch(Silence, "holds", holds)
        notifier = self.started(replace(RULES, silences=(Silence(until=1e10),)))
        for where in ("leaf 1", "leaf 2"):
            notifier.findingChanged(Raised(entryOf(where=where)))
        self.clock.pump([70.0])
        self.assertEqual(self.channel.wheres(), ["leaf 1", "leaf 2"])
        self.assertEqual(notifier.findings(), [])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_oneQueueFails(self) -> None:
        """Alerts are sent although a queue could not be started."""
        self.patch(NotificationQueue, "repeat", Mock(side_effect=ZeroDivisionError("simulated")))
        notifier = self.started()
        notifier.findingChanged(Raised(entryOf()))
        self.clock.pump([70.0])
        self.assertEqual(self.channel.wheres(), ["leaf 1"])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_delay(self) -> None:
        """
        A finding is sent after the delay, and its end when it is cleared. A finding that ends before it was
        sent is not sent, nor is an end if the finding returns before that was sent.
        """
        for steps, expected in (
            ((True, 59.0), []),
            ((True, 70.0, 1000.0, False, 10.0), [True, False]),
            ((True, 50.0, False, 1000.0), []),
            ((True, 100.0, False, 5.0, True, 1000.0), [True]),
        ):
            notifier, entry = self.started(), entryOf()
            for step in steps:
                if isinstance(step, bool):
                    notifier.findingChanged(Raised(entry) if step else Cleared(entry))
                else:
                    self.clock.advance(step)
            self.assertEqual(self.channel.output(), [[(one, "width", "leaf 1")] for one in expected], steps)
            notifier.stop()
            self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_failingQueue(self) -> None:
        """An alert that one channel's queue cannot accept is sent by the others."""
        channels = [RecordingOutlet(name) for name in ("first", "second", "third")]
        notifier = Notifier(self.clock, AlertRules(0.0, 0.0), channels)
        self.addCleanup(notifier.stop)
        notifier.start()
        self.patch(notifier._queues[1], "admit", Mock(side_effect=ZeroDivisionError("simulated")))
        notifier.findingChanged(Raised(entryOf()))
        self.clock.advance(100.0)
        self.assertEqual([channel.wheres() for channel in channels], [["leaf 1"], [], ["leaf 1"]])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_unsure(self) -> None:
        """Alerts are queued while another process may be sending them; repetitions are not sent."""
        self.channel = RecordingOutlet(repeatSeconds=REPEAT_SECONDS)
        isSure = False
        notifier = self.started(AlertRules(0.0, 0.0), isSure=lambda: isSure)
        notifier.findingChanged(Raised(entryOf()))
        self.clock.advance(100.0)
        self.assertEqual((self.channel.tries, notifier.findings()), (0, []))
        isSure = True
        self.clock.advance(RENEW_SECONDS)
        self.assertEqual(self.channel.output(), [[(True, "width", "leaf 1")]])
        isSure = False
        self.clock.advance(3 * REPEAT_SECONDS)
        self.assertEqual(self.channel.tries, 1)

    def test_unsureAfterFailure(self) -> None:
        """A channel that has failed is still reported while another process may be sending the alerts."""
        self.channel.isBroken = isSure = True
        notifier = self.started(AlertRules(0.0, 0.0), isSure=lambda: isSure)
        notifier.findingChanged(Raised(entryOf()))
        self.clock.advance(0.0)
        found = notifier.findings()
        isSure = False
        self.clock.pump([RENEW_SECONDS] * 100)
        self.assertEqual((self.channel.tries, notifier.findings()), (1, found))
        self.channel.isBroken, isSure = False, True
        self.clock.advance(RETRY_SECONDS)
        self.assertEqual((self.channel.wheres(), notifier.findings()), (["leaf 1"], []))

    def test_group(self) -> None:
        """Findings of about the same time are one message, without those below the configured severity."""
        notifier = self.started()
        notifier.findingChanged(Raised(entryOf(severity=Severity.INFO)))
        for number in range(5):
            notifier.findingChanged(Raised(entryOf(where=f"leaf {number}")))
            self.clock.advance(2.0)
        self.clock.advance(1000.0)
        (message,) = self.channel.output()
        self.assertEqual([where for _, _, where in message], [f"leaf {number}" for number in range(5)])

    def test_many(self) -> None:
        """The work for a finding does not grow with the number of findings that wait, and all are sent."""
        end, calls = alerts._Waiting.end, 0

        def counted(waiting: alerts._Waiting, silences: Sequence[Silence], now: float) -> float:
            nonlocal calls
            calls += 1
            return end(waiting, silences, now)

        self.patch(alerts._Waiting, "end", counted)
        notifier = self.started()
        for number in range(100):
            notifier.findingChanged(Raised(entryOf(where=f"leaf {number}")))
        self.clock.pump([1.0] * 100)
        (message,) = self.channel.output()
        self.assertEqual(len(message), 100)
        self.assertLess(calls, 1000)

    def test_manySilences(self) -> None:
        """Silences are compared once with each queued finding, unless its location or the rules change."""
        compared: list[Entry] = []
        holds = Silence.holds

        def counted(silence: Silence, entry: Entry) -> bool:
            compared.append(entry)
            return holds(silence, entry)

        self.patch(Silence, "holds", counted)
        rules = AlertRules(60.0, 0.0, silences=tuple(Silence("width", f"leaf {number}") for number in "345"))
        tracker, entries = AlertTracker(rules, 0.0), [entryOf(where=f"leaf {number}") for number in "12"]
        for one in entries:
            tracker.raised(one, 0.0)
        for _ in range(3):
            self.assertEqual((tracker.deadline(0.0), tracker.take(0.0)), (60.0, []))
        self.assertEqual(len(compared), 6)
        entries[0].finding = replace(entries[0].finding, where="leaf 3")
        self.assertEqual([one.finding["where"] for one in tracker.take(60.0)], ["leaf 2"])
        self.assertEqual(tracker.take(1e9), [])
        tracker.rules = AlertRules()
        self.assertEqual([one.finding["where"] for one in tracker.take(1e9)], ["leaf 3"])

    def test_silence(self) -> None:
        """At the end of a silence, or never without an end, a silenced finding is sent if it still exists."""
        silences = Silence("wid*", "leaf *", self.clock.seconds() + 3600.0), Silence("flapping")
        notifier = self.started(AlertRules(60.0, 10.0, silences=silences))
        notifier.findingChanged(Raised(entryOf(kind="flapping")))
        notifier.findingChanged(Raised(entryOf()))
        notifier.findingChanged(Raised(entryOf(kind="speed")))
        brief = entryOf(where="leaf 2")
        notifier.findingChanged(Raised(brief))
        self.clock.advance(1800.0)
        self.assertEqual(self.channel.output(), [[(True, "speed", "leaf 1")]])
        notifier.findingChanged(Cleared(brief))
        self.clock.advance(1900.0)
        self.assertEqual(self.channel.output(), [[(True, "width", "leaf 1")]])

    def test_silencedAfterCause(self) -> None:
        """A finding whose cause ends in a window of the week is sent at its end, however old it is."""
        sunday, cause = datetime(2026, 3, 1).timestamp(), Cause("node-gone", "spine")
        times = WeeklyTime((6,), 0, 4 * 60), WeeklyTime((6,), 6 * 60, 8 * 60)
        tracker, entry = AlertTracker(AlertRules(60.0, 0.0, silences=(Silence(times=times),)), 0.0), entryOf()
        for hours, one in ((1.0, None), (3.0, cause), (6.5, None)):
            entry.finding = replace(entry.finding, cause=one)
            tracker.raised(entry, sunday + hours * 3600)
        self.assertEqual(tracker.deadline(0.0), sunday + 8 * 3600)

    def test_recurring(self) -> None:
        """A finding that is due in a window of the week is sent at its end, also after midnight."""
        sunday = datetime(2026, 3, 1)
        times = [
            WeeklyTime((day,), at * 60, end * 60) for day, at, end in ((6, 22, 4), (0, 4, 5), (2, 10, 11))
        ]
        for hours, expected in (
            *((21.9, 21.9), (22.0, 29.0), (23.0, 29.0), (27.9, 29.0), (28.5, 29.0), (29.0, 29.0)),
            *((-1.0, -1.0), (46.0, 46.0), (82.5, 83.0), (7 * 24 + 23.0, 7 * 24 + 23.0)),
        ):
            at, until = sunday.timestamp() + hours * 3600, (sunday + timedelta(7)).timestamp()
            silences = tuple(Silence(until=until, times=(one,)) for one in times)
            rules = AlertRules(0.0, 0.0, silences=silences)
            tracker = AlertTracker(rules, at)
            tracker.raised(entryOf(), at)
            self.assertEqual(tracker.deadline(at), sunday.timestamp() + expected * 3600, hours)

    def test_adjoiningWindows(self) -> None:
        """A finding is sent when no window holds any more, although one follows the other every day."""
        sunday, morning = datetime(2026, 3, 1).timestamp(), WeeklyTime((1,), 0, 8 * 60)
        always = WeeklyTime(tuple(range(7)), 0, 0)
        for times, hours in (
            ((WeeklyTime((6,), 22 * 60, 2 * 60), WeeklyTime((0,), 60, 5 * 60), WeeklyTime((0,), 300, 0)), 48),
            ((WeeklyTime((6, 0), 22 * 60, 22 * 60), morning), 70),
        ):
            at = sunday + 23 * 3600
            tracker = AlertTracker(AlertRules(0.0, 0.0, silences=(Silence(times=times),)), at)
            tracker.raised(entryOf(), at)
            while (due := tracker.deadline(at)) is not None and not tracker.take(due):
                self.assertGreater(due, at)
                at = due
            self.assertEqual(due, sunday + hours * 3600)
        until = sunday + 30 * 86400.0
        tracker = AlertTracker(AlertRules(0.0, 0.0, silences=(Silence(until=until, times=(always,)),)), 0.0)
        tracker.raised(entryOf(), sunday)
        self.assertEqual([tracker.take(sunday + day * 86400.0) for day in range(30)], [[]] * 30)
        self.assertEqual(len(tracker.take(until)), 1)

    def test_windowAfterReload(self) -> None:
        """A window that a changed configuration moves silences also what was due before it, until its end."""
        sunday = datetime(2026, 3, 1).timestamp()
        first, second = (Silence(times=(WeeklyTime((6,), *at),)) for at in ((60, 180), (90, 240)))
        tracker, entry = AlertTracker(AlertRules(0.0, 0.0, silences=(first,)), 0.0), entryOf()
        tracker.raised(entry, sunday + 3600.0)
        tracker.change(AlertRules(0.0, 0.0, silences=(second,)), [entry], sunday + 2 * 3600.0)
        self.assertEqual(tracker.take(sunday + 3 * 3600.0), [])
        self.assertEqual(tracker.deadline(sunday + 3 * 3600.0), sunday + 4 * 3600.0)
        tracker.change(AlertRules(0.0, 0.0), [entry], sunday + 3.5 * 3600.0)
        self.assertEqual(len(tracker.take(sunday + 3.5 * 3600.0)), 1)

    def test_windowWhileCollecting(self) -> None:
        """A finding that is collected for a message when a window begins is sent at its end."""
        sunday = datetime(2026, 3, 1).timestamp()
        silence = Silence(times=(WeeklyTime((6,), 60, 120),))
        tracker = AlertTracker(AlertRules(0.0, 10.0, silences=(silence,)), 0.0)
        tracker.raised(entryOf(), sunday + 3595.0)
        self.assertEqual(tracker.deadline(sunday + 3595.0), sunday + 3605.0)
        self.assertEqual(tracker.take(sunday + 3605.0), [])
        self.assertEqual(tracker.deadline(sunday + 3605.0), sunday + 7210.0)

    def test_repeat(self) -> None:
        """With a repeat interval, existing findings are sent again."""
        self.channel = RecordingOutlet(repeatSeconds=300.0)
        notifier, entry = self.started(), entryOf()
        notifier.findingChanged(Raised(entry))
        self.clock.pump([60.0] * 12)
        self.assertEqual(self.channel.output(), [[(True, "width", "leaf 1")]] * 3)
        notifier.findingChanged(Cleared(entry))
        self.clock.pump([60.0] * 12)
        self.assertEqual(self.channel.output(), [[(False, "width", "leaf 1")]])

    def test_restart(self) -> None:
        """A new process sends no alert twice; it sends the ends of cleared findings, and new findings."""
        path = self.mktemp()
        store = HistoryStore(path)
        notifier = self.started(memory=StoredMemory(store))
        for where in ("leaf 1", "leaf 2"):
            notifier.findingChanged(Raised(entryOf(where=where)))
        self.clock.advance(100.0)
        self.assertEqual(len(self.channel.output()), 1)
        notifier.stop()
        store.close()
        store = HistoryStore(path)
        self.addCleanup(store.close)
        notifier = self.started(memory=StoredMemory(store), former=formerAlerts(store))
        for where in ("leaf 1", "leaf 3"):
            notifier.findingChanged(Raised(entryOf(where=where)))
        self.clock.pump([10.0] * 60)
        self.assertEqual(self.channel.output(), [[(True, "width", "leaf 3")]])
        self.clock.pump([10.0] * int(GRACE_SECONDS // 10))
        self.assertEqual(self.channel.output(), [[(False, "width", "leaf 2")]])
        names = sorted(json.loads(one.subject)[2] for one in store.states("alert-raised"))
        self.assertEqual(names, ["leaf 1", "leaf 3"])

    def restarted(
        self, entries: Sequence[Entry], openKeys: Sequence[Key], ended: Sequence[Entry]
    ) -> Notifier:
        """Restart after alerts were sent, with other findings."""
        store = HistoryStore(self.mktemp())
        self.addCleanup(store.close)
        notifier = self.started(memory=StoredMemory(store))
        for entry in entries:
            notifier.findingChanged(Raised(entry))
        self.clock.advance(100.0)
        notifier.stop()
        self.channel.output()
        return self.started(
            memory=StoredMemory(store),
            former=formerAlerts(store),
            openKeys=openKeys,
            ended=ended,
            mustStore=True,
        )

    def test_clearedMeanwhile(self) -> None:
        """The end of a known finding is sent, also if it was cleared before a restart, and not sent."""
        one, other, before = entryOf(), entryOf(where="leaf 2"), entryOf(where="leaf 3")
        openKeys, ended = [one.key, other.key], [before, entryOf(where="leaf 4")]
        notifier = self.restarted([one, other, before], openKeys, ended)
        for event in (Cleared(one), Cleared(other), Raised(other)):
            notifier.findingChanged(event)
        self.clock.advance(10.0)
        self.assertEqual(self.channel.output(), [[(False, "width", where) for where in ("leaf 3", "leaf 1")]])
        self.clock.pump([10.0] * int(GRACE_SECONDS // 10))
        self.assertEqual(self.channel.output(), [])

    def test_returned(self) -> None:
        """The end of a finding that was cleared before a restart is sent once, also if it returns first."""
        entry = entryOf()
        notifier = self.restarted([entry], [], [entry])
        for event in (Raised(entry), Cleared(entry)):
            notifier.findingChanged(event)
        self.clock.advance(10.0)
        self.assertEqual(self.channel.output(), [[(False, "width", "leaf 1")]])

    def test_severityOfEnd(self) -> None:
        """The end of an alert has the severity of the alert, by which receivers recognize it."""
        self.restarted([entryOf(severity=Severity.CRITICAL)], [], [entryOf()])
        self.clock.advance(10.0)
        raised, ended = self.channel.alerts
        self.assertEqual((raised.isRaised, ended.isRaised), (True, False))
        self.assertEqual(labelsOf(ended.finding), labelsOf(raised.finding))

    def test_change(self) -> None:
        """Changed rules and channels apply from then on; sent alerts are not repeated."""
        notifier, entry = self.started(), entryOf()
        notifier.findingChanged(Raised(entry))
        notifier.findingChanged(Raised(entryOf(where="leaf 2")))
        self.clock.advance(100.0)
        other = RecordingOutlet()
        notifier.change(AlertRules(0.0, 0.0), [other])
        notifier.findingChanged(Raised(entryOf(where="leaf 3")))
        self.clock.advance(0.0)
        self.assertEqual(other.output(), [[(True, "width", "leaf 3")]])
        notifier.findingChanged(Cleared(entry))
        self.clock.advance(0.0)
        self.assertEqual(other.output(), [[(False, "width", "leaf 1")]])

    def test_changeOfSeverities(self) -> None:
        """Open findings are judged by changed rules: those that are now severe enough are sent, once."""
        notifier = self.started(AlertRules(0.0, 10.0, Severity.CRITICAL))
        warning, critical = entryOf(), entryOf(where="leaf 2", severity=Severity.CRITICAL)
        notifier.findingChanged(Raised(warning))
        notifier.findingChanged(Raised(critical))
        self.clock.advance(10.0)
        for _ in range(2):
            notifier.change(AlertRules(0.0, 10.0), [self.channel], [warning, critical])
            self.clock.advance(10.0)
        sent = [[(True, "width", "leaf 2")], [(True, "width", "leaf 1")]]
        self.assertEqual(self.channel.output(), sent)

    def test_changeOfSentSeverity(self) -> None:
        """A sent alert whose severity is another one by changed rules ends, and is sent with that, once."""
        for isRestarted in (False, True):
            notifier, entry = self.started(AlertRules(0.0, 10.0)), entryOf()
            notifier.findingChanged(Raised(entry))
            self.clock.advance(10.0)
            self.channel.alerts.clear()
            changed = entryOf(severity=Severity.CRITICAL)
            for _ in range(2):
                if isRestarted:
                    notifier.findingChanged(Resumed(changed))
                else:
                    notifier.change(AlertRules(0.0, 10.0), [self.channel], [changed])
                self.clock.advance(10.0)
            found = {(alert.isRaised, alert.finding["severity"]) for alert in self.channel.alerts}
            self.assertEqual(found, {(False, "warning"), (True, "critical")})
            self.assertEqual(len(self.channel.alerts), 2)

    def test_severityWithoutDelay(self) -> None:
        """Without a delay, the end of an alert is sent before that of another severity, which is stored."""
        store = HistoryStore(self.mktemp())
        self.addCleanup(store.close)
        rules = AlertRules(0.0, 0.0)
        notifier = self.started(rules, StoredMemory(store))
        notifier.findingChanged(Raised(entryOf()))
        self.clock.advance(0.0)
        notifier.change(rules, [self.channel], [entryOf(severity=Severity.CRITICAL)])
        self.clock.advance(0.0)
        sent = [(alert.isRaised, alert.finding["severity"]) for alert in self.channel.alerts]
        self.assertEqual(sent, [(True, "warning"), (False, "warning"), (True, "critical")])
        self.assertEqual([one["severity"] for one in formerAlerts(store).sent.values()], ["critical"])

    def test_newChannel(self) -> None:
        """A channel that a changed configuration adds gets the open alerts, others do not get them again."""
        notifier = self.started(AlertRules(0.0, 0.0))
        notifier.findingChanged(Raised(entryOf()))
        self.clock.advance(0.0)
        added = RecordingOutlet("added")
        added.isBroken = True
        notifier.change(AlertRules(0.0, 0.0), [self.channel, added])
        notifier.findingChanged(Raised(entryOf(where="leaf 2")))
        self.clock.advance(0.0)
        added.isBroken = False
        self.clock.advance(RETRY_SECONDS)
        for channel in (self.channel, added):
            self.assertEqual(channel.wheres(), ["leaf 1", "leaf 2"])

    def test_newChannelWhileUnsure(self) -> None:
        """An added channel gets the open alerts when no other process may be sending them."""
        isSure = True
        notifier = self.started(AlertRules(0.0, 0.0), isSure=lambda: isSure)
        notifier.findingChanged(Raised(entryOf()))
        self.clock.advance(0.0)
        isSure = False
        added = RecordingOutlet("added")
        notifier.change(AlertRules(0.0, 0.0), [self.channel, added])
        self.clock.advance(0.0)
        self.assertEqual(added.tries, 0)
        isSure = True
        self.clock.advance(RENEW_SECONDS)
        self.assertEqual(added.wheres(), ["leaf 1"])

    def test_severityThatReturns(self) -> None:
        """A severity that is changed and changed back before alerts are sent changes no alert."""
        notifier, entry = self.started(), entryOf()
        notifier.findingChanged(Raised(entry))
        self.clock.advance(100.0)
        self.channel.output()
        for severity in (Severity.CRITICAL, Severity.WARNING):
            notifier.change(RULES, [self.channel], [entryOf(severity=severity)])
        self.clock.advance(1000.0)
        self.assertEqual(self.channel.output(), [])
        notifier.findingChanged(Cleared(entry))
        self.clock.advance(1000.0)
        self.assertEqual(self.channel.output(), [[(False, "width", "leaf 1")]])

    def test_changeOfDelay(self) -> None:
        """A changed delay applies also to findings that wait, from when they were raised."""
        for delay, expected in ((10.0, 10.0), (300.0, 300.0), (1.0, 5.0)):
            tracker, entry = AlertTracker(AlertRules(60.0, 0.0), 1000.0), entryOf()
            tracker.raised(entry, 1000.0)
            self.assertEqual(tracker.deadline(1005.0), 1060.0)
            tracker.change(AlertRules(delay, 0.0), [entry], 1005.0)
            self.assertEqual(tracker.deadline(1005.0), 1000.0 + expected)

    def test_changeWhileWaiting(self) -> None:
        """A finding that waits, and is no longer severe enough by changed rules, is not sent."""
        notifier, entry = self.started(), entryOf()
        notifier.findingChanged(Raised(entry))
        notifier.change(AlertRules(least=Severity.CRITICAL), [self.channel], [entry])
        self.clock.advance(100.0)
        self.assertEqual(self.channel.output(), [])

    def test_changeWithoutHistory(self) -> None:
        """Alerts queued for the history are sent when it returns, even if channels changed meanwhile."""
        memory: Any = AbsentMemory()
        notifier = self.started(AlertRules(0.0, 0.0), memory, mustStore=True)
        notifier.findingChanged(Raised(entryOf()))
        self.clock.advance(0.0)
        notifier.change(AlertRules(0.0, 0.0), [self.channel])
        memory.isAbsent = False
        self.clock.pump([RETRY_SECONDS] * 2)
        self.assertEqual(self.channel.output(), [[(True, "width", "leaf 1")]])

    def test_changeOfRepeats(self) -> None:
        """A channel that repeats open alerts still does so after a change of the configuration."""
        self.channel.repeatSeconds = REPEAT_SECONDS
        notifier = self.started(AlertRules(0.0, 0.0))
        notifier.findingChanged(Raised(entryOf()))
        self.clock.advance(0.0)
        self.channel.output()
        notifier.change(AlertRules(0.0, 0.0), [self.channel])
        self.clock.advance(REPEAT_SECONDS)
        self.assertEqual(self.channel.output(), [[(True, "width", "leaf 1")]])

    def test_leftAlerts(self) -> None:
        """Alerts queued by a former process are sent before and beside new ones, each of them once."""
        store = HistoryStore(self.mktemp())
        self.addCleanup(store.close)
        self.channel.isBroken = True
        notifier = self.started(AlertRules(0.0, 0.0), StoredMemory(store))
        notifier.findingChanged(Raised(entryOf(where="leaf 1")))
        self.clock.advance(0.0)
        notifier.stop()
        notifier = self.started(AlertRules(0.0, 0.0), StoredMemory(store), formerAlerts(store))
        notifier.findingChanged(Raised(entryOf(where="leaf 2")))
        self.clock.advance(0.0)
        self.channel.isBroken = False
        self.clock.advance(RETRY_SECONDS)
        self.assertEqual(self.channel.wheres(), ["leaf 1", "leaf 2"])

    def test_hangingHistory(self) -> None:
        """A history that hangs when alerts are stored delays them, but does not prevent them."""
        memory: Any = AbsentMemory()
        memory.appendNow = lambda events: Deferred()
        notifier = self.started(AlertRules(0.0, 0.0), memory)
        notifier.findingChanged(Raised(entryOf()))
        self.clock.pump([0.0, MEMORY_SECONDS, MEMORY_SECONDS])
        self.assertEqual(self.channel.wheres(), ["leaf 1"])
        self.clock.pump([MEMORY_SECONDS] * 2)


class IdentityTests(SynchronousTestCase):
    """Identity of notifications: at least once, and the same whenever they are sent again."""

    def setUp(self) -> None:
        self.store = HistoryStore(self.mktemp())
        self.addCleanup(self.store.close)
        self.clock = Clock()
        self.clock.advance(5000.0)

    def started(self, channel: AlertChannel) -> Notifier:
        memory: Any = StoredMemory(self.store)
        notifier = Notifier(self.clock, AlertRules(0.0, 0.0), [channel], memory)
        notifier.restore(formerAlerts(self.store), (), ())
        notifier.start()
        self.addCleanup(notifier.stop)
        return notifier

    def test_renamed(self) -> None:
        """An alert is resolved with the labels with which it was raised, even if its node was renamed."""
        channel = RecordingOutlet()
        notifier, entry = self.started(channel), entryOf(where="localhost")
        notifier.findingChanged(Raised(entry))
        self.clock.advance(0.0)
        entry.finding = Finding("width", "node17", "it is slow", entry.finding.guid, 7)
        entry.severity, entry.clearedAt = Severity.CRITICAL, 6000.0
        notifier.findingChanged(Cleared(entry))
        self.clock.advance(0.0)
        fired, resolved = webhookMessage(channel.alerts, "me")["alerts"]
        self.assertEqual((fired["status"], resolved["status"]), ("firing", "resolved"))
        for name in ("labels", "fingerprint", "startsAt"):
            self.assertEqual(fired[name], resolved[name])
        self.assertEqual(resolved["annotations"]["where"], "node17")
        self.assertEqual(labelsOf({**entryOf().toDict(), "guid": None, "port": None})["where"], "leaf 1")

    def test_sentAgain(self) -> None:
        """A process that is killed after it has sent alerts sends them again, with the same identity."""
        channel, again = RecordingOutlet(), RecordingOutlet()
        append = self.store.append
        self.patch(self.store, "append", lambda events: "sent" in events[0].kind or append(events))
        notifier = self.started(channel)
        notifier.findingChanged(Raised(entryOf()))
        self.clock.advance(0.0)
        self.assertEqual(len(channel.alerts), 1)
        notifier.stop()
        self.started(again)
        self.assertEqual([one.identity for one in again.alerts], [one.identity for one in channel.alerts])
        self.assertEqual(
            mailOf(again.alerts, MAIL, 0.0)["Message-ID"], mailOf(channel.alerts, MAIL, 9.0)["Message-ID"]
        )
        path = self.mktemp()
        for several in (channel.alerts, again.alerts):
            self.successResultOf(LineChannel(path).send(several))
        identities = [json.loads(line)["id"] for line in Path(path).read_text().splitlines()]
        self.assertEqual(identities, [again.alerts[0].identity] * 2)

    def test_differ(self) -> None:
        """The end of a finding, its return, and other findings have other identities."""
        entry = entryOf()
        alerts = [Alert(entry.key, isRaised, entry.toDict()) for isRaised in (True, False)]
        entry.times += 1
        alerts += [Alert(entry.key, True, entry.toDict()), *alertsOf("leaf 2")]
        self.assertEqual(len({alert.identity for alert in alerts}), 4)
        posted = [alert["annotations"]["id"] for alert in postedAlerts(alerts, 3000.0)]
        self.assertEqual(posted, [alert.identity for alert in alerts])


class FormatTests(SynchronousTestCase):
    def test_posted(self) -> None:
        """Alertmanager's API gets labels, annotations and times; an alert without updates expires."""
        (alert,) = postedAlerts(alertsOf("leaf 1"), 3000.0)
        self.assertEqual(alert["labels"]["alertname"], "width")
        self.assertEqual((alert["labels"]["severity"], alert["labels"]["port"]), ("warning", "7"))
        self.assertEqual(
            {name: alert["annotations"][name] for name in ("summary", "description", "where")},
            {"summary": "it is slow", "description": "Mend it.", "where": "leaf 1"},
        )
        self.assertEqual(alert["startsAt"], "1970-01-01T00:16:40Z")
        self.assertEqual(alert["endsAt"], "1970-01-01T01:05:00Z")
        (alert,) = postedAlerts(alertsOf("leaf 1", isRaised=False), 3000.0)
        self.assertEqual(alert["endsAt"], "1970-01-01T00:33:20Z")

    def test_clockSetBack(self) -> None:
        """No alert ends before it starts, also if the clock was set back while the monitor did not run."""
        raised, (cleared,) = alertsOf("leaf 1"), alertsOf("leaf 2", isRaised=False)
        cleared = replace(cleared, finding={**cleared.finding, "firstSeen": 9000.0})
        for now in (3000.0, 50.0):
            for alert in postedAlerts([*raised, cleared], now) + webhookMessage([cleared], "me")["alerts"]:
                self.assertLessEqual(alert["startsAt"], alert["endsAt"])

    def test_webhook(self) -> None:
        """Webhooks get the format of Alertmanager's webhooks."""
        message = webhookMessage(alertsOf("leaf 1", "leaf 2") + alertsOf("leaf 3", isRaised=False), "me")
        self.assertEqual((message["version"], message["status"], message["receiver"]), ("4", "firing", "me"))
        self.assertEqual([alert["status"] for alert in message["alerts"]], ["firing", "firing", "resolved"])
        self.assertEqual(message["commonLabels"]["alertname"], "width")
        self.assertNotIn("where", message["commonAnnotations"])
        self.assertEqual(len({alert["annotations"]["id"] for alert in message["alerts"]}), 3)
        self.assertEqual(webhookMessage(alertsOf("leaf 1", isRaised=False), "me")["status"], "resolved")

    def test_mail(self) -> None:
        """A mail contains all findings; names from the fabric cannot change its headers."""
        evil = "leaf\r\nBcc: all@example.org\r\n\r\n\x1b[2J\u00e9"
        settings = MailSettings("mail", "fabric@example.org", ("ops@example.org", "you@example.org"))
        raw = mailOf(alertsOf(evil, "leaf 2") + alertsOf("leaf 3", isRaised=False), settings, 0.0).as_bytes()
        message = message_from_bytes(raw)
        self.assertIsNone(message["Bcc"])
        self.assertEqual(message["To"], "ops@example.org, you@example.org")
        payload = message.get_payload(decode=True)
        assert isinstance(payload, bytes)
        self.assertEqual(payload.count(b"Mend it."), 2)
        self.assertIn(b"Cleared: warning width: leaf 3", payload)

    def test_refusedRecipients(self) -> None:
        """The answer of a mail server about a recipient has no control characters in the log."""
        channel = MailChannel(Clock(), MailSettings("mail", "fabric@example.org", ("ops@example.org",)))
        answers = [(b"ops@example.org", 250, b"OK"), (b"you@example.org", 550, b"no\x1b[2J\r\n")]
        with capturedLogs() as logs:
            channel._sent((1, answers))
        texts = [formatEvent(each) for each in logs]
        self.assertEqual(texts, [r"mail to you@example.org: 550 no\x1b[2J\x0d\x0a"])

    def test_refusedMail(self) -> None:
        """The error of a refused mail has the escaped answers, but not the last lines of the exchange."""
        reactor = MemoryReactorClock()
        channel = MailChannel(reactor, MailSettings("mail", "fabric@example.org", ("ops@example.org",)))
        answers = [(b"ops@example.org", 550, b"no\x1b[2J"), (b"you@example.org", 550, b"no\x1b[2J")]
        for error, text in (
            (SMTPDeliveryError(550, b"Refused", b">>> cGFzc3dvcmQ=", answers), r"550 Refused; no\x1b[2J"),
            (AUTHDeclinedError(535, b"no\n\xff", b">>> cGFzc3dvcmQ="), r"535 no\x0a\xff"),
            (SMTPTimeoutError(-1, b"Timeout", b">>> cGFzc3dvcmQ="), "Timeout"),
        ):
            sent = channel.send(alertsOf("leaf 1"))
            factory: Any = reactor.tcpClients[-1][2]
            factory.result.errback(error)
            self.assertEqual(str(self.failureResultOf(sent, DeviceUnavailable).value), text)

    def test_lines(self) -> None:
        """Lines of JSON are appended, one for each finding, even if its name contains line breaks."""
        path = self.mktemp()
        channel = LineChannel(path)
        self.successResultOf(channel.send(alertsOf("leaf\n\udcff")))
        self.successResultOf(channel.send(alertsOf("leaf 2", isRaised=False)))
        lines = [json.loads(line) for line in Path(path).read_text().splitlines()]
        self.assertEqual([line["status"] for line in lines], ["firing", "resolved"])
        self.assertRaises(DeviceUnavailable, LineChannel("/nonexistent/log").send, alertsOf("leaf 1"))

    def test_fullLog(self) -> None:
        """If the disk is full, no line of a batch is written, so that none is duplicated later."""
        path = self.mktemp()
        channel = LineChannel(path)
        self.successResultOf(channel.send(alertsOf("leaf 1")))
        before, write, sizes = Path(path).read_bytes(), os.write, [7]

        def full(descriptor: int, content: bytes) -> int:
            if not sizes:
                raise OSError(ENOSPC, "No space left on device")
            return write(descriptor, content[: sizes.pop()])

        self.patch(os, "write", full)
        error = self.assertRaises(DeviceUnavailable, channel.send, alertsOf("leaf 2"))
        self.assertEqual((Path(path).read_bytes(), str(error)), (before, "No space left on device"))
        self.patch(os, "write", write)
        self.successResultOf(channel.send(alertsOf("leaf 2")))
        self.assertEqual(len(Path(path).read_text().splitlines()), 2)
