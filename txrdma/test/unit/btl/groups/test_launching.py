"""Launching the processes of a group, on a simulated reactor that starts no processes."""

from __future__ import annotations

import io
import sys
from collections.abc import Callable
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessExitedAlready, ProcessTerminated
from twisted.internet.testing import MemoryReactorClock, StringTransport
from twisted.python import usage
from twisted.python.failure import Failure
from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.groups.launching import (
    GRACE_SECONDS,
    INTERRUPT_SECONDS,
    Launch,
    LONGEST_LINE,
    Prefixer,
    ProcessEnd,
)
from txrdma.btl.groups.rendezvous import _MemberLines
from txrdma.btl.groups.terms import GroupTerms, MOST_MEMBERS
from txrdma.commands.btl_run import CommandOptions

SIZE = 3


class Pipe:
    """A pipe with output that the reactor has not read."""

    def __init__(self, received: Callable[[bytes], None]) -> None:
        self._received, self.data = received, b""

    def doRead(self) -> None:
        if self.data:
            data, self.data = self.data, b""
            self._received(data)


class Process:
    """A simulated process."""

    def __init__(self, protocol: Any, command: list[str], environment: dict[str, str], fds: object) -> None:
        self.pid = 100 + int(environment["TXRDMA_GROUP_RANK"])
        self.protocol, self.command, self.environment, self.fds = protocol, command, environment, fds
        self.signals: list[str] = []
        self.closed: list[int] = []
        self.pipes = {1: Pipe(protocol.outReceived), 2: Pipe(protocol.errReceived)}
        self.hasEnded = False

    def signalProcess(self, name: str) -> None:
        if self.hasEnded:
            raise ProcessExitedAlready()
        self.signals.append(name)

    def closeChildFD(self, descriptor: int) -> None:
        self.closed.append(descriptor)

    def loseConnection(self) -> None:
        """Close all pipes."""
        self.protocol.processEnded(Failure(ProcessDone(0)))

    def exit(self, status: int = 0, signal: int | None = None) -> None:
        """Exit, while another process has the pipes open."""
        self.hasEnded = True
        failed = ProcessTerminated(status or None, signal) if status or signal else ProcessDone(0)
        self.protocol.processExited(Failure(failed))

    def end(self, status: int = 0, signal: int | None = None) -> None:
        self.exit(status, signal)
        self.loseConnection()


class UnreadTransport(StringTransport):
    """The connection of a member to the rendezvous, with data that the reactor has not read."""

    def __init__(self, lines: _MemberLines) -> None:
        super().__init__()
        self.unread, self._lines = b"", lines

    def doRead(self) -> None:
        data, self.unread = self.unread, b""
        self._lines.dataReceived(data)


class ProcessReactor(MemoryReactorClock):
    """
    A reactor that records processes.

    @ivar isHasty: whether processes end while they are started, as Twisted reports it if they are short.
    @ivar mostProcesses: number of processes after which no other one can be started.
    """

    isHasty = False
    mostProcesses = SIZE

    def __init__(self) -> None:
        super().__init__()
        self.processes: list[Process] = []

    def spawnProcess(
        self, protocol: Any, path: str, command: Any, environment: Any, childFDs: Any
    ) -> Process:
        if len(self.processes) == self.mostProcesses:
            raise OSError("no more processes")
        process = Process(protocol, command, environment, childFDs)
        self.processes.append(process)
        protocol.makeConnection(process)
        if self.isHasty:
            process.end()
        return process


