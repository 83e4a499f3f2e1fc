"""Tests for L{txrdma.monitor.collecting}: a poller whose counters are read by collectors."""

from __future__ import annotations

import socket
from collections.abc import Callable, Iterable
from dataclasses import replace
from types import SimpleNamespace
from typing import Any

from zope.interface import directlyProvides, implementer

from twisted.internet.defer import Deferred, fail, succeed
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionRefusedError
from twisted.internet.interfaces import (
    IProtocol,
    IProtocolFactory,
    IStreamClientEndpoint,
    IStreamServerEndpoint,
    ITCPTransport,
)
from twisted.internet.testing import StringTransport
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import ResourceExhausted, WireError
from txrdma.fabric.health import locatedFindings
from txrdma.iba.path import IBPath
from txrdma.kit.delayedcalls import READ_SECONDS
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.transactions import Call
from txrdma.mad.layouts.pma import PortCounters, PortCountersExtended
from txrdma.mad.layouts.smp import NodeInfo, PortInfo
from txrdma.monitor.collecting import collector, pool, wire
from txrdma.monitor.collecting.collector import collectorEndpoint, CollectorFactory
from txrdma.monitor.collecting.pool import CollectorPool
from txrdma.monitor.reading.poller import DEFAULT_RULES
from txrdma.monitor.reading.settings import PollerSettings
from txrdma.sim.clock import SimulatedClock
from txrdma.sim.nets.fattree import fatTree
from txrdma.sim.nets.netfile import Net
from txrdma.test.support.mad.simulated import FabricTestCase
from txrdma.test.unit.monitor import test_poller

KEY = b"a common secret"


class Pipe(StringTransport):
    """
    One end of a connection in simulated time.

    @ivar isCut: whether written bytes are lost, without notification of the peer.
    """

    peer: Pipe
    protocol: Any
    isCut = False

    def __init__(self, clock: SimulatedClock) -> None:
        super().__init__()
        self._clock = clock
        self._hasEnded = False

    def write(self, data: bytes) -> None:
        self._later(lambda: self.peer.protocol.dataReceived(data), lambda: not self.peer._hasEnded)

    def _later(self, call: Callable[[], object], isWanted: Callable[[], bool]) -> None:
        if not self._hasEnded and not self.isCut:
            self._clock.callLater(0, lambda: call() if isWanted() else None)

    def loseConnection(self) -> None:
        self.abortConnection()

    def abortConnection(self) -> None:
        self._later(lambda: self.peer.lost(ConnectionDone()), lambda: True)
        self.lost(ConnectionAborted())

    def lost(self, reason: Exception) -> None:
        if not self._hasEnded:
            self._hasEnded = True
            self._clock.callLater(0, self.protocol.connectionLost, Failure(reason))


@implementer(IStreamClientEndpoint, IStreamServerEndpoint)
class CollectorEndpoint:
    """
    Connects to a collector, which listens with the same object.

    @ivar isDown: whether the collector's host refuses connections.
    @ivar pipes: the client's ends of all connections.
    """

    def __init__(self, clock: SimulatedClock, factory: CollectorFactory) -> None:
        self._clock = clock
        self.isDown = False
        self.pipes: list[Pipe] = []
        collectorEndpoint(clock, self, KEY).listen(factory)

    def listen(self, protocolFactory: IProtocolFactory) -> Deferred[Any]:
        self._factory = protocolFactory
        return succeed(None)

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        server = None if self.isDown else self._factory.buildProtocol(None)  # type: ignore[arg-type]  # without an address
        if server is None:
            return fail(ConnectionRefusedError())
        client: Any = protocolFactory.buildProtocol(None)  # type: ignore[arg-type]  # without an address
        ends = Pipe(self._clock), Pipe(self._clock)
        for pipe, peer, protocol in zip(ends, ends[::-1], (client, server), strict=True):
            pipe.peer, pipe.protocol = peer, protocol
        self.pipes.append(ends[0])
        server.makeConnection(ends[1])
        client.makeConnection(ends[0])
        return succeed(client)

    @property
    def isConnected(self) -> bool:
        return bool(self.pipes) and not self.pipes[-1]._hasEnded


