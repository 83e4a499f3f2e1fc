"""
Completions on a reactor: wakes, polls, and hands them to a handler.

Follows InfiniBand Architecture vol. 1, 11.4.2: a reader arms a queue first, then polls until it is empty.

Theory of operation. C{Sources.poll} hands over completions; a reader decides when to call it. Where the
reactor polls by itself (L{IReactorPolling}), the reader only registers. Otherwise it takes these steps:

  1. C{_read}, when the descriptor is readable: poll, and handle what there is.
  2. C{_maySleep}: busy-poll for the next completion, in slices of time, if that is likely to be cheaper than
     to sleep and be woken (L{BusyPoll}). Between slices the reactor runs others; the descriptor stays
     readable.
  3. C{_sleep}: arm the queues, and poll once more: only later completions make the descriptor readable.
  4. C{_readDelayed}, in the next reactor iteration, if the poll of step 3 has found something, or if other
     readers are active, so that an answer is likely to be there by then. It is also the first step, if this
     process itself has raised the event, as for packets that it has read from a socket: that saves two system
     calls and an iteration.

All readers of a process share a budget of processor time for busy-polling.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Sequence, Sized
from functools import partial
from time import perf_counter
from typing import Final

from zope.interface import implementer

from twisted.internet.base import ReactorBase
from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IReactorFDSet, IReactorTime, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import DeviceUnavailable
from txrdma.iba.verbs import Completion
from txrdma.interfaces import (
    ICompletionChannel,
    ICompletionQueue,
    IPollable,
    IReactorPolling,
)
from txrdma.kit.delayedcalls import nextCalls
from txrdma.verbs._busypoll import BusyPoll, CROWDED_SHARE, SLEEP_SECONDS, SpinBudget
from txrdma.verbs._sources import Consumer, Poll, Sources

_log = Logger()

_MOST_POLLS: Final = 16
"""Largest number of polls with results in one reactor iteration, before other readers get their time."""

MOST_FAILURES: Final = 16
"""
Largest number of exceptions of queues, without a quiet minute between them, after which the calls are
repeated; the next one stops the reader.
"""

_QUIET_SECONDS: Final = 60.0
"""Seconds without exceptions of queues, after which they are counted from 0 again."""

_PAUSE: Final = 7
"""
After a refusal to busy-poll, the number of waits that do not ask again: asking costs some microseconds. After
an iteration without an expected answer, the number of reads that arm at once.
"""

_BUSY_PAUSE: Final = 63
"""The same after a refusal on a busy machine, which lasts longer."""


def runQueueWait() -> float:
    """Return the seconds for which this process has waited for a processor (schedstat); 0 if unknown."""
    try:
        descriptor = os.open("/proc/self/schedstat", os.O_RDONLY | os.O_CLOEXEC)
    except OSError:
        return 0.0
    try:
        return int(os.read(descriptor, 256).split()[1]) * 1e-9
    except (OSError, ValueError, IndexError):
        return 0.0
    finally:
        os.close(descriptor)


_budget: Final = SpinBudget(runQueueWait)
"""The budget of this process, for all of its readers."""


def _unknown() -> float | None:
    return None


class ReaderReactor(IReactorFDSet, IReactorTime):
    """The interfaces of a reactor that a reader needs; L{IReactorPolling} is used where it is provided."""


@implementer(IReadDescriptor, IPollable)
class CompletionReader:
    """
    Hands the completions of a channel's queues to a handler, batch by batch.

    After some batches the reactor runs others. Calls of the channel and the queues that raise are repeated.
    These stop the reader: an exception of the handler or of a direct lane, more than L{MOST_FAILURES} of
    queues without a quiet minute, and the loss of the device. The last exception is logged then, and
    C{failed} is called.

    Where the reactor does not poll queues itself, and polling finds everything, as in shared memory and for
    datagrams of the software device, the reader busy-polls for a while before it arms: as long as L{BusyPoll}
    decides, and in slices, between which the reactor runs others.
    """

    def __init__(
        self,
        reactor: ReaderReactor,
        channel: ICompletionChannel,
        queues: Sequence[ICompletionQueue],
        handler: Callable[[Sequence[Completion]], None],
        failed: Callable[[Failure], None] = lambda failure: None,
        busyPolls: bool = True,
        sleepSeconds: float = SLEEP_SECONDS,
    ) -> None:
        """
        @param queues: the channel's queues to read.
        @param handler: called with a batch of completions of one queue, oldest first.
        @param failed: called once, when an error has stopped the reader.
        @param busyPolls: whether to busy-poll at all, or to let a reactor poll that does so by itself.
        @param sleepSeconds: processor time in seconds that a sleep and a wakeup take of both processes:
            polling for answers that come earlier is cheaper.
        """
        self._reactor = reactor
        self._channel = channel
        self._queues = tuple(queues)
        self._sources = sources = Sources(self._fail, self._mayRetry)
        for queue in reversed(self._queues):
            sources.add(queue.poll, handler)
        self._handler = handler
        self._polling: IReactorPolling | None = IReactorPolling(reactor, None) if busyPolls else None
        self._busyPoll = BusyPoll(_budget, sleepSeconds)
        self._busyPolls = busyPolls and self._polling is None
        self._isBusyPolling = False  # counted in the budget
        self._isArmed = False
        self._mark = object()  # identifies this reader, and is no reference that would keep it
        self._isAlone = True  # no other reader has read since this one
        self._hasFound = False  # the last read has found something
        self._isExpecting = False  # the next delayed read is for an expected answer
        self._isWoken = False  # the next delayed read is for an event of this process
        self._expectsAgainAfter = 0  # reads without expectations, because the last one was wrong
        self._pause = 0  # waits without busy-polling
        self._isPeerPolling: Callable[[], bool] = lambda: False
        # Twisted's own reactors report how long they would sleep; no interface has it.
        self._reactorSleep: Callable[[], float | None] = getattr(reactor, "timeout", _unknown)
        # Nor is there one for whether the reactor is stopping: sockets are read at most once after that.
        self._isEnding: Callable[[], bool] = partial(getattr, reactor, "_justStopped", False)
        # New delayed calls are listed until the reactor asks for its timeout: those of asyncio and GLib do so
        # in callLater.
        self._newCalls: Callable[[], Sized] = lambda: (None,)
        if getattr(type(reactor), "callLater", None) is ReactorBase.callLater:
            self._newCalls = partial(getattr, reactor, "_newTimedCalls", (None,))
        self._failed = failed
        self._failures, self._failedAt = 0, 0.0
        if self._polling is not None:
            sources.disarmBy(self._disarm)  # the reactor polls anyway: peers need not ring
        self._nextCalls = nextCalls(reactor)
        self._isContinuing = False  # C{_readDelayed} is scheduled
        self._isReadDue = False  # the descriptor is readable: its event is not taken
        self._beforeRead: Callable[[], object] | None = None  # see callNext
        self._isTaken = False  # the event of the read that has begun last
        self._isAttended = False  # in C{attend}

    def addSource(
        self,
        poll: Poll,
        handler: Consumer,
        unread: Sized | None = None,
        isPeerPolling: Callable[[], bool] = lambda: False,
        isRepeatable: bool = False,
    ) -> None:
        """
        Poll another source before the queues: see L{txrdma.interfaces.IDirectLane}.

        @param unread: the queued completions: the queues are polled only when there are any. None: always.
        @param isPeerPolling: returns whether the peer polls for messages, so that it will answer soon.
        @param isRepeatable: whether a poll that raises has taken nothing, as that of a source without
            C{unread} must.
        """
        self._isPeerPolling = isPeerPolling
        if unread is None:
            self._sources.add(poll, handler)
        else:
            self._sources.addFirst(poll, handler, unread, isRepeatable)

    def poll(self) -> bool:
        """Hand completions to the handlers; return whether there were any, or a poll is to be repeated."""
        return self._sources.poll()

    def fileno(self) -> int:
        return self._channel.fileno()

    def preferLatency(self) -> None:
        """Busy-poll longer than processor time would justify."""
        self._busyPoll.preferLatency()

    @property
    def isRunning(self) -> bool:
        return self._sources.isRunning

    def start(self) -> None:
        """Start reading. Idempotent."""
        if self._sources.isRunning:
            # Other code may have removed all readers and delayed calls, as trial does.
            self._reactor.addReader(self)
            if self._isContinuing:
                self._continue()
            return
        self._sources.isRunning = True
        self._reactor.addReader(self)
        if self._polling is None:
            self._channel.callForLocal(self._wake)
            self._continue()
        else:
            self._polling.addPollable(self)

    def stop(self) -> None:
        """Leave the reactor; the channel can be closed then. Idempotent."""
        if not self._sources.isRunning:
            return
        self._sources.isRunning = False
        self._reactor.removeReader(self)
        self._channel.callForLocal(None)
        if self._polling is not None:
            self._polling.removePollable(self)
        self._isContinuing = False
        self._nextCalls.discard(self._readDelayed)
        self._delayCall()
        self._countPoller(False)
        if _budget.lastReader is self._mark:
            _budget.lastReader = None

    def callNext(self, call: Callable[[], object]) -> None:
        """
        Make a call once, in the next reactor iteration, or sooner.

        If this reader is to read again in that iteration, it makes the call before. That saves a delayed
        call, a twentieth of the Python calls of a server for an HTTP request.

        @param call: always the same function.
        """
        if self._isReadDue:
            self._beforeRead = call
        else:
            self._nextCalls.add(call)

    def discardNext(self, call: Callable[[], object]) -> None:
        """Do not make a call that L{callNext} has scheduled. Idempotent."""
        self._beforeRead = None
        self._nextCalls.discard(call)

    def _delayCall(self) -> None:
        """Make the call of L{callNext} in a delayed call, since no read is due any more."""
        self._isReadDue = False
        if self._beforeRead is not None:
            self._nextCalls.add(self._beforeRead)
            self._beforeRead = None

    # IReadDescriptor

    def logPrefix(self) -> str:
        return "txrdma.verbs.completions"

    def doRead(self) -> None:
        if self._polling is not None:
            self._takeEvents()
            if self._sources.isRunning:
                self._polling.addPollable(self)  # a quiet reader is only armed
                self.poll()  # the reactor polls for more
        elif self._beforeRead is None or self._makeCall():
            if self._isContinuing:
                self._nextCalls.add(self._readDelayed)  # other code may have cancelled it
            elif not self._isEnding():
                self._read()

    def connectionLost(self, reason: Failure) -> None:
        if self._sources.isRunning:
            self.stop()
            if not reason.check(ConnectionLost, ConnectionDone):
                self._failed(reason)

    def _makeCall(self) -> bool:
        """Make the call of L{callNext}; return whether to read now: not before calls that it has delayed."""
        call, self._beforeRead = self._beforeRead, None
        self._isReadDue = self._isTaken = False
        try:
            if call is not None:
                call()
        except BaseException:  # as in a delayed call
            _log.failure("Unexpected error in {call}", call=call)
        # If the call has run the reactor, another read may have taken the event, or another call may be due.
        isDue = self._sources.isRunning and not self._isTaken and self._beforeRead is None
        return isDue and not self._hasDelayed()

    def _read(self) -> None:
        """
        Poll, busy-poll, and go to sleep.

        If other readers have read since the last time, each polls once, and does not arm at once when it has
        found something: it polls in the next iteration, since the others take so long that the peer may have
        answered. Then the peer need not raise an event, and the reactor need not handle one.

        While more is expected, events are not taken, so that the reactor returns to the descriptor after
        everything else.
        """
        self._isTaken = self._isReadDue = False
        if not self._drain() or not self._maySleep():
            if self._isTaken:  # by another read, in a handler that has run the reactor
                self._countPoller(False)
                self._continue()
            else:
                self._isReadDue = self._sources.isRunning and not self._isContinuing
        elif self._sources.isRunning:
            self._takeEvents()
            self._isTaken = True
            if self._isReadDue:  # by another read, as above
                self._delayCall()
            if (self._hasFound and not self._isAlone and self._expectsAnswer()) or not self._sleep():
                self._continue()
                self._nextCalls.postpone()  # until after calls that the handler has delayed by 0 seconds

    def _wake(self) -> None:
        """Read in a delayed call, because this process has raised an event."""
        self._isWoken = True
        self._continue()

    def _readDelayed(self) -> None:
        """Read in a delayed call. It continues after a SystemExit of the handler, as the reactor does."""
        self._isContinuing = False
        isAsleep = False
        try:
            isAsleep = not self._isEnding() and self._readAgain()
        finally:
            if not isAsleep:
                self._continue()

    def _readAgain(self) -> bool:
        """
        Poll, and busy-poll as L{_read} does.

        Calls that the handler has delayed by 0 seconds must run before it is called again, as between two
        reads of a socket. If there are any, do not sleep, since events are handled after delayed calls.

        @return: whether the reader sleeps; otherwise it reads in another delayed call.
        """
        isWoken, self._isWoken = self._isWoken, False
        isDrained = self._drain()
        if self._isExpecting:
            self._isExpecting = False
            if not self._hasFound:
                self._expectsAgainAfter = _PAUSE
        if not isDrained or (self._hasFound and not self._isAlone and (not isWoken or self._expectsAnswer())):
            return False
        maySleep = not (self._hasFound or self._isBusyPolling) or self._maySleep()
        return maySleep and self._sleep()

    def _drain(self) -> bool:
        """
        Poll until empty, or once if other readers have read since the last time.

        Arming takes longer than another poll, and where both ends share a processor, the peer has answered
        while the handler ran.

        @return: False if the handler must not be called again in this reactor iteration.
        """
        self._isAlone, _budget.lastReader = _budget.lastReader is self._mark, self._mark
        self._hasFound = False
        began = perf_counter()
        for _ in range(_MOST_POLLS):
            if not self.poll():
                return True
            self._hasFound = True
            if self._busyPoll.isWaiting:
                self._busyPoll.found(began)
            if self._hasDelayed() or self._isEnding():
                return False
            if not self._isAlone:
                return True
        return False

    def _hasDelayed(self) -> bool:
        """Return whether the handler has delayed calls by 0 seconds, which come first, as with sockets."""
        return self._reactorSleep() == 0 if self._newCalls() else False

    def _continue(self) -> None:
        """Read again in the next reactor iteration."""
        if self._sources.isRunning:
            self._isContinuing = True
            self._nextCalls.add(self._readDelayed)

    def _sleep(self) -> bool:
        """Arm, and poll once more, since only later completions raise an event; False if that finds any."""
        if self._sources.isRunning:
            self.arm()
            if self._sources.isRunning and self.poll():
                self._busyPoll.found(perf_counter())
                return False
        return True

    def _expectsAnswer(self) -> bool:
        """Return whether to poll in the next iteration before arming, since other readers read, too."""
        if self._expectsAgainAfter:
            self._expectsAgainAfter -= 1
            return False
        self._isExpecting = True
        return True

    def _maySleep(self) -> bool:
        """Busy-poll for a slice of time, if that is likely to pay; return whether to sleep now."""
        if self._pause:
            self._pause -= 1
            return True
        if not (self._busyPolls and self._sources.isRunning and any(queue.isLive for queue in self._queues)):
            self._countPoller(False)
            return True
        now = perf_counter()
        until = self._busyPoll.wait(now, self._isPeerPolling())
        if now >= until:
            self._pause = _BUSY_PAUSE if _budget.waitShare > CROWDED_SHARE else _PAUSE
            self._countPoller(False)
            return True
        isOnlyPoller = _budget.pollers <= self._isBusyPolling
        self._countPoller(True)
        if self._isArmed:
            self._disarm()
        # Several pollers poll once in each reactor iteration.
        isTimeLeft = not isOnlyPoller or self._busyPoll.poll(
            self._sources, now, until, perf_counter, self._reactorSleep, self._isEnding
        )
        # Continue in the next reactor iteration, without arming, if there is time left, or other work to do.
        if isTimeLeft or not self._sources.isRunning or self._isEnding() or self._hasDelayed():
            return False
        self._countPoller(False)
        return True

    def _countPoller(self, isPolling: bool) -> None:
        """Update the number of busy-polling readers in the budget."""
        if isPolling is not self._isBusyPolling:
            self._isBusyPolling = isPolling
            _budget.pollers += 1 if isPolling else -1

    def attend(self) -> None:
        """Hand over completions while off the reactor; later ones make the descriptor readable."""
        self._isAttended = True
        try:
            self._takeEvents()
            self.arm()
            for _ in range(_MOST_POLLS):
                if not self.poll():
                    break
        finally:
            self._isAttended = False

    def _takeEvents(self) -> None:
        try:
            self._channel.takeEvents()
        except Exception:
            self._repeat(self._channel.takeEvents)

    def _disarm(self) -> None:
        """Disarm the queues, so that peers need not wake this process while it polls."""
        self._isArmed = False
        for queue in self._queues:
            try:
                queue.disarm()
            except Exception:
                if not self._repeat(queue.disarm):
                    return

    def _repeat(self, call: Callable[[], object]) -> bool:
        """Call what has just raised again, until it succeeds; return False if reading ends first."""
        if not self._mayRetry():
            return False
        try:
            call()
        except Exception:
            return self._repeat(call)
        return True

    def _mayRetry(self) -> bool:
        """
        Return whether to try again after the current exception of a queue; otherwise stop reading.

        The first one since a quiet minute is logged.
        """
        failure = Failure()
        if not (self._sources.isRunning or self._isAttended):
            return False  # the queues are being closed
        now = perf_counter()
        if now > self._failedAt + _QUIET_SECONDS:
            self._failures = 0
        self._failures, self._failedAt = self._failures + 1, now
        if self._failures > MOST_FAILURES or failure.check(DeviceUnavailable) is not None:
            self._fail()
            return False
        if self._failures == 1:
            _log.failure(
                "Completions could not be read, which is repeated for {handler!r}",
                failure,
                handler=self._handler,
            )
        return True

    def _fail(self) -> None:
        """Stop reading after a queue or the handler raised an exception."""
        if not (self._sources.isRunning or self._isAttended):
            return  # the reader has stopped: its queues are being closed
        failure = Failure()
        _log.failure(
            "Unexpected error: completions of an RDMA device are no longer read for {handler!r}",
            failure,
            handler=self._handler,
        )
        self.stop()
        self._isAttended = False
        self._failed(failure)

    # IPollable

    def arm(self) -> None:
        self._isArmed = True
        self._sources.isArmed = self._polling is not None
        for queue in self._queues:
            try:
                queue.arm()
            except Exception:
                if not self._repeat(queue.arm):
                    return
