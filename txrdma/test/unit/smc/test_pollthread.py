"""
Tests for L{txrdma.smc.group.pollthread}, and for link groups over adapters while SMC is not in use.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from threading import Event, Thread
from typing import Any

from zope.interface import implementer

from twisted.internet.interfaces import IReactorFromThreads
from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.group.pollthread import PollThread

PATIENCE = 10.0


@implementer(IReactorFromThreads)
class Threaded:
    """A reactor that other threads may call."""

    def __init__(self) -> None:
        self.called = Event()

    def callFromThread(self, callable: Callable[..., Any], *args: object, **kw: object) -> None:
        callable(*args, **kw)
        self.called.set()


class PollThreadTests(SynchronousTestCase):
    """Descriptors that a thread polls."""

    def setUp(self) -> None:
        self.reactor = Threaded()
        self.calls = 0
        self.pollThread = PollThread(self.reactor, self.ready)
        self.addCleanup(self.pollThread.stop)
        self.reading, self.writing = os.pipe()
        self.addCleanup(os.close, self.reading)
        self.addCleanup(os.close, self.writing)

    def ready(self) -> None:
        self.calls += 1

    def test_readableDescriptorCallsOnce(self) -> None:
        self.pollThread.watch([self.reading], None)
        os.write(self.writing, b"!")
        self.assertTrue(self.reactor.called.wait(PATIENCE))
        self.pollThread.stop()
        self.assertEqual(self.calls, 1)

    def test_timeoutCallsReactor(self) -> None:
        self.pollThread.watch([self.reading], 0.0)
        self.assertTrue(self.reactor.called.wait(PATIENCE))

    def test_stopEndsThread(self) -> None:
        self.pollThread.watch([self.reading], None)
        self.pollThread.stop()
        self.pollThread.stop()
        os.write(self.writing, b"!")
        self.assertEqual(self.calls, 0)

    def test_threadThatCannotStartLeavesNothing(self) -> None:
        """A thread that cannot start leaves no descriptor, and can be started again."""

        def refuse(thread: Thread) -> None:
            raise RuntimeError("can't start new thread")

        before = os.listdir("/proc/self/fd")
        patch = self.patch(Thread, "start", refuse)
        self.assertRaises(RuntimeError, self.pollThread.watch, [self.reading], None)
        patch.restore()
        self.pollThread.stop()
        self.assertEqual(os.listdir("/proc/self/fd"), before)
        self.test_readableDescriptorCallsOnce()

    def test_secondWatchReplacesFirst(self) -> None:
        self.pollThread.watch([self.reading], None)
        self.pollThread.watch([], 0.0)
        self.assertTrue(self.reactor.called.wait(PATIENCE))
        self.pollThread.stop()
        self.assertEqual(self.calls, 1)
