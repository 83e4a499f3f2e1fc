"""Tests for L{txrdma.unix.sockets}."""

from __future__ import annotations

import os
import socket

from twisted.trial.unittest import SynchronousTestCase

from txrdma.unix import sockets as unixsockets
from txrdma.unix.sockets import Credentials, processAt


class ProcessTests(SynchronousTestCase):
    """Identification of the process at the other end of a socket."""

    def pairs(self, number: int) -> list[socket.socket]:
        """Return two connected sockets of this process, and their other ends."""
        ends = [end for _ in range(number) for end in socket.socketpair()]
        for end in ends:
            self.addCleanup(end.close)
        return ends[::2]

    def test_processIDAndUserAreReported(self) -> None:
        one, other = self.pairs(2)
        self.assertEqual(processAt(one), Credentials(os.getpid(), os.geteuid()))
        self.assertEqual(processAt(one), processAt(other))

    def test_processesOfInvisibleNamespaceAreIdentifiedBySockets(self) -> None:
        self.patch(unixsockets, "peerOf", lambda connected: Credentials(0, 1000))
        found = [processAt(each) for each in self.pairs(3)]
        self.assertEqual(len(set(found)), 3)
        self.assertEqual({each.user for each in found}, {1000})
        self.assertTrue(all(each.pid < 0 for each in found))
