"""
The search for the states of two managers: one load and migration to its end, and more of a reload.
"""

from __future__ import annotations

from txrdma.test.unit.cm import test_searching


class SearchTests(test_searching.SearchTests):
    """All states with one load, and a million with two."""

    most = 1_000_000
