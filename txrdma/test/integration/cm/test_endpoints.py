"""Endpoints for messages and their strings on a real reactor."""

from __future__ import annotations

import os
import socket
from typing import Any
from unittest import skipUnless

from twisted.application.internet import ClientService, StreamServerEndpointService
from twisted.internet import reactor
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.endpoints import clientFromString, connectProtocol, serverFromString
from twisted.internet.error import CannotListenError, ConnectError, ConnectionDone
from twisted.internet.protocol import Factory
from twisted.internet.task import deferLater
from twisted.python.failure import Failure
from twisted.trial.unittest import TestCase

from txrdma.cm.connections import adapter as adapters
from txrdma.cm.connections.endpoints import RDMAClientEndpoint, RDMAServerEndpoint
from txrdma.cm.connections.protocol import RDMAProtocol
from txrdma.error import DeviceUnavailable, InvalidRequest, ResourceExhausted
from txrdma.iba.types import ROCE_PORT
from txrdma.messages.protocol import MessageFactory
from txrdma.ports.netlink import InterfaceAddress, NetworkInterface
from txrdma.ports.network import HostNetwork
from txrdma.soft.host.names import hostName
from txrdma.test.support.processes import loopbackAddress


class Echo(RDMAProtocol):
    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        self.transport.sendMessage(data, immediate)


class Asking(RDMAProtocol):
    """Sends a request, and records the answer and the end."""

    def __init__(self) -> None:
        self.ended: Deferred[list[Any]] = Deferred()

    def connectionMade(self) -> None:
        self.transport.sendMessage(b"hello", 7)

    def messageReceived(self, data: bytes, immediate: int | None) -> None:
        self.received = data, immediate
        self.transport.loseConnection()

    def connectionLost(self, reason: Failure) -> None:
        self.ended.callback([self.received, reason.type])


