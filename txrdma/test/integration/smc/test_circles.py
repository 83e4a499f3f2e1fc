"""
Objects of ended connections are freed by reference counting, without the garbage collector.

With thousands of short connections, the collector would take much of a process's time.
"""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

from twisted.internet.task import deferLater

from txrdma.test.support.smc.ends import EndsTestCase, reactor
from txrdma.testing.protocols import Recorder


class CircleTests(EndsTestCase):
    """Connections on the real reactor, with the garbage collector disabled."""

    def setUp(self) -> None:
        super().setUp()
        gc.disable()
        self.addCleanup(gc.enable)

    async def ended(self, how: str) -> list[Any]:
        """Close a connection at one end; return weak references to both streams and the client's TCP."""
        factory, port = await self.serve()
        client, server = await self.join(factory, f"smc:127.0.0.1:{port}")
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

    async def test_bothStreamsAndClientsTCPAreFreedWhicheverEndCloses(self) -> None:
        for how in ("client", "server"):
            refs = await self.ended(how)
            await deferLater(reactor, 0.01)  # until both ends have finished
            self.assertEqual([each() for each in refs], [None, None, None], how)
