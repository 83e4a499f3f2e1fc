"""
The end of a connection over SMC-R: its place on a link, the TCP connection beside it, and its close.

Follows RFC 7609, 4.8 (ending). Bytes are the business of a L{Flow}: what is written waits until the link
flushes, once for each batch of completions, or once for a turn of the reactor. Applications see a stream by
its L{Front}, which is L{txrdma.smc.stream.transport}.

A connection whose peer, TCP connection or link is lost lives on as long as bytes are in its ring: these are
delivered first. How it then ends is what TCP would tell: see L{txrdma.smc.stream.tcpmonitor}.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Final

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.tcp import Connection
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import Refused
from txrdma.iba.types import RKey
from txrdma.kit.logs import Seldom
from txrdma.smc.common.names import describe
from txrdma.smc.common.reactoruse import Use
from txrdma.smc.flow.closing import Closing, Ended, Ending, ReadEnded, Released, Send
from txrdma.smc.flow.flow import ENDS, Flow
from txrdma.smc.flow.sendqueue import RemoteBuffer, Unacknowledged
from txrdma.smc.group.buffers import Element
from txrdma.smc.group.link import Link
from txrdma.smc.stream.closedowner import CLOSED_OWNER
from txrdma.smc.stream.tcpmonitor import TCPMonitor
from txrdma.smc.terms.offer import Role
from txrdma.smc.wire.cdc import StateFlags
from txrdma.smc.wire.clc import Accept, Confirm, Diagnosis
from txrdma.streams.transport import Front

Address = IPv4Address | IPv6Address

_log = Logger()
_seldom = Seldom(_log)

_CLOSED: Final = int(StateFlags.CLOSED)
_ABORT: Final = int(StateFlags.ABNORMAL_CLOSE)

_REASONS: Final = {Ending.DONE: ConnectionDone, Ending.ABORTED: ConnectionAborted}
"""The endings that a protocol hears of by another reason than C{ConnectionLost}."""


class Stream:
    """
    An end of a connection: a member of its link, which knows no application but by its L{Front}.

    Slots and no timers: there may be thousands of these, mostly idle.

    @ivar flow: the bytes.
    @ivar host: our address of the TCP connection; C{peer}: the peer's.
    @ivar token: our alert token: what the peer calls this connection.
    @ivar disconnected: the connection has ended for the application, or never began.
    @ivar named: the link that Accept and Confirm name; it may fail before the other one of them is here.
    @ivar blocks: how often the peer's ring was too full for what was written.
    @ivar wasLost: the peer was quicker than the handshake: it has said all, and gone with its link.
    """

    __slots__ = (
        *("flow", "link", "named", "role", "token", "host", "peer", "disconnected", "wasLost"),
        *("_element", "_rkey", "_monitor", "_use", "_front"),
        *("_closing", "_failure", "_hasStoppedWriting", "_isHasty", "_isWhole", "_hasClosed", "_isBroken"),
        *("blocks", "_blockedSeconds", "_blockedSince"),
        *("__weakref__",),
    )

    def __init__(self, link: Link, element: Element, addresses: tuple[Address, Address], role: Role) -> None:
        """
        @param addresses: our address of the TCP connection, and the peer's.
        """
        self.link = self.named = link
        self.role = role
        self.flow = Flow(link.scheduler.queue, element.view, link.contexts, self)
        self._closing = Closing()
        self._monitor: TCPMonitor | None = None
        self._use: Use | None = None
        self._front: Front | None = None
        self.host, self.peer = addresses
        self._element: Element | None = element
        self._rkey: RKey | None = None
        self._failure: Failure | None = None
        self._hasStoppedWriting = self._isHasty = self._isWhole = self._hasClosed = self._isBroken = False
        self.blocks = 0
        self._blockedSeconds = self._blockedSince = 0.0
        self.wasLost = self.disconnected = False
        self.token = link.add(self, self.flow)

    # Making it

    def attach(self, answer: Accept | Confirm) -> None:
        """
        The peer's end is known.

        @raise Refused: it names a buffer that we never heard of, or the link has ended meanwhile.
        """
        if self._element is None:
            raise Refused("the link has ended meanwhile", Diagnosis.NOACTLINK)
        bearing = self.link.bearing(answer, self.named)
        self._rkey = bearing.rkey
        self.flow.attach(bearing, answer.size, answer.token)

    def start(self, front: Front, monitor: TCPMonitor, use: Use | None) -> None:
        """
        Begin to serve an application, with what watches the TCP connection.

        @param use: the handshake's, which ends, or is this stream's from now on.
        """
        presence = self.link.groups.reactorUse
        self._use = presence.hold(self._swept) if use is None else use.passOn(self._swept)
        self._monitor = monitor
        self._front = front
        flow = self.flow
        flow.isOpen = True
        self._closing.established()
        front.begun()
        flow.begin()
        if self.wasLost:
            monitor.linkLost(mayVanish=True)
            if self.hasReceivedEnd:
                self._closing.groupDied(flow.unread)
                self._conclude()

    def discard(self) -> None:
        """Give up: the handshake has not come to its end."""
        self.flow.early = None
        self.disconnected = True
        # A client's buffer is not known to anybody yet; a server's may be, and be written to.
        self._released(quiet=self.role is Role.CLIENT)

    # What the application wants: see txrdma.smc.stream.transport

    def close(self) -> None:
        """End the connection when all is posted that was written, and a producer is done."""
        self._hasClosed = True
        if self.connected and not self.flow.isDeaf:
            self.resume()  # nobody will read what comes, but the peer needs the room for it
            self.flow.isDeaf = True
            self.closeWriting()

    def closeWriting(self) -> None:
        """Write nothing any more when all is posted that was written, and a producer is done."""
        self.flow.isEnding = True
        if not self.flow.isDirty:
            self.flow.touch()

    def resume(self) -> None:
        """Deliver again what arrives, in the link's next turn."""
        flow = self.flow
        if self.connected and not flow.isDeaf and flow.isPaused:
            flow.isPaused = False
            self.link.scheduler.callSoon(self, flow.deliver)

    def abort(self) -> None:
        """End the connection at once, and forget what is not posted."""
        self._hasClosed = True
        self._giveUp(self._aborted)

    def blame(self, where: str) -> None:
        """The application has raised: its connection ends, for its peer in order, as with TCP."""
        _log.failure("Unhandled error in {where}", where=where)
        self._failure = Failure()
        self._giveUp(self.fail)

    def abortOnError(self) -> None:
        """
        Log the exception that is being handled, and abort this connection; others of the link go on.

        When that raises again, the link ends, since nothing else would end the connection.
        """
        _log.failure("An SMC-R connection is aborted by an error ({stream!r})", stream=self)
        if self._isBroken:
            self.link.failed(Failure())
        else:
            self._isBroken = True
            self._failure = Failure()
            self._giveUp(self._aborted)

    def _giveUp(self, end: Callable[[], None]) -> None:
        """End soon, in a turn of ours."""
        self.flow.drop()
        if not self.disconnected:
            self.flow.isDeaf = True
            self.link.scheduler.callSoon(self, end)

    # What the flow brings: see txrdma.smc.flow.owner.FlowOwner

    def stateReceived(self, state: int) -> None:
        """The peer tells how far it is with its end."""
        self._received(state)

    def _received(self, state: int) -> None:
        self.flow.peerState |= state
        self._closing.received(state, self.flow.unread)
        self._conclude()

    def drained(self) -> None:
        """Conclude the connection if its end was behind the bytes that were just delivered."""
        if self._closing.readEnding:
            self._conclude()

    def _conclude(self) -> None:
        """Do what the state machine says; if all is read, what was waiting behind that, too."""
        flow, closing = self.flow, self._closing
        if flow.backlog and not flow.isDirty:
            flow.touch()  # there may be nobody any more to write to
        self._happened()
        while closing.readEnding and not flow.unread and not self._isHasty:
            closing.drained()
            self._happened()
        if flow.peerState & ENDS and (flow.isPaused or not closing.readEnding):
            self._leave()

    def violated(self, what: str) -> None:
        """The peer does what it must not: this connection ends, the others of the link go on."""
        _seldom.warn(
            (self.peer.host, self.role),
            "an SMC-R connection with {peer} ends, as the peer breaks the rules: {what}",
            peer=describe(self.peer),
            what=what,
        )
        self._failure = self._failure or Failure(ConnectionLost(what))
        self._closing.fail()
        self._happened()

    # What TCP and the link tell together: see txrdma.smc.stream.tcpmonitor
    @property
    def hasReceivedEnd(self) -> bool:
        """The peer has said that it closes or aborts, or the application is gone."""
        return bool(self.flow.peerState & ENDS) or self._closing.over

    @property
    def awaitsDelivery(self) -> bool:
        """The application has closed, and hears so when the peer has what was posted."""
        return self.flow.isDeaf and not self._closing.over

    @property
    def mayBeSilent(self) -> bool:
        """The peer has said that it writes no more, and owes us nothing."""
        return bool(self.flow.peerState) and not self.flow.isDeaf

    @property
    def isStopping(self) -> bool:
        """Whether the reactor is about to end the process."""
        return self.link.isStopping

    @property
    def hasArrived(self) -> bool:
        """The peer has all that was posted."""
        return self.link.scheduler.hasArrived(self.flow.last)

    @property
    def written(self) -> int:
        """Bytes that the application has written so far."""
        return self.flow.ring.produced + self.flow.backlog

    def askForUpdate(self) -> None:
        """Send a message, even if there is nothing to tell: its completion says how far the peer is."""
        self.flow.update()

    def hasDelivered(self, total: int) -> bool:
        """
        Whether the peer has so many bytes, and what the application wants it to know of the end.

        Without a link nothing more is delivered, and nobody needs to wait.
        """
        flow = self.flow
        return self.link.isOver or not (flow.ring.produced < total or flow.isEnding) and self.hasArrived

    def doubt(self) -> None:
        """See of all that is posted whether it arrives: the TCP connection has ended."""
        self.flow.confirmsEach = True

    def look(self) -> None:
        """Take in what the link has brought."""
        self.link.look()

    @property
    def isPosted(self) -> bool:
        """Whether there is nothing to post at present."""
        return not (self.flow.backlog or self.flow.isDirty)

    def pollOtherLinks(self) -> None:
        """Take in what other links of the group have brought."""
        self.link.group.pollOtherLinks()

    def rebind(self, link: Link) -> None:
        """Begin on another link of the group: the one that was named has failed during the handshake."""
        self.link = link

    def move(self, link: Link, bearing: RemoteBuffer, kept: Sequence[Unacknowledged]) -> None:
        """Go on by another link of the group, as this one has failed."""
        self.link = link
        self._rkey = bearing.rkey
        self.flow.isDirty = False
        self.flow.move(bearing, kept)

    def linkLost(self, mayVanish: bool, arrived: int) -> None:
        """
        End the connection, because its link is gone.

        @param mayVanish: nothing that the peer sent before can be missing, even if its process has died.
        @param arrived: the number of the last message of ours that the peer has looked at.
        """
        flow = self.flow
        isPeerGone = self.link.group.hasPeerParted or self.link.scheduler.isPeerGone
        self._isWhole = isPeerGone and not flow.backlog and flow.written <= arrived
        monitor = self._monitor
        if self.flow.isDeaf and not mayVanish:
            if monitor is not None:
                monitor.cut()  # the application has closed, and whether the peer has all nobody will say
        elif monitor is not None:
            monitor.linkLost(mayVanish)
        elif mayVanish and self.flow.early is not None:
            self.wasLost = True  # the peer was quicker than the handshake, which goes on by TCP
            return
        if monitor is None or self.hasReceivedEnd or (self.flow.isDeaf and not mayVanish):
            self._closing.groupDied(self.flow.unread)
            self._conclude()

    def vanished(self) -> None:
        """
        The peer's process is gone, and its kernel has closed TCP in order: all that it sent is here.

        If it was there when the link failed, what it has sent later is not.
        """
        if self._isWhole:
            self._closing.delivered()
            self._received(_CLOSED)
        else:
            self.reset()

    def reset(self) -> None:
        """The peer is lost, without a word; what has arrived is read first."""
        self.link.group.isPeerLost = True
        self._received(_ABORT)

    def stopped(self) -> None:
        """Post what was written, and take leave of the peer as TCP would, since the process ends."""
        if not self.flow.isDirty:
            self.flow.touch()
        self.link.scheduler.finish()
        self.fail()
        self.link.scheduler.finish()

    def remoteBuffersGone(self, rkeys: Sequence[int]) -> None:
        """The peer takes back buffers of its own, which it may when we have no more to write there."""
        if self._rkey in rkeys and (self.flow.isOpen or self.flow.backlog):
            self.violated("its buffer is taken back")

    def _swept(self) -> None:
        """Somebody has removed everything from the reactor: nobody waits for the application any more."""
        self._use = None
        front, self._front = self._front, None
        if front is not None:
            front.ended(None)
        self.abort()

    def fail(self) -> None:
        """The application can't go on: drop what is not posted, and tell the peer of an orderly end."""
        self.flow.drop()
        self._closing.stopped()
        self._happened()

    def _aborted(self) -> None:
        if not self._closing.over:
            self._closing.abort()
            self._happened()

    def delivered(self) -> None:
        """The peer has all that was posted."""
        self._closing.delivered()
        self._happened()

    def expired(self) -> None:
        """The peer did not do its part of the end."""
        if self._monitor is not None:
            self._monitor.cut()  # it may never have heard of SMC-R
        self._closing.expired()
        self._happened()

    def blocked(self) -> None:
        """The peer's ring is too full for what was written, from now on."""
        self.blocks += 1
        self._blockedSince = self.link.scheduler.clock()

    def unblocked(self) -> None:
        """The peer's ring has room again, or nothing waits for it any more."""
        self._blockedSeconds += self.link.scheduler.clock() - self._blockedSince

    @property
    def blockedSeconds(self) -> float:
        """Seconds for which bytes waited for room in the peer's ring, those that still wait included."""
        waiting = self.link.scheduler.clock() - self._blockedSince if self.flow.isBlocked else 0.0
        return self._blockedSeconds + waiting

    def finish(self) -> bool:
        """If all is posted that will ever be written, end it; tell whether there are new flags to send."""
        closing = self._closing
        if self._isHasty:
            if self.flow.backlog:
                self.flow.drop()
        elif self.flow.backlog or self.flow.isNoticed:  # there is a producer
            return False
        self.flow.isEnding = self.flow.isOpen = False
        if self.flow.isDeaf:
            closing.close()
        else:
            closing.doneWriting()
            self._hasStoppedWriting = True
        before, self.flow.flags = self.flow.flags, int(closing.flags)
        return before != self.flow.flags

    def peerHasClosed(self) -> None:
        """There is something to write, and nobody to read it."""
        if self._isHasty:
            self.flow.drop()
            if not self.flow.isDirty:
                self.flow.touch()
        else:
            self._failure = self._failure or Failure(ConnectionLost())
            self.abort()

    def wasFlushed(self) -> None:
        """Let the application know that all that was written is posted."""
        flow, front = self.flow, self._front
        if front is not None and flow.isOpen and not flow.backlog:
            front.flushed()
        if front is not None and self._hasStoppedWriting:
            self._hasStoppedWriting = False
            front.writeEnded()
        self._happened()
        if flow.confirmsEach and self._monitor is not None:
            self._monitor.doubt()
        if not flow.isEnding and flow.isDeaf and not self._closing.over:
            self.link.scheduler.deliver(self, flow.last)

    # The end

    def _happened(self) -> None:
        """Do what the state machine says."""
        for event in self._closing.events():
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

    def _readEnded(self) -> None:
        flow, front = self.flow, self._front
        if not flow.isDeaf and front is not None and front.knowsHalves:
            self.link.groups.closeNotifier.add(self._notifyReadEnded)
        elif not flow.isDeaf or flow.peerState & ENDS:
            self._isHasty = flow.isDeaf = True
            self.closeWriting()

    def _notifyReadEnded(self) -> None:
        """Tell the application that all is read, unless it has closed meanwhile and so reads nothing."""
        if self._front is not None and not self._hasClosed:
            self.link.contexts.append(self.flow.context)
            try:
                self._front.readEnded()
            finally:
                self.link.contexts.pop()

    def _ended(self, how: Ending) -> None:
        """The application's part is over; it hears so after what it has delayed by no time."""
        self._failure = self._failure or Failure(_REASONS.get(how, ConnectionLost)())
        flow = self.flow
        flow.drop()
        self.disconnected = flow.isDeaf = True  # what still comes is for nobody
        self.link.group.linger(self)
        self._mayLeaveTCP(how)
        if self._front is not None:
            self.link.groups.closeNotifier.add(self._tell)

    def _tell(self) -> None:
        """Tell the application that the connection has ended, unless nobody waits for it any more."""
        front, self._front = self._front, None
        failure, self._failure = self._failure, None
        if front is not None:
            self.link.contexts.append(self.flow.context)
            try:
                front.ended(failure)
            finally:
                self.link.contexts.pop()
        use, self._use = self._use, None
        if use is not None:
            use.release()
        self._part()

    def _mayLeaveTCP(self, how: Ending) -> None:
        """
        Close TCP with the application's part, unless the peer may take that for an answer.

        A peer that has not said anything may still be in the handshake, and fall back. On this host it reads
        our Confirm before an end in order, and then what the link has brought; a reset would overtake them.
        When the link is over, an end in order would say that it has brought everything.
        """
        if self.flow.messagesReceived and how is not Ending.LOST:
            self._closeTCP(how is Ending.DONE)
        elif self.link.groups.canRest and how in (Ending.DONE, Ending.ABORTED):
            self._closeTCP(how is Ending.DONE or not self.link.isOver)

    def _leave(self) -> None:
        """
        Leave the reactor as TCP would: the peer has gone, and there is nothing to deliver or to post.

        So it is with who has paused, or may still write. What such an application does next rouses the link
        (L{txrdma.smc.group.sendscheduler.SendScheduler.schedule}).
        """
        use, flow = self._use, self.flow
        isIdle = not (flow.isDeaf or flow.backlog or flow.isNoticed)
        if use is not None and isIdle and self.link.groups.canRest:
            self._use = None
            self._closeTCP(inOrder=True)
            use.release()

    def _released(self, quiet: bool) -> None:
        """The peer's part is over, too."""
        self._closeTCP(inOrder=self.flow.flags & (_CLOSED | _ABORT) == _CLOSED)
        element, self._element = self._element, None
        if element is not None:
            self.flow.release()
            self.link.forget(self, element, quiet)
            self._part()

    def _part(self) -> None:
        """When nothing is left to be told or sent, let the flow go: a circle would wait to be collected."""
        if self._element is None and self._front is None and not self.flow.isDirty:
            self.flow.owner = CLOSED_OWNER

    def _closeTCP(self, inOrder: bool) -> None:
        """Have no TCP connection any more, when all is posted that is to be said."""
        monitor, self._monitor = self._monitor, None
        if monitor is not None:
            self.link.scheduler.callAtEnd(partial(monitor.finish, inOrder))

    # What others read of it

    @property
    def connected(self) -> bool:
        """Whether there is an application: the handshake is done, and the end not told."""
        return self._front is not None

    @property
    def tcp(self) -> Connection | None:
        """The TCP connection beside the stream; None before the handshake is done, and when it has ended."""
        monitor = self._monitor
        return None if monitor is None else monitor.tcp

    @property
    def state(self) -> str:
        """The state of the connection's end, by Linux's name."""
        return self._closing.state.name
