"""Tasks of a schedule: errors, deadlocks, cancellation, depth, and number."""

from __future__ import annotations

import gc
import traceback
import types
import warnings
from collections.abc import Generator, Iterator
from importlib.metadata import version
from typing import Any, Final

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock, deferLater
from twisted.trial.unittest import SkipTest

from txrdma.mad.layouts.smp import NodeInfo
from txrdma.mad.schedule import MADSchedule, Progress
from txrdma.mad.tasks import Task
from txrdma.test.unit.mad.test_schedule import HERE, ScheduleTestCase

IS_OLD_TWISTED: Final = tuple(map(int, version("Twisted").split(".")[:2])) < (24, 10)


class FaultTests(ScheduleTestCase):
    def test_traceback(self) -> None:
        """A traceback has the frames of all tasks that the exception passed, the outermost first."""
        if IS_OLD_TWISTED:
            raise SkipTest("failures of Twisted before 24.10 clear the traceback of their exception")

        def innermost() -> Generator[Any, Any, None]:
            yield self.schedule.SubnGet(NodeInfo, HERE)

        async def inside() -> None:
            await self.schedule.queue(innermost())

        def outside() -> Generator[Any, Any, None]:
            yield inside()

        async def outermost() -> None:
            await self.schedule.queue(outside())

        done = self.schedule.run(outermost())
        self.agent.answer(ValueError("no"))
        error = self.failureResultOf(done, ValueError).value
        frames = [frame.name for frame in traceback.extract_tb(error.__traceback__)]
        ours = [name for name in frames if name in ("outermost", "outside", "inside", "innermost")]
        self.assertEqual(ours, ["outermost", "outside", "inside", "innermost"])

    def test_ownRun(self) -> None:
        done: list[Deferred[Any]] = []

        async def waits() -> str:
            await self.ask()
            try:
                await done[0]
            except RuntimeError as error:
                return str(error)
            return "not caught"

        async def runs() -> str:
            try:
                await self.schedule.run(self.ask())
            except RuntimeError as error:
                return str(error)
            return "not caught"

        done.append(self.schedule.run(waits()))
        self.agent.answer()
        self.assertIn("part of", self.successResultOf(done[0]))
        self.assertIn("running already", self.successResultOf(self.schedule.run(runs())))

    def test_ownTask(self) -> None:
        tasks: list[Task] = []

        async def waits(which: int) -> None:
            await self.ask()
            await tasks[which]

        for rest in (0, 1, 5):
            tasks.clear()
            for number in range(rest + 1):
                tasks.append(self.schedule.queue(waits((number + 1) % (rest + 1))))
            done = self.schedule.run()
            while self.agent.calls:
                self.agent.answer()
            self.assertIn("waits for", self.failureResultOf(done, RuntimeError).getErrorMessage())

    def test_ownSource(self) -> None:
        tasks: list[Task] = []

        async def waits() -> None:
            await self.ask()
            await tasks[0]

        tasks.append(self.schedule.mqueue(waits() for _ in range(3)))
        done = self.schedule.run()
        self.agent.answer()
        self.failureResultOf(done, RuntimeError)

        def works() -> Iterator[Any]:
            task = self.schedule.queue(self.ask())
            yield self.ask()
            yield task

        self.agent.calls.clear()
        again = self.schedule.run(mqueue=works())
        while self.agent.calls:
            self.agent.answer()
        self.successResultOf(again)

    def test_cancelled(self) -> None:
        clock = Clock()
        closed: list[str] = []
        sleeping: Deferred[None] = deferLater(clock, 100.0)

        def inner() -> Generator[Any, Any, None]:
            try:
                yield sleeping
            finally:
                closed.append("inner")

        async def outer() -> None:
            try:
                await self.schedule.queue(middle())
            finally:
                closed.append("outer")

        def middle() -> Generator[Any, Any, None]:
            try:
                yield inner()
            finally:
                closed.append("middle")

        def works() -> Iterator[Any]:
            try:
                while True:
                    yield self.ask()
            finally:
                closed.append("works")

        done = self.schedule.run(outer())
        many = self.schedule.mqueue(works())
        outside = many.wait()
        done.cancel()
        self.failureResultOf(done, CancelledError)
        self.failureResultOf(outside, CancelledError)
        self.assertEqual(sorted(closed), ["inner", "middle", "outer", "works"])
        self.assertLess(closed.index("inner"), closed.index("middle"))
        self.assertEqual((clock.getDelayedCalls(), self.agent.cancelled), ([], 3))
        self.assertEqual(self.schedule.progress.outstanding, 0)

    def test_cancelledCalls(self) -> None:
        calls = [self.schedule.SubnGet(NodeInfo, HERE) for _ in range(6)]
        calls[5].cancel()
        self.failureResultOf(calls[5], CancelledError)
        self.agent.answer()  # so that the fourth call is made
        self.assertEqual(self.agent.cancelled, 0)
        calls[3].cancel()
        self.failureResultOf(calls[3], CancelledError)
        self.assertEqual(self.agent.cancelled, 1)
        del self.agent.calls[2]
        while self.schedule.progress.outstanding:
            self.agent.answer()
        for number in (0, 1, 2, 4):
            self.successResultOf(calls[number])
        self.assertEqual(self.schedule.progress.calls, 5)

    def test_cancelledFromWithin(self) -> None:
        reached: list[int] = []
        done: list[Deferred[Any]] = []

        def inner() -> Generator[Any, Any, None]:
            yield self.schedule.SubnGet(NodeInfo, HERE)
            done[0].cancel()
            reached.append(1)
            yield self.schedule.SubnGet(NodeInfo, HERE)
            reached.append(2)

        def outer() -> Generator[Any, Any, None]:
            try:
                yield inner()
                reached.append(3)
            finally:
                reached.append(4)

        done.append(self.schedule.run(outer()))
        self.agent.answer()
        self.failureResultOf(done[0], CancelledError)
        self.assertEqual(reached, [1, 4])
        self.assertEqual(self.schedule.progress.running, 0)

    def test_cancelledFromSource(self) -> None:
        reached: list[int] = []
        done: list[Deferred[Any]] = []

        def works() -> Iterator[Any]:
            try:
                for _ in range(3):
                    yield self.ask()
                done[0].cancel()
                reached.append(1)
                yield self.ask()
                reached.append(2)
            finally:
                reached.append(3)

        with warnings.catch_warnings(record=True) as warned:
            warnings.simplefilter("always")
            done.append(self.schedule.run(mqueue=works()))
            self.agent.answer()
            gc.collect()
        self.failureResultOf(done[0], CancelledError)
        self.assertEqual((reached, self.agent.cancelled), ([1, 3], 2))
        self.assertEqual(self.schedule.progress.running, 0)
        self.assertEqual([each for each in warned if "never awaited" in str(each.message)], [])

    def test_stubborn(self) -> None:

        def stays() -> Generator[Any, Any, None]:
            try:
                yield self.schedule.SubnGet(NodeInfo, HERE)
            finally:
                yield None

        done = self.schedule.run(mqueue=[stays(), self.ask()])
        done.cancel()
        self.failureResultOf(done, CancelledError)
        self.assertEqual(self.agent.cancelled, 2)
        self.assertEqual(len(self.flushLoggedErrors(RuntimeError)), 1)


