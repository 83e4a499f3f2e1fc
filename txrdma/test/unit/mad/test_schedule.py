"""A schedule runs coroutines and generators, with a bounded number of outstanding calls."""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from twisted.internet.defer import CancelledError, Deferred, fail, succeed
from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.path import IBDRPath, IBPath
from txrdma.mad.generators import coroutineOf
from txrdma.mad.layouts.smp import NodeInfo
from txrdma.mad.rpcs import RPCs
from txrdma.mad.schedule import MADSchedule, Progress
from txrdma.mad.tasks import Task

HERE = IBDRPath()


class FakeAgent(RPCs):
    def __init__(self) -> None:
        self.calls: list[tuple[Any, IBPath, int, Deferred[Any]]] = []
        self.cancelled = 0
        self.atOnce: Exception | None = None

    def call(
        self, rpc: str, payload: Any, path: Any = None, attributeModifier: int = 0, **options: Any
    ) -> Deferred[Any]:
        if self.atOnce is not None:
            return fail(self.atOnce)
        answer: Deferred[Any] = Deferred(self._cancelled)
        self.calls.append((payload, path, attributeModifier, answer))
        return answer

    def _cancelled(self, answer: Deferred[Any]) -> None:
        self.cancelled += 1

    def answer(self, what: object = None) -> None:
        answer = self.calls.pop(0)[-1]
        answer.errback(what) if isinstance(what, Exception) else answer.callback(what)


class ScheduleTestCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.agent = FakeAgent()
        self.schedule = MADSchedule(self.agent, maxOutstanding=3)

    async def ask(self, number: int = 0) -> Any:
        return await self.schedule.SubnGet(NodeInfo, HERE, number)


