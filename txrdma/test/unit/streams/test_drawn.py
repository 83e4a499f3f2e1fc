"""
Conversations that are drawn by seeds.
"""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.testing.streams.drawn import drawn, isFor
from txrdma.testing.streams.provider import ROCEV2, SHARED_MEMORY
from txrdma.testing.streams.script import parse


class DrawnTests(SynchronousTestCase):
    """Drawing."""

    def test_scripts(self) -> None:
        """Whatever is drawn can be played: each script parses, somebody leaves, and no producer is second."""
        leaves = set()
        for seed in range(500):
            conversation = drawn(seed)
            scripts = [parse(conversation.client), parse(conversation.server)]
            steps = [[step.name for rule in script.rules for step in rule.steps] for script in scripts]
            self.assertTrue(all(sum(each.count(n) for n in ("push", "pull", "file")) <= 1 for each in steps))
            leaves |= {name for each in steps for name in each}
            self.assertEqual(conversation, drawn(seed))
        self.assertLessEqual({"lose", "half", "abort", "stop", "term", "kill", "exit", "raise"}, leaves)

    def test_deadly(self) -> None:
        """Processes that are killed are for shared memory only: other routes are part of them."""
        deadly = [each for each in map(drawn, range(200)) if not isFor(each, ROCEV2)]
        self.assertTrue(deadly)
        self.assertTrue(all(isFor(each, SHARED_MEMORY) for each in deadly))
        self.assertTrue(
            all("kill" in each.client + each.server or "exit" in each.client + each.server for each in deadly)
        )
