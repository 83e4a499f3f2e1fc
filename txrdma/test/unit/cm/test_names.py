"""Host names in endpoints for messages."""

from __future__ import annotations

from typing import Any
from unittest.mock import Mock

from zope.interface import alsoProvides, implementer

from twisted.internet.address import HostnameAddress, IPv4Address, IPv6Address
from twisted.internet.defer import CancelledError, Deferred, succeed
from twisted.internet.error import (
    ConnectError,
    ConnectingCancelledError,
    ConnectionRefusedError,
    DNSLookupError,
)
from twisted.internet.interfaces import (
    IHostnameResolver,
    IHostResolution,
    IReactorCore,
    IReactorPluggableNameResolver,
    IResolutionReceiver,
)

from txrdma.cm.connections.datagrams import (
    DatagramClientEndpoint,
    DatagramProtocol,
    DatagramServerEndpoint,
)
from txrdma.cm.connections.hostnames import addressesOf, ATTEMPT_DELAY, Attempts
from txrdma.cm.errors import HostUnknown, Rejected
from txrdma.cm.rsocket.endpoints import RSocketClientEndpoint, RSocketServerEndpoint
from txrdma.error import DeviceUnavailable
from txrdma.iba.types import GID
from txrdma.messages.protocol import MessageFactory
from txrdma.test.support.cm.messaging import MessagingCase, PORT
from txrdma.testing.protocols import Recorders
from txrdma.testing.reactors import ReactorClock


@implementer(IHostResolution)
class Resolution:
    """A lookup whose result is set by a test."""

    def __init__(self, name: str, receiver: IResolutionReceiver) -> None:
        self.name, self.receiver = name, receiver
        self.isCancelled = False

    def cancel(self) -> None:
        self.isCancelled = True
        self.receiver.resolutionComplete()  # like some resolvers

    def answer(self, *addresses: str) -> None:
        """Return the addresses to the caller."""
        for each in addresses:
            kind = IPv6Address if ":" in each else IPv4Address
            self.receiver.addressResolved(kind("TCP", each, 0))
        self.receiver.resolutionComplete()


@implementer(IReactorPluggableNameResolver, IHostnameResolver)
class ResolvingClock(ReactorClock):
    """A reactor with a resolver controlled by a test."""

    def __init__(self) -> None:
        super().__init__()
        self.asked: list[Resolution] = []

    @property
    def nameResolver(self) -> Any:
        return self

    def installNameResolver(self, resolver: Any) -> Any:
        raise NotImplementedError

    def resolveHostName(
        self,
        resolutionReceiver: IResolutionReceiver,
        hostName: str,
        portNumber: int = 0,
        addressTypes: Any = None,
        transportSemantics: str = "TCP",
    ) -> Resolution:
        self.asked.append(Resolution(hostName, resolutionReceiver))
        resolutionReceiver.resolutionBegan(self.asked[-1])
        return self.asked[-1]


class NameCase(MessagingCase):
    """Two hosts of which the second has a name."""

    clockClass = ResolvingClock

    def setUp(self) -> None:
        super().setUp()
        assert isinstance(self.clock, ResolvingClock)
        self.resolving = self.clock


