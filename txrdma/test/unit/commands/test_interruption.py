"""Signals during steps of commands that block the reactor."""

from __future__ import annotations

import io
import os
import signal
import sys
import threading
from contextlib import redirect_stdout
from functools import partial
from pathlib import Path
from unittest.mock import Mock

from twisted.trial.unittest import SynchronousTestCase

from txrdma.commands.common.interruption import endedBySignals, StopHandler
from txrdma.commands.common.sweeping import recorded
from txrdma.test.support.mad.command_decode import QUESTION
from txrdma.test.support.mad.commanding import CommandTestCase


class BlockingStepTests(SynchronousTestCase):
    def test_signals(self) -> None:
        """A signal ends the command with 128 and its number, and the handlers are restored afterwards."""
        numbers = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        usual = [signal.signal(number, lambda *_: None) for number in numbers]
        try:
            before = [signal.getsignal(number) for number in numbers]
            for number in numbers:
                with self.assertRaises(SystemExit) as raised, endedBySignals():
                    signal.raise_signal(number)
                self.assertEqual(raised.exception.code, 128 + number)
                self.assertEqual([signal.getsignal(each) for each in numbers], before)
        finally:
            for number, handler in zip(numbers, usual, strict=True):
                signal.signal(number, handler)

    def test_pending(self) -> None:
        """A signal that the reactor has not handled yet, as one during its start, ends the next such step."""
        reactor, stopped = Mock(), list[int]()
        handler = StopHandler(reactor, stopped.append)
        self.addCleanup(signal.signal, signal.SIGTERM, signal.signal(signal.SIGTERM, handler))
        signal.raise_signal(signal.SIGTERM)
        with self.assertRaises(SystemExit) as raised, endedBySignals():
            self.fail("the step began")
        self.assertEqual((raised.exception.code, stopped), (143, []))
        self.assertIs(signal.getsignal(signal.SIGTERM), handler)
        ((call, *arguments),) = (made.args for made in reactor.callFromThread.call_args_list)
        call(*arguments)  # in the reactor's next iteration
        with endedBySignals():
            self.assertEqual(stopped, [signal.SIGTERM])

    def test_ignored(self) -> None:
        """A signal that the process ignores, as by C{nohup}, is still ignored."""
        self.addCleanup(signal.signal, signal.SIGHUP, signal.signal(signal.SIGHUP, signal.SIG_IGN))
        with endedBySignals():
            signal.raise_signal(signal.SIGHUP)

    def test_otherThreads(self) -> None:
        """In other threads, which receive no signals, nothing changes."""
        seen: list[object] = []

        def step() -> None:
            with endedBySignals():
                seen.append(signal.getsignal(signal.SIGTERM))

        thread = threading.Thread(target=step)
        thread.start()
        thread.join()
        self.assertEqual(seen, [signal.getsignal(signal.SIGTERM)])


def interrupting() -> Mock:
    """Return a terminal at which somebody presses Ctrl-C."""
    terminal = Mock(buffer=None)
    for method in (terminal.read, terminal.readline):
        method.side_effect = partial(signal.raise_signal, signal.SIGINT)
    return terminal


class TerminalTests(CommandTestCase):
    def test_confirmation(self) -> None:
        """Ctrl-C answers the prompt before a change, and ends the command."""
        self.patch(sys, "stdin", interrupting())
        output = self.output("portstate", "9", "3", "disable")
        self.assertIn("disable port 3 of lid 9? [y/N]", output.errors)
        self.assertEqual(output.status, 130)

    def test_decode(self) -> None:
        """Ctrl-C ends the input of datagrams at a terminal."""
        self.patch(sys, "stdin", interrupting())
        self.assertEqual(self.output("decode").status, 130)


class PipeTests(CommandTestCase):
    def named(self, content: bytes) -> str:
        """Return the path of a pipe that contains this."""
        reading, writing = os.pipe()
        self.addCleanup(os.close, reading)
        os.write(writing, content)
        os.close(writing)
        return f"/proc/self/fd/{reading}"

    def test_closed(self) -> None:
        """A reader that closes the pipe early gets neither success nor findings as the exit status."""

        class Closed(io.StringIO):
            def write(self, text: str) -> int:
                raise BrokenPipeError

        for words in (("nodes",), ("check",), ("perfquery",)):
            with redirect_stdout(Closed()):
                ending = self.begin(*words)
                self.pump(60.0)
            self.assertEqual(self.failureResultOf(ending, SystemExit).value.code, 141)

    def test_snapshot(self) -> None:
        """A snapshot may come from a pipe, as by the shell's process substitution."""
        path = self.named(self.output("discover", "--json").out.encode())
        self.assertEqual(len(recorded(path).fabric.nodes), 9)

    def test_decode(self) -> None:
        """Captures and hexadecimal text to decode may come from pipes."""
        text = QUESTION.hex().encode()
        self.assertIn("GET NodeInfo", self.output("decode", self.named(text)).out)
        capture = Path(__file__).parents[2] / "vectors" / "smc-second.pcap"
        expected = self.output("decode", str(capture)).out
        self.assertIn("# connection 1", expected)
        self.assertEqual(self.output("decode", self.named(capture.read_bytes())).out, expected)
        path = self.named(b"no digits")
        self.assertIn(f"{path} contains neither", str(self.output("decode", path).status))
