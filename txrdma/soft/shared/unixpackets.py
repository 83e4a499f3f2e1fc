"""
Packets with descriptors over a UNIX socket, between processes of one user, or of users who share a directory.

See unix(7): SOCK_SEQPACKET, SCM_RIGHTS.
"""

from __future__ import annotations

import array
import errno
import fcntl
import os
import select
import socket
import sys
import termios
from collections import deque
from collections.abc import Callable, Sequence
from typing import Final, Protocol

from zope.interface import implementer

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IReadWriteDescriptor
from twisted.python.failure import Failure

from txrdma.error import ResourceExhausted
from txrdma.kit.delayedcalls import Timer
from txrdma.soft.shared._rendezvous import LONGEST, meetingName, rendezvousName
from txrdma.unix.socketdirectory import DirectoryListener, SocketDirectory
from txrdma.unix.sockets import (
    connectTo,
    Credentials,
    EXHAUSTED,
    isSameUser,
    LocalListener,
    peerOf,
    Reactor,
)

_NO_SIGNAL: Final[int] = getattr(socket, "MSG_NOSIGNAL", 0x4000)  # PyPy's socket does not have it

_MOST_DESCRIPTORS: Final = 8
_MOST_QUEUED: Final = 4096

_MOST_QUEUED_BYTES: Final = 64 << 20
"""Maximum number of bytes of queued messages. One with data that the peer has requested has up to 32 KiB."""

_AT_ONCE: Final = 32
_RING: Final = (1).to_bytes(8, sys.byteorder)
_PEER_CLOSED: Final = "the peer has ended, or closed its device"
_LATER: Final = (errno.EAGAIN, errno.ENOBUFS, errno.ETOOMANYREFS)

_CROWDED_SECONDS: Final = 0.1
"""Seconds until a message is sent again after ETOOMANYREFS (too many descriptors in flight)."""

_PURPOSE: Final = "shared memory of RDMA devices"
"""Purpose of the connections, for the log."""


class MessageReceiver(Protocol):
    """The receiver of messages of a L{Line}."""

    def messageReceived(self, message: bytes, descriptors: list[int]) -> None:
        """Process a message; descriptors left in the list are closed when this returns."""

    def descriptorsLost(self, message: bytes) -> None:
        """Process a message whose descriptors are lost, because this process has no more."""

    def ended(self, reason: str) -> None:
        """Handle the end of the connection."""


class Line(Protocol):
    """A connection to another process of this host, for messages with descriptors, in order."""

    process: Credentials

    @property
    def isClosed(self) -> bool:
        """Whether the connection is closed."""

    @property
    def isUnread(self) -> bool:
        """Whether the peer has not read all messages yet, for example because its process is stopped."""

    @property
    def hasPeerEnded(self) -> bool:
        """Whether the peer has closed the connection, although its messages may not be received yet."""

    def start(self, receiver: MessageReceiver) -> None:
        """Start receiving."""

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        """
        Send one message, now or as soon as the socket accepts it.

        @raise ResourceExhausted: it has to wait, and no descriptor is left; nothing is sent.
        """

    def setReading(self, isReading: bool) -> None:
        """Pause or resume receiving."""

    def setWriting(self, isWriting: bool) -> None:
        """Pause or resume sending queued messages."""

    def receiveNow(self) -> None:
        """Receive all pending messages now, without the reactor, and close if the peer has ended."""

    def close(self, reason: str = "") -> None:
        """Close the connection, and drop queued messages; with a reason the receiver is notified."""


class Listening(Protocol):
    """A listening socket."""

    def setReading(self, isReading: bool) -> None:
        """Pause or resume accepting."""

    def close(self) -> None:
        """Close it. Idempotent."""


class LocalRendezvous(Protocol):
    """Connects processes of one host and user, and wakes them."""

    def listen(self, address: str, port: int, accepted: Callable[[Line], None]) -> Listening:
        """Listen by the name of this IP address and UDP port; raises OSError if it is in use."""

    def connect(self, address: str, port: int) -> Line | None:
        """
        Connect to the process with that device; None without one of this user.

        @raise ResourceExhausted: there may be one, but no descriptor or memory is left.
        """

    def ring(self, doorbell: int) -> None:
        """Ring a doorbell of a peer."""


