"""RMPP transfers of a port, over a wire that loses and reorders segments, and with invalid packets."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from heapq import heappop, heappush
from itertools import count
from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import ResourceExhausted, WireError
from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, GUID, LID, QPN
from txrdma.kit.shares import CLIENT_SHARE
from txrdma.mad.core import transfers
from txrdma.mad.core.frames import frame, Keys
from txrdma.mad.core.rmpp import LONGEST_MESSAGE, RESENDS, WINDOW
from txrdma.mad.core.transfers import (
    Delivered,
    Event,
    IDLE_SECONDS,
    isRMPP,
    LINGER_SECONDS,
    LONGEST_REQUEST,
    MOST_ANSWERS,
    MOST_REQUESTS,
    RMPPTransfers,
    TransferFailed,
    TransferPacket,
    TransferReceived,
)
from txrdma.mad.errors import MADTimeoutError, MADTransferError
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.messages import RMPPHeader, RMPPStatus, RMPPType
from txrdma.mad.layouts.sa import MultiPathRecord, PathRecord
from txrdma.test.support import slow
from txrdma.test.support.mad.pairs import pass_, TO_1, TO_2, WiredTestCase
from txrdma.test.unit.mad.test_umad import UmadCase

ADMINISTRATION = ManagementClass.SUBN_ADM
QUESTION = frame(ADMINISTRATION, Method.GET_MULTI, 77, 0x3A, 0, b"")
ANSWER = frame(ADMINISTRATION, Method.GET_MULTI_RESP, 77, 0x3A, 0, b"")
TABLE = frame(ADMINISTRATION, Method.GET_TABLE_RESP, 77, 0x11, 0, b"")
FROM_SERVER = IBPath(slid=LID(2), dlid=LID(1), sqpn=QPN(1), dqpn=QPN(1))
FROM_CLIENT = IBPath(slid=LID(1), dlid=LID(2), sqpn=QPN(1), dqpn=QPN(1))
RMPP_QUESTION = (
    QUESTION[:24] + RMPPHeader(version=1, type=RMPPType.DATA, active=True).encode() + QUESTION[36:]
)


def fromLID(lid: int) -> IBPath:
    """Return the path of a request of another client."""
    return IBPath(slid=LID(lid), dlid=LID(2), sqpn=QPN(1), dqpn=QPN(1))


def rmpp(datagram: bytes) -> RMPPHeader:
    return RMPPHeader.decode(datagram, 24)


def changed(datagram: bytes, **fields: object) -> bytes:
    return datagram[:24] + rmpp(datagram).replace(**fields).encode() + datagram[36:]


class Pair:
    """
    A client and a server, joined by a wire that loses, duplicates and delays datagrams by a seed.

    @ivar now: seconds.
    @ivar events: events of the client and of the server.
    """

    def __init__(
        self, seed: int = 0, loss: float = 0.0, duplication: float = 0.0, jitter: float = 0.0
    ) -> None:
        self.random = Random(seed)
        self.loss, self.duplication, self.jitter = loss, duplication, jitter
        self.client, self.server = RMPPTransfers(), RMPPTransfers()
        self.events: tuple[list[Event], list[Event]] = ([], [])
        self.now = 0.0
        self.packets = 0
        self._onTheWay: list[tuple[float, int, RMPPTransfers, bytes, IBPath]] = []
        self._order = count()

    def run(self, seconds: float = 3000.0) -> None:
        end = self.now + seconds
        while self.step() and self.now < end:
            pass

    def step(self) -> bool:
        self._carry()
        deadlines = (self.client.deadline(), self.server.deadline())
        times = [deadline for deadline in deadlines if deadline is not None]
        if self._onTheWay:
            times.append(self._onTheWay[0][0])
        if not times:
            return False
        self.now = max(self.now, min(times))
        while self._onTheWay and self._onTheWay[0][0] <= self.now:
            _, _, end, datagram, path = heappop(self._onTheWay)
            end.received(datagram, path, self.now)
        for end in (self.client, self.server):
            deadline = end.deadline()
            if deadline is not None and deadline <= self.now:
                end.expired(self.now)
        return True

    def _carry(self) -> None:
        ends = ((self.client, self.server, FROM_CLIENT), (self.server, self.client, FROM_SERVER))
        for (end, other, path), reports in zip(ends, self.events, strict=True):
            reports += end.events()
            for packet in end.outgoing():
                self.packets += 1
                for _ in range(1 + (self.random.random() < self.duplication)):
                    if self.random.random() >= self.loss:
                        when = self.now + 0.0005 + self.jitter * self.random.random()
                        heappush(self._onTheWay, (when, next(self._order), other, packet.datagram, path))


def received(events: Iterable[Event]) -> list[bytes]:
    return [event.message for event in events if isinstance(event, TransferReceived)]


class WireTests(SynchronousTestCase):
    slowBecause = "Hypothesis generates many long transfers"

    records = 2_000

    @settings(max_examples=60, deadline=None)
    @given(
        length=st.integers(0, 150_000),
        loss=st.floats(0, 0.3),
        duplication=st.floats(0, 0.3),
        jitter=st.sampled_from([0.0, 0.001, 0.01, 0.5]),
        seed=st.integers(0, 1 << 30),
    )
    def test_wire(self, length: int, loss: float, duplication: float, jitter: float, seed: int) -> None:
        pair = Pair(seed, loss, duplication, jitter)
        message = pair.random.randbytes(length)
        pair.server.send(TABLE, message, TO_1, 0.0)
        pair.run()
        (end,) = pair.events[1]
        arrived = received(pair.events[0])
        if isinstance(end, Delivered) or arrived:
            self.assertEqual(arrived, [message])
        else:
            self.assertIsInstance(end, TransferFailed)
        self.quiet(pair)

    def quiet(self, pair: Pair) -> None:
        for end in (pair.client, pair.server):
            self.assertIsNone(end.deadline())
            self.assertEqual((end._incoming, end._outgoing, len(end._requests)), ({}, {}, 0))

    @settings(max_examples=6, deadline=None)
    @given(
        wire=st.sampled_from([(0.05, 0.0, 0.0), (0.05, 0.05, 0.002), (0.0, 0.3, 0.01), (0.15, 0.0, 0.0)]),
        seed=st.integers(0, 1 << 30),
    )
    def test_table(self, wire: tuple[float, float, float], seed: int) -> None:
        pair = Pair(seed, *wire)
        message = pair.random.randbytes(self.records * 112)
        pair.server.send(TABLE, message, TO_1, 0.0)
        pair.run()
        self.assertEqual(received(pair.events[0]), [message])
        self.assertEqual(pair.events[1], [Delivered(77, ADMINISTRATION, False)])
        self.quiet(pair)

    @settings(max_examples=60, deadline=None)
    @given(
        asked=st.integers(0, 5000),
        reported=st.integers(0, 30_000),
        loss=st.floats(0, 0.2),
        duplication=st.floats(0, 0.3),
        jitter=st.sampled_from([0.0, 0.01]),
        seed=st.integers(0, 1 << 30),
    )
    def test_doubleSided(
        self, asked: int, reported: int, loss: float, duplication: float, jitter: float, seed: int
    ) -> None:
        pair = Pair(seed, loss, duplication, jitter)
        question, answer = pair.random.randbytes(asked), pair.random.randbytes(reported)
        pair.client.send(QUESTION, question, TO_2, 0.0)
        hasAnswered = False
        while pair.step():
            if received(pair.events[1]) and not hasAnswered:
                hasAnswered = True
                pair.server.send(ANSWER, answer, TO_1, pair.now)
        failed = [event for events in pair.events for event in events if isinstance(event, TransferFailed)]
        if not failed:
            self.assertEqual(received(pair.events[1]), [question])
            self.assertEqual(received(pair.events[0]), [answer])
        self.quiet(pair)


class DoubleSidedTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.client, self.server = RMPPTransfers(), RMPPTransfers()

    def ask(self, length: int = 100) -> bytes:
        self.client.send(QUESTION, bytes(length), TO_2, 0.0)
        while True:
            for packet in self.client.outgoing():
                self.server.received(packet.datagram, FROM_CLIENT, 0.0)
            (packet,) = self.server.outgoing()
            if self.server.events():
                return packet.datagram
            self.client.received(packet.datagram, FROM_SERVER, 0.0)

    def turned(self) -> bytes:
        (packet,) = self.client.outgoing()
        header = rmpp(packet.datagram)
        self.assertEqual((header.type, header.data1, header.data2), (RMPPType.ACK, 0, WINDOW))
        self.assertEqual(packet.datagram[3], Method.GET_MULTI)
        return packet.datagram

    def answered(self) -> int:
        self.server.send(ANSWER, bytes(20_000), TO_1, 0.0)
        return len(self.server.outgoing())

    def test_turnLost(self) -> None:
        acknowledged = self.ask()
        for _ in range(3):
            self.client.received(acknowledged, FROM_SERVER, 0.0)
            self.turned()
        self.assertEqual(self.client.events(), [Delivered(77, ADMINISTRATION, True)])
        self.answered()
        self.client.expired(LINGER_SECONDS)
        self.assertIsNone(self.client.deadline())
        self.client.received(acknowledged, FROM_SERVER, LINGER_SECONDS)
        self.assertEqual(self.client.outgoing(), [])

    def test_acknowledgedByItsAnswer(self) -> None:
        self.ask()
        self.server.send(ANSWER, b"answer", TO_1, 0.0)
        (packet,) = self.server.outgoing()
        self.client.received(packet.datagram, FROM_SERVER, 0.0)
        self.assertEqual(received(self.client.events()), [b"answer"])
        self.client.outgoing()
        self.client.expired(1.0)
        self.assertEqual(self.client.outgoing(), [])

    def test_questionRefused(self) -> None:
        for isWhole in (False, True):
            self.setUp()
            acknowledged = self.ask()
            if isWhole:
                self.client.received(acknowledged, FROM_SERVER, 0.0)
            self.client.events()
            abort = changed(acknowledged, type=RMPPType.ABORT, status=RMPPStatus.UNSPECIFIED)
            self.client.received(abort, FROM_SERVER, 0.0)
            (event,) = self.client.events()
            assert isinstance(event, TransferFailed)
            self.assertEqual((event.transactionID, event.isLocal), (77, True))
            self.assertTrue(event.byPeer)
            self.assertIsNone(self.client.deadline())


class EndTests(SynchronousTestCase):
    def begin(self, message: bytes = bytes(1000)) -> tuple[RMPPTransfers, RMPPTransfers, bytes]:
        server, client = RMPPTransfers(), RMPPTransfers()
        server.send(TABLE, message, TO_1, 0.0)
        (packet,) = server.outgoing()
        client.received(packet.datagram, FROM_SERVER, 0.0)
        (answer,) = client.outgoing()
        server.received(answer.datagram, FROM_CLIENT, 0.0)
        return server, client, packet.datagram

    def answerTo(
        self, packets: Sequence[TransferPacket], method: int, status: RMPPStatus, kind: RMPPType
    ) -> bytes:
        (packet,) = packets
        header = rmpp(packet.datagram)
        self.assertEqual((packet.datagram[3], header.type, header.status), (method, kind, status))
        self.assertEqual((header.data1, header.data2, packet.datagram[36:]), (0, 0, bytes(220)))
        self.assertEqual(packet.datagram[8:16], TABLE[8:16])
        return packet.datagram

    def failed(self, end: RMPPTransfers, status: RMPPStatus) -> TransferFailed:
        (event,) = end.events()
        assert isinstance(event, TransferFailed)
        self.assertEqual((event.status, event.transactionID, event.managementClass), (status, 77, 3))
        self.assertIsNone(end.deadline())
        return event

    def test_nobody(self) -> None:
        server, client, _ = self.begin()
        self.assertEqual(len(server.outgoing()), 4)
        sent = 0
        while (deadline := server.deadline()) is not None:
            server.expired(deadline)
            *again, last = server.outgoing()
            sent += len(again)
        self.assertEqual(sent, 3 * RESENDS)
        self.failed(server, RMPPStatus.TOO_MANY_RETRIES)
        output = self.answerTo([last], Method.GET_TABLE_RESP, RMPPStatus.TOO_MANY_RETRIES, RMPPType.ABORT)
        client.received(output, FROM_SERVER, 20.0)
        self.assertTrue(self.failed(client, RMPPStatus.TOO_MANY_RETRIES).byPeer)

    def test_classes(self) -> None:
        for managementClass, room, behind in ((0x06, 192, 28), (0x32, 216, 4), (0x03, 200, 20)):
            template = frame(managementClass, Method.GET_RESP, 77, 0x11, 0, b"", Keys(oui=0x001405, smKey=9))
            server, client = RMPPTransfers(), RMPPTransfers()
            server.send(template, bytes(range(200)) * 3, TO_1, 0.0)
            datagrams = [packet.datagram for packet in server.outgoing()]
            client.received(datagrams[0], FROM_SERVER, 0.0)
            (answer,) = client.outgoing()
            server.received(answer.datagram, FROM_CLIENT, 0.0)
            datagrams += [packet.datagram for packet in server.outgoing()]
            for datagram in datagrams[1:]:
                client.received(datagram, FROM_SERVER, 0.0)
            self.assertEqual(received(client.events()), [bytes(range(200)) * 3])
            self.assertEqual(
                {datagram[36 : 36 + behind] for datagram in datagrams}, {template[36 : 36 + behind]}
            )
            lengths = [rmpp(datagram).data2 for datagram in datagrams]
            count = -(-600 // room)
            self.assertEqual(len(lengths), count)
            self.assertEqual(
                (lengths[0], lengths[-1]), (600 + count * behind, 600 - (count - 1) * room + behind)
            )

    def test_limits(self) -> None:
        self.assertGreater(LONGEST_MESSAGE, 10 * 10_000 * 112)
        server = RMPPTransfers()
        self.assertGreater(LONGEST_REQUEST, 1 << 16)
        for end, template, path, most in (
            (RMPPTransfers(), TABLE, FROM_SERVER, LONGEST_MESSAGE),
            (server, QUESTION, FROM_CLIENT, LONGEST_REQUEST),
        ):
            header = RMPPHeader(version=1, type=RMPPType.DATA, active=True, first=True, data1=1)
            end.received(template[:24] + header.encode() + template[36:], path, 0.0)
            (incoming,) = end._incoming.values()
            self.assertEqual(incoming.receiver._mostSegments, most // 200)

    def test_longRequest(self) -> None:
        """A request of the longest length is received; a longer one is stopped, and nothing of it remains."""
        self.patch(transfers, "LONGEST_REQUEST", 10 * 200)
        for segments in (10, 11):
            server = RMPPTransfers()
            for number in range(1, segments + 1):
                header = RMPPHeader(
                    version=1,
                    type=RMPPType.DATA,
                    active=True,
                    first=number == 1,
                    last=number == segments,
                    data1=number,
                    data2=220 * (number == segments),
                )
                server.received(QUESTION[:24] + header.encode() + QUESTION[36:], FROM_CLIENT, 0.0)
            if segments == 10:
                self.assertEqual(received(server.events()), [bytes(2000)])
            else:
                stop = rmpp(server.outgoing()[-1].datagram)
                expected = RMPPType.STOP, RMPPStatus.RESOURCES_EXHAUSTED
                self.assertEqual((stop.type, stop.status), expected)
                self.assertEqual(received(server.events()), [])
                self.assertEqual((server._incoming, len(server._requests)), ({}, 0))

    def test_manyQuestions(self) -> None:
        server = RMPPTransfers()
        header = RMPPHeader(version=1, type=RMPPType.DATA, active=True, first=True, data1=1)
        question = QUESTION[:24] + header.encode() + QUESTION[36:]

        def begin(number: int, lid: int | None = None) -> RMPPType:
            path = fromLID(1 + number % 4 if lid is None else lid)
            server.received(question[:8] + number.to_bytes(8, "big") + question[16:], path, 0.0)
            (packet,) = server.outgoing()
            return rmpp(packet.datagram).type

        self.assertEqual([begin(number) for number in range(MOST_REQUESTS)], [RMPPType.ACK] * MOST_REQUESTS)
        self.assertEqual(begin(MOST_REQUESTS, 9), RMPPType.STOP)
        ended = changed(question, first=False, last=True, data1=2, data2=20)
        server.received(ended[:8] + bytes(8) + ended[16:], FROM_CLIENT, 0.0)
        server.outgoing()
        self.assertEqual(begin(MOST_REQUESTS, 9), RMPPType.ACK)
        server.expired(IDLE_SECONDS)
        self.assertIsNone(server.deadline())
        server.outgoing()
        self.assertEqual(begin(0), RMPPType.ACK)

    def test_share(self) -> None:
        """The incomplete requests of one requester are limited to its share; another one is served then."""
        server, share = RMPPTransfers(), int(MOST_REQUESTS * CLIENT_SHARE)
        question = changed(RMPP_QUESTION, first=True, data1=1)

        def begin(number: int, lid: int) -> RMPPType:
            server.received(question[:8] + number.to_bytes(8, "big") + question[16:], fromLID(lid), 0.0)
            return rmpp(server.outgoing()[0].datagram).type

        found = [begin(number, 1) for number in range(share + 1)]
        self.assertEqual(found, [RMPPType.ACK] * share + [RMPPType.STOP])
        self.assertEqual(begin(0, 3), RMPPType.ACK)
        server.expired(IDLE_SECONDS)
        self.assertEqual((len(server._requests), len(server._remembered)), (0, 0))

    def test_bytes(self) -> None:
        """Incomplete requests are limited in bytes; the one that exceeds its requester's share is stopped."""
        self.patch(transfers, "MOST_REQUEST_BYTES", int(4 * 200 / CLIENT_SHARE))
        server = RMPPTransfers()

        def send(number: int, segment: int, lid: int) -> RMPPType | None:
            question = changed(RMPP_QUESTION, first=segment == 1, data1=segment)
            server.received(question[:8] + number.to_bytes(8, "big") + question[16:], fromLID(lid), 0.0)
            sent = server.outgoing()
            return rmpp(sent[-1].datagram).type if sent else None

        for number, segment in ((1, 1), (1, 2), (2, 1), (2, 2)):
            self.assertNotEqual(send(number, segment, 1), RMPPType.STOP)
        self.assertEqual(send(1, 3, 1), RMPPType.STOP)
        self.assertEqual((len(server._requests), server._requestBytes.total), (1, 400))
        self.assertNotEqual(send(2, 3, 1), RMPPType.STOP)  # there is room again
        for segment in (1, 2, 3, 4):
            self.assertNotEqual(send(1, segment, 3), RMPPType.STOP)
        server.expired(IDLE_SECONDS)
        self.assertEqual((server._incoming, server._requestBytes.total), ({}, 0))

    def test_answers(self) -> None:
        """Answers in progress are limited, and those of one requester to its share."""
        server, share = RMPPTransfers(), int(MOST_ANSWERS * CLIENT_SHARE)

        def answer(number: int, lid: int) -> bool:
            template = TABLE[:8] + number.to_bytes(8, "big") + TABLE[16:]
            try:
                server.send(template, bytes(600), fromLID(lid).reverse(), 0.0)
            except ResourceExhausted:
                return False
            return True

        self.assertEqual([answer(number, 1) for number in range(share + 1)], [True] * share + [False])
        self.assertEqual([answer(number, 3) for number in range(share)], [True] * share)
        self.assertFalse(answer(0, 4))
        server.withdraw(TABLE[:8] + bytes(8) + TABLE[16:], fromLID(1).reverse())
        self.assertTrue(answer(0, 4))
        while (deadline := server.deadline()) is not None:
            server.expired(deadline)
        self.assertEqual((server._outgoing, len(server._answers)), ({}, 0))

    def test_answerBytes(self) -> None:
        """Answers in progress are limited in bytes, but a requester may have one of any length."""
        self.patch(transfers, "MOST_ANSWER_BYTES", int(2000 / CLIENT_SHARE))
        server = RMPPTransfers()

        def answer(number: int, lid: int, length: int) -> bool:
            template = TABLE[:8] + number.to_bytes(8, "big") + TABLE[16:]
            try:
                server.send(template, bytes(length), fromLID(lid).reverse(), 0.0)
            except ResourceExhausted:
                return False
            return True

        self.assertEqual([answer(number, 1, 1000) for number in (1, 2, 3)], [True, True, False])
        self.assertTrue(answer(2, 1, 900))  # in place of the former
        self.assertEqual(server._answerBytes.total, 1900)
        self.assertEqual([answer(number, 3, 3000) for number in (1, 2)], [True, False])
        self.assertFalse(answer(1, 4, 10))
        server.withdraw(TABLE[:8] + (1).to_bytes(8, "big") + TABLE[16:], fromLID(3).reverse())
        self.assertTrue(answer(1, 4, 10))
        while (deadline := server.deadline()) is not None:
            server.expired(deadline)
        self.assertEqual((server._outgoing, server._answerBytes.total), ({}, 0))

    def test_manyRemembered(self) -> None:
        """Requests of several segments are rejected while too many transfers are remembered."""
        self.patch(transfers, "MOST_REMEMBERED", int(2 / CLIENT_SHARE))
        server = RMPPTransfers()
        header = RMPPHeader(
            version=1, type=RMPPType.DATA, active=True, first=True, last=True, data1=1, data2=220
        )
        question = QUESTION[:24] + header.encode() + QUESTION[36:]

        def ask(number: int, now: float, path: IBPath = FROM_CLIENT) -> RMPPType:
            server.received(question[:8] + number.to_bytes(8, "big") + question[16:], path, now)
            return rmpp(server.outgoing()[0].datagram).type

        for lid in (1, 3):  # each has its share
            found = [ask(number, 0.0, fromLID(lid)) for number in range(3)]
            self.assertEqual(found, [RMPPType.ACK, RMPPType.ACK, RMPPType.STOP])
        self.assertEqual(ask(0, 0.0, fromLID(4)), RMPPType.STOP)
        server.expired(LINGER_SECONDS)
        self.assertEqual(ask(3, LINGER_SECONDS), RMPPType.ACK)

    def test_silence(self) -> None:
        for segments, patience in ((1, IDLE_SECONDS), (2, LINGER_SECONDS)):
            server, client = RMPPTransfers(), RMPPTransfers()
            server.send(TABLE, bytes(300), TO_1, 0.0)
            for _ in range(segments):
                (packet,) = server.outgoing()
                client.received(packet.datagram, FROM_SERVER, 5.0)
                for answer in client.outgoing():
                    server.received(answer.datagram, FROM_CLIENT, 5.0)
            client.events()
            self.assertEqual(client.deadline(), 5.0 + patience)
            client.expired(5.0 + patience)
            if segments == 1:
                status = RMPPStatus.TOTAL_TIME_TOO_LONG
                self.answerTo(client.outgoing(), Method.GET_TABLE, status, RMPPType.ABORT)
                self.failed(client, status)
            self.assertEqual((client.outgoing(), client.events()), ([], []))
            self.assertIsNone(client.deadline())
            self.assertFalse(client.expects(TABLE, FROM_SERVER))

    def test_forgotten(self) -> None:
        _, client, _ = self.begin()
        client.forget(TABLE)
        self.answerTo(client.outgoing(), Method.GET_TABLE, RMPPStatus.UNSPECIFIED, RMPPType.ABORT)
        self.assertIsNone(client.deadline())
        client.send(QUESTION, bytes(1000), TO_2, 0.0)
        client.outgoing()
        client.forget(QUESTION)
        self.answerTo(client.outgoing(), Method.GET_MULTI, RMPPStatus.UNSPECIFIED, RMPPType.ABORT)
        self.assertIsNone(client.deadline())
        self.assertEqual(client.events(), [])

    def test_unknownTransfers(self) -> None:
        client, header = (
            RMPPTransfers(),
            RMPPHeader(version=1, type=RMPPType.ACK, active=True, data1=1, data2=9),
        )
        for kind in (RMPPType.ACK, RMPPType.STOP, RMPPType.ABORT, RMPPType(9)):
            datagram = TABLE[:24] + header.replace(type=kind).encode() + TABLE[36:]
            self.assertFalse(client.received(datagram, FROM_SERVER, 0.0))
        client.received(changed(datagram, type=RMPPType.DATA, data1=2), FROM_SERVER, 0.0)
        self.assertEqual((client.outgoing(), client.events(), client.deadline()), ([], [], None))

    def test_isLong(self) -> None:
        header = RMPPHeader(version=1, type=RMPPType.DATA, active=True)
        for fields, expected in (
            ({}, True),
            ({"version": 2}, True),
            ({"type": RMPPType(7)}, True),
            ({"active": False}, False),
            ({"active": False, "first": True, "last": True}, False),
        ):
            datagram = TABLE[:24] + header.replace(**fields).encode() + TABLE[36:]
            self.assertEqual(isRMPP(datagram), expected, fields)
            self.assertFalse(isRMPP(datagram[:1] + bytes((ManagementClass.PERFORMANCE,)) + datagram[2:]))
            self.assertFalse(isRMPP(datagram[:35]))

    @slow("Hypothesis generates many invalid packets")
    @settings(max_examples=100, deadline=None)
    @given(
        packets=st.lists(
            st.tuples(
                st.sampled_from([0x12, 0x92, 0x14, 0x94]),
                st.integers(0, 3),
                st.integers(0, 5),
                st.integers(0, 255),
                st.integers(0, 255),
                st.one_of(st.integers(0, 70), st.integers(0, 0xFFFFFFFF)),
                st.one_of(st.integers(0, 300), st.integers(0, 0xFFFFFFFF)),
                st.sampled_from([24, 25, 26, 36, 56, 100, 256]),
            ),
            max_size=40,
        )
    )
    def test_nonsense(self, packets: list[tuple[int, ...]]) -> None:
        long = RMPPTransfers()
        long.send(TABLE, bytes(1000), TO_1, 0.0)
        for method, transaction, kind, flags, status, data1, data2, length in packets:
            head = bytes((1, 3, 2, method)) + bytes(4) + transaction.to_bytes(8, "big") + bytes(8)
            rmpp = bytes((1, kind, flags, status)) + data1.to_bytes(4, "big") + data2.to_bytes(4, "big")
            datagram = (head + rmpp)[:length].ljust(length, b"\0")
            if isRMPP(datagram):
                try:
                    long.received(datagram, FROM_CLIENT, 1.0)
                except WireError:
                    pass
        long.outgoing()
        long.events()
        for _ in range(100):
            deadline = long.deadline()
            if deadline is None:
                break
            long.expired(deadline)
        self.assertIsNone(long.deadline())
        self.assertEqual(len(long._requests), 0)


