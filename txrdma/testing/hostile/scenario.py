"""
Simulations with a hostile peer: three hosts, their connections, and the promises that must hold.

A connection of the honest host exists all the time. The hostile host connects, sends its mutated messages,
and ends. Then the honest host connects once more. Its connections transfer messages throughout and end in
order, and finally the victim has released everything.
"""

from __future__ import annotations

import gc
import os
import resource
import sys
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, ExitStack
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, Final, TypeVar
from unittest import mock

from zope.interface import implementer

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError, ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.logger import formatEvent, globalLogPublisher, ILogObserver, LogEvent, LogLevel
from twisted.python.failure import Failure

from txrdma.error import RDMAError
from txrdma.kit.connectionlog import NAMESPACE
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.testing.hostile.plans import drawHostile, Ending, HostilePlan
from txrdma.testing.hostile.talkers import Pair, Talker
from txrdma.testing.hostile.tampering import Message, Resize, Tamper
from txrdma.testing.hostile.wiring import TamperedPairs
from txrdma.testing.outcome import check, Outcome, Violation
from txrdma.testing.smc.hosts import Host, World
from txrdma.testing.smc.neighbours import ticking

PATIENCE: Final = 30.0
"""Seconds within which an honest connection must be established, transfer a message, or end."""

_MOST_TURNS: Final = 400_000
_MOST_LOGGED: Final = 100
"""Maximum number of entries of one text that a simulation logs, besides one for each connection."""

_LONGEST_LOGGED: Final = 1500
"""Maximum length of an entry without its traceback."""

_EXPECTED: Final = (RDMAError, ConnectionLost, ConnectionAborted)
"""Exceptions that report a failed peer, and may be logged."""

_VICTIM, _HONEST, _HOSTILE = "10.0.1.1", "10.0.1.2", "10.0.1.3"
_T = TypeVar("_T", bound=Talker)
_later: dict[tuple[type[Any], bool], dict[str, list[Message]]] = {}


