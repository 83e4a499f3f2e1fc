"""
What the command lines of all commands have in common.
"""

from __future__ import annotations

from importlib.metadata import version

from twisted.internet.interfaces import (
    IReactorCore,
    IReactorFDSet,
    IReactorTCP,
    IReactorThreads,
    IReactorTime,
    IReactorUNIX,
)
from twisted.python import usage


class IReactor(IReactorCore, IReactorFDSet, IReactorTCP, IReactorThreads, IReactorTime, IReactorUNIX):
    """What commands may use of the reactor."""


class BaseOptions(usage.Options):
    """Of C{txrdma} itself and of its commands."""

    def opt_version(self) -> None:
        """Tell the version, then stop."""
        print(f"txrdma {version('txrdma')}")
        raise SystemExit(0)


class CommandOptions(BaseOptions):
    """
    Of a command.

    @cvar synopsis: what follows its name.
    @cvar isCancelledByInterrupts: at Ctrl-C what it does is cancelled, with what that has to clean up.
    """

    synopsis = "[options]"
    isCancelledByInterrupts = False

    def getSynopsis(self) -> str:
        name = self.parent.subCommand if self.parent is not None else "command"
        return f"Usage: txrdma {name} {self.synopsis}".rstrip()


class TellingOptions(CommandOptions):
    """Of a command that tells something."""

    optFlags = [["json", None, "JSON instead of a table."]]
