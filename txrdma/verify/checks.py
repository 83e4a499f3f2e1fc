"""Results of checks, and the messages by which a worker process reports them."""

from __future__ import annotations

import json
from dataclasses import asdict
from enum import Enum
from typing import Any, TextIO

from txrdma.kit.values import frozen


class Outcome(str, Enum):
    """Outcome of a check."""

    PASSED = "passed"
    FAILED = "failed"
    SKIPPED = "skipped"


@frozen
class Check:
    """
    The result of one check.

    @ivar part: part of the run, such as C{verbs}.
    @ivar text: reason of the failure or skip, in a line; else the measurement, or nothing.
    @ivar detail: traceback, or transcript of a conversation.
    """

    part: str
    name: str
    outcome: Outcome
    text: str = ""
    detail: str = ""
    seconds: float = 0.0

    @property
    def path(self) -> str:
        """Part and name: C{"verbs/test_send"}."""
        return f"{self.part}/{self.name}"


@frozen
class Measured:
    """
    One measured value.

    @ivar over: subject of the measurement, such as C{tcp:}, C{write} or C{ib_write_lat}.
    @ivar unit: C{us} or C{MB/s}.
    """

    over: str
    size: int
    value: float
    unit: str


class Reporter:
    """Writes the messages of a worker: a line of JSON each, with one key."""

    def __init__(self, out: TextIO) -> None:
        self._out = out

    def _write(self, **message: Any) -> None:
        self._out.write(json.dumps(message) + "\n")
        self._out.flush()

    def total(self, count: int) -> None:
        """Announce the number of checks, including those that are skipped by C{first}."""
        self._write(total=count)

    def port(self, number: int) -> None:
        """Report the TCP port of a server."""
        self._write(port=number)

    def started(self, name: str) -> None:
        """Report the beginning of a check."""
        self._write(started=name)

    def check(self, check: Check) -> None:
        """Report the result of a check."""
        self._write(check=asdict(check))

    def measured(self, measured: Measured) -> None:
        """Report a measurement."""
        self._write(measured=asdict(measured))


def decoded(line: bytes) -> int | str | Check | Measured:
    """
    Return the content of a message: the total, the name of a check that begins, a result, or a measurement.

    @raise ValueError: the line is not a message.
    """
    match json.loads(line):
        case {"total": int(count)}:
            return count
        case {"started": str(name)}:
            return name
        case {"check": dict(fields)}:
            return Check(**{**fields, "outcome": Outcome(fields["outcome"])})
        case {"measured": dict(fields)}:
            return Measured(**fields)
    raise ValueError(f"unknown message {line!r}")
