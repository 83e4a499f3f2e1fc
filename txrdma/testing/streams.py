"""
Whole SMC connections on a simulated network: handshake, link, rings and ends, on a clock, by a seed.

The TCP connection is a pair of objects; everything from the CLC handshake to the packets of RoCE v2 is the
real thing. Two promises are checked: what a protocol hears is what the other has written, from the first
byte on, without gaps; and a connection ends on both sides, well on both when nothing but the application
ended it.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from random import Random
from typing import Any, cast

from zope.interface import implementer

from twisted.internet.address import IPv4Address
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IProtocol, IReactorFDSet
from twisted.internet.protocol import connectionDone, Protocol
from twisted.internet.task import Clock
from twisted.python.failure import Failure

from txrdma.interfaces import IPollable, IReactorPolling
from txrdma.sim.network import Faults, SimulatedNetwork
from txrdma.smc.endpoints import Options
from txrdma.smc.groups import closeLinkGroups, useDevice
from txrdma.smc.negotiation import ClientNegotiation, Outcomes, ServerNegotiation

LONGEST = 300.0
"""Seconds of the clock after which everything must be over: TEST LINK has told of every dead link by then."""


@implementer(IReactorFDSet, IReactorPolling)
class SimulatedReactor(Clock):  # type: ignore[misc]  # of IReactorFDSet only what does nothing
    """A clock that looks at completion queues, and has no descriptors."""

    def __init__(self) -> None:
        super().__init__()
        self._pollables: dict[IPollable, None] = {}
        self.readers: set[object] = set()

    def getReaders(self) -> list[Any]:
        """The TCP connections that give out what comes."""
        return list(self.readers)

    def addPollable(self, pollable: IPollable) -> None:
        """Look at it from now on."""
        self._pollables[pollable] = None

    def removePollable(self, pollable: IPollable) -> None:
        """Look at it no more."""
        self._pollables.pop(pollable, None)

    def addReader(self, reader: object) -> None:
        """Nobody sleeps here."""

    removeReader = addWriter = removeWriter = addReader

    def addSystemEventTrigger(self, *args: object) -> object:
        """It never shuts down."""
        return object()

    def removeSystemEventTrigger(self, trigger: object) -> None:
        """Nothing was added."""

    def run(self, condition: Callable[[], bool], until: float) -> bool:
        """Let time pass until something is true; False when it is late."""
        while not condition():
            found = [pollable.poll() for pollable in tuple(self._pollables)]  # each has its turn
            if any(found):
                continue
            for pollable in tuple(self._pollables):
                pollable.arm()
            calls = self.getDelayedCalls()
            if not calls or self.seconds() > until:
                return False
            self.advance(max(min(call.getTime() for call in calls) - self.seconds(), 0.0))
        return True


class SimulatedTCP:
    """One end of a TCP connection that takes a fixed time; as much of Twisted's as a fallback needs."""

    logstr = "-"

    def __init__(self, reactor: SimulatedReactor, host: str, port: int, delaySeconds: float) -> None:
        self.reactor = reactor
        self.protocol: Any = None
        self.peer: SimulatedTCP
        self.connected = 1
        self._address = IPv4Address("TCP", host, port)
        self._delay = delaySeconds
        self._incoming: list[bytes | Failure] = []
        reactor.readers.add(self)

    def write(self, data: bytes) -> None:
        """Bytes for the other end."""
        if self.connected:
            self.reactor.callLater(self._delay, self.peer._arrived, bytes(data))

    def _arrived(self, what: bytes | Failure) -> None:
        self._incoming.append(what)
        self._read()

    def _read(self) -> None:
        while self.connected and self._incoming and self in self.reactor.readers:
            self.doRead()

    def doRead(self) -> None:
        """There is something."""
        what = self._incoming.pop(0)
        if isinstance(what, Failure):
            self._ended(what)
        else:
            self._dataReceived(what)

    def _dataReceived(self, data: bytes) -> None:
        self.protocol.dataReceived(data)

    def startReading(self) -> None:
        """Give out what comes."""
        if self.connected:
            self.reactor.readers.add(self)
            self.reactor.callLater(0, self._read)

    def stopReading(self) -> None:
        """Keep it."""
        self.reactor.readers.discard(self)

    def resumeProducing(self) -> None:
        """The same as C{startReading}."""
        self.startReading()

    def pauseProducing(self) -> None:
        """The same as C{stopReading}."""
        self.stopReading()

    def loseConnection(self) -> None:
        """Close; the other end hears of it."""
        self._end(ConnectionDone())

    def abortConnection(self) -> None:
        """Close."""
        self._end(ConnectionAborted())

    def _end(self, reason: Exception) -> None:
        if self.connected:
            self.reactor.callLater(self._delay, self.peer._arrived, Failure(ConnectionDone()))
            self.connected = 0
            self.reactor.callLater(0, self._ended, Failure(reason))

    def _ended(self, failure: Failure) -> None:
        self.connected = 0
        self.stopReading()
        self.protocol.connectionLost(failure)

    def getHost(self) -> IPv4Address:
        """Our address."""
        return self._address

    def getPeer(self) -> IPv4Address:
        """The other's."""
        return self.peer._address


