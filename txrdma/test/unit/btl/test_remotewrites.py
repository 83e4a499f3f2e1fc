"""Long messages between hosts: RDMA writes them into receive buffers, and datagrams announce them."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from random import Random
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl import receivebuffers as receiveBuffersModule
from txrdma.btl.core.receivebuffer import FULL, LONG_REMOTE, ReceiveBuffer
from txrdma.btl.introductions import FrameKind, QueuePairPart, ReceiveBufferFrame
from txrdma.btl.module import moduleOf
from txrdma.btl.receivebuffers import PAUSE_SECONDS, SMALLEST_PINNED
from txrdma.iba.verbs import SendRequest
from txrdma.sim.network import Faults
from txrdma.test.support.btl.hosts import HostsCase, ORDERED, TAG, TagRecorder
from txrdma.test.unit.btl import test_receivebuffers
from txrdma.testing.btl.world import BadNetwork
from txrdma.verbs import pinning

_SIZE = 65536


class RemoteBufferTests(SynchronousTestCase):
    def test_waits(self) -> None:
        """Bytes that cannot be written yet wait, and use no space."""
        answers = [False, True]
        buffer = ReceiveBuffer(_SIZE, lambda position, data: answers.pop(0), LONG_REMOTE)
        self.assertEqual([buffer.allocate(bytes(_SIZE)), buffer.allocate(bytes(_SIZE))], [FULL, 0])


class RemoteSegmentTests(test_receivebuffers.SegmentCase):
    delay = 0.01

    def test_order(self) -> None:
        """Messages behind a written one wait for it; urgent ones do not, and are delivered first."""
        self.toAlice.order.tags.add(7)
        for each in (b"before", b"long" * 1000, b"behind"):
            self.send(each)
        self.run_(0.005)
        self.send(b"urgent", isUrgent=True)
        self.send(b"last")
        self.run_(0.004)
        self.assertEqual(self.messages(), [b"before", b"urgent"])
        self.run_(1.0)
        self.assertEqual(self.messages()[2:], [b"long" * 1000, b"behind", b"last"])
        self.assertEqual((self.counters.rdmaSends, self.counters.chunkSends), (1, 0))

    def test_failure(self) -> None:
        """Messages not written when RDMA fails are sent in datagrams, once and in order."""
        for seed in range(4):
            self.begin(BadNetwork(loss=0.05 * seed, jitter=0.001))
            self.toAlice.order.tags.add(7)
            random = Random(seed)
            output = [
                random.randbytes(random.choice((10, 700, 5000, 40_000, 200_000))) for _each in range(40)
            ]
            for number, data in enumerate(output):
                self.send(data, number)
            self.world.call(0.015 + 0.01 * seed, lambda: setattr(self, "isReached", False))
            self.run_(60.0)
            self.assertEqual(self.messages(), output)
            self.assertEqual(sorted(self.reported()), list(range(40)))
            self.assertGreater(min(self.counters.rdmaMisses, self.counters.chunkSends), 0)
            self.assertEqual((self.toBob.receiveBuffer, self.toBob.queuedBytes), (None, 0))

    def test_lost(self) -> None:
        """When the peer is lost, messages that are being written fail once."""
        self.send(bytes(5000), "long")
        self.run_(0.001)
        self.alice.module.lose(self.toBob, "a test's")
        self.run_(1.0)
        names = [type(each).__name__ for each in self.eventReceived["alice"]]
        self.assertEqual(names, ["SendFailed", "PeerFailed"])

    def test_close(self) -> None:
        """A connection ends after the messages that are being written."""
        self.send(bytes(5000), "long")
        self.alice.module.close(self.toBob)
        self.run_(10.0)
        self.assertEqual((len(self.messages()), self.reported()), (1, ["long"]))


class RemoteWriteTests(HostsCase):
    def test_short(self) -> None:
        """Messages below the threshold use datagrams, although the peer has a receive buffer."""
        client, server = self.connected()
        for size in (300_000, LONG_REMOTE - 1):
            self.outcome(client.transport.send(TAG, bytes(size)))
        self.assertEqual((len(server.tagged), self.counters().rdmaSends), (2, 1))
        self.assertGreater(self.counters().chunkSends, 0)

    def test_longer(self) -> None:
        """A message longer than the receive buffer arrives in pieces, with few bytes in flight."""
        self.patch(receiveBuffersModule, "MOST_RECEIVE_BUFFERS", 16 << 20)
        client, server = self.connected()
        data = Random(7).randbytes(5 << 20)
        self.outcome(client.transport.send(TAG, data))
        self.assertTrue(server.tagged == [(TAG, data)])
        self.assertEqual((self.counters().rdmaBytes, self.counters().chunkSends), (5 << 20, 0))

    def test_mostWrites(self) -> None:
        """Writes in flight are limited in number, too: the device's queue has no more; others wait."""
        self.patch(receiveBuffersModule, "MOST_WRITES", 8)
        client, server = self.connected()
        for _each in range(8):  # each permits as many bytes in flight in addition
            self.outcome(client.transport.send(TAG, bytes(300_000)))
        (pair,) = self.reliable()
        genuine, remote, found = pair.postSend, self.lifeline(client)._receiveBuffers, set[int]()
        assert remote is not None

        def postSend(requests: Sequence[SendRequest]) -> None:
            genuine(requests)
            found.add(1 + len(remote._lengths))

        self.patch(pair, "postSend", postSend)
        output = [bytes((number,)) * LONG_REMOTE for number in range(100)]
        for outcome in [client.transport.send(ORDERED, each) for each in output]:
            self.outcome(outcome)
        self.assertTrue(server.tagged[8:] == [(ORDERED, each) for each in output])
        self.assertEqual((max(found), self.counters().rdmaSends), (8, 108))

    def test_unvalidated(self) -> None:
        """No queue pair is created for a peer whose address is not validated."""
        client, server = TagRecorder(), TagRecorder()
        opening, _other = self.open(client, server)
        lifeline = opening.lifeline
        self.wait(lambda: lifeline._validation is not None)
        assert lifeline._validation is not None
        self.assertFalse(lifeline._validation.isProven)
        lifeline._frameReceived(FrameKind.QUEUE_PAIR, QueuePairPart(qpn=5).encode())
        self.assertEqual(self.reliable(), [])
        self.wait(lambda: client.isMade and server.isMade)

    def test_wrongKey(self) -> None:
        """If the peer announces memory that does not exist, the refused write is repeated in datagrams."""
        client, server = self.connected()
        encode = ReceiveBufferFrame.encode
        with mock.patch.object(ReceiveBufferFrame, "encode", lambda part: encode(ReceiveBufferFrame(
            rkey=part.rkey ^ 1, length=part.length, address=part.address
        ) if part.length else part)):  # fmt: skip
            self.outcome(client.transport.send(TAG, bytes(300_000)))
        self.outcome(client.transport.send(TAG, bytes(300_000)))
        self.assertEqual((len(server.tagged), self.counters().rdmaMisses), (2, 1))

    def test_pinned(self) -> None:
        """A device that pins memory gets small buffers, within a quarter of the limit, for all peers."""
        most = 8 << 20
        self.patch(pinning, "mostPinned", lambda: most)
        for host in self.hosts:
            host.device.limits = replace(host.device.limits, maxInline=64)
        module = None
        sizes = []
        for _each in range(8):
            client, server = self.connected()
            data = Random(9).randbytes(600_000)
            self.outcome(client.transport.send(TAG, data))
            self.assertTrue(server.tagged == [(TAG, data)])
            module = moduleOf(self.hosts[0], self.hosts[0].device)
            buffer = self.lifeline(client).peer.receiveBuffer
            sizes.append(0 if buffer is None else buffer.size)
        assert module is not None
        self.assertLessEqual(module.ports[0].receiveBufferBytes, most // 4)
        self.assertGreaterEqual(sizes[0], SMALLEST_PINNED)
        self.assertEqual(sizes[-1], 0)


class RemoteEndTests(HostsCase):
    def test_refusing(self) -> None:
        """When a device refuses requests of the queue pair, datagrams carry the message."""
        client, server = self.connected()
        self.outcome(client.transport.send(TAG, bytes(300_000)))
        (pair,) = self.reliable()
        pair.close()
        self.outcome(client.transport.send(TAG, bytes(100_000)))
        self.assertEqual((len(server.tagged), self.counters().rdmaSends), (2, 1))

    def test_bothFail(self) -> None:
        """If an outage ends the queue pairs of both ends while both write, all messages arrive after it."""
        ends = self.connected()
        for _each in range(4):
            for end in ends:
                self.outcome(end.transport.send(ORDERED, bytes(300_000)))
        output = [bytes((number,)) * 100_000 for number in range(30)]
        outcomes = [end.transport.send(ORDERED, each) for each in output for end in ends]
        self.pause(0.0005)
        self.world.network.faults = Faults(loss=1.0)
        self.pause(45.0)
        for end in ends:
            remote = self.lifeline(end)._receiveBuffers
            assert remote is not None
            self.assertFalse(remote._isWriting)
        self.world.network.faults = Faults()
        for outcome in outcomes:
            self.outcome(outcome, 60.0)
        for end in ends:
            self.assertTrue(end.tagged[4:] == [(ORDERED, each) for each in output])

    def test_busy(self) -> None:
        """A receiver that was busy for two minutes gets all messages in order, and no end gives up."""
        client, server = self.connected()
        self.outcome(client.transport.send(ORDERED, bytes(100_000)))
        self.hosts[1].sleep()
        output = [bytes((number,)) * 100_000 for number in range(30)]
        outcomes = [client.transport.send(ORDERED, each) for each in output]
        self.pause(120.0)
        self.hosts[1].wake()
        for outcome in outcomes:
            self.outcome(outcome, 60.0)
        self.assertTrue(server.tagged[1:] == [(ORDERED, each) for each in output])


class RemoteLossTests(HostsCase):
    slowBecause = "simulates many long messages"

    def measure(self, loss: float, count: int) -> tuple[float, int, int]:
        """
        Send messages of 1 MiB.

        @return: seconds, and the numbers of messages by RDMA and of chunks.
        """
        self.world.network.faults = Faults(loss=loss)
        self.world.network.reseed(3)
        client, server = self.connected()
        output = [Random(each).randbytes(1 << 20) for each in range(count)]
        begun = self.world.clock.seconds()
        before = self.counters().rdmaSends, self.counters().chunkSends
        for outcome in [client.transport.send(ORDERED, each) for each in output]:
            self.outcome(outcome, 300.0)
        self.assertTrue(server.tagged == [(ORDERED, each) for each in output])
        counters = self.counters()
        seconds = self.world.clock.seconds() - begun
        return seconds, counters.rdmaSends - before[0], counters.chunkSends - before[1]

    def test_none(self) -> None:
        """Without losses, and with one in ten thousand, RDMA writes all messages that it can."""
        for loss in (0.0, 0.0001):
            _seconds, written, _chunks = self.measure(loss, 12)
            self.assertGreaterEqual(written, 11)

    def test_some(self) -> None:
        """With losses of 1 % and 5 % RDMA writes few messages, and datagrams carry the others."""
        for loss in (0.01, 0.05):
            seconds, written, chunks = self.measure(loss, 8)
            self.assertLessEqual(written, 3)
            self.assertGreater(chunks, 5 << 10)
            # Datagrams carry 30 to 45 MB/s, because they cost processor time.
            self.assertLess(seconds, 8 / 30)

    def test_resumes(self) -> None:
        """RDMA writes are used again after a pause, because the path may have improved."""
        client, server = self.connected()
        self.world.network.faults = Faults(loss=0.05)
        for _each in range(3):
            self.outcome(client.transport.send(TAG, bytes(1 << 20)))
        before = self.counters().rdmaSends
        self.world.network.faults = Faults()
        self.outcome(client.transport.send(TAG, bytes(100_000)))
        self.assertEqual(self.counters().rdmaSends, before)
        self.pause(PAUSE_SECONDS)
        self.outcome(client.transport.send(TAG, bytes(100_000)))
        self.assertEqual(self.counters().rdmaSends, before + 1)
        self.assertEqual(len(server.tagged), 5)
