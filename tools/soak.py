#!/usr/bin/env python3
"""
Run long tests: C{make soak MINUTES=30}.

These are long tests, suites of other projects on every reactor, conversations of two processes, random
scenarios, fuzzing, and short forms of the benchmarks and the demonstration. With C{--minutes}, a random
choice of about this duration is run, and printed with its seed; on a busy machine some of it is left out. An
activity whose random seeds find something does not fail the run, because the last change need not be the
cause; it does not count as passed either. A line at the end names it, which C{ci-summary} repeats. The last
line counts activities.
"""

from __future__ import annotations

import argparse
import json
import os
import random
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Final, NamedTuple

CHECKOUT: Final = Path(__file__).resolve().parent.parent
_FOLDER: Final = CHECKOUT / "build" / "soak"
_UNKNOWN_SECONDS: Final = 300.0  # if a module has no recorded duration
WHOLE: Final = {"TXRDMA_DAYS": "3", "TXRDMA_KILLS": "200"}
"""Simulated days and kills of the fabric monitor, if everything is run."""

_LEAST_SECONDS: Final = 20.0  # if an activity accepts any duration
_PROGRESS_SECONDS: Final = 30.0


class Activity(NamedTuple):
    """
    One command of the soak.

    @ivar seconds: its duration; None: C{{seconds}} or C{{minutes}} in its words set it.
    @ivar isRandom: whether its findings are reported without failing the run.
    """

    name: str
    words: tuple[str, ...]
    seconds: float | None = None
    isRandom: bool = False


def activities() -> Iterator[Activity]:
    """Return all activities of the soak."""
    python = sys.executable
    durations = json.loads((CHECKOUT / "tools" / "durations.json").read_text())
    tests = (python, "tools/runtests.py", "--limit", "3600", "--folder")
    soak = CHECKOUT / "txrdma" / "test" / "soak"
    for path in sorted(soak.rglob("test_*.py")):
        module = ".".join(path.relative_to(CHECKOUT).with_suffix("").parts)
        _, seconds = durations.get(module, (0, _UNKNOWN_SECONDS))
        name = module.removeprefix("txrdma.test.soak.")
        yield Activity(name, (*tests, f"build/soak/{name}", module), seconds)
    make = ("make", f"PYTHON={python}")
    streams = (python, "-m", "txrdma.testing.streams")
    yield Activity("conversations", (*make, "conversations"), 240.0)
    for chapter, seconds in (("closing", 15.0), ("halves", 10.0), ("readers", 125.0), ("deaths", 15.0)):
        words = (*streams, "--route", "shared-memory", "--", chapter)
        yield Activity(f"conversations {chapter}", words, seconds)
    yield Activity("drawn conversations", (*streams, "--drawn", "50"), 30.0, isRandom=True)
    for generator in SCENARIOS:
        words = (*make, "MINUTES={minutes}", f"GENERATORS={generator}", "simulate")
        yield Activity(f"random {generator}", words, isRandom=True)
    yield Activity("hostile", (*make, "MINUTES={minutes}", "hostile"), isRandom=True)
    words = ("env", "TXRDMA_EXAMPLES=1000", *tests, "build/soak/random-examples", "txrdma.test.unit")
    yield Activity("random examples", words, 1800.0, isRandom=True)
    yield Activity("fuzz", (*make, "SECONDS={seconds}", "fuzz"), isRandom=True)
    yield Activity("demo", (*make, "DEMO=--large 4 --files 60", "demo"), 20.0)
    yield Activity("benchmarks", (*make, "BENCH=--quick", "bench"), 600.0)
    yield Activity("compiled cores", (*make, "test-compiled"), 200.0)
    yield Activity("compiled benchmarks", (*make, "BENCH=--quick", "bench-compiled"), 900.0)
    yield Activity("mutants", (*make, "mutants"), 2400.0)
    if shutil.which("npm"):
        yield Activity("vendor", ("sh", "-c", "make vendor && git diff --exit-code txrdma/monitor/web"), 20.0)
    yield Activity("container", (*make, "test-container"), 300.0)
    yield Activity("torch", (*make, "test-torch"), 300.0)
    yield Activity("wheel", (*make, "test-wheel"), 300.0)
    yield Activity("coverage", (*make, "coverage"), 300.0)
    yield Activity("reproducible", (*make, "reproducible"), 300.0)


