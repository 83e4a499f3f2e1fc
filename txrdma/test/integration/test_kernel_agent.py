"""
Tests for L{txrdma.test.system.kernel.party} and L{txrdma.test.system.kernel.agent} without a kernel of their
own.

They need a real reactor.
"""

from __future__ import annotations

from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.defer import gatherResults
from twisted.internet.endpoints import clientFromString, connectProtocol
from twisted.trial.unittest import TestCase

from txrdma.test.system.kernel.agent import AskedFactory, Asking, Refused
from txrdma.test.system.kernel.party import Party
from txrdma.verbs.devices import openDevice

reactor: Any = theReactor  # a module, to the type checker


class AgentTests(TestCase):
    """A local party, and a remote one that is called over TCP."""

    timeout = 30

    async def setUp(self) -> None:  # type: ignore[override]  # trial waits for coroutines
        device = openDevice(reactor, "soft")
        self.addCleanup(device.close)
        factory = AskedFactory(reactor, device)
        self.addCleanup(lambda: gatherResults(factory.gone))
        port = reactor.listenTCP(0, factory, interface="127.0.0.1")
        self.addCleanup(port.stopListening)
        there = clientFromString(reactor, f"tcp:127.0.0.1:{port.getHost().port}")
        self.remote: Asking = await connectProtocol(there, Asking())
        self.addCleanup(self.disconnect)
        self.local = Party(reactor, device)
        self.addCleanup(self.local.close)

    def disconnect(self) -> None:
        assert self.remote.transport is not None
        self.remote.transport.loseConnection()

    async def connected(self, kind: str) -> dict[str, Any]:
        we = await self.local.call("open", kind=kind, size=4096)
        they: dict[str, Any] = await self.remote.call("open", kind=kind, size=4096)
        await self.local.call("connect", peer=they)
        await self.remote.call("connect", peer=we)
        return they

    async def test_write(self) -> None:
        """Bytes written by one party are in the other's memory, and their digests are equal."""
        they = await self.connected("RC")
        await self.local.call("fill", offset=0, length=1000, seed=7)
        other = await self.remote.call("digest", offset=0, length=1000)
        self.assertNotEqual(await self.local.call("digest", offset=0, length=1000), other)
        ended = await self.local.call("send", operation="RDMA_WRITE", peer=they, length=250, pieces=4)
        self.assertEqual(ended, ["SUCCESS"])
        mine = await self.local.call("digest", offset=0, length=1000)
        self.assertEqual(mine, await self.remote.call("digest", offset=0, length=1000))

    async def test_datagram(self) -> None:
        """A received datagram is reported with its sender."""
        they = await self.connected("UD")
        await self.remote.call("receive", offset=0, length=140)
        ended = await self.local.call("send", operation="SEND", peer=they, length=100)
        self.assertEqual(ended, ["SUCCESS"])
        [reported] = await self.remote.call("received")
        self.assertEqual((reported["status"], reported["length"]), ("SUCCESS", 140))
        self.assertNotEqual(reported["from"], they["qpn"])

    async def test_refused(self) -> None:
        """A failed call returns an error; only some methods can be called."""
        await self.connected("RC")
        with self.assertRaisesRegex(Refused, "^KeyError: "):
            await self.remote.call("open", kind="RQ", size=1)
        with self.assertRaisesRegex(Refused, "nobody can ask for '_completed'"):
            await self.remote.call("_completed")

    async def test_gone(self) -> None:
        """Calls that wait for an agent fail when it closes the connection."""
        await self.connected("RC")
        waiting = self.remote.call("received")
        self.disconnect()
        with self.assertRaises(Exception) as caught:
            await waiting
        self.assertIn("Connection", type(caught.exception).__name__)
