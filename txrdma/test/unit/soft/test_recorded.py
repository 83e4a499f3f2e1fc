"""
L{txrdma.soft.rc._requester} and L{txrdma.soft.rc._responder}, compared with recordings of kernels.
"""

from __future__ import annotations

from collections import deque
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import ProtectionError
from txrdma.iba.headers import AETH, AtomicETH, BTH, Opcode, RETH
from txrdma.iba.roce import RoCEPacket
from txrdma.iba.types import LKey, QPN
from txrdma.iba.verbs import Access, Operation, ReceiveRequest, Segment, SendRequest, Status
from txrdma.soft.rc._packets import Incoming, PSN_MASK
from txrdma.soft.rc._responder import Responder
from txrdma.test.support.captures import packets
from txrdma.test.support.soft.cores import arrived
from txrdma.test.unit.soft.test_requester import RequesterCase
from txrdma.test.unit.soft.test_responder import RIGHTS


def isRequest(opcode: int) -> bool:
    """Return whether packets with this opcode are requests."""
    return opcode <= Opcode.RC_RDMA_READ_REQUEST or opcode in (Opcode.RC_COMPARE_SWAP, Opcode.RC_FETCH_ADD)


class RequesterTests(RequesterCase):
    """The packets of a requester equal the kernel's, whose answers complete the same requests."""

    def compare(
        self,
        name: str,
        sender: str,
        requests: list[SendRequest],
        answers: set[Opcode],
        last: Status = Status.SUCCESS,
    ) -> None:
        """
        Post the requests one after the other, like the kernel's user.

        @param answers: opcodes with which the peer completes a request.
        @param last: status of the last request.
        """
        found = [captured for captured in packets(name) if captured.packet.bth.opcode < Opcode.UC_SEND_FIRST]
        sent = [captured.packet for captured in found if captured.source == sender]
        recorded = iter([packet for packet in sent if isRequest(packet.bth.opcode)])
        came = iter([c for c in found if c.destination == sender and c.packet.bth.opcode in answers])
        self.requester = self.make(mtu=1024, psn=sent[0].bth.psn)
        for request in requests:
            for run in self.post(request):
                packet = RoCEPacket.decode(arrived(run).data)
                expected = next(recorded)
                self.assertEqual(packet.extensions, expected.extensions)
                self.assertEqual(packet.payload, expected.payload)
                self.assertEqual(
                    (packet.bth.opcode, packet.bth.psn, packet.bth.acknowledge, packet.bth.pad),
                    (expected.bth.opcode, expected.bth.psn, expected.bth.acknowledge, expected.bth.pad),
                )
            answer = next(came).payload
            pad = answer[1] >> 4 & 3
            self.deliver(Incoming(answer[0], False, pad, memoryview(answer), len(answer), 1))
            status = last if request is requests[-1] else Status.SUCCESS
            self.assertEqual(self.ended(), [(request.identifier, status)])
        self.assertEqual(list(recorded), [])

    def test_pingPong(self) -> None:
        self.memory.put(0, b"\x7b" * 3000)
        requests = [self.request(Operation.SEND, 3000, number) for number in range(2)]
        self.compare("rc-pingpong", "10.77.0.1", requests, {Opcode.RC_ACKNOWLEDGE})

    def test_writeSendReadAtomicAndRefusedWrite(self) -> None:
        sent = [c.packet for c in packets("verbs") if c.source == "10.77.0.1"]
        operations = {
            Opcode.RC_RDMA_WRITE_ONLY: Operation.RDMA_WRITE,
            Opcode.RC_SEND_ONLY: Operation.SEND,
            Opcode.RC_RDMA_READ_REQUEST: Operation.RDMA_READ,
            Opcode.RC_FETCH_ADD: Operation.FETCH_AND_ADD,
        }
        requests = []
        for identifier, packet in enumerate(sent):
            offset = 100 * identifier
            self.memory.put(offset, packet.payload or b"\xaa" * 8)
            write, atomic = packet.get(RETH), packet.get(AtomicETH)
            length = 8 if atomic else len(packet.payload) if write is None else write.length
            operation = operations[packet.bth.opcode]
            request = SendRequest(identifier, operation, [self.memory.segment(offset, length)])
            header = write or atomic
            if header is not None:
                request.remoteAddress, request.rkey = header.address, header.rkey
            if atomic is not None:
                request.operand = atomic.swap
            requests.append(request)
        self.assertEqual(len(requests), 5)
        answers = {
            Opcode.RC_ACKNOWLEDGE,
            Opcode.RC_RDMA_READ_RESPONSE_ONLY,
            Opcode.RC_ATOMIC_ACKNOWLEDGE,
        }
        self.compare("verbs", "10.77.0.1", requests, answers, Status.REM_ACCESS_ERR)
        self.assertEqual(self.memory.get(200, 12), b"written by a")
        self.assertEqual(self.memory.get(300, 8), bytes(8))


