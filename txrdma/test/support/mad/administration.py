"""Subnet administration that returns the records of a test."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred, fail, succeed

from txrdma.iba.path import IBPath
from txrdma.mad.errors import MADError
from txrdma.mad.layouts.sa import Query
from txrdma.mad.rpcs import RPCs


class Administration(RPCs):
    """
    Subnet administration with given answers.

    @ivar answers: by the name of the requested attribute: the answer, a function that returns or raises it,
        an exception, or None for no answer. Without an entry, the answer is an empty table.
    @ivar asked: names of the calls, their payloads, paths and options.
    @ivar pending: calls without an answer.
    """

    def __init__(self, **answers: Any) -> None:
        self.answers = answers
        self.asked: list[tuple[str, Any, IBPath, dict[str, Any]]] = []
        self.pending: list[Deferred[Any]] = []

    def call(
        self, rpc: str, payload: Any, path: Any = None, attributeModifier: int = 0, **options: Any
    ) -> Deferred[Any]:
        self.asked.append((rpc, payload, path, options))
        record = payload.record if isinstance(payload, Query) else payload
        answer = self.answers.get((record if isinstance(record, type) else type(record)).__name__, [])
        if answer is None:
            self.pending.append(Deferred())
            return self.pending[-1]
        try:
            answer = answer(record) if callable(answer) else answer
        except MADError as error:
            answer = error
        return fail(answer) if isinstance(answer, Exception) else succeed(answer)
