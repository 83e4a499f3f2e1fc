"""
The promises of C{smc:} endpoints, whatever backend serves them, as a mixin for test cases.
"""

from __future__ import annotations

import hashlib
from typing import Any

from zope.interface import implementer
from zope.interface.verify import verifyObject

from twisted.internet import reactor as theReactor
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionRefusedError
from twisted.internet.interfaces import IHalfCloseableProtocol, ITCPTransport
from twisted.internet.protocol import connectionDone, Factory, Protocol
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from txrdma.interfaces import ISMCStatus, ISMCTransport
from txrdma.smc.handshake.outcomes import NotSMC

reactor: Any = theReactor


@implementer(IHalfCloseableProtocol)
class End(Protocol):
    """
    An end of a connection, which counts what it hears.

    @ivar received: the number of bytes, with their SHA-256 in C{digest}.
    @ivar lost: the reason of the connection's end, when there was one.
    """

    transport: Any

    def __init__(self) -> None:
        self.received = 0
        self.digest = hashlib.sha256()
        self.hasEnded = self.hasClosed = False
        self.lost: Failure | None = None

    def dataReceived(self, data: bytes) -> None:
        """Count the bytes, and hash them."""
        self.received += len(data)
        self.digest.update(data)

    def readConnectionLost(self) -> None:
        """Note that the peer has said all."""
        self.hasEnded = True

    def writeConnectionLost(self) -> None:
        """Note that our own half is closed."""
        self.hasClosed = True

    def connectionLost(self, reason: Failure = connectionDone) -> None:
        """Note the reason of the end."""
        self.lost = reason


class _Ends(Factory):
    """Builds ends, and keeps them."""

    noisy = False

    def __init__(self) -> None:
        self.ends: list[End] = []
        self.waiting: list[Deferred[End]] = []

    def buildProtocol(self, addr: object) -> End:
        end = End()
        self.ends.append(end)
        return end


class StreamContract:
    """
    The promises of C{smc:} endpoints' connections that are those of TCP, for a C{TestCase}.

    @ivar SERVER: the server's string, with port 0.
    @ivar CLIENT: the client's, with C{{port}}.
    @ivar PLAIN_SERVER: a string of Twisted's own for the same address, with port 0.
    @ivar PLAIN_CLIENT: a string of Twisted's own to connect to it, with C{{port}}.
    @ivar ABORT_IS_SEEN: the peer can tell an abort from an orderly end when it has read all.
    @ivar SECONDS: the patience with one step.
    """

    SERVER: str
    CLIENT: str
    PLAIN_SERVER: str
    PLAIN_CLIENT: str
    ABORT_IS_SEEN = True
    SECONDS = 10.0

    async def until(self: Any, condition: Any) -> None:
        """Let the reactor run until something is true."""
        deadline = reactor.seconds() + self.SECONDS
        while not condition():
            self.assertLess(reactor.seconds(), deadline, "it never happens")
            await deferLater(reactor, 0.005)

    async def listening(self: Any, text: str) -> tuple[_Ends, int]:
        """A factory that listens, and the number of its port."""
        factory = _Ends()
        port = await serverFromString(reactor, text).listen(factory)
        self.addCleanup(port.stopListening)
        return factory, port.getHost().port

    async def connecting(self: Any, text: str, port: int) -> End:
        """Connect a client; it is ended with the test."""
        end = await clientFromString(reactor, text.format(port=port)).connect(Factory.forProtocol(End))
        self.addCleanup(self.end, end)
        return end  # type: ignore[no-any-return]  # a Protocol's

    async def end(self: Any, end: End) -> None:
        """Have a connection end, if it did not."""
        if end.lost is None:
            end.transport.abortConnection()
            await self.until(lambda: end.lost is not None)

    async def pair(self: Any, server: str = "", client: str = "") -> tuple[End, End]:
        """Client and server, connected; by SMC when no strings are given."""
        factory, port = await self.listening(server or self.SERVER)
        here = await self.connecting(client or self.CLIENT, port)
        await self.until(lambda: factory.ends and factory.ends[0].transport is not None)
        there = factory.ends[0]
        self.addCleanup(self.end, there)
        return here, there

    async def test_bulk(self: Any) -> None:
        """A MiB arrives whole, both ways at once, and the last of it is followed by the end."""
        here, there = await self.pair()
        data = bytes(range(256)) * 4096
        for end in (here, there):
            end.transport.write(data)
            end.transport.loseWriteConnection()
        for end in (here, there):
            await self.until(lambda each=end: each.lost is not None or each.hasEnded and each.hasClosed)
            self.assertEqual((end.received, end.digest.digest()), (len(data), hashlib.sha256(data).digest()))
        for end in (here, there):
            end.transport.loseConnection()
        for end in (here, there):
            await self.until(lambda each=end: each.lost is not None)
            self.assertIsInstance(end.lost.value, ConnectionDone)

    async def test_close(self: Any) -> None:
        """An end that closes has all delivered first, even to a reader that pauses, and holds up nobody."""
        here, there = await self.pair()
        there.transport.pauseProducing()
        data = bytes(1 << 20)
        here.transport.write(data)
        here.transport.loseConnection()
        began, turns = reactor.seconds(), 0
        while reactor.seconds() < began + 0.5:
            turns += 1
            await deferLater(reactor, 0.005)
        self.assertGreater(turns, 10)
        there.transport.resumeProducing()
        await self.until(lambda: there.hasEnded and here.lost is not None)
        self.assertEqual(there.received, len(data))
        there.transport.loseConnection()
        await self.until(lambda: there.lost is not None)
        for end in (here, there):
            self.assertIsInstance(end.lost.value, ConnectionDone)

    async def test_halfClose(self: Any) -> None:
        """An end that has closed its half still hears the other's."""
        here, there = await self.pair()
        here.transport.write(b"question")
        here.transport.loseWriteConnection()
        await self.until(lambda: there.hasEnded)
        self.assertEqual((there.received, here.hasClosed, here.lost, there.lost), (8, True, None, None))
        there.transport.write(b"answer")
        await self.until(lambda: here.received == 6)
        there.transport.loseConnection()
        await self.until(lambda: here.hasEnded and there.lost is not None)
        here.transport.loseConnection()
        await self.until(lambda: here.lost is not None)
        for end in (here, there):
            self.assertIsInstance(end.lost.value, ConnectionDone)

    async def test_abort(self: Any) -> None:
        """An end that aborts is told so at once, and the other learns that it is over."""
        here, there = await self.pair()
        here.transport.write(b"hello")
        await self.until(lambda: there.received == 5)
        here.transport.abortConnection()
        await self.until(lambda: here.lost is not None and (there.lost is not None or there.hasEnded))
        self.assertIsInstance(here.lost.value, ConnectionAborted)
        if self.ABORT_IS_SEEN:
            self.assertNotIsInstance(there.lost.value, ConnectionDone)

    async def test_refused(self: Any) -> None:
        """A connection to where nobody listens fails as TCP's does."""
        factory, number = _Ends(), 0
        port = await serverFromString(reactor, self.PLAIN_SERVER).listen(factory)
        number = port.getHost().port
        await port.stopListening()
        with self.assertRaises(ConnectionRefusedError):
            await self.connecting(self.CLIENT, number)


