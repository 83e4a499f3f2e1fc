"""Unknown clients: limits of what a listener sends, stores, and waits for."""

from __future__ import annotations

import socket
from random import Random
from typing import Any
from unittest import SkipTest
from unittest.mock import patch

from twisted.internet.address import IPv4Address
from twisted.internet.task import Clock
from twisted.internet.testing import AccumulatingProtocol, StringTransport
from twisted.logger import capturedLogs, LogLevel
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl import connections, probes
from txrdma.btl.connections import PeerOpening
from txrdma.btl.core import ordering
from txrdma.btl.core.assembly import Assembly, Budget, LONGEST, MOST_OF_PEER, RESERVE_BYTES, TAKEN
from txrdma.btl.core.module import AMPLIFICATION, MOST_EARLY_BYTES
from txrdma.btl.core.window import GIVE_UP
from txrdma.btl.introductions import (
    frame,
    FrameKind,
    Introduction,
    INTRODUCTION_LENGTH,
    QueuePairPart,
    ReceiveBufferFrame,
)
from txrdma.btl.lifeline import MOST_EARLY, PeerConnection, PROBE_SECONDS
from txrdma.btl.probes import PathValidation
from txrdma.btl.wire import ACK, BTLSegment, CHUNK, encodeHead, FRAG, SEQUENCE_MASK
from txrdma.iba.types import QPN
from txrdma.kit.logs import RateLimitedLogger
from txrdma.test.support.btl.hosts import HostsCase, ORDERED, TAG, TagRecorder
from txrdma.test.unit.btl import test_receivebuffers
from txrdma.testing.protocols import Recorders
from txrdma.testing.smc.hosts import connectedSockets, Host, MemorySocket, MemoryTCP


class Pushing(TagRecorder):
    """A server that sends many bytes as soon as it is connected."""

    def connectionMade(self) -> None:
        super().connectionMade()
        for _each in range(100):
            self.transport.sendMessage(bytes(10_000))


class EarlyTests(HostsCase):
    """Early data, before the connection is established, is bounded in bytes."""

    def setUp(self) -> None:
        super().setUp()
        self.patch(PeerConnection, "_echoed", lambda *_arguments: None)  # a peer's address is not proven
        self.openings = self.open(TagRecorder(), TagRecorder())
        self.failures: list[Failure] = []
        for opening in self.openings:
            opening.answer.addErrback(self.failures.append)
        self.wait(lambda: all(map(self.hasReceived, self.openings)))
        client, self.server = (each.lifeline for each in self.openings)
        client.module.core.validate(client.peer)
        self.client = client

    def hasReceived(self, opening: PeerOpening) -> bool:
        """Return whether an end has received probes."""
        validation = opening.lifeline._validation
        return validation is not None and validation._echoes > 0

    def early(self) -> int:
        """Return the number of early bytes that the server has."""
        assembly = self.server.module.core._budget.used + self.server.module.core._budget.reserved
        return assembly + sum(len(data) for _tag, data in self.server._early)

    def test_messages(self) -> None:
        """Messages beyond the limit are rejected, including a long one."""
        for length in (900, 100_000, 60 << 20):
            for _each in range(20):
                self.client.module.core.send(self.client.peer, TAG, bytes(length))
            self.client.module.turnLater()
            self.pause(1.0)
            self.assertLessEqual(self.early(), MOST_EARLY_BYTES)
        self.assertGreater(self.early(), 100_000)
        self.assertGreater(self.server.module.core.counters.noMemoryRecvs, 0)

    def test_number(self) -> None:
        """A peer that sends more than L{MOST_EARLY} messages, however short, is not connected."""
        for _each in range(MOST_EARLY + 100):
            self.client.module.core.send(self.client.peer, TAG, b"x")
        self.client.module.turnLater()
        self.wait(lambda: bool(self.failures))
        self.assertIn("messages before its probes arrived", self.failures[0].getErrorMessage())
        self.assertIs(self.server.user, None)

    def test_later(self) -> None:
        """Rejected messages arrive when the connection is established."""
        data = Random(1).randbytes(2 * MOST_EARLY_BYTES)
        self.client.module.core.send(self.client.peer, TAG, data)
        self.client.module.turnLater()
        self.pause(0.1)
        self.assertEqual(self.early(), 0)
        assert self.server._validation is not None
        for path in self.server._validation._paths:
            path.missing.clear()
        self.server._maybeEstablished()
        user: Any = self.server.user
        self.wait(lambda: user.protocol.tagged == [(TAG, data)])


