#!/usr/bin/env python3
"""
Run the test suite on several processes, with a progress line, a log, and recorded durations.

Names are packages, modules, or tests (C{txrdma.test.unit}, C{txrdma.test.unit.iba.test_types.GIDTests}).
Workers take whole modules (L{testworker}), the longest first by the durations of the last run. All that
tests print goes to the log; the terminal shows the progress and each failure as it happens. The last line is
C{N passed, N failed, N skipped}; the exit status is 1 if a test failed.
"""

from __future__ import annotations

import argparse
import ast
import contextlib
import json
import os
import random
import resource
import selectors
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final, TextIO

CHECKOUT: Final = Path(__file__).resolve().parent.parent
_DURATIONS: Final = CHECKOUT / "tools" / "durations.json"
_WORKER: Final = Path(__file__).resolve().with_name("testworker.py")
_DESCRIPTORS: Final = 4096
_QUIET_SECONDS: Final = 30.0  # between progress lines without a terminal
SLOW_SECONDS: Final = 2.0  # a slower test must have a reason
MOST_SECONDS: Final = 10.0  # only tests of the soak may take longer
FORBIDDEN: Final = {
    "unit": frozenset({"process", "network", "reactor"}),
    "integration": frozenset({"process"}),
}
"""What tests of a group must not use; see L{testworker.Usage}."""
SYSTEM: Final = "txrdma.test.system."
SEPARATE: Final = ("txrdma.test.system.kernel", "txrdma.test.system.container")
"""Packages with separate targets, which run only when they are named."""


@dataclass
class Job:
    """
    One module (or a name inside it) to run in one worker.

    @ivar percent: of the tests that state why they are slow, how many to run.
    """

    name: str
    module: str
    count: int
    seconds: float
    percent: float = 100.0


@dataclass
class Ended:
    """
    Result of one test.

    @ivar seconds: from its begin to its end; C{waitedSeconds} is the part in which it waited for a processor.
    @ivar cpuSeconds: processor time, also of processes that ended meanwhile.
    """

    test: str
    outcome: str
    text: str
    seconds: float
    waitedSeconds: float
    cpuSeconds: float
    uses: list[str]
    reason: str | None


@dataclass
class WorkerProcess:
    """
    A running worker, its current job and its current test.

    @ivar waited: seconds that the worker had waited for a processor when the test began.
    """

    process: subprocess.Popen[str]
    reports: Any
    job: Job | None = None
    test: str | None = None
    since: float = 0.0
    waited: float = 0.0
    isOverdue: bool = False
    partial: str = ""

    def begin(self, test: str) -> None:
        """Record that a test begins."""
        self.test, self.since, self.waited = test, time.monotonic(), waitedSeconds(self.process.pid)

    def seconds(self) -> float:
        """Return the seconds since the test began, without those in which it waited for a processor."""
        return time.monotonic() - self.since - (waitedSeconds(self.process.pid) - self.waited)


def waitedSeconds(pid: int) -> float:
    """Return the seconds that the main thread of a process has waited for a processor; 0 if not counted."""
    try:
        return int(Path(f"/proc/{pid}/schedstat").read_text().split()[1]) / 1e9
    except (OSError, IndexError):
        return 0.0


def modulesOf(root: Path, name: str) -> Iterator[tuple[str, str]]:
    """Return the test modules of a dotted name, each with the name to load in it."""
    parts = name.split(".")
    for length in range(len(parts), 0, -1):
        path = root.joinpath(*parts[:length])
        if path.is_dir() and length == len(parts):
            for each in sorted(path.rglob("test_*.py")):
                dotted = ".".join(each.relative_to(root).with_suffix("").parts)
                if name in SEPARATE or not dotted.startswith(SEPARATE):
                    yield dotted, dotted
            return
        if path.with_suffix(".py").is_file():
            yield ".".join(parts[:length]), name
            return
    raise SystemExit(f"There is no test named {name}.")


def pathOf(root: Path, module: str) -> Path:
    """Return the file of a module below the folder C{root}."""
    return root.joinpath(*module.split(".")).with_suffix(".py")


def testsIn(root: Path, module: str) -> int:
    """Estimate the number of tests in a module that was never loaded: its functions named test_."""
    tree = ast.parse(pathOf(root, module).read_text())
    return sum(isinstance(node, ast.FunctionDef) and node.name.startswith("test") for node in ast.walk(tree))


