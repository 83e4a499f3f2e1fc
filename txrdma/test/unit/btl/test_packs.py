"""
Packs, several small messages in one packet: which are combined, how they are reported, and invalid ones.
"""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from txrdma.btl.core.events import MessageReceived, PackReceived, PeerClosed, SendCompleted, SendFailed
from txrdma.btl.core.module import COMMAND_MTU
from txrdma.btl.core.path import COMMAND, DATA, FAILURES_ONLY
from txrdma.btl.wire import (
    BTLSegment,
    decodePack,
    encodePack,
    ENTRY_LENGTH,
    FRAG,
    HEADER_LENGTH,
    PACK,
    REFUSED,
    SEQUENCE_MASK,
)
from txrdma.error import InvalidRequest
from txrdma.test.support.btl.layouts import PackEntry
from txrdma.test.unit.btl.test_module import ModuleTestCase
from txrdma.testing.btl.world import BadNetwork

_MTU = 1024
_TAGS = st.integers(0, 0xFFFF)
_MESSAGES = st.lists(st.tuples(_TAGS, st.binary(max_size=40)), max_size=30)


def packed(messages: list[tuple[int, bytes]]) -> bytes:
    return encodePack([tag for tag, _data in messages], [data for _tag, data in messages])


class WireTests(ModuleTestCase):
    def test_bytes(self) -> None:
        """A pack starts with its entries, each a tag and a length, followed by the messages without gaps."""
        raw = packed([(0x0102, b"abc"), (3, b""), (0xFFFF, b"d")])
        self.assertEqual(raw, bytes.fromhex("0102 0003 0003 0000 ffff 0001") + b"abcd")

    @given(_MESSAGES)
    def test_roundTrip(self, messages: list[tuple[int, bytes]]) -> None:
        """A pack is decoded as it was encoded, and the declared layout reads the same entries."""
        raw = packed(messages)
        self.assertEqual(decodePack(len(messages), memoryview(raw)), messages)
        entries = [PackEntry.decode(raw, ENTRY_LENGTH * number) for number in range(len(messages))]
        self.assertEqual([(each.tag, each.length) for each in entries], [(t, len(d)) for t, d in messages])
        self.assertEqual(PackEntry.size, ENTRY_LENGTH)

    @given(st.lists(st.tuples(_TAGS, st.binary(max_size=40)), min_size=1, max_size=30), st.data())
    def test_lengths(self, messages: list[tuple[int, bytes]], data: st.DataObject) -> None:
        """A pack with a wrong length, a wrong count, or a byte more or less is invalid."""
        raw, count = packed(messages), len(messages)
        view = memoryview(raw)
        at = data.draw(st.integers(0, count - 1))
        length = data.draw(_TAGS.filter(lambda each: each != len(messages[at][1])))
        begin = ENTRY_LENGTH * at + 2
        self.assertIsNone(
            decodePack(count, memoryview(raw[:begin] + length.to_bytes(2, "big") + raw[begin + 2 :]))
        )
        self.assertIsNone(decodePack(count, view[:-1]))
        self.assertIsNone(decodePack(count, memoryview(raw + b"x")))
        self.assertIsNone(decodePack(len(raw) // ENTRY_LENGTH + 1, view))


class SendTests(ModuleTestCase):
    """Which messages are combined, and what is reported to senders."""

    def kinds(self) -> list[tuple[int, int, int]]:
        """Return kind, channel and length of the packets that Alice sends now."""
        packets = self.alice.module.outgoing(self.world.now)
        return [(each.head[0] & 15, each.channel, len(each.head) + len(each.payload)) for each in packets]

    def sendAll(self, count: int, size: int = 8, isUrgent: bool = False) -> list[bytes]:
        """Send this many numbered messages whose outcomes are reported."""
        output = [bytes((number,)) * size for number in range(count)]
        for data in output:
            self.send(data, data, isUrgent, tag=data[0])
        return output

    def test_together(self) -> None:
        """Small messages of one iteration share a packet; each is delivered and reported once, in order."""
        output = self.sendAll(20)
        self.run_(0.01)
        self.assertEqual(self.messages(), output)
        self.assertEqual(self.eventReceived["alice"], [SendCompleted(self.toBob, each) for each in output])
        self.assertEqual((self.alice.module.counters.totalSends, self.toBob.queuedBytes), (1, 0))
        self.assertEqual((self.alice.module.counters.packSends, self.bob.module.counters.packRecvs), (1, 1))

    def test_alone(self) -> None:
        """A single message in an iteration is sent as its own segment."""
        self.send(b"alone")
        self.assertEqual(self.kinds(), [(FRAG, COMMAND, HEADER_LENGTH + 5)])

    def test_behindTheWindow(self) -> None:
        """Messages of several iterations that wait for the window are combined when it opens."""
        while self.toBob.sent.isOpen():
            self.send(bytes(900))
            self.alice.module.outgoing(0.0)
        for number in range(30):
            self.send(b"%d" % number)
            self.assertEqual(self.kinds(), [])
        self.toBob.sent.paths[0].congestion.size += 1
        self.alice.module._makeReady(self.toBob)
        ((kind, _channel, _length),) = self.kinds()
        self.assertEqual(kind, PACK)

    def test_channels(self) -> None:
        """A short packet of several messages uses the command channel, a longer one the data channel."""
        room = COMMAND_MTU - HEADER_LENGTH - 2 * ENTRY_LENGTH
        for size, channel in ((room, COMMAND), (room + 1, DATA)):
            self.send(bytes(size - 10))
            self.send(bytes(10))
            self.assertEqual(self.kinds(), [(PACK, channel, COMMAND_MTU + (channel == DATA))])

    def test_full(self) -> None:
        """Packets are filled up to the MTU, also with long messages between."""
        room = _MTU - HEADER_LENGTH
        third = room - 500 - 6 - 3 * ENTRY_LENGTH
        sizes = [room, room - 4, 500, third, 6, 5 * room, 0, 0, room - 8, 1, *[20] * 60]
        for number, size in enumerate(sizes):
            self.send(bytes((number,)) * size, number, tag=number)
        lengths = [length for _kind, _channel, length in self.kinds()]
        self.assertLessEqual(max(lengths), _MTU)
        self.assertEqual(lengths[2], _MTU)
        self.alice.module.lose(self.toBob, "enough")

    def test_urgent(self) -> None:
        """Urgent messages are sent first, in their own packets."""
        usual = [*self.sendAll(5), *self.sendAll(2, 700)]
        urgent = self.sendAll(5, 9, isUrgent=True)
        self.run_(0.01)
        self.assertEqual(self.messages(), urgent + usual)
        self.assertEqual(self.alice.module.counters.packSends, 2)

    def test_lost(self) -> None:
        """Messages of a lost packet, and of a duplicated one, arrive once."""
        self.begin(BadNetwork(loss=0.3, duplication=0.3))
        output: list[bytes] = []
        for _turn in range(40):
            output += self.sendAll(6)
            self.run_(0.001)
        self.run_(10.0)
        self.assertEqual(sorted(self.messages()), sorted(output))
        self.assertEqual(len(self.of("alice", SendCompleted)), len(output))
        self.assertGreater(self.alice.module.counters.resends, 5)
        self.assertGreater(self.bob.module.counters.dupRecvs + self.bob.module.counters.oowLowRecvs, 5)

    def test_closedMeanwhile(self) -> None:
        """Messages queued when the peer closes fail, each once."""
        while self.toBob.sent.isOpen():
            self.send(bytes(900))
            self.alice.module.outgoing(0.0)
        output = self.sendAll(9)
        self.bob.module.close(self.toAlice)
        self.run_(0.0005)
        failed = self.of("alice", SendFailed)
        self.assertEqual(failed, [SendFailed(self.toBob, each, "the peer has closed") for each in output])
        self.run_(1.0)
        self.assertEqual(self.eventReceived["alice"][-1], PeerClosed(self.toBob))
        self.assertRaises(InvalidRequest, self.send, b"x")

    def test_refused(self) -> None:
        """Each message of a packet that the peer refuses fails once; later ones arrive."""

        def altered(number: int, packet: bytes) -> bytes:
            isPack = number == 0 and packet[0] & 15 == PACK
            return packet[: HEADER_LENGTH + 3] + b"\xff" + packet[HEADER_LENGTH + 4 :] if isPack else packet

        self.world.alter = altered
        output = self.sendAll(5)
        self.run_(0.01)
        self.send(b"behind", b"behind")
        self.run_(0.01)
        self.assertEqual(self.messages(), [b"behind"])
        failed = [SendFailed(self.toBob, each, "the peer has refused it") for each in output]
        self.assertEqual(self.eventReceived["alice"], [*failed, SendCompleted(self.toBob, b"behind")])

    def test_unheard(self) -> None:
        """For a message that reports only failures, success is not reported."""
        for _each in range(3):
            self.send(b"x", FAILURES_ONLY)
        self.run_(0.01)
        self.assertEqual((self.messages(), self.eventReceived["alice"]), ([b"x"] * 3, []))
        self.send(b"y", FAILURES_ONLY)
        self.send(b"z")
        self.alice.module.lose(self.toBob, "why not")
        self.alice.turn()
        self.assertEqual(self.of("alice", SendFailed), [SendFailed(self.toBob, FAILURES_ONLY, "why not")])


class ReceiveTests(ModuleTestCase):
    def put(self, count: int, payload: bytes, ahead: int = 0) -> None:
        """Deliver a pack of Alice, this many segments ahead of the next one."""
        sequence = (self.toAlice.received.following + ahead) & SEQUENCE_MASK
        raw = BTLSegment(PACK, self.toAlice.name, sequence, tag=count, payload=payload).encode()
        self.bob.module.received(DATA, (0, DATA), raw, self.world.now)

    def test_bad(self) -> None:
        """An inconsistent pack is counted and refused, and nothing is delivered."""
        good = packed([(1, b"a"), (2, b"bb")])
        for count, payload in (
            (1, good),
            (3, good),
            (2, good[:-1]),
            (2, good + b"x"),
            (0xFFFF, good),
            (1, b""),
        ):
            self.put(count, payload)
        self.assertEqual((self.bob.module.counters.badfragRecvs, self.bob.module.events()), (6, []))
        refusals = [each for each in self.bob.module.outgoing(0.0) if each.head[0] & 15 == REFUSED]
        self.assertEqual(len(refusals), 6)
        self.put(2, good)
        self.assertEqual(len(self.bob.module.events()), 1)

    def test_order(self) -> None:
        """After a gap messages with ordered tags wait in order; others of the pack are delivered."""
        self.toAlice.order.tags.add(1)
        for ahead in (2, 1):
            output = [(1, b"z%d" % ahead), (2, b"now"), (1, b"a%d" % ahead), (1, b"a%d" % ahead)]
            self.put(4, packed(output), ahead)
            self.assertEqual(self.bob.module.events(), [PackReceived(self.toAlice, [(2, b"now")])])  # type: ignore[list-item]  # a view is equal to its bytes
        self.put(1, packed([(1, b"first")]))
        first, *others = self.bob.module.events()
        self.assertEqual(first, PackReceived(self.toAlice, [(1, b"first")]))  # type: ignore[list-item]  # a view is equal to its bytes
        came = [bytes(each.data) for each in others if isinstance(each, MessageReceived)]
        self.assertEqual(came, [b"z1", b"a1", b"a1", b"z2", b"a2", b"a2"])
