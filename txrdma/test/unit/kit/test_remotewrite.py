"""The encoding of Prometheus' remote write."""

from __future__ import annotations

from hypothesis import given
from hypothesis.strategies import floats, integers, lists, text, tuples

from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.remotewrite import compressRequest, encodeLabel, encodeSample, encodeTime
from txrdma.test.support.monitor.samples import fields, isMissing, MISSING

# A WriteRequest encoded by Google's protobuf 7.36: two series, one with a label of 140 octets.
REQUEST = bytes.fromhex(
    "0ab9010a0e0a085f5f6e616d655f5f120275700a94010a036a6f62128c01"
    + "c3a4" * 70
    + "121009000000000000f83f108782acaab632"
    "0a1d0a0d0a085f5f6e616d655f5f120178120c0900000000000000c010ac02"
)


class RequestTests(SynchronousTestCase):
    """Requests, decoded like receivers do."""

    def test_recorded(self) -> None:
        """The bytes equal those of another implementation."""
        labels = encodeLabel("__name__", "up") + encodeLabel("job", "ä" * 70)
        first = encodeSample(labels, 1.5, encodeTime(1732571234567))
        second = encodeSample(encodeLabel("__name__", "x"), -2.0, encodeTime(300))
        self.assertEqual(first + second, REQUEST)

    @given(
        lists(tuples(text(max_size=20), text(max_size=2000)), max_size=3),
        floats(allow_nan=False),
        integers(0, (1 << 63) - 1),
    )
    def test_any(self, labels: list[tuple[str, str]], value: float, time: int) -> None:
        """Labels, value and time can be decoded by the rules of Protocol Buffers."""
        from struct import pack

        encoded = encodeSample(b"".join(encodeLabel(*label) for label in labels), value, encodeTime(time))
        ((number, series),) = fields(encoded)
        assert isinstance(series, bytes)
        *names, (kind, sample) = fields(series)
        assert isinstance(sample, bytes)
        self.assertEqual((number, kind), (1, 2))
        self.assertEqual(fields(sample), [(1, pack("<d", value)), (2, time)])
        expected = [(1, [(1, name.encode()), (2, text.encode())]) for name, text in labels]
        self.assertEqual([(one, fields(label)) for one, label in names], expected)  # type: ignore[arg-type]  # bytes

    def test_compressed(self) -> None:
        """A body is in snappy's block format, and much shorter than similar series."""
        if isMissing:
            self.skipTest(MISSING)
        import cramjam

        series = [encodeSample(encodeLabel("port", str(one)), 0.0, encodeTime(1)) for one in range(1000)]
        body = compressRequest(series)
        self.assertEqual(bytes(cramjam.snappy.decompress_raw(body)), b"".join(series))
        self.assertLess(len(body), len(b"".join(series)) // 2)
