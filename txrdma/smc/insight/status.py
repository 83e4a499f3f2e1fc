"""
The state of each connection of an C{smc:} endpoint, and which of them are alive in this process.
"""

from __future__ import annotations

import socket
import struct
import weakref
from collections import Counter
from enum import Enum
from typing import cast, Protocol, TYPE_CHECKING

from zope.interface import alsoProvides, implementer

from twisted.internet.interfaces import IAddress, ITransport

from txrdma.interfaces import ISMCStatus, ISMCTransport
from txrdma.smc.handshake._offer import Agreement
from txrdma.smc.stream._flow import Flow
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

_TCP_INFO_BYTES = struct.Struct("=120xQQ")
"""C{tcpi_bytes_acked} and C{tcpi_bytes_received} of Linux's C{struct tcp_info}."""

_live: weakref.WeakSet[ITransport] = weakref.WeakSet()

fallbacks: Counter[str] = Counter()
"""The number of connections of this process that fell back to TCP, by the name of the reason."""


class _Group(Protocol):
    @property
    def name(self) -> str: ...


class _Link(Protocol):
    @property
    def agreement(self) -> Agreement: ...
    @property
    def device(self) -> str: ...
    @property
    def route(self) -> str: ...
    @property
    def group(self) -> _Group: ...


class _Stream(Protocol):
    """The end of a connection over SMC-R, as far as its status is concerned."""

    @property
    def link(self) -> _Link: ...
    @property
    def flow(self) -> Flow: ...
    @property
    def role(self) -> Enum: ...
    @property
    def state(self) -> str: ...
    @property
    def host(self) -> IAddress: ...
    @property
    def peer(self) -> IAddress: ...


def register(transport: ITransport) -> None:
    """Let L{connections} know of a transport with an C{smc} attribute, as long as it is alive."""
    _live.add(transport)


def forget(transport: ITransport) -> None:
    """The connection has ended. Unknown ones are ignored."""
    _live.discard(transport)


def connections() -> list[ISMCTransport]:
    """The live connections of C{smc:} endpoints in this process, those on TCP included."""
    found = []
    for transport in list(_live):
        if getattr(transport, "connected", True):
            found.append(cast(ISMCTransport, transport))
    return found


def statuses() -> list[ISMCStatus]:
    """The status of each connection of an C{smc:} endpoint that is alive in this process."""
    return [transport.smc for transport in connections()]


def describe(address: IAddress) -> str:
    """An IP address and its port as text: C{127.0.0.1:80} or C{[::1]:80}."""
    host, port = getattr(address, "host", "?"), getattr(address, "port", "?")
    return f"[{host}]:{port}" if ":" in str(host) else f"{host}:{port}"


def tcpCounts(transport: Connection | None) -> tuple[int, int]:
    """Bytes of a TCP connection that the peer's kernel has acknowledged, and that ours has received."""
    connection: socket.socket | None = getattr(transport, "socket", None)
    if connection is None:
        return 0, 0
    try:
        info = connection.getsockopt(socket.IPPROTO_TCP, socket.TCP_INFO, _TCP_INFO_BYTES.size)
        return cast("tuple[int, int]", _TCP_INFO_BYTES.unpack(info))
    except (AttributeError, OSError, struct.error):
        return 0, 0  # not a TCP socket of Linux: a test's, for example


def diagnosisName(diagnosis: Enum | int | None) -> str | None:
    """A diagnosis by its name, or by its number in hexadecimal when it has none."""
    if diagnosis is None:
        return None
    return diagnosis.name if isinstance(diagnosis, Enum) else f"{diagnosis:08x}"


def _toDict(status: ISMCStatus, role: str) -> dict[str, object]:
    """The part of C{toDict} that is the same in every mode."""
    answer: dict[str, object] = {"role": role, **{name: getattr(status, name) for name in _ATTRIBUTES}}
    answer["fallbackReason"] = diagnosisName(status.fallbackReason)
    answer["peerDiagnosis"] = diagnosisName(status.peerDiagnosis)
    return answer


