"""
Processes that tests suspend, and processes whose output a test awaits line by line on a running reactor.
"""

from __future__ import annotations

import os
import signal
import sys
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure


def suspend(pid: int) -> None:
    """
    Stop a child process with SIGSTOP, and wait until it has stopped.

    C{kill} returns before: the other threads of the process run until one of them has taken the signal.
    """
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)


class Program(ProcessProtocol):
    """
    A process that prints lines; what it writes to standard error is passed on.

    @ivar ended: fires when the process has ended.
    """

    transport: Any

    def __init__(self) -> None:
        self.ended: Deferred[None] = Deferred()
        self._output = b""
        self._waiting: Deferred[str] | None = None

    def line(self) -> Deferred[str]:
        """Return the next line of output; the Deferred fails if the process ends before."""
        waiting: Deferred[str] = Deferred()
        self._waiting = waiting
        self._report()
        return waiting

    def outReceived(self, data: bytes) -> None:
        self._output += data
        self._report()

    def _report(self) -> None:
        if b"\n" in self._output and self._waiting is not None:
            waiting, self._waiting = self._waiting, None
            line, _, self._output = self._output.partition(b"\n")
            waiting.callback(line.decode())

    @property
    def isQuiet(self) -> bool:
        """Whether there is no further output."""
        return not self._output

    def errReceived(self, data: bytes) -> None:
        sys.stderr.buffer.write(data)

    def processEnded(self, reason: Failure) -> None:
        self.ended.callback(None)
        if self._waiting is not None:
            self._waiting.errback(reason)

    async def kill(self) -> None:
        """Kill the process if it has not ended, and wait for its end."""
        if not self.ended.called:
            self.transport.signalProcess("KILL")
        await self.ended
