"""
Messages about shared memory between two processes on one host, and the checks of their contents.

Each message is one packet of a UNIX socket (SOCK_SEQPACKET), with the descriptors that it needs; the numbers
of queue pairs are always the sender's first.
"""

from __future__ import annotations

import mmap
import os
import stat
from typing import Final

from txrdma.error import WireError
from txrdma.iba.types import GID, QPN, RKey
from txrdma.kit.wire import bits, Code, data, Layout, wire
from txrdma.soft.core.doorbellpage import DOORBELL_BYTES
from txrdma.soft.shared._layout import HEADER_BYTES, REMOTE_WRITE, RemoteRegion, ringBytes
from txrdma.unix.mapping import mapped, sealedLength, sealedMemory

VERSION: Final = 8
"""Version of these messages and of the shared memory: processes with another version use UDP or TCP."""

MOST_DATA: Final = 32768
"""Bytes of memory that one L{AccessRequest} or L{AccessReply} carries."""

LONGEST: Final = MOST_DATA + 64
"""The length of the longest message."""

PAGE: Final = mmap.PAGESIZE
_LARGEST_REGION: Final = 1 << 40
_FUTURE_WRITE: Final = 0x10


class RendezvousKind(Code):
    """The first byte of each message."""

    HELLO = 1
    JOIN = 2
    LEAVE = 3
    NUDGE = 4
    REGION_REQUEST = 5
    REGION_REPLY = 6
    ACCESS_REQUEST = 7
    ACCESS_REPLY = 8
    DOORBELL = 9
    DOORBELL_CLOSED = 10
    DOORBELL_LOST = 11
    DATAGRAM_RING = 12


class Reach(Code):
    """How a memory region can be accessed."""

    REFUSED = 0
    MAPPED = 1
    BY_MESSAGES = 2


@wire(24)
class Hello(Layout):
    """First message in both directions: version, and address of the device. C{magic} is C{"txr"}."""

    kind: RendezvousKind = bits(8)
    magic: int = bits(24)
    version: int = bits(16)
    port: int = bits(16)
    address: GID = data(16)


@wire(8)
class DoorbellNotice(Layout):
    """
    C{DOORBELL}: a doorbell of the sender with its number, and its descriptor, with that of its page if it has
    one; L{Join} refers to it.

    C{DOORBELL_CLOSED}: the sender's doorbell with this number is closed. C{DOORBELL_LOST}: the descriptor of
    the receiver's doorbell with this number was lost.
    """

    kind: RendezvousKind = bits(8)
    reserved: int = bits(24)
    number: int = bits(32)


@wire(8)
class DatagramRingOffer(Layout):
    """The sender's box for datagrams, with the number of the doorbell that wakes the sender; 0 refuses."""

    kind: RendezvousKind = bits(8)
    reserved: int = bits(24)
    number: int = bits(32)


@wire(24)
class Join(Layout):
    """
    A queue pair is ready to receive: its box, and doorbell numbers of its completion queues.

    C{doorbellByte}: number of the byte in the doorbells' page that is set before they are rung; 0: none.
    """

    kind: RendezvousKind = bits(8)
    source: QPN = bits(24)
    reserved: int = bits(8)
    destination: QPN = bits(24)
    reserved2: int = bits(8)
    firstPSN: int = bits(24)
    receives: int = bits(32)
    sends: int = bits(32)
    doorbellByte: int = bits(32)


@wire(8)
class PairNotice(Layout):
    """C{LEAVE}: a queue pair has ended. C{NUDGE}: the receiver must poll."""

    kind: RendezvousKind = bits(8)
    source: QPN = bits(24)
    reserved: int = bits(8)
    destination: QPN = bits(24)


@wire(12)
class RegionRequest(Layout):
    """A request for access to a memory region of the receiver."""

    kind: RendezvousKind = bits(8)
    source: QPN = bits(24)
    reserved: int = bits(8)
    destination: QPN = bits(24)
    rkey: RKey = bits(32)


@wire(40)
class RegionReply(Layout):
    """
    The answer to L{RegionRequest}; with the memory's descriptor when it is C{MAPPED}.

    C{access}: the rights that the queue pair allows; C{rights}: those that the region allows, too.
    C{validOffset} is the offset of its valid word, which is alone on the last page.
    """

    kind: RendezvousKind = bits(8)
    source: QPN = bits(24)
    reach: Reach = bits(8)
    destination: QPN = bits(24)
    rkey: RKey = bits(32)
    access: int = bits(16)
    rights: int = bits(16)
    address: int = bits(64)
    length: int = bits(64)
    validOffset: int = bits(64)


@wire(28)
class AccessRequest(Layout):
    """A request to read or write memory of the receiver; write data follows."""

    kind: RendezvousKind = bits(8)
    source: QPN = bits(24)
    writing: bool = bits(1)
    reserved: int = bits(7)
    destination: QPN = bits(24)
    rkey: RKey = bits(32)
    reserved2: int = bits(32)
    address: int = bits(64)
    length: int = bits(32)


