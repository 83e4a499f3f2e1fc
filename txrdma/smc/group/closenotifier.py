"""
Calls C{connectionLost} of applications when the reactor polls its descriptors next, as for TCP.

A TCP transport reports its end from C{doRead} or C{doWrite}, and one read returns either data or the end. So
C{callLater(0)} calls that a protocol makes in C{loseConnection} or with its last data run before
C{connectionLost}. A link may process data, the end and a local close at once, even in a delayed call. Delayed
calls run before descriptors are polled, so an always-ready reader is added by another delayed call.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

from zope.interface import implementer

from twisted.internet.interfaces import IReactorFDSet, IReactorTime, IReadDescriptor
from twisted.logger import Logger, LogLevel
from twisted.python.failure import Failure

from txrdma.kit.delayedcalls import Timer
from txrdma.kit.logs import RateLimitedLogger

_log = Logger()
_rateLimited = RateLimitedLogger(_log)


class NotifierReactor(IReactorFDSet, IReactorTime):
    """Interfaces of the reactor that a notifier needs."""


@implementer(IReadDescriptor)
class CloseNotifier:
    """Calls C{connectionLost} when the reactor polls next; C{isPrompt}: immediately, as the reactor stops."""

    def __init__(self, reactor: NotifierReactor) -> None:
        self.isPrompt = False
        self._reactor = reactor
        self._waiting: deque[Callable[[], None]] = deque()
        self._descriptor = -1
        self._timer = Timer(reactor)

    def add(self, notify: Callable[[], None]) -> None:
        """Call a function when the reactor polls its descriptors next; its exceptions are logged."""
        self._waiting.append(notify)
        if self.isPrompt or not self._isOpen():
            self.notify()
        else:
            self._timer.ensure(0, self._watch)

    def _watch(self) -> None:
        try:
            self._reactor.addReader(self)  # again: other code may have removed all readers
        except Exception:  # such as ENOSPC of epoll, for each connection that ends
            text = "the ends of SMC-R connections are reported at once, as their reader can't be added"
            _rateLimited.emit(LogLevel.critical, "reader", text, log_failure=Failure())
            self.notify()

    def _isOpen(self) -> bool:
        if self._descriptor < 0:
            try:
                self._descriptor = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            except Exception:
                return False  # the process has no descriptor left, or no eventfd
        return True

    def notify(self) -> None:
        """Make all pending notifications now; those queued meanwhile wait for the next poll."""
        if self._descriptor >= 0:
            self._reactor.removeReader(self)
        self._timer.stop()
        waiting, self._waiting = self._waiting, deque()
        while waiting:
            try:
                waiting.popleft()()
            except BaseException:
                _log.failure("Error while reporting the end of an SMC-R connection")

    def close(self) -> None:
        """Make all pending notifications, and close the descriptor. Idempotent."""
        self.notify()
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    # IReadDescriptor

    def fileno(self) -> int:
        return self._descriptor

    def logPrefix(self) -> str:
        return "smc"

    def doRead(self) -> None:
        self.notify()

    def connectionLost(self, reason: Failure) -> None:
        self.isPrompt = True
        self.notify()
