"""
Two software devices with a connection, for tests.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from txrdma.iba.types import MTU
from txrdma.iba.verbs import (
    Access,
    AddressVector,
    Capacity,
    Completion,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    Segment,
    SendRequest,
)
from txrdma.interfaces import AsyncEvent
from txrdma.soft.device import SoftDevice

RIGHTS = Access.REMOTE_WRITE | Access.REMOTE_READ | Access.REMOTE_ATOMIC
ALL = Access.LOCAL_WRITE | RIGHTS
QKEY = 0x11111111

INIT = QPAttributes(state=QPState.INIT, pkeyIndex=0, port=1, access=RIGHTS)
RTR = QPAttributes(state=QPState.RTR, pathMTU=MTU.MTU_1024, rqPSN=0xFFFFF0, maxDestRDAtomic=4, minRNRTimer=1)
RTS = QPAttributes(state=QPState.RTS, timeout=14, retryCount=7, rnrRetry=7, sqPSN=0xFFFFF0, maxRDAtomic=4)


class End:
    """A device with one queue pair, and a region of memory."""

    def __init__(self, device: SoftDevice, kind: QPKind = QPKind.RC, length: int = 1 << 20) -> None:
        self.device = device
        self.domain = device.createProtectionDomain()
        self.channel = device.createChannel()
        self.queue = device.createCompletionQueue(1024, self.channel)
        self.qp = self.domain.createQueuePair(kind, self.queue, self.queue, Capacity(256, 256, 4, 4, 4096))
        self.region = self.domain.allocateMemory(length, ALL)
        self.events: list[AsyncEvent] = []
        device.subscribe(self.events.append)

    def vector(self) -> AddressVector:
        return AddressVector(self.device.gids(1)[0], dmac=self.device.mac)

    def join(self, peer: End, **changes: Any) -> None:  # attributes of different types
        """Modify an RC queue pair to RTS, connected to another end."""
        atRTR = RTR.given() | {"alternateAddress"}
        atRTS = RTS.given() | {"migrationState"}
        assert changes.keys() <= atRTR | atRTS
        self.qp.modify(INIT)
        rtr = replace(RTR, **{n: v for n, v in changes.items() if n in atRTR})
        self.qp.modify(replace(rtr, address=peer.vector(), destinationQPN=peer.qp.number))
        self.qp.modify(replace(RTS, **{n: v for n, v in changes.items() if n in atRTS}))

    def open(self) -> None:
        """Modify a UD queue pair to RTS."""
        self.qp.modify(QPAttributes(state=QPState.INIT, pkeyIndex=0, port=1, qkey=QKEY))
        self.qp.modify(QPAttributes(state=QPState.RTR))
        self.qp.modify(QPAttributes(state=QPState.RTS, sqPSN=5))

    def segment(self, offset: int = 0, length: int = 1 << 20) -> Segment:
        """Return a segment of the region."""
        return Segment(self.region.address + offset, length, self.region.lkey)

    def post(
        self, identifier: int, operation: Operation, segments: Sequence[Segment] = (), **more: Any
    ) -> None:
        self.qp.postSend([SendRequest(identifier, operation, segments, **more)])

    def rdma(
        self,
        operation: Operation,
        peer: End,
        identifier: int,
        offset: int,
        length: int,
        there: int = 0,
        **more: Any,
    ) -> None:
        """Post a request for a range of the peer's region."""
        where = {"remoteAddress": peer.region.address + there, "rkey": peer.region.rkey}
        self.post(identifier, operation, [self.segment(offset, length)], **where, **more)

    def write(self, peer: End, identifier: int, *place: int, **more: Any) -> None:
        """RDMA WRITE from the local region to the peer's; C{place} is offset, length, and offset there."""
        self.rdma(Operation.RDMA_WRITE, peer, identifier, *place, **more)

    def to(self, peer: End) -> dict[str, Any]:
        """Return the attributes of a datagram's request that address another end."""
        handle = self.domain.createAddressHandle(peer.vector())
        return {"address": handle, "remoteQPN": peer.qp.number, "remoteQKey": QKEY}

    def receive(self, identifier: int, offset: int, length: int) -> None:
        self.qp.postReceive([ReceiveRequest(identifier, [self.segment(offset, length)])])

    def poll(self) -> list[Completion]:
        return list(self.queue.poll(1024))


def another(
    one: End, other: End, capacity: Capacity, receives: Sequence[ReceiveRequest] = ()
) -> tuple[Any, Any]:
    """
    Return another pair of connected queue pairs, with the completion queues of two ends.

    @param receives: of the second one, posted before it is connected.
    """
    here, there = (
        end.domain.createQueuePair(QPKind.RC, end.queue, end.queue, capacity) for end in (one, other)
    )
    for pair, number, vector in ((here, there.number, other.vector()), (there, here.number, one.vector())):
        pair.modify(INIT)
        if pair is there and receives:
            pair.postReceive(receives)
        pair.modify(replace(RTR, address=vector, destinationQPN=number))
        pair.modify(RTS)
    return here, there


def datagramEnds(one: SoftDevice, other: SoftDevice) -> tuple[End, End]:
    """Return an end on each device whose UD queue pair can send and receive."""
    ends = End(one, QPKind.UD), End(other, QPKind.UD)
    for end in ends:
        end.open()
    return ends


def connected(one: SoftDevice, other: SoftDevice, **changes: Any) -> tuple[End, End]:
    """Return two devices with an RC connection."""
    ends = End(one), End(other)
    ends[0].join(ends[1], **changes)
    ends[1].join(ends[0], **changes)
    return ends
