"""Ctrl-C during long operations whose results are printed nevertheless, and during steps that block."""

from __future__ import annotations

import signal
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, ExitStack
from types import FrameType

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorCore, IReactorThreads


class StopHandler:
    """
    Handler of the signals that stop a command: calls a function in the reactor's next iteration.

    @ivar pending: signals for which the function has not been called yet.
    """

    def __init__(self, reactor: IReactorThreads, stop: Callable[[int], object]) -> None:
        self._reactor, self._stop = reactor, stop
        self.pending: list[int] = []

    def __call__(self, number: int, frame: FrameType | None) -> None:
        self.pending.append(number)
        self._reactor.callFromThread(self._handle, number)

    def _handle(self, number: int) -> None:
        self.pending.remove(number)
        self._stop(number)


@contextmanager
def endedBySignals() -> Iterator[None]:
    """
    End the command by SIGINT, SIGTERM or SIGHUP during a step that blocks the reactor.

    Such a step reads from a terminal, or a file that may be a pipe whose writer does not write. It does not
    begin if the reactor has not handled an earlier signal yet.
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
                    if isinstance(usual, StopHandler) and usual.pending:
                        raise SystemExit(128 + usual.pending[0])
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
