"""
Run one command in a guest: C{python -m lab [options] -- COMMAND [ARGUMENT...]}.

The guest is Debian's Linux kernel under QEMU, with this machine's files; changes are lost, except in the
folder that C{$LAB_OUT} names. The exit status is the command's, 124 after a timeout, or 125 if the guest
failed (its console follows) or cannot run here.
"""

from __future__ import annotations

import argparse
import os
import signal
import sys
import termios
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lab.guest import FAILED, Guest, GuestOptions, OUT_OF_TIME
from lab.needs import Unavailable

CONSOLE_LINES = 60
TIMEOUT_SECONDS = 600


def options() -> argparse.ArgumentParser:
    """Return the parser of the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m lab", description="Run a command in a Linux guest with RDMA."
    )
    add = parser.add_argument
    add("--rxe", action="store_true", help="with rxe0 on v0 (10.77.0.1) and rxe1 on v1 (10.77.0.2)")
    add("--smc", action="store_true", help="with rxe0 and rxe1, and SMC-R between v0 and v1")
    add(
        "--mtu",
        type=int,
        default=1500,
        help="of the wire between them; 4200 gives an RDMA MTU of 4096",
    )
    add("--out", type=Path, metavar="FOLDER", help="where files that the command leaves in $LAB_OUT go")
    add("--shell", action="store_true", help="give the command the terminal; it is sh when there is none")
    add("--timeout", type=float, metavar="SECONDS", help="for start and command; 600, or for ever in a shell")
    add("command", nargs=argparse.REMAINDER)
    return parser


@contextmanager
def _restoredTerminal() -> Iterator[None]:
    """Restore the terminal's settings, which QEMU changes for a shell."""
    if not sys.stdin.isatty():
        yield
        return
    settings = termios.tcgetattr(sys.stdin)
    try:
        yield
    finally:
        termios.tcsetattr(sys.stdin, termios.TCSADRAIN, settings)


def main(arguments: list[str] | None = None) -> int:
    """Run the command; return the exit status."""
    parser = options()
    chosen = parser.parse_args(arguments)
    command = chosen.command[1:] if chosen.command[:1] == ["--"] else chosen.command
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(128 + signal.SIGTERM))
    try:
        if not command:
            if not chosen.shell:
                parser.error("no command")
            command = ["sh", "-i"]
        wanted = GuestOptions(
            command,
            rxe=chosen.rxe,
            smc=chosen.smc,
            mtu=chosen.mtu,
            out=chosen.out,
            kernel=os.environ.get("LAB_KERNEL", "backports"),
            isShell=chosen.shell,
        )
        timeout = chosen.timeout or (None if chosen.shell else TIMEOUT_SECONDS)
        with _restoredTerminal(), Guest(wanted) as guest:
            status = guest.wait(timeout)
            if status == OUT_OF_TIME:
                print(f"lab: not done after {timeout:g} s", file=sys.stderr)
            if status == FAILED:
                sys.stderr.write("\n".join(guest.console.splitlines()[-CONSOLE_LINES:]) + "\n")
            return status
    except Unavailable as error:
        print(f"lab: {error}", file=sys.stderr)
        return FAILED
    except KeyboardInterrupt:
        return 128 + signal.SIGINT


if __name__ == "__main__":
    sys.exit(main())
