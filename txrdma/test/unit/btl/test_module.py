"""Modules of the byte transfer layer: messages, puts, ends, faults, and priorities."""

from __future__ import annotations

import tracemalloc
from random import Random

from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.core.assembly import Budget, LONGEST, MOST_BYTES, MOST_MESSAGES, OLDEST, PERIODS
from txrdma.btl.core.earlypackets import MOST_NAMES, MOST_PACKETS
from txrdma.btl.core.events import Event, MessageReceived, PeerClosed, PeerFailed, SendCompleted, SendFailed
from txrdma.btl.core.module import COMMAND_MTU, Module, SHARED_ROOM
from txrdma.btl.core.path import COMMAND, DATA
from txrdma.btl.core.peer import Peer
from txrdma.btl.core.pendingacks import MOST_REFUSALS
from txrdma.btl.core.receivebuffer import LONG_REMOTE, ReceiveBuffer
from txrdma.btl.core.timetable import KEEP_ALIVE
from txrdma.btl.core.window import GIVE_UP
from txrdma.btl.wire import (
    ACK,
    ACK_LENGTH,
    BTLSegment,
    CHUNK,
    decodeSegment,
    encodeHead,
    encodePack,
    FRAG,
    HEADER_LENGTH,
    PACK,
    PUT,
    REFUSED,
    SEQUENCE_MASK,
    VERSION,
)
from txrdma.error import InvalidRequest
from txrdma.testing.btl.world import BadNetwork, ModuleHost, World

_MTU = 1024


class ModuleTestCase(SynchronousTestCase):
    """Two hosts, Alice and Bob, and their events."""

    def setUp(self) -> None:
        self.begin(BadNetwork())

    def begin(self, network: BadNetwork, budget: Budget | None = None) -> None:
        self.world = World(Random(1), network)
        self.eventReceived: dict[str, list[Event]] = {"alice": [], "bob": []}
        self.alice = ModuleHost(self.world, Module(_MTU, (127, 1023)), self.recorder("alice"))
        self.bob = ModuleHost(self.world, Module(_MTU, (127, 1023), budget), self.recorder("bob"))
        self.toBob, self.toAlice = self.alice.meet(self.bob)

    def recorder(self, name: str):  # type: ignore[no-untyped-def]  # a function of the case's own lists
        def record(event: Event) -> None:
            if isinstance(event, MessageReceived):
                event = event._replace(data=memoryview(bytes(event.data)))
            self.eventReceived[name].append(event)

        return record

    def of(self, name: str, kind: type[Event]) -> list[Event]:
        return [each for each in self.eventReceived[name] if isinstance(each, kind)]

    def messages(self, name: str = "bob") -> list[bytes]:
        return [bytes(each.data) for each in self.eventReceived[name] if isinstance(each, MessageReceived)]

    def send(self, data: bytes, context: object = None, isUrgent: bool = False, tag: int = 7) -> None:
        self.alice.module.send(self.toBob, tag, data, context, isUrgent)

    def run_(self, seconds: float) -> None:
        self.alice.turn()
        self.bob.turn()
        self.world.run(self.world.now + seconds)


class IdleTests(SynchronousTestCase):
    def test_memory(self) -> None:
        module, count = Module(_MTU, (256, 1024)), 200
        tracemalloc.start()
        self.addCleanup(tracemalloc.stop)
        before, _peak = tracemalloc.get_traced_memory()
        for name in range(count):
            module.addPeer(name, name, ((1, name), (2, name)), 1, 1, None, 0.0)
        after, _peak = tracemalloc.get_traced_memory()
        self.assertLess((after - before) / count, 5 << 10)
        self.assertTrue(module.hasPeer(count - 1))


