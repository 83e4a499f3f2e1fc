"""Mapped memory of rsockets in the core: order, credits, unmapping, and invalid peers."""

from __future__ import annotations

import sys
from random import Random
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.rsocket._core import CONTROLS, Sizes
from txrdma.cm.rsocket._mapping import MappedRange, OFFSETS, PeerMapped, WriteCompleted, WriteFailed
from txrdma.cm.rsocket.messages import (
    ConnectionData,
    Control,
    immediate,
    ImmediateKind,
    LittleMapped,
    Mapped,
    MAPPED_BYTES,
    MAPPINGS,
    NETWORK_ORDER,
)
from txrdma.error import InvalidRequest, PeerViolation, ResourceExhausted
from txrdma.iba.types import RKey
from txrdma.test.unit.cm.test_rsocket_core import ADDRESS, End, KEY, pair, settle, SMALL, step

BASE = 0x7F00_4000_0000
OWN = Mapped if sys.byteorder == "big" else LittleMapped


def mapped(end: End, offset: int, length: int) -> tuple[int, bytearray]:
    """Map new memory at an end; return the index of its entry, and the bytes."""
    end.core.mappings.check(offset, length)
    number = len(end.regions)
    address, key, memory = BASE + (number << 32), RKey(KEY + number), bytearray(length)
    end.regions[key] = address, memory
    return end.core.mappings.map(MappedRange(offset, length, address, key)), memory


def withMemory(length: int) -> tuple[End, End, int, bytearray]:
    """Return two ends, the memory of the second that is mapped at the first: its index, and its bytes."""
    one, other = pair(SMALL, SMALL)
    index, memory = mapped(other, 0, length)
    settle(one, other)
    one.core.events.clear()
    return one, other, index, memory


def sendEntry(end: End, index: int, entry: Mapped | LittleMapped) -> None:
    """Deliver an entry of the peer's table to an end."""
    begin = 32 + index * MAPPED_BYTES
    end.remote[begin : begin + MAPPED_BYTES] = entry.encode()
    end.core.arrived(immediate(ImmediateKind.MAPPING, index), MAPPED_BYTES)


