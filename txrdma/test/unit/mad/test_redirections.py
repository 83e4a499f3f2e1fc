"""Redirected and busy answers: the requests that follow them, their limits and errors."""

from __future__ import annotations

from dataclasses import replace
from itertools import pairwise
from typing import Any

from twisted.internet.defer import CancelledError

from txrdma.error import DeviceUnavailable, InvalidRequest
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, GUID, LID, PKey, QPN
from txrdma.mad.core.calls import MOST_REDIRECTIONS
from txrdma.mad.core.transactions import BUSY_PAUSE_SECONDS
from txrdma.mad.errors import MADError, MADTimeoutError
from txrdma.mad.layouts.attributes import ManagementClass
from txrdma.mad.layouts.messages import ClassPortInfo
from txrdma.mad.layouts.pma import PortCounters
from txrdma.mad.layouts.sa import PathRecord
from txrdma.mad.layouts.smp import NodeInfo, SwitchInfo
from txrdma.test.support.mad.faulty import answer, FaultTestCase, RETRIES, TIMEOUT
from txrdma.test.support.mad.pairs import pass_, TO_2


class RedirectTests(FaultTestCase):
    def redirect(self, request: bytes, status: int = 2, **fields: Any) -> bytes:
        info = ClassPortInfo(**fields).encode()
        return answer(request, at4=status.to_bytes(2, "big"), at64=info)

    def test_loop(self) -> None:
        turns = iter(range(1000))
        self.peer.respond = lambda request: [
            self.redirect(request, redirectLID=LID(2), redirectQPN=QPN(1 + next(turns) % 2))
        ]
        call = self.agent.PerformanceGet(PortCounters, TO_2)
        self.fails(call, MADError, f"redirected for the {MOST_REDIRECTIONS + 1}th time")
        self.assertEqual(len(self.peer.asked), 1 + MOST_REDIRECTIONS)
        self.assertEqual(len({request[8:16] for request in self.peer.asked}), 1 + MOST_REDIRECTIONS)

    def test_nowhere(self) -> None:
        self.peer.respond = lambda request: [self.redirect(request, redirectQPN=QPN(7))]
        self.fails(self.agent.PerformanceGet(PortCounters, TO_2), MADError, "redirected without a target")
        self.assertEqual(len(self.peer.asked), 1)

    def test_everything(self) -> None:
        """The second request uses the path and all other fields of the redirection."""
        sgid, gid = (GID.fromParts(0xFE80 << 48, GUID.fromInt(number)) for number in (1, 9))
        self.peer.respond = lambda request: [
            self.redirect(
                request, redirectGID=gid, redirectTrafficClass=3, redirectServiceLevel=4, redirectFlowLabel=5,
                redirectLID=LID(77), redirectPKey=0x8002, redirectQPN=QPN(8), redirectQKey=0x80010009,
            )
        ]  # fmt: skip
        path = IBPath(dlid=LID(2), dqpn=QPN(1), sgid=sgid, dgid=gid, packetLifeTime=1)
        way = self.fails(self.agent.PerformanceGet(PortCounters, path), MADTimeoutError).path
        redirected = replace(path, dlid=LID(77), serviceLevel=4, trafficClass=3, flowLabel=5)
        self.assertEqual(way, replace(redirected, pkey=PKey(0x8002), dqpn=QPN(8), qkey=0x80010009))

    def byGID(self, *administration: bytes) -> None:
        port = self.wire.ports[0]
        port.endPort = replace(port.endPort, smLID=LID(2))
        gid = GID.fromParts(0xFE80 << 48, GUID.fromInt(9))

        def respond(request: bytes) -> list[bytes]:
            if request[1] == ManagementClass.SUBN_ADM:
                return [answer(request, at4=status, at56=self.record) for status in administration]
            if len(self.peer.asked) > 1:
                return [answer(request)]
            return [self.redirect(request, redirectGID=gid, redirectQPN=QPN(8), redirectQKey=0x80010009)]

        self.record = PathRecord(dgid=gid, dlid=LID(2), serviceLevel=5, packetLifeTime=10).encode()
        self.peer.respond = respond

    def test_byGID(self) -> None:
        self.byGID(b"\0\0")
        seen: list[IBPath] = []
        carry = self.wire.carry

        def watch(datagram: bytes, path: IBPath, source: Any) -> None:
            seen.append(path)
            carry(datagram, path, source)

        self.patch(self.wire, "carry", watch)
        self.succeeds(self.agent.PerformanceGet(PortCounters, TO_2))
        classes = [request[1] for request in self.peer.asked]
        self.assertEqual(classes, [ManagementClass.PERFORMANCE, ManagementClass.SUBN_ADM, 4])
        query = PathRecord.decode(self.peer.asked[1], 56)
        self.assertEqual((query.dgid.raw[-1], query.sgid.raw[-1]), (9, 1))
        way = seen[4]
        self.assertEqual((way.dlid, way.dqpn, way.qkey, way.serviceLevel), (2, 8, 0x80010009, 5))

    def test_byUnknownGID(self) -> None:
        self.byGID(b"\3\0")
        call = self.agent.PerformanceGet(PortCounters, TO_2)
        error = self.fails(call, MADError, "no path is known: SubnAdmGet: status 0x0300, no records")
        self.assertEqual((error.status, error.rpc.name), (2, "PerformanceGet"))
        self.setUp()
        self.byGID()
        call = self.agent.PerformanceGet(PortCounters, TO_2)
        self.fails(call, MADError, "no path is known: SubnAdmGet: no answer", seconds=30)

    def test_byGIDInCircles(self) -> None:
        port = self.wire.ports[0]
        port.endPort = replace(port.endPort, smLID=LID(2))
        gid = GID.fromParts(0xFE80 << 48, GUID.fromInt(9))

        def respond(request: bytes) -> list[bytes]:
            at = 56 if request[1] == ManagementClass.SUBN_ADM else 64
            info = ClassPortInfo(redirectGID=gid, redirectQPN=QPN(8)).encode()
            return [answer(request, at4=b"\x00\x02", **{f"at{at}": info})]

        self.peer.respond = respond
        call = self.agent.PerformanceGet(PortCounters, TO_2)
        error = self.fails(call, MADError, "no path is known")
        self.assertIn(f"redirected for the {MOST_REDIRECTIONS + 1}th time", str(error))
        self.assertLessEqual(len(self.peer.asked), 1 + MOST_REDIRECTIONS)

    def test_byGIDWithoutGID(self) -> None:
        self.byGID(b"\0\0")
        port = self.wire.ports[0]
        port.endPort = replace(port.endPort, gids=())
        call = self.agent.PerformanceGet(PortCounters, TO_2)
        self.fails(call, MADError, "no path is known")

    def test_byGIDAndLeft(self) -> None:
        self.byGID()
        call = self.agent.PerformanceGet(PortCounters, TO_2)
        pass_(self.clock, 0.05)
        self.assertEqual(len(self.peer.asked), 2)
        call.cancel()
        self.fails(call, CancelledError)
        self.assertEqual(len(self.peer.asked), 2)
        self.setUp()
        self.byGID()
        call = self.agent.PerformanceGet(PortCounters, TO_2)
        pass_(self.clock, 0.05)
        self.bystander.addErrback(lambda failure: None)
        self.agent.close()
        self.failureResultOf(call, DeviceUnavailable)
        self.assertEqual(self.agent._core._redirected, {})
        self.assertEqual(self.clock.getDelayedCalls(), [])

    def test_subnet(self) -> None:
        self.peer.respond = lambda request: [answer(request, at4=b"\x00\x02", at64=b"\xff" * 64)]
        error = self.fails(self.agent.SubnGet(SwitchInfo, TO_2), MADError, "redirected")
        self.assertEqual((error.status, len(self.peer.asked)), (2, 1))

    def test_cannotGo(self) -> None:
        failing = self.wire.ports[0].failing

        def redirect(request: bytes) -> list[bytes]:
            failing.append(InvalidRequest("the port is not in partition 0x8002"))
            return [self.redirect(request, redirectLID=LID(3), redirectPKey=0x8002)]

        self.peer.respond = redirect
        self.fails(self.agent.PerformanceGet(PortCounters, TO_2), InvalidRequest, "partition 0x8002")


