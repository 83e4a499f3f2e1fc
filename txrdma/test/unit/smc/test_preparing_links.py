"""L{txrdma.smc.group.link}: the address of a peer's buffer, which a new connection resolves first."""

from __future__ import annotations

from collections.abc import Callable
from types import SimpleNamespace
from typing import Any, cast

from twisted.internet.defer import Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.types import RKey
from txrdma.smc.group.link import resolveBuffer


class ResolveBufferTests(SynchronousTestCase):
    """A link whose peer must be asked for the address."""

    def setUp(self) -> None:
        self.clock = Clock()
        self.asked: list[Callable[[], None]] = []
        lane = SimpleNamespace(prepare=lambda rkey, known: self.asked.append(known))
        self.late: list[str] = []
        resolving = resolveBuffer(cast(Any, lane), RKey(1), self.clock, lambda: self.late.append("late"))
        self.resolved = Deferred.fromCoroutine(resolving)

    def test_connectionWaitsForPeersAnswer(self) -> None:
        self.assertNoResult(self.resolved)
        self.asked[0]()
        self.successResultOf(self.resolved)
        self.assertEqual((self.clock.getDelayedCalls(), self.late), ([], []))

    def test_silent(self) -> None:
        """A silent peer delays the connection by 0.25 s only: a client may have written and exited."""
        self.clock.advance(0.25)
        self.successResultOf(self.resolved)
        self.assertEqual(self.late, [])
        self.asked[0]()
        self.assertEqual(self.late, ["late"])
