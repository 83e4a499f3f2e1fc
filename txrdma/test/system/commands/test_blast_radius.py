"""C{txrdma blast-radius} with jobs of a program in place of Slurm's C{squeue}."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.processes import CHECKOUT
from txrdma.test.unit.fabric.test_slurmjobs import squeue

COMMAND = (sys.executable, "-m", "txrdma", "blast-radius", "-d", "sim:fattree:40", "--squeue", "leaf0000")


class SqueueTests(SynchronousTestCase):
    slowBecause = "runs the command in a process"

    def ended(self, script: str) -> subprocess.CompletedProcess[str]:
        """Run the command where C{squeue} is a script."""
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        program = folder / "squeue"
        program.write_text(f"#!{shutil.which('sh')}\n{script}\n")
        program.chmod(0o755)
        path = f"{folder}{os.pathsep}{os.environ['PATH']}"
        environment = {**os.environ, "PATH": path}
        return subprocess.run(
            COMMAND, capture_output=True, text=True, timeout=120, env=environment, cwd=CHECKOUT
        )

    def test_jobs(self) -> None:
        """The jobs that squeue prints are those of the answer."""
        text = squeue("7:h[00000-00019]", "8:h00039")
        ended = self.ended(f"[ \"$1\" = -h ] && printf '%s' '{text}'")
        self.assertEqual((ended.returncode, ended.stderr), (0, ""))
        self.assertIn("Of 2 jobs, 1 lose hosts, 1 lose paths between their hosts", ended.stdout)

    def test_failure(self) -> None:
        """A failing squeue is reported with its message."""
        ended = self.ended("echo 'Unable to contact slurm controller' >&2; exit 1")
        self.assertEqual(ended.returncode, 1)
        self.assertIn("squeue failed: Unable to contact slurm controller", ended.stderr)
        self.assertNotIn("Traceback", ended.stderr)
