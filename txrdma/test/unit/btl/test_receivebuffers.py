"""Long messages between processes of one host: receive buffers in shared memory, and segments about them."""

from __future__ import annotations

from random import Random
from typing import Any, cast
from unittest import mock
from unittest.mock import Mock

from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl import receivebuffers as receiveBuffersModule
from txrdma.btl.core.counters import ModuleCounters
from txrdma.btl.core.events import Event, MessageReceived, ReceiveBufferRequested, SendCompleted
from txrdma.btl.core.peer import Peer
from txrdma.btl.core.receivebuffer import FULL, LONG, ReceiveBuffer, UNREACHED, WORTH_WAITING
from txrdma.btl.introductions import frame, FrameKind, QueuePairPart, ReceiveBufferFrame
from txrdma.btl.module import moduleOf
from txrdma.btl.receivebuffers import HOLD_SECONDS, RemoteReceiveBuffers
from txrdma.btl.wire import BTLSegment, CHUNK_LENGTH, encodePlaced, PLACED, PLACED_PUT
from txrdma.iba.types import MTU
from txrdma.iba.verbs import QPAttributes, QPState
from txrdma.kit.wire import Buffer
from txrdma.sim.network import Faults
from txrdma.sim.sharedmemory import SimulatedMemory
from txrdma.soft.device import SoftDevice
from txrdma.soft.rc.roce import RoCEPort
from txrdma.soft.shared._remote import RemoteMemory
from txrdma.soft.shared.sharedqueuepair import SharingReactor
from txrdma.test.support.btl.hosts import HostsCase, ORDERED, TAG, TagRecorder
from txrdma.test.unit.btl import test_connections, test_contract
from txrdma.test.unit.btl.test_module import ModuleTestCase
from txrdma.testing.btl.world import BadNetwork
from txrdma.testing.smc.hosts import Host

_SIZE = 65536


class ReceiveBufferTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.memory = bytearray(_SIZE)
        self.isReached = True

    def write(self, place: int, data: Buffer) -> bool:
        """Write into the receive buffer's memory, within its bounds."""
        assert place >= 0 and place + len(data) <= _SIZE
        if self.isReached:
            self.memory[place : place + len(data)] = data
        return self.isReached

    def test_places(self) -> None:
        """Fragments never overlap, in any order in which they are released."""
        random, buffer = Random(1), ReceiveBuffer(_SIZE, self.write)
        pieces: dict[int, bytes] = {}
        refused = 0
        for _each in range(3000):
            data = random.randbytes(random.choice((1, 64, 5000, 9000, 30_000, _SIZE)))
            place = buffer.allocate(data)
            if place == FULL:
                refused += 1
                self.assertTrue(pieces)
            else:
                pieces[place] = data
            for at, expected in pieces.items():
                self.assertEqual(self.memory[at : at + len(expected)], expected)
            if place == FULL or random.random() < 0.3:
                released = random.choice(list(pieces))
                del pieces[released]
                buffer.release(released)
        self.assertGreater(refused, 100)

    def test_unreached(self) -> None:
        """A fragment that cannot be written takes no space."""
        buffer = ReceiveBuffer(_SIZE, self.write)
        self.isReached = False
        self.assertEqual(buffer.allocate(bytes(_SIZE)), UNREACHED)
        self.isReached = True
        self.assertEqual([buffer.allocate(bytes(_SIZE)), buffer.allocate(b"x")], [0, FULL])

    def test_fitting(self) -> None:
        """A message that fits is one fragment; a longer one has several."""
        buffer = ReceiveBuffer(_SIZE + 63, self.write)
        self.assertEqual([buffer.fitting(0, _SIZE), buffer.fitting(100, _SIZE)], [_SIZE, _SIZE - 100])
        part = _SIZE // 4
        self.assertEqual([buffer.fitting(0, 100_000), buffer.fitting(99_900, 100_000)], [part, 100])

    def test_reused(self) -> None:
        """The most recently released memory is used first and exclusively, which helps caches."""
        buffer = ReceiveBuffer(_SIZE, self.write)
        positions = [buffer.allocate(bytes(5000)) for _each in range(3)]
        for _each in range(50):
            buffer.release(positions.pop(1))
            positions.append(buffer.allocate(bytes(5000)))
        self.assertEqual(sorted(positions), [0, 8192, 16384])

    def test_sizes(self) -> None:
        """A fragment waits until the buffer is empty if only memory of other sizes is free."""
        buffer = ReceiveBuffer(_SIZE, self.write)
        positions = [buffer.allocate(bytes(4096)) for _each in range(_SIZE // 4096)]
        self.assertEqual(buffer.allocate(b"x"), FULL)
        buffer.release(positions.pop())
        positions.append(buffer.allocate(b"x"))
        for _each in range(2):
            buffer.release(positions.pop())
        self.assertEqual(buffer.allocate(bytes(8192)), FULL)
        self.assertEqual(buffer.allocate(b"x"), FULL)  # otherwise the longer one might wait forever
        for place in positions:
            buffer.release(place)
        self.assertEqual([buffer.allocate(bytes(8192)), buffer.allocate(b"x")], [0, 8192])


class SegmentCase(ModuleTestCase):
    """
    Segments that announce bytes in a receive buffer.

    @cvar delay: seconds until a write is complete, as by RDMA; None if Alice writes immediately.
    """

    delay: float | None = None

    def begin(self, network: BadNetwork, budget: Any = None) -> None:
        super().begin(network, budget)
        self.isReached = True
        self.alice.share(self.toBob, self.toAlice, _SIZE, lambda: not self.isReached, self.delay)

    @property
    def counters(self) -> ModuleCounters:
        """Return the counters of the sender."""
        return self.alice.module.counters

    def reported(self) -> list[Any]:
        """Return the contexts of messages reported as delivered."""
        return [each.context for each in self.eventReceived["alice"] if isinstance(each, SendCompleted)]


class SegmentTests(SegmentCase):
    """Segments whose bytes are in memory that both ends map."""

    def test_whole(self) -> None:
        """A message that fits is delivered as a view of the receive buffer, after one short packet."""
        views: list[memoryview] = []

        def eventReceived(event: Event) -> None:
            assert isinstance(event, MessageReceived)
            views.append(event.data)

        self.bob.eventReceived = eventReceived
        self.send(b"long" * 1000, "told")
        (packet,) = self.alice.module.outgoing(0.0)
        self.assertEqual(len(packet.head) + len(packet.payload), CHUNK_LENGTH + 8)
        self.bob.arrived(packet.channel, (0, 1), packet.head + bytes(packet.payload))
        self.run_(1.0)
        assert self.toAlice.localReceiveBuffer is not None
        self.assertIs(views[0].obj, self.toAlice.localReceiveBuffer.obj)
        self.assertEqual(bytes(views[0]), b"long" * 1000)
        self.assertEqual(self.reported(), ["told"])
        counters = self.counters
        self.assertEqual((counters.rdmaSends, counters.rdmaBytes, counters.chunkSends), (1, 4000, 0))
        self.assertEqual(self.bob.module.counters.rdmaRecvs, 1)

    def test_pieces(self) -> None:
        """A message longer than the receive buffer arrives in fragments; short ones use packets."""
        data = Random(4).randbytes(300_001)
        for each in (b"before", data, b"behind"):
            self.send(each)
        self.run_(1.0)
        self.assertEqual(sorted(self.messages(), key=len), [b"before", b"behind", data])
        self.assertEqual((self.counters.rdmaBytes, self.counters.rdmaSends), (300_001, 19))

    def test_puts(self) -> None:
        """A put uses the receive buffer; an invalid one is refused, and its space is released."""
        memory = bytearray(20_000)
        region = self.bob.module.regions.register(memoryview(memory))
        data = Random(5).randbytes(10_000)
        self.alice.module.put(self.toBob, region, 5000, data, "put")
        self.alice.module.put(self.toBob, region + 1, 0, data, "stale")
        self.run_(1.0)
        self.assertEqual(memory[5000:15_000], data)
        self.assertEqual(self.reported(), ["put"])
        assert self.toBob.receiveBuffer is not None
        self.assertEqual(len(self.toBob.receiveBuffer._orders), 0)
        self.assertEqual((self.counters.rdmaSends, self.bob.module.counters.refusedRecvs), (2, 1))

    def test_asks(self) -> None:
        """The first long message requests a receive buffer once; further bytes wait for the answer."""
        self.toBob.receiveBuffer, self.toBob.mayRequest = None, True
        self.send(bytes(LONG - 1))
        self.assertEqual(self.alice.module.events(), [])
        self.send(bytes(LONG))
        self.assertEqual(self.alice.module.events(), [ReceiveBufferRequested(self.toBob)])
        self.toBob.isRequesting = True
        self.run_(1.0)
        self.assertEqual([len(each) for each in self.messages()], [LONG - 1, LONG])
        for size in (LONG, WORTH_WAITING):
            self.send(bytes(size))
        self.run_(1.0)
        self.assertEqual(len(self.messages()), 2)
        self.alice.module.resume(self.toBob)
        self.run_(1.0)
        self.assertEqual([len(each) for each in self.messages()][2:], [LONG, WORTH_WAITING])
        self.assertEqual(self.alice.module.events(), [])

    def test_liars(self) -> None:
        """An announcement outside the receive buffer is refused, and nothing is delivered."""
        buffer = self.toAlice.localReceiveBuffer
        for place, length, total, kind in (
            (0, _SIZE + 1, _SIZE + 1, PLACED), (_SIZE, 1, 1, PLACED), (1 << 31, 1 << 31, 5, PLACED),
            (0, 10, 5, PLACED), (0, 0, 0, PLACED), (0, 1, 0, PLACED_PUT), (4000, 200, 0, PLACED_PUT),
        ):  # fmt: skip
            self.lie(encodePlaced(place, length), total, kind)
        self.lie(b"short", 100)
        self.toAlice.localReceiveBuffer = None
        self.lie(encodePlaced(0, 10), 10)
        self.run_(0.1)
        self.assertEqual(self.messages(), [])
        self.assertEqual(self.bob.module.counters.badfragRecvs, 9)
        self.toAlice.localReceiveBuffer = buffer
        self.send(b"true" * 500)
        self.run_(1.0)
        self.assertEqual(self.messages(), [b"true" * 500])

    def lie(self, payload: bytes, total: int, kind: int = PLACED) -> None:
        """Deliver a segment to Bob that Alice never sent."""
        segment = BTLSegment(
            kind, self.toBob.sender, self.toBob.sent.base, payload=payload, total=total, fragment=9
        )
        self.bob.module.received(1, (0, 1), segment.encode(), self.world.now)


class OneHostCase(HostsCase):
    """
    Two processes of one host with shared memory; their datagrams use a network, which may be bad.

    @ivar memory: the host's.
    """

    def setUp(self) -> None:
        super().setUp()
        self.memory = SimulatedMemory(self.world.clock, self.seed)
        self.hosts = [self.process(address) for address in ("127.0.1.1", "127.0.1.2")]

    def process(self, address: str) -> Host:
        def device() -> SoftDevice:
            made = self.memory.device(cast(SharingReactor, process), address)
            carrier = self.world.network.carrier(address)
            made.ports[0].routes.append(RoCEPort(self.world.clock, carrier, None, MTU.MTU_1024.bytes))
            return made

        process = Host(self.world, address, device)
        process.openDevice()
        self.addCleanup(self._leave, process)
        die = process.die

        def dies(silently: bool) -> None:
            die(silently)
            self.memory.kill(process)

        process.die = dies  # type: ignore[method-assign]  # shared memory belongs to the process
        return process

    def receiveBuffer(self, end: TagRecorder) -> ReceiveBuffer | None:
        """Return the receive buffer of an end's peer."""
        peer = end.transport._peer
        assert isinstance(peer, Peer)
        return peer.receiveBuffer


class LongTests(HostsCase):
    """
    Long messages and remote memory by receive buffers, into which RDMA writes between two hosts.

    @cvar route: the path of the reliable queue pairs.
    @cvar mostFailing: bytes of all receive buffers, and the number and bytes of the messages, of a connection
        whose queue pair fails meanwhile.
    """

    route = "rocev2"
    mostFailing = (receiveBuffersModule.MOST_RECEIVE_BUFFERS, 5, 1 << 20)

    def test_receiveBuffer(self) -> None:
        """The first long message makes both ends create a queue pair, which only long messages use."""
        client, server = self.connected()
        self.outcome(client.transport.send(TAG, b"short"))
        self.assertEqual((self.reliable(0), self.reliable(1)), ([], []))
        long = Random(1).randbytes(300_000)
        self.outcome(client.transport.send(TAG, long))
        self.outcome(server.transport.send(TAG, long))
        self.assertEqual((server.tagged[-1], client.tagged), ((TAG, long), [(TAG, long)]))
        for number in (0, 1):
            counters = self.counters(number)
            self.assertEqual((counters.rdmaSends, counters.rdmaBytes), (1, 300_000))
            self.assertEqual((counters.rdmaRecvs, counters.chunkSends), (1, 0))
            self.assertEqual([pair.route for pair in self.reliable(number)], [self.route])
        self.close(client, server)
        self.assertNothingLeft()

    def test_memoryByReceiveBuffer(self) -> None:
        """Long puts, and answers to long gets, use receive buffers."""
        client, server = self.connected()
        memory = bytearray(300_000)
        name = server.transport.share(memory).name
        data = Random(6).randbytes(300_000)
        self.outcome(client.transport.write(name, data))
        self.assertEqual(memory, data)
        self.assertEqual(self.outcome(client.transport.read(name, 300_000)), data)
        self.assertEqual((self.counters().rdmaBytes, self.counters(1).rdmaBytes), (300_000, 300_000))

    def test_invalidFrames(self) -> None:
        """A peer that describes an invalid queue pair or receive buffer gets long messages by packets."""
        self.patch(receiveBuffersModule, "_TIMEOUT", 14)
        for content in (
            frame(FrameKind.QUEUE_PAIR, QueuePairPart(qpn=0xABCDEF).encode()),
            frame(FrameKind.RECEIVE_BUFFER, ReceiveBufferFrame(rkey=1, length=1 << 31, address=5).encode()),
            frame(FrameKind.RECEIVE_BUFFER, ReceiveBufferFrame().encode()),
        ):
            client, server = self.connected()
            self.lifeline(server).transport.write(2 * content)  # type: ignore[union-attr]  # it is connected
            self.pause(0.01)
            for one, other in ((client, server), (server, client)):
                self.outcome(one.transport.send(TAG, bytes(100_000)))
                self.assertEqual(len(other.tagged), 1)
        self.lifeline(server).transport.write(frame(FrameKind.QUEUE_PAIR, b"x"))  # type: ignore[union-attr]
        self.wait(lambda: client.lost and server.lost)
        self.assertEqual(client.why(), "ConnectionLost")

    def test_announcedTwice(self) -> None:
        """A peer that announces another receive buffer uses no more memory, and is not asked for it."""
        self.patch(type(self.hosts[0].device.limits), "hasUnlimitedInline", False)  # as of an adapter
        client, server = self.connected()
        self.outcome(client.transport.send(TAG, bytes(300_000)))
        self.pause(0.1)
        (port,) = moduleOf(self.hosts[0], self.hosts[0].device).ports
        used, prepare = port.receiveBufferBytes, Mock()
        self.patch(RemoteMemory, "prepare", prepare)
        another = ReceiveBufferFrame(rkey=1, length=1 << 20, address=0)
        for part in (another, ReceiveBufferFrame(), another):
            content = frame(FrameKind.RECEIVE_BUFFER, part.encode())
            self.lifeline(server).transport.write(content)  # type: ignore[union-attr]  # it is connected
        self.pause(0.1)
        self.assertLessEqual(port.receiveBufferBytes, used)
        prepare.assert_not_called()
        self.close(client, server)
        self.assertNothingLeft()

    def test_broken(self) -> None:
        """When a queue pair fails during a message, at either end, everything arrives once and in order."""
        most, count, size = self.mostFailing
        self.patch(receiveBuffersModule, "MOST_RECEIVE_BUFFERS", most)
        for number in (0, 1):
            client, server = self.connected()
            output = [Random(each).randbytes(size) for each in range(count)]
            outcomes = [client.transport.send(ORDERED, each) for each in output]
            before = self.counters().rdmaSends
            self.wait(lambda before=before: self.counters().rdmaSends > before + 2)  # type: ignore[misc]  # an int
            (pair,) = self.reliable(number)
            pair.modify(QPAttributes(state=QPState.ERR))
            for outcome in outcomes:
                self.outcome(outcome, 120.0)
            self.assertTrue(server.tagged == [(ORDERED, each) for each in output])
            self.assertGreater(min(self.counters().rdmaMisses, self.counters().chunkSends), 0)
            self.outcome(server.transport.send(TAG, bytes(100_000)), 120.0)
            self.close(client, server)
        self.assertNothingLeft()


class OneHostLongTests(OneHostCase, LongTests):
    """Between processes of one host, which share memory."""

    route = "shared-memory"
    mostFailing = (16 << 20, 3, 3 << 19)


class OneHostMessageTests(OneHostCase, test_connections.MessageTests):
    def test_acknowledgedWhenReceived(self) -> None:
        """Bytes are acknowledged only after the application has received them."""
        client, server = self.connected()
        self.outcome(client.transport.send(TAG, bytes(WORTH_WAITING)))
        seen: list[int] = []

        def eventReceived(data: memoryview) -> None:
            seen.append(counters.ackSends)
            for _each in range(20):
                server.transport.post(TAG, bytes(900))  # posted requests may leave immediately

        counters = self.counters(1)
        self.pause(1.0)
        before = counters.ackSends
        server.transport.setHandler(ORDERED, eventReceived)
        buffer = self.receiveBuffer(client)
        assert buffer is not None
        for number in range(16):
            client.transport.post(ORDERED, bytes((number,)) * 2000)
        self.wait(lambda: len(buffer._orders) == 16)
        self.wait(lambda: len(seen) == 16)
        self.assertEqual(set(seen), {before})

    def test_shares(self) -> None:
        """Receive buffers get smaller with more peers; without one, packets carry everything."""
        self.patch(receiveBuffersModule, "MOST_RECEIVE_BUFFERS", 40 << 20)
        self.patch(receiveBuffersModule, "SMALLEST_RECEIVE_BUFFER", 2 << 20)
        sizes = []
        for _each in range(6):
            client, _server = self.connected()
            self.outcome(client.transport.send(TAG, bytes(300_000)))
            buffer = self.receiveBuffer(client)
            sizes.append(0 if buffer is None else buffer.size)
        self.assertEqual(sizes[4:], [0, 0])
        self.assertEqual(sizes[0], (40 << 20) // 16)
        self.assertEqual(sorted(sizes, reverse=True), sizes)
        self.assertGreater(sizes[3], 2 << 20)
        self.assertEqual((self.counters().rdmaSends, self.counters().rdmaBytes), (4, 1_200_000))

    def test_older(self) -> None:
        """A peer whose version lacks receive buffers gets long messages by packets."""
        client, server = self.connected()
        with mock.patch.object(RemoteReceiveBuffers, "frameReceived"):
            begun = self.world.clock.seconds()
            self.outcome(client.transport.send(TAG, bytes(300_000)))
        self.assertTrue(HOLD_SECONDS < self.world.clock.seconds() - begun < 2 * HOLD_SECONDS)
        self.assertEqual(len(server.tagged), 1)
        begun = self.world.clock.seconds()
        self.outcome(client.transport.send(TAG, bytes(300_000)))
        self.assertLess(self.world.clock.seconds() - begun, HOLD_SECONDS)
        self.assertEqual((self.counters().rdmaSends, self.counters().rdmaMisses), (0, 0))

    def test_noMemory(self) -> None:
        """Without shared memory between reliable queue pairs RDMA writes long messages."""
        for host in self.hosts:
            del host.device.ports[0].routes[0]
        client, server = self.connected()
        begun = self.world.clock.seconds()
        self.outcome(client.transport.send(TAG, bytes(300_000)))
        self.assertLess(self.world.clock.seconds() - begun, HOLD_SECONDS)
        self.outcome(server.transport.send(TAG, bytes(100_000)))
        self.assertEqual([pair.route for pair in (*self.reliable(0), *self.reliable(1))], ["rocev2"] * 2)
        self.assertEqual((self.counters().rdmaSends, self.counters(1).rdmaSends), (1, 1))

    def test_noQueuePair(self) -> None:
        """A device without a further reliable queue pair sends long messages by packets, at either end."""
        from txrdma.error import ResourceExhausted

        for number in (0, 1):
            client, _server = self.connected()
            domain = moduleOf(self.hosts[number], self.hosts[number].device).ports[0].domain
            with mock.patch.object(
                domain, "createQueuePair", Mock(side_effect=ResourceExhausted("a test's"))
            ):
                self.outcome(client.transport.send(TAG, bytes(300_000)))
            self.assertEqual((self.reliable(0), self.reliable(1)), ([], []))


class OneHostMemoryTests(OneHostCase, test_connections.MemoryTests):
    """Puts and gets through shared memory."""

    def third(self) -> Host:
        return self.process("127.0.1.3")


class OneHostPressureTests(OneHostCase, test_connections.PressureTests):
    """An application that does not receive pauses its peer, even if memory is free."""


class OneHostEndTests(OneHostCase, test_connections.EndTests):
    def test_busyWithLong(self) -> None:
        """A receiver that was busy for two minutes gets all long messages, and no end gives up."""
        self.patch(receiveBuffersModule, "MOST_RECEIVE_BUFFERS", 16 << 20)
        client, server = self.connected()
        self.outcome(client.transport.send(TAG, bytes(WORTH_WAITING)))
        self.hosts[1].sleep()
        for number in range(40):
            client.transport.sendMessage(number.to_bytes(2, "big") + bytes(100_000))
        outcome = client.transport.send(TAG, b"later")
        self.pause(120.0)
        self.assertNoResult(outcome)
        self.assertLess(self.counters().rdmaBytes, (1 << 20) + WORTH_WAITING)
        self.hosts[1].wake()
        self.wait(lambda: len(server.messages) == 40)
        self.outcome(outcome)
        self.assertEqual([int.from_bytes(data[:2], "big") for data, _ in server.messages], list(range(40)))
        self.assertEqual(self.counters().chunkSends, 0)

    def test_portDown(self) -> None:
        """A message is written while a port is down, and announced when the port is up again."""
        client, server = self.connected()
        self.outcome(client.transport.send(TAG, bytes(WORTH_WAITING)))
        self.hosts[1].device.setPortEnabled(1, False)
        outcome = client.transport.send(TAG, bytes(50_000))
        self.pause(2.0)
        self.assertNoResult(outcome)
        self.assertEqual(self.counters().rdmaSends, 2)
        self.hosts[1].device.setPortEnabled(1, True)
        self.outcome(outcome)
        self.outcome(client.transport.send(TAG, bytes(50_000)))
        self.assertEqual((len(server.tagged), self.counters().rdmaMisses), (3, 0))


class OneHostLossTests(OneHostCase):
    """Messages between processes of one host whose datagrams are lost, duplicated and reordered."""

    faults = Faults(loss=0.05, duplication=0.05, jitterSeconds=0.002, late=0.01)

    def test_long(self) -> None:
        """All long messages arrive once, ordered tags in order, in spite of losses."""
        self.patch(receiveBuffersModule, "MOST_RECEIVE_BUFFERS", 16 << 20)
        for seed in range(3):
            random = Random(seed)
            self.world.network.reseed(seed)
            client, server = self.connected()
            output = [random.randbytes(random.choice((100, 20_000, 300_000, 2 << 20))) for _each in range(40)]
            for data in output:
                client.transport.post(ORDERED, data)
            client.transport.loseConnection()
            self.wait(lambda c=client, s=server: c.lost and s.lost, 300.0)  # type: ignore[misc]  # a lambda
            self.assertTrue(server.tagged == [(ORDERED, data) for data in output], f"seed {seed}")
        self.pause(1.0)
        self.assertNothingLeft()


class OneHostContractTests(OneHostCase, test_contract.MessageContractTests):
    """The contract of message connections, with shared memory."""