class OneHostEarlyTests(test_receivebuffers.OneHostCase):
    """Fragments in shared memory after a gap."""

    def test_gap(self) -> None:
        """Bytes that wait after a gap are bounded, and all arrive when it is filled."""
        if not (ordering.__file__ or "").endswith(".py"):
            raise SkipTest("compiled classes can't be patched")
        self.patch(ordering, "MOST_HELD", 1 << 20)
        client, server = self.connected()
        self.outcome(client.transport.send(TAG, bytes(1 << 19)))
        order = server.transport._peer.order
        assert isinstance(order, ordering.Ordering)
        most, held = 0, order.queue

        def queue(self: ordering.Ordering, *arguments: Any) -> None:
            nonlocal most
            held(*arguments)
            most = max(most, self._bytes)

        self.patch(ordering.Ordering, "queue", queue)
        output = [bytes([number]) * (300 << 10) for number in range(20)]
        self.world.network.drop(lambda packet: True, 1)
        for data in output:
            client.transport.post(ORDERED, data)
        self.wait(lambda: len(server.tagged) == 21)
        self.assertEqual([data for _tag, data in server.tagged[1:]], output)
        self.assertLessEqual(most, 1 << 20)
        self.assertGreater(most, 0)


class SilentTests(HostsCase):
    def client(
        self, accepting: connections._ListenerClients, protocol: Any, host: str, port: int
    ) -> MemoryTCP:
        """Connect a client from this host's address."""
        ends = connectedSockets(self.world, Random(2), self.hosts[0], self.hosts[1], port, 50e-6)
        accepted = accepting.buildProtocol(IPv4Address("TCP", host, port))
        assert accepted is not None
        MemoryTCP(ends[1], accepted).begin()
        client = MemoryTCP(ends[0], protocol)
        client.begin()
        return client

    def test_others(self) -> None:
        """Clients without a whole introduction occupy no exchange and are closed, while others connect."""
        self.patch(connections, "MOST_OPENING", 2)
        server = Recorders(TagRecorder)
        accepting = connections._ListenerClients(self.hosts[1], self.hosts[1].device, server)
        silent = [AccumulatingProtocol() for _each in range(20)]
        for number, protocol in enumerate(silent):
            client = self.client(accepting, protocol, "192.0.2.66", 40_000 + number)
            client.write(bytes(INTRODUCTION_LENGTH - 1) if number % 2 else b"")
        opening = PeerOpening(self.hosts[0], self.hosts[0].device, Recorders(TagRecorder), True)
        self.client(accepting, opening.lifeline, "192.0.2.1", 41_000)
        self.outcome(opening.answer, connections.INTRODUCTION_SECONDS / 2)
        self.pause(connections.INTRODUCTION_SECONDS + 0.2)
        self.assertTrue(all(each.closed for each in silent))
        self.assertEqual((len(accepting.unintroduced), accepting._clientsOf), (0, {}))

    def test_exception(self) -> None:
        """A client whose exchange cannot begin is closed, and does not occupy it; others connect."""
        accepting = connections._ListenerClients(self.hosts[1], self.hosts[1].device, Recorders(TagRecorder))
        introduction = self.introduction(self.hosts[0]).encode()
        for number, (owner, name) in enumerate(
            ((PeerOpening, "__init__"), (PeerConnection, "connectionMade"))
        ):
            client = self.client(accepting, end := AccumulatingProtocol(), "192.0.2.66", 40_000 + number)
            client.write(introduction)
            with patch.object(owner, name, side_effect=ZeroDivisionError("a test's")):
                self.wait(lambda end=end: end.closed)  # type: ignore[misc]  # a lambda
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
            self.assertEqual((accepting._exchanges, accepting._exchangesOf), (0, {}))
        opening = PeerOpening(self.hosts[0], self.hosts[0].device, Recorders(TagRecorder), True)
        self.client(accepting, opening.lifeline, "192.0.2.1", 41_000)
        self.outcome(opening.answer)

    def test_earlyBytes(self) -> None:
        """A client that sends much before its exchange begins is closed."""
        self.patch(connections, "MOST_OPENING", 0)
        accepting = connections._ListenerClients(self.hosts[1], self.hosts[1].device, Recorders(TagRecorder))
        client = self.client(accepting, end := AccumulatingProtocol(), "192.0.2.66", 40_000)
        client.write(self.introduction(self.hosts[0]).encode())
        self.pause(0.1)
        self.assertEqual((len(accepting.queued), end.closed), (1, 0))
        client.write(bytes(connections._EARLY))
        self.pause(0.1)
        self.assertEqual((len(accepting.queued), end.closed), (0, 1))

    def test_busy(self) -> None:
        """An introduction that arrived while the reactor was busy is read before the client's timeout."""
        clock = Clock()
        accepting = connections._ListenerClients(clock, self.hosts[1].device, Recorders(TagRecorder))
        reports: list[object] = []
        self.patch(accepting, "introduced", reports.append)  # without an exchange
        waiting = accepting.buildProtocol(IPv4Address("TCP", "192.0.2.66", 40_000))
        assert waiting is not None
        transport = StringTransport()
        waiting.makeConnection(transport)
        clock.advance(connections.INTRODUCTION_SECONDS)
        waiting.dataReceived(bytes(INTRODUCTION_LENGTH))
        clock.advance(1)
        self.assertEqual((reports, transport.disconnected), ([waiting], False))

    def test_log(self) -> None:
        """Failed exchanges of one address are logged once a minute, like missing introductions."""
        self.patch(connections, "_rateLimited", RateLimitedLogger(connections._log))
        accepting = connections._ListenerClients(self.hosts[1], self.hosts[1].device, Recorders(TagRecorder))
        with capturedLogs() as events:
            for number in range(20):
                client = self.client(accepting, AccumulatingProtocol(), "192.0.2.66", 40_000 + number)
                client.write(bytes(INTRODUCTION_LENGTH))
            self.client(accepting, AccumulatingProtocol(), "192.0.2.67", 41_000)
            self.client(accepting, AccumulatingProtocol(), "192.0.2.67", 41_001)
            self.pause(connections.INTRODUCTION_SECONDS + 0.2)
        logged = [str(each["log_format"])[:21] for each in events if each["log_level"] is LogLevel.warn]
        self.assertEqual(logged, ["Rejecting a connectio", "Closing a connection "])

    def test_earlierVersion(self) -> None:
        """A client with a shorter introduction of an earlier version gets the reason immediately."""
        accepting = connections._ListenerClients(self.hosts[1], self.hosts[1].device, Recorders(TagRecorder))
        client = self.client(accepting, answer := AccumulatingProtocol(), "192.0.2.66", 40_000)
        client.write(self.introduction(self.hosts[0]).replace(version=5).encode()[:46])
        self.pause(0.1)
        self.assertIn(b"the peer speaks version 5, not 7", answer.data)

    def test_manyInvalid(self) -> None:
        """Clients whose queued introductions are all invalid are rejected, however many there are."""
        accepting = connections._ListenerClients(self.hosts[1], self.hosts[1].device, Recorders(TagRecorder))
        introduction = self.introduction(self.hosts[0])
        first: list[MemoryTCP] = []
        for number in range(connections.MOST_OPENING_PER_ADDRESS):
            first.append(self.client(accepting, AccumulatingProtocol(), "192.0.2.66", 40_000 + number))
            first[-1].write(introduction.encode())
        self.pause(0.01)
        others = [AccumulatingProtocol() for _each in range(1000)]
        for number, protocol in enumerate(others):
            client = self.client(accepting, protocol, "192.0.2.66", 41_000 + number)
            client.write(introduction.replace(version=5).encode())
        self.pause(0.1)
        self.assertEqual(len(accepting.queued), 1000)
        with capturedLogs() as events:
            first[0].abortConnection()
            self.pause(1.0)
        failures = [each for each in events if each["log_level"] is LogLevel.critical]
        self.assertEqual(failures, [])
        self.assertEqual((len(accepting.queued), accepting._exchanges), (0, len(first) - 1))
        self.assertEqual({bytes(each.data) for each in others if b"version 5" not in each.data}, set())

    def test_oneAddress(self) -> None:
        """Clients of one address cannot use all exchanges; those beyond a number are closed."""
        self.patch(connections, "MOST_OPENING_PER_ADDRESS", 2)
        self.patch(connections, "MOST_WAITING_PER_ADDRESS", 5)
        accepting = connections._ListenerClients(self.hosts[1], self.hosts[1].device, Recorders(TagRecorder))
        introduction = self.introduction(self.hosts[0])
        for number in range(7):
            client = self.client(accepting, AccumulatingProtocol(), "192.0.2.66", 40_000 + number)
            client.write(introduction.encode())
            self.pause(0.001)
        refused = StringTransport()
        accepting.buildProtocol(IPv4Address("TCP", "192.0.2.66", 40_008)).makeConnection(refused)
        self.assertTrue(refused.disconnected)
        self.assertEqual((accepting._exchanges, len(accepting.queued)), (2, 5))
        opening = PeerOpening(self.hosts[0], self.hosts[0].device, Recorders(TagRecorder), True)
        self.client(accepting, opening.lifeline, "192.0.2.1", 41_000)
        self.outcome(opening.answer, 1.0)


