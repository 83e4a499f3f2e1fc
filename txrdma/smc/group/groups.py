"""
The link groups of a device: the choice of a connection's group, and the lifetime of groups (RFC 7609, 3.2).

Groups without connections are cached, since creating a group costs more than creating a connection. When SMC
is not in use on a reactor (L{txrdma.smc.common.reactoruse}), no group stays there: groups over shared memory
are suspended; groups over adapters, too, and a thread polls for messages of their peers; all others are
closed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterable, Iterator, Sequence
from contextlib import contextmanager, ExitStack
from functools import lru_cache, partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final
from weakref import WeakSet

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorFromThreads
from twisted.logger import Logger

from txrdma.error import Refused
from txrdma.iba.verbs import AsyncEventKind
from txrdma.interfaces import AsyncEvent, IReactorDevice, IVerbsDevice
from txrdma.kit.delayedcalls import cancelCall, Timer
from txrdma.kit.forwardclock import sharedForwardClock
from txrdma.kit.logs import errorText
from txrdma.kit.shares import CLIENT_SHARE
from txrdma.kit.shutdown import addShutdownListener, removeShutdownListener
from txrdma.kit.strings import splitString
from txrdma.kit.values import frozen, replace
from txrdma.smc.common.reactoruse import reactorUse
from txrdma.smc.group._groupstate import GroupKey, Timing
from txrdma.smc.group.buffers import BufferPool
from txrdma.smc.group.closenotifier import CloseNotifier
from txrdma.smc.group.group import LinkGroup
from txrdma.smc.group.interfaces import LinkedStream
from txrdma.smc.group.link import Link
from txrdma.smc.group.pollthread import PollThread
from txrdma.smc.group.ports import findPorts, openDevices
from txrdma.smc.group.ratelimiter import GroupRateLimiter
from txrdma.smc.terms.offer import Agreement, Candidate, Choice, Role
from txrdma.smc.wire.clc import Accept, Diagnosis, Proposal
from txrdma.unix.sockets import Credentials, isTrusted
from txrdma.verbs.devices import checkDevice

_log = Logger()

RINGS: Final = ((2, 4 << 20), (10, 1 << 20), (32, 256 << 10), (64, 128 << 10), (192, 64 << 10))
"""
Pairs of (number of connections, ring size in bytes): few connections get large rings, many get small ones.

Memory is allocated on use, but sooner or later all of a ring is used. Measured with 64 KiB writes through
shared memory: a ring of 4 MiB reaches 7.6 GB/s, one of 512 KiB about 5. But ten of 4 MiB exceed the caches,
and cost more per byte than ten of 1 MiB. If 32 connections request 256 KiB each, rings of 256 KiB are as fast
as 1 MiB: 4 GB/s.
"""

SMALL_RING: Final = 32 << 10
"""Ring size for even more connections than in L{RINGS}, in bytes."""

STOPPING_SECONDS: Final = 5.0
"""Seconds for which a stopping reactor waits until peers have received everything."""

CLOSING_SECONDS: Final = 2.0
"""Seconds for which closing groups waits for peers: see L{LinkGroups.close}."""

_QUIET_SECONDS: Final = 0.3
"""Seconds of silence after which a peer's kernel is assumed to have aborted an ended group's connections."""

_POLL_SECONDS: Final = 1e-3

_LINGER_SECONDS: Final = 0.02
"""Seconds between polls for acknowledgements of closed connections, while SMC is not in use."""

_PORT_EVENTS: Final = (AsyncEventKind.PORT_ACTIVE, AsyncEventKind.PORT_ERROR, AsyncEventKind.GID_CHANGE)

_KEEPALIVE: Final = Path("/proc/sys/net/ipv4")

_open: dict[tuple[object, str], LinkGroups] = {}


@lru_cache(2)
def timingOn(acknowledgesByProgram: bool) -> Timing:
    """
    Return the timeouts of links: a silent peer is considered lost when TCP keepalive would give up (tcp(7)).

    @param acknowledgesByProgram: peers acknowledge by software, which a busy program delays: TEST LINK is
        sent when TCP would send a probe. Adapters are probed earlier.
    """
    try:
        idle, interval, probes = (
            int((_KEEPALIVE / f"tcp_keepalive_{name}").read_text()) for name in ("time", "intvl", "probes")
        )
    except (OSError, ValueError):
        idle, interval, probes = 7200, 75, 9  # the defaults of Linux
    timing = Timing(silence=float(idle + interval * probes))
    if acknowledgesByProgram:
        timing = replace(timing, testIdle=float(idle), testInterval=float(interval))
    return timing


def linkGroups(reactor: Any, description: str) -> LinkGroups:
    """Return this process's link groups over a device, which is opened on first use; raises L{RDMAError}."""
    key = (reactor, description)
    groups = _open.get(key)
    if groups is None:
        groups = _open[key] = LinkGroups(reactor, description)
    return groups


