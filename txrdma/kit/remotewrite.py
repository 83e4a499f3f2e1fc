"""
Samples in the encoding of Prometheus' remote write.

Follows the Prometheus Remote-Write 1.0 specification: a C{WriteRequest} of Protocol Buffers, compressed by
snappy's block format. A request has at most one sample of each series, so that it can be repeated: receivers
accept a sample that they already have, but not one that is older than the last.
"""

from __future__ import annotations

from collections.abc import Iterable
from struct import Struct
from typing import Final

HEADERS: Final = {
    "Content-Type": "application/x-protobuf",
    "Content-Encoding": "snappy",
    "X-Prometheus-Remote-Write-Version": "0.1.0",
}
"""Headers of a request."""

_TIME_SERIES = b"\x0a"  # WriteRequest.timeseries
_LABEL = b"\x0a"  # TimeSeries.labels
_SAMPLE: Final = Struct("<BBBd")  # TimeSeries.samples: tag 0x12 and length; Sample.value: tag 9 and value
_NAME, _TEXT = b"\x0a", b"\x12"  # of a Label
_TIMESTAMP = b"\x10"  # Sample.timestamp


def _varint(number: int) -> bytes:
    found = bytearray()
    while number > 0x7F:
        found.append(number & 0x7F | 0x80)
        number >>= 7
    found.append(number)
    return bytes(found)


_LENGTHS: Final = tuple(map(_varint, range(1024)))


def _field(tag: bytes, content: bytes) -> bytes:
    length = len(content)
    return tag + (_LENGTHS[length] if length < 1024 else _varint(length)) + content


def encodeLabel(name: str, value: str) -> bytes:
    """Encode a label of a series. Labels follow each other in the order of their names."""
    return _field(_LABEL, _field(_NAME, name.encode()) + _field(_TEXT, value.encode()))


def encodeTime(milliseconds: int) -> bytes:
    """Encode the time of a sample, in milliseconds since 1970."""
    return _TIMESTAMP + _varint(milliseconds)


def encodeSample(labels: bytes, value: float, time: bytes) -> bytes:
    """
    Encode a series with one sample, as a part of a request.

    @param labels: encoded labels; C{time}: encoded time.
    """
    return _field(_TIME_SERIES, labels + _SAMPLE.pack(0x12, 9 + len(time), 9, value) + time)


def compressRequest(samples: Iterable[bytes]) -> bytes:
    """Return the body of a request with these samples. Raises ImportError if cramjam is not installed."""
    import cramjam

    return bytes(cramjam.snappy.compress_raw(b"".join(samples)))
