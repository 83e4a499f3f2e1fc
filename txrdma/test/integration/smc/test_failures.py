"""
An exception in the code of a link ends that link and its connections, with an error and a log entry, and no
other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, cast
from unittest import SkipTest

from twisted.internet.defer import gatherResults
from twisted.internet.error import ConnectionLost
from twisted.logger import formatEvent, globalLogPublisher, ILogObserver

from txrdma.iba.verbs import AsyncEventKind
from txrdma.smc.flow import flow
from txrdma.smc.group import group as groupModule
from txrdma.smc.group.attachment import WINDOW
from txrdma.smc.group.groups import linkGroups
from txrdma.smc.group.link import Link
from txrdma.smc.stream import stream as streamModule
from txrdma.smc.stream.stream import Stream
from txrdma.smc.terms.offer import Role
from txrdma.smc.wire.llc import DeleteReason
from txrdma.soft.core.completion import SoftCompletionQueue
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.rc._requester import Requester
from txrdma.soft.rc._responder import Responder
from txrdma.soft.rc.routes import RoCERoute
from txrdma.soft.shared._incoming import LaneReceiver
from txrdma.soft.shared._lane import Lane
from txrdma.soft.shared._outgoing import LaneSender
from txrdma.soft.shared.sharedqueuepair import SharedQueuePair
from txrdma.test.support.smc.ends import EndsTestCase, reactor
from txrdma.test.support.smc.races import Listener, RaceTestCase
from txrdma.testing.protocols import Echo
from txrdma.testing.reactors import unqueuedSeconds, waitUntil
from txrdma.testing.smc.scenario import DEVICE


class Broken(Exception):
    """An exception that no device is expected to raise."""


class FailureTests(RaceTestCase):
    """Three connections on one link, and an exception at the client's end."""

    def setUp(self) -> None:
        super().setUp()
        self.isBroken = False
        self.link: Link | None = None

    def breakable(
        self, owner: type, name: str, isOurs: Callable[[Link, Any], bool], once: bool = False
    ) -> None:
        """Let a method raise for objects of the client's link after C{begin}: always, or only once."""
        real = getattr(owner, name)

        def call(instance: Any, *arguments: Any) -> Any:
            if self.isBroken and self.link is not None and isOurs(self.link, instance):
                self.isBroken = not once
                raise Broken(name)
            return real(instance, *arguments)

        self.patch(owner, name, call)

    def begin(self) -> list[tuple[Listener, Listener]]:
        """Establish three connections, and let the methods raise from now on."""
        pairs = [self.pair() for _ in range(3)]
        [self.link] = linkGroups(self.client, DEVICE).links()
        self.isBroken = True
        return pairs

    def check(
        self, pairs: Sequence[tuple[Listener, Listener]], errors: int = 1, isReported: bool = True
    ) -> None:
        """
        Check that all ends are notified in time, that nothing remains busy, and that a new connection works.

        @param isReported: the server is notified by DELETE LINK; otherwise one connection falls back to TCP
            first.
        """
        self.until(lambda: all(end.reason for pair in pairs for end in pair), 20)
        for pair in pairs:
            self.assertEqual([end.reason for end in pair], [ConnectionLost] * 2)
        self.wait(0.1)
        link = self.link
        assert link is not None
        groups = linkGroups(self.client, DEVICE)
        self.assertTrue(link.isOver)
        self.assertNotIn(link, groups.links())
        self.assertEqual(
            (link.scheduler.isBusy, groups.isBusy, link.scheduler.queue.dirty), (False, False, [])
        )
        self.assertGreaterEqual(len(self.flushLoggedErrors(Broken)), errors)
        self.isBroken = False
        if not isReported:
            here, there = self.pair()
            self.assertEqual((here.mode, there.mode), ("TCP", "TCP"))
        here, there, _ = self.connect(Listener(lambda self: self.transport.write(b"hello")))
        self.until(lambda: there.received == b"hello")
        self.assertEqual((here.mode, there.mode), ("SMC-R", "SMC-R"))

    def checkOthers(self, pairs: Sequence[tuple[Listener, Listener]]) -> None:
        """Check that the second connection is aborted, and that the others continue."""
        self.until(lambda: all(end.reason for end in pairs[1]), 20)
        self.assertEqual(pairs[1][1].reason, ConnectionLost)
        self.assertEqual(len(self.flushLoggedErrors(Broken)), 1)
        for here, there in (pairs[0], pairs[2]):
            self.assertEqual((here.reason, there.reason), (None, None))
            here.transport.write(b" world")
            there.transport.write(b" world")
        self.until(lambda: all(pair[0].received and pair[1].received for pair in (pairs[0], pairs[2])))
        assert self.link is not None
        self.assertFalse(self.link.isOver)

    def test_receiveQueue(self) -> None:
        """An exception while the receive completion queue is polled ends the link."""
        self.breakable(SoftCompletionQueue, "poll", lambda link, queue: queue is link._attachment._queue)
        pairs = self.begin()
        pairs[0][1].transport.write(b"hello")
        self.check(pairs)

    def test_sendQueue(self) -> None:
        """An exception while the send completion queue is polled for a closing connection ends the link."""
        self.breakable(SoftCompletionQueue, "poll", lambda link, queue: queue is link._attachment.sendQueue)
        pairs = self.begin()
        here, there = pairs[0]
        here.transport.write(b"hello")
        here.transport.loseConnection()
        self.until(lambda: there.hasEnded)
        there.transport.loseConnection()
        self.check(pairs[1:])
        self.assertEqual((here.reason, there.received), (ConnectionLost, b"hello"))  # delivery is unconfirmed

    def test_bothQueues(self) -> None:
        """Exceptions of both completion queues, as after the removal of a device, end the link."""
        self.breakable(SoftCompletionQueue, "poll", lambda link, queue: True)
        pairs = self.begin()
        pairs[0][1].transport.write(b"hello")
        pairs[1][0].transport.write(b"hello")
        self.check(pairs)

    def test_posting(self) -> None:
        """An unexpected exception of the queue pair while sending ends the link."""
        self.breakable(SoftQueuePair, "postSend", lambda link, pair: pair is link._queuePair)
        pairs = self.begin()
        for here, _ in pairs:
            here.transport.write(b"hello")
        self.check(pairs, isReported=False)

    def test_repost(self) -> None:
        """An exception while receives are posted, within a batch of completions, ends the link."""
        self.breakable(SoftQueuePair, "postReceive", lambda link, pair: pair is link._queuePair)
        pairs = self.begin()
        for number in range(40):
            pairs[number % 3][1].transport.write(b"hello")
            self.wait(0.01)
        self.check(pairs)

    def checkHalfClose(self, method: str) -> None:
        """Let a method of one connection's stream raise while that is half-closed; check the others."""
        pairs = self.begin()
        poor = pairs[1][0].transport
        self.breakable(Stream, method, lambda link, stream: stream is poor.stream, once=True)
        poor.loseWriteConnection()
        for here, _ in pairs:
            here.transport.write(b"hello")
        self.checkOthers(pairs)

    def test_filling(self) -> None:
        """An exception while one connection prepares its message aborts only that connection."""
        self.checkHalfClose("finish")

    def test_flushed(self) -> None:
        """An exception while one connection is notified of its flush aborts only that connection."""
        self.checkHalfClose("wasFlushed")

    def test_sending(self) -> None:
        """An exception while one connection sends by the fast path aborts only that connection."""
        if not (flow.__file__ or "").endswith(".py"):
            raise SkipTest("compiled classes can't be patched")
        pairs = self.begin()
        poor = pairs[1][0].transport
        self.breakable(flow.Flow, "send", lambda link, flow: flow is poor.stream.flow, once=True)
        poor.write(b"hello")
        self.checkOthers(pairs)

    def test_fillingAlways(self) -> None:
        """If a connection raises while it prepares its message and while it is aborted, the link ends."""
        pairs = self.begin()
        poor = pairs[1][0].transport
        self.breakable(Stream, "finish", lambda link, stream: stream is poor.stream)
        poor.loseWriteConnection()
        self.until(lambda: all(end.reason for pair in pairs for end in pair), 20)
        assert self.link is not None
        self.assertTrue(self.link.isOver)
        self.assertEqual({end.reason for pair in (pairs[0], pairs[2]) for end in pair}, {ConnectionLost})
        self.assertGreater(len(self.flushLoggedErrors(Broken)), 1)

    def test_handler(self) -> None:
        """An exception while a message of one connection is processed aborts only that connection."""
        pairs = self.begin()
        poor = pairs[1][0].transport
        self.breakable(Stream, "stateReceived", lambda link, stream: stream is poor.stream, once=True)
        for _, there in pairs:
            there.transport.write(b"hello")
        pairs[1][1].transport.loseWriteConnection()
        self.checkOthers(pairs)

    def test_beforeFlush(self) -> None:
        """An exception in a call for one connection before the flush aborts only that connection."""
        pairs = self.begin()
        poor = pairs[1][0].transport
        self.breakable(Stream, "_aborted", lambda link, stream: stream is poor.stream, once=True)
        poor.abortConnection()
        self.checkOthers(pairs)

    def test_afterFlush(self) -> None:
        """An exception in a call after the flush is logged; other calls are made, and the link continues."""
        pairs = self.begin()
        assert self.link is not None
        called: list[str] = []

        def fail() -> None:
            raise Broken

        for call in (fail, lambda: called.append("other")):
            self.link.scheduler.callAtEnd(call)
        self.until(lambda: called)
        self.assertEqual(len(self.flushLoggedErrors(Broken)), 1)
        pairs[0][0].transport.write(b"hello")
        self.until(lambda: pairs[0][1].received == b"hello")
        self.assertFalse(self.link.isOver)

    def test_closing(self) -> None:
        """An exception while the queue pair is closed is logged, and the link ends nevertheless."""
        self.breakable(SoftQueuePair, "close", lambda link, pair: pair is link._queuePair)
        self.breakable(SoftCompletionQueue, "poll", lambda link, queue: queue is link._attachment._queue)
        pairs = self.begin()
        pairs[0][1].transport.write(b"hello")
        self.check(pairs, errors=2)

    def test_oneOfTheConnections(self) -> None:
        """If one connection raises when it is notified of the link's end, the others are still notified."""
        pairs = self.begin()
        poor = pairs[1][0].transport
        self.breakable(Stream, "linkLost", lambda link, stream: stream is poor.stream)
        assert self.link is not None
        self.link.broken("for the test")
        self.check([pairs[0], pairs[2]], isReported=False)

    def test_noRoom(self) -> None:
        """A link that turns out to be dead while its window is full ends, and starts no reader."""
        pairs = self.begin()
        link = self.link
        assert link is not None
        self.world.network.silent.add(self.server.address)  # it acknowledges nothing from now on
        for number in range(WINDOW - 1):
            pairs[number % 3][0].transport.write(b"hello")
            self.wait(1e-5)
        link._queuePair.failed()  # type: ignore[attr-defined]  # the software device's
        for here, _ in pairs:
            here.transport.write(b"hello")
        link.scheduler.finish()
        self.assertTrue(link.isOver)
        self.assertEqual(self.flushLoggedErrors(), [])
        self.until(lambda: all(here.reason for here, _ in pairs))
        self.assertEqual((link.scheduler.isBusy, link.scheduler.queue.dirty), (False, []))
        self.assertEqual([here.reason for here, _ in pairs], [ConnectionLost] * 3)

    def checkRoute(self, owner: type, name: str, isOurs: Callable[[Any, Any], bool]) -> None:
        """Check that an exception in the RoCE route of one queue pair ends that queue pair and no other."""
        pairs = self.begin()
        third = self.host(3)
        other, far = self.pair(client=third)
        assert self.link is not None
        route = self.link._queuePair._route  # type: ignore[attr-defined]  # the software device's
        self.breakable(owner, name, lambda link, instance: isOurs(route, instance))
        self.world.network.silent.add(self.server.address)  # so that timers are running
        self.world.clock.callLater(1, self.world.network.silent.clear)
        for here, there in pairs:
            here.transport.write(b"hello")
            there.transport.write(b"hello")
        self.until(lambda: all(here.reason for here, _ in pairs), 20)
        other.transport.write(b"still there?")
        self.until(lambda: far.received, 20)
        self.wait(2)
        self.check(pairs, isReported=False)
        self.assertEqual((other.reason, far.reason), (None, None))

    def test_receivingRoute(self) -> None:
        """An exception while packets are received ends only that queue pair."""
        self.checkRoute(Responder, "received", lambda route, instance: instance is route.responder)

    def test_sendingRoute(self) -> None:
        """An exception while packets are built ends only that queue pair."""
        self.checkRoute(Requester, "outgoing", lambda route, instance: instance is route.requester)

    def test_routeInTime(self) -> None:
        """An exception in a timer of the route ends only that queue pair."""
        self.checkRoute(RoCERoute, "expired", lambda route, instance: instance is route)

    def test_linkEndsWhilePreparing(self) -> None:
        """A link that ends while the server prepares the peer's address ends the connection without error."""

        async def prepare(link: Link, answer: object) -> None:
            if link.group.name.startswith(Role.SERVER.value):
                link.broken("for the test")

        self.patch(Link, "prepare", prepare)
        here, there, _ = self.connect()
        self.until(lambda: here.reason, 20)
        self.assertEqual((here.mode, here.reason, there.mode), ("SMC-R", ConnectionLost, ""))
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_timer(self) -> None:
        """An exception in a timer of the link group ends the link."""
        pairs = self.begin()
        assert self.link is not None
        [group] = linkGroups(self.client, DEVICE).groups()
        self.breakable(type(group.core), "expired", lambda link, core: core is group.core)
        self.wait(group.core.deadline() or 0.0)
        self.check(pairs)


