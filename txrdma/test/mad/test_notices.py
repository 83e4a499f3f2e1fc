"""
A subscription stands until it is stopped, whatever becomes of the subnet's administration.
"""

from __future__ import annotations

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.types import LID
from txrdma.mad.agent import MADAgent
from txrdma.mad.attributes import ManagementClass, Method
from txrdma.mad.errors import MADRefusal
from txrdma.mad.messages import InformInfo, MADRequest, Notice
from txrdma.mad.notices import Subscription
from txrdma.mad.serving import MADServer
from txrdma.test.mad.pairs import pass_, TO_1, TO_2, Wire
from txrdma.test.mad.test_agent import Answers


class SubscriptionTests(SynchronousTestCase):
    """LID 1 subscribes at LID 2."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.wire = Wire(self.clock)
        self.agent = MADAgent(self.clock, self.wire.ports[0], timeoutSeconds=0.5)
        self.manager = MADAgent(self.clock, self.wire.ports[1], timeoutSeconds=0.5)
        self.refuses = False
        self.answers = Answers(self.answer)
        MADServer(self.manager).handle(ManagementClass.SUBN_ADM, self.answers, (Method.SET,))
        self.heard: list[int] = []
        self.subscription = Subscription(
            self.clock,
            self.agent,
            MADServer(self.agent),
            TO_2,
            lambda notice, path: self.heard.append(notice.trapNumber),
            renewalSeconds=10,
        )

    def answer(self, request: MADRequest) -> object:
        if self.refuses:
            raise MADRefusal(0x0100)
        return request.payload

    def wishes(self) -> list[int]:
        """What was asked for: 1 to subscribe, 0 to end it."""
        return [
            request.payload.subscribe
            for request in self.answers.asked
            if isinstance(request.payload, InformInfo)
        ]

    def test_renewal(self) -> None:
        """It is made anew again and again, and taken back at the end."""
        self.subscription.start()
        self.subscription.start()
        pass_(self.clock, 35, 0.1)
        self.assertTrue(self.subscription.isStanding)
        self.assertEqual(self.wishes(), [1, 1, 1, 1])
        done = self.subscription.stop()
        pass_(self.clock, 1, 0.1)
        self.successResultOf(done)
        self.successResultOf(self.subscription.stop())
        self.assertEqual(self.wishes(), [1, 1, 1, 1, 0])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_refusal(self) -> None:
        """A refusal is no end: it tries again."""
        self.refuses = True
        self.subscription.start()
        pass_(self.clock, 1, 0.1)
        self.assertFalse(self.subscription.isStanding)
        self.refuses = False
        pass_(self.clock, 10, 0.1)
        self.assertTrue(self.subscription.isStanding)

    def test_silence(self) -> None:
        """An administration that is gone is none, and none is waited for in the end."""
        self.wire.lose = lambda datagram: True
        self.subscription.start()
        pass_(self.clock, 30, 0.1)
        self.assertFalse(self.subscription.isStanding)
        done = self.subscription.stop()
        pass_(self.clock, 5, 0.1)
        self.successResultOf(done)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_reports(self) -> None:
        """Reports are acknowledged, and heard until it is stopped."""
        self.subscription.start()
        pass_(self.clock, 1, 0.1)
        report = self.manager.SubnAdmReport(Notice(isGeneric=True, trapNumber=64, issuerLID=LID(2)), TO_1)
        pass_(self.clock, 1, 0.1)
        self.successResultOf(report)
        self.subscription.stop()
        self.manager.SubnAdmReport(Notice(isGeneric=True, trapNumber=65), TO_1)
        pass_(self.clock, 1, 0.1)
        self.assertEqual(self.heard, [64])
