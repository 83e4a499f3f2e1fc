"""Each function of queue pairs raises once: at its first five calls, and at the last one."""

from __future__ import annotations

from txrdma.test.unit.soft import test_interrupted


class NetworkTests(test_interrupted.InterruptionTests):
    STRIDE = 1


class DatagramTests(test_interrupted.DatagramTests):
    STRIDE = 1


class SharedMemoryTests(test_interrupted.SharedMemoryTests):
    STRIDE = 1


class SleepingTests(test_interrupted.SleepingTests):
    STRIDE = 1


class SharedDatagramTests(test_interrupted.SharedDatagramTests):
    STRIDE = 1


class ReaderTests(test_interrupted.ReaderTests):
    STRIDE = 1


class PollingReaderTests(test_interrupted.PollingReaderTests):
    STRIDE = 1
