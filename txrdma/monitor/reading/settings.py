"""
Settings of a poller: how often it looks at what.
"""

from __future__ import annotations

from txrdma.fabric.excess import MOST_HOPS, MOST_NODES
from txrdma.kit.values import frozen


@frozen
class PollerSettings:
    """
    Settings of a poller: how often it looks at what.

    @ivar intervalSeconds: time between readings of the counters.
    @ivar sweepSeconds: time between whole sweeps.
    @ivar settleSeconds: time from a sign of change to a look at the node, and between looks until their
        findings are settled.
    @ivar stateSeconds: time in which the states of all ports are looked at once.
    @ivar timeoutSeconds: time to wait for the answer of a node, three times.
    @ivar maxOutstanding: most datagrams on their way at a time; one to a node.
    @ivar mostNodes: most nodes that the fabric may have; see L{Bounds <txrdma.fabric.excess.Bounds>}.
    @ivar maxHops: most hops of a directed route.
    @ivar wantsNotices: subscribe to the notices of the SA.
    """

    intervalSeconds: float = 10.0
    sweepSeconds: float = 300.0
    settleSeconds: float = 2.0
    stateSeconds: float = 60.0
    timeoutSeconds: float = 0.5
    maxOutstanding: int = 64
    wantsNotices: bool = True
    mostNodes: int = MOST_NODES
    maxHops: int = MOST_HOPS