class HostileScenario:
    """
    A simulation with a hostile peer, according to its plan; subclasses connect by their protocols.

    @cvar channels: channels of the protocol whose messages are mutated; important ones occur more than once.
    @cvar chance: modules, and names of their functions for random numbers, which are made deterministic.
    @cvar constants: modules, names in them, and replacement values that make simulations quick.
    @cvar resize: see L{Tamper}.
    @cvar exchanged: bytes of the messages that an honest connection transfers in each direction.
    @cvar quiet: seconds after which the victim has detected the end of every peer, and released everything.
    @ivar hosts: the victim, the honest host and the hostile one.
    """

    channels: tuple[str, ...] = ()
    chance: Sequence[tuple[Any, str]] = ()
    constants: Sequence[tuple[Any, str, object]] = ()
    resize: dict[str, Resize] = {}
    hostClass: type[Host] = Host
    exchanged = 3000
    quiet = 100.0

    def __init__(self, plan: HostilePlan) -> None:
        self.plan = plan
        self.world = World(1)
        self.tamper = Tamper(plan.mutations, _later.get((type(self), plan.isServer), {}), self.resize)
        self.hosts = tuple(self._host(address) for address in (_VICTIM, _HONEST, _HOSTILE))
        self.victim, self.honest, self.hostile = self.hosts
        self.problems: list[str] = []
        self.accepted: list[Talker] = []
        self.connecting: set[Deferred[Any]] = set()
        self._isTalking = True
        self._outcome = Counter[str]()
        self.numbers = iter(range(40_000, 60_000))

    @classmethod
    def draw(cls, seed: int) -> HostilePlan:
        """Draw the plan of a simulation."""
        return drawHostile(seed, cls.channels)

    @classmethod
    def plain(cls, plan: HostilePlan) -> HostilePlan:
        """Return a plan of a simulation without mutations."""
        return replace(
            plan, seed=0, mutations=(), ending=Ending.CLOSED, seconds=0.1, rounds=5, size=100, connections=1
        )

    # For subclasses

    def makeDevice(self, host: Host) -> Any:
        return self.world.network.device(host.address)

    def begin(self) -> None:
        """Listen at the victim and at the hostile host."""

    def connect(self, client: Host, server: Host) -> Pair:
        """Begin a connection from one host to another, of which one is the victim."""
        raise NotImplementedError

    def judge(self) -> None:
        """Check the limits of the victim's tables, while the hostile connection exists or afterwards."""

    def end(self) -> None:
        """Stop listening."""

    def close(self) -> None:
        """Release everything that a failed simulation has left open."""

    # Helpers of subclasses

    def accept(self, talker: _T) -> _T:
        """Record an end of the victim, whose connection is aborted before the victim stops."""
        self.accepted.append(talker)
        return talker

    def watch(self, client: Host, attempt: Deferred[Any]) -> None:
        """Record an attempt to connect, which must end, and may fail only for an expected reason."""
        if client is self.hostile:
            attempt.addErrback(lambda _: None)
            return
        self.connecting.add(attempt)

        def ended(result: Any) -> None:
            self.connecting.discard(attempt)
            if isinstance(result, Failure) and not result.check(*_EXPECTED, ConnectError, ConnectionDone):
                self.problems.append(f"an attempt to connect fails by {result.getTraceback()}")

        attempt.addBoth(ended)

    def successOf(self, answer: Deferred[Any]) -> Any:
        """Return the result of a Deferred that has fired."""
        results: list[Any] = []
        answer.addCallback(results.append)
        (result,) = results
        return result

    # The course of the simulation

    def _host(self, address: str) -> Host:
        host = self.hostClass(self.world, address, lambda: self.makeDevice(host))
        host.openDevice()
        return host

    def play(self) -> Outcome:
        """
        Run the simulation.

        @raise Violation: the honest host was affected, or the victim has failed.
        """
        pairs = TamperedPairs(self.hostile, self.tamper)
        with mock.patch.object(SoftQueuePair, "postSend", pairs.method()), self._watched():
            try:
                self._play()
            finally:
                self.close()
                self.hostile.device.close()
                self.world.close()
        return Outcome(self.tamper.applied + self._outcome)

    def _play(self) -> None:
        self.begin()
        bystander = self._connected()
        hostile = self._hostileConnection()
        self._talk(hostile)
        self.run(self.plan.seconds)
        self._exchange(bystander, "while the hostile peer is connected")
        self.judge()
        self._endHostile(hostile)
        self.run(1.0)
        self._exchange(bystander, "after the end of the hostile peer")
        another = self._connected()
        for pair in (bystander, another):
            self._endInOrder(pair)
        self.run(self.quiet)
        check(not self.connecting, "an attempt to connect to the hostile host does not end")
        self._note(hostile)
        self.judge()
        for each in self.accepted:
            self.victim.callLater(0, each.abort)
        self.run(1.0)
        self.end()
        self.run(self.quiet)
        self._checkNothingLeft()

    def _note(self, hostile: Pair) -> None:
        """Count the fate of the hostile connection at the victim."""
        end, _remote = self._ends(hostile)
        self._outcome["seeds"] += 1
        if end is not None and end.isMade:
            self._outcome["connected"] += 1
            self._outcome["received"] += end.received > 0
            self._outcome["not ended"] += end.lost is None

    def _hostileConnection(self) -> Pair:
        """Begin the connections with the hostile host, and return the last one."""
        for _ in range(self.plan.connections):
            if self.plan.isServer:
                pair = self.connect(self.victim, self.hostile)
                self.accept(pair.client)
            else:
                pair = self.connect(self.hostile, self.victim)
        return pair

    def _ends(self, pair: Pair) -> tuple[Talker | None, Talker | None]:
        """Return the victim's and the hostile host's end of the hostile connection."""
        return (pair.client, pair.server) if self.plan.isServer else (pair.server, pair.client)

    def _connected(self) -> Pair:
        """Establish a connection of the honest host, and exchange messages."""
        pair = self.connect(self.honest, self.victim)
        self.until(lambda: pair.isMade, "an honest client is not connected")
        self._exchange(pair, "at the beginning")
        return pair

    def _exchange(self, pair: Pair, when: str) -> None:
        """Send a message in each direction of an honest connection."""
        server = pair.server
        assert server is not None
        for one, other in ((pair.client, server), (server, pair.client)):
            check(one.lost is None, f"an honest connection has ended by {one.lost!r}, {when}")
            received = other.received
            one.send(bytes(self.exchanged))
            isComplete = partial(_isComplete, other, received + self.exchanged)
            self.until(isComplete, f"an honest connection transfers nothing {when}")

    def _endInOrder(self, pair: Pair) -> None:
        pair.client.close()
        self.until(lambda: pair.isOver, "an honest connection does not end")
        for each in (pair.client, pair.server):
            assert each is not None
            check(isinstance(each.lost, ConnectionDone), f"an honest connection ends by {each.lost!r}")

    def _talk(self, pair: Pair) -> None:
        """Send messages from both ends of the hostile connection, once it is established."""
        plan = self.plan
        content = Random(plan.seed).randbytes(plan.size)
        step = min(plan.seconds, 1.0) / (plan.rounds + 1)

        def sendRounds(host: Host, which: int, left: int) -> None:
            talker = self._ends(pair)[which]
            if talker is not None and talker.isMade:
                talker.send(content)
                left -= 1
            if left and self._isTalking and (talker is None or talker.lost is None):
                host.callLater(step, sendRounds, host, which, left)

        for which, host in enumerate((self.victim, self.hostile)):
            host.callLater(0, sendRounds, host, which, plan.rounds)

    def _endHostile(self, pair: Pair) -> None:
        self._isTalking = False
        ending = self.plan.ending
        ours, remote = self._ends(pair)
        if ending is Ending.CLOSED and remote is not None:
            self.hostile.callLater(0, remote.close)
        elif ending is Ending.ABORTED and remote is not None:
            self.hostile.callLater(0, remote.abort)
        elif ending is Ending.VICTIM and ours is not None:
            self.victim.callLater(0, ours.close)
        if ending in (Ending.KILLED, Ending.VANISHED):
            self.kill(ending is Ending.VANISHED)
        else:
            self.run(1.0)
            self.kill(False)

    def kill(self, silently: bool) -> None:
        """Kill the process of the hostile host, or the whole host."""
        self.hostile.die(silently)
        if silently:  # TCP's keepalive reports the end, some minutes later
            self.victim.callLater(10.0, self._reset)

    def _reset(self) -> None:
        for socket in list(self.victim.sockets):
            if socket.peer.host is self.hostile:
                socket.wire.cut()

    # Time

    def run(self, seconds: float) -> None:
        """Let this many simulated seconds pass."""
        self._run(lambda: False, self.world.clock.seconds() + seconds)

    def until(self, condition: Callable[[], Any], what: str) -> None:
        """Let time pass until a condition is true; fail after C{PATIENCE}."""
        self._run(condition, self.world.clock.seconds() + PATIENCE)
        check(bool(condition()), what)

    def _run(self, condition: Callable[[], Any], until: float) -> None:
        world = self.world
        world.clock.callLater(until - world.clock.seconds(), lambda: None)
        while not condition() and world.clock.seconds() < until:
            world.turn()
            if self.problems:
                raise Violation(self.problems[0])
            check(world.turns < _MOST_TURNS, "the condition remains false")

    # Checks

    @contextmanager
    def _watched(self) -> Iterator[None]:
        """Collect the exceptions that any host logs, and count texts: the hostile one runs the same code."""
        texts = Counter[str]()

        @implementer(ILogObserver)
        def observe(event: LogEvent) -> None:
            namespace, text = event.get("log_namespace", ""), event.get("log_format")
            if namespace.startswith("txrdma.") and namespace != NAMESPACE and text is not None:
                isShown = event["log_level"] is not LogLevel.debug
                texts[text] += isShown
                if isShown and len(entry := formatEvent(event)) > _LONGEST_LOGGED:
                    self.problems.append(f"{len(entry)} characters were logged: {entry[:100]}")
                if texts[text] > _MOST_LOGGED:
                    self.problems.append(f"it was logged too often: {formatEvent(event)}")
            failure = event.get("log_failure")
            isError = event.get("log_level") in (LogLevel.error, LogLevel.critical)
            isExpected = failure is not None and failure.check(*_EXPECTED)
            if (failure is None and not isError) or isExpected:
                return
            trace = "" if failure is None else failure.getTraceback()
            self.problems.append(f"an exception was logged: {formatEvent(event)} {trace}")

        globalLogPublisher.addObserver(observe)
        try:
            yield
        finally:
            globalLogPublisher.removeObserver(observe)

    def _checkNothingLeft(self) -> None:
        """Check that victim and honest host have released queue pairs, memory, descriptors and timers."""
        for host in (self.victim, self.honest):
            device = host.device
            parts = (device.domains, device._queuePairs, device._completionQueues, device._channels)
            check(not any(parts) and not len(device.keys), f"{device!r} still has {parts}")
            device.close()
            left = [*host.readers, *host.writers, *host.sockets]
            check(not left, f"{host!r} still watches {left}")
        calls = [str(call) for call in self.world.clock.calls if _ownerOf(call) in (self.victim, self.honest)]
        check(not calls, f"there are still delayed calls: {calls[:5]}")


