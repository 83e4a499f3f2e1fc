"""The bytes of a stream in both directions, as messages in order: data, the end of writing, and the close."""

from __future__ import annotations

from collections import deque
from typing import Final

from txrdma.error import PeerViolation

SHUTDOWN: Final = 1
"""Immediate data of the message that ends writing."""

DISCONNECT: Final = 2
"""Immediate data of the message that closes the stream in both directions."""

LONGEST_PIECE: Final = 1 << 16
"""Largest number of bytes of a message with data; shorter writes are joined."""


class ByteStream:
    """
    The bytes of a stream: see L{StreamCore<txrdma.streams.core.StreamCore>}.

    @ivar isFull: the transport has paused this end.
    @ivar unacknowledged: number of sent messages that are not acknowledged.
    @ivar hasSentClose: this end has sent L{DISCONNECT}.
    """

    __slots__ = (
        *(
            "backlog",
            "_read",
            "_unsent",
            "_wanted",
            "unacknowledged",
            "isCloseDelivered",
            "hasSentClose",
            "isFull",
            "isOver",
        ),
        *("isReadable", "isWritable", "unread", "wasCut"),
    )

    def __init__(self) -> None:
        self.isReadable = self.isWritable = True
        self.isOver = self.wasCut = self.isCloseDelivered = self.hasSentClose = self.isFull = False
        self.unacknowledged = self.unread = 0
        self._unsent: deque[bytes | memoryview] = deque()  # a view is the rest of a long write
        self.backlog = 0
        self._read: list[bytes] = []
        self._wanted: int | None = None

    # Requests of the application

    @property
    def isDelivered(self) -> bool:
        """Whether all written bytes have arrived."""
        return not self.backlog and not self.unacknowledged

    def write(self, data: bytes) -> int:
        """Queue bytes; drop them if the write side is closed. Return the backlog."""
        if self.isWritable and not self.isOver:
            self._unsent.append(data)
            self.backlog += len(data)
        return self.backlog

    def drop(self) -> None:
        """Drop bytes that are not posted."""
        self._unsent.clear()
        self.backlog = 0

    def read(self) -> bytes:
        """Take all received bytes."""
        data, self._read, self.unread = b"".join(self._read), [], 0
        return data

    def closeWriting(self) -> None:
        """Close the write side, after all written bytes."""
        if self.isWritable:
            self.isWritable = False
            self._wanted = SHUTDOWN if self.isReadable else DISCONNECT

    def close(self) -> None:
        """Close both sides, after all written bytes."""
        self.isWritable = False
        self._wanted = DISCONNECT

    # Calls of the connection

    def arrived(self, data: bytes, immediate: int | None) -> None:
        """
        Handle a message of the peer.

        @raise PeerViolation: its kind is unknown, or it follows the end.
        """
        if immediate is None:
            if not self.isReadable:
                raise PeerViolation("the peer has sent data after its end")
            self._read.append(data)
            self.unread += len(data)
        elif immediate == SHUTDOWN:
            self.isReadable = False
            if self._wanted is SHUTDOWN:
                self._wanted = DISCONNECT
            elif not self.isWritable and self._wanted is None:
                self.isOver = True
        elif immediate == DISCONNECT:
            self.wasCut = self.wasCut or self.backlog > 0  # what is sent may still be acknowledged
            self.drop()
            self.isOver, self.isReadable = True, False
        else:
            raise PeerViolation(f"a message has the undefined kind {immediate}")

    def next(self) -> tuple[bytes, int | None] | None:
        """Take the next message to send; None if there is none, or the transport is full."""
        if self.isOver or self.hasSentClose or self.isFull:
            return None
        unsent = self._unsent
        if unsent:
            piece = unsent.popleft()
            if len(piece) > LONGEST_PIECE:
                rest = memoryview(piece)  # so that the rest is not copied for each message
                unsent.appendleft(rest[LONGEST_PIECE:])
                piece = rest[:LONGEST_PIECE]
            elif unsent and len(piece) + len(unsent[0]) <= LONGEST_PIECE:
                pieces, length = [piece], len(piece)
                while unsent and length + len(unsent[0]) <= LONGEST_PIECE:
                    pieces.append(unsent.popleft())
                    length += len(pieces[-1])
                piece = b"".join(pieces)
            self.backlog -= len(piece)
            self.unacknowledged += 1
            return bytes(piece), None
        wanted, self._wanted = self._wanted, None
        if wanted is None:
            return None
        self.hasSentClose = wanted == DISCONNECT
        return b"", wanted
