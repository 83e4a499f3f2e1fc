"""
Completion queues, which poll queue pairs and let idle ones be dormant, and the channels that wake readers.

Follows InfiniBand Architecture vol. 1, 10.2.5 and 11.4.2 (poll, request notification).

Theory of operation. Polling a queue polls its routes, which append completions; arming it arms the routes. A
completion or a ring of a peer makes the descriptor of the channel readable, once until the events are taken.
After a ring the armed queues are polled: those with completions are reported, the routes of the others are
armed again. A queue that overruns, or is closed, fails its queue pairs. L{SoftCompletionQueue} explains
dormant routes.
"""

from __future__ import annotations

import os
import sys
from collections import deque
from collections.abc import Callable, Sequence, Sized
from typing import Final

from zope.interface import implementer

from twisted.logger import Logger

from txrdma.error import InvalidRequest, ResourceExhausted
from txrdma.iba.types import QPN
from txrdma.iba.verbs import AsyncEventKind, Completion
from txrdma.interfaces import AsyncEvent, ICompletionChannel, ICompletionQueue
from txrdma.kit.logs import advised
from txrdma.soft.core.doorbellpage import DoorbellPage
from txrdma.soft.core.route import Route
from txrdma.unix.eventfds import takeEvent
from txrdma.unix.sharing import whyNoSharedMemory

_log = Logger()

_SWEEP: Final = 512
"""
Polls of single routes after which those without activity become dormant; an arming counts as L{_ARMING}.

Waking one costs as much as some 20 polls, so it is rare with few awake routes.
"""

