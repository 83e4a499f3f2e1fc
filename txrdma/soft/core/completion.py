"""
Completion queues, and the channels that wake their readers.

Follows InfiniBand Architecture vol. 1, 10.2.5 and 11.4.2 (poll, request notification).
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Sequence, Sized
from typing import Final

from zope.interface import implementer

from txrdma.error import InvalidRequest, ResourceExhausted
from txrdma.iba.types import QPN
from txrdma.iba.verbs import AsyncEventKind, Completion
from txrdma.interfaces import AsyncEvent, ICompletionChannel, ICompletionQueue
from txrdma.kit.logs import advised
from txrdma.soft.core.route import Route
from txrdma.unix.sharing import whyNoSharedMemory

_UNARMED: Final = 0
_SOLICITED: Final = 1
_NEXT: Final = 2

_Failed = Callable[[AsyncEventKind | None], None]


class _Bell:
    """A descriptor that is readable from C{ring} until C{silence}: an eventfd, or a pipe without them."""

    def __init__(self) -> None:
        try:
            if sys.platform == "linux" and not whyNoSharedMemory():
                self.reading = self.writing = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
            else:
                self.reading, self.writing = os.pipe()
                os.set_blocking(self.reading, False)
                os.set_blocking(self.writing, False)
        except OSError as error:
            raise ResourceExhausted(f"no descriptor for a completion channel: {advised(error)}") from error

    def ring(self) -> None:
        try:
            os.write(self.writing, b"\1\0\0\0\0\0\0\0" if sys.byteorder == "little" else b"\0\0\0\0\0\0\0\1")
        except BlockingIOError:
            pass  # it is readable already

    def silence(self) -> bool:
        """Make the descriptor unreadable again, and return whether it was readable."""
        try:
            return bool(os.read(self.reading, 8 if self.reading == self.writing else 4096))
        except BlockingIOError:
            return False

    def close(self) -> None:
        os.close(self.reading)
        if self.writing != self.reading:
            os.close(self.writing)


@implementer(ICompletionChannel)
class SoftCompletionChannel:
    """
    A descriptor that wakes readers of its queues.

    It is signaled by an armed queue that gets a completion, and, through C{doorbell}, by peers that wrote to
    shared memory; they can't name a queue, so all queues are polled.
    """

    def __init__(self, closed: Callable[[SoftCompletionChannel], None] = lambda channel: None) -> None:
        self._closed = closed
        self._bell: _Bell | None = _Bell()
        self._queues: list[SoftCompletionQueue] = []
        self._events: list[SoftCompletionQueue] = []
        self._rung = False

    @property
    def doorbell(self) -> int:
        """The descriptor that a peer process rings, by writing eight bytes as for an eventfd."""
        return self._open().writing

    def fileno(self) -> int:
        return -1 if self._bell is None else self._bell.reading

    def ring(self) -> None:
        if self._bell is not None:
            self._bell.ring()

    def takeEvents(self) -> Sequence[ICompletionQueue]:
        if self._open().silence():
            self._rung = True  # completions that are found now need no ring
            for queue in self._queues:
                queue._checkArrivals()
        self._rung = False
        events, self._events = self._events, []
        return events

    def close(self) -> None:
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()
            self._closed(self)

    def _open(self) -> _Bell:
        if self._bell is None:
            raise InvalidRequest("the completion channel is closed")
        return self._bell

    def _raise(self, queue: SoftCompletionQueue) -> None:
        self._events.append(queue)
        if not self._rung and self._bell is not None:
            self._rung = True
            self._bell.ring()


@implementer(ICompletionQueue)
class SoftCompletionQueue:
    """A completion queue; C{armed} is 0, 1 for solicited completions, or 2 for any."""

    def __init__(
        self,
        depth: int,
        channel: SoftCompletionChannel,
        notify: Callable[[AsyncEvent], None],
        closed: Callable[[SoftCompletionQueue], None] = lambda queue: None,
    ) -> None:
        self.depth = depth
        self.armed = _UNARMED
        self.channel = channel
        self._notify = notify
        self._completions: deque[Completion] = deque()
        self._free = depth
        self._polls: tuple[Callable[[], None], ...] = ()
        self._lanes: tuple[Route, ...] = ()  # routes that are polled elsewhere
        self._polling = False
        self._members: dict[_Failed, Callable[[], None]] = {}
        self._closed = False
        self._onClosed = closed
        channel._queues.append(self)

    def __repr__(self) -> str:
        return f"<SoftCompletionQueue {len(self._completions)} of {self.depth}>"

    # For readers.

    def arm(self, solicitedOnly: bool = False) -> None:
        if not solicitedOnly or self.armed == _UNARMED:  # any includes solicited (IBA 11.4.2.2)
            self.armed = _SOLICITED if solicitedOnly else _NEXT
        if self._lanes or self._polls:
            for armRoute in self._members.values():
                armRoute()

    @property
    def isLive(self) -> bool:
        return bool(self._polls or self._lanes)

    def disarm(self) -> None:
        self.armed = _UNARMED
        if self.isLive:
            self._armRoutes()

    def poll(self, limit: int) -> Sequence[Completion]:
        if self._polls and len(self._completions) < limit:  # otherwise there is enough without polling
            self._polling = True  # the caller needs no event for these
            try:
                for poll in self._polls:
                    poll()
            finally:
                self._polling = False
        completions = self._completions
        if not completions:
            return ()
        if len(completions) <= limit:
            taken = list(completions)
            completions.clear()
            return taken
        return [completions.popleft() for _ in range(limit)]

    def close(self) -> None:
        if self._closed:
            return
        self._closed = True
        self._free = 0
        self.armed = _UNARMED
        for failed in tuple(self._members):
            failed(None)
        self._members.clear()
        self._completions.clear()
        self._polls = self._lanes = ()
        self.channel._queues.remove(self)
        if self in self.channel._events:
            self.channel._events.remove(self)
        self._onClosed(self)

    # For queue pairs and routes.

    def push(self, completion: Completion, solicited: bool = False) -> None:
        """Append a completion, and wake the channel's reader if the queue is armed for it."""
        completions = self._completions
        if len(completions) >= self._free:
            self._overrun()
            return
        completions.append(completion)
        if self.armed and not self._polling and (self.armed == _NEXT or solicited or completion.status):
            self.armed = _UNARMED
            self.channel._raise(self)

    def ring(self, solicited: bool) -> None:
        """Wake the channel's reader, if the queue is armed, for a message without completion."""
        if self.armed == _NEXT or (self.armed and solicited):
            self.armed = _UNARMED
            self.channel._raise(self)

    @property
    def isClosed(self) -> bool:
        return self._closed

    def join(self, failed: _Failed, armRoute: Callable[[], None]) -> None:
        """Add a queue pair; C{failed} puts it into ERR, C{armRoute} arms its route like the queues."""
        if self._closed:
            raise InvalidRequest("the completion queue is closed")
        self._members[failed] = armRoute

    def leave(self, failed: _Failed) -> None:
        self._members.pop(failed, None)

    def attach(self, route: Route) -> None:
        if route.poll not in self._polls:
            self._polls += (route.poll,)

    def detach(self, route: Route) -> None:
        poll = route.poll
        if poll in self._polls:
            self._polls = tuple([each for each in self._polls if each != poll])
        if self._lanes:
            self._lanes = tuple([lane for lane in self._lanes if lane is not route])

    def pollElsewhere(self, lane: Route) -> Sized:
        """
        Stop polling this route, whose messages are received by other code; return the queued completions.
        """
        self.detach(lane)
        self._lanes += (lane,)
        return self._completions

    def purge(self, number: QPN) -> None:
        remaining = [completion for completion in self._completions if completion.qpn != number]
        self._completions.clear()
        self._completions.extend(remaining)

    def _armRoutes(self) -> None:
        for armRoute in self._members.values():
            armRoute()

    def _checkArrivals(self) -> None:
        """Poll after a peer has rung, and arm again if nothing was found."""
        if self.armed and self._lanes:
            self.armed = _UNARMED
            self.channel._raise(self)  # the reader polls the lane
        if not self.armed or not self._polls:
            return
        for poll in self._polls:
            poll()
        if self.armed and not self._completions:
            self._armRoutes()
            for poll in self._polls:
                poll()
        if self.armed and self._completions:
            self.armed = _UNARMED
            self.channel._raise(self)

    def _overrun(self) -> None:
        """Fail the queue and its queue pairs, because a completion is lost (IBA 10.2.5.3)."""
        if self._free == 0:
            return
        self._free = 0
        self._notify(AsyncEvent(AsyncEventKind.CQ_ERROR, completionQueue=self))
        for failed in tuple(self._members):
            failed(AsyncEventKind.QP_FATAL)
