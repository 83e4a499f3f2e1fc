"""A failing test that leaves live connections does not make later tests of the process fail."""

from __future__ import annotations

import os
import subprocess
import sys

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support import CHECKOUT
from txrdma.test.support.processes import loopbackAddress


class LeftoverTests(SynchronousTestCase):
    """A separate trial process for L{txrdma.test.support.leftovers}."""

    slowBecause = "it runs trial in a separate process"

    def check(self, server: str, client: str) -> None:
        """Check that only the first of three tests fails."""
        command = [sys.executable, "-m", "twisted.trial", "--temp-directory", self.mktemp(),
                   "txrdma.test.support.leftovers"]  # fmt: skip
        environment = {**os.environ, "PYTHONPATH": str(CHECKOUT), "SERVER": server, "CLIENT": client}
        done = subprocess.run(command, capture_output=True, text=True, timeout=60, env=environment)
        self.assertRegex(done.stdout, r"test_1 \.\.\. +\[FAIL\]")
        for name in ("test_2", "test_3"):
            self.assertRegex(done.stdout, rf"{name} \.\.\. +\[OK\]")

    def test_rsocket(self) -> None:
        """Connections of C{rsocket:}, by shared memory and by RoCE v2."""
        for more in ("", r"\:route=rocev2"):
            here, there = loopbackAddress(), loopbackAddress()
            self.check(
                rf"rsocket:0:device=soft\:{there}{more}", rf"rsocket:{there}:%d:device=soft\:{here}{more}"
            )

    def test_rdma(self) -> None:
        """Connections of C{rdma:}, by shared memory and by RoCE v2."""
        for more in ("", r"\:route=rocev2"):
            here, there = loopbackAddress(), loopbackAddress()
            self.check(rf"rdma:0:device=soft\:{there}{more}", rf"rdma:{there}:%d:device=soft\:{here}{more}")

    def test_smc(self) -> None:
        """Connections of C{smc:}, by shared memory and by RoCE v2."""
        for more in ("", r":device=soft\:route\=rocev2"):
            self.check("smc:0:interface=127.0.0.1" + more, "smc:127.0.0.1:%d" + more)

    def test_btl(self) -> None:
        """Connections of C{btl:}, by shared memory and by RoCE v2."""
        self.check("btl:127.0.0.1:0", "btl:127.0.0.1:%d")
        here, there = loopbackAddress(), loopbackAddress()
        self.check(
            rf"btl:{there}:0:device=soft\:{there}\:route=rocev2",
            rf"btl:{there}:%d:device=soft\:{here}\:route=rocev2",
        )
