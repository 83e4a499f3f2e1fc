"""
L{txrdma.smc.flow.ring}: every byte is delivered once and in order, with few messages; validation.
"""

from __future__ import annotations

from collections import deque
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import WireError
from txrdma.smc.flow.ring import DATA, Ring, SPACE, spans, UPDATE
from txrdma.smc.wire.cdc import CDC, CDC_START, CDC_TYPE, ProducerFlags, unpackFrom
from txrdma.test.support.captures import messages

SIZE = 16384


def cursor(total: int, size: int) -> tuple[int, int]:
    """Return wrap and count of a cursor, as in a CDC message: a full ring is wrap + 1, count 0."""
    return (total // size) & 0xFFFF, total % size


def message(ring: Ring, state: int = 0) -> CDC:
    """Return the next message of a ring, decoded."""
    return CDC.decode(ring.message(state))


def fields(**values: int) -> tuple[int, ...]:
    """Return a message as arguments of C{received}."""
    names = ("start", "sequence", "token", "producerWrap", "producerCount", "consumerWrap", "consumerCount")
    flags = values.pop("flags", 0) << 8 | values.pop("state", 0)
    return *({"start": CDC_START, "sequence": 1, **values}.get(name, 0) for name in names), flags


class End:
    """One end of a connection, with memory, around a L{Ring}."""

    def __init__(self, size: int, peerSize: int) -> None:
        self.ring = Ring(size, peerSize, 7)
        self.memory = bytearray(size)
        self.backlog = bytearray()
        self.got = bytearray()
        self.wire: deque[bytes] = deque()
        self.paused = False
        self.pureUpdates = 0
        self.messages = 0
        self.peer: End

    def write(self, data: bytes) -> None:
        self.backlog += data

    def flush(self, most: int = 1 << 30) -> None:
        """Write what fits, and announce it."""
        offset, first, second = self.ring.take(len(self.backlog), min(most, len(self.backlog)))
        if first:
            self.peer.memory[offset : offset + first] = self.backlog[:first]
            self.peer.memory[:second] = self.backlog[first : first + second]
            del self.backlog[: first + second]
            self.send()

    def send(self) -> None:
        self.messages += 1
        self.wire.append(self.ring.message())

    def update(self) -> None:
        self.pureUpdates += 1
        self.send()

    def deliver(self) -> bool:
        """Deliver one message to the peer."""
        if not self.wire:
            return False
        what = self.peer.ring.received(unpackFrom(self.wire.popleft()))
        if what & SPACE:
            self.peer.flush()
        if what & UPDATE:
            self.peer.update()
        return True

    def read(self, most: int) -> bool:
        """Read some of the available bytes."""
        ring = self.ring
        length = min(most, ring.readable)
        if self.paused or not length:
            return False
        offset, first, second = spans(ring.consumed, length, ring.size)
        self.got += self.memory[offset : offset + first] + self.memory[:second]
        if ring.consume(length):
            self.update()
        return True


def pair(size: int, peerSize: int) -> tuple[End, End]:
    """Return two ends."""
    one, other = End(size, peerSize), End(peerSize, size)
    one.peer, other.peer = other, one
    return one, other


def drain(one: End, other: End, step: int = 1 << 30) -> None:
    """Read and deliver until nothing changes, to assert that no end waits for a clock."""
    one.paused = other.paused = False
    moved = True
    while moved:
        moved = False
        for end in (one, other):
            moved |= end.read(step)
            if end.backlog and end.ring.space:
                end.flush()
                moved = True
            moved |= end.deliver()


class SimulationTests(SynchronousTestCase):
    """Two ends that write and read arbitrarily."""

    @settings(max_examples=300)
    @given(st.integers(0, 1 << 32), st.integers(0, 3), st.integers(0, 3))
    def test_everyByteOnce(self, seed: int, code: int, peerCode: int) -> None:
        random = Random(seed)
        one, other = pair(SIZE << code, SIZE << peerCode)
        sent = {one: bytearray(), other: bytearray()}
        for _ in range(60):
            end = random.choice((one, other))
            action = random.randrange(6)
            if action == 0:
                data = random.randbytes(random.choice((1, 64, 3000, 20000, 100_000)))
                sent[end] += data
                end.write(data)
            elif action == 1:
                end.flush(random.choice((1, 1000, 1 << 30)))
            elif action == 2:
                end.deliver()
            elif action == 3:
                end.read(random.choice((1, 100, 5000, 1 << 30)))
            elif action == 4:
                end.paused = random.random() < 0.5
            else:
                end.update()
        drain(one, other)
        self.assertEqual(other.got, sent[one])
        self.assertEqual(one.got, sent[other])
        for end in (one, other):
            end.update()
            end.deliver()
        for end in (one, other):
            self.assertEqual((end.ring.readable, end.ring.space), (0, end.ring.peerSize))

    @given(st.integers(1, 20000), st.integers(0, 4))
    def test_updatesCoverATenthOfTheBuffer(self, step: int, code: int) -> None:
        one, other = pair(SIZE, SIZE << code)
        total = 6 * (SIZE << code)
        one.write(bytes(total))
        one.flush()
        drain(one, other, max(step, total // 500))
        self.assertEqual(len(other.got), total)
        self.assertLessEqual(other.pureUpdates, total // ((SIZE << code) // 10) + 1)
        self.assertEqual(one.pureUpdates, 0)

    def test_wrapCountWraps(self) -> None:
        one, other = pair(SIZE, 2 * SIZE)
        for _ in range(65537):
            for end in (one, other):
                end.ring.take(end.ring.peerSize, end.ring.peerSize)
                end.peer.ring.received(unpackFrom(end.ring.message()))
                end.peer.ring.consume(end.peer.ring.readable)
        self.assertEqual(cursor(one.ring.produced, 2 * SIZE), (1, 0))
        self.assertEqual(one.ring.sequence, 1)
        data = Random(1).randbytes(3 * SIZE)
        one.write(data)
        one.flush()
        drain(one, other)
        self.assertEqual(other.got, data)
        self.assertEqual((message(one.ring).producerWrap, message(one.ring).producerCount), (2, SIZE))


class RecordedTests(SynchronousTestCase):
    """The conversation of two kernels, reproduced by two rings."""

    def test_wrap(self) -> None:
        """
        Writes of 10000, 12000 and 40000 bytes through the smallest ring have the same messages, bit by bit.

        The receiver announces what it has read when the kernel did.
        """
        client, server = Ring(SIZE, SIZE, 7), Ring(SIZE, SIZE, 8)
        writes = deque((10000, 12000, 40000))
        backlog = 0
        due = False
        for raw in (raw for _, raw in messages("smc-wrap") if raw[0] == CDC_TYPE):
            output = CDC.decode(raw)
            sender, receiver = (client, server) if output.token == 7 else (server, client)
            if sender is client and (output.producerWrap, output.producerCount) != cursor(
                client.produced, SIZE
            ):
                self.assertFalse(due)
                backlog = backlog or writes.popleft()
                backlog -= sum(client.take(backlog, backlog)[1:])
            if sender is server:
                self.assertTrue(due or output.state)
            self.assertEqual(sender.message(int(output.state)).hex(), raw.hex())
            receiver.received(unpackFrom(raw))
            due = receiver.consume(receiver.readable)
        self.assertEqual((backlog, server.consumed, list(writes)), (0, 62000, []))

    def test_urgentByteIsAcknowledgedAtOnce(self) -> None:
        server = Ring(65536, 65536, 14)
        due = []
        for raw in (raw for _, raw in messages("smc-urgent") if raw[0] == CDC_TYPE):
            if CDC.decode(raw).token == 13:
                server.received(unpackFrom(raw))
                due.append(server.consume(server.readable))
            elif due[-1]:
                self.assertEqual(server.message().hex(), raw.hex())
        self.assertEqual((due, server.consumed), ([False, True, False, False], 7))


class CursorTests(SynchronousTestCase):
    def test_fullRingCursorIsWrapOne(self) -> None:
        ring = Ring(SIZE, SIZE, 7)
        self.assertEqual(ring.take(SIZE + 1, SIZE + 1), (0, SIZE, 0))
        first = message(ring)
        self.assertEqual((first.producerWrap, first.producerCount, first.token), (1, 0, 7))
        self.assertEqual(first.flags, ProducerFlags.WRITE_BLOCKED)
        self.assertEqual(ring.space, 0)
        self.assertEqual(ring.take(1, 1)[1:], (0, 0))

    def test_sequenceNumbersWrap(self) -> None:
        ring = Ring(SIZE, SIZE, 7)
        self.assertEqual(message(ring).sequence, 1)
        ring.sequence = 0xFFFF
        self.assertEqual(message(ring).sequence, 0)

    @given(st.integers(0, 1 << 60), st.sampled_from([SIZE << n for n in range(16)]))
    def test_cursorIsTotalModuloWraps(self, total: int, size: int) -> None:
        wrap, count = cursor(total, size)
        self.assertTrue(0 <= count < size)
        self.assertEqual((wrap * size + count - total) % (size << 16), 0)

    @given(st.integers(0, 1 << 60), st.integers(0, SIZE))
    def test_spansAreInsideTheRing(self, total: int, length: int) -> None:
        offset, first, second = spans(total, length, SIZE)
        self.assertEqual((first + second, offset), (length, total % SIZE))
        self.assertLessEqual(offset + first, SIZE)
        self.assertLessEqual(second, offset)

    def test_sizeMustBePowerOfTwo(self) -> None:
        for size in (0, -16384, 16383, 3 * SIZE):
            self.assertRaises(ValueError, Ring, size, SIZE, 1)
            self.assertRaises(ValueError, Ring, SIZE, size, 1)


class DistrustTests(SynchronousTestCase):
    """Invalid messages of a peer."""

    def setUp(self) -> None:
        self.ring = Ring(SIZE, 2 * SIZE, 7)
        self.ring.take(1000, 1000)
        self.ring.received(fields(sequence=5, producerCount=100, consumerCount=50))
        self.ring.consume(100)
        message(self.ring)

    def test_invalidCursorsAreRefused(self) -> None:
        ring = self.ring
        before = (ring.arrived, ring.peerConsumed, ring.space, ring.readable)
        for text, values in (
            ("producer cursor 1 bytes backwards", {"producerCount": 99}),
            ("consumer cursor 50 bytes backwards", {"consumerCount": 0}),
            ("backwards", {"producerWrap": 0xFFFF, "producerCount": 0}),
            ("producer cursor 16384 in a buffer of 16384", {"producerCount": SIZE}),
            ("consumer cursor 32768 in a buffer of 32768", {"consumerCount": 2 * SIZE}),
            ("producer cursor 4294967295", {"producerCount": 0xFFFFFFFF}),
            ("beyond the free space", {"producerWrap": 1, "producerCount": 101}),
            ("beyond the free space", {"producerWrap": 2, "producerCount": 0}),
            ("ahead of what was written", {"consumerCount": 1001}),
            ("ahead of what was written", {"consumerWrap": 1, "consumerCount": 0}),
        ):
            wrong = fields(**{"sequence": 6, "producerCount": 100, "consumerCount": 50, **values})
            error = self.assertRaises(WireError, ring.received, wrong)
            self.assertIn(text, str(error))
            self.assertEqual(error.offset, 12 if "producer" in str(error) else 20, values)
            self.assertEqual(before, (ring.arrived, ring.peerConsumed, ring.space, ring.readable), values)

    def test_unannouncedSpaceMustNotBeUsed(self) -> None:
        ring = Ring(SIZE, SIZE, 7)
        ring.received(fields(producerWrap=1))
        ring.consume(500)
        self.assertRaises(WireError, ring.received, fields(sequence=2, producerWrap=1, producerCount=1))
        message(ring)
        self.assertEqual(ring.received(fields(sequence=2, producerWrap=1, producerCount=500)), DATA)

    def test_exactLimitsAreAllowed(self) -> None:
        what = self.ring.received(fields(sequence=6, producerWrap=1, producerCount=100, consumerCount=1000))
        self.assertEqual(what, DATA | SPACE)
        self.assertEqual((self.ring.readable, self.ring.space), (SIZE, 2 * SIZE))

    def test_staleMessageIsIgnored(self) -> None:
        for sequence in (4, 0, 0xFFFF, 5 + 0x8000):
            self.assertEqual(self.ring.received(fields(sequence=sequence, producerCount=4000000)), 0)
        self.assertEqual(self.ring.receivedSequence, 5)

    def test_repeatedMessageIsIgnored(self) -> None:
        self.assertEqual(self.ring.received(fields(sequence=5, producerCount=100, consumerCount=50)), 0)

    def test_sequenceWraps(self) -> None:
        self.ring.receivedSequence = 0xFFFF
        self.ring.received(fields(sequence=0, producerCount=101, consumerCount=50))
        self.assertEqual(self.ring.readable, 1)

    @given(st.tuples(*[st.integers(0, 0xFFFF), st.integers(0, 0xFFFFFFFF)] * 2), st.integers(0, 255))
    def test_arbitraryMessages(self, cursors: tuple[int, ...], flags: int) -> None:
        ring = Ring(SIZE, 2 * SIZE, 7)
        ring.take(1000, 1000)
        wrap, count, peerWrap, peerCount = cursors
        try:
            ring.received(fields(producerWrap=wrap, producerCount=count, consumerWrap=peerWrap,
                                 consumerCount=peerCount, flags=flags))  # fmt: skip
        except WireError:
            self.assertEqual((ring.readable, ring.space), (0, 2 * SIZE - 1000))
        self.assertTrue(0 <= ring.readable <= SIZE)
        self.assertTrue(0 <= ring.space <= 2 * SIZE)


class UpdateTests(SynchronousTestCase):
    """When the consumer cursor is announced to the peer."""

    def setUp(self) -> None:
        self.ring = Ring(SIZE, SIZE, 7)

    def test_noUpdateBelowLimit(self) -> None:
        self.ring.received(fields(producerWrap=1, flags=ProducerFlags.WRITE_BLOCKED))
        self.assertFalse(self.ring.consume(2304))
        self.assertFalse(self.ring.updateDue)
        self.assertTrue(self.ring.consume(1))
        message(self.ring)
        self.assertFalse(self.ring.consume(1))

    def test_noUpdateWithPlentyOfSpace(self) -> None:
        self.ring.received(fields(producerCount=SIZE // 2 - 1))
        self.assertFalse(self.ring.consume(SIZE // 2 - 1))
        self.assertEqual(self.ring.received(fields(sequence=2, producerCount=SIZE // 2)), DATA | UPDATE)

    def test_requestedUpdateIsSentOnce(self) -> None:
        asked = ProducerFlags.CONSUMER_UPDATE_REQUESTED
        self.assertEqual(self.ring.received(fields(producerCount=10, flags=asked)), DATA)
        self.assertTrue(self.ring.consume(1))
        self.assertTrue(self.ring.updateDue)
        message(self.ring)
        self.assertFalse(self.ring.consume(1))
        self.assertEqual(self.ring.received(fields(sequence=2, producerCount=10, flags=asked)), UPDATE)

    def test_answeredPeerStaysBlocked(self) -> None:
        flags = ProducerFlags.CONSUMER_UPDATE_REQUESTED | ProducerFlags.WRITE_BLOCKED
        self.ring.received(fields(producerCount=8000, flags=flags))
        self.assertTrue(self.ring.consume(1))
        message(self.ring)
        self.assertTrue(self.ring.consume(3000))

    def test_urgentByteStaysInOrder(self) -> None:
        urgent = ProducerFlags.URGENT_PENDING | ProducerFlags.URGENT_PRESENT
        self.ring.received(fields(producerCount=3))
        self.assertFalse(self.ring.consume(3))
        self.assertEqual(self.ring.received(fields(sequence=2, producerCount=14, flags=urgent)), DATA)
        self.assertEqual(self.ring.urgentAt, 14)
        self.assertFalse(self.ring.consume(10))
        self.assertTrue(self.ring.consume(1))
        self.assertEqual(message(self.ring).consumerCount, 14)
        self.assertIsNone(self.ring.urgentAt)
        self.assertFalse(self.ring.updateDue)


class FailoverTests(SynchronousTestCase):
    """A peer that moves to another link."""

    def setUp(self) -> None:
        self.ring = Ring(SIZE, SIZE, 7)
        self.ring.received(fields(sequence=2, producerCount=12))

    def test_validationMessageIsAsRecorded(self) -> None:
        recorded = [raw for _, raw in messages("smc-two-links") if raw[0] == CDC_TYPE and raw[24] & 8]
        self.assertEqual(len(recorded), 2)
        for raw in recorded:
            kernel = CDC.decode(raw)
            self.assertEqual(Ring(SIZE, SIZE, kernel.token).validation(kernel.sequence), raw)

    def test_staleCursorsAreNoError(self) -> None:
        moved = fields(sequence=1, flags=ProducerFlags.FAILOVER_VALIDATION)
        self.assertEqual(self.ring.received(moved), 0)
        self.assertEqual(self.ring.received(fields(sequence=3, producerCount=6)), 0)
        self.assertEqual(self.ring.received(fields(sequence=4, producerCount=17)), DATA)
        self.assertEqual(self.ring.readable, 17)

    def test_missingMessageMeansLoss(self) -> None:
        error = self.assertRaises(
            WireError, self.ring.received, fields(sequence=3, flags=ProducerFlags.FAILOVER_VALIDATION)
        )
        self.assertIn("failover lost messages 3 to 3", str(error))


class RewindTests(SynchronousTestCase):
    """The local producer cursor is set back."""

    def test_interruptedBytes(self) -> None:
        """Messages announce the bytes before those that were taken last, in any round."""
        ring, other = Ring(32, 32, 7), Ring(32, 32, 7)
        for _ in range(8):
            for each in ring, other:
                each.take(20, 20)
                each.peerConsumed += 20
            produced = ring.produced
            ring.take(16, 16)
            ring.rewind(produced)
            self.assertEqual((ring.at, ring.message()), (other.at, other.message()))
