"""
Identifiers in a fabric: GID, GUID, LID, queue pair numbers, keys, MTU.

Follows InfiniBand Architecture vol. 1, chapter 4 (addressing), and annex A17 (RoCE v2) for IP addresses.
"""

from __future__ import annotations

import ipaddress
from enum import IntEnum
from functools import lru_cache
from typing import ClassVar, NewType

from txrdma.kit.values import frozen

LID = NewType("LID", int)
"""A local identifier: 16 bits, given by the subnet manager."""

QPN = NewType("QPN", int)
"""The number of a queue pair: 24 bits."""

MULTICAST_QPN = QPN(0xFFFFFF)
"""The queue pair number in packets to a multicast group."""

PKey = NewType("PKey", int)
"""A partition key of 16 bits; the highest bit means full membership."""

LKey = NewType("LKey", int)
"""The key of a memory region for its owner's segments: 32 bits."""

RKey = NewType("RKey", int)
"""The key of a memory region for the peer's RDMA: 32 bits."""

DEFAULT_PKEY = PKey(0xFFFF)

ROCE_PORT = 4791
"""The UDP port of RoCE v2 (annex A17)."""


class MTU(IntEnum):
    """Encoded maximum payload of a path (IBA 14.2.5.6)."""

    MTU_256 = 1
    MTU_512 = 2
    MTU_1024 = 3
    MTU_2048 = 4
    MTU_4096 = 5

    @property
    def bytes(self) -> int:
        """The maximum payload of a packet in bytes."""
        return 128 << self.value

    @classmethod
    def fitting(cls, lengthBytes: int) -> MTU:
        """
        Return the largest MTU of at most this length.

        @raise ValueError: the length is below 256.
        """
        for mtu in reversed(cls):
            if mtu.bytes <= lengthBytes:
                return mtu
        raise ValueError(f"{lengthBytes} bytes are below the smallest MTU")


@frozen(order=True)
class MACAddress:
    """The address of an Ethernet port: 6 bytes."""

    wireSlot: ClassVar[str] = "raw"

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != 6:
            raise ValueError(f"a MAC address has 6 bytes, not {len(self.raw)}")

    @classmethod
    def fromBytes(cls, raw: bytes) -> MACAddress:
        return cls(bytes(raw))

    @classmethod
    def fromString(cls, text: str) -> MACAddress:
        """Parse C{"02:00:00:00:12:b7"}."""
        try:
            return cls(bytes(int(part, 16) for part in text.replace("-", ":").split(":")))
        except ValueError:
            raise ValueError(f"{text!r} is not a MAC address") from None

    def toBytes(self) -> bytes:
        return self.raw

    @property
    def isLocal(self) -> bool:
        """Whether the address was assigned locally, not by a manufacturer (IEEE 802)."""
        return bool(self.raw[0] & 0x02)

    def __str__(self) -> str:
        return self.raw.hex(":")

    def __repr__(self) -> str:
        return f"MACAddress.fromString({str(self)!r})"


@frozen(order=True)
class GUID:
    """The globally unique name of a node, a port or a system image: an EUI-64."""

    wireSlot: ClassVar[str] = "raw"

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != 8:
            raise ValueError(f"a GUID has 8 bytes, not {len(self.raw)}")

    @classmethod
    def fromBytes(cls, raw: bytes | bytearray | memoryview) -> GUID:
        return cls(bytes(raw))

    @classmethod
    def fromInt(cls, number: int) -> GUID:
        """Return the GUID of this number; raises ValueError if it has more than 64 bits."""
        try:
            return cls(number.to_bytes(8, "big"))
        except OverflowError:
            raise ValueError(f"{number:#x} is not a GUID") from None

    @classmethod
    def fromMAC(cls, mac: MACAddress) -> GUID:
        """The modified EUI-64 of a MAC address (RFC 4291, appendix A)."""
        raw = mac.raw
        return cls(bytes((raw[0] ^ 2,)) + raw[1:3] + b"\xff\xfe" + raw[3:])

    @classmethod
    def fromString(cls, text: str) -> GUID:
        """Parse C{"0002:c903:0012:3456"} or C{"0x0002c90300123456"}."""
        digits = "".join(part.rjust(4, "0") for part in text.split(":")) if ":" in text else text
        try:
            number = int(digits, 16)
            if ":" in text and (len(digits) != 16 or text.count(":") != 3):
                raise ValueError
            return cls.fromInt(number)
        except ValueError:
            raise ValueError(f"{text!r} is not a GUID") from None

    def toBytes(self) -> bytes:
        return self.raw

    def __int__(self) -> int:
        return int.from_bytes(self.raw, "big")

    def __str__(self) -> str:
        return self.raw.hex(":", 2)

    def __repr__(self) -> str:
        return f"GUID.fromString({str(self)!r})"


