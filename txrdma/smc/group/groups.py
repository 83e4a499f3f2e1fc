"""
The link groups of a device, which of them a connection joins, and how long they live.

Follows RFC 7609, 3.2.

Groups without connections are kept, since to make them anew costs more than a connection does. When SMC is
not in use on the reactor (L{txrdma.smc.common.reactoruse}) nothing of them stays there: those over shared
memory rest, and so do those over adapters, for which a thread waits for what peers still want; others are
closed.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from functools import lru_cache, partial
from pathlib import Path
from time import monotonic, sleep
from typing import Any, Final
from weakref import WeakSet

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall, IReactorFromThreads
from twisted.logger import Logger

from txrdma.error import Refused
from txrdma.iba.verbs import AsyncEventKind
from txrdma.interfaces import AsyncEvent, IAttendedDevice, IDrivenDevice, IRestingDevice, IVerbsDevice
from txrdma.kit.values import frozen
from txrdma.smc.common.reactoruse import reactorUse
from txrdma.smc.group._linkgroup import GroupKey, Timing
from txrdma.smc.group.closenotifier import CloseNotifier
from txrdma.smc.group.group import Group
from txrdma.smc.group.link import Link
from txrdma.smc.group.parties import Member
from txrdma.smc.group.pollthread import PollThread
from txrdma.smc.group.ports import findPorts, openDevices
from txrdma.smc.group.ratelimiter import GroupRateLimiter
from txrdma.smc.terms.offer import Agreement, Candidate, Choice
from txrdma.smc.wire.clc import Accept, Diagnosis, Proposal

_log = Logger()

RINGS: Final = ((2, 4 << 20), (10, 1 << 20), (32, 256 << 10), (64, 128 << 10), (192, 64 << 10))
"""
The rings of so many connections have so many bytes: few connections are fast, many are frugal.

Memory comes with use, but sooner or later every byte of a ring is used. Measured with 64 KiB writes by shared
memory: a ring of 4 MiB carries 7.6 GB/s, one of 512 KiB about 5; but ten of 4 MiB leave the caches, and cost
more for each byte than ten of 1 MiB. Where 32 connections ask for 256 KiB each, rings of 256 KiB carry what
those of 1 MiB do, 4 GB/s.
"""

SMALL_RING: Final = 32 << 10
"""The rings of all others."""

STOPPING_SECONDS: Final = 5.0
"""
Seconds for which a reactor that stops waits until peers have what was written before.

By shared memory that is at once, unless a peer does not read; by RoCE peers have to acknowledge it.
"""

PARTING_SECONDS: Final = 2.0
"""
Seconds that an end of groups waits for peers to take what is said, at most, and over adapters for their
connections to end, and then for their consent: see L{LinkGroups.close}.
"""

_QUIET_SECONDS: Final = 0.3
"""
Seconds without a word of a peer that had connections when its group ended, after which it has said its last.

