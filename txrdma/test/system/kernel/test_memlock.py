"""
The limit of pinned memory: transports of an unprivileged user with the default C{ulimit -l}.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.system.kernel import Box, OUTSIDE, record, unprivileged, Witness

BOXES = (Box(timeout=300),)

SECONDS = 120
EVERYBODY = 0o666
"""Permissions of the device nodes of verbs and RDMA CM, as set by the udev rules of distributions."""


class UnprivilegedTests(SynchronousTestCase):
    """A process of an unprivileged user, who may pin 8 MiB."""

    skip = OUTSIDE
    witness = Witness(
        "smc:, btl:, rdma: over pyverbs", "the same", "an ordinary user, 8 MiB of pinned memory"
    )

    def setUp(self) -> None:
        """Give all users access to the device nodes until the test ends."""
        for node in (*Path("/dev/infiniband").glob("uverbs*"), Path("/dev/infiniband/rdma_cm")):
            self.addCleanup(node.chmod, node.stat().st_mode & 0o777)
            node.chmod(EVERYBODY)

    def test_transports(self) -> None:
        """C{smc:} uses SMC-R without fallback, and C{btl:} and C{rdma:} connect; all carry bytes."""
        words = [sys.executable, "-m", unprivileged.__name__]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(sys.path)}
        run = subprocess.run(words, capture_output=True, text=True, timeout=SECONDS, env=environment)
        self.assertEqual(run.returncode, 0, run.stdout + run.stderr)
        found: dict[str, Any] = json.loads(run.stdout.splitlines()[-1])
        self.assertEqual((found["user"], found["capabilities"]), (unprivileged.NOBODY, 1 << 2))
        self.assertEqual(found["smc"]["mode"], "SMC-R")
        for name in ("smc", "btl", "rdma"):
            self.assertEqual(found[name]["bytes"], unprivileged.EXCHANGED)
            self.assertLessEqual(found[name]["pinned"], unprivileged.LIMIT)
            record(f"bytes pinned after {name}:", found[name]["pinned"])
