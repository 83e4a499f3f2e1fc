"""
Decoders of management datagrams: every structure, what a datagram is taken for, and structures from JSON.
"""

from __future__ import annotations

import json
from collections.abc import Iterator

from harness import Target

from txrdma.error import WireError
from txrdma.mad.attributes import plain
from txrdma.mad.dump import dumped, payloadOf
from txrdma.mad.plain import fromPlain
from txrdma.test.mad.structures import attributes, datagram, structures
from txrdma.testing.captures import packets

_STRUCTURES = structures()


def _seeds() -> Iterator[bytes]:
    """Some of each."""
    for number, kind in enumerate(_STRUCTURES):
        yield bytes((number,)) + bytes(range(256))[: kind.size].ljust(kind.size, b"\x55")


def _structure(raw: bytes) -> None:
    """The first byte says of what; the same comes of reading what was written, and of JSON, told again."""
    if not raw:
        return
    kind = _STRUCTURES[raw[0] % len(_STRUCTURES)]
    try:
        read = kind.decode(raw, 1)
    except WireError:
        if len(raw) > kind.size:
            raise
        return
    if read.encode() != raw[1 : 1 + kind.size]:
        raise AssertionError(f"{read!r} does not give the bytes it was read from")
    told = json.loads(json.dumps(plain(read)))
    if plain(fromPlain(kind, told)) != told:
        raise AssertionError(f"{told} became another")
    str(read)


def _json(raw: bytes) -> None:
    """Whatever JSON says, a structure comes of it that can be written, or a ValueError."""
    if not raw:
        return
    kind = _STRUCTURES[raw[0] % len(_STRUCTURES)]
    try:
        values = json.loads(raw[1:])
        if isinstance(values, dict):
            fromPlain(kind, values).encode()
    except (ValueError, RecursionError):
        pass


def _told() -> Iterator[bytes]:
    for number, kind in enumerate(_STRUCTURES):
        yield bytes((number,)) + json.dumps(plain(kind())).encode()


def _datagram(raw: bytes) -> None:
    """Anything can be dumped."""
    dumped(raw, 3)
    try:
        payloadOf(raw)
    except WireError:
        pass


def _datagrams() -> Iterator[bytes]:
    for name in ("mad-perf-get", "mad-rmpp", "rping", "cm-reject"):
        yield from (captured.packet.payload for captured in packets(name))
    yield from (datagram(kind) for kind in attributes())


TARGETS = {
    "management structures": Target(_structure, _seeds),
    "structures from JSON": Target(_json, _told),
    "dumped datagrams": Target(_datagram, _datagrams),
}
