"""
When a stream over a message connection ends for its protocol, and with which reason, without I/O.

Theory of operation. Three states change independently:

    - of the connection: OPEN; LEAVING while the message connection is being closed, because both ends have
      closed the stream, or it was aborted; then CLOSED, if the stream has ended in order, or LOST
    - of the protocol: it READS, has PAUSED, or discards received bytes: it is CLOSING, also because it has
      aborted or raised, or was DISMISSED: closed at the peer's close, since it does not support half-closes
    - of the delivery: WHOLE; or CUT, if the peer does not receive all written bytes

What is written after the peer has closed, or after the end, is dropped. Over TCP the kernel accepts one send
of it. So the delivery stays WHOLE if a protocol closes with that write, and it is not longer than one send,
unless the connection is LOST. Otherwise the delivery is CUT.

After the end of the connection, C{ENDINGS} contains the reason of C{connectionLost}, as over TCP. A protocol
that READS first gets all received bytes and, if the peer has closed in order, the end of input. One that has
PAUSED may still need the bytes, or the connection: it is not notified as long as it writes nothing. One that
was DISMISSED ends in order, although what it had written may be lost. The exception of an abort, and one that
the protocol has raised, replace these reasons.
"""

from __future__ import annotations

from typing import Final, Literal

from txrdma.streams.core import StreamCore

Connection = Literal["OPEN", "LEAVING", "CLOSED", "LOST"]
OPEN: Final = "OPEN"
LEAVING: Final = "LEAVING"
CLOSED: Final = "CLOSED"
LOST: Final = "LOST"

Reader = Literal["READS", "PAUSED", "CLOSING", "DISMISSED"]
READS: Final = "READS"
PAUSED: Final = "PAUSED"
CLOSING: Final = "CLOSING"
DISMISSED: Final = "DISMISSED"

Delivery = Literal["WHOLE", "CUT"]
WHOLE: Final = "WHOLE"
CUT: Final = "CUT"

Due = Literal["leave", "readConnectionLost", "ConnectionDone", "ConnectionLost"]
LEAVE: Final = "leave"
READ_END: Final = "readConnectionLost"
_D: Final = "ConnectionDone"
_L: Final = "ConnectionLost"

ENDINGS: Final[dict[tuple[Connection, Delivery], dict[Reader, Due]]] = {
    (CLOSED, WHOLE): {CLOSING: _D, DISMISSED: _D},
    (CLOSED, CUT): {READS: _L, PAUSED: _L, CLOSING: _L, DISMISSED: _D},
    (LOST, WHOLE): {READS: _L, CLOSING: _L, DISMISSED: _L},
    (LOST, CUT): {READS: _L, PAUSED: _L, CLOSING: _L, DISMISSED: _L},
}
"""The reason, by the states of connection, delivery and protocol; without an entry, no end is reported."""


class StreamLife:
    """
    The states of one stream.

    @ivar connection: the state of the connection.
    @ivar delivery: the state of the delivery of written bytes.
    @ivar isDismissed: whether the protocol was closed at the peer's close.
    """

    __slots__ = ("_isReadEndDue", "_late", "_sendLimit", "connection", "delivery", "isDismissed")

    def __init__(self, sendLimit: int) -> None:
        """@param sendLimit: maximum number of bytes of one send over TCP."""
        self.connection: Connection = OPEN
        self.delivery: Delivery = WHOLE
        self.isDismissed = False
        self._isReadEndDue = True
        self._late, self._sendLimit = 0, sendLimit

    def writtenLate(self, length: int) -> None:
        """Bytes were written that can't be sent: L{next} decides whether they are a loss."""
        self._late += length

    def ended(self, core: StreamCore, reader: Reader, isInOrder: bool) -> None:
        """
        Handle the end of the message connection.

        @param isInOrder: it was closed, and did not fail.
        """
        self.connection = LOST  # also if one of these raises
        isOver, isCloseDelivered = core.isOver, core.isCloseDelivered
        isDelivered = core.isDelivered
        if core.wasCut or not (isDelivered or (isCloseDelivered and not isOver)):
            self.delivery = CUT
        hasClosed = reader in (CLOSING, DISMISSED) and isDelivered and not core.isWritable
        isOrderly = isOver or isCloseDelivered or (isInOrder and hasClosed)
        self.connection = CLOSED if isOrderly else LOST

    def next(self, core: StreamCore | None, reader: Reader, isUnread: bool, isOpen: bool) -> Due | None:
        """
        Take what is due: to close the message connection, to report the end of input, or to end the stream.

        @param core: None after the end of the message connection.
        @param isUnread: whether there are received bytes to deliver.
        @param isOpen: whether the protocol may write more.
        """
        if core is not None:
            if self.connection is OPEN and (core.isOver or core.isCloseDelivered):
                self.connection = LEAVING
                return LEAVE
            isReadable = core.isReadable
        else:
            isReadable = self.connection is LOST
        if reader is READS:
            if isUnread:
                return None
            if self._isReadEndDue and not isReadable:
                self._isReadEndDue = False
                return READ_END
        if self._late and (isOpen or self._late > self._sendLimit or self.connection is LOST):
            self.delivery = CUT
        self._late = 0
        return ENDINGS.get((self.connection, self.delivery), {}).get(reader)
