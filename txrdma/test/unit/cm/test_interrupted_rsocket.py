"""Streams of rsockets, one function of which raises an exception: see L{InterruptedStreams}."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import maybeDeferred
from twisted.internet.protocol import Factory
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

import txrdma.cm.connections
import txrdma.cm.rsocket
import txrdma.streams
from txrdma.cm.connections.transport import RDMATransport
from txrdma.cm.rsocket.endpoints import RSocketClientEndpoint, RSocketOptions, RSocketServerEndpoint
from txrdma.kit import cancelling, shutdown
from txrdma.test.support.cm.interrupted import partsOf
from txrdma.test.support.cm.messaging import MessagingCase, PORT
from txrdma.test.support.compiled import skipIfCompiled
from txrdma.test.support.interruptedstreams import InterruptedStreams, Peer
from txrdma.test.support.interruptions import ownersIn

PACKAGES = txrdma.cm.rsocket, txrdma.cm.connections, txrdma.streams

TRIVIAL = (
    # They handle the exceptions of others.
    *("_abort", "_call", "_completed", "_cut", "_ended", "_handleEvent", "_scheduledTurn", "blame"),
    *("connectionLost", "dismiss", "handleEvent", "wrapped"),
    # They only call these, or return what these have done.
    *("_started", "abortConnection", "withdraw"),
    # They release what they are called for.
    *("ended", "release", "removeShutdownListener", "stopListening", "suspend"),
    # They are called for both streams.
    "meaning",
)

OPTIONS = RSocketOptions(keepalive=None)


class RSocketTests(InterruptedStreams, MessagingCase, SynchronousTestCase):
    """Streams of rsockets, with the RDMA connections that carry them and their endpoints."""

    OWNERS = staticmethod(lambda: (*ownersIn(*PACKAGES), cancelling, shutdown))
    TRIVIAL = TRIVIAL
    LEAST = 140
    TRANSPORT = "RSocketTransport"

    def setUp(self) -> None:
        skipIfCompiled()
        super().setUp()

    def begin(self) -> None:
        self.createHosts()
        self.servers: list[Peer] = []
        self.factories: list[Factory] = []
        listening = RSocketServerEndpoint(self.clock, PORT, self.devices[1], OPTIONS)
        self.port = self.result(listening.listen(self.factory(lambda: self.servers.pop(0))))

    def factory(self, build: Callable[[], Peer]) -> Factory:
        self.factories.append(Factory.forProtocol(build))
        return self.factories[-1]

    def seconds(self) -> float:
        return self.clock.seconds()

    def iterate(self) -> bool:
        self.clock.step()
        return True

    def attempt(self, client: Peer, server: Peer, isVictim: bool) -> tuple[list[Any], Callable[[], object]]:
        self.servers = [server]
        endpoint = RSocketClientEndpoint(self.clock, self.addresses[1][0], PORT, self.devices[0], OPTIONS)
        outcome: list[Any] = []
        self.isArmed = isVictim
        maybeDeferred(endpoint.connect, self.factory(lambda: client)).addBoth(outcome.append)
        return outcome, lambda: server.made or not client.made or client.lost

    def partsOf(self, transport: Any) -> list[object]:
        return [*partsOf(transport, tuple(each.__name__ for each in PACKAGES))]

    def listen(self) -> list[str]:
        """Listen to a port and stop; do it again without an interruption; return what is wrong."""
        self.wrong, self.escaped = list[str](), list[Failure]()
        self.begin()
        endpoint = RSocketServerEndpoint(self.clock, PORT + 1, self.devices[1], OPTIONS)
        factory, ports = self.factory(Peer), list[Any]()
        self.isArmed = True
        maybeDeferred(endpoint.listen, factory).addErrback(lambda _: None).addBoth(ports.append)
        self.isArmed = False
        for port in filter(None, ports):
            port.stopListening()
        self.result(endpoint.listen(factory)).stopListening()
        self.clear()
        return self.wrong

    def test_listen(self) -> None:
        """Listening fails, and leaves nothing."""
        self.assertEqual(self.listen(), [])
        self.assertGreater(len(self.calls.counts), 15)
        found = self.calls.findings(self.listen)
        self.assertEqual(found, {}, "\n".join(f"{key}: {value}" for key, value in found.items()))

    def test_abortOnce(self) -> None:
        """An aborted stream ends although the abort of its RDMA connection raises an exception."""
        self.calls.begin((RDMATransport, "_finish"), 1)
        self.assertEqual(self.play("abortConnection"), [])
        self.assertTrue(self.calls.hasRaised)

    def clear(self) -> None:
        self.port.stopListening()
        try:
            self.assertNothingLeft(300)
        except self.failureException as error:
            self.wrong.append(f"left: {error}")
        self.passTime(0.1)  # the last datagrams arrive
        left = [*self.clock.getDelayedCalls(), *(each for each in self.factories if each.numPorts)]
        self.wrong += [f"left: {each!r}" for each in left]