@implementer(IStreamClientEndpoint)
class StringEndpoint:
    """
    An endpoint whose connections have no peer.

    @ivar connections: protocols and transports of all connections.
    """

    def __init__(self) -> None:
        self.connections: list[tuple[Any, StringTransport]] = []

    def connect(self, protocolFactory: IProtocolFactory) -> Deferred[IProtocol]:
        protocol: Any = protocolFactory.buildProtocol(None)  # type: ignore[arg-type]  # without an address
        transport = StringTransport()
        protocol.makeConnection(transport)
        self.connections.append((protocol, transport))
        return succeed(protocol)


SETTINGS = wire.encodeSettings(0.5, 2)


class CollectingTestCase(test_poller.PollerTestCase):
    """
    A poller with two collectors, which are other hosts of the fabric.

    @cvar collectors: names of these hosts.
    """

    collectors: tuple[str, ...] = ("b", "c")
    monitorKey = KEY

    def madeCollectors(self) -> CollectorPool:
        self.agents = [MADAgent(self.clock, self.fabric.attach(name)) for name in self.collectors]
        self.endpoints: dict[str, CollectorEndpoint] = {}
        for name, agent in zip(self.collectors, self.agents, strict=True):
            self.addCleanup(agent.close)
            self.endpoints[name] = CollectorEndpoint(self.clock, CollectorFactory(self.clock, agent, 64))
        settings = self.settings
        self.pool = CollectorPool(
            *(self.clock, self.agent, self.endpoints, self.monitorKey, settings.timeoutSeconds, 2),
            settings.maxOutstanding,
        )
        return self.pool

    def sent(self) -> list[int]:
        """Return the number of requests of the poller, and of each collector."""
        return [agent.sent for agent in (self.agent, *self.agents)]


class PollerByCollectorsTests(CollectingTestCase, test_poller.PollerTests):
    """A poller with collectors passes the tests of a poller without, which let hosts fail."""

    collectors = ("left", "right")


