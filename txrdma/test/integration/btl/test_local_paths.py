"""Long messages of connections with several paths between devices of this host."""

from __future__ import annotations

import os
from typing import Any

from twisted.internet import reactor
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from txrdma.btl.connections import connect, listen
from txrdma.btl.status import report
from txrdma.messages.protocol import MessageProtocol
from txrdma.testing.protocols import Recorders

_TAG = 1


class LongMessageTests(TestCase):
    """Two modules with two devices each, in this process."""

    async def exchange(self, *ends: MessageProtocol) -> None:
        """Send a long message in each direction, and compare what arrives."""
        for sender, receiver in (ends, ends[::-1]):
            message = os.urandom(1 << 20)
            sent = sender.transport.send(_TAG, message)
            self.assertEqual(await receiver.transport.receive(_TAG), message)
            await sent

    async def test_sharedMemory(self) -> None:
        """Long messages are sent through shared memory, and by none of the paths."""
        client, server = MessageProtocol(), MessageProtocol()
        here, there = ([f"soft:127.0.9.{each}:port=0" for each in some] for some in ((1, 2), (3, 4)))
        others = report()["gauges"]["modules"]
        port: Any = await listen(reactor, 0, Recorders(lambda: server), "127.0.0.1", there)
        await connect(reactor, "127.0.0.1", port.getHost().port, Recorders(lambda: client), here)
        while not hasattr(server, "transport"):
            await deferLater(reactor, 0)
        await self.exchange(client, server)
        while any(each.transport._peer.receiveBuffer is None for each in (client, server)):
            await deferLater(reactor, 0)
        before = report()["counters"]
        await self.exchange(client, server)
        after = report()["counters"]
        self.assertEqual(after["num_rdma_sends"] - before["num_rdma_sends"], 2)
        self.assertEqual(after["num_chunk_sends"], before["num_chunk_sends"])
        client.transport.loseConnection()
        await port.stopListening()
        while report()["gauges"]["modules"] > others:
            await deferLater(reactor, 0.01)
