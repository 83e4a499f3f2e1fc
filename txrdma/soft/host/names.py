"""
Resources of devices at an IP address: the coordinator's socket name, service IDs, and shares.

A name is that of an abstract UNIX socket, which only one process of a network namespace can have, and which
the kernel releases when the process ends. See unix(7).
"""

from __future__ import annotations

import errno
import os
import socket
from collections.abc import Callable
from contextlib import ExitStack

from txrdma.error import DeviceUnavailable, ResourceExhausted
from txrdma.soft.core.netdev import portOfShare, SHARES
from txrdma.unix.sockets import connectTo, isSameUser, peerOf


def hostName(address: str, *parts: object) -> bytes:
    """Return the abstract socket name of a resource at an IP address, for processes of this user."""
    return "/".join(map(str, ("\0txrdma/host", os.geteuid(), address, *parts))).encode()


def _claimName(address: str, serviceID: int) -> bytes:
    return hostName(address, "service", f"{serviceID:#x}")


def claimService(address: str, serviceID: int) -> Callable[[], None]:
    """
    Claim a service ID at an address.

    @return: a function that releases it.
    @raise ResourceExhausted: another device has it.
    """
    with ExitStack() as undo:
        try:
            made = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
            undo.callback(made.close)
            made.bind(_claimName(address, serviceID))
            made.listen(1)  # for isClaimed, which connects; nothing is accepted
        except OSError as error:
            if error.errno != errno.EADDRINUSE:
                raise DeviceUnavailable(f"no UNIX socket: {error}") from error
            reason = f"service ID {serviceID:#x} of {address} is in use by another program"
            raise ResourceExhausted(f"{reason}; stop that, or choose another service or port") from error
        return undo.pop_all().close


def isClaimed(address: str, serviceID: int) -> bool:
    """Return whether a device at an address has claimed a service ID."""
    try:
        with connectTo(socket.SOCK_SEQPACKET, _claimName(address, serviceID)) as connected:
            return isSameUser(peerOf(connected).user)
    except OSError as error:
        return error.errno == errno.EAGAIN  # others have connected before, who are not accepted either


def isShareTaken(address: str, share: int) -> bool:
    """Return whether a device at an address has a share, by its UDP port."""
    if not 0 < share <= SHARES:
        return False
    try:
        with socket.socket(socket.AF_INET6 if ":" in address else socket.AF_INET, socket.SOCK_DGRAM) as trial:
            trial.bind((address, portOfShare(share)))
    except OSError as error:
        return error.errno == errno.EADDRINUSE
    return False
