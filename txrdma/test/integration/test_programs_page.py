"""
The page about programs: its endpoint strings are valid, and its imports exist.

Those that need only Twisted and treq serve and fetch over SMC-R; the others need programs that tests lack.
"""

from __future__ import annotations

import re
from pathlib import Path
from runpy import run_path
from typing import Any
from unittest import SkipTest

from twisted.application.service import IServiceCollection
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, connectProtocol, serverFromString
from twisted.protocols.basic import LineReceiver
from twisted.web.server import Site

from txrdma.test.integration.test_web import BODY, BodyResource
from txrdma.test.support.programs_page import blocks, PAGE
from txrdma.test.support.smc.ends import EndsTestCase, reactor
from txrdma.testing.streams.certificate import makeCertificate


def block(word: str) -> str:
    """Return the only example that contains a word, with its port replaced by a free one."""
    (found,) = [each for each in blocks() if word in each]
    return re.sub(r"\"smc:\d+\"", '"smc:0:interface=127.0.0.1"', found)


class Answer(LineReceiver):
    """Sends one line, and stores the first one that it receives."""

    delimiter = b"\n"

    def __init__(self, line: bytes = b"") -> None:
        self._output = line
        self.line: Deferred[bytes] = Deferred()

    def connectionMade(self) -> None:
        self.sendLine(self._output)

    def lineReceived(self, line: bytes) -> None:
        if not self.line.called:
            self.line.callback(line.rstrip())


class ServingTests(EndsTestCase):
    def run_(self, text: str) -> dict[str, Any]:
        """Run an example, and return its names."""
        file = Path(self.mktemp())
        file.write_text(text)
        return run_path(str(file))

    async def start(self, text: str) -> int:
        """Start an example that creates an application with one service; return the service's port."""
        (service,) = IServiceCollection(self.run_(text)["application"])
        service.startService()
        self.addCleanup(service.stopService)
        port = await service._waitingForPort
        return int(port.getHost().port)

    async def received(self, client: str, line: bytes = b"") -> bytes:
        """Return the first line of the answer, which must arrive by SMC-R."""
        protocol = await connectProtocol(clientFromString(reactor, client), Answer(line))
        answer: bytes = await protocol.line
        transport: Any = protocol.transport
        self.assertEqual(getattr(transport, "transport", transport).smc.mode, "SMC-R")
        transport.abortConnection()
        return answer

    async def test_tls(self) -> None:
        """The TLS server answers a client that uses the string on the page."""
        try:
            pem = makeCertificate()
        except ImportError as error:
            raise SkipTest("TLS is not installed") from error
        roots = Path(self.mktemp())
        roots.mkdir()
        (roots / "root.pem").write_bytes(pem)
        port = await self.start(block("TLSMemoryBIOFactory").replace("server.pem", str(roots / "root.pem")))
        self.assertIn(r"`tls:localhost:443:trustRoots=roots:endpoint=smc\:127.0.0.1\:443`", PAGE.read_text())
        string = rf"tls:localhost:443:trustRoots={roots}:endpoint=smc\:127.0.0.1\:{port}"
        self.assertEqual(await self.received(string, b"GET / HTTP/1.0\r\n\r"), b"HTTP/1.0 200 OK")

    async def test_ftp(self) -> None:
        port = await self.start(block("FTPFactory"))
        self.assertIn(b"220 ", await self.received(f"smc:127.0.0.1:{port}", b"NOOP"))

    async def test_agent(self) -> None:
        """The treq client fetches a page over SMC-R."""
        try:
            import treq as _treq  # noqa: F401  # whether it is there
        except ImportError as error:
            raise SkipTest("treq is not installed") from error
        names = self.run_(block("treq"))
        resource = BodyResource()
        port = await serverFromString(reactor, "smc:0:interface=127.0.0.1").listen(Site(resource))
        self.addCleanup(port.stopListening)
        where: Any = port.getHost()
        response = await names["client"].get(f"http://127.0.0.1:{where.port}/")
        self.assertEqual(await response.content(), BODY)
        self.assertEqual(resource.modes, ["SMC-R"])
