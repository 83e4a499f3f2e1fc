"""
Watched memory: it shows whether a peer has written where it may not.
"""

from __future__ import annotations

from random import Random
from typing import Any

from txrdma.testing.outcome import Violation


class Canary:
    """
    Memory that was shown to a peer, filled so that it shows who writes where nobody may.

    @ivar rkeys: the keys of the memory, one for each device that knows it.
    @ivar granted: the rings in it that a peer was told of: begin and end.
    """

    def __init__(self, region: Any, random: Random) -> None:
        self.region = region
        self.rkeys = {region.rkey}
        self.length = region.length
        self.content = random.randbytes(256) * (region.length // 256)
        region.view[:] = self.content
        self.granted: set[tuple[int, int]] = set()

    def look(self) -> None:
        """Check that no byte has changed outside of the rings."""
        at = 0
        for begin, end in [*sorted(self.granted), (self.length, 0)]:
            if self.region.view[at:begin] != self.content[at:begin]:
                raise Violation(f"somebody wrote outside of the rings, between {at} and {begin}")
            at = max(at, end)
