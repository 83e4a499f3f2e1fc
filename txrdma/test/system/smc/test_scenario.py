"""
Simulated SMC connections are the same in every process.
"""

from __future__ import annotations

import os
import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from txrdma.testing.smc.plans import drawStreams
from txrdma.testing.smc.scenario import playStreams


class RepetitionTests(SynchronousTestCase):
    """A plan that is simulated twice."""

    slowBecause = "starts interpreters, which import the package"

    def test_repeatsElsewhere(self) -> None:
        """A plan has the same result in another process, with other hash seeds."""
        program = (
            f"import sys; sys.path[:] = {sys.path!r}; from txrdma.testing.smc.scenario import playStreams;"
            "from txrdma.testing.smc.plans import drawStreams;"
            "print([playStreams(drawStreams(seed)).digest for seed in range(3)])"
        )
        printed = subprocess.run(
            [sys.executable, "-c", program],
            env={**os.environ, "PYTHONHASHSEED": "1"},
            capture_output=True,
            text=True,
            check=True,
            timeout=60,
        ).stdout.strip()
        self.assertEqual(printed, str([playStreams(drawStreams(seed)).digest for seed in range(3)]))
