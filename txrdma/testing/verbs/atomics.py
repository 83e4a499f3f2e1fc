"""
Promises of every device about atomic operations, and about several reads and atomics at once.

Follows InfiniBand Architecture vol. 1, 9.4.5 (atomic operations) and 10.8.3 (work requests). The tests are
skipped on a device without atomics (L{AtomicCapability.NONE}).
"""

from __future__ import annotations

import sys
from dataclasses import replace

from twisted.trial.unittest import SkipTest

from txrdma.error import InvalidRequest
from txrdma.iba.types import RKey
from txrdma.iba.verbs import (
    Access,
    AsyncEventKind,
    AtomicCapability,
    CompletionOpcode,
    Operation,
    QPState,
    Segment,
    SendRequest,
    Status,
)
from txrdma.interfaces import IMemoryRegion
from txrdma.testing.verbs.ends import End, EVERYTHING, PATIENT, TwoEnds, WITH_ATOMICS

_ADD, _SWAP = Operation.FETCH_AND_ADD, Operation.COMPARE_AND_SWAP


def wordAt(region: IMemoryRegion, offset: int = 0) -> int:
    """Return the integer of 8 bytes at an offset of a region, in this host's byte order."""
    return int.from_bytes(region.view[offset : offset + 8], sys.byteorder)


def putWord(region: IMemoryRegion, value: int, offset: int = 0) -> None:
    """Write an integer of 8 bytes at an offset of a region, in this host's byte order."""
    region.view[offset : offset + 8] = value.to_bytes(8, sys.byteorder)


class AtomicEnds(TwoEnds):
    """A test case with ends for atomic operations; it is skipped on devices without them."""

    def setUp(self) -> None:
        super().setUp()
        for device in self.devices:
            if device.attributes.atomics is AtomicCapability.NONE:
                raise SkipTest(f"{device.name} has no atomics")

    def atomicPair(self, access: Access = WITH_ATOMICS) -> tuple[End, End, IMemoryRegion]:
        """Return two connected ends, and memory of the second for atomics."""
        alice, bob = self.pair(access=access)
        return alice, bob, self.words(bob)

    def words(self, end: End, length: int = 4096, access: Access = WITH_ATOMICS) -> IMemoryRegion:
        """Allocate memory for atomic operations in the end's protection domain."""
        return self.region(end, length, access)

    def execute(self, end: End, *requests: SendRequest) -> None:
        """Post the first requests of an end, and run until all have completed."""
        end.queuePair.postSend(requests)
        self.runUntilCompleted(end, sends=len(requests))

    def atomic(
        self,
        operation: Operation,
        end: End,
        target: IMemoryRegion,
        operand: int,
        compare: int = 0,
        offset: int = 0,
        result: Segment | None = None,
        identifier: int = 1,
    ) -> SendRequest:
        """Return a request, whose result is written to the beginning of the end's memory by default."""
        request = SendRequest(identifier, operation, [result or end.segment(0, 8)])
        request.operand, request.compare = operand, compare
        request.remoteAddress, request.rkey = target.address + offset, target.rkey
        return request


