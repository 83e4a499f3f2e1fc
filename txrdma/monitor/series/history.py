"""
The history of a fabric, written in batches by a separate thread.

State for the next process is written with them, or shortly before the next batch. A full disk stops the
history, but not the monitor.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from txrdma.fabric.health import Finding
from txrdma.monitor.diagnosis.thresholds import PortKey
from txrdma.monitor.series.historystore import HistoryStore, Point, Remembered
from txrdma.monitor.series.rows import Row
from txrdma.monitor.supervisor import SupervisedLoop

_log = Logger()

BATCH_SECONDS: Final = 5.0
"""Seconds between batches: readings of that time are what a process that is killed loses at most."""

_SOON_SECONDS: Final = 0.1
"""Seconds until what is to be remembered is written, together with what comes meanwhile."""

MOST_VALUES: Final = 200_000
"""Maximum number of named values that wait for the disk; the oldest are dropped."""

MOST_ROWS: Final = 1_000_000
"""Maximum number of rows that wait for the disk; the oldest are dropped."""

InThread = Callable[..., Deferred[Any]]
"""
Runs functions in one thread, one after the other: C{partial(deferToThreadPool, reactor, ThreadPool(1, 1))}.
"""


class HistoryWriter:
    """
    Writes a history, from L{start} to L{stop}.

    @ivar dropped: number of rows that were dropped, because they could not be written in time or belong to
        too many ports.
    @ivar loop: writes the batches; a batch that fails is written in the next run.
    """

    def __init__(
        self,
        reactor: IReactorTime,
        store: HistoryStore,
        inThread: InThread,
        wallSeconds: Callable[[], float],
        batchSeconds: float = BATCH_SECONDS,
        mostRows: int = MOST_ROWS,
    ) -> None:
        """
        @param store: the store, which the writer closes at its end.
        @param wallSeconds: returns the time in seconds since 1970.
        """
        self.dropped = 0
        self._store = store
        self._inThread = inThread
        self._wallSeconds = wallSeconds
        self._batchSeconds = batchSeconds
        self._mostRows = mostRows
        self._rows: list[Row] = []
        self._remembered: dict[tuple[str, str], str | None] = {}
        self._isStarted = False
        self.loop = SupervisedLoop(
            *(reactor, "history", self._write, lambda: self._batchSeconds), isReported=False
        )

    def start(self) -> None:
        """Begin to write batches periodically."""
        self._isStarted = True
        self.loop.start(self._batchSeconds)

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows to the next batch."""
        self._rows += rows
        self._bound()

    def _bound(self) -> None:
        excess = len(self._rows) - self._mostRows
        if excess > 0:
            del self._rows[:excess]
            self.dropped += excess
        while len(self._remembered) > MOST_VALUES:
            del self._remembered[next(iter(self._remembered))]

    def remember(self, several: Iterable[Remembered]) -> None:
        """Store or delete state for the next process, shortly: see L{HistoryStore.remember}."""
        for room, name, value in several:
            self._remembered[room, name] = value
        self._bound()
        if self._remembered and not self.loop.problem:
            self.loop.runIn(_SOON_SECONDS)

    def series(
        self, portKey: PortKey, counter: str, begin: int, end: int, level: str = ""
    ) -> Deferred[list[Point]]:
        """Return the history of one counter of a port: see L{HistoryStore.series}."""
        return self._inThread(self._store.series, portKey, counter, begin, end, level)

    def rememberedIn(self, room: str) -> Deferred[list[tuple[str, str]]]:
        """Return names and values of all stored records of a kind: see L{HistoryStore.remembered}."""
        return self._inThread(self._store.remembered, room)

    def rememberNow(self, several: Sequence[Remembered]) -> Deferred[None]:
        """Store or delete state at once; fires when it is written, or fails if it cannot be written."""
        return self._inThread(self._store.remember, several)

    def findings(self) -> list[Finding]:
        """Return a finding if the history cannot be written."""
        problem = self.loop.problem
        return [Finding("history-stopped", "history", problem)] if problem else []

    async def _write(self) -> bool:
        """Write a batch; if that fails, retain it for the next run, within bounds."""
        rows, self._rows = self._rows, []
        remembered, self._remembered = self._remembered, {}
        several = [(*name, value) for name, value in remembered.items()]
        try:
            dropped = await self._inThread(self._store.write, rows, int(self._wallSeconds()), several)
        except BaseException:
            self._rows[:0] = rows
            self._remembered = {**remembered, **self._remembered}
            self._bound()
            raise
        self.dropped += dropped
        if self.loop.problem:
            _log.info("history is written again")
        return True

    def stop(self) -> Deferred[None]:
        """Write the remaining rows and close the store; fires when that is done."""
        if not self._isStarted:
            return succeed(None)
        self._isStarted = False
        return Deferred.fromCoroutine(self._end())

    async def _end(self) -> None:
        await self.loop.stop()
        with _log.failuresHandled("while the last batch of the history was written"):
            await self._write()
        await self._inThread(self._store.close)
