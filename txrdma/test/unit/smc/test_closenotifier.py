"""
L{txrdma.smc.group.closenotifier}: delayed calls run before the end, wherever the end is detected.
"""

from __future__ import annotations

from collections.abc import Callable
from errno import ENOSPC
from typing import Any, cast
from unittest.mock import Mock

from twisted.internet.testing import MemoryReactorClock
from twisted.logger import Logger
from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.logs import RateLimitedLogger
from txrdma.smc.group import closenotifier
from txrdma.smc.group.closenotifier import CloseNotifier


class CloseNotifierTests(SynchronousTestCase):
    """Ends are reported by a reader, after calls that were already scheduled without a delay."""

    def setUp(self) -> None:
        self.reactor = cast(Any, MemoryReactorClock())
        self.closeNotifier = CloseNotifier(self.reactor)
        self.addCleanup(self.closeNotifier.close)
        self.reported: list[str] = []

    def turn(self, read: Callable[[], None] | None = None) -> None:
        """Run one reactor iteration: the delayed calls and readers that exist at its beginning."""
        for call in list(self.reactor.getDelayedCalls()):
            if call.active():
                self.reactor.calls.remove(call)
                call.called = 1
                call.func(*call.args, **call.kw)
        ready = list(self.reactor.getReaders())
        if read is not None:
            read()
        for reader in ready:
            if reader in self.reactor.getReaders():
                reader.doRead()

    def happen(self) -> None:
        """Deliver data, for which the protocol schedules a call, and end the connection."""
        self.reactor.callLater(0, self.reported.append, "delayed")
        self.closeNotifier.add(lambda: self.reported.append("ended"))

    def test_endFoundByReading(self) -> None:
        self.turn(self.happen)
        self.assertEqual(self.reported, [])
        self.turn()
        self.assertEqual(self.reported, ["delayed", "ended"])
        self.assertEqual((self.reactor.getReaders(), self.reactor.getDelayedCalls()), ([], []))

    def test_endFoundByDelayedCall(self) -> None:
        self.reactor.callLater(0, self.happen)
        self.turn()
        self.assertEqual(self.reported, [])
        self.turn()
        self.assertEqual(self.reported, ["delayed", "ended"])
        self.assertEqual((self.reactor.getReaders(), self.reactor.getDelayedCalls()), ([], []))

    def test_processEndReportsAllAtOnce(self) -> None:
        self.closeNotifier.add(lambda: self.reported.append("first"))
        self.closeNotifier.isPrompt = True
        self.closeNotifier.add(lambda: self.reported.append("second"))
        self.assertEqual(self.reported, ["first", "second"])
        self.assertEqual((self.reactor.getReaders(), self.reactor.getDelayedCalls()), ([], []))

    def test_refusedReader(self) -> None:
        """Ends are reported although the reactor cannot watch another descriptor."""
        self.patch(closenotifier, "_rateLimited", RateLimitedLogger(Logger()))
        self.patch(self.reactor, "addReader", Mock(side_effect=OSError(ENOSPC, "no space left")))
        self.happen()
        self.turn()
        self.assertEqual(self.reported, ["delayed", "ended"])
        self.happen()
        self.turn()
        self.assertEqual(self.reported, ["delayed", "ended"] * 2)
        self.assertEqual(len(self.flushLoggedErrors(OSError)), 1)  # connections may end at any rate

    def test_clearedReactorReportsWithNextEnd(self) -> None:
        for _ in range(2):
            self.closeNotifier.add(lambda: self.reported.append("ended"))
            for call in list(self.reactor.getDelayedCalls()):
                call.cancel()
            self.reactor.removeAll()
        self.closeNotifier.add(lambda: self.reported.append("last"))
        self.turn()
        self.assertEqual(self.reported, ["ended", "ended", "last"])

    def test_raisingNotificationIsLoggedAndOthersDelivered(self) -> None:
        def fail() -> None:
            raise ZeroDivisionError

        for notify in (fail, lambda: self.reported.append("other")):
            self.closeNotifier.add(notify)
        self.turn()
        self.assertEqual(self.reported, ["other"])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