class Durations:
    """
    Number of tests and seconds of each module.

    C{tools/durations.json} has those of modules that take more than a second, for the first run of a
    checkout; later runs use what they have measured themselves. Modules that no longer exist are dropped.
    """

    def __init__(self, root: Path, own: Path) -> None:
        self._root, self._own = root, own
        self._modules: dict[str, tuple[int, float]] = {}
        for path in (_DURATIONS, own):
            with contextlib.suppress(OSError, ValueError):
                stored = json.loads(path.read_text())
                self._modules |= {name: each for name, each in stored.items() if pathOf(root, name).is_file()}

    def job(self, module: str, name: str) -> Job:
        """Return the job for a module, with its expected tests and seconds."""
        count, seconds = self._modules.get(module) or (testsIn(self._root, module), 0.5)
        return Job(name, module, count, seconds)

    def record(self, ended: Iterable[tuple[str, Ended]]) -> None:
        """Store the durations of modules that have run completely."""
        measured: dict[str, tuple[int, float]] = {}
        for module, each in ended:
            count, seconds = measured.get(module, (0, 0.0))
            measured[module] = count + 1, round(seconds + each.seconds, 2)
        self._modules |= measured
        self._own.write_text(json.dumps(self._modules, indent=0, sort_keys=True))


class Progress:
    """The progress line on the terminal while tests run."""

    def __init__(self, label: str, total: int, stream: TextIO) -> None:
        self._label, self.total, self._stream = label, total, stream
        self._begun = self._last = time.monotonic()
        self._isTerminal = stream.isatty()
        self.counts: Counter[str] = Counter()

    @property
    def elapsed(self) -> float:
        """Seconds since the first test could start."""
        return time.monotonic() - self._begun

    def line(self) -> str:
        """Return the numbers of finished and expected tests, elapsed time, and failures."""
        done = sum(self.counts.values())
        minutes, seconds = divmod(int(self.elapsed), 60)
        failed = f", {self.counts['failed']} failed" if self.counts["failed"] else ""
        return f"{self._label}{done}/{max(done, self.total)} tests, {minutes}:{seconds:02}{failed}"

    def update(self) -> None:
        """Show the current line: at once on a terminal, periodically elsewhere."""
        now = time.monotonic()
        if self._isTerminal:
            if now - self._last >= 0.1:
                self._last = now
                self._stream.write(f"\r\x1b[K{self.line()}")
                self._stream.flush()
        elif now - self._last >= _QUIET_SECONDS:
            self._last = now
            print(self.line(), file=self._stream, flush=True)

    def print_(self, text: str) -> None:
        """Print text above the progress line."""
        if self._isTerminal:
            self._stream.write("\r\x1b[K")
        print(text, file=self._stream, flush=True)


