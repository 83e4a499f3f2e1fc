"""
Tasks that wait: coroutines, and generators in python-rdma's style, run until they wait, and then on.

A piece of work waits for a Deferred, other work, or None. Nothing here nests: however deep work calls work,
the stack does not grow.
"""

from __future__ import annotations

import inspect
from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from typing import Any, Final, Union

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

_log = Logger()

Work = Union[Coroutine[Any, Any, Any], Generator[Any, Any, Any]]
"""A piece of work: a coroutine or a generator."""

_WHAT: Final = "only calls, other work, what was queued, and None"


class Runner:
    """
    Runs work, one piece at a time, until each waits or has ended.

    @ivar busy: pieces of work from sources that wait for something else than work.
    """

    def __init__(self, hasRoom: Callable[[int], bool], stopped: Callable[[], None]) -> None:
        """
        @param hasRoom: called with C{busy}; True if one more piece of work may be taken from a source.
        @param stopped: called when everything is cancelled, after work is closed.
        """
        self.busy = 0
        self._hasRoom = hasRoom
        self._stopped = stopped
        self._sources: deque[Source] = deque()  # those that can be asked for more
        self._live: dict[Source, None] = {}  # all that have not ended
        self._running: dict[Running, None] = {}
        self._ready: deque[tuple[Running, Any, BaseException | None]] = deque()
        self._isTurning = False
        self._run: Deferred[Any] | None = None
        self._result: Any = None

    @property
    def count(self) -> int:
        """Pieces of work that were begun and have not ended."""
        return len(self._running)

    @property
    def hasSources(self) -> bool:
        """True while sources may have more work."""
        return bool(self._sources)

    def isRun(self, done: Deferred[Any]) -> bool:
        """True if a Deferred is that of the run."""
        return done is self._run

    def start(self, work: Work, source: Source | None = None) -> Running:
        """
        Begin a piece of work at the next turn.

        @raise TypeError: the argument is neither a coroutine nor a generator.
        """
        running = Running(self, work, source)
        self._running[running] = None
        self._ready.append((running, None, None))
        return running

    def take(self, works: Iterable[Any]) -> Task:
        """
        Begin pieces of work from an iterable, each when there is room.

        @raise TypeError: the argument is not iterable.
        """
        source = Source(self, iter(works))
        self._live[source] = None
        self._sources.append(source)
        return source.task

    def run(self, work: Work | None, queue: Work | None, mqueue: Iterable[Any] | None) -> Deferred[Any]:
        """
        Begin these; the returned Deferred fires when nothing is left: see L{MADSchedule.run
        <txrdma.mad.schedule.MADSchedule.run>}.
        """
        if self._run is not None:
            _close([each for each in (work, queue) if each is not None])
            raise RuntimeError("this schedule is running already")
        done = self._run = Deferred(lambda _: self.stop())
        self._result = None
        try:
            if work is not None:
                self.start(work).task.then(self._remember)
            if queue is not None:
                self.start(queue)
            if mqueue is not None:
                self.take(mqueue)
        except BaseException:
            self.stop()
            raise
        self.turn()
        return done

    def goOn(self, running: Running, value: Any, error: BaseException | None) -> None:
        """Resume a piece of work with the value or the error that it has waited for."""
        self._ready.append((running, value, error))
        self.turn()

    def resume(self, source: Source) -> None:
        """Let a source be asked for work again."""
        if source not in self._sources:
            self._sources.append(source)
            self.turn()

    def turn(self) -> None:
        """Go on with all work that can; a nested call returns at once, and leaves that to the outer one."""
        if self._isTurning:
            return
        self._isTurning = True
        ready = self._ready
        try:
            while ready or (self._sources and self._takes()):
                running, value, error = ready.popleft()
                running.step(value, error)
        finally:
            self._isTurning = False
        if self._run is not None and not self._running and not self._live:
            done, self._run = self._run, None
            done.callback(self._result)

    def _takes(self) -> bool:
        """Begin one more piece of work; False when none is to be had."""
        sources = self._sources
        while sources and self._hasRoom(self.busy):
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

    def ended(self, which: Running | Source) -> None:
        """Remove a piece of work or a source that has ended."""
        if isinstance(which, Running):
            self._running.pop(which, None)
        else:
            self._live.pop(which, None)

    def _remember(self, task: Task) -> None:
        if task.error is None:
            self._result = task.value

    def unheard(self, error: BaseException) -> None:
        """End the run after an error in a piece of work that is not waited for."""
        done = self._run
        self.stop()
        if done is not None:
            done.errback(Failure(error))
        else:
            _log.failure("work of a schedule that is not running has failed", Failure(error))

    def stop(self) -> None:
        """Cancel all work, and end the run."""
        self._run = None
        begun: list[Source | Running] = [*self._live, *self._running]
        self._live, self._running = {}, {}
        self._sources.clear()
        self._ready.clear()
        self.busy = 0
        for one in begun:
            one.close()
        self._stopped()
        for one in begun:
            one.task.drop()


