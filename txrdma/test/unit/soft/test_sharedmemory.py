"""
The messages by which processes establish shared memory.
"""

from __future__ import annotations

import fcntl
import mmap
import os
from collections.abc import Callable
from typing import Any, cast

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import WireError
from txrdma.iba.types import GID, QPN, RKey
from txrdma.iba.verbs import Operation, Status
from txrdma.kit.wire import Layout
from txrdma.sim.sharedmemory import SimulatedMemory
from txrdma.soft.core.doorbellpage import DOORBELL_BYTES
from txrdma.soft.core.memory import PAGE
from txrdma.soft.shared._layout import HEADER_BYTES, PLAIN
from txrdma.soft.shared._rendezvous import (
    AccessReply,
    AccessRequest,
    decode,
    DoorbellNotice,
    Hello,
    Join,
    MAGIC,
    makeBox,
    mapBox,
    mapDoorbells,
    mapRegion,
    PairNotice,
    Reach,
    RegionReply,
    RegionRequest,
    RendezvousKind,
)
from txrdma.soft.shared._rings import RingPair
from txrdma.test.support.soft.pairs import End
from txrdma.unix.mapping import closeMapping, SIZE_SEALS


class BoxTests(SynchronousTestCase):
    """The memory of one direction of a connection."""

    def test_firstMessagesUseOnePageOfEachBox(self) -> None:
        descriptor, mapping = makeBox(1 << 20)
        self.addCleanup(os.close, descriptor)
        rings = RingPair(memoryview(mapping))
        self.addCleanup(rings.close)
        mapping[0] = 0  # the words of the header
        for _ in range(16):
            self.assertTrue(rings.append(PLAIN, 0, (b"x" * 40,), 40))
        self.assertEqual(os.fstat(descriptor).st_blocks * 512, 4096)


class SealTests(SynchronousTestCase):
    """Memory of a peer, whose process could shrink it under this one."""

    def memory(self, length: int, seals: int) -> int:
        descriptor = os.memfd_create("txrdma test", os.MFD_ALLOW_SEALING)
        self.addCleanup(os.close, descriptor)
        os.ftruncate(descriptor, length)
        fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
        return descriptor

    def test_resizableMemoryIsRefused(self) -> None:
        """Boxes, doorbell pages and regions are mapped only if their size cannot change."""
        reply = RegionReply(
            kind=RendezvousKind.REGION_REPLY, reach=Reach.MAPPED, address=PAGE, length=9, validOffset=PAGE
        )
        cases: tuple[tuple[int, Callable[[int], mmap.mmap]], ...] = (
            (HEADER_BYTES + PAGE, mapBox),
            (DOORBELL_BYTES, mapDoorbells),
            (2 * PAGE, lambda descriptor: mapRegion(reply, descriptor)[0]),
        )
        for length, mapIt in cases:
            for seals in (0, fcntl.F_SEAL_SHRINK, fcntl.F_SEAL_GROW):
                with self.assertRaisesRegex(ValueError, "not sealed"):
                    mapIt(self.memory(length, seals))
            closeMapping(mapIt(self.memory(length, SIZE_SEALS)))


class StoppedTests(SynchronousTestCase):
    """The first request over shared memory to a process that does not run."""

    def setUp(self) -> None:
        self.reactor = cast(Any, MemoryReactorClock())
        memory = SimulatedMemory(self.reactor)
        self.one, self.other = (End(memory.device(self.reactor, f"127.0.0.{number}")) for number in (2, 3))
        self.addCleanup(self.other.device.close)
        self.addCleanup(self.one.device.close)
        self.one.join(self.other)
        self.reactor.advance(0)

    def post(self) -> None:
        """Post a request while the peer does not run, for longer than all retries take."""
        self.other.device.routes[0].rest()
        self.one.post(1, Operation.SEND, [self.one.segment(0, 5)])
        self.reactor.pump([0.01] * 2 + [1] * 100)

    def statuses(self) -> list[Status]:
        return [each.status for _ in range(10) for each in self.one.queue.poll(2)]

    def test_requestWaitsForStoppedProcess(self) -> None:
        self.other.join(self.one)
        self.other.receive(1, 0, 64)
        self.post()
        self.assertEqual(self.statuses(), [])
        self.other.device.routes[0].wake()
        self.reactor.pump([0.01] * 5)
        self.assertEqual(len(self.other.queue.poll(1)), 1)
        self.assertEqual(self.statuses(), [Status.SUCCESS])

    def test_requestFailsIfRunningProcessDoesNotConnect(self) -> None:
        self.post()
        self.other.device.routes[0].wake()
        self.reactor.pump([0.01] * 5)
        self.assertEqual(self.statuses(), [])
        self.reactor.pump([1] * 3)
        self.assertEqual(self.statuses(), [Status.RETRY_EXC_ERR])

    def test_answerThatArrivedWhileThisProcessWasStoppedIsRead(self) -> None:
        self.other.join(self.one)
        self.other.receive(1, 0, 64)
        self.one.post(1, Operation.SEND, [self.one.segment(0, 5)])
        line = next(iter(cast(Any, self.one.device.routes[0])._links))
        line._isReading = False  # a timer precedes the socket in the reactor's iteration
        self.reactor.pump([0.01] * 2 + [1] * 3)
        line._isReading = True
        self.reactor.pump([100] + [0.01] * 5)
        self.assertEqual(len(self.other.queue.poll(1)), 1)
        self.assertEqual(self.statuses(), [Status.SUCCESS])


class MessageTests(SynchronousTestCase):
    def test_roundTrip(self) -> None:
        names: dict[str, Any] = {"source": QPN(0x123456), "destination": QPN(0x654321)}
        messages: list[tuple[Layout, bytes]] = [
            (
                Hello(kind=RendezvousKind.HELLO, magic=MAGIC, version=1, port=4791, address=GID(bytes(16))),
                b"",
            ),
            (Join(kind=RendezvousKind.JOIN, firstPSN=5, receives=1, sends=1 << 31, **names), b""),
            (DoorbellNotice(kind=RendezvousKind.DOORBELL, number=0xFFFFFFFF), b""),
            (PairNotice(kind=RendezvousKind.LEAVE, **names), b""),
            (PairNotice(kind=RendezvousKind.NUDGE, **names), b""),
            (RegionRequest(kind=RendezvousKind.REGION_REQUEST, rkey=RKey(0xFFFFFFFF), **names), b""),
            (
                RegionReply(
                    kind=RendezvousKind.REGION_REPLY, reach=Reach.MAPPED, address=1 << 63, length=5, **names
                ),
                b"",
            ),
            (AccessRequest(kind=RendezvousKind.ACCESS_REQUEST, writing=True, length=3, **names), b"abc"),
            (AccessRequest(kind=RendezvousKind.ACCESS_REQUEST, length=300, **names), b""),
            (AccessReply(kind=RendezvousKind.ACCESS_REPLY, allowed=True, length=3, **names), b"abc"),
        ]
        for message, rest in messages:
            decoded, content = decode(message.encode() + rest)
            self.assertEqual((decoded, bytes(content)), (message, rest))
            for length in range(len(message.encode() + rest)):
                self.assertRaises(WireError, decode, (message.encode() + rest)[:length])
            self.assertRaises(WireError, decode, message.encode() + rest + b"x")

    @settings(max_examples=300)
    @given(st.binary(max_size=100))
    def test_arbitraryBytesRaiseOnlyDecodingErrors(self, message: bytes) -> None:
        try:
            decode(message)
        except WireError:
            pass
