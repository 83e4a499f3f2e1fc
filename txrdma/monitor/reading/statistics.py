"""Statistics of a poller, as shown on pages and in metrics."""

from __future__ import annotations

from txrdma.kit.values import record


@record
class PollerStatistics:
    """
    The work of a poller so far.

    @ivar readings: ports whose counters were read.
    @ivar silences: requests without an answer.
    @ivar turns: rounds of readings; C{overruns}: intervals at which the previous round had not ended yet.
    @ivar turnSeconds: duration of the last round; C{sweepSeconds} that of the last sweep.
    @ivar stateReads: ports whose states were read between sweeps.
    @ivar refreshes: number of refreshes of nodes that may have changed.
    @ivar notices: notices that the SA has reported.
    @ivar requests: requests sent since the local port was opened; C{timeouts}: those that timed out.
    """

    readings: int = 0
    silences: int = 0
    turns: int = 0
    overruns: int = 0
    turnSeconds: float = 0.0
    sweeps: int = 0
    sweepSeconds: float = 0.0
    stateReads: int = 0
    refreshes: int = 0
    notices: int = 0
    requests: int = 0
    timeouts: int = 0
