"""
The small tools of the checkout: the count of tests, and the examples.
"""

from __future__ import annotations

import os
import resource
import runpy
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

import txrdma

CHECKOUT = Path(txrdma.__file__).parent.parent


class CountTests(SynchronousTestCase):
    """The last line of C{make test}."""

    def setUp(self) -> None:
        self.tool = CHECKOUT / "tools" / "trial.py"
        if not self.tool.exists():
            raise SkipTest("not a checkout")
        self.counted: Callable[[str], tuple[int, int, int]] = runpy.run_path(str(self.tool))["counted"]

    def test_summaries(self) -> None:
        """Every form of trial's last line is understood."""
        for line, counts in (
            ("PASSED", (0, 0, 0)),
            ("PASSED (successes=3)", (3, 0, 0)),
            ("PASSED (skips=2, expectedFailures=1, successes=3)", (3, 0, 3)),
            ("FAILED (failures=1, errors=2, skips=4, successes=30)", (30, 3, 4)),
            ("FAILED (unexpectedSuccesses=1)", (0, 1, 0)),
        ):
            self.assertEqual(self.counted(line), counts)
        self.assertRaises(ValueError, self.counted, "PASSED (successes)")

    def test_notes(self) -> None:
        """What tests count beside themselves is added up before the last line."""
        source = (
            "import os\n"
            "from twisted.trial.unittest import TestCase\n"
            "class Tests(TestCase):\n"
            "    def test_one(self):\n"
            "        open(os.environ['TXRDMA_NOTES'], 'a').write('a: thing: 2\\n')\n"
            "    test_two = test_one\n"
        )
        status, lines = self.linesOf(source)
        self.assertEqual((status, lines[-2:]), (0, ["a: thing: 4", "2 passed, 0 failed, 0 skipped"]))

    def run_(self, source: str, before: str = ":") -> tuple[int, str]:
        """Status and last line for a module of tests."""
        status, lines = self.linesOf(source, before)
        return status, lines[-1]

    def linesOf(self, source: str, before: str = ":") -> tuple[int, list[str]]:
        """
        Status and output for a module of tests.

        @param before: what a shell does before it runs them.
        """
        folder = Path(self.mktemp())
        folder.mkdir()
        (folder / "test_given.py").write_text(source)
        command = ["sh", "-c", f'{before} && exec "$@"', "sh", sys.executable, str(self.tool.resolve())]
        done = subprocess.run(
            [*command, "test_given"], cwd=folder, capture_output=True, text=True, timeout=60
        )
        return done.returncode, done.stdout.splitlines()

    def test_status(self) -> None:
        """The status is trial's, and a run that does not come to its end has failed."""
        head = "import os, unittest\nclass T(unittest.TestCase):\n  "
        self.assertEqual(self.run_(head + "def test_a(self): pass"), (0, "1 passed, 0 failed, 0 skipped"))
        self.assertEqual(self.run_(head + "def test_a(self): 1 / 0"), (1, "0 passed, 1 failed, 0 skipped"))
        self.assertEqual(
            self.run_(head + "@unittest.skip('for a reason')\n  def test_a(self): 1 / 0"),
            (0, "0 passed, 0 failed, 1 skipped"),
        )
        self.assertEqual(
            self.run_(head + "def test_a(self): os._exit(0)"), (1, "0 passed, 1 failed, 0 skipped")
        )
        self.assertEqual(self.run_("import nonsense_that_is_not_there")[0], 1)

    def test_descriptors(self) -> None:
        """Tests may open more than an ordinary user does at first, where that is allowed."""
        most = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
        if 0 <= most < 4096:
            raise SkipTest(f"no more than {most} descriptors are allowed here")
        source = (
            "import resource, unittest\nclass T(unittest.TestCase):\n"
            "  def test_a(self): self.assertGreaterEqual(resource.getrlimit(resource.RLIMIT_NOFILE)[0], 4096)"
        )
        self.assertEqual(self.run_(source, "ulimit -Sn 256")[0], 0)

    def test_interrupts(self) -> None:
        """Programs that tests start can be interrupted, though all runs in the background of a script."""
        source = (
            "import signal, subprocess, sys, unittest\nclass T(unittest.TestCase):\n"
            "  def test_a(self):\n"
            "    process = subprocess.Popen([sys.executable, '-c', 'import time; time.sleep(60)'])\n"
            "    process.send_signal(signal.SIGINT)\n"
            "    self.assertEqual(process.wait(20), -signal.SIGINT)"
        )
        self.assertEqual(self.run_(source, "trap '' INT"), (0, "1 passed, 0 failed, 0 skipped"))

    def test_seeds(self) -> None:
        """The first seed of simulations is told, other ones in each run, and is what all tests are given."""
        source = (
            "import os, unittest\nclass T(unittest.TestCase):\n"
            "  def test_a(self): open('given', 'w').write(os.environ['TXRDMA_FIRST'])"
        )
        folder = Path(self.mktemp())
        folder.mkdir()
        (folder / "test_given.py").write_text(source)
        command = [sys.executable, str(self.tool.resolve()), "test_given"]
        environment = {**os.environ, "TXRDMA_FIRST": ""}
        firsts = []
        for _ in range(2):
            done = subprocess.run(
                command, cwd=folder, env=environment, capture_output=True, text=True, timeout=60
            )
            [given] = folder.glob("**/given")
            firsts.append(given.read_text())
            self.assertIn(f"simulations play seeds from {firsts[-1]} on", done.stdout)
        self.assertLess(int(firsts[0]), int(firsts[1]))


