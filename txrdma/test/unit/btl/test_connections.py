"""
Connections by the byte transfer layer on simulated hosts: messages, memory, back pressure, ends and faults.
"""

from __future__ import annotations

import errno
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any
from unittest import mock
from unittest.mock import Mock

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.testing import AccumulatingProtocol, StringTransport
from twisted.logger import capturedLogs
from twisted.python.failure import Failure

from txrdma.btl import connections, lifeline, memory, probes
from txrdma.btl.channels import MOST_POLLS, MOST_UNREPORTED
from txrdma.btl.connections import ClientEndpoint, PeerOpening, ServerEndpoint
from txrdma.btl.core.congestion import FIRST_WINDOW
from txrdma.btl.core.events import Packet
from txrdma.btl.core.flow import WINDOW
from txrdma.btl.core.matching import Interface, MOST_INTERFACES
from txrdma.btl.core.module import MANY_WAIT, MOST_RESENDS, OVERHEAD
from txrdma.btl.core.path import DATA
from txrdma.btl.core.peer import Peer, PEER_CLOSED
from txrdma.btl.ends import tcpEndpointTo
from txrdma.btl.errors import MessageFailed, PeerLost, Unreachable
from txrdma.btl.introductions import encodeInterfaces, frame, FrameKind, LONGEST_FRAME, VERSION
from txrdma.btl.lifeline import PeerConnection
from txrdma.btl.module import COMMAND_DEPTHS, DATA_DEPTHS, moduleOf, OVERDUE_SECONDS
from txrdma.btl.transport import _MESSAGE, FULL, LARGEST_TAG
from txrdma.btl.wire import decodeSegment, ENTRY_LENGTH, FRAG, HEADER_LENGTH, PACK
from txrdma.error import DeviceUnavailable, InvalidRequest, QueueFull, Refused, ResourceExhausted, WireError
from txrdma.iba.roce import RoCEPacket
from txrdma.iba.verbs import QPAttributes, QPKind, QPState
from txrdma.messages.memory import MemoryName
from txrdma.sim.network import Faults, RECEIVE_BUFFER
from txrdma.test.support import slow
from txrdma.test.support.btl.hosts import HostsCase, ORDERED, TAG, TagRecorder
from txrdma.test.support.compiled import skipIfCompiled
from txrdma.testing.protocols import ProducerRecorder, Recorders
from txrdma.testing.smc.hosts import connectedSockets, Host, MemoryTCP


class LateMessageTests(HostsCase):
    def test_sentAfterPeerClosed(self) -> None:
        """An end that sends when its peer has closed learns of the loss, unless it has closed as well."""
        for isPaused in (False, True):
            for closes, reason in ((False, ConnectionLost), (True, ConnectionDone)):
                client, server = self.connected()
                if isPaused:
                    server.transport.pauseProducing()

                def answer(closes: bool = closes, server: Any = server) -> None:
                    if closes:
                        server.transport.loseConnection()
                    server.transport.sendMessage(b"in vain")

                if not isPaused:
                    self.patch(server, "messageReceived", lambda *_args, answer=answer: answer())
                client.transport.sendMessage(b"the last one")
                client.transport.loseConnection()
                if isPaused:
                    self.wait(lambda c=client: c.lost)  # type: ignore[misc]  # a lambda
                    answer()
                    server.transport.resumeProducing()
                self.wait(lambda s=server: s.lost)  # type: ignore[misc]  # a lambda
                server.lost[0].trap(reason)


