"""A reactor in a separate thread, and calls from another thread."""

from __future__ import annotations

import os
from selectors import DefaultSelector
from threading import enumerate as threads
from threading import Event, get_ident, Thread
from typing import Any
from unittest import mock

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.endpoints import TCP4ClientEndpoint
from twisted.internet.interfaces import IReadDescriptor
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl import reactorthread
from txrdma.btl.connections import ClientEndpoint, listen
from txrdma.btl.module import _modules
from txrdma.btl.reactorthread import ReactorThread
from txrdma.error import InvalidRequest
from txrdma.messages.protocol import MessageFactory, MessageProtocol


@implementer(IReadDescriptor)
class Reader:
    """Reads from a pipe."""

    def __init__(self) -> None:
        self.descriptors = os.pipe()
        self.isCalled = Event()

    def fileno(self) -> int:
        return self.descriptors[0]

    def logPrefix(self) -> str:
        return "reader"

    def doRead(self) -> None:
        os.read(self.descriptors[0], 1)
        self.isCalled.set()

    def connectionLost(self, reason: Failure) -> None:
        """The reactor has no other events for this."""

    def close(self) -> None:
        for each in self.descriptors:
            os.close(each)


class ReactorThreadTests(SynchronousTestCase):
    """Tests in which this thread blocks while the reactor runs in another one."""

    def setUp(self) -> None:
        self.thread = ReactorThread.acquire()
        self.addCleanup(lambda: self.thread.release())

    def test_call(self) -> None:
        """The caller waits for a result, also of a Deferred that a delayed call fires."""
        self.assertNotEqual(self.thread.call(get_ident), get_ident())
        waiting: Deferred[int] = Deferred()
        self.thread.call(lambda: self.thread.reactor.callLater(0.001, waiting.callback, 3) and None)
        self.assertEqual(self.thread.call(lambda: waiting), 3)

    def test_interrupted(self) -> None:
        """If a signal interrupts the wait, the Deferred is cancelled: nobody would get its result."""

        class Interrupted(Event):
            def wait(self, timeout: float | None = None) -> bool:
                raise KeyboardInterrupt

        cancelled = Event()
        waiting: Deferred[int] = Deferred(lambda _: cancelled.set())
        with mock.patch.object(reactorthread, "Event", Interrupted):
            self.assertRaises(KeyboardInterrupt, self.thread.call, lambda: waiting)
        self.assertTrue(cancelled.wait(60))
        self.assertEqual(self.thread.call(lambda: 1), 1)
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_failure(self) -> None:
        self.assertRaises(ZeroDivisionError, self.thread.call, lambda: 1 // 0)

    def test_itself(self) -> None:
        """Code of the reactor that would wait for the reactor gets an exception, in either thread."""

        def call() -> None:
            where.append((get_ident(), self.thread.isHere()))
            self.assertRaises(InvalidRequest, self.thread.call, int)

        where: list[tuple[int, bool]] = []
        self.thread.call(call)
        while where[-1][0] != get_ident():  # the reactor thread may be about to sleep
            self.thread.start(call, True)
            self.thread.call(int)
        self.assertEqual({isHere for _ident, isHere in where}, {True})
        self.assertEqual(self.flushLoggedErrors(), [])
        self.assertFalse(self.thread.isHere())

    def test_here(self) -> None:
        """While the reactor thread sleeps, this thread runs a call itself; its delayed calls run later."""
        where: list[int] = []
        ended = Event()

        def call() -> None:
            where.append(get_ident())
            self.thread.reactor.callLater(0.001, ended.set)

        while get_ident() not in where:  # the reactor thread may be about to sleep
            self.thread.start(call, True)
        self.assertTrue(ended.wait(60))

    def test_busy(self) -> None:
        """While the reactor is busy, a call is queued, and runs in order."""
        begun, resume, done = Event(), Event(), Event()
        order: list[str] = []

        def block() -> None:
            begun.set()
            resume.wait(60)

        self.thread.start(block, False)
        self.assertTrue(begun.wait(60))
        for name in ("first", "second"):
            self.thread.start(lambda name=name: order.append(name), True)  # type: ignore[misc]
        self.thread.start(done.set, True)
        self.assertEqual(order, [])
        resume.set()
        self.assertTrue(done.wait(60))
        self.assertEqual(order, ["first", "second"])

    def test_readerAddedAgain(self) -> None:
        """A reader that this thread removes and adds again when the descriptor is readable is called."""
        reader = Reader()
        self.addCleanup(reader.close)
        self.addCleanup(lambda: self.thread.call(self.thread.reactor.removeReader, reader))
        found, resume = Event(), Event()
        select = DefaultSelector.select

        def selectAndWait(selector: Any, timeout: float | None = None) -> Any:
            events = select(selector, timeout)
            if reader.fileno() in {key.fd for key, _events in events} and not found.is_set():
                found.set()
                resume.wait(60)
            return events

        def addAgain() -> None:
            self.thread.reactor.removeReader(reader)
            self.thread.reactor.addReader(reader)

        self.patch(DefaultSelector, "select", selectAndWait)
        self.thread.call(self.thread.reactor.addReader, reader)
        os.write(reader.descriptors[1], b"x")
        self.assertTrue(found.wait(60))
        self.thread.start(addAgain, True)
        resume.set()
        self.assertTrue(reader.isCalled.wait(5))

    def test_contained(self) -> None:
        """A call that raises an exception is logged; the next one runs."""
        self.thread.start(lambda: 1 // 0, True)
        self.assertEqual(self.thread.call(lambda: 1), 1)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_release(self) -> None:
        """All users share a thread, which ends with the last one, and leaves no descriptor."""
        descriptors = len(os.listdir("/proc/self/fd"))
        other = ReactorThread.acquire()
        self.assertIs(other, self.thread)
        other.release()
        self.assertEqual(self.thread.call(lambda: 1), 1)
        self.thread.release()
        self.assertNotIn("txrdma reactor", [each.name for each in threads()])
        self.assertLess(len(os.listdir("/proc/self/fd")), descriptors)
        self.thread = ReactorThread.acquire()
        self.assertEqual(len(os.listdir("/proc/self/fd")), descriptors)

    def test_openConnections(self) -> None:
        """Connections and devices that the last user leaves open are closed."""
        descriptors = len(os.listdir("/proc/self/fd"))
        reactor, factory = self.thread.reactor, MessageFactory(MessageProtocol)
        port = self.thread.call(listen, reactor, 0, factory, "127.0.0.1")
        stream = TCP4ClientEndpoint(reactor, "127.0.0.1", port.getHost().port)
        client = self.thread.call(ClientEndpoint(reactor, stream).connect, factory)
        self.thread.call(client.transport.send, 1, b"x")
        self.thread.release()
        self.assertLess(len(os.listdir("/proc/self/fd")), descriptors)
        self.assertNotIn(reactor, {owner for owner, _devices in _modules})

    def test_startWhileItEnds(self) -> None:
        """A call that is passed to the thread between the end of its loop and its own end runs, too."""
        ending, resume, done = Event(), Event(), Event()
        waker = self.thread.reactor.waker
        lost = waker.connectionLost

        def wait(reason: Failure) -> None:
            ending.set()
            resume.wait(60)
            lost(reason)

        self.patch(waker, "connectionLost", wait)
        releasing = Thread(target=self.thread.release)
        releasing.start()
        self.assertTrue(ending.wait(60))
        self.thread.start(done.set, False)
        resume.set()
        releasing.join()
        self.assertTrue(done.is_set())

    def test_startWhenItHasEnded(self) -> None:
        """So do one that is passed to it after its loop was closed, and one that this call passes to it."""
        done = Event()
        self.thread.release()
        self.patch(self.thread._thread, "is_alive", lambda: True)
        self.thread.start(lambda: self.thread.start(done.set, False), False)
        self.assertTrue(done.is_set())
        self.assertFalse(self.thread.isHere())
