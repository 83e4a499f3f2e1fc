"""The receiver and the sender of an RMPP transfer."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.mad.core.rmpp import (
    LEAST_RESEND_SECONDS,
    MOST_AHEAD,
    MOST_RESEND_SECONDS,
    RESEND_SECONDS,
    RESENDS,
    RMPPReceiver,
    Sender,
    TOTAL_SECONDS,
    TransferEnded,
    WINDOW,
)
from txrdma.mad.layouts.messages import RMPPHeader, RMPPStatus, RMPPType

ROOM, OVERHEAD = 200, 20


def output(
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
    return output(RMPPType.DATA, number, length, first=first, last=last)


class ReceiverTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.receiver = RMPPReceiver(ROOM, OVERHEAD)

    def take(self, number: int, length: int = 0, last: bool = False, content: bytes | None = None) -> None:
        header = data(number, length, number == 1, last)
        self.assertIsNone(self.receiver.received(header, bytes(ROOM) if content is None else content))

    def acknowledged(self) -> list[tuple[int, int]]:
        return [(h.data1, h.data2) for h in self.receiver.outgoing() if h.type is RMPPType.ACK]

    def refused(
        self, ended: TransferEnded | None, status: RMPPStatus, kind: RMPPType = RMPPType.ABORT
    ) -> None:
        self.assertEqual(ended, TransferEnded(status))
        (header,) = self.receiver.outgoing()
        self.assertEqual((header.type, header.status, header.version), (kind, status, 1))
        self.assertFalse(self.receiver.isDone)

    def test_message(self) -> None:
        last = WINDOW + 3
        for number in range(1, last + 1):
            header = data(number, 27 if number == last else 0, number == 1, number == last)
            self.assertIsNone(self.receiver.received(header, number.to_bytes(2, "big") * (ROOM // 2)))
        self.assertTrue(self.receiver.isDone)
        message = self.receiver.take()
        self.assertEqual(len(message), ROOM * (last - 1) + 7)
        self.assertEqual(message[-7:-1], last.to_bytes(2, "big") * 3)
        acknowledged = self.acknowledged()
        numbers = [number for number, _ in acknowledged]
        self.assertEqual((numbers[0], numbers[-1]), (1, last))
        self.assertTrue(all(b - a <= WINDOW // 2 for a, b in zip(numbers, numbers[1:], strict=False)))
        self.assertEqual([end - number for number, end in acknowledged], [WINDOW] * len(acknowledged))

    def test_again(self) -> None:
        self.take(1)
        self.take(2, 25, last=True, content=b"abcde".ljust(ROOM))
        self.acknowledged()
        for number in (1, 2):
            self.take(number, 21, last=number == 2, content=b"x" * ROOM)
            self.assertEqual([number for number, _ in self.acknowledged()], [2])
        self.assertEqual(self.receiver.take(), bytes(ROOM) + b"abcde")
        self.assertEqual((self.receiver.take(), self.receiver.accepted), (b"", 2))

    def test_gap(self) -> None:
        self.take(1)
        self.acknowledged()
        for number in (4, 3, 4, 6):
            self.take(number, content=bytes((number,)) * ROOM)
        self.assertEqual(self.acknowledged(), [])
        self.take(2, content=b"2" * ROOM)
        self.assertEqual([number for number, _ in self.acknowledged()], [4])
        self.take(7, 20, last=True)
        self.assertFalse(self.receiver.isDone)
        self.take(5, content=b"5" * ROOM)
        self.assertEqual([number for number, _ in self.acknowledged()], [7])
        parts = (b"\0", b"2", b"\3", b"\4", b"5", b"\6")
        self.assertEqual(self.receiver.take(), b"".join(part * ROOM for part in parts))

    def test_beyondTheWindow(self) -> None:
        self.take(1)
        self.acknowledged()
        for number in (WINDOW + 2, 0xFFFFFFFF):
            self.take(number)
            self.take(number, 30, last=True)
        self.assertEqual(self.acknowledged(), [])
        self.take(2, 20, last=True)
        self.assertTrue(self.receiver.isDone)

    def test_contradictions(self) -> None:
        for header in (data(2, first=True), data(1), data(0, first=True)):
            self.receiver = RMPPReceiver(ROOM, OVERHEAD)
            self.refused(self.receiver.received(header, bytes(ROOM)), RMPPStatus.INCONSISTENT_FIRST)

    def test_lengths(self) -> None:
        for length in (0, 19, 221, 0xFFFFFFFF):
            self.receiver = RMPPReceiver(ROOM, OVERHEAD)
            ended = self.receiver.received(data(1, length, True, True), bytes(ROOM))
            self.refused(ended, RMPPStatus.INCONSISTENT_LENGTH)

    def test_firstLength(self) -> None:
        for length in (0, 3 * 220, 2 * 220 + 21, 3 * ROOM, 2 * ROOM + 1, 0xFFFFFFFF):
            self.receiver = RMPPReceiver(ROOM, OVERHEAD)
            self.take(1, length)
            self.take(2)
            self.take(3, 21, last=True)
            self.assertTrue(self.receiver.isDone)
        for length, last in ((1, 1), (220, 2), (ROOM, 1), (2 * ROOM, 2), (2 * 220, 3)):
            self.receiver = RMPPReceiver(ROOM, OVERHEAD)
            for number in range(1, last):
                self.take(number, length)
            self.acknowledged()
            ended = self.receiver.received(data(last, length, last == 1), bytes(ROOM))
            self.refused(ended, RMPPStatus.INCONSISTENT_LENGTH)
        for again in (2 * 220, 4 * 220):  # a duplicate of the first segment
            self.receiver = RMPPReceiver(ROOM, OVERHEAD)
            self.take(1, 3 * 220)
            self.acknowledged()
            ended = self.receiver.received(data(1, again, first=True), bytes(ROOM))
            self.refused(ended, RMPPStatus.INCONSISTENT_LENGTH)

    def test_twoEnds(self) -> None:
        for early, late in (
            (data(4, 30, last=True), data(5, 30, last=True)),
            (data(4, 30, last=True), data(3, 30, last=True)),
            (data(4, 30, last=True), data(4)),
            (data(4, 30, last=True), data(6)),
            (data(5), data(4, 30, last=True)),
        ):
            self.receiver = RMPPReceiver(ROOM, OVERHEAD)
            self.take(1)
            self.assertIsNone(self.receiver.received(early, bytes(ROOM)))
            self.acknowledged()
            self.refused(self.receiver.received(late, bytes(ROOM)), RMPPStatus.INCONSISTENT_LENGTH)

    def test_cutShort(self) -> None:
        self.assertIsNone(self.receiver.received(data(1, first=True), bytes(ROOM - 1)))
        self.assertIsNone(self.receiver.received(data(1, 30, True, True), bytes(9)))
        self.assertEqual((self.receiver.accepted, self.acknowledged()), (0, []))

    def test_senderGivesUp(self) -> None:
        for kind, status in ENDS:
            self.assertEqual(
                self.receiver.received(output(kind, status=status), b""), TransferEnded(status, True)
            )
            self.assertEqual(self.receiver.outgoing(), [])

    def test_wrongPackets(self) -> None:
        for header, status in (*MISFITS, (output(RMPPType.ACK, 1, 2), RMPPStatus.BAD_TYPE)):
            self.receiver = RMPPReceiver(ROOM, OVERHEAD)
            self.refused(self.receiver.received(header, bytes(ROOM)), status)


ENDS = (
    (RMPPType.STOP, RMPPStatus.RESOURCES_EXHAUSTED),
    *((RMPPType.ABORT, RMPPStatus(code)) for code in range(118, 128)),
    (RMPPType.ABORT, RMPPStatus(128)),  # of a class
    (RMPPType.ABORT, RMPPStatus(255)),  # of a vendor
)
"""Packets that end a message (IBA table 118)."""

MISFITS = (
    (output(RMPPType(9), 1), RMPPStatus.BAD_TYPE),
    (output(RMPPType.NONE, 1), RMPPStatus.BAD_TYPE),
    (data(1, first=True).replace(version=2), RMPPStatus.UNSUPPORTED_VERSION),
    (output(RMPPType.ABORT, status=RMPPStatus.BAD_TYPE).replace(version=0), RMPPStatus.UNSUPPORTED_VERSION),
    (data(1, first=True).replace(status=RMPPStatus.BAD_TYPE), RMPPStatus.ILLEGAL_STATUS),
    (output(RMPPType.ACK, 1, 2, status=RMPPStatus.RESOURCES_EXHAUSTED), RMPPStatus.ILLEGAL_STATUS),
    (output(RMPPType.STOP, status=RMPPStatus.BAD_TYPE), RMPPStatus.ILLEGAL_STATUS),
    (output(RMPPType.STOP), RMPPStatus.ILLEGAL_STATUS),
    (output(RMPPType.ABORT, status=RMPPStatus.RESOURCES_EXHAUSTED), RMPPStatus.ILLEGAL_STATUS),
    (output(RMPPType.ABORT, status=RMPPStatus(117)), RMPPStatus.ILLEGAL_STATUS),
)
"""Invalid packets, and the status that reports each (IBA table 118)."""


class SenderTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.sender = Sender(bytes(ROOM) * 9 + b"end", ROOM, OVERHEAD, 0.0)

    def numbers(self, now: float = 0.0) -> list[int]:
        return [segment.header.data1 for segment in self.sender.outgoing(now)]

    def acknowledge(
        self, number: int, end: int, now: float = 0.0, responseTime: int = 31
    ) -> TransferEnded | None:
        header = output(RMPPType.ACK, number, end).replace(responseTime=responseTime)
        return self.sender.received(header, now)

    def deadline(self) -> float:
        deadline = self.sender.deadline()
        assert deadline is not None
        return deadline

    def test_window(self) -> None:
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

    def test_endlessWindow(self) -> None:
        last = 10_000
        self.sender = Sender(bytes(ROOM) * last, ROOM, OVERHEAD, 0.0)
        self.assertEqual(self.numbers(), [1])
        sent = 1
        self.acknowledge(1, 0xFFFFFFFF)
        while sent < last:
            numbers = self.numbers()
            self.assertEqual(numbers, list(range(sent + 1, min(last, sent + MOST_AHEAD) + 1)))
            self.assertEqual(self.numbers(), [])
            sent = numbers[-1]
            self.acknowledge(sent, 0xFFFFFFFF)
        self.assertTrue(self.sender.isDone)

    def test_oldACKs(self) -> None:
        self.numbers()
        self.acknowledge(1, 6)
        self.acknowledge(1, 3)
        self.assertEqual(self.numbers(), [2, 3, 4, 5, 6])
        self.acknowledge(5, 6)
        due = self.deadline()
        for number, end in ((5, 6), (5, 5), (3, 4), (0, 0), (1, 6)):
            self.assertIsNone(self.acknowledge(number, end, 0.01))
            self.assertEqual(self.numbers(0.01), [])
        self.assertEqual(self.deadline(), due)
        self.acknowledge(5, 7, 0.02)
        self.assertEqual(self.numbers(0.02), [7])

    def test_resend(self) -> None:
        """Without an ACK, segments are sent again from that point, with growing delays and a limit."""
        self.numbers()
        self.acknowledge(1, 4)
        self.numbers()
        now, waited = 0.0, []
        for _ in range(RESENDS):
            due = self.deadline()
            waited.append(round(due - now, 6))
            self.assertIsNone(self.sender.expired((now + due) / 2))
            now = due
            self.assertIsNone(self.sender.expired(now))
            self.assertEqual(self.numbers(now), [2, 3, 4])
        self.assertEqual(self.sender.expired(self.deadline()), TransferEnded(RMPPStatus.TOO_MANY_RETRIES))
        self.assertEqual(waited[0], LEAST_RESEND_SECONDS)  # the first segment was sent immediately
        self.assertEqual(waited[1:4], [2 * waited[0], 4 * waited[0], 8 * waited[0]])
        self.assertEqual(waited[-1], MOST_RESEND_SECONDS)

    def test_progress(self) -> None:
        self.numbers()
        now = 0.0
        for number in range(1, 10):
            for _ in range(RESENDS):
                now = self.deadline()
                self.assertIsNone(self.sender.expired(now))
                self.numbers(now)
            self.assertIsNone(self.acknowledge(number, number + 1, now))
            self.assertEqual(self.numbers(now), [number + 1])

    def test_patience(self) -> None:
        self.assertEqual(self.deadline(), RESEND_SECONDS)
        self.numbers(0.0)
        self.acknowledge(1, 2, 0.5)
        self.numbers(0.5)
        self.assertEqual(self.deadline(), 0.5 + 0.5 + 4 * 0.25)
        self.sender.expired(self.deadline())
        self.numbers(2.0)
        self.acknowledge(2, 3, 2.001)  # ambiguous: sent twice
        self.numbers(2.001)
        self.assertEqual(self.deadline(), 2.001 + 1.5)

    def test_responseTime(self) -> None:
        self.numbers(0.0)
        self.acknowledge(1, 2, 0.0, responseTime=18)
        self.numbers(0.0)
        self.assertAlmostEqual(self.deadline(), 0.02 + 4.096e-6 * 2**18)
        self.acknowledge(2, 3, 0.0, responseTime=30)
        self.numbers(0.0)
        self.assertEqual(self.deadline(), MOST_RESEND_SECONDS)

    def test_totalTime(self) -> None:
        self.sender = Sender(bytes(10_000 * ROOM), ROOM, OVERHEAD, 0.0)
        now, number = 0.0, 1
        while (ended := self.sender.expired(now)) is None:
            self.numbers(now)
            now += 1.0
            self.acknowledge(number, number + 1, now)
            number += 1
            self.assertLess(now, 2 * TOTAL_SECONDS)
        self.assertEqual((ended, now), (TransferEnded(RMPPStatus.TOTAL_TIME_TOO_LONG), TOTAL_SECONDS))

    def test_nonsense(self) -> None:
        self.numbers()
        self.assertEqual(self.acknowledge(2, 10), TransferEnded(RMPPStatus.SEGMENT_TOO_BIG))
        self.assertEqual(self.acknowledge(0xFFFFFFFF, 0xFFFFFFFF), TransferEnded(RMPPStatus.SEGMENT_TOO_BIG))
        self.assertEqual(self.acknowledge(1, 0), TransferEnded(RMPPStatus.WINDOW_TOO_SMALL))
        for header, status in (*MISFITS, (data(1), RMPPStatus.BAD_TYPE)):
            self.assertEqual(self.sender.received(header, 0.0), TransferEnded(status))

    def test_receiverGivesUp(self) -> None:
        for kind, status in ENDS:
            self.assertEqual(
                self.sender.received(output(kind, status=status), 0.0), TransferEnded(status, True)
            )
