"""
Command that runs random simulations of txrdma's protocols, from plans that are drawn by seeds.

C{python -m txrdma.testing.simulate --seeds 10000 smc} runs 10000 simulations of one generator; without a
name, of all generators except those with a hostile peer (C{make hostile}). The first seed is taken from the
clock, so that each run draws new plans. The plan of each simulation that fails is written to a file; see
L{txrdma.testing.plans}.
"""

from __future__ import annotations

import math
import signal
import sys
import time
from collections import Counter
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import partial
from itertools import count
from pathlib import Path
from typing import Any, Final, Generic, TypeVar

from twisted.logger import globalLogBeginner
from twisted.python.usage import Options, UsageError

from txrdma.testing.btl.plans import drawModules, ModulesPlan
from txrdma.testing.btl.scenario import playModules
from txrdma.testing.btl.userplans import drawUsers, UsersPlan
from txrdma.testing.btl.users import playUsers
from txrdma.testing.cm import scenario as cmUsers
from txrdma.testing.cm import userplans as cmPlans
from txrdma.testing.hostile.announcements import AnnouncementScenario
from txrdma.testing.hostile.btl import BTLPathsScenario, BTLRDMAScenario, BTLScenario
from txrdma.testing.hostile.cm import CMScenario, RSocketScenario
from txrdma.testing.hostile.collecting import CollectorScenario
from txrdma.testing.hostile.coordinator import CoordinatorScenario
from txrdma.testing.hostile.groups import GroupMemoryScenario, GroupScenario
from txrdma.testing.hostile.mad import MADScenario
from txrdma.testing.hostile.neighbours import NeighbourScenario
from txrdma.testing.hostile.plans import HostilePlan
from txrdma.testing.hostile.scenario import HostileScenario, playHostile
from txrdma.testing.hostile.smc import SMCScenario
from txrdma.testing.hostile.soft import BTLMemoryScenario, MessagesMemoryScenario, SMCMemoryScenario
from txrdma.testing.hostile.web import WebScenario
from txrdma.testing.hostile.webacts import WebPlan
from txrdma.testing.outcome import Outcome, Violation
from txrdma.testing.plans import Misfit, readPlan, StoredPlan
from txrdma.testing.smc.neighbours import drawMemory, MemoryPlan, playMemory
from txrdma.testing.smc.plans import drawStreams, StreamPlan
from txrdma.testing.smc.scenario import playStreams
from txrdma.testing.smc.twoports import drawTwoPorts, playTwoPorts, TwoPortPlan
from txrdma.testing.verbs.clients import playClients
from txrdma.testing.verbs.plans import ClientsPlan, drawClients, drawPair, PairPlan
from txrdma.testing.verbs.scenario import playPair

_Plan = TypeVar("_Plan")
_MOST_SHOWN: Final = 10
_REDRAWN_SECONDS: Final = 0.2
_LOGGED_SECONDS: Final = 60.0
_FOLDER = Path("build/plans")
_COMMAND: Final = "python -m txrdma.testing.simulate"


@dataclass(frozen=True)
class Generator(Generic[_Plan]):
    """
    A kind of random simulation.

    @ivar kind: class of its plans.
    @ivar draw: draws the plan of a seed; C{play}: runs a plan, and raises an exception if it fails.
    """

    kind: type[_Plan]
    draw: Callable[[int], _Plan]
    play: Callable[[_Plan], Outcome]


def _hostile(
    scenario: type[HostileScenario], kind: type[HostilePlan] = HostilePlan
) -> Generator[HostilePlan]:
    return Generator(kind, scenario.draw, partial(playHostile, scenario))


