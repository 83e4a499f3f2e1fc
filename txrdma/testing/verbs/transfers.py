"""
Promises of every device about data transfers.

Follows InfiniBand Architecture vol. 1, 9.4 (transport functions) and 10.8 (work requests).
"""

from __future__ import annotations

from array import array
from itertools import pairwise
from random import Random

from txrdma.iba.types import LKey, MTU, RKey
from txrdma.iba.verbs import (
    Access,
    Buffer,
    Capacity,
    Completion,
    CompletionOpcode,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    Segment,
    SendRequest,
    Status,
)
from txrdma.testing.verbs.ends import End, EVERYTHING, QKEY, TwoEnds

LONG = 40_001
"""Number of bytes that need many packets, the last of which is not full."""


def noise(length: int, seed: int = 1) -> bytes:
    """Return pseudorandom bytes without repetition, the same for the same seed."""
    return Random(seed).randbytes(length)


class SendContract(TwoEnds):
    """Promises about messages from a send queue to a receive queue."""

    def test_send(self) -> None:
        """A message fills the posted receive, and completes on both sides."""
        alice, bob = self.pair()
        bob.receive(bob.segment(100, 64), identifier=8)
        alice.send(alice.fill(b"hello"), identifier=7)
        self.runUntilBothCompleted(alice, bob)
        self.assertEqual(bytes(bob.memory.view[100:106]), b"hello\0")
        (sent,) = alice.sent
        self.assertEqual(sent[:4], (7, Status.SUCCESS, CompletionOpcode.SEND, alice.queuePair.number))
        (received,) = bob.received
        self.assertEqual(
            received, Completion(8, Status.SUCCESS, CompletionOpcode.RECEIVE, bob.queuePair.number, 5)
        )
        self.assertIsNone(received.immediate)

    def test_gatherAndScatter(self) -> None:
        """The segments of a message fill those of its receive one after the other."""
        alice, bob = self.pair()
        bob.receive(bob.segment(0, 3), bob.segment(50, 1), bob.segment(90, 60))
        alice.send(alice.fill(b"ab", 10), alice.fill(b"", 900), alice.fill(b"cdef", 500), alice.fill(b"g", 0))
        self.runUntilCompleted(bob, receives=1)
        memory = bytes(bob.memory.view)
        self.assertEqual((memory[:4], memory[50:52], memory[90:94]), (b"abc\0", b"d\0", b"efg\0"))
        self.assertEqual(bob.received[0].length, 7)

    def test_emptySend(self) -> None:
        """A message of no bytes arrives."""
        alice, bob = self.pair()
        bob.receive()
        alice.send()
        self.runUntilBothCompleted(alice, bob)
        self.assertEqual(bob.received[0].length, 0)

    def test_longSend(self) -> None:
        """A message of many packets arrives completely."""
        alice, bob = self.pair()
        bob.receive(bob.segment(0, 1000), bob.segment(1001, 60_000))
        alice.send(alice.fill(noise(LONG)))
        self.runUntilBothCompleted(alice, bob)
        memory = bytes(bob.memory.view)
        self.assertEqual(memory[:1000] + memory[1001 : LONG + 1], noise(LONG))
        self.assertEqual(bob.received[0].length, LONG)

    def test_immediate(self) -> None:
        """A message may carry 32 bits of immediate data in addition to its bytes."""
        alice, bob = self.pair()
        bob.receive(bob.segment())
        request = SendRequest(1, Operation.SEND_WITH_IMMEDIATE, [alice.fill(b"x")], immediate=0xFEDCBA98)
        alice.queuePair.postSend([request])
        self.runUntilCompleted(bob, receives=1)
        self.assertEqual((bob.received[0].immediate, bob.received[0].length), (0xFEDCBA98, 1))
        self.assertEqual(bob.received[0].opcode, CompletionOpcode.RECEIVE)

    def test_inline(self) -> None:
        """Inline data is copied when posted; later changes of its buffer have no effect."""
        alice, bob = self.pair()
        bob.receive(bob.segment())
        buffer = bytearray(b"inline")
        alice.send(inline=[b"two ", memoryview(buffer)])
        buffer[:] = b"spoilt"
        self.runUntilCompleted(bob, receives=1)
        self.assertEqual(bytes(bob.memory.view[:11]), b"two inline\0")

    def test_requestIsReused(self) -> None:
        """A request may be changed and posted again immediately, even if it has to wait."""
        alice, bob = self.pair()
        request = SendRequest(0, Operation.SEND)
        for index in range(5):
            request.identifier = index
            request.segments = [alice.fill(b"%d" % index, index * 8)]
            alice.queuePair.postSend([request])
        for index in range(5):
            bob.receive(bob.segment(index * 8, 8), identifier=index)
        self.runUntilBothCompleted(alice, bob, 5)
        self.assertEqual([c.identifier for c in alice.sent], [0, 1, 2, 3, 4])
        self.assertEqual(
            [bytes(bob.memory.view[i * 8 : i * 8 + 1]) for i in range(5)], [b"%d" % i for i in range(5)]
        )

    def test_unsignaled(self) -> None:
        """An unsignaled request that succeeds generates no completion, and frees its entry in the queue."""
        alice, bob = self.end(0, capacity=Capacity(maxSend=8)), self.end(1)
        self.connect(alice, bob)
        for index in range(alice.queuePair.capacity.maxSend * 2):
            bob.receive(bob.segment())
            alice.send(alice.fill(b"quiet"), identifier=index, signaled=False)
            self.runUntilCompleted(bob, receives=index + 1)
            self.runFor(0.002)  # until the acknowledgement arrives
        bob.receive(bob.segment())
        alice.send(alice.fill(b"loud"), identifier=999)
        self.runUntilCompleted(alice, sends=1)
        self.assertEqual(alice.sent[0].identifier, 999)

    def test_order(self) -> None:
        """Messages of all lengths, in both directions at once, arrive in the order of posting."""
        alice, bob = self.pair()
        lengths = [0, 1, 4096, 17, 1024, 2500, 3, 4500, 255, 4097]
        for end in (alice, bob):
            for index in range(10):
                end.receive(end.segment(index * 4500, 4500), identifier=index)
        for index, length in enumerate(lengths):
            for end in (alice, bob):
                end.send(end.segment(50_000, length), identifier=index)
        for end in (alice, bob):
            self.runUntilCompleted(end, sends=10, receives=10)
            self.assertEqual([c.identifier for c in end.sent], list(range(10)))
            self.assertEqual([c.identifier for c in end.received], list(range(10)))
            self.assertEqual([c.length for c in end.received], lengths)

    def test_manyTurns(self) -> None:
        """A hundred different messages pass through queues of four entries."""
        small = Capacity(maxSend=4, maxReceive=4)
        alice, bob = self.end(0, capacity=small), self.end(1, capacity=small)
        self.connect(alice, bob)
        got: list[bytes] = []
        for index in range(4):
            bob.receive(bob.segment(index * 2000, 2000), identifier=index)
        for index in range(100):
            alice.send(alice.fill(noise(1500, index), index % 4 * 2000))
            self.runUntilBothCompleted(alice, bob, index + 1)
            index = bob.received[-1].identifier
            got.append(bytes(bob.memory.view[index * 2000 : index * 2000 + 1500]))
            bob.receive(bob.segment(index * 2000, 2000), identifier=index)
        self.assertEqual(got, [noise(1500, index) for index in range(100)])

    def test_otherConnections(self) -> None:
        """Connections of the same two devices do not receive each other's messages."""
        one, two = self.pair(), self.pair()
        for _alice, bob in (one, two):
            bob.receive(bob.segment())
        one[0].send(one[0].fill(b"one"))
        two[0].send(two[0].fill(b"two"))
        for _alice, bob in (one, two):
            self.runUntilCompleted(bob, receives=1)
        self.assertEqual([bytes(bob.memory.view[:3]) for _alice, bob in (one, two)], [b"one", b"two"])

    def test_sameDevice(self) -> None:
        """Two queue pairs of one device may be connected."""
        alice, bob = self.end(0), self.end(0)
        self.connect(alice, bob)
        bob.receive(bob.segment())
        alice.send(alice.fill(b"neighbour"))
        self.runUntilBothCompleted(alice, bob)
        self.assertEqual(bytes(bob.memory.view[:9]), b"neighbour")

    def test_route(self) -> None:
        """A connected queue pair reports the route of its data."""
        alice, bob = self.end(0), self.end(1)
        self.assertEqual(alice.queuePair.route, "")
        self.connect(alice, bob)
        self.assertIn(alice.queuePair.route, ("shared-memory", "rocev2", "verbs"))
        if self.quirks[0] == self.quirks[1]:
            self.assertEqual(alice.queuePair.route, bob.queuePair.route)


