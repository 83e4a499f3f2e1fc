"""The core of rsockets: two ends that write into each other's memory, and invalid peers."""

from __future__ import annotations

import sys
from collections import deque
from random import Random
from typing import NamedTuple

from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.rsocket._core import CONTROLS, decodePeerData, RSocket, Sizes
from txrdma.cm.rsocket._requests import SendMemory, SIGNAL_EVERY
from txrdma.cm.rsocket.messages import (
    ConnectionData,
    Control,
    immediate,
    ImmediateKind,
    LittleTarget,
    NETWORK_ORDER,
    Target,
)
from txrdma.error import PeerViolation, WireError
from txrdma.iba.types import LKey, RKey
from txrdma.iba.verbs import Operation, SendRequest
from txrdma.test.support import slow

ADDRESS = 0x7F00_0000_1000
KEY = RKey(0x1234)
LOCAL = 0x7F00_2000_0000


class Post(NamedTuple):
    """A request that was posted, with its bytes; C{begin} is their offset in registered memory."""

    identifier: int
    data: bytes
    begin: int
    address: int
    rkey: RKey
    immediate: int | None
    signaled: bool


class End:
    """
    An end with its memory, and a queue pair that delivers and completes in order.

    @ivar sent: posts in flight to the peer; C{arrived}: messages in this end's completion queue.
    @ivar acknowledged: identifiers of completions that this end has not polled.
    @ivar regions: memory that the peer may write to, and its address, by keys.
    """

    def __init__(self, sizes: Sizes, isInline: bool = False) -> None:
        self.sizes = sizes
        self.remote, self.local = bytearray(sizes.remote), bytearray(sizes.local)
        self.regions = {KEY: (ADDRESS, self.remote)}
        memory = None if isInline else SendMemory(memoryview(self.local), LOCAL, LKey(0x77))
        self.core = RSocket(sizes, memoryview(self.remote), memory)
        self.greeting = self.core.greeting(ADDRESS, KEY)
        self.sent: deque[Post] = deque()
        self.arrived: deque[tuple[int, int]] = deque()
        self.acknowledged: deque[int] = deque()
        self.written = self.received = b""

    def _posted(self, request: SendRequest) -> Post:
        """Return a copy of a request, which is reused after it was posted."""
        hasImmediate = request.operation is Operation.RDMA_WRITE_WITH_IMMEDIATE
        begin, data = 0, b"".join(request.inline)
        for address, length, _ in request.segments:
            begin = address - LOCAL
            assert 0 <= begin <= len(self.local) - length
            data = bytes(self.local[begin : begin + length])
        return Post(
            *(request.identifier, data, begin, request.remoteAddress, request.rkey),
            *(request.immediate if hasImmediate else None, request.signaled),
        )

    def outgoing(self) -> list[Post]:
        """Return the requests that can be posted."""
        return [self._posted(each) for each in self.core.outgoing()]

    def post(self) -> None:
        """Post all requests; their memory must not change until they are delivered."""
        self.sent += self.outgoing()

    def deliver(self, peer: End) -> None:
        """Execute the first request in the peer's memory."""
        post = self.sent.popleft()
        data = post.data
        if post.begin:
            assert data == self.local[post.begin : post.begin + len(data)], "changed in flight"
        if data:
            address, memory = peer.regions[post.rkey]
            begin = post.address - address
            assert 0 <= begin <= len(memory) - len(data)
            memory[begin : begin + len(data)] = data
        if post.immediate is not None:
            peer.arrived.append((post.immediate, len(data)))
            assert len(peer.arrived) <= peer.sizes.receives + CONTROLS, "no receive left"
        if post.signaled:
            self.acknowledged.append(post.identifier)

    def postTo(self, peer: End) -> None:
        """Post all requests, and execute them in the peer's memory."""
        self.post()
        while self.sent:
            self.deliver(peer)

    def poll(self) -> None:
        """Process all completions, then all received messages."""
        while self.acknowledged:
            self.core.completed(self.acknowledged.popleft())
        while self.arrived:
            self.core.arrived(*self.arrived.popleft())

    def read(self) -> None:
        """Read all available bytes."""
        while self.core.unread:
            self.received += self.core.read()


