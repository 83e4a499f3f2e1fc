"""
Searches of large tables: in pieces between which the reactor serves others, and once for equal requests.
"""

from __future__ import annotations

from collections.abc import Generator, Hashable
from typing import Any, Final, Generic, TypeVar

from twisted.internet.defer import CancelledError, Deferred, DeferredSemaphore
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Cooperator, SchedulerStopped
from twisted.python.failure import Failure

T = TypeVar("T")
Search = Generator[None, None, T]
"""A search that yields after each piece of its rows, and returns its result."""

MOST_SEARCHES: Final = 2
"""Most searches that run at a time; each may have keys of all rows in memory."""

MOST_RESULTS: Final = 16
"""Most results that are retained for equal requests, of up to 1000 rows each."""


class _Shared(Generic[T]):
    """Result of a search, or the requests that wait for it."""

    def __init__(self, state: object) -> None:
        self.state = state
        self.found: list[T] = []
        self.waiting: list[Deferred[T]] = []
        self.work: Deferred[None] | None = None

    def wait(self) -> Deferred[T]:
        """Return a Deferred of the result; the search ends when all of them are cancelled."""
        done: Deferred[T] = Deferred(self._left)
        self.waiting.append(done)
        return done

    def _left(self, done: Deferred[T]) -> None:
        self.waiting.remove(done)
        if not self.waiting and self.work is not None:
            self.work.cancel()

    def ended(self, result: object) -> None:
        """Fire all Deferreds: with the result, or with the failure of the search."""
        waiting, self.waiting = self.waiting, []
        for done in waiting:
            if isinstance(result, Failure):
                done.errback(result)
            else:
                done.callback(self.found[0])


class Searches:
    """Runs searches, each until L{stop}."""

    def __init__(self, reactor: IReactorTime) -> None:
        self._cooperator = Cooperator(scheduler=lambda work: reactor.callLater(0.0, work))
        self._turns = DeferredSemaphore(MOST_SEARCHES)
        self._results: dict[Hashable, _Shared[Any]] = {}

    def stop(self) -> None:
        """End all searches."""
        self._cooperator.stop()

    def result(self, request: Hashable, state: object, search: Search[T]) -> T | Deferred[T]:
        """
        Return the result of a search: at once if it has only one piece, or if it is known.

        @param request: what is searched; equal requests have one result while their C{state} is equal.
        @param state: state of what is searched.
        """
        known = self._results.get(request)
        if known is not None and known.state == state:
            return known.found[0] if known.found else known.wait()
        try:
            next(search)
        except StopIteration as end:
            only: T = end.value
            return only
        shared = self._results[request] = _Shared[T](state)
        done = shared.wait()
        shared.work = Deferred.fromCoroutine(self._run(shared, search))
        shared.work.addBoth(self._ended, request, shared)
        return done

    async def _run(self, shared: _Shared[T], search: Search[T]) -> None:
        def pieces() -> Search[None]:
            shared.found.append((yield from search))

        await self._turns.acquire()
        task = self._cooperator.cooperate(pieces())
        try:
            await task.whenDone()
        except CancelledError:
            task.stop()
            raise
        finally:
            self._turns.release()

    def _ended(self, result: object, request: Hashable, shared: _Shared[Any]) -> None:
        if not shared.found and self._results.get(request) is shared:
            del self._results[request]
        for old in [one for one, each in self._results.items() if each.found][:-MOST_RESULTS]:
            del self._results[old]
        if isinstance(result, Failure) and result.check(SchedulerStopped):
            result = Failure(CancelledError())
        shared.ended(result)
