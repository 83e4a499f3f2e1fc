"""
Large tables of subnet administration, decoded in slices: between these others have their turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Final, Generic, Protocol, TypeVar

from twisted.internet.interfaces import IDelayedCall, IReactorTime

from txrdma.mad._answers import Records

SLICE: Final = 4096
"""Records that are decoded at once, in some milliseconds."""


class Asking(Protocol):
    """A call for a table."""

    def answered(self, answer: object) -> None:
        """End the call well."""


_Call = TypeVar("_Call", bound=Asking)


class Tables(Generic[_Call]):
    """Tables that are being decoded, by the calls for them."""

    def __init__(self, reactor: IReactorTime, failed: Callable[[_Call, bytes, Exception], None]) -> None:
        """@param failed: ends a call whose table means nothing; gets its first datagram, too."""
        self._reactor = reactor
        self._failed = failed
        self._turns: dict[_Call, IDelayedCall] = {}

    def read(self, call: _Call, first: bytes, records: Records) -> None:
        """Decode a table, at once where it is small, and answer its call."""
        self._turns.pop(call, None)
        try:
            isDone = records.more(SLICE)
        except Exception as error:
            self._failed(call, first, error)
            return
        if isDone:
            call.answered(records.decoded)
        else:
            self._turns[call] = self._reactor.callLater(0, self.read, call, first, records)

    def forget(self, call: _Call) -> None:
        """Decode no more of a table that nobody wants."""
        turn = self._turns.pop(call, None)
        if turn is not None:
            turn.cancel()

    def clear(self) -> list[_Call]:
        """Decode no more of any table; the calls for them are left to be ended."""
        calls = list(self._turns)
        for call in calls:
            self.forget(call)
        return calls
