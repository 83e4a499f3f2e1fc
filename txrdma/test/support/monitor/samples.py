"""Decodes requests of Prometheus' remote write, for tests."""

from __future__ import annotations

import struct
from importlib.util import find_spec

isMissing = find_spec("cramjam") is None
MISSING = "cramjam is not installed: pip install 'txrdma[remote-write]'"


def fields(message: bytes) -> list[tuple[int, object]]:
    """Decode a message of Protocol Buffers as numbers of fields and values; doubles as eight octets."""
    found: list[tuple[int, object]] = []
    at = 0

    def varint() -> int:
        nonlocal at
        value = shift = 0
        while True:
            octet = message[at]
            at += 1
            value |= (octet & 0x7F) << shift
            shift += 7
            if octet < 0x80:
                return value

    while at < len(message):
        number, kind = divmod(varint(), 8)
        if kind == 0:
            found.append((number, varint()))
            continue
        length = 8 if kind == 1 else varint()
        found.append((number, message[at : at + length]))
        at += length
    return found


Sample = tuple[dict[str, str], float, int]
"""Labels, value, and time in milliseconds."""


def samplesIn(body: bytes) -> list[Sample]:
    import cramjam

    found: list[Sample] = []
    for _number, series in fields(bytes(cramjam.snappy.decompress_raw(body))):
        assert isinstance(series, bytes)
        *names, (_kind, sample) = fields(series)
        assert isinstance(sample, bytes)
        (_, value), (_, time) = fields(sample)
        assert isinstance(value, bytes) and isinstance(time, int)
        pairs: list[list[str]] = [[text.decode() for _, text in fields(one)] for _, one in names]  # type: ignore[attr-defined,arg-type]  # bytes
        found.append((dict(pairs), struct.unpack("<d", value)[0], time))
    return found
