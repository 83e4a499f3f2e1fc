"""
The lab without its guest: results and suites.

L{txrdma.test.system.kernel.test_box} tests the guest itself.
"""

from __future__ import annotations

import io
import json
import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import redirect_stdout
from dataclasses import asdict
from pathlib import Path
from typing import Any, ClassVar

from twisted.trial.unittest import SynchronousTestCase

from lab import environment, kernel, needs, suites
from lab.guest import GuestOptions, OUT_OF_TIME
from txrdma.test.support.processes import CHECKOUT
from txrdma.test.system.kernel import Box, CI_TESTS
from txrdma.test.system.kernel.results import planForCI

GIVEN = """
from twisted.trial.unittest import SynchronousTestCase, SkipTest
from txrdma.test.system.kernel import Box, record, Witness

BOXES = (Box(mtu=4200), Box(rxe=False, mtu=1500))


class ManyTests(SynchronousTestCase):
    witness = Witness("software device", "rxe", "SEND")

    def test_passes(self):
        record("bytes", 5)

    def test_fails(self):
        self.addCleanup(self.fail, "later")
        self.fail("for a reason")

    def test_breaks(self):
        1 / 0

    def test_skips(self):
        raise SkipTest("there is nothing")

    def test_cleansUp(self):
        record("bytes", 7)
        self.addCleanup(self.fail, "only later")

    def test_todo(self):
        self.fail("not yet")
    test_todo.todo = "tomorrow"


class OtherTests(SynchronousTestCase):
    def test_passes(self):
        pass
"""


class ResultsTests(SynchronousTestCase):
    """Results of tests, which are written immediately."""

    slowBecause = "runs the steps of a guest as processes"

    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).resolve()
        package = self.folder / "given"
        package.mkdir(parents=True)
        (package / "__init__.py").touch()
        (package / "test_many.py").write_text(GIVEN)

    def results(self, step: str, *names: str) -> int:
        """Run one of the two steps; return its exit status."""
        command = [sys.executable, "-m", "txrdma.test.system.kernel.results", step, str(self.folder), *names]
        settings = {**os.environ, "PYTHONPATH": os.pathsep.join((str(self.folder), str(CHECKOUT)))}
        return subprocess.run(command, env=settings, cwd=self.folder, capture_output=True).returncode

    def test_run(self) -> None:
        """Each test has an outcome, a reason and details."""
        self.assertEqual(self.results("run", "given.test_many"), 1)
        lines = (self.folder / "results.jsonl").read_text().splitlines()
        found = {each["id"].rpartition("test_many.")[2]: each for each in map(json.loads, lines)}
        self.assertEqual(
            {name: (each["outcome"], each["reason"], each["facts"]) for name, each in found.items()},
            {
                "ManyTests.test_passes": ("passed", "", {"bytes": 5}),
                "ManyTests.test_fails": ("failed", "for a reason", {}),
                "ManyTests.test_breaks": ("failed", "division by zero", {}),
                "ManyTests.test_skips": ("skipped", "there is nothing", {}),
                "ManyTests.test_cleansUp": ("failed", "only later", {"bytes": 7}),
                "ManyTests.test_todo": ("skipped", "to do: tomorrow", {}),
                "OtherTests.test_passes": ("passed", "", {}),
            },
        )

    def test_retry(self) -> None:
        """Only tests that failed or did not end are run again."""
        names = [f"given.test_many.ManyTests.test_{name}" for name in ("passes", "skips", "fails")]
        self.assertEqual(self.results("run", *names), 1)
        self.assertEqual(self.results("retry", *names, "given.test_many.OtherTests.test_passes"), 1)
        lines = (self.folder / "results.jsonl").read_text().split("\n\n")[1].splitlines()
        found = {each["id"].rpartition("test_many.")[2]: each["outcome"] for each in map(json.loads, lines)}
        self.assertEqual(found, {"ManyTests.test_fails": "failed", "OtherTests.test_passes": "passed"})

    def test_planForCI(self) -> None:
        """All tests that CI selects exist, and share one guest."""
        planned = planForCI()
        tests = [name for module in planned for name in module["tests"]]
        self.assertEqual(sorted(tests), sorted(f"{Box.__module__}.{name}" for name in CI_TESTS))
        for module in planned:  # trial's placeholder for a missing test has no class in the module
            for name in module["tests"]:
                self.assertTrue(name.startswith(f"{module['module']}."), name)
        self.assertEqual(len(suites.guests(planned)), 1)