class Talker(Protocol):
    """
    Writes at random, pauses at random, and closes after all of it.

    @ivar written: all that was written; C{heard}: all that came.
    @ivar gaveUp: it waited for the other to close, but not for ever.
    """

    transport: Any

    def __init__(self, reactor: SimulatedReactor, random: Random, total: int) -> None:
        self._reactor = reactor
        self._random = random
        self._left = total
        self.written = bytearray()
        self.heard = bytearray()
        self.reason: Failure | None = None
        self.gaveUp = False
        self.end = random.choice(("lose", "lose", "lose", "wait", "abort"))

    def connectionMade(self) -> None:
        self._write()

    def _write(self) -> None:
        if self.reason is not None:
            return
        if not self._left:
            if self.end != "wait":
                self.transport.loseConnection()
            return
        for _ in range(self._random.randrange(1, 4)):
            data = self._random.randbytes(min(self._random.choice((1, 50, 4000, 60_000)), self._left))
            self._left -= len(data)
            self.written += data
            self.transport.write(data)
        if self.end == "abort" and self._random.random() < 0.1:
            self.transport.abortConnection()
            return
        self._reactor.callLater(self._random.choice((0.0, 0.0, 1e-4, 1e-2)), self._write)

    def dataReceived(self, data: bytes) -> None:
        self.heard += data
        if self._random.random() < 0.1:
            self.transport.pauseProducing()
            self._reactor.callLater(self._random.choice((0.0, 1e-3)), self.transport.resumeProducing)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        self.reason = reason


@dataclass(frozen=True)
class Outcome:
    """
    How one seed went.

    @ivar ends: how the connections ended, client and server of each; None: it was never connected.
    """

    seed: int
    ends: tuple[tuple[str | None, str | None], ...]
    bytesHeard: int
    seconds: float


