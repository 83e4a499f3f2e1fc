"""
A link: its queue pair, its buffers, the connections on it.

Follows RFC 7609, 3.2 and 4.5, with the queue pair attributes that Linux uses. L{txrdma.smc._linkgroup}
decides what LLC says; here it is put into practice. Connections are flushed once for each batch of
completions, or once for a turn of the reactor.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Sequence
from typing import Any, cast, Final, TYPE_CHECKING

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.context import theContextTracker

from txrdma.error import RDMAError, Refused
from txrdma.iba.types import MTU, QPN, RKey
from txrdma.iba.verbs import (
    Access,
    AddressVector,
    Capacity,
    Completion,
    QPAttributes,
    QPKind,
    QPState,
    ReceiveRequest,
    Segment,
    SendRequest,
)
from txrdma.interfaces import IQueuePair
from txrdma.smc._closing import LINGER_TIMEOUT
from txrdma.smc._linkgroup import (
    GroupEnded,
    GroupKey,
    LinkConfirmed,
    LinkEnd,
    LinkGroup,
    LinkRefused,
    RemoteRKeysDeleted,
    RKeyConfirmed,
    RKeyRefused,
    RKeysDeleted,
)
from txrdma.smc.cdc import CDC_LENGTH, CDC_TYPE, unpackFrom
from txrdma.smc.clc import Accept, Confirm, Diagnosis, sizeCode
from txrdma.smc.memory import BufferPool, Element, MAX_BUFFERS, RemoteMemoryBuffer
from txrdma.smc.posting import Poster, SIGNAL_EVERY
from txrdma.verbs.completions import CompletionReader

if TYPE_CHECKING:
    from txrdma.smc.groups import LinkGroups
    from txrdma.smc.stream import Stream

_log = Logger()

_RECEIVES: Final = 64
_RECEIVE_SIZE: Final = 48
_REPOST: Final = 16
"""Receives are posted again in batches: no fewer than 48 are there for the peer, as Linux has it."""

_WINDOW: Final = 40
"""Messages that the peer may not have received yet: it has 48 receives."""

_ROUNDS: Final = 8
"""How often producers may write before the others on the reactor get their turn."""

_SIGNAL_MASK: Final = SIGNAL_EVERY - 1

_Handler = Callable[[tuple[int, ...]], None]


class Link:
    """
    One link, which is a group of its own: its queue pair, buffers and connections.

    @ivar isNew: it was made for the connection that is being made: the first contact.
    @ivar isBusy: connections will be flushed at the end of what is being done.
    @ivar dirty: connections with something to post.
    @ivar flushed: connections that want to know when it is posted.
    @ivar contexts: the stack of logging contexts of the reactor's thread.
    """

    def __init__(self, groups: LinkGroups, key: GroupKey) -> None:
        device = groups.device
        self.groups = groups
        self.device = device.name
        self.isNew = True
        self.isBusy = False
        self.isOver = False
        self.dirty: list[Stream] = []
        self.flushed: list[Stream] = []
        self.contexts: list[Any] = theContextTracker.currentContext().contexts
        self.mtu = groups.mtu
        self.psn = secrets.randbits(24)
        self._reactor = groups.reactor
        self._handlers: dict[int, _Handler] = {}
        self._waiting: list[Deferred[None]] = []
        self._rkeys: dict[RKey, list[Deferred[None]]] = {}
        self._soon: list[Callable[[], None]] = []
        self._lingering: dict[Stream, float] = {}
        self._turning: IDelayedCall | None = None
        self._timer: IDelayedCall | None = None
        self._peerQPN = QPN(0)
        self._acknowledged = 0
        self._isActive = False
        self._isFull = False
        self._wasHeard = False

        self._domain = device.createProtectionDomain()
        self._channel = device.createChannel()
        capacity = Capacity(
            maxSend=3 * (_WINDOW + 8), maxReceive=_RECEIVES, maxSendSegments=2, maxInline=groups.maxInline
        )
        self._queue = device.createCompletionQueue(_RECEIVES, self._channel)
        self._reader = CompletionReader(groups.reactor, self._channel, [self._queue], self._completed)
        # Nobody sleeps for completions of sends, unless the window is full.
        self._sendChannel = device.createChannel()
        self._sendQueue = device.createCompletionQueue(capacity.maxSend, self._sendChannel)
        self._sendReader = CompletionReader(
            groups.reactor, self._sendChannel, [self._sendQueue], self._sendsCompleted
        )
        self._queuePair = self._domain.createQueuePair(QPKind.RC, self._sendQueue, self._queue, capacity)
        self._pool = BufferPool(self._domain)
        self.poster = Poster(self._domain, self._queuePair.capacity)
        self.isStaged = self.poster.isStaged

        self._queuePair.modify(
            QPAttributes(
                state=QPState.INIT,
                pkeyIndex=0,
                port=1,
                access=Access.LOCAL_WRITE | Access.REMOTE_WRITE,
            )
        )
        self._receives = memoryview(bytearray(_RECEIVES * _RECEIVE_SIZE))
        region = self._domain.registerMemory(self._receives, Access.LOCAL_WRITE)
        self._requests = [
            ReceiveRequest(at, (Segment(region.address + at, _RECEIVE_SIZE, region.lkey),))
            for at in range(0, _RECEIVES * _RECEIVE_SIZE, _RECEIVE_SIZE)
        ]
        self._byOffset = dict(zip((each.identifier for each in self._requests), self._requests, strict=True))
        self._used: list[ReceiveRequest] = []
        end = LinkEnd(groups.mac, groups.gid, self._queuePair.number)
        self.key = key
        self.core = LinkGroup(key.role, end)
        self.name = f"{key.role.value} {self._queuePair.number:06x}"

    def __repr__(self) -> str:
        return f"<Link {self.name} {self.core.state} with {len(self._handlers)} connections>"

    # Making it

    def terms(self, element: Element) -> dict[str, Any]:
        """What Accept and Confirm say of our end."""
        buffer = element.buffer
        return {
            "peerID": self.groups.peerID,
            "gid": self.groups.gid,
            "mac": self.groups.mac,
            "qpn": self._queuePair.number,
            "rkey": buffer.rkey,
            "index": element.index,
            "sizeCode": sizeCode(buffer.size),
            "address": buffer.region.address,
            "psn": self.psn,
        }

    def connect(self, answer: Accept | Confirm) -> None:
        """First contact: the peer's end is known; L{confirmed} tells when the link is up."""
        mtu = MTU(min(answer.mtu, self.mtu))
        self._peerQPN = answer.qpn
        self.core.learn(answer.rkey, answer.address)
        self._queuePair.postReceive(self._requests)
        self._reader.start()
        try:
            self._queuePair.modify(
                QPAttributes(
                    state=QPState.RTR,
                    address=AddressVector(answer.gid, self.groups.gidIndex, hopLimit=1, dmac=answer.mac),
                    pathMTU=mtu,
                    destinationQPN=answer.qpn,
                    rqPSN=answer.psn,
                    maxDestRDAtomic=1,
                    minRNRTimer=5,
                )
            )
            self._queuePair.modify(
                QPAttributes(
                    state=QPState.RTS, sqPSN=self.psn, timeout=15, retryCount=7, rnrRetry=7, maxRDAtomic=1
                )
            )
        except RDMAError as error:
            raise Refused(f"the queue pair did not get ready: {error}", Diagnosis.ERR_RDYLNK) from error
        self.core.confirm(self._reactor.seconds(), LinkEnd(answer.mac, answer.gid, answer.qpn))
        self._turnCore()

    def confirmed(self) -> Deferred[None]:
        """Fires when connections may use the link, fails with L{Refused} when they never will."""
        waiting: Deferred[None] = Deferred(self._waiting.remove)
        self._waiting.append(waiting)
        if self.isOver:
            self._answer(Refused("the link is gone", Diagnosis.NOACTLINK))
        elif self._isActive:
            self._answer(None)
        return waiting

    def _answer(self, refused: Refused | None) -> None:
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if refused is None:
                each.callback(None)
            else:
                each.errback(refused)

    async def reserve(self) -> Element:
        """
        A ring for a connection, of which the peer may be told.

        @raise Refused: there is none.
        """
        size = self.groups.ringSize()
        buffer = self._pool.withRoom(size)
        if buffer is None:
            if len(self._pool) >= MAX_BUFFERS:
                raise Refused("the link group has its buffers", Diagnosis.MEM)
            try:
                buffer = self._pool.grow(size)
            except (RDMAError, OSError) as error:
                raise Refused(f"no memory for a buffer: {error}", Diagnosis.MEM) from error
            if self.isNew:
                buffer.isAgreed = True
                self.core.agreed(buffer.rkey)
            else:
                self._rkeys[buffer.rkey] = []
                self.core.confirmRKey(buffer.rkey, buffer.region.address, self._reactor.seconds())
                self._turnCore()
        element = buffer.take()
        if not buffer.isAgreed:
            try:
                await self._agreement(buffer)
                if not self.core.usable:
                    raise Refused("the link takes no more meanwhile", Diagnosis.NOACTLINK)
            except BaseException:
                buffer.give(element, quiet=True)
                raise
        return element

    def _agreement(self, buffer: RemoteMemoryBuffer) -> Deferred[None]:
        waiters = self._rkeys.get(buffer.rkey)
        if waiters is None:
            raise Refused("the peer does not take our buffer", Diagnosis.ERR_RTOK)
        agreement: Deferred[None] = Deferred(waiters.remove)
        waiters.append(agreement)
        return agreement

    def leadsTo(self, answer: Accept | Confirm) -> bool:
        """Is this the queue pair at the other end?"""
        return answer.qpn == self._peerQPN

    def target(self, answer: Accept | Confirm) -> int:
        """
        Where the peer's ring begins.

        @raise Refused: the peer never told of that buffer.
        """
        return self.core.target(answer.rkey, answer.address, answer.size, answer.index)

    @property
    def route(self) -> str:
        """How the bytes go."""
        return self._queuePair.route

    # Connections

    def add(self, stream: Stream) -> int:
        """
        A connection comes.

        @return: its alert token.
        """
        token = self.core.add(stream, self._reactor.seconds())
        self._handlers[token] = stream.receivedEarly
        return token

    def begin(self, stream: Stream) -> None:
        """A connection is complete, and takes messages."""
        self._handlers[stream.token] = stream.received

    def linger(self, stream: Stream) -> None:
        """The application is gone, the peer has some time for its part."""
        if not self.isOver:
            self._lingering[stream] = self._reactor.seconds() + LINGER_TIMEOUT
            self._reschedule()

    def forget(self, stream: Stream, element: Element, quiet: bool) -> None:
        """A connection is over."""
        self._lingering.pop(stream, None)
        self._handlers.pop(stream.token, None)
        element.buffer.give(element, quiet)
        if not self.isOver:
            self.core.remove(stream.token, self._reactor.seconds())
            self._trim()

    def _trim(self) -> None:
        """Take back buffers that nobody uses."""
        if not self.isOver:
            self.core.deleteRKeys(self._pool.trim(), self._reactor.seconds())
            self._turnCore()

    def soon(self, call: Callable[[], None]) -> None:
        """Call it from our turn, not from the application's."""
        self._soon.append(call)
        if not self.isBusy:
            self.schedule()

    def schedule(self) -> None:
        """Have a turn when what is being done is done."""
        if self._turning is None:
            self._turning = self._reactor.callLater(0, self._turn)

    def _turn(self) -> None:
        self._turning = None
        self.isBusy = True
        self._finishTurn()

    def _finishTurn(self) -> None:
        """Post what there is, and see what comes of it, some rounds long."""
        for _ in range(_ROUNDS):
            if self._soon:
                soon, self._soon = self._soon, []
                for call in soon:
                    call()
            if self.dirty:
                self._flush()
            if not self._soon and (not self.dirty or self._isFull):
                break
        self.isBusy = False
        if self._soon or (self.dirty and self._isActive and not self._isFull):
            self.schedule()

    def _flush(self) -> None:
        """Post what connections have."""
        dirty = self.dirty
        room = _WINDOW - self.poster.sent + self._acknowledged
        requests: list[SendRequest] = []
        if len(dirty) == 1 and room > 0:  # as mostly, which is worth some lines
            stream = dirty.pop()
            stream.isDirty = False
            stream.fill(requests)
            if requests:
                self._post(requests)
            if not stream.backlog:
                stream.pending.clear()  # it is posted
        else:
            if len(dirty) > room:
                room = self._makeRoom(room)
                if room <= 0:
                    return
            self.dirty = dirty[room:]
            dirty = dirty[:room]
            for stream in dirty:
                stream.isDirty = False
                stream.fill(requests)
            if requests:
                self._post(requests)
            for stream in dirty:
                if not stream.backlog:
                    stream.pending.clear()
        if self.poster.isUsed:
            self.poster.clear()
        if self.flushed:
            flushed, self.flushed = self.flushed, []
            for stream in flushed:
                stream.wasFlushed()

    def _post(self, requests: list[SendRequest]) -> None:
        try:
            self._queuePair.postSend(requests)
        except RDMAError as error:
            self._broken(f"posting failed: {error}")

    def _makeRoom(self, room: int) -> int:
        """See which messages have arrived; if these are too few, be told of the next."""
        if not self._isActive:
            return 0
        self._sendsCompleted(self._sendQueue.poll(_WINDOW))
        room = _WINDOW - self.poster.sent + self._acknowledged
        if room <= 0:
            self._waitForSends()
        return room

    def stall(self, stream: Stream) -> None:
        """It has more to post, when there is room to copy it."""
        stream.isDirty = True
        self.dirty.append(stream)
        self._waitForSends()

    def _waitForSends(self) -> None:
        if not self._isFull:
            self._isFull = True
            self._sendReader.start()

    # Completions

    def _completed(self, batch: Sequence[Completion]) -> None:
        """What has been received."""
        self.isBusy = True
        handlers = self._handlers
        receives = self._receives
        used = self._used
        byOffset = self._byOffset
        for offset, status, _opcode, _qpn, length, _immediate, *_ in batch:
            if status:
                self._broken(status.name)
                break
            used.append(byOffset[offset])
            message = unpackFrom(receives, offset)
            if length < CDC_LENGTH or message[0] != CDC_TYPE:
                self._control(bytes(receives[offset : offset + length]))
                continue
            handler = handlers.get(message[3])
            if handler is not None and message[1] == CDC_LENGTH:
                try:
                    handler(message)
                except Exception:
                    _log.failure("while {handler!r} took a message", handler=handler)
        self._wasHeard = True
        if self.dirty and not self._soon:
            self._flush()
        if self.dirty or self._soon:
            self._finishTurn()
        if len(used) >= _REPOST and not self.isOver:  # while the answers are under way
            self._queuePair.postReceive(used)
            used.clear()
        self.isBusy = False

    def _sendsCompleted(self, batch: Sequence[Completion]) -> None:
        """These messages have arrived, and all before them."""
        for completion in batch:
            if completion.status:
                self._broken(completion.status.name)
                return
            self._acknowledged = completion.identifier
        if batch:
            if self.isStaged:
                self.poster.completed(self._acknowledged)
            if self._isFull:
                self._isFull = False
                self._sendReader.stop()
                self.schedule()

    # LLC

    def _control(self, raw: bytes) -> None:
        self.core.received(raw, self._reactor.seconds())
        self._turnCore()

    def _broken(self, text: str) -> None:
        """The queue pair is of no more use."""
        if not self.isOver:
            self.core.linkDown(self._reactor.seconds(), text)
            self._turnCore()

    def asyncEvent(self, queuePair: IQueuePair, text: str) -> None:
        """The device tells something."""
        if queuePair is self._queuePair:
            self._broken(text)

    def retire(self) -> None:
        """The peer does not know this group: the next connection makes another."""
        self.core.retire(self._reactor.seconds())
        self._turnCore()

    def _turnCore(self) -> None:
        """Do what the core says."""
        for raw in self.core.outgoing():
            self._send(raw)
        for event in self.core.events():
            if isinstance(event, LinkConfirmed):
                self._isActive = True
                self.isNew = False
                self._answer(None)
            elif isinstance(event, LinkRefused):
                self._over("CONFIRM LINK failed", event.diagnosis)
            elif isinstance(event, RKeyConfirmed):
                self._rkeyAnswered(event.rkey, None)
                self.soon(self._trim)  # who wanted it may have gone
            elif isinstance(event, RKeyRefused):
                refused = Refused("the peer does not take our buffer", Diagnosis.ERR_RTOK)
                self._rkeyAnswered(event.rkey, refused)
            elif isinstance(event, RKeysDeleted):
                for rkey in event.rkeys:
                    self._pool.drop(rkey)
            elif isinstance(event, RemoteRKeysDeleted):
                for stream in self.streams():
                    stream.remoteBuffersGone(event.rkeys)
            elif isinstance(event, GroupEnded):
                self._over(event.text, Diagnosis.NOACTLINK)
        if not self.isOver:
            self._reschedule()

    def _send(self, raw: bytes) -> None:
        """One LLC message, ahead of what waits."""
        if self._queuePair.state is not QPState.RTS:
            return
        request, buffer = self.poster.newMessage()
        self.poster.number(request)
        buffer[:] = raw
        try:
            self._queuePair.postSend([request])
        except RDMAError as error:
            _log.warn("{link!r} can't send: {error}", link=self, error=error)

    def _rkeyAnswered(self, rkey: RKey, refused: Refused | None) -> None:
        for buffer in self._pool:
            if buffer.rkey == rkey:
                buffer.isAgreed = refused is None
        for waiter in self._rkeys.pop(rkey, ()):
            if refused is None:
                waiter.callback(None)
            else:
                waiter.errback(refused)
        if refused is not None:
            self._pool.drop(rkey)

    # Time

    def _reschedule(self) -> None:
        times = [self.core.deadline(), *self._lingering.values()]
        deadline = min((each for each in times if each is not None), default=None)
        timer = self._timer
        if timer is not None and (deadline is None or deadline < timer.getTime()):
            timer.cancel()
            self._timer = timer = None
        if deadline is not None and timer is None:
            delay = max(deadline - self._reactor.seconds(), 0.0)
            self._timer = self._reactor.callLater(delay, self._expired)

    def _expired(self) -> None:
        self._timer = None
        now = self._reactor.seconds()
        if self._wasHeard:
            self._wasHeard = False
            self.core.heard = now
        self.core.expired(now)
        for stream in [stream for stream, until in self._lingering.items() if until <= now]:
            stream.expired()
        self._turnCore()

    # The end

    def streams(self) -> list[Stream]:
        """The connections on this link, those included that have ended for the application only."""
        return [cast("Stream", stream) for stream in self.core.connections.values()]

    def discard(self) -> None:
        """The handshake that it was made for has failed."""
        if self.isNew:
            self._over("not needed", Diagnosis.NOACTLINK)

    def close(self, text: str) -> None:
        """End it, and all connections on it."""
        self._over(text, Diagnosis.NOACTLINK)

    def _over(self, text: str, diagnosis: Diagnosis) -> None:
        if self.isOver:
            return
        self.isOver = True
        self._isActive = False
        if self._handlers:
            _log.info("{link!r} ends: {text}", link=self, text=text)
        self.groups.forget(self)
        for timer in (self._timer, self._turning):
            if timer is not None and timer.active():
                timer.cancel()
        self._timer = self._turning = None
        self._answer(Refused(text, diagnosis))
        for rkey in list(self._rkeys):
            self._rkeyAnswered(rkey, Refused(text, diagnosis))
        soon, self._soon = self._soon, []
        for call in soon:
            call()
        for stream in self.streams():
            stream.linkLost()
        self.dirty.clear()
        self._lingering.clear()
        self._reader.stop()
        self._sendReader.stop()
        self._queuePair.close()
        for queue in (self._queue, self._sendQueue):
            queue.close()
        for channel in (self._channel, self._sendChannel):
            channel.close()
        self._pool.close()
        self.poster.close()
        self._domain.close()
