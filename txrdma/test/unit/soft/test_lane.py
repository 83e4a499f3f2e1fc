"""
Lanes of shared memory, connected in one process: requests are delivered once, in order, or both ends fail.
"""

from __future__ import annotations

import mmap
import random
from collections import deque
from ctypes import c_uint32
from dataclasses import replace
from functools import partial
from itertools import count
from sys import byteorder
from typing import Any
from unittest.mock import patch

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    invariant,
    precondition,
    rule,
    RuleBasedStateMachine,
    run_state_machine_as_test,
)

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.iba.types import RKey
from txrdma.iba.verbs import (
    AsyncEventKind,
    CompletionOpcode,
    Operation,
    ReceiveRequest,
    SendRequest,
    Status,
)
from txrdma.soft.shared import _incoming
from txrdma.soft.shared._layout import CONSUMED, HEADER_BYTES, Kind, ringBytes
from txrdma.soft.shared._rendezvous import RegionRequest, RendezvousKind
from txrdma.test.support.compiled import skipIfCompiled
from txrdma.test.support.soft.lanes import (
    LanesTestCase,
    ok,
    pair,
    send,
    Side,
    spoil,
    turn,
    WeaklyOrderedMixin,
)


class LaneTests(LanesTestCase):
    """Invariants of a lane that its queue pair relies on."""

    def test_peerGoneDuringRegionRequestFlushesAll(self) -> None:
        for event in (None, AsyncEventKind.QP_FATAL):
            one, other = pair()
            address, rkey = other.memory.address, other.memory.rkey

            def requestRegion(_: RKey, one: Side = one, event: AsyncEventKind | None = event) -> None:
                one.lane.peerEnded(event)

            one.requestRegion = requestRegion  # type: ignore[method-assign,assignment]  # of this lane
            operation = Operation.RDMA_WRITE
            one.post(
                *(
                    SendRequest(number, operation, inline=(b"x",), remoteAddress=address, rkey=rkey)
                    for number in (1, 2)
                )
            )
            ended = [(each.identifier, each.status) for each in one.sent]
            ended += [(identifier, Status.WR_FLUSH_ERR) for identifier, _ in one.flushed]
            first = Status.RETRY_EXC_ERR if event is None else Status.WR_FLUSH_ERR
            self.assertEqual(ended, [(1, first), (2, Status.WR_FLUSH_ERR)])

    def write(self, identifier: int, data: bytes, offset: int = 0) -> SendRequest:
        """RDMA WRITE into the other end's memory."""
        self.one.memory.view[: len(data)] = data
        return self.request(identifier, Operation.RDMA_WRITE, 0, len(data), offset)

    def test_requestWithImpossibleFieldFailsAlone(self) -> None:
        bad: list[tuple[Operation, dict[str, Any]]] = [
            (Operation.SEND_WITH_IMMEDIATE, {"immediate": 1 << 32}),
            (Operation.SEND_WITH_IMMEDIATE, {"immediate": "7"}),
            (Operation.RDMA_WRITE_WITH_IMMEDIATE, {"immediate": 1 << 32}),
            (Operation.FETCH_AND_ADD, {"operand": 1.5}),
            (Operation.SEND, {"operation": -1}),
            (Operation.SEND, {"operation": 1.5}),
        ]
        for operation, fields in bad:
            for isEarly in (False, True):
                one, other = Side(1, 1 << 12), Side(2, 1 << 12)
                other.meet(one)
                if not isEarly:
                    one.meet(other)
                other.receive(0, (0, 64))
                request = SendRequest(
                    2, operation, remoteAddress=other.memory.address, rkey=other.memory.rkey
                )
                if operation is Operation.FETCH_AND_ADD:
                    request.segments = (one.memory.segment(0, 8),)
                for name, value in fields.items():
                    setattr(request, name, value)
                one.post(send(1, b"good"), request, send(3, b"late"))
                one.other = other
                if isEarly:
                    one.meet(other)
                turn(one, other)
                case = f"{operation!r} {fields} {isEarly}"
                self.assertEqual(
                    [(each.identifier, each.status) for each in one.sent],
                    [(1, Status.SUCCESS), (2, Status.LOC_QP_OP_ERR)],
                    case,
                )
                self.assertEqual(one.flushed, [(3, CompletionOpcode.SEND)], case)
                self.assertEqual(ok(other.received), [0], case)

    def test_receiveWithImpossibleSegmentFailsAlone(self) -> None:
        """A receive with a segment of a wrong type completes with an error when a SEND needs it."""
        for prepares in (False, True):
            value: Any
            for field, value in (("address", 0.5), ("address", ""), ("length", "7"), ("lkey", [])):
                one, other = pair()
                if prepares:
                    other.receive(0, (0, 64))
                    one.post(send(0, b"good"))
                    turn(one, other)
                segment: Any = other.memory.segment(0, 64)
                if field == "address" and value:
                    value += segment.address
                other.receives.append(ReceiveRequest(1, [segment._replace(**{field: value})]))
                other.lane.receivesPosted()
                one.post(send(1, b"bad"))
                turn(one, other)
                case = f"{field}={value!r}, {prepares}"
                self.assertEqual(other.received[-1].status, Status.LOC_QP_OP_ERR, case)
                self.assertEqual(one.sent[-1].status, Status.REM_OP_ERR, case)

    def test_solicitedIsATruthValue(self) -> None:
        """A request whose C{solicited} is no bool does not raise after it has been sent."""
        if not (_incoming.__file__ or "").endswith(".py"):
            raise SkipTest("compiled functions check types")
        for value, expected in ((None, False), ("yes", True)):
            for waits in (False, True):
                one, other = Side(1, 1 << 12), Side(2, 1 << 12)
                other.meet(one)
                if not waits:
                    one.meet(other)
                other.receive(0, (0, 64))
                wrong: Any = send(1, b"x", immediate=7)
                wrong.solicited = value
                one.post(wrong)
                one.other = other
                if waits:
                    one.meet(other)
                turn(one, other)
                self.assertEqual((ok(one.sent), ok(other.received)), ([1], [0]))
                self.assertEqual(other.solicited, [expected])

    def test_keyOfTooManyBitsFailsItsRequest(self) -> None:
        """A request whose R_Key cannot be sent to the peer fails, and later ones are flushed."""
        one, _other = pair()

        def requestRegion(rkey: RKey) -> None:
            RegionRequest(kind=RendezvousKind.REGION_REQUEST, rkey=rkey).encode()

        one.requestRegion = requestRegion  # type: ignore[method-assign]  # of this lane
        wrong = SendRequest(1, Operation.RDMA_WRITE, inline=(b"x",), rkey=RKey(1 << 32))
        one.post(wrong, send(2, b"late"))
        turn(one, _other)
        self.assertEqual([each.status for each in one.sent], [Status.LOC_QP_OP_ERR])
        self.assertEqual(one.flushed, [(2, CompletionOpcode.SEND)])

    def test_requestWithoutInlineDataIsQueued(self) -> None:
        """Requests of a list that is posted in part are queued, also one whose inline data are None."""
        one, other = pair()
        for _ in range(2):
            other.receive(0, (0, 64))
        waits = SendRequest(2, Operation.RDMA_WRITE, inline=(b"x",), rkey=other.memory.rkey)
        waits.remoteAddress = other.memory.address
        empty = SendRequest(3, Operation.SEND)
        empty.inline = None  # type: ignore[assignment]  # what is tested
        one.post(send(1, b"good"), waits, empty)
        turn(one, other)
        self.assertEqual([each.status for each in one.sent], [Status.SUCCESS] * 3)
        self.assertEqual(ok(other.received), [0, 0])

    def test_malformedListIsNotQueued(self) -> None:
        """A list with a malformed request is refused as a whole before the peer has joined."""
        one, other = Side(1, 1 << 12), Side(2, 1 << 12)
        malformed = SendRequest(2, Operation.SEND)
        malformed.inline = (1.5,)  # type: ignore[assignment]  # what is tested
        self.assertRaises(TypeError, one.post, send(1, b"good"), malformed)
        other.receive(0, (0, 64))
        other.meet(one)
        one.meet(other)
        turn(one, other)
        self.assertEqual((one.sent, other.received), ([], []))

    def test_impossibleFieldFailsAfterFastPath(self) -> None:
        """The requests before and after one with an impossible field end as in the general path."""
        for operation, field in (
            (Operation.RDMA_WRITE, "remoteAddress"),
            (Operation.RDMA_WRITE_WITH_IMMEDIATE, "immediate"),
        ):
            self.setUp()  # a failed request ends the queue pair
            for identifier in range(2):
                self.other.receive(identifier, (0, 64))
            self.one.post(self.write(1, b"mapped"))
            self.turn()
            wrong = self.request(3, operation, 0, 8)
            setattr(wrong, field, "7")
            self.one.post(send(2, b"good"), wrong, send(4, b"late"))
            self.turn()
            self.assertEqual(
                [(each.identifier, each.status) for each in self.one.sent],
                [(1, Status.SUCCESS), (2, Status.SUCCESS), (3, Status.LOC_QP_OP_ERR)],
            )
            self.assertEqual(self.one.flushed, [(4, CompletionOpcode.SEND)])
            self.assertEqual(ok(self.other.received), [0])

    def test_inlineObjectsWithoutLengthAreSent(self) -> None:
        """Numbers of L{ctypes} are bytes-like objects, but have no length."""
        number: Any = c_uint32(0x01010101)
        for operation in (Operation.SEND, Operation.RDMA_WRITE):
            self.setUp()
            self.other.receive(0, (0, 64))
            self.one.post(self.write(1, b"mapped", 32))
            self.turn()
            request = replace(self.request(2, operation, 0, 0), segments=(), inline=(number,))
            self.one.post(request)
            self.turn()
            self.assertEqual(ok(self.one.sent), [1, 2])
            self.assertEqual(bytes(self.other.memory.view[:4]), b"\1\1\1\1")

    def test_spreadInlineBytesAreSent(self) -> None:
        """Inline views whose bytes are not contiguous are sent like others."""
        self.other.receive(0, (0, 64))
        spread = memoryview(bytes(range(32)))[::2]
        self.one.post(SendRequest(1, Operation.SEND_WITH_IMMEDIATE, inline=(spread,)))
        self.turn()
        self.assertEqual((ok(self.one.sent), ok(self.other.received)), ([1], [0]))
        self.assertEqual(bytes(self.other.memory.view[:16]), bytes(spread))

    def test_negativeLengthFailsAndWritesNothing(self) -> None:
        for operation in (Operation.RDMA_WRITE, Operation.RDMA_WRITE_WITH_IMMEDIATE):
            self.setUp()  # a failed request ends the queue pair
            self.one.post(self.write(1, b"mapped"))
            self.turn()
            before = bytes(self.other.memory.view)
            request = self.request(2, operation, 0, 8)
            request.segments = [request.segments[0]._replace(length=-8)]
            self.one.memory.view[:8] = b"unwanted"
            self.one.post(request)
            self.assertEqual(bytes(self.other.memory.view), before)
            self.assertEqual([each.status for each in self.one.sent], [Status.SUCCESS, Status.LOC_PROT_ERR])

    def test_dormantLaneWritesFewPagesOfRing(self) -> None:
        one, other = pair(1 << 16)
        for number in range(400):
            other.receive(number, (0, 64))
            one.lane.setDormant(partial(one.lane.setDormant, None))
            one.post(send(number, bytes([number % 256]) * 64))
            turn(one, other)
            self.assertEqual(other.memory.view[:64], bytes([number % 256]) * 64)
        self.assertEqual((ok(one.sent), ok(other.received)), (list(range(400)), list(range(400))))
        self.assertEqual(
            bytes(one.box[2 * mmap.PAGESIZE : -64]), bytes(len(one.box) - 2 * mmap.PAGESIZE - 64)
        )

    def test_RDMACompletesWithoutPeerAfterDormancy(self) -> None:
        one, other = pair(1 << 16)
        for number in range(80):
            other.receive(number, (0, 64))
            one.post(send(number, b"x" * 64))
        turn(one, other)
        request = SendRequest(
            99,
            Operation.RDMA_WRITE,
            inline=(b"written",),
            remoteAddress=other.memory.address,
            rkey=other.memory.rkey,
        )
        one.post(request)
        turn(one, other)
        one.sent.clear()
        one.lane.setDormant(partial(one.lane.setDormant, None))
        one.post(request)
        one.lane.poll()
        self.assertEqual(ok(one.sent), [99])

    def test_peerThatNeverAttachesTimesOut(self) -> None:
        one = Side(2, 4096)
        one.post(send(1, b"early"), send(2, b"too"))
        left = one.lane.expired(1.0)
        self.assertAlmostEqual(left or 0, 2 * 4.096e-6 * 4096)
        self.assertIsNone(one.lane.expired(1.0 + (left or 0)))
        self.assertEqual([(c.identifier, c.status) for c in one.sent], [(1, Status.RETRY_EXC_ERR)])
        self.assertEqual(one.flushed, [(2, CompletionOpcode.SEND)])

    def test_inlineBufferOfOtherItems(self) -> None:
        self.other.receive(7, (0, 100))
        words = memoryview(bytearray(range(16))).cast("Q")
        self.one.post(SendRequest(1, Operation.SEND, inline=[words]))
        self.turn()
        self.assertEqual(self.other.received[0].length, 16)
        self.assertEqual(self.other.memory.view[:16], bytes(range(16)))

    def test_unmappableMemoryIsReachedByMessagesInOrder(self) -> None:
        self.other.mapped = False
        self.one.post(send(1, b"one"), self.write(2, b"w" * 50), send(3, b"three"))
        self.turn()
        self.assertEqual(self.other.memory.view[:5], bytes(5))  # the first is not consumed yet
        self.other.receive(7, (1000, 100))
        self.other.receive(8, (2000, 100))
        self.turn()
        self.assertEqual(ok(self.one.sent), [1, 2, 3])
        self.assertEqual(self.other.memory.view[:50], b"w" * 50)

    def test_requestToUnmappableMemoryMayBeReused(self) -> None:
        """A request and its inline bytes may change once posted, although messages are sent later."""
        self.other.mapped = False
        self.one.post(self.write(1, b"x"))
        self.turn()
        data = bytearray(b"w" * 50)
        request = self.write(2, b"")
        request.inline = (data,)
        self.one.post(request)
        request.inline, request.remoteAddress = (), request.remoteAddress + 100
        data[:] = b"another"
        self.turn()
        self.assertEqual(ok(self.one.sent), [1, 2])
        self.assertEqual(self.other.memory.view[:150], b"w" * 50 + bytes(100))

    def violates(self, request: SendRequest) -> None:
        """Assert that the request ends with a remote access error at both ends."""
        self.other.receive(7, (0, 100))
        self.one.post(send(1, b"fine"), request, send(3, b"late"))
        self.turn()
        self.assertEqual(
            [(c.identifier, c.status) for c in self.one.sent],
            [(1, Status.SUCCESS), (2, Status.REM_ACCESS_ERR)],
        )
        self.assertEqual(self.one.flushed, [(3, CompletionOpcode.SEND)])
        self.assertEqual(ok(self.other.received), [7])
        self.assertEqual(self.other.events, [AsyncEventKind.QP_ACCESS_ERROR])

    def test_outsideUnmapped(self) -> None:
        self.other.mapped = False
        self.violates(self.write(2, b"xy", self.other.memory.length - 1))

    def test_deregisteredAfterMapping(self) -> None:
        self.one.post(self.write(1, b"x"))
        self.turn()
        self.assertEqual(ok(self.one.sent), [1])
        self.one.sent.clear()
        request = self.write(2, b"y")
        memory, self.other.memory = (
            self.other.memory,
            self.other.keys.register(
                self.other.domain, memoryview(bytearray(1000)), self.other.memory.access
            ),
        )
        self.other.close(memory)
        self.violates(request)

    def test_RNRRetriesExhausted(self) -> None:
        self.one.attributes = replace(self.one.attributes, rnrRetry=3)
        self.one.lane.attributesChanged()
        self.one.post(send(1, b"hello"), send(2, b"again"))
        self.assertEqual(self.one.watched, 1)
        again = self.one.lane.expired(0.0)  # the other end has not polled yet
        self.assertIsNotNone(again)
        self.other.lane.poll()
        now = again or 0.0
        left = self.one.lane.expired(now)
        self.assertAlmostEqual(left or 0, 3 * 1e-5)
        self.assertIsNotNone(self.one.lane.expired(now + 2e-5))
        self.assertEqual(self.one.sent, [])
        self.one.lane.expired(now + 3.01e-5)
        self.assertEqual([c.status for c in self.one.sent], [Status.RNR_RETRY_EXC_ERR])
        self.assertEqual(self.one.flushed, [(2, CompletionOpcode.SEND)])

    def test_queuedRequestIsCopiedWhenPosted(self) -> None:
        data = bytearray(b"before")
        request = SendRequest(1, Operation.SEND, inline=[data])
        one, other = Side(2, 4096), Side(3, 4096)
        one.post(request)
        data[:] = b"after!"
        request.identifier = 2
        self.assertEqual(one.watched, 1)
        other.receive(7, (0, 100))
        one.meet(other)
        other.meet(one)
        other.lane.poll()
        self.assertEqual(other.memory.view[:6], b"before")
        self.assertEqual(ok(other.received), [7])

    def test_sleepingReceiverIsRungOnce(self) -> None:
        for identifier in range(4):
            self.other.receive(identifier, (0, 100))
        self.one.post(send(1, b"x"))
        self.assertEqual(self.one.rung, [])
        self.other.lane.arm(False, True, False)
        self.one.post(send(2, b"x"))
        self.one.post(send(3, b"x"))
        self.assertEqual(self.one.rung, ["receives"])
        self.other.lane.arm(False, True, False)
        self.one.post(send(4, b"x"))
        self.assertEqual(self.one.rung, ["receives"] * 2)

    def test_solicitedArmRingsOnlyForSolicited(self) -> None:
        self.other.lane.arm(False, True, True)
        self.one.post(send(1, b"x"))
        self.assertEqual(self.one.rung, [])
        self.one.post(send(2, b"x", solicited=True))
        self.assertEqual(self.one.rung, ["receives"])

    def test_solicitedWriteWithImmediateRings(self) -> None:
        self.one.post(self.write(1, b"x"))  # maps the peer's memory, as the fast path needs
        self.turn()
        self.other.lane.arm(False, True, True)
        for identifier, solicited in ((2, False), (3, True)):
            request = self.write(identifier, b"x")
            request.operation, request.solicited = Operation.RDMA_WRITE_WITH_IMMEDIATE, solicited
            self.one.post(request)
            self.assertEqual(self.one.rung, ["receives"] if solicited else [])

    def test_sleepingSenderIsRungForCompletion(self) -> None:
        self.one.post(send(1, b"x"))
        self.one.lane.arm(True, True, False)
        self.other.receive(1, (0, 100))
        self.other.lane.poll()
        self.assertEqual(self.other.rung, ["sends"])

    def test_sleepingSenderWakesSolicitedReceiver(self) -> None:
        self.other.receive(1, (0, 100))
        self.other.lane.arm(False, True, True)
        self.one.post(send(1, b"x"))
        self.one.lane.arm(True, True, False)
        self.one.deliver()
        self.one.lane.poll()
        self.assertEqual(ok(self.one.sent), [1])

    def test_armedSenderWakesSolicitedReceiver(self) -> None:
        self.one.lane.arm(True, True, False)
        for identifier in (1, 2):
            self.other.receive(identifier, (0, 100))
            self.other.lane.arm(False, True, True)
            self.one.post(send(identifier, b"x"))
            self.one.deliver()
            self.assertEqual(self.other.rung, ["sends"] * identifier)
            self.one.lane.poll()
            self.one.lane.arm(True, True, False)
        self.assertEqual(ok(self.one.sent), [1, 2])
        self.assertEqual((self.one.rung, self.one.output), ([], []))

    def test_senderThatWaitsForSpaceWakesSolicitedReceiver(self) -> None:
        for identifier in range(12):
            self.other.receive(identifier, (0, 1000))
        self.other.lane.arm(False, True, True)
        self.one.post(
            *(send(identifier, bytes(1000), solicited=identifier == 11) for identifier in range(12))
        )
        for _ in range(20):  # neither end polls unless it is woken
            self.one.deliver()
            self.other.deliver()
        self.assertEqual(self.one.rung, ["receives"])
        self.other.lane.poll()
        self.assertEqual(ok(self.other.received), list(range(12)))

    def test_peerDeathDeliversReceivedAndFlushesRest(self) -> None:
        self.one.receive(7, (0, 100))
        self.other.post(send(9, b"last words"))
        self.one.post(send(1, b"x"), send(2, b"x"))
        self.one.lane.peerEnded(AsyncEventKind.QP_FATAL)
        self.assertEqual(ok(self.one.received), [7])
        self.assertEqual([c.status for c in self.one.sent], [Status.RETRY_EXC_ERR])
        self.assertEqual(self.one.flushed, [(2, CompletionOpcode.SEND)])
        self.assertEqual(self.one.events, [AsyncEventKind.QP_FATAL])

    def test_closedLaneIgnoresAllCalls(self) -> None:
        self.one.receive(7, (0, 100))
        self.one.lane.close()
        self.one.lane.close()
        self.assertTrue(self.one.gone)
        self.one.lane.poll()
        self.one.lane.arm(True, True, False)
        self.one.lane.receivesPosted()
        self.one.lane.regionKnown(RKey(1), None, 0)
        self.one.lane.accessed(True)
        self.one.lane.peerEnded(AsyncEventKind.QP_FATAL)
        self.assertIsNone(self.one.lane.expired(100.0))
        self.assertEqual((self.one.sent, self.one.received, self.one.events), ([], [], []))

    def test_idleLanesShareTheirEmptyQueue(self) -> None:
        """A request that waited for the peer leaves no deque, which takes 0.7 KiB of each idle lane."""
        one, other = Side(2, 4096), Side(3, 4096)
        one.post(send(1, b"early"))
        other.meet(one)
        other.receive(7, (0, 8))
        one.meet(other)
        turn(one, other)
        self.assertEqual([each.identifier for each in other.received], [7])
        self.assertIs(one.lane._outgoing.waiting, other.lane._outgoing.waiting)

    def test_trimmedLaneHasNoPreparedReceives(self) -> None:
        """Receives are prepared from the first SEND on, until the lane is trimmed, and again later."""
        ready = self.other.lane._incoming
        empty = ready._ready
        for number in range(6):
            self.other.receive(number, (number * 8, 8))
        for number in range(3):
            self.one.post(send(number, b"number %d" % number))
            turn(self.one, self.other)
            self.assertEqual(len(ready._ready), 1)
            self.assertFalse(self.other.lane.trim())
            self.assertIs(ready._ready, empty)
            self.other.receive(6 + number, (48 + number * 8, 8))
            self.assertIs(ready._ready, empty)
        self.assertEqual([each.identifier for each in self.other.received], [0, 1, 2])
        self.assertEqual(bytes(self.other.memory.view[:24]), b"number 0number 1number 2")

    def test_burstsPrepareMoreReceives(self) -> None:
        """Two receives are prepared for single messages, and more after a burst has used all of them."""
        ready = self.other.lane._incoming
        for number in range(60):
            self.other.receive(number, (number * 8, 8))
        for number in range(9):
            self.one.post(send(number, b"%8d" % number))
            turn(self.one, self.other)
            self.other.receive(60 + number, (number * 8, 8))
            self.assertEqual(len(ready._ready), 2)
        self.one.post(*(send(number, b"%8d" % number) for number in range(31)))
        turn(self.one, self.other)
        self.other.receive(69, (0, 8))
        self.assertEqual(len(ready._ready), 16)
        self.assertEqual([each.identifier for each in self.other.received], list(range(40)))

    def test_trimAmidMessageReportsPartlyFilledReceive(self) -> None:
        data = bytes(range(250)) * 60
        self.other.receive(1, (0, 20000))
        self.one.post(send(1, data))
        self.other.lane.poll()
        self.assertTrue(self.other.lane.trim())
        turn(self.one, self.other)
        self.assertFalse(self.other.lane.trim())
        self.assertEqual(bytes(self.other.memory.view[:15000]), data)

    def test_invalidMailboxLengthIsRefused(self) -> None:
        for length in (0, 4096, HEADER_BYTES + 4095, HEADER_BYTES + 12288, HEADER_BYTES + (1 << 30)):
            self.assertRaises(ValueError, ringBytes, length)
        self.assertRaises(ValueError, Side(2, 4096).lane.attach, memoryview(bytes(5000)))


