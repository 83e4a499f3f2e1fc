"""
Configure SMC-R in the guest's kernel, and query its sockets: generic netlink and sock_diag.

C{python -m lab.smc v0,rxe0 v1,rxe1} assigns a physical network (PNETID) to each group of interfaces and RDMA
devices, and an EID to the host, which SMC-Rv2 must share with its peer. The numbers are those of
C{linux/smc.h} and C{linux/smc_diag.h}; the messages are those of RFC 3549.
"""

from __future__ import annotations

import os
import socket
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

AF_SMC = 43
NAME = "TXRDMA"

_REQUEST, _ACK, _DUMP = 1, 4, 0x300
_NLMSG_ERROR, _NLMSG_DONE = 2, 3
_GENL_CONTROLLER, _CTRL_GETFAMILY, _CTRL_ID, _CTRL_NAME = 16, 3, 1, 2
_PNETID_ADD, _PNETID_NAME, _PNETID_INTERFACE, _PNETID_DEVICE, _PNETID_PORT = 2, 1, 2, 3, 4
_EID_ADD, _EID_VALUE = 10, 1
_GROUPS_GET, _GROUP, _GROUP_TYPE = 2, 2, 3
_LINKS_GET, _LINK = 3, 3
_LINK_DEVICE, _LINK_GID, _LINK_PEER_GID, _LINK_CONNECTIONS, _LINK_STATE = 2, 4, 5, 6, 10
_NETLINK_GENERIC = 16
_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY = 4, 20
_MODES = {0: "SMC-R", 1: "TCP", 2: "SMC-D"}
_TYPES = {1: "single", 2: "symmetric", 3: "asymmetric at the peer", 4: "asymmetric here"}
_STATES = {0: "unused", 1: "inactive", 2: "activating", 3: "active"}

_KIND = 0x3FFF  # the bits above it are flags for nesting and byte order
_MESSAGE = struct.Struct("=IHHII")
_ATTRIBUTE = struct.Struct("=HH")
_GENERIC = struct.Struct("=BBH")
_DIAGNOSE = struct.Struct("=BxxB48x")
_DIAGNOSED = struct.Struct("=BBBB2s2s")


@dataclass(frozen=True)
class Link:
    """
    A link of one of the kernel's SMC-R link groups, as C{smcr linkgroup} shows it.

    @ivar connections: number of its connections.
    @ivar state: C{"unused"}, C{"inactive"}, C{"activating"} or C{"active"}.
    """

    device: str
    gid: str
    peerGID: str
    connections: int
    state: str


def setUp(groups: list[list[str]]) -> None:
    """Assign a PNETID to each group of names, and an EID to the host."""
    pnetid = _family("SMC_PNETID")
    for number, names in enumerate(groups):
        for name in names:
            content = _text(_PNETID_NAME, f"{NAME}{number}")
            if Path("/sys/class/infiniband", name).exists():
                content += _text(_PNETID_DEVICE, name) + _attribute(_PNETID_PORT, b"\1")
            else:
                content += _text(_PNETID_INTERFACE, name)
            _generic(pnetid, _PNETID_ADD, content)
    _generic(_family("SMC_GEN_NETLINK"), _EID_ADD, _text(_EID_VALUE, NAME.ljust(32)))


def modes() -> dict[int, str]:
    """Return the mode of each AF_SMC socket by local TCP port: C{"SMC-R"}, C{"SMC-D"} or C{"TCP"}."""
    request = _DIAGNOSE.pack(AF_SMC, 0)
    answers = _asked(_NETLINK_SOCK_DIAG, _SOCK_DIAG_BY_FAMILY, _DUMP, request)
    found = {}
    for answer in answers:
        _, _, mode, _, port, _ = _DIAGNOSED.unpack_from(answer)
        found[int.from_bytes(port, "big")] = _MODES.get(mode, str(mode))
    return found


def groupTypes() -> list[str]:
    """Return the type of each of the kernel's SMC-R link groups, such as C{"symmetric"}."""
    return [
        _TYPES.get(found[_GROUP_TYPE][0], str(found[_GROUP_TYPE][0]))
        for found in _answers(_GROUPS_GET, _GROUP)
    ]


def links() -> list[Link]:
    """Return the links of the kernel's SMC-R link groups."""
    return [
        Link(
            _string(found[_LINK_DEVICE]),
            _string(found[_LINK_GID]),
            _string(found[_LINK_PEER_GID]),
            int.from_bytes(found[_LINK_CONNECTIONS], sys.byteorder),
            _STATES.get(int.from_bytes(found[_LINK_STATE], sys.byteorder), "?"),
        )
        for found in _answers(_LINKS_GET, _LINK)
    ]


def _answers(command: int, kind: int) -> Iterator[dict[int, bytes]]:
    """Iterate over the attributes of each object in a dump of the kernel's SMC."""
    for answer in _generic(_family("SMC_GEN_NETLINK"), command, b"", _DUMP):
        for each, data in _attributes(answer[_GENERIC.size :]):
            if each == kind:
                yield dict(_attributes(data))


def _string(data: bytes) -> str:
    return data.rstrip(b"\0").decode()


def _family(name: str) -> int:
    [answer] = _generic(_GENL_CONTROLLER, _CTRL_GETFAMILY, _text(_CTRL_NAME, name), 0)
    for kind, data in _attributes(answer[_GENERIC.size :]):
        if kind == _CTRL_ID:
            return int.from_bytes(data, sys.byteorder)
    raise LookupError(f"the kernel has no netlink family {name}")


def _generic(family: int, command: int, content: bytes, flags: int = _ACK) -> list[bytes]:
    return _asked(_NETLINK_GENERIC, family, flags, _GENERIC.pack(command, 1, 0) + content)


def _asked(protocol: int, kind: int, flags: int, content: bytes) -> list[bytes]:
    """Iterate over the payloads of the kernel's answer, up to its end."""
    answers: list[bytes] = []
    with socket.socket(socket.AF_NETLINK, socket.SOCK_RAW, protocol) as link:
        link.bind((0, 0))
        link.send(_MESSAGE.pack(_MESSAGE.size + len(content), kind, _REQUEST | flags, 1, 0) + content)
        while True:
            for came, payload in _messages(link.recv(1 << 18)):
                if came in (_NLMSG_ERROR, _NLMSG_DONE):
                    code = int.from_bytes(payload[:4], sys.byteorder, signed=True)
                    if code < 0:
                        raise OSError(-code, os.strerror(-code))
                    return answers
                answers.append(payload)
                if not flags:
                    return answers


def _messages(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _MESSAGE.size:
        length, kind, _, _, _ = _MESSAGE.unpack_from(data)
        yield kind, data[_MESSAGE.size : length]
        data = data[length + -length % 4 :]


def _attributes(data: bytes) -> Iterator[tuple[int, bytes]]:
    while len(data) >= _ATTRIBUTE.size:
        length, kind = _ATTRIBUTE.unpack_from(data)
        yield kind & _KIND, data[_ATTRIBUTE.size : length]
        data = data[max(length + -length % 4, _ATTRIBUTE.size) :]


def _attribute(kind: int, data: bytes) -> bytes:
    return _ATTRIBUTE.pack(_ATTRIBUTE.size + len(data), kind) + data + bytes(-len(data) % 4)


def _text(kind: int, text: str) -> bytes:
    return _attribute(kind, text.encode() + b"\0")


if __name__ == "__main__":
    setUp([group.split(",") for group in sys.argv[1:]])
