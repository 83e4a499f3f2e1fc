"""
Shared receive queues of libibverbs.

Follows InfiniBand Architecture vol. 1, 10.2.9.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from itertools import count
from typing import Any, Final

from zope.interface import implementer

from txrdma.error import InvalidRequest, QueueFull, RDMAError
from txrdma.iba.verbs import ReceiveRequest
from txrdma.interfaces import ISharedReceiveQueue
from txrdma.verbs.pyverbs.bindings import Pyverbs, translated
from txrdma.verbs.pyverbs.queues import QueueMember
from txrdma.verbs.pyverbs.requests import ReceiveWorkRequests
from txrdma.verbs.pyverbs.resourcetracker import ResourceTracker

SHARED: Final = 2
"""The lower bits of local numbers of receives of shared queues."""

_LIMIT: Final = 1 << 1
_CLOSED: Final = InvalidRequest("the shared receive queue is closed")


@implementer(ISharedReceiveQueue)
class PyverbsSharedReceiveQueue:
    """Receives for any queue pair of the domain."""

    def __init__(
        self,
        verbs: Pyverbs,
        tracker: ResourceTracker,
        domain: Any,
        maxReceive: int,
        maxSegments: int,
        closed: Callable[[PyverbsSharedReceiveQueue], object],
    ) -> None:
        self._verbs = verbs
        self._tracker = tracker
        self._onClosed = closed
        self._tokens = count()
        self._receives: dict[int, int] = {}
        self._consumers: dict[QueueMember, None] = {}
        self._error: RDMAError | None = None
        self._armed = False
        try:
            self.raw: Any = verbs.SRQ(
                domain, verbs.SrqInitAttr(verbs.SrqAttr(max_wr=maxReceive, max_sge=maxSegments))
            )
            try:
                known = self.raw.query()
            except verbs.Error:
                tracker.close(self.raw)
                raise
        except verbs.Error as error:
            raise translated(error, f"no shared receive queue of {maxReceive}") from error
        except OverflowError as error:
            raise InvalidRequest(f"no shared receive queue of {maxReceive}, {maxSegments}") from error
        self.maxReceive: int = max(known.max_wr, maxReceive)
        self.maxSegments: int = max(known.max_sge, maxSegments)
        self._workRequests = ReceiveWorkRequests(verbs, 2 * self.maxReceive)

    def postReceive(self, requests: Sequence[ReceiveRequest]) -> None:
        self._checkOpen()
        for request in requests:
            if len(request.segments) > self.maxSegments:
                raise InvalidRequest(f"at most {self.maxSegments} segments, not {len(request.segments)}")
        if len(self._receives) + len(requests) > self.maxReceive:
            for consumer in self._consumers:
                consumer.drainReceives()
            if len(self._receives) + len(requests) > self.maxReceive:
                raise QueueFull(f"the shared receive queue has only {self.maxReceive} entries")
        if not requests:
            return
        tokens = [next(self._tokens) << 2 | SHARED for _ in requests]
        failed = self._workRequests.post(requests, tokens, self.raw.post_recv)
        for token, request in zip(tokens, requests, strict=True):
            if failed is not None and token >= failed:
                raise QueueFull("the shared receive queue accepted only the first of these")
            self._receives[token] = request.identifier

    def arm(self, limit: int) -> None:
        self._checkOpen()
        if not 0 <= limit <= self.maxReceive:
            raise InvalidRequest(f"the limit is from 0 to {self.maxReceive}, not {limit}")
        attributes = self._verbs.SrqAttr(max_wr=self.maxReceive, max_sge=self.maxSegments, srq_limit=limit)
        try:
            self.raw.modify(attributes, _LIMIT)
        except self._verbs.Error as error:
            raise translated(error, f"the limit can't be {limit}") from error
        self._armed = limit > 0

    def limit(self) -> int:
        self._checkOpen()
        try:
            return int(self.raw.query().srq_limit)
        except self._verbs.Error as error:
            raise translated(error, "the shared receive queue can't be queried") from error

    def close(self) -> None:
        if self._error is _CLOSED:
            return
        self.lost(_CLOSED)
        self._error = _CLOSED
        self._onClosed(self)

    # For queue pairs and the device.

    def join(self, consumer: QueueMember) -> None:
        self._consumers[consumer] = None

    def leave(self, consumer: QueueMember) -> None:
        self._consumers.pop(consumer, None)

    def ended(self, token: int) -> int | None:
        """Return the identifier of a finished receive."""
        return self._receives.pop(token, None)

    def limitReached(self) -> bool:
        """Return whether this queue has raised the limit event: it was armed, and no longer is."""
        if self.raw is None or not self._armed:
            return False
        try:
            self._armed = self.limit() > 0
        except RDMAError:
            return False
        return not self._armed

    def lost(self, wrong: RDMAError) -> None:
        """Release the queue; calls raise C{wrong} from now on."""
        if self._error is None:
            self._error = wrong
        for consumer in tuple(self._consumers):
            consumer.queueClosed()
        raw, self.raw = self.raw, None
        if raw is not None:
            self._tracker.close(raw)
        self._workRequests.close()
        self._receives.clear()

    def _checkOpen(self) -> None:
        if self._error is not None:
            raise self._error.__class__(*self._error.args)
