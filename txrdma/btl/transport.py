"""
The transport of a connection by the byte transfer layer, as a protocol of messages sees it.

Beside messages in order, which every L{IMessageTransport} has, it sends messages by tag, delivered as they
arrive or in order, and writes into and reads from memory that the peer has registered.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence
from functools import partial
from struct import Struct
from typing import cast, Final

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IAddress
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.btl._assembly import LONGEST
from txrdma.btl._flow import Flow, Violation
from txrdma.btl._peer import OPEN
from txrdma.btl._window import UNHEARD
from txrdma.btl.errors import MessageFailed
from txrdma.btl.lifeline import Done, PeerConnection
from txrdma.error import InvalidRequest
from txrdma.iba.verbs import Buffer
from txrdma.kit.logs import RateLimitedLogger
from txrdma.messages.interfaces import IMessageProtocol, IMessageTransport
from txrdma.messages.transport import MessageTransport

_log = Logger()
_seldom = RateLimitedLogger(_log)

LARGEST_TAG: Final = 0xFEFF
"""The largest tag of a program; those above are the transport's own."""

FULL: Final = 1 << 20
"""Bytes that wait to be sent, or have not arrived, when a producer is paused."""

MOST_GETS: Final = 256
"""Reads that are answered at a time: a peer's beyond are refused, and those of this end wait."""

_MESSAGE: Final = 0xFFFF
_WITH_IMMEDIATE: Final = 0xFFFE
_TAKEN: Final = 0xFFFD
_GET: Final = 0xFFFC
_GOT: Final = 0xFFFB

_TOTAL: Final = Struct(">Q")
_IMMEDIATE: Final = Struct(">I")
_GET_FIELDS: Final = Struct(">IIQII")
_GOT_FIELDS: Final = Struct(">IB")

Handler = Callable[[memoryview], None]
"""A function that takes messages of a tag; the bytes are valid until it returns."""


