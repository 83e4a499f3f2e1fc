"""Exceptions that are raised for one queue pair, which fails, and no other one."""

from __future__ import annotations

from select import select
from typing import Any, cast
from unittest.mock import Mock

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import InvalidRequest
from txrdma.iba.verbs import (
    AsyncEventKind,
    Capacity,
    Operation,
    QPAttributes,
    QPState,
    ReceiveRequest,
    SendRequest,
    Status,
)
from txrdma.interfaces import AsyncEvent
from txrdma.kit.values import replace
from txrdma.sim.network import SimulatedNetwork
from txrdma.sim.sharedmemory import SimulatedMemory
from txrdma.soft.core import completion
from txrdma.soft.core.queuepair import SoftQueuePair
from txrdma.soft.rc.routes import DatagramRoute, RoCERoute
from txrdma.soft.shared import sharedmemoryport
from txrdma.soft.shared._incoming import LaneReceiver
from txrdma.soft.shared._lane import Lane
from txrdma.soft.shared.sharedqueuepair import SharedQueuePair
from txrdma.test.support.compiled import skipIfCompiled
from txrdma.test.support.soft.pairs import another, connected, datagramEnds, End
from txrdma.testing.reactors import ReactorClock

SMALL = Capacity(8, 8, 1, 1, 0)


class Simulated(ZeroDivisionError):
    """An exception of a test."""


