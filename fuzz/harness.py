"""
One decoder under atheris: C{python fuzz/harness.py FAMILY NAME SECONDS FOLDER}, as C{run.py} calls it.

A family is a module beside this one with C{TARGETS}: name to L{Target}. To add a decoder, add a line there.
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

HERE = Path(__file__).parent


class Encodable(Protocol):
    """What a decoder gives."""

    def encode(self) -> bytes:
        """Its bytes."""


@dataclass(frozen=True)
class Target:
    """
    Something that takes any bytes.

    @ivar run: raises when a promise is broken.
    @ivar seeds: bytes to begin with: recorded ones, as a rule.
    """

    run: Callable[[bytes], None]
    seeds: Callable[[], Iterable[bytes]] = tuple


def decoder(decode: Callable[[bytes], Encodable], seeds: Callable[[], Iterable[bytes]] = tuple) -> Target:
    """The promises of a decoder: a WireError, or a value that is the same when written and read again."""

    def run(raw: bytes) -> None:
        from txrdma.error import WireError

        try:
            value = decode(raw)
        except WireError:
            return
        again = decode(value.encode())
        if again != value:
            raise AssertionError(f"{value!r} became {again!r}")

    return Target(run, seeds)


def families() -> list[str]:
    """The modules that have targets."""
    return sorted(path.stem for path in HERE.glob("fuzz_*.py"))


def main(family: str, name: str, seconds: str, folder: str) -> None:
    """Run until the time is over; the process ends here."""
    atheris: Any = importlib.import_module("atheris")  # has no types
    sys.path.insert(0, str(HERE.parent))
    with atheris.instrument_imports(include=["txrdma", family]):
        module = importlib.import_module(family)
    target: Target = module.TARGETS[name]
    corpus = Path(folder, "corpus")
    corpus.mkdir()
    for number, seed in enumerate(target.seeds()):
        (corpus / f"{number:05}").write_bytes(seed)
    options = [f"-max_total_time={seconds}", "-print_final_stats=1", "-timeout=10", "-rss_limit_mb=1024"]
    options += [f"-artifact_prefix={folder}/", str(corpus)]
    atheris.Setup([sys.argv[0], *options], target.run)
    atheris.Fuzz()


if __name__ == "__main__":
    main(*sys.argv[1:])
