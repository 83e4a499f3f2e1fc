"""
Completion queues of the software device, and the channels that wake their readers.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
from collections.abc import Callable, Sequence
from select import select

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import InvalidRequest
from txrdma.iba.types import QPN
from txrdma.iba.verbs import AsyncEventKind, Completion, CompletionOpcode, SendRequest, Status
from txrdma.interfaces import AsyncEvent
from txrdma.soft.core.completion import SoftCompletionChannel, SoftCompletionQueue
from txrdma.soft.core.doorbellpage import DOORBELL_BYTES


def completion(identifier: int, number: int = 2) -> Completion:
    return Completion(identifier, Status.SUCCESS, CompletionOpcode.RECEIVE, QPN(number))


class Lane:
    """A route whose arrivals are found by polling; it rings its peer's doorbell as shared memory does."""

    name = "lane"
    polled = True
    rewinds = 0
    direct = None
    wake: Callable[[], None] | None = None

    def __init__(self, queue: SoftCompletionQueue) -> None:
        self.queue = queue
        self.doorbell = queue.channel.claimDoorbell()
        self.taken = self.arms = 0
        self.isWaiting = False
        self.arrived: list[Completion] = []
        self.isArmed = False
        self.polls = 0

    def arrive(self, identifier: int) -> None:
        """Deliver something as the peer, and ring once if requested."""
        self.arrived.append(completion(identifier))
        if self.isArmed:
            self.isArmed = False
            if self.queue.channel.page is not None:
                self.queue.channel.page.ring(self.doorbell)
            os.write(self.queue.channel.doorbell, (1).to_bytes(8, sys.byteorder))

    def poll(self) -> None:
        self.polls += 1
        while self.arrived:
            self.taken += 1
            self.queue.push(self.arrived.pop(0))

    def arm(self, sends: bool, receives: bool, solicitedOnly: bool) -> None:
        self.arms += 1
        self.isArmed = sends or receives

    def activity(self) -> int:
        return -1 if self.isWaiting else self.taken

    def setDormant(self, wake: Callable[[], None] | None) -> None:
        self.wake = wake

    # not used here
    def post(self, requests: Sequence[SendRequest]) -> None: ...
    def receivesPosted(self) -> None: ...
    def attributesChanged(self) -> None: ...
    def migrate(self) -> None: ...
    def close(self) -> None: ...
    def trim(self) -> bool:
        return False

    def flush(self) -> list[tuple[int, CompletionOpcode]]:
        return []


class Member:
    """A queue pair, as a completion queue uses it."""

    def __init__(self, lane: Lane | None = None) -> None:
        self.lane = lane
        self.failures: list[AsyncEventKind | None] = []

    def failed(self, event: AsyncEventKind | None = None) -> None:
        self.failures.append(event)

    def raised(self) -> None:
        self.failures.append(AsyncEventKind.QP_FATAL)

    def armRoute(self) -> None:
        if self.lane is not None:
            self.lane.arm(False, bool(self.lane.queue.armed), False)


