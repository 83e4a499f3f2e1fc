"""
Messages about shared memory between two processes on one host, and the checks of their contents.

Each message is one packet of a UNIX socket (SOCK_SEQPACKET), with the descriptors that it needs; the numbers
of queue pairs are always the sender's first.
"""

from __future__ import annotations

import errno
import fcntl
import mmap
import os
import stat
from typing import Final

from txrdma.error import WireError
from txrdma.iba.types import GID, QPN, RKey
from txrdma.kit.wire import bits, Code, data, Layout, wire
from txrdma.soft.core.mapping import mapped
from txrdma.soft.shared._layout import HEADER_BYTES, REMOTE_WRITE, RemoteRegion, ringBytes

VERSION: Final = 4
MOST_DATA: Final = 32768
"""Bytes of memory that one L{AccessRequest} or L{AccessReply} carries."""

LONGEST: Final = MOST_DATA + 64
"""The length of the longest message."""

PAGE: Final = mmap.PAGESIZE
_LARGEST_REGION: Final = 1 << 40
_FUTURE_WRITE: Final = 0x10
_NEEDED: Final = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW


class MessageKind(Code):
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
    """The ways in which a region can be reached."""

    REFUSED = 0
    MAPPED = 1
    BY_MESSAGES = 2


@wire(24)
class Hello(Layout):
    """The first message both ways: who we are. C{magic} is C{"txr"}."""

    kind: MessageKind = bits(8)
    magic: int = bits(24)
    version: int = bits(16)
    port: int = bits(16)
    address: GID = data(16)


@wire(8)
class DoorbellNotice(Layout):
    """
    C{BELL}: our doorbell of this number, which comes as a descriptor; each L{Join} names those that it needs.

    C{MUTE}: no doorbell of ours has this number any more. C{LOST}: your doorbell of this number has not come.
    """

    kind: MessageKind = bits(8)
    reserved: int = bits(24)
    number: int = bits(32)


@wire(8)
class DatagramRingOffer(Layout):
    """
    Datagrams for your device stand in this box of ours, which comes as a descriptor.

    C{number} is that of the doorbell which wakes us for yours.
    """

    kind: MessageKind = bits(8)
    reserved: int = bits(24)
    number: int = bits(32)


@wire(20)
class Join(Layout):
    """
    A queue pair is ready to receive.

    Its box comes as a descriptor. C{receives} and C{sends} are the numbers of the doorbells of these.
    """

    kind: MessageKind = bits(8)
    source: QPN = bits(24)
    reserved: int = bits(8)
    destination: QPN = bits(24)
    reserved2: int = bits(8)
    firstPSN: int = bits(24)
    receives: int = bits(32)
    sends: int = bits(32)


@wire(8)
class PairNotice(Layout):
    """C{LEAVE}: a queue pair has ended. C{NUDGE}: look at your side."""

    kind: MessageKind = bits(8)
    source: QPN = bits(24)
    reserved: int = bits(8)
    destination: QPN = bits(24)


@wire(12)
class RegionRequest(Layout):
    """A request to hear how a memory region of the peer can be reached."""

    kind: MessageKind = bits(8)
    source: QPN = bits(24)
    reserved: int = bits(8)
    destination: QPN = bits(24)
    rkey: RKey = bits(32)


@wire(40)
class RegionReply(Layout):
    """
    The answer to L{RegionRequest}; with the memory's descriptor when it is C{MAPPED}.

    C{access} is all that the queue pair allows, C{rights} what of it the region allows, too.
    C{validOffset} is where its valid word is, in a page of its own, the last one.
    """

    kind: MessageKind = bits(8)
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
    """Read or write this memory of yours: what is to be written follows."""

    kind: MessageKind = bits(8)
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
    """The answer to L{AccessRequest}: what was read follows."""

    kind: MessageKind = bits(8)
    source: QPN = bits(24)
    allowed: bool = bits(1)
    reserved: int = bits(7)
    destination: QPN = bits(24)
    length: int = bits(32)


_LAYOUTS: Final[dict[int, type[Layout]]] = {
    MessageKind.HELLO: Hello,
    MessageKind.JOIN: Join,
    MessageKind.LEAVE: PairNotice,
    MessageKind.NUDGE: PairNotice,
    MessageKind.REGION_REQUEST: RegionRequest,
    MessageKind.REGION_REPLY: RegionReply,
    MessageKind.ACCESS_REQUEST: AccessRequest,
    MessageKind.ACCESS_REPLY: AccessReply,
    MessageKind.DOORBELL: DoorbellNotice,
    MessageKind.DOORBELL_CLOSED: DoorbellNotice,
    MessageKind.DOORBELL_LOST: DoorbellNotice,
    MessageKind.DATAGRAM_RING: DatagramRingOffer,
}
MAGIC: Final = int.from_bytes(b"txr", "big")


