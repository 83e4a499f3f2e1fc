"""
Alternate paths between two processes in separate network namespaces: see L{txrdma.test.support.cm.cutting}.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import txrdma
from txrdma.test.support.namespaces import unshared

CHECKOUT = Path(txrdma.__file__).parent.parent
BEFORE = unshared()


class CuttingTests(SynchronousTestCase):
    """
    Real processes, sockets and networks, two of which silently drop all packets, one after the other.

    @ivar mebibytes: amount of data.
    """

    mebibytes = 8
    slowBecause = "queue pairs migrate after all retries, and the data passes two processes"

    skip = None if BEFORE else "veth pairs in a network namespace are wanted"

    def test_twoCutsLoseNoData(self) -> None:
        """The network in use is cut twice, and all bytes arrive, once and in order."""
        ran = subprocess.run(
            [*BEFORE, sys.executable, "-m", "txrdma.test.support.cm.cutting", str(self.mebibytes)],
            stdout=subprocess.PIPE,
            text=True,
            timeout=60 + 10 * self.mebibytes,
            cwd=CHECKOUT,
            env={**os.environ, "PYTHONPATH": str(CHECKOUT)},
        )
        self.assertEqual(ran.returncode, 0)
        seen = json.loads(ran.stdout)
        self.assertEqual(len(seen["cuts"]), 2)
        client, server = seen["ends"]
        self.assertEqual(client, server)
        length, _hash, migrations, end = client
        self.assertGreaterEqual(int(length), self.mebibytes << 20)
        self.assertGreaterEqual(int(migrations), 2)  # on a busy machine queue pairs may migrate by themselves
        self.assertEqual(end, "ConnectionDone")