GENERATORS: Final[dict[str, Generator[Any]]] = {
    "verbs": Generator(PairPlan, drawPair, playPair),
    "verbs-clients": Generator(ClientsPlan, drawClients, playClients),
    "btl": Generator(ModulesPlan, drawModules, playModules),
    "btl-users": Generator(UsersPlan, drawUsers, playUsers),
    "cm-users": Generator(cmPlans.UsersPlan, cmPlans.drawUsers, cmUsers.playUsers),
    "smc": Generator(StreamPlan, drawStreams, playStreams),
    "smc-shared-memory": Generator(MemoryPlan, drawMemory, playMemory),
    "smc-two-ports": Generator(TwoPortPlan, drawTwoPorts, playTwoPorts),
    "hostile-btl": _hostile(BTLScenario),
    "hostile-btl-groups": _hostile(GroupScenario),
    "hostile-btl-groups-shared-memory": _hostile(GroupMemoryScenario),
    "hostile-btl-paths": _hostile(BTLPathsScenario),
    "hostile-btl-rdma": _hostile(BTLRDMAScenario),
    "hostile-btl-shared-memory": _hostile(BTLMemoryScenario),
    "hostile-collector": _hostile(CollectorScenario),
    "hostile-coordinator": _hostile(CoordinatorScenario),
    "hostile-mad": _hostile(MADScenario),
    "hostile-rdma": _hostile(CMScenario),
    "hostile-rsocket": _hostile(RSocketScenario),
    "hostile-smc": _hostile(SMCScenario),
    "hostile-smc-announcements": _hostile(AnnouncementScenario),
    "hostile-smc-neighbours": _hostile(NeighbourScenario),
    "hostile-smc-shared-memory": _hostile(SMCMemoryScenario),
    "hostile-soft": _hostile(MessagesMemoryScenario),
    "hostile-web": _hostile(WebScenario, WebPlan),
}

_USUAL: Final = tuple(name for name in GENERATORS if not name.startswith("hostile-"))


def readStored(path: Path) -> StoredPlan:
    """
    Read a plan of any generator from a file.

    @raise Misfit: the plan no longer fits its generator.
    """
    return readPlan(path, {name: generator.kind for name, generator in GENERATORS.items()})


@dataclass
class Totals:
    """
    Totals of the simulations of one generator.

    @ivar seconds: duration of all simulations.
    """

    played: int = 0
    failed: int = 0
    seconds: float = 0.0
    counts: Counter[str] = field(default_factory=Counter)


class Search:
    """
    A search for plans that fail.

    @ivar totals: totals by the names of generators.
    @ivar interrupted: number of the signal that has ended the search, or 0.
    """

    def __init__(self, names: Sequence[str], isQuiet: bool = False) -> None:
        self.totals = {name: Totals() for name in names}
        self.interrupted = 0
        self._isTerminal = sys.stderr.isatty()
        self._interval = math.inf if isQuiet else _REDRAWN_SECONDS if self._isTerminal else _LOGGED_SECONDS
        self._started = self._shownAt = time.monotonic()

    @property
    def failed(self) -> int:
        """Number of simulations that have failed so far."""
        return sum(each.failed for each in self.totals.values())

    def interrupt(self, number: int, frame: object) -> None:
        """
        Handle a signal: end after the current simulation; a second one of its kind ends the process.

        An exception would be caught in a Deferred, or be a finding.
        """
        self.interrupted = number
        signal.signal(number, signal.SIG_DFL)

    def run(self, seeds: Iterator[int], seconds: float | None = None) -> None:
        """
        Run all generators with each of these seeds, until they are interrupted.

        @param seconds: time after which no further simulation is started.
        """
        for seed in seeds:
            for name in self.totals:
                isLate = seconds is not None and time.monotonic() - self._started >= seconds
                if isLate or self.interrupted:
                    self._clear()
                    return
                self._play(name, seed)
                self._show()
        self._clear()

    def _play(self, name: str, seed: int) -> None:
        generator, totals = GENERATORS[name], self.totals[name]
        begun = time.monotonic()
        totals.played += 1
        plan = generator.draw(seed)
        try:
            totals.counts += generator.play(plan).counts
        except Exception as error:  # every exception is a finding
            totals.failed += 1
            self._failed(name, seed, plan, error)
        totals.seconds += time.monotonic() - begun

    def _failed(self, name: str, seed: int, plan: object, error: Exception) -> None:
        path = _FOLDER / f"{name}-{seed}.json"
        StoredPlan(name, f"Not known yet: {_described(error)}", plan).write(path)
        if self.failed > _MOST_SHOWN:
            return
        self._clear()
        for line in (
            f"{name}: seed {seed} fails: {_described(error)}",
            f"  repeat it: {_COMMAND} --seeds 1 --first {seed} {name}",
            f"  its plan: {path}; play that: {_COMMAND} --plan {path}",
            f'  store it: describe the fault in "found", and move it to txrdma/test/plans/{name}/NAME.json',
        ):
            print(line, file=sys.stderr)

    def _clear(self) -> None:
        if self._isTerminal and self._interval < math.inf:
            print("\r\x1b[K", end="", file=sys.stderr, flush=True)

    def _show(self) -> None:
        """Show the progress: on a terminal in one line, elsewhere by a line each minute."""
        now = time.monotonic()
        if now - self._shownAt >= self._interval:
            self._shownAt = now
            played = sum(each.played for each in self.totals.values())
            line = f"{played} simulations, {now - self._started:.0f} s, {self.failed} failures"
            before, after = ("\r\x1b[K", "") if self._isTerminal else ("", "\n")
            print(f"{before}{line}", end=after, file=sys.stderr, flush=True)

    def report(self) -> None:
        """Print the totals of each generator."""
        for name, totals in self.totals.items():
            counts = ", ".join(f"{number} {what}" for what, number in totals.counts.most_common())
            print(
                f"{name}: {totals.played} played in {totals.seconds:.1f} s, {totals.failed} failed: {counts}"
            )


