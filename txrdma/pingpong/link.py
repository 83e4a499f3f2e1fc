"""One end of a measured link: a queue pair, its memory, and its posted receives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack
from dataclasses import dataclass, replace
from secrets import randbelow
from time import perf_counter_ns
from typing import Final

from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError
from txrdma.iba.types import GID, LID, MACAddress, MTU, QPN, RKey
from txrdma.iba.verbs import (
    Access,
    AddressVector,
    AsyncEventKind,
    Capacity,
    Completion,
    CompletionOpcode,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    Segment,
    Status,
    usualGID,
)
from txrdma.interfaces import AsyncEvent, IVerbsDevice
from txrdma.pingpong.plan import LinkSettings, MemoryLayout
from txrdma.verbs.completions import CompletionReader, ReaderReactor

QKEY: Final = 0x11111111
ACK_TIMEOUT: Final = 16
"""Local ACK timeout: 4.096 microseconds times 2**16, or 0.27 seconds."""

_MOST_READS: Final = 16
_RECEIVE: Final = int(CompletionOpcode.RECEIVE)
_RNR_TIMER: Final = 4
"""RNR NAK timer of 40 microseconds (IBA table 45)."""

_FATAL: Final = frozenset(
    (AsyncEventKind.QP_FATAL, AsyncEventKind.QP_ACCESS_ERROR, AsyncEventKind.QP_REQUEST_ERROR)
)
_WHY: Final = {
    Status.RETRY_EXC_ERR: "the peer does not answer",
    Status.RNR_RETRY_EXC_ERR: "the peer does not receive",
    Status.REM_ACCESS_ERR: "the peer does not allow it",
    Status.REM_INV_REQ_ERR: "the peer does not do this",
    Status.REM_OP_ERR: "the peer can't do it",
    Status.WR_FLUSH_ERR: "the connection has failed",
}


class RequestFailed(RDMAError):
    """A work request has failed with C{status}."""

    def __init__(self, status: Status) -> None:
        super().__init__(f"{_WHY.get(status, 'a request failed')} ({Status(status).name})")
        self.status = status


@dataclass(frozen=True, slots=True)
class EndAddress:
    """
    Addresses and limits of one end, which the other end needs to connect.

    @ivar reads: number of RDMA reads and atomics that the end can serve at a time.
    @ivar mtu: active MTU of the port in bytes.
    @ivar address: start address of the end's memory.
    @ivar rkey: rkey of the end's memory.
    """

    gid: GID
    lid: LID
    qpn: QPN
    psn: int
    mtu: int
    mac: MACAddress | None = None
    reads: int = 1
    address: int = 0
    rkey: RKey = RKey(0)


@dataclass(frozen=True, slots=True)
class TestSide:
    """
    Configuration of one end.

    @ivar open: opens the device; called with the local address of the conversation.
    @ivar close: called with the device when it is no longer used.
    @ivar gidIndex: index of the port's GID; by default that of an IPv4 GID, if there is one.
    @ivar events: wait for completion channel events, and never busy-poll.
    @ivar timeout: local ACK timeout (IBA 9.9.2.2): 4.096 microseconds times 2**C{timeout}; requests are
        retransmitted up to seven times.
    @ivar stallSeconds: time without progress after which a test fails.
    @ivar now: monotonic clock in nanoseconds.
    """

    reactor: ReaderReactor
    open: Callable[[object], IVerbsDevice]
    close: Callable[[IVerbsDevice], None] = lambda device: device.close()
    port: int = 1
    gidIndex: int | None = None
    events: bool = False
    timeout: int = ACK_TIMEOUT
    stallSeconds: float = 10.0
    now: Callable[[], int] = perf_counter_ns


class LinkUser:
    """Handler of a link's completions, which by default ignores them."""

    def arrived(self, batch: Sequence[Completion]) -> None:
        """Handle messages received from the peer. Their receives are posted again afterwards."""

    def sendsCompleted(self, batch: Sequence[Completion]) -> None:
        """Handle completed send requests."""

    def failed(self, error: Exception) -> None:
        """Handle the failure of the link."""


