"""Ends for tests of verbs: a queue pair with its resources, and two of them connected."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from txrdma.iba.verbs import (
    Access,
    AddressVector,
    Buffer,
    Capacity,
    Completion,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    Segment,
    SendRequest,
    Status,
    usualGID,
)
from txrdma.interfaces import AsyncEvent, IMemoryRegion, IProtectionDomain, ISharedReceiveQueue, IVerbsDevice
from txrdma.testing.reactors import Base
from txrdma.testing.verbs.quirks import OURS, Quirks

EVERYTHING = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ
WITH_ATOMICS = EVERYTHING | Access.REMOTE_ATOMIC
QKEY = 0x11111111

PATIENT = QPAttributes(
    maxDestRDAtomic=4,
    minRNRTimer=1,
    timeout=14,
    retryCount=7,
    rnrRetry=7,
    maxRDAtomic=4,
    rqPSN=0xFFFFFA,
    sqPSN=0xFFFFFA,
)
"""Default attributes of queue pairs in tests: timeout 0.07 seconds, seven retries, unlimited RNR retries."""


USUAL = Capacity(maxInline=256)
"""Default capacity of queue pairs in tests."""


class End:
    """
    A queue pair with its resources.

    @ivar memory: 64 KiB that every peer may read and write.
    @ivar sent: polled completions of sends; C{received}: polled completions of receives.
    @ivar events: asynchronous events of the device.
    @ivar gidIndex: index of the GID for peers: the first of IPv4, else the first that is not link-local.
    """

    def __init__(
        self,
        device: IVerbsDevice,
        kind: QPKind = QPKind.RC,
        capacity: Capacity = USUAL,
        access: Access = EVERYTHING,
        depth: int = 512,
        shared: ISharedReceiveQueue | None = None,
        beside: End | None = None,
        port: int = 1,
    ) -> None:
        """
        @param access: access rights of the queue pair.
        @param shared: its shared receive queue, if any.
        @param beside: end whose protection domain it uses, instead of its own.
        @param port: number of the port of the device.
        """
        self.device = device
        self.port = port
        self.access = access
        self._ownsDomain = beside is None
        self.domain: IProtectionDomain = device.createProtectionDomain() if beside is None else beside.domain
        self.channel = device.createChannel()
        self.sends = device.createCompletionQueue(depth, self.channel)
        self.receives = device.createCompletionQueue(depth, self.channel)
        self.queuePair = (
            self.domain.createQueuePair(kind, self.sends, self.receives, capacity)
            if shared is None
            else self.domain.createQueuePair(kind, self.sends, self.receives, capacity, shared)
        )
        self.memory = self.domain.allocateMemory(1 << 16, EVERYTHING)
        self.sent: list[Completion] = []
        self.received: list[Completion] = []
        self.events: list[AsyncEvent] = []
        self.gidIndex = usualGID(device.gidTable(port))
        self.unsubscribe = device.subscribe(self.events.append)

    def poll(self) -> None:
        """Poll both completion queues of the end."""
        self.sent += self.sends.poll(64)
        self.received += self.receives.poll(64)

    def segment(self, offset: int = 0, length: int = 64, region: IMemoryRegion | None = None) -> Segment:
        """Return a segment of C{memory}, or of another region."""
        region = region or self.memory
        return Segment(region.address + offset, length, region.lkey)

    def fill(self, data: bytes, offset: int = 0) -> Segment:
        """Copy data into the end's memory, and return its segment."""
        self.memory.view[offset : offset + len(data)] = data
        return self.segment(offset, len(data))

    def receive(self, *segments: Segment, identifier: int = 100) -> None:
        """Post one receive request with these segments."""
        self.queuePair.postReceive([ReceiveRequest(identifier, segments)])

    def send(
        self, *segments: Segment, identifier: int = 1, inline: Sequence[Buffer] = (), signaled: bool = True
    ) -> None:
        """Post one SEND request with these segments or inline data."""
        self.queuePair.postSend(
            [SendRequest(identifier, Operation.SEND, segments, inline=inline, signaled=signaled)]
        )

    def rdma(
        self,
        operation: Operation,
        peer: IMemoryRegion,
        *segments: Segment,
        offset: int = 0,
        identifier: int = 1,
        immediate: int = 0,
        inline: Sequence[Buffer] = (),
    ) -> None:
        """Post an RDMA request for the peer's memory."""
        request = SendRequest(identifier, operation, segments, inline=inline, immediate=immediate)
        request.remoteAddress, request.rkey = peer.address + offset, peer.rkey
        self.queuePair.postSend([request])

    def statuses(self) -> tuple[list[Status], list[Status]]:
        """Return the statuses of all polled completions: of sends, then of receives."""
        return [c.status for c in self.sent], [c.status for c in self.received]

    def toInit(self) -> None:
        """Bring the queue pair from RESET to INIT."""
        attributes = QPAttributes(state=QPState.INIT, pkeyIndex=0, port=self.port)
        if self.queuePair.kind is QPKind.UD:
            self.queuePair.modify(replace(attributes, qkey=QKEY))
        else:
            self.queuePair.modify(replace(attributes, access=self.access))

    def toRTR(self, peer: End, settings: QPAttributes = PATIENT, **more: Any) -> None:
        """Bring the queue pair from INIT to RTR, connected to C{peer}, with more attributes or others."""
        if self.queuePair.kind is QPKind.UD:
            self.queuePair.modify(QPAttributes(state=QPState.RTR))
            return
        mtu = min(end.device.portAttributes(end.port).activeMTU for end in (self, peer))
        attributes = QPAttributes(
            state=QPState.RTR,
            address=self.destinationOf(peer),
            pathMTU=settings.pathMTU or mtu,
            destinationQPN=peer.queuePair.number,
            rqPSN=settings.rqPSN,
            maxDestRDAtomic=settings.maxDestRDAtomic,
            minRNRTimer=settings.minRNRTimer,
        )
        self.queuePair.modify(replace(attributes, **more))

    def toRTS(self, settings: QPAttributes = PATIENT, **more: Any) -> None:
        """Bring the queue pair from RTR to RTS, with more attributes or others."""
        attributes = QPAttributes(state=QPState.RTS, sqPSN=settings.sqPSN)
        if self.queuePair.kind is not QPKind.UD:
            attributes = replace(
                attributes,
                timeout=settings.timeout,
                retryCount=settings.retryCount,
                rnrRetry=settings.rnrRetry,
                maxRDAtomic=settings.maxRDAtomic,
            )
        self.queuePair.modify(replace(attributes, **more))

    def destinationOf(self, peer: End) -> AddressVector:
        """Return the address vector from this end's port to another end's."""
        there = peer.device.portAttributes(peer.port)
        return AddressVector(
            peer.device.gids(peer.port)[peer.gidIndex],
            sgidIndex=self.gidIndex,
            port=self.port,
            dlid=there.lid,
            dmac=there.mac,
        )

    def close(self) -> None:
        """Close everything that the end has created on its device, but not the device."""
        self.unsubscribe()
        self.queuePair.close()
        self.memory.close()
        self.sends.close()
        self.receives.close()
        self.channel.close()
        if self._ownsDomain:
            self.domain.close()