def dropped(failure: Failure) -> None:
    """Errback for results that are not wanted any more."""


class Task:
    """
    A piece of work that was begun: to be awaited, or yielded.

    @ivar isDone: True after the end, which has set C{value} or C{error}.
    """

    __slots__ = ("_answers", "_listeners", "_owner", "_runner", "error", "isDone", "value")

    def __init__(self, runner: Runner, owner: Running | Source) -> None:
        """@param owner: has the work that must end before this task can."""
        self.isDone = False
        self.value: Any = None
        self.error: BaseException | None = None
        self._runner = runner
        self._owner = owner
        self._listeners: list[Callable[[Task], None]] = []
        self._answers: dict[Deferred[Any], None] = {}

    def then(self, listener: Callable[[Task], None]) -> None:
        """Call a function at the end of the task, which does not count as waiting for it."""
        if self.isDone:
            listener(self)
        else:
            self._listeners.append(listener)

    def wait(self) -> Deferred[Any]:
        """Fires at the end of the task, with its result. Cancelling that ends the waiting, not the work."""
        if self.isDone:
            return succeed(self.value) if self.error is None else fail(self.error)
        answer = _End(self, self._unwait)
        self._answers[answer] = None
        return answer

    def __await__(self) -> Generator[Deferred[Any], Any, Any]:
        return self.wait().__await__()

    def end(self, value: Any, error: BaseException | None) -> None:
        """End the task with a result or an error."""
        isHeard = bool(self._answers)
        self._tell(value, error)
        if error is not None and not isHeard:
            self._runner.unheard(error)

    def drop(self) -> None:
        """End a task that was cancelled with all others."""
        if not self.isDone:
            self._tell(None, CancelledError())

    def endsAfter(self, running: Running) -> bool:
        """True if the task can end only after that piece of work."""
        seen: set[Task] = set()
        tasks = [self]
        while tasks:
            task = tasks.pop()
            if task in seen or task.isDone:
                continue
            seen.add(task)
            for needed in task._owner.needs():
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
    """Deferred that fires at the end of a task."""

    def __init__(self, task: Task, unwait: Callable[[Deferred[Any]], None]) -> None:
        super().__init__(unwait)
        self.task = task


