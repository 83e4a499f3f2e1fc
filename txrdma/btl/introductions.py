"""
The exchange over TCP before the first and after the last packet: the introductions of two modules.

Each end sends an L{Introduction}, then frames: a L{FrameHead} and as many bytes as it states. The connection
stays open as long as the two are peers: its end is the end of the peer's process. Where either end has
several interfaces for the connection both send a frame with an introduction of each, and match them: see
L{txrdma.btl.core.matching}.
"""

from __future__ import annotations

from collections.abc import Sequence
from itertools import chain
from typing import Final

from txrdma.btl.core.matching import Interface, MOST_INTERFACES
from txrdma.btl.module import ChannelAddress
from txrdma.error import WireError
from txrdma.iba.types import GID, LID, MACAddress, QPN
from txrdma.kit.wire import bits, Code, data, Layout, reserved, wire

MAGIC: Final = 0x62746C
"""The magic number at the start of an introduction: C{btl}."""

VERSION: Final = 7
"""The version of the exchange, which includes the format of packets."""

SMALLEST_MTU: Final = 256
"""Bytes that every module accepts in a packet (IBA 9.4.1)."""

_NO_MAC: Final = MACAddress(bytes(6))


def checkVersion(magic: int, version: int) -> None:
    """
    Check the magic number and the version, with which introductions of every version and length begin.

    @raise WireError: it is not an introduction, or has another version.
    """
    if magic != MAGIC:
        raise WireError("Introduction", 0, "the peer does not speak btl")
    if version != VERSION:
        raise WireError("Introduction", 3, f"the peer speaks version {version}, not {VERSION}")


@wire(50)
class Introduction(Layout):
    """
    The first data of an exchange: the address of a module, and the name that it has chosen for the peer.

    @ivar commandQPN: queue pair number of the command channel; C{dataQPN}: of the data channel.
    @ivar mtu: longest packet that the data channel accepts, in bytes.
    @ivar interfaces: number of interfaces that this end has for the connection.
    @ivar gid: GID of the module's port; C{mac}: zero if it is unknown; C{lid}: zero except on InfiniBand.
    @ivar name: number that identifies the peer's packets to the module.
    @ivar sequence: the first sequence number that this end sends.
    """

    magic: int = bits(24)
    version: int = bits(8)
    commandQPN: int = bits(24)
    dataQPN: int = bits(24)
    mtu: int = bits(16)
    interfaces: int = bits(8)
    reserved: int = reserved(8)
    gid: GID = data(16)
    mac: MACAddress = data(6)
    lid: LID = bits(16)
    name: int = bits(64)
    sequence: int = bits(32)

    @classmethod
    def of(cls, address: ChannelAddress, name: int, sequence: int, interfaces: int = 1) -> Introduction:
        """Make the introduction of a module."""
        return cls(
            magic=MAGIC,
            version=VERSION,
            commandQPN=address.qpns[0],
            dataQPN=address.qpns[1],
            mtu=address.mtu,
            interfaces=interfaces,
            gid=address.gid,
            mac=address.mac or _NO_MAC,
            lid=address.lid,
            name=name,
            sequence=sequence,
        )

    @property
    def address(self) -> ChannelAddress:
        qpns = (QPN(self.commandQPN), QPN(self.dataQPN))
        mac = None if self.mac == _NO_MAC else self.mac
        return ChannelAddress(self.gid, mac, qpns, self.mtu, self.lid)

    def check(self) -> None:
        """
        Check the magic number, the version and the MTU.

        @raise WireError: it is not an introduction, has another version, or a smaller MTU than
            L{SMALLEST_MTU}.
        """
        checkVersion(self.magic, self.version)
        if self.mtu < SMALLEST_MTU:
            raise WireError("Introduction", 10, f"the MTU is {self.mtu} bytes, less than {SMALLEST_MTU}")


INTRODUCTION_LENGTH: Final = len(Introduction().encode())
"""Bytes of an introduction on the wire."""


