"""
Local ports of clients that bind before they connect.

A client that announces a connection must know its local port before it connects, so it binds its socket. The
kernel would choose only ports that no connection has used in the last minute, and programs that connect often
would run out of ports. So ports are drawn at random here, and addresses of old connections are reused
(SO_REUSEADDR), as when connecting without binding.

A drawn port may have a connection to the same server, so that C{connect} fails. Then the kernel chooses a
port without connections: if a client has 10,000, many random ports in a row may be in use.
"""

from __future__ import annotations

import errno
import random
import socket
from contextlib import suppress
from functools import lru_cache
from typing import Any, Final

_PORTS_DRAWN: Final = 64
"""Number of random ports to try before the kernel chooses one."""


@lru_cache(1)
def _clientPorts() -> tuple[range, frozenset[int]]:
    """Return the range of ports for clients, and the reserved ports; see ip(7)."""
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
        low, high = 32768, 60999  # Linux's defaults
    return range(low, high + 1), frozenset(reserved)


def bindSomewhere(sock: socket.socket, host: str, avoid: int, isUnused: bool = False) -> int:
    """
    Bind to a local port, perhaps one with connections, and return it; raises OSError.

    @param avoid: a port that would connect the client to itself.
    @param isUnused: prefer a port without connections; other sockets may share it afterwards.
    """
    address: tuple[Any, ...] = (host, 0)
    if ":" in host:  # resolves the interface of a link-local address
        address = socket.getaddrinfo(host, 0, sock.family, socket.SOCK_STREAM)[0][4]
    if isUnused:
        with suppress(OSError):  # all ports have connections
            sock.bind(address)
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            return int(sock.getsockname()[1])
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    ports, reserved = _clientPorts()
    for _ in range(_PORTS_DRAWN):
        port = random.choice(ports)
        if port == avoid or port in reserved:
            continue
        try:
            sock.bind((address[0], port, *address[2:]))
            return port
        except OSError as error:
            if error.errno not in (errno.EADDRINUSE, errno.EACCES):
                raise
    sock.bind(address)
    return int(sock.getsockname()[1])
