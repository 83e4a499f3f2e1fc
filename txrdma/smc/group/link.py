"""
A link of a group: its queue pair, received messages, and the connections bound to it.

Follows RFC 7609, 3.2 and 4.5, with the queue pair attributes that Linux uses. Each received CDC message is
passed to the flow that its token names, each LLC message to the group (L{txrdma.smc.group.group}).
L{txrdma.smc.group.sendscheduler} decides when the bytes of connections are sent.
"""

from __future__ import annotations

import secrets
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, ExitStack
from functools import partial
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.context import theContextTracker
from twisted.python.failure import Failure

from txrdma.error import RDMAError
from txrdma.iba.types import GID, MACAddress, QPN, RKey
from txrdma.iba.verbs import Completion, QPState, ReceiveRequest
from txrdma.interfaces import IDirectLane, IProtectionDomain, IQueuePair
from txrdma.kit.logs import errorText
from txrdma.smc.flow.flow import Flow
from txrdma.smc.flow.sendqueue import RemoteBuffer
from txrdma.smc.group._groupstate import LinkLife
from txrdma.smc.group.attachment import Attachment, DevicePort, PeerEnd
from txrdma.smc.group.buffers import Element
from txrdma.smc.group.interfaces import LinkedStream, LinkOwner
from txrdma.smc.group.sendscheduler import FLUSH_SECONDS, SendScheduler, statusText
from txrdma.smc.terms.offer import Agreement
from txrdma.smc.wire.cdc import CDC_LENGTH, CDC_START, CDC_TYPE, unpackFrom
from txrdma.smc.wire.clc import Accept, AnswerV2, Confirm, sizeCode

_log = Logger()

_AnyAnswer = TypeVar("_AnyAnswer", Accept, Confirm)

_REPOST: Final = 16
"""Receives are reposted in batches of 16, so that at least 48 are posted, as on Linux."""

_POLL_BATCHES: Final = 64
"""Largest number of batches of completions processed by one poll."""

_START: Final = CDC_START

PREPARING_SECONDS: Final = 0.2
"""
Seconds for which a new connection waits for the address of the peer's buffer; then the first write waits for
it. A peer that is busy, or whose process has closed its last connection, does not answer meanwhile.
"""


def receive(flow: Flow, message: tuple[int, ...]) -> None:
    """Pass a CDC message to its flow; if that raises, the connection is aborted."""
    try:
        flow.received(message)
    except Exception:
        flow.owner.abortOnError()


async def resolveBuffer(lane: IDirectLane, rkey: RKey, clock: IReactorTime, late: Callable[[], None]) -> None:
    """
    Ask the peer for the address of its buffer, and wait for it at most L{PREPARING_SECONDS}.

    @param late: called if the address arrives later than that.
    """
    isKnown = False
    known: Deferred[None] | None = None

    def arrived() -> None:
        nonlocal isKnown
        if known is None:
            isKnown = True
        elif known.called:
            late()
        else:
            known.callback(None)

    lane.prepare(rkey, arrived)
    if isKnown:
        return
    known = Deferred()
    try:
        await known.addTimeout(PREPARING_SECONDS, clock)
    except TimeoutError:
        pass


