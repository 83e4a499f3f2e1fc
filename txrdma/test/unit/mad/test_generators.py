"""
Generators in python-rdma's style do the work of coroutines, by themselves and in a schedule.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from twisted.internet.defer import Deferred, succeed
from twisted.trial.unittest import SynchronousTestCase

from txrdma.mad.generators import coroutineOf

Steps = Generator[Any, Any, Any]


class GeneratorTests(SynchronousTestCase):
    def test_alone(self) -> None:
        answer: Deferred[int] = Deferred()
        seen: list[Any] = []

        async def seven() -> int:
            return 7

        async def nothing() -> None:
            pass

        def inner(value: object) -> Steps:
            yield None
            return value

        def outer() -> Steps:
            for each in (answer, succeed(None), seven(), nothing(), inner(3), inner(None), None):
                seen.append((yield each))
            return "end"

        done = Deferred.fromCoroutine(coroutineOf(outer()))
        self.assertNoResult(done)
        answer.callback(1)
        self.assertEqual(self.successResultOf(done), "end")
        self.assertEqual(seen, [1, None, 7, True, 3, True, None])

    def test_noWork(self) -> None:
        nonsense: tuple[Any, ...] = (7, "text", [], iter([]), succeed(1), self.test_noWork)
        for each in nonsense:
            with self.assertRaises(TypeError):
                coroutineOf(each).close()
