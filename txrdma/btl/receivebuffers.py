"""
Receive buffers of a connection: memory into which the peer writes long messages.

On the first long message of a connection, both ends create a reliable queue pair and a receive buffer, and
announce them in frames on the TCP connection. If the queue pair maps the peer's memory, which it does between
two software devices of one host, the program copies its bytes there; otherwise RDMA writes them. Whether
memory is shared is decided by the queue pair: it provides L{IDirectLane<txrdma.interfaces.IDirectLane>} or
not.

Everything else uses datagrams, and so do long messages if there is no receive buffer: because one end refuses
it, the queue pair failed, or RDMA would use only one of several paths. Data that RDMA has not written by then
is sent in datagrams. They also carry long messages for a while if the queue pair retransmits too often. A
receive buffer remains until the connection ends, because it may contain messages that are not delivered yet.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from functools import partial
from typing import Any, Final

from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.btl.core.peer import OPEN, Peer, REMOVED
from txrdma.btl.core.receivebuffer import LONG_REMOTE, ReceiveBuffer
from txrdma.btl.errors import Unreachable
from txrdma.btl.introductions import FrameKind, QueuePairPart, ReceiveBufferFrame
from txrdma.btl.module import ChannelAddress, ChannelPort, ModulePort
from txrdma.error import RDMAError, ResourceExhausted
from txrdma.iba.types import MTU, QPN, RKey
from txrdma.iba.verbs import (
    Access,
    Capacity,
    Completion,
    Operation,
    QPAttributes,
    QPKind,
    QPState,
    Segment,
    SendRequest,
    Status,
)
from txrdma.interfaces import IDirectLane, IMemoryRegion, IQueuePair
from txrdma.kit.delayedcalls import cancelCall, Timer
from txrdma.kit.logs import errorText
from txrdma.kit.wire import Buffer
from txrdma.verbs.completions import CompletionReader
from txrdma.verbs.pinning import shareOf

_log = Logger()

HOLD_SECONDS: Final = 0.05
"""Seconds for which long messages wait for the peer's receive buffer."""

MOST_RECEIVE_BUFFERS: Final = 256 << 20
"""Bytes of all receive buffers of a port. Untouched pages use no memory of the host."""

SMALLEST_RECEIVE_BUFFER: Final = 1 << 20
"""Bytes of the smallest useful receive buffer of a peer."""

SMALLEST_PINNED: Final = 1 << 18
"""Bytes of the smallest one on a device that pins memory."""

PINNED_SHARE: Final = 4
"""
Largest fraction of C{ulimit -l} for all receive buffers of a port, and as much for the memory from which
RDMA writes, on a device that pins memory.
"""

MOST_WRITES: Final = 64
"""Largest number of RDMA writes in flight on a connection."""

MOST_WRITTEN: Final = 2 << 20
"""Largest number of bytes of RDMA writes in flight on a connection; two writes may be longer."""

LOSSY: Final = 12
"""
Retransmissions in L{SAMPLE} packets for which datagrams are faster than RDMA writes: a reliable queue pair
sends everything again from a lost packet on, a module only lost packets.
"""

SAMPLE: Final = 2048
"""Number of packets after which retransmissions are counted anew."""

PAUSE_SECONDS: Final = 10.0
"""Seconds for which datagrams are used after losses. Each pause is twice as long as the one before."""

LONGEST_PAUSE: Final = 300.0
"""Longest pause in seconds."""

_SHARE: Final = 16
_RETRIES: Final = 7
_TIMEOUT: Final = 20  # the process that answers may be busy for half a minute
_ADAPTER_TIMEOUT: Final = 16  # adapters answer themselves, and resend only after this time


def createReceiveBuffer(port: ChannelPort) -> tuple[IMemoryRegion, Callable[[], None]]:
    """
    Allocate the receive buffer of a peer: a fixed share of the remaining bytes, so early peers get the most.

    @return: the memory, and a function that releases it, to be called once.
    @raise ResourceExhausted: too little is left.
    """
    pinned = shareOf(port.device, PINNED_SHARE)
    if pinned is None:
        length = (MOST_RECEIVE_BUFFERS - port.receiveBufferBytes) // _SHARE
    else:
        length = (min(pinned, MOST_RECEIVE_BUFFERS) - port.receiveBufferBytes) // PINNED_SHARE
    if length < (SMALLEST_RECEIVE_BUFFER if pinned is None else SMALLEST_PINNED):
        raise ResourceExhausted(f"{port.receiveBufferBytes} bytes are used by receive buffers of other peers")
    memory = port.domain.allocateMemory(length, Access.LOCAL_WRITE | Access.REMOTE_WRITE)
    port.receiveBufferBytes += length

    def release() -> None:
        port.receiveBufferBytes -= length
        memory.close()

    return memory, release


