"""
The bytes of a stream both ways, as messages in order: data, the end of writing, and the end of all.
"""

from __future__ import annotations

from collections import deque
from typing import Final

from txrdma.error import PeerViolation

SHUTDOWN: Final = 1
"""The immediate data of a message that says: nothing is written behind this."""

DISCONNECT: Final = 2
"""The immediate data of a message that says: nothing is written any more, or read."""

LONGEST_PIECE: Final = 1 << 16
"""Bytes of a message with data; shorter writes go together."""


class ByteStream:
    """
    The bytes of a stream: see L{Core<txrdma.streams.connection.Core>}.

    @ivar isFull: the transport wants no more at present.
    @ivar flying: messages that were sent and have not arrived.
    @ivar hasSaid: this end has said that the connection ends.
    """

    __slots__ = (
        *("_backlog", "_read", "_unsent", "_wanted", "flying", "hasParted", "hasSaid", "isFull", "isOver"),
        *("isReadable", "isWritable", "unread", "wasCut"),
    )

    def __init__(self) -> None:
        self.isReadable = self.isWritable = True
        self.isOver = self.wasCut = self.hasParted = self.hasSaid = self.isFull = False
        self.flying = self.unread = 0
        self._unsent: deque[bytes | memoryview] = deque()  # a view is what is left of a long write
        self._backlog = 0
        self._read: list[bytes] = []
        self._wanted: int | None = None

    # The program's requests

    @property
    def backlog(self) -> int:
        """Bytes that were written and are not posted yet."""
        return self._backlog

    @property
    def isDelivered(self) -> bool:
        """Whether all that was written has arrived."""
        return not self._backlog and not self.flying

    def write(self, data: bytes) -> None:
        """Send bytes, as soon as there is room for them; after the end of writing they are dropped."""
        if self.isWritable and not self.isOver:
            self._unsent.append(data)
            self._backlog += len(data)
        elif data and self.isOver:
            self.wasCut = True

    def drop(self) -> None:
        """Forget all that is not posted."""
        self._unsent.clear()
        self._backlog = 0

    def read(self) -> bytes:
        """Read the bytes that have come; empty if there are none."""
        data, self._read, self.unread = b"".join(self._read), [], 0
        return data

    def closeWriting(self) -> None:
        """Write no more, and tell the peer so behind all that was written."""
        if self.isWritable:
            self.isWritable = False
            self._wanted = SHUTDOWN if self.isReadable else DISCONNECT

    def close(self) -> None:
        """Neither write nor read any more, and tell the peer so behind all that was written."""
        self.isWritable = False
        self._wanted = DISCONNECT

    # The connection's part

    def arrived(self, data: bytes, immediate: int | None) -> None:
        """
        Take a message of the peer.

        @raise PeerViolation: it makes no sense.
        """
        if immediate is None:
            if not self.isReadable:
                raise PeerViolation("data behind the end")
            self._read.append(data)
            self.unread += len(data)
        elif immediate == SHUTDOWN:
            self.isReadable = False
            if self._wanted is SHUTDOWN:
                self._wanted = DISCONNECT
            elif not self.isWritable and self._wanted is None:
                self.isOver = True
        elif immediate == DISCONNECT:
            self.wasCut = self.wasCut or not self.isDelivered
            self.drop()
            self.isOver, self.isReadable = True, False
        else:
            raise PeerViolation(f"a message of kind {immediate}")

    def next(self) -> tuple[bytes, int | None] | None:
        """Take the next message to send, if there is one, and room for it."""
        if self.isOver or self.hasSaid or self.isFull:
            return None
        unsent = self._unsent
        if unsent:
            piece = unsent.popleft()
            if len(piece) > LONGEST_PIECE:
                rest = memoryview(piece)  # so that the rest is not copied for each piece
                unsent.appendleft(rest[LONGEST_PIECE:])
                piece = rest[:LONGEST_PIECE]
            elif unsent and len(piece) + len(unsent[0]) <= LONGEST_PIECE:
                pieces, length = [piece], len(piece)
                while unsent and length + len(unsent[0]) <= LONGEST_PIECE:
                    pieces.append(unsent.popleft())
                    length += len(pieces[-1])
                piece = b"".join(pieces)
            self._backlog -= len(piece)
            self.flying += 1
            return bytes(piece), None
        wanted, self._wanted = self._wanted, None
        if wanted is None:
            return None
        self.hasSaid = wanted == DISCONNECT
        return b"", wanted
