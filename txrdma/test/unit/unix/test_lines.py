"""L{txrdma.unix.lines}: lines of one reactor iteration are sent together, before it ends."""

from __future__ import annotations

import socket
from typing import Any, cast

from twisted.internet.testing import MemoryReactorClock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.unix import lines as unixlines
from txrdma.unix.lines import Lines, LONGEST, MUCH


class SendingTests(SynchronousTestCase):
    """The sending end of a socket pair, whose other end is a plain socket."""

    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()
        ours, self.other = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
        self.addCleanup(self.other.close)
        for each in (ours, self.other):
            each.setblocking(False)
        self.lines = Lines(cast(Any, self.reactor), ours, lambda lines: None, lambda: None)
        self.addCleanup(self.lines.close)

    def arrived(self) -> bytes:
        """Return what the other end can read now."""
        found = b""
        try:
            while piece := self.other.recv(1 << 20):
                found += piece
        except BlockingIOError:
            pass
        return found

    def test_linesOfOneIterationAreSentAtItsEnd(self) -> None:
        self.lines.send(b"one")
        self.lines.send(b"two")
        self.assertEqual(self.arrived(), b"")
        self.reactor.advance(0)
        self.assertEqual(self.arrived(), b"one\ntwo\n")

    def test_manyLinesAreSentEarlier(self) -> None:
        line = b"x" * 99
        for _ in range(2 * MUCH // 100):
            self.lines.send(line)
        early = self.arrived()
        self.assertGreaterEqual(len(early), MUCH)
        self.reactor.advance(0)
        self.assertEqual(early + self.arrived(), (line + b"\n") * (2 * MUCH // 100))

    def test_slowReader(self) -> None:
        """Lines that a full socket does not accept follow completely and in order; then it is not polled."""
        lines = [b"%0250d" % number for number in range(3000)]
        for line in lines:
            self.lines.send(line)
        self.reactor.advance(0)
        self.assertIn(self.lines, self.reactor.getWriters())
        found = b""
        while piece := self.arrived():
            found += piece
            self.lines.doWrite()
        self.assertEqual(found, b"".join(line + b"\n" for line in lines))
        self.assertNotIn(self.lines, self.reactor.getWriters())

    def test_processThatLeavesTooMuchUnreadIsDisconnected(self) -> None:
        self.patch(unixlines, "MOST_UNREAD", 10_000)
        for _ in range(2000):
            self.lines.send(b"x" * 250)
        self.reactor.advance(0)
        self.assertFalse(self.lines.isOpen)

    def test_processThatSendsTooLongLineIsDisconnected(self) -> None:
        self.other.send(b"x" * LONGEST)
        self.lines.doRead()
        self.assertTrue(self.lines.isOpen)
        self.other.send(b"x")
        self.lines.doRead()
        self.assertFalse(self.lines.isOpen)

    def test_tooLongLineIsNotProcessedIfItsEndArrivesAtOnce(self) -> None:
        received: list[bytes] = []
        self.patch(self.lines, "_received", received.extend)
        self.other.send(b"x" * LONGEST + b"\n")
        self.lines.doRead()
        self.other.send(b"y" * (LONGEST + 1) + b"\nz\n")
        self.lines.doRead()
        self.assertEqual(received, [b"x" * LONGEST])
        self.assertFalse(self.lines.isOpen)

    def test_roomMeanwhile(self) -> None:
        """When queued bytes were sent with later lines, the socket is not polled for writing any more."""
        while not self.reactor.getWriters():
            self.lines.send(b"x" * 250)
            self.reactor.advance(0)
        self.arrived()
        for _ in range(MUCH // 100):
            self.lines.send(b"y" * 99)
        self.reactor.advance(0)
        self.lines.doWrite()
        self.assertNotIn(self.lines, self.reactor.getWriters())
