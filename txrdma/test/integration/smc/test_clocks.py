"""
SMC-R connections of a host whose system time is set back: deadlines are met, and durations are not negative.
"""

from __future__ import annotations

from twisted.internet.error import ConnectionLost

from txrdma.smc.group.groups import everyGroup
from txrdma.smc.handshake._machine import CLC_TIMEOUT
from txrdma.smc.wire.clc import Decline, decode
from txrdma.test.support.smc.races import RaceTestCase
from txrdma.testing.smc.scenario import PATIENT_BOUND

HOURS = 36_000.0
"""Seconds: longer than any silence of a peer."""


class SetBackTests(RaceTestCase):
    """The system time of the client is set back by ten hours during a connection."""

    def setUp(self) -> None:
        super().setUp()
        self.here, self.there, _ = self.connect()
        self.until(lambda: self.here.mode == self.there.mode == "SMC-R")

    def test_silentPeerIsDetected(self) -> None:
        self.wait(1.0)  # nothing remains to be acknowledged, so that only TEST LINK detects the end
        self.server.die(silently=True)
        self.client.setClock(-HOURS)
        self.wait(2 * PATIENT_BOUND)
        self.assertIs(self.here.reason, ConnectionLost)

    def test_endOfTCPIsDetected(self) -> None:
        """A peer has no more time for its last message after the end of its TCP connection."""
        self.server.die(silently=False)
        self.wait(0.1)
        self.client.setClock(-HOURS)
        self.wait(15.0)
        self.assertIs(self.here.reason, ConnectionLost)

    def test_blockedSeconds(self) -> None:
        self.there.transport.pauseProducing()
        self.here.transport.write(bytes(1 << 20))
        self.wait(2.0)
        self.client.setClock(-HOURS)
        self.wait(2.0)
        (stream,) = (
            stream
            for group in everyGroup()
            if group.groups.reactor is self.client
            for stream in group.streams()
        )
        # At least the time after the clock was set back: when that happened exactly is not known.
        self.assertApproximates(stream.blockedSeconds, 3.0, 1.1)  # type: ignore[attr-defined]  # of a Stream


class HandshakeTests(RaceTestCase):
    """The system time of the client is set back during a handshake that the server does not answer."""

    def setUp(self) -> None:
        super().setUp()
        self.server.sleep()

    def test_clientFallsBackInTime(self) -> None:
        here, _there, _ = self.connect()
        self.wait(0.1)
        self.client.setClock(-HOURS)
        self.wait(2 * CLC_TIMEOUT)
        self.assertEqual(here.mode, "TCP")

    def test_timeoutOfOptions(self) -> None:
        """The client declines after the timeout of its options, which is the shorter one."""
        _here, there, (socket, _) = self.connect(timeout=1.0)
        sent: list[bytes] = []
        self.wait(0.1)
        socket.sniffer = sent.append
        self.client.setClock(-HOURS)
        self.wait(2.0)
        (message,) = sent
        self.assertIsInstance(decode(message), Decline)
        self.assertEqual(there.mode, "")
