"""
Streams by C{btl:} strings on a real reactor: both directions, back pressure, ends, half-closes, TLS, errors.
"""

from __future__ import annotations

from typing import Any
from unittest import SkipTest
from unittest.mock import Mock

from twisted.internet import reactor as theReactor
from twisted.internet.address import HostnameAddress
from twisted.internet.defer import CancelledError, fail
from twisted.internet.endpoints import (
    clientFromString,
    serverFromString,
    TCP4ClientEndpoint,
    TCP4ServerEndpoint,
    wrapClientTLS,
    wrapServerTLS,
)
from twisted.internet.error import (
    CannotListenError,
    ConnectError,
    ConnectingCancelledError,
    ConnectionRefusedError,
    DNSLookupError,
)
from twisted.internet.task import deferLater
from twisted.internet.testing import MemoryReactorClock

from txrdma.btl import module as modules
from txrdma.btl.connections import ClientEndpoint, connect, listen, ServerEndpoint
from txrdma.btl.stream.endpoints import StreamClientEndpoint
from txrdma.error import InvalidRequest, RDMAError, Refused
from txrdma.messages.protocol import MessageProtocol
from txrdma.test.support.streaming import StreamCase, StreamContract
from txrdma.testing.protocols import MessageRecorder, Recorders
from txrdma.testing.streams.certificate import makeCertificate

reactor: Any = theReactor


