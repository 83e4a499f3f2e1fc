"""
L{txrdma.smc.stream.tcpmonitor}: the end of TCP, depending on what the link has delivered.
"""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import Mock

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.protocol import Protocol
from twisted.internet.task import Clock
from twisted.internet.tcp import Connection
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.stream.tcpmonitor import GRACE, LONGEST_GRACE, PACKET_GRACE, TCPMonitor
from txrdma.smc.wire.clc import Decline, Diagnosis


class Stream:
    """A stream in a state set by the test."""

    isDoubted = isStopping = False
    hasReceivedEnd = mayBeSilent = awaitsDelivery = False
    hasArrived = isShared = True
    receivedAt = 0.0

    def __init__(self) -> None:
        self.reported: list[str] = []

    def poll(self) -> None:
        """Do nothing: nothing has arrived."""

    def checkReceipt(self) -> float:
        return self.receivedAt

    def confirmEach(self) -> None:
        self.isDoubted = True

    def violated(self, what: str) -> None:
        self.reported.append("violated")

    def declined(self, diagnosis: Diagnosis) -> None:
        self.reported.append(diagnosis.name)

    def peerExited(self) -> None:
        self.reported.append("vanished")

    def reset(self) -> None:
        self.reported.append("reset")

    def stopped(self) -> None:
        self.reported.append("stopped")


class TCP:
    """Records how it was ended."""

    connected = 1
    dataBuffer = b""
    _tempDataLen = 0

    def __init__(self) -> None:
        self.ended: list[str] = []

    def registerProducer(self, producer: object, streaming: bool) -> None:
        """Do nothing: this TCP connection does not stop with a process."""

    def loseConnection(self) -> None:
        self.ended.append("closing")

    def doWrite(self) -> Exception:
        return ConnectionDone()

    def connectionLost(self, reason: Failure) -> None:
        reason.trap(ConnectionDone)
        self.ended.append("closed")

    def abortConnection(self) -> None:
        self.ended.append("reset")


