"""
The stream transport on a real reactor: transfers, back pressure, ends, many connections.
"""

from __future__ import annotations

import hashlib
import random
import socket
from dataclasses import replace
from typing import Any

from zope.interface import implementer

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IPullProducer, IPushProducer
from twisted.internet.protocol import connectionDone
from twisted.internet.task import deferLater
from twisted.protocols.portforward import ProxyFactory
from twisted.python.failure import Failure

from txrdma.iba.types import QPN
from txrdma.iba.verbs import Completion, CompletionOpcode, Status
from txrdma.smc.flow.flow import DELIVERY
from txrdma.smc.group import groups
from txrdma.smc.group.groups import linkGroups
from txrdma.smc.stream.transport import SMCTransport
from txrdma.smc.terms.options import LOCAL_DEVICE
from txrdma.test.support.smc.ends import EndsTestCase, reactor
from txrdma.test.support.streaming import Raising
from txrdma.testing.protocols import Echo, HalfCloseRecorder, ProducerRecorder, Recorder, Recorders
from txrdma.testing.reactors import waitUntil

PATTERN = random.Random(5).randbytes(1 << 16)


@implementer(IPushProducer)
class Streamer(Recorder):
    """Writes bytes in pieces of odd sizes, as its transport requests, and hashes received bytes."""

    total = 12_345_678

    def __init__(self) -> None:
        super().__init__()
        self.sent = hashlib.sha256()
        self.got = hashlib.sha256()
        self.length = 0
        self.complete: Deferred[None] = Deferred()
        self.pauses = 0
        self._left = self.total
        self._isPaused = False
        self._random = random.Random(7)

    def stream(self) -> None:
        self.transport.registerProducer(self, True)
        self.resumeProducing()

    def resumeProducing(self) -> None:
        self._isPaused = False
        while self._left and not self._isPaused:
            data = PATTERN[: min(self._random.randrange(1, len(PATTERN)), self._left)]
            self._left -= len(data)
            self.sent.update(data)
            if self._random.random() < 0.3:
                self.transport.writeSequence([data[:100], b"", data[100:]])
            else:
                self.transport.write(data)
        if not self._left:
            self.transport.unregisterProducer()

    def pauseProducing(self) -> None:
        self._isPaused = True
        self.pauses += 1

    def stopProducing(self) -> None:
        self._left = 0

    def dataReceived(self, data: bytes) -> None:
        self.got.update(data)
        self.length += len(data)
        if self.length == self.total:
            self.complete.callback(None)


class Hesitant(Streamer):
    def dataReceived(self, data: bytes) -> None:
        if self._random.random() < 0.2:
            self.transport.pauseProducing()
            reactor.callLater(0, self.transport.resumeProducing)
        super().dataReceived(data)