@wire(12)
class AccessReply(Layout):
    """The answer to L{AccessRequest}: read data follows."""

    kind: RendezvousKind = bits(8)
    source: QPN = bits(24)
    allowed: bool = bits(1)
    reserved: int = bits(7)
    destination: QPN = bits(24)
    length: int = bits(32)


LAYOUTS: Final[dict[int, type[Layout]]] = {
    RendezvousKind.HELLO: Hello,
    RendezvousKind.JOIN: Join,
    RendezvousKind.LEAVE: PairNotice,
    RendezvousKind.NUDGE: PairNotice,
    RendezvousKind.REGION_REQUEST: RegionRequest,
    RendezvousKind.REGION_REPLY: RegionReply,
    RendezvousKind.ACCESS_REQUEST: AccessRequest,
    RendezvousKind.ACCESS_REPLY: AccessReply,
    RendezvousKind.DOORBELL: DoorbellNotice,
    RendezvousKind.DOORBELL_CLOSED: DoorbellNotice,
    RendezvousKind.DOORBELL_LOST: DoorbellNotice,
    RendezvousKind.DATAGRAM_RING: DatagramRingOffer,
}
MAGIC: Final = int.from_bytes(b"txr", "big")


def decode(message: bytes) -> tuple[Layout, memoryview]:
    """Decode a message; return its layout, and the data that follow. Raises L{WireError}."""
    layout = LAYOUTS.get(message[0] if message else 0)
    if layout is None:
        raise WireError("Message", 0, "unknown kind of message")
    decoded = layout.decode(message)
    rest = memoryview(message)[layout.size :]
    expected = 0
    if isinstance(decoded, AccessRequest):
        if decoded.length > MOST_DATA:
            raise WireError("AccessRequest", 24, f"{decoded.length} bytes are more than {MOST_DATA}")
        expected = decoded.length if decoded.writing else 0
    elif isinstance(decoded, AccessReply):
        expected = decoded.length
    if len(rest) != expected:
        raise WireError(layout.__name__, layout.size, f"{len(rest)} bytes follow instead of {expected}")
    return decoded, rest


def rendezvousName(address: str, port: int) -> bytes:
    """
    Return the abstract socket name of the device with this IP address and UDP port, for processes of this
    user and version.
    """
    return f"\0txrdma/soft{VERSION}/{os.geteuid()}/{address}:{port}".encode()


def meetingName(address: str, port: int) -> str:
    """Return the file name of the device with this IP address and UDP port in a rendezvous directory."""
    return f"soft{VERSION}-{address}-{port}"


def makeBox(ring: int) -> tuple[int, mmap.mmap]:
    """Make sealed memory that only this process can write; return descriptor and mapping. Raises OSError."""
    return sealedMemory("txrdma-lane", HEADER_BYTES + ring, _FUTURE_WRITE)


def mapBox(descriptor: int) -> mmap.mmap:
    """Map the box of a peer; raises ValueError if it is invalid, or OSError."""
    length = sealedLength(descriptor)
    ringBytes(length)
    return mapped(descriptor, length, False)


def mapDoorbells(descriptor: int) -> mmap.mmap:
    """Map the doorbell page of a peer; raises ValueError if it is invalid, or OSError."""
    if sealedLength(descriptor) != DOORBELL_BYTES:
        raise ValueError("not a doorbell page")
    return mapped(descriptor, DOORBELL_BYTES)


def mapRegion(reply: RegionReply, descriptor: int) -> tuple[mmap.mmap, RemoteRegion]:
    """Map a memory region of a peer; raises ValueError if it contradicts the reply, or OSError."""
    length = sealedLength(descriptor)
    if not 0 < reply.length <= reply.validOffset <= _LARGEST_REGION or reply.validOffset % PAGE:
        raise ValueError("impossible length of a region")
    if length < reply.validOffset + PAGE:
        raise ValueError("the memory is shorter than the region")
    if reply.address + reply.length > 1 << 64:
        raise ValueError("the region ends above the last 64-bit address")
    mapping = mapped(descriptor, reply.validOffset + PAGE, bool(reply.rights & REMOTE_WRITE))
    whole = memoryview(mapping)
    valid = whole[reply.validOffset : reply.validOffset + 8].cast("Q")
    region = RemoteRegion(reply.address, reply.length, reply.rights, whole[: reply.length], valid)
    return mapping, region


def shareable(descriptor: int, rights: int) -> int:
    """Duplicate a descriptor of local memory for a peer with these rights; raises OSError."""
    if rights & REMOTE_WRITE:
        return os.dup(descriptor)
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)


def checkDoorbell(descriptor: int) -> None:
    """Check that a descriptor is an eventfd, and make it non-blocking; raises ValueError."""
    if stat.S_IFMT(os.fstat(descriptor).st_mode):
        raise ValueError("the doorbell is not an eventfd")
    try:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        name = "anon_inode:[eventfd]"  # there is no /proc to ask
    if name != "anon_inode:[eventfd]":
        raise ValueError(f"the doorbell is not an eventfd but {name}")
    os.set_blocking(descriptor, False)
