"""
Atomics over lanes of shared memory: executed once, in order, by the process that owns the memory.
"""

from __future__ import annotations

import random
import sys
from typing import Any

from twisted.trial.unittest import SkipTest

from txrdma.iba.verbs import (
    Access,
    AsyncEventKind,
    CompletionOpcode,
    Operation,
    QPAttributes,
    SendRequest,
    Status,
)
from txrdma.soft.shared import _atomics, _incoming, _lane
from txrdma.soft.shared._layout import ATOMIC_BYTES, CONSUMED, FIRST, Kind, RESULT_COUNT, WAKE, Wake
from txrdma.test.support.soft.lanes import LanesTestCase, ok, pair, send, spoil, WeaklyOrderedMixin

ADD, SWAP = Operation.FETCH_AND_ADD, Operation.COMPARE_AND_SWAP


class AtomicCase(LanesTestCase):
    """Two lanes, and their atomics."""

    def atomic(
        self, identifier: int, operation: Operation = ADD, offset: int = 0, at: int = 0, **more: Any
    ) -> SendRequest:
        """Return an atomic on the other end's memory; C{at} is where the previous value is stored."""
        return self.request(identifier, operation, at, 8, offset, **more)

    def word(self, view: memoryview, offset: int = 0) -> int:
        return int.from_bytes(view[offset : offset + 8], sys.byteorder)

    def put(self, value: int, offset: int = 0) -> None:
        self.other.memory.view[offset : offset + 8] = value.to_bytes(8, sys.byteorder)


