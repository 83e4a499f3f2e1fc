"""
Ends of connections, told to their applications in the reactor's next look at its descriptors.

A TCP transport that is to close is asked by that look, and one read brings data or an end, not both. So
calls that a protocol delays by no time while it asks for the end, or is given the last data, run before it
hears C{connectionLost}. Here data, its end and our own close may be one turn of a link. That may be
a delayed call itself, and those come before the look: so the reader is added by another one.
"""

from __future__ import annotations

import os
from collections import deque
from collections.abc import Callable

from zope.interface import implementer

from twisted.internet.interfaces import IDelayedCall, IReactorFDSet, IReactorTime, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure

_log = Logger()


class NotifierReactor(IReactorFDSet, IReactorTime):
    """The interfaces of a reactor that ends are told by."""


@implementer(IReadDescriptor)
class CloseNotifier:
    """
    The ends on one reactor that are still to be told: a reader that is always ready, while there are any.

    @ivar isPrompt: the process ends, and its reactor looks at no descriptor any more: each is told at once.
    """

    def __init__(self, reactor: NotifierReactor) -> None:
        self.isPrompt = False
        self._reactor = reactor
        self._waiting: deque[Callable[[], None]] = deque()
        self._descriptor = -1
        self._call: IDelayedCall | None = None

    def add(self, tell: Callable[[], None]) -> None:
        """Call it in the reactor's next look at its descriptors; it never raises."""
        self._waiting.append(tell)
        if self.isPrompt or not self._isOpen():
            self.tell()
        elif self._call is None or not self._call.active():  # somebody may have cancelled all calls
            self._call = self._reactor.callLater(0, self._watch)

    def _watch(self) -> None:
        self._call = None
        self._reactor.addReader(self)  # again: somebody may have removed everything

    def _isOpen(self) -> bool:
        if self._descriptor < 0:
            try:
                self._descriptor = os.eventfd(1, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
            except OSError:
                return False  # the process has no descriptor left
        return True

    def tell(self) -> None:
        """Tell all ends that wait, now."""
        if self._descriptor >= 0:
            self._reactor.removeReader(self)
        call, self._call = self._call, None
        if call is not None and call.active():
            call.cancel()
        waiting, self._waiting = self._waiting, deque()
        while waiting:
            with _log.failuresHandled("Error while an SMC-R connection ended"):
                waiting.popleft()()

    def close(self) -> None:
        """Tell all ends, and let go of the descriptor. Twice is fine."""
        self.tell()
        descriptor, self._descriptor = self._descriptor, -1
        if descriptor >= 0:
            os.close(descriptor)

    # IReadDescriptor

    def fileno(self) -> int:
        """The descriptor of an event that has always happened; -1 when there is none."""
        return self._descriptor

    def logPrefix(self) -> str:
        """The log prefix of the ends."""
        return "smc"

    def doRead(self) -> None:
        """Tell all ends that there are; those that come of it are told in the next look."""
        self.tell()

    def connectionLost(self, reason: Failure) -> None:
        """The reactor has ended: nobody looks at descriptors any more."""
        self.isPrompt = True
        self.tell()