def ring(doorbell: int) -> None:
    """Write to an eventfd. It blocks only if a process of this user has filled it, and made it blocking."""
    try:
        os.write(doorbell, _RING)
    except OSError:
        pass  # it is readable already, or the peer has closed it


class UnixRendezvous:
    """Rendezvous at abstract UNIX sockets."""

    def __init__(self, reactor: Reactor) -> None:
        self._reactor = reactor

    def listen(self, address: str, port: int, accepted: Callable[[Line], None]) -> Listening:
        name, accept = rendezvousName(address, port), self._passingTo(accepted)
        return LocalListener(self._reactor, socket.SOCK_SEQPACKET, name, accept, _PURPOSE)

    def _passingTo(self, accepted: Callable[[Line], None]) -> Callable[[socket.socket], None]:
        """Return a function that passes accepted sockets on as lines."""
        return lambda sock: accepted(PacketSocket(self._reactor, sock))

    def connect(self, address: str, port: int) -> Line | None:
        try:
            sock = connectTo(socket.SOCK_SEQPACKET, rendezvousName(address, port))
        except OSError as error:
            if error.errno in EXHAUSTED:
                raise _exhausted(address, port, error) from error
            return None  # there is no process
        if isSameUser(peerOf(sock).user):
            return PacketSocket(self._reactor, sock)
        sock.close()
        return None

    ring = staticmethod(ring)


def _exhausted(address: str, port: int, error: OSError) -> ResourceExhausted:
    return ResourceExhausted(f"no UNIX socket to the process at {address} port {port}: {error}")


class DirectoryRendezvous(UnixRendezvous):
    """Rendezvous at UNIX sockets in a directory, across network namespaces."""

    def __init__(self, reactor: Reactor, directory: str) -> None:
        super().__init__(reactor)
        self._directory = SocketDirectory(directory)

    def listen(self, address: str, port: int, accepted: Callable[[Line], None]) -> Listening:
        name, accept = meetingName(address, port), self._passingTo(accepted)
        return DirectoryListener(
            self._reactor, self._directory, socket.SOCK_SEQPACKET, name, accept, _PURPOSE
        )

    def connect(self, address: str, port: int) -> Line | None:
        try:
            connected = self._directory.connect(socket.SOCK_SEQPACKET, meetingName(address, port))
        except OSError as error:
            raise _exhausted(address, port, error) from error
        return None if connected is None else PacketSocket(self._reactor, connected)