class AtomicTests(AtomicCase):
    def test_resultIsScattered(self) -> None:
        self.put(0x0807060504030201)
        request = self.atomic(1)
        request.segments = [self.one.memory.segment(0, 3), self.one.memory.segment(10, 9)]
        self.one.post(request)
        self.turn()
        view = self.one.memory.view
        self.assertEqual(bytes(view[:3]) + view[10:15], bytes(self.other.memory.view[:8]))
        self.assertEqual(bytes(view[15:19]), bytes(4))

    def test_outstandingLimitAndOrder(self) -> None:
        count = 3 * RESULT_COUNT
        self.one.post(*(self.atomic(index, operand=1, at=index * 8) for index in range(count)))
        self.assertEqual(len(self.one.lane._outgoing._atomics), 4)
        for _ in range(count):
            self.turn()
        self.assertEqual(ok(self.one.sent), list(range(count)))
        self.assertEqual([self.word(self.one.memory.view, i * 8) for i in range(count)], list(range(count)))

    def test_atomicsAndMessagesKeepOrder(self) -> None:
        self.one.post(send(1, b"one"), self.atomic(2, operand=1), send(3, b"three"))
        self.turn()
        self.assertEqual((self.word(self.other.memory.view), self.one.sent), (0, []))
        self.other.receive(7, (1000, 100))
        self.turn()
        self.assertEqual(self.word(self.other.memory.view), 1)
        self.assertEqual(ok(self.one.sent), [1, 2])
        self.other.receive(8, (2000, 100))
        self.turn()
        self.assertEqual(ok(self.one.sent), [1, 2, 3])

    def test_readsAndWritesDoNotOvertakeAtomics(self) -> None:
        self.one.memory.view[:8] = (100).to_bytes(8, sys.byteorder)
        self.one.memory.view[8:16] = (500).to_bytes(8, sys.byteorder)
        self.one.post(self.request(1, Operation.RDMA_WRITE, 0))
        self.turn()  # the memory is mapped now: a write is done when posted
        self.put(0)
        self.one.post(
            self.request(2, Operation.RDMA_WRITE, 0),
            self.atomic(3, operand=1, at=16),
            self.request(4, Operation.RDMA_READ, 24),
            self.request(5, Operation.RDMA_WRITE, 8),
            self.atomic(6, operand=1, at=32),
        )
        self.one.post(self.request(7, Operation.RDMA_READ, 40))
        self.assertEqual(self.word(self.other.memory.view), 100)
        self.turn()
        self.assertEqual(
            [self.word(self.one.memory.view, at) for at in (16, 24, 32, 40)], [100, 101, 500, 501]
        )
        self.assertEqual(ok(self.one.sent), [1, 2, 3, 4, 5, 6, 7])

    def test_laterWriteDoesNotOvertakeAtomic(self) -> None:
        self.one.post(self.request(1, Operation.RDMA_WRITE, 0))
        self.turn()
        self.one.memory.view[:8] = b"written "
        for count in (1, 2):
            self.put(0)
            for identifier in range(count):
                self.one.post(self.atomic(identifier, operand=1, at=16 + 8 * identifier))
            self.one.post(send(8, b"."))
            self.other.receive(8, (1000, 8))
            self.one.post(self.request(9, Operation.RDMA_WRITE, 0))
            self.assertEqual(self.word(self.other.memory.view), 0)
            self.turn()
            self.assertEqual(self.word(self.one.memory.view, 8 + 8 * count), count - 1)
            self.assertEqual(self.other.memory.view[:8], b"written ")

    def test_unmappableMemory(self) -> None:
        self.other.mapped = False
        self.one.post(self.atomic(1, operand=3), self.request(2, Operation.RDMA_READ, 8))
        self.turn()
        self.assertEqual(self.word(self.one.memory.view, 8), 3)
        self.assertEqual(ok(self.one.sent), [1, 2])

    def test_sleepingPeerIsRungOrAskedToPoll(self) -> None:
        self.other.lane.arm(False, True, False)
        self.one.post(self.atomic(1, operand=1))
        self.assertEqual((self.one.rung, self.one.output), (["receives"], []))
        self.turn()
        for solicited in (False, True):
            self.other.lane.arm(False, solicited, solicited)
            self.one.post(self.atomic(2, operand=1))
            for _ in range(3):
                self.one.deliver()
            self.one.lane.poll()
        self.assertEqual(ok(self.one.sent), [1, 2, 2])
        self.assertEqual(self.one.rung, ["receives"])

    def test_requestDuringPollIsNotLost(self) -> None:
        if not (_lane.__file__ or "").endswith(".py"):
            raise SkipTest("compiled functions can't be patched")
        words = self.other.box.cast("Q")
        self.one.post(self.atomic(1, operand=1))

        def meanwhile() -> None:
            words[CONSUMED], later = 0, words[CONSUMED]
            self.one.post(self.atomic(2, operand=1))
            words[CONSUMED] = later

        self.patch(_lane, "barrier", meanwhile)
        (read,) = self.one.output
        self.one.output.clear()
        read()
        self.assertEqual((self.word(self.other.memory.view), self.one.output), (2, []))

    def test_bothDirectionsInAnyPollOrder(self) -> None:
        for seed in range(20):
            chance = random.Random(seed)
            self.one, self.other = sides = pair()
            done = [0, 0]
            for _ in range(200):
                which = chance.randrange(2)
                side, peer = sides[which], sides[1 - which]
                if chance.random() < 0.4 and done[which] < 40:
                    done[which] += 1
                    side.post(
                        SendRequest(
                            done[which],
                            ADD,
                            segments=[side.memory.segment(8 * done[which], 8)],
                            remoteAddress=peer.memory.address,
                            rkey=peer.memory.rkey,
                            operand=1,
                        )
                    )
                else:
                    chance.choice((side.lane.poll, side.deliver))()
            self.turn()
            for which, side in enumerate(sides):
                self.assertEqual(self.word(sides[1 - which].memory.view), done[which], f"seed {seed}")
                self.assertEqual(ok(side.sent), list(range(1, done[which] + 1)))
                results = [self.word(side.memory.view, 8 + 8 * index) for index in range(done[which])]
                self.assertEqual(results, list(range(done[which])), f"seed {seed}")


class WeaklyOrderedTests(WeaklyOrderedMixin, AtomicTests):
    """The tests of L{AtomicTests} with the memory fences of weakly ordered machines."""


