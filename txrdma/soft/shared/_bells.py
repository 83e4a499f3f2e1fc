"""
Sleeping and waking of two processes: the wake words of both boxes, and the rings and nudges.

See L{txrdma.soft.shared._layout} for the words, and for the fence between saying and looking.
"""

from __future__ import annotations

from typing import Final

from txrdma.soft.shared._boxes import Boxes
from txrdma.soft.shared._layout import barrier, NOWHERE, Surroundings, WAKE, Wake

WAKES_SENDER: Final = Wake.SENDS | Wake.ROOM


class Bells:
    """
    The causes for which we want to be woken, and those for which the peer was.

    @ivar armed: flags of L{Wake} for what our completion queues wait for; C{room}: for what waits to be sent.
    @ivar isUrgent: the peer is to look, even when nobody there waits for messages.
    @ivar rungReceives: the peer's wake word for which its receives were rung; C{rungSends}: its sends.
    """

    def __init__(self, boxes: Boxes, surroundings: Surroundings) -> None:
        self.armed = 0
        self.room = 0
        self.isUrgent = False
        self.rungReceives = 0
        self.rungSends = 0
        self._boxes = boxes
        self._surroundings: Surroundings = surroundings
        self._epoch = 0
        self._nudgedFor = 0  # how far the peer was to come when it was asked to look

    def say(self) -> None:
        """Write our wake word; look at what is waited for once more after this."""
        flags = self.armed | self.room
        self._epoch += 1
        self._boxes.words[WAKE] = self._epoch << 8 | flags if flags else 0
        barrier()

    def leave(self) -> None:
        """Wake nobody any more: the lane is over."""
        self._surroundings = NOWHERE

    def posted(self, solicited: bool) -> None:
        """Wake the peer for what was posted, when it sleeps and wants to be."""
        barrier()
        wake = self._boxes.theirs[WAKE]
        if wake and wake != self.rungReceives and wake & (3 if solicited else 1):
            self.rungReceives = wake
            self._surroundings.ringReceives()
        if self.isUrgent and not wake & Wake.RECEIVES:
            self._nudge()
        self.isUrgent = False

    def _nudge(self) -> None:
        """Have the peer look, unless it was asked before and has not looked since: it will find all."""
        boxes = self._boxes
        boxes.refresh()
        if boxes.acknowledged >= self._nudgedFor:
            self._nudgedFor = boxes.produced
            self._surroundings.nudge()

    def consumed(self) -> None:
        """Wake the peer's sender, when it sleeps and wants to know how far we are."""
        barrier()
        wake = self._boxes.theirs[WAKE]
        if wake & WAKES_SENDER and wake != self.rungSends:
            self.rungSends = wake
            if wake & Wake.SENDS:
                self._surroundings.ringSends()
            if wake & Wake.ROOM:
                self._surroundings.nudge()