@implementer(ISMCStatus)
class TCPStatus:
    """
    A connection that runs plain TCP.

    Its bytes are counted by the kernel: nothing of ours stands between the transport and the protocol.
    """

    __slots__ = ("_received", "_sent", "_transport", "fallbackReason", "peerDiagnosis", "role")

    mode = "TCP"
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
    ) -> None:
        self._transport = weakref.ref(transport)
        self.role = role
        self.fallbackReason = fallbackReason
        self.peerDiagnosis = peerDiagnosis
        self._sent, self._received = tcpCounts(transport)

    @property
    def bytesSent(self) -> int:
        """Bytes that the peer's kernel has acknowledged since the fallback."""
        return max(tcpCounts(self._transport())[0] - self._sent, 0)

    @property
    def bytesReceived(self) -> int:
        """Bytes that our kernel has received since the fallback, or shortly before."""
        return max(tcpCounts(self._transport())[1] - self._received, 0)

    def toDict(self) -> dict[str, object]:
        """The status as a dictionary that JSON can carry, as L{ISMCStatus} asks."""
        transport = self._transport()
        if transport is None:
            return {"role": self.role}
        answer = _toDict(self, self.role)
        try:
            answer["local"] = describe(transport.getHost())
            answer["peer"] = describe(transport.getPeer())
        except (AttributeError, OSError):
            pass  # a closed TCP transport has no socket that it could ask
        return answer


@implementer(ISMCStatus)
class SMCStatus:
    """A connection that runs SMC-R."""

    __slots__ = ("_stream",)

    mode = "SMC-R"
    fallbackReason: Enum | None = None
    peerDiagnosis: Enum | int | None = None

    def __init__(self, stream: _Stream) -> None:
        self._stream = stream

    @property
    def version(self) -> int:
        """The version of SMC-R that the connection's link group speaks."""
        return self._stream.link.agreement.version

    @property
    def eid(self) -> str:
        """The enterprise ID that the two ends have in common, C{''} in version 1."""
        return enterpriseName(self._stream.link.agreement.eid)

    @property
    def device(self) -> str:
        """The name of the RDMA device that carries the connection."""
        return self._stream.link.device

    @property
    def route(self) -> str:
        """The way of the bytes: C{'shared-memory'}, C{'rocev2'} or C{'verbs'}."""
        return self._stream.link.route

    @property
    def linkGroup(self) -> str:
        """The name of the connection's link group."""
        return self._stream.link.group.name

    @property
    def state(self) -> str:
        """The state of the connection's close state machine, by Linux's name for it."""
        return self._stream.state

    @property
    def bytesSent(self) -> int:
        """Bytes that are in the peer's ring, or were."""
        return self._stream.flow.ring.produced

    @property
    def bytesReceived(self) -> int:
        """Bytes handed to the application."""
        return self._stream.flow.ring.consumed

    @property
    def writes(self) -> int:
        """The number of RDMA writes posted for the connection."""
        return self._stream.flow.writes

    @property
    def messagesSent(self) -> int:
        """The number of CDC messages sent on the connection."""
        return self._stream.flow.messagesSent

    @property
    def messagesReceived(self) -> int:
        """The number of CDC messages received on the connection."""
        return self._stream.flow.messagesReceived

    def toDict(self) -> dict[str, object]:
        """The status as a dictionary that JSON can carry, as L{ISMCStatus} asks."""
        stream = self._stream
        ring = stream.flow.ring
        answer = _toDict(self, stream.role.value)
        answer["local"], answer["peer"] = describe(stream.host), describe(stream.peer)
        answer["backlog"] = stream.flow.backlog
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
) -> TCPStatus:
    """Make a TCP transport provide L{ISMCTransport}, and count it."""
    status = TCPStatus(transport, role, fallbackReason, peerDiagnosis)
    transport.smc = status  # type: ignore[attr-defined]  # what ISMCTransport promises
    alsoProvides(transport, ISMCTransport)
    fallbacks[diagnosisName(fallbackReason) or "none"] += 1
    register(transport)
    return status