class NameTests(NameCase):
    """Connections and datagram services."""

    def asking(self, port: int = 7471) -> Deferred[Any]:
        """Connect to the second host by its name."""
        return self.connectTo(host="there.example", port=port)

    def finish(self, client: Any) -> None:
        """Assert that a client is connected to the reachable address, and close it."""
        self.assertEqual(client.transport.getPeer().host, "10.0.1.2")
        client.transport.loseConnection()
        self.wait(lambda: client.lost)

    def test_invalidNames(self) -> None:
        """A name that no query can contain, such as one with an empty label, is unknown."""
        for name in ("there..example", ".example", f"{64 * 'x'}.example", "\udc80"):
            error = self.failureResultOf(addressesOf(self.resolving, name), HostUnknown)
            self.assertIn("is not a host name", str(error.value))
        self.assertEqual(self.resolving.asked, [])

    def test_namesAreResolvedAddressesAreNot(self) -> None:
        self.listenAt()
        asked = self.asking()
        (resolution,) = self.resolving.asked
        self.assertEqual(resolution.name, "there.example")
        resolution.answer("10.0.1.2", "10.0.1.2")
        self.finish(self.result(asked))
        found = addressesOf(self.resolving, "192.0.2.1")
        self.assertEqual(self.successResultOf(found), ["192.0.2.1"])
        self.assertEqual(len(self.resolving.asked), 1)

    def test_addressesAreTriedInTurn(self) -> None:
        self.listenAt()
        asked = self.asking()
        self.resolving.asked[0].answer("fe80::1", "10.0.1.2")
        self.finish(self.result(asked, 300.0))

    def test_addressesOfDatagramServiceAreTriedInTurn(self) -> None:
        """Clients of datagram services try the next address when the last one fails or does not answer."""
        factory = MessageFactory(DatagramProtocol)
        self.listenAt(factory, DatagramServerEndpoint)
        for addresses in (("fe80::1", "10.0.1.2"), ("10.0.1.9", "10.0.1.2")):
            asked = self.connectTo(factory, DatagramClientEndpoint, host="there.example")
            self.resolving.asked[-1].answer(*addresses)
            client = self.result(asked, 2.0)
            self.assertEqual(client.transport.peer.gid.ip, "10.0.1.2")
            client.transport.loseConnection()
        self.assertNothingLeft()

    def test_serviceAtName(self) -> None:
        """Clients of a service ID resolve names, too, and nothing else that is no address."""
        self.serve()
        asked = self.connectBy("there.example")
        self.resolving.asked[0].answer("fe80::1", "10.0.1.2")
        client = self.result(asked, 300.0)
        self.assertEqual(client.transport.path.remoteGID, GID.fromIP("10.0.1.2"))
        for port in ("7", "0x0002c90300000007"):  # a LID and a GUID
            self.failureResultOf(self.connectBy(port), ValueError)
        self.assertEqual(len(self.resolving.asked), 1)
        client.transport.loseConnection()
        self.wait(lambda: client.lost)

    def test_silentAddress(self) -> None:
        """After 0.3 seconds without an answer the next address is tried; the first attempt is withdrawn."""
        self.listenAt()
        begun = self.clock.seconds()
        asked = self.asking()
        self.resolving.asked[0].answer("10.0.1.9", "10.0.1.2")
        client = self.result(asked)
        self.assertLess(self.clock.seconds() - begun, ATTEMPT_DELAY + 0.1)
        states = client.transport.adapter.manager.states
        self.assertEqual((states["REQ_SENT"], states["ESTABLISHED"]), (0, 1))
        self.finish(client)

    def test_resolverThatRaises(self) -> None:
        """An exception of a resolver of paths fails the attempt with this address only."""
        self.listenAt()
        resolver = Mock(resolve=Mock(side_effect=[DeviceUnavailable("a test's"), succeed(self.path())]))
        asked = self.connectTo(host="there.example", resolver=resolver)
        self.resolving.asked[0].answer("10.0.1.9", "10.0.1.2")
        self.finish(self.result(asked))
        resolver = Mock(resolve=Mock(side_effect=DeviceUnavailable("a test's")))
        self.failureResultOf(self.connectTo(resolver=resolver), DeviceUnavailable)

    def test_cancelledAttempts(self) -> None:
        """Cancelling withdraws all attempts, and no further attempt begins."""
        asked = self.asking()
        self.resolving.asked[0].answer("10.0.1.8", "10.0.1.9", "10.0.1.2")
        self.pause(ATTEMPT_DELAY + 0.1)
        asked.cancel()
        self.failureResultOf(asked, CancelledError)
        self.assertEqual(self.served, [])
        self.assertNothingLeft()

    def test_attemptThatCannotBegin(self) -> None:
        """An exception before an attempt fails the attempt with this address only."""
        timers = Mock(side_effect=[Mock(), ZeroDivisionError])
        self.patch(self.clock, "callLater", timers)
        pending: list[Deferred[str]] = [Deferred(), Deferred()]
        connect = Mock(side_effect=pending)
        answer = Attempts(self.clock, "there.example", ["10.0.1.8", "10.0.1.9", "10.0.1.2"], connect).answer
        pending[0].errback(DeviceUnavailable("a test's"))
        pending[1].callback("connected")
        self.assertEqual(self.successResultOf(answer), "connected")
        self.assertEqual([each.args for each in connect.mock_calls], [("10.0.1.8",), ("10.0.1.2",)])

    def test_attemptThatCannotBeCancelled(self) -> None:
        """An exception of the first attempt's cancellation does not affect the one that has succeeded."""
        cancels = Mock(side_effect=[ZeroDivisionError, None])
        pending: list[Deferred[str]] = [Deferred(cancels), Deferred(), Deferred()]
        connect = Mock(side_effect=pending)
        answer = Attempts(self.clock, "there.example", ["10.0.1.8", "10.0.1.9", "10.0.1.2"], connect).answer
        for _ in pending[1:]:
            self.clock.advance(ATTEMPT_DELAY)
        pending[2].callback("connected")
        self.assertEqual(self.successResultOf(answer), "connected")
        self.assertEqual((cancels.call_count, pending[1].called), (2, True))
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_errorOfLastAddress(self) -> None:
        self.listenAt()
        asked = self.asking(9)
        self.resolving.asked[0].answer("10.0.1.2")
        self.failure(asked, Rejected)

    def test_unresolvableName(self) -> None:
        asked = self.asking()
        self.resolving.asked[0].answer()
        error = self.failureResultOf(asked, HostUnknown).value
        self.assertIn("there.example", str(error))
        self.failureResultOf(addressesOf(ReactorClock(), "there.example"), HostUnknown)

    def test_cancelledResolution(self) -> None:
        asked = self.asking()
        asked.cancel()
        self.failureResultOf(asked, CancelledError)
        self.assertTrue(self.resolving.asked[0].isCancelled)
        self.resolving.asked[0].answer("10.0.1.2")

    def test_resolverThatCannotCancel(self) -> None:
        """If a resolver cannot be cancelled, like Twisted's, its later answer does not start an attempt."""
        self.patch(Resolution, "cancel", Mock(side_effect=NotImplementedError))
        asked = self.asking()
        asked.cancel()
        self.failureResultOf(asked, CancelledError)
        self.resolving.asked[0].answer("10.0.1.2")
        self.assertNothingLeft()

    def test_nonIPAddressesAreSkipped(self) -> None:
        found = addressesOf(self.resolving, "there.example")
        self.resolving.asked[0].receiver.addressResolved(HostnameAddress(b"there", 0))
        self.resolving.asked[0].answer("10.0.1.2")
        self.assertEqual(self.successResultOf(found), ["10.0.1.2"])


