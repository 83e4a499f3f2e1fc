"""
A link: its queue pair, what arrives by it, and the connections that are bound to it.

Follows RFC 7609, 3.2 and 4.5, with the queue pair attributes that Linux uses. What concerns all links of a
group is L{txrdma.smc.group.group}'s. Connections are flushed once for each batch of completions, or once for
a turn of the reactor, and in between when that takes long.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, ExitStack
from math import inf
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred, TimeoutError
from twisted.logger import Logger
from twisted.python.context import theContextTracker
from twisted.python.failure import Failure

from txrdma.error import RDMAError
from txrdma.iba.types import GID, MACAddress, QPN
from txrdma.iba.verbs import Completion, QPState, ReceiveRequest
from txrdma.interfaces import IDirectLane, IPlacing, IProtectionDomain, IQueuePair
from txrdma.smc.group._linkgroup import LinkLife
from txrdma.smc.group.attachment import Attachment, FarEnd, Port
from txrdma.smc.group.buffers import Element
from txrdma.smc.group.parties import LinkOwner, Member
from txrdma.smc.group.posting import Bearing
from txrdma.smc.group.turn import HOLD_SECONDS, said, Turn
from txrdma.smc.handshake._offer import Agreement
from txrdma.smc.stream._flow import Flow
from txrdma.smc.wire.cdc import CDC_LENGTH, CDC_START, CDC_TYPE, unpackFrom
from txrdma.smc.wire.clc import Accept, AnswerV2, Confirm, sizeCode

_log = Logger()

_AnyAnswer = TypeVar("_AnyAnswer", Accept, Confirm)

_REPOST: Final = 16
"""Receives are posted again in batches: no fewer than 48 are there for the peer, as Linux has it."""

_LOOKS: Final = 64
"""Batches of completions that are taken in at once, where what has arrived must be known."""

_START: Final = CDC_START

PREPARING_SECONDS: Final = 2.0
"""Seconds to find out how a peer's buffer is reached; after that the first write waits for it."""


def receive(flow: Flow, message: tuple[int, ...]) -> None:
    """Give a CDC message to its connection, which ends if that raises."""
    try:
        flow.received(message)
    except Exception:
        flow.keeper.broke()


