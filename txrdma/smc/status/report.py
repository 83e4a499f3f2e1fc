"""
The report of this process to tools that ask: its connections, its link groups, and its statistics.
"""

from __future__ import annotations

from txrdma.smc.status.linkgroups import linkGroups
from txrdma.smc.status.statistics import statistics
from txrdma.smc.stream.connectionstatus import statuses


def report() -> dict[str, object]:
    """All that a tool is told of SMC in this process, as JSON can carry it."""
    return {
        "connections": [status.toDict() for status in statuses()],
        "linkGroups": linkGroups(),
        "statistics": statistics(),
    }
