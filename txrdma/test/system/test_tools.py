"""The small tools of the checkout: the runner of tests, the Makefile, mutants, CI, and the examples."""

from __future__ import annotations

import json
import os
import re
import resource
import shutil
import signal
import subprocess
import sys
from contextlib import redirect_stdout
from importlib.util import find_spec
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, Final

from twisted.internet.task import Clock
from twisted.python.reflect import namedAny
from twisted.trial.unittest import SkipTest, SynchronousTestCase

import txrdma
from txrdma.commands.common.registry import COMMANDS
from txrdma.test.support import CHECKOUT
from txrdma.test.support.checkouttools import tool

HEAD: Final = "import os, resource, signal, subprocess, sys, time, unittest\nclass T(unittest.TestCase):\n  "
"""The beginning of a module with one test case."""


class RunTests(SynchronousTestCase):
    """C{tools/runtests.py}, which C{make test} calls."""

    slowBecause = "each test starts a run of tests with its workers"

    def run_(self, source: str, *options: str, before: str = ":") -> tuple[int, str]:
        """
        Return the exit status and the output for a module of tests.

        @param before: shell commands before the run.
        """
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        (folder / "test_given.py").write_text(source)
        tool = str(CHECKOUT / "tools" / "runtests.py")
        words = [sys.executable, tool, "--root", str(folder), "--folder", str(folder / "left"), *options]
        done = subprocess.run(
            ["sh", "-c", f'{before} && exec "$@"', "sh", *words, "test_given"],
            capture_output=True,
            text=True,
            timeout=60,
        )
        return done.returncode, done.stdout

    def last(self, source: str, *options: str, before: str = ":") -> tuple[int, str]:
        """Return the exit status and the last line for a module of tests."""
        status, output = self.run_(source, *options, before=before)
        return status, output.splitlines()[-1]

    def test_status(self) -> None:
        """A failed test, a worker that ends and a module that cannot be loaded fail the run."""
        for test, status, counts in (
            ("def test_a(self): pass", 0, "1 passed, 0 failed, 0 skipped"),
            ("def test_a(self): 1 / 0", 1, "0 passed, 1 failed, 0 skipped"),
            ("@unittest.skip('for a reason')\n  def test_a(self): 1 / 0", 0, "0 passed, 0 failed, 1 skipped"),
            ("def test_a(self): os._exit(0)", 1, "0 passed, 1 failed, 0 skipped"),
        ):
            self.assertEqual(self.last(HEAD + test), (status, counts), test)
        self.assertEqual(self.last("import nonsense")[0], 1)

    def test_tearDownModule(self) -> None:
        """What the tests of a module share ends after the last of them, not with the process."""
        ended = Path(self.mktemp()).absolute()
        end = f"Path({str(ended)!r})"
        source = (
            f"import atexit\nfrom pathlib import Path\ndef tearDownModule(): {end}.touch()\n"
            f"atexit.register(lambda: {end}.exists() and {end}.with_suffix('.early').touch())\n"
            f"{HEAD}def test_a(self): self.assertFalse({end}.exists())\n  test_b = test_a"
        )
        self.assertEqual(self.last(source), (0, "2 passed, 0 failed, 0 skipped"))
        self.assertTrue(ended.with_suffix(".early").exists())

    def test_brokenWorker(self) -> None:
        """If workers cannot start, the run fails and ends."""
        tools = Path(self.mktemp()).absolute()
        tools.mkdir()
        shutil.copy(CHECKOUT / "tools" / "runtests.py", tools)
        (tools / "testworker.py").write_text("raise SystemExit(3)")
        (tools / "test_given.py").write_text("")
        words = [sys.executable, str(tools / "runtests.py"), "--root", str(tools), "test_given"]
        done = subprocess.run(words, capture_output=True, text=True, timeout=60)
        self.assertEqual((done.returncode, done.stderr), (1, ""))
        self.assertEqual(done.stdout.splitlines()[-1], "0 passed, 1 failed, 0 skipped")

    def test_hanging(self) -> None:
        """A test that takes longer than the limit fails, and the log has its stack."""
        status, output = self.run_(HEAD + "def test_a(self): time.sleep(50)", "--limit", "1")
        self.assertEqual(status, 1)
        self.assertIn("No result after 1 s", output)

    def test_stall(self) -> None:
        """A test fails if one event blocks the reactor for long, each time that the test runs."""
        head = (
            "import time\nfrom pathlib import Path\nfrom twisted.internet import reactor\n"
            "from twisted.internet.task import deferLater\nfrom twisted.trial.unittest import TestCase\n"
            "class T(TestCase):\n  def test_a(self):\n    "
        )
        always = "return deferLater(reactor, 0, time.sleep, 1.3)"
        status, output = self.run_(head + always)
        self.assertEqual(status, 1)
        self.assertIn("The reactor did nothing else for 1.3", output)
        self.assertIn("task.py", output)  # the stack
        once = "seen = Path('seen').exists()\n    Path('seen').touch()\n    if not seen: " + always
        self.assertEqual(self.last(head + once)[0], 0)

    def test_longIteration(self) -> None:
        """A test fails if the events of one iteration take long together."""
        source = (
            "import os, time\nfrom twisted.internet import abstract, reactor, task\n"
            "from twisted.trial.unittest import TestCase\nclass Slow(abstract.FileDescriptor):\n"
            "  def __init__(self):\n    super().__init__(reactor)\n    self.ends = os.pipe()\n"
            "    os.write(self.ends[1], b'-')\n    self.startReading()\n"
            "  def fileno(self): return self.ends[0]\n"
            "  def doRead(self):\n    time.sleep(0.7)\n    self.stopReading()\n"
            "    [*map(os.close, self.ends)]\n"
            "class T(TestCase):\n  def test_a(self):\n    [Slow() for _ in range({})]\n"
            "    return task.deferLater(reactor, 1.0)\n"
        )
        status, output = self.run_(source.format(2))
        self.assertEqual(status, 1)
        self.assertRegex(output, r"The reactor did nothing else for (1\.[4-9]|[2-9])")
        self.assertEqual(self.last(source.format(1))[0], 0)

    def test_stallOfOtherReactor(self) -> None:
        """A stall of a reactor that a test has created is found, also within an event of another one."""
        source = (
            "import time\nfrom twisted.trial.unittest import TestCase\n"
            "def pause(): time.sleep(1.3)\n"
            "class T(TestCase):\n  def test_a(self):\n"
            "    from twisted.internet import reactor, task\n"
            "    own = type(reactor)()\n    own.callLater(0, pause)\n"
        )
        for run in ("    own.iterate(0.01)", "    return task.deferLater(reactor, 0, own.iterate, 0.01)"):
            status, output = self.run_(source + run)
            self.assertEqual(status, 1)
            self.assertIn("The reactor did nothing else for 1.3", output)
            self.assertRegex(output, r"Meanwhile it ran: .* pause\.")

    def test_durations(self) -> None:
        """A run records how long tests took, and can print the slowest with the reasons of their classes."""
        source = HEAD + "slowBecause = 'It sleeps.'\n  def test_a(self): time.sleep(0.1)"
        status, output = self.run_(source, "--slowest", "3")
        self.assertEqual(status, 0)
        found = re.search(r"(\d+\.\d\d) s  test_given\.T\.test_a  \(It sleeps\.\)", output)
        assert found is not None, output
        self.assertGreaterEqual(float(found[1]), 0.1)

    def test_sample(self) -> None:
        """A sample has a random part of the tests that state why they are slow, which its seed repeats."""
        source = (
            f"{HEAD}def test_a(self): pass\nclass Slow(T): slowBecause = 'It sleeps.'\n"
            "def slow(self): pass\nslow.slowBecause = 'It sleeps.'\n"
            "for n in range(50): setattr(T, f'test_{n}', slow)"
        )
        self.assertEqual(self.last(source, "--sample", "0"), (0, "1 passed, 0 failed, 0 skipped"))
        _, output = self.run_(source, "--sample", "30")
        (seed,) = re.findall(r"^30 % of .* by (--seed) (\d+)$", output, re.MULTILINE)
        last = output.splitlines()[-1]
        self.assertTrue(1 < int(last.split()[0]) < 102, last)
        self.assertEqual(self.last(source, "--sample", "30", *seed), (0, last))

    def test_slow(self) -> None:
        """Slow tests that give no reason are printed, and those that only the soak may have."""
        runtests = tool(self, "runtests")
        ended = [
            runtests.Ended(f"{name}.test_a", "passed", "", seconds, waited, 0.0, [], reason)
            for name, seconds, waited, reason in (
                ("a.Explained", 3.0, 0.0, "It sleeps."),
                ("a.Unexplained", 3.0, 0.5, None),
                ("a.Waited", 3.0, 1.5, None),
                ("a.soak.Long", 11.0, 0.5, "It sleeps."),
                ("a.Long", 11.0, 0.5, "It sleeps."),
            )
        ]
        with redirect_stdout(StringIO()) as out:
            runtests.printTooSlow(ended)
        self.assertEqual(
            out.getvalue(),
            "Slower than 2 s, without slowBecause: a.Unexplained.test_a\nSlower than 10 s: a.Long.test_a\n",
        )

    def test_descriptors(self) -> None:
        """Tests may open more descriptors than an ordinary user's initial limit, where that is allowed."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if 0 <= most < 4096:
            raise SkipTest(f"no more than {most} descriptors are allowed here")
        limit = "resource.getrlimit(resource.RLIMIT_NOFILE)[0]"
        source = f"{HEAD}def test_a(self): self.assertGreaterEqual({limit}, 4096)"
        self.assertEqual(self.last(source, before="ulimit -Sn 256")[0], 0)

    def test_interrupts(self) -> None:
        """Programs started by tests can be interrupted, even if all runs in the background of a script."""
        source = (
            f"{HEAD}def test_a(self):\n"
            "    words = [sys.executable, '-c', 'import time; print(flush=True); time.sleep(100)']\n"
            "    process = subprocess.Popen(words, stdout=subprocess.PIPE)\n"
            "    process.stdout.readline()\n"
            "    process.send_signal(signal.SIGINT)\n"
            "    self.assertEqual(process.wait(50), -signal.SIGINT)"
        )
        self.assertEqual(self.last(source, before="trap '' INT"), (0, "1 passed, 0 failed, 0 skipped"))

    def test_terminates(self) -> None:
        """A run that is terminated ends its workers, even while a test computes and ignores SIGTERM."""
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        held = folder / "held"
        os.mkfifo(held)
        (folder / "test_given.py").write_text(
            f"{HEAD}def test_a(self):\n"
            "    signal.signal(signal.SIGTERM, signal.SIG_IGN)\n"
            f"    signal.alarm(30)\n    held = open({str(held)!r}, 'w')\n"
            "    while True: pass"
        )
        tool = str(CHECKOUT / "tools" / "runtests.py")
        words = [sys.executable, tool, "--root", str(folder), "--folder", str(folder / "left"), "test_given"]
        with subprocess.Popen(words, stdout=subprocess.PIPE, text=True) as process:
            with held.open() as other:  # waits for the worker
                process.terminate()
                self.assertEqual(other.read(), "")  # ends with the worker
            output, _ = process.communicate(timeout=60)
        self.assertEqual((process.returncode, output.splitlines()[0]), (130, "Interrupted."))


class GroupTests(SynchronousTestCase):
    """Tests that use what their group excludes fail."""

    def setUp(self) -> None:
        self.runtests = tool(self, "runtests")

    def test_misplaced(self) -> None:
        """A unit test must not use processes and sockets, an integration test must not use processes."""
        for test, uses, forbidden in (
            ("txrdma.test.unit.test_a.T.test", [], ""),
            ("txrdma.test.unit.test_a.T.test", ["network"], "network"),
            ("txrdma.test.integration.test_a.T.test", ["network", "reactor"], ""),
            ("txrdma.test.integration.test_a.T.test", ["network", "process"], "process"),
            ("txrdma.test.system.test_a.T.test", ["network", "process"], ""),
        ):
            ended = self.runtests.Ended(test, "passed", "", 0.0, 0.0, 0.0, uses, None)
            self.assertEqual(self.runtests.misplaced(ended).rpartition(": ")[2].rstrip("."), forbidden)

    def test_goneModules(self) -> None:
        """Durations of modules that no longer exist are dropped, and the checkout has none of those."""
        own = Path(self.mktemp())
        here, gone = __name__, "txrdma.test.system.test_gone"
        own.write_text(json.dumps({here: (1, 2.0), gone: (1, 2.0)}))
        self.runtests.Durations(CHECKOUT, own).record([])
        kept = json.loads(own.read_text())
        self.assertIn(here, kept)
        self.assertNotIn(gone, kept)
        recorded = json.loads((CHECKOUT / "tools" / "durations.json").read_text())
        self.assertEqual(set(recorded) - set(kept), set())

    def test_sampledSystemTests(self) -> None:
        """A sample has random modules with the requested share of the time, the same for the same seed."""
        names = [f"txrdma.test.system.test_{number}" for number in range(100)]
        jobs = [self.runtests.Job(name, name, 1, 1.0) for name in names]
        part = self.runtests.sampled(jobs, 10, 1)
        self.assertEqual(len(part), 10)
        self.assertEqual({job.percent for job in part}, {100})
        self.assertEqual(part, self.runtests.sampled(jobs, 10, 1))
        self.assertNotEqual(part, self.runtests.sampled(jobs, 10, 2))
        self.assertEqual(self.runtests.sampled(jobs, 0, 1), [])

    def test_sampledLongModules(self) -> None:
        """A module that takes longer than the whole sample is chosen, too, in the same share of the runs."""
        names = [f"txrdma.test.system.test_{number}" for number in range(10)]
        jobs = [self.runtests.Job(name, name, 1, 0.0 if name == names[1] else 10.0) for name in names]
        parts = [[job.name for job in self.runtests.sampled(jobs, 5, seed)] for seed in range(400)]
        self.assertEqual({name for part in parts for name in part}, set(names))
        self.assertLess(sum(names[0] in part for part in parts), 60)
        self.assertEqual(self.runtests.sampled(jobs, 0, 1), [])

    def test_sampledUnitTests(self) -> None:
        """A sample has all modules of other tests; workers choose the requested share of their slow tests."""
        job = self.runtests.Job("txrdma.test.unit.test_a", "txrdma.test.unit.test_a", 1, 1.0)
        self.assertEqual([each.percent for each in self.runtests.sampled([job], 10, 1)], [10])


class SummaryTests(SynchronousTestCase):
    """The last lines of C{.ci/run}."""

    def setUp(self) -> None:
        self.folder = Path(self.mktemp())
        self.folder.mkdir()

    def ended(self, name: str, log: str, seconds: int = 1, status: int = 0) -> None:
        """Write the results of a step."""
        (self.folder / f"{name}.log").write_text(log)
        (self.folder / f"{name}.step").write_text(f"{seconds} {status}\n")

    def summary(self) -> tuple[int, list[str]]:
        """Return the exit status and the printed lines."""
        command = [sys.executable, str(CHECKOUT / "tools" / "ci-summary"), str(self.folder)]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout.splitlines()

    def test_sum(self) -> None:
        """The last counts of all steps are added, and a table has the seconds of each."""
        self.ended("test", "1 passed, 1 failed, 0 skipped\n20 passed, 0 failed, 3 skipped\n", seconds=77)
        self.ended("kernel", "kernel: 7 passed, 0 failed, 1 skipped (no emulator)\n")
        status, lines = self.summary()
        self.assertEqual((status, lines[-1]), (0, "27 passed, 0 failed, 4 skipped"))
        self.assertIn(["test", "77", "20", "0", "3"], [line.split() for line in lines])

    def test_failed(self) -> None:
        """A failed step counts as a failure even if no test failed, and the end of its output is printed."""
        self.ended("check", "make: *** [Makefile:1: docs] Error 1\n", status=2)
        self.ended("test", "x\n" + "=" * 79 + "\n[FAIL] a.b\nwhy\n5 passed, 2 failed, 0 skipped\n", status=1)
        status, lines = self.summary()
        self.assertEqual((status, lines[-1]), (1, "5 passed, 3 failed, 0 skipped"))
        self.assertIn("make: *** [Makefile:1: docs] Error 1", lines)
        self.assertIn("[FAIL] a.b", lines)

    def test_findings(self) -> None:
        """Findings of random searches are repeated behind the table; those of the soak are not failures."""
        found = "soak: findings to be fixed, although they do not fail this run: fuzz"
        broken = "hostile-btl: seed 17 fails: objects are left"
        self.ended("hostile", f"{broken}\n  repeat it: ...\n", status=2)
        self.ended("soak", f"{found}\nsoak: 4 passed, 0 failed, 41 skipped\n")
        status, lines = self.summary()
        self.assertEqual((status, lines[-1]), (1, "4 passed, 1 failed, 41 skipped"))
        self.assertEqual(sorted(lines[-3:-1]), [broken, found])


class RunnerTests(SynchronousTestCase):
    """Programs that run others."""

    def run_(self, tool: str, *words: str) -> tuple[int, str, str]:
        """Return exit status, output and errors of a tool of the checkout."""
        path = CHECKOUT / "tools" / tool
        if not path.exists():
            raise SkipTest("not a checkout")
        done = subprocess.run([path, *words], cwd=CHECKOUT, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    def test_checkTag(self) -> None:
        """A release is refused if its tag is not the version of the package."""
        self.assertEqual(self.run_("check-tag", f"v{txrdma.__version__}"), (0, "", ""))
        for tag in (txrdma.__version__, f"v{txrdma.__version__}.dev1", "v0.1", ""):
            status, printed, why = self.run_("check-tag", tag)
            self.assertEqual((status, printed), (1, ""))
            self.assertIn(f"not v{txrdma.__version__}", why)


class SoakTests(SynchronousTestCase):
    """C{tools/soak.py}, which runs a choice of commands."""

    def test_outcomes(self) -> None:
        """An activity with random seeds that finds something has not passed, and does not fail the run."""
        soak = tool(self, "soak")
        folder = Path(self.mktemp())
        activities = [
            soak.Activity("good", ("sh", "-c", "test $TXRDMA_DAYS = 3"), 1.0),
            soak.Activity("bad", ("false",), 1.0),
        ]
        activities += [soak.Activity(name, (name,), 1.0, isRandom=True) for name in ("true", "false")]
        self.patch(soak, "_FOLDER", folder)
        self.patch(signal, "signal", lambda *_: None)
        for chosen, status in ((activities, 1), (activities[2:], 0)):
            self.patch(soak, "activities", lambda chosen=chosen: iter(chosen))
            with redirect_stdout(StringIO()) as output:
                self.assertEqual(soak.main([]), status)
            lines = output.getvalue().splitlines()
            passed, failed = len(chosen) // 2, status
            self.assertEqual(lines[-1], f"soak: {passed} passed, {failed} failed, 0 skipped")
            self.assertEqual(
                lines[-2], "soak: findings to be fixed, although they do not fail this run: false"
            )

    def test_busy(self) -> None:
        """If activities take longer than recorded, the last ones are not begun."""
        soak, clock = tool(self, "soak"), Clock()

        def run(activity: Any, seconds: float, environment: object) -> int:
            clock.advance(2 * seconds)
            return 0

        self.patch(soak, "_FOLDER", Path(self.mktemp()))
        self.patch(soak, "activities", lambda: iter(soak.Activity(each, (), 20.0) for each in "abc"))
        self.patch(soak, "run", run)
        self.patch(soak, "time", SimpleNamespace(monotonic=clock.seconds))
        self.patch(signal, "signal", lambda *_: None)
        with redirect_stdout(StringIO()) as output:
            self.assertEqual(soak.main(["--minutes", "1"]), 0)
        last, counts = output.getvalue().splitlines()[-2:]
        self.assertRegex(last, r"^soak: [abc] is not begun: there is too little time left$")
        self.assertEqual(counts, "soak: 2 passed, 0 failed, 1 skipped")


class MakefileTests(SynchronousTestCase):
    def test_clean(self) -> None:
        """C{make clean} removes what other targets make, and nothing else."""
        folder = Path(self.mktemp())
        for name in (".venv/bin", ".venv-compiled", "build/tests", "docs/_build", "_trial_temp.1", "txrdma"):
            (folder / name).mkdir(parents=True)
        shutil.copy(CHECKOUT / "Makefile", folder)
        subprocess.run(["make", "clean"], cwd=folder, check=True, capture_output=True, timeout=60)
        self.assertEqual(sorted(os.listdir(folder)), ["Makefile", "docs", "txrdma"])
        self.assertEqual(os.listdir(folder / "docs"), [])


class ManualTests(SynchronousTestCase):
    """C{tools/manpages.py}, which writes manual pages from the help of the commands."""

    slowBecause = "imports every command, and formats their pages"

    def setUp(self) -> None:
        self.manpages = tool(self, "manpages")

    def test_pages(self) -> None:
        """Every command has a page with its options, which groff formats without a warning."""
        pages = self.manpages.pages("1.0", 0.0)
        self.assertEqual({*pages}, {"txrdma.1", *(f"txrdma-{each.name}.1" for each in COMMANDS)})
        links = pages["txrdma-links.1"]
        self.assertIn('.TH TXRDMA-LINKS 1 1970-01-01 "txrdma 1.0"', links)
        self.assertIn(r"\-\-below         Only links below their capability", links)
        self.assertIn(".BR txrdma\\-links (1)", pages["txrdma.1"])
        if shutil.which("groff") is None:
            raise SkipTest("groff is not installed")
        for text in pages.values():
            done = subprocess.run(
                ["groff", "-man", "-Tutf8", "-ww"], input=text, capture_output=True, text=True, timeout=60
            )
            self.assertEqual(done.stderr, "")


class MutantTests(SynchronousTestCase):
    """C{tools/mutants.py}, which C{make mutants} calls."""

    slowBecause = "processes import the package for each mutant"

    def setUp(self) -> None:
        self.mutants = tool(self, "mutants")
        self.recorded = self.mutants.load()

    def test_apply(self) -> None:
        """The recorded mutants change today's modules (C{tools/mutants.py redraw} replaces the others)."""
        sources = {
            path: (CHECKOUT / path).read_text()
            for group in self.mutants.GROUPS.values()
            for path in group.paths
        }
        applying = [mutant for mutant in self.recorded if mutant.edit(sources[mutant.path])]
        self.assertGreater(len(applying), 0.95 * len(self.recorded))

    def test_recordedTestsExist(self) -> None:
        """The tests that kill mutants exist, except those of the suite before it was grouped by cost."""
        grouped = ("txrdma.test.unit.", "txrdma.test.integration.")
        fast = {mutant.fast.removeprefix("timeout: ") for mutant in self.recorded if mutant.fast}
        full = {mutant.full.removeprefix("timeout: ") for mutant in self.recorded if mutant.full}
        for name in sorted(fast | {name for name in full if name.startswith(grouped)}):
            self.assertTrue(callable(namedAny(name)), name)

    def test_killed(self) -> None:
        """A test that passes fails with the mutant that it kills, in a separate process."""
        mutant = next(each for each in self.recorded if "unit.smc.test_closing" in (each.fast or ""))
        test = self.mutants.Test(mutant.fast, mutant.fast.rsplit(".", 2)[0], 1.0)
        loaded: set[str] = set()
        self.assertEqual(self.mutants.failing([mutant], [test], loaded), {test.name: "failed"})
        self.assertEqual(self.mutants.failing([], [test], set()), {})
        self.assertEqual(loaded, {self.mutants.moduleName(mutant.path)})


