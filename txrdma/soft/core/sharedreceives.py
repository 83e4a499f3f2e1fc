"""
Shared receive queues, whose receives many queue pairs use as messages arrive.

Follows InfiniBand Architecture vol. 1, 10.2.9 (shared receive queues) and 11.6.3.1 (their events).
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Sequence

from zope.interface import implementer

from txrdma.error import InvalidRequest, QueueFull
from txrdma.iba.verbs import AsyncEventKind, ReceiveRequest
from txrdma.interfaces import AsyncEvent, ISharedReceiveQueue
from txrdma.soft.core.memory import Domain

_Failed = Callable[[AsyncEventKind | None], None]


class _Receives(deque[ReceiveRequest]):
    """The posted receives, which report when the limit is reached."""

    def __init__(self, limitReached: Callable[[], None]) -> None:
        super().__init__()
        self.limit = 0
        self._limitReached = limitReached

    def popleft(self) -> ReceiveRequest:
        taken = super().popleft()
        if len(self) < self.limit:
            self._limitReached()
        return taken


@implementer(ISharedReceiveQueue)
class SoftSharedReceiveQueue:
    """Receives shared by queue pairs; requests must stay unchanged until their completion."""

    def __init__(
        self,
        domain: Domain,
        maxReceive: int,
        maxSegments: int,
        notify: Callable[[AsyncEvent], None],
        closed: Callable[[SoftSharedReceiveQueue], None] = lambda queue: None,
    ) -> None:
        self.domain = domain
        self.maxReceive = maxReceive
        self.maxSegments = maxSegments
        self.receives = _Receives(self._raiseLimit)
        self._notify = notify
        self._takers: dict[_Failed, Callable[[], None]] = {}
        self.isClosed = False
        self._onClosed = closed

    def __repr__(self) -> str:
        return f"<SoftSharedReceiveQueue {len(self.receives)} of {self.maxReceive}>"

    def postReceive(self, requests: Sequence[ReceiveRequest]) -> None:
        self.check()
        receives = self.receives
        if len(receives) + len(requests) > self.maxReceive:
            raise QueueFull(f"{len(requests)} requests for a shared queue with {len(receives)} in it")
        most = self.maxSegments
        for request in requests:
            if len(request.segments) > most:
                raise InvalidRequest(f"receive {request.identifier} has more than {most} segments")
        receives.extend(requests)
        for posted in tuple(self._takers.values()):
            posted()

    def arm(self, limit: int) -> None:
        self.check()
        if not 0 <= limit <= self.maxReceive:
            raise InvalidRequest(f"the limit is from 0 to {self.maxReceive}, not {limit}")
        self.receives.limit = limit
        if len(self.receives) < limit:
            self._raiseLimit()

    def limit(self) -> int:
        return self.receives.limit

    def close(self) -> None:
        if self.isClosed:
            return
        self.isClosed = True
        self.receives.limit = 0
        for failed in tuple(self._takers):
            failed(None)
        self._takers.clear()
        self.receives.clear()
        self._onClosed(self)

    # For queue pairs.

    def join(self, failed: _Failed, posted: Callable[[], None]) -> None:
        """Add a queue pair; C{failed} puts it into ERR, C{posted} reports new receives."""
        self.check()
        self._takers[failed] = posted

    def leave(self, failed: _Failed) -> None:
        self._takers.pop(failed, None)

    def check(self) -> None:
        """Raise L{InvalidRequest} if the queue is closed."""
        if self.isClosed:
            raise InvalidRequest("the shared receive queue is closed")

    def _raiseLimit(self) -> None:
        self.receives.limit = 0
        self._notify(AsyncEvent(AsyncEventKind.SRQ_LIMIT_REACHED, sharedReceiveQueue=self))
