"""
The C{txrdma} command as a program: C{python -m txrdma} and the console script.

Ctrl-C ends it silently even while its modules are still being imported.
"""

from __future__ import annotations

import signal


def main() -> None:
    """Run the command line."""
    usual = signal.getsignal(signal.SIGINT)
    isInterruptible = usual is signal.default_int_handler  # else a shell in the background has it ignored
    if isInterruptible:
        signal.signal(signal.SIGINT, signal.SIG_DFL)
    from txrdma.command import main as run

    if isInterruptible:
        signal.signal(signal.SIGINT, usual)
    run()


if __name__ == "__main__":
    main()
