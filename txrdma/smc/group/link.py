"""
A link: its queue pair, its buffers, the connections on it.

Follows RFC 7609, 3.2 and 4.5, with the queue pair attributes that Linux uses. L{txrdma.smc.group._linkgroup}
decides what LLC says; here it is put into practice. Connections are flushed once for each batch of
completions, or once for a turn of the reactor, and in between when that takes long.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from math import inf
from typing import Any, cast, Final

from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.interfaces import IDelayedCall
from twisted.logger import Logger
from twisted.python.context import theContextTracker
from twisted.python.failure import Failure

from txrdma.error import RDMAError, Refused
from txrdma.iba.types import QPN
from txrdma.iba.verbs import Completion, QPState, ReceiveRequest
from txrdma.interfaces import IDirectLane, IPlacing, IQueuePair
from txrdma.logs import Seldom
from txrdma.smc.group._linkgroup import (
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
from txrdma.smc.group.attachment import Attachment
from txrdma.smc.group.buffers import BufferPool, Element, MAX_BUFFERS
from txrdma.smc.group.parties import Member, Membership
from txrdma.smc.group.turn import HOLD_SECONDS, said, Turn
from txrdma.smc.insight.status import describe
from txrdma.smc.stream._closing import LINGER_TIMEOUT
from txrdma.smc.stream._flow import Flow
from txrdma.smc.wire.cdc import CDC_LENGTH, CDC_TYPE, packInto, unpackFrom
from txrdma.smc.wire.clc import Accept, Confirm, Diagnosis, sizeCode

_log = Logger()
_seldom = Seldom(_log)

_REPOST: Final = 16
"""Receives are posted again in batches: no fewer than 48 are there for the peer, as Linux has it."""

_LOOKS: Final = 64
"""Batches of completions that are taken in at once, where what has arrived must be known."""

PREPARING_SECONDS: Final = 2.0
"""Seconds to find out how a peer's buffer is reached; after that the first write waits for it."""


