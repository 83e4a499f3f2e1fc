"""
Play many conversations of whole SMC connections over a bad network.

C{python -m txrdma.testing.smc.simulate --seeds 10000} plays so many, by seeds in a row of which the clock
draws the first. A seed that fails is printed, and repeats what it did. L{txrdma.sim.simulate} does the same
for queue pairs.
"""

from __future__ import annotations

import time
from collections import Counter

from txrdma.sim.simulate import attempts, main
from txrdma.testing.smc.scenario import Outcome, simulate


def run(first: int, count: int, quiet: bool = False) -> int:
    """
    Run simulations of that many seeds, and report on them.

    @return: how many failed.
    """
    started = time.monotonic()
    failed = heard = packets = dropped = 0
    kinds: Counter[str] = Counter()
    outcome: Outcome | None
    for outcome in attempts(simulate, range(first, first + count), "txrdma.testing.smc.simulate", quiet):
        if outcome is None:
            failed += 1
            continue
        heard += outcome.heard
        packets += outcome.packets
        dropped += outcome.dropped
        kinds.update(outcome.kinds)
    took = time.monotonic() - started
    print(
        f"{count} conversations in {took:.1f} s: {kinds.pop('SMC-R', 0)} connections by SMC-R, "
        f"{kinds.pop('TCP', 0)} fell back to TCP, {kinds.pop('whole', 0)} said all that they had to say; "
        f"{heard} bytes, {packets} packets, {dropped} of them lost; {failed} failed"
    )
    print("what happened to them: " + (", ".join(f"{n} {name}" for name, n in kinds.items()) or "nothing"))
    return failed


if __name__ == "__main__":
    main(run)
