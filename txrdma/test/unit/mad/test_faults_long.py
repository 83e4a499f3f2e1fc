"""Invalid RMPP answers end only the call concerned, with a specific error."""

from __future__ import annotations

from collections.abc import Callable, Iterable

from twisted.internet.defer import CancelledError
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.iba.types import GUID, LID
from txrdma.kit.shares import CLIENT_SHARE
from txrdma.mad.agent import MADAgent
from txrdma.mad.core import answers
from txrdma.mad.core.answers import Records
from txrdma.mad.core.calls import NEXT_SEGMENT_SECONDS, SLICE
from txrdma.mad.core.frames import frame
from txrdma.mad.core.transfers import MOST_ANSWERS
from txrdma.mad.errors import MADClassError, MADError, MADTimeoutError, MADTransferError
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.messages import RMPPStatus, RMPPType
from txrdma.mad.layouts.sa import MultiPathRecord, NodeRecord, PathRecord
from txrdma.mad.layouts.smp import NodeInfo
from txrdma.mad.server import MADServer
from txrdma.test.support.mad.faulty import answer, FaultTestCase, header, Peer, RETRIES, segments
from txrdma.test.support.mad.pairs import Answers, pass_, TO_2, Wire


def table(count: int, seed: int = 0) -> bytes:
    return b"".join(
        NodeRecord(lid=LID(number + 1 & 0xFFFF), nodeInfo=NodeInfo(nodeGUID=GUID.fromInt(seed + number)))
        .encode()
        .ljust(112, b"\0")
        for number in range(count)
    )


class LongFaultTestCase(FaultTestCase):
    def respond(self, how: Callable[[bytes], Iterable[bytes]]) -> None:
        self.peer.respond = lambda datagram: () if datagram[26] & 1 else how(datagram)

    def transferEnds(self, how: Callable[[bytes], Iterable[bytes]], status: RMPPStatus) -> MADTransferError:
        self.setUp()
        self.respond(how)
        call = self.agent.SubnAdmGetTable(NodeRecord, TO_2)
        error = self.fails(call, MADTransferError, status.name)
        self.assertEqual((error.status, error.byPeer), (status, False))
        reported = [(datagram[25], datagram[27]) for datagram in self.peer.asked if datagram[26] & 1]
        self.assertEqual(reported[-1][1], status)
        return error


class LargeTests(LongFaultTestCase):
    COUNT = 4 * SLICE + 5

    def setUp(self) -> None:
        super().setUp()
        self.wire.ports[0].doesRMPP = True  # the answer is delivered in one piece
        self.respond(
            lambda request: [answer(request, at24=b"\x01\x01\x07", at44=b"\0\x0e")[:56] + table(self.COUNT)]
        )

    def between(self, then: Callable[[], object]) -> None:
        """Call a function between two segments."""
        more = Records.more

        def slowly(records: Records, most: int) -> bool:
            self.clock.callLater(0, then)
            return more(records, most)

        self.patch(Records, "more", slowly)

    def test_slices(self) -> None:
        decoded: list[int] = []
        decode = NodeRecord.decode

        def slowly(buffer: bytes, offset: int = 0) -> NodeRecord:
            decoded[-1] += 1
            return decode(buffer, offset)

        self.patch(NodeRecord, "decode", slowly)
        decoded.append(0)
        self.between(lambda: decoded.append(0))
        call = self.agent.SubnAdmGetTable(NodeRecord, TO_2)
        records: list[NodeRecord] = self.succeeds(call)
        self.assertTrue([record.lid for record in records] == list(range(1, self.COUNT + 1)))
        self.assertEqual(decoded, [SLICE, SLICE, SLICE, SLICE, 5, 0])

    def test_cancelled(self) -> None:
        call = self.agent.SubnAdmGetTable(NodeRecord, TO_2)
        self.between(call.cancel)
        self.fails(call, CancelledError)

    def test_closed(self) -> None:
        self.bystander.addErrback(lambda failure: None)
        call = self.agent.SubnAdmGetTable(NodeRecord, TO_2)
        self.between(self.agent.close)
        self.failureResultOf(self.ended(call), DeviceUnavailable)
        self.assertEqual(self.clock.getDelayedCalls(), [])


