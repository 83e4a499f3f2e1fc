"""Hostile peers of the monitor's collectors: proofs of the common key, settings, requests and results."""

from __future__ import annotations

from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from random import Random
from typing import Any, Final

from zope.interface import implementer

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionDone, ConnectionLost, ConnectionRefusedError
from twisted.internet.interfaces import IStreamClientEndpoint, IStreamServerEndpoint
from twisted.internet.protocol import connectionDone
from twisted.python.failure import Failure

from txrdma.iba.path import IBPath
from txrdma.iba.types import LID
from txrdma.kit import proofs as proofsModule
from txrdma.mad import agent as agentModule
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.frames import NO_KEYS
from txrdma.mad.layouts.attributes import RPCS
from txrdma.mad.layouts.pma import PortCounters, PortCountersExtended
from txrdma.monitor.collecting import wire
from txrdma.monitor.collecting.collector import (
    collectorEndpoint,
    CollectorFactory,
    CollectorProtocol,
    MOST_MONITORS,
)
from txrdma.monitor.collecting.pool import CollectedCall, CollectorPool, Contradict
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.nets.fattree import fatTree
from txrdma.soft import device as deviceModule
from txrdma.soft.core import memory as memoryModule
from txrdma.testing.hostile.plans import HostilePlan
from txrdma.testing.hostile.scenario import HostileScenario
from txrdma.testing.hostile.talkers import Pair, Talker
from txrdma.testing.hostile.wiring import Proved, TamperedSocket, TCP
from txrdma.testing.outcome import check
from txrdma.testing.smc.hosts import connectedSockets, Host, MemoryTCP

_KEY: Final = b"a common secret"
_SECONDS: Final = 50e-6
_HEAD: Final = 4
_OUTSTANDING: Final = 16
_ATTRIBUTES: Final = (PortCounters.attributeID, PortCountersExtended.attributeID)
_BYTES_OF_CALL: Final = 100
_MOST_ROUNDS: Final = 8


def lengthOf(data: bytes) -> int:
    """Return the length of the first message; 0 while it is not known."""
    return _HEAD + int.from_bytes(data[:_HEAD], "big") if len(data) >= _HEAD else 0


def resized(message: bytes) -> bytes:
    """Return a message whose head has the message's length."""
    return (
        (len(message) - _HEAD).to_bytes(_HEAD, "big") + message[_HEAD:] if len(message) >= _HEAD else message
    )


class _Question(CollectedCall):
    """A call of a monitor in these simulations."""

    __slots__ = ("monitor", "ports")

    def __init__(self, monitor: Monitor, ports: bytes) -> None:
        super().__init__(RPCS["PerformanceGet"], PortCounters, b"", 0, NO_KEYS, 0)
        self.monitor, self.ports = monitor, ports

    def collected(self, ports: Sequence[bytes | int], contradict: Contradict | None) -> None:
        if len(ports) == len(self.ports) and contradict is None:
            self.monitor.answered()

    def failed(self, error: Exception) -> None:
        """Do nothing: the question remains open."""

    def lost(self) -> None:
        """Do nothing: the question remains open."""


class Monitor(Talker):
    """
    The end that makes calls by a pool with one collector; each answered one counts as received bytes.

    @ivar isClosing: whether the connection ends in order.
    """

    isClosing = False
    server: Collector | None = None

    def __init__(self, pool: CollectorPool, lids: Sequence[int]) -> None:
        self.pool, self._lids = pool, lids
        self._asked = 0
        self._open: list[tuple[Talker, int]] = []
        (collector,) = pool._collectors
        self._joined, self._left = collector.joined, collector.left
        collector.joined, collector.left = self._linkJoined, self._linkLeft  # type: ignore[method-assign]

    def _linkJoined(self, link: Any) -> None:
        self._joined(link)
        self.isMade = True

    def _linkLeft(self, calls: Any) -> None:
        self._left(calls)
        if self.isMade and self.lost is None:
            self.lost = ConnectionDone() if self.isClosing else ConnectionLost()

    def ask(self, size: int, receiver: Talker) -> None:
        """Make calls, whose answers count as this many bytes that the receiver has received."""
        count = 1 + size // _BYTES_OF_CALL
        for number in range(count):
            self._asked += 1
            share = size * (number + 1) // count - size * number // count
            self._open.append((receiver, share))
            ports = bytes((1,)) if self._asked % 3 else bytes((1, 255))
            path = IBPath(dlid=LID(self._lids[self._asked % len(self._lids)]))
            self.pool.issueSeries(_Question(self, ports), path, _ATTRIBUTES, ports)

    def answered(self) -> None:
        if self._open:
            receiver, share = self._open.pop(0)
            receiver.received += share

    def send(self, data: bytes) -> None:
        if self.server is not None:
            self.ask(len(data), self.server)

    def close(self) -> None:
        self.isClosing = True
        self.pool.stop()

    abort = close


class Collector(Talker):
    """The end that answers."""

    isMade = True

    def __init__(self, protocol: CollectorProtocol, monitor: Monitor) -> None:
        self._protocol, self._monitor = protocol, monitor
        monitor.server = self
        self._genuine = protocol.connectionLost
        protocol.connectionLost = self._protocolLost  # type: ignore[method-assign]  # to be notified

    def _protocolLost(self, reason: Failure = connectionDone) -> None:
        self._genuine(reason)
        self.lost = ConnectionDone() if self._monitor.isClosing else reason.value

    def send(self, data: bytes) -> None:
        """Let the monitor ask for these bytes."""
        self._monitor.ask(len(data), self._monitor)

    def close(self) -> None:
        self._protocol.end("a simulation ends it")

    abort = close