class IsolationTests(SynchronousTestCase):
    """Two processes with queue pairs that are connected through shared memory."""

    def setUp(self) -> None:
        skipIfCompiled()
        self.clock = ReactorClock()
        memory = SimulatedMemory(self.clock)
        self.devices = [memory.device(cast(Any, self.clock), f"10.0.0.{number}") for number in (1, 2)]
        for device in self.devices:
            self.addCleanup(device.close)

    def pair(self) -> tuple[Any, Any]:
        """Return two connected ends."""
        return connected(*self.devices)

    def failing(self, owner: object, name: str, only: object = None) -> list[object]:
        """Let the first call of a function raise, perhaps that for one object; return these calls."""
        original = getattr(owner, name)
        calls: list[object] = []

        def function(subject: Any, *arguments: object) -> object:
            if not calls and only in (None, subject, getattr(subject, "owner", None)):
                calls.append(subject)
                raise Simulated
            return original(subject, *arguments)

        self.patch(owner, name, function)
        return calls

    def pause(self) -> None:
        for _ in range(200):
            self.clock.advance(0.001)

    def assertLogged(self, number: int) -> None:
        self.assertEqual(len(self.flushLoggedErrors(Simulated)), number)

    def test_armingInRTR(self) -> None:
        """A queue pair that fails when its route is armed is in ERR after that, not in RTR."""
        one, other = (End(device) for device in self.devices)
        other.join(one)
        other.post(1, Operation.SEND, [other.segment(0, 5)])
        self.pause()
        one.queue.arm()
        self.failing(Lane, "arm")
        with self.assertRaisesRegex(InvalidRequest, "no transition RC ERR to RTS"):
            one.join(other)
        self.assertIs(one.qp.state, QPState.ERR)
        self.assertLogged(1)

    def test_eventOfFailure(self) -> None:
        """All requests are flushed, and the peer is notified, although no event can be raised."""
        one, other = self.pair()
        other.post(1, Operation.SEND, [other.segment(0, 5)])
        one.post(2, Operation.SEND, [one.segment(0, 5)])
        one.receive(3, 0, 100)
        self.pause()
        one.poll()
        one.receive(4, 0, 100)
        calls = one.qp._calls

        def notify(event: AsyncEvent) -> None:
            one.qp._calls = calls
            raise Simulated

        one.qp._calls = replace(calls, notify=notify)
        self.assertRaises(Simulated, one.qp.failed, AsyncEventKind.QP_FATAL)
        flushed = {each.identifier: each.status for each in one.poll()}
        self.assertEqual(flushed, {2: Status.WR_FLUSH_ERR, 4: Status.WR_FLUSH_ERR})
        other.post(5, Operation.SEND, [other.segment(0, 5)])
        self.pause()
        self.assertEqual(other.poll()[-1].status, Status.RETRY_EXC_ERR)

    def test_flushedLane(self) -> None:
        """Requests are flushed, and the peer is notified, although closing the lane raises."""
        one, other = self.pair()
        one.post(1, Operation.SEND, [one.segment(0, 5)])
        self.pause()
        self.failing(LaneReceiver, "close")
        one.qp.modify(QPAttributes(state=QPState.ERR))
        self.assertEqual([each.identifier for each in one.poll()], [1])
        self.assertLogged(1)
        other.post(2, Operation.SEND, [other.segment(0, 5)])
        self.pause()
        self.assertEqual([each.status for each in other.poll()], [Status.RETRY_EXC_ERR])

    def test_flushedRoute(self) -> None:
        """Requests of RoCE are flushed, although completions before them cannot be reported."""
        network = SimulatedNetwork(self.clock)
        devices = [network.device(f"10.0.1.{number}") for number in (1, 2)]
        for device in devices:
            self.addCleanup(device.close)
        for begin, route in ((connected, RoCERoute), (datagramEnds, DatagramRoute)):
            one, other = begin(*devices)
            one.receive(1, 0, 100)
            if route is RoCERoute:
                one.post(2, Operation.SEND, [one.segment(0, 5)])
            self.failing(route, "deliver")
            one.qp.modify(QPAttributes(state=QPState.ERR))
            expected = [2, 1] if route is RoCERoute else [1]
            self.assertEqual([each.identifier for each in one.poll()], expected)
            self.assertLogged(1)

    def test_wakingAReader(self) -> None:
        """If waking a reader raises, the next completion wakes it."""
        one, other = self.pair()
        one.receive(1, 0, 100)
        one.queue.arm()
        calls = self.failing(completion._Bell, "ring")
        self.assertRaises(Simulated, one.qp.failed, None)
        self.assertEqual(len(calls), 1)
        here, _there = another(one, other, SMALL)
        here.postReceive([ReceiveRequest(2, [one.segment(0, 100)])])
        here.failed(None)
        self.assertEqual(select([one.channel], [], [], 0)[0], [one.channel])
        self.assertEqual(one.channel.takeEvents(), [one.queue])
        self.assertEqual([each.identifier for each in one.poll()], [1, 2])

    def members(self) -> tuple[Any, list[SoftQueuePair]]:
        """Return three queue pairs with one completion queue, of which flushing the first one raises."""
        one, other = self.pair()
        self.failing(SoftQueuePair, "_flush", one.qp)
        return one, [one.qp, *(another(one, other, SMALL)[0] for _ in range(2))]

    def test_overrun(self) -> None:
        """An overrun fails all queue pairs, although that raises for one, or the event cannot be raised."""
        one, queuePairs = self.members()
        self.patch(one.queue, "_notify", Mock(side_effect=Simulated))
        self.assertRaises(Simulated, one.queue._overrun)
        self.assertEqual([each.state for each in queuePairs], [QPState.ERR] * 3)
        self.assertLogged(1)

    def test_closedQueue(self) -> None:
        """A completion queue is closed, and all its queue pairs fail, although that raises for one."""
        one, queuePairs = self.members()
        one.queue.close()
        self.assertEqual([each.state for each in queuePairs], [QPState.ERR] * 3)
        self.assertEqual(one.channel._queues, [])
        self.assertLogged(1)

    def postponed(self) -> list[tuple[Any, Any]]:
        """Return pairs of which the last one waits until the peer answers others, and cannot be connected."""
        one, other = self.pair()
        pairs = [another(one, other, SMALL) for _ in range(sharedmemoryport.MOST_UNANSWERED + 1)]
        for here, there in pairs:
            there.postReceive([ReceiveRequest(3, [other.segment(0, 100)])])
            here.postSend([SendRequest(1, Operation.SEND, (one.segment(0, 5),))])
        self.failing(SharedQueuePair, "invite", pairs[-1][0])
        return pairs

    def assertOnlyLastFailed(self, pairs: list[tuple[Any, Any]]) -> None:
        failed = [here for here, _ in pairs if here.state is QPState.ERR]
        self.assertEqual(failed, [pairs[-1][0]])
        self.assertLogged(1)

    def test_laneAfterAnswers(self) -> None:
        """An exception of a queue pair that waited for the answer to another one fails only the former."""
        pairs = self.postponed()
        self.pause()
        self.assertOnlyLastFailed(pairs)

    def test_laneAfterClose(self) -> None:
        """An exception of a queue pair that waited until another one was closed fails only the former."""
        pairs = self.postponed()
        pairs[0][0].close()
        self.assertOnlyLastFailed(pairs)

    def test_attachingALane(self) -> None:
        """A queue pair that does not get its lane, which the peer has requested, fails."""
        one, other = self.pair()
        events: list[AsyncEvent] = []
        other.device.subscribe(events.append)
        self.failing(SoftQueuePair, "_attach", other.qp)
        one.post(1, Operation.SEND, [one.segment(0, 5)])
        self.pause()
        self.assertIs(other.qp.state, QPState.ERR)
        self.assertEqual([each.kind for each in events], [AsyncEventKind.QP_FATAL])
        self.assertEqual([each.status for each in one.poll()], [Status.RETRY_EXC_ERR])
        self.assertLogged(1)
