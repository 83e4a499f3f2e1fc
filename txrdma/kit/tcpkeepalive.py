"""
Keepalive of TCP: the kernel probes an idle connection, and ends it if the peer's host has died.

Without values of its own, a connection is first probed after two hours.
"""

from __future__ import annotations

import socket
from typing import Any

from twisted.internet.interfaces import ITCPTransport
from twisted.protocols.policies import ProtocolWrapper


def keepAlive(transport: Any, idleSeconds: int, intervalSeconds: int, probes: int) -> None:
    """
    Enable keepalive of a connection. A transport that does not use TCP is left unchanged.

    @param transport: one of Twisted's, also with TLS.
    @param idleSeconds: seconds of silence before the first probe.
    @param intervalSeconds: seconds between probes.
    @param probes: number of probes without an answer after which the connection ends.
    """
    if not ITCPTransport.providedBy(transport):
        return
    transport.setTcpKeepAlive(True)
    while isinstance(transport, ProtocolWrapper):  # TLS
        transport = transport.transport
    handle: Any = transport.getHandle() if hasattr(transport, "getHandle") else None
    if hasattr(handle, "setsockopt") and getattr(handle, "family", None) != socket.AF_UNIX:
        for option, value in (
            (socket.TCP_KEEPIDLE, idleSeconds),
            (socket.TCP_KEEPINTVL, intervalSeconds),
            (socket.TCP_KEEPCNT, probes),
        ):
            handle.setsockopt(socket.IPPROTO_TCP, option, value)
