"""
A party in a separate process, which can be killed.

It receives requests as lines of JSON on its standard input, and answers on its standard output.

Run as C{python -m txrdma.test.system.kernel.mate DEVICE}; L{Mate} is the other end of the pipes.
"""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Sequence
from typing import Any

from twisted.internet.stdio import StandardIO

from txrdma.test.system.kernel.agent import Asked
from txrdma.test.system.kernel.party import Party
from txrdma.verbs.devices import openDevice


class Mate:
    """Such a process; calls block until its answer, without a reactor."""

    def __init__(self, device: str, *before: str) -> None:
        """@param before: words before the command, such as C{"ip", "netns", "exec", ...}."""
        words = [*before, sys.executable, "-m", __name__, device]
        self._process = subprocess.Popen(words, stdin=subprocess.PIPE, stdout=subprocess.PIPE)
        self._number = 0

    def ask(self, name: str, **arguments: Any) -> Any:
        """Call a method of the party."""
        assert self._process.stdin is not None and self._process.stdout is not None
        self._number += 1
        self._process.stdin.write(json.dumps([self._number, name, arguments]).encode() + b"\r\n")
        self._process.stdin.flush()
        line = self._process.stdout.readline()
        if not line:
            raise EOFError(f"it ended with status {self._process.wait()}")
        _number, result, error = json.loads(line)
        if error is not None:
            raise RuntimeError(error)
        return result

    def kill(self) -> None:
        self._process.send_signal(signal.SIGKILL)
        self._process.wait()
        for pipe in (self._process.stdin, self._process.stdout):
            if pipe is not None:
                pipe.close()


def main(arguments: Sequence[str]) -> None:
    """Serve until the process ends."""
    from twisted.internet import reactor as theReactor

    reactor: Any = theReactor  # a module, to the type checker
    (name,) = arguments
    StandardIO(Asked(Party(reactor, openDevice(reactor, name))))
    reactor.run()


if __name__ == "__main__":
    main(sys.argv[1:])
