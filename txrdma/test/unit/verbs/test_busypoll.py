"""How long readers busy-poll before they sleep: simulated answers, and the cost of polling."""

from __future__ import annotations

from collections.abc import Iterable
from itertools import repeat

from twisted.trial.unittest import SynchronousTestCase

from txrdma.verbs._busypoll import BusyPoll, LOW_LATENCY_SECONDS, MOST_SECONDS, SLEEP_SECONDS, SpinBudget
from txrdma.verbs._sources import Sources

US = 1e-6


class BusyPollTests(SynchronousTestCase):
    """A reader that waits for answers that arrive at given times."""

    def setUp(self) -> None:
        self.budget = SpinBudget()
        self.busyPoll = BusyPoll(self.budget)
        self.now = 1000.0
        self.polled = 0.0

    def answers(
        self,
        waits: Iterable[float],
        work: float = 10 * US,
        waking: float = 60 * US,
        isPeerPolling: bool = False,
    ) -> list[bool]:
        """
        Wait for answers, and work for a while after each.

        @param waking: additional seconds until an answer is read after a sleep.
        @return: for each answer, whether it was found by polling.
        """
        found = []
        for wait in waits:
            until = self.busyPoll.wait(self.now, isPeerPolling)
            arrival = self.now + wait
            found.append(arrival < until)
            self.polled += min(until, arrival) - self.now
            came = arrival if found[-1] else arrival + waking
            self.busyPoll.found(came)
            self.now = came + work
        return found

    def test_quickAnswersAreFoundFromFirstOne(self) -> None:
        self.assertTrue(all(self.answers(repeat(10 * US, 1000))))

    def test_answersQuickerThanSleepAreFound(self) -> None:
        found = self.answers(repeat(SLEEP_SECONDS - US, 2000), work=20 * US)
        self.assertTrue(all(found[1:]))

    def test_slowPeer(self) -> None:
        """Unsuccessful polling takes at most 2 % of the time, even if the peer polls or latency matters."""
        for wait, work, isPeerPolling, prefersLatency in (
            *((wait * US, wait * US, False, False) for wait in (60, 90, 200, 500)),
            (90 * US, 90 * US, True, False),
            (500 * US, 10 * US, False, True),
        ):
            self.setUp()
            if prefersLatency:
                self.busyPoll.preferLatency()
            self.answers(repeat(wait, 1000), work=work, isPeerPolling=isPeerPolling)
            began, self.polled = self.now, 0.0
            self.answers(repeat(wait, 10_000), work=work, isPeerPolling=isPeerPolling)
            share = self.polled / (self.now - began)
            self.assertLess(share, 0.02, (wait, isPeerPolling, prefersLatency))

    def test_slowAnswersAreFoundWithLowLatency(self) -> None:
        for work in (20, 60, 100, 200, 250):
            self.setUp()
            self.busyPoll.preferLatency()
            found = self.answers(repeat((work + 10) * US, 1000), work=work * US)
            self.assertTrue(all(found[1:]), work)

    def test_millisecondAnswersAreNotPolledFor(self) -> None:
        found = self.answers(repeat(1e-3, 1000))
        self.assertFalse(any(found))
        self.assertLess(self.polled, 500 * US)

    def test_waitWithoutAnswerIsPolledOnceForBoundedTime(self) -> None:
        until = self.busyPoll.wait(self.now)
        self.assertLessEqual(until - self.now, MOST_SECONDS)
        self.assertEqual(self.busyPoll.wait(self.now + 5), until)
        self.assertLess(MOST_SECONDS, LOW_LATENCY_SECONDS)

    def test_pollingBeginsAgainAfterSlowAnswers(self) -> None:
        self.answers(repeat(90 * US, 2000), work=90 * US)
        found = self.answers(repeat(3 * US, 20_000), waking=40 * US)
        self.assertTrue(all(found[-1000:]))

    def test_readerWithoutCreditPollsIfPeerDoes(self) -> None:
        self.answers(repeat(90 * US, 8), work=90 * US)
        while self.busyPoll.wait(self.now) > self.now:
            self.answers([300 * US])
        self.busyPoll.foundAtOnce()
        self.assertGreater(self.busyPoll.wait(self.now, True), self.now)

    def test_earlyCompletionGivesNoCredit(self) -> None:
        self.answers(repeat(90 * US, 1000), work=90 * US)
        for _ in range(1000):
            self.busyPoll.wait(self.now)
            self.busyPoll.foundAtOnce()
        self.assertFalse(any(self.answers(repeat(90 * US, 10), work=90 * US)))

    def test_pausesAreNotPolledLongerThanAnswersTook(self) -> None:
        waits = [*repeat(10 * US, 9), 0.01] * 50
        found = self.answers(waits)
        self.assertEqual(found.count(True), 9 * 50)
        self.assertLess(self.polled, 50 * (9 * 10 + 100) * US)

    def test_pollingTimeFollowsQuickerAnswers(self) -> None:
        self.answers(repeat(80 * US, 3), work=80 * US)
        self.answers(repeat(10 * US, 40))
        self.assertLess(self.busyPoll.wait(self.now) - self.now, 50 * US)

    def test_unsuccessfulPollingOfAllReadersIsBounded(self) -> None:
        others = [BusyPoll(self.budget) for _ in range(4)]
        polled = 0.0
        began = self.now
        for turn in range(40_000):
            if turn == 10_000:
                polled, began = 0.0, self.now
            busyPoll = others[turn % 4]
            until = busyPoll.wait(self.now)
            polled += until - self.now
            self.now += 300 * US
            busyPoll.found(self.now)
        self.assertLess(polled / (self.now - began), 0.02)


