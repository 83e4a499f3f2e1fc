"""
librdmacm's programs with txrdma's connection manager: rejects, many connections, killed processes, failed
interfaces.
"""

from __future__ import annotations

from dataclasses import replace
from typing import Any

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.python.failure import Failure

from txrdma.cm.connections.endpoints import USUAL
from txrdma.cm.errors import PeerSilent, Rejected, Rejection
from txrdma.cm.layouts.messages import RejectReason
from txrdma.cm.rping import PingClient, PingServer, TERMS
from txrdma.error import DeviceUnavailable
from txrdma.test.system.kernel import Box, record, Witness
from txrdma.test.system.kernel.cmworld import CMTestCase, counted, Meeting, Program, since
from txrdma.test.system.kernel.world import HERE6, THERE6

BOXES = (Box(rxe=False, timeout=420),)

RPING_PORT = 7174
PORT = 7471


class Pinged(PingServer):
    """A ping server that reports connections and how they end."""

    def __init__(self) -> None:
        super().__init__(lambda ping: None)
        self.isMade = False
        self.lost: Failure | None = None
        self.ended.addErrback(lambda failure: None)

    def connectionMade(self) -> None:
        self.isMade = True

    def connectionLost(self, reason: Failure) -> None:
        self.lost = reason
        super().connectionLost(reason)


class RpingTestCase(CMTestCase):
    programs: tuple[str, ...] = ("rping",)

    def theirClient(self, *words: str) -> Program:
        """Start C{rping} as a client of txrdma's server."""
        return self.start("rping", "-c", "-a", self.there, "-I", self.here, "-V", "-v", *words)

    def theirServer(self, *words: str) -> Program:
        """Start C{rping} as a server, and wait until it listens."""
        server = self.start("rping", "-s", "-a", self.here, "-d", *words)
        self.expectOutput(server, "rdma_listen")
        return server

    def kill(self, program: Program) -> None:
        program.process.kill()
        program.process.wait()


class RejectTests(RpingTestCase):
    """Rejects, as the other end reports them."""

    witness = Witness("rdma: over the software device", "rping, rstream on rxe", "REJ 8 and 28, both ways")
    programs = ("rping", "rstream")

    def test_weReject(self) -> None:
        """rping reports txrdma's consumer reject with its private data."""

        def refuse() -> Any:
            raise Rejection(RejectReason.CONSUMER_REJECT, b"not today")

        self.serve(RPING_PORT, refuse)
        before = counted()
        _, output = self.ends(self.theirClient("-C", "1"))
        self.assertIn("RDMA_CM_EVENT_REJECTED, error 28", output)
        self.assertEqual(since(before), {"tx req": 1, "rx rej": 1})

    def test_nobodyListensHere(self) -> None:
        """rping reports reason 8 for a port without listener."""
        self.serve(RPING_PORT)
        _, output = self.ends(self.theirClient("-C", "1", "-p", "9"))
        self.assertIn("RDMA_CM_EVENT_REJECTED, error 8", output)

    def test_theyReject(self) -> None:
        """txrdma's client reports rstream's consumer reject of one that is no rsocket; rstream continues."""
        server = self.start("rstream", "-b", self.here, "-S", "64", "-C", "1", "-I", "1")
        before = counted()
        refused = self.refused()
        while refused is RejectReason.INVALID_SERVICE_ID:  # it starts slowly
            self.runFor(0.2)
            refused = self.refused()
        self.assertIs(refused, RejectReason.CONSUMER_REJECT)
        self.assertEqual(since(before)["tx rej"], since(before)["rx req"])
        self.assertFalse(server.isOver, server.output)

    def refused(self) -> Any:
        """Connect to rstream without an rsocket greeting; return the reason of the reject."""
        connecting = self.connect(PORT, privateData=b"\x63 is not a version of rsockets")
        return self.assertRaises(Rejected, self.result, connecting).status


