"""
The state of a connection of the kernel's SMC, as the kernel tells it.
"""

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
from txrdma.kit.logs import Seldom
from txrdma.smc.kernel.sockdiag import Diagnosed, diagnosed
from txrdma.smc.kernel.sockets import hasFallenBack
from txrdma.smc.stream.connectionstatus import socketToDict, tcpCounts
from txrdma.smc.wire.clc import Diagnosis

if TYPE_CHECKING:
    from twisted.internet.tcp import Connection

_seldom = Seldom(Logger())

_FRESH: Final = 0.02
"""
Seconds for which an answer of the kernel's is good.

It tells of all sockets at once; who looks at a thousand connections need not ask a thousand times.
"""


class _Table:
    """The kernel's SMC sockets by inode, as they were a moment ago."""

    def __init__(self) -> None:
        self._askedAt = 0.0
        self._sockets: dict[int, Diagnosed] = {}

    def find(self, inode: int) -> Diagnosed | None:
        now = monotonic()
        if now - self._askedAt > _FRESH or inode not in self._sockets:
            try:
                self._sockets = {each.inode: each for each in diagnosed()}
            except (OSError, WireError) as error:
                _seldom.warn("sock_diag", "can't ask for SMC sockets: {error}", error=error)
                self._sockets = {}
            self._askedAt = now
        return self._sockets.get(inode)


_table = _Table()


@implementer(ISMCStatus)
class KernelStatus:
    """
    A connection of the kernel's SMC; its attributes are at most 20 ms old, and stay as they were at its end.

    The kernel has no counts of RDMA writes and CDC messages for one connection, and does not tell its version
    of SMC-R. It counts the wraps of the ring buffers modulo 65536: with rings of 64 KiB, the numbers of bytes
    begin anew after 4 GiB.

    @ivar isTCP: the connection has fallen back to TCP.
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
        """
        @param transport: connected.
        """
        self._transport = weakref.ref(transport)
        self._last: Diagnosed | None = None
        self.role = role
        self.isTCP = hasFallenBack(transport.socket)

    def _told(self) -> Diagnosed | None:
        connected: socket.socket | None = getattr(self._transport(), "socket", None)
        if connected is not None:
            self._last = _table.find(os.fstat(connected.fileno()).st_ino) or self._last
        return self._last

    @property
    def mode(self) -> str:
        """The mode C{'SMC-R'}, C{'SMC-D'} or C{'TCP'}; C{'SMC'} while the kernel can't say which."""
        told = None if self.isTCP else self._told()
        return "TCP" if self.isTCP else told.mode if told else "SMC"

    @property
    def fallbackReason(self) -> Diagnosis | None:
        """Reason for which the connection fell back to TCP, None when it did not."""
        told = self._told()
        return told.fallbackReason if told else None

    @property
    def peerDiagnosis(self) -> Diagnosis | None:
        """Reason for which the peer declined, None when it did not."""
        told = self._told()
        return told.peerDiagnosis if told else None

    @property
    def device(self) -> str:
        """The name of the RDMA device that carries the connection, C{''} on TCP."""
        told = self._told()
        return told.group.device if told and told.group else ""

    @property
    def linkGroup(self) -> str:
        """The two GIDs of the connection's link: the kernel's answer has no number for the group."""
        told = self._told()
        return f"{told.group.gid} to {told.group.peerGID}" if told and told.group else ""

    @property
    def state(self) -> str:
        """The state of the connection's close state machine, by Linux's name for it."""
        told = None if self.isTCP else self._told()
        return "TCP" if self.isTCP else told.state if told else ""

    @property
    def bytesSent(self) -> int:
        """Bytes that are or were in the peer's ring; on TCP, those that the peer has acknowledged."""
        if self.isTCP:
            return tcpCounts(self._transport())[0]
        told = self._told()
        return told.buffers.produced.bytesOf(told.buffers.peerSize) if told and told.buffers else 0

    @property
    def bytesReceived(self) -> int:
        """Bytes that were read from our ring; on TCP, those that our kernel has received."""
        if self.isTCP:
            return tcpCounts(self._transport())[1]
        told = self._told()
        return told.buffers.consumed.bytesOf(told.buffers.size) if told and told.buffers else 0

    def toDict(self) -> dict[str, object]:
        """The status as a dictionary for JSON, as L{ISMCStatus} asks, without what is not counted."""
        answer = socketToDict(self, self.role, self._transport())
        for name in ("version", "eid", "writes", "messagesSent", "messagesReceived"):
            answer.pop(name, None)
        told = self._last
        if told is not None and told.buffers is not None:
            buffers = told.buffers
            answer["token"], answer["sendBuffer"] = buffers.token, buffers.sendBuffer
            answer["bufferSize"], answer["peerBufferSize"] = buffers.size, buffers.peerSize
            answer["cursors"] = {
                "produced": buffers.produced.bytesOf(buffers.peerSize),
                "peerConsumed": buffers.peerConsumed.bytesOf(buffers.peerSize),
                "arrived": buffers.arrived.bytesOf(buffers.size),
                "consumed": buffers.consumed.bytesOf(buffers.size),
            }
        if told is not None and told.group is not None:
            group = told.group
            answer["link"] = {"port": group.port, "gid": str(group.gid), "peerGID": str(group.peerGID)}
        return answer
