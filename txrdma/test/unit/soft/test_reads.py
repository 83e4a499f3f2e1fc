"""
READs of L{txrdma.soft.rc._requester}: PSNs, answers, gaps, limits and fences.
"""

from __future__ import annotations

from typing import Any

from txrdma.iba.headers import AETH, NAKCode, Opcode, RETH
from txrdma.iba.types import QPN, RKey
from txrdma.iba.verbs import Completion, CompletionOpcode, Operation, Status
from txrdma.soft.core.roundtrip import EXPECTED_AT_FIRST
from txrdma.soft.rc._packets import Outgoing
from txrdma.soft.rc._requester import READ_CHUNK
from txrdma.test.support.soft.cores import ack, completions, incoming, nak
from txrdma.test.unit.soft.test_requester import MTU, PSN, psns, RequesterCase


class ReadTests(RequesterCase):
    """RDMA READ (IBA 9.4.4, 9.7.5.1.3)."""

    def setUp(self) -> None:
        super().setUp()
        self.memory.put(0, bytes(1 << 20))

    def read(self, length: int, identifier: int = 1, **more: Any) -> list[Outgoing]:
        return self.post(self.request(Operation.RDMA_READ, length, identifier, **more))

    def answer(self, place: str, psn: int, payload: bytes, packets: int = 1) -> list[Outgoing]:
        opcode = Opcode[f"RC_RDMA_READ_RESPONSE_{place}"]
        extension = b"" if place == "MIDDLE" else AETH.ack(1).encode()
        return self.deliver(incoming(opcode, psn, payload, extension, packets=packets))

    def test_answersFillSegments(self) -> None:
        request = self.request(Operation.RDMA_READ, 0)
        request.segments = [self.memory.segment(0, 100), self.memory.segment(500, 4 * MTU)]
        self.post(request)
        data = bytes(range(256)) * 4 + b"z" * 100
        self.answer("FIRST", PSN, data[:MTU])
        self.answer("MIDDLE", PSN + 1, data[MTU : 4 * MTU], packets=3)
        self.assertEqual(self.ended(), [])
        self.answer("LAST", PSN + 4, data[4 * MTU :])
        self.assertEqual(
            completions(self.requester.events()),
            [Completion(1, Status.SUCCESS, CompletionOpcode.RDMA_READ, QPN(7), len(data))],
        )
        self.assertEqual(self.memory.get(0, 100) + self.memory.get(500, 4 * MTU), data)

    def test_emptyReadHasOneAnswer(self) -> None:
        self.read(0)
        self.answer("ONLY", PSN, b"")
        self.assertEqual(self.ended(), [(1, Status.SUCCESS)])

    def test_gapInAnswersRepeatsFromGap(self) -> None:
        self.read(4 * MTU)
        self.answer("FIRST", PSN, b"a" * MTU)
        [run] = self.answer("MIDDLE", PSN + 2, b"c" * MTU)
        self.assertEqual(
            (run.psn, RETH.decode(run.extension)),
            (PSN + 1, RETH(address=0x1000 + MTU, rkey=RKey(0x77), length=3 * MTU)),
        )
        self.assertEqual(self.answer("LAST", PSN + 3, b"d" * MTU), [])
        self.answer("FIRST", PSN + 1, b"b" * MTU)
        self.answer("MIDDLE", PSN + 2, b"c" * MTU)
        self.answer("LAST", PSN + 3, b"d" * MTU)
        self.assertEqual(self.ended(), [(1, Status.SUCCESS)])
        self.assertEqual(self.memory.get(0, 4 * MTU), b"".join(c * MTU for c in (b"a", b"b", b"c", b"d")))

    def test_disorderedAnswersRepeatOncePerRoundTrip(self) -> None:
        count = 64
        self.read(count * MTU)
        asked = 0
        for number in range(0, count - 2, 2):  # swap pairs
            asked += len(self.answer("MIDDLE", PSN + number + 1, b"x" * MTU))
            asked += len(self.answer("MIDDLE" if number else "FIRST", PSN + number, b"x" * MTU))
        self.assertEqual(asked, 1)
        self.now += EXPECTED_AT_FIRST
        self.assertEqual(len(self.answer("LAST", PSN + count - 1, b"x" * MTU)), 1)

    def test_laterAcknowledgementMeansLostAnswer(self) -> None:
        self.read(MTU)
        self.send(1, 2)
        self.assertEqual(psns(self.deliver(ack(PSN + 1))), [PSN, PSN + 1])
        self.assertEqual(self.ended(), [])
        self.answer("ONLY", PSN, b"r" * MTU)
        self.deliver(ack(PSN + 1))
        self.assertEqual(self.ended(), [(1, Status.SUCCESS), (2, Status.SUCCESS)])

    def test_wrongLengthIsErrorAndNotWritten(self) -> None:
        for payload in (b"", b"x" * 9, b"x" * MTU):
            with self.subTest(length=len(payload)):
                self.requester = self.make()
                self.read(8)
                self.answer("ONLY", PSN, payload)
                self.assertEqual(self.ended(), [(1, Status.BAD_RESP_ERR)])
                self.assertEqual(self.memory.get(0, MTU), bytes(MTU))

    def test_longReadIsSplitUpToPeersLimit(self) -> None:
        self.requester = self.make(maxRDAtomic=2, mtu=4096)
        runs = self.read(READ_CHUNK * 3 + 5)
        step = READ_CHUNK // 4096
        self.assertEqual([run.psn for run in runs], [PSN, PSN + step])
        self.assertEqual([RETH.decode(run.extension).length for run in runs], [READ_CHUNK] * 2)
        more = self.answer("MIDDLE", PSN, b"x" * READ_CHUNK, packets=step)
        self.assertEqual([run.psn for run in more], [PSN + 2 * step])

    def test_repeatedReadIsSplitAtSameOffsets(self) -> None:
        for first in (PSN, PSN + 1):
            self.requester = self.make(maxRDAtomic=2, mtu=4096, psn=first)
            self.read(READ_CHUNK * 2)
            self.answer("FIRST", first, b"x" * 4096)
            runs = self.deliver(nak(first + 1, NAKCode.PSN_SEQUENCE_ERROR))
            self.assertEqual(
                [(run.psn, RETH.decode(run.extension).length) for run in runs],
                [(first + 1, READ_CHUNK - 4096), (first + READ_CHUNK // 4096, READ_CHUNK)],
            )

    def test_longerAnswerIsErrorAndNotWritten(self) -> None:
        for packets in (3, 4):
            with self.subTest(packets=packets):
                self.requester = self.make()
                self.memory.put(0, bytes(8 * MTU))
                length = (packets - 1) * MTU + 8
                self.read(length)
                self.answer("FIRST", PSN, b"x" * MTU)
                self.answer("MIDDLE", PSN + 1, b"x" * (packets - 1) * MTU, packets=packets - 1)
                self.assertEqual(self.ended(), [(1, Status.BAD_RESP_ERR)])
                self.assertEqual(self.memory.get(length, MTU), bytes(MTU))
