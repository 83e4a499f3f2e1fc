"""
The kernel's word on its SMC sockets: sock_diag(7) of the family C{AF_SMC}.

The layouts are those of C{linux/smc_diag.h}, in this host's byte order.
"""

from __future__ import annotations

import socket
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from txrdma.error import WireError
from txrdma.iba.types import GID
from txrdma.ports.netlink import attributesOf, DONE, DUMP, ERROR, errorOf, messages, request
from txrdma.smc.kernel.sockets import AF_SMC
from txrdma.smc.wire.clc import Diagnosis

_NETLINK_SOCK_DIAG: Final = 4
_SOCK_DIAG_BY_FAMILY: Final = 20

_REQUEST: Final = struct.Struct("=BxxB48x")  # struct smc_diag_req: family, extensions, identity of a socket
_ANSWER: Final = struct.Struct("=xBB49xIQ")  # struct smc_diag_msg: state, mode, user, inode
_CURSOR: Final = struct.Struct("=xxHI")  # struct smc_diag_cursor: wraps, count
_SIZES: Final = struct.Struct("=IIII")  # token, send buffer, our buffer, the peer's buffer
_FLAGS: Final = struct.Struct("=BBBB")  # received: of the producer, of the connection; sent: the same
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


class Cursor(NamedTuple):
    """A position in a ring buffer, as SMC counts it: the wraps modulo 65536, and the bytes since the last."""

    wraps: int
    position: int

    def bytesOf(self, size: int) -> int:
        """The bytes that have passed through a ring of this size, while the wraps were counted."""
        return self.wraps * size + self.position


@dataclass(frozen=True, slots=True)
class Buffers:
    """
    The ring buffers of a connection, and how far each side is: C{SMC_DIAG_CONNINFO}.

    @ivar token: the alert token of our end.
    @ivar sendBuffer: bytes of the kernel's own ring for what is to be sent.
    @ivar size: bytes of our ring, which the peer writes into.
    @ivar peerSize: bytes of the peer's ring.
    @ivar arrived: how far the peer has written into our ring.
    @ivar peerConsumed: how far the peer has read its own.
    @ivar produced: how far we have written into the peer's ring.
    @ivar consumed: how far the application has read our ring.
    """

    token: int
    sendBuffer: int
    size: int
    peerSize: int
    arrived: Cursor
    peerConsumed: Cursor
    produced: Cursor
    consumed: Cursor

    @classmethod
    def decode(cls, data: bytes) -> Buffers:
        """
        Read the value of the attribute C{SMC_DIAG_CONNINFO}.

        @raise WireError: it is too short.
        """
        if len(data) < _SIZES.size + 4 * _CURSOR.size:
            raise WireError("smc_diag_conninfo", len(data), "it is cut off")
        cursors = (
            Cursor(*_CURSOR.unpack_from(data, _SIZES.size + number * _CURSOR.size)) for number in range(4)
        )
        return cls(*_SIZES.unpack_from(data), *cursors)


@dataclass(frozen=True, slots=True)
class LinkGroup:
    """
    The link that carries a connection: C{SMC_DIAG_LGRINFO}.

    @ivar device: the RDMA device's name.
    @ivar port: the number of its port.
    @ivar gid: the port's GID.
    @ivar peerGID: the GID of the peer's port.
    @ivar role: C{"client"} or C{"server"}, of our end in the group.
    """

    device: str
    port: int
    gid: GID
    peerGID: GID
    role: str

    @classmethod
    def decode(cls, data: bytes) -> LinkGroup:
        """
        Read the value of the attribute C{SMC_DIAG_LGRINFO}.

        @raise WireError: it is too short.
        """
        if len(data) < _GROUP.size:
            raise WireError("smc_diag_lgrinfo", len(data), "it is cut off")
        device, port, gid, peerGID, role = _GROUP.unpack_from(data)
        try:
            gids = [GID.fromString(_text(each)) for each in (gid, peerGID)]
        except ValueError as error:
            raise WireError("smc_diag_lgrinfo", 0, str(error)) from None
        return cls(_text(device), port, *gids, "server" if role else "client")


@dataclass(frozen=True, slots=True)
class Diagnosed:
    """
    One SMC socket of the kernel's.

    @ivar mode: C{"SMC-R"}, C{"SMC-D"} or C{"TCP"}.
    @ivar state: the state of the connection, by Linux's name for it.
    @ivar inode: the inode of the socket, as C{fstat} gives it.
    @ivar fallbackReason: why it fell back to TCP, None when it did not.
    @ivar peerDiagnosis: why the peer declined, None when it did not.
    @ivar buffers: None for a socket without an SMC-R or SMC-D connection.
    @ivar group: None for a socket without an SMC-R connection.
    """

    mode: str
    state: str
    inode: int
    fallbackReason: Diagnosis | None = None
    peerDiagnosis: Diagnosis | None = None
    buffers: Buffers | None = None
    group: LinkGroup | None = None

    @classmethod
    def decode(cls, payload: bytes) -> Diagnosed:
        """
        Read a message of sock_diag.

        @raise WireError: it is too short, or a length in it is wrong.
        """
        if len(payload) < _ANSWER.size:
            raise WireError("smc_diag_msg", len(payload), "it is cut off")
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
            group=LinkGroup.decode(found[_LINK_GROUP]) if _LINK_GROUP in found else None,
        )


def _text(data: bytes) -> str:
    return data.partition(b"\0")[0].decode("ascii", "replace")


def dumpRequest() -> bytes:
    """Ask for all SMC sockets of the network namespace: the kernel does not look for single ones."""
    return request(_SOCK_DIAG_BY_FAMILY, _REQUEST.pack(AF_SMC, _EXTENSIONS), flags=DUMP)


def diagnosedIn(datagram: bytes) -> tuple[list[Diagnosed], bool]:
    """
    The sockets in one part of the kernel's answer.

    @return: these, and whether the answer ends here.
    @raise OSError: the kernel can't say; C{ENOENT} when it lacks the module C{smc_diag}.
    @raise WireError: the answer makes no sense.
    """
    found: list[Diagnosed] = []
    for message in messages(datagram):
        if message.type in (DONE, ERROR):
            code = errorOf(message)
            if code:
                raise OSError(code, "the kernel does not tell of its SMC sockets (module smc_diag)")
            return found, True
        found.append(Diagnosed.decode(message.payload))
    return found, False


def diagnosed() -> Iterator[Diagnosed]:
    """
    Ask the kernel for all SMC sockets of this network namespace.

    @raise OSError: it can't say.
    @raise WireError: its answer makes no sense.
    """
    kind = socket.SOCK_DGRAM | socket.SOCK_CLOEXEC
    with socket.socket(socket.AF_NETLINK, kind, _NETLINK_SOCK_DIAG) as asking:
        asking.setblocking(False)  # each part of the answer is there when it is looked for
        asking.send(dumpRequest())
        while True:
            found, isOver = diagnosedIn(asking.recv(65536))
            yield from found
            if isOver:
                return
