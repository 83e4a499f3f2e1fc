"""Proofs of ranks: members, members with another key, and unknown peers."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from twisted.internet.address import IPv4Address
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.task import Clock
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import Refused
from txrdma.kit.delayedcalls import READ_SECONDS
from txrdma.kit.proofs import _ServerFactory, ClientProver, MOST_UNPROVED, PROOF_SECONDS, Prover, ServerProver

ADDRESS = IPv4Address("TCP", "192.0.2.1", 4000)
KEYS = [[bytes((*sorted((here, there)), 7)) for there in range(4)] for here in range(4)]


class Talker(Protocol):
    """Sends a greeting when it is connected, and records received data."""

    def connectionMade(self) -> None:
        self.received, self.hasEnded = b"", False
        transport: Any = self.transport
        transport.write(b"hello from " + type(self).__name__.encode())

    def dataReceived(self, data: bytes) -> None:
        self.received += data

    def connectionLost(self, reason: object = None) -> None:
        self.hasEnded = True


class ProofTests(SynchronousTestCase):
    """A client and a server in memory."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.factory = Factory.forProtocol(Talker)
        self.admitted: list[int] = []

    def server(self, rank: int = 0) -> ServerProver:
        return ServerProver(self.clock, self.factory, ADDRESS, rank, KEYS[rank], self.admit)

    def client(self, rank: int, server: int, key: bytes) -> ClientProver:
        return ClientProver(self.clock, self.factory, ADDRESS, rank, server, key)

    def connected(self, end: Prover) -> StringTransport:
        """Connect an end to a transport without a peer, and return the transport."""
        transport = StringTransport()
        end.makeConnection(transport)
        return transport

    def admit(self, rank: int, address: object) -> None:
        if rank in self.admitted:
            raise Refused("twice")
        self.admitted.append(rank)

    def pump(self, client: Prover, server: Prover, size: int = 1000) -> None:
        """Connect two ends, and exchange their bytes until both are silent or closed."""
        pairs = [(client, server), (server, client)]
        for each in (client, server):
            each.makeConnection(StringTransport())
        while any(self.carry(here, there, size) for here, there in pairs):
            pass

    def carry(self, here: Prover, there: Prover, size: int) -> bool:
        source: Any = here.transport
        target: Any = there.transport
        data = source.value()
        source.clear()
        for begin in range(0, len(data), size):
            if not target.disconnected:
                there.dataReceived(data[begin : begin + size])
        if target.disconnected and not source.disconnected:
            source.disconnected = True
            here.connectionLost()
        return bool(data)

    def assertRefused(self, client: Prover, server: Prover, text: str) -> None:
        """Assert that both ends refuse the connection, and that no protocol was created."""
        self.pump(client, server)
        self.assertRegex(str(self.failureResultOf(server.proved, Refused).value), text)
        self.failureResultOf(client.proved, Refused)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_proved(self) -> None:
        """Ends that share a key are connected, even if bytes arrive in pieces."""
        for size in (1, 7, 1000):
            self.admitted.clear()
            client, server = self.client(2, 0, KEYS[0][2]), self.server()
            self.pump(client, server, size)
            for each in (client, server):
                self.assertEqual(self.successResultOf(each.proved).received, b"hello from Talker")
            self.assertEqual(self.admitted, [2])
            client.connectionLost()
            self.assertTrue(client._inner.hasEnded)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_wrongRank(self) -> None:
        """A member that claims the rank of another member is refused, because it lacks that member's key."""
        for key in KEYS[1]:
            if key != KEYS[0][2]:
                self.assertRefused(self.client(2, 0, key), self.server(), "cannot prove that its rank is 2")
        self.assertEqual(self.admitted, [])

    def test_lyingClient(self) -> None:
        """A client that cannot prove its rank is refused, and receives no proof of the server's rank."""
        server = self.server()
        transport = self.connected(server)
        server.dataReceived(self.client(1, 0, b"")._hello)
        transport.clear()
        server.dataReceived(bytes(32))
        self.assertEqual(transport.value(), b"")
        error = self.failureResultOf(server.proved, Refused)
        self.assertRegex(str(error.value), "cannot prove that its rank is 1")

    def test_repeated(self) -> None:
        """Replayed bytes of another connection are no proof."""
        client, server = self.client(2, 0, KEYS[0][2]), self.server()
        here, there = self.connected(client), self.connected(server)
        recorded = here.value()
        here.clear()
        server.dataReceived(recorded)
        client.dataReceived(there.value())
        again = self.server()
        self.connected(again)
        again.dataReceived(recorded + here.value()[:32])
        self.failureResultOf(again.proved, Refused)

    def test_strangers(self) -> None:
        """Invalid bytes and impossible ranks are refused immediately."""
        self.assertRefused(self.client(1, 2, KEYS[1][2]), self.server(), "not a member that connects")
        self.assertRefused(self.client(0, 0, KEYS[0][0]), self.server(), "not a member that connects")
        self.assertRefused(self.client(9, 0, KEYS[0][0]), self.server(), "not a member that connects")
        server = self.server()
        self.connected(server)
        server.dataReceived(b"GET /index.html HTTP/1.1\r\n\r\n")
        self.failureResultOf(server.proved, Refused)

    def test_lyingServer(self) -> None:
        """A server that does not have the key is refused."""
        client = self.client(2, 0, KEYS[0][2])
        self.connected(client)
        client.dataReceived(bytes(48))
        error = self.failureResultOf(client.proved, Refused)
        self.assertRegex(str(error.value), "cannot prove that its rank is 0")

    def test_twice(self) -> None:
        """A member that the server does not expect is refused after its proof, and is notified."""
        self.pump(self.client(2, 0, KEYS[0][2]), self.server())
        client, server = self.client(2, 0, KEYS[0][2]), self.server()
        self.pump(client, server)
        self.assertRegex(str(self.failureResultOf(server.proved, Refused).value), "twice")
        self.failureResultOf(client.proved, Refused)

    def test_late(self) -> None:
        """An end that sends nothing is disconnected after a timeout."""
        for each in (self.server(), self.client(2, 0, KEYS[0][2])):
            transport = self.connected(each)
            self.clock.pump([PROOF_SECONDS, READ_SECONDS])
            self.assertRegex(str(self.failureResultOf(each.proved, Refused).value), "in time")
            self.assertTrue(transport.disconnected)

    def test_stopped(self) -> None:
        """An end whose process is stopped for longer than the timeout reads what has arrived meanwhile."""
        client, server = self.client(2, 0, KEYS[0][2]), self.server()
        for each in (client, server):
            self.connected(each)
        for here, there in ((client, server), (server, client), (client, server)):
            self.carry(here, there, 1000)
        self.successResultOf(server.proved)
        self.clock.callLater(PROOF_SECONDS + 1.0, self.carry, server, client, 1000)
        self.clock.advance(PROOF_SECONDS + 1.0)
        self.successResultOf(client.proved)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_manyUnproved(self) -> None:
        """Beyond a limit the client of a host that has not proved its rank for the longest time is closed."""
        factory = _ServerFactory(self.clock, self.factory, (0, KEYS[0], self.admit))
        transports = [self.connected(factory.buildProtocol(ADDRESS)) for _ in range(MOST_UNPROVED)]
        self.pump(self.client(2, 0, KEYS[0][2]), factory.buildProtocol(ADDRESS))
        self.assertEqual(self.admitted, [2])
        self.assertEqual([each.disconnected for each in transports], [True] + [False] * (MOST_UNPROVED - 1))
        self.connected(factory.buildProtocol(ADDRESS))
        self.assertFalse(transports[1].disconnected)

    def test_manyUnprovedOfOneHost(self) -> None:
        """A host with many such clients does not close those of others, even if these are older."""
        factory = _ServerFactory(self.clock, self.factory, (0, KEYS[0], self.admit))
        slow = self.connected(factory.buildProtocol(IPv4Address("TCP", "192.0.2.2", 4000)))
        for _ in range(2 * MOST_UNPROVED):
            self.connected(factory.buildProtocol(ADDRESS))
        self.assertFalse(slow.disconnected)

    def test_failedProtocol(self) -> None:
        """An attempt ends, and the server forgets the client, if its protocol raises when it is connected."""
        for each in (self.server(), self.client(2, 0, KEYS[0][2])):
            inner = Mock(makeConnection=Mock(side_effect=KeyError))
            each._factory = Mock(buildProtocol=Mock(return_value=inner))
            self.connected(each)
            self.assertRaises(KeyError, each._succeed)
            each.connectionLost()
            self.failureResultOf(each.proved, Refused)

    def test_cancel(self) -> None:
        client = self.client(2, 0, KEYS[0][2])
        transport = self.connected(client)
        client.proved.cancel()
        self.assertTrue(transport.disconnected)
        client.connectionLost()
        self.failureResultOf(client.proved)
        self.assertEqual(self.clock.getDelayedCalls(), [])
