"""
Simulations of complete SMC-R connections according to a plan, and the promises that must hold in them.

Two hosts, each with a software device and its own reactor, share one L{SimulatedNetwork} and one clock.
Everything above the sockets is real: CLC over TCP, LLC and CDC over reliable connections, link groups, rings,
transports. L{txrdma.testing.smc.randomprotocols} checks the promises meanwhile, this module at the end.
"""

from __future__ import annotations

import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager, ExitStack
from dataclasses import dataclass, replace
from itertools import cycle
from random import Random
from typing import Any, Final
from unittest import mock

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IDelayedCall
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.logger import globalLogPublisher, ILogObserver, LogEvent, LogLevel

from txrdma.error import WireError
from txrdma.iba.verbs import Access, AsyncEventKind
from txrdma.interfaces import AsyncEvent
from txrdma.sim.network import Faults
from txrdma.smc.common.reactoruse import reactorUse
from txrdma.smc.flow.closing import LINGER_TIMEOUT
from txrdma.smc.group import buffers as buffersModule
from txrdma.smc.group import groups as groupsModule
from txrdma.smc.group import ports as portsModule
from txrdma.smc.group.group import LinkGroup
from txrdma.smc.group.groups import closeLinkGroups, LinkGroups, linkGroups, useDevice
from txrdma.smc.group.link import Link
from txrdma.smc.handshake.accepting import ServerNegotiation
from txrdma.smc.handshake.outcomes import Outcomes
from txrdma.smc.handshake.proposing import ClientNegotiation
from txrdma.smc.stream.tcpmonitor import GRACE, PACKET_GRACE
from txrdma.smc.terms.options import Options
from txrdma.smc.wire.clc import Accept, Confirm, decode
from txrdma.soft import device as deviceModule
from txrdma.soft.core import memory as memoryModule
from txrdma.soft.device import SoftDevice
from txrdma.testing.outcome import check, Outcome, Violation
from txrdma.testing.plans import noiseAfter
from txrdma.testing.smc.canary import Canary
from txrdma.testing.smc.hosts import connectedSockets, Host, MemorySocket, MemoryTCP, PollingHost, Wire, World
from txrdma.testing.smc.plans import ConnectionPlan, EventPlan, FREEZE, StreamPlan
from txrdma.testing.smc.randomprotocols import Deliberate, makeTalker, Talker
from txrdma.testing.smc.versions import commonVersion

DEVICE: Final = "simulated"

BOUND: Final = 2 * groupsModule.timingOn(False).testIdle + 15.0
"""
Seconds within which an end detects that its peer has failed: TEST LINK is sent after one to two intervals of
silence, and its packets are not acknowledged.
"""

PATIENT_BOUND: Final = groupsModule.timingOn(True).silence + 1225.0
"""
Seconds within which a failed peer is detected if programs acknowledge, which may be busy: their queue pairs
retry for 18 minutes, and an idle link is tested when TCP would send a keepalive probe.
"""

PATIENCE: Final = 300.0
"""Seconds within which all connections end in any case."""

_MOST_TURNS: Final = 150_000

HARMLESS: Final = ("gap", "retired", "clock")
"""Events that must not affect any connection."""


@dataclass(slots=True)
class Pair:
    """
    A connection of the scenario: its two talkers, its wire and its sockets.

    @ivar hasBegun: whether the client has its TCP connection.
    @ivar refused: error with which the client's attempt to connect has failed, or None.
    """

    client: Talker
    server: Talker
    wire: Wire
    sockets: tuple[MemorySocket, MemorySocket]
    connecting: Deferred[Any]
    hasBegun: bool = False
    refused: BaseException | None = None

    @property
    def ends(self) -> tuple[Talker, Talker]:
        return self.client, self.server

    @property
    def isEstablished(self) -> bool:
        """Whether the handshake is complete at both ends."""
        return self.client.isMade and self.server.isMade

    @property
    def isOver(self) -> bool:
        """Whether the connection has ended at each end whose process still runs."""
        if self.client.isMade:
            if self.client.lostAt is None and not self.client.host.isDead:
                return False
        elif self.refused is None and not self.client.host.isDead:
            return False
        server = self.server
        if server.host.isDead:
            return True
        return server.lostAt is not None if server.isMade else self.sockets[1].isClosed


