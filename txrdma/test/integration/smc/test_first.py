"""
The first connection of a reactor, on the real one, and the device that a server has opened before.
"""

from __future__ import annotations

from twisted.internet.endpoints import serverFromString
from twisted.internet.protocol import Factory
from twisted.internet.task import deferLater

from txrdma.smc.group.groups import hasLinkGroups
from txrdma.smc.wire.clc import Diagnosis
from txrdma.test.support.smc.ends import EndsTestCase, reactor

NOT_THERE = r"device=soft\:192.0.2.1"


class FirstConnectionTests(EndsTestCase):
    """The first connection of a reactor."""

    async def test_opensBefore(self) -> None:
        """A server opens its device in the first turn in which it listens, and not for the first client."""
        _factory, _port = await self.serve()
        self.assertFalse(hasLinkGroups(reactor))
        await deferLater(reactor, 0)
        self.assertTrue(hasLinkGroups(reactor))

    async def test_stopsBefore(self) -> None:
        """A server that listens no more in that turn opens nothing, until it listens again."""
        port = await serverFromString(reactor, "smc:127.0.0.1:0").listen(Factory())
        await port.stopListening()
        await deferLater(reactor, 0)
        self.assertFalse(hasLinkGroups(reactor))
        port.startListening()
        await deferLater(reactor, 0)
        self.assertTrue(hasLinkGroups(reactor))
        await port.stopListening()

    async def test_noDevice(self) -> None:
        """A server without its device says so in the answer to the Proposal, as ever."""
        factory, port = await self.serve("smc:127.0.0.1:0:" + NOT_THERE)
        accepted = factory.next()
        client = await self.connect(f"smc:127.0.0.1:{port}")
        self.assertEqual(client.smc.peerDiagnosis, Diagnosis.NOSMCDEV)
        self.assertEqual((await accepted).smc.fallbackReason, Diagnosis.NOSMCDEV)