class _Factory(CollectorFactory):
    """Makes protocols for connections to a host that collects counters."""

    host: Host
    scenario: CollectorScenario

    def buildProtocol(self, addr: Any) -> Any:
        protocol: Any = super().buildProtocol(addr)
        if protocol is not None:
            self.scenario.serve(self.host, addr.port, protocol)
        return protocol


@implementer(IStreamServerEndpoint)
class _ServerStream:
    """A stream endpoint of a collector, whose connections are sockets in memory."""

    def __init__(self, scenario: CollectorScenario, host: Host) -> None:
        self._scenario, self._host = scenario, host

    def listen(self, protocolFactory: Any) -> Deferred[Any]:
        self._scenario.accepting[self._host] = protocolFactory
        return succeed(None)


@implementer(IStreamClientEndpoint)
class _ClientStream:
    """A stream endpoint of a monitor, whose connections are sockets in memory."""

    def __init__(self, scenario: CollectorScenario, client: Host, server: Host, pair: Pair) -> None:
        self._scenario, self._client, self._server, self._pair = scenario, client, server, pair

    def connect(self, protocolFactory: Any) -> Deferred[Any]:
        if self._server.isDead or self._client.isDead:
            return fail(ConnectionRefusedError())
        protocol = protocolFactory.buildProtocol(None)
        self._scenario.join(self._client, self._server, protocol, self._pair)
        return succeed(protocol)


class CollectorScenario(HostileScenario):
    """A simulation with a hostile monitor of a collector, or vice versa; both have the common key."""

    channels = (TCP,)
    chance = (
        (proofsModule, "token_bytes"),
        (agentModule, "urandom"),
        (memoryModule, "randbits"),
        (deviceModule, "randbelow"),
    )
    resize = {TCP: resized}
    quiet = 200.0

    def __init__(self, plan: HostilePlan) -> None:
        super().__init__(plan)
        self.served: dict[int, Pair] = {}
        self.accepting: dict[Host, Any] = {}
        self._monitors: list[Monitor] = []

    @classmethod
    def draw(cls, seed: int) -> HostilePlan:
        plan = super().draw(seed)
        return replace(plan, rounds=min(plan.rounds, _MOST_ROUNDS))

    def begin(self) -> None:
        self._fabric = SimulatedFabric(self.world.clock, fatTree(4))
        names = [node.identifier for node in self._fabric.nodes.values() if not node.isSwitch]
        self._lids = [self._fabric.port(name).end.lid for name in names]
        self._fabric.silence(names[3])
        self._agents = {
            host: MADAgent(host, self._fabric.attach(name))
            for host, name in zip(self.hosts, names, strict=False)
        }
        self._factories = {host: _Factory(host, agent, _OUTSTANDING) for host, agent in self._agents.items()}
        for host in (self.victim, self.hostile):
            factory = self._factories[host]
            factory.host, factory.scenario = host, self
            collectorEndpoint(host, _ServerStream(self, host), _KEY).listen(factory)

    def connect(self, client: Host, server: Host) -> Pair:
        pair = Pair(Talker())
        endpoint = _ClientStream(self, client, server, pair)
        pool = CollectorPool(client, self._agents[client], {"c": endpoint}, _KEY, 0.5, 2, _OUTSTANDING)
        lids = self._lids if client is self.hostile else self._lids[:3]
        pair.client = monitor = Monitor(pool, lids)
        self._monitors.append(monitor)
        client.callLater(0, pool.start)
        return pair

    def join(self, client: Host, server: Host, protocol: Any, pair: Pair) -> None:
        """Connect a monitor's protocol to one that the collector's factory builds."""
        port = next(self.numbers)
        self.served[port] = pair
        sockets = connectedSockets(self.world, Random(port), client, server, port, _SECONDS)
        accepted = self.accepting[server].buildProtocol(IPv4Address("TCP", client.address, port))
        for socket, each in zip(reversed(sockets), (accepted, protocol), strict=True):
            if socket.host is self.hostile:
                TamperedSocket(socket, self.tamper, Proved(socket is sockets[0], lengthOf))
            socket.host.callLater(0, MemoryTCP(socket, each).begin)

    def serve(self, server: Host, port: int, protocol: CollectorProtocol) -> None:
        """Record the collector's end of a connection."""
        pair = self.served[port]
        assert isinstance(pair.client, Monitor)
        pair.server = end = Collector(protocol, pair.client)
        if server is self.victim:
            self.accept(end)

    def judge(self) -> None:
        """Check the limits of the victim's collector and pools."""
        connections = self._factories[self.victim].connections
        check(len(connections) <= MOST_MONITORS, f"{len(connections)} monitors are connected")
        for each in connections:
            waiting, running = len(each._waiting), len(each._running)
            check(waiting + running <= wire.MOST_CALLS, f"{waiting + running} calls have no result")
            check(running <= _OUTSTANDING, f"{running} calls are outstanding")
        unproved = len(self.accepting[self.victim]._unproved)
        check(unproved <= proofsModule.MOST_UNPROVED, f"{unproved} clients are not proved")

    def end(self) -> None:
        """Check that the victim has no connections left, and close everything."""
        left = self._factories[self.victim].connections
        check(not left, f"the collector still has {left}")
        check(
            not self.accepting[self.victim]._unproved, "the collector still has clients that are not proved"
        )
        self.close()

    def close(self) -> None:
        closed: list[Any] = [*self._monitors, *self._factories.values(), *self._agents.values(), self._fabric]
        for each in closed:
            with suppress(Exception):  # the host may have failed
                each.close()