class QueueTests(SynchronousTestCase):
    """Completions are found by polling, and wake sleeping readers."""

    def setUp(self) -> None:
        self.events: list[AsyncEvent] = []
        self.channel = SoftCompletionChannel()
        self.addCleanup(self.channel.close)
        self.queue = SoftCompletionQueue(8, self.channel, self.events.append)

    def attached(self, queue: SoftCompletionQueue) -> Lane:
        """Return a polled lane."""
        lane = Lane(queue)
        member = Member(lane)
        queue.join(member.failed)
        queue.attach(lane, member.armRoute, member.raised)
        return lane

    def rung(self) -> bool:
        return bool(select([self.channel.fileno()], [], [], 0)[0])

    def test_solicitedArmKeepsArmForAny(self) -> None:
        self.queue.arm()
        self.queue.arm(solicitedOnly=True)
        self.queue.push(completion(1))
        self.assertTrue(self.rung())

    def test_ringCausesOneEventOfArmedQueue(self) -> None:
        self.queue.ring(True)
        self.assertFalse(self.rung())
        self.queue.arm(solicitedOnly=True)
        self.queue.ring(False)
        self.assertFalse(self.rung())
        self.queue.ring(True)
        self.queue.ring(True)
        self.assertEqual(list(self.channel.takeEvents()), [self.queue])
        self.queue.arm()
        self.queue.ring(False)
        self.assertTrue(self.rung())

    def test_channelReportsQueuesWithEvents(self) -> None:
        others = [SoftCompletionQueue(8, self.channel, self.events.append) for _ in range(3)]
        for queue in others:
            queue.arm()
        others[2].push(completion(1))
        others[0].push(completion(1))
        self.assertEqual(list(self.channel.takeEvents()), [others[2], others[0]])

    def test_fullBatchDefersLanePoll(self) -> None:
        lane = self.attached(self.queue)
        for identifier in range(3):
            self.queue.push(completion(identifier))
        lane.arrive(3)
        self.assertEqual([c.identifier for c in self.queue.poll(2)], [0, 1])
        self.assertEqual(lane.polls, 0)
        self.assertEqual([c.identifier for c in self.queue.poll(2)], [2, 3])

    def test_failedPoll(self) -> None:
        """A route whose poll raises an exception fails only its own queue pair, and the others are polled."""
        lanes, usual = [Lane(self.queue) for _ in range(3)], Lane.poll
        members = [Member(lane) for lane in lanes]

        def poll(lane: Lane) -> None:
            usual(lane)
            if lane is lanes[1]:
                raise ZeroDivisionError

        self.patch(Lane, "poll", poll)
        for lane, member in zip(lanes, members, strict=True):
            self.queue.attach(lane, member.armRoute, member.raised)
            lane.arrive(1)
        self.queue.poll(8)
        self.assertEqual([member.failures for member in members], [[], [AsyncEventKind.QP_FATAL], []])
        self.assertEqual([lane.taken for lane in lanes], [1, 1, 1])
        self.assertEqual(lanes[1].polls, 1)

    def test_doorbellWakesOnlyItsQueue(self) -> None:
        silent = SoftCompletionQueue(8, self.channel, self.events.append)
        other, lane = self.attached(silent), self.attached(self.queue)
        self.queue.arm()
        silent.arm()
        lane.arrive(1)
        self.assertTrue(self.rung())
        self.assertEqual(list(self.channel.takeEvents()), [self.queue])
        self.assertFalse(self.rung())
        self.assertTrue(other.isArmed)
        other.arrive(2)
        self.assertEqual(list(self.channel.takeEvents()), [silent])

    def test_pollBetweenDoorbellAndTakeEvents(self) -> None:
        lane = self.attached(self.queue)
        self.queue.arm()
        lane.arrive(1)
        self.assertEqual(len(self.queue.poll(10)), 1)
        self.assertEqual(list(self.channel.takeEvents()), [])
        lane.arrive(2)
        self.assertTrue(self.rung())
        self.assertEqual(list(self.channel.takeEvents()), [self.queue])

    def sleep(self, *queues: SoftCompletionQueue) -> None:
        """Arm queues and poll them until their quiet lanes are dormant."""
        for _ in range(8):
            for queue in queues or (self.queue,):
                queue.arm()
                self.assertEqual(list(queue.poll(10)), [])

    def test_quietLaneIsNotPolledUntilItRings(self) -> None:
        """A quiet lane is neither polled nor armed until its peer sets the lane's doorbell byte."""
        first, lane, other = (self.attached(self.queue) for _ in range(3))
        self.assertEqual((first.doorbell, lane.doorbell, other.doorbell), (0, 1, 2))
        self.sleep()
        polls, arms = lane.polls, lane.arms
        for _ in range(50):
            self.queue.arm()
            self.queue.poll(10)
        self.assertEqual((lane.polls, lane.arms), (polls, arms))
        self.assertTrue(self.queue.isLive)
        lane.arrive(7)
        self.assertTrue(self.rung())
        self.assertEqual(list(self.channel.takeEvents()), [self.queue])
        self.assertEqual([c.identifier for c in self.queue.poll(10)], [7])
        self.assertEqual(other.polls, polls)
        self.queue.arm()
        self.assertTrue(lane.isArmed)

    def test_unarmedPollFindsMessagesOfDormantLane(self) -> None:
        _, lane = self.attached(self.queue), self.attached(self.queue)
        self.sleep()
        self.queue.disarm()
        self.assertTrue(lane.isArmed)
        lane.arrive(7)
        self.assertEqual([c.identifier for c in self.queue.poll(10)], [7])
        self.assertFalse(lane.isArmed)  # like the queue
        lane.arrive(8)
        self.assertEqual([c.identifier for c in self.queue.poll(10)], [8])

    def test_postWakesLane(self) -> None:
        _, lane = self.attached(self.queue), self.attached(self.queue)
        self.sleep()
        polls = lane.polls
        assert lane.wake is not None
        lane.wake()
        self.queue.poll(10)
        self.assertGreater(lane.polls, polls)
        self.assertIsNone(lane.wake)

    def test_waitingLaneIsPolledAndNeverDormant(self) -> None:
        _, lane = self.attached(self.queue), self.attached(self.queue)
        lane.isWaiting = True
        self.sleep()
        polls = lane.polls
        self.queue.poll(10)
        self.assertEqual(lane.polls, polls + 1)

    def test_pollPassesRingsToOtherQueue(self) -> None:
        other = SoftCompletionQueue(8, self.channel, self.events.append)
        self.attached(self.queue)
        mine, theirs = self.attached(self.queue), self.attached(other)
        self.sleep(self.queue, other)
        theirs.arrive(1)
        mine.arrive(2)
        self.assertEqual([c.identifier for c in self.queue.poll(10)], [2])
        self.assertEqual(list(self.channel.takeEvents()), [other])
        self.assertEqual([c.identifier for c in other.poll(10)], [1])

    def test_solicitedArmIncludesDormantLanes(self) -> None:
        """Lanes do not become dormant while the reader is to be woken for solicited completions only."""
        _, lane = self.attached(self.queue), self.attached(self.queue)
        self.sleep()
        self.queue.poll(10)
        self.queue.disarm()
        self.queue.arm(solicitedOnly=True)
        arms, polls = lane.arms, lane.polls
        for _ in range(8):
            self.queue.arm(solicitedOnly=True)
            self.queue.poll(10)
        self.assertEqual((lane.arms, lane.polls), (arms + 8, polls + 8))

    def test_arbitraryRingsCauseOnePollOfEachDormantLane(self) -> None:
        lanes = [self.attached(self.queue) for _ in range(4)]
        self.sleep()
        polls = [lane.polls for lane in lanes]
        page = self.channel.page
        assert page is not None
        for number in range(DOORBELL_BYTES):
            page.ring(number)
        self.assertEqual(list(self.queue.poll(10)), [])
        self.assertEqual([lane.polls for lane in lanes], [polls[0] + 1, *(each + 1 for each in polls[1:])])

    def test_doorbellByteOfClosedLaneWakesNextUser(self) -> None:
        _, old = self.attached(self.queue), self.attached(self.queue)
        self.sleep()
        self.channel.releaseDoorbell(old.doorbell)
        old.doorbell = 0
        new = self.attached(self.queue)
        self.assertEqual(new.doorbell, 1)
        self.sleep()
        self.queue.detach(old)
        new.arrive(3)
        self.assertEqual([c.identifier for c in self.queue.poll(10)], [3])

    def test_closedChannelPollsAllLanes(self) -> None:
        _, lane = self.attached(self.queue), self.attached(self.queue)
        self.sleep()
        self.channel.close()
        lane.isArmed = False
        lane.arrived.append(completion(4))
        self.assertEqual([c.identifier for c in self.queue.poll(10)], [4])
        self.assertEqual(self.channel.claimDoorbell(), 0)

    def test_lanesWithoutDoorbellByteArePolled(self) -> None:
        def refuse(*_: object) -> int:
            raise OSError(errno.EMFILE, "none left")

        self.patch(os, "memfd_create", refuse)
        lanes = [self.attached(self.queue) for _ in range(3)]
        self.sleep()
        polls = [lane.polls for lane in lanes]
        self.queue.poll(10)
        self.assertEqual([lane.polls for lane in lanes], [each + 1 for each in polls])

    def test_allDoorbellBytesTaken(self) -> None:
        numbers = [self.channel.claimDoorbell() for _ in range(DOORBELL_BYTES + 2)]
        self.assertEqual(numbers[1:-2], list(range(1, DOORBELL_BYTES)))
        self.assertEqual(numbers[-2:], [0, 0])
        self.channel.releaseDoorbell(77)
        self.assertEqual(self.channel.claimDoorbell(), 77)

    def test_detachedLaneIsNotPolled(self) -> None:
        self.queue.arm()
        lane = self.attached(self.queue)
        self.queue.detach(lane)
        before = lane.polls
        self.queue.poll(1)
        self.assertEqual(lane.polls, before)

    def test_overrunKeepsCompletions(self) -> None:
        for identifier in range(10):
            self.queue.push(completion(identifier))
        self.assertEqual([c.identifier for c in self.queue.poll(100)], list(range(8)))
        self.queue.push(completion(11))
        self.assertEqual(list(self.queue.poll(100)), [])

    def test_overrunQueueTakesNoQueuePairs(self) -> None:
        """New queue pairs are refused, since their completions would be lost (IBA 10.2.5.3)."""
        for identifier in range(9):
            self.queue.push(completion(identifier))
        self.assertRaises(InvalidRequest, self.queue.join, Member().failed)

    def test_purgeRemovesOneQueuePairsCompletions(self) -> None:
        for identifier in range(6):
            self.queue.push(completion(identifier, number=2 + identifier % 2))
        self.queue.purge(QPN(3))
        self.assertEqual([c.identifier for c in self.queue.poll(100)], [0, 2, 4])

    def test_closeFailsMembers(self) -> None:
        member = Member()
        self.queue.join(member.failed)
        self.queue.arm()
        self.queue.close()
        self.queue.close()
        self.queue.push(completion(1))
        self.assertEqual((member.failures, self.rung(), self.events), ([None], False, []))
        self.assertRaises(InvalidRequest, self.queue.join, member.failed)

    def test_closedChannelLeavesQueuesWorking(self) -> None:
        self.queue.arm()
        self.channel.close()
        self.channel.close()
        self.queue.push(completion(1))
        self.assertEqual((self.channel.fileno(), len(self.queue.poll(5))), (-1, 1))
        self.assertRaises(InvalidRequest, self.channel.takeEvents)

    def test_pipeWithoutEventfds(self) -> None:
        self.patch(sys, "platform", "elsewhere")
        gc.collect()  # objects left by earlier tests must be closed here, not during the test
        before = len(os.listdir("/dev/fd"))
        channel = SoftCompletionChannel()
        queue = SoftCompletionQueue(8, channel, self.events.append)
        for _ in range(2):
            queue.arm()
            queue.push(completion(1))
            self.assertTrue(select([channel.fileno()], [], [], 0)[0])
            self.assertEqual(list(channel.takeEvents()), [queue])
            self.assertFalse(select([channel.fileno()], [], [], 0)[0])
        channel.close()
        self.assertEqual(len(os.listdir("/dev/fd")), before)
