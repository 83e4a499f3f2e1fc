"""Calls of an agent through a port: requests, answers, errors, timeouts, and tables."""

from __future__ import annotations

import math
from dataclasses import replace
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable, InvalidRequest, Refused
from txrdma.iba.path import IBDRPath, IBPath, lifetimeSeconds, RESPONSE_TIME
from txrdma.iba.types import GUID, LID, QPN
from txrdma.mad.agent import MADAgent
from txrdma.mad.core import timeouts
from txrdma.mad.core.frames import Keys
from txrdma.mad.core.rmpp import WINDOW
from txrdma.mad.core.timeouts import MOST_RESPONSE_TIME
from txrdma.mad.errors import MADError, MADFailure, MADTimeoutError
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.baseboard import BKeyInfo
from txrdma.mad.layouts.congestion import CongestionInfo
from txrdma.mad.layouts.messages import ClassPortInfo, MADRequest, MADStatus, Notice
from txrdma.mad.layouts.pma import PortCounters
from txrdma.mad.layouts.sa import MultiPathRecord, NodeRecord, PathRecord
from txrdma.mad.layouts.smp import (
    MulticastForwardingTable,
    NodeInfo,
    PKeyTable,
    PortInfo,
    SLtoVLMappingTable,
    VLArbitrationTable,
)
from txrdma.mad.server import MADServer
from txrdma.test.support.mad.faulty import answer, FaultTestCase
from txrdma.test.support.mad.pairs import Answers, pass_, TO_2, WiredTestCase


class AgentCase(WiredTestCase):
    options = {"timeoutSeconds": 0.5}

    def result(self, answer: Deferred[Any], seconds: float = 0.1) -> Any:
        pass_(self.clock, seconds)
        return self.successResultOf(answer)


class AgentTests(AgentCase):
    def test_instance(self) -> None:
        served = self.serve(lambda request: request.payload, ManagementClass.PERFORMANCE)
        asked = PortCounters(portSelect=3, counterSelect=0xFFFF)
        self.assertEqual(self.result(self.agent.PerformanceSet(asked, TO_2)), asked)
        self.assertEqual(served.asked[0].header.method, Method.SET)

    def test_unknownOption(self) -> None:
        for options in ({"timeout": 1}, {"mkey": 7, "retries": 1}):
            error = self.assertRaises(TypeError, self.agent.SubnGet, NodeInfo, TO_2, **options)
            self.assertIn(f"SubnGet has no option {min(options)}", str(error))

    def test_directedRoute(self) -> None:
        self.serve(lambda request: NodeInfo(numPorts=7), ManagementClass.SUBN_DIRECTED)
        route = IBDRPath(drPath=(1, 5))
        self.assertEqual(self.result(self.agent.SubnGet(NodeInfo, route)).numPorts, 7)
        asked, answered = (datagram for _lid, datagram in self.wire.sent)
        self.assertEqual(answered[4:6], b"\x80\x00")
        self.assertEqual((asked[6:16], asked[32:64]), (answered[6:16], answered[32:64]))
        self.assertEqual(asked[128:], answered[128:])

    def test_secondServer(self) -> None:
        second = MADServer(self.other)
        self.serve(lambda request: NodeInfo(numPorts=3), ManagementClass.SUBN_LID)
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
        reports: list[str] = []
        self.server.listen(lambda notice, request: reports.append("first"))
        second = MADServer(self.other)
        second.listen(lambda notice, request: reports.append("second"))
        before = len(self.wire.sent)
        self.result(self.agent.SubnTrap(Notice(isGeneric=True, trapNumber=128, issuerLID=LID(1)), TO_2))
        self.assertEqual((sorted(reports), len(self.wire.sent)), (["first", "second"], before + 2))

    def test_handlersOfOneClass(self) -> None:
        self.serve(lambda request: NodeInfo(numPorts=1), ManagementClass.SUBN_LID)
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

    def test_handlerTwice(self) -> None:
        """A handler that was added twice answers until both are ended, each of them once."""
        handler = Answers(lambda request: PortCounters())
        ends = [self.server.handle(ManagementClass.PERFORMANCE, handler, (Method.GET,)) for _ in range(2)]
        ends[0]()
        ends[0]()
        self.result(self.agent.PerformanceGet(PortCounters, TO_2))
        ends[1]()
        self.assertEqual(self.refused(self.agent.PerformanceGet(PortCounters, TO_2)), 0x08)

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
        self.serve(lambda request: NodeInfo(), ManagementClass.SUBN_LID)
        call = self.agent.SubnGet(NodeInfo, TO_2)
        call.cancel()
        self.failureResultOf(call, CancelledError)
        self.assertIn("0 outstanding", repr(self.agent))
        pass_(self.clock, 3, 0.05)
        self.assertEqual(len([1 for lid, _ in self.wire.sent if lid == 1]), 1)
        self.assertEqual(self.clock.getDelayedCalls(), [])


