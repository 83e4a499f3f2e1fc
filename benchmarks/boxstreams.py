"""
Compare SMC-R over the kernel's RDMA devices with the kernel's AF_SMC and TCP, in a guest of L{lab}.

C{python -m benchmarks.boxstreams --rounds 3 --json FILE} runs inside the guest, where L{lab.network} has
configured the addresses.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from benchmarks.measuring import Case, run
from benchmarks.orders import Orders

HERE, THERE = "10.77.0.1", "10.77.0.2"

_WHERE = f"{THERE}:{{port}}:bindAddress={HERE}"
OURS: Final[Orders] = {
    "listen": rf"smc:{THERE}:0:device=pyverbs\:rxe1:timeout=60",
    "connect": rf"smc:{_WHERE}:device=pyverbs\:rxe0:timeout=60:fallback=no",
}
KERNEL: Final[Orders] = {"listen": f"smc:{THERE}:0:backend=kernel", "connect": f"smc:{_WHERE}:backend=kernel"}
TCP: Final[Orders] = {"listen": f"tcp:0:interface={THERE}", "connect": f"tcp:{_WHERE}"}

_SHARE: Final = 0.5
"""Minimum bulk throughput as a share of the kernel's."""


def cases() -> list[Case]:
    """Return the cases: txrdma compared with AF_SMC, and each with TCP, in alternating runs."""

    def case(
        name: str, what: str, scenario: str, unit: str, orders: Orders, share: float | None = None
    ) -> Case:
        def pair(title: str, tested: Orders, reference: Orders, least: float | None = None) -> Case:
            return Case(name, f"{title}: {what}", scenario, unit, tested, reference, orders, atLeast=least)

        also = (pair("txrdma to TCP", OURS, TCP), pair("the kernel's SMC-R to TCP", KERNEL, TCP))
        return replace(pair("txrdma to the kernel's SMC-R", OURS, KERNEL, share), also=also)

    bulk = [
        case(
            *(f"box-{size}", f"throughput, {what} writes", "throughput", "MB/s"),
            {"bytes": 16 << 20, "write": size},
            _SHARE,
        )
        for size, what in ((64 << 10, "64 KiB"), (1 << 20, "1 MiB"))
    ]
    return [*bulk, case("box-roundtrip", "64-byte round trip", "roundTrip", "us", {"size": 64, "count": 200})]


def measured(program: str, found: Sequence[Case]) -> None:
    """Measure in alternating runs, and write the results: the command of a module that runs in a guest."""
    parser = argparse.ArgumentParser(program, description="Measurements in a guest.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", required=True)
    options = parser.parse_args()
    outcomes = []
    for case in found:
        for outcome in run(case, options.rounds):
            line = outcome.case.title, outcome.tested, outcome.reference, outcome.failure
            print(*line, file=sys.stderr, flush=True)
            outcomes.append(outcome.asDict())
    with open(options.json, "w") as file:
        json.dump({"outcomes": outcomes}, file)


if __name__ == "__main__":
    measured("python -m benchmarks.boxstreams", cases())
