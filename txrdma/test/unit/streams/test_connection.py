"""The end of a stream over a message connection."""

from __future__ import annotations

from types import SimpleNamespace
from typing import Any
from unittest.mock import Mock

from zope.interface import alsoProvides

from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, fail
from twisted.internet.error import ConnectError, ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IReactorCore, ITransport
from twisted.internet.protocol import Factory
from twisted.logger import capturedLogs, formatEvent
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.stream._bytes import ByteStream, DISCONNECT, SHUTDOWN
from txrdma.btl.stream.end import BTLEnd
from txrdma.error import DeviceUnavailable
from txrdma.kit.connectionlog import ConnectionRecord
from txrdma.kit.forwardclock import sharedForwardClock
from txrdma.messages.address import MessageAddress
from txrdma.streams import connection
from txrdma.streams.connection import CLOSING_SECONDS, STOPPING_SECONDS, StreamConnection
from txrdma.streams.endpoints import StreamAttempt, StreamPort
from txrdma.streams.transport import StreamTransport
from txrdma.testing.protocols import HalfCloseRecorder, ProducerRecorder, Recorder, Recorders
from txrdma.testing.reactors import ReactorClock


class Carrier:
    """A message connection that sends nothing."""

    route = ""
    isAborted = False

    def loseConnection(self) -> None: ...

    def abortConnection(self) -> None:
        self.isAborted = True


class End(StreamConnection[ByteStream, Any]):
    """A stream whose messages the test counts and acknowledges."""

    kind = "test"
    host = peer = IPv4Address("TCP", "192.0.2.1", 1)

    def _send(self, core: ByteStream, transport: Any) -> None:
        while (message := core.next()) is not None:
            self.sent.append(message)

    def begin(self, core: ByteStream) -> None:
        """Start with this core."""
        self._core, self.carrier = core, Carrier()
        self.sent: list[tuple[bytes, int | None]] = []
        self._begun(self.carrier)

    def lose(self, reason: Exception) -> None:
        self._ended(Failure(reason))


class BTLEndTests(SynchronousTestCase):
    def test_unreadableRest(self) -> None:
        """A stream ends although its unread bytes cannot be read when the message connection is lost."""
        clock, recorder = ReactorClock(), Recorder()
        end = BTLEnd(clock, True, lambda end: StreamTransport(end, end, recorder, "test"))
        address = MessageAddress(None, 0, "192.0.2.1", 1)
        end.makeConnection(Mock(getHost=lambda: address, getPeer=lambda: address, route=""))
        recorder.transport.pauseProducing()
        end.messageReceived(b"unread", None)
        self.patch(ByteStream, "read", Mock(side_effect=ZeroDivisionError("simulated")))
        self.assertRaises(ZeroDivisionError, end.connectionLost, Failure(ConnectionLost()))
        recorder.transport.resumeProducing()
        clock.advance(0)
        self.assertTrue(recorder.lost.called)
        self.assertIsInstance(recorder.reason.value, ConnectionLost)

    def test_notStarted(self) -> None:
        """The end of a stream that an exception has prevented from starting raises no other exception."""
        end = BTLEnd(ReactorClock(), True, Mock())
        transport = Mock(getHost=Mock(side_effect=ZeroDivisionError("simulated")))
        self.assertRaises(ZeroDivisionError, end.makeConnection, transport)
        end.connectionLost(Failure(ConnectionLost()))
        self.assertFalse(end.connected)


