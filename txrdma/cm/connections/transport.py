"""
The transport of one connection: messages, one-sided reads and writes, over a reliable connected queue pair.

Follows InfiniBand Architecture vol. 1, 9.7 and 10.8. Receives are posted in advance, and again when the
protocol has handled their message. Two ends of txrdma use credits (see L{txrdma.cm.connections._credits}). A
peer without credits may find no receive; then its device retries (receiver not ready), as this end's does.

The path of a message: C{sendMessage} of L{RequestTransport} queues a request, C{_proceed} posts it when there
is a credit and a slot in the send queue. Completions of all kinds go to
L{Life<txrdma.cm.connections._life.Life>}, which holds back messages while the protocol is paused; C{process}
handles them in order. A protocol that needs neither messages nor credits can post to the queue pair itself
(C{openQueuePair}), as C{rsocket:} does.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from contextlib import ExitStack, suppress
from functools import partial
from typing import Final, Protocol

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.cm.connections._credits import Credits, FIRST_RECEIVES, SPARE
from txrdma.cm.connections._life import Life, LifeEventKind
from txrdma.cm.connections.adapter import Adapter, SharedCompletionQueue
from txrdma.cm.connections.longmessages import HAS_READ, LongMessageReader
from txrdma.cm.connections.migration import PathMigration
from txrdma.cm.connections.queuepairs import capacityOf, leastTimeout, toInit, toReceive, toSend
from txrdma.cm.connections.receives import Part
from txrdma.cm.connections.requests import RequestTransport
from txrdma.cm.connections.sendqueue import ANNOUNCEMENT, FIRST, OVERHEAD, Request, SendQueue, SendRegions
from txrdma.cm.core.events import (
    AlternatePathRequested,
    ConnectionAbandoned,
    ConnectionEstablished,
    ConnectionRejected,
    ConnectionReplied,
    ConnectionRequested,
    ConnectionTimedOut,
    Disconnected,
    Event,
    ignoreEvent,
    PathMigrated,
    QPArmed,
    QPDisarmed,
)
from txrdma.cm.interfaces import IManagedConnection, IPreparedProtocol, IRDMAProtocol
from txrdma.cm.layouts.messages import APStatus, checkPrivateData, CMPath, DREQ, DREQ_PRIVATE_BYTES, REP, REQ
from txrdma.cm.terms import Agreed, Terms
from txrdma.error import InvalidRequest, ProtectionError, RDMAError
from txrdma.iba.path import IBPath
from txrdma.iba.types import QPN
from txrdma.iba.verbs import (
    Completion,
    CompletionOpcode,
    Operation,
    QPKind,
    ReceiveRequest,
    SendRequest,
    Status,
)
from txrdma.interfaces import IQueuePair, ITrimmable, IVerbsDevice
from txrdma.kit.logs import errorText
from txrdma.messages.address import MessageAddress
from txrdma.messages.interfaces import IAtomicMemory, IMessageTransport
from txrdma.messages.keepalive import Keepalive

_log = Logger()

_RNR_TIMER: Final = 12
"""The delay before a sender that found no receive retries: 0.64 milliseconds, encoded (IBA table 45)."""

_OVER: Final = ("ENDED", "TIMEWAIT", "FREE")

_OPENING_EVENTS: Final = (ConnectionRequested, ConnectionReplied, ConnectionEstablished)
"""Events that the attempt or the listener has handled."""

_UNREAD: Final = "the peer closed the connection before its last messages were read"

_NO_MEMORY: Final = ReceiveRequest(0)


class PostingProtocol(Protocol):
    """A protocol that posts its requests to the queue pair itself, with identifiers below L{FIRST}."""

    @property
    def isIdle(self) -> bool:
        """Whether all its send requests have completed."""

    @property
    def isDelivered(self) -> bool:
        """Whether all bytes that it has accepted from the program are in the peer's memory."""

    def completed(self, batch: Sequence[Completion]) -> None:
        """Handle successful completions with identifiers below L{FIRST}, oldest first."""

    def peerClosed(self, privateData: bytes) -> None:
        """Handle the private data of the peer's DREQ."""


