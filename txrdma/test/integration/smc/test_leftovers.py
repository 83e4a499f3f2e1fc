"""
What connections leave in a real reactor when nothing more can happen to them.
"""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import gatherResults
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.task import deferLater
from twisted.python.context import theContextTracker
from twisted.python.failure import Failure

from txrdma.kit.shutdown import removeShutdownListener
from txrdma.smc.common import reactoruse as presence
from txrdma.smc.group.groups import everyGroup
from txrdma.test.support.smc.ends import EndsTestCase, reactor
from txrdma.testing.protocols import Echo, HalfCloseRecorder, Recorder
from txrdma.testing.reactors import unqueuedSeconds


class Buggy(HalfCloseRecorder):
    """Raises an exception when the peer half-closes."""

    def readConnectionLost(self) -> None:
        raise RuntimeError("a bug of the application")


class Paused(Recorder):
    def connectionMade(self) -> None:
        super().connectionMade()
        self.transport.pauseProducing()


def watched() -> set[object]:
    """Return the readers and writers of the reactor, except for its own."""
    return {*reactor.getReaders(), *reactor.getWriters()} - set(reactor._internalReaders)


class LeftoversTests(EndsTestCase):
    """SMC has readers, writers and delayed calls in the reactor only when TCP would."""

    _before: set[object] = set()

    def left(self) -> set[object]:
        """Return the readers, writers and delayed calls of the reactor."""
        return {*watched(), *reactor.getDelayedCalls()} - self._before

    async def begin(self) -> None:
        """Record what trial has in the reactor, after an iteration."""
        await deferLater(reactor, 0)
        self._before = self.left()

    def cancelCalls(self) -> None:
        """Cancel all delayed calls of a test, as trial does."""
        for call in set(reactor.getDelayedCalls()) & self.left():
            call.cancel()

    def removeAll(self) -> None:
        """Remove all readers of a test, as trial does at the end of a class."""
        self.cancelCalls()
        reactor.removeAll()

    async def assertNothingLeft(self) -> None:
        """Assert that the reactor has only what it had before, after some iterations."""
        for _ in range(3):
            await deferLater(reactor, 0)
        self.assertEqual(self.left(), set())

    async def pair(self, client: type[Recorder], server: type[Recorder]) -> tuple[Any, Any]:
        """Return two ends without a listening port."""
        factory, number, port = await self.listening(server)
        one, other = await self.join(factory, f"smc:127.0.0.1:{number}:fallback=no", client)
        await port.stopListening()
        return one, other

    async def test_exceptionInReadConnectionLostLeavesNothing(self) -> None:
        await self.begin()
        client, server = await self.pair(HalfCloseRecorder, Buggy)
        contexts = theContextTracker.currentContext().contexts
        before = list(contexts)
        client.transport.loseWriteConnection()
        await gatherResults([client.readEnded, server.lost])
        server.reason.trap(RuntimeError)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)
        await self.assertNothingLeft()
        client.transport.loseConnection()
        await client.lost
        client.reason.trap(ConnectionDone)
        await self.assertNothingLeft()
        self.assertEqual(contexts, before)

    async def test_halfClosedEndLeavesNothingAndDetectsLossByWriting(self) -> None:
        await self.begin()
        client, server = await self.pair(HalfCloseRecorder, Recorder)
        server.transport.loseConnection()
        await gatherResults([client.readEnded, server.lost])
        await self.assertNothingLeft()
        client.transport.write(b"hello?")
        await client.lost
        client.reason.trap(ConnectionLost)
        await self.assertNothingLeft()

    async def test_pausedEndLeavesNothingAndGetsAllDataWhenResumed(self) -> None:
        await self.begin()
        client, server = await self.pair(Paused, Recorder)
        server.transport.write(b"goodbye")
        server.transport.loseConnection()
        await server.lost
        await self.assertNothingLeft()
        for _ in range(2):
            one, other = await self.pair(Recorder, Recorder)
            one.transport.write(b"x")
            self.assertEqual(await other.receiving(1), b"x")
            one.transport.loseConnection()
            await gatherResults([one.lost, other.lost])
            await self.assertNothingLeft()
        self.assertEqual(client.received, b"")
        client.transport.resumeProducing()
        await client.lost
        client.reason.trap(ConnectionDone)
        self.assertEqual(client.received, b"goodbye")
        await self.assertNothingLeft()

    async def test_endedConnectionHasNoReadersWhileOthersContinue(self) -> None:
        factory, number, _ = await self.listening(Recorder)
        await self.connect(f"smc:127.0.0.1:{number}:fallback=no")  # and with it the device and a link
        for end in ("loseConnection", "abortConnection"):
            for isServer in (False, True):
                await deferLater(reactor, 0)
                before = watched()
                client, server = await self.join(factory, f"smc:127.0.0.1:{number}:fallback=no")
                getattr((server if isServer else client).transport, end)()
                await gatherResults([client.lost, server.lost])
                await deferLater(reactor, 0)
                self.assertEqual(watched() - before, set(), (end, isServer))

    async def test_portClosedByReactorOrProgramLeavesNothing(self) -> None:
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

    async def test_cancelledDelayedCallsDisturbNoConnection(self) -> None:
        await self.begin()
        factory, number, _ = await self.listening(Echo)
        for end in ("loseConnection", "abortConnection", "loseWriteConnection"):
            client, server = await self.join(factory, f"smc:127.0.0.1:{number}:fallback=no")
            self.cancelCalls()
            client.transport.write(b"x")
            self.assertEqual(await client.receiving(1), b"x")
            getattr(client.transport, end)()
            await gatherResults([client.lost, server.lost])

    async def test_everythingRemoved(self) -> None:
        """
        The next connections use SMC-R immediately although a test left some, and all readers were removed.

        The connections left open end, and leave nothing.
        """
        self.patch(presence, "_CHECK_SECONDS", 60.0)  # as if no time passed between the tests of a suite
        await self.begin()
        left = []
        for count in range(4):
            factory, number, port = await self.listening(Recorder)
            for _ in range(count):
                accepted = factory.next()
                left.append(await self.attempt(f"smc:127.0.0.1:{number}"))
                await accepted
            port.stopListening()
            self.removeAll()
            begun = unqueuedSeconds()
            client, server = await self.pair(Recorder, Recorder)
            client.transport.write(b"x")
            self.assertEqual(await server.receiving(1), b"x")
            client.transport.loseConnection()
            await gatherResults([client.lost, server.lost])
            self.assertLess(unqueuedSeconds() - begun, 1.0)  # no timeout has expired
            await self.assertNothingLeft()
        self.assertEqual({one.transport.smc.mode for one in left}, {"SMC-R"})

    async def test_abortAfterRemoval(self) -> None:
        """A connection over RoCE can be aborted after all readers and delayed calls were removed."""
        await self.begin()
        more = r":device=soft\:route\=rocev2"
        factory, number, port = await self.listening(Recorder, "smc:127.0.0.1:0" + more)
        client, server = await self.join(factory, f"smc:127.0.0.1:{number}:fallback=no{more}", Recorder)
        client.transport.write(b"x")  # there is a deadline for its acknowledgement
        self.removeAll()
        await deferLater(reactor, 1.0)
        for end in (client, server):
            end.transport.abortConnection()
        await gatherResults([client.lost, server.lost, port.stopListening()])

    async def test_connectionsAfterReactorStoppedEndAsUsual(self) -> None:
        await self.begin()
        _, number, port = await self.listening(Recorder)
        await self.connect(f"smc:127.0.0.1:{number}:fallback=no")
        groups: Any = everyGroup()[0].groups
        removeShutdownListener(reactor, groups._reactorStops)  # as is done before it is called
        reactor.removeSystemEventTrigger(groups._trigger)
        stopped = groups._reactorStops()
        if stopped is not None:
            await stopped
        groups._reactorStopped()
        await port.stopListening()
        client, server = await self.pair(HalfCloseRecorder, Recorder)
        server.transport.loseConnection()
        await gatherResults([client.readEnded, server.lost])

    async def test_cancelledDelayedCallsInHandshakeLogNoErrors(self) -> None:
        await self.begin()
        factory, number, _ = await self.listening(Echo)
        for turns in range(8):
            connecting = self.attempt(f"smc:127.0.0.1:{number}")
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
