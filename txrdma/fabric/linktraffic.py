"""Traffic of links: Gbit/s in each direction, and the share of the data rate that this uses."""

from __future__ import annotations

from collections.abc import Callable
from heapq import nlargest
from typing import Any

from txrdma.fabric.model import Fabric, Port
from txrdma.fabric.rates import shareOf
from txrdma.kit.values import frozen


@frozen
class Load:
    """
    Traffic of one direction of a link, between the last two readings.

    @ivar port: name of the sending port; C{peer} is the name of the receiving one.
    @ivar gigabits: traffic, in Gbit/s.
    @ivar share: share of the data that the link can carry, up to 1; None where that is not known.
    """

    port: str
    peer: str
    gigabits: float
    share: float | None

    def toDict(self) -> dict[str, Any]:
        """Return the load as a dictionary for JSON."""
        return {"from": self.port, "to": self.peer, "gigabits": self.gigabits, "share": self.share}


def busiest(fabric: Fabric, rateOf: Callable[[Port], float | None], most: int) -> list[Load]:
    """
    Return the directions of links with the most traffic, the busiest first; idle ones are omitted.

    @param rateOf: returns the octets of data that a port sends per second; None if unknown.
    """
    found = []
    for pair in fabric.links():
        for port, peer in (pair, pair[::-1]):
            rate = rateOf(port)
            if rate:
                found.append((rate, port, peer))
    return [
        Load(str(port), str(peer), rate * 8 / 1e9, shareOf(port, rate))
        for rate, port, peer in nlargest(most, found, key=lambda one: one[0])
    ]
