"""Queries for the history, and engines that do not answer them."""

from __future__ import annotations

import json
from collections.abc import Mapping
from urllib.parse import parse_qs

from twisted.internet.defer import Deferred
from twisted.internet.error import ConnectionRefusedError
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable, InvalidRequest
from txrdma.fabric.errorcorrection import CORRECTED
from txrdma.monitor.series.historystore import Point
from txrdma.monitor.series.level import DEFAULT_LEVELS
from txrdma.monitor.series.promqlreader import MOST_ANSWER, MOST_AT_ONCE, MOST_QUERIES, PromQLReader
from txrdma.monitor.series.remotesettings import RemoteSettings
from txrdma.test.support.httpagents import Prepared, PreparedAgent, Requested
from txrdma.test.support.monitor.storecontract import PORT

NOW = 1_700_000_000
WHERE = 'guid="0x0000000000000001",port="3",fabric="a\\"b"'


def matrix(columns: Mapping[str, Mapping[float, float]]) -> Prepared:
    """Return an answer with the samples of some columns."""
    result = [
        {"metric": {"column": column}, "values": [[at, str(value)] for at, value in samples.items()]}
        for column, samples in columns.items()
    ]
    data = {"status": "success", "data": {"resultType": "matrix", "result": result}}
    return Prepared(200, json.dumps(data).encode())


def parameters(request: Requested) -> dict[str, str]:
    return {name: text for name, (text,) in parse_qs(request.body.decode()).items()}


class ReaderTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.agent = PreparedAgent(matrix({}))
        settings = RemoteSettings(
            *("http://engine/write", "spill"),
            queryURL="http://engine/prometheus/",
            labels=(("fabric", 'a"b'),),
            headers=(("X-Scope-OrgID", "us"),),
            authorization="Bearer abc",
        )
        self.reader = PromQLReader(self.clock, self.agent, settings, DEFAULT_LEVELS, lambda: float(NOW))

    def asked(self, begin: int, end: int, level: str, counter: str = "portXmitData") -> Deferred[list[Point]]:
        return self.reader.series(PORT, counter, NOW + begin, NOW + end, level)

    def test_readings(self) -> None:
        """Readings are the samples of a range, of the columns that belong to the counter."""
        self.agent.usual = matrix(
            {
                "seconds": {NOW - 90: 10.0, NOW - 80: 10.0},
                "portXmitData": {NOW - 90: 5.0},
                "other": {NOW: 7.0},
            }
        )
        found = self.successResultOf(self.asked(-100, 0, "readings"))
        self.assertEqual(found, [Point(NOW - 90, 10.0, 5, None), Point(NOW - 80, 10.0, None, None)])
        (request,) = self.agent.requests
        self.assertEqual((request.method, request.url), (b"POST", "http://engine/prometheus/api/v1/query"))
        given = parameters(request)
        columns = "seconds|portXmitData|peakXmit"
        self.assertEqual(given["query"], f'infiniband_history{{column=~"{columns}",{WHERE}}}[100s]')
        self.assertEqual((float(given["time"]), given["timeout"]), (NOW - 0.5, "10.0"))
        for name, value in (("X-Scope-OrgID", "us"), ("Authorization", "Bearer abc")):
            self.assertEqual(request.headers.getRawHeaders(name), [value])

    def test_future(self) -> None:
        """A time that ends long after the present needs few queries."""
        self.successResultOf(self.asked(-100, 10**11, "readings"))
        self.assertEqual(len(self.agent.requests), 2)

    def test_minutes(self) -> None:
        """Minutes are sums that end before the next minute, and the highest of its peaks."""
        first = NOW // 60 * 60 - 600
        ends = {first + 59.5: 60.0, first + 119.5: 50.0}
        self.agent.usual = matrix(
            {"seconds": ends, "portXmitData": {first + 59.5: 2.0**50}, "peakXmit": {first + 119.5: 9.5}}
        )
        found = self.successResultOf(self.asked(first - 5 - NOW, first + 70 - NOW, "minutes"))
        self.assertEqual(found, [Point(first, 60.0, 1 << 50, None), Point(first + 60, 50.0, None, 9.5)])
        given = parameters(self.agent.requests[0])
        self.assertEqual(
            given["query"],
            f'sum_over_time(infiniband_history{{column=~"seconds|portXmitData",{WHERE}}}[60s])'
            f' or max_over_time(infiniband_history{{column="peakXmit",{WHERE}}}[60s])',
        )
        self.assertEqual((float(given["start"]), float(given["end"])), (first + 59.5, first + 119.5))
        self.assertEqual((given["step"], given["nocache"]), ("60", "1"))

    def test_corrections(self) -> None:
        """Counters without a peak, of the other family, have a shorter query."""
        self.successResultOf(self.asked(-7200, 0, "hours", CORRECTED))
        query = parameters(self.agent.requests[0])["query"]
        selector = f'infiniband_history{{column=~"fec_seconds|{CORRECTED}",{WHERE}}}'
        self.assertEqual(query, f"sum_over_time({selector}[3600s])")

    def test_byDefault(self) -> None:
        """By default the level is the finest one that a database would store for as long."""
        for hours, step in ((5, None), (7, "60"), (24 * 27, "60"), (24 * 29, "3600"), (24 * 2000, "3600")):
            self.agent.requests.clear()
            self.successResultOf(self.asked(-3600 * hours, -3600 * hours + 7200, ""))
            self.assertEqual([parameters(one).get("step") for one in self.agent.requests], [step], hours)

    def test_parts(self) -> None:
        """A long time is split into several short queries without overlap."""
        self.successResultOf(self.asked(-28 * 86400, 0, "minutes"))
        steps: list[int] = []
        for request in self.agent.requests:
            given = parameters(request)
            some = range(int(float(given["start"]) + 0.5), int(float(given["end"]) + 0.5) + 1, 60)
            self.assertLessEqual(len(some), 5000)
            steps += some
        self.assertEqual(steps, list(range(steps[0], steps[-1] + 1, 60)))
        self.assertIn(len(steps), range(28 * 1440 - 2, 28 * 1440 + 1))

    def test_tooLong(self) -> None:
        """A time that needs too many queries is refused with a remedy, and no query is sent."""
        seconds = 6 * 3600
        self.successResultOf(self.asked(-MOST_QUERIES * seconds, 0, "readings"))
        self.agent.requests.clear()
        failure = self.failureResultOf(self.asked(-MOST_QUERIES * seconds - 1, 0, "readings"), InvalidRequest)
        self.assertIn("coarser", failure.getErrorMessage())
        self.assertEqual(self.agent.requests, [])

    def test_nothing(self) -> None:
        """A time without a complete minute, or that ends before it begins, causes no query."""
        for begin, end in ((-20, 0), (0, -3600), (3600, 7200)):
            self.assertEqual(self.successResultOf(self.asked(begin, end, "minutes")), [])
        self.assertEqual(self.agent.requests, [])

    def test_failures(self) -> None:
        """An unreachable engine, a refusal, and an invalid answer are reported with the reason."""
        for answer, text in (
            (ConnectionRefusedError(), "refused"),
            (Prepared(503, b"{}"), "503"),
            (Prepared(200, b"hello"), "not JSON"),
            (Prepared(200, b'{"status": "error", "error": "too many samples"}'), "too many samples"),
            (Prepared(200, bytes(MOST_ANSWER + 1)), "too long"),
        ):
            self.agent.usual = answer
            failure = self.failureResultOf(self.asked(-60, 0, "readings"), DeviceUnavailable)
            self.assertIn(text, failure.getErrorMessage())

    def test_late(self) -> None:
        """An engine that does not answer in time is unavailable."""
        self.agent.usual = None
        reading = self.asked(-60, 0, "readings")
        self.clock.advance(10.0)
        self.failureResultOf(reading, DeviceUnavailable)

    def test_crowd(self) -> None:
        """A limited number of queries runs at a time; those of readers who disconnect are cancelled."""
        self.agent.usual = None
        several = [self.asked(-60, 0, "readings") for _ in range(MOST_AT_ONCE + 2)]
        self.assertEqual(len(self.agent.requests), MOST_AT_ONCE)
        several[-1].cancel()
        self.failureResultOf(several[-1])
        several[0].cancel()
        self.failureResultOf(several[0])
        self.assertEqual((len(self.agent.requests), self.agent.cancelled), (MOST_AT_ONCE + 1, 1))
        self.clock.advance(10.0)
        for one in several[1:-1]:
            self.failureResultOf(one, DeviceUnavailable)
        self.assertEqual(self.clock.getDelayedCalls(), [])