def checkDevices(reactor: object, description: str) -> None:
    """Check the device strings of a description that is not in use; raises L{MalformedDevice}."""
    if (reactor, description) not in _open:
        for each in splitString(description, "+"):
            checkDevice(each)


def hasLinkGroups(reactor: object) -> bool:
    return any(owner is reactor for owner, _ in _open)


def useDevice(reactor: Any, description: str, *devices: IVerbsDevice) -> LinkGroups:
    """Use these open devices for a device string from now on."""
    groups = _open[reactor, description] = LinkGroups(reactor, description, devices)
    return groups


def closeLinkGroups(reactor: object) -> None:
    """Close all link groups of a reactor, and their devices; for the end of tests."""
    for (owner, _), groups in list(_open.items()):
        if owner is reactor:
            groups.close()


def everyGroup() -> list[LinkGroup]:
    """Return all link groups of this process, over all devices and on all reactors."""
    return [group for groups in _open.values() for group in groups.groups()]


def closeIdle(
    reactor: object, spared: LinkGroup | None = None, among: Iterable[LinkGroup] | None = None
) -> bool:
    """
    Close the oldest idle link group of a reactor, so that another can be created.

    @param spared: a group that must not be closed.
    @param among: the groups that may be closed; None: all.
    @return: whether a group was closed.
    """
    for group in everyGroup() if among is None else among:
        if group.isIdle and group is not spared and group.groups.reactor is reactor:
            group.close("closed to allow another link group")
            return True
    return False


def groupsOf(key: GroupKey) -> list[LinkGroup]:
    """
    Return the groups that count for the limits of one client: those of this process as a server whose clients
    have the same identity, or belong to the same user if that is not ours.
    """
    if key.role is not Role.SERVER:
        return []
    client = clientOf(key.identityKey)
    return [
        group
        for group in everyGroup()
        if group.key.role is Role.SERVER and clientOf(group.key.identityKey) == client
    ]


def clientOf(identity: Hashable) -> Hashable:
    """Return who counts as one client for limits: the verified identity, or all processes of another user."""
    if isinstance(identity, Credentials) and not isTrusted(identity.user):
        return identity.user
    return identity


@frozen
class LinkGroupTerms:
    """
    Limits and timeouts of a new link group, from the options of its first connection.

    @ivar most: largest number of link groups in this process, including the new one; None: no limit.
    @ivar keepalive: idle seconds after which TEST LINK is sent; None: the default.
    """

    most: int | None = None
    keepalive: float | None = None


groupTerms = lru_cache(64)(LinkGroupTerms)
"""Return the terms with these limits and timeouts; connections share them."""

ANY_TERMS: Final = LinkGroupTerms()
"""Terms without limits."""