class MessageTests(HostsCase):
    def test_answers(self) -> None:
        """An answer carries the acknowledgement of its request."""
        client, server = self.connected()
        server.transport.setHandler(TAG, lambda data: server.transport.post(TAG, data))
        self.pause(0.1)
        counters = self.counters(1)
        before = counters.ackSends
        for number in range(20):
            client.transport.post(TAG, b"ping")
            self.wait(lambda count=number + 1: len(client.tagged) == count)  # type: ignore[misc]  # an int
        self.assertEqual(counters.ackSends, before)

    def test_longBatch(self) -> None:
        """A long batch is acknowledged before it is delivered, so that its sender continues meanwhile."""
        client, server = self.connected()
        self.pause(0.1)
        counters = self.counters(1)
        before, seen = counters.ackSends, list[int]()
        server.transport.setHandler(TAG, lambda data: seen.append(counters.ackSends))
        for _each in range(32):
            client.transport.post(TAG, bytes(900))
        self.wait(lambda: len(seen) == 32)
        self.assertGreater(seen[0], before)

    def test_receiveBuffer(self) -> None:
        """The receiver advertises how many of the longest packets its socket has space for."""
        client, server = self.connected()
        self.outcome(client.transport.send(TAG, bytes(100_000)))
        self.pause(0.1)
        peer = self.lifeline(client).peer
        usable = RECEIVE_BUFFER // 2  # the system counts more than the packets
        self.assertEqual(peer.sent.paths[0].room, usable // (peer.mtu + OVERHEAD))
        self.close(client, server)

    def test_longTurn(self) -> None:
        """Messages sent in a long reactor iteration leave in full packets before it ends."""
        client, server = self.connected()
        self.pause(0.1)
        counters = self.counters()
        before, alone = counters.packSends, counters.fragSends
        output = [b"%d" % number * 20 for number in range(2000)]
        for data in output:
            client.transport.post(ORDERED, data)
        self.assertGreaterEqual(counters.packSends - before, MANY_WAIT - 1)
        self.wait(lambda: len(server.tagged) == len(output))
        self.assertEqual([data for _tag, data in server.tagged], output)
        length = sum(len(data) + ENTRY_LENGTH for data in output)
        peer = client.transport._peer
        assert isinstance(peer, Peer)
        longest = peer.mtu - HEADER_LENGTH
        self.assertLessEqual(
            counters.packSends - before, length / (longest - len(output[-1]) - ENTRY_LENGTH) + 1
        )
        self.assertEqual(counters.fragSends, alone + 1)  # the first one; the last one waits for more

    def test_inline(self) -> None:
        """Packets beyond a device's inline limit are sent from registered memory."""
        device: Any = self.hosts[0].device
        device.limits = replace(device.limits, maxInline=64)
        client, server = self.connected()
        sizes = [10, 46, 47, 600, 5000, 0]
        for number, size in enumerate(sizes):
            client.transport.sendPriority(ORDERED, bytes((number,)) * size)
            self.pause(0.001)
        self.wait(lambda: len(server.tagged) == len(sizes))
        output = [(ORDERED, bytes((number,)) * size) for number, size in enumerate(sizes)]
        self.assertEqual(server.tagged, output)
        channels = moduleOf(self.hosts[0], device)._channels
        self.assertEqual([channel._pair.capacity.maxInline for channel in channels], [64, 64])

    def test_refusedPackets(self) -> None:
        """Packets that are not posted take no places of the ring, where others are still in flight."""
        device: Any = self.hosts[0].device
        device.limits = replace(device.limits, maxInline=64)
        client, _server = self.connected()
        channel, peer = moduleOf(self.hosts[0], device)._channels[DATA], client.transport._peer
        channel._direct = None  # type: ignore[assignment]  # as on other devices
        packets = [Packet(peer, DATA, b"?" * 64, bytes((number,))) for number in range(3)]
        used: list[int] = []
        failures: list[Exception] = []

        def postSend(_pair: object, requests: list[Any]) -> None:
            if failures:
                raise failures.pop()
            used.extend(request.segments[0].address for request in requests)

        with mock.patch.object(type(channel._pair), "postSend", postSend):
            self.assertEqual(channel.send(packets), 0)
            failures.append(QueueFull("a test's"))
            self.assertEqual(channel.send(packets), 3)
            failures.append(ZeroDivisionError("a test's"))
            self.assertRaises(ZeroDivisionError, channel.send, packets)
            self.assertEqual(channel.send(packets), 0)
            failures.append(QueueFull("a test's"))
            fast = (*peer.context.destinations[DATA], b"?" * 65, b"")
            self.assertEqual([channel.sendFast(*fast), channel.sendFast(*fast)], [1, 0])
        self.assertEqual([(each - used[0]) // channel._mtu for each in used], list(range(7)))

    def test_credits(self) -> None:
        """The sends of all but a few packets sent one by one have been reported as complete."""
        client, _server = self.connected()
        for _each in range(3 * MOST_UNREPORTED):
            self.outcome(client.transport.send(TAG, b"x"))
        module = moduleOf(self.hosts[0], self.hosts[0].device)
        for credits, depth in zip(module.core.credits, (COMMAND_DEPTHS[0], DATA_DEPTHS[0]), strict=True):
            self.assertTrue(depth - MOST_UNREPORTED < credits <= depth, (credits, depth))

    def test_byTag(self) -> None:
        """A message is passed to the handler of its tag, and its sender is notified."""
        client, server = self.connected()
        for size in (0, 10, 3000, 200_000):
            self.assertIsNone(self.outcome(client.transport.send(TAG, bytes(size))))
            self.assertEqual(server.tagged.pop(), (TAG, bytes(size)))
        self.outcome(server.transport.sendPriority(ORDERED, b"soon"))
        self.assertEqual(client.tagged, [(ORDERED, b"soon")])
        reported: list[object] = []
        client.transport.post(TAG, b"x", reported.append)
        self.wait(lambda: reported == [None])

    def test_noHandler(self) -> None:
        """A message whose handler was removed is dropped, and the connection continues."""
        client, server = self.connected()
        server.transport.setHandler(TAG, None)
        self.outcome(client.transport.send(TAG, b"for nobody any more"))
        self.outcome(client.transport.send(ORDERED, b"for somebody"))
        self.assertEqual(server.tagged, [(ORDERED, b"for somebody")])

    def test_badCalls(self) -> None:
        """Invalid tags and lengths are refused immediately."""
        client, _server = self.connected()
        transport = client.transport
        self.assertRaises(InvalidRequest, transport.send, LARGEST_TAG + 1, b"")
        self.assertRaises(InvalidRequest, transport.setHandler, -1, lambda data: None)
        self.assertRaises(InvalidRequest, transport.send, 1, bytes((64 << 20) + 1))
        self.assertRaises(InvalidRequest, transport.sendMessage, bytes((64 << 20) + 1))
        name = MemoryName(key=1, length=1 << 30).encode()
        self.assertRaises(InvalidRequest, transport.read, name, (64 << 20) + 1)

    def test_cancelled(self) -> None:
        """A cancelled send reports nothing, and its message arrives if it was sent immediately."""
        client, server = self.connected()
        self.pause(0.1)
        sent = client.transport.send(TAG, b"x")
        sent.cancel()
        self.failureResultOf(sent, CancelledError)
        self.wait(lambda: server.tagged)

    def test_abortInHandler(self) -> None:
        """A handler that aborts gets no further messages, even of the same packet."""
        client, server = self.connected()
        taken: list[bytes] = []

        def take(data: memoryview) -> None:
            taken.append(bytes(data))
            server.transport.abortConnection()

        server.transport.setHandler(TAG, take)
        for _each in range(5):
            client.transport.post(TAG, b"x")
            client.transport.sendMessage(b"y")
        client.transport.post(TAG, bytes(10_000))
        self.wait(lambda: client.lost and server.lost)
        self.assertEqual((taken, server.messages), ([b"x"], []))


class MemoryTests(HostsCase):
    def test_oneRoundTrip(self) -> None:
        """A get takes a round trip, and two if its bytes are written by RDMA over UDP."""
        client, server = self.connected()
        memory = bytearray(Random(5).randbytes(300_000))
        name = server.transport.share(memory).name
        self.outcome(server.transport.send(TAG, memory))  # afterwards, long data has its queue pair
        self.patch(self.world.network, "faults", replace(self.faults, delaySeconds=0.01))
        for length, most in ((10, 0.03), (900, 0.03), (40_000, 0.05)):
            begun = self.world.clock.seconds()
            self.assertEqual(self.outcome(client.transport.read(name, length)), memory[:length])
            self.assertLess(self.world.clock.seconds() - begun, most)

    @slow("it transfers twenty megabytes in simulated packets")
    def test_closedMeanwhile(self) -> None:
        """Memory that is closed while it is written or read is not changed later; these requests fail."""
        client, server = self.connected()
        failures = 0
        for number in range(16):
            memory = bytearray(300_000 * (number % 4) + 900)
            shared = server.transport.share(memory)
            requests: list[Deferred[Any]] = []
            for _each in range(3):
                requests.append(client.transport.write(shared.name, bytes([1]) * len(memory)))
                requests.append(client.transport.read(shared.name, len(memory)))
            self.pause(number * 0.0001)
            shared.close()
            found = bytes(memory)
            memory.append(0)  # raises while the module uses it
            for each in requests:
                each.addErrback(lambda failure: failure.trap(MessageFailed))
                failures += self.outcome(each) is MessageFailed
            self.assertEqual(memory[:-1], found)
        self.assertGreater(failures, 0)
        self.outcome(client.transport.send(TAG, b"later"))
        self.assertEqual(server.tagged, [(TAG, b"later")])

    def third(self) -> Host:
        """Return another host."""
        return self.host("10.0.1.3")

    def test_refused(self) -> None:
        """Memory that is not registered for this peer is neither written nor read."""
        self.hosts.append(self.third())
        client, server = self.connected()
        third, _server = self.connected(2, 1)
        shared = server.transport.share(bytearray(100))
        name, memory = shared.name, MemoryName.decode(shared.name)
        longer, other = memory.replace(length=200).encode(), memory.replace(key=memory.key + 77).encode()
        for each in (client.transport.write(longer, b"xx", 99), client.transport.write(other, b"x"),
                     third.transport.write(name, b"x"), client.transport.read(longer, 11, 90),
                     third.transport.read(name, 1)):  # fmt: skip
            self.wait(lambda each=each: each.called)  # type: ignore[misc]  # a lambda
            self.failureResultOf(each, MessageFailed)
        shared.close()
        shared.close()
        late = client.transport.write(name, b"x")
        self.wait(lambda: late.called)
        self.failureResultOf(late, MessageFailed)
        self.close(client, server)

    def test_notified(self) -> None:
        """A message that is sent after a put is received when the bytes of the put are in memory."""
        client, server = self.connected()
        memory = server.transport.share(300_000)
        for number in range(1, 20):
            data = bytes([number]) * (number * 15_000)
            client.transport.write(memory.name, data)
            client.transport.post(7, b"%d" % len(data))
            length = int(self.outcome(server.transport.receive(7)))
            self.assertEqual(memory.view[:length], data)

    def test_manyGets(self) -> None:
        """Gets beyond the peer's limit wait, and are answered unless they are cancelled."""
        self.patch(memory, "MOST_GETS", 3)
        client, server = self.connected()
        name = server.transport.share(bytearray(range(200))).name
        answers = [client.transport.read(name, 1, number) for number in range(20)]
        answers[10].cancel()
        self.failureResultOf(answers.pop(10), CancelledError)
        self.wait(lambda: all(each.called for each in answers))
        found = [self.successResultOf(each) for each in answers]
        self.assertEqual(found, [bytes([number]) for number in range(20) if number != 10])
        self.assertEqual((client.transport._memory._reads._sent, client.transport._memory._regions), ({}, {}))

    def test_tooManyGets(self) -> None:
        """Of the gets of a peer that does not wait, twice the limit are answered, and others refused."""
        self.patch(memory, "MOST_GETS", 3)
        client, server = self.connected()
        client.transport._memory._reads.most = 20
        name = server.transport.share(bytearray(b"abc")).name
        answers = [client.transport.read(name, 3) for _ in range(20)]
        for each in answers:
            each.addErrback(lambda failure: failure.trap(MessageFailed))
        self.wait(lambda: all(each.called for each in answers))
        found = [self.successResultOf(each) for each in answers]
        self.assertEqual(found, [b"abc"] * 6 + [MessageFailed] * 14)
        self.assertEqual(self.outcome(client.transport.read(name, 3)), b"abc")

    def test_cancelledGet(self) -> None:
        """A cancelled get releases its memory immediately, and late bytes are ignored."""
        client, server = self.connected()
        name = server.transport.share(bytearray(100)).name
        answer = client.transport.read(name, 100)
        answer.cancel()
        self.failureResultOf(answer, CancelledError)
        self.assertEqual(client.transport._memory._regions, {})
        self.pause(1.0)
        self.outcome(client.transport.send(TAG, b"still here"))


PRODUCED = 120
"""Number of messages of 50,000 bytes: several times as many as may be queued."""


class Producing(ProducerRecorder):
    """A producer that sends while it is not paused."""

    def __init__(self, transport: Any, post: Callable[[int, bytes], None] | None = None) -> None:
        super().__init__(self.produce)
        self.sent = 0
        self._send = transport.sendMessage if post is None else partial(post, TAG)

    @property
    def isPaused(self) -> bool:
        return self.calls[-1:] == ["pause"]

    def produce(self) -> None:
        while not self.isPaused and self.sent < PRODUCED:
            self.sent += 1
            self._send(bytes(50_000))


class PressureTests(HostsCase):
    """An application that does not receive pauses its peer's producer."""

    def test_pause(self) -> None:
        """At most a window of messages arrives while they are not received, and the rest afterwards."""
        client, server = self.connected()
        server.transport.pauseProducing()
        for number in range(PRODUCED):
            client.transport.sendMessage(number.to_bytes(4, "big") + bytes(50_000))
        self.pause(5.0)
        self.assertEqual(server.messages, [])
        queued = sum(len(data) for data, _immediate in server.transport._undelivered)
        self.assertTrue(WINDOW // 2 < queued <= WINDOW, queued)
        server.transport.resumeProducing()
        self.wait(lambda: len(server.messages) == PRODUCED)
        self.assertEqual(
            [int.from_bytes(data[:4], "big") for data, _ in server.messages], list(range(PRODUCED))
        )

    def test_longerThanWindow(self) -> None:
        """A message longer than the window is sent alone."""
        client, server = self.connected()
        for size in (10, WINDOW + 1, 10):
            client.transport.sendMessage(bytes(size))
        self.wait(lambda: len(server.messages) == 3)
        self.assertEqual([len(data) for data, _ in server.messages], [10, WINDOW + 1, 10])

    def test_producer(self) -> None:
        """A producer is paused and resumed, and the connection ends when it has finished."""
        client, server = self.connected()
        producer = Producing(client.transport)
        client.transport.registerProducer(producer, True)
        self.assertRaises(RuntimeError, client.transport.registerProducer, producer, True)
        producer.produce()
        self.assertEqual(producer.calls, ["pause"])
        self.wait(lambda: producer.sent == PRODUCED and not producer.isPaused)
        self.assertGreater(producer.calls.count("resume"), 3)
        client.transport.loseConnection()
        self.pause(1.0)
        self.assertEqual(client.lost, [])
        client.transport.unregisterProducer()
        self.wait(lambda: client.lost)
        self.assertEqual(len(server.messages), PRODUCED)
        self.assertNotIn("stop", producer.calls)

    def test_producerByTag(self) -> None:
        """A producer of tagged messages is resumed when they have arrived, without answers."""
        client, server = self.connected()
        producer = Producing(client.transport, client.transport.post)
        client.transport.registerProducer(producer, True)
        producer.produce()
        self.wait(lambda: producer.sent == len(server.tagged) == PRODUCED)

    def test_emptyProducer(self) -> None:
        """A producer that is false, as an empty container is, is paused when messages share a packet, too."""

        class Empty(ProducerRecorder):
            def __len__(self) -> int:
                return 0

        client, _server = self.connected()
        self.pause(1.0)
        producer = Empty()
        client.transport.registerProducer(producer, True)
        while not client.transport._waiting:
            client.transport.post(TAG, bytes(100))
        self.assertEqual(producer.calls, [])
        client.transport._peer.queuedBytes += FULL
        client.transport.post(TAG, bytes(100))
        self.assertEqual(producer.calls, ["pause"])


class EndTests(HostsCase):
    def test_busy(self) -> None:
        """A receiver that was busy for two minutes gets all messages, and neither end loses its peer."""
        client, server = self.connected()
        self.hosts[1].sleep()
        for number in range(500):
            client.transport.sendMessage(number.to_bytes(2, "big") + bytes(2000))
        outcome = client.transport.send(TAG, b"later")
        self.pause(120.0)
        self.assertNoResult(outcome)
        self.hosts[1].wake()
        self.outcome(outcome)
        self.wait(lambda: len(server.messages) == 500)
        self.assertEqual([int.from_bytes(data[:2], "big") for data, _ in server.messages], list(range(500)))

    def test_asleep(self) -> None:
        """A sender that was busy for a second reads acknowledgements before it retransmits."""
        client, _server = self.connected()
        self.pause(0.1)
        counters = self.counters()
        before, lost = counters.fragSends, counters.timeoutRetrans
        outcome = client.transport.send(TAG, b"x")
        self.wait(lambda: counters.fragSends > before)
        self.hosts[0].sleep()
        self.pause(1.0)
        self.hosts[0].wake()
        self.outcome(outcome)
        self.assertEqual(counters.timeoutRetrans, lost)

    def test_killed(self) -> None:
        """A peer killed in the middle of a message is lost immediately, and pending messages fail."""
        client, server = self.connected()
        outcomes = [client.transport.send(TAG, bytes(3 << 20)), client.transport.send(TAG, b"behind")]
        name = MemoryName(key=1, length=8).encode()
        got = client.transport.read(name, 1)
        self.pause(0.0001)
        self.hosts[1].die(silently=False)
        self.wait(lambda: client.lost, 1.0)
        self.assertEqual(client.why(), "ConnectionLost")
        for each in (*outcomes, got):
            self.failureResultOf(each, MessageFailed)
        self.failureResultOf(client.transport.send(TAG, b"too late"), MessageFailed)
        self.failureResultOf(client.transport.write(name, b"too late"), MessageFailed)
        self.failureResultOf(client.transport.read(name, 1), MessageFailed)
        self.assertNothingLeft()

    def test_vanished(self) -> None:
        """The connection to a host that stops responding is lost after three minutes."""
        client, _server = self.connected()
        self.hosts[1].die(silently=True)
        outcome = client.transport.send(TAG, b"x")
        self.wait(lambda: client.lost, 400.0)
        self.assertEqual(client.why(), "ConnectionLost")
        self.failureResultOf(outcome, MessageFailed)
        self.assertGreater(self.world.clock.seconds(), 180.0)

    def test_abort(self) -> None:
        """An abort is reported locally as aborted, and to the peer as a lost connection."""
        client, server = self.connected()
        client.transport.send(TAG, bytes(1 << 20)).addErrback(lambda failure: None)
        client.transport.abortConnection()
        client.transport.abortConnection()
        self.wait(lambda: client.lost and server.lost)
        self.assertEqual((client.why(), server.why()), ("ConnectionAborted", "ConnectionLost"))
        self.assertNothingLeft()

    def _closedWithLoss(self, tags: list[int], post: bytes = b"") -> str:
        """
        Return the reason with which a server's connection ends when its client closes, and the network loses
        each packet of the server with a message.

        @param tags: tags for which the server sets a handler, which its transport reports to the client.
        @param post: a message of the server, if not empty.
        """
        client, server = self.connected()
        self.pause(0.1)

        def isLost(packet: RoCEPacket) -> bool:
            segment = decodeSegment(packet.payload)
            return segment.kind in (FRAG, PACK) and segment.sender == client.transport._peer.name

        self.world.network.drop(isLost, 1 << 30)
        for tag in tags:
            server.transport.setHandler(tag, print)
        if post:
            server.transport.post(TAG, post)
        self.pause(0.01)
        client.transport.loseConnection()
        self.wait(lambda: client.lost and server.lost, 10.0)
        self.assertEqual(client.why(), "ConnectionDone")
        return server.why()

    def test_abortAtFirstLongMessage(self) -> None:
        """An abort in the iteration of the first long message leaves no queue pair, which it would need."""
        client, server = self.connected()

        def abort() -> None:
            server.transport.send(TAG, bytes(10_000)).addErrback(lambda failure: None)
            server.transport.abortConnection()  # TCP closes before the next turn of the module

        self.hosts[1].callLater(0, abort)
        self.wait(lambda: client.lost and server.lost)
        self.assertNothingLeft()

    def test_lostReports(self) -> None:
        """A lost report to a peer that has closed does not turn the end into an error."""
        self.assertEqual(self._closedWithLoss([1]), "ConnectionDone")
        self.assertEqual(self._closedWithLoss([1, 2, 3]), "ConnectionDone")

    def test_lostMessages(self) -> None:
        """A message that a closing peer has not received ends the connection with an error."""
        self.assertEqual(self._closedWithLoss([], b"one"), "ConnectionLost")
        self.assertEqual(self._closedWithLoss([1, 2], b"one"), "ConnectionLost")

    def test_queuePairsFail(self) -> None:
        """Failed queue pairs are replaced, and all messages arrive once in spite of lost packets."""
        client, server = self.connected()
        outcomes = []
        for number in range(6):
            sizes = (10, 5000, 100_000)
            outcomes += [client.transport.send(ORDERED, bytes([number]) * size) for size in sizes]
            self.pause(0.0001)
            pairs = list(self.hosts[number % 2].device._queuePairs)
            self.assertEqual(len([pair for pair in pairs if pair.kind is QPKind.UD]), 2)
            for pair in pairs:
                pair.modify(QPAttributes(state=QPState.ERR))
            self.pause(0.1 * number)
        self.wait(lambda: len(server.tagged) == 18)
        self.assertEqual([(data[0], len(data)) for _, data in server.tagged],
                         [(number, size) for number in range(6) for size in sizes])  # fmt: skip
        for outcome in outcomes:
            self.successResultOf(outcome)
        self.close(client, server)
        self.assertNothingLeft()

    def test_queuePairsGone(self) -> None:
        """When queue pairs cannot be replaced, all messages fail and connections end."""
        client, server = self.connected()
        pairs = list(self.hosts[0].device._queuePairs)
        for pair in pairs:
            pair.modify(QPAttributes(state=QPState.ERR))
        self.pause(0.01)
        outcome = client.transport.send(TAG, b"never arrives")
        for pair in pairs:
            pair.close()
        self.wait(lambda: client.lost and server.lost, 5.0)
        self.failureResultOf(outcome, MessageFailed)
        self.assertEqual(client.why(), "ConnectionLost")
        self.assertNothingLeft()

    def test_noRoom(self) -> None:
        """
        A device without resources for a module raises an error, and can succeed later.

        Without descriptors no attempt is made with smaller buffers, and more pinned memory is not advised.
        """
        host = self.hosts[0]
        none = Mock(side_effect=ResourceExhausted("no more"))
        with mock.patch.object(host.device, "createProtectionDomain", none):
            self.assertRaises(ResourceExhausted, moduleOf, host, host.device)
        none.side_effect.__cause__ = OSError(errno.EMFILE, "Too many open files")
        with mock.patch.object(host.device, "createChannel", none), capturedLogs() as logs:
            self.assertRaises(ResourceExhausted, moduleOf, host, host.device)
        self.assertEqual(logs, [])
        self.connected()

    def test_handles(self) -> None:
        """While a module exists, it closes the address handles of former peers, except a few."""
        self.connected()
        module = moduleOf(self.hosts[0], self.hosts[0].device)
        for _each in range(2 * MOST_UNREPORTED):
            client, server = self.connected()
            self.close(client, server)
            self.assertLess(len(module._unneeded), MOST_UNREPORTED)

    def test_many(self) -> None:
        """Several connections share a module, which closes with the last of them."""
        pairs = [self.connected() for _ in range(5)]
        self.assertEqual(len(self.hosts[0].device._queuePairs), 2)
        for client, server in pairs:
            client.transport.sendMessage(b"hello")
            self.close(client, server)
            self.assertEqual(server.messages, [(b"hello", None)])
        self.assertNothingLeft()


class TimerTests(HostsCase):
    def test_replaced(self) -> None:
        """Deadlines that messages have replaced are removed long before the last one expires."""
        client, server = self.connected()
        timetable = self.lifeline(client).module.core._times
        most = 0
        for _ in range(300):
            client.transport.post(TAG, b"message")
            self.pause(0.02)
            most = max(most, len(timetable._heap))
        self.assertEqual(len(server.tagged), 300)
        self.assertLess(most, 100)
        self.close(client, server)

    def test_flood(self) -> None:
        """A peer that sends as fast as its packets are processed does not keep a timer from the reactor."""
        client, server = self.connected()
        module = moduleOf(self.hosts[1], self.hosts[1].device)
        reader = module._channels[DATA].reader
        read, polls, isFlooded = reader.poll, list[float](), True

        def poll() -> bool:
            polls.append(module.seconds())
            self.assertLessEqual(len(polls), 1000)
            return read() or isFlooded

        self.patch(reader, "poll", poll)
        module._overdue()
        self.assertEqual(len(polls), MOST_POLLS)
        genuine = module.seconds
        self.patch(module, "seconds", lambda: genuine() + len(polls) * OVERDUE_SECONDS / 5)
        polls.clear()
        module._overdue()
        self.assertEqual(len(polls), 5)
        isFlooded = False
        self.pause(0.001)
        self.assertGreater(len(polls), 5)  # what was not processed does not wait for another packet
        self.outcome(client.transport.send(TAG, b"message"))
        self.close(client, server)


class BurstTests(HostsCase):
    faults = Faults(delaySeconds=0.01)

    def test_resends(self) -> None:
        """All lost segments are retransmitted together, not a few with each acknowledgement."""
        client, server = self.connected()
        transport, peer = client.transport, client.transport._peer
        self.pause(0.1)  # until the ends know each other's handlers
        data = Random(7).randbytes(FIRST_WINDOW * (peer.mtu - HEADER_LENGTH))
        self.world.network.drop(lambda packet: len(packet.payload) > 1000, FIRST_WINDOW - 1)
        transport.post(TAG, data)
        counters = transport._lifeline.module.core.counters
        self.wait(lambda: counters.resends)
        self.pause(0.001)
        self.assertEqual(counters.resends, FIRST_WINDOW - 1)
        self.assertGreater(counters.resends, MOST_RESENDS)
        self.wait(lambda: server.tagged)
        self.assertEqual(server.tagged, [(TAG, data)])


class ExchangeTests(HostsCase):
    """The exchange before the first message."""

    def test_lateProbes(self) -> None:
        """
        A server whose own probes have passed waits for the client's probes.

        Its application may block the reactor as soon as it is connected: by then the client has its echoes.
        """
        unsent: list[Callable[[], None]] = []
        echo = PeerConnection._probeReceived

        def echoLater(lifeline: PeerConnection, nonce: bytes) -> None:
            if lifeline.isClient:
                echo(lifeline, nonce)
            else:
                unsent.append(lambda: echo(lifeline, nonce))

        self.patch(PeerConnection, "_probeReceived", echoLater)
        client, server = (each.lifeline for each in self.open(TagRecorder(), TagRecorder()))
        for _probe in range(2):
            self.wait(lambda: bool(unsent))
            self.pause(0.1)
            self.assertEqual((client.user, server.user), (None, None))
            unsent.pop()()
        self.wait(lambda: client.user is not None and server.user is not None)

    def test_stopped(self) -> None:
        """
        A client whose process is stopped for longer than the time limit connects, if the server has completed
        its part of the exchange meanwhile. A reactor makes delayed calls before it reads.
        """
        client, server = TagRecorder(), TagRecorder()
        opening, _other = self.open(client, server)
        end = opening.lifeline
        self.wait(lambda: end._validation is not None and end._validation.hasEchoed)
        transport: Any = end.transport
        transport.stopReading()
        self.wait(lambda: server.isMade)
        self.assertFalse(client.isMade)
        seconds = lifeline.EXCHANGE_SECONDS + 1.0
        self.world.clock.callLater(seconds, transport.startReading)
        self.world.clock.callLater(seconds, transport.doRead)
        self.world.clock.advance(seconds)
        self.assertIs(self.outcome(opening.answer), client)
        self.outcome(client.transport.send(TAG, b"x"))
        self.close(client, server)

    def test_closedBeforeEcho(self) -> None:
        """A client gets everything if the close of the server arrives before the echo of its last probe."""

        class Brief(TagRecorder):
            def connectionMade(self) -> None:
                super().connectionMade()
                self.transport.sendMessage(b"everything")
                self.transport.loseConnection()

        late: list[Callable[[], None]] = []
        process = PeerConnection._frameReceived

        def processLater(lifeline: PeerConnection, kind: FrameKind, content: bytes) -> None:
            if lifeline.isClient:
                late.append(lambda: process(lifeline, kind, content))
            if not lifeline.isClient or len(late) == 1:  # the first is the echo of the client's first probe
                process(lifeline, kind, content)

        self.patch(PeerConnection, "_frameReceived", processLater)
        client, server = TagRecorder(), Brief()
        opening, _ = self.open(client, server)
        self.wait(lambda: server.isMade and opening.lifeline.peer.state >= PEER_CLOSED)
        self.assertNoResult(opening.answer)
        self.patch(PeerConnection, "_frameReceived", process)
        for each in late[1:]:
            each()
        self.wait(lambda: client.lost and server.lost)
        self.assertEqual(client.messages, [(b"everything", None)])
        self.assertEqual((client.why(), server.why()), ("ConnectionDone", "ConnectionDone"))
        self.assertNothingLeft()

    def test_unreachable(self) -> None:
        """The error of a path that drops long packets, or all packets, names the interface and the peer."""
        for shortest, text in (
            (1000, "packets of 1024 bytes, the MTU, do not pass from "),
            (0, "no packet passes from "),
        ):
            self.world.network.drop(lambda packet: len(packet.payload) > shortest, 1 << 30)  # noqa: B023
            answers = [opening.answer for opening in self.open(TagRecorder(), TagRecorder())]
            self.wait(lambda: all(answer.called for answer in answers), 60.0)  # noqa: B023
            for answer in answers:
                message = self.failureResultOf(answer, Unreachable).getErrorMessage()
                self.assertRegex(message, text + r".*\(10\.0\.1\.[12]\) to 10\.0\.1\.[12]")
            self.assertNothingLeft()

    def test_smallerMTU(self) -> None:
        """Two ends with different MTUs use the smaller one."""
        from txrdma.iba.types import MTU

        self.hosts[1].device.close()
        self.hosts[1].device = self.world.network.device("10.0.1.2", mtu=MTU.MTU_256)
        lengths: list[int] = []

        def note(packet: RoCEPacket) -> bool:
            lengths.append(len(packet.payload))
            return False

        self.world.network.drop(note, 1)
        client, server = self.connected()
        client.transport.sendMessage(bytes(10_000))
        self.wait(lambda: server.messages)
        self.assertEqual(max(lengths), 256)

    def test_atOnce(self) -> None:
        """Packets that arrive before their sender's introduction are queued: no probe is repeated."""
        for number, delay in enumerate((10e-6, 1e-3, 20e-3)):
            self.hosts.append(self.host(f"10.0.2.{number}"))
            began = self.world.clock.seconds()
            client, server = self.connected(there=len(self.hosts) - 1, delay=delay)
            self.assertLess(self.world.clock.seconds() - began, 10 * delay + 0.01)
            for end, host in ((client, self.hosts[0]), (server, self.hosts[-1])):
                counters = moduleOf(host, host.device).core.counters
                self.assertEqual((counters.resends, counters.unkRecvs), (0, 0))
                end.transport.loseConnection()
            self.wait(lambda c=client, s=server: c.lost and s.lost)  # type: ignore[misc]  # a lambda

    def test_noProtocol(self) -> None:
        """If a factory returns no protocol, its endpoint fails, and the peer's connection is lost."""
        client = TagRecorder()
        openings = self.open(client, None)
        self.wait(lambda: client.lost)
        self.failureResultOf(openings[1].answer, Refused)
        self.assertEqual(client.why(), "ConnectionLost")
        self.assertNothingLeft()

    def test_noProtocolOnce(self) -> None:
        """A factory that returns no protocol is called once, though further frames have arrived."""
        built: list[object] = []
        factory = Mock()
        factory.buildProtocol.side_effect = built.append
        opening, _server = self.openBy(factory, Recorders([TagRecorder()].pop))
        lifeline, received = opening.lifeline, list[bytes]()
        receive = lifeline.dataReceived

        def deliver() -> None:
            data = b"".join(received)
            received.clear()
            receive(data)

        def collect(data: bytes) -> None:
            received.append(data)
            if len(received) == 1:
                self.world.clock.callLater(0.1, deliver)

        self.patch(lifeline, "dataReceived", collect)
        self.wait(lambda: opening.answer.called)
        self.failureResultOf(opening.answer, Refused)
        self.assertEqual(len(built), 1)
        self.pause(1.0)
        self.assertNothingLeft()

    def test_cancel(self) -> None:
        """A cancelled attempt releases everything at both ends."""
        openings = self.open(TagRecorder(), TagRecorder())
        self.pause(0.00002)
        openings[0].answer.cancel()
        self.wait(lambda: openings[1].answer.called)
        self.failureResultOf(openings[0].answer, CancelledError)
        self.failureResultOf(openings[1].answer, Unreachable, PeerLost)
        self.assertNothingLeft()

    def test_wrongArguments(self) -> None:
        """A port, a host or a device that cannot exist is refused immediately."""
        for port in (-1, 1 << 16):
            self.assertRaises(ValueError, tcpEndpointTo, None, "127.0.0.1", port, 30.0)
        self.assertRaises(TypeError, tcpEndpointTo, None, None, 80, 30.0)
        for make in (ClientEndpoint, ServerEndpoint):
            for device in (5, ["soft", 5]):
                self.assertRaises(TypeError, make, None, Mock(), device)

    def test_reactorStops(self) -> None:
        """As over TCP, an attempt whose exchange has begun fails when the reactor stops."""
        self.world.network.faults = Faults(loss=1.0)  # no probe arrives
        stream, client = Mock(), self.hosts[0]
        stream.connect.return_value = Deferred()
        connecting = ClientEndpoint(client, stream, client.device).connect(Recorders([None].pop))
        (exchange,) = stream.connect.call_args.args
        here, there = connectedSockets(self.world, Random(2), client, self.hosts[1], 40000, 50e-6)
        opening = PeerOpening(self.hosts[1], self.hosts[1].device, Recorders([None].pop), False)
        lifeline = exchange.buildProtocol(None)
        for socket, each in ((here, lifeline), (there, opening.lifeline)):
            MemoryTCP(socket, each).begin()
        stream.connect.return_value.callback(lifeline)
        self.wait(lambda: lifeline._validation is not None)
        self.assertNoResult(connecting)
        client.stop()
        self.failureResultOf(connecting, DeviceUnavailable)
        self.wait(lambda: opening.answer.called)
        self.failureResultOf(opening.answer, Unreachable, PeerLost)
        self.assertNothingLeft()

    def test_cancelledByFactory(self) -> None:
        """A factory that cancels the attempt gets no connection, and the server's connection is lost."""
        built, server = TagRecorder(), TagRecorder()
        openings = self.open(None, server)

        def build(_: object) -> TagRecorder:
            openings[0].answer.cancel()
            return built

        self.patch(openings[0], "_factory", Mock(buildProtocol=build))
        self.wait(lambda: server.lost)
        self.failureResultOf(openings[0].answer, CancelledError)
        self.assertEqual((built.isMade, built.ends), (False, []))
        self.assertEqual(server.ends, ["ConnectionLost"])
        self.assertNothingLeft()

    def test_killedBefore(self) -> None:
        """A peer that ends during the exchange is an error."""
        answers = [opening.answer for opening in self.open(TagRecorder(), TagRecorder())]
        self.pause(0.00005)
        self.hosts[1].die(silently=False)
        self.wait(lambda: answers[0].called)
        self.failureResultOf(answers[0], PeerLost, Unreachable)
        self.assertNothingLeft()

    def test_turns(self) -> None:
        """Exchanges beyond the limit wait, and clients that disconnect are removed."""
        self.patch(connections, "MOST_OPENING", 2)
        self.patch(connections, "MOST_WAITING", 4)
        server, answers = Recorders(TagRecorder), []
        accepting = connections._ListenerClients(self.hosts[1], self.hosts[1].device, server)
        begin, exchanges = accepting._begin, list[int]()

        def count(*arguments: Any) -> PeerConnection:
            lifeline = begin(*arguments)
            exchanges.append(accepting._exchanges)
            return lifeline

        self.patch(accepting, "_begin", count)
        for number in range(7):
            port = 40000 + number
            ends = connectedSockets(self.world, Random(2), self.hosts[0], self.hosts[1], port, 50e-6)
            accepted = accepting.buildProtocol(None)
            if number == 6:
                refused = StringTransport()
                accepted.makeConnection(refused)
                self.assertTrue(refused.disconnected)
                break
            opening = connections.PeerOpening(
                self.hosts[0], self.hosts[0].device, Recorders(TagRecorder), True
            )
            MemoryTCP(ends[1], accepted).begin()
            MemoryTCP(ends[0], opening.lifeline).begin()
            answers.append(opening.answer)
        self.assertEqual(len(accepting.unintroduced), 6)
        answers[4].cancel()
        self.wait(lambda: all(answer.called for answer in answers))
        self.failureResultOf(answers.pop(4), CancelledError)
        for answer in answers:
            self.successResultOf(answer)
        self.wait(lambda: len(server.protocols) == 5 and all(each.isMade for each in server.protocols))
        self.assertEqual(
            (len(accepting.queued), len(accepting.unintroduced), accepting._exchanges), (0, 0, 0)
        )
        self.assertEqual((accepting._exchangesOf, accepting._clientsOf), ({}, {}))
        self.assertEqual(max(exchanges), 2)

    def unknownPeer(self, output: bytes) -> Failure:
        """Send bytes of an unknown peer to a server."""
        from twisted.internet.protocol import Protocol

        ends = connectedSockets(self.world, Random(2), self.hosts[0], self.hosts[1], 40001, 50e-6)
        opening = connections.PeerOpening(self.hosts[1], self.hosts[1].device, Recorders(TagRecorder), False)
        MemoryTCP(ends[1], opening.lifeline).begin()
        strange = MemoryTCP(ends[0], Protocol())
        strange.begin()
        strange.write(output)
        answer: Deferred[Any] = opening.answer
        self.wait(lambda: answer.called, 60.0)
        failure: Failure = self.failureResultOf(answer)
        strange.abortConnection()
        self.assertNothingLeft()
        return failure

    def test_invalidPeers(self) -> None:
        """Peers that send no introduction, or an invalid one, are rejected."""
        self.patch(probes, "_prefixLength", lambda gid: 24)  # else from this host
        good = self.introduction(self.hosts[0])
        self.unknownPeer(b"GET / HTTP/1.1\r\nHost: a.example.org\r\nAccept: */*\r\n\r\n").trap(WireError)
        self.unknownPeer(good.replace(version=VERSION - 1).encode()).trap(WireError)
        failure = self.unknownPeer(good.replace(version=5).encode()[:46])  # those of version 5 were shorter
        self.assertIn("the peer speaks version 5, not 7", failure.getErrorMessage())
        self.unknownPeer(good.replace(mtu=40).encode()).trap(WireError)
        self.unknownPeer(b"").trap(Unreachable)
        self.unknownPeer(good.encode()[:20]).trap(Unreachable)
        self.unknownPeer(good.encode()).trap(Unreachable)
        self.unknownPeer(good.encode() + frame(FrameKind.READY)).trap(Unreachable)
        self.unknownPeer(good.replace(interfaces=2).encode() + frame(FrameKind.READY)).trap(Unreachable)
        self.unknownPeer(good.encode() + frame(FrameKind.FAREWELL, bytes(600))).trap(Unreachable)
        self.unknownPeer(good.encode() + b"\1\0" + (LONGEST_FRAME + 1).to_bytes(2, "big")).trap(WireError)
        failure = self.unknownPeer(good.encode() + frame(FrameKind.FAILED, b"\xffwhy"))
        self.assertIn("why", failure.getErrorMessage())
        failure = self.unknownPeer(frame(FrameKind.FAILED, b"there is no module"))
        self.assertIn("there is no module", failure.getErrorMessage())

    def test_reasonOfPeer(self) -> None:
        """The reason of a peer has no control characters in errors and logs."""
        reason = "n\N{LATIN SMALL LETTER O WITH STROKE}\x1b[2J\r\n".encode() + b"\xff"
        failure = self.unknownPeer(frame(FrameKind.FAILED, reason))
        expected = "the peer gives up: n\xf8\\x1b[2J\\x0d\\x0a\N{REPLACEMENT CHARACTER}"
        self.assertEqual(failure.getErrorMessage(), expected)

    def test_manyInterfaces(self) -> None:
        """A peer that offers more interfaces than a connection can have is rejected."""
        self.patch(probes, "_prefixLength", lambda gid: 24)  # else from this host
        most = MOST_INTERFACES
        for count, error in ((0, WireError), (most, Unreachable), (most + 1, WireError)):
            introduction = self.introduction(self.hosts[0]).replace(interfaces=most)
            content = encodeInterfaces([(introduction, Interface(introduction.gid, 24, 0))] * count)
            failure = self.unknownPeer(introduction.encode() + frame(FrameKind.INTERFACES, content))
            failure.trap(error)

    def test_noModule(self) -> None:
        """An end that cannot create a module fails immediately, and the peer receives the reason."""
        self.patch(lifeline, "moduleOf", Mock(side_effect=OSError("there are no descriptors left")))
        ends = connectedSockets(self.world, Random(2), self.hosts[0], self.hosts[1], 40001, 50e-6)
        opening = connections.PeerOpening(self.hosts[1], self.hosts[1].device, Recorders(TagRecorder), False)
        MemoryTCP(ends[1], opening.lifeline).begin()
        self.failureResultOf(opening.answer, OSError)
        MemoryTCP(ends[0], strange := AccumulatingProtocol()).begin()
        self.wait(lambda: b"there are no descriptors left" in strange.data)


class Greedy:
    """A flow without back pressure, instead of L{MessageFlow}."""

    def maySend(self, length: int) -> bool:
        return True

    def send(self, length: int) -> None:
        pass

    def acknowledge(self, handled: int) -> None:
        pass


class LiarTests(HostsCase):
    def test_liars(self) -> None:
        """A peer that breaks a rule loses its connection, and no other connection is affected."""
        for tag, data in ((0xFFFD, (1 << 40).to_bytes(8, "big")), (0xFFFD, b"x"), (0xFFFC, b""),
                          (0xFFFB, b"12"), (0xFFF0, b""), (0xFFFE, b"123"), (0xFFFD, bytes(9)),
                          (0xFFFC, bytes(25)), (0xFFFB, bytes(6)), (0xFFFB, bytes(5)),
                          (0xFFFD, bytes(11)), (0xFFFA, bytes(3)), (0xFFF9, b"1"), (0xFFF8, b"1"),
                          (0xFFF7, bytes(5))):  # fmt: skip
            self.assertRefused((tag, data))

    def test_tooMuch(self) -> None:
        """A peer that sends more than the limit is disconnected."""
        skipIfCompiled()
        client, server = self.connected()
        server.transport.pauseProducing()
        client.transport.sendMessage(b"the first one makes the window")
        flow: Any = Greedy()
        client.transport._outbox._windows[_MESSAGE].flow = flow
        for _ in range(120):
            client.transport.sendMessage(bytes(50_000))
        self.wait(lambda: server.lost)
        self.assertEqual(server.why(), "ConnectionAborted")
