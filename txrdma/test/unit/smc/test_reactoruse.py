"""
L{txrdma.smc.common.reactoruse}: the reader on a reactor while SMC is in use, and the removal of all readers.
"""

from __future__ import annotations

import os
from unittest import mock

from twisted.internet.error import ConnectionLost
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.common import reactoruse
from txrdma.smc.common.reactoruse import ReactorUse, reactorUse


class Rester:
    """Counts how often it was suspended and resumed."""

    isBusy = False

    def __init__(self) -> None:
        self.woken = self.rested = 0

    def wake(self) -> None:
        self.woken += 1

    def rest(self) -> None:
        self.rested += 1


class ReactorUseTests(SynchronousTestCase):
    """The first and last use of a reactor."""

    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()
        self.reactorUse = ReactorUse(self.reactor)
        self.swept: list[str] = []
        self.patch(reactoruse, "_CHECK_SECONDS", -1.0)  # check at each use, although no time passes

    def test_readerIsPresentOnlyWhileUsed(self) -> None:
        one, other = self.reactorUse.hold(), self.reactorUse.hold()
        self.assertEqual(len(self.reactor.getReaders()), 1)
        one.release()
        one.release()
        self.assertEqual(len(self.reactor.getReaders()), 1)
        other.release()
        self.assertEqual(self.reactor.getReaders(), [])
        self.assertTrue(self.reactorUse.isIdle)

    def test_sleepersRestAfterLastUse(self) -> None:
        sleeper = Rester()
        self.reactorUse.add(sleeper)
        self.reactorUse.hold().release()
        self.assertEqual((sleeper.woken, sleeper.rested), (1, 1))
        self.reactorUse.hold()
        self.assertEqual((sleeper.woken, sleeper.rested), (2, 1))

    def test_lostReaderIsNoSweep(self) -> None:
        connection = object()
        self.reactor.addReader(connection)
        self.reactorUse.hold(lambda: self.swept.append("one"))
        self.reactor.removeReader(connection)
        self.reactorUse.hold()
        self.assertEqual(self.swept, [])

    def test_removalOfAllReadersEndsUses(self) -> None:
        self.reactorUse.hold(lambda: self.swept.append("one"))
        self.reactorUse.hold(lambda: self.swept.append("other"))
        self.reactor.removeAll()
        self.reactorUse.hold(lambda: self.swept.append("new"))
        self.assertEqual(self.swept, ["one", "other"])
        self.assertEqual(len(self.reactor.getReaders()), 1)

    def test_removalOfAllReadersIsReportedToParts(self) -> None:
        self.reactorUse.add(Rester(), lambda: self.swept.append("part"))
        self.reactorUse.hold()
        self.assertEqual(self.swept, [])
        self.reactor.removeAll()
        self.reactorUse.hold()
        self.assertEqual(self.swept, ["part"])

    def test_reactorEndReportsFromReactor(self) -> None:
        self.reactorUse.hold(lambda: self.swept.append("one"))
        self.reactorUse.isEnding = True
        readers = self.reactor.getReaders()  # removeAll of older reactors for tests returns nothing
        self.reactor.removeAll()
        for reader in readers:
            reader.connectionLost(Failure(ConnectionLost()))
        self.reactorUse.hold()
        self.assertEqual(self.swept, [])

    def test_missingDescriptorsAreLoggedOnce(self) -> None:
        with mock.patch.object(os, "eventfd", side_effect=OSError(24, "Too many open files")):
            self.reactorUse.hold(lambda: self.swept.append("one"))
        self.reactorUse.hold()
        self.assertEqual((self.swept, len(self.reactor.getReaders())), ([], 1))

    def test_oneForEachReactor(self) -> None:
        self.assertIs(reactorUse(self.reactor), reactorUse(self.reactor))
        self.assertIsNot(reactorUse(self.reactor), reactorUse(MemoryReactorClock()))
