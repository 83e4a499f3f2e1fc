"""
Streams over message connections: when bytes are delivered and posted, and how a stream ends.

Written bytes are posted at the end of the reactor iteration, or of a batch of completions. A connection ends
as over TCP: C{ConnectionDone} means that all written bytes are in the peer's memory, and bytes that arrived
before the peer closed are delivered before C{connectionLost}.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, Generic, TypeVar

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IProtocol, ITCPTransport, ITLSTransport
from twisted.internet.main import CONNECTION_LOST
from twisted.internet.protocol import Protocol as StreamProtocol
from twisted.logger import Logger
from twisted.python.context import theContextTracker
from twisted.python.failure import Failure
from twisted.python.log import callWithContext

from txrdma.kit.connectionlog import ConnectionRecord
from txrdma.kit.delayedcalls import cancelCall, nextCalls
from txrdma.kit.logs import RateLimitedLogger
from txrdma.kit.shutdown import addShutdownListener, IClosesOnShutdown, removeShutdownListener
from txrdma.messages.transport import MessageTransport
from txrdma.streams._lifecycle import (
    CLOSING,
    DISMISSED,
    LEAVE,
    LEAVING,
    LOST,
    OPEN,
    PAUSED,
    READ_END,
    Reader,
    READS,
    StreamLife,
)
from txrdma.streams.core import StreamCore
from txrdma.streams.transport import Address, logName, ONE_SEND, StreamTransport

_log = Logger()
_rateLimited = RateLimitedLogger(_log)

_REASONS: Final = {"ConnectionDone": ConnectionDone, "ConnectionLost": ConnectionLost}

STOPPING_SECONDS: Final = 1.0
"""Seconds that a stopping reactor waits for written bytes to be sent."""

CLOSING_SECONDS: Final = 5.0
"""Seconds that it then waits for the close to be received: a peer on a busy host may not run for a while."""


class Declining(StreamProtocol):
    """The protocol of a connection whose factory returned None: it closes in order at once, as over TCP."""

    def connectionMade(self) -> None:
        """End the connection."""
        assert self.transport is not None
        self.transport.loseConnection()


CoreT = TypeVar("CoreT", bound=StreamCore)
CarrierT = TypeVar("CarrierT", bound=MessageTransport)


@implementer(IClosesOnShutdown)
class StreamConnection(Generic[CoreT, CarrierT]):
    """
    A stream over a message connection: an L{End<txrdma.streams.transport.End>}.

    A subclass implements a kind of message connection. It calls C{_begun} when the message connection is
    established, C{_turn} when bytes have arrived or can be sent, and C{_ended} when the connection is lost.

    @cvar kind: the prefix of endpoint strings, for the log.
    @ivar host: the local address.
    @ivar peer: the address of the peer.
    """

    kind: str
    host: Address
    peer: Address

    # Of the class until they change: an instance with more than 30 attributes takes 1.2 KiB more.
    isEnding = discardsInput = hasProducer = isPaused = False
    _rest = b""
    _failure: Failure | None = None
    _stopping: Deferred[None] | None = None

    def __init__(
        self,
        reactor: Any,
        isClient: bool,
        makeTransport: Callable[[Any], StreamTransport[Any]],
        ended: Callable[[], None] = lambda: None,
    ) -> None:
        """
        @param makeTransport: makes the transport and its protocol.
        @param ended: called after C{connectionLost}.
        """
        self.isClient = isClient
        self.context: dict[Any, Any] = {}
        self.protocol: Any = None
        self.isOpen = self._isBusy = self._mustFlush = False
        self._reactor, self._makeTransport, self._endedCall = reactor, makeTransport, ended
        self._life = StreamLife(ONE_SEND)
        self._core: CoreT | None = None
        self._transport: CarrierT | None = None
        self._front: StreamTransport[Any] | None = None
        self._contexts: list[dict[Any, Any]] = theContextTracker.currentContext().contexts

    def __repr__(self) -> str:
        return f"<{type(self).__name__} {'client' if self.isClient else 'server'} {self._transport!r}>"

    def connectionMade(self) -> None:
        """Do nothing: C{makeConnection} of the subclass starts the stream."""

    # For subclasses

    def _send(self, core: CoreT, transport: CarrierT) -> None:
        """Post the bytes that the core has queued."""
        raise NotImplementedError

    def _begun(self, transport: CarrierT) -> None:
        """Start the stream: the message connection is established and C{_core} is set."""
        self._transport = transport
        self._record = ConnectionRecord(self.isClient, transport.route, self._reactor.seconds())
        self._front = front = self._makeTransport(self)
        self.isOpen = True
        addShutdownListener(self._reactor, self.reactorStops)
        self._isBusy = True
        try:
            callWithContext(self.context, front.begun)
        finally:
            self._isBusy = False

    def _ended(self, reason: Failure) -> None:
        """End the stream, even after an exception: the message connection is lost."""
        try:
            self._lost(reason)
        except Exception:
            self._core = self._transport = None
            self._interrupted()

    def _lost(self, reason: Failure) -> None:
        """End the stream: the message connection is lost, possibly after an orderly close."""
        core, self._core = self._core, None
        self._transport = None
        if self._front is None:
            return  # it was not started, or has ended
        self._soon()
        if core is not None:  # nothing more is sent or received
            self._record.bytesSent -= core.backlog
            self._life.ended(core, self._reader, reason.check(ConnectionDone) is not None)

    def _drop(self, core: StreamCore) -> None:
        """Drop written bytes that are not posted."""
        self._record.bytesSent -= core.backlog
        core.drop()

    def _storeRest(self) -> None:
        """Copy unread bytes, before the buffers are released."""
        core = self._core
        while core is not None and core.unread:
            self._rest += core.read()

    # Calls of the transport: txrdma.streams.transport.End

    @property
    def connected(self) -> bool:
        """Whether C{connectionLost} has not been called."""
        return self._front is not None

    @property
    def disconnected(self) -> bool:
        """Whether C{connectionLost} has been called."""
        return self._front is None

    @property
    def backlog(self) -> int:
        """Number of bytes that are not posted yet."""
        return 0 if self._core is None else self._core.backlog

    def write(self, data: bytes) -> int:
        """Queue bytes; return the length of the backlog."""
        core, life = self._core, self._life
        if core is None or core.isOver or life.connection is not OPEN:
            life.writtenLate(len(data))
            backlog = self.backlog
        else:
            backlog = core.write(data)
            self._record.bytesSent += len(data)
            self._mustFlush = True
        if not self._isBusy:
            self._soon()
        return backlog

    def close(self) -> None:
        """Close the connection when all written bytes are posted and a producer has no more to write."""
        if self.connected and not self.discardsInput:
            self.discardsInput = True
            if self._core is not None and not self.isOpen:  # half-closed before
                self._core.close()
            self.closeWriting()

    def closeWriting(self) -> None:
        """Close the write side when all written bytes are posted and a producer has no more to write."""
        self.isEnding = self._mustFlush = True
        self._soon()

    def abort(self) -> None:
        """Close the connection at once, and drop bytes that are not posted."""
        if self.connected and self._failure is None:
            self._giveUp(Failure(ConnectionAborted()))

    @property
    def written(self) -> int:
        """Number of bytes that the application has written."""
        return self._record.bytesSent

    def afterDelayedCalls(self, call: Callable[[], None]) -> None:
        """Make a call in the next iteration of the reactor, after the delayed calls that are due."""
        self._reactor.callLater(0, call)

    def resume(self) -> None:
        """Resume delivery in a later reactor iteration."""
        if self.isPaused:
            self.isPaused = False
            self._schedule()  # also if a producer that is being resumed calls this

    def blame(self, where: str) -> None:
        """Close the connection because the application raised. The close is orderly, as over TCP."""
        _log.failure("Unhandled error in {where}", where=where)
        self._failure = self._failure or Failure()
        self.discardsInput, self.isOpen = True, False
        if self._core is not None:
            self._drop(self._core)
            self._core.close()
        self._soon()

    def _violated(self, what: str) -> None:
        _rateLimited.warn(
            (self.kind, self.peer.host),
            "{end}: the peer violated the protocol, closing: {what}",
            end=self,
            what=what,
        )
        self._giveUp(Failure(ConnectionLost(what)))

    def _giveUp(self, failure: Failure) -> None:
        self._failure = failure
        self.discardsInput, self.isOpen = True, False
        nextCalls(self._reactor).add(self._cut)
        if self._core is not None:
            self._life.connection = LEAVING
            self._drop(self._core)

    def _cut(self) -> None:
        """Abort the message connection, also if an exception prevents that at first."""
        transport = self._transport
        if transport is None:
            self._turn()
            return
        try:
            transport.abortConnection()
        except Exception:
            _log.failure("{end} is aborted again after an exception", end=self)
            transport.abortConnection()

    # Delivering and posting

    def _soon(self) -> None:
        """Schedule L{_turn}, unless it is running."""
        if not self._isBusy:
            self._schedule()

    def _schedule(self) -> None:
        if self._front is not None:
            nextCalls(self._reactor).add(self._scheduledTurn)

    def _scheduledTurn(self) -> None:
        try:
            self._turn()
        except Exception:
            self._interrupted()

    def _turn(self) -> None:
        """
        Deliver received bytes, post written bytes, and close the stream if that is due.

        An unexpected exception ends the stream: what it has interrupted would never be done.
        """
        if self._isBusy:
            return
        self._isBusy = True
        try:
            while self._front is not None:
                self._deliver()
                self._post()
                core = self._core
                if core is not None and core.isReadable and not (core.isOver or core.isCloseDelivered):
                    break  # the usual case
                if not self._conclude():
                    break
        except Exception:
            self._interrupted()
        finally:
            self._isBusy = False

    def _interrupted(self) -> None:
        """Log the current exception, and end the stream."""
        _log.failure("{end} ends because of an unexpected exception", end=self)
        failure = Failure(ConnectionLost("an unexpected exception"))
        self._giveUp(failure)
        if self._transport is None:
            self._maybeEnd(failure)

    def _deliver(self) -> None:
        """Deliver received bytes; C{rsocket-shared-roundtrip} passes here once per message."""
        core = self._core
        while (self.discardsInput or not self.isPaused) and self._front is not None:
            data = self._rest
            if data:
                self._rest = b""
            elif core is None or not core.unread:
                break
            else:
                data = core.read()
            if self.discardsInput:
                continue
            self._record.bytesReceived += len(data)
            contexts = self._contexts
            contexts.append(self.context)
            try:
                self.protocol.dataReceived(data)
            except BaseException:
                self.blame("dataReceived")
            finally:
                contexts.pop()

    def _post(self) -> None:
        """Post written bytes, and resume the producer when all are posted."""
        core, transport = self._core, self._transport
        if core is None or transport is None or core.isOver or self._life.connection is not OPEN:
            if self._life.connection is not LOST:
                self._maybeEndWriting(core)
            return
        if self.isEnding:
            self._maybeEndWriting(core)
        if self._core is not core:
            return  # the program has lost the connection in a callback
        self._send(core, transport)
        front = self._front
        if self._mustFlush and not core.backlog and front is not None:
            self._mustFlush = False
            if self.hasProducer and self.isOpen:
                callWithContext(self.context, front.flushed)
            elif not self.isEnding:
                return
            if self._core is core:
                self._maybeEndWriting(core)  # the producer may have unregistered
            if self._core is not core:
                return  # as above
            self._send(core, transport)
            if self._mustFlush and not core.backlog:
                self._schedule()  # the producer has written: resume it in the next reactor iteration

    def _maybeEndWriting(self, core: CoreT | None) -> None:
        """Close the write side if that was requested, all bytes are posted and no producer may write more."""
        if not self.isEnding or not self.isOpen or self.backlog or self.hasProducer:
            return
        self.isOpen = False
        if core is not None:
            (core.close if self.discardsInput else core.closeWriting)()
        if self._front is not None and not self.discardsInput:
            callWithContext(self.context, self._front.writeEnded)

    @property
    def _reader(self) -> Reader:
        """What the protocol does with received bytes."""
        if self.discardsInput:
            return DISMISSED if self._life.isDismissed else CLOSING
        return PAUSED if self.isPaused else READS

    def _conclude(self) -> bool:
        """Do what is due; return whether there may be more to deliver or to post."""
        core = self._core
        isUnread = bool(self._rest) or (core is not None and core.unread > 0)
        due = self._life.next(core, self._reader, isUnread, self.isOpen)
        if due is LEAVE:
            self._storeRest()
            self._leave()
            return True
        if due is READ_END:
            self._readEnded()
            return True
        self._maybeEnd(None if due is None else self._failure or Failure(_REASONS[due]()))
        return False

    def _leave(self) -> None:
        """Close the message connection, since both ends have closed the stream."""
        if self._transport is not None:
            self._transport.loseConnection()

    def _readEnded(self) -> None:
        """Report the end of input; a protocol without half-close is closed."""
        front = self._front
        if front is None:
            return
        if front.knowsHalves:
            callWithContext(self.context, front.readEnded)
            return
        self.discardsInput, self.isOpen, self._life.isDismissed = True, False, True
        callWithContext(self.context, front.dismiss)
        if self._core is not None:
            self._drop(self._core)
            self._core.close()

    def _maybeEnd(self, reason: Failure | None) -> None:
        """Report the end of the connection if there is a reason."""
        if reason is not None:
            self._end(reason)

    def _end(self, reason: Failure) -> None:
        front, self._front = self._front, None
        self.discardsInput, self.isOpen = True, False
        with _log.failuresHandled("{end} still ends after an exception", end=self):
            nextCalls(self._reactor).discard(self._scheduledTurn)
            removeShutdownListener(self._reactor, self.reactorStops)
            if front is not None:
                self._record.ended(self.kind, (self.host, self.peer), reason, self._reactor.seconds())
        try:
            if front is not None:
                callWithContext(self.context, front.ended, reason)
        finally:
            ended, self._endedCall = self._endedCall, lambda: None
            stopping, self._stopping = self._stopping, None
            try:
                ended()
            finally:
                if stopping is not None:
                    stopping.callback(None)

    def reactorStops(self) -> Deferred[None] | None:
        """Send written bytes and close, since the process is about to end."""
        if not self.connected:
            return None
        if not self.discardsInput and self._failure is None:
            self._failure = Failure(CONNECTION_LOST)
        if self._core is not None and not (self.discardsInput or self.isOpen):  # half-closed before
            self._core.close()
        self.discardsInput, self.hasProducer, self.isEnding = True, False, True
        stopped: Deferred[None] = Deferred()
        self._stopping = stopped
        late = [
            self._reactor.callLater(STOPPING_SECONDS, self._hurry),
            self._reactor.callLater(STOPPING_SECONDS + CLOSING_SECONDS, self._cut),
        ]
        self._turn()

        def cancel(_: None) -> None:
            for each in late:
                cancelCall(each)

        return stopped.addBoth(cancel)

    def _hurry(self) -> None:
        """Drop the bytes for which the peer has no room, and close, as Twisted's TCP does."""
        if self._core is not None:
            self._drop(self._core)
            if self.isOpen:
                self.isOpen = False  # a producer that is registered now would write behind a gap
                self._core.close()
        self._turn()


