"""Subscriptions to notices: renewal, refusals, handover, and loss of the port."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from twisted.internet.task import Clock
from twisted.logger import capturedLogs
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable, ResourceExhausted
from txrdma.iba.path import IBPath, MADEndPort
from txrdma.iba.types import GID, LID, QPN
from txrdma.iba.verbs import PhysicalState
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.frames import frame
from txrdma.mad.errors import MADRefusal, MADTimeoutError
from txrdma.mad.layouts import sa
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.messages import InformInfo, MADRequest, Notice
from txrdma.mad.layouts.smp import NodeInfo, PortInfo
from txrdma.mad.portwatch import PortLost, PortReturned
from txrdma.mad.server import MADServer
from txrdma.mad.subscription import Subscription
from txrdma.test.support.mad.pairs import Answers, pass_, TO_1, TO_2, Wire, WiredPort
from txrdma.test.support.mad.simulated import FabricTestCase, gmp, route


class SubscriptionTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.wire = Wire(self.clock)
        self.agent = MADAgent(self.clock, self.wire.ports[0], timeoutSeconds=0.5)
        self.manager = MADAgent(self.clock, self.wire.ports[1], timeoutSeconds=0.5)
        self.refuses = False
        self.answers = Answers(self.answer)
        MADServer(self.manager).handle(ManagementClass.SUBN_ADM, self.answers, (Method.SET,))
        self.reports: list[int] = []
        self.server = MADServer(self.agent)
        self.subscription = self.subscribed(TO_2, renewalSeconds=10)

    def subscribed(self, administration: IBPath | None, **options: Any) -> Subscription:
        return Subscription(
            *(self.clock, self.agent, self.server, administration),
            lambda notice, request: self.reports.append(notice.trapNumber),
            **options,
        )

    def answer(self, request: MADRequest) -> object:
        if self.refuses:
            raise MADRefusal(0x0100)
        return request.payload

    def wishes(self) -> list[int]:
        return [
            request.payload.subscribe
            for request in self.answers.asked
            if isinstance(request.payload, InformInfo)
        ]

    def test_renewal(self) -> None:
        self.subscription.start()
        self.subscription.start()
        pass_(self.clock, 35, 0.1)
        self.assertTrue(self.subscription.isStanding)
        self.assertEqual(self.wishes(), [1, 1, 1, 1])
        done = self.subscription.stop()
        pass_(self.clock, 1, 0.1)
        self.successResultOf(done)
        self.successResultOf(self.subscription.stop())
        self.assertEqual(self.wishes(), [1, 1, 1, 1, 0])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_silence(self) -> None:
        self.wire.lose = lambda datagram: True
        self.subscription.start()
        pass_(self.clock, 30, 0.1)
        self.assertFalse(self.subscription.isStanding)
        done = self.subscription.stop()
        pass_(self.clock, 5, 0.1)
        self.successResultOf(done)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_reports(self) -> None:
        self.subscription.start()
        pass_(self.clock, 1, 0.1)
        report = self.manager.SubnAdmReport(Notice(isGeneric=True, trapNumber=64, issuerLID=LID(2)), TO_1)
        pass_(self.clock, 1, 0.1)
        self.successResultOf(report)
        self.subscription.stop()
        self.manager.SubnAdmReport(Notice(isGeneric=True, trapNumber=65), TO_1)
        pass_(self.clock, 1, 0.1)
        self.assertEqual(self.reports, [64])

    def test_chosen(self) -> None:
        self.subscription = self.subscribed(TO_2, trapNumber=64)
        self.subscription.start()
        for trap in (64, 65, 66, 64):
            self.manager.SubnAdmReport(Notice(isGeneric=True, trapNumber=trap), TO_1)
        losing = iter((False, True, False, True))
        pass_(self.clock, 0.2, 0.01)
        self.wire.lose = lambda datagram: next(losing, False)
        self.manager.SubnAdmReport(Notice(isGeneric=True, trapNumber=64, count=1), TO_1)
        pass_(self.clock, 3, 0.01)
        self.assertEqual(self.reports, [64, 64, 64])

    def test_half(self) -> None:
        self.answers.how = lambda request: InformInfo(trapNumber=0xFFFF, subscribe=0)
        self.subscription.start()
        pass_(self.clock, 1, 0.1)
        self.assertFalse(self.subscription.isStanding)

    def test_soon(self) -> None:
        self.refuses = True
        self.subscription = self.subscribed(TO_2, renewalSeconds=1000)
        self.subscription.start()
        pass_(self.clock, 1, 0.1)
        self.refuses = False
        pass_(self.clock, 6, 0.1)
        self.assertTrue(self.subscription.isStanding)
        pass_(self.clock, 100, 0.5)
        self.assertEqual(self.wishes(), [1, 1])

    def test_reregister(self) -> None:
        self.subscription = self.subscribed(TO_2, renewalSeconds=1000)
        self.subscription.start()
        pass_(self.clock, 1, 0.1)
        for mustRegister, wishes in ((False, [1]), (True, [1, 1]), (False, [1, 1]), (True, [1, 1, 1])):
            self.agent.portChanged(mustRegister)
            self.assertEqual(self.subscription.isStanding, not mustRegister)
            pass_(self.clock, 0.2, 0.1)
            self.assertTrue(self.subscription.isStanding)
            self.assertEqual(self.wishes(), wishes)
        self.subscription.stop()
        self.agent.portChanged(True)
        pass_(self.clock, 100, 0.5)
        self.assertEqual(self.wishes(), [1, 1, 1, 0])

    def test_renew(self) -> None:
        self.subscription = self.subscribed(TO_2, renewalSeconds=1000)
        self.subscription.renew()
        self.subscription.start()
        pass_(self.clock, 1, 0.1)
        self.subscription.renew()
        pass_(self.clock, 0.2, 0.1)
        self.assertEqual(self.wishes(), [1, 1])
        self.subscription.renew()
        self.subscription.renew()
        pass_(self.clock, 0.2, 0.1)
        self.assertTrue(self.subscription.isStanding)
        self.subscription.stop()
        self.subscription.renew()
        pass_(self.clock, 100, 0.5)
        self.assertEqual(self.wishes(), [1, 1, 1, 1, 0])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_handover(self) -> None:
        """If the port's manager or LID changes, the subscription is renewed, and ended at the old manager."""
        port = self.wire.ports[0]
        port.endPort = replace(port.endPort, smLID=LID(2))
        self.subscription = self.subscribed(None, renewalSeconds=1000)
        self.subscription.start()
        pass_(self.clock, 10, 0.1)
        self.assertEqual(self.wishes(), [1])
        port.endPort = replace(port.endPort, smLID=LID(77))  # no manager has this LID
        pass_(self.clock, 5.1, 0.1)
        self.assertFalse(self.subscription.isStanding)
        port.endPort = replace(port.endPort, smLID=LID(2))
        pass_(self.clock, 6, 0.1)
        self.assertTrue(self.subscription.isStanding)
        self.assertEqual(self.wishes(), [1, 1])
        port.endPort = replace(port.endPort, gids=(GID(bytes(16)),))
        pass_(self.clock, 6, 0.1)
        self.assertEqual(self.wishes(), [1, 1, 1])

        def gone() -> MADEndPort:
            raise DeviceUnavailable("the port is being configured")

        self.patch(port, "refresh", gone)
        pass_(self.clock, 20, 0.1)
        self.assertEqual(self.wishes(), [1, 1, 1])
        self.subscription.stop()
        pass_(self.clock, 1, 0.1)
        self.assertEqual(self.wishes(), [1, 1, 1, 0])

    def test_stopsEarly(self) -> None:
        self.subscription.start()
        done = self.subscription.stop()
        pass_(self.clock, 1, 0.01)
        self.successResultOf(done)
        self.assertFalse(self.subscription.isStanding)
        self.assertEqual(self.wishes(), [1, 0])

    def test_loggedAgain(self) -> None:
        """The first of several refusals is logged, and so is the first one after a success."""
        with capturedLogs() as logs:
            for refuses in (True, False, True):
                self.refuses = refuses
                self.subscription.start()
                pass_(self.clock, 25, 0.1)
        warned = [one for one in logs if "no subscription" in str(one["log_format"])]
        self.assertEqual(len(warned), 2)

    def test_noManager(self) -> None:
        """While the port has no subnet manager, no report is accepted, not even one from LID 0."""
        self.subscription = self.subscribed(None)
        self.subscription.start()
        notice = Notice(isGeneric=True, trapNumber=64, issuerLID=LID(2)).encode()
        report = frame(ManagementClass.SUBN_ADM, Method.REPORT, 77, Notice.attributeID, 0, notice)
        for lid, expected in ((0, []), (2, [64])):
            self.agent.received(report, IBPath(slid=LID(lid), dlid=LID(1), sqpn=QPN(1), dqpn=QPN(1)))
            self.assertEqual(self.reports, expected)
            self.wire.ports[0].endPort = replace(self.wire.ports[0].endPort, smLID=LID(2))

    def test_restart(self) -> None:
        """A restarted subscription is not ended by a retransmitted request that ended the former one."""
        self.subscription.start()
        pass_(self.clock, 1, 0.1)
        losing = iter((True,))
        self.wire.lose = lambda datagram: next(losing, False)
        done = self.subscription.stop()
        self.subscription.start()
        pass_(self.clock, 5, 0.1)
        self.successResultOf(done)
        self.assertEqual((self.subscription.isStanding, self.wishes()), (True, [1, 1]))

    def test_silentLoss(self) -> None:
        with capturedLogs() as events:
            self.wire.lose = lambda datagram: True
            self.subscription.start()
            pass_(self.clock, 300, 0.5)
            self.assertEqual([event["log_level"].name for event in events].count("warn"), 1)
            self.agent.portLost("the device is gone")
            pass_(self.clock, 3600, 1)
            self.assertEqual([event["log_level"].name for event in events].count("warn"), 2)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_return(self) -> None:
        self.agent.close()
        self.wire.ports[0].isClosed = False
        missing = iter((True, True))

        def reopen() -> WiredPort:
            if next(missing, False):
                raise DeviceUnavailable("not yet")
            port = WiredPort(self.wire, 1)
            self.wire.ports = (port, self.wire.ports[1])
            self.served: list[tuple[object, ...]] = []

            def serve(*what: object) -> Callable[[], None]:
                self.served.append(what)
                return lambda: None

            self.patch(port, "serve", serve)
            return port

        self.agent = MADAgent(self.clock, self.wire.ports[0], timeoutSeconds=0.5, reopen=reopen)
        self.server = MADServer(self.agent)
        self.subscription = self.subscribed(TO_2, renewalSeconds=1000)
        self.subscription.start()
        pass_(self.clock, 1, 0.1)
        self.agent.port.close()
        self.agent.portLost("the device is gone")
        self.failureResultOf(self.agent.SubnGet(NodeInfo, TO_2), DeviceUnavailable)
        pass_(self.clock, 10, 0.5)
        self.assertFalse(self.subscription.isStanding)
        pass_(self.clock, 10, 0.5)
        self.assertTrue(self.subscription.isStanding)
        self.assertEqual(self.wishes(), [1, 1])
        self.assertEqual(self.served, [(ManagementClass.SUBN_ADM, (Method.REPORT,), 0)])
        self.manager.SubnAdmReport(Notice(isGeneric=True, trapNumber=64), TO_1)
        pass_(self.clock, 1, 0.1)
        self.assertEqual(self.reports, [64])
        self.agent.portLost("again")
        self.agent.close()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_startsLost(self) -> None:
        """A subscription that is started while the port is lost begins when the port returns."""
        lost, returned = WiredPort(self.wire, 1), WiredPort(self.wire, 1)
        served: list[tuple[WiredPort, object]] = []
        for port in (lost, returned):

            def serve(*what: object, port: WiredPort = port) -> Callable[[], None]:
                served.append((port, what))
                return lambda: None

            self.patch(port, "serve", serve)
        agent = self.agent = MADAgent(self.clock, lost, timeoutSeconds=0.5, reopen=lambda: returned)
        self.server = MADServer(agent)
        lost.close()
        agent.portLost("the device is gone")
        self.subscription = self.subscribed(TO_2, renewalSeconds=1000)
        self.subscription.start()
        self.wire.ports = (returned, self.wire.ports[1])
        pass_(self.clock, 10, 0.5)
        self.assertEqual(served, [(returned, (ManagementClass.SUBN_ADM, (Method.REPORT,), 0))])
        self.assertTrue(self.subscription.isStanding)
        self.manager.SubnAdmReport(Notice(isGeneric=True, trapNumber=64), TO_1)
        pass_(self.clock, 1, 0.1)
        self.assertEqual(self.reports, [64])
        agent.close()

    def test_refusedOnReturn(self) -> None:
        """Requests that another program has registered for until the port returned are received after it."""
        returned = WiredPort(self.wire, 1)
        refused = iter([True] * 3)
        asked: list[tuple[object, ...]] = []

        def serve(*what: object) -> Callable[[], None]:
            asked.append(what)
            if next(refused, False):
                raise ResourceExhausted("class 0x3 is in use")
            return lambda: None

        self.patch(returned, "serve", serve)
        agent = MADAgent(self.clock, self.wire.ports[0], timeoutSeconds=0.5, reopen=lambda: returned)
        end = agent.register(ManagementClass.SUBN_ADM, (Method.REPORT,))
        agent.portLost("the device is gone")
        with capturedLogs() as logs:
            pass_(self.clock, 60, 0.5)
        self.assertEqual((len(asked), len(logs)), (4, 2))
        end()
        agent.close()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_refusedUntilClosed(self) -> None:
        """No registration is tried again after the agent was closed, or the port was lost again."""
        asked: list[WiredPort] = []

        def reopen() -> WiredPort:
            port = WiredPort(self.wire, 1)

            def serve(*what: object) -> Callable[[], None]:
                asked.append(port)
                raise ResourceExhausted("class 0x3 is in use")

            self.patch(port, "serve", serve)
            return port

        agent = MADAgent(self.clock, self.wire.ports[0], timeoutSeconds=0.5, reopen=reopen)
        agent.register(ManagementClass.SUBN_ADM, (Method.REPORT,))
        for reason in ("the device is gone", "again"):
            agent.portLost(reason)
            pass_(self.clock, 6, 0.5)
        self.assertEqual(len(set(asked)), 2)
        agent.close()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_lostAtOnce(self) -> None:
        """Listeners get no notice of the return of a port that is lost again while it is started or used."""
        events: list[type] = []

        def reopen() -> WiredPort:
            port = WiredPort(self.wire, 1)
            reopened.append(port)
            if len(reopened) == 1:
                self.patch(port, "start", lambda receiver: receiver.portLost("at once"))
            elif len(reopened) == 2:
                self.patch(port, "serve", lambda *what: agent.portLost("by use"))
            return port

        reopened: list[WiredPort] = []
        agent = MADAgent(self.clock, self.wire.ports[0], timeoutSeconds=0.5, reopen=reopen)
        agent.register(ManagementClass.SUBN_ADM, (Method.REPORT,))
        agent.watch(lambda event: events.append(type(event)))
        agent.portLost("the device is gone")
        pass_(self.clock, 30, 0.5)
        self.assertEqual((events, len(reopened)), ([PortLost, PortLost, PortLost, PortReturned], 3))
        agent.close()

    def test_returnFails(self) -> None:
        broken = iter([True, True])

        def reopen() -> WiredPort:
            if next(broken, False):
                raise ValueError("oops")
            return WiredPort(self.wire, 1)

        agent = MADAgent(self.clock, self.wire.ports[0], timeoutSeconds=0.5, reopen=reopen)
        agent.portLost("the device is gone")
        pass_(self.clock, 30, 0.5)
        self.assertIsNot(agent.port, self.wire.ports[0])
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        agent.close()

    def test_startFails(self) -> None:
        """A port that the reactor cannot read is closed, and is opened again later."""
        opened: list[WiredPort] = []

        def reopen() -> WiredPort:
            opened.append(WiredPort(self.wire, 1))
            if len(opened) == 1:
                self.patch(opened[0], "start", start)
            return opened[-1]

        def start(receiver: object) -> None:
            raise ResourceExhausted("simulated")

        port = WiredPort(self.wire, 1)
        self.patch(port, "start", start)
        self.assertRaises(ResourceExhausted, MADAgent, self.clock, port, reopen=reopen)
        self.assertTrue(port.isClosed)
        agent = MADAgent(self.clock, self.wire.ports[0], timeoutSeconds=0.5, reopen=reopen)
        agent.portLost("the device is gone")
        pass_(self.clock, 30, 0.5)
        self.assertEqual([each.isClosed for each in opened], [True, False])
        self.assertIs(agent.port, opened[1])
        agent.close()
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_closedWhileStarting(self) -> None:
        """No port is opened any more after an agent was closed while one was started, in vain."""

        def reopen() -> WiredPort:
            port = WiredPort(self.wire, 1)
            self.patch(port, "start", start)
            opened.append(port)
            return port

        def start(receiver: object) -> None:
            agent.close()
            raise ResourceExhausted("simulated")

        opened: list[WiredPort] = []
        agent = MADAgent(self.clock, self.wire.ports[0], timeoutSeconds=0.5, reopen=reopen)
        agent.portLost("the device is gone")
        pass_(self.clock, 30, 0.5)
        self.assertEqual([each.isClosed for each in opened], [True])
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_clockSetBack(self) -> None:
        """After a port has returned, its calls end in time if the clock is set back and others are made."""
        agent = MADAgent(self.clock, self.wire.ports[0], reopen=lambda: WiredPort(self.wire, 1))
        agent.portLost("the device is gone")
        pass_(self.clock, 10, 0.5)
        self.clock.advance(7200.0)
        self.wire.lose = lambda datagram: True
        silent = agent.SubnGet(NodeInfo, TO_2, timeoutSeconds=0.5)
        self.clock.rightNow -= 3600.0
        self.manager.SubnGet(NodeInfo, TO_1, timeoutSeconds=0.2).addErrback(lambda failure: None)
        pass_(self.clock, 4.0, 0.1)
        self.failureResultOf(silent, MADTimeoutError)
        agent.close()

    def test_registrationFails(self) -> None:
        """A port that raises any exception at registrations is in use; every registration is tried."""
        methods = [Method.REPORT, Method.TRAP, Method.SET]
        tried: list[Method] = []
        events: list[type] = []

        def serve(managementClass: int, methods: Sequence[Method], oui: int = 0) -> Callable[[], None]:
            tried.extend(methods)
            raise OSError("simulated")

        port = WiredPort(self.wire, 1)
        self.patch(port, "serve", serve)
        agent = MADAgent(self.clock, WiredPort(self.wire, 1), timeoutSeconds=0.5, reopen=lambda: port)
        for method in methods:
            agent.register(ManagementClass.SUBN_ADM, (method,))
        agent.watch(lambda event: events.append(type(event)))
        agent.portLost("the device is gone")
        pass_(self.clock, 8, 0.5)
        self.assertEqual((set(tried), len(tried)), (set(methods), 3))
        self.assertEqual(events, [PortLost, PortReturned])
        self.assertEqual(len(self.flushLoggedErrors(OSError)), 3)
        agent.close()

    def test_closedByLoss(self) -> None:
        """An agent that a call's callback or a listener closes when the port is lost is not reopened."""
        opened: list[WiredPort] = []

        def reopen() -> WiredPort:
            opened.append(WiredPort(self.wire, 1))
            return opened[-1]

        for isListener in (False, True):
            agent = MADAgent(self.clock, WiredPort(self.wire, 1), timeoutSeconds=0.5, reopen=reopen)
            call = agent.SubnGet(NodeInfo, TO_2)
            failures: list[Failure] = []

            def close(event: object, agent: MADAgent = agent) -> None:
                agent.close()

            call.addErrback(failures.append)
            agent.watch(close, isPolled=False) if isListener else call.addCallback(close)
            agent.portLost("the device is gone")
            self.assertIsNotNone(failures[0].check(DeviceUnavailable))
            pass_(self.clock, 30, 0.5)
            self.failureResultOf(agent.SubnGet(NodeInfo, TO_2), DeviceUnavailable)
        self.assertEqual((opened, self.clock.getDelayedCalls()), ([], []))

    def test_unwatch(self) -> None:
        """A listener of the port is not called if another listener removes it during the same event."""
        ends: list[Callable[[], None]] = []
        calls: list[int] = []

        def listener(event: object) -> None:
            calls.append(len(ends))
            while ends:
                ends.pop()()

        ends += [self.agent.watch(listener, False), self.agent.watch(listener, False)]
        self.agent.portChanged(False)
        self.assertEqual(calls, [2])

    def test_taken(self) -> None:
        port = self.wire.ports[0]
        serve = port.serve

        def taken(managementClass: int, methods: Sequence[int], oui: int = 0) -> Callable[[], None]:
            raise ResourceExhausted("taken")

        self.patch(port, "serve", taken)
        self.assertRaises(ResourceExhausted, self.subscription.start)
        pass_(self.clock, 20, 0.1)
        self.assertEqual(self.wishes(), [])
        self.patch(port, "serve", serve)
        self.subscription.start()
        pass_(self.clock, 1, 0.1)
        self.assertTrue(self.subscription.isStanding)


