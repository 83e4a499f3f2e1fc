"""
The transport of a connection by the byte transfer layer.

In addition to the messages of every L{IMessageTransport} it sends tagged messages, delivered in order or as
they arrive, and writes into and reads from memory that the peer has registered.

Tags with a handler have no window: it is called immediately. Messages of other tags have a window in bytes
(see L{txrdma.btl.core.flow}): they wait in the L{inbox<txrdma.btl.inbox>}, and beyond their window in the
peer's L{outbox<txrdma.btl.outbox>}. Messages without a tag use reserved tags, which share a window; they wait
in C{_undelivered} while the protocol is paused.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Sequence
from functools import partial
from operator import index
from struct import Struct
from typing import Any, cast, Final, overload, SupportsIndex, TYPE_CHECKING

from zope.interface import classImplements

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IPushProducer
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.btl.batches import Batch, MOST_AT_ONCE, rows
from txrdma.btl.core.assembly import LONGEST
from txrdma.btl.core.flow import MessageFlow
from txrdma.btl.core.path import FAILURES_ONLY
from txrdma.btl.core.peer import ENDED, OPEN
from txrdma.btl.errors import MessageFailed
from txrdma.btl.inbox import Inbox
from txrdma.btl.lifeline import Done, PeerConnection
from txrdma.btl.memory import ConnectionMemory, GET_FIELDS, GOT_FIELDS
from txrdma.btl.outbox import Outbox
from txrdma.btl.requests import ANSWER, Answerer, answering, CALL, Caller, CANCEL, Function
from txrdma.error import InvalidRequest, PeerViolation
from txrdma.iba.verbs import Buffer
from txrdma.kit.logs import errorText, RateLimitedLogger
from txrdma.messages.address import addressOfTCP, MessageAddress
from txrdma.messages.interfaces import IMessageProtocol, IMessageTransport, IRemoteMemory
from txrdma.messages.memory import checkImmediate, octets, SharedMemory
from txrdma.messages.transport import MessageTransport

if TYPE_CHECKING:
    from txrdma.kit.buffers import AnyBuffer, WritableBuffer

_log = Logger()
_rateLimited = RateLimitedLogger(_log)

LARGEST_TAG: Final = 0xFEFF
"""The largest tag for applications; larger ones are used by the transport."""

FULL: Final = 1 << 20
"""Bytes that are queued or not acknowledged when a producer is paused."""

_MESSAGE: Final = 0xFFFF
_WITH_IMMEDIATE: Final = 0xFFFE
_RECEIVED: Final = 0xFFFD
_GET: Final = 0xFFFC
_GOT: Final = 0xFFFB
_UNLIMITED: Final = 0xFFFA
_CALL: Final = 0xFFF9
_ANSWER: Final = 0xFFF8
_CANCEL: Final = 0xFFF7

_IMMEDIATE: Final = Struct(">I")
_TAG: Final = Struct(">H")
_TAG_TOTAL: Final = Struct(">HQ")

_REPORTS: Final = frozenset((_RECEIVED, _UNLIMITED, _CANCEL))
"""Tags of messages that are of no use to a peer that has closed."""

_HEADS: Final = {_MESSAGE: 0, _WITH_IMMEDIATE: _IMMEDIATE.size, _CALL: CALL.size, _ANSWER: ANSWER.size}
"""Bytes before the application's, for each internal tag that carries some."""

Handler = Callable[[memoryview], None]
"""A function that is called with messages of a tag; the bytes are valid until it returns."""