class LoopbackTests(TestCase):
    """Real reactors and real loopback."""

    @skipUnless(socket.has_ipv6, "this Python has no IPv6")
    async def test_unusableAddress(self) -> None:
        """Ends with an address that they cannot use fail, servers as over C{tcp:}, and say what is wrong."""
        factory: Any = MessageFactory(Echo)
        for prefix in ("rdma", "rsocket", "sidr"):
            for address, advice in (
                ("192.0.2.1", "this host does not have that address, see `ip address`"),
                (r"fe80\:\:1", "a link-local address needs its interface, such as fe80::1%eth0"),
                (r"fe80\:\:1%none", "this host does not have the interface none, see `ip link`"),
            ):
                endpoint = serverFromString(reactor, f"{prefix}:{address}:7471")
                failure = endpoint.listen(factory)
                error = await self.assertFailure(failure, CannotListenError)
                self.assertIn(advice, str(error))
                self.assertIsInstance(error.__cause__, DeviceUnavailable)
                if address.startswith("fe80"):
                    client = clientFromString(reactor, f"{prefix}:{address}:7471")
                    failure = client.connect(factory)
                    error = await self.assertFailure(failure, InvalidRequest, ConnectError)
                    self.assertIn(advice, str(error))

    async def test_allAddresses(self) -> None:
        """A server without an address listens at all of the host, except those with port 4791 in use."""
        addresses = [loopbackAddress() for _ in range(3)]
        self.patch(
            HostNetwork,
            "interfaces",
            lambda network: [
                NetworkInterface(
                    *(1, "lo", 65536, True, True, True),
                    addresses=tuple(InterfaceAddress(each, 8) for each in addresses),
                )
            ],
        )
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind((addresses[1], ROCE_PORT))
            port: Any = await serverFromString(reactor, "rdma:0").listen(MessageFactory(Echo))
        for address in (addresses[0], addresses[2]):
            text = f"rdma:{address}:{port.getHost().port}:device=soft\\:{addresses[0]}"
            protocol: Any = await clientFromString(reactor, text).connect(MessageFactory(Asking))
            self.assertEqual(await protocol.ended, [(b"hello", 7), ConnectionDone])
        port.stopListening()

    async def test_taken(self) -> None:
        """A server whose port is in use by another program fails with an error that names the remedy."""
        address = loopbackAddress()
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as taken:
            taken.bind((address, ROCE_PORT))
            for rxe, advice in (
                ("/nowhere", "UDP port 4791 of .* is not available"),
                ("/", "use its own device"),
            ):
                self.patch(adapters, "RXE", rxe)
                server = serverFromString(reactor, f"rdma:{address}:7471")
                with self.assertRaisesRegex(CannotListenError, advice):
                    await server.listen(MessageFactory(Echo))
        port = await server.listen(MessageFactory(Echo))  # after the other socket was closed
        port.stopListening()

    @skipUnless(hasattr(os, "seteuid") and os.geteuid() == 0, "needs root, to act as another user")
    async def test_otherUser(self) -> None:
        """
        If a process of another user claims to be the coordinator of an address, no server listens there and
        no client connects from there; clients of servers on the host have an address of their own.
        """
        taken, free = loopbackAddress(), loopbackAddress()
        name = hostName(taken, 0)
        port = await serverFromString(reactor, f"rdma:{free}:7471").listen(MessageFactory(Echo))
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as impostor:
            os.seteuid(65534)
            try:
                impostor.bind(name)
                impostor.listen()
            finally:
                os.seteuid(0)
            refused = "user 65534 claims to coordinate"
            with self.assertRaisesRegex(CannotListenError, refused):
                await serverFromString(reactor, f"rdma:{taken}:7472").listen(MessageFactory(Echo))
            fromThere = clientFromString(reactor, f"rdma:{free}:7471:bindAddress={taken}")
            with self.assertRaisesRegex(ResourceExhausted, refused):
                await fromThere.connect(MessageFactory(Asking))
            asking: Any = await clientFromString(reactor, f"rdma:{free}:7471").connect(MessageFactory(Asking))
            self.assertEqual(await asking.ended, [(b"hello", 7), ConnectionDone])
        port.stopListening()

    async def test_equivalentStrings(self) -> None:
        """Ends of one process whose device strings differ, but name the same device, share its adapter."""
        address = loopbackAddress()
        server = RDMAServerEndpoint(reactor, 7471, f"soft:address={address}")
        port = await server.listen(MessageFactory(Echo))
        asking = await RDMAClientEndpoint(reactor, address, 7471).connect(MessageFactory(Asking))
        self.assertEqual(await asking.ended, [(b"hello", 7), ConnectionDone])
        await maybeDeferred(port.stopListening)

    async def test_nextIteration(self) -> None:
        """A client that connects again in the iteration after C{connectionLost} uses the open adapter."""
        there, here = loopbackAddress(), loopbackAddress()
        port = await serverFromString(reactor, f"rdma:{there}:7471").listen(MessageFactory(Echo))
        self.addCleanup(port.stopListening)
        endpoint = clientFromString(reactor, f"rdma:{there}:7471:device=soft\\:{here}")
        used = []
        for _ in range(3):
            asking: Any = await endpoint.connect(MessageFactory(Asking))
            used.append(asking.transport.adapter)
            await asking.ended
            await deferLater(reactor, 0)
        self.assertEqual(len(set(used)), 1)
        await deferLater(reactor, 0)
        self.assertNotIn(used[0], adapters._adapters.values())

    async def test_twistedHelpers(self) -> None:
        """Factories, services and C{connectProtocol} of Twisted work with both kinds of strings."""
        rdma, ib, own = (loopbackAddress() for _ in range(3))
        clientOfIB = f"ib:7:dgid \\:\\:ffff\\:{ib}:device=soft\\:{own}"
        for listen, connect in (
            (f"rdma:{rdma}:7471", f"rdma:{rdma}:7471"),
            (f"ib:service=7:device=soft\\:{ib}", clientOfIB),
        ):
            protocols: list[Any] = []

            class Kept(Echo):
                def connectionMade(self) -> None:
                    protocols.append(self)  # noqa: B023  # of this turn

            factory: Any = Factory
            server = StreamServerEndpointService(serverFromString(reactor, listen), factory.forProtocol(Kept))
            server.privilegedStartService()
            asking: Any = Asking()
            endpoint = clientFromString(reactor, connect)
            self.assertIs(await connectProtocol(endpoint, asking), asking)
            self.assertEqual(await asking.ended, [(b"hello", 7), ConnectionDone])
            client = ClientService(endpoint, factory.forProtocol(Asking), retryPolicy=lambda attempts: 0.0)
            client.startService()
            for _ in range(2):  # the service connects again after the first conversation
                asking = await client.whenConnected()
                self.assertEqual((await asking.ended)[0], (b"hello", 7))
                await deferLater(reactor, 0.0)  # the service is notified of the end after the protocol
            await client.stopService()
            await server.stopService()
            self.assertGreaterEqual(len(protocols), 3)
            self.assertIsInstance(protocols[0].factory, Factory)
