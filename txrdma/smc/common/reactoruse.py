"""
Use of a reactor by SMC: readers and delayed calls of SMC stay on a reactor only while SMC is in use.

Listening ports, handshakes and connections each hold a L{Use}. When the last one is released, link groups are
suspended: they leave the reactor with all readers and delayed calls, so that a test suite that is clean over
TCP is clean over SMC. The next use resumes them, even if other code has removed everything from the reactor
meanwhile.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import Any, Final, Protocol
from weakref import ref, WeakKeyDictionary

from zope.interface import implementer

from twisted.internet.interfaces import IReactorFDSet, IReactorTime, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.kit.logs import errorText, RateLimitedLogger
from txrdma.unix.sockets import unlessLast

_rateLimited = RateLimitedLogger(Logger())

_FEW: Final = 8
"""Up to this number of uses, each new one checks the readers: test suites with few uses remove them."""

_CHECK_SECONDS: Final = 1e-3
"""With more uses, seconds between checks per use: services with many uses do not remove readers."""


class Suspendable(Protocol):
    """
    A part of SMC that is on the reactor only while SMC is in use there: link groups, the TCP option.

    @ivar isBusy: the part is processing, and calls L{ReactorUse.settle} at the end.
    """

    @property
    def isBusy(self) -> bool: ...

    def rest(self) -> None:
        """Leave the reactor. Idempotent."""

    def wake(self) -> None:
        """Return to the reactor. Idempotent."""


class Use:
    """A use of SMC on a reactor; C{readersRemoved} is called when other code has removed all readers."""

    __slots__ = ("_reactorUse", "readersRemoved")

    def __init__(self, uses: ReactorUse, readersRemoved: Callable[[], None]) -> None:
        self._reactorUse = uses
        self.readersRemoved = readersRemoved

    def passOn(self, readersRemoved: Callable[[], None]) -> Use:
        """Pass the use to a new owner. Return it, or a new use if all readers have been removed meanwhile."""
        if not self._reactorUse.has(self):
            return self._reactorUse.hold(readersRemoved)
        self.readersRemoved = readersRemoved
        return self

    def release(self) -> None:
        self._reactorUse.release(self)


@implementer(IReadDescriptor)
class Sentinel:
    """
    A reader that is never ready, on the reactor as long as SMC is in use there.

    If it is missing, other code has removed all readers. Other readers can't show that, since they also leave
    the reactor when a peer closes or a program pauses.
    """

    def __init__(self, reactor: IReactorFDSet) -> None:
        """@raise OSError: no descriptor would be left for a connection."""
        self._reactor = reactor
        unbound = socket.socket(socket.AF_INET, socket.SOCK_DGRAM)
        self._socket: socket.socket | None = unlessLast(unbound)
        reactor.addReader(self)

    def fileno(self) -> int:
        return -1 if self._socket is None else self._socket.fileno()

    def logPrefix(self) -> str:
        return "smc"

    def doRead(self) -> None:
        """Do nothing: the descriptor never becomes readable."""

    def connectionLost(self, reason: Failure) -> None:
        self.close()

    def isOnReactor(self) -> bool:
        return self in self._reactor.getReaders()

    def close(self) -> None:
        if self._socket is not None:
            self._reactor.removeReader(self)
            self._socket.close()
            self._socket = None


class ReactorUse:
    """
    The uses of SMC on one reactor.

    @ivar isIdle: there are no uses.
    @ivar isDue: there are no uses any more, and some parts are not suspended yet.
    @ivar isEnding: the process is ending, so the reactor itself removes everything.
    """

    def __init__(self, reactor: object) -> None:
        self.isIdle = True
        self.isDue = False
        self.isEnding = False
        self._reactor = ref(reactor)
        self._hasTime = IReactorTime.providedBy(reactor)
        self._uses: dict[Use, None] = {}
        self._parts: dict[Suspendable, Callable[[], None]] = {}
        self._checkedAt = -inf
        self._sentinel: Sentinel | None = None

    def hold(self, readersRemoved: Callable[[], None] = lambda: None) -> Use:
        """Begin a use; C{readersRemoved} is called when other code has removed all readers."""
        use = Use(self, readersRemoved)
        now = self._seconds()
        count = len(self._uses)
        if count < _FEW or now - self._checkedAt > count * _CHECK_SECONDS:
            self._checkedAt = now
            self._checkReaders()
            self.isIdle = self.isDue = False
            for part in list(self._parts):
                part.wake()
        self._uses[use] = None
        return use

    def _seconds(self) -> float:
        """Return the reactor's time, so that simulations are repeatable."""
        reactor: Any = self._reactor()
        return reactor.seconds() if reactor is not None and self._hasTime else monotonic()

    def has(self, use: Use) -> bool:
        return use in self._uses

    def release(self, use: Use) -> None:
        if use in self._uses:
            del self._uses[use]
            self.isIdle = self.isDue = not self._uses
            if self.isIdle:
                self._closeSentinel()
            self.settle()

    def rouse(self) -> None:
        """Resume all parts until pending work is done, although there are no uses."""
        if self.isIdle and not self.isEnding:
            self.isDue = True
            for part in list(self._parts):
                part.wake()

    def _checkReaders(self) -> None:
        """End all uses if other code has removed all readers from the reactor; install a sentinel."""
        sentinel = self._sentinel
        if self.isEnding or (sentinel is not None and sentinel.isOnReactor()):
            return
        if sentinel is not None:
            self._closeSentinel()
            uses, self._uses = list(self._uses), {}
            for use in uses:
                use.readersRemoved()
            for readersRemoved in list(self._parts.values()):
                readersRemoved()
        reactor = self._reactor()
        if IReactorFDSet.providedBy(reactor):
            try:
                self._sentinel = Sentinel(IReactorFDSet(reactor))
            except OSError as error:
                _rateLimited.warn(
                    "sentinel",
                    "SMC can't detect whether other code removes its readers from the reactor: {error}",
                    error=errorText(error),
                )

    def _closeSentinel(self) -> None:
        sentinel, self._sentinel = self._sentinel, None
        if sentinel is not None:
            sentinel.close()

    def add(self, part: Suspendable, readersRemoved: Callable[[], None] = lambda: None) -> None:
        """Add a part; C{readersRemoved} is called when other code has removed all readers."""
        self._parts[part] = readersRemoved

    def remove(self, part: Suspendable) -> None:
        self._parts.pop(part, None)

    def settle(self) -> None:
        """Suspend all parts if there are no uses, as soon as no part is busy."""
        if self.isDue and not any(part.isBusy for part in self._parts):
            self.isDue = False
            for part in list(self._parts):
                part.rest()


_uses: WeakKeyDictionary[object, ReactorUse] = WeakKeyDictionary()


def reactorUse(reactor: object) -> ReactorUse:
    """Return the uses of SMC on a reactor."""
    uses = _uses.get(reactor)
    if uses is None:
        uses = _uses[reactor] = ReactorUse(reactor)
    return uses
