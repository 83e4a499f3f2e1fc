"""
What connections leave in the real reactor when nothing can happen to them any more.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import gatherResults
from twisted.internet.endpoints import clientFromString
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.task import deferLater
from twisted.python.failure import Failure

from txrdma.smc.common import reactoruse as presence
from txrdma.smc.group.groups import everyGroup
from txrdma.test.support.smc.ends import EndsTestCase, reactor
from txrdma.testing.protocols import Echo, HalfCloseRecorder, Recorder, Recorders


class Buggy(HalfCloseRecorder):
    """Raises an exception when the peer half-closes."""

    def readConnectionLost(self) -> None:
        raise RuntimeError("a bug of the application")


class Paused(Recorder):
    """Does not want data for now."""

    def connectionMade(self) -> None:
        super().connectionMade()
        self.transport.pauseProducing()


def watched() -> set[object]:
    """What the reactor watches, but for its own."""
    return {*reactor.getReaders(), *reactor.getWriters()} - set(reactor._internalReaders)


class LeftoversTests(EndsTestCase):
    """The reactor has readers, writers and delayed calls of ours when TCP would have some of its own."""

    _before: set[object] = set()

    def left(self) -> set[object]:
        """What the reactor watches, and what it will call."""
        return {*watched(), *reactor.getDelayedCalls()} - self._before

    async def begin(self) -> None:
        """What is there now is not ours: trial's own, after a turn."""
        await deferLater(reactor, 0)
        self._before = self.left()

    def cancelCalls(self) -> None:
        """Cancel all delayed calls that a test leaves, as trial does."""
        for call in set(reactor.getDelayedCalls()) & self.left():
            call.cancel()

    def removeAll(self) -> None:
        """Remove everything that a test leaves, as trial does at the end of a class."""
        self.cancelCalls()
        reactor.removeAll()

    async def assertNothingLeft(self) -> None:
        """All that is in the reactor was there before, some turns later."""
        for _ in range(3):
            await deferLater(reactor, 0)
        self.assertEqual(self.left(), set())

    async def pair(self, client: type[Recorder], server: type[Recorder]) -> tuple[Any, Any]:
        """Two ends, and no port any more."""
        factory, number, port = await self.listening(server)
        accepted = factory.next()
        one = await self.connect(f"smc:127.0.0.1:{number}:fallback=no", client)
        other = await accepted
        await port.stopListening()
        return one, other

    async def test_bugInReadConnectionLost(self) -> None:
        """A server that raises at the end of the client's half leaves nothing, as that writes no more."""
        await self.begin()
        client, server = await self.pair(HalfCloseRecorder, Buggy)
        client.transport.loseWriteConnection()
        await gatherResults([client.readEnded, server.lost])
        server.reason.trap(RuntimeError)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        await self.assertNothingLeft()
        client.transport.loseConnection()
        await client.lost
        client.reason.trap(ConnectionDone)
        await self.assertNothingLeft()

    async def test_writesToNobody(self) -> None:
        """A half-closeable end whose peer has closed leaves nothing, and hears of the loss when it writes."""
        await self.begin()
        client, server = await self.pair(HalfCloseRecorder, Recorder)
        server.transport.loseConnection()
        await gatherResults([client.readEnded, server.lost])
        await self.assertNothingLeft()
        client.transport.write(b"hello?")
        await client.lost
        client.reason.trap(ConnectionLost)
        await self.assertNothingLeft()

    async def test_pausedAtTheEnd(self) -> None:
        """Who has paused leaves nothing when the peer has closed, and gets all of it when it resumes."""
        await self.begin()
        client, server = await self.pair(Paused, Recorder)
        server.transport.write(b"goodbye")
        server.transport.loseConnection()
        await server.lost
        await self.assertNothingLeft()
        self.assertEqual(client.received, b"")
        client.transport.resumeProducing()
        await client.lost
        client.reason.trap(ConnectionDone)
        self.assertEqual(client.received, b"goodbye")
        await self.assertNothingLeft()

    async def test_pausedWhileOthersCome(self) -> None:
        """Connections between other ends do not disturb one that has paused and whose peer has closed."""
        await self.begin()
        client, server = await self.pair(Paused, Recorder)
        server.transport.write(b"goodbye")
        server.transport.loseConnection()
        await server.lost
        for _ in range(2):
            one, other = await self.pair(Recorder, Recorder)
            one.transport.write(b"x")
            self.assertEqual(await other.receiving(1), b"x")
            one.transport.loseConnection()
            await gatherResults([one.lost, other.lost])
            await self.assertNothingLeft()
        client.transport.resumeProducing()
        await client.lost
        self.assertEqual(client.received, b"goodbye")

    async def test_othersLive(self) -> None:
        """Of a connection whose protocols have heard of its end nothing is watched, while others live."""
        factory, number, _ = await self.listening(Recorder)
        await self.connect(f"smc:127.0.0.1:{number}:fallback=no")  # and with it the device, and a link
        for end in ("loseConnection", "abortConnection"):
            for isServer in (False, True):
                await deferLater(reactor, 0)
                before = watched()
                accepted = factory.next()
                client = await self.connect(f"smc:127.0.0.1:{number}:fallback=no")
                server = await accepted
                getattr((server if isServer else client).transport, end)()
                await gatherResults([client.lost, server.lost])
                await deferLater(reactor, 0)
                self.assertEqual(watched() - before, set(), (end, isServer))

    async def test_port(self) -> None:
        """A port that the reactor, or a program for TCP, closes leaves nothing, and says what it is."""
        await self.begin()
        for close in ("connectionLost", "loseConnection"):
            factory, number, port = await self.listening(Recorder)
            self.assertEqual((port.factory, port.connected, port.disconnected), (factory, True, False))
            self.assertNotEqual(self.left(), set())
            if close == "connectionLost":
                port.connectionLost(Failure(ConnectionDone()))
            else:
                await port.loseConnection()
            self.assertEqual((port.connected, port.disconnected), (False, True))
            await self.assertNothingLeft()
            self.assertEqual(factory.stops, 1)

    async def test_callsCancelled(self) -> None:
        """Connections end, and the next is SMC-R, though somebody cancels all delayed calls."""
        await self.begin()
        factory, number, _ = await self.listening(Echo)
        for end in ("loseConnection", "abortConnection", "loseWriteConnection"):
            accepted = factory.next()
            client = await self.connect(f"smc:127.0.0.1:{number}:fallback=no")
            server = await accepted
            self.cancelCalls()
            client.transport.write(b"x")
            self.assertEqual(await client.receiving(1), b"x")
            getattr(client.transport, end)()
            await gatherResults([client.lost, server.lost])

    async def test_everythingRemoved(self) -> None:
        """
        The next connections are SMC-R at once, though a test has left others, and all was removed.

        The connections that were left come to nothing, and nothing is left of them.
        """
        self.patch(presence, "_CHECK_SECONDS", 60.0)  # as if no time passed between the tests of a suite
        await self.begin()
        left = []
        for count in range(4):
            factory, number, port = await self.listening(Recorder)
            for _ in range(count):
                accepted = factory.next()
                left.append(await clientFromString(reactor, f"smc:127.0.0.1:{number}").connect(Recorders()))
                await accepted
            port.stopListening()
            self.removeAll()
            begun = reactor.seconds()
            client, server = await self.pair(Recorder, Recorder)
            client.transport.write(b"x")
            self.assertEqual(await server.receiving(1), b"x")
            client.transport.loseConnection()
            await gatherResults([client.lost, server.lost])
            self.assertLess(reactor.seconds() - begun, 1.0)  # no answer was waited for in vain
            await self.assertNothingLeft()
        self.assertEqual({one.transport.smc.mode for one in left}, {"SMC-R"})

    async def test_stopped(self) -> None:
        """Connections made after the reactor has stopped end as usual: a runner of tests wants that."""
        await self.begin()
        _, number, port = await self.listening(Recorder)
        await self.connect(f"smc:127.0.0.1:{number}:fallback=no")
        groups: Any = everyGroup()[0].groups
        for trigger in groups._triggers:
            reactor.removeSystemEventTrigger(trigger)  # as the reactor does before it calls them
        stopped = groups._reactorStops()
        if stopped is not None:
            await stopped
        groups._reactorStopped()
        await port.stopListening()
        client, server = await self.pair(HalfCloseRecorder, Recorder)
        server.transport.loseConnection()
        await gatherResults([client.readEnded, server.lost])

    async def test_handshakesCut(self) -> None:
        """Who cancels all delayed calls while connections are being made has no errors in the log."""
        await self.begin()
        factory, number, _ = await self.listening(Echo)
        for turns in range(8):
            connecting = clientFromString(reactor, f"smc:127.0.0.1:{number}").connect(Recorders())
            for _ in range(turns):
                await deferLater(reactor, 0)
            self.cancelCalls()
            client = await self.connect(f"smc:127.0.0.1:{number}:fallback=no")
            client.transport.write(b"x")
            self.assertEqual(await client.receiving(1), b"x")
            client.transport.loseConnection()
            await client.lost
            connecting.addCallbacks(lambda left: left.transport.abortConnection(), lambda _: None)
            connecting.cancel()
        self.assertEqual(self.flushLoggedErrors(), [])
