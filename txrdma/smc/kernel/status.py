"""The status of a connection with the kernel's SMC."""

from __future__ import annotations

import os
import socket
import weakref
from time import monotonic
from typing import Final, TYPE_CHECKING

from zope.interface import implementer

from twisted.logger import Logger

from txrdma.error import WireError
from txrdma.interfaces import ISMCStatus
from txrdma.kit.logs import errorText, RateLimitedLogger
from txrdma.smc.kernel.sockdiag import KernelSocket, kernelSockets
from txrdma.smc.kernel.sockets import hasFallenBack
from txrdma.smc.stream.connectionstatus import socketToDict
from txrdma.smc.stream.tcpcounts import tcpCounts
from txrdma.smc.wire.clc import Diagnosis

if TYPE_CHECKING:
    from twisted.internet.tcp import Connection

_rateLimited = RateLimitedLogger(Logger())

_CACHE_SECONDS: Final = 0.02
"""Seconds for which a reply of the kernel, which lists all sockets, is used for all connections."""


class _SocketCache:
    """The kernel's SMC sockets by inode."""

    def __init__(self) -> None:
        self._requestedAt = 0.0
        self._sockets: dict[int, KernelSocket] = {}

    def find(self, inode: int) -> KernelSocket | None:
        now = monotonic()
        if now - self._requestedAt > _CACHE_SECONDS or inode not in self._sockets:
            try:
                self._sockets = {each.inode: each for each in kernelSockets()}
            except (OSError, WireError) as error:
                _rateLimited.warn("sock_diag", "can't list SMC sockets: {error}", error=errorText(error))
                self._sockets = {}
            self._requestedAt = now
        return self._sockets.get(inode)


_cache = _SocketCache()


@implementer(ISMCStatus)
class KernelStatus:
    """
    The status of one connection, at most 20 ms old. After the connection's end it remains unchanged.

    The kernel provides neither the version of SMC-R nor the numbers of RDMA writes and CDC messages of a
    connection. It counts the wraps of ring buffers modulo 65536: with rings of 64 KiB, the numbers of bytes
    restart from 0 after 4 GiB.

    @ivar isTCP: whether the connection has fallen back to TCP.
    """

    __slots__ = ("_last", "_transport", "isTCP", "role")

    kind = "kernel"
    version = 0
    eid = ""
    route = "kernel"
    writes = 0
    messagesSent = 0
    messagesReceived = 0

    def __init__(self, transport: Connection, role: str) -> None:
        self._transport = weakref.ref(transport)
        self._last: KernelSocket | None = None
        self.role = role
        self.isTCP = hasFallenBack(transport.socket)

    def _query(self) -> KernelSocket | None:
        connected: socket.socket | None = getattr(self._transport(), "socket", None)
        if connected is not None:
            self._last = _cache.find(os.fstat(connected.fileno()).st_ino) or self._last
        return self._last

    @property
    def mode(self) -> str:
        """The mode C{'SMC-R'}, C{'SMC-D'} or C{'TCP'}; C{'SMC'} if the kernel does not list the socket."""
        found = None if self.isTCP else self._query()
        return "TCP" if self.isTCP else found.mode if found else "SMC"

    @property
    def fallbackReason(self) -> Diagnosis | None:
        found = self._query()
        return found.fallbackReason if found else None

    @property
    def peerDiagnosis(self) -> Diagnosis | None:
        found = self._query()
        return found.peerDiagnosis if found else None

    @property
    def device(self) -> str:
        found = self._query()
        return found.group.device if found and found.group else ""

    @property
    def linkGroup(self) -> str:
        """The two GIDs of the connection's link: sock_diag has no number of the link group."""
        found = self._query()
        return f"{found.group.gid} to {found.group.peerGID}" if found and found.group else ""

    @property
    def state(self) -> str:
        found = None if self.isTCP else self._query()
        return "TCP" if self.isTCP else found.state if found else ""

    @property
    def bytesSent(self) -> int:
        """Bytes written to the peer's ring; on TCP, bytes that the kernel has taken."""
        if self.isTCP:
            return tcpCounts(self._transport())[0]
        found = self._query()
        return found.buffers.produced.bytesOf(found.buffers.peerSize) if found and found.buffers else 0

    @property
    def bytesReceived(self) -> int:
        """Bytes read from the local ring; on TCP, bytes read from the kernel."""
        if self.isTCP:
            return tcpCounts(self._transport())[1]
        found = self._query()
        return found.buffers.consumed.bytesOf(found.buffers.size) if found and found.buffers else 0

    def toDict(self) -> dict[str, object]:
        """Return the status for JSON, see L{ISMCStatus}, without counts that the kernel does not provide."""
        answer = socketToDict(self, self.role, self._transport())
        for name in ("version", "eid", "writes", "messagesSent", "messagesReceived"):
            answer.pop(name, None)
        found = self._last
        if found is not None and found.buffers is not None:
            buffers = found.buffers
            answer["token"], answer["sendBuffer"] = buffers.token, buffers.sendBuffer
            answer["bufferSize"], answer["peerBufferSize"] = buffers.size, buffers.peerSize
            answer["cursors"] = {
                "produced": buffers.produced.bytesOf(buffers.peerSize),
                "peerConsumed": buffers.peerConsumed.bytesOf(buffers.peerSize),
                "arrived": buffers.arrived.bytesOf(buffers.size),
                "consumed": buffers.consumed.bytesOf(buffers.size),
            }
        if found is not None and found.group is not None:
            group = found.group
            answer["link"] = {"port": group.port, "gid": str(group.gid), "peerGID": str(group.peerGID)}
        return answer
