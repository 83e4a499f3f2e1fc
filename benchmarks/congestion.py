"""
Simulate senders of btl at a bottleneck with many seeds: C{python -m benchmarks.congestion --seeds 10}.

A change of L{txrdma.btl.core.congestion} is judged by seeds that were not used to find it. Each row prints
the minimum, the median and the maximum of its seeds. Simulated time passes only: load has no influence.
"""

from __future__ import annotations

import sys
from collections.abc import Sequence
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass
from math import inf
from random import Random
from statistics import median
from typing import Final, NamedTuple

from twisted.python import usage

from txrdma.btl.wire import CHUNK_LENGTH
from txrdma.testing.btl.bottleneck import CubicFlow
from txrdma.testing.btl.manysenders import ManySenders, MTU


@dataclass(frozen=True)
class Row:
    """
    A bottleneck and its senders.

    @ivar depth: packets that may wait; C{markFrom}: packets beyond which others are marked.
    @ivar begin: seconds at which the measurement begins; C{end}: at which it ends.
    @ivar rate: packets per second; C{delay}: seconds in each direction; C{loss}: share lost at random.
    @ivar pauses: mean seconds between two pauses of each host; zero for none.
    @ivar hasCubic: whether a flow of TCP CUBIC begins after the senders.
    """

    title: str
    senders: int
    depth: int
    begin: float
    end: float
    rate: float = 100_000
    delay: float = 25e-6
    markFrom: float = inf
    loss: float = 0.0
    pauses: float = 0.0
    hasCubic: bool = False


class Figures(NamedTuple):
    """
    What one simulation has shown.

    @ivar lost: share of packets that the queue lost; C{jain}: Jain's index of fairness of the senders.
    @ivar utilisation: share of the time in which the link was busy.
    @ivar share: bytes of received messages as a share of what the link can carry.
    """

    lost: float
    jain: float
    utilisation: float
    share: float


def rows() -> dict[str, Row]:
    """Return all rows by name."""
    found = {}
    for senders, depth, begin, end in ((1, 32, 0.25, 0.5), (4, 32, 1, 2), (16, 32, 1, 2), (16, 256, 2, 4)):
        found[f"{senders}-{depth}"] = Row(f"{senders} senders, queue {depth}", senders, depth, begin, end)
    found["64-64"] = Row("64 senders, queue 64", 64, 64, 1, 2)
    for senders in (4, 16, 64):
        title = f"{senders} senders, queue 256, marks beyond 32"
        found[f"{senders}-marks"] = Row(title, senders, 256, 1, 2, markFrom=32)
    found["16-pauses"] = Row("16 senders, queue 32, pauses", 16, 32, 1, 2, pauses=0.05)
    for depth in (31, 100, 256):
        title = f"beside CUBIC, queue {depth}"
        found[f"cubic-{depth}"] = Row(title, 1, depth, 1, 5, 10_000, 0.0005, hasCubic=True)
    for percent in (1, 5):
        for delay in (25e-6, 0.001):
            title = f"{percent} % random loss, delay {1000 * delay:g} ms"
            row = Row(title, 1, 256, 0.25, 0.75, 20_000, delay, loss=percent / 100)
            found[f"loss-{percent}-{1000 * delay:g}"] = row
    return found


ROWS: Final = rows()


def simulate(name: str, seed: int) -> Figures:
    """Simulate a row with a seed."""
    row = ROWS[name]
    many = ManySenders(
        *(row.senders, row.rate, row.depth, row.delay, row.loss),
        pauses=row.pauses,
        markFrom=row.markFrom,
        seed=seed,
    )
    if row.hasCubic:
        other = CubicFlow(many.world.call, many.bottleneck, 2 * row.delay, MTU)
        at = 0.2 + Random(seed).random() * 0.1
        many.world.call(at, lambda: other.fill(at))
    many.world.run(row.begin)
    before = sum(many.received)
    lost, jain, utilisation = many.measure(row.begin, row.end)
    most = row.rate * (MTU - CHUNK_LENGTH) * (row.end - row.begin)
    return Figures(lost, jain, utilisation, (sum(many.received) - before) / most)


class Options(usage.Options):
    synopsis = "[options]"
    optFlags = [["each", "e", "Print the figures of each seed, too."]]
    optParameters = [
        ["seeds", "n", 10, "Number of seeds.", int],
        ["first", "f", 0, "First seed.", int],
        ["jobs", "j", 1, "Number of processes.", int],
    ]

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self["rows"] = []

    def opt_row(self, name: str) -> None:
        """Simulate this row; may be repeated. Default: all rows."""
        if name not in ROWS:
            raise usage.UsageError(f"no such row: {name}; rows are {', '.join(ROWS)}")
        self["rows"].append(name)


def line(title: str, results: Sequence[Figures]) -> str:
    """Return a line of the table: the least, the median and the largest of each figure."""
    cells = []
    for digits, scale, values in zip((2, 3, 3, 3), (100, 1, 1, 1), zip(*results, strict=True), strict=True):
        shown = [f"{scale * value:.{digits}f}" for value in (min(values), median(values), max(values))]
        cells.append(" ".join(shown))
    return " | ".join((f"{title:42}", *(f"{cell:17}" for cell in cells)))


def main(arguments: Sequence[str]) -> None:
    """Print the table."""
    options = Options()
    options.parseOptions(arguments)  # type: ignore[no-untyped-call]  # of Twisted's
    seeds = range(options["first"], options["first"] + options["seeds"])
    print(f"{'least, median, most':42} | lost in %         | Jain's index      | utilisation       | share")
    with ProcessPoolExecutor(options["jobs"]) as processes:
        for name in options["rows"] or ROWS:
            results = list(processes.map(simulate, [name] * len(seeds), seeds))
            print(line(ROWS[name].title, results), flush=True)
            if options["each"]:
                for seed, result in zip(seeds, results, strict=True):
                    print(line(f"  seed {seed}", [result]))


if __name__ == "__main__":
    main(sys.argv[1:])
