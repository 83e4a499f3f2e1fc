"""The statistics of connections as metric families, for any metrics library."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from enum import Enum
from queue import Empty, SimpleQueue
from typing import Any, Final

from twisted.internet.interfaces import IReactorFromThreads
from twisted.python import threadable

from txrdma.kit.values import frozen
from txrdma.smc.status.statistics import statistics

BLOCKED_SECONDS: Final = 2.0
"""Seconds that a thread waits for the reactor's thread to read the statistics."""


class MetricKind(Enum):
    """The kind of a family's numbers."""

    COUNTER = "counter"
    GAUGE = "gauge"
    SIZES = "sizes"
    """Counts of writes or reads by size class, with the sum of their bytes."""


@frozen
class MetricFamily:
    """
    The numbers of one metric.

    @ivar unit: C{"By"} and C{"s"} for bytes and seconds, otherwise empty, as in UCUM.
    @ivar labels: names of labels.
    @ivar samples: the values of the labels, with the number. For L{MetricKind.SIZES}, the upper bound
        of a class, C{"more"} for the last one.
    @ivar total: for L{MetricKind.SIZES}, the sum of the bytes.
    """

    kind: MetricKind
    name: str
    text: str
    unit: str
    labels: tuple[str, ...]
    samples: Sequence[tuple[tuple[str, ...], float]]
    total: float = 0


def readStatistics(reactor: IReactorFromThreads) -> dict[str, Any]:
    """
    Return the statistics of this process, read in the reactor's thread.

    If that does not answer in L{BLOCKED_SECONDS}, it has stopped or waits for the caller, as at the last
    export of a meter provider; then nothing changes meanwhile, and they are read in this thread.
    """
    if threadable.ioThread is None or threadable.isInIOThread():
        return statistics()
    answers: SimpleQueue[dict[str, Any]] = SimpleQueue()
    reactor.callFromThread(lambda: answers.put(statistics()))
    try:
        return answers.get(timeout=BLOCKED_SECONDS)
    except Empty:
        return statistics()


def families(found: Mapping[str, Any]) -> Iterator[MetricFamily]:
    """Yield the families of statistics, always the same ones in the same order."""
    counters, gauges = found["counters"], found["gauges"]
    sent = counters["sent"]
    yield _nested(_COUNTER, "connections", "Connections made.", ("mode", "role"), counters["connections"])
    yield _nested(_COUNTER, "fallbacks", "Fallbacks to TCP.", ("role", "reason"), counters["fallbacks"])
    yield _counts(_COUNTER, "refused", "Connections that might not fall back.", "reason", counters["refused"])
    yield from _direction("sent", "write", "Bytes that went to peers' rings at once.", sent)
    yield from _direction("received", "read", "Bytes that applications got at once.", counters["received"])
    text = "Number of times that a write waited for buffer space."
    yield _single(_COUNTER, "write_blocked", text, "", sent["blocks"])
    text = "Seconds for which writes waited for buffer space."
    yield _single(_COUNTER, "write_blocked_seconds", text, "s", sent["blockedSeconds"])
    yield _nested(_GAUGE, "open_connections", "Present connections.", ("mode", "role"), gauges["connections"])
    yield _single(_GAUGE, "link_groups", "Link groups.", "", gauges["linkGroups"])
    yield _single(_GAUGE, "links", "Links of all link groups.", "", gauges["links"])
    yield _counts(_GAUGE, "rings", "Rings that there are, by bytes.", "size", gauges["rings"])
    yield _counts(_GAUGE, "rings_used", "Rings in use, by bytes.", "size", gauges["ringsUsed"])
    for name, key, text in (
        ("ring_bytes", "ringBytes", "Bytes of all rings."),
        ("ring_used_bytes", "ringBytesUsed", "Bytes of the rings in use."),
        ("ring_unread_bytes", "ringBytesUnread", "Bytes in rings that applications have not got yet."),
    ):
        yield _single(_GAUGE, name, text, "By", gauges[key])


_COUNTER: Final = MetricKind.COUNTER
_GAUGE: Final = MetricKind.GAUGE


def _single(kind: MetricKind, name: str, text: str, unit: str, value: float) -> MetricFamily:
    return MetricFamily(kind, name, text, unit, (), [((), value)])


def _counts(kind: MetricKind, name: str, text: str, label: str, counts: Mapping[str, float]) -> MetricFamily:
    return MetricFamily(kind, name, text, "", (label,), [((key,), count) for key, count in counts.items()])


def _nested(
    kind: MetricKind, name: str, text: str, labels: tuple[str, str], counts: Mapping[str, Mapping[str, float]]
) -> MetricFamily:
    samples = [((one, other), count) for one, row in counts.items() for other, count in row.items()]
    return MetricFamily(kind, name, text, "", labels, samples)


def _direction(direction: str, unit: str, text: str, counters: Mapping[str, Any]) -> Iterator[MetricFamily]:
    """Yield the families of one direction: sizes of single writes or reads, and messages."""
    sizes = [((bound,), times) for bound, times in counters["sizes"].items()]
    yield MetricFamily(MetricKind.SIZES, f"{unit}_bytes", text, "By", ("size",), sizes, counters["bytes"])
    yield _single(_COUNTER, f"messages_{direction}", f"CDC messages {direction}.", "", counters["messages"])


class Snapshots:
    """
    Returns families to instruments, which request them one by one. All instruments of a collection get
    numbers of the same reading: the next reading is made when an instrument requests its family again.
    """

    def __init__(self, read: Callable[[], Mapping[str, Any]]) -> None:
        self._read = read
        self._families: dict[str, MetricFamily] = {}
        self._served: set[str] = set()

    def take(self, name: str, instrument: str) -> MetricFamily:
        if instrument in self._served or not self._families:
            self._families = {each.name: each for each in families(self._read())}
            self._served.clear()
        self._served.add(instrument)
        return self._families[name]
