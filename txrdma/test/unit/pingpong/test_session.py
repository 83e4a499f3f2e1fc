"""A client and a server of pingpong in simulated time: results and errors."""

from __future__ import annotations

from collections.abc import Awaitable, Callable
from dataclasses import replace
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import StringTransport
from twisted.test.iosim import FakeTransport
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import InvalidRequest, RDMAError, Refused, WireError
from txrdma.iba.verbs import QPAttributes, QPKind, QPState, Status
from txrdma.pingpong.bootstrap import BootstrapHello, encode, LONGEST, Open, Ready, Run
from txrdma.pingpong.conversation import _MOST_WAITING, ANSWER_SECONDS, Conversation, ConversationLost
from txrdma.pingpong.link import RequestFailed
from txrdma.pingpong.measurement import Measurement
from txrdma.pingpong.plan import LinkSettings, Measure, Test, Transfer
from txrdma.pingpong.session import Client, connect, Limits, PingpongServer
from txrdma.sim.network import Faults
from txrdma.test.support.pingpongs import ADDRESS, addTests, PumpedEndpoint, settingsFor, SimulatedLinks

DELAY = 10_000
"""Nanoseconds from one end to the other, without faults."""

UNFAIR = Faults(loss=0.02, duplication=0.02, corruption=0.01, jitterSeconds=30e-6)


class SessionCase(SimulatedLinks, SynchronousTestCase):
    """A server on the second host, and clients on the first."""

    limits: Limits | None = None

    def setUp(self) -> None:
        super().setUp()
        self.begun: list[str] = []
        self.ended: list[Exception | None] = []
        self.server = PingpongServer(self.side(1), self.limits, self.begun.append, self.ended.append)
        self.endpoint = PumpedEndpoint(self.clock, self.server)

    def client(self) -> Client:
        """Return a client that is connected to the server."""
        self.runUntil(lambda: not self.server.isServing)
        client = self.successOf(connect(self.endpoint, self.side(0)))
        self.addCleanup(client.close)
        return client

    def endless(self, client: Client, action: Callable[[], object]) -> Awaitable[Measurement]:
        """Run an endless test, and call a function meanwhile."""
        self.successOf(client.open(LinkSettings()))
        running = client.run(Test(iterations=1 << 40))
        self.clock.callLater(0.01, action)
        return running

    def measure(self, test: Test, client: Client | None = None) -> Measurement:
        """Run one test over a new link."""
        client = client or self.client()
        self.successOf(client.open(settingsFor(test)))
        return self.successOf(client.run(test))


class MeasuringTests(SessionCase):
    """Every kind of test, on a network that loses, duplicates, corrupts and reorders packets."""

    def check(self, transfer: Transfer, measure: Measure) -> None:
        """Check that all messages are counted and have the expected contents."""
        # Duplicates compensate losses in the count, so there are more losses.
        self.network.faults = replace(UNFAIR, loss=0.1) if transfer is Transfer.UD else UNFAIR
        size = 8 if transfer is Transfer.ATOMIC else 1000 if transfer is Transfer.UD else 3000
        found = self.measure(Test(transfer, measure, size, 200, warmup=20, depth=8, check=True))
        directions = 2 if measure is Measure.BIDIRECTIONAL else 1
        self.assertEqual(found.wrong, 0)
        self.assertFalse(found.interrupted)
        if transfer is not Transfer.UD:
            self.assertEqual((found.messages, found.lost), (200 * directions, 0))
            self.assertGreater(found.nanoseconds, 0)
        else:
            self.assertGreater(found.lost, 0)
            self.assertLessEqual(found.messages, 200 * directions)
        if measure is Measure.LATENCY:
            summary = found.samples.summary()
            self.assertEqual(summary.count, found.messages)
            self.assertGreaterEqual(summary.minimum, DELAY)
        elif transfer is not Transfer.UD:
            self.assertGreaterEqual(found.peak, found.bandwidth)

    def test_latencyIsHalfOfRoundTrip(self) -> None:
        found = self.measure(Test(iterations=50, warmup=0))
        summary = found.samples.summary()
        self.assertEqual((summary.count, summary.minimum, summary.maximum), (50, DELAY, DELAY))
        self.assertEqual((found.messages, found.nanoseconds), (50, 50 * 2 * DELAY))

    def test_severalTestsUseOneOrDifferentLinks(self) -> None:
        client = self.client()
        for _ in range(2):
            self.successOf(client.open(LinkSettings(size=4096, depth=4, check=True)))
            for size in (1, 4096, 17):
                for measure in Measure:
                    found = self.successOf(client.run(Test(Transfer.SEND, measure, size, 50, check=True)))
                    self.assertEqual(found.wrong, 0)

    def test_shortMessagesMayBeInline(self) -> None:
        found = self.measure(Test(size=64, iterations=50, inline=64, check=True))
        self.assertEqual((found.messages, found.wrong), (50, 0))

    def test_testWithDurationEndsAfterIt(self) -> None:
        before = self.clock.seconds()
        client = self.client()
        for measure in Measure:
            found = self.measure(Test(Transfer.SEND, measure, 64, 0, seconds=0.005, depth=8), client)
            self.assertGreater(found.messages, 200)
            self.assertAlmostEqual(found.nanoseconds / 1e9, 0.005, places=3)
        self.assertLess(self.clock.seconds() - before, 0.5)

    def test_wrongContentsAreDetectedAtEitherEnd(self) -> None:
        client = self.client()
        self.successOf(client.open(LinkSettings(size=64, check=True)))
        link = client._link
        assert link is not None
        link.memory.view[100] ^= 1  # so messages with this byte do not have the expected contents
        for measure in (Measure.LATENCY, Measure.BANDWIDTH):
            found = self.successOf(client.run(Test(Transfer.SEND, measure, 64, 128, warmup=0, check=True)))
            self.assertEqual(found.wrong, 2 * 8)


