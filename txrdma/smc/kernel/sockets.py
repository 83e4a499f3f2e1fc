"""
Stream sockets of the kernel's SMC, and what they differ in from those of TCP.

An C{AF_SMC} socket takes and gives addresses of IPv4 or IPv6, so Python handles it as a socket of that family
once it is made. (C{socket(AF_INET, SOCK_STREAM, IPPROTO_SMC)} comes with the same module from Linux 6.11 on,
so it is never there alone; and sock_diag has no addresses of such sockets.)

Closing or shutting down such a socket waits in the kernel, up to two minutes and even if the socket does not
block otherwise, until the peer's buffer has had room for all that was sent (C{smc_close_stream_wait}).
"""

from __future__ import annotations

import errno
import fcntl
import socket
import struct
from typing import Final

AF_SMC: Final = 43

_PROTOCOLS: Final = {socket.AF_INET: 0, socket.AF_INET6: 1}
"""C{SMCPROTO_SMC} and C{SMCPROTO_SMC6}."""

_SIOCOUTQNSD: Final = 0x894B
_NUMBER: Final = struct.Struct("=i")

_MISSING: Final = (errno.EAFNOSUPPORT, errno.EPROTONOSUPPORT, errno.ESOCKTNOSUPPORT)

_ADVICE: Final = "this kernel offers no SMC sockets (AF_SMC); as root, load its module: modprobe smc"


def smcSocket(family: int) -> socket.socket:
    """
    A stream socket of the kernel's SMC that does not block.

    @param family: that of its addresses, C{AF_INET} or C{AF_INET6}.
    @raise OSError: there is none; C{EAFNOSUPPORT} says what to do about a kernel that has no such sockets.
    """
    try:
        made = socket.socket(AF_SMC, socket.SOCK_STREAM, _PROTOCOLS[socket.AddressFamily(family)])
    except OSError as error:
        if error.errno in _MISSING:
            raise OSError(errno.EAFNOSUPPORT, _ADVICE) from error
        raise
    dressed = socket.socket(family, socket.SOCK_STREAM, 0, fileno=made.detach())
    dressed.setblocking(False)
    return dressed


def hasFallenBack(connected: socket.socket) -> bool:
    """Whether a connected SMC socket is one of TCP: from the fallback on, the descriptor leads to that."""
    return connected.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL) == socket.IPPROTO_TCP


def unsent(connected: socket.socket) -> int:
    """The bytes that were written and wait in the kernel until the peer's buffer has room for them."""
    told = fcntl.ioctl(connected, _SIOCOUTQNSD, bytes(_NUMBER.size))
    return int(_NUMBER.unpack(told)[0])
