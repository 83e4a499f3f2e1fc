"""
The data flow of a connection: its short way of usual messages against its way of all.
"""

from __future__ import annotations

from typing import Any

from hypothesis import example, given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.types import RKey
from txrdma.iba.verbs import Capacity, SendRequest
from txrdma.smc.group.posting import Bearing, Poster
from txrdma.smc.stream._flow import Flow
from txrdma.smc.wire.cdc import CDC_START

_SIZE = 32
_RING = (
    *("arrived", "consumed", "heard", "mayArrive", "peerConsumed", "peerFlags"),
    *("blocked", "base", "ackBase"),
)
_FLOW = ("isDirty", "isBlocked", "peerState", "messagesReceived")

_SAID = st.tuples(
    st.sampled_from([1, 1, 1, 1, 2, 0, -1]),  # numbers on
    st.sampled_from([1, 3, 9, 16, 0, 30]),  # bytes on, of what was written
    st.sampled_from([0, 0, 1, 5]),  # bytes on, of what was read, as far as there are any
    st.sampled_from([0, 0, 0, 0, 0x80, 0x10]),
    st.sampled_from([0, 0, 0, 0, 0, 0, 0x80]),
    st.sampled_from(["", "pause", "resume", "produce", "tell", "tell"]),
    st.sampled_from([0] * 40 + [-1, 1]),  # bytes beside: what cannot be
)


class Told:
    """A stream, and its application: what they hear."""

    flow: Flow

    def __init__(self) -> None:
        self.log: list[object] = []
        self.isPosted = True

    def dataReceived(self, data: bytes) -> None:
        self.log.append(data)

    def heard(self, state: int) -> None:
        self.flow.peerState = state
        self.log.append(state)

    def violated(self, what: str) -> None:
        self.log.append(what)

    def __getattr__(self, name: str) -> Any:
        return lambda *arguments: self.log.append((name, *arguments))


def begun() -> tuple[Flow, Told]:
    """A flow that takes messages, and who hears of them."""
    told = Told()
    poster = Poster(None, Capacity(maxInline=1 << 30), lambda: None)  # type: ignore[arg-type]  # copies nothing
    flow = Flow(poster, memoryview(bytes(range(_SIZE))), [], told)
    flow.protocol = told
    told.flow = flow
    flow.attach(Bearing(poster, 0, RKey(0)), _SIZE, 7)
    flow.begin()
    return flow, told


class ReceivedTests(SynchronousTestCase):
    """What comes the short way does what it does on the other."""

    @given(st.lists(_SAID, min_size=20, max_size=60))
    @example(
        [(1, more, 0, 0, 0, what, 0) for more, what in ((25, ""), (1, "tell"), (9, "pause"), (1, "resume"))]
    )
    def test_same(self, steps: list[tuple[int, int, int, int, int, str, int]]) -> None:
        """Messages of any kind, true ones and others, leave a flow as its way of all messages leaves it."""
        (one, here), (other, there) = begun(), begun()
        sequence = written = read = 0
        for number, more, taken, flags, state, what, beside in steps:
            for flow in (one, other):
                if what in ("pause", "resume"):
                    flow.isPaused = what == "pause"
                elif what == "produce":
                    flow.ring.take(5, 5)
                elif what == "tell":
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


class FullLane:
    """A lane that gives the peer's memory, and takes no message."""

    def __init__(self) -> None:
        self.target = bytearray(_SIZE)

    def targetOf(self, rkey: RKey, address: int, length: int) -> tuple[memoryview, memoryview]:
        return memoryview(self.target), memoryview(b"\1")

    def putMessage(self, identifier: int, signaled: bool, message: bytes) -> bool:
        return False


class SentTests(SynchronousTestCase):
    """What is sent the short way."""

    def test_fullLane(self) -> None:
        """A message that the lane does not take is posted at once, behind its bytes and with its number."""
        flow, _ = begun()
        lane: Any = FullLane()
        flow.poster.openLane(lane)
        flow.poster.limit = 10
        flow.writeSequence([b"one"])
        flow.fill([])  # asks where the peer's memory is
        flow.writeSequence([b"two", b"three"])
        requests: list[SendRequest] = []
        self.assertTrue(flow.send(requests))
        self.assertEqual(lane.target[:11], b"onetwothree")
        self.assertEqual([(each.identifier, each.inline[0][2:4]) for each in requests], [(2, b"\0\2")])
        self.assertEqual((flow.backlog, flow.pending, flow.last, flow.written), (0, [], 2, 2))

    def test_fullWindow(self) -> None:
        """Without room for a message nothing goes the short way."""
        flow, _ = begun()
        lane: Any = FullLane()
        flow.poster.openLane(lane)
        flow.writeSequence([b"one"])
        flow.fill([])
        flow.poster.limit = flow.poster.sent
        flow.writeSequence([b"two"])
        self.assertFalse(flow.send([]))
        self.assertEqual((lane.target[:6], flow.backlog), (b"one\0\0\0", 3))
