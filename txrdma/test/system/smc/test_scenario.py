"""
Simulated SMC connections are the same in every process.
"""

from __future__ import annotations

import sys

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.processes import printed
from txrdma.testing.smc.plans import drawStreams
from txrdma.testing.smc.randomprotocols import Deliberate
from txrdma.testing.smc.scenario import playStreams


class RepetitionTests(SynchronousTestCase):
    """A plan that is simulated twice."""

    slowBecause = "starts interpreters, which import the package"

    def test_planHasSameResultInOtherProcess(self) -> None:
        program = (
            f"import sys; sys.path[:] = {sys.path!r}; from txrdma.testing.smc.scenario import playStreams;"
            "from txrdma.testing.smc.plans import drawStreams;"
            "from twisted.logger import globalLogBeginner;"
            "globalLogBeginner.beginLoggingTo([], redirectStandardIO=False);"  # exceptions of the plans
            "print([playStreams(drawStreams(seed)).digest for seed in range(3)])"
        )
        done = printed(program, PYTHONHASHSEED="1")
        digests = [playStreams(drawStreams(seed)).digest for seed in range(3)]
        self.flushLoggedErrors(Deliberate)
        self.assertEqual((done.stdout, done.stderr), (f"{digests}\n", ""))
