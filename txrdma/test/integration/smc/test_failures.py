"""
An exception in the code of a link ends that link and its connections, with an error and a log entry, and no
other.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any, cast
from unittest import SkipTest
from unittest.mock import patch

from twisted.internet.defer import gatherResults
from twisted.internet.error import ConnectionLost
from twisted.logger import formatEvent, globalLogPublisher, ILogObserver

from txrdma.iba.verbs import AsyncEventKind
from txrdma.smc.flow import flow
from txrdma.smc.group import group as groupModule
from txrdma.smc.group.attachment import WINDOW
from txrdma.smc.group.group import LinkGroup
from txrdma.smc.group.groups import linkGroups
from txrdma.smc.group.link import Link
from txrdma.smc.handshake._machine import _Handshake, ServerHandshake
from txrdma.smc.handshake.outcomes import Outcomes
from txrdma.smc.stream import stream as streamModule
from txrdma.smc.stream.stream import Stream
from txrdma.smc.stream.tcpmonitor import TCPMonitor
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
from txrdma.testing.smc.hosts import Host
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

    def test_receiveQueueThatRaisesEndsLink(self) -> None:
        self.breakable(SoftCompletionQueue, "poll", lambda link, queue: queue is link._attachment._queue)
        pairs = self.begin()
        pairs[0][1].transport.write(b"hello")
        self.check(pairs)

    def test_sendQueueThatRaisesForClosingConnectionEndsLink(self) -> None:
        self.breakable(SoftCompletionQueue, "poll", lambda link, queue: queue is link._attachment.sendQueue)
        pairs = self.begin()
        here, there = pairs[0]
        here.transport.write(b"hello")
        here.transport.loseConnection()
        self.until(lambda: there.hasEnded)
        there.transport.loseConnection()
        self.check(pairs[1:])
        self.assertEqual((here.reason, there.received), (ConnectionLost, b"hello"))  # delivery is unconfirmed

    def test_bothQueuesThatRaiseEndLink(self) -> None:
        self.breakable(SoftCompletionQueue, "poll", lambda link, queue: True)
        pairs = self.begin()
        pairs[0][1].transport.write(b"hello")
        pairs[1][0].transport.write(b"hello")
        self.check(pairs)

    def test_queuePairThatRaisesWhileSendingEndsLink(self) -> None:
        self.breakable(SoftQueuePair, "postSend", lambda link, pair: pair is link._queuePair)
        pairs = self.begin()
        for here, _ in pairs:
            here.transport.write(b"hello")
        self.check(pairs, isReported=False)

    def test_exceptionWhilePostingReceivesEndsLink(self) -> None:
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

    def test_exceptionWhilePreparingMessageAbortsOnlyItsConnection(self) -> None:
        self.checkHalfClose("finish")

    def test_exceptionAfterFlushOfOneConnectionAbortsOnlyIt(self) -> None:
        self.checkHalfClose("wasFlushed")

    def test_exceptionOnFastPathAbortsOnlyItsConnection(self) -> None:
        if not (flow.__file__ or "").endswith(".py"):
            raise SkipTest("compiled classes can't be patched")
        pairs = self.begin()
        poor = pairs[1][0].transport
        self.breakable(flow.Flow, "send", lambda link, flow: flow is poor.stream.flow, once=True)
        poor.write(b"hello")
        self.checkOthers(pairs)

    def test_connectionThatAlsoRaisesWhileAbortedEndsLink(self) -> None:
        pairs = self.begin()
        poor = pairs[1][0].transport
        self.breakable(Stream, "finish", lambda link, stream: stream is poor.stream)
        poor.loseWriteConnection()
        self.until(lambda: all(end.reason for pair in pairs for end in pair), 20)
        assert self.link is not None
        self.assertTrue(self.link.isOver)
        self.assertEqual({end.reason for pair in (pairs[0], pairs[2]) for end in pair}, {ConnectionLost})
        self.assertGreater(len(self.flushLoggedErrors(Broken)), 1)

    def test_exceptionInReceivedMessageAbortsOnlyItsConnection(self) -> None:
        pairs = self.begin()
        poor = pairs[1][0].transport
        self.breakable(Stream, "stateReceived", lambda link, stream: stream is poor.stream, once=True)
        for _, there in pairs:
            there.transport.write(b"hello")
        pairs[1][1].transport.loseWriteConnection()
        self.checkOthers(pairs)

    def test_exceptionBeforeFlushAbortsOnlyItsConnection(self) -> None:
        pairs = self.begin()
        poor = pairs[1][0].transport
        self.breakable(Stream, "_aborted", lambda link, stream: stream is poor.stream, once=True)
        poor.abortConnection()
        self.checkOthers(pairs)

    def test_exceptionAfterFlushIsLoggedAndLinkContinues(self) -> None:
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

    def test_exceptionWhileClosingQueuePairIsLoggedAndLinkEnds(self) -> None:
        self.breakable(SoftQueuePair, "close", lambda link, pair: pair is link._queuePair)
        self.breakable(SoftCompletionQueue, "poll", lambda link, queue: queue is link._attachment._queue)
        pairs = self.begin()
        pairs[0][1].transport.write(b"hello")
        self.check(pairs, errors=2)

    def test_othersAreNotifiedOfLinksEndIfOneRaises(self) -> None:
        pairs = self.begin()
        poor = pairs[1][0].transport
        self.breakable(Stream, "linkLost", lambda link, stream: stream is poor.stream)
        assert self.link is not None
        self.link.broken("for the test")
        self.check([pairs[0], pairs[2]], isReported=False)

    def test_deadLinkWithFullWindowEndsAndStartsNoReader(self) -> None:
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

    def test_exceptionWhileReceivingPacketsEndsOnlyItsQueuePair(self) -> None:
        self.checkRoute(Responder, "received", lambda route, instance: instance is route.responder)

    def test_exceptionWhileBuildingPacketsEndsOnlyItsQueuePair(self) -> None:
        self.checkRoute(Requester, "outgoing", lambda route, instance: instance is route.requester)

    def test_exceptionInRoutesTimerEndsOnlyItsQueuePair(self) -> None:
        self.checkRoute(RoCERoute, "expired", lambda route, instance: instance is route)

    def test_linkEndWhilePreparingAddressEndsConnectionWithoutError(self) -> None:
        async def prepare(link: Link, answer: object) -> None:
            if link.group.name.startswith(Role.SERVER.value):
                link.broken("for the test")

        self.patch(Link, "prepare", prepare)
        here, there, _ = self.connect()
        self.until(lambda: here.reason, 20)
        self.assertEqual((here.mode, here.reason, there.mode), ("SMC-R", ConnectionLost, ""))
        self.assertEqual(self.flushLoggedErrors(), [])

    def test_exceptionInGroupsTimerEndsLink(self) -> None:
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

    async def test_exceptionWhileReadingSharedMemoryEndsLink(self) -> None:
        self.breakable(LaneReceiver, "poll")
        self.breakable(Lane, "takeMessages")
        await self.check()

    async def test_exceptionWhileWritingSharedMemoryEndsLink(self) -> None:
        self.breakable(LaneSender, "post")
        self.breakable(Lane, "putMessage")
        await self.check(isReported=False)

    async def test_exceptionInSharedMemoryTimerEndsConnections(self) -> None:
        one, other = await self.ends()
        self.breakable(Lane, "expired")
        self.isBroken = True
        one.transport.stream.link._queuePair._route._services.watch()
        await gatherResults([one.lost, other.lost])
        self.assertEqual(len(self.flushLoggedErrors(Broken)), 1)

    async def endAfterLink(self, end: Callable[[Stream], None]) -> None:
        """End both ends of a connection whose link is lost; check that connection and TCP are released."""
        ends = await self.ends()
        for each in ends:
            self.assertEqual(each.transport.smc.mode, "SMC-R", each.transport.smc.toDict())
        streams = [each.transport.stream for each in ends]
        streams[0].link._queuePair._route._services._peer.lost("for the test")
        await waitUntil(reactor, lambda: all(stream.link.isOver for stream in streams), 5.0)
        for stream in streams:
            self.assertTrue(stream.connected)
            end(stream)
        await gatherResults([each.lost for each in ends])
        await waitUntil(reactor, lambda: not any(stream.tcp for stream in streams), 5.0)
        self.assertEqual([stream.state for stream in streams], ["CLOSED", "CLOSED"])

    async def test_connectionThatEndsAfterItsLinkIsReleased(self) -> None:
        for end in (Stream.close, Stream.abort, Stream.fail, lambda stream: stream.violated("a test")):
            await self.endAfterLink(end)

    async def test_othersAreNotifiedOfPeersEndIfOneRaises(self) -> None:
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

    def test_processEndSendsDeleteLinkAndEndsPeersInOrder(self) -> None:
        here, there = self.pair()
        here.transport.write(b"last words")
        [group] = linkGroups(self.server, DEVICE).groups()
        [link] = group.links
        self.client.stop()
        self.until(lambda: link.isOver)
        self.assertIs(group.core._core.ending.reason, DeleteReason.PROGRAM_ENDING)
        self.assertEqual((there.received, there.hasEnded), (b"last words", True))

    def test_failedLinkIsLoggedOnceWithPeerDeviceAndReason(self) -> None:
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

    def test_repeatedViolationsCauseFewLogEntries(self) -> None:
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


class HandshakeTests(RaceTestCase):
    """An exception at the end of a handshake."""

    def test_established(self) -> None:
        """It resets this connection at both ends, releases its stream, and affects no other connection."""
        bystander, peer = self.pair()
        for end in ("server", "client"):
            with patch.object(Outcomes, "established", breaking(end)):
                here, there, _sockets = self.connect()
                self.until(lambda: self.flushLoggedErrors(Broken))
            failed = there if end == "server" else here
            other = here if end == "server" else there
            self.until(lambda: self.negotiations[0].finished().called)
            self.until(lambda: not other.mode or other.reason)  # noqa: B023
            self.assertEqual((failed.mode, failed.reason), ("", None))
            self.until(lambda: len(self.onlyLink(self.client).members) == 1)
            self.until(lambda: len(self.onlyLink(self.server).members) == 1)
        bystander.transport.write(b"still here")
        self.until(lambda: peer.received == b"still here")

    def test_timers(self) -> None:
        """A handshake whose timer raises, for a silent client, is reset."""
        for owner, name, timeout in (_Handshake, "expired", None), (ServerHandshake, "decline", 0.1):
            accepting = self.accepting(replace(self.options, timeout=timeout), Listener())
            socket = self.connectSocket(accepting)
            socket.send(self.proposal())
            with patch.object(owner, name, side_effect=Broken(name)):
                self.until(lambda: accepting._over, 60.0)  # noqa: B023
            self.assertEqual(len(self.flushLoggedErrors(Broken)), 1)
            self.until(lambda: socket.peer.isClosed)  # noqa: B023

    def test_interruptedMessage(self) -> None:
        """After an exception, a handshake does not act on what the machine has made of the message before."""
        real = _Handshake.received

        def received(core: _Handshake, data: bytes, now: float) -> None:
            real(core, data, now)
            raise Broken("received")

        accepting = self.accepting(self.options, Listener())
        socket = self.connectSocket(accepting)
        with patch.object(_Handshake, "received", received):
            socket.send(self.proposal())
            self.until(lambda: accepting._over)
        self.assertEqual(len(self.flushLoggedErrors(Broken)), 1)
        self.assertEqual(linkGroups(self.server, DEVICE).groups(), [])

    def test_earlyMessage(self) -> None:
        """A connection that an early message has aborted sends nothing that its protocol writes."""
        bystander, peer = self.pair()
        client = Listener(lambda end: end.transport.write(b"early"))
        server = Listener(lambda end: end.transport.write(b"too late"))
        with patch.object(flow.Flow, "_queueEarly", side_effect=Broken("early")):
            here, there, _sockets = self.connect(client, server, latency=0.05)
            self.until(lambda: here.reason and there.reason)
        self.assertEqual(len(self.flushLoggedErrors(Broken)), 1)
        self.assertEqual((here.reason, there.reason, here.received), (ConnectionLost, Broken, b""))
        bystander.transport.write(b"still here")
        self.until(lambda: peer.received == b"still here")

    def test_firstContact(self) -> None:
        """A link group whose first connection cannot be added ends, and the next one has a new group."""
        real = LinkGroup.add
        for outcomes in ([Broken("add")], [real, Broken("add")]):  # at the server, at the client
            calls: Any = iter(outcomes)

            def add(*arguments: Any) -> Any:
                outcome = next(calls)  # noqa: B023
                if isinstance(outcome, Broken):
                    raise outcome
                return outcome(*arguments)

            with patch.object(LinkGroup, "add", add):
                here, _there = self.pair()
            self.assertEqual((here.mode, len(self.flushLoggedErrors(Broken))), ("TCP", 1))
            for host in self.client, self.server:
                self.assertEqual([*linkGroups(host, DEVICE).groups()], [])
        here, _there = self.pair()
        self.assertEqual(here.mode, "SMC-R")

    def test_start(self) -> None:
        """An exception before or after the start of a stream ends it at both ends, and releases it."""
        bystander, peer = self.pair()
        for owner, name, isLate in (
            (TCPMonitor, "__init__", False),
            (Stream, "start", False),
            (Stream, "start", True),
        ):
            for end in self.client, self.server:
                with patch.object(owner, name, breakingStart(owner, name, end, isLate)):
                    here, there, _sockets = self.connect()
                    self.until(lambda: self.flushLoggedErrors(Broken))
                failed, other = (there, here) if end is self.server else (here, there)
                self.until(lambda: not other.mode or other.reason)  # noqa: B023
                self.until(lambda: bool(failed.reason) is isLate)  # noqa: B023
                for host in (self.client, self.server):
                    self.until(lambda: len(self.onlyLink(host).members) == 1)  # noqa: B023
                self.assertEqual(self.flushLoggedErrors(), [])
        bystander.transport.write(b"still here")
        self.until(lambda: peer.received == b"still here")

    def test_wake(self) -> None:
        """A link group that cannot return to the reactor does not prevent connections, nor end its own."""
        bystander, peer = self.pair()
        with patch.object(LinkGroup, "_reschedule", side_effect=Broken("wake")):
            here, there, _sockets = self.connect()
        self.assertGreater(len(self.flushLoggedErrors(Broken)), 0)
        self.until(lambda: here.mode and there.mode)
        for stream, other in ((bystander, peer), (here, there)):
            stream.transport.write(b"still here")
            self.until(lambda other=other: other.received == b"still here")  # type: ignore[misc]  # a lambda

    def test_linger(self) -> None:
        """Both ends of a connection end although its link group cannot wait for the peer."""
        bystander, peer = self.pair()
        here, there = self.pair()
        with patch.object(LinkGroup, "linger", side_effect=[Broken("linger"), None, None]):
            here.transport.loseConnection()
            there.transport.loseConnection()
            self.until(lambda: here.reason and there.reason)
        self.assertEqual(len(self.flushLoggedErrors(Broken)), 1)
        bystander.transport.write(b"still here")
        self.until(lambda: peer.received == b"still here")

    def onlyLink(self, host: Host) -> Link:
        [link] = linkGroups(host, DEVICE).links()
        return link


def breakingStart(owner: type, name: str, end: Host, isLate: bool) -> Callable[..., None]:
    """Return a replacement of a method that raises at this end, perhaps after its work."""
    real = getattr(owner, name)

    def method(self: Any, *arguments: Any) -> None:
        stream = self if isinstance(self, Stream) else arguments[0]
        isHere = stream.link.groups.reactor is end
        if isLate or not isHere:
            real(self, *arguments)
        if isHere:
            raise Broken(name)

    return method


def breaking(end: str) -> Callable[..., None]:
    """Return a replacement of C{Outcomes.established} that raises at this end."""
    real = Outcomes.established

    def established(outcomes: Outcomes, *arguments: Any) -> None:
        if outcomes._where == end:
            raise Broken(end)
        real(outcomes, *arguments)

    return established
