"""
One end of a stream of bytes over SMC-R: what its link asks of it, and how it ends.

Follows RFC 7609, 4.8 (ending). Bytes are the business of its L{Flow}: what is written waits until the link
flushes, once for each batch of completions, or once for a turn of the reactor.

A connection whose peer, TCP connection or link is lost lives on as long as bytes are in its ring: these are
delivered first. How it then ends is what TCP would tell: see L{txrdma.smc.stream.companion}.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, cast, Final

from twisted.internet.address import IPv4Address, IPv6Address
from twisted.internet.error import ConnectionLost
from twisted.internet.interfaces import IProtocol, IPullProducer, IPushProducer, ITCPTransport
from twisted.logger import Logger
from twisted.python.failure import Failure
from twisted.python.log import ILogContext

from txrdma.error import Refused
from txrdma.iba.types import RKey
from txrdma.logs import Seldom
from txrdma.smc.group._linkgroup import Role
from txrdma.smc.group.buffers import Element
from txrdma.smc.group.link import Link
from txrdma.smc.group.posting import Kept
from txrdma.smc.handshake.plaintcp import prefixFor
from txrdma.smc.insight import status
from txrdma.smc.presence import Use
from txrdma.smc.stream._closing import Closing, Ended, Ending, ReadEnded, Released, Send
from txrdma.smc.stream._flow import Bearing, ENDS, Flow
from txrdma.smc.stream.companion import Companion
from txrdma.smc.wire.cdc import StateFlags
from txrdma.smc.wire.clc import Accept, Confirm, Diagnosis

Address = IPv4Address | IPv6Address

_log = Logger()
_seldom = Seldom(_log)

_CLOSED: Final = int(StateFlags.CLOSED)
_ABORT: Final = int(StateFlags.ABNORMAL_CLOSE)


class Stream:
    """
    One end of one connection, without what its protocol may call.

    Slots and no timers: there may be thousands of these, mostly idle.

    @ivar token: our alert token: what the peer calls this connection.
    @ivar flow: the bytes.
    @ivar wasLost: the peer was quicker than the handshake: it has said all, and gone with its link.
    """

    __slots__ = (
        *("flow", "TLS", "connected", "disconnected", "_failure"),
        *("producer", "streamingProducer", "producerPaused", "bufferSize"),
        *("role", "link", "token", "_turn", "_element", "_rkey"),
        *("_host", "_peer", "_companion", "_use", "wasLost", "_isWhole"),
        *("_closing", "_hasStoppedWriting", "_isAborting", "_isHasty"),
        *("__weakref__",),
    )

    producer: IPushProducer | IPullProducer | None

    def __init__(self, link: Link, element: Element, tcp: ITCPTransport, role: Role) -> None:
        self.link = link
        self._turn = link.turn
        self.role = role
        self.flow = Flow(link.turn.poster, element.view, link.contexts, self)
        self.bufferSize = 65536
        self.connected = self.disconnected = 0
        self.producer = None
        self.producerPaused = self.streamingProducer = False
        self.TLS = False
        self._closing = Closing()
        self._companion: Companion | None = None
        self._use: Use | None = None
        self._host = tcp.getHost()
        self._peer = tcp.getPeer()
        self._element: Element | None = element
        self._rkey: RKey | None = None
        self._failure: Failure | None = None
        self._hasStoppedWriting = self._isAborting = self._isHasty = False
        self._isWhole = self.wasLost = False
        self.token = link.add(self, self.flow)

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
        self._rkey = answer.rkey
        self.flow.attach(self.link.bearing(answer), answer.size, answer.token)

    def start(self, protocol: IProtocol, companion: Companion) -> None:
        """Begin to serve a protocol, with what watches the TCP connection."""
        self._use = self.link.groups.presence.hold(self._swept)
        self._companion = companion
        flow = self.flow
        flow.protocol = protocol
        self.connected = 1
        flow.isOpen = True
        self._closing.established()
        prefix = prefixFor(companion.tcp, protocol)
        flow.context = {ILogContext: {"isError": 0, "system": prefix}}
        status.register(cast(Any, self))
        try:
            protocol.makeConnection(cast(Any, self))
        except BaseException:
            self.blame("makeConnection")
        flow.begin()
        if self.wasLost:
            companion.linkLost(mayVanish=True)
            if self.hasHeardEnd:
                self._closing.groupDied(flow.unread)
                self._conclude()

    def discard(self) -> None:
        """Give up: the handshake has not come to its end."""
        self.flow.early = None
        self.disconnected = 1
        # A client's buffer is not known to anybody yet; a server's may be, and be written to.
        self._released(quiet=self.role is Role.CLIENT)

    # What the flow brings: see txrdma.smc.stream._flow.Keeper

    def heard(self, state: int) -> None:
        """The peer tells how far it is with its end."""
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

    def resumed(self) -> None:
        """The application wants data again."""
        if not self.flow.isPaused:
            self.flow.deliver()

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
        return bool(self.flow.peerState & ENDS) or self._closing.over

    @property
    def awaitsDelivery(self) -> bool:
        """The application has closed, and hears so when the peer has what was posted."""
        return bool(self.disconnecting) and not self._closing.over

    @property
    def mayBeSilent(self) -> bool:
        """The peer has said that it writes no more, and owes us nothing."""
        return bool(self.flow.peerState) and not self.disconnecting

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
        return self.flow.last

    @property
    def isCut(self) -> bool:
        """The link is gone, and nothing can be sent any more."""
        return self.link.isOver

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
        if self.link.isOver:
            return True
        if self.flow.ring.produced < total or self.flow.isEnding:
            return False
        return self._turn.hasArrived(self.lastMessage)

    def look(self) -> None:
        """Take in what the link has brought."""
        self.link.look()

    @property
    def isPosted(self) -> bool:
        """Whether there is nothing to post at present."""
        return not (self.flow.backlog or self.flow.isDirty)

    def lookBeside(self) -> None:
        """Take in what other links of the group have brought."""
        self.link.group.lookBeside()

    def move(self, link: Link, bearing: Bearing, kept: Sequence[Kept]) -> None:
        """Go on by another link of the group, as this one has failed."""
        self.link = link
        self._turn = link.turn
        self._rkey = bearing.rkey
        self.flow.isDirty = False
        self.flow.move(bearing, kept)

    def linkLost(self, mayVanish: bool, arrived: int) -> None:
        """
        End the connection, because its link is gone.

        @param mayVanish: nothing that the peer sent before can be missing, even if its process has died.
        @param arrived: the number of the last message of ours that the peer has looked at.
        """
        self._isWhole = not self.flow.backlog and self.flow.written <= arrived
        companion = self._companion
        if self.disconnecting and not mayVanish:
            if companion is not None:
                companion.cut()  # the application has closed, and whether the peer has all nobody will say
        elif companion is not None:
            companion.linkLost(mayVanish)
        elif mayVanish and self.flow.early is not None:
            self.wasLost = True  # the peer was quicker than the handshake, which goes on by TCP
            return
        if companion is None or self.hasHeardEnd or (self.disconnecting and not mayVanish):
            self._closing.groupDied(self.flow.unread)
            self._conclude()

    def vanished(self) -> None:
        """The peer's process is gone; all that it sent is here, and its kernel has closed TCP in order."""
        if self._isWhole:
            self._closing.delivered()
            self.flow.peerState |= _CLOSED
            self._closing.received(self.flow.peerState, self.flow.unread)
            self._conclude()
        else:
            self.reset()

    def reset(self) -> None:
        """The peer is lost, without a word; what has arrived is read first."""
        self.flow.peerState |= _ABORT
        self._closing.received(self.flow.peerState, self.flow.unread)
        self._conclude()

    def stopped(self) -> None:
        """Post what was written, and take leave of the peer as TCP would, since the process ends."""
        if not self.flow.isDirty:
            self.flow.touch()
        self._turn.finish()
        self.fail()
        self._turn.finish()

    def remoteBuffersGone(self, rkeys: Sequence[int]) -> None:
        """The peer takes back buffers of its own, which it may when we have no more to write there."""
        if self._rkey in rkeys and (self.flow.isOpen or self.flow.backlog):
            self.violated("its buffer is taken back")

    def _swept(self) -> None:
        """Somebody has removed everything from the reactor: nobody waits for the protocol any more."""
        self.protocol = self.producer = self._use = None
        self._abort()

    def fail(self) -> None:
        """The application can't go on: drop what is not posted, and tell the peer of an orderly end."""
        self.flow.drop()
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

    def finish(self) -> bool:
        """If all is posted that will ever be written, end it; tell whether there are new flags to send."""
        closing = self._closing
        if self._isHasty:
            if self.flow.backlog:
                self.flow.drop()
        elif self.flow.backlog or self.producer is not None:
            return False
        self.flow.isEnding = False
        self.flow.isOpen = False
        if self.disconnecting:
            closing.close()
        else:
            closing.doneWriting()
            self._hasStoppedWriting = True
        before, self.flow.flags = self.flow.flags, int(closing.flags)
        return before != self.flow.flags

    def unheard(self) -> None:
        """There is something to write, and nobody to read it."""
        if self._isHasty:
            self.flow.drop()
            self.flow.touch()
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
                if self.flow.flags != event.flags:
                    self.flow.flags = int(event.flags)
                    self.flow.update()
            elif isinstance(event, ReadEnded):
                self._readEnded()
            elif isinstance(event, Ended):
                self._ended(event.how)
            elif isinstance(event, Released):
                self._released(event.quiet)

    def _released(self, quiet: bool) -> None:
        """The peer's part is over, too."""
        self._closeTCP(inOrder=self.flow.flags & (_CLOSED | _ABORT) == _CLOSED)
        element, self._element = self._element, None
        if element is not None:
            self.flow.release()
            self.link.forget(self, element, quiet)

    def _closeTCP(self, inOrder: bool) -> None:
        """Have no TCP connection any more, when all is posted that is to be said."""
        companion, self._companion = self._companion, None
        if companion is not None:
            self._turn.atEnd(partial(companion.finish, inOrder))

    def blame(self, where: str) -> None:
        """The application has raised: its connection ends, for its peer in order, as with TCP."""
        _log.failure("Unhandled error in {where}", where=where)
        self._failure = Failure()
        self._giveUp(self.fail)

    def _abort(self) -> None:
        self._giveUp(self.aborted)

    def _giveUp(self, end: Callable[[], None]) -> None:
        """End soon, in a turn of ours."""
        self.flow.drop()
        if not self.disconnected:
            self._isAborting = True
            self.disconnecting = 1
            self._turn.soon(end)

    # Kept where the bytes are, and beside them

    def getHost(self) -> Address:
        """Our address of the TCP connection."""
        return self._host

    def getPeer(self) -> Address:
        """The peer's address of the TCP connection."""
        return self._peer

    @property
    def protocol(self) -> IProtocol | None:
        """The protocol that is served; TLS puts itself in its place."""
        return cast("IProtocol | None", self.flow.protocol)

    @protocol.setter
    def protocol(self, protocol: IProtocol | None) -> None:
        self.flow.protocol = protocol

    @property
    def disconnecting(self) -> int:
        """Whether the connection is being closed, so that nothing is delivered any more."""
        return int(self.flow.isDeaf)

    @disconnecting.setter
    def disconnecting(self, disconnecting: int) -> None:
        self.flow.isDeaf = bool(disconnecting)

    @property
    def isDoubtful(self) -> bool:
        """The TCP connection has ended, and the peer may have gone with it."""
        return self.flow.isDoubtful

    @isDoubtful.setter
    def isDoubtful(self, isDoubtful: bool) -> None:
        self.flow.isDoubtful = isDoubtful

    @property
    def state(self) -> str:
        """The state of the connection's end, by Linux's name."""
        return self._closing.state.name
