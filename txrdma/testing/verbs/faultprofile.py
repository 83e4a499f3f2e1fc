"""Random profiles of a simulated network's faults."""

from __future__ import annotations

from random import Random

from txrdma.sim.network import Faults


def faultProfile(random: Random) -> tuple[Faults, bool]:
    """
    Draw the faults of a network: none, few, or many.

    @return: the faults, and whether every operation must succeed in spite of them.
    """
    kind = random.randrange(4)
    merging, congestion = random.random(), random.choice((0.0, 0.1))
    if kind == 0:
        return Faults(merging=merging, congestion=congestion), True
    if kind == 1:
        bad = Faults(
            loss=0.02,
            duplication=0.05,
            corruption=0.01,
            late=0.01,
            jitterSeconds=random.choice((0.0, 1e-3)),
            merging=merging,
            congestion=congestion,
        )
        return bad, True
    worse = Faults(
        loss=random.uniform(0, 0.3),
        duplication=random.uniform(0, 0.3),
        corruption=random.uniform(0, 0.1),
        late=random.uniform(0, 0.1),
        jitterSeconds=random.choice((0.0, 1e-4, 1e-2)),
        lateSeconds=random.choice((0.01, 0.3, 2.0)),
        merging=merging,
        congestion=congestion,
    )
    return worse, False
