"""
Subscriptions with OpenSM in ibsim: registration, reports, and handover to another manager.
"""

from __future__ import annotations

from twisted.internet.task import deferLater

from txrdma.mad.agent import MADAgent
from txrdma.mad.errors import MADError
from txrdma.mad.layouts.sa import InformInfoRecord
from txrdma.mad.paths import toSA
from txrdma.mad.server import MADServer
from txrdma.mad.subscription import Subscription
from txrdma.test.system.ibsim.fabric import IbsimTestCase
from txrdma.testing.reactors import waitUntil

NET = """
width=3
speed=7
extspeed=7

Switch 8 "left"
[1] "a"[1]
[2] "b"[1]
[3] "c"[1]
[4] "d"[1]

Hca 1 "a"
Hca 1 "b"
Hca 1 "c"
Hca 1 "d"
"""


class SubscriptionTests(IbsimTestCase):
    net = NET
    hasSM = True
    smConfiguration = "sm_priority 4"

    def setUp(self) -> None:
        from twisted.internet import reactor

        super().setUp()
        self.reactor = reactor
        # ibsim delivers requests, including reports, to programs that register as manager
        self.agent = MADAgent(
            reactor, self.portAt("a", isSM=True), timeoutSeconds=1.0, retries=2, watchSeconds=0.2
        )
        self.addCleanup(self.agent.close)
        self.asking = self.agentAt("a")
        self.received: list[int] = []
        self.subscription = Subscription(
            *(reactor, self.agent, MADServer(self.agent), None),
            lambda notice, request: self.received.append(notice.trapNumber),
            retrySeconds=0.2,
        )
        self.addCleanup(self.subscription.stop)

    async def isKnown(self) -> bool:
        end = self.agent.port.refresh()
        query = InformInfoRecord.query(subscriberGID=end.gids[0])
        try:
            record = await self.asking.SubnAdmGet(query, toSA(end))
        except MADError as error:
            self.assertEqual(error.status, 0x0300, str(error))  # no such record
            return False
        return record.subscriberGID == end.gids[0]

    async def test_reports(self) -> None:
        self.subscription.start()
        await waitUntil(self.reactor, lambda: self.subscription.isStanding)
        self.assertTrue(await self.isKnown())
        self.subscription.renew()
        await waitUntil(self.reactor, lambda: self.subscription.isStanding)
        self.assertTrue(await self.isKnown())
        self.fabric.console('Unlink "b"[1]')
        await waitUntil(self.reactor, lambda: 65 in self.received)
        await deferLater(self.reactor, 2.0)
        self.assertEqual(self.received.count(65), 1)
        await self.subscription.stop()
        self.assertFalse(await self.isKnown())

    async def test_handover(self) -> None:
        self.fabric.standBy("c", "sm_priority 3\nsminfo_polling_timeout 200\npolling_retry_number 3")
        self.subscription.start()
        await waitUntil(self.reactor, lambda: self.subscription.isStanding)
        before = self.agent.port.refresh().smLID
        self.fabric.stopManager()
        await waitUntil(self.reactor, lambda: self.agent.port.refresh().smLID != before)
        await deferLater(self.reactor, 1.0)
        await waitUntil(self.reactor, lambda: self.subscription.isStanding)
        self.assertTrue(await self.isKnown())
        self.received.clear()
        self.fabric.console('Unlink "b"[1]')
        await waitUntil(self.reactor, lambda: 65 in self.received)
