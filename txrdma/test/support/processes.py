"""
Processes for tests: programs whose output a test awaits on a running reactor, servers, and suspended ones.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from random import randrange
from typing import Any, Final, IO

from twisted.internet.defer import Deferred
from twisted.internet.protocol import ProcessProtocol
from twisted.trial.unittest import SynchronousTestCase

import txrdma

CHECKOUT: Final = Path(txrdma.__file__).parent.parent
"""Folder in which programs import the package under test."""


def loopbackAddress() -> str:
    """Return a loopback address that is probably unused."""
    return ".".join(["127", *(str(randrange(2, 250)) for _ in range(3))])


def groupAddress() -> str:
    """Return the address of a local multicast group that is probably unused."""
    return f"239.255.{randrange(256)}.{randrange(256)}"


def started(
    test: SynchronousTestCase, *words: str, before: Sequence[str] = (), **options: Any
) -> subprocess.Popen[str]:
    """
    Start a Python process with these arguments, which is killed at the end of a test.

    @param before: words before the command.
    @param options: further options of C{Popen}, such as C{stderr}.
    """
    options = {"cwd": CHECKOUT, "stdout": subprocess.PIPE, "text": True, **options}
    process: subprocess.Popen[str] = subprocess.Popen([*before, sys.executable, *words], **options)
    test.addCleanup(process.communicate)
    test.addCleanup(process.kill)
    return process


def firstLine(process: subprocess.Popen[str]) -> str:
    """Return the next line that a process prints, without its end."""
    assert process.stdout is not None
    return process.stdout.readline().rstrip("\n")


def suspend(pid: int) -> None:
    """
    Stop a child process with SIGSTOP, and wait until it has stopped.

    C{kill} returns earlier: other threads of the process run until one of them has received the signal.
    """
    os.kill(pid, signal.SIGSTOP)
    os.waitid(os.P_PID, pid, os.WSTOPPED)


class Program(ProcessProtocol):
    """
    A process that prints lines; what it writes to standard error is passed on.

    @ivar ended: fires when the process has ended; C{status} is its exit status, None after a signal.
    """

    transport: Any
    status: int | None = None

    def __init__(self) -> None:
        self.ended: Deferred[None] = Deferred()
        self._output = b""
        self._waiting: Deferred[str] | None = None

    @classmethod
    def start(cls, test: SynchronousTestCase, *words: str, **variables: str) -> Program:
        """Start a command, with further variables in its environment, until the end of a test."""
        from twisted.internet import reactor

        program = cls()
        spawn: Any = reactor.spawnProcess
        spawn(program, words[0], words, {**os.environ, **variables}, str(CHECKOUT))
        test.addCleanup(program.kill)
        return program

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
        """Return whether there is no further output."""
        return not self._output

    def errReceived(self, data: bytes) -> None:
        sys.stderr.buffer.write(data)

    def processEnded(self, reason: Any) -> None:
        self.status = reason.value.exitCode
        self.ended.callback(None)
        if self._waiting is not None:
            self._waiting.errback(reason)

    async def kill(self) -> None:
        """Kill the process if it has not ended, and wait for its end."""
        if not self.ended.called:
            self.transport.signalProcess("KILL")
        await self.ended


def serve(kind: Any) -> None:
    """Serve the endpoint string in C{sys.argv[1]} with a protocol, print the port, and run the reactor."""
    from twisted.internet import reactor
    from twisted.internet.endpoints import serverFromString
    from twisted.internet.protocol import Factory

    listening: Any = serverFromString(reactor, sys.argv[1]).listen(Factory.forProtocol(kind))
    listening.addCallback(lambda port: print(port.getHost().port, flush=True))
    reactor.run()


@contextmanager
def serving(
    code: str, *words: str, stderr: IO[str] | int | None = None
) -> Iterator[tuple[subprocess.Popen[str], str]]:
    """Run a program that prints its port number; yield the process and the number, and kill the process."""
    command = [sys.executable, "-c", code, *words]
    with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=stderr, text=True, cwd=CHECKOUT) as server:
        try:
            assert server.stdout is not None
            number = server.stdout.readline().strip()
            assert number, "nobody listens"
            yield server, number
        finally:
            server.kill()


def printed(
    code: str, *words: str, seconds: float = 250.0, **variables: str
) -> subprocess.CompletedProcess[str]:
    """Run a program until it ends, with further variables, and return what it has printed."""
    command, environment = [sys.executable, "-c", code, *words], {**os.environ, **variables}
    return subprocess.run(
        command, capture_output=True, text=True, timeout=seconds, cwd=CHECKOUT, env=environment
    )