def pair(*sizes: Sizes, isInline: bool = False, isShared: bool = False) -> tuple[End, End]:
    """Return two connected ends."""
    one, other = (End(each, isInline) for each in sizes)
    one.core.begin(one.greeting, decodePeerData(other.greeting.encode() + bytes(16)), isShared)
    other.core.begin(other.greeting, decodePeerData(one.greeting.encode()), isShared)
    return one, other


def step(one: End, other: End) -> None:
    """Let each end post and poll once, without reading."""
    for end, peer in ((one, other), (other, one)):
        end.postTo(peer)
        end.poll()


def settle(*ends: End) -> None:
    """Repeat steps until nothing changes."""
    one, other = ends
    for _ in range(100_000):
        for end, peer in ((one, other), (other, one)):
            end.postTo(peer)
            end.poll()
            end.read()
        if not any(each.core.backlog or each.sent or each.arrived or each.acknowledged for each in ends):
            for end in ends:
                end.post()
            if not any(each.sent for each in ends):
                return
    raise AssertionError("the ends do not become idle")


SMALL = Sizes(16, 16, 4096, 2048)


class StreamTests(SynchronousTestCase):
    """All bytes that two ends write arrive."""

    def play(self, seed: int) -> None:
        """Let both ends write, post, deliver, poll, read and close in any order; then all bytes arrive."""
        random = Random(seed)
        one, other = pair(
            *(
                Sizes(*random.choices((16, 17, 33), k=2), *random.choices((4096, 6000, 16384), k=2))
                for _ in range(2)
            ),
            isInline=seed % 3 > 0,
            isShared=seed % 3 > 1,
        )
        ends = ((one, other), (other, one))
        for _ in range(random.randrange(10, 400)):
            end, peer = random.choice(ends)
            step = random.randrange(7)
            if step == 0 and end.core.isWritable:
                data = random.randbytes(random.choice((0, 1, 40, 2000, 30_000)))
                end.core.write(data)
                end.written += data
            elif step == 1:
                end.post()
            elif step in (2, 3):
                for _ in range(min(len(end.sent), random.randrange(1, 9))):
                    end.deliver(peer)
            elif step == 4:
                end.poll()
            elif step == 5:
                end.received += end.core.read()
            elif random.random() < 0.05:
                end.core.closeWriting()
        for end, _ in random.sample(ends, 2):
            end.core.closeWriting()
        settle(one, other)
        for end, peer in ends:
            self.assertEqual(end.received, peer.written)
            self.assertTrue(end.core.isOver or end.core.isCloseDelivered)
            self.assertFalse(end.core.wasCut)
            end.core.completed(end.core.posted)  # all was delivered, though not all was signaled
            self.assertTrue(end.core.isDelivered)

    def test_seeds(self) -> None:
        for seed in range(150):
            try:
                self.play(seed)
            except BaseException as error:
                raise AssertionError(f"seed {seed}") from error

    @slow("it sends 70,000 messages")
    def test_sequenceNumbersWrap(self) -> None:
        one, other = pair(SMALL, SMALL)
        for number in range(70_000):
            one.core.write(b"%d" % (number % 10))
            one.postTo(other)
            other.poll()
            self.assertEqual(other.core.read(), b"%d" % (number % 10))
            other.postTo(one)
            one.poll()

    def test_unreadDataBlocksWriterAfterBuffer(self) -> None:
        one, other = pair(SMALL, SMALL)
        one.core.write(bytes(100_000))
        for _ in range(100):
            step(one, other)
        self.assertEqual((other.core.unread, one.core.backlog), (4096, 100_000 - 4096))
        settle(one, other)
        self.assertEqual(other.received, bytes(100_000))

    def test_firstMessageOffersSecondHalf(self) -> None:
        """The second half of the buffer is offered after the first message, since many ends are idle."""
        one, _ = pair(SMALL, SMALL)
        self.assertEqual(one.outgoing(), [])
        one.core.arrived(immediate(ImmediateKind.DATA, 1), 1)
        (post,) = one.outgoing()
        self.assertEqual(post.address, ADDRESS + 16)
        self.assertEqual(post.immediate, 0x8000_0000 + 16)
        kind = LittleTarget if sys.byteorder == "little" else Target
        output = kind.decode(post.data)
        self.assertEqual(output, kind(address=ADDRESS + SMALL.table + 2048, rkey=KEY, length=2048))

    def test_targetsUseOwnersByteOrder(self) -> None:
        one, other = End(SMALL), End(SMALL)
        peer = ConnectionData.decode(other.greeting.encode())
        for flags, kind in ((0, LittleTarget), (NETWORK_ORDER, Target)):
            one = End(SMALL)
            output = peer.encode()[:1] + bytes([flags]) + peer.encode()[2:]
            one.core.begin(one.greeting, decodePeerData(output))
            one.core.arrived(immediate(ImmediateKind.DATA, 1), 1)
            (post,) = one.outgoing()
            target = kind.decode(post.data)
            self.assertEqual((target.address, target.length), (ADDRESS + SMALL.table + 2048, 2048))

    def test_probeIsEmptyWriteWhenIdle(self) -> None:
        one, other = pair(SMALL, SMALL)
        one.core.write(b"x")
        one.post()
        one.core.probe()
        self.assertEqual(one.core.outgoing(), [])
        settle(one, other)
        one.core.probe()
        (post,) = one.outgoing()
        self.assertEqual(post[1:], (b"", 0, 0, 0, None, True))
        one.core.completed(post.identifier)
        self.assertTrue(one.core.isQuiet)

    def test_everyEighthRequestIsSignaledOnSharedMemory(self) -> None:
        """On shared memory every eighth request is signaled, unless the end waits for a completion."""
        one, _ = pair(SMALL, SMALL, isInline=True, isShared=True)
        signaled = []
        for _ in range(SIGNAL_EVERY + 1):
            one.core.write(b"x")
            (post,) = one.outgoing()
            signaled += [post.identifier] if post.signaled else []
        self.assertEqual(signaled, [SIGNAL_EVERY])
        self.assertFalse(one.core.isDelivered)
        one.core.completed(SIGNAL_EVERY)
        one.core.completed(SIGNAL_EVERY)  # C{isConsumed} may repeat a completion
        self.assertFalse(one.core.isDelivered)
        one.core.completed(one.core.posted)
        self.assertTrue(one.core.isDelivered and one.core.isQuiet)
        one.core.close()
        (post,) = one.outgoing()
        self.assertTrue(post.signaled)

    def test_probeOnSharedMemory(self) -> None:
        """On shared memory a probe is sent after bytes whose requests have no completion."""
        one, _ = pair(SMALL, SMALL, isInline=True, isShared=True)
        one.core.write(b"x")
        (post,) = one.outgoing()
        self.assertFalse(post.signaled)
        one.core.probe()
        (post,) = one.outgoing()
        self.assertEqual(post[1:], (b"", 0, 0, 0, None, True))
        one.core.probe()  # the completion of the last one follows
        self.assertEqual(one.outgoing(), [])
        one.core.completed(post.identifier)
        self.assertTrue(one.core.isDelivered and one.core.isQuiet)
        one.core.probe()
        self.assertEqual(len(one.outgoing()), 1)

    def test_inlineRequestsReferToBytesOfTheProgram(self) -> None:
        """A write that fits into a target is posted without a copy."""
        one, _ = pair(SMALL, SMALL, isInline=True)
        one.outgoing()
        data = bytes(1000)
        one.core.write(data)
        (request,) = one.core.outgoing()
        self.assertIs(request.inline[0], data)
        self.assertEqual(request.segments, ())


