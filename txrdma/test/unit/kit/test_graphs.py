"""Tests for L{txrdma.kit.graphs}."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.graphs import distances, origins

GRAPH = {"a": "bc", "b": "d", "c": "ad", "d": "e", "e": "b", "x": "ye", "y": ""}


class SearchTests(SynchronousTestCase):
    """Breadth-first search."""

    def test_distances(self) -> None:
        """Each item that can be reached has its shortest distance, and the nearest are first."""
        found = distances("a", GRAPH.__getitem__)
        self.assertEqual(list(found.items()), [("a", 0), ("b", 1), ("c", 1), ("d", 2), ("e", 3)])

    def test_nearby(self) -> None:
        """With a largest distance the search does not go beyond it."""
        asked: list[str] = []

        def following(item: str) -> str:
            asked.append(item)
            return GRAPH[item]

        self.assertEqual(distances("a", following, 1), {"a": 0, "b": 1, "c": 1})
        self.assertEqual(asked, ["a"])

    def test_origins(self) -> None:
        """Each item that can be reached has the start that is nearest, the first of several."""
        found = origins(["x", "a"], GRAPH.__getitem__)
        expected = [("x", "x"), ("a", "a"), ("y", "x"), ("e", "x"), ("b", "a"), ("c", "a"), ("d", "a")]
        self.assertEqual(list(found.items()), expected)
