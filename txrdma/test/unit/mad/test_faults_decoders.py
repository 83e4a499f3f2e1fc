"""
Every reader of datagrams and of texts about fabrics keeps its promises, whatever it is given.

The promises are those that C{make fuzz} holds them to under atheris, which follows the branches of the code;
here Hypothesis changes recorded bytes, for as long as a test may take.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from twisted.trial.unittest import SkipTest, SynchronousTestCase

import txrdma

FUZZ = Path(txrdma.__file__).parent.parent / "fuzz"


def targets(family: str) -> dict[str, Any]:
    """What C{fuzz/} holds to something."""
    if not (FUZZ / "harness.py").exists():
        raise SkipTest("the promises are in the source checkout, and this is an installed txrdma")
    sys.path.insert(0, str(FUZZ))
    try:
        found: dict[str, Any] = importlib.import_module(family).TARGETS
    finally:
        sys.path.remove(str(FUZZ))
    return found


def changed(seeds: list[bytes]) -> st.SearchStrategy[bytes]:
    """Seeds with something else at some places, cut off somewhere, or one behind the other; or anything."""
    at = st.tuples(
        st.integers(0, 400), st.one_of(st.binary(max_size=4), st.sampled_from([b"\0" * 8, b"\xff" * 8]))
    )

    def change(seed: bytes, changes: list[tuple[int, bytes]], length: int, more: bytes) -> bytes:
        said = bytearray(seed)
        for where, content in changes:
            said[where : where + len(content)] = content
        return bytes(said[:length] if length < 400 else said) + more

    one = st.sampled_from(seeds)
    more = st.one_of(st.just(b""), st.binary(max_size=40), one)
    spoilt = st.builds(change, one, st.lists(at, max_size=6), st.integers(0, 800), more)
    return st.one_of(spoilt, st.binary(max_size=300))


class DecoderTests(SynchronousTestCase):
    """Each of them."""


def _promise(family: str, name: str) -> Callable[[DecoderTests], None]:
    def test(self: DecoderTests) -> None:
        target = targets(family)[name]
        seeds = [bytes(seed) for seed in target.seeds()]
        for seed in seeds:
            target.run(seed)

        @settings(max_examples=150, deadline=None)
        @given(changed(seeds))
        def holds(raw: bytes) -> None:
            target.run(raw)

        holds()

    test.__doc__ = f"The promise of {name!r} in {family}."
    return test


NAMES = {
    "fuzz_mad": (
        "structure",
        "structure from JSON",
        "MAD frame",
        "RMPP receiver",
        "RMPP sender",
        "long messages",
        "MAD agent",
        "MAD server",
    ),
    "fuzz_madtexts": (
        "net file",
        "net file's fabric",
        "snapshot",
        "path",
        "node names",
        "thresholds",
        "port string",
        "fields",
    ),
    "fuzz_captures": ("capture", "management packet", "decode"),
}

for _family, _names in NAMES.items():
    for _name in _names:
        _method = "".join(word.capitalize() for word in _name.replace("'", "").split())
        setattr(DecoderTests, f"test_{_method[:1].lower()}{_method[1:]}", _promise(_family, _name))


class CompletenessTests(SynchronousTestCase):
    """Nothing that is fuzzed is left out here."""

    def test_names(self) -> None:
        """Each target has its test."""
        for family, names in NAMES.items():
            self.assertEqual(set(targets(family)), set(names))
