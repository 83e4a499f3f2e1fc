"""
Run trial with our arguments, pass on what it says, and end with one line of counts.

The last line of the output is C{N passed, N failed, N skipped}; the exit status is trial's. Where the first
arguments are C{--label WORD}, that word and a colon stand before the counts.

Simulations play seeds that nobody has chosen: their first is drawn here and printed, since trial's workers
print into files of theirs. C{TXRDMA_FIRST=N} in the environment repeats a run.

Some tests hold both ends of hundreds of connections in one process, in which others' reactors wait to be
collected: more descriptors than the 1024 that an ordinary user has before asking for more. Others interrupt
programs that they have started, which inherit that interrupts are ignored where a script's shell runs all of
this in the background.

What tests count beside themselves they write to the file that C{TXRDMA_NOTES} names, in lines C{WHAT: N}; it
is added up, and told before the counts.
"""

from __future__ import annotations

import os
import re
import resource
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable

_DESCRIPTORS = 4096

_SUMMARY = re.compile(r"^(PASSED|FAILED)(?: \((?P<counts>[a-zA-Z]+=\d+(?:, [a-zA-Z]+=\d+)*)\))?$")


def counted(summary: str) -> tuple[int, int, int]:
    """
    Tests that passed, failed and were skipped, from the last line of trial's own report.

    A test that is expected to fail and does counts as skipped; one that unexpectedly passes, as failed.
    """
    match = _SUMMARY.match(summary)
    if match is None:
        raise ValueError(f"not a summary of trial's: {summary!r}")
    counts = {
        name: int(number)
        for name, number in (pair.split("=") for pair in (match["counts"] or "").split(", ") if pair)
    }
    return (
        counts.get("successes", 0),
        counts.get("failures", 0) + counts.get("errors", 0) + counts.get("unexpectedSuccesses", 0),
        counts.get("skips", 0) + counts.get("expectedFailures", 0),
    )


def addedUp(notes: Iterable[str]) -> dict[str, int]:
    """What tests have counted, in lines C{WHAT: N}."""
    sums: dict[str, int] = {}
    for line in notes:
        what, _, count = line.rpartition(": ")
        sums[what] = sums.get(what, 0) + int(count)
    return sums


def haveDescriptors() -> None:
    """Let our processes have enough of them, as far as that is ours to say."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = _DESCRIPTORS if hard == resource.RLIM_INFINITY else min(_DESCRIPTORS, hard)
    if soft != resource.RLIM_INFINITY and soft < wanted:
        resource.setrlimit(resource.RLIMIT_NOFILE, (wanted, hard))


def main(arguments: list[str]) -> int:
    """Run trial; return the exit status."""
    haveDescriptors()
    signal.signal(signal.SIGINT, signal.default_int_handler)
    label = ""
    if arguments[:1] == ["--label"]:
        label, arguments = f"{arguments[1]}: ", arguments[2:]
    command = [sys.executable, "-m", "twisted.trial", *arguments]
    first = os.environ.get("TXRDMA_FIRST") or str(time.time_ns() // 1_000_000)
    print(f"{label}simulations play seeds from {first} on", flush=True)
    notes = tempfile.NamedTemporaryFile("r")
    environment = {**os.environ, "TXRDMA_FIRST": first, "TXRDMA_NOTES": notes.name}
    summary = None
    with (
        notes,
        subprocess.Popen(
            command, stdout=subprocess.PIPE, text=True, errors="replace", env=environment
        ) as process,
    ):
        assert process.stdout is not None
        for line in process.stdout:
            sys.stdout.write(line)
            sys.stdout.flush()
            if _SUMMARY.match(line.rstrip("\n")):
                summary = line.rstrip("\n")
        for what, count in addedUp(notes).items():
            print(f"{label}{what}: {count}")
    status = process.returncode
    if summary is None:
        print("trial ended without a summary")
        passed, failed, skipped, status = 0, 1, 0, status or 1
    else:
        passed, failed, skipped = counted(summary)
        if failed and status == 0:
            status = 1
    print(f"{label}{passed} passed, {failed} failed, {skipped} skipped")
    return status


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
