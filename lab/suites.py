"""
Run the kernel suites, and collect their results.

Modules that request the same box run one after the other in one guest, each in its own process: a guest takes
a minute to start, and reads the files of a first process slowly.

C{build/kernel} has the results: C{results.json}, and for each guest the console, trial's log and the contents
of C{$LAB_OUT}. Emulation is slow, especially on a busy machine: a test that fails is tried once more, which
the output mentions. The output ends with the seconds of each module, and the counts of tests. If no guest can
run, the last line is the reason, and the exit status is 0.

C{--ci} runs L{txrdma.test.system.kernel.CI_TESTS} in one guest and one process, because imports take longer
than most of these tests. A test that fails is tried once more in the same guest.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import json
import os
import shlex
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any, NamedTuple

from lab import environment, joined, kernel, needs, table
from lab.guest import Guest, GuestOptions, OUT, OUT_OF_TIME
from lab.needs import Unavailable

CHECKOUT = Path(__file__).resolve().parent.parent
RUNNER = ("-m", "txrdma.test.system.kernel.results")
AGENT = ("-m", "txrdma.test.system.kernel.agent")
FOLDER = CHECKOUT / "build" / "kernel"
PAGE = CHECKOUT / "docs" / "interoperability.md"
SUITES = ["txrdma.test.system.kernel"]
KERNEL = os.environ.get("LAB_KERNEL", "backports")
PATIENCE = float(os.environ.get("LAB_PATIENCE") or 1)
"""Factor for timeouts on a slow machine."""

CONSOLE_LINES = 40
LIMIT_SECONDS = 5400
CI_LIMIT_SECONDS = 900

Result = dict[str, Any]


class Part(NamedTuple):
    """
    The tests of one module in one box.

    @ivar module: as planned.
    """

    module: dict[str, Any]
    box: dict[str, Any]
    tests: list[str]


def guests(plan: list[dict[str, Any]]) -> list[list[Part]]:
    """Group modules by guests: they share one if they request the same box and run inside."""
    found: dict[str, list[Part]] = {}
    for module in plan:
        for box in module["boxes"]:
            kind = json.dumps({**box, "timeout": module["module"] if box["tap"] else 0})
            found.setdefault(kind, []).append(Part(module, box, module["tests"]))
    return list(found.values())


def _title(parts: list[Part]) -> str:
    """Return the name of a guest's folder: its only module, or its box."""
    [first, *others] = parts
    box = first.box
    if others:
        kind = "smc" if box["smc"] else "rxe" if box["rxe"] else "plain"
        return f"{kind}-{box['pairs']}-mtu{box['mtu']}"
    title = str(first.module["module"]).rpartition(".")[2]
    return title + (f"-mtu{box['mtu']}" if len(first.module["boxes"]) > 1 else "")


def _limit(part: Part) -> list[str]:
    """Return the command prefix that limits the time of a module."""
    return ["timeout", "-k", "10", f"{PATIENCE * part.box['timeout']:.0f}"]


