"""Result of one test."""

from __future__ import annotations

from dataclasses import dataclass, field

from txrdma.pingpong.plan import Test
from txrdma.pingpong.statistics import Samples


@dataclass(slots=True)
class Measurement:
    """
    Result of one test.

    @ivar messages: number of measured messages, in a bidirectional test in both directions.
    @ivar nanoseconds: time from the start of the first message to the end of the last one.
    @ivar samples: latencies: half of the round trip, or the whole round trip of reads and atomics.
    @ivar peak: bytes per second in the best interval of 10 ms; the average of less than three intervals.
    @ivar lost: number of datagrams that were lost or not answered.
    @ivar wrong: number of messages with wrong contents.
    @ivar interrupted: whether the test was ended early.
    @ivar route: route of the queue pair, as in C{IQueuePair.route}.
    """

    test: Test
    messages: int = 0
    nanoseconds: int = 0
    samples: Samples = field(default_factory=Samples)
    peak: float = 0.0
    lost: int = 0
    wrong: int = 0
    interrupted: bool = False
    route: str = ""

    @property
    def messageRate(self) -> float:
        """Message rate in messages per second."""
        return self.messages * 1e9 / self.nanoseconds if self.nanoseconds else 0.0

    @property
    def bandwidth(self) -> float:
        """Bandwidth in bytes per second."""
        return self.messageRate * self.test.size
