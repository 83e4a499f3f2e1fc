"""
C{txrdma verify} and C{txrdma doctor} on rxe, as root and as an unprivileged user who may pin 8 MiB.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Any, Final

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.system.kernel import Box, OUTSIDE, record, Witness
from txrdma.testing.reactors import Base
from txrdma.verify.perftest import PROGRAMS
from txrdma.verify.streams import QUICK

BOXES = (Box(timeout=2400),)

SECONDS: Final = 1200
PATIENCE: Final = "10"
"""Factor for the time limits of checks: the guest is slow."""

_CAPABILITIES: Final = "-all,+dac_read_search"  # modules may be in root's home directory
_NOBODY: Final = (
    *("prlimit", f"--memlock={8 << 20}"),
    *("setpriv", "--reuid=65534", "--regid=65534", "--clear-groups"),
    *(f"--{which}={_CAPABILITIES}" for which in ("inh-caps", "ambient-caps", "bounding-set")),
)
"""The words that run a program as an unprivileged user."""


class _VerifyMixin(Base):
    """
    The tests of each user.

    @cvar words: run a program as the user.
    @cvar ends: options of C{txrdma verify}.
    """

    skip = OUTSIDE
    words: tuple[str, ...] = ()
    ends: tuple[str, ...]

    def txrdma(self, *words: str) -> subprocess.CompletedProcess[str]:
        """Run a command of C{txrdma} as the user."""
        command = [*self.words, sys.executable, "-m", "txrdma", *words]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        return subprocess.run(
            command, capture_output=True, text=True, timeout=SECONDS, env=environment, cwd=self.folder
        )

    def setUp(self) -> None:
        """Create a folder in which the user may write, and give all users access to verbs, as udev does."""
        folder = tempfile.TemporaryDirectory()
        self.addCleanup(folder.cleanup)
        self.folder = Path(folder.name)
        self.folder.chmod(0o777)
        for node in (*Path("/dev/infiniband").glob("uverbs*"), Path("/dev/infiniband/rdma_cm")):
            self.addCleanup(node.chmod, node.stat().st_mode & 0o777)
            node.chmod(0o666)

    def verified(self, part: str) -> dict[str, Any]:
        """Verify a part, which must succeed; return the report."""
        done = self.txrdma("verify", "--quick", *self.ends, "--parts", part, "--patience", PATIENCE)
        written = self.folder / "txrdma-verify.json"
        self.assertTrue(written.exists(), done.stdout + done.stderr)
        report: dict[str, Any] = json.loads(written.read_text())
        self.assertEqual((done.returncode, report["failures"]), (0, []), done.stdout + done.stderr)
        counts = report["parts"][part]
        self.assertEqual(counts["failed"], 0)
        record(f"checks of {part}", counts["passed"])
        return report

    def test_verbs(self) -> None:
        """All checks of queue pairs, memory and completions pass; rxe has everything that they need."""
        counts = self.verified("verbs")["parts"]["verbs"]
        self.assertGreater(counts["passed"], 25)
        self.assertEqual(counts["skipped"], 0)

    def test_peer(self) -> None:
        """Data passes over each transport to another process, C{smc:} by SMC-R, and perftest is measured."""
        found = self.verified("peer")
        measured = {row["over"] for row in found["measurements"]}
        self.assertLessEqual({"tcp:", "smc:", "rsocket:", "btl:", *PROGRAMS}, measured)

    def test_streams(self) -> None:
        """Pairs of processes see the same over each kind of stream as over C{tcp:}."""
        self.assertEqual(self.verified("streams")["parts"]["streams"]["passed"], 3 * len(QUICK))

    @staticmethod
    def managementTests() -> int:
        """Number of tests of management datagrams that do not remove the device."""
        from txrdma.verify.suites import DatagramMADTests

        removing = ("test_lost", "test_returnOfAsking", "test_returnOfServing", "test_closing")
        return len([name for name in dir(DatagramMADTests) if name.startswith("test_")]) - len(removing)


class VerifyTests(_VerifyMixin, SynchronousTestCase):
    """As root, between the ports of two devices."""

    witness = Witness("pyverbs, txrdma verify --quick", "rxe", "as root, two devices")
    ends = ("--device", "pyverbs:rxe0", "--to", "pyverbs:rxe1")

    def test_rdma(self) -> None:
        """All checks of C{rdma:} pass."""
        self.assertGreater(self.verified("rdma")["parts"]["rdma"]["passed"], 15)

    def test_btl(self) -> None:
        """All checks of C{btl:} pass."""
        self.assertGreater(self.verified("btl")["parts"]["btl"]["passed"], 15)

    def test_mad(self) -> None:
        """All checks of management datagrams pass, also those by the kernel's queue pair 1."""
        counts = self.verified("mad")["parts"]["mad"]
        self.assertEqual(counts["passed"], 2 * self.managementTests())
        self.assertEqual(counts["skipped"], 2 * 3)  # those that remove the device

    def test_hosts(self) -> None:
        """C{--serve} and C{--peer}, as on two hosts, exchange data over each transport, and measure."""
        program = (sys.executable, "-m", "txrdma", "verify")
        with subprocess.Popen(
            [*program, "--serve", "--tcp-port", "0", "--device", "pyverbs:rxe1"],
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)},
        ) as server:
            self.addCleanup(server.kill)
            assert server.stderr is not None
            port = server.stderr.readline().split()[-1]
            ends = ("--device", "pyverbs:rxe0", "--peer", "10.77.0.2", "--tcp-port", port)
            done = self.txrdma("verify", "--quick", "--json", *ends, "--patience", PATIENCE)
            server.send_signal(signal.SIGINT)
        report = json.loads(done.stdout)
        self.assertEqual((done.returncode, report["failures"]), (0, []), done.stdout + done.stderr)
        measured = {row["over"] for row in report["measurements"]}
        self.assertLessEqual({"tcp:", "smc:", "rsocket:", "btl:", "send", "write", "read", "ud"}, measured)
        self.assertEqual(server.returncode, 0)

    def test_doctor(self) -> None:
        """C{txrdma doctor} reports no problem."""
        done = self.txrdma("doctor", "--json")
        found = json.loads(done.stdout)
        self.assertEqual((done.returncode, found["isWell"]), (0, True), done.stdout)


class UnprivilegedVerifyTests(_VerifyMixin, SynchronousTestCase):
    """As an unprivileged user, with one device; C{rdma:} and C{btl:} only in the part C{peer}."""

    witness = Witness("pyverbs, txrdma verify --quick", "rxe", "an ordinary user, 8 MiB of pinned memory")
    words = _NOBODY
    ends = ("--device", "pyverbs:rxe0")

    def test_mad(self) -> None:
        """Checks of management datagrams are skipped, and the report names what permits them."""
        report = self.verified("mad")
        counts = report["parts"]["mad"]
        self.assertEqual((counts["passed"], counts["skipped"]), (0, 2 * (self.managementTests() + 3)))
        reasons = {each["check"].partition(".")[0]: each["text"] for each in report["skipped"]}
        self.assertIn("CAP_NET_RAW", reasons["mad/DatagramMADTests"])
        self.assertIn("Permission denied", reasons["mad/KernelMADTests"])

    def test_doctor(self) -> None:
        """C{txrdma doctor} reports no problem, but names the limit of pinned memory."""
        done = self.txrdma("doctor", "--json")
        found = json.loads(done.stdout)
        self.assertEqual((done.returncode, found["isWell"]), (0, True), done.stdout)
        self.assertIn("memlock", [each["where"] for each in found["problems"]])
