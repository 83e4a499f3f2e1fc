"""
An agent makes calls through a port, and a server answers them, however bad the wire is.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any

from zope.interface.verify import verifyObject

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable, InvalidRequest
from txrdma.iba.path import IBDRPath, IBPath
from txrdma.iba.types import GUID, LID, QPN
from txrdma.interfaces import IMADAgent, IMADReceiver
from txrdma.mad.agent import MADAgent
from txrdma.mad.core.calls import NEXT_SEGMENT_SECONDS
from txrdma.mad.core.frames import frame
from txrdma.mad.core.rmpp import WINDOW
from txrdma.mad.core.transfers import RMPPTransfers
from txrdma.mad.errors import MADClassError, MADError, MADRefusal, MADTimeoutError, MADTransferError
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.baseboard import BKeyInfo
from txrdma.mad.layouts.messages import ClassPortInfo, MADRequest, Notice
from txrdma.mad.layouts.pma import PortCounters
from txrdma.mad.layouts.sa import MultiPathRecord, NodeRecord, PathRecord
from txrdma.mad.layouts.smp import NodeInfo, SwitchInfo
from txrdma.mad.server import MADServer
from txrdma.test.support.mad.pairs import Answers, pass_, TO_2, Wire


class AgentTests(SynchronousTestCase):
    """An agent at LID 1, a server at LID 2."""

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

    def test_provides(self) -> None:
        """An agent provides what it says."""
        verifyObject(IMADAgent, self.agent)
        verifyObject(IMADReceiver, self.agent)

    def test_class(self) -> None:
        """A class goes out as zeros, and an instance comes back."""
        counters = PortCounters(portSelect=1, portXmitData=77)
        served = self.serve(ManagementClass.PERFORMANCE, lambda request: counters)
        self.assertEqual(self.result(self.agent.PerformanceGet(PortCounters, TO_2, 5)), counters)
        self.assertEqual(served.asked[0].payload, PortCounters())
        self.assertEqual(served.asked[0].header.attributeModifier, 5)

    def test_instance(self) -> None:
        """An instance goes out as it is."""
        served = self.serve(ManagementClass.PERFORMANCE, lambda request: request.payload)
        asked = PortCounters(portSelect=3, counterSelect=0xFFFF)
        self.assertEqual(self.result(self.agent.PerformanceSet(asked, TO_2)), asked)
        self.assertEqual(served.asked[0].header.method, Method.SET)

    def test_subnet(self) -> None:
        """Datagrams of subnet management have frames of their own, and an M_Key."""
        info = NodeInfo(numPorts=7)
        served = self.serve(ManagementClass.SUBN_LID, lambda request: info)
        self.assertEqual(self.result(self.agent.SubnGet(NodeInfo, TO_2)), info)
        self.assertEqual(served.asked[0].header.managementClass, ManagementClass.SUBN_LID)

    def test_directedRoute(self) -> None:
        """A request on a directed route is answered on it: of the way the answer says the same."""
        self.serve(ManagementClass.SUBN_DIRECTED, lambda request: NodeInfo(numPorts=7))
        route = IBDRPath(drPath=(1, 5))
        self.assertEqual(self.result(self.agent.SubnGet(NodeInfo, route)).numPorts, 7)
        asked, answered = (datagram for _lid, datagram in self.wire.sent)
        self.assertEqual(answered[4:6], b"\x80\x00")
        self.assertEqual((asked[6:16], asked[32:64]), (answered[6:16], answered[32:64]))
        self.assertEqual(asked[128:], answered[128:])

    def test_illegal(self) -> None:
        """What the specification does not have fails before anything is sent."""
        for call in (
            self.agent.PerformanceGet(NodeInfo, TO_2),
            self.agent.call("SubnGuess", NodeInfo, TO_2),
            self.agent.PerformanceGet(PortCounters, IBDRPath()),
            self.agent.SubnGet(NodeInfo, IBDRPath(drPath=(1,) * 64)),
        ):
            self.failureResultOf(call, InvalidRequest)
        self.assertEqual(self.wire.sent, [])

    def test_refused(self) -> None:
        """An error's status is told in words, with what was asked and answered."""
        self.serve(ManagementClass.SUBN_LID, lambda request: NodeInfo())
        failed = self.agent.SubnGet(SwitchInfo, TO_2)

        def refuse(request: MADRequest) -> object:
            raise MADRefusal(0x1C)

        self.serve(ManagementClass.SUBN_LID, refuse)
        pass_(self.clock, 0.1)
        error = self.failureResultOf(failed, MADError).value
        self.assertEqual(error.status, 0x1C)
        self.assertIn("invalid value", str(error))
        self.assertIn("reply: SUBN_LID GET_RESP SwitchInfo", error.detailed(1))
        self.assertIn("SwitchInfo.linearFDBCap", error.detailed(2))

    def test_unserved(self) -> None:
        """What nobody serves is answered with the right status."""
        self.serve(ManagementClass.PERFORMANCE, lambda request: None, Method.GET)
        for call, status in (
            (self.agent.SubnGet(NodeInfo, TO_2), 0x08),
            (self.agent.PerformanceSet(PortCounters, TO_2), 0x08),
        ):
            pass_(self.clock, 0.1)
            self.assertEqual(self.failureResultOf(call, MADError).value.status, status)

    def test_handlerFails(self) -> None:
        """An exception in a handler is logged and becomes a status."""

        def fail(request: MADRequest) -> object:
            raise ZeroDivisionError

        self.serve(ManagementClass.PERFORMANCE, fail)
        call = self.agent.PerformanceGet(PortCounters, TO_2)
        pass_(self.clock, 0.1)
        self.assertEqual(self.failureResultOf(call, MADError).value.status, 0x1C)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_late(self) -> None:
        """A handler may answer by a Deferred."""
        later: Deferred[object] = Deferred()
        self.serve(ManagementClass.PERFORMANCE, lambda request: later)
        call = self.agent.PerformanceGet(PortCounters, TO_2)
        pass_(self.clock, 0.1)
        self.assertNoResult(call)
        later.callback(PortCounters(portSelect=9))
        self.assertEqual(self.result(call).portSelect, 9)

    def test_retries(self) -> None:
        """Requests are sent again with the same transaction ID, and then given up."""
        self.wire.lose = lambda datagram: True
        call = self.agent.SubnGet(NodeInfo, TO_2, retries=2)
        pass_(self.clock, 1.4, 0.05)
        self.assertNoResult(call)
        pass_(self.clock, 0.3, 0.05)
        self.failureResultOf(call, MADTimeoutError)
        self.assertEqual(len(self.wire.sent), 3)
        self.assertEqual(len({datagram for _, datagram in self.wire.sent}), 1)

    def test_lostOnce(self) -> None:
        """A lost answer is asked for once more, and one answer is enough."""
        self.serve(ManagementClass.SUBN_LID, lambda request: NodeInfo(numPorts=1))
        losing = iter((False, True))
        self.wire.lose = lambda datagram: next(losing, False)
        self.assertEqual(self.result(self.agent.SubnGet(NodeInfo, TO_2), 0.7).numPorts, 1)

    def test_patience(self) -> None:
        """Unless somebody says how long, the path's lifetime and the class's say it."""
        agent = MADAgent(self.clock, self.wire.ports[0])
        self.wire.lose = lambda datagram: True
        hasty = agent.SubnGet(NodeInfo, IBPath(dlid=LID(2), packetLifeTime=1), retries=0)
        patient = agent.SubnGet(NodeInfo, IBPath(dlid=LID(2), packetLifeTime=20), retries=0)
        pass_(self.clock, 0.3, 0.05)
        self.failureResultOf(hasty, MADTimeoutError)
        self.assertNoResult(patient)
        pass_(self.clock, 9, 0.5)
        self.failureResultOf(patient, MADTimeoutError)
        slow = agent.SubnGet(NodeInfo, IBPath(dlid=LID(2), packetLifeTime=1, responseTime=19), retries=0)
        pass_(self.clock, 2.0, 0.1)
        self.assertNoResult(slow)
        pass_(self.clock, 0.3, 0.1)
        self.failureResultOf(slow, MADTimeoutError)

    def test_changedPatience(self) -> None:
        """When the subnet's time of a packet changes, so does how long calls wait."""
        port = self.wire.ports[0]
        agent = MADAgent(self.clock, port)
        self.wire.lose = lambda datagram: True
        port.endPort = replace(port.endPort, subnetTimeout=1)
        hasty = agent.SubnGet(NodeInfo, TO_2, retries=0)
        port.endPort = replace(port.endPort, subnetTimeout=20)
        patient = agent.SubnGet(NodeInfo, TO_2, retries=0)
        pass_(self.clock, 0.3, 0.05)
        self.failureResultOf(hasty, MADTimeoutError)
        self.assertNoResult(patient)
        agent.close()
        self.failureResultOf(patient, DeviceUnavailable)

    def test_secondServer(self) -> None:
        """Requests go to the server that has a handler for them; what none has is refused, once."""
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
        """The status that a call ends in; it is answered once."""
        before = len(self.wire.sent)
        pass_(self.clock, 0.1)
        self.assertEqual(len(self.wire.sent), before + 1)
        return int(self.failureResultOf(call, MADError).value.status)

    def test_listenersOfServers(self) -> None:
        """A notice is heard by the listeners of all servers, and answered once."""
        heard: list[str] = []
        self.server.listen(lambda notice, request: heard.append("first"))
        second = MADServer(self.other)
        second.listen(lambda notice, request: heard.append("second"))
        before = len(self.wire.sent)
        self.result(self.agent.SubnTrap(Notice(isGeneric=True, trapNumber=128, issuerLID=LID(1)), TO_2))
        self.assertEqual((sorted(heard), len(self.wire.sent)), (["first", "second"], before + 2))

    def test_handlersOfOneClass(self) -> None:
        """Several handlers of a class share its requests: the newest is asked first, and may decline."""
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
        """An agent is closed, and its port, at the end of a with block."""
        port = self.wire.ports[0]
        with MADAgent(self.clock, port) as agent:
            call = agent.SubnGet(NodeInfo, TO_2)
            self.assertFalse(port.isClosed)
        self.assertTrue(port.isClosed)
        self.failureResultOf(call, DeviceUnavailable)

    def test_asyncContext(self) -> None:
        """The same of an async with block; an exception passes."""
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

    def test_busy(self) -> None:
        """BUSY is asked again after a pause, which does not count as silence."""
        busy = iter((0x01, 0x01))

        def sometimes(request: MADRequest) -> object:
            status = next(busy, 0)
            if status:
                raise MADRefusal(status)
            return NodeInfo(numPorts=3)

        self.serve(ManagementClass.SUBN_LID, sometimes)
        self.assertEqual(self.result(self.agent.SubnGet(NodeInfo, TO_2), 0.4).numPorts, 3)

    def test_alwaysBusy(self) -> None:
        """Who is BUSY for ever is given up."""

        def busy(request: MADRequest) -> object:
            raise MADRefusal(0x01)

        served = self.serve(ManagementClass.SUBN_LID, busy)
        call = self.agent.SubnGet(NodeInfo, TO_2, retries=3)
        pass_(self.clock, 5, 0.01)
        self.assertEqual(self.failureResultOf(call, MADError).value.status, 1)
        self.assertEqual(len(served.asked), 5)

    def test_redirect(self) -> None:
        """Whom an answer names is asked instead."""
        first = MADRefusal(
            0x02, payload=ClassPortInfo(redirectLID=LID(2), redirectQPN=QPN(7), redirectQKey=0x80010000)
        )
        refusals = iter((first,))

        def redirect(request: MADRequest) -> object:
            refusal = next(refusals, None)
            if refusal is not None:
                raise refusal
            return PortCounters(portSelect=4)

        self.serve(ManagementClass.PERFORMANCE, redirect)
        self.assertEqual(self.result(self.agent.PerformanceGet(PortCounters, TO_2)).portSelect, 4)
        identifiers = {datagram[8:16] for lid, datagram in self.wire.sent if lid == 1}
        self.assertEqual(len(identifiers), 2)

    def test_redirectForEver(self) -> None:
        """Who is sent round in circles gives up."""

        def redirect(request: MADRequest) -> object:
            raise MADRefusal(0x02, payload=ClassPortInfo(redirectLID=LID(2), redirectQPN=QPN(1)))

        self.serve(ManagementClass.PERFORMANCE, redirect)
        call = self.agent.PerformanceGet(PortCounters, TO_2)
        pass_(self.clock, 0.2)
        self.failureResultOf(call, MADError)

    def test_cancel(self) -> None:
        """A cancelled call is forgotten: its answer goes nowhere, and no timer remains for it."""
        self.serve(ManagementClass.SUBN_LID, lambda request: NodeInfo())
        call = self.agent.SubnGet(NodeInfo, TO_2)
        call.cancel()
        self.failureResultOf(call, CancelledError)
        self.assertIn("0 outstanding", repr(self.agent))
        pass_(self.clock, 3, 0.05)
        self.assertEqual(len([1 for lid, _ in self.wire.sent if lid == 1]), 1)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_close(self) -> None:
        """Closing fails what is on its way, and what comes later."""
        call = self.agent.SubnGet(NodeInfo, TO_2)
        self.agent.close()
        self.failureResultOf(call, DeviceUnavailable)
        self.failureResultOf(self.agent.SubnGet(NodeInfo, TO_2), DeviceUnavailable)
        self.agent.close()

    def test_wrongAnswer(self) -> None:
        """An answer of another attribute is no answer."""
        call = self.agent.SubnGet(NodeInfo, TO_2)
        sent = self.wire.sent[0][1]
        self.agent.received(sent[:3] + b"\x81" + sent[4:16] + b"\x00\x15" + sent[18:], TO_2)
        self.failureResultOf(call, MADClassError)

    def test_strangeAnswers(self) -> None:
        """What does not fit to anything is ignored: other classes and transactions, and what is cut off."""
        call = self.agent.SubnGet(NodeInfo, TO_2)
        sent = self.wire.sent[0][1]
        answer = sent[:3] + b"\x81" + sent[4:]
        for strange in (
            b"",
            answer[:15],
            answer[:1] + b"\x04" + answer[2:],
            answer[:15] + bytes((answer[15] ^ 1,)) + answer[16:],
        ):
            self.agent.received(strange, TO_2)
        self.assertNoResult(call)
        self.agent.received(answer, TO_2)
        self.successResultOf(call)

    def test_trap(self) -> None:
        """A trap is repressed, and heard by those who listen."""
        heard: list[tuple[Notice, MADRequest]] = []
        stop = self.server.listen(lambda notice, request: heard.append((notice, request)))
        notice = Notice(isGeneric=True, trapNumber=128, issuerLID=LID(1))
        self.result(self.agent.SubnTrap(notice, TO_2))
        self.assertEqual([(said.trapNumber, asked.path.slid) for said, asked in heard], [(128, 1)])
        self.assertEqual(heard[0][1].header.managementClass, ManagementClass.SUBN_LID)
        self.assertEqual(self.wire.sent[-1][1][3], Method.TRAP_REPRESS)
        stop()
        self.result(self.agent.SubnTrap(notice, TO_2))
        self.assertEqual(len(heard), 1)