class LyingTests(LongFaultTestCase):
    def changed(self, at: int, content: bytes, number: int = 0) -> Callable[[bytes], list[bytes]]:
        """Return a valid answer with some changed bytes in one segment."""

        def how(request: bytes) -> list[bytes]:
            good = segments(request, table(10))
            good[number] = answer(good[number], **{f"at{at}": content})
            return good

        return how

    def test_rest(self) -> None:
        self.transferEnds(self.changed(24, b"\x02"), RMPPStatus.UNSUPPORTED_VERSION)
        self.transferEnds(self.changed(27, b"\x05", 1), RMPPStatus.ILLEGAL_STATUS)
        self.transferEnds(self.changed(25, b"\x09", 1), RMPPStatus.BAD_TYPE)

    def test_endless(self) -> None:
        self.patch(__import__("txrdma.mad.core.rmpp", fromlist=["x"]), "LONGEST_MESSAGE", 200 * 50)

        def how(request: bytes) -> list[bytes]:
            return [
                answer(request, at24=header(1, number, 0, 3 if number == 1 else 1), at44=b"\0\x0e")
                for number in range(1, 100)
            ]

        self.transferEnds(how, RMPPStatus.RESOURCES_EXHAUSTED)

    def test_manyRecords(self) -> None:
        """A table with more records than the limit fails its call; one with as many does not."""
        for most in (9, 10):
            self.setUp()
            self.patch(answers, "MOST_RECORDS", most)
            self.respond(lambda request: segments(request, table(10)))
            call = self.agent.SubnAdmGetTable(NodeRecord, TO_2)
            if most == 10:
                self.assertEqual(len(self.succeeds(call)), 10)
            else:
                self.fails(call, MADClassError, "10 records, more than 9")

    def test_gap(self) -> None:
        self.respond(lambda request: [s for n, s in enumerate(segments(request, table(10))) if n != 3])
        call = self.agent.SubnAdmGetTable(NodeRecord, TO_2, retries=0)
        self.fails(call, MADTimeoutError, "SubnAdmGetTable", seconds=2 * NEXT_SEGMENT_SECONDS)
        self.assertIn(RMPPType.ABORT, {datagram[25] for datagram in self.peer.asked})

    def test_repeating(self) -> None:
        self.respond(lambda request: segments(request, table(10))[:1])
        call = self.agent.SubnAdmGetTable(NodeRecord, TO_2, retries=0)
        ends: list[object] = []
        call.addBoth(lambda result: ends.append(result))
        pass_(self.clock, 0.01)
        (again,) = segments(self.peer.asked[0], table(10))[:1]
        for _ in range(200):
            self.agent.received(again, TO_2)
            pass_(self.clock, 0.1, 0.1)
            if ends:
                break
        self.assertLess(self.clock.seconds(), 1.5 * NEXT_SEGMENT_SECONDS)
        self.nothingIsLeft()

    def test_aborted(self) -> None:
        for begins in (0, 1, 3):
            self.setUp()
            self.respond(
                lambda request, begins=begins: [  # type: ignore[misc]  # mypy knows no defaults of lambdas
                    *segments(request, table(10))[:begins],
                    answer(request, at24=header(4, status=126)),
                ]
            )
            call = self.agent.SubnAdmGetTable(NodeRecord, TO_2)
            error = self.fails(call, MADTransferError, "the peer aborted")
            self.assertEqual((error.status, error.byPeer), (RMPPStatus.TOO_MANY_RETRIES, True))

    def test_noTable(self) -> None:
        self.respond(lambda request: [answer(request, at56=b"\x01" * 200)])
        call = self.agent.SubnAdmGetTable(NodeRecord, TO_2)
        self.fails(call, MADClassError, "the table is not an RMPP transfer")

    def test_distances(self) -> None:
        self.respond(lambda request: segments(request, table(10), distance=104))
        self.fails(self.agent.SubnAdmGetTable(NodeRecord, TO_2), MADClassError, "are 104 apart")
        self.setUp()
        self.respond(lambda request: segments(request, table(10)[:-80]))
        call = self.agent.SubnAdmGetTable(NodeRecord, TO_2)
        self.fails(call, MADClassError, "after 9 records there is a partial one")

    def test_padding(self) -> None:
        for content in (table(10)[:-4], table(10) + bytes(40)):
            self.setUp()
            self.respond(lambda request, content=content: segments(request, content))  # type: ignore[misc]  # the same
            self.assertEqual(len(self.succeeds(self.agent.SubnAdmGetTable(NodeRecord, TO_2))), 10)