_ARMING: Final = 256

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
        if self.reading == self.writing:
            return takeEvent(self.reading)
        try:
            return bool(os.read(self.reading, 4096))
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
    shared memory. The doorbell page names the routes that were rung; awake routes of all queues are polled.

    @ivar page: the doorbell bytes of all routes but the first one; None until there are several.
    """

    def __init__(self, closed: Callable[[SoftCompletionChannel], None] = lambda channel: None) -> None:
        self._closed = closed
        self._bell: _Bell | None = _Bell()
        self._queues: list[SoftCompletionQueue] = []
        self._events: list[SoftCompletionQueue] = []
        self._rung = False
        self._local: Callable[[], object] | None = None
        self.page: DoorbellPage | None = None
        self._withoutDoorbell = 0  # number of routes

    @property
    def doorbell(self) -> int:
        """The descriptor that a peer process rings, by writing eight bytes as for an eventfd."""
        if self._bell is None:
            raise _closed()
        return self._bell.writing

    @property
    def doorbellPage(self) -> int:
        """The descriptor of the doorbell page; -1 if there is none."""
        return -1 if self.page is None else self.page.descriptor

    def claimDoorbell(self) -> int:
        """Assign a doorbell byte to a new route; 0 if the route must always be polled."""
        number = 0
        if self._withoutDoorbell and self._bell is not None:
            try:
                self.page = self.page or DoorbellPage()
                number = self.page.claim()
            except OSError:
                pass  # no memory or descriptor: the route is polled
        self._withoutDoorbell += not number
        return number

    def releaseDoorbell(self, number: int) -> None:
        """Release the doorbell byte of a closed route; C{number} was assigned by L{claimDoorbell}."""
        if number and self.page is not None:
            self.page.release(number)
        self._withoutDoorbell -= not number

    def fileno(self) -> int:
        return -1 if self._bell is None else self._bell.reading

    def ring(self, number: int = 0) -> None:
        """Ring as a peer does, for the route with this doorbell byte."""
        if self._bell is not None:
            if number and self.page is not None:
                self.page.ring(number)
            self._bell.ring()

    def takeEvents(self) -> Sequence[ICompletionQueue]:
        bell = self._bell
        if bell is None:
            raise _closed()
        if bell.silence():
            self._rung = True  # completions that are found now need no ring
            for queue in self._queues:
                if queue.armed:
                    queue._checkArrivals()
        self._rung = False
        events, self._events = self._events, []
        return events

    def callForLocal(self, call: Callable[[], object] | None) -> None:
        self._local = call

    def close(self) -> None:
        bell, self._bell = self._bell, None
        if bell is not None:
            bell.close()
            if self.page is not None:
                self.page.close()
            self._closed(self)

    def _raise(self, queue: SoftCompletionQueue) -> None:
        if self._local is not None and not self._rung:
            try:
                self._local()
                return
            except Exception:
                _log.failure("Unexpected error: a reader of completions is woken by its descriptor")
        if not self._rung and self._bell is not None:
            self._bell.ring()
            self._rung = True
        self._events.append(queue)


def _closed() -> InvalidRequest:
    return InvalidRequest("the completion channel is closed")


class _Polled:
    """
    A route that its queue polls.

    @ivar arm: arms the route as its queues are armed; C{raised} logs an exception, and fails the queue pair.
    @ivar activity: the route's C{activity} at the last sweep.
    """

    __slots__ = ("_queue", "activity", "arm", "raised", "route")

    def __init__(
        self,
        queue: SoftCompletionQueue,
        route: Route,
        arm: Callable[[], None],
        raised: Callable[[], None],
    ) -> None:
        self._queue, self.route, self.arm, self.raised = queue, route, arm, raised
        self.activity = -1

    def wake(self) -> None:
        """Poll a dormant route again from now on, once at once, and arm it if the queue is armed."""
        try:
            if self._queue.rouse(self.route):
                self.arm()
                self.route.poll()
        except Exception:
            self.raised()


@implementer(ICompletionQueue)
class SoftCompletionQueue:
    """
    A completion queue; C{armed} is 0, 1 for solicited completions, or 2 for any.

    Polling the queue polls its routes, and arming it arms them. A route with a doorbell byte that had no
    activity between two sweeps becomes dormant: it is armed, checked once more, and then costs nothing until
    its peer sets the byte, or a request is posted. Each poll searches the doorbell page of the channel,
    whether the queue is armed or not, and wakes the routes that it finds, which are polled first.
    """

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
        self._awake: dict[Route, _Polled] = {}
        self._dormant: dict[Route, _Polled] = {}
        # Routes that are polled elsewhere, and what arms them.
        self._lanes: dict[Route, Callable[[], None]] = {}
        # of all routes that are not dormant
        self._polls: tuple[Callable[[], None], ...] = ()
        self._arms: tuple[Callable[[], None], ...] = ()
        self._untilSweep = _SWEEP
        self._polling = False
        self._members: dict[_Failed, None] = {}
        self.isClosed = False
        self._onClosed = closed
        channel._queues.append(self)

    def __repr__(self) -> str:
        return f"<SoftCompletionQueue {len(self._completions)} of {self.depth}>"

    # For readers.

    def arm(self, solicitedOnly: bool = False) -> None:
        if solicitedOnly:
            for route in tuple(self._dormant):  # these are armed for any
                self.rouse(route)
        if not solicitedOnly or self.armed == _UNARMED:  # any includes solicited (IBA 11.4.2.2)
            self.armed = _SOLICITED if solicitedOnly else _NEXT
        self._untilSweep -= _ARMING
        for armRoute in self._arms:
            armRoute()

    @property
    def isLive(self) -> bool:
        return bool(self._polls or self._lanes)

    def disarm(self) -> None:
        self.armed = _UNARMED
        self._armRoutes()

    def poll(self, limit: int) -> Sequence[Completion]:
        if self._polls and len(self._completions) < limit:  # otherwise there is enough without polling
            self._polling = True  # the caller needs no event for these
            try:
                for poll in self._polls:
                    poll()
            except Exception:
                self._isolate(poll)
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
        if self.isClosed:
            return
        self.isClosed = True
        self._free = 0
        self.armed = _UNARMED
        self._failMembers(None)
        self._members.clear()
        self._completions.clear()
        for route in tuple(self._dormant):
            self.rouse(route)
        self._awake.clear()
        self._lanes.clear()
        self._polls = self._arms = ()
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
            self.channel._raise(self)
            self.armed = _UNARMED  # not if that raises: the next completion tries again

    def ring(self, solicited: bool) -> None:
        """Wake the channel's reader, if the queue is armed, for a message without completion."""
        if self.armed == _NEXT or (self.armed and solicited):
            self.channel._raise(self)
            self.armed = _UNARMED

    def join(self, failed: _Failed) -> None:
        """Add a queue pair; C{failed} puts it into ERR."""
        self.check()
        self._members[failed] = None

    def check(self) -> None:
        """Raise L{InvalidRequest} if the queue accepts no completions any more."""
        if self.isClosed:
            raise InvalidRequest("the completion queue is closed")
        if self._free == 0:
            raise InvalidRequest("the completion queue has overrun: close it")

    def leave(self, failed: _Failed) -> None:
        self._members.pop(failed, None)

    def attach(self, route: Route, armRoute: Callable[[], None], raised: Callable[[], None]) -> None:
        """
        Poll a route; C{armRoute} arms it like the queues of its queue pair.

        @param raised: called while an exception of the route is handled; fails its queue pair.
        """
        if route not in self._awake and route not in self._dormant:
            self._awake[route] = _Polled(self, route, armRoute, raised)
            self._listRoutes()

    def detach(self, route: Route) -> None:
        try:
            self.rouse(route)
        finally:
            if route in self._awake or route in self._lanes:  # not that of a queue pair without data
                self._awake.pop(route, None)
                self._lanes.pop(route, None)
                self._listRoutes()

    def pollElsewhere(self, lane: Route, armRoute: Callable[[], None]) -> Sized:
        """
        Stop polling this route, because other code receives its messages; return the queued completions.
        """
        self.detach(lane)
        self._lanes[lane] = armRoute
        self._listRoutes()
        return self._completions

    def purge(self, number: QPN) -> None:
        if self._completions:
            remaining = [completion for completion in self._completions if completion.qpn != number]
            self._completions.clear()
            self._completions.extend(remaining)

    def _listRoutes(self) -> None:
        """List the routes to poll and to arm, after a change."""
        awake = self._awake.values()
        polls = [each.route.poll for each in awake]
        if self._dormant or any(route.doorbell for route in self._awake):
            polls.insert(0, self._pollDormant)
        self._polls = tuple(polls)
        self._arms = (*(each.arm for each in awake), *self._lanes.values())

    def _armRoutes(self) -> None:
        for armRoute in self._arms:
            armRoute()

    def _isolate(self, failed: Callable[[], None]) -> None:
        """Fail only the queue pair of the route whose poll has raised an exception, and poll the others."""
        routes = tuple(self._awake.values())
        if not any(polled.route.poll == failed for polled in routes):
            _log.failure("Unexpected error while {queue!r} was polled", queue=self)
        for polled in routes:
            if polled.route.poll == failed:
                polled.raised()
            else:
                try:
                    polled.route.poll()
                except Exception:
                    polled.raised()

    # Dormant routes.

    def _pollDormant(self) -> None:
        """Poll dormant routes whose peers have rung; from time to time, mark quiet routes as dormant."""
        page = self.channel.page
        if page is not None:
            page.check()
            self._untilSweep -= len(self._awake)
            if self._untilSweep <= 0 and self.armed != _SOLICITED:
                self._untilSweep = _SWEEP
                self._sweep(page)

    def _sweep(self, page: DoorbellPage) -> None:
        """Mark routes without activity since the last sweep as dormant."""
        for route, polled in tuple(self._awake.items()):
            if not route.doorbell:
                continue
            try:
                before, polled.activity = polled.activity, route.activity()
                if polled.activity < 0 or polled.activity != before:
                    continue
                route.arm(False, True, False)
                if route.activity() != before:  # something has come before that, and did not ring
                    polled.arm()
                    continue
                wake = polled.wake
                route.setDormant(wake)
                page.sleep(route.doorbell, wake)
                self._dormant[route] = self._awake.pop(route)
            except Exception:
                polled.raised()
        self._listRoutes()

    def rouse(self, route: Route) -> bool:
        """Poll a dormant route again from now on; False if it is not dormant."""
        polled = self._dormant.pop(route, None)
        if polled is not None:
            polled.activity = -1
            self._awake[route] = polled
            self._polls += (route.poll,)
            self._arms += (polled.arm,)
            if self.channel.page is not None:
                self.channel.page.cancel(route.doorbell)
            route.setDormant(None)
        return polled is not None

    def _checkArrivals(self) -> None:
        """Poll an armed queue after a peer has rung, and arm again if nothing was found."""
        if self._lanes:
            self.armed = _UNARMED
            self.channel._events.append(self)  # the reader polls the lane
            return
        if not self._polls:
            return
        try:
            for poll in self._polls:
                poll()
            if self.armed and not self._completions:
                self._armRoutes()
                for poll in self._polls:
                    poll()
            hasFound = bool(self._completions)
        except Exception:
            self._isolate(poll)
            hasFound = True  # perhaps: the reader arms again
        if self.armed and hasFound:
            self.armed = _UNARMED
            self.channel._raise(self)

    def _overrun(self) -> None:
        """Fail the queue and its queue pairs, because a completion is lost (IBA 10.2.5.3)."""
        if self._free == 0:
            return
        self._free = 0
        try:
            self._notify(AsyncEvent(AsyncEventKind.CQ_ERROR, completionQueue=self))
        finally:
            self._failMembers(AsyncEventKind.QP_FATAL)

    def _failMembers(self, event: AsyncEventKind | None) -> None:
        for failed in tuple(self._members):
            with _log.failuresHandled(
                "Unexpected error while a queue pair of {queue!r} was failed", queue=self
            ):
                failed(event)
