"""
A link group: the links, buffers and connections that two ends share.

Follows RFC 7609, 3.2 and 4.5. L{txrdma.smc.group._linkgroup} implements LLC without I/O; this module acts on
its events: it registers buffers, closes links, and notifies connections.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager, ExitStack
from typing import cast

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import RDMAError, Refused
from txrdma.iba.types import RKey
from txrdma.interfaces import IProtectionDomain, IVerbsDevice
from txrdma.kit.connectionlog import describe
from txrdma.kit.delayedcalls import Timer
from txrdma.kit.logs import RateLimitedLogger
from txrdma.smc.flow.flow import Flow
from txrdma.smc.group._groupstate import (
    Event,
    GroupEnded,
    GroupKey,
    LinkAdded,
    LinkConfirmed,
    LinkEnd,
    LinkLife,
    LinkLost,
    LinkMade,
    LinkRefused,
    LinkRequested,
    RemoteRKeysDeleted,
    RKeyConfirmed,
    RKeyRefused,
    RKeysDeleted,
    RuleBroken,
)
from txrdma.smc.group._linkgroup import LinkGroupProtocol
from txrdma.smc.group.attachment import DevicePort
from txrdma.smc.group.buffers import (
    BufferPool,
    Element,
    MAX_BUFFERS,
    PINNED_RING,
    RemoteMemoryBuffer,
    SMALLEST_RING,
)
from txrdma.smc.group.failover import LinkFailover
from txrdma.smc.group.interfaces import GroupOwner, LinkedStream
from txrdma.smc.group.link import Link
from txrdma.smc.terms.offer import Agreement
from txrdma.smc.wire.clc import Accept, Confirm, Diagnosis

_log = Logger()
_rateLimited = RateLimitedLogger(_log)


class LinkGroup:
    """
    A link group, with its links.

    @ivar agreement: terms of the group, agreed in the first contact.
    @ivar isNew: the first contact is not complete.
    @ivar links: current links, oldest first.
    @ivar flows: flows of all connections of the group, by alert token.
    @ivar isOver: the group has ended; connections with unread bytes remain.
    @ivar hasPeerClosed: the peer has ended the group in order, so everything that it sent has arrived.
    @ivar isPeerLost: the TCP connection of its last connection was lost: the peer may have died.
    """

    def __init__(self, groups: GroupOwner, key: GroupKey, port: DevicePort, agreement: Agreement) -> None:
        self.groups = groups
        self.key = key
        self.agreement = agreement
        self.isNew = True
        self.isOver = self.hasPeerClosed = self.isPeerLost = False
        self.flows: dict[int, Flow] = {}
        self._reactor: IReactorTime = groups.reactor
        self._waiting: list[Deferred[None]] = []
        self._lingering: dict[LinkedStream, float] = {}  # deadlines while closing
        self.seconds = groups.clock.seconds
        self._timer = Timer(groups.reactor)
        self._isResting = self._isEnding = False
        self._domains: dict[IVerbsDevice, IProtectionDomain] = {}
        with ExitStack() as undo:
            undo.callback(self._closeDomains)
            link = Link(self, port, self.domainOf(port))
            undo.pop_all()
        self.links = [link]
        self.pool = BufferPool()
        self.core = LinkGroupProtocol(
            key.role,
            LinkEnd(port.candidate.mac, port.candidate.gid, link.qpn),
            timing=groups.timing,
            version=agreement.version,
            maxConnections=agreement.maxConnections,
            maxLinks=agreement.maxLinks,
            offersLink=agreement.release == 0 and agreement.maxLinks == 1,
        )
        link.life = self.core.first
        self._failover = LinkFailover(self)
        self.name = f"{key.role.value} {link.qpn:06x}"

    def __repr__(self) -> str:
        return f"<LinkGroup {self.name} {self.core.state} with {len(self.flows)} connections>"

    def domainOf(self, port: DevicePort) -> IProtectionDomain:
        domain = self._domains.get(port.device)
        if domain is None:
            domain = self._domains[port.device] = port.device.createProtectionDomain()
        return domain

    @property
    def isIdle(self) -> bool:
        """Whether the group has no connections, and none is being set up."""
        return not (self.flows or self.isNew or self.isOver or self.core.promised)

    # Setup

    def serves(self, key: GroupKey) -> bool:
        """Return whether a key identifies this group's peer, by the first contact or by one of the links."""
        mine = self.key
        if key.qpn == mine.qpn and key == mine:
            return True
        if key.qpn is not None and key.qpn not in (mine.qpn, *[link.remoteQPN for link in self.links]):
            return False  # fast exit: a peer may have many groups
        if (key.peer, key.version, key.eid) != (mine.peer, mine.version, mine.eid):
            return False
        if key.localGID not in (mine.localGID, *(link.port.candidate.gid for link in self.links)):
            return False
        return any(link.leadsTo(key.gid, key.mac, key.qpn) for link in self.links)

    def connect(self, answer: Accept | Confirm) -> None:
        """Connect the first link to the peer's end; C{confirmed} fires when it is usable."""
        (link,) = self.links
        self.core.learn(answer.rkey, answer.address)
        link.connect(answer, self.agreement.isDirect)
        if link.scheduler.lane is not None:  # shared memory loses nothing, and reports the peer's death
            self.core.shareMemory()
        self.core.confirm(self.seconds(), LinkEnd(answer.mac, answer.gid, answer.qpn))
        self._turnCore()

    @property
    def mayAccept(self) -> bool:
        """Whether a new group can accept another connection besides the first and the waiting ones."""
        return len(self._waiting) < self.agreement.maxConnections - 1

    def confirmed(self) -> Deferred[None]:
        """Return a Deferred that fires when the group is usable; fails with L{Refused} if it ends before."""
        waiting: Deferred[None] = Deferred(self._waiting.remove)
        self._waiting.append(waiting)
        if self.isOver:
            self._answerWaiting(Refused("the link is gone", Diagnosis.NOACTLINK))
        elif not self.isNew:
            self._answerWaiting(None)
        return waiting

    def _answerWaiting(self, refused: Refused | None) -> None:
        """Fire the Deferreds of L{confirmed}, with the reason if the group is refused."""
        waiting, self._waiting = self._waiting, []
        for each in waiting:
            if refused is None:
                each.callback(None)
            else:
                each.errback(refused)

    async def reserve(self, wanted: int | None = None, most: int | None = None) -> Element:
        """
        Reserve a ring for a connection, and wait until the peer knows the ring's buffer.

        @param wanted: size in bytes; None: chosen by the number of connections.
        @param most: limit of all rings of the process, in bytes.
        @raise Refused: there is no memory; with C{NOACTLINK}: the group has ended, and another may accept the
            connection.
        """
        isPinned = self.links[0].scheduler.queue.isStaged
        size = self.groups.ringSize()
        size = wanted or (min(size, PINNED_RING) if isPinned else size)
        buffer = self.pool.withFreeElement(size)
        if buffer is None:
            if len(self.pool) >= MAX_BUFFERS:
                raise Refused("the link group has its buffers", Diagnosis.MEM)
            buffer = self._grow(size, SMALLEST_RING if wanted is None else size, most, isPinned)
            if self.isNew:
                buffer.isAgreed = True
                self.core.agreed(buffer.rkey, buffer.region.address)
            else:
                self._announce(buffer)
        element = buffer.take()
        if not buffer.isAgreed:
            # The peer must have answered CONFIRM RKEY before the ring's key is given to it by CLC.
            self.core.promised += 1  # count the connection as reserved
            try:
                if self.core.isOpen:  # else the group has ended as it could not send CONFIRM RKEY
                    await self.pool.agreement(buffer)
                if not self.core.isOpen:
                    raise Refused("the group accepts no more connections", Diagnosis.NOACTLINK)
            except BaseException:
                self.pool.give(element, quiet=True)
                raise
            finally:
                self.core.promised -= 1
        return element

    def _announce(self, buffer: RemoteMemoryBuffer) -> None:
        """Register a buffer for each link, and send its keys to the peer; drop it if a device refuses it."""
        with ExitStack() as undo:
            undo.callback(self.pool.drop, buffer.rkey)
            tokens = {link.life: buffer.tokenOn(self.domainOf(link.port)) for link in self.links}
            undo.pop_all()
        self.pool.announce(buffer)
        self.core.registered(buffer.rkey, tokens)
        self.core.confirmRKey(buffer.rkey, buffer.region.address, self.seconds())
        try:
            self._offer(buffer)
        finally:
            self._turnCore()

    def _offer(self, buffer: RemoteMemoryBuffer) -> None:
        """
        Let the peer map a buffer, if it is on this host, before any connection that uses it is established:
        then an application may block, and the peer can still write.
        """
        for link in self.links:
            if (lane := link.scheduler.lane) is not None:
                lane.offer(link.life.localTokens[buffer.rkey].rkey)

    def _grow(self, size: int, least: int, most: int | None, isPinned: bool) -> RemoteMemoryBuffer:
        """Register a buffer with rings of this size, or smaller ones if there is not enough memory."""
        domain = self.domainOf(self.links[0].port)
        while True:
            limit = None if most is None else self.groups.memoryLimit(self.key, most, size)
            try:
                return self.pool.grow(size, domain, limit, isPinned)
            except (RDMAError, OSError) as error:
                # Groups without connections hold memory, and the process's limit of pinned memory is shared.
                hasReachedShare = limit != most and BufferPool.total + size > (limit or 0)
                if self.groups.closeIdle(self, self.key if hasReachedShare else None):
                    continue
                if size <= least:
                    raise Refused(f"no memory for a buffer: {error}", Diagnosis.MEM) from error
                size //= 2

    def pick(self) -> Link:
        """Return the server's link for the next connection, the one with the fewest; raises L{Refused}."""
        links = [link for link in self.links if link.isActive or self.isNew]
        if links:
            return min(links, key=lambda link: len(link.members))
        raise Refused("the group has ended", Diagnosis.NOACTLINK)

    def leadingTo(self, accept: Accept) -> Link:
        """Return the client's link that a server's Accept names; raises L{Refused} without it."""
        for link in self.links:
            if accept.firstContact or link.leadsTo(accept.gid, accept.mac, accept.qpn):
                return link
        raise Refused("the Accept names an unknown link", Diagnosis.NOSRVLINK)

    def target(self, link: Link, named: Link, answer: Accept | Confirm) -> tuple[int, RKey]:
        """Return address and remote key of the peer's ring on a link; C{named} is the link in the answer."""
        core, rkey = self.core, answer.rkey
        address = core.target(rkey, answer.address, answer.size, answer.index, named.life)
        if link is named:
            return address, rkey
        tokens = core.elsewhere(named.life, link.life, rkey)
        if tokens is None:
            raise Refused("the peer has not announced its buffer on another link", Diagnosis.ERR_RTOK)
        here, there = tokens
        return there.address + address - here.address, there.rkey

    # Connections

    def add(self, stream: LinkedStream, flow: Flow) -> int:
        """Add a connection, and return its alert token."""
        token = self.core.add(stream)
        self.flows[token] = flow
        self.isPeerLost = False
        return token

    @contextmanager
    def returning(self, element: Element) -> Iterator[None]:
        """Release a reserved ring, and a new group, if an exception prevents that its connection is added."""
        try:
            yield
        except BaseException:
            self.pool.give(element, quiet=True)
            self.trim()
            self.discard()  # other connections of the peer wait for it
            raise

    def streams(self) -> list[LinkedStream]:
        """Return the connections of the group, including those that have ended for the application only."""
        return [cast("LinkedStream", stream) for stream in self.core.connections.values()]

    def linger(self, stream: LinkedStream, seconds: float) -> None:
        """Give the peer this many seconds to close its side of a connection that has ended here."""
        if self.isOver:
            return
        self._lingering[stream] = self.seconds() + seconds
        if self._timer.dueAt > self._reactor.seconds() + seconds:
            self._reschedule()

    def forget(self, stream: LinkedStream, element: Element, quiet: bool) -> None:
        """Remove an ended connection; call L{trim} after its last message was posted."""
        self._lingering.pop(stream, None)
        self.flows.pop(stream.token, None)
        self.pool.give(element, quiet)
        if not self.isOver:
            self.core.remove(stream.token, self.seconds())

    def trim(self) -> None:
        """Delete unused buffers."""
        if self.isOver:
            return
        rkeys = self.pool.trim()
        if rkeys:
            self.core.deleteRKeys(rkeys, self.seconds())
        if rkeys or not self.core.connections:
            self._turnCore()

    def trimSoon(self) -> None:
        """Delete unused buffers after the next flush."""
        if self.links and not self.isOver:
            self.links[0].scheduler.callAtEnd(self.trim)

    # LLC

    def control(self, link: Link, raw: bytes) -> None:
        """Process an LLC message."""
        self.core.received(raw, self.seconds(), link.life)
        self._turnCore()

    def linkBroken(self, link: Link, text: str) -> None:
        """Handle the failure of a link's queue pair, after its received messages were processed."""
        with self._failing("a link is removed"):
            self.core.linkDown(self.seconds(), text, link.life)
            self._turnCore()

    def linkFailed(self, link: Link, text: str) -> None:
        """End a link because of an exception, and notify the peer if possible."""
        if any(each.isActive and each is not link for each in self.links):
            self.core.linkDown(self.seconds(), text, link.life)
        else:
            self.core.fail(text)
        self._turnCore()

    def portsChanged(self) -> None:
        with self._failing("links are added and removed"):
            if self.core.isOpen:
                self._failover.portsChanged()
                self._turnCore()

    def retire(self) -> None:
        """Accept no more connections, because the peer does not know this group."""
        self.core.retire(self.seconds())
        self._turnCore()

    def shutdown(self) -> None:
        """End the group in order, with the peer's consent."""
        self.core.shutdown(self.seconds())
        self._turnCore()

    def _turnCore(self) -> None:
        """Send the core's messages and act on its events, until there are no more."""
        self._post()
        events = self.core.events()
        while events:
            for event in events:
                self._handleEvent(event)
            events = self.core.events()
            if not events and not self.isOver:  # a new link is connected before its message is sent
                self._post()
                events = self.core.events()
        if not self.isOver:
            self._reschedule()

    def _handleEvent(self, event: Event) -> None:
        """Act on an event of the core."""
        if isinstance(event, LinkConfirmed):
            self.isNew = False
            self.links[0].isActive = True
            for buffer in self.pool:
                self._offer(buffer)
            self._answerWaiting(None)
        elif isinstance(event, LinkRequested):
            self._failover.extend(event.peerEnd)
        elif isinstance(event, LinkMade):
            self._failover.made(event)
        elif isinstance(event, LinkAdded):
            self.linkOf(event.link).isActive = True
        elif isinstance(event, LinkLost):
            if not self.isOver:  # else all links have ended together
                self._failover.failOver(self.linkOf(event.link), event.text)
        elif isinstance(event, LinkRefused):
            self._end("CONFIRM LINK failed", event.diagnosis)
        elif isinstance(event, RKeyConfirmed):
            self.pool.answered(event.rkey, None)
            self.trimSoon()  # the connection that needed it may have ended
        elif isinstance(event, RKeyRefused):
            refused = Refused("the peer refused the buffer", Diagnosis.ERR_RTOK)
            self.pool.answered(event.rkey, refused)
        elif isinstance(event, RKeysDeleted):
            for rkey in event.rkeys:
                self.pool.drop(rkey)
        elif isinstance(event, RemoteRKeysDeleted):
            for link in [link for link in self.links if link.life is event.link]:
                for stream in list(link.members):
                    stream.remoteBuffersDeleted(event.rkeys)
        elif isinstance(event, RuleBroken):
            streams = self.streams()
            _rateLimited.warn(
                (self.key.identityKey, "rules"),
                "the peer {peer} violated the SMC-R link protocol: {rule}",
                peer=describe(streams[0].peer) if streams else str(self.key.gid),
                rule=event.text,
            )
        elif isinstance(event, GroupEnded) and not self._isEnding:
            self.hasPeerClosed = event.isByPeer
            self._end(event.text, Diagnosis.NOACTLINK, mayHaveExited=True)

    def _post(self) -> None:
        for life, raw in self.core.outgoing():
            if (refusal := self.linkOf(life).send(raw)) is not None:
                self.core.linkDown(self.seconds(), refusal, life)

    def linkOf(self, life: LinkLife) -> Link:
        return next(link for link in self.links if link.life is life)

    def pollOtherLinks(self) -> None:
        """Poll all links that are not processing now."""
        for link in list(self.links):
            if not link.scheduler.isBusy:
                link.poll()

    # Time

    def deadline(self) -> float | None:
        """Return the time of the next timeout, in seconds of the reactor's clock; None if there is none."""
        due = self.core.deadline()
        return min([*self._lingering.values(), *(() if due is None else (due,))], default=None)

    def _reschedule(self) -> None:
        deadline = self.deadline()
        if deadline is None:
            self._timer.stop()
        elif not self._isResting:
            wait = max(deadline - self.seconds(), 0.0) + self.groups.clock.margin
            self._timer.ensure(wait, self.check)

    def clockSetBack(self) -> None:
        """Renew the timers of the group and of its connections, which are late."""
        self._reschedule()
        for stream in self.streams():
            stream.clockSetBack()

    def check(self) -> None:
        """Poll all links, and process timeouts."""
        with self._failing("timeouts are processed"):
            self._processTimeouts()

    @contextmanager
    def _failing(self, what: str) -> Iterator[None]:
        """End this group, but no other, after an exception."""
        try:
            yield
        except Exception:
            failure = Failure()
            _log.failure(
                "An SMC-R link group ends because of an error while {what} ({group!r})",
                failure,
                what=what,
                group=self,
            )
            for link in list(self.links):
                with self.isolated("ending a link"):
                    link.failed(failure)

    def _processTimeouts(self) -> None:
        for link in list(self.links):
            link.poll()
        now = self.seconds()
        for link in self.links:
            link.lastReceipt(now)
        self.core.expired(now)
        for stream in [stream for stream, until in self._lingering.items() if until <= now]:
            try:
                stream.expired()
            except Exception:
                stream.abortOnError()
        self._turnCore()

    # Suspension: see txrdma.smc.common.reactoruse

    @property
    def isBusy(self) -> bool:
        return any(link.scheduler.isBusy for link in self.links)

    def finish(self) -> None:
        for link in list(self.links):
            link.scheduler.finish()

    def rest(self) -> None:
        """Remove readers and delayed calls from the reactor until C{wake}."""
        self._isResting = True
        for link in self.links:
            link.rest()
        self._timer.stop()

    def wake(self) -> None:
        """Return to the reactor; other code may have removed the readers, as trial does."""
        self._isResting = False
        for link in self.links:
            link.wake()
        self._reschedule()

    def attend(self) -> None:
        """Process messages and timeouts while the group is off the reactor."""
        for link in list(self.links):
            link.attend()
        if not self.isOver:
            self.check()
            self.finish()

    # The end

    def discard(self) -> None:
        """End a new group, because the handshake that it was created for has failed."""
        if self.isNew:
            self._end("its first handshake failed", Diagnosis.NOACTLINK)

    def close(self, text: str) -> None:
        """End the group and all its connections in order, by CDC messages and DELETE LINK."""
        if self.isOver:
            return
        self.closeConnections()
        self.requestEnd()
        for link in self.links:
            link.isBreaking = True  # the answer of the peer is not awaited
            link.scheduler.drain()
        self._end(text, Diagnosis.NOACTLINK)

    def closeConnections(self) -> None:
        """Close the connections of applications in order, because the process stops or the device is lost."""
        self.finish()
        for stream in self.streams():
            if stream.connected:
                stream.stopped()

    def requestEnd(self) -> None:
        """Request the end of the group from the peer; the caller closes the group after the answer."""
        if not self._isEnding:
            self._isEnding = True
            self.core.shutdown(self.seconds())
            self._post()

    def _end(self, text: str, diagnosis: Diagnosis, mayHaveExited: bool = False) -> None:
        """End the group; C{mayHaveExited}: the peer's process may have died after sending everything."""
        if self.isOver:
            return
        self.isOver = True
        with ExitStack() as ending:
            for link in self.links:
                ending.enter_context(link.ending())
            with self.groups.forgetting(self):
                with self.isolated("notifying its connections"):
                    self._reportEnd(text, diagnosis, mayHaveExited)
                self._release()

    def _reportEnd(self, text: str, diagnosis: Diagnosis, mayHaveExited: bool) -> None:
        """Report the end to pending requests, and to all connections."""
        streams: list[tuple[LinkedStream, bool, int]] = []
        for link in self.links:
            arrived = link.scheduler.lastArrived()
            hasExited = mayHaveExited and link.scheduler.lane is not None
            streams += [(stream, hasExited, arrived) for stream in link.members]
        alive = [stream for stream, _, _ in streams if not stream.disconnected and not stream.hasReceivedEnd]
        if alive:
            _rateLimited.info(
                self.key.identityKey,
                "{count} SMC-R connections with {peer} on {device} ended: {reason}",
                count=len(alive),
                peer=describe(alive[0].peer),
                device=self.links[0].device,
                reason=text,
            )
        self._answerWaiting(Refused(text, diagnosis))
        self.pool.refuseAll(Refused(text, diagnosis))
        for stream, hasExited, arrived in streams:
            with self.isolated("notifying a connection"):
                stream.linkLost(hasExited, arrived)
                if stream.connected:
                    self.groups.orphaned(stream)

    def _release(self) -> None:
        """Release all resources, children first."""
        self._timer.stop()
        self._lingering.clear()
        for link in self.links:
            with self.isolated("stopping a scheduler"):
                link.scheduler.end()
        with self.isolated("closing its buffers"):
            self.pool.close()  # rings with unread bytes stay mapped while a flow refers to them
        for link in self.links:
            link.closeAttachment()
        self._closeDomains()

    def _closeDomains(self) -> None:
        for domain in self._domains.values():
            with self.isolated("closing a protection domain"):
                domain.close()

    @contextmanager
    def isolated(self, what: str) -> Iterator[None]:
        """Log an exception at the end of the group, and continue."""
        try:
            yield
        except Exception:
            _log.failure("Error while ending an SMC-R link group: {what} ({group!r})", what=what, group=self)
