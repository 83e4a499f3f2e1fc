"""
Many calls at once, but not too many: coroutines over an agent.

Work is an C{async def}, or a generator as python-rdma has them: what it yields is waited for. All calls made
through the schedule share its bound, whoever makes them.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Final, Union

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.python.failure import Failure

from txrdma.iba.path import IBPath
from txrdma.mad._frames import Keys
from txrdma.mad.rpcs import RPCs

MAX_OUTSTANDING: Final = 64

Work = Union[Coroutine[Any, Any, Any], Generator[Any, Any, Any]]
"""What a schedule runs."""


@dataclass(slots=True)
class Progress:
    """
    How far a schedule is.

    @ivar outstanding: calls on their way, and C{most} that there were at a time.
    @ivar waiting: calls that wait for one to end.
    @ivar calls: that have ended, C{failed} ones among them.
    @ivar running: pieces of work that were begun and have not ended.
    """

    outstanding: int = 0
    most: int = 0
    waiting: int = 0
    calls: int = 0
    failed: int = 0
    running: int = 0


class MADSchedule(RPCs):
    """
    Runs coroutines whose calls go to an agent, at most C{maxOutstanding} at a time.

    An exception in a piece of work comes out where it is waited for; that of one which nobody waits for ends
    the run.
    """

    def __init__(self, agent: RPCs, maxOutstanding: int = MAX_OUTSTANDING) -> None:
        """
        @param agent: remains its owner's.
        """
        if maxOutstanding < 1:
            raise ValueError(f"maxOutstanding is {maxOutstanding}: less than one call never ends")
        self.agent = agent
        self.maxOutstanding = maxOutstanding
        self.progress = Progress()
        self._waiting: deque[tuple[Deferred[Any], Callable[[], Deferred[Any]]]] = deque()
        self._sources: deque[_Source] = deque()
        self._outstanding: dict[Deferred[Any], None] = {}
        self._running: dict[_Running, None] = {}
        self._holding = False
        self._run: Deferred[Any] | None = None
        self._result: Any = None

    def call(
        self,
        rpc: str,
        payload: Any,
        path: IBPath,
        attributeModifier: int = 0,
        *,
        timeoutSeconds: float | None = None,
        retries: int | None = None,
        keys: Keys | None = None,
        componentMask: int = 0,
    ) -> Deferred[Any]:
        """Make a call as soon as the bound allows: see L{RPCs.call}."""

        def issue() -> Deferred[Any]:
            return self.agent.call(
                *(rpc, payload, path, attributeModifier),
                timeoutSeconds=timeoutSeconds,
                retries=retries,
                keys=keys,
                componentMask=componentMask,
            )

        if len(self._outstanding) < self.maxOutstanding:
            return self._issued(issue())
        answer: Deferred[Any] = Deferred(self._unwait)
        self._waiting.append((answer, issue))
        self.progress.waiting = len(self._waiting)
        return answer

    def queue(self, work: Work) -> Task:
        """Run it beside what is running; waiting for the answer waits for its end."""
        return self._start(work)

    def mqueue(self, works: Iterable[Work]) -> Task:
        """
        Run all of these, taking one after the other while the bound has room.

        @return: ends when the last has.
        """
        source = _Source(self, iter(works))
        self._sources.append(source)
        self._fill()
        return source.task

    def run(
        self, work: Work | None = None, *, queue: Work | None = None, mqueue: Iterable[Work] | None = None
    ) -> Deferred[Any]:
        """
        Run these, and whatever they begin.

        @return: fires when nothing is left, with the result of C{work}; fails with the first exception that
            nobody waited for, and then everything else is cancelled. Cancelling it does so, too.
        """
        if self._run is not None:
            raise RuntimeError("this schedule is running already")
        done: Deferred[Any] = Deferred(lambda _: self._stop())
        self._run = done
        self._result = None
        self._holding = True
        try:
            if work is not None:
                self._start(work).then(self._remember)
            if queue is not None:
                self._start(queue)
            if mqueue is not None:
                self.mqueue(mqueue)
        finally:
            self._holding = False
        self._fill()
        return done

    # Calls.

    def _issued(self, answer: Deferred[Any]) -> Deferred[Any]:
        progress = self.progress
        self._outstanding[answer] = None
        progress.outstanding = len(self._outstanding)
        progress.most = max(progress.most, progress.outstanding)
        return answer.addBoth(self._ended, answer)

    def _ended(self, result: Any, answer: Deferred[Any]) -> Any:
        progress = self.progress
        self._outstanding.pop(answer, None)
        progress.outstanding = len(self._outstanding)
        progress.calls += 1
        if isinstance(result, Failure):
            progress.failed += 1
        while self._waiting and len(self._outstanding) < self.maxOutstanding:
            waiting, issue = self._waiting.popleft()
            progress.waiting = len(self._waiting)
            try:
                self._issued(issue()).chainDeferred(waiting)
            except Exception:
                waiting.errback(Failure())
        if self._sources:
            self._fill()
        return result

    def _unwait(self, answer: Deferred[Any]) -> None:
        self._waiting = deque(pair for pair in self._waiting if pair[0] is not answer)
        self.progress.waiting = len(self._waiting)

    # Work.

    def _start(self, work: Work) -> Task:
        running = _Running(self, work)
        self._running[running] = None
        self.progress.running = len(self._running)
        running.step(None, None)
        return running.task

    def _over(self, running: _Running) -> None:
        self._running.pop(running, None)
        self.progress.running = len(self._running)
        self._settle()

    def _fill(self) -> None:
        """Take more work while calls have room."""
        if self._holding:
            return
        self._holding = True
        try:
            while self._sources and not self._waiting and len(self._outstanding) < self.maxOutstanding:
                source = self._sources[0]
                if not source.take():
                    if self._sources and self._sources[0] is source:
                        self._sources.popleft()
                else:
                    self._sources.rotate(-1)
        finally:
            self._holding = False
        self._settle()

    def _remember(self, task: Task) -> None:
        if task.error is None:
            self._result = task.value

    def _unheard(self, error: BaseException) -> None:
        """Nobody waited for this piece of work, and it has failed."""
        done, self._run = self._run, None
        self._stop()
        if done is not None:
            done.errback(Failure(error))

    def _settle(self) -> None:
        if self._run is None or self._running or self._sources or self._holding:
            return
        done, self._run = self._run, None
        done.callback(self._result)

    def _stop(self) -> None:
        """Cancel everything."""
        self._run = None
        self._sources.clear()
        waiting, self._waiting = self._waiting, deque()
        running, self._running = self._running, {}
        self.progress.waiting = self.progress.running = 0
        for one in running:
            one.close()
        for answer in tuple(self._outstanding):
            answer.addErrback(_dropped)
            answer.cancel()
        for answer, _ in waiting:
            answer.addErrback(_dropped)
            answer.errback(CancelledError())


def _dropped(failure: Failure) -> None:
    """Whoever waited for this is gone."""


class Task:
    """
    A piece of work that was begun: to be awaited, or yielded.

    @ivar isDone: it has ended, with C{value} or with C{error}.
    """

    __slots__ = ("_heard", "_schedule", "_waiters", "error", "isDone", "value")

    def __init__(self, schedule: MADSchedule) -> None:
        self.isDone = False
        self.value: Any = None
        self.error: BaseException | None = None
        self._schedule = schedule
        self._waiters: list[Callable[[Task], None]] = []
        self._heard = False

    def then(self, listener: Callable[[Task], None]) -> None:
        """Call this at its end; that alone is no waiting for it."""
        if self.isDone:
            listener(self)
        else:
            self._waiters.append(listener)

    def wait(self) -> Deferred[Any]:
        """Fires at its end, with what it has returned."""
        self._heard = True
        if self.isDone:
            return succeed(self.value) if self.error is None else fail(self.error)
        answer: Deferred[Any] = Deferred()

        def tell(task: Task) -> None:
            if task.error is None:
                answer.callback(task.value)
            else:
                answer.errback(Failure(task.error))

        self._waiters.append(tell)
        return answer

    def __await__(self) -> Generator[Deferred[Any], Any, Any]:
        return self.wait().__await__()

    def end(self, value: Any, error: BaseException | None) -> None:
        """It has ended."""
        self.isDone = True
        self.value, self.error = value, error
        waiters, self._waiters = self._waiters, []
        for waiter in waiters:
            waiter(self)
        if error is not None and not self._heard:
            self._schedule._unheard(error)


class _Running:
    """One piece of work, and those that it has called, the innermost last."""

    __slots__ = ("_schedule", "_stack", "task")

    def __init__(self, schedule: MADSchedule, work: Work) -> None:
        if not _isWork(work):
            raise TypeError(f"{work!r} is neither a coroutine nor a generator")
        self._schedule = schedule
        self._stack: list[Work] = [work]
        self.task = Task(schedule)

    def close(self) -> None:
        """Never go on."""
        stack, self._stack = self._stack, []
        for work in reversed(stack):
            work.close()

    def step(self, value: Any, error: BaseException | None) -> None:
        """Go on until there is something to wait for."""
        stack = self._stack
        while stack:
            work = stack[-1]
            try:
                yielded = work.send(value) if error is None else work.throw(error)
            except StopIteration as end:
                stack.pop()
                value, error = end.value, None
                if value is None and stack and inspect.isgenerator(stack[-1]):
                    value = True  # so that "yield something()" says that it was done
                continue
            except Exception as failed:
                stack.pop()
                value, error = None, failed
                continue
            if self._stack is not stack:
                return  # closed meanwhile
            value = error = None
            if yielded is None:
                continue
            if _isWork(yielded):
                stack.append(yielded)
                continue
            if isinstance(yielded, Task):
                yielded = yielded.wait()
            if not isinstance(yielded, Deferred):
                error = TypeError(f"work cannot yield {yielded!r}")
                continue
            told = self._awaited(yielded)
            if told is None:
                return
            value, error = told
        if self._stack is stack:
            self.task.end(value, error)
            self._schedule._over(self)

    def _awaited(self, answer: Deferred[Any]) -> tuple[Any, BaseException | None] | None:
        """What it has fired with; None when it has not yet, and C{step} goes on when it does."""
        told: list[tuple[Any, BaseException | None]] = []
        isLater = False

        def fired(result: Any) -> Any:
            value, error = (None, result.value) if isinstance(result, Failure) else (result, None)
            if isLater:
                self.step(value, error)
                return None
            told.append((value, error))
            return value  # a coroutine that awaits it looks at it once more

        answer.addBoth(fired)
        isLater = True
        return told[0] if told else None


def _isWork(thing: object) -> bool:
    return inspect.isgenerator(thing) or inspect.iscoroutine(thing)


class _Source:
    """What an C{mqueue} was given: work that is begun when there is room."""

    __slots__ = ("_busy", "_exhausted", "_left", "_schedule", "_works", "task")

    def __init__(self, schedule: MADSchedule, works: Iterator[Any]) -> None:
        self.task = Task(schedule)
        self._schedule = schedule
        self._works = works
        self._left = 0
        self._exhausted = False
        self._busy = False

    def take(self) -> bool:
        """Begin the next piece; False when there is none at present."""
        if self._busy or self._exhausted:
            return False
        try:
            work = next(self._works)
        except StopIteration:
            self._exhausted = True
            self._settle()
            return False
        except Exception as error:
            self._exhausted = True
            self.task.end(None, error)
            return False
        if work is None:
            return True
        if isinstance(work, Task):
            self._busy = True
            work.then(self._awaited)
            return not self._busy
        self._left += 1
        self._schedule._start(work).then(self._oneEnded)
        return True

    def _awaited(self, task: Task) -> None:
        """What the generator itself waits for has ended."""
        self._busy = False
        if task is not self.task and not self._exhausted and self not in self._schedule._sources:
            self._schedule._sources.append(self)
            self._schedule._fill()

    def _oneEnded(self, task: Task) -> None:
        self._left -= 1
        self._settle()

    def _settle(self) -> None:
        if self._exhausted and not self._left and not self.task.isDone:
            self.task.end(None, None)
