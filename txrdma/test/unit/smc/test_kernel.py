"""
The kernel's SMC as a backend, without a kernel that has it: its status, and interfaces.
"""

from __future__ import annotations

import errno
from unittest.mock import Mock, patch

from hypothesis import given, strategies

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import WireError
from txrdma.iba.types import GID
from txrdma.ports.netlink import DONE, DUMP, ERROR
from txrdma.ports.netlinkqueries import query
from txrdma.smc.kernel import sockdiag
from txrdma.smc.kernel.sockdiag import DiagCursor, KernelSocket
from txrdma.smc.wire.clc import Diagnosis
from txrdma.test.support.smc.kernel import RECORDED


def message(kind: int, payload: bytes) -> bytes:
    header = (16 + len(payload)).to_bytes(4, "little") + kind.to_bytes(2, "little")
    return header + bytes(10) + payload + bytes(-len(payload) % 4)


class DiagnosisTests(SynchronousTestCase):
    """Diagnosis messages of Linux 6.12 about SMC sockets."""

    def test_bothEndsOfConnection(self) -> None:
        client, server = (KernelSocket.decode(RECORDED[name]) for name in ("client", "server"))
        for each in (client, server):
            self.assertEqual((each.mode, each.state), ("SMC-R", "ACTIVE"))
            self.assertEqual((each.fallbackReason, each.peerDiagnosis), (None, None))
        self.assertEqual((client.inode, server.inode), (1184, 298))
        assert client.buffers and server.buffers and client.group and server.group
        self.assertEqual((client.buffers.token, server.buffers.token), (2, 1))
        for buffers in (client.buffers, server.buffers):
            self.assertEqual((buffers.sendBuffer, buffers.size, buffers.peerSize), (65536,) * 3)
        self.assertEqual(
            (client.buffers.produced, client.buffers.arrived), (DiagCursor(0, 5), DiagCursor(0, 0))
        )
        self.assertEqual(
            (server.buffers.arrived, server.buffers.consumed), (DiagCursor(0, 5), DiagCursor(0, 5))
        )
        here, there = GID.fromIP("10.77.0.1"), GID.fromIP("10.77.0.2")
        self.assertEqual(
            (client.group.device, client.group.port, client.group.gid, client.group.peerGID),
            ("rxe0", 1, here, there),
        )
        self.assertEqual((server.group.device, server.group.gid), ("rxe1", there))
        self.assertEqual((client.group.role, server.group.role), ("client", "server"))

    def test_listenerHasNoBuffers(self) -> None:
        reported = KernelSocket.decode(RECORDED["listener"])
        self.assertEqual(
            (reported.state, reported.inode, reported.buffers, reported.group), ("LISTEN", 1182, None, None)
        )
        self.assertIsNone(reported.fallbackReason)

    def test_fallbackHasReasons(self) -> None:
        for name, reason, peer in (
            ("toPlain", Diagnosis.PEERNOSMC, None),
            ("declining", Diagnosis.NOSMCDEV, None),
            ("declined", Diagnosis.PEERDECL, Diagnosis.NOSMCDEV),
        ):
            reported = KernelSocket.decode(RECORDED[name])
            self.assertEqual(
                (reported.mode, reported.fallbackReason, reported.peerDiagnosis), ("TCP", reason, peer)
            )

    def test_answerEndsWithDoneOrError(self) -> None:
        client, listener = (message(20, RECORDED[name]) for name in ("client", "listener"))
        code = (-errno.ENOENT).to_bytes(4, "little", signed=True)
        sock = Mock()
        sock.recv.side_effect = [client + listener, client + message(DONE, bytes(4)), message(ERROR, code)]
        answers = list(query(sock, 20, b"", DUMP))
        inodes = [KernelSocket.decode(answer.payload).inode for answer in answers]
        self.assertEqual(inodes, [1184, 1182, 1184])
        error = self.assertRaises(OSError, list, query(sock, 20, b"", DUMP))
        self.assertEqual(error.errno, errno.ENOENT)

    @given(strategies.sampled_from(sorted(RECORDED)), strategies.integers(0, 315))
    def test_truncatedMessages(self, name: str, length: int) -> None:
        whole = RECORDED[name]
        try:
            reported = KernelSocket.decode(whole[:length])
        except WireError:
            self.assertLess(length, len(whole))
        else:
            self.assertEqual(reported.inode, KernelSocket.decode(whole).inode)

    def test_request(self) -> None:
        missing = OSError(errno.ENOENT, "No such file or directory")
        with patch.object(sockdiag, "diagnose", side_effect=missing) as diagnose:
            error = self.assertRaises(OSError, list, sockdiag.kernelSockets())
        self.assertEqual(error.errno, errno.ENOENT)
        self.assertIn("smc_diag", str(error))
        diagnose.assert_called_once_with(bytes([43, 0, 0, 0b10011]) + bytes(48), DUMP)
