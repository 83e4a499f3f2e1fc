"""
A measurement of latency with known samples, for tests of what C{txrdma pingpong} prints.
"""

from __future__ import annotations

from txrdma.pingpong.measurement import Measurement
from txrdma.pingpong.plan import Test
from txrdma.pingpong.statistics import Samples


def latency() -> Measurement:
    """One of 1000 messages, from 1 to 1000 microseconds."""
    return Measurement(
        Test(check=True), 1000, 10**9, Samples(range(1000, 1_001_000, 1000)), route="rocev2", wrong=2
    )