def _isComplete(talker: Talker, total: int) -> bool:
    return talker.received >= total


def _ownerOf(call: Any) -> Host | None:
    return getattr(getattr(call.func, "__self__", None), "_host", None)


@contextmanager
def _tamed(scenario: type[HostileScenario]) -> Iterator[None]:
    """Make random numbers and busy-polling deterministic, so that each run of a plan is identical."""
    random = Random("hostile")
    functions = {
        "randbits": random.getrandbits,
        "randbelow": random.randrange,
        "token_bytes": random.randbytes,
        "token_hex": lambda size: random.randbytes(size).hex(),
        "urandom": random.randbytes,
    }
    with ExitStack() as patches:
        for where, name in scenario.chance:
            patches.enter_context(mock.patch.object(where, name, functions[name]))
        for where, name, value in scenario.constants:
            patches.enter_context(mock.patch.object(where, name, value))
        patches.enter_context(ticking())
        yield


class Memory:
    """
    Checks the memory of this process between simulations.

    @cvar EVERY: number of simulations between two checks, and before the first.
    @cvar BLOCKS: memory blocks that each simulation may leave on average, in addition to C{CACHES} in total.
    @cvar PEAK: bytes by which the process may grow in total.
    """

    EVERY: Final = 100
    BLOCKS: Final = 10
    CACHES: Final = 20_000
    PEAK: Final = 512 << 20

    def __init__(self) -> None:
        self._played = self._first = self._firstPeak = self._descriptors = 0

    def played(self) -> None:
        """
        Count a simulation that has ended.

        @raise Violation: memory or descriptors grow.
        """
        self._played += 1
        if self._played % self.EVERY:
            return
        for _ in range(2):  # what finalizers free is collected by the second one
            gc.collect()
        blocks = sys.getallocatedblocks()
        peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss << 10
        descriptors = len(os.listdir("/proc/self/fd"))
        if not self._first:
            self._first, self._firstPeak, self._descriptors = blocks, peak, descriptors
            return
        more = blocks - self._first
        most = self.CACHES + self.BLOCKS * self._played
        check(more < most, f"{more} objects are left by {self._played} simulations")
        grown = peak - self._firstPeak
        check(grown < self.PEAK, f"the process has grown by {grown >> 20} MiB")
        check(descriptors <= self._descriptors + 5, f"{descriptors - self._descriptors} more descriptors")


_memory = Memory()


def playHostile(scenario: type[HostileScenario], plan: HostilePlan) -> Outcome:
    """
    Run a plan with the scenario of a protocol.

    @raise Violation: a promise was violated.
    """
    key = scenario, plan.isServer
    if key not in _later:
        _later[key] = {}
        _later[key] = _record(scenario, plan)
    with _tamed(scenario):
        played = scenario(plan).play()
    _memory.played()
    return played


def _record(scenario: type[HostileScenario], plan: HostilePlan) -> dict[str, list[Message]]:
    """Return the messages of the hostile host without mutations."""
    with _tamed(scenario):
        simulation = scenario(scenario.plain(plan))
        simulation.play()
    return dict(simulation.tamper.sent)