_LOOPBACK = bytes(15) + b"\1"
_MAPPED = bytes(10) + b"\xff\xff"


@frozen(order=True)
class GID:
    """The global identifier of a port: 16 bytes, in the form of an IPv6 address (IBA 4.1.1)."""

    wireSlot: ClassVar[str] = "raw"

    raw: bytes

    def __post_init__(self) -> None:
        if len(self.raw) != 16:
            raise ValueError(f"a GID has 16 bytes, not {len(self.raw)}")

    @classmethod
    def fromBytes(cls, raw: bytes) -> GID:
        return cls(bytes(raw))

    @classmethod
    def fromString(cls, text: str) -> GID:
        """Parse an IPv6 address without a zone, such as C{"::ffff:10.0.0.1"}."""
        try:
            if "%" in text:
                raise ValueError
            return cls(ipaddress.IPv6Address(text).packed)
        except ValueError:
            raise ValueError(f"{text!r} is not a GID") from None

    @staticmethod
    @lru_cache(maxsize=256)
    def fromIP(text: str) -> GID:
        """Return the RoCE v2 GID of an IP address: IPv4 is mapped (annex A17), a zone is omitted."""
        address = ipaddress.ip_address(text.partition("%")[0])
        return GID(_MAPPED + address.packed if address.version == 4 else address.packed)

    @classmethod
    def fromParts(cls, prefix: int, guid: GUID) -> GID:
        """Return the GID of a port in the subnet with this 64-bit prefix."""
        return cls(prefix.to_bytes(8, "big") + guid.raw)

    def toBytes(self) -> bytes:
        return self.raw

    @property
    def prefix(self) -> int:
        """The subnet prefix: the upper 64 bits."""
        return int.from_bytes(self.raw[:8], "big")

    @property
    def guid(self) -> GUID:
        """The interface identifier: the lower 64 bits."""
        return GUID(self.raw[8:])

    @property
    def ip(self) -> str | None:
        """The IP address of a RoCE v2 GID; None for the GID of all zeros."""
        if self.raw.startswith(_MAPPED):
            return "%d.%d.%d.%d" % tuple(self.raw[12:])  # noqa: UP031  # a tenth of the time of ipaddress
        return str(ipaddress.IPv6Address(self.raw)) if any(self.raw) else None

    @property
    def isMulticast(self) -> bool:
        """Whether this is a multicast GID; on RoCE v2 also the GID of an IPv4 group."""
        return self.raw[0] == 0xFF or (self.isMapped and self.raw[12] >> 4 == 0xE)

    @property
    def isMapped(self) -> bool:
        """Whether this is a mapped IPv4 address."""
        return self.raw.startswith(_MAPPED)

    @property
    def isLoopback(self) -> bool:
        """Whether this is a loopback address."""
        return (self.isMapped and self.raw[12] == 127) or self.raw == _LOOPBACK

    @property
    def isLinkLocal(self) -> bool:
        return self.raw[0] == 0xFE and self.raw[1] & 0xC0 == 0x80

    def __str__(self) -> str:
        if self.isMapped:
            return f"::ffff:{ipaddress.IPv4Address(self.raw[12:])}"
        return str(ipaddress.IPv6Address(self.raw))

    def __repr__(self) -> str:
        return f"GID.fromString({str(self)!r})"