class ScheduleTests(ScheduleTestCase):
    def test_generator(self) -> None:
        seen: list[Any] = []

        def inner(value: object) -> Generator[Any, Any, object]:
            yield self.schedule.SubnGet(NodeInfo, HERE)
            return value

        def outer() -> Generator[Any, Any, None]:
            seen.append((yield self.schedule.SubnGet(NodeInfo, HERE)))
            seen.append((yield inner("said")))
            seen.append((yield inner(None)))
            seen.append((yield None))

        done = self.schedule.run(outer())
        for number in range(3):
            self.agent.answer(number)
        self.successResultOf(done)
        self.assertEqual(seen, [0, "said", True, None])

    def test_bound(self) -> None:

        done = self.schedule.run(mqueue=(self.ask(number) for number in range(10)))
        order = []
        while self.agent.calls:
            self.assertLessEqual(len(self.agent.calls), 3)
            order.append(self.agent.calls[0][2])
            self.agent.answer()
        self.successResultOf(done)
        self.assertEqual(order, list(range(10)))
        self.assertEqual((self.schedule.progress.most, self.schedule.progress.calls), (3, 10))

    def test_progressRaises(self) -> None:

        def failing(progress: Progress) -> None:
            raise ZeroDivisionError("a bug")

        schedule = MADSchedule(self.agent, 1, onProgress=failing)
        calls = [schedule.SubnGet(NodeInfo, HERE) for _ in range(3)]
        for number in range(3):
            self.agent.answer(number)
        self.assertEqual([self.successResultOf(call) for call in calls], [0, 1, 2])
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_bursts(self) -> None:

        async def asks() -> None:
            answers = [self.schedule.SubnGet(NodeInfo, HERE, number) for number in range(5)]
            for answer in answers:
                await answer

        done = self.schedule.run(asks())
        self.assertEqual((len(self.agent.calls), self.schedule.progress.waiting), (3, 2))
        for _ in range(5):
            self.agent.answer()
        self.successResultOf(done)

    def test_sourceWaitsForMany(self) -> None:
        order: list[object] = []

        async def asks(number: int) -> None:
            await self.schedule.SubnGet(NodeInfo, HERE)
            order.append(number)

        def works() -> Iterator[Any]:
            yield self.schedule.queue(asks(0))
            order.append("one")
            yield asks(1)
            yield self.schedule.mqueue(asks(number) for number in (2, 3, 4, 5))
            order.append("many")
            yield None
            yield asks(6)

        done = self.schedule.run(mqueue=works())
        while self.agent.calls:
            self.agent.answer()
        self.successResultOf(done)
        self.assertEqual(order, [0, "one", 1, 2, 3, 4, 5, "many", 6])

    def test_turns(self) -> None:

        self.schedule.mqueue(self.ask(number) for number in range(100, 106))
        self.schedule.mqueue(self.ask(number) for number in range(200, 203))
        done = self.schedule.run()
        order = []
        while self.agent.calls:
            order.append(self.agent.calls[0][2])
            self.agent.answer()
        self.successResultOf(done)
        self.assertEqual(order, [100, 101, 102, 103, 200, 104, 201, 105, 202])

    def test_caught(self) -> None:

        def inner() -> Generator[Any, Any, None]:
            yield self.schedule.SubnGet(NodeInfo, HERE)

        def outer() -> Generator[Any, Any, str]:
            try:
                yield inner()
            except ValueError as error:
                return f"caught {error}"
            return "not caught"

        async def awaits() -> str:
            try:
                await self.schedule.queue(inner())
            except ValueError as error:
                return f"{await self.schedule.queue(outer())} after {error}"
            return "not caught"

        done = self.schedule.run(awaits())
        self.agent.answer(ValueError("one"))
        self.agent.answer(ValueError("two"))
        self.assertEqual(self.successResultOf(done), "caught two after one")

    def test_uncaught(self) -> None:

        done = self.schedule.run(mqueue=(self.ask() for _ in range(5)))
        self.agent.answer(ValueError("no"))
        self.failureResultOf(done, ValueError)
        self.assertEqual((self.agent.cancelled, self.schedule.progress.outstanding), (2, 0))

    def test_cancel(self) -> None:
        closed: list[int] = []

        async def asks(number: int) -> None:
            try:
                await self.schedule.SubnGet(NodeInfo, HERE)
            finally:
                closed.append(number)

        done = self.schedule.run(mqueue=(asks(number) for number in range(9)))
        done.cancel()
        self.failureResultOf(done, CancelledError)
        self.assertEqual((self.agent.cancelled, closed), (3, [0, 1, 2]))
        self.assertEqual(self.schedule.progress.running, 0)

    def test_cancelCalls(self) -> None:
        """Cancelling a run cancels its outstanding and queued calls, even if no work waits for them."""
        results: list[Any] = []

        async def asks() -> None:
            for _ in range(5):
                self.schedule.SubnGet(NodeInfo, HERE).addBoth(results.append)
            await self.schedule.SubnGet(NodeInfo, HERE)

        done = self.schedule.run(asks())
        done.cancel()
        self.failureResultOf(done, CancelledError)
        self.assertEqual((self.agent.cancelled, len(self.agent.calls)), (3, 3))
        self.assertEqual([each.type for each in results], [CancelledError] * 5)
        self.assertEqual((self.schedule.progress.outstanding, self.schedule.progress.waiting), (0, 0))

    def test_nonsense(self) -> None:

        def yields(what: object = 7) -> Generator[Any, Any, None]:
            yield what

        error = self.failureResultOf(self.schedule.run(yields()), TypeError)
        self.assertIn("yield 7", error.getErrorMessage())
        for nonsense in ([], [NodeInfo], "text", object()):
            self.failureResultOf(self.schedule.run(yields(nonsense)), TypeError)
            self.failureResultOf(self.schedule.run(mqueue=[nonsense]), TypeError)
            self.assertRaises(TypeError, self.schedule.queue, nonsense)
            self.assertRaises(TypeError, self.schedule.run, nonsense)
        self.assertRaises(TypeError, self.schedule.mqueue, 7)
        self.assertRaises(ValueError, MADSchedule, self.agent, 0)
        self.assertIsNone(self.successResultOf(self.schedule.run()))

    def test_taskTwice(self) -> None:

        async def asks() -> int:
            return 7

        task: Task = self.schedule.queue(asks())
        self.assertEqual(self.successResultOf(task.wait()), 7)
        self.assertEqual(self.successResultOf(task.wait()), 7)

    def test_failedSource(self) -> None:

        def works() -> Iterator[Any]:
            yield self.ask()
            raise ValueError("no more")

        async def waits() -> str:
            try:
                await self.schedule.mqueue(works())
            except ValueError as error:
                return str(error)
            return "not caught"

        self.failureResultOf(self.schedule.run(mqueue=works()), ValueError)
        self.assertEqual(self.agent.cancelled, 1)
        self.agent.calls.clear()
        done = self.schedule.run(waits())
        self.agent.answer()
        self.assertEqual(self.successResultOf(done), "no more")

    def test_alone(self) -> None:

        async def fails() -> None:
            raise ValueError("alone")

        self.schedule.queue(fails())
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)


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
