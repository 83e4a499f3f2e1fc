"""
The layouts of management datagrams in other programs: libibmad, by experiments, tshark's dissector, the
declarations of python-rdma, and published definitions.

C{txrdma/test/vectors/README.md} documents the origin of the lists.
"""

from __future__ import annotations

import re
import struct
from collections.abc import Iterator, Sequence
from functools import cache
from importlib.resources import files
from typing import NamedTuple
from xml.etree import ElementTree

from txrdma.kit.wire import Layout
from txrdma.test.support.tshark import captureOf, ERF, ETHERNET, runTshark

_PAYLOAD_AT = 14 + 20 + 8 + 12 + 8
"""Offset of the datagram in a packet: after Ethernet, IPv4, UDP, BTH and DETH."""


class Place(NamedTuple):
    offset: int
    width: int
    name: str


def placesOf(layout: type[Layout], base: int = 0) -> Iterator[tuple[Place, bool]]:
    """Return the positions of txrdma's fields, also in layouts and arrays, and whether each is reserved."""
    for field in layout.fields:
        for index in range(field.count or 1):
            offset = base + field.offset + index * field.width
            name = field.name if field.count is None else f"{field.name}[{index}]"
            if isinstance(field.type, type) and issubclass(field.type, Layout):
                yield from placesOf(field.type, offset)
            else:
                yield Place(offset, field.width, name), field.reserved


@cache
def libibmad() -> dict[int, Place]:
    rows = [line.split() for line in _lines("libibmad-fields.txt")]
    return {int(number): Place(int(offset), int(width), name) for number, offset, width, name in rows}


@cache
def pythonRDMA() -> dict[str, tuple[int, list[Place]]]:
    """Return the structures of python-rdma by name: length in bytes, and fields, including inner ones."""
    plain: dict[str, tuple[int, list[tuple[Place, int, str]]]] = {}
    for line in _lines("python-rdma-fields.txt"):
        words = line.split()
        if not line.startswith(" "):
            name = words[0]
            plain[name] = (int(words[1]), [])
        else:
            place = Place(int(words[0]), int(words[1]), words[4])
            plain[name][1].append((place, int(words[2]), words[3]))

    def places(name: str, base: int = 0) -> Iterator[Place]:
        for place, count, inner in plain[name][1]:
            if count > 1 and place.width == 8:  # txrdma has bytes there, not numbers
                yield Place(base + place.offset, count * 8, place.name)
                continue
            for index in range(count):
                offset = base + place.offset + index * place.width
                if inner != "-":
                    yield from places(inner, offset)
                else:
                    yield Place(offset, place.width, place.name)

    return {name: (size, list(places(name))) for name, (size, _) in plain.items()}


@cache
def published() -> dict[str, list[Place]]:
    """Return published fields of single structures, by txrdma's names."""
    found: dict[str, list[Place]] = {}
    for line in _lines("published-fields.txt"):
        words = line.split()
        if not line.startswith(" "):
            places = found.setdefault(words[0], [])
        else:
            places.append(Place(int(words[0]), int(words[1]), words[2]))
    return found


@cache
def componentBits() -> dict[str, list[tuple[int, str]]]:
    found: dict[str, list[tuple[int, str]]] = {}
    for line in _lines("component-masks.txt"):
        words = line.split()
        if not line.startswith(" "):
            bits = found.setdefault(words[0], [])
        else:
            bits.append((int(words[0]), words[1]))
    return found


def tiled(place: Place, tiles: set[tuple[int, int]]) -> bool:
    """Return whether some of C{tiles} fill the range without gaps."""
    widths: dict[int, list[int]] = {}
    for offset, width in tiles:
        widths.setdefault(offset, []).append(width)
    ends = {place.offset}
    reached = set(ends)
    while ends:
        ends = {end + width for end in ends for width in widths.get(end, ())} - reached
        reached |= ends
    return place.offset + place.width in reached


def _lines(name: str) -> Iterator[str]:
    text = files("txrdma.test").joinpath(f"vectors/{name}").read_text()
    return (line for line in text.splitlines() if line.strip() and not line.startswith("#"))


def tshark(datagrams: Sequence[bytes]) -> list[list[Place]]:
    """
    Return the positions that tshark shows in each datagram.

    @raise SkipTest: it is not installed.
    """
    return _dissected([packetOf(datagram) for datagram in datagrams], ETHERNET, _PAYLOAD_AT)


def tsharkLinks(packets: Sequence[bytes]) -> list[list[Place]]:
    """
    Return the positions that tshark shows in each packet of an InfiniBand link, from its LRH on.

    @raise SkipTest: it is not installed.
    """
    records = [bytes(8) + struct.pack(">BBHHH", 21, 4, 16 + len(one), 0, len(one)) + one for one in packets]
    return _dissected(records, ERF, 0)


def _dissected(packets: Sequence[bytes], link: int, begin: int) -> list[list[Place]]:
    with captureOf(packets, link) as capture:
        content = runTshark(capture, "-T", "pdml")
    return [list(_shown(packet, begin)) for packet in ElementTree.fromstring(content)]


def packetOf(datagram: bytes) -> bytes:
    """Return a RoCE v2 packet with this datagram, from its Ethernet header on."""
    isSMP = datagram[1] & 0x7F == 1
    number = 0 if isSMP else 1
    bth = struct.pack(">BBHII", 0x64, 0, 0xFFFF, number, 0)
    content = bth + struct.pack(">II", 0x80010000, number) + datagram + bytes(4)
    udp = struct.pack(">HHHH", 0xC000, 4791, 8 + len(content), 0) + content
    addresses = bytes((192, 0, 2, 1, 192, 0, 2, 2))
    ip = struct.pack(">BBHHHBBH", 0x45, 0, 20 + len(udp), 0, 0, 64, 17, 0) + addresses
    return bytes.fromhex("0200000000010200000000020800") + ip + udp


def _shown(packet: ElementTree.Element, begin: int) -> Iterator[Place]:
    for field in packet.iter("field"):
        name, shown = field.get("name", ""), field.get("showname", "")
        size, position = int(field.get("size", 0)), int(field.get("pos", 0)) - begin
        if not name.startswith("infiniband.") or not size or position < 0:
            continue
        offset, width = position * 8, size * 8
        pattern = re.match(r"[01. ]+(?= = )", shown)
        if pattern is not None:
            bits = pattern[0].replace(" ", "")
            offset += len(bits) - len(bits.lstrip("."))
            width = len(bits.strip("."))
        yield Place(offset, width, name.removeprefix("infiniband."))
