"""
Functions that read and write single fields of encoded layouts.

Decoding a L{Layout} creates all of its fields. A fabric of ten thousand hosts has a hundred thousand ports,
which are stored encoded, and one or two fields of each are read::

    lmcOf = peek(PortInfo, "lmc")
    lmcOf(raw)          # as PortInfo.decode(raw).lmc, in a fiftieth of the time

Numbers and enumerations are read as C{int}, value classes and bytes as C{bytes}. Written numbers are checked
for their width only. Buffers must be as long as the layout.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from operator import itemgetter
from struct import Struct
from typing import Any

from txrdma.kit.wire import Buffer, Layout
from txrdma.kit.wirefield import Field

_WHOLE = {8: Struct(">B"), 16: Struct(">H"), 32: Struct(">I"), 64: Struct(">Q")}


def peek(layout: type[Layout], name: str) -> Callable[[Buffer], Any]:
    """
    Return a function that reads one field of a big-endian layout.

    @raise AttributeError: the layout has no such field, or it is an array.
    """
    field = _field(layout, name)
    first, last, shift, mask = _location(field)
    if not issubclass(field.type, int):
        return itemgetter(slice(first, last))
    if last - first == 1:
        if field.width == 8:
            return itemgetter(first)
        if not shift:
            return lambda raw: raw[first] & mask
        if shift + field.width == 8:
            return lambda raw: raw[first] >> shift
        return lambda raw: raw[first] >> shift & mask
    if not field.offset % 8 and field.width in _WHOLE:
        unpack = _WHOLE[field.width].unpack_from
        return lambda raw: unpack(raw, first)[0]
    return lambda raw: int.from_bytes(raw[first:last], "big") >> shift & mask


def peeks(layout: type[Layout], names: Sequence[str]) -> Callable[[Buffer, int], tuple[int, ...]]:
    """
    Return a function that reads two or more number fields of a big-endian layout at an offset.

    @raise AttributeError: the layout has no such field, or it is an array.
    @raise ValueError: the bytes of a field are not 1, 2, 4 or 8, or overlap those of another field in part.
    """
    locations = {name: _location(_field(layout, name)) for name in names}
    form, end = ">", 0
    index: dict[int, int] = {}
    for first, last in sorted({place[:2] for place in locations.values()}):
        if first < end or (last - first) * 8 not in _WHOLE:
            raise ValueError(f"{layout.__name__} has no byte-aligned number at byte {first}")
        index[first] = len(index)
        form += f"{first - end}x{_WHOLE[(last - first) * 8].format[1:]}"
        end = last
    unpack = Struct(form).unpack_from
    picked = itemgetter(*(index[locations[name][0]] for name in names))
    parts = [
        (at, shift, mask)
        for at, (first, last, shift, mask) in enumerate(locations[name] for name in names)
        if mask.bit_length() < (last - first) * 8
    ]
    if not parts:
        return lambda raw, offset: picked(unpack(raw, offset))

    def read(raw: Buffer, offset: int) -> tuple[int, ...]:
        values = list(picked(unpack(raw, offset)))
        for at, shift, mask in parts:
            values[at] = values[at] >> shift & mask
        return tuple(values)

    return read


def poke(layout: type[Layout], name: str) -> Callable[[bytearray, int], None]:
    """
    Return a function that writes one number field of a big-endian layout, and leaves other fields unchanged.

    @raise AttributeError: the layout has no such field, or it is an array.
    """
    field = _field(layout, name)
    first, last, shift, mask = _location(field)

    def whole(raw: bytearray, value: int) -> None:
        raw[first] = value  # raises ValueError if the value is not a byte

    def part(raw: bytearray, value: int) -> None:
        if value & ~mask:
            raise ValueError(f"{layout.__name__}.{name} has {field.width} bits: {value!r} is too large")
        raw[first] = raw[first] & others | value << shift

    def several(raw: bytearray, value: int) -> None:
        if value & ~mask:
            raise ValueError(f"{layout.__name__}.{name} has {field.width} bits: {value!r} is too large")
        before = int.from_bytes(raw[first:last], "big") & ~(mask << shift)
        raw[first:last] = (before | value << shift).to_bytes(last - first, "big")

    others = ~(mask << shift) & 0xFF
    return several if last - first > 1 else part if field.width < 8 else whole


def span(layout: type[Layout], begin: str, end: str = "") -> slice:
    """
    Return the slice of a layout's bytes from one field to another, both included; C{end} may be omitted.

    @raise AttributeError: the layout has no such field, or it is an array.
    """
    return slice(_location(_field(layout, begin))[0], _location(_field(layout, end or begin))[1])


def _field(layout: type[Layout], name: str) -> Field:
    for field in layout.fields:
        if field.name == name and field.count is None:
            return field
    raise AttributeError(f"{layout.__name__} has no field {name!r}")


def _location(field: Field) -> tuple[int, int, int, int]:
    """Return a field's first byte and the byte after its last, and its shift and mask in their number."""
    end = field.offset + field.width
    last = -(-end // 8)
    return field.offset // 8, last, last * 8 - end, (1 << field.width) - 1
