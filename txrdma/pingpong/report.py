"""
What measurements are for other programs: JSON objects, rows of CSV.
"""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final, TextIO

from txrdma.pingpong.measurement import Measurement

LATENCY_NAMES: Final = ("minimum", "median", "mean", "p90", "p99", "p999", "maximum", "deviation")
"""As in L{txrdma.pingpong.statistics.Summary}: nanoseconds."""

COLUMNS: Final = (
    *("test", "measure", "bytes", "messages", "seconds", "bandwidth", "peak", "messageRate"),
    *LATENCY_NAMES,
    *("lost", "wrong", "interrupted", "route"),
)
"""Of CSV: bytes per second, messages per second, nanoseconds."""


def asDict(measurement: Measurement) -> dict[str, object]:
    """As JSON has it; what makes no sense for its kind is not there."""
    test = measurement.test
    values: dict[str, object] = {
        "test": test.transfer.value,
        "measure": test.measure.value,
        "bytes": test.size,
        "messages": measurement.messages,
        "seconds": measurement.nanoseconds / 1e9,
        "messageRate": measurement.messageRate,
    }
    if len(measurement.samples):
        values["latency"] = asdict(measurement.samples.summary())
        values["histogram"] = [asdict(bin) for bin in measurement.samples.histogram()]
    else:
        values["bandwidth"] = measurement.bandwidth
        values["peak"] = measurement.peak
    values["lost"] = measurement.lost
    if test.check:
        values["wrong"] = measurement.wrong
    values["interrupted"] = measurement.interrupted
    values["route"] = measurement.route
    return values


class CSVReport:
    """Rows of CSV, each written when it is known."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._writer = csv.DictWriter(out, COLUMNS, extrasaction="ignore", lineterminator="\n")
        self._writer.writeheader()
        self._out.flush()

    def add(self, measurement: Measurement) -> None:
        """One row."""
        values = asDict(measurement)
        latency = values.get("latency")
        row = {**values, **(latency if isinstance(latency, dict) else {})}
        self._writer.writerow(row)
        self._out.flush()


def sizeFrom(text: str) -> int:
    """
    A number of bytes as people write it: C{64}, C{4K}, C{1MiB}.

    @raise ValueError: it is none.
    """
    number = text.strip().lower().removesuffix("ib").removesuffix("b")
    shift = {"k": 10, "m": 20, "g": 30}.get(number[-1:], 0)
    digits = number[:-1] if shift else number
    if not digits.isascii() or not digits.isdigit():
        raise ValueError(f"{text!r} is no number of bytes")
    return int(digits) << shift


def sizesFrom(text: str) -> Sequence[int]:
    """Several, with commas between."""
    return tuple(sizeFrom(part) for part in text.split(","))
