"""
The transport of one connection: messages, one-sided reads and writes, over a reliable connected queue pair.

Follows InfiniBand Architecture vol. 1, 9.7 and 10.8. Receives are posted ahead, and posted again when the
protocol has taken their message. Between two of ours credits are counted (see
L{txrdma.cm.connections._credits}); a peer that does not count finds no receive at worst, and its device tries
again (receiver not ready), as ours does.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.cm.connections._credits import Credits, SPARE
from txrdma.cm.connections._life import Kind, Life
from txrdma.cm.connections.adapter import Adapter, SharedCompletionQueue
from txrdma.cm.connections.keepalive import Keepalive
from txrdma.cm.connections.migration import PathMigration
from txrdma.cm.connections.queuepairs import toInit, toReceive, toSend
from txrdma.cm.connections.receives import Part
from txrdma.cm.connections.sendqueue import FIRST, OVERHEAD, Regions, Request, SendQueue
from txrdma.cm.core.events import (
    AlternatePathRequested,
    ConnectionRejected,
    ConnectionTimedOut,
    Disconnected,
    Event,
    ignoreEvent,
    PathMigrated,
    QPArmed,
)
from txrdma.cm.interfaces import IManagedConnection, IPreparedProtocol, IRDMAProtocol, IRDMATransport
from txrdma.cm.layouts.messages import APStatus, checkRoom, CMPath, DISCONNECT_ROOM, REP, REQ
from txrdma.cm.terms import Agreed, MessageAddress, MessagePeer, Terms
from txrdma.error import InvalidRequest, RDMAError
from txrdma.iba.path import IBPath
from txrdma.iba.types import QPN, RKey
from txrdma.iba.verbs import (
    Buffer,
    Capacity,
    Completion,
    CompletionOpcode,
    Operation,
    QPKind,
    Segment,
    SendRequest,
    Status,
)
from txrdma.interfaces import IMemoryRegion, IQueuePair, IVerbsDevice
from txrdma.messages.transport import MessageTransport

_log = Logger()

_RNR_TIMER: Final = 12
"""The pause of a sender that finds no receive, a code: 0.64 milliseconds (IBA table 45)."""

_OVER: Final = ("ENDED", "TIMEWAIT", "FREE")


@implementer(IRDMATransport)
class RDMATransport(MessageTransport):
    """
    A queue pair with its memory, and what of it a protocol sees.

    @ivar connection: the communication manager's part; None before its first message.
    @ivar protocol: None before the connection is established, and after its end.
    @ivar failed: called with the reason of an end that comes before there is a protocol.
    """

    agreed: Agreed
    _host: MessageAddress
    _peer: MessagePeer

    def __init__(self, adapter: Adapter, terms: Terms, port: int, pkey: int) -> None:
        """
        @param terms: those that this end wants.
        @param port: the device's port where the primary path begins, which is in the partition of C{pkey}.
        @raise txrdma.error.RDMAError: the device has no room for another connection.
        """
        self.adapter, self.terms = adapter, terms
        self.connection: IManagedConnection | None = None
        self.protocol: IRDMAProtocol | None = None
        self.failed: Callable[[Failure], None] = lambda failure: None
        self._credits = Credits(terms.receives, None)
        self._receives = terms.receives + SPARE
        self._depth = self._receives + terms.sends + OVERHEAD
        self._regions = Regions(adapter.domain)
        self._sends = SendQueue(terms.sends, self._regions.allocate)
        self._life: Life[Completion] = Life()
        self._isProcessing = False
        self._farewell = b""
        self._keepalive: Keepalive | None = None
        self._migration = PathMigration(adapter, pkey, self._sends)
        self._release = adapter.hold()
        self._shared: SharedCompletionQueue | None = None
        self._pair: IQueuePair | None = None
        self._memory: Part | None = None
        try:
            shared = self._shared = adapter.reserve(self._depth)
            capacity = Capacity(terms.sends + OVERHEAD, self._receives, 1, 1)
            self._pair = adapter.domain.createQueuePair(QPKind.RC, shared.queue, shared.queue, capacity)
            adapter.attach(shared, self._pair, self)
            self._memory = adapter.receives.take(self._receives, terms.messageBytes)
            self._pair.modify(toInit(port, terms.reads, adapter.requirePKey(port, pkey)))
            self._pair.postReceive(self._memory.requests)
        except BaseException:
            self._close()
            self._release()
            raise

    def __repr__(self) -> str:
        return f"<RDMATransport {self.connection!r} {self._pair!r}>"

    @property
    def route(self) -> str:
        """The way of the data, as the device calls it; C{""} after the end."""
        return "" if self._pair is None else self._pair.route

    @property
    def device(self) -> IVerbsDevice:
        return self.adapter.device

    @property
    def qpn(self) -> QPN:
        """The number of the queue pair."""
        assert self._pair is not None
        return self._pair.number

    @property
    def isShared(self) -> bool:
        """True if the queue pair has no paths, as it shares memory with its peer, or is no more."""
        return self._pair is None or self._pair.route == "shared-memory"

    @property
    def path(self) -> CMPath:
        return self._cm.primary

    @property
    def alternate(self) -> CMPath | None:
        return self._cm.alternate

    @property
    def managedBy(self) -> str:
        """The manager of the connection: C{"txrdma"}, or C{"librdmacm"}, which is the kernel's."""
        return self._cm.managedBy

    @property
    def _cm(self) -> IManagedConnection:
        assert self.connection is not None  # nobody has the transport before
        return self.connection

    def getHost(self) -> MessageAddress:
        return self._host

    def getPeer(self) -> MessagePeer:
        """The peer, with its private data."""
        return self._peer

    # Requests of the program

    def sendMessage(self, data: Buffer, immediate: int | None = None) -> None:
        """
        Send a message; it waits in order while the peer has no room. After the end it is dropped.

        @raise InvalidRequest: it is too long.
        """
        if len(data) > self.agreed.messageBytes:
            raise InvalidRequest(f"a message has {self.agreed.messageBytes} bytes at most, not {len(data)}")
        operation = Operation.SEND if immediate is None else Operation.SEND_WITH_IMMEDIATE
        self._ask(Request(SendRequest(0, operation, immediate=immediate or 0), True, bytes(data)))

    def write(self, segment: Segment, remoteAddress: int, rkey: RKey, immediate: int | None = None) -> int:
        """
        Write into the peer's memory: see L{IRDMATransport}.

        @raise InvalidRequest: no bytes, with immediate data, where credits are counted.
        """
        operation = Operation.RDMA_WRITE
        if immediate is not None:
            if not segment.length and self._credits.usesCredits:
                raise InvalidRequest("a write of no bytes has no immediate data: credits are given by these")
            operation = Operation.RDMA_WRITE_WITH_IMMEDIATE
        segments = (segment,) if segment.length else ()
        request = SendRequest(0, operation, segments, immediate=immediate or 0)
        request.remoteAddress, request.rkey = remoteAddress, rkey
        return self._ask(Request(request, immediate is not None))

    def read(self, segment: Segment, remoteAddress: int, rkey: RKey) -> Deferred[None]:
        """
        Read from the peer's memory: see L{IRDMATransport}.

        @raise InvalidRequest: the peer takes no reads.
        """
        if not self.agreed.initiatorDepth:
            raise InvalidRequest("the peer takes no reads")
        request = SendRequest(0, Operation.RDMA_READ, (segment,))
        request.remoteAddress, request.rkey = remoteAddress, rkey
        asked = Request(request, False)

        def cancel(_: Deferred[None]) -> None:
            asked.done = None
            if asked in self._sends.waiting:
                self._sends.waiting.remove(asked)
                self._proceed()

        done = asked.done = Deferred(cancel)
        if not self._ask(asked):
            asked.done = None
            done.errback(Failure(ConnectionLost("the connection is over")))
        return done

    def allocateMemory(self, length: int) -> IMemoryRegion:
        return self._regions.allocate(length)

    def freeMemory(self, region: IMemoryRegion) -> None:
        """Let go of memory before the connection ends: the peer's requests for it fail from now on."""
        self._regions.free(region)

    def registerProducer(self, producer: IPushProducer, streaming: bool) -> None:
        """
        Register a push producer, which is paused while too many requests wait.

        @raise InvalidRequest: it is a pull producer.
        @raise RuntimeError: there is a producer already.
        """
        if not streaming:
            raise InvalidRequest("the producer of a connection must be a push producer")
        super().registerProducer(producer, streaming)

    def pauseProducing(self) -> None:
        """Take no more messages of the peer."""
        self._life.isPaused = True

    def resumeProducing(self) -> None:
        """Take messages of the peer again."""
        self._life.isPaused = self.protocol is None
        self.process()

    def loseConnection(self, privateData: bytes = b"") -> None:
        """
        End the connection by a DREQ, when all that was sent and written is in the peer's memory.

        @raise InvalidRequest: there is more private data than a DREQ has room for.
        """
        checkRoom(privateData, DISCONNECT_ROOM)
        if self._life.isOpen:
            self._farewell = privateData
        self._life.close()
        self._proceed()

    def abortConnection(self) -> None:
        self._lose(ConnectionAborted())

    def loadAlternatePath(self, path: IBPath | CMPath) -> Deferred[CMPath]:
        """
        Have both ends ready to migrate to another path when the one in use fails.

        @raise InvalidRequest: there is no such path here, or none at all: see L{IRDMATransport}.
        """
        if self._pair is not None and self._pair.route == "shared-memory":
            raise InvalidRequest("shared memory has no alternate path: route=rocev2 of a software device has")
        self.pathChanged()
        loading = self._cm.loadAlternatePath(path).addCallback(self._migration.whenArmed)
        loaded: Deferred[CMPath] = Deferred(lambda _: loading.cancel())
        loading.addCallbacks(loaded.callback, loaded.errback)
        return loaded

    # The opening

    def ready(self, request: REQ, reply: REP, isActive: bool, agreed: Agreed) -> None:
        """
        Make the queue pair ready to send.

        @raise txrdma.error.RDMAError: the device does not take what was agreed on.
        """
        assert self._pair is not None and self.connection is not None
        self.agreed = agreed
        self._credits = Credits(self.terms.receives, agreed.receives)
        port, index = self.adapter.requireGID(self.connection.primary.localGID)
        self._pair.modify(toReceive(request, reply, isActive, port, index, _RNR_TIMER))
        self._pair.modify(toSend(request, reply, isActive))

    def established(self, protocol: IRDMAProtocol, host: MessageAddress, peer: MessagePeer) -> None:
        """Begin: the connection is established, and has a protocol."""
        self._host, self._peer, self.protocol = host, peer, protocol
        self._life.isPaused = False
        alternate = self._cm.alternate  # of the REQ, which the REP has accepted
        if alternate is not None and not self.isShared:
            try:
                self._arm(alternate)
            except RDMAError as error:
                _log.warn("{transport} can't migrate: {error}", transport=self, error=error)
        reactor = self.adapter.reactor
        self._keepalive = Keepalive(reactor, self.terms.keepalive, self._probeIdle)
        self._begin(reactor)
        self.process()

    def handleEvent(self, connection: IManagedConnection, event: Event) -> None:
        """Act on an event of the established connection, or of one that failed before."""
        if isinstance(event, Disconnected):
            self._disconnected()
        elif isinstance(event, ConnectionRejected):
            self._lose(ConnectionLost(f"the peer has rejected the connection: {event.rejection.reason.name}"))
        elif isinstance(event, ConnectionTimedOut):
            self._lose(ConnectionLost("the peer does not answer"))
        elif isinstance(event, AlternatePathRequested):
            status = APStatus.NOT_SUPPORTED if self.isShared else APStatus.LOADED
            connection.replyAlternatePath(event.transactionID, status)
        elif isinstance(event, QPArmed):
            self._arm(event.path)
        elif isinstance(event, PathMigrated) and self.protocol is not None and not self._life.isClosed:
            self._call(self.protocol.pathMigrated, event.path)
        self.settle()

    def settle(self) -> None:
        """Let go of the adapter when both ends know of the end."""
        if self._life.isClosed and (self.connection is None or self.connection.state in _OVER):
            self._release()
            if self.connection is not None:
                self.connection.setHandler(
                    ignoreEvent
                )  # ids rest for a while, and hold nothing but themselves

    def _disconnected(self) -> None:
        """The end by a DREQ: what the peer has sent before is there already, and comes first."""
        if self._shared is not None and self._life.mayPost:
            self._shared.poll()
        self._life.peerClosed()
        self._cm.disconnect()  # from now on the peer's queue pair may go
        if self.protocol is None:
            self._lose(self._reasonOfEnd())
        self.process()

    def _reasonOfEnd(self) -> Exception:
        """The reason that the protocol is told after a DREQ of the peer."""
        if not self._sends.isIdle:
            return ConnectionLost("the peer ended the connection, and may not have all that was sent")
        return ConnectionDone()

    # Paths

    def pathChanged(self) -> None:
        """Look whether the queue pair has migrated, and report it."""
        if self._pair is not None and self._life.mayPost and self._migration.hasMigrated(self._pair):
            self._cm.migrated()

    def _arm(self, path: CMPath) -> None:
        if self._pair is not None and self._life.mayPost:
            self._migration.arm(self._pair, path)

    def _probeIdle(self) -> None:
        """Write no bytes, which the peer's device acknowledges, unless a request waits for that already."""
        if self._sends.isQuiet and self._life.mayPost and self._pair is not None:
            try:
                self._sends.postOverhead(self._pair, SendRequest(0, Operation.RDMA_WRITE))
            except RDMAError as error:
                self._broke(str(error))
                self._proceed()

    # Completions: see L{txrdma.cm.connections.adapter.CompletionHandler}

    def arrived(self, completion: Completion) -> None:
        """Keep a completion for L{process}."""
        if completion.identifier >= FIRST:
            kind = Kind.REQUEST
        elif completion.status is not Status.SUCCESS:
            kind = Kind.FAILURE
        elif (
            self._credits.usesCredits
            and completion.opcode is CompletionOpcode.RECEIVE_RDMA_WITH_IMMEDIATE
            and not completion.length
        ):
            kind = Kind.CREDIT
        else:
            kind = Kind.MESSAGE
        self._life.arrived(kind, completion)

    def process(self) -> None:
        """Act on what has completed, in order: what comes of it meanwhile waits for its turn."""
        if self._isProcessing:
            return
        self._isProcessing = True
        try:
            if self.protocol is None and self._life.hasArrived:
                self._confirm()
            while (found := self._life.next()) is not None:
                kind, completion = found
                if kind is Kind.REQUEST:
                    self._sent(completion)
                elif kind is Kind.CREDIT:
                    self._takeCredits(completion)
                elif kind is Kind.MESSAGE:
                    self._received(completion)
                else:
                    self._broke(f"a receive has failed: {Status(completion.status).name}")
        finally:
            self._isProcessing = False
        self._proceed()

    def _confirm(self) -> None:
        """Take data as good as an RTU that is late: the protocol comes by this."""
        if self.connection is not None and self.connection.state in ("REP_SENT", "MRA_REP_RCVD"):
            self._cm.communicating()

    def broken(self, failure: Failure) -> None:
        """End: completions can't be acted on, or are read no more."""
        self._lose(ConnectionLost(f"an error in completions: {failure.getErrorMessage()}"))

    def _takeCredits(self, completion: Completion) -> None:
        """Take credits that the peer gives back."""
        self._post(completion.identifier)  # before the peer can cause the next one
        if not self._credits.returned(completion.immediate or 0):
            self._lose(ConnectionLost("the peer gives back credits that nobody has used"))

    def _received(self, completion: Completion) -> None:
        """Hand a message, or the end of a write, to the protocol."""
        assert self.protocol is not None
        slot, length, immediate = completion.identifier, completion.length, completion.immediate
        if completion.opcode is CompletionOpcode.RECEIVE_RDMA_WITH_IMMEDIATE:
            self._call(self.protocol.writeReceived, length, immediate)
        else:
            assert self._memory is not None
            self._call(self.protocol.messageReceived, self._memory.message(slot, length), immediate)
        self._post(slot)
        self._credits.reposted()

    def _sent(self, completion: Completion) -> None:
        if completion.status is not Status.SUCCESS:
            self._broke(f"a request has failed: {Status(completion.status).name}")
            return
        self._migration.completed(completion.identifier, self._cm.primary)
        request = self._sends.completed(completion.identifier)
        if request is None:
            return
        if request.isWrite and self.protocol is not None:
            self._call(self.protocol.writeCompleted, completion.identifier)
        done, request.done = request.done, None
        if done is not None:
            done.callback(None)

    # Posting

    def _ask(self, asked: Request) -> int:
        """Have a request posted when its turn comes; its number, or 0 after the end."""
        if not self._life.isOpen:
            return 0
        identifier = self._sends.ask(asked)
        self._proceed()
        return identifier

    def _proceed(self) -> None:
        """Post what can be posted, pause or resume the producer, end when all is done."""
        if self._isProcessing:
            return
        if self.protocol is not None and self._life.mayPost:
            self._advance()
        if self._life.isDrained and self._life.drained():
            self._finish(self._reasonOfEnd())

    def _advance(self) -> None:
        assert self._pair is not None
        if self._sends.waiting or self._credits.usesCredits:
            try:
                self._sends.post(self._pair, self._credits, self.agreed.messageBytes)
            except RDMAError as error:
                self._broke(str(error))
                return
        if self._producer is not None:
            if self._sends.isFull:
                self._pauseProducer()
            elif not self._sends.waiting:
                self._resumeProducer()
        isDone = self._life.isLosing and self._sends.isIdle and self._producer is None
        if isDone and self._cm.state == "ESTABLISHED":
            self._cm.disconnect(self._farewell)

    def _post(self, slot: int) -> None:
        """Post the receive of a slot again, unless the connection is over."""
        if self._life.mayPost and self._pair is not None and self._memory is not None:
            try:
                self._pair.postReceive((self._memory.requests[slot],))
            except RDMAError as error:
                self._broke(str(error))

    # The end

    @property
    def _hasEnded(self) -> bool:
        return self._life.isClosed

    def _applicationFailed(self) -> None:
        self._lose(ConnectionLost("its program failed"))

    def _broke(self, what: str) -> None:
        """
        Act on a queue pair that has failed.

        When all was sent and the DREQ is out that is its answer: the peer has closed its queue pair by now.
        """
        if self._life.isLosing and self._cm.state == "DREQ_SENT" and self._sends.isIdle:
            self._life.peerClosed()
        elif self._life.fail():
            self._finish(ConnectionLost(what))

    def _lose(self, reason: Exception) -> None:
        """End at once, whatever waits."""
        if self._life.abort():
            self._finish(reason)

    def _finish(self, reason: Exception) -> None:
        """Close the queue pair, and report the end to the peer, unless it knows, and to the protocol."""
        requests = self._sends.takeAll()
        keepalive, self._keepalive = self._keepalive, None
        if keepalive is not None:
            keepalive.stop()
        prepared = IPreparedProtocol(self.protocol, None)
        if prepared is not None:
            self._call(prepared.memoryLost)
        self._close()
        if self.connection is not None:
            self.connection.disconnect()
        self.settle()
        failure = Failure(reason)
        for request in requests:
            done, request.done = request.done, None
            if done is not None:
                done.errback(failure)
        self._migration.end()
        if self.protocol is None:
            self.failed(failure)
            return
        self._end(failure)
        self.protocol = None

    def _close(self) -> None:
        pair, self._pair = self._pair, None
        if pair is not None:
            pair.close()
        if self._shared is not None:
            shared, self._shared = self._shared, None
            self.adapter.detach(shared, pair, self._depth)
        memory, self._memory = self._memory, None
        if memory is not None:
            memory.giveBack()
        self._regions.close()
