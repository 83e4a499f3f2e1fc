"""
Play many conversations of whole SMC connections: over a bad network, or by the memory of one host.

C{python -m txrdma.testing.smc.simulate --seeds 10000} plays so many, by seeds in a row of which the clock
draws the first. C{--route shared-memory} plays them between processes that share memory, C{--route two-ports}
over two networks, of which one fails. A seed that fails is printed, and repeats what it did.
L{txrdma.testing.verbs.simulate} does the same for queue pairs.
"""

from __future__ import annotations

import time
from collections import Counter

from txrdma.testing.smc.neighbours import simulateMemory
from txrdma.testing.smc.scenario import Outcome, simulate
from txrdma.testing.smc.twoports import simulateTwoPorts
from txrdma.testing.verbs.simulate import attempts, main, SimulateOptions

ROUTES = {"rocev2": simulate, "shared-memory": simulateMemory, "two-ports": simulateTwoPorts}


def _route(name: str) -> str:
    if name not in ROUTES:
        raise ValueError(f"none of {', '.join(ROUTES)}")
    return name


class RouteOptions(SimulateOptions):
    """The route that bytes take, besides the seeds to play."""

    synopsis = "python -m txrdma.testing.smc.simulate [--route ROUTE] [--seeds N] [--first SEED]"
    optParameters = [  # that is how usage.Options wants it
        ["route", "r", "rocev2", f"Which way bytes go: {' or '.join(ROUTES)}.", _route],
    ]


def run(first: int, count: int, quiet: bool = False, route: str = "rocev2") -> int:
    """
    Run simulations of that many seeds, and report on them.

    @return: how many failed.
    """
    started = time.monotonic()
    failed = heard = packets = dropped = 0
    kinds: Counter[str] = Counter()
    outcome: Outcome | None
    again = "txrdma.testing.smc.simulate" + (f" --route {route}" if route != "rocev2" else "")
    for outcome in attempts(ROUTES[route], range(first, first + count), again, quiet):
        if outcome is None:
            failed += 1
            continue
        heard += outcome.heard
        packets += outcome.packets
        dropped += outcome.dropped
        kinds.update(outcome.kinds)
    took = time.monotonic() - started
    carried = f"{packets} packets, {dropped} of them lost"
    if route == "shared-memory":
        carried = f"{packets} messages, {dropped} processes not found"
    print(
        f"{count} conversations in {took:.1f} s: {kinds.pop('SMC-R', 0)} connections by SMC-R, "
        f"{kinds.pop('TCP', 0)} fell back to TCP, {kinds.pop('whole', 0)} said all that they had to say; "
        f"{heard} bytes, {carried}; {failed} failed"
    )
    print("what happened to them: " + (", ".join(f"{n} {name}" for name, n in kinds.items()) or "nothing"))
    return failed


if __name__ == "__main__":
    options: RouteOptions = RouteOptions()
    main(lambda first, count, quiet: run(first, count, quiet, options["route"]), options)