class RefusedTests(AtomicCase):
    """Invalid atomics end with the same status as over RoCE v2."""

    def refused(self, request: SendRequest, status: Status) -> None:
        """Assert that the request ends with this status, both ends fail, and memory is unchanged."""
        before = bytes(self.other.memory.view)
        self.other.receive(7, (0, 100))
        self.other.receive(8, (0, 100))
        self.one.post(send(1, b""), request, send(3, b"late"))
        self.turn()
        self.assertEqual(
            [(c.identifier, c.status) for c in self.one.sent], [(1, Status.SUCCESS), (2, status)]
        )
        self.assertEqual(self.one.flushed, [(3, CompletionOpcode.SEND)])
        self.assertEqual(ok(self.other.received), [7])
        event = {
            Status.REM_ACCESS_ERR: AsyncEventKind.QP_ACCESS_ERROR,
            Status.REM_INV_REQ_ERR: AsyncEventKind.QP_REQUEST_ERROR,
        }
        self.assertEqual(self.other.events, [event[status]])
        self.assertEqual(bytes(self.other.memory.view), before)

    def test_peerHoldsNoResults(self) -> None:
        self.setWords(self.other, maxDestRDAtomic=0)
        self.refused(self.atomic(2, operand=1), Status.REM_INV_REQ_ERR)

    def setWords(self, side: Any, **changes: Any) -> None:
        attributes = {name: getattr(side.attributes, name) for name in side.attributes.given()}
        side.attributes = QPAttributes(**{**attributes, **changes})

    def test_noneMayBeOutstanding(self) -> None:
        for request in (self.atomic(2), self.request(2, Operation.RDMA_READ, 0)):
            self.one, self.other = pair()
            request.rkey = self.other.memory.rkey
            self.setWords(self.one, maxRDAtomic=0)
            self.one.post(request, send(3, b"late"))
            self.turn()
            self.assertEqual([c.status for c in self.one.sent], [Status.LOC_QP_OP_ERR])
            self.assertEqual(self.one.flushed, [(3, CompletionOpcode.SEND)])
            self.assertEqual(self.other.events, [])

    def test_resultNeedsEightWritableLocalBytes(self) -> None:
        readOnly = self.one.keys.register(self.one.domain, memoryview(bytearray(8)), Access.NONE)
        for segment, status in (
            (self.one.memory.segment(0, 7), Status.LOC_LEN_ERR),
            (self.one.memory.segment(0, 1 << 20), Status.LOC_PROT_ERR),
            (readOnly.segment(), Status.LOC_PROT_ERR),
        ):
            one, self.other = pair()
            one.keys, one.domain, one.memory = self.one.keys, self.one.domain, self.one.memory
            request = self.atomic(2, operand=1)
            request.segments = [segment]
            one.post(self.atomic(1, operand=1), request)
            for _ in range(20):
                one.lane.poll()
                one.deliver()
                self.other.lane.poll()
            self.assertEqual([c.status for c in one.sent], [Status.SUCCESS, status])
            self.assertEqual(self.word(self.other.memory.view), 1)

    def test_peerDeathEndsPendingAtomics(self) -> None:
        self.one.post(self.atomic(1, operand=1), self.atomic(2, operand=1))
        self.one.lane.peerEnded(AsyncEventKind.QP_FATAL)
        self.assertEqual([c.status for c in self.one.sent], [Status.RETRY_EXC_ERR])
        self.assertEqual(self.one.flushed, [(2, CompletionOpcode.FETCH_AND_ADD)])
        self.assertEqual(self.one.memory.view[:8], bytes(8))

    def test_resultBeforePeerDeathCounts(self) -> None:
        self.put(9)
        self.one.post(self.atomic(1, operand=1))
        self.other.lane.poll()
        self.one.lane.peerEnded(AsyncEventKind.QP_FATAL)
        self.assertEqual(ok(self.one.sent), [1])
        self.assertEqual(self.word(self.one.memory.view), 9)


