"""
Play many simulations of the software device over a bad network.

C{python -m txrdma.testing.verbs.simulate --seeds 10000} plays so many, by seeds in a row of which the clock
draws the first: every run plays others. A seed that fails is printed, and repeats what it did.
"""

from __future__ import annotations

import os
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from typing import TypeVar

from twisted.python.usage import Options, UsageError

from txrdma.testing.outcome import Outcome, Violation
from txrdma.testing.verbs.scenario import simulate

_MOST_SHOWN = 10
_Outcome = TypeVar("_Outcome")


def _number(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError("below zero")
    return number


class SimulateOptions(Options):
    """Options for which seeds to play."""

    synopsis = "python -m txrdma.testing.verbs.simulate [--seeds N] [--first SEED]"
    optParameters = [  # that is how usage.Options wants it
        ["seeds", "n", 1000, "How many simulations.", _number],
        ["first", "s", None, "The first one's seed; the clock draws one otherwise.", _number],
    ]
    optFlags = [["quiet", "q", "No progress."]]


def drawSeed() -> int:
    """
    The first of some seeds that nobody has chosen: the time, in milliseconds.

    The environment variable C{TXRDMA_FIRST} says another one, so a whole run of tests can be repeated.
    """
    return int(os.environ.get("TXRDMA_FIRST") or time.time_ns() // 1_000_000)


def _watched(seeds: range, quiet: bool) -> Iterator[int]:
    """The seeds, with a progress bar where somebody looks at one."""
    shown: Iterable[int] = seeds
    if not quiet and sys.stderr.isatty():
        try:
            from rich.console import Console
            from rich.progress import track
        except ImportError:
            pass
        else:
            shown = track(seeds, "Simulating", console=Console(stderr=True))
    yield from shown


def attempts(
    play: Callable[[int], _Outcome], seeds: range, module: str, quiet: bool
) -> Iterator[_Outcome | None]:
    """
    Play seed after seed, and say on standard error which failed, and how to repeat them.

    @param module: whose command repeats them.
    @return: what C{play} returned; C{None} for each that failed.
    """
    failed = 0
    for seed in _watched(seeds, quiet):
        try:
            outcome = play(seed)
        except Exception as error:  # whatever it is, it is a find
            failed += 1
            if failed <= _MOST_SHOWN:
                kind = "" if isinstance(error, Violation) else f"{type(error).__name__}: "
                print(f"seed {seed} fails: {kind}{str(error)[:500]}", file=sys.stderr)
                print(f"  again: python -m {module} --seeds 1 --first {seed}", file=sys.stderr)
            yield None
        else:
            yield outcome


def run(first: int, count: int, quiet: bool = False) -> int:
    """
    Play simulations of queue pairs by seeds in a row.

    @return: how many failed.
    """
    started = time.monotonic()
    failed = 0
    completed = atomics = packets = dropped = migrations = 0
    ends: Counter[str] = Counter()
    outcome: Outcome | None
    for outcome in attempts(simulate, range(first, first + count), "txrdma.testing.verbs.simulate", quiet):
        if outcome is None:
            failed += 1
            continue
        completed += outcome.completed
        atomics += outcome.atomics
        packets += outcome.packets
        dropped += outcome.dropped
        migrations += outcome.migrations
        ends.update(status.name for status in outcome.failures)
    took = time.monotonic() - started
    print(
        f"{count} simulations in {took:.1f} s: {completed} operations completed, {atomics} of them atomic; "
        f"{packets} packets, {dropped} of them lost; {migrations} migrations; {failed} failed"
    )
    print("connections that had to end: " + (", ".join(f"{n} {name}" for name, n in ends.items()) or "none"))
    return failed


def main(play: Callable[[int, int, bool], int] = run, options: SimulateOptions | None = None) -> None:
    """
    Parse the command line, play, and exit.

    @param play: plays seeds from the first on, that many, quietly or not; its answer is how many failed.
    @param options: what C{play} looks into for more.
    """
    if options is None:
        options = SimulateOptions()
    try:
        options.parseOptions()
    except UsageError as error:
        raise SystemExit(f"{options}\n{error}") from None
    first: int = drawSeed() if options["first"] is None else options["first"]
    print(f"{options['seeds']} seeds, from {first} on", flush=True)
    raise SystemExit(1 if play(first, options["seeds"], bool(options["quiet"])) else 0)


if __name__ == "__main__":
    main()
