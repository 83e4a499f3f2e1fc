"""Bytes of streams: two ends whose messages are exchanged in any order."""

from __future__ import annotations

from random import Random

from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.stream._bytes import ByteStream, DISCONNECT, LONGEST_PIECE, SHUTDOWN
from txrdma.error import PeerViolation


class ByteStreamTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.one, self.other = ByteStream(), ByteStream()

    def exchange(self, sender: ByteStream, receiver: ByteStream, most: int = 1 << 30) -> list[int]:
        """Deliver messages; return the lengths of those with data."""
        lengths: list[int] = []
        while len(lengths) < most and (message := sender.next()) is not None:
            data, immediate = message
            if immediate is None:
                sender.unacknowledged -= 1
                lengths.append(len(data))
            receiver.arrived(data, immediate)
        return lengths

    def test_pieces(self) -> None:
        """Short writes are merged, long ones split, and all bytes arrive in order."""
        data = Random(1).randbytes(300_000)
        for begin in range(0, 100_000, 100):
            self.one.write(data[begin : begin + 100])
        self.one.write(data[100_000:])
        self.assertEqual(self.one.backlog, len(data))
        lengths = self.exchange(self.one, self.other)
        self.assertLessEqual(max(lengths), LONGEST_PIECE)
        self.assertLessEqual(len(lengths), 7)
        self.assertEqual((self.one.backlog, self.other.unread), (0, len(data)))
        self.assertEqual(self.other.read(), data)
        self.assertEqual((self.other.read(), self.other.unread), (b"", 0))

    def test_longWrite(self) -> None:
        """The rest of a long write is not copied for each fragment."""
        data = bytes(4 << 20)
        self.one.write(data)
        self.exchange(self.one, self.other, 1)
        rest = self.one._unsent[0]
        assert isinstance(rest, memoryview)
        self.assertIs(rest.obj, data)
        self.exchange(self.one, self.other)
        self.assertEqual(self.other.read(), data)

    def test_full(self) -> None:
        self.one.write(b"x")
        self.one.isFull = True
        self.assertIsNone(self.one.next())
        self.one.isFull = False
        self.assertEqual(self.one.next(), (b"x", None))

    def test_halves(self) -> None:
        """The stream ends when both halves have ended; until then each half continues."""
        self.one.write(b"question")
        self.one.closeWriting()
        self.one.write(b"too late")
        self.exchange(self.one, self.other)
        self.assertEqual((self.other.read(), self.other.isReadable), (b"question", False))
        self.assertFalse(self.other.isOver)
        self.other.write(b"answer")
        self.other.closeWriting()
        self.exchange(self.other, self.one)
        self.assertEqual(self.one.read(), b"answer")
        self.assertTrue(self.one.isOver)
        self.assertTrue(self.other.hasSentClose)

    def test_bothHalvesAtOnce(self) -> None:
        self.one.closeWriting()
        self.other.closeWriting()
        local, remote = self.one.next(), self.other.next()
        self.assertEqual((local, remote), ((b"", SHUTDOWN), (b"", SHUTDOWN)))
        self.one.arrived(b"", SHUTDOWN)
        self.other.arrived(b"", SHUTDOWN)
        self.assertTrue(self.one.isOver and self.other.isOver)

    def test_close(self) -> None:
        """A close delivers all earlier bytes, and later ones of the peer are dropped."""
        self.one.write(b"last")
        self.one.close()
        self.exchange(self.one, self.other)
        self.assertEqual((self.other.read(), self.other.isOver, self.other.wasCut), (b"last", True, False))
        self.assertTrue(self.one.hasSentClose)
        self.assertEqual((self.other.write(b"in vain"), self.other.wasCut), (0, False))

    def test_cut(self) -> None:
        """Bytes still queued when the peer closes are discarded; sent bytes may still be acknowledged."""
        for isSent in (True, False):
            self.setUp()
            self.other.write(b"on its way")
            if isSent:
                self.assertIsNotNone(self.other.next())
            self.one.close()
            self.exchange(self.one, self.other)
            cut = (self.other.isOver, self.other.wasCut, self.other.isDelivered)
            self.assertEqual(cut, (True, not isSent, not isSent))

    def test_violations(self) -> None:
        self.assertRaises(PeerViolation, self.one.arrived, b"", 7)
        self.one.arrived(b"", SHUTDOWN)
        self.assertRaises(PeerViolation, self.one.arrived, b"x", None)
        self.one.arrived(b"", DISCONNECT)
        self.assertRaises(PeerViolation, self.one.arrived, b"x", None)