class WeaklyOrderedTests(WeaklyOrderedMixin, LaneTests):
    """The tests of L{LaneTests} with the memory fences of weakly ordered machines."""

    def test_contentIsReadBehindFence(self) -> None:
        """Content may become visible after its header, but not later than the next fence of the reader."""
        skipIfCompiled()
        operand = self.request(4, Operation.FETCH_AND_ADD, operand=5)
        for number, request in enumerate(
            (send(1, b"a" * 40), send(2, b"b" * 600), send(3, b"c" * 40, immediate=7), operand)
        ):
            self.other.receive(number, (1000, 1000))
            start = (self.one.lane._rings.writeIndex << 3) + 8
            self.one.post(request)
            end = self.one.lane._rings.writeIndex << 3
            content = bytes(self.one.box[start:end])
            self.one.box[start:end] = bytes(end - start)

            def fence(start: int = start, end: int = end, content: bytes = content) -> None:
                self.one.box[start:end] = content

            with patch.object(_incoming, "barrier", fence):
                self.other.lane.poll()
            for piece in request.inline:
                self.assertEqual(self.other.memory.view[1000 : 1000 + len(piece)], piece)
        self.assertEqual(self.other.memory.view[:8], (5).to_bytes(8, byteorder))
        self.turn()
        self.assertEqual(ok(self.one.sent), [1, 2, 3, 4])


