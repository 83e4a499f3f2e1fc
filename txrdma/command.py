"""
The C{txrdma} command: parses the command line, and runs one of the modules of L{txrdma.commands}.

Errors that a user can cause are printed in one line, without a traceback.
"""

from __future__ import annotations

import gc
import io
import os
import signal
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Any

from twisted.internet.defer import CancelledError, Deferred
from twisted.internet.error import CannotListenError, ConnectError, ReactorNotRunning
from twisted.internet.task import react
from twisted.python import usage
from twisted.python.failure import Failure

from txrdma.commands.common.interruption import StopHandler
from txrdma.commands.common.options import BaseOptions, discardOutput, INTERRUPTED, IReactor, OUTPUT_CUT
from txrdma.commands.common.registry import command, COMMANDS, FABRICS, GROUPS
from txrdma.error import MalformedDevice, RDMAError


class TxrdmaOptions(BaseOptions):
    """The command line up to the command's name."""

    synopsis = "Usage: txrdma [options] command [command's options]"
    longdesc = "Inspect and measure RDMA on this host and in InfiniBand fabrics."
    subCommands = [[each.name, None, each.makeOptions, each.summary] for each in COMMANDS]

    def getUsage(self, width: int | None = None) -> str:
        """Return Twisted's help, with the commands in groups."""
        text = super().getUsage(width)
        if hasattr(self, "subOptions"):
            return text
        column = max(len(each.name) for each in COMMANDS)
        shown = [text.partition("Commands:")[0].rstrip()]
        for group in GROUPS:
            rows = [f"    {each.name:{column}}  {each.summary}" for each in COMMANDS if each.group == group]
            if rows:
                shown.append("\n".join([f"{group}:", *rows]))
        shown.append("Options of a command: txrdma COMMAND --help\n")
        return "\n\n".join(shown)

    def postOptions(self) -> None:
        if self.subCommand is None:
            raise usage.UsageError(
                "no command is given; the commands are: " + ", ".join(each.name for each in COMMANDS)
            )


async def _runCommand(reactor: IReactor, options: TxrdmaOptions) -> None:
    assert options.subCommand is not None  # checked by postOptions
    try:
        await command(options.subCommand).load().run(reactor, options.subOptions)
    except BrokenPipeError:  # the reader has closed the pipe, for example "| head"
        raise SystemExit(OUTPUT_CUT) from None
    except (RDMAError, MalformedDevice, OSError, ConnectError, CannotListenError) as error:
        raise SystemExit(f"{_nameOf(options)}: {error}") from error


def run(reactor: IReactor, options: TxrdmaOptions) -> Deferred[None]:
    """Run the command of parsed options."""
    return Deferred.fromCoroutine(_runCommand(reactor, options))


def _interruptible(reactor: IReactor, options: TxrdmaOptions) -> Deferred[None]:
    """
    Run the command of parsed options; Ctrl-C cancels it if C{isCancelledByInterrupts} is set.

    It begins when the reactor runs, so that processes that it starts do not inherit a blocked SIGINT.
    """
    ended: Deferred[None] = Deferred()

    def begin() -> None:
        done = run(reactor, options)
        if options.subOptions.isCancelledByInterrupts:
            done.addErrback(_cancelled)
            reactor.addSystemEventTrigger("before", "shutdown", interrupt, done)
        done.addBoth(end)

    def interrupt(done: Deferred[None]) -> None:
        done.cancel()
        end(Failure(SystemExit(INTERRUPTED)))  # do not wait until peers have confirmed the end

    def end(result: Any) -> None:
        if not ended.called:
            ended.callback(result)

    reactor.callWhenRunning(begin)
    return ended


