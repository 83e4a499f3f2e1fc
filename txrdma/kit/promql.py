"""
Answers of Prometheus' HTTP API to queries, and labels in queries.

Follows the documentation of Prometheus, "HTTP API" (format of responses, range vectors) and "Querying basics"
(string literals).
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from math import isfinite
from typing import Any, Final, NamedTuple

from txrdma.error import PeerViolation
from txrdma.kit.strings import escaped

MOST_SERIES: Final = 1000
"""Maximum number of series in an answer."""

_LATEST: Final = 1e12
_ESCAPED: Final = str.maketrans({"\\": r"\\", '"': r"\"", "\n": r"\n"})


class QueriedSeries(NamedTuple):
    """
    A series in an answer.

    @ivar labels: its labels; C{samples}: time in seconds since 1970 and value of each sample, without values
        that are not finite.
    """

    labels: Mapping[str, str]
    samples: list[tuple[float, float]]


def matcher(name: str, value: str) -> str:
    """Return the matcher of a label with this value."""
    return f'{name}="{value.translate(_ESCAPED)}"'


def decodeMatrix(body: bytes) -> list[QueriedSeries]:
    """
    Return the series of an answer that is a matrix.

    @raise PeerViolation: the answer is not a matrix; the message contains the engine's reason, if there is
        one.
    """
    try:
        answer = json.loads(body)
    except (ValueError, RecursionError) as error:
        raise PeerViolation("the answer is not JSON") from error
    if not isinstance(answer, dict) or answer.get("status") != "success":
        reason = answer.get("error") if isinstance(answer, dict) else None
        raise PeerViolation(escaped(reason)[:200] if isinstance(reason, str) else "the answer is no success")
    data = answer.get("data")
    found = data.get("result") if isinstance(data, dict) and data.get("resultType") == "matrix" else None
    if not isinstance(found, list) or len(found) > MOST_SERIES:
        raise PeerViolation("the answer is not a matrix")
    return [_series(one) for one in found]


def _series(one: Any) -> QueriedSeries:
    try:
        labels, values = dict(one["metric"]), one["values"]
        samples = [(float(at), float(value)) for at, value in values]
    except (KeyError, TypeError, ValueError, OverflowError) as error:
        raise PeerViolation("a series of the answer is invalid") from error
    areTexts = all(isinstance(text, str) for pair in labels.items() for text in pair)
    if not areTexts or not all(0 <= at <= _LATEST for at, _value in samples):
        raise PeerViolation("a series of the answer is invalid")
    return QueriedSeries(labels, [(at, value) for at, value in samples if isfinite(value)])
