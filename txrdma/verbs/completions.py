"""
Completions on a reactor: what wakes up, looks, and hands over what has ended.

Follows InfiniBand Architecture vol. 1, 11.4.2: who waits arms a queue first, then polls until it is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from time import perf_counter
from typing import Final

from zope.interface import implementer

from twisted.internet.error import ConnectionDone, ConnectionLost
from twisted.internet.interfaces import IDelayedCall, IReactorFDSet, IReactorTime, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.iba.verbs import Completion
from txrdma.interfaces import ICompletionChannel, ICompletionQueue, IPollable, IReactorPolling

_log = Logger()

LINGER_SECONDS: Final = 30e-6
_PROBE_SECONDS: Final = 60e-6
_TURN_SECONDS: Final = 200e-6
_PATIENCE: Final = 2
_PROBE: Final = 32
_LOOKS: Final = range(8)
_BATCH: Final = 64
_BUDGET: Final = 16


class ReaderReactor(IReactorFDSet, IReactorTime):
    """The interfaces of a reactor that a reader needs; L{IReactorPolling} is used where it is provided."""


@implementer(IReadDescriptor, IPollable)
class CompletionReader:
    """
    Hands the completions of a channel's queues to a handler, batch by batch.

    After some batches the others on the reactor get their turn. What raises, a queue or the handler, stops
    the reader: it is logged, and C{failed} is called.

    Where the reactor does not look at queues by itself, the reader looks on for some microseconds before it
    has itself woken again: to sleep and to be woken takes both processes longer than a quick answer. It does
    so only while that pays, and where looking is enough: in shared memory.
    """

    def __init__(
        self,
        reactor: ReaderReactor,
        channel: ICompletionChannel,
        queues: Sequence[ICompletionQueue],
        handler: Callable[[Sequence[Completion]], None],
        lingerSeconds: float = LINGER_SECONDS,
        failed: Callable[[Failure], None] = lambda failure: None,
    ) -> None:
        """
        @param queues: those of the channel that are to be read.
        @param handler: is called with a batch of completions of one queue, oldest first.
        @param failed: is called when the reader has stopped by an error, once.
        @param lingerSeconds: how long to look on for more before the reactor may sleep; 0 is not at all.
        """
        self._reactor = reactor
        self._channel = channel
        self._queues = tuple(queues)
        self._polls = tuple(queue.poll for queue in queues)
        self._handler = handler
        self._polling: IReactorPolling | None = IReactorPolling(reactor, None)
        self._linger = lingerSeconds
        self._failed = failed
        self._misses = 0
        self._armed = False
        # Queues may know how not to be armed any more; on a reactor that looks anyway this saves their bells.
        self._disarms: list[Callable[[], None]] = [
            queue.disarm for queue in queues if self._polling is not None and hasattr(queue, "disarm")
        ]
        self._again: IDelayedCall | None = None
        self._running = False

    def start(self) -> None:
        """Read from now on. Twice is fine."""
        again = self._again
        if self._running:
            # Somebody may have removed all readers and delayed calls, and told nobody.
            self._reactor.addReader(self)
            if again is not None and not again.active():
                self._again = self._reactor.callLater(0, self._turn)
            return
        self._running = True
        self._reactor.addReader(self)
        if self._polling is None:
            self._again = self._reactor.callLater(0, self._turn)
        else:
            self._polling.addPollable(self)

    def stop(self) -> None:
        """Leave the reactor; the channel can be closed then. Twice is fine."""
        if not self._running:
            return
        self._running = False
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
        """A queue that was armed has something."""
        self._channel.takeEvents()
        if self._polling is not None:
            self.poll()  # the reactor asks for more by itself
        elif self._again is None:
            self._turn()

    def connectionLost(self, reason: Failure) -> None:
        """The reactor reads no more: because it ends, or because C{doRead} has raised."""
        if self._running:
            self.stop()
            if not reason.check(ConnectionLost, ConnectionDone):
                self._failed(reason)

    def _turn(self) -> None:
        """Poll until empty, arm, and look once more: what completes after that raises the event again."""
        self._again = None
        if self._drain() and self._lookOn() and self._running:
            self.arm()
            if not self._running or self._drain():
                return
        if self._running:
            self._again = self._reactor.callLater(0, self._turn)

    def _drain(self) -> bool:
        """Poll until empty; False when it is not in the end."""
        return any(not self.poll() for _ in range(_BUDGET))

    def _lookOn(self) -> bool:
        """Look for a little while whether there is more; False when there is more than is fair."""
        window = self._window()
        if not window or not any(getattr(queue, "isLive", False) for queue in self._queues):
            return True
        began = now = perf_counter()
        until = began + window
        self._misses += 1
        while now < until and self._running:
            for _ in _LOOKS:
                if self.poll():
                    self._misses = 0
                    until = perf_counter() + self._linger
                    if until - began > _TURN_SECONDS + self._linger:
                        return False
                    break
            now = perf_counter()
        return True

    def _window(self) -> float:
        """How long to look on: not at all when that has been in vain, but for a longer try now and then."""
        if not self._linger or self._misses < _PATIENCE:
            return self._linger
        if self._misses % _PROBE == 0:
            return max(_PROBE_SECONDS, self._linger)
        self._misses += 1
        return 0.0

    # IPollable

    def poll(self) -> bool:
        """Hand over what has completed; tell whether there was anything."""
        found = False
        try:
            for poll in self._polls:
                batch = poll(_BATCH)
                if batch:
                    found = True
                    self._handler(batch)
                    if not self._running:
                        return False
            if found and self._armed:
                self._armed = False
                for disarm in self._disarms:
                    disarm()
        except Exception:
            self._fail()
            return False
        return found

    def _fail(self) -> None:
        """A queue, or who takes completions, has raised: reading on would be guessing."""
        if not self._running:
            return  # what is read no more is being closed
        failure = Failure()
        _log.failure(
            "Completions of an RDMA device are read no more, for {handler!r}, because of an error",
            failure,
            handler=self._handler,
        )
        self.stop()
        self._failed(failure)

    def arm(self) -> None:
        """Wake the descriptor from now on."""
        self._armed = True
        try:
            for queue in self._queues:
                queue.arm()
        except Exception:
            self._fail()
