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
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.iba.path import IBPath
from txrdma.mad._frames import Keys
from txrdma.mad.rpcs import RPCs

_log = Logger()

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

    An exception in a piece of work comes out where it is waited for; that of one which nobody waits for when
    it fails ends the run.

    @ivar progress: how far it is; always the same object.
    """

    def __init__(
        self,
        agent: RPCs,
        maxOutstanding: int = MAX_OUTSTANDING,
        onProgress: Callable[[Progress], object] | None = None,
    ) -> None:
        """
        @param agent: remains its owner's.
        @param onProgress: is called whenever a call has ended.
        """
        if maxOutstanding < 1:
            raise ValueError(f"maxOutstanding is {maxOutstanding}: less than one call never ends")
        self.agent = agent
        self.maxOutstanding = maxOutstanding
        self.progress = Progress()
        self._onProgress = onProgress
        self._waiting: deque[tuple[Deferred[Any], Callable[[], Deferred[Any]]]] = deque()
        self._sources: deque[_Source] = deque()  # those that can be asked for more
        self._live: dict[_Source, None] = {}  # all that have not ended
        self._outstanding: dict[Deferred[Any], None] = {}
        self._running: dict[_Running, None] = {}
        self._ready: deque[tuple[_Running, Any, BaseException | None]] = deque()
        self._busy = 0  # pieces of work from sources that wait for something else than work
        self._isTurning = False
        self._isIssuing = False
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

        if len(self._outstanding) < self.maxOutstanding and not self._waiting:
            return self._issued(issue())
        answer: Deferred[Any] = Deferred(self._unwait)
        self._waiting.append((answer, issue))
        self.progress.waiting = len(self._waiting)
        return answer

    def queue(self, work: Work) -> Task:
        """
        Run it beside what is running; waiting for the answer waits for its end.

        @raise TypeError: it is no work.
        """
        task = self._start(work).task
        self._turn()
        return task

    def mqueue(self, works: Iterable[Any]) -> Task:
        """
        Run all of these, taking one after the other while there is room: less than C{maxOutstanding} calls,
        and as many pieces of such work that wait for anything but other work.

        @param works: pieces of work. A generator may also yield what L{queue} and L{mqueue} return, to go on
            when that has ended, and None.
        @return: ends when the last has.
        @raise TypeError: it is nothing to iterate over.
        """
        source = _Source(self, iter(works))
        self._live[source] = None
        self._sources.append(source)
        self._turn()
        return source.task

    def run(
        self, work: Work | None = None, *, queue: Work | None = None, mqueue: Iterable[Any] | None = None
    ) -> Deferred[Any]:
        """
        Run these, and whatever they begin.

        @return: fires when nothing is left, with the result of C{work}; fails with the first exception that
            nobody waited for, and then everything else is cancelled. Cancelling it does so, too.
        @raise RuntimeError: it is running already.
        @raise TypeError: that is no work.
        """
        if self._run is not None:
            for unwanted in (work, queue):
                if unwanted is not None:
                    unwanted.close()
            raise RuntimeError("this schedule is running already")
        done = self._run = Deferred(lambda _: self._stop())
        self._result = None
        wasTurning, self._isTurning = self._isTurning, True
        try:
            if work is not None:
                self._start(work).task.then(self._remember)
            if queue is not None:
                self._start(queue)
            if mqueue is not None:
                self.mqueue(mqueue)
        except BaseException:
            self._stop()
            raise
        finally:
            self._isTurning = wasTurning
        self._turn()
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
        if self._waiting:
            self._issueWaiting()
        if self._onProgress is not None:
            self._onProgress(progress)
        if self._sources:
            self._turn()
        return result

    def _issueWaiting(self) -> None:
        """Make calls that wait; one that ends at once comes back here, and then this goes on for it."""
        if self._isIssuing:
            return
        self._isIssuing = True
        try:
            while self._waiting and len(self._outstanding) < self.maxOutstanding:
                waiting, issue = self._waiting.popleft()
                self.progress.waiting = len(self._waiting)
                try:
                    answer = self._issued(issue())
                except Exception:
                    waiting.errback(Failure())
                else:
                    answer.chainDeferred(waiting)
        finally:
            self._isIssuing = False

    def _unwait(self, answer: Deferred[Any]) -> None:
        self._waiting = deque(pair for pair in self._waiting if pair[0] is not answer)
        self.progress.waiting = len(self._waiting)

    # Work.

    def _start(self, work: Work, source: _Source | None = None) -> _Running:
        running = _Running(self, work, source)
        self._running[running] = None
        self.progress.running = len(self._running)
        self._ready.append((running, None, None))
        return running

    def _goOn(self, running: _Running, value: Any, error: BaseException | None) -> None:
        """What it has waited for is there."""
        self._ready.append((running, value, error))
        self._turn()

    def _turn(self) -> None:
        """Go on with all work that can; whoever is called by it, and comes back here, leaves that to it."""
        if self._isTurning:
            return
        self._isTurning = True
        ready = self._ready
        try:
            while ready or self._takes():
                if ready:
                    running, value, error = ready.popleft()
                    running.step(value, error)
        finally:
            self._isTurning = False
        self._settle()

    def _takes(self) -> bool:
        """Begin one more piece of work, if calls have room; False when none is to be had."""
        sources = self._sources
        while (
            sources
            and not self._waiting
            and len(self._outstanding) < self.maxOutstanding
            and self._busy < self.maxOutstanding
        ):
            source = sources[0]
            hasMore = source.take()
            if sources and sources[0] is source:
                if hasMore:
                    sources.rotate(-1)
                else:
                    sources.popleft()
            if self._ready:
                return True
        return False

    def _over(self, running: _Running) -> None:
        self._running.pop(running, None)
        self.progress.running = len(self._running)

    def _remember(self, task: Task) -> None:
        if task.error is None:
            self._result = task.value

    def _unheard(self, error: BaseException) -> None:
        """Nobody waited for this piece of work, and it has failed."""
        done = self._run
        self._stop()
        if done is not None:
            done.errback(Failure(error))
        else:
            _log.failure("work of a schedule that is not running has failed", Failure(error))

    def _settle(self) -> None:
        if self._run is None or self._running or self._live or self._isTurning:
            return
        done, self._run = self._run, None
        done.callback(self._result)

    def _stop(self) -> None:
        """Cancel everything."""
        self._run = None
        sources, self._live = self._live, {}
        self._sources.clear()
        waiting, self._waiting = self._waiting, deque()
        running, self._running = self._running, {}
        self._ready.clear()
        self._busy = 0
        self.progress.waiting = self.progress.running = 0
        begun: list[_Source | _Running] = [*sources, *running]
        for one in begun:
            one.close()
        for answer in tuple(self._outstanding):
            answer.addErrback(_dropped)
            answer.cancel()
        for answer, _ in waiting:
            answer.addErrback(_dropped)
            answer.errback(CancelledError())
        for one in begun:
            one.task.drop()


def _dropped(failure: Failure) -> None:
    """Whoever waited for this is gone."""


class Task:
    """
    A piece of work that was begun: to be awaited, or yielded.

    @ivar isDone: it has ended, with C{value} or with C{error}.
    """

    __slots__ = ("_answers", "_listeners", "_needs", "_schedule", "error", "isDone", "value")

    def __init__(self, schedule: MADSchedule, needs: Callable[[], Iterable[_Running | Task]]) -> None:
        """@param needs: tells what has to end before this can."""
        self.isDone = False
        self.value: Any = None
        self.error: BaseException | None = None
        self._schedule = schedule
        self._needs = needs
        self._listeners: list[Callable[[Task], None]] = []
        self._answers: dict[Deferred[Any], None] = {}

    def then(self, listener: Callable[[Task], None]) -> None:
        """Call this at its end; that alone is no waiting for it."""
        if self.isDone:
            listener(self)
        else:
            self._listeners.append(listener)

    def wait(self) -> Deferred[Any]:
        """Fires at its end, with what it has returned. Cancelling that ends the waiting, not the work."""
        if self.isDone:
            return succeed(self.value) if self.error is None else fail(self.error)
        answer = _End(self, self._unwait)
        self._answers[answer] = None
        return answer

    def __await__(self) -> Generator[Deferred[Any], Any, Any]:
        return self.wait().__await__()

    def end(self, value: Any, error: BaseException | None) -> None:
        """It has ended."""
        isHeard = bool(self._answers)
        self._tell(value, error)
        if error is not None and not isHeard:
            self._schedule._unheard(error)

    def drop(self) -> None:
        """It was cancelled with all others."""
        if not self.isDone:
            self._tell(None, CancelledError())

    def endsAfter(self, running: _Running) -> bool:
        """Whether it can end only when that piece of work has."""
        seen: set[Task] = set()
        tasks = [self]
        while tasks:
            task = tasks.pop()
            if task in seen or task.isDone:
                continue
            seen.add(task)
            for needed in task._needs():
                if needed is running:
                    return True
                awaited = needed if isinstance(needed, Task) else needed.awaited
                if awaited is not None:
                    tasks.append(awaited)
        return False

    def _unwait(self, answer: Deferred[Any]) -> None:
        self._answers.pop(answer, None)

    def _tell(self, value: Any, error: BaseException | None) -> None:
        self.isDone = True
        self.value, self.error = value, error
        listeners, self._listeners = self._listeners, []
        answers, self._answers = self._answers, {}
        for listener in listeners:
            listener(self)
        for answer in answers:
            if answer.called:
                pass  # cancelled by who was told before
            elif error is None:
                answer.callback(value)
            else:
                answer.errback(Failure(error))


class _End(Deferred[Any]):
    """The end of a task."""

    def __init__(self, task: Task, unwait: Callable[[Deferred[Any]], None]) -> None:
        super().__init__(unwait)
        self.task = task


class _Running:
    """
    One piece of work, and those that it has called, the innermost last.

    @ivar awaited: the task that it waits for, if it is one.
    """

    __slots__ = ("_deferred", "_schedule", "_source", "_stack", "awaited", "task")

    def __init__(self, schedule: MADSchedule, work: Work, source: _Source | None) -> None:
        if not _isWork(work):
            raise TypeError(f"{work!r} is neither a coroutine nor a generator")
        self._schedule = schedule
        self._source = source
        self._stack: list[Work] = [work]
        self._deferred: Deferred[Any] | None = None
        self.awaited: Task | None = None
        self.task = Task(schedule, lambda: (self,))

    def close(self) -> None:
        """Never go on."""
        stack, self._stack = self._stack, []
        deferred, self._deferred = self._deferred, None
        if stack and not _isExecuting(stack[-1]):  # else that is noticed as soon as it has let go
            _close(stack)
        if deferred is not None:
            deferred.addErrback(_dropped)
            deferred.cancel()

    def step(self, value: Any, error: BaseException | None) -> None:
        """Go on until there is something to wait for."""
        stack = self._stack
        if not stack:
            return
        while stack:
            work = stack[-1]
            hasEnded = False
            try:
                yielded = work.send(value) if error is None else work.throw(error)
            except StopIteration as end:
                value, error, hasEnded = end.value, None, True
            except Exception as failed:
                value, error, hasEnded = None, failed, True
            if self._stack is not stack:  # closed by what it did
                _close(stack[:-1] if hasEnded else stack)
                return
            if hasEnded:
                stack.pop()
                if error is None and value is None and stack and inspect.isgenerator(stack[-1]):
                    value = True  # so that "yield something()" says that it was done
                continue
            value = error = None
            if yielded is None:
                continue
            if _isWork(yielded):
                stack.append(yielded)
                continue
            if isinstance(yielded, Task):
                yielded = yielded.wait()
            told = self._await(yielded)
            if told is None:
                return
            value, error = told
        if self._stack is stack:
            self._stack = []
            self._schedule._over(self)
            self.task.end(value, error)

    def _await(self, answer: object) -> tuple[Any, BaseException | None] | None:
        """What it has fired with; None when it has not yet, and the schedule goes on when it does."""
        schedule = self._schedule
        if not isinstance(answer, Deferred):
            return None, TypeError(
                f"work cannot yield {answer!r}, only calls, other work, what was queued, and None"
            )
        if answer is schedule._run:
            return None, RuntimeError("work cannot wait for the run that it is part of")
        task = answer.task if isinstance(answer, _End) else None
        if task is not None and task.endsAfter(self):
            answer.addErrback(_dropped)
            answer.cancel()
            return None, RuntimeError("work cannot wait for what waits for it")
        told: list[tuple[Any, BaseException | None]] = []
        isLater = False

        def fired(result: Any) -> Any:
            value, error = (None, result.value) if isinstance(result, Failure) else (result, None)
            if not isLater:
                told.append((value, error))
            elif self._deferred is answer:
                self._deferred = self.awaited = None
                if isBusy:
                    schedule._busy -= 1
                schedule._goOn(self, value, error)
            return value  # a coroutine that awaits it looks at it once more

        answer.addBoth(fired)
        if told:
            return told[0]
        isLater = True
        self._deferred, self.awaited = answer, task
        isBusy = task is None and self._source is not None
        if isBusy:
            schedule._busy += 1
        return None


def _isWork(thing: object) -> bool:
    return inspect.isgenerator(thing) or inspect.iscoroutine(thing)


def _isExecuting(work: Any) -> bool:
    running: bool = work.gi_running if inspect.isgenerator(work) else work.cr_running
    return running


def _close(stack: list[Work]) -> None:
    """End work that was begun, the innermost first."""
    for work in reversed(stack):
        try:
            work.close()
        except Exception:
            _log.failure("while {work!r} was closed", work=work)


class _Source:
    """What an C{mqueue} was given: work that is begun when there is room."""

    __slots__ = ("_awaited", "_children", "_exhausted", "_schedule", "_works", "task")

    def __init__(self, schedule: MADSchedule, works: Iterator[Any]) -> None:
        self.task = Task(schedule, self._needs)
        self._schedule = schedule
        self._works = works
        self._children: dict[Task, None] = {}
        self._exhausted = False
        self._awaited: Task | None = None

    def close(self) -> None:
        """Begin nothing more."""
        self._exhausted = True
        if inspect.isgenerator(self._works) and not _isExecuting(self._works):
            _close([self._works])

    def take(self) -> bool:
        """Begin the next piece; False when there is none at present."""
        try:
            work = next(self._works)
        except StopIteration:
            self._exhausted = True
            self._settle()
            return False
        except Exception as error:
            self._fail(error)
            return False
        if self._exhausted:  # closed by what it did
            if _isWork(work):
                _close([work])
            return False
        if work is None:
            return True
        if isinstance(work, Task):
            return self._wait(work)
        try:
            task = self._schedule._start(work, self).task
        except TypeError as error:
            self._fail(error)
            return False
        self._children[task] = None
        task.then(self._oneEnded)
        return True

    def _wait(self, task: Task) -> bool:
        if task is self.task:
            self._fail(RuntimeError("work cannot wait for what waits for it"))
            return False
        self._awaited = task
        task.then(self._goOn)
        return self._awaited is None

    def _goOn(self, task: Task) -> None:
        """What the generator itself waits for has ended."""
        self._awaited = None
        schedule = self._schedule
        if not self._exhausted and self not in schedule._sources:
            schedule._sources.append(self)
            schedule._turn()

    def _oneEnded(self, task: Task) -> None:
        self._children.pop(task, None)
        self._settle()

    def _fail(self, error: Exception) -> None:
        self._exhausted = True
        self._schedule._live.pop(self, None)
        self.task.end(None, error)

    def _settle(self) -> None:
        if self._exhausted and not self._children and not self.task.isDone:
            self._schedule._live.pop(self, None)
            self.task.end(None, None)

    def _needs(self) -> Iterable[_Running | Task]:
        return (*self._children, *(() if self._awaited is None else (self._awaited,)))
