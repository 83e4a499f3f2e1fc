"""
Groups of real processes, started by C{txrdma btl-run}.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.processes import CHECKOUT, firstLine, started

MEMBER = CHECKOUT / "txrdma" / "test" / "support" / "btl" / "member.py"
SIZE = 3


class RunTests(SynchronousTestCase):
    slowBecause = "four processes start"

    def start(self, role: str, *options: str) -> subprocess.Popen[str]:
        words = ("-m", "txrdma", "btl-run", "-n", str(SIZE), *options, str(MEMBER), role)
        return started(self, *words, stderr=subprocess.PIPE)

    def test_sum(self) -> None:
        """Members sum arrays; each line has the rank of its process."""
        process = self.start("sum", "--prefix")
        output, errors = process.communicate(timeout=100)
        expected = [f"[{rank}] rank {rank} of {SIZE}" for rank in range(SIZE)]
        self.assertEqual((sorted(output.splitlines()), errors, process.returncode), (expected, "", 0))

    def test_port(self) -> None:
        """The first member can listen at the port of C{torch.distributed}, which others do not get."""
        process = self.start("listening", "--prefix")
        output, errors = process.communicate(timeout=100)
        self.assertEqual((output, process.returncode), ("[0] listening\n", 0), errors)

    def test_killed(self) -> None:
        """When a member is killed, all operations of the others fail, and its signal is the exit status."""
        process = self.start("killed", "--prefix")
        output, errors = process.communicate(timeout=100)
        reason = r"^\[(\d)\] failed because of rank 1: rank 1 (?:was lost|has failed): .*ended"
        self.assertEqual(sorted(re.findall(reason, output, re.M)), ["0", "0", "2", "2"], output + errors)
        self.assertEqual(process.returncode, 128 + signal.SIGKILL)
        self.assertRegex(errors, "btl-run: rank 1 has failed: its process was ended by SIGKILL")

    def test_raising(self) -> None:
        """The member that raises is reported, although the others, which need it, exit before."""
        process = self.start("raising")
        _output, errors = process.communicate(timeout=100)
        self.assertEqual(process.returncode, 3, errors)
        self.assertRegex(errors, "btl-run: rank 1 has failed: its process has ended with status 3")

    def test_interrupt(self) -> None:
        """An interrupt of the launcher ends all members."""
        process = self.start("waiting", "-p")
        lines = sorted(firstLine(process) for _ in range(SIZE))
        self.assertEqual(lines, [f"[{rank}] waiting" for rank in range(SIZE)])
        process.send_signal(signal.SIGINT)
        output, errors = process.communicate(timeout=100)
        self.assertEqual((process.returncode, output), (130, ""), errors)
        self.assertRaises(ProcessLookupError, os.kill, process.pid, 0)
