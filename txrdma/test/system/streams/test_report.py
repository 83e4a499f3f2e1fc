"""
The command that plays conversations.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import txrdma

CHECKOUT = Path(txrdma.__file__).parent.parent


class CommandTests(SynchronousTestCase):
    """C{python -m txrdma.testing.streams}, as a process."""

    slowBecause = "each command is a process that imports all of the package"

    def run_(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "txrdma.testing.streams", *arguments]
        return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=120)

    def test_runEndsWithCountsResultsAndTable(self) -> None:
        folder = os.path.abspath(self.mktemp())
        where = ["--folder", folder, "--route", "shared-memory", "--reactor", "epoll"]
        done = self.run_(*where, "no-listener")
        self.assertEqual(done.stdout.splitlines()[-1:], ["1 passed, 0 failed, 0 skipped"], done.stderr)
        self.assertEqual(done.returncode, 0)
        results = json.loads(Path(folder, "results.json").read_text())
        [result] = results["conversations"]
        self.assertEqual(result["tcp"], [result["ours"]])
        self.assertIn("no-listener", Path(folder, "table.md").read_text())

    def test_conversationsOfChapterAreListed(self) -> None:
        done = self.run_("--list", "sizes")
        self.assertIn("client-writes-300MB: ", done.stdout)

    def test_unknownNamesAreRefusedFirst(self) -> None:
        for arguments in (["--route", "tin-can"], ["--reactor", "fusion"], ["no-such-thing"]):
            done = self.run_(*arguments)
            self.assertEqual(done.returncode, 2)
            self.assertIn(arguments[-1], done.stderr)