class TransferTests(EndsTestCase):
    """Bytes arrive completely and in order."""

    async def exchange(
        self, server: type[Streamer], client: type[Streamer], key: str = ""
    ) -> tuple[Any, Any]:
        one, other = await self.ends(server, client, "smc:127.0.0.1:0" + key, "smc:127.0.0.1:{}" + key)
        self.assertEqual((one.smc.mode, other.smc.mode), ("SMC-R", "SMC-R"))
        one.stream()
        other.stream()
        await gatherResults([one.complete, other.complete])
        self.assertEqual(one.sent.digest(), other.got.digest())
        self.assertEqual(other.sent.digest(), one.got.digest())
        self.assertEqual((one.smc.bytesSent, one.smc.bytesReceived), (one.total, other.total))
        return one, other

    async def test_megabytesPassInBothDirections(self) -> None:
        one, other = await self.exchange(Streamer, Streamer)
        self.assertLess(one.smc.messagesSent, one.smc.writes * 2 + 10)

    async def test_megabytesPassThroughSmallestRings(self) -> None:
        self.patch(groups, "RINGS", ())
        self.patch(groups, "SMALL_RING", 16384)
        one, other = await self.exchange(Hesitant, Streamer)
        self.assertEqual(
            (one.transport.stream.flow.ring.size, other.transport.stream.flow.ring.size), (16384, 16384)
        )

    async def test_eachEndChoosesSizeOfItsRing(self) -> None:
        sizes = iter([16384, 1 << 20])
        self.patch(groups.LinkGroups, "ringSize", lambda self: next(sizes))
        one, other = await self.exchange(Streamer, Streamer)
        self.assertEqual(one.transport.stream.flow.ring.peerSize, other.transport.stream.flow.ring.size)
        self.assertNotEqual(one.transport.stream.flow.ring.size, other.transport.stream.flow.ring.size)

    async def test_bytesBeyondInlineLimitAreStaged(self) -> None:
        opened = linkGroups(reactor, LOCAL_DEVICE)
        opened.ports = tuple(replace(port, maxInline=64) for port in opened.ports)
        one, other = await self.exchange(Streamer, Streamer)
        self.assertTrue(one.transport.stream.link.scheduler.queue.isStaged)

    async def test_queuePairIsClosedOnceEverythingIsSent(self) -> None:
        self.patch(Streamer, "total", 1_234)
        opened = linkGroups(reactor, r"soft:route=rocev2")
        opened.ports = tuple(replace(port, maxInline=64) for port in opened.ports)
        one, _other = await self.exchange(Streamer, Streamer, r":device=soft\:route\=rocev2")
        turn = one.transport.stream.link.scheduler
        asked: list[int] = []

        class Late:
            """Reports the last message when it is polled for the third time."""

            def poll(self, limit: int) -> list[Completion]:
                asked.append(limit)
                latest = Completion(turn.queue.sent, Status.SUCCESS, CompletionOpcode.SEND, QPN(0))
                return [latest] if len(asked) >= 3 else []

        one.transport.write(b"the last word")
        turn.finish()
        self.assertTrue(turn.isSending)
        turn._sendQueue = Late()
        turn.drain()
        self.assertFalse(turn.isSending)
        self.assertEqual(len(asked), 3)

    async def test_megabytesPassOverUDP(self) -> None:
        self.patch(Streamer, "total", 1_234_567)
        one, _ = await self.exchange(Streamer, Streamer, r":device=soft\:route\=rocev2")
        self.assertEqual(one.smc.route, "rocev2")

    async def test_writerIsPausedWhilePeerDoesNotRead(self) -> None:
        one, other = await self.ends(Streamer, Streamer)
        other.transport.pauseProducing()
        one.stream()
        await deferLater(reactor, 0.05)
        self.assertEqual(other.length, 0)
        self.assertGreater(one.pauses, 0)
        self.assertLess(one.transport.stream.flow.backlog, 4 * one.transport.bufferSize)
        other.transport.resumeProducing()
        await other.complete
        self.assertEqual(one.sent.digest(), other.got.digest())

    async def test_dataReceivedDoesNotExceedMaximum(self) -> None:
        many = PATTERN * (3 * DELIVERY // len(PATTERN))
        longest = 0

        class Measuring(Recorder):
            def dataReceived(self, data: bytes) -> None:
                nonlocal longest
                longest = max(longest, len(data))
                super().dataReceived(data)

        one, other = await self.ends(Measuring)
        one.transport.write(many)
        self.assertEqual(await other.receiving(len(many)), many)
        self.assertEqual(longest, DELIVERY)


@implementer(IPullProducer)
class Puller:
    """Produces a piece on each request."""

    def __init__(self, consumer: Any, pieces: int) -> None:
        self.consumer = consumer
        self.left = pieces
        self.isStopped = False

    def resumeProducing(self) -> None:
        if self.left:
            self.left -= 1
            self.consumer.write(PATTERN[:5000])
        else:
            self.consumer.unregisterProducer()

    def stopProducing(self) -> None:
        self.isStopped = True


class EndTests(EndsTestCase):
    async def pair(
        self, server: type[Recorder] = Recorder, client: type[Recorder] = Recorder
    ) -> tuple[Any, Any]:
        one, other = await self.ends(server, client)
        self.assertIsInstance(one.transport, SMCTransport)
        return one, other

    async def test_abortStopsProducer(self) -> None:
        one, other = await self.pair()
        producer = Puller(one.transport, 10**9)
        other.transport.pauseProducing()
        one.transport.registerProducer(producer, False)
        await deferLater(reactor, 0.02)
        one.transport.abortConnection()
        await one.lost
        other.transport.resumeProducing()  # a paused end is notified of a reset when it reads again
        await other.lost
        self.assertTrue(producer.isStopped)
        one.reason.trap(ConnectionAborted)
        other.reason.trap(ConnectionLost)

    async def test_secondProducerIsRefusedAndLateOneStopped(self) -> None:
        one, other = await self.pair()
        first = Puller(one.transport, 0)
        one.transport.registerProducer(first, True)
        self.assertRaises(RuntimeError, one.transport.registerProducer, Puller(one.transport, 0), True)
        one.transport.abortConnection()
        await one.lost
        late = Puller(one.transport, 0)
        transport = one.transport
        transport.registerProducer(late, True)
        self.assertTrue(late.isStopped)

    async def test_callAfterDelayedCalls(self) -> None:
        """Delayed calls are made first, so that producers can write before a close that waits for them."""
        one, _other = await self.pair()
        stream = one.transport.stream
        order: list[str] = []

        def request() -> None:
            reactor.callLater(0, order.append, "delayed")
            stream.afterDelayedCalls(lambda: order.append("after"))

        stream.link.groups.closeNotifier.add(lambda: None)  # it is called as soon as the reactor polls
        reactor.callLater(0, request)
        await waitUntil(reactor, lambda: len(order) == 2)
        self.assertEqual(order, ["delayed", "after"])

    async def test_closeWaitsForResumedProducer(self) -> None:
        """As over TCP, a producer that is resumed after the close may write once more, later."""
        one, other = await self.pair(client=HalfCloseRecorder)
        producer = ProducerRecorder()
        one.transport.registerProducer(producer, True)
        one.transport.write(bytes(1 << 20))
        one.transport.loseWriteConnection()
        await waitUntil(reactor, lambda: "resume" in producer.calls)
        for _ in range(8):
            other.transport.write(PATTERN)  # acknowledged by messages of this end
            other.transport.write(PATTERN)
        await waitUntil(reactor, lambda: len(one.received) == 16 * len(PATTERN))
        self.assertFalse(one.writeEnded.called)
        one.transport.write(b"more")
        await other.lost  # its protocol does not support half-closed connections
        self.assertEqual(other.received, bytes(1 << 20) + b"more")
        self.assertEqual(producer.calls[:2], ["pause", "resume"])

    async def test_forwarderClosesWhenTargetHasClosed(self) -> None:
        """C{portforward} closes the client when its target has closed, although a producer is registered."""
        target = Recorders(Recorder)
        made = target.next()
        inner = reactor.listenTCP(0, target, interface="127.0.0.1")
        self.addCleanup(inner.stopListening)
        factory = ProxyFactory("127.0.0.1", inner.getHost().port)
        port = await serverFromString(reactor, "smc:127.0.0.1:0").listen(factory)
        self.addCleanup(port.stopListening)
        client = await self.connect(f"smc:127.0.0.1:{port.getHost().port}")
        await made
        target.protocols[0].transport.write(b"answer")
        target.protocols[0].transport.loseConnection()
        await client.lost
        client.reason.trap(ConnectionDone)
        self.assertEqual(client.received, b"answer")

    async def test_invalidCursorEndsOnlyItsConnection(self) -> None:
        factory, port = await self.serve(kind=Echo)
        one, other = await self.join(factory, f"smc:127.0.0.1:{port}")
        two = await self.connect(f"smc:127.0.0.1:{port}")
        one.transport.stream.flow.ring.at = one.transport.stream.flow.ring.peerSize - 1
        one.transport.write(b"x")
        await gatherResults([one.lost, other.lost])
        one.reason.trap(ConnectionLost)
        other.reason.trap(ConnectionLost)
        two.transport.write(b"still there?")
        self.assertEqual(await two.receiving(12), b"still there?")

    async def test_deviceClosedInOrderEndsPeersInOrder(self) -> None:
        one, other = await self.ends()
        one.transport.write(b"last words")
        one.transport.stream.link.group.close("for the test")
        await gatherResults([one.lost, other.lost])
        self.assertEqual(other.received, b"last words")
        one.reason.trap(ConnectionLost)
        other.reason.trap(ConnectionDone)

    async def test_pausedWriterAnswersAbort(self) -> None:
        """A peer's abort is answered, so that the peer frees its ring, even by a paused end that writes."""
        one, other = await self.pair()
        other.transport.pauseProducing()
        other.transport.write(bytes(20_000_000))
        await one.receiving(1)
        one.transport.abortConnection()
        await gatherResults([one.lost, other.lost])
        await waitUntil(reactor, lambda: not any(group.flows for group in groups.everyGroup()))

    async def test_exceptionInConnectionMadeKeepsConnectionAsTCP(self) -> None:
        for serverKeys, clientScheme, mode in (
            ("", "smc", "SMC-R"),
            ("", "tcp", "TCP"),
            (":version=2:ueid=A", "smc", "TCP"),
        ):
            factory, port = await self.serve(f"smc:0:interface=127.0.0.1{serverKeys}", Raising)
            one, other = await self.join(factory, f"{clientScheme}:127.0.0.1:{port}")
            self.assertEqual(other.transport.smc.mode, mode)
            one.transport.write(b"hello")
            self.assertEqual(await other.receiving(5), b"hello")
            one.transport.loseConnection()
            await gatherResults([one.lost, other.lost])
            other.reason.trap(ConnectionDone)
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    async def test_accessorsOfTCPTransportsWork(self) -> None:
        one, other = await self.pair()
        transport = one.transport
        self.assertEqual(transport.getHost(), other.transport.getPeer())
        self.assertEqual(transport.getPeer(), other.transport.getHost())
        transport.setTcpNoDelay(True)
        transport.setTcpKeepAlive(True)
        self.assertTrue(transport.getTcpNoDelay())
        self.assertTrue(transport.getTcpKeepAlive())
        handle = transport.getHandle()
        self.assertEqual(handle.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE), 1)
        self.assertRaises(TypeError, transport.write, "text")
        self.assertRaises(TypeError, transport.writeSequence, ["text"])
        transport.abortConnection()
        await one.lost
        transport.write(b"into the void")
        self.assertIsNone(transport.getHandle())
        for _ in range(2):
            await deferLater(reactor, 0)
        self.assertEqual(handle.fileno(), -1)
        transport.setTcpNoDelay(True)
        self.assertEqual(transport.getPeer(), other.transport.getHost())


