"""
Connections for messages whose reactor stops, by the communication manager and by the byte transfer layer.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zope.interface import alsoProvides, implementer

from twisted.internet.defer import Deferred
from twisted.internet.interfaces import IReactorCore
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.stopping import IParting, LEAVING_SECONDS, Stopping


class StoppingClock(Clock):
    """
    A clock that stops.

    @ivar triggers: what is called before that.
    """

    def __init__(self) -> None:
        super().__init__()
        alsoProvides(self, IReactorCore)  # as much of it as is needed
        self.triggers: list[Callable[[], Deferred[None]]] = []

    def addSystemEventTrigger(self, phase: str, event: str, trigger: Any) -> Any:
        """Note a trigger."""
        assert (phase, event) == ("before", "shutdown")
        self.triggers.append(trigger)
        return trigger

    def removeSystemEventTrigger(self, trigger: Any) -> None:
        """Forget it."""
        self.triggers.remove(trigger)

    def stop(self) -> Deferred[None]:
        """Stop; there is one trigger for all."""
        [trigger] = self.triggers
        self.triggers.clear()
        return trigger()


class StoppingTests(SynchronousTestCase):
    """The last moments of a connection, on a clock."""

    def setUp(self) -> None:
        self.clock = StoppingClock()
        self.done: list[str] = []

    def make(self, protocol: object = None) -> Stopping:
        """A connection that notes what is asked of it."""
        return Stopping(
            self.clock, protocol, lambda: self.done.append("leave"), lambda: self.done.append("abort")
        )

    def test_inTime(self) -> None:
        """The reactor waits until the protocol has heard of the end, and nothing is left."""
        stopping = self.make()
        stopped = self.clock.stop()
        self.assertEqual(self.done, ["leave"])
        self.assertNoResult(stopped)
        stopping.ended()
        self.successResultOf(stopped)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_late(self) -> None:
        """A peer that takes nothing is left behind after a while."""
        stopping = self.make()
        stopped = self.clock.stop()
        self.clock.advance(LEAVING_SECONDS)
        self.assertEqual(self.done, ["leave", "abort"])
        stopping.ended()
        self.successResultOf(stopped)

    def test_several(self) -> None:
        """The reactor waits for all; one that fails keeps nobody from leaving."""

        def fail() -> None:
            raise ValueError("no")

        connections = [self.make(), Stopping(self.clock, None, fail, fail), self.make()]
        stopped = self.clock.stop()
        self.assertEqual(self.done, ["leave", "leave"])
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        for connection in connections:
            self.assertNoResult(stopped)
            connection.ended()
        self.successResultOf(stopped)

    def test_endedMeanwhile(self) -> None:
        """A connection that another one's end takes along, as a proxy's does, is not waited for."""
        others: list[Stopping] = []
        first = Stopping(self.clock, None, lambda: others[0].ended(), lambda: None)
        others.append(self.make())
        stopped = self.clock.stop()
        first.ended()
        self.successResultOf(stopped)
        self.assertEqual((self.done, self.clock.getDelayedCalls()), ([], []))

    def test_madeMeanwhile(self) -> None:
        """A connection that is made while the reactor stops ends, too."""
        made: list[Stopping] = []
        first = Stopping(self.clock, None, lambda: made.append(self.make()), lambda: None)
        stopped = self.clock.stop()
        self.assertEqual(self.done, ["leave"])
        first.ended()
        self.assertNoResult(stopped)
        made[0].ended()
        self.successResultOf(stopped)

    def test_endedBefore(self) -> None:
        """A connection that ends before the reactor stops leaves no trigger."""
        stopping = self.make()
        stopping.ended()
        stopping.ended()
        self.assertEqual((self.clock.triggers, self.done), ([], []))

    def test_parting(self) -> None:
        """A protocol that ends its connection by itself is left to do so."""

        @implementer(IParting)
        class Stream:
            pass

        self.make(Stream()).ended()
        self.assertEqual(self.clock.triggers, [])