class Running:
    """
    A running piece of work, and those that it has called, the innermost last.

    @ivar awaited: the task that it waits for, if it is one.
    """

    __slots__ = ("_deferred", "_isBusy", "_runner", "_source", "_stack", "_told", "awaited", "task")

    def __init__(self, runner: Runner, work: Work, source: Source | None) -> None:
        if not _isWork(work):
            raise TypeError(f"{work!r} is neither a coroutine nor a generator")
        self._runner = runner
        self._source = source
        self._stack: list[Work] = [work]
        self._deferred: Deferred[Any] | None = None
        self._told: tuple[Any, BaseException | None] | None = None
        self._isBusy = False
        self.awaited: Task | None = None
        self.task = Task(runner, self)

    def needs(self) -> Iterable[Running | Task]:
        """Tasks and work that must end before this piece of work can."""
        return (self,)

    def close(self) -> None:
        """Close the piece of work, which never goes on."""
        stack, self._stack = self._stack, []
        deferred, self._deferred = self._deferred, None
        if stack and not _isExecuting(stack[-1]):  # else that is noticed as soon as it has let go
            _close(stack)
        if deferred is not None:
            deferred.addErrback(dropped)
            deferred.cancel()

    def step(self, value: Any, error: BaseException | None) -> None:
        """Go on until the work waits or has ended."""
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
            if not isinstance(yielded, Deferred):
                if yielded is None:
                    continue
                if _isWork(yielded):
                    stack.append(yielded)
                    continue
                if not isinstance(yielded, Task):
                    error = TypeError(f"work cannot yield {yielded!r}, {_WHAT}")
                    continue
                yielded = yielded.wait()
            told = self._await(yielded)
            if told is None:
                return
            value, error = told
        if self._stack is stack:
            self._stack = []
            self._runner.ended(self)
            self.task.end(value, error)

    def _await(self, answer: Deferred[Any]) -> tuple[Any, BaseException | None] | None:
        """Result of a Deferred that has fired; None when it has not, and work goes on when it does."""
        runner = self._runner
        if runner.isRun(answer):
            return None, RuntimeError("work cannot wait for the run that it is part of")
        task = answer.task if isinstance(answer, _End) else None
        if task is not None and task.endsAfter(self):
            answer.addErrback(dropped)
            answer.cancel()
            return None, RuntimeError("work cannot wait for what waits for it")
        answer.addBoth(self._fired)
        told, self._told = self._told, None
        if told is None:
            self._deferred, self.awaited = answer, task
            if self._source is not None and task is None:
                self._isBusy = True
                runner.busy += 1
        return told

    def _fired(self, result: Any) -> Any:
        """
        Resume the work with a Deferred's result, which stays in it, as a coroutine looks at it once more.
        """
        value, error = (None, result.value) if isinstance(result, Failure) else (result, None)
        if self._deferred is not None:
            self._deferred = self.awaited = None
            if self._isBusy:
                self._isBusy = False
                self._runner.busy -= 1
            self._runner.goOn(self, value, error)
        elif self._stack:
            self._told = value, error
        return value


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


class Source:
    """Iterable of work given to C{mqueue}, which is begun when there is room."""

    __slots__ = ("_awaited", "_children", "_exhausted", "_runner", "_works", "task")

    def __init__(self, runner: Runner, works: Iterator[Any]) -> None:
        self.task = Task(runner, self)
        self._runner = runner
        self._works = works
        self._children: dict[Task, None] = {}
        self._exhausted = False
        self._awaited: Task | None = None

    def close(self) -> None:
        """Begin no more work of the iterable."""
        self._exhausted = True
        if inspect.isgenerator(self._works) and not _isExecuting(self._works):
            _close([self._works])

    def take(self) -> bool:
        """Begin the next piece of work; False when there is none at present."""
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
            task = self._runner.start(work, self).task
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
        """Continue after the task that the iterable itself has waited for."""
        self._awaited = None
        if not self._exhausted:
            self._runner.resume(self)

    def _oneEnded(self, task: Task) -> None:
        self._children.pop(task, None)
        self._settle()

    def _fail(self, error: Exception) -> None:
        self._exhausted = True
        self._runner.ended(self)
        self.task.end(None, error)

    def _settle(self) -> None:
        if self._exhausted and not self._children and not self.task.isDone:
            self._runner.ended(self)
            self.task.end(None, None)

    def needs(self) -> Iterable[Running | Task]:
        """Tasks that must end before all of this work has."""
        return (*self._children, *(() if self._awaited is None else (self._awaited,)))
