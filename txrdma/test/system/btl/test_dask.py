"""
Dask in processes of its own, over C{btl://}.
"""

from __future__ import annotations

import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from unittest import SkipTest

from twisted.trial.unittest import SynchronousTestCase

import txrdma

PLAYER = Path(txrdma.__file__).parent / "test" / "support" / "btl" / "daskplayer.py"


class DaskTests(SynchronousTestCase):
    """A scheduler, a client and two workers."""

    slowBecause = "three processes start, which import Dask"

    def test_killed(self) -> None:
        """Workers exchange an array; one that is killed is noticed, and its results are computed again."""
        if find_spec("distributed") is None:
            raise SkipTest("distributed is not installed: the extra dask brings it")
        command = [sys.executable, str(PLAYER), "btl"]
        done = subprocess.run(command, capture_output=True, text=True, timeout=120)
        self.assertEqual(done.stdout, "3000000\nnoticed 3000000\n", done.stderr)