class EndTests(SynchronousTestCase):
    """C{connectionLost} after the peer has closed in order."""

    def setUp(self) -> None:
        self.clock = ReactorClock()
        self.protocol = Recorder()
        self.core = ByteStream()
        self.end = End(self.clock, True, self.makeTransport)
        self.end.begin(self.core)

    def makeTransport(self, end: End) -> StreamTransport[Any]:
        """Return the transport of the end, with a protocol."""
        return StreamTransport(end, end, self.protocol, "test")

    def peerCloses(self, unacknowledged: int) -> None:
        """Write and pause; the peer closes with this many unacknowledged messages."""
        self.protocol.transport.pauseProducing()
        self.end.write(b"message")
        self.clock.advance(0)
        self.assertEqual(self.core.unacknowledged, 1)
        self.core.arrived(b"", DISCONNECT)
        self.core.unacknowledged = unacknowledged
        self.end.lose(ConnectionDone())
        self.clock.advance(0)

    def test_violations(self) -> None:
        """A peer that violates the protocol in one connection after the other is logged once a minute."""
        self.patch(connection._rateLimited, "_entries", {})
        with capturedLogs() as logs:
            for _ in range(3):
                self.protocol, self.end = Recorder(), End(self.clock, True, self.makeTransport)
                self.end.begin(ByteStream())
                self.end._violated("a test's reason")
                self.clock.advance(0)
                self.assertTrue(self.end.carrier.isAborted)
                self.end.lose(ConnectionLost())
                self.clock.advance(0)
                self.assertIs(self.protocol.reason.type, ConnectionLost)
        texts = [text for text in map(formatEvent, logs) if "violated the protocol" in text]
        self.assertEqual(len(texts), 1)

    def test_producerLosesConnection(self) -> None:
        """Nothing is sent after the connection was lost while the producer was resumed."""

        def resume() -> None:
            self.protocol.transport.write(b"the rest")
            self.end.lose(ConnectionLost())

        self.protocol.transport.registerProducer(Mock(resumeProducing=resume), True)
        self.protocol.transport.write(bytes(100_000))
        self.clock.advance(0)
        self.assertEqual(sum(len(data) for data, _immediate in self.end.sent), 100_000)
        self.clock.advance(0)
        self.assertIs(self.protocol.reason.type, ConnectionLost)

    def test_interruptedStart(self) -> None:
        """A stream ends although an exception has interrupted its start."""
        self.end = End(self.clock, True, self.makeTransport)
        self.protocol = Recorder()
        self.patch(StreamTransport, "begun", Mock(side_effect=ZeroDivisionError("simulated")))
        self.assertRaises(ZeroDivisionError, self.end.begin, ByteStream())
        self.end.lose(ConnectionLost())
        self.clock.advance(0)
        self.assertIs(self.protocol.reason.type, ConnectionLost)

    def test_interruptedEnd(self) -> None:
        """C{connectionLost} is called, and the factory stopped, although a step of the end raises."""
        for owner, name in (
            (StreamConnection, "_lost"),
            (StreamConnection, "_soon"),
            (ConnectionRecord, "ended"),
            (StreamTransport, "ended"),
        ):
            ended = Mock()
            self.protocol, self.end = Recorder(), End(self.clock, True, self.makeTransport, ended)
            self.end.begin(ByteStream())
            patcher = self.patch(owner, name, Mock(side_effect=ZeroDivisionError("simulated")))
            self.end.lose(ConnectionLost())
            self.clock.advance(0)
            patcher.restore()
            if owner is not StreamTransport:  # which calls it
                self.assertIs(self.protocol.reason.type, ConnectionLost, name)
            ended.assert_called_once_with()
            self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1, name)

    def test_interruptedTurn(self) -> None:
        """C{connectionLost} is called once although the iteration that reports the end raises."""
        ended = Mock()
        self.protocol, self.end = Recorder(), End(self.clock, True, self.makeTransport, ended)
        self.end.begin(ByteStream())
        self.patch(self.end, "_turn", Mock(side_effect=[ZeroDivisionError("simulated"), None]))
        self.end.lose(ConnectionLost())
        self.clock.advance(0)
        self.assertIs(self.protocol.reason.type, ConnectionLost)
        ended.assert_called_once_with()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_interruptedAbort(self) -> None:
        """An aborted stream ends although the message connection could not be aborted at first."""
        aborting = Mock(side_effect=[ZeroDivisionError("simulated"), None])
        self.patch(self.end.carrier, "abortConnection", aborting)
        self.protocol.transport.abortConnection()
        self.clock.advance(0)
        self.assertEqual(aborting.call_count, 2)
        self.end.lose(ConnectionLost())
        self.clock.advance(0)
        self.assertIs(self.protocol.reason.type, ConnectionAborted)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_endIsReportedAlthoughClockWasSetBack(self) -> None:
        """What is due in the next iteration is not late by as much as the clock was set back."""
        users = sharedForwardClock(self.clock)
        users.seconds()
        self.end.lose(ConnectionLost())
        self.clock.rightNow -= 3600.0
        users.seconds()
        self.clock.advance(0)
        self.assertIs(self.protocol.reason.type, ConnectionLost)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_bytesAcknowledgedAfterCloseMeanConnectionDone(self) -> None:
        self.peerCloses(0)
        self.assertTrue(self.end.connected)
        self.protocol.transport.resumeProducing()
        self.clock.advance(0)
        self.assertIs(self.protocol.reason.type, ConnectionDone)

    def test_unacknowledgedBytesMeanConnectionLost(self) -> None:
        self.peerCloses(1)
        self.assertIs(self.protocol.reason.type, ConnectionLost)

    def test_protocolWritesAndClosesWhenItResumes(self) -> None:
        """As over TCP, bytes that a protocol writes and closes behind, as TLS does, after the peer has closed
        may be lost: the connection ends in order."""
        transport = self.protocol.transport

        def received(data: bytes) -> None:
            transport.write(b"answer")
            transport.loseConnection()

        self.patch(self.protocol, "dataReceived", received)
        transport.pauseProducing()
        self.core.arrived(b"message", None)
        self.core.arrived(b"", DISCONNECT)
        self.end._turn()
        self.end.lose(ConnectionDone())
        self.clock.advance(0)
        transport.resumeProducing()
        self.clock.advance(0)
        self.assertIs(self.protocol.reason.type, ConnectionDone)

    def test_halfCloseFollowsWhatTLSHasCollected(self) -> None:
        """As over TCP, the write side closes after the delayed call in which TLS writes."""
        transport = self.protocol.transport

        def received(data: bytes) -> None:
            self.clock.callLater(0, transport.write, b"record")
            transport.loseWriteConnection()

        alsoProvides(self.protocol, ITransport)
        self.patch(self.protocol, "dataReceived", received)
        self.core.arrived(b"message", None)
        self.end._turn()
        for _ in range(3):
            self.clock.advance(0)
        self.assertEqual(self.end.sent, [(b"record", None), (b"", SHUTDOWN)])

    def answerAfterClose(self, length: int, *closes: str, isEnded: bool) -> type[BaseException] | None:
        """Let the peer close, answer it with this many bytes, and close; return the reason."""
        self.protocol = HalfCloseRecorder()
        self.end = End(self.clock, True, self.makeTransport)
        self.core = ByteStream()
        self.end.begin(self.core)
        self.core.arrived(b"", DISCONNECT)
        self.end._turn()
        if isEnded:
            self.end.lose(ConnectionDone())
        self.protocol.transport.write(bytes(length))
        for close in closes:
            getattr(self.protocol.transport, close)()
            self.clock.advance(0)
        if not isEnded:
            self.end.lose(ConnectionDone())
        self.clock.advance(0)
        self.assertEqual(self.protocol.writeEnded.called, "loseWriteConnection" in closes)
        return self.protocol.reason.type

    def test_lastAnswerToClosedPeerEndsInOrderAsOverTCP(self) -> None:
        for isEnded in (False, True):
            for closes in (["loseConnection"], ["loseWriteConnection", "loseConnection"]):
                self.assertIs(self.answerAfterClose(5, *closes, isEnded=isEnded), ConnectionDone)

    def test_longAnswerToClosedPeerIsLostAsOverTCP(self) -> None:
        for isEnded in (False, True):
            reason = self.answerAfterClose(300_000, "loseConnection", isEnded=isEnded)
            self.assertIs(reason, ConnectionLost)

    def test_pausedProtocolIsNotToldOfLoss(self) -> None:
        """
        As over TCP, a protocol that has paused gets C{connectionLost} when it resumes, closes, or writes.

        C{portforward} pauses one end until the other one has written everything, which that must still do.
        """
        for then in ("resumeProducing", "loseConnection", "write", "abortConnection"):
            self.setUp()
            transport = self.protocol.transport
            transport.pauseProducing()
            self.end.lose(ConnectionLost())
            self.clock.advance(0)
            self.assertFalse(self.protocol.lost.called)
            getattr(transport, then)(*([b"data"] if then == "write" else []))
            self.clock.advance(0)
            self.assertTrue(self.protocol.lost.called, then)

    def test_lossOfUnsentBytesIsReportedToPausedProtocol(self) -> None:
        self.protocol.transport.pauseProducing()
        self.end.write(b"message")
        self.clock.advance(0)
        self.end.lose(ConnectionLost())
        self.clock.advance(0)
        self.assertIs(self.protocol.reason.type, ConnectionLost)

    def test_lossWithUnreadBytesIsReportedToPausedWriter(self) -> None:
        """As over TCP, a paused protocol that writes gets C{connectionLost} without unread bytes."""
        for isLostFirst in (False, True):
            self.setUp()
            self.protocol.transport.pauseProducing()
            self.core.arrived(b"more", None)
            if not isLostFirst:
                self.end.write(b"message")
                self.clock.advance(0)
            self.end._storeRest()
            self.end.lose(ConnectionLost())
            self.clock.advance(0)
            if isLostFirst:
                self.assertFalse(self.protocol.lost.called)
                self.end.write(b"message")
                self.clock.advance(0)
            self.assertIs(self.protocol.reason.type, ConnectionLost)
            self.assertEqual(self.protocol.received, b"")

    def test_protocolResumedByItsProducer(self) -> None:
        """An echo server, which is its own producer, reads what arrived while its writes waited."""
        transport = self.protocol.transport
        transport.registerProducer(transport, True)
        transport.write(bytes(transport.bufferSize + 1))
        self.assertTrue(self.end.isPaused)
        self.core.arrived(b"data", None)
        self.clock.pump([0, 0])
        self.assertEqual(self.protocol.received, b"data")

    def test_closeAfterHalfClose(self) -> None:
        """C{loseConnection} sends the close if the write side was closed before."""
        self.protocol.transport.loseWriteConnection()
        self.clock.advance(0)
        self.assertFalse(self.core.hasSentClose)
        self.protocol.transport.loseConnection()
        self.clock.advance(0)
        self.assertTrue(self.core.hasSentClose)

    def test_closeIsCutAfterReadEnd(self) -> None:
        """An end that closes after the half-close of its peer is lost if its bytes are dropped."""
        self.protocol = HalfCloseRecorder()
        self.end = End(self.clock, True, self.makeTransport)
        core = ByteStream()
        self.end.begin(core)
        core.arrived(b"", SHUTDOWN)
        self.end.write(b"message")
        core.isFull = True
        self.clock.advance(0)
        self.protocol.transport.loseConnection()
        self.clock.advance(0)
        core.arrived(b"", DISCONNECT)
        self.end.lose(ConnectionDone())
        self.clock.advance(0)
        self.assertIs(self.protocol.reason.type, ConnectionLost)

    def test_stoppingReactorWaitsLimitedTimeForPeer(self) -> None:
        self.end.reactorStops()
        self.clock.pump([STOPPING_SECONDS, 3.0])
        self.assertFalse(self.end.carrier.isAborted)
        self.clock.advance(CLOSING_SECONDS)
        self.assertTrue(self.end.carrier.isAborted)

    def test_stoppingReactorNotifiesPausedProtocol(self) -> None:
        """
        A protocol that has paused gets C{connectionLost} once when the reactor stops, without unread bytes.

        Nothing changes if it resumes while the reactor still waits for the peer.
        """
        for resumes in (False, True):
            self.setUp()
            self.protocol.transport.pauseProducing()
            self.core.arrived(b"unread", None)
            stopped = self.end.reactorStops()
            assert stopped is not None
            self.assertNoResult(stopped)
            if resumes:
                self.protocol.transport.resumeProducing()
            self.core.arrived(b"", DISCONNECT)
            self.end.lose(ConnectionDone())
            self.clock.advance(0)
            self.assertIs(self.protocol.reason.type, ConnectionLost)
            self.assertEqual(self.protocol.received, b"")
            self.assertIsNone(self.successResultOf(stopped))

    def test_stoppingReactorClosesHalfClosedStream(self) -> None:
        """The close is sent at once, although the write side was closed before."""
        self.protocol.transport.loseWriteConnection()
        self.clock.advance(0)
        self.end.reactorStops()
        self.assertTrue(self.core.hasSentClose)
        self.assertFalse(self.end.carrier.isAborted)

    def test_nothingIsWrittenBehindDroppedBytes(self) -> None:
        """A producer that is registered while the reactor stops writes nothing behind dropped bytes."""
        self.patch(self.end, "_send", lambda core, transport: None)  # the peer has no room
        transport = self.protocol.transport
        transport.write(b"first")
        self.end.reactorStops()
        transport.registerProducer(ProducerRecorder(lambda: transport.write(b"bytes")), False)
        self.assertGreater(self.core.backlog, 5)
        self.clock.advance(STOPPING_SECONDS)
        self.assertEqual((self.core.backlog, self.core.isWritable), (0, False))