class CrowdTests(RpingTestCase):
    """Many connections at once, and their ends."""

    witness = Witness("rdma: over the software device", "rping on rxe", "many at once; each end disconnects")

    def test_many(self) -> None:
        """Twelve rping clients ping txrdma's server at once, each with its own bytes, and succeed."""
        self.serve(RPING_PORT, Pinged, TERMS)
        before = counted()
        clients = [self.theirClient("-C", "5", "-S", str(64 + 7 * n)) for n in range(12)]
        for client in clients:
            status, output = self.ends(client)
            self.assertEqual((status, output.count("ping data: rdma-ping-")), (0, 5), output)
        self.runUntil(lambda: all(each.lost is not None for each in self.made))
        self.runUntil(lambda: since(before).get("rx drep") == len(clients))
        self.assertEqual([each.pings for each in self.made], [5] * 12)
        kinds = ("tx req", "rx rep", "tx rtu", "tx dreq", "rx drep")
        self.assertEqual(since(before), dict.fromkeys(kinds, 12))

    def test_weDisconnect(self) -> None:
        """rping reports the end when txrdma's server disconnects, and answers the DREQ."""

        class Brief(Pinged):
            def _write(self, sink: bytes, length: int) -> None:
                super()._write(sink, length)
                if self.pings == 3:
                    self.transport.loseConnection()

        self.serve(RPING_PORT, Brief, TERMS)
        before = counted()
        _, output = self.ends(self.theirClient())
        self.assertIn("DISCONNECT EVENT", output)
        self.runUntil(lambda: self.made[0].lost is not None)
        self.assertIsNotNone(self.made[0].lost.check(ConnectionDone))
        self.assertEqual(since(before), {"tx req": 1, "rx rep": 1, "tx rtu": 1, "rx dreq": 1, "tx drep": 1})

    def test_weDisconnectAsClient(self) -> None:
        """rping's server reports the end when txrdma's client disconnects."""
        server = self.theirServer("-v")
        client = PingClient(4, 64, True, lambda ping: None)
        before = counted()
        self.result(self.connectWith(RPING_PORT, lambda: client, TERMS))
        self.assertEqual(self.result(client.ended), 4)
        status, received = self.ends(server)
        self.assertEqual((status, received.count("server ping data: rdma-ping-")), (0, 4), received)
        self.assertEqual(since(before), {"rx req": 1, "tx rep": 1, "rx rtu": 1, "rx dreq": 1, "tx drep": 1})


