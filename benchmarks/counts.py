"""
What a round trip costs the client, in counts that need no quiet machine: C{python -m benchmarks.counts}.

Times vary by half on a machine with other load. Bytecodes and functions that Python executes, and iterations
of the reactor, show in seconds whether a change has made the path of a message longer.
"""

from __future__ import annotations

from benchmarks.cases import SMC, TCP
from benchmarks.measuring import measure
from benchmarks.orders import Orders
from benchmarks.scenarios import Result

SHOWN = 12
"""Number of functions that are listed."""


def counted(ends: Orders, count: int, isTraced: bool) -> Result:
    """Measure once with two processes. Tracing changes how often the client sleeps."""
    orders = {"scenario": "countedRoundTrips", "size": 64, "count": count, "isTraced": isTraced}
    return measure({**ends, **orders})[0]


def main() -> None:
    """Print the counts of TCP and SMC-R, and the functions of SMC-R with most bytecodes."""
    print(f"64-byte round trip{'iterations':>14}{'functions':>14}{'bytecodes':>14}")
    for name, ends in (("TCP", TCP), ("SMC-R", SMC)):
        iterations = counted(ends, 20_000, False)["iterations"]
        traced = counted(ends, 2_000, True)
        total = sum(traced["bytecodes"].values())
        print(f"{name:18}{iterations:14.2f}{traced['functions']:14.1f}{total:14,.0f}")
    for name, number in list(traced["bytecodes"].items())[:SHOWN]:
        print(f"{number:8.1f}  {name}")


if __name__ == "__main__":
    main()
