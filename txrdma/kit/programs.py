"""Output of other programs, which may hang, fail, or print too much."""

from __future__ import annotations

import os
import shutil
from collections.abc import Sequence
from typing import Any, Final

from twisted.internet.defer import Deferred, TimeoutError
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.interfaces import IProcessTransport
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from txrdma.error import DeviceUnavailable
from txrdma.kit.strings import escapedText

_MOST_ERRORS: Final = 500
"""Octets of error messages that are retained."""


class _Output(ProcessProtocol):
    """Collects the output of a process up to a limit, beyond which the process is killed."""

    transport: IProcessTransport

    def __init__(self, mostOctets: int, written: bytes) -> None:
        self.ended: Deferred[bytes] = Deferred(lambda _: self._kill())
        self._most = mostOctets
        self._written = written
        self._output = bytearray()
        self._errors = b""

    def connectionMade(self) -> None:
        if self._written:
            self.transport.write(self._written)
            self.transport.closeStdin()

    def outReceived(self, data: bytes) -> None:
        self._output += data
        if len(self._output) > self._most:
            self._kill()
            self._fail(f"it prints more than {self._most} octets")

    def errReceived(self, data: bytes) -> None:
        self._errors = (self._errors + data)[:_MOST_ERRORS]

    def processEnded(self, reason: Failure) -> None:
        status = reason.value.exitCode if reason.value is not None else None  # type: ignore[attr-defined]
        if status:
            self._fail(escapedText(self._errors.strip()) or f"it ended with status {status}")
        elif status is None:
            self._fail("a signal has ended it")
        elif not self.ended.called:
            self.ended.callback(bytes(self._output))

    def _fail(self, why: str) -> None:
        if not self.ended.called:
            self.ended.errback(DeviceUnavailable(why))

    def _kill(self) -> None:
        self._output.clear()
        try:
            self.transport.signalProcess("KILL")
        except ProcessExitedAlready:
            pass
        self.transport.loseConnection()  # its children may have the pipes


async def outputOf(
    reactor: Any, command: Sequence[str], seconds: float, mostOctets: int, written: bytes = b""
) -> bytes:
    """
    Run a program, and return its output. When the call is cancelled the program is killed.

    @param seconds: time after which it is killed.
    @param written: its standard input.
    @raise DeviceUnavailable: it is not installed or fails, takes longer, or prints more.
    """
    name = command[0]
    program = shutil.which(name)
    if program is None:
        raise DeviceUnavailable(f"{name} is not installed here")
    output = _Output(mostOctets, written)
    try:
        reactor.spawnProcess(output, program, command, os.environ)
        return await output.ended.addTimeout(seconds, reactor)
    except TimeoutError as error:
        raise DeviceUnavailable(f"{name} has not ended after {seconds:g} s") from error
    except (OSError, DeviceUnavailable) as error:
        raise DeviceUnavailable(f"{name} failed: {error}") from error
