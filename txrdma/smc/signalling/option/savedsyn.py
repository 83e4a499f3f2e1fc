"""
SYNs that the kernel keeps for a listener, which takes no program and no privilege: tcp(7), C{TCP_SAVE_SYN}.
"""

from __future__ import annotations

import socket
from typing import Final

from txrdma.smc.signalling.option._synoptions import hasOption

SAVE_SYN: Final = 27
SAVED_SYN: Final = 28
"""Options of TCP sockets in C{linux/tcp.h}, which Python has no names for."""

_LONGEST: Final = 512
"""Bytes of a SYN's headers: 60 of TCP, and of IPv4 60; those of IPv6 have no such bound."""


def saveSYNs(listener: socket.socket) -> None:
    """
    Have the kernel keep the SYN of each connection that the socket accepts, until L{takeSYN}.

    @raise OSError: the socket is not one of TCP.
    """
    listener.setsockopt(socket.IPPROTO_TCP, SAVE_SYN, 1)


def takeSYN(accepted: socket.socket) -> bytes:
    """
    The headers of the SYN that began a connection, from that of IP on. The kernel gives them away once.

    @return: empty if the listener did not ask for SYNs, or after a SYN cookie, or when they are taken.
    """
    try:
        return accepted.getsockopt(socket.IPPROTO_TCP, SAVED_SYN, _LONGEST)
    except OSError:  # EINVAL: longer than anybody needs; ENOPROTOOPT, ENOTCONN: not one of TCP
        return b""


def sawOption(accepted: socket.socket) -> bool:
    """Whether the SYN that began a connection had SMC's option. The answer can be had once."""
    return hasOption(takeSYN(accepted))
