"""Other libraries that move bytes between two processes, measured if they are installed."""

from __future__ import annotations

import importlib.util
import subprocess
from collections.abc import Callable
from dataclasses import dataclass, field
from statistics import median
from typing import Any

from benchmarks.measuring import launcher, measure, MeasurementFailed, measureMPI
from benchmarks.orders import Orders
from benchmarks.results import Section, section

MIB = 1 << 20


@dataclass
class Peer:
    """Results of one library: C{values} by the names of scenarios."""

    name: str
    values: dict[str, list[float]] = field(default_factory=dict)
    failure: str = ""

    def row(self) -> str:
        """Return its line of the table."""
        if self.failure:
            return f"| {self.name} | {self.failure} | | |"
        cells = " | ".join(f"{median(values):,.4g}" for values in self.values.values())
        return f"| {self.name} | {cells} |"

    def asDict(self) -> dict[str, Any]:
        return {"name": self.name, "values": self.values, "failure": self.failure}


def _pair(module: str) -> Callable[[Orders], float]:
    """Measure with a module that has the two roles of L{benchmarks.ends}."""

    def once(orders: Orders) -> float:
        client, _server = measure(orders, module)
        return float(client["value"])

    return once


def peers(rounds: int, quick: bool) -> list[Peer]:
    """Measure each installed library; report each that is missing."""
    total = 256 * MIB if quick else 2048 * MIB
    pings = 2_000 if quick else 20_000
    scenarios: dict[str, Orders] = {
        "throughput-64k": {"scenario": "throughput", "bytes": total, "write": 64 << 10},
        "throughput-1m": {"scenario": "throughput", "bytes": total, "write": MIB},
        "roundtrip": {"scenario": "roundTrip", "size": 64, "count": pings},
    }
    scenarios = {name: {**orders, "isUnprivileged": True} for name, orders in scenarios.items()}
    kinds = [
        ("asyncio protocols on uvloop, TCP", "uvloop", _pair("benchmarks.peer_uvloop")),
        ("pyzmq, PAIR sockets over ipc:", "zmq", _pair("benchmarks.peer_zmq")),
        ("UCXX, asyncio, arrays in host memory", "ucxx", _pair("benchmarks.peer_ucxx")),
        ("mpi4py, Send and Recv of buffers", "mpi4py", lambda orders: float(measureMPI(orders)["value"])),
    ]
    found = []
    for name, module, once in kinds:
        peer = Peer(name)
        found.append(peer)
        if importlib.util.find_spec(module) is None:
            peer.failure = f"{module} is not installed"
        elif module == "mpi4py" and launcher() is None:
            peer.failure = "there is no mpiexec"
        else:
            try:
                for scenario, orders in scenarios.items():
                    unit = 1e6 if scenario == "roundtrip" else 1e-6
                    peer.values[scenario] = [once(orders) * unit for _ in range(rounds)]
            except (MeasurementFailed, subprocess.TimeoutExpired, ValueError) as error:
                peer.failure = f"failed: {error}"
        print(f"{peer.name}: {peer.failure or peer.row()}", flush=True)
    return found


def result(rounds: int, quick: bool) -> Section:
    """Measure, and return the section of the page."""
    found = peers(rounds, quick)
    return section(
        "others",
        "Others",
        details={"peers": [peer.asDict() for peer in found]},
        about=(
            "Two processes on the same cores, with other methods of transferring data. None of them "
            "delivers to Twisted protocols; pyzmq, UCXX and MPI move whole messages."
        ),
        lines=[
            "| | 64 KiB writes, MB/s | 1 MiB writes, MB/s | 64-byte round trip, us |",
            "|---|---|---|---|",
            *(peer.row() for peer in found),
        ],
    )
