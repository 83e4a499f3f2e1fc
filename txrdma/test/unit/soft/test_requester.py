"""
Tests for L{txrdma.soft.rc._requester}.
"""

from __future__ import annotations

from ctypes import c_uint32
from itertools import pairwise
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.headers import NAKCode, Opcode, RETH
from txrdma.iba.times import rnrTimerSeconds
from txrdma.iba.types import LKey, QPN, RKey
from txrdma.iba.verbs import Completion, CompletionOpcode, Operation, SendRequest, Status
from txrdma.soft.core.roundtrip import LONGEST_TIMEOUT, SHORTEST_TIMEOUT
from txrdma.soft.rc._packets import Failed, Outgoing, PSN_MASK, Retired
from txrdma.soft.rc._requester import Requester
from txrdma.soft.rc._window import FEWEST_PACKETS, FIRST, FIRST_PACKETS
from txrdma.test.support.soft.cores import ack, completions, Memory, nak, requester, rnr

MTU = 256
PSN = 1000
TIMEOUT = 0.067108864  # the code 14


class RequesterCase(SynchronousTestCase):
    """A requester, some memory, and a simulated time."""

    def setUp(self) -> None:
        self.memory = Memory(1 << 20)
        self.memory.put(0, bytes(range(256)) * 4096)
        self.now = 0.0
        self.requester = self.make()

    def make(self, **changes: Any) -> Requester:  # arguments of different types
        return requester(self.memory, **{"psn": PSN, **changes})

    def request(self, operation: Operation, length: int, identifier: int = 1, **more: Any) -> SendRequest:
        return SendRequest(
            identifier,
            operation,
            [self.memory.segment(0, length)],
            remoteAddress=0x1000,
            rkey=RKey(0x77),
            **more,
        )

    def post(self, *requests: SendRequest) -> list[Outgoing]:
        self.requester.post(requests, self.now)
        return self.out()

    def send(self, length: int, identifier: int = 1, **more: Any) -> list[Outgoing]:
        return self.post(self.request(Operation.SEND, length, identifier, **more))

    def out(self) -> list[Outgoing]:
        return self.requester.outgoing(self.now)

    def expire(self) -> list[Outgoing]:
        """Advance the time to the requester's deadline."""
        deadline = self.requester.deadline()
        assert deadline is not None
        self.now = deadline
        self.requester.expired(self.now)
        return self.out()

    def deliver(self, *runs: Any) -> list[Outgoing]:
        for run in runs:
            self.requester.received(run, self.now)
        return self.out()

    def ended(self) -> list[tuple[int, Status]]:
        """Return the completions since the last call."""
        return [(c.identifier, c.status) for c in completions(self.requester.events())]


def psns(runs: list[Outgoing]) -> list[int]:
    """Return the PSNs of all packets."""
    return [run.psn + number for run in runs for number in range(run.packets)]


