"""Batches of messages: their buffers, and one result for all of them."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final, TYPE_CHECKING

from twisted.internet.defer import Deferred

from txrdma.error import InvalidRequest
from txrdma.iba.verbs import Buffer
from txrdma.messages.memory import octets

if TYPE_CHECKING:
    from txrdma.kit.buffers import AnyBuffer

MOST_AT_ONCE: Final = 1024
"""Messages of a batch that are sent together, if the window of their tag has room for all of them."""

_SHORT: Final = 1024
"""Bytes up to which a copy of a row takes less time than a view of it."""


def rows(messages: Iterable[AnyBuffer] | AnyBuffer) -> list[Buffer]:
    """
    Return the bytes of messages.

    @param messages: buffers; or an array with several dimensions, of which each row is a message.
    @raise InvalidRequest: a buffer is not contiguous, or an array has only one dimension.
    """
    try:
        shape = memoryview(messages).shape or ()  # type: ignore[arg-type]  # if it has no buffer, TypeError follows
    except ValueError as error:
        raise InvalidRequest(f"a buffer cannot be used: {error}") from error
    except TypeError:
        return [each if type(each) is bytes else octets(each) for each in messages]  # type: ignore[union-attr]
    if len(shape) < 2:
        raise InvalidRequest("a buffer with one dimension is one message, not several")
    whole = octets(messages)  # type: ignore[arg-type]  # it has a buffer
    width = len(whole) // max(1, shape[0])
    if not width:
        return [b""] * shape[0]
    data = bytes(whole) if width <= _SHORT else memoryview(whole)
    return [data[begin : begin + width] for begin in range(0, len(whole), width)]


class Batch:
    """
    The results of messages, or of packets with several of them. Call it with each result.

    @ivar outcome: fires when all have arrived, or fails with the first error.
    """

    def __init__(self) -> None:
        self.outcome: Deferred[None] = Deferred()
        self._left = 1

    def add(self, count: int) -> None:
        """Expect this many more results; one is expected from the beginning."""
        self._left += count

    def __call__(self, error: Exception | None) -> None:
        self._left -= 1
        if self.outcome.called:
            return
        if error is not None:
            self.outcome.errback(error)
        elif not self._left:
            self.outcome.callback(None)