@implementer(IReadWriteDescriptor)
class PacketSocket:
    """A L{Line} by a UNIX socket that keeps messages apart."""

    def __init__(self, reactor: Reactor, sock: socket.socket) -> None:
        self.process = peerOf(sock)
        self._reactor = reactor
        self._socket = sock
        self._receiver: MessageReceiver
        self._queued: deque[tuple[bytes, list[int]]] = deque()
        self._queuedBytes = 0
        self.isClosed = self._isCrowded = False
        self._retry = Timer(reactor)

    def start(self, receiver: MessageReceiver) -> None:
        self._receiver = receiver
        self._reactor.addReader(self)

    @property
    def isWaiting(self) -> bool:
        """Whether messages are queued, because the peer does not read."""
        return bool(self._queued)

    @property
    def isUnread(self) -> bool:
        if self.isClosed:
            return False
        unread = array.array("i", [0])
        fcntl.ioctl(self._socket, termios.TIOCOUTQ, unread)
        return bool(self._queued or unread[0])

    @property
    def hasPeerEnded(self) -> bool:
        if self.isClosed:
            return True
        poller = select.poll()
        poller.register(self._socket, 0)  # POLLHUP and POLLERR are always reported
        return bool(poller.poll(0))

    def fileno(self) -> int:
        return self._socket.fileno()

    def logPrefix(self) -> str:
        return "txrdma.soft.shared.sharedmemoryport"

    def send(self, message: bytes, descriptors: Sequence[int] = ()) -> None:
        if self.isClosed:
            return
        if self._queued or not self._sent(message, descriptors):
            self._queue(message, descriptors)

    def _queue(self, message: bytes, descriptors: Sequence[int]) -> None:
        isLong = self._queuedBytes + len(message) > _MOST_QUEUED_BYTES
        if isLong or len(self._queued) >= _MOST_QUEUED:
            self.close("the peer does not read")
            return
        copies: list[int] = []
        try:
            for descriptor in descriptors:
                copies.append(os.dup(descriptor))
        except OSError as error:
            _closeAll(copies)
            raise ResourceExhausted(f"no descriptor for a message to another process: {error}") from error
        self._queued.append((message, copies))
        self._queuedBytes += len(message)
        self._reactor.addWriter(self)

    def _sent(self, message: bytes, descriptors: Sequence[int]) -> bool:
        """Try to send; False when the message must be queued."""
        try:
            ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", descriptors))]
            self._socket.sendmsg([message], ancillary if descriptors else [], _NO_SIGNAL)
        except OSError as error:
            if error.errno in _LATER:
                self._isCrowded = error.errno == errno.ETOOMANYREFS
                return False
            self.close(_PEER_CLOSED if error.errno == errno.EPIPE else f"sending failed: {error}")
        return True

    def setReading(self, isReading: bool) -> None:
        if self.isClosed:
            return
        if isReading:
            self._reactor.addReader(self)
        else:
            self._reactor.removeReader(self)

    def setWriting(self, isWriting: bool) -> None:
        if isWriting and self._queued:
            self._reactor.addWriter(self)
        else:
            self._retry.stop()
            self._reactor.removeWriter(self)

    def doWrite(self) -> None:
        while self._queued:
            message, descriptors = self._queued.popleft()
            self._queuedBytes -= len(message)
            if not self._sent(message, descriptors):
                self._queued.appendleft((message, descriptors))
                self._queuedBytes += len(message)
                if self._isCrowded:
                    self._reactor.removeWriter(self)
                    self._retry.start(_CROWDED_SECONDS, self._reactor.addWriter, self)
                return
            _closeAll(descriptors)
        self._reactor.removeWriter(self)

    def receiveNow(self) -> None:
        self._receiveMost(_MOST_QUEUED)

    def doRead(self) -> None:
        self._receiveMost(_AT_ONCE)

    def _receiveMost(self, limit: int) -> None:
        for _ in range(limit):
            if self.isClosed or not self._receive():
                return

    def _receive(self) -> bool:
        """Receive a message with its descriptors, which are closed after the call; False if there is none."""
        ancillaryBytes = socket.CMSG_SPACE(_MOST_DESCRIPTORS * 4)
        try:
            message, ancillary, flags, _ = self._socket.recvmsg(
                LONGEST + 1, ancillaryBytes, socket.MSG_CMSG_CLOEXEC
            )
        except BlockingIOError:
            return False
        except OSError as error:
            self.close(f"receiving failed: {error}")
            return False
        descriptors: list[int] = []
        for level, kind, content in ancillary:
            if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
                numbers = array.array("i")
                numbers.frombytes(content[: len(content) // 4 * 4])
                descriptors += numbers
        try:
            if not message:
                self.close(_PEER_CLOSED)
            elif flags & socket.MSG_CTRUNC and len(descriptors) < _MOST_DESCRIPTORS:
                # There was space for more, but no free descriptor. Other threads may have freed some since.
                self._receiver.descriptorsLost(message)
            elif flags & (socket.MSG_TRUNC | socket.MSG_CTRUNC):
                self.close("the message is too long")
            else:
                self._receiver.messageReceived(message, descriptors)
        finally:
            _closeAll(descriptors)
        return True

    def connectionLost(self, reason: Failure) -> None:
        """Close, unless the reactor ends: then the owner may still send, and closes."""
        if not reason.check(ConnectionLost, ConnectionDone):
            self.close(reason.getErrorMessage())

    def close(self, reason: str = "") -> None:
        if self.isClosed:
            return
        self.isClosed = True
        self._retry.stop()
        self._reactor.removeReader(self)
        self._reactor.removeWriter(self)
        self._socket.close()
        for _, descriptors in self._queued:
            _closeAll(descriptors)
        self._queued.clear()
        self._queuedBytes = 0
        if reason:
            self._receiver.ended(reason)


def _closeAll(descriptors: list[int]) -> None:
    while descriptors:
        os.close(descriptors.pop())
