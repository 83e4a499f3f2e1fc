"""
Sleeping and waking of two processes: the wake words of both rings, and the rings and nudges.

See L{txrdma.soft.shared._layout} for the words, and for the fence between saying and looking.
"""

from __future__ import annotations

from typing import Final

from txrdma.soft.shared._layout import barrier, CLOSED_SERVICES, LaneServices, WAKE, Wake
from txrdma.soft.shared._rings import RingPair

WAKES_SENDER: Final = Wake.SENDS | Wake.ROOM


class Wakeups:
    """
    The causes for which we want to be woken, and those for which the peer was.

    @ivar armed: flags of L{Wake} for what our completion queues wait for; C{room}: for what waits to be sent.
    @ivar isPollNeeded: the peer is to look, even when nobody there waits for messages.
    @ivar wokenReceives: the peer's wake word for which its receives were rung; C{wokenSends}: its sends.
    """

    def __init__(self, rings: RingPair, services: LaneServices) -> None:
        self.armed = 0
        self.room = 0
        self.isPollNeeded = False
        self.wokenReceives = 0
        self.wokenSends = 0
        self._rings = rings
        self._services: LaneServices = services
        self._epoch = 0
        self._nudgedFor = 0  # how far the peer was to come when it was asked to look

    def say(self) -> None:
        """Write our wake word; look at what is waited for once more after this."""
        flags = self.armed | self.room
        self._epoch += 1
        self._rings.localWords[WAKE] = self._epoch << 8 | flags if flags else 0
        barrier()

    def leave(self) -> None:
        """Wake nobody any more: the lane is over."""
        self._services = CLOSED_SERVICES

    def posted(self, solicited: bool) -> None:
        """Wake the peer for what was posted, when it sleeps and wants to be."""
        barrier()
        wake = self._rings.peerWords[WAKE]
        if wake and wake != self.wokenReceives and wake & (3 if solicited else 1):
            self.wokenReceives = wake
            self._services.wakeReceives()
        if self.isPollNeeded and not wake & Wake.RECEIVES:
            self._nudge()
        self.isPollNeeded = False

    def _nudge(self) -> None:
        """Have the peer look, unless it was asked before and has not looked since: it will find all."""
        rings = self._rings
        rings.readAcknowledged()
        if rings.acknowledged >= self._nudgedFor:
            self._nudgedFor = rings.produced
            self._services.nudge()

    def consumed(self) -> None:
        """Wake the peer's sender, when it sleeps and wants to know how far we are."""
        barrier()
        wake = self._rings.peerWords[WAKE]
        if wake & WAKES_SENDER and wake != self.wokenSends:
            self.wokenSends = wake
            if wake & Wake.SENDS:
                self._services.wakeSends()
            if wake & Wake.ROOM:
                self._services.nudge()
