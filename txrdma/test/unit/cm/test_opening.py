"""State machines of opening and closing: requests in each state. L{test_searching} has every interleaving."""

from __future__ import annotations

from math import inf

from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.core import opening
from txrdma.cm.core.connection import ConnectionCore
from txrdma.cm.core.events import ConnectionReplied
from txrdma.cm.core.exchange import LONGEST_DELAY, RetryPolicy
from txrdma.cm.core.opening import Opening
from txrdma.cm.layouts.messages import MessageKind, MRA, REJ, RejectReason, REP, REQ, RTU
from txrdma.cm.layouts.paths import lifeTimeOf
from txrdma.error import InvalidRequest
from txrdma.iba.path import lifetimeSeconds
from txrdma.iba.types import GUID, QPN

REQUEST = REQ(localCommID=1, localQPN=QPN(5), remoteCMResponseTimeout=16, localCMResponseTimeout=17,
              maxCMRetries=2)  # fmt: skip


class RequestTests(SynchronousTestCase):
    """Requests and messages, one at a time."""

    def setUp(self) -> None:
        self.active = Opening(1, GUID.fromInt(9))
        self.passive = Opening(2, GUID.fromInt(8))

    def test_requestInWrongStateIsRefused(self) -> None:
        for request in (
            lambda: self.active.accept(REP(), 0.0),
            lambda: self.active.ready(b"", 0.0),
            lambda: self.active.reject(RejectReason.CONSUMER_REJECT, 0.0),
            lambda: self.active.delay(3, 0.0),
        ):
            self.assertRaises(InvalidRequest, request)
        self.active.connect(REQUEST, 5, 0.0)
        self.assertRaises(InvalidRequest, self.active.connect, REQUEST, 6, 0.0)
        self.assertEqual((self.active.state, len(self.active.outgoing())), ("REQ_SENT", 1))

    def test_timeoutsIncludePeerAndPath(self) -> None:
        path = 2 * lifetimeSeconds(18)  # the default, as in most subnets
        self.active.connect(REQUEST, 5, 10.0)
        self.assertEqual(self.active.deadline(), 10.0 + (lifetimeSeconds(16) + path))
        self.passive.received(REQUEST, 5, 20.0)
        self.assertIsNone(self.passive.deadline())
        self.passive.accept(REP(), 20.0)
        self.assertEqual(self.passive.deadline(), 20.0 + (lifetimeSeconds(17) + path))

    def test_MRAReplacesOnlyItsTimer(self) -> None:
        self.active.connect(REQUEST, 5, 0.0)
        before = self.active.deadline()
        self.assertFalse(self.active.received(MRA(messageMRAed=MessageKind.REP, serviceTimeout=20), 5, 0.0))
        self.assertEqual(self.active.deadline(), before)
        self.assertTrue(self.active.received(MRA(serviceTimeout=20), 5, 1.0))
        self.assertEqual(self.active.deadline(), 1.0 + (lifetimeSeconds(20) + 2 * lifetimeSeconds(18)))
        self.assertFalse(self.active.received(MRA(serviceTimeout=31), 5, 2.0))
        self.active.outgoing()
        for _ in range(2):
            self.active.expired(inf)
            self.assertEqual(self.active.state, "REQ_SENT")
        self.assertEqual([each.isAgain for each in self.active.outgoing()], [True, True])
        self.active.expired(inf)
        self.assertTrue(self.active.isOver)

    def test_peerTimesAreBounded(self) -> None:
        self.assertLess(RetryPolicy(31, 30, 15).seconds, 60)

    def test_repeatedMRAsAreBounded(self) -> None:
        """However many MRAs a peer sends, they delay an attempt by at most 60 seconds."""
        request = REQUEST.replace(maxCMRetries=7)
        self.active.connect(request, 5, 0.0)
        now = 0.0
        delay = MRA(messageMRAed=MessageKind.REQ, serviceTimeout=31)
        while not self.active.isOver:
            if self.active.outgoing():
                self.active.received(delay, 5, now)
            deadline = self.active.deadline()
            assert deadline is not None
            now = deadline
            self.active.expired(now)
        policy = RetryPolicy(request.remoteCMResponseTimeout, lifeTimeOf(request.primary), 7)
        self.assertAlmostEqual(now, LONGEST_DELAY + 7 * policy.seconds)

    def test_timeoutREJNamesGUID(self) -> None:
        self.active.connect(REQUEST, 5, 0.0)
        self.active.cancel(0.0)
        _, sent = self.active.outgoing()
        assert isinstance(sent.message, REJ)
        self.assertEqual(sent.message.reason, RejectReason.TIMEOUT)
        self.assertEqual((sent.message.localCommID, sent.message.remoteCommID), (1, 0))
        self.assertEqual(sent.message.additionalInfo[:8], GUID.fromInt(9).raw)
        self.assertEqual((sent.message.rejectInfoLength, sent.transactionID), (8, 5))

    def test_REJOfREQHasNoCommID(self) -> None:
        for isReported in (False, True):
            passive = Opening(2, GUID.fromInt(8))
            passive.received(REQUEST, 5, 0.0)
            if isReported:
                passive.delay(20, 0.0)
                passive.outgoing()
            passive.reject(RejectReason.NO_RESOURCES, 0.0, b"info", b"private")
            (sent,) = passive.outgoing()
            assert isinstance(sent.message, REJ)
            self.assertEqual(
                (sent.message.localCommID, sent.message.remoteCommID), (2 if isReported else 0, 1)
            )
            self.assertEqual(sent.message.messageRejected, MessageKind.REQ)
            self.assertEqual(sent.message.rejectInfoLength, 4)
            self.assertEqual(sent.message.privateData[:8], b"private\0")

    def test_repeatedREPGetsSameRTU(self) -> None:
        self.active.connect(REQUEST, 5, 0.0)
        reply = REP(localCommID=2, remoteCommID=1)
        self.active.received(reply, 5, 0.0)
        self.assertEqual(self.active.events(), [ConnectionReplied(reply)])
        self.active.outgoing()
        self.active.ready(b"mine", 0.0)
        (first,) = self.active.outgoing()
        assert isinstance(first.message, RTU)
        self.assertEqual(first.message.privateData[:5], b"mine\0")
        self.assertFalse(self.active.ready(b"other", 0.0))
        self.assertFalse(self.active.delay(3, 0.0, b"other"))
        self.assertFalse(self.active.received(reply, 5, 0.0))
        self.assertEqual(self.active.outgoing(), [first])

    def test_equalGUIDsCompareQueuePairs(self) -> None:
        low, high = REQUEST.replace(localQPN=QPN(4)), REQUEST
        self.assertGreater(opening._rank(high), opening._rank(low))
        guid = low.replace(localCAGUID=GUID.fromInt(1 << 60))
        self.assertGreater(opening._rank(guid), opening._rank(high))

    def test_disconnectInAnyState(self) -> None:
        connection = ConnectionCore(1, GUID.fromInt(9), 100)
        connection.opening.connect(REQUEST, 5, 0.0)
        self.assertTrue(connection.disconnect(0.0))
        self.assertTrue(connection.isFree)
        self.assertFalse(connection.disconnect(0.0))
