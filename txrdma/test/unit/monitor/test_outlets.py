"""
Queues of news: channels that are away for long, processes that end meanwhile, and mail servers that are ill.
"""

from __future__ import annotations

import json
from collections.abc import Sequence

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.monitor.diagnosis.findinglog import Cleared, Raised
from txrdma.monitor.events.alerts import News, TellingRules
from txrdma.monitor.events.notificationqueue import LONGEST_RETRY_SECONDS, MOST_NEWS, QUEUE, STOP_SECONDS
from txrdma.monitor.events.notifier import Teller
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.test.support.monitor.telling import entryOf
from txrdma.test.unit.monitor.test_telling import Heard, StoredMemory

AT_ONCE = TellingRules(0.0, 0.0)


class Counted(Heard):
    """A channel that counts how often it was tried, and may keep whoever tells waiting."""

    def __init__(self, queue: str = "heard") -> None:
        super().__init__()
        self.queue = queue
        self.tries = 0
        self.isSilent = False
        self.cancelled = 0

    def tell(self, news: Sequence[News]) -> Deferred[None]:
        self.tries += 1
        if self.isSilent:
            return Deferred(self._cancel)
        return super().tell(news)

    def _cancel(self, _: object) -> None:
        self.cancelled += 1

    def wheres(self) -> list[str]:
        return [where for message in self.said() for _isRaised, _kind, where in message]


class QueueTests(SynchronousTestCase):
    """What waits, for how long, and across restarts."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.clock.advance(5000.0)
        self.channel = Counted()
        self.path = self.mktemp()
        self.store = HistoryStore(self.path)
        self.addCleanup(lambda: self.store.close())

    def started(self, *channels: Counted) -> Teller:
        teller = Teller(self.clock, AT_ONCE, channels or (self.channel,), StoredMemory(self.store))
        teller.start()
        self.addCleanup(teller.stop)
        return teller

    def raised(self, teller: Teller, *names: str) -> None:
        for name in names:
            teller.heard(Raised(entryOf(where=name)))
            self.clock.advance(0.0)

    def waiting(self) -> int:
        return len(self.store.remembered(QUEUE))

    def test_tenMinutes(self) -> None:
        """After ten minutes without the receiver nothing is lost; it was asked more and more seldom."""
        teller = self.started()
        self.channel.isBroken = True
        self.raised(teller, "leaf 1")
        self.clock.pump([1.0] * 300)
        self.raised(teller, "leaf 2")
        self.clock.pump([1.0] * 300)
        self.assertEqual(self.waiting(), 2)
        self.assertIn(self.channel.tries, range(4, 8))
        self.channel.isBroken = False
        self.clock.pump([1.0] * int(LONGEST_RETRY_SECONDS))
        self.assertEqual(self.channel.wheres(), ["leaf 1", "leaf 2"])
        self.assertEqual((self.waiting(), teller.findings()), (0, []))

    def test_restarted(self) -> None:
        """What waits when a process ends is told by the next one, in order and once."""
        teller = self.started()
        self.channel.isBroken = True
        self.raised(teller, "leaf 1", "leaf 2")
        teller.heard(Cleared(entryOf(where="leaf 1")))
        self.clock.advance(1.0)
        teller.stop()
        self.store.close()
        self.store = HistoryStore(self.path)
        self.channel.isBroken = False
        for expected in ([(True, "leaf 1"), (True, "leaf 2"), (False, "leaf 1")], []):
            teller = self.started()
            self.raised(teller, "leaf 2")
            self.clock.advance(60.0)
            told = [(isRaised, where) for one in self.channel.said() for isRaised, _kind, where in one]
            self.assertEqual(told, expected)
            teller.stop()

    def test_killed(self) -> None:
        """A message is stored until the channel has it: a killed process sends it twice, not never."""
        self.channel.isSilent = True
        teller = self.started()
        self.raised(teller, "leaf 1")
        self.assertEqual((self.channel.tries, self.waiting()), (1, 1))
        self.raised(teller, "leaf 2")
        self.assertEqual((self.channel.tries, self.waiting()), (1, 2))
        other = Counted()
        self.started(other)
        self.clock.advance(1.0)
        self.assertEqual((other.wheres(), self.waiting()), (["leaf 1", "leaf 2"], 0))

    def test_stoppedMeanwhile(self) -> None:
        """At the end a message that is on its way has some time; then it waits for the next process."""
        self.channel.isSilent = True
        teller = self.started()
        self.raised(teller, "leaf 1")
        ending = teller.stop()
        self.clock.advance(STOP_SECONDS - 0.1)
        self.assertNoResult(ending)
        self.clock.advance(0.2)
        self.successResultOf(ending)
        self.assertEqual((self.channel.cancelled, self.waiting()), (1, 1))
        self.channel.isSilent = False
        self.started()
        self.assertEqual(self.channel.wheres(), ["leaf 1"])

    def test_bounded(self) -> None:
        """No more waits than may, in memory and in the store; how many were dropped is told."""
        teller = self.started()
        self.channel.isBroken = True
        self.raised(teller, *(f"leaf {number}" for number in range(MOST_NEWS + 20)))
        self.assertEqual(self.waiting(), MOST_NEWS)
        [finding] = teller.findings()
        self.assertIn("20 older news were dropped", finding.text)
        self.channel.isBroken = False
        self.clock.pump([1.0] * int(LONGEST_RETRY_SECONDS))
        self.assertEqual(self.channel.wheres(), [f"leaf {number}" for number in range(20, MOST_NEWS + 20)])

    def test_reloaded(self) -> None:
        """What waits outlasts a change of the configuration, and is told soon by what has the place."""
        one, other = Counted("one"), Counted("other")
        one.isBroken = other.isBroken = True
        teller = self.started(one, other)
        self.raised(teller, "leaf 1")
        self.clock.pump([1.0] * 600)
        tries = other.tries
        moved = Counted("one")
        teller.change(AT_ONCE, [moved])
        self.clock.advance(0.0)
        self.assertEqual(moved.wheres(), ["leaf 1"])
        other.isBroken = False
        self.clock.pump([10.0] * 60)
        self.assertEqual(other.tries, tries)
        teller.stop()
        self.assertEqual({json.loads(name)[0] for name, _ in self.store.remembered(QUEUE)}, {"other"})
        self.started(moved)
        self.assertEqual((self.waiting(), moved.wheres()), (0, []))