SCENARIOS: Final = (
    *("verbs", "verbs-clients", "btl", "btl-users", "cm-users", "smc", "smc-shared-memory", "smc-two-ports"),
)


def chosen(everything: list[Activity], seconds: float, seed: int) -> list[tuple[Activity, float]]:
    """Return random activities that together take about this long, with the seconds of each."""
    plan: list[tuple[Activity, float]] = []
    left = seconds
    for activity in random.Random(seed).sample(everything, len(everything)):
        needed = activity.seconds or max(_LEAST_SECONDS, seconds / 4)
        if needed <= left:
            plan.append((activity, needed))
            left -= needed
    return plan


def run(activity: Activity, seconds: float, environment: dict[str, str]) -> int:
    """Run one activity in an environment, its output in a file; return its exit status."""
    words = [word.format(seconds=int(seconds), minutes=seconds / 60) for word in activity.words]
    log = _FOLDER / f"{activity.name.replace(' ', '-').replace('*', '')}.log"
    begun = time.monotonic()
    with open(log, "w", encoding="utf-8") as file:
        process = subprocess.Popen(
            words, cwd=CHECKOUT, env=environment, stdout=file, stderr=subprocess.STDOUT
        )
        try:
            while True:
                try:
                    status = process.wait(_PROGRESS_SECONDS)
                    break
                except subprocess.TimeoutExpired:
                    print(f"soak: {activity.name}, {time.monotonic() - begun:.0f} s", flush=True)
        except KeyboardInterrupt:
            process.send_signal(signal.SIGINT)
            process.wait()
            raise
    outcome = "passed" if status == 0 else "found something" if activity.isRandom else "failed"
    print(f"soak: {activity.name} {outcome} after {time.monotonic() - begun:.0f} s ({log})", flush=True)
    if status:
        print(*log.read_text(errors="replace").splitlines()[-30:], sep="\n", flush=True)
    return status


def main(arguments: list[str]) -> int:
    """Run the soak; return the exit status."""
    parser = argparse.ArgumentParser(description="Run tests and simulations that are long by nature.")
    parser.add_argument(
        "--minutes", type=float, help="a random choice that takes about so long; without: everything"
    )
    parser.add_argument("--seed", type=int, help="of the choice")
    parser.add_argument("--list", action="store_true", help="print what there is, and end")
    options = parser.parse_args(arguments)
    everything = list(activities())
    if options.list:
        print(*(activity.name for activity in everything), sep="\n")
        return 0
    _FOLDER.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGINT, signal.default_int_handler)
    environment = dict(os.environ)
    if options.minutes is None:
        environment = {**WHOLE, **environment}
        plan = [(activity, activity.seconds or 600.0) for activity in everything]
    else:
        seed = options.seed if options.seed is not None else random.randrange(1 << 32)
        plan = chosen(everything, options.minutes * 60, seed)
        print(f"soak: --seed {seed} chooses {', '.join(activity.name for activity, _ in plan)}", flush=True)
    passed = failed = 0
    findings: list[str] = []
    begun = time.monotonic()
    try:
        for activity, seconds in plan:
            if options.minutes and time.monotonic() - begun + seconds > options.minutes * 60:
                print(f"soak: {activity.name} is not begun: there is too little time left", flush=True)
            elif not run(activity, seconds, environment):
                passed += 1
            elif activity.isRandom:
                findings.append(activity.name)
            else:
                failed += 1
    except KeyboardInterrupt:
        print("soak: interrupted")
        return 130
    if findings:
        print(f"soak: findings to be fixed, although they do not fail this run: {', '.join(findings)}")
    skipped = len(everything) - passed - failed - len(findings)
    print(f"soak: {passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
