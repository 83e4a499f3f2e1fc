"""The history for a time series engine: its rows as requests of Prometheus' remote write, in batches."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Final

from twisted.internet.interfaces import IReactorTime

from txrdma.fabric.health import Finding
from txrdma.fabric.model import PortKey
from txrdma.kit.remotesender import CROWDED, RemoteRequest, RemoteSender
from txrdma.kit.remotewrite import compressRequest, encodeLabel, encodeSample, encodeTime
from txrdma.monitor.series.exposition import guidText
from txrdma.monitor.series.history import BatchWriter, InThread
from txrdma.monitor.series.remotesettings import METRIC
from txrdma.monitor.series.rows import COLUMN_FAMILIES, ColumnFamily, Row
from txrdma.monitor.supervisor import SupervisedLoop

MOST_ROWS: Final = 500_000
"""Maximum number of rows that wait for the next batch; the oldest are dropped."""

_MOST_SAMPLES: Final = 10_000
"""Samples after which a request is complete."""

_LOSS_SECONDS: Final = 3600.0
"""Seconds for which a loss is a finding."""


class RemoteWriter(BatchWriter):
    """
    Sends rows to an engine, first those that a previous process has not sent; L{stop} stores the others.

    @ivar sender: sends the requests, and counts sent and lost samples.
    """

    def __init__(
        self,
        reactor: IReactorTime,
        sender: RemoteSender,
        labels: Iterable[tuple[str, str]],
        inThread: InThread,
    ) -> None:
        """@param labels: labels of all series."""
        super().__init__(SupervisedLoop(reactor, "remote write", self._run, self._pauseSeconds), MOST_ROWS)
        self.sender = sender
        self._reactor = reactor
        self._encoder = _Encoder(dict(labels))
        self._inThread = inThread

    def _lose(self, rows: list[Row]) -> None:
        self.sender.lose(CROWDED, sum(value is not None for row in rows for value in row.values))

    def findings(self) -> list[Finding]:
        """Return findings if the engine does not accept samples, or some were lost in the last hour."""
        found, sender = [], self.sender
        if sender.problem:
            age = f"{sender.oldestSeconds():.0f} s"
            text = f"{sender.problem}; {sender.waiting} samples wait, the oldest for {age}"
            found.append(Finding("remote-write-stopped", "remote write", text))
        if self._reactor.seconds() - sender.lostAt < _LOSS_SECONDS:
            text = "; ".join(f"{count} samples were lost: {why}" for why, count in sender.lost.items())
            found.append(Finding("remote-write-lost", "remote write", text))
        return found

    async def _finish(self) -> None:
        await self._encode()
        await self.sender.spill()

    async def _close(self) -> None:
        self.sender.close()

    def _pauseSeconds(self) -> float:
        isBehind = self.sender.waiting and not self.sender.problem and not self.loop.problem
        return 0.0 if isBehind else self.batchSeconds

    async def _run(self) -> bool:
        await self._encode()
        return await self.sender.send(self.batchSeconds)

    async def _encode(self) -> None:
        if self._rows:
            with self._batch() as rows:
                self.sender.add(await self._inThread(list, self._encoder.requests(rows)))


class _Encoder:
    """Encodes rows as requests; the labels of a series are joined from those of its column and its port."""

    def __init__(self, labels: dict[str, str]) -> None:
        def fields(first: str, last: str) -> bytes:
            several = sorted(name for name in labels if first < name < last)
            return b"".join(encodeLabel(name, labels[name]) for name in several)

        name = fields("", "__name__") + encodeLabel("__name__", METRIC) + fields("__name__", "column")
        self._heads: dict[ColumnFamily, list[bytes]] = {
            family: [name + encodeLabel("column", column) for column in family.seriesNames]
            for family in COLUMN_FAMILIES
        }
        self._parts = fields("column", "guid"), fields("guid", "port"), fields("port", "\U0010ffff")

    def requests(self, rows: Iterable[Row]) -> Iterator[RemoteRequest]:
        """Yield requests with these rows, each of which has at most one sample of a series."""
        samples: list[bytes] = []
        known: set[tuple[PortKey, ColumnFamily]] = set()
        at = 0
        for row in rows:
            key = (row.portKey, row.family)
            if samples and (key in known or len(samples) >= _MOST_SAMPLES):
                yield RemoteRequest(compressRequest(samples), len(samples), at)
                samples = []
                known.clear()
            at = min(at, row.at) if samples else row.at
            known.add(key)
            samples += self._samples(row)
        if samples:
            yield RemoteRequest(compressRequest(samples), len(samples), at)

    def _samples(self, row: Row) -> Iterator[bytes]:
        guid, port = encodeLabel("guid", guidText(row.portKey[0])), encodeLabel("port", str(row.portKey[1]))
        first, second, third = self._parts
        labels = first + guid + second + port + third
        time = encodeTime(row.at * 1000)
        for head, value in zip(self._heads[row.family], row.values, strict=True):
            if value is not None:
                yield encodeSample(head + labels, value, time)