class PoolTests(CollectingTestCase):
    """Distribution of the ports, and collectors that are lost."""

    settings = PollerSettings(intervalSeconds=10.0, sweepSeconds=3600.0)

    def counted(self) -> None:
        """Assert that the last interval has complete and exact readings."""
        self.assertEqual(self.rate("left", 2), 4000.0)
        self.assertEqual(self.rate("right", 2), 8000.0)
        self.assertFalse([meter for meter in self.poller.meters.values() if meter.isSilent])

    def startGrowing(self, seconds: float = 35.0) -> None:
        """Start the monitor of a fabric with traffic."""
        self.fabric.growCounters("left", 2, portXmitData=1000.0)
        self.fabric.growCounters("right", 2, portXmitData=2000.0)
        self.started(seconds)

    def test_shares(self) -> None:
        """Each collector reads the counters of some ports, and the monitor reads none."""
        self.startGrowing()
        self.counted()
        before = self.sent()
        self.pump(100.0)
        own, *theirs = (now - was for now, was in zip(self.sent(), before, strict=True))
        self.assertGreater(min(theirs), 50)
        self.assertLess(own, 40)  # from the subnet manager, and traps of the fabric
        self.assertEqual(self.output(), [])

    def test_lost(self) -> None:
        """When a collector dies, the other one reads its ports; without any collector the monitor does."""
        self.startGrowing()
        for name in self.collectors:
            self.endpoints[name].isDown = True
            self.endpoints[name].pipes[-1].peer.abortConnection()
            self.pump(30.0)
            self.counted()
        self.pump(pool.MISSING_SECONDS)
        missing = [("raised", "collector-missing", name) for name in self.collectors]
        self.assertEqual(sorted(self.output()), missing)
        for endpoint in self.endpoints.values():
            endpoint.isDown = False
        self.pump(300.0)
        self.assertEqual(sorted(self.output()), [("cleared", *rest) for _what, *rest in missing])
        before = self.sent()
        self.pump(100.0)
        self.counted()
        self.assertGreater(min(now - was for now, was in zip(self.sent()[1:], before[1:], strict=True)), 50)

    def test_unlinkedCollector(self) -> None:
        """A collector whose link to the fabric is down makes no node silent that others can reach."""
        self.startGrowing()
        self.fabric.cut("c")
        self.pump(600.0)
        raised = [(kind, where) for what, kind, where in self.output() if what == "raised"]
        self.assertEqual(sorted(raised), [("collector-missing", "c"), ("node-gone", "c")])
        self.assertEqual((self.rate("left", 2), self.rate("right", 2)), (4000.0, 8000.0))
        self.fabric.heal("c")
        self.pump(120.0)
        self.assertEqual({what for what, _kind, _where in self.output()}, {"cleared"})
        self.assertTrue(self.endpoints["c"].isConnected)
        before = self.sent()[2]
        self.pump(100.0)
        self.counted()
        self.assertGreater(self.sent()[2] - before, 50)

    def test_unlinkedBoth(self) -> None:
        """Nodes are not silent that answer neither a collector nor this process, if no node answers it."""
        self.startGrowing()
        self.fabric._resweepSeconds = None
        self.fabric.cut("b")
        self.fabric.cut("b", 2)
        self.fabric.cut("a")
        self.fabric.heal("a")
        self.pump(600.0)
        self.assertNotIn("node-silent", {kind for _what, kind, _where in self.output()})
        self.fabric.sweep()
        self.pump(400.0)
        self.output()
        self.fabric.silence("d")
        self.pump(60.0)
        self.assertIn(("raised", "node-silent", "d"), self.output())

    def test_unansweredCorrections(self) -> None:
        """Corrections are read again after no node has answered this process for a while."""
        self.fabric.correct("b", "c")
        self.startGrowing(95.0)
        self.assertTrue(self.poller.corrections.meters)
        self.fabric._resweepSeconds = None
        self.fabric.cut("a")
        self.fabric.heal("a")
        self.pump(900.0)
        self.fabric.sweep()
        self.pump(200.0)
        meters = self.poller.corrections.meters.values()
        self.assertFalse([meter for meter in meters if meter.isSilent])

    def test_hanging(self) -> None:
        """Other collectors make the calls of one that hangs in the same round, and no node is silent."""
        self.startGrowing()
        self.endpoints["b"].pipes[-1].isCut = True
        self.pump(60.0)
        self.counted()
        self.assertEqual(self.output(), [])
        self.assertEqual(len(self.endpoints["b"].pipes), 2)

    def test_endlessCall(self) -> None:
        """A collector with a call that never completes is lost, and the round ends."""
        self.startGrowing()
        agent: Any = self.agents[0]
        issue = agent.issue

        def forget(call: Call, *arguments: Any) -> None:
            call.forget = lambda call: None
            agent.issue = issue

        agent.issue = forget  # for one call
        self.pump(60.0)
        self.counted()
        self.assertEqual(len(self.endpoints["b"].pipes), 2)

    def test_portLost(self) -> None:
        """A collector that loses its management port leaves the ports to the others."""
        self.startGrowing()
        self.agents[0].port.lose("it is pulled out")  # type: ignore[attr-defined]  # the simulated port's
        self.pump(60.0)
        self.counted()
        self.assertFalse(self.endpoints["b"].isConnected)
        self.assertEqual(self.output(), [("raised", "collector-missing", "b")])

    def test_incompleteSeries(self) -> None:
        """A collector that sends incomplete results is lost, and the round ends."""
        self.startGrowing()
        turns = self.poller.statistics.turns
        encode = wire.encodeResults

        def longer(results: Iterable[wire.PortsResult]) -> bytes:
            return encode(one._replace(content=wire.READ + one.content) for one in results)

        self.patch(wire, "encodeResults", longer)
        self.pump(25.0)
        self.assertGreater(self.poller.statistics.turns, turns)
        self.pump(300.0)
        self.assertEqual((self.poller.statistics.silences, self.output()), (0, []))

    def test_unableCollector(self) -> None:
        """A collector that cannot send makes no node silent: the monitor asks them, and disconnects it."""
        self.startGrowing()
        full = ResourceExhausted("the kernel's buffers are full")
        self.patch(self.agents[1], "issue", lambda call, path, seconds, retries: call.failed(full))
        self.pump(300.0)
        self.counted()
        self.assertEqual(self.poller.statistics.silences, 0)
        self.assertEqual(self.output(), [("raised", "collector-missing", "c")])

    def test_controlCharacters(self) -> None:
        """The text of a collector about a failed call has no control characters in the error."""
        errors: list[Exception] = []
        known: Any = SimpleNamespace(reactor=self.clock, pool=self.pool)
        call: Any = SimpleNamespace(rpc=SimpleNamespace(name="PerformanceGet"))
        call.silent = lambda error, contradict: errors.append(error)
        link = pool._Link(known)
        link._open[5] = pool._PendingCall(call, IBPath(), b"\0", b"\1", False)
        link._complete(wire.PortsResult(5, wire.FAILED, b"no\x1b[2J\n\xff"))
        (error,) = errors
        self.assertEqual(str(error), "PerformanceGet: no\\x1b[2J\\x0a\N{REPLACEMENT CHARACTER}")

    def test_lostInRounds(self) -> None:
        """Wherever in a round a collector is lost, the round is complete, and no node is silent."""
        self.startGrowing(25.0)
        for _ in range(40):
            self.pump(10.0)
            while self.clock.seconds() % 10.0 < 5.0 and not self.endpoints["b"].isConnected:
                self.pump(0.001)
            before = self.pool.sent
            while self.pool.sent < before + self.pool.sent % 7 + 1:
                self.pump(0.0005)
            if self.endpoints["b"].isConnected:
                self.endpoints["b"].pipes[-1].peer.abortConnection()
            self.pump(9.0)
            self.counted()
        self.assertEqual((self.output(), self.poller.statistics.silences), ([], 0))

    def test_changed(self) -> None:
        """A changed time-out applies to the calls of collectors, too, which connect again for it."""
        self.startGrowing()
        self.poller.change(replace(self.settings, timeoutSeconds=7.0), DEFAULT_RULES, locatedFindings)
        self.pump(60.0)
        self.counted()
        self.assertEqual(self.output(), [])
        self.assertEqual([len(each.pipes) for each in self.endpoints.values()], [2, 2])
        times: list[float] = []
        for agent in self.agents:
            self.patch(agent, "issue", lambda call, path, seconds, retries: times.append(seconds))
        self.pump(10.0)
        self.assertEqual(set(times), {7.0})

    def test_stop(self) -> None:
        """A stopped poller closes its connections, and leaves nothing in the reactor."""
        self.started()
        stopped = self.poller.stop()
        self.pump(10.0)
        self.successResultOf(stopped)
        self.assertFalse([each for each in self.endpoints.values() if each.isConnected])
        self.assertFalse([each for agent in self.agents for each in agent._core._open])