class MessageTests(ModuleTestCase):
    def test_sizes(self) -> None:
        """Messages of all sizes arrive unchanged with their tags, and are reported to their sender."""
        room = _MTU - HEADER_LENGTH
        tiny = COMMAND_MTU - HEADER_LENGTH
        sizes = [0, 1, tiny, tiny + 1, room, room + 1, 5 * room, 100_000]
        for size in sizes:
            self.send(bytes(each & 0xFF for each in range(size)), size + 1, tag=size & 0xFFFF)
        self.run_(1.0)
        found = {
            each.tag: bytes(each.data)
            for each in self.eventReceived["bob"]
            if isinstance(each, MessageReceived)
        }
        self.assertEqual(found, {size & 0xFFFF: bytes(each & 0xFF for each in range(size)) for size in sizes})
        reported = {each.context for each in self.eventReceived["alice"] if isinstance(each, SendCompleted)}
        self.assertEqual(reported, {size + 1 for size in sizes})
        self.assertEqual(self.toBob.queuedBytes, 0)

    def test_channels(self) -> None:
        """Very small messages use the command channel, others the data channel."""
        tiny = COMMAND_MTU - HEADER_LENGTH
        for size, channel in ((tiny, COMMAND), (tiny + 1, DATA), (5000, DATA)):
            self.send(bytes(size))
            used = {each.channel for each in self.alice.module.outgoing(0.0)}
            self.assertEqual(used, {channel}, size)

    def test_room(self) -> None:
        """All messages arrive although memory suffices for one only, and later ones often start first."""
        for seed in range(5):
            self.begin(BadNetwork(loss=0.05, delays=(0.02, 0.02), jitter=0.005), Budget(40_000, 30_000))
            self.world.random.seed(seed)
            for _each in range(12):
                self.send(bytes(30_000))
            self.run_(60.0)
            self.assertEqual(len(self.messages()), 12)
            self.assertGreater(self.bob.module.counters.noMemoryRecvs, 0)

    def test_sharedRoom(self) -> None:
        """The space in a peer's socket does not limit the segments to a peer whose memory is mapped."""
        for buffer, room in (
            (None, 2),
            (ReceiveBuffer(1 << 16, lambda position, data: True, LONG_REMOTE), 2),
            (ReceiveBuffer(1 << 16, lambda position, data: True), SHARED_ROOM),
        ):
            bob = ModuleHost(self.world, Module(_MTU, (127, 1023), rooms=[2]), self.recorder("bob"))
            toBob, _back = self.alice.meet(bob)
            toBob.receiveBuffer = buffer
            self.alice.module.send(toBob, 1, bytes(900))
            self.run_(1.0)
            self.assertEqual(toBob.sent.paths[0].room, room)

    def test_delayedAcknowledgement(self) -> None:
        """Without an end of a batch an acknowledgement is due 50 microseconds after its segment."""
        self.send(b"x")
        (packet,) = self.alice.module.outgoing(0.0)
        bob = self.bob.module
        bob.received(packet.channel, (0, packet.channel), packet.head + bytes(packet.payload), 1.0)
        self.assertEqual((bob.deadline(), bob.outgoing(1.00001)), (1.00005, []))
        self.assertEqual(len(bob.outgoing(1.00005)), 1)

    def test_fair(self) -> None:
        """A peer with much to send does not delay another one."""
        carol = ModuleHost(self.world, Module(_MTU, (127, 1023)), self.recorder("bob"))
        toCarol, _back = self.alice.meet(carol)
        for _each in range(30):
            self.send(bytes(900))
        self.alice.module.send(toCarol, 1, bytes(900))
        order = [each.peer for each in self.alice.module.outgoing(0.0)]
        self.assertEqual((len(order), order.index(toCarol)), (31, 8))

    def test_credits(self) -> None:
        """No more packets are sent than there are credits; sending continues when credits return."""
        module = Module(_MTU, (4, 4))
        peer = module.addPeer(1, 2, ("c", "d"), 0, 0, None, 0.0)
        for _each in range(9):
            module.send(peer, 1, bytes(900))
        self.assertEqual(len(module.outgoing(0.0)), 3)
        self.assertEqual(module.outgoing(0.0), [])
        module.completed(DATA, 2)
        self.assertEqual(len(module.outgoing(0.0)), 2)

    def test_acknowledgementsWithoutCredits(self) -> None:
        """Acknowledgements of a batch that lack credits are sent when credits return."""
        module = Module(_MTU, (8, 8))
        for number in (1, 2):
            module.addPeer(number, 9, ((number, 0), (number, 1)), 0, 0, None, 0.0)
            frag = BTLSegment(FRAG, number, 0, None, 7, b"x", attempt=1)
            module.received(COMMAND, (number, 0), frag.encode(), 0.0)
        module.batchEnded()
        module.credits[COMMAND] = 1
        (first,) = module.outgoing(0.0)
        self.assertEqual(module.outgoing(0.0), [])
        module.completed(COMMAND, 1)
        (second,) = module.outgoing(0.0)
        self.assertIsNot(first.peer, second.peer)

    def test_refusedCalls(self) -> None:
        module = self.alice.module
        self.assertRaises(InvalidRequest, module.send, self.toBob, 1 << 16, b"")
        self.assertRaises(InvalidRequest, module.put, self.toBob, 1 << 32, 0, b"")
        self.assertRaises(InvalidRequest, module.put, self.toBob, 1, (1 << 64) - 1, b"abc")
        module.close(self.toBob)
        self.assertRaises(InvalidRequest, module.send, self.toBob, 1, b"")


