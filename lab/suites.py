"""
Run the kernel suites, each module in a guest of its own, and bring back what became of them.

What they leave is in C{build/kernel}: C{results.json}, and for each guest the console, trial's log and
whatever its tests put into C{$LAB_OUT}. Emulation is slow, and slower beside other work: a test that fails is
tried once more, and the output says so. The last line of the output counts the tests. Where there can't be a
guest, that line says why, and the exit status is 0.
"""

from __future__ import annotations

import argparse
import fcntl
import itertools
import json
import os
import shutil
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from lab import environment, joined, kernel, needs, table
from lab.guest import Guest, OUT, OUT_OF_TIME, Wish
from lab.needs import Unavailable

CHECKOUT = Path(__file__).resolve().parent.parent
RUNNER = ("-m", "txrdma.test.kernel.results")
AGENT = ("-m", "txrdma.test.kernel.agent")
FOLDER = CHECKOUT / "build" / "kernel"
PAGE = CHECKOUT / "docs" / "interoperability.md"
SUITES = ["txrdma.test.kernel"]
KERNEL = os.environ.get("LAB_KERNEL", "backports")
PATIENCE = float(os.environ.get("LAB_PATIENCE") or 1)
"""How much longer than usual things may take, on a slow machine."""

CONSOLE_LINES = 40
LIMIT_SECONDS = 2400

Result = dict[str, Any]


class Run:
    """All suites that were asked for, one after the other."""

    def __init__(self, folder: Path, names: list[str], limit: float) -> None:
        self.folder, self.names = folder, names
        self.end = time.monotonic() + limit
        self.results: list[Result] = []
        self.kernel = ""

    def prepare(self) -> None:
        """Have what it takes; L{Unavailable} otherwise."""
        needs.ensure()
        self.python = environment.choose(CHECKOUT)
        self._occupy()
        cache = kernel.cacheFolder()
        cache.mkdir(parents=True, exist_ok=True)
        self.kernel = kernel.obtain(cache, KERNEL).version
        path = environment.pyverbsOnly(self.folder / "path")
        self.environment = {"PYTHONPATH": str(path), "PYTHONUNBUFFERED": "1"}
        try:
            self.environment["LAB_NGINX"] = str(kernel.unpackedPackage(cache, "nginx") / "usr/sbin/nginx")
        except Unavailable as error:
            print(f"kernel: no nginx for the tests that want it: {error}", flush=True)

    def _occupy(self) -> None:
        """Empty the folder, or, while another run has it, one beside it."""
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
        """Which tests there are."""
        words = [str(self.python), *RUNNER, "plan", str(self.folder), *self.names]
        settings = {**os.environ, **self.environment}
        told = subprocess.run(words, cwd=CHECKOUT, env=settings, stdin=subprocess.DEVNULL)
        if told.returncode:
            raise SystemExit(f"kernel: the suites can't be listed (status {told.returncode})")
        listed: list[dict[str, Any]] = json.loads((self.folder / "plan.json").read_text())
        return listed

    def module(self, module: dict[str, Any], box: dict[str, Any]) -> None:
        """Run the tests of a module in a guest, or beside one; those that fail, once more in another."""
        first = self._tried(module, box, module["tests"])
        failed = [name for name, result in first.items() if result["outcome"] == "failed"]
        if failed and time.monotonic() < self.end:
            for name, result in self._tried(module, box, failed, "-again").items():
                if result["outcome"] == "passed":
                    reason = first[name]["reason"]
                    print(f"kernel: {name} failed ({reason}), and passed when it was tried again", flush=True)
                    first[name] = {**result, "again": reason}
        for name, result in first.items():
            witness = module["witnesses"].get(name.rpartition(".")[0])
            self.results.append({**result, "module": module["module"], "mtu": box["mtu"], "witness": witness})

    def _tried(
        self, module: dict[str, Any], box: dict[str, Any], tests: list[str], label: str = ""
    ) -> dict[str, Result]:
        """What became of some tests of a module, in a guest of their own."""
        title = module["module"].rpartition(".")[2] + label
        if len(module["boxes"]) > 1:
            title += f"-mtu{box['mtu']}"
        folder = self.folder / title
        folder.mkdir()
        print(f"kernel: {title}", flush=True)
        begun = time.monotonic()
        timeout = max(min(PATIENCE * box["timeout"], self.end - begun), 1)
        run = self._beside if box["tap"] else self._inside
        try:
            status = run(folder, box, tests, timeout)
            end = f"stopped after {timeout:.0f} s" if status == OUT_OF_TIME else f"status {status}"
        except Unavailable as error:
            end = str(error)
        found = self._found(folder)
        lost = [name for name in tests if name not in found]
        if lost:
            console = folder / "console"
            lines = console.read_text().splitlines() if console.exists() else []
            print(f"kernel: {title} did not come to its end: {end}", *lines[-CONSOLE_LINES:], sep="\n")
        for name in lost:
            reason = f"did not come to its end: {end}"
            found[name] = {"id": name, "outcome": "failed", "reason": reason, "seconds": 0, "facts": {}}
        print(f"kernel: {title} took {time.monotonic() - begun:.0f} s", flush=True)
        return found

    def _inside(self, folder: Path, box: dict[str, Any], tests: list[str], timeout: float) -> int:
        runner = [str(self.python), *RUNNER, "run", OUT, *tests]
        with Guest(self._wish(folder, box, runner)) as guest:
            status = guest.wait(timeout)
            (folder / "console").write_text(guest.console)
        return status

    def _beside(self, folder: Path, box: dict[str, Any], tests: list[str], timeout: float) -> int:
        """The tests run on this machine, and the guest has the other end of a TAP device; or they skip."""
        runner = [str(self.python), *RUNNER, "run", str(folder), *tests]
        agent = [str(self.python), *AGENT, joined.THERE, str(joined.AGENT_PORT), f"pyverbs:{joined.DEVICE}"]
        try:
            return joined.run(self._wish(folder, box, agent), runner, timeout)
        except Unavailable as error:
            settings = {**os.environ, **self.environment, "LAB_NO_PEER": str(error)}
            return subprocess.run(runner, cwd=CHECKOUT, env=settings, stdin=subprocess.DEVNULL).returncode

    def _wish(self, folder: Path, box: dict[str, Any], command: list[str]) -> Wish:
        return Wish(
            command,
            rxe=box["rxe"],
            smc=box["smc"],
            pairs=box["pairs"],
            captures="LAB_CAPTURE" in os.environ,
            mtu=box["mtu"],
            memory=box["memory"],
            out=folder,
            environment=self.environment,
            folder=CHECKOUT,
            kernel=KERNEL,
        )

    def _found(self, folder: Path) -> dict[str, Result]:
        path = folder / "results.jsonl"
        text = path.read_text() if path.exists() else ""
        whole = text[: text.rfind("\n") + 1]  # the last line may be cut off
        return {result["id"]: result for result in map(json.loads, whole.splitlines())}

    def counts(self) -> tuple[int, int, int]:
        """Passed, failed, skipped."""
        outcomes = [result["outcome"] for result in self.results]
        return outcomes.count("passed"), outcomes.count("failed"), outcomes.count("skipped")


