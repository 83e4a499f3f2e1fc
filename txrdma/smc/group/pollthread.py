"""
A thread that polls descriptors while link groups are suspended and have no readers on the reactor.

While SMC is not in use (L{txrdma.smc.common.reactoruse}), it has nothing on the reactor. But adapters keep
links alive, and peers still send messages that need an answer: DELETE RKEY, late closes, TEST LINK. The
thread only polls; messages are processed on the reactor.
"""

from __future__ import annotations

import os
import select
from collections.abc import Callable, Sequence
from threading import Thread

from twisted.internet.interfaces import IReactorFromThreads


class PollThread:
    """Polls descriptors, once for each C{watch}."""

    def __init__(self, reactor: IReactorFromThreads, ready: Callable[[], None]) -> None:
        """@param ready: called on the reactor when a descriptor is readable, and after the timeout."""
        self._reactor = reactor
        self._ready = ready
        self._bell = self._ringer = -1
        self._thread: Thread | None = None

    def watch(self, descriptors: Sequence[int], seconds: float | None) -> None:
        """
        Poll these descriptors from now on, with a timeout in seconds.

        @raise OSError: no descriptor is left.
        @raise RuntimeError: no thread can be started.
        """
        self.stop()
        bell, ringer = os.pipe()
        poll = select.poll()
        for each in (bell, *descriptors):
            poll.register(each, select.POLLIN)
        thread = Thread(
            target=self._wait, args=(poll, bell, seconds), name="txrdma: suspended links", daemon=True
        )
        try:
            thread.start()
        except RuntimeError:
            os.close(bell)
            os.close(ringer)
            raise
        self._bell, self._ringer, self._thread = bell, ringer, thread

    def _wait(self, poll: select.poll, bell: int, seconds: float | None) -> None:
        found = poll.poll(None if seconds is None else max(seconds, 0.0) * 1000)
        if all(descriptor != bell for descriptor, _ in found):
            self._reactor.callFromThread(self._ready)

    def stop(self) -> None:
        """Stop the thread, after which the descriptors may be closed. Idempotent."""
        thread, self._thread = self._thread, None
        if thread is not None:
            os.close(self._ringer)  # makes the other end ready
            thread.join()
            os.close(self._bell)
