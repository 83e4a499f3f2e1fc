"""
A call, as the core of calls has it: the request, and its answer or error.

Nothing here reads a clock or a socket.
"""

from __future__ import annotations

from typing import Any

from txrdma.mad.core.frames import Keys
from txrdma.mad.core.transactions import Transaction
from txrdma.mad.layouts.attributes import Attribute, RPC


class Asked(Transaction):
    """
    State of one call: request, keys, and answer or error.

    @ivar kind: class of the answer's payload.
    @ivar content: the payload of the request, as bytes.
    @ivar chosenID: the transaction ID that the caller has chosen; 0 for a drawn one.
    @ivar redirections: number of redirections of this call, and of those that it is made for.
    @ivar answer: the answer, when the call has ended well.
    @ivar error: the reason, when the call has failed; else None.
    """

    __slots__ = (
        "answer",
        "chosenID",
        "content",
        "error",
        "keys",
        "kind",
        "mask",
        "modifier",
        "redirections",
        "rpc",
    )

    def __init__(
        self, rpc: RPC, kind: type[Attribute], content: bytes, modifier: int, keys: Keys, mask: int
    ) -> None:
        self.rpc = rpc
        self.kind = kind
        self.content = content
        self.modifier = modifier
        self.keys = keys
        self.mask = mask
        self.chosenID = 0
        self.redirections = 0
        self.answer: Any = None
        self.error: Exception | None = None
