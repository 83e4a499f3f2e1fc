"""
Streams in a guest of L{lab}: ours over the kernel's RDMA devices, the kernel's own SMC-R, and TCP.

C{python -m benchmarks.boxstreams --rounds 3 --json FILE} runs inside, where L{lab.network}
has made the addresses.
"""

from __future__ import annotations

import argparse
import json
import sys
from typing import Final

from benchmarks.measuring import Case, run

HERE, THERE = "10.77.0.1", "10.77.0.2"

_WHERE = f"{THERE}:{{port}}:bindAddress={HERE}"
OURS: Final = {
    "listen": rf"smc:{THERE}:0:device=pyverbs\:rxe1:timeout=60",
    "connect": rf"smc:{_WHERE}:device=pyverbs\:rxe0:timeout=60:fallback=no",
}
KERNEL: Final = {"listen": f"smc:{THERE}:0:backend=kernel", "connect": f"smc:{_WHERE}:backend=kernel"}
TCP: Final = {"listen": f"tcp:0:interface={THERE}", "connect": f"tcp:{_WHERE}"}

_SHARE: Final = 0.5
"""The least of the kernel's bulk throughput that ours is to have."""


def cases() -> list[Case]:
    """Ours beside the kernel's SMC-R, and either beside TCP."""
    found = []
    pairs = (
        ("ours to the kernel's SMC-R", OURS, KERNEL, _SHARE),
        ("ours to TCP", OURS, TCP, None),
        ("the kernel's SMC-R to TCP", KERNEL, TCP, None),
    )
    for title, ours, theirs, share in pairs:
        for size, what in ((64 << 10, "64 KiB"), (1 << 20, "1 MiB")):
            found.append(
                Case(
                    *(
                        f"box-{size}",
                        f"{title}: throughput, {what} writes",
                        "throughput",
                        "MB/s",
                        ours,
                        theirs,
                    ),
                    {"bytes": 16 << 20, "write": size},
                    atLeast=share,
                )
            )
        found.append(
            Case(
                *("box-roundtrip", f"{title}: 64-byte round trip", "roundTrip", "us", ours, theirs),
                {"size": 64, "count": 200},
            )
        )
    return found


def main() -> None:
    """Measure, in turns, and write what came out."""
    parser = argparse.ArgumentParser("python -m benchmarks.boxstreams", description="Streams in a guest.")
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--json", required=True)
    options = parser.parse_args()
    outcomes = []
    for case in cases():
        [outcome] = run(case, options.rounds)
        print(case.title, outcome.ours, outcome.theirs, outcome.failure, file=sys.stderr, flush=True)
        outcomes.append(outcome.asDict())
    with open(options.json, "w") as file:
        json.dump({"outcomes": outcomes}, file)


if __name__ == "__main__":
    main()
