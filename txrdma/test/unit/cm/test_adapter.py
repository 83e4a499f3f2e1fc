"""The completion queue that the connections of one adapter share."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
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


class Channel:
    def fileno(self) -> int:
        return 77

    def takeEvents(self) -> Sequence[Any]:
        return ()

    def close(self) -> None: ...


class Device:
    def __init__(self) -> None:
        self.queue = DelayingQueue()

    def createChannel(self) -> Channel:
        return Channel()

    def createCompletionQueue(self, depth: int, channel: Channel) -> DelayingQueue:
        return self.queue


class Handler:
    """Records the completions of one queue pair."""

    def __init__(self) -> None:
        self.identifiers: list[int] = []

    def completed(self, batch: Sequence[Completion]) -> None:
        self.identifiers += [completion.identifier for completion in batch]

    def pathChanged(self) -> None: ...

    def broken(self, failure: Failure) -> None: ...


class SharedCompletionQueueTests(SynchronousTestCase):
    def test_pollTakesDelayedCompletions(self) -> None:
        """
        C{poll} also takes the completions of sends that the queue delays while it is not armed, if asked to.

        A connection with sends asks before it reports its end: what was delayed would count as not delivered.
        """
        device: Any = Device()
        shared = SharedCompletionQueue(MemoryReactorClock(), device, 10)
        self.addCleanup(shared.close)
        handler = Handler()
        shared.handlers[QPN(5)] = handler
        device.queue.isArmed = False  # as on a polling reactor
        device.queue.waiting = [
            Completion(each, Status.SUCCESS, CompletionOpcode.SEND, QPN(5)) for each in range(3)
        ]
        shared.poll(withSends=False)
        self.assertEqual((handler.identifiers, device.queue.isArmed), ([], False))
        shared.poll()
        self.assertEqual(handler.identifiers, [0, 1, 2])