class UrgencyTests(ModuleTestCase):
    """Urgent messages beside a message in chunks that is already being sent."""

    def begun(self) -> bytes:
        """Send the first chunks of a message that does not fit into the window."""
        data = bytes(range(256)) * 400
        self.send(data)
        self.alice.turn()
        [begun] = self.toBob.usual
        self.assertTrue(0 < begun.begun < begun.total)
        return data

    def test_short(self) -> None:
        """An urgent message in one packet is sent between the chunks."""
        data = self.begun()
        self.send(b"short", isUrgent=True)
        self.run_(1.0)
        self.assertEqual(self.messages(), [b"short", data])

    def test_chunks(self) -> None:
        """An urgent message in chunks waits for the one before: the peer may lack memory for both."""
        data, urgent, usual = self.begun(), b"u" * 5000, b"usual"
        self.send(usual)
        self.send(urgent, isUrgent=True)
        self.run_(1.0)
        self.assertEqual(self.messages(), [data, urgent, usual])


class DeferralTests(ModuleTestCase):
    """Processing of piggybacked acknowledgements is deferred, so that an answer is sent first."""

    def setUp(self) -> None:
        super().setUp()
        self.send(b"question", "asked")
        (question,) = self.alice.module.outgoing(0.0)
        bob = self.bob.module
        bob.received(COMMAND, self.toAlice.addresses[COMMAND], question.head + question.payload, 0.0)
        bob.send(self.toAlice, 7, b"answer")
        (self.answer,) = bob.outgoing(0.0)

    def deliverAnswer(self) -> None:
        """Deliver the answer, which acknowledges the request."""
        packet = bytes(self.answer.head) + bytes(self.answer.payload)
        self.alice.module.received(COMMAND, self.toBob.addresses[COMMAND], packet, 0.001)

    def test_noneWaitsLonger(self) -> None:
        """Every other call completes the deferred work first."""
        for ask in (
            lambda: self.alice.module.deadline(),
            lambda: self.alice.module.outgoing(0.001),
            lambda: self.alice.module.expired(0.001),
            lambda: self.alice.module.received(COMMAND, "elsewhere", b"", 0.001),
        ):
            self.setUp()
            self.deliverAnswer()
            ask()
            self.assertEqual(self.toBob.sent.outstanding, 0)

    def test_lost(self) -> None:
        """A message that has arrived does not fail when its peer is given up before the deferred work."""
        alice = self.alice.module
        self.deliverAnswer()
        alice.events()
        alice.lose(self.toBob, "no more")
        self.assertEqual(
            alice.events(), [SendCompleted(self.toBob, "asked"), PeerFailed(self.toBob, "no more")]
        )