class TableTests(AgentCase):
    def records(self, count: int) -> list[NodeRecord]:
        return [
            NodeRecord(lid=LID(number & 0xFFFF), nodeInfo=NodeInfo(nodeGUID=GUID.fromInt(number)))
            for number in range(count)
        ]

    def table(self, count: int, loss: float = 0.0, seconds: float = 5.0) -> None:
        records = self.records(count)
        self.serve(lambda request: list(records), ManagementClass.SUBN_ADM, (Method.GET_TABLE,))
        self.wire.lose = lambda datagram: self.wire.random.random() < loss
        call = self.agent.SubnAdmGetTable(NodeRecord, TO_2, retries=20)
        pass_(self.clock, seconds, 0.002)
        self.assertEqual(self.successResultOf(call), records)

    def test_lengths(self) -> None:
        for count, loss, seconds in ((0, 0.0, 5.0), (1, 0.0, 5.0), (500, 0.0, 5.0), (2_000, 0.05, 600.0)):
            self.setUp()
            self.table(count, loss, seconds)

    def test_cancelledTable(self) -> None:
        self.serve(lambda request: list(self.records(5000)), ManagementClass.SUBN_ADM, (Method.GET_TABLE,))
        call = self.agent.SubnAdmGetTable(NodeRecord, TO_2)
        pass_(self.clock, 0.02)
        call.cancel()
        self.failureResultOf(call, CancelledError)
        before = len(self.wire.sent)
        pass_(self.clock, 5, 0.01)
        self.assertLess(len(self.wire.sent), before + WINDOW + 10)


class CallTestCase(WiredTestCase):
    options = {"keys": Keys(mkey=7)}

    def sent(self, call: Deferred[Any]) -> bytes:
        (datagram,) = (datagram for _, datagram in self.wire.sent)
        self.wire.sent.clear()
        call.addErrback(lambda failure: None).cancel()
        return datagram

    def refused(self, call: Deferred[Any]) -> str:
        error = self.failureResultOf(call, InvalidRequest).value
        self.assertEqual((self.wire.sent, self.clock.getDelayedCalls()), ([], []))
        self.assertIn(" 0 outstanding", repr(self.agent))
        return str(error)