Linux aborts each of its connections then, by a message over the link, and waits until that has arrived.
"""

_LOOK_SECONDS: Final = 1e-3

_LINGER_SECONDS: Final = 0.02
"""Seconds between looks whether peers have heard of the end of their connections, while nobody uses SMC."""

_PORT_EVENTS: Final = (AsyncEventKind.PORT_ACTIVE, AsyncEventKind.PORT_ERROR, AsyncEventKind.GID_CHANGE)

_KEEPALIVE: Final = Path("/proc/sys/net/ipv4")

_open: dict[tuple[object, str], LinkGroups] = {}


@lru_cache(2)
def timingOn(acknowledgesByProgram: bool) -> Timing:
    """
    The times to wait for peers: a silent one is given up when TCP's keepalive would do so here (tcp(7)).

    @param acknowledgesByProgram: a busy program acknowledges nothing, not even a TEST LINK: it is asked when
        TCP would ask, since a queue pair has less patience than that. Adapters are asked earlier.
    """
    try:
        idle, interval, probes = (
            int((_KEEPALIVE / f"tcp_keepalive_{name}").read_text()) for name in ("time", "intvl", "probes")
        )
    except (OSError, ValueError):
        idle, interval, probes = 7200, 75, 9  # Linux's own
    timing = Timing(silence=float(idle + interval * probes))
    if acknowledgesByProgram:
        timing = replace(timing, testIdle=float(idle), testInterval=float(interval))
    return timing


def linkGroups(reactor: Any, description: str) -> LinkGroups:
    """
    The link groups of this process over a device, which is opened if need be; until the reactor shuts down.

    @raise RDMAError: the device is not to be had.
    """
    key = (reactor, description)
    groups = _open.get(key)
    if groups is None:
        groups = _open[key] = LinkGroups(reactor, description)
    return groups


def hasLinkGroups(reactor: object) -> bool:
    """Whether link groups over any device are open on the reactor."""
    return any(owner is reactor for owner, _ in _open)


def useDevice(reactor: Any, description: str, *devices: IVerbsDevice) -> LinkGroups:
    """From now on, this open device is what the description means; or these."""
    groups = _open[reactor, description] = LinkGroups(reactor, description, devices)
    return groups


def closeLinkGroups(reactor: object) -> None:
    """Close all link groups of a reactor, and their devices; tests want that before they end."""
    for (owner, _), groups in list(_open.items()):
        if owner is reactor:
            groups.close()


def everyGroup() -> list[Group]:
    """All link groups of this process, over all its devices and on all its reactors."""
    return [group for groups in _open.values() for group in groups.groups()]


def closeIdle(reactor: object, spared: Group | None = None) -> bool:
    """
    Close the oldest link group of a reactor that has no connections, so that another one has room.

    @param spared: a group that is not to be closed.
    @return: whether there was one.
    """
    for (owner, _), groups in _open.items():
        for group in groups.groups() if owner is reactor else ():
            if group.isIdle and group is not spared:
                group.close("another link group needs its place")
                return True
    return False


@frozen
class GroupTerms:
    """
    The terms on which the connection of a first contact makes its link group.

    @ivar most: link groups of this process, at most, the new one included; None: no limit.
    @ivar keepalive: seconds of silence after which the peer is asked whether it is there; None: as usual.
    """

    most: int | None = None
    keepalive: float | None = None


ANY_TERMS: Final = GroupTerms()
"""The terms of connections that limit nothing."""


class LinkGroups:
    """
    All link groups over one device, or over several that an endpoint names together.

    @ivar devices: those that work.
    @ivar ports: their ports, by the GID of each that most peers can reach; active ports first.
    """

    def __init__(self, reactor: Any, description: str, devices: Sequence[IVerbsDevice] = ()) -> None:
        """
        @param description: a device string, or several with C{+} between them.
        @param devices: what the description means, if that is open already; they are closed with this.
        """
        self.reactor = reactor
        self.reactorUse = reactorUse(reactor)
        self.closeNotifier = CloseNotifier(reactor)
        self.isStopping = False
        self._key = (reactor, description)
        self._groups: dict[tuple[object, ...], list[Group]] = {}
        self._orphans: WeakSet[Member] = WeakSet()  # without a link; they wait for TCP's word
        self._endingGroups = 0
        self._stopped: Deferred[None] | None = None
        self._targets: dict[Member, int] = {}
        self._rateLimiter = GroupRateLimiter(reactor)
        self.devices = list(devices) or openDevices(reactor, description)
        self._opened = tuple(self.devices)
        self.timing = timingOn(any(each.attributes.acknowledgesByProgram for each in self.devices))
        resting = [IRestingDevice(each, None) for each in self.devices]
        self._resting = [each for each in resting if each is not None] if None not in resting else []
        attended = [IAttendedDevice(each, None) for each in self.devices]
        driven = [IDrivenDevice(each, None) for each in self.devices]
        self._driven = [each for each in driven if each is not None]
        self._isOwed = False  # a peer has still to acknowledge something, as far as these know
        isAttended = None not in attended and IReactorFromThreads.providedBy(reactor)
        self._attended = [each for each in attended if each is not None] if isAttended else []
        self._pollThread = PollThread(reactor, self._attend)
        self._isAtRest = False
        self._lingering: IDelayedCall | None = None
        self.ports = findPorts(self.devices)
        self._owner = self.ports[0].candidate.peerID if self.ports else b""
        if not self.ports:
            for device in self._opened:
                device.close()
            raise Refused(f"{description} has no port with MAC address and GID", Diagnosis.NOSMCRDEV)
        self._unsubscribers = [each.subscribe(partial(self._told, each)) for each in self._opened]
        self._triggers = [
            reactor.addSystemEventTrigger("before", "shutdown", self._reactorStops),
            reactor.addSystemEventTrigger("after", "shutdown", self._reactorStopped),
        ]
        self.reactorUse.add(self)

    def __repr__(self) -> str:
        return f"<LinkGroups of {', '.join(map(repr, self._opened))}>"

    @property
    def canRest(self) -> bool:
        """Whether peers can do without us while SMC is not in use: what they do waits in shared memory."""
        return bool(self._resting)

    @property
    def candidates(self) -> tuple[Candidate, ...]:
        """The ports, as handshakes offer them; active ones first."""
        return tuple([port.candidate for port in self.ports])

    @property
    def portCount(self) -> int:
        """The number of ports of all devices, working or not."""
        return sum([each.portCount for each in self.devices])

    def groups(self) -> list[Group]:
        """All link groups over this device."""
        return [group for groups in self._groups.values() for group in groups]

    def links(self) -> list[Link]:
        """All links of all groups over this device."""
        return [link for group in self.groups() for link in group.links]

    async def forProposal(
        self, proposal: Proposal, choice: Choice, witness: Hashable, terms: GroupTerms = ANY_TERMS
    ) -> tuple[Group, bool]:
        """
        The server's group for a client: one that there is, or a new one.

        While one is being made for the same client, as many others wait for it as it will have room for.

        @param choice: what we have chosen of the Proposal.
        @param witness: who the client is, by something better than its word.
        @param terms: for a new group.
        @raise Refused: there would be too many.
        """
        key = GroupKey.ofProposal(proposal, choice, witness)
        hasTurn = False
        while True:
            making = None
            for group in self._serving(key):
                if group.core.usable:
                    return group, False
                if group.isNew and group.hasPlace:
                    making = group
            if making is None:
                waiting = None if hasTurn else self._rateLimiter.wait()
                hasTurn = True
                if waiting is not None:
                    await waiting  # meanwhile another of the same client may have begun one
                    continue
                return self._make(key, choice.candidate, choice.agreement, terms), True
            try:
                await making.confirmed()
            except Refused:
                pass  # then there will be another one

    def forAccept(
        self,
        accept: Accept,
        candidate: Candidate,
        agreement: Agreement,
        witness: Hashable,
        terms: GroupTerms = ANY_TERMS,
    ) -> Group:
        """
        The client's group that the server means.

        @param candidate: our end, as we have proposed it.
        @param agreement: what the Accept comes to.
        @param witness: who the server is, by something better than its word.
        @param terms: for a new group.
        @raise Refused: we don't have it, or would have too many.
        """
        key = GroupKey.ofAccept(accept, candidate.gid, witness)
        if accept.firstContact:
            return self._make(key, candidate, agreement, terms)
        for group in self._serving(key):
            if group.core.usable:
                return group
        raise Refused("the server means a link group that we don't have", Diagnosis.SYNCERR)

    def ringSize(self) -> int:
        """Bytes of the next connection's ring."""
        count = 0
        for groups in self._groups.values():
            for group in groups:
                count += len(group.core.connections)
        for most, size in RINGS:
            if count < most:
                return size
        return SMALL_RING

    def _serving(self, key: GroupKey) -> list[Group]:
        """The groups with the peer that this names, by whichever of its links."""
        return [group for group in self._groups.get(key.peer, ()) if group.serves(key)]

    def _make(self, key: GroupKey, candidate: Candidate, agreement: Agreement, terms: GroupTerms) -> Group:
        while terms.most is not None and len(everyGroup()) >= terms.most:
            if not closeIdle(self.reactor):
                raise Refused(f"this process has {terms.most} link groups already", Diagnosis.MEM)
        port = next((each for each in self.ports if each.candidate == candidate), None)
        if port is None:
            raise Refused("the port has changed meanwhile", Diagnosis.NOSMCRDEV)
        group = Group(self, key, port, agreement)
        if terms.keepalive is not None:
            group.core.keepAlive(terms.keepalive)
        self._groups.setdefault(key.peer, []).append(group)
        return group

    @contextmanager
    def forgetting(self, group: Group) -> Iterator[None]:
        """A group is over: no connection finds it any more, while it lets go of everything."""
        self._endingGroups += 1
        try:
            self._forget(group)
            yield
        finally:
            self._endingGroups -= 1

    def closeIdle(self, spared: Group) -> bool:
        """Close a link group without connections, but not C{spared}; whether there was one."""
        return closeIdle(self.reactor, spared)

    def orphaned(self, stream: Member) -> None:
        """A connection lives on without its link."""
        self._orphans.add(stream)

    def _forget(self, group: Group) -> None:
        groups = self._groups.get(group.key.peer, [])
        if group in groups:
            groups.remove(group)
        if not groups:
            self._groups.pop(group.key.peer, None)

    def _told(self, device: IVerbsDevice, event: AsyncEvent) -> None:
        """Act on an asynchronous event: a fatal one of device or queue pair, or one of a port."""
        if event.kind is AsyncEventKind.DEVICE_FATAL:
            self._lost(device)
        elif event.kind in _PORT_EVENTS:
            self._portsChanged()
        elif event.queuePair is not None and event.kind is AsyncEventKind.QP_FATAL:
            for link in self.links():
                link.asyncEvent(event.queuePair, event.kind.value)

    def _lost(self, device: IVerbsDevice) -> None:
        """A device is gone, and peers hear nothing by it; links of others go on, with their memory."""
        if self.devices == [device]:
            self._end()
        elif device in self.devices:
            self.devices.remove(device)
            for link in self.links():
                if link.port.device is device:
                    link.broken("its device is gone")
            self._portsChanged()

    def _portsChanged(self) -> None:
        self.ports = findPorts(self.devices, self._owner)
        for group in self.groups():
            group.portsChanged()

    # Not in use: see txrdma.smc.common.reactoruse

    @property
    def isBusy(self) -> bool:
        """Some group is in the middle of a turn, or of its end."""
        return self._endingGroups > 0 or any(group.isBusy for group in self.groups())

    def rest(self) -> None:
        """Leave the reactor: links rest where peers can do without it meanwhile, and end elsewhere."""
        if self.isStopping:
            return  # the process leaves it
        if not (self._resting or self._attended):
            self._stopLingering()
            self._takeLeave()
            while self._lookAround() and self._isUnheard():
                pass  # peers in this process answer at once
            self._linger(self.reactor.seconds() + PARTING_SECONDS)
            return
        self._isAtRest = True
        for group in self.groups():
            for link in list(group.links):
                link.poll()  # a peer whose window is full could not say its last word while we rest
            group.finish()
            group.rest()
        for device in self._resting:
            device.rest()
        for attended in self._attended:
            attended.rest()
        if self._attended:
            self._attend()

    def _linger(self, until: float) -> None:
        """End when peers have heard of the end of their connections, or it is late."""
        self._lingering = None
        self._lookAround()
        if self._isUnheard() and self.reactor.seconds() < until:
            self._lingering = self.reactor.callLater(_LINGER_SECONDS, self._linger, until)
        else:
            self._end()

    def _stopLingering(self) -> None:
        call, self._lingering = self._lingering, None
        if call is not None and call.active():
            call.cancel()

    def _attend(self) -> None:
        """See to what peers and devices want while all rest, and have the attendant wait for more."""
        for device in self._attended:
            if self._isAtRest:
                device.attend()
        for group in self.groups():
            if self._isAtRest:
                group.attend()
        if not self._isAtRest:
            return  # one of them has roused us
        found = [descriptor for device in self._attended for descriptor in device.descriptors()]
        found += [link.descriptor for link in self.links()]
        times = [time for group in self.groups() if (time := group.deadline()) is not None]
        try:
            self._pollThread.watch(found, min(times) - self.reactor.seconds() if times else None)
        except (OSError, RuntimeError) as error:
            _log.warn("{groups!r} can't rest, and end: {error}", groups=self, error=error)
            self._end()

    def wake(self) -> None:
        """Be part of the reactor, again or still."""
        self._stopLingering()
        self._isAtRest = False
        self._pollThread.stop()
        for device in self._resting:
            device.wake()
        for attended in self._attended:
            attended.wake()
        for group in self.groups():
            group.wake()

    # The end of the process

    def _reactorStops(self) -> Deferred[None] | None:
        """
        Before the reactor stops, peers get what was written until now.

        @return: fires when they have it, or C{STOPPING_SECONDS} are over; None if they have it already.
        """
        self.isStopping = self.reactorUse.isEnding = self.closeNotifier.isPrompt = True
        self.closeNotifier.notify()
        del self._triggers[0]
        for link in self.links():
            link.scheduler.finish()
            for stream in list(link.members):
                if stream.connected and not stream.hasReceivedEnd:
                    self._targets[stream] = stream.written
                    link.confirmSoon(stream)
            link.scheduler.finish()
        self._forgetStopped()
        if not self._targets:
            return None
        stopped: Deferred[None] = Deferred()
        self._stopped = stopped
        late = self.reactor.callLater(STOPPING_SECONDS, self._stoppingTooLong)
        return stopped.addBoth(lambda _: late.cancel() if late.active() else None)

    def checkStopped(self) -> None:
        """Fewer peers may be without what was written for them."""
        if self._stopped is not None:
            self._forgetStopped()
            stopped = self._stopped  # looking at one peer may have come here again, for another
            if stopped is not None and not self._targets:
                self._stopped = None
                stopped.callback(None)

    def _forgetStopped(self) -> None:
        """Peers that have all do not matter any more."""
        for stream, target in list(self._targets.items()):
            if stream.hasReceivedEnd or stream.hasDelivered(target):
                self._targets.pop(stream, None)

    def _stoppingTooLong(self) -> None:
        if self._targets:
            _log.warn(
                "{count} peers have not taken all that was written for them in {seconds} s: the rest is lost",
                count=len(self._targets),
                seconds=STOPPING_SECONDS,
            )
            self._targets.clear()
        self.checkStopped()

    def _reactorStopped(self) -> None:
        self._triggers.clear()
        for stream in list(self._orphans):
            if stream.connected:
                stream.stopped()
        self.close()
        self.reactorUse.isEnding = False  # a program may run the reactor again, as trial does

    def _part(self) -> None:
        """
        End all groups with the consent of peers, for which somebody waits: the reactor, or its end.

        Linux frees the buffers of connections with our consent each, and does not read on what has arrived
        when the group ends before that.
        """
        groups = [group for group in self.groups() if group.core.isOpen]
        until = monotonic() + PARTING_SECONDS
        for group in groups:
            group.takeLeave()
        while monotonic() < until and any(group.core.connections for group in groups if not group.isOver):
            self._lookOn()
        isLate = any(group.core.connections for group in groups)
        for group in groups:
            group.part()
        until = monotonic() + PARTING_SECONDS
        while monotonic() < until and any(group.core.state != "ended" for group in groups):
            self._lookOn()
        quiet = monotonic() + _QUIET_SECONDS if isLate else 0.0
        while monotonic() < min(quiet, until + _QUIET_SECONDS):
            if self._lookOn():
                quiet = monotonic() + _QUIET_SECONDS

    def _takeLeave(self) -> None:
        """End the connections of applications, in order."""
        for group in self.groups():
            if group.core.isOpen:
                group.takeLeave()

    def _isUnheard(self) -> bool:
        """Whether a living peer has not yet heard of the end of a connection, as far as devices can tell."""
        hasPeers = any(not group.isPeerLost for group in self.groups())
        return hasPeers and (self._isWaiting() or self._isOwed)

    def _isWaiting(self) -> bool:
        """Whether a link has something to say for which its peer has had no room yet."""
        return any(link.isActive and link.scheduler.queue.dirty for link in self.links())

    def _lookAround(self) -> bool:
        """
        Take in what peers say on all link groups of this reactor, some of which may be each other's peers.

        @return: whether a peer of ours has said anything.
        """
        before = [link.life.heard for link in self.links()]
        self._isOwed = True in [device.drive() for device in self._driven]
        for (owner, _), those in list(_open.items()):
            for group in those.groups() if owner is self.reactor else ():
                group.check()
                group.finish()
        return before != [link.life.heard for link in self.links()]

    def _lookOn(self) -> bool:
        """Look around, and let some time go by where no peer of ours has said anything; whether one has."""
        hasHeard = self._lookAround()
        if not hasHeard:
            sleep(_LOOK_SECONDS)
        return hasHeard

    def close(self) -> None:
        """
        Close all groups, then the devices, at the end of the process. Twice is fine.

        That blocks for up to L{PARTING_SECONDS}, where peers have no room for our words; over adapters up to
        twice as long, while the peers' kernels do their part.
        """
        self._isAtRest = False
        if _open.get(self._key) is self:
            if self._attended:
                self._part()
            else:
                self._waitForPeers()
        self._end()

    def _waitForPeers(self) -> None:
        """
        End the connections of applications, and wait until peers have heard of it.

        A link has room for few messages until the peer takes them, and packets may be lost.
        """
        isUnheard = any(group.flows for group in self.groups() if group.core.isOpen)
        self._takeLeave()
        until = monotonic() + PARTING_SECONDS
        while monotonic() < until and (isUnheard or self._isWaiting()):
            isPosting = self._isWaiting()
            self._lookOn()
            isUnheard = isUnheard and (isPosting or self._isOwed)

    def _end(self) -> None:
        """Close all groups and devices now."""
        self._stopLingering()
        self._pollThread.stop()
        self._isAtRest = False  # the end of the last connection may have put all to rest
        if _open.get(self._key) is self:
            del _open[self._key]
        self.reactorUse.remove(self)
        self._targets.clear()
        self.checkStopped()
        triggers, self._triggers = self._triggers, []
        for trigger in triggers:
            self.reactor.removeSystemEventTrigger(trigger)
        self._rateLimiter.close()
        for group in self.groups():
            group.close("the device is closed")
        self.closeNotifier.close()
        for unsubscribe in self._unsubscribers:
            unsubscribe()
        for device in self._opened:
            device.close()
