"""The log event at the end of a connection."""

from __future__ import annotations

from typing import Any, cast
from unittest.mock import Mock

from twisted.internet.address import IPv4Address, IPv6Address, UNIXAddress
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionLost
from twisted.internet.task import Clock
from twisted.logger import formatEvent, ILogObserver, LogEvent, Logger
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.connectionlog import BURST, connectionFields, ConnectionLog, describe, PER_SECOND

ADDRESSES = IPv4Address("TCP", "127.0.0.1", 80), IPv6Address("TCP", "::1", 1234)


def fields(fallbackReason: str = "") -> dict[str, Any]:
    """Return the fields of a connection."""
    return connectionFields("smc", "server", "tcp", ADDRESSES, (10, 20), 1.5, fallbackReason)


class ConnectionLogTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.events: list[LogEvent] = []
        log = Logger("test", observer=cast(ILogObserver, self.events.append))
        self.log = ConnectionLog(log, self.clock.seconds)

    def end(self, error: BaseException | None = None) -> None:
        self.log.ended(Failure(error or ConnectionDone()), fields)

    def test_text(self) -> None:
        """The text contains the most important fields; the event has all of them as keys."""
        self.log.ended(Failure(ConnectionDone()), lambda: fields("PEERNOSMC"))
        (event,) = self.events
        self.assertEqual(
            formatEvent(event),
            "smc connection with [::1]:1234 ended after 1.5 s: done; tcp, 10 bytes sent, 20 received; "
            "not SMC-R, because PEERNOSMC",
        )
        self.assertEqual(
            (event["host"], event["role"], event["log_level"].name), ("127.0.0.1:80", "server", "info")
        )

    def test_addresses(self) -> None:
        """Addresses of TCP and of UNIX sockets are described by their text."""
        several = (*ADDRESSES, UNIXAddress(b"/run/x"), UNIXAddress(None), None)
        self.assertEqual(
            [*map(describe, several)], ["127.0.0.1:80", "[::1]:1234", "unix:/run/x", "unix:", "?:?"]
        )

    def test_clockSetBack(self) -> None:
        """No connection has a negative duration."""
        found = connectionFields("smc", "client", "tcp", ADDRESSES, (0, 0), -3597.0)
        self.assertEqual(found["seconds"], 0.0)

    def test_endings(self) -> None:
        """Each kind of end is logged as one word; the reason is the text of the exception."""
        for error, ending in (
            (ConnectionDone(), "done"),
            (ConnectionLost("gone"), "lost"),
            (ConnectionAborted(), "aborted"),
            (ValueError("a program's"), "failed"),
        ):
            self.end(error)
            event = self.events.pop()
            self.assertEqual((event["ending"], event["reason"]), (ending, Failure(error).getErrorMessage()))

    def test_rate(self) -> None:
        """A thousand connections per second cause a burst of events, and then only a few per second."""
        for _ in range(10_000):
            self.end()
            self.clock.advance(0.001)
        self.assertIn(BURST + 10 * PER_SECOND - len(self.events), (0, 1))  # rounding of times
        self.assertEqual(
            sum(each["suppressed"] for each in self.events) + len(self.events), 10_000 - self.log.suppressed
        )
        self.assertIn("other connections were not logged)", formatEvent(self.events[-1]))

    def test_suppressedCosts(self) -> None:
        """The fields of an event that is not written are not computed."""
        for _ in range(BURST):
            self.end()
        self.log.ended(Failure(ConnectionDone()), lambda: self.fail("computed"))
        self.assertEqual(self.log.suppressed, 1)

    def test_quiet(self) -> None:
        """After a pause, a whole burst is available again, but no more."""
        for _ in range(2):
            self.clock.advance(3600)
            self.events.clear()
            for _ in range(2 * BURST):
                self.end()
            self.assertEqual(len(self.events), BURST)

    def test_broken(self) -> None:
        """If reading the fields raises an exception, it is logged, and the connection ends as usual."""
        self.log.ended(Failure(ConnectionDone()), Mock(side_effect=OSError("no socket")))
        (event,) = self.events
        self.assertIn("can't log the end", formatEvent(event))
        self.assertIs(event["log_failure"].type, OSError)
