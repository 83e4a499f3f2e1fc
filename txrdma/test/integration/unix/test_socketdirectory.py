"""Names in directories of UNIX sockets, with real sockets."""

from __future__ import annotations

import os
from socket import SOCK_SEQPACKET, socket
from tempfile import TemporaryDirectory

from twisted.trial.unittest import SynchronousTestCase

from txrdma.unix import socketdirectory
from txrdma.unix.socketdirectory import SocketDirectory


class NamesTests(SynchronousTestCase):
    """Names of processes, of which some were killed."""

    def setUp(self) -> None:
        path = TemporaryDirectory()  # not that of trial, which may be too long for the address of a socket
        self.addCleanup(path.cleanup)
        self.directory = SocketDirectory(path.name)

    def publish(self, name: str) -> socket:
        """Publish a name until the end of the test."""
        listening = self.directory.publish(SOCK_SEQPACKET, name, 1)
        self.addCleanup(listening.close)
        return listening

    def test_namesOfKilledProcessesAreRemoved(self) -> None:
        """Publishing a name removes those of killed processes with the same first word, and no others."""
        killed = [self.publish(name) for name in ("client-1", "client-2", "server-1")]
        self.publish("client-3")
        for each in killed:
            each.close()  # as the system does when it kills a process
        self.publish("client-4")
        names = {"client-3", "client-4", "server-1"}
        self.assertEqual(set(os.listdir(self.directory.path)), names)

    def test_namesDoNotAccumulate(self) -> None:
        """However many processes are killed, few of their names remain."""
        for number in range(100):
            self.publish(f"client-{number}").close()
            self.assertLessEqual(len(os.listdir(self.directory.path)), 5)

    def test_nameOfKilledProcessIsReplaced(self) -> None:
        """A name of a killed process can be published, even if it is not among those that are removed."""
        self.patch(socketdirectory, "_SWEPT", 0)
        self.publish("soft-1").close()
        self.publish("soft-1")
        self.assertRaises(FileExistsError, self.publish, "soft-1")

    def test_unreadableDirectory(self) -> None:
        """A name is published although the names of others cannot be read."""
        self.patch(os, "listdir", lambda path: os.stat("/nonexistent"))
        self.publish("client-1")
