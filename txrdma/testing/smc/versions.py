"""SMC-R versions that the hosts of a simulation support, and the version that they must agree on."""

from __future__ import annotations

from collections.abc import Collection
from random import Random

from txrdma.smc.terms.offer import VERSIONS
from txrdma.smc.terms.options import Options

_USUAL = Options()
_OLD = _USUAL.versions, ()
_NEW = _USUAL.versions, ("A",)
_MIXTURE = (
    *(_OLD, _NEW, _NEW, ((2,), ("A",)), ((1,), ())),
    *((_USUAL.versions, ("B", "A")), (_USUAL.versions, ("B",))),
)


def drawVersions(random: Random, count: int) -> list[tuple[tuple[int, ...], tuple[str, ...]]]:
    """Draw versions and UEIDs of hosts: all with version 1 in common, all with version 2, or a mixture."""
    kind = random.random()
    choices: Collection[tuple[tuple[int, ...], tuple[str, ...]]]
    choices = (_OLD,) if kind < 0.3 else (_NEW,) if kind < 0.6 else _MIXTURE
    return [random.choice(tuple(choices)) for _ in range(count)]


def commonVersion(options: Collection[Options], known: Collection[int] = VERSIONS) -> int:
    """
    Return the version that hosts with these options must agree on, or 0 if there is none.

    @param known: versions that their devices support.
    """
    common = set(known).intersection(*(each.versions for each in options))
    if 2 in common and set.intersection(*(set(each.ueids) for each in options)):
        return 2
    return 1 if 1 in common else 0