class TableTests(AgentTests):
    """Long messages: tables, and questions of several segments."""

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
        """A table without records is one."""
        self.table(0)

    def test_one(self) -> None:
        """So is one of one record."""
        self.table(1)

    def test_many(self) -> None:
        """A table of many segments arrives whole and in order."""
        self.table(500)

    def test_lossy(self) -> None:
        """Two thousand records arrive through 5 % loss."""
        self.table(2_000, 0.05, seconds=600)

    def test_component(self) -> None:
        """The server sees what is asked for."""
        served = self.serve(ManagementClass.SUBN_ADM, lambda request: [], Method.GET_TABLE)
        self.result(self.agent.SubnAdmGetTable(PathRecord.query(dlid=LID(7)), TO_2))
        self.assertEqual(served.asked[0].frame.componentMask, 0x10)  # type: ignore[attr-defined]  # it is an SAFormat
        payload = served.asked[0].payload
        assert isinstance(payload, PathRecord)
        self.assertEqual(payload.dlid, 7)

    def test_refusedTable(self) -> None:
        """A table's error is one short datagram."""

        def refuse(request: MADRequest) -> object:
            raise MADRefusal(0x0300)

        self.serve(ManagementClass.SUBN_ADM, refuse, Method.GET_TABLE)
        call = self.agent.SubnAdmGetTable(NodeRecord, TO_2)
        pass_(self.clock, 0.1)
        self.assertIn("no records", str(self.failureResultOf(call, MADError).value))

    def test_multi(self) -> None:
        """GetMulti asks by a long message, and is answered by one."""
        paths = [PathRecord(dlid=LID(number)) for number in range(100)]
        served = self.serve(ManagementClass.SUBN_ADM, lambda request: list(paths), Method.GET_MULTI)
        call = self.agent.SubnAdmGetMulti(MultiPathRecord(sgidCount=1, dgidCount=1), TO_2)
        pass_(self.clock, 1)
        answer = self.successResultOf(call)
        self.assertEqual(len(served.asked), 1)
        self.assertEqual([record.dlid for record in answer], [path.dlid for path in paths])

    def test_cancelledTable(self) -> None:
        """Who no longer wants a table tells its sender, who stops."""
        self.serve(ManagementClass.SUBN_ADM, lambda request: list(self.records(5000)), Method.GET_TABLE)
        call = self.agent.SubnAdmGetTable(NodeRecord, TO_2)
        pass_(self.clock, 0.02)
        call.cancel()
        self.failureResultOf(call, CancelledError)
        before = len(self.wire.sent)
        pass_(self.clock, 5, 0.01)
        self.assertLess(len(self.wire.sent), before + WINDOW + 10)

    def test_cutOff(self) -> None:
        """A table whose sender falls silent ends by timeout."""
        self.serve(ManagementClass.SUBN_ADM, lambda request: list(self.records(5000)), Method.GET_TABLE)
        call = self.agent.SubnAdmGetTable(NodeRecord, TO_2, retries=1)
        pass_(self.clock, 0.02)
        self.wire.lose = lambda datagram: True
        pass_(self.clock, NEXT_SEGMENT_SECONDS + 5, 0.01)
        self.failureResultOf(call, MADTimeoutError, MADTransferError)
        self.assertEqual(self.agent._core._long._incoming, {})
        pass_(self.clock, 50, 1.0)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_begunAndLeft(self) -> None:
        """A question that is begun and not ended is forgotten."""
        long = RMPPTransfers()
        question = frame(ManagementClass.SUBN_ADM, Method.GET_MULTI, 5, 0x3A, 0, b"")
        long.send(question, bytes(1000), TO_2, 0.0)
        (first,) = long.outgoing()
        self.other.received(first.datagram, IBPath(slid=LID(1), dlid=LID(2), sqpn=QPN(1), dqpn=QPN(1)))
        self.assertEqual(len(self.other._core._long._incoming), 1)
        pass_(self.clock, 60, 0.5)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        self.assertEqual(self.other._core._long._incoming, {})
