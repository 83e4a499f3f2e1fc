"""Tests for L{txrdma.unix.answers}."""

from __future__ import annotations

import os
import socket
from typing import Any

from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase

from txrdma.unix import answers
from txrdma.unix import sockets as unixsockets
from txrdma.unix.answers import _Asking


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
