"""Test cases that run simulations by stored plans."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar

from twisted.trial.unittest import SynchronousTestCase

from txrdma.testing.programs import ProgramError
from txrdma.testing.simulate import GENERATORS, readStored
from txrdma.testing.smc.randomprotocols import Deliberate

_Case = TypeVar("_Case", bound=SynchronousTestCase)

STORED: Final = Path(__file__).parent.parent / "test" / "plans"
"""Folder of stored plans, with a subfolder for each generator."""


def playingStored(*names: str) -> Callable[[type[_Case]], type[_Case]]:
    """Return a class decorator that adds a test for each stored plan of these generators."""

    def decorated(case: type[_Case]) -> type[_Case]:
        for name in names:
            paths = sorted((STORED / name).glob("*.json"))
            if not paths:
                raise ValueError(f"there are no stored plans of {name}")
            for path in paths:
                _addTest(case, path)
        return case

    return decorated


def _addTest(case: type[SynchronousTestCase], path: Path) -> None:
    def play(self: SynchronousTestCase) -> None:
        stored = readStored(path)
        self.assertEqual(stored.generator, path.parent.name)
        counts = GENERATORS[stored.generator].play(stored.plan).counts
        self.assertEqual([each for each in stored.counted if not counts[each]], [], "these did not happen")
        self.flushLoggedErrors(Deliberate, ProgramError)

    play.__name__ = f"test_{path.parent.name}_{path.stem}".replace("-", "_")
    play.__qualname__ = f"{case.__qualname__}.{play.__name__}"
    play.__doc__ = f"The plan in plans/{path.parent.name}/{path.name} keeps all promises, and has its counts."
    setattr(case, play.__name__, play)
