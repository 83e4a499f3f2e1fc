"""
What processes read of each other on one host: messages of the rendezvous, and the peer's box.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import Target

from txrdma.error import WireError
from txrdma.iba.types import GID, QPN
from txrdma.soft.shared._datagrams import AT_ONCE, DatagramLane
from txrdma.soft.shared._layout import HEADER_BYTES
from txrdma.soft.shared._rendezvous import (
    Bell,
    decode,
    Hello,
    Join,
    MAGIC,
    Mail,
    MessageKind,
    Note,
    Region,
    VERSION,
)
from txrdma.test.soft.lanes import pair, send

_RING = 4096
_PLACE = 1024
_ROOM = 256


def _message(content: bytes) -> None:
    """A message is one whose bytes are its own, or a WireError."""
    try:
        decoded, rest = decode(content)
    except WireError:
        return
    if decoded.size + len(rest) != len(content):
        raise AssertionError("not all of it")


def _box(content: bytes) -> None:
    """Whatever a peer writes: nothing outside of the posted receives changes, and looking comes to an end."""
    one, other = pair(_RING)
    for number in range(4):
        other.receive(number, (_PLACE + number * _ROOM, _ROOM))
    other.post(send(1, b"outstanding"))
    one.box[HEADER_BYTES : HEADER_BYTES + min(len(content), _RING)] = content[:_RING]
    rest = content[_RING : _RING + HEADER_BYTES]
    one.box[: len(rest)] = rest
    for _ in range(12):
        other.lane.poll()
        other.deliver()
    view = other.memory.view
    if any(view[:_PLACE]) or any(view[_PLACE + 4 * _ROOM : _PLACE + 5 * _ROOM]):
        raise AssertionError("a foreign byte")
    if len(other.received) > 4:
        raise AssertionError("more receives than were posted")


def _datagrams(content: bytes) -> None:
    """Whatever stands in a ring of datagrams, what is taken stands there, and looking comes to an end."""
    boxes = [memoryview(bytearray(HEADER_BYTES + _RING)) for _ in range(2)]
    lane = DatagramLane(("192.0.2.1", 4791), boxes[0], lambda: None)
    lane.attach(boxes[1])
    boxes[1][HEADER_BYTES : HEADER_BYTES + min(len(content), _RING)] = content[:_RING]
    rest = content[_RING : _RING + HEADER_BYTES]
    boxes[1][: len(rest)] = rest
    try:
        for _ in range(12):
            found = lane.take()
            if len(found) > AT_ONCE or any(len(packet) > _RING for packet in found):
                raise AssertionError("more than there can be")
            lane.taken()
    except ValueError:
        pass
    lane.put((b"head", b"payload"), 12)
    lane.announce()


def _rings() -> Iterator[bytes]:
    boxes = [memoryview(bytearray(HEADER_BYTES + _RING)) for _ in range(2)]
    lane = DatagramLane(("192.0.2.1", 4791), boxes[0], lambda: None)
    lane.attach(boxes[1])
    for size in (0, 24, 500, 2000):
        lane.put((bytes(size),), size)
    yield bytes(boxes[0][HEADER_BYTES:])
    yield bytes(boxes[0][HEADER_BYTES:]) + bytes(boxes[0][:HEADER_BYTES])


def _messages() -> Iterator[bytes]:
    hello = Hello(kind=MessageKind.HELLO, magic=MAGIC, version=VERSION, port=4791, address=GID(bytes(16)))
    yield hello.encode()
    yield Join(kind=MessageKind.JOIN, source=QPN(5), destination=QPN(6)).encode()
    yield Bell(kind=MessageKind.BELL, number=7).encode()
    yield Mail(kind=MessageKind.MAIL, number=7).encode()
    yield Note(kind=MessageKind.LEAVE, source=QPN(5), destination=QPN(6)).encode()
    yield Region(kind=MessageKind.REGION, length=4096, validOffset=4096).encode()


def _boxes() -> Iterator[bytes]:
    one, other = pair(_RING)
    for number, data in enumerate((b"", b"x" * 44, b"y" * 500, b"z" * 2000)):
        one.post(send(number, data, immediate=number if number % 2 else None))
    yield bytes(one.box[HEADER_BYTES:])
    yield bytes(one.box[HEADER_BYTES:]) + bytes(one.box[:HEADER_BYTES])


TARGETS = {
    "rendezvous": Target(_message, _messages),
    "box": Target(_box, _boxes),
    "datagrams": Target(_datagrams, _rings),
}