class _FakeGuest:
    """A guest that ends after the first of its tests; C{guests} has the options of all guests of a test."""

    status = 0
    console = "it said this"
    bootSeconds = 20.0
    guests: ClassVar[list[GuestOptions]] = []

    def __init__(self, wanted: GuestOptions) -> None:
        self.guests.append(wanted)
        assert wanted.out is not None
        with (wanted.out / "results.jsonl").open("a") as results:
            for name, outcome, seconds in self.ran(wanted.command[-1]):
                line = {"id": name, "outcome": outcome, "reason": "", "seconds": seconds}
                results.write("\n" + json.dumps({**line, "facts": {"loss %": 5}}) + "\n")
            results.write('{"id": "cut o')

    def ran(self, command: str) -> Iterator[tuple[str, str, float]]:
        """Return the names, outcomes and seconds of tests that the guest reports."""
        for process in command.split("; "):
            words = shlex.split(process)
            yield words[words.index("/run/lab/out") + 1], "passed", 1.5

    def wait(self, timeout: float) -> int:
        return self.status

    def __enter__(self) -> _FakeGuest:
        return self

    def __exit__(self, *_: object) -> None:
        pass


def unavailable(reason: str) -> Callable[..., Any]:
    """Return a function that is unavailable for a reason."""

    def raises(*_: object) -> None:
        raise needs.Unavailable(reason)

    return raises