class TCPMonitorTests(SynchronousTestCase):
    """A connection whose TCP connection ends."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.stream = Stream()
        self.tcp = TCP()
        self.monitor = TCPMonitor(cast(Any, self.stream), cast(Any, self.tcp), self.clock, self.clock.seconds)

    def test_FINWithoutLinkMessageIsLoss(self) -> None:
        """Without a message of the link, a FIN is reported as a reset only after the longest grace time."""
        self.monitor.readConnectionLost()
        self.assertEqual((self.stream.reported, self.stream.isDoubted), ([], True))
        self.clock.pump([GRACE] * 8)
        self.assertEqual(self.stream.reported, [])
        self.clock.advance(LONGEST_GRACE)
        self.assertEqual(self.stream.reported, ["reset"])

    def test_endOfTCPAndLinkIsReportedImmediately(self) -> None:
        self.monitor.readConnectionLost()
        self.monitor.linkLost(mayHaveExited=True)
        self.assertEqual(self.stream.reported, ["vanished"])

    def test_busyProcess(self) -> None:
        """The FIN is read before the loss is reported, even if this process was not scheduled for seconds."""
        self.stream.peerExited = lambda: self.monitor.finish(inOrder=True)  # type: ignore[method-assign]
        self.monitor.linkLost(mayHaveExited=True)
        self.clock.callLater(GRACE, self.monitor.readConnectionLost)
        self.clock.advance(GRACE + 3.0)
        self.assertEqual((self.stream.reported, self.tcp.ended), ([], ["closed"]))

    def test_stopEndsLinkFirst(self) -> None:
        """A stopping process ends the stream before TCP, because it may be suspended in between."""
        self.stream.isStopping = True
        socket, reported = Mock(), self.stream.reported
        socket.shutdown.side_effect = lambda how: reported.append("FIN")
        tcp = Connection(socket, Protocol(), cast(Any, Mock()))
        tcp.connected = 1
        tcp.protocol = TCPMonitor(cast(Any, self.stream), tcp, self.clock, self.clock.seconds)
        tcp.connectionLost(Failure(ConnectionLost()))
        self.assertEqual(reported, ["stopped", "FIN"])

    def test_graceOfLossyLinkIncludesRetransmissions(self) -> None:
        self.stream.isShared = False
        self.monitor.readConnectionLost()
        self.clock.pump([GRACE] * 3)
        self.assertEqual(self.stream.reported, [])
        self.clock.pump([GRACE])
        self.assertEqual((self.stream.reported, self.clock.seconds()), (["reset"], PACKET_GRACE))

    def test_linkThatStillReceives(self) -> None:
        """A connection is not lost while its link delivers messages, since its last one may follow."""
        self.stream.isShared = False
        self.monitor.readConnectionLost()
        for _ in range(14):
            self.clock.advance(GRACE / 2)
            self.stream.receivedAt = self.clock.seconds()
        self.clock.advance(PACKET_GRACE - GRACE / 2)
        self.assertEqual(self.stream.reported, [])
        self.clock.advance(GRACE / 2)
        self.assertEqual(self.stream.reported, ["reset"])

    def test_linkThatAlwaysReceives(self) -> None:
        """Messages of other connections do not delay the loss of a connection whose TCP has ended."""
        self.monitor.readConnectionLost()
        while self.clock.seconds() < LONGEST_GRACE:
            self.assertEqual(self.stream.reported, [])
            self.stream.receivedAt = self.clock.seconds()
            self.clock.advance(GRACE / 2)
        self.assertEqual(self.stream.reported, ["reset"])

    def test_closeDoesNotWaitForGoneProcess(self) -> None:
        self.stream.hasReceivedEnd = self.stream.awaitsDelivery = True
        self.stream.hasArrived = False
        self.monitor.readConnectionLost()
        self.assertEqual(self.stream.reported, [])
        self.clock.advance(GRACE)
        self.assertEqual(self.stream.reported, ["reset"])

    def test_lateAcknowledgementWithinGrace(self) -> None:
        self.stream.hasReceivedEnd = self.stream.awaitsDelivery = True
        self.stream.hasArrived = False
        self.monitor.readConnectionLost()
        self.stream.hasArrived = True
        self.clock.advance(GRACE)
        self.assertEqual(self.stream.reported, [])

    def test_TCPEndWithoutLinkIsLoss(self) -> None:
        self.monitor.linkLost(mayHaveExited=True)
        self.assertEqual(self.stream.reported, [])
        self.monitor.readConnectionLost()
        self.assertEqual(self.stream.reported, ["vanished"])

    def test_linkFailureResetsTCP(self) -> None:
        self.monitor.linkLost(mayHaveExited=False)
        self.assertEqual((self.stream.reported, self.tcp.ended), (["reset"], ["reset"]))

    def test_TCPResetIsLossUnlessEnded(self) -> None:
        for isReceived, reported in ((False, ["reset"]), (True, [])):
            self.setUp()
            self.stream.hasReceivedEnd = isReceived
            self.monitor.connectionLost(Failure(ConnectionLost()))
            self.assertEqual(self.stream.reported, reported)

    def test_TCPClosesWithStream(self) -> None:
        ways = ((True, b"", ["closed"]), (True, b"unsent", ["closing", "closed"]), (False, b"", ["reset"]))
        for inOrder, unsent, ended in ways:
            self.setUp()
            self.tcp.dataBuffer = unsent
            self.monitor.readConnectionLost()
            self.monitor.finish(inOrder)
            self.assertEqual((self.tcp.ended, self.clock.getDelayedCalls()), (ended, []))

    def test_TCPBytesBreakTheRules(self) -> None:
        self.monitor.dataReceived(b"?")
        self.assertEqual((self.stream.reported, self.tcp.ended), (["violated"], ["reset"]))

    def test_lateDeclineIsNoViolation(self) -> None:
        for version in (1, 2):
            self.setUp()
            self.monitor.dataReceived(Decline.inVersion(version, bytes(8), Diagnosis.TIMEOUT_CL).encode())
            self.assertEqual((self.stream.reported, self.tcp.ended), (["TIMEOUT_CL"], ["reset"]))

    def test_fallenBackPeerIsReset(self) -> None:
        self.stream.violated = lambda what: self.monitor.finish(inOrder=True)  # type: ignore[method-assign]
        self.monitor.dataReceived(b"declined")
        self.assertEqual(self.tcp.ended, ["reset"])