class OtherTableTests(LongFaultTestCase):
    def test_otherAttribute(self) -> None:
        for at, content, words in (
            (16, b"\x00\x35", "the answer is of attribute 0x0035"),
            (20, b"\x00\x00\x00\x01", "the answer has the modifier 0x1"),
            (2, b"\x01", "the answer is of version 1, its class of 1"),
            (3, b"\x94", "SubnAdmGetTable is answered by GET_MULTI_RESP"),
        ):
            self.setUp()
            self.respond(
                lambda request, at=at, content=content: [  # type: ignore[misc]  # mypy knows no defaults of lambdas
                    answer(segment, **{f"at{at}": content}) for segment in segments(request, table(10))
                ]
            )
            self.fails(self.agent.SubnAdmGetTable(NodeRecord, TO_2), MADClassError, words)

    def test_refused(self) -> None:
        self.respond(lambda request: [answer(segment, at4=b"\x03\x00") for segment in segments(request, b"")])
        error = self.fails(self.agent.SubnAdmGetTable(NodeRecord, TO_2), MADError, "no records")
        self.assertEqual(error.status, 0x0300)

    def test_one(self) -> None:
        self.respond(lambda request: segments(request, table(1)))
        self.assertEqual(self.succeeds(self.agent.SubnAdmGet(NodeRecord, TO_2)).lid, 1)
        self.setUp()
        self.respond(lambda request: segments(request, table(1)[:60]))
        self.fails(self.agent.SubnAdmGet(NodeRecord, TO_2), MADClassError, "NodeRecord")

    def test_multi(self) -> None:
        path = PathRecord(dlid=LID(9)).encode()
        for attribute in (b"\x00\x3a", b"\x00\x35"):
            self.setUp()

            def how(datagram: bytes, attribute: bytes = attribute) -> list[bytes]:
                if datagram[25] != RMPPType.DATA or datagram[3] & 0x80:
                    return []
                good = segments(answer(datagram, at3=b"\x14"), path, 64)
                return [
                    answer(datagram, at3=b"\x94", at24=header(2, 1, 64)),
                    *(answer(one, at3=b"\x94", at16=attribute) for one in good),
                ]

            self.peer.respond = how
            call = self.agent.SubnAdmGetMulti(MultiPathRecord(sgidCount=1, dgidCount=1), TO_2)
            self.assertEqual([record.dlid for record in self.succeeds(call)], [9])


class ChangingTests(LongFaultTestCase):
    def mixed(self, one: bytes, other: bytes, order: str) -> Callable[[bytes], list[bytes]]:
        """Return mixed segments of two answers, such as C{"A1 B1 A2"}."""

        def how(request: bytes) -> list[bytes]:
            answers = {"A": segments(request, one), "B": segments(request, other)}
            return [answers[name[0]][int(name[1:]) - 1] for name in order.split()]

        return how

    def test_interleaved(self) -> None:
        other = table(5, seed=1000)
        for order in ("A1 B1 A2 B2 A3 B3", "A1 A2 B1 B2 B3", "A1 A3 B3 A2", "A1 A2 A3 B1 B2 B3"):
            self.setUp()
            self.respond(self.mixed(table(5), other, order))
            call = self.agent.SubnAdmGetTable(NodeRecord, TO_2)
            if order == "A1 A2 A3 B1 B2 B3":  # the first answer is complete before the second begins
                self.assertEqual(len(self.succeeds(call)), 5)
            else:
                self.fails(call, MADTransferError, "segments contradict the payload length")

    def test_same(self) -> None:
        self.respond(self.mixed(table(5), table(5), "A1 B1 A2 B2 A3 B3"))
        self.assertEqual(len(self.succeeds(self.agent.SubnAdmGetTable(NodeRecord, TO_2))), 5)

    def test_next(self) -> None:
        self.respond(lambda request: segments(request, table(5))[:2])
        first = self.agent.SubnAdmGetTable(NodeRecord, TO_2)
        pass_(self.clock, 0.01)
        asked = self.peer.asked[0]
        first.cancel()
        self.failureResultOf(first, CancelledError)
        self.respond(lambda request: segments(request, table(3, seed=500)))
        second = self.agent.SubnAdmGetTable(NodeRecord, TO_2)
        for segment in segments(asked, table(5)):
            self.agent.received(segment, TO_2)
        self.assertEqual(len(self.succeeds(second)), 3)

    def test_askedAgain(self) -> None:
        turns = iter((segments, segments))
        contents = iter((table(5), table(5, seed=500)))

        def how(request: bytes) -> list[bytes]:
            made = next(turns)(request, next(contents))
            return made[:2] if len(self.peer.asked) == 1 else made

        self.respond(how)
        call = self.agent.SubnAdmGetTable(NodeRecord, TO_2, retries=RETRIES)
        records = self.succeeds(call, seconds=3 * NEXT_SEGMENT_SECONDS)
        self.assertEqual(
            [record.nodeInfo.nodeGUID.raw[-2:] for record in records],
            [(500 + number).to_bytes(2, "big") for number in range(5)],
        )