class PostingTests(SynchronousTestCase):
    """Ends that post only when the core has requested it."""

    def play(self, seed: int) -> None:
        """Write, read and close like a program, and post only when requested."""
        random = Random(seed)
        sizes = Sizes(*random.choices((16, 17, 33), k=2), *random.choices((4096, 6000, 16384), k=2))
        one, other = pair(sizes, sizes, isInline=seed % 3 > 0, isShared=seed % 3 > 1)
        rest = {one: random.randrange(1, 40), other: random.randrange(1, 40)}
        for _ in range(20_000):
            for end, peer in ((one, other), (other, one)):
                if rest[end] and random.random() < 0.3:
                    rest[end] -= 1
                    data = random.randbytes(random.choice((1, 40, 2000, 30_000)))
                    end.core.write(data)
                    end.written += data
                    if not rest[end] and random.random() < 0.5:
                        end.core.closeWriting()
                    end.post()
                if end.sent and random.random() < 0.7:
                    end.deliver(peer)
                if end.acknowledged and random.random() < 0.7:
                    if end.core.completed(end.acknowledged.popleft()):
                        end.post()
                if end.arrived and random.random() < 0.7:
                    end.core.arrived(*end.arrived.popleft())
                    end.post()
                if end.core.unread and random.random() < 0.5:
                    end.received += end.core.read()
                    end.post()
        for end, peer in ((one, other), (other, one)):
            self.assertEqual((end.received, end.core.backlog, len(end.sent)), (peer.written, 0, 0))
            self.assertEqual(end.core.outgoing(), [])

    def test_seeds(self) -> None:
        for seed in range(8):
            with self.subTest(seed=seed):
                self.play(seed)