class Link:
    """
    A link of a group: its queue pair, and the connections on it.

    @ivar group: the link group, and C{agreement} what its two ends have agreed on.
    @ivar life: the link as the core of its group knows it, from the beginning.
    @ivar turn: what connections have to post, and when.
    @ivar route: how bytes go, or went, as the queue pair names it; C{''} before the first contact.
    @ivar isActive: connections may use the link.
    @ivar isBreaking: the link is about to end: nothing else that fails is news.
    @ivar wasHeard: the link has brought something since the group looked here.
    @ivar members: the connections that are bound to the link, those included that have ended for the
        application only.
    @ivar contexts: the stack of logging contexts of the reactor's thread.
    """

    life: LinkLife

    def __init__(self, group: LinkOwner, port: Port, domain: IProtectionDomain) -> None:
        """
        @param port: where the link begins.
        @param domain: the group's protection domain on the device of that port.
        """
        groups = group.groups
        self.group = group
        self.groups = groups
        self.port = port
        self.device = port.device.name
        self.contexts: list[Any] = theContextTracker.currentContext().contexts
        self.agreement = group.agreement
        self.psn = secrets.randbits(24)
        self.members: dict[Member, None] = {}
        self.route = ""
        self.isActive = False
        self.wasHeard = False
        self._reactor = groups.reactor
        self._presence = groups.presence
        self._flows: dict[int, Flow] = group.flows
        self._far: FarEnd | None = None
        self.isBreaking = False

        self._attachment = attachment = Attachment(
            groups.reactor, port, domain, self.agreement.version, self._completed, self._sent, self.failed
        )
        with ExitStack() as undo:
            undo.callback(attachment.close)
            self.turn = Turn(groups.reactor, attachment, self)
            undo.pop_all()
        self._poster = self.turn.poster
        self._reader = attachment.reader
        self._queuePair = attachment.queuePair
        self._receives = attachment.receives
        self._byOffset = {request.identifier: request for request in attachment.requests}
        self._used: list[ReceiveRequest] = []
        self.qpn = self._queuePair.number

    def __repr__(self) -> str:
        return f"<Link {self.qpn:06x} of {self.group!r}>"

    # Making it

    def accept(self, element: Element, token: int, isFirst: bool, hostName: bytes) -> Accept:
        """
        The server's answer to a Proposal: our end of a connection on this link (RFC 7609, A.2.2).

        @param token: the alert token, which the peer puts into each CDC message to us.
        @param isFirst: it is the group's first contact.
        @param hostName: of this host; version 2 tells it.
        """
        extension = self.agreement.extension(isFirst, hostName)
        return self._answer(Accept, element, token, self.port.candidate.mtu, isFirst, extension)

    def confirm(
        self, element: Element, token: int, accept: Accept, agreement: Agreement, hostName: bytes
    ) -> Confirm:
        """
        The client's answer to an Accept: our end of a connection on this link (RFC 7609, A.2.3).

        @param agreement: what the Accept comes to. Its enterprise ID is repeated, which need not be that of
            the group's first contact.
        """
        candidate = self.port.candidate
        extension = agreement.extension(accept.firstContact, hostName, (candidate.gid,))
        mtu = min(accept.mtu, candidate.mtu)
        return self._answer(Confirm, element, token, mtu, accept.firstContact, extension)

    def _answer(
        self,
        kind: type[_AnyAnswer],
        element: Element,
        token: int,
        mtu: int,
        isFirst: bool,
        extension: AnswerV2 | None,
    ) -> _AnyAnswer:
        candidate = self.port.candidate
        rkey, address = self.life.own[element.buffer.rkey]
        answer: _AnyAnswer = kind(
            peerID=candidate.peerID,
            gid=candidate.gid,
            mac=candidate.mac,
            qpn=self.qpn,
            rkey=rkey,
            index=element.index,
            token=token,
            sizeCode=sizeCode(element.buffer.size),
            mtu=mtu,
            address=address,
            psn=self.psn,
            firstContact=isFirst,
            version=self.agreement.version,
            v2=extension,
        )
        return answer

    def connect(self, far: FarEnd, isDirect: bool) -> None:
        """
        The peer's end is known: make the queue pair ready for it.

        @param isDirect: no router is between the two ends.
        @raise Refused: the device can't do it.
        """
        self._far = far
        self._attachment.connect(far, self.psn, isDirect)
        self.route = self._queuePair.route
        self.turn.placing = IPlacing(self._queuePair, None)
        lane = IDirectLane(self._queuePair, None)
        if lane is not None:
            unread = lane.openLane(CDC_LENGTH, CDC_START, unpackFrom)
            self._poster.openLane(lane)
            self._reader.addSource(lane.takeMessages, self._taken, unread)

    def keep(self) -> None:
        """Keep what is posted from now on: another link, about to come, may have to send it again."""
        if self._poster.kept is None:
            self._poster.keep()
            for stream in self.members:
                flow = self._flows.get(stream.token)
                if flow is not None:
                    flow.keep()

    def forgo(self) -> None:
        """Keep nothing any more: there is no other link."""
        if self._poster.kept is not None and not self.turn.isHasty:
            self._poster.forgo()

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

    def leadsTo(self, gid: GID, mac: MACAddress, qpn: QPN | None) -> bool:
        """Whether the other end is at this port, and its queue pair has this number; None: any."""
        far = self._far
        if far is None:
            return False
        return (far.gid, far.mac) == (gid, mac) and qpn in (None, far.qpn)

    @property
    def farQPN(self) -> QPN | None:
        """The number of the queue pair at the other end; None before the first contact."""
        return None if self._far is None else self._far.qpn

    def bearing(self, answer: Accept | Confirm, named: Link) -> Bearing:
        """
        The way to the peer's ring by this link.

        @param named: the link that the answer is about: another one may have failed meanwhile.
        @raise Refused: the peer never told of that buffer.
        """
        address, rkey = self.group.target(self, named, answer)
        return Bearing(self._poster, address, rkey)

    @property
    def isStopping(self) -> bool:
        """Whether the reactor is about to end the process."""
        return self.groups.isStopping

    # Connections

    def add(self, stream: Member, flow: Flow) -> int:
        """
        Bind a new connection to the link.

        @return: its alert token.
        """
        token = self.group.add(stream, flow)
        self.members[stream] = None
        return token

    @property
    def isOver(self) -> bool:
        """The link is gone; connections that still have something to read stay."""
        return self._poster.isOver

    def forget(self, stream: Member, element: Element, quiet: bool) -> None:
        """Let go of a connection that is over; if C{quiet}, the peer can't write to its element any more."""
        self.members.pop(stream, None)
        self.group.forget(stream, element, quiet)
        if not self.isOver:
            self.turn.atEnd(self.group.trim)
        else:
            self.group.trimSoon()  # it may go on by other links

    def hasten(self, stream: Member) -> None:
        """Find out soon whether the peer has all that was sent on a connection, as the process ends."""
        self.turn.hasten()
        if not stream.hasArrived:
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
        wasBusy, poster.isBusy = poster.isBusy, True
        try:
            if len(messages) == 1:
                message = messages[0]
                flow = self._flows.get(message[2])
                if flow is not None:
                    receive(flow, message)
            else:
                self._takeSeveral(messages)
            self.wasHeard = True
            self.turn.settle()
        finally:
            poster.isBusy = wasBusy
        if self._presence.isDue or self.groups.isStopping:
            self.turned()

    def _takeSeveral(self, messages: Sequence[tuple[int, ...]]) -> None:
        """Take CDC messages; see C{_take} for why what was written may go out in between."""
        poster = self._poster
        clock = self.turn.clock
        flows = self._flows
        due = clock() + HOLD_SECONDS
        for message in messages:
            if poster.dirty and clock() >= due:
                self.turn.settle()
                due = clock() + HOLD_SECONDS
            flow = flows.get(message[2])
            if flow is not None:
                receive(flow, message)

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
            if length < CDC_LENGTH or message[0] >> 8 != CDC_TYPE:
                self.group.control(self, bytes(receives[offset : offset + length]))
                continue
            if poster.dirty and clock() >= due:
                self._settle()
                due = clock() + HOLD_SECONDS
            flow = flows.get(message[2])
            if flow is not None and message[0] == _START:
                receive(flow, message)
        self.wasHeard = True

    # LLC

    def send(self, raw: bytes) -> str | None:
        """
        Post one LLC message, ahead of what waits.

        @return: how the device refused it, if it did.
        """
        if self.isOver or self._queuePair.state is not QPState.RTS:
            return None
        poster = self._poster
        request = poster.newMessage()
        poster.number(request)
        request.inline = (raw,)
        try:
            self._queuePair.postSend([request])
        except Exception as error:
            if not isinstance(error, RDMAError):
                _log.failure("A link of SMC-R ends by an error while it sent ({link!r})", link=self)
            return f"the device refused a message: {error}"
        return None

    # How it breaks

    def broken(self, text: str) -> None:
        """The queue pair is of no more use; what has arrived by it comes first."""
        if not self.isOver and not self.isBreaking:
            self.isBreaking = True
            self.look()
            self.group.linkBroken(self, text)

    def failed(self, failure: Failure) -> None:
        """End connections with an error: something of ours, or of the device's, has raised, and is logged."""
        if not self.isOver:
            self.isBreaking = True
            self.group.linkFailed(self, f"an error here: {failure.getErrorMessage()}")

    def asyncEvent(self, queuePair: IQueuePair, text: str) -> None:
        """End the link when the queue pair of the device's event is its own; the text says how it failed."""
        if queuePair is self._queuePair:
            self.broken(text)

    # Rest

    def rest(self) -> None:
        """Leave the reactor, with readers and delayed calls; what the peer does waits until C{wake}."""
        if self.isOver:
            return  # who waits for its end is told of it
        self._reader.stop()
        self.turn.rest()

    def wake(self) -> None:
        """Be part of the reactor, again or still: somebody may have removed us, and told nobody."""
        if not self.isOver and self._far is not None:
            self._reader.start()
            self.turn.wake()

    @property
    def descriptor(self) -> int:
        """The file descriptor that becomes readable with what the peer sends, once C{attend} was called."""
        return self._reader.fileno()

    def attend(self) -> None:
        """
        Take in what has arrived while the link rests.

        What arrives from now on makes C{descriptor} readable.
        """
        if not self.isOver and self._far is not None:
            self._reader.attend()
            if not self.isOver:
                self.turn.look()

    def rouse(self) -> None:
        """There is something to do in the link's rest."""
        self._presence.rouse()

    # The end

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Post nothing from now on; meanwhile a turn goes on, after which what was to be called is."""
        turn, poster = self.turn, self._poster
        self.isBreaking = True
        self.isActive = False
        poster.end()
        wasBusy, poster.isBusy = poster.isBusy, True
        try:
            yield
        finally:
            poster.isBusy = wasBusy
        if not wasBusy:
            turn.remind()
        if self.isStopping:
            turn.finish()
        self.turned()

    def discard(self) -> None:
        """Let go of everything: the link has never been used."""
        self.turn.end()
        self.closeAttachment()

    def closeAttachment(self) -> None:
        """Let go of the queue pair, and what belongs to it."""
        self._attachment.close()