class SumTests(SynchronousTestCase):
    """The last lines of C{.ci/run}."""

    def setUp(self) -> None:
        self.tool = CHECKOUT / "tools" / "ci-counts"
        if not self.tool.exists():
            raise SkipTest("not a checkout")
        self.folder = Path(self.mktemp())
        self.folder.mkdir()

    def counted(self, *failed: str) -> tuple[int, str]:
        """Status and last line."""
        command = [sys.executable, str(self.tool), str(self.folder), *failed]
        done = subprocess.run(command, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout.splitlines()[-1]

    def test_sum(self) -> None:
        """All parts' last counts are added, whatever stands before or behind them."""
        (self.folder / "test").write_text("1 passed, 1 failed, 0 skipped\n20 passed, 0 failed, 3 skipped\n")
        (self.folder / "ibsim").write_text("ibsim: 7 passed, 0 failed, 1 skipped\n")
        (self.folder / "kernel").write_text("kernel: 0 passed, 0 failed, 0 skipped (no emulator)\n")
        self.assertEqual(self.counted(), (0, "27 passed, 0 failed, 4 skipped"))

    def test_failed(self) -> None:
        """A part that failed counts, even where it counts no failed test."""
        (self.folder / "check").write_text("make: *** [Makefile:1: docs] Error 1\n")
        (self.folder / "test").write_text("5 passed, 2 failed, 0 skipped\n")
        self.assertEqual(self.counted("check", "test"), (1, "5 passed, 3 failed, 0 skipped"))

    def test_failures(self) -> None:
        """Of a part that failed its failures are told; where it counts none, its last lines."""
        rule = "=" * 79 + "\n"
        skipped, failed = "[SKIPPED]\nno dot\n\ntest.a\n", "[FAIL]\nTraceback\n\ntest.b\n"
        log = self.folder / "log"
        for printed, told in (
            ("x\n" + rule + skipped + rule + failed + "-" * 79 + "\nRan 2 tests\n", failed),
            ("".join(f"line {number}\n" for number in range(99)), "line 98\n"),
        ):
            log.write_text(printed)
            command = [sys.executable, str(self.tool.with_name("ci-failures")), str(log)]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60)
            self.assertEqual((done.returncode, done.stdout.strip()[-len(told.strip()) :]), (0, told.strip()))
            self.assertNotIn("no dot", done.stdout)


class RunnerTests(SynchronousTestCase):
    """Programs that run others."""

    def run_(self, tool: str, *words: str) -> tuple[int, str, str]:
        """Status, output and complaints of a tool of the checkout."""
        path = CHECKOUT / "tools" / tool
        if not path.exists():
            raise SkipTest("not a checkout")
        done = subprocess.run([path, *words], cwd=CHECKOUT, capture_output=True, text=True, timeout=60)
        return done.returncode, done.stdout, done.stderr

    def test_quietly(self) -> None:
        """What succeeds says nothing, what fails all of it, with its own status."""
        said = "echo WARNING: much; echo more >&2; exit "
        self.assertEqual(self.run_("quietly", "sh", "-c", said + "0"), (0, "", ""))
        self.assertEqual(self.run_("quietly", "sh", "-c", said + "3"), (3, "", "WARNING: much\nmore\n"))

    def test_bare(self) -> None:
        """No program is found but a shell: not by PATH, and not where the lab looks besides."""
        if shutil.which("mktemp") is None:
            raise SkipTest("there is no mktemp to begin with")
        look = "import os, shutil, sys; from lab import needs; print(os.listdir(os.environ['PATH']));"
        look += "print([name for name in sys.argv[1:] if shutil.which(name, path=needs.SEARCHED)])"
        names = ("ls", "cc", "ip", "python3", "tshark", "dot", "depmod", "busybox", "opensm", "sh")
        status, said, complaints = self.run_("bare", sys.executable, "-c", look, *names)
        self.assertEqual((status, complaints), (0, ""))
        self.assertEqual(said.splitlines()[1:], ["['sh']"] * 2)
        self.assertEqual(self.run_("bare", "sh", "-c", "exit 3")[0], 3)


class ExampleTests(SynchronousTestCase):
    """The examples of the documentation, as they stand there."""

    def example(self, name: str) -> list[str]:
        path = CHECKOUT / "examples" / name
        if not path.exists():
            raise SkipTest("not a checkout")
        return [sys.executable, str(path)]

    def test_echo(self) -> None:
        """Server and client talk, by SMC-R."""
        self.assertIn("by SMC-R shared-memory", self.echo("smc:127.0.0.1:{port}"))

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
        """A suite is clean over either transport."""
        folder = Path(self.example("test_echo.py")[1]).parent
        for scheme in ("tcp", "smc"):
            environment = {**os.environ, "SCHEME": scheme, "PYTHONPATH": f"{folder}:{CHECKOUT}"}
            command = [sys.executable, "-m", "twisted.trial", "--temp-directory", self.mktemp(), "test_echo"]
            done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
            self.assertIn("PASSED (successes=1)", done.stdout)

    def test_length(self) -> None:
        """They are what was promised: thirty lines."""
        for name in ("server.py", "client.py"):
            lines = Path(self.example(name)[1]).read_text().splitlines()
            self.assertLessEqual(len(lines), 30)

    def test_readme(self) -> None:
        """The README shows them as they are."""
        readme = (CHECKOUT / "README.md").read_text()
        for name in ("server.py", "client.py"):
            source = Path(self.example(name)[1]).read_text()
            self.assertIn(source[source.index("import sys") :], readme)
