"""
Ends of streams over connections that carry messages: what protocols hear of them, and when.

What is written waits for the end of the reactor's turn, or of a batch of completions. How connections end is
what TCP would tell: who closes hears C{ConnectionDone} when the peer's memory has all that was written, and
what has come before the peer's end is delivered before the protocol hears of that.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Generic, Protocol, TypeVar

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.protocol import Protocol as StreamProtocol
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.log import callWithContext

from txrdma.streams.shutdown import beforeStop, hasLeft, IParting
from txrdma.streams.transport import Address, Front

_log = Logger()


STOPPING_SECONDS: Final = 1.0
"""The time that a process which ends has for handing over what was written, and again for saying goodbye."""


class Declining(StreamProtocol):
    """The protocol of a connection that a factory declines: it ends in order and at once, as TCP's does."""

    def connectionMade(self) -> None:
        """End the connection."""
        assert self.transport is not None
        self.transport.loseConnection()


class Core(Protocol):
    """
    The bytes of a stream both ways, and what each end has said of its own end.

    @ivar isReadable: the peer may send more bytes; C{isWritable}: so may this end.
    @ivar isOver: the peer has ended the connection, or both ends have ended their half of it.
    @ivar wasCut: the peer has ended the connection before it had all bytes that were written here.
    @ivar hasParted: the peer has had our word that the connection ends.
    """

    isReadable: bool
    isWritable: bool
    isOver: bool
    wasCut: bool
    hasParted: bool

    @property
    def backlog(self) -> int:
        """Bytes that were written and are not posted yet."""

    @property
    def isDelivered(self) -> bool:
        """Whether all that was written is in the peer's memory."""

    @property
    def unread(self) -> int:
        """Bytes that have come and are not read yet."""

    def write(self, data: bytes) -> None:
        """Send bytes, as soon as there is room for them; after the end of writing they are dropped."""

    def drop(self) -> None:
        """Forget all that is not posted."""

    def read(self) -> bytes:
        """Read some of the bytes that have come; empty if there are none."""

    def closeWriting(self) -> None:
        """Write no more, and tell the peer so behind all that was written."""

    def close(self) -> None:
        """Neither write nor read any more, and tell the peer so behind all that was written."""


class Beneath(Protocol):
    """The connection beneath a stream."""

    def loseConnection(self) -> None:
        """End the connection, when all that was sent is in the peer's memory."""

    def abortConnection(self) -> None:
        """End the connection now, whatever waits."""


CoreT = TypeVar("CoreT", bound=Core)
BeneathT = TypeVar("BeneathT", bound=Beneath)


