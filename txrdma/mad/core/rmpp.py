"""
The reliable multi-packet protocol (RMPP): messages of several segments.

Follows InfiniBand Architecture vol. 1, 13.6. Nothing here reads a clock or a socket. A sender and a receiver
each serve one message; L{txrdma.mad.core.transfers} has those of a port.

Theory of operation. The sender transmits segments up to the end of the window that the last ACK has opened.
Acknowledgements are cumulative, and there are no negative ones: without progress the sender goes back to the
first unacknowledged segment. Any contradiction between headers ends the transfer with an ABORT or a STOP, and
a limit of time, of retries and of length makes every transfer end.

Where the specification leaves a choice:

  - A receiver opens its window to L{WINDOW} segments with its first ACK, and acknowledges whenever half of
    that has arrived, so that a sender need not stop. It retains segments after a gap.
  - A segment beyond the window is dropped, as if it were lost.
  - The sender retransmits after the usual time to an acknowledgement plus the response time in the receiver's
    header, and doubles that time with each attempt.
  - The length in the first segment is a sum of segments with or without the headers of the class: senders
    differ. More data than either sum is inconsistent.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from txrdma.iba.path import lifetimeSeconds
from txrdma.mad.layouts.messages import RMPPHeader, RMPPStatus, RMPPType

WINDOW: Final = 256
MOST_AHEAD: Final = 2 * WINDOW
"""Maximum number of unacknowledged segments, regardless of the peer's window; Linux opens one of 64."""

RESEND_SECONDS: Final = 0.2
"""Seconds until a segment is sent again, while none was acknowledged."""

LEAST_RESEND_SECONDS: Final = 0.05
MOST_RESEND_SECONDS: Final = 2.0
RESENDS: Final = 7

TOTAL_SECONDS: Final = 600.0
"""Maximum duration of a transfer in seconds (IBA 13.6.3.2)."""

LONGEST_MESSAGE: Final = 64 * 1024 * 1024
"""
Maximum length in bytes of a message, which limits the memory that a peer can occupy. For requests of other
nodes it is L{LONGEST_REQUEST<txrdma.mad.core.transfers.LONGEST_REQUEST>}.
"""

_VERSION: Final = 1
_NO_RESPONSE_TIME: Final = 0x1F
_FIRST_ABORT: Final = 118


class RMPPSegment(NamedTuple):
    """Packet to send: its RMPP header, and the data, without the fields of the class between them."""

    header: RMPPHeader
    data: bytes = b""


class TransferEnded(NamedTuple):
    """
    The transfer has failed, by this status.

    @ivar byPeer: True if the peer has ended it by an ABORT or a STOP; otherwise this end has to send one.
    """

    status: RMPPStatus
    byPeer: bool = False


def headerError(header: RMPPHeader) -> TransferEnded | None:
    """Return the error in a packet's header, or the end that it reports (IBA 13.6.2.2); else None."""
    kind, status = header.type, header.status
    if header.version != _VERSION:
        return TransferEnded(RMPPStatus.UNSUPPORTED_VERSION)
    if kind is RMPPType.STOP:
        isLegal = status is RMPPStatus.RESOURCES_EXHAUSTED
        return TransferEnded(status, byPeer=True) if isLegal else TransferEnded(RMPPStatus.ILLEGAL_STATUS)
    if kind is RMPPType.ABORT:
        isLegal = status >= _FIRST_ABORT
        return TransferEnded(status, byPeer=True) if isLegal else TransferEnded(RMPPStatus.ILLEGAL_STATUS)
    if kind is not RMPPType.DATA and kind is not RMPPType.ACK:
        return TransferEnded(RMPPStatus.BAD_TYPE)
    if status is not RMPPStatus.NORMAL:
        return TransferEnded(RMPPStatus.ILLEGAL_STATUS)
    return None


