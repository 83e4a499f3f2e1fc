"""
Datagrams by the dozen.
"""

from __future__ import annotations

import socket

from twisted.trial.unittest import SynchronousTestCase

from txrdma.mad.ports.batches import Batches, MOST


class BatchesTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_DGRAM)
        self.addCleanup(self.near.close)
        self.addCleanup(self.far.close)
        self.batches = Batches(self.near.fileno(), 4)

    def test_send(self) -> None:
        for count in (1, 5, MOST):
            sent = [number.to_bytes(4, "big") for number in range(count)]
            self.assertEqual(self.batches.send(sent), count)
            self.assertEqual([self.far.recv(100) for _ in range(count)], sent)

    def test_receive(self) -> None:
        for number in range(MOST + 3):
            self.far.send(number.to_bytes(4, "big"))
        whole = b"".join(number.to_bytes(4, "big") for number in range(MOST + 3))
        self.assertEqual(self.batches.receive(), whole[: 4 * MOST])
        self.assertEqual(self.batches.receive(), whole[4 * MOST :])

    def test_otherLengths(self) -> None:
        for raw in (b"aaaa", b"bbbb", b"cccc"):
            self.far.send(raw)
        self.assertEqual(self.batches.receive(), b"aaaabbbbcccc")
        for raw in (b"dddd", b"e", b"", b"ffff", b"gggghhhh"):
            self.far.send(raw)
        self.assertEqual(self.batches.receive(), b"ddddffffgggg")

    def test_nothing(self) -> None:
        self.assertRaises(BlockingIOError, self.batches.receive)

    def test_noRoom(self) -> None:
        sent = 0
        with self.assertRaises(BlockingIOError):
            while True:
                sent += self.batches.send([b"full"] * MOST)
        self.far.setblocking(False)
        come = 0
        with self.assertRaises(BlockingIOError):
            while True:
                self.far.recv(100)
                come += 1
        self.assertEqual(come, sent)

    def test_gone(self) -> None:
        self.far.close()
        self.assertRaises(ConnectionRefusedError, self.batches.send, [b"lost"])
