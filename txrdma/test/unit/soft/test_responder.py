"""
Tests for L{txrdma.soft.rc._responder}.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.headers import AETH, AETHKind, NAKCode, Opcode
from txrdma.iba.types import LKey, QPN
from txrdma.iba.verbs import (
    Access,
    AsyncEventKind,
    Completion,
    CompletionOpcode,
    ReceiveRequest,
    Segment,
    Status,
)
from txrdma.soft.rc._packets import Failed, Incoming, Outgoing, PSN_MASK, Received
from txrdma.soft.rc._responder import MOST_AT_ONCE, Responder
from txrdma.test.support.soft.cores import incoming, Memory, responder, reth

MTU = 256
PSN = 500
RIGHTS = int(Access.REMOTE_WRITE | Access.REMOTE_READ)

SEND_ONLY = Opcode.RC_SEND_ONLY
WRITE_ONLY = Opcode.RC_RDMA_WRITE_ONLY


class ResponderCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.memory = Memory()
        self.receives: deque[ReceiveRequest] = deque()
        self.responder = self.make()

    def make(self, **changes: Any) -> Responder:  # arguments of different types
        return responder(self.memory, self.receives, **{"psn": PSN, "access": RIGHTS, **changes})

    def receive(self, identifier: int, *pieces: tuple[int, int]) -> None:
        self.receives.append(
            ReceiveRequest(identifier, [self.memory.segment(offset, length) for offset, length in pieces])
        )

    def deliver(self, *runs: Incoming) -> list[Outgoing]:
        """Deliver requests together; return the answers."""
        for run in runs:
            self.responder.received(run, 0.0)
        return self.responder.outgoing(0.0)

    def answers(self, *runs: Incoming) -> list[tuple[int, AETHKind, int, int]]:
        """Return answers as PSN, kind, value and MSN."""
        found = []
        for run in self.deliver(*runs):
            aeth = AETH.decode(run.extension)
            found.append((run.psn, aeth.kind, aeth.value, aeth.msn))
        return found

    def write(self, psn: int, offset: int, data: bytes, **more: Any) -> Incoming:
        """Return an RDMA WRITE of one packet."""
        return incoming(WRITE_ONLY, psn, data, self.reth(offset, len(data)), **more)

    def reth(self, offset: int, length: int) -> bytes:
        region = self.memory.region
        return reth(region.address + offset, region.rkey, length)

    def read(self, psn: int, offset: int, length: int) -> Incoming:
        return incoming(Opcode.RC_RDMA_READ_REQUEST, psn, b"", self.reth(offset, length), acknowledge=True)

    def assertRefused(self, psn: int, code: NAKCode, kind: AsyncEventKind | None, *runs: Incoming) -> None:
        """Assert that these end the connection without changing memory."""
        before = bytes(self.memory.bytes)
        self.assertEqual([answer[:3] for answer in self.answers(*runs)], [(psn, AETHKind.NAK, code)])
        self.assertEqual(bytes(self.memory.bytes), before)
        self.assertEqual(self.responder.events()[-1], Failed(kind))
        self.assertEqual(self.deliver(incoming(SEND_ONLY, psn, b"x", acknowledge=True)), [])

    def assertInvalid(self, *runs: Incoming, psn: int = PSN) -> None:
        self.assertRefused(psn, NAKCode.INVALID_REQUEST, AsyncEventKind.QP_REQUEST_ERROR, *runs)


def flushed(identifier: int) -> Completion:
    """Return the completion of a partially filled receive."""
    return Completion(identifier, Status.WR_FLUSH_ERR, CompletionOpcode.RECEIVE, QPN(7))


ACK = AETHKind.ACK, 31
"""Kind and value of an acknowledgement without credits."""


class SendTests(ResponderCase):
    """SENDs fill receives."""

    def test_longMessageFillsSegments(self) -> None:
        self.receive(1, (0, 100), (1000, 5000))
        data = bytes(range(256)) * 4 + b"end"
        self.deliver(incoming(Opcode.RC_SEND_FIRST, PSN, data[:MTU]))
        self.deliver(incoming(Opcode.RC_SEND_MIDDLE, PSN + 1, data[MTU : 4 * MTU], packets=3))
        self.assertEqual(self.responder.events(), [])
        last = incoming(
            Opcode.RC_SEND_LAST_WITH_IMMEDIATE, PSN + 4, b"end", b"\0\0\1\0", solicited=True, acknowledge=True
        )
        self.assertEqual(self.answers(last), [(PSN + 4, *ACK, 1)])
        [event] = self.responder.events()
        assert isinstance(event, Received)
        self.assertTrue(event.solicited)
        self.assertEqual((event.completion.length, event.completion.immediate), (len(data), 256))
        self.assertEqual(self.memory.get(0, 100) + self.memory.get(1000, len(data) - 100), data)

    def test_psnWraps(self) -> None:
        self.responder = self.make(psn=PSN_MASK)
        for number in range(3):
            self.receive(number, (0, 10))
        runs = [incoming(SEND_ONLY, PSN_MASK + number, b"x", acknowledge=True) for number in range(3)]
        [answer] = self.answers(*runs)
        self.assertEqual(answer[0] & PSN_MASK, 1)
        self.assertEqual(len(self.responder.events()), 3)

    def test_RNRNakIsSentOnce(self) -> None:
        asks = incoming(SEND_ONLY, PSN, b"x", acknowledge=True)
        behind = incoming(SEND_ONLY, PSN + 1, b"y", acknowledge=True)
        self.assertEqual(self.answers(asks, behind), [(PSN, AETHKind.RNR_NAK, 12, 0)])
        self.assertEqual(self.answers(behind), [])
        self.receive(1, (0, 10))
        self.receive(2, (10, 10))
        self.assertEqual(self.answers(asks, behind), [(PSN + 1, *ACK, 2)])

    def test_wrongReceiveKeyFailsBothEnds(self) -> None:
        self.receives.append(ReceiveRequest(1, [Segment(self.memory.region.address, 10, LKey(3))]))
        answers = self.answers(incoming(SEND_ONLY, PSN, b"x", acknowledge=True))
        self.assertEqual(answers, [(PSN, AETHKind.NAK, NAKCode.REMOTE_OPERATIONAL_ERROR, 0)])
        failed = Completion(1, Status.LOC_PROT_ERR, CompletionOpcode.RECEIVE, QPN(7))
        self.assertEqual(self.responder.events(), [Received(failed, True), Failed(None)])

    def test_halfFilledReceiveIsFlushed(self) -> None:
        self.receive(1, (0, 1000))
        self.receive(2, (0, 1000))
        self.deliver(incoming(Opcode.RC_SEND_FIRST, PSN, b"a" * MTU))
        self.responder.flush()
        self.assertEqual(self.responder.events(), [Received(flushed(1), True)])
        self.assertEqual([receive.identifier for receive in self.receives], [2])

    def test_refusalWithinMessageFlushesReceive(self) -> None:
        self.receive(1, (0, 1000))
        self.deliver(incoming(Opcode.RC_SEND_FIRST, PSN, b"a" * MTU))
        self.assertInvalid(self.read(PSN + 1, 0, 1), psn=PSN + 1)
        self.responder.flush()
        self.assertEqual(self.responder.events(), [Received(flushed(1), True)])


class OrderTests(ResponderCase):
    """Missing and duplicate packets (IBA 9.7.4.1.2, 9.7.5.1.2)."""

    def test_gapIsReportedOnce(self) -> None:
        for number in range(3):
            self.receive(number, (0, 10))
        first, second, third = (
            incoming(SEND_ONLY, PSN + number, b"%d" % number, acknowledge=True) for number in range(3)
        )
        self.assertEqual(self.answers(second), [(PSN, AETHKind.NAK, NAKCode.PSN_SEQUENCE_ERROR, 0)])
        self.assertEqual(self.answers(third), [])
        self.assertEqual(self.answers(first), [(PSN, *ACK, 1)])
        self.assertEqual(self.answers(third), [(PSN + 1, AETHKind.NAK, NAKCode.PSN_SEQUENCE_ERROR, 1)])
        self.assertEqual(self.answers(second, third), [(PSN + 2, *ACK, 3)])
        self.assertEqual(len(self.responder.events()), 3)

    def test_duplicateIsAcknowledgedNotExecuted(self) -> None:
        self.receive(1, (0, 10))
        self.receive(2, (10, 10))
        send = incoming(SEND_ONLY, PSN, b"x", acknowledge=True)
        write = self.write(PSN + 1, 100, b"first", acknowledge=True)
        self.deliver(send, write)
        self.memory.put(100, b"newer")
        self.assertEqual(self.answers(send), [(PSN + 1, *ACK, 2)])
        self.assertEqual(self.answers(write), [(PSN + 1, *ACK, 2)])
        self.assertEqual(self.memory.get(100, 5), b"newer")
        self.assertEqual((len(self.receives), self.responder.duplicates), (1, 2))

    def test_gapWithinRun(self) -> None:
        self.receive(1, (0, 4000))
        self.deliver(incoming(Opcode.RC_SEND_FIRST, PSN, b"a" * MTU))
        run = incoming(Opcode.RC_SEND_MIDDLE, PSN + 1, b"b" * MTU + b"c" * MTU + b"d" * MTU, packets=3)
        data = bytearray(run.data)
        data[run.stride + 11] += 1  # the PSN of the second one, as if one between were lost
        answers = self.answers(run._replace(data=memoryview(data)))
        self.assertEqual(answers, [(PSN + 2, AETHKind.NAK, NAKCode.PSN_SEQUENCE_ERROR, 0)])
        self.assertEqual(self.memory.get(MTU, 2 * MTU), b"b" * MTU + b"\xee" * MTU)

    def test_duplicateReadIsExecutedFromItsAddress(self) -> None:
        self.memory.put(0, b"a" * MTU + b"b" * MTU + b"c" * 10)
        self.deliver(self.read(PSN, 0, 2 * MTU + 10))
        runs = self.deliver(self.read(PSN + 1, MTU, MTU + 10))
        self.assertEqual(
            [(Opcode(run.opcode), run.psn, bytes(run.payload)) for run in runs],
            [
                (Opcode.RC_RDMA_READ_RESPONSE_FIRST, PSN + 1, b"b" * MTU),
                (Opcode.RC_RDMA_READ_RESPONSE_LAST, PSN + 2, b"c" * 10),
            ],
        )

    def test_duplicateReadBeyondRequestIsDropped(self) -> None:
        self.deliver(self.read(PSN, 0, 2 * MTU))
        self.assertEqual(self.deliver(self.read(PSN + 1, 0, 2 * MTU)), [])
        self.assertEqual(self.responder.events(), [])


class WriteTests(ResponderCase):
    """RDMA WRITEs respect access rights."""

    def test_writeWithImmediateTakesReceive(self) -> None:
        self.receive(4, (0, 0))
        self.deliver(
            incoming(Opcode.RC_RDMA_WRITE_ONLY_WITH_IMMEDIATE, PSN, b"abc", self.reth(0, 3) + b"\0\0\0\x11")
        )
        kind = CompletionOpcode.RECEIVE_RDMA_WITH_IMMEDIATE
        self.assertEqual(
            self.responder.events(),
            [Received(Completion(4, Status.SUCCESS, kind, QPN(7), 3, 0x11), False)],
        )

    def test_onlyImmediatePacketNeedsReceive(self) -> None:
        data = b"a" * (MTU + 4)
        first = incoming(Opcode.RC_RDMA_WRITE_FIRST, PSN, data[:MTU], self.reth(0, len(data)))
        last = incoming(
            Opcode.RC_RDMA_WRITE_LAST_WITH_IMMEDIATE, PSN + 1, data[MTU:], bytes(4), acknowledge=True
        )
        self.assertEqual(self.answers(first, last), [(PSN + 1, AETHKind.RNR_NAK, 12, 0)])
        self.receive(1)
        self.assertEqual(self.answers(last), [(PSN + 1, *ACK, 1)])

    def test_writeLongerThanRETH(self) -> None:
        first = incoming(Opcode.RC_RDMA_WRITE_FIRST, PSN, b"a" * MTU, self.reth(0, MTU + 4))
        self.deliver(first)
        self.assertInvalid(incoming(Opcode.RC_RDMA_WRITE_MIDDLE, PSN + 1, b"b" * MTU), psn=PSN + 1)

    def test_writeShorterThanRETH(self) -> None:
        self.deliver(incoming(Opcode.RC_RDMA_WRITE_FIRST, PSN, b"a" * MTU, self.reth(0, 3 * MTU)))
        self.assertInvalid(incoming(Opcode.RC_RDMA_WRITE_LAST, PSN + 1, b"b" * 4), psn=PSN + 1)

    def test_deregisteredWithinMessage(self) -> None:
        self.deliver(incoming(Opcode.RC_RDMA_WRITE_FIRST, PSN, b"a" * MTU, self.reth(0, 3 * MTU)))
        self.memory.region.close()
        middle = incoming(Opcode.RC_RDMA_WRITE_MIDDLE, PSN + 1, b"b" * MTU)
        self.assertRefused(PSN + 1, NAKCode.REMOTE_ACCESS_ERROR, AsyncEventKind.QP_ACCESS_ERROR, middle)


class ReadTests(ResponderCase):
    """RDMA READs are answered."""

    def test_longAnswerIsSplitIntoPackets(self) -> None:
        data = bytes(range(256)) * 20 + b"tail"
        self.memory.put(0, data)
        runs = self.deliver(self.read(PSN, 0, len(data)))
        self.assertEqual(
            [(Opcode(run.opcode), run.packets) for run in runs],
            [
                (Opcode.RC_RDMA_READ_RESPONSE_FIRST, 1),
                (Opcode.RC_RDMA_READ_RESPONSE_MIDDLE, 15),
                (Opcode.RC_RDMA_READ_RESPONSE_MIDDLE, 4),
                (Opcode.RC_RDMA_READ_RESPONSE_LAST, 1),
            ],
        )
        self.assertEqual(b"".join(bytes(run.payload) for run in runs), data)
        self.assertEqual(self.answers(self.write(PSN + 21, 0, b"x", acknowledge=True)), [(PSN + 21, *ACK, 2)])

    def test_opcodesOfShortAnswers(self) -> None:
        for length, opcodes in ((0, [0x10]), (MTU, [0x10]), (MTU + 1, [0x0D, 0x0F])):
            with self.subTest(length=length):
                self.responder = self.make()
                self.assertEqual([run.opcode for run in self.deliver(self.read(PSN, 0, length))], opcodes)

    def test_longAnswerTakesSeveralTurns(self) -> None:
        runs = self.deliver(self.read(PSN, 0, 200 * MTU), self.write(PSN + 200, 0, b"w", acknowledge=True))
        packets = sum(run.packets for run in runs)
        self.assertEqual((packets, self.responder.pending), (MOST_AT_ONCE, True))
        while self.responder.pending:
            runs += self.responder.outgoing(0.0)
        self.assertEqual(sum(run.packets for run in runs), 201)
        self.assertEqual(runs[-1].opcode, Opcode.RC_ACKNOWLEDGE)

    def test_repeatedReadRestartsAnswer(self) -> None:
        self.deliver(self.read(PSN, 0, 200 * MTU))
        runs = self.deliver(self.read(PSN + 30, 30 * MTU, 170 * MTU))
        while self.responder.pending:
            runs += self.responder.outgoing(0.0)
        self.assertEqual(
            [run.psn + number for run in runs for number in range(run.packets)],
            list(range(PSN + 30, PSN + 200)),
        )

    def test_deregisteredWhileAnswering(self) -> None:
        self.deliver(self.read(PSN, 0, 200 * MTU))
        self.memory.region.close()
        [answer] = self.answers()
        self.assertEqual(answer[:3], (PSN + MOST_AT_ONCE, AETHKind.NAK, NAKCode.REMOTE_ACCESS_ERROR))

    def test_deregisteredBeforeRepeatedAnswer(self) -> None:
        """A repeated answer is dropped without its memory, since the peer may have the first one."""
        self.deliver(self.read(PSN, 0, 8))
        self.responder.received(self.read(PSN, 0, 8), 0.0)
        self.memory.region.close()
        self.assertEqual((self.responder.outgoing(0.0), self.responder.pending), ([], False))
        [answer] = self.answers(self.write(PSN + 1, 0, b"", acknowledge=True))
        self.assertEqual(answer[:2], (PSN + 1, AETHKind.ACK))

    def test_deregisteredWhileRestarted(self) -> None:
        """A READ whose answer was not complete before it was repeated fails without its memory."""
        self.deliver(self.read(PSN, 0, 200 * MTU))
        self.responder.received(self.read(PSN + 30, 30 * MTU, 170 * MTU), 0.0)
        self.memory.region.close()
        [answer] = self.answers()
        self.assertEqual(answer[:3], (PSN + 30, AETHKind.NAK, NAKCode.REMOTE_ACCESS_ERROR))


class InvalidTests(ResponderCase):
    """Invalid requests (IBA 9.7.4.1.3, 9.7.4.1.4)."""

    def test_strangeOpcodes(self) -> None:
        for opcode in (0x13, 0x14, 0x15, 0x16, 0x17, 0x1F):
            with self.subTest(opcode=opcode):
                self.responder = self.make()
                self.assertInvalid(incoming(opcode, PSN, bytes(28)))

    def test_messageSequenceIsEnforced(self) -> None:
        self.receive(1, (0, 4000))
        full = b"x" * MTU
        first = incoming(Opcode.RC_SEND_FIRST, PSN, full)
        for runs in (
            [incoming(Opcode.RC_SEND_MIDDLE, PSN, full)],
            [incoming(Opcode.RC_SEND_LAST, PSN, b"x")],
            [incoming(Opcode.RC_RDMA_WRITE_LAST, PSN, b"x")],
            [first, incoming(Opcode.RC_SEND_FIRST, PSN + 1, full)],
            [first, incoming(SEND_ONLY, PSN + 1, b"x")],
            [first, incoming(Opcode.RC_RDMA_WRITE_MIDDLE, PSN + 1, full)],
            [first, self.write(PSN + 1, 0, b"x")],
            [first, self.read(PSN + 1, 0, 1)],
        ):
            with self.subTest(opcodes=[Opcode(run.opcode).name for run in runs]):
                self.setUp()
                self.receive(1, (0, 4000))
                self.deliver(*runs[:-1])
                self.assertInvalid(runs[-1], psn=PSN + len(runs) - 1)

    def test_packetLengthsAreEnforced(self) -> None:
        first = incoming(Opcode.RC_SEND_FIRST, PSN, b"x" * MTU)
        for runs in (
            [incoming(Opcode.RC_SEND_FIRST, PSN, b"x" * (MTU - 4))],
            [incoming(Opcode.RC_SEND_FIRST, PSN, b"x" * (MTU - 1))],
            [incoming(SEND_ONLY, PSN, b"x" * (MTU + 4))],
            [first, incoming(Opcode.RC_SEND_MIDDLE, PSN + 1, b"x" * (MTU - 4))],
            [first, incoming(Opcode.RC_SEND_LAST, PSN + 1, b"")],
        ):
            with self.subTest(opcodes=[Opcode(run.opcode).name for run in runs]):
                self.setUp()
                self.receive(1, (0, 4000))
                self.deliver(*runs[:-1])
                self.assertInvalid(runs[-1], psn=PSN + len(runs) - 1)

    def test_truncatedHeaders(self) -> None:
        for opcode in range(0x18):
            if 0x0D <= opcode <= 0x12:
                continue  # answers are for the requester
            for size in (0, 4, 12):
                with self.subTest(opcode=opcode, size=size):
                    self.responder = self.make()
                    self.receives.clear()
                    self.receive(1, (0, 4000))
                    run = incoming(opcode, PSN, b"", bytes(size))
                    self.responder.received(run, 0.0)
                    self.responder.outgoing(0.0)
                    self.assertEqual(bytes(self.memory.bytes[:64]), b"\xee" * 64)

    def test_paddingBeyondPayload(self) -> None:
        run = incoming(SEND_ONLY, PSN, b"")
        self.receive(1, (0, 10))
        self.assertInvalid(run._replace(pad=3))
