"""Message connections whose reactor stops, in simulated time."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any
from unittest.mock import Mock

from zope.interface import alsoProvides, implementer, noLongerProvides

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectError, ConnectionRefusedError
from twisted.internet.interfaces import IReactorCore
from twisted.internet.protocol import Factory
from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.connections import adapter as adapters
from txrdma.cm.connections.datagrams import DatagramClientEndpoint
from txrdma.cm.rsocket.endpoints import RSocketClientEndpoint, RSocketServerEndpoint
from txrdma.error import DeviceUnavailable, Refused
from txrdma.kit.shutdown import addShutdownListener, IClosesOnShutdown, LEAVING_SECONDS, Stopping
from txrdma.messages.protocol import MessageFactory
from txrdma.sim.network import Faults
from txrdma.test.support.cm.messaging import MessagingCase
from txrdma.testing.protocols import Recorder
from txrdma.testing.reactors import ReactorClock


class StoppingTests(SynchronousTestCase):
    """The end of a connection when its reactor stops."""

    def setUp(self) -> None:
        self.clock = ReactorClock()
        alsoProvides(self.clock, IReactorCore)  # the part of it that is used
        self.done: list[str] = []

    def make(self, protocol: object = None) -> Stopping:
        """Return a connection that records calls."""
        return Stopping(
            self.clock, protocol, lambda: self.done.append("leave"), lambda: self.done.append("abort")
        )

    def test_reactorWaitsForOrderlyEnd(self) -> None:
        stopping = self.make()
        stopped = self.clock.stop()
        self.assertEqual(self.done, ["leave"])
        self.assertNoResult(stopped)
        stopping.ended()
        self.successResultOf(stopped)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_unresponsivePeerIsAbandoned(self) -> None:
        stopping = self.make()
        stopped = self.clock.stop()
        self.clock.advance(LEAVING_SECONDS)
        self.assertEqual(self.done, ["leave", "abort"])
        stopping.ended()
        self.successResultOf(stopped)

    def test_reactorWaitsForAll(self) -> None:

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

    def test_connectionEndedByAnotherIsNotWaitedFor(self) -> None:
        others: list[Stopping] = []
        first = Stopping(self.clock, None, lambda: others[0].ended(), lambda: None)
        others.append(self.make())
        stopped = self.clock.stop()
        first.ended()
        self.successResultOf(stopped)
        self.assertEqual((self.done, self.clock.getDelayedCalls()), ([], []))

    def test_connectionMadeWhileStoppingEnds(self) -> None:
        made: list[Stopping] = []
        first = Stopping(self.clock, None, lambda: made.append(self.make()), lambda: None)
        stopped = self.clock.stop()
        self.assertEqual(self.done, ["leave"])
        first.ended()
        self.assertNoResult(stopped)
        made[0].ended()
        self.successResultOf(stopped)

    def test_connectionMadeAfterwardsIsClosed(self) -> None:
        """A connection that is made while the reactor waits for others is closed, but not waited for."""
        first = self.make()
        stopped = self.clock.stop()
        second, ended = self.make(), self.make()
        ended.ended()
        self.clock.advance(0)
        self.assertEqual(self.done, ["leave", "leave"])
        self.assertNoResult(stopped)
        first.ended()
        self.successResultOf(stopped)
        second.ended()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_endedConnectionLeavesNoTrigger(self) -> None:
        stopping = self.make()
        stopping.ended()
        stopping.ended()
        self.assertEqual((self.clock.triggers, self.done), ([], []))

    def test_protocolEndingItselfIsLeftAlone(self) -> None:

        @implementer(IClosesOnShutdown)
        class Stream:
            pass

        self.make(Stream()).ended()
        self.assertEqual(self.clock.triggers, [])


class ListeningTests(MessagingCase):
    """Listeners on a reactor that waits for connections."""

    def setUp(self) -> None:
        super().setUp()
        alsoProvides(self.clock, IReactorCore)  # the part of it that is used

    def checkRefused(self, connect: Callable[[], Deferred[Any]], refusal: type[Exception]) -> None:
        """Check that a client is refused while the reactor of the server waits for a connection."""
        (adapter,) = [each for key, each in adapters._adapters.items() if key[0] is self.clock]
        release = adapter.hold()  # as the connection does
        waiting: Deferred[None] = Deferred()
        addShutdownListener(self.clock, lambda: waiting)
        stopped = self.clock.stop()
        noLongerProvides(self.clock, IReactorCore)  # from now on it is the client's
        self.failure(connect(), refusal)
        self.assertNoResult(stopped)
        waiting.callback(None)
        release()
        self.assertNothingLeft()

    def test_streams(self) -> None:
        """As over TCP, a stopping server refuses clients, although it waits until others have read."""
        factory = Factory.forProtocol(Recorder)
        self.listenAt(factory, RSocketServerEndpoint)
        self.checkRefused(lambda: self.connectTo(factory, RSocketClientEndpoint), ConnectionRefusedError)

    def test_messages(self) -> None:
        self.listenAt()
        self.checkRefused(self.connectTo, Refused)

    def test_stoppedListenerLeavesNoTrigger(self) -> None:
        self.listenAt()
        self.assertNothingLeft()
        self.assertEqual(self.clock.triggers, [])


class AttemptTests(MessagingCase):
    """Attempts to connect to a peer that does not answer, on a reactor that stops."""

    def setUp(self) -> None:
        super().setUp()
        alsoProvides(self.clock, IReactorCore)  # the part of it that is used
        self.network.faults = Faults(loss=1.0)

    def check(self, connecting: Deferred[Any], kind: type[Exception]) -> None:
        """Stop the reactor, and check that the attempt fails, and that nothing is left of it."""
        self.clock.step()
        self.assertNoResult(connecting)
        self.successResultOf(self.clock.stop())
        self.failureResultOf(connecting, kind)
        self.assertNothingLeft()

    def test_streams(self) -> None:
        """As over TCP, an attempt fails with C{ConnectError}."""
        self.check(self.connectTo(Factory.forProtocol(Recorder), RSocketClientEndpoint), ConnectError)

    def test_messages(self) -> None:
        self.check(self.connectTo(), DeviceUnavailable)

    def test_services(self) -> None:
        self.check(self.ask(), DeviceUnavailable)

    def test_datagrams(self) -> None:
        self.check(self.connectTo(MessageFactory(Mock), DatagramClientEndpoint), DeviceUnavailable)
