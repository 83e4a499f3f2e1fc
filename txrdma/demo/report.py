"""Results of the demonstration: figures, errors, and the table."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import quantiles
from typing import TYPE_CHECKING

from txrdma.demo.processes import Statuses

if TYPE_CHECKING:
    from rich.table import Table


@dataclass(frozen=True)
class DemoRun:
    """
    Download of all files over one transport.

    @ivar expected: SHA-256 of each file by name.
    @ivar hashes: SHA-256 of each downloaded file by name.
    @ivar near: status of the downloader's connections.
    @ivar far: status of the server's connections.
    """

    kind: str
    expected: dict[str, str]
    hashes: dict[str, str]
    bytes: int
    seconds: float
    largeBytes: int
    largeSeconds: float
    cpuSeconds: float
    latencies: Sequence[float]
    near: Sequence[Statuses]
    far: Sequence[Statuses]

    def total(self, key: str) -> int:
        """Return the sum of a counter over the connections of both processes."""
        return sum(counters[key] for counters in (*self.near, *self.far))

    def values(self, key: str) -> str:
        """Return the distinct values of the downloader's connections, separated by commas."""
        return ", ".join(sorted({str(counters[key]) for counters in self.near if counters[key]})) or "-"

    def latency(self, percent: int) -> float:
        """Return a percentile of the requests' latency in seconds."""
        return quantiles(self.latencies, n=100, method="inclusive")[percent - 1]

    def complaints(self) -> list[str]:
        """Return errors of this run: wrong files, or connections that did not use SMC-R."""
        wrong = []
        different = [name for name, digest in self.expected.items() if self.hashes.get(name) != digest]
        if different:
            wrong.append(
                f"{self.kind}: {len(different)} of {len(self.expected)} files have another SHA-256, "
                f"the first is {different[0]}"
            )
        if self.kind != "smc":
            return wrong
        for end, connections in (("downloading", self.near), ("serving", self.far)):
            plain = [counters for counters in connections if counters["mode"] != "SMC-R"]
            if not connections:
                wrong.append(f"smc: the {end} process has no connection of an smc: endpoint")
            elif plain:
                reasons = {str(counters["fallbackReason"]) for counters in plain}
                wrong.append(
                    f"smc: {len(plain)} of {len(connections)} connections of the {end} process "
                    f"are not SMC-R: {', '.join(sorted(reasons))}"
                )
        if not wrong and sum(counters["bytesReceived"] for counters in self.near) < self.bytes:
            wrong.append("smc: not all bytes were received over SMC-R connections")
        return wrong


def table(runs: Sequence[DemoRun]) -> Table:
    """Return a table that compares the runs."""
    from rich.table import Table

    table = Table("", *(f"{run.kind}:" for run in runs), title="The same files, over both")
    for column in table.columns[1:]:
        column.justify = "right"

    def row(name: str, *values: str) -> None:
        table.add_row(name, *values)

    row("mode", *(run.values("mode") if run.near else "TCP" for run in runs))
    row("device", *(run.values("device") for run in runs))
    row("route", *(run.values("route") for run in runs))
    row("link group", *(run.values("linkGroup") for run in runs))
    row("connections", *(str(len(run.near)) if run.near else "-" for run in runs))
    row("files, each with the right SHA-256", *(f"{len(run.hashes):,}" for run in runs))
    row("bytes", *(f"{run.bytes:,}" for run in runs))
    row("RDMA writes", *(f"{run.total('writes'):,}" for run in runs))
    row("CDC messages", *(f"{run.total('messagesSent'):,}" for run in runs))
    row("MB/s", *(f"{run.bytes / run.seconds / 1e6:,.0f}" for run in runs))
    row("MB/s, the large file alone", *(f"{run.largeBytes / run.largeSeconds / 1e6:,.0f}" for run in runs))
    row("request latency p50, ms", *(f"{run.latency(50) * 1e3:.2f}" for run in runs))
    row("request latency p99, ms", *(f"{run.latency(99) * 1e3:.2f}" for run in runs))
    row("CPU seconds per GB, both processes", *(f"{run.cpuSeconds / run.bytes * 1e9:.2f}" for run in runs))
    return table