class LaunchTests(SynchronousTestCase):
    """The exit of processes, and the end of the whole group."""

    def launch(self, isPrefixed: bool = False) -> None:
        self.reactor = ProcessReactor()
        self.failures: list[ProcessEnd] = []
        self.launched = Launch(self.reactor, SIZE, ["/bin/program", "x"], isPrefixed)
        running = self.launched.run({"PATH": "/bin"}, self.failures.append)
        self.running = Deferred.fromCoroutine(running)
        self.processes = self.reactor.processes

    def test_start(self) -> None:
        """Each process gets its own environment; only the first one inherits the standard input."""
        self.launch()
        self.assertEqual([each.command for each in self.processes], [["/bin/program", "x"]] * SIZE)
        terms = [GroupTerms.fromEnvironment(each.environment) for each in self.processes]
        self.assertEqual([each and (each.rank, each.size) for each in terms], [(0, 3), (1, 3), (2, 3)])
        self.assertEqual(self.processes[0].fds, {0: 0, 1: 1, 2: 2})
        self.assertNotEqual(self.processes[1].fds, {0: 0, 1: 1, 2: 2})
        self.assertEqual(self.processes[0].environment["PATH"], "/bin")
        names = ("RANK", "LOCAL_RANK", "WORLD_SIZE", "LOCAL_WORLD_SIZE")
        found = ["".join(each.environment[name] for name in names) for each in self.processes]
        self.assertEqual(found, ["0033", "1133", "2233"])  # as in torchrun

    def test_status(self) -> None:
        """The first failure is reported once; those that it causes are not."""
        self.launch()
        self.processes[1].end(signal=9)
        self.processes[0].end(status=1)
        self.processes[2].end()
        self.successResultOf(self.running)
        self.assertEqual(self.failures, [ProcessEnd(1, 101, 137, "its process was ended by SIGKILL")])
        self.assertEqual(self.launched.failed, self.failures[0])
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def connect(self, rank: int) -> UnreadTransport:
        """Connect a member to the rendezvous, which reads nothing until its process has ended."""
        rendezvous = self.launched._rendezvous
        rendezvous._admit(rank, None)
        lines = rendezvous.buildProtocol(None)
        transport = UnreadTransport(lines)
        lines.makeConnection(transport)
        return transport

    def blame(self, rank: int, other: int) -> None:
        """Let a member report that its group has failed because of another one."""
        self.connect(rank).unread += b'{"because": %d}\n' % other

    def test_cause(self) -> None:
        """Members that exit before the one because of which they have failed are not reported."""
        self.launch()
        self.blame(2, 1)
        self.blame(0, 2)
        self.processes[0].end(status=1)
        self.processes[2].end(status=1)
        self.assertEqual(self.failures, [])
        self.processes[1].end(status=3)
        self.successResultOf(self.running)
        self.assertEqual(self.failures, [ProcessEnd(1, 101, 3, "its process has ended with status 3")])
        self.assertEqual(self.launched.failed, self.failures[0])

    def test_causeHasNotFailed(self) -> None:
        """If the blamed member exits without an error, the one that has failed is reported."""
        self.launch()
        self.blame(2, 1)
        self.processes[2].end(status=4)
        self.processes[1].end()
        self.assertEqual([(end.rank, end.status) for end in self.failures], [(2, 4)])

    def test_causeDoesNotEnd(self) -> None:
        """If the blamed member still runs after some seconds, the one that has failed is reported."""
        self.launch()
        self.blame(2, 1)
        self.processes[2].end(status=4)
        self.reactor.advance(GRACE_SECONDS)
        self.assertEqual([(end.rank, end.status) for end in self.failures], [(2, 4)])
        self.assertEqual(self.processes[1].signals, ["TERM"])

    def test_membersThatBlameEachOther(self) -> None:
        """One of the members that blame each other is reported."""
        self.launch()
        self.blame(2, 1)
        self.blame(1, 2)
        for process in self.processes:
            process.end(status=1)
        self.successResultOf(self.running)
        self.assertEqual(len(self.failures), 1)

    def test_leftBeforeExit(self) -> None:
        """A member that has left before its process ended has not failed, even if that is read late."""
        self.launch()
        self.connect(1).unread += b'{"leave": true}\n'
        self.processes[1].end()
        self.assertIsNone(self.launched._rendezvous.failure)

    def test_endsWhileStarting(self) -> None:
        """The exit of processes is detected even if they exit before C{spawnProcess} returns."""
        self.patch(ProcessReactor, "isHasty", True)
        self.launch()
        self.assertEqual(len(self.processes), SIZE)
        self.successResultOf(self.running)
        self.assertIsNone(self.launched.failed)

    def test_realTimeSignal(self) -> None:
        """A process that is killed by a signal without a name is reported as failed."""
        self.launch()
        for process in self.processes:
            process.end(signal=40)
        self.successResultOf(self.running)
        self.assertEqual(self.failures, [ProcessEnd(0, 100, 168, "its process was ended by signal 40")])

    def test_escalation(self) -> None:
        """Processes that still run after a failure get SIGTERM, and later SIGKILL."""
        self.launch()
        self.processes[1].end(status=3)
        self.reactor.advance(GRACE_SECONDS - 0.1)
        self.assertEqual(self.processes[0].signals, [])
        self.reactor.advance(0.2)
        self.assertEqual(self.processes[0].signals, ["TERM"])
        self.reactor.advance(GRACE_SECONDS)
        self.assertEqual(self.processes[0].signals, ["TERM", "KILL"])
        self.processes[0].end(signal=9)
        self.processes[2].end()
        self.successResultOf(self.running)
        self.assertEqual(self.failures[0].status, 3)

    def test_outputStaysOpen(self) -> None:
        """The failure of a process is noticed at its exit, though a child process of it may still write."""
        self.launch(isPrefixed=True)
        self.processes[1].exit(status=3)
        self.assertEqual(self.failures[0].status, 3)
        self.processes[2].end()
        self.reactor.advance(GRACE_SECONDS)
        self.assertEqual(self.processes[0].signals, ["TERM"])
        self.assertNoResult(self.running)
        self.processes[0].end(signal=15)
        self.successResultOf(self.running)

    def test_killedWithOpenOutput(self) -> None:
        """A process that is killed has ended, though a child process of it does not close its output."""
        self.launch(isPrefixed=True)
        self.processes[0].end()
        self.processes[1].end(status=3)
        self.reactor.advance(GRACE_SECONDS)
        self.reactor.advance(GRACE_SECONDS)
        self.assertEqual(self.processes[2].signals, ["TERM", "KILL"])
        self.processes[2].exit(signal=9)
        self.assertNoResult(self.running)
        self.reactor.advance(GRACE_SECONDS)
        self.successResultOf(self.running)
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_unreadOutput(self) -> None:
        """Output that the blocked reactor has not read is written when the pipes are closed."""
        out = io.TextIOWrapper(io.BytesIO())
        self.patch(sys, "stdout", out)
        self.launch(isPrefixed=True)
        self.processes[1].pipes[1].data = b"one\nlast"
        self.processes[1].exit(status=3)
        self.reactor.advance(GRACE_SECONDS)
        self.assertEqual(out.buffer.getvalue(), b"[1] one\n[1] last\n")

    def test_exitsBeforeItsOutputEnds(self) -> None:
        """A process without failure whose child process still writes ends when that has closed its output."""
        self.launch(isPrefixed=True)
        self.processes[0].end()
        self.processes[1].end()
        self.processes[2].exit()
        self.assertNoResult(self.running)
        self.assertEqual(self.reactor.getDelayedCalls(), [])
        self.processes[2].loseConnection()
        self.successResultOf(self.running)
        self.assertIsNone(self.launched.failed)

    def test_cannotStart(self) -> None:
        """If a process cannot be started, this is reported as its failure, and the started ones are ended."""
        self.patch(ProcessReactor, "mostProcesses", 1)
        self.launch()
        self.assertEqual(
            self.failures, [ProcessEnd(1, 0, 126, "its process cannot be started: no more processes")]
        )
        self.reactor.advance(GRACE_SECONDS)
        self.reactor.advance(GRACE_SECONDS)
        self.assertEqual([each.signals for each in self.processes], [["TERM", "KILL"]])
        self.assertNoResult(self.running)
        self.processes[0].end(signal=9)
        self.successResultOf(self.running)
        self.assertEqual(self.launched.failed, self.failures[0])
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_cannotStartAny(self) -> None:
        """If the first process cannot be started, the launch ends at once."""
        self.patch(ProcessReactor, "mostProcesses", 0)
        self.launch()
        self.successResultOf(self.running)
        self.assertEqual([end.rank for end in self.failures], [0])

    def test_interrupt(self) -> None:
        """After an interrupt, processes that still run are terminated sooner."""
        self.launch()
        self.processes[1].end(status=130)
        self.launched.interrupt()
        self.reactor.advance(INTERRUPT_SECONDS)
        self.assertEqual([each.signals for each in self.processes], [["TERM"], [], ["TERM"]])
        self.processes[0].end()
        self.processes[2].end()
        self.successResultOf(self.running)
        self.assertEqual(self.reactor.getDelayedCalls(), [])

    def test_prefix(self) -> None:
        out, error = (io.TextIOWrapper(io.BytesIO()) for _ in range(2))
        self.patch(sys, "stdout", out)
        self.patch(sys, "stderr", error)
        self.launch(isPrefixed=True)
        self.assertEqual(self.processes[0].fds, {0: 0, 1: "r", 2: "r"})
        self.assertEqual(self.processes[1].environment["PYTHONUNBUFFERED"], "1")
        self.processes[1].protocol.outReceived(b"one\ntw")
        self.processes[0].protocol.errReceived(b"bad\n")
        self.processes[1].protocol.outReceived(b"o\nrest")
        for each in self.processes:
            each.end()
        self.assertEqual(out.buffer.getvalue(), b"[1] one\n[1] two\n[1] rest\n")
        self.assertEqual(error.buffer.getvalue(), b"[0] bad\n")

    def test_closedOutput(self) -> None:
        """When nobody reads the output, a process has failed and its pipe is closed; its end is noticed."""

        class Closed(io.RawIOBase):
            def writable(self) -> bool:
                return True

            def write(self, data: Any) -> int:
                raise BrokenPipeError("nobody reads")

        for name in ("stdout", "stderr"):
            self.patch(sys, name, io.TextIOWrapper(io.BufferedWriter(Closed())))
        self.launch(isPrefixed=True)
        self.processes[0].protocol.outReceived(b"one\n")
        self.processes[1].protocol.errReceived(b"two\n")
        self.processes[2].protocol.outReceived(b"rest")
        self.assertEqual([each.closed for each in self.processes], [[1], [2], []])
        self.assertEqual(self.failures, [ProcessEnd(0, 100, 1, "its output cannot be written: nobody reads")])
        for each in self.processes:
            each.end()
        self.successResultOf(self.running)

    def test_longLine(self) -> None:
        """Output without a line end is buffered only up to a limit."""
        written: list[bytes] = []
        prefixer = Prefixer(7, written.append)
        prefixer.received(b"x" * LONGEST_LINE)
        self.assertEqual(written, [])
        prefixer.received(b"x")
        self.assertEqual(written, [b"[7] " + b"x" * (LONGEST_LINE + 1) + b"\n"])


class OptionsTests(SynchronousTestCase):
    def parsed(self, *words: str) -> CommandOptions:
        options = CommandOptions()
        options.parseOptions(words)
        return options

    def test_program(self) -> None:
        """Options after the program's name are passed to it; Python files are run with Python."""
        options = self.parsed("-n", "3", "-p", "sh", "-n", "--json")
        self.assertEqual((options["members"], options["prefix"]), (3, 1))
        self.assertEqual(options["command"], ["sh", "-n", "--json"])
        self.assertEqual(self.parsed(__file__, "-x")["command"], [sys.executable, __file__, "-x"])
        self.assertGreaterEqual(self.parsed("sh")["members"], 1)

    def test_wrong(self) -> None:
        """A missing program, an unknown program and an invalid number are reported."""
        for words, text in (
            ([], "expected a program"),
            (["/no/such/program"], "no program /no/such/program"),
            (["/no/such.py"], "no file /no/such.py"),
            (["-n", "0", "echo"], "--members 0: expected 1 to"),
            (["-n", str(MOST_MEMBERS + 1), "echo"], "expected 1 to"),
            (["--bad", "echo"], "option --bad not recognized"),
        ):
            self.assertRegex(str(self.assertRaises(usage.UsageError, self.parsed, *words)), text)
