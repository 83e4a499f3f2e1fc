"""The status of each connection of an C{smc:} endpoint, and a list of the live ones in this process."""

from __future__ import annotations

import os
import socket
import weakref
from collections import Counter
from collections.abc import Callable
from enum import Enum, Flag
from operator import attrgetter
from typing import Any, cast, TYPE_CHECKING

from zope.interface import alsoProvides, implementer

from twisted.internet.interfaces import ITransport
from twisted.python.failure import Failure

from txrdma.interfaces import ISMCStatus, ISMCTransport
from txrdma.kit.connectionlog import connectionFields, connectionLog, describe
from txrdma.smc.common import counting
from txrdma.smc.common.names import diagnosisName
from txrdma.smc.stream.stream import Stream
from txrdma.smc.stream.tcpcounts import tcpCounts, unwritten
from txrdma.smc.wire.cdc import ProducerFlags, StateFlags
from txrdma.smc.wire.clc import enterpriseName

if TYPE_CHECKING:
    from twisted.internet.tcp import Connection

_ATTRIBUTES = (
    "mode",
    "version",
    "eid",
    "device",
    "route",
    "linkGroup",
    "state",
    "bytesSent",
    "bytesReceived",
    "writes",
    "messagesSent",
    "messagesReceived",
)

_SUMMED = (
    *("bytesSent", "bytesReceived", "writes", "flushes"),
    *("reads", "messagesSent", "messagesReceived", "blocks"),
)
"""Counters that are added to the sums of the process when a connection ends."""

_summedOf = attrgetter(*_SUMMED)

_NOTHING_MORE = int(StateFlags.DONE_WRITING | StateFlags.CLOSED | StateFlags.ABNORMAL_CLOSE)
"""State flags after which the peer writes no more."""

_live: weakref.WeakSet[ITransport] = weakref.WeakSet()


def register(transport: Any) -> None:
    """Count a transport with an C{smc} attribute; L{connections} returns it as long as it is alive."""
    _live.add(transport)
    smc = transport.smc
    counting.connections[smc.kind, smc.role] += 1


def forget(transport: Any) -> None:
    """Add the counters of an ended connection to the sums. Unknown transports are ignored."""
    if transport in _live:
        _live.discard(transport)
        smc = transport.smc
        if isinstance(smc, SMCStatus):
            smc.addTo(counting.ended)
            counting.blockedSeconds[0] += smc.blockedSeconds


def logEnd(transport: Any, reason: Failure, seconds: Callable[[], float]) -> None:
    """
    Log the end of a connection; call it while the status can still be read.

    @param seconds: returns the duration of the connection, if the end is logged.
    """
    connectionLog.ended(reason, lambda: _fieldsOf(transport, seconds()))


def _fieldsOf(transport: Any, seconds: float) -> dict[str, Any]:
    smc: SMCStatus | TCPStatus = transport.smc
    return connectionFields(
        "smc",
        smc.role,
        "tcp" if smc.mode == "TCP" else smc.route,
        (transport.getHost(), transport.getPeer()),
        (smc.bytesSent, smc.bytesReceived),
        seconds,
        reasonName(smc) or "",
    )


def reasonName(smc: ISMCStatus) -> str | None:
    """Return the reason of a fallback, and the peer's diagnosis, as text; None without a fallback."""
    reason = diagnosisName(smc.fallbackReason)
    if reason is not None and smc.peerDiagnosis is not None:
        reason += f" ({diagnosisName(smc.peerDiagnosis)})"
    return reason


def connections() -> list[ISMCTransport]:
    """Return the live connections of C{smc:} endpoints in this process, including those on TCP."""
    found = []
    for transport in list(_live):
        if getattr(transport, "connected", True):
            found.append(cast(ISMCTransport, transport))
    return found


def statuses() -> list[ISMCStatus]:
    """Return the status of each live connection of an C{smc:} endpoint in this process."""
    return [transport.smc for transport in connections()]


