"""
Calls on their way: what was asked of whom, and the Deferred that is told of the end.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred

from txrdma.mad._frames import Keys
from txrdma.mad._transaction import Transaction
from txrdma.mad.attributes import Attribute, RPC


class Call(Transaction):
    """
    A call on its way.

    @ivar kind: class of the answer's payload.
    @ivar chosenID: the transaction ID that the caller has chosen; 0 for a drawn one.
    @ivar redirections: how often somebody else was named, for this call and for those that it is made for.
    """

    __slots__ = (
        "_deferred",
        "chosenID",
        "content",
        "forget",
        "keys",
        "kind",
        "mask",
        "modifier",
        "redirections",
        "rpc",
    )

    def __init__(
        self,
        rpc: RPC,
        kind: type[Attribute],
        content: bytes,
        modifier: int,
        keys: Keys,
        mask: int,
        forget: Callable[[Call], None],
    ) -> None:
        self.rpc = rpc
        self.kind = kind
        self.content = content
        self.modifier = modifier
        self.keys = keys
        self.mask = mask
        self.chosenID = 0
        self.redirections = 0
        self.forget = forget
        self._deferred: Deferred[Any] | None = None

    def awaited(self) -> Deferred[Any]:
        """Have a Deferred fire with the answer, or fail; cancelling it forgets the call."""
        self._deferred = Deferred(self._cancelled)
        return self._deferred

    def answered(self, answer: object) -> None:
        """End the call well. After its end this does nothing."""
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            deferred.callback(answer)

    def failed(self, error: Exception) -> None:
        """End the call in an error. After its end this does nothing."""
        deferred, self._deferred = self._deferred, None
        if deferred is not None:
            deferred.errback(error)

    def _cancelled(self, deferred: Deferred[Any]) -> None:
        self._deferred = None
        self.forget(self)
