"""
Ports for clients that bind before they connect.

Who announces a connection has to know its port before it connects, so it binds its socket. To a port that the
kernel finds for that, no other connection may have gone in the last minute, which costs programs that connect
often all their ports; so ports are drawn here, and the addresses of old connections are used again
(SO_REUSEADDR), as connecting without binding does.
"""

from __future__ import annotations

import errno
import random
import socket
from functools import lru_cache
from typing import Any, Final

_PORTS_DRAWN: Final = 64
"""Ports to try before the kernel is asked for one, and said to be rather full."""


@lru_cache(1)
def _clientPorts() -> tuple[range, frozenset[int]]:
    """The ports that are meant for clients, and those among them that are not; see ip(7)."""
    reserved: set[int] = set()
    try:
        with open("/proc/sys/net/ipv4/ip_local_port_range") as file:
            low, high = map(int, file.read().split())
        with open("/proc/sys/net/ipv4/ip_local_reserved_ports") as file:
            for part in file.read().strip().split(","):
                first, _, last = part.partition("-")
                if first:
                    reserved.update(range(int(first), int(last or first) + 1))
    except (OSError, ValueError):
        low, high = 32768, 60999  # Linux's own
    return range(low, high + 1), frozenset(reserved)


def bindSomewhere(sock: socket.socket, host: str, avoid: int) -> None:
    """
    Bind to a local port, perhaps one with connections to other addresses; raises OSError.

    @param avoid: a port that would connect the client with itself.
    """
    address: tuple[Any, ...] = (host, 0)
    if sock.family != socket.AF_INET:  # the interface of a link-local address
        address = socket.getaddrinfo(host, 0, sock.family, socket.SOCK_STREAM)[0][4]
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    ports, reserved = _clientPorts()
    for _ in range(_PORTS_DRAWN):
        port = random.choice(ports)
        if port == avoid or port in reserved:
            continue
        try:
            sock.bind((address[0], port, *address[2:]))
            return
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    sock.bind(address)
