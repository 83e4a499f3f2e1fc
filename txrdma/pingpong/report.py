"""Reports of measurements for other programs, as JSON objects and rows of CSV."""

from __future__ import annotations

import csv
from collections.abc import Sequence
from dataclasses import asdict
from typing import Final, TextIO

from txrdma.pingpong.measurement import Measurement

LATENCY_NAMES: Final = ("minimum", "median", "mean", "p90", "p99", "p999", "maximum", "deviation")
"""Latency fields of L{txrdma.pingpong.statistics.Summary}, in nanoseconds."""

COLUMNS: Final = (
    *("test", "measure", "bytes", "messages", "seconds", "bandwidth", "peak", "messageRate"),
    *LATENCY_NAMES,
    *("lost", "wrong", "interrupted", "route"),
)
"""CSV columns. Units are bytes per second, messages per second, and nanoseconds for latencies."""


def asDict(measurement: Measurement) -> dict[str, object]:
    """Return a measurement as a dictionary for JSON, without values that its kind does not have."""
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
    """CSV file to which rows are written immediately."""

    def __init__(self, out: TextIO) -> None:
        self._out = out
        self._writer = csv.DictWriter(out, COLUMNS, extrasaction="ignore", lineterminator="\n")
        self._writer.writeheader()
        self._out.flush()

    def add(self, measurement: Measurement) -> None:
        """Write the row of a measurement."""
        values = asDict(measurement)
        latency = values.get("latency")
        row = {**values, **(latency if isinstance(latency, dict) else {})}
        self._writer.writerow(row)
        self._out.flush()


def sizeFrom(text: str) -> int:
    """Parse a number of bytes: C{64}, C{4K}, C{1MiB}; raise C{ValueError} for another text."""
    number = text.strip().lower().removesuffix("ib").removesuffix("b")
    shift = {"k": 10, "m": 20, "g": 30}.get(number[-1:], 0)
    digits = number[:-1] if shift else number
    if not digits.isascii() or not digits.isdigit():
        raise ValueError(f"{text!r} is not a number of bytes")
    return int(digits) << shift


def sizesFrom(text: str) -> Sequence[int]:
    """Parse several numbers of bytes that are separated by commas."""
    return tuple(sizeFrom(part) for part in text.split(","))
