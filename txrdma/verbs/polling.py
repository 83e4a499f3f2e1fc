"""
A reactor that looks at completion queues for a while before it sleeps.

To be woken takes tens of microseconds, what passes through shared memory takes one. So while messages come
quickly this reactor does not sleep, but spins over what was added by C{addPollable}, for a bounded time. When
spinning does not pay it does less and less of it, with a full try now and then; an idle process sleeps as on
any other reactor.

What has had nothing for a while is armed, and looked at no more until its descriptor wakes: of a thousand
link groups only those are looked at where something happens.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from time import perf_counter
from typing import Final

from zope.interface import implementer

from twisted.internet.epollreactor import EPollReactor
from twisted.internet.main import installReactor
from twisted.logger import Logger

from txrdma.interfaces import IPollable, IReactorPolling

_log = Logger()

SPIN_SECONDS: Final = 100e-6
_LOOK_SECONDS: Final = 50e-6
_PATIENCE: Final = 4
_LEAST_SHIFT: Final = 5
_PROBE: Final = 16
_STRIDE: Final = range(16)
_ROUNDS: Final = 128
"""Spins, and parts of long ones, after which what has had nothing meanwhile is looked at no more."""

_Poll = Callable[[], bool]


@implementer(IReactorPolling)
class PollingReactor(EPollReactor):
    """
    A reactor on epoll(7) that spins for a while before it sleeps.

    @ivar spinSeconds: how long to spin, at most, since something was found.
    @ivar spins: how often it has spun; C{paid}: how often it found something by that.
    """

    def __init__(self) -> None:
        self._pollables: dict[IPollable, None] = {}
        # Those that are looked at; the others are armed.
        self._live: dict[_Poll, IPollable] = {}
        self._polls: tuple[_Poll, ...] = ()
        self._hits: set[_Poll] = set()
        self._rounds = 0
        self._misses = 0
        self.spinSeconds = SPIN_SECONDS
        self.spins = 0
        self.paid = 0
        super().__init__()  # type: ignore[no-untyped-call]  # Twisted's

    def addPollable(self, pollable: IPollable) -> None:
        """Look at it, until it is removed, or had nothing for long: who is woken then adds it again."""
        self._pollables[pollable] = None
        self._hits.add(pollable.poll)
        if pollable.poll not in self._live:
            self._live[pollable.poll] = pollable
            self._polls = tuple(self._live)

    def removePollable(self, pollable: IPollable) -> None:
        """Don't look any more. Unknown ones are ignored."""
        self._pollables.pop(pollable, None)
        self._hits.discard(pollable.poll)
        if self._live.pop(pollable.poll, None) is not None:
            self._polls = tuple(self._live)

    def doPoll(self, timeout: float | None) -> None:
        """Spin, and if nothing calls us away, sleep."""
        self._rounds += 1
        if self._rounds > _ROUNDS:
            self._sweep()
            timeout = 0 if timeout == 0 or self._calledAway() else self.timeout()
        if not self._live:
            self._wait(timeout)
        elif timeout is not None and timeout <= 0:
            self._look()
            self._wait(0)
        elif not self._spin(timeout):
            self._arm(self._polls)
            if self._look() or self._calledAway():
                self._wait(0)
            else:
                self._wait(self.timeout())

    doIteration = doPoll

    def _wait(self, timeout: float | None) -> None:
        super().doPoll(timeout)  # type: ignore[no-untyped-call]  # Twisted's

    def _spin(self, timeout: float | None) -> bool:
        """Look until nothing was found for a while; True when there is something else to do."""
        now = perf_counter()
        until = now + self._window()
        due = float("inf") if timeout is None else now + timeout
        next = now + _LOOK_SECONDS
        note = self._hits.add
        found = False
        try:
            while now < until:
                hit = False
                try:
                    for _ in _STRIDE:
                        for poll in self._polls:
                            if poll():
                                hit = True
                                note(poll)
                        if hit:
                            break
                except Exception:
                    self._drop(poll)
                now = perf_counter()
                if hit:
                    found = True
                    until = now + self.spinSeconds
                    if self._newTimedCalls or self.threadCallQueue or self._justStopped:
                        if self._calledAway():
                            return True
                if now >= due:
                    return True
                if now >= next:
                    self._wait(0)
                    self._rounds += 1
                    if self._calledAway() or not self._polls or self._rounds > _ROUNDS:
                        return True
                    left = self.timeout()
                    due = float("inf") if left is None else now + left
                    next = now + _LOOK_SECONDS
            return False
        finally:
            self.spins += 1
            if found:
                self.paid += 1
                self._misses = 0
            else:
                self._misses += 1

    def _window(self) -> float:
        """How long to look for the first thing: less, the more often it was in vain."""
        misses = self._misses
        if misses < _PATIENCE or misses % _PROBE == 0:
            return self.spinSeconds
        return self.spinSeconds / (1 << min(misses - _PATIENCE + 1, _LEAST_SHIFT))

    def _look(self) -> bool:
        """Poll each once; tell whether there was anything."""
        found = False
        for poll in self._polls:
            try:
                if poll():
                    found = True
                    self._hits.add(poll)
            except Exception:
                self._drop(poll)
        return found

    def _arm(self, polls: Iterable[_Poll]) -> None:
        """Let the descriptors of what is polled by these wake the reactor."""
        for poll in polls:
            pollable = self._live.get(poll)
            if pollable is not None:
                try:
                    pollable.arm()
                except Exception:
                    self._drop(poll)

    def _sweep(self) -> None:
        """Look no more where nothing was found since the last time, and nothing is once that is armed."""
        quiet = [poll for poll in self._polls if poll not in self._hits]
        self._hits.clear()
        self._rounds = 0
        if quiet:
            self._arm(quiet)
            self._polls = tuple(quiet)
            self._look()
            for poll in quiet:
                if poll not in self._hits:
                    self._live.pop(poll, None)
            self._polls = tuple(self._live)

    def _drop(self, poll: _Poll) -> None:
        """Poll no more what has failed, since it would fail at every look; the failure is logged."""
        _log.failure("The reactor does not look any more at what has failed: {poll!r}", poll=poll)
        for pollable in [each for each in self._pollables if each.poll == poll]:
            self.removePollable(pollable)

    def _calledAway(self) -> bool:
        """Whether the main loop has something to do."""
        if self.threadCallQueue or self._justStopped:
            return True
        left = self.timeout()
        return left is not None and left <= 0


def install() -> None:
    """Make it the process's reactor."""
    installReactor(PollingReactor())
