"""
Generators in python-rdma's style do the work of coroutines, by themselves and in a schedule.
"""

from __future__ import annotations

from collections.abc import Generator
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, succeed
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

    def test_nothing(self) -> None:

        def work() -> Steps:
            yield succeed(1)

        self.assertIsNone(self.successResultOf(Deferred.fromCoroutine(coroutineOf(work()))))

    def test_error(self) -> None:
        """An exception is raised where its work was yielded, and ends those that let it pass."""
        passed: list[str] = []

        def innermost() -> Steps:
            yield None
            raise ZeroDivisionError

        def middle() -> Steps:
            try:
                yield innermost()
            finally:
                passed.append("middle")

        def outer() -> Steps:
            try:
                yield middle()
            except ZeroDivisionError:
                passed.append("outer")
            yield 7

        self.failureResultOf(Deferred.fromCoroutine(coroutineOf(outer())), TypeError)
        self.assertEqual(passed, ["middle", "outer"])

    def test_cancel(self) -> None:
        """Cancelling cancels the Deferred that is waited for; its error ends generators, innermost first."""
        cancelled: list[object] = []
        ended: list[str] = []

        def inner() -> Steps:
            try:
                yield Deferred(cancelled.append)
            finally:
                ended.append("inner")

        def outer() -> Steps:
            try:
                yield inner()
            finally:
                ended.append("outer")

        done = Deferred.fromCoroutine(coroutineOf(outer()))
        done.cancel()
        self.failureResultOf(done, CancelledError)
        self.assertEqual((len(cancelled), ended), (1, ["inner", "outer"]))

    def test_closed(self) -> None:
        """A coroutine that is closed closes its generators, innermost first; one that refuses is logged."""
        ended: list[str] = []

        def inner() -> Steps:
            try:
                yield Deferred()
            finally:
                ended.append("inner")
                yield None

        def outer() -> Steps:
            try:
                yield inner()
            finally:
                ended.append("outer")

        work = coroutineOf(outer())
        work.send(None)
        work.close()
        self.assertEqual(ended, ["inner", "outer"])
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)

    def test_noWork(self) -> None:
        nonsense: tuple[Any, ...] = (7, "text", [], iter([]), succeed(1), self.test_noWork)
        for each in nonsense:
            with self.assertRaises(TypeError):
                coroutineOf(each).close()
