"""
One end of a stream of bytes over SMC-R: what its link asks of it, and how it ends.

Follows RFC 7609, 4.7 (data flow) and 4.8 (ending). What is written waits until the link flushes: once for
each batch of completions, or once for a turn of the reactor. What arrives is given out as C{bytes}, from
the link's batch.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import lru_cache
from typing import Any, cast, Final, TYPE_CHECKING

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import (
    IHalfCloseableProtocol,
    ILoggingContext,
    IProtocol,
    IPullProducer,
    IPushProducer,
)
from twisted.internet.tcp import Connection
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.log import ILogContext

from txrdma.error import WireError
from txrdma.iba.types import RKey
from txrdma.iba.verbs import Operation, SendRequest
from txrdma.smc import status
from txrdma.smc._closing import Closing, Ended, Ending, ReadEnded, Released, Send
from txrdma.smc._linkgroup import Role
from txrdma.smc._ring import DATA, Ring, SPACE, UPDATE
from txrdma.smc.cdc import StateFlags
from txrdma.smc.memory import Element
from txrdma.smc.posting import SIGNAL_EVERY

if TYPE_CHECKING:
    from txrdma.smc.clc import Accept, Confirm
    from txrdma.smc.link import Link

    Address = IPv4Address | IPv6Address

_log = Logger()

DELIVERY: Final = 256 * 1024
"""The most bytes for one C{dataReceived}."""

_EARLY: Final = 64
"""Messages that may come before the handshake is over here."""

_PULLS: Final = 16
"""How often a pull producer is asked before what it gave is posted."""

_CLOSED: Final = int(StateFlags.CLOSED)
_NEWS: Final = SPACE | UPDATE
_SIGNAL_MASK: Final = SIGNAL_EVERY - 1


@lru_cache(256)
def _contextFor(prefix: str) -> dict[object, object]:
    """The logging context of protocols with this prefix."""
    return {ILogContext: {"isError": 0, "system": prefix}}


class Stream:
    """
    One end of one connection, without what its protocol may call.

    Slots and no timers: there may be thousands of these, mostly idle.

    @ivar token: our alert token: what the peer calls this connection.
    @ivar ring: the cursors.
    @ivar pending: what has been written and not yet posted, oldest first.
    @ivar backlog: its length.
    @ivar isDirty: it is in the link's list of those that have something to do.
    """

    __slots__ = (
        "TLS",
        "__weakref__",
        "_address",
        "_buffer",
        "_closing",
        "_context",
        "_early",
        "_element",
        "_failure",
        "_flags",
        "_hasStoppedWriting",
        "_host",
        "_isAborting",
        "_isHasty",
        "_isOpen",
        "_isPaused",
        "_isReading",
        "_mask",
        "_message",
        "_mustSend",
        "_peer",
        "_peerState",
        "_rkey",
        "_tcp",
        "_view",
        "_write",
        "_writeEnding",
        "backlog",
        "bufferSize",
        "connected",
        "disconnected",
        "disconnecting",
        "isDirty",
        "link",
        "messagesReceived",
        "messagesSent",
        "pending",
        "producer",
        "producerPaused",
        "protocol",
        "ring",
        "role",
        "streamingProducer",
        "token",
        "writes",
    )

    protocol: IProtocol | None
    producer: IPushProducer | IPullProducer | None

    def __init__(self, link: Link, element: Element, tcp: Connection, role: Role) -> None:
        self.link = link
        self.role = role
        self._view = element.view
        self.ring = Ring(self._view.nbytes, self._view.nbytes, 0)  # until the peer's end is known
        self.protocol = None
        self.pending: list[bytes | memoryview] = []
        self.backlog = 0
        self.bufferSize = 65536
        self.connected = self.disconnected = self.disconnecting = 0
        self.producer = None
        self.producerPaused = self.streamingProducer = False
        self.isDirty = False
        self.writes = self.messagesSent = self.messagesReceived = 0
        self.TLS = False
        self._closing = Closing()
        self._tcp: Connection | None = tcp
        self._host = cast("Address", tcp.getHost())
        self._peer = cast("Address", tcp.getPeer())
        self._element: Element | None = element
        self._address = 0
        self._rkey = RKey(0)
        self._early: list[tuple[int, ...]] | None = []
        self._failure: Failure | None = None
        self._isOpen = self._isPaused = self._isReading = self._isAborting = self._isHasty = False
        self._mustSend = self._writeEnding = self._hasStoppedWriting = False
        self._flags = self._peerState = 0
        self._context: dict[object, object] = {}
        self.token = link.add(self)

    def __repr__(self) -> str:
        return f"<SMCTransport {self.role.value} {self._closing.state.name} to {status.describe(self._peer)}>"

    # Making it

    def attach(self, answer: Accept | Confirm) -> None:
        """
        The peer's end is known.

        @raise Refused: it names a buffer that we never heard of.
        """
        self._address = self.link.target(answer)
        self._rkey = answer.rkey
        self.ring = Ring(self._view.nbytes, answer.size, answer.token)
        self._mask = self._view.nbytes - 1
        self._message, self._buffer = self.link.poster.newMessage()
        # Posted when pending goes out as it stands; its list is this one's, and never another.
        self._write = SendRequest(
            0, Operation.RDMA_WRITE, inline=self.pending, signaled=False, rkey=self._rkey
        )

    def start(self, protocol: IProtocol) -> None:
        """Begin to serve a protocol."""
        self.protocol = protocol
        self.connected = 1
        self._isOpen = True
        self._closing.established()
        self._context = _contextFor(self.logPrefix())
        status.register(cast(Any, self))
        try:
            protocol.makeConnection(cast(Any, self))
        except BaseException:
            self._blame("makeConnection")
        early, self._early = self._early, None
        self.link.begin(self)
        for message in early or ():
            self.received(message)

    def discard(self) -> None:
        """It won't come to be."""
        self._tcp = self._early = None
        self.disconnected = 1
        # A client's buffer is not known to anybody yet; a server's may be, and be written to.
        self._released(quiet=self.role is Role.CLIENT)

    # What the link brings: always in its turn, never inside a call of the application

    def receivedEarly(self, message: tuple[int, ...]) -> None:
        """A CDC message; the peer is quicker here than over TCP."""
        early = self._early
        if early is not None:
            if len(early) == _EARLY:
                early.pop()  # the next one says the same, and more
            early.append(message)

    def received(self, message: tuple[int, ...]) -> None:
        """A CDC message."""
        ring = self.ring
        try:
            what = ring.received(message)
        except WireError as error:
            self.violated(str(error))
            return
        self.messagesReceived += 1
        if what & DATA and not self._isPaused:
            # All that is here but loops and exceptions is _deliver's: this is what mostly happens, once.
            consumed = ring.consumed
            length = ring.arrived - consumed
            offset = consumed & self._mask
            if self.disconnecting or length > DELIVERY or offset + length > self._mask:
                self._deliver()
            else:
                data = bytes(self._view[offset : offset + length])
                if ring.consume(length):
                    self._update()
                contexts = self.link.contexts
                contexts.append(self._context)
                try:
                    self.protocol.dataReceived(data)  # type: ignore[union-attr]  # not disconnecting
                except BaseException:
                    self._blame("dataReceived")
                finally:
                    contexts.pop()
        if what & _NEWS and (what & UPDATE or self.backlog):
            self._mustSend |= bool(what & UPDATE)
            if not self.isDirty:
                self.isDirty = True
                self.link.dirty.append(self)
        if message[9] != self._peerState:
            self._peerState = message[9]
            # To who has paused, the end is as unread as data would be.
            self._closing.received(message[9], self._isPaused or ring.arrived - ring.consumed)
            self._happened()

    def _deliver(self) -> None:
        """Give out what is in our buffer."""
        ring = self.ring
        if self._isReading:
            return  # the loop that runs already will see it
        view = self._view
        size = ring.size
        contexts = self.link.contexts
        contexts.append(self._context)
        self._isReading = True
        try:
            while not self._isPaused:
                consumed = ring.consumed
                length = ring.arrived - consumed
                if not length:
                    break
                protocol = self.protocol
                if self.disconnecting or protocol is None:  # nobody wants it, but the peer needs the room
                    if ring.consume(length):
                        self._update()
                    break
                offset = consumed & (size - 1)
                if length > DELIVERY:
                    length = DELIVERY
                if length > size - offset:
                    length = size - offset
                data = bytes(view[offset : offset + length])
                if ring.consume(length):
                    self._update()
                protocol.dataReceived(data)
        except BaseException:
            self._blame("dataReceived")
        finally:
            self._isReading = False
            contexts.pop()
        if self._closing.readEnding and ring.arrived == ring.consumed and not self._isPaused:
            self._closing.drained()
            self._happened()

    def _update(self) -> None:
        """The peer should hear what we consumed, or how we end, with data or without."""
        self._mustSend = True
        if not self.isDirty:
            self._makeDirty()

    def resumed(self) -> None:
        """The application wants data again."""
        if not self._isPaused:
            self._deliver()

    def violated(self, what: str) -> None:
        """The peer does what it must not: this connection ends, the others of the link go on."""
        _log.warn("{transport!r} ends: {what}", transport=self, what=what)
        self._failure = self._failure or Failure(ConnectionLost(what))
        self._closing.fail()
        self._happened()

    def tcpLost(self) -> None:
        """The TCP connection is gone: the peer gave up, or is dead."""
        self._tcp = None
        if not self._closing.over:
            self._failure = self._failure or Failure(ConnectionLost())
            self.aborted()

    def linkLost(self) -> None:
        """The link is gone."""
        tcp, self._tcp = self._tcp, None
        if tcp is not None and self._early is None:
            tcp.abortConnection()  # a peer that fell back must not take it for an orderly end
        # Otherwise a handshake goes on there, which ends in plain TCP.
        self._closing.groupDied()
        self._happened()

    def remoteBuffersGone(self, rkeys: Sequence[int]) -> None:
        """The peer takes back buffers of its own."""
        if self._rkey in rkeys and not self.disconnected:
            self.violated("its buffer is taken back")

    def aborted(self) -> None:
        """The application wanted it so, or has failed."""
        self._closing.abort()
        self._happened()

    def expired(self) -> None:
        """The peer did not do its part of the end."""
        self._closing.expired()
        self._happened()

    # What goes out, when the link asks

    def fill(self, requests: list[SendRequest]) -> None:
        """Append what has to be posted now."""
        ring = self.ring
        backlog = self.backlog
        mustSend = self._mustSend
        poster = self.link.poster
        if backlog:
            if self._peerState & _CLOSED:
                self._peerIsGone()
                return
            most = backlog
            if poster.isStaged:
                most = poster.most(backlog)
                if most < backlog:
                    self.link.stall(self)
            offset, first, second = ring.take(backlog, most)
            if first:
                mustSend = True
                self.writes += 1
                if first == backlog and not poster.isStaged:
                    self.backlog = 0
                    write = self._write
                    write.remoteAddress = self._address + offset
                    requests.append(write)
                else:
                    self._fillPieces(requests, offset, first, second)
        if self._writeEnding:
            mustSend |= self._finishWriting()
            self.link.flushed.append(self)
        elif self.producer is not None:
            self.link.flushed.append(self)
        if mustSend:
            self._mustSend = False
            self.messagesSent += 1
            message = self._message
            if poster.isStaged:
                poster.number(message)
            else:
                poster.sent = sent = poster.sent + 1
                message.identifier = sent
                message.signaled = not sent & _SIGNAL_MASK
            ring.pack(self._buffer, 0, self._flags)
            requests.append(message)

    def _fillPieces(self, requests: list[SendRequest], offset: int, first: int, second: int) -> None:
        """What does not go out as it stands, in one piece."""
        poster = self.link.poster
        pending = self.pending
        address, rkey = self._address, self._rkey
        head = _cut(pending, first)
        requests.append(poster.write(address + offset, rkey, head, first))
        if second:
            self.writes += 1
            requests.append(poster.write(address, rkey, _cut(pending, second), second))
        self.backlog -= first + second

    def _finishWriting(self) -> bool:
        """If all is posted that will ever be written, end it; tell whether there are new flags to send."""
        closing = self._closing
        if self._isHasty:
            if self.backlog:
                self._drop()
        elif self.backlog or self.producer is not None:
            return False
        self._writeEnding = False
        self._isOpen = False
        if self.disconnecting:
            closing.close()
        else:
            closing.doneWriting()
            self._hasStoppedWriting = True
        before, self._flags = self._flags, int(closing.flags)
        return before != self._flags

    def _peerIsGone(self) -> None:
        """There is something to write, and nobody to read it."""
        if self._isHasty:
            self._drop()
            self._makeDirty()
        else:
            self._failure = self._failure or Failure(ConnectionLost())
            self._abort()

    def wasFlushed(self) -> None:
        """What was written is posted: see who waited for that."""
        producer = self.producer
        if producer is not None and self.connected and not self.backlog and not self._isAborting:
            try:
                if not self.streamingProducer:
                    self._pull()
                elif self.producerPaused:
                    self.producerPaused = False
                    producer.resumeProducing()
            except BaseException:
                self._blame("resumeProducing")
        if self._hasStoppedWriting:
            self._hasStoppedWriting = False
            half = IHalfCloseableProtocol(self.protocol, None)
            if half is not None:
                try:
                    half.writeConnectionLost()
                except BaseException:
                    self._blame("writeConnectionLost")
        self._happened()

    def _pull(self) -> None:
        """Let a pull producer fill the buffer somewhat, as long as it gives something."""
        for _ in range(_PULLS):
            before = self.backlog
            cast(IPullProducer, self.producer).resumeProducing()
            if not before < self.backlog < self.bufferSize or self.producer is None or self._isAborting:
                break

    # The end

    def _happened(self) -> None:
        """Do what the state machine says."""
        for event in self._closing.events():
            if isinstance(event, Send):
                if self._flags != event.flags:
                    self._flags = int(event.flags)
                    self._update()
            elif isinstance(event, ReadEnded):
                self._readEnded()
            elif isinstance(event, Ended):
                self._ended(event.how)
            elif isinstance(event, Released):
                self._released(event.quiet)

    def _readEnded(self) -> None:
        half = IHalfCloseableProtocol(self.protocol, None)
        if half is not None and not self.disconnecting:
            try:
                half.readConnectionLost()
            except BaseException:
                self._blame("readConnectionLost")
        elif not self.disconnecting or self._peerState & _CLOSED:
            self._isHasty = self._writeEnding = True
            self.disconnecting = 1
            if not self.isDirty:
                self._makeDirty()

    def _ended(self, how: Ending) -> None:
        """The application's part is over."""
        failure = self._failure
        if failure is None:
            failure = Failure(_REASONS[how]())
        self._failure = None
        self._drop()
        self.connected = 0
        self.disconnected = self.disconnecting = 1  # what still comes is for nobody
        self._clear()
        status.forget(cast(Any, self))
        self.link.linger(self)
        producer, self.producer = self.producer, None
        protocol, self.protocol = self.protocol, None
        try:
            if producer is not None:
                producer.stopProducing()
        except BaseException:
            _log.failure("in stopProducing")
        try:
            if protocol is not None:
                protocol.connectionLost(failure)
        except BaseException:
            _log.failure("in connectionLost")

    def _released(self, quiet: bool) -> None:
        """The peer's part is over, too."""
        tcp, self._tcp = self._tcp, None
        if tcp is not None:
            if quiet:
                tcp.loseConnection()
            else:
                tcp.abortConnection()
        element, self._element = self._element, None
        if element is not None:
            self._view = memoryview(b"")
            self.link.forget(self, element, quiet)

    def _clear(self) -> None:
        """The end: whatever may hold on to the protocol goes."""

    def _drop(self) -> None:
        """What is not posted won't be."""
        self._isOpen = False
        self.pending.clear()
        self.backlog = 0

    def _blame(self, where: str) -> None:
        """The application has raised: its connection ends."""
        _log.failure("in {where}", where=where)
        self._failure = Failure()
        self._abort()

    def _abort(self) -> None:
        self._drop()
        if not self.disconnected:
            self._isAborting = True
            self.disconnecting = 1
            self.link.soon(self.aborted)

    def _makeDirty(self) -> None:
        self.isDirty = True
        link = self.link
        link.dirty.append(self)
        if not link.isBusy:
            link.schedule()

    @property
    def state(self) -> str:
        """The close state machine's, by Linux's name."""
        return self._closing.state.name

    def logPrefix(self) -> str:
        """The protocol's."""
        protocol = self.protocol
        if ILoggingContext.providedBy(protocol):
            return cast(str, ILoggingContext(protocol).logPrefix())
        return f"{type(protocol).__name__},smc"


_REASONS: Final = {
    Ending.DONE: ConnectionDone,
    Ending.ABORTED: ConnectionAborted,
    Ending.RESET: ConnectionLost,
    Ending.BROKEN: ConnectionLost,
    Ending.LOST: ConnectionLost,
}


def _cut(chunks: list[bytes | memoryview], length: int) -> list[bytes | memoryview]:
    """Take that many bytes, more than none, from the front."""
    count = 0
    while len(chunks[count]) < length:
        length -= len(chunks[count])
        count += 1
    last = memoryview(chunks[count])
    head = [*chunks[:count], last[:length]]
    chunks[: count + 1] = [last[length:]] if length < len(last) else []
    return head
