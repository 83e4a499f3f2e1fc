"""Each function of streams and of RDMA raises once, at its first, second and last call."""

from __future__ import annotations

from txrdma.test.unit.btl import test_interrupted_rdma, test_interrupted_streams


class StreamTests(test_interrupted_streams.InterruptionTests):
    STRIDE = 1


class RDMATests(test_interrupted_rdma.InterruptionTests):
    STRIDE = 1


class StagingTests(test_interrupted_rdma.StagingTests):
    STRIDE = 1


class CoreTests(test_interrupted_rdma.CoreTests):
    STRIDE = 1