class SendingTests(CallTestCase):
    def test_payload(self) -> None:
        self.assertEqual(self.sent(self.agent.PerformanceGet(PortCounters, TO_2))[64:], bytes(192))
        counters = PortCounters(portSelect=3)
        self.assertEqual(self.sent(self.agent.PerformanceGet(counters, TO_2))[64:108], counters.encode())
        asked = self.sent(self.agent.SubnAdmGet(PathRecord.query(dlid=LID(7), slid=LID(8)), TO_2))
        self.assertEqual(asked[48:56], (0x30).to_bytes(8, "big"))
        asked = self.sent(self.agent.SubnAdmGet(PathRecord, TO_2, componentMask=0x1234))
        self.assertEqual(asked[48:56], (0x1234).to_bytes(8, "big"))

    def test_modifier(self) -> None:
        for path in (TO_2, IBDRPath(drPath=(1, 2))):
            self.assertEqual(self.sent(self.agent.SubnGet(PortInfo, path, 0x80000003))[20:24], b"\x80\0\0\3")
        self.assertEqual(self.sent(self.agent.SubnAdmGet(NodeRecord, TO_2, 5))[20:24], b"\0\0\0\5")

    def test_keys(self) -> None:
        """Keys of the agent or of the call are written to the fields of each class."""
        keys = Keys(1, 2, 3, 4)
        agent = self.agent
        for call, key in (
            (agent.SubnGet(NodeInfo, TO_2), 7),
            (agent.SubnSet(PortInfo, IBDRPath(drPath=(1,))), 7),
            (agent.SubnGet(NodeInfo, TO_2, keys=keys), 1),
            (agent.SubnGet(NodeInfo, IBDRPath(), keys=keys), 1),
            (agent.BMGet(BKeyInfo, TO_2, keys=keys), 3),
            (agent.CongMgtGet(CongestionInfo, TO_2, keys=keys), 4),
            (agent.CongMgtGet(CongestionInfo, TO_2), 0),
        ):
            (datagram,) = (datagram for _, datagram in self.wire.sent[:1])
            del self.wire.sent[:1]
            call.addErrback(lambda failure: None).cancel()
            self.assertEqual(datagram[24:32], key.to_bytes(8, "big"))
        self.assertEqual(self.wire.sent, [])
        asked = self.sent(agent.SubnAdmGet(PathRecord, TO_2, keys=keys))
        self.assertEqual(asked[36:44], (2).to_bytes(8, "big"))

    def test_unanswered(self) -> None:
        call = self.agent.SubnTrapRepress(Notice(), TO_2)
        self.assertIsNone(self.successResultOf(call))
        self.assertEqual(self.sent(call)[3], Method.TRAP_REPRESS)
        self.assertIn(" 0 outstanding", repr(self.agent))


class ModifierTests(SynchronousTestCase):
    def test_parts(self) -> None:
        """Each part of an attribute modifier has its position (IBA 14.2.5.6 to 14.2.5.12)."""
        for computed, number in (
            (PortInfo.modifier(3), 3),
            (PortInfo.modifier(3, extended=True), 0x80000003),
            (PKeyTable.modifier(block=1, port=3), 0x00030001),
            (SLtoVLMappingTable.modifier(inPort=1, outPort=2), 0x00000102),
            (VLArbitrationTable.modifier(port=3, block=1), 0x00010003),
            (MulticastForwardingTable.modifier(block=2, position=1), 0x10000002),
        ):
            self.assertEqual(computed, number)


class AdministrationTests(CallTestCase):
    def test_path(self) -> None:
        port = self.wire.ports[0]
        port.endPort = replace(port.endPort, smLID=LID(9), smServiceLevel=3)
        for call in (self.agent.SubnAdmGet, self.agent.SubnAdmGetTable):
            for path, lid in ((None, 9), (TO_2, TO_2.dlid)):
                failed = call(PathRecord.query(dlid=LID(7)), path, timeoutSeconds=0.1, retries=0)
                self.clock.pump([0.2])
                error = self.failureResultOf(failed, MADTimeoutError).value
                self.assertEqual((error.path.dlid, error.path.serviceLevel), (lid, 0 if path else 3))

    def test_noManager(self) -> None:
        port = self.wire.ports[0]
        port.endPort = replace(port.endPort, smLID=LID(0))
        self.failureResultOf(self.agent.SubnAdmGet(PathRecord), DeviceUnavailable)
        self.assertIn("a path", self.refused(self.agent.call("SubnGet", NodeInfo)))


class LegalityTests(CallTestCase):
    def test_names(self) -> None:
        self.assertIn("SubnAdmGetTable", self.refused(self.agent.call("SubnAdmTable", NodeRecord, TO_2)))
        output = self.refused(self.agent.call("frobnicate", NodeRecord, TO_2))
        self.assertIn("SubnGet, SubnSet", output)

    def test_payloads(self) -> None:
        for nonsense in (None, 7, "NodeInfo", b"", int, object(), IBPath()):
            output = self.refused(self.agent.call("SubnGet", nonsense, TO_2))
            self.assertIn("SubnGet carries attributes", output)

    def test_values(self) -> None:
        agent = self.agent
        self.assertIn("portSelect", self.refused(agent.PerformanceGet(PortCounters(portSelect=256), TO_2)))
        for modifier in (1 << 32, -1):
            self.refused(agent.PerformanceGet(PortCounters, TO_2, modifier))
            self.refused(agent.SubnGet(NodeInfo, TO_2, modifier))
            self.refused(agent.SubnGet(NodeInfo, IBDRPath(), modifier))
        self.refused(agent.SubnGet(NodeInfo, TO_2, keys=Keys(mkey=1 << 64)))
        self.refused(agent.SubnAdmGet(PathRecord, TO_2, keys=Keys(smKey=-1)))
        self.refused(agent.SubnAdmGet(PathRecord, TO_2, componentMask=1 << 64))
        self.refused(agent.SubnGet(NodeInfo, IBDRPath(drPath=(1, 256))))

    def test_timeouts(self) -> None:
        for seconds in (-1.0, math.inf, -math.inf, math.nan):
            self.assertIn("timeout", self.refused(self.agent.SubnGet(NodeInfo, TO_2, timeoutSeconds=seconds)))
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_routes(self) -> None:
        self.assertIn("directed", self.refused(self.agent.PerformanceGet(PortCounters, IBDRPath())))
        self.assertIn("63", self.refused(self.agent.SubnGet(NodeInfo, IBDRPath(drPath=(1,) * 64))))


