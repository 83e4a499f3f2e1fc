"""Contract: long transfers by all operations arrive unchanged."""

from __future__ import annotations

from dataclasses import replace
from hashlib import sha256
from random import Random

from txrdma.iba.verbs import Operation, ReceiveRequest, Segment, SendRequest, Status
from txrdma.interfaces import IMemoryRegion
from txrdma.testing.verbs.ends import End, EVERYTHING, PATIENT, TwoEnds

ENDURING = replace(PATIENT, timeout=15, retryCount=7, rnrRetry=7)
"""Attributes for connections that must survive a lossy network: timeout 0.13 seconds, seven retries."""

SEND, WRITE, READ = Operation.SEND, Operation.RDMA_WRITE, Operation.RDMA_READ


class BulkContract(TwoEnds):
    """
    Transfers of many bytes by all operations, with checks that they arrive unchanged.

    @cvar message: bytes of each request.
    @cvar patience: seconds within which a transfer must be completed.
    """

    message = 1 << 20
    patience = 30.0

    def transfer(self, alice: End, bob: End, operation: Operation, length: int) -> str:
        """
        Transfer this many bytes from Alice to Bob, or by a read from Bob to Alice; Alice is the requester.

        @return: the hash of the received data, which equals that of the sent data.
        """
        mine = alice.domain.allocateMemory(length, EVERYTHING)
        yours = bob.domain.allocateMemory(length, EVERYTHING)
        try:
            source, target = (yours, mine) if operation is READ else (mine, yours)
            self._fill(source)
            self._post(alice, bob, operation, mine, yours)
            hashes = [sha256(region.view).hexdigest() for region in (source, target)]
            self.assertEqual(hashes[0], hashes[1], f"{operation!r} of {length} bytes")
            return hashes[1]
        finally:
            mine.close()
            yours.close()

    def _fill(self, region: IMemoryRegion) -> None:
        random = Random(1)
        for at in range(0, region.length, 1 << 20):
            piece = region.view[at : at + (1 << 20)]
            piece[:] = random.randbytes(len(piece))

    def _post(
        self, alice: End, bob: End, operation: Operation, mine: IMemoryRegion, yours: IMemoryRegion
    ) -> None:
        """Post a few requests at a time, until all are completed."""
        sent, received = len(alice.sent), len(bob.received)
        offsets = list(range(0, mine.length, self.message))
        count, posted = len(offsets), 0

        def go() -> bool:
            nonlocal posted
            before = len(alice.sent), len(bob.received)
            for end in (alice, bob):
                end.poll()
            for completion in alice.sent[before[0] :] + bob.received[before[1] :]:
                self.assertEqual(completion.status, Status.SUCCESS, completion)
            while posted < count and posted - (len(alice.sent) - sent) < 8:
                at = offsets[posted]
                length = min(self.message, mine.length - at)
                here = Segment(mine.address + at, length, mine.lkey)
                if operation is SEND:
                    there = Segment(yours.address + at, length, yours.lkey)
                    bob.queuePair.postReceive([ReceiveRequest(posted, [there])])
                request = SendRequest(posted, operation, [here])
                if operation is not SEND:
                    request.remoteAddress, request.rkey = yours.address + at, yours.rkey
                alice.queuePair.postSend([request])
                posted += 1
            arrived = len(bob.received) - received == (count if operation is SEND else 0)
            return len(alice.sent) - sent == count and arrived

        self.runUntil(go, self.patience)
