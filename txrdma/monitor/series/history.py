"""
The history of a fabric, written in batches by a separate thread.

Events are written with it, and do not wait for the next batch. A full disk stops the history, not monitoring.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any, Final, TypeVar

from twisted.internet.defer import Deferred, DeferredLock, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.logger import Logger

from txrdma.error import RDMAError
from txrdma.fabric.health import Finding
from txrdma.fabric.model import PortKey
from txrdma.kit.logs import errorText
from txrdma.monitor.diagnosis.journal import FabricEvent
from txrdma.monitor.series.historystore import free, HistoryStore, Point
from txrdma.monitor.series.rows import Row
from txrdma.monitor.supervisor import SupervisedLoop

_log = Logger()
T = TypeVar("T")

_SOON_SECONDS: Final = 0.1
"""Seconds until events are written, together with those of that time."""

MOST_EVENTS: Final = 200_000
"""Maximum number of events that wait for the disk; the oldest are dropped."""

MOST_ROWS: Final = 1_000_000
"""Maximum number of rows that wait for the disk; the oldest are dropped."""

InThread = Callable[..., Deferred[Any]]
"""Runs functions in one thread: C{partial(deferToThreadPool, reactor, ThreadPool(1, 1))}."""


class BatchWriter:
    """
    Writes rows in batches, from L{start} to L{stop}.

    @cvar batchSeconds: seconds between batches; a killed process loses at most one batch.
    @ivar loop: writes the batches; a batch that fails is written in the next run.
    """

    batchSeconds: float = 5.0

    def __init__(self, loop: SupervisedLoop, mostRows: int) -> None:
        """@param mostRows: maximum number of rows that wait for the next batch."""
        self.loop = loop
        self._mostRows = mostRows
        self._rows: list[Row] = []
        self._isStarted = False

    def start(self) -> None:
        """Begin to write batches periodically."""
        self._isStarted = True
        self.loop.start(self.batchSeconds)

    def stop(self) -> Deferred[None]:
        """Write the remaining rows and close the destination; fires when that is done. Idempotent."""
        if not self._isStarted:
            return succeed(None)
        self._isStarted = False
        return Deferred.fromCoroutine(self._end())

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows to the next batch; the oldest of too many are dropped."""
        self._rows += rows
        excess = len(self._rows) - self._mostRows
        if excess > 0:
            self._lose(self._rows[:excess])
            del self._rows[:excess]

    @contextmanager
    def _batch(self) -> Iterator[list[Row]]:
        """Take the rows of a batch; if an exception is raised, they are added again, before later ones."""
        rows, self._rows = self._rows, []
        try:
            yield rows
        except BaseException:
            self._rows = [*rows, *self._rows]
            self.add(())
            raise

    async def _end(self) -> None:
        with _log.failuresHandled("while {name} stopped", name=self.loop.name):
            await self.loop.stop()
        with _log.failuresHandled("while the last batch of {name} was written", name=self.loop.name):
            try:
                await self._finish()
            except RDMAError as error:
                _log.warn(
                    "the last batch of {name} is lost: {why}", name=self.loop.name, why=errorText(error)
                )
        await self._close()

    def _lose(self, rows: list[Row]) -> None:
        """Count rows that are dropped."""
        raise NotImplementedError

    async def _finish(self) -> object:
        """Write the remaining rows."""
        raise NotImplementedError

    async def _close(self) -> None:
        raise NotImplementedError


class HistoryWriter(BatchWriter):
    """
    Writes a history.

    @ivar dropped: number of rows that were dropped, because they could not be written in time or belong to
        too many ports.
    """

    def __init__(
        self,
        reactor: IReactorTime,
        store: HistoryStore,
        inThread: InThread,
        wallSeconds: Callable[[], float],
    ) -> None:
        """
        @param store: the store, which the writer closes at its end.
        @param wallSeconds: returns the time in seconds since 1970.
        """
        loop = SupervisedLoop(reactor, "history", self._write, lambda: self.batchSeconds, isReported=False)
        super().__init__(loop, MOST_ROWS)
        self.dropped = 0
        self._store = store
        self._inThread = inThread
        self._wallSeconds = wallSeconds
        self._events: deque[FabricEvent] = deque(maxlen=MOST_EVENTS)
        self._lock = DeferredLock()

    def _lose(self, rows: list[Row]) -> None:
        self.dropped += len(rows)

    def append(self, events: Iterable[FabricEvent]) -> None:
        """Append events in the thread; at most L{MOST_EVENTS} are queued, and the oldest are dropped."""
        self._events.extend(events)
        if self._events and not self.loop.problem:
            self.loop.runIn(_SOON_SECONDS)

    def series(
        self, portKey: PortKey, counter: str, begin: int, end: int, level: str = ""
    ) -> Deferred[list[Point]]:
        """Return the history of one counter of a port: see L{HistoryStore.series}."""
        return self._inThread(self._store.series, portKey, counter, begin, end, level)

    async def read(self, read: Callable[[HistoryStore], T]) -> T:
        """
        Return what a function reads in the thread, after queued events are stored.

        Functions are called one at a time, in turn with batches.

        @raise txrdma.error.DeviceUnavailable: the database cannot be used.
        """
        stored: Deferred[None] = Deferred()
        self.appendNow(()).chainDeferred(stored)  # which is not cancelled: its events would be stored twice
        await stored
        async with self._lock:
            found: T = await self._inThread(read, self._store)
            return found

    def appendNow(self, events: Sequence[FabricEvent]) -> Deferred[None]:
        """
        Append events after queued ones, and after those of a batch that is being written.

        Fires when they are written, or fails, and queued ones remain queued.
        """
        return Deferred.fromCoroutine(self._appendNow(events))

    async def _appendNow(self, events: Sequence[FabricEvent]) -> None:
        async with self._lock:
            with self._queued() as queued:
                await self._inThread(self._store.append, [*queued, *events])

    @contextmanager
    def _queued(self) -> Iterator[list[FabricEvent]]:
        """Take the queued events; if an exception is raised, they are queued again, before later ones."""
        events = list(self._events)
        self._events.clear()
        try:
            yield events
        except BaseException:
            self._events = deque([*events, *self._events], maxlen=MOST_EVENTS)
            raise

    def findings(self) -> list[Finding]:
        """Return a finding if the history cannot be written."""
        problem = self.loop.problem
        return [Finding("history-stopped", "history", problem)] if problem else []

    async def _write(self) -> bool:
        """Write a batch; if that fails, retain it for the next run, up to a limit."""
        async with self._lock:
            with self._batch() as rows, self._queued() as events:
                dropped = await self._inThread(self._store.write, rows, int(self._wallSeconds()), events)
            self._inThread(free, rows)  # which the thread pool still refers to
        self.dropped += dropped
        if self.loop.problem:
            _log.info("history is written again")
        return True

    async def _finish(self) -> object:
        return await self._write()

    async def _close(self) -> None:
        await self._inThread(self._store.close)
