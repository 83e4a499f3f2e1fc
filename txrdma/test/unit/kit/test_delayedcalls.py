"""
L{txrdma.kit.delayedcalls}: calls that are made, cancelled by others, or still to be made.
"""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.delayedcalls import cancelCall, isPending


class DelayedCallTests(SynchronousTestCase):
    def test_onlyPendingCallIsCancelled(self) -> None:
        clock = Clock()
        made: list[int] = []
        calls = [None, *(clock.callLater(number, made.append, number) for number in range(3))]
        clock.advance(0)
        cancelled = calls[2]
        assert cancelled is not None
        cancelled.cancel()
        self.assertEqual([isPending(call) for call in calls], [False, False, False, True])
        for call in calls:
            cancelCall(call)
        self.assertEqual([isPending(call) for call in calls], [False] * 4)
        clock.advance(3)
        self.assertEqual(made, [0])