class ExampleTests(SynchronousTestCase):
    """The examples of the documentation, unchanged."""

    slowBecause = "each example is a process"

    def example(self, name: str) -> list[str]:
        path = CHECKOUT / "examples" / name
        if not path.exists():
            raise SkipTest("not a checkout")
        return [sys.executable, str(path)]

    def test_echo(self) -> None:
        """Server and client exchange bytes by SMC-R."""
        self.assertIn("by SMC-R, shared-memory", self.echo("smc:127.0.0.1:{port}"))

    def test_plainServer(self) -> None:
        """A server without SMC is reached by TCP."""
        self.assertIn("by TCP", self.echo("smc:127.0.0.1:{port}", "tcp:0:interface=127.0.0.1"))

    def echo(self, connect: str, listen: str = "smc:0:interface=127.0.0.1") -> str:
        with subprocess.Popen(
            [*self.example("server.py"), listen], stdout=subprocess.PIPE, text=True
        ) as server:
            try:
                assert server.stdout is not None
                port = server.stdout.readline().split()[-1]
                command = [*self.example("client.py"), connect.format(port=port)]
                done = subprocess.run(command, capture_output=True, text=True, timeout=60)
                self.assertEqual((done.returncode, done.stderr), (0, ""))
                self.assertTrue(done.stdout.startswith("hello\n"), done.stdout)
                return done.stdout
            finally:
                server.terminate()

    def test_suite(self) -> None:
        """A suite leaves nothing in the reactor over either transport."""
        folder = Path(self.example("test_echo.py")[1]).parent
        for scheme in ("tcp", "smc"):
            environment = {**os.environ, "SCHEME": scheme, "PYTHONPATH": f"{folder}:{CHECKOUT}"}
            command = [sys.executable, "-m", "twisted.trial", "--temp-directory", self.mktemp(), "test_echo"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
            self.assertIn("PASSED (successes=1)", done.stdout)

    def test_readme(self) -> None:
        """The commands of the README work unchanged, except for the port."""
        fetch = self.example("fetch.py")
        if find_spec("treq") is None:
            raise SkipTest("treq is not installed: the extra web brings it")
        readme = (CHECKOUT / "README.md").read_text()
        source = Path(fetch[1]).read_text()
        self.assertIn(source[source.index("import sys") :], readme)
        [serving] = re.findall(r"^\$ twistd (-n web --listen smc:8080 --path .)$", readme, re.MULTILINE)
        [logged] = re.findall(r"`connection at 0.0.0.0:8080: (SMC-R [^`]*)`", readme)
        twistd = Path(sys.executable).with_name("twistd")
        command = [str(twistd), "--pidfile=", *serving.replace("8080", "0").split()]
        folder = self.mktemp()
        os.mkdir(folder)
        with subprocess.Popen(
            command, cwd=folder, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
        ) as server:
            assert server.stdout is not None
            try:
                port = next(line for line in server.stdout if "Site starting on" in line).split()[-1]
                command = [*fetch, f"http://127.0.0.1:{port}/"]
                done = subprocess.run(command, capture_output=True, text=True, timeout=60)
                self.assertRegex(done.stdout, r"\A200 \d+ bytes\n\Z", done.stderr)
            finally:
                server.terminate()
            self.assertIn(f"connection at 0.0.0.0:{port}: {logged}\n", server.stdout.read())
