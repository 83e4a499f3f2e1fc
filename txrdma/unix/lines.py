"""
Lines of text between two processes of a host, over a UNIX socket.

Lines of one reactor iteration are sent together, at its end or when L{MUCH} bytes are queued, since many
exchanges may share the socket.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

from zope.interface import implementer

from twisted.internet.interfaces import IReadWriteDescriptor
from twisted.python.failure import Failure

from txrdma.kit.delayedcalls import Timer
from txrdma.unix.sockets import Reactor

_READ: Final = 1 << 16
"""Maximum bytes that are read in one reactor iteration."""

LONGEST: Final = 256
"""Maximum bytes of a line; the connection is closed if the peer sends a longer one."""

MUCH: Final = 1024
"""Number of queued bytes from which they are sent immediately, so that the peer can process them."""

MOST_UNREAD: Final = 1 << 20
"""Maximum bytes that the peer may leave unread; the connection is closed if there are more."""


@implementer(IReadWriteDescriptor)
class Lines:
    """One end of a connection that carries lines. C{isOpen}: whether lines can be sent and received."""

    def __init__(
        self,
        reactor: Reactor,
        connection: socket.socket,
        received: Callable[[list[bytes]], None],
        ended: Callable[[], None],
    ) -> None:
        """
        @param connection: a connected, non-blocking socket, which this object closes.
        @param received: called with the lines received at once; it may close the connection.
        @param ended: called once when the connection is closed by either end.
        """
        self._reactor = reactor
        self._socket = connection
        self._received = received
        self._ended = ended
        self._rest = b""
        self._unsent = b""
        self._isSlow = False  # the socket was full in this iteration
        self._sending = Timer(reactor)
        self.isOpen = True
        reactor.addReader(self)

    def fileno(self) -> int:
        return self._socket.fileno()

    def logPrefix(self) -> str:
        return "txrdma.unix.lines"

    def wake(self) -> None:
        """Add the connection to the reactor again, after C{removeAll}."""
        self._reactor.addReader(self)
        if self._unsent:
            self._send()

    def send(self, line: bytes) -> None:
        """Send a line (without newline) at the end of this reactor iteration."""
        if self.isOpen:
            self._unsent += line + b"\n"
            self._sending.ensure(0, self._send)
            if len(self._unsent) >= MUCH and not self._isSlow:
                self._sendEarly()

    def _sendEarly(self) -> None:
        """Send queued lines now, as far as possible; L{_send} handles errors."""
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except OSError:
            pass
        self._isSlow = bool(self._unsent)

    def _send(self) -> None:
        """Send queued lines; continue when the socket is writable, and close it if the peer does not read."""
        self._sending.stop()
        self._isSlow = False
        if not self.isOpen:
            return
        try:
            if self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self.close()
            return
        if len(self._unsent) > MOST_UNREAD:
            self.close()
        elif self._unsent:
            self._reactor.addWriter(self)
        else:
            self._reactor.removeWriter(self)

    def doWrite(self) -> None:
        self._send()

    def doRead(self) -> None:
        try:
            data = self._socket.recv(_READ)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        if not data:
            self.close()
            return
        *lines, self._rest = (self._rest + data).split(b"\n")
        if any(len(line) > LONGEST for line in lines):
            self.close()
            return
        if lines:
            self._received(lines)
        if len(self._rest) > LONGEST:
            self.close()

    def connectionLost(self, reason: Failure) -> None:
        """Close, since the reactor disconnects all descriptors."""
        self.close()

    def release(self) -> socket.socket:
        """
        Remove the connection from the reactor, and return its socket.

        @raise ValueError: the connection is closed, or a line is only partly sent or received.
        """
        if not self.isOpen or self._rest or self._unsent:
            raise ValueError("the connection is closed, or a line is incomplete")
        self.isOpen = False
        self._reactor.removeReader(self)
        self._reactor.removeWriter(self)
        return self._socket

    def close(self) -> None:
        """Send queued lines if the socket has room, then close. Idempotent."""
        if not self.isOpen:
            return
        if self._unsent:
            try:
                self._socket.send(self._unsent)
            except OSError:
                pass  # the peer does not read, or has closed the connection
        self.isOpen = False
        self._unsent = b""
        self._sending.stop()
        self._reactor.removeReader(self)
        self._reactor.removeWriter(self)
        self._socket.close()
        self._ended()
