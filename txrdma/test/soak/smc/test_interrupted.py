"""Each function of SMC-R connections raises once, at its first, second and last call."""

from __future__ import annotations

from txrdma.test.integration.smc import test_interrupted


class NetworkTests(test_interrupted.InterruptionTests):
    STRIDE = 1


class PollingTests(test_interrupted.PollingTests):
    STRIDE = 1


class SharedMemoryTests(test_interrupted.SharedMemoryTests):
    STRIDE = 1


class FailoverTests(test_interrupted.FailoverTests):
    STRIDE = 1