class BTLMessageTransport(MessageTransport):
    """
    The transport of a connection with a peer.

    @ivar disconnecting: whether the connection is being closed, and no message can be sent.
    @ivar progressed: called after each batch of received messages and acknowledgements.
    """

    kind = "btl"

    # Every message of a burst reads these. An object with more than 30 other attributes has no shared keys in
    # CPython, which costs 0.06 us for each message (btl-messages in benchmarks).
    __slots__ = (
        "_hasClosed",
        "_hasDropped",
        "_module",
        "_outbox",
        "_peer",
        "_producer",
        "_waiting",
        "disconnecting",
    )

    def __init__(self, lifeline: PeerConnection, protocol: IMessageProtocol) -> None:
        self._producer = None
        self.disconnecting = self._hasClosed = self._hasDropped = False
        self.progressed: Callable[[], None] | None = None
        self._lifeline: PeerConnection | None = lifeline
        self._module, self._peer = lifeline.module, lifeline.peer
        self._waiting = self._peer.usual
        self.isClient, self._route = lifeline.isClient, lifeline.route
        self._host, self._remoteAddress = addressOfTCP(lifeline.host), addressOfTCP(lifeline.peerHost)
        self.protocol = protocol
        self._handlers: dict[int, Handler] = {}
        self._unlimited: set[int] = set()  # tags that have or had a handler
        self._inbox = Inbox(self._reportReceived)
        self._outbox = Outbox(self._sendNow, self._peer)
        self._ready: list[Deferred[None]] = []
        self._flow = MessageFlow()
        self._undelivered: deque[tuple[bytes, int | None]] = deque()  # not delivered, with immediate data
        self._isPaused = self._isDelivering = False
        # In order, since a cancellation must not overtake its call, which may be queued.
        sendQueued = partial(self._sendInternal, isUrgent=False)
        self._memory = ConnectionMemory(lifeline, partial(self._sendInternal, _GET), self._sendGot)
        self._isAborted = False
        self._overheadSent = self._overheadReceived = 0  # bytes that are not the application's
        self._reason: Failure | None = None  # of the end, while messages are queued for a paused protocol
        self._caller = Caller(partial(sendQueued, _CALL), partial(sendQueued, _CANCEL), self._resume)
        self._answerer = Answerer(self, partial(sendQueued, _ANSWER))
        self._peer.order.tags.update((_GET, _RECEIVED, _UNLIMITED, _ANSWER))

    def __repr__(self) -> str:
        return f"<BTLMessageTransport to {self._remoteAddress}>"

    @property
    def route(self) -> str:
        return self._route

    def begin(self, reactor: Any) -> None:
        self._reactor = reactor
        self._answerer.functions.update(answering(self.protocol))
        self._begin(reactor)

    # Tagged messages

    def send(self, tag: int, data: AnyBuffer) -> Deferred[None]:
        """
        Send a message with a tag to the peer.

        @param tag: from 0 to L{LARGEST_TAG}.
        @param data: at most 64 MiB, contiguous. Data that is longer than a packet must not change before the
            Deferred fires.
        @return: fires when the peer has the message; fails with L{MessageFailed}. Cancelling it withdraws the
            message, unless a part of it was sent, or it shares a packet with posted ones.
        @raise InvalidRequest: the tag is invalid, or the data is too long or not contiguous.
        @raise TypeError: the tag is not an integer; the other methods raise it, too.
        """
        return self._sendTagged(tag, data, False)

    def sendPriority(self, tag: int, data: AnyBuffer) -> Deferred[None]:
        """Send a message before all queued ones that are not urgent: see L{send}."""
        return self._sendTagged(tag, data, True)

    def sendMany(self, tag: int, messages: Iterable[AnyBuffer]) -> Deferred[None]:
        """
        Send many messages, which takes less processor time than sending each of them.

        @param messages: messages as for L{send}; or an array with several dimensions, of which each row is a
            message.
        @return: fires when the peer has all messages; fails with L{MessageFailed}. Cancelling it withdraws
            nothing.
        @raise InvalidRequest: as for L{send}. No message is sent.
        """
        _checkTag(tag)
        found = rows(messages)
        if not found:
            return succeed(None)
        if max(map(len, found)) > LONGEST:
            raise InvalidRequest(f"a message has at most {LONGEST} bytes")
        batch = Batch()
        for begin in range(0, len(found), MOST_AT_ONCE):
            self._sendSome(tag, found[begin : begin + MOST_AT_ONCE], batch)
        batch(None)  # all are counted
        self._maybePause()
        return batch.outcome

    def _sendSome(self, tag: int, messages: list[Buffer], batch: Batch) -> None:
        lifeline = self._lifeline
        if lifeline is None or self.disconnecting or self._peer.state != OPEN:
            batch.add(1)
            batch(MessageFailed("the connection has ended"))
            return
        if tag in self._outbox.unlimited or self._outbox.takes(tag, messages):
            batch.add(lifeline.sendMany(tag, messages, batch))
            self._module.turnLater()
        else:
            batch.add(len(messages))
            for each in messages:
                self._outbox.send(tag, each, batch, False)

    def _sendTagged(self, tag: int, data: AnyBuffer, isUrgent: bool) -> Deferred[None]:
        data = octets(data)
        length = len(data)
        outcome: Deferred[None] = Deferred(lambda _: self._recall(done, tag, length))
        done = partial(_fire, outcome)
        self.post(tag, data, done, isUrgent)
        return outcome

    def _recall(self, done: Done, tag: int | None = None, length: int = 0) -> None:
        """
        Withdraw a message or a put of which nothing was sent.

        @param tag: the tag of the message, which has this length; None for a put.
        """
        if self._lifeline is None:
            return
        if not self._outbox.recall(done):
            if not self._peer.recall(done):
                return
            if tag is not None:
                self._outbox.withdrawn(tag, length)
        self._resume()
        self._proceed()

    def ready(self) -> Deferred[None]:
        """
        Wait until less than L{FULL} bytes are queued or not acknowledged. Programs that send much wait for
        this before each message, so that it does not accumulate here.

        @return: fires immediately, or when half of that is left; fails with L{MessageFailed} if the
            connection ends. It can be cancelled.
        """
        if self.disconnecting or self._peer.state != OPEN:
            return fail(MessageFailed("the connection has ended"))
        if self._waitingBytes() <= FULL:
            return succeed(None)
        outcome: Deferred[None] = Deferred(self._ready.remove)
        self._ready.append(outcome)
        self._peer.isWatched = True
        return outcome

    def post(self, tag: int, data: AnyBuffer, done: Done | None = None, isUrgent: bool = False) -> None:
        """
        Send a message as L{send} does, without a Deferred.

        @param done: called with None when the peer has the message, else with the error. Without it, a
            message for a connection that has ended is dropped, as bytes written to any transport are.
        @raise InvalidRequest: the tag is invalid, or the data is too long or not contiguous.
        """
        waiting = self._waiting
        if type(data) is not bytes:
            data = octets(data)
        isLimited = tag not in self._outbox.unlimited  # the peer has no handler, as far as is known
        if isLimited or type(tag) is not int:  # 5.0 is in a set with 5
            _checkTag(tag)
        # The fast path of a burst saves the checks below: C{join} itself checks the state and the length.
        if waiting and self._producer is None and not (isLimited or isUrgent or self.disconnecting):
            if self._peer.join(waiting, tag, data, done):
                return  # it shares a packet with a queued message, which is scheduled
        if len(data) > LONGEST:
            raise InvalidRequest(f"a message has at most {LONGEST} bytes")
        if self.disconnecting or self._peer.state != OPEN:
            if done is not None:
                done(MessageFailed("the connection has ended"))
            return
        if isLimited:
            self._outbox.send(tag, data, done, isUrgent)
        elif waiting or not self._module.sendFast(self._peer, tag, data, done):
            self._module.core.send(self._peer, tag, data, done, isUrgent)
            self._module.turnLater()
        if self._producer is not None:
            self._maybePause()

    def _sendNow(self, tag: int, data: Buffer, context: object, isUrgent: bool) -> None:
        if tag > LARGEST_TAG:
            self._overheadSent += _HEADS.get(tag, len(data))
        if isUrgent or self._waiting or not self._module.sendFast(self._peer, tag, data, context):
            self._module.core.send(self._peer, tag, data, context, isUrgent)
            self._module.turnLater()

    def setHandler(self, tag: int, handler: Handler | None, inOrder: bool = False) -> None:
        """
        Set the handler of a tag, which is called with each message when it arrives.

        @param handler: called with each message; None: messages of this tag are dropped from now on.
        @param inOrder: deliver messages in the order in which they were sent, else as they arrive.
        @raise InvalidRequest: the tag is invalid, or L{receive} waits for a message of it.
        """
        _checkTag(tag)
        queued = self._inbox.close(tag)
        if tag not in self._unlimited:
            self._unlimited.add(tag)
            self._sendInternal(_UNLIMITED, _TAG.pack(tag))
        if handler is None:
            self._handlers.pop(tag, None)
            return
        if not self._isAborted:
            self._handlers[tag] = handler
        if inOrder:
            self._peer.order.tags.discard(tag)
        else:
            self._peer.order.tags.add(tag)
        self.deliverMessages([(tag, memoryview(each)) for each in queued])

    @overload
    def receive(self, tag: int) -> Deferred[bytes]: ...

    @overload
    def receive(self, tag: int, into: WritableBuffer) -> Deferred[int]: ...

    def receive(self, tag: int, into: WritableBuffer | None = None) -> Deferred[Any]:
        """
        Receive the next message of a tag, in the order in which they were sent.

        Messages that the program does not receive are queued at both ends, here up to
        L{WINDOW<txrdma.btl.core.flow.WINDOW>} bytes of each tag.

        @param into: a writable buffer for the message, which is in use until the Deferred fires.
        @return: fires with the message, or with its length if it is in C{into}. It fails with
            L{MessageFailed} when the connection has ended and all queued messages were received, and with
            L{InvalidRequest} if the message is longer than C{into}; that message remains the next one. It can
            be cancelled, which loses no message.
        @raise InvalidRequest: the tag is invalid or has a handler, or the buffer is read-only.
        """
        self._checkReceive(tag)
        return self._inbox.receive(tag, into, False)

    def receiveMany(self, tag: int) -> Deferred[list[bytes]]:
        """Receive all messages of a tag that have arrived, and at least one: see L{receive}."""
        self._checkReceive(tag)
        return self._inbox.receive(tag, None, True)

    def giveBack(self, tag: int, messages: Sequence[bytes]) -> None:
        """Queue received messages again, before all others of their tag, for L{txrdma.btl.aio}."""
        if tag in self._unlimited:
            self.deliverMessages([(tag, memoryview(each)) for each in messages])
        else:
            self._inbox.giveBack(tag, messages)

    def _checkReceive(self, tag: int) -> None:
        _checkTag(tag)
        if tag in self._unlimited:
            raise InvalidRequest(f"tag {tag} has a handler")

    # Calls

    def call(self, tag: int, data: AnyBuffer = b"", timeout: float | None = None) -> Deferred[bytes]:
        """
        Call the function of the peer that answers a tag.

        Calls have tags of their own, which do not affect messages. Functions are called in the order of the
        calls.

        @param data: almost 64 MiB, contiguous; it is copied.
        @param timeout: seconds in which the answer must arrive, else the Deferred fails with
            C{twisted.internet.defer.TimeoutError}.
        @return: fires with the answer. It fails with L{CallFailed} if the function has raised an exception or
            there is none, and with L{MessageFailed} if the connection ends before. It can be cancelled, which
            withdraws a call that waits because of the limits; otherwise the function's Deferred is cancelled.
        @raise InvalidRequest: the tag is invalid, or the data is too long or not contiguous.
        """
        _checkTag(tag)
        data = octets(data)
        if timeout is not None and not timeout >= 0:
            raise InvalidRequest(f"a timeout is a number of seconds, not {timeout}")
        if self.disconnecting or self._peer.state != OPEN:
            return fail(MessageFailed("the connection has ended"))
        outcome = self._caller.call(tag, data)
        if timeout is not None:
            outcome.addTimeout(timeout, self._reactor)
        self._maybePause()
        return outcome

    def answer(self, tag: int, function: Function | None) -> None:
        """
        Set the function that answers calls with a tag. Methods of a protocol may be decorated with
        L{answers<txrdma.btl.requests.answers>} instead.

        @param function: called with the data; returns a buffer, None for no bytes, or a Deferred or coroutine
            with one. An exception is logged, and its text is sent to the caller. None removes the function.
        @raise InvalidRequest: the tag is invalid.
        """
        _checkTag(tag)
        if function is None:
            self._answerer.functions.pop(tag, None)
        else:
            self._answerer.functions[tag] = function

    # Memory

    def share(self, memory: int | AnyBuffer) -> SharedMemory:
        """
        Let the peer write into memory, and read from it: see L{IRemoteMemory}.

        @param memory: a number of bytes, or a writable and contiguous buffer.
        @raise InvalidRequest: the memory is empty, or the connection has ended.
        """
        return self._memory.share(memory)

    def write(self, name: Buffer, data: AnyBuffer, offset: SupportsIndex = 0) -> Deferred[None]:
        """
        Write into memory that the peer shares: see L{IRemoteMemory}.

        @return: fires when all bytes are in the peer's memory; fails with L{MessageFailed}, when some of them
            may be there. Nothing is written if it is cancelled before anything is sent.
        """
        outcome: Deferred[None] = Deferred(lambda _: self._recall(done))
        done = partial(_fire, outcome)
        self._memory.write(name, octets(data), offset, self.disconnecting, done)
        self._maybePause()
        return outcome

    def read(self, name: Buffer, length: SupportsIndex, offset: SupportsIndex = 0) -> Deferred[bytes]:
        """
        Read from memory that the peer shares: see L{IRemoteMemory}. The peer's transport writes the answer.

        @return: fires with the bytes; fails with L{MessageFailed}. If cancelled, the answer is ignored.
        @raise InvalidRequest: the range is not within the memory, or longer than 64 MiB.
        """
        return self._memory.read(name, length, offset)

    # IMessageTransport

    def sendMessage(self, data: AnyBuffer, immediate: object = None, done: Done | None = None) -> None:
        """
        Send a message. It is queued while the peer's application handles none, and dropped after the end.

        @param data: at most 64 MiB, contiguous, which must not change while the message is queued.
        @param immediate: 32 bits that are delivered with the message.
        @param done: called with None when the peer has the message, or with an error if it was sent before.
            Without it, a message that is sent when the peer has closed lets the connection end with
            C{ConnectionLost}.
        @raise InvalidRequest: the data is too long or not contiguous.
        """
        checkImmediate(immediate)
        data = octets(data)
        if len(data) > LONGEST - _IMMEDIATE.size:
            raise InvalidRequest(f"a message has at most {LONGEST - _IMMEDIATE.size} bytes")
        if self.disconnecting or self._peer.state != OPEN:
            self._hasDropped = self._hasDropped or (done is None and not self._hasClosed)
            return
        tag = _MESSAGE
        if immediate is not None:
            tag, data = _WITH_IMMEDIATE, _IMMEDIATE.pack(immediate) + bytes(data)
        self._outbox.send(tag, data, done or FAILURES_ONLY, key=_MESSAGE)
        self._maybePause()

    def registerProducer(self, producer: IPushProducer, streaming: bool) -> None:
        self._peer.isWatched = True
        super().registerProducer(producer, streaming)

    def pauseProducing(self) -> None:
        """Stop calling C{messageReceived}; handlers of tags are still called. See L{ended}."""
        self._isPaused = True

    def resumeProducing(self) -> None:
        """Call C{messageReceived} again."""
        self._isPaused = False
        self._deliver()

    def loseConnection(self) -> None:
        """
        Close the connection when everything that was sent has arrived and the producer is unregistered.

        A protocol that is paused when the connection has closed loses the queued messages.
        """
        self.disconnecting = self._hasClosed = True
        self._call(self._proceed)
        if self._reason is not None:
            self._deliver()

    def abortConnection(self) -> None:
        """Close the connection at once, without another call of the protocol or a handler for a message."""
        self.disconnecting = self._hasClosed = self._isAborted = True
        with _log.failuresHandled("{transport} still closes after an exception", transport=self):
            self._handlers.clear()
            self._undelivered.clear()
            self._inbox.drop()
            self._dismissProducer()
        if self._lifeline is not None:
            self._lifeline.abort()
        elif self._reason is not None:
            self._reason = Failure(ConnectionAborted())
            self._deliver()

    @property
    def isIdle(self) -> bool:
        """Whether the peer has received everything that was sent."""
        return self._outbox.isEmpty() and self._peer.isIdle()

    def getHost(self) -> MessageAddress:
        """The local address of the TCP connection."""
        return self._host

    def getPeer(self) -> MessageAddress:
        """The peer's address of the TCP connection."""
        return self._remoteAddress

    # Calls of the lifeline: see L{txrdma.btl.lifeline.LifelineUser}

    def deliverMessages(self, messages: Sequence[tuple[int, memoryview]]) -> None:
        """Dispatch messages by tag. If a handler raises, the others are still called."""
        if len(messages) > 1 and self._queueTogether(messages):
            return
        handlers, rest = self._handlers, iter(messages)
        while True:
            try:
                for tag, data in rest:
                    handler = handlers.get(tag)
                    if handler is not None:
                        handler(data)
                    elif self._isAborted:
                        return
                    elif tag > LARGEST_TAG or tag not in self._unlimited:
                        self._receivedInternal(tag, data)
                    else:
                        _rateLimited.warn(
                            str(tag),
                            "{transport}: dropping messages of tag {tag}, which has no handler",
                            transport=self,
                            tag=tag,
                        )
                return
            except Exception:
                self._logFailure()

    def _queueTogether(self, messages: Sequence[tuple[int, memoryview]]) -> bool:
        """Queue the messages of a packet, if they have one tag without a handler. Return whether they do."""
        tag = messages[0][0]
        if tag in self._unlimited or tag > LARGEST_TAG or self._isAborted:
            return False
        found = [data for each, data in messages if each == tag]
        if len(found) < len(messages):
            return False
        try:
            self._inbox.addMany(tag, found)
        except PeerViolation as error:
            self._violated(error)
        return True

    def eventsReported(self) -> None:
        """Send queued messages, resume the producer, and close the connection if requested."""
        self._resume()
        if self.progressed is not None:
            self.progressed()
        if self.disconnecting:
            self._proceed()

    def _resume(self) -> None:
        """Resume the producer, and fire the Deferreds of L{ready}, if little is queued."""
        if self._isProducerPaused and self._waitingBytes() <= FULL // 2:
            self._resumeProducer()
        if self._ready and self._peer.state < ENDED and self._waitingBytes() <= FULL // 2:
            self._peer.isWatched = self._producer is not None
            ready, self._ready = self._ready, []
            for each in ready:
                each.callback(None)

    def ended(self, reason: Failure) -> None:
        """
        Report the end to the protocol, after all queued messages.

        If the peer has closed, this waits while the protocol is paused, unless the program has closed, too.
        A stream queues its bytes itself, and is not waited for.
        """
        self._lifeline, self.disconnecting = None, True
        failed: list[object] = []
        try:
            self.record.bytesSent = self._peer.sentBytes - self._overheadSent
            self.record.bytesReceived = self._peer.receivedBytes - self._overheadReceived
            self._outbox.drop(_MESSAGE)
            failed = self._outbox.takeAll()
        except Exception:
            self._logFailure()
            if reason.check(ConnectionDone) is not None:
                reason = Failure(ConnectionLost("it is not known whether the peer has received all messages"))
        if failed and reason.check(ConnectionDone) is not None:
            reason = Failure(
                ConnectionLost(f"the peer has closed and did not receive {len(failed)} messages")
            )
        error = MessageFailed("the connection has ended")
        for done in failed:
            if done is not None:
                self._call(cast(Done, done), error)
        ready, self._ready = self._ready, []
        for each in ready:
            each.errback(error)
        ends = partial(self._inbox.end, error), partial(self._caller.end, error), self._answerer.end
        for end in (self._memory.close, *ends):
            self._call(end)
        if self.progressed is not None or reason.check(ConnectionDone) is None:
            self._isPaused = False
        self._reason = reason
        self._call(self._deliver)  # after an exception it is called again, because the connection is aborted

    def isReport(self, tag: int) -> bool:
        """Return whether messages with this tag are of no use to a peer that has closed."""
        return tag in _REPORTS

    # Internal messages

    @property
    def _hasEnded(self) -> bool:
        return self._lifeline is None

    def _receivedInternal(self, tag: int, data: memoryview) -> None:
        """Handle a message with a tag of the transport; an invalid one closes the connection."""
        if tag > LARGEST_TAG:
            self._overheadReceived += _HEADS.get(tag, len(data))
        try:
            self._handleInternal(tag, data)
        except (PeerViolation, ValueError) as error:
            self._violated(error)

    def _violated(self, error: Exception) -> None:
        _rateLimited.warn(
            ("violated", self._remoteAddress.host),
            "{transport}: the peer violated the protocol, closing: {error}",
            transport=self,
            error=errorText(error),
        )
        self.abortConnection()

    def _handleInternal(self, tag: int, data: memoryview) -> None:
        if tag == _MESSAGE or tag == _WITH_IMMEDIATE:
            # Raises PeerViolation beyond the window, so C{_undelivered} is bounded.
            self._flow.receive(len(data))
            whole = bytes(data)
            if tag == _MESSAGE:
                self._undelivered.append((whole, None))
            else:
                self._undelivered.append((whole[4:], *_IMMEDIATE.unpack_from(_enough(data, 4))))
            self._deliver()
        elif tag <= LARGEST_TAG:
            self._inbox.add(tag, data)
        elif tag == _CALL:
            self._answerer.asked(_enough(data, CALL.size))
        elif tag == _ANSWER:
            self._caller.received(_enough(data, ANSWER.size))
        elif tag == _CANCEL:
            self._answerer.cancelled(*CANCEL.unpack(_exactly(data, CANCEL.size)))
        elif tag == _RECEIVED:
            number, total = _TAG_TOTAL.unpack(_exactly(data, _TAG_TOTAL.size))
            # It releases queued messages, which a peer that has closed does not accept.
            if self._peer.state == OPEN:
                self._outbox.received(number, total)
        elif tag == _UNLIMITED:
            (number,) = _TAG.unpack(_exactly(data, _TAG.size))
            if number > LARGEST_TAG:
                raise PeerViolation(f"the peer has set a handler of the internal tag {number:#x}")
            if self._peer.state == OPEN:
                self._outbox.unlimit(number)
        elif tag == _GET:
            self._memory.answer(_exactly(data, GET_FIELDS.size))
        elif tag == _GOT:
            self._memory.answered(_exactly(data, GOT_FIELDS.size))
        else:
            raise PeerViolation(f"a message has the internal tag {tag:#x}, which is not defined")

    def _sendInternal(
        self, tag: int, data: Buffer, done: Done | None = None, *, isUrgent: bool = True
    ) -> None:
        """Send a message with a tag of the transport, unless the connection is ending."""
        if self._lifeline is not None and self._peer.state == OPEN:
            self._sendNow(tag, data, done, isUrgent)

    def _reportReceived(self, tag: int, total: int) -> None:
        self._sendInternal(_RECEIVED, _TAG_TOTAL.pack(tag, total))

    def _sendGot(self, fields: bytes, isInOrder: bool) -> None:
        """Answer a read of the peer: after its bytes, sent before, or before all other messages."""
        self._sendInternal(_GOT, fields, isUrgent=not isInOrder)

    def _deliver(self) -> None:
        """Pass messages without a tag to the protocol unless it is paused, and after the last one the end."""
        undelivered = self._undelivered
        if self._isDelivering:
            return
        self._isDelivering = True
        try:
            while undelivered and not self._isPaused:
                data, immediate = undelivered.popleft()
                counted = len(data) + (0 if immediate is None else _IMMEDIATE.size)
                try:
                    self.protocol.messageReceived(data, immediate)
                except Exception:
                    self._logFailure()
                self._flow.handle(counted)
        finally:
            self._isDelivering = False
        if self._reason is not None and self._isPaused and self._hasClosed:
            undelivered.clear()  # the program has closed, and may never resume
            self._isPaused = False
        if self._reason is not None and not (undelivered or self._isPaused):
            reason, self._reason = self._reason, None
            if self._hasDropped and reason.check(ConnectionDone) is not None:
                reason = Failure(ConnectionLost("the peer has closed and did not receive everything"))
            self._end(reason)
            return
        total = self._flow.takeReport()
        if total is not None:
            self._reportReceived(_MESSAGE, total)

    def _maybePause(self) -> None:
        if self._producer is not None and not self._isProducerPaused and self._waitingBytes() > FULL:
            self._pauseProducer()

    def _waitingBytes(self) -> int:
        return self._outbox.bytes + self._caller.bytes + self._peer.queuedBytes

    def _proceed(self) -> None:
        """Close, if this was requested, the producer is unregistered and no message waits for the window."""
        lifeline = self._lifeline
        if self.disconnecting and lifeline is not None and self._producer is None:
            if self._outbox.isEmpty():
                lifeline.close()


# Not a decorator, with which mypyc would not compile the class.
classImplements(BTLMessageTransport, IMessageTransport, IRemoteMemory)


def _checkTag(tag: int) -> None:
    if not 0 <= index(tag) <= LARGEST_TAG:
        raise InvalidRequest(f"a tag is a number from 0 to {LARGEST_TAG:#x}, not {tag}")


def _exactly(data: memoryview, length: int) -> memoryview:
    if len(data) != length:
        raise PeerViolation(f"an internal message has {len(data)} bytes, not {length}")
    return data


def _enough(data: memoryview, length: int) -> memoryview:
    if len(data) < length:
        raise PeerViolation(f"an internal message has {len(data)} bytes, fewer than {length}")
    return data


def _fire(outcome: Deferred[None], error: Exception | None) -> None:
    if outcome.called:
        return  # cancelled
    if error is None:
        outcome.callback(None)
    else:
        outcome.errback(error)