class PutTests(ModuleTestCase):
    def test_outside(self) -> None:
        """Puts outside a region, into a closed one or one of another peer fail and change nothing."""
        memory, others = bytearray(100), bytearray(100)
        module = self.bob.module
        region, gone = (
            module.regions.register(memoryview(memory)),
            module.regions.register(memoryview(others)),
        )
        own = module.regions.register(
            memoryview(others), ModuleHost(self.world, Module(_MTU, (9, 9)), print).meet(self.bob)[1]
        )
        module.regions.deregister(gone)
        module.regions.deregister(gone)
        for number, (to, offset) in enumerate(((region, 91), (region, 1 << 60), (gone, 0), (own, 0), (0, 0))):
            self.alice.module.put(self.toBob, to, offset, b"\1" * 10, number)
        self.alice.module.put(self.toBob, region, 90, b"\2" * 10, "good")
        self.run_(1.0)
        failed = {each.context for each in self.eventReceived["alice"] if isinstance(each, SendFailed)}
        self.assertEqual(failed, {0, 1, 2, 3, 4})
        self.assertIn(SendCompleted(self.toBob, "good"), self.eventReceived["alice"])
        self.assertEqual((memory, others), (bytes(90) + b"\2" * 10, bytes(100)))
        self.assertEqual((module.counters.badfragRecvs, self.alice.module.counters.refusedSends), (5, 5))


class EndTests(ModuleTestCase):
    def test_diesWhileClosing(self) -> None:
        """Messages that wait for the window fail when a closing peer is given up."""
        self.bob.isDead = True
        for number in range(100):
            self.send(bytes(900), number)
        self.alice.module.close(self.toBob)
        self.run_(GIVE_UP + 5)
        *failed, last = self.eventReceived["alice"]
        why = "the peer does not answer"
        self.assertCountEqual(failed, [SendFailed(self.toBob, number, why) for number in range(100)])
        self.assertEqual(last, PeerFailed(self.toBob, why))

    def test_nobodyConfirms(self) -> None:
        """If the peer is silent after the last segment, the connection closes in order, and is not lost."""
        self.send(b"x", "done")
        self.run_(0.1)
        self.bob.isDead = True
        self.alice.module.close(self.toBob)
        self.run_(GIVE_UP + 5)
        self.assertEqual(
            self.eventReceived["alice"], [SendCompleted(self.toBob, "done"), PeerClosed(self.toBob)]
        )

    def test_postponed(self) -> None:
        """Deadlines of messages that have arrived in time leave nothing to do when they pass."""
        self.send(b"in time", "context")
        self.alice.turn()
        first = self.alice.module.deadline()
        self.run_(0.001)
        self.assertEqual(self.of("alice", SendCompleted), [SendCompleted(self.toBob, "context")])
        assert first is not None
        self.assertFalse(self.alice.module.isDue(first))
        later = self.alice.module.deadline()
        assert later is not None
        self.assertGreater(later, first + KEEP_ALIVE / 2)
        self.assertTrue(self.alice.module.isDue(later))

    def test_keepAlive(self) -> None:
        """Keepalive detects an idle peer that does not respond, and affects no peer that answers."""
        self.run_(10 * KEEP_ALIVE)
        self.assertEqual((self.eventReceived["alice"], self.eventReceived["bob"]), ([], []))
        self.bob.isDead = True
        self.run_(KEEP_ALIVE + GIVE_UP + 5)
        self.assertEqual(self.eventReceived["alice"], [PeerFailed(self.toBob, "the peer does not answer")])

    def test_lose(self) -> None:
        """A peer that the application gives up is removed, and reported once."""
        self.send(bytes(9000), "lost")
        self.alice.module.lose(self.toBob, "why not")
        self.alice.module.lose(self.toBob, "again")
        self.run_(1.0)
        self.assertEqual(
            self.eventReceived["alice"],
            [SendFailed(self.toBob, "lost", "why not"), PeerFailed(self.toBob, "why not")],
        )
        self.assertEqual(self.alice.module.outgoing(1.0), [])


