"""
One end of a stream of bytes over SMC-R: what its link asks of it, and how it ends.

Follows RFC 7609, 4.7 (data flow) and 4.8 (ending). What is written waits until the link flushes: once for
each batch of completions, or once for a turn of the reactor. What arrives is given out as C{bytes}, from
the link's batch.

A connection whose peer, TCP connection or link is lost lives on as long as bytes are in its ring: these are
delivered first. How it then ends is what TCP would tell: see L{txrdma.smc.stream.companion}.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast, Final, TYPE_CHECKING

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.error import ConnectionLost
from twisted.internet.interfaces import IProtocol, IPullProducer, IPushProducer, ITCPTransport
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.log import ILogContext

from txrdma.error import Refused, WireError
from txrdma.iba.types import RKey
from txrdma.iba.verbs import Operation, SendRequest
from txrdma.logs import Seldom
from txrdma.smc.group._linkgroup import Role
from txrdma.smc.group.buffers import Element
from txrdma.smc.group.posting import cut, SIGNAL_EVERY
from txrdma.smc.handshake.plaintcp import prefixFor
from txrdma.smc.insight import status
from txrdma.smc.presence import Use
from txrdma.smc.stream._closing import Closing, Ended, Ending, ReadEnded, Released, Send
from txrdma.smc.stream._ring import DATA, Ring, SPACE, UPDATE
from txrdma.smc.stream.companion import Companion
from txrdma.smc.wire.cdc import StateFlags
from txrdma.smc.wire.clc import Diagnosis

if TYPE_CHECKING:
    from txrdma.smc.group.link import Link
    from txrdma.smc.wire.clc import Accept, Confirm

    Address = IPv4Address | IPv6Address

_log = Logger()
_seldom = Seldom(_log)

DELIVERY: Final = 256 * 1024
"""The most bytes for one C{dataReceived}."""

_EARLY: Final = 64
"""Messages that may come before the handshake is over here."""

_CLOSED: Final = int(StateFlags.CLOSED)
_ABORT: Final = int(StateFlags.ABNORMAL_CLOSE)
ENDS: Final = _CLOSED | _ABORT
"""Of a peer's state flags those after which there is nobody to write to."""

_NEWS: Final = SPACE | UPDATE
_SIGNAL_MASK: Final = SIGNAL_EVERY - 1


