"""
Tasks: coroutines that are suspended while they wait.

A piece of work waits for a Deferred or other work.

Theory of operation. A L{Runner} has a queue of tasks that can continue, each with the value or the error that
it has waited for. L{Runner.turn} resumes one after the other; calls during that only append to the queue, so
that neither nested waits nor Deferreds that have fired already make the stack grow. An iterable of work is a
task, too, the source of the tasks that it begins. Before each of them it waits until C{fits} permits another
one. A run ends when neither tasks nor sources are left, or with the first error for which no other task
waits; then all work is closed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Coroutine, Generator, Iterable, Iterator
from inspect import CORO_RUNNING, getcoroutinestate, isgenerator
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.mad.generators import close, coroutineOf, Work

_log = Logger()


class Runner:
    """
    Runs work, one piece at a time, until each waits or has ended.

    @ivar busy: pieces of work from sources that wait for something other than work.
    @ivar running: pieces of work that were begun and have not ended.
    @ivar wanting: Deferreds of sources with another piece of work; they fire when it may begin.
    """

    def __init__(self, fits: Callable[[int], bool], stopped: Callable[[], None]) -> None:
        """
        @param fits: called with C{busy}; True if one more piece of work may be taken from a source.
        @param stopped: called when everything is cancelled, after work is closed.
        """
        self.busy = 0
        self.running: dict[Task, None] = {}
        self.wanting: deque[Deferred[None]] = deque()
        self._fits = fits
        self._stopped = stopped
        self._sources: dict[Task, None] = {}
        self._ready: deque[tuple[Task, Any, BaseException | None]] = deque()
        self._isTurning = False
        self._run: Deferred[Any] | None = None
        self._first: Task | None = None

    def isRun(self, done: Deferred[Any]) -> bool:
        """True if a Deferred is that of the run."""
        return done is self._run

    def start(self, work: Work, source: Task | None = None) -> Task:
        """Begin a coroutine or a generator at the next turn; raise C{TypeError} for anything else."""
        coroutine = coroutineOf(work)
        return self._begun(Task(self, self.running, source), coroutine)

    def take(self, works: Iterable[Any]) -> Task:
        """Begin pieces of work from an iterable, up to the bound; raise C{TypeError} for anything else."""
        iterator = iter(works)
        task = Task(self, self._sources)
        return self._begun(task, self._each(iterator, task))

    def run(self, work: Work | None, queue: Work | None, mqueue: Iterable[Any] | None) -> Deferred[Any]:
        """Begin pieces of work; the Deferred fires when nothing is left: see C{MADSchedule.run}."""
        if self._run is not None:
            for each in (work, queue):
                if each is not None:
                    close(each)
            raise RuntimeError("this schedule is running already")
        done = self._run = Deferred(lambda _: self.stop())
        try:
            self._first = self.start(work) if work is not None else None
            if queue is not None:
                self.start(queue)
            if mqueue is not None:
                self.take(mqueue)
        except BaseException:
            self.stop()
            raise
        self.turn()
        return done

    def resume(self, task: Task, value: Any, error: BaseException | None) -> None:
        """Resume a piece of work with the value or the error that it has waited for."""
        self._ready.append((task, value, error))
        self.turn()

    def turn(self) -> None:
        """Continue all work that can continue; a nested call leaves this to the outer one."""
        if self._isTurning:
            return
        self._isTurning = True
        ready, wanting = self._ready, self.wanting
        try:
            while True:
                if ready:
                    task, value, error = ready.popleft()
                    task.step(value, error)
                elif wanting and self._fits(self.busy):
                    wanting.popleft().callback(None)
                else:
                    break
        finally:
            self._isTurning = False
        if self._run is not None and not self.running and not self._sources:
            done, self._run = self._run, None
            done.callback(None if self._first is None else self._first.value)

    def workFailed(self, error: BaseException) -> None:
        """End the run after an error in a piece of work that is not waited for."""
        done = self._run
        self.stop()
        if done is not None:
            done.errback(Failure(error))
        else:
            _log.failure("work of a schedule that is not running has failed", Failure(error))

    def stop(self) -> None:
        """Cancel all work, and end the run."""
        self._run = self._first = None
        begun = [*self._sources, *self.running]
        for left in (self._sources, self.running, self.wanting, self._ready):
            left.clear()
        self.busy = 0
        for task in begun:
            task.close()
        self._stopped()
        for task in begun:
            task.drop()

    def _begun(self, task: Task, work: Coroutine[Any, Any, Any]) -> Task:
        task.work = work
        self._ready.append((task, None, None))
        return task

    async def _each(self, works: Iterator[Any], source: Task) -> None:
        """Begin pieces of work up to the bound, and end after the last has ended."""
        try:
            await self._whenFree()
            for work in works:
                if source.work is None:  # closed by what the iterable did
                    if work is not None and not isinstance(work, Task):
                        coroutineOf(work).close()
                    return
                if isinstance(work, Task):
                    await work
                elif work is not None:
                    source.children[self.start(work, source)] = None
                await self._whenFree()
        finally:
            if isgenerator(works):
                works.close()
        if source.children:
            source.settled = Deferred()
            await source.settled

    def _whenFree(self) -> Deferred[None]:
        waiter: Deferred[None] = Deferred()
        self.wanting.append(waiter)
        return waiter


def dropped(failure: Failure) -> None:
    """Errback for results that are no longer needed."""


class Task:
    """
    A piece of work that was begun: to be awaited, or yielded.

    @ivar isDone: True after the end, which has set C{value} or C{error}.
    @ivar work: the coroutine; None after its end.
    @ivar awaited: the task that it waits for, if it is one.
    @ivar children: work of a source that has not ended; C{settled}, if awaited, fires after the last.
    """

    __slots__ = (
        *("_answers", "_deferred", "_home", "_isBusy", "_runner", "_source"),
        *("awaited", "children", "error", "isDone", "settled", "value", "work"),
    )

    def __init__(self, runner: Runner, home: dict[Task, None], source: Task | None = None) -> None:
        """@param home: runs the task; C{source}: the iterable that it comes from, if any."""
        self.isDone = False
        self.value: Any = None
        self.error: BaseException | None = None
        self.work: Coroutine[Any, Any, Any] | None = None
        self.awaited: Task | None = None
        self.children: dict[Task, None] = {}
        self.settled: Deferred[None] | None = None
        self._runner = runner
        self._home = home
        self._source = source
        self._deferred: Deferred[Any] | None = None
        self._isBusy = False
        self._answers: dict[Deferred[Any], None] = {}
        home[self] = None

    def wait(self) -> Deferred[Any]:
        """Fires at the end of the task, with its result. Cancelling that ends the waiting, not the work."""
        if self.isDone:
            return succeed(self.value) if self.error is None else fail(self.error)
        answer = _End(lambda cancelled: self._answers.pop(cancelled, None))
        answer.task = self
        self._answers[answer] = None
        return answer

    def __await__(self) -> Generator[Deferred[Any], Any, Any]:
        return self.wait().__await__()

    def endsAfter(self, other: Task) -> bool:
        """True if the task can end only after another one, which may be itself."""
        seen: set[Task] = set()
        tasks = [self]
        while tasks:
            task = tasks.pop()
            if task is other:
                return True
            if task not in seen and not task.isDone:
                seen.add(task)
                tasks += task.children if task.awaited is None else (*task.children, task.awaited)
        return False

    def step(self, value: Any, error: BaseException | None) -> None:
        """Continue until the work waits or has ended."""
        work = self.work
        if work is None:
            return
        try:
            awaited = work.send(value) if error is None else work.throw(error)
        except StopIteration as end:
            value, error = end.value, None
        except Exception as failed:
            value, error = None, failed
        else:
            if self.work is None:  # closed by what it did
                close(work)
            else:
                self._await(awaited)
            return
        if self.work is not None:
            self._end(value, error)

    def close(self) -> None:
        """Close the piece of work, which is never resumed."""
        work, self.work = self.work, None
        deferred, self._deferred = self._deferred, None
        if work is not None and getcoroutinestate(work) != CORO_RUNNING:  # else as soon as it has let go
            close(work)
        if deferred is not None:
            deferred.addErrback(dropped)
            deferred.cancel()

    def drop(self) -> None:
        """End a task that was cancelled with all others."""
        if not self.isDone:
            self._deliver(None, CancelledError())

    def _await(self, answer: Any) -> None:
        """Resume with the result of a Deferred, or at once with an error if it cannot fire."""
        runner = self._runner
        task = answer.task if isinstance(answer, _End) else None
        if not isinstance(answer, Deferred):
            error: BaseException = TypeError(f"work cannot wait for {answer!r}")
        elif runner.isRun(answer):
            error = RuntimeError("work cannot wait for the run that it is part of")
        elif task is not None and task.endsAfter(self):
            answer.addErrback(dropped)
            answer.cancel()
            error = RuntimeError("work cannot wait for what waits for it")
        else:
            self._deferred, self.awaited = answer, task
            self._isBusy = self._source is not None and task is None
            runner.busy += self._isBusy
            answer.addBoth(self._fired)
            return
        runner.resume(self, None, error)

    def _fired(self, result: Any) -> Any:
        """Resume the work with a Deferred's result, which remains in it: a coroutine reads it again."""
        value, error = (None, result.value) if isinstance(result, Failure) else (result, None)
        if self._deferred is not None:
            self._deferred = self.awaited = None
            self._runner.busy -= self._isBusy
            self._runner.resume(self, value, error)
        return value

    def _end(self, value: Any, error: BaseException | None) -> None:
        """End the task with a result or an error."""
        self.work = None
        self._home.pop(self, None)
        source = self._source
        if source is not None:
            del source.children[self]
            if not source.children and source.settled is not None:
                source.settled.callback(None)
        hasListener = bool(self._answers)
        self._deliver(value, error)
        if error is not None and not hasListener:
            self._runner.workFailed(error)

    def _deliver(self, value: Any, error: BaseException | None) -> None:
        self.isDone = True
        self.value, self.error = value, error
        answers, self._answers = self._answers, {}
        for answer in answers:
            if answer.called:
                pass  # cancelled by a callback called before
            elif error is None:
                answer.callback(value)
            else:
                answer.errback(Failure(error))


class _End(Deferred[Any]):
    """Deferred that fires at the end of a task."""

    task: Task
