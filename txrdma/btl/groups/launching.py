"""
The processes of a group: they start with their ranks and keys, and end together.

If a process fails, the others notice it by their connections, and exit with an error. Those that have not
exited after some seconds are terminated, and later killed. A process that cannot be started has failed.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessExitedAlready
from twisted.internet.protocol import ProcessProtocol
from twisted.python.failure import Failure

from txrdma.btl.groups.rendezvous import Rendezvous
from txrdma.kit.delayedcalls import Timer
from txrdma.kit.logs import signalName

GRACE_SECONDS: Final = 5.0
"""
Seconds in which members must exit after one has failed; and until they are killed after SIGTERM.
"""

INTERRUPT_SECONDS: Final = 1.0
"""Seconds in which members must exit after an interrupt, which terminals send to all of them."""

CANNOT_START: Final = 126
"""Exit status of a process that could not be started, as shells report it."""

CANNOT_WRITE: Final = 1
"""Exit status of a process whose output cannot be written."""

LONGEST_LINE: Final = 64 << 10
"""Bytes of output that are collected before they are written as a line."""

_READS: Final = 8
"""Calls of C{doRead} that read as much as a pipe holds, 64 KiB."""


class ProcessEnd(NamedTuple):
    """
    The end of a process.

    @ivar pid: 0 for a process that could not be started.
    @ivar status: the exit status as shells report it: 128 and the signal if a signal has ended the process;
        L{CANNOT_START} or L{CANNOT_WRITE}.
    """

    rank: int
    pid: int
    status: int
    text: str

    @classmethod
    def of(cls, rank: int, pid: int, reason: Any) -> ProcessEnd:
        """Return the end of a process, from Twisted's C{ProcessDone} or C{ProcessTerminated}."""
        number = getattr(reason, "signal", None)
        if number is not None:
            return cls(rank, pid, 128 + number, f"its process was ended by {signalName(number)}")
        status = reason.exitCode or 0
        return cls(rank, pid, status, f"its process has ended with status {status}")


class Prefixer:
    """Writes output line by line, each prefixed with the rank of its process."""

    def __init__(self, rank: int, write: Callable[[bytes], object]) -> None:
        self._prefix, self._write, self._rest = b"[%d] " % rank, write, b""

    def received(self, data: bytes) -> None:
        """Write complete lines, and parts of excessive length."""
        *lines, self._rest = (self._rest + data).split(b"\n")
        if len(self._rest) > LONGEST_LINE:
            lines.append(self._rest)
            self._rest = b""
        if lines:
            self._write(b"".join(self._prefix + line + b"\n" for line in lines))

    def end(self) -> None:
        """Write the last, incomplete line."""
        if self._rest:
            self.received(b"\n")


class _MemberProcess(ProcessProtocol):
    """The process of a member."""

    def __init__(self, rank: int, exited: Callable[[ProcessEnd], None], ended: Callable[[int], None]) -> None:
        """
        @param exited: called when the process has exited, or its output cannot be written.
        @param ended: called with the rank when all its output has been written as well, which its own child
            processes may continue.
        """
        self._rank, self._exited, self._ended = rank, exited, ended
        self._out = Prefixer(rank, _writer(sys.stdout))
        self._error = Prefixer(rank, _writer(sys.stderr))
        self._pid = 0

    def connectionMade(self) -> None:
        process: Any = self.transport
        self._pid = process.pid

    def outReceived(self, data: bytes) -> None:
        self._report(1, self._out.received, data)

    def errReceived(self, data: bytes) -> None:
        self._report(2, self._error.received, data)

    def processExited(self, reason: Failure) -> None:
        self._exited(ProcessEnd.of(self._rank, self._pid, reason.value))

    def processEnded(self, reason: Failure) -> None:
        self._report(1, self._out.end)
        self._report(2, self._error.end)
        self._ended(self._rank)

    def closeOutput(self) -> None:
        """Write the output that has arrived, and close the pipes: child processes may keep them open."""
        process: Any = self.transport
        for pipe in list(process.pipes.values()):
            for _ in range(_READS):
                pipe.doRead()
        process.loseConnection()

    def _report(self, descriptor: int, write: Callable[..., object], *data: bytes) -> None:
        """Write output; if that is impossible, for example after C{| head}, the process has failed."""
        try:
            write(*data)
        except OSError as error:
            process: Any = self.transport
            process.closeChildFD(descriptor)
            text = f"its output cannot be written: {error}"
            self._exited(ProcessEnd(self._rank, self._pid, CANNOT_WRITE, text))