class SuitesTests(SynchronousTestCase):
    """A run counts all requested tests, even if the guest ends."""

    def setUp(self) -> None:
        self.folder = Path(self.mktemp()).resolve()
        self.patch(needs, "ensure", lambda: None)
        self.patch(environment, "choose", lambda _: Path(sys.executable))
        self.patch(suites, "Guest", _FakeGuest)
        self.patch(_FakeGuest, "guests", [])
        self.patch(kernel, "obtain", lambda *_: kernel.Kernel("6.66", Path()))
        self.patch(kernel, "unpackedPackage", lambda _, package: Path("/unpacked", package))
        witness = {"ours": "software device", "theirs": "rxe", "what": "SEND"}
        box = asdict(Box(mtu=4200, memory=512, timeout=5))
        self.plan: dict[str, Any] = {
            "module": "m.test_some",
            "boxes": [box],
            "tests": [f"m.test_some.Some.test_{letter}" for letter in "abc"],
            "witnesses": {"m.test_some.Some": witness},
        }
        self.patch(suites.Run, "plan", lambda _: [self.plan])

    def run_(self) -> tuple[int, list[str]]:
        """Return the exit status and the output lines."""
        with redirect_stdout(io.StringIO()) as printed:
            status = suites.main(["--folder", str(self.folder), "something"])
        return status, printed.getvalue().splitlines()

    def test_guestDies(self) -> None:
        """Tests in which two guests end have failed, and the console is shown."""
        status, lines = self.run_()
        self.assertEqual((status, lines[-1]), (1, "kernel: 2 passed, 1 failed, 0 skipped"))
        self.assertIn("it said this", lines)
        retained = json.loads((self.folder / "results.json").read_text())
        self.assertEqual(retained["kernel"], "6.66")
        self.assertEqual([each["outcome"] for each in retained["tests"]], ["passed", "passed", "failed"])
        for folder in ("test_some", "test_some-again"):
            self.assertEqual((self.folder / folder / "console").read_text(), "it said this")

    def test_secondTry(self) -> None:
        """A test that passes at the second attempt has passed, and the output reports that."""
        del self.plan["tests"][2]
        status, lines = self.run_()
        self.assertEqual((status, lines[-1]), (0, "kernel: 2 passed, 0 failed, 0 skipped"))
        self.assertIn("kernel: 1 of those that passed did so when they were tried again", lines[-3])
        self.assertIn("m.test_some.Some.test_b failed (did not come to its end", "\n".join(lines))
        retained = json.loads((self.folder / "results.json").read_text())
        self.assertNotIn("again", retained["tests"][0])
        self.assertIn("did not come to its end", retained["tests"][1]["again"])

    def test_guestHangs(self) -> None:
        """A guest that does not end is stopped, and the reason is reported."""
        self.patch(_FakeGuest, "status", OUT_OF_TIME)
        self.run_()
        retained = json.loads((self.folder / "results.json").read_text())
        self.assertIn("stopped after 5 s", retained["tests"][2]["reason"])

    def test_allPass(self) -> None:
        """A run without failures ends with status 0 and writes its table."""
        self.plan["tests"] = ["m.test_some.Some.test_a"]
        self.assertEqual(self.run_()[0], 0)
        text = (self.folder / "table.md").read_text()
        line = "| software device | rxe | SEND | `test_some` | 1 passed | loss % 5 |"
        self.assertIn(line, text.splitlines())

    def test_shared(self) -> None:
        """Modules with equal configurations share a guest, each in a process with its own time limit."""
        other, alone = (
            json.loads(json.dumps(self.plan).replace("test_some", name)) for name in ("test_b", "test_c")
        )
        alone["boxes"] = [{**alone["boxes"][0], "mtu": 1500}, {**alone["boxes"][0], "tap": True}]
        other["boxes"][0]["timeout"] = 7
        parts = suites.guests([self.plan, other, alone])
        names = [[part.module["module"] for part in each] for each in parts]
        self.assertEqual(names, [["m.test_some", "m.test_b"], ["m.test_c"], ["m.test_c"]])
        del alone["boxes"][1]
        self.patch(suites.Run, "plan", lambda _: [self.plan, other, alone])
        status, lines = self.run_()
        self.assertEqual((status, lines[-1]), (1, "kernel: 6 passed, 3 failed, 0 skipped"))
        commands = [guest.command[-1] for guest in _FakeGuest.guests]
        self.assertEqual([command.count("timeout -k 10 ") for command in commands], [2, 2, 0, 0])
        self.assertIn("timeout -k 10 7 ", commands[0])
        self.assertEqual(lines[0], "kernel: rxe-1-mtu4200")
        retained = json.loads((self.folder / "results.json").read_text())
        modules = [each["module"] for each in retained["tests"]]
        self.assertEqual(modules, ["m.test_some"] * 3 + ["m.test_b"] * 3 + ["m.test_c"] * 3)

    def test_guestDoesNotStart(self) -> None:
        """A guest that can't be started although all requirements are met is a failure, not a skip."""
        self.patch(suites, "Guest", unavailable("there is no qemu-system-x86_64"))
        status, lines = self.run_()
        self.assertEqual((status, lines[-1]), (1, "kernel: 0 passed, 3 failed, 0 skipped"))
        retained = json.loads((self.folder / "results.json").read_text())
        self.assertIn("there is no qemu", retained["tests"][0]["reason"])

    def test_forCI(self) -> None:
        """For CI all modules run in one process; failed tests are repeated in the same guest."""
        planned: list[bool] = []
        outcomes = (("a", "passed"), ("b", "failed"), ("c", "failed"), ("c", "passed"))

        def plan(run: suites.Run) -> list[dict[str, Any]]:
            planned.append(run.isCI)
            return [self.plan, json.loads(json.dumps(self.plan).replace("test_some", "test_b"))]

        def ran(guest: _FakeGuest, command: str) -> Iterator[tuple[str, str, float]]:
            for seconds, (letter, outcome) in enumerate(outcomes, 2):
                for module in ("test_some", "test_b"):
                    yield f"m.{module}.Some.test_{letter}", outcome, seconds

        self.patch(suites.Run, "plan", plan)
        self.patch(_FakeGuest, "ran", ran)
        with redirect_stdout(io.StringIO()) as printed:
            status = suites.main(["--ci", "--folder", str(self.folder)])
        lines = printed.getvalue().splitlines()
        self.assertEqual((status, lines[-1]), (1, "kernel: 4 passed, 2 failed, 0 skipped"))
        self.assertEqual(planned, [True])
        [wanted] = _FakeGuest.guests
        run, retry = (shlex.split(each) for each in wanted.command[-1].split(" || "))
        names = [f"m.{module}.Some.test_{letter}" for module in ("test_some", "test_b") for letter in "abc"]
        self.assertEqual(run[-8:], ["run", "/run/lab/out", *names])
        self.assertEqual(retry[-8:], ["retry", "/run/lab/out", *names])
        self.assertIn("kernel: m.test_b.Some.test_c failed (), and passed when it was tried again", lines)
        self.assertIn("kernel: 2 of those that passed did so when they were tried again", lines)
        self.assertTrue(
            lines[-2].startswith("kernel: seconds: boot 20, test_some 10, test_b 10, "), lines[-2]
        )

    def test_unavailable(self) -> None:
        """If no guest is possible, the last line has the reason, and that is not a failure."""
        self.patch(needs, "ensure", unavailable("missing: apt-get install qemu-system-x86"))
        expected = "kernel: 0 passed, 0 failed, 0 skipped (missing: apt-get install qemu-system-x86)"
        self.assertEqual(self.run_(), (0, [expected]))