class Stream:
    """
    One end of one connection, without what its protocol may call.

    Slots and no timers: there may be thousands of these, mostly idle.

    @ivar token: our alert token: what the peer calls this connection.
    @ivar ring: the cursors.
    @ivar pending: what has been written and not yet posted, oldest first.
    @ivar backlog: its length.
    @ivar isDirty: it is in the link's list of those that have something to do.
    @ivar isDoubtful: the TCP connection has ended, and the peer may have gone with it.
    @ivar wasLost: the peer was quicker than the handshake: it has said all, and gone with its link.
    """

    __slots__ = (
        *("protocol", "TLS", "_context", "connected", "disconnected", "disconnecting", "_failure"),
        *("producer", "streamingProducer", "producerPaused", "bufferSize"),
        *("pending", "backlog", "writes", "_written", "_isOpen", "_write"),
        *("_message", "_buffer", "_mustSend", "_flags", "isDirty"),
        *("ring", "_view", "_mask", "_element", "_isPaused", "_isReading", "_early"),
        *("role", "link", "token", "_turn", "_address", "_rkey", "messagesReceived", "messagesSent"),
        *("_host", "_peer", "_companion", "_use", "isDoubtful", "wasLost", "_isWhole"),
        *("_closing", "_peerState", "_writeEnding", "_hasStoppedWriting", "_isAborting", "_isHasty"),
        *("__weakref__",),
    )

    protocol: IProtocol | None
    producer: IPushProducer | IPullProducer | None

    def __init__(self, link: Link, element: Element, tcp: ITCPTransport, role: Role) -> None:
        self.link = link
        self._turn = link.turn
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
        self.writes = self.messagesSent = self.messagesReceived = self._written = 0
        self.TLS = False
        self._closing = Closing()
        self._companion: Companion | None = None
        self._use: Use | None = None
        self._host = tcp.getHost()
        self._peer = tcp.getPeer()
        self._element: Element | None = element
        self._address = 0
        self._rkey: RKey | None = None
        self._early: list[tuple[int, ...]] | None = []
        self._failure: Failure | None = None
        self._isOpen = self._isPaused = self._isReading = self._isAborting = self._isHasty = False
        self._mustSend = self._writeEnding = self._hasStoppedWriting = False
        self._isWhole = self.wasLost = self.isDoubtful = False
        self._flags = self._peerState = 0
        self._context: dict[object, dict[str, object]] = {}
        self.token = link.add(self)

    def __repr__(self) -> str:
        return f"<SMCTransport {self.role.value} {self._closing.state.name} to {status.describe(self._peer)}>"

    # Making it

    def attach(self, answer: Accept | Confirm) -> None:
        """
        The peer's end is known.

        @raise Refused: it names a buffer that we never heard of, or the link has ended meanwhile.
        """
        if self._element is None:
            raise Refused("the link has ended meanwhile", Diagnosis.NOACTLINK)
        self._address = self.link.target(answer)
        self._rkey = answer.rkey
        self.ring = Ring(self._view.nbytes, answer.size, answer.token)
        self._mask = self._view.nbytes - 1
        self._message, self._buffer = self._turn.poster.newMessage()
        # Posted when pending goes out as it stands; its list is this one's, and never another.
        self._write = SendRequest(
            0, Operation.RDMA_WRITE, inline=self.pending, signaled=False, rkey=self._rkey
        )

    def start(self, protocol: IProtocol, companion: Companion) -> None:
        """Begin to serve a protocol, with what watches the TCP connection."""
        self._use = self.link.groups.presence.hold(self._swept)
        self._companion = companion
        self.protocol = protocol
        self.connected = 1
        self._isOpen = True
        self._closing.established()
        prefix = prefixFor(companion.tcp, protocol)
        self._context = {ILogContext: {"isError": 0, "system": prefix}}
        status.register(cast(Any, self))
        try:
            protocol.makeConnection(cast(Any, self))
        except BaseException:
            self._blame("makeConnection")
        early, self._early = self._early or (), None
        self.link.begin(self)
        for message in early:
            self.received(message)
        if self.wasLost:
            companion.linkLost(mayVanish=True)
            if self.hasHeardEnd:
                self._closing.groupDied(self._unread)
                self._conclude()

    def discard(self) -> None:
        """Give up: the handshake has not come to its end."""
        self._early = None
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
        """Act on a CDC message of the peer: its cursors, its flags, and the data that it announces."""
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
                self._turn.dirty.append(self)
        if message[9] != self._peerState:
            self._peerState |= message[9]
            self._closing.received(message[9], self._unread)
            self._conclude()

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
                length = min(length, DELIVERY, size - offset)
                data = bytes(view[offset : offset + length])
                if ring.consume(length):
                    self._update()
                protocol.dataReceived(data)
        except BaseException:
            self._blame("dataReceived")
        finally:
            self._isReading = False
            contexts.pop()
        if self._closing.readEnding:
            self._conclude()

    def _conclude(self) -> None:
        """Do what the state machine says; if all is read, what was waiting behind that, too."""
        if self.backlog and not self.isDirty:
            self._makeDirty()  # there may be nobody any more to write to
        self._happened()
        while self._closing.readEnding and not self._unread and not self._isHasty:
            self._closing.drained()
            self._happened()
        if self._peerState & ENDS and (self._isPaused or not self._closing.readEnding):
            self._leave()

    @property
    def _unread(self) -> int:
        """Bytes that arrived and were not read. To who has paused the end is as unread as data would be."""
        return self._isPaused or self.ring.arrived - self.ring.consumed

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
        peer = status.describe(self._peer)
        _seldom.warn(
            (getattr(self._peer, "host", peer), self.role),
            "an SMC-R connection with {peer} ends, as the peer breaks the rules: {what}",
            peer=peer,
            what=what,
        )
        self._failure = self._failure or Failure(ConnectionLost(what))
        self._closing.fail()
        self._happened()

    # What TCP and the link tell together: see txrdma.smc.stream.companion
    @property
    def hasHeardEnd(self) -> bool:
        """The peer has said that it closes or aborts, or the application is gone."""
        return bool(self._peerState & ENDS) or self._closing.over

    @property
    def awaitsDelivery(self) -> bool:
        """The application has closed, and hears so when the peer has what was posted."""
        return bool(self.disconnecting) and not self._closing.over

    @property
    def mayBeSilent(self) -> bool:
        """The peer has said that it writes no more, and owes us nothing."""
        return bool(self._peerState) and not self.disconnecting

    @property
    def isStopping(self) -> bool:
        """Whether the reactor is about to end the process."""
        return self.link.isStopping

    @property
    def hasArrived(self) -> bool:
        """The peer has all that was posted."""
        return self._turn.hasArrived(self.lastMessage)

    @property
    def lastMessage(self) -> int:
        """The number of the last message that was posted; 0 before the first."""
        return 0 if self._rkey is None else self._message.identifier

    def askForUpdate(self) -> None:
        """Send a message, even if there is nothing to tell: its completion says how far the peer is."""
        self._update()

    def hasDelivered(self, total: int) -> bool:
        """Whether the peer has so many bytes, and what the application wants it to know of the end."""
        if self.ring.produced < total or self._writeEnding:
            return False
        return self._turn.hasArrived(self.lastMessage)

    def look(self) -> None:
        """Take in what the link has brought."""
        self.link.look()

    def linkLost(self, mayVanish: bool, arrived: int) -> None:
        """
        End the connection, because its link is gone.

        @param mayVanish: nothing that the peer sent before can be missing, even if its process has died.
        @param arrived: the number of the last message of ours that the peer has looked at.
        """
        self._isWhole = not self.backlog and self._written <= arrived
        companion = self._companion
        if self.disconnecting and not mayVanish:
            if companion is not None:
                companion.cut()  # the application has closed, and whether the peer has all nobody will say
        elif companion is not None:
            companion.linkLost(mayVanish)
        elif mayVanish and self._early is not None:
            self.wasLost = True  # the peer was quicker than the handshake, which goes on by TCP
            return
        if companion is None or self.hasHeardEnd or (self.disconnecting and not mayVanish):
            self._closing.groupDied(self._unread)
            self._conclude()

    def vanished(self) -> None:
        """The peer's process is gone; all that it sent is here, and its kernel has closed TCP in order."""
        if self._isWhole:
            self._closing.delivered()
            self._peerState |= _CLOSED
            self._closing.received(self._peerState, self._unread)
            self._conclude()
        else:
            self.reset()

    def reset(self) -> None:
        """The peer is lost, without a word; what has arrived is read first."""
        self._peerState |= _ABORT
        self._closing.received(self._peerState, self._unread)
        self._conclude()

    def stopped(self) -> None:
        """Post what was written, and take leave of the peer as TCP would, since the process ends."""
        if not self.isDirty:
            self._makeDirty()
        self._turn.finish()
        self.fail()
        self._turn.finish()

    def remoteBuffersGone(self, rkeys: Sequence[int]) -> None:
        """The peer takes back buffers of its own, which it may when we have no more to write there."""
        if self._rkey in rkeys and (self._isOpen or self.backlog):
            self.violated("its buffer is taken back")

    def _swept(self) -> None:
        """Somebody has removed everything from the reactor: nobody waits for the protocol any more."""
        self.protocol = self.producer = self._use = None
        self._abort()

    def fail(self) -> None:
        """The application can't go on: drop what is not posted, and tell the peer of an orderly end."""
        self._drop()
        self._closing.stopped()
        self._happened()

    def aborted(self) -> None:
        """The application wanted it so, or has failed."""
        self._closing.abort()
        self._happened()

    def delivered(self) -> None:
        """The peer has all that was posted."""
        self._closing.delivered()
        self._happened()

    def expired(self) -> None:
        """The peer did not do its part of the end."""
        if self._companion is not None:
            self._companion.cut()  # it may never have heard of SMC-R
        self._closing.expired()
        self._happened()

    # What goes out, when the link asks

    def fill(self, requests: list[SendRequest]) -> None:
        """Append what has to be posted now."""
        ring = self.ring
        backlog = self.backlog
        mustSend = self._mustSend
        hasWritten = False
        poster = self._turn.poster
        if backlog:
            if self._peerState & ENDS or self.link.isOver:
                self._peerIsGone()
                return
            most = backlog
            if poster.isStaged:
                most = poster.most(backlog)
                if most < backlog:
                    self._turn.stall(self)
            offset, first, second = ring.take(backlog, most)
            if first:
                mustSend = hasWritten = True
                self.writes += 1
                if first == backlog and not poster.isStaged:
                    self.backlog = 0
                    write = self._write
                    write.remoteAddress = self._address + offset
                    requests.append(write)
                else:
                    self._fillPieces(requests, offset, first, second)
        isLast = False
        if self._writeEnding:
            isLast = self._finishWriting()
            mustSend |= isLast
            self._turn.flushed.append(self)
        elif self.producer is not None or self.isDoubtful:
            self._turn.flushed.append(self)
        if mustSend:
            self._mustSend = False
            self.messagesSent += 1
            message = self._message
            if poster.isStaged:
                poster.number(message)
            else:
                poster.sent = sent = poster.sent + 1
                message.identifier = sent
                message.signaled = isLast or not sent & _SIGNAL_MASK or self._turn.isHasty or self.isDoubtful
            if hasWritten:
                self._written = message.identifier
            ring.pack(self._buffer, 0, self._flags)
            requests.append(message)

    def _fillPieces(self, requests: list[SendRequest], offset: int, first: int, second: int) -> None:
        """Append RDMA writes for data that is not one piece: two of them if it wraps around in the ring."""
        poster = self._turn.poster
        pending = self.pending
        address, rkey = self._address, self._write.rkey
        head = cut(pending, first)
        requests.append(poster.write(address + offset, rkey, head, first))
        if second:
            self.writes += 1
            requests.append(poster.write(address, rkey, cut(pending, second), second))
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

    # What the protocol sees of it: see txrdma.smc.stream.transport

    def wasFlushed(self) -> None:
        """Tell producers and half-closers that all that was written is posted."""
        raise NotImplementedError

    def _readEnded(self) -> None:
        """The peer writes no more, and all that it wrote is read."""
        raise NotImplementedError

    def _ended(self, how: Ending) -> None:
        """The application's part is over."""
        raise NotImplementedError

    def _leave(self) -> None:
        """The peer has gone, and nothing is to be delivered."""
        raise NotImplementedError

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

    def _released(self, quiet: bool) -> None:
        """The peer's part is over, too."""
        self._closeTCP(inOrder=bool(self._flags & _CLOSED) and not self._flags & _ABORT)
        element, self._element = self._element, None
        if element is not None:
            self._view = memoryview(b"")
            self.link.forget(self, element, quiet)

    def _closeTCP(self, inOrder: bool) -> None:
        """Have no TCP connection any more, when all is posted that is to be said."""
        companion, self._companion = self._companion, None
        if companion is not None:
            self._turn.atEnd(partial(companion.finish, inOrder))

    def _drop(self) -> None:
        """Discard the data that is not posted, and take no more."""
        self._isOpen = False
        self.pending.clear()
        self.backlog = 0

    def _blame(self, where: str) -> None:
        """The application has raised: its connection ends, for its peer in order, as with TCP."""
        _log.failure("Unhandled error in {where}", where=where)
        self._failure = Failure()
        self._giveUp(self.fail)

    def _abort(self) -> None:
        self._giveUp(self.aborted)

    def _giveUp(self, end: Callable[[], None]) -> None:
        """End soon, in a turn of ours."""
        self._drop()
        if not self.disconnected:
            self._isAborting = True
            self.disconnecting = 1
            self._turn.soon(end)

    def _makeDirty(self) -> None:
        self.isDirty = True
        turn = self._turn
        turn.dirty.append(self)
        if not turn.isBusy:
            turn.schedule()

    @property
    def state(self) -> str:
        """The state of the connection's end, by Linux's name."""
        return self._closing.state.name
