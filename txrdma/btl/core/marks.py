"""
Explicit congestion notification on one path: a router marks datagrams before its queue overflows.

Theory of operation. The driver sends the datagrams of the data channel with ECT(0) in their IP headers
(RFC 3168, 5), and passes the codepoint of each received one to the module. An end counts the datagrams that
arrived with ECT(0) or CE, and those with CE. Its acknowledgements report both numbers modulo 65536, so that a
lost one loses no information (RFC 9000, 13.4.1). An increase of the second number is congestion, to which
L{txrdma.btl.core.congestion} reacts.

RoCE has notifications of its own: adapters answer CE with a congestion notification packet (annex A17) and
slow a queue pair down in hardware. Verbs do not report these packets. Counts in acknowledgements work on all
devices, survive losses, and are attributed to a path and a round.

The counts are validated (RFC 9000, 13.4.2). A path can clear the codepoint, and a peer of an older version
counts nothing: then the first number increases by less than the acknowledged segments. A path that marks all
of the first datagrams marks regardless of congestion. One that drops them all only lets timers expire. In
these cases datagrams are sent without ECT(0) from then on, and only losses count. A peer can conceal marks,
as it can acknowledge segments that have not arrived.
"""

from __future__ import annotations

from typing import Final

NOT_ECT: Final = 0
"""Codepoint of datagrams whose sender does not react to marks."""

ECT: Final = 2
"""ECT(0), the codepoint of datagrams whose sender reacts to marks."""

CE: Final = 3
"""Codepoint of marked datagrams: congestion experienced."""

FIRST_DATAGRAMS: Final = 10
"""Datagrams of which at least one must arrive without a mark (RFC 9000, A.4)."""

MOST_FAILURES: Final = 3
"""
Consecutive invalid counts, or timeouts before the first count, after which ECT(0) is not used. A single
invalid count proves nothing, because acknowledgements overtake each other.
"""

_COUNT: Final = 0xFFFF
_OLD: Final = 0x8000


class Marks:
    """
    The marks of datagrams in both directions of a path.

    @ivar isUsed: whether datagrams are sent with ECT(0).
    @ivar hasFailed: whether marking has failed, which is still to be reported to the driver.
    @ivar arrived: segments, sent once, that were acknowledged since the last call of L{validate}.
    @ivar received: datagrams that have arrived from the peer with ECT(0) or CE; C{marked}: with CE; both
        modulo 65536.
    """

    __slots__ = (
        *("_echoedMarked", "_echoedReceived", "_failures", "_hasUnmarked", "_newlyReceived"),
        *("arrived", "hasFailed", "isUsed", "marked", "received"),
    )

    def __init__(self) -> None:
        self.isUsed, self.hasFailed = True, False
        self.arrived = self.received = self.marked = 0
        self._echoedReceived = self._echoedMarked = 0  # the peer's latest counts
        self._newlyReceived = 0  # increase of the first one by the last acknowledgement
        self._failures = 0  # consecutive failed validations
        self._hasUnmarked = False  # whether the peer has received a datagram without a mark

    def count(self, codepoint: int) -> None:
        """Count a received datagram. C{codepoint} is the ECN field of its IP header."""
        if codepoint == CE:
            self.marked = (self.marked + 1) & _COUNT
        if codepoint >= ECT:
            self.received = (self.received + 1) & _COUNT

    def echoed(self, received: int, marked: int) -> bool:
        """
        Process the counts of an acknowledgement. Return whether the peer reports new marks.

        If the acknowledgement has acknowledged segments for the first time, call L{validate} next.
        """
        self._newlyReceived = (received - self._echoedReceived) & _COUNT
        marks = (marked - self._echoedMarked) & _COUNT
        if not self.isUsed or self._newlyReceived >= _OLD:  # modulo 65536: the acknowledgement is old
            return False
        if marks > self._newlyReceived:
            self._countFailure()
            return False
        self._echoedReceived, self._echoedMarked = received, marked
        self._hasUnmarked = self._hasUnmarked or marks < self._newlyReceived
        if not self._hasUnmarked and received >= FIRST_DATAGRAMS:
            self._disable()
        return marks > 0 and self.isUsed

    def validate(self) -> None:
        """Validate the counts: each acknowledged segment must have been received with ECT(0) or CE."""
        isComparable, missing = self.arrived < _OLD, self.arrived - self._newlyReceived
        self.arrived = 0
        if not isComparable or missing <= 0:
            self._failures = 0
        else:
            self._countFailure()

    def timedOut(self) -> None:
        """Process a timeout: no acknowledgement of a datagram has arrived in time."""
        if not self._echoedReceived and not self._hasUnmarked:
            self._countFailure()

    def _countFailure(self) -> None:
        self._failures += 1
        if self._failures >= MOST_FAILURES:
            self._disable()

    def _disable(self) -> None:
        if self.isUsed:
            self.isUsed, self.hasFailed = False, True
