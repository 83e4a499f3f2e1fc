"""
A schedule runs coroutines and generators whose calls go to an agent, a bounded number at a time.
"""

from __future__ import annotations

from collections.abc import Generator, Iterator
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.path import IBDRPath, IBPath
from txrdma.iba.types import GUID
from txrdma.iba.verbs import NodeType, PortState
from txrdma.mad.rpcs import RPCs
from txrdma.mad.schedule import MADSchedule, Task
from txrdma.mad.smp import NodeInfo, PortInfo

HERE = IBDRPath()


class FakeAgent(RPCs):
    """Answers when it is told to."""

    def __init__(self) -> None:
        self.calls: list[tuple[Any, IBPath, int, Deferred[Any]]] = []
        self.cancelled = 0

    def call(
        self, rpc: str, payload: Any, path: IBPath, attributeModifier: int = 0, **options: Any
    ) -> Deferred[Any]:
        answer: Deferred[Any] = Deferred(self._cancelled)
        self.calls.append((payload, path, attributeModifier, answer))
        return answer

    def _cancelled(self, answer: Deferred[Any]) -> None:
        self.cancelled += 1

    def answer(self, what: object = None) -> None:
        """The oldest call is answered; what is an exception fails it."""
        self.calls.pop(0)[-1].callback(what) if not isinstance(what, Exception) else self.calls.pop(0)[
            -1
        ].errback(what)


