"""Random faults in larger fabrics and for longer than in the unit tests."""

from __future__ import annotations

from txrdma.test.unit.monitor import test_demo, test_poller


class LongPollerTests(test_poller.RandomFaultTests):
    """An hour of faults on a fat tree of 16 hosts."""

    hosts = 16
    faults = 6


class LongDemoTests(test_demo.RandomFaultTests):
    """Six minutes of the demonstration's faults, on a fat tree of 32 hosts."""

    hosts = 32
    seconds = 360.0