class StreamTests(StreamContract, StreamCase):
    timeout = 60

    def left(self) -> list[object]:
        """Return the modules that are open on this reactor."""
        return [key for key in modules._modules if key[0] is reactor]

    def serverString(self) -> str:
        """Return the string of a server at any port."""
        return "btl:127.0.0.1:0"

    def clientString(self, port: int) -> str:
        """Return the string of a client of that server."""
        return f"btl:127.0.0.1:{port}"

    async def test_refused(self) -> None:
        """Stream endpoints fail with the errors of TCP endpoints, clients of the message API with its own."""
        await self.listen()
        port = self.ports[0].getHost().port
        taken = serverFromString(reactor, f"btl:127.0.0.1:{port}").listen(Recorders())
        await self.assertFailure(taken, CannotListenError)
        await self.assertFailure(listen(reactor, port, Recorders(MessageProtocol)), CannotListenError)
        await self.ports.pop().stopListening()
        refused = clientFromString(reactor, f"btl:127.0.0.1:{port}").connect(Recorders())
        await self.assertFailure(refused, ConnectionRefusedError)
        await self.assertFailure(connect(reactor, "127.0.0.1", port, Recorders(MessageProtocol)), Refused)

    async def test_bothFamilies(self) -> None:
        """A listener at C{::} accepts IPv4 clients, too."""
        servers = Recorders()
        try:
            port = await serverFromString(reactor, r"btl:0:interface=\:\:").listen(servers)
        except CannotListenError as error:
            raise SkipTest(f"no IPv6 here: {error}") from None
        self.ports.append(port)
        there = servers.next()
        client = await self.connect()
        server = await there
        self.assertEqual(server.transport.getPeer().host, "::ffff:127.0.0.1")
        client.transport.loseConnection()
        await self.ended(client, server)

    def test_zone(self) -> None:
        """The zone of a link-local address is passed on to TCP."""
        memory = MemoryReactorClock()
        clientFromString(memory, r"btl:fe80\:\:1%lo:4").connect(Recorders()).addErrback(lambda _: None)
        self.assertEqual(memory.tcpClients[0][:2], ("fe80::1%lo", 4))

    async def test_unknownHost(self) -> None:
        """An unknown host is an error of the same kind as a missing listener."""
        unknown = Mock(connect=lambda factory: fail(DNSLookupError("it has no address")))
        connecting = StreamClientEndpoint(reactor, unknown).connect(Recorders())
        await self.assertFailure(connecting, DNSLookupError)
        await self.assertFailure(
            ClientEndpoint(reactor, unknown).connect(Recorders(MessageProtocol)), Refused
        )

    async def test_invalidName(self) -> None:
        """A name that cannot be that of a host is an error that the API documents."""
        await self.assertFailure(
            connect(reactor, "there..example", 7, Recorders(MessageProtocol)), InvalidRequest
        )
        stream = clientFromString(reactor, "btl:there..example:7").connect(Recorders())
        await self.assertFailure(stream, ConnectError)

    async def test_cancelled(self) -> None:
        """An attempt that is cancelled while it resolves, connects, or negotiates has the same error."""
        accepted = Recorders()
        silent = await TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1").listen(accepted)
        self.ports.append(silent)
        port = silent.getHost().port
        for keys, factory, error in (
            ("", Recorders(), ConnectingCancelledError),
            (":messages=yes", Recorders(MessageProtocol), CancelledError),
        ):
            for host, isExchanging in (("localhost", False), ("127.0.0.1", False), ("127.0.0.1", True)):
                accepted.protocols.clear()
                connecting = clientFromString(reactor, f"btl:{host}:{port}{keys}").connect(factory)
                while isExchanging and not accepted.protocols:
                    await deferLater(reactor, 0.01)
                connecting.cancel()
                failure = await self.assertFailure(connecting, error)
                if not keys:
                    self.assertEqual(failure.address, HostnameAddress(host.encode(), port))
            await accepted.protocols[0].lost

    async def test_noDevice(self) -> None:
        """A missing device is an error at both ends, which names it."""
        await self.listen()
        port = self.ports[0].getHost().port
        text = rf"btl:127.0.0.1:{port}:device=soft\:192.0.2.1"
        failure = await self.assertFailure(clientFromString(reactor, text).connect(Recorders()), ConnectError)
        self.assertIn("192.0.2.1", str(failure))
        await deferLater(reactor, 0.05)

    async def hello(self, client: MessageRecorder, servers: Recorders) -> None:
        """Send a message from the client, and close."""
        client.transport.sendMessage(b"hello")
        client.transport.loseConnection()
        while not (client.ends and servers.protocols[0].ends):
            await deferLater(reactor, 0.01)
        self.assertEqual(servers.protocols[0].messages, [(b"hello", None)])
        self.assertEqual((client.ends, servers.protocols[0].ends), (["ConnectionDone"], ["ConnectionDone"]))

    async def test_messages(self) -> None:
        """With C{messages=yes} the strings are endpoints for message protocols."""
        servers, keys = Recorders(MessageRecorder), ":messages=yes"
        self.ports.append(await serverFromString(reactor, self.serverString() + keys).listen(servers))
        text = self.clientString(self.ports[-1].getHost().port) + keys
        await self.hello(await clientFromString(reactor, text).connect(Recorders(MessageRecorder)), servers)

    async def test_secretIntroductions(self) -> None:
        """Endpoints with a TLS stream exchange introductions over it, and refuse a client without TLS."""
        try:
            from twisted.internet.ssl import optionsForClientTLS, PrivateCertificate
        except ImportError:
            raise SkipTest("pyOpenSSL is not installed: the extra tls brings it") from None
        certificate = PrivateCertificate.loadPEM(makeCertificate())
        stream = wrapServerTLS(certificate.options(), TCP4ServerEndpoint(reactor, 0, interface="127.0.0.1"))
        servers = Recorders(MessageRecorder)
        self.ports.append(await ServerEndpoint(reactor, stream).listen(servers))
        port = self.ports[-1].getHost().port
        options = optionsForClientTLS("localhost", certificate)
        secret = wrapClientTLS(options, TCP4ClientEndpoint(reactor, "127.0.0.1", port))
        await self.hello(await ClientEndpoint(reactor, secret).connect(Recorders(MessageRecorder)), servers)
        plain = connect(reactor, "127.0.0.1", port, Recorders(MessageRecorder))
        await self.assertFailure(plain, RDMAError)
        self.assertEqual(len(servers.protocols), 1)

    def test_strings(self) -> None:
        for text in ("btl:host", "btl::1", "btl:host:x", "btl:host:70000", "btl:host:1:x=1", "btl:host:1:2"):
            self.assertRaises(ValueError, clientFromString, reactor, text)
        for interfaces in ("eth0", "127.0.0.1,", "127.0.0.1:device=soft"):
            self.assertRaises(ValueError, clientFromString, reactor, f"btl:host:1:interfaces={interfaces}")
        for text in ("btl:x", "btl:1:2:3", "btl:70000", "btl:1:timeout=3", "btl:1:backlog=none"):
            self.assertRaises(ValueError, serverFromString, reactor, text)
        clientFromString(reactor, r"btl:\:\:1:1:bindAddress=\:\:1:timeout=3:device=soft")
        serverFromString(reactor, r"btl:1:interface=\:\:1:backlog=3:device=soft")
        clientFromString(reactor, r"btl:host:1:interfaces=127.0.0.1,\:\:1")
        self.assertTrue(issubclass(Refused, RDMAError))
