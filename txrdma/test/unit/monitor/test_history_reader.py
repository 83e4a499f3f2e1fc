"""Reading the history from a database, by the contract of all readers."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from twisted.internet.defer import Deferred, maybeDeferred

from txrdma.fabric.model import PortKey
from txrdma.monitor.series.historystore import HistoryStore, Point
from txrdma.monitor.series.rows import Row
from txrdma.test.support.monitor import readercontract


class DatabaseReaderTests(readercontract.ReaderContract):
    def where(self) -> str:
        """Return the path or URL of a new database."""
        path: str = self.mktemp()
        return path

    def setUp(self) -> None:
        self.store = HistoryStore(self.where())
        self.addCleanup(self.store.close)

    def written(self, rows: Sequence[Row], now: int) -> Awaitable[Any]:
        return maybeDeferred(self.store.write, rows, now)

    def read(
        self, portKey: PortKey, counter: str, begin: int, end: int, level: str = ""
    ) -> Deferred[list[Point]]:
        return maybeDeferred(self.store.series, portKey, counter, begin, end, level)
