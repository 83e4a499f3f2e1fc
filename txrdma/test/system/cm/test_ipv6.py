"""
Connections between two hosts by IPv6: see L{txrdma.test.support.cm.linklocal}.
"""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import txrdma
from txrdma.test.support.namespaces import unshared

CHECKOUT = Path(txrdma.__file__).parent.parent
BEFORE = unshared()


class IPv6Tests(SynchronousTestCase):
    """A server and a client in separate network namespaces."""

    slowBecause = "four processes start"
    skip = None if BEFORE else "veth pairs in a network namespace are wanted"

    def test_rping(self) -> None:
        """Clients reach a server by a global address, and by a link-local one with a zone."""
        ran = subprocess.run(
            [*BEFORE, sys.executable, "-m", "txrdma.test.support.cm.linklocal"],
            stdout=subprocess.PIPE,
            text=True,
            timeout=200,
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        )
        self.assertEqual([line[:21] for line in ran.stdout.splitlines()], ["ping data: rdma-ping-"] * 2)