class ScheduleTests(SynchronousTestCase):
    """Work of both kinds."""

    def setUp(self) -> None:
        self.agent = FakeAgent()
        self.schedule = MADSchedule(self.agent, maxOutstanding=3)

    def test_coroutine(self) -> None:
        """A coroutine gets the answers, and its result is that of the run."""

        async def ports() -> int:
            first = await self.schedule.SubnGet(NodeInfo, HERE)
            second = await self.schedule.SubnGet(NodeInfo, HERE)
            return first.numPorts + second.numPorts

        done = self.schedule.run(ports())
        self.agent.answer(NodeInfo(numPorts=1))
        self.assertNoResult(done)
        self.agent.answer(NodeInfo(numPorts=2))
        self.assertEqual(self.successResultOf(done), 3)

    def test_generator(self) -> None:
        """A generator's C{yield} gives the answer; what it returns goes to who has yielded it, else True."""
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

    def test_mixed(self) -> None:
        """Generators yield coroutines, and coroutines await what was queued."""

        async def asks() -> object:
            return await self.schedule.SubnGet(NodeInfo, HERE)

        def yields() -> Generator[Any, Any, object]:
            return (yield asks())

        async def waits() -> object:
            return await self.schedule.queue(yields())

        done = self.schedule.run(waits())
        self.agent.answer("answer")
        self.assertEqual(self.successResultOf(done), "answer")

    def test_bound(self) -> None:
        """No more calls are out than the bound, and those that wait go in order."""

        async def asks(number: int) -> None:
            await self.schedule.SubnGet(NodeInfo, HERE, number)

        done = self.schedule.run(mqueue=(asks(number) for number in range(10)))
        order = []
        while self.agent.calls:
            self.assertLessEqual(len(self.agent.calls), 3)
            order.append(self.agent.calls[0][2])
            self.agent.answer()
        self.successResultOf(done)
        self.assertEqual(order, list(range(10)))
        self.assertEqual((self.schedule.progress.most, self.schedule.progress.calls), (3, 10))

    def test_bursts(self) -> None:
        """Calls beyond the bound wait, whoever makes them."""

        async def asks() -> None:
            answers = [self.schedule.SubnGet(NodeInfo, HERE, number) for number in range(5)]
            for answer in answers:
                await answer

        done = self.schedule.run(asks())
        self.assertEqual((len(self.agent.calls), self.schedule.progress.waiting), (3, 2))
        for _ in range(5):
            self.agent.answer()
        self.successResultOf(done)

    def test_lazy(self) -> None:
        """A source of a million coroutines is asked only for those that have room."""
        made = 0

        async def asks() -> None:
            await self.schedule.SubnGet(NodeInfo, HERE)

        def works() -> Iterator[Any]:
            nonlocal made
            for _ in range(1_000_000):
                made += 1
                yield asks()

        self.schedule.run(mqueue=works()).addErrback(lambda _: None)
        self.assertEqual(made, 3)
        self.agent.answer()
        self.assertEqual(made, 4)
        self.schedule._stop()

    def test_sourceWaits(self) -> None:
        """A generator of work that yields what was queued goes on when that has ended."""
        order: list[str] = []

        async def asks(name: str) -> None:
            await self.schedule.SubnGet(NodeInfo, HERE)
            order.append(name)

        def works() -> Iterator[Any]:
            yield self.schedule.queue(asks("first"))
            order.append("between")
            yield asks("second")

        done = self.schedule.run(mqueue=works())
        self.agent.answer()
        self.agent.answer()
        self.successResultOf(done)
        self.assertEqual(order, ["first", "between", "second"])

    def test_waitForMany(self) -> None:
        """Yielding an C{mqueue} waits for all that came of it."""
        order: list[object] = []

        async def asks(number: int) -> None:
            await self.schedule.SubnGet(NodeInfo, HERE)
            order.append(number)

        def waits() -> Generator[Any, Any, None]:
            yield self.schedule.mqueue(asks(number) for number in range(5))
            order.append("all")

        done = self.schedule.run(waits())
        for _ in range(5):
            self.agent.answer()
        self.successResultOf(done)
        self.assertEqual(order, [0, 1, 2, 3, 4, "all"])

    def test_caught(self) -> None:
        """An exception comes out of C{yield} and C{await} as though the call had raised it."""

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
        """The exception of a piece of work that nobody waits for ends the run; the rest is cancelled."""

        async def asks() -> None:
            await self.schedule.SubnGet(NodeInfo, HERE)

        done = self.schedule.run(mqueue=(asks() for _ in range(5)))
        self.agent.answer(ValueError("no"))
        self.failureResultOf(done, ValueError)
        self.assertEqual((self.agent.cancelled, self.schedule.progress.outstanding), (2, 0))

    def test_cancel(self) -> None:
        """Cancelling the run cancels every call and closes all work."""
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

    def test_nonsense(self) -> None:
        """What cannot be waited for is an error where it is yielded."""

        def yields() -> Generator[Any, Any, None]:
            yield 7

        self.failureResultOf(self.schedule.run(yields()), TypeError)
        self.assertRaises(TypeError, self.schedule.queue, 7)
        self.assertRaises(ValueError, MADSchedule, self.agent, 0)

    def test_deep(self) -> None:
        """Calls that nest deeply and are answered at once need no stack."""

        def down(depth: int) -> Generator[Any, Any, int]:
            if depth == 0:
                return 0
            below: int = yield down(depth - 1)
            return below + 1

        self.assertEqual(self.successResultOf(self.schedule.run(down(5000))), 5000)

    def test_discovery(self) -> None:
        """The example of python-rdma's documentation finds its way through a small fabric."""
        guids: dict[GUID, NodeInfo] = {}
        schedule = self.schedule
        switch = NodeInfo(nodeType=NodeType.SWITCH, numPorts=3, nodeGUID=GUID.fromInt(1))
        hosts = {
            port: NodeInfo(
                nodeType=NodeType.CHANNEL_ADAPTER, numPorts=1, nodeGUID=GUID.fromInt(1 + port), localPortNum=1
            )
            for port in (1, 2, 3)
        }

        def getPortInfo(path: IBDRPath, port: int, follow: bool) -> Generator[Any, Any, None]:
            info = yield schedule.SubnGet(PortInfo, path, port)
            if follow and info.portState != PortState.DOWN:
                yield getNodeInfo(path.then(port))

        def getNodeInfo(path: IBDRPath) -> Generator[Any, Any, None]:
            info = yield schedule.SubnGet(NodeInfo, path)
            if info.nodeGUID in guids:
                return
            guids[info.nodeGUID] = info
            if info.nodeType == NodeType.SWITCH:
                schedule.mqueue(getPortInfo(path, port, True) for port in range(1, info.numPorts + 1))
                yield schedule.SubnGet(PortInfo, path, 0)
            else:
                yield getPortInfo(path, info.localPortNum, len(path.drPath) == 0)

        done = schedule.run(getNodeInfo(HERE))
        while self.agent.calls:
            payload, path, _, _ = self.agent.calls[0]
            assert isinstance(path, IBDRPath)
            node = switch if len(path.drPath) == 1 else hosts[path.drPath[1] if path.drPath else 1]
            self.agent.answer(node if payload is NodeInfo else PortInfo(portState=PortState.ACTIVE))
        self.successResultOf(done)
        self.assertEqual(set(map(int, guids)), {1, 2, 3, 4})

    def test_taskTwice(self) -> None:
        """What has ended can be waited for again."""

        async def asks() -> int:
            return 7

        task: Task = self.schedule.queue(asks())
        self.assertEqual(self.successResultOf(task.wait()), 7)
        self.assertEqual(self.successResultOf(task.wait()), 7)