class LiarTests(ModuleTestCase):
    """Invalid input is counted, and affects no other peer."""

    def put(self, segment: BTLSegment | bytes, source: tuple[int, int] = (0, 1), channel: int = DATA) -> None:
        raw = segment if isinstance(segment, bytes) else segment.encode()
        self.bob.module.received(channel, source, raw, self.world.now)

    def lie(self, **changes: int) -> BTLSegment:
        """Return a valid segment of Alice, with these fields changed."""
        right = BTLSegment(FRAG, self.toAlice.name, self.toAlice.received.following, payload=b"lie")
        return right._replace(**changes)  # type: ignore[arg-type]  # mypy does not check the names

    def counted(self, name: str) -> int:
        return self.bob.module.counters.named()[name]

    def test_headers(self) -> None:
        """Invalid packets, and those of unknown peers or from wrong addresses, are only counted."""
        right = self.lie().encode()
        for raw in (b"", right[:17], bytes((VERSION << 4 ^ 0xF0 | FRAG,)) + right[1:], right[:-1]):
            self.put(raw)
        self.assertEqual(self.counted("num_bad_header_recvs"), 4)
        self.put(self.lie(sender=self.toAlice.name ^ 1))
        self.put(self.lie(), source=(5, 1))
        self.put(self.lie(), channel=COMMAND)
        self.assertEqual((self.counted("num_unk_recvs"), self.counted("num_total_recvs")), (3, 7))
        self.bob.turn()
        self.assertEqual(self.eventReceived["bob"], [])

    def test_early(self) -> None:
        """A limited number of packets is stored before their sender is known, if its name was allocated."""
        module, counters = self.bob.module, self.bob.module.counters
        early = BTLSegment(FRAG, 5, 100, payload=b"early").encode()
        module.received(DATA, "there", early, 0.0)
        self.assertEqual(counters.unkRecvs, 1)
        module.expected.expect(5)
        for address in ("elsewhere", *["there"] * MOST_PACKETS):
            module.received(DATA, address, early, 0.0)
        self.assertEqual(counters.unkRecvs, 2)
        peer = module.addPeer(5, 6, ("command", "there"), 0, 100, None, 0.0)
        self.assertEqual((counters.unkRecvs, counters.oowLowRecvs), (3, MOST_PACKETS - 2))
        (event,) = module.events()
        self.assertEqual(event, MessageReceived(peer, 0, memoryview(b"early")))
        self.assertEqual(counters.totalRecvs, 2 + MOST_PACKETS)

    def test_earlyInOrder(self) -> None:
        """Early messages are delivered in order if the application then declares their tags as ordered."""
        module = self.bob.module
        module.expected.expect(5)
        module.received(DATA, "there", BTLSegment(FRAG, 5, 101, tag=3, payload=b"second").encode(), 0.0)
        peer = module.addPeer(5, 6, ("command", "there"), 0, 100, None, 0.0)
        self.assertEqual(module.events(), [])
        packed = BTLSegment(PACK, 5, 103, tag=2, payload=encodePack((3, 4), (b"fourth", b"fifth"))).encode()
        module.received(DATA, "there", packed, 0.0)
        peer.order.tags.add(3)
        peer.order.isOrdered = False
        module.received(DATA, "there", BTLSegment(FRAG, 5, 102, tag=3, payload=b"third").encode(), 0.0)
        self.assertEqual(module.events(), [])
        module.received(DATA, "there", BTLSegment(FRAG, 5, 100, tag=3, payload=b"first").encode(), 0.0)
        eventReceived = [bytes(each.data) for each in module.events() if isinstance(each, MessageReceived)]
        self.assertEqual(eventReceived, [b"first", b"second", b"third", b"fourth", b"fifth"])

    def test_earlyNames(self) -> None:
        """Names that are allocated and never used are dropped, oldest first."""
        module = self.bob.module
        for name in range(1, MOST_NAMES + 2):
            module.expected.expect(name)
        for name, unknown in ((1, 1), (2, 1), (MOST_NAMES + 1, 1)):
            module.received(DATA, "there", BTLSegment(FRAG, name).encode(), 0.0)
            self.assertEqual(module.counters.unkRecvs, unknown)

    def test_window(self) -> None:
        """Segments outside the window, and duplicates, are acknowledged but not delivered."""
        first = self.toAlice.received.following
        self.put(self.lie())
        self.put(self.lie(sequence=first))
        self.put(self.lie(sequence=(first + 2) & SEQUENCE_MASK))
        self.put(self.lie(sequence=(first + 2) & SEQUENCE_MASK))
        self.put(self.lie(sequence=(first + 1 + 4096) & SEQUENCE_MASK))
        self.put(self.lie(sequence=(first - 30_000) & SEQUENCE_MASK))
        self.bob.turn()
        self.assertEqual(self.messages(), [b"lie", b"lie"])
        names = ("num_oow_low_recvs", "num_dup_recvs", "num_oow_high_recvs")
        self.assertEqual([self.counted(each) for each in names], [2, 1, 1])

    def test_shortAcknowledgement(self) -> None:
        """
        An acknowledgement fits into a packet. It contains the first segments beyond a gap, and the others
        follow when the gap is closed.
        """
        first, length = self.toAlice.received.following, 256 - ACK_LENGTH
        self.toAlice.mtu = 256
        for ahead in (1, 8 * length, 8 * length + 1, 3000):
            self.put(self.lie(sequence=(first + ahead) & SEQUENCE_MASK))
        (packet,) = self.bob.module.outgoing(self.world.now + 1.0)
        raw = packet.head + bytes(packet.payload)
        self.assertEqual(len(raw), 256)
        self.assertEqual(int.from_bytes(decodeSegment(raw).payload, "little"), 1 | 1 << 8 * length - 1)
        for ahead in range(8 * length + 2):
            self.put(self.lie(sequence=(first + ahead) & SEQUENCE_MASK))
        (packet,) = self.bob.module.outgoing(self.world.now + 2.0)
        segment = decodeSegment(packet.head + bytes(packet.payload))
        self.assertEqual(segment.acknowledged, first + 8 * length + 1 & SEQUENCE_MASK)
        self.assertEqual(int.from_bytes(segment.payload, "little"), 1 << 3000 - (8 * length + 3))

    def test_replay(self) -> None:
        """A segment below the window is acknowledged immediately, even if it was before."""
        first = self.toAlice.received.following
        self.put(self.lie())
        self.assertEqual(len(self.bob.module.outgoing(self.world.now + 1.0)), 1)
        self.assertEqual(self.bob.module.outgoing(self.world.now + 2.0), [])
        self.put(self.lie(sequence=first))
        (packet,) = self.bob.module.outgoing(self.world.now + 2.0)
        segment = decodeSegment(packet.head + bytes(packet.payload))
        self.assertEqual((segment.kind, segment.acknowledged), (ACK, first))

    def test_acknowledgements(self) -> None:
        """An acknowledgement of unsent segments is rejected, alone or with a segment."""
        never = self.toAlice.sent.following
        self.put(self.lie(acknowledged=never))
        self.put(self.lie(kind=ACK, acknowledged=(never - 1) & SEQUENCE_MASK))
        self.put(self.lie(kind=ACK)._replace(acknowledged=(never - 1) & SEQUENCE_MASK, payload=b"\xff" * 513))
        self.put(self.lie(kind=REFUSED, sequence=never))
        self.bob.turn()
        self.assertEqual((self.counted("num_bad_ack_recvs"), self.eventReceived["bob"]), (3, []))

    def test_farewells(self) -> None:
        """A FAREWELL is processed only if the connection is closing and it is an acknowledgement."""
        self.bob.module.send(self.toAlice, 7, b"lost", "lost")
        self.bob.module.outgoing(self.world.now)
        here = self.toAlice.name
        last = (self.toAlice.sent.following - 1) & SEQUENCE_MASK
        acknowledgement = encodeHead(ACK, here, 0, last, 0, 0)
        self.bob.module.lastAckReceived(self.toAlice, acknowledgement, self.world.now)
        self.assertEqual(self.bob.module.events(), [])
        self.bob.module.close(self.toAlice)
        message = encodeHead(FRAG, here, self.toAlice.received.following, last, 7, 0) + b"message"
        for wrong in (message, encodeHead(ACK, here ^ 1, 0, last, 0, 0), acknowledgement[:-1]):
            self.bob.module.lastAckReceived(self.toAlice, wrong, self.world.now)
            self.assertEqual(self.bob.module.events(), [])
        self.bob.module.lastAckReceived(self.toAlice, acknowledgement, self.world.now)
        self.assertEqual(self.bob.module.events(), [SendCompleted(self.toAlice, "lost")])

    def test_chunks(self) -> None:
        """Chunks that do not fit or contradict others are counted and refused."""
        first = self.toAlice.received.following
        good = self.lie(kind=CHUNK, fragment=1, total=9, offset=3)
        self.put(good)
        following = good._replace(sequence=(first + 1) & SEQUENCE_MASK)
        lies = (
            *({"total": 10}, {"tag": 3}, {"offset": 7}, {"offset": 0xFFFFFFFF}),
            *({"fragment": 2, "total": LONGEST + 1}, {"payload": b""}, {"payload": b"too long", "offset": 0}),
        )
        for lie in lies:
            self.put(following._replace(**lie))
        self.assertEqual(self.counted("num_badfrag_recvs"), len(lies))
        refusals = [each for each in self.bob.module.outgoing(0.0) if each.head[0] & 15 == REFUSED]
        self.assertEqual(len(refusals), len(lies))

    def test_memory(self) -> None:
        """Thousands of incomplete messages take no more memory than the limit."""
        self.assertEqual(Budget().most, MOST_BYTES)
        self.begin(BadNetwork(), Budget(100_000, 50_000))
        first = self.toAlice.received.following
        for number in range(3000):
            lie = self.lie(
                kind=CHUNK, fragment=number, total=40_000, sequence=(first + number) & SEQUENCE_MASK
            )
            self.put(lie)
        self.assertEqual((self.bob.module._budget.used, len(self.toAlice.assembly)), (80_000, 3))
        self.assertEqual(self.counted("num_no_memory_recvs"), 2997)
        self.bob.turn()
        self.alice.isDead = True
        self.world.run(OLDEST + 1.0)
        reason = "the peer has stopped in the middle of a message"
        self.assertEqual(self.eventReceived["bob"], [PeerFailed(self.toAlice, reason)])
        self.assertEqual(self.bob.module._budget.used, 0)

    def test_manyIncomplete(self) -> None:
        """A peer has a bounded number of incomplete messages, however short, and one more by the reserve."""
        self.begin(BadNetwork(), Budget(1 << 30, 1 << 30))
        first = self.toAlice.received.following
        for number in range(2 * MOST_MESSAGES):
            sequence = (first + number) & SEQUENCE_MASK
            self.put(self.lie(kind=CHUNK, fragment=number, total=40, sequence=sequence))
        self.assertEqual(len(self.toAlice.assembly), MOST_MESSAGES + 1)
        self.assertEqual(self.counted("num_no_memory_recvs"), MOST_MESSAGES - 1)

    def test_asleepInTheMiddle(self) -> None:
        """A receiver that sleeps for two minutes in the middle of a message does not give up its sender."""
        self.send(bytes(1_000_000), 1)
        self.run_(0.0006)
        self.assertEqual((len(self.messages()), len(self.toAlice.assembly)), (0, 1))
        self.bob.module.expired(self.world.now + 120.0)  # as a reactor does, which reads only afterwards
        self.run_(5.0)
        self.assertEqual([len(each) for each in self.messages()], [1_000_000])
        self.assertEqual(self.of("bob", PeerFailed) + self.of("alice", PeerFailed), [])

    def test_clockSetForward(self) -> None:
        """A clock that is set forward several times, as far as a message may wait, loses no message."""
        self.send(bytes(1_000_000), 1)
        self.run_(0.0006)
        self.assertEqual(len(self.toAlice.assembly), 1)
        for number in range(1, PERIODS):
            self.bob.module.expired(self.world.now + number * OLDEST)
        self.run_(5.0)
        self.assertEqual([len(each) for each in self.messages()], [1_000_000])
        self.assertEqual(self.of("bob", PeerFailed) + self.of("alice", PeerFailed), [])

    def test_refusals(self) -> None:
        """Refusals are bounded, however many segments are refused in one iteration."""
        for _each in range(5000):
            self.put(self.lie(kind=PUT, region=99))
        self.assertEqual(len(self.bob.module._owed.refusals), MOST_REFUSALS)


