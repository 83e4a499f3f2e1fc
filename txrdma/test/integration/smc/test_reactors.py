"""
Twisted's own tests of stream transports, with C{smc} endpoints in SMC mode and in each kind of fallback.

They need real reactors and sockets. These use the epoll reactor, the default on Linux;
L{txrdma.test.soak.smc.test_reactors} has the others.

These tests of C{twisted.internet.test} cannot use an endpoint, and are left out: C{TCPPortTestsMixin} and
C{StreamTransportTestsMixin} (log messages and descriptors of a listening C{tcp.Port}),
C{TCPTransportServerAddressTestMixin} (C{repr} of C{tcp.Server}), C{TCPConnectorTestsBuilder} (an endpoint has
no connector), and C{TCPConnectionTestsBuilder}'s C{test_resumeProducing...} (whether the transport itself is
among the reactor's readers; what they are about is tested here).
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import partial
from typing import Any, ClassVar, Final, TYPE_CHECKING

from zope.interface import implementer

from twisted.internet import interfaces
from twisted.internet.address import IPv4Address
from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.test import test_tcp
from twisted.internet.test.connectionmixins import (
    ConnectableProtocol,
    ConnectionTestsMixin,
    EndpointCreator,
    runProtocolsWithReactor,
    StreamClientTestsMixin,
)
from twisted.internet.test.reactormixins import ReactorBuilder
from twisted.internet.test.test_tcp import AbortConnectionMixin, WriteSequenceTestsMixin
from twisted.python.failure import Failure
from twisted.test.test_tcp import MyClientFactory, MyServerFactory
from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.stream import connectionstatus as status

NOT_THERE = r"device=soft\:192.0.2.1"
"""A device that can't be opened: no host has its address."""


@dataclass(frozen=True)
class Creator(EndpointCreator):
    """
    Creates endpoints from strings.

    @ivar mode: mode of the connections between them.
    """

    serverString: str = "smc:{}:0"
    clientString: str = "smc:{}:{}"
    host: str = "127.0.0.1"
    mode: str = "SMC-R"

    def server(self, reactor: Any) -> Any:
        return serverFromString(reactor, self.serverString.format(self._quoted))

    def client(self, reactor: Any, serverAddress: Any) -> Any:
        return clientFromString(reactor, self.clientString.format(self._quoted, serverAddress.port))

    @property
    def _quoted(self) -> str:
        return self.host.replace(":", r"\:")


CREATORS: Final = {
    "": Creator(),
    "IPv6": Creator(host="::1"),
    "Agreed": Creator("smc:{}:0:peer=smc", "smc:{}:{}:peer=smc"),
    "PlainServer": Creator(serverString="tcp:0:interface={}", mode="TCP"),
    "PlainClient": Creator(clientString="tcp:{}:{}", mode="TCP"),
    "DecliningServer": Creator(serverString="smc:{}:0:" + NOT_THERE, mode="TCP"),
    "DecliningClient": Creator(clientString="smc:{}:{}:" + NOT_THERE, mode="TCP"),
}
"""Creators for each kind of server and client: without SMC, or without a device."""


@implementer(interfaces.IConnector)
class _Connector:
    """An attempt of an endpoint with the interface of C{connectTCP}'s connector."""

    def __init__(self, endpoint: Any, factory: Any) -> None:
        self._factory = factory
        self._connecting = endpoint.connect(factory)
        self._connecting.addErrback(self._failed)

    def _failed(self, failure: Failure) -> None:
        self._factory.clientConnectionFailed(self, failure)

    def stopConnecting(self) -> None:
        self._connecting.cancel()

    def disconnect(self) -> None:
        self._connecting.cancel()

    def connect(self) -> None:
        raise NotImplementedError

    def getDestination(self) -> Any:
        raise NotImplementedError


if TYPE_CHECKING:

    class _Base(ReactorBuilder, SynchronousTestCase):
        """Mixed into the classes that C{makeTestCaseClasses} creates."""
else:
    _Base = ReactorBuilder


class _Peer(ConnectableProtocol):
    """Accept any kind of transport."""

    transport: Any


class _Builder(_Base):
    timeout = 60
    requiredInterfaces = (interfaces.IReactorTCP, interfaces.IReactorUNIX)
    endpoints: ClassVar[Creator] = Creator()

    def buildReactor(self) -> Any:
        reactor = super().buildReactor()
        seen: set[str] = set()
        self.modes = seen
        register = status.register

        def registered(transport: Any) -> None:
            seen.add(transport.smc.mode)
            register(transport)

        self.patch(status, "register", registered)
        self.addCleanup(self._check)
        return reactor

    def _check(self) -> None:
        self.assertLessEqual(self.modes, {self.endpoints.mode})


class _Connections(  # type: ignore[misc]  # endpoints of a narrower type
    _Builder, ConnectionTestsMixin, StreamClientTestsMixin
):
    _address: Any = None

    def listen(self, reactor: Any, factory: Any) -> None:
        def listening(port: Any) -> None:
            self._address = port.getHost()

        self.endpoints.server(reactor).listen(factory).addCallback(listening)

    def connect(self, reactor: Any, factory: Any) -> Any:
        address = self._address or IPv4Address("TCP", self.endpoints.host, 1)
        return _Connector(self.endpoints.client(reactor, address), factory)


