"""
Searches of large tables: in pieces between which the reactor runs other work, and once for equal requests.

Pages are made once for equal requests, too: 500 browsers that show the same page request it after each round.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator, Hashable, Iterator
from typing import Any, Final, Generic, TypeVar

from twisted.internet.defer import CancelledError, Deferred, DeferredSemaphore, succeed
from twisted.internet.interfaces import IReactorTime
from twisted.internet.task import Cooperator, SchedulerStopped
from twisted.python.failure import Failure

T = TypeVar("T")
Search = Generator[None, None, T]
"""A search that yields after each piece of its rows, and returns its result."""

MOST_SEARCHES: Final = 2
"""Largest number of searches that run at a time; each may hold sort keys of all rows in memory."""

MOST_READS: Final = 2
"""Largest number of states that are read from the history at a time, between what is written to it."""

MOST_RESULTS: Final = 32
"""Largest number of search results that are retained to answer equal requests; each has up to 1,000 rows."""


class _Shared(Generic[T]):
    """Result of a search, or the requests that wait for it."""

    def __init__(self, state: object) -> None:
        self.state = state
        self.found: list[T] = []
        self.waiting: list[Deferred[T]] = []
        self.work: Deferred[Any] | None = None

    def wait(self) -> Deferred[T]:
        """Return a Deferred of the result; the search ends when all of them are cancelled."""
        done: Deferred[T] = Deferred(self._cancelled)
        self.waiting.append(done)
        return done

    def _cancelled(self, done: Deferred[T]) -> None:
        self.waiting.remove(done)
        if not self.waiting and self.work is not None:
            self.work.cancel()

    def fire(self, result: object) -> Iterator[None]:
        """Fire all Deferreds, with pauses: with the result, or with the failure of the search."""
        while self.waiting:
            done = self.waiting.pop(0)
            if isinstance(result, Failure):
                done.errback(result)
            else:
                done.callback(self.found[0])
            yield


class Searches:
    """
    Runs searches, each until L{stop}.

    @ivar reads: limits the states of the past that are read at a time.
    """

    def __init__(self, reactor: IReactorTime) -> None:
        self._cooperator = Cooperator(scheduler=lambda work: reactor.callLater(0.0, work))
        self._turns = DeferredSemaphore(MOST_SEARCHES)
        self.reads = DeferredSemaphore(MOST_READS)
        self._results: dict[Hashable, _Shared[Any]] = {}

    def stop(self) -> None:
        """End all searches, and what else requests wait for."""
        self._cooperator.stop()
        for shared in list(self._results.values()):
            if shared.work is not None:
                shared.work.cancel()

    async def result(self, request: Hashable, state: object, search: Search[T]) -> T:
        """Return the result of a search, at once if it is known or quick to find; equal requests share it."""
        if not self._isKnown(request, state):
            try:
                next(search)
            except StopIteration as end:
                only: T = end.value
                return only
        return await self.shared(request, state, lambda: self._run(search))

    def shared(
        self, request: Hashable, state: object, make: Callable[[], Coroutine[Any, Any, T]]
    ) -> Deferred[T]:
        """Return the result of a coroutine, which equal requests share as that of a search."""
        if self._isKnown(request, state):
            known = self._results[request]
            return succeed(known.found[0]) if known.found else known.wait()
        making = make()  # if it raises, no later request waits for it
        shared = _Shared[T](state)
        done = shared.wait()
        self._results[request] = shared
        shared.work = Deferred.fromCoroutine(making)
        shared.work.addCallback(shared.found.append)
        shared.work.addBoth(self._ended, request, shared)
        shared.work.addErrback(self._notFired, request, shared)
        return done

    def _isKnown(self, request: Hashable, state: object) -> bool:
        known = self._results.get(request)
        return known is not None and known.state == state

    async def _run(self, search: Search[T]) -> T:
        found: list[T] = []

        def pieces() -> Search[None]:
            found.append((yield from search))

        async with self._turns:
            await self._cooperate(pieces())
        return found[0]

    async def _cooperate(self, steps: Iterator[object]) -> None:
        task = self._cooperator.cooperate(steps)
        try:
            await task.whenDone()
        except SchedulerStopped as error:
            raise CancelledError from error
        except CancelledError:
            task.stop()
            raise

    async def pause(self) -> None:
        """Let the reactor process other events."""
        await self._cooperate(iter((None,)))

    async def write(self, pieces: list[bytes], write: Callable[[bytes], object]) -> None:
        """Write an answer: several pieces with pauses, in which other requests are answered."""
        if len(pieces) == 1:
            write(pieces[0])
        else:
            await self._cooperate(map(write, pieces))

    def _ended(self, result: object, request: Hashable, shared: _Shared[Any]) -> None:
        if not shared.found and self._results.get(request) is shared:
            del self._results[request]
        for old in [one for one, each in self._results.items() if each.found][:-MOST_RESULTS]:
            del self._results[old]
        firing = shared.fire(result)
        next(firing, None)
        if isinstance(result, Failure):
            deque(firing, maxlen=0)
        elif shared.waiting:
            self._cooperator.cooperate(firing).whenDone().addErrback(self._notFired, request, shared)

    def _notFired(self, failure: Failure, request: Hashable, shared: _Shared[Any]) -> None:
        """Let requests fail that still wait for a result, because of an exception."""
        if self._results.get(request) is shared:
            del self._results[request]
        if failure.check(SchedulerStopped):
            failure = Failure(CancelledError())
        deque(shared.fire(failure), maxlen=0)
