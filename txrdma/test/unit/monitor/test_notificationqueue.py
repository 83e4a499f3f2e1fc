"""Queues of alerts: channels that fail for long, and processes that end meanwhile."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast, NoReturn

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.monitor.diagnosis.findinglog import Cleared, Raised
from txrdma.monitor.diagnosis.journal import FabricEvent
from txrdma.monitor.events.alerts import AlertRules
from txrdma.monitor.events.notificationqueue import (
    LONGEST_RETRY_SECONDS,
    MOST_ALERTS,
    QUEUED,
    RETRY_SECONDS,
    STOP_SECONDS,
)
from txrdma.monitor.events.notifier import MEMORY_SECONDS, Notifier
from txrdma.monitor.events.restoring import formerAlerts
from txrdma.monitor.series.history import HistoryWriter
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.test.support import slow
from txrdma.test.support.monitor.alerts import entryOf, RecordingOutlet, StoredMemory

AT_ONCE = AlertRules(0.0, 0.0)


class QueueTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.clock.advance(5000.0)
        self.channel = RecordingOutlet()
        self.path = self.mktemp()
        self.store = HistoryStore(self.path)
        self.addCleanup(lambda: self.store.close())

    def started(self, *channels: RecordingOutlet, memory: Any = None) -> Notifier:
        memory = memory or StoredMemory(self.store)
        notifier = Notifier(self.clock, AT_ONCE, channels or (self.channel,), memory)
        notifier.restore(formerAlerts(self.store), (), ())
        notifier.start()
        self.addCleanup(self.clock.advance, STOP_SECONDS)
        self.addCleanup(notifier.stop)  # which waits for a message in progress
        return notifier

    def raised(self, notifier: Notifier, *names: str) -> None:
        for name in names:
            notifier.findingChanged(Raised(entryOf(where=name)))
            self.clock.advance(0.0)

    def waiting(self) -> int:
        return len(self.store.states(QUEUED))

    def test_tenMinutes(self) -> None:
        """After ten minutes without the receiver nothing is lost; attempts become less frequent."""
        notifier = self.started()
        self.channel.isBroken = True
        self.raised(notifier, "leaf 1")
        self.clock.pump([1.0] * 300)
        self.raised(notifier, "leaf 2")
        self.clock.pump([1.0] * 300)
        self.assertEqual(self.waiting(), 2)
        self.assertEqual([one.kind for one in notifier.findings()], ["notification-failed"])
        self.assertIn(self.channel.tries, range(4, 8))
        self.channel.isBroken = False
        self.clock.pump([1.0] * int(LONGEST_RETRY_SECONDS))
        self.assertEqual(self.channel.wheres(), ["leaf 1", "leaf 2"])
        self.assertEqual((self.waiting(), notifier.findings()), (0, []))

    def test_restarted(self) -> None:
        """Messages queued when a process ends are sent by the next one, in order and once."""
        notifier = self.started()
        self.channel.isBroken = True
        self.raised(notifier, "leaf 1", "leaf 2")
        notifier.findingChanged(Cleared(entryOf(where="leaf 1")))
        self.clock.advance(1.0)
        notifier.stop()
        self.store.close()
        self.store = HistoryStore(self.path)
        self.channel.isBroken = False
        for expected in ([(True, "leaf 1"), (True, "leaf 2"), (False, "leaf 1")], []):
            notifier = self.started()
            self.raised(notifier, "leaf 2")
            self.clock.advance(60.0)
            reported = [(isRaised, where) for one in self.channel.output() for isRaised, _kind, where in one]
            self.assertEqual(reported, expected)
            notifier.stop()

    def test_killed(self) -> None:
        """A message is stored until the channel has accepted it: after a kill it is sent twice, not never."""
        self.channel.isSilent = True
        notifier = self.started()
        self.raised(notifier, "leaf 1")
        self.assertEqual((self.channel.tries, self.waiting()), (1, 1))
        self.raised(notifier, "leaf 2")
        self.assertEqual((self.channel.tries, self.waiting()), (1, 2))
        other = RecordingOutlet()
        self.started(other)
        self.clock.advance(1.0)
        self.assertEqual((other.wheres(), self.waiting()), (["leaf 1", "leaf 2"], 0))

    def test_stoppedMeanwhile(self) -> None:
        """On stop, a message in progress gets some time; then it is left to the next process."""
        self.channel.isSilent = True
        notifier = self.started()
        self.raised(notifier, "leaf 1")
        ending = notifier.stop()
        self.clock.advance(STOP_SECONDS - 0.1)
        self.assertNoResult(ending)
        self.clock.advance(0.2)
        self.successResultOf(ending)
        self.assertEqual((self.channel.cancelled, self.waiting()), (1, 1))
        self.channel.isSilent = False
        self.started()
        self.assertEqual(self.channel.wheres(), ["leaf 1"])

    def test_bounded(self) -> None:
        """The queue is bounded in memory and in the store, and the number of dropped messages is reported."""
        notifier = self.started()
        self.channel.isBroken = True
        self.raised(notifier, *(f"leaf {number}" for number in range(MOST_ALERTS + 20)))
        self.assertEqual(self.waiting(), MOST_ALERTS)
        [finding] = notifier.findings()
        self.assertIn("20 older alerts were dropped", finding.text)
        self.channel.isBroken = False
        self.clock.pump([1.0] * int(LONGEST_RETRY_SECONDS))
        self.assertEqual(self.channel.wheres(), [f"leaf {number}" for number in range(20, MOST_ALERTS + 20)])

    def test_reloaded(self) -> None:
        """Queued messages survive a change of the configuration and are sent by the new channel."""
        one, other = RecordingOutlet("one"), RecordingOutlet("other")
        one.isBroken = other.isBroken = True
        notifier = self.started(one, other)
        self.raised(notifier, "leaf 1")
        self.clock.pump([1.0] * 600)
        tries = other.tries
        moved = RecordingOutlet("one")
        notifier.change(AT_ONCE, [moved])
        self.clock.advance(0.0)
        self.assertEqual(moved.wheres(), ["leaf 1"])
        other.isBroken = False
        self.clock.pump([10.0] * 60)
        self.assertEqual(other.tries, tries)
        self.assertEqual(self.waiting(), 0)
        notifier.stop()
        self.started(moved)
        self.assertEqual((self.waiting(), moved.wheres()), (0, []))

    def test_removedForAWhile(self) -> None:
        """What waited for a channel when it was removed is not sent after it is added again."""
        other = RecordingOutlet("other")
        notifier = self.started(self.channel, other)
        self.channel.isBroken = True
        self.raised(notifier, "leaf 1", "leaf 2")
        notifier.change(AT_ONCE, [other])
        notifier.findingChanged(Cleared(entryOf(where="leaf 2")))
        self.clock.advance(0.0)
        self.channel.isBroken = False
        notifier.change(AT_ONCE, [other, self.channel])
        self.clock.advance(0.0)
        self.assertEqual(self.channel.wheres(), ["leaf 1"])
        notifier.stop()
        self.started(self.channel, other)
        self.assertEqual(self.channel.wheres(), [])

    def test_removedWhileStored(self) -> None:
        """Alerts that are being stored when their channel is removed do not wait for it either."""
        memory = StoredMemory(self.store)
        notifier, storing = self.started(memory=memory), Deferred[None]()
        self.patch(memory, "appendNow", lambda events: storing.addCallback(lambda _: memory.append(events)))
        self.raised(notifier, "leaf 1")
        notifier.change(AT_ONCE, [])
        storing.callback(None)
        self.assertEqual((self.channel.tries, self.waiting()), (0, 0))

    def test_addedWhileStored(self) -> None:
        """A channel that is added while alerts are being stored gets all open ones, too."""
        memory, added = StoredMemory(self.store), RecordingOutlet("added")
        notifier, storing = self.started(memory=memory), Deferred[None]()
        patched = self.patch(memory, "appendNow", lambda events: storing)
        self.raised(notifier, "leaf 1")
        notifier.change(AT_ONCE, [self.channel, added])
        patched.restore()
        storing.callback(None)
        self.clock.advance(0.0)
        self.assertEqual((self.channel.wheres(), added.wheres()), (["leaf 1"], ["leaf 1"]))

    def test_reloadedPause(self) -> None:
        """A channel that replaces one that failed for long is tried at once, then after a short pause."""
        notifier = self.started()
        self.channel.isBroken = True
        self.raised(notifier, "leaf 1")
        self.clock.pump([1.0] * 600)
        other = RecordingOutlet()
        other.isBroken = True
        notifier.change(AT_ONCE, [other])
        self.assertEqual(other.tries, 1)
        self.clock.advance(RETRY_SECONDS)
        self.assertEqual(other.tries, 2)

    def test_historyFailsMeanwhile(self) -> None:
        """An alert that is sent while the history cannot be written is not sent by the next process again."""
        writer = HistoryWriter(self.clock, self.store, maybeDeferred, self.clock.seconds)
        writer.start()
        notifier = self.started(memory=writer)
        self.channel.isBroken = True
        self.raised(notifier, "leaf 1")
        self.assertEqual(self.waiting(), 1)
        self.channel.isBroken = False

        def fail(*events: object) -> NoReturn:
            raise DeviceUnavailable("the disk is full")

        patches = [self.patch(self.store, name, fail) for name in ("append", "write")]
        self.clock.advance(RETRY_SECONDS)
        self.assertEqual(self.channel.wheres(), ["leaf 1"])
        for each in patches:
            each.restore()
        self.clock.advance(RETRY_SECONDS)
        self.assertEqual(self.waiting(), 0)

    def test_storedLate(self) -> None:
        """Alerts that the history has stored too late, or without an answer, are sent once."""
        memory = StoredMemory(self.store)
        notifier = Notifier(self.clock, AT_ONCE, [self.channel], cast(Any, memory), mustStore=True)
        notifier.start()
        self.addCleanup(notifier.stop)

        def hang(events: Sequence[FabricEvent]) -> Deferred[None]:
            self.store.append(events)
            return Deferred()

        hanging = self.patch(memory, "appendNow", hang)
        self.raised(notifier, "leaf 1")
        self.clock.advance(MEMORY_SECONDS)
        self.assertEqual((self.channel.wheres(), self.waiting()), ([], 1))
        hanging.restore()
        self.clock.advance(RETRY_SECONDS)
        self.assertEqual((self.channel.wheres(), self.waiting()), (["leaf 1"], 0))

    @slow("more alerts are queued than may wait")
    def test_droppedAgain(self) -> None:
        """The finding about a channel counts the alerts that were dropped since its last success."""
        notifier = self.started()
        for _ in range(2):
            self.channel.isBroken = True
            self.raised(notifier, *(f"leaf {number}" for number in range(MOST_ALERTS + 1)))
            (finding,) = notifier.findings()
            self.assertIn("; 1 older alerts were dropped", finding.text)
            self.channel.isBroken = False
            self.clock.pump([LONGEST_RETRY_SECONDS] * 2)
            self.assertEqual(notifier.findings(), [])
            for number in range(MOST_ALERTS + 1):
                notifier.findingChanged(Cleared(entryOf(where=f"leaf {number}")))
            self.clock.pump([LONGEST_RETRY_SECONDS] * 2)
