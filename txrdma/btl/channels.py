"""
Channels of a module: each an unreliable datagram queue pair with a completion queue, and registered memory.

A queue pair that fails, for example because its port goes down, is reset and keeps its number. Datagrams that
are lost meanwhile are retransmitted.

Buffers are registered once. Receive buffers are posted again in batches. Send buffers form a ring, because a
send queue completes in order; only the last of many requests is signaled. The software device needs no
buffers: it accepts all packets inline, and delivers datagrams without receives.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Final

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure

from txrdma.btl.core.events import Packet
from txrdma.btl.core.module import OVERHEAD
from txrdma.btl.core.peer import Peer
from txrdma.error import RDMAError
from txrdma.iba.types import GID, QPN
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
    ReceiveRequest,
    Segment,
    SendRequest,
    Status,
)
from txrdma.interfaces import IAddressHandle, IDirectDatagrams, IProtectionDomain, IVerbsDevice
from txrdma.kit.delayedcalls import cancelCall
from txrdma.kit.logs import errorText, RateLimitedLogger
from txrdma.verbs.completions import CompletionReader, ReaderReactor

_rateLimited = RateLimitedLogger(Logger())

RESET_SECONDS: Final = 0.25
"""Seconds after which a failed queue pair is reset; its port may be down for longer."""

MOST_UNREPORTED: Final = 32
"""Packets after which a batch is signaled, or a quarter of the send queue if that is less."""

MOST_POLLS: Final = 64
"""
Batches that are processed without the reactor: those of a full receive queue. A peer may send packets as fast
as they are processed.
"""

QKEY: Final = 0x62746C31
"""The Q_Key of all channels. A sender must also know numbers that only peers of the module receive."""

GRH: Final = 40
"""Bytes before each datagram in a receive's buffer (IBA 11.4.2.1)."""

SLEEP_SECONDS: Final = 60e-6
"""
Processor time that two modules need for a sleep and a wakeup. Answers to 64 bytes took 113 us of each process
when both slept, and 46 when both polled; over UDP 156 and 106.
"""

Source = tuple[bytes, int]
"""The sender of a packet: its IP address, or its GID if that is not an IPv4 address, and its queue pair."""

ReceivedPacket = tuple[Source, memoryview, int]
"""A received packet: its source, its bytes, and the ECN field of its IP header."""

_RECEIVE: Final = CompletionOpcode.RECEIVE
_SUCCESS: Final = Status.SUCCESS


def sourceOf(gid: GID, qpn: QPN) -> Source:
    """Return the source that the receiver sees in packets of this queue pair."""
    return (gid.raw[12:] if gid.isMapped else gid.raw), qpn


def bufferBytes(depths: tuple[int, int], mtu: int) -> int:
    """Return the size of the buffers of a channel with these send and receive depths, in bytes."""
    sends, receives = depths
    return sends * mtu + receives * (mtu + GRH)


