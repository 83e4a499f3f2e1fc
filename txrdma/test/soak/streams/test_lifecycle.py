"""
Sequences of more events at the end of a stream over a message connection.
"""

from __future__ import annotations

from txrdma.test.unit.streams import test_lifecycle


class SearchTests(test_lifecycle.SearchTests):
    """All sequences of four events."""

    slowBecause = "repeats thousands of sequences"

    depth, states = 4, 1000