class SharedMemoryTests(EndsTestCase):
    """Exceptions with shared memory, on the real reactor, with both ends in this process."""

    def setUp(self) -> None:
        super().setUp()
        self.isBroken = False

    def breakable(self, owner: type, name: str) -> None:
        """Let a method raise while C{isBroken} is set."""
        real = getattr(owner, name)

        def call(instance: Any, *arguments: Any) -> Any:
            if self.isBroken:
                raise Broken(name)
            return real(instance, *arguments)

        self.patch(owner, name, call)

    async def check(self, isReported: bool = True) -> None:
        """
        Check that all connections are notified at once, and that a new connection works.

        @param isReported: the other end is notified by DELETE LINK; otherwise one connection first falls back
            to TCP.
        """
        factory, port = await self.serve(kind=Echo)
        ends = [await self.connect(f"smc:127.0.0.1:{port}:fallback=no") for _ in range(3)]
        for end in ends:
            end.transport.write(b"hello")
            await end.receiving(5)
        links = {each.transport.stream.link for each in (*ends, *factory.protocols)}
        self.isBroken = True
        begun = unqueuedSeconds()
        for end in ends:
            end.transport.write(b"hello")
        await gatherResults([end.lost for end in (*ends, *factory.protocols)])
        self.isBroken = False
        self.assertLess(unqueuedSeconds() - begun, 2.0)
        self.assertGreater(len(self.flushLoggedErrors(Broken)), 0)
        self.assertEqual([each.scheduler.isBusy for each in links], [False] * len(links))
        self.assertIn(True, [each.isOver for each in links])
        if not isReported:
            await self.connect(f"smc:127.0.0.1:{port}")
        again = await self.connect(f"smc:127.0.0.1:{port}:fallback=no")
        again.transport.write(b"hello")
        self.assertEqual(await again.receiving(5), b"hello")

    async def test_lane(self) -> None:
        """An exception while shared memory is read ends the link."""
        self.breakable(LaneReceiver, "poll")
        self.breakable(Lane, "takeMessages")
        await self.check()

    async def test_posting(self) -> None:
        """An exception while shared memory is written ends the link."""
        self.breakable(LaneSender, "post")
        self.breakable(Lane, "putMessage")
        await self.check(isReported=False)

    async def test_timer(self) -> None:
        """An exception in a timer of shared memory ends the connections of its queue pair."""
        one, other = await self.ends()
        self.breakable(Lane, "expired")
        self.isBroken = True
        one.transport.stream.link._queuePair._route._services.watch()
        await gatherResults([one.lost, other.lost])
        self.assertEqual(len(self.flushLoggedErrors(Broken)), 1)

    async def endAfterLink(self, end: Callable[[Stream], None]) -> None:
        """End both ends of a connection whose link is lost; check that connection and TCP are released."""
        ends = await self.ends()
        streams = [each.transport.stream for each in ends]
        streams[0].link._queuePair._route._services._peer.lost("for the test")
        await waitUntil(reactor, lambda: all(stream.link.isOver for stream in streams), 5.0)
        for stream in streams:
            self.assertTrue(stream.connected)
            end(stream)
        await gatherResults([each.lost for each in ends])
        await waitUntil(reactor, lambda: not any(stream.tcp for stream in streams), 5.0)
        self.assertEqual([stream.state for stream in streams], ["CLOSED", "CLOSED"])

    async def test_endsAfterLink(self) -> None:
        """A connection that closes, aborts or fails after the loss of the link is released."""
        for end in (Stream.close, Stream.abort, Stream.fail, lambda stream: stream.violated("a test")):
            await self.endAfterLink(end)

    async def test_peerGone(self) -> None:
        """If one queue pair raises when it is notified of the peer's end, the others are still notified."""
        one, other = await self.ends()
        route = one.transport.stream.link._queuePair._route
        peer = route._services._peer
        real = SharedQueuePair.peerEnded

        def peerEnded(attachment: SharedQueuePair, event: Any) -> None:
            real(attachment, event)
            raise Broken("peerEnded")

        self.patch(SharedQueuePair, "peerEnded", peerEnded)
        self.assertEqual(len(peer.queuePairs), 2)
        peer.lost("for the test")
        await gatherResults([one.lost, other.lost])
        self.assertEqual(len(self.flushLoggedErrors(Broken)), 2)