class ScribbledTests(AtomicCase):
    """A peer that writes invalid values."""

    def test_arbitraryBytesStayInBounds(self) -> None:
        for seed in range(200):
            self.scribble(seed)

    def scribble(self, seed: int) -> None:
        chance = random.Random(seed)
        sides = self.one, self.other = pair()
        for side in sides:
            side.memory.view[:] = b"\xa5" * side.memory.length
        for step in range(60):
            which = chance.randrange(2)
            side, peer = sides[which], sides[1 - which]
            if side.events:
                break
            what = chance.random()
            if what < 0.4:
                operation = chance.choice((ADD, SWAP))
                request = self.atomic(step, operation, operand=1, fence=chance.random() < 0.3)
                request.segments = [side.memory.segment(1024, 8)]
                request.remoteAddress, request.rkey = peer.memory.address + 2048, peer.memory.rkey
                if chance.random() < 0.3:
                    request.operation = Operation.RDMA_READ
                side.post(request)
            elif what < 0.5:
                side.post(send(step, bytes(chance.choice((0, 50, 1500)))))
                peer.receive(step, (2048, 8))
            elif what < 0.8:
                side.lane.poll()
                side.deliver()
            elif what < 0.85:
                side.lane.expired(step)
            else:
                spoil(chance, chance.choice(sides).box)
        self.turn()
        for side in sides:
            view = side.memory.view
            for begin, end in ((0, 1024), (1032, 2048), (2056, side.memory.length)):
                self.assertEqual(view[begin:end], b"\xa5" * (end - begin), f"seed {seed}")

    def record(self, header: int, content: bytes = b"") -> None:
        """Assert that the record fails its queue pair, and does not change local memory."""
        one, other = pair()
        other.receive(1, (0, 100))
        content = content or _atomics.packed(other.memory.address, other.memory.rkey, 1, 0).tobytes()
        one.box[FIRST * 8 + 8 : FIRST * 8 + 8 + len(content)] = content
        one.box.cast("Q")[FIRST] = header
        other.lane.poll()
        self.assertEqual(other.events, [AsyncEventKind.QP_REQUEST_ERROR])
        self.assertEqual(bytes(other.memory.view), bytes(other.memory.length))

    def test_invalidRecordsAreRefused(self) -> None:
        kind = Kind.ATOMIC << 24
        for length in (0, 31, 33, 500):
            self.record(int(ADD) << 32 | kind | length)
        for flag in (8, 16, 32, 64, 128):
            self.record(int(ADD) << 32 | kind | flag << 24 | ATOMIC_BYTES)
        for operation in (0, 4, 7, 1 << 31):
            self.record(operation << 32 | kind | ATOMIC_BYTES)

    def test_atomicBetweenPartsOfMessage(self) -> None:
        self.other.receive(1, (0, 4000))
        words = self.one.box.cast("Q")
        words[FIRST] = Kind.SEND << 24 | 16 << 24 | 56
        content = _atomics.packed(self.other.memory.address, self.other.memory.rkey, 1, 0)
        self.one.box[FIRST * 8 + 72 : FIRST * 8 + 72 + 32] = content
        words[FIRST + 8] = int(ADD) << 32 | Kind.ATOMIC << 24 | ATOMIC_BYTES
        self.other.lane.poll()
        self.assertEqual(self.other.events, [AsyncEventKind.QP_REQUEST_ERROR])

    def test_endlessRecordsEndPoll(self) -> None:
        if not (_incoming.__file__ or "").endswith(".py"):
            raise SkipTest("compiled functions can't be patched")
        rings = self.other.lane._incoming._rings
        words = self.one.box.cast("Q")
        content = _atomics.packed(self.other.memory.address, self.other.memory.rkey, 1, 0).tobytes()
        places = range(FIRST, rings.peerEnd, 8)  # each record takes one line of 64 bytes
        for at in places:
            self.one.box[at * 8 + 8 : at * 8 + 8 + len(content)] = content
            words[at] = int(ADD) << 32 | Kind.ATOMIC << 24 | ATOMIC_BYTES
        count = 0

        def bounded(*arguments: Any) -> Any:
            nonlocal count
            count += 1
            if count > 2 * len(places):
                raise AssertionError("the poll does not end")
            return execute(*arguments)

        execute = _atomics.execute
        self.patch(_incoming, "execute", bounded)
        self.other.lane.poll()
        self.assertGreater(count, 0)
        self.assertLessEqual(count, len(places) + 1)

    def test_inventedWakeFlagsStillRequestPoll(self) -> None:
        self.other.box.cast("Q")[WAKE] = 0xFF & ~Wake.RECEIVES
        self.one.post(self.atomic(1, operand=1))
        self.one.deliver()
        self.assertEqual(self.word(self.other.memory.view), 1)