@implementer(IParting)
class StreamEnd(Generic[CoreT, BeneathT]):
    """
    One end of a stream: an L{End<txrdma.streams.transport.End>} on a connection whose kind a subclass knows.

    A subclass calls C{_begun}, C{_turn} when something has come or can be sent, and C{_lost}.

    @ivar host: the address of this end; C{peer}: the peer's.
    """

    host: Address
    peer: Address

    def __init__(
        self,
        reactor: Any,
        isClient: bool,
        dress: Callable[[Any], Front],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """
        @param dress: makes the transport of this end, with the protocol.
        @param ended: called when the protocol has heard of the end.
        """
        self.isClient = isClient
        self.context: dict[Any, Any] = {}
        self.protocol: Any = None
        self.isOpen = self.isEnding = self.isDeaf = self.isPaused = self.isNoticed = False
        self.disconnected = False
        self._reactor, self._dress, self._endedCall = reactor, dress, ended
        self._core: CoreT | None = None
        self._transport: BeneathT | None = None
        self._front: Front | None = None
        self._rest = b""
        self._failure: Failure | None = None
        self._isBusy = self._isGone = self._isClean = self._isReadEndTold = self._isLeaving = False
        self._wasCut = self._mustFlush = False
        self._later: IDelayedCall | None = None
        self._stopping: Deferred[None] | None = None

    # What a subclass knows

    def _send(self, core: CoreT, transport: BeneathT) -> None:
        """Post what the core has to send."""
        raise NotImplementedError

    def _begun(self, transport: BeneathT) -> None:
        """Begin: the connection beneath is established, and the core is there."""
        self._transport = transport
        self._front = front = self._dress(self)
        self.isOpen = True
        beforeStop(self._reactor, self)
        self._isBusy = True
        callWithContext(self.context, front.begun)
        self._isBusy = False

    def _lost(self, reason: Failure) -> None:
        """End, by what the connection beneath says and by what the peer has said before."""
        core, self._core = self._core, None
        self._isGone, self._transport = True, None
        if core is not None:  # nothing more comes or goes
            self._wasCut = self._wasCut or core.wasCut
            hasSaid = not (core.isWritable or core.backlog) and reason.check(ConnectionDone) is not None
            self._isClean = core.isOver or core.hasParted or (self.isDeaf and hasSaid and core.isDelivered)
        self._soon()

    def _keepRest(self) -> None:
        """Keep what has come and is not read."""
        core = self._core
        while core is not None and core.unread:
            self._rest += core.read()

    # What the application wants: see txrdma.streams.transport

    @property
    def connected(self) -> bool:
        """Whether there is an application that has not heard of the end."""
        return self._front is not None

    @property
    def backlog(self) -> int:
        """Bytes that are not posted yet."""
        return 0 if self._core is None else self._core.backlog

    def write(self, data: bytes) -> int:
        """Take bytes to be sent; the length of the backlog."""
        if self._core is None or self._isLeaving:
            self._wasCut = True
        else:
            self._core.write(data)
            self._mustFlush = True
        self._soon()
        return self.backlog

    def writeSequence(self, chunks: Sequence[bytes]) -> None:
        """Take several byte strings to be sent."""
        self.write(b"".join(chunks))

    def close(self) -> None:
        """End the connection when all is posted that was written, and a producer is done."""
        if self.connected and not self.isDeaf:
            self.isDeaf = True
            self.closeWriting()

    def closeWriting(self) -> None:
        """Write nothing any more when all is posted that was written, and a producer is done."""
        self.isEnding = True
        self._soon()

    def abort(self) -> None:
        """End the connection at once, and forget what is not posted."""
        if self.connected and self._failure is None:
            self._giveUp(Failure(ConnectionAborted()))

    def resume(self) -> None:
        """Deliver again what arrives, soon."""
        if self.isPaused:
            self.isPaused = False
            self._soon()

    def blame(self, where: str) -> None:
        """End the connection because the application has raised: for its peer in order, as with TCP."""
        _log.failure("Unhandled error in {where}", where=where)
        self._failure = self._failure or Failure()
        self.isDeaf, self.isOpen = True, False
        if self._core is not None:
            self._core.drop()
            self._core.close()
        self._soon()

    def _violated(self, what: str) -> None:
        _log.warn("{end} ends, as the peer breaks the rules: {what}", end=self, what=what)
        self._giveUp(Failure(ConnectionLost(what)))

    def _giveUp(self, failure: Failure) -> None:
        self._failure = failure
        self.isDeaf, self.isOpen = True, False
        if self._core is not None:
            self._core.drop()
        self._isLeaving = True
        self._reactor.callLater(0, self._cut)

    def _cut(self) -> None:
        if self._transport is not None:
            self._transport.abortConnection()
        else:
            self._turn()

    # A turn

    def _soon(self) -> None:
        """Have a turn when the reactor is done with what it does."""
        if not self._isBusy and self._later is None and self.connected:
            self._later = self._reactor.callLater(0, self._laterTurn)

    def _laterTurn(self) -> None:
        self._later = None
        self._turn()

    def _turn(self) -> None:
        """Deliver what has come, post what can be posted, and do what follows for the end."""
        if self._isBusy:
            return
        self._isBusy = True
        try:
            again = True
            while again and self.connected:
                self._deliver()
                self._post()
                again = self._conclude()
        finally:
            self._isBusy = False

    def _deliver(self) -> None:
        core = self._core
        while self.connected and (self.isDeaf or not self.isPaused):
            data, self._rest = self._rest, b""
            if not data and core is not None and core.unread:
                data = core.read()
            if not data:
                break
            if self.isDeaf:
                continue
            try:
                callWithContext(self.context, self.protocol.dataReceived, data)
            except BaseException:
                self.blame("dataReceived")

    def _post(self) -> None:
        """Post what can be posted, and let a producer have its turn when all is."""
        core, transport = self._core, self._transport
        if core is None or transport is None or self._isLeaving:
            return
        self._maybeEndWriting(core)
        self._send(core, transport)
        front = self._front
        if self._mustFlush and not core.backlog and front is not None:
            self._mustFlush = False
            if self.isOpen:
                callWithContext(self.context, front.flushed)
                self._maybeEndWriting(core)  # the producer may have been the last to wait for
                self._send(core, transport)

    def _maybeEndWriting(self, core: CoreT) -> None:
        """End writing if that was asked for, all is posted that was written, and no producer has more."""
        if not self.isEnding or not self.isOpen or core.backlog or self.isNoticed:
            return
        self.isOpen = False
        if self.isDeaf:
            core.close()
            return
        core.closeWriting()
        if self._front is not None:
            callWithContext(self.context, self._front.writeEnded)

    def _conclude(self) -> bool:
        """Do what follows for the end; whether there is something to deliver or to post after that."""
        core = self._core
        if core is not None and core.isReadable and not (core.isOver or core.hasParted):
            return False  # the usual case
        if core is not None and core.isOver and not self._isLeaving:
            self._keepRest()
            self._leave()
            return True
        if core is not None and core.hasParted:
            self._leave()
        isReadable = core.isReadable if core is not None else not self._isClean
        isUnread = bool(self._rest) or (core is not None and core.unread > 0)
        mayHear = not self.isPaused or self.isDeaf
        if mayHear and not (isReadable or isUnread or self._isReadEndTold):
            self._isReadEndTold = True
            self._readEnded()
            return True
        self._maybeEnd()
        return False

    def _leave(self) -> None:
        """End the connection beneath: both ends have said all that they have to say."""
        if not self._isLeaving:
            self._isLeaving = True
            if self._transport is not None:
                self._transport.loseConnection()

    def _readEnded(self) -> None:
        """Tell the protocol that all is read; who does not close by halves closes by that."""
        front = self._front
        if self.isDeaf or front is None:
            return
        if front.knowsHalves:
            callWithContext(self.context, front.readEnded)
            return
        self.isDeaf, self.isOpen = True, False
        callWithContext(self.context, front.dismiss)
        if self._core is not None:
            self._core.drop()
            self._core.close()

    def _maybeEnd(self) -> None:
        """Tell the protocol of the end, if there is nothing to come before."""
        if not self._isGone or (self._rest and not self.isDeaf and self._failure is None):
            return
        if self._failure is not None:
            self._end(self._failure)
        elif not self._isClean or (self._wasCut and not self._isReadEndTold):
            self._end(Failure(ConnectionLost()))
        elif self.isDeaf:
            self._end(Failure(ConnectionDone()))
        elif self._wasCut:
            self._end(Failure(ConnectionLost()))

    def _end(self, reason: Failure) -> None:
        front, self._front = self._front, None
        later, self._later = self._later, None
        if later is not None:
            later.cancel()
        hasLeft(self._reactor, self)
        self.disconnected, self.isDeaf, self.isOpen = True, True, False
        if front is not None:
            callWithContext(self.context, front.ended, reason)
        self._endedCall()
        stopping, self._stopping = self._stopping, None
        if stopping is not None:
            stopping.callback(None)

    def reactorStops(self) -> Deferred[None] | None:
        """Hand over what was written, as the process is about to end."""
        if not self.connected:
            return None
        if not self.isDeaf and self._failure is None:
            self._failure = Failure(ConnectionLost())
        self.isDeaf, self.isNoticed, self.isEnding = True, False, True
        stopped: Deferred[None] = Deferred()
        self._stopping = stopped
        late = [
            self._reactor.callLater(STOPPING_SECONDS, self._hurry),
            self._reactor.callLater(2 * STOPPING_SECONDS, self._cut),
        ]
        self._turn()

        def cancel(_: None) -> None:
            for each in late:
                if each.active():
                    each.cancel()

        return stopped.addBoth(cancel)

    def _hurry(self) -> None:
        """Say goodbye without what the peer has no room for, as Twisted's TCP does."""
        if self._core is not None:
            self._core.drop()
        self._turn()
