"""
Sockets between processes that share memory, when the system is out of resources.
"""

from __future__ import annotations

import errno
import os
import resource
import socket
from typing import Any, cast

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.testing import MemoryReactorClock
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import ResourceExhausted
from txrdma.soft.shared import unixpackets
from txrdma.soft.shared.unixpackets import DirectoryRendezvous, PacketSocket, UnixRendezvous


class MessageReceiver:
    """Records why its connection has ended, and what has lost its descriptors."""

    def __init__(self) -> None:
        self.reason = ""
        self.lost: list[bytes] = []

    def descriptorsLost(self, message: bytes) -> None:
        self.lost.append(message)

    def ended(self, reason: str) -> None:
        self.reason = reason


class ScarceTests(SynchronousTestCase):
    """A connection whose message cannot be sent immediately."""

    def setUp(self) -> None:
        self.reactor = cast(Any, MemoryReactorClock())
        near, self.far = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_NONBLOCK)
        self.addCleanup(self.far.close)
        self.receiver = MessageReceiver()
        receiver: Any = self.receiver
        self.error = errno.ETOOMANYREFS
        self.isFailing = True
        self.near = near
        self.line = PacketSocket(self.reactor, self.scarce(near))
        self.addCleanup(self.line.close)
        self.line.start(receiver)

    def scarce(self, near: socket.socket) -> Any:
        """Return a socket whose sendmsg fails temporarily, and whose recvmsg finds no free descriptor."""
        test = self

        class Scarce:
            def __getattr__(self, name: str) -> Any:
                return getattr(near, name)

            def sendmsg(self, *arguments: Any) -> int:
                if test.isFailing:
                    raise OSError(test.error, "test")
                return near.sendmsg(*arguments)

            def recvmsg(self, *arguments: Any) -> Any:
                limits = resource.getrlimit(resource.RLIMIT_NOFILE)
                free = os.dup(near.fileno())
                os.close(free)
                resource.setrlimit(resource.RLIMIT_NOFILE, (free, limits[1]))
                try:
                    return near.recvmsg(*arguments)
                finally:
                    resource.setrlimit(resource.RLIMIT_NOFILE, limits)

        return Scarce()

    def test_tooManyDescriptorsInFlightRetriesLater(self) -> None:
        reading, writing = os.pipe()
        before = len(os.listdir("/proc/self/fd"))
        self.line.send(b"hello", [reading])
        self.assertIn(self.line, self.reactor.getWriters())
        self.line.doWrite()
        self.assertNotIn(self.line, self.reactor.getWriters())
        self.isFailing = False
        self.reactor.advance(0.2)
        self.assertIn(self.line, self.reactor.getWriters())
        self.line.send(b"later")
        self.line.doWrite()
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)
        message, descriptors, _, _ = socket.recv_fds(self.far, 100, 4)
        self.assertEqual((message, len(descriptors)), (b"hello", 1))
        self.assertEqual(self.far.recv(100), b"later")
        for each in (reading, writing, *descriptors):
            os.close(each)

    def test_closeCancelsRetry(self) -> None:
        self.line.send(b"hello")
        self.line.doWrite()
        self.line.close()
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_pauseStopsRetry(self) -> None:
        self.line.send(b"hello")
        self.line.doWrite()
        self.line.setWriting(False)
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        self.line.setWriting(True)
        self.assertIn(self.line, self.reactor.getWriters())

    def test_tooManyQueuedMessagesEndConnection(self) -> None:
        self.patch(unixpackets, "_MOST_QUEUED", 2)
        reading, writing = os.pipe()
        before = len(os.listdir("/proc/self/fd"))
        for _ in range(2):
            self.line.send(b"hello", [reading])
        self.assertFalse(self.line.isClosed)
        self.line.send(b"hello", [reading])
        self.assertEqual(self.receiver.reason, "the peer does not read")
        self.assertEqual(len(os.listdir("/proc/self/fd")), before - 1)
        for each in (reading, writing):
            os.close(each)

    def test_tooManyQueuedBytesEndConnection(self) -> None:
        self.patch(unixpackets, "_MOST_QUEUED_BYTES", 10_000)
        for _ in range(10):
            self.line.send(bytes(1000))
        self.assertEqual((self.line.isClosed, self.line._queuedBytes), (False, 10_000))
        self.line.doWrite()  # nothing is sent
        self.assertEqual(self.line._queuedBytes, 10_000)
        self.line.send(b"x")
        self.assertEqual((self.receiver.reason, self.line._queuedBytes), ("the peer does not read", 0))

    def test_undeliverableDescriptorsFailOneMessage(self) -> None:
        before = len(os.listdir("/proc/self/fd"))
        real = os.dup
        made: list[int] = []

        def dup(descriptor: int) -> int:
            if made:
                raise OSError(errno.EMFILE, "test")
            made.append(real(descriptor))
            return made[0]

        self.patch(os, "dup", dup)
        self.assertRaises(ResourceExhausted, self.line.send, b"hello", [0, 1])
        self.assertFalse(self.line.isWaiting or self.line.isClosed)
        self.assertEqual(len(os.listdir("/proc/self/fd")), before)

    def test_descriptorsMayBeFreedAfterOthersWereLost(self) -> None:
        """Another thread of this process closes some after a message was received."""
        reading, writing = os.pipe()
        socket.send_fds(self.far, [b"hello"], [reading])
        self.line.doRead()
        self.assertEqual((self.receiver.lost, self.receiver.reason), ([b"hello"], ""))
        for each in (reading, writing):
            os.close(each)

    def test_reactorEndsConnectionForErrorsOnly(self) -> None:
        for end in (ConnectionLost(), ConnectionDone()):
            self.line.connectionLost(Failure(end))
            self.assertFalse(self.line.isClosed)
        self.line.connectionLost(Failure(ValueError("a defect")))
        self.assertEqual(self.receiver.reason, "a defect")
        self.line.setReading(True)
        self.assertEqual(self.reactor.getReaders(), [])

    def test_peerIsNotTakenForMissingWithoutDescriptorForSocket(self) -> None:
        """Else one end would use UDP, and the other shared memory."""

        def refuse(*_: object) -> None:
            raise OSError(errno.EMFILE, "test")

        self.patch(socket, "socket", refuse)
        for rendezvous in (UnixRendezvous(self.reactor), DirectoryRendezvous(self.reactor, self.mktemp())):
            with self.assertRaises(ResourceExhausted):
                rendezvous.connect("127.0.0.1", 9)