class ResendTimeout:
    """Time to wait for an acknowledgement, adapted to the round trips so far."""

    def __init__(self, firstSeconds: float) -> None:
        self._first = firstSeconds
        self._smooth: float | None = None  # smoothed round trip, as in RFC 6298
        self._spread = 0.0  # its variation
        self._responseSeconds = 0.0
        self._backoff = 1  # doubles with each timeout

    @property
    def seconds(self) -> float:
        """Seconds from sending until segments are sent again."""
        usual = self._first if self._smooth is None else self._smooth + max(4 * self._spread, 0.02)
        usual = max(usual + self._responseSeconds, LEAST_RESEND_SECONDS)
        return min(usual * self._backoff, max(MOST_RESEND_SECONDS, self._first))

    def measured(self, seconds: float) -> None:
        """Update the estimate with the round-trip time of an acknowledgement."""
        if self._smooth is None:
            self._smooth, self._spread = seconds, seconds / 2
        else:
            self._spread += (abs(seconds - self._smooth) - self._spread) / 4
            self._smooth += (seconds - self._smooth) / 8

    def useResponseTime(self, code: int) -> None:
        """Use the response time in a receiver's header (IBA 13.6.2.1, RRespTime)."""
        if code != _NO_RESPONSE_TIME:
            self._responseSeconds = lifetimeSeconds(code)

    def acknowledged(self) -> None:
        """End the backoff: an acknowledgement was received."""
        self._backoff = 1

    def expired(self) -> None:
        """Double the time-out: no acknowledgement was received."""
        self._backoff *= 2


