"""Measurements by perftest (C{ib_write_lat} and others), where it is installed, for comparison."""

from __future__ import annotations

import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from typing import Final

from txrdma.iba.verbs import LinkLayer
from txrdma.testing.streams.forkserver import dieWithParent
from txrdma.verify.checks import Measured
from txrdma.verify.subject import Subject, TestedPort

TYPICAL, AVERAGE = 4, 3
"""Columns of the typical latency in microseconds, and of the average bandwidth in Gb/s."""

PROGRAMS: Final = {
    "ib_send_lat": (64, TYPICAL),
    "ib_write_lat": (64, TYPICAL),
    "ib_send_bw": (1 << 16, AVERAGE),
    "ib_write_bw": (1 << 16, AVERAGE),
}
"""Programs, with the bytes of a message, and the column of their output."""

_ITERATIONS: Final = 1000
_START_SECONDS: Final = 5.0
_SECONDS: Final = 30.0
_LISTEN: Final = "0A"
"""The state of a listening socket in C{/proc/net/tcp}."""


def measurePerftest(subject: Subject) -> Iterator[Measured]:
    """
    Run the installed programs of perftest between two devices of the kernel, and yield their results.

    @raise OSError: a program has failed, or takes too long.
    """
    here, there = subject
    if not (here.kernelName and there.kernelName):
        return
    for program, (size, column) in PROGRAMS.items():
        if shutil.which(program):
            with socket.socket() as free:
                free.bind(("127.0.0.1", 0))
                port = free.getsockname()[1]
            output = _played(wordsFor(program, there, port, size), wordsFor(program, here, port, size), port)
            value = resultIn(output, column)
            isLatency = column == TYPICAL
            yield Measured(program, size, value if isLatency else value * 125, "us" if isLatency else "MB/s")


def wordsFor(program: str, end: TestedPort, port: int, size: int) -> list[str]:
    """Return the command line of a server, to which that of a client adds the server's address."""
    words = [program, "-d", end.kernelName, "-i", str(end.port), "-p", str(port), "-s", str(size)]
    words += ["-n", str(_ITERATIONS), "-F"]
    if end.linkLayer is LinkLayer.ETHERNET:
        words += ["-x", str(end.gidIndex)]
    return words + ([] if program.endswith("_lat") else ["--report_gbits"])


def _played(server: list[str], client: list[str], port: int) -> str:
    """Run a server and its client, and return the output of the client."""
    with subprocess.Popen(
        server, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, preexec_fn=dieWithParent
    ) as process:
        try:
            _untilListening(port)
            done = subprocess.run(
                [*client, "127.0.0.1"],
                capture_output=True,
                text=True,
                timeout=_SECONDS,
                preexec_fn=dieWithParent,
            )
        except subprocess.TimeoutExpired as error:
            raise OSError(f"{client[0]} takes longer than {_SECONDS:g} s") from error
        finally:
            process.kill()
    if done.returncode:
        last = (done.stderr or done.stdout).strip().splitlines()[-1:]
        raise OSError(f"{client[0]} failed: {''.join(last)}")
    return done.stdout


def _untilListening(port: int) -> None:
    """Wait until a process of this host listens at a TCP port; connecting would end the server's wait."""
    until = time.monotonic() + _START_SECONDS
    while time.monotonic() < until and not any(_listens(path, port) for path in ("tcp", "tcp6")):
        time.sleep(0.02)


def _listens(table: str, port: int) -> bool:
    try:
        with open(f"/proc/net/{table}") as lines:
            rows = [line.split() for line in lines]
    except OSError:
        return False
    return any(row[1].endswith(f":{port:04X}") and row[3] == _LISTEN for row in rows)


def resultIn(output: str, column: int) -> float:
    """Return a value of the last row of numbers in a program's output; raise C{OSError} if there is none."""
    for line in reversed(output.splitlines()):
        words = line.split()
        if len(words) > column and words[0].isdecimal() and words[1].isdecimal():
            return float(words[column])
    raise OSError("the output has no results")
