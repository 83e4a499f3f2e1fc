"""
HTTP: treq and Klein, C{twisted.web}, Scrapy, and HTTP/2 by h2.
"""

from __future__ import annotations

from typing import Any, Final

from twisted.internet.defer import Deferred, gatherResults
from twisted.internet.protocol import Protocol
from twisted.internet.task import deferLater
from twisted.web.client import FileBodyProducer, HTTPConnectionPool, readBody
from twisted.web.http_headers import Headers
from twisted.web.resource import Resource
from twisted.web.server import NOT_DONE_YET, Site
from twisted.web.static import File

from txrdma.test.system.foreign.programs.program import BIG, digest, Ends, Program


class TreqAndKlein(Program):
    """treq and a Klein application: downloads, uploads, streams, redirects, 60 requests at a time."""

    needs = ("treq", "klein")
    imports = ("treq", "klein")

    async def serve(self, ends: Ends) -> None:
        from klein import Klein

        app = Klein()

        @app.route("/echo", methods=["POST"])
        def echo(request: Any) -> bytes:
            return digest(request.content.read()).encode()

        @app.route("/big")
        def big(request: Any) -> bytes:
            return BIG

        @app.route("/slow/<int:number>")
        async def slow(request: Any, number: int) -> str:
            await deferLater(ends.reactor, 0.001 * (number % 7))
            return str(number)

        @app.route("/moved")
        def moved(request: Any) -> None:
            request.redirect(b"/big")

        @app.route("/chunks")
        async def chunks(request: Any) -> bytes:
            for number in range(200):
                request.write(b"%d," % number * (number % 50))
                if number % 20 == 0:
                    await deferLater(ends.reactor, 0)
            return b"."

        @app.route("/fails")
        def fails(request: Any) -> None:
            request.setResponseCode(500)
            request.transport.abortConnection()

        await ends.listen(Site(app.resource()))

    async def use(self, ends: Ends) -> object:
        from treq.client import HTTPClient

        pool = HTTPConnectionPool(ends.reactor)
        client = HTTPClient(ends.agent(pool))
        base = "http://localhost"

        async def get(path: str) -> str:
            response = await client.get(base + path)
            return f"{response.code} {digest(await response.content())}"

        async def slow(number: int) -> int:
            return int(await (await client.get(f"{base}/slow/{number}")).text())

        async def collected() -> str:
            parts: list[bytes] = []
            await (await client.get(base + "/big")).collect(parts.append)
            return digest(b"".join(parts))

        saw: list[object] = [await get("/big"), await get("/moved"), await get("/chunks"), await collected()]
        saw.append(await (await client.post(base + "/echo", data=BIG)).text())
        try:
            await client.get(base + "/fails")
        except Exception as error:
            saw.append(repr(error))
        many = await gatherResults([Deferred.fromCoroutine(slow(number)) for number in range(60)])
        saw.append(many == list(range(60)))
        await pool.closeCachedConnections()
        return saw


_IDLE_SECONDS: Final = 2.0
"""Seconds after which a server closes an idle connection: on a busy machine an upload pauses for one."""


class FileAndAgent(Program):
    """C{twisted.web}'s agent and files: ranges, cached connections that the server closes, a slow reader."""

    async def serve(self, ends: Ends) -> None:
        (ends.folder / "big").write_bytes(BIG)
        root = Resource()
        root.putChild(b"files", File(str(ends.folder)))
        root.putChild(b"forever", _Forever())
        site = Site(root)
        site.timeOut = _IDLE_SECONDS
        await ends.listen(site)

    async def use(self, ends: Ends) -> object:
        pool = HTTPConnectionPool(ends.reactor)
        agent = ends.agent(pool)

        async def get(headers: Headers | None = None) -> str:
            response = await agent.request(b"GET", b"http://localhost/files/big", headers)
            return f"{response.code} {digest(await readBody(response))}"

        saw: list[object] = [await get(), await get(Headers({b"range": [b"bytes=1000-2500000"]}))]
        # Meanwhile the server closes the connection that the pool retains.
        await deferLater(ends.reactor, 1.3 * _IDLE_SECONDS)
        saw.append(await get())
        response = await agent.request(b"GET", b"http://localhost/files/big")
        reader = _SlowReader(ends.reactor)
        response.deliverBody(reader)
        saw.append(digest(await reader.done))
        response = await agent.request(b"GET", b"http://localhost/forever")
        listener = _Listener()
        response.deliverBody(listener)
        saw.append(await listener.done)
        body = FileBodyProducer(open(ends.folder / "big", "rb"))
        response = await agent.request(b"PUT", b"http://localhost/files/big", None, body)
        saw.append(response.code)
        await readBody(response)
        await pool.closeCachedConnections()
        return saw


class _Forever(Resource):
    """A resource that never ends; its producer is stopped when the client disconnects."""

    isLeaf = True

    def render_GET(self, request: Any) -> int:
        request.registerProducer(self, True)
        request.write(b"x" * 100_000)
        self._isPaused = False
        self._request = request
        from twisted.internet import reactor

        self._reactor: Any = reactor
        self.resumeProducing()
        return NOT_DONE_YET

    def resumeProducing(self) -> None:
        self._isPaused = False
        self._reactor.callLater(0, self._more)

    def _more(self) -> None:
        while not self._isPaused:
            self._request.write(b"y" * 10_000)

    def pauseProducing(self) -> None:
        self._isPaused = True

    def stopProducing(self) -> None:
        self._isPaused = True


