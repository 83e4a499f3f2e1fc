"""
The data flow of a connection: its fast path has the same effects as its general path.
"""

from __future__ import annotations

import sys
from itertools import count, permutations
from typing import Any, cast, NoReturn

from hypothesis import example, given
from hypothesis import strategies as st

from twisted.internet.interfaces import IProtocol
from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.types import RKey
from txrdma.iba.verbs import Capacity, SendRequest
from txrdma.smc.common import counting
from txrdma.smc.flow.flow import _EARLY as EARLY
from txrdma.smc.flow.flow import ENDS, Flow
from txrdma.smc.flow.ring import Ring
from txrdma.smc.flow.sendqueue import LinkSendQueue, RemoteBuffer, SIGNAL_EVERY
from txrdma.smc.group.sendscheduler import SendScheduler
from txrdma.smc.wire.cdc import CDC_START
from txrdma.test.support.compiled import skipIfCompiled

_SIZE = 32
_RING = (
    *("arrived", "consumed", "receivedSequence", "mayArrive", "peerConsumed", "peerFlags"),
    *("blocked", "base", "ackBase"),
)
_FLOW = ("isDirty", "isBlocked", "peerState", "messagesReceived")

_ANNOUNCED = st.tuples(
    st.sampled_from([1, 1, 1, 1, 2, 0, -1]),  # advance of the sequence number
    st.sampled_from([1, 3, 9, 16, 0, 30]),  # advance of the producer cursor, from what was written
    st.sampled_from([0, 0, 1, 5]),  # advance of the consumer cursor, from what was read
    st.sampled_from([0, 0, 0, 0, 0x80, 0x10]),
    st.sampled_from([0, 0, 0, 0, 0, 0, 0x80]),
    st.sampled_from(["", "pause", "resume", "produce", "announce", "announce"]),
    st.sampled_from([0] * 40 + [-1, 1]),  # additional bytes, which are invalid
)


class Reported:
    """A stream and its application, which record notifications."""

    flow: Flow

    def __init__(self) -> None:
        self.log: list[object] = []
        self.isPosted = True

    def dataReceived(self, data: bytes) -> None:
        self.log.append(data)

    def stateReceived(self, state: int) -> None:
        self.flow.peerState = state
        self.log.append(state)

    def violated(self, what: str) -> None:
        self.log.append(what)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.log.append((name, *arguments))


class Accumulating(Reported):
    """A stream that accumulates state flags, as C{LinkedStream} does."""

    def stateReceived(self, state: int) -> None:
        super().stateReceived(self.flow.peerState | state)


def begun(size: int = _SIZE, kind: type[Reported] = Reported) -> tuple[Flow, Reported]:
    """Return a flow that receives messages into a ring of C{size} bytes, and its recorder."""
    reported = kind()
    queue = LinkSendQueue(None, Capacity(maxInline=1 << 30), lambda: None)  # type: ignore[arg-type]  # copies nothing
    flow = Flow(queue, memoryview(bytes(number & 0xFF for number in range(size))), [], reported)
    flow.protocol = cast(IProtocol, reported)
    reported.flow = flow
    flow.attach(RemoteBuffer(queue, 0, RKey(0)), _SIZE, 7)
    flow.begin()
    return flow, reported


class EarlyTests(SynchronousTestCase):
    """Messages before the local handshake has completed."""

    def test_most(self) -> None:
        """A bounded number is queued, and the latest one, which includes the cursors of all, is the last."""
        queue = LinkSendQueue(None, Capacity(maxInline=1 << 30), lambda: None)  # type: ignore[arg-type]  # posts nothing
        flow = Flow(queue, memoryview(bytes(_SIZE)), [], Reported())
        for number in range(200):
            flow.received((number,))
        assert flow.early is not None
        self.assertEqual([number for (number,) in flow.early], [*range(EARLY - 1), 199])