@implementer(IMessageTransport)
class BTLMessageTransport(MessageTransport):
    """
    A connection with a peer.

    @ivar disconnecting: whether it ends, and no message can be sent any more.
    @ivar progressed: called when something has come or arrived, at the end of a turn.
    """

    def __init__(self, lifeline: PeerConnection, protocol: IMessageProtocol) -> None:
        self.disconnecting = False
        self.progressed: Callable[[], None] | None = None
        self._lifeline: PeerConnection | None = lifeline
        self._core, self._send, self._soon = lifeline.module.core, lifeline.send, lifeline.soon
        self._sendAlone, self._waiting, self._join = lifeline.sendAlone, lifeline.waiting, lifeline.join
        self._peer = lifeline.peer
        self._host, self._its = cast(IAddress, lifeline.host), cast(IAddress, lifeline.peerHost)
        self.protocol = protocol
        self._handlers: dict[int, Handler] = {}
        self._flow = Flow()
        self._unsent: deque[tuple[int, Buffer, object]] = deque()  # by tag; they wait for the peer's program
        self._unsentBytes = 0
        self._untaken: deque[tuple[bytes, int | None]] = deque()  # they wait for this end's
        self._isPaused = self._isDelivering = False
        self._regions: set[int] = set()
        self._gets: dict[int, tuple[Deferred[bytes], int, bytearray]] = {}
        self._lastGet = self._answering = 0
        self._asked: set[int] = set()  # numbers of gets that the peer has not answered
        self._unasked: deque[tuple[int, bytes]] = deque()  # gets that wait until it has answered others
        self._isAborted = False
        self._peer.order.tags.update((_MESSAGE, _WITH_IMMEDIATE))

    def __repr__(self) -> str:
        return f"<BTLMessageTransport to {self._its}>"

    def begin(self, reactor: object) -> None:
        """Connect the protocol."""
        self._begin(reactor)
        self._peer.order.isSettled = True  # the protocol has chosen its tags

    # Messages by tag

    def send(self, tag: int, data: Buffer) -> Deferred[None]:
        """
        Send a message to the peer's handler of a tag.

        @param tag: from 0 to L{LARGEST_TAG}.
        @param data: contiguous; at most 64 MiB, which must not change before the outcome if they are more
            than a packet. Of an array all bytes are sent.
        @return: fires when the peer has the message; fails with L{MessageFailed}. It can be cancelled, which
            keeps the message from nobody.
        @raise InvalidRequest: there is no such tag, too much data, or a buffer that is not contiguous.
        """
        outcome: Deferred[None] = Deferred()
        self.post(tag, data, partial(_tell, outcome))
        return outcome

    def sendPriority(self, tag: int, data: Buffer) -> Deferred[None]:
        """Send a message before all that wait, but for other urgent ones: see L{send}."""
        outcome: Deferred[None] = Deferred()
        self.post(tag, data, partial(_tell, outcome), True)
        return outcome

    def post(self, tag: int, data: Buffer, done: Done | None = None, isUrgent: bool = False) -> None:
        """
        Send a message as L{send} does, without a Deferred.

        @param done: called with None when the peer has the message, else with the error.
        @raise InvalidRequest: there is no such tag, too much data, or a buffer that is not contiguous.
        """
        waiting = self._waiting
        if not 0 <= tag <= LARGEST_TAG:
            raise InvalidRequest(f"a tag is a number from 0 to {LARGEST_TAG:#x}, not {tag}")
        if type(data) is not bytes:
            data = _octets(data)
        if waiting and not (isUrgent or self.disconnecting or self._producer):
            if self._join(waiting, tag, data, done):
                return  # with the one that waits, which has asked for its turn
        if len(data) > LONGEST:
            raise InvalidRequest(f"a message has {LONGEST} bytes at most")
        if self.disconnecting or self._peer.state != OPEN:
            if done is not None:
                done(MessageFailed("the connection has ended"))
            return
        if self._producer is None:
            if waiting or not self._sendAlone(tag, data, done):
                self._send(tag, data, done, isUrgent)
                self._soon()
            return
        self._send(tag, data, done or _arrived, isUrgent)
        self._soon()
        self._maybePause()

    def receive(self, tag: int, handler: Handler | None, inOrder: bool = False) -> None:
        """
        Have messages of a tag taken by a handler.

        @param handler: called with each of them, when it arrives; None is to drop them. What comes while
            there is none is dropped: those that C{connectionMade} names miss nothing.
        @param inOrder: have them come as they were sent; else as they arrive.
        @raise InvalidRequest: there is no such tag.
        """
        if not 0 <= tag <= LARGEST_TAG:
            raise InvalidRequest(f"a tag is a number from 0 to {LARGEST_TAG:#x}, not {tag}")
        if handler is None:
            self._handlers.pop(tag, None)
            return
        if not self._isAborted:
            self._handlers[tag] = handler
        if inOrder:
            self._peer.order.tags.add(tag)

    # Memory

    def registerMemory(self, memory: bytearray | memoryview) -> int:
        """
        Let the peer write into memory, and read from it, until the end of the connection.

        @param memory: writable and contiguous; the peer addresses its bytes, whatever its items are.
        @return: the number of the region, which the peer has to be told.
        @raise InvalidRequest: the memory is read-only, not contiguous, or released.
        """
        region = self._core.regions.register(memoryview(_octets(memory)), self._peer)
        self._regions.add(region)
        return region

    def deregisterMemory(self, region: int) -> None:
        """Let the peer reach this memory no more. Twice is fine."""
        if region in self._regions:
            self._regions.discard(region)
            self._core.regions.deregister(region)

    def put(self, region: int, offset: int, data: Buffer) -> Deferred[None]:
        """
        Write into memory that the peer has registered.

        @param data: must not change before the outcome.
        @return: fires when all is in the peer's memory; fails with L{MessageFailed}: parts may be there.
        @raise InvalidRequest: a number is too large.
        """
        outcome: Deferred[None] = Deferred()
        done = partial(_tell, outcome)
        data = _octets(data)
        lifeline = self._lifeline
        if lifeline is None or self.disconnecting or self._peer.state != OPEN:
            done(MessageFailed("the connection has ended"))
        else:
            lifeline.put(region, offset, data, done)
            self._maybePause()
        return outcome

    def get(self, region: int, offset: int, length: int) -> Deferred[bytes]:
        """
        Read from memory that the peer has registered, which is put here by the peer.

        @return: fires with the bytes; fails with L{MessageFailed}. To cancel it is to ignore them.
        @raise InvalidRequest: a number is too large.
        """
        if not (0 <= region < 1 << 32 and 0 <= offset < 1 << 63 and 0 <= length <= LONGEST):
            raise InvalidRequest(f"a region has 32 bits, an offset 63, and there are {LONGEST} bytes at most")
        number = self._lastGet = (self._lastGet + 1) & 0xFFFFFFFF
        memory = bytearray(length)
        destination = self.registerMemory(memory)
        outcome: Deferred[bytes] = Deferred(lambda _: self._ignoreGet(number))
        self._gets[number] = outcome, destination, memory
        self._unasked.append((number, _GET_FIELDS.pack(number, region, offset, length, destination)))
        self._askOn()
        if self._lifeline is None or self._peer.state != OPEN:
            self._failGet(number, "the connection has ended")
        return outcome

    def _askOn(self) -> None:
        """Ask for what waits, as far as the peer answers so many reads at a time."""
        while self._unasked and len(self._asked) < MOST_GETS:
            number, fields = self._unasked.popleft()
            if number in self._gets:
                self._asked.add(number)
                self._say(_GET, fields)

    def _ignoreGet(self, number: int) -> None:
        self._gotten(number)

    def _gotten(self, number: int) -> tuple[Deferred[bytes], bytearray] | None:
        found = self._gets.pop(number, None)
        if found is None:
            return None
        self.deregisterMemory(found[1])
        return found[0], found[2]

    def _failGet(self, number: int, why: str) -> None:
        found = self._gotten(number)
        if found is not None:
            found[0].errback(MessageFailed(why))

    def _answer(self, data: Buffer) -> None:
        """Put memory that the peer wants to read into its own."""
        number, region, offset, length, destination = _GET_FIELDS.unpack(data)
        memory = self._core.regions.find(region, self._peer)
        lifeline = self._lifeline
        if memory is None or offset + length > len(memory) or self._answering >= MOST_GETS or not lifeline:
            self._say(_GOT, _GOT_FIELDS.pack(number, 1))
            return
        self._answering += 1

        def done(error: Exception | None) -> None:
            self._answering -= 1
            self._say(_GOT, _GOT_FIELDS.pack(number, 0 if error is None else 1))

        if length and self._peer.state == OPEN:
            lifeline.put(destination, 0, memory[offset : offset + length], done)
        else:
            done(None)

    def _answered(self, data: Buffer) -> None:
        number, status = _GOT_FIELDS.unpack(data)
        self._asked.discard(number)
        self._askOn()
        if status:
            self._failGet(number, "the peer has no such memory, or too much to do")
            return
        found = self._gotten(number)
        if found is not None:
            found[0].callback(bytes(found[1]))

    # IMessageTransport

    def sendMessage(self, data: Buffer, immediate: int | None = None, done: Done | None = None) -> None:
        """
        Send a message; it waits in order while the peer's program takes none. After the end it is dropped.

        @param data: at most 64 MiB, which must not change while they wait.
        @param immediate: 32 bits that come with it.
        @param done: called with None when the peer has the message, or with an error when it was sent.
        @raise InvalidRequest: there is too much data, or a buffer that is not contiguous.
        """
        data = _octets(data)
        if len(data) > LONGEST - _IMMEDIATE.size:
            raise InvalidRequest(f"a message has {LONGEST - _IMMEDIATE.size} bytes at most")
        if self._lifeline is None or self.disconnecting:
            return
        tag = _MESSAGE
        if immediate is not None:
            tag, data = _WITH_IMMEDIATE, _IMMEDIATE.pack(immediate) + bytes(data)
        self._unsent.append((tag, data, done or (UNHEARD if self._producer is None else _arrived)))
        self._unsentBytes += len(data)
        self._sendOn()
        self._maybePause()

    def pauseProducing(self) -> None:
        """Take no messages in order from now on; the peer sends some more, and waits then."""
        self._isPaused = True

    def resumeProducing(self) -> None:
        """Take messages in order again from now on."""
        self._isPaused = False
        self._deliver()

    def loseConnection(self) -> None:
        """End the connection when all that was sent has arrived, and a producer is done."""
        self.disconnecting = True
        self._proceed()

    def abortConnection(self) -> None:
        """End the connection now, whatever waits; the protocol and handlers get no message any more."""
        self.disconnecting = self._isAborted = True
        self._handlers.clear()
        self._untaken.clear()
        self._dismissProducer()
        if self._lifeline is not None:
            self._lifeline.abort()

    def getHost(self) -> IAddress:
        """The address of this end, by which the two have found each other."""
        return self._host

    def getPeer(self) -> IAddress:
        """The address of the peer, by which the two have found each other."""
        return self._its

    # What the lifeline tells: see L{txrdma.btl.lifeline.User}

    def messagesCame(self, messages: Sequence[tuple[int, memoryview]]) -> None:
        """Take messages, by their tags; one whose handler fails keeps the others from nobody."""
        handlers, rest = self._handlers, iter(messages)
        while True:
            try:
                for tag, data in rest:
                    handler = handlers.get(tag)
                    if handler is not None:
                        handler(data)
                    elif self._isAborted:
                        return
                    elif tag > LARGEST_TAG:
                        self._own(tag, data)
                    else:
                        _seldom.warn(
                            str(tag),
                            "{transport}: nobody takes messages of tag {tag}",
                            transport=self,
                            tag=tag,
                        )
                return
            except Exception:
                self._logFailure()

    def turnEnded(self) -> None:
        """Go on with what waited for room, or for an outcome."""
        if self._unsent:
            self._sendOn()
        if self._isProducerPaused and self._waitingBytes() <= FULL // 2:
            self._resumeProducer()
        if self.progressed is not None:
            self.progressed()
        self._proceed()

    def ended(self, reason: Failure) -> None:
        """Tell the protocol of the end."""
        self._lifeline, self.disconnecting = None, True
        self._unsent.clear()
        for region in self._regions:
            self._core.regions.deregister(region)
        self._regions.clear()
        for number in list(self._gets):
            self._failGet(number, "the connection has ended")
        self._isPaused = False
        self._deliver()  # what came before the end comes before it here, too
        self._end(reason)

    # Inside

    @property
    def _hasEnded(self) -> bool:
        return self._lifeline is None

    def _own(self, tag: int, data: Buffer) -> None:
        """Take a message of the transport's own; one that breaks the rules ends the connection."""
        try:
            self._take(tag, data)
        except (Violation, ValueError) as error:
            _log.warn("{transport} ends, as the peer breaks the rules: {error}", transport=self, error=error)
            self.abortConnection()

    def _take(self, tag: int, data: Buffer) -> None:
        if tag == _MESSAGE or tag == _WITH_IMMEDIATE:
            self._flow.receive(len(data))
            whole = bytes(data)
            if tag == _MESSAGE:
                self._untaken.append((whole, None))
            else:
                self._untaken.append((whole[4:], *_IMMEDIATE.unpack_from(_enough(whole, 4))))
            self._deliver()
        elif tag == _TAKEN:
            self._flow.hear(*_TOTAL.unpack(_exactly(data, _TOTAL.size)))
            self._sendOn()
        elif tag == _GET:
            self._answer(_exactly(data, _GET_FIELDS.size))
        elif tag == _GOT:
            self._answered(_exactly(data, _GOT_FIELDS.size))
        else:
            raise Violation(f"tag {tag:#x}")

    def _say(self, tag: int, data: bytes) -> None:
        if self._lifeline is not None and self._peer.state == OPEN:
            self._send(tag, data, None, True)
            self._soon()

    def _sendOn(self) -> None:
        """Send messages for which the peer has room."""
        unsent, flow, peer = self._unsent, self._flow, self._peer
        if self._lifeline is None or peer.state != OPEN:
            return
        isLeft = False
        while unsent and flow.maySend(len(unsent[0][1])):
            tag, data, outcome = unsent.popleft()
            self._unsentBytes -= len(data)
            flow.send(len(data))
            if self._waiting or not self._sendAlone(tag, data, outcome):
                self._send(tag, data, outcome)
                isLeft = True
        if isLeft:
            self._soon()

    def _deliver(self) -> None:
        untaken = self._untaken
        if self._isDelivering:
            return
        self._isDelivering = True
        try:
            while untaken and not self._isPaused:
                data, immediate = untaken.popleft()
                counted = len(data) + (0 if immediate is None else _IMMEDIATE.size)
                try:
                    self.protocol.messageReceived(data, immediate)
                except Exception:
                    self._logFailure()
                self._flow.take(counted)
        finally:
            self._isDelivering = False
        total = self._flow.tell()
        if total is not None:
            self._say(_TAKEN, _TOTAL.pack(total))

    def _maybePause(self) -> None:
        if self._producer is not None and not self._isProducerPaused and self._waitingBytes() > FULL:
            self._pauseProducer()

    def _waitingBytes(self) -> int:
        return self._unsentBytes + self._peer.queuedBytes

    def _proceed(self) -> None:
        lifeline = self._lifeline
        if self.disconnecting and lifeline is not None and not self._unsent and self._producer is None:
            lifeline.close()


def _octets(data: Buffer) -> Buffer:
    """
    View a buffer as bytes, whatever its items are: the length of an array counts these.

    @raise InvalidRequest: the buffer is not contiguous, or released.
    """
    if type(data) is bytes or type(data) is bytearray:
        return data
    try:
        view = memoryview(data)
        return view.cast("B") if view.nbytes else memoryview(bytearray())
    except (TypeError, ValueError) as error:
        raise InvalidRequest(f"a buffer cannot be used: {error}") from error


def _exactly(data: Buffer, length: int) -> Buffer:
    if len(data) != length:
        raise Violation(f"{len(data)} bytes, not {length}")
    return data


def _enough(data: Buffer, length: int) -> Buffer:
    if len(data) < length:
        raise Violation(f"{len(data)} bytes, not {length}")
    return data


def _arrived(error: Exception | None) -> None:
    """Hear that a message has arrived, so that a turn ends in which a producer may be resumed."""


def _tell(outcome: Deferred[None], error: Exception | None) -> None:
    if outcome.called:
        return  # it was cancelled
    if error is None:
        outcome.callback(None)
    else:
        outcome.errback(error)
