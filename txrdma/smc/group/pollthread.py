"""
A thread that waits for descriptors in place of a reactor, which has no readers of ours meanwhile.

While SMC is not in use (L{txrdma.smc.common.reactoruse}) nothing of it stays on the reactor. Where adapters
keep links alive peers go on all the same: they free their buffers, close what they were still reading, ask
whether the link lives, and wait for our answers. The thread only waits; what there is to do is done on the
reactor.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Sequence
from threading import Thread

from twisted.internet.interfaces import IReactorFromThreads


class PollThread:
    """
    Waits for descriptors, once for each C{watch}.
    """

    def __init__(self, reactor: IReactorFromThreads, ready: Callable[[], None]) -> None:
        """
        @param ready: called on the reactor when a descriptor is readable, or the time is over; perhaps once
            more after C{stop}.
        """
        self._reactor = reactor
        self._ready = ready
        self._bell = -1
        self._thread: Thread | None = None

    def watch(self, descriptors: Sequence[int], seconds: float | None) -> None:
        """
        Wait from now on, instead of what was waited for before.

        @param seconds: wait no longer than that; None: as long as it takes.
        """
        self.stop()
        self._bell = os.eventfd(0, os.EFD_CLOEXEC | os.EFD_NONBLOCK)
        poll = select.poll()
        for each in (self._bell, *descriptors):
            poll.register(each, select.POLLIN)
        self._thread = Thread(
            target=self._wait, args=(poll, self._bell, seconds), name="txrdma: links at rest", daemon=True
        )
        self._thread.start()

    def _wait(self, poll: select.poll, bell: int, seconds: float | None) -> None:
        """Wait, in the thread."""
        found = poll.poll(None if seconds is None else max(seconds, 0.0) * 1000)
        if all(descriptor != bell for descriptor, _ in found):
            self._reactor.callFromThread(self._ready)

    def stop(self) -> None:
        """Wait no more; the descriptors may be closed then. Twice is fine."""
        thread, self._thread = self._thread, None
        if thread is not None:
            os.eventfd_write(self._bell, 1)
            thread.join()
            os.close(self._bell)