class Grants:
    """A key table that grants all access, with new memory for each key."""

    def __init__(self, unknown: set[int]) -> None:
        self.unknown = unknown
        self.spaces: dict[int, tuple[int, bytearray]] = {}

    def remote(self, domain: object, rkey: int, address: int, length: int, need: int) -> memoryview:
        if rkey in self.unknown:
            raise ProtectionError("as in the recording")
        base, space = self.spaces.setdefault(rkey, (address - 65536, bytearray(1 << 18)))
        return memoryview(space)[address - base : address - base + length]

    def local(self, domain: object, segment: Segment, write: bool) -> memoryview:
        return memoryview(bytearray(segment.length))


class ResponderTests(SynchronousTestCase):
    """
    Requests of kernels get the same answers as from the kernels that were their peers.

    @ivar unknown: keys that the kernel did not know.
    """

    unknown: set[int] = set()

    def play(self, name: str, midway: bool = False) -> int:
        """
        Pass each request to a responder, and compare its answers with the recorded ones.

        @param midway: the connection is older than the recording, so MSNs start at any number.
        @return: number of equal answers.
        """
        found = [(captured, captured.packet) for captured in packets(name)]
        answered = 0
        for address, number in sorted(
            {(c.destination, p.bth.destination) for c, p in found if isRequest(p.bth.opcode)}
        ):
            requests = [
                (c, p)
                for c, p in found
                if (c.destination, p.bth.destination) == (address, number) and isRequest(p.bth.opcode)
            ]
            peer = requests[0][0].source
            recorded = [
                (p.bth.opcode, p.bth.psn, aeth.syndrome, aeth.msn, *p.extensions[1:], p.payload)
                for c, p in found
                if (c.source, c.destination) == (address, peer)
                and Opcode.RC_RDMA_READ_RESPONSE_FIRST <= p.bth.opcode <= Opcode.RC_ATOMIC_ACKNOWLEDGE
                and (aeth := p.get(AETH)) is not None
                and any(0 <= p.bth.psn - q.bth.psn < 4 for _, q in requests)
            ]
            answered += self.compare(requests, recorded, midway)
        return answered

    def compare(self, requests: list[Any], recorded: list[Any], midway: bool) -> int:
        grants = Grants(self.unknown)
        receives = deque(ReceiveRequest(n, [Segment(0, 8192, LKey(0))]) for n in range(1000))
        responder = Responder(
            QPN(1),
            grants,  # type: ignore[arg-type]  # a stub of what is used
            object(),  # type: ignore[arg-type]  # ignored by Grants
            receives,
            mtu=1024,
            psn=requests[0][1].bth.psn,
            access=RIGHTS | int(Access.REMOTE_ATOMIC),
            maxDestRDAtomic=4,
            minRNRTimer=0,
        )
        actual: list[Any] = []
        contents = {}
        for opcode, psn, _syndrome, _msn, *_atomic, payload in recorded:
            if opcode == Opcode.RC_RDMA_READ_RESPONSE_ONLY:
                contents[psn] = payload
        for captured, packet in requests:
            if packet.bth.psn in contents:  # contents of the kernel's memory
                header = packet.extensions[0]
                grants.remote(None, header.rkey, header.address, header.length, 0)[:] = contents[
                    packet.bth.psn
                ]
            data = memoryview(captured.payload)
            bth: BTH = packet.bth
            responder.received(Incoming(bth.opcode, bth.solicited, bth.pad, data, len(data), 1), 0.0)
            for run in responder.outgoing(0.0):
                packet = RoCEPacket.decode(arrived(run).data)
                aeth = packet.get(AETH)
                assert aeth is not None
                number, atomic = run.psn & PSN_MASK, packet.extensions[1:]
                actual.append((run.opcode, number, aeth.syndrome, aeth.msn, *atomic, packet.payload))
        older = recorded[0][3] - actual[0][3] if midway else 0
        self.assertEqual([(*answer[:3], answer[3] + older, *answer[4:]) for answer in actual], recorded)
        return len(actual)

    def test_pingPong(self) -> None:
        self.assertEqual(self.play("rc-pingpong"), 4)

    def test_rdmaPing(self) -> None:
        self.assertEqual(self.play("rping"), 12)

    def test_writeSendReadAtomicAndWrongKey(self) -> None:
        wrong = [c.packet.get(RETH) for c in packets("verbs") if c.source == "10.77.0.1"][-1]
        assert wrong is not None
        self.unknown = {wrong.rkey}
        self.assertEqual(self.play("verbs"), 5)

    def test_kernelSMC(self) -> None:
        for name in ("smc-first", "smc-second", "smc-wrap", "smc-halfclose", "smc-urgent", "smc-test-link"):
            with self.subTest(name=name):
                self.assertGreater(self.play(name, midway=True), 5)
