"""
Reads the state of the kernel's SMC sockets: sock_diag(7) of the family C{AF_SMC}.

The layouts are those of C{linux/smc_diag.h}, in native byte order.
"""

from __future__ import annotations

import struct
from collections.abc import Iterator
from dataclasses import dataclass
from errno import ENOENT
from typing import Final, NamedTuple

from txrdma.error import WireError
from txrdma.iba.types import GID
from txrdma.ports.netlink import attributesOf, DUMP
from txrdma.ports.netlinkqueries import diagnose
from txrdma.smc.kernel.sockets import AF_SMC
from txrdma.smc.wire.clc import Diagnosis

_REQUEST: Final = struct.Struct("=BxxB48x")  # struct smc_diag_req: family, extensions, identity of a socket
_ANSWER: Final = struct.Struct("=xBB49xIQ")  # struct smc_diag_msg: state, mode, user, inode
_CURSOR: Final = struct.Struct("=xxHI")  # struct smc_diag_cursor: wraps, count
_SIZES: Final = struct.Struct("=IIII")  # token, send buffer, receive ring, peer's ring
_GROUP: Final = struct.Struct("=x64sB40s40sB")  # struct smc_diag_lgrinfo: device, port, GID, peer's GID, role
_FALLBACK: Final = struct.Struct("=II")  # struct smc_diag_fallback: reason, peer's diagnosis

_CONNECTION: Final = 1
_LINK_GROUP: Final = 2
_FELL_BACK: Final = 5
_EXTENSIONS: Final = 1 << (_CONNECTION - 1) | 1 << (_LINK_GROUP - 1) | 1 << (_FELL_BACK - 1)

_MODES: Final = {0: "SMC-R", 1: "TCP", 2: "SMC-D"}

_STATES: Final = {
    1: "ACTIVE",
    2: "INIT",
    7: "CLOSED",
    10: "LISTEN",
    20: "PEERCLOSEWAIT1",
    21: "PEERCLOSEWAIT2",
    22: "APPCLOSEWAIT1",
    23: "APPCLOSEWAIT2",
    24: "APPFINCLOSEWAIT",
    25: "PEERFINCLOSEWAIT",
    26: "PEERABORTWAIT",
    27: "PROCESSABORT",
}


class DiagCursor(NamedTuple):
    """An SMC cursor: the wraps of a ring modulo 65536, and the bytes since the last wrap."""

    wraps: int
    position: int

    def bytesOf(self, size: int) -> int:
        """Return the number of bytes that have passed through a ring of this size, modulo 65536 rings."""
        return self.wraps * size + self.position


@dataclass(frozen=True, slots=True)
class Buffers:
    """
    The ring buffers and cursors of a connection: C{SMC_DIAG_CONNINFO}.

    @ivar token: the local alert token.
    @ivar sendBuffer: size of the kernel's send buffer, in bytes.
    @ivar size: size of the local ring (RMB element), in bytes.
    @ivar peerSize: size of the peer's ring, in bytes.
    @ivar arrived: the peer's producer cursor, in the local ring.
    @ivar peerConsumed: the peer's consumer cursor, in the peer's ring.
    @ivar produced: the local producer cursor, in the peer's ring.
    @ivar consumed: the local consumer cursor, in the local ring.
    """

    token: int
    sendBuffer: int
    size: int
    peerSize: int
    arrived: DiagCursor
    peerConsumed: DiagCursor
    produced: DiagCursor
    consumed: DiagCursor

    @classmethod
    def decode(cls, data: bytes) -> Buffers:
        """Decode the value of the attribute; raises L{WireError}."""
        if len(data) < _SIZES.size + 4 * _CURSOR.size:
            raise WireError("smc_diag_conninfo", len(data), "it is truncated")
        cursors = (
            DiagCursor(*_CURSOR.unpack_from(data, _SIZES.size + number * _CURSOR.size)) for number in range(4)
        )
        return cls(*_SIZES.unpack_from(data), *cursors)


@dataclass(frozen=True, slots=True)
class DiagLinkGroup:
    """
    The link of a connection: C{SMC_DIAG_LGRINFO}.

    @ivar device: name of the RDMA device.
    @ivar port: number of the port.
    @ivar gid: GID of the port.
    @ivar peerGID: GID of the peer's port.
    @ivar role: C{"client"} or C{"server"}, the local role in the link group.
    """

    device: str
    port: int
    gid: GID
    peerGID: GID
    role: str

    @classmethod
    def decode(cls, data: bytes) -> DiagLinkGroup:
        """Decode the value of the attribute; raises L{WireError}."""
        if len(data) < _GROUP.size:
            raise WireError("smc_diag_lgrinfo", len(data), "it is truncated")
        device, port, gid, peerGID, role = _GROUP.unpack_from(data)
        try:
            local, remote = (GID.fromString(_text(each)) for each in (gid, peerGID))
        except ValueError as error:
            raise WireError("smc_diag_lgrinfo", 0, str(error)) from None
        return cls(_text(device), port, local, remote, "server" if role else "client")


@dataclass(frozen=True, slots=True)
class KernelSocket:
    """
    An SMC socket of the kernel.

    @ivar mode: C{"SMC-R"}, C{"SMC-D"} or C{"TCP"}.
    @ivar state: Linux's name of the connection's state.
    @ivar inode: inode of the socket, see C{fstat}.
    @ivar fallbackReason: why it fell back to TCP, None if it did not.
    @ivar peerDiagnosis: why the peer declined, None if it did not.
    @ivar buffers: None for a socket without an SMC-R or SMC-D connection.
    @ivar group: None for a socket without an SMC-R connection.
    """

    mode: str
    state: str
    inode: int
    fallbackReason: Diagnosis | None = None
    peerDiagnosis: Diagnosis | None = None
    buffers: Buffers | None = None
    group: DiagLinkGroup | None = None

    @classmethod
    def decode(cls, payload: bytes) -> KernelSocket:
        """Decode a message of sock_diag; raises L{WireError}."""
        if len(payload) < _ANSWER.size:
            raise WireError("smc_diag_msg", len(payload), "it is truncated")
        state, mode, _user, inode = _ANSWER.unpack_from(payload)
        found = attributesOf(payload, _ANSWER.size, "smc_diag_msg")
        reason = peer = 0
        if len(found.get(_FELL_BACK, b"")) >= _FALLBACK.size:
            reason, peer = _FALLBACK.unpack_from(found[_FELL_BACK])
        return cls(
            mode=_MODES.get(mode, f"mode {mode}"),
            state=_STATES.get(state, f"state {state}"),
            inode=inode,
            fallbackReason=Diagnosis(reason) if reason else None,
            peerDiagnosis=Diagnosis(peer) if peer else None,
            buffers=Buffers.decode(found[_CONNECTION]) if _CONNECTION in found else None,
            group=DiagLinkGroup.decode(found[_LINK_GROUP]) if _LINK_GROUP in found else None,
        )


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("ascii", "replace")


def kernelSockets() -> Iterator[KernelSocket]:
    """Return all SMC sockets of this network namespace; raises OSError or L{WireError}."""
    # The kernel can't select single ones.
    try:
        for message in diagnose(_REQUEST.pack(AF_SMC, _EXTENSIONS), DUMP):
            yield KernelSocket.decode(message.payload)
    except OSError as error:
        module = " (module smc_diag)" if error.errno == ENOENT else ""
        reason = f"can't list the kernel's SMC sockets{module}: {error.strerror}"
        raise OSError(error.errno, reason) from error
