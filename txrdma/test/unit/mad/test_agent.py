"""
An agent makes calls through a port, and a server answers them, however bad the wire is.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from zope.interface.verify import verifyObject

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.iba.path import IBDRPath, IBPath
from txrdma.iba.types import GUID, LID, QPN
from txrdma.interfaces import IMADAgent, IMADReceiver
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.frames import frame
from txrdma.mad.core.rmpp import WINDOW
from txrdma.mad.core.transfers import RMPPTransfers
from txrdma.mad.errors import MADError
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.baseboard import BKeyInfo
from txrdma.mad.layouts.messages import MADRequest, Notice
from txrdma.mad.layouts.pma import PortCounters
from txrdma.mad.layouts.sa import MultiPathRecord, NodeRecord, PathRecord
from txrdma.mad.layouts.smp import NodeInfo
from txrdma.mad.server import MADServer
from txrdma.test.support.mad.pairs import Answers, pass_, TO_2, Wire


class AgentCase(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.wire = Wire(self.clock)
        self.agent = MADAgent(self.clock, self.wire.ports[0], timeoutSeconds=0.5)
        self.other = MADAgent(self.clock, self.wire.ports[1], timeoutSeconds=0.5)
        self.server = MADServer(self.other)

    def serve(
        self, managementClass: ManagementClass, how: Callable[[MADRequest], object], *methods: Method
    ) -> Answers:
        answers = Answers(how)
        self.server.handle(managementClass, answers, methods or (Method.GET, Method.SET))
        return answers

    def result(self, answer: Deferred[Any], seconds: float = 0.1) -> Any:
        pass_(self.clock, seconds)
        return self.successResultOf(answer)


class AgentTests(AgentCase):
    def test_provides(self) -> None:
        verifyObject(IMADAgent, self.agent)
        verifyObject(IMADReceiver, self.agent)

    def test_class(self) -> None:
        counters = PortCounters(portSelect=1, portXmitData=77)
        served = self.serve(ManagementClass.PERFORMANCE, lambda request: counters)
        self.assertEqual(self.result(self.agent.PerformanceGet(PortCounters, TO_2, 5)), counters)
        self.assertEqual(served.asked[0].payload, PortCounters())
        self.assertEqual(served.asked[0].header.attributeModifier, 5)

    def test_instance(self) -> None:
        served = self.serve(ManagementClass.PERFORMANCE, lambda request: request.payload)
        asked = PortCounters(portSelect=3, counterSelect=0xFFFF)
        self.assertEqual(self.result(self.agent.PerformanceSet(asked, TO_2)), asked)
        self.assertEqual(served.asked[0].header.method, Method.SET)

    def test_subnet(self) -> None:
        info = NodeInfo(numPorts=7)
        served = self.serve(ManagementClass.SUBN_LID, lambda request: info)
        self.assertEqual(self.result(self.agent.SubnGet(NodeInfo, TO_2)), info)
        self.assertEqual(served.asked[0].header.managementClass, ManagementClass.SUBN_LID)

    def test_directedRoute(self) -> None:
        self.serve(ManagementClass.SUBN_DIRECTED, lambda request: NodeInfo(numPorts=7))
        route = IBDRPath(drPath=(1, 5))
        self.assertEqual(self.result(self.agent.SubnGet(NodeInfo, route)).numPorts, 7)
        asked, answered = (datagram for _lid, datagram in self.wire.sent)
        self.assertEqual(answered[4:6], b"\x80\x00")
        self.assertEqual((asked[6:16], asked[32:64]), (answered[6:16], answered[32:64]))
        self.assertEqual(asked[128:], answered[128:])

    def test_secondServer(self) -> None:
        second = MADServer(self.other)
        self.serve(ManagementClass.SUBN_LID, lambda request: NodeInfo(numPorts=3))
        second.handle(ManagementClass.PERFORMANCE, Answers(lambda request: PortCounters()), (Method.GET,))
        for _ in range(2):
            self.assertEqual(self.result(self.agent.SubnGet(NodeInfo, TO_2)).numPorts, 3)
            self.result(self.agent.PerformanceGet(PortCounters, TO_2))
            self.assertEqual(self.refused(self.agent.BMGet(BKeyInfo, TO_2)), 0x08)
        second.stop()
        second.stop()
        self.assertEqual(self.refused(self.agent.PerformanceGet(PortCounters, TO_2)), 0x08)
        self.assertEqual(self.result(self.agent.SubnGet(NodeInfo, TO_2)).numPorts, 3)

    def refused(self, call: Deferred[Any]) -> int:
        before = len(self.wire.sent)
        pass_(self.clock, 0.1)
        self.assertEqual(len(self.wire.sent), before + 1)
        return int(self.failureResultOf(call, MADError).value.status)

    def test_listenersOfServers(self) -> None:
        heard: list[str] = []
        self.server.listen(lambda notice, request: heard.append("first"))
        second = MADServer(self.other)
        second.listen(lambda notice, request: heard.append("second"))
        before = len(self.wire.sent)
        self.result(self.agent.SubnTrap(Notice(isGeneric=True, trapNumber=128, issuerLID=LID(1)), TO_2))
        self.assertEqual((sorted(heard), len(self.wire.sent)), (["first", "second"], before + 2))

    def test_handlersOfOneClass(self) -> None:
        self.serve(ManagementClass.SUBN_LID, lambda request: NodeInfo(numPorts=1))
        self.assertEqual(self.result(self.agent.SubnGet(NodeInfo, TO_2)).numPorts, 1)

        def other(request: MADRequest) -> object:
            return NotImplemented if request.header.attributeModifier else NodeInfo(numPorts=2)

        end = self.server.handle(ManagementClass.SUBN_LID, Answers(other), (Method.GET,))
        self.assertEqual(self.result(self.agent.SubnGet(NodeInfo, TO_2)).numPorts, 2)
        self.assertEqual(self.result(self.agent.SubnGet(NodeInfo, TO_2, 7)).numPorts, 1)
        end()
        self.assertEqual(self.result(self.agent.SubnGet(NodeInfo, TO_2)).numPorts, 1)
        only = Answers(lambda request: NotImplemented)
        self.server.handle(ManagementClass.PERFORMANCE, only, (Method.GET,))
        self.assertEqual(self.refused(self.agent.PerformanceGet(PortCounters, TO_2)), 0x0C)

    def test_context(self) -> None:
        port = self.wire.ports[0]
        with MADAgent(self.clock, port) as agent:
            call = agent.SubnGet(NodeInfo, TO_2)
            self.assertFalse(port.isClosed)
        self.assertTrue(port.isClosed)
        self.failureResultOf(call, DeviceUnavailable)

    def test_asyncContext(self) -> None:
        port = self.wire.ports[0]
        calls: list[Deferred[Any]] = []

        async def work() -> None:
            async with MADAgent(self.clock, port) as agent:
                calls.append(agent.SubnGet(NodeInfo, TO_2))
                self.assertFalse(port.isClosed)
                raise LookupError

        self.failureResultOf(Deferred.fromCoroutine(work()), LookupError)
        self.assertTrue(port.isClosed)
        self.failureResultOf(calls[0], DeviceUnavailable)

    def test_cancel(self) -> None:
        self.serve(ManagementClass.SUBN_LID, lambda request: NodeInfo())
        call = self.agent.SubnGet(NodeInfo, TO_2)
        call.cancel()
        self.failureResultOf(call, CancelledError)
        self.assertIn("0 outstanding", repr(self.agent))
        pass_(self.clock, 3, 0.05)
        self.assertEqual(len([1 for lid, _ in self.wire.sent if lid == 1]), 1)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_close(self) -> None:
        call = self.agent.SubnGet(NodeInfo, TO_2)
        self.agent.close()
        self.failureResultOf(call, DeviceUnavailable)
        self.failureResultOf(self.agent.SubnGet(NodeInfo, TO_2), DeviceUnavailable)
        self.agent.close()


class TableTests(AgentCase):
    def records(self, count: int) -> list[NodeRecord]:
        return [
            NodeRecord(lid=LID(number & 0xFFFF), nodeInfo=NodeInfo(nodeGUID=GUID.fromInt(number)))
            for number in range(count)
        ]

    def table(self, count: int, loss: float = 0.0, seconds: float = 5.0) -> None:
        records = self.records(count)
        self.serve(ManagementClass.SUBN_ADM, lambda request: list(records), Method.GET_TABLE)
        self.wire.lose = lambda datagram: self.wire.random.random() < loss
        call = self.agent.SubnAdmGetTable(NodeRecord, TO_2, retries=20)
        pass_(self.clock, seconds, 0.002)
        self.assertEqual(self.successResultOf(call), records)

    def test_empty(self) -> None:
        self.table(0)

    def test_lengths(self) -> None:
        for count, loss, seconds in ((1, 0.0, 5.0), (500, 0.0, 5.0), (2_000, 0.05, 600.0)):
            self.setUp()
            self.table(count, loss, seconds)

    def test_component(self) -> None:
        served = self.serve(ManagementClass.SUBN_ADM, lambda request: [], Method.GET_TABLE)
        self.result(self.agent.SubnAdmGetTable(PathRecord.query(dlid=LID(7)), TO_2))
        self.assertEqual(served.asked[0].frame.componentMask, 0x10)  # type: ignore[attr-defined]  # it is an SAFormat
        payload = served.asked[0].payload
        assert isinstance(payload, PathRecord)
        self.assertEqual(payload.dlid, 7)

    def test_multi(self) -> None:
        paths = [PathRecord(dlid=LID(number)) for number in range(100)]
        served = self.serve(ManagementClass.SUBN_ADM, lambda request: list(paths), Method.GET_MULTI)
        call = self.agent.SubnAdmGetMulti(MultiPathRecord(sgidCount=1, dgidCount=1), TO_2)
        pass_(self.clock, 1)
        answer = self.successResultOf(call)
        self.assertEqual(len(served.asked), 1)
        self.assertEqual([record.dlid for record in answer], [path.dlid for path in paths])

    def test_cancelledTable(self) -> None:
        self.serve(ManagementClass.SUBN_ADM, lambda request: list(self.records(5000)), Method.GET_TABLE)
        call = self.agent.SubnAdmGetTable(NodeRecord, TO_2)
        pass_(self.clock, 0.02)
        call.cancel()
        self.failureResultOf(call, CancelledError)
        before = len(self.wire.sent)
        pass_(self.clock, 5, 0.01)
        self.assertLess(len(self.wire.sent), before + WINDOW + 10)

    def test_begunAndLeft(self) -> None:
        long = RMPPTransfers()
        question = frame(ManagementClass.SUBN_ADM, Method.GET_MULTI, 5, 0x3A, 0, b"")
        long.send(question, bytes(1000), TO_2, 0.0)
        (first,) = long.outgoing()
        self.other.received(first.datagram, IBPath(slid=LID(1), dlid=LID(2), sqpn=QPN(1), dqpn=QPN(1)))
        self.assertEqual(len(self.other._core._long._incoming), 1)
        pass_(self.clock, 60, 0.5)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(self.other._core._long._incoming, {})
