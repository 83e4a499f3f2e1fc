"""
Objects of connections that have ended: reference counts free them, nothing waits for the garbage collector.

Where thousands of connections come and go the collector would take a good part of a process's time.
"""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

from twisted.internet.task import deferLater

from txrdma.test.support.smc.ends import EndsTestCase, reactor
from txrdma.testing.protocols import Recorder


class CircleTests(EndsTestCase):
    """Connections on the real reactor, while the collector rests."""

    def setUp(self) -> None:
        super().setUp()
        gc.disable()
        self.addCleanup(gc.enable)

    async def ended(self, how: str) -> list[Any]:
        """Weak references to both streams and the client's TCP transport, after a connection's life."""
        factory, port = await self.serve()
        accepted = factory.next()
        client = await self.connect(f"smc:127.0.0.1:{port}")
        server = await accepted
        self.assertEqual((client.smc.mode, server.smc.mode), ("SMC-R", "SMC-R"))
        ends: tuple[Recorder, ...] = (client, server)
        refs = [ref(each.transport.stream) for each in ends] + [ref(client.transport.stream.tcp)]
        ends[how == "server"].transport.loseConnection()
        for each in ends:
            await each.lost
        factory.protocols.clear()
        self._ended.clear()
        for each in ends:
            del each.transport, each.smc
        return refs

    async def test_closed(self) -> None:
        """Whoever of the two closes, both streams are gone, and the TCP transport of the client."""
        for how in ("client", "server"):
            refs = await self.ended(how)
            await deferLater(reactor, 0.01)  # the turns in which the last is said
            self.assertEqual([each() for each in refs], [None, None, None], how)
