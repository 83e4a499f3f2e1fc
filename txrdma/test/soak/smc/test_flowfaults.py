"""
Every fault at every message of every LLC flow.

L{txrdma.test.integration.smc.test_flowfaults} plays every fault at a few messages of each flow.
"""

from __future__ import annotations

from txrdma.test.integration.smc import test_flowfaults


class EveryFlowFaultTests(test_flowfaults.FlowFaultTests):
    """Each flow, with each fault at each of its messages."""

    few = None
    slowBecause = "Each of some thousand combinations of flow, message and fault plays a world of its own."
