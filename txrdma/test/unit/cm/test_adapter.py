"""The completion queue that the connections of one adapter share."""

from __future__ import annotations

from collections.abc import Sequence
from unittest.mock import Mock

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.connections.adapter import SharedCompletionQueue
from txrdma.iba.types import QPN
from txrdma.iba.verbs import Completion, CompletionOpcode, Status


class DelayingQueue:
    """A queue that reports completions only after it was armed, as shared memory may for sends."""

    depth = 100
    isLive = True

    def __init__(self) -> None:
        self.waiting: list[Completion] = []
        self.isArmed = False

    def arm(self, solicitedOnly: bool = False) -> None:
        self.isArmed = True

    def disarm(self) -> None:
        self.isArmed = False

    def poll(self, limit: int) -> Sequence[Completion]:
        if not self.isArmed:
            return []
        taken, self.waiting = self.waiting[:limit], self.waiting[limit:]
        return taken

    def close(self) -> None: ...


class SharedCompletionQueueTests(SynchronousTestCase):
    def test_pollTakesDelayedCompletions(self) -> None:
        """
        C{poll} takes completions of sends that an unarmed queue delays, unless C{withSends} is false.

        A connection polls sends before it reports its end, or delayed ones would count as not delivered.
        """
        queue, identifiers = DelayingQueue(), list[int]()
        channel = Mock(fileno=lambda: 77, takeEvents=tuple)
        device = Mock(createChannel=lambda: channel, createCompletionQueue=lambda depth, channel: queue)
        shared = SharedCompletionQueue(MemoryReactorClock(), device, 10)
        self.addCleanup(shared.close)
        shared.handlers[QPN(5)] = Mock(
            completed=lambda batch: identifiers.extend(c.identifier for c in batch)
        )
        queue.isArmed = False  # as on a polling reactor
        queue.waiting = [Completion(each, Status.SUCCESS, CompletionOpcode.SEND, QPN(5)) for each in range(3)]
        shared.poll(withSends=False)
        self.assertEqual((identifiers, queue.isArmed), ([], False))
        shared.poll()
        self.assertEqual(identifiers, [0, 1, 2])
