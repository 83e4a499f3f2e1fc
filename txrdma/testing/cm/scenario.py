"""
Simulations of programs that use connections of C{rdma:} and C{rsocket:}, with checks of their promises.

Two or three hosts have services and clients, over a network with faults. The programs use the API at random:
also in callbacks, with several producers, after the end, and with exceptions in any callback. Bytes and
messages arrive once and in order, and all of them if both ends close in order. Every Deferred fires, and
every connection that was made ends once. Nothing remains, and each exception of a program is logged once.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterator
from contextlib import contextmanager, ExitStack, suppress
from dataclasses import replace
from functools import partial
from importlib.util import find_spec
from random import Random
from typing import Any, Final
from unittest import mock

from zope.interface import alsoProvides

from twisted.internet.defer import CancelledError, Deferred, DeferredList, maybeDeferred
from twisted.internet.error import (
    CannotListenError,
    ConnectError,
    ConnectingCancelledError,
    ConnectionDone,
    NoProtocol,
)
from twisted.internet.interfaces import IReactorCore
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure

from txrdma.cm.connections import adapter as adapterModule
from txrdma.cm.connections import endpoints as endpointsModule
from txrdma.cm.connections.endpoints import RDMAClientEndpoint, RDMAServerEndpoint
from txrdma.cm.connections.receives import ReceiveMemory
from txrdma.cm.core.dispatcher import BACKLOG
from txrdma.cm.errors import Rejection
from txrdma.cm.layouts.messages import RejectReason
from txrdma.cm.rsocket.endpoints import RSocketClientEndpoint, RSocketOptions, RSocketServerEndpoint, USUAL
from txrdma.cm.terms import Terms
from txrdma.error import RDMAError
from txrdma.mad.resolvers import sourceGID
from txrdma.sim.network import Faults
from txrdma.testing.cm.datagrams import DatagramPair
from txrdma.testing.cm.userplans import (
    Act,
    ActPlan,
    ConnectionPlan,
    CONTROLS,
    EndPlan,
    EVENTS,
    ServicePlan,
    UsersPlan,
    When,
)
from txrdma.testing.cm.users import (
    HalfCloseableUser,
    MessageUser,
    privateData,
    StreamUser,
    User,
)
from txrdma.testing.hostile.cm import CMScenario
from txrdma.testing.outcome import check, Outcome
from txrdma.testing.programs import (
    checkReleased,
    LONGEST_TROUBLE,
    ProgramError,
    ProgramScenario,
)
from txrdma.testing.smc.hosts import Host
from txrdma.testing.smc.neighbours import ticking

_QUIET: Final = 2000.0
"""Seconds after which time-wait is over."""

_LONG_TROUBLE: Final = 60.0
"""Seconds for which a path is cut, so that connections without an alternate one are lost."""

_LONGEST_DATAGRAMS: Final = 6.0
"""Seconds in which all datagrams are sent."""

_PORT: Final = 7471
_REFUSALS: Final = (RDMAError, ConnectError, CancelledError, ConnectingCancelledError, NoProtocol)


class _Process(Host):
    """A process whose reactor can be stopped."""

    running = True

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        alsoProvides(self, IReactorCore)  # the part of it that is used

    def stop(self) -> None:
        """Stop the reactor: call the triggers before the shutdown, and wait for their Deferreds."""
        if self.isStopped or self.isDead:
            return
        self.isStopped = True
        waiting = []
        while before := [each for each in self.triggers if each[0] == "before"]:
            self.triggers.remove(before[0])
            waiting.append(maybeDeferred(before[0][1]))
        DeferredList(waiting).addCallback(lambda _: self._stopped())

    def _stopped(self) -> None:
        if not self.isDead:
            super().stop()
            self.die(False)


class _Programs(Factory):
    """
    The factory of a service, or of a client.

    @ivar isStarted: whether it is started.
    """

    noisy = False

    def __init__(self, scenario: UserScenario, connection: Connection, end: int, host: Host) -> None:
        self._scenario, self._connection, self._end, self._host = scenario, connection, end, host
        self.isStarted = False

    def startFactory(self) -> None:
        self._scenario.require(not self.isStarted, "a factory is started twice")
        self.isStarted = True
        self._scenario.react(When.START_FACTORY, self._connection, self._end)
        if not self._end:  # another connection may have begun
            self._scenario.sourcePort = self._connection.number

    def stopFactory(self) -> None:
        self._scenario.require(self.isStarted, "a factory is stopped twice")
        self.isStarted = False
        self._scenario.react(When.STOP_FACTORY, self._connection, self._end)

    def buildProtocol(self, addr: Any) -> Any:
        """Build the program of an end; None refuses the connection."""
        scenario, connection = self._scenario, self._connection
        if self._end:
            connection = scenario.connections[addr.port - endpointsModule._FIRST_PORT]
        service = connection.service
        terms = service.plan.terms if self._end else connection.plan.terms
        user: Any = _kindOf(connection, terms)(connection, self._host, self._end, terms)
        connection.hasRefused = False
        scenario.react(When.BUILD, connection, self._end)
        if connection.hasRefused:
            return None
        former = connection.users[self._end]
        scenario.require(former is None or not former.isMade, f"{user!r} is built twice")
        connection.users[self._end] = user
        return user


class Service:
    """
    A service of a host.

    @ivar port: its listening port, or None; C{hasStopped}: whether it has ever stopped to listen.
    """

    def __init__(self, scenario: UserScenario, number: int, plan: ServicePlan) -> None:
        self.scenario, self.number, self.plan = scenario, number, plan
        self.host = scenario.hosts[plan.host]
        self.port: Any = None
        self.factory: Any = None
        self.isUsable = False
        self.hasStopped = False

    def begin(self) -> None:
        """Make the factory, and listen."""
        connections = [each for each in self.scenario.connections if each.service is self]
        if connections:
            self.factory = _Programs(self.scenario, connections[0], 1, self.host)
            self.isUsable = True
            self.listen()

    def listen(self) -> None:
        """Listen, unless that is the case."""
        if self.port is not None or not self.isUsable:
            return
        self.isUsable = False  # the factory may request the same
        host, port, backlog = self.host, _PORT + self.number, self.plan.backlog or BACKLOG
        if self.plan.isStream:
            endpoint: Any = RSocketServerEndpoint(host, port, host.device, _options(self.plan.terms), backlog)
        else:
            endpoint = RDMAServerEndpoint(host, port, host.device, _terms(self.plan.terms), backlog)
        results: list[Any] = []
        endpoint.listen(self.factory).addBoth(results.append)
        (result,) = results
        self.isUsable = True
        if isinstance(result, Failure):
            self.hasStopped = True
            isScarce = self.scenario.isTroubled and result.check(RDMAError, CannotListenError) is not None
            if isScarce:
                pass
            elif not self.scenario.caught(result.value):
                self.scenario.broken(result)
            else:
                self.factory.numPorts, self.factory.isStarted = 0, False
        else:
            self.port = result

    def stop(self) -> None:
        """Stop listening; a second call has no effect."""
        if self.port is not None:
            self.hasStopped = True
            port, self.port = self.port, None
            port.stopListening()
            port.stopListening()


class Connection:
    """
    A connection, from the attempt to connect on.

    @ivar users: the programs of client and server, once they are built.
    @ivar isDisturbed: whether a program has closed it, or let it fail; C{isCut}: whether a process was
        killed, or the only path was cut.
    @ivar result: the protocol or failure of the attempt; C{begunAt}: the time when that began.
    """

    def __init__(self, scenario: UserScenario, number: int, plan: ConnectionPlan) -> None:
        self.scenario, self.number, self.plan = scenario, number, plan
        self.service = scenario.services[plan.service]
        self.host = scenario.hosts[plan.host]
        self.users: list[User | None] = [None, None]
        self.isDisturbed = self.isCut = self.hasBegun = self.hasRefused = self.mayFail = False
        self.attempt: Deferred[Any] | None = None
        self.result: Any = None
        self.begunAt = 0.0

    def __repr__(self) -> str:
        return f"connection {self.number}"

    @property
    def isBroken(self) -> bool:
        """Whether data may be lost."""
        return self.scenario.isTroubled or self.isCut or any(user.isBroken for user in self.present)

    @property
    def present(self) -> list[User]:
        """The programs that exist."""
        return [user for user in self.users if user is not None]

    @property
    def canMigrate(self) -> bool:
        """Whether both ends can migrate to another path."""
        return len(self.present) == 2 and all(user.isArmed for user in self.present)

    @property
    def isQuiet(self) -> bool:
        """Whether the attempt has ended, and everything has arrived unless the connection is disturbed."""
        if not self.hasBegun or self.isDisturbed or isinstance(self.result, Failure):
            return not self.hasBegun or self.hasEnded
        return len(self.present) == 2 and all(user.isQuiet for user in self.present)

    @property
    def isOver(self) -> bool:
        """Whether the attempt has ended, and so have both ends."""
        return not self.hasBegun or (self.hasEnded and not any(user.isOpen for user in self.present))

    @property
    def hasEnded(self) -> bool:
        """Whether the attempt has ended, or its process; then the other end is notified."""
        if self.host.isDead or self.service.host.isDead:
            return not any(user.isOpen and user.isProbing for user in self.present)
        return self.result is not None

    def begin(self) -> None:
        """Begin to connect."""
        if self.hasBegun:
            return
        self.hasBegun, self.begunAt = True, self.scenario.world.clock.rightNow
        service, host, plan = self.service, self.host, self.plan.terms
        address, port = service.host.address, _PORT + service.number
        if service.plan.isStream:
            endpoint: Any = RSocketClientEndpoint(host, address, port, host.device, _options(plan))
        else:
            endpoint = RDMAClientEndpoint(
                host,
                address,
                port,
                host.device,
                _terms(plan),
                privateData(self, 0),
                timeout=self.plan.timeout or None,
            )
            self.mayFail |= self.plan.timeout > 0
        self.mayFail |= service.port is None or service.plan.backlog > 0
        self.scenario.sourcePort = self.number
        attempt = endpoint.connect(_Programs(self.scenario, self, 0, host))
        self.attempt = attempt
        attempt.addBoth(self._ended)

    def _ended(self, result: Any) -> None:
        self.scenario.require(self.result is None, f"{self!r}: the attempt has two results")
        self.result = result
        timeout = 0.0 if self.service.plan.isStream else self.plan.timeout
        seconds = self.scenario.world.clock.rightNow - self.begunAt
        isLate = 0.0 < timeout < seconds - 1e-6 and self.scenario.isSteady
        self.scenario.require(not isLate, f"{self!r}: the attempt takes {seconds} seconds, not {timeout}")
        if not isinstance(result, Failure):
            self.scenario.require(result is self.users[0], f"{self!r} has another protocol")
            return
        self._disturb()
        if self.scenario.caught(result.value):
            return
        isKnown = isinstance(result.value, _REFUSALS)
        mayFail = self.mayFail or self.service.hasStopped or self.scenario.isTroubled
        self.scenario.require(isKnown and mayFail, f"{self!r} is not connected: {result!r}")

    def cancel(self) -> None:
        """Cancel the attempt, unless its process has been killed."""
        if self.attempt is not None and self.result is None and not self.host.isDead:
            self.mayFail = True
            self._disturb()
            self.attempt.cancel()

    def _disturb(self) -> None:
        """Note that the client does not wait for the connection any more."""
        self.isDisturbed = True
        for user in self.present:
            user.isBroken = True


def _kindOf(connection: Connection, terms: EndPlan) -> type[User]:
    """Return the class of the program of an end."""
    if not connection.service.plan.isStream:
        return MessageUser
    if connection.plan.isSecured and find_spec("OpenSSL") is not None:
        from txrdma.testing.cm.securedusers import SecuredUser

        return SecuredUser
    return HalfCloseableUser if terms.isHalfCloseable else StreamUser


def _terms(plan: EndPlan) -> Terms:
    return Terms(
        messageBytes=plan.messageBytes,
        receives=plan.receives,
        sends=plan.sends,
        reads=plan.reads,
        usesCredits=plan.usesCredits,
        longest=plan.longest,
    )


def _options(plan: EndPlan) -> RSocketOptions:
    return RSocketOptions(
        USUAL.sizes._replace(
            receives=16 + plan.receives,
            sends=15 + plan.sends,
            receiveBuffer=plan.buffer,
            sendBuffer=plan.buffer,
            mappings=plan.mappings,
        )
    )


def _isOfUser(plan: ActPlan) -> bool:
    """Whether an act is made at a time by a program that is connected."""
    return plan.when is When.TIME and plan.act not in (*EVENTS, *CONTROLS)


class UserScenario(ProgramScenario):
    """
    A simulation, according to its plan.

    @ivar troubleSeconds: duration of events that suspend connections.
    @ivar isTroubled: whether connections may be lost, as the trouble was too long, or memory is scarce.
    @ivar isSteady: whether no clock is set, and no process is busy.
    @ivar isPathDown: whether the path between the first ports of two hosts is cut.
    """

    def __init__(self, plan: UsersPlan) -> None:
        super().__init__(plan.seed)
        self.plan = plan
        self.world.network.faults = plan.faults
        self.errors: list[ProgramError] = []
        self.isTroubled = plan.regions > 0
        self.isPathDown = False
        self.isSteady = not any(act.act in (Act.CLOCK, Act.SLEEP) for act in plan.acts)
        self.troubleSeconds = 0.0
        self.sourcePort = 0
        self._calls: Counter[tuple[int, int, When]] = Counter()
        self._reactions: dict[tuple[int, int, When, int], list[ActPlan]] = defaultdict(list)
        for act in plan.acts:
            if act.when is not When.TIME:
                self._reactions[act.connection, act.end, act.when, act.nth].append(act)
        self.hosts = [self._host(f"10.0.1.{number + 1}") for number in range(plan.hosts)]
        self.services = [Service(self, number, each) for number, each in enumerate(plan.services)]
        self.connections = [Connection(self, number, each) for number, each in enumerate(plan.connections)]
        self.datagrams = [DatagramPair(self, number, each) for number, each in enumerate(plan.datagrams)]

    def _host(self, address: str) -> Host:
        addresses = (address, address.replace("10.0.1", "10.0.2"))[: self.plan.ports]
        host = _Process(self.world, address, lambda: self.world.network.device(*addresses, mtu=self.plan.mtu))
        host.addresses = addresses
        device = host.openDevice()
        if self.plan.inline:
            device.limits = replace(device.limits, maxInline=self.plan.inline)
        if self.plan.regions:
            device.keys._maxRegions = self.plan.regions
        return host

    def caught(self, error: BaseException | None) -> bool:
        """Note that an exception has come back to its program; return whether it is one."""
        if isinstance(error, ProgramError):
            error.isCaught = True
        return isinstance(error, ProgramError)

    @property
    def isLossy(self) -> bool:
        """
        Whether the last acknowledgement may be lost. Then an end does not know that everything has arrived
        when the peer closes, and reports the connection as lost.
        """
        faults = self.plan.faults
        return self.world.network.dropped > 0 or faults.corruption > 0 or faults.late > 0

    # Acts

    def react(self, when: When, connection: Connection, end: int, user: User | None = None) -> None:
        """Make the acts of a callback: exceptions last."""
        key = connection.number, end, when
        nth = self._calls[key]
        self._calls[key] += 1
        acts = self._reactions.get((*key, nth), ())
        for act in sorted(acts, key=lambda each: each.act is Act.RAISE):
            self._perform(act, connection, user)

    def _perform(self, plan: ActPlan, connection: Connection, user: User | None) -> None:
        self.counts[plan.act.name.lower()] += 1
        act = plan.act
        if act is Act.RAISE:
            if user is not None:
                user.breakConnection()
            connection.mayFail = connection.isDisturbed = True
            self.errors.append(ProgramError(f"{plan.when.value} of {connection!r}"))
            raise self.errors[-1]
        if act is Act.REFUSE:
            connection.mayFail = connection.isDisturbed = connection.hasRefused = True
            if plan.number % 2 and not connection.service.plan.isStream:
                raise Rejection(RejectReason.CONSUMER_REJECT, b"refused")
        elif act is Act.CANCEL_CONNECT:
            connection.cancel()
        elif act is Act.CONNECT and not self.isFinishing:
            for each in self.connections:
                if each.plan.at is None and not each.hasBegun:
                    each.begin()
                    break
        elif act is Act.CLOCK:
            (connection.service.host if plan.end else connection.host).setClock(plan.seconds)
        elif act is Act.STOP_LISTENING:
            connection.service.stop()
        elif act is Act.LISTEN:
            connection.service.listen()
        elif act is Act.STOP:
            host = connection.service.host if plan.end else connection.host
            host.callSteadily(0, partial(self._stop, host))
        elif user is not None and user.transport is not None:
            user.act(plan)

    def _stop(self, host: Host) -> None:
        """Stop a reactor: its connections end as by C{loseConnection}."""
        for connection in self._connectionsOf(host):
            connection.isDisturbed = connection.mayFail = True
            for user in connection.present:
                if user.host is host and user.isOpen:
                    user.noteClose()
        for service in self.services:
            if service.host is host:
                service.hasStopped, service.isUsable = True, False
        host.stop()

    def _connectionsOf(self, host: Host) -> list[Connection]:
        return [each for each in self.connections if host in (each.host, each.service.host)]

    def began(self, user: User) -> None:
        """Plan the acts of a program whose connection is made."""
        for act in self.plan.acts:
            if (act.connection, act.end) == (user.connection.number, user.end) and _isOfUser(act):
                user.due += 1
                user.host.callSteadily(act.at, partial(self._make, act, user))

    def _make(self, plan: ActPlan, user: User | None = None) -> None:
        """Make an act at its time."""
        if user is not None:
            user.due -= 1
        try:
            self._perform(plan, self.connections[plan.connection], user)
        except Exception as error:
            if not self.caught(error):
                self.broken(Failure())
        if user is not None and user.isOpen:
            user.checkProgress()

    def _begin(self, plan: ActPlan) -> None:
        """Begin an act, or an event."""
        connection = self.connections[plan.connection]
        host = connection.service.host if plan.end else connection.host
        network, later = self.world.network, self.world.clock.callLater
        seconds = min(abs(plan.seconds), LONGEST_TROUBLE)
        if host.isDead:
            return
        if plan.act in EVENTS:
            self.counts[plan.act.name.lower()] += 1
        if plan.act is Act.CLOCK:
            host.setClock(plan.seconds)
        if plan.act is Act.KILL:
            host.die(True)
            for connection in self._connectionsOf(host):
                connection.isDisturbed = connection.mayFail = connection.isCut = True
        if plan.act in (Act.CLOCK, Act.KILL):
            return
        if plan.act not in EVENTS:
            host.callSteadily(0, partial(self._make, plan))
            return
        self.troubleSeconds += seconds
        self.isTroubled |= self.troubleSeconds > LONGEST_TROUBLE
        if plan.act is Act.SLEEP:
            if not host.isAsleep:
                host.sleep()
                later(seconds, host.wake)
        elif plan.act is Act.PARTITION:
            network.partition(connection.host.address, connection.service.host.address)
            later(seconds, network.heal)
        else:
            host.device.setPortEnabled(1, False)
            later(seconds, host.device.setPortEnabled, 1, True)

    def cutPath(self, connection: Connection) -> None:
        """Cut the path between the first ports of two hosts; connections that are armed migrate."""
        ends = {connection.host, connection.service.host}
        for each in self.connections:
            if {each.host, each.service.host} == ends and not each.canMigrate:
                each.isDisturbed = each.mayFail = each.isCut = True
        self.isPathDown = True
        self.world.network.partition(*(each.address for each in ends))
        self.world.clock.callLater(_LONG_TROUBLE, self._mendPaths)

    def _mendPaths(self) -> None:
        self.isPathDown = False
        self.world.network.heal()

    # The course of the simulation

    def playAll(self) -> None:
        for service in self.services:
            service.host.callSteadily(0, service.begin)
        for pair in self.datagrams:
            pair.peer.callSteadily(0, pair.begin)
        for connection in self.connections:
            if connection.plan.at is not None:
                connection.host.callSteadily(connection.plan.at, connection.begin)
        for act in self.plan.acts:
            if act.when is When.TIME and not _isOfUser(act):
                self.world.clock.callLater(act.at, self._begin, act)
        self.run(max((act.at for act in self.plan.acts), default=0.0) + 0.1)
        self.run(LONGEST_TROUBLE)
        self.world.network.faults = Faults()
        self.isFinishing = True
        for user in self._users():
            if user.transport is not None:
                user.host.callSteadily(0, user.finish)
        self.until(lambda: all(each.isQuiet for each in self.connections), self._waiting)
        self.run(2.0)
        for connection in self.connections:
            if connection.hasBegun and not connection.isDisturbed:
                self._end(connection)
        for user in self._users():
            if user.isMade:
                user.host.callSteadily(0, user.conclude)
        self.until(lambda: all(each.isOver for each in self.connections), self._waiting)
        for service in self.services:
            service.isUsable = False
            service.host.callSteadily(0, service.stop)
        self.run(_LONGEST_DATAGRAMS)
        for pair in self.datagrams:
            pair.end()
        self.run(_QUIET)
        self._judge()
        self._checkNothingLeft()

    def _waiting(self) -> str:
        waits = [
            (connection, connection.result, user, user.pending, user.producer, user.lost, user.isMade)
            for connection in self.connections
            for user in connection.present
            if not (connection.isQuiet and connection.isOver)
        ]
        return f"these do not end: {waits}"

    def _users(self) -> Iterator[User]:
        for connection in self.connections:
            yield from connection.present

    def _end(self, connection: Connection) -> None:
        """Close a connection that works."""
        ending = connection.plan.ending
        for user in connection.present:
            check(user.lost is None, f"{user!r} has ended by {user.lost!r}")
            user.checkProgress()
            user.checkPath()
            if ending in (user.end, 2) or (ending == 3 and not user.isStream):
                user.host.callSteadily(0, user.close)
            elif ending == 3:
                user.host.callSteadily(0, user.half)
        self.until(lambda: connection.isOver, lambda: f"{connection!r} does not close: {ending}")
        for user in connection.present:
            assert user.lost is not None
            isDone = user.lost.check(ConnectionDone) is not None
            mayFail = self.isLossy or connection.isBroken or user.host.isStopped or user.wasCut
            check(isDone or mayFail, f"{user!r} ends by {user.lost!r}")

    # Checks

    def _judge(self) -> None:
        """Check the results of connections that have ended."""
        for error in self.errors:
            times = 0 if error.isCaught else 1
            check(
                error.logged == times, f"an exception in {error} was logged {error.logged} times, not {times}"
            )
        for connection in self.connections:
            for user in connection.present:
                self._judgeUser(user)
        for pair in self.datagrams:
            pair.judge()

    def _judgeUser(self, user: User) -> None:
        other = user.other
        if user.host.isDead:
            isReported = user.lost is not None or not user.isMade or user.isLate
            check(isReported or user.host.isGone, f"{user!r} does not end")
            return
        self.counts["connections"] += user.isMade and user.end == 0
        check(not user.pending, f"{user!r} waits for {list(user.pending.values())}")
        check(user.producer is None, f"{user!r} has a producer")
        if not user.isMade or other is None or not other.isMade or user.connection.isBroken:
            return
        isDone = user.lost is not None and user.lost.check(ConnectionDone) is not None
        if isinstance(user, StreamUser):
            assert isinstance(other, StreamUser)
            self.counts["bytes"] += other.received
            isWhole = user.promised <= other.stored
            check(isWhole or not isDone, f"{user!r} ends by {user.lost!r}, but bytes are lost")
            check(
                isDone or user.wasCut or self.isLossy or user.hasTLS,
                f"{user!r} ends by {user.lost!r}, but everything has arrived",
            )
        else:
            assert isinstance(user, MessageUser) and isinstance(other, MessageUser)
            self.counts["messages"] += other.latest + 1
            lost = [each for each in user.sent if not (each.deliveries or each.isCancelled)]
            if isDone or any(each.isDone for each in lost):
                check(not lost or other.wasPaused, f"{user!r} has lost {lost[:3]}")

    def checkParts(self, memory: ReceiveMemory) -> None:
        """Check that all parts of memory were given back, when an adapter is closed."""
        regions = [region for pool in memory._pools.values() for region in pool._free]
        self.require(all(region.isUnused for region in regions), "parts of memory are not given back")

    def _checkNothingLeft(self) -> None:
        """Check that devices, memory, readers and delayed calls are released."""
        for host in self.hosts:
            if host.isDead:
                continue
            check(not any(key[0] is host for key in adapterModule._adapters), f"{host!r} has an adapter")
            checkReleased(host)
            host.device.close()
        for service in self.services:
            isStarted = service.factory is not None and service.factory.isStarted
            check(not isStarted or service.host.isGone, "the factory of a service is not stopped")
        dead = [call.scheduled for host in self.hosts if host.isDead for call in host.calls]
        calls = [str(call) for call in self.world.clock.calls if call not in dead]
        check(not calls, f"there are still delayed calls: {calls[:5]}")

    def release(self) -> None:
        for key, adapter in list(adapterModule._adapters.items()):
            if key[0] in self.hosts:
                with suppress(Exception):
                    adapter._closing.close()
        super().release()


@contextmanager
def _tamed(plan: UsersPlan, scenario: list[UserScenario]) -> Iterator[None]:
    """Make random numbers and busy-polling deterministic, and the source address of a device with several."""
    random = Random(f"chance {plan.seed}")
    functions: dict[str, Callable[[int], Any]] = {
        "randbits": random.getrandbits,
        "randbelow": random.randrange,
        "urandom": random.randbytes,
    }
    with ExitStack() as patches:
        for where, name in CMScenario.chance:
            patches.enter_context(mock.patch.object(where, name, functions[name]))
        for where, name, value in CMScenario.constants:
            patches.enter_context(mock.patch.object(where, name, value))
        number = lambda most: scenario[0].sourcePort  # noqa: E731
        closeMemory = ReceiveMemory.close

        def close(memory: ReceiveMemory) -> None:
            scenario[0].checkParts(memory)
            closeMemory(memory)

        chosen = partial(sourceGID, sourceAddress=lambda target: None)
        patches.enter_context(mock.patch.object(adapterModule, "sourceGID", chosen))
        patches.enter_context(mock.patch.object(endpointsModule, "randbelow", number))
        patches.enter_context(mock.patch.object(ReceiveMemory, "close", close))
        patches.enter_context(ticking())
        yield


def playUsers(plan: UsersPlan) -> Outcome:
    """
    Run the simulation of a plan.

    @raise Violation: a promise was violated.
    """
    scenario: list[UserScenario] = []
    with _tamed(plan, scenario):
        scenario.append(UserScenario(plan))
        return scenario[0].play()