class TwoEnds(Base):
    """
    A test case with two devices that reach each other.

    The suite of an implementation defines how to open them, and how to let time pass. A device may transfer
    data only while its completion queues are polled or armed, so tests do one or the other for both ends.

    @cvar quirks: permitted differences of the first and the second device.
    @cvar ports: numbers of their ports.
    """

    quirks: tuple[Quirks, Quirks] = (OURS, OURS)
    ports: tuple[int, int] = (1, 1)

    def makeDevices(self) -> tuple[IVerbsDevice, IVerbsDevice]:
        """Open two devices, which may be the same; the suite closes them at the end."""
        raise NotImplementedError

    def runUntil(self, condition: Callable[[], bool], seconds: float = 10.0) -> None:
        """Let time pass until the condition is true; fail if that takes more than this many seconds."""
        raise NotImplementedError

    def runFor(self, seconds: float) -> None:
        """Let this many seconds pass."""
        raise NotImplementedError

    def setUp(self) -> None:
        super().setUp()
        self._ends: list[End] = []
        self.devices = self.makeDevices()

    def end(self, which: int, kind: QPKind = QPKind.RC, **more: Any) -> End:
        """Create an L{End} on the first (0) or the second (1) device, with its other arguments."""
        end = End(self.devices[which], kind, **more, port=self.ports[which])
        self.addCleanup(end.close)
        self._ends.append(end)
        return end

    def region(self, end: End, length: int, access: Access) -> IMemoryRegion:
        """Allocate memory in the end's protection domain until the test ends."""
        region = end.domain.allocateMemory(length, access)
        self.addCleanup(region.close)
        return region

    def forget(self, end: End) -> None:
        """Stop polling an end whose device is closed."""
        self._ends.remove(end)

    def connectToRTR(self, one: End, other: End, settings: QPAttributes = PATIENT) -> None:
        """Bring the queue pairs of two ends to RTR, connected to each other."""
        for end in (one, other):
            end.toInit()
        one.toRTR(other, settings)
        other.toRTR(one, settings)

    def connect(self, one: End, other: End, settings: QPAttributes = PATIENT) -> None:
        """Connect two ends: bring the queue pairs of both to RTS."""
        self.connectToRTR(one, other, settings)
        for end in (one, other):
            end.toRTS(settings)

    def pair(
        self, capacity: Capacity = USUAL, access: Access = EVERYTHING, settings: QPAttributes = PATIENT
    ) -> tuple[End, End]:
        """Return two connected ends, of which the second has this capacity and these access rights."""
        alice, bob = self.end(0), self.end(1, capacity=capacity, access=access)
        self.connect(alice, bob, settings)
        return alice, bob

    def runUntilCompleted(self, end: End, sends: int = 0, receives: int = 0) -> None:
        """Poll all ends until C{end} has this many completions in total; assert that it has no more."""
        self.runPolling(lambda: len(end.sent) >= sends and len(end.received) >= receives, *self._ends)
        self.assertEqual((len(end.sent), len(end.received)), (sends, receives), (end.sent, end.received))

    def runUntilBothCompleted(self, sender: End, receiver: End, count: int = 1) -> None:
        """Poll all ends until this many sends and receives have completed in total; assert no more."""
        self.runUntilCompleted(receiver, receives=count)
        self.runUntilCompleted(sender, sends=count)

    def runPolling(self, condition: Callable[[], bool], *ends: End) -> None:
        """Poll these ends until a condition is true, as C{runUntil}."""

        def isCompleted() -> bool:
            for end in ends:
                end.poll()
            return condition()

        self.runUntil(isCompleted)

    def quiet(self, *ends: End) -> None:
        """Assert that nothing more completes at these ends."""
        before = [(list(end.sent), list(end.received)) for end in ends]
        self.runFor(0.05)
        for end in ends:
            end.poll()
        self.assertEqual([(end.sent, end.received) for end in ends], before)
