"""The contract of readers of a counter's history: from a database, or a time series engine."""

from __future__ import annotations

from collections.abc import Awaitable, Sequence
from typing import Any

from twisted.trial.unittest import TestCase

from txrdma.error import InvalidRequest
from txrdma.fabric.errorcorrection import CORRECTED
from txrdma.fabric.errorcounters import UNCORRECTABLE
from txrdma.fabric.model import PortKey
from txrdma.monitor.series.historystore import Point
from txrdma.monitor.series.rows import Row
from txrdma.test.support.monitor.storecontract import correction, OTHER, PORT, reading

HOUR = 1_700_000_000 // 3600 * 3600
"""The beginning of an hour, in seconds since 1970."""


def readings(begin: int, end: int, octets: int = 1, step: int = 10, portKey: PortKey = PORT) -> list[Row]:
    """Return readings at equal intervals, with growth that depends on the time."""
    return [reading(at, (at - begin) // step + octets, portKey=portKey) for at in range(begin, end, step)]


class ReaderContract(TestCase):
    """The contract of readers, with any history."""

    def written(self, rows: Sequence[Row], now: int) -> Awaitable[Any]:
        """Write rows; C{now} is the present time, in seconds since 1970."""
        raise NotImplementedError

    def read(
        self, portKey: PortKey, counter: str, begin: int, end: int, level: str = ""
    ) -> Awaitable[list[Point]]:
        """Read points."""
        raise NotImplementedError

    async def grown(self, begin: int, end: int, level: str = "readings") -> list[tuple[int, int | None]]:
        points = await self.read(PORT, "portXmitData", begin, end, level)
        return [(point.at, point.grown) for point in points]

    async def test_readings(self) -> None:
        """Each reading is a point with duration, growth and peak; the end of the range is excluded."""
        rows = [reading(HOUR + at, at << 40, at * 2.5) for at in (0, 10, 20, 30)]
        await self.written(rows, HOUR + 40)
        points = await self.read(PORT, "portXmitData", HOUR + 10, HOUR + 30, "readings")
        self.assertEqual(points, [Point(HOUR + at, 1.0, at << 40, at * 2.5) for at in (10, 20)])
        points = await self.read(PORT, "symbolErrorCounter", HOUR, HOUR + 11, "readings")
        self.assertEqual(points, [Point(HOUR + at, 1.0, 0, None) for at in (0, 10)])

    async def test_unknown(self) -> None:
        """Unknown growth is a point without a value; times without readings have no points."""
        rows = [reading(HOUR, 5), reading(HOUR + 10, None, 7.0), reading(HOUR + 200, None, 8.0)]
        await self.written(rows, HOUR + 7300)
        self.assertEqual(
            await self.grown(HOUR, HOUR + 900), [(HOUR, 5), (HOUR + 10, None), (HOUR + 200, None)]
        )
        minutes = await self.read(PORT, "portXmitData", HOUR, HOUR + 900, "minutes")
        self.assertEqual(minutes, [Point(HOUR, 2.0, 5, 7.0), Point(HOUR + 180, 1.0, None, 8.0)])
        self.assertEqual(await self.grown(HOUR, HOUR + 3600, "hours"), [(HOUR, 5)])

    async def test_sums(self) -> None:
        """Minutes and hours have the sums and peaks of their readings, first and last seconds included."""
        times = (0, 1, 59, 60, 119, 120, 3599, 3600, 3660)
        await self.written([reading(HOUR + at, 1 + at, 5000.0 - at) for at in times], HOUR + 7300)
        minutes = await self.read(PORT, "portXmitData", HOUR, HOUR + 3600, "minutes")
        expected = {0: (3.0, 63, 5000.0), 60: (2.0, 181, 4940.0), 120: (1.0, 121, 4880.0)}
        expected[3540] = (1.0, 3600, 1401.0)
        self.assertEqual(minutes, [Point(HOUR + at, *values) for at, values in expected.items()])
        self.assertEqual(await self.grown(HOUR + 1, HOUR + 61, "minutes"), [(HOUR + 60, 181)])
        hours = await self.read(PORT, "portXmitData", HOUR, HOUR + 7200, "hours")
        self.assertEqual(hours, [Point(HOUR, 7.0, 3965, 5000.0), Point(HOUR + 3600, 2.0, 7262, 1400.0)])

    async def test_complete(self) -> None:
        """A minute or an hour has a point when its last readings have arrived."""
        await self.written(readings(HOUR, HOUR + 3700, step=20), HOUR + 3685)
        minutes = await self.grown(HOUR + 3480, HOUR + 3700, "minutes")
        self.assertEqual([at for at, _ in minutes], [HOUR + 3480, HOUR + 3540])
        self.assertEqual(await self.grown(HOUR, HOUR + 3700, "hours"), [])
        await self.written([], HOUR + 3690)
        minutes = await self.grown(HOUR + 3480, HOUR + 3700, "minutes")
        self.assertEqual([at for at, _ in minutes], [HOUR + 3480, HOUR + 3540, HOUR + 3600])
        self.assertEqual(await self.grown(HOUR, HOUR + 3700, "hours"), [(HOUR, sum(range(1, 181)))])

    async def test_corrections(self) -> None:
        """Counters of error correction have the durations of their own readings."""
        rows = [*readings(HOUR, HOUR + 180), *(correction(HOUR + at, at) for at in (0, 60, 120))]
        await self.written([*rows, correction(HOUR + 125, None)], HOUR + 7300)
        points = await self.read(PORT, CORRECTED, HOUR, HOUR + 180, "readings")
        expected = [(0, 0), (60, 60), (120, 120), (125, None)]
        self.assertEqual(points, [Point(HOUR + at, 60.0, blocks, None) for at, blocks in expected])
        minutes = await self.read(PORT, UNCORRECTABLE, HOUR, HOUR + 180, "minutes")
        seconds = {0: 60.0, 60: 60.0, 120: 120.0}
        self.assertEqual(minutes, [Point(HOUR + at, each, 0, None) for at, each in seconds.items()])

    async def test_others(self) -> None:
        """Ports and times do not mix; a port without a history has no points."""
        rows = [*readings(HOUR, HOUR + 60), *readings(HOUR, HOUR + 60, 1000, portKey=OTHER)]
        await self.written(rows, HOUR + 200)
        self.assertEqual(await self.grown(HOUR, HOUR + 30), [(HOUR + at, 1 + at // 10) for at in (0, 10, 20)])
        self.assertEqual(await self.read((OTHER[0], 9), "portXmitData", HOUR, HOUR + 60, "minutes"), [])
        self.assertEqual(await self.grown(HOUR - 3600, HOUR), [])

    async def test_byDefault(self) -> None:
        """By default the level is the finest one stored for that long: readings for hours, then minutes."""
        await self.written(readings(HOUR, HOUR + 300), HOUR + 400)
        points = await self.read(PORT, "portXmitData", HOUR, HOUR + 100)
        self.assertEqual([point.at for point in points], list(range(HOUR, HOUR + 100, 10)))

    async def test_wrong(self) -> None:
        """An unknown counter or level is an error of the caller."""
        await self.written(readings(HOUR, HOUR + 30), HOUR + 40)
        for counter, level in (("nonsense", ""), ("portXmitData", "weeks")):
            try:
                await self.read(PORT, counter, HOUR, HOUR + 10, level)
            except InvalidRequest:
                continue
            self.fail("it was accepted")