class Run:
    """All requested suites, guest by guest."""

    def __init__(self, folder: Path, names: list[str], limit: float, isCI: bool = False) -> None:
        self.folder, self.names, self.isCI = folder, names, isCI
        self.end = time.monotonic() + limit
        self.results: list[Result] = []
        self.seconds: dict[str, float] = {}
        self.kernel = ""

    def prepare(self) -> None:
        """Check requirements, or raise L{Unavailable}."""
        needs.ensure()
        self.python = environment.choose(CHECKOUT)
        self._occupy()
        cache = kernel.cacheFolder()
        cache.mkdir(parents=True, exist_ok=True)
        self.kernel = kernel.obtain(cache, KERNEL).version
        path = environment.pyverbsOnly(self.folder / "path")
        self.environment = {"PYTHONPATH": str(path), "PYTHONUNBUFFERED": "1"}
        if self.isCI:
            return  # none of its tests needs nginx
        try:
            self.environment["LAB_NGINX"] = str(kernel.unpackedPackage(cache, "nginx") / "usr/sbin/nginx")
        except Unavailable as error:
            print(f"kernel: no nginx for the tests that want it: {error}", flush=True)

    def _occupy(self) -> None:
        """Empty the folder, or use another one if a run is using it."""
        for number in itertools.count():
            folder = self.folder.with_name(f"{self.folder.name}-{number}") if number else self.folder
            folder.mkdir(parents=True, exist_ok=True)
            self._lock = os.open(folder, os.O_RDONLY)
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                os.close(self._lock)
            else:
                break
        self.folder = folder
        for entry in folder.iterdir():
            if entry.is_dir():
                shutil.rmtree(entry)
            else:
                entry.unlink()

    def plan(self) -> list[dict[str, Any]]:
        """Return the tests to run."""
        step = ["plan-ci", str(self.folder)] if self.isCI else ["plan", str(self.folder), *self.names]
        words = [str(self.python), *RUNNER, *step]
        settings = {**os.environ, **self.environment}
        listing = subprocess.run(words, cwd=CHECKOUT, env=settings, stdin=subprocess.DEVNULL)
        if listing.returncode:
            raise SystemExit(f"kernel: the suites can't be listed (status {listing.returncode})")
        listed: list[dict[str, Any]] = json.loads((self.folder / "plan.json").read_text())
        return listed

    def guest(self, parts: list[Part]) -> None:
        """Run the tests of modules in a guest, or beside one; repeat failed ones (except for CI)."""
        first = self._tried(parts)
        failed = {name for name, result in first.items() if result["outcome"] == "failed"}
        again = [
            Part(part.module, part.box, [name for name in part.tests if name in failed])
            for part in parts
            if failed.intersection(part.tests)
        ]
        if again and not self.isCI and time.monotonic() < self.end:
            for name, result in self._tried(again, "-again").items():
                if result["outcome"] == "passed":
                    first[name] = {**result, "again": first[name]["reason"]}
        for name, result in first.items():
            if "again" in result:
                print(
                    f"kernel: {name} failed ({result['again']}), and passed when it was tried again",
                    flush=True,
                )
        for part in parts:
            title, witnesses = part.module["module"], part.module["witnesses"]
            about = {"module": title, "mtu": part.box["mtu"]}
            for name in part.tests:
                witness = witnesses.get(name.rpartition(".")[0])
                self.results.append({**first[name], **about, "witness": witness})

    def _tried(self, parts: list[Part], label: str = "") -> dict[str, Result]:
        """Run the tests of some modules in a new guest; return their results."""
        title = _title(parts) + label
        folder = self.folder / title
        folder.mkdir()
        print(f"kernel: {title}", flush=True)
        begun = time.monotonic()
        timeout = max(min(PATIENCE * sum(part.box["timeout"] for part in parts), self.end - begun), 1)
        run = self._beside if parts[0].box["tap"] else self._inside
        try:
            status = run(folder, parts, timeout)
            end = f"stopped after {timeout:.0f} s" if status == OUT_OF_TIME else f"status {status}"
        except Unavailable as error:
            end = str(error)
        found = self._found(folder)
        lost = [name for part in parts for name in part.tests if name not in found]
        if lost:
            console = folder / "console"
            lines = console.read_text().splitlines() if console.exists() else []
            print(f"kernel: {title} did not come to its end: {end}", *lines[-CONSOLE_LINES:], sep="\n")
        for name in lost:
            reason = f"did not come to its end: {end}"
            found[name] = {"id": name, "outcome": "failed", "reason": reason, "seconds": 0, "facts": {}}
        seconds = time.monotonic() - begun
        print(f"kernel: {title} took {seconds:.0f} s", flush=True)
        self._count("all", seconds)
        for part in parts:
            self._count(
                part.module["module"].rpartition(".")[2], sum(found[name]["seconds"] for name in part.tests)
            )
        return found

    def _count(self, what: str, seconds: float) -> None:
        self.seconds[what] = self.seconds.get(what, 0.0) + seconds

    def times(self) -> str:
        """Return the seconds of boots, of each module's tests, of the rest (mostly imports), and in total."""
        counted = dict(self.seconds)
        total = counted.pop("all", 0.0)
        counted["imports and the rest"] = total - sum(counted.values())
        return ", ".join(f"{what} {seconds:.0f}" for what, seconds in {**counted, "all": total}.items())

    def _inside(self, folder: Path, parts: list[Part], timeout: float) -> int:
        # the results have each module's outcome when they share a process; the last status is the guest's
        lines = []
        for part in parts:
            runner = [str(self.python), *RUNNER, "run", OUT, *part.tests]
            lines.append(shlex.join(runner if len(parts) == 1 else [*_limit(part), *runner]))
        command = self._commandForCI(parts) if self.isCI else "; ".join(lines)
        with Guest(self._wanted(folder, parts[0].box, ["sh", "-c", command])) as guest:
            status = guest.wait(timeout)
            (folder / "console").write_text(guest.console)
            self._count("boot", guest.bootSeconds or 0.0)
        return status

    def _commandForCI(self, parts: list[Part]) -> str:
        """Return the command that runs all modules in one process, and failed tests again in another one."""
        names = [name for part in parts for name in part.tests]
        words = [*_limit(parts[0]), str(self.python), *RUNNER]
        return " || ".join(shlex.join([*words, step, OUT, *names]) for step in ("run", "retry"))

    def _beside(self, folder: Path, parts: list[Part], timeout: float) -> int:
        """Run the tests on this machine, with a guest at the other end of a TAP device, or skip them."""
        [part] = parts
        runner = [str(self.python), *RUNNER, "run", str(folder), *part.tests]
        agent = [str(self.python), *AGENT, joined.THERE, str(joined.AGENT_PORT), f"pyverbs:{joined.DEVICE}"]
        try:
            return joined.run(self._wanted(folder, part.box, agent), runner, timeout)
        except Unavailable as error:
            settings = {**os.environ, **self.environment, "LAB_NO_PEER": str(error)}
            return subprocess.run(runner, cwd=CHECKOUT, env=settings, stdin=subprocess.DEVNULL).returncode

    def _wanted(self, folder: Path, box: dict[str, Any], command: list[str]) -> GuestOptions:
        return GuestOptions(
            command,
            rxe=box["rxe"],
            smc=box["smc"],
            pairs=box["pairs"],
            captures="LAB_CAPTURE" in os.environ,
            mtu=box["mtu"],
            memory=box["memory"],
            cpus=1 if self.isCI else 2,  # emulated processors wait for each other, at the cost of real ones
            out=folder,
            environment=self.environment,
            folder=CHECKOUT,
            kernel=KERNEL,
        )

    def _found(self, folder: Path) -> dict[str, Result]:
        path = folder / "results.jsonl"
        text = path.read_text() if path.exists() else ""
        # the last line of a killed process may be incomplete
        whole = [line for line in text.splitlines() if line.endswith("}")]
        found: dict[str, Result] = {}
        for result in map(json.loads, whole):
            earlier = found.get(result["id"])
            if earlier is not None and result["outcome"] == "passed":
                result["again"] = earlier["reason"]
            found[result["id"]] = result
        return found

    def counts(self) -> tuple[int, int, int]:
        """Return the numbers of passed, failed and skipped tests."""
        outcomes = [result["outcome"] for result in self.results]
        return outcomes.count("passed"), outcomes.count("failed"), outcomes.count("skipped")


