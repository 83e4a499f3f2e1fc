"""
Fuzz targets of communication over shared memory: rendezvous messages, and memory that the peer writes.

A box is the shared memory that one process writes and its peer reads: a header, then a ring of records.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import Target

from txrdma.error import WireError
from txrdma.iba.types import GID, QPN
from txrdma.soft.shared._layout import HEADER_BYTES
from txrdma.soft.shared._rendezvous import (
    DatagramRingOffer,
    decode,
    DoorbellNotice,
    Hello,
    Join,
    MAGIC,
    PairNotice,
    RegionReply,
    RendezvousKind,
    VERSION,
)
from txrdma.soft.shared.datagramlane import AT_ONCE, DatagramLane
from txrdma.test.support.soft.lanes import pair, send

_RING_BYTES = 4096
_POLLS = 12

# Where the receives are posted in the memory of the target "box".
_RECEIVES = 4
_RECEIVE_BYTES = 256
_RECEIVES_BEGIN = 1024
_RECEIVES_END = _RECEIVES_BEGIN + _RECEIVES * _RECEIVE_BYTES


def _rendezvous(content: bytes) -> None:
    """A message and the bytes after it are all of the input, or decoding raises WireError."""
    try:
        decoded, rest = decode(content)
    except WireError:
        return
    if decoded.size + len(rest) != len(content):
        raise AssertionError("some bytes belong neither to the message nor to the rest")


def _fill(box: memoryview, content: bytes) -> None:
    """Write the input into a box: first its ring, then its header."""
    ring, header = content[:_RING_BYTES], content[_RING_BYTES : _RING_BYTES + HEADER_BYTES]
    box[HEADER_BYTES : HEADER_BYTES + len(ring)] = ring
    box[: len(header)] = header


def _content(box: memoryview) -> Iterator[bytes]:
    """Return inputs that make L{_fill} write what this box contains: without its header, and with it."""
    ring = bytes(box[HEADER_BYTES:])
    yield ring
    yield ring + bytes(box[:HEADER_BYTES])


def _box(content: bytes) -> None:
    """Whatever the peer's box contains, a queue pair writes only into its posted receives."""
    peer, local = pair(_RING_BYTES)
    for number in range(_RECEIVES):
        local.receive(number, (_RECEIVES_BEGIN + number * _RECEIVE_BYTES, _RECEIVE_BYTES))
    local.post(send(1, b"outstanding"))
    _fill(peer.box, content)
    for _ in range(_POLLS):
        local.lane.poll()
        local.deliver()
    view = local.memory.view
    if any(view[:_RECEIVES_BEGIN]) or any(view[_RECEIVES_END : _RECEIVES_END + _RECEIVE_BYTES]):
        raise AssertionError("memory outside of the posted receives was changed")
    if len(local.received) > _RECEIVES:
        raise AssertionError("more receives completed than were posted")


def _boxes() -> Iterator[bytes]:
    peer, _ = pair(_RING_BYTES)
    for number, data in enumerate((b"", b"x" * 44, b"y" * 500, b"z" * 2000)):
        peer.post(send(number, data, immediate=number if number % 2 else None))
    yield from _content(peer.box)


def _datagramLane() -> tuple[DatagramLane, memoryview, memoryview]:
    """Return a lane, the box that it writes, and the box of its peer."""
    local, peer = (memoryview(bytearray(HEADER_BYTES + _RING_BYTES)) for _ in range(2))
    lane = DatagramLane(("192.0.2.1", 4791), local, lambda: None)
    lane.attach(peer)
    return lane, local, peer


def _datagrams(content: bytes) -> None:
    """Whatever the peer's box contains, datagrams taken from it are not longer than its ring."""
    lane, _, peer = _datagramLane()
    _fill(peer, content)
    try:
        for _ in range(_POLLS):
            found = lane.take()
            if len(found) > AT_ONCE or any(len(packet) > _RING_BYTES for packet in found):
                raise AssertionError("more datagrams, or longer ones, than the ring can hold")
            lane.taken()
    except ValueError:
        pass
    lane.put((b"head", b"payload"), 12)
    lane.announce()


def _datagramBoxes() -> Iterator[bytes]:
    lane, local, _ = _datagramLane()
    for size in (0, 24, 500, 2000):
        lane.put((bytes(size),), size)
    yield from _content(local)


def _messages() -> Iterator[bytes]:
    hello = Hello(kind=RendezvousKind.HELLO, magic=MAGIC, version=VERSION, port=4791, address=GID(bytes(16)))
    yield hello.encode()
    yield Join(kind=RendezvousKind.JOIN, source=QPN(5), destination=QPN(6)).encode()
    yield DoorbellNotice(kind=RendezvousKind.DOORBELL, number=7).encode()
    yield DatagramRingOffer(kind=RendezvousKind.DATAGRAM_RING, number=7).encode()
    yield PairNotice(kind=RendezvousKind.LEAVE, source=QPN(5), destination=QPN(6)).encode()
    yield RegionReply(kind=RendezvousKind.REGION_REPLY, length=4096, validOffset=4096).encode()


TARGETS = {
    "rendezvous": Target(_rendezvous, _messages),
    "box": Target(_box, _boxes),
    "datagrams": Target(_datagrams, _datagramBoxes),
}