class PollTests(SynchronousTestCase):
    """Sources that are polled; each poll takes a microsecond."""

    def setUp(self) -> None:
        self.now = 1.0
        self.polls = 0

    def poll(self, answers: Iterable[int]) -> BusyPoll:
        """Poll until no time is left for this iteration; the polls with these numbers find an answer."""
        busyPoll = BusyPoll(SpinBudget())
        found = set(answers)
        self.polls = 0

        def poll(limit: int) -> tuple[int, ...]:
            self.polls += 1
            self.now += US
            return (1,) if self.polls in found else ()

        sources = Sources(lambda: self.fail("no poll raises an exception"), lambda: False)
        sources.isRunning = True
        sources.add(poll, lambda batch: None)
        until = busyPoll.wait(self.now)
        self.isTimeLeft = busyPoll.poll(
            sources, self.now, until, lambda: self.now, lambda: None, lambda: False
        )
        return busyPoll

    def test_learnsFromEachPoll(self) -> None:
        """What the first poll finds was there before the wait; others show how long answers take."""
        expected = BusyPoll(SpinBudget())._expected
        unlearnt = [number for number in range(1, 40) if self.poll([number])._expected == expected]
        self.assertEqual(unlearnt, [1])

    def test_returnsWithoutAnswer(self) -> None:
        self.poll([])
        self.assertTrue(self.isTimeLeft)
        self.assertTrue(40 <= self.polls < 50, self.polls)

    def test_returnsAmongAnswers(self) -> None:
        self.poll(range(10, 10_000, 10))
        self.assertTrue(self.isTimeLeft)
        self.assertTrue(400 <= self.polls < 420, self.polls)


class CrowdedTests(SynchronousTestCase):
    """A process that has to wait for a processor, as the kernel counts it."""

    def setUp(self) -> None:
        self.waited = 0.0
        self.asked = 0
        self.now = 1000.0
        self.budget = SpinBudget(self.runQueueWait)
        self.busyPoll = BusyPoll(self.budget)

    def runQueueWait(self) -> float:
        self.asked += 1
        return self.waited

    def polls(self, share: float) -> bool:
        """Return whether answers are polled for after a second in which the process waited this share."""
        for _ in range(100):
            self.now += 10e-3
            self.waited += share * 10e-3
            polls = self.busyPoll.wait(self.now) > self.now
            self.busyPoll.found(self.now + US)
        return polls

    def test_waitForProcessorStopsPolling(self) -> None:
        """No reader polls while the process waits for more than 5 % of the time; afterwards readers do."""
        for share, polls in ((0.0, True), (0.04, True), (0.06, False), (0.9, False), (0.04, True)):
            self.assertIs(self.polls(share), polls, share)

    def test_slicesWithoutWaiting(self) -> None:
        """A process that runs for 3 ms and then waits as long does not poll while it runs."""
        self.polls(0.5)
        for _ in range(20):
            self.now += 3e-3
            self.waited += 3e-3
            for _ in range(6):
                self.now += 0.5e-3
                self.assertLessEqual(self.busyPoll.wait(self.now), self.now)
                self.busyPoll.found(self.now + US)

    def test_kernelIsAskedOnceInTwoMilliseconds(self) -> None:
        for _ in range(1000):
            self.now += 10 * US
            self.busyPoll.wait(self.now)
            self.busyPoll.found(self.now + US)
        self.assertLessEqual(self.asked, 6)

    def test_allReadersOfProcessStop(self) -> None:
        """A reader does not poll when another one has just found the machine busy."""
        self.polls(0.9)
        self.now += 100 * US
        self.assertEqual(BusyPoll(self.budget).wait(self.now), self.now)
