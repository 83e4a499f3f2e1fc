"""
Tests for atomic operations in L{txrdma.soft.rc._requester} and L{txrdma.soft.rc._responder}.
"""

from __future__ import annotations

import sys
from typing import Any

from txrdma.iba.headers import AETH, AETHKind, AtomicAckETH, AtomicETH, NAKCode, Opcode
from txrdma.iba.types import LKey, RKey
from txrdma.iba.verbs import Access, AsyncEventKind, Operation, Status
from txrdma.soft.rc._packets import Failed, Incoming, Outgoing
from txrdma.test.support.soft.cores import ack, atomicETH, completions, incoming
from txrdma.test.unit.soft.test_requester import MTU, PSN, psns, RequesterCase
from txrdma.test.unit.soft.test_responder import PSN as THERE
from txrdma.test.unit.soft.test_responder import ResponderCase, RIGHTS

ATOMIC = RIGHTS | int(Access.REMOTE_ATOMIC)
MOST = (1 << 64) - 1
READ_ONLY = Opcode.RC_RDMA_READ_RESPONSE_ONLY


def native(number: int) -> bytes:
    """Return a number in the host's byte order."""
    return number.to_bytes(8, sys.byteorder)


class RequestTests(RequesterCase):
    """Requests, and the handling of answers (IBA 9.4.5)."""

    def atomic(self, identifier: int = 1, operation: Operation = Operation.FETCH_AND_ADD, **more: Any) -> Any:
        return self.request(operation, 8, identifier, **more)

    def answer(self, psn: int, original: int) -> list[Outgoing]:
        extension = AETH.ack(1).encode() + AtomicAckETH(original=original).encode()
        return self.deliver(incoming(Opcode.RC_ATOMIC_ACKNOWLEDGE, psn, extension=extension))

    def test_onePacketWithItsOpcodeAndOperands(self) -> None:
        for operation, opcode in [
            (Operation.COMPARE_AND_SWAP, Opcode.RC_COMPARE_SWAP),
            (Operation.FETCH_AND_ADD, Opcode.RC_FETCH_ADD),
        ]:
            with self.subTest(operation=operation):
                self.requester = self.make()
                [run] = self.post(self.atomic(1, operation, operand=5, compare=7))
                self.assertEqual((run.opcode, run.psn, run.packets, len(run.payload)), (opcode, PSN, 1, 0))
                self.assertTrue(run.acknowledge)
                self.assertEqual(
                    AtomicETH.decode(run.extension),
                    AtomicETH(address=0x1000, rkey=RKey(0x77), swap=5, compare=7),
                )

    def test_resultIsScatteredOverSegments(self) -> None:
        request = self.atomic()
        request.segments = [self.memory.segment(0, 3), self.memory.segment(100, 30)]
        before = self.memory.get(0, 200)
        self.post(request)
        self.answer(PSN, 0x1122334455667788)
        number = native(0x1122334455667788)
        self.assertEqual(self.memory.get(0, 200), number[:3] + before[3:100] + number[3:] + before[105:200])
        [completion] = completions(self.requester.events())
        self.assertEqual(completion.length, 8)

    def test_acknowledgementWithoutAnswerRepeatsRequest(self) -> None:
        self.post(self.atomic(1), self.request(Operation.SEND, 1, 2))
        runs = self.deliver(ack(PSN + 1))
        self.assertEqual((psns(runs), self.ended()), ([PSN, PSN + 1], []))
        self.answer(PSN, 9)
        self.deliver(ack(PSN + 1))
        self.assertEqual(self.ended(), [(1, Status.SUCCESS), (2, Status.SUCCESS)])

    def test_duplicateAnswerWritesNothing(self) -> None:
        self.post(self.atomic())
        self.answer(PSN, 1)
        self.answer(PSN, 2)
        self.answer(PSN + 1, 3)
        self.assertEqual(self.memory.get(0, 8), native(1))
        self.assertEqual(self.ended(), [(1, Status.SUCCESS)])

    def test_atomicsAndReadsShareOutstandingLimit(self) -> None:
        self.requester = self.make(maxRDAtomic=3)
        requests = [
            self.atomic(1),
            self.request(Operation.RDMA_READ, 2 * MTU, 2),
            self.atomic(3, Operation.COMPARE_AND_SWAP),
            self.atomic(4),
            self.request(Operation.SEND, 1, 5),
        ]
        self.assertEqual(psns(self.post(*requests)), [PSN, PSN + 1, PSN + 3])
        self.assertEqual(psns(self.answer(PSN, 1)), [PSN + 4, PSN + 5])

    def test_fencedRequestWaitsForAtomics(self) -> None:
        self.assertEqual(
            psns(self.post(self.atomic(1), self.request(Operation.SEND, 1, 2, fence=True))), [PSN]
        )
        self.assertEqual(psns(self.answer(PSN, 0)), [PSN + 1])
        self.assertEqual(
            psns(self.post(self.atomic(3), self.request(Operation.SEND, 1, 4))), [PSN + 2, PSN + 3]
        )

    def test_fencedAtomicWaitsForReadsNotSends(self) -> None:
        self.assertEqual(
            psns(self.post(self.request(Operation.RDMA_READ, 1, 1), self.atomic(2, fence=True))), [PSN]
        )
        self.assertEqual(psns(self.deliver(incoming(READ_ONLY, PSN, b"x", AETH.ack(1).encode()))), [PSN + 1])
        self.answer(PSN + 1, 0)
        runs = self.post(self.request(Operation.SEND, 1, 3), self.atomic(4, fence=True))
        self.assertEqual(psns(runs), [PSN + 2, PSN + 3])

    def test_noneMayBeOutstanding(self) -> None:
        self.requester = self.make(maxRDAtomic=0)
        self.assertEqual(self.post(self.atomic()), [])
        self.assertEqual(self.ended(), [(1, Status.LOC_QP_OP_ERR)])

    def test_segmentTooShortForResult(self) -> None:
        request = self.atomic()
        request.segments = [self.memory.segment(0, 7)]
        self.assertEqual(self.post(request), [])
        self.assertEqual(self.ended(), [(1, Status.LOC_LEN_ERR)])

    def test_wrongLocalKeyFailsWithAnswer(self) -> None:
        request = self.atomic()
        request.segments = [self.memory.segment(0, 8)._replace(lkey=LKey(1))]
        self.post(request)
        self.answer(PSN, 0)
        self.assertEqual(self.ended(), [(1, Status.LOC_PROT_ERR)])

    def test_answerOfOtherKindEndsConnection(self) -> None:
        aeth = AETH.ack(1).encode()
        for request, run in [
            (self.atomic(), incoming(READ_ONLY, PSN, bytes(8), aeth)),
            (self.request(Operation.RDMA_READ, 8), incoming(0x12, PSN, extension=aeth + bytes(8))),
            (self.atomic(), incoming(0x12, PSN, extension=aeth)),
            (self.atomic(), incoming(0x12, PSN, extension=aeth + bytes(12))),
            (self.request(Operation.SEND, 8), incoming(0x12, PSN, extension=aeth + bytes(8))),
        ]:
            with self.subTest(opcode=Opcode(run.opcode), stride=run.stride, kind=request.operation):
                self.requester = self.make()
                before = self.memory.get(0, 64)
                self.post(request)
                self.deliver(run)
                self.assertEqual(self.ended(), [(1, Status.BAD_RESP_ERR)])
                self.assertEqual(self.memory.get(0, 64), before)

    def test_wideNumbersAreTruncatedToFields(self) -> None:
        request = self.atomic(operand=-1, compare=1 << 64 | 5)
        request.remoteAddress, request.rkey = -8, RKey(1 << 32 | 3)
        [run] = self.post(request)
        self.assertEqual(
            AtomicETH.decode(run.extension),
            AtomicETH(address=MOST - 7, rkey=RKey(3), swap=MOST, compare=5),
        )
        for operation in (Operation.RDMA_WRITE_WITH_IMMEDIATE, Operation.RDMA_READ):
            request = self.request(operation, 4, immediate=-1)
            request.remoteAddress, request.rkey = -8, RKey(1 << 32 | 3)
            self.post(request)

    def test_negativeSegmentLengthFails(self) -> None:
        for operation in Operation:
            with self.subTest(operation=operation):
                self.requester = self.make()
                request = self.request(operation, 8)
                request.segments = [self.memory.segment(0, 8)._replace(length=-4)]
                self.assertEqual(self.post(request), [])
                self.assertEqual(self.ended(), [(1, Status.LOC_LEN_ERR)])


