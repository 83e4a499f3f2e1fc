"""A client of a verification, and servers that close its connections."""

from __future__ import annotations

import json
from io import StringIO
from typing import Any

from twisted.internet import reactor
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.protocol import Factory, Protocol
from twisted.trial.unittest import TestCase

from txrdma.verify.checks import Check, decoded, Outcome, Reporter
from txrdma.verify.measuring import Client
from txrdma.verify.serving import StreamService

LOOPBACK = "127.0.0.1"


class Offering(Protocol):
    """Sends the offer of its factory."""

    factory: Any
    transport: Any

    def connectionMade(self) -> None:
        self.transport.write(json.dumps(self.factory.offer).encode() + b"\n")
        self.transport.loseConnection()


class Closing(StreamService):
    """A server's connection; that whose number is the factory's C{closes} is closed at once."""

    factory: Any

    def __init__(self) -> None:
        super().__init__(set())

    def connectionMade(self) -> None:
        super().connectionMade()
        self.factory.connections += 1
        if self.factory.connections == self.factory.closes:
            self.transport.abortConnection()


class ClosedTests(TestCase):
    """A server closes one connection, for example because it has too many."""

    async def listen(self, protocol: type[Protocol], **attributes: Any) -> int:
        """Listen at any port of the loopback interface, and return its number."""
        factory = Factory.forProtocol(protocol)
        factory.__dict__.update(attributes)
        port = await TCP4ServerEndpoint(reactor, 0, interface=LOOPBACK).listen(factory)
        self.addCleanup(port.stopListening)
        return int(port.getHost().port)

    async def checked(self, closes: int) -> Check:
        """Return the result for C{tcp:} with a server that closes one connection."""
        streams = await self.listen(Closing, connections=0, closes=closes)
        offer = {"version": "1", "address": "", "missing": {}, "tcp": streams}
        control = await self.listen(Offering, offer=offer)
        out = StringIO()
        noDevice: Any = None
        await Client(reactor, Reporter(out), noDevice, LOOPBACK, 0.01, 1.0).run(control)
        found = [decoded(line) for line in out.getvalue().encode().splitlines()]
        (check,) = [each for each in found if isinstance(each, Check)]
        return check

    async def test_ends(self) -> None:
        """The check fails at once, with the reason: the echo, the measurement of latency and of bandwidth."""
        for closes, name in enumerate(("echo", "latency", "bandwidth"), 1):
            check = await self.checked(closes)
            self.assertEqual((name, check.outcome), (name, Outcome.FAILED))
            self.assertIn("the server closed the connection early: ", check.text)
            self.assertLess(check.seconds, 10.0)

    async def test_open(self) -> None:
        """The check passes if no connection is closed."""
        check = await self.checked(0)
        self.assertEqual((check.outcome, check.text), (Outcome.PASSED, ""))