class StreamTests(NameCase):
    """Clients of streams, which report errors as those of TCP do."""

    def setUp(self) -> None:
        super().setUp()
        self.clients = Recorders()

    def asking(self, *addresses: str, port: int = PORT) -> Deferred[Any]:
        """Connect to the second host by its name, which has these addresses."""
        asked = self.connectTo(self.clients, RSocketClientEndpoint, host="there.example", port=port)
        if addresses:
            self.resolving.asked[-1].answer(*addresses)
        return asked

    def test_addressesAreTriedInTurn(self) -> None:
        """The next address is tried when the last one fails, or does not answer for 0.3 seconds."""
        served = Recorders()
        self.listenAt(served, RSocketServerEndpoint)
        for addresses in (("fe80::1", "10.0.1.2"), ("10.0.1.9", "10.0.1.2")):
            begun = self.clock.seconds()
            client = self.result(self.asking(*addresses))
            self.assertLess(self.clock.seconds() - begun, ATTEMPT_DELAY + 0.1)
            self.assertEqual(client.transport.getPeer(), IPv4Address("TCP", "10.0.1.2", PORT))
            client.transport.write(b"hello")
            self.wait(lambda: served.protocols and served.protocols[-1].received == b"hello")
            client.transport.loseConnection()
            self.wait(lambda: not self.clients.numPorts)
        self.assertEqual(len(self.clients.protocols), 2)
        self.assertNothingLeft()

    def test_lateAnswer(self) -> None:
        """An address can answer after the attempt with the next one has begun; each has its own memory."""
        made = Recorders()
        connected = made.next()
        self.listenAt(made, RSocketServerEndpoint)
        self.network.drop(lambda packet: True)  # the first REQ
        begun = self.clock.seconds()
        client = self.result(self.asking("10.0.1.2", "10.0.1.9"))
        self.assertGreater(self.clock.seconds() - begun, ATTEMPT_DELAY)
        server = self.result(connected)
        server.transport.write(b"server")
        client.transport.write(b"client")
        self.assertEqual(self.result(client.receiving(6)), b"server")
        self.assertEqual(self.result(server.receiving(6)), b"client")
        client.transport.loseConnection()
        self.wait(lambda: client.lost.called)
        self.assertNothingLeft()

    def test_errors(self) -> None:
        """A name without an address is not found; otherwise the last address's error is reported."""
        asked = self.asking()
        self.resolving.asked[-1].answer()
        self.assertIn("there.example", str(self.failureResultOf(asked, DNSLookupError).value))
        self.listenAt(Recorders(), RSocketServerEndpoint)
        self.failure(self.asking("fe80::1", "10.0.1.2", port=9), ConnectionRefusedError)
        self.failure(self.asking("fe80::1"), ConnectError)
        self.assertEqual((self.clients.numPorts, self.clients.protocols), (0, []))
        self.assertNothingLeft()

    def test_cancelled(self) -> None:
        """Attempts can be cancelled when the name is resolved, when a peer is asked, and when it answers."""
        self.listenAt(Recorders(), RSocketServerEndpoint)
        for addresses in ((), ("10.0.1.8", "10.0.1.9", "10.0.1.2")):
            asked = self.asking(*addresses)
            self.pause(ATTEMPT_DELAY / 2)
            asked.cancel()
            self.checkCancelled(asked)
        self.assertEqual(self.clients.protocols, [])
        self.clients.next().addCallback(lambda _: asked.cancel())
        asked = self.asking("10.0.1.2")
        self.wait(lambda: self.clients.protocols)
        self.checkCancelled(asked)
        self.wait(lambda: self.clients.protocols[0].lost.called)
        self.assertNothingLeft()

    def checkCancelled(self, asked: Deferred[Any]) -> None:
        error = self.failureResultOf(asked, ConnectingCancelledError).value
        self.assertEqual(error.address, HostnameAddress(b"there.example", PORT))

    def test_reactorStops(self) -> None:
        """An attempt fails when the reactor stops, also while the name is resolved."""
        alsoProvides(self.clock, IReactorCore)  # the part of it that is used
        for addresses in ((), ("10.0.1.8", "10.0.1.9")):
            asked = self.asking(*addresses)
            self.clock.step()
            self.assertNoResult(asked)
            self.successResultOf(self.clock.stop())
            self.assertIn("the reactor stops", str(self.failureResultOf(asked, ConnectError).value))
        self.assertNothingLeft()
