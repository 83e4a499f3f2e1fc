"""The bytes of a TCP connection, as Linux counts them."""

from __future__ import annotations

import socket
import struct
from fcntl import ioctl
from termios import FIONREAD, TIOCOUTQ
from typing import Any, Final

_TCP_INFO: Final = struct.Struct("=B119xQQ")
"""C{tcpi_state}, C{tcpi_bytes_acked} and C{tcpi_bytes_received} of Linux's C{struct tcp_info}."""

_NUMBER: Final = struct.Struct("=i")

_CLOSED: Final = 7
"""The state of a connection that was reset, or closed by both ends."""

_FIN_SENT: Final = frozenset((4, 5, 6, 9, 11))
"""FIN_WAIT1, FIN_WAIT2, TIME_WAIT, LAST_ACK, CLOSING."""

_FIN_RECEIVED: Final = frozenset((6, 8, 9, 11))
"""TIME_WAIT, CLOSE_WAIT, LAST_ACK, CLOSING."""


def tcpCounts(transport: Any) -> tuple[int, int]:
    """
    Return the bytes that the kernel has accepted from a transport of Twisted, and those read from the kernel.

    A client's first number is one too large, for its SYN. Both are 0 if the transport has no TCP socket of
    Linux.
    """
    connection: socket.socket | None = getattr(transport, "socket", None)
    if connection is None:
        return 0, 0
    try:
        raw = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO.size)
        state, acknowledged, received = _TCP_INFO.unpack(raw)
        queued, unread = (_asked(connection, request) for request in (TIOCOUTQ, FIONREAD))
    except (AttributeError, OSError, TypeError, struct.error):
        return 0, 0  # not a TCP socket of Linux, for example in a test
    hasClosedBoth = state == _CLOSED and getattr(transport, "_writeDisconnected", False)
    sent = acknowledged + queued - (hasClosedBoth or state in _FIN_SENT)
    return sent, received - unread - (hasClosedBoth or state in _FIN_RECEIVED)


def unwritten(transport: Any) -> int:
    """Return the number of bytes that a transport of Twisted has not passed to the kernel yet."""
    written = len(getattr(transport, "dataBuffer", b"")) - getattr(transport, "offset", 0)
    return int(written + getattr(transport, "_tempDataLen", 0))


def _asked(connection: socket.socket, request: int) -> int:
    """Return the number that an C{ioctl} of a socket returns."""
    number: int = _NUMBER.unpack(ioctl(connection, request, bytes(_NUMBER.size)))[0]
    return number
