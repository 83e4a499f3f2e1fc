"""
HTTP and TLS over C{smc:} endpoints, with real sockets: agents, treq, and Twisted's wrapping strings.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from twisted.internet import reactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, connectProtocol, serverFromString, wrapServerTLS
from twisted.internet.interfaces import IListeningPort, IStreamServerEndpoint, ITransport
from twisted.internet.protocol import Factory, Protocol
from twisted.internet.testing import EventLoggingObserver
from twisted.logger import globalLogPublisher, Logger
from twisted.trial.unittest import SkipTest, TestCase
from twisted.web.client import Agent, HTTPConnectionPool, readBody, ResponseNeverReceived, URI
from twisted.web.error import SchemeNotSupported
from twisted.web.http import Request
from twisted.web.resource import Resource
from twisted.web.server import Site

from txrdma.kit.logs import RateLimitedLogger
from txrdma.smc.group.groups import closeLinkGroups
from txrdma.smc.handshake import outcomes
from txrdma.testing.protocols import Recorder
from txrdma.testing.streams.certificate import makeCertificate
from txrdma.web import SMCAgentEndpointFactory

BODY = bytes(range(256)) * 4096


def modeOf(transport: ITransport | None) -> str:
    """Return the mode of a connection, also below TLS."""
    while transport is not None:
        status = getattr(transport, "smc", None)
        if status is not None:
            return str(status.mode)
        transport = getattr(transport, "transport", None)
    return "plain"


class BodyResource(Resource):
    """Answers with a large body, and records the mode of the request's connection."""

    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self.modes: list[str] = []

    def render_GET(self, request: Request) -> bytes:
        self.modes.append(modeOf(request.channel.transport))
        return BODY

    def render_POST(self, request: Request) -> bytes:
        assert request.content is not None
        return cast(bytes, request.content.read())


class WebTestCase(TestCase):
    """A test with a web server, which is stopped at its end."""

    timeout = 60

    def setUp(self) -> None:
        self.addCleanup(closeLinkGroups, reactor)
        self.resource = BodyResource()

    async def listen(self, endpoint: IStreamServerEndpoint) -> int:
        port = await endpoint.listen(Site(self.resource))
        return self.willStop(port)

    def willStop(self, port: IListeningPort) -> int:
        self.addCleanup(port.stopListening)
        return cast(int, cast(Any, port.getHost()).port)  # IAddress has no port, addresses of streams do

    def agent(self, **kwargs: Any) -> Agent:  # has the factory's arguments
        pool = HTTPConnectionPool(reactor, persistent=False)
        self.addCleanup(pool.closeCachedConnections)
        return Agent.usingEndpointFactory(  # type: ignore[no-any-return]  # not annotated
            reactor, SMCAgentEndpointFactory(reactor, **kwargs), pool
        )


class HTTPTests(WebTestCase):
    async def get(self, listen: str) -> None:
        port = await self.listen(serverFromString(reactor, listen))
        response = await self.agent().request(b"GET", f"http://127.0.0.1:{port}/".encode())
        self.assertEqual(await readBody(response), BODY)

    async def test_smc(self) -> None:
        """A server that supports SMC is reached over SMC-R."""
        await self.get("smc:0:interface=127.0.0.1")
        self.assertEqual(self.resource.modes, ["SMC-R"])

    async def test_log(self) -> None:
        """An agent that makes an endpoint for each request logs the mode of its connections once."""
        events = EventLoggingObserver.createWithCleanup(self, globalLogPublisher)
        self.patch(outcomes, "_rateLimited", RateLimitedLogger(Logger()))  # other tests may log this port
        port = await self.listen(serverFromString(reactor, "smc:0:interface=127.0.0.1"))
        for _ in range(3):
            await readBody(await self.agent().request(b"GET", f"http://127.0.0.1:{port}/".encode()))
        reported = [each for each in events if str(each.get("where")).startswith("connection to")]
        self.assertEqual(len(reported), 1, reported)

    async def test_tcp(self) -> None:
        """A server without SMC is reached over TCP."""
        await self.get("tcp:0:interface=127.0.0.1")
        self.assertEqual(self.resource.modes, ["plain"])

    async def test_treq(self) -> None:
        """treq can use the agent, and posts large bodies with it."""
        try:
            from treq.client import HTTPClient
        except ImportError:
            raise SkipTest("treq is not installed") from None
        port = await self.listen(serverFromString(reactor, "smc:0:interface=127.0.0.1"))
        response = await HTTPClient(self.agent()).post(f"http://127.0.0.1:{port}/", data=BODY)
        self.assertEqual(await response.content(), BODY)

    def test_scheme(self) -> None:
        """Other schemes are refused as by Twisted's agent."""
        factory = SMCAgentEndpointFactory(reactor)
        uri = URI.fromBytes(b"gopher://localhost/")
        self.assertRaises(SchemeNotSupported, factory.endpointForURI, uri)