def main(arguments: list[str] | None = None) -> int:
    """Run them; return the exit status."""
    parser = argparse.ArgumentParser(prog="python -m lab.suites", description="Run the kernel suites.")
    parser.add_argument("--folder", type=Path, default=FOLDER, help="for what they leave")
    parser.add_argument("--docs", action="store_true", help=f"write the table into {PAGE.name}")
    parser.add_argument("--limit", type=float, default=LIMIT_SECONDS, help="seconds for everything; 2400")
    parser.add_argument("names", nargs="*", default=SUITES)
    chosen = parser.parse_args(arguments)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    run = Run(chosen.folder.resolve(), chosen.names, PATIENCE * chosen.limit)
    try:
        run.prepare()
    except Unavailable as error:
        print(f"kernel: 0 passed, 0 failed, 0 skipped ({error})")
        return 0
    for module in run.plan():
        for box in module["boxes"]:
            run.module(module, box)
    about = table.about(run.kernel)
    (run.folder / "results.json").write_text(json.dumps({**about, "tests": run.results}, indent=1) + "\n")
    passed, failed, skipped = run.counts()
    text = table.table(about, run.results)
    (run.folder / "table.md").write_text(text)
    isWhole = chosen.names == SUITES
    if isWhole and chosen.docs:
        table.replaceIn(PAGE, text)
    elif isWhole and table.outcomes(PAGE.read_text()) != table.outcomes(text):
        print(f"kernel: {PAGE.relative_to(CHECKOUT)} tells other outcomes; make test-kernel DOCS=1 writes it")
    again = sum("again" in result for result in run.results)
    if again:
        print(
            f"kernel: {again} of those that passed did so when they were tried again, in a guest of their own"
        )
    print(f"kernel: {passed} passed, {failed} failed, {skipped} skipped")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