def _described(error: Exception) -> str:
    kind = "" if isinstance(error, Violation) else f"{type(error).__name__}: "
    return f"{kind}{str(error)[:500]}"


def playFile(path: Path) -> bool:
    """Run the plan in a file, print the result, and return whether it succeeded."""
    stored = readStored(path)
    try:
        result = GENERATORS[stored.generator].play(stored.plan)
    except Exception as error:  # every exception is a finding
        print(f"{path} fails: {_described(error)}")
        return False
    counts = ", ".join(f"{number} {what}" for what, number in result.counts.most_common())
    print(f"{path} holds: {counts}")
    return True


def _number(text: str) -> int:
    number = int(text)
    if number < 0:
        raise ValueError("below zero")
    return number


def _minutes(text: str) -> float:
    minutes = float(text)
    if not minutes > 0:
        raise ValueError("not above zero")
    return minutes


class SimulateOptions(Options):
    """Options of C{python -m txrdma.testing.simulate}."""

    synopsis = f"{_COMMAND} [--seeds N | --minutes M] [--first SEED] [GENERATOR ...] | --plan FILE"
    longdesc = f"Generators are {', '.join(GENERATORS)}."
    optParameters = [  # the format of usage.Options
        ["seeds", "n", None, "How many seeds each generator plays; 1000 unless there are minutes.", _number],
        ["minutes", "m", None, "End after that many minutes.", _minutes],
        ["first", "s", None, "The first seed; the clock draws one otherwise.", _number],
        ["plan", "p", None, "Play the plan in this file, and nothing else."],
    ]
    optFlags = [["quiet", "q", "No progress."]]

    def parseArgs(self, *names: str) -> None:
        """Store the names of generators; by default, all without a hostile peer."""
        for name in names:
            if name not in GENERATORS:
                raise UsageError(f"{name} is not one of {', '.join(GENERATORS)}")
        self["names"] = names or _USUAL


def main(arguments: Sequence[str]) -> int:
    """
    Draw and run simulations as the command line specifies, and report the totals, also after SIGINT or
    SIGTERM.

    @return: the exit code.
    """
    options: SimulateOptions = SimulateOptions()
    try:
        options.parseOptions(arguments)
        if options["plan"] is not None:
            return 0 if playFile(Path(options["plan"])) else 1
    except (UsageError, Misfit, OSError) as error:
        raise SystemExit(f"{options}\n{error}") from None
    first = time.time_ns() // 1_000_000 if options["first"] is None else options["first"]
    minutes, seeds = options["minutes"], options["seeds"]
    if seeds is None and minutes is None:
        seeds = 1000
    print(
        f"{'all' if seeds is None else seeds} seeds from {first} on: {', '.join(options['names'])}",
        flush=True,
    )
    search = Search(options["names"], bool(options["quiet"]))
    before = {number: signal.signal(number, search.interrupt) for number in (signal.SIGINT, signal.SIGTERM)}
    try:
        search.run(
            count(first) if seeds is None else iter(range(first, first + seeds)),
            None if minutes is None else 60 * minutes,
        )
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)
    search.report()
    if search.interrupted:
        return 128 + search.interrupted
    return 1 if search.failed else 0


if __name__ == "__main__":
    globalLogBeginner.beginLoggingTo((), redirectStandardIO=False)  # else the log buffers events
    raise SystemExit(main(sys.argv[1:]))
