"""
librdmacm's C{udaddy}, C{mckey} and C{cmtime} with txrdma's connection manager: datagram services, groups, and
many connections.
"""

from __future__ import annotations

from typing import Any

from txrdma.cm.connections.datagramqueues import QKEY
from txrdma.cm.connections.datagrams import (
    DatagramClientEndpoint,
    DatagramGroupEndpoint,
    DatagramPeer,
    DatagramProtocol,
    DatagramServerEndpoint,
)
from txrdma.cm.terms import Terms
from txrdma.messages.protocol import MessageFactory
from txrdma.test.system.kernel import Box, Witness
from txrdma.test.system.kernel.cmworld import CMTestCase, counted, Meeting, Program, since
from txrdma.test.system.kernel.world import HERE_LOCAL, THERE_LOCAL

BOXES = (Box(rxe=False, timeout=420),)

COUNT = 8


class Answering(DatagramProtocol):
    """A service that returns each datagram, and records it."""

    def __init__(self) -> None:
        self.received: list[bytes] = []

    def datagramReceived(self, data: bytes, peer: DatagramPeer) -> None:
        self.received.append(data)
        self.transport.write(data, peer)


class Recording(DatagramProtocol):
    """Records datagrams and their senders."""

    def __init__(self) -> None:
        self.received: list[tuple[bytes, DatagramPeer]] = []

    def datagramReceived(self, data: bytes, peer: DatagramPeer) -> None:
        self.received.append((data, peer))


class DatagramTests(CMTestCase):
    """udaddy: service ID resolution, and datagrams."""

    witness = Witness("sidr: over the software device", "udaddy on rxe", "SIDR both ways, datagrams")
    programs = ("udaddy",)
    port, messages, size = 7174, 10, 100

    def test_theyAsk(self) -> None:
        """udaddy finds txrdma's service, sends datagrams to it, and receives as many."""
        service = Answering()
        endpoint = DatagramServerEndpoint(self.reactor, self.port, self.soft)
        self.listening(endpoint, MessageFactory(lambda: service))
        before = counted()
        shape = ("-c", str(COUNT), "-C", str(self.messages), "-S", str(self.size))
        self.succeeded(self.start("udaddy", "-s", self.there, "-b", self.here, *shape))
        self.assertEqual([len(each) for each in service.received], [self.size] * self.messages * COUNT)
        self.assertEqual(since(before), {"tx sidr_req": COUNT, "rx sidr_rep": COUNT})

    def test_weAsk(self) -> None:
        """txrdma's clients find the service of udaddy, whose queue pairs have RDMA CM's Q_Key."""
        server = self.start("udaddy", "-b", self.here, "-c", str(COUNT), "-C", "0")
        self.expectOutput(server, "starting server")
        self.runFor(0.5)
        before = counted()
        endpoint = DatagramClientEndpoint(self.reactor, self.here, self.port, self.soft)
        clients = [self.result(endpoint.connect(MessageFactory(Answering))) for _ in range(COUNT)]
        peers = [client.transport.peer for client in clients]
        for client in clients:
            client.transport.loseConnection()
        self.assertEqual(len({peer.qpn for peer in peers}), COUNT)
        self.assertEqual({peer.qkey for peer in peers}, {QKEY})
        self.assertEqual(since(before), {"rx sidr_req": COUNT, "tx sidr_rep": COUNT})
        self.succeeded(server)


class DatagramLinkLocalTests(DatagramTests):
    """Tests of udaddy between link-local addresses."""

    witness = Witness("sidr: over the software device", "udaddy on rxe", "the same, link-local addresses")
    here, there = HERE_LOCAL, THERE_LOCAL


class GroupTests(CMTestCase):
    """mckey: multicast groups in both roles."""

    witness = Witness("software device", "mckey on rxe", "multicast both ways")
    programs = ("mckey",)
    group, messages, size = "239.3.2.1", 10, 100

    def member(self) -> Recording:
        """Join the group in the other namespace."""
        endpoint = DatagramGroupEndpoint(self.reactor, self.group, self.soft)
        with self.world.far():  # where the group's socket is opened
            made: Recording = self.result(endpoint.connect(MessageFactory(Recording)))
        self.addCleanup(made.transport.loseConnection)
        return made

    def mckey(self, *words: str) -> Program:
        shape = ("-C", str(self.messages), "-S", str(self.size))
        return self.start("mckey", "-m", self.group, "-b", self.here, *shape, *words)

    def test_theySend(self) -> None:
        """mckey's datagrams arrive: at least one, because it destroys its queue pair without waiting."""
        member = self.member()
        self.succeeded(self.mckey("-s"), 30.0)
        self.runUntil(lambda: bool(member.received))
        self.assertEqual({len(data) for data, _peer in member.received}, {self.size})
        self.assertEqual({peer.gid.ip for _data, peer in member.received}, {self.here})

    def test_weSend(self) -> None:
        """mckey receives txrdma's datagrams, and ends when all have arrived."""
        receiver = self.mckey()
        self.expectOutput(receiver, "receiving data transfers")
        member = self.member()
        for _each in range(self.messages):
            member.transport.write(bytes(self.size))
        self.succeeded(receiver, 30.0)


class StepTests(CMTestCase):
    """cmtime: each step for all connections before the next one."""

    witness = Witness("rdma: over the software device", "cmtime on rxe", "many at once, both roles")
    programs = ("cmtime",)
    port = 7471
    terms = Terms(reads=1)

    def test_theyConnect(self) -> None:
        """cmtime connects to txrdma's server, and disconnects."""
        self.serve(self.port, Meeting, self.terms)
        before = counted()
        self.succeeded(self.start("cmtime", "-s", self.there, "-b", self.here, "-c", str(COUNT)), 12.0)
        self.runUntil(lambda: len(self.made) == COUNT and all(each.lost is not None for each in self.made))
        sent = since(before)
        self.assertEqual([sent.get(kind) for kind in ("tx req", "rx rep", "tx rtu")], [COUNT] * 3)

    def test_weConnect(self) -> None:
        """txrdma's clients connect to cmtime, and disconnect."""
        self.start("cmtime", "-b", self.here)
        self.runFor(2.0)
        before = counted()
        clients: list[Any] = [self.result(self.connect(self.port, self.terms)) for _ in range(COUNT)]
        for client in clients:
            client.transport.loseConnection()
        self.runUntil(lambda: all(client.lost is not None for client in clients))
        sent = since(before)
        self.assertEqual([sent.get(kind) for kind in ("rx req", "tx rep", "rx rtu", "rx dreq")], [COUNT] * 4)