addTests(MeasuringTests, MeasuringTests.check)


class LimitsTests(SessionCase):
    """The server accepts the client's request within its limits."""

    limits = Limits(size=10_000, depth=16)

    def test_excessiveValuesAreReducedForBothEnds(self) -> None:
        client = self.client()
        settings = self.successOf(client.open(LinkSettings(size=1 << 20, depth=500, mtu=4096)))
        self.assertEqual((settings.size, settings.depth, settings.mtu), (10_000, 16, 1024))
        found = self.successOf(client.run(Test(Transfer.SEND, Measure.BANDWIDTH, 10_000, 100, depth=500)))
        self.assertEqual(found.messages, 100)

    def test_datagramsHaveLengthOfPackets(self) -> None:
        settings = self.successOf(self.client().open(LinkSettings(QPKind.UD, size=1 << 20)))
        self.assertEqual(settings.size, 1024)

    def test_unsupportedTestIsRefusedByName(self) -> None:
        for test in (
            Test(size=20_000),
            Test(Transfer.UD, size=64),
            Test(Transfer.ATOMIC, size=8),
            Test(check=True),
        ):
            client = self.client()
            self.successOf(client.open(LinkSettings(size=64)))
            error = self.assertRaises(InvalidRequest, self.successOf, client.run(test))
            talk = client._conversation
            talk.send(Run(test))  # as a client that does not check the request
            refusal = self.assertRaises(Refused, self.successOf, talk.receive(Ready))
            self.assertEqual(str(refusal), f"the other end reports: {error}")
            self.runUntil(lambda: len(self.ended) == len(self.begun))
            self.assertIsInstance(self.ended[-1], InvalidRequest)


