"""
Promises of every device about requests that must not succeed.

Follows InfiniBand Architecture vol. 1, 9.9 (error handling) and 10.10.3 (completion statuses).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace

from txrdma.iba.types import LKey, RKey
from txrdma.iba.verbs import (
    Access,
    AsyncEventKind,
    Operation,
    QPAttributes,
    QPState,
    Segment,
    SendRequest,
    Status,
)
from txrdma.interfaces import IMemoryRegion
from txrdma.testing.verbs.ends import End, EVERYTHING, PATIENT, TwoEnds

HASTY = replace(PATIENT, timeout=8, retryCount=1, rnrRetry=1)
"""Attributes for connections that fail after few retries."""

_FLUSHED = Status.WR_FLUSH_ERR


class ProtectionContract(TwoEnds):
    """Memory is accessible only with its key, within its range, and with the access right."""

    def refused(self, alice: End, bob: End, post: Callable[[], None], *statuses: Status) -> None:
        """
        Assert that Bob refuses Alice's request, which ends the connection on both sides.

        Requests posted after it and Bob's receives are flushed.
        """
        statuses = statuses or (Status.REM_ACCESS_ERR,)
        bob.receive(bob.segment(60_000, 10), identifier=50)
        before = bytes(bob.memory.view)
        post()
        alice.send(inline=[b"behind"], identifier=2)
        self.runUntilCompleted(alice, sends=2)
        self.assertIn(alice.sent[0].status, statuses)
        self.assertEqual([c.identifier for c in alice.sent], [1, 2])
        self.assertEqual(alice.sent[1].status, _FLUSHED)
        self.assertEqual(alice.queuePair.state, QPState.ERR)
        self.runUntilCompleted(bob, receives=1)
        self.assertEqual((bob.received[0].identifier, bob.received[0].status), (50, _FLUSHED))
        self.assertEqual(bob.queuePair.state, QPState.ERR)
        self.assertEqual(bytes(bob.memory.view), before)

    def write(
        self, alice: End, region: IMemoryRegion, offset: int = 0, length: int = 64
    ) -> Callable[[], None]:
        """Return a function that posts a write of ones."""
        piece = alice.fill(b"1" * length)
        return lambda: alice.rdma(Operation.RDMA_WRITE, region, piece, offset=offset)

    def test_wrongKey(self) -> None:
        """A write with an unknown key fails on both sides, and Bob's device reports it."""
        alice, bob = self.pair()

        def post() -> None:
            request = SendRequest(1, Operation.RDMA_WRITE, [alice.fill(b"1")])
            request.remoteAddress, request.rkey = bob.memory.address, RKey(bob.memory.rkey ^ 0x5A5A5A5A)
            alice.queuePair.postSend([request])

        self.refused(alice, bob, post)
        if self.quirks[1].reportsRefusals:
            self.runPolling(lambda: bool(bob.events), alice, bob)
            self.assertEqual(bob.events[0].kind, AsyncEventKind.QP_ACCESS_ERROR)
            self.assertIs(bob.events[0].queuePair, bob.queuePair)

    def test_beyondTheEnd(self) -> None:
        """A write that exceeds its region by one byte changes nothing."""
        alice, bob = self.pair()
        self.refused(alice, bob, self.write(alice, bob.memory, bob.memory.length - 63))

    def test_longBeyondTheEnd(self) -> None:
        """A write of many packets that exceeds its region only at its end changes no other memory."""
        alice, bob = self.pair()
        neighbour = self.region(bob, 1 << 16, EVERYTHING)
        alice.rdma(
            Operation.RDMA_WRITE, bob.memory, alice.fill(b"1" * 40_000), offset=bob.memory.length - 39_999
        )
        self.runUntilCompleted(alice, sends=1)
        self.assertEqual(alice.sent[0].status, Status.REM_ACCESS_ERR)
        self.assertEqual(bytes(neighbour.view), bytes(1 << 16))
        self.assertEqual(
            bytes(bob.memory.view[: bob.memory.length - 39_999]), bytes(bob.memory.length - 39_999)
        )

    def test_beforeTheBeginning(self) -> None:
        """A write that begins one byte before its region changes nothing."""
        alice, bob = self.pair()
        self.refused(alice, bob, self.write(alice, bob.memory, -1))

    def test_deregistered(self) -> None:
        """A region can be written until it is deregistered, but not afterwards."""
        alice, bob = self.pair()
        region = bob.domain.allocateMemory(4096, EVERYTHING)
        self.write(alice, region)()
        self.runUntilCompleted(alice, sends=1)
        self.assertEqual(alice.sent.pop().status, Status.SUCCESS)
        region.close()
        self.refused(alice, bob, self.write(alice, region))

    def test_deregisteredBuffer(self) -> None:
        """A write to a program's buffer is refused without effect once the buffer is deregistered."""
        alice, bob = self.pair()
        buffer = bytearray(4096)
        region = bob.domain.registerMemory(memoryview(buffer), EVERYTHING)
        self.write(alice, region)()
        self.runUntilCompleted(alice, sends=1)
        self.assertEqual(alice.sent.pop().status, Status.SUCCESS)
        region.close()
        self.refused(alice, bob, self.write(alice, region, offset=100))
        self.assertEqual(buffer, b"1" * 64 + bytes(4032))

    def test_noRightToWrite(self) -> None:
        """A region without the remote write right is not written."""
        alice, bob = self.pair()
        region = self.region(bob, 4096, Access.LOCAL_WRITE | Access.REMOTE_READ)
        self.refused(alice, bob, self.write(alice, region))
        self.assertEqual(bytes(region.view), bytes(4096))

    def test_noRightToRead(self) -> None:
        """A region without the remote read right is not read."""
        alice, bob = self.pair()
        region = self.region(bob, 4096, Access.LOCAL_WRITE | Access.REMOTE_WRITE)
        region.view[:] = b"s" * 4096
        piece = alice.segment(0, 100)
        self.refused(alice, bob, lambda: alice.rdma(Operation.RDMA_READ, region, piece))
        self.assertEqual(bytes(alice.memory.view[:100]), bytes(100))

    def test_readBeyondTheEnd(self) -> None:
        """A read that exceeds its region returns nothing."""
        alice, bob = self.pair()
        piece = alice.segment(0, 100)
        self.refused(
            alice,
            bob,
            lambda: alice.rdma(Operation.RDMA_READ, bob.memory, piece, offset=bob.memory.length - 99),
        )

    def test_otherDomain(self) -> None:
        """Memory of another protection domain of the same device is not accessible."""
        alice, bob = self.pair()
        unknownPeer = self.end(1)
        self.refused(alice, bob, self.write(alice, unknownPeer.memory))
        self.assertEqual(bytes(unknownPeer.memory.view), bytes(unknownPeer.memory.length))

    def test_queuePairWithoutTheRight(self) -> None:
        """A queue pair without the remote write right refuses writes, whatever the memory's rights."""
        alice, bob = self.pair(access=Access.LOCAL_WRITE | Access.REMOTE_READ)
        self.refused(alice, bob, self.write(alice, bob.memory), Status.REM_INV_REQ_ERR, Status.REM_ACCESS_ERR)

    def test_queuePairWithoutTheRightToRead(self) -> None:
        """A queue pair without the remote read right refuses reads."""
        alice, bob = self.pair(access=Access.LOCAL_WRITE | Access.REMOTE_WRITE)
        piece = alice.segment(0, 100)
        self.refused(
            alice,
            bob,
            lambda: alice.rdma(Operation.RDMA_READ, bob.memory, piece),
            Status.REM_INV_REQ_ERR,
            Status.REM_ACCESS_ERR,
        )

    def failsAtHome(self, alice: End, bob: End, post: Callable[[], None]) -> None:
        """Assert that Alice's request fails locally and ends her queue pair; Bob receives nothing."""
        bob.receive(bob.segment())
        post()
        alice.send(inline=[b"behind"], identifier=2)
        self.runUntilCompleted(alice, sends=2)
        self.assertEqual([c.identifier for c in alice.sent], [1, 2])
        self.assertEqual([c.status for c in alice.sent], [self.quirks[0].localFailure, _FLUSHED])
        self.assertEqual(alice.queuePair.state, QPState.ERR)
        self.runFor(0.01)
        bob.poll()
        self.assertNotIn(Status.SUCCESS, bob.statuses()[1])

    def test_wrongLocalKey(self) -> None:
        """A segment with an unknown key fails locally."""
        alice, bob = self.pair()
        wrong = Segment(alice.memory.address, 10, LKey(alice.memory.lkey ^ 0x5A5A5A5A))
        self.failsAtHome(alice, bob, lambda: alice.send(wrong))

    def test_localBeyondTheEnd(self) -> None:
        """A segment that exceeds its region fails locally."""
        alice, bob = self.pair()
        self.failsAtHome(alice, bob, lambda: alice.send(alice.segment(alice.memory.length - 9, 10)))

    def test_localOtherDomain(self) -> None:
        """A segment of another protection domain fails locally."""
        alice, bob = self.pair()
        unknownPeer = self.end(0)
        self.failsAtHome(alice, bob, lambda: alice.send(unknownPeer.segment()))

    def test_readIntoReadOnly(self) -> None:
        """A read into memory without the local write right fails locally."""
        alice, bob = self.pair()
        bob.fill(b"not for you")
        region = self.region(alice, 4096, Access.NONE)
        piece = alice.segment(0, 10, region)
        alice.rdma(Operation.RDMA_READ, bob.memory, piece)
        alice.send(inline=[b"behind"], identifier=2)
        self.runUntilCompleted(alice, sends=2)
        self.assertEqual([c.status for c in alice.sent], [Status.LOC_PROT_ERR, _FLUSHED])
        self.assertEqual(alice.queuePair.state, QPState.ERR)
        self.assertEqual(bytes(region.view), bytes(4096))

    def test_sendFromReadOnly(self) -> None:
        """Data can be sent from memory without the local write right."""
        alice, bob = self.pair()
        region = self.region(alice, 4096, Access.NONE)
        region.view[:4] = b"safe"
        bob.receive(bob.segment())
        alice.send(alice.segment(0, 4, region))
        self.runUntilCompleted(bob, receives=1)
        self.assertEqual(bytes(bob.memory.view[:4]), b"safe")


