"""Test cases that run simulations: stored plans that have failed once, and plans of fixed seeds."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Final, TypeVar

from twisted.trial.unittest import SynchronousTestCase

from txrdma.testing.simulate import GENERATORS, readStored
from txrdma.testing.smc.randomprotocols import Deliberate

_Case = TypeVar("_Case", bound=SynchronousTestCase)

STORED: Final = Path(__file__).parent.parent / "test" / "plans"
"""Folder of stored plans, with a subfolder for each generator."""


def playingStored(*names: str) -> Callable[[type[_Case]], type[_Case]]:
    """Return a class decorator that adds a test for each stored plan of these generators."""

    def decorated(case: type[_Case]) -> type[_Case]:
        for name in names:
            for path in sorted((STORED / name).glob("*.json")):
                _addTest(case, path)
        return case

    return decorated


def playingHostile(name: str, seeds: int) -> Callable[[type[_Case]], type[_Case]]:
    """Return a class decorator that adds tests of hostile peers: plans of some seeds, and stored plans."""

    def test_seeds(self: SynchronousTestCase) -> None:
        """Hostile peers of fixed seeds do not affect other connections."""
        self.assertTrue(playSeeds(name, range(seeds))["received"])

    def decorated(case: type[_Case]) -> type[_Case]:
        case.test_seeds = test_seeds  # type: ignore[attr-defined]  # added
        return playingStored(name)(case)

    return decorated


def _addTest(case: type[SynchronousTestCase], path: Path) -> None:
    def play(self: SynchronousTestCase) -> None:
        stored = readStored(path)
        self.assertEqual(stored.generator, path.parent.name)
        self.assertTrue(GENERATORS[stored.generator].play(stored.plan).counts)
        self.flushLoggedErrors(Deliberate)

    play.__name__ = f"test_{path.parent.name}_{path.stem}".replace("-", "_")
    play.__qualname__ = f"{case.__qualname__}.{play.__name__}"
    play.__doc__ = f"The plan in plans/{path.parent.name}/{path.name} violates no promise."
    setattr(case, play.__name__, play)


def playSeeds(name: str, seeds: Iterable[int]) -> Counter[str]:
    """
    Run a generator's plans of these seeds.

    @return: the sum of their counts.
    @raise AssertionError: a simulation failed; the message names its seed.
    """
    generator, counts = GENERATORS[name], Counter[str]()
    for seed in seeds:
        try:
            counts += generator.play(generator.draw(seed)).counts
        except Exception as error:
            again = f"python -m txrdma.testing.simulate --seeds 1 --first {seed} {name}"
            raise AssertionError(f"seed {seed}: {error}; again by: {again}") from error
    return counts