class EndTests(SynchronousTestCase):
    def test_endFollowsAllBytes(self) -> None:
        one, other = pair(SMALL, SMALL)
        one.core.write(bytes(30_000))
        one.core.close()
        settle(one, other)
        self.assertEqual(len(other.received), 30_000)
        self.assertTrue(one.core.isCloseDelivered and other.core.isOver)
        self.assertEqual((other.core.write(b"late"), other.core.wasCut), (0, False))

    def test_halfCloseKeepsOtherDirection(self) -> None:
        one, other = pair(SMALL, SMALL)
        one.core.closeWriting()
        settle(one, other)
        self.assertEqual(
            (other.core.isReadable, other.core.isOver, one.core.isReadable), (False, False, True)
        )
        other.core.write(bytes(20_000))
        other.core.closeWriting()
        settle(one, other)
        self.assertEqual(len(one.received), 20_000)
        self.assertTrue(one.core.isOver and other.core.isCloseDelivered)

    def test_closeBeforeAcknowledgement(self) -> None:
        """The peer's close may be reported before the completion of the last write that it has read."""
        one, other = pair(SMALL, SMALL)
        other.core.write(b"all")
        other.postTo(one)
        one.poll()
        one.core.close()
        one.postTo(other)
        while other.arrived:
            other.core.arrived(*other.arrived.popleft())
        self.assertTrue(other.core.isOver)
        self.assertFalse(other.core.wasCut or other.core.isDelivered)
        other.poll()
        self.assertTrue(other.core.isDelivered)

    def test_lostBytesAreReported(self) -> None:
        one, other = pair(SMALL, SMALL)
        other.core.write(bytes(30_000))
        one.core.close()
        one.postTo(other)
        other.poll()
        self.assertTrue(other.core.isOver and other.core.wasCut)
        self.assertEqual((other.core.backlog, other.core.outgoing()), (0, []))


