"""Messages between a coordinator and its members: one packet each of a UNIX socket (SOCK_SEQPACKET)."""

from __future__ import annotations

from typing import Final

from txrdma.error import WireError
from txrdma.iba.types import GID
from txrdma.kit.wire import bits, Code, data, Layout, wire

VERSION: Final = 1

LONGEST_PACKET: Final = 4096 + 128
"""The length of the longest RoCE packet, from BTH to ICRC, that is forwarded."""


class HostMessageKind(Code):
    """The first byte of each message."""

    ENTER = 1
    SERVICE = 2
    MANAGEMENT = 3
    SEEN = 4
    PACKET = 5
    PING = 6


@wire(4)
class Enter(Layout):
    """First message of a member: the version, and its share."""

    kind: HostMessageKind = bits(8)
    version: int = bits(16)
    share: int = bits(8)


@wire(4)
class Ping(Layout):
    """From a member: the coordinator returns it."""

    kind: HostMessageKind = bits(8)
    reserved: int = bits(24)


@wire(12)
class ServiceNotice(Layout):
    """The member begins or stops to serve a service ID."""

    kind: HostMessageKind = bits(8)
    isServed: bool = bits(1)
    reserved: int = bits(23)
    serviceID: int = bits(64)


@wire(4)
class ManagementNotice(Layout):
    """The member's queue pair 1 begins or stops to receive."""

    kind: HostMessageKind = bits(8)
    isReceiving: bool = bits(1)
    reserved: int = bits(23)


@wire(12)
class ProbeSeen(Layout):
    """The member has received the probe of a position."""

    kind: HostMessageKind = bits(8)
    position: int = bits(8)
    reserved: int = bits(16)
    nonce: int = bits(64)


@wire(20)
class ForwardedPacket(Layout):
    """A packet, which follows from BTH to ICRC, and the address and UDP port of its sender."""

    kind: HostMessageKind = bits(8)
    reserved: int = bits(8)
    port: int = bits(16)
    address: GID = data(16)


_LAYOUTS: Final[dict[int, type[Layout]]] = {
    HostMessageKind.ENTER: Enter,
    HostMessageKind.SERVICE: ServiceNotice,
    HostMessageKind.MANAGEMENT: ManagementNotice,
    HostMessageKind.SEEN: ProbeSeen,
    HostMessageKind.PACKET: ForwardedPacket,
    HostMessageKind.PING: Ping,
}


def decode(message: bytes) -> tuple[Layout, memoryview]:
    """Decode a message; return its layout, and the packet that follows. Raises L{WireError}."""
    layout = _LAYOUTS.get(message[0] if message else 0)
    if layout is None:
        raise WireError("Message", 0, "unknown kind of message")
    decoded = layout.decode(message)
    rest = memoryview(message)[layout.size :]
    if len(rest) > (LONGEST_PACKET if layout is ForwardedPacket else 0):
        raise WireError(layout.__name__, layout.size, f"{len(rest)} bytes follow")
    return decoded, rest