class MeasuredLink:
    """
    A queue pair with all its resources. Its creator must close it.

    @ivar here: addresses and limits of this end, for the peer.
    @ivar peer: addresses and limits of the peer; None before L{connect}.
    @ivar user: current handler of completions.
    @ivar error: reason why the link has failed, or None.
    @ivar broken: called with the error when the link fails.
    @ivar counted: number of local atomics that have incremented the counter in the peer's memory.
    @ivar now: monotonic clock in nanoseconds.
    """

    def __init__(self, side: TestSide, device: IVerbsDevice, settings: LinkSettings) -> None:
        self.side = side
        self.device = device
        self.settings = settings
        self.layout = MemoryLayout(settings)
        self.now = side.now
        self.user: LinkUser | None = None
        self.error: Exception | None = None
        self.broken: Callable[[Exception], None] | None = None
        self.counted = 0
        self.peer: EndAddress | None = None
        port = side.port
        self._gidIndex = usualGID(device.gidTable(port)) if side.gidIndex is None else side.gidIndex
        gids = device.gids(port)
        if not 0 <= self._gidIndex < len(gids):
            raise InvalidRequest(f"port {port} of {device.name} has no GID {self._gidIndex}")
        self._closing = ExitStack()
        with ExitStack() as undo:
            self._build(undo)
            self._closing = undo.pop_all()
        attributes = device.portAttributes(port)
        self.here = EndAddress(
            gids[self._gidIndex],
            attributes.lid,
            self.queuePair.number,
            randbelow(1 << 24),
            attributes.activeMTU.bytes,
            attributes.mac,
            min(_MOST_READS, device.limits.maxDestRDAtomic),
            self.memory.address,
            self.memory.rkey,
        )

    def _build(self, undo: ExitStack) -> None:
        device, settings, layout, events = self.device, self.settings, self.layout, self.side.events
        undo.callback(device.subscribe(self._eventReceived))
        self.domain = device.createProtectionDomain()
        undo.callback(self.domain.close)
        channel = device.createChannel()
        undo.callback(channel.close)
        queue = device.createCompletionQueue(settings.depth + layout.receives, channel)
        undo.callback(queue.close)
        rights = Access.LOCAL_WRITE | Access.REMOTE_WRITE | Access.REMOTE_READ
        if settings.atomics:
            rights |= Access.REMOTE_ATOMIC
        self.memory = self.domain.allocateMemory(layout.length, rights)
        undo.callback(self.memory.close)
        self.memory.view[: len(layout.contents)] = layout.contents
        capacity = Capacity(settings.depth, layout.receives, 1, 1, settings.inline)
        self.queuePair = self.domain.createQueuePair(settings.kind, queue, queue, capacity)
        undo.callback(self.queuePair.close)
        self._receives = [
            ReceiveRequest(slot, (self.segment(layout.slotAt(slot) - layout.headroom, layout.stride),))
            for slot in range(layout.slots)
        ]
        first = QPAttributes(state=QPState.INIT, pkeyIndex=0, port=self.side.port)
        if settings.kind is QPKind.UD:
            self.queuePair.modify(replace(first, qkey=QKEY))
        else:
            self.queuePair.modify(replace(first, access=rights & ~Access.LOCAL_WRITE))
        self.repost(range(layout.receives))
        self._reader = CompletionReader(
            self.side.reactor, channel, [queue], self._completed, busyPolls=not events
        )
        undo.callback(self._reader.stop)

    @property
    def mtu(self) -> int:
        """Path MTU in bytes: the negotiated value, or the largest that both ports support."""
        most = self.here.mtu if self.peer is None else min(self.here.mtu, self.peer.mtu)
        return min(most, self.settings.mtu or most)

    @property
    def route(self) -> str:
        """Route of the queue pair, as in C{IQueuePair.route}."""
        return self.queuePair.route

    def connect(self, peer: EndAddress) -> None:
        """Connect the queue pair to the peer; raise L{RDMAError} if the device cannot reach it."""
        self.peer = peer
        address = AddressVector(peer.gid, self._gidIndex, self.side.port, dlid=peer.lid, dmac=peer.mac)
        if self.settings.kind is QPKind.UD:
            self._connectDatagrams(address)
        else:
            self._connectReliably(address, peer)
        self._reader.start()

    def _connectDatagrams(self, address: AddressVector) -> None:
        modify = self.queuePair.modify
        modify(QPAttributes(state=QPState.RTR))
        modify(QPAttributes(state=QPState.RTS, sqPSN=self.here.psn))
        handle = self.domain.createAddressHandle(address)
        self._closing.callback(handle.close)
        self.addressHandle = handle

    def _connectReliably(self, address: AddressVector, peer: EndAddress) -> None:
        modify = self.queuePair.modify
        modify(
            QPAttributes(
                state=QPState.RTR,
                address=address,
                pathMTU=MTU.fitting(self.mtu),
                destinationQPN=peer.qpn,
                rqPSN=peer.psn,
                maxDestRDAtomic=self.here.reads,
                minRNRTimer=_RNR_TIMER,
            )
        )
        modify(
            QPAttributes(
                state=QPState.RTS,
                sqPSN=self.here.psn,
                timeout=self.side.timeout,
                retryCount=7,
                rnrRetry=7,
                maxRDAtomic=max(1, min(peer.reads, _MOST_READS, self.device.limits.maxRDAtomic)),
            )
        )

    def repost(self, receives: Iterable[int]) -> None:
        """Post receives by number again; numbers beyond the slots share the last slot."""
        last = len(self._receives) - 1
        self.queuePair.postReceive([self._receives[min(number, last)] for number in receives])

    def segment(self, offset: int, length: int) -> Segment:
        """Return a segment of the local memory."""
        return Segment(self.memory.address + offset, length, self.memory.lkey)

    def isRight(self, index: int, offset: int, length: int) -> bool:
        """Return whether the data at C{offset} is that of message C{index}."""
        there = self.layout.pattern(index)
        return (
            bytes(self.memory.view[offset : offset + length]) == self.layout.contents[there : there + length]
        )

    def fail(self, error: Exception) -> None:
        """Record the failure of the link, and report it to C{user} and C{broken}."""
        if self.error is None:
            self.error = error
            if self.user is not None:
                self.user.failed(error)
            if self.broken is not None:
                self.broken(error)

    def close(self) -> None:
        """Close the link, but not the device. Repeated calls have no effect."""
        self.user = self.broken = None
        self._closing.close()

    def _completed(self, batch: Sequence[Completion]) -> None:
        for completion in batch:
            if completion.status:
                self.fail(RequestFailed(completion.status))
                return
        arrived = [completion for completion in batch if completion.opcode >= _RECEIVE]
        completed = batch
        if arrived and len(arrived) < len(batch):
            completed = [completion for completion in batch if completion.opcode < _RECEIVE]
        try:
            if arrived:
                if self.user is not None:
                    self.user.arrived(arrived)
                self.repost([completion.identifier for completion in arrived])
            if len(arrived) < len(batch) and self.user is not None:
                self.user.sendsCompleted(completed)
        except Exception as error:
            self.fail(error)

    def _eventReceived(self, event: AsyncEvent) -> None:
        if event.kind is AsyncEventKind.DEVICE_FATAL or (
            event.kind in _FATAL and event.queuePair in (None, self.queuePair)
        ):
            self.fail(DeviceUnavailable(f"the connection has failed ({event.kind.value})"))
