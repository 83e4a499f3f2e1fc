"""Tests for L{txrdma.cm.core.alternate}: each rule alone. L{test_searching} has every interleaving."""

from __future__ import annotations

from math import inf
from types import SimpleNamespace
from typing import Any, cast

from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.core.alternate import Alternate, PathEnds
from txrdma.cm.core.dispatcher import Managed
from txrdma.cm.core.events import (
    AlternatePathAbandoned,
    AlternatePathCancelled,
    AlternatePathLoaded,
    AlternatePathRejected,
    AlternatePathRequested,
    AlternatePathTimedOut,
    MigrationUnexpected,
    PathMigrated,
    QPArmed,
    QPDisarmed,
)
from txrdma.cm.core.exchange import LONGEST_DELAY, OutgoingMAD, RetryPolicy
from txrdma.cm.layouts.messages import APR, APStatus, CMPath, LAP, MessageKind, MRA
from txrdma.cm.layouts.paths import alternateOf, lapFor, pathOf, reversedPath
from txrdma.error import InvalidRequest
from txrdma.iba.path import lifetimeSeconds
from txrdma.iba.types import QPN
from txrdma.test.support.cm.managers import FIRST, path, PRIMARY, SECOND

SECONDS = lifetimeSeconds(20) + 2 * lifetimeSeconds(18)


REQUEST = 77
"""The transaction of the connection's REQ."""


def made(isActive: bool, **more: Any) -> Alternate:
    """Create one end of a connection with a primary path only."""
    numbers = (1, 2, QPN(11), QPN(12)) if isActive else (2, 1, QPN(12), QPN(11))
    return Alternate(
        PathEnds(*numbers, REQUEST),
        isActive=isActive,
        primary=PRIMARY if isActive else reversedPath(PRIMARY),
        alternate=None,
        retryPolicy=RetryPolicy(20, 18, 1),
        **more,
    )


def lap(number: CMPath = FIRST, qpn: int = 12) -> LAP:
    """Return the LAP that an active end sends for a path."""
    return lapFor(number, LAP(localCommID=1, remoteCommID=2, remoteQPN=QPN(qpn)))


def statuses(sent: list[OutgoingMAD]) -> list[tuple[APStatus, int]]:
    """Return statuses and transactions of the sent APRs."""
    assert all(isinstance(each.message, APR) for each in sent)
    return [(each.message.apStatus, each.transactionID) for each in sent if isinstance(each.message, APR)]


class ManagedTests(SynchronousTestCase):
    """The path of the messages of a connection with two paths."""

    def test_answerTakesPathOfMessage(self) -> None:
        """A message that arrives by one of the paths is answered by the same; retransmissions alternate."""
        for number, alternate in ((0, 1), (1, 0)):
            paths = [pathOf(path(each)) for each in (number, alternate)]
            managed = Managed(1, cast(Any, SimpleNamespace(alternatePath=path(alternate))), paths[0])
            for each in (0, 1, 0):
                managed.receivedOn(pathOf(reversedPath(path((number, alternate)[each]))))
                self.assertEqual(managed.pathOfMessage(False).dgid, paths[each].dgid)
                self.assertEqual(managed.pathOfMessage(True).dgid, paths[1 - each].dgid)