class AtomicContract(AtomicEnds):
    """Promises about compare and swap, and fetch and add: atomic changes of 8 bytes of the peer's memory."""

    def test_fetchAndAdd(self) -> None:
        """A fetch and add changes the peer's word, returns the old value, and completes only locally."""
        alice, bob, region = self.atomicPair()
        putWord(region, 40, 16)
        self.execute(alice, self.atomic(_ADD, alice, region, 2, offset=16, result=alice.segment(64, 8)))
        self.assertEqual(
            alice.sent[0][:4], (1, Status.SUCCESS, CompletionOpcode.FETCH_AND_ADD, alice.queuePair.number)
        )
        self.assertEqual((wordAt(region, 8), wordAt(region, 16), wordAt(region, 24)), (0, 42, 0))
        self.assertEqual([wordAt(alice.memory, at) for at in (56, 64, 72)], [0, 40, 0])
        self.quiet(bob)

    def test_addWraps(self) -> None:
        """A fetch and add uses all 64 bits, and wraps around."""
        alice, _bob, region = self.atomicPair()
        putWord(region, 0xFFFF_FFFF_FFFF_FFFE)
        self.execute(alice, self.atomic(_ADD, alice, region, 0x0123_4567_89AB_CDEF))
        self.assertEqual(wordAt(region), 0x0123_4567_89AB_CDED)
        self.assertEqual(wordAt(alice.memory), 0xFFFF_FFFF_FFFF_FFFE)

    def test_compareAndSwap(self) -> None:
        """A compare and swap that finds the expected value replaces it, and returns the previous value."""
        alice, bob, region = self.atomicPair()
        putWord(region, 0x1122_3344_5566_7788, region.length - 8)
        last = region.length - 8
        self.execute(alice, self.atomic(_SWAP, alice, region, 0xAABB, 0x1122_3344_5566_7788, last))
        self.assertEqual(alice.sent[0].opcode, CompletionOpcode.COMPARE_AND_SWAP)
        self.assertEqual(alice.sent[0].status, Status.SUCCESS)
        self.assertEqual(wordAt(region, region.length - 8), 0xAABB)
        self.assertEqual(wordAt(region, region.length - 16), 0)
        self.assertEqual(wordAt(alice.memory), 0x1122_3344_5566_7788)
        self.quiet(bob)

    def test_compareWithoutSwap(self) -> None:
        """A compare and swap that finds another value leaves it unchanged, and returns it."""
        alice, _bob, region = self.atomicPair()
        putWord(region, 7)
        self.execute(alice, self.atomic(_SWAP, alice, region, 9, compare=7 | 1 << 63))
        self.assertEqual((alice.sent[0].status, wordAt(region), wordAt(alice.memory)), (Status.SUCCESS, 7, 7))

    def test_registered(self) -> None:
        """A registered buffer of the program accepts atomics at any address that is divisible by 8."""
        alice, bob, _region = self.atomicPair()
        buffer = bytearray(64)
        region = bob.domain.registerMemory(memoryview(buffer), WITH_ATOMICS)
        self.addCleanup(region.close)
        offset = -region.address % 8 + 8
        self.execute(alice, self.atomic(_ADD, alice, region, 5, offset=offset))
        self.assertEqual(alice.sent[0].status, Status.SUCCESS)
        self.assertEqual(int.from_bytes(buffer[offset : offset + 8], sys.byteorder), 5)

    def test_unsignaledAtomic(self) -> None:
        """An unsignaled atomic is executed without a completion."""
        alice, bob, region = self.atomicPair()
        bob.receive(bob.segment())
        request = self.atomic(_ADD, alice, region, 3)
        request.signaled = False
        alice.queuePair.postSend([request, SendRequest(2, Operation.SEND, inline=[b"done"])])
        self.runUntilCompleted(alice, sends=1)
        self.assertEqual((alice.sent[0].identifier, wordAt(region)), (2, 3))

    def test_reusedAtomic(self) -> None:
        """A request may be changed and posted again immediately."""
        alice, _bob, region = self.atomicPair()
        request = self.atomic(_ADD, alice, region, 0)
        for index in range(6):
            request.identifier, request.operand = index, 10**index
            request.segments = [alice.segment(index * 8, 8)]
            alice.queuePair.postSend([request])
        self.runUntilCompleted(alice, sends=6)
        self.assertEqual([c.identifier for c in alice.sent], list(range(6)))
        self.assertEqual([wordAt(alice.memory, i * 8) for i in range(6)], [0, 1, 11, 111, 1111, 11111])
        self.assertEqual(wordAt(region), 111111)

    def test_fencedResult(self) -> None:
        """A fenced message can carry the result of a preceding atomic."""
        alice, bob, region = self.atomicPair()
        putWord(region, 99)
        bob.receive(bob.segment())
        alice.queuePair.postSend(
            [
                self.atomic(_ADD, alice, region, 1),
                SendRequest(2, Operation.SEND, [alice.segment(0, 8)], fence=True),
            ]
        )
        self.runUntilCompleted(bob, receives=1)
        self.assertEqual(wordAt(bob.memory), 99)
        self.runUntilCompleted(alice, sends=2)

    def test_afterWrite(self) -> None:
        """An atomic sees the result of a preceding write, and a following read sees the atomic's result."""
        alice, bob, region = self.atomicPair()
        putWord(alice.memory, 1000)
        alice.rdma(Operation.RDMA_WRITE, region, alice.segment(0, 8), identifier=1)
        alice.queuePair.postSend(
            [self.atomic(_ADD, alice, region, 1, result=alice.segment(8, 8), identifier=2)]
        )
        alice.rdma(Operation.RDMA_READ, region, alice.segment(16, 8), identifier=3)
        self.runUntilCompleted(alice, sends=3)
        self.assertEqual([wordAt(alice.memory, at) for at in (0, 8, 16)], [1000, 1000, 1001])
        self.quiet(bob)

    def test_manyOutstanding(self) -> None:
        """Reads and atomics beyond the limit of outstanding ones wait, and all complete in order."""
        alice, bob, region = self.atomicPair()
        for index in range(15):
            bob.memory.view[index * 3000 : index * 3000 + 3000] = bytes([index + 1]) * 3000
            result = alice.segment(60_000 + index * 8, 8)
            alice.queuePair.postSend(
                [self.atomic(_ADD, alice, region, 1, result=result, identifier=index * 2)]
            )
            alice.rdma(
                Operation.RDMA_READ,
                bob.memory,
                alice.segment(index * 3000, 3000),
                offset=index * 3000,
                identifier=index * 2 + 1,
            )
        self.runUntilCompleted(alice, sends=30)
        self.assertEqual([c.identifier for c in alice.sent], list(range(30)))
        self.assertEqual(set(alice.statuses()[0]), {Status.SUCCESS})
        self.assertEqual([wordAt(alice.memory, 60_000 + i * 8) for i in range(15)], list(range(15)))
        self.assertEqual(bytes(alice.memory.view[:45_000]), bytes(bob.memory.view[:45_000]))

    def test_everyOutstanding(self) -> None:
        """Atomics complete with one outstanding operation, and with as many as the devices allow."""
        most = min(255, *(min(d.limits.maxRDAtomic, d.limits.maxDestRDAtomic) for d in self.devices))
        for count in {1, most}:
            settings = replace(PATIENT, maxRDAtomic=count, maxDestRDAtomic=count)
            alice, bob = self.pair(access=WITH_ATOMICS, settings=settings)
            region = self.words(bob)
            requests = [
                self.atomic(_ADD, alice, region, 1, result=alice.segment(i * 8, 8), identifier=i)
                for i in range(40)
            ]
            self.execute(alice, *requests)
            self.assertEqual([wordAt(alice.memory, i * 8) for i in range(40)], list(range(40)))

    def test_concurrent(self) -> None:
        """Two queue pairs add to one word concurrently: no addition is lost, and each result occurs once."""
        alice, bob, region = self.atomicPair()
        carol = self.end(0)
        bobToo = self.end(1, access=WITH_ATOMICS, beside=bob)
        self.connect(carol, bobToo)
        times = 50
        for index in range(times):
            for end in (alice, carol):
                result = end.segment(index * 8, 8)
                end.queuePair.postSend([self.atomic(_ADD, end, region, 1, result=result, identifier=index)])
        for end in (alice, carol):
            self.runUntilCompleted(end, sends=times)
            self.assertEqual(set(end.statuses()[0]), {Status.SUCCESS})
        self.assertEqual(wordAt(region), 2 * times)
        got = [[wordAt(end.memory, i * 8) for i in range(times)] for end in (alice, carol)]
        self.assertEqual(sorted(got[0] + got[1]), list(range(2 * times)))
        self.assertEqual([sorted(of) for of in got], got)

    def test_bothWays(self) -> None:
        """Both ends can execute atomics on each other's memory concurrently."""
        alice, bob = self.end(0, access=WITH_ATOMICS), self.end(1, access=WITH_ATOMICS)
        self.connect(alice, bob)
        regions = {alice: self.words(bob), bob: self.words(alice)}
        for index in range(10):
            for end, region in regions.items():
                result = end.segment(index * 8, 8)
                end.queuePair.postSend([self.atomic(_ADD, end, region, 2, result=result, identifier=index)])
        for end, region in regions.items():
            self.runUntilCompleted(end, sends=10)
            self.assertEqual(wordAt(region), 20)
            self.assertEqual([wordAt(end.memory, i * 8) for i in range(10)], list(range(0, 20, 2)))


