"""When connections close as the reactor stops."""

from __future__ import annotations

import gc
from typing import Any
from weakref import ref

from twisted.internet.base import ReactorBase
from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.kit import shutdown
from txrdma.kit.shutdown import addShutdownListener, failingOnShutdown, removeShutdownListener


class IdleReactor(ReactorBase):
    """A reactor that fires events, and has no descriptors."""

    def installWaker(self) -> None: ...

    def removeAll(self) -> list[Any]:
        return []


class ShutdownListenerTests(SynchronousTestCase):
    """Listeners, and other triggers of a reactor that stops."""

    def setUp(self) -> None:
        self.calls: list[str] = []
        self.served: Deferred[None] = Deferred()
        self.left: Deferred[None] = Deferred()
        self.reactor = IdleReactor()
        self.reactor.addSystemEventTrigger("before", "shutdown", lambda: self.served)
        addShutdownListener(self.reactor, self.leave)
        self.reactor.addSystemEventTrigger("during", "shutdown", self.calls.append, "stopped")

    def leave(self) -> Deferred[None]:
        self.calls.append("leave")
        return self.left

    def test_connectionsOutliveServices(self) -> None:
        """As over TCP, a service whose C{stopService} returns a Deferred uses its connections until then."""
        self.reactor.fireSystemEvent("shutdown")
        self.assertEqual(self.calls, [])
        self.served.callback(None)
        self.assertEqual(self.calls, ["leave"])
        self.left.callback(None)
        self.assertEqual(self.calls, ["leave", "stopped"])

    def test_connectionThatEndsMeanwhileIsNotWaitedFor(self) -> None:
        self.reactor.fireSystemEvent("shutdown")
        removeShutdownListener(self.reactor, self.leave)
        self.served.callback(None)
        self.assertEqual(self.calls, ["stopped"])

    def test_connectionThatBeginsMeanwhileIsClosed(self) -> None:
        self.reactor.fireSystemEvent("shutdown")
        addShutdownListener(self.reactor, lambda: self.calls.append("new"))
        self.left.callback(None)
        self.served.callback(None)
        self.assertEqual(self.calls, ["leave", "new", "stopped"])

    def test_firstConnectionThatBeginsMeanwhileIsClosed(self) -> None:
        """A service may connect for the first time when it stops, for example to deregister."""
        removeShutdownListener(self.reactor, self.leave)
        self.reactor.fireSystemEvent("shutdown")
        addShutdownListener(self.reactor, self.leave)
        self.served.callback(None)
        self.assertEqual(self.calls, ["leave"])
        self.left.callback(None)
        self.assertEqual(self.calls, ["leave", "stopped"])

    def test_triggersCanBeRemovedMeanwhile(self) -> None:
        """While connections close, other triggers can be removed and added."""
        removed = self.reactor.addSystemEventTrigger("during", "shutdown", self.calls.append, "removed")
        self.served.callback(None)
        self.reactor.fireSystemEvent("shutdown")
        self.reactor.removeSystemEventTrigger(removed)
        self.reactor.addSystemEventTrigger("after", "shutdown", self.calls.append, "added")
        self.left.callback(None)
        self.assertEqual(self.calls, ["leave", "stopped", "added"])

    def test_unusedReactorHasNoTrigger(self) -> None:
        removeShutdownListener(self.reactor, self.leave)
        self.served.callback(None)
        self.reactor.fireSystemEvent("shutdown")
        self.assertEqual(self.calls, ["stopped"])

    def test_reactorThatNeverStopsIsFreed(self) -> None:
        reactor = IdleReactor()
        addShutdownListener(reactor, lambda: None)
        kept = ref(reactor)
        del reactor
        gc.collect()
        self.assertIsNone(kept())

    def test_reactorThatRunsAgainStopsAgain(self) -> None:
        self.left.callback(None)
        self.served.callback(None)
        self.reactor.fireSystemEvent("shutdown")
        addShutdownListener(self.reactor, self.leave)
        self.reactor.fireSystemEvent("shutdown")
        self.assertEqual(self.calls, ["leave", "stopped", "leave"])


class AttemptTests(SynchronousTestCase):
    """Attempts to connect on a reactor that stops."""

    def setUp(self) -> None:
        self.reactor = IdleReactor()
        self.cancelled: list[Deferred[str]] = []
        self.connecting: Deferred[str] = Deferred(self.cancelled.append)
        self.attempt = failingOnShutdown(self.reactor, self.connecting)

    def test_reactorStops(self) -> None:
        """An attempt is cancelled, and fails as the reactor stops."""
        self.reactor.fireSystemEvent("shutdown")
        self.assertEqual(self.cancelled, [self.connecting])
        error = self.failureResultOf(self.attempt, DeviceUnavailable).value
        self.assertIn("the reactor stops", str(error))

    def test_clientThatConnectsAgainDoesNotPreventStop(self) -> None:
        """A client that tries again at once when an attempt fails does so twice."""
        attempts: list[Deferred[None]] = []

        def again(_: object) -> None:
            self.assertLess(len(attempts), 9)
            attempts.append(failingOnShutdown(self.reactor, Deferred()).addErrback(again))

        self.attempt.addErrback(again)
        self.reactor.fireSystemEvent("shutdown")
        self.assertEqual(len(attempts), 2)

    def test_endedAttempt(self) -> None:
        """Results are not changed, and an attempt that has ended leaves no trigger."""
        self.connecting.callback("connected")
        self.assertEqual(self.successResultOf(self.attempt), "connected")
        self.assertNotIn(id(self.reactor), shutdown._stops)

    def test_cancelled(self) -> None:
        self.attempt.cancel()
        self.failureResultOf(self.attempt, CancelledError)
        self.assertNotIn(id(self.reactor), shutdown._stops)
