"""
Loads of links: how much of what it can carry each direction of a link carries.
"""

from __future__ import annotations

from collections.abc import Mapping
from heapq import nlargest
from typing import Any

from txrdma.fabric.linkspeeds import DATA_GIGABITS
from txrdma.fabric.model import Fabric, Port
from txrdma.kit.values import frozen
from txrdma.monitor.diagnosis.thresholds import PortKey
from txrdma.monitor.portcounters import Meter


@frozen
class Load:
    """
    Traffic of one direction of a link, between the last two readings.

    @ivar port: name of the port that sends; C{peer} is that of the one that receives.
    @ivar gigabits: traffic, in Gbit/s.
    @ivar share: share of the data that the link can carry, up to 1; None where that is not known.
    """

    port: str
    peer: str
    gigabits: float
    share: float | None

    def toDict(self) -> dict[str, Any]:
        """Load as JSON can carry it."""
        return {"from": self.port, "to": self.peer, "gigabits": self.gigabits, "share": self.share}


def capacity(port: Port) -> float:
    """Octets of data each second that a port's link carries at its present width and speed; 0 if unknown."""
    return port.width * DATA_GIGABITS.get(port.activeSpeed, 0.0) * 125e6


def shareOf(port: Port, rate: float) -> float | None:
    """Share of what a port's link can carry, for a rate in octets each second; None if that is unknown."""
    most = capacity(port)
    return min(1.0, rate / most) if most else None


def busiest(fabric: Fabric, meters: Mapping[PortKey, Meter], most: int) -> list[Load]:
    """Directions of links with the most traffic, the busiest first; links that carry nothing are left out."""
    found = []
    for pair in fabric.links():
        for port, peer in (pair, pair[::-1]):
            meter = meters.get((port.node.guid, port.number))
            rate = None if meter is None else meter.rate("portXmitData")
            if rate:
                found.append((rate, port, peer))
    return [
        Load(str(port), str(peer), rate * 8 / 1e9, shareOf(port, rate))
        for rate, port, peer in nlargest(most, found, key=lambda one: one[0])
    ]
