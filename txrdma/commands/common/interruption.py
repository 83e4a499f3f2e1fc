"""Ctrl-C during long operations whose results are printed nevertheless, and during steps that block."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, ExitStack
from types import FrameType

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorCore


@contextmanager
def endedBySignals() -> Iterator[None]:
    """
    End the command by SIGINT, SIGTERM or SIGHUP during a step that blocks the reactor.

    Such a step reads from a terminal, or a file that may be a pipe whose writer does not write.
    """

    def end(number: int, frame: FrameType | None) -> None:
        raise SystemExit(128 + number)

    with ExitStack() as restoring:
        if threading.current_thread() is threading.main_thread():  # others can't change handlers
            for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
                usual = signal.getsignal(number)
                if usual not in (signal.SIG_IGN, None):
                    restoring.callback(signal.signal, number, usual)
                    signal.signal(number, end)
        yield


class Interruption:
    """
    Handles Ctrl-C during a long operation: delays the reactor's shutdown until the results are printed.

    @ivar has: whether Ctrl-C was received.
    @ivar then: called at Ctrl-C.
    """

    def __init__(self, reactor: IReactorCore) -> None:
        self._reactor = reactor
        self._over: Deferred[None] = Deferred()
        self._trigger: object = None
        self.has = False
        self.then: Callable[[], object] = lambda: None

    async def __aenter__(self) -> Interruption:
        self._trigger = self._reactor.addSystemEventTrigger("before", "shutdown", self._interrupted)
        return self

    async def __aexit__(self, *reason: object) -> None:
        if not self.has:
            self._reactor.removeSystemEventTrigger(self._trigger)
        self._over.callback(None)

    def _interrupted(self) -> Deferred[None]:
        self.has = True
        self.then()
        return self._over