class InterruptionTests(SessionCase):
    def test_bothEndsReportPartialResults(self) -> None:
        for transfer in (Transfer.SEND, Transfer.READ, Transfer.UD):
            for measure in Measure:
                if transfer is Transfer.UD and measure is not Measure.LATENCY:
                    continue  # simulated datagrams are sent in no time, so the test would be endless
                client = self.client()
                kind = transfer.kind
                self.successOf(client.open(LinkSettings(kind, 64, check=True)))
                self.clock.callLater(0.002, client.interrupt)
                test = Test(transfer, measure, 64, 1 << 40, depth=8, check=True)
                found = self.successOf(client.run(test))
                self.assertTrue(found.interrupted, test)
                self.assertGreater(found.messages, 20)
                self.assertEqual(found.wrong, 0)
                again = self.successOf(client.run(replace(test, iterations=50)))
                self.assertFalse(again.interrupted)
                self.assertEqual(again.messages, 100 if measure is Measure.BIDIRECTIONAL else 50)
                client.close()

    def test_clientClosedDuringTestReleasesEverything(self) -> None:
        client = self.client()
        self.assertRaises(ConversationLost, self.successOf, self.endless(client, client.close))
        self.runUntil(lambda: bool(self.ended))
        self.assertEqual(self.ended, [None])
        self.runUntil(lambda: not self.clock.getDelayedCalls())
        self.assertEqual(self.clock.readers, [])

    def test_testInterruptedBeforeItBeganMeasuresNothing(self) -> None:
        client = self.client()

        async def runBriefly(test: Test) -> Measurement:
            running = Deferred.fromCoroutine(client.run(test))
            client.interrupt()
            return await running

        for measure in Measure:
            for transfer in (Transfer.SEND, Transfer.READ, Transfer.WRITE):
                self.successOf(client.open(LinkSettings(check=True)))
                test = Test(transfer, measure, 64, 1 << 40, depth=8, check=True)
                found = self.successOf(runBriefly(test))
                self.assertEqual((found.messages, found.interrupted), (0, True), test)
                again = self.successOf(client.run(replace(test, iterations=50)))
                self.assertEqual(again.messages, 100 if measure is Measure.BIDIRECTIONAL else 50)
                self.assertEqual((again.wrong, again.interrupted), (0, False), test)

    def test_clientClosesDeviceOnce(self) -> None:
        closed: list[object] = []
        side = replace(self.side(0), close=closed.append)
        self.runUntil(lambda: not self.server.isServing)
        client = self.successOf(connect(self.endpoint, side))
        client.close()
        client.close()
        self.assertEqual(closed, [client._device])


class TroubleTests(SessionCase):
    """Errors are reported in one line, and the server serves the next client."""

    def setUp(self) -> None:
        super().setUp()
        self.addCleanup(self.stillServes)

    def stillServes(self) -> None:
        """Check that the next client succeeds."""
        self.network.heal()
        self.assertEqual(self.measure(Test(iterations=10)).messages, 10)

    def test_brokenPathEndsTestWithDevicesError(self) -> None:
        for transfer in (Transfer.SEND, Transfer.READ):
            self.network.heal()
            client = self.client()
            self.successOf(client.open(LinkSettings()))
            running = client.run(Test(transfer, Measure.BANDWIDTH, 64, 1 << 40, depth=8))
            self.clock.callLater(0.01, self.network.partition, "192.0.2.1", "192.0.2.2")
            error = self.assertRaises(RequestFailed, self.successOf, running)
            self.assertIn("the peer does not answer (RETRY_EXC_ERR)", str(error))
            self.runUntil(lambda: len(self.ended) == len(self.begun))
            self.assertIsInstance(self.ended[-1], Refused)

    def test_queuePairThatEndsFirstIsNoErrorAtServer(self) -> None:
        client = self.client()
        self.successOf(client.open(LinkSettings()))
        self.successOf(client.run(Test(iterations=10)))
        service = self.server._conversation
        assert service is not None and client._link is not None
        client._link.queuePair.modify(QPAttributes(state=QPState.ERR))
        there = self.devices[1]
        pairs = tuple(there._queuePairs)  # type: ignore[attr-defined]  # of the software device
        for pair in pairs:
            pair.failed()
        self.runUntil(lambda: self.clock.seconds() > 1)
        self.assertIsNone(service.error)
        client.close()
        self.runUntil(lambda: bool(self.ended))
        self.assertEqual(self.ended, [None])

    def test_unansweredDatagramsEndTest(self) -> None:
        client = self.client()
        self.successOf(client.open(LinkSettings(QPKind.UD)))
        self.network.partition("192.0.2.1", "192.0.2.2")
        for warmup in (0, 5):  # messages of the warm-up are not counted
            found = self.successOf(client.run(Test(Transfer.UD, size=64, iterations=20, warmup=warmup)))
            self.assertEqual((found.messages, found.lost), (0, 20))

    def test_serverThatEndsEndsTest(self) -> None:
        client = self.client()
        running = self.endless(client, lambda: self.clock.pumps[-1].serverIO.abortConnection())
        error = self.assertRaises(ConversationLost, self.successOf, running)
        self.assertEqual(str(error), "the other end has gone")
        assert client.unfinished is not None
        self.assertGreater(client.unfinished.messages, 100)
        self.assertTrue(client.unfinished.interrupted)

    def test_stoppedServerNotifiesClient(self) -> None:
        """Its reason replaces that of a queue pair that fails first."""
        for status in (None, Status.RETRY_EXC_ERR, Status.WR_FLUSH_ERR):
            client = self.client()

            def stop(client: Client = client, status: Status | None = status) -> None:
                if status is not None:
                    assert client._link is not None
                    client._link.fail(RequestFailed(status))
                Deferred.fromCoroutine(self.server.close())

            error = self.assertRaises(Refused, self.successOf, self.endless(client, stop))
            self.assertEqual(str(error), "the other end reports: the server is stopped")
            self.runUntil(lambda: len(self.ended) == len(self.begun))

    def test_secondClientIsRefused(self) -> None:
        client = self.client()
        error = self.assertRaises(Refused, self.successOf, connect(self.endpoint, self.side(0)))
        self.assertIn("another client is measuring", str(error))
        self.successOf(client.open(LinkSettings()))
        self.successOf(client.run(Test(iterations=10)))
        client.close()
        self.runUntil(lambda: bool(self.ended))

    def test_silentPeerTimesOut(self) -> None:
        silent = PumpedEndpoint(self.clock, Factory.forProtocol(Protocol))
        before = self.clock.seconds()
        error = self.assertRaises(ConversationLost, self.successOf, connect(silent, self.side(0)))
        self.assertIn("has sent nothing for 15 seconds", str(error))
        self.assertLess(self.clock.seconds() - before, ANSWER_SECONDS + 1)

    def test_clientGetsReasonOfMissingDevice(self) -> None:
        def none(address: object) -> Any:
            raise RDMAError("no such device")

        server = PingpongServer(replace(self.side(1), open=none))
        client = self.successOf(connect(PumpedEndpoint(self.clock, server), self.side(0)))
        error = self.assertRaises(Refused, self.successOf, client.open(LinkSettings()))
        self.assertIn("no such device", str(error))
        client.close()

    def test_differentVersionsDisconnectWithReason(self) -> None:
        class Later(Protocol):
            def dataReceived(self, data: bytes) -> None:
                assert self.transport is not None
                self.transport.write(encode(BootstrapHello(2)))

        later = PumpedEndpoint(self.clock, Factory.forProtocol(Later))
        error = self.assertRaises(Refused, self.successOf, connect(later, self.side(0)))
        self.assertIn("the peer has version 2 of the protocol, not 1", str(error))


