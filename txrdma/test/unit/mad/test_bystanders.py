"""A handler, listener, server or callback that raises does not affect other calls and clients of an agent."""

from __future__ import annotations

from inspect import signature
from typing import Any, get_args

from twisted.internet.defer import Deferred

from txrdma.error import DeviceUnavailable
from txrdma.iba.path import IBPath
from txrdma.iba.types import LID
from txrdma.interfaces import IMADHandler
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.frames import NO_KEYS
from txrdma.mad.core.transactions import Call
from txrdma.mad.errors import MADError, MADTimeoutError
from txrdma.mad.layouts.attributes import ManagementClass, Method, RPCS
from txrdma.mad.layouts.messages import MADStatus
from txrdma.mad.layouts.pma import PortCounters
from txrdma.mad.layouts.sa import NodeRecord
from txrdma.mad.portwatch import PortEvent, RETURN_SECONDS
from txrdma.test.support.mad.faulty import assertEmpty
from txrdma.test.support.mad.pairs import Answers, pass_, TO_2, WiredPort, WiredTestCase
from txrdma.testing.bystanders import ApplicationError, callbacks, exploding

PERFORMANCE, SA = ManagementClass.PERFORMANCE, ManagementClass.SUBN_ADM


class RaisingAnswers(Answers):
    hasRaised = False


class RaisingCall(Call):
    def failed(self, error: Exception) -> None:
        raise ApplicationError("call")


class OtherServer:
    hasRaised = False

    def requested(self, datagram: bytes, message: bytes, path: IBPath, isLast: bool) -> bool:
        return False

    def ended(self) -> None:
        """Do nothing."""


class BystanderTests(WiredTestCase):
    options = {"timeoutSeconds": 1, "retries": 0}

    def setUp(self) -> None:
        super().setUp()
        self.handle(Answers(lambda request: request.payload), SA)

    def handle(self, handler: Any, managementClass: int = PERFORMANCE) -> None:
        self.server.handle(managementClass, handler, (Method.GET,))

    def ask(self) -> Deferred[Any]:
        return self.agent.PerformanceGet(PortCounters, TO_2, 5)

    def askBystander(self) -> Deferred[Any]:
        return self.agent.SubnAdmGet(NodeRecord.query(lid=LID(7)), TO_2)

    def assertAnswered(self, call: Deferred[Any]) -> None:
        for each in (call, self.askBystander()):
            pass_(self.clock, 0.1)
            self.assertIsInstance(self.successResultOf(each), NodeRecord)

    def finish(self, errors: int = 1) -> None:
        for agent in (self.agent, self.other):
            agent.close()
        self.assertEqual([each.isClosed for each in self.wire.ports], [True, True])
        self.assertEqual(len(self.flushLoggedErrors(ApplicationError)), errors)
        assertEmpty(self, self.agent)
        assertEmpty(self, self.other)
        pass_(self.clock, 0.1)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_timer(self) -> None:
        """Timeouts continue after an exception of the core, with a pause between exceptions."""
        core, expired = self.agent._core, self.agent._core.expired
        times: list[float] = []

        def raising(now: float) -> None:
            times.append(now)
            if len(times) < 3:
                raise ApplicationError
            expired(now)

        core.expired = raising  # type: ignore[method-assign]
        call = self.agent.PerformanceGet(PortCounters, IBPath(dlid=LID(99)), 5)
        pass_(self.clock, 2.0)
        self.failureResultOf(call, MADTimeoutError)
        self.assertGreaterEqual(times[2] - times[0], 0.1)
        self.finish(2)

    def test_handler(self) -> None:
        for name in callbacks(IMADHandler):
            self.setUp()
            self.handle(exploding(RaisingAnswers, name)(lambda request: request.payload))
            first, bystander = self.ask(), self.askBystander()
            self.assertAnswered(bystander)
            self.assertEqual(self.failureResultOf(first, MADError).value.status, MADStatus.INVALID_FIELD)
            again = self.ask()
            pass_(self.clock, 0.1)
            self.assertIsInstance(self.successResultOf(again), PortCounters)
            self.finish()

    def test_laterAnswer(self) -> None:
        """Other requests are answered if a handler's Deferred fails later, or its cancellation raises."""

        def cancel(_: object) -> None:
            raise ApplicationError("canceller")

        for isCancelled in (False, True):
            self.setUp()
            later: Deferred[Any] = Deferred(cancel)
            self.handle(Answers(lambda request: later))  # noqa: B023
            first, bystander = self.ask(), self.askBystander()
            self.assertAnswered(bystander)
            if isCancelled:
                pass_(self.clock, 30, 0.01)
            else:
                later.errback(ApplicationError("later"))
            pass_(self.clock, 0.1)
            self.failureResultOf(first)
            self.assertAnswered(self.askBystander())
            self.finish()

    def test_server(self) -> None:
        for name in tuple(signature(self.other.serve).parameters):
            self.setUp()
            other = exploding(OtherServer, name)()
            self.other.serve(other.requested, other.ended)
            self.assertAnswered(self.askBystander())
            self.other.portLost("for the test")
            self.assertTrue(other.hasRaised)
            self.finish()

    def test_portListeners(self) -> None:
        """Each event of a port is notified to other listeners if one raises, and the port goes on."""
        reports: list[PortEvent] = []

        def fail(event: PortEvent) -> None:
            raise ApplicationError("port")

        opened = WiredPort(self.wire, 3)
        agent = MADAgent(self.clock, WiredPort(self.wire, 4), reopen=lambda: opened)
        agent.watch(fail, False)
        agent.watch(reports.append, False)
        bystander = self.askBystander()
        agent.portChanged(False)
        agent.portLost("for the test")
        pass_(self.clock, RETURN_SECONDS + 1, 0.1)
        self.assertEqual({type(each) for each in reports}, set(get_args(PortEvent)))
        self.assertIs(opened.receiver, agent)
        agent.close()
        self.assertAnswered(bystander)
        self.finish(len(reports))

    def test_raisingCall(self) -> None:
        """When the port is lost, other calls fail and listeners are notified if one call raises."""
        reports: list[PortEvent] = []
        self.agent.watch(reports.append, False)
        raising = RaisingCall(RPCS["PerformanceGet"], PortCounters, b"", 5, NO_KEYS, 0)
        self.agent.issue(raising, TO_2, 1.0, 0)
        bystander = self.askBystander()
        self.agent.portLost("for the test")
        self.failureResultOf(bystander, DeviceUnavailable)
        self.assertEqual(len(reports), 1)
        self.assertEqual(len(self.flushLoggedErrors(ApplicationError)), 1)

    def test_calls(self) -> None:
        """Other calls continue if a call's callback raises at its answer, its timeout or the agent's end."""

        def fail(result: Any) -> None:
            raise ApplicationError("callback")

        for cause in ("answer", "timeout", "close"):
            self.setUp()
            self.handle(Answers(lambda request: request.payload if cause == "answer" else None))  # noqa: B023
            first = self.ask().addBoth(fail)
            bystander = self.askBystander()
            self.assertAnswered(bystander)
            pass_(self.clock, 3 if cause == "timeout" else 0.1, 0.01)
            last = self.ask()  # is still open when the agent is closed
            self.agent.close()
            self.failureResultOf(first, ApplicationError)
            self.failureResultOf(last, DeviceUnavailable)
            self.finish(0)