def isDecidable(data: bytes) -> bool:
    """Return whether an introduction is complete, or has another version and may be shorter."""
    isOther = len(data) > 3 and int.from_bytes(data[:3], "big") == MAGIC and data[3] != VERSION
    return isOther or len(data) >= INTRODUCTION_LENGTH


class FrameKind(Code):
    """The kind of a frame after the introductions."""

    READY = 1
    """The server is connected: its probes have arrived."""

    FAILED = 2
    """The sender has failed; the frame contains the reason in UTF-8."""

    FAREWELL = 3
    """
    The sender ends; the frame is its last acknowledgement: an C{ACK} packet.
    """

    INTERFACES = 4
    """The sender's interfaces: an L{Introduction} and an L{InterfacePart} for each."""

    ECHO = 7
    """
    The nonce of a received probe, which proves that the sender receives packets at its announced address.
    """

    QUEUE_PAIR = 5
    """
    The sender has created a reliable queue pair for long messages, and requests one from the peer:
    L{QueuePairPart}.
    """

    RECEIVE_BUFFER = 6
    """
    The sender has allocated a receive buffer for long messages of the peer, or refuses to:
    L{ReceiveBufferFrame}.
    """


@wire(12)
class InterfacePart(Layout):
    """
    The network and the speed of an interface, which follow its L{Introduction}.

    @ivar prefixLength: length of the network prefix in bits.
    @ivar speed: bits per second; 0 if unknown.
    """

    prefixLength: int = bits(8)
    reserved: int = reserved(24)
    speed: int = bits(64)


@wire(4)
class QueuePairPart(Layout):
    """
    The content of a C{QUEUE_PAIR} frame: the queue pair number. Its first packet sequence number is 0 in both
    directions.
    """

    reserved: int = reserved(8)
    qpn: int = bits(24)


@wire(16)
class ReceiveBufferFrame(Layout):
    """
    The content of a C{RECEIVE_BUFFER} frame: memory into which the peer may write.

    @ivar length: length in bytes; 0 if this connection gets no receive buffer.
    """

    rkey: int = bits(32)
    length: int = bits(32)
    address: int = bits(64)


@wire(4)
class FrameHead(Layout):
    """The head of a frame: C{length} bytes follow."""

    kind: FrameKind = bits(8)
    reserved: int = reserved(8)
    length: int = bits(16)


HEAD_LENGTH: Final = 4
"""Bytes of a frame's head."""

LONGEST_FRAME: Final = 2048
"""Largest number of bytes of a frame without its head: the bitmap of a window has 512."""


def encodeInterfaces(interfaces: Sequence[tuple[Introduction, Interface]]) -> bytes:
    """Make the content of an C{INTERFACES} frame."""
    parts = [
        (each.encode(), InterfacePart(prefixLength=at.prefixLength, speed=at.speed).encode())
        for each, at in interfaces
    ]
    return b"".join(chain(*parts))


def decodeInterfaces(content: bytes) -> list[tuple[Introduction, Interface]]:
    """
    Read the content of an C{INTERFACES} frame.

    @raise WireError: the frame has none or too many interfaces, or one of them is invalid.
    """
    length = INTRODUCTION_LENGTH + len(InterfacePart().encode())
    count, left = divmod(len(content), length)
    if left or not 1 <= count <= MOST_INTERFACES:
        raise WireError("InterfacePart", 0, f"{len(content)} bytes are not 1 to {MOST_INTERFACES} interfaces")
    found = []
    for begin in range(0, len(content), length):
        each = Introduction.decode(content[begin:])
        each.check()
        part = InterfacePart.decode(content[begin + INTRODUCTION_LENGTH :])
        found.append((each, Interface(each.gid, part.prefixLength, part.speed)))
    return found


def frame(kind: FrameKind, content: bytes = b"") -> bytes:
    """Encode a frame; content that is too long is truncated."""
    content = content[:LONGEST_FRAME]
    return FrameHead(kind=kind, length=len(content)).encode() + content