def _write(page: Path, about: dict[str, str], results: list[Result], isWhole: bool) -> None:
    """Write the table into a page; suites that were not run keep their lines, unless all were requested."""
    retained = () if isWhole else table.ofOthers(page.read_text(), results)
    if results:
        table.replaceIn(page, table.table(about, results, retained))


def main(arguments: list[str] | None = None) -> int:
    """Run the suites; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.suites", description="Run the kernel suites.")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for what they leave")
    parser.add_argument(
        "--docs",
        action="store_true",
        help=f"write the suites' lines into {PAGE.name}",
    )
    parser.add_argument(
        "--ci", action="store_true", help="the few tests that every commit runs, in one guest"
    )
    parser.add_argument("--limit", type=float, help="seconds for everything; 5400, and 900 with --ci")
    parser.add_argument("names", nargs="*", default=SUITES)
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    limit = chosen.limit or (CI_LIMIT_SECONDS if chosen.ci else LIMIT_SECONDS)
    run = Run(chosen.folder.resolve(), chosen.names, PATIENCE * limit, chosen.ci)
    try:
        run.prepare()
    except Unavailable as error:
        print(f"kernel: 0 passed, 0 failed, 0 skipped ({error})")
        return 0
    for parts in guests(run.plan()):
        run.guest(parts)
    about = table.about(run.kernel)
    (run.folder / "results.json").write_text(json.dumps({**about, "tests": run.results}, indent=1) + "\n")
    passed, failed, skipped = run.counts()
    isWhole = chosen.names == SUITES and not chosen.ci
    text = table.table(about, run.results)
    (run.folder / "table.md").write_text(text)
    if chosen.docs:
        _write(PAGE, about, run.results, isWhole)
    elif isWhole and table.outcomes(PAGE.read_text()) != table.outcomes(text):
        print(f"kernel: {PAGE.relative_to(CHECKOUT)} has other outcomes; make test-kernel DOCS=1 writes it")
    again = sum("again" in result for result in run.results)
    if again:
        print(f"kernel: {again} of those that passed did so when they were tried again")
    print(f"kernel: seconds: {run.times()}")
    print(f"kernel: {passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
