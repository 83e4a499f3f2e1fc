"""A server answers every request with a valid status, whatever handlers and listeners do."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from twisted.internet.defer import Deferred
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.layouts.messages import RTU
from txrdma.error import ResourceExhausted
from txrdma.iba.path import IBPath
from txrdma.iba.types import LID, QPN
from txrdma.kit.shares import CLIENT_SHARE
from txrdma.kit.values import replace
from txrdma.mad import server as serverModule
from txrdma.mad.core.frames import frame, Keys
from txrdma.mad.core.recent import MOST_REMEMBERED, Recent, REMEMBERED_SECONDS
from txrdma.mad.errors import MADError, MADRefusal
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.congestion import SwitchCongestionLog
from txrdma.mad.layouts.messages import MADHeader, MADRequest, MADStatus, Notice
from txrdma.mad.layouts.pma import PortCounters, PortCountersExtended
from txrdma.mad.layouts.sa import NodeRecord, PathRecord
from txrdma.mad.layouts.smp import NodeInfo
from txrdma.mad.server import ANSWER_SECONDS, MOST_PENDING
from txrdma.mad.vendor import OpenIBPing
from txrdma.test.support.mad.pairs import Answers, pass_, TO_2, WiredTestCase

PERFORMANCE, SA, PING = ManagementClass.PERFORMANCE, ManagementClass.SUBN_ADM, 0x32


class ServerTestCase(WiredTestCase):
    options = {"timeoutSeconds": 100, "retries": 0}

    def status(self, call: Deferred[Any]) -> int:
        pass_(self.clock, 0.1)
        status: int = self.failureResultOf(call, MADError).value.status
        return status

    def asked(self, datagram: bytes, path: IBPath | None = None) -> MADHeader | None:
        before = len(self.wire.sent)
        qpn = QPN(0 if datagram[1:2] in (b"\x01", b"\x81") else 1)
        self.other.received(datagram, path or IBPath(slid=LID(1), dlid=LID(2), sqpn=qpn, dqpn=qpn))
        if len(self.wire.sent) == before:
            return None
        self.assertEqual(len(self.wire.sent), before + 1)
        return MADHeader.decode(self.wire.sent[-1][1])

    def request(self, managementClass: int, method: int, attributeID: int, transaction: int = 77) -> bytes:
        return frame(managementClass, method, transaction, attributeID, 5, b"")


class StatusTests(ServerTestCase):
    def statusOf(self, datagram: bytes) -> int:
        header = self.asked(datagram)
        assert header is not None
        self.assertEqual((header.transactionID, header.attributeModifier), (77, 5))
        return header.status

    def test_classes(self) -> None:
        for managementClass in (3, 4, 5, 6, 7, 8, 9, 0x10, 0x12, 0x21, 0x32, 0x50, 0xFF):
            self.assertEqual(self.statusOf(self.request(managementClass, 1, 1)), MADStatus.UNSUPPORTED_METHOD)

    def test_methods(self) -> None:
        served = self.serve(lambda request: request.payload, methods=(Method.GET,))
        for method, output in ((2, 0x81), (0x12, 0x92), (0x15, 0x95), (4, 0x84), (0x7F, 0xFF), (0, 0x80)):
            header = self.asked(self.request(PERFORMANCE, method, 0x12))
            assert header is not None
            self.assertEqual((header.method, header.status), (output, MADStatus.UNSUPPORTED_METHOD))
        self.assertEqual(served.asked, [])

    def test_attributes(self) -> None:
        served = self.serve(lambda request: request.payload)
        for method, attributeID in ((1, 0x7777), (2, 0x7777)):
            status = self.statusOf(self.request(PERFORMANCE, method, attributeID))
            self.assertEqual(status, MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE)
        self.serve(lambda request: request.payload, SA, (Method.DELETE,))
        status = self.statusOf(self.request(SA, Method.DELETE, NodeRecord.attributeID))
        self.assertEqual(status, MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE)
        self.assertEqual(served.asked, [])

    def test_versions(self) -> None:
        served = self.serve(lambda request: request.payload)
        asked = self.request(PERFORMANCE, 1, 0x12)
        for changed in (b"\x02" + asked[1:], b"\x80" + asked[1:], asked[:2] + b"\x02" + asked[3:]):
            header = self.asked(changed)
            assert header is not None
            self.assertEqual(header.status, MADStatus.UNSUPPORTED_VERSION)
            self.assertEqual((header.baseVersion, header.classVersion), (1, 1))
        self.assertEqual(served.asked, [])

    def test_otherVendor(self) -> None:
        mine = self.serve(lambda request: OpenIBPing(), PING, (Method.GET,), 0x001405)
        second = self.serve(lambda request: OpenIBPing(), PING, (Method.GET,), 0xABCDEF)
        for oui, status in ((0x001405, 0), (0xABCDEF, 0), (0x123456, 8), (0, 8)):
            self.assertEqual(self.statusOf(frame(PING, 1, 77, 0, 5, b"", Keys(oui=oui))), status)
        self.assertEqual((len(mine.asked), len(second.asked)), (1, 1))


class SilenceTests(ServerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.served = self.serve(lambda request: request.payload)
        self.serve(lambda request: NodeInfo(), ManagementClass.SUBN_LID)

    def test_lengths(self) -> None:
        asked = self.request(PERFORMANCE, 1, 0x12)
        for datagram in (asked[:20], asked[:24], asked[:255], asked + b"\0", asked * 2):
            self.assertIsNone(self.asked(datagram))
        self.assertEqual(self.served.asked, [])

    def test_queuePairs(self) -> None:
        for managementClass, qpn in ((PERFORMANCE, 0), (1, 1), (0x81, 1)):
            asked = self.request(PERFORMANCE, 1, 0x12)
            asked = asked[:1] + bytes((managementClass,)) + asked[2:]
            path = IBPath(slid=LID(1), dlid=LID(2), sqpn=QPN(qpn), dqpn=QPN(qpn))
            self.assertIsNone(self.asked(asked, path))
        self.assertEqual(self.served.asked, [])

    def test_responses(self) -> None:
        for method in (0x81, 0x82, 0x83, 0x92, 0x95, 0x07):
            self.assertIsNone(self.asked(self.request(PERFORMANCE, method, 0x12)))
        self.assertEqual(self.served.asked, [])

    def test_sends(self) -> None:
        asked = self.request(ManagementClass.COMM_MGT, Method.SEND, RTU.attributeID)
        self.assertIsNone(self.asked(asked))

        def fail(request: MADRequest) -> object:
            raise ValueError("as the test wants it")

        for number, handle in enumerate((lambda request: request.payload, lambda request: None, fail)):
            served = self.serve(handle, ManagementClass.COMM_MGT, (Method.SEND,))
            asked = self.request(ManagementClass.COMM_MGT, Method.SEND, RTU.attributeID, 100 + number)
            self.assertIsNone(self.asked(asked))
            self.assertEqual(len(served.asked), 1)
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)

    def test_noReturnPath(self) -> None:
        way = IBPath(slid=LID(1), dlid=LID(2), sqpn=QPN(1), dqpn=QPN(1), reversible=False)
        self.assertIsNone(self.asked(self.request(PERFORMANCE, 1, 0x12), way))
        self.wire.ports[1].failing = [ResourceExhausted("no room")]
        self.assertIsNone(self.asked(self.request(PERFORMANCE, 1, 0x12, 78)))
        self.assertIsNotNone(self.asked(self.request(PERFORMANCE, 1, 0x12, 79)))

    def test_elsewhere(self) -> None:
        log = SwitchCongestionLog(logEventsCounter=7, portMap=bytes(range(32)))
        served = self.serve(lambda request: request.payload, ManagementClass.CONG_MGT)
        call = self.agent.CongMgtGet(log, TO_2)
        pass_(self.clock, 0.1)
        self.assertEqual(self.successResultOf(call), log)
        self.assertEqual(served.asked[0].payload, log)


class HandlerTests(ServerTestCase):
    def test_coroutine(self) -> None:
        later: Deferred[object] = Deferred()
        closed: list[int] = []

        class Slow:
            async def handle(self, request: MADRequest) -> object:
                try:
                    if request.header.attributeModifier == 1:
                        await later
                    if request.header.attributeModifier == 2:
                        raise MADRefusal(0x0C)
                    return request.payload
                finally:
                    closed.append(request.header.attributeModifier)

        self.server.handle(PERFORMANCE, Slow(), (Method.GET,))  # type: ignore[arg-type]  # provides it
        call = self.agent.PerformanceGet(PortCounters(portSelect=4), TO_2)
        pass_(self.clock, 0.1)
        self.assertEqual(self.successResultOf(call).portSelect, 4)
        self.assertEqual(self.status(self.agent.PerformanceGet(PortCounters, TO_2, 2)), 0x0C)
        call = self.agent.PerformanceGet(PortCounters, TO_2, 1)
        pass_(self.clock, ANSWER_SECONDS + 1, 0.1)
        self.assertEqual(self.status(call), MADStatus.BUSY)
        self.assertEqual(closed, [0, 2, 1])

    def test_nonsense(self) -> None:
        nonsense: Sequence[object] = (7, "text", b"bytes", PortCounters, [], [PortCounters()])
        for output in (*nonsense, (PortCounters(),)):
            self.serve(lambda request, output=output: output)  # type: ignore[misc]  # mypy knows no defaults of lambdas
            self.assertEqual(self.status(self.agent.PerformanceGet(PortCounters, TO_2)), 0x1C)
            self.assertEqual(len(self.flushLoggedErrors(TypeError)), 1)

    def test_mixedTable(self) -> None:
        for output in ([NodeRecord(), PathRecord()], [NodeRecord(), 7], 7):
            self.serve(lambda request, output=output: output, SA, (Method.GET_TABLE,))  # type: ignore[misc]  # the same
            self.assertEqual(self.status(self.agent.SubnAdmGetTable(NodeRecord, TO_2)), 0x0100)
            self.assertEqual(len(self.flushLoggedErrors(TypeError)), 1)

    def test_unwritable(self) -> None:
        self.serve(lambda request: PortCounters(portSelect=256))
        self.assertEqual(self.status(self.agent.PerformanceGet(PortCounters, TO_2)), 0x1C)
        self.serve(lambda request: [PathRecord(), PathRecord(dlid=LID(1 << 16))], SA, (Method.GET_TABLE,))
        self.assertEqual(self.status(self.agent.SubnAdmGetTable(PathRecord, TO_2)), 0x0100)
        self.serve(lambda request: PortCountersExtended(), ManagementClass.VENDOR_09)

        def refuse(request: MADRequest) -> object:
            raise MADRefusal(0x1C, payload=PortCounters(portSelect=256))

        self.serve(refuse)
        self.assertEqual(self.status(self.agent.PerformanceGet(PortCounters, TO_2)), 0x1C)
        self.assertEqual(len(self.flushLoggedErrors()), 3)

    def test_noRoomInPort(self) -> None:
        """A table that the port cannot send is answered with BUSY; it is not sent after that."""
        self.serve(lambda request: [NodeRecord()] * 100, SA, (Method.GET_TABLE,))
        self.wire.ports[1].failing = [ResourceExhausted("no room")]
        self.assertEqual(self.status(self.agent.SubnAdmGetTable(NodeRecord, TO_2)), MADStatus.BUSY)
        before = len(self.wire.sent)
        pass_(self.clock, 60.0, 0.1)
        self.assertEqual(len(self.wire.sent), before)
        table = self.agent.SubnAdmGetTable(NodeRecord, TO_2)
        pass_(self.clock, 0.1)
        self.assertEqual(len(self.successResultOf(table)), 100)

    def test_refusal(self) -> None:

        def refuse(request: MADRequest) -> object:
            raise MADRefusal(0x1C, payload=PortCounters(portSelect=9))

        self.serve(refuse)
        call = self.agent.PerformanceGet(PortCounters, TO_2)
        pass_(self.clock, 0.1)
        error = self.failureResultOf(call, MADError).value
        self.assertEqual(error.status, 0x1C)
        self.assertEqual(PortCounters.decode(error.reply, 64).portSelect, 9)


class RepeatedTests(ServerTestCase):
    def test_log(self) -> None:
        """A peer that repeats an invalid request is logged once a minute."""
        self.serve(lambda request: PortCounters())
        request = frame(ManagementClass.PERFORMANCE, 1, Method.GET, 0x12, 7, b"")
        with capturedLogs() as events:
            for number in range(100):
                path = IBPath(slid=LID(2 + number % 2), dqpn=QPN(0))
                self.assertTrue(self.server.requested(request, b"", path, True))
        self.assertEqual([event["path"].slid for event in events], [2, 3])


class PendingTests(ServerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.later: list[Deferred[object]] = []
        self.cancelled = 0
        self.served = self.serve(self.begin)

    def begin(self, request: MADRequest) -> Deferred[object]:
        self.later.append(Deferred(self.cancel))
        return self.later[-1]

    def cancel(self, deferred: Deferred[object]) -> None:
        self.cancelled += 1

    def nothingIsLeft(self) -> None:
        self.assertEqual(self.server._pending, {})
        self.agent.close()
        pass_(self.clock, 1, 0.1)
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_never(self) -> None:
        call = self.agent.PerformanceGet(PortCounters, TO_2)
        pass_(self.clock, ANSWER_SECONDS - 1, 0.5)
        self.assertNoResult(call)
        pass_(self.clock, 2, 0.1)
        self.assertEqual(self.cancelled, 1)
        self.assertEqual(self.status(call), MADStatus.BUSY)
        self.nothingIsLeft()

    def test_logged(self) -> None:
        """Requests of a peer that no handler answers are logged once a minute."""
        with capturedLogs() as logs:
            for number in range(3):
                self.asked(self.request(PERFORMANCE, 1, 0x12, number + 1))
            pass_(self.clock, ANSWER_SECONDS + 1, 0.5)
        texts = [text for text in map(formatEvent, logs) if "no handler has answered" in text]
        self.assertEqual((self.cancelled, len(texts)), (3, 1))
        self.nothingIsLeft()

    def test_afterThat(self) -> None:

        def stubborn(request: MADRequest) -> Deferred[object]:
            inner: Deferred[object] = Deferred()
            self.later.append(inner)
            outer: Deferred[object] = Deferred(lambda deferred: deferred.callback(PortCounters(portSelect=9)))
            inner.chainDeferred(outer)
            return outer

        for respond in (PortCounters(), ValueError("late")):
            self.serve(stubborn)
            call = self.agent.PerformanceGet(PortCounters, TO_2)
            pass_(self.clock, ANSWER_SECONDS + 0.1, 0.1)
            self.assertEqual(self.status(call), MADStatus.BUSY)
            before = len(self.wire.sent)
            self.later[-1].addErrback(lambda failure: None)
            if isinstance(respond, Exception):
                self.later[-1].errback(respond)
            else:
                self.later[-1].callback(respond)
            self.assertEqual(len(self.wire.sent), before)
        self.nothingIsLeft()

    def test_again(self) -> None:
        self.agent.retries = 3
        call = self.agent.PerformanceGet(PortCounters, TO_2, timeoutSeconds=0.5)
        pass_(self.clock, 1.2, 0.01)
        self.assertEqual(len([lid for lid, _ in self.wire.sent if lid == 1]), 3)
        self.assertEqual(len(self.served.asked), 1)
        self.later[0].callback(PortCounters(portSelect=3))
        pass_(self.clock, 0.1)
        self.assertEqual(self.successResultOf(call).portSelect, 3)
        self.assertEqual(len([lid for lid, _ in self.wire.sent if lid == 2]), 1)
        self.nothingIsLeft()

    def test_undead(self) -> None:
        undead: list[Deferred[object]] = [Deferred(), Deferred()]
        coming = iter(undead)
        self.serve(lambda request: self.begin(request).addErrback(lambda failure: next(coming)))
        asked = self.request(PERFORMANCE, 1, 0x12)
        self.assertIsNone(self.asked(asked))
        pass_(self.clock, ANSWER_SECONDS + 1, 0.1)
        before = len(self.wire.sent)
        self.other.received(asked, IBPath(slid=LID(1), dlid=LID(2), sqpn=QPN(1), dqpn=QPN(1)))
        undead[0].callback(PortCounters(portSelect=1))
        self.assertEqual(len(self.wire.sent), before)
        self.later[1].callback(PortCounters(portSelect=2))
        self.assertEqual([datagram[65] for _, datagram in self.wire.sent[before:]], [2])
        self.nothingIsLeft()

    def test_others(self) -> None:
        self.serve(self.begin, ManagementClass.BM)
        one = self.request(PERFORMANCE, 1, 0x12)
        self.asked(one)
        self.asked(one, IBPath(slid=LID(3), dlid=LID(2), sqpn=QPN(1), dqpn=QPN(1)))
        self.asked(one, IBPath(slid=LID(1), dlid=LID(2), sqpn=QPN(2), dqpn=QPN(1)))
        self.asked(self.request(PERFORMANCE, 2, 0x12))
        self.asked(self.request(PERFORMANCE, 1, 0x1D))
        self.asked(self.request(ManagementClass.BM, 1, 1))
        self.assertEqual(len(self.later), 6)
        self.other.close()
        self.nothingIsLeft()

    def askedBy(self, lid: int, transaction: int) -> int:
        """Return the status of the answer to a request from a LID; -1 if it is pending."""
        path = IBPath(slid=LID(lid), dlid=LID(2), sqpn=QPN(1), dqpn=QPN(1))
        header = self.asked(self.request(PERFORMANCE, 1, 0x12, transaction), path)
        return -1 if header is None else int(header.status)

    def test_tooMany(self) -> None:
        for number in range(MOST_PENDING):
            self.assertEqual(self.askedBy(3 + number % 4, number + 1), -1)
        self.assertEqual(self.askedBy(1, 5000), MADStatus.BUSY)
        self.later[0].callback(PortCounters())
        self.assertEqual(self.askedBy(1, 5001), -1)
        self.other.close()
        self.assertEqual(self.cancelled, MOST_PENDING)
        self.nothingIsLeft()

    def test_share(self) -> None:
        """The pending requests of one sender are limited to its share; another sender is served then."""
        share = int(MOST_PENDING * CLIENT_SHARE)
        found = [self.askedBy(3, number + 1) for number in range(share + 1)]
        self.assertEqual(found, [-1] * share + [MADStatus.BUSY])
        self.assertEqual(self.askedBy(4, 5000), -1)
        self.later[0].callback(PortCounters())
        self.assertEqual([self.askedBy(3, number) for number in (5001, 5002)], [-1, MADStatus.BUSY])
        self.other.close()
        self.assertEqual((len(self.server._pendingShares), self.server._pendingBytes.total), (0, 0))
        self.nothingIsLeft()

    def test_pathBits(self) -> None:
        """All LIDs of a port (LMC) are one sender."""
        self.other.port.endPort = replace(self.other.port.endPort, lidMask=1)
        self.patch(serverModule, "MOST_PENDING", int(2 / CLIENT_SHARE))
        self.assertEqual([self.askedBy(lid, 1) for lid in (4, 5)], [-1, -1])
        self.assertEqual([self.askedBy(lid, 2) for lid in (4, 5, 6)], [MADStatus.BUSY, MADStatus.BUSY, -1])
        self.other.close()
        self.nothingIsLeft()

    def test_bytes(self) -> None:
        """Pending requests are limited in bytes, and those of one sender to its share."""
        self.assertEqual(self.askedBy(3, 1), -1)
        length = len(self.served.asked[0].data)
        self.patch(serverModule, "MOST_PENDING_BYTES", int(2 * length / CLIENT_SHARE))
        found = [self.askedBy(lid, number) for lid in (3, 4, 5) for number in (2, 3, 4)]
        busy = int(MADStatus.BUSY)
        self.assertEqual(found, [-1, busy, busy, -1, -1, busy, busy, busy, busy])
        self.later[0].callback(PortCounters())
        self.assertEqual(self.askedBy(3, 5), -1)
        self.other.close()
        self.nothingIsLeft()

    def test_end(self) -> None:
        for isLost in (False, True):
            self.setUp()
            self.asked(self.request(PERFORMANCE, 1, 0x12))
            before = len(self.wire.sent)
            self.other.portLost("the device is gone") if isLost else self.other.close()
            self.assertEqual((self.cancelled, len(self.wire.sent)), (1, before))
            self.nothingIsLeft()

    def test_endOfAnother(self) -> None:
        """A handler is not called if another handler of the same request removes it."""
        ends: list[Callable[[], None]] = []
        calls: list[str] = []

        def remove(request: MADRequest) -> object:
            calls.append("newest")
            ends.pop()()
            return NotImplemented

        ends.append(self.server.handle(PERFORMANCE, Answers(lambda request: calls.append("removed")), (1,)))
        self.server.handle(PERFORMANCE, Answers(remove), (1,))
        self.asked(self.request(PERFORMANCE, 1, 0x12))
        self.assertEqual(calls, ["newest"])
        self.assertEqual(len(self.later), 1)

    def test_endInHandler(self) -> None:
        """A handler that stops its server, or closes the agent, is cancelled."""
        for isClosed in (False, True):
            self.setUp()

            def begin(request: MADRequest, isClosed: bool = isClosed) -> Deferred[object]:
                self.other.close() if isClosed else self.server.stop()
                return self.begin(request)

            self.served.how = begin
            self.assertIsNone(self.asked(self.request(PERFORMANCE, 1, 0x12)))
            self.assertEqual(self.cancelled, 1)
            self.nothingIsLeft()


class NoticeTests(ServerTestCase):
    def setUp(self) -> None:
        super().setUp()
        self.reports: list[int] = []
        self.server.listen(lambda notice, request: self.reports.append(notice.trapNumber))
        self.agent.timeoutSeconds = 0.5

    def trap(self, number: int = 128, transaction: int = 77, slid: int = 1) -> MADHeader | None:
        notice = Notice(isGeneric=True, trapNumber=number, issuerLID=LID(slid))
        asked = frame(SA, Method.REPORT, transaction, Notice.attributeID, 0, notice.encode())
        return self.asked(asked, IBPath(slid=LID(slid), dlid=LID(2), sqpn=QPN(1), dqpn=QPN(1)))

    def test_everyone(self) -> None:

        def fail(notice: Notice, request: MADRequest) -> None:
            raise ValueError("as the test wants it")

        more: list[tuple[Notice, MADRequest]] = []
        self.server.listen(fail)
        stop = self.server.listen(lambda notice, request: more.append((notice, request)))
        header = self.trap()
        assert header is not None
        self.assertEqual((header.method, header.status), (Method.REPORT_RESP, 0))
        self.assertEqual(self.reports, [128])
        ((notice, request),) = more
        self.assertEqual((notice.trapNumber, request.path.slid, request.header.managementClass), (128, 1, SA))
        stop()
        stop()
        self.trap(129, 78)
        self.assertEqual((self.reports, len(more)), ([128, 129], 1))
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 2)

    def test_setBack(self) -> None:
        """A notice is not taken for a repetition for longer because the system's clock was set back."""
        self.trap()
        self.clock.rightNow -= 1800.0
        self.trap(129, 78)
        self.clock.advance(REMEMBERED_SECONDS)
        self.trap()
        self.assertEqual(self.reports, [128, 129, 128])

    def test_endOfAnother(self) -> None:
        """A listener is not called if another listener of the same notice ends it."""
        ends: list[Callable[[], None]] = []
        calls: list[int] = []

        def listener(notice: Notice, request: MADRequest) -> None:
            calls.append(len(ends))
            while ends:
                ends.pop()()

        ends += [self.server.listen(listener), self.server.listen(listener)]
        self.trap()
        self.assertEqual(calls, [2])

    def test_repressed(self) -> None:
        self.agent.retries = 10
        call = self.agent.SubnTrap(Notice(isGeneric=True, trapNumber=144), TO_2)
        pass_(self.clock, 5, 0.01)
        self.assertEqual(self.successResultOf(call).trapNumber, 144)
        (trap, repress) = (datagram for _, datagram in self.wire.sent)
        self.assertEqual((repress[3], repress[8:24]), (Method.TRAP_REPRESS, trap[8:24]))
        self.assertEqual(self.reports, [144])

    def test_repeated(self) -> None:
        losing = iter((False, True, False, True))
        self.wire.lose = lambda datagram: next(losing, False)
        call = self.agent.SubnTrap(Notice(isGeneric=True, trapNumber=144), TO_2, retries=5)
        pass_(self.clock, 5, 0.01)
        self.successResultOf(call)
        self.assertEqual(len([lid for lid, _ in self.wire.sent if lid == 2]), 3)
        self.assertEqual(self.reports, [144])

    def test_another(self) -> None:
        for _ in range(3):
            self.assertIsNotNone(self.trap())
        self.trap(transaction=78)
        self.trap(slid=3)
        self.trap(129)
        self.clock.advance(REMEMBERED_SECONDS + 1)
        self.trap(129)
        self.assertEqual(self.reports, [128, 128, 128, 129, 129])

    def test_nothingElse(self) -> None:
        header = self.asked(frame(SA, Method.REPORT, 77, NodeRecord.attributeID, 0, b""))
        assert header is not None
        self.assertEqual(header.status, MADStatus.UNSUPPORTED_METHOD_ATTRIBUTE)
        header = self.asked(b"\x01\x03\x09" + frame(SA, Method.REPORT, 77, 2, 0, b"")[3:])
        assert header is not None
        self.assertEqual(header.status, MADStatus.UNSUPPORTED_VERSION)
        self.assertEqual(self.reports, [])

    def test_handler(self) -> None:
        served = self.serve(lambda request: request.payload, SA, (Method.REPORT,))
        self.trap()
        self.assertEqual((len(served.asked), self.reports), (1, []))

    def test_registered(self) -> None:
        events: list[tuple[object, ...]] = []

        def serve(managementClass: int, methods: Sequence[int], oui: int = 0) -> Callable[[], None]:
            events.append((managementClass, *methods))
            return lambda: events.append(("end", managementClass, *methods))

        self.patch(self.wire.ports[1], "serve", serve)
        ends = [self.server.listen(lambda notice, request: None, SA, (Method.REPORT,)) for _ in range(2)]
        traps = self.server.listen(lambda notice, request: None, 1, (Method.TRAP,))
        ends[0]()
        ends[0]()
        traps()
        ends[1]()
        ends.append(self.server.listen(lambda notice, request: None, SA, (Method.REPORT,)))
        self.assertEqual(events, [(3, 6), (1, 5), ("end", 1, 5), ("end", 3, 6), (3, 6)])


class RecentTests(SynchronousTestCase):
    def test_bounded(self) -> None:
        recent: Recent[int] = Recent()
        for number in range(3 * MOST_REMEMBERED):
            self.assertTrue(recent.isNew(number, b"", 0.0, number % 7))
        self.assertEqual(len(recent), MOST_REMEMBERED)
        self.assertTrue(recent.isNew(-1, b"", REMEMBERED_SECONDS))
        self.assertEqual((len(recent), len(recent._shares)), (1, 1))

    def test_share(self) -> None:
        """Contents of one sender replace its oldest ones, not those of another sender."""
        recent: Recent[int] = Recent()
        self.assertTrue(recent.isNew(-1, b"", 0.0, "another"))
        for number in range(3 * MOST_REMEMBERED):
            self.assertTrue(recent.isNew(number, b"", 0.0, "sender"))
        self.assertEqual(len(recent), 1 + int(MOST_REMEMBERED * CLIENT_SHARE))
        self.assertFalse(recent.isNew(-1, b"", 0.0, "another"))
        self.assertFalse(recent.isNew(3 * MOST_REMEMBERED - 1, b"", 0.0, "sender"))
        self.assertTrue(recent.isNew(0, b"", 0.0, "sender"))
