"""
Peers that did not answer a recent handshake: their next connections use plain TCP at once.

A handshake without an answer costs seconds. After one, connections to the same peer do not try SMC for a
while; then a single connection tries again, and the others wait for its result.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final
from weakref import WeakKeyDictionary

from twisted.logger import Logger

from txrdma.smc.signalling.owners import TCPAddress

_log = Logger()

SPAN: Final = 60.0
"""Seconds for which SMC is not tried with a peer that did not answer."""

TRIAL: Final = 15.0
"""Seconds for which other connections wait while one tries SMC: longer than a handshake may take."""

MOST: Final = 1024
"""Largest number of silent peers that are stored."""


class SilentPeers:
    """Peers that did not answer, by TCP address or another key."""

    def __init__(self) -> None:
        self._until: dict[Hashable, float] = {}

    def isSilent(self, peer: Hashable, now: float) -> bool:
        """Return whether SMC must not be tried with a peer now."""
        return self._isFuture(self._until.get(peer, now), now)

    def _isFuture(self, until: float, now: float) -> bool:
        """Return whether a silence continues; not if the clock was set back since it began."""
        return 0 < until - now < SPAN + 1.0  # one more second, since times are rounded

    def query(self, peer: Hashable, now: float) -> None:
        """Record that a connection tries SMC; if the peer was silent, others wait for the result."""
        if peer in self._until:
            self._until[peer] = now + TRIAL

    def timedOut(self, peer: Hashable, now: float) -> bool:
        """Record that a peer did not answer; return whether it was not silent before."""
        isNews = self._until.pop(peer, None) is None
        if len(self._until) >= MOST:
            del self._until[next(iter(self._until))]  # the oldest one
        self._until[peer] = now + SPAN
        return isNews

    def answered(self, peer: Hashable) -> None:
        self._until.pop(peer, None)

    def remaining(self, now: float) -> Iterator[tuple[Hashable, float]]:
        """Yield the silent peers, and the seconds until each may be tried again."""
        for peer, until in self._until.items():
            if self._isFuture(until, now):
                yield peer, until - now


_ofReactor: WeakKeyDictionary[object, SilentPeers] = WeakKeyDictionary()


def silentPeers(reactor: object) -> SilentPeers:
    """Return the silent peers of the connections that a reactor makes."""
    found = _ofReactor.get(reactor)
    if found is None:
        found = _ofReactor[reactor] = SilentPeers()
    return found


def logUnresponsivePeer(reactor: object, peer: TCPAddress, now: float) -> None:
    """Record that a peer did not answer a CLC message; log it if it was not silent before."""
    if silentPeers(reactor).timedOut(peer, now):
        _log.info("{peer} answers no CLC message: plain TCP to it for {seconds:g} s", peer=peer, seconds=SPAN)
