"""
TLS over SMC-R with Twisted's own means, on a real reactor.
"""

from __future__ import annotations

import os
from socket import socket
from typing import Any

from twisted.internet.defer import gatherResults
from twisted.internet.endpoints import clientFromString, serverFromString, wrapServerTLS
from twisted.internet.interfaces import ISSLTransport
from twisted.protocols.policies import ProtocolWrapper
from twisted.trial.unittest import SkipTest

from txrdma.test.support.smc.ends import EndsTestCase, reactor
from txrdma.testing.protocols import Echo, Recorder, Recorders
from txrdma.testing.streams.certificate import makeCertificate

try:
    from twisted.internet import ssl
except ImportError:
    ssl = None  # type: ignore[assignment]  # the tests are skipped

DATA = os.urandom(1 << 20)


class TLSTests(EndsTestCase):
    def setUp(self) -> None:
        if ssl is None:
            raise SkipTest("TLS is not installed")
        super().setUp()
        self.pem = makeCertificate()
        self.serverOptions = ssl.PrivateCertificate.loadPEM(self.pem).options()
        self.clientOptions = ssl.optionsForClientTLS("localhost", ssl.Certificate.loadPEM(self.pem))

    async def test_tlsEndpointOverSMCUsesSMC(self) -> None:
        roots = self.mktemp()
        os.mkdir(roots)
        with open(os.path.join(roots, "root.pem"), "wb") as file:
            file.write(self.pem)
        factory = Recorders(Echo)
        server = wrapServerTLS(self.serverOptions, serverFromString(reactor, "smc:127.0.0.1:0"))
        port = await server.listen(factory)
        self.addCleanup(port.stopListening)
        where: Any = port.getHost()
        text = (
            rf"tls:localhost:443:trustRoots={roots}"
            rf":endpoint=smc\:127.0.0.1\:{where.port}\:fallback=no"
        )
        one: Any = await clientFromString(reactor, text).connect(Recorders())
        one.transport.write(DATA)
        self.assertEqual(await one.receiving(len(DATA)), DATA)
        self.assertTrue(ISSLTransport.providedBy(one.transport))
        assert isinstance(one.transport, ProtocolWrapper)
        inner: Any = one.transport.transport
        self.assertEqual(inner.smc.mode, "SMC-R")
        one.transport.loseConnection()
        await gatherResults([one.lost, factory.protocols[0].lost])

    async def test_connectionContinuesWithTLSAfterPlainText(self) -> None:
        test = self

        class Server(Recorder):
            def dataReceived(self, data: bytes) -> None:
                if data == b"STARTTLS":
                    self.transport.write(b"GO")
                    self.transport.startTLS(test.serverOptions)
                else:
                    self.transport.write(data)

        factory, port = await self.serve(kind=Server)
        one = await self.connect(f"smc:127.0.0.1:{port}")
        one.transport.write(b"STARTTLS")
        await one.receiving(2)
        one.transport.startTLS(self.clientOptions)
        one.transport.write(DATA)
        self.assertEqual(await one.receiving(2 + len(DATA)), b"GO" + DATA)
        self.assertTrue(ISSLTransport.providedBy(one.transport))
        self.assertIsNotNone(one.transport.getPeerCertificate())
        self.assertIs(type(one.transport.socket), socket)
        self.assertEqual(one.smc.mode, "SMC-R")
        one.transport.loseConnection()
        await gatherResults([one.lost, factory.protocols[0].lost])

    async def test_startTLSWorksAfterFallbackWithHelloReceived(self) -> None:
        test = self

        class Server(Echo):
            def connectionMade(self) -> None:
                self.transport.startTLS(test.serverOptions)
                super().connectionMade()

        class Client(Recorder):
            def connectionMade(self) -> None:
                self.transport.startTLS(test.clientOptions)
                super().connectionMade()

        factory, port = await self.serve("smc:127.0.0.1:0:peer=smc", Server)
        one = await self.connect(f"tcp:127.0.0.1:{port}", Client)
        one.transport.write(DATA)
        self.assertEqual(await one.receiving(len(DATA)), DATA)
        self.assertEqual(factory.protocols[0].smc.mode, "TCP")
        one.transport.loseConnection()
        await gatherResults([one.lost, factory.protocols[0].lost])
