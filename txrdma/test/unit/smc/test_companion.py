"""
Tests for L{txrdma.smc.stream.tcpmonitor}: what the end of TCP means beside what the link has brought.
"""

from __future__ import annotations

from typing import Any, cast

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.task import Clock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.stream.tcpmonitor import GRACE, TCPMonitor


class Stream:
    """A stream in a state that the test says."""

    isDoubted = isStopping = False
    hasReceivedEnd = mayBeSilent = awaitsDelivery = False
    hasArrived = True

    def __init__(self) -> None:
        self.told: list[str] = []

    def poll(self) -> None:
        """There is nothing to take in."""

    def doubt(self) -> None:
        self.isDoubted = True

    def violated(self, what: str) -> None:
        self.told.append("violated")

    def vanished(self) -> None:
        self.told.append("vanished")

    def reset(self) -> None:
        self.told.append("reset")

    def stopped(self) -> None:
        self.told.append("stopped")


class TCP:
    """Remembers how it was ended."""

    connected = 1
    dataBuffer = b""
    _tempDataLen = 0

    def __init__(self) -> None:
        self.ended: list[str] = []

    def loseConnection(self) -> None:
        self.ended.append("closing")

    def doWrite(self) -> Exception:
        return ConnectionDone()

    def connectionLost(self, reason: Failure) -> None:
        reason.trap(ConnectionDone)
        self.ended.append("closed")

    def abortConnection(self) -> None:
        self.ended.append("reset")


class CompanionTests(SynchronousTestCase):
    """A connection whose TCP ends."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.stream = Stream()
        self.tcp = TCP()
        self.monitor = TCPMonitor(self.stream, cast(Any, self.tcp), self.clock)

    def test_silence(self) -> None:
        """A FIN and no word from the link within the grace: the peer is lost."""
        self.monitor.readConnectionLost()
        self.assertEqual((self.stream.told, self.stream.isDoubted), ([], True))
        self.clock.advance(GRACE)
        self.assertEqual(self.stream.told, ["reset"])

    def test_word(self) -> None:
        """The peer's word comes within the grace: what becomes of TCP is no news."""
        self.monitor.readConnectionLost()
        self.stream.hasReceivedEnd = True
        self.clock.advance(GRACE)
        self.assertEqual(self.stream.told, [])

    def test_nobodyAcknowledges(self) -> None:
        """Who has closed, and has the peer's word, does not wait for a process that has gone with its TCP."""
        self.stream.hasReceivedEnd = self.stream.awaitsDelivery = True
        self.stream.hasArrived = False
        self.monitor.readConnectionLost()
        self.assertEqual(self.stream.told, [])
        self.clock.advance(GRACE)
        self.assertEqual(self.stream.told, ["reset"])

    def test_acknowledgedAfterAll(self) -> None:
        """The last acknowledgement comes within the grace."""
        self.stream.hasReceivedEnd = self.stream.awaitsDelivery = True
        self.stream.hasArrived = False
        self.monitor.readConnectionLost()
        self.stream.hasArrived = True
        self.clock.advance(GRACE)
        self.assertEqual(self.stream.told, [])

    def test_dead(self) -> None:
        """TCP in order and no link: the peer's process has died."""
        self.monitor.linkLost(mayVanish=True)
        self.assertEqual(self.stream.told, [])
        self.monitor.readConnectionLost()
        self.assertEqual(self.stream.told, ["vanished"])

    def test_noLink(self) -> None:
        """A link that fails takes the connection with it, and TCP tells the peer by a reset."""
        self.monitor.linkLost(mayVanish=False)
        self.assertEqual((self.stream.told, self.tcp.ended), (["reset"], ["reset"]))

    def test_reset(self) -> None:
        """A reset of TCP loses the connection, unless the peer has said its end before."""
        for isHeard, told in ((False, ["reset"]), (True, [])):
            self.setUp()
            self.stream.hasReceivedEnd = isHeard
            self.monitor.connectionLost(Failure(ConnectionLost()))
            self.assertEqual(self.stream.told, told)

    def test_finish(self) -> None:
        """TCP closes with the stream, in order at once, and leaves no call behind."""
        ways = ((True, b"", ["closed"]), (True, b"unsent", ["closing", "closed"]), (False, b"", ["reset"]))
        for inOrder, unsent, ended in ways:
            self.setUp()
            self.tcp.dataBuffer = unsent
            self.monitor.readConnectionLost()
            self.monitor.finish(inOrder)
            self.assertEqual((self.tcp.ended, self.clock.getDelayedCalls()), (ended, []))

    def test_bytes(self) -> None:
        """Bytes on a TCP connection beside SMC-R break the rules."""
        self.monitor.dataReceived(b"?")
        self.assertEqual((self.stream.told, self.tcp.ended), (["violated"], ["reset"]))

    def test_fellBack(self) -> None:
        """A peer that fell back to TCP hears a reset, not the FIN by which a stream closes that has ended."""
        self.stream.violated = lambda what: self.monitor.finish(inOrder=True)  # type: ignore[method-assign]
        self.monitor.dataReceived(b"declined")
        self.assertEqual(self.tcp.ended, ["reset"])