class Sender:
    """
    Sending half of an RMPP transfer.

    @ivar isDone: all segments were acknowledged.
    @ivar acknowledged: number of segments acknowledged so far.
    """

    def __init__(
        self,
        message: bytes,
        room: int,
        overhead: int,
        now: float,
        resendSeconds: float = RESEND_SECONDS,
        window: int = 1,
    ) -> None:
        """
        @param room: bytes of the message in each segment.
        @param overhead: further bytes after the RMPP header of each segment, which lengths include.
        @param window: number of segments to send before the first ACK.
        """
        self._message = message
        self._room = room
        self._overhead = overhead
        self._last = max(1, -(-len(message) // room))  # number of the last segment; the first one is 1
        self.acknowledged = 0
        self._windowEnd = max(1, window)  # last segment that the receiver accepts
        self._next = 1
        self._highest = 0  # newest segment that was sent
        self._timeout = ResendTimeout(resendSeconds)
        self._measuring: tuple[int, float] | None = None  # segment whose round trip is measured, and its time
        self._resendsLeft = RESENDS
        self._resendAt = now + self._timeout.seconds
        self._giveUpAt = now + TOTAL_SECONDS
        self.isDone = False

    def outgoing(self, now: float) -> list[RMPPSegment]:
        """Segments that may be sent now, within the window."""
        segments = []
        while self._next <= min(self._last, self._windowEnd, self.acknowledged + MOST_AHEAD):
            segments.append(self._segment(self._next))
            self._next += 1
        if segments:
            self._resendAt = now + self._timeout.seconds
            sent = self._next - 1
            # One round trip is measured at a time, and only by segments that were never sent before.
            if self._measuring is None and sent > self._highest:
                self._measuring = sent, now
            self._highest = max(self._highest, sent)
        return segments

    def received(self, header: RMPPHeader, now: float) -> TransferEnded | None:
        """Process an ACK, a STOP or an ABORT; return the failure that it reports, if any."""
        ended = headerError(header)
        if ended is not None:
            return ended
        if header.type is not RMPPType.ACK:
            return TransferEnded(RMPPStatus.BAD_TYPE)
        number, end = header.data1, header.data2
        if number > self._highest:
            return TransferEnded(RMPPStatus.SEGMENT_TOO_BIG)  # it acknowledges a segment that was not sent
        if end < number:
            return TransferEnded(RMPPStatus.WINDOW_TOO_SMALL)
        self._timeout.useResponseTime(header.responseTime)
        if number > self.acknowledged:
            self._progressed(number, now)
        # An older ACK may arrive after a newer one: the window never shrinks.
        self._windowEnd = max(self._windowEnd, end)
        self.isDone = self.acknowledged >= self._last
        return None

    def deadline(self) -> float | None:
        """Time at which to call L{expired}; None when everything is acknowledged."""
        return None if self.isDone else min(self._resendAt, self._giveUpAt)

    def expired(self, now: float) -> TransferEnded | None:
        """Resend from the first unacknowledged segment on, or fail."""
        if self.isDone:
            return None
        if now >= self._giveUpAt:
            return TransferEnded(RMPPStatus.TOTAL_TIME_TOO_LONG)
        if now < self._resendAt:
            return None
        if self._resendsLeft == 0:
            return TransferEnded(RMPPStatus.TOO_MANY_RETRIES)
        self._resendsLeft -= 1
        self._timeout.expired()
        self._measuring = None  # a later ACK may be for either copy (Karn's algorithm)
        self._resendAt = now + self._timeout.seconds
        self._next = self.acknowledged + 1
        return None

    def _progressed(self, number: int, now: float) -> None:
        self.acknowledged = number
        self._next = max(self._next, number + 1)
        self._resendsLeft = RESENDS
        if self._measuring is not None and number >= self._measuring[0]:
            self._timeout.measured(now - self._measuring[1])
            self._measuring = None
        self._timeout.acknowledged()
        self._resendAt = now + self._timeout.seconds

    def _segment(self, number: int) -> RMPPSegment:
        begin = (number - 1) * self._room
        data = self._message[begin : begin + self._room]
        isFirst, isLast = number == 1, number == self._last
        length = 0
        if isFirst:
            length = len(self._message) + self._overhead * self._last
        if isLast:
            length = len(data) + self._overhead
        header = RMPPHeader(
            version=_VERSION,
            type=RMPPType.DATA,
            responseTime=_NO_RESPONSE_TIME,
            active=True,
            first=isFirst,
            last=isLast,
            data1=number,
            data2=length,
        )
        return RMPPSegment(header, data)


class RMPPReceiver:
    """
    Receiving half of an RMPP transfer.

    @ivar isDone: the whole message was received.
    @ivar accepted: number of received segments.
    """

    def __init__(self, room: int, overhead: int, window: int = WINDOW, longest: int | None = None) -> None:
        """
        @param room: bytes of the message in each segment.
        @param overhead: further bytes after the RMPP header of each segment.
        @param longest: maximum length of a message in bytes; L{LONGEST_MESSAGE} by default.
        """
        self._room = room
        self._overhead = overhead
        self._window = window
        self._mostSegments = (LONGEST_MESSAGE if longest is None else longest) // room
        self._expected = 1  # first missing segment
        self._windowEnd = window
        self._acknowledged = 0
        self._parts: list[bytes] = []  # data of the segments before it
        self._behindGap: dict[int, bytes] = {}  # data of segments after it, by number
        self._last: int | None = None  # number of the last segment, when it has arrived
        self._lastBound: int | None = None  # upper bound of that number, by the first segment's length
        self._firstLength = 0
        self._answers: list[RMPPHeader] = []
        self.isDone = False
        self.accepted = 0

    def take(self) -> bytes:
        """Return the message, and release it."""
        parts, self._parts = self._parts, []
        return b"".join(parts)

    def received(self, header: RMPPHeader, data: bytes) -> TransferEnded | None:
        """
        Process a DATA segment, a STOP or an ABORT.

        @param data: bytes after the header and the fields of the class.
        @return: the failure of the transfer, if any; unless the peer has ended it, L{outgoing} then has
            an ABORT or a STOP for the peer.
        """
        ended = headerError(header)
        if ended is None and header.type is not RMPPType.DATA:
            ended = TransferEnded(RMPPStatus.BAD_TYPE)
        number = header.data1
        if ended is None and (header.first != (number == 1) or number == 0):
            ended = TransferEnded(RMPPStatus.INCONSISTENT_FIRST)
        if ended is not None:
            return self._refuse(ended)
        if number < self._expected or self.isDone:  # a duplicate: the ACK was lost
            if not self.isDone and self._differs(number, header, data):
                return self._refuse(TransferEnded(RMPPStatus.INCONSISTENT_LENGTH))
            self._acknowledge()
            return None
        length = self._room
        if header.last:
            length = header.data2 - self._overhead
        elif header.first and header.data2:
            # Rounded up, and larger still if it includes headers: an upper bound of the number of segments.
            self._lastBound = -(-header.data2 // self._room)
        if header.first:
            self._firstLength = header.data2
        known = self._behindGap.get(number)
        differs = known is not None and known != data[:length]  # a duplicate with other contents
        if differs or not 0 <= length <= self._room or self._contradicts(number, header.last):
            return self._refuse(TransferEnded(RMPPStatus.INCONSISTENT_LENGTH))
        # Beyond the window, or truncated in transit: the sender will send it again.
        if number > self._windowEnd or len(data) < length:
            return None
        if number > self._mostSegments:
            return self._refuse(TransferEnded(RMPPStatus.RESOURCES_EXHAUSTED))
        if header.last:
            self._last = number
        self._store(number, bytes(data[:length]))
        return None

    def outgoing(self) -> Sequence[RMPPHeader]:
        """Return the ACKs, the STOP or the ABORT to send."""
        answers, self._answers = self._answers, []
        return answers

    def _differs(self, number: int, header: RMPPHeader, data: bytes) -> bool:
        """
        True if a duplicate segment has other contents.

        This happens if a peer sends another response to the same request: the two must not be mixed.
        """
        known = self._parts[number - 1]
        return (
            header.last or known != data[: len(known)] or header.first and header.data2 != self._firstLength
        )

    def _contradicts(self, number: int, isLast: bool) -> bool:
        """True if a segment number contradicts those of other segments (IBA 13.6.2.1)."""
        if isLast:
            return self._last not in (None, number) or max(self._behindGap, default=0) > number
        if self._last is not None and number >= self._last:
            return True
        return self._lastBound is not None and number >= self._lastBound

    def _store(self, number: int, data: bytes) -> None:
        """Store the data of a segment, and acknowledge if it is time for that."""
        if number in self._behindGap:
            return
        self.accepted += 1
        if number != self._expected:
            self._behindGap[number] = data
            return
        self._parts.append(data)
        self._expected += 1
        hadGap = bool(self._behindGap)
        while self._behindGap and self._expected in self._behindGap:
            self._parts.append(self._behindGap.pop(self._expected))
            self._expected += 1
        self.isDone = self._last is not None and self._expected > self._last
        arrived = self._expected - 1
        # Half a window at a time, so that the next ACK arrives before the sender has to stop. A gap that has
        # closed is reported at once, and so is the first segment: the sender knows no window before.
        isFull = arrived >= self._windowEnd or arrived - self._acknowledged >= self._window // 2
        if self.isDone or hadGap or isFull or self._acknowledged == 0:
            self._acknowledge()

    def _acknowledge(self) -> None:
        """Acknowledge all segments before the first missing one, and open the window behind them."""
        last = self._acknowledged = self._expected - 1
        self._windowEnd = max(self._windowEnd, last + self._window)
        self._answers.append(controlHeader(RMPPType.ACK, RMPPStatus.NORMAL, last, self._windowEnd))

    def _refuse(self, ended: TransferEnded) -> TransferEnded:
        if not ended.byPeer:
            self._answers.append(abortHeader(ended.status))
        return ended


def abortHeader(status: RMPPStatus) -> RMPPHeader:
    """The header that ends a message, in both directions: a STOP for lack of resources, else an ABORT."""
    isStop = status is RMPPStatus.RESOURCES_EXHAUSTED
    return controlHeader(RMPPType.STOP if isStop else RMPPType.ABORT, status, 0, 0)


def controlHeader(kind: RMPPType, status: RMPPStatus, data1: int, data2: int) -> RMPPHeader:
    """RMPP header of a packet without data."""
    return RMPPHeader(
        version=_VERSION,
        type=kind,
        responseTime=_NO_RESPONSE_TIME,
        active=True,
        status=status,
        data1=data1,
        data2=data2,
    )
