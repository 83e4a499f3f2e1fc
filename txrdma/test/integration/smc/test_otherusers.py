"""
SMC-R through shared memory with a process of another user, found by a shared directory.
"""

from __future__ import annotations

import os

from twisted.internet.defer import gatherResults

from txrdma.smc.group.groups import everyGroup
from txrdma.soft.shared import peerdevice, unixpackets
from txrdma.test.support.smc.ends import EndsTestCase
from txrdma.testing.protocols import Echo, Recorder
from txrdma.unix import sockets as unixsockets


class OtherUserTests(EndsTestCase):
    """Both ends treat each other as processes of another user."""

    def setUp(self) -> None:
        super().setUp()
        self.patch(peerdevice, "isSameUser", lambda user: False)
        self.patch(unixpackets, "ring", self.ring)
        self.rings: list[int] = []

    def ring(self, doorbell: int) -> None:
        """Record a doorbell instead of ringing it."""
        self.rings.append(doorbell)

    async def test_bytesPassWithoutDoorbellsOfOtherUser(self) -> None:
        client, server = await self.ends(Echo)
        self.assertEqual(client.transport.smc.route, "shared-memory")
        output = b""
        for length in (1, 100, 100_000, 3_000_000, 1):
            data = bytes([len(output) % 251]) * length
            client.transport.write(data)
            output += data
            self.assertEqual(await client.receiving(len(output)), output)
        client.transport.loseConnection()
        await gatherResults([client.lost, server.lost])
        self.assertEqual(self.rings, [])

    async def test_connectionsOfGroupWakePeersByMessages(self) -> None:
        factory, number = await self.serve(kind=Echo)
        clients = [await self.connect(f"smc:127.0.0.1:{number}:fallback=no", Recorder) for _ in range(10)]
        for client in clients:
            client.transport.write(b"hello" * 1000)
        for client in clients:
            self.assertEqual(await client.receiving(5000), b"hello" * 1000)
        self.assertEqual(self.rings, [])

    async def test_datagrams(self) -> None:
        factory, number, _ = await self.listening(Echo, "btl:127.0.0.1:0")
        client = await self.connect(f"btl:127.0.0.1:{number}", Recorder)
        client.transport.write(b"hello" * 10_000)
        self.assertEqual(await client.receiving(50_000), b"hello" * 10_000)
        client.transport.loseConnection()
        await client.lost
        self.assertEqual(self.rings, [])


class UnknownProcessTests(EndsTestCase):
    """The peer is in an invisible PID namespace: the kernel reports its process as 0."""

    async def test_connectionsOfEachAnnouncingSocketHaveTheirGroup(self) -> None:
        peer = unixsockets.Credentials(0, os.geteuid())
        self.patch(unixsockets, "peerOf", lambda connected: peer)
        _, number = await self.serve(kind=Echo)
        for _ in range(3):
            client = await self.connect(f"smc:127.0.0.1:{number}:fallback=no")
            self.assertEqual(client.transport.smc.mode, "SMC-R")
        self.assertEqual(len(everyGroup()), 2)  # the client's, and the server's
        _, number = await self.serve(kind=Echo)
        await self.connect(f"smc:127.0.0.1:{number}:fallback=no")
        self.assertEqual(len(everyGroup()), 4)
