"""
The peers that did not answer a handshake of late: their next connections are plain TCP at once.

A handshake that nobody answers costs seconds. It costs them once: after that, whoever connects to the same
peer does not ask, for a while; then one connection asks again, and the others wait for what comes of it.
"""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Final
from weakref import WeakKeyDictionary

from twisted.logger import Logger

from txrdma.smc.signalling.owners import Place

_log = Logger()

SPAN: Final = 60.0
"""Seconds for which a peer that did not answer is not asked."""

TRIAL: Final = 15.0
"""Seconds for which nobody else asks while one connection does: more than a handshake may take."""

MOST: Final = 1024
"""The most peers that are remembered as silent."""


class SilentPeers:
    """The peers that did not answer; by their TCP addresses, or whatever else tells peers apart."""

    def __init__(self) -> None:
        self._until: dict[Hashable, float] = {}

    def isSilent(self, peer: Hashable, now: float) -> bool:
        """Whether a peer is not to be asked at present."""
        return now < self._until.get(peer, now)

    def ask(self, peer: Hashable, now: float) -> None:
        """A connection asks a peer; others do not before it is known what comes of it, if that was silent."""
        if peer in self._until:
            self._until[peer] = now + TRIAL

    def timedOut(self, peer: Hashable, now: float) -> bool:
        """
        A peer has not answered.

        @return: whether that is news.
        """
        isNews = self._until.pop(peer, None) is None
        if len(self._until) >= MOST:
            del self._until[next(iter(self._until))]  # the one that has been there longest
        self._until[peer] = now + SPAN
        return isNews

    def answered(self, peer: Hashable) -> None:
        """A peer has answered a handshake, whatever it said."""
        self._until.pop(peer, None)

    def remaining(self, now: float) -> Iterator[tuple[Hashable, float]]:
        """The peers that are not asked at present, and the seconds until one connection may."""
        for peer, until in self._until.items():
            if now < until:
                yield peer, until - now


_ofReactor: WeakKeyDictionary[object, SilentPeers] = WeakKeyDictionary()


def silentPeers(reactor: object) -> SilentPeers:
    """The silent peers of the connections that a reactor makes."""
    return _ofReactor.setdefault(reactor, SilentPeers())


def logUnresponsivePeer(reactor: object, peer: Place, now: float) -> None:
    """Record that a peer did not answer a CLC message; log it when it is new."""
    if silentPeers(reactor).timedOut(peer, now):
        _log.info("{peer} answers no CLC message: plain TCP to it for {seconds:g} s", peer=peer, seconds=SPAN)
