"""Base classes for the options of all commands."""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Iterator, Sequence
from getopt import GetoptError, gnu_getopt
from typing import Any, Final, TextIO

from twisted.internet.interfaces import (
    IReactorCore,
    IReactorFDSet,
    IReactorTCP,
    IReactorThreads,
    IReactorTime,
    IReactorUNIX,
)
from twisted.python import usage

_NARROWEST: Final = 40
"""Columns of the help on narrower terminals: Twisted needs space for an option and a part of its text."""

INTERRUPTED: Final = 130
"""The exit status after Ctrl-C: 128 and SIGINT; L{txrdma.command} replaces it after another signal."""

OUTPUT_CUT: Final = 141
"""
The exit status after the reader of the output has closed its pipe: 128 and SIGPIPE, as shells report the end
of programs by this signal. Neither success nor findings are reported with incomplete output.
"""


class IReactor(IReactorCore, IReactorFDSet, IReactorTCP, IReactorThreads, IReactorTime, IReactorUNIX):
    """Parts of the reactor that commands use."""


def discardOutput(stream: TextIO | None = None) -> None:
    """Discard further and buffered output, by default the standard output, which would fail at exit."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), (stream or sys.stdout).fileno())


class BaseOptions(usage.Options):
    """
    Base of the options of C{txrdma} itself and of its commands.

    @cvar failureStatus: the exit status after an error, such as an invalid option or a full disk.
    """

    failureStatus = 1

    def opt_help(self) -> None:
        """Display this help and exit."""
        print(self)
        raise SystemExit(0)

    def opt_version(self) -> None:
        """Print the version, whether cores are compiled, and exit."""
        from txrdma.commands.common.installation import version  # not needed for help

        print(f"txrdma {version()}")
        raise SystemExit(0)

    def getUsage(self, width: int | None = None) -> str:
        """Return Twisted's help without empty defaults, and without those that an option's text contains."""
        if not width:
            columns = os.environ.get("COLUMNS", "")
            width = max(int(columns), _NARROWEST) if columns.isdecimal() else 80
        defaults = self.defaults
        parsed = {name for name, doc in self.docs.items() if "[default:" in (doc or "")}
        self.defaults = {
            name: value for name, value in defaults.items() if value != "" and name not in parsed
        }
        try:
            usage = super().getUsage(width)
        finally:
            self.defaults = defaults
        return usage


_LONGEST: Final = 20
"""Characters that messages show of very large numbers."""

_ENFORCED: Final = "Parameter type enforcement failed: "
"""Prefix of Twisted's message about a value that could not be converted."""

_WRONG_NUMBER: Final = "Wrong number of arguments."
"""Twisted's message about arguments that are missing, or too many."""

_EXPECTED: Final[dict[object, str]] = {int: "expected a whole number", float: "expected a number"}
"""Messages about values that Python's types could not convert."""


def _named(name: str, coerce: Callable[[str], object]) -> Callable[[str], object]:
    """Wrap a conversion so that its L{ValueError} begins with the name and text of the option."""

    def named(text: str) -> object:
        try:
            return coerce(text)
        except ValueError as error:
            raise ValueError(f"--{name} {text}: {_EXPECTED.get(coerce, error)}") from error

    return named


def _shown(value: float) -> str:
    """Return a number for a message; of a whole number that is too large for a float, the beginning."""
    try:
        return f"{value:.15g}"
    except OverflowError:
        return f"{int(value):#x}"[:_LONGEST] + "..."


class CommandOptions(BaseOptions):
    """
    Base of the options of a command; they may also follow its arguments.

    @cvar synopsis: arguments that follow the command's name.
    @cvar appendix: lines at the end of the help, printed unchanged, such as lists of known names.
    @cvar isCancelledByInterrupts: whether Ctrl-C cancels the command's coroutine, which can then clean up;
        the exit status is 130 unless it has ended by then. Otherwise the command handles Ctrl-C itself.
    @cvar parse: splits a command line into options and arguments; options may follow arguments.
    """

    synopsis = "[options]"
    appendix: Sequence[str] = ()
    isCancelledByInterrupts = True
    parse: Callable[..., Any] = staticmethod(gnu_getopt)

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        for name, parameter in getattr(self, "_dispatch", {}).items():
            if isinstance(parameter, usage.CoerceParameter):
                parameter.coerce = _named(name, parameter.coerce)

    def getUsage(self, width: int | None = None) -> str:
        return "\n".join((super().getUsage(width), *self.appendix, *([""] if self.appendix else [])))

    def getSynopsis(self) -> str:
        name = self.parent.subCommand if self.parent is not None else "command"
        return f"Usage: txrdma {name} {self.synopsis}".rstrip()

    def parseOptions(self, options: Sequence[str] | None = None) -> None:
        """Parse a command line as Twisted does, but by L{parse}."""
        given = sys.argv[1:] if options is None else options
        try:
            parsed, arguments = self.parse(list(given), self.shortOpt, self.longOpt)
            given = [*self._flat(parsed), "--", *arguments]
        except GetoptError as error:
            raise usage.UsageError(str(error)) from error
        try:
            super().parseOptions(given)  # type: ignore[no-untyped-call]  # of Twisted's
        except usage.UsageError as error:
            text = str(error).removeprefix(_ENFORCED)
            if text == _WRONG_NUMBER:
                expected = self.synopsis.removeprefix("[options]").strip()
                text = f"expected {expected or 'no arguments'}"
            raise usage.UsageError(text) from error

    def checkRanges(self, *ranges: tuple[str, float, float]) -> None:
        """
        Check options with numbers, each given as name, lowest and highest value; None is not checked.

        @raise usage.UsageError: a value is out of its range.
        """
        for name, low, high in ranges:
            if self[name] is not None and not low <= self[name] <= high:
                raise usage.UsageError(f"--{name} {_shown(self[name])}: expected {low} to {high}")

    def _flat(self, options: Sequence[tuple[str, str]]) -> Iterator[str]:
        for name, value in options:
            if name.startswith("--"):
                yield f"{name}={value}" if f"{name[2:]}=" in self.longOpt else name
            elif f"{name[1:]}:" in self.shortOpt:
                yield from (name, value)
            else:
                yield name


def columns(*rows: Sequence[str]) -> Iterator[str]:
    """Yield lines of aligned columns, for example for a command's help."""
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for row in rows:
        yield "  " + "  ".join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()


class TableOptions(CommandOptions):
    """Base of the options of a command that prints tables, which need C{rich}."""

    optFlags = [["json", None, "JSON instead of a table."]]

    @property
    def showsTables(self) -> bool:
        """Whether tables will be printed."""
        return not self["json"]