class Run:
    """Assigns jobs to workers, and collects their results."""

    def __init__(
        self, jobs: list[Job], options: argparse.Namespace, work: Path, log: TextIO, progress: Progress
    ) -> None:
        self._jobs = sorted(jobs, key=lambda job: job.seconds)  # taken from the end
        self._options, self._work = options, work
        self._log = log
        self._progress = progress
        self._workers: dict[int, WorkerProcess] = {}
        self._selector = selectors.DefaultSelector()
        self._number = 0
        self.ended: list[tuple[str, Ended]] = []

    def run(self) -> None:
        try:
            for _ in range(min(self._options.jobs, len(self._jobs))):
                self._start()
            while self._workers:
                for key, _ in self._selector.select(0.5):
                    self._read(key.data)
                for worker in list(self._workers.values()):
                    if worker.test and not worker.isOverdue and worker.seconds() > self._options.limit:
                        worker.isOverdue = True
                        worker.process.send_signal(signal.SIGABRT)  # faulthandler writes the stack to the log
                self._progress.update()
        finally:
            for worker in self._workers.values():
                worker.process.kill()

    def _start(self) -> None:
        readEnd, writeEnd = os.pipe()
        self._number += 1
        folder = self._work / f"worker-{self._number}"
        folder.mkdir()
        try:
            process = subprocess.Popen(
                [sys.executable, str(_WORKER), str(writeEnd), str(folder), str(self._options.root)],
                env={"HYPOTHESIS_STORAGE_DIRECTORY": str(self._options.folder.resolve() / "hypothesis")}
                | os.environ,
                stdin=subprocess.PIPE,
                stdout=self._log,
                stderr=subprocess.STDOUT,
                pass_fds=[writeEnd],
                text=True,
            )
        finally:
            os.close(writeEnd)
        os.set_blocking(readEnd, False)
        worker = WorkerProcess(process, open(readEnd, "rb", buffering=0))
        self._workers[process.pid] = worker
        self._selector.register(worker.reports, selectors.EVENT_READ, worker)

    def _read(self, worker: WorkerProcess) -> None:
        data = worker.reports.read(1 << 16)
        if data is None:
            return
        if not data:
            self._stopped(worker)
            return
        *lines, worker.partial = (worker.partial + data.decode()).split("\n")
        for line in lines:
            self._reported(worker, json.loads(line))

    def _reported(self, worker: WorkerProcess, report: dict[str, Any]) -> None:
        event = report.pop("event")
        if event == "started":
            worker.begin(report["test"])
        elif event == "ended":
            worker.test = None
            assert worker.job is not None
            self._finished(worker.job, Ended(**report))
        elif event == "loaded":
            assert worker.job is not None
            self._progress.total += report["count"] - worker.job.count
        else:  # ready, or done with a job
            self._assign(worker)

    def _assign(self, worker: WorkerProcess) -> None:
        assert worker.process.stdin is not None
        worker.job = None
        if self._jobs and not (self._options.exitFirst and self._progress.counts["failed"]):
            worker.job = self._jobs.pop()
            with contextlib.suppress(BrokenPipeError):
                order = {"name": worker.job.name, "percent": worker.job.percent, "seed": self._options.seed}
                worker.process.stdin.write(json.dumps(order) + "\n")
                worker.process.stdin.flush()
        else:
            with contextlib.suppress(BrokenPipeError):
                worker.process.stdin.close()

    def _stopped(self, worker: WorkerProcess) -> None:
        """Handle the end of a worker: expected without a job; with one, its current test has failed."""
        self._selector.unregister(worker.reports)
        worker.reports.close()
        status = worker.process.wait()
        del self._workers[worker.process.pid]
        if worker.job is not None:
            name = worker.test or worker.job.name
            text = f"The worker process ended with status {status} (the log has its output)."
            if worker.isOverdue:
                text = f"No result after {self._options.limit:.0f} s; the log has the stack of each thread."
            self._finished(worker.job, Ended(name, "failed", text, 0.0, 0.0, 0.0, [], None))
        elif status and self._jobs:
            job = self._jobs.pop()  # other workers would end as well: fail the module, so that the run ends
            text = f"A worker ended with status {status} before it ran a test (the log has its output)."
            self._finished(job, Ended(job.name, "failed", text, 0.0, 0.0, 0.0, [], None))
        if self._jobs:
            self._start()

    def _finished(self, job: Job, ended: Ended) -> None:
        if ended.outcome == "passed" and (reason := misplaced(ended)):
            ended.outcome, ended.text = "failed", reason
        self.ended.append((job.module, ended))
        self._progress.counts[ended.outcome] += 1
        note = f": {ended.text}" if ended.outcome == "skipped" else ""
        self._log.write(f"{ended.test} ... {ended.outcome} ({ended.seconds:.3f} s){note}\n")
        if ended.outcome == "failed":
            block = f"{'=' * 79}\n[FAIL] {ended.test}\n{ended.text}\n"
            self._log.write(block)
            self._progress.print_(block)
        self._log.flush()


def sampled(jobs: list[Job], percent: float, seed: int) -> list[Job]:
    """Return a random part of the system tests, by their time, and the others with a part of slow tests."""
    system = [job for job in jobs if job.module.startswith(SYSTEM)]
    chosen = [replace(job, percent=percent) for job in jobs if job not in system]
    budget = percent / 100 * sum(job.seconds for job in system)
    generator = random.Random(seed)
    for job in generator.sample(system, len(system)):
        if generator.random() * job.seconds < budget:  # the last one by the part of it that the budget has
            chosen.append(job)
        budget -= job.seconds
    return chosen


