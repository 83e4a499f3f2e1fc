"""
The end of a stream over an RDMA connection: an L{RSocket} that uses the queue pair of an L{RDMATransport}.

The path of a message: C{write} queues bytes in the core, C{_send} posts the core's requests, once per batch
of completions. The peer's completion queue passes the batch to C{completed}, which hands the bytes to the
protocol.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import ExitStack
from typing import Any, Final

from zope.interface import implementer

from twisted.python.failure import Failure
from twisted.python.log import callWithContext

from txrdma.cm.connections.sendqueue import FIRST
from txrdma.cm.connections.transport import RDMATransport
from txrdma.cm.interfaces import IPreparedProtocol
from txrdma.cm.rsocket._core import decodePeerData, PINNED_SHARE, RSocket, Sizes
from txrdma.cm.rsocket._requests import SendMemory
from txrdma.cm.rsocket.mapped import EndMappings
from txrdma.cm.rsocket.messages import ConnectionData
from txrdma.error import InvalidRequest, PeerViolation, RDMAError, ResourceExhausted
from txrdma.iba.verbs import Completion
from txrdma.interfaces import IDirectLane, IMemoryRegion, IQueuePair
from txrdma.messages.keepalive import Keepalive
from txrdma.streams.connection import StreamConnection
from txrdma.streams.transport import streamAddress, StreamTransport
from txrdma.verbs.pinning import shareOf

_DATA_BYTES: Final = len(ConnectionData().encode())

MEMORY_REQUESTS: Final = 8
"""Entries of the send queue for requests to shared memory."""

REPOST: Final = 16
"""Receives are posted again in batches of this number, so there are this many more than the peer may use."""


_HAS_ALL: Final = b"\1"
"""Private data of a DREQ whose sender has received the close, and so all bytes. librdmacm sends none."""


@implementer(IPreparedProtocol)
class RSocketEnd(StreamConnection[RSocket, RDMATransport]):
    """
    The local end of an rsocket: a message protocol that carries a stream.

    @ivar remoteMemory: the RDMA connection, also after the end, when its requests fail.
    """

    kind = "rsocket"
    remoteMemory: RDMATransport
    _release: Callable[[], None] | None = None

    def __init__(
        self,
        reactor: Any,
        sizes: Sizes,
        keepalive: float | None,
        isClient: bool,
        makeTransport: Callable[[RSocketEnd], StreamTransport[Any]],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """
        @param keepalive: seconds between probes of an idle peer; None disables them.
        @param makeTransport: creates the transport of the stream.
        @param ended: called after C{connectionLost}.
        """
        super().__init__(reactor, isClient, makeTransport, ended)
        self.keepalive = self.configuredKeepalive = keepalive
        self._sizes = sizes
        self._localData = ConnectionData()
        self._peerData = ConnectionData()
        self._pair: IQueuePair | None = None
        self._lane: IDirectLane | None = None
        self._used = 0
        self._probing: Keepalive | None = None
        self._mapped: EndMappings | None = None

    @property
    def connection(self) -> RDMATransport:
        """The RDMA connection that carries the stream. Raises L{InvalidRequest} if the stream has ended."""
        if self._transport is None:
            raise InvalidRequest("the stream has ended")
        return self._transport

    # Making it

    def prepare(self, transport: RDMATransport) -> bytes:
        """Allocate the memory of the stream, and return the connection data that describes it."""
        remote, local = self._allocate(transport)
        memory = None if local is None else SendMemory(local.view, local.address, local.lkey)
        self._core = core = RSocket(self._sizes, remote.view, memory)
        self._localData = core.greeting(remote.address, remote.rkey)
        return self._localData.encode()

    def _allocate(self, transport: RDMATransport) -> tuple[IMemoryRegion, IMemoryRegion | None]:
        """
        Allocate the remote memory, and the local one if the device does not accept all bytes inline.

        If that fails, try buffers of half the size, repeatedly. On a device that pins memory, a stream gets a
        share of the memory that the process may pin.

        @raise ResourceExhausted: the smallest buffers do not fit, either.
        """
        most = shareOf(transport.device, PINNED_SHARE)
        while most is not None and self._sizes.isHalvable and self._sizes.buffers > most:
            self._sizes = self._sizes.halved()
        while True:
            sizes = self._sizes
            try:
                remote = transport.allocateMemory(sizes.remote)
                if transport.device.limits.hasUnlimitedInline:
                    return remote, None
                try:
                    return remote, transport.allocateMemory(sizes.local)
                except ResourceExhausted:
                    transport.freeMemory(remote)
                    raise
            except ResourceExhausted:
                if not sizes.isHalvable:
                    raise
                self._sizes = sizes.halved()

    def introduce(self, privateData: bytes) -> None:
        """
        Process the connection data of the peer.

        @raise txrdma.error.WireError: the data has another version, or is invalid.
        """
        self._peerData = decodePeerData(privateData.ljust(_DATA_BYTES, b"\0"))

    def makeConnection(self, transport: RDMATransport) -> None:
        assert self._core is not None
        self.host = streamAddress(transport.getHost())
        self.peer = streamAddress(transport.getPeer())
        self.remoteMemory = transport
        self._pair = pair = transport.openQueuePair(self, MEMORY_REQUESTS)
        self._lane = IDirectLane(pair, None)
        self._core.begin(self._localData, self._peerData, self._lane is not None)
        self._begun(transport)
        if self.connected:
            self.setKeepAlive(self.keepalive)
            self._turn()

    def setKeepAlive(self, seconds: float | None) -> None:
        """Probe an idle peer at this interval; None disables the probes."""
        self.keepalive = seconds
        if self._probing is not None:
            self._probing.stop()
        self._probing = None if self._core is None else Keepalive(self._reactor, seconds, self._probe)

    def _probe(self) -> None:
        if self._core is not None:
            self._core.probe()
        self._turn()

    # Mapped memory

    @property
    def mappings(self) -> EndMappings | None:
        """Mapped memory of both ends; None if the connection is closed or being closed, also by the peer."""
        if self._core is None or self._core.isOver or self._transport is None or not self.isOpen:
            return None
        if self._mapped is None:
            self._mapped = EndMappings(self._core, self._transport, self._ordered)
        return self._mapped

    def _ordered(self) -> None:
        """Post requests for mapped memory; producers wait for them, too."""
        self._mustFlush = True
        self._soon()

    @property
    def peerMappings(self) -> list[range]:
        """The offsets that the peer has mapped."""
        mapped = [] if self._core is None else self._core.mappings.peerRanges
        return [range(each.offset, each.offset + each.length) for each in mapped]

    def _report(self, core: RSocket) -> None:
        """Pass events of mapped memory on to Deferreds."""
        events = list(core.events)
        core.events.clear()
        if self._mapped is not None:
            callWithContext(self.context, self._mapped.handleEvents, events)

    # The queue pair: see txrdma.cm.connections.transport.PostingProtocol

    @property
    def isIdle(self) -> bool:
        """Whether all requests have completed; if not, the latest one will have a completion."""
        core, lane = self._core, self._lane
        if core is None or core.isQuiet:
            return True
        if lane is None or not lane.isConsumed():
            return False
        core.completed(core.posted)
        return True

    @property
    def isDelivered(self) -> bool:
        """
        Whether all written bytes are in the peer's memory.

        The acknowledgement of the close itself may be lost, or come after the peer's DREQ.
        """
        return self._core is None or self._core.isDelivered

    def completed(self, batch: Sequence[Completion]) -> None:
        """Handle completions; deliver received bytes and post written ones once for all of them."""
        core, transport = self._core, self._transport
        if core is None or transport is None:
            return
        wasOver = core.isOver
        mustTurn = False
        try:
            for completion in batch:
                identifier, status, _, _, length, number, _, _, _, _ = completion
                if status or identifier >= FIRST:
                    # Failures, and requests of the connection itself. A failure may end the connection.
                    transport.handle(completion)
                    if self._transport is None:
                        return
                elif identifier:
                    # A producer is resumed when what it wrote is posted.
                    mustTurn |= core.completed(identifier) or self._mustFlush
                else:
                    self._used += 1
                    mustTurn = True
                    if number is None:
                        raise PeerViolation("it has sent a message instead of an RDMA WRITE")
                    if not core.isOver:
                        core.arrived(number, length)
        except PeerViolation as error:
            self._violated(str(error))
        if core.isOver and not wasOver:
            _ = self.isIdle  # learn what the peer has received, while the queue pair is there
        if core.events:
            self._report(core)
        if mustTurn:
            self._turn()
        if self._used >= REPOST:  # after the turn, to keep it out of the latency
            used, self._used = self._used, 0
            transport.receiveAgain(used)
        if self._life.connection != "OPEN":
            transport.process()

    def peerClosed(self, privateData: bytes) -> None:
        """Learn that all requests have arrived, although acknowledgements may be late or lost."""
        core = self._core
        if core is not None and privateData.startswith(_HAS_ALL):
            core.completed(core.posted)
            self._report(core)

    def _leave(self) -> None:
        """
        Send a DREQ, as the other end usually does at the same time.

        Neither can wait for that of the other: a program of librdmacm sends its DREQ when it destroys the
        rsocket, which may be long after it has received the close, or has shut the rsocket down.
        """
        if self._core is not None and self._transport is not None:
            self._transport.loseConnection(_HAS_ALL if self._core.isOver else b"")

    # Calls of the connection: see IPreparedProtocol

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        """Do nothing: see C{completed}."""

    def memoryLost(self) -> None:
        """Copy received bytes that were not read; release the memory of a failed attempt."""
        self._storeRest()
        if self._transport is None:  # connectionLost is not called, and tracebacks may refer to this object
            self._core = None

    def connectionLost(self, reason: Failure) -> None:
        self._pair = self._lane = None
        mapped, self._mapped = self._mapped, None
        with ExitStack() as rest:  # all of them, the last one first, whichever raises an exception
            if mapped is not None:
                rest.callback(callWithContext, self.context, mapped.end)
            rest.callback(self.setKeepAlive, None)
            rest.callback(self._ended, reason)
            if self.connected:
                self._release = self.remoteMemory.adapter.holdUntilReported()

    def _maybeEnd(self, reason: Failure | None) -> None:
        try:
            super()._maybeEnd(reason)  # or later, if the program does not read
        finally:
            release, self._release = self._release, None
            if release is not None:
                release()

    def _send(self, core: RSocket, transport: RDMATransport) -> None:
        requests = core.outgoing()
        if requests and self._pair is not None:
            try:
                self._pair.postSend(requests)
            except RDMAError as error:
                transport.requestRefused(error)
            for request in requests:
                request.inline = ()  # they are reused, and must not retain bytes of the program