class ExecutionTests(ResponderCase):
    """Execution by a responder (IBA 9.4.5, 9.7.4, 9.7.5.1)."""

    def setUp(self) -> None:
        super().setUp()
        self.responder = self.make(access=ATOMIC)
        self.put(0, 100)

    def put(self, offset: int, number: int) -> None:
        self.memory.put(offset, native(number))

    def number(self, offset: int = 0) -> int:
        return int.from_bytes(self.memory.get(offset, 8), sys.byteorder)

    def atomic(self, opcode: int, psn: int, offset: int, operand: int, compare: int = 0) -> Incoming:
        region = self.memory.region
        header = atomicETH(region.address + offset, region.rkey, operand, compare)
        return incoming(opcode, psn, extension=header, acknowledge=True)

    def add(self, psn: int, operand: int, offset: int = 0) -> Incoming:
        return self.atomic(Opcode.RC_FETCH_ADD, psn, offset, operand)

    def swap(self, psn: int, operand: int, compare: int) -> Incoming:
        return self.atomic(Opcode.RC_COMPARE_SWAP, psn, 0, operand, compare)

    def originals(self, *runs: Incoming) -> list[tuple[int, int]]:
        """Return PSN and result of each answer."""
        found = []
        for run in self.deliver(*runs):
            self.assertEqual(run.opcode, Opcode.RC_ATOMIC_ACKNOWLEDGE)
            self.assertEqual((len(run.extension), len(run.payload)), (12, 0))
            self.assertIs(AETH.decode(run.extension).kind, AETHKind.ACK)
            found.append((run.psn, AtomicAckETH.decode(run.extension, 4).original))
        return found

    def test_allStoredResultsAreRepeatedInOrder(self) -> None:
        requests = [self.add(THERE, 1), self.swap(THERE + 1, 5, 101)]
        answers = [(THERE, 100), (THERE + 1, 101)]
        self.assertEqual(self.originals(*requests), answers)
        self.memory.put(0, native(77))
        self.assertEqual(self.originals(*requests), answers)
        self.assertEqual(self.number(), 77)

    def test_duplicateBeforeAnswerIsAnsweredOnce(self) -> None:
        self.assertEqual(
            self.originals(self.add(THERE, 1), self.add(THERE + 1, 1), self.add(THERE, 1)),
            [(THERE, 100), (THERE + 1, 101)],
        )
        self.assertEqual(self.number(), 102)

    def test_duplicateOlderThanStoredResultsIsDropped(self) -> None:
        for number in range(3):
            self.originals(self.add(THERE + number, 1))
        self.assertEqual(self.deliver(self.add(THERE, 1)), [])
        self.assertEqual(self.number(), 103)

    def test_duplicateOfOtherKindIsDropped(self) -> None:
        self.originals(self.add(THERE, 1))
        self.assertEqual(self.deliver(self.add(THERE, 2), self.swap(THERE, 1, 0)), [])
        self.assertEqual(self.number(), 101)

    def test_readAndAtomicAnswersKeepOrder(self) -> None:
        self.responder = self.make(access=ATOMIC, maxDestRDAtomic=4)
        runs = self.deliver(
            self.read(THERE, 0, 3 * 256),
            self.add(THERE + 3, 1),
            self.read(THERE + 4, 0, 8),
            self.write(THERE + 5, 100, b"x", acknowledge=True),
        )
        found = [(run.opcode, run.psn + number) for run in runs for number in range(run.packets)]
        self.assertEqual(
            found,
            [(0x0D, THERE), (0x0E, THERE + 1), (0x0F, THERE + 2), (0x12, THERE + 3), (0x10, THERE + 4),
             (0x11, THERE + 5)],
        )  # fmt: skip
        self.assertEqual(bytes(runs[-2].payload), native(101))

    def test_moreThanAgreedOutstandingIsRefused(self) -> None:
        runs = self.deliver(self.read(THERE, 0, 8), self.add(THERE + 1, 1), self.add(THERE + 2, 1))
        self.assertEqual([run.opcode for run in runs], [0x10, 0x12, 0x11])
        aeth = AETH.decode(runs[-1].extension)
        self.assertEqual((aeth.kind, aeth.value), (AETHKind.NAK, NAKCode.INVALID_REQUEST))
        self.assertEqual(self.responder.events(), [Failed(AsyncEventKind.QP_REQUEST_ERROR)])
        self.assertEqual(self.number(), 101)

    def test_wrongHeaderLengthIsInvalid(self) -> None:
        region = self.memory.region
        header = atomicETH(region.address, region.rkey, 1, 0)
        for wrong in (header[:-4], header + bytes(4), b""):
            self.responder = self.make(access=ATOMIC)
            self.assertInvalid(incoming(Opcode.RC_FETCH_ADD, THERE, extension=wrong))

    def test_atomicWithinMessageIsInvalid(self) -> None:
        self.receive(1, (100, 1000))
        self.deliver(incoming(Opcode.RC_SEND_FIRST, THERE, b"x" * 256))
        self.assertInvalid(self.add(THERE + 1, 1), psn=THERE + 1)

    def test_modifyChangesStoredResultCount(self) -> None:
        self.responder.retune(ATOMIC, 4, 12)
        requests = [self.add(THERE + number, 1) for number in range(4)]
        answers = self.originals(*requests)
        self.assertEqual(self.originals(*requests), answers)
        self.responder.retune(ATOMIC, 1, 12)
        self.assertEqual(self.originals(*requests), answers[-1:])