class ErrorTests(FaultTestCase):
    def test_error(self) -> None:
        self.peer.respond = lambda request: [answer(request, at4=b"\x03\x0c")]
        error = self.fails(self.agent.SubnAdmGet(NodeRecord, TO_2, 9), MADError)
        self.assertIsInstance(error, Refused)
        self.assertIsInstance(error, MADFailure)
        self.assertEqual(error.status, 0x030C)
        self.assertEqual(error.words, "attribute not supported by this method, no records")
        self.assertEqual(str(error), f"SubnAdmGet: status 0x030c, {error.words}")
        self.assertEqual((error.path, error.rpc.name), (TO_2, "SubnAdmGet"))
        self.assertEqual(error.request, self.peer.asked[0])
        self.assertEqual(error.reply, answer(error.request, at4=b"\x03\x0c"))

    def test_words(self) -> None:
        for status, managementClass, words in (
            (0x0001, 4, "busy"),
            (0x0010, 4, "reserved code 4"),
            (0x001C, 4, "invalid value in attribute or modifier"),
            (0x0400, 3, "too many records"),
            (0x0300, 4, "class status 0x3"),
            (0x7F00, 3, "class status 0x7f"),
        ):
            self.assertEqual(MADStatus(status).words(managementClass), words)

    def test_detailed(self) -> None:
        self.peer.respond = lambda request: [answer(request, at4=b"\x00\x1c", at64=b"\x05")]
        error = self.fails(self.agent.SubnGet(NodeInfo, TO_2), MADError)
        texts = [error.detailed(level) for level in range(4)]
        self.assertEqual(texts[0], f"MADError: {error}")
        for less, more in zip(texts, texts[1:], strict=False):
            self.assertTrue(more.startswith(less.splitlines()[0]))
            self.assertGreater(len(more), len(less))
        self.assertIn(f"SubnGet by {TO_2}", texts[1])
        self.assertIn("request: SUBN_LID GET NodeInfo modifier 0x0", texts[1])
        self.assertIn("reply: SUBN_LID GET_RESP NodeInfo modifier 0x0", texts[1])
        self.assertIn("reply: NodeInfo.baseVersion 5", texts[2])
        self.assertIn(
            "reply: 0x0000  01010181", texts[3].replace(" ", "").replace("reply:0x0000", "reply: 0x0000  ")
        )