class EndpointContract(StreamContract):
    """The promises of C{smc:} endpoints over SMC-R, with what their transports tell of it."""

    async def test_byte(self: Any) -> None:
        """A byte goes there, and one comes back, by SMC; both transports are what TCP's are, and say so."""
        here, there = await self.pair()
        for one, other in ((here, there), (there, here)):
            one.transport.write(b"x")
            await self.until(lambda end=other: end.received == 1)
        for end, role in ((here, "client"), (there, "server")):
            verifyObject(ITCPTransport, end.transport)
            verifyObject(ISMCTransport, end.transport)
            status = end.transport.smc
            verifyObject(ISMCStatus, status)
            self.assertEqual((status.mode, status.state, status.fallbackReason), ("SMC-R", "ACTIVE", None))
            await self.until(lambda s=status: (s.bytesSent, s.bytesReceived) == (1, 1))
            self.assertTrue(status.device and status.route and status.linkGroup)
            told = status.toDict()
            self.assertEqual((told["role"], told["mode"], told["bytesSent"]), (role, "SMC-R", 1))
        self.assertEqual(here.transport.getPeer(), there.transport.getHost())
        self.assertEqual(there.transport.getPeer(), here.transport.getHost())

    async def test_plainServer(self: Any) -> None:
        """A server of plain TCP is served as such, and so the transport says."""
        here, there = await self.pair(server=self.PLAIN_SERVER)
        await self.checkPlain(here, there, here)

    async def test_plainClient(self: Any) -> None:
        """A client of plain TCP is served as such, and so the transport says."""
        here, there = await self.pair(client=self.PLAIN_CLIENT)
        await self.checkPlain(here, there, there)

    async def checkPlain(self: Any, here: End, there: End, ours: End) -> None:
        """A connection of which only one end is ours works, and that says that it is TCP, and why."""
        status = ours.transport.smc
        self.assertEqual((status.mode, status.state, status.device), ("TCP", "TCP", ""))
        self.assertEqual(status.fallbackReason.name, "PEERNOSMC")
        data = bytes(1 << 20)
        here.transport.write(data)
        await self.until(lambda: there.received == len(data))
        there.transport.loseConnection()
        await self.until(lambda: there.lost is not None and here.hasEnded)

    async def test_fallbackForbidden(self: Any) -> None:
        """With C{fallback=no} there is rather no connection than one on plain TCP, at either end."""
        _factory, port = await self.listening(self.PLAIN_SERVER)
        with self.assertRaises(NotSMC) as caught:
            await self.connecting(self.CLIENT + ":fallback=no", port)
        self.assertEqual(caught.exception.reason.name, "PEERNOSMC")
        factory, port = await self.listening(self.SERVER + ":fallback=no")
        here = await self.connecting(self.PLAIN_CLIENT, port)
        await self.until(lambda: here.hasEnded or here.lost is not None)
        self.assertEqual(factory.ends, [])
