"""
The search for the states that two peers can reach when they connect, to its end.
"""

from __future__ import annotations

from txrdma.test.unit.cm import test_opening


class SearchTests(test_opening.SearchTests):
    """All worlds of two ends that both may ask."""

    most = 200_000