class GarbageTests(SessionCase):
    """Invalid input is answered with an error, and the connection is closed."""

    def exchange(self, data: bytes) -> bytes:
        """Return the server's answer until it closes the connection."""
        protocol = self.server.buildProtocol(ADDRESS)
        transport = FakeTransport(protocol, True)
        protocol.makeConnection(transport)
        protocol.dataReceived(data)
        self.assertTrue(transport.disconnecting or transport.disconnected)
        answer: bytes = transport.getOutBuffer()
        protocol.connectionLost()
        return answer

    def test_invalidClientsAreRefusedAndLaterOnesServed(self) -> None:
        hello = encode(BootstrapHello())
        for data in (
            b"GET / HTTP/1.1\r\n\r\n",
            b"0000:000011:8f3a21:00000000000000000000ffff0a4f0001\0\n",
            b"x" * (LONGEST + 1),
            b"[]\n",
            encode(Open(LinkSettings())),
            hello + hello,
            hello + encode(Run(Test())),
            hello * 100,
        ):
            last = self.exchange(data).splitlines()[-1]
            self.assertIn(b'"message": "trouble"', last)
            self.assertIsInstance(self.ended[-1], WireError, data)
        self.assertEqual(self.measure(Test(iterations=10)).messages, 10)

    def test_tooMany(self) -> None:
        """A peer that sends more messages than can be requested at a time ends the conversation."""
        conversation = Conversation(self.clock)
        conversation.makeConnection(StringTransport())
        for _each in range(_MOST_WAITING):
            conversation.dataReceived(encode(Ready()))
        self.assertIsNone(conversation.error)
        conversation.dataReceived(encode(Ready()))
        self.assertIsInstance(conversation.error, WireError)
        self.assertEqual(len(conversation._received), _MOST_WAITING)
