"""
Completions on a reactor: what wakes up, looks, and hands over what has ended.

Follows InfiniBand Architecture vol. 1, 11.4.2: who waits arms a queue first, then polls until it is empty.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final

from zope.interface import implementer

from twisted.internet.interfaces import IDelayedCall, IReactorFDSet, IReactorTime, IReadDescriptor
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.iba.verbs import Completion
from txrdma.interfaces import ICompletionChannel, ICompletionQueue, IPollable, IReactorPolling

_log = Logger()

_BATCH: Final = 64
_BUDGET: Final = 16


class ReaderReactor(IReactorFDSet, IReactorTime):
    """What a reader needs of a reactor; it uses L{IReactorPolling}, too, where that is provided."""


@implementer(IReadDescriptor, IPollable)
class CompletionReader:
    """
    Hands the completions of a channel's queues to a handler, batch by batch.

    After some batches the others on the reactor get their turn. A handler that raises is logged, and goes on
    with the next batch.
    """

    def __init__(
        self,
        reactor: ReaderReactor,
        channel: ICompletionChannel,
        queues: Sequence[ICompletionQueue],
        handler: Callable[[Sequence[Completion]], None],
    ) -> None:
        """
        @param queues: those of the channel that are to be read.
        @param handler: is called with a batch of completions of one queue, oldest first.
        """
        self._reactor = reactor
        self._channel = channel
        self._queues = tuple(queues)
        self._polls = tuple(queue.poll for queue in queues)
        self._handler = handler
        self._polling: IReactorPolling | None = IReactorPolling(reactor, None)
        self._armed = False
        # Queues may know how not to be armed any more; on a reactor that looks anyway this saves their bells.
        self._disarms: list[Callable[[], None]] = [
            queue.disarm for queue in queues if self._polling is not None and hasattr(queue, "disarm")
        ]
        self._again: IDelayedCall | None = None
        self._running = False

    def start(self) -> None:
        """Read from now on."""
        if self._running:
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
        if self._again is not None:
            self._again.cancel()
            self._again = None

    # IReadDescriptor

    def fileno(self) -> int:
        """The channel's."""
        return self._channel.fileno()

    def logPrefix(self) -> str:
        """As Twisted's log shows it."""
        return "txrdma.verbs.completions"

    def doRead(self) -> None:
        """A queue that was armed has something."""
        self._channel.takeEvents()
        if self._polling is not None:
            self.poll()  # the reactor asks for more by itself
        elif self._again is None:
            self._turn()

    def connectionLost(self, reason: Failure) -> None:
        """The reactor says that it is over."""
        self.stop()

    def _turn(self) -> None:
        """Arm, then poll until empty: what completes meanwhile raises the event again."""
        self._again = None
        self.arm()
        for _ in range(_BUDGET):
            if not self.poll():
                return
        if self._running:
            self._again = self._reactor.callLater(0, self._turn)

    # IPollable

    def poll(self) -> bool:
        """Hand over what has completed; tell whether there was anything."""
        found = False
        for poll in self._polls:
            batch = poll(_BATCH)
            if batch:
                found = True
                try:
                    self._handler(batch)
                except Exception:
                    _log.failure("while {handler!r} took completions", handler=self._handler)
                if not self._running:
                    return False
        if found and self._armed:
            self._armed = False
            for disarm in self._disarms:
                disarm()
        return found

    def arm(self) -> None:
        """Wake the descriptor from now on."""
        self._armed = True
        for queue in self._queues:
            queue.arm()
