"""
Following an answer that names somebody else by a GID alone: the administration knows the way.

Follows InfiniBand Architecture vol. 1, 13.4.8.1 (RedirectGID, RedirectLID).
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from typing import Any, Generic, Protocol, TypeVar

from twisted.internet.defer import Deferred
from twisted.python.failure import Failure

from txrdma.error import DeviceUnavailable
from txrdma.iba.path import IBPath, MADEndPort
from txrdma.mad.attributes import RPC
from txrdma.mad.errors import MADError
from txrdma.mad.paths import pathOf, toAdministration
from txrdma.mad.rpcs import RPCs
from txrdma.mad.sa import PathRecord


class Redirected(Protocol):
    """
    A call that was answered by the name of somebody else.

    @ivar datagram: what was asked, as bytes.
    """

    rpc: RPC
    path: IBPath
    datagram: bytes

    def failed(self, error: Exception) -> None:
        """Nobody will answer the call."""


_Call = TypeVar("_Call", bound=Redirected)


class Redirections(Generic[_Call]):
    """The calls that wait until the way is known to whom they were sent on."""

    def __init__(self, agent: RPCs, go: Callable[[_Call, IBPath], None]) -> None:
        """
        @param agent: asks the administration.
        @param go: goes on with a call, that way.
        """
        self._agent = agent
        self._go = go
        self._asked: dict[_Call, Deferred[Any]] = {}

    def follow(self, call: _Call, way: IBPath, end: MADEndPort, status: int, reply: bytes) -> None:
        """
        Find the way, and go on.

        @param way: what the answer says of it: the GID, and the queue pair there.
        @param end: our own port.
        """
        query = PathRecord.query(dgid=way.dgid, sgid=end.gids[0], reversible=True, numbPath=1)
        asked = self._asked[call] = self._agent.call("SubnAdmGet", query, toAdministration(end))

        def found(record: PathRecord) -> None:
            del self._asked[call]
            there = pathOf(record)
            self._go(call, replace(there, pkey=way.pkey, dqpn=way.dqpn, qkey=way.qkey))

        def unknown(failure: Failure) -> None:
            if self._asked.pop(call, None) is None:
                return
            if failure.check(DeviceUnavailable):
                call.failed(failure.value)  # type: ignore[arg-type]  # the line above says what it is
            else:
                why = f" to {way.dgid}, and nobody knows the way: {failure.getErrorMessage()}"
                call.failed(MADError(call.rpc, call.path, status, call.datagram, reply, why))

        asked.addCallbacks(found, unknown)

    def forget(self, call: _Call) -> None:
        """Nobody wants it any more."""
        asked = self._asked.pop(call, None)
        if asked is not None:
            asked.cancel()
