"""Settings of a poller: intervals, time-outs and bounds."""

from __future__ import annotations

from typing import Final

from txrdma.fabric.sweepbounds import MOST_HOPS, MOST_NODES
from txrdma.kit.values import frozen

RETRIES: Final = 2
"""Attempts after the first one, if there is no answer."""


@frozen
class PollerSettings:
    """
    Settings of a poller: intervals, time-outs and bounds.

    @ivar intervalSeconds: time between readings of the counters.
    @ivar sweepSeconds: time between whole sweeps.
    @ivar settleSeconds: time from a sign of change to a query of the node, and between queries until its
        findings are settled.
    @ivar stateSeconds: time in which the states of all ports are read once.
    @ivar timeoutSeconds: time to wait for the answer to each of three attempts.
    @ivar maxOutstanding: maximum number of outstanding requests; one per node.
    @ivar mostNodes: maximum number of nodes; see L{Bounds <txrdma.fabric.sweepbounds.Bounds>}.
    @ivar maxHops: maximum number of hops of a directed route.
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
