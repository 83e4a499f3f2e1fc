"""
Type information (BTF) of a map whose keys and values are integers, which storage of sockets insists on.

Follows C{Documentation/bpf/btf.rst} of the kernel. Numbers are in this host's byte order.
"""

from __future__ import annotations

import sys
from typing import Final

from txrdma.kit.wire import bits, Layout, wire


@wire(24, little=sys.byteorder == "little")
class _BTFHeader(Layout):
    """The header of type information (Documentation/bpf/btf.rst of the kernel, 2)."""

    magic: int = bits(16)
    version: int = bits(8)
    flags: int = bits(8)
    headerBytes: int = bits(32)
    typesOffset: int = bits(32)
    typesBytes: int = bits(32)
    namesOffset: int = bits(32)
    namesBytes: int = bits(32)


@wire(16, little=sys.byteorder == "little")
class _BTFInteger(Layout):
    """The description of an integer (2.2.1 there)."""

    name: int = bits(32)
    kind: int = bits(32)
    bytes: int = bits(32)
    encoding: int = bits(32)


_NAMES: Final = b"\0int\0"


def encodeTypes() -> bytes:
    """The type information of a map: one type, number 1, an integer of 4 bytes."""
    integer = _BTFInteger(name=1, kind=1 << 24, bytes=4, encoding=32).encode()
    header = _BTFHeader(
        magic=0xEB9F,
        version=1,
        flags=0,
        headerBytes=_BTFHeader.size,
        typesOffset=0,
        typesBytes=len(integer),
        namesOffset=len(integer),
        namesBytes=len(_NAMES),
    )
    return header.encode() + integer + _NAMES