class ReceivedTests(SynchronousTestCase):
    """The fast path of received messages has the same effects as the general path."""

    @given(st.lists(_ANNOUNCED, min_size=10, max_size=30))
    @example(
        [
            (1, more, 0, 0, 0, what, 0)
            for more, what in ((25, ""), (1, "announce"), (9, "pause"), (1, "resume"))
        ]
    )
    def test_fastPathEqualsGeneralPath(self, steps: list[tuple[int, int, int, int, int, str, int]]) -> None:
        (one, here), (other, there) = begun(), begun()
        sequence = written = read = 0
        for number, more, taken, flags, state, what, beside in steps:
            for flow in (one, other):
                if what in ("pause", "resume"):
                    flow.isPaused = what == "pause"
                elif what == "produce":
                    flow.ring.take(5, 5)
                elif what == "announce":
                    flow.ring.message()
            sequence, written = sequence + number, written + more + (beside < 0) * -more - (beside < 0)
            read = min(read + taken, one.ring.produced) + (beside > 0)
            written = max(written, 0)
            message = (
                *(CDC_START, sequence & 0xFFFF, 7, written // _SIZE & 0xFFFF, written % _SIZE),
                *(read // _SIZE & 0xFFFF, read % _SIZE, flags << 8 | state),
            )
            one.received(message)
            other._receivedOther(message)
            mine, others = ([each for each in log if each != ("drained",)] for log in (here.log, there.log))
            self.assertEqual(mine, others)
            for name in _RING:
                self.assertEqual(getattr(one.ring, name), getattr(other.ring, name), name)
            for name in _FLOW:
                self.assertEqual(getattr(one, name), getattr(other, name), name)
            if any(isinstance(each, str) for each in mine):
                break  # it has ended
            written, read = one.ring.arrived, one.ring.peerConsumed


class UnreadTests(SynchronousTestCase):
    def test_bytesWithoutReaderAreDropped(self) -> None:
        """A few bytes are dropped if there is no protocol, or if it wants no more."""
        for name, value in (("protocol", None), ("discardsInput", True)):
            flow, reported = begun()
            setattr(flow, name, value)
            flow.received((CDC_START, 1, 7, 0, 5, 0, 0, 0))
            self.assertEqual((flow.dropped, flow.ring.consumed), (5, 5), name)
            self.assertEqual(reported.log, [("drained",)], name)


class OrderTests(SynchronousTestCase):
    """Messages of a connection whose links are polled in any order."""

    def test_anyOrder(self) -> None:
        """In any order of messages, all bytes are delivered once and in order, and the last state counts."""
        count, length = 5, 6
        messages = [
            (CDC_START, number, 7, 0, length * number, 0, 0, ENDS if number == count else 0)
            for number in range(1, count + 1)
        ]
        expected = bytes(range(length * count))
        for order in permutations(messages):
            flow, reported = begun(kind=Accumulating)
            for message in order:
                flow.received(message)
            received = [each for each in reported.log if isinstance(each, bytes)]
            self.assertEqual(b"".join(received), expected, order)
            self.assertEqual((flow.peerState, flow.ring.receivedSequence), (ENDS, count), order)
            self.assertEqual([each for each in reported.log if isinstance(each, str)], [], order)


class ResigningTests(SynchronousTestCase):
    def test_unsentBytesAreLostWhenPeerHasClosed(self) -> None:
        """A stream learns that its peer has closed if bytes are left that cannot be sent, and only then."""
        for written, expected in ((bytes(100), [("peerHasClosed",)]), (b"", [])):
            flow, reported = begun()
            flow.write(written)
            flow.peerState = ENDS
            reported.log.clear()
            flow.resign()
            self.assertEqual(reported.log, expected)


class CountedTests(SynchronousTestCase):
    def test_longDeliveryCountsInClassOfItsSize(self) -> None:
        flow, reported = begun(1 << 15)
        before = list(counting.read)
        for number, end in enumerate((1 << 14, (1 << 14) + 10_000), 1):
            flow.received((CDC_START, number, 7, 0, end, 0, 0, 0))
        self.assertEqual([len(data) for data in reported.log if isinstance(data, bytes)], [1 << 14, 10_000])
        self.assertEqual(
            [after - each for after, each in zip(counting.read, before, strict=True)][13:16], [0, 2, 0]
        )


class FullLane:
    """A lane that provides the peer's memory, and accepts no message."""

    def __init__(self) -> None:
        self.target = bytearray(_SIZE)

    def targetOf(self, rkey: RKey, address: int, length: int) -> tuple[memoryview, memoryview]:
        return memoryview(self.target), memoryview(b"\1")

    def putMessage(self, identifier: int, signaled: bool, message: bytes) -> bool:
        return False


class OpenLane(FullLane):
    """A lane that accepts every message."""

    def __init__(self) -> None:
        super().__init__()
        self.messages: list[tuple[int, bool, bytes]] = []

    def putMessage(self, identifier: int, signaled: bool, message: bytes) -> bool:
        self.messages.append((identifier, signaled, bytes(message)))
        return True


class SentTests(SynchronousTestCase):
    """Messages sent on the fast path."""

    def test_messageThatLaneRefusesIsPostedAfterItsBytes(self) -> None:
        flow, _ = begun()
        lane: Any = FullLane()
        flow.queue.openLane(lane)
        flow.queue.limit = 10
        flow.write(b"one")
        flow.fill([])  # requests the address of the peer's memory
        flow.write(b"two")
        flow.write(b"three")
        requests: list[SendRequest] = []
        self.assertTrue(flow.send(requests))
        self.assertEqual(lane.target[:11], b"onetwothree")
        self.assertEqual([(each.identifier, each.inline[0][2:4]) for each in requests], [(2, b"\0\2")])
        self.assertEqual((flow.backlog, flow.pending, flow.last, flow.written), (0, [], 2, 2))

    def test_signaled(self) -> None:
        """Only every eighth request is signaled: its completion includes that of all requests before it."""
        flow, _ = begun()
        lane: Any = OpenLane()
        flow.queue.openLane(lane)
        flow.queue.limit = 1000
        flow.write(b"first")
        flow.fill([])
        for _each in range(4 * SIGNAL_EVERY):
            flow.ring.peerConsumed = flow.ring.produced
            flow.write(b"x")
            flow.isDirty = False
            if not flow.send([]):
                flow.fill([])
        signaled = [identifier for identifier, isSignaled, _ in lane.messages if isSignaled]
        self.assertEqual(signaled, [SIGNAL_EVERY * number for number in range(1, 5)])

    def test_fullWindowAvoidsFastPath(self) -> None:
        flow, _ = begun()
        lane: Any = FullLane()
        flow.queue.openLane(lane)
        flow.write(b"one")
        flow.fill([])
        flow.queue.limit = flow.queue.sent
        flow.write(b"two")
        self.assertFalse(flow.send([]))
        self.assertEqual((lane.target[:6], flow.backlog), (b"one\0\0\0", 3))

    @given(
        st.lists(st.tuples(st.integers(0, 20), st.integers(0, 20)), max_size=30), st.booleans(), st.booleans()
    )
    @example([(20, 0), (5, 20), (11, 5), (9, 10)], False, True)
    def test_fastPathEqualsGeneralPath(
        self, steps: list[tuple[int, int]], isSignaling: bool, hasProducer: bool
    ) -> None:
        lanes: list[Any] = [OpenLane(), OpenLane()]
        flows = [begun()[0] for _ in lanes]
        for flow, lane in zip(flows, lanes, strict=True):
            flow.queue.openLane(lane)
            flow.queue.limit, flow.queue.isSignaling = 1000, isSignaling
            flow.write(b"first")
            flow.fill([])
            flow.hasProducer = hasProducer
        for number, (written, read) in enumerate(steps):
            for flow, isShort in zip(flows, (True, False), strict=True):
                flow.ring.peerConsumed = min(flow.ring.peerConsumed + read, flow.ring.produced)
                if written:
                    flow.write(bytes([number + 1]) * written)
                flow.isDirty = False
                if not (isShort and flow.send([])):
                    flow.fill([])
            self.assertEqual(lanes[0].target, lanes[1].target)
            self.assertEqual(lanes[0].messages, lanes[1].messages)
            for name in ("produced", "at", "blocked"):
                self.assertEqual(getattr(flows[0].ring, name), getattr(flows[1].ring, name), name)
            self.assertEqual(flows[0].backlog, flows[1].backlog)
            self.assertEqual(len(flows[0].queue.flushed), len(flows[1].queue.flushed))


class ExceptionTests(SynchronousTestCase):
    """An application raises in C{dataReceived}."""

    def test_retainedExceptionRetainsNoBuffer(self) -> None:
        flow, reported = begun()
        memory = bytearray(_SIZE)
        flow._view = memoryview(memory)
        raised: list[BaseException | None] = []

        def fail(data: bytes) -> NoReturn:
            raise ZeroDivisionError

        application = cast(Any, reported)
        application.dataReceived, application.blame = fail, lambda _: raised.append(sys.exc_info()[1])
        flow.ring.arrived = 5
        flow.deliver()
        flow.release()
        self.assertEqual(list(map(type, raised)), [ZeroDivisionError])
        memory.append(0)  # impossible while there are views of it


class RetainedTests(SynchronousTestCase):
    """Bytes are retained until the peer has them, because another link may have to retransmit them."""

    def setUp(self) -> None:
        self.flow, _ = begun()
        self.flow.queue.retain()
        self.flow.retain()
        self.flow.queue.limit = 100
        self.write(bytes(20))
        self.flow.ring.peerConsumed = 20

    def write(self, data: bytes) -> list[SendRequest]:
        """Return the requests that send these bytes and a message."""
        requests: list[SendRequest] = []
        self.flow.write(data)
        self.flow.isDirty = False
        self.flow.fill(requests)
        return requests

    def places(self, requests: list[SendRequest]) -> list[tuple[int, bytes]]:
        """Return the addresses of RDMA WRITEs, and their bytes."""
        return [
            (each.remoteAddress, b"".join(each.inline)) for each in requests if each.remoteAddress is not None
        ]

    def test_wrappedBytesAreRetained(self) -> None:
        data = bytes(range(1, 21))
        requests = self.write(data)
        self.assertEqual(self.places(requests)[:2], [(20, data[:12]), (0, data[12:])])
        assert self.flow.queue.unacknowledged is not None
        self.assertEqual(b"".join(self.flow.queue.unacknowledged[-1][4]), data)

    def test_retainedBytesAreRepeatedOnOtherLink(self) -> None:
        data = bytes(range(1, 21))
        self.write(data)
        self.moved()
        requests: list[SendRequest] = []
        self.flow.fill(requests)
        self.assertEqual(self.places(requests[1:3]), [(1020, data[:12]), (1000, data[12:])])

    def moved(self) -> None:
        """Move the flow to another link, with all unacknowledged messages but the first."""
        assert self.flow.queue.unacknowledged is not None
        retained = list(self.flow.queue.unacknowledged)[1:]
        queue = LinkSendQueue(None, Capacity(maxInline=1 << 30), lambda: None)  # type: ignore[arg-type]  # copies nothing
        queue.limit = 100
        self.flow.move(RemoteBuffer(queue, 1000, RKey(9)), retained)

    def interrupt(self, owner: type, name: str, number: int) -> None:
        """Flush the flow, while the call of this number of a method raises."""
        skipIfCompiled()
        calls, usual = count(1), getattr(owner, name)

        def call(*arguments: Any) -> Any:
            if next(calls) == number:
                raise ZeroDivisionError("a test's")
            return usual(*arguments)

        patched = self.patch(owner, name, call)
        requests: list[SendRequest] = []
        SendScheduler._fillOne(cast(Any, None), self.flow, requests)
        patched.restore()
        self.assertEqual(requests, [])
        self.flow.drop()

    def test_interruptedBytesAreNotRetained(self) -> None:
        """Another link repeats posted bytes at their offsets, after an exception for later ones."""
        data = bytes(range(1, 5))
        for owner, name, number in (
            (LinkSendQueue, "write", 2),
            (Ring, "message", 1),
            (Flow, "_request", 1),
        ):
            self.setUp()
            self.write(data)
            self.flow.write(bytes(range(100, 112)))
            self.interrupt(owner, name, number)
            self.moved()
            requests: list[SendRequest] = []
            self.flow.fill(requests)
            self.assertEqual(self.places(requests[1:]), [(1020, data)], name)

    def test_interruptedRepetition(self) -> None:
        """After an exception, another link validates and repeats all bytes before it announces them."""
        data = bytes(range(1, 21))
        for number in 1, 2:
            self.setUp()
            self.write(data)
            self.moved()
            self.interrupt(LinkSendQueue, "write", number)
            requests: list[SendRequest] = []
            self.flow.fill(requests)
            self.assertEqual(len(requests), 3)
            self.assertEqual(self.places(requests[1:]), [(1020, data[:12]), (1000, data[12:])])