def _cancelled(failure: Failure) -> None:
    if failure.check(CancelledError):
        raise SystemExit(INTERRUPTED)
    failure.raiseException()


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command line, by default that of the process, and exit: the entry point of the console script."""
    _openStreams()
    options = TxrdmaOptions()  # type: ignore[no-untyped-call]  # of Twisted's
    with _ending(options):
        reactor = _asked(options, sys.argv[1:] if arguments is None else arguments)
        with _stoppedBySignals(reactor):
            react(_interruptible, (options,), reactor)


@contextmanager
def _ending(options: TxrdmaOptions) -> Iterator[None]:
    """Write all output before the process exits, and exit with the status that the command documents."""
    ending = SystemExit(0)
    try:
        yield
    except KeyboardInterrupt:  # before the reactor handles SIGINT, or after it has stopped
        ending = SystemExit(INTERRUPTED)
    except BrokenPipeError:  # as in flush
        ending = SystemExit(OUTPUT_CUT)
    except SystemExit as error:
        ending = error
    except OSError as error:  # from help
        ending = SystemExit(f"{_nameOf(options)}: {error}")
    try:
        sys.stdout.flush()
    except BrokenPipeError:  # the reader has closed the pipe, for example "| head"
        discardOutput()
        if ending.code in (None, 0, 1):  # as below
            ending = SystemExit(OUTPUT_CUT)
    except OSError as error:  # for example, the disk is full
        discardOutput()
        if ending.code in (None, 0, 1):  # even after findings or differences, which nobody has seen
            ending = SystemExit(f"{_nameOf(options)}: {error}")
    except KeyboardInterrupt:  # while the reader of the pipe does not read
        discardOutput()
        ending = SystemExit(INTERRUPTED)
    parsed: Any = getattr(options, "subOptions", options)
    if isinstance(ending.code, str) and parsed.failureStatus != 1:
        print(ending.code, file=sys.stderr, flush=True)
        raise SystemExit(parsed.failureStatus)
    raise ending


class _Errors(io.TextIOWrapper):
    """The standard error: text that cannot be written is discarded, and does not change the exit status."""

    def write(self, text: str, /) -> int:
        try:
            return super().write(text)
        except OSError:
            discardOutput(self)
            return len(text)

    def flush(self) -> None:
        try:
            super().flush()
        except OSError:
            discardOutput(self)


def _nameOf(options: TxrdmaOptions) -> str:
    """Return the name of the command that begins its error messages."""
    return f"txrdma {options.subCommand}" if options.subCommand else "txrdma"


def _openStreams() -> None:
    """Replace closed standard streams by the null device; escape characters that their encodings lack."""
    for name, mode in (("stdin", "r"), ("stdout", "w"), ("stderr", "w")):
        if getattr(sys, name) is None:
            setattr(sys, name, open(os.devnull, mode))
    if isinstance(sys.stdout, io.TextIOWrapper):
        raw: object = sys.stdout.buffer
        if isinstance(raw, io.RawIOBase) and sys.stdout is sys.__stdout__:
            # By PYTHONUNBUFFERED: Python ignores that a pipe has taken only a part of a text.
            encoding, errors = sys.stdout.encoding, sys.stdout.errors
            sys.stdout = io.TextIOWrapper(io.BufferedWriter(raw), encoding, errors, line_buffering=True)
        sys.stdout.reconfigure(errors="backslashreplace")
    if isinstance(sys.stderr, io.TextIOWrapper) and sys.stderr is sys.__stderr__:  # so its buffer stays open
        sys.stderr = _Errors(sys.stderr.buffer, sys.stderr.encoding, sys.stderr.errors, line_buffering=True)


def _asked(options: TxrdmaOptions, arguments: Sequence[str]) -> Any:
    """Parse a command line, and return a reactor for its command."""
    with _importing():
        try:
            options.parseOptions(arguments)  # type: ignore[no-untyped-call]
        except usage.UsageError as error:
            name = _nameOf(options)
            raise SystemExit(f"{name}: {error}\nTry: {name} --help") from None
        assert options.subCommand is not None  # checked by postOptions
        asked = command(options.subCommand)
        asked.prepare(options.subOptions)
        return _reactorWithoutTLS() if asked.group == FABRICS else _reactor()


@contextmanager
def _stoppedBySignals(reactor: Any) -> Iterator[None]:
    """
    Stop the reactor by SIGINT, SIGTERM and SIGHUP unless they are ignored, and disregard further ones.

    The first signal determines the exit status of an interrupted command: 128 and its number, as in shells.
    SIGINT is blocked until the reactor runs: while it starts, SIGINT would only be logged. A process that was
    started with SIGINT blocked never receives it.
    """
    stopping: list[int] = []

    def handle() -> None:
        handler = StopHandler(reactor, stop)
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
            if signal.getsignal(number) is not signal.SIG_IGN:
                signal.signal(number, handler)
        unblock()

    def stop(number: int) -> None:
        with suppress(ReactorNotRunning):  # it is stopping
            reactor.stop()
            stopping.append(number)

    def unblock() -> None:
        signal.pthread_sigmask(signal.SIG_SETMASK, mask)

    usual = signal.getsignal(signal.SIGHUP)
    mask = signal.pthread_sigmask(signal.SIG_BLOCK, (signal.SIGINT,))
    reactor.addSystemEventTrigger("after", "startup", handle)
    try:
        yield
    except SystemExit as error:
        if stopping and error.code == INTERRUPTED:
            raise SystemExit(128 + stopping[0]) from None
        raise
    finally:
        signal.signal(signal.SIGHUP, usual)
        unblock()


def _reactor() -> Any:
    from twisted.internet import reactor

    return reactor


def _reactorWithoutTLS() -> Any:
    """Return the reactor, without the import of OpenSSL that takes a seventh of the start-up time."""
    if "OpenSSL" in sys.modules:
        return _reactor()
    sys.modules["OpenSSL"] = None  # type: ignore[assignment]  # None makes its import fail, as documented
    try:
        return _reactor()
    finally:
        del sys.modules["OpenSSL"]


@contextmanager
def _importing() -> Iterator[None]:
    """Import without garbage collection, because modules stay: it takes a tenth of the start-up time."""
    gc.disable()
    try:
        yield
    finally:
        if hasattr(gc, "freeze"):  # not in PyPy
            gc.freeze()
        gc.enable()
