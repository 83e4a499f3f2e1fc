"""Tests for L{txrdma.unix.answers}."""

from __future__ import annotations

import os
import socket
from typing import Any

from twisted.internet.testing import StringTransport
from twisted.trial.unittest import SynchronousTestCase

from txrdma.unix import sockets as unixsockets
from txrdma.unix.answers import _Asking


class OwnerTests(SynchronousTestCase):
    """Which processes are trusted to answer."""

    def ask(self) -> _Asking:
        """Connect to a socket of this process, which answers."""
        ends = socket.socketpair()
        for end in ends:
            self.addCleanup(end.close)
        transport: Any = StringTransport()
        transport.socket = ends[0]
        asking = _Asking()
        asking.makeConnection(transport)
        asking.dataReceived(b"{}\n")
        return asking

    def test_answerOfSameUserIsAccepted(self) -> None:
        self.patch(unixsockets, "unmapped", frozenset)
        self.assertEqual(self.successResultOf(self.ask().answered), b"{}\n")

    def test_answerOfUnmappedUserIsRefused(self) -> None:
        self.patch(unixsockets, "unmapped", lambda: frozenset({os.geteuid()}))
        self.failureResultOf(self.ask().answered, PermissionError)