def inodeOf(transport: Connection | None) -> int:
    """Return the inode of a TCP connection's socket, by which tools identify it; 0 when it is closed."""
    connection: socket.socket | None = getattr(transport, "socket", None)
    try:
        return 0 if connection is None else os.fstat(connection.fileno()).st_ino
    except (AttributeError, OSError):
        return 0  # closed just now, or in a test


def names(flags: Flag) -> list[str]:
    """Return the names of the flags that are set, the highest bit first."""
    return [each.name for each in type(flags) if each in flags and each.name]


def _toDict(status: ISMCStatus, role: str) -> dict[str, object]:
    """Return the part of C{toDict} that is the same in every mode."""
    answer: dict[str, object] = {"role": role, **{name: getattr(status, name) for name in _ATTRIBUTES}}
    answer["fallbackReason"] = diagnosisName(status.fallbackReason)
    answer["peerDiagnosis"] = diagnosisName(status.peerDiagnosis)
    return answer


def socketToDict(status: ISMCStatus, role: str, transport: Connection | None) -> dict[str, object]:
    """Return the part of C{toDict} for connections with a socket; only the role without a transport."""
    if transport is None:
        return {"role": role}
    answer = _toDict(status, role)
    try:
        answer["inode"] = inodeOf(transport)
        answer["local"] = describe(transport.getHost())
        answer["peer"] = describe(transport.getPeer())
    except (AttributeError, OSError):
        pass  # a closed TCP transport has no socket
    return answer


@implementer(ISMCStatus)
class TCPStatus:
    """The status of a connection over plain TCP, whose bytes are counted by the kernel."""

    __slots__ = ("_received", "_sent", "_transport", "fallbackReason", "peerDiagnosis", "role")

    mode = kind = "TCP"
    version = 0
    eid = ""
    state = "TCP"
    device = ""
    route = ""
    linkGroup = ""
    writes = 0
    messagesSent = 0
    messagesReceived = 0

    fallbackReason: Enum | None
    peerDiagnosis: Enum | int | None

    def __init__(
        self,
        transport: Connection,
        role: str,
        fallbackReason: Enum | None,
        peerDiagnosis: Enum | int | None = None,
        leftover: int = 0,
    ) -> None:
        self._transport = weakref.ref(transport)
        self.role = role
        self.fallbackReason = fallbackReason
        self.peerDiagnosis = peerDiagnosis
        self._sent, self._received = tcpCounts(transport)
        self._sent += unwritten(transport)
        self._received -= leftover

    @property
    def bytesSent(self) -> int:
        """Bytes that the kernel has taken, without CLC messages."""
        return max(tcpCounts(self._transport())[0] - self._sent, 0)

    @property
    def bytesReceived(self) -> int:
        """Bytes read from the kernel, without CLC messages."""
        return max(tcpCounts(self._transport())[1] - self._received, 0)

    def discount(self, length: int) -> None:
        """Exclude received bytes from the count, because they were a late CLC message."""
        self._received += length

    def toDict(self) -> dict[str, object]:
        return socketToDict(self, self.role, self._transport())