class KeepAliveTests(HostsCase):
    """Keepalive of the TCP connection of two peers."""

    def test_options(self) -> None:
        """Probes prevent middleboxes from dropping the connection, and fail later than the module does."""
        options: dict[object, Any] = {}
        self.patch(
            MemorySocket, "setsockopt", lambda _each, _level, name, value: options.update({name: value})
        )
        self.connected()
        wait = options[socket.TCP_KEEPIDLE]
        self.assertLessEqual(wait, 60)
        self.assertGreater(wait + options[socket.TCP_KEEPINTVL] * options[socket.TCP_KEEPCNT], GIVE_UP)


class BesideTests(SynchronousTestCase):
    """The reserve of messages that all peers share in addition to their own."""

    def test_bound(self) -> None:
        """All peers together have a limited reserve, which is free again at their end."""
        budget = Budget(most=LONGEST)
        peers = [Assembly(budget) for _each in range(10)]
        budget.used = budget.most

        def chunk(fragment: int) -> BTLSegment:
            return BTLSegment(CHUNK, 1, fragment=fragment, total=LONGEST, payload=memoryview(b"x"))

        taken = []
        for peer in peers:
            if peer.check(chunk(1), True) == TAKEN:
                peer.take(chunk(1), 0.0)
                taken.append(peer)
        self.assertEqual((len(taken), budget.reserved), (RESERVE_BYTES // LONGEST, RESERVE_BYTES))
        taken[0].drop()
        self.assertEqual(peers[-1].check(chunk(1), True), TAKEN)

    def test_share(self) -> None:
        """One peer can use its share of the reserve and one further message; the others have the rest."""
        budget = Budget()
        greedy, modest = Assembly(budget), Assembly(budget)
        taken = 0
        for fragment in range(1, 9):
            chunk = BTLSegment(CHUNK, 1, fragment=fragment, total=LONGEST, payload=memoryview(b"x"))
            if greedy.check(chunk, True) == TAKEN:
                greedy.take(chunk, 0.0)
                taken += 1
        self.assertEqual((taken, budget.used), (MOST_OF_PEER // LONGEST + 1, MOST_OF_PEER))
        self.assertEqual(modest.check(chunk, False), TAKEN)
        greedy.drop()
        self.assertEqual((budget.used, budget.reserved), (0, 0))


class AddressCase(HostsCase):
    """Hosts of a client, a server and a victim, whose packets are counted."""

    def setUp(self) -> None:
        super().setUp()
        self.victim = self.host("10.0.1.3")
        self.packets: list[int] = []  # lengths on the wire of packets to the victim
        carry = self.world.network.carry

        def note(data: Any, segment: int, source: Any, destination: Any) -> Any:
            if destination[0] in self.victim.addresses:
                self.packets += [len(data[at : at + segment]) + 28 for at in range(0, len(data), segment)]
            return carry(data, segment, source, destination)

        self.patch(self.world.network, "carry", note)


class AddressTests(AddressCase):
    """A client that names another address causes only a few small packets to that address."""

    def begin(self) -> tuple[MemoryTCP, Introduction, PeerOpening]:
        """Introduce the victim to a server that pushes; return the server's introduction."""
        ends = connectedSockets(self.world, Random(2), self.hosts[0], self.hosts[1], 40001, 50e-6)
        opening = PeerOpening(self.hosts[1], self.hosts[1].device, Recorders(Pushing), False)
        opening.answer.addErrback(lambda failure: None)
        MemoryTCP(ends[1], opening.lifeline).begin()
        attacker = MemoryTCP(ends[0], reports := AccumulatingProtocol())
        attacker.begin()
        self.output = self.introduction(self.victim).encode()
        attacker.write(self.output)
        self.wait(lambda: len(reports.data) >= len(self.output))
        return attacker, Introduction.decode(reports.data), opening

    def acknowledge(self, attacker: MemoryTCP, victimIntroduction: Introduction, count: int) -> None:
        """Acknowledge this many segments in FAREWELL frames."""
        for number in range(count):
            sequence = (victimIntroduction.sequence + number) & SEQUENCE_MASK
            content = encodeHead(ACK, victimIntroduction.name, 0, sequence, 0, 0)
            attacker.write(frame(FrameKind.FAREWELL, content))

    def test_farewells(self) -> None:
        """Acknowledgements in FAREWELL frames prove no address, and neither do messages in them."""
        attacker, victimIntroduction, opening = self.begin()
        self.acknowledge(attacker, victimIntroduction, 50)
        message = encodeHead(FRAG, victimIntroduction.name, 0, None, TAG, 0)
        attacker.write(frame(FrameKind.FAREWELL, message) + frame(FrameKind.READY))
        self.pause(PROBE_SECONDS + 1.0)
        self.assertLessEqual(sum(self.packets), AMPLIFICATION * (120 + len(self.output)))
        self.assertGreater(len(self.packets), 0)
        self.assertLess(max(self.packets), 150)
        self.assertIs(opening.lifeline.user, None)

    def test_queuePair(self) -> None:
        """Nothing is connected or written by RDMA to an address that is not proved, nor memory allocated."""
        attacker, _victimIntroduction, opening = self.begin()
        buffer = ReceiveBufferFrame(rkey=1, length=1 << 20, address=1 << 20)
        attacker.write(frame(FrameKind.QUEUE_PAIR, QueuePairPart(qpn=QPN(7)).encode()))
        attacker.write(frame(FrameKind.RECEIVE_BUFFER, buffer.encode()))
        self.pause(1.0)
        self.assertEqual((self.reliable(1), opening.lifeline._receiveBuffers), ([], None))

    def test_wrongNonce(self) -> None:
        attacker, victimIntroduction, opening = self.begin()
        for nonce in (b"", bytes(8), bytes(9), b"\xff" * 8):
            attacker.write(frame(FrameKind.ECHO, nonce))
        self.acknowledge(attacker, victimIntroduction, 50)
        self.pause(PROBE_SECONDS + 1.0)
        self.assertLessEqual(sum(self.packets), 3 * (120 + len(self.output)))
        self.assertIs(opening.lifeline.user, None)


class PathAddressTests(AddressCase):
    """A client that proves its own address, and names another one for a second path."""

    def setUp(self) -> None:
        super().setUp()
        self.patch(probes, "_prefixLength", lambda gid: 24)  # else from this host

    def host(self, address: str) -> Host:
        """Open a device with two ports."""
        host = super().host(address)
        host.device.close()
        host.addresses = address, address.replace("10.0.1.", "10.0.2.")
        host.device = self.world.network.device(*host.addresses)
        return host

    def devices(self, host: Host) -> Any:
        return [host.device] * 2

    def refused(self, *lies: int) -> PathValidation:
        """Connect a client that names the victim for these paths, and return the server's validation."""
        victims = self.victim.device.gids(1)[0], self.victim.device.gids(2)[0]
        openModule = PeerConnection._openModule

        def lie(lifeline: PeerConnection, host: str) -> None:
            openModule(lifeline, host)
            for path in lies if lifeline.isClient else ():
                lifeline._local[path] = lifeline._local[path].replace(gid=victims[path])

        self.patch(PeerConnection, "_openModule", lie)
        client, server = self.open(TagRecorder(), Pushing())
        for each in (client, server):
            each.answer.addErrback(lambda failure: None)
        self.pause(PROBE_SECONDS + 1.0)
        self.assertIs(server.lifeline.user, None)
        self.assertGreater(len(self.packets), 0)
        self.assertLess(max(self.packets), 150)
        self.assertLessEqual(sum(self.packets), 3 * (120 + server.lifeline._receivedBytes))
        assert server.lifeline._validation is not None
        return server.lifeline._validation

    def test_secondPath(self) -> None:
        """The address of one path does not prove that of another, which gets few small packets."""
        one, other = self.refused(1)._paths
        self.assertEqual((len(one.missing), len(other.missing)), (0, 2))

    def test_allPaths(self) -> None:
        """All paths together get few packets."""
        self.refused(0, 1)
