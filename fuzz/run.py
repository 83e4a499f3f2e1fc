"""
Run fuzz targets under atheris, one process per processor: C{python fuzz/run.py --seconds 60 [NAME ...]}.

C{--inputs 10000000} runs each target for this number of inputs instead, however long that takes.
C{--unguided} runs them on random mutations of their seeds instead, without atheris: more inputs in the same
time, of which fewer reach new code.

Prints how often each target was called. Logs of libFuzzer and inputs that failed are in C{build/fuzz/}.
The exit status is 1 when a target failed.
"""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections.abc import Callable
from contextlib import redirect_stderr
from io import StringIO
from pathlib import Path
from random import Random
from time import monotonic
from traceback import print_exc
from typing import NamedTuple, NoReturn

from harness import allTargets, Entry, HERE
from mutations import mutations

BUILD = HERE.parent / "build" / "fuzz"

_EXECUTED = re.compile(r"stat::number_of_executed_units:\s*(\d+)")


class Limit(NamedTuple):
    """
    When a target has run for long enough.

    @ivar inputs: after this number of inputs, or None.
    @ivar seconds: after this time, if there is no number of inputs.
    """

    inputs: int | None
    seconds: int

    def __str__(self) -> str:
        return f"{self.seconds} s" if self.inputs is None else f"{self.inputs:,} inputs"


def recording(entry: Entry, folder: Path) -> Callable[[bytes], None]:
    """Return the target's function, which writes each input that fails to the file C{crash}."""

    def run(content: bytes) -> None:
        try:
            entry.target.run(content)
        except BaseException:
            (folder / "crash").write_bytes(content)
            raise

    return run


def guided(entry: Entry, limit: Limit, folder: Path) -> NoReturn:
    """Fuzz one target with atheris, which ends the process."""
    import atheris

    corpus = folder / "corpus"
    corpus.mkdir()
    for number, seed in enumerate(entry.target.seeds()):
        (corpus / f"{number:05}").write_bytes(seed)
    end = f"-max_total_time={limit.seconds}" if limit.inputs is None else f"-runs={limit.inputs}"
    options = [end, "-print_final_stats=1", "-timeout=10", "-rss_limit_mb=1024"]
    atheris.Setup(
        [sys.argv[0], *options, f"-artifact_prefix={folder}/", str(corpus)], recording(entry, folder)
    )
    atheris.Fuzz()
    raise AssertionError("atheris did not end the process")


def unguided(entry: Entry, limit: Limit, folder: Path) -> None:
    """Run one target on random mutations of its seeds, and print what L{report} reads, as libFuzzer does."""
    end, run = monotonic() + limit.seconds, recording(entry, folder)
    for executed, content in enumerate(mutations(entry.target.seeds(), Random(entry.name))):
        if executed == limit.inputs or limit.inputs is None and not executed % 100 and monotonic() >= end:
            break
        run(content)
    print(f"stat::number_of_executed_units: {executed}", flush=True)


def fuzz(entry: Entry, limit: Limit, folder: Path, isGuided: bool) -> NoReturn:
    """Fuzz one target in this process, which writes to a log, and end the process."""
    with (folder / "log").open("wb") as log:
        os.dup2(log.fileno(), 1)
        os.dup2(log.fileno(), 2)
    status = 1
    try:
        (guided if isGuided else unguided)(entry, limit, folder)
        status = 0
    except Exception:
        print_exc()
    finally:
        os._exit(status)


def report(entry: Entry, folder: Path, status: int) -> bool:
    """Print the result of one target, and return whether it held."""
    log = (folder / "log").read_text("utf-8", "replace")
    match = _EXECUTED.search(log)
    executed = int(match[1]) if match else 0
    held = status == 0 and executed > 0
    line = f"{entry.name:20} {executed:11,}  {'ok' if held else 'FAILED'}"
    print(line if held else f"{line}, see {folder}\n{log[-3000:]}", flush=True)
    return held


def runAll(entries: list[Entry], limit: Limit, jobs: int, isGuided: bool) -> int:
    """Fuzz each target until the limit, C{jobs} of them at a time, and return how many failed."""
    waiting = list(entries)
    running: dict[int, tuple[Entry, Path]] = {}
    failed = 0
    while waiting or running:
        if waiting and len(running) < jobs:
            entry = waiting.pop(0)
            folder = BUILD / re.sub(r"\W+", "-", entry.name)
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            process = os.fork()
            if not process:
                fuzz(entry, limit, folder, isGuided)
            running[process] = entry, folder
        else:
            process, status = os.wait()
            failed += not report(*running.pop(process), status)
    return failed


def unguidedTargets() -> list[Entry]:
    """Import all targets."""
    with redirect_stderr(StringIO()):
        return list(allTargets())


def guidedTargets() -> list[Entry]:
    """Import all targets such that atheris sees what they reach."""
    import atheris

    with atheris.instrument_imports(include=["txrdma", "fuzz_"]):
        return unguidedTargets()


def main() -> int:
    """Run the chosen targets; return the exit status."""
    parser = argparse.ArgumentParser(description="Run fuzz targets under atheris.")
    limits = parser.add_mutually_exclusive_group()
    limits.add_argument(
        "--seconds", type=int, default=60, help="for all targets, at least 1 for each (default: %(default)s)"
    )
    limits.add_argument("--inputs", type=int, help="for each target, instead of a time")
    parser.add_argument(
        "--jobs", type=int, default=os.cpu_count() or 1, help="targets at a time (default: %(default)s)"
    )
    parser.add_argument(
        "--unguided", action="store_true", help="random mutations of the seeds, without atheris"
    )
    parser.add_argument("names", nargs="*", metavar="NAME", help="targets; all if none is named")
    options = parser.parse_args()
    entries = unguidedTargets() if options.unguided else guidedTargets()
    unknown = set(options.names) - {entry.name for entry in entries}
    if unknown:
        parser.error(f"no such target: {', '.join(sorted(unknown))}")
    chosen = [entry for entry in entries if not options.names or entry.name in options.names]
    limit = Limit(options.inputs, max(1, options.seconds * options.jobs // len(chosen)))
    print(f"{len(chosen)} targets, {limit} each, {options.jobs} at a time", flush=True)
    print(f"{'target':20} {'executions':>11}", flush=True)
    failed = runAll(chosen, limit, options.jobs, not options.unguided)
    print(f"{failed} of {len(chosen)} targets failed" if failed else f"all {len(chosen)} targets held")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