class FaultTests(RpingTestCase):
    witness = Witness("rdma: over the software device", "rping on rxe", "killed programs; interfaces down")

    def test_clientKilled(self) -> None:
        """txrdma's server reports the end of a killed client, for which Linux sends the DREQ."""
        self.serve(RPING_PORT, Pinged, TERMS)
        client = self.theirClient()
        self.expectOutput(client, "ping data", 2)
        before = counted()
        self.kill(client)
        self.runUntil(lambda: self.made[0].lost is not None and "rx drep" in since(before))
        self.assertEqual(since(before), {"tx dreq": 1, "rx drep": 1})

    def test_serverKilled(self) -> None:
        """txrdma's client reports the end of a killed server, and then that the port has no listener."""
        server = self.theirServer()
        client = PingClient(0, 64, True, lambda ping: None)
        self.result(self.connectWith(RPING_PORT, lambda: client, TERMS))
        self.runUntil(lambda: client.pings >= 2)
        before = counted()
        self.kill(server)
        self.assertRaises(DeviceUnavailable, self.result, client.ended)
        self.runUntil(lambda: "rx drep" in since(before))
        self.assertEqual(since(before), {"tx dreq": 1, "rx drep": 1})
        refused = self.assertRaises(Rejected, self.result, self.connect(RPING_PORT))
        self.assertIs(refused.status, RejectReason.INVALID_SERVICE_ID)

    def test_weAskWhileDown(self) -> None:
        """txrdma's REQ is repeated while an interface is down, and answered afterwards."""
        server = self.theirServer()
        self.addCleanup(self.world.settle)
        self.addCleanup(self.world.setLink, False, True)
        self.world.setLink(False, False)
        impatient = replace(USUAL, maxCMRetries=1, responseTimeout=16)
        # To another port: Linux may deliver this REQ later, and rping serves the first client only.
        self.assertRaises(PeerSilent, self.result, self.connect(RPING_PORT + 1, impatient))
        client = PingClient(2, 64, True, lambda ping: None)
        connecting = self.connectWith(RPING_PORT, lambda: client, TERMS)
        self.runFor(1.0)
        self.assertFalse(connecting.called)
        self.world.setLink(False, True)
        self.result(connecting, 6.0)
        retried = self.adapter.manager.counters["retried REQ"]
        self.assertEqual(self.result(client.ended), 2)
        self.ends(server)
        self.assertGreaterEqual(retried, 1)

    def test_theyAskWhileDown(self) -> None:
        """rping gets no answer while txrdma's interface is down, and succeeds afterwards."""
        self.serve(RPING_PORT, Pinged, TERMS)
        self.addCleanup(self.world.settle)
        self.addCleanup(self.world.setLink, True, True)
        self.ends(self.theirClient("-C", "1"))
        self.world.setLink(True, False)
        client = self.theirClient("-C", "1")
        self.runFor(2.0)
        self.assertNotIn("ping data", client.output)
        self.assertEqual(len(self.made), 1)
        self.world.setLink(True, True)
        self.world.settle()
        status, output = self.ends(client)
        if "RDMA_CM_EVENT_ADDR_ERROR" in output:  # rping's two seconds for address resolution have expired
            status, output = self.ends(self.theirClient("-C", "1"))
        self.assertEqual((status, output.count("ping data")), (0, 1), output)


