"""
Fuzz targets of the messages between a fabric monitor and its collectors.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import Target

from txrdma.error import WireError
from txrdma.monitor.collecting import wire

_SIZE = 64


def _requests(message: bytes) -> None:
    """Requests are decoded or refused, each has a bounded number of calls, and all are the message."""
    try:
        requests = list(wire.decodeRequests(message))
    except WireError:
        return
    assert all(0 < len(one.attributes) <= len(wire.READABLE) for one in requests)
    assert all(0 < len(one.ports) <= 256 for one in requests)
    assert wire.encodeRequests(requests) == message


def _results(message: bytes) -> None:
    """Results are decoded or refused, and all are the message; their ports have whole attributes."""
    try:
        results = list(wire.decodeResults(message))
    except WireError:
        return
    assert wire.encodeResults(results) == message
    for result in results:
        try:
            ports = wire.decodePorts(_SIZE, 256, result.content)
        except WireError:
            continue
        assert all(isinstance(port, int) or len(port) == _SIZE for port in ports)


def _askings() -> Iterator[bytes]:
    yield wire.encodeRequests(
        [wire.PortsRequest(1, 5, b"\1\2", bytes(range(1, 37))), wire.PortsRequest(2, 6, b"\3", b"\0")]
    )


def _answers() -> Iterator[bytes]:
    ports = wire.READ + bytes(_SIZE) + wire.REFUSED + b"\0\x0c"
    yield wire.encodeResults(
        [wire.PortsResult(1, wire.COMPLETE, ports), wire.PortsResult(2, wire.FAILED, b"no port")]
    )


TARGETS = {
    "collector's requests": Target(_requests, _askings),
    "collector's results": Target(_results, _answers),
}
