"""
Following an answer that names somebody else by a GID alone: subnet administration knows the way.

Follows InfiniBand Architecture vol. 1, 13.4.8.1 (RedirectGID, RedirectLID).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from twisted.internet.defer import Deferred, maybeDeferred
from twisted.python.failure import Failure

from txrdma.error import DeviceUnavailable, InvalidRequest
from txrdma.iba.path import IBPath, MADEndPort
from txrdma.mad.attributes import RPC
from txrdma.mad.errors import MADError
from txrdma.mad.paths import pathOf
from txrdma.mad.sa import PathRecord, Query


class Redirected(Protocol):
    """
    A call that was answered by the name of somebody else.

    @ivar datagram: the request, as bytes.
    @ivar redirections: how often the call has been redirected.
    """

    rpc: RPC
    path: IBPath
    datagram: bytes
    redirections: int

    def failed(self, error: Exception) -> None:
        """End the call in an error."""


_Call = TypeVar("_Call", bound=Redirected)


class Redirections(Generic[_Call]):
    """The calls that wait until the way is known to whom they were sent on."""

    def __init__(
        self, ask: Callable[[Query[PathRecord], int], Deferred[Any]], go: Callable[[_Call, IBPath], None]
    ) -> None:
        """
        @param ask: asks the administration; an answer that redirects counts from that number on.
        @param go: goes on with a call, that way.
        """
        self._ask = ask
        self._go = go
        self._asked: dict[_Call, Deferred[Any]] = {}

    def follow(self, call: _Call, way: IBPath, end: MADEndPort, status: int, reply: bytes) -> None:
        """
        Find the way, and go on.

        @param way: what the answer says of it: the GID, and the queue pair there.
        @param end: our own port.
        """
        asked = self._asked[call] = maybeDeferred(self._query, way, end, call.redirections)

        def found(record: PathRecord) -> None:
            there = replace(pathOf(record), pkey=way.pkey, dqpn=way.dqpn, qkey=way.qkey)
            if self._asked.pop(call, None) is not None:
                self._go(call, there)

        def unknown(failure: Failure) -> None:
            if self._asked.pop(call, None) is None:
                return
            if failure.check(DeviceUnavailable):
                call.failed(failure.value)  # type: ignore[arg-type]  # the line above says what it is
            else:
                why = f" to {way.dgid}, and nobody knows the way: {failure.getErrorMessage()}"
                call.failed(MADError(call.rpc, call.path, status, call.datagram, reply, why))

        asked.addCallback(found).addErrback(unknown)

    def forget(self, call: _Call) -> None:
        """Stop asking for the way of a call that nobody wants any more."""
        asked = self._asked.pop(call, None)
        if asked is not None:
            asked.cancel()

    def _query(self, way: IBPath, end: MADEndPort, redirections: int) -> Deferred[Any]:
        if not end.gids:
            raise InvalidRequest("our own port has no GID")
        query = PathRecord.query(dgid=way.dgid, sgid=end.gids[0], reversible=True, numbPath=1)
        return self._ask(query, redirections)
