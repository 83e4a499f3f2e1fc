"""Each function of streams and of RDMA raises once, at its first, second and last call."""

from __future__ import annotations

from txrdma.test.unit.btl import test_interrupted, test_interrupted_streams


class StreamTests(test_interrupted_streams.InterruptionTests):
    STRIDE = 1


class RDMATests(test_interrupted.RDMATests):
    STRIDE = 1


class StagingTests(test_interrupted.StagingTests):
    STRIDE = 1


class CoreTests(test_interrupted.CoreTests):
    STRIDE = 1