class StormTests(RpingTestCase):
    """A wire that duplicates and delays all messages of many connections."""

    witness = Witness("rdma: over the software device", "ucmatose on rxe", "duplicate REQs and REPs by netem")
    programs = ("ucmatose",)
    count = 24
    trouble = ("duplicate", "100%", "delay", "40ms", "30ms")

    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(self.world.mend)

    def test_theyStorm(self) -> None:
        """Each duplicated REQ of rping makes one connection, and txrdma's manager counts the duplicate."""
        self.world.spoil(False, *self.trouble)
        self.serve(PORT, Meeting, USUAL)
        adapter = self.adapter
        client = self.start("ucmatose", "-s", self.there, "-b", self.here, "-c", str(self.count), "-C", "0")
        self.runUntil(lambda: sum(each.isMade for each in self.made) == self.count, 6.0)
        counters = dict(adapter.manager.counters)
        self.assertEqual(len(self.made), self.count)
        self.assertGreaterEqual(counters["duplicate REQ"], self.count // 2)
        record("duplicate REQs of the peer", counters["duplicate REQ"])
        for each in self.made:
            each.transport.loseConnection()
        self.runUntil(lambda: all(each.lost is not None for each in self.made), 6.0)
        self.succeeded(client)

    def test_weStorm(self) -> None:
        """Each duplicated REQ of txrdma makes one connection, and Linux counts the duplicate."""
        server = self.start("ucmatose", "-b", self.here, "-c", str(self.count), "-C", "0")
        self.expectOutput(server, "starting server")
        self.runFor(0.5)
        self.world.spoil(True, *self.trouble)
        before = counted()
        asked = [self.connect(PORT) for _ in range(self.count)]
        for each in asked:
            self.result(each, 6.0)
        doubled = counted()["rx_duplicates req"] - before["rx_duplicates req"]
        self.assertEqual(since(before)["rx req"], self.count)
        self.assertGreaterEqual(doubled, self.count // 2)
        record("duplicate REQs of txrdma", doubled)
        self.runUntil(lambda: all(each.lost is not None for each in self.made), 6.0)
        for each in self.made:
            self.assertIsNotNone(each.lost.check(ConnectionDone, ConnectionLost))
        self.ends(server)


class UcmatoseTests(CMTestCase):
    """librdmacm's ucmatose, in both roles."""

    witness = Witness("rdma: over the software device", "ucmatose on rxe", "both roles, SEND")
    programs = ("ucmatose",)
    connections, messages, size = 8, 10, 1000
    shape = ("-c", str(connections), "-C", str(messages), "-S", str(size))

    def test_ucmatoseServes(self) -> None:
        """ucmatose sends and receives messages on each of txrdma's connections, and disconnects."""
        server = self.start("ucmatose", "-b", self.here, *self.shape)
        self.expectOutput(server, "starting server")
        self.runFor(0.5)
        before = counted()
        asked = [self.connect(PORT, replace(USUAL, receives=self.messages)) for _ in range(self.connections)]
        for each in asked:
            self.result(each)
        self.runUntil(lambda: all(len(each.messages) == self.messages for each in self.made), 6.0)
        for each in self.made:
            for _ in range(self.messages):
                each.transport.sendMessage(bytes(self.size))
        self.assertIn("data transfers complete", self.succeeded(server))
        self.runUntil(lambda: all(each.lost is not None for each in self.made))
        kinds = ("rx req", "tx rep", "rx rtu", "tx dreq", "rx drep")
        self.assertEqual(since(before), dict.fromkeys(kinds, self.connections))
        self.assertEqual({len(data) for each in self.made for data in each.messages}, {self.size})

    def test_ucmatoseAsks(self) -> None:
        """ucmatose as client receives and answers txrdma's messages on each connection, and exits with 0."""
        self.serve(PORT, Meeting, replace(USUAL, receives=self.messages))
        client = self.start("ucmatose", "-s", self.there, "-b", self.here, *self.shape)
        self.runUntil(lambda: sum(each.isMade for each in self.made) == self.connections, 6.0)
        for each in self.made:
            for _ in range(self.messages):
                each.transport.sendMessage(bytes(self.size))
        self.runUntil(lambda: all(len(each.messages) == self.messages for each in self.made), 6.0)
        for each in self.made:
            each.transport.loseConnection()
        self.assertIn("data transfers complete", self.succeeded(client))


class UcmatoseIPv6Tests(UcmatoseTests):
    """Tests of ucmatose over IPv6."""

    witness = Witness("rdma: over the software device", "ucmatose on rxe", "both roles over IPv6")
    here, there = HERE6, THERE6


class ProgramTests(CMTestCase):
    """librdmacm's other example programs, in both roles."""

    witness = Witness(
        "rdma: over the software device", "rdma_xclient, rdma_xserver on rxe", "both roles, SEND"
    )
    programs = ("rdma_xclient", "rdma_xserver")

    def test_xclient(self) -> None:
        """rdma_xclient sends one message to txrdma's server, and disconnects."""
        self.serve(PORT, Meeting, USUAL)
        self.succeeded(self.start("rdma_xclient", "-s", self.there))
        self.runUntil(lambda: bool(self.made) and self.made[0].lost is not None)
        self.assertEqual(len(self.made[0].messages), 1)
        record("bytes of rdma_xclient's message", len(self.made[0].messages[0]))

    def test_xserver(self) -> None:
        """rdma_xserver receives one message of txrdma's client, and exits."""
        server = self.start("rdma_xserver")
        self.runFor(3.0)
        protocol = self.result(self.connect(PORT))
        protocol.transport.sendMessage(bytes(16))
        protocol.transport.loseConnection()
        self.runUntil(lambda: protocol.lost is not None)
        self.assertIsNotNone(protocol.lost.check(ConnectionDone))
        self.succeeded(server)
