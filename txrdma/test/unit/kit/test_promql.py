"""Answers to queries in PromQL."""

from __future__ import annotations

import json
from typing import Any

from hypothesis import given
from hypothesis.strategies import binary, dictionaries, floats, integers, lists, none, one_of, recursive, text

from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import PeerViolation
from txrdma.kit.promql import decodeMatrix, matcher, MOST_SERIES

# Recorded from Prometheus 2.42.
ANSWER = (
    b'{"status":"success","data":{"resultType":"matrix","result":[{"metric":{"__name__":"up","job":"a"},'
    b'"values":[[1700000000.5,"1"],[1700000060.5,"NaN"],[1700000120.5,"1.5e+06"]]},'
    b'{"metric":{},"values":[]}]}}'
)

_values = recursive(
    one_of(none(), floats(), integers(), text(max_size=5)),
    lambda inner: one_of(lists(inner, max_size=3), dictionaries(text(max_size=3), inner, max_size=3)),
)


def answer(result: Any, **more: Any) -> bytes:
    """Return an answer with this matrix."""
    data = {"resultType": "matrix", "result": result, **more}
    return json.dumps({"status": "success", "data": data}).encode()


class MatrixTests(SynchronousTestCase):
    def test_recorded(self) -> None:
        """Series are decoded with labels and samples; samples that are not numbers are omitted."""
        first, second = decodeMatrix(ANSWER)
        self.assertEqual(first.labels, {"__name__": "up", "job": "a"})
        self.assertEqual(first.samples, [(1700000000.5, 1.0), (1700000120.5, 1.5e6)])
        self.assertEqual((second.labels, second.samples), ({}, []))

    def test_error(self) -> None:
        """An error contains the engine's reason, truncated to a limit and without control characters."""
        for reason, shown in (
            ("query timed out" * 100, "query timed out"),
            ("no\x1b[2J\n", r"no\x1b[2J\x0a"),
        ):
            body = json.dumps({"status": "error", "errorType": "timeout", "error": reason})
            error = self.assertRaises(PeerViolation, decodeMatrix, body.encode())
            self.assertIn(shown, str(error))
            self.assertLess(len(str(error)), 300)

    def test_wrong(self) -> None:
        """An answer that is not a matrix is refused."""
        good = {"metric": {"a": "b"}, "values": [[1, "2"]]}
        self.assertEqual(len(decodeMatrix(answer([good]))), 1)
        for body in (
            *(b"", b"{", b"[]", b"null", b"\xff", b"[" * 100_000, b'{"status": "success"}', b"1" * 5000),
            *(answer(None), answer([good], resultType="vector"), answer([good] * (MOST_SERIES + 1))),
            *(
                answer([{**good, "values": values}])
                for values in (None, 5, [1], [[1]], [[1, "x"]], [[1, 2, 3]])
            ),
            *(answer([{**good, "values": [[at, "1"]]}]) for at in (-1, 1e300, None, float("nan"), "y")),
            *(
                answer([{**good, "metric": metric}])
                for metric in (None, 5, {"a": 1}, {"a": None}, ["ab", "c"])
            ),
            *map(answer, ([None], [5], ["x"], [[]], [{}])),
        ):
            self.assertRaises(PeerViolation, decodeMatrix, body)

    @given(one_of(binary(), _values.map(lambda value: json.dumps(value).encode()), _values.map(answer)))
    def test_anything(self, body: bytes) -> None:
        """Any answer of an engine is decoded to a matrix, or raises one kind of exception."""
        try:
            for labels, samples in decodeMatrix(body):
                self.assertIsInstance(dict(labels), dict)
                for at, value in samples:
                    self.assertLess(abs(at) + abs(value), float("inf"))
        except PeerViolation:
            pass

    def test_matcher(self) -> None:
        """Quotes, backslashes and line ends in labels are escaped."""
        self.assertEqual(matcher("a", 'x"y\\z\n'), 'a="x\\"y\\\\z\\n"')
