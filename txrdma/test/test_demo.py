"""
The demonstration: what it lets pass, what not, and that it leaves nothing behind.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from txrdma.demo import files
from txrdma.demo.processes import Told
from txrdma.demo.report import Run


def connection(**changes: object) -> Told:
    """What a connection on SMC-R tells."""
    told: Told = {
        "mode": "SMC-R",
        "fallbackReason": None,
        "device": "soft",
        "route": "shared-memory",
        "linkGroup": "1",
        "bytesReceived": 100,
        "writes": 1,
        "messagesSent": 2,
    }
    return {**told, **changes}


GOOD = Run(
    kind="smc",
    expected={"a": "00"},
    hashes={"a": "00"},
    bytes=100,
    seconds=1.0,
    largeBytes=1,
    largeSeconds=1.0,
    cpuSeconds=1.0,
    latencies=[0.1, 0.2],
    near=[connection()],
    far=[connection(bytesReceived=10)],
)


class ComplaintTests(SynchronousTestCase):
    """A demonstration that proved nothing says so."""

    def complaint(self, **changes: object) -> str:
        # the keys are fields of Run, the values of their types
        [only] = replace(GOOD, **changes).complaints()  # type: ignore[arg-type]
        return only

    def test_good(self) -> None:
        """A good run has no complaints."""
        self.assertEqual(GOOD.complaints(), [])

    def test_hashes(self) -> None:
        """A file that arrived differently, or not at all, is one; over TCP, too."""
        self.assertIn("another SHA-256", self.complaint(hashes={"a": "01"}))
        self.assertIn("another SHA-256", self.complaint(hashes={}))
        self.assertIn("another SHA-256", self.complaint(hashes={}, kind="tcp"))

    def test_fallback(self) -> None:
        """So is a connection that fell back, on either side, and its reason is told."""
        plain = connection(mode="TCP", fallbackReason="NOSMCDEV")
        self.assertIn("NOSMCDEV", self.complaint(near=[connection(), plain]))
        self.assertIn("NOSMCDEV", self.complaint(far=[plain]))

    def test_nothing(self) -> None:
        """So is a process without any such connection."""
        self.assertIn("no connection", self.complaint(near=[]))
        self.assertIn("no connection", self.complaint(far=[]))

    def test_elsewhere(self) -> None:
        """So are bytes that came by another way."""
        self.assertIn("not all bytes", self.complaint(bytes=101))


class FilesTests(SynchronousTestCase):
    """The folder that is served."""

    def test_files(self) -> None:
        """Real sources, one large file, and a hash for each."""
        target = Path(self.mktemp())
        target.mkdir()
        hashes = files.make(target, 3_000_000, 5)
        self.assertEqual(len(hashes), 6)
        self.assertEqual((target / files.LARGE).stat().st_size, 3_000_000)
        for name in hashes:
            self.assertTrue((target / name).is_file())


class DemonstrationTests(SynchronousTestCase):
    """The command itself, with little to do."""

    def setUp(self) -> None:
        self.scratch = Path(self.mktemp()).resolve()
        self.scratch.mkdir()
        self.environment = {**os.environ, "TMPDIR": str(self.scratch)}

    def command(self, *arguments: str) -> list[str]:
        return [sys.executable, "-m", "txrdma.demo", *arguments]

    def test_runs(self) -> None:
        """It ends well, shows what the issue is about, and takes its files with it."""
        done = subprocess.run(
            self.command("--large", "4", "--files", "60"),
            env=self.environment,
            capture_output=True,
            text=True,
            timeout=100,
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""), done.stdout)
        for words in ("SMC-R", "shared-memory", "RDMA writes", "CDC messages", "p99", "CPU seconds per GB"):
            self.assertIn(words, done.stdout)
        self.assertNotIn("\r", done.stdout)
        self.assertEqual(list(self.scratch.iterdir()), [])

    def test_interrupted(self) -> None:
        """Ctrl-C ends it at once, its processes and its files, too."""
        with subprocess.Popen(
            self.command("--large", "2000"), env=self.environment, stdout=subprocess.PIPE
        ) as process:
            while not list(self.scratch.glob("*/files")):
                try:
                    self.fail(f"ended with {process.wait(0.01)}")
                except subprocess.TimeoutExpired:
                    pass
            process.send_signal(signal.SIGINT)
            self.assertEqual(process.wait(20), 130)
        self.assertEqual(list(self.scratch.iterdir()), [])

    def test_nonsense(self) -> None:
        """Options without sense are refused."""
        done = subprocess.run(self.command("--large", "0"), capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 2)
        self.assertIn("from 1 up", done.stderr)
