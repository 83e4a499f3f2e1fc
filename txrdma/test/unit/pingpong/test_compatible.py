"""The protocol of C{ibv_rc_pingpong} between two txrdma ends, in simulated time."""

from __future__ import annotations

from dataclasses import replace

from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import InvalidRequest, RDMAError, WireError
from txrdma.pingpong.compatible import _DONE, _Exchange, Game, LINE_BYTES, OneGame, playFirst
from txrdma.pingpong.conversation import ConversationLost
from txrdma.pingpong.measurement import Measurement
from txrdma.pingpong.plan import Test, Transfer
from txrdma.sim.network import Faults
from txrdma.test.support.pingpongs import PumpedEndpoint, SimulatedLinks

DELAY = 10_000


class CompatibleTests(SimulatedLinks, SynchronousTestCase):
    def play(
        self, test: Test, serverTest: Test | None = None, mtu: int = 1024
    ) -> tuple[Measurement, Measurement]:
        """Return the results of client and server."""
        server = OneGame(self.side(1), serverTest or test, mtu)

        async def second() -> Measurement:
            return await server.done

        try:
            first = self.successOf(playFirst(PumpedEndpoint(self.clock, server), self.side(0), test, mtu))
        except RDMAError:
            self.assertRaises(RDMAError, self.successOf, second())
            raise
        return first, self.successOf(second())

    def test_latencyIsHalfOfRoundTrip(self) -> None:
        one, other = self.play(Test(size=512, iterations=30, warmup=0, check=True))
        self.assertEqual((one.messages, other.messages), (30, 29))
        self.assertEqual((one.wrong, other.wrong), (0, 0))
        summary = one.samples.summary()
        self.assertEqual((summary.minimum, summary.maximum), (DELAY, DELAY))

    def test_longMessagesArriveDespiteFaultyNetwork(self) -> None:
        self.network.faults = Faults(loss=0.03, duplication=0.03, corruption=0.02, jitterSeconds=30e-6)
        one, other = self.play(Test(size=50_000, iterations=10, warmup=0, check=True))
        self.assertEqual((one.messages, one.wrong, other.wrong), (10, 0, 0))

    def test_datagrams(self) -> None:
        one, other = self.play(Test(Transfer.UD, size=1000, iterations=30, warmup=0, check=True), mtu=0)
        self.assertEqual((one.messages, other.messages, one.wrong, other.wrong), (30, 29, 0, 0))

    def test_serverAcceptsBothPatterns(self) -> None:
        checked = Test(size=9000, iterations=10, warmup=0, check=True)
        for serverTest in (Test(size=9000, iterations=10, warmup=0), checked):
            _one, other = self.play(serverTest, checked)
            self.assertEqual(other.wrong, 0)

    def test_changedAnswersAreDetected(self) -> None:
        spoilt: list[Game] = []

        def spoil(game: Game) -> None:
            game.link.memory.view[game._begin + 7] = 0
            spoilt.append(game)

        test = Test(size=64, iterations=5, warmup=0, check=True)
        server = OneGame(self.side(1), test, 1024)
        found = self.successOf(playFirst(PumpedEndpoint(self.clock, server), self.side(0), test, 1024, spoil))
        self.assertEqual((len(spoilt), found.wrong), (1, 5))

    def test_otherLength(self) -> None:
        """Messages that are longer than agreed end the test; shorter ones count as wrong."""
        short, long = Test(size=64, iterations=5, warmup=0), Test(size=2000, iterations=5, warmup=0)
        error = self.assertRaises(RDMAError, self.play, short, long)
        self.assertEqual(str(error), "a request failed (LOC_LEN_ERR)")
        _one, other = self.play(replace(short, size=1000), replace(short, size=1020))
        self.assertEqual(other.wrong, 5)

    def test_lostDatagramEndsTest(self) -> None:
        self.network.faults = Faults(loss=0.2)
        test = Test(Transfer.UD, size=64, iterations=100, warmup=0)
        error = self.assertRaises(RDMAError, self.play, test, mtu=0)
        self.assertIn("no message was received or completed for 10 seconds", str(error))

    def test_tooLongDatagramIsRefusedFirst(self) -> None:
        error = self.assertRaises(InvalidRequest, self.play, Test(Transfer.UD, size=2048, warmup=0), mtu=0)
        self.assertEqual(str(error), "a datagram has at most 1024 bytes here, not 2048")

    def test_interruptedTestReportsPartialResults(self) -> None:
        test = Test(size=64, iterations=1 << 40, warmup=0)
        server = OneGame(self.side(1), test, 1024)

        def later(game: Game) -> None:
            self.clock.callLater(0.01, game.interrupt)

        found = self.successOf(playFirst(PumpedEndpoint(self.clock, server), self.side(0), test, 1024, later))
        self.assertTrue(found.interrupted)
        self.assertGreater(found.messages, 100)
        server.done.addErrback(lambda failure: None)
        server.done.cancel()

    def answered(self, *lines: bytes) -> Exception:
        """Return the error of a client whose server answers with this line."""

        class Other(Protocol):
            def dataReceived(self, data: bytes) -> None:
                assert self.transport is not None
                for line in lines:
                    self.transport.write(line)
                self.transport.loseConnection()

        endpoint = PumpedEndpoint(self.clock, Factory.forProtocol(Other))
        doing = playFirst(endpoint, self.side(0), Test(warmup=0), 1024)
        error: Exception = self.assertRaises(RDMAError, self.successOf, doing)
        return error

    def test_otherProgramsAreReportedInOneLine(self) -> None:
        self.assertIsInstance(
            self.answered(b"SSH-2.0-OpenSSH_9.2p1 Debian-2+deb12u3 and something more\r\n"), WireError
        )
        self.assertIsInstance(self.answered(b"x" * (LINE_BYTES - 1)), ConversationLost)
        self.assertIsInstance(self.answered(), ConversationLost)
        error = self.answered(b"0000:000011:8f3a21:" + b"0" * 32 + b"\0")
        self.assertIn("start it with -g", str(error))

    def test_longLine(self) -> None:
        """A peer that sends more than the longest valid exchange is disconnected."""
        exchange, transport = _Exchange(self.clock), StringTransport()
        exchange.makeConnection(transport)
        exchange.dataReceived(b"x" * (LINE_BYTES + len(_DONE)))
        self.assertFalse(transport.disconnecting)
        exchange.dataReceived(b"x")
        self.assertTrue(transport.disconnecting)

    def test_onlyFirstClientIsServed(self) -> None:
        server = OneGame(self.side(1), Test(warmup=0), 1024)
        self.assertIsNotNone(server.buildProtocol(None))
        self.assertIsNone(server.buildProtocol(None))
