"""Watched memory, which detects forbidden writes of a peer."""

from __future__ import annotations

from random import Random
from typing import Any

from txrdma.testing.outcome import Violation


class Canary:
    """
    Memory that is registered for a peer, filled with noise in order to detect forbidden writes.

    @ivar rkeys: R_Keys of the memory, one for each device that has registered it.
    @ivar granted: begin and end of each ring in it that was announced to a peer.
    """

    def __init__(self, region: Any, random: Random) -> None:
        self.region = region
        self.rkeys = {region.rkey}
        self.length = region.length
        self.content = random.randbytes(256) * (region.length // 256)
        region.view[:] = self.content
        self.granted: set[tuple[int, int]] = set()

    def check(self) -> None:
        """Check that no byte outside of the rings has changed."""
        at = 0
        for begin, end in [*sorted(self.granted), (self.length, 0)]:
            if self.region.view[at:begin] != self.content[at:begin]:
                raise Violation(f"a peer wrote outside of the rings, between {at} and {begin}")
            at = max(at, end)