class TLSTests(WebTestCase):
    """TLS over SMC-R with Twisted's own wrappers."""

    def setUp(self) -> None:
        super().setUp()
        try:
            import OpenSSL  # noqa: F401
        except ImportError:
            raise SkipTest("pyOpenSSL is not installed") from None
        self.folder = Path(self.mktemp())
        self.folder.mkdir()
        self.pem = makeCertificate()
        (self.folder / "server.pem").write_bytes(self.pem)

    async def listenTLS(self) -> int:
        from twisted.internet.ssl import PrivateCertificate

        context = PrivateCertificate.loadPEM(self.pem).options()
        plain = serverFromString(reactor, "smc:0:interface=127.0.0.1")
        return await self.listen(wrapServerTLS(context, plain))

    async def test_https(self) -> None:
        """C{https:} URIs work with the same agent."""
        from twisted.internet.ssl import Certificate, trustRootFromCertificates
        from twisted.web.client import BrowserLikePolicyForHTTPS

        trusted = trustRootFromCertificates([Certificate.loadPEM(self.pem)])
        port = await self.listenTLS()
        agent = self.agent(policy=BrowserLikePolicyForHTTPS(trustRoot=trusted))
        response = await agent.request(b"GET", f"https://localhost:{port}/".encode())
        self.assertEqual(await readBody(response), BODY)
        self.assertEqual(self.resource.modes, ["SMC-R"])

    async def test_untrusted(self) -> None:
        port = await self.listenTLS()
        failed = self.agent().request(b"GET", f"https://localhost:{port}/".encode())
        await self.assertFailure(failed, ResponseNeverReceived)
        self.assertEqual(self.resource.modes, [])

    async def test_string(self) -> None:
        """The string C{tls:...:endpoint=smc...} is a TLS client over SMC-R."""
        port = await self.listenTLS()
        string = rf"tls:localhost:{port}:trustRoots={self.folder}:endpoint=smc\:localhost\:{port}"
        listener = Recorder()
        await connectProtocol(clientFromString(reactor, string), listener)
        listener.transport.write(b"GET / HTTP/1.0\r\n\r\n")
        await listener.lost
        self.assertTrue(listener.received.endswith(BODY))
        self.assertEqual(self.resource.modes, ["SMC-R"])


class HAProxyTests(WebTestCase):
    """The server string C{haproxy:smc:...}."""

    async def test_string(self) -> None:
        """The protocol gets the address in the PROXY header, over SMC-R."""
        seen: Deferred[tuple[str, str]] = Deferred()

        class Seeing(Protocol):
            def dataReceived(self, data: bytes) -> None:
                assert self.transport is not None
                seen.callback((cast(Any, self.transport.getPeer()).host, data.decode()))
                self.transport.loseConnection()

        endpoint = serverFromString(reactor, "haproxy:smc:0:interface=127.0.0.1")
        port = self.willStop(await endpoint.listen(Factory.forProtocol(Seeing)))
        listener = Recorder()
        await connectProtocol(clientFromString(reactor, f"smc:127.0.0.1:{port}"), listener)
        self.assertEqual(modeOf(listener.transport), "SMC-R")
        listener.transport.write(b"PROXY TCP4 192.0.2.7 192.0.2.8 1000 80\r\nhello")
        self.assertEqual(await seen, ("192.0.2.7", "hello"))
        await listener.lost
