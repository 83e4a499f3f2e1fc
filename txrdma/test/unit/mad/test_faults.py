"""Invalid answers end only the call concerned, with a specific error."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from itertools import pairwise
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted.internet.defer import CancelledError, Deferred

from txrdma.error import DeviceUnavailable, ResourceExhausted
from txrdma.iba.path import IBDRPath, IBPath
from txrdma.iba.types import GID, GUID, LID, PKey, QPN
from txrdma.mad.agent import MADAgent
from txrdma.mad.errors import MADClassError, MADError, MADTimeoutError
from txrdma.mad.layouts.messages import ClassPortInfo, Notice
from txrdma.mad.layouts.pma import PortCounters
from txrdma.mad.layouts.sa import MultiPathRecord, NodeRecord, PathRecord
from txrdma.mad.layouts.smp import NodeInfo, PortInfo
from txrdma.test.support.mad.faulty import answer, FaultTestCase, header, RETRIES, segments, TIMEOUT
from txrdma.test.support.mad.pairs import pass_, TO_2, Wire


class ShapeTests(FaultTestCase):
    def test_truncated(self) -> None:
        for length in (16, 23, 24, 63, 64, 100, 127, 128, 255, 257, 2048):
            self.setUp()
            self.peer.respond = lambda request, length=length: [answer(request).ljust(length)[:length]]  # type: ignore[misc]  # mypy knows no defaults of lambdas
            call = self.agent.SubnGet(NodeInfo, TO_2)
            error = self.fails(call, MADClassError, f"the answer has {length} bytes instead of 256")
            self.assertEqual(len(error.reply), length)
            self.assertIn(f"{length} bytes", error.detailed(3))

    def test_cutOffBeforeThat(self) -> None:
        for length in (0, 1, 4, 15):
            self.setUp()
            self.peer.respond = lambda request, length=length: [answer(request)[:length]]  # type: ignore[misc]  # the same
            self.fails(self.agent.SubnGet(NodeInfo, TO_2), MADTimeoutError, "no answer")

    def test_truncatedTable(self) -> None:
        self.peer.respond = lambda request: [answer(request, at24=bytes((1, 1, 7)))[:40]]
        self.fails(self.agent.SubnAdmGetTable(NodeRecord, TO_2), MADClassError, "the answer has 40 bytes")


class KernelShapeTests(FaultTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.wire.ports[0].doesRMPP = True

    def test_shortRedirection(self) -> None:
        self.peer.respond = lambda request: [answer(request, at4=b"\x00\x02", at24=b"\x01\x01\x07")[:56]]
        call = self.agent.SubnAdmGet(PathRecord, TO_2)
        self.fails(call, MADClassError, "ClassPortInfo")

    def test_everyLength(self) -> None:
        for length in (16, 24, 26, 27, 35, 36, 37, 44, 55, 56, 57, 63, 64, 127, 128, 255, 257, 1000):
            for status in (b"\x00\x00", b"\x00\x01", b"\x00\x02", b"\x03\x00"):
                self.setUp()
                self.peer.respond = (
                    lambda request, length=length, status=status: [  # type: ignore[misc]  # mypy knows no defaults of lambdas
                        answer(request, at4=status, at24=b"\x01\x01\x07").ljust(length, b"\0")[:length]
                    ]
                )
                for name in ("SubnAdmGet", "SubnAdmGetTable"):
                    self.ended(self.agent.call(name, NodeRecord, TO_2)).addBoth(lambda result: None)
                self.nothingIsLeft()

    @settings(max_examples=30, deadline=None)
    @given(st.binary(max_size=300), st.integers(0, 63))
    def test_rubbish(self, rubbish: bytes, at: int) -> None:
        self.setUp()
        self.peer.respond = lambda request: [(answer(request)[:at] + rubbish), answer(request) + rubbish]
        for name in ("SubnAdmGet", "SubnAdmGetTable"):
            self.ended(self.agent.call(name, NodeRecord, TO_2), seconds=5).addBoth(lambda result: None)
        self.nothingIsLeft()


class InjectedExceptionTests(FaultTestCase):
    def test_decoder(self) -> None:

        def failing(buffer: object, offset: int = 0) -> object:
            raise ZeroDivisionError("a bug")

        self.patch(NodeInfo, "decode", failing)
        self.peer.respond = lambda request: [answer(request)]
        self.fails(self.agent.SubnGet(NodeInfo, TO_2), MADClassError, "a bug")
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)

    def test_sending(self) -> None:
        other = self.agent.SubnGet(NodeInfo, TO_2)
        call = self.agent.SubnGet(NodeInfo, TO_2)
        self.wire.ports[0].failing = [ZeroDivisionError("a bug")]
        self.failureResultOf(self.ended(other), ZeroDivisionError)
        self.failureResultOf(call, MADTimeoutError)
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.nothingIsLeft()

    def test_shortNews(self) -> None:
        for length in range(24):
            self.agent.undeliverable(self.bystanding[:length] if length < 16 else bytes(length), "gone")
        self.nothingIsLeft()


class MisdirectedTests(FaultTestCase):
    def ignores(self, *strange: bytes) -> None:
        before = len(self.wire.sent)
        for datagram in strange:
            self.agent.received(datagram, TO_2)
        self.assertNoResult(self.call)
        self.assertEqual(len(self.wire.sent), before)
        self.agent.received(answer(self.asked), TO_2)
        self.succeeds(self.call)

    def setUp(self) -> None:
        super().setUp()
        self.call = self.agent.SubnGet(NodeInfo, TO_2)
        pass_(self.clock, 0.01)
        self.asked = self.peer.asked.pop()

    def test_otherClass(self) -> None:
        output = answer(self.asked)
        long = (
            output[:24]
            + bytes((1, 1, 7, 0))
            + (1).to_bytes(4, "big")
            + (220).to_bytes(4, "big")
            + output[36:]
        )
        abort = output[:24] + bytes((1, 4, 1, 127)) + bytes(8) + output[36:]
        self.ignores(
            *(output[:1] + bytes((number,)) + output[2:] for number in (0x04, 0x81, 0x03, 0x32)),
            *(long[:1] + bytes((number,)) + long[2:] for number in (0x03, 0x06, 0x32)),
            *(abort[:1] + bytes((number,)) + abort[2:] for number in (0x03, 0x06, 0x32)),
        )

    def test_otherTransactions(self) -> None:
        output = answer(self.asked)
        identifier = int.from_bytes(output[12:16], "big")
        others = (identifier ^ 1, identifier ^ (1 << 31), identifier - 1, 0, 0xFFFFFFFF)
        self.ignores(
            *(output[:12] + (other & 0xFFFFFFFF).to_bytes(4, "big") + output[16:] for other in others)
        )

    def test_otherAgents(self) -> None:
        self.wire.ports[0].transactionIDBits = 64
        agent = MADAgent(self.clock, self.wire.ports[0], timeoutSeconds=TIMEOUT)
        call = agent.SubnGet(NodeInfo, TO_2)
        output = answer(self.wire.sent[-1][1])
        agent.received(output[:8] + bytes((output[8] ^ 0x80,)) + output[9:], TO_2)
        self.assertNoResult(call)
        agent.received(output, TO_2)
        self.successResultOf(call)
        agent.close()

    def test_requests(self) -> None:
        self.ignores(
            self.asked, *(answer(self.asked, at3=bytes((n,))) for n in (0, 1, 2, 3, 5, 6, 0x12, 0x7F))
        )

    def test_answersToNothing(self) -> None:
        self.call.addErrback(lambda failure: failure.trap(CancelledError)).cancel()
        before = len(self.wire.sent)
        for method in range(0x80, 0x100):
            for managementClass in (1, 0x81, 3, 4, 6, 7, 0x32, 0xFF):
                output = bytearray(answer(self.asked, at1=bytes((managementClass,)), at3=bytes((method,))))
                self.agent.received(bytes(output), TO_2)
                output[24:36] = bytes((1, 1, 7, 0)) + (1).to_bytes(4, "big") + (200).to_bytes(4, "big")
                self.agent.received(bytes(output), TO_2)
        self.assertEqual(len(self.wire.sent), before)
        self.nothingIsLeft()


class StrangerTests(FaultTestCase):
    def come(self, lid: int, *datagrams: bytes) -> None:
        for datagram in datagrams:
            self.agent.received(datagram, IBPath(slid=LID(lid), dlid=LID(1), sqpn=QPN(1), dqpn=QPN(1)))

    def test_otherLID(self) -> None:
        call = self.agent.PerformanceGet(PortCounters, TO_2)
        pass_(self.clock, 0.01)
        (asked,) = self.peer.asked
        info = ClassPortInfo(redirectLID=LID(3), redirectQPN=QPN(1)).encode()
        false = answer(asked, at64=b"\x66")
        self.come(3, false, false[:100], false + b"x", answer(asked, at4=b"\x00\x0c"))
        self.come(3, answer(asked, at4=b"\x00\x02", at64=info), answer(asked, at4=b"\x00\x01"))
        self.assertNoResult(call)
        self.assertEqual(self.agent.wrongSources, 6)
        self.come(2, answer(asked, at64=bytes((0, 9))))
        self.assertEqual(self.succeeds(call).portSelect, 9)

    def test_otherWithLMC(self) -> None:
        port = self.wire.ports[0]
        port.endPort = replace(port.endPort, lidMask=1)
        call = self.agent.SubnGet(NodeInfo, TO_2)
        pass_(self.clock, 0.01)
        self.come(4, answer(self.peer.asked[0]))
        self.come(1, answer(self.peer.asked[0]))
        self.assertNoResult(call)
        self.come(3, answer(self.peer.asked[0]))
        self.succeeds(call)

    def test_redirected(self) -> None:
        call = self.agent.PerformanceGet(PortCounters, TO_2)
        pass_(self.clock, 0.01)
        info = ClassPortInfo(redirectLID=LID(9), redirectQPN=QPN(1)).encode()
        self.come(2, answer(self.peer.asked[0], at4=b"\x00\x02", at64=info))
        asked = self.wire.sent[-1][1]
        self.come(2, answer(asked))
        self.assertNoResult(call)
        self.come(9, answer(asked))
        self.succeeds(call)

    def test_otherGID(self) -> None:
        here, there, other = (GID.fromParts(0xFE80 << 48, GUID.fromInt(number)) for number in (1, 2, 3))
        path = IBPath(dlid=LID(2), dqpn=QPN(1), sgid=here, dgid=there)
        call = self.agent.PerformanceGet(PortCounters, path)
        pass_(self.clock, 0.01)
        came = path.reverse()
        self.agent.received(answer(self.peer.asked[0]), replace(came, sgid=other))
        self.assertNoResult(call)
        self.agent.received(answer(self.peer.asked[0]), came)
        self.succeeds(call)

    def test_table(self) -> None:
        call = self.agent.SubnAdmGetTable(NodeRecord, TO_2)
        pass_(self.clock, 0.01)
        (asked,) = self.peer.asked
        content = b"".join(NodeRecord(lid=LID(n)).encode().ljust(112, b"\0") for n in range(4))
        false = b"".join(NodeRecord(lid=LID(n)).encode().ljust(112, b"\0") for n in range(90, 94))
        self.come(3, *segments(asked, false))
        first, *rest = segments(asked, content)
        self.come(2, first)
        self.come(3, *segments(asked, false)[1:], answer(asked, at24=header(4, status=127)))
        self.come(2, *rest)
        self.assertEqual([record.lid for record in self.succeeds(call)], [0, 1, 2, 3])

    def test_unforeseeable(self) -> None:
        numbers = []
        for _ in range(50):
            call = self.agent.SubnGet(NodeInfo, TO_2)
            call.addErrback(lambda failure: failure.trap(CancelledError))
            numbers.append(int.from_bytes(self.wire.sent[-1][1][8:16], "big"))
            call.cancel()
        steps = {(after - before) & 0xFFFFFFFF for before, after in pairwise(numbers)}
        self.assertGreater(len(steps), 40)
        self.assertGreater(len({number >> 24 for number in numbers}), 20)


class OtherAnswerTests(FaultTestCase):
    def answerTo(self, words: str, kind: Any = NodeInfo, modifier: int = 0, **changed: bytes) -> None:
        self.setUp()
        self.peer.respond = lambda request: [answer(request, **changed)]
        error = self.fails(self.agent.SubnGet(kind, TO_2, modifier), MADClassError, words)
        self.assertEqual(error.request, self.peer.asked[0])
        self.assertIn("reply: SUBN_LID", error.detailed(1))
        self.assertEqual(len(self.peer.asked), 1)

    def test_versions(self) -> None:
        self.answerTo("of version 2, its class of 1", at0=b"\x02")
        self.answerTo("of version 128, its class of 128", at0=b"\x80", at2=b"\x80")
        self.answerTo("of version 1, its class of 2", at2=b"\x02")

    def test_versionRefused(self) -> None:
        self.peer.respond = lambda request: [answer(request, at0=b"\x80", at2=b"\x80", at4=b"\x00\x04")]
        error = self.fails(self.agent.SubnGet(NodeInfo, TO_2), MADError, "bad base or class version")
        self.assertEqual(error.status, 4)

    def test_method(self) -> None:
        self.answerTo("SubnGet is answered by GET_TABLE_RESP", at3=b"\x92")
        self.answerTo("SubnGet is answered by TRAP_REPRESS", at3=b"\x07")
        self.answerTo("SubnGet is answered by UNKNOWN_0x82", at3=b"\x82")

    def test_attribute(self) -> None:
        self.answerTo("the answer is of attribute 0x0012", at16=b"\x00\x12")
        self.answerTo("the answer is of attribute 0x7777", at16=b"\x77\x77")

    def test_modifier(self) -> None:
        self.answerTo("the modifier 0x4, not 0x3", PortInfo, 3, at20=bytes((0, 0, 0, 4)))

    def test_reserved(self) -> None:
        self.peer.respond = lambda request: [
            answer(request, at6=b"\xff\xff", at18=b"\xff\xff", at32=b"\xff" * 32)
        ]
        self.assertEqual(self.succeeds(self.agent.SubnGet(NodeInfo, TO_2)), NodeInfo())

    def test_errorByAnotherMethod(self) -> None:
        self.peer.respond = lambda request: [answer(request, at3=b"\x81", at4=b"\x00\x0c")]
        error = self.fails(self.agent.SubnAdmGetTable(NodeRecord, TO_2), MADError, "attribute not supported")
        self.assertEqual(error.status, 0x0C)

    def test_directed(self) -> None:
        self.peer.respond = lambda request: [answer(request, at4=b"\x80\x00")]
        self.succeeds(self.agent.SubnGet(NodeInfo, IBDRPath(drPath=(1,))))
        self.setUp()
        self.peer.respond = lambda request: [answer(request, at4=b"\x80\x1c")]
        call = self.agent.SubnGet(NodeInfo, IBDRPath(drPath=(1,)))
        self.assertEqual(self.fails(call, MADError, "invalid value").status, 0x1C)


class RepetitionTests(FaultTestCase):
    def test_twice(self) -> None:
        self.peer.respond = lambda request: [answer(request, at64=b"\x01"), answer(request, at64=b"\x02")]
        for _ in range(20):
            call = self.agent.SubnGet(NodeInfo, TO_2)
            pass_(self.clock, 0.01)
            self.assertEqual(self.successResultOf(call).baseVersion, 1)
        self.nothingIsLeft()

    def test_late(self) -> None:
        late: list[bytes] = []
        self.peer.respond = lambda request: late.append(answer(request, at64=b"\x09")) or ()  # type: ignore[func-returns-value]  # that is the point
        self.failureResultOf(self.ended(self.agent.SubnGet(NodeInfo, TO_2)), MADTimeoutError)
        cancelled = self.agent.SubnGet(NodeInfo, TO_2)
        pass_(self.clock, 0.01)
        cancelled.cancel()
        self.failureResultOf(cancelled, CancelledError)
        self.assertEqual(len(late), RETRIES + 2)
        following = self.agent.SubnGet(NodeInfo, TO_2)
        pass_(self.clock, 0.01)
        for datagram in late[:-1]:
            self.agent.received(datagram, TO_2)
        self.assertNoResult(following)
        self.agent.received(answer(late[-1], at3=b"\x81", at64=b"\x05"), TO_2)
        self.assertEqual(self.succeeds(following).baseVersion, 5)

    def test_never(self) -> None:
        call = self.agent.SubnSet(PortInfo(), TO_2)
        self.fails(call, MADTimeoutError, "SubnSet: no answer; a port whose M_Key is not 0x0 may be silent")
        self.assertEqual(len(self.peer.asked), 1 + RETRIES)

    def test_partition(self) -> None:
        path = IBPath(dlid=LID(2), dqpn=QPN(1), pkey=PKey(0x8001))
        self.fails(self.agent.PerformanceGet(PortCounters, path), MADTimeoutError, "partition 0x8001")


class TransactionTests(FaultTestCase):
    def few(self, bits: int) -> MADAgent:
        wire = self.wire = Wire(self.clock)
        wire.ports[0].transactionIDBits = bits
        return MADAgent(self.clock, wire.ports[0], timeoutSeconds=TIMEOUT, retries=0)

    def identifiers(self) -> list[int]:
        return [int.from_bytes(datagram[8:16], "big") for _, datagram in self.wire.sent]

    def test_wrap(self) -> None:
        agent = self.few(4)
        pending = agent.SubnGet(NodeInfo, TO_2, timeoutSeconds=1000)
        for _ in range(400):  # each draws one of 14 IDs
            call = agent.SubnGet(NodeInfo, TO_2)
            agent.received(answer(self.wire.sent[-1][1]), TO_2)
            self.successResultOf(call)
        (first, *others) = self.identifiers()
        self.assertNotIn(first, others)
        self.assertEqual(set(others), set(range(1, 16)) - {first})
        agent.received(answer(self.wire.sent[0][1]), TO_2)
        self.successResultOf(pending)

    def test_all(self) -> None:
        agent = self.few(4)
        calls = [agent.SubnGet(NodeInfo, TO_2) for _ in range(15)]
        self.assertEqual(sorted(self.identifiers()), list(range(1, 16)))
        self.failureResultOf(agent.SubnGet(NodeInfo, TO_2), ResourceExhausted)
        agent.received(answer(self.wire.sent[6][1]), TO_2)
        self.successResultOf(calls.pop(6))
        following = agent.SubnGet(NodeInfo, TO_2)
        self.assertEqual(self.identifiers()[-1], self.identifiers()[6])
        self.assertNoResult(following)
        for call in (*calls, following):
            pass_(self.clock, 2 * TIMEOUT, 0.1)
            self.failureResultOf(call, MADTimeoutError)

    def test_upperHalf(self) -> None:
        self.peer.respond = lambda request: [answer(request, at8=b"\xde\xad\xbe\xef")]
        self.succeeds(self.agent.SubnGet(NodeInfo, TO_2))


class PortTests(FaultTestCase):
    def calls(self) -> Iterator[Deferred[Any]]:
        yield self.agent.SubnGet(NodeInfo, TO_2)
        yield self.agent.SubnGet(NodeInfo, IBDRPath(drPath=(1,)))
        yield self.agent.SubnAdmGetTable(NodeRecord, TO_2)
        yield self.agent.SubnTrap(Notice(), TO_2)
        yield self.agent.PerformanceGet(PortCounters, TO_2)

    def allFail(self, calls: list[Deferred[Any]], words: str) -> None:
        for call in (*calls, self.bystander):
            self.assertIn(words, str(self.failureResultOf(call, DeviceUnavailable).value))
        self.assertEqual(self.agent._core._transactions.open, {})
        pass_(self.clock, 0.01)  # until datagrams in transit are delivered
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_vanishes(self) -> None:
        calls = list(self.calls())
        self.agent.portLost("the device is gone")
        self.allFail(calls, "the device is gone")
        self.failureResultOf(self.agent.SubnGet(NodeInfo, TO_2), DeviceUnavailable)
        self.agent.received(answer(self.wire.sent[-1][1]), TO_2)
        self.agent.undeliverable(self.wire.sent[-1][1], "late")
        self.agent.portLost("once more")

    def test_closesInAnAnswer(self) -> None:
        calls = list(self.calls())
        calls[0].addCallback(lambda _: self.agent.close())
        sent = [datagram for lid, datagram in self.wire.sent if lid == 1][1:]
        self.agent.received(answer(sent[0]), TO_2)
        self.successResultOf(calls.pop(0))
        self.allFail(calls, "the agent is closed")
        for datagram in sent:
            self.agent.received(answer(datagram), TO_2)

    def test_closesInATimeout(self) -> None:
        calls = [self.agent.SubnGet(NodeInfo, TO_2, retries=number % 2) for number in range(10)]
        for call in calls:
            call.addErrback(lambda failure: self.agent.close())
        pass_(self.clock, 3 * TIMEOUT, 0.01)
        for call in calls:
            self.successResultOf(call)
        self.failureResultOf(self.bystander, DeviceUnavailable)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_cancelsInSendingAgain(self) -> None:
        calls = [self.agent.SubnGet(NodeInfo, TO_2) for _ in range(5)]
        pass_(self.clock, 0.01)
        self.peer.asked.clear()
        self.wire.ports[0].failing = [ResourceExhausted("no room")]

        def cancel(failure: object) -> None:
            for other in calls[1:]:
                other.cancel()

        calls[0].addErrback(cancel)
        self.ended(calls[0])
        for other in calls[1:]:
            self.failureResultOf(other, CancelledError)
        self.assertEqual(len(self.peer.asked), 4)
        self.nothingIsLeft()

    def test_vanishesInSending(self) -> None:

        def send(*arguments: object) -> None:
            self.agent.portLost("the device is gone")

        calls = list(self.calls())
        self.patch(self.agent.port, "send", send)  # fails like a port that was asked to write
        self.failureResultOf(self.agent.SubnGet(NodeInfo, TO_2), DeviceUnavailable)
        self.allFail(calls, "the device is gone")

    def test_cannotSendAgain(self) -> None:
        call = self.agent.SubnGet(NodeInfo, TO_2)
        self.wire.ports[0].failing = [ResourceExhausted("no room")]
        self.fails(call, ResourceExhausted, "no room")

    def test_cannotSend(self) -> None:
        multi = MultiPathRecord(sgidCount=1, dgidCount=1)
        for name, payload in (
            ("SubnGet", NodeInfo),
            ("SubnAdmGetTable", NodeRecord),
            ("SubnAdmGetMulti", multi),
        ):
            self.setUp()
            self.wire.ports[0].failing = [ResourceExhausted("no room")]
            self.fails(self.agent.call(name, payload, TO_2), ResourceExhausted)

    def test_undeliverable(self) -> None:
        call = self.agent.SubnGet(NodeInfo, TO_2)
        for _ in range(1 + RETRIES):
            self.assertNoResult(call)
            self.agent.undeliverable(self.wire.sent[-1][1][:24], "no route to host")
        self.fails(call, MADTimeoutError, "no route to host")
        self.agent.undeliverable(self.wire.sent[-1][1][:24], "no route to host")