class BusyTests(FaultTestCase):
    def test_forEver(self) -> None:
        times: list[float] = []

        def busy(request: bytes) -> list[bytes]:
            times.append(self.clock.seconds())
            return [answer(request, at4=b"\x00\x01")]

        self.peer.respond = busy
        error = self.fails(self.agent.SubnGet(NodeInfo, TO_2), MADError, "busy")
        self.assertEqual(error.status, 1)
        pauses = [round(later - earlier, 1) for earlier, later in pairwise(times)]
        self.assertEqual(pauses, [0.1, 0.2, 0.4, 0.8])
        self.assertLessEqual(sum(pauses), TIMEOUT * (1 + RETRIES))

    def test_lostMeanwhile(self) -> None:
        turns = iter([[b"\x00\x01"], [b"\x00\x01"], *[[]] * RETRIES, [b"\x00\x00"]])
        self.peer.respond = lambda request: [answer(request, at4=status) for status in next(turns)]
        self.succeeds(self.agent.SubnGet(NodeInfo, TO_2))

    def test_storm(self) -> None:
        self.peer.respond = lambda request: [answer(request, at4=b"\x00\x01")]
        call = self.agent.SubnGet(NodeInfo, TO_2)
        reports: list[object] = []
        call.addBoth(reports.append)
        for _ in range(1000):
            pass_(self.clock, BUSY_PAUSE_SECONDS / 4, BUSY_PAUSE_SECONDS / 4)
            self.agent.received(answer(self.peer.asked[0], at4=b"\x00\x01"), TO_2)
            if reports:
                break
        sent = [datagram for lid, datagram in self.wire.sent if lid == 1 and datagram != self.bystanding]
        self.assertLess(len(sent), 2 * (1 + RETRIES))
        self.assertEqual(len(reports), 1)
        self.nothingIsLeft()

    def test_afterBusyAnswer(self) -> None:
        self.peer.respond = lambda request: [answer(request, at4=b"\x00\x01"), answer(request)]
        self.succeeds(self.agent.SubnGet(NodeInfo, TO_2))
        self.assertEqual(len(self.peer.asked), 1)
