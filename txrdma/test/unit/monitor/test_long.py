"""
A store whose disk is full.

C{TXRDMA_DAYS} in the environment is the number of simulated days, C{TXRDMA_KILLS} that of kills; without
them there are as many as C{make test} has patience for.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.iba.types import GUID
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.monitor.series.rows import COUNTERS, Row


class DiskTests(SynchronousTestCase):
    """A store whose disk is full, as SQLite sees it."""

    def test_full(self) -> None:
        """A batch that does not fit is not stored at all; writing continues when there is space."""
        store = HistoryStore(self.mktemp())
        self.addCleanup(store.close)
        portKey = (GUID(b"leaf0001"), 1)

        def rows(at: int) -> list[Row]:
            values = (1.0, *([at] * len(COUNTERS)), None, None)
            return [Row(portKey, at * 1000 + second, values) for second in range(500)]

        ((pages,),) = store._database.execute("PRAGMA page_count")
        store._database.execute(f"PRAGMA max_page_count = {pages + 40}")
        at = 0
        with self.assertRaises(DeviceUnavailable) as context:
            for at in range(1, 1000):
                store.write(rows(at), at * 1000 + 500)
        self.assertIn("full", str(context.exception))
        stored = [point.at for point in store.series(portKey, "portXmitPkts", 0, 1 << 40, "readings")]
        self.assertEqual(len(stored), 500 * (at - 1))
        store._database.execute("PRAGMA max_page_count = 1000000")
        store.write(rows(at), at * 1000 + 500)
        stored = [point.at for point in store.series(portKey, "portXmitPkts", 0, 1 << 40, "readings")]
        self.assertEqual(len(stored), 500 * at)