class RemoteReceiveBuffers:
    """The receive buffers of both ends of one connection, and the queue pair between them."""

    def __init__(
        self,
        reactor: Any,
        module: ModulePort,
        peer: Peer,
        port: ChannelPort,
        remoteChannel: ChannelAddress,
        sendFrame: Callable[[FrameKind, bytes], None],
    ) -> None:
        """
        @param port: the local port on which the queue pair is created.
        @param remoteChannel: the datagram address of the peer, whose device has the other queue pair.
        @param sendFrame: sends a frame to the peer.
        """
        self._reactor, self._sendFrame = reactor, sendFrame
        self._module, self._peer, self._remoteChannel = module, peer, remoteChannel
        self._port = port
        self._timer: IDelayedCall | None = None
        self._pause = Timer(reactor)
        self._pair: IQueuePair | None = None
        self._isConnected = self._isClosed = self._isWriting = self._isAnnounced = False
        self._lengths: deque[int] = deque()  # bytes of the writes in flight
        self._bytesInFlight = self._packets = self._rewindsBefore = 0
        self._rewinds = 0
        # Limit of the bytes in flight, to which a write without a retransmission adds its bytes. One write is
        # always allowed.
        self._mostBytes = 0
        self._pauseSeconds = PAUSE_SECONDS
        self._closing = ExitStack()

    def request(self) -> None:
        """Request receive buffers at both ends, unless that was tried before."""
        if self._pair is None and not self._isClosed:
            try:
                self._makePair()
            except RDMAError as error:
                self._refuse(error)

    def _stopWaiting(self) -> None:
        """Send the long messages that waited for the receive buffer, which exists now or will not."""
        timer, self._timer = self._timer, None
        if timer is not None:
            cancelCall(timer)
            self._module.core.resume(self._peer)
            self._module.turnLater()

    def frameReceived(self, kind: FrameKind, content: bytes) -> None:
        """
        Process a frame about the peer's queue pair or receive buffer.

        @raise txrdma.error.WireError: the frame is too short.
        """
        if kind == FrameKind.QUEUE_PAIR:
            qpn = QPN(QueuePairPart.decode(content).qpn)
            if not self._isClosed and not self._isConnected:
                try:
                    self._connect(qpn)
                except RDMAError as error:
                    self._refuse(error)
        elif not self._isClosed and self._pair is not None:
            part = ReceiveBufferFrame.decode(content)
            if part.length:
                if not self._isAnnounced:  # another one would use memory again
                    self._isAnnounced = True
                    self._prepare(self._pair, part)
            elif self._isAnnounced:  # it cannot write any more, but what it has written may not be delivered
                self._stop()
            else:
                self.close()

    def _makePair(self) -> IQueuePair:
        """Create a queue pair and send its number to the peer."""
        device, domain, closing = self._port.device, self._port.domain, self._closing
        channel = device.createChannel()
        closing.callback(channel.close)
        queue = device.createCompletionQueue(MOST_WRITES, channel)  # unused where memory is shared
        closing.callback(queue.close)
        limits = device.limits
        self._maxInline = limits.maxInline if limits.hasUnlimitedInline else 0
        capacity = Capacity(MOST_WRITES, 1, 1, 1, self._maxInline)
        pair = domain.createQueuePair(QPKind.RC, queue, queue, capacity)
        closing.callback(pair.close)
        self._reader = CompletionReader(self._reactor, channel, [queue], self._completed, self._readerFailed)
        closing.callback(self._reader.stop)
        access = Access.LOCAL_WRITE | Access.REMOTE_WRITE
        number = self._port.portNumber
        pair.modify(QPAttributes(state=QPState.INIT, pkeyIndex=0, port=number, access=access))
        self._pair = pair
        self._peer.mayRequest = False
        if self._peer.state == OPEN:  # a closing peer does not wait
            self._peer.isRequesting = True
            self._timer = self._reactor.callLater(HOLD_SECONDS, self._stopWaiting)
        self._sendFrame(FrameKind.QUEUE_PAIR, QueuePairPart(qpn=pair.number).encode())
        return pair

    def _connect(self, qpn: QPN) -> None:
        """
        Connect the queue pair to the peer's, and allocate a receive buffer for the peer.

        @raise RDMAError: there is no route to the peer, or no memory for a receive buffer.
        """
        pair = self._makePair() if self._pair is None else self._pair
        port, remoteChannel = self._port, self._remoteChannel
        pathMTU = MTU.fitting(min(remoteChannel.mtu, port.address.mtu))
        self._pathMTU = pathMTU.bytes
        pair.modify(
            QPAttributes(
                state=QPState.RTR,
                address=port.destinationOf(remoteChannel),
                pathMTU=pathMTU,
                destinationQPN=qpn,
                rqPSN=0,
                maxDestRDAtomic=0,
                minRNRTimer=0,
            )
        )
        rts = QPAttributes(
            state=QPState.RTS,
            sqPSN=0,
            timeout=_TIMEOUT if self._maxInline else _ADAPTER_TIMEOUT,
            retryCount=_RETRIES,
            rnrRetry=_RETRIES,
            maxRDAtomic=0,
        )
        pair.modify(rts)
        if IDirectLane(pair, None) is None:
            if len(self._peer.ports) > 1:
                raise Unreachable("RDMA would use only one of several paths")
            self._reader.start()
        self._isConnected = True
        memory, release = createReceiveBuffer(port)
        self._closing.callback(release)
        self._peer.localReceiveBuffer = memory.view
        part = ReceiveBufferFrame(rkey=memory.rkey, address=memory.address, length=memory.length)
        self._sendFrame(FrameKind.RECEIVE_BUFFER, part.encode())

    def _prepare(self, pair: IQueuePair, part: ReceiveBufferFrame) -> None:
        """Map the peer's receive buffer if possible; otherwise use RDMA."""
        lane = IDirectLane(pair, None)
        if lane is not None:
            lane.prepare(RKey(part.rkey), partial(self._mapped, pair, lane, part))
        elif self._isConnected and not self._isWriting and self._peer.state != REMOVED:
            try:
                self._writeByRDMA(pair, part)
            except RDMAError as error:
                _log.debug(
                    "{connection}: long messages use datagrams, without memory to write from: {error}",
                    connection=self,
                    error=errorText(error),
                )
            self._stopWaiting()

    def _mapped(self, pair: IQueuePair, lane: IDirectLane, part: ReceiveBufferFrame) -> None:
        """Use the peer's receive buffer from now on, if it was mapped."""
        if not self._isClosed and self._peer.state != REMOVED and self._peer.receiveBuffer is None:
            found = lane.targetOf(RKey(part.rkey), part.address, part.length)
            if found is not None:
                self._writeByCopying(pair, lane, *found)
            self._stopWaiting()

    def _writeByCopying(
        self, pair: IQueuePair, lane: IDirectLane, target: memoryview, valid: memoryview
    ) -> None:
        """Copy messages into the mapped receive buffer of the peer, while C{valid} permits it."""
        ready, hasPeerEnded = QPState.RTS, lane.hasPeerEnded

        def write(position: int, data: Buffer) -> bool:
            if valid[0] != 1 or pair.state is not ready or hasPeerEnded():
                return False
            target[position : position + len(data)] = data
            return True

        self._peer.receiveBuffer = ReceiveBuffer(len(target), write)
        _log.debug(
            "long messages to {peer} use {length} bytes of shared memory",
            peer=self._remoteChannel.gid.ip,
            length=len(target),
        )

    def _writeByRDMA(self, pair: IQueuePair, part: ReceiveBufferFrame) -> None:
        """
        Write into the peer's receive buffer by RDMA from now on.

        @raise RDMAError: the device needs registered memory for it, and has none.
        """
        length, staging = part.length, None
        if not self._maxInline:  # the device reads from memory with the layout of the receive buffer
            staging, release = createReceiveBuffer(self._port)
            self._closing.callback(release)
            length = min(length, staging.length)

        def write(position: int, data: Buffer) -> bool:
            lengths = self._lengths
            fewest = 2 if self._mostBytes == MOST_WRITTEN else 1  # writes of any length
            isTooMuch = len(lengths) >= fewest and self._bytesInFlight + len(data) > self._mostBytes
            if isTooMuch or len(lengths) == MOST_WRITES:
                return False
            request = SendRequest(0, Operation.RDMA_WRITE, (), (data,))
            if staging is not None:
                staging.view[position : position + len(data)] = data
                segment = Segment(staging.address + position, len(data), staging.lkey)
                request.segments, request.inline = (segment,), ()
            request.remoteAddress, request.rkey = part.address + position, RKey(part.rkey)
            try:
                pair.postSend((request,))
            except RDMAError:
                self._reactor.callLater(0, self._failed, "the device refuses requests")
                return False
            lengths.append(len(data))
            self._bytesInFlight += len(data)
            return True

        self._isWriting = True
        self._peer.receiveBuffer = ReceiveBuffer(length, write, LONG_REMOTE)
        _log.debug(
            "long messages to {peer} are written by RDMA, {length} bytes at a time",
            peer=self._remoteChannel.gid.ip,
            length=length,
        )

    def _completed(self, batch: Sequence[Completion]) -> None:
        """Announce the data that RDMA has written."""
        done = 0
        for completion in batch:
            if completion.status is not Status.SUCCESS:
                break
            done += 1
        written = sum(self._lengths.popleft() for _each in range(done))
        self._bytesInFlight -= written
        if self._isWriting:
            self._module.core.written(self._peer, done)
            if done < len(batch):
                self._failed(batch[done].status.name)
            else:
                self._countRewinds(written)
            self._module.turn()

    def _countRewinds(self, written: int) -> None:
        """Let datagrams carry long messages for a while if the queue pair often sends packets again."""
        buffer, pair = self._peer.receiveBuffer, self._pair
        assert pair is not None
        self._packets += -(-written // self._pathMTU)
        if buffer is None or buffer.isPaused:
            return
        if pair.rewinds == self._rewinds:
            self._mostBytes = min(self._mostBytes + written, MOST_WRITTEN)
        self._rewinds = pair.rewinds
        rewinds = self._rewinds - self._rewindsBefore
        if rewinds >= LOSSY:
            _log.debug(
                "long messages to {peer} use datagrams for {seconds} s: {rewinds} retransmissions",
                peer=self._remoteChannel.gid.ip,
                seconds=self._pauseSeconds,
                rewinds=rewinds,
            )
            buffer.isPaused, self._mostBytes = True, 0
            self._pause.start(self._pauseSeconds, self._resume, buffer)
            self._pauseSeconds = min(2 * self._pauseSeconds, LONGEST_PAUSE)
        if self._packets >= SAMPLE or buffer.isPaused:
            self._packets, self._rewindsBefore = 0, pair.rewinds

    def _resume(self, buffer: ReceiveBuffer) -> None:
        """Write by RDMA again, as the path may have become better."""
        buffer.isPaused = False

    def _readerFailed(self, failure: Failure) -> None:
        self._failed(errorText(failure.value))

    def _failed(self, reason: str) -> None:
        """Use datagrams only from now on, and notify the peer, which cannot write either."""
        if self._isWriting and not self._isClosed:
            _log.info(
                "long messages with {peer} use datagrams: {reason}",
                peer=self._remoteChannel.gid.ip,
                reason=reason,
            )
            self._stop()
            self._sendFrame(FrameKind.RECEIVE_BUFFER, ReceiveBufferFrame().encode())

    def _stop(self) -> None:
        """Stop writing by RDMA; unwritten data is sent in datagrams."""
        self._pause.stop()
        if self._isWriting:
            self._isWriting = False
            self._module.core.withdraw(self._peer)
            self._module.turnLater()

    def _refuse(self, error: RDMAError) -> None:
        """Use datagrams only, and notify the peer that there is no receive buffer."""
        _log.debug(
            "long messages with {peer} use datagrams: {error}",
            peer=self._remoteChannel.gid.ip,
            error=errorText(error),
        )
        self.close()
        self._sendFrame(FrameKind.RECEIVE_BUFFER, ReceiveBufferFrame().encode())

    def close(self) -> None:
        """Release the receive buffers of both ends; may be called twice."""
        self._isClosed = True
        with self._closing:
            self._stop()
            self._peer.receiveBuffer = self._peer.localReceiveBuffer = None
        self._stopWaiting()
