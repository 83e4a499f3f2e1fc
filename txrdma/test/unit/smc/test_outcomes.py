"""
The log of connections by name and outcome.
"""

from __future__ import annotations

from typing import cast

from twisted.logger import ILogObserver, LogEvent, Logger
from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.logs import RateLimitedLogger
from txrdma.smc.handshake import outcomes
from txrdma.smc.wire.clc import Diagnosis


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