class AttemptTests(SynchronousTestCase):
    """The factory of a client whose C{stopFactory} raises, or cancels the attempt."""

    def setUp(self) -> None:
        class Stopping(Factory):
            noisy = False

            def stopFactory(factory) -> None:  # of the test, below
                self.stopFactory()

        self.factory = Stopping()
        self.attempt: StreamAttempt[End] = StreamAttempt(self.factory)

    def stopFactory(self) -> None:
        raise RuntimeError("stopFactory")

    def connect(self, answer: Deferred[Any]) -> Deferred[Any]:
        """Begin an attempt with this answer of its endpoint."""
        endpoint: Any = SimpleNamespace(connect=lambda factory: answer)
        return self.attempt.connect(endpoint, None)

    def test_raisingStopFactoryDoesNotDelayEnd(self) -> None:
        self.factory.doStart()
        clock = ReactorClock()
        end = End(clock, True, lambda end: StreamTransport(end, end, Recorder(), "test"), self.attempt.ended)
        end.begin(ByteStream())
        stopped = end.reactorStops()
        assert stopped is not None
        end.lose(ConnectionDone())
        clock.advance(0)
        self.assertIsNone(self.successResultOf(stopped))
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_attemptFailsWithConnectionsError(self) -> None:
        self.failureResultOf(self.connect(fail(DeviceUnavailable("no answer"))), ConnectError)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_stopFactoryCancelsFailedAttempt(self) -> None:
        """The attempt fails with its own error, as over TCP: C{stopFactory} is called after that."""
        answer: Deferred[Any] = Deferred()
        connecting = self.connect(answer)
        self.patch(self, "stopFactory", connecting.cancel)
        answer.errback(ZeroDivisionError())
        self.failureResultOf(connecting, ZeroDivisionError)
        self.assertEqual(self.factory.numPorts, 0)


class PortTests(SynchronousTestCase):
    """The factory of a listening port."""

    def setUp(self) -> None:
        self.clock = ReactorClock()
        alsoProvides(self.clock, IReactorCore)  # the part of it that is used
        self.factory = Recorders()
        host = MessageAddress(host="127.0.0.1", port=4)
        port: Any = Mock(getHost=lambda: host)
        self.port = StreamPort(self.clock, port, self.factory, "test")

    def test_factoryIsStoppedOnceWithReactor(self) -> None:
        self.clock.stop()
        self.assertEqual((self.factory.starts, self.factory.stops), (1, 1))
        self.port.stopListening()
        self.assertEqual(self.factory.stops, 1)

    def test_stoppedPortRemovesCallsAndTriggers(self) -> None:
        self.port.stopListening()
        self.assertEqual((self.factory.stops, self.clock.triggers), (1, []))
