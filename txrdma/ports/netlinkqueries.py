"""
Queries by netlink sockets, which wait for the kernel's answer.

See netlink(7), sock_diag(7). L{txrdma.ports.netlink} encodes and decodes the messages.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Iterator
from typing import Final

from txrdma.ports.netlink import DONE, ERROR, errorOf, messages, NetlinkMessage, request

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20


def query(sock: socket.socket, kind: int, payload: bytes, flags: int = 0) -> Iterator[NetlinkMessage]:
    """Send a request, and yield the messages of the answer; raises OSError, or L{txrdma.error.WireError}."""
    sock.send(request(kind, payload, flags=flags))
    while True:
        for message in messages(sock.recv(1 << 16)):
            if message.type in (ERROR, DONE):
                code = errorOf(message)
                if code:
                    raise OSError(code, os.strerror(code))
                return
            yield message
        if not flags:
            return


def diagnose(payload: bytes, flags: int = 0) -> Iterator[NetlinkMessage]:
    """Query sockets of this network namespace by sock_diag; raises OSError if there are none."""
    kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as sock:
        sock.setblocking(False)  # the kernel queues each part of the answer before recv
        yield from query(sock, _SOCK_DIAG_BY_FAMILY, payload, flags)