class SizeTests(ScheduleTestCase):
    DEPTH = 10_000

    def test_deep(self) -> None:

        def down(depth: int, isBad: bool) -> Generator[Any, Any, int]:
            if depth == 0:
                yield self.schedule.SubnGet(NodeInfo, HERE)
                return 1 // (not isBad)
            below: int = yield down(depth - 1, isBad)
            return below + 1

        done = self.schedule.run(down(self.DEPTH, False))
        self.agent.answer()
        self.assertEqual(self.successResultOf(done), self.DEPTH + 1)
        done = self.schedule.run(down(self.DEPTH, True))
        self.agent.answer()
        self.failureResultOf(done, ZeroDivisionError)

    def test_deepTasks(self) -> None:
        """Coroutines that wait for each other, each queued by another, do not exceed the recursion limit."""
        if IS_OLD_TWISTED:
            raise SkipTest("failures of Twisted before 24.10 read the whole traceback at each level")

        async def down(depth: int, isBad: bool) -> int:
            if depth == 0:
                await self.schedule.SubnGet(NodeInfo, HERE)
                return 1 // (not isBad)
            below: int = await self.schedule.queue(down(depth - 1, isBad))
            return below + 1

        done = self.schedule.run(down(self.DEPTH, False))
        self.assertEqual(self.schedule.progress.running, self.DEPTH + 1)
        self.agent.answer()
        self.assertEqual(self.successResultOf(done), self.DEPTH + 1)
        done = self.schedule.run(down(self.DEPTH, True))
        self.agent.answer()
        self.failureResultOf(done, ZeroDivisionError)

    def test_manyWaiting(self) -> None:
        """Many queued calls that end at the same time do not exceed the recursion limit."""

        async def asks() -> int:
            answers = [self.schedule.SubnGet(NodeInfo, HERE) for _ in range(self.DEPTH)]
            failed = 0
            for answer in answers:
                try:
                    await answer
                except ValueError:
                    failed += 1
            return failed

        done = self.schedule.run(asks())
        self.agent.atOnce = ValueError("closed")
        for _ in range(3):
            self.agent.answer(ValueError("closed"))
        self.assertEqual(self.successResultOf(done), self.DEPTH)

    def test_million(self) -> None:
        made = ended = most = 0

        async def asks() -> None:
            nonlocal ended
            await self.schedule.SubnGet(NodeInfo, HERE)
            ended += 1

        def works() -> Iterator[Any]:
            nonlocal made, most
            for _ in range(1_000_000):
                made += 1
                most = max(most, made - ended)
                yield asks()

        done = self.schedule.run(mqueue=works())
        self.assertEqual(made, 3)
        for _ in range(100):
            self.agent.answer()
        before = measured()
        for _ in range(10_000):
            self.agent.answer()
        self.assertEqual((made, ended, most, self.schedule.progress.most), (10_103, 10_100, 3, 3))
        self.assertLess(measured() - before, 100)
        done.cancel()
        self.failureResultOf(done, CancelledError)
        self.assertEqual(made, 10_103)

    def test_noDeadlock(self) -> None:

        async def parent(depth: int) -> None:
            await self.schedule.mqueue((parent(depth - 1) if depth else self.ask()) for _ in range(4))

        done = self.schedule.run(mqueue=(parent(2) for _ in range(4)))
        answered = 0
        while self.agent.calls:
            self.assertLessEqual(len(self.agent.calls), 3)
            self.agent.answer()
            answered += 1
        self.successResultOf(done)
        self.assertEqual((answered, self.schedule.progress.most), (256, 3))

    def test_progress(self) -> None:
        reported: list[tuple[int, int, int]] = []

        def reportProgress(progress: Progress) -> None:
            reported.append((progress.calls, progress.failed, progress.running))

        schedule = MADSchedule(self.agent, 2, onProgress=reportProgress)

        async def asks() -> None:
            try:
                await schedule.SubnGet(NodeInfo, HERE)
            except ValueError:
                pass

        done = schedule.run(mqueue=(asks() for _ in range(4)))
        self.assertEqual((schedule.progress.outstanding, schedule.progress.running), (2, 2))
        for answer in (1, ValueError("no"), 3, 4):
            self.agent.answer(answer)
        self.successResultOf(done)
        self.assertEqual(reported, [(1, 0, 2), (2, 1, 2), (3, 1, 2), (4, 1, 1)])


def measured() -> int:
    gc.collect()
    kinds = (types.GeneratorType, types.CoroutineType, Deferred)
    return sum(isinstance(each, kinds) for each in gc.get_objects())
