"""The promises of C{smc:} endpoints with any backend, as a mixin for test cases."""

from __future__ import annotations

import hashlib
from typing import Any, Final

from zope.interface.verify import verifyObject

from twisted.internet import reactor as theReactor
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.error import ConnectionAborted, ConnectionDone, ConnectionRefusedError
from twisted.internet.interfaces import ITCPTransport
from twisted.internet.task import deferLater

from txrdma.interfaces import ISMCStatus, ISMCTransport
from txrdma.smc.handshake.outcomes import NotSMC
from txrdma.testing.protocols import Recorders, StateRecorder
from txrdma.testing.reactors import waitUntil

reactor: Any = theReactor

_ABORT_TURNS: Final = 3
"""Reactor iterations within which an abort is reported at the end that aborts."""


class StreamContract:
    """
    The promises of C{smc:} connections that TCP connections keep as well, for a C{TestCase}.

    @ivar SERVER: the server's endpoint string, with port 0.
    @ivar CLIENT: the client's endpoint string, with C{{port}}.
    @ivar PLAIN_SERVER: one of Twisted's server endpoint strings for the same address, with port 0.
    @ivar PLAIN_CLIENT: one of Twisted's client endpoint strings for that address, with C{{port}}.
    @ivar ABORT_IS_SEEN: whether a peer that has read everything can distinguish an abort from a close.
    @ivar SECONDS: time limit of one step.
    """

    SERVER: str
    CLIENT: str
    PLAIN_SERVER: str
    PLAIN_CLIENT: str
    ABORT_IS_SEEN = True
    SECONDS = 10.0

    async def until(self: Any, condition: Any) -> None:
        """Wait until a condition is true; fail after C{SECONDS}."""
        await waitUntil(reactor, condition, self.SECONDS)

    async def listening(self: Any, text: str) -> tuple[Recorders, int]:
        """Listen, and return the factory and the port number."""
        factory = Recorders(StateRecorder)
        port = await serverFromString(reactor, text).listen(factory)
        self.addCleanup(port.stopListening)
        return factory, port.getHost().port

    async def connecting(self: Any, text: str, port: int) -> StateRecorder:
        """Connect a client, whose connection is aborted at the end of the test."""
        end = await clientFromString(reactor, text.format(port=port)).connect(Recorders(StateRecorder))
        self.addCleanup(self.end, end)
        return end  # type: ignore[no-any-return]  # a Protocol's

    async def end(self: Any, end: StateRecorder) -> None:
        """Abort a connection unless it has ended."""
        if end.lost is None:
            end.transport.abortConnection()
            await self.until(lambda: end.lost is not None)

    async def pair(self: Any, server: str = "", client: str = "") -> tuple[StateRecorder, StateRecorder]:
        """Return a connected client and server, which use SMC unless other endpoint strings are given."""
        factory, port = await self.listening(server or self.SERVER)
        here = await self.connecting(client or self.CLIENT, port)
        await self.until(lambda: factory.protocols and factory.protocols[0].transport is not None)
        there = factory.protocols[0]
        self.addCleanup(self.end, there)
        return here, there

    async def test_bulk(self: Any) -> None:
        """One MiB arrives completely in both directions at once, followed by the end of the stream."""
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
        """A close first delivers all data, even to a paused reader, and does not block the reactor."""
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
        """An end that has closed its half still receives data."""
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
        """
        An abort reports C{ConnectionAborted} locally and immediately, even if the peer has not read all data,
        and ends the connection at the peer.
        """
        here, there = await self.pair()
        here.transport.write(b"hello")
        await self.until(lambda: there.received == 5)
        there.transport.pauseProducing()
        data = bytes(1 << 24)
        here.transport.write(data)
        await deferLater(reactor, 0)
        here.transport.abortConnection()
        for _ in range(_ABORT_TURNS):
            await deferLater(reactor, 0)
        self.assertIsNotNone(here.lost)
        self.assertLess(there.received, len(data))
        there.transport.resumeProducing()
        await self.until(lambda: here.lost is not None and (there.lost is not None or there.hasEnded))
        self.assertIsInstance(here.lost.value, ConnectionAborted)
        if self.ABORT_IS_SEEN:
            self.assertNotIsInstance(there.lost.value, ConnectionDone)

    async def test_refused(self: Any) -> None:
        """A connection to a port without a listener fails as over TCP."""
        port = await serverFromString(reactor, self.PLAIN_SERVER).listen(Recorders(StateRecorder))
        number = port.getHost().port
        await port.stopListening()
        with self.assertRaises(ConnectionRefusedError):
            await self.connecting(self.CLIENT, number)


class EndpointContract(StreamContract):
    """The promises of C{smc:} endpoints over SMC-R, including the status that their transports report."""

    async def test_byte(self: Any) -> None:
        """One byte is sent in each direction; both transports provide TCP's interface and report SMC."""
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
            reported = status.toDict()
            self.assertEqual((reported["role"], reported["mode"], reported["bytesSent"]), (role, "SMC-R", 1))
        self.assertEqual(here.transport.getPeer(), there.transport.getHost())
        self.assertEqual(there.transport.getPeer(), here.transport.getHost())

    async def test_plainServer(self: Any) -> None:
        """A connection to a plain TCP server uses TCP, and the transport reports that."""
        here, there = await self.pair(server=self.PLAIN_SERVER)
        await self.checkPlain(here, there, here)

    async def test_plainClient(self: Any) -> None:
        """A connection from a plain TCP client uses TCP, and the transport reports that."""
        here, there = await self.pair(client=self.PLAIN_CLIENT)
        await self.checkPlain(here, there, there)

    async def checkPlain(self: Any, here: StateRecorder, there: StateRecorder, ours: StateRecorder) -> None:
        """Check that a connection with a plain TCP end works, and that the other end reports the fallback."""
        status = ours.transport.smc
        self.assertEqual((status.mode, status.state, status.device), ("TCP", "TCP", ""))
        self.assertEqual(status.fallbackReason.name, "PEERNOSMC")
        data = bytes(1 << 20)
        here.transport.write(data)
        await self.until(lambda: there.received == len(data))
        there.transport.loseConnection()
        await self.until(lambda: there.lost is not None and here.hasEnded)

    async def test_fallbackForbidden(self: Any) -> None:
        """With C{fallback=no} neither end establishes a connection over plain TCP."""
        _factory, port = await self.listening(self.PLAIN_SERVER)
        with self.assertRaises(NotSMC) as caught:
            await self.connecting(self.CLIENT + ":fallback=no", port)
        self.assertEqual(caught.exception.reason.name, "PEERNOSMC")
        factory, port = await self.listening(self.SERVER + ":fallback=no")
        here = await self.connecting(self.PLAIN_CLIENT, port)
        await self.until(lambda: here.hasEnded or here.lost is not None)
        self.assertEqual(factory.protocols, [])
