"""
Compare devices: C{python -m benchmarks.verbs --device A --device B [--device A --device B...]}.

Every two devices are a pair. Two processes, each on its own core, send and write messages of several lengths
between them. Pairs alternate, so that other load affects all of them. Any two devices that reach each other
can be compared.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass, field
from pathlib import Path
from statistics import median
from typing import Any, Final

from twisted.python import usage

from benchmarks.measuring import measure, MeasurementFailed
from benchmarks.orders import Orders
from txrdma.pingpong.report import sizesFrom

SIZES: Final = (64, 1 << 10, 4 << 10, 64 << 10, 1 << 20)
_INLINE: Final = 64

Key = tuple[str, str, int]
"""Transfer, measure and length."""


@dataclass(frozen=True)
class Pair:
    """Two devices that reach each other, each optionally in a network namespace."""

    name: str
    devices: tuple[str, str]
    namespaces: tuple[str, str] = ("", "")

    @classmethod
    def parse(cls, name: str, one: str, other: str) -> Pair:
        """Parse C{[NAMESPACE@]DEVICE} of both."""
        ends = [text.rpartition("@") for text in (one, other)]
        return cls(name or f"{one} - {other}", (ends[0][2], ends[1][2]), (ends[0][0], ends[1][0]))


@dataclass
class Compared:
    """
    Results of one pair.

    @ivar values: by transfer, measure and length: bytes per second and messages per second, seconds of a
        round trip, or
        CPU seconds of the sender per message: total, and for posting, polling and the driver.
    """

    name: str
    route: str = ""
    values: dict[Key, list[tuple[float, float]]] = field(default_factory=dict)
    failure: str = ""

    def take(self, results: list[dict[str, Any]]) -> None:
        """Add the results of one round."""
        for result in results:
            if not result["messages"]:
                continue
            key = result["test"], result["measure"], result["bytes"]
            if "latency" in result:
                values = (2e-9 * result["latency"]["median"], 0.0)  # pingpong reports half a round trip
            else:
                values = (result["bandwidth"], result["messageRate"])
            self.values.setdefault(key, []).append(values)
            if result["measure"] == "bandwidth":
                cost = (result["cpu"] / result["messages"], 0.0)
                self.values.setdefault((result["test"], "cpu", result["bytes"]), []).append(cost)
            self.route = result["route"]

    def median(self, key: Key, which: int = 0) -> float | None:
        """Return the median of all rounds."""
        values = self.values.get(key)
        return median(value[which] for value in values) if values else None

    def asDict(self) -> dict[str, Any]:
        values = [[*key, found] for key, found in self.values.items()]
        return {"name": self.name, "route": self.route, "values": values, "failure": self.failure}

    @classmethod
    def fromDict(cls, compared: dict[str, Any]) -> Compared:
        values = {
            (test, kind, size): [(one, other) for one, other in found]
            for test, kind, size, found in compared["values"]
        }
        return cls(compared["name"], compared["route"], values, compared["failure"])


def once(pair: Pair, orders: Orders) -> list[dict[str, Any]]:
    """Measure everything once."""
    with tempfile.TemporaryDirectory() as folder:
        place = f"{folder}/s"
        sides = [
            {"device": device, "namespace": namespace}
            for device, namespace in zip(pair.devices, pair.namespaces, strict=True)
        ]
        common = {**orders, "scenario": "series", "listen": f"unix:{place}", "connect": f"unix:{place}"}
        client, _server = measure(common, "benchmarks.verbsends", forServer=sides[1], forClient=sides[0])
    results: list[dict[str, Any]] = client["results"]
    return results


def compare(pairs: list[Pair], orders: Orders, rounds: int) -> list[Compared]:
    """Measure all pairs in alternation."""
    found = [Compared(pair.name) for pair in pairs]
    for number in range(rounds):
        for pair, compared in zip(pairs, found, strict=True):
            if compared.failure:
                continue
            try:
                compared.take(once(pair, orders))
            except (MeasurementFailed, subprocess.TimeoutExpired) as error:
                compared.failure = str(error)
            state = compared.failure or "done"
            print(f"{pair.name}: round {number + 1} of {rounds}: {state}", file=sys.stderr, flush=True)
    return found


def rows(found: list[Compared]) -> list[str]:
    """Return a Markdown table of the pairs."""
    good = [compared for compared in found if compared.values]
    names = [compared.name for compared in good]
    columns = ("MB/s", "messages/s", "round trip, us", "CPU of a post and its completion, us")
    heads = [f"{name}: {what}" for what in columns for name in names]
    lines = [
        f"| RC | bytes | {' | '.join(heads)} |",
        f"|---|---|{'---|' * len(heads)}",
    ]
    sizes = sorted({(test, size) for compared in good for test, _, size in compared.values})
    for test, size in sizes:
        bandwidth, latency, cpu = ((test, which, size) for which in ("bandwidth", "latency", "cpu"))
        cells = [_cell(compared.median(bandwidth), 1e-6) for compared in good]
        cells += [_cell(compared.median(bandwidth, 1), 1.0) for compared in good]
        cells += [_cell(compared.median(which), 1e6) for which in (latency, cpu) for compared in good]
        lines.append(f"| {test} | {size:,} | {' | '.join(cells)} |")
    return lines + [f"\n{compared.name}: {compared.failure}" for compared in found if compared.failure]


def _cell(value: float | None, factor: float) -> str:
    if value is None:
        return ""
    value *= factor
    return f"{value:,.0f}" if value >= 100 else f"{value:.3g}"


class Options(usage.Options):
    synopsis = "--device A --device B [options]"
    longdesc = "Compares pairs of devices: bandwidth, message rate and round trips of RC send and write."
    optParameters = [
        ["rounds", "r", 3, "How often each is measured, in turns.", int],
        ["seconds", "s", 0.5, "How long each test takes.", float],
        ["iterations", "i", 0, "Messages of each test, instead of a time.", int],
        ["sizes", "z", SIZES, "Bytes of messages, with commas between.", sizesFrom],
        ["depth", "d", 64, "Requests outstanding at a time.", int],
        ["transfers", "t", "send,write", "Which of send, write, read and atomic."],
        ["reactor", None, "epoll", "The reactor of both ends."],
        ["json", "j", None, "Write all results there as well."],
    ]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self["devices"] = []
        self["names"] = []

    def opt_device(self, device: str) -> None:
        """Add a device string; C{NAMESPACE@} before it runs its process in a network namespace."""
        self["devices"].append(device)

    def opt_name(self, name: str) -> None:
        """Set the name of the pair of the last two devices."""
        self["names"] += [""] * (len(self["devices"]) // 2 - len(self["names"]) - 1) + [name]

    def postOptions(self) -> None:
        """Check that devices come in pairs."""
        devices = self["devices"]
        if not devices or len(devices) % 2:
            raise usage.UsageError("give two --device for each pair")
        names = self["names"] + [""] * len(devices)
        self["pairs"] = [
            Pair.parse(names[index // 2], devices[index], devices[index + 1])
            for index in range(0, len(devices), 2)
        ]


def main(arguments: list[str]) -> int:
    options = Options()
    try:
        options.parseOptions(arguments)  # type: ignore[no-untyped-call]  # of Twisted's
    except usage.UsageError as error:
        print(f"benchmarks.verbs: {error}", file=sys.stderr)
        return 2
    orders = {
        "transfers": options["transfers"].split(","),
        "measures": ["latency", "bandwidth"],
        "sizes": options["sizes"],
        "seconds": options["seconds"],
        "iterations": options["iterations"],
        "depth": options["depth"],
        "inline": _INLINE,
        "reactor": options["reactor"],
    }
    found = compare(options["pairs"], orders, options["rounds"])
    if options["json"]:
        report = {"rounds": options["rounds"], "pairs": [compared.asDict() for compared in found]}
        Path(options["json"]).write_text(json.dumps(report, indent=2) + "\n")
    print("\n".join(rows(found)))
    return 1 if any(compared.failure for compared in found) else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
