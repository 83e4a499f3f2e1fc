"""
The local end of an SMC-R connection: joins its flow, its link, the TCP connection beside it, and its
transport.

Follows RFC 7609, 4.8 (closing). The bytes belong to a L{Flow}, the states of closing to a L{Lifecycle}.
Applications see a stream through its transport: L{txrdma.smc.stream.transport}.

C{loseConnection} leads to C{connectionLost} as follows: C{close} marks the flow as ending. The next flush
sends the backlog, and calls C{finish}, which sends CLOSED with the last message. C{wasFlushed} requests its
acknowledgement. C{delivered} then produces C{Ended}, and the close notifier calls C{connectionLost} in the
next reactor iteration. When the peer has sent CLOSED, too, C{Released} frees the token and the buffer.

If the peer, its TCP connection or the link is lost, bytes that are still in the ring are delivered first. The
reason of the end is the one TCP would report: see L{txrdma.smc.stream.tcpmonitor}.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.main import CONNECTION_LOST
from twisted.internet.tcp import Connection
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import Refused
from txrdma.iba.types import RKey
from txrdma.kit.connectionlog import describe
from txrdma.kit.delayedcalls import nextCalls
from txrdma.kit.logs import RateLimitedLogger
from txrdma.smc.common.names import diagnosisName
from txrdma.smc.common.reactoruse import Use
from txrdma.smc.flow.closing import (
    Ended,
    Ending,
    Lifecycle,
    LINGER_TIMEOUT,
    LOST_TIMEOUT,
    ReadEnded,
    Released,
    Send,
)
from txrdma.smc.flow.flow import ENDS, Flow
from txrdma.smc.flow.sendqueue import RemoteBuffer, Unacknowledged
from txrdma.smc.group.buffers import Element
from txrdma.smc.group.link import Link
from txrdma.smc.stream.tcpmonitor import TCPMonitor
from txrdma.smc.terms.offer import Role
from txrdma.smc.wire.cdc import StateFlags
from txrdma.smc.wire.clc import Accept, Confirm, Diagnosis
from txrdma.streams.transport import Address, ONE_SEND, StreamTransport

_log = Logger()
_rateLimited = RateLimitedLogger(_log)

_CLOSED: Final = int(StateFlags.CLOSED)
_ABORT: Final = int(StateFlags.ABNORMAL_CLOSE)
_PRESUMED: Final = 0x100 | _ABORT
"""
State flags of a peer that seems lost because TCP was reset. The bit that no CDC message has makes them differ
from the flags that the peer sends if it is alive, so that these are still processed.
"""

_DONE: Final = Failure(ConnectionDone())
"""The reason of orderly ends, which all connections share as over TCP."""


def _errorOf(how: Ending) -> Exception:
    """Return the reason of an end that was not orderly."""
    return ConnectionAborted() if how is Ending.ABORTED else ConnectionLost()


class Stream:
    """
    The local end of a connection.

    It has slots and no timers, since a process may have thousands of them, mostly idle.

    @ivar flow: the bytes of the connection.
    @ivar host: local address of the TCP connection; C{peer}: address of the peer.
    @ivar token: local alert token, by which the peer addresses this connection.
    @ivar disconnected: the connection has ended for the application, or never began.
    @ivar named: the link that Accept and Confirm name; it may fail before the handshake completes.
    @ivar blocks: number of times that the peer's ring was full.
    @ivar wasLost: the link ended before the local handshake completed.
    @ivar _use: this connection's use of the reactor, until C{connectionLost}.
    @ivar _transport: the application's transport, between C{connectionMade} and C{connectionLost}.
    @ivar _failure: reason for C{connectionLost}, as soon as it is known.
    @ivar _hasClosed: the application has called C{loseConnection} or C{abortConnection}.
    @ivar _hasStoppedWriting: the write side is closed, and the application is not notified yet.
    @ivar _closesAfterFlush: the peer has ended its side, and the protocol knows no half-close: the next flush
        closes the connection, and drops what does not fit.
    @ivar _isWhole: when the link ended, all bytes of both directions had arrived.
    @ivar _isAborting: the backlog is discarded, and the abort is not sent yet: a flush in between must not
        send the end of writing.
    @ivar _isBroken: L{abortOnError} was called; C{_mayBeWritten}: L{cannotMove} was called.
    """

    __slots__ = (
        *("flow", "link", "named", "role", "token", "host", "peer", "disconnected", "wasLost"),
        *("_element", "_rkey", "_monitor", "_use", "_transport"),
        *(
            "_closing",
            "_failure",
            "_hasStoppedWriting",
            "_closesAfterFlush",
            "_isWhole",
            "_hasClosed",
            "_isAborting",
            "_isBroken",
            "_mayBeWritten",
        ),
        *("blocks", "_blockedSeconds", "_blockedSince"),
        *("__weakref__",),
    )

    def __init__(self, link: Link, element: Element, addresses: tuple[Address, Address], role: Role) -> None:
        self.link = self.named = link
        self.role = role
        self.flow = Flow(link.scheduler.queue, element.view, link.contexts, self)
        self._closing = Lifecycle()
        self._monitor: TCPMonitor | None = None
        self._use: Use | None = None
        self._transport: StreamTransport[Any] | None = None
        self.host, self.peer = addresses
        self._element: Element | None = element
        self._rkey: RKey | None = None
        self._failure: Failure | None = None
        self._hasStoppedWriting = self._closesAfterFlush = self._isWhole = self._hasClosed = False
        self._isAborting = self._isBroken = self._mayBeWritten = False
        self.blocks = 0
        self._blockedSeconds = self._blockedSince = 0.0
        self.wasLost = self.disconnected = False
        self.token = link.add(self, self.flow)

    # Setup

    def attach(self, answer: Accept | Confirm) -> None:
        """Set the peer's buffer and token from its answer; raises L{Refused}."""
        if self._element is None:
            raise Refused("the link has ended", Diagnosis.NOACTLINK)
        remoteBuffer = self.link.remoteBuffer(answer, self.named)
        self._rkey = remoteBuffer.rkey
        self.flow.attach(remoteBuffer, answer.size, answer.token)

    def start(self, transport: StreamTransport[Any], monitor: TCPMonitor, use: Use | None) -> None:
        """Connect the application; the use of the reactor passes from the handshake to this stream."""
        reactorUse = self.link.groups.reactorUse
        self._use = reactorUse.hold(self._readersRemoved) if use is None else use.passOn(self._readersRemoved)
        self._monitor = monitor
        self._transport = transport
        flow = self.flow
        flow.isOpen = not self.disconnected  # an exception may have ended it during the handshake
        self._closing.established()
        transport.begun()
        flow.begin()
        if self.disconnected:
            self._closeTCP(inOrder=False)
            self.link.groups.closeNotifier.add(self._notify)
        if self.wasLost:
            monitor.linkLost(mayHaveExited=True)
            if self.hasReceivedEnd:
                self._closing.groupDied(flow.unread)
                self._conclude()

    def discard(self) -> None:
        """Release the stream after a failed handshake."""
        self.flow.early = None
        self.disconnected = True
        # The peer of a client does not know the buffer yet; the peer of a server may know it, and write to
        # it.
        self._released(quiet=self.role is Role.CLIENT)

    # Called by the transport: see txrdma.smc.stream.transport

    def close(self) -> None:
        """Close the connection after all written bytes are posted and a producer is done."""
        self._hasClosed = True
        if self.connected and not self.flow.discardsInput:
            self.resume()  # received bytes are dropped from now on, to free space for the peer
            self.flow.discardsInput = True
            self.closeWriting()

    def closeWriting(self) -> None:
        """Close the write side after all written bytes are posted and a producer is done."""
        self.flow.isEnding = True
        if not self.flow.isDirty:
            self.flow.touch()

    def resume(self) -> None:
        """Resume delivery, before the next flush."""
        flow = self.flow
        if self.connected and not flow.discardsInput and flow.isPaused:
            flow.isPaused = False
            self.link.scheduler.callSoon(self, flow.deliver)

    def abort(self) -> None:
        """Abort the connection, and discard bytes that are not posted."""
        self._hasClosed = True
        if not self.disconnected:  # now, since the abort of the peer may be processed before this one
            self._failure = self._failure or Failure(ConnectionAborted())
        self._isAborting = True
        self._giveUp(self._aborted)

    def blame(self, where: str) -> None:
        """Log an exception of the application, and close its connection in order."""
        _log.failure("Unhandled error in {where}", where=where)
        self._failure = Failure()
        self._giveUp(self.fail)

    def abortOnError(self) -> None:
        """Log the current exception, and abort this connection; if that fails, the link ends."""
        _log.failure("An SMC-R connection is aborted by an error ({stream!r})", stream=self)
        if self._isBroken:
            self.link.failed(Failure())
        else:
            self._isBroken = self._isAborting = True
            self._failure = Failure()
            self.flow.drop()
            self.flow.discardsInput = True
            self.link.scheduler.callSoon(self, self._aborted)

    def _giveUp(self, end: Callable[[], None]) -> None:
        """Discard the backlog, and end the connection before the next flush."""
        self.flow.drop()
        if not self.disconnected:
            self.flow.discardsInput = True
            self.link.scheduler.callSoon(self, end)

    # Called by the flow: see txrdma.smc.flow.owner.FlowOwner

    def stateReceived(self, state: int) -> None:
        """Handle state flags of the peer that differ from the previous ones."""
        self.flow.peerState |= state
        self._closing.received(state, self.flow.unread)
        self._conclude()

    def drained(self) -> None:
        """Handle that queued bytes were delivered to the application."""
        if self._closing.readEnding:
            self._conclude()

    def _conclude(self) -> None:
        """Act on events of the state machine, and on endings that waited for the bytes to be read."""
        flow, closing = self.flow, self._closing
        if flow.backlog and not flow.isDirty:
            flow.touch()  # the peer may have closed: the flush drops the backlog
        self._handleClosingEvents()
        while closing.readEnding and not flow.unread and not self._closesAfterFlush:
            closing.drained()
            self._handleClosingEvents()
        if flow.peerState & ENDS and (flow.isPaused or not closing.readEnding):
            self._leaveReactor()

    def violated(self, what: str) -> None:
        """Close this connection because the peer violated the protocol; others of the link continue."""
        self._close(f"the peer violated the protocol: {what}")

    def declined(self, diagnosis: Diagnosis) -> None:
        """Close this connection because the peer declined SMC-R when this end had begun to use it."""
        self._close(f"the peer declined SMC-R after the handshake: {diagnosisName(diagnosis)}")

    def _close(self, why: str) -> None:
        """Log why this end closes the connection, and close it."""
        _rateLimited.warn(
            (self.peer.host, self.role),
            "SMC-R connection with {peer} closed because {why}",
            peer=describe(self.peer),
            why=why,
        )
        self._failure = self._failure or Failure(ConnectionLost(why))
        self._closing.fail()
        self._handleClosingEvents()

    # Used by the TCP monitor and the group

    @property
    def hasReceivedEnd(self) -> bool:
        """Whether the peer has closed or aborted, or the application has been notified of the end."""
        return bool(self.flow.peerState & ENDS) or self._closing.isOver

    @property
    def awaitsDelivery(self) -> bool:
        """Whether the application has closed, and waits until the peer has received all posted bytes."""
        return self.flow.discardsInput and not self._closing.isOver

    @property
    def mayBeSilent(self) -> bool:
        """Whether no data is expected: the peer has finished writing, but the application still reads."""
        return bool(self.flow.peerState) and not self.flow.discardsInput

    @property
    def isStopping(self) -> bool:
        """Whether the reactor is about to end the process."""
        return self.link.isStopping

    @property
    def isShared(self) -> bool:
        """Whether the link is shared memory."""
        return self.link.scheduler.lane is not None

    @property
    def hasArrived(self) -> bool:
        """Whether the peer has received all posted messages."""
        return self.link.scheduler.hasArrived(self.flow.last)

    @property
    def written(self) -> int:
        """Number of bytes that the application has written."""
        return self.flow.ring.produced + self.flow.backlog

    def afterDelayedCalls(self, call: Callable[[], None]) -> None:
        """Make a call in the next iteration of the reactor, after the delayed calls that are due."""
        groups = self.link.groups
        nextCalls(groups.reactor).add(partial(groups.closeNotifier.add, call))

    def askForUpdate(self) -> None:
        """Send a message even without data: its completion acknowledges all earlier ones."""
        self.flow.update()

    def hasDelivered(self, total: int) -> bool:
        """Return whether the peer has received this many bytes and the close; True without a link."""
        flow = self.flow
        return self.link.isOver or not (flow.ring.produced < total or flow.isEnding) and self.hasArrived

    def clockSetBack(self) -> None:
        """Renew the timers of the connection, because the system time was set back."""
        if self._monitor is not None:
            self._monitor.clockSetBack()

    def confirmEach(self) -> None:
        """Request an acknowledgement of each message, because the TCP connection has ended."""
        self.flow.confirmsEach = True

    def poll(self) -> None:
        self.link.poll()

    def checkReceipt(self) -> float:
        """Process received messages of the link; return the time of the last one, by the group's clock."""
        link = self.link
        link.poll()
        return link.lastReceipt(link.group.seconds())

    @property
    def isPosted(self) -> bool:
        return not (self.flow.backlog or self.flow.isDirty)

    def pollOtherLinks(self) -> None:
        """Poll the other links of the group."""
        self.link.group.pollOtherLinks()

    def rebind(self, link: Link) -> None:
        """Use another link of the group, because the named one failed during the handshake."""
        self.link = link

    def move(self, link: Link, remoteBuffer: RemoteBuffer, unacknowledged: Sequence[Unacknowledged]) -> None:
        """Continue on another link of the group, because this one has failed."""
        self.link = link
        self._rkey = remoteBuffer.rkey
        self.flow.isDirty = False
        self.flow.move(remoteBuffer, unacknowledged)

    def linkLost(self, mayHaveExited: bool, arrived: int) -> None:
        """
        End the connection with its link.

        @param mayHaveExited: no data is missing, even if the peer's process has died.
        @param arrived: number of the last message that the peer has received.
        """
        flow, monitor = self.flow, self._monitor
        hasPeerEnded = self.link.group.hasPeerClosed or self.link.scheduler.hasPeerEnded
        self._isWhole = hasPeerEnded and not flow.backlog and flow.written <= arrived
        isUnconfirmed = flow.discardsInput and not mayHaveExited  # closed locally, without an acknowledgement
        if self._closing.isOver and self.hasArrived:
            pass  # TCP closes in order, since the peer may still be in its handshake
        elif isUnconfirmed:
            if monitor is not None:
                monitor.cut()
        elif monitor is not None:
            monitor.linkLost(mayHaveExited)
        elif mayHaveExited and flow.early is not None:
            self.wasLost = True  # the local handshake still continues on TCP
            return
        if monitor is None or self.hasReceivedEnd or isUnconfirmed:
            self._closing.groupDied(flow.unread)
            self._conclude()
        if flow.isEnding and not flow.isDirty:
            flow.touch()  # an exception has interrupted the flush that closes the write side

    def cannotMove(self) -> None:
        """End the connection, because only its peer continues on another link and may write to the buffer."""
        self._mayBeWritten = True
        self.linkLost(False, 0)

    def peerExited(self) -> None:
        """Handle the end of the peer's process after a FIN: a reset, unless everything has arrived."""
        if self._isWhole:
            self._closing.delivered()
            self.stateReceived(_CLOSED)
        else:
            self.reset()

    def reset(self) -> None:
        """Handle the loss of the peer; received bytes are read first."""
        self.link.group.isPeerLost = True
        self.flow.peerState |= _PRESUMED
        self._closing.peerLost(self.flow.unread)
        self._conclude()

    def stopped(self) -> None:
        """Flush, and close as TCP would when a process ends; the application gets L{ConnectionLost}."""
        if not self.flow.isDirty:
            self.flow.touch()
        self.link.scheduler.finish()
        if not self._closing.isOver and self._failure is None:
            self._failure = Failure(CONNECTION_LOST)
        self.fail()
        self.link.scheduler.finish()

    def remoteBuffersDeleted(self, rkeys: Sequence[int]) -> None:
        """
        Handle DELETE RKEY of the peer's buffers: a violation if bytes remain to be written there.

        A peer that has closed deletes its buffer after a time, even if its last bytes are not read here yet.
        """
        flow = self.flow
        if self._rkey in rkeys and not flow.peerState & ENDS and (flow.isOpen or flow.backlog):
            self.violated("the peer deleted its buffer before it closed")

    def _readersRemoved(self) -> None:
        """Abort without notifying the application: other code has removed all readers, as trial does."""
        self._use = None
        transport, self._transport = self._transport, None
        if transport is not None:
            transport.ended(None)
        self.abort()

    def fail(self) -> None:
        """Discard the backlog, and close; the peer sees an orderly end."""
        self.flow.drop()
        self._closing.stopped()
        self._handleClosingEvents()

    def _aborted(self) -> None:
        self._isAborting = False
        if self._isBroken:
            self._closing = self._closing.restarted(self.flow.flags, self.flow.peerState)
        if not self._closing.isOver:
            self._closing.abort()
            self._handleClosingEvents()

    def delivered(self) -> None:
        """Handle that the peer has received all posted messages."""
        self._closing.delivered()
        self._handleClosingEvents()

    def expired(self) -> None:
        """Release the connection: the peer did not close in time."""
        if self._monitor is not None:
            self._monitor.cut()  # the peer may not have completed its handshake, and may wait on TCP
        self._closing.expired()
        self._handleClosingEvents()

    def blocked(self) -> None:
        """Start measuring: the peer's ring is full."""
        self.blocks += 1
        self._blockedSince = self.link.scheduler.clock()

    def unblocked(self) -> None:
        """Stop measuring: the peer's ring has free space, or the backlog was dropped."""
        self._blockedSeconds += self.link.scheduler.clock() - self._blockedSince

    @property
    def blockedSeconds(self) -> float:
        """Seconds for which bytes waited for space in the peer's ring, including the current wait."""
        waiting = self.link.scheduler.clock() - self._blockedSince if self.flow.isBlocked else 0.0
        return self._blockedSeconds + waiting

    def finish(self) -> bool:
        """Close the write side if everything is posted; return True if there are new state flags to send."""
        closing = self._closing
        if self._isAborting:
            return False
        if self._closesAfterFlush:
            if self.flow.backlog:
                self.flow.drop()
        elif self.flow.backlog or self.flow.hasProducer:  # there is a producer
            return False
        self.flow.isEnding = self.flow.isOpen = False
        if self.flow.discardsInput:
            closing.close()
        else:
            closing.doneWriting()
            self._hasStoppedWriting = True
        before, self.flow.flags = self.flow.flags, int(closing.flags)
        return before != self.flow.flags

    def peerHasClosed(self) -> None:
        """Handle writes after the peer has closed: drop them, or abort."""
        flow = self.flow
        # TCP accepts one write after the peer has closed, and reports the reset to one that may write more.
        mayWrite = not flow.isEnding or flow.hasProducer
        isLast = not mayWrite and flow.backlog <= ONE_SEND and flow.peerState & ENDS == _CLOSED
        if self._closesAfterFlush or isLast:
            flow.drop()
            if not flow.isDirty:
                flow.touch()
        else:
            self._failure = self._failure or Failure(ConnectionLost())
            self.abort()

    def wasFlushed(self) -> None:
        """Notify the application that all written bytes are posted, and request delivery of a close."""
        flow, transport = self.flow, self._transport
        if transport is not None and flow.isOpen and not flow.backlog:
            transport.flushed()
        if transport is not None and self._hasStoppedWriting:
            self._hasStoppedWriting = False
            transport.writeEnded()
        self._handleClosingEvents()
        if flow.confirmsEach and self._monitor is not None:
            self._monitor.confirmEach()
        if not flow.isEnding and flow.discardsInput and not self._closing.isOver:
            self.link.scheduler.deliver(self, flow.last)

    # The end

    def _handleClosingEvents(self) -> None:
        """Act on the events of the close state machine."""
        closing = self._closing
        while closing.pending:
            for event in closing.events():
                if isinstance(event, Send):
                    if self.flow.flags != event.flags:
                        self.flow.flags = int(event.flags)
                        self.flow.update()
                elif isinstance(event, ReadEnded):
                    self._readEnded()
                elif isinstance(event, Ended):
                    self._ended(event.how)
                elif isinstance(event, Released):
                    self._released(event.quiet)
            if closing.isOver and self.link.group.isOver:
                closing.groupDied(0)  # after the end of the application and of the link, nothing follows

    def _readEnded(self) -> None:
        flow, transport = self.flow, self._transport
        if not flow.discardsInput and transport is not None and transport.knowsHalves:
            self.link.groups.closeNotifier.add(self._notifyReadEnded)
        elif not flow.discardsInput or flow.peerState & ENDS:
            self._closesAfterFlush = flow.discardsInput = True
            self.closeWriting()

    def _notifyReadEnded(self) -> None:
        """Call C{readConnectionLost} of the application, unless it has closed meanwhile."""
        if self._transport is not None and not self._hasClosed:
            self.link.contexts.append(self.flow.context)
            try:
                self._transport.readEnded()
            finally:
                self.link.contexts.pop()

    def _ended(self, how: Ending) -> None:
        """End the connection for the application; C{connectionLost} follows in the next reactor iteration."""
        if self._failure is None:
            self._failure = _DONE if how is Ending.DONE else Failure(_errorOf(how))
        flow = self.flow
        flow.drop()
        self.disconnected = flow.discardsInput = True  # drop what is still received
        try:
            if self._element is not None:  # else it is released already: an exception has interrupted its end
                self.link.group.linger(self, LOST_TIMEOUT if self._closing.isPresumed else LINGER_TIMEOUT)
            self._mayCloseTCP(how)
        finally:
            if self._transport is not None:
                self.link.groups.closeNotifier.add(self._notify)

    def _notify(self) -> None:
        """Call C{connectionLost} of the application, and end the use of the reactor."""
        transport, self._transport = self._transport, None
        failure, self._failure = self._failure, None
        if transport is not None:
            self.link.contexts.append(self.flow.context)
            try:
                transport.ended(failure)
            finally:
                self.link.contexts.pop()
        use, self._use = self._use, None
        if use is not None:
            use.release()
        self._breakCycle()

    def _mayCloseTCP(self, how: Ending) -> None:
        """
        Close TCP with the application's end, unless the peer might misinterpret that.

        A peer without any message yet may still be in its handshake, and would fall back to TCP. On the same
        host it reads the Confirm before a FIN.
        """
        if self.flow.messagesReceived and how is not Ending.LOST:
            self._closeTCP(how is Ending.DONE)
        elif self.link.groups.canRest and how in (Ending.DONE, Ending.ABORTED):
            self._closeTCP(how is Ending.DONE or not self.link.isOver)

    def _leaveReactor(self) -> None:
        """
        Leave the reactor as TCP would: the peer has closed, and nothing remains to be delivered or sent.

        The next call of a paused or writing application returns the link to the reactor.
        """
        use, flow = self._use, self.flow
        isIdle = not (flow.discardsInput or flow.backlog or flow.hasProducer)
        if use is not None and isIdle and self.link.groups.canRest:
            self._use = None
            self._closeTCP(inOrder=True)
            use.release()

    def _released(self, quiet: bool) -> None:
        """Free the token and the buffer, because the connection has ended on both sides."""
        self._closeTCP(inOrder=self.flow.flags & (_CLOSED | _ABORT) == _CLOSED)
        element, self._element = self._element, None
        if element is not None:
            self.flow.release()
            self.link.forget(self, element, quiet and not self._mayBeWritten)
            self._breakCycle()

    def _breakCycle(self) -> None:
        """Break the reference cycle of stream and flow when nothing is left to report or send."""
        if self._element is None and self._transport is None and not self.flow.isDirty:
            self.flow.owner = _CLOSED_OWNER

    def _closeTCP(self, inOrder: bool) -> None:
        """Close the TCP connection after the next flush."""
        monitor = self._monitor
        if monitor is not None:
            self.link.scheduler.callAtEnd(partial(monitor.finish, inOrder))
            self._monitor = None

    # Status

    @property
    def connected(self) -> bool:
        """Whether an application is connected: the handshake is done, and the end not reported."""
        return self._transport is not None

    @property
    def tcp(self) -> Connection | None:
        monitor = self._monitor
        return None if monitor is None else monitor.tcp

    @property
    def state(self) -> str:
        return self._closing.state.name


class ClosedOwner:
    """Owns the flow of a connection that has ended on both sides, so that the stream can be freed."""

    isPosted: Final = True

    def _ignore(self, *_: object) -> None:
        """Do nothing: there is neither an application nor a peer left."""

    wasFlushed = delivered = stateReceived = violated = drained = peerHasClosed = pollOtherLinks = blocked = (
        unblocked
    ) = _ignore

    def finish(self) -> bool:
        return False

    def abortOnError(self) -> None:
        _log.failure("Error in the bookkeeping of an SMC-R connection that has ended")

    def blame(self, where: str) -> None:
        self.abortOnError()


_CLOSED_OWNER: Final = ClosedOwner()
