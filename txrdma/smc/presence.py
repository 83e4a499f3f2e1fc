"""
What of SMC is in use on a reactor; when nothing is, nothing of it stays there.

Ports that listen, handshakes and connections hold the presence of their reactor. When the last of these has
gone, link groups rest: they leave the reactor with all readers and delayed calls, so that a test suite that
is clean over TCP is clean over SMC. The next use wakes them, also when somebody has removed everything from
the reactor meanwhile.
"""

from __future__ import annotations

from collections.abc import Callable
from time import monotonic
from typing import Final, Protocol
from weakref import ref, WeakKeyDictionary

from twisted.internet.interfaces import IReactorFDSet

_LOOK_SECONDS: Final = 1e-3
"""
How often, for each use, everything is made sure to be on the reactor: a suite has few connections and may
remove everything between two of them, a service has many and does not.
"""


class Sleeper(Protocol):
    """
    What is on the reactor only while SMC is in use there.

    @ivar isBusy: it is in a turn of its own, at whose end it calls L{Presence.settle}.
    """

    @property
    def isBusy(self) -> bool: ...

    def rest(self) -> None:
        """Leave the reactor. Twice is fine."""

    def wake(self) -> None:
        """Be part of the reactor, again or still."""


class Use:
    """
    One use of SMC: a port, a handshake, a connection.

    @ivar anchor: what the use has among the reactor's readers as long as it is in order; None where that may
        change.
    @ivar swept: called when somebody has removed everything from the reactor, and told nobody.
    """

    __slots__ = ("_presence", "anchor", "swept")

    def __init__(self, presence: Presence, anchor: object | None, swept: Callable[[], None]) -> None:
        self._presence = presence
        self.anchor = anchor
        self.swept = swept

    def release(self) -> None:
        """End the use. Twice is fine."""
        self._presence.release(self)


class Presence:
    """
    The uses of SMC on one reactor.

    @ivar isIdle: nobody uses it.
    @ivar isDue: nobody uses it any more, and some sleepers do not rest yet.
    """

    def __init__(self, reactor: object) -> None:
        self.isIdle = True
        self.isDue = False
        self._reactor = ref(reactor)
        self._uses: dict[Use, None] = {}
        self._sleepers: dict[Sleeper, None] = {}
        self._lookedAt = 0.0

    def hold(self, anchor: object | None = None, swept: Callable[[], None] = lambda: None) -> Use:
        """Use SMC from now on, until C{release}: see L{Use}."""
        use = Use(self, anchor, swept)
        now = monotonic()
        if self.isIdle or now - self._lookedAt > len(self._uses) * _LOOK_SECONDS:
            self._lookedAt = now
            if not self.isIdle:
                self._sweep()
            self.isIdle = self.isDue = False
            for sleeper in list(self._sleepers):
                sleeper.wake()
        self._uses[use] = None
        return use

    def release(self, use: Use) -> None:
        """End a use. Twice is fine."""
        if use in self._uses:
            del self._uses[use]
            self.isIdle = self.isDue = not self._uses
            self.settle()

    def _sweep(self) -> None:
        """See whether somebody has removed everything from the reactor: nothing of that is in use now."""
        reactor = self._reactor()
        anchors = {use.anchor for use in self._uses if use.anchor is not None}
        if anchors and IReactorFDSet.providedBy(reactor):
            if anchors.isdisjoint(IReactorFDSet(reactor).getReaders()):
                swept, self._uses = list(self._uses), {}
                for use in swept:
                    use.swept()

    def add(self, sleeper: Sleeper) -> None:
        """A sleeper has woken up. Twice is fine."""
        self._sleepers[sleeper] = None

    def remove(self, sleeper: Sleeper) -> None:
        """A sleeper is gone. Unknown ones are ignored."""
        self._sleepers.pop(sleeper, None)

    def settle(self) -> None:
        """If nobody uses SMC, all rest, as soon as none is in the middle of something."""
        if self.isDue and not any(sleeper.isBusy for sleeper in self._sleepers):
            self.isDue = False
            for sleeper in list(self._sleepers):
                sleeper.rest()


_presences: WeakKeyDictionary[object, Presence] = WeakKeyDictionary()


def presenceOn(reactor: object) -> Presence:
    """The presence of SMC on a reactor."""
    presence = _presences.get(reactor)
    if presence is None:
        presence = _presences[reactor] = Presence(reactor)
    return presence