class RDMAContract(TwoEnds):
    """Promises about writes to the peer's memory, and reads from it."""

    def test_write(self) -> None:
        """A write changes the peer's memory, and creates no completion there."""
        alice, bob = self.pair()
        bob.receive(bob.segment())
        alice.rdma(Operation.RDMA_WRITE, bob.memory, alice.fill(b"written"), offset=1000)
        self.runUntilCompleted(alice, sends=1)
        self.assertEqual(alice.sent[0].opcode, CompletionOpcode.RDMA_WRITE)
        self.assertEqual(alice.sent[0].status, Status.SUCCESS)
        self.assertEqual(bytes(bob.memory.view[999:1008]), b"\0written\0")
        self.quiet(bob)

    def test_longWrite(self) -> None:
        """A gathered write of many packets arrives completely, up to the last byte of a region."""
        alice, bob = self.pair()
        data = noise(LONG)
        pieces = alice.fill(data[:777]), alice.fill(data[777:30_000], 1000), alice.fill(data[30_000:], 45_000)
        alice.rdma(Operation.RDMA_WRITE, bob.memory, *pieces, offset=bob.memory.length - LONG)
        self.runUntilCompleted(alice, sends=1)
        self.assertEqual(bytes(bob.memory.view[-LONG:]), data)
        self.assertEqual(bytes(bob.memory.view[-LONG - 1 : -LONG]), b"\0")

    def test_inlineWrite(self) -> None:
        """A write can carry inline data."""
        alice, bob = self.pair()
        buffer = bytearray(b"before")
        alice.rdma(Operation.RDMA_WRITE, bob.memory, inline=[buffer, b"."])
        buffer[:] = b"behind"
        self.runUntilCompleted(alice, sends=1)
        self.assertEqual(bytes(bob.memory.view[:8]), b"before.\0")

    def test_emptyWrite(self) -> None:
        """A write of no bytes succeeds, regardless of its address and key (IBA C9-88)."""
        alice, bob = self.pair()
        keys = (bob.memory.rkey, RKey(bob.memory.rkey ^ 0x5A5A5A5A))
        alice.queuePair.postSend([SendRequest(1, Operation.RDMA_WRITE, rkey=key) for key in keys])
        self.runUntilCompleted(alice, sends=2)
        self.assertEqual(alice.statuses()[0], [Status.SUCCESS] * 2)

    def test_writeWithImmediate(self) -> None:
        """A write with immediate data consumes a receive, and leaves the receive's memory unchanged."""
        alice, bob = self.pair()
        bob.receive(bob.segment(0, 4), identifier=5)
        alice.rdma(
            Operation.RDMA_WRITE_WITH_IMMEDIATE,
            bob.memory,
            alice.fill(b"with immediate"),
            offset=64,
            immediate=0x80000001,
        )
        self.runUntilBothCompleted(alice, bob)
        (received,) = bob.received
        self.assertEqual(received.identifier, 5)
        self.assertEqual(received.opcode, CompletionOpcode.RECEIVE_RDMA_WITH_IMMEDIATE)
        self.assertEqual((received.immediate, received.length), (0x80000001, 14))
        self.assertEqual(bytes(bob.memory.view[:4]), bytes(4))
        self.assertEqual(bytes(bob.memory.view[64:78]), b"with immediate")

    def test_writeThenSend(self) -> None:
        """All writes posted before a message are in memory when the message arrives."""
        alice, bob = self.pair()
        for turn in range(20):
            bob.receive(bob.segment(60_000, 64))
            data = noise(6000, turn)
            write = SendRequest(
                1, Operation.RDMA_WRITE, [alice.fill(data)], signaled=False, rkey=bob.memory.rkey
            )
            write.remoteAddress = bob.memory.address
            alice.queuePair.postSend([write, SendRequest(2, Operation.SEND, inline=[b"done"])])
            self.runUntilCompleted(bob, receives=turn + 1)
            self.assertEqual(bytes(bob.memory.view[:6000]), data)
            self.runUntilCompleted(alice, sends=turn + 1)

    def test_read(self) -> None:
        """A read copies the peer's memory to the local memory, and creates no completion at the peer."""
        alice, bob = self.pair()
        bob.fill(b"to be read", 500)
        alice.rdma(Operation.RDMA_READ, bob.memory, alice.segment(0, 4), alice.segment(100, 6), offset=500)
        self.runUntilCompleted(alice, sends=1)
        self.assertEqual(alice.sent[0].status, Status.SUCCESS)
        self.assertEqual(alice.sent[0].opcode, CompletionOpcode.RDMA_READ)
        memory = bytes(alice.memory.view)
        self.assertEqual((memory[:5], memory[100:107]), (b"to b\0", b"e read\0"))
        self.quiet(bob)

    def test_longRead(self) -> None:
        """A read of many packets arrives completely."""
        alice, bob = self.pair()
        bob.fill(noise(LONG), 3)
        alice.rdma(Operation.RDMA_READ, bob.memory, alice.segment(0, LONG), offset=3)
        self.runUntilCompleted(alice, sends=1)
        self.assertEqual(bytes(alice.memory.view[:LONG]), noise(LONG))

    def test_manyReads(self) -> None:
        """Reads beyond the limit of outstanding ones wait, and all requests complete in order."""
        alice, bob = self.pair()
        bob.fill(noise(20_000))
        for index in range(12):
            bob.receive(bob.segment(60_000, 64))
            piece = alice.segment(index * 1500, 1500)
            alice.rdma(Operation.RDMA_READ, bob.memory, piece, offset=index * 1500, identifier=index * 2)
            alice.send(inline=[b"between"], identifier=index * 2 + 1)
        self.runUntilCompleted(alice, sends=24)
        self.assertEqual([c.identifier for c in alice.sent], list(range(24)))
        self.assertEqual(bytes(alice.memory.view[: 12 * 1500]), noise(20_000)[: 12 * 1500])

    def test_fence(self) -> None:
        """A fenced request starts after the reads before it, and can send their results."""
        alice, bob = self.pair()
        bob.fill(noise(9000))
        bob.receive(bob.segment(20_000, 9000))
        alice.rdma(Operation.RDMA_READ, bob.memory, alice.segment(0, 9000))
        alice.queuePair.postSend([SendRequest(2, Operation.SEND, [alice.segment(0, 9000)], fence=True)])
        self.runUntilCompleted(bob, receives=1)
        self.assertEqual(bytes(bob.memory.view[20_000:29_000]), noise(9000))
        self.runUntilCompleted(alice, sends=2)

    def test_registeredMemory(self) -> None:
        """A registered buffer of the program can be sent from, written to, read from and received into."""
        alice, bob = self.pair()
        localBytes, remoteBytes = bytearray(b"from a bytearray"), bytearray(32)
        mine = alice.domain.registerMemory(memoryview(localBytes), EVERYTHING)
        his = bob.domain.registerMemory(memoryview(remoteBytes), EVERYTHING)
        self.addCleanup(mine.close)
        self.addCleanup(his.close)
        bob.receive(bob.segment(16, 16, his))
        alice.send(alice.segment(0, 16, mine), identifier=1)
        self.runUntilCompleted(bob, receives=1)
        alice.rdma(Operation.RDMA_WRITE, his, alice.segment(5, 11, mine), identifier=2)
        self.runUntilCompleted(alice, sends=2)
        self.assertEqual(bytes(remoteBytes), b"a bytearray\0\0\0\0\0from a bytearray")
        alice.rdma(Operation.RDMA_READ, his, alice.segment(0, 11, mine), identifier=3)
        self.runUntilCompleted(alice, sends=3)
        self.assertEqual(bytes(localBytes), b"a bytearrayarray")
        self.assertEqual(alice.statuses(), ([Status.SUCCESS] * 3, []))

    def test_regionsHaveDifferentAddresses(self) -> None:
        """A new region is zeroed, has its length, and shares neither address nor key with another."""
        alice = self.end(0)
        regions = [alice.domain.allocateMemory(length, Access.LOCAL_WRITE) for length in (1, 4096, 100_000)]
        for region in regions:
            self.addCleanup(region.close)
            self.assertEqual(bytes(region.view), bytes(region.length))
        self.assertEqual([region.length for region in regions], [1, 4096, 100_000])
        self.assertEqual(len({region.lkey for region in regions}), 3)
        spans = sorted((region.address, region.address + region.length) for region in regions)
        self.assertTrue(all(before[1] <= after[0] for before, after in pairwise(spans)), spans)