class PatienceTests(WiredTestCase):
    options = {"retries": 0}

    def setUp(self) -> None:
        super().setUp()
        self.wire.lose = lambda datagram: True

    def patience(self, path: IBPath, **options: Any) -> float:
        begun = self.clock.seconds()
        call = self.agent.PerformanceGet(PortCounters, path, **options)
        ends: list[float] = []
        call.addErrback(lambda failure: ends.append(self.clock.seconds() - begun))
        while not ends:
            self.clock.advance(0.005)
        return ends[0]

    def near(self, seconds: float, expected: float) -> None:
        self.assertGreaterEqual(seconds, expected - 0.02)  # expected is measured by the same timer wheel
        self.assertLess(seconds, expected + 0.03)

    def test_path(self) -> None:
        answering = lifetimeSeconds(RESPONSE_TIME)
        for code, path in (
            (18, TO_2),
            (10, IBPath(dlid=LID(2), dqpn=QPN(1), packetLifeTime=10)),
            (19, IBPath(dlid=LID(2), dqpn=QPN(1), packetLifeTime=19)),
        ):
            expected = 2 * lifetimeSeconds(code) + answering
            self.near(self.patience(path), expected)

    def answerTo(self, code: int, path: IBPath = TO_2) -> None:
        call = self.agent.PerformanceGet(ClassPortInfo, path)
        info = ClassPortInfo(responseTimeValue=code).encode()
        self.agent.received(answer(self.wire.sent[-1][1], at64=info), path)
        self.successResultOf(call)

    def test_busyProcess(self) -> None:
        """An answer that arrives while this process is suspended is read before its call times out."""
        call = self.agent.PerformanceGet(ClassPortInfo, TO_2)
        (timer,) = self.clock.getDelayedCalls()
        received = answer(self.wire.sent[-1][1], at64=ClassPortInfo(responseTimeValue=8).encode())
        self.clock.callLater(timer.getTime(), self.agent.received, received, TO_2)
        self.clock.advance(3.0 + timer.getTime())
        self.assertEqual(self.successResultOf(call).responseTimeValue, 8)

    def test_clockSetBack(self) -> None:
        """When the system's clock is set back, calls and transfers end in time as long as others are made."""
        self.clock.advance(3600.0)
        for wasUsed in (False, True):
            if wasUsed:
                self.clock.rightNow -= 1800.0
            silent = self.agent.PerformanceGet(PortCounters, TO_2, timeoutSeconds=0.5)
            transfer = self.agent.SubnAdmGetMulti(MultiPathRecord(), TO_2, timeoutSeconds=0.5)
            self.clock.rightNow -= 1800.0
            other = self.agent.PerformanceGet(PortCounters, TO_2, timeoutSeconds=0.2)
            self.assertFalse(silent.called or transfer.called or other.called)
            pass_(self.clock, 1.0)
            for call in (silent, transfer, other):
                self.failureResultOf(call, MADTimeoutError)

    def test_clockSetBackBeforeAnswer(self) -> None:
        """An answer shows that the clock was set back, too: it sets the timer of the other calls again."""
        self.clock.advance(3600.0)
        silent = self.agent.PerformanceGet(PortCounters, TO_2, timeoutSeconds=0.5)
        answered = self.agent.PerformanceGet(ClassPortInfo, TO_2, timeoutSeconds=0.5)
        self.clock.rightNow -= 1800.0
        self.agent.received(answer(self.wire.sent[-1][1]), TO_2)
        self.successResultOf(answered)
        pass_(self.clock, 1.0)
        self.failureResultOf(silent, MADTimeoutError)

    def test_class(self) -> None:
        usual = self.patience(TO_2)
        self.answerTo(19)
        longer = lifetimeSeconds(19) - lifetimeSeconds(RESPONSE_TIME)
        self.near(self.patience(TO_2), usual + longer)
        elsewhere = IBPath(dlid=LID(3), dqpn=QPN(1))
        self.near(self.patience(elsewhere), usual)
        self.answerTo(8)
        self.near(self.patience(TO_2), usual)
        self.answerTo(31)  # more than two hours
        self.assertLess(self.patience(TO_2), usual + lifetimeSeconds(MOST_RESPONSE_TIME))

    def test_manySlow(self) -> None:
        """The number of remembered slow peers is limited; the oldest one becomes a normal peer again."""
        self.patch(timeouts, "MOST_SLOW", 2)
        paths = [IBPath(dlid=LID(number), dqpn=QPN(1)) for number in (2, 3, 4)]
        usual = self.patience(paths[0])
        for path in (*paths, *paths[1:]):
            self.answerTo(19, path)
        longer = usual + lifetimeSeconds(19) - lifetimeSeconds(RESPONSE_TIME)
        for path, expected in zip(paths, (usual, longer, longer), strict=True):
            self.near(self.patience(path), expected)

    def test_responseTimeOfPath(self) -> None:
        path = IBPath(dlid=LID(2), dqpn=QPN(1), packetLifeTime=10, responseTime=12)
        self.near(self.patience(path), 2 * lifetimeSeconds(10) + lifetimeSeconds(12))
