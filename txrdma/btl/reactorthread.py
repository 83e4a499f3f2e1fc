"""
A reactor in a separate thread, for programs that block in other threads.

A lock belongs to the thread that runs code of the reactor. The reactor's thread releases it while it waits
for events. So another thread can run such code itself, without a change of threads, which takes longer than a
short operation of a L{Group<txrdma.btl.groups.group.Group>} in shared memory.
"""

from __future__ import annotations

import asyncio
import os
from collections import deque
from collections.abc import Callable
from math import inf
from selectors import DefaultSelector, SelectorKey
from threading import Event, get_ident, Lock, Thread
from time import monotonic
from typing import Any, ClassVar, Final

from twisted.internet.asyncioreactor import AsyncioSelectorReactor
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.internet.error import ConnectionDone
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.btl.module import abandonModules
from txrdma.error import InvalidRequest

_log = Logger()

_RESOLUTION: Final = 1e-3
"""Resolution of the times for which a selector waits, in seconds."""


class _Selector(DefaultSelector):
    """
    Waits for events without the lock.

    @ivar lock: belongs to the thread that runs code of the reactor, the C{owner}, or 0.
    @ivar until: end of the wait, by C{time.monotonic}.
    """

    def __init__(self) -> None:
        super().__init__()
        self.lock, self.owner, self.until = Lock(), 0, inf

    def select(self, timeout: float | None = None) -> list[tuple[SelectorKey, int]]:
        self.until = inf if timeout is None else monotonic() + timeout
        self.owner = 0
        self.lock.release()
        try:
            found = super().select(timeout)
        finally:
            self.lock.acquire()
            self.owner = get_ident()
        # The loop would remove a reader or writer that another thread has just added to the same descriptor.
        current = self.get_map()
        return [each for each in found if current.get(each[0].fd) is each[0]]


class ReactorThread:
    """
    A reactor in a separate thread. It runs while it has users, and does not keep the process alive.

    @ivar reactor: it belongs to whoever holds the lock.
    """

    _current: ClassVar[ReactorThread | None] = None
    _users: ClassVar[int] = 0
    _guard: ClassVar[Lock] = Lock()

    def __init__(self) -> None:
        self._selector = selector = _Selector()
        self._lock = selector.lock
        self._loop = asyncio.SelectorEventLoop(selector)
        # In its debug mode the loop refuses calls of other threads, even of those that hold the lock.
        self._loop.set_debug(False)
        self.reactor: Any = AsyncioSelectorReactor(self._loop)
        self._calls: deque[Callable[[], object]] = deque()
        self._thread = Thread(target=self._run, name="txrdma reactor", daemon=True)
        self._thread.start()

    @classmethod
    def acquire(cls) -> ReactorThread:
        """Return the thread of this process, which a forked one lacks; each user has to call L{release}."""
        with cls._guard:
            if cls._current is None:
                cls._current = cls()
            cls._users += 1
            return cls._current

    @classmethod
    def _forget(cls) -> None:
        """Forget the thread in a forked process, where neither it nor the owner of the lock exists."""
        cls._current, cls._users, cls._guard = None, 0, Lock()

    def release(self) -> None:
        """
        Stop using the thread of the reactor, which ends when its last user calls this. A forked process has
        no user of the thread that it has inherited.
        """
        cls = type(self)
        with self._guard:
            if self is not cls._current:
                return
            cls._users -= 1
            if cls._users:
                return
            cls._current = None
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()

    def _run(self) -> None:
        with self._lock:
            self._selector.owner = get_ident()
            self._loop.run_forever()
            disconnect(self.reactor)
            self._loop.close()
            self._runCalls()  # of threads that did not know that this one was about to end
            self._selector.owner = 0  # another thread may get this thread's number

    def isHere(self) -> bool:
        """Return whether this thread runs code of the reactor, so that it must not wait for the reactor."""
        return self._selector.owner == get_ident()

    def start(self, call: Callable[[], object], isHere: bool) -> None:
        """
        Run code of the reactor after that of earlier calls of this method, at any time.

        @param isHere: run it in this thread before this method returns, unless the reactor is busy.
        @raise InvalidRequest: the thread has ended, or is in the process that forked this one.
        """
        if not self._thread.is_alive():
            raise InvalidRequest("the reactor has ended, or runs in the process that forked this one")
        self._calls.append(call)
        if isHere and self._lock.acquire(blocking=False):
            self._selector.owner = get_ident()
            try:
                self._runCalls()
                self.reactor.runUntilCurrent()  # else the other thread would have to: waking it takes 20 us
                delay = self.reactor.timeout()
                isLate = delay is not None and monotonic() + delay < self._selector.until - _RESOLUTION
            finally:
                self._selector.owner = 0
                self._lock.release()
            if isLate:
                self._loop.call_soon_threadsafe(_wake)
        else:
            try:
                self._loop.call_soon_threadsafe(self._runCalls)
            except RuntimeError:  # the loop was closed after the check above
                if self.isHere():
                    return  # from a call, which the others follow
                with self._lock:
                    self._selector.owner = get_ident()
                    self._runCalls()
                    self._selector.owner = 0

    def _runCalls(self) -> None:
        while self._calls:
            call = self._calls.popleft()
            with _log.failuresHandled(
                "a function that another thread has passed to the reactor raised an exception"
            ):
                call()

    def call(self, function: Callable[..., Any], *arguments: Any) -> Any:
        """
        Call a function in the reactor's thread, and wait for its result.

        @param function: returns a value, or a Deferred with it.
        @raise InvalidRequest: code of the reactor calls this, which would wait for itself; or as L{start}.
        @raise Exception: what the function has raised, or the Deferred has failed with. If the handler of a
            signal raises an exception, the Deferred is cancelled.
        """
        if self.isHere():
            raise InvalidRequest("code of the reactor cannot wait for the reactor")
        ended, results = Event(), []
        outcomes: list[Deferred[Any]] = []

        def run() -> None:
            outcomes.append(maybeDeferred(function, *arguments).addBoth(done))

        def cancel() -> None:
            for each in outcomes:
                each.cancel()

        def done(result: Any) -> None:
            results.append(result)
            ended.set()

        self.start(run, False)
        try:
            ended.wait()
        except BaseException:
            self.start(cancel, False)
            raise
        (result,) = results
        if isinstance(result, Failure):
            result.raiseException()
        return result


if hasattr(os, "register_at_fork"):  # Windows has no fork
    os.register_at_fork(after_in_child=ReactorThread._forget)


def disconnect(reactor: Any) -> None:
    """Close all connections, listeners and modules of an asyncio reactor whose loop has ended for good."""
    with _log.failuresHandled("connections cannot be closed after the end of their reactor"):
        reactor.disconnectAll()
    abandonModules(reactor)
    reactor.waker.connectionLost(Failure(ConnectionDone()))


def _wake() -> None:
    """Let the reactor wait until its next deadline, which another thread has set."""