class OthersTests(LongFaultTestCase):
    def test_requestFromPeer(self) -> None:
        self.respond(lambda request: ())
        call = self.agent.SubnAdmGetTable(NodeRecord, TO_2, timeoutSeconds=100)
        pass_(self.clock, 0.01)
        asked = self.peer.asked[0]
        question = answer(asked, at3=b"\x14", at24=header(1, 1, 0, 3))
        self.agent.received(question, TO_2.reverse())
        self.agent.received(answer(question, at3=b"\x14", at24=header(4, status=127)), TO_2.reverse())
        pass_(self.clock, 60, 0.5)
        self.assertNoResult(call)
        for segment in segments(asked, table(2)):
            self.agent.received(segment, TO_2)
        self.assertEqual(len(self.succeeds(call)), 2)


class AnsweringTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.wire = Wire(self.clock)
        self.peer = Peer(self.wire.ports[0])
        self.agent = MADAgent(self.clock, self.wire.ports[1])
        self.records = [NodeRecord(lid=LID(number + 1)) for number in range(100)]
        self.answers = Answers(lambda request: list(self.records))
        MADServer(self.agent).handle(ManagementClass.SUBN_ADM, self.answers, (Method.GET_TABLE,))

    def ask(self, transaction: int) -> list[bytes]:
        self.peer.asked.clear()
        self.peer.port.send(
            frame(ManagementClass.SUBN_ADM, Method.GET_TABLE, transaction, 0x11, 0, b""), TO_2
        )
        pass_(self.clock, 0.01)
        return self.peer.asked

    def test_again(self) -> None:
        (first,) = self.ask(7)
        self.peer.port.send(answer(first, at3=b"\x12", at24=header(2, 1, 10)), TO_2)
        pass_(self.clock, 0.01)
        self.records = self.records[:50]  # the table is shorter at the next request
        self.assertEqual(self.ask(7), [])
        self.peer.port.send(answer(first, at3=b"\x12", at24=header(2, 10, 100)), TO_2)
        pass_(self.clock, 0.01)
        numbers = [int.from_bytes(datagram[28:32], "big") for datagram in self.peer.asked]
        self.assertEqual(numbers, list(range(11, 57)))

    def test_unheard(self) -> None:
        self.ask(7)
        self.records = self.records[:1]
        (only,) = self.ask(7)
        self.assertEqual(only[26] & 7, 7)

    def test_many(self) -> None:
        for number in range(int(MOST_ANSWERS * CLIENT_SHARE)):
            self.assertTrue(all(one[26] & 1 for one in self.ask(1 + number)))
        (busy,) = [one for one in self.ask(5000) if one[14:16] == (5000).to_bytes(2, "big")]
        self.assertEqual((busy[4:6], busy[26] & 1), (b"\0\1", 0))
        pass_(self.clock, 200, 0.1)
        self.assertEqual(self.agent._core._transfers._outgoing, {})
        self.assertEqual(self.ask(5001)[0][4:6], b"\0\0")
        pass_(self.clock, 200, 0.1)
        self.assertEqual(self.clock.getDelayedCalls(), [])
