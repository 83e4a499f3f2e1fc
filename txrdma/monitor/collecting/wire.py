"""
Messages between a monitor and a collector: calls and their results, in batches.

First both ends prove that they have the common key: see L{txrdma.kit.proofs}. Then each message follows its
length (C{Int32StringReceiver})::

    collector                                             monitor
      <------------------------------ timeout and retries of calls
      <--------------------------------------------- calls ...
      results ... ------------------------------------------>

Only the calls in L{READABLE} can be made: collectors read and change nothing. A series reads the counters
of several ports of a node one after the other, and has one result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import error as StructError
from struct import Struct
from typing import Any, Final, NamedTuple

from txrdma.error import WireError
from txrdma.mad.layouts.attributes import Attribute
from txrdma.mad.layouts.messages import ClassPortInfo
from txrdma.mad.layouts.pma import PortCounters, PortCountersExtended
from txrdma.mad.layouts.smp import NodeInfo, PortInfo

COLLECTOR, MONITOR = 0, 1
"""Ranks of the ends in their proofs."""

MOST_CALLS: Final = 2048
"""Maximum number of calls of a connection without a result."""

MOST_BYTES: Final = 16 << 20
"""Maximum length of a message in bytes: the results of some hundred switches."""

READABLE: Final[tuple[tuple[str, type[Attribute]], ...]] = (
    ("PerformanceGet", ClassPortInfo),
    ("PerformanceGet", PortCounters),
    ("PerformanceGet", PortCountersExtended),
    ("SubnGet", NodeInfo),
    ("SubnGet", PortInfo),
)
"""The calls that a collector makes; messages have the index."""

COUNTERS: Final = (1, 2)
"""Indices of the attributes with counters of a port."""

SERIES: Final = 0xFF
"""Marks a series of attributes, in place of an attribute's index; see L{encodeSeries}."""

READ, REFUSED_PORT = b"\0", b"\1"
"""First byte of each port in the result of a series; after L{READ} come the attributes."""

ANSWERED, REFUSED, SILENT, FAILED = range(4)
"""Results: an answer, a MAD status, no answer in time, and any other failure."""

_HIGHEST_LID: Final = 0xBFFF  # IBA 4.1.3

_SETTINGS: Final = Struct(">IB")
_CALL: Final = Struct(">IHBIH")
_RESULT: Final = Struct(">IBHI")


class Request(NamedTuple):
    """
    A call.

    @ivar identifier: chosen by the monitor, and repeated by the result.
    @ivar lid: LID of the port.
    @ivar what: index in L{READABLE}, or L{SERIES}.
    @ivar modifier: attribute modifier.
    @ivar content: payload of the request; C{b""} for zeros.
    """

    identifier: int
    lid: int
    what: int
    modifier: int
    content: bytes


class Result(NamedTuple):
    """
    The result of a call.

    @ivar kind: L{ANSWERED}, L{REFUSED}, L{SILENT} or L{FAILED}.
    @ivar status: MAD status of a refusal.
    @ivar content: the attribute, the text of a failure, or the ports of a series; for a silent node those
        that were read before.
    """

    identifier: int
    kind: int
    status: int
    content: bytes


def encodeSettings(timeoutSeconds: float, retries: int) -> bytes:
    """Return the time to wait for each answer, and the number of retries."""
    return _SETTINGS.pack(round(timeoutSeconds * 1000), retries)


def decodeSettings(data: bytes) -> tuple[float, int]:
    """@raise WireError: the length is wrong, or the time is 0."""
    if len(data) != _SETTINGS.size:
        raise WireError("collector", 0, "the settings have the wrong length")
    milliseconds, retries = _SETTINGS.unpack(data)
    if not milliseconds:
        raise WireError("collector", 0, "the timeout is 0")
    return milliseconds / 1000, retries


def encodeRequests(requests: Iterable[Request]) -> bytes:
    """Return a message with calls."""
    pack = _CALL.pack
    parts: list[bytes] = []
    for identifier, lid, what, modifier, content in requests:
        parts += (pack(identifier, lid, what, modifier, len(content)), content)
    return b"".join(parts)


def decodeRequests(data: bytes) -> Iterator[Request]:
    """Yield the calls of a message. Raises L{WireError} for an incomplete message, or another call."""
    for (identifier, lid, what, modifier), content in _items(_CALL, data):
        if what >= len(READABLE) and what != SERIES:
            raise WireError("collector", 0, f"there is no call {what}")
        if not 0 < lid <= _HIGHEST_LID:
            raise WireError("collector", 0, f"{lid:#x} is not a unicast LID")
        yield Request(identifier, lid, what, modifier, content)


def encodeSeries(attributes: Iterable[int], ports: bytes) -> bytes:
    """Return the content of a series of attributes, by indices in L{COUNTERS}, and numbers of ports."""
    indices = bytes(attributes)
    return bytes((len(indices),)) + indices + ports


def decodeSeries(content: bytes) -> tuple[bytes, bytes]:
    """Return the attributes and ports of a series. Raises L{WireError} if there are none."""
    count = content[0] if content else 0
    attributes, ports = content[1 : 1 + count], content[1 + count :]
    if not attributes or not ports or not set(attributes) <= set(COUNTERS):
        raise WireError("collector", 0, "a series has no counters or no ports")
    return attributes, ports


def encodeResults(results: Iterable[Result]) -> bytes:
    """Return a message with results."""
    pack = _RESULT.pack
    parts: list[bytes] = []
    for identifier, kind, status, content in results:
        parts += (pack(identifier, kind, status, len(content)), content)
    return b"".join(parts)


def decodeResults(data: bytes) -> Iterator[Result]:
    """@raise WireError: the message is incomplete."""
    for (identifier, kind, status), content in _items(_RESULT, data):
        yield Result(identifier, kind, status, content)


def _items(head: Struct, data: bytes) -> Iterator[tuple[tuple[Any, ...], bytes]]:
    """Yield the head of each item, and the bytes after it, whose length is the last number of the head."""
    at, end, size = 0, len(data), head.size
    while at < end:
        try:
            *values, length = head.unpack_from(data, at)
        except StructError:
            raise WireError("collector", at, "an item is incomplete") from None
        at += size + length
        if at > end:
            raise WireError("collector", at, "an item is incomplete")
        yield tuple(values), data[at - length : at]
