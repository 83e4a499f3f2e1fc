"""
A reactor that busy-polls completion queues before it sleeps.

A wakeup takes tens of microseconds, shared memory takes one. So while messages arrive in quick succession,
this reactor does not sleep, but spins over the pollables for a bounded time. When spinning finds nothing it
spins less and less, with a full try at intervals; an idle process sleeps as on any other reactor.

A pollable without results for a while is armed, and not polled until its descriptor wakes: of a thousand link
groups only the active ones are polled.
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
from txrdma.kit.twistedprivate import require

_log = Logger()

require(__name__)

SPIN_SECONDS: Final = 100e-6
_CHECK_SECONDS: Final = 50e-6
_EMPTY_POLLS: Final = 4
_LEAST_SHIFT: Final = 5
_PROBE: Final = 16
_STRIDE: Final = range(16)
_ROUNDS: Final = 128
"""Spins (long ones count several times) after which pollables without results are only armed."""

_Poll = Callable[[], bool]


@implementer(IReactorPolling)
class PollingReactor(EPollReactor):
    """
    A reactor on epoll(7) that spins for a while before it sleeps.

    @ivar spinSeconds: maximum seconds to spin after the last result.
    """

    def __init__(self) -> None:
        self._pollables: dict[IPollable, None] = {}
        # Pollables that are polled; the others are armed.
        self._live: dict[_Poll, IPollable] = {}
        self._polls: tuple[_Poll, ...] = ()
        self._hits: set[_Poll] = set()
        self._rounds = 0
        self._misses = 0
        self.spinSeconds = SPIN_SECONDS
        super().__init__()  # type: ignore[no-untyped-call]  # Twisted's

    def addPollable(self, pollable: IPollable) -> None:
        self._pollables[pollable] = None
        self._hits.add(pollable.poll)
        if pollable.poll not in self._live:
            self._live[pollable.poll] = pollable
            self._polls = tuple(self._live)

    def removePollable(self, pollable: IPollable) -> None:
        self._pollables.pop(pollable, None)
        self._hits.discard(pollable.poll)
        if self._live.pop(pollable.poll, None) is not None:
            self._polls = tuple(self._live)

    def doPoll(self, timeout: float | None) -> None:
        """Spin, then sleep unless the main loop has work."""
        self._rounds += 1
        if self._rounds > _ROUNDS:
            self._sweep()
            timeout = 0 if timeout == 0 or self._calledAway() else self.timeout()
        if not self._live:
            self._wait(timeout)
        elif timeout is not None and timeout <= 0:
            self._pollSources()
            self._wait(0)
        elif not self._spin(timeout):
            self._arm(self._polls)
            if self._pollSources() or self._calledAway():
                self._wait(0)
            else:
                self._wait(self.timeout())

    doIteration = doPoll

    def _wait(self, timeout: float | None) -> None:
        super().doPoll(timeout)  # type: ignore[no-untyped-call]  # Twisted's

    def _spin(self, timeout: float | None) -> bool:
        """Poll until nothing was found for a while; return True if the main loop has work."""
        now = perf_counter()
        until = now + self._window()
        due = float("inf") if timeout is None else now + timeout
        next = now + _CHECK_SECONDS
        note = self._hits.add
        found = False
        try:
            while now < until:
                hit = False
                try:
                    # Several rounds for each reading of the clock.
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
                    # A handler may have scheduled work: C{timeout} is called only then.
                    if self._newTimedCalls or self.threadCallQueue or self._justStopped:
                        if self._calledAway():
                            return True
                if now >= due:
                    return True
                # At intervals also wait for events of sockets and other descriptors, without sleeping.
                if now >= next:
                    self._wait(0)
                    self._rounds += 1
                    if self._calledAway() or not self._polls or self._rounds > _ROUNDS:
                        return True
                    left = self.timeout()
                    due = float("inf") if left is None else now + left
                    next = now + _CHECK_SECONDS
            return False
        finally:
            self._misses = 0 if found else self._misses + 1

    def _window(self) -> float:
        """Return the seconds to spin without a result: less after each spin without one."""
        misses = self._misses
        if misses < _EMPTY_POLLS or misses % _PROBE == 0:
            return self.spinSeconds
        return self.spinSeconds / (1 << min(misses - _EMPTY_POLLS + 1, _LEAST_SHIFT))

    def _pollSources(self) -> bool:
        """Poll each source once; return whether there was a result."""
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
        """Arm the pollables of these sources, so that their descriptors wake the reactor."""
        for poll in polls:
            pollable = self._live.get(poll)
            if pollable is not None:
                try:
                    pollable.arm()
                except Exception:
                    self._drop(poll)

    def _sweep(self) -> None:
        """Arm pollables without results since the last sweep, and stop polling those that are still empty."""
        quiet = [poll for poll in self._polls if poll not in self._hits]
        self._hits.clear()
        self._rounds = 0
        if quiet:
            self._arm(quiet)
            self._polls = tuple(quiet)
            self._pollSources()
            for poll in quiet:
                if poll not in self._hits:
                    self._live.pop(poll, None)
            self._polls = tuple(self._live)

    def _drop(self, poll: _Poll) -> None:
        """Remove a pollable that has raised, and log the failure."""
        _log.failure("Unexpected error: the reactor stops polling {poll!r}", poll=poll)
        for pollable in [each for each in self._pollables if each.poll == poll]:
            self.removePollable(pollable)

    def _calledAway(self) -> bool:
        """Return whether the main loop has work."""
        if self.threadCallQueue or self._justStopped:
            return True
        left = self.timeout()
        return left is not None and left <= 0


def install() -> None:
    """Install this reactor as the process's reactor."""
    installReactor(PollingReactor())
