"""
Shared by tests with processes that connect to the rendezvous of a device, and break its rules.
"""

from __future__ import annotations

import array
import socket
from collections.abc import Sequence

from txrdma.iba.types import GID
from txrdma.soft.device import SoftDevice
from txrdma.soft.shared._rendezvous import (
    DoorbellNotice,
    Hello,
    MAGIC,
    RendezvousKind,
    rendezvousName,
    VERSION,
)


def hello(address: str = "127.0.0.1", port: int = 9, version: int = VERSION) -> bytes:
    """Return the greeting of a device at this address."""
    kind = RendezvousKind.HELLO
    return Hello(kind=kind, magic=MAGIC, version=version, port=port, address=GID.fromIP(address)).encode()


def doorbell(number: int, kind: RendezvousKind = RendezvousKind.DOORBELL) -> bytes:
    """Return the announcement of a doorbell."""
    return DoorbellNotice(kind=kind, number=number).encode()


def connectedTo(device: SoftDevice, greeting: bytes = b"") -> socket.socket:
    """Return a connection to a device."""
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET | socket.SOCK_CLOEXEC)
    sock.connect(rendezvousName(device.address, device.port))
    if greeting:
        sock.send(greeting)
    return sock


def sendTo(sock: socket.socket, message: bytes, passed: Sequence[int] = ()) -> None:
    """Send a message with descriptors."""
    ancillary = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, array.array("i", passed))]
    sock.sendmsg([message], ancillary if passed else [])


def isClosed(sock: socket.socket) -> bool:
    """Return whether the device has closed the connection; discard what it has sent."""
    try:
        while sock.recv(1 << 17, socket.MSG_DONTWAIT):
            pass
        return True
    except BlockingIOError:
        return False
    except ConnectionResetError:
        return True