class AtomicRefusalContract(AtomicEnds):
    """Promises about atomics that must be refused."""

    def refusedAtomic(
        self, alice: End, bob: End, region: IMemoryRegion, request: SendRequest, *statuses: Status
    ) -> None:
        """Assert that the responder refuses an atomic, which ends the connection and changes nothing."""
        before = bytes(region.view)
        alice.queuePair.postSend([request])
        alice.send(inline=[b"behind"], identifier=2)
        self.runUntilCompleted(alice, sends=2)
        self.assertEqual([c.identifier for c in alice.sent], [1, 2])
        self.assertIn(alice.sent[0].status, statuses)
        self.assertEqual(alice.sent[1].status, Status.WR_FLUSH_ERR)
        self.assertEqual((alice.queuePair.state, bob.queuePair.state), (QPState.ERR, QPState.ERR))
        self.assertEqual(bytes(region.view), before)
        self.assertEqual(bytes(alice.memory.view[:8]), bytes(8))

    def test_atomicWithoutTheRight(self) -> None:
        """Memory without the remote atomic right refuses atomics, even if peers may read and write it."""
        for operation in (_ADD, _SWAP):
            alice, bob, _ = self.atomicPair()
            region = self.words(bob, access=EVERYTHING)
            putWord(region, 3)
            request = self.atomic(operation, alice, region, 1, compare=3)
            self.refusedAtomic(alice, bob, region, request, Status.REM_ACCESS_ERR)

    def test_atomicQueuePairWithoutTheRight(self) -> None:
        """A queue pair without the remote atomic right refuses atomics, whatever the memory's rights."""
        alice, bob, region = self.atomicPair(access=EVERYTHING)
        request = self.atomic(_ADD, alice, region, 1)
        self.refusedAtomic(alice, bob, region, request, Status.REM_INV_REQ_ERR, Status.REM_ACCESS_ERR)

    def test_atomicWrongKey(self) -> None:
        """An atomic with an unknown key is refused, and the peer's device reports it."""
        alice, bob, region = self.atomicPair()
        request = self.atomic(_ADD, alice, region, 1)
        request.rkey = RKey(region.rkey ^ 0x5A5A5A5A)
        self.refusedAtomic(alice, bob, region, request, Status.REM_ACCESS_ERR)
        if self.quirks[1].reportsRefusals:
            self.runPolling(lambda: bool(bob.events), alice, bob)
            self.assertEqual(bob.events[0].kind, AsyncEventKind.QP_ACCESS_ERROR)

    def test_atomicOutside(self) -> None:
        """An atomic outside of its region is refused."""
        for offset in (-8, 4096):
            alice, bob, region = self.atomicPair()
            request = self.atomic(_ADD, alice, region, 1, offset=offset)
            self.refusedAtomic(alice, bob, region, request, Status.REM_ACCESS_ERR)

    def test_atomicAcrossTheEnd(self) -> None:
        """An atomic that exceeds a region, whose length is not divisible by 8, is refused."""
        alice, bob, _ = self.atomicPair()
        region = self.words(bob, 4092)
        request = self.atomic(_ADD, alice, region, 1, offset=4088)
        self.refusedAtomic(alice, bob, region, request, Status.REM_ACCESS_ERR)

    def test_atomicDeregistered(self) -> None:
        """An atomic to a deregistered region is refused."""
        alice, bob, region = self.atomicPair()
        other = bob.domain.allocateMemory(4096, WITH_ATOMICS)
        request = self.atomic(_ADD, alice, other, 1)
        other.close()
        self.refusedAtomic(alice, bob, region, request, Status.REM_ACCESS_ERR)

    def test_atomicOtherDomain(self) -> None:
        """An atomic to memory of another protection domain is refused."""
        alice, bob, _ = self.atomicPair()
        region = self.words(self.end(1))
        self.refusedAtomic(alice, bob, region, self.atomic(_ADD, alice, region, 1), Status.REM_ACCESS_ERR)

    def test_misalignedAtomic(self) -> None:
        """An atomic to an address not divisible by 8 is refused by the responder or the local library."""
        alice, bob, region = self.atomicPair()
        request = self.atomic(_ADD, alice, region, 1, offset=12)
        if self.quirks[0].misalignedIsPosted:
            self.refusedAtomic(alice, bob, region, request, Status.REM_INV_REQ_ERR)
            return
        self.assertRaises(InvalidRequest, alice.queuePair.postSend, [request])
        self.assertEqual(bytes(region.view), bytes(region.length))

    def test_atomicFormAtHome(self) -> None:
        """An atomic is not posted unless its result has registered memory of at least 8 bytes."""
        alice, _bob, region = self.atomicPair()
        short = self.atomic(_ADD, alice, region, 1, result=alice.segment(0, 7))
        inline = replace(short, segments=(), inline=[bytes(8)])
        nothing = replace(short, segments=())
        for wrong in (short, inline, nothing):
            self.assertRaises(InvalidRequest, alice.queuePair.postSend, [wrong])
        self.execute(alice, self.atomic(_ADD, alice, region, 1))
        self.assertEqual((alice.sent[0].status, wordAt(region)), (Status.SUCCESS, 1))

    def test_atomicIntoReadOnly(self) -> None:
        """An atomic fails locally if its result's memory is not writable, or belongs to another domain."""
        for index in range(2):
            alice, _bob, region = self.atomicPair()
            home = alice.domain if index else self.end(0).domain
            result = home.allocateMemory(64, Access.NONE if index else WITH_ATOMICS)
            self.addCleanup(result.close)
            request = self.atomic(_ADD, alice, region, 1, result=alice.segment(0, 8, result))
            alice.queuePair.postSend([request])
            alice.send(inline=[b"behind"], identifier=2)
            self.runUntilCompleted(alice, sends=2)
            self.assertEqual([c.status for c in alice.sent], [Status.LOC_PROT_ERR, Status.WR_FLUSH_ERR])
            self.assertEqual(alice.queuePair.state, QPState.ERR)
            self.assertEqual(bytes(result.view), bytes(64))


__all__ = ["AtomicContract", "AtomicEnds", "AtomicRefusalContract", "putWord", "wordAt"]