def allowDescriptors() -> None:
    """Raise the soft limit of open files: some tests hold both ends of hundreds of connections."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def printSlowest(ended: list[Ended], number: int) -> None:
    """Print the slowest tests, with the reasons of their classes."""
    for each in sorted(ended, key=lambda each: -each.seconds)[:number]:
        reason = f"  ({each.reason})" if each.reason else ""
        print(f"{each.seconds:8.2f} s  {each.test}{reason}")


def printTooSlow(ended: list[Ended]) -> None:
    """
    Print the tests over two seconds that give no reason (C{slowBecause} of the test or its class), and tests
    over ten seconds that are not part of the soak.

    Time in which a test waited for a processor does not count.
    """
    used = {each.test: each.seconds - each.waitedSeconds for each in ended}
    slow = {each.test for each in ended if used[each.test] > SLOW_SECONDS and not each.reason}
    tooSlow = {test for test, seconds in used.items() if seconds > MOST_SECONDS and ".soak." not in test}
    for names, text in (
        (slow, f"{SLOW_SECONDS:.0f} s, without slowBecause"),
        (tooSlow, f"{MOST_SECONDS:.0f} s"),
    ):
        if names:
            print(f"Slower than {text}: {', '.join(sorted(names))}")


def printSkips(ended: list[Ended]) -> None:
    """Print why tests were skipped, by reason, the most frequent one first."""
    reasons = Counter(" ".join(each.text.split()) for each in ended if each.outcome == "skipped")
    for reason, count in reasons.most_common():
        print(f"{count} skipped: {reason or 'no reason is given'}")


def misplaced(ended: Ended) -> str:
    """Return why a test does not belong to its group, unit or integration; empty if it does."""
    group = ended.test.removeprefix("txrdma.test.").partition(".")[0]
    forbidden = sorted(FORBIDDEN.get(group, frozenset()).intersection(ended.uses))
    return f"A test of the group {group} may not use: {', '.join(forbidden)}." if forbidden else ""


def parsed(arguments: list[str]) -> argparse.Namespace:
    """Return the parsed command line."""
    parser = argparse.ArgumentParser(description="Run tests on several processes.")
    parser.add_argument("names", nargs="+", help="packages, modules or tests")
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 2, help="worker processes")
    parser.add_argument(
        "--sample",
        type=float,
        default=100.0,
        metavar="PERCENT",
        help="run a random part of the system tests, and of the others that state why they are slow",
    )
    parser.add_argument("--seed", type=int, default=random.randrange(1 << 32), help="seed of the random part")
    parser.add_argument("--label", default="", help="a word that stands before the counts")
    parser.add_argument("--slowest", type=int, default=0, metavar="N", help="print the N slowest tests")
    parser.add_argument(
        "--limit", type=float, default=300.0, metavar="SECONDS", help="end a test that takes longer"
    )
    parser.add_argument(
        "--exit-first", dest="exitFirst", action="store_true", help="stop at the first failure"
    )
    parser.add_argument("--root", type=Path, default=CHECKOUT, help="where the names begin")
    parser.add_argument(
        "--folder", type=Path, default=CHECKOUT / "build" / "tests", help="log, durations, temporary files"
    )
    return parser.parse_args(arguments)


def main(arguments: list[str]) -> int:
    """Run the tests; return the exit status."""
    options = parsed(arguments)
    allowDescriptors()
    signal.signal(signal.SIGINT, signal.default_int_handler)  # ignored if a script runs it in background
    signal.signal(signal.SIGTERM, signal.default_int_handler)  # a test that does not end would go on
    label = f"{options.label}: " if options.label else ""
    options.folder.mkdir(parents=True, exist_ok=True)
    root = options.root
    durations = Durations(root, options.folder / "durations.json")
    jobs = [durations.job(*module) for each in options.names for module in modulesOf(root, each)]
    isWhole = options.sample >= 100
    if not isWhole:
        jobs = sampled(jobs, options.sample, options.seed)
        print(f"{label}{options.sample:g} % of what is slow, chosen by --seed {options.seed}", flush=True)
    progress = Progress(label, sum(job.count for job in jobs), sys.stdout)
    interrupted = False
    with open(options.folder / "log", "w", encoding="utf-8") as log:
        with tempfile.TemporaryDirectory(prefix="run-", dir=options.folder) as work:
            run = Run(jobs, options, Path(work), log, progress)
            try:
                run.run()
            except KeyboardInterrupt:
                interrupted = True
                progress.print_("Interrupted.")
    if isWhole:
        durations.record(run.ended)
    with open(options.folder / "results.jsonl", "w", encoding="utf-8") as file:
        for module, each in run.ended:
            file.write(json.dumps({"module": module, **vars(each)}) + "\n")
    results = [each for _, each in run.ended]
    printSlowest(results, options.slowest)
    printTooSlow(results)
    printSkips(results)
    counts = progress.counts
    progress.print_(f"{progress.line()}; log in {log.name}")
    print(f"{label}{counts['passed']} passed, {counts['failed']} failed, {counts['skipped']} skipped")
    return 130 if interrupted else 1 if counts["failed"] or not run.ended else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
