"""Tests for L{txrdma.kit.graphs}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.graphs import distances, origins

GRAPH = {"a": "bc", "b": "d", "c": "ad", "d": "e", "e": "b", "x": "ye", "y": ""}


class SearchTests(SynchronousTestCase):
    def test_distances(self) -> None:
        """Each reachable item has its shortest distance, and items are sorted by distance."""
        found = distances("a", GRAPH.__getitem__)
        self.assertEqual(list(found.items()), [("a", 0), ("b", 1), ("c", 1), ("d", 2), ("e", 3)])

    def test_nearby(self) -> None:
        """The search does not follow items at the maximum distance."""
        asked: list[str] = []

        def following(item: str) -> str:
            asked.append(item)
            return GRAPH[item]

        self.assertEqual(distances("a", following, 1), {"a": 0, "b": 1, "c": 1})
        self.assertEqual(asked, ["a"])

    def test_origins(self) -> None:
        """Each reachable item has its nearest origin, or the first of several."""
        found = origins(["x", "a"], GRAPH.__getitem__)
        expected = [("x", "x"), ("a", "a"), ("y", "x"), ("e", "x"), ("b", "a"), ("c", "a"), ("d", "a")]
        self.assertEqual(list(found.items()), expected)
