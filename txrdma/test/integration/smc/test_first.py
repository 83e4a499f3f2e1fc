"""
The first connection of a reactor, and the device that a server opens in advance.
"""

from __future__ import annotations

from twisted.internet.task import deferLater

from txrdma.smc.group.groups import hasLinkGroups
from txrdma.test.support.smc.ends import EndsTestCase, reactor

NOT_THERE = r"device=soft\:192.0.2.1"


class FirstConnectionTests(EndsTestCase):
    """Devices of servers before the first connection."""

    async def test_listeningServerOpensDeviceInFirstIteration(self) -> None:
        _factory, _port = await self.serve()
        self.assertFalse(hasLinkGroups(reactor))
        await deferLater(reactor, 0)
        self.assertTrue(hasLinkGroups(reactor))

    async def test_serverThatStopsFirstOpensNoDeviceUntilItListensAgain(self) -> None:
        _, _, port = await self.listening()
        await port.stopListening()
        await deferLater(reactor, 0)
        self.assertFalse(hasLinkGroups(reactor))
        port.startListening()
        await deferLater(reactor, 0)
        self.assertTrue(hasLinkGroups(reactor))
        await port.stopListening()
