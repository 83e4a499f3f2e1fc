"""
Every fuzz target passes for its seeds, and for a few mutations of each.

C{make fuzz} searches failing inputs with atheris. Here the targets of C{fuzz/} run without it, on the same
inputs each time.
"""

from __future__ import annotations

import importlib
import re
import sys
from collections.abc import Callable, Iterator
from itertools import islice
from pathlib import Path
from random import Random
from traceback import format_exc
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

import txrdma

FUZZ = Path(txrdma.__file__).parent.parent / "fuzz"

MUTATIONS = 100
"""Minimum number of mutations for a target; one with many seeds has twice as many as seeds."""


def fuzzModule(name: str) -> Any:
    """Import a module of the folder C{fuzz}, which is no package."""
    sys.path.insert(0, str(FUZZ))
    try:
        return importlib.import_module(name)
    finally:
        sys.path.remove(str(FUZZ))


def inputs(name: str, seeds: list[bytes]) -> Iterator[bytes]:
    """Return the seeds, then mutations, which depend only on the seeds and the name of the target."""
    count = len(seeds) + max(MUTATIONS, 2 * len(seeds))
    return islice(fuzzModule("mutations").mutations(seeds, Random(name)), count)


class MutationTests(SynchronousTestCase):
    if not FUZZ.is_dir():
        skip = "the fuzz targets are in the source checkout, and this txrdma is installed without it"

    def drawn(self, *seeds: bytes) -> list[bytes]:
        """Return the first 20,000 inputs."""
        return list(islice(fuzzModule("mutations").mutations(seeds, Random(1)), 20_000))

    def test_seeds(self) -> None:
        """The seeds themselves come first."""
        self.assertEqual(self.drawn(b"one", b"two")[:2], [b"one", b"two"])

    def test_reaches(self) -> None:
        """Changes accumulate: shorter and longer inputs, limits of integers, and parts of two seeds occur."""
        drawn = self.drawn(b"a" * 16, b"b" * 16)
        self.assertIn(b"", drawn)
        self.assertTrue(any(len(content) > 40 for content in drawn))
        self.assertTrue(any(b"\x7f\xff\xff\xffa" in content for content in drawn))
        self.assertTrue(any(b"abbb" in content for content in drawn))
        self.assertGreater(len(set(drawn)), 10_000)

    def test_empty(self) -> None:
        """A seed without a byte is mutated as well."""
        self.assertGreater(max(map(len, self.drawn(b""))), 16)


class FuzzTargetTests(SynchronousTestCase):
    """One test for each target of C{fuzz/}; the tests are added below."""

    if not FUZZ.is_dir():
        skip = "the fuzz targets are in the source checkout, and this txrdma is installed without it"

    def test_modules(self) -> None:
        """Each module of C{fuzz/} that declares targets has tests here."""
        modules = {path.stem.removeprefix("fuzz_") for path in FUZZ.glob("fuzz_*.py")}
        self.assertTrue(modules)
        self.assertEqual({name.split("_")[1] for name in dir(self) if name.count("_") > 1} & modules, modules)


def targetTest(name: str, target: Any) -> Callable[[FuzzTargetTests], None]:
    def test(self: FuzzTargetTests) -> None:
        seeds = [bytes(seed) for seed in dict.fromkeys(target.seeds())]
        self.assertTrue(seeds and all(seeds), "a target needs seeds, none of them empty")
        for content in inputs(name, seeds):
            try:
                target.run(content)
            except Exception:
                self.fail(f"{name} fails for bytes.fromhex('{content.hex()}'):\n{format_exc()}")

    test.__doc__ = f"The fuzz target {name!r} passes for its seeds and their mutations."
    return test


def addTests() -> None:
    """Add a test method for each target."""
    sys.path.insert(0, str(FUZZ))
    try:
        entries = list(importlib.import_module("harness").allTargets())
    finally:
        sys.path.remove(str(FUZZ))
    for entry in entries:
        method = re.sub(r"\W+", "_", f"test_{entry.module.removeprefix('fuzz_')}_{entry.name}")
        setattr(FuzzTargetTests, method, targetTest(entry.name, entry.target))


if FUZZ.is_dir():
    addTests()
