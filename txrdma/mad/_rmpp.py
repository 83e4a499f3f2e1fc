"""
The reliable multi-packet protocol: long messages in pieces.

Follows InfiniBand Architecture vol. 1, 13.6. Nothing here reads a clock or a socket. A sender and a receiver
each serve one message; L{txrdma.mad.agent} has one for each transaction.

Where the specification leaves a choice:

  - A receiver opens its window to L{WINDOW} segments with its first ACK, and acknowledges whenever half of
    that has come, so that a sender need not stop.
  - The length of the last segment is believed, that in the first one is not: some senders leave it 0.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, NamedTuple

from txrdma.mad.messages import RMPPHeader, RMPPStatus, RMPPType

WINDOW: Final = 64
RESEND_SECONDS: Final = 0.2
RESENDS: Final = 7

LONGEST_MESSAGE: Final = 64 * 1024 * 1024
"""Bytes; a peer could otherwise fill our memory."""

_NO_RESPONSE_TIME: Final = 0x1F


class Segment(NamedTuple):
    """A packet to send: its header, and what follows that, without the fields of the class."""

    header: RMPPHeader
    data: bytes = b""


class Ended(NamedTuple):
    """The message did not get through: what an ABORT or a STOP said, or what we say in one."""

    status: RMPPStatus


class Sender:
    """
    The sending half.

    @ivar isDone: everything was acknowledged.
    """

    def __init__(
        self, message: bytes, room: int, overhead: int, now: float, resendSeconds: float = RESEND_SECONDS
    ) -> None:
        """
        @param room: bytes of the message in each segment.
        @param overhead: bytes behind the RMPP header that each segment has besides and that lengths include.
        """
        self._message = message
        self._room = room
        self._overhead = overhead
        self._last = max(1, -(-len(message) // room))
        self._acknowledged = 0
        self._windowEnd = 1
        self._next = 1
        self._resendSeconds = resendSeconds
        self._resendsLeft = RESENDS
        self._resendAt = now + resendSeconds
        self.isDone = False

    def outgoing(self, now: float) -> list[Segment]:
        """What may go now."""
        segments = []
        while self._next <= min(self._last, self._windowEnd):
            segments.append(self._segment(self._next))
            self._next += 1
        if segments:
            self._resendAt = now + self._resendSeconds
        return segments

    def received(self, header: RMPPHeader, now: float) -> Ended | None:
        """An ACK, a STOP or an ABORT."""
        if header.type in (RMPPType.STOP, RMPPType.ABORT):
            return Ended(header.status)
        if header.type is not RMPPType.ACK:
            return Ended(RMPPStatus.BAD_TYPE)
        number, end = header.data1, header.data2
        if number > self._next - 1:
            return Ended(RMPPStatus.SEGMENT_TOO_BIG)
        if end < number:
            return Ended(RMPPStatus.WINDOW_TOO_SMALL)
        if number > self._acknowledged:
            self._acknowledged = number
            self._resendsLeft = RESENDS
            self._resendAt = now + self._resendSeconds
        self._windowEnd = max(self._windowEnd, end)
        self.isDone = self._acknowledged >= self._last
        return None

    def deadline(self) -> float | None:
        """When to call L{expired}."""
        return None if self.isDone else self._resendAt

    def expired(self, now: float) -> Ended | None:
        """Nobody has acknowledged: send again from there on, or give up."""
        if self.isDone or now < self._resendAt:
            return None
        if self._resendsLeft == 0:
            return Ended(RMPPStatus.TOO_MANY_RETRIES)
        self._resendsLeft -= 1
        self._resendAt = now + self._resendSeconds
        self._next = self._acknowledged + 1
        return None

    def _segment(self, number: int) -> Segment:
        begin = (number - 1) * self._room
        data = self._message[begin : begin + self._room]
        isFirst, isLast = number == 1, number == self._last
        length = 0
        if isFirst:
            length = len(self._message) + self._overhead * self._last
        if isLast:
            length = len(data) + self._overhead
        header = RMPPHeader(
            version=1,
            type=RMPPType.DATA,
            responseTime=_NO_RESPONSE_TIME,
            active=True,
            first=isFirst,
            last=isLast,
            data1=number,
            data2=length,
        )
        return Segment(header, data)


class Receiver:
    """
    The receiving half.

    @ivar message: all of it; None until it is complete.
    """

    def __init__(self, room: int, overhead: int, window: int = WINDOW) -> None:
        """
        @param room: bytes of the message in each segment.
        @param overhead: bytes behind the RMPP header that each segment has besides.
        """
        self._room = room
        self._overhead = overhead
        self._window = window
        self._expected = 1
        self._windowEnd = 1
        self._acknowledged = 0
        self._parts: list[bytes] = []
        self._answers: list[RMPPHeader] = []
        self.message: bytes | None = None

    @property
    def window(self) -> int:
        """How many segments it takes at once."""
        return self._window

    def received(self, header: RMPPHeader, data: bytes) -> Ended | None:
        """
        A DATA segment, a STOP or an ABORT.

        @param data: what follows the header and the fields of the class.
        @return: why it has failed; then an ABORT is in L{outgoing}, unless the peer said so.
        """
        if header.type in (RMPPType.STOP, RMPPType.ABORT):
            return Ended(header.status)
        if header.type is not RMPPType.DATA:
            return self._abort(RMPPStatus.BAD_TYPE)
        number = header.data1
        if header.first != (number == 1) or number == 0:
            return self._abort(RMPPStatus.INCONSISTENT_FIRST)
        if number != self._expected or self.message is not None:
            return self._outOfOrder(number)
        length = self._room
        if header.last:
            length = header.data2 - self._overhead
            if not 0 <= length <= min(self._room, len(data)):
                return self._abort(RMPPStatus.INCONSISTENT_LENGTH)
        if number * self._room > LONGEST_MESSAGE:
            return self._abort(RMPPStatus.RESOURCES_EXHAUSTED)
        self._parts.append(bytes(data[:length]))
        self._expected += 1
        if header.last:
            self.message = b"".join(self._parts)
            self._parts.clear()
        if header.last or number >= self._windowEnd or number - self._acknowledged >= self._window // 2:
            self._acknowledge()
        return None

    def outgoing(self) -> Sequence[RMPPHeader]:
        """The ACKs or the ABORT to send."""
        answers, self._answers = self._answers, []
        return answers

    def _outOfOrder(self, number: int) -> Ended | None:
        """One that was here before is acknowledged again; one after a gap is not: the sender comes again."""
        if number < self._expected:
            self._acknowledge()
            return None
        if number > max(self._windowEnd, self._expected):
            return self._abort(RMPPStatus.SEGMENT_TOO_BIG)
        return None

    def _acknowledge(self) -> None:
        last = self._acknowledged = self._expected - 1
        self._windowEnd = max(self._windowEnd, last + self._window)
        self._answers.append(_said(RMPPType.ACK, RMPPStatus.NORMAL, last, self._windowEnd))

    def _abort(self, status: RMPPStatus) -> Ended:
        self._answers.append(abort(status))
        return Ended(status)


def abort(status: RMPPStatus) -> RMPPHeader:
    """The header that ends a message, in both directions."""
    return _said(RMPPType.ABORT, status, 0, 0)


def _said(kind: RMPPType, status: RMPPStatus, data1: int, data2: int) -> RMPPHeader:
    return RMPPHeader(
        version=1,
        type=kind,
        responseTime=_NO_RESPONSE_TIME,
        active=True,
        status=status,
        data1=data1,
        data2=data2,
    )
