"""Listeners on abstract UNIX sockets, with real ones."""

from __future__ import annotations

import errno
import os
import resource
import socket
from typing import cast

from twisted.internet.testing import MemoryReactorClock
from twisted.logger import capturedLogs
from twisted.python.runtime import platform
from twisted.trial.unittest import SynchronousTestCase

from txrdma.unix import sockets as unixsockets
from txrdma.unix.sockets import Credentials, LocalListener, PAUSE_SECONDS, peerOf, Reactor


class ListenerTests(SynchronousTestCase):
    if not platform.isLinux():
        skip = "abstract UNIX sockets are available on Linux only"

    def setUp(self) -> None:
        self.reactor = MemoryReactorClock()
        self.accepted: list[socket.socket] = []
        self.name = f"\0txrdma/test-{os.getpid()}"
        self.listener = LocalListener(
            cast(Reactor, self.reactor), socket.SOCK_STREAM, self.name, self.accepted.append, "a test"
        )
        self.addCleanup(self.closeAll)
        self.addCleanup(self.listener.close)

    def closeAll(self) -> None:
        for each in self.accepted:
            each.close()

    def connect(self) -> socket.socket:
        client = socket.socket(socket.AF_UNIX)
        self.addCleanup(client.close)
        client.connect(self.name)
        return client

    def test_socketIsClosedIfReactorCannotReadIt(self) -> None:
        sockets: list[LocalListener] = []

        def addReader(reader: LocalListener) -> None:
            sockets.append(reader)
            raise OSError(errno.ENOMEM, os.strerror(errno.ENOMEM))

        self.patch(self.reactor, "addReader", addReader)
        arguments = (socket.SOCK_STREAM, f"{self.name}-other", self.accepted.append, "a test")
        self.assertRaises(OSError, LocalListener, self.reactor, *arguments)
        self.assertEqual([each.fileno() for each in sockets], [-1])

    def test_connectionOfSameUserIsPassedOnWithItsUser(self) -> None:
        client = self.connect()
        self.listener.doRead()
        [accepted] = self.accepted
        self.assertEqual(peerOf(accepted), (os.getpid(), os.geteuid()))
        self.assertEqual(peerOf(client), (os.getpid(), os.geteuid()))
        self.assertFalse(accepted.getblocking())

    def test_connectionOfAnotherUserIsClosed(self) -> None:
        self.patch(unixsockets, "peerOf", lambda connected: Credentials(1, os.geteuid() + 1))
        client = self.connect()
        self.listener.doRead()
        self.assertEqual(self.accepted, [])
        self.assertEqual(client.recv(1), b"")

    def test_raisingCallbackClosesOnlyItsConnection(self) -> None:
        def fail(sock: socket.socket) -> None:
            self.listener._accepted = self.accepted.append
            raise ZeroDivisionError

        self.listener._accepted = fail
        client, other = self.connect(), self.connect()
        self.listener.doRead()
        self.assertEqual(len(self.flushLoggedErrors(ZeroDivisionError)), 1)
        self.assertEqual((client.recv(1), len(self.accepted)), (b"", 1))
        other.sendall(b"x")
        self.assertEqual(self.accepted[0].recv(1), b"x")

    def test_callbackThatClosesListenerLeavesNothing(self) -> None:
        def accepted(sock: socket.socket) -> None:
            sock.close()
            self.listener.close()

        self.connect()
        self.patch(self.listener, "_accepted", accepted)
        with capturedLogs() as logs:
            self.listener.doRead()
        self.assertEqual((self.reactor.getReaders(), self.reactor.getDelayedCalls(), logs), ([], [], []))

    def test_listenerWithoutDescriptorsAcceptsBacklogLater(self) -> None:
        self.connect()
        next_ = os.dup(0)
        os.close(next_)
        soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
        resource.setrlimit(resource.RLIMIT_NOFILE, (next_, hard))
        try:
            self.listener.doRead()
            self.assertNotIn(self.listener, self.reactor.getReaders())
            self.reactor.advance(PAUSE_SECONDS)
            self.assertIn(self.listener, self.reactor.getReaders())
            self.listener.doRead()
            self.assertNotIn(self.listener, self.reactor.getReaders())
        finally:
            resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        self.assertEqual(self.accepted, [])
        self.reactor.advance(PAUSE_SECONDS)
        self.listener.doRead()
        self.assertEqual(len(self.accepted), 1)

    def test_closedListenerThatWaitsForDescriptorsLeavesNothing(self) -> None:
        self.listener._pauseAccepting(OSError(24, "Too many open files"))
        self.listener.close()
        self.listener.close()
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        self.assertEqual(self.reactor.getReaders(), [])
        self.assertEqual(self.listener.fileno(), -1)