def decode(message: bytes) -> tuple[Layout, memoryview]:
    """
    A message, and the memory that follows it.

    @raise WireError: it is none of ours, or its length contradicts it.
    """
    layout = _LAYOUTS.get(message[0] if message else 0)
    if layout is None:
        raise WireError("Message", 0, "unknown kind")
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
    """The abstract name at which the device with this IP address and UDP port is found by its user."""
    return f"\0txrdma/soft/{os.geteuid()}/{address}:{port}".encode()


def meetingName(address: str, port: int) -> str:
    """The name at which the device with this IP address and UDP port is found in a directory."""
    return f"soft-{address}-{port}"


def makeBox(ring: int) -> tuple[int, mmap.mmap]:
    """
    Memory that we write and that a peer can only read; it never changes its size.

    @raise OSError: the system gives none.
    """
    length = HEADER_BYTES + ring
    descriptor = os.memfd_create("txrdma-lane", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.ftruncate(descriptor, length)
        mapping = mapped(descriptor, length)
        seals = _NEEDED | fcntl.F_SEAL_SEAL
        try:
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals | _FUTURE_WRITE)
        except OSError as error:
            if error.errno != errno.EINVAL:  # Linux before 5.1
                raise
            fcntl.fcntl(descriptor, fcntl.F_ADD_SEALS, seals)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor, mapping


def _sealedLength(descriptor: int) -> int:
    """
    How long a peer's memory is, for ever.

    @raise ValueError: it could change, or it is no such memory.
    """
    try:
        seals = fcntl.fcntl(descriptor, fcntl.F_GET_SEALS)
    except OSError:
        raise ValueError("not a memfd") from None
    if seals & _NEEDED != _NEEDED:
        raise ValueError("the memory is not sealed against changes of its size")
    told = os.fstat(descriptor)
    if told.st_blksize != mmap.PAGESIZE:  # holes in huge pages, which seals allow, may be filled by SIGBUS
        raise ValueError("the memory has pages of another size")
    return told.st_size


def mapBox(descriptor: int) -> mmap.mmap:
    """
    Map the box of a peer's lane, which came as a descriptor.

    @raise ValueError: it is none.
    @raise OSError: it can't be mapped.
    """
    length = _sealedLength(descriptor)
    ringBytes(length)
    return mapped(descriptor, length, False)


def mapRegion(told: RegionReply, descriptor: int) -> tuple[mmap.mmap, RemoteRegion]:
    """
    Map a memory region of a peer, which came as a descriptor.

    @raise ValueError: it is not as it was told to be.
    @raise OSError: it can't be mapped.
    """
    length = _sealedLength(descriptor)
    if not 0 < told.length <= told.validOffset <= _LARGEST_REGION or told.validOffset % PAGE:
        raise ValueError("no region looks like that")
    if length < told.validOffset + PAGE:
        raise ValueError("the memory is shorter than the region")
    if told.address + told.length > 1 << 64:
        raise ValueError("the region ends beyond all addresses")
    mapping = mapped(descriptor, told.validOffset + PAGE, bool(told.rights & REMOTE_WRITE))
    whole = memoryview(mapping)
    valid = whole[told.validOffset : told.validOffset + 8].cast("Q")
    region = RemoteRegion(told.address, told.length, told.rights, whole[: told.length], valid)
    return mapping, region


def shareable(descriptor: int, rights: int) -> int:
    """
    A descriptor of our memory for a peer that has these rights; the caller closes it.

    @raise OSError: there is none.
    """
    if rights & REMOTE_WRITE:
        return os.dup(descriptor)
    return os.open(f"/proc/self/fd/{descriptor}", os.O_RDONLY | os.O_CLOEXEC)


def checkDoorbell(descriptor: int) -> None:
    """
    Look whether this can be rung without ever blocking.

    @raise ValueError: it can't.
    """
    if stat.S_IFMT(os.fstat(descriptor).st_mode):
        raise ValueError("a doorbell is no file")
    try:
        name = os.readlink(f"/proc/self/fd/{descriptor}")
    except OSError:
        name = "anon_inode:[eventfd]"  # there is no /proc to ask
    if name != "anon_inode:[eventfd]":
        raise ValueError(f"a doorbell is an eventfd, not {name}")
    os.set_blocking(descriptor, False)
