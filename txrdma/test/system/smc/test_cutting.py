"""
Failover between two processes in separate network namespaces: see L{txrdma.test.support.smc.cutting}.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support import CHECKOUT
from txrdma.test.support.namespaces import unshared

BEFORE = unshared()


class Cutting(SynchronousTestCase):
    """Real processes, sockets and networks: two networks, which fail and recover under load."""

    slowBecause = "A silently cut network is detected by TEST LINK, after some seconds."

    skip = None if BEFORE else "veth pairs in a network namespace are wanted"

    def play(self, end: str) -> dict[str, Any]:
        """Return the reports of both ends."""
        ran = subprocess.run(
            [*BEFORE, sys.executable, "-m", "txrdma.test.support.smc.cutting", end],
            stdout=subprocess.PIPE,
            text=True,
            timeout=300,
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        )
        self.assertEqual(ran.returncode, 0)
        seen: dict[str, Any] = json.loads(ran.stdout)
        self.assertEqual([one["mode"] for one in seen["ends"]], ["SMC-R", "SMC-R"])
        return seen

    def assertWhole(self, end: str) -> None:
        """Assert that nothing was lost or duplicated."""
        one, other = self.play(end)["ends"]
        for here, there in ((one, other), (other, one)):
            self.assertEqual((here["sent"], here["sentHash"]), (there["received"], there["receivedHash"]))
            self.assertEqual(here["reason"], "ConnectionDone")


class CuttingTests(Cutting):
    """One network fails and recovers, or both fail."""

    def test_downNetworkLosesAndDuplicatesNothing(self) -> None:
        self.assertWhole("down")

    def test_silentNetworkLosesAndDuplicatesNothing(self) -> None:
        self.assertWhole("silent")

    def test_bothProtocolsLoseConnectionWithBothNetworks(self) -> None:
        seen = self.play("broken")
        self.assertEqual([one["reason"] for one in seen["ends"]], ["ConnectionLost", "ConnectionLost"])