def acceptPath(path: CMPath) -> bool:
    """Accept an alternate path, for a protocol that does not decide."""
    return True


def _ignoreFailure(failure: Failure) -> None:
    """Do nothing about the failure of a connection for which no caller waits."""


def _ignoreCompletions(batch: Sequence[Completion]) -> None:
    """Ignore completions, since the connection has ended."""


@implementer(IMessageTransport, IAtomicMemory)
class RDMATransport(RequestTransport):
    """
    A queue pair with its memory: the transport of an L{IRDMAProtocol}.

    @ivar completed: handles a batch of completions: see
        L{CompletionHandler<txrdma.cm.connections.adapter.CompletionHandler>}.
    @ivar connection: the connection of the communication manager; None before its first message.
    @ivar protocol: None before the connection is established, and after its end.
    @ivar failed: called with the reason if the connection ends before there is a protocol.
    """

    # More attributes than fit into a dictionary whose keys are shared by all instances.
    __slots__ = (
        *("_bytesBefore", "_bytesTrimmed", "_credits", "_dreqData", "_hasDropped", "_host", "_isAnnounced"),
        *("_isProcessing", "_keepalive", "_life", "_memory", "_migration", "_pair", "_peer", "_pkey"),
        *("_posted", "_reader", "_regions", "_release", "_requester", "_sends", "_shared", "adapter"),
        *("agreed", "completed", "connection", "failed", "terms"),
    )
    kind = "rdma"
    _host: MessageAddress
    _peer: MessageAddress

    def __init__(self, adapter: Adapter, terms: Terms, port: int, pkey: int) -> None:
        """
        @param port: the device's port of the primary path.
        @param pkey: the partition, of which the port is a member.
        @raise txrdma.error.RDMAError: the device has too few resources.
        """
        self.adapter, self.terms = adapter, terms
        self.connection: IManagedConnection | None = None
        self.protocol: IRDMAProtocol | None = None
        self.failed: Callable[[Failure], None] = _ignoreFailure
        self._credits = Credits(terms.receives, None)
        self._regions = SendRegions(adapter.domain)
        self._sends = SendQueue(terms.sends, adapter.receives, self._regions)
        self._reader: LongMessageReader | None = None  # from the first long message of the peer on
        self._isAnnounced = False  # the next SEND is the name of a long message
        self._life: Life[Completion] = Life()
        self._isProcessing = self._hasDropped = False
        self._bytesBefore = self._bytesTrimmed = 0  # received at the last probe, and when memory was trimmed
        self._dreqData = b""  # private data
        self._keepalive: Keepalive | None = None
        self._pkey = pkey
        self._migration: PathMigration | None = None  # from the first alternate path on
        self._release = adapter.hold()
        self._shared: SharedCompletionQueue | None = None
        self._pair: IQueuePair | None = None
        self._memory: Part | None = None
        self._requester: PostingProtocol | None = None
        self.completed: Callable[[Sequence[Completion]], None] = self._completed
        try:
            shared = self._shared = adapter.reserve(self._depth)
            count = self._receives
            limits = adapter.device.limits
            inline = limits.maxInline if limits.hasUnlimitedInline else 0
            capacity = capacityOf(terms.sends + OVERHEAD, count, inline)
            self._pair = adapter.domain.createQueuePair(QPKind.RC, shared.queue, shared.queue, capacity)
            adapter.attach(shared, self._pair, self)
            receives: Sequence[ReceiveRequest] = (_NO_MEMORY,) * count
            self._posted = count
            if terms.messageBytes:
                self._memory = adapter.receives.take(count, terms.messageBytes)
                self._posted = min(count, FIRST_RECEIVES + SPARE)
                receives = self._memory.prepare(self._posted)
            self._pair.modify(toInit(port, terms.reads, adapter.requirePKey(port, pkey)))
            self._pair.postReceive(receives)
        except BaseException:
            self._close()
            self._release()
            raise

    def __repr__(self) -> str:
        return f"<RDMATransport {self.connection!r} {self._pair!r}>"

    @property
    def _receives(self) -> int:
        """The number of receives, once all are posted."""
        return self.terms.receives + SPARE

    @property
    def _depth(self) -> int:
        """The number of entries of the completion queue that the queue pair needs."""
        return self._receives + self.terms.sends + OVERHEAD

    @property
    def route(self) -> str:
        """The device's name for the path of the data, such as C{shared-memory}; empty after the end."""
        return "" if self._pair is None else self._pair.route

    @property
    def device(self) -> IVerbsDevice:
        return self.adapter.device

    @property
    def qpn(self) -> QPN:
        """The number of the queue pair; L{InvalidRequest} is raised after the end."""
        if self._pair is None:
            raise InvalidRequest("the connection has ended")
        return self._pair.number

    @property
    def canMigrate(self) -> bool:
        """Whether the queue pair can have an alternate path; over shared memory it has no paths."""
        pair = self._pair
        return self.device.attributes.canMigrate and pair is not None and pair.route != "shared-memory"

    @property
    def path(self) -> CMPath:
        """The path in use."""
        return self._cm.primary

    @property
    def alternate(self) -> CMPath | None:
        """The path to migrate to, if there is one."""
        return self._cm.alternate

    @property
    def managedBy(self) -> str:
        """The manager of the connection: C{"txrdma"}, or C{"librdmacm"} for the kernel's."""
        return self._cm.managedBy

    @property
    def _cm(self) -> IManagedConnection:
        assert self.connection is not None  # it is set before anybody gets the transport
        return self.connection

    def getHost(self) -> MessageAddress:
        return self._host

    def getPeer(self) -> MessageAddress:
        return self._peer

    # Requests of the program, beside those of L{RequestTransport}

    def openQueuePair(self, requester: PostingProtocol, entries: int) -> IQueuePair:
        """
        Let the protocol use the queue pair itself from now on, instead of messages.

        Receives without memory are posted, which it has to post again: see L{receiveAgain}.

        @param entries: entries of the send queue that remain for requests to shared memory.
        """
        assert self._pair is not None
        self._sends.entries = entries
        self._requester, self.completed = requester, requester.completed
        return self._pair

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
        """
        Stop calling C{messageReceived}.

        The peer can send as many messages as receives are posted, and then waits.
        """
        self._life.isPaused = True

    def resumeProducing(self) -> None:
        """Call C{messageReceived} again."""
        self._life.isPaused = self.protocol is None
        self.process()

    def loseConnection(self, privateData: bytes = b"") -> None:
        """
        Close the connection by a DREQ when everything that was sent and written is in the peer's memory.

        C{connectionLost} is called when the peer has answered, or when the last retry has timed out.

        @param privateData: for the peer, at most 220 bytes.
        @raise InvalidRequest: there is too much private data.
        """
        checkPrivateData(privateData, DREQ_PRIVATE_BYTES)
        if self._life.isOpen:
            self._dreqData = privateData
        self._life.close()
        self._proceed()

    def abortConnection(self) -> None:
        self._abort(ConnectionAborted())

    def withdraw(self) -> None:
        """End an attempt to connect without reporting it."""
        self.failed = _ignoreFailure
        self.abortConnection()

    def loadAlternatePath(self, path: IBPath | CMPath | None = None) -> Deferred[CMPath]:
        """
        Prepare both ends to migrate to another path when the one in use fails.

        @param path: None for the one before the last migration; before the first one for a path from another
            port of the device, else by other LIDs or from another address of its port, to the same address
            of the peer.
        @return: fires with the path when both queue pairs are ready for it; fails with L{InvalidRequest} if
            there is no other path. For further errors see
            L{CMConnection.loadAlternatePath<txrdma.cm.connection.CMConnection.loadAlternatePath>}.
        @raise InvalidRequest: this device has no such path, or the queue pair uses shared memory.
        """
        self.pathChanged()
        migration = self._prepareMigration()
        chosen = migration.choose(self.route, path, self._cm.primary)
        load = self._cm.loadAlternatePath
        loading = chosen.addCallback(load) if isinstance(chosen, Deferred) else load(chosen)
        loading.addCallback(migration.whenArmed)
        loaded: Deferred[CMPath] = Deferred(lambda _: loading.cancel())
        loading.addCallbacks(loaded.callback, loaded.errback)
        return loaded

    # The opening

    def ready(self, request: REQ, reply: REP, isActive: bool, agreed: Agreed) -> None:
        """
        Make the queue pair ready to send.

        @raise txrdma.error.RDMAError: the device refuses the negotiated attributes.
        """
        assert self._pair is not None and self.connection is not None
        self.agreed, self.isClient = agreed, isActive
        self._credits = Credits(self.terms.receives, agreed.receives)
        address = self.adapter.addressOf(self.connection.primary)
        if agreed.receives is None:
            self._pair.postReceive(self._prepare(self._receives - self._posted))
        self._pair.modify(toReceive(request, reply, isActive, address, _RNR_TIMER))
        self._pair.modify(toSend(request, reply, isActive, leastTimeout(self.device.attributes)))

    def setAddresses(self, host: MessageAddress, peer: MessageAddress) -> None:
        """Set the addresses of both ends, before anything is called with the transport."""
        self._host, self._peer = host, peer

    def established(self, protocol: IRDMAProtocol) -> None:
        """
        Connect the protocol, since the connection is established, and handle its events from now on.

        Do nothing if the connection has ended before its event was handled.
        """
        if self._life.isClosed:
            return
        self.failed = _ignoreFailure
        self._cm.setHandler(self.handleEvent, self.pathChanged)
        self.protocol = protocol
        self._life.isPaused = False
        alternate = self._cm.alternate  # of the REQ, which the REP has accepted
        if alternate is not None and self.canMigrate:
            self._arm(alternate)
        reactor = self.adapter.reactor
        self._keepalive = Keepalive(reactor, self.terms.keepalive, self._probeIdle)
        self._begin(reactor)
        self.process()

    def handleEvent(self, connection: IManagedConnection, event: Event) -> None:
        """Handle an event of the connection, which ends if that raises an exception."""
        try:
            self._handle(connection, event)
        except Exception:
            self._abort(ConnectionLost("an exception was raised, which is logged"))
            raise
        finally:
            self.settle()

    def _handle(self, connection: IManagedConnection, event: Event) -> None:
        if isinstance(event, _OPENING_EVENTS):
            pass
        elif isinstance(event, Disconnected):
            self._disconnected(event.request)
        elif isinstance(event, ConnectionRejected):
            self._abort(
                ConnectionLost(f"the peer has rejected the connection: {event.rejection.reason.name}")
            )
        elif isinstance(event, ConnectionTimedOut):
            self._abort(ConnectionLost("the peer does not answer"))
        elif isinstance(event, ConnectionAbandoned):
            self.connection = None  # it is released already
            self._abort(ConnectionLost("an exception, which is logged, has ended the connection"))
        elif isinstance(event, AlternatePathRequested):
            connection.replyAlternatePath(event.transactionID, self._loadRequested(event.path))
        elif isinstance(event, QPArmed):
            self._arm(event.path)
        elif isinstance(event, QPDisarmed):
            self._disarm()
        elif isinstance(event, PathMigrated) and self.protocol is not None and not self._life.isClosed:
            self._callOptional("pathMigrated", event.path)

    def settle(self) -> None:
        """Release the adapter when the exchange that closes the connection is complete."""
        if self._life.isClosed and (self.connection is None or self.connection.state in _OVER):
            self._release()
            if self.connection is not None:
                self.connection.setHandler(ignoreEvent)  # timewait needs no reference to this object

    def _disconnected(self, request: DREQ | None) -> None:
        """Handle a DREQ or DREP, after everything that the peer sent before it, which has arrived."""
        if self._shared is not None and self._life.mayPost:
            # The DREQ used another queue pair: completions of earlier messages may not be polled yet.
            self._shared.poll(not self._isIdle)
        if self._requester is not None and request is not None:
            self._call(self._requester.peerClosed, request.privateData)
        self._life.peerClosed()
        self._cm.disconnect()  # after this the peer may close its queue pair
        if self._life.isReading and self._life.isLeft:
            self._abort(ConnectionLost(_UNREAD))
        elif self._life.isReading or self.protocol is None:
            self._abort(self._reasonOfEnd())
        self.process()

    def _reasonOfEnd(self) -> Exception:
        """The reason for C{connectionLost} after the exchange of DREQ and DREP."""
        requester = self._requester
        isDelivered = self._isIdle or (requester is not None and requester.isDelivered and self._sends.isIdle)
        if self._hasDropped or not isDelivered:
            return ConnectionLost("the peer closed the connection, and may not have received everything")
        return ConnectionDone()

    # Paths

    def pathChanged(self) -> None:
        """Report to the manager if the queue pair has migrated."""
        pair, migration = self._pair, self._migration
        if pair is not None and migration is not None and self._life.mayPost and migration.hasMigrated(pair):
            migration.former = self._cm.primary
            self._cm.migrated()

    def _prepareMigration(self) -> PathMigration:
        """Return the state of alternate paths, which most connections do not need."""
        if self._migration is None:
            self._migration = PathMigration(self.adapter, self._pkey, self._sends)
        return self._migration

    def mayMigrateTo(self, path: CMPath) -> bool:
        """Set a path that the peer offers as the alternate one; return whether the device accepts it."""
        if self._pair is None or not self.canMigrate:
            return False
        return self._prepareMigration().accept(self._pair, path, self._cm.primary)

    def _loadRequested(self, path: CMPath) -> APStatus:
        """Set the path of a LAP as the alternate one, unless the application or the device refuses it."""
        try:
            accepts = getattr(self.protocol, "alternatePathRequested", acceptPath)
            if not accepts(path):
                return APStatus.REJECTED
        except Exception:
            self._logFailure()
            return APStatus.REJECTED
        return APStatus.LOADED if self.mayMigrateTo(path) else APStatus.NOT_SUPPORTED

    def _callOptional(self, name: str, *arguments: object) -> None:
        method = getattr(self.protocol, name, None)
        if method is not None:
            self._call(method, *arguments)

    def _arm(self, path: CMPath) -> None:
        if self._pair is not None and self._life.mayPost:
            self._prepareMigration().arm(self._pair, path)

    def _disarm(self) -> None:
        if self._pair is not None and self._life.mayPost:
            self._prepareMigration().disarm(self._pair)

    def _probeIdle(self) -> None:
        """
        Probe the peer by an empty write, which its device acknowledges, if no request is pending.

        If nothing was received since the last probe, return the memory of receives to the system, once.
        """
        received = self.record.bytesReceived
        if received == self._bytesBefore != self._bytesTrimmed:
            self._bytesTrimmed = received
            trimmable = ITrimmable(self._pair, None)
            if trimmable is not None:
                trimmable.trim()
        self._bytesBefore = received
        if self._sends.isQuiet and self._life.mayPost and self._pair is not None:
            try:
                self._sends.postOverhead(self._pair, SendRequest(0, Operation.RDMA_WRITE))
            except RDMAError as error:
                self._queuePairFailed(str(error))
                self._proceed()

    # Completions: see L{txrdma.cm.connections.adapter.CompletionHandler}

    def _completed(self, batch: Sequence[Completion]) -> None:
        for completion in batch:
            self._queueCompletion(completion)
        self.process()

    def _queueCompletion(self, completion: Completion) -> None:
        """Queue a completion for L{process}."""
        if completion.identifier >= FIRST:
            kind = LifeEventKind.REQUEST
        elif completion.status is not Status.SUCCESS:
            kind = LifeEventKind.FAILURE
        elif (
            self._credits.usesCredits
            and completion.opcode is CompletionOpcode.RECEIVE_RDMA_WITH_IMMEDIATE
            and not completion.length
        ):
            kind = LifeEventKind.CREDIT
            if completion.immediate == ANNOUNCEMENT and self.agreed.longestReceived:
                self._isAnnounced = True
        elif self._isAnnounced and completion.opcode is not CompletionOpcode.RECEIVE_RDMA_WITH_IMMEDIATE:
            self._isAnnounced = False
            kind = LifeEventKind.LONG
        else:
            kind = LifeEventKind.MESSAGE
        self._life.arrived(kind, completion)

    def process(self) -> None:
        """Handle completions in order. Nested calls return at once: the loop handles their work, too."""
        if self._isProcessing:
            return
        self._isProcessing = True
        try:
            if self.protocol is None and self._life.hasArrived:
                self._assumeRTU()
            while (found := self._life.next()) is not None:
                kind, completion = found
                if self._requester is not None:  # it arrived before the protocol was connected
                    self.completed((completion,))
                elif kind is LifeEventKind.REQUEST:
                    self._sent(completion)
                elif kind is LifeEventKind.CREDIT:
                    self._takeCredits(completion)
                elif kind is LifeEventKind.MESSAGE:
                    self._received(completion)
                elif kind is LifeEventKind.LONG:
                    self._receivedLong(completion)
                else:
                    self._queuePairFailed(f"a receive has failed: {Status(completion.status).name}")
        finally:
            self._isProcessing = False
        self._proceed()

    def _assumeRTU(self) -> None:
        """Treat received data as an RTU, which may be late or lost; this connects the protocol."""
        if self.connection is not None and self.connection.state in ("REP_SENT", "MRA_REP_RCVD"):
            self._cm.communicating()

    def broken(self, failure: Failure) -> None:
        """Close, since completions could not be read or handled."""
        self._abort(ConnectionLost(f"completions could not be handled: {errorText(failure.value)}"))

    def _takeCredits(self, completion: Completion) -> None:
        """Handle a return of credits, or an announcement or a report of a long message."""
        immediate = completion.immediate or 0
        if immediate == ANNOUNCEMENT and self.agreed.longestReceived:
            self._reuse(completion.identifier)
            return
        self._repost(completion.identifier)  # first, since the peer may return more
        if immediate == HAS_READ:
            messages = self._sends.messageRead()
            if not messages:
                self._abort(ConnectionLost("the peer has read a message that was not sent"))
            self._succeeded(messages)
        elif not self._credits.returned(immediate):
            self._abort(ConnectionLost("the peer returned more credits than were used"))

    def _received(self, completion: Completion) -> None:
        """Deliver a message, or report a write of the peer."""
        assert self.protocol is not None
        slot, length, immediate = completion.identifier, completion.length, completion.immediate
        if completion.opcode is CompletionOpcode.RECEIVE_RDMA_WITH_IMMEDIATE:
            self._callOptional("writeReceived", length, immediate)
        else:
            assert self._memory is not None
            self.record.bytesReceived += length
            self._call(self.protocol.messageReceived, self._memory.message(slot, length), immediate)
        self._reuse(slot)

    def _receivedLong(self, completion: Completion) -> None:
        """Read a long message, or deliver it if that was done."""
        assert self.protocol is not None and self._memory is not None
        reader, slot = self._reader, completion.identifier
        if reader is not None and reader.message is not None:
            message, reader.message = reader.message, None
            self.record.bytesReceived += len(message[0])
            self._call(self.protocol.messageReceived, *message)
            return
        if not self._life.mayPost:
            self._abort(ConnectionLost(_UNREAD))
            return
        if reader is None:
            reader = self._reader = LongMessageReader(self.adapter.receives)
        announced = self._memory.message(slot, completion.length)
        agreed = self.agreed
        try:
            reader.begin(announced, completion.immediate, agreed.messageBytes, agreed.longestReceived)
        except RDMAError as error:
            self._abort(ConnectionLost(f"a long message of the peer cannot be read: {error}"))
            return
        self._life.isReading = True
        self._reuse(slot)

    # Calls of the L{PostingProtocol}

    def handle(self, completion: Completion) -> None:
        """Handle the completion of a failed request, or of one of the transport."""
        self._sent(completion)
        self._proceed()

    def requestRefused(self, error: RDMAError) -> None:
        """End the connection, since the queue pair has refused a request."""
        self._queuePairFailed(str(error))
        self._proceed()

    def receiveAgain(self, count: int) -> None:
        """Post receives without memory."""
        self._postReceives((_NO_MEMORY,) * count)

    def _sent(self, completion: Completion) -> None:
        if completion.status is not Status.SUCCESS:
            failed = self._sends.posted.get(completion.identifier)
            if failed is not None and completion.status is Status.REM_ACCESS_ERR:
                failed.fail(Failure(ProtectionError("the peer no longer shares this memory")))
            self._queuePairFailed(f"a request has failed: {Status(completion.status).name}")
            return
        if self._migration is not None:
            self._migration.completed(completion.identifier, self._cm.primary)
        request = self._sends.completed(completion.identifier)
        if request is not None:
            self._succeeded((request,))
        if self._reader is not None and self._reader.completed(completion.identifier):
            self._life.wasRead(completion)

    def _succeeded(self, requests: Sequence[Request]) -> None:
        """Report completed requests to the program; if that raises, all fail: no queue has them any more."""
        try:
            for request in requests:
                if request.isMessage:
                    self.record.bytesSent += request.size
                request.succeed()
        except BaseException:
            failure = Failure(ConnectionLost("an exception was raised, which is logged"))
            for request in requests:
                request.fail(failure)
            raise

    # Posting

    def _ask(self, request: Request) -> int:
        """Queue a request; return its number, or 0 after the end."""
        if not self._life.isOpen:
            self._hasDropped = self._hasDropped or (self._life.isLeft and request.data is not None)
            return 0
        identifier = self._sends.append(request)
        self._proceed()
        return identifier

    def _proceed(self) -> None:
        if self._isProcessing:
            if self._sends.isFull:
                self._pauseProducer()  # at once: it may send in a loop until it is paused
            return
        if self.protocol is not None and self._life.mayPost:
            self._advance()
        if self._life.isDrained:
            self._finish(self._life.drained, self._reasonOfEnd())

    @property
    def _isIdle(self) -> bool:
        return self._sends.isIdle and (self._requester is None or self._requester.isIdle)

    def _advance(self) -> None:
        """Post what can be posted, pause or resume the producer, and send the DREQ when all is done."""
        pair = self._pair
        assert pair is not None
        migration = self._migration
        isDue = migration is not None and migration.isDue
        # Credits may be due without any request.
        if self._sends.waiting or self._credits.usesCredits or isDue:
            problem: str | None = None
            try:
                self._sends.post(pair, self._credits, self.agreed.messageBytes)
                if self._reader is not None:
                    self._reader.proceed(pair, self._sends)
                if migration is not None:
                    migration.proceed(pair)
            except RDMAError as error:
                problem = str(error)
            if problem is not None:  # outside: the traceback refers to the program's buffers
                self._queuePairFailed(problem)
                return
        if self._producer is not None:
            if self._sends.isFull:
                self._pauseProducer()
            elif not self._sends.waiting:
                self._resumeProducer()
        isDone = self._life.isLosing and self._isIdle and self._producer is None
        hasReported = self._reader is None or self._reader.isIdle  # else the peer's message may seem lost
        if isDone and hasReported and self._cm.state == "ESTABLISHED":
            self._cm.disconnect(self._dreqData)

    def _prepare(self, count: int) -> Sequence[ReceiveRequest]:
        """Return the next receives to post, after those that are posted."""
        posted, self._posted = self._posted, self._posted + count
        return () if self._memory is None else self._memory.prepare(self._posted)[posted:]

    def _reuse(self, slot: int) -> None:
        """Post the receive of a message again, and further ones if the peer needs more."""
        self._repost(slot)
        more = self._credits.reposted()
        if more:
            self._postReceives(self._prepare(more))

    def _repost(self, slot: int) -> None:
        """Post the receive of a slot again."""
        if self._memory is not None:
            self._postReceives((self._memory.requests[slot],))

    def _postReceives(self, requests: Sequence[ReceiveRequest]) -> None:
        if self._life.mayPost and self._pair is not None:
            try:
                self._pair.postReceive(requests)
            except RDMAError as error:
                self._queuePairFailed(str(error))

    # The end

    @property
    def _hasEnded(self) -> bool:
        return self._life.isClosed

    def _applicationFailed(self) -> None:
        self._abort(ConnectionLost("the application has raised an exception"))

    def _queuePairFailed(self, what: str) -> None:
        """
        Handle a failure of the queue pair.

        After the local DREQ, with nothing outstanding, it counts as a DREP: the peer has closed its queue
        pair. The DREP itself may be in hand: it is handled after the completions before it.
        """
        if self._life.isLosing and self._cm.state in ("DREQ_SENT", "TIMEWAIT") and self._isIdle:
            self._life.peerClosed()
        else:
            self._finish(self._life.fail, ConnectionLost(what))

    def _abort(self, reason: Exception) -> None:
        """End the connection at once."""
        self._finish(self._life.abort, reason)

    def _finish(self, ends: Callable[[], bool], reason: Exception) -> None:
        """
        Close the queue pair, send a DREQ if that was not done, and report the end to the protocol.

        If an exception prevents this, the connection is aborted, for the same reason.

        @param ends: an input of the lifecycle, which returns whether it ends the connection.
        """
        try:
            self._tryToFinish(ends, reason)
        except Exception:
            _log.failure("{transport} is aborted after an exception", transport=self)
            self._tryToFinish(self._life.abort, reason)

    def _tryToFinish(self, ends: Callable[[], bool], reason: Exception) -> None:
        """
        Close the connection and report its end.

        If a step raises, the lifecycle begins anew, so that C{abortConnection} can still end the connection.
        """
        try:
            if ends():
                release = self.adapter.holdUntilReported()
                try:
                    self._closeAndReport(reason)
                finally:
                    release()
        except BaseException:
            self._life = Life()
            raise

    def _closeAndReport(self, reason: Exception) -> None:
        requests, failure = self._sends.takeAll(), Failure(reason)
        steps: list[Callable[[], object]] = [self._loseMemory, partial(self._close, requests)]
        keepalive, self._keepalive = self._keepalive, None
        if keepalive is not None:
            steps.append(keepalive.stop)
        if self.connection is not None:
            steps.append(self.connection.disconnect)
        steps.append(self.settle)
        # Callbacks of the application run when everything is released: they may begin other connections.
        steps += (partial(request.fail, failure) for request in requests)
        if self._migration is not None:
            steps.append(self._migration.end)
        steps.append(partial(self._report, failure))
        for step in steps:
            try:  # C{failuresHandled} would add 24 calls to each connection
                step()
            except BaseException:
                _log.failure("{transport} continues to close after an exception", transport=self)
                with suppress(BaseException):
                    step()  # again, since the exception may have prevented it; each one has effect once

    def _loseMemory(self) -> None:
        """Call C{memoryLost} of a protocol that has it."""
        prepared = IPreparedProtocol(self.protocol, None)
        if prepared is not None:
            self._call(prepared.memoryLost)

    def _report(self, failure: Failure) -> None:
        """Report the end to the protocol, or to the attempt to connect."""
        if self._stopping is not None:
            self._end(failure)
        else:  # the protocol was not connected
            self.protocol = None
            self.failed(failure)

    def _close(self, requests: Iterable[Request] = ()) -> None:
        """Close the queue pair, then return memory: if it stays open, the peer may still write to that."""
        wasInterrupted = self.completed is _ignoreCompletions
        memory, self._memory = self._memory, None
        self._requester, self.completed = None, _ignoreCompletions
        with ExitStack() as undo:
            undo.callback(self._regions.close)
            undo.callback(self._detach)
            if wasInterrupted:
                return
            if self._pair is not None:
                self._pair.close()
            if memory is not None:
                memory.giveBack()
            for request in requests:
                request.release()
            if self._reader is not None:
                self._reader.end()

    def _detach(self) -> None:
        """Release the closed queue pair's part of the completion queue."""
        if self._shared is not None:
            self.adapter.detach(self._shared, self._pair, self._depth)
            self._pair = self._shared = None