def _writer(stream: Any) -> Callable[[bytes], object]:
    def write(data: bytes) -> None:
        stream.buffer.write(data)
        stream.flush()

    return write


class Launch:
    """
    The processes of a group, from their start to the end of the last one.

    @ivar failed: the end of the process that has caused the first failure, or None.
    """

    def __init__(self, reactor: Any, size: int, command: Sequence[str], isPrefixed: bool = False) -> None:
        """
        @param command: the program, found in C{PATH} or by its path, and its arguments.
        @param isPrefixed: write output line by line with the rank as prefix; else processes inherit the
            standard output.
        """
        self.failed: ProcessEnd | None = None
        self._reactor, self._size, self._command = reactor, size, list(command)
        self._isPrefixed = isPrefixed
        self._rendezvous = Rendezvous(reactor, size)
        self._ends: dict[int, ProcessEnd] = {}
        self._processes = {rank: _MemberProcess(rank, self._exited, self._ended) for rank in range(size)}
        self._finished: Deferred[None] = Deferred()
        self._timer = Timer(reactor)

    async def run(self, environment: Mapping[str, str], reportFailure: Callable[[ProcessEnd], None]) -> None:
        """
        Start the processes, and wait until all have ended.

        @param environment: of the processes, to which the variables of members are added.
        @param reportFailure: called with L{failed}, when that process has ended.
        """
        self._reportFailure = reportFailure
        await self._rendezvous.listen()
        nothing = os.open(os.devnull, os.O_RDONLY)
        try:
            for rank in range(self._size):
                self._start(rank, environment, nothing)
        except OSError as error:
            for missing in range(rank, self._size):
                self._exited(ProcessEnd(missing, 0, CANNOT_START, f"its process cannot be started: {error}"))
                self._ended(missing)
        finally:
            os.close(nothing)
        await self._finished
        await self._rendezvous.close()

    def _start(self, rank: int, environment: Mapping[str, str], nothing: int) -> None:
        """Start a process; the first one inherits the standard input, as with C{mpirun}."""
        variables = {**environment, **self._rendezvous.terms(rank).environment()}
        variables.update(RANK=str(rank), LOCAL_RANK=str(rank))  # as torchrun does
        variables.update(WORLD_SIZE=str(self._size), LOCAL_WORLD_SIZE=str(self._size))
        output: dict[int, Any] = {1: 1, 2: 2}
        if self._isPrefixed:
            output = {1: "r", 2: "r"}
            variables.setdefault("PYTHONUNBUFFERED", "1")
        self._reactor.spawnProcess(  # a short process has ended, and been reported, when this returns
            self._processes[rank],
            self._command[0],
            self._command,
            variables,
            childFDs={0: nothing if rank else 0, **output},
        )

    def _exited(self, end: ProcessEnd) -> None:
        self._rendezvous.exited(end.rank, end.text)
        self._ends.setdefault(end.rank, end)
        self._decide()
        if end.status:
            self._timer.ensure(GRACE_SECONDS, self._terminate)

    def _decide(self, mayWait: bool = True) -> None:
        """Report the process that has caused the first failure; if it still runs, wait for its status."""
        first = next((end for end in self._ends.values() if end.status), None)
        if first is None or self.failed is not None:
            return
        cause = self._ends.get(self._rendezvous.causeOf(first.rank))
        if cause is None and mayWait:
            return
        self.failed = first if cause is None or not cause.status else cause
        self._reportFailure(self.failed)

    def _ended(self, rank: int) -> None:
        del self._processes[rank]
        if not self._processes:
            self._timer.stop()
            self._finished.callback(None)

    def interrupt(self) -> None:
        """Terminate the processes that have not ended after some seconds."""
        self._timer.ensure(INTERRUPT_SECONDS, self._terminate)

    def _terminate(self) -> None:
        self._decide(mayWait=False)
        self._timer.start(GRACE_SECONDS, self._kill)
        self._signal("TERM")

    def _kill(self) -> None:
        self._timer.start(GRACE_SECONDS, self._kill)  # child processes of a killed one may keep output open
        self._signal("KILL")

    def _signal(self, name: str) -> None:
        for member in list(self._processes.values()):
            process: Any = member.transport
            if process is None:
                continue  # it was not started
            try:
                process.signalProcess(name)
            except ProcessExitedAlready:
                member.closeOutput()
