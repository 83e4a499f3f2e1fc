"""
Fuzz targets of the answers of time series engines.
"""

from __future__ import annotations

from collections.abc import Iterator

from harness import Target

from txrdma.error import PeerViolation
from txrdma.kit.promql import decodeMatrix


def _decode(body: bytes) -> None:
    """An answer is a matrix of finite numbers, or breaks the protocol."""
    try:
        matrix = decodeMatrix(body)
    except PeerViolation:
        return
    for labels, samples in matrix:
        assert all(isinstance(text, str) for pair in labels.items() for text in pair)
        assert all(abs(at) + abs(value) < float("inf") for at, value in samples)


def _answers() -> Iterator[bytes]:
    yield b'{"status":"success","data":{"resultType":"matrix","result":[]}}'
    yield (
        b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"__name__":"up"},'
        b'"values":[[1700000000.5,"1"],[1700000060.5,"NaN"],[1700000120.5,"1.5e+06"]]}]}}'
    )
    yield b'{"status":"error","errorType":"bad_data","error":"invalid parameter"}'


TARGETS = {"PromQL answer": Target(_decode, _answers)}
