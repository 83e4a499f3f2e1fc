"""
Names that a device reserves at its IP addresses: its share, and the service IDs that it serves.

A name is that of an abstract UNIX socket, which only one process of a network namespace can have, and which
the kernel releases when the process ends. See unix(7).
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable, Sequence
from contextlib import ExitStack
from secrets import SystemRandom
from typing import Final

from txrdma.error import DeviceUnavailable, ResourceExhausted

SHARES: Final = 254
"""The number of devices that can share port 4791 of an address."""


def hostName(address: str, *parts: object) -> bytes:
    """The abstract socket name of something at an IP address, for processes of our user."""
    return "/".join(map(str, ("\0txrdma/host", os.geteuid(), address, *parts))).encode()


def _reserved(name: bytes) -> socket.socket | None:
    """The socket with that name; None if it is taken. Raises L{DeviceUnavailable}."""
    made = None
    try:
        made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
        made.bind(name)
    except OSError as error:
        if made is not None:
            made.close()
        if error.errno != errno.EADDRINUSE:
            raise DeviceUnavailable(f"no UNIX socket: {error}") from error
        return None
    return made


def reserveShare(addresses: Sequence[str]) -> tuple[int, Callable[[], None]]:
    """
    Reserve a share that no device has at any of these addresses.

    @return: the share, and a function that releases it.
    @raise ResourceExhausted: all are taken.
    """
    shares = list(range(1, SHARES + 1))
    SystemRandom().shuffle(shares)  # a new process should not get the numbers of one that has just ended
    for share in shares:
        with ExitStack() as undo:
            for address in addresses:
                made = _reserved(hostName(address, "share", share))
                if made is None:
                    break
                undo.callback(made.close)
            else:
                return share, undo.pop_all().close
    raise ResourceExhausted(f"{SHARES} devices have the address {' or '.join(addresses)} already")


def claimService(address: str, serviceID: int) -> Callable[[], None]:
    """
    Claim a service ID at an address.

    @return: a function that releases it.
    @raise ResourceExhausted: another device has it.
    """
    made = _reserved(hostName(address, "service", f"{serviceID:#x}"))
    if made is None:
        raise ResourceExhausted(f"service ID {serviceID:#x} of {address} is in use by another program")
    return made.close