class StreamScenario:
    """
    A simulation of SMC-R connections between two hosts, according to its plan.

    @cvar harmless: kinds of events that must not affect any connection.
    @cvar pollingHost: class of the hosts whose reactors poll completion queues.
    @cvar endBound: seconds within which the end of a TCP connection is detected, for example when the peer's
        process ends: a message that arrives afterwards counts as received at the next check, up to C{GRACE}
        later, and TCP has a delay.
    """

    harmless: tuple[str, ...] = HARMLESS
    endBound = PACKET_GRACE + GRACE + 0.1
    pollingHost: type[Host] = PollingHost

    def __init__(self, plan: StreamPlan) -> None:
        self.plan = plan
        self.world = world = World(plan.seed)
        self.kinds: list[str] = []
        self.canaries: list[Canary] = []
        self.pairs: list[Pair] = []
        self.warned: list[tuple[Talker, float]] = []
        self.due = 0
        self.bound = PATIENT_BOUND if plan.isPatient else BOUND
        self.isBad = plan.isBad
        self.events = [event.kind for event in plan.events]
        world.network.faults = plan.faults
        self.hosts: tuple[Host, ...] = tuple(
            (self.pollingHost if each.isPolling else Host)(
                world, f"198.51.100.{number}", self._deviceMaker(number)
            )
            for number, each in enumerate(plan.hosts, 1)
        )
        self.hostPlans = dict(zip(self.hosts, plan.hosts, strict=True))
        self.ringSizes = {host: cycle(each.ringSizes) for host, each in self.hostPlans.items()}
        self.options = {
            host: Options(
                device=DEVICE, agreed=True, versions=each.versions, ueids=each.ueids, links=each.links
            )
            for host, each in self.hostPlans.items()
        }
        self.version = commonVersion(self.options.values())
        # As listening services do, so that link groups remain when connections end.
        self.isHeld = True
        self.uses = {host: reactorUse(host).hold() for host in self.hosts}
        if plan.isReversed:
            world.hosts.reverse()

    # Setup

    def _deviceMaker(self, number: int) -> Callable[[], SoftDevice]:
        return lambda: self.watched(self.openDevice(f"198.51.100.{number}"))

    def watched(self, device: SoftDevice) -> SoftDevice:
        """Watch the rings of a device from now on, and return the device."""
        device.attributes = replace(device.attributes, acknowledgesByProgram=self.plan.isPatient)
        createDomain = device.createProtectionDomain
        canaryNoise = Random(self.plan.seed)

        def createWatchedDomain() -> Any:
            domain: Any = createDomain()
            allocate, register = domain.allocateMemory, domain.registerMemory

            def allocateMemory(length: int, access: Access) -> Any:
                region = allocate(length, access)
                if access & Access.REMOTE_WRITE:
                    self.canaries.append(Canary(region, canaryNoise))
                return region

            def registerMemory(buffer: memoryview, access: Access) -> Any:
                region = register(buffer, access)
                for canary in self.canaries:
                    if canary.region.valid and canary.region.view.obj is buffer.obj:
                        canary.rkeys.add(region.rkey)
                return region

            domain.allocateMemory, domain.registerMemory = allocateMemory, registerMemory
            return domain

        device.createProtectionDomain = createWatchedDomain  # type: ignore[method-assign]  # to watch its memory
        return device

    def openDevice(self, address: str) -> SoftDevice:
        """Open a new device of the host with that address."""
        plan = self.hostPlans[self.hostAt(address)]
        return self.world.network.device(address, mtu=self.plan.mtu, segments=plan.segments)

    def hostAt(self, address: str) -> Host:
        (host,) = (host for host in self.hosts if host.address == address)
        return host

    def _sniff(self, data: bytes) -> None:
        """Note the ring that a CLC message announces to a peer."""
        try:
            message = decode(data)
        except WireError:
            return
        if isinstance(message, (Accept, Confirm)):
            for canary in self.canaries:
                if message.rkey in canary.rkeys and canary.region.valid:
                    begin = (message.index - 1) * message.size
                    canary.granted.add((begin, begin + message.size))

    def _groups(self, host: Host) -> LinkGroups:
        if host.triggers:
            return linkGroups(host, DEVICE)
        groups = useDevice(host, DEVICE, host.openDevice())
        groups.ringSize = lambda: next(self.ringSizes[host])  # type: ignore[method-assign]  # small rings
        return groups

    def _linkGroups(self, host: Host) -> list[LinkGroup]:
        if host.isDead or not host.triggers:
            return []
        return self._groups(host).groups()

    def _links(self, host: Host) -> list[Link]:
        return [link for group in self._linkGroups(host) for link in group.links]

    def _connect(self, plan: ConnectionPlan) -> None:
        """Begin a connection between the hosts, unless one of them is dead."""
        self.due -= 1
        world = self.world
        client, server = self.hosts[::-1] if plan.isReversed else self.hosts
        if client.isDead or server.isDead:
            return
        for host in (client, server):
            self._groups(host)
        number = len(self.pairs)
        here = makeTalker(client, f"{number}c", plan.client)
        there = makeTalker(server, f"{number}s", plan.server)
        here.peer, there.peer = there, here
        noise = noiseAfter(plan.jitter, f"wire {number} {self.plan.seed}")
        sockets = connectedSockets(world, noise, client, server, 50_000 + number, plan.latency)
        for one in sockets:
            one.sniffer = self._sniff
        options = self.options
        accepting = ServerNegotiation(server, options[server], Outcomes("server"), lambda: there, None)
        asking = ClientNegotiation(client, options[client], Outcomes("client"), lambda: here)
        pair = Pair(here, there, sockets[0].wire, sockets, asking.finished())
        self.pairs.append(pair)

        def refused(failure: Any) -> None:
            pair.refused = failure.value

        pair.connecting.addErrback(refused)
        for one, protocol, delay in zip(sockets, (asking, accepting), plan.delays, strict=True):
            world.clock.callLater(delay, self._begin, pair, one, protocol)

    def _begin(self, pair: Pair, one: MemorySocket, protocol: Protocol) -> None:
        if not one.host.isDead:
            pair.hasBegun |= one is pair.sockets[0]
            MemoryTCP(one, protocol).begin()

    # Events

    def happen(self, event: EventPlan) -> None:
        """Trigger an event."""
        kind, network = event.kind, self.world.network
        self.kinds.append(kind)
        network.note(kind)
        host = self.hosts[event.host]
        alive = [pair for pair in self.pairs if not pair.isOver]
        if kind in ("partition", "apart", "gap"):
            self.part()
            if kind == "apart":
                for pair in alive:
                    self._freeze(pair)
                self.world.clock.callLater(
                    min(event.seconds, FREEZE), self._thaw, alive, event.seconds > FREEZE
                )
            if not event.isFinal:
                self.world.clock.callLater(event.seconds, network.heal)
        elif kind == "clock":
            host.setClock(event.seconds)
            # All timeouts expire when the clock is set forward, in the middle of a handshake, too.
            self.isBad |= event.seconds > 1.0 and not all(pair.isEstablished for pair in alive)
        elif kind == "busy":
            host.sleep()
            self.world.clock.callLater(event.seconds, host.wake)
        elif kind == "killed":
            self._kill(host, silently=False)
            self._warn(alive)
        elif kind == "vanished":
            self._kill(host, silently=True)
            self.world.clock.callLater(FREEZE, self._thaw, alive, True)
        elif kind == "stopped":
            host.stop()
            for pair in alive:
                for end in pair.ends:
                    reported = end.lostAt is not None or end.mode != "SMC-R"
                    check(reported or end.host is not host, f"the end was not reported: {end!r}")
            self.die(host, silently=False)
            self._warn(alive)
        elif kind in ("reset", "frozen", "cancelled") and alive:
            pair = alive[event.pick % len(alive)]
            if kind == "reset":
                pair.wire.cut()
                self._warn([pair])
            elif kind == "frozen":
                self._freeze(pair)
                self.world.clock.callLater(event.seconds, self._thaw, [pair], event.isFinal)
            elif pair.hasBegun and not pair.client.isMade:
                pair.connecting.cancel()
        elif links := self._links(host):
            groups = self._linkGroups(host)
            if kind == "fatal":
                queuePair = links[event.pick % len(links)]._queuePair
                host.device.notify(AsyncEvent(AsyncEventKind.QP_FATAL, queuePair=queuePair))
            elif kind == "deleted":
                groups[event.pick % len(groups)].shutdown()
            elif kind == "retired":
                groups[event.pick % len(groups)].retire()

    def part(self) -> None:
        """Cut the network between the hosts."""
        self.world.network.partition(*(each.address for each in self.hosts))

    def _warn(self, pairs: list[Pair]) -> None:
        """Note that the TCP connections of these pairs have ended, which their ends must detect in time."""
        if {"apart", "frozen", "vanished"}.isdisjoint(self.events):
            now = self.world.clock.seconds()
            for end in (end for pair in pairs for end in pair.ends):
                # As with TCP, a paused end detects it when it reads again, and one that has read the end of
                # file does not.
                isListening = not end.plan.pausing and not end.sawEnd
                if end.mode == "SMC-R" and end.lostAt is None and not end.host.isDead and isListening:
                    self.warned.append((end, now))

    def _freeze(self, pair: Pair) -> None:
        pair.wire.freeze()

    def _thaw(self, pairs: list[Pair], isTooLate: bool) -> None:
        for pair in pairs:
            if isTooLate:
                pair.wire.cut()
            else:
                pair.wire.thaw()

    def _kill(self, host: Host, silently: bool) -> None:
        self.die(host, silently)
        self.bury(host)

    def die(self, host: Host, silently: bool) -> None:
        """Kill the host's process; C{silently}: the whole host."""
        host.die(silently)

    def bury(self, host: Host) -> None:
        """Close the open resources of a dead process."""
        with mock.patch.object(Talker, "claim", lambda *args: None):  # a dead process checks nothing
            closeLinkGroups(host)

    # The run

    def run(self) -> Outcome:
        """
        Run the simulation to its end, and check its promises.

        @raise Violation: a promise was violated.
        """
        waiting = Clock()  # link groups wait in real time, during which no simulated peer runs
        with mock.patch.multiple(groupsModule, monotonic=waiting.seconds, sleep=waiting.advance):
            return self._run()

    def _run(self) -> Outcome:
        clock = self.world.clock
        self.due = len(self.plan.connections)
        for connection in self.plan.connections:
            clock.callLater(connection.at, self._connect, connection)
        for event in self.plan.events:
            clock.callLater(event.at, self.happen, event)
        try:
            while self.due or not all(pair.isOver for pair in self.pairs):
                self._turn(PATIENCE + self.bound)
            self.judge()
            self._clear()
        finally:
            for host in self.hosts:
                closeLinkGroups(host)
            self.world.close()
        received = sum(end.received for pair in self.pairs for end in pair.ends)
        sent, dropped = self.carried()
        counts = Counter(self.kinds) + Counter(bytes=received, packets=sent, dropped=dropped)
        return Outcome(counts, (self.world.network.digest, clock.seconds()))

    def carried(self) -> tuple[int, int]:
        """Return the numbers of packets that were sent and that were lost."""
        return self.world.network.sent, self.world.network.dropped

    def _turn(self, until: float) -> None:
        world = self.world
        goesOn = world.turn()
        if world.complaints:
            raise world.complaints[0]
        if not goesOn or world.clock.seconds() > until or world.turns > _MOST_TURNS:
            what = "nothing happens any more" if not goesOn else "the simulation does not end"
            raise Violation(f"{what}: {[pair for pair in self.pairs if not pair.isOver]}")

    # Checks

    @property
    def isHarmless(self) -> bool:
        """Whether none of the faults and events may affect a connection."""
        return not self.isBad and set(self.events) <= set(self.harmless)

    def judge(self) -> None:
        """Check the promises after all connections have ended."""
        for end, at in self.warned:
            # If the peer closed before it ended, TCP reports only an end of file.
            due = max(at, end.host.awakeSince) + self.endBound
            isReported = any(when is not None and when < due for when in (end.sawEndAt, end.lostAt))
            check(isReported or end.host.isDead, f"the end of TCP was not detected in time: {end!r}")
        for pair in self.pairs:
            client, server = pair.ends
            self._judgeFailures(pair)
            # An abort before the peer knows the outcome of the handshake resets the handshake.
            isAborted = any(not end.mode for end in pair.ends) and any(end.hasAborted for end in pair.ends)
            isAgreed = client.mode == server.mode or isAborted
            if self.isHarmless and (isAgreed or "retired" not in self.events):
                check(isAgreed, f"the ends use different protocols: {pair}")
                isFair = self.plan.isFair and not self.events
                check(
                    client.mode == "SMC-R" or not isFair or not self.version,
                    f"no SMC-R, although there are no faults: {pair}",
                )
                self._judgeEnds(client)
                self._judgeEnds(server)
            check(isAgreed or not client.received + server.received, f"received, but not sent: {pair}")
            for end in pair.ends:
                check(end.mode != "SMC-R" or end.version == self.version, f"a wrong version: {end!r}")
            if client.isMade and server.isMade:
                self.kinds.append(client.mode)
                if client.mode == "SMC-R":
                    self.kinds.append(f"version {client.version}")
                if client.received == server.written and server.received == client.written:
                    self.kinds.append("whole")

    def _judgeFailures(self, pair: Pair) -> None:
        """Check that both ends detect a failure in time; the run ends only after both have."""
        client, server = pair.ends
        if not (client.isMade and server.isMade and client.mode == server.mode == "SMC-R"):
            return
        for one in pair.ends:
            other = one.peer
            if one.lostAt is not None and not one.isDone and other.lostAt is not None:
                late = other.lostAt - max(one.lostAt, other.host.awakeSince)
                check(late < self.bound, f"{other!r} detected the failure {late:.1f} s after its peer")

    def _judgeEnds(self, one: Talker) -> None:
        """Check that an end fails only after an abort, or if its peer closed with data unread."""
        other = one.peer
        if one.hasAborted or other.hasAborted or one.isDone or one.hasRaised or other.hasRaised:
            return
        # Data that the peer did not read before its close makes the connection fail, as in TCP.
        check(other.hasQuit and one.written > other.received, f"ended by {one.reason}: {one!r}, {other!r}")

    def _clear(self) -> None:
        """Check at the end that no connections, buffers and TCP sockets are left."""
        world = self.world
        world.network.heal()
        world.network.faults = Faults()
        # A link whose peer has failed silently ends when its queue pair's retries are exhausted.
        patience = self.bound if self.plan.isPatient or any(host.isDead for host in self.hosts) else 0.0
        self.wait(LINGER_TIMEOUT + FREEZE + 10 + patience)
        for host in self.hosts:
            for link in self._links(host):
                remembered = link.members or link.scheduler.queue.dirty
                check(not remembered, f"{link!r} still has {remembered}")
            for group in self._linkGroups(host):
                check(not group.core.connections, f"{group!r} still has {group.core.connections}")
                held = group.flows or group._lingering
                check(not held, f"{group!r} still has {held}")
                check(all(buffer.isIdle for buffer in group.pool), f"{group!r} still uses a ring")
                check(group.pool.surplus() is None, f"{group!r} retains unused buffers")
            check(host.isDead or not host.sockets, f"{host!r} still has TCP connections")
        for canary in self.canaries:
            if canary.region.valid:
                canary.check()
        if self.plan.isRested and self.isHeld:
            self.wait(700.0)  # unused link groups end by themselves
            for host in self.hosts:
                check(not self._links(host), f"link groups do not end: {self._links(host)}")
                check(host.isDead or not host.triggers or not len(host.device.keys), "memory is not released")
        for host in self.hosts:
            device = host.device
            host.stop()
            self.uses[host].release()
            if device is not None:
                parts = (device.domains, device._queuePairs, device._completionQueues, device._channels)
                check(not any(parts) and not len(device.keys), f"{device!r} still has {parts}")
            left = [*host.readers, *host.writers]
            check(host.isDead or not left, f"{host!r} still watches {left}")
        self.wait(1.0)
        calls = [str(call) for call in self.calls()]
        check(not calls, f"there are still calls: {calls}")

    def calls(self) -> list[IDelayedCall]:
        """Return the delayed calls, except those of dead processes, which may be late by the clock."""
        dead = [call.scheduled for host in self.hosts if host.isDead for call in host.calls]
        return [call for call in self.world.clock.calls if call not in dead]

    def wait(self, seconds: float) -> None:
        """Let this many simulated seconds pass."""
        world = self.world
        end = world.clock.seconds() + seconds
        world.clock.callLater(seconds, lambda: None)
        while world.clock.seconds() < end:
            self._turn(end + 1)
        world.turn()


