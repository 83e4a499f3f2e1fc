"""
The presence of SMC on a reactor: when no part of it is in use, no part of it stays there.

Ports that listen, handshakes and connections hold the presence of their reactor. When the last of these has
gone, link groups rest: they leave the reactor with all readers and delayed calls, so that a test suite that
is clean over TCP is clean over SMC. The next use wakes them, also when somebody has removed everything from
the reactor meanwhile.
"""

from __future__ import annotations

import os
from collections.abc import Callable
from math import inf
from time import monotonic
from typing import cast, Final, Protocol
from weakref import ref, WeakKeyDictionary

from zope.interface import implementer

from twisted.internet.interfaces import IReactorFDSet, IReactorTime, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.kit.logs import Seldom

_seldom = Seldom(Logger())

_FEW: Final = 8
"""
The uses that a test may leave: up to so many, each new one makes sure that all is on the reactor.

A suite has few connections, and may remove everything between two of them.
"""

_LOOK_SECONDS: Final = 1e-3
"""With more uses that is done so often, for each of them: a service has many, and removes nothing."""


class Suspendable(Protocol):
    """
    A part of SMC that is on the reactor only while SMC is in use there, such as a link group.

    @ivar isBusy: it is in a turn of its own, at whose end it calls L{ReactorUse.settle}.
    """

    @property
    def isBusy(self) -> bool: ...

    def rest(self) -> None:
        """Leave the reactor. Twice is fine."""

    def wake(self) -> None:
        """Be part of the reactor, again or still."""


class Use:
    """
    A use of SMC on a reactor: a port, a handshake, a connection.

    @ivar swept: called when somebody has removed everything from the reactor, and told nobody.
    """

    __slots__ = ("_reactorUse", "swept")

    def __init__(self, presence: ReactorUse, swept: Callable[[], None]) -> None:
        self._reactorUse = presence
        self.swept = swept

    def passOn(self, swept: Callable[[], None]) -> Use:
        """
        Go on as the use of something else, for which a new use would begin where this one ends.

        @param swept: of the other.
        @return: this use; a new one where somebody has removed everything from the reactor since.
        """
        if not self._reactorUse.has(self):
            return self._reactorUse.hold(swept)
        self.swept = swept
        return self

    def release(self) -> None:
        """End the use. Twice is fine."""
        self._reactorUse.release(self)


@implementer(IReadDescriptor)
class Sentinel:
    """
    A reader that is never ready, on the reactor as long as SMC is in use there.

    If it is missing, somebody has removed everything. Readers of connections and ports tell nothing of that:
    they leave the reactor when a peer has closed, or a program pauses.
    """

    def __init__(self, reactor: IReactorFDSet) -> None:
        self._reactor = reactor
        self._descriptor = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        reactor.addReader(self)

    def fileno(self) -> int:
        """The descriptor of an event that never happens; -1 when the sentinel is closed."""
        return self._descriptor

    def logPrefix(self) -> str:
        """The log prefix of the sentinel."""
        return "smc"

    def doRead(self) -> None:
        """There is never anything to read."""

    def connectionLost(self, reason: Failure) -> None:
        """The reactor has ended: it has no more need of the sentinel."""
        self.close()

    def isOnDuty(self) -> bool:
        """Whether the reactor still has the sentinel."""
        return self in self._reactor.getReaders()

    def close(self) -> None:
        """Leave the reactor. Twice is fine."""
        descriptor = self._descriptor
        if descriptor >= 0:
            self._reactor.removeReader(self)
            self._descriptor = -1
            os.close(descriptor)


class ReactorUse:
    """
    The uses of SMC on one reactor.

    @ivar isIdle: nobody uses it.
    @ivar isDue: nobody uses it any more, and some sleepers do not rest yet.
    @ivar isEnding: the process ends, and so its reactor itself removes everything.
    """

    def __init__(self, reactor: object) -> None:
        self.isIdle = True
        self.isDue = False
        self.isEnding = False
        self._reactor = ref(reactor)
        self._hasTime = IReactorTime.providedBy(reactor)
        self._uses: dict[Use, None] = {}
        self._sleepers: dict[Suspendable, None] = {}
        self._lookedAt = -inf
        self._sentinel: Sentinel | None = None

    def hold(self, swept: Callable[[], None] = lambda: None) -> Use:
        """
        Use SMC from now on, until C{release}.

        @param swept: called when somebody has removed everything from the reactor, and told nobody.
        """
        use = Use(self, swept)
        now = self._seconds()
        count = len(self._uses)
        if count < _FEW or now - self._lookedAt > count * _LOOK_SECONDS:
            self._lookedAt = now
            self._sweep()
            self.isIdle = self.isDue = False
            for sleeper in list(self._sleepers):
                sleeper.wake()
        self._uses[use] = None
        return use

    def _seconds(self) -> float:
        """The reactor's time, so that what is simulated repeats itself."""
        reactor = self._reactor()
        return cast(IReactorTime, reactor).seconds() if reactor is not None and self._hasTime else monotonic()

    def has(self, use: Use) -> bool:
        """Whether a use has not ended."""
        return use in self._uses

    def release(self, use: Use) -> None:
        """End a use. Twice is fine."""
        if use in self._uses:
            del self._uses[use]
            self.isIdle = self.isDue = not self._uses
            if self.isIdle:
                self._dismiss()
            self.settle()

    def rouse(self) -> None:
        """A sleeper has something to do though nobody uses SMC: all are awake until it is done."""
        if self.isIdle and not self.isEnding:
            self.isDue = True
            for sleeper in list(self._sleepers):
                sleeper.wake()

    def _sweep(self) -> None:
        """
        See whether somebody has removed everything from the reactor: nothing of that is in use now.

        A sentinel sees to it from now on.
        """
        sentinel = self._sentinel
        if self.isEnding or (sentinel is not None and sentinel.isOnDuty()):
            return
        if sentinel is not None:
            self._dismiss()
            swept, self._uses = list(self._uses), {}
            for use in swept:
                use.swept()
        reactor = self._reactor()
        if IReactorFDSet.providedBy(reactor):
            try:
                self._sentinel = Sentinel(IReactorFDSet(reactor))
            except OSError as error:
                _seldom.warn("sentinel", "can't watch for what removes our readers: {error}", error=error)

    def _dismiss(self) -> None:
        """Close the sentinel, if there is one."""
        sentinel, self._sentinel = self._sentinel, None
        if sentinel is not None:
            sentinel.close()

    def add(self, sleeper: Suspendable) -> None:
        """A sleeper has woken up. Twice is fine."""
        self._sleepers[sleeper] = None

    def remove(self, sleeper: Suspendable) -> None:
        """A sleeper is gone. Unknown ones are ignored."""
        self._sleepers.pop(sleeper, None)

    def settle(self) -> None:
        """If nobody uses SMC, all rest, as soon as none is in the middle of something."""
        if self.isDue and not any(sleeper.isBusy for sleeper in self._sleepers):
            self.isDue = False
            for sleeper in list(self._sleepers):
                sleeper.rest()


_presences: WeakKeyDictionary[object, ReactorUse] = WeakKeyDictionary()


def reactorUse(reactor: object) -> ReactorUse:
    """The presence of SMC on a reactor."""
    presence = _presences.get(reactor)
    if presence is None:
        presence = _presences[reactor] = ReactorUse(reactor)
    return presence
