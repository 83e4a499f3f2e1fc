"""
The log of connections by name and outcome.
"""

from __future__ import annotations

from collections import Counter
from typing import Any, cast

from twisted.logger import ILogObserver, LogEvent, Logger
from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.logs import RateLimitedLogger
from txrdma.smc.common import counting
from txrdma.smc.handshake import outcomes
from txrdma.smc.stream.connectionstatus import markTCP
from txrdma.smc.wire.clc import Diagnosis


class TCPTransport:
    """A transport of which only the status is used."""

    smc: Any


class FallbackTests(SynchronousTestCase):
    """Connections that use plain TCP."""

    def test_reasonWithVaryingTextIsLoggedOnce(self) -> None:
        """The texts of errors contain random names, for example of sockets in a directory."""
        events: list[LogEvent] = []
        log = Logger(observer=cast(ILogObserver, events.append))
        self.patch(outcomes, "_rateLimited", RateLimitedLogger(log))
        connections = outcomes.Outcomes("connection to 192.0.2.1:80")
        for number in range(5):
            connections.fellBack(Diagnosis.NOSMCDEV, None, True, f"no space left for socket {number}")
        connections.fellBack(Diagnosis.MEM, None, True, "no space left")
        self.assertEqual([event["reason"] for event in events], ["NOSMCDEV", "MEM"])

    def test_unknownDiagnosesAreCountedTogether(self) -> None:
        """Peers can send any diagnosis of 32 bits, and each reason is a series of a metric."""
        self.patch(counting, "fallbacks", Counter())
        transport: Any = TCPTransport()
        for number in range(100):
            markTCP(transport, "server", Diagnosis.PEERDECL, Diagnosis(0x1000 + number))
        markTCP(transport, "server", Diagnosis.PEERDECL, Diagnosis.MEM)
        self.assertEqual(
            counting.fallbacks,
            {("server", "PEERDECL (unknown)"): 100, ("server", "PEERDECL (MEM)"): 1},
        )
