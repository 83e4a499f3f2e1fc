"""
The commands that look at whole fabrics, and those that follow packets through them, on simulated fabrics.
"""

from __future__ import annotations

import signal
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import txrdma


class InterruptTests(SynchronousTestCase):
    def test_cancelled(self) -> None:
        words = ["-m", "txrdma", "check", "-d", "sim:fattree:8:latency=60", "--debug"]
        process = subprocess.Popen(
            [sys.executable, *words],
            cwd=Path(txrdma.__file__).parents[1],
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        assert process.stderr is not None
        self.assertIn("->", process.stderr.readline())
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=30)
        self.assertEqual((process.returncode, out), (130, ""))
        self.assertNotIn("Traceback", errors)