MessageEndT = TypeVar("MessageEndT", bound=StreamConnection[Any, Any])


@implementer(ITCPTransport, ITLSTransport)
class MessageStreamTransport(StreamTransport[MessageEndT]):
    """
    The transport of a stream over a message connection.

    @ivar sessionno: number of the connection among those that its port has accepted, for servers only. It is
        in no interface, but programs read this attribute of Twisted's TCP transports.
    """

    __slots__ = ("sessionno",)

    sessionno: int

    def __init__(self, stream: MessageEndT, protocol: IProtocol, number: int = 0) -> None:
        """@param number: how many connections a server's port accepted before."""
        if stream.isClient:
            role = "client"
        else:
            self.sessionno = number
            role = f"{number},{stream.peer.host}"
        super().__init__(stream, stream, protocol, f"{logName(protocol)},{role}")

    def __repr__(self) -> str:
        stream = self.stream
        role = "client" if stream.isClient else "server"
        return f"<{type(self).__name__} {role} to {stream.peer.host}:{stream.peer.port}>"

    # ITCPTransport

    def getTcpNoDelay(self) -> bool:
        """Return True: data is never delayed."""
        return True

    def setTcpNoDelay(self, enabled: bool) -> None:
        """Do nothing: data is never delayed."""

    def getTcpKeepAlive(self) -> bool:
        """Return whether an idle peer is probed."""
        return True

    def setTcpKeepAlive(self, enabled: bool) -> None:
        """Do nothing: idle peers are always probed."""

    def getHandle(self) -> None:
        """Return None, since there is no socket."""

    @property
    def _tlsClientDefault(self) -> bool:
        return self.stream.isClient