class Link:
    """
    A link of a group: its queue pair, and the connections on it.

    @ivar group: the link group; C{agreement}: its terms.
    @ivar life: the link's state in the LLC core of the group.
    @ivar scheduler: sends the queued bytes of connections.
    @ivar route: route of the queue pair, such as C{'rocev2'}; C{''} before the first contact.
    @ivar isActive: connections may use the link.
    @ivar isBreaking: the link is about to end; further failures are ignored.
    @ivar hasReceived: something was received since L{lastReceipt} was called.
    @ivar members: connections bound to the link, including those that have ended for the application only.
    @ivar contexts: stack of logging contexts of the reactor's thread.
    """

    life: LinkLife

    def __init__(self, group: LinkOwner, port: DevicePort, domain: IProtectionDomain) -> None:
        groups = group.groups
        self.group = group
        self.groups = groups
        self.port = port
        self.device = port.device.name
        self.contexts: list[Any] = theContextTracker.currentContext().contexts
        self.agreement = group.agreement
        self.psn = secrets.randbits(24)
        self.members: dict[LinkedStream, None] = {}
        self.route = ""
        self.isActive = False
        self.hasReceived = False
        self._reactor = groups.reactor
        self._reactorUse = groups.reactorUse
        self._flows: dict[int, Flow] = group.flows
        self._peerEnd: PeerEnd | None = None
        self.isBreaking = False

        self._attachment = attachment = Attachment(
            groups.reactor,
            port,
            domain,
            self.agreement.version,
            self._receivesCompleted,
            self._sendsCompleted,
            self.failed,
        )
        with ExitStack() as undo:
            undo.callback(attachment.close)
            self.scheduler = SendScheduler(attachment, self, groups.clock.seconds)
            undo.pop_all()
        self._queue = self.scheduler.queue
        self._reader = attachment.reader
        self._queuePair = attachment.queuePair
        self._receives = attachment.receives
        self._byOffset = {request.identifier: request for request in attachment.requests}
        self._used: list[ReceiveRequest] = []
        self._rest: Iterator[Completion] = iter(())
        self.qpn = self._queuePair.number

    def __repr__(self) -> str:
        return f"<Link {self.qpn:06x} of {self.group!r}>"

    # Setup

    def accept(self, element: Element, token: int, isFirst: bool, hostName: bytes) -> Accept:
        """Create the server's answer to a Proposal (RFC 7609, A.2.2)."""
        extension = self.agreement.extension(isFirst, hostName)
        return self._answer(Accept, element, token, self.port.candidate.mtu, isFirst, extension)

    def confirm(
        self, element: Element, token: int, accept: Accept, agreement: Agreement, hostName: bytes
    ) -> Confirm:
        """Create the client's answer to an Accept (RFC 7609, A.2.3), by the terms of that Accept."""
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
        """Create an Accept or Confirm with the local end of the link and the connection's ring."""
        candidate = self.port.candidate
        rkey, address = self.life.localTokens[element.buffer.rkey]
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

    def connect(self, peerEnd: PeerEnd, isDirect: bool) -> None:
        """
        Connect the queue pair to the peer's, and open its direct lane, which it has in shared memory.

        @param isDirect: whether the route has no router.
        @raise Refused: the device does not connect to that end.
        """
        self._peerEnd = peerEnd
        self._attachment.connect(peerEnd, self.psn, isDirect)
        self.route = self._queuePair.route
        self.scheduler.lane = lane = IDirectLane(self._queuePair, None)
        if lane is not None:  # from now on, CDC messages are read from the lane instead of completions
            unread = lane.openLane(CDC_LENGTH, CDC_START, unpackFrom)
            self._queue.openLane(lane)
            self._reader.addSource(lane.takeMessages, self._laneReceived, unread, lane.isPeerPolling)

    def retain(self) -> None:
        """Retain posted bytes from now on, since the group is about to have another link."""
        if self._queue.unacknowledged is None:
            self._queue.retain()
            for stream in self.members:
                flow = self._flows.get(stream.token)
                if flow is not None:
                    flow.retain()

    def stopRetaining(self) -> None:
        """Stop retaining posted bytes, since the group has no other link."""
        if self._queue.unacknowledged is not None and not self.scheduler.signalsEach:
            self._queue.stopRetaining()

    async def prepare(self, answer: Accept | Confirm) -> None:
        """Resolve the address of the peer's buffer, so that the first write need not wait for it."""
        lane = self.scheduler.lane
        if lane is not None:
            scheduler = self.scheduler
            late = partial(scheduler.callAtEnd, scheduler.placed)  # after requests that wait for the address
            await resolveBuffer(lane, answer.rkey, self._reactor, late)

    def leadsTo(self, gid: GID, mac: MACAddress, qpn: QPN | None) -> bool:
        """Return whether the peer's port has these addresses, and its queue pair this number (None: any)."""
        peerEnd = self._peerEnd
        if peerEnd is None:
            return False
        isPort = peerEnd.gid.raw == gid.raw and peerEnd.mac.raw == mac.raw
        return isPort and qpn in (None, peerEnd.qpn)

    @property
    def remoteQPN(self) -> QPN | None:
        """Number of the peer's queue pair; None before the first contact."""
        return None if self._peerEnd is None else self._peerEnd.qpn

    def remoteBuffer(self, answer: Accept | Confirm, named: Link) -> RemoteBuffer:
        """
        Return the peer's ring on this link.

        @param named: the link that the Accept or Confirm names.
        @raise Refused: the peer has not announced the buffer.
        """
        address, rkey = self.group.target(self, named, answer)
        return RemoteBuffer(self._queue, address, rkey)

    @property
    def isStopping(self) -> bool:
        """Whether the reactor is about to end the process."""
        return self.groups.isStopping

    # Connections

    def preferLatency(self) -> None:
        """Busy-poll for answers as long as that lowers latency, because a connection has C{latency=low}."""
        self._reader.preferLatency()

    def add(self, stream: LinkedStream, flow: Flow) -> int:
        """Bind a new connection to the link, and return its alert token."""
        token = self.group.add(stream, flow)
        self.members[stream] = None
        return token

    @property
    def isOver(self) -> bool:
        """Whether the link has ended; connections with unread bytes remain."""
        return self._queue.isOver

    def forget(self, stream: LinkedStream, element: Element, quiet: bool) -> None:
        """Remove an ended connection; if C{quiet}, the peer does not write to its element any more."""
        self.members.pop(stream, None)
        self.group.forget(stream, element, quiet)
        if not self.isOver:
            self.scheduler.callAtEnd(self.group.trim)
        else:
            self.group.trimSoon()  # the group may have other links

    def confirmSoon(self, stream: LinkedStream) -> None:
        """Request acknowledgement of everything sent on a connection, because the process is ending."""
        self.scheduler.confirmSoon()
        if not stream.hasArrived:
            stream.askForUpdate()

    def processed(self) -> None:
        """Suspend link groups, or continue the shutdown, if these wait for the end of processing."""
        if not self._queue.isBusy:
            if self._reactorUse.isDue:
                self._reactorUse.settle()
            if self.isStopping:
                self.groups.checkStopped()

    # Completions

    def poll(self) -> None:
        for _ in range(_POLL_BATCHES):
            if self.isOver or not self._reader.poll():
                break

    def _sendsCompleted(self, batch: Sequence[Completion]) -> None:
        self.scheduler.completed(batch)

    def _receivesCompleted(self, batch: Sequence[Completion]) -> None:
        """Process received messages, then flush the flows that have something to send."""
        queue = self._queue
        wasBusy, queue.isBusy = queue.isBusy, True
        try:
            self._dispatch(batch)
            self._settle()
        finally:
            queue.isBusy = wasBusy
        if self._reactorUse.isDue or self.groups.isStopping:
            self.processed()

    def _laneReceived(self, messages: Sequence[tuple[int, ...]]) -> None:
        """Process CDC messages received through a direct lane, as in L{_receivesCompleted}."""
        queue = self._queue
        wasBusy, queue.isBusy = queue.isBusy, True
        try:
            if len(messages) == 1:
                message = messages[0]
                flow = self._flows.get(message[2])
                if flow is not None:
                    receive(flow, message)
            else:
                self._dispatchSeveral(messages)
            self.hasReceived = True
            self.scheduler.settle()
        finally:
            queue.isBusy = wasBusy
        if self._reactorUse.isDue or self.groups.isStopping:
            self.processed()

    def _dispatchSeveral(self, messages: Sequence[tuple[int, ...]]) -> None:
        """Process several CDC messages, with flushes in between as in L{_dispatch}."""
        queue = self._queue
        clock = self.scheduler.clock
        flows = self._flows
        due = clock() + FLUSH_SECONDS
        for message in messages:
            if queue.dirty and clock() >= due:
                self.scheduler.settle()
                due = clock() + FLUSH_SECONDS
            flow = flows.get(message[2])
            if flow is not None:
                receive(flow, message)

    def _settle(self) -> None:
        """Flush dirty flows, and repost receives."""
        self.scheduler.settle()
        used = self._used
        if len(used) < _REPOST:
            return
        self.scheduler.collect()
        if not self.isOver:  # after the flush, to keep it out of the latency
            try:
                self._queuePair.postReceive(used)
            except RDMAError as error:  # once more after the next message, if there is a receive for it
                if len(used) == len(self._byOffset):
                    raise
                _log.debug("{link!r}: receives are posted later: {error}", link=self, error=errorText(error))
            else:
                used.clear()

    def _dispatch(self, batch: Sequence[Completion]) -> None:
        """Dispatch received messages to connections; if that is slow, flush writes in between."""
        # Local names: this loop runs once per message.
        queue = self._queue
        clock = self.scheduler.clock
        flows = self._flows
        receives = self._receives
        used = self._used
        byOffset = self._byOffset
        isFlushing = len(batch) > 1 and not self.isBreaking
        due = clock() + FLUSH_SECONDS if isFlushing else 0.0  # a single message needs no clock
        self._rest = rest = iter(batch)
        for offset, status, _opcode, _qpn, length, _immediate, *_ in rest:
            if status:  # the queue pair is in the error state: all later completions fail, too
                self.broken(statusText(status))
                break
            used.append(byOffset[offset])  # reposted in _settle; its bytes are not read after this iteration
            message = unpackFrom(receives, offset)
            if length < CDC_LENGTH or message[0] >> 8 != CDC_TYPE:  # LLC, or invalid: the group decides
                self.group.control(self, bytes(receives[offset : offset + length]))
                continue
            # A message for an unknown token is dropped: its connection has just ended here.
            flow = flows.get(message[2])
            if flow is not None and message[0] == _START:
                receive(flow, message)
            if isFlushing and queue.dirty and clock() >= due:
                self._settle()
                due = clock() + FLUSH_SECONDS
        self.hasReceived = True

    def lastReceipt(self, now: float) -> float:
        """Return the time of the last receipt in seconds: now, if anything arrived since the last call."""
        if self.hasReceived:
            self.hasReceived = False
            self.life.lastReceivedAt = now
        return self.life.lastReceivedAt

    # LLC

    def send(self, raw: bytes) -> str | None:
        """Post one LLC message, ahead of queued bytes; return the reason if the device refused it."""
        if self.isOver or self._queuePair.state is not QPState.RTS:
            return None
        queue = self._queue
        request = queue.newMessage()
        queue.number(request)
        request.inline = (raw,)
        try:
            self.scheduler.submit([request])
        except Exception as error:
            if not isinstance(error, RDMAError):
                _log.failure("An SMC-R link ends because of an error while sending ({link!r})", link=self)
            return f"the device refused a message: {error}"
        return None

    # Failures

    def broken(self, text: str) -> None:
        """End the link because its queue pair has failed, after processing received messages."""
        if not self.isOver and not self.isBreaking:
            self.isBreaking = True
            self._dispatch(tuple(self._rest))  # of a batch that is being processed: before later ones
            self.poll()
            self.group.linkBroken(self, text)

    def drain(self) -> None:
        """
        Process received messages before the link is closed, unless it is processing some.

        The peer may know that they have arrived, and does not repeat them on another link.
        """
        if not (self.isBreaking or self._queue.isBusy):
            self.isBreaking = True
            self.poll()

    def failed(self, failure: Failure) -> None:
        """End the link because of an exception here or in the device, which has been logged."""
        if not self.isOver:
            self.isBreaking = True
            self.group.linkFailed(self, f"internal error: {errorText(failure.value)}")

    def asyncEvent(self, queuePair: IQueuePair, text: str) -> None:
        if queuePair is self._queuePair:
            self.broken(text)

    # Suspension: see txrdma.smc.common.reactoruse

    def rest(self) -> None:
        """Leave the reactor until L{wake}."""
        if self.isOver:
            return  # calls that report the end are still pending
        self._reader.stop()
        self.scheduler.rest()

    def wake(self) -> None:
        """Return to the reactor."""
        if not self.isOver and self._peerEnd is not None:
            self._reader.start()
            self.scheduler.wake()

    @property
    def descriptor(self) -> int:
        """File descriptor that becomes readable when messages arrive, after C{attend}."""
        return self._reader.fileno()

    def attend(self) -> None:
        """Process received messages while off the reactor, and rearm C{descriptor}."""
        if not self.isOver and self._peerEnd is not None:
            self._reader.attend()
            if not self.isOver:
                self.scheduler.poll()

    def rouse(self) -> None:
        """Return to the reactor, because something was queued."""
        self._reactorUse.rouse()

    # The end

    @contextmanager
    def ending(self) -> Iterator[None]:
        """Stop posting; pending calls are made after the context exits."""
        scheduler, queue = self.scheduler, self._queue
        self.isBreaking = True
        self.isActive = False
        queue.end()
        wasBusy, queue.isBusy = queue.isBusy, True
        try:
            yield
        finally:
            queue.isBusy = wasBusy
        if not wasBusy:
            scheduler.scheduleIfPending()
        if self.isStopping:
            scheduler.finish()
        self.processed()

    def discard(self) -> None:
        """Release all resources of a link that was never used."""
        self.scheduler.end()
        self.closeAttachment()

    def closeAttachment(self) -> None:
        self._attachment.close()