class ScribbledTests(LanesTestCase):
    """A peer that writes invalid values fails its own queue pair only."""

    def setUp(self) -> None:
        super().setUp()
        self.words = self.one.box.cast("Q")

    def test_impossibleRecords(self) -> None:
        for what, kind, length, flags in (
            ("unknown kind", 0, 5, 64),
            ("ends beyond the ring", Kind.SEND, 4096, 0),
            ("only padding", Kind.PADDING, 4088, 0),
            ("parts without bytes", Kind.SEND, 0, 16),
            ("continuation without beginning", Kind.SEND, 5, 32),
        ):
            self.setUp()
            self.other.receive(1, (0, 100))
            self.words[HEADER_BYTES // 8] = (kind | flags) << 24 | length
            self.other.lane.poll()
            self.assertEqual(self.other.events, [AsyncEventKind.QP_REQUEST_ERROR], what)
            self.assertEqual(self.other.received, [], what)

    def test_shortMessageBookkeepingIsBounded(self) -> None:
        for immediate in range(2000):
            self.other.receive(immediate, (0, 100))
            at = self.one.lane._rings.writeIndex
            self.one.post(send(immediate, b"x" * (immediate % 56)))
            self.words[at] |= immediate << 32
            for side in (self.other, self.one):
                side.lane.poll()
        self.assertEqual([each.length for each in self.other.received], [n % 56 for n in range(2000)])
        self.assertLess(len(_incoming._SHORT), 2 * (_incoming._SHORT_BYTES + 1) + 1)

    def test_impossibleAnswers(self) -> None:
        for what, consumed in (("more consumed than sent", 1 << 20), ("unknown fault", 0xFF << 56)):
            self.setUp()
            self.one.post(send(1, b"x"))
            self.other.box.cast("Q")[CONSUMED] = consumed
            for _ in range(20):
                self.one.lane.poll()
            self.assertEqual([c.status for c in self.one.sent], [Status.BAD_RESP_ERR], what)
            self.assertEqual(self.one.events, [AsyncEventKind.QP_FATAL], what)

    def test_arbitraryBytesStayInBounds(self) -> None:
        for seed in range(400):
            self.scribble(seed)

    def scribble(self, seed: int) -> None:
        chance = random.Random(seed)
        one, other = pair(chance.choice((4096, 16384)))
        rings = [side.box for side in (one, other)]
        one.attributes = replace(one.attributes, rnrRetry=chance.choice((0, 7)))
        for side in (one, other):
            side.memory.view[:] = b"\xa5" * side.memory.length
            side.lane.attributesChanged()
        for step in range(60):
            side = chance.choice((one, other))
            if side.events:
                break
            what = chance.random()
            if what < 0.3:
                data = chance.randbytes(chance.choice((0, 1, 44, 60, 500, 3000)))
                side.post(send(step, data, chance.choice((None, 5)), chance.random() < 0.5))
            elif what < 0.5 and len(side.receives) < 50:
                side.receive(step, (1024, chance.choice((64, 4096))))
            elif what < 0.8:
                side.lane.poll()
                side.deliver()
            elif what < 0.85:
                side.lane.arm(True, True, chance.random() < 0.5)
                side.lane.expired(step)
            else:
                spoil(chance, chance.choice(rings))
        for side in (one, other):
            for _ in range(10):
                side.lane.poll()
                side.deliver()
            view = side.memory.view
            self.assertEqual(view[:1024], b"\xa5" * 1024, f"seed {seed}")
            self.assertEqual(view[1024 + 4096 :], b"\xa5" * (side.memory.length - 5120), f"seed {seed}")


class LaneMachine(RuleBasedStateMachine):
    """Any order of posting, receiving and polling: each message arrives once, complete and in order."""

    def __init__(self) -> None:
        super().__init__()
        self.sides = pair()
        self.numbers = count(1)
        self.expected: dict[Side, deque[bytes]] = {side: deque() for side in self.sides}
        self.places: dict[Side, deque[int]] = {side: deque() for side in self.sides}
        self.seen: dict[Side, int] = dict.fromkeys(self.sides, 0)
        self.ordered: dict[Side, list[int]] = {side: [] for side in self.sides}

    def outstanding(self, side: Side) -> int:
        return side.posted - side.retirements

    @rule(
        which=st.integers(0, 1),
        sizes=st.lists(st.integers(0, 3000), min_size=1, max_size=4),
        inline=st.booleans(),
    )
    def send(self, which: int, sizes: list[int], inline: bool) -> None:
        side, other = self.sides[which], self.sides[1 - which]
        if self.outstanding(side) > 60:
            return
        requests = []
        for size in sizes:
            number = next(self.numbers)
            data = bytes((number + index) & 0xFF for index in range(size))
            immediate = number if number % 3 == 0 else None
            requests.append(send(number, data, immediate))
            self.expected[other].append(data)
            self.ordered[side].append(number)
            if not inline and size:
                side.memory.view[60000 : 60000 + size] = data  # gathered when posted, or later
                requests[-1].inline = [data[: size // 2], data[size // 2 :]]
        side.post(*requests)

    @rule(which=st.integers(0, 1), number=st.integers(1, 6))
    def receive(self, which: int, number: int) -> None:
        side = self.sides[which]
        for _ in range(number):
            if len(side.receives) >= 8:
                return
            place = next(self.numbers) % 16 * 3000
            if place in self.places[side]:
                return
            self.places[side].append(place)
            side.receive(place, (place, 1000), (place + 1000, 2000))

    @rule(which=st.integers(0, 1))
    def pollEnd(self, which: int) -> None:
        side = self.sides[which]
        side.lane.poll()
        self.check(side)

    @rule(which=st.integers(0, 1))
    def doorbellRung(self, which: int) -> None:
        self.sides[which].deliver()

    @rule(which=st.integers(0, 1), sends=st.booleans(), receives=st.booleans(), solicited=st.booleans())
    def sleep(self, which: int, sends: bool, receives: bool, solicited: bool) -> None:
        self.sides[which].lane.arm(sends, receives, solicited)

    @rule(which=st.integers(0, 1))
    def trim(self, which: int) -> None:
        self.sides[which].lane.trim()

    def check(self, side: Side) -> None:
        while self.seen[side] < len(side.received):
            completion = side.received[self.seen[side]]
            self.seen[side] += 1
            place = self.places[side].popleft()
            expected = self.expected[side].popleft()
            assert (completion.identifier, completion.length) == (place, len(expected))
            assert side.memory.view[place : place + len(expected)] == expected

    @invariant()
    def inOrder(self) -> None:
        for side in self.sides:
            done = ok(side.sent)
            assert done == self.ordered[side][: len(done)]
            assert not side.events
            self.check(side)

    @precondition(lambda self: any(self.expected.values()))
    @rule()
    def drain(self) -> None:
        for _ in range(400):
            for which, side in enumerate(self.sides):
                self.receive(which, 4)
                side.lane.poll()
                side.deliver()
                self.check(side)
        for _ in range(20):
            for side in self.sides:
                side.lane.poll()
        for side in self.sides:
            assert not self.expected[side]
            assert self.outstanding(side) == 0
            assert ok(side.sent) == self.ordered[side]


class LaneMachineTests(SynchronousTestCase):
    """Hypothesis runs the state machine of two lanes."""

    slowBecause = "Hypothesis runs many examples"

    def test_anyOrder(self) -> None:
        quick = settings(
            max_examples=60, stateful_step_count=50, deadline=None, suppress_health_check=list(HealthCheck)
        )
        run_state_machine_as_test(LaneMachine, settings=quick)