class ManyTests(EndsTestCase):
    """Many connections share a link."""

    async def test_consecutiveConnectionsReuseOneBuffer(self) -> None:
        factory, port = await self.serve(kind=Echo)
        buffers = set()
        for _ in range(60):
            end = await self.connect(f"smc:127.0.0.1:{port}")
            link = end.transport.stream.link
            buffers |= {buffer.rkey for buffer in link.group.pool}
            end.transport.write(b"hello")
            self.assertEqual(await end.receiving(5), b"hello")
            end.transport.loseConnection()
            await gatherResults([end.lost, factory.protocols[-1].lost])
        self.assertEqual(len(buffers), 1)
        await waitUntil(reactor, lambda: not link.group.streams())


class WritingInConnectionMadeTests(EndsTestCase):
    async def test_writingAndClosingInCallbacksWorks(self) -> None:
        class Hasty(Recorder):
            def connectionMade(self) -> None:
                super().connectionMade()
                self.transport.write(PATTERN)
                self.transport.loseConnection()

        class Answering(Recorder):
            def dataReceived(self, data: bytes) -> None:
                super().dataReceived(data)
                self.transport.write(data)
                self.transport.pauseProducing()
                self.transport.resumeProducing()

            def connectionLost(self, reason: Failure = connectionDone) -> None:
                self.transport.write(b"into the void")
                super().connectionLost(reason)

        factory, port = await self.serve(kind=Answering)
        one = await self.connect(f"smc:127.0.0.1:{port}", Hasty)
        await one.lost
        await waitUntil(reactor, lambda: factory.protocols and factory.protocols[0].lost.called)
        self.assertEqual(factory.protocols[0].received, PATTERN)
