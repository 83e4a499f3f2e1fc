"""
The wire format of rsockets: connection data, targets, and the encoding of immediate data.

Follows librdmacm (C{docs/rsocket}, version 1 of the protocol). Every message is an RDMA write with immediate
data. The next destinations are in a table of targets: memory of the writer, filled by the peer.
"""

from __future__ import annotations

from typing import Final

from txrdma.iba.types import RKey
from txrdma.kit.wire import bits, Code, Layout, reserved, wire

VERSION: Final = 1
"""The version of the protocol in connection data."""

NETWORK_ORDER: Final = 0x01
"""The flag of an end whose table of targets is in network byte order."""

MAPPINGS: Final = 0x02
"""The flag of an end that supports mapped memory (C{riomap})."""

SEQUENCE: Final = 0xFFFF
"""The bits of sequence numbers, and of the limit in a message that gives credits."""

LENGTH: Final = (1 << 29) - 1
"""The bits of immediate data that are not the operation."""

ADDRESSES: Final = 1 << 64
"""Number of addresses in a host's memory."""


@wire(16)
class Target(Layout):
    """Memory of the peer to write to next, in bytes, in the format of connection data."""

    address: int = bits(64)
    rkey: RKey = bits(32)
    length: int = bits(32)


@wire(16, little=True)
class LittleTarget(Target):
    """Memory of the peer to write to next, in the table of a host that is little-endian."""


TARGET_BYTES: Final = 16
"""The length of a target in a table."""


@wire(24)
class Mapped(Layout):
    """An entry for mapped memory, after the targets of a table."""

    offset: int = bits(64)
    address: int = bits(64)
    rkey: RKey = bits(32)
    length: int = bits(32)


@wire(24, little=True)
class LittleMapped(Mapped):
    """Memory that the peer has mapped at an offset, in the table of a host that is little-endian."""


MAPPED_BYTES: Final = 24
"""The length of an entry for mapped memory in a table."""

MOST_MAPPINGS: Final = 128
"""Maximum number of entries for mapped memory that connection data represent without scaling."""


@wire(40)
class ConnectionData(Layout):
    """
    The private data of a REQ, after the addresses, and of a REP: initial credits and buffers of the sender.

    C{credits} are messages that it can receive. C{tableLength} counts targets, and C{bufferLength} bytes
    of the first half of its buffer. C{mappings} are entries for mapped memory, scaled above 128: see C{room}.
    """

    version: int = bits(8)
    flags: int = bits(8)
    credits: int = bits(16)
    reserved1: int = reserved(24)
    mappings: int = bits(8)
    tableAddress: int = bits(64)
    tableKey: RKey = bits(32)
    tableLength: int = bits(32)
    bufferAddress: int = bits(64)
    bufferKey: RKey = bits(32)
    bufferLength: int = bits(32)

    @property
    def room(self) -> int:
        """Number of entries for mapped memory in the sender's table."""
        if not self.flags & MAPPINGS:
            return 0
        scaled = self.mappings
        return scaled if scaled <= MOST_MAPPINGS else (scaled & ~MOST_MAPPINGS) << 8


class ImmediateKind(Code):
    """The operation of a message: the upper 3 bits of its immediate data."""

    DATA = 0
    CREDITS = 4
    MAPPING = 6
    CONTROL = 7


IGNORED: Final = 2
"""The operation that librdmacm ignores."""


class Control(Code):
    """The lower 29 bits of a control message."""

    DISCONNECT = 0
    KEEPALIVE = 1
    SHUTDOWN = 2


def immediate(kind: ImmediateKind, value: int) -> int:
    """Encode an operation and its value as the immediate data of a request."""
    return int(kind) << 29 | value


def meaning(number: int) -> tuple[int, int]:
    """Decode immediate data to the operation and its value."""
    return number >> 29, number & LENGTH
