"""Two managers over one lossy path, through open, load, migrate and close: every interleaving."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar, Final

from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.core.alternate import Alternate, AlternateInputs, TABLE
from txrdma.cm.core.connection import ConnectionCore
from txrdma.cm.core.dispatcher import Dispatcher, Managed
from txrdma.cm.core.exchange import ExchangeCore
from txrdma.cm.core.opening import Opening, OpeningInputs
from txrdma.cm.core.opening import TABLE as OPENING
from txrdma.cm.layouts.messages import APR, DREP, DREQ, LAP, MRA, REJ, REP, REQ, RTU
from txrdma.kit.machines import StateTable
from txrdma.kit.wire import Layout
from txrdma.test.support.cm.exploring import Found, Search
from txrdma.test.support.cm.managers import Bounds, End, FIRST, ONE_LOAD, PRIMARY, SECOND

WITHOUT_PATHS = Bounds(loads=(), migrations=0, mayReject=True)

STATES = {
    *("", "REQ_SENT", "MRA_REQ_RCVD", "REP_RCVD", "MRA_REP_SENT"),
    *("REQ_RCVD", "MRA_REQ_SENT", "REP_SENT", "MRA_REP_RCVD"),
    *("ESTABLISHED", "DREQ_SENT", "DREQ_RCVD", "TIMEWAIT"),
}
"""States of connections that are not free, and that of no connection."""

_THREE: Final = FIRST, SECOND, PRIMARY

ESTABLISHED: Final = (
    ((FIRST, SECOND), 1, False, 459, 2467, 188),
    ((FIRST, SECOND), 1, True, 615, 3429, 236),
    (_THREE, 2, False, 3459, 26498, 3188),
    (_THREE, 2, True, 4855, 38224, 4476),
    ((FIRST, FIRST), 1, False, 401, 2134, 128),
)
"""
Searches of established connections: LAPs, migrations, whether unused paths may be replaced, and the results:
states, transitions, and states after a migration.
"""

WHOLE: Final = (3427, 72_593, 662_083)
"""States of searches to the end: without paths, with a second connection, and with one LAP and migration."""

Action = Callable[[Alternate], None]


class SearchTests(SynchronousTestCase):
    """
    All states of two managers and one connection, on a network that loses, duplicates and delays.

    @cvar most: number of states to search, nearest first; L{txrdma.test.soak.cm} searches more.
    """

    slowBecause = "hundreds of thousands of steps are searched"
    most: ClassVar[int] = 20_000

    def search(self, bounds: Bounds = ONE_LOAD, most: int | None = None) -> Found:
        """Search without a fault; a failure shows the shortest sequence of steps that leads to it."""
        found = Search(bounds).run(most or self.most)
        self.assertIsNone(found.fault, f"after {', '.join(found.story)}")
        self.assertTrue(found.closed or bounds.isOpen)
        return found

    def test_withoutPaths(self) -> None:
        found = self.search(WITHOUT_PATHS)
        self.assertEqual((found.worlds, found.steps, found.states), (WHOLE[0], 26220, STATES))
        self.assertEqual(found.messages, {REQ, MRA, REP, RTU, DREQ, DREP, REJ})

    def test_peerToPeer(self) -> None:
        found = self.search(WITHOUT_PATHS._replace(isPeerToPeer=True))
        self.assertEqual((found.worlds, found.steps, found.states), (17_939, 176_636, STATES))

    def test_establishedConnection(self) -> None:
        """All results of two or three LAPs and one or two migrations, the last one back to the first path."""
        for loads, migrations, mayReload, *expected in ESTABLISHED:
            found = self.search(Bounds(loads, migrations, mayReload=mayReload, isOpen=True))
            self.assertEqual([found.worlds, found.steps, found.migrated], expected)
            self.assertEqual(found.messages, {LAP, MRA, APR})

    def test_twoConnections(self) -> None:
        """A late REQ begins a second connection, in any state of the first one."""
        most = self.most // 3
        found = self.search(Bounds(loads=(), migrations=0, connections=2), most)
        self.assertEqual(found.worlds, min(most, WHOLE[1]))

    def test_oneLoadAndMigration(self) -> None:
        found = self.search()
        self.assertEqual(found.worlds, min(self.most, WHOLE[2]))
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
        part = ConnectionCore._part

        def answering(connection: ConnectionCore, message: Layout) -> ExchangeCore:
            return connection.opening if isinstance(message, REP) else part(connection, message)

        self.patch(ConnectionCore, "_part", answering)
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
        self.assertEqual((fault, step), ("a LAP is outstanding, and there is an alternate path", "load"))

    def test_migrationIsReportedLate(self) -> None:
        self.patch(End, "queryQP", lambda end: None)
        fault, step = self.fault(Bounds((FIRST, SECOND), mayReload=True, isOpen=True))
        self.assertEqual(fault, "APR loaded is sent, and the queue pair is not armed")
        self.assertTrue(step.startswith("LAP"), step)

    def test_passiveEndIsEstablishedEarly(self) -> None:
        rows = [
            (*row[:2], "ESTABLISHED", row[3]) if row[0] == "REQ_RCVD" and row[2] == "REP_SENT" else row
            for row in OPENING.rows
        ]
        self.patch(Opening, "_table", StateTable(OpeningInputs, Opening, rows))
        self.assertEqual(self.fault(), ("REP is sent in state ESTABLISHED", "accept"))

    def test_connectionIsEstablishedTwice(self) -> None:
        rows = [row for row in OPENING.rows if row[0] != "ESTABLISHED"]
        again = (Opening._sendRTU, Opening._reportEstablished)
        rows.append(("ESTABLISHED", OpeningInputs.replied, "ESTABLISHED", again))
        self.patch(Opening, "_table", StateTable(OpeningInputs, Opening, rows))
        self.assertEqual(self.fault()[0], "a connection is established twice")

    def replace(self, old: Action, new: Action) -> None:
        """Replace an action in all transitions."""
        rows = [(*row[:3], tuple(new if each is old else each for each in row[3])) for row in TABLE.rows]
        self.patch(Alternate, "_table", StateTable(AlternateInputs, Alternate, rows))
