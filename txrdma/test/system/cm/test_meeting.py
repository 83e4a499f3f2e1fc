"""
Peer-to-peer connections between processes at one address.
"""

from __future__ import annotations

import subprocess

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.processes import firstLine, loopbackAddress, started


class MeetingTests(SynchronousTestCase):
    """Processes that connect to each other; see L{txrdma.test.support.cm.meeting}."""

    slowBecause = "up to four processes start"

    def setUp(self) -> None:
        self.address = loopbackAddress()

    def start(self, name: str, keys: str = "") -> subprocess.Popen[str]:
        """Start a process that connects to the address."""
        text = f"rdma:{self.address}:7471:peer=yes{keys}"
        return started(self, "-m", "txrdma.test.support.cm.meeting", text, name, stdin=subprocess.PIPE)

    def test_oneAddress(self) -> None:
        """Two processes get one connection; two others get another one meanwhile, at the same port."""
        pairs = []
        for names in (("a", "b"), ("c", "d")):
            pair = [self.start(name) for name in names]
            self.assertEqual([firstLine(each) for each in pair], [f"met {name}" for name in names[::-1]])
            pairs.append(pair)
        for first, second in pairs:
            output, _ = first.communicate("end\n", timeout=60)
            self.assertEqual((output, first.returncode), ("ConnectionDone\n", 0))
            self.assertEqual((firstLine(second), second.wait(60)), ("ConnectionDone", 0))

    def test_routes(self) -> None:
        """The same without shared memory."""
        pair = [self.start(name, f":device=soft\\:{self.address}\\:route=rocev2") for name in "ab"]
        self.assertEqual([firstLine(each) for each in pair], ["met b", "met a"])
