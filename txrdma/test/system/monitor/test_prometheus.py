"""A real Prometheus that receives and reads the history: the contract of readers, and servers that fail."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from functools import partial
from random import Random
from typing import Any, ClassVar, Final

from twisted.internet import reactor as theReactor
from twisted.internet.defer import Deferred
from twisted.internet.threads import deferToThreadPool
from twisted.python.threadpool import ThreadPool
from twisted.trial.unittest import TestCase
from twisted.web.client import Agent

from txrdma.error import DeviceUnavailable
from txrdma.fabric.model import PortKey
from txrdma.kit import remotesender
from txrdma.kit.remotesender import FULL, RemoteSender
from txrdma.kit.spool import Spool
from txrdma.monitor.series import remotewriter
from txrdma.monitor.series.history import BatchWriter
from txrdma.monitor.series.historystore import Point
from txrdma.monitor.series.level import DEFAULT_LEVELS
from txrdma.monitor.series.promqlreader import PromQLReader
from txrdma.monitor.series.remotesettings import RemoteSettings
from txrdma.monitor.series.remotewriter import RemoteWriter
from txrdma.monitor.series.rows import Row
from txrdma.test.support.monitor import readercontract
from txrdma.test.support.monitor.prometheus import Prometheus, why, whyNoSmallDisk
from txrdma.test.support.monitor.readercontract import HOUR, readings
from txrdma.test.support.monitor.storecontract import PORT
from txrdma.testing.reactors import waitUntil

reactor: Any = theReactor

SEED: Final = 29

NO_SMALL_DISK = whyNoSmallDisk()


class _EngineTestCase(TestCase):
    """A writer and a reader on the real reactor, with short pauses."""

    timeout = 60.0
    megabytes = 64
    now = HOUR

    def opened(self, engine: Prometheus) -> None:
        """Create the writer and the reader of an engine."""
        for module, name, value in (
            *((BatchWriter, "batchSeconds", 0.1), (remotesender, "FIRST_PAUSE", 0.1)),
            (remotesender, "LONGEST_PAUSE", 0.2),
        ):
            self.patch(module, name, value)
        self.engine = engine
        self.settings = RemoteSettings(
            url=f"{engine.url}/api/v1/write",
            queryURL=engine.url,
            spill=self.mktemp(),
            mostOctets=self.megabytes << 20,
            timeoutSeconds=1.0,
            labels=(("fabric", self.id()),),
        )
        self.writer = self.started()
        self.reader = self.readerOf(replace(self.settings, timeoutSeconds=30.0))
        self.addCleanup(lambda: self.writer.stop())

    def readerOf(self, settings: RemoteSettings) -> PromQLReader:
        return PromQLReader(reactor, Agent(reactor), settings, DEFAULT_LEVELS, lambda: self.now)

    def started(self) -> RemoteWriter:
        pool = ThreadPool(1, 1)
        pool.start()
        self.addCleanup(pool.stop)
        inThread = partial(deferToThreadPool, reactor, pool)
        settings = self.settings
        spool = Spool(settings.spill, settings.mostOctets)
        sender = RemoteSender(
            *(reactor, Agent(reactor), settings.url, settings.allHeaders, settings.timeoutSeconds),
            *(spool, inThread),
        )
        writer = RemoteWriter(reactor, sender, settings.labels, inThread)
        writer.start()
        return writer

    async def restarted(self) -> None:
        """End the writer, as at the end of a monitor, and start the next one."""
        await self.writer.stop()
        self.writer = self.started()

    async def written(self, rows: Sequence[Row], now: int) -> None:
        """Write rows, and wait until the engine has them."""
        self.now = now
        self.writer.add(rows)
        await self.idle()

    async def idle(self) -> None:
        """Wait until everything is sent."""
        writer = self.writer
        await waitUntil(
            reactor, lambda: not (writer._rows or writer.sender.waiting or writer.loop.isRunning), 30.0
        )

    def read(
        self, portKey: PortKey, counter: str, begin: int, end: int, level: str = ""
    ) -> Deferred[list[Point]]:
        return self.reader.series(portKey, counter, begin, end, level)

    async def sent(self, begin: int, end: int) -> list[tuple[int, int | None]]:
        points = await self.read(PORT, "portXmitData", begin, end, "readings")
        return [(point.at, point.grown) for point in points]


class PrometheusReaderTests(_EngineTestCase, readercontract.ReaderContract):
    """The contract of readers with a Prometheus that accepts old samples, as several tests share it."""

    slowBecause = "sends an hour of readings to a Prometheus server"

    if why():
        skip = why()

    server: ClassVar[Prometheus | None] = None

    def setUp(self) -> None:
        if PrometheusReaderTests.server is None:
            PrometheusReaderTests.server = Prometheus(outOfOrderSeconds=86400)
        self.opened(PrometheusReaderTests.server)


class FailingPrometheusTests(_EngineTestCase):
    """Servers that are killed, full, slow, or unreachable; samples of a simulated hour."""

    slowBecause = "starts and kills Prometheus servers"

    if why():
        skip = why()

    def setUp(self) -> None:
        self.expected: list[tuple[int, int | None]] = []

    def made(self, *, outOfOrderSeconds: int = 0, diskOctets: int = 0) -> None:
        engine = Prometheus(outOfOrderSeconds, diskOctets)
        self.addCleanup(engine.close)
        self.opened(engine)

    def add(self, begin: int, end: int, step: int = 10) -> None:
        """Add readings of a time, each growth of which occurs once."""
        rows = readings(begin, end, begin - HOUR, step)
        self.writer.add(rows)
        self.expected += [(row.at, begin - HOUR + index) for index, row in enumerate(rows)]

    async def until(self, condition: Callable[[], object]) -> None:
        await waitUntil(reactor, condition, 30.0)

    def hasSent(self, samples: int) -> bool:
        """Return whether this many samples, or all, were sent since the start."""
        return self.writer.sender.sent >= samples or not (self.writer._rows or self.writer.sender.waiting)

    async def complete(self) -> None:
        """Check that the engine has all samples, each once."""
        await self.idle()
        self.assertEqual(await self.sent(HOUR, HOUR + 86400 // 4), self.expected)
        self.assertEqual((self.writer.sender.lost, self.writer.sender.problem), ({}, ""))

    async def test_killed(self) -> None:
        """A server that is killed at random while it receives has all samples in the end."""
        self.made()
        random, isAway, begin = Random(SEED), False, HOUR
        while begin < HOUR + 1500:
            end = begin + random.randrange(10, 200, 10)
            self.add(begin, end)
            begin = end
            if isAway:
                await self.until(lambda: self.writer.sender.problem)
                self.assertEqual([one.kind for one in self.writer.findings()], ["remote-write-stopped"])
                self.engine.start()
            else:
                await self.until(partial(self.hasSent, self.writer.sender.sent + random.randrange(5000)))
                self.engine.kill()
            isAway = not isAway
        if isAway:
            self.engine.start()
        await self.complete()

    async def test_awayForAnHour(self) -> None:
        """After an outage of an hour, with a restart of the monitor, the server gets all samples."""
        self.made()
        self.add(HOUR, HOUR + 60)
        await self.idle()
        self.engine.kill()
        for at in range(HOUR + 60, HOUR + 3660, 1800):
            self.add(at, at + 1800, 30)
            await self.until(lambda: not self.writer._rows and self.writer.sender.problem)
            await self.restarted()
        self.engine.start()
        self.add(HOUR + 3660, HOUR + 3700)
        await self.complete()

    async def test_slow(self) -> None:
        """A server that hangs has all samples finally, whether or not it processed the hanging request."""
        self.made()
        self.add(HOUR, HOUR + 100)
        await self.idle()
        for at in (HOUR + 100, HOUR + 200):
            self.engine.pause()
            self.add(at, at + 100)
            await self.until(lambda: self.writer.sender.problem)
            self.assertIn("no response in 1 s", self.writer.sender.problem)
            self.engine.resume()
            await self.idle()
        await self.complete()

    async def test_full(self) -> None:
        """A server whose disk is full answers with an error; when it has space again it gets all samples."""
        self.made(diskOctets=4 << 20)
        self.add(HOUR, HOUR + 100)
        await self.idle()
        self.engine.fill()
        at = HOUR + 100
        while not self.writer.sender.problem:  # until the remaining pages are full
            self.add(at, at + 1000)
            at += 1000
            await self.until(lambda: not self.writer._rows and not self.writer.loop.isRunning)
        self.assertRegex(self.writer.sender.problem, "it answers 5.. .*no space left")
        self.engine.free()
        await self.complete()

    if NO_SMALL_DISK:
        test_full.skip = NO_SMALL_DISK  # type: ignore[attr-defined]  # trial's

    async def test_tooOld(self) -> None:
        """Samples that the server refuses are counted, reported and dropped, and others are sent."""
        self.made()
        self.add(HOUR + 3 * 3600, HOUR + 3 * 3600 + 100)
        await self.idle()
        self.writer.add(readings(HOUR, HOUR + 20))
        await self.idle()
        ((reason, count),) = self.writer.sender.lost.items()
        self.assertEqual((reason, count > 0), ("the receiver refused them (400)", True))
        self.assertEqual([one.kind for one in self.writer.findings()], ["remote-write-lost"])
        self.add(HOUR + 3 * 3600 + 100, HOUR + 3 * 3600 + 200)
        await self.idle()
        self.assertEqual(await self.sent(HOUR, HOUR + 6 * 3600), self.expected)

    async def test_limit(self) -> None:
        """Beyond the limit of the spill the oldest samples are lost, and their number is reported exactly."""
        self.megabytes = 1
        self.made()
        self.engine.kill()
        self.patch(remotewriter, "_MOST_SAMPLES", 1)
        self.add(HOUR, HOUR + 5000)
        await self.until(lambda: not self.writer._rows and self.writer.sender.problem)
        await self.until(lambda: not self.writer.loop.isRunning and FULL in self.writer.sender.lost)
        each = self.writer.sender.waiting // 256
        lost = 500 - 256
        self.engine.start()
        await self.idle()
        self.assertEqual(await self.sent(HOUR, HOUR + 5000), self.expected[lost:])
        self.assertEqual(self.writer.sender.lost, {FULL: lost * each})

    async def test_readerAway(self) -> None:
        """A reader reports in time that a server hangs or is unreachable, and reads again afterwards."""
        self.made()
        self.add(HOUR, HOUR + 100)
        await self.idle()
        reader = self.readerOf(self.settings)
        self.engine.pause()
        await self.assertFailure(reader.series(PORT, "portXmitData", HOUR, HOUR + 10), DeviceUnavailable)
        self.engine.kill()
        await self.assertFailure(reader.series(PORT, "portXmitData", HOUR, HOUR + 10), DeviceUnavailable)
        self.engine.start()
        await self.complete()
