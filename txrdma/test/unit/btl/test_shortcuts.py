"""The fast path for single messages has the same effects as the general path."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.core.counters import ModuleCounters
from txrdma.btl.core.events import Event, MessageReceived, SendCompleted
from txrdma.btl.core.module import COMMAND_MTU, Module, MOST_RESENDS
from txrdma.btl.core.path import COMMAND, DATA, FAILURES_ONLY, Sent
from txrdma.btl.core.peer import Peer
from txrdma.btl.core.roundtrip import FIRST_TIMEOUT
from txrdma.btl.core.timetable import LATE
from txrdma.btl.core.window import SendWindow
from txrdma.btl.wire import (
    ACK,
    BTLSegment,
    CHUNK,
    decodeSegment,
    FRAG,
    HEADER_LENGTH,
    PACK,
    ROOM_UNKNOWN,
    SEQUENCE_MASK,
    VOID,
)

_MTU = 1024
_NAMES = 77, 88
_HERE, _THERE = ("here", 0), ("there", 0)
_FIRST = SEQUENCE_MASK - 5
"""The first sequence number of both ends: sequence numbers wrap early."""


def _module() -> tuple[Module, Peer]:
    module = Module(_MTU, (8, 8))
    return module, module.addPeer(*_NAMES, (_THERE, _THERE), _FIRST, _FIRST, None, 0.0)


class SendTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.module, self.peer = _module()

    def send(self, size: int = 10, now: float = 0.0, context: object = FAILURES_ONLY) -> int | None:
        """Return the channel of a message that is sent immediately, or None."""
        packet = self.module.sendFast(self.peer, 7, bytes(size))
        if packet is None:
            return None
        channel, head, payload = packet
        self.module.sentFast(self.peer, channel, 7, payload, context, now)
        self.module.completed(channel, 1)
        segment = decodeSegment(head + payload)
        self.assertEqual((segment.kind, segment.tag, bytes(segment.payload)), (FRAG, 7, bytes(size)))
        return channel

    def deliver(self, kind: int, now: float, acknowledged: int | None = None, sequence: int = _FIRST) -> None:
        """Deliver a segment of the peer."""
        segment = BTLSegment(kind, _NAMES[0], sequence, acknowledged, 9, b"", attempt=1)
        self.module.received(COMMAND, _THERE, segment.encode(), now)

    def test_channels(self) -> None:
        """A message that fits into a packet is sent immediately, on the channel for its length."""
        longest = COMMAND_MTU - HEADER_LENGTH
        for size, channel in (
            (0, COMMAND),
            (longest, COMMAND),
            (longest + 1, DATA),
            (_MTU - HEADER_LENGTH, DATA),
            (_MTU - HEADER_LENGTH + 1, None),
        ):
            self.setUp()
            self.assertEqual(self.send(size), channel)
            self.assertEqual(self.peer.sent.outstanding, channel is not None)

    def test_oneAlone(self) -> None:
        """While a message is in flight, others wait for the end of the iteration and share a packet."""
        self.assertEqual(self.send(), COMMAND)
        self.assertIsNone(self.send())
        for _each in range(2):
            self.module.send(self.peer, 7, b"more")
        (packet,) = self.module.outgoing(0.0)
        self.assertEqual(decodeSegment(packet.head + bytes(packet.payload)).kind, PACK)

    def test_answer(self) -> None:
        """A message is sent immediately if the packet just received has acknowledged the previous one."""
        self.send(context="told")
        self.deliver(FRAG, 0.001, _FIRST)
        self.assertEqual(self.send(now=0.001), COMMAND)
        self.assertEqual(self.peer.sent.outstanding, 2)
        (came, *rest) = [*self.module.events(), *self.module.events()]
        self.assertIsInstance(came, MessageReceived)
        self.assertEqual(rest, [SendCompleted(self.peer, "told")])
        self.assertEqual(self.peer.sent.outstanding, 1)
        self.assertEqual(self.module.outgoing(0.002), [])  # the acknowledgement was sent with the answer

    def test_others(self) -> None:
        """Without credits, after others, to a closed peer, or with a bad tag nothing is sent immediately."""
        self.module.credits[COMMAND] = 1
        self.assertIsNone(self.send())
        self.module.credits[COMMAND] = 8
        self.assertIsNone(self.module.sendFast(self.peer, 1 << 16, b""))
        self.module.hasPlaced = True
        self.assertIsNone(self.send())
        self.module.hasPlaced = False
        self.module.send(self.peer, 7, b"first")
        self.assertIsNone(self.send())
        self.module.outgoing(0.0)
        self.module.close(self.peer)
        self.assertIsNone(self.send())

    def test_copied(self) -> None:
        """A mutable buffer is copied, so retransmissions are unchanged."""
        data = bytearray(b"before")
        packet = self.module.sendFast(self.peer, 7, data)
        assert packet is not None
        self.module.sentFast(self.peer, packet[0], 7, packet[2], None, 0.0)
        data[:] = b"behind"
        self.module.expired(1.0)
        (again,) = self.module.outgoing(1.0)
        self.assertEqual(again.payload, b"before")

    def test_timer(self) -> None:
        """The first message sets a timer; later ones do not change it, and each is retransmitted in time."""
        self.send()
        first = self.module.deadline()
        self.assertEqual(first, FIRST_TIMEOUT)
        now = 0.0
        for number in range(20):
            now += 0.0005
            self.deliver(FRAG, now, (_FIRST + number) & SEQUENCE_MASK, (_FIRST + number) & SEQUENCE_MASK)
            self.assertEqual(self.send(now=now), COMMAND)
            self.module.events()
            due = self.module.deadline()
            assert due is not None
            self.assertLessEqual(due, now + FIRST_TIMEOUT)
        while due is not None and not self.module.counters.timeoutRetrans and due < 2.0:
            self.module.expired(due)
            now, due = due, self.module.deadline()
        self.assertLess(now, 0.0005 * 20 + FIRST_TIMEOUT)
        self.assertEqual(len(self.module.outgoing(now)), 1)


_KINDS = st.sampled_from((FRAG, FRAG, FRAG, FRAG, ACK, CHUNK, PACK, VOID))
_PACKETS = st.builds(
    BTLSegment,
    kind=_KINDS,
    sender=st.sampled_from((*[_NAMES[0]] * 9, 5)),
    sequence=st.integers(_FIRST - 2, _FIRST + 8).map(lambda number: number & SEQUENCE_MASK),
    acknowledged=st.one_of(
        st.none(), st.integers(_FIRST - 2, _FIRST + 8).map(lambda number: number & SEQUENCE_MASK)
    ),
    tag=st.integers(0, 3),
    payload=st.binary(max_size=9),
    fragment=st.just(1),
    total=st.integers(1, 9),
    region=st.just(0),
    offset=st.integers(0, 3),
    duplicates=st.integers(0, 2),
    room=st.just(ROOM_UNKNOWN),
    capable=st.integers(0, 2),
    marked=st.integers(0, 2),
    latest=st.just(_FIRST),
    latestAttempt=st.just(1),
    attempt=st.integers(1, 3),
)


class ReceiveTests(SynchronousTestCase):
    @given(st.lists(st.tuples(st.booleans(), _PACKETS, st.integers(-3, 0), st.booleans()), max_size=30))
    def test_same(self, turns: list[tuple[bool, BTLSegment, int, bool]]) -> None:
        """The fast path and the general path have the same events, packets, counters and state."""
        (quick, quickPeer), (usual, usualPeer) = _module(), _module()
        reported: list[list[object]] = [[], []]
        now = 0.0
        for isOrdered, segment, cut, isAnswered in turns:
            now += 0.001
            packet = segment.encode()
            packet = packet[: len(packet) + cut]
            if isOrdered:
                quickPeer.order.tags.add(1)
                usualPeer.order.tags.add(1)
            event = quick.receiveFast(COMMAND, _THERE, memoryview(packet), now)
            if event is None:
                quick.received(COMMAND, _THERE, packet, now)
            usual.received(COMMAND, _THERE, packet, now)
            for module, peer, eventReceived, first in (
                (quick, quickPeer, reported[0], event),
                (usual, usualPeer, reported[1], None),
            ):
                module.batchEnded()
                events: list[Event] = module.events() if first is None else [first]
                if isAnswered:
                    module.send(peer, 4, b"answer", "answered")
                eventReceived.extend((type(each), *map(_plain, each[1:])) for each in events)
                eventReceived.extend(
                    (each.channel, each.head, bytes(each.payload)) for each in module.outgoing(now)
                )
                eventReceived.extend((type(each), *map(_plain, each[1:])) for each in module.events())
                eventReceived.extend((type(each), *map(_plain, each[1:])) for each in module.events())
                eventReceived.append(module.deadline())
            self.assertEqual(*reported)
            self.assertEqual(quick.counters.named(), usual.counters.named())
            self.assertEqual(quickPeer.received.following, usualPeer.received.following)
            self.assertEqual(quickPeer.sent.base, usualPeer.sent.base)

    def test_alone(self) -> None:
        """The next message takes the fast path, unless its address differs or it follows other packets."""
        module, _peer = _module()
        packet = memoryview(BTLSegment(FRAG, _NAMES[0], _FIRST, _FIRST - 1, 3, b"ping").encode())
        self.assertIsNone(module.receiveFast(COMMAND, _HERE, packet, 0.0))
        event = module.receiveFast(COMMAND, _THERE, packet, 0.0)
        assert event is not None
        self.assertEqual((event.tag, bytes(event.data)), (3, b"ping"))
        self.assertIsNone(module.receiveFast(COMMAND, _THERE, packet, 0.0))
        self.assertEqual((module.counters.totalRecvs, module.counters.fragRecvs), (1, 1))
        second = memoryview(BTLSegment(FRAG, _NAMES[0], _FIRST + 1, _FIRST - 1, 3, b"pong").encode())
        module.received(COMMAND, _THERE, second, 0.0)
        third = memoryview(BTLSegment(FRAG, _NAMES[0], _FIRST + 2, _FIRST - 1, 3, b"pang").encode())
        self.assertIsNone(module.receiveFast(COMMAND, _THERE, third, 0.0))

    def test_settled(self) -> None:
        """
        A module is settled when a message was answered, unless an acknowledgement or a result is pending,
        a deadline has changed, or its timer has not expired.
        """
        module, peer = _module()

        def isSettled(number: int, now: float, isAnswered: bool = True, context: object = None) -> bool:
            """Receive a message that acknowledges all earlier answers, and answer it."""
            upTo = peer.sent.following - 1 & SEQUENCE_MASK
            packet = BTLSegment(FRAG, _NAMES[0], _FIRST + number & SEQUENCE_MASK, upTo, 3, b"ping").encode()
            self.assertIsNotNone(module.receiveFast(COMMAND, _THERE, memoryview(packet), now))
            if isAnswered:
                found = module.sendFast(peer, 4, b"pong")
                assert found is not None
                module.sentFast(peer, found[0], 4, found[2], context, now)
            return module.isSettled(now)

        for number in range(2):  # the first deadline, and an earlier one by the first round trip
            self.assertFalse(isSettled(number, number / 1000))
            deadline = module.deadline()
        assert deadline is not None
        self.assertTrue(isSettled(2, 0.002, context="reported"))
        self.assertEqual((module.events(), module.outgoing(0.002)), ([], []))
        self.assertEqual(module.deadline(), deadline)
        self.assertFalse(isSettled(3, 0.003))
        self.assertEqual(module.events(), [SendCompleted(peer, "reported")])
        self.assertFalse(isSettled(4, 0.004, isAnswered=False))
        module.batchEnded()
        self.assertEqual(len(module.outgoing(0.004)), 1)
        self.assertTrue(isSettled(5, deadline))  # the timer expires now
        self.assertFalse(isSettled(6, deadline + LATE))


class RecoveryTests(SynchronousTestCase):
    def test_turns(self) -> None:
        """While segments remain to be retransmitted, the module requests another iteration."""
        module = Module(_MTU, (100, 100))
        peer = module.addPeer(*_NAMES, (_THERE, _THERE), _FIRST, _FIRST, None, 0.0)
        peer.sent.paths[0].congestion.size = 100
        for _each in range(20):
            module.send(peer, 1, bytes(peer.mtu - HEADER_LENGTH))
        sent = len(module.outgoing(0.0))
        last = BTLSegment(
            ACK,
            _NAMES[0],
            0,
            _FIRST - 1,
            payload=b"\0\0\4",
            latest=_FIRST + 19 & SEQUENCE_MASK,
            latestAttempt=1,
        )
        self.assertEqual((sent, module.hasMoreLost), (20, False))
        module.received(COMMAND, _THERE, last.encode(), 0.4)
        module.expired(0.9)
        peer.sent.paths[0].congestion.size = 100
        counts = []
        while True:
            counts.append(len(module.outgoing(0.9)))
            if not module.hasMoreLost:
                break
        self.assertEqual(counts, [MOST_RESENDS, 19 - MOST_RESENDS])


_STEPS = st.tuples(
    st.sampled_from(("add", "add", "beside", "beside", "beside", "alone", "time")),
    st.sampled_from((0.0001, 0.001, 0.004, 0.03, 0.4)),
    st.sampled_from((COMMAND, DATA)),
    st.sampled_from((0, 0, 0, 1, 2, -1, -2)),
    st.sampled_from((b"", b"\1", b"\2", b"\5")),
)
"""Steps: event, seconds before it, channel, and acknowledged segments."""


class ArrivalTests(SynchronousTestCase):
    """Acknowledgements piggybacked on messages."""

    @given(st.lists(_STEPS, min_size=4, max_size=25))
    def test_same(self, steps: list[tuple[str, float, int, int, bytes]]) -> None:
        """A window that uses the fast path has the same state as one that does not."""
        counters = ModuleCounters(), ModuleCounters()
        quick, usual = windows = SendWindow(_FIRST, counters[0], 5.0), SendWindow(_FIRST, counters[1], 5.0)
        now = 0.0
        for step, seconds, channel, ahead, beyond in steps:
            now += seconds
            reported = quick.base + ahead & SEQUENCE_MASK
            found = []
            for window in windows:
                if step == "add":
                    for which in (channel, 1 - channel, channel):
                        window.add(Sent(FRAG, 0, b"", None), which, now)
                elif step == "alone":
                    ack = BTLSegment(ACK, 0, 0, reported, payload=beyond, latest=reported, latestAttempt=1)
                    window.acknowledged(ack, now)
                elif step == "time":
                    window.expired(now)
                    while window.hasLost():
                        window.retransmit(now)
                else:
                    one = window.arrivedNext(reported, now) if window is quick else None
                    arrived = window.piggybackReceived(reported, now) if one is None else [one]
                    found.append(None if arrived is None else [each.ordinal for each in arrived])
            self.assertEqual(found[:1], found[1:])
            self.assertEqual(self.known(quick), self.known(usual))
        self.assertEqual(counters[0].named(), counters[1].named())

    def test_resentBefore(self) -> None:
        """A segment older than a received retransmission is overtaken on either path."""
        windows = [SendWindow(_FIRST, ModuleCounters(), 5.0) for _each in range(2)]
        for number, window in enumerate(windows):
            for _each in range(2):
                window.add(Sent(FRAG, 0, b"", None), DATA, 0.0)
            second = BTLSegment(ACK, 0, 0, _FIRST - 1, payload=b"\1", latest=_FIRST + 1, latestAttempt=1)
            window.acknowledged(second, 0.4)
            for _each in range(2):
                window.add(Sent(FRAG, 0, b"", None), DATA, 0.81)
            window.expired(0.81)
            self.assertTrue(window.hasLost())
            window.retransmit(0.81)
            window.acknowledged(BTLSegment(ACK, 0, 0, _FIRST + 1, latest=_FIRST, latestAttempt=2), 1.2)
            if number or window.arrivedNext(_FIRST + 2, 1.2) is None:
                window.piggybackReceived(_FIRST + 2, 1.2)
        self.assertEqual(*map(self.known, windows))

    def known(self, window: SendWindow) -> tuple[object, ...]:
        """Return the state of a window."""
        trips = [
            (each.smoothed, each.timeout, each.base, each.overtaken())
            for each in [channel.roundTrip for channel in window.paths[0].channels]
        ]
        return (
            *(window.base, window.outstanding, window.inFlight, window.paths[0].congestion.size),
            *(window.deadline(), window.hasLost(), trips),
        )


def _plain(value: object) -> object:
    return bytes(value) if isinstance(value, memoryview) else value
