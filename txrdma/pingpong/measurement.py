"""
What one test has shown.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from txrdma.pingpong.plan import Test
from txrdma.pingpong.statistics import Samples


@dataclass(slots=True)
class Measurement:
    """
    What one test has shown, at the end that asked.

    @ivar messages: that counted, in both directions where there are two.
    @ivar nanoseconds: from the first one's beginning to the last one's end.
    @ivar samples: latencies; half of a round trip, but all of it for reads and atomics.
    @ivar peak: bytes per second in the best hundredth of a second; the average where it took less than three.
    @ivar lost: datagrams that did not arrive, or were not answered.
    @ivar wrong: messages whose contents were not what was sent.
    @ivar interrupted: it was ended before its time.
    @ivar route: what carried it, as C{IQueuePair.route} says.
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
        """Messages per second."""
        return self.messages * 1e9 / self.nanoseconds if self.nanoseconds else 0.0

    @property
    def bandwidth(self) -> float:
        """Bytes per second."""
        return self.messageRate * self.test.size