# The run of one plan


@contextmanager
def _tamed(plan: StreamPlan) -> Iterator[None]:
    """Derive random numbers from the seed of the noise, and limit the rings of a buffer by the plan."""
    noise = Random(f"chance {plan.seed}")

    def bits(count: int) -> int:
        if noise.random() < 0.3:
            return (1 << count) - 1 - noise.randrange(100)  # PSNs and tokens that are about to wrap
        return noise.getrandbits(count)

    with ExitStack() as patches:
        for where, name, what in (
            (secrets, "randbits", bits),
            (secrets, "token_bytes", noise.randbytes),
            (memoryModule, "randbits", noise.getrandbits),
            (deviceModule, "randbelow", noise.randrange),
            (portsModule, "_instance", lambda pid: b"ID"),
            (buffersModule, "MOST_ELEMENTS", plan.elements),
        ):
            patches.enter_context(mock.patch.object(where, name, what))
        yield


def playScenario(scenario: type[StreamScenario], plan: StreamPlan) -> Outcome:
    """
    Run a plan as a simulation of the class C{scenario}.

    @raise Violation: a promise was violated.
    """
    errors: list[LogEvent] = []

    @implementer(ILogObserver)
    def observe(event: LogEvent) -> None:
        failure = event.get("log_failure")
        isExpected = failure is not None and failure.check(Deliberate)
        if event.get("log_level") in (LogLevel.error, LogLevel.critical) and not isExpected:
            errors.append(event)

    globalLogPublisher.addObserver(observe)
    try:
        with _tamed(plan):
            outcome = scenario(plan).run()
    finally:
        globalLogPublisher.removeObserver(observe)
    if errors:
        failure = errors[0].get("log_failure")
        raise Violation(f"an error was logged: {failure.getTraceback() if failure else errors[0]}")
    return outcome


def playStreams(plan: StreamPlan) -> Outcome:
    """
    Run the simulation of a plan over RoCE.

    @raise Violation: a promise was violated.
    """
    return playScenario(StreamScenario, plan)
