"""Tests for L{txrdma.unix.sockets}."""

from __future__ import annotations

import os
import socket
from types import SimpleNamespace

from twisted.trial.unittest import SynchronousTestCase

from txrdma.unix import sockets as unixsockets
from txrdma.unix.sockets import Credentials, isSameUser, isTrusted, processAt, unmapped


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


class UserTests(SynchronousTestCase):
    """The users whose processes are trusted."""

    def beIn(self, mapping: str) -> None:
        """Run as user 4711, whose number users that are not mapped have, in a namespace of this mapping."""
        files = {
            "/proc/self/uid_map": mapping,
            "/proc/sys/kernel/overflowuid": "4711\n",
            "/proc/sys/kernel/overflowgid": "4712\n",
        }
        self.addCleanup(unmapped.cache_clear)  # is called after the following ones are undone
        self.patch(unixsockets, "Path", lambda path: SimpleNamespace(read_text=lambda: files[path]))
        self.patch(os, "geteuid", lambda: 4711)
        unmapped.cache_clear()

    def test_sameUser(self) -> None:
        """Outside of user namespaces, each number is one user; root is trusted as well."""
        self.beIn("         0          0 4294967295\n")
        self.assertEqual([isSameUser(user) for user in (4711, 4712, 0)], [True, False, False])
        self.assertEqual([isTrusted(user) for user in (4711, 4712, 0)], [True, False, True])

    def test_unmappedUsers(self) -> None:
        """In a user namespace, the number that all users without a mapping have is that of nobody."""
        self.beIn("         0       1000          1\n")
        self.assertEqual(unmapped(), {4711, 4712})
        self.assertFalse(isSameUser(4711))
        self.assertFalse(isTrusted(4711))
