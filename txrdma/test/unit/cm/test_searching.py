"""
Two managers over one lossy path, through open, load, migrate and close: every interleaving.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.core.alternate import Alternate, Inputs, TABLE
from txrdma.cm.core.connection import Connection
from txrdma.cm.core.dispatcher import Dispatcher, Managed
from txrdma.cm.core.exchange import ExchangeCore
from txrdma.cm.layouts.messages import APR, DREP, DREQ, LAP, MRA, REJ, REP, REQ, RTU
from txrdma.kit.machines import StateTable
from txrdma.kit.wire import Layout
from txrdma.test.support.cm.exploring import Found, Search
from txrdma.test.support.cm.managers import Bounds, ONE_LOAD
from txrdma.test.support.cm.searching import FIRST, SECOND

Action = Callable[[Alternate], None]


class SearchTests(SynchronousTestCase):
    """
    All that two managers do with one connection, whatever the network loses, duplicates and delays.

    @cvar most: number of states to search, nearest first; L{txrdma.test.soak.cm} searches more.
    """

    slowBecause = "hundreds of thousands of steps are searched"
    most: ClassVar[int] = 60_000

    def search(self, bounds: Bounds = ONE_LOAD, most: int | None = None) -> Found:
        """Search without a fault; a failure shows the shortest sequence of steps that leads to it."""
        found = Search(bounds).run(most or self.most)
        self.assertIsNone(found.fault, f"after {', '.join(found.story)}")
        self.assertGreater(found.closed, 0)
        return found

    def test_withoutPaths(self) -> None:
        found = self.search(Bounds(loads=(), migrations=0))
        self.assertEqual((found.worlds, found.steps), (3427, 26168))
        self.assertEqual(found.messages, {REQ, MRA, REP, RTU, DREQ, DREP, REJ})

    def test_twoConnections(self) -> None:
        """A late REQ begins a second connection, whatever has become of the first one."""
        most = self.most // 3
        found = self.search(Bounds(loads=(), migrations=0, connections=2), most)
        self.assertEqual(found.worlds, min(most, 72_593))

    def test_oneLoadAndMigration(self) -> None:
        found = self.search()
        self.assertEqual(found.worlds, min(self.most, 662_083))
        self.assertEqual(found.messages, {REQ, MRA, REP, RTU, LAP, APR, DREQ, DREP, REJ})
        self.assertGreater(found.migrated, 0)

    def test_reload(self) -> None:
        found = self.search(Bounds(loads=(FIRST, SECOND), mayReload=True))
        self.assertGreater(found.migrated, 0)


class PlantedTests(SynchronousTestCase):
    """The search finds defects, by the shortest sequence of steps."""

    def fault(self, bounds: Bounds = ONE_LOAD) -> tuple[str | None, str]:
        """Search, and return the fault and the last step before it."""
        found = Search(bounds).run(SearchTests.most)
        return found.fault, found.story[-1] if found.story else ""

    def test_lateREPIsAnswered(self) -> None:
        part = Connection._part

        def answering(connection: Connection, message: Layout) -> ExchangeCore:
            return connection.opening if isinstance(message, REP) else part(connection, message)

        self.patch(Connection, "_part", answering)
        fault, step = self.fault()
        self.assertIn("RTU is sent in state", str(fault))
        self.assertTrue(step.startswith("REP"), step)

    def test_commIDIsReused(self) -> None:
        draw = Dispatcher._freeNumber

        def same(dispatcher: Dispatcher, taken: dict[int, Managed]) -> int:
            draw(dispatcher, taken)
            return 7

        self.patch(Dispatcher, "_freeNumber", same)
        self.assertEqual(self.fault(Bounds(loads=(), migrations=0))[0], None)
        fault, step = self.fault(Bounds(loads=(), migrations=0, connections=2))
        self.assertEqual((fault, step[:3]), ("ends are connected to somebody else", "RTU"))

    def test_pathsAreNotClosed(self) -> None:
        self.patch(Alternate, "close", lambda alternate, now: None)
        fault, step = self.fault()
        self.assertEqual(fault, "LAP is sent in state DREQ_SENT")
        self.assertEqual(step, "load")

    def test_deadlineIsNotScheduled(self) -> None:
        self.patch(Dispatcher, "_schedule", lambda dispatcher, managed: None)
        self.assertEqual(self.fault(), ("a deadline is not scheduled", "connect"))

    def test_migrationIsNotRecorded(self) -> None:
        migrate = Alternate._migrate

        def forgetting(alternate: Alternate) -> None:
            old = alternate.primary
            migrate(alternate)
            alternate.primary = old

        self.replace(migrate, forgetting)
        fault, _ = self.fault()
        self.assertEqual(fault, "an end and its queue pair use different paths")

    def test_oldPathStaysArmed(self) -> None:
        self.replace(Alternate._disarm, lambda alternate: None)
        fault, step = self.fault(Bounds(loads=(FIRST, SECOND), mayReload=True))
        self.assertEqual((fault, step), ("queue pairs are armed for different paths", "reply LOADED"))

    def replace(self, old: Action, new: Action) -> None:
        """Replace an action in all transitions."""
        rows = [(*row[:3], tuple(new if each is old else each for each in row[3])) for row in TABLE.rows]
        self.patch(Alternate, "_table", StateTable(Inputs, Alternate, rows))
