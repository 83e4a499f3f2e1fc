"""
Counts of the bytes of TCP connections, as the kernel has them.
"""

from __future__ import annotations

import socket
import struct
from types import SimpleNamespace
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.smc.stream.tcpcounts import tcpCounts, unwritten

_RESET = struct.pack("ii", 1, 0)


class CountTests(SynchronousTestCase):
    """L{tcpCounts} of two connected sockets."""

    def setUp(self) -> None:
        with socket.create_server(("127.0.0.1", 0)) as listening:
            self.client = socket.create_connection(listening.getsockname())
            self.server, _ = listening.accept()
        for each in (self.client, self.server):
            self.addCleanup(each.close)
            each.settimeout(10)
        self.syn = tcpCounts(SimpleNamespace(socket=self.client))[0]

    def counts(self, end: socket.socket, hasClosed: bool = False) -> tuple[int, int]:
        """Return the counts of an end, without a client's SYN."""
        transport: Any = SimpleNamespace(socket=end, _writeDisconnected=hasClosed)
        sent, received = tcpCounts(transport)
        return sent - (self.syn if end is self.client else 0), received

    def test_bytesAreSentWhenKernelHasThemAndReceivedWhenRead(self) -> None:
        self.client.sendall(bytes(100))
        self.assertEqual((self.counts(self.client), self.counts(self.server)), ((100, 0), (0, 0)))
        self.server.recv(60, socket.MSG_WAITALL)
        self.assertEqual(self.counts(self.server), (0, 60))

    def test_FINOfOneOrBothEndsIsNoByte(self) -> None:
        self.client.sendall(bytes(100))
        self.client.shutdown(socket.SHUT_WR)
        self.server.recv(100, socket.MSG_WAITALL)
        self.assertEqual(self.server.recv(1), b"")
        self.assertEqual((self.counts(self.client), self.counts(self.server)), ((100, 0), (0, 100)))
        self.server.sendall(bytes(7))
        self.server.shutdown(socket.SHUT_WR)
        self.client.recv(7, socket.MSG_WAITALL)
        self.assertEqual(self.client.recv(1), b"")
        self.assertEqual(
            (self.counts(self.client, True), self.counts(self.server, True)), ((100, 7), (7, 100))
        )

    def test_countsAfterResetAreThoseBefore(self) -> None:
        self.client.sendall(bytes(100))
        self.server.recv(100, socket.MSG_WAITALL)
        self.server.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, _RESET)
        self.server.close()
        with self.assertRaises(ConnectionResetError):
            self.client.recv(1)
        self.assertEqual(self.counts(self.client), (100, 0))

    def test_closedSocketHasNoCounts(self) -> None:
        self.client.close()
        self.assertEqual(self.counts(self.client), (-self.syn, 0))
        self.assertEqual(tcpCounts(None), (0, 0))

    def test_bytesQueuedInTransportAreKnown(self) -> None:
        self.assertEqual(unwritten(SimpleNamespace(dataBuffer=b"12345", offset=2, _tempDataLen=4)), 7)