_HASTY = (test_tcp.StreamingProducerClient, test_tcp.ProducerAbortingClient, test_tcp.ResumeThrowsClient)


class _Aborts(_Builder, AbortConnectionMixin):  # type: ignore[misc]  # endpoints of a narrower type
    """C{abortConnection} in every callback."""

    def runAbortTest(
        self, clientClass: Any, serverClass: Any, clientConnectionLostReason: Any = None
    ) -> None:
        """
        Run like Twisted's test, but start when the server is connected as well.

        Over TCP in one process it is; here the server may be connected later than the client.
        """
        if clientClass in _HASTY:

            class Patient(clientClass):  # type: ignore[misc]  # whichever it is
                def connectionMade(self) -> None:
                    if self.otherProtocol.transport is None:
                        self.reactor.callLater(0.001, self.connectionMade)
                    else:
                        super().connectionMade()

            clientClass = Patient
        super().runAbortTest(clientClass, serverClass, clientConnectionLostReason)


class _Sequences(_Builder, WriteSequenceTestsMixin):  # type: ignore[misc]  # the interfaces, too
    def getConnectedClientAndServer(self, reactor: Any, interface: str, addressFamily: int) -> Deferred[Any]:
        server: Any = MyServerFactory()
        server.protocolConnectionMade = Deferred()
        server.protocolConnectionLost = Deferred()
        client: Any = MyClientFactory()
        client.protocolConnectionMade = Deferred()
        client.protocolConnectionLost = Deferred()
        lost = gatherResults([client.protocolConnectionLost, server.protocolConnectionLost])
        lost.addBoth(lambda result: (reactor.stop(), result)[1])

        async def connected() -> Any:
            port = await self.endpoints.server(reactor).listen(server)
            self.endpoints.client(reactor, port.getHost()).connect(client)
            made = await gatherResults([client.protocolConnectionMade, server.protocolConnectionMade])
            return (*made, port)

        return Deferred.fromCoroutine(connected())


class _Reading(_Builder):
    """Pausing, resuming and half-close: C{TCPConnectionTestsBuilder}, as far as it is about any transport."""

    def _asTwisted(self, name: str) -> None:
        # Twisted's write that detects aborts on macOS needs a server that is connected before its client
        # is lost, which is guaranteed for TCP within one process only.
        run = partial(runProtocolsWithReactor, writeToPeerAfterAbort=False)
        self.patch(test_tcp, "runProtocolsWithReactor", run)
        self.patch(test_tcp, "TCPCreator", lambda: self.endpoints)
        getattr(test_tcp.TCPConnectionTestsBuilder, name)(self)

    def test_connectionLostAfterPausedTransport(self) -> None:
        """A paused end is notified of the end when it resumes."""
        self._asTwisted("test_connectionLostAfterPausedTransport")

    def test_doubleHalfClose(self) -> None:
        """Both ends may half-close, one after the other."""
        self._asTwisted("test_doubleHalfClose")

    def test_pausedProtocolGetsAllDataWhenResumed(self) -> None:
        received: list[tuple[bool, bytes]] = []

        class Server(_Peer):
            paused = False

            def connectionMade(self) -> None:
                self.paused = True
                self.transport.pauseProducing()
                self.reactor.callLater(0.05, self.resume)

            def resume(self) -> None:
                self.paused = False
                self.transport.resumeProducing()

            def dataReceived(self, data: bytes) -> None:
                received.append((self.paused, data))
                self.transport.loseConnection()

        class Client(_Peer):
            def connectionMade(self) -> None:
                self.transport.write(b"one")
                self.transport.write(b"two")

        runProtocolsWithReactor(self, Server(), Client(), self.endpoints, writeToPeerAfterAbort=False)
        self.assertEqual(received, [(False, b"onetwo")])

    def test_resumeAfterLoseConnectionDeliversNothing(self) -> None:
        received: list[bytes] = []

        class Server(_Peer):
            def connectionMade(self) -> None:
                self.transport.loseConnection()
                self.transport.resumeProducing()

            def dataReceived(self, data: bytes) -> None:
                received.append(data)

        class Client(_Peer):
            def connectionMade(self) -> None:
                self.transport.write(b"too late")

        runProtocolsWithReactor(self, Server(), Client(), self.endpoints, writeToPeerAfterAbort=False)
        self.assertEqual(received, [])


def testCaseClasses(module: str, *reactors: str) -> dict[str, type]:
    """Create the test cases of a module: each group of tests with each creator, on each of these reactors."""
    made: dict[str, type] = {}
    for group in (_Connections, _Aborts, _Sequences, _Reading):
        for kind, creator in CREATORS.items():
            name = kind + group.__name__.removeprefix("_")
            body = {"endpoints": creator, "__module__": module, "__doc__": group.__doc__}
            body["_reactors"] = list(reactors)
            made.update(type(name, (group,), body).makeTestCaseClasses())  # type: ignore[attr-defined]
    return made


globals().update(testCaseClasses(__name__, "twisted.internet.epollreactor.EPollReactor"))