@implementer(ISMCStatus)
class SMCStatus:
    """The status of a connection over SMC-R."""

    __slots__ = ("_stream",)

    mode = "SMC-R"
    fallbackReason: Enum | None = None
    peerDiagnosis: Enum | int | None = None

    version = property(attrgetter("_stream.link.agreement.version"))
    device = property(attrgetter("_stream.link.device"))
    linkGroup = property(attrgetter("_stream.link.group.name"))
    state = property(attrgetter("_stream.state"))
    bytesSent = property(attrgetter("_stream.flow.ring.produced"))
    messagesSent = property(attrgetter("_stream.flow.messagesSent"))
    messagesReceived = property(attrgetter("_stream.flow.messagesReceived"))

    def __init__(self, stream: Stream) -> None:
        self._stream = stream

    @property
    def bytesReceived(self) -> int:
        """Bytes delivered to the application, without those that arrived after it closed the connection."""
        flow = self._stream.flow
        return flow.ring.consumed - flow.dropped

    @property
    def kind(self) -> str:
        """The mode with the version: C{'SMC-R 1'} or C{'SMC-R 2'}."""
        return f"{self.mode} {self.version}"

    @property
    def role(self) -> str:
        """The local role in the TCP connection: C{'client'} or C{'server'}."""
        return self._stream.role.word

    @property
    def eid(self) -> str:
        return enterpriseName(self._stream.link.agreement.eid)

    @property
    def route(self) -> str:
        """The transport of the bytes: C{'shared-memory'}, C{'rocev2'} or C{'verbs'}."""
        return self._stream.link.route

    @property
    def writes(self) -> int:
        flow = self._stream.flow
        return flow.writes + flow.wraps

    flushes = property(attrgetter("_stream.flow.writes"))
    """Number of writes to the peer's ring, each of them by one RDMA write or by two."""

    reads = property(attrgetter("_stream.flow.reads"))
    """Number of times that bytes were delivered to the application."""

    blocks = property(attrgetter("_stream.blocks"))
    """Number of times that the peer's ring was too full for the written bytes."""

    blockedSeconds = property(attrgetter("_stream.blockedSeconds"))
    """Seconds for which bytes waited for free space in the peer's ring."""

    def addTo(self, sums: Counter[str]) -> None:
        """Add the counters to the sums of the process, by the names of their attributes."""
        for name, value in zip(_SUMMED, _summedOf(self), strict=True):
            sums[name] += value

    @property
    def unread(self) -> int:
        """Bytes in the local ring that the application has not received yet."""
        return self._stream.flow.ring.readable

    @property
    def shutdown(self) -> str:
        """The closed directions, in the notation of C{smcss}: C{'<->'}: none; C{'R-W'}: both."""
        flow = self._stream.flow
        isReadOver = flow.discardsInput or flow.peerState & _NOTHING_MORE
        return ("R" if isReadOver else "<") + "-" + ("W" if flow.isEnding or not flow.isOpen else ">")

    def toDict(self) -> dict[str, object]:
        stream = self._stream
        flow, link, ring = stream.flow, stream.link, stream.flow.ring
        answer = _toDict(self, stream.role.value)
        answer["inode"] = inodeOf(stream.tcp)
        answer["shutdown"] = self.shutdown
        answer["token"], answer["peerToken"] = stream.token, ring.token
        answer["link"] = {
            "number": link.life.number,
            "port": link.port.candidate.port,
            "gid": str(link.port.candidate.gid),
            "peerGID": "" if link.life.remote is None else str(link.life.remote.gid),
        }
        answer["flags"] = {
            "received": [*names(ProducerFlags(ring.peerFlags)), *names(StateFlags(flow.peerState & 0xFF))],
            "sent": [
                *names(ProducerFlags.WRITE_BLOCKED if ring.blocked else ProducerFlags(0)),
                *names(StateFlags(flow.flags)),
            ],
        }
        answer["blocks"], answer["blockedSeconds"] = self.blocks, round(self.blockedSeconds, 6)
        answer["local"], answer["peer"] = describe(stream.host), describe(stream.peer)
        answer["backlog"] = flow.backlog
        answer["bufferSize"] = ring.size
        answer["peerBufferSize"] = ring.peerSize
        answer["cursors"] = {
            "produced": ring.produced,
            "peerConsumed": ring.peerConsumed,
            "arrived": ring.arrived,
            "consumed": ring.consumed,
            "reported": ring.reported,
        }
        return answer


def markTCP(
    transport: Connection,
    role: str,
    fallbackReason: Enum | None,
    peerDiagnosis: Enum | int | None = None,
    leftover: int = 0,
) -> TCPStatus:
    """
    Make a TCP transport provide L{ISMCTransport}, and count it.

    @param leftover: number of bytes of the protocol that were read during the handshake.
    """
    status = TCPStatus(transport, role, fallbackReason, peerDiagnosis, leftover)
    transport.smc = status  # type: ignore[attr-defined]  # what ISMCTransport promises
    alsoProvides(transport, ISMCTransport)
    reason = reasonName(status) or "none"
    if peerDiagnosis is not None and not getattr(peerDiagnosis, "known", False):  # peers can send any number
        reason = f"{diagnosisName(fallbackReason)} (unknown)"
    counting.fallbacks[role, reason] += 1
    register(transport)
    return status
