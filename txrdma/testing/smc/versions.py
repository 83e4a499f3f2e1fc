"""
The versions of SMC-R that the hosts of a simulation speak, by its seed, and what they have to agree on.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import replace
from random import Random

from txrdma.smc.handshake._offer import VERSIONS
from txrdma.smc.options import Options


def chooseVersions(seed: int, usual: Options, count: int) -> list[Options]:
    """
    Choose options for so many hosts: all usual, all with version 2, or a mixture.

    Chance is the function's own, so that nothing else in the simulation depends on it.

    @param usual: the options of a host that has no UEID.
    """
    random = Random(f"versions {seed}")
    new = replace(usual, ueids=("A",))
    mixture = (
        *(usual, new, new, replace(new, versions=(2,)), replace(usual, versions=(1,))),
        *(replace(new, ueids=("B", "A")), replace(new, ueids=("B",))),
    )
    kind = random.random()
    choices = (usual,) if kind < 0.3 else (new,) if kind < 0.6 else mixture
    return [random.choice(choices) for _ in range(count)]


def commonVersion(options: Collection[Options], known: Collection[int] = VERSIONS) -> int:
    """
    The version that hosts with these options have to agree on; 0 when there is none.

    @param known: the versions that their devices are meant for.
    """
    common = set(known).intersection(*(each.versions for each in options))
    if 2 in common and set.intersection(*(set(each.ueids) for each in options)):
        return 2
    return 1 if 1 in common else 0
