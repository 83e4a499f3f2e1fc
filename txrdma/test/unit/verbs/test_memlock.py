"""Transports of processes that may pin 8 MiB, the default of C{ulimit -l} for ordinary users."""

from __future__ import annotations

from typing import Any

from twisted.internet.error import ConnectionLost
from twisted.internet.protocol import Factory
from twisted.logger import capturedLogs
from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl import channels, module
from txrdma.cm.connections.receives import ReceiveMemory
from txrdma.cm.rsocket.endpoints import RSocketClientEndpoint, RSocketServerEndpoint
from txrdma.error import ResourceExhausted
from txrdma.mad.ports import verbsport
from txrdma.sim.network import SimulatedNetwork
from txrdma.soft.device import SoftDevice
from txrdma.test.support.btl.hosts import HostsCase, TAG
from txrdma.test.support.cm.messaging import MessagingCase
from txrdma.test.support.pinning import Pinned
from txrdma.testing.protocols import Recorder, Recorders
from txrdma.testing.reactors import ReactorClock
from txrdma.testing.smc.hosts import Host
from txrdma.verbs import pinning

LIMIT = 8 << 20
EXCHANGED = LIMIT
"""Bytes that all peers together send in each direction of a test."""

PEERS = 4


class DepthsTests(SynchronousTestCase):
    """The depths of the channels of a L{module.ModulePort}."""

    def test_depths(self) -> None:
        """A module pins at most a quarter of the limit: three modules leave enough for a link group."""
        for limit, depths in (
            (None, (module.COMMAND_DEPTHS, module.DATA_DEPTHS)),
            (LIMIT // module.PINNED_SHARE, ((16, 256), (64, 256))),
            (1, ((16, 16), (16, 16))),  # the smallest depths
        ):
            self.assertEqual(module.depthsWithin(limit, 4096), depths)
        total = channels.bufferBytes((16, 256), 768) + channels.bufferBytes((64, 256), 4096)
        self.assertLess(total, 2 << 20)


class ModuleTests(HostsCase):
    """C{btl:} of a host that may pin 8 MiB, with several peers."""

    slowBecause = "simulates several hosts with long messages"

    def setUp(self) -> None:
        self.pinned = Pinned(LIMIT)
        # Disables the software device's delivery without receives, which adapters do not have.
        self.patch(channels, "IDirectDatagrams", lambda pair, default: default)
        self.patch(pinning, "mostPinned", lambda: LIMIT)
        super().setUp()
        self.hosts += [self.host(f"10.0.1.{number}") for number in range(3, PEERS + 2)]

    def host(self, address: str) -> Host:
        """Create another host; the memory of the first one is limited."""
        made = super().host(address)
        if address == "10.0.1.1":
            self.pinned.limit(made.device)
        return made

    def test_exchange(self) -> None:
        """Messages of all peers arrive in both directions, and less than half of the limit is registered."""
        ends = [self.connected(0, number) for number in range(1, PEERS + 1)]
        self.assertLess(self.pinned.peak, 2 << 20)
        length = 1 << 16
        data = bytes(length)
        count = EXCHANGED // length // PEERS
        for _ in range(count):
            for pair in ends:
                for end in pair:
                    end.transport.post(TAG, data)
        self.wait(lambda: all(len(end.tagged) == count for pair in ends for end in pair), 600.0)
        self.assertEqual(self.pinned.refused, 0)
        self.assertLess(self.pinned.peak, LIMIT // 2)

    def test_lessMemoryMeansShorterQueuesAndIsLogged(self) -> None:
        self.pinned.most = 1 << 20
        with capturedLogs() as logs:
            here, there = self.connected()
        here.transport.post(TAG, bytes(100_000))
        self.wait(lambda: there.tagged)
        self.assertEqual({each["number"] for each in logs if "ulimit" in each.get("log_format", "")}, {1})

    def test_noModuleIsOpenedWithoutMemory(self) -> None:
        self.pinned.most = 1 << 10
        self.assertRaises(ResourceExhausted, module.moduleOf, self.hosts[0], self.hosts[0].device)
        self.assertEqual((self.pinned.total, len(self.hosts[0].device._queuePairs)), (0, 0))


class PinnedMessagingCase(MessagingCase):
    """Two hosts, of which the client's may pin 8 MiB."""

    receives = verbsport.RECEIVES

    def setUp(self) -> None:
        self.patch(pinning, "mostPinned", lambda: LIMIT)
        super().setUp()
        self.pinned = Pinned(LIMIT)
        self.pinned.limit(self.devices[0])


class ConnectionTests(PinnedMessagingCase):
    """C{rdma:} of a host that may pin 8 MiB."""

    def test_exchange(self) -> None:
        """Messages of all connections arrive in both directions."""
        ends = [self.connected() for _ in range(PEERS)]
        data = bytes(4096)
        count = EXCHANGED // len(data) // PEERS
        for pair in ends:
            for end in pair:
                for _ in range(count):
                    end.transport.sendMessage(data)
        self.wait(lambda: all(len(end.messages) == count for pair in ends for end in pair), 600.0)
        self.assertLess(self.pinned.peak, 2 << 20)

    def test_connectionWithLessMemorySendsFewerAtATime(self) -> None:
        client, server = self.connected()
        self.pinned.most = self.pinned.total + 3 * 4096
        for number in range(100):
            client.transport.sendMessage(bytes((number,)))
        self.wait(lambda: len(server.messages) == 100)
        self.assertEqual([data[0] for data, _ in server.messages], list(range(100)))
        self.assertEqual((self.pinned.total, client.lost), (self.pinned.most - 4096, []))

    def test_connectionWithoutMemoryForOneMessageIsClosed(self) -> None:
        client, _server = self.connected()
        self.pinned.most = self.pinned.total
        client.transport.sendMessage(b"hello")
        self.wait(lambda: client.lost)
        client.lost[0].trap(ConnectionLost)


class ReceivesTests(SynchronousTestCase):
    """Memory for the receives of connections, near the limit."""

    def setUp(self) -> None:
        self.device: SoftDevice = SimulatedNetwork(ReactorClock()).device("10.0.1.1")
        self.addCleanup(self.device.close)
        self.pinned = Pinned(LIMIT)
        self.memory = ReceiveMemory(self.pinned.limit(self.device).createProtectionDomain())

    def test_regionIsHalvedNearLimit(self) -> None:
        self.pinned.most = 5 * 4096
        for _ in range(5):
            self.memory.take(1, 4096)
        self.assertEqual(self.pinned.total, 5 * 4096)
        self.assertRaises(ResourceExhausted, self.memory.take, 1, 4096)

    def test_cachedRegionsAreReleasedForOtherSizes(self) -> None:
        self.memory.take(1, 1 << 19).giveBack()
        self.assertEqual(self.pinned.total, 4 << 20)
        parts = [self.memory.take(2, 1 << 20) for _ in range(4)]
        self.assertEqual((self.pinned.total, len(parts)), (LIMIT, 4))


class RSocketTests(PinnedMessagingCase):
    """C{rsocket:} of a host that may pin 8 MiB."""

    def exchange(self, peers: int, length: int) -> None:
        """Connect several streams, and send this many bytes in both directions of each."""
        factory = Recorders(Recorder)
        served = factory.protocols
        server = RSocketServerEndpoint(self.clock, 7471, self.devices[1])
        port: Any = self.successResultOf(server.listen(factory))
        endpoint = RSocketClientEndpoint(self.clock, "10.0.1.2", 7471, self.devices[0])
        clients = [self.result(endpoint.connect(Factory.forProtocol(Recorder))) for _ in range(peers)]
        self.wait(lambda: len(served) == peers and all(each.made.called for each in served))
        for each in (*clients, *served):
            each.transport.write(bytes(length))
        self.wait(lambda: all(len(each.received) == length for each in (*clients, *served)), 600.0)
        for each in clients:
            each.transport.loseConnection()
        self.wait(lambda: all(each.lost.called for each in clients))
        port.stopListening()
        self.assertNothingLeft()

    def test_exchange(self) -> None:
        """Bytes of all streams arrive in both directions."""
        self.exchange(PEERS, EXCHANGED // PEERS)
        self.assertEqual(self.pinned.refused, 0)

    def test_laterStreamsGetSmallerBuffers(self) -> None:
        self.exchange(24, 100_000)
        self.assertEqual(self.pinned.refused, 0)

    def test_buffersAreHalvedWhenMemoryIsScarce(self) -> None:
        self.pinned.most = 1 << 19
        self.exchange(1, 100_000)
        self.assertGreater(self.pinned.refused, 0)
