"""
History of a fabric, written in batches by a thread of its own.

What the next process has to know goes with them, and does not wait for the next batch. A full disk stops
history, and not monitoring.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred, succeed
from twisted.internet.interfaces import IDelayedCall, IReactorTime
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import RDMAError
from txrdma.fabric.health import Finding
from txrdma.monitor.historystore import HistoryStore, Point, Remembered
from txrdma.monitor.judging import Place
from txrdma.monitor.rows import Row

_log = Logger()

BATCH_SECONDS: Final = 5.0
"""Seconds between batches: readings of that time are what a process that is killed loses at most."""

_SOON_SECONDS: Final = 0.1
"""Seconds until what is to be remembered is written, together with what comes meanwhile."""

_MOST_REMEMBERED: Final = 200_000
"""Most things to remember that wait for the disk; the oldest are dropped when there are more."""

_MOST_ROWS: Final = 1_000_000
"""Rows that wait for the disk; older ones are dropped when there are more."""

InThread = Callable[..., Deferred[Any]]
"""
Runs functions in one thread, one after the other: C{partial(deferToThreadPool, reactor, ThreadPool(1, 1))}.
"""


class HistoryWriter:
    """
    Writer of a history, from L{start} to L{stop}.

    @ivar dropped: number of rows that were dropped, since they could not be written in time, or were of too
        many ports.
    @ivar problem: reason for which the last batch was not written; C{""} when it was.
    """

    def __init__(
        self,
        reactor: IReactorTime,
        store: HistoryStore,
        inThread: InThread,
        wallSeconds: Callable[[], float],
        batchSeconds: float = BATCH_SECONDS,
        mostRows: int = _MOST_ROWS,
    ) -> None:
        """
        @param store: owned by the writer from now on: closed at its end.
        @param wallSeconds: returns the time in seconds since 1970.
        """
        self.dropped = 0
        self.problem = ""
        self._reactor = reactor
        self._store = store
        self._inThread = inThread
        self._wallSeconds = wallSeconds
        self._batchSeconds = batchSeconds
        self._mostRows = mostRows
        self._rows: list[Row] = []
        self._remembered: dict[tuple[str, str], str | None] = {}
        self._writing: Deferred[None] | None = None
        self._timer: IDelayedCall | None = None

    def start(self) -> None:
        """Write a batch now and then from now on."""
        self._timer = self._reactor.callLater(self._batchSeconds, self._expired)

    def add(self, rows: Iterable[Row]) -> None:
        """Add rows to the next batch."""
        self._rows += rows
        self._bound()

    def _bound(self) -> None:
        excess = len(self._rows) - self._mostRows
        if excess > 0:
            del self._rows[:excess]
            self.dropped += excess
        while len(self._remembered) > _MOST_REMEMBERED:
            del self._remembered[next(iter(self._remembered))]

    def remember(self, several: Iterable[Remembered]) -> None:
        """Remember and forget for the next process, soon: see L{HistoryStore.remember}."""
        for room, name, value in several:
            self._remembered[room, name] = value
        self._bound()
        self._hurry()

    def _hurry(self) -> None:
        """Write soon, if there is anything that should not wait, and nothing is being written."""
        timer = self._timer
        if self._remembered and timer is not None and self._writing is None and not self.problem:
            soon = self._reactor.seconds() + _SOON_SECONDS
            if timer.getTime() > soon:
                timer.reset(_SOON_SECONDS)

    def series(
        self, place: Place, counter: str, begin: int, end: int, level: str = ""
    ) -> Deferred[list[Point]]:
        """History of one counter of a port: see L{HistoryStore.series}."""
        return self._inThread(self._store.series, place, counter, begin, end, level)

    def rememberedIn(self, room: str) -> Deferred[list[tuple[str, str]]]:
        """Names and values of all that is remembered in a room: see L{HistoryStore.remembered}."""
        return self._inThread(self._store.remembered, room)

    def rememberNow(self, several: Sequence[Remembered]) -> Deferred[None]:
        """Remember and forget; fires when it is written, or fails when it is not."""
        return self._inThread(self._store.remember, several)

    def findings(self) -> list[Finding]:
        """Fault of the history, where it has one."""
        return [Finding("history-stopped", "history", self.problem)] if self.problem else []

    def _expired(self) -> None:
        self._timer = self._reactor.callLater(self._batchSeconds, self._expired)
        if self._writing is None:  # a slow disk gets larger batches, not more of them
            self._write()

    def _write(self) -> Deferred[None]:
        rows, self._rows = self._rows, []
        remembered, self._remembered = self._remembered, {}
        several = [(*name, value) for name, value in remembered.items()]
        writing = self._writing = self._inThread(self._store.write, rows, int(self._wallSeconds()), several)
        return writing.addCallbacks(self._written, self._failed, errbackArgs=(rows, remembered))

    def _written(self, dropped: int) -> None:
        self._writing = None
        self.dropped += dropped
        if self.problem:
            _log.info("history is written again")
            self.problem = ""
        self._hurry()

    def _failed(
        self, failure: Failure, rows: list[Row], remembered: dict[tuple[str, str], str | None]
    ) -> None:
        """Keep all of it for the next batch, as far as there is room."""
        self._writing = None
        self._rows[:0] = rows
        self._remembered = {**remembered, **self._remembered}
        self._bound()
        if failure.check(RDMAError):
            if not self.problem:
                _log.warn("{why}", why=failure.getErrorMessage())
        else:
            _log.failure("while history was written", failure)
        self.problem = failure.getErrorMessage()

    def stop(self) -> Deferred[None]:
        """Write what is left and close the store; fires when that is done."""
        if self._timer is None:
            return succeed(None)
        self._timer.cancel()
        self._timer = None
        return Deferred.fromCoroutine(self._end())

    async def _end(self) -> None:
        if self._writing is not None:
            await _ended(self._writing)
        await _ended(self._write())
        await self._inThread(self._store.close)


def _ended(work: Deferred[None]) -> Deferred[None]:
    """Fires when work has ended, whose own result stays for others."""
    done: Deferred[None] = Deferred()

    def end(result: Any) -> Any:
        done.callback(None)
        return result

    work.addBoth(end)
    return done
