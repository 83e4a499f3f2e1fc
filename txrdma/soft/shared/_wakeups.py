"""
Sleeping and waking of the two processes of a lane: wake words, doorbells and nudges.

L{txrdma.soft.shared._layout} explains the words and their fences.
"""

from __future__ import annotations

from typing import Final

from txrdma.soft.shared._layout import CLOSED_SERVICES, LaneServices, RECEIVE_QUEUE, SEND_QUEUE, WAKE, Wake
from txrdma.soft.shared._rings import RingPair
from txrdma.unix.fences import acquire, barrier, ORDERED, release

WAKES_SENDER: Final = Wake.SENDS | Wake.ROOM

# Names of this module are found sooner, when it is compiled.
_ORDERED: Final[bool] = ORDERED
_acquire: Final = acquire
_release: Final = release


class Wakeups:
    """
    Wakes the peer, and publishes the events that wake this process.

    @ivar armed: flags of L{Wake} for the local completion queues; C{room}: for requests that wait for ring
        space.
    @ivar isPollNeeded: the peer must poll, even if it waits for no message.
    @ivar wokenReceives: the peer's wake word when its receive queue was woken last; C{wokenSends}: its send
        queue.
    """

    __slots__ = (
        *("_epoch", "_nudgedAt", "_rings", "_services", "armed", "isPollNeeded", "room", "wokenReceives"),
        *("wokenSends",),
    )

    def __init__(self, rings: RingPair, services: LaneServices) -> None:
        self.armed = 0
        self.room = 0
        self.isPollNeeded = False
        self.wokenReceives = 0
        self.wokenSends = 0
        self._rings = rings
        self._services: LaneServices = services
        self._epoch = 0
        self._nudgedAt = 0  # local position when the peer was nudged last

    def publish(self) -> None:
        """Publish the local wake word; poll once after this."""
        flags = self.armed | self.room
        self._epoch += 1
        self._rings.localWords[WAKE] = self._epoch << 8 | flags if flags else 0
        _acquire()
        _release()
        if not _ORDERED:
            _acquire()
            _release()

    def leave(self) -> None:
        """Stop waking: the lane is closed."""
        self._services = CLOSED_SERVICES

    def posted(self, solicited: bool) -> None:
        """Wake a sleeping peer that waits for records."""
        barrier()
        wake = self._rings.peerWords[WAKE]
        if wake and wake != self.wokenReceives and wake & (3 if solicited else 1):
            self.wokenReceives = wake
            self._services.ring(RECEIVE_QUEUE)
        # An unsolicited record does not wake a peer that waits for solicited ones, but this process may wait
        # until it is consumed.
        isUnnoticed = wake & 3 == Wake.SOLICITED and not solicited and (self.armed | self.room) & WAKES_SENDER
        if isUnnoticed or (self.isPollNeeded and not wake & Wake.RECEIVES):
            self._nudge()
        self.isPollNeeded = False

    def _nudge(self) -> None:
        """Tell the peer to poll (a nudge), if it has records to consume, and has followed the last nudge."""
        rings = self._rings
        rings.readAcknowledged()
        if self._nudgedAt <= rings.acknowledged < rings.produced:
            self._nudgedAt = rings.produced
            self._services.nudge()

    def consumed(self) -> None:
        """Wake a sleeping peer that waits for the local position."""
        barrier()
        wake = self._rings.peerWords[WAKE]
        if wake & WAKES_SENDER and wake != self.wokenSends:
            self.wokenSends = wake
            if wake & Wake.SENDS:
                self._services.ring(SEND_QUEUE)
            if wake & Wake.ROOM:
                self._services.nudge()
