"""
Tests for L{txrdma.verbs._sources}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.verbs._sources import Sources


class StoppingTests(SynchronousTestCase):
    """Tests for handlers that stop their reader, and close its queues."""

    def test_nothingIsCalledAfterHandlerStoppedReader(self) -> None:
        for isFirst in (False, True):
            calls: list[Any] = []
            sources = Sources(self.fail)
            sources.isRunning = sources.isArmed = True

            def stop(batch: Sequence[Any]) -> None:
                calls.append(batch)  # noqa: B023
                sources.isRunning = False  # noqa: B023

            sources.disarmBy(lambda: calls.append("disarm"))  # noqa: B023
            sources.add(lambda limit: ["other"], calls.append)
            if isFirst:
                sources.addFirst(lambda limit: ["first"], stop, ["unread"])
            else:
                sources.add(lambda limit: ["first"], stop)
            self.assertFalse(sources.poll())
            self.assertEqual(calls, [["first"]])