class _SlowReader(Protocol):
    """Pauses the connection after each piece, sometimes until a later reactor iteration."""

    transport: Any

    def __init__(self, reactor: Any) -> None:
        self.done: Deferred[bytes] = Deferred()
        self._reactor = reactor
        self._data: list[bytes] = []

    def dataReceived(self, data: bytes) -> None:
        self._data.append(data)
        self.transport.pauseProducing()
        self._reactor.callLater(0.002 * (len(self._data) % 3), self.transport.resumeProducing)

    def connectionLost(self, reason: Any = None) -> None:
        self.done.callback(b"".join(self._data))


class _Listener(Protocol):
    """Closes after a megabyte."""

    transport: Any

    def __init__(self) -> None:
        self.done: Deferred[str] = Deferred()
        self._received = 0

    def dataReceived(self, data: bytes) -> None:
        self._received += len(data)
        if self._received > 1_000_000 and self.transport is not None:
            transport, self.transport = self.transport, None
            transport.stopProducing()

    def connectionLost(self, reason: Any = None) -> None:
        self.done.callback(repr(reason.value)[:200])


class ScrapyCrawl(Program):
    """Scrapy crawls forty linked pages of C{twisted.web}, sixteen at a time."""

    needs = ("Scrapy",)
    imports = ("scrapy",)

    async def serve(self, ends: Ends) -> None:
        await ends.listen(Site(_Pages()))

    async def use(self, ends: Ends) -> object:
        import scrapy
        from scrapy.core.downloader.handlers import http11
        from scrapy.crawler import CrawlerRunner
        from scrapy.utils.project import get_project_settings

        class Agent(http11._BindAddressAgent):  # type: ignore[misc]  # untyped
            def _getEndpoint(self, uri: Any) -> Any:
                return ends.endpoint

        http11._BindAddressAgent = Agent
        found: list[str] = []

        class Spider(scrapy.Spider):  # type: ignore[misc]  # untyped
            name = "pages"
            start_urls = ("http://localhost/0",)

            def parse(self, response: Any) -> Any:
                found.append(response.css("h1::text").get())
                yield from response.follow_all(css="a")

        settings = get_project_settings()
        settings.setdict({"TELNETCONSOLE_ENABLED": False, "TWISTED_REACTOR": None, "LOG_LEVEL": "ERROR"})
        settings.setdict({"TWISTED_REACTOR_ENABLED": True, "DOWNLOAD_DELAY": 0, "ROBOTSTXT_OBEY": False})
        settings.setdict({"CONCURRENT_REQUESTS_PER_DOMAIN": 16})
        await CrawlerRunner(settings).crawl(Spider)
        return sorted(found)


class _Pages(Resource):
    """Pages that link to others."""

    isLeaf = True

    def render_GET(self, request: Any) -> bytes:
        number = int(request.path[1:])
        links = "".join(f'<a href="/{(number * 3 + each) % 40}">more</a>' for each in range(5))
        return f"<html><h1>{number:02}</h1>{links}<p>{'x' * 1000 * number}</p></html>".encode()


class HTTP2(Program):
    """C{twisted.web}'s HTTP/2 over TLS, and a client made with h2: thirty streams at a time."""

    needs = ("h2", "pyOpenSSL")
    imports = ("h2", "priority", "OpenSSL")

    async def serve(self, ends: Ends) -> None:
        from twisted.protocols.tls import TLSMemoryBIOFactory

        root = Resource()
        root.putChild(b"big", _Big())
        site = Site(root)
        options = ends.certificate().options()
        await ends.listen(TLSMemoryBIOFactory(options, False, site))

    async def use(self, ends: Ends) -> object:
        from twisted.internet.endpoints import wrapClientTLS
        from twisted.internet.ssl import optionsForClientTLS

        options = optionsForClientTLS(
            "localhost",
            _trust(ends),
            acceptableProtocols=[b"h2"],
        )
        client = _h2Client()(30)
        from twisted.internet.endpoints import connectProtocol

        await connectProtocol(wrapClientTLS(options, ends.endpoint), client)
        return await client.done


def _trust(ends: Ends) -> Any:
    from twisted.internet.ssl import Certificate, trustRootFromCertificates

    return trustRootFromCertificates([Certificate.loadPEM((ends.folder / "server.pem").read_bytes())])


class _Big(Resource):
    isLeaf = True

    def render_GET(self, request: Any) -> bytes:
        return BIG[: 20_000 * int(request.args[b"n"][0])]


def _h2Client() -> Any:
    from h2.config import H2Configuration
    from h2.connection import H2Connection
    from h2.events import DataReceived, StreamEnded

    class Client(Protocol):
        """Requests everything at once."""

        transport: Any

        def __init__(self, count: int) -> None:
            self.done: Deferred[list[str]] = Deferred()
            self._count = count
            self._bodies: dict[int, bytearray] = {}
            self._open = count
            self._h2 = H2Connection(H2Configuration(client_side=True))

        def connectionMade(self) -> None:
            self._h2.initiate_connection()
            for number in range(self._count):
                stream = self._h2.get_next_available_stream_id()
                self._bodies[stream] = bytearray()
                path = f"/big?n={number}"
                headers = ((":method", "GET"), (":scheme", "https"), (":authority", "localhost"))
                self._h2.send_headers(stream, [*headers, (":path", path)], end_stream=True)
            self.transport.write(self._h2.data_to_send())

        def dataReceived(self, data: bytes) -> None:
            for event in self._h2.receive_data(data):
                if isinstance(event, DataReceived):
                    self._bodies[event.stream_id] += event.data
                    self._h2.acknowledge_received_data(event.flow_controlled_length, event.stream_id)
                elif isinstance(event, StreamEnded):
                    self._open -= 1
            self.transport.write(self._h2.data_to_send())
            if not self._open:
                self.transport.loseConnection()

        def connectionLost(self, reason: Any = None) -> None:
            bodies = [digest(bytes(each)) for each in self._bodies.values()]
            self.done.callback([*bodies, reason.type.__name__])

    return Client
