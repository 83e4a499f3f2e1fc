"""
Completions on a reactor: what wakes up, looks, and hands over what has ended.

Follows InfiniBand Architecture vol. 1, 11.4.2: who waits arms a queue first, then polls until it is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence, Sized
from functools import partial
from os import sched_yield
from time import perf_counter
from typing import Final

from zope.interface import implementer

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IDelayedCall, IReactorFDSet, IReactorTime, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.iba.verbs import Completion
from txrdma.interfaces import (
    ICompletionChannel,
    ICompletionQueue,
    ILiveCompletionQueue,
    IPollable,
    IReactorPolling,
)
from txrdma.verbs._busypoll import BusyPoll, SpinBudget
from txrdma.verbs._sources import Poll, Sources, Taker

_log = Logger()

_TURN_SECONDS: Final = 200e-6
_SLICE_SECONDS: Final = 40e-6
_LOOKS: Final = range(8)
_BUDGET: Final = 16

_budget: Final = SpinBudget()
"""Of this process, for all of its readers."""


def _unknown() -> float | None:
    return None


class ReaderReactor(IReactorFDSet, IReactorTime):
    """The interfaces of a reactor that a reader needs; L{IReactorPolling} is used where it is provided."""


@implementer(IReadDescriptor, IPollable)
class CompletionReader:
    """
    Hands the completions of a channel's queues to a handler, batch by batch.

    After some batches the others on the reactor get their turn. What raises, a queue or the handler, stops
    the reader: it is logged, and C{failed} is called.

    Where the reactor does not look at queues by itself, and looking is enough, as in shared memory and for
    datagrams of the software device, the reader looks on for a while before it has itself woken again: as
    long as L{BusyPoll} says, and in slices, between which others on the reactor have their turn.

    @ivar poll: L{Sources.poll <txrdma.verbs._sources.Sources.poll>} itself: hands over what has completed,
        and tells whether there was anything.
    """

    def __init__(
        self,
        reactor: ReaderReactor,
        channel: ICompletionChannel,
        queues: Sequence[ICompletionQueue],
        handler: Callable[[Sequence[Completion]], None],
        failed: Callable[[Failure], None] = lambda failure: None,
        busyPoll: BusyPoll | None = None,
        busyPolls: bool = True,
    ) -> None:
        """
        @param queues: those of the channel that are to be read.
        @param handler: is called with a batch of completions of one queue, oldest first.
        @param failed: is called when the reader has stopped by an error, once.
        @param busyPoll: tells how long to look on; without it, one of the reader's own, with a share in what
            the process may spend on that.
        @param busyPolls: whether to look on at all.
        """
        self._reactor = reactor
        self._channel = channel
        self._queues = tuple(queues)
        self._sources = sources = Sources(self._fail)
        for queue in reversed(self._queues):
            sources.add(queue.poll, handler)
        self.poll: Callable[[], bool] = sources.poll
        self._handler = handler
        self._polling: IReactorPolling | None = IReactorPolling(reactor, None)
        self._busyPoll = busyPoll or BusyPoll(_budget)
        self._busyPolls = busyPolls and self._polling is None
        self._isBusyPolling = False
        # Twisted's own reactors can say how long they would sleep; no interface has it.
        self._sleep: Callable[[], float | None] = getattr(reactor, "timeout", _unknown)
        # Nor has one whether it has just been told to stop: sockets are read at most once after that.
        self._isEnding: Callable[[], bool] = partial(getattr, reactor, "_justStopped", False)
        self._failed = failed
        found = [ILiveCompletionQueue(queue, None) for queue in queues]
        self._live = [queue for queue in found if queue is not None]
        if self._polling is not None:
            for live in self._live:
                sources.disarmBy(live.disarm)  # the reactor looks anyway: this saves their bells
        self._again: IDelayedCall | None = None
        self._isAttended = False

    def addSource(self, poll: Poll, handler: Taker, unread: Sized | None = None) -> None:
        """
        Look there, too, from now on, and before the queues: see L{txrdma.interfaces.IDirectLane}.

        @param unread: what has come into the queues: as long as it is empty nobody need look at these.
            Without it they are looked at always.
        """
        if unread is None:
            self._sources.add(poll, handler)
        else:
            self._sources.addFirst(poll, handler, unread)

    def start(self) -> None:
        """Read from now on. Twice is fine."""
        again = self._again
        if self._sources.isRunning:
            # Somebody may have removed all readers and delayed calls, and told nobody.
            self._reactor.addReader(self)
            if again is not None and not again.active():
                self._again = self._reactor.callLater(0, self._turn)
            return
        self._sources.isRunning = True
        self._reactor.addReader(self)
        if self._polling is None:
            self._again = self._reactor.callLater(0, self._turn)
        else:
            self._polling.addPollable(self)

    def stop(self) -> None:
        """Leave the reactor; the channel can be closed then. Twice is fine."""
        if not self._sources.isRunning:
            return
        self._sources.isRunning = False
        self._look(False)
        self._reactor.removeReader(self)
        if self._polling is not None:
            self._polling.removePollable(self)
        again, self._again = self._again, None
        if again is not None and again.active():
            again.cancel()

    # IReadDescriptor

    def fileno(self) -> int:
        """The descriptor of the completion channel, as L{IReadDescriptor} asks."""
        return self._channel.fileno()

    def logPrefix(self) -> str:
        """The prefix of the reader's lines in the log."""
        return "txrdma.verbs.completions"

    def doRead(self) -> None:
        """A queue that was armed has something, or its events are not taken since we look on."""
        if self._polling is not None:
            self._channel.takeEvents()
            self._polling.addPollable(self)  # it may have been quiet for so long that it was only armed
            self.poll()  # the reactor asks for more by itself
        elif self._again is None:
            self._turn(isReadable=True)

    def connectionLost(self, reason: Failure) -> None:
        """The reactor reads no more: because it ends, or because C{doRead} has raised."""
        if self._sources.isRunning:
            self.stop()
            if not reason.check(ConnectionLost, ConnectionDone):
                self._failed(reason)

    def _turn(self, isReadable: bool = False) -> None:
        """
        Poll until empty, look on, arm, and look once more: what completes after that raises the event again.

        A delayed turn that has found something arms in the next one: readers are called after delayed calls,
        and what the handler has delayed by no time is to run before it is called again, as between two reads
        of a socket.

        @param isReadable: there are events. They are taken only when it is time to sleep, so that until then
            the reactor comes back to the descriptor after everything else.
        """
        self._again = None
        isDelayed = not isReadable
        isEmpty = self._drain(isDelayed)
        isLooking = isEmpty and isReadable and self._busyPolls and self._pollOn()
        self._look(isLooking)
        if isEmpty and not isLooking and self._sources.isRunning:
            if isReadable:
                isReadable = False
                self._channel.takeEvents()
            self.arm()
            if not self._sources.isRunning or self._drain(isDelayed):
                return
        if self._sources.isRunning and not isReadable:
            self._again = self._reactor.callLater(0, self._turn)

    def _drain(self, isDelayed: bool) -> bool:
        """
        Poll until empty; False when it is not in the end, or when a delayed turn has found something.

        What has not been taken when the reactor is told to stop waits for its next turn, if there is one.
        """
        if self._isEnding():
            return False
        began = perf_counter()
        if not self.poll():
            return True
        self._busyPoll.came(began)
        for _ in range(_BUDGET - 1):
            if self._isEnding():
                return False
            if not self.poll():
                return not isDelayed
        return False

    def _pollOn(self) -> bool:
        """Look for a slice of time whether there is more; False when it is time to sleep."""
        if not self._sources.isRunning or not any(queue.isLive for queue in self._live):
            return False
        busyPoll = self._busyPoll
        began = now = perf_counter()
        until = busyPoll.waits(now)
        # With others who look, each looks once in a turn of the reactor.
        end = now + _SLICE_SECONDS if _budget.pollers <= self._isBusyPolling else now
        while now < end and now < until and self._sleep() != 0:
            for _ in _LOOKS:
                if self.poll():
                    busyPoll.came(now)
                    now = perf_counter()
                    until = busyPoll.waits(now)
                    end = now + _SLICE_SECONDS
                    break
            else:
                now = perf_counter()
                continue
            if now - began > _TURN_SECONDS or not self._sources.isRunning or self._isEnding():
                return self._sources.isRunning
        if now >= until:
            return False
        sched_yield()
        later = perf_counter()
        if not self.poll():
            busyPoll.yielded(now, later)
        else:
            busyPoll.came(now)
        return self._sources.isRunning

    def _look(self, isLooking: bool) -> None:
        """Count among those who look, or do so no more."""
        if isLooking is not self._isBusyPolling:
            self._isBusyPolling = isLooking
            _budget.pollers += 1 if isLooking else -1

    def attend(self) -> None:
        """
        Hand over what has completed while the reader is not on the reactor.

        What completes from now on makes the descriptor readable, for who watches it.
        """
        self._isAttended = True
        try:
            self._channel.takeEvents()
            self.arm()
            for _ in range(_BUDGET):
                if not self.poll():
                    break
        finally:
            self._isAttended = False

    def _fail(self) -> None:
        """A queue, or who takes completions, has raised: reading on would be guessing."""
        if not (self._sources.isRunning or self._isAttended):
            return  # what is read no more is being closed
        failure = Failure()
        _log.failure(
            "Completions of an RDMA device are read no more, for {handler!r}, because of an error",
            failure,
            handler=self._handler,
        )
        self.stop()
        self._failed(failure)

    # IPollable

    def arm(self) -> None:
        """Wake the descriptor from now on."""
        self._sources.isArmed = True
        try:
            for queue in self._queues:
                queue.arm()
        except Exception:
            self._fail()
