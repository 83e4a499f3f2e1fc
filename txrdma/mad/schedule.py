"""
Schedules of coroutines over an agent, with a limit of outstanding calls.

Work is an C{async def}, or a generator in python-rdma's style (L{txrdma.mad.generators}). All calls made
through the schedule share its limit.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterable, Sized
from typing import Any, Final

from typing_extensions import Unpack

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.iba.path import IBPath
from txrdma.mad.generators import Work
from txrdma.mad.rpcs import CallOptions, RPCs
from txrdma.mad.tasks import dropped, Runner, Task

_log = Logger()

MAX_OUTSTANDING: Final = 64


class Progress:
    """
    Progress of a schedule, in numbers.

    @ivar most: highest number of outstanding calls so far.
    @ivar calls: number of completed calls, including C{failed} ones.
    """

    def __init__(self, outstanding: Sized, waiting: Sized, running: Sized) -> None:
        """@param outstanding: outstanding calls; C{waiting}: queued calls; C{running}: begun work."""
        self.most = self.calls = self.failed = 0
        self._outstanding = outstanding
        self._waiting = waiting
        self._running = running

    def __repr__(self) -> str:
        names = ("outstanding", "most", "waiting", "calls", "failed", "running")
        return f"Progress({', '.join(f'{name}={getattr(self, name)}' for name in names)})"

    @property
    def outstanding(self) -> int:
        """Number of outstanding calls."""
        return len(self._outstanding)

    @property
    def waiting(self) -> int:
        """Number of queued calls."""
        return len(self._waiting)

    @property
    def running(self) -> int:
        """Number of pieces of work that were begun and have not ended."""
        return len(self._running)


class MADSchedule(RPCs):
    """
    Schedule that runs coroutines, whose calls go to an agent, at most C{maxOutstanding} at a time.

    An exception in a piece of work is raised where it is waited for; an exception in one that is not waited
    for when it fails ends the run.

    @ivar progress: progress so far; always the same object.
    """

    def __init__(
        self,
        agent: RPCs,
        maxOutstanding: int = MAX_OUTSTANDING,
        onProgress: Callable[[Progress], object] | None = None,
    ) -> None:
        """
        @param agent: makes the calls, and is not closed by the schedule.
        @param onProgress: called whenever a call has ended.
        """
        if maxOutstanding < 1:
            raise ValueError(f"maxOutstanding is {maxOutstanding}, not 1 or more")
        self.agent = agent
        self.maxOutstanding = maxOutstanding
        self._onProgress = onProgress
        self._waiting: OrderedDict[Deferred[Any], None] = OrderedDict()
        self._outstanding: dict[Deferred[Any], None] = {}
        self._isIssuing = False
        self._runner = Runner(self._fits, self._stopped)
        self.progress = Progress(self._outstanding, self._waiting, self._runner.running)

    def call(
        self,
        rpc: str,
        payload: Any,
        path: IBPath | None = None,
        attributeModifier: int = 0,
        **options: Unpack[CallOptions],
    ) -> Deferred[Any]:
        if len(self._outstanding) < self.maxOutstanding and not self._waiting:
            answer = self.agent.call(rpc, payload, path, attributeModifier, **options)
            self._issued(answer)
        else:
            answer = Deferred(self._waiting.pop)
            answer.addCallback(lambda _: self.agent.call(rpc, payload, path, attributeModifier, **options))
            self._waiting[answer] = None
        return answer.addBoth(self._ended, answer)

    def queue(self, work: Work) -> Task:
        """
        Run a piece of work concurrently; the returned task can be awaited.

        @raise TypeError: the argument is neither a coroutine nor a generator.
        """
        task = self._runner.start(work)
        self._runner.turn()
        return task

    def mqueue(self, works: Iterable[Any]) -> Task:
        """
        Run pieces of work from an iterable, while there is room: less than C{maxOutstanding} calls, and as
        many pieces of such work that wait for anything except other work.

        @param works: pieces of work. A generator may also yield results of L{queue} and L{mqueue}, to wait
            for their ends, and None.
        @return: a task that ends with the last piece of work.
        @raise TypeError: the argument is not iterable.
        """
        task = self._runner.take(works)
        self._runner.turn()
        return task

    def run(
        self, work: Work | None = None, *, queue: Work | None = None, mqueue: Iterable[Any] | None = None
    ) -> Deferred[Any]:
        """
        Run pieces of work, and all work that they begin.

        @return: fires when nothing is left, with the result of C{work}; fails with the first exception in
            work that is not waited for, and then everything else is cancelled. Cancelling it does so, too.
        @raise RuntimeError: the schedule is running already.
        @raise TypeError: an argument is not work.
        """
        return self._runner.run(work, queue, mqueue)

    # Calls.

    def _issued(self, answer: Deferred[Any]) -> None:
        self._outstanding[answer] = None
        self.progress.most = max(self.progress.most, len(self._outstanding))

    def _ended(self, result: Any, answer: Deferred[Any]) -> Any:
        if answer not in self._outstanding:  # cancelled while it waited
            return result
        del self._outstanding[answer]
        self.progress.calls += 1
        self.progress.failed += isinstance(result, Failure)
        if self._waiting:
            self._issueWaiting()
        if self._onProgress is not None:
            self._reportProgress(self._onProgress)
        if self._runner.wanting and self._fits(self._runner.busy):
            self._runner.turn()
        return result

    def _reportProgress(self, onProgress: Callable[[Progress], object]) -> None:
        """Call C{onProgress}, and log its exceptions: they must not replace the answer of a call."""
        try:
            onProgress(self.progress)
        except Exception:
            _log.failure("onProgress of a schedule raised an exception, and is not called any more")
            self._onProgress = None

    def _issueWaiting(self) -> None:
        """Make queued calls up to the limit. A call that ends at once returns to the outer loop."""
        if self._isIssuing:
            return
        self._isIssuing = True
        try:
            while self._waiting and len(self._outstanding) < self.maxOutstanding:
                answer, _ = self._waiting.popitem(last=False)
                self._issued(answer)
                answer.callback(None)
        finally:
            self._isIssuing = False

    # Work.

    def _fits(self, busy: int) -> bool:
        most = self.maxOutstanding
        return busy < most and len(self._outstanding) < most and not self._waiting

    def _stopped(self) -> None:
        left = (*self._waiting, *self._outstanding)
        for answer in left:
            answer.addErrback(dropped)
        for answer in left:
            answer.cancel()
