"""
The cores of long messages: they deliver through whatever a wire does, and believe no nonsense.
"""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import WireError
from txrdma.iba.path import IBPath
from txrdma.iba.types import LID, QPN
from txrdma.mad._frames import frame
from txrdma.mad._long import Delivered, Failed, IDLE_SECONDS, isLong, LINGER_SECONDS, LongMessages, Received
from txrdma.mad._rmpp import Ended, Receiver, RESEND_SECONDS, RESENDS, Sender, WINDOW
from txrdma.mad.attributes import ManagementClass, Method
from txrdma.mad.messages import RMPPHeader, RMPPStatus, RMPPType

ROOM, OVERHEAD = 200, 20


def said(
    kind: RMPPType,
    data1: int = 0,
    data2: int = 0,
    first: bool = False,
    last: bool = False,
    status: RMPPStatus = RMPPStatus.NORMAL,
) -> RMPPHeader:
    return RMPPHeader(
        version=1, type=kind, active=True, first=first, last=last, status=status, data1=data1, data2=data2
    )


def data(number: int, length: int = 0, first: bool = False, last: bool = False) -> RMPPHeader:
    return said(RMPPType.DATA, number, length, first=first, last=last)


class ReceiverTests(SynchronousTestCase):
    """What somebody sends us."""

    def setUp(self) -> None:
        self.receiver = Receiver(ROOM, OVERHEAD)

    def acknowledged(self) -> list[tuple[int, int]]:
        return [(h.data1, h.data2) for h in self.receiver.outgoing() if h.type is RMPPType.ACK]

    def aborted(self, ended: Ended | None, status: RMPPStatus) -> None:
        """It is over, and the sender is told why."""
        self.assertEqual(ended, Ended(status))
        (header,) = self.receiver.outgoing()
        self.assertEqual((header.type, header.status), (RMPPType.ABORT, status))

    def test_message(self) -> None:
        """Segments make a message; the first and the last are acknowledged, and half a window between."""
        last = WINDOW + 3
        for number in range(1, last + 1):
            header = data(number, 27 if number == last else 0, number == 1, number == last)
            self.assertIsNone(self.receiver.received(header, bytes((number,)) * ROOM))
        message = self.receiver.message
        assert message is not None
        self.assertEqual(len(message), ROOM * (last - 1) + 7)
        self.assertEqual(message[-7:], bytes((last,)) * 7)
        numbers = [number for number, _ in self.acknowledged()]
        self.assertEqual((numbers[0], numbers[-1]), (1, last))
        self.assertTrue(all(b - a <= WINDOW // 2 for a, b in zip(numbers, numbers[1:], strict=False)))

    def test_again(self) -> None:
        """What was here before is acknowledged again, also after the end."""
        self.receiver.received(data(1, first=True), bytes(ROOM))
        self.receiver.received(data(2, 25, last=True), bytes(ROOM))
        self.acknowledged()
        for header in (data(1, first=True), data(2, 25, last=True)):
            self.assertIsNone(self.receiver.received(header, bytes(ROOM)))
            self.assertEqual([number for number, _ in self.acknowledged()], [2])

    def test_gap(self) -> None:
        """What comes after a gap is left to be sent again."""
        self.receiver.received(data(1, first=True), bytes(ROOM))
        self.acknowledged()
        self.assertIsNone(self.receiver.received(data(3), bytes(ROOM)))
        self.assertEqual(self.acknowledged(), [])

    def test_beyondTheWindow(self) -> None:
        """A segment that nobody has allowed ends the message."""
        self.receiver.received(data(1, first=True), bytes(ROOM))
        self.acknowledged()
        ended = self.receiver.received(data(WINDOW + 2), bytes(ROOM))
        self.aborted(ended, RMPPStatus.SEGMENT_TOO_BIG)

    def test_contradictions(self) -> None:
        """So do a first segment that is not number 1, one that is and says nothing of it, and number 0."""
        for header in (data(2, first=True), data(1), data(0), data(0, first=True)):
            self.receiver = Receiver(ROOM, OVERHEAD)
            self.aborted(self.receiver.received(header, bytes(ROOM)), RMPPStatus.INCONSISTENT_FIRST)

    def test_lengths(self) -> None:
        """So does a last segment with more in it than fits, or less than its own headers."""
        for length in (0, 19, 221, 0xFFFFFFFF):
            self.receiver = Receiver(ROOM, OVERHEAD)
            ended = self.receiver.received(data(1, length, True, True), bytes(ROOM))
            self.aborted(ended, RMPPStatus.INCONSISTENT_LENGTH)
            self.assertIsNone(self.receiver.message)

    def test_firstLength(self) -> None:
        """What the first segment says of the length of all is not believed."""
        for length in (0, 1, 0xFFFFFFFF):
            self.receiver = Receiver(ROOM, OVERHEAD)
            self.assertIsNone(self.receiver.received(data(1, length, first=True), bytes(ROOM)))
            self.assertIsNone(self.receiver.received(data(2, 21, last=True), b"x" * ROOM))
            self.assertEqual(self.receiver.message, bytes(ROOM) + b"x")

    def test_tooLong(self) -> None:
        """A message without end is not kept for ever."""
        self.patch(__import__("txrdma.mad._rmpp", fromlist=["x"]), "LONGEST_MESSAGE", 10 * ROOM)
        for number in range(1, 11):
            self.assertIsNone(self.receiver.received(data(number, first=number == 1), bytes(ROOM)))
        self.acknowledged()
        ended = self.receiver.received(data(11), bytes(ROOM))
        self.aborted(ended, RMPPStatus.RESOURCES_EXHAUSTED)

    def test_senderGivesUp(self) -> None:
        """An ABORT and a STOP end it without an answer; another kind of packet with one."""
        for kind in (RMPPType.ABORT, RMPPType.STOP):
            header = said(kind, status=RMPPStatus.TOO_MANY_RETRIES)
            self.assertEqual(self.receiver.received(header, b""), Ended(RMPPStatus.TOO_MANY_RETRIES))
            self.assertEqual(self.receiver.outgoing(), [])
        self.aborted(self.receiver.received(said(RMPPType(9)), b""), RMPPStatus.BAD_TYPE)


class SenderTests(SynchronousTestCase):
    """What we send to somebody."""

    def setUp(self) -> None:
        self.sender = Sender(bytes(ROOM) * 9 + b"end", ROOM, OVERHEAD, 0.0)

    def numbers(self, now: float = 0.0) -> list[int]:
        return [segment.header.data1 for segment in self.sender.outgoing(now)]

    def acknowledge(self, number: int, end: int, now: float = 0.0) -> Ended | None:
        return self.sender.received(said(RMPPType.ACK, number, end), now)

    def test_window(self) -> None:
        """One segment first, then what the window allows; it never shrinks."""
        self.assertEqual(self.numbers(), [1])
        self.acknowledge(1, 4)
        self.assertEqual(self.numbers(), [2, 3, 4])
        self.acknowledge(2, 3)
        self.assertEqual(self.numbers(), [])
        self.acknowledge(4, 100)
        segments = self.sender.outgoing(0.0)
        self.assertEqual([s.header.data1 for s in segments], [5, 6, 7, 8, 9, 10])
        self.assertEqual((segments[-1].data, segments[-1].header.data2), (b"end", 23))
        self.assertFalse(self.sender.isDone)
        self.acknowledge(10, 100)
        self.assertTrue(self.sender.isDone)
        self.assertIsNone(self.sender.deadline())

    def test_resend(self) -> None:
        """Without an acknowledgement it is sent again from there on; not for ever."""
        self.numbers()
        self.acknowledge(1, 4)
        self.numbers()
        now = 0.0
        for _ in range(RESENDS):
            self.assertIsNone(self.sender.expired(now + RESEND_SECONDS / 2))
            now = self.sender.deadline() or 0.0
            self.assertIsNone(self.sender.expired(now))
            self.assertEqual(self.numbers(now), [2, 3, 4])
        self.assertEqual(
            self.sender.expired(self.sender.deadline() or 0.0), Ended(RMPPStatus.TOO_MANY_RETRIES)
        )

    def test_progress(self) -> None:
        """Every progress gives new patience."""
        self.numbers()
        now = 0.0
        for number in range(1, 10):
            for _ in range(RESENDS):
                now = self.sender.deadline() or 0.0
                self.assertIsNone(self.sender.expired(now))
                self.numbers(now)
            self.assertIsNone(self.acknowledge(number, number + 1, now))
            self.assertEqual(self.numbers(now), [number + 1])

    def test_nonsense(self) -> None:
        """Acknowledgements of what was not sent, and windows that end before them, end the message."""
        self.numbers()
        self.assertEqual(self.acknowledge(2, 10), Ended(RMPPStatus.SEGMENT_TOO_BIG))
        self.assertEqual(self.acknowledge(1, 0), Ended(RMPPStatus.WINDOW_TOO_SMALL))
        self.assertEqual(self.sender.received(data(1), 0.0), Ended(RMPPStatus.BAD_TYPE))

    def test_receiverGivesUp(self) -> None:
        """STOP and ABORT say why."""
        header = said(RMPPType.STOP, status=RMPPStatus.RESOURCES_EXHAUSTED)
        self.assertEqual(self.sender.received(header, 0.0), Ended(RMPPStatus.RESOURCES_EXHAUSTED))


TEMPLATE = frame(ManagementClass.SUBN_ADM, Method.GET_TABLE_RESP, 77, 0x11, 0, b"")
TO_CLIENT = IBPath(dlid=LID(1), dqpn=QPN(1))
FROM_SERVER = IBPath(slid=LID(2), dlid=LID(1), sqpn=QPN(1), dqpn=QPN(1))
FROM_CLIENT = IBPath(slid=LID(1), dlid=LID(2), sqpn=QPN(1), dqpn=QPN(1))


class LongMessagesTests(SynchronousTestCase):
    """Both ends, and a wire."""

    @settings(max_examples=60, deadline=None)
    @given(length=st.integers(0, 30_000), loss=st.floats(0, 0.3), seed=st.integers(0, 1 << 30))
    def test_wire(self, length: int, loss: float, seed: int) -> None:
        """A message arrives as it is, once, or its sender says that it hasn't; nothing is left."""
        random = Random(seed)
        message = random.randbytes(length)
        server, client = LongMessages(), LongMessages()
        ends: list[object] = []
        arrived: list[bytes] = []
        onTheWay: list[tuple[float, int, LongMessages, bytes, IBPath]] = []
        now = 0.0
        server.send(TEMPLATE, message, TO_CLIENT, now)
        while now < 1000:
            for end, other, path in ((server, client, FROM_SERVER), (client, server, FROM_CLIENT)):
                for packet in end.outgoing():
                    for _ in range(1 + (random.random() < loss)):
                        if random.random() >= loss:
                            when = now + 0.01 * random.random()
                            onTheWay.append((when, len(onTheWay), other, packet.datagram, path))
            ends += server.events()
            arrived += [event.message for event in client.events() if isinstance(event, Received)]
            times = [due for end in (server, client) if (due := end.deadline()) is not None]
            times += [each[0] for each in onTheWay]
            if not times:
                break
            now = min(times)
            for each in sorted(each for each in onTheWay if each[0] <= now):
                onTheWay.remove(each)
                each[2].received(each[3], each[4], now)
            for end in (server, client):
                end.expired(now)
        self.assertIsNone(server.deadline())
        self.assertIsNone(client.deadline())
        self.assertEqual(len(ends), 1)
        if isinstance(ends[0], Delivered) or arrived:
            self.assertEqual(arrived, [message])
        else:
            self.assertIsInstance(ends[0], Failed)

    def test_silence(self) -> None:
        """What a sender has begun and not ended is forgotten, and what has ended, too."""
        for segments, patience in ((1, IDLE_SECONDS), (2, LINGER_SECONDS)):
            server, client = LongMessages(), LongMessages()
            server.send(TEMPLATE, bytes(300), TO_CLIENT, 0.0)
            for _ in range(segments):
                (packet,) = server.outgoing()
                client.received(packet.datagram, FROM_SERVER, 5.0)
                for answer in client.outgoing():
                    server.received(answer.datagram, FROM_CLIENT, 5.0)
            self.assertEqual(client.deadline(), 5.0 + patience)
            client.expired(5.0 + patience)
            self.assertIsNone(client.deadline())
            self.assertFalse(client.expects(TEMPLATE, FROM_SERVER))

    @settings(max_examples=300, deadline=None)
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
        """Whatever comes, nothing breaks, and nothing is kept for ever."""
        long = LongMessages()
        long.send(TEMPLATE, bytes(1000), TO_CLIENT, 0.0)
        for method, transaction, kind, flags, status, data1, data2, length in packets:
            head = bytes((1, 3, 2, method)) + bytes(4) + transaction.to_bytes(8, "big") + bytes(8)
            rmpp = bytes((1, kind, flags, status)) + data1.to_bytes(4, "big") + data2.to_bytes(4, "big")
            datagram = (head + rmpp)[:length].ljust(length, b"\0")
            if isLong(datagram):
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