class ContradictionTests(CollectingTestCase):
    """Collectors of a larger fabric, whose answers come one after the other."""

    at = "h00000"
    collectors = ("h00005", "h00006", "h00007")
    options = {"latencySeconds": 0.001, "jitterSeconds": 0.005}
    settings = PollerSettings(sweepSeconds=3600.0)

    def net(self) -> Net:
        return fatTree(64)

    def lost(self) -> set[str]:
        """Return the collectors to which the connection was lost."""
        return {name for name, endpoint in self.endpoints.items() if len(endpoint.pipes) > 1}

    def test_others(self) -> None:
        """Nodes that do not answer a collector whose link is down contradict no other one."""
        self.started(65.0)
        self.fabric.cut("h00006")
        self.pump(300.0)
        self.assertEqual(self.lost(), {"h00006"})
        raised = {(kind, where) for what, kind, where in self.output() if what == "raised"}
        self.assertEqual(raised, {("collector-missing", "h00006"), ("node-gone", "h00006")})

    def test_return(self) -> None:
        """Nodes that were away for a moment contradict no collector that others answered meanwhile."""
        self.started(65.0)
        hosts = [name for name, node in self.fabric.nodes.items() if not node.isSwitch]
        hosts = [name for name in hosts if name not in (self.at, *self.collectors)][:40]
        while not self.poller.rounds.isRunning:
            self.pump(0.001)
        for name in hosts:
            self.fabric.silence(name)
        self.pump(self.pool.timeoutSeconds * 3 + 0.004)
        for name in hosts:
            self.fabric.revive(name)
        self.pump(60.0)
        self.assertEqual((self.lost(), self.output()), (set(), []))


