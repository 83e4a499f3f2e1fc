"""
Lines between two processes of a host, by a UNIX socket.

What is said in one turn of the reactor goes out together, at the end of that turn, or when it is much: many
conversations may share the socket, and each of them would cost a system call here and another one there.
"""

from __future__ import annotations

import socket
from collections.abc import Callable
from typing import Final

from zope.interface import implementer

from twisted.internet.interfaces import IDelayedCall, IReadWriteDescriptor
from twisted.python.failure import Failure

from txrdma.unix.sockets import Reactor

_READ: Final = 1 << 16
"""Bytes that are read before others on the reactor get their turn."""

LONGEST: Final = 256
"""Bytes of a line; who sends more has lost its way."""

MUCH: Final = 1024
"""Bytes that are sent before the turn ends: the other process can begin with them meanwhile."""

MOST_UNREAD: Final = 1 << 20
"""Bytes that the other process may leave unread."""


@implementer(IReadWriteDescriptor)
class Lines:
    """
    One end of the conversation.

    @ivar isOpen: lines may come, and be sent.
    """

    def __init__(
        self,
        reactor: Reactor,
        connection: socket.socket,
        heard: Callable[[list[bytes]], None],
        ended: Callable[[], None],
    ) -> None:
        """
        @param connection: connected, not blocking; it is closed with this.
        @param heard: takes what has come at once; it may close the conversation in the middle of that.
        @param ended: called once when the conversation is over, by whomever.
        """
        self._reactor = reactor
        self._socket = connection
        self._heard = heard
        self._ended = ended
        self._rest = b""
        self._unsent = b""
        self._isSlow = False  # the other process has not read all that was sent in this turn
        self._call: IDelayedCall | None = None
        self.isOpen = True
        reactor.addReader(self)

    def fileno(self) -> int:
        """The descriptor of the socket; -1 when closed."""
        return self._socket.fileno()

    def logPrefix(self) -> str:
        """The log prefix of these conversations."""
        return "txrdma.unix.lines"

    def wake(self) -> None:
        """Be part of the reactor, again or still: somebody may have removed everything, and told nobody."""
        self._reactor.addReader(self)
        if self._unsent:
            self._send()

    def say(self, line: bytes) -> None:
        """Send a line, without its end, when this turn of the reactor is over."""
        if self.isOpen:
            self._unsent += line + b"\n"
            call = self._call
            if call is None or not call.active():  # somebody may have cancelled it
                self._call = self._reactor.callLater(0, self._send)
            if len(self._unsent) >= MUCH and not self._isSlow:
                self._sendEarly()

    def _sendEarly(self) -> None:
        """Send what there is, if it can be sent; what goes wrong is met at the end of the turn."""
        try:
            self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except OSError:
            pass
        self._isSlow = bool(self._unsent)

    def _send(self) -> None:
        call, self._call = self._call, None
        if call is not None and call.active():
            call.cancel()
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
        """Go on sending."""
        self._send()

    def doRead(self) -> None:
        """Hear what has come."""
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
        if lines:
            self._heard(lines)
        if len(self._rest) > LONGEST:
            self.close()

    def connectionLost(self, reason: Failure) -> None:
        """The reactor is torn down."""
        self.close()

    def release(self) -> socket.socket:
        """
        Leave the reactor, and give the socket to whoever goes on with it.

        @raise ValueError: somebody has begun to say something that would be lost.
        """
        if not self.isOpen or self._rest or self._unsent:
            raise ValueError("the conversation is over, or in the middle of a line")
        self.isOpen = False
        self._reactor.removeReader(self)
        self._reactor.removeWriter(self)
        return self._socket

    def close(self) -> None:
        """Send what is left, if it can be sent at once; leave the reactor, then close. Twice is fine."""
        if not self.isOpen:
            return
        if self._unsent:
            try:
                self._socket.send(self._unsent)
            except OSError:
                pass  # the other process does not listen, or is gone
        self.isOpen = False
        self._unsent = b""
        call, self._call = self._call, None
        if call is not None and call.active():
            call.cancel()
        self._reactor.removeReader(self)
        self._reactor.removeWriter(self)
        self._socket.close()
        self._ended()
