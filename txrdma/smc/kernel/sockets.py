"""
Stream sockets of C{AF_SMC}, and their differences from TCP sockets.

An C{AF_SMC} socket uses addresses of IPv4 or IPv6, so Python handles it as a socket of that family once it is
created. (C{socket(AF_INET, SOCK_STREAM, IPPROTO_SMC)} was added to the same kernel module in Linux 6.11, so
it is never available alone; and sock_diag has no addresses of such sockets.)

Closing or shutting down such a socket blocks, up to two minutes and even if the socket is non-blocking, until
all bytes fit into the peer's buffer (C{smc_close_stream_wait}).
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
    Create a non-blocking SMC stream socket of an address family.

    @raise OSError: for C{EAFNOSUPPORT} the message explains how to load the kernel's module.
    """
    try:
        created = socket.socket(AF_SMC, socket.SOCK_STREAM, _PROTOCOLS[socket.AddressFamily(family)])
    except OSError as error:
        if error.errno in _MISSING:
            raise OSError(errno.EAFNOSUPPORT, _ADVICE) from error
        raise
    converted = socket.socket(family, socket.SOCK_STREAM, 0, fileno=created.detach())
    converted.setblocking(False)
    return converted


def hasFallenBack(connected: socket.socket) -> bool:
    """Return whether a connection has fallen back to TCP: the descriptor then refers to the TCP socket."""
    return connected.getsockopt(socket.SOL_SOCKET, socket.SO_PROTOCOL) == socket.IPPROTO_TCP


def unsent(connected: socket.socket) -> int:
    """Return the number of written bytes that do not fit into the peer's buffer yet."""
    count = fcntl.ioctl(connected, _SIOCOUTQNSD, bytes(_NUMBER.size))
    return int(_NUMBER.unpack(count)[0])
