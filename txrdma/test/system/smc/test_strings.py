"""
The endpoint strings C{smc:...}.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import txrdma


class LightnessTests(SynchronousTestCase):
    """Every start of twistd on the machine loads the plugin."""

    def test_imports(self) -> None:
        """Loading the parsers imports neither a reactor nor a device nor the rest of SMC."""
        program = (
            "import sys, txrdma.smc.strings as s; s.SMCClientParser(); s.SMCServerParser();"
            "light = 'txrdma.smc', 'txrdma.smc.strings', 'txrdma.kit', 'txrdma.kit.strings';"
            "heavy = [n for n in sys.modules if n == 'twisted.internet.reactor' or n.startswith('pyverbs')"
            " or n.startswith('txrdma.') and n not in light];"
            "sys.exit(repr(heavy) if heavy else 0)"
        )
        checkout = Path(txrdma.__file__).parent.parent
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=checkout, capture_output=True, text=True, timeout=60
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