class ReceiverContract(TwoEnds):
    """Promises about messages whose receiver is not ready, in error, or closed."""

    def test_receiveTooShort(self) -> None:
        """A message longer than its receive fails on both sides, and writes nothing after the receive."""
        alice, bob = self.pair()
        bob.receive(bob.segment(0, 10), identifier=4)
        bob.receive(bob.segment(1000, 10), identifier=5)
        alice.send(alice.fill(b"elevenbytes"))
        self.runUntilCompleted(alice, sends=1)
        self.runUntilCompleted(bob, receives=2)
        reported, status = self.quirks[1].shortReceive
        self.assertEqual(alice.sent[0].status, reported)
        self.assertEqual([c.identifier for c in bob.received], [4, 5])
        self.assertEqual([c.status for c in bob.received], [status, _FLUSHED])
        self.assertEqual((alice.queuePair.state, bob.queuePair.state), (QPState.ERR, QPState.ERR))
        self.assertEqual(bytes(bob.memory.view[10:1000]), bytes(990))

    def test_longReceiveTooShort(self) -> None:
        """A message of many packets that is longer than its receive fails on both sides."""
        alice, bob = self.pair()
        bob.receive(bob.segment(0, 39_999), identifier=4)
        alice.send(alice.fill(b"1" * 40_000))
        self.runUntilBothCompleted(alice, bob)
        self.assertEqual((alice.sent[0].status, bob.received[0].status), self.quirks[1].shortReceive)
        self.assertEqual(bytes(bob.memory.view[39_999:]), bytes(bob.memory.length - 39_999))

    def test_receiveIntoReadOnly(self) -> None:
        """A receive into memory without the local write right fails on both sides."""
        alice, bob = self.pair()
        region = self.region(bob, 4096, Access.REMOTE_READ)
        bob.receive(bob.segment(0, 100, region))
        alice.send(alice.fill(b"into the wall"))
        self.runUntilBothCompleted(alice, bob)
        self.assertEqual((alice.sent[0].status, bob.received[0].status), self.quirks[1].badReceive)
        self.assertEqual(bytes(region.view), bytes(4096))

    def test_notReady(self) -> None:
        """A message that arrives before its receive waits for it, and so do later messages."""
        alice, bob = self.pair()
        for index in range(3):
            alice.send(alice.fill(b"%d" % index, index), identifier=index)
        self.quiet(alice, bob)
        for index in range(3):
            bob.receive(bob.segment(index, 1))
        self.runUntilBothCompleted(alice, bob, 3)
        self.assertEqual(bytes(bob.memory.view[:4]), b"012\0")

    def test_longNotReady(self) -> None:
        """A message of many packets waits for its receive, too."""
        alice, bob = self.pair()
        alice.send(alice.fill(b"x" * 40_000))
        self.runFor(0.02)
        bob.receive(bob.segment(0, 40_000))
        self.runUntilBothCompleted(alice, bob)
        self.assertEqual(bytes(bob.memory.view[:40_001]), b"x" * 40_000 + b"\0")

    def test_writeWithImmediateNotReady(self) -> None:
        """A write with immediate data needs a receive, and waits for it."""
        alice, bob = self.pair()
        alice.rdma(Operation.RDMA_WRITE_WITH_IMMEDIATE, bob.memory, alice.fill(b"early"), immediate=9)
        self.quiet(alice, bob)
        bob.receive()
        self.runUntilBothCompleted(alice, bob)
        self.assertEqual((bob.received[0].immediate, bytes(bob.memory.view[:5])), (9, b"early"))

    def test_neverReady(self) -> None:
        """A message without a receive fails when its few RNR retries are exhausted."""
        alice, bob = self.pair(settings=replace(HASTY, timeout=PATIENT.timeout))
        alice.send(alice.fill(b"nobody"))
        self.runUntilCompleted(alice, sends=1)
        self.assertEqual(alice.sent[0].status, Status.RNR_RETRY_EXC_ERR)
        self.assertEqual(alice.queuePair.state, QPState.ERR)

    def gone(self, alice: End) -> None:
        """Assert that messages do not reach their receiver, which ends the connection."""
        alice.send(alice.fill(b"anybody?"), identifier=1)
        alice.send(alice.fill(b"hello?"), identifier=2)
        self.runUntilCompleted(alice, sends=2)
        self.assertEqual([c.status for c in alice.sent], [Status.RETRY_EXC_ERR, _FLUSHED])
        self.assertEqual(alice.queuePair.state, QPState.ERR)

    def test_peerClosed(self) -> None:
        """Retries are exhausted when the peer's queue pair is closed."""
        alice, bob = self.pair(settings=HASTY)
        bob.queuePair.close()
        self.gone(alice)

    def test_peerInError(self) -> None:
        """Retries are exhausted when the peer's queue pair is in ERR."""
        alice, bob = self.pair(settings=HASTY)
        bob.receive(bob.segment())
        bob.queuePair.modify(QPAttributes(state=QPState.ERR))
        self.gone(alice)

    def test_peerReset(self) -> None:
        """Retries are exhausted when the peer's queue pair is in RESET."""
        alice, bob = self.pair(settings=HASTY)
        bob.queuePair.modify(QPAttributes(state=QPState.RESET))
        self.gone(alice)

    def test_peerDeviceClosed(self) -> None:
        """Retries are exhausted when the peer's device is closed."""
        alice, bob = self.pair(settings=HASTY)
        self.devices[1].close()
        self.forget(bob)
        self.gone(alice)
        bob.close()

    def test_waitingPeerGoes(self) -> None:
        """A message that waits for a receive fails when the peer's queue pair is closed."""
        alice, bob = self.pair(settings=replace(HASTY, rnrRetry=7))
        alice.send(alice.fill(b"waiting"))
        self.runFor(0.01)
        bob.queuePair.close()
        self.runUntilCompleted(alice, sends=1)
        self.assertEqual(alice.sent[0].status, Status.RETRY_EXC_ERR)