SOME = [GID.fromParts(0xFE80 << 48, GUID.fromInt(number)) for number in range(254)]
LONG_QUESTION = MultiPathRecord.between(SOME[:100], SOME[100:], numbPath=7, reversible=True)
PATHS = [PathRecord(dlid=LID(number)) for number in range(300)]


class QuestionTests(WiredTestCase):
    options = {"timeoutSeconds": 0.5}

    def quiet(self) -> None:
        pass_(self.clock, 60, 0.5)
        self.assertEqual(self.clock.getDelayedCalls(), [])
        for agent in (self.agent, self.other):
            self.assertEqual(
                (
                    len(agent._core._transactions),
                    agent._core._transfers._incoming,
                    agent._core._transfers._outgoing,
                ),
                (0, {}, {}),
            )

    def test_unheard(self) -> None:
        self.serve(lambda request: None, ADMINISTRATION, (Method.GET_MULTI,))
        for lose in (lambda datagram: True, lambda datagram: False):
            self.wire.lose = lose
            call = self.agent.SubnAdmGetMulti(LONG_QUESTION, TO_2, retries=1)
            pass_(self.clock, 60, 0.05)
            self.failureResultOf(call, MADTimeoutError, MADTransferError)
        self.quiet()


class KernelQuestionTests(UmadCase):
    def test_doubleSided(self) -> None:
        for isServerKernel, isClientKernel in ((True, True), (False, False)):
            client, server = self.agent("roce0", isClientKernel), self.agent("roce1", isServerKernel)
            served = self.serve(server, ADMINISTRATION, lambda request: PATHS, Method.GET_MULTI)
            before = len(self.kernel.sent)
            found = self.result(client.SubnAdmGetMulti(LONG_QUESTION, self.path))
            self.assertTrue(found == PATHS)
            (request,) = served.asked
            self.assertEqual(request.payload, LONG_QUESTION.record)
            self.assertEqual(request.frame.componentMask, LONG_QUESTION.mask)  # type: ignore[attr-defined]  # of an SA's
            self.assertEqual(request.data, LONG_QUESTION.record.encode() + LONG_QUESTION.more)
            asked = self.kernel.sent[before]
            header = RMPPHeader.decode(asked, 64 + 24)
            self.assertEqual((header.version, header.type, header.active), (1, RMPPType.DATA, True))
            if isClientKernel:
                self.assertEqual(
                    len(asked), 64 + 56 + len(LONG_QUESTION.record.encode() + LONG_QUESTION.more)
                )
            client.close()
            server.close()
