"""Tests for L{txrdma.unix.answers}."""

from __future__ import annotations

import os
import socket
from pathlib import Path
from typing import Any

from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable
from txrdma.unix import answers
from txrdma.unix import sockets as unixsockets
from txrdma.unix.answers import _Asking, processesIn


class OwnerTests(SynchronousTestCase):
    """Which processes are trusted to answer."""

    def ask(self, answer: bytes = b"{}\n") -> _Asking:
        """Connect to a socket of this process, which answers."""
        ends = socket.socketpair()
        for end in ends:
            self.addCleanup(end.close)
        transport: Any = StringTransport()
        transport.socket = ends[0]
        asking = _Asking()
        asking.makeConnection(transport)
        asking.dataReceived(answer)
        return asking

    def test_answerOfSameUserIsAccepted(self) -> None:
        self.patch(unixsockets, "unmapped", frozenset)
        self.assertEqual(self.successResultOf(self.ask().answered), b"{}\n")

    def test_answerOfUnmappedUserIsRefused(self) -> None:
        self.patch(unixsockets, "unmapped", lambda: frozenset({os.geteuid()}))
        self.failureResultOf(self.ask().answered, PermissionError)

    def test_tooLongAnswerIsRefused(self) -> None:
        self.patch(answers, "_LONGEST_ANSWER", 10)
        self.patch(unixsockets, "unmapped", frozenset)
        self.assertNoResult(self.ask(bytes(10)).answered)
        self.failureResultOf(self.ask(bytes(11)).answered, ValueError)


class FindingTests(SynchronousTestCase):
    """Processes are found by a file of the kernel."""

    def test_noProc(self) -> None:
        """Without the proc file system, the error says what to do."""
        self.patch(answers, "PROC_NET_UNIX", Path(self.mktemp()))
        error = self.assertRaises(DeviceUnavailable, processesIn, "txrdma/smc")
        self.assertIn("No such file or directory; mount the proc file system", str(error))