class DatagramContract(TwoEnds):
    """Promises about datagrams, which need no connection."""

    def datagrams(self) -> tuple[End, End]:
        """Return two ends for datagrams, in RTS."""
        alice, bob = self.end(0, QPKind.UD), self.end(1, QPKind.UD)
        self.connect(alice, bob)
        return alice, bob

    def datagram(
        self, sender: End, receiver: End, data: bytes, qkey: int = QKEY, immediate: int | None = None
    ) -> None:
        """Post one datagram from the sender to the receiver."""
        handle = sender.domain.createAddressHandle(sender.destinationOf(receiver))
        self.addCleanup(handle.close)
        operation = Operation.SEND if immediate is None else Operation.SEND_WITH_IMMEDIATE
        request = SendRequest(1, operation, [sender.fill(data)], immediate=immediate or 0, address=handle)
        request.remoteQPN, request.remoteQKey = receiver.queuePair.number, qkey
        sender.queuePair.postSend([request])

    def test_datagram(self) -> None:
        """A datagram arrives after 40 bytes for its GRH, and its completion names the sender."""
        alice, bob = self.datagrams()
        bob.receive(bob.segment(0, 40), bob.segment(40, 100), identifier=3)
        self.datagram(alice, bob, b"datagram")
        self.runUntilBothCompleted(alice, bob)
        (received,) = bob.received
        self.assertEqual((received.identifier, received.status, received.length), (3, Status.SUCCESS, 48))
        self.assertEqual(received.sourceQPN, alice.queuePair.number)
        self.assertEqual(bytes(bob.memory.view[40:49]), b"datagram\0")
        self.assertEqual(alice.sent[0].status, Status.SUCCESS)

    def test_datagramWithImmediate(self) -> None:
        """A datagram may carry immediate data."""
        alice, bob = self.datagrams()
        bob.receive(bob.segment(0, 140))
        self.datagram(alice, bob, b"", immediate=77)
        self.runUntilCompleted(bob, receives=1)
        self.assertEqual((bob.received[0].immediate, bob.received[0].length), (77, 40))

    def test_datagramOfWords(self) -> None:
        """Inline data may be a memoryview of numbers, whose items have several bytes."""
        alice, bob = self.datagrams()
        handle = alice.domain.createAddressHandle(alice.destinationOf(bob))
        self.addCleanup(handle.close)
        words = memoryview(array("I", range(5)))
        batches: list[list[Buffer]] = [[words], [b"head", words], [words.cast("B").cast("B", (4, 5))]]
        for inline in batches:
            sent, received = len(alice.sent), len(bob.received)
            bob.receive(bob.segment(0, 140))
            bob.receive(bob.segment(0, 140))
            request = SendRequest(1, Operation.SEND, inline=inline, address=handle)
            request.remoteQPN, request.remoteQKey = bob.queuePair.number, QKEY
            alice.queuePair.postSend([request])
            alice.queuePair.postSend([request])
            self.runUntilCompleted(alice, sends=sent + 2)
            self.runUntilCompleted(bob, receives=received + 2)
            expected = b"".join(inline)
            self.assertEqual([each.length for each in bob.received[-2:]], [40 + len(expected)] * 2)
            self.assertEqual(bytes(bob.memory.view[40 : 40 + len(expected)]), expected)

    def test_otherQKey(self) -> None:
        """A datagram with a wrong Q_Key is dropped silently."""
        alice, bob = self.datagrams()
        bob.receive(bob.segment(0, 140))
        self.datagram(alice, bob, b"secret", qkey=QKEY + 1)
        self.runUntilCompleted(alice, sends=1)
        self.assertEqual(alice.sent[0].status, Status.SUCCESS)
        self.datagram(alice, bob, b"proper")
        self.runUntilCompleted(bob, receives=1)
        self.assertEqual(bytes(bob.memory.view[40:46]), b"proper")

    def test_nobodyListens(self) -> None:
        """A datagram without a posted receive is lost; the next one arrives."""
        alice, bob = self.datagrams()
        self.datagram(alice, bob, b"lost")
        self.runUntilCompleted(alice, sends=1)
        self.runFor(0.02)
        bob.receive(bob.segment(0, 140))
        self.datagram(alice, bob, b"found")
        self.runUntilCompleted(bob, receives=1)
        self.assertEqual(bytes(bob.memory.view[40:45]), b"found")

    def test_answer(self) -> None:
        """The receiver of a datagram can answer it by the number of the source queue pair."""
        alice, bob = self.datagrams()
        for end in (alice, bob):
            end.receive(end.segment(1000, 200))
        self.datagram(alice, bob, b"question")
        self.runUntilCompleted(bob, receives=1)
        self.assertEqual(bob.received[0].sourceQPN, alice.queuePair.number)
        self.datagram(bob, alice, b"answer")
        self.runUntilCompleted(alice, sends=1, receives=1)
        self.assertEqual(bytes(alice.memory.view[1040:1046]), b"answer")

    def test_datagramTooLong(self) -> None:
        """A datagram that exceeds a packet does not arrive; its sender can still receive, and send again."""
        alice, bob = self.datagrams()
        bob.receive(bob.segment(0, 8000))
        alice.receive(alice.segment(50_000, 200))
        longest = max(MTU.MTU_4096.bytes, alice.device.portAttributes(1).longestDatagram)
        self.datagram(alice, bob, bytes(longest + 1))
        self.runUntilCompleted(alice, sends=1)
        failed = self.quirks[0].longDatagramFails
        self.assertEqual(alice.sent[0].status, Status.LOC_LEN_ERR if failed else Status.SUCCESS)
        self.datagram(bob, alice, b"still there?")
        self.runUntilCompleted(alice, sends=1, receives=1)
        self.assertEqual(alice.received[0].status, Status.SUCCESS)
        self.assertEqual(bob.received, [])
        if failed:
            self.assertEqual(alice.queuePair.state, QPState.SQE)
            alice.queuePair.modify(QPAttributes(state=QPState.RTS))
        self.datagram(alice, bob, b"short enough")
        self.runUntilCompleted(bob, sends=1, receives=1)
        self.assertEqual(bytes(bob.memory.view[40:53]), b"short enough\0")

    def test_datagramFails(self) -> None:
        """A datagram from invalid memory disables sending, until a transition to RTS."""
        alice, bob = self.datagrams()
        handle = alice.domain.createAddressHandle(alice.destinationOf(bob))
        self.addCleanup(handle.close)
        wrong = Segment(alice.memory.address, 10, LKey(alice.memory.lkey ^ 0x5A5A5A5A))
        request = SendRequest(1, Operation.SEND, [wrong], address=handle)
        request.remoteQPN, request.remoteQKey = bob.queuePair.number, QKEY
        alice.queuePair.postSend([request])
        self.runUntilCompleted(alice, sends=1)
        self.assertEqual(alice.sent[0].status, self.quirks[0].localFailure)
        if not self.quirks[0].hasSQE:
            self.assertEqual(alice.queuePair.state, QPState.ERR)
            return
        self.assertEqual(alice.queuePair.state, QPState.SQE)
        self.datagram(alice, bob, b"flushed")
        self.runUntilCompleted(alice, sends=2)
        self.assertEqual(alice.sent[1].status, Status.WR_FLUSH_ERR)
        alice.queuePair.modify(QPAttributes(state=QPState.RTS))
        bob.receive(bob.segment(0, 140))
        self.datagram(alice, bob, b"again")
        self.runUntilCompleted(bob, receives=1)
        self.runUntilCompleted(alice, sends=3)
        self.assertEqual(bytes(bob.memory.view[40:46]), b"again\0")

    def test_datagramReceiveTooShort(self) -> None:
        """A datagram that is longer than its receive is dropped, or completes the receive in error."""
        alice, bob = self.datagrams()
        bob.receive(bob.segment(0, 50))
        self.datagram(alice, bob, noise(100))
        self.runUntilCompleted(alice, sends=1)
        self.runFor(0.02)
        bob.poll()
        self.assertNotIn(Status.SUCCESS, bob.statuses()[1])
        self.assertEqual(bytes(bob.memory.view[50:140]), bytes(90))


__all__ = ["DatagramContract", "RDMAContract", "SendContract", "noise"]
