"""Tables of the measurements of C{txrdma pingpong}."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from txrdma.commands.common.tables import makeTable, show
from txrdma.pingpong.measurement import Measurement
from txrdma.pingpong.report import LATENCY_NAMES

if TYPE_CHECKING:
    from rich.table import Table

_BAR_WIDTH = 50


def showAll(measurements: Sequence[Measurement], histograms: bool) -> None:
    """Print tables of latencies and bandwidths, if there are any."""
    latencies = [each for each in measurements if len(each.samples)]
    bandwidths = [each for each in measurements if not len(each.samples)]
    if latencies:
        show(latencyTable(latencies))
    if bandwidths:
        show(bandwidthTable(bandwidths))
    if histograms:
        for measurement in latencies:
            show(histogramTable(measurement))


def latencyTable(measurements: Sequence[Measurement]) -> Table:
    """Return a table of latencies in microseconds."""
    names = ("min", "median", "mean", "p90", "p99", "p99.9", "max", "stddev")
    table = makeTable("test", "bytes", "messages", *names, "route", title="Latency, in microseconds")
    _alignRight(table, 1, 2 + len(names))
    for measurement in measurements:
        summary = measurement.samples.summary()
        times = (f"{getattr(summary, name) / 1000:.2f}" for name in LATENCY_NAMES)
        table.add_row(*_head(measurement), *times, _remarks(measurement))
    return table


def bandwidthTable(measurements: Sequence[Measurement]) -> Table:
    """Return a table of bandwidths; MB is 10^6 bytes, and Gbit is 10^9 bits."""
    table = makeTable(
        *("test", "bytes", "messages", "MB/s", "peak MB/s", "Gbit/s", "messages/s", "route"),
        title="Bandwidth",
    )
    _alignRight(table, 1, 6)
    for measurement in measurements:
        bandwidth = measurement.bandwidth
        table.add_row(
            *_head(measurement),
            *(f"{bandwidth / 1e6:.2f}", f"{measurement.peak / 1e6:.2f}", f"{bandwidth * 8 / 1e9:.3f}"),
            f"{measurement.messageRate:.0f}",
            _remarks(measurement),
        )
    return table


def histogramTable(measurement: Measurement) -> Table:
    """Return a table of a latency histogram; the last row has all values above the 99th percentile."""
    from rich.bar import Bar

    bins = measurement.samples.histogram()
    most = max(bin.count for bin in bins)
    title = f"{measurement.test.transfer.value}, {measurement.test.size} bytes"
    table = makeTable("from us", "to us", "messages", "", title=title)
    _alignRight(table, 0, 3)
    for bin in bins:
        bar = Bar(most, 0, bin.count, width=_BAR_WIDTH)
        table.add_row(f"{bin.low / 1000:.2f}", f"{bin.high / 1000:.2f}", str(bin.count), bar)
    return table


def _alignRight(table: Table, first: int, count: int) -> None:
    for column in table.columns[first : first + count]:
        column.justify = "right"


def _head(measurement: Measurement) -> tuple[str, str, str]:
    test = measurement.test
    name = test.transfer.value
    if test.measure.value == "bidirectional":
        name += " both ways"
    return name, str(test.size), str(measurement.messages)


def _remarks(measurement: Measurement) -> str:
    """Return a table cell with route, losses, verification and interruption of a measurement."""
    remarks = [measurement.route]
    if measurement.lost:
        remarks.append(f"{measurement.lost} lost")
    if measurement.test.check:
        remarks.append(f"{measurement.wrong} wrong" if measurement.wrong else "contents right")
    if measurement.interrupted:
        remarks.append("interrupted")
    return ", ".join(remarks)
