"""Programs that send: they wait until few bytes are queued, and cancel messages."""

from __future__ import annotations

from twisted.internet.defer import CancelledError, Deferred, TimeoutError
from twisted.python.failure import Failure

from txrdma.btl import requests
from txrdma.btl.errors import MessageFailed
from txrdma.btl.transport import FULL
from txrdma.test.support.btl.hosts import HostsCase, ORDERED, TAG
from txrdma.test.unit.btl import test_receivebuffers
from txrdma.testing.protocols import ProducerRecorder

WAITED = 7


class ReadyTests(HostsCase):
    def test_posted(self) -> None:
        """C{ready} fires when half of the limit is free, although no message reports its arrival."""
        client, server = self.connected()
        for _ in range(30):
            client.transport.post(TAG, bytes(100_000))
        ready = client.transport.ready()
        self.assertNoResult(ready)
        left: list[int] = []
        ready.addCallback(lambda _: left.append(client.transport._waitingBytes()))
        self.wait(lambda: left)
        self.assertLessEqual(left[0], FULL // 2)
        self.wait(lambda: len(server.tagged) == 30)

    def test_loop(self) -> None:
        """A coroutine that waits before each message queues few bytes, even if its peer does not receive."""
        client, server = self.connected()
        most: list[int] = []

        async def produce() -> None:
            for number in range(100):
                await client.transport.ready()
                client.transport.post(WAITED, bytes([number]) * 100_000)
                most.append(client.transport._waitingBytes())

        produced = Deferred.fromCoroutine(produce())
        self.pause(1.0)
        self.assertNoResult(produced)
        for number in range(100):
            data = self.outcome(server.transport.receive(WAITED))
            self.assertEqual((data[0], len(data)), (number, 100_000))
        self.successResultOf(produced)
        self.assertLessEqual(max(most), FULL + 100_000)

    def test_withdrawn(self) -> None:
        """C{ready} fires, and a producer is resumed, when queued messages have been cancelled."""
        client, _server = self.connected()
        producer = ProducerRecorder()
        client.transport.registerProducer(producer, True)
        sent = [client.transport.send(WAITED, bytes(1 << 20)) for _ in range(6)]
        self.wait(lambda: client.transport._peer.queuedBytes == 0)
        ready = client.transport.ready()
        self.assertNoResult(ready)
        self.assertEqual(producer.calls, ["pause"])
        for each in sent:
            if not each.called:
                each.cancel()
                self.failureResultOf(each, CancelledError)
        self.successResultOf(ready)
        self.assertEqual(producer.calls, ["pause", "resume"])

    def test_withdrawnCalls(self) -> None:
        """C{ready} fires when queued calls have been cancelled."""
        client, server = self.connected()
        server.transport.answer(TAG, lambda data: Deferred())
        client.transport.call(TAG, bytes(requests.MOST_CALL_BYTES // 2)).addErrback(lambda _: None)
        calls = [client.transport.call(TAG, bytes(requests.MOST_CALL_BYTES // 2)) for _ in range(2)]
        self.wait(lambda: client.transport._peer.queuedBytes == 0)
        ready = client.transport.ready()
        self.assertNoResult(ready)
        for each in calls:
            each.cancel()
            self.failureResultOf(each, CancelledError)
        self.successResultOf(ready)

    def test_end(self) -> None:
        """C{ready} fails at the end of the connection, and can be cancelled."""
        for isLocal in (False, True):
            client, server = self.connected()
            for _ in range(100):
                client.transport.post(TAG, bytes(100_000))
            waiting, cancelled = client.transport.ready(), client.transport.ready()
            cancelled.cancel()
            self.failureResultOf(cancelled, CancelledError)
            (client if isLocal else server).transport.abortConnection()
            self.wait(lambda client=client: client.lost)  # type: ignore[misc]  # a lambda
            self.failureResultOf(waiting, MessageFailed)
            self.failureResultOf(client.transport.ready(), MessageFailed)
            self.assertNothingLeft()


class WithdrawnTests(HostsCase):
    def test_window(self) -> None:
        """Messages that are cancelled before they are sent use nothing of the window of their tag."""
        client, server = self.connected()
        for isUrgent in (False, True):
            client.transport.post(TAG, bytes(1 << 20))  # the others wait for it
            send = client.transport.sendPriority if isUrgent else client.transport.send
            sent = [send(WAITED, bytes(1 << 20)) for _ in range(6)]
            for each in sent:
                each.cancel()
                self.failureResultOf(each, CancelledError)
            self.outcome(client.transport.send(WAITED, bytes(2 << 20)))
            self.assertEqual(len(self.outcome(server.transport.receive(WAITED))), 2 << 20)

    def test_first(self) -> None:
        """A message that fits into the window is sent when a longer one before it is cancelled."""
        client, _server = self.connected()
        self.outcome(client.transport.send(WAITED, bytes(3 << 20)))
        long = client.transport.send(WAITED, bytes(2 << 20))
        short = client.transport.send(WAITED, b"short")
        self.pause(1.0)
        self.assertNoResult(short)
        long.cancel()
        self.failureResultOf(long, CancelledError)
        self.outcome(short, 1.0)


class PriorityTests(HostsCase):
    def test_order(self) -> None:
        """Urgent messages that wait for the window of their tag overtake the others, but not each other."""
        client, server = self.connected()
        long = bytes(3 << 20)
        self.outcome(client.transport.send(WAITED, b"first" + long))
        client.transport.post(WAITED, b"usual" + long)
        cancelled = client.transport.sendPriority(WAITED, b"never" + long)
        for data in (b"one", b"two" + long, b"three"):
            client.transport.post(WAITED, data, None, True)
        cancelled.addErrback(lambda failure: failure.trap(CancelledError))
        cancelled.cancel()
        found = [self.outcome(server.transport.receive(WAITED))[:3] for _each in range(5)]
        self.assertEqual(found, [b"fir", b"one", b"two", b"thr", b"usu"])


class BufferTests(HostsCase):
    def test_changed(self) -> None:
        """A buffer that fits into a packet may be changed and resized while its message is queued."""
        client, server = self.connected()
        for _ in range(5):
            client.transport.post(WAITED, bytes(1 << 20))  # more than the window
        for tag in (WAITED, ORDERED):
            data = bytearray(b"short")
            client.transport.post(ORDERED, bytes(900))
            client.transport.post(tag, data)
            client.transport.sendMany(tag, [data, data])
            data[:] = b"changed"
        self.wait(lambda: len(server.tagged) == 5)
        for _ in range(5):
            self.outcome(server.transport.receive(WAITED))
        waited = [self.outcome(server.transport.receive(WAITED)) for _ in range(3)]
        self.assertEqual(waited, [b"short"] * 3)
        self.assertEqual([data for _tag, data in server.tagged if len(data) < 900], [b"short"] * 3)

    def test_changedLong(self) -> None:
        """A long buffer that changes while it is sent arrives with a mixture of its bytes."""
        client, server = self.connected()
        data = bytearray(300_000)
        shared = server.transport.share(len(data))
        self.world.network.drop(lambda packet: len(packet.payload) > 900, 5)
        outcomes = [client.transport.send(ORDERED, each) for each in (b"before", data, b"behind")]
        outcomes.append(client.transport.write(shared.name, data))
        for number in range(1, 100):
            data[:] = bytes([number]) * len(data)
            self.pause(0.0001)
        for each in outcomes:
            self.outcome(each)
        self.assertEqual([len(found) for _tag, found in server.tagged], [6, len(data), 6])
        for found in (server.tagged[1][1], shared.view):
            self.assertLessEqual({*found}, {*range(100)})
        self.outcome(client.transport.send(ORDERED, b"last"))

    def test_resized(self) -> None:
        """A buffer that does not fit into a packet cannot be resized until the peer has its message."""
        client, server = self.connected()
        data = bytearray(b"x" * 100_000)
        outcomes = [client.transport.send(TAG, bytes(1 << 20)) for _ in range(3)]
        outcomes.append(client.transport.send(TAG, data))
        self.assertRaises(BufferError, data.clear)
        for each in outcomes:
            self.outcome(each)
        self.assertEqual(server.tagged[-1], (TAG, b"x" * 100_000))
        data.clear()

    def test_resizedAfterReordering(self) -> None:
        """A callback can resize its buffer although an earlier message has not arrived."""
        client, server = self.connected()
        name, data = server.transport.share(1000).name, bytearray(1000)
        self.world.network.drop(lambda packet: len(packet.payload) > 900)
        first = client.transport.write(name, bytes(1000))
        second = client.transport.write(name, data)
        second.addCallback(lambda _: (first.called, data.pop()))
        self.assertEqual(self.outcome(second), (False, 0))
        self.outcome(first)

    def test_resizedAfterTheEnd(self) -> None:
        """When a connection has ended, callbacks can resize buffers of messages that have not arrived."""
        for end in (0, 1):
            ends = self.connected()
            name, transport = ends[1].transport.share(100_000).name, ends[0].transport
            buffers = [bytearray(1000 if number < 20 else 100_000) for number in range(100)]
            requests = [transport.write(name, each) for each in buffers[:50]]
            requests += [transport.send(TAG, each) for each in buffers[50:75]]
            requests += [transport.send(WAITED, each) for each in buffers[75:]]  # more than its window
            for request, data in zip(requests, buffers, strict=True):
                request.addErrback(lambda _, data=data: data.clear())
            self.pause(0.00003)
            ends[end].transport.abortConnection()
            for each in requests:
                self.outcome(each)
            self.assertIn(b"", buffers)

    def test_badTags(self) -> None:
        """A tag that is no integer, also if it equals one, raises an exception and affects nothing else."""
        client, server = self.connected()
        self.outcome(client.transport.send(TAG, b"first"))
        client.transport.post(TAG, b"queued")
        client.transport.post(TAG, b"beside it")
        for method in ("post", "send", "sendPriority", "call"):
            for tag in (float(TAG), str(TAG), None):
                self.assertRaises(TypeError, getattr(client.transport, method), tag, b"x")
        self.assertRaises(TypeError, client.transport.sendMany, float(TAG), [b"x"])
        self.outcome(client.transport.send(TAG, b"last"))
        self.assertEqual(
            server.tagged, [(TAG, data) for data in (b"first", b"queued", b"beside it", b"last")]
        )


class WithdrawTests(HostsCase):
    def cancel(self, sent: Deferred[None]) -> None:
        sent.cancel()
        self.failureResultOf(sent, CancelledError)

    def test_queued(self) -> None:
        """Short messages that share a packet, and long ones, are withdrawn; the others arrive."""
        client, server = self.connected()
        for size in (5, 600, 20_000):
            sent = [client.transport.send(ORDERED, bytes([number]) * size) for number in range(6)]
            for number in (1, 3, 5):
                self.cancel(sent[number])
            self.wait(lambda: len(server.tagged) == 3)
            self.pause(0.1)
            self.assertEqual([data[:1] for _tag, data in server.tagged], [b"\0", b"\2", b"\4"])
            self.assertEqual([len(data) for _tag, data in server.tagged], [size] * 3)
            self.assertEqual(client.transport._peer.queuedBytes, 0)
            server.tagged.clear()

    def test_all(self) -> None:
        """When all messages of a packet are withdrawn, nothing of it is sent."""
        client, server = self.connected()
        self.outcome(client.transport.send(TAG, b"first"))
        client.transport.post(TAG, b"second")
        for each in [client.transport.send(TAG, b"%d" % number) for number in range(5)]:
            self.cancel(each)
        self.close(client, server)
        self.assertEqual([data for _tag, data in server.tagged], [b"first", b"second"])
        self.assertEqual(client.why(), "ConnectionDone")

    def test_sharedPacket(self) -> None:
        """A message that shares its packet with posted ones arrives."""
        client, server = self.connected()
        client.transport.post(TAG, b"first")
        client.transport.post(TAG, b"posted")
        self.cancel(client.transport.send(TAG, b"sent"))
        self.wait(lambda: len(server.tagged) == 3)

    def test_timeout(self) -> None:
        """A message that waits for longer than a timeout is withdrawn."""
        client, server = self.connected()
        for _ in range(5):
            client.transport.post(WAITED, bytes(1 << 20))  # more than the window
        late = client.transport.send(WAITED, b"late").addTimeout(0.5, self.world.clock)
        self.wait(lambda: late.called)
        self.failureResultOf(late, TimeoutError)
        client.transport.post(WAITED, b"last")
        found = [self.outcome(server.transport.receive(WAITED)) for _ in range(6)]
        self.assertEqual([len(each) for each in found], [1 << 20] * 5 + [4])
        self.assertEqual(found[-1], b"last")

    def test_beyondWindow(self) -> None:
        """Messages that wait for the window of their tag are withdrawn, and the connection can close."""
        client, server = self.connected()
        failures: list[Failure] = []
        sent = [client.transport.send(WAITED, bytes(1_000_000)) for _ in range(10)]
        for each in sent:
            each.addErrback(failures.append)
        self.pause(2.0)
        client.transport.loseConnection()
        self.pause(1.0)
        self.assertEqual((client.lost, failures), ([], []))
        waiting = [each for each in sent if not each.called]
        for each in waiting:
            each.cancel()
        self.assertEqual([failure.type for failure in failures], [CancelledError] * len(waiting))
        self.wait(lambda: client.lost and server.lost)
        self.assertEqual((client.why(), server.why()), ("ConnectionDone", "ConnectionDone"))
        self.assertNothingLeft()


class RecordTests(HostsCase):
    """Sent and received bytes of a connection, as reported in the log."""

    def test_bytes(self) -> None:
        """The bytes of messages, calls and answers count; those of reads, writes and the transport do not."""
        client, server = self.connected()
        here, there = client.transport, server.transport
        there.answer(TAG, lambda data: bytes(7))
        shared = there.share(1000)
        for size in (10, 20, 5000):  # in one packet, and in chunks
            here.post(TAG, bytes(size))
        here.post(WAITED, bytes(100))
        here.sendMany(ORDERED, [bytes(50)] * 3)
        here.sendMessage(bytes(30))
        here.sendMessage(bytes(40), 5)
        self.outcome(here.call(TAG, bytes(200)))
        self.outcome(here.write(shared.name, bytes(300)))
        self.outcome(here.read(shared.name, 400))
        self.outcome(there.receive(WAITED))
        self.outcome(here.send(TAG, bytes(1)))
        here.loseConnection()
        self.wait(lambda: client.lost and server.lost)
        sent = 10 + 20 + 5000 + 100 + 150 + 30 + 40 + 200 + 1
        self.assertEqual((here.record.bytesSent, here.record.bytesReceived), (sent, 7))
        self.assertEqual((there.record.bytesSent, there.record.bytesReceived), (7, sent))


class OneHostReadyTests(test_receivebuffers.OneHostCase, ReadyTests, WithdrawTests, RecordTests):
    """The tests between two processes of one host, where long messages use shared memory."""
