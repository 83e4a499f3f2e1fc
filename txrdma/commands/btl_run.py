"""C{txrdma btl-run}: runs a program in several processes, which form a group."""

from __future__ import annotations

import os
import shutil
import socket
import sys
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from getopt import getopt
from typing import Any

from twisted.python import usage

from txrdma.btl.groups.launching import Launch, ProcessEnd
from txrdma.btl.groups.terms import MOST_MEMBERS
from txrdma.commands.common.interruption import Interruption
from txrdma.commands.common.options import CommandOptions as BaseOptions
from txrdma.commands.common.options import INTERRUPTED


class CommandOptions(BaseOptions):
    """Options of C{txrdma btl-run}: the number of processes, and the program with its arguments."""

    synopsis = "[options] PROGRAM [arguments]"
    longdesc = (
        "Run a program in several processes of this host, which form a group: see txrdma.btl.Group. A "
        "program whose name ends with .py is run by this Python. The first process reads the standard "
        "input. If a process fails, the others have 5 seconds to end, then they are terminated, and the exit "
        "status is that of the first one that has failed, or 128 and its signal. A process that has failed "
        "because of another one does not count."
    )
    isCancelledByInterrupts = False
    optFlags = [["prefix", "p", "Write the rank before each line of output."]]
    optParameters = [["members", "n", None, "Number of processes. [default: that of processors]", int]]

    parse = staticmethod(getopt)  # what follows the program belongs to it

    def parseArgs(self, *words: str) -> None:
        self["command"] = list(words)

    def postOptions(self) -> None:
        if self["members"] is None:
            self["members"] = min(len(os.sched_getaffinity(0)), MOST_MEMBERS)
        if not 1 <= self["members"] <= MOST_MEMBERS:
            raise usage.UsageError(f"--members {self['members']}: expected 1 to {MOST_MEMBERS}")
        if not self["command"]:
            raise usage.UsageError("expected a program")
        program = self["command"][0]
        if program.endswith(".py"):
            if not os.path.exists(program):
                raise usage.UsageError(f"there is no file {program}")
            self["command"].insert(0, sys.executable)
        elif shutil.which(program) is None:
            raise usage.UsageError(f"there is no program {program}")


async def run(reactor: Any, options: CommandOptions) -> None:
    """Run the processes; exit with the status of the first one that has failed."""
    program = shutil.which(options["command"][0])
    launch = Launch(reactor, options["members"], [program, *options["command"][1:]], bool(options["prefix"]))
    async with Interruption(reactor) as interruption:
        interruption.then = launch.interrupt
        with reserved() as (host, port):
            environment = {**os.environ, "MASTER_ADDR": host, "MASTER_PORT": str(port)}
            await launch.run(environment, lambda end: None if interruption.has else _report(end))
    if interruption.has:
        raise SystemExit(INTERRUPTED)
    if launch.failed is not None:
        raise SystemExit(launch.failed.status)


@contextmanager
def reserved() -> Iterator[tuple[str, int]]:
    """
    Reserve a port of 127.0.0.1 for a listener that sets C{SO_REUSEADDR}: no other program is given it.

    It is for C{torch.distributed}, whose first process listens there.
    """
    with socket.socket() as holder:
        holder.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        holder.bind(("127.0.0.1", 0))
        yield holder.getsockname()


def _report(end: ProcessEnd) -> None:
    process = f" (process {end.pid})" if end.pid else ""
    with suppress(OSError):  # nobody reads it
        print(f"txrdma btl-run: rank {end.rank} has failed: {end.text}{process}", file=sys.stderr, flush=True)