class Link:
    """
    One link, which is a group of its own: its queue pair, buffers and connections.

    @ivar isNew: it was made for the connection that is being made: the first contact.
    @ivar turn: what connections have to post, and when.
    @ivar route: how bytes go, or went, as the queue pair names it; C{''} before the first contact.
    @ivar isActive: connections may use the link.
    @ivar contexts: the stack of logging contexts of the reactor's thread.
    """

    def __init__(self, groups: Membership, key: GroupKey) -> None:
        device = groups.device
        self.groups = groups
        self.device = device.name
        self.isNew = True
        self.contexts: list[Any] = theContextTracker.currentContext().contexts
        self.mtu = groups.mtu
        self.psn = secrets.randbits(24)
        self._reactor = groups.reactor
        self._flows: dict[int, Flow] = {}
        self._waiting: list[Deferred[None]] = []
        self._lingering: dict[Member, float] = {}
        self._timer: IDelayedCall | None = None
        self._peerQPN = QPN(0)
        self.route = ""
        self._isBreaking = False
        self.isActive = False
        self._wasHeard = self._isResting = False
        self._presence = groups.presence

        self._attachment = attachment = Attachment(
            groups.reactor, device, groups.maxInline, self._completed, self._sent, self.failed
        )
        self.turn = Turn(groups.reactor, attachment, self)
        self._poster = self.turn.poster
        self._reader = attachment.reader
        self._queuePair = attachment.queuePair
        self._pool = BufferPool(attachment.domain)
        self._receives = attachment.receives
        self._byOffset = {request.identifier: request for request in attachment.requests}
        self._used: list[ReceiveRequest] = []
        end = LinkEnd(groups.mac, groups.gid, self._queuePair.number)
        self.key = key
        self.core = LinkGroup(key.role, end, timing=groups.timing)
        self.name = f"{key.role.value} {self._queuePair.number:06x}"

    def __repr__(self) -> str:
        return f"<Link {self.name} {self.core.state} with {len(self._flows)} connections>"

    # Making it

    def terms(self, element: Element) -> dict[str, Any]:
        """The fields of Accept and Confirm that describe our end of a connection (RFC 7609, A.2.2)."""
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
        self._peerQPN = answer.qpn
        self.core.learn(answer.rkey, answer.address)
        self._attachment.connect(answer, self.mtu, self.psn, self.groups.gidIndex)
        self.route = self._queuePair.route
        self.turn.placing = placing = IPlacing(self._queuePair, None)
        self.core.isWatched = placing is not None
        lane = IDirectLane(self._queuePair, None)
        if lane is not None:
            lane.openLane(CDC_LENGTH, CDC_TYPE, packInto, unpackFrom)
            self._poster.lane = lane
            self._reader.lookAt(lane.takeMessages, self._taken)
        self.core.confirm(self._reactor.seconds(), LinkEnd(answer.mac, answer.gid, answer.qpn))
        self._turnCore()

    async def prepare(self, answer: Accept | Confirm) -> None:
        """Find out how the peer's buffer is reached, so that no write has to wait for that."""
        placing = self.turn.placing
        if placing is not None:
            known: Deferred[None] = Deferred()
            placing.prepare(answer.rkey, lambda: None if known.called else known.callback(None))
            if known.called:
                return
            try:
                await known.addTimeout(PREPARING_SECONDS, self._reactor)
            except TimeoutError:
                pass  # a busy peer: the first write will wait for it

    def confirmed(self) -> Deferred[None]:
        """Fires when connections may use the link, fails with L{Refused} when they never will."""
        waiting: Deferred[None] = Deferred(self._waiting.remove)
        self._waiting.append(waiting)
        if self.isOver:
            self._answer(Refused("the link is gone", Diagnosis.NOACTLINK))
        elif self.isActive:
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

        @raise Refused: there is none; C{NOACTLINK}: the link has ended meanwhile, another may have one.
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
                self._pool.ask(buffer)
                self.core.confirmRKey(buffer.rkey, buffer.region.address, self._reactor.seconds())
                self._turnCore()
        element = buffer.take()
        if not buffer.isAgreed:
            self.core.promised += 1  # nobody else gets the place meanwhile
            try:
                await self._pool.agreement(buffer)
                if not self.core.isOpen:
                    raise Refused("the link takes no more meanwhile", Diagnosis.NOACTLINK)
            except BaseException:
                buffer.give(element, quiet=True)
                raise
            finally:
                self.core.promised -= 1
        return element

    def leadsTo(self, answer: Accept | Confirm) -> bool:
        """Is this the queue pair at the other end?"""
        return answer.qpn == self._peerQPN

    def target(self, answer: Accept | Confirm) -> int:
        """
        The place where the peer's ring begins, in the peer's address space.

        @raise Refused: the peer never told of that buffer.
        """
        return self.core.target(answer.rkey, answer.address, answer.size, answer.index)

    @property
    def isStopping(self) -> bool:
        """Whether the reactor is about to end the process."""
        return self.groups.isStopping

    # Connections

    def add(self, stream: Member, flow: Flow) -> int:
        """
        Add a connection to the link.

        @return: its alert token.
        """
        token = self.core.add(stream, self._reactor.seconds())
        self._flows[token] = flow
        return token

    @property
    def isOver(self) -> bool:
        """The link is gone; connections that still have something to read stay."""
        return self._poster.isOver

    def linger(self, stream: Member) -> None:
        """The application is gone, the peer has some time for its part."""
        if not self.isOver:
            self._lingering[stream] = self._reactor.seconds() + LINGER_TIMEOUT
            self._reschedule()

    def forget(self, stream: Member, element: Element, quiet: bool) -> None:
        """Let go of a connection that is over; if C{quiet}, the peer can't write to its element any more."""
        self._lingering.pop(stream, None)
        self._flows.pop(stream.token, None)
        element.buffer.give(element, quiet)
        if not self.isOver:
            self.core.remove(stream.token, self._reactor.seconds())
            self.turn.atEnd(self._trim)

    def _trim(self) -> None:
        """Take back buffers that nobody uses, after the last that is said of their connections."""
        if not self.isOver:
            self.core.deleteRKeys(self._pool.trim(), self._reactor.seconds())
            self._turnCore()

    def hasten(self, stream: Member) -> None:
        """Find out soon whether the peer has all that was sent on a connection, as the process ends."""
        self.turn.hasten()
        if not self.turn.hasArrived(stream.lastMessage):
            stream.askForUpdate()

    def turned(self) -> None:
        """A turn has ended: see whether somebody waited for that."""
        if not self._poster.isBusy:
            if self._presence.isDue:
                self._presence.settle()
            if self.isStopping:
                self.groups.checkStopped()

    # Completions

    def look(self) -> None:
        """Take in what has arrived, now."""
        for _ in range(_LOOKS):
            if self.isOver or not self._reader.poll():
                break

    def _sent(self, batch: Sequence[Completion]) -> None:
        self.turn.completed(batch)

    def _completed(self, batch: Sequence[Completion]) -> None:
        """Take what has been received."""
        poster = self._poster
        wasBusy, poster.isBusy = poster.isBusy, True
        try:
            self._take(batch)
            self._settle()
        finally:
            poster.isBusy = wasBusy
        if self._presence.isDue or self.groups.isStopping:
            self.turned()

    def _taken(self, messages: Sequence[tuple[int, ...]]) -> None:
        """Take the CDC messages that a direct lane brings."""
        poster = self._poster
        clock = self.turn.clock
        flows = self._flows
        wasBusy, poster.isBusy = poster.isBusy, True
        due = clock() + HOLD_SECONDS if len(messages) > 1 else inf
        try:
            for message in messages:
                if poster.dirty and clock() >= due:
                    self.turn.settle()
                    due = clock() + HOLD_SECONDS
                flow = flows.get(message[3])
                if flow is not None and message[1] == CDC_LENGTH:
                    flow.received(message)
            self._wasHeard = True
            self.turn.settle()
        finally:
            poster.isBusy = wasBusy
        if self._presence.isDue or self.groups.isStopping:
            self.turned()

    def _settle(self) -> None:
        """Flush what was written."""
        self.turn.settle()
        used = self._used
        if len(used) >= _REPOST and not self.isOver:  # while the answers are under way
            self._queuePair.postReceive(used)
            used.clear()

    def _take(self, batch: Sequence[Completion]) -> None:
        """
        Hand on what was received, each to its connection.

        While that takes long, what was written meanwhile goes out: otherwise the peer has nothing to do until
        we are ready, and then we have not until it is.
        """
        poster = self._poster
        clock = self.turn.clock
        flows = self._flows
        receives = self._receives
        used = self._used
        byOffset = self._byOffset
        due = clock() + HOLD_SECONDS if len(batch) > 1 else inf
        for offset, status, _opcode, _qpn, length, _immediate, *_ in batch:
            if status:
                self.broken(said(status))
                break
            used.append(byOffset[offset])
            message = unpackFrom(receives, offset)
            if length < CDC_LENGTH or message[0] != CDC_TYPE:
                self._control(bytes(receives[offset : offset + length]))
                continue
            if poster.dirty and clock() >= due:
                self._settle()
                due = clock() + HOLD_SECONDS
            flow = flows.get(message[3])
            if flow is not None and message[1] == CDC_LENGTH:
                flow.received(message)
        self._wasHeard = True

    # LLC

    def _control(self, raw: bytes) -> None:
        self.core.received(raw, self._reactor.seconds())
        self._turnCore()

    def broken(self, text: str) -> None:
        """The queue pair is of no more use; what has arrived by it comes first."""
        if not self.isOver and not self._isBreaking:
            self._isBreaking = True
            self.look()
            self.core.linkDown(self._reactor.seconds(), text)
            self._turnCore()

    def failed(self, failure: Failure) -> None:
        """Something of ours, or of the device's, has raised, and is logged: connections end with an error."""
        if not self.isOver:
            self._isBreaking = True
            self.core.fail(f"an error here: {failure.getErrorMessage()}")
            self._turnCore()

    def asyncEvent(self, queuePair: IQueuePair, text: str) -> None:
        """End the link when the queue pair of the device's event is its own; the text says how it failed."""
        if queuePair is self._queuePair:
            self.broken(text)

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
                self.isActive = True
                self.isNew = False
                self._answer(None)
            elif isinstance(event, LinkRefused):
                self._over("CONFIRM LINK failed", event.diagnosis)
            elif isinstance(event, RKeyConfirmed):
                self._pool.answered(event.rkey, None)
                self.turn.atEnd(self._trim)  # who wanted it may have gone
            elif isinstance(event, RKeyRefused):
                refused = Refused("the peer does not take our buffer", Diagnosis.ERR_RTOK)
                self._pool.answered(event.rkey, refused)
            elif isinstance(event, RKeysDeleted):
                for rkey in event.rkeys:
                    self._pool.drop(rkey)
            elif isinstance(event, RemoteRKeysDeleted):
                for stream in self.streams():
                    stream.remoteBuffersGone(event.rkeys)
            elif isinstance(event, GroupEnded):
                self._over(event.text, Diagnosis.NOACTLINK, mayVanish=True)
        if not self.isOver:
            self._reschedule()

    def _send(self, raw: bytes) -> None:
        """One LLC message, ahead of what waits."""
        if self._queuePair.state is not QPState.RTS:
            return
        poster = self._poster
        request, buffer = poster.newMessage()
        poster.number(request)
        buffer[:] = raw
        try:
            self._queuePair.postSend([request])
        except Exception as error:
            if not isinstance(error, RDMAError):
                _log.failure("A link of SMC-R ends by an error while it sent ({link!r})", link=self)
            self.core.linkDown(self._reactor.seconds(), f"the device refused a message: {error}")

    # Time

    def _reschedule(self) -> None:
        times = [self.core.deadline(), *self._lingering.values()]
        deadline = min((each for each in times if each is not None), default=None)
        timer = self._timer
        isActive = timer is not None and timer.active()  # somebody else may have cancelled it
        if timer is not None and not (isActive and deadline is not None and timer.getTime() <= deadline):
            self._cancelTimer()
        if deadline is not None and self._timer is None and not self._isResting:
            delay = max(deadline - self._reactor.seconds(), 0.0)
            self._timer = self._reactor.callLater(delay, self._expired)

    def _expired(self) -> None:
        self._timer = None
        try:
            self._pass()
        except Exception:
            failure = Failure()
            _log.failure(
                "A link of SMC-R ends by an error while it looked at the time ({link!r})", failure, link=self
            )
            self.failed(failure)

    def _pass(self) -> None:
        """Time has passed: do what is due."""
        self.look()
        now = self._reactor.seconds()
        if self._wasHeard:
            self._wasHeard = False
            self.core.heard = now
        self.core.expired(now)
        for stream in [stream for stream, until in self._lingering.items() if until <= now]:
            stream.expired()
        self._turnCore()

    # Rest

    def rest(self) -> None:
        """Leave the reactor, with readers and delayed calls; what the peer does waits until C{wake}."""
        if self.isOver:
            return  # who waits for its end is told of it
        self._isResting = True
        self._reader.stop()
        self.turn.rest()
        self._cancelTimer()

    def wake(self) -> None:
        """Be part of the reactor, again or still: somebody may have removed us, and told nobody."""
        if self.isOver or self._peerQPN == 0:
            return
        self._isResting = False
        self._reader.start()
        self.turn.wake()
        self._reschedule()

    def rouse(self) -> None:
        """There is something to do in the link's rest."""
        self._presence.rouse()

    def _cancelTimer(self) -> None:
        timer, self._timer = self._timer, None
        if timer is not None and timer.active():
            timer.cancel()

    # The end

    def streams(self) -> list[Member]:
        """The connections on this link, those included that have ended for the application only."""
        return [cast("Member", stream) for stream in self.core.connections.values()]

    def discard(self) -> None:
        """The handshake that it was made for has failed."""
        if self.isNew:
            self._over("not needed", Diagnosis.NOACTLINK)

    def close(self, text: str) -> None:
        """End it, and all connections on it, in order: the peer hears of it by CDC and DELETE LINK."""
        if self.isOver:
            return
        self.turn.finish()
        for stream in self.streams():
            if stream.connected:
                stream.stopped()
        self.core.shutdown(self._reactor.seconds())
        self._isBreaking = True  # nobody waits for an answer
        for raw in self.core.outgoing():
            self._send(raw)
        self._over(text, Diagnosis.NOACTLINK)

    def _over(self, text: str, diagnosis: Diagnosis, mayVanish: bool = False) -> None:
        """
        End the link and its connections.

        @param mayVanish: perhaps the peer's process has died; then it may have said all.
        """
        if self.isOver:
            return
        turn, poster = self.turn, self._poster
        poster.isOver = True
        wasBusy, poster.isBusy = poster.isBusy, True
        try:
            with self.groups.forgetting(self):
                with self._enduring("told of that"):
                    self._tellEnd(text, diagnosis, mayVanish)
                self._release()
        finally:
            poster.isBusy = wasBusy
        if self.isStopping:
            turn.finish()
        self.turned()

    def _tellEnd(self, text: str, diagnosis: Diagnosis, mayVanish: bool) -> None:
        """Tell everybody who waits for something of the link, and all its connections."""
        self.isActive = False
        arrived = self.turn.arrived()
        streams = self.streams()
        alive = sum(not stream.disconnected and not stream.hasHeardEnd for stream in streams)
        if alive:
            _seldom.info(
                self.key.witness,
                "{count} SMC-R connections with {peer} by {device} end: {reason}",
                count=alive,
                peer=describe(streams[0].getPeer()),
                device=self.device,
                reason=text,
            )
        self._answer(Refused(text, diagnosis))
        self._pool.refuseAll(Refused(text, diagnosis))
        for stream in streams:
            with self._enduring("told a connection of that"):
                stream.linkLost(mayVanish and self.turn.placing is not None, arrived)
                if stream.connected:
                    self.groups.orphaned(stream)

    def _release(self) -> None:
        """Let go of everything, children first."""
        self._cancelTimer()
        self._lingering.clear()
        with self._enduring("ended its turns"):
            self.turn.end()
        with self._enduring("closed its buffers"):
            self._pool.close()  # rings that are not read up stay as long as somebody holds them
        self._attachment.close()

    @contextmanager
    def _enduring(self, what: str) -> Iterator[None]:
        """Log what raises at the end of the link; the rest is done all the same."""
        try:
            yield
        except Exception:
            _log.failure("A link of SMC-R is over; an error while it {what} ({link!r})", what=what, link=self)
