"""
Protocol cores can be used without Twisted.
"""

from __future__ import annotations

import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support import CHECKOUT
from txrdma.test.unit.test_layers import isCore, modules


class CoreTests(SynchronousTestCase):
    """Modules that the import rules call cores."""

    def test_withoutTwisted(self) -> None:
        """Cores can be imported without Twisted."""
        cores = [module for module, _path in modules() if isCore(module)]
        program = "import sys; sys.modules['twisted'] = None; import " + ", ".join(cores)
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, timeout=60
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
