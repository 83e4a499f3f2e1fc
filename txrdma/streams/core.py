"""The interface of the cores of streams over message connections, which move bytes without I/O."""

from __future__ import annotations

from typing import Protocol


class StreamCore(Protocol):
    """
    The bytes of a stream in both directions, and which directions each end has closed.

    @ivar isReadable: whether the peer may send more bytes.
    @ivar isWritable: whether this end may send more bytes.
    @ivar isOver: whether the peer has closed the connection, or both ends have closed their write side.
    @ivar wasCut: whether the peer has closed the connection before all written bytes were posted.
    @ivar isCloseDelivered: whether the peer has received this end's close.
    """

    isReadable: bool
    isWritable: bool
    isOver: bool
    wasCut: bool
    isCloseDelivered: bool

    @property
    def isDelivered(self) -> bool:
        """Whether all written bytes are in the peer's memory."""

    @property
    def backlog(self) -> int:
        """Number of written bytes that are not posted yet."""

    @property
    def unread(self) -> int:
        """Number of received bytes that are not read yet."""

    def write(self, data: bytes) -> int:
        """
        Queue bytes until the peer can accept them; drop them if the write side is closed.

        @return: the number of bytes that are queued now.
        """

    def drop(self) -> None:
        """Drop written bytes that are not posted."""

    def read(self) -> bytes:
        """Return some received bytes; empty if there are none."""

    def closeWriting(self) -> None:
        """Close the write side, after all written bytes."""

    def close(self) -> None:
        """Close both sides, after all written bytes."""
