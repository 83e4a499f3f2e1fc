"""
Transcripts: lines in which a player reports all its events and actions, and entries for the comparison.

A line is written with one system call, so that it is not lost when the player ends::

    12.345678 0 data 300000 1a2b3c4d

Its fields are seconds of the monotonic clock, which all processes of a host share; the number of the
connection, or a hyphen for the process itself; the kind of the event; and details.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final

PROCESS: Final = -1
"""Number of the connection in entries about the process itself."""

MADE, DATA, READ_LOST, WRITE_LOST, LOST = "made", "data", "read-lost", "write-lost", "lost"
"""Calls of a protocol. C{made} names the transport; C{data} has the received bytes and their CRC-32."""

DELAYED = "delayed"
"""A call that the protocol has scheduled with a delay of 0."""

FAILED, LISTENING = "failed", "listening"
"""Results of an endpoint: the class of an error, or the port."""

PRODUCER_STOPPED, PRODUCER_PAUSED, PRODUCER_RESUMED = "stop-producing", "pause-producing", "resume-producing"
"""Calls of a producer that a script has registered."""

DOES, EVENT, FREEZES, WROTE = "does", "event", "freezes", "wrote"
"""Kinds of entries about an end's actions: a step, an event, a freeze, the total number of bytes written."""

LOGGED = "logged"
"""An error was logged; its text."""

BROKEN = "broken"
"""A rule that transports must follow was violated, as far as the player can detect it; a description."""

HELLO, RUNS, CHILD, WAITED, ENDED = "hello", "runs", "child", "waited", "ended"
"""
Kinds of entries about processes: a player and its PID, its reactor, a forked child, the seconds for which the
player was runnable without a processor, and its end.
"""

OUT_OF_TIME = "out of time"
"""The runner has killed the process, because it did not end in time."""


@dataclass(frozen=True, slots=True)
class Entry:
    """
    An entry of a transcript: one event.

    @ivar at: seconds of the monotonic clock.
    @ivar connection: number of the connection in the process, from 0; or L{PROCESS}.
    @ivar kind: one of the words above.
    @ivar about: details, as text.
    @ivar since: time of the first call, for data of several calls.
    """

    at: float
    connection: int
    kind: str
    about: str = ""
    since: float = 0.0

    def encode(self) -> bytes:
        """Return the entry as a line."""
        connection = "-" if self.connection == PROCESS else str(self.connection)
        return f"{self.at:.6f} {connection} {self.kind} {' '.join(self.about.split())}\n".encode()

    @classmethod
    def decode(cls, line: bytes) -> Entry:
        """Return the entry that a line, without its end, encodes."""
        at, connection, kind, about = line.decode().split(" ", 3)
        return cls(float(at), PROCESS if connection == "-" else int(connection), kind, about, float(at))

    @property
    def bytes(self) -> int:
        """Total number of bytes in a C{data} or C{wrote} entry."""
        return int(self.about.split()[0])


def joined(entries: Iterable[Entry]) -> Iterator[Entry]:
    """Yield the entries, with successive received data and successive writes merged into one entry each."""
    before: Entry | None = None
    for entry in entries:
        if before is not None:
            if entry.kind in (DATA, WROTE) and _position(entry) == _position(before):
                entry = Entry(entry.at, entry.connection, entry.kind, entry.about, before.since)
            else:
                yield before
        before = entry
    if before is not None:
        yield before


def _position(entry: Entry) -> tuple[int, str]:
    return entry.connection, entry.kind


@dataclass(frozen=True, slots=True)
class Seen:
    """
    The calls that the protocol of one connection got, without random details.

    @ivar calls: the calls other than C{dataReceived}, such as C{"lost ConnectionDone"}.
    @ivar received: number of received bytes.
    @ivar lasted: seconds from C{connectionMade} to C{connectionLost}; None if that was not called.
    @ivar written: number of bytes that it has written.
    """

    calls: tuple[str, ...]
    received: int
    lasted: float | None
    written: int

    def __str__(self) -> str:
        return f"{', '.join(self.calls) or 'nothing'}; {self.received:,} bytes received"


@dataclass(frozen=True, slots=True)
class View:
    """
    The view of one process: its connections, its errors and its end.

    @ivar connections: in the order in which they began.
    @ivar failures: classes of errors of attempts to connect.
    @ivar errors: texts of logged errors.
    @ivar ended: how the process ended, such as C{"exit 0"}.
    @ivar lasted: seconds from its beginning to its end.
    @ivar waited: seconds for which it was runnable without a processor.
    """

    connections: tuple[Seen, ...]
    failures: tuple[str, ...]
    errors: tuple[str, ...]
    ended: str
    lasted: float
    waited: float = 0.0

    def __str__(self) -> str:
        counts = Counter(map(str, self.connections))
        parts = [f"{count} times {each}" if count > 1 else each for each, count in counts.items()]
        parts += [f"connecting failed: {each}" for each in self.failures]
        return "; then ".join(parts or ["no connection"]) + f"; {self.ended}"


_PRODUCERS: Final = (PRODUCER_STOPPED, PRODUCER_PAUSED, PRODUCER_RESUMED)
_COMPARED: Final = (MADE, DELAYED, READ_LOST, WRITE_LOST, LOST, *_PRODUCERS)
_WITH_REASON: Final = (LOST,)


def viewOf(entries: Sequence[Entry]) -> View:
    """Return the view of the process that reported these entries."""
    numbers = sorted({entry.connection for entry in entries if entry.connection != PROCESS})
    return View(
        tuple(_seen([entry for entry in entries if entry.connection == number]) for number in numbers),
        tuple(entry.about for entry in entries if entry.kind == FAILED),
        tuple(entry.about for entry in entries if entry.kind == LOGGED),
        next((entry.about for entry in entries if entry.kind == ENDED), "no end"),
        entries[-1].at - entries[0].at if entries else 0.0,
        sum(float(entry.about) for entry in entries if entry.kind == WAITED),
    )


def _seen(entries: Sequence[Entry]) -> Seen:
    calls = tuple(
        f"{entry.kind} {entry.about}" if entry.kind in _WITH_REASON else entry.kind
        for entry in entries
        if entry.kind in _COMPARED
    )
    begun = next((entry.at for entry in entries if entry.kind == MADE), 0.0)
    over = next((entry.at for entry in entries if entry.kind == LOST), None)
    received, written = (
        max((entry.bytes for entry in entries if entry.kind == kind), default=0) for kind in (DATA, WROTE)
    )
    return Seen(calls, received, None if over is None else over - begun, written)
