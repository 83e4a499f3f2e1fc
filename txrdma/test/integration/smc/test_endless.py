"""
Producers that write until they are paused, in one go, when their peer goes: they are paused, and stopped.
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
"""Chunks, more than all buffers hold."""


@implementer(IPushProducer)
class Endless(Recorder):
    """Writes while nobody pauses it, each time from a call that it delays by no time."""

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
    """Goes after a megabyte."""

    def dataReceived(self, data: bytes) -> None:
        super().dataReceived(data)
        if len(self.received) > 1_000_000:
            self.transport.abortConnection()


class EndlessTests(EndsTestCase):
    """Servers that never end, and clients that leave."""

    async def leave(self, device: str, times: int) -> None:
        """Clients come and leave, one after the other."""
        factory, port = await self.serve("smc:127.0.0.1:0" + device, Endless)
        for _ in range(times):
            served = factory.next()
            client = await self.connect(f"smc:127.0.0.1:{port}{device}", Leaving)
            server: Any = await served
            await client.lost
            await server.lost
            self.assertFalse(server.hasSpun)

    async def test_sharedMemory(self) -> None:
        """By shared memory."""
        await self.leave("", 20)

    async def test_rocev2(self) -> None:
        """By UDP, where an end is found in the middle of a turn."""
        await self.leave(r":device=soft\:route\=rocev2", 20)

    async def test_untold(self) -> None:
        """A producer that writes when the end is not told yet is paused, by either way of writing."""
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
