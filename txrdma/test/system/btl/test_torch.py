"""
C{torch.distributed} in separate processes over C{btl}, compared with gloo.

torch has hundreds of megabytes, so C{make test} does not install it: C{make test-torch} does.
"""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from unittest import SkipTest

from twisted.trial.unittest import SynchronousTestCase

import txrdma

PLAYER = Path(txrdma.__file__).parent / "test" / "support" / "btl" / "torchplayer.py"


class TorchTests(SynchronousTestCase):
    """Processes that C{txrdma btl-run} or C{torchrun} starts: see L{txrdma.test.support.btl.torchplayer}."""

    slowBecause = "several processes start, which import torch"

    def setUp(self) -> None:
        if find_spec("torch") is None:
            raise SkipTest("torch is not installed: make test-torch runs this")

    def play(self, *launcher: str, role: str) -> tuple[int, Sequence[str], str]:
        """Run the processes; return the exit status, the lines of their output, sorted, and the errors."""
        command = [sys.executable, "-m", *launcher, str(PLAYER), role]
        environment = {**os.environ, "OMP_NUM_THREADS": "1", "PYTHONWARNINGS": "ignore"}
        done = subprocess.run(command, capture_output=True, text=True, timeout=100, env=environment)
        return done.returncode, sorted(done.stdout.splitlines()), done.stderr

    def test_operations(self) -> None:
        """All operations have the results of gloo; groups can be nested; a late member is noticed."""
        status, lines, errors = self.play("txrdma", "btl-run", "-n", "3", role="operations")
        self.assertEqual((status, lines), (0, ["ended"] * 3), errors)

    def test_training(self) -> None:
        """C{DistributedDataParallel} trains a model to the same weights as with gloo."""
        status, lines, errors = self.play("txrdma", "btl-run", "-n", "2", role="training")
        self.assertEqual((status, lines), (0, ["ended"] * 2), errors)

    def test_torchrun(self) -> None:
        launcher = ("torch.distributed.run", "--standalone", "--nproc-per-node", "2")
        status, lines, errors = self.play(*launcher, role="nothing")
        self.assertEqual((status, lines), (0, ["ended"] * 2), errors)

    def test_killed(self) -> None:
        """When a process is killed, pending and later operations of the others fail; they end in order."""
        status, lines, errors = self.play("txrdma", "btl-run", "-n", "3", role="killed")
        self.assertEqual((status, lines), (128 + 9, ["ended"] * 2 + ["noticed"] * 2), errors)