class SegmentationTests(RequesterCase):
    """Segmentation of messages (IBA 9.7.2.2, 9.4.1)."""

    def opcodes(self, runs: list[Outgoing]) -> list[tuple[Opcode, int]]:
        return [(Opcode(run.opcode), run.packets) for run in runs]

    def test_messageWithinMTUIsOnePacket(self) -> None:
        for length in (0, 1, MTU):
            with self.subTest(length=length):
                self.requester = self.make()
                [run] = self.send(length)
                self.assertEqual((run.opcode, run.psn, run.acknowledge), (Opcode.RC_SEND_ONLY, PSN, True))
                self.assertEqual(bytes(run.payload), self.memory.get(0, length))

    def test_longMessageIsFirstMiddleLast(self) -> None:
        runs = self.send(4 * MTU + 1)
        self.assertEqual(
            self.opcodes(runs),
            [(Opcode.RC_SEND_FIRST, 1), (Opcode.RC_SEND_MIDDLE, 3), (Opcode.RC_SEND_LAST, 1)],
        )
        self.assertEqual(psns(runs), list(range(PSN, PSN + 5)))
        self.assertEqual(b"".join(bytes(run.payload) for run in runs), self.memory.get(0, 4 * MTU + 1))
        self.assertEqual([run.acknowledge for run in runs], [False, False, True])

    def test_immediateAndSolicitedInLastPacket(self) -> None:
        runs = self.post(
            self.request(Operation.SEND_WITH_IMMEDIATE, 2 * MTU, immediate=0x01020304, solicited=True)
        )
        self.assertEqual([run.extension for run in runs], [b"", b"\1\2\3\4"])
        self.assertEqual([run.solicited for run in runs], [False, True])
        self.assertEqual(runs[1].opcode, Opcode.RC_SEND_LAST_WITH_IMMEDIATE)
        [run] = self.post(self.request(Operation.SEND_WITH_IMMEDIATE, 0, immediate=9))
        self.assertEqual(run.opcode, Opcode.RC_SEND_ONLY_WITH_IMMEDIATE)

    def test_writeHasRETHInFirstPacket(self) -> None:
        runs = self.post(self.request(Operation.RDMA_WRITE, 2 * MTU))
        self.assertEqual(runs[0].opcode, Opcode.RC_RDMA_WRITE_FIRST)
        self.assertEqual(
            RETH.decode(runs[0].extension), RETH(address=0x1000, rkey=RKey(0x77), length=2 * MTU)
        )
        self.assertEqual((runs[1].opcode, runs[1].extension), (Opcode.RC_RDMA_WRITE_LAST, b""))

    def test_firstPacketOfWriteIsLongest(self) -> None:
        """After the first packet of a WRITE, which is the longest, a system call sends one other."""
        runs = self.post(self.request(Operation.RDMA_WRITE, 5 * MTU))
        first, middle, last = (Opcode[f"RC_RDMA_WRITE_{place}"] for place in ("FIRST", "MIDDLE", "LAST"))
        self.assertEqual(self.opcodes(runs), [(first, 1), (middle, 1), (middle, 2), (last, 1)])

    def test_singlePacketWriteWithImmediate(self) -> None:
        [run] = self.post(self.request(Operation.RDMA_WRITE_WITH_IMMEDIATE, 3, immediate=5))
        self.assertEqual(run.opcode, Opcode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE)
        self.assertEqual(run.extension[16:], b"\0\0\0\5")
        runs = self.post(self.request(Operation.RDMA_WRITE_WITH_IMMEDIATE, 2 * MTU, immediate=5))
        self.assertEqual(runs[1].opcode, Opcode.RC_RDMA_WRITE_LAST_WITH_IMMEDIATE)

    def test_inlineIsCopiedWhenPosted(self) -> None:
        data = bytearray(b"x" * 300)
        request = SendRequest(1, Operation.SEND, inline=(data, b"y"))
        self.requester.post([request], 0.0)
        data[:] = bytes(300)
        request.identifier = 2
        for runs in (self.out(), self.expire() + self.deliver(ack(PSN))):
            self.assertEqual(b"".join(bytes(run.payload) for run in runs), b"x" * 300 + b"y")
        self.deliver(ack(PSN + 1))
        self.assertEqual(self.ended(), [(1, Status.SUCCESS)])

    def test_inlinePiecesAreSentInOrderAsPosted(self) -> None:
        mutable = bytearray(b"m" * (2 * MTU + 1))
        words = memoryview(b"w" * (4 * MTU)).cast("I")
        whole = b"".join(bytes([value]) * (MTU + 3) for value in range(20))
        for inline in ((whole, memoryview(whole)[5:]), (whole, mutable, b"", whole), (words, whole)):
            expected = b"".join(inline)
            self.requester = self.make()
            self.requester.post([SendRequest(1, Operation.RDMA_WRITE, inline=inline)], 0.0)
            mutable[:] = bytes(len(mutable))
            runs = self.out()
            self.assertEqual(b"".join(bytes(run.payload) for run in runs), expected)
            self.assertEqual(psns(runs), list(range(PSN, PSN - (-len(expected) // MTU))))
            mutable[:] = b"m" * len(mutable)

    def test_psnWraps(self) -> None:
        self.requester = self.make(psn=PSN_MASK)
        runs = self.send(3 * MTU)
        self.assertEqual([psn & PSN_MASK for psn in psns(runs)], [PSN_MASK, 0, 1])
        self.deliver(ack(0))
        self.assertEqual(self.ended(), [])
        self.deliver(ack(1))
        self.assertEqual(self.ended(), [(1, Status.SUCCESS)])


class CompletionTests(RequesterCase):
    """Requests complete in the order in which they were posted."""

    def test_strayAcknowledgementsAreIgnored(self) -> None:
        self.send(1)
        for psn in (PSN + 1, PSN + 5000, PSN - 1, PSN - 5000):
            self.assertEqual(self.deliver(ack(psn), nak(psn, NAKCode.REMOTE_ACCESS_ERROR), rnr(psn)), [])
        self.assertEqual(self.requester.events(), [])
        self.deliver(ack(PSN))
        self.assertEqual(self.ended(), [(1, Status.SUCCESS)])

    def test_flushReturnsUncompletedInOrder(self) -> None:
        self.send(1, 1)
        self.send(1, 2)
        self.post(self.request(Operation.RDMA_READ, 1, 3))
        self.deliver(ack(PSN))
        self.requester.events()
        self.assertEqual(
            self.requester.flush(), [(2, CompletionOpcode.SEND), (3, CompletionOpcode.RDMA_READ)]
        )
        self.assertEqual((self.out(), self.requester.deadline()), ([], None))
        self.deliver(ack(PSN + 1))
        self.assertEqual(self.requester.events(), [])


class LossTests(RequesterCase):
    """Lost packets are retransmitted (IBA 9.7.6.1.3, 9.9.2.1)."""

    def test_deadlineFollowsAcknowledgements(self) -> None:
        self.assertIsNone(self.requester.deadline())
        self.send(1)
        self.assertAlmostEqual(self.requester.deadline() or 0, TIMEOUT)
        self.now = 0.05
        self.send(1)
        self.assertAlmostEqual(self.requester.deadline() or 0, TIMEOUT)
        self.deliver(ack(PSN))
        self.assertAlmostEqual(self.requester.deadline() or 0, 0.05 + TIMEOUT)
        self.deliver(ack(PSN + 1))
        self.assertIsNone(self.requester.deadline())

    def test_timeoutZeroNeverGivesUp(self) -> None:
        self.requester = self.make(timeout=0, retryCount=1)
        self.send(1)
        for _ in range(1000):
            before = self.now
            self.assertEqual(psns(self.expire()), [PSN])
            self.assertLessEqual(self.now - before, LONGEST_TIMEOUT)
        self.deliver(ack(PSN))
        self.assertEqual(self.ended(), [(1, Status.SUCCESS)])

    def test_lostPacketIsResentAlone(self) -> None:
        first = self.send(3 * MTU)
        again = self.expire()
        self.assertEqual((psns(again), again[0].acknowledge), ([PSN], True))
        again += self.deliver(ack(PSN))
        self.assertEqual(psns(first), psns(again))
        self.assertEqual([bytes(run.payload) for run in first], [bytes(run.payload) for run in again])
        self.deliver(ack(PSN + 2))
        self.assertEqual(self.ended(), [(1, Status.SUCCESS)])

    def test_lostAcknowledgementResendsOnePacket(self) -> None:
        self.send(100 * MTU)
        size = self.requester.window.size
        self.expire()
        self.assertEqual(self.deliver(ack(PSN + 99)), [])
        self.assertEqual(self.ended(), [(1, Status.SUCCESS)])
        self.assertEqual((self.requester.resent, self.requester.window.size), (1, size))

    def test_silentPeerGetsOnePacketAtGrowingIntervals(self) -> None:
        self.requester = self.make(timeout=25)
        self.send(100 * MTU)
        times = []
        while self.now < 120:
            self.assertEqual(psns(self.expire()), [PSN])
            self.assertEqual(self.send(1), [])
            times.append(self.now)
        steps = [later - earlier for earlier, later in pairwise(times)]
        self.assertEqual(steps, sorted(steps))
        self.assertLess(len(times), 130)
        runs = self.deliver(ack(PSN + 9))
        self.assertEqual(psns(runs)[0], PSN + 10)
        self.assertGreater(len(psns(runs)), FEWEST_PACKETS)

    def test_exhaustedRetriesFailOldestRequest(self) -> None:
        for retryCount in (1, 2, 7):
            with self.subTest(retryCount=retryCount):
                self.requester, self.now = self.make(retryCount=retryCount), 0.0
                self.send(1, 1, signaled=False)
                self.send(1, 2)
                tries = 0
                while self.expire():
                    tries += 1
                self.assertAlmostEqual(self.now, TIMEOUT * (retryCount + 1))
                self.assertGreaterEqual(tries, retryCount)
                self.assertEqual(
                    self.requester.events(),
                    [
                        Completion(1, Status.RETRY_EXC_ERR, CompletionOpcode.SEND, QPN(7)),
                        Retired(1),
                        Failed(None),
                    ],
                )
                self.assertEqual(self.requester.flush(), [(2, CompletionOpcode.SEND)])

    def test_retryCountZeroFailsAtOnce(self) -> None:
        self.requester = self.make(retryCount=0)
        self.send(1)
        self.assertEqual(self.expire(), [])
        self.assertAlmostEqual(self.now, TIMEOUT)
        self.assertEqual(self.ended(), [(1, Status.RETRY_EXC_ERR)])
        self.requester = self.make(retryCount=0)
        self.send(1)
        self.assertEqual(self.deliver(nak(PSN, NAKCode.PSN_SEQUENCE_ERROR)), [])
        self.assertEqual(self.ended(), [(1, Status.RETRY_EXC_ERR)])

    def test_progressRenewsTries(self) -> None:
        self.requester = self.make(retryCount=1)
        self.post(*[self.request(Operation.SEND, 1, number) for number in range(5)])
        for number in range(5):
            received = self.now
            while self.now < received + 0.9 * TIMEOUT:
                self.expire()
            self.deliver(ack(PSN + number))
        self.assertEqual(self.ended(), [(number, Status.SUCCESS) for number in range(5)])

    def test_sleptProcessRetriesBeforeFailing(self) -> None:
        self.requester = self.make(retryCount=3)
        self.send(1)
        self.now = 100.0
        self.requester.expired(self.now)
        self.assertEqual(psns(self.out()), [PSN])
        for _ in range(2):
            self.assertEqual(psns(self.expire()), [PSN])
        self.assertEqual(self.ended(), [])
        self.assertEqual(self.expire(), [])
        self.assertGreater(self.now, 100 + 3 * SHORTEST_TIMEOUT)
        self.assertEqual(self.ended(), [(1, Status.RETRY_EXC_ERR)])

    def test_measuredRoundTripShortensResend(self) -> None:
        for number in range(20):
            self.send(1, number)
            self.now += 0.001
            self.deliver(ack(PSN + number))
        self.ended()
        sent = self.now
        self.send(1, 20)
        self.assertEqual(psns(self.expire()), [PSN + 20])
        self.assertLess(self.now - sent, 0.01)

    def test_sequenceErrorResendsOnce(self) -> None:
        self.post(*[self.request(Operation.SEND, 1, number) for number in range(4)])
        self.assertEqual(
            psns(self.deliver(nak(PSN + 1, NAKCode.PSN_SEQUENCE_ERROR))), [PSN + 1, PSN + 2, PSN + 3]
        )
        self.assertEqual(self.ended(), [(0, Status.SUCCESS)])
        self.assertEqual(self.deliver(nak(PSN + 1, NAKCode.PSN_SEQUENCE_ERROR)), [])

    def test_sequenceErrorWithinMessage(self) -> None:
        self.send(4 * MTU)
        runs = self.deliver(nak(PSN + 2, NAKCode.PSN_SEQUENCE_ERROR))
        self.assertEqual(
            [(Opcode(run.opcode), run.psn) for run in runs],
            [(Opcode.RC_SEND_MIDDLE, PSN + 2), (Opcode.RC_SEND_LAST, PSN + 3)],
        )
        self.assertEqual(bytes(runs[0].payload), self.memory.get(2 * MTU, MTU))

    def test_lateAcknowledgementCancelsResend(self) -> None:
        self.post(*[self.request(Operation.SEND, 1, number) for number in range(3)])
        self.now = self.requester.deadline() or 0
        self.requester.expired(self.now)
        self.assertEqual(psns(self.deliver(ack(PSN + 1))), [PSN + 2])

    def test_deregisteredMemoryFailsRequest(self) -> None:
        self.send(1)
        self.memory.region.close()
        self.expire()
        self.assertEqual(self.ended(), [(1, Status.LOC_PROT_ERR)])

    def test_solicitedIsATruthValue(self) -> None:
        """A flag of libibverbs in C{solicited} sets one bit of the header, and not the opcode."""
        (packet,) = self.send(1, solicited=4)
        self.assertIs(packet.solicited, True)

    def test_listWithMalformedRequestIsNotPosted(self) -> None:
        """A request with a field of a wrong type raises, and no request of its list gets a PSN."""
        wrong: Any = self.request(Operation.SEND, 1, 2)
        wrong.remoteAddress = None
        self.assertRaises(TypeError, self.requester.post, [self.request(Operation.SEND, 1, 1), wrong], 0.0)
        self.assertEqual(psns(self.send(1, 3)), [PSN])
        self.deliver(ack(PSN))
        self.assertEqual(self.ended(), [(3, Status.SUCCESS)])

    def test_anyViewOfBytesIsSentInline(self) -> None:
        content = bytes(range(256)) * 2
        spread = bytes(word for byte in content for word in (byte, 0))
        views = (
            memoryview(content).cast("b"),
            memoryview(content).cast("B", (512, 1)),
            memoryview(spread)[::2],
        )
        for view in views:
            requester = self.requester = self.make(psn=PSN)
            requester.post([SendRequest(1, Operation.SEND, inline=[view])], self.now)
            runs = requester.outgoing(self.now)
            self.assertEqual([memoryview(run.payload).format for run in runs], ["B", "B"])
            self.assertEqual(b"".join(run.payload for run in runs), content)

    def test_emptyTablesAreSentInline(self) -> None:
        """An object with rows of no bytes can't be cast, but is a bytes-like object, too."""
        table: Any = (c_uint32 * 3 * 0)()
        self.requester.post([SendRequest(1, Operation.SEND, inline=[b"head", table])], self.now)
        [run] = self.requester.outgoing(self.now)
        self.assertEqual(bytes(run.payload), b"head")


class NotReadyTests(RequesterCase):
    """A request is retried after an RNR NAK and its delay (IBA 9.7.5.2.8)."""

    def test_RNRPauseThenResend(self) -> None:
        self.post(*[self.request(Operation.SEND, 1, number) for number in range(3)])
        self.assertEqual(self.deliver(rnr(PSN + 1, timer=20)), [])
        self.assertEqual(self.ended(), [(0, Status.SUCCESS)])
        self.assertAlmostEqual(self.requester.deadline() or 0, rnrTimerSeconds(20))
        self.assertEqual(self.send(1, 3), [])
        self.assertEqual(psns(self.expire()), [PSN + 1, PSN + 2, PSN + 3])

    def test_duplicateRNRCountsOnce(self) -> None:
        self.requester = self.make(rnrRetry=1)
        self.send(1)
        self.deliver(rnr(PSN), rnr(PSN), rnr(PSN))
        self.assertEqual(self.ended(), [])

    def test_newRetryCountHoldsAtOnce(self) -> None:
        """A changed C{rnrRetry} counts for the next RNR NAK, without an acknowledgement in between."""
        self.requester = self.make(rnrRetry=0)
        self.requester.retune(14, 7, 2, 4)
        self.send(1)
        for _ in range(2):
            self.deliver(rnr(PSN))
            self.assertEqual(psns(self.expire()), [PSN])
        self.deliver(rnr(PSN))
        self.assertEqual(self.ended(), [(1, Status.RNR_RETRY_EXC_ERR)])

    def test_otherAttributesReturnNoRetries(self) -> None:
        self.requester = self.make(rnrRetry=1)
        self.send(1)
        self.deliver(rnr(PSN))
        self.expire()
        self.requester.retune(14, 7, 1, 4)
        self.deliver(rnr(PSN))
        self.assertEqual(self.ended(), [(1, Status.RNR_RETRY_EXC_ERR)])


class RefusalTests(RequesterCase):
    """NAKs complete the request with the status of their code (IBA 9.9.2.4.2)."""

    def test_NAKStatuses(self) -> None:
        for code, status in [
            (NAKCode.INVALID_REQUEST, Status.REM_INV_REQ_ERR),
            (NAKCode.REMOTE_ACCESS_ERROR, Status.REM_ACCESS_ERR),
            (NAKCode.REMOTE_OPERATIONAL_ERROR, Status.REM_OP_ERR),
        ]:
            with self.subTest(code=code):
                self.requester = self.make()
                self.post(*[self.request(Operation.SEND, 1, number) for number in range(3)])
                self.deliver(nak(PSN + 1, code))
                self.assertEqual(self.ended(), [(0, Status.SUCCESS), (1, status)])
                self.assertEqual(self.requester.flush(), [(2, CompletionOpcode.SEND)])

    def test_wrongLocalKeyFailsInTurn(self) -> None:
        bad = self.request(Operation.SEND, 1, 2)
        bad.segments = [self.memory.segment(0, 1)._replace(lkey=LKey(1))]
        self.assertEqual(psns(self.post(self.request(Operation.SEND, 1, 1), bad)), [PSN])
        self.assertEqual(self.ended(), [])
        self.deliver(ack(PSN))
        self.assertEqual(self.ended(), [(1, Status.SUCCESS), (2, Status.LOC_PROT_ERR)])


class WindowTests(RequesterCase):
    """The amount of data in flight is bounded."""

    def test_windowBoundsMessage(self) -> None:
        runs = self.send(200 * MTU)
        self.assertEqual(len(psns(runs)), FIRST_PACKETS)
        self.assertTrue(runs[-1].acknowledge)
        more = self.deliver(ack(PSN + 9))
        self.assertEqual(psns(more), list(range(PSN + FIRST_PACKETS, PSN + FIRST_PACKETS + 10 + 2)))

    def test_windowBoundsBytes(self) -> None:
        self.requester = self.make(mtu=4096)
        self.assertEqual(len(psns(self.send(1 << 20))) * 4096, FIRST)

    def test_lossHalvesWindow(self) -> None:
        self.send(200 * MTU)
        runs = self.deliver(nak(PSN, NAKCode.PSN_SEQUENCE_ERROR))
        self.assertEqual(len(psns(runs)), FIRST_PACKETS // 2)
        self.expire()
        runs = self.deliver(ack(PSN))
        self.assertEqual(len(psns(runs)), FIRST_PACKETS // 4)
        for number in range(1, 6):
            runs = self.deliver(nak(PSN + number, NAKCode.PSN_SEQUENCE_ERROR))
        self.assertEqual(len(psns(runs)), FEWEST_PACKETS)

    def test_acknowledgementsWidenWindow(self) -> None:
        self.send(1000 * MTU)
        self.deliver(*[ack(PSN + number) for number in range(100)])
        self.assertGreater(self.requester.window.size, FIRST_PACKETS)
        self.requester = self.make()
        for number in range(1000):
            self.send(1)
            self.deliver(ack(PSN + number))
        self.assertEqual(self.requester.window.size, FIRST_PACKETS)