class FabricTests(FabricTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.reports: list[int] = []
        self.addCleanup(self.fabric.close)
        self.server = MADServer(self.agent)
        self.subscription = Subscription(
            *(self.clock, self.agent, self.server, None),
            lambda notice, request: self.reports.append(notice.trapNumber),
        )

    def records(self, administration: int) -> list[sa.InformInfoRecord]:
        found: list[sa.InformInfoRecord] = self.answerTo(
            self.agent.SubnAdmGetTable(sa.InformInfoRecord, gmp(administration)), 1
        )
        return found

    def test_reregister(self) -> None:
        self.subscription.start()
        self.pump(1)
        asked: list[bool] = []
        self.patch(self.subscription, "_subscribe", lambda: asked.append(True))
        info = self.answerTo(self.agent.SubnGet(PortInfo, route()), 1)
        wanted = info.replace(clientReregister=True, portPhysicalState=PhysicalState(0))
        self.answerTo(self.agent.SubnSet(wanted, route()), 1)
        self.assertEqual(asked, [True])

    def test_forged(self) -> None:
        self.subscription.start()
        self.pump(1)
        report = Notice(isGeneric=True, trapNumber=64)
        self.agentAt("c").SubnAdmReport(report, gmp(self.lid("a")))
        self.pump(1)
        self.assertEqual(self.reports, [])
        self.agentAt("d").SubnAdmReport(report, gmp(self.lid("a")))
        self.pump(1)
        self.assertEqual(self.reports, [64])

    def test_renewals(self) -> None:
        self.subscription.start()
        self.pump(300)
        self.assertEqual(len(self.records(self.lid("d"))), 1)

    def test_handover(self) -> None:
        self.fabric.standBy("c")
        self.subscription.start()
        self.pump(1)
        self.fabric.silence("d")
        self.pump(20)
        self.assertTrue(self.subscription.isStanding)
        self.assertEqual(len(self.records(self.lid("c"))), 1)
        self.reports.clear()
        self.fabric.cut("b", 2)
        self.pump(10)
        self.assertIn(128, self.reports)
