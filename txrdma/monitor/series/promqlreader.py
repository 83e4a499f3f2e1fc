"""
Reads the history of a counter from a time series engine, with the same results as from a database.

All engines give the same answers: samples have whole seconds, and ranges begin and end between two of them,
so that no sample is at a boundary; sums need no extrapolation.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Final
from urllib.parse import urlencode

from twisted.internet.defer import Deferred, DeferredSemaphore
from twisted.internet.interfaces import IReactorTime
from twisted.web.iweb import IAgent

from txrdma.error import DeviceUnavailable, InvalidRequest, PeerViolation
from txrdma.fabric.model import PortKey
from txrdma.kit.httprequests import fetch, SUCCESSES
from txrdma.kit.promql import decodeMatrix, matcher, QueriedSeries
from txrdma.monitor.series.exposition import guidText
from txrdma.monitor.series.historystore import Point
from txrdma.monitor.series.level import indexOf, Level
from txrdma.monitor.series.remotesettings import METRIC, RemoteSettings
from txrdma.monitor.series.rows import familyOf

MOST_ANSWER: Final = 8 << 20
"""Maximum octets of an answer to a query."""

MOST_QUERIES: Final = 16
"""Maximum number of queries for one request; a longer time needs a coarser level."""

MOST_AT_ONCE: Final = 8
"""Maximum number of queries at a time; others wait."""

_MOST_STEPS: Final = 5000
_READINGS_SECONDS: Final = 6 * 3600
"""Time that one query for readings covers."""

_BETWEEN: Final = 0.5


class PromQLReader:
    """Reads the series that L{txrdma.monitor.series.remotewriter} has sent."""

    def __init__(
        self,
        reactor: IReactorTime,
        agent: IAgent,
        settings: RemoteSettings,
        levels: Sequence[Level],
        wallSeconds: Callable[[], float],
    ) -> None:
        """@param levels: levels of detail, the finest first."""
        self._reactor = reactor
        self._agent = agent
        self._settings = settings
        self._levels = levels
        self._wallSeconds = wallSeconds
        self._atOnce = DeferredSemaphore(MOST_AT_ONCE)
        self._labels = "".join(f",{matcher(name, text)}" for name, text in settings.labels)

    def series(
        self, portKey: PortKey, counter: str, begin: int, end: int, level: str = ""
    ) -> Deferred[list[Point]]:
        """
        Return the history of one counter of a port: see L{HistoryStore.series}.

        @param level: name of the level; by default the finest one that a database would still have.
        @return: fails with L{InvalidRequest} if the level is too fine for such a long time, or with
            L{DeviceUnavailable} if the engine gives no valid answer in time.
        """
        return Deferred.fromCoroutine(self._series(portKey, counter, begin, end, level))

    async def _series(self, portKey: PortKey, counter: str, begin: int, end: int, level: str) -> list[Point]:
        family, now = familyOf(counter), int(self._wallSeconds())
        end = min(end, now + _READINGS_SECONDS)  # the writer's clock may be ahead
        index = self._levelAt(level, now - begin)
        step = self._levels[index].stepSeconds
        if step:
            begin = -(-begin // step) * step
            end = min(end, self._levels[index].completeUntil(self._levels[index - 1], now))
        covered = step * _MOST_STEPS or _READINGS_SECONDS
        starts = range(begin, end, covered)
        if len(starts) > MOST_QUERIES:
            raise InvalidRequest("the time is too long for this level: choose a coarser one")
        port = f"{matcher('guid', guidText(portKey[0]))},{matcher('port', str(portKey[1]))}{self._labels}"
        columns = (family.seriesNames[0], counter, family.peaks.get(counter, ""))
        found: list[Point] = []
        for start in starts:
            path, values = _query(columns, port, start, min(start + covered, end), step)
            found += _points(await self._atOnce.run(self._answer, path, values), columns, step)
        return found

    def _levelAt(self, name: str, age: int) -> int:
        if name:
            return indexOf(name, self._levels)
        ages = (index for index, level in enumerate(self._levels) if age <= level.retentionSeconds)
        return next(ages, len(self._levels) - 1)

    async def _answer(self, path: str, values: Mapping[str, object]) -> list[QueriedSeries]:
        settings = self._settings
        body = urlencode({**values, "timeout": settings.timeoutSeconds, "nocache": 1}).encode()
        headers = {**settings.allHeaders, "Content-Type": "application/x-www-form-urlencoded"}
        url = f"{settings.queryURL.rstrip('/')}/api/v1/{path}"
        answer = await fetch(
            self._agent, self._reactor, url, headers, settings.timeoutSeconds, MOST_ANSWER, body
        )
        if answer.code not in SUCCESSES:
            raise DeviceUnavailable(f"the engine answers {answer.code}")
        if not answer.isWhole:
            raise DeviceUnavailable("the engine's answer is too long, or was cut off")
        try:
            return decodeMatrix(answer.body)
        except PeerViolation as error:
            raise DeviceUnavailable(f"the engine: {error}") from error


def _query(
    columns: Sequence[str], port: str, begin: int, end: int, step: int
) -> tuple[str, dict[str, object]]:
    """Return the path and the values of a query for readings, or for sums over steps; C{begin} is one."""
    names, peak = "|".join(filter(None, columns if not step else columns[:2])), columns[2]
    selector = f'{METRIC}{{column=~"{names}",{port}}}'
    if not step:
        return "query", {"query": f"{selector}[{end - begin}s]", "time": end - _BETWEEN}
    query = f"sum_over_time({selector}[{step}s])"
    if peak:
        query += f' or max_over_time({METRIC}{{column="{peak}",{port}}}[{step}s])'
    last = begin + (end - 1 - begin) // step * step
    times = {"start": begin + step - _BETWEEN, "end": last + step - _BETWEEN, "step": step}
    return "query_range", {"query": query, **times}


def _points(several: Sequence[QueriedSeries], columns: Sequence[str], step: int) -> list[Point]:
    """Return the points of an answer, whose samples are at the ends of steps."""
    late = step - _BETWEEN if step else 0.0
    known = {
        one.labels.get("column"): {round(at - late): value for at, value in one.samples} for one in several
    }
    seconds, grown, peaks = (known.get(column, {}) for column in columns)
    return [
        Point(at, seconds[at], None if (growth := grown.get(at)) is None else int(growth), peaks.get(at))
        for at in sorted(seconds)
    ]