class LinkGroups:
    """
    All link groups over one device, or over several devices of one device string.

    @ivar clock: the reactor's time, which never goes back: for all deadlines of groups and connections.
    @ivar devices: working devices.
    @ivar ports: their ports, each with the GID that most peers can reach; active ports first.
    @ivar candidates: the same ports as handshakes offer them.
    @ivar portCount: number of ports of all devices, active or not.
    """

    def __init__(self, reactor: Any, description: str, devices: Sequence[IVerbsDevice] = ()) -> None:
        self.reactor = reactor
        self.clock = sharedForwardClock(reactor)
        self.reactorUse = reactorUse(reactor)
        self.closeNotifier = CloseNotifier(reactor)
        self.isStopping = False
        self._key = (reactor, description)
        self._groups: dict[tuple[object, ...], list[LinkGroup]] = {}
        # Connections without a link that wait for the end of TCP.
        self._orphans: WeakSet[LinkedStream] = WeakSet()
        self._endingGroups = 0
        self._stopped: Deferred[None] | None = None
        self._targets: dict[LinkedStream, int] = {}
        self._rateLimiter = GroupRateLimiter(reactor)
        self.devices = list(devices) or openDevices(reactor, description)
        self._opened = tuple(self.devices)
        self.timing = timingOn(any(each.attributes.acknowledgesByProgram for each in self.devices))
        found = [IReactorDevice(each, None) for each in self.devices]
        self._driven = [each for each in found if each is not None]
        canRest = None not in found and all(each.canRest for each in self._driven)
        isAttended = all(each.isAttended for each in self._driven)
        isLocal = not any(each.isAttended for each in self._driven)
        self._isAttended = canRest and isAttended and IReactorFromThreads.providedBy(reactor)
        self._resting = self._driven if canRest and (isLocal or self._isAttended) else []
        self._isOwed = False  # a peer has not acknowledged everything
        self._pollThread = PollThread(reactor, self._attend)
        self._isAtRest = False
        self._lingering = Timer(reactor)
        with ExitStack() as undo:
            for device in self._opened:
                undo.callback(device.close)
            self._findPorts()
            if not self.ports:
                raise Refused(f"{description} has no port with MAC address and GID", Diagnosis.NOSMCRDEV)
            undo.pop_all()
        self._owner = self.ports[0].candidate.peerID
        self._unsubscribers = [each.subscribe(partial(self._asyncEvent, each)) for each in self._opened]
        addShutdownListener(reactor, self._reactorStops)
        self._trigger: Any = reactor.addSystemEventTrigger("after", "shutdown", self._reactorStopped)
        self.reactorUse.add(self, self._readersRemoved)
        self.clock.join(self._clockSetBack)

    def __repr__(self) -> str:
        return f"<LinkGroups of {', '.join(map(repr, self._opened))}>"

    @property
    def canRest(self) -> bool:
        """Whether groups can be suspended: messages of peers wait in shared memory meanwhile."""
        return bool(self._resting) and not self._isAttended

    def groups(self) -> list[LinkGroup]:
        return [group for groups in self._groups.values() for group in groups]

    def links(self) -> list[Link]:
        return [link for group in self.groups() for link in group.links]

    async def forProposal(
        self, proposal: Proposal, choice: Choice, identityKey: Hashable, terms: LinkGroupTerms = ANY_TERMS
    ) -> tuple[LinkGroup, bool]:
        """
        Return the server's group for a client, and whether it is new; wait while one is being created.

        @param identityKey: verified identity of the client.
        @raise Refused: there would be too many groups.
        """
        key = GroupKey.ofProposal(proposal, choice, identityKey)
        hasTurn = False
        while True:
            making = None
            for group in self._serving(key):
                if group.core.usable:
                    return group, False
                if group.isNew and group.mayAccept:
                    making = group
            if making is None:
                waiting = None if hasTurn else self._rateLimiter.wait()
                hasTurn = True
                if waiting is not None:
                    await waiting  # meanwhile another connection of the same client may have created one
                    continue
                return self._make(key, choice.candidate, choice.agreement, terms), True
            try:
                await making.confirmed()
            except Refused:
                pass  # it failed: create another

    def forAccept(
        self,
        accept: Accept,
        candidate: Candidate,
        agreement: Agreement,
        identityKey: Hashable,
        terms: LinkGroupTerms = ANY_TERMS,
    ) -> LinkGroup:
        """
        Return the client's group that a server's Accept names, or a new one for a first contact.

        @param identityKey: verified identity of the server.
        @raise Refused: there is no such group, or there would be too many.
        """
        key = GroupKey.ofAccept(accept, candidate.gid, identityKey)
        if accept.firstContact:
            return self._make(key, candidate, agreement, terms)
        for group in self._serving(key):
            if group.core.usable:
                return group
        raise Refused("the server names an unknown link group", Diagnosis.SYNCERR)

    def ringSize(self) -> int:
        """Return the size of the next connection's ring, in bytes."""
        count = 0
        for groups in self._groups.values():
            for group in groups:
                count += len(group.core.connections)
        for most, size in RINGS:
            if count < most:
                return size
        return SMALL_RING

    def _serving(self, key: GroupKey) -> list[LinkGroup]:
        """Return the groups with the peer that a key identifies, by any of their links."""
        return [group for group in self._groups.get(key.peer, ()) if group.serves(key)]

    def _make(
        self, key: GroupKey, candidate: Candidate, agreement: Agreement, terms: LinkGroupTerms
    ) -> LinkGroup:
        """Create a group, in place of an idle one if there would be too many; raises L{Refused}."""
        if terms.most is not None:
            self._checkNumber(key, terms.most)
        port = next((each for each in self.ports if each.candidate == candidate), None)
        if port is None:
            text = f"port {candidate.port} of {candidate.device} has changed since it was offered"
            raise Refused(text, Diagnosis.NOSMCRDEV)
        group = LinkGroup(self, key, port, agreement)
        if terms.keepalive is not None:
            group.core.keepAlive(terms.keepalive)
        self._groups.setdefault(key.peer, []).append(group)
        return group

    def _checkNumber(self, key: GroupKey, most: int) -> None:
        """Close idle groups if there are too many; raises L{Refused} if there are none."""
        while len(groups := groupsOf(key)) >= most * CLIENT_SHARE:
            if not closeIdle(self.reactor, among=groups):
                raise Refused(f"the client has {len(groups)} of {most} link groups already", Diagnosis.MEM)
        while len(everyGroup()) >= most:
            if not closeIdle(self.reactor):
                raise Refused(f"this process has {most} link groups already", Diagnosis.MEM)

    @contextmanager
    def forgetting(self, group: LinkGroup) -> Iterator[None]:
        """Remove an ended group from the tables while it releases its resources."""
        self._endingGroups += 1
        try:
            self._forget(group)
            yield
        finally:
            self._endingGroups -= 1

    def closeIdle(self, spared: LinkGroup, key: GroupKey | None) -> bool:
        """
        Close another idle group, to release its memory; return whether there was one.

        @param key: only one of this client; None: any.
        """
        return closeIdle(self.reactor, spared, None if key is None else groupsOf(key))

    def memoryLimit(self, key: GroupKey, most: int, size: int) -> int:
        """
        Return the limit of all rings of this process for a new buffer of a group: a smaller one if the client
        of the group would exceed its share. A client may always have one ring.

        @param most: the process's limit, in bytes.
        @param size: size of a ring.
        """
        if key.role is not Role.SERVER:
            return most
        used = sum(group.pool.length for group in groupsOf(key))
        share = int(most * CLIENT_SHARE)
        return min(most, BufferPool.total - used + (share if used else max(share, size)))

    def orphaned(self, stream: LinkedStream) -> None:
        """Record a connection that still has unread bytes after the end of its link."""
        self._orphans.add(stream)

    def _forget(self, group: LinkGroup) -> None:
        groups = self._groups.get(group.key.peer, [])
        if group in groups:
            groups.remove(group)
        if not groups:
            self._groups.pop(group.key.peer, None)

    def _asyncEvent(self, device: IVerbsDevice, event: AsyncEvent) -> None:
        if event.kind is AsyncEventKind.DEVICE_FATAL:
            self._lost(device)
        elif event.kind in _PORT_EVENTS:
            self._portsChanged()
        elif event.queuePair is not None and event.kind is AsyncEventKind.QP_FATAL:
            for link in self.links():
                link.asyncEvent(event.queuePair, event.kind.value)

    def _lost(self, device: IVerbsDevice) -> None:
        """Handle the loss of a device; links of other devices continue."""
        if self.devices == [device]:
            self._end()
        elif device in self.devices:
            self.devices.remove(device)
            for link in self.links():
                if link.port.device is device:
                    link.broken("its device is lost")
            self._portsChanged()

    def _findPorts(self, *owner: bytes) -> None:
        self.ports = findPorts(self.devices, *owner)
        self.candidates = tuple([port.candidate for port in self.ports])
        self.portCount = sum([each.portCount for each in self.devices])

    def _portsChanged(self) -> None:
        self._findPorts(self._owner)
        for group in self.groups():
            group.portsChanged()

    # Suspension: see txrdma.smc.common.reactoruse

    @property
    def isBusy(self) -> bool:
        """Whether a group is processing, or ending."""
        return self._endingGroups > 0 or any(group.isBusy for group in self.groups())

    def rest(self) -> None:
        """Leave the reactor: suspend groups if the devices support that, else close them."""
        if self.isStopping:
            return  # the process stops
        if not self._resting:
            self._lingering.stop()
            self._closeConnections()
            while self._pollAll() and self._awaitsPeers():
                pass  # peers in this process answer immediately
            self._linger(self.clock.seconds() + CLOSING_SECONDS)
            return
        self._isAtRest = True
        for group in self.groups():
            for link in list(group.links):
                link.poll()  # a peer whose window is full must be able to send its last message
            group.finish()
            group.rest()
        for device in self._resting:
            device.rest()
        if self._isAttended:
            self._attend()

    def _linger(self, until: float) -> None:
        """Close when peers have acknowledged the end of their connections, or after the timeout."""
        self._pollAll()
        if self._awaitsPeers() and self.clock.seconds() < until:
            self._lingering.start(_LINGER_SECONDS, self._linger, until)
        else:
            self._end()

    def _attend(self) -> None:
        """Process messages while suspended, and let the thread poll for more."""
        for device in self._resting:
            if self._isAtRest:
                device.attend()
        for group in self.groups():
            if self._isAtRest:
                group.attend()
        if not self._isAtRest:
            return  # processing has resumed the groups
        found = [descriptor for device in self._resting for descriptor in device.descriptors()]
        found += [link.descriptor for link in self.links()]
        times = [time for group in self.groups() if (time := group.deadline()) is not None]
        try:
            self._pollThread.watch(found, min(times) - self.clock.seconds() if times else None)
        except (OSError, RuntimeError) as error:
            _log.warn(
                "closing {groups!r}, which can't be suspended: {error}", groups=self, error=errorText(error)
            )
            self._end()

    def wake(self) -> None:
        self._lingering.stop()
        self._isAtRest = False
        self._pollThread.stop()
        for device in self._resting:
            device.wake()
        for group in self.groups():
            with _log.failuresHandled("{group} has not returned to the reactor", group=group):
                group.wake()

    def _readersRemoved(self) -> None:
        """Close devices that can't be suspended, whose readers are missing; the next use opens them again."""
        if not self._resting:
            self._end()

    # The end of the process

    def _reactorStops(self) -> Deferred[None] | None:
        """Deliver all written bytes before the reactor stops; the Deferred fires after that."""
        self.isStopping = self.reactorUse.isEnding = self.closeNotifier.isPrompt = True
        self.closeNotifier.notify()
        for link in self.links():
            link.scheduler.finish()
            for stream in list(link.members):
                if stream.connected and not stream.hasReceivedEnd:
                    self._targets[stream] = stream.written
                    link.confirmSoon(stream)
            link.scheduler.finish()
        self._removeDelivered()
        if not self._targets:
            return None
        stopped: Deferred[None] = Deferred()
        self._stopped = stopped
        late = self.reactor.callLater(STOPPING_SECONDS, self._stoppingTooLong)
        return stopped.addBoth(lambda _: cancelCall(late))

    def checkStopped(self) -> None:
        """Check whether all peers have received everything, while the reactor stops."""
        if self._stopped is not None:
            self._removeDelivered()
            stopped = self._stopped  # polling may have called this method again
            if stopped is not None and not self._targets:
                self._stopped = None
                stopped.callback(None)

    def _removeDelivered(self) -> None:
        """Remove connections whose peers have received everything."""
        for stream, target in list(self._targets.items()):
            if stream.hasReceivedEnd or stream.hasDelivered(target):
                self._targets.pop(stream, None)

    def _stoppingTooLong(self) -> None:
        if self._targets:
            _log.warn(
                "{count} peers have not received everything within {seconds} s: the rest is lost",
                count=len(self._targets),
                seconds=STOPPING_SECONDS,
            )
            self._targets.clear()
        self.checkStopped()

    def _reactorStopped(self) -> None:
        self._trigger = None
        for stream in list(self._orphans):
            if stream.connected:
                stream.stopped()
        self.close()
        self.reactorUse.isEnding = False  # a program may run the reactor again, as trial does

    def _endGroups(self) -> None:
        """
        End all groups, and wait for the answers of peers. Blocks.

        Linux stops reading received bytes when the group ends before the connections.
        """
        groups = [group for group in self.groups() if group.core.isOpen]
        until = monotonic() + CLOSING_SECONDS
        for group in groups:
            group.closeConnections()
        while monotonic() < until and any(group.core.connections for group in groups if not group.isOver):
            self._pollOrSleep()
        isLate = any(group.core.connections for group in groups)
        for group in groups:
            group.requestEnd()
        until = monotonic() + CLOSING_SECONDS
        while monotonic() < until and any(group.core.state != "ended" for group in groups):
            self._pollOrSleep()
        quiet = monotonic() + _QUIET_SECONDS if isLate else 0.0
        while monotonic() < min(quiet, until + _QUIET_SECONDS):
            if self._pollOrSleep():
                quiet = monotonic() + _QUIET_SECONDS

    def _closeConnections(self) -> None:
        for group in self.groups():
            if group.core.isOpen:
                group.closeConnections()

    def _awaitsPeers(self) -> bool:
        """Return whether a living peer may not have received the end of a connection yet."""
        hasPeers = any(not group.isPeerLost for group in self.groups())
        return hasPeers and (self._isWaiting() or self._isOwed)

    def _isWaiting(self) -> bool:
        """Return whether a link has messages that exceed the peer's window."""
        return any(link.isActive and link.scheduler.queue.dirty for link in self.links())

    def _pollAll(self) -> bool:
        """Poll all link groups of the reactor, which may be peers; return whether any received something."""
        before = [link.life.lastReceivedAt for link in self.links()]
        self._isOwed = True in [device.drive() for device in self._driven]
        for (owner, _), those in list(_open.items()):
            for group in those.groups() if owner is self.reactor else ():
                group.check()
                group.finish()
        return before != [link.life.lastReceivedAt for link in self.links()]

    def _pollOrSleep(self) -> bool:
        """Poll all link groups, and sleep 1 ms if nothing was received; return whether something was."""
        hasReceived = self._pollAll()
        if not hasReceived:
            sleep(_POLL_SECONDS)
        return hasReceived

    def close(self) -> None:
        """
        Close all groups, then the devices, at the end of the process. Idempotent. Blocks up to
        L{CLOSING_SECONDS}, over adapters twice as long, until peers have received the last messages.
        """
        self._isAtRest = False
        if _open.get(self._key) is self:
            if self._isAttended:
                self._endGroups()
            else:
                self._waitForPeers()
        self._end()

    def _waitForPeers(self) -> None:
        """Close all connections, and wait until peers have received that. Blocks."""
        awaitsPeers = any(group.flows for group in self.groups() if group.core.isOpen)
        self._closeConnections()
        until = monotonic() + CLOSING_SECONDS
        while monotonic() < until and (awaitsPeers or self._isWaiting()):
            isPosting = self._isWaiting()
            self._pollOrSleep()
            awaitsPeers = awaitsPeers and (isPosting or self._isOwed)

    def _clockSetBack(self) -> None:
        """Renew the timers of all groups, which are late because the system time was set back."""
        if self._lingering.isPending:
            self._lingering.start(_LINGER_SECONDS, self._linger, self.clock.seconds() + CLOSING_SECONDS)
        for group in self.groups():
            group.clockSetBack()
        for stream in list(self._orphans):
            stream.clockSetBack()

    def _end(self) -> None:
        """Close all groups, then the devices, and leave the reactor. Idempotent."""
        self._lingering.stop()
        self._pollThread.stop()
        self._isAtRest = False  # the end of the last connection may have suspended the groups
        if _open.get(self._key) is self:
            del _open[self._key]
        self.reactorUse.remove(self)
        self.clock.leave(self._clockSetBack)
        self._targets.clear()
        self.checkStopped()
        removeShutdownListener(self.reactor, self._reactorStops)
        trigger, self._trigger = self._trigger, None
        if trigger is not None:
            self.reactor.removeSystemEventTrigger(trigger)
        self._rateLimiter.close()
        for group in self.groups():
            group.close("the device is closed")
        self.closeNotifier.close()
        for unsubscribe in self._unsubscribers:
            unsubscribe()
        for device in self._opened:
            device.close()
