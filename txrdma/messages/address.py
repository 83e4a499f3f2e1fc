"""The addresses of the ends of message connections."""

from __future__ import annotations

from dataclasses import field
from typing import Any

from zope.interface import implementer

from twisted.internet.interfaces import IAddress

from txrdma.iba.types import GID, QPN
from txrdma.kit.values import frozen


@implementer(IAddress)
@frozen
class MessageAddress:
    """
    The address of an end or of a listener. Both ends of a connection have equal addresses for each end, but
    for zones.

    @ivar gid: of its port; None for a listener at all ports, and with C{btl:}.
    @ivar serviceID: of the listener; 0 with C{btl:}.
    @ivar host: IP address, or C{""}; a link-local one has its zone, as over TCP. C{port}: port number, or 0.
    @ivar qpn: the number of the queue pair of a peer; otherwise 0. It is not compared.
    @ivar privateData: private data of a peer's program, without zeros at the end if it sent no greeting;
        otherwise empty. It is not compared.
    @ivar scopeID: the number of the interface of a link-local IPv6 address; otherwise 0. It is not compared.
    """

    gid: GID | None = None
    serviceID: int = 0
    host: str = ""
    port: int = 0
    qpn: QPN = field(default=QPN(0), compare=False)
    privateData: bytes = field(default=b"", compare=False)
    scopeID: int = field(default=0, compare=False)


def addressOfTCP(address: Any) -> MessageAddress:
    """Return the address of an end that has a TCP connection at this address."""
    host, port = getattr(address, "host", ""), getattr(address, "port", 0)
    return MessageAddress(host=host, port=port, scopeID=getattr(address, "scopeID", 0))