class OtherKeyTests(CollectingTestCase):
    monitorKey = b"a guess"

    def test_refused(self) -> None:
        """Collectors refuse the monitor, which makes the calls itself."""
        self.started()
        self.assertEqual(self.sent()[1:], [0, 0])
        self.assertFalse([meter for meter in self.poller.meters.values() if meter.isSilent])
        self.pump(30.0)
        self.assertIn(("raised", "collector-missing", "b"), self.output())


class CollectorTests(FabricTestCase):
    """A collector that receives calls of monitors."""

    options = {"latencySeconds": 0.001}

    def setUp(self) -> None:
        super().setUp()
        self.collector = self.agentAt("b")
        self.factory = CollectorFactory(self.clock, self.collector, 8)
        self.sent: list[bytes] = []
        self.transport = StringTransport()
        self.connection = self.connected(self.transport)
        self.send(SETTINGS)

    def connected(self, transport: StringTransport) -> Any:
        connection: Any = self.factory.buildProtocol(None)
        connection.makeConnection(transport)
        return connection

    def test_deadMonitor(self) -> None:
        """TCP finds monitors whose host has died between two rounds within minutes: they count until then."""
        with socket.socket() as handle:

            class KeptTransport(StringTransport):
                def setTcpKeepAlive(self, enabled: bool) -> None:
                    handle.setsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE, enabled)

                def getHandle(self) -> socket.socket:
                    return handle

            transport = KeptTransport()
            directlyProvides(transport, ITCPTransport)
            self.connected(transport)
            self.assertTrue(handle.getsockopt(socket.SOL_SOCKET, socket.SO_KEEPALIVE))
            self.assertLess(handle.getsockopt(socket.IPPROTO_TCP, socket.TCP_KEEPIDLE), 300)

    def test_longTimeout(self) -> None:
        """A timeout beyond 49 days, which a message cannot contain, becomes the longest one."""
        seconds, _retries = wire.decodeSettings(wire.encodeSettings(365 * 86400.0, 2))
        self.assertEqual(seconds, 4_294_967.295)

    def messages(self) -> list[bytes]:
        """Return the messages that the collector has sent since the last call."""
        data, found = self.transport.value(), []
        self.transport.clear()
        while data:
            length = int.from_bytes(data[:4], "big")
            found.append(data[4 : 4 + length])
            data = data[4 + length :]
        return found

    def send(self, message: bytes) -> None:
        self.connection.dataReceived(len(message).to_bytes(4, "big") + message)

    def requests(self, *lids: int, what: int = 3) -> bytes:
        attributes = bytes((what,))
        return wire.encodeRequests(
            wire.PortsRequest(7 + at, lid, attributes, b"\0") for at, lid in enumerate(lids)
        )

    def results(self, seconds: float = 10.0) -> list[wire.PortsResult]:
        self.pump(seconds)
        return [each for message in self.messages() for each in wire.decodeResults(message)]

    def assertEnded(self) -> None:
        self.assertTrue(self.transport.disconnected)
        self.connection.connectionLost()
        self.assertEqual(self.factory.connections, set())
        self.assertEqual(self.collector._core._open, {})

    def test_answers(self) -> None:
        """A batch of calls has a result for each: an answer, a refusal or silence."""
        self.fabric.silence("d")
        self.send(self.requests(*(self.lid(name) for name in "acd")))
        found = self.results()
        answers = [one.content.removeprefix(wire.READ) for one in found if one.kind == wire.COMPLETE]
        guids = {NodeInfo.decode(one).nodeGUID for one in answers}
        self.assertEqual(guids, {self.fabric.node(name).guid for name in "ac"})
        self.assertEqual([one.kind for one in found if not one.content], [wire.SILENT])

    def test_refused(self) -> None:
        result = self.series("a", b"\x63", b"\4")
        self.assertEqual((result.kind, result.identifier), (wire.COMPLETE, 1))
        (status,) = wire.decodePorts(PortInfo.size, 1, result.content)
        assert isinstance(status, int)
        self.assertEqual(status & 0x1C, 0x1C)

    def series(self, name: str, ports: bytes, attributes: bytes = b"\1\2") -> wire.PortsResult:
        self.send(wire.encodeRequests([wire.PortsRequest(1, self.lid(name), attributes, ports)]))
        (result,) = self.results()
        return result

    def test_series(self) -> None:
        """A series has the attributes of each port; ports that the node refuses are marked."""
        self.fabric.setCounters("left", 1, symbolErrorCounter=5)
        self.fabric.setCounters("left", 2, symbolErrorCounter=6)
        result = self.series("left", bytes((1, 99, 2)))
        self.assertEqual(result.kind, wire.COMPLETE)
        size = PortCounters.size + PortCountersExtended.size
        first, refused, second = wire.decodePorts(size, 3, result.content)
        self.assertIsInstance(refused, int)
        for content, errors in ((first, 5), (second, 6)):
            self.assertEqual(PortCounters.decode(content).symbolErrorCounter, errors)  # type: ignore[arg-type]  # not None
        self.assertRaises(WireError, wire.decodePorts, 10, 1, wire.READ + bytes(9))
        ports = (wire.REFUSED + b"\0\1") * 2
        self.assertEqual(wire.decodePorts(10, 2, ports), [1, 1])
        self.assertRaises(WireError, wire.decodePorts, 10, 1, ports)

    def test_keepalive(self) -> None:
        """Keepalive messages are sent as long as a slow node answers, and only then."""
        self.connection._timeoutSeconds = 30.0
        agent: Any = self.collector
        issue, waiting = agent.issue, []
        agent.issue = lambda *arguments: waiting.append(arguments)  # the node needs longer than a second
        self.send(wire.encodeRequests([wire.PortsRequest(1, self.lid("left"), b"\1", b"\1\2")]))
        found = []
        for _ in range(2):
            for _ in range(3):
                self.pump(1.0)
                found.append(self.messages())
            issue(*waiting.pop())
        self.assertEqual(found, [[b""], [], [], [b""], [], []])
        (result,) = self.results()
        self.assertEqual(result.kind, wire.COMPLETE)

    def test_silentSeries(self) -> None:
        """A series ends when the node becomes silent, and has what was read before."""
        self.send(wire.encodeRequests([wire.PortsRequest(1, self.lid("left"), b"\1", bytes(range(1, 9)))]))
        before = self.collector.sent
        while self.collector.sent < before + 3:
            self.clock.advance(0.0001)
        self.fabric.silence("left")
        (result,) = self.results()
        self.assertEqual(result.kind, wire.SILENT)
        self.assertIn(len(wire.decodePorts(PortCounters.size, 8, result.content)), (3, 4, 5))

    def test_badMessages(self) -> None:
        """Calls only read; unknown or repeated ones, invalid LIDs and wrong lengths end the connection."""
        self.assertEqual({call for call, _kind in wire.READABLE}, {"PerformanceGet", "SubnGet"})
        lid = self.lid("a")
        series = [
            wire.encodeRequests([wire.PortsRequest(1, lid, attributes, ports)])
            for attributes, ports in (
                *((b"", b""), (b"\1", b""), (b"", b"\1"), (b"\1\5", b"\1")),
                *((b"\1\2\1", b"\1"), (b"\1", b"\1\2\1")),
            )
        ]
        others = [self.requests(lid, what=len(wire.READABLE)), self.requests(0), self.requests(0xC000)]
        others += [self.requests(lid)[:-1], self.requests(lid) + b"\1"]
        self.connection.connectionLost()
        settings = (b"", bytes(6), SETTINGS[1:], bytes((SETTINGS[0] + 1,)) + SETTINGS[1:])
        wrong = [(message,) for message in settings]
        for messages in (*((SETTINGS, message) for message in series + others), *wrong):
            self.transport = StringTransport()
            self.connection = self.connected(self.transport)
            for message in messages:
                self.send(message)
            self.assertEnded()

    def test_mostCalls(self) -> None:
        """The number of calls of a monitor without results is limited, and so is that of concurrent calls."""
        lid = self.lid("a")
        self.send(self.requests(*[lid] * wire.MOST_CALLS))
        self.assertEqual(len(self.collector._core._open), 8)
        self.assertEqual(len(self.results(60.0)), wire.MOST_CALLS)
        self.send(self.requests(*[lid] * (wire.MOST_CALLS + 1)))
        self.assertEnded()

    def test_notRead(self) -> None:
        """While a monitor does not read results, no more calls are made, and queued calls are limited."""
        lid = self.lid("a")
        self.transport.producer.pauseProducing()  # type: ignore[union-attr]  # the connection
        self.send(self.requests(*[lid] * wire.MOST_CALLS))
        self.assertEqual(self.results(), [])
        self.transport.producer.resumeProducing()  # type: ignore[union-attr]  # the connection
        self.assertEqual(len(self.results(60.0)), wire.MOST_CALLS)
        self.transport.producer.pauseProducing()  # type: ignore[union-attr]  # the connection
        self.send(self.requests(*[lid] * wire.MOST_CALLS))
        self.send(self.requests(lid))
        self.assertEnded()

    def test_mostBytes(self) -> None:
        """A message that is too long ends the connection before it is stored."""
        self.connection.dataReceived((wire.MOST_BYTES + 1).to_bytes(4, "big"))
        self.assertEnded()

    def test_mostMonitors(self) -> None:
        """The number of connected monitors is limited; when one disconnects, another can connect."""
        others = [self.connected(StringTransport()) for _ in range(collector.MOST_MONITORS - 1)]
        self.assertIsNone(self.factory.buildProtocol(None))
        others[0].connectionLost()
        self.assertIsNotNone(self.factory.buildProtocol(None))

    def test_close(self) -> None:
        """A collector that stops closes its connections, and cancels their calls."""
        self.fabric.silence("a")
        self.send(self.requests(self.lid("a")))
        self.factory.close()
        self.assertEnded()


class LinkTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = SimulatedClock()
        self.endpoint = StringEndpoint()
        self.pool = CollectorPool(self.clock, None, {"b": self.endpoint}, KEY, 0.5, 2, 64)  # type: ignore[arg-type]  # unused
        self.pool.start()
        self.addCleanup(lambda: self.pool.stop())

    def test_nonsense(self) -> None:
        """A connection to a peer that sends no proof is closed, and tried again."""
        protocol, transport = self.endpoint.connections[-1]
        protocol.dataReceived(b"HTTP/1.1 200 OK\r\nServer: something else, of another kind\r\n\r\n")
        self.assertTrue(transport.disconnected)
        protocol.connectionLost()
        self.clock.advance(pool.FIRST_PAUSE)
        self.assertEqual(len(self.endpoint.connections), 2)

    def test_dumb(self) -> None:
        """A connection to a peer that sends nothing is closed."""
        self.clock.pump([10.0, READ_SECONDS])
        self.assertTrue(self.endpoint.connections[0][1].disconnected)