class ActiveTests(SynchronousTestCase):
    """The active end, which loads paths."""

    def setUp(self) -> None:
        self.core = made(True)

    def answer(self, status: APStatus, transaction: int) -> APR:
        response = APR(localCommID=2, remoteCommID=1, apStatus=status)
        self.core.received(response, transaction, 1.0)
        return response

    def test_acceptedPathIsArmedAndReported(self) -> None:
        self.core.load(FIRST, 5, 0.0, b"private")
        (sent,) = self.core.outgoing()
        assert isinstance(sent.message, LAP)
        self.assertEqual((sent.transactionID, sent.isAgain), (5, False))
        self.assertEqual(alternateOf(sent.message), FIRST)
        self.assertEqual((sent.message.localCommID, sent.message.remoteCommID), (1, 2))
        self.assertEqual((sent.message.remoteQPN, sent.message.privateData[:8]), (12, b"private\0"))
        response = self.answer(APStatus.LOADED, 5)
        self.assertEqual(self.core.events(), [QPArmed(FIRST), AlternatePathLoaded(FIRST, response)])
        self.assertEqual((self.core.alternate, self.core.deadline()), (FIRST, None))

    def test_rejectionAllowsAnotherPath(self) -> None:
        self.core.load(FIRST, 5, 0.0)
        response = self.answer(APStatus.REJECTED, 5)
        self.assertEqual(self.core.events(), [AlternatePathRejected(response)])
        self.core.load(SECOND, 6, 2.0)
        self.assertEqual(self.core.state, "LAP_SENT")

    def test_unansweredLAPIsResentThenTimesOut(self) -> None:
        self.core.load(FIRST, 5, 0.0)
        (first,) = self.core.outgoing()
        self.assertEqual(self.core.deadline(), SECONDS)
        self.core.expired(SECONDS - 0.1)
        self.assertEqual(self.core.outgoing(), [])
        self.core.expired(SECONDS)
        self.assertEqual(self.core.outgoing(), [OutgoingMAD(first.message, 5, True)])
        self.core.expired(2 * SECONDS)
        self.assertEqual(self.core.events(), [AlternatePathTimedOut()])
        self.answer(APStatus.LOADED, 5)
        self.assertEqual((self.core.events(), self.core.alternate), ([], None))

    def test_MRAExtendsTimeoutWithinLimit(self) -> None:
        self.core.load(FIRST, 5, 0.0)
        self.core.received(MRA(messageMRAed=MessageKind.LAP, serviceTimeout=31), 5, 1.0)
        self.assertEqual((self.core.state, self.core.deadline()), ("MRA_LAP_RCVD", LONGEST_DELAY))
        self.assertFalse(self.core.received(MRA(messageMRAed=MessageKind.LAP, serviceTimeout=31), 5, 9.0))
        self.assertEqual(self.core.deadline(), LONGEST_DELAY)

    def test_APRInREQTransactionCountsUntilTimeout(self) -> None:
        self.core.load(FIRST, 5, 0.0)
        self.answer(APStatus.REJECTED, REQUEST)
        self.assertEqual(self.core.state, "IDLE")
        self.core.load(FIRST, 6, 0.0)
        self.core.expired(inf)
        self.core.expired(inf)
        self.core.load(FIRST, 7, 0.0)
        self.answer(APStatus.LOADED, REQUEST)
        self.assertEqual(self.core.state, "LAP_SENT")

    def test_legacyPeerAfterTimeout(self) -> None:
        """After a timeout, an APR in the REQ's transaction is valid if requested, or after a migration."""
        for isLegacyPeer in (True, False):
            core = self.core = made(True)
            core.load(FIRST, 5, 0.0)
            core.expired(inf)
            core.expired(inf)
            if not isLegacyPeer:
                core.load(FIRST, 6, 0.0)
                self.answer(APStatus.LOADED, 6)
                core.migrated(0.0)
            core.load(SECOND, 7, 0.0, isLegacyPeer=isLegacyPeer)
            self.answer(APStatus.LOADED, REQUEST)
            self.assertEqual(core.alternate, SECOND)

    def test_upperTransactionBitsAreIgnored(self) -> None:
        self.core.load(FIRST, 5, 0.0)
        self.answer(APStatus.LOADED, 5 | 9 << 32)
        self.assertEqual(self.core.alternate, FIRST)

    def test_invalidLoadsAreRefused(self) -> None:
        self.assertRaises(InvalidRequest, self.core.load, PRIMARY, 5, 0.0)
        self.core.load(FIRST, 5, 0.0)
        self.assertRaises(InvalidRequest, self.core.load, SECOND, 6, 0.0)
        self.answer(APStatus.LOADED, 5)
        self.assertRaises(InvalidRequest, self.core.load, SECOND, 6, 0.0)  # no reload
        self.assertRaises(InvalidRequest, made(False).load, FIRST, 5, 0.0)
        self.assertRaises(InvalidRequest, made(True, isSupported=False).load, FIRST, 5, 0.0)
        refusing = made(True, checkPath=lambda _path: (APStatus.GID_REJECTED, b""))
        self.assertRaises(InvalidRequest, refusing.load, FIRST, 5, 0.0)
        self.assertRaises(InvalidRequest, self.core.reply, 5, APStatus.LOADED, 0.0)

    def test_replacedPathIsDisarmedFirst(self) -> None:
        core = made(True, mayReload=True)
        core.load(FIRST, 5, 0.0)
        core.received(APR(), 5, 0.0)
        core.events()
        core.load(SECOND, 6, 0.0)
        self.assertEqual((core.events(), core.alternate), ([QPDisarmed()], None))

    def test_activeEndAnswersLAP(self) -> None:
        self.core.received(lap(), 9, 0.0)
        self.assertEqual(statuses(self.core.outgoing()), [(APStatus.NOT_SUPPORTED, 9)])
        self.core.load(FIRST, 5, 0.0)
        self.core.outgoing()
        self.core.received(lap(), 9, 0.0)
        self.assertEqual(statuses(self.core.outgoing()), [(APStatus.NOT_SUPPORTED, 9)])
        self.assertEqual(self.core.state, "LAP_SENT")

    def test_closeAbandonsLAP(self) -> None:
        self.core.load(FIRST, 5, 0.0)
        self.core.outgoing()
        self.core.close(1.0)
        self.assertEqual((self.core.events(), self.core.deadline()), ([AlternatePathAbandoned()], None))
        self.answer(APStatus.LOADED, 5)
        self.assertEqual((self.core.events(), self.core.outgoing()), ([], []))
        self.assertFalse(self.core.load(FIRST, 6, 2.0))


class PassiveTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.core = made(False)

    def load(self, number: CMPath, transaction: int) -> None:
        """Receive a LAP, and accept it."""
        self.core.received(lap(number), transaction, 0.0)
        self.core.reply(transaction, APStatus.LOADED, 0.0)

    def status(self, core: Alternate, transaction: int, number: CMPath = FIRST, qpn: int = 12) -> APStatus:
        """Return the status with which a LAP is answered immediately."""
        core.received(lap(number, qpn=qpn), transaction, 0.0)
        ((status, echoed),) = statuses(core.outgoing())
        self.assertEqual(echoed, transaction)
        return status

    def test_LAPIsReportedOnceAndArmed(self) -> None:
        message = lap()
        self.core.received(message, 5, 0.0)
        mine = reversedPath(FIRST)
        self.assertEqual(self.core.events(), [AlternatePathRequested(message, mine, 5)])
        self.core.reply(5, APStatus.LOADED, 0.0, privateData=b"welcome")
        self.assertEqual(self.core.events(), [QPArmed(mine)])
        (sent,) = self.core.outgoing()
        assert isinstance(sent.message, APR)
        self.assertEqual((sent.transactionID, sent.message.privateData[:7]), (5, b"welcome"))
        self.core.received(message, 5, 0.0)
        self.assertEqual((self.core.outgoing(), self.core.events()), ([sent], []))  # the first APR was lost

    def test_lostRejectionIsRepeated(self) -> None:
        self.core.received(lap(), 5, 0.0)
        self.core.reply(5, APStatus.REJECTED, 0.0, b"info")
        self.core.events()
        (sent,) = self.core.outgoing()
        self.core.received(lap(), 5, 0.0)
        self.assertEqual((self.core.outgoing(), self.core.events()), ([sent], []))

    def test_refusedLAPsNameTheReason(self) -> None:
        self.assertEqual(self.status(self.core, 1, PRIMARY), APStatus.IS_CURRENT)
        self.assertEqual(self.status(self.core, 2, qpn=99), APStatus.QPN_EECN_DO_NOT_MATCH)
        self.assertEqual(self.status(made(False, isSupported=False), 3), APStatus.NOT_SUPPORTED)
        refusing = made(False, checkPath=lambda _path: (APStatus.GID_REJECTED, bytes(16)))
        self.assertEqual(self.status(refusing, 4), APStatus.GID_REJECTED)
        self.load(FIRST, 5)
        self.core.outgoing()
        self.assertEqual(self.status(self.core, 6, SECOND), APStatus.REJECTED)  # no replacement
        self.assertEqual(self.status(self.core, 7, FIRST), APStatus.LOADED)  # the path that is loaded
        self.assertNotIn("LAP", self.core.state)

    def test_repeatedLAPIsAnsweredByMRA(self) -> None:
        self.core.received(lap(), 5, 0.0)
        for _ in range(2):
            self.core.received(lap(), 5, 0.0)
            (sent,) = self.core.outgoing()
            assert isinstance(sent.message, MRA)
            self.assertEqual((sent.transactionID, sent.message.messageMRAed), (5, MessageKind.LAP))
            self.assertEqual(self.core.state, "MRA_LAP_SENT")

    def test_newerLAPReplacesPending(self) -> None:
        self.core.received(lap(FIRST), 5, 0.0)
        self.core.events()
        message = lap(SECOND)
        self.core.received(message, 6, 0.0)
        self.assertEqual(
            self.core.events(),
            [AlternatePathCancelled(5), AlternatePathRequested(message, reversedPath(SECOND), 6)],
        )
        self.assertRaises(InvalidRequest, self.core.reply, 5, APStatus.LOADED, 0.0)
        self.core.received(lap(FIRST), 5, 0.0)  # late
        self.assertEqual((self.core.events(), self.core.outgoing()), ([], []))

    def test_overtakenLAPIsIgnored(self) -> None:
        core = made(False, mayReload=True)
        core.received(lap(SECOND), 6, 0.0)
        core.reply(6, APStatus.LOADED, 0.0)
        core.events()
        core.outgoing()
        self.assertFalse(core.received(lap(FIRST), 5, 0.0))
        self.assertEqual((core.outgoing(), core.alternate), ([], reversedPath(SECOND)))

    def test_oneTransactionForSeveralLAPs(self) -> None:
        for number in (FIRST, SECOND, FIRST):
            self.load(number, REQUEST)
            self.assertEqual(self.core.alternate, reversedPath(number))
            self.core.migrated(0.0)
            self.assertEqual(self.core.primary, reversedPath(number))

    def test_migrationMakesAlternatePrimary(self) -> None:
        slow = path(3).replace(localACKTimeout=22)
        self.load(slow, 5)
        self.core.events()
        self.core.migrated(0.0)
        self.assertEqual(self.core.events(), [PathMigrated(reversedPath(slow))])
        self.assertEqual((self.core.primary, self.core.alternate), (reversedPath(slow), None))
        self.assertEqual(self.core._retryPolicy.lifeTime, 21)
        self.core.migrated(0.0)
        self.assertEqual(self.core.events(), [MigrationUnexpected()])

    def test_migrationWhileClosing(self) -> None:
        """After a migration, the DREQ and timewait use the path that the queue pair has migrated to."""
        slow = path(3).replace(localACKTimeout=22)
        self.load(slow, 5)
        self.core.close(0.0)
        self.core.events()
        self.core.migrated(0.0)
        self.assertEqual(self.core.events(), [PathMigrated(reversedPath(slow))])
        self.assertEqual((self.core.primary, self.core._retryPolicy.lifeTime), (reversedPath(slow), 21))

    def test_closeCancelsPendingLAP(self) -> None:
        self.core.received(lap(), 5, 0.0)
        self.core.events()
        self.core.close(0.0)
        self.assertEqual(self.core.events(), [AlternatePathCancelled(5)])
        self.assertFalse(self.core.reply(5, APStatus.LOADED, 0.0))
        self.assertFalse(self.core.received(lap(), 6, 0.0))
