"""
Alternate paths between two processes in separate network namespaces: see L{txrdma.test.support.cm.cutting}.
"""

from __future__ import annotations

import json

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.namespaces import runAlone, unshared


class CuttingTests(SynchronousTestCase):
    """
    Real processes, sockets and networks, two of which silently drop all packets, one after the other.

    @ivar mebibytes: amount of data.
    """

    mebibytes = 8
    slowBecause = "queue pairs migrate after all retries, and the data passes two processes"

    skip = None if unshared() else "veth pairs in a network namespace are wanted"

    def test_twoCutsLoseNoData(self) -> None:
        """The network in use is cut twice, and all bytes arrive, once and in order."""
        seconds = 60 + 10 * self.mebibytes
        ran = runAlone("txrdma.test.support.cm.cutting", str(self.mebibytes), seconds=seconds)
        self.assertEqual(ran.returncode, 0)
        seen = json.loads(ran.stdout)
        self.assertEqual(len(seen["cuts"]), 2)
        client, server = seen["ends"]
        self.assertEqual(client, server)
        length, _hash, migrations, end = client
        self.assertGreaterEqual(int(length), self.mebibytes << 20)
        self.assertGreaterEqual(int(migrations), 2)  # on a busy machine queue pairs may migrate by themselves
        self.assertEqual(end, "ConnectionDone")
