"""
Messages between a monitor and a collector: requests and their results, in batches.

First both ends prove that they have the common key: see L{txrdma.kit.proofs}. Then each message follows its
length (C{Int32StringReceiver})::

    collector                                             monitor
      <------------------------------ timeout and retries of calls
      <------------------------------------------ requests ...
      results ... ------------------------------------------>

Only the calls in L{READABLE} can be made: collectors read and change nothing. A request reads attributes of
several ports of a node one after the other, and has one result.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from struct import error as StructError
from struct import Struct
from typing import Final, NamedTuple

from txrdma.error import WireError
from txrdma.mad.layouts.attributes import Attribute
from txrdma.mad.layouts.messages import ClassPortInfo
from txrdma.mad.layouts.pma import PortCounters, PortCountersExtended
from txrdma.mad.layouts.smp import NodeInfo, PortInfo

COLLECTOR, MONITOR = 0, 1
"""Ranks of the ends in their proofs."""

MOST_CALLS: Final = 2048
"""Maximum number of requests of a connection without a result."""

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
"""Indices of the attributes with counters, whose payload has the number of the port; of others it is zero."""

READ, REFUSED = b"\0", b"\1"
"""
First byte of each port in a result. After L{READ} come the attributes, after L{REFUSED} two bytes, the MAD
status.
"""

COMPLETE, SILENT, FAILED = range(3)
"""Results: all ports, those that were read before an answer was missing, and any other failure."""

_HIGHEST_LID: Final = 0xBFFF  # IBA 4.1.3
_STATUS_BYTES: Final = 2

_VERSION: Final = 2
"""Version of these messages, the first byte of the settings; version 1 had none."""

_MOST_MILLISECONDS: Final = 0xFFFFFFFF

_SETTINGS: Final = Struct(">BIB")
_REQUEST: Final = Struct(">IHBH")
_RESULT: Final = Struct(">IBI")


class PortsRequest(NamedTuple):
    """
    A request to read attributes of ports.

    @ivar identifier: chosen by the monitor, and repeated by the result.
    @ivar lid: LID of the ports.
    @ivar attributes: indices in L{READABLE}, each once.
    @ivar ports: numbers of the ports, each once, so that a request causes a bounded number of calls.
    """

    identifier: int
    lid: int
    attributes: bytes
    ports: bytes


class PortsResult(NamedTuple):
    """
    The result of a request.

    @ivar kind: L{COMPLETE}, L{SILENT} or L{FAILED}.
    @ivar content: ports, as L{decodePorts} reads them, or the text of a failure.
    """

    identifier: int
    kind: int
    content: bytes


def encodeSettings(timeoutSeconds: float, retries: int) -> bytes:
    """Return the time to wait for each answer, and the number of retries."""
    return _SETTINGS.pack(_VERSION, min(round(timeoutSeconds * 1000), _MOST_MILLISECONDS), retries)


def decodeSettings(data: bytes) -> tuple[float, int]:
    """@raise WireError: the monitor uses another version of these messages, or the time is 0."""
    if len(data) != _SETTINGS.size or data[0] != _VERSION:
        raise WireError("collector", 0, "the monitor and its collectors need the same version of txrdma")
    _version, milliseconds, retries = _SETTINGS.unpack(data)
    if not milliseconds:
        raise WireError("collector", 0, "the timeout is 0")
    return milliseconds / 1000, retries


def encodeRequests(requests: Iterable[PortsRequest]) -> bytes:
    """Return a message with requests."""
    pack = _REQUEST.pack
    parts: list[bytes] = []
    for identifier, lid, attributes, ports in requests:
        parts += (pack(identifier, lid, len(attributes), len(ports)), attributes, ports)
    return b"".join(parts)


def decodeRequests(data: bytes) -> Iterator[PortsRequest]:
    """
    Yield the requests of a message.

    @raise WireError: the message is incomplete, or has another call, or the same call twice in a request.
    """
    for (identifier, lid), (attributes, ports) in _items(_REQUEST, 2, data):
        if not attributes or not ports or max(attributes) >= len(READABLE):
            raise WireError("collector", 0, f"there is no call {attributes.hex()} of {len(ports)} ports")
        if any(len(set(numbers)) < len(numbers) for numbers in (attributes, ports)):
            raise WireError("collector", 0, "an attribute or a port is repeated in a request")
        if not 0 < lid <= _HIGHEST_LID:
            raise WireError("collector", 0, f"{lid:#x} is not a unicast LID")
        yield PortsRequest(identifier, lid, attributes, ports)


def encodeResults(results: Iterable[PortsResult]) -> bytes:
    """Return a message with results."""
    pack = _RESULT.pack
    parts: list[bytes] = []
    for identifier, kind, content in results:
        parts += (pack(identifier, kind, len(content)), content)
    return b"".join(parts)


def decodeResults(data: bytes) -> Iterator[PortsResult]:
    """@raise WireError: the message is incomplete."""
    for (identifier, kind), (content,) in _items(_RESULT, 1, data):
        yield PortsResult(identifier, kind, content)


def _items(head: Struct, lengths: int, data: bytes) -> Iterator[tuple[list[int], list[bytes]]]:
    """Yield the head of each item, and the bytes after it; the last numbers of the head are their lengths."""
    at, end, size = 0, len(data), head.size
    while at < end:
        try:
            values = head.unpack_from(data, at)
        except StructError:
            raise WireError("collector", at, "an item is incomplete") from None
        at += size
        parts = []
        for length in values[-lengths:]:
            parts.append(data[at : at + length])
            at += length
        if at > end:
            raise WireError("collector", at, "an item is incomplete")
        yield list(values[:-lengths]), parts


def decodePorts(size: int, most: int, content: bytes) -> list[bytes | int]:
    """
    Return the attributes of the ports in a result, or the MAD status of a refusal.

    @param size: bytes of all attributes of a port.
    @param most: number of ports of the request.
    @raise WireError: the content is incomplete, or has more ports.
    """
    ports: list[bytes | int] = []
    at, end = 0, len(content)
    while at < end and len(ports) < most:
        isRead = content[at : at + 1] == READ
        begin, at = at + 1, at + 1 + (size if isRead else _STATUS_BYTES)
        port = content[begin:at]
        ports.append(port if isRead else int.from_bytes(port, "big"))
    if at != end:
        raise WireError("collector", at, "a port is incomplete, or there are too many")
    return ports
