"""
Several paths between two processes in separate network namespaces: see L{txrdma.test.support.btl.rates}.
"""

from __future__ import annotations

import json
from shutil import which

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.btl.rates import SETUPS
from txrdma.test.support.namespaces import runAlone, unshared


class RatesTests(SynchronousTestCase):
    """Real sockets and networks, whose rates the kernel limits."""

    slowBecause = "rates are measured for some seconds each"

    skip = None if unshared() and which("tc") else "tc and veth pairs in a network namespace are wanted"

    def test_rates(self) -> None:
        """Two equal paths carry 1.7 times as much as one; paths of 1:4 most of their sum."""
        ran = runAlone("txrdma.test.support.btl.rates", seconds=100)
        self.assertEqual(ran.returncode, 0)
        one, two, unequal = json.loads(ran.stdout)
        self.assertGreater(two, 1.7 * one)
        self.assertGreater(unequal, 0.8 * sum(SETUPS[2]) * 1e6 / 8)