class WordsTests(RaceTestCase):
    """The messages to the peer and to the log at the end of a link."""

    def setUp(self) -> None:
        super().setUp()
        self.output: list[str] = []
        observer = cast(ILogObserver, self.observe)
        self.addCleanup(globalLogPublisher.removeObserver, observer)
        globalLogPublisher.addObserver(observer)
        for module in (groupModule, streamModule):
            self.patch(module._rateLimited, "_entries", {})

    def observe(self, event: Any) -> None:
        self.output.append(formatEvent(event))

    def test_deleteLink(self) -> None:
        """A process that ends in order sends DELETE LINK, and its peer's connections end in order."""
        here, there = self.pair()
        here.transport.write(b"last words")
        [group] = linkGroups(self.server, DEVICE).groups()
        [link] = group.links
        self.client.stop()
        self.until(lambda: link.isOver)
        self.assertIs(group.core._core.ending.reason, DeleteReason.PROGRAM_ENDING)
        self.assertEqual((there.received, there.hasEnded), (b"last words", True))

    def test_linkFails(self) -> None:
        """The log has one entry with the number of ended connections, the peer, the device and the reason."""
        for _ in range(3):
            here, there = self.pair()
        [link] = linkGroups(self.client, DEVICE).links()
        link._queuePair.failed(AsyncEventKind.QP_FATAL)  # type: ignore[attr-defined]  # the software device's
        self.until(lambda: here.reason)
        name = linkGroups(self.client, DEVICE).devices[0].name
        [reported] = [each for each in self.output if "SMC-R connections" in each]
        self.assertTrue(
            reported.startswith(f"3 SMC-R connections with 198.51.100.2:80 on {name} ended: "), reported
        )

    def test_flood(self) -> None:
        """A peer that keeps violating the protocol causes only a few log entries, whatever the violation."""
        for number in range(20):
            here, there = self.pair()
            if number % 2:
                there.transport.stream.violated(f"offence {number}")
            else:
                there.transport.stream.link.group.core.received(b"\0" * 44, 0.0)
                there.transport.stream.link.group._turnCore()
            self.until(lambda end=there: end.reason)  # type: ignore[misc]
            self.wait(0.1)
        reported = [each for each in self.output if "rules" in each or "SMC-R connections" in each]
        self.assertLess(len(reported), 6, reported)