class World:
    """Two hosts and some connections."""

    def __init__(self, seed: int) -> None:
        self.seed = seed
        self.random = random = Random(seed)
        self.reactor = SimulatedReactor()
        self.bad = random.random() < 0.7
        faults = Faults(
            loss=random.choice((0.0, 0.01, 0.1)) if self.bad else 0.0,
            duplication=random.choice((0.0, 0.05)) if self.bad else 0.0,
            corruption=random.choice((0.0, 0.02)) if self.bad else 0.0,
            jitterSeconds=random.choice((0.0, 50e-6)) if self.bad else 0.0,
        )
        self.network = SimulatedNetwork(self.reactor, seed, faults)
        self.partition = self.bad and random.random() < 0.2
        for name, host in (("alice", "10.0.0.1"), ("bob", "10.0.0.2")):
            useDevice(self.reactor, name, self.network.device(host))
        self.pairs: list[tuple[list[Talker], list[Talker]]] = []

    def connect(self, number: int) -> None:
        """One more connection, alice's to bob."""
        random = self.random
        one = SimulatedTCP(self.reactor, "10.0.0.1", 40_000 + number, 50e-6)
        other = SimulatedTCP(self.reactor, "10.0.0.2", 80, 50e-6)
        one.peer, other.peer = other, one
        made: tuple[list[Talker], list[Talker]] = ([], [])
        self.pairs.append(made)

        def builder(talkers: list[Talker]) -> Callable[[], IProtocol]:
            total = random.choice((0, 100, 20_000, 300_000))

            def build() -> IProtocol:
                talkers.append(Talker(self.reactor, random, total))
                return talkers[-1]

            return build

        outcomes = Outcomes("simulation")
        server = ServerNegotiation(
            self.reactor, Options(device="bob", agreed=True), outcomes, builder(made[1]), None
        )
        client = ClientNegotiation(
            self.reactor, Options(device="alice", agreed=True), outcomes, builder(made[0])
        )
        client.finished().addErrback(lambda failure: None)
        for tcp, protocol in ((other, server), (one, client)):
            tcp.protocol = protocol
            protocol.makeConnection(cast(Any, tcp))

    def run(self) -> Outcome:
        """
        Play it.

        @raise AssertionError: a promise is broken.
        """
        reactor, random = self.reactor, self.random
        for number in range(random.randrange(1, 5)):
            reactor.callLater(random.random() * 0.01, self.connect, number)
        if self.partition:
            reactor.callLater(random.random() * 0.05, self.network.partition, "10.0.0.1", "10.0.0.2")
        reactor.callLater(2.0, self._impatient)
        reactor.callLater(2.2, self._talkers)  # so that time goes on until then
        finished = reactor.run(self._isOver, LONGEST)
        try:
            assert finished, f"it is not over: {self._ends()}"
            return self._check()
        finally:
            closeLinkGroups(reactor)

    def _talkers(self) -> list[Talker]:
        return [talker for pair in self.pairs for side in pair for talker in side]

    def _impatient(self) -> None:
        """Who waits for the other to close, waits no longer."""
        for talker in self._talkers():
            if talker.end == "wait" and talker.reason is None:
                talker.gaveUp = True
                talker.transport.loseConnection()

    def _isOver(self) -> bool:
        if self.reactor.seconds() < 2.1:
            return False
        return all(talker.reason is not None for talker in self._talkers())

    def _ends(self) -> tuple[tuple[str | None, str | None], ...]:
        def name(side: list[Talker]) -> str | None:
            if not side:
                return None
            reason = side[0].reason
            return "open" if reason is None else type(reason.value).__name__

        return tuple((name(client), name(server)) for client, server in self.pairs)

    def _check(self) -> Outcome:
        heard = 0
        for client, server in self.pairs:
            if not client or not server:
                assert self.bad, f"not connected, on a fair network: {self._ends()}"
                continue
            one, other = client[0], server[0]
            for writer, reader in ((one, other), (other, one)):
                heard += len(reader.heard)
                assert writer.written.startswith(reader.heard), (
                    "bytes that were not written, or in another order"
                )
            reasons = [cast(Failure, end.reason).value for end in (one, other)]
            if all(isinstance(reason, ConnectionDone) for reason in reasons):
                first = one if one.end != "wait" else other
                second = other if first is one else one
                if second.end == "wait" and not second.gaveUp:
                    assert second.heard == first.written, "a close that was clean, but lost bytes"
            elif not self.bad and "abort" not in (one.end, other.end):
                # The one may close while the other still writes, as with TCP; nothing else may go wrong.
                for end, peer in ((one, other), (other, one)):
                    lost = isinstance(cast(Failure, end.reason).value, ConnectionLost)
                    assert not lost or end.written != peer.heard, "it failed on a fair network"
            elif not any(isinstance(reason, ConnectionAborted) for reason in reasons):
                # Whoever had closed by itself before may not know.
                assert any(isinstance(reason, ConnectionLost) for reason in reasons)
        return Outcome(self.seed, self._ends(), heard, self.reactor.seconds())


def simulate(seed: int) -> Outcome:
    """
    Play one seed.

    @raise AssertionError: a promise is broken; the same seed shows it again.
    """
    try:
        return World(seed).run()
    except AssertionError as error:
        raise AssertionError(f"seed {seed}: {error}") from error