class Channel:
    """
    A channel of a module. It posts packets in batches, and passes received packets on.

    @ivar number: 0 is the command channel, 1 the data channel.
    @ivar sends: packets that may be posted without a completion: the module's credits.
    @ivar room: number of the longest packets that the device retains until they are processed.
    @ivar reposts: number of receives that were posted again.
    @ivar posted: number of packets posted so far; C{completed}: of these, packets known to be completed.
    @ivar isClosed: whether the queue pair is closed.
    """

    def __init__(
        self,
        reactor: ReaderReactor,
        device: IVerbsDevice,
        portNumber: int,
        domain: IProtectionDomain,
        number: int,
        mtu: int,
        depths: tuple[int, int],
        handleBatch: Callable[[Channel, int, Sequence[ReceivedPacket]], None],
        broken: Callable[[Failure], None],
    ) -> None:
        """
        @param portNumber: number of the device's port.
        @param mtu: bytes of the longest packet.
        @param depths: depths of the send and the receive queue; the device may reduce them.
        @param handleBatch: gets the number of packets whose sends have completed, and received packets, which
            are valid until it returns.
        @param broken: called when the completions of the channel can no longer be read.
        @raise RDMAError: the device cannot create another queue pair.
        """
        self.number = number
        most = device.limits.maxQueuePairRequests
        self.sends, receives = (min(depth, most) for depth in depths)
        self.reposts = self.posted = self.completed = 0
        self._unreported = 0  # packets since the last signaled request
        self._mostUnreported = min(MOST_UNREPORTED, self.sends // 4)
        self._handleBatch, self._broken = handleBatch, broken
        self.isClosed = False
        self._reactor, self._portNumber = reactor, portNumber
        self._resetting: IDelayedCall | None = None
        with ExitStack() as undo:
            channel = device.createChannel()
            undo.callback(channel.close)
            queue = device.createCompletionQueue(self.sends + receives, channel)
            undo.callback(queue.close)
            buffers = undo.enter_context(ExitStack())  # closed after the queue pair
            self._view = memoryview(b"")
            inline = min(mtu, device.limits.maxInline)
            capacity = Capacity(self.sends, receives, 1, 1, inline)
            self._pair = domain.createQueuePair(QPKind.UD, queue, queue, capacity)
            undo.callback(self._pair.close)
            self._mostInline = self._pair.capacity.maxInline
            self._requests = [SendRequest(0, Operation.SEND) for _ in range(self.sends)]
            for request in self._requests:
                request.remoteQKey = QKEY
            self._mtu = mtu
            self._free = self._next = 0  # places of the ring: the first free one, and the next to fill
            self._receives: list[ReceiveRequest] = []
            self._begin()
            self._direct = direct = IDirectDatagrams(self._pair, None)
            self.room = receives if direct is None else min(receives, direct.bufferBytes // (mtu + OVERHEAD))
            if direct is None or self._mostInline < mtu:
                length = bufferBytes((self.sends, receives), mtu)
                self._memory = domain.allocateMemory(length, Access.LOCAL_WRITE)
                buffers.callback(self._memory.close)
                self._view = self._memory.view
                self._receives += self._makeReceives(self.sends * mtu, receives)
            else:
                self._receives.append(ReceiveRequest(0, ()))  # is completed if the queue pair fails
            self._pair.postReceive(self._receives)
            self.reader = CompletionReader(
                reactor, channel, [queue], self._completed, broken, sleepSeconds=SLEEP_SECONDS
            )
            if direct is not None:
                consumer, unread = partial(handleBatch, self, 0), direct.openInbox()
                self.reader.addSource(direct.takeDatagrams, consumer, unread, isRepeatable=True)
            self.reader.start()
            undo.callback(self.reader.stop)
            self._closing = undo.pop_all()

    @property
    def qpn(self) -> QPN:
        return self._pair.number

    @property
    def route(self) -> str:
        """The device's name for the path of packets: C{rocev2} or C{verbs}."""
        return self._pair.route

    def _begin(self) -> None:
        """Bring the queue pair from RESET to RTS, and post its receives."""
        self._pair.modify(QPAttributes(state=QPState.INIT, pkeyIndex=0, port=self._portNumber, qkey=QKEY))
        self._pair.postReceive(self._receives)
        self._refused: list[ReceiveRequest] = []
        self._pair.modify(QPAttributes(state=QPState.RTR))
        self._pair.modify(QPAttributes(state=QPState.RTS, sqPSN=0))

    def _makeReceives(self, begin: int, count: int) -> Iterator[ReceiveRequest]:
        memory, stride = self._memory, self._mtu + GRH
        for number in range(count):
            at = begin + number * stride
            yield ReceiveRequest(at, (Segment(memory.address + at, stride, memory.lkey),))

    def send(self, packets: Sequence[Packet]) -> int:
        """
        Post packets with one call of the device. The caller has credits for all of them.

        @return: number of credits that are free again: of packets that were dropped, because the queue pair
            has failed or refuses them, or that need no work request. None, or all.
        """
        # A lone acknowledgement. With segments, 16 senders on one core get unequal shares (btl-senders).
        if len(packets) == 1 and not packets[0].payload:
            peer, _channel, head, payload = packets[0]
            address, qpn = peer.context.destinations[self.number]
            return self.sendFast(address, qpn, head, payload)
        if self._resetting is not None:
            return len(packets)
        prepared = self._prepared
        self._next = self._free  # fills the places of packets that were not posted again
        batch = []
        latest: Peer | None = None
        for peer, _channel, head, payload in packets:
            if peer is not latest:  # consecutive packets often have the same peer
                latest = peer
                address, qpn = peer.context.destinations[self.number]
            batch.append(prepared(address, qpn, head, payload))
        return 0 if self._post(batch) else len(packets)

    def sendFast(self, address: IAddressHandle, qpn: QPN, head: bytes, payload: Buffer) -> int:
        """
        Send one packet, without a work request if the device supports that.

        @return: number of credits that are free again: 0 or 1.
        """
        if self._resetting is not None:
            return 1
        direct = self._direct
        if direct is not None and direct.putDatagram(address, qpn, QKEY, head, payload):
            return 1
        self._next = self._free
        return 0 if self._post((self._prepared(address, qpn, head, payload),)) else 1

    def _prepared(self, address: IAddressHandle, qpn: QPN, head: bytes, payload: Buffer) -> SendRequest:
        """Fill the next request of the ring with this packet."""
        next = self._next
        request = self._requests[next]
        length = len(head) + len(payload)
        if length <= self._mostInline:  # as on the software device, which needs no copy here
            request.inline, request.segments = (head, payload), ()
        else:
            begin = next * self._mtu
            middle, end = begin + len(head), begin + length
            self._view[begin:middle] = head
            self._view[middle:end] = payload
            segment = Segment(self._memory.address + begin, length, self._memory.lkey)
            request.inline, request.segments = (), (segment,)
        self._next = next + 1 if next + 1 < self.sends else 0
        request.address, request.remoteQPN, request.signaled = address, qpn, False
        return request

    def _post(self, batch: Sequence[SendRequest]) -> bool:
        """
        Post requests. Return False if the device refuses them; then their packets are lost, as in a network.
        """
        unreported = self._unreported + len(batch)
        isReported = unreported >= self._mostUnreported
        if isReported:
            last = batch[-1]
            last.signaled, last.identifier = True, unreported
        try:
            self._pair.postSend(batch)
        except RDMAError as error:
            self._warnRefused(error)
            return False
        finally:
            for request in batch:
                request.inline = ()  # copied; the ring would keep them until it comes round
        self._free = self._next
        self.posted += len(batch)
        self._unreported = 0 if isReported else unreported
        return True

    def _repost(self, receives: list[ReceiveRequest]) -> None:
        """Post receives again. Receives that the device refuses are posted with the next ones."""
        if self._refused:
            receives = self._refused + receives
        try:
            self._pair.postReceive(receives)
        except RDMAError as error:
            self._warnRefused(error)
            self._refused = receives
        else:
            self.reposts += len(receives)
            self._refused = []

    def _warnRefused(self, error: RDMAError) -> None:
        _rateLimited.warn(
            str(self.qpn),
            "the device refuses requests of channel {number}: {error}",
            number=self.number,
            error=errorText(error),
        )

    def poll(self, mayContinue: Callable[[], bool]) -> bool:
        """
        Process received packets, in at least one batch, and at most L{MOST_POLLS}.

        @param mayContinue: called after each batch; returns whether to process another one.
        @return: whether more packets may have been received.
        """
        for _each in range(MOST_POLLS):
            if self.isClosed or not self.reader.poll():
                return False
            if not mayContinue():
                break
        return not self.isClosed

    def close(self) -> None:
        """Remove the reader from the reactor, and close the queue pair. Idempotent."""
        self.isClosed = True
        cancelCall(self._resetting)
        self._resetting = None
        self._closing.close()

    def _completed(self, batch: Sequence[Completion]) -> None:
        view, receives = self._view, []
        packets: list[ReceivedPacket] = []
        completed = 0
        first, stride = self.sends * self._mtu, self._mtu + GRH
        try:
            for completion in batch:
                if completion.status is not _SUCCESS:
                    if self._resetting is None and not self.isClosed:
                        self._failed(completion.status)
                        completed = self.posted - self.completed
                    continue
                if completion.opcode is not _RECEIVE:
                    completed += completion.identifier if self._resetting is None else 0
                    continue
                begin = completion.identifier
                receives.append(self._receives[(begin - first) // stride])
                if completion.hasGRH:  # always on RoCE; with IPv4 the second half contains the IPv4 header
                    if view[begin] >> 4 == 6:
                        address, codepoint = view[begin + 8 : begin + 24], view[begin + 1] >> 4 & 3
                    else:
                        address, codepoint = view[begin + 32 : begin + 36], view[begin + 21] & 3
                    source = bytes(address), completion.sourceQPN
                    packets.append((source, view[begin + GRH : begin + completion.length], codepoint))
        except Exception:
            _rateLimited.emit(
                LogLevel.critical,
                (str(self.qpn), "completions"),
                "channel {number} is restarted because its completions could not be processed",
                number=self.number,
                log_failure=Failure(),
            )
            if self._resetting is None and not self.isClosed:
                self._restart()
                completed = self.posted - self.completed
        self.completed += completed
        self._handleBatch(self, completed, packets)
        if receives and not self.isClosed:
            for request in receives:
                view[request.identifier] = 0  # clear an earlier GRH: IPv4 writes only its second half
            if self._resetting is None:
                self._repost(receives)

    def _failed(self, status: Status) -> None:
        """Reset the queue pair after L{RESET_SECONDS}; its pending requests are lost."""
        _rateLimited.warn(
            str(self.qpn),
            "channel {number} is restarted because its queue pair failed: {status}",
            number=self.number,
            status=status.name,
        )
        self._restart()

    def _restart(self) -> None:
        self._resetting = self._reactor.callLater(RESET_SECONDS, self._reset)

    def _reset(self) -> None:
        if not self.reader.isRunning:
            return  # its completions can no longer be read
        try:
            self._pair.modify(QPAttributes(state=QPState.RESET))
            self._free = self._unreported = 0
            self._begin()
        except Exception:
            self.reader.stop()
            self._broken(Failure())
        else:
            self._resetting = None