class LyingTests(SynchronousTestCase):
    """Arbitrary messages of a peer are valid or a violation, and have no other effect."""

    def receives(self, number: int, length: int = 0) -> RSocket:
        """Return the core of an end that has received one message."""
        one, _ = pair(SMALL, SMALL)
        one.core.arrived(number, length)
        one.core.outgoing()
        return one.core

    def test_ignoredAndRefusedOperations(self) -> None:
        for operation in (1, 3, 5):
            self.assertRaises(PeerViolation, self.receives, operation << 29)
        for number in (
            2 << 29,
            immediate(ImmediateKind.MAPPING, 3),
            immediate(ImmediateKind.CONTROL, Control.KEEPALIVE),
        ):
            self.assertTrue(self.receives(number).isReadable)
        self.assertTrue(self.receives(immediate(ImmediateKind.CONTROL, 99)).isReadable)

    def test_excessDataIsViolation(self) -> None:
        self.assertRaises(PeerViolation, self.receives, 2049, 2049)
        self.assertRaises(PeerViolation, self.receives, (1 << 29) - 1)
        one, _ = pair(SMALL, SMALL)
        for _ in range(16):
            one.core.arrived(0, 0)
        self.assertRaises(PeerViolation, one.core.arrived, 0, 0)
        one, _ = pair(SMALL, SMALL)
        one.core.arrived(immediate(ImmediateKind.CONTROL, Control.SHUTDOWN), 0)
        self.assertRaises(PeerViolation, one.core.arrived, 1, 1)

    def test_limitsCountLower16Bits(self) -> None:
        one, other = pair(SMALL, SMALL)
        one.core.outgoing()
        one.core.arrived(immediate(ImmediateKind.CREDITS, 0x10000), 0)
        one.core.write(b"x")
        self.assertEqual(one.core.outgoing(), [])
        one.core.arrived(immediate(ImmediateKind.CREDITS, 0x10001), 0)
        self.assertEqual(len(one.core.outgoing()), 1)

    def test_targetEndsWithAddressSpace(self) -> None:
        """Bytes of a target beyond the last 64-bit address are not used, as devices reject such addresses."""
        one, other = End(SMALL, isInline=True), End(SMALL)
        peer = other.greeting.replace(bufferAddress=(1 << 64) - 96, bufferLength=2048)
        one.core.begin(one.greeting, peer)
        for _ in range(3):
            one.core.write(bytes(64))
        posts = one.outgoing()
        self.assertEqual([(post.address, len(post.data)) for post in posts], [((1 << 64) - 96, 96)])

    def test_tableEndsWithAddressSpace(self) -> None:
        """Connection data with a table beyond the last 64-bit address is refused: writes to it would wrap."""
        greeting = End(SMALL).greeting
        last = (1 << 64) - SMALL.table
        self.assertEqual(decodePeerData(greeting.replace(tableAddress=last).encode()).tableAddress, last)
        self.assertRaises(WireError, decodePeerData, greeting.replace(tableAddress=last + 1).encode())

    def test_arbitraryMessagesStayBounded(self) -> None:
        for seed in range(300):
            random = Random(seed)
            one, _ = pair(SMALL, SMALL)
            flying: list[int] = []
            try:
                for _ in range(200):
                    operation = random.choice((0, 0, 0, 2, 4, 4, 6, 7, random.randrange(8)))
                    value = random.choice((0, 1, 2, 40, random.getrandbits(16), random.getrandbits(29)))
                    one.remote[:32] = random.randbytes(32) if random.random() < 0.5 else bytes(32)
                    one.core.arrived(operation << 29 | value, random.choice((0, 16, value)))
                    one.core.write(bytes(random.randrange(3000)))
                    flying += [each.identifier for each in one.outgoing()]
                    while flying and random.random() < 0.7:
                        one.core.completed(flying.pop(0))
                    self.assertLessEqual(len(flying), SMALL.sends)
                    self.assertLessEqual(one.core.unread, SMALL.receiveBuffer)
                    self.assertLessEqual(len(one.core.read()), SMALL.receiveBuffer)
            except PeerViolation:
                pass

    def test_arbitraryConnectionData(self) -> None:
        random = Random(5)
        good = End(SMALL).greeting.encode()
        self.assertRaises(WireError, decodePeerData, good[:39])
        self.assertRaises(WireError, decodePeerData, b"\2" + good[1:])
        self.assertRaises(WireError, decodePeerData, good[:20] + bytes(4) + good[24:])
        for _ in range(500):
            end = End(SMALL)
            output = b"\1" + random.randbytes(39)
            try:
                peer = decodePeerData(output)
            except WireError:
                continue
            end.core.begin(end.greeting, peer)
            end.core.write(bytes(5000))
            for post in end.outgoing():
                self.assertLess(post.address, 1 << 64)


class LayoutTests(SynchronousTestCase):
    """The encoded bytes of the specification."""

    def test_connectionDataLayout(self) -> None:
        raw = bytes.fromhex(
            "01020180 00000000 00007f0011223344 aabbccdd 00000002 00007f0055667788 aabbccde 00010000"
        )
        output = ConnectionData.decode(raw)
        self.assertEqual((output.version, output.flags, output.credits, output.tableLength), (1, 2, 384, 2))
        self.assertEqual((output.tableAddress, output.tableKey), (0x7F0011223344, 0xAABBCCDD))
        self.assertEqual((output.bufferAddress, output.bufferKey), (0x7F0055667788, 0xAABBCCDE))
        self.assertEqual(output.bufferLength, 65536)
        self.assertEqual(output.encode(), raw)

    def test_littleEndianTarget(self) -> None:
        raw = bytes.fromhex("88776655007f0000ddccbbaa00000100")
        target = LittleTarget(address=0x7F0055667788, rkey=RKey(0xAABBCCDD), length=65536)
        self.assertEqual(LittleTarget.decode(raw), target)
