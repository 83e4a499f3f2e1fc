"""
Producers that write until they are paused, in a single call, are paused and stopped when their peer aborts.
"""

from __future__ import annotations

from typing import Any

from zope.interface import implementer

from twisted.internet import reactor as installedReactor
from twisted.internet.interfaces import IPushProducer

from txrdma.test.support.smc.ends import EndsTestCase
from txrdma.testing.protocols import Recorder

reactor: Any = installedReactor

_CHUNK = bytes(10_000)
_MOST_AT_ONCE = 10_000
"""Number of chunks; more than all buffers can store."""


@implementer(IPushProducer)
class Endless(Recorder):
    """Writes until it is paused, from a delayed call without a delay."""

    isPaused = hasSpun = False

    def connectionMade(self) -> None:
        super().connectionMade()
        self.transport.registerProducer(self, True)
        self.resumeProducing()

    def resumeProducing(self) -> None:
        self.isPaused = False
        reactor.callLater(0, self.more)

    def more(self) -> None:
        for _ in range(_MOST_AT_ONCE):
            if self.isPaused:
                return
            self.transport.write(_CHUNK)
        self.hasSpun = True

    def pauseProducing(self) -> None:
        self.isPaused = True

    def stopProducing(self) -> None:
        self.isPaused = True


class Leaving(Recorder):
    """Aborts the connection after a megabyte."""

    def dataReceived(self, data: bytes) -> None:
        super().dataReceived(data)
        if len(self.received) > 1_000_000:
            self.transport.abortConnection()


class EndlessTests(EndsTestCase):
    """Servers that write without end, to clients that abort."""

    async def leave(self, device: str, times: int) -> None:
        """Connect clients in turn, each of which aborts; check that the server's producer was paused."""
        factory, port = await self.serve("smc:127.0.0.1:0" + device, Endless)
        for _ in range(times):
            served = factory.next()
            client = await self.connect(f"smc:127.0.0.1:{port}{device}", Leaving)
            server: Any = await served
            await client.lost
            await server.lost
            self.assertFalse(server.hasSpun)

    async def test_abortPausesProducerOverSharedMemory(self) -> None:
        await self.leave("", 20)

    async def test_rocev2(self) -> None:
        """Over UDP, where an end is detected within a reactor iteration, the producer is paused."""
        await self.leave(r":device=soft\:route\=rocev2", 20)

    async def test_endNotReportedYet(self) -> None:
        """A producer that writes after an end not reported yet is paused: C{write}, C{writeSequence}."""
        factory, port = await self.serve()
        served = factory.next()
        await self.connect(f"smc:127.0.0.1:{port}")
        transport = (await served).transport
        for write in (transport.write, lambda data: transport.writeSequence([data])):
            producer = Endless()
            transport.registerProducer(producer, True)
            transport._flow.isOpen = False
            write(b"x")
            transport._flow.isOpen = True
            transport.unregisterProducer()
            self.assertTrue(producer.isPaused)