class ReorderingTests(ModuleTestCase):
    def play(self, network: BadNetwork, size: int = 4000, count: int = 200) -> Peer:
        """Send large messages, each followed by very small ones that overtake it."""
        self.begin(network)
        for _number in range(count):
            self.send(bytes(size))
            for _each in range(4):
                self.send(b"small")
        self.alice.turn()
        self.world.run(60.0, lambda: len(self.messages()) == 5 * count and self.toBob.isIdle())
        self.assertEqual(len(self.messages()), 5 * count)
        return self.toBob

    def test_smallOvertakeLarge(self) -> None:
        """Small messages that overtake large ones on the other channel cause no retransmission."""
        self.play(BadNetwork(delays=(0.0001, 0.005)))
        counters = self.alice.module.counters
        self.assertGreater(self.bob.module.counters.maxRcvdWindowSize, 50)
        self.assertGreater(counters.dupAcks, 3)
        self.assertEqual((counters.resends, counters.spuriousResends), (0, 0))

    def test_largeOvertakeSmall(self) -> None:
        """Large messages that overtake small ones cause no retransmission."""
        self.play(BadNetwork(delays=(0.005, 0.0001)))
        self.assertEqual(self.alice.module.counters.resends, 0)

    def test_losses(self) -> None:
        """With such reordering, few packets are retransmitted besides lost ones."""
        for interval in (100, 20):
            self.begin(BadNetwork())
            sent = lost = 0
            transmit = World.transmit

            def counting(
                world: World,
                sender: ModuleHost,
                to: tuple[int, int],
                channel: int,
                packet: bytes,
                codepoint: int,
            ) -> None:
                nonlocal sent, lost
                sent += sender.number == 0
                if sender.number == 0 and sent % interval == 0:  # noqa: B023 (called in this round only)
                    lost += 1
                else:
                    transmit(world, sender, to, channel, packet, codepoint)  # noqa: B023

            self.patch(World, "transmit", counting)
            self.play(BadNetwork(delays=(0.0001, 0.001)), count=150)
            counters = self.alice.module.counters
            self.patch(World, "transmit", transmit)
            self.assertGreater(lost, 5)
            self.assertLessEqual(counters.resends, 1.2 * lost)
            self.assertLessEqual(counters.spuriousResends, 0.2 * lost)