class MappingTests(SynchronousTestCase):
    """Two ends that write into each other's memory."""

    def test_writeReachesMappingWithOneEvent(self) -> None:
        one, other = pair(SMALL, SMALL)
        _, memory = mapped(other, 5000, 10_000)
        self.assertIs(one.core.mappings.write(5000, b"x"), None)
        settle(one, other)
        self.assertEqual(one.core.events, [PeerMapped()])
        self.assertEqual(
            [(each.offset, each.length) for each in one.core.mappings.peerRanges], [(5000, 10_000)]
        )
        one.core.events.clear()
        text = Random(4).randbytes(9_000)
        number = one.core.mappings.write(5900, text)
        assert number is not None
        self.assertEqual(one.core.backlog, 9_000)
        self.assertFalse(one.core.isDelivered)
        settle(one, other)
        self.assertEqual(memory, bytes(900) + text + bytes(100))
        self.assertEqual(one.core.events, [WriteCompleted(number)])
        self.assertEqual((one.core.backlog, one.core.isDelivered, other.core.unread), (0, True, 0))

    def test_writeMustFitOneMapping(self) -> None:
        one, other = pair(SMALL, SMALL)
        mapped(other, 100, 50)
        mapped(other, 150, 50)
        settle(one, other)
        for offset, length in ((99, 1), (200, 1), (140, 20), (100, 51), (-1, 1), (1 << 70, 1)):
            self.assertIs(one.core.mappings.write(offset, bytes(length)), None)
        for offset, length in ((100, 50), (150, 50), (199, 1), (120, 0)):
            self.assertIsNot(one.core.mappings.write(offset, bytes(length)), None)
        settle(one, other)
        self.assertEqual(one.core.backlog, 0)

    def play(self, seed: int) -> None:
        """Write to memory, then to the stream: a reader of the stream finds the write in memory."""
        random = Random(seed)
        sizes = Sizes(*random.choices((16, 17, 33), k=2), *random.choices((4096, 6000), k=2))
        one, other = pair(sizes, sizes)
        count, length = 40, random.choice((1, 100, 3000, 9000))
        ends = ((one, other), (other, one))
        memories = {end: mapped(end, 7, count * length)[1] for end in (one, other)}
        settle(one, other)
        writes = {end: random.randbytes(count * length) for end in (one, other)}
        done: dict[End, int] = {one: 0, other: 0}
        begins: dict[End, list[int]] = {one: [], other: []}
        for _ in range(4000):
            end, peer = random.choice(ends)
            step = random.randrange(6)
            if step == 0 and done[end] < count:
                at = done[end] * length
                self.assertIsNot(end.core.mappings.write(7 + at, writes[end][at : at + length]), None)
                begins[end].append(len(end.written))
                data = b"%04d" % done[end] * random.choice((1, 1, 700))
                end.core.write(data)
                end.written += data
                done[end] += 1
            elif step == 1:
                end.post()
            elif step in (2, 3):
                for _ in range(min(len(end.sent), random.randrange(1, 9))):
                    end.deliver(peer)
            elif step == 4:
                end.poll()
            else:
                end.received += end.core.read()
                until = sum(begin < len(end.received) for begin in begins[peer]) * length
                self.assertEqual(memories[end][:until], writes[peer][:until])
        settle(one, other)
        for end, peer in ends:
            until = done[peer] * length
            self.assertEqual(memories[end][:until], writes[peer][:until])
            self.assertEqual((end.core.backlog, end.core.isDelivered), (0, True))
            completed = [each for each in end.core.events if isinstance(each, WriteCompleted)]
            self.assertEqual([each.number for each in completed], [*range(1, done[end] + 1)])

    def test_seeds(self) -> None:
        for seed in range(12):
            with self.subTest(seed=seed):
                self.play(seed)

    def test_writeWaitsForEarlierStreamBytes(self) -> None:
        one, other, _, memory = withMemory(10)
        one.core.write(bytes(20_000))
        one.core.mappings.write(0, b"behind")
        one.core.write(b"last")
        for _ in range(20):
            step(one, other)
        self.assertEqual(memory, bytes(10))
        self.assertEqual(one.core.backlog, 20_000 - 4096 + 6 + 4)
        settle(one, other)
        self.assertEqual((memory[:6], other.received[-4:], len(other.received)), (b"behind", b"last", 20_004))

    def test_mappingsTakeNoStreamCredit(self) -> None:
        one, other = pair(SMALL, SMALL)
        for number in range(1000):
            index, _ = mapped(one, number, 1)
            if number % 3:
                settle(one, other)
            one.core.unmap(index)
            one.core.write(b"%03d" % number)
            settle(one, other)
        self.assertEqual(len(other.received), 3000)
        self.assertEqual(other.core.mappings.peerRanges, [])

    def test_excessEntriesWaitInOrder(self) -> None:
        one, other = pair(SMALL, SMALL)
        for number in range(SMALL.mappings):
            mapped(one, number, 1)
        one.core.write(b"behind")
        one.post()
        self.assertEqual(len(one.sent), CONTROLS)
        settle(one, other)
        self.assertEqual((len(other.core.mappings.peerRanges), other.received), (SMALL.mappings, b"behind"))

    def test_peerCountingEntriesAsMessages(self) -> None:
        one, other = pair(SMALL, SMALL)
        sendEntry(one, 0, OWN(offset=0, length=1))
        one.core.outgoing()
        for _ in range(SMALL.receives // 2):
            one.core.arrived(immediate(ImmediateKind.DATA, 1), 1)
        one.core.read()
        (post,) = one.core.outgoing()
        assert post.immediate is not None
        self.assertEqual(post.immediate & 0xFFFF, SMALL.receives // 2 + SMALL.receives)
        self.assertEqual(other.core.mappings.peerRanges, [])

    def test_pendingRequestsPrecedeEnd(self) -> None:
        one, other, _, memory = withMemory(9000)
        one.core.mappings.write(0, bytes([7]) * 9000)
        one.core.close()
        settle(one, other)
        self.assertTrue(one.core.isCloseDelivered and other.core.isOver)
        self.assertEqual(memory, bytes([7]) * 9000)
        one, other, index, _ = withMemory(9000)
        one.core.mappings.write(0, bytes(9000))
        other.core.close()
        other.postTo(one)
        one.poll()
        self.assertEqual((one.core.isOver, one.core.wasCut, one.core.backlog), (True, True, 0))
        other.core.unmap(index)
        self.assertEqual(other.core.backlog, 0)

    def test_mappingThatPeerNeedsNoMore(self) -> None:
        """A mapping that was not posted before the peer has closed is no lost data."""
        one, other = pair(SMALL, SMALL)
        other.core.close()
        other.postTo(one)
        mapped(one, 0, 100)
        one.poll()
        self.assertEqual((one.core.isOver, one.core.wasCut, one.core.backlog), (True, False, 0))

    def test_emptyWriteCompletesInOrder(self) -> None:
        one, other, _, _ = withMemory(10)
        for _ in range(20):  # more than may be in flight
            one.core.mappings.write(3, b"")
        one.core.close()
        one.post()
        self.assertFalse(one.core.isDelivered)
        output = [post.immediate for post in one.sent]
        self.assertNotIn(immediate(ImmediateKind.CONTROL, Control.DISCONNECT), output)
        settle(one, other)
        while not one.core.isCloseDelivered:
            one.postTo(other)
            one.poll()
        self.assertEqual(one.core.events, [WriteCompleted(number) for number in range(1, 21)])


class UnmappingTests(SynchronousTestCase):
    def test_unpostedWritesFailWhenUnmapped(self) -> None:
        one, other = pair(SMALL, SMALL)
        index, _ = mapped(other, 0, 10_000)
        mapped(other, 20_000, 10)
        settle(one, other)
        one.core.events.clear()
        numbers = [one.core.mappings.write(0, bytes(9000)), one.core.mappings.write(1, b"x")]
        pendingWrite = one.core.mappings.write(20_000, b"y")
        one.core.write(b"behind")
        one.post()  # of 9000 bytes, as many as the send buffer has
        other.core.unmap(index)
        settle(one, other)
        failed = [each for each in one.core.events if isinstance(each, WriteFailed)]
        self.assertEqual([each.number for each in failed], numbers)
        completed = [each for each in one.core.events if isinstance(each, WriteCompleted)]
        self.assertEqual([each.number for each in completed], [pendingWrite])
        self.assertEqual((other.received, one.core.backlog), (b"behind", 0))
        self.assertEqual([each.offset for each in one.core.mappings.peerRanges], [20_000])

    def test_cancelled(self) -> None:
        one, other, _, memory = withMemory(10_000)
        first = one.core.mappings.write(0, b"\1" * 9000)
        second = one.core.mappings.write(9000, b"\2")
        third = one.core.mappings.write(9001, b"\3")
        assert first is not None and second is not None
        one.post()
        one.core.mappings.cancel(first)
        one.core.mappings.cancel(second)
        one.core.mappings.cancel(77)
        self.assertEqual(one.core.backlog, 1)
        settle(one, other)
        self.assertEqual(memory[:2048], b"\1" * 2048)
        self.assertEqual(memory[2048:9002], bytes(9001 - 2048) + b"\3")
        self.assertEqual(one.core.events, [WriteCompleted(third or 0)])

    def test_mappingLimitOfPeer(self) -> None:
        one, other = pair(SMALL, SMALL._replace(mappings=2))
        first, _ = mapped(one, 0, 10)
        mapped(one, 10, 10)
        self.assertRaises(ResourceExhausted, one.core.mappings.check, 20, 10)
        one.core.unmap(first)
        mapped(one, 20, 10)
        settle(one, other)
        self.assertEqual([each.offset for each in other.core.mappings.peerRanges], [10, 20])
        one, other = pair(SMALL, SMALL._replace(mappings=0))
        self.assertRaises(ResourceExhausted, one.core.mappings.check, 0, 1)
        mapped(other, 0, 10)

    def test_invalidOffsetsAreRefused(self) -> None:
        one, _ = pair(SMALL, SMALL)
        mapped(one, 100, 100)
        for offset, length in (
            *((-1, 1), (0, 0), (0, 1 << 32), (OFFSETS, 1), (OFFSETS - 1, 2)),
            *((100, 1), (199, 1), (50, 51), (0, 1000)),
        ):
            self.assertRaises(InvalidRequest, one.core.mappings.check, offset, length)
        for offset, length in ((0, 100), (200, 1), (OFFSETS - 1, 1)):
            one.core.mappings.check(offset, length)


class LyingTests(SynchronousTestCase):
    """Peers that announce arbitrary mappings."""

    def test_entryBeyondTableIsViolation(self) -> None:
        for index in (SMALL.mappings, 0xFFFF, (1 << 29) - 1):
            one, _ = pair(SMALL, SMALL)
            self.assertRaises(
                PeerViolation, one.core.arrived, immediate(ImmediateKind.MAPPING, index), MAPPED_BYTES
            )

    def test_wrappingAddressesAreViolations(self) -> None:
        """Mapped memory must end before the last 64-bit address."""
        last = (1 << 64) - 1
        for address, length in ((last, 1), (last - 10, 5000)):
            one, _ = pair(SMALL, SMALL)
            with self.assertRaises(PeerViolation):
                sendEntry(one, 3, OWN(offset=0, address=address, rkey=KEY, length=length))
        one, _ = pair(SMALL, SMALL)
        sendEntry(one, 3, OWN(offset=0, address=last - 1, rkey=KEY, length=1))
        self.assertIsNot(one.core.mappings.write(0, bytes(1)), None)
        self.assertEqual([post.address for post in one.outgoing()], [last - 1])

    def test_arbitraryEntries(self) -> None:
        for seed in range(100):
            with self.subTest(seed=seed):
                self.play(Random(seed))

    def play(self, random: Random) -> None:
        """Deliver arbitrary entries between writes, and complete all posted requests."""
        one, _ = pair(SMALL, SMALL)
        numbers: list[int] = []
        flying: list[int] = []
        try:
            for _ in range(100):
                value = random.choice((0, 1, 7, random.randrange(12)))
                begin = 32 + value % SMALL.mappings * MAPPED_BYTES
                one.remote[begin : begin + MAPPED_BYTES] = random.randbytes(MAPPED_BYTES)
                one.core.arrived(immediate(ImmediateKind.MAPPING, value), random.choice((0, 24, 1000)))
                for mappedRange in one.core.mappings.peerRanges:
                    number = one.core.mappings.write(mappedRange.offset, bytes(min(mappedRange.length, 5000)))
                    numbers += [] if number is None else [number]
                flying += [each.identifier for each in one.outgoing()]
                while flying and random.random() < 0.7:
                    one.core.completed(flying.pop(0))
        except PeerViolation:
            pass
        while flying or (flying := [each.identifier for each in one.outgoing()]):
            one.core.completed(flying.pop(0))
        found = [each.number for each in one.core.events if not isinstance(each, PeerMapped)]
        self.assertEqual(sorted(found), numbers)


class LayoutTests(SynchronousTestCase):
    RAW = bytes.fromhex("0010000000000000 00f0776655440000 ddccbbaa 40420f00")

    def test_entryUsesOwnersByteOrder(self) -> None:
        entry: dict[str, Any] = {
            "offset": 4096,
            "address": 0x44556677F000,
            "rkey": RKey(0xAABBCCDD),
            "length": 1_000_000,
        }
        self.assertEqual(LittleMapped.decode(self.RAW), LittleMapped(**entry))
        self.assertEqual(LittleMapped(**entry).encode(), self.RAW)
        self.assertEqual(Mapped(**entry).encode()[:8], self.RAW[7::-1])
        for flags, kind in ((0, LittleMapped), (NETWORK_ORDER, Mapped)):
            one, other = End(SMALL), End(SMALL)
            output = ConnectionData.decode(other.greeting.encode())
            peer = output.encode()[:1] + bytes([flags | MAPPINGS]) + output.encode()[2:]
            one.core.begin(one.greeting, ConnectionData.decode(peer))
            one.core.mappings.map(MappedRange(4096, 1_000_000, 0x44556677F000, RKey(0xAABBCCDD)))
            (post,) = one.outgoing()
            self.assertEqual(
                (post.address, post.immediate, post.rkey), (ADDRESS + 32, 6 << 29, output.tableKey)
            )
            self.assertEqual(post.data, kind(**entry).encode())

    def test_offerScalesAsLibrdmacm(self) -> None:
        greeting = End(SMALL).greeting
        self.assertEqual((greeting.flags & MAPPINGS, greeting.mappings, greeting.room), (MAPPINGS, 8, 8))
        for flags, output, room in (
            *((MAPPINGS, 0, 0), (MAPPINGS, 1, 1), (MAPPINGS, 128, 128), (MAPPINGS, 0x81, 256)),
            *((MAPPINGS, 0xFF, 127 << 8), (0, 8, 0), (NETWORK_ORDER, 8, 0)),
        ):
            data = ConnectionData(flags=flags, mappings=output)
            self.assertEqual(data.room, room)

    def test_withoutMappingsNothingChanges(self) -> None:
        posts = []
        for mappings in (0, 8):
            one, other = pair(SMALL, SMALL._replace(mappings=mappings))
            one.core.write(bytes(3000))
            first = one.outgoing()
            posts.append(
                [(each.data, each.immediate, each.address - other.greeting.bufferAddress) for each in first]
            )
        self.assertEqual(posts[0], posts[1])
