"""A client of a verification, and servers that close its connections."""

from __future__ import annotations

import json
from functools import partial
from io import StringIO
from operator import not_
from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.endpoints import TCP4ServerEndpoint
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.internet.tcp import Connection
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from txrdma.testing.reactors import waitUntil
from txrdma.verify.checks import Check, decoded, Outcome, Reporter
from txrdma.verify.measuring import MeasuringClient
from txrdma.verify.serving import StreamService

LOOPBACK = "127.0.0.1"

reactor: Any = theReactor


class Offering(Protocol):
    """Sends the offer of its factory, and limits the time of the checks that follow."""

    factory: Any
    transport: Any

    def connectionMade(self) -> None:
        self.transport.write(json.dumps(self.factory.offer).encode() + b"\n")
        self.factory.client._limit = self.factory.limitSeconds
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


class Silent(Protocol):
    """A server's connection that neither reads nor answers."""

    factory: Any
    transport: Any

    def connectionMade(self) -> None:
        self.transport.pauseProducing()
        self.factory.open.append(self.transport)


class Mute(StreamService):
    """A server's connection, which does not answer if its number is the factory's C{mute} or a later one."""

    factory: Any

    def __init__(self) -> None:
        super().__init__(set())

    def connectionMade(self) -> None:
        super().connectionMade()
        self.factory.open.add(self)
        self.factory.connections += 1
        self._isMute = self.factory.connections >= self.factory.mute

    def dataReceived(self, data: bytes) -> None:
        if not self._isMute:
            super().dataReceived(data)

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        super().connectionLost(reason)
        self.factory.open.discard(self)


class ClosedTests(TestCase):
    """A server closes one connection, for example because it has too many, or does not answer."""

    timeout = 60

    async def listen(self, protocol: type[Protocol], **attributes: Any) -> int:
        """Listen at any port of the loopback interface, and return its number."""
        factory = Factory.forProtocol(protocol)
        factory.__dict__.update(attributes)
        port = await TCP4ServerEndpoint(reactor, 0, interface=LOOPBACK).listen(factory)
        self.addCleanup(port.stopListening)
        return int(port.getHost().port)

    async def checked(self, streams: int, limitSeconds: float = 20.0) -> Check:
        """Return the result for C{tcp:} with a server whose connections are at this port."""
        offer = {"version": "1", "address": "", "missing": {}, "tcp": streams}
        out = StringIO()
        noDevice: Any = None
        client = MeasuringClient(reactor, Reporter(out), noDevice, LOOPBACK, 0.01, patience=1.0)
        await client.run(await self.listen(Offering, offer=offer, client=client, limitSeconds=limitSeconds))
        found = [decoded(line) for line in out.getvalue().encode().splitlines()]
        (check,) = [each for each in found if isinstance(each, Check)]
        return check

    async def test_ends(self) -> None:
        """The check fails at once, with the reason: the echo, the measurement of latency and of bandwidth."""
        for closes, name in enumerate(("echo", "latency", "bandwidth"), 1):
            check = await self.checked(await self.listen(Closing, connections=0, closes=closes))
            self.assertEqual((name, check.outcome), (name, Outcome.FAILED))
            self.assertIn("the server closed the connection early: ", check.text)
            self.assertLess(check.seconds, 10.0)

    async def test_open(self) -> None:
        """The check passes if no connection is closed."""
        check = await self.checked(await self.listen(Closing, connections=0, closes=0))
        self.assertEqual((check.outcome, check.text), (Outcome.PASSED, ""))

    async def test_timeLimit(self) -> None:
        """A check that fails at its time limit closes its connection."""
        for mute in (1, 2, 3):
            opened: set[Mute] = set()
            port = await self.listen(Mute, connections=0, mute=mute, open=opened)
            check = await self.checked(port, limitSeconds=0.2)
            self.assertEqual((check.outcome, check.text.partition(":")[0]), (Outcome.FAILED, "TimeoutError"))
            await waitUntil(reactor, partial(not_, opened))

    async def test_silent(self) -> None:
        """The check fails at its time limit if the server does not answer."""
        connections: list[Any] = []
        check = await self.checked(await self.listen(Silent, open=connections), limitSeconds=0.2)
        for transport in connections:
            transport.abortConnection()
        await waitUntil(
            reactor, lambda: not any(isinstance(each, Connection) for each in reactor.getReaders())
        )
        self.assertEqual((check.outcome, check.text.partition(":")[0]), (Outcome.FAILED, "TimeoutError"))
        self.assertEqual(len(connections), 1)
