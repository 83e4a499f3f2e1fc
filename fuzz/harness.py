"""
Fuzz targets: what the modules C{fuzz_*.py} declare, and how to list them.

Each of these modules has a dictionary C{TARGETS} from names to L{Target}. C{make fuzz} runs all targets under
atheris (C{run.py}); C{txrdma/test/unit/test_fuzz.py} runs their seeds as a unit test.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import NamedTuple, Protocol

from txrdma.error import WireError

HERE = Path(__file__).parent


class Encodable(Protocol):
    """A value that a decoder returns."""

    def encode(self) -> bytes:
        """Return the bytes of this value."""


@dataclass(frozen=True)
class Target:
    """
    A function to call with arbitrary bytes.

    @ivar run: raises an exception when the code under test breaks its contract for these bytes.
    @ivar seeds: returns inputs, preferably recorded ones, from which the fuzzer derives others.
    """

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]]


def decoder(decode: Callable[[bytes], Encodable], seeds: Callable[[], Iterable[bytes]]) -> Target:
    """Return a target: C{decode} raises WireError, or its value is equal after encoding and decoding."""

    def run(raw: bytes) -> None:
        try:
            value = decode(raw)
        except WireError:
            return
        again = decode(value.encode())
        if again != value:
            raise AssertionError(f"{value!r} became {again!r}")

    return Target(run, seeds)


class Entry(NamedTuple):
    """A target, its name, and the name of the module that declares it."""

    module: str
    name: str
    target: Target


def allTargets() -> Iterator[Entry]:
    """Import every module C{fuzz_*.py}, and return the targets of all."""
    for path in sorted(HERE.glob("fuzz_*.py")):
        for name, target in importlib.import_module(path.stem).TARGETS.items():
            yield Entry(path.stem, name, target)
