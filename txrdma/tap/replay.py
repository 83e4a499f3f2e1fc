"""The fabric monitor of recorded fabrics, which it simulates: C{twistd fabric-monitor --replay}."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from datetime import datetime
from typing import Any, Final

from twisted.internet.defer import Deferred
from twisted.logger import Logger
from twisted.python.failure import Failure

from txrdma.error import InvalidRequest
from txrdma.fabric.model import PortKey
from txrdma.fabric.recording import Recording
from txrdma.fabric.snapshots import parseRecording
from txrdma.fabric.texts import readText
from txrdma.kit.delayedcalls import Timer
from txrdma.monitor.config import MonitorConfig
from txrdma.monitor.diagnosis.fabricstate import linkOf
from txrdma.monitor.diagnosis.journal import FabricEvent, readValid
from txrdma.monitor.files import FileSettings
from txrdma.monitor.series.history import InThread
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.monitor.series.rows import COUNTERS
from txrdma.monitor.whatif import STEP_SECONDS
from txrdma.sim.fabric.fabric import RESWEEP_SECONDS
from txrdma.sim.twin import LATENCY_SECONDS, Replay, Twin
from txrdma.tap.monitor import MonitorService

_log = Logger()

_DAY_SECONDS: Final = 86400
_LEVEL: Final = "minutes"
_GONE: Final = "link-gone"
_CHANGES: Final = (_GONE, "link-came")  # of all links of a node that is gone, too
_Minute = tuple[dict[PortKey, dict[str, float]], list[FabricEvent]]
"""Rates of counters by port, and changes of links."""


def readRecordings(paths: Sequence[str]) -> list[Recording]:
    """
    Read snapshots, and return them in the order of their times.

    @raise InvalidRequest: a file is not a snapshot.
    """
    found = []
    for path in paths:
        try:
            recording = parseRecording(readText("snapshot", path))
        except ValueError as error:
            raise InvalidRequest(f"snapshot {path}: {error}") from error
        if recording is None:
            raise InvalidRequest(f"snapshot {path}: it is not one that txrdma snapshot has written")
        if not recording.fabric.nodes:
            raise InvalidRequest(f"snapshot {path}: it has no nodes")
        found.append(recording)
    return sorted(found, key=lambda one: one.at)


def silent(config: MonitorConfig) -> MonitorConfig:
    """
    Return a configuration that writes nothing and sends nothing: only its intervals, thresholds and pages
    remain.

    @raise InvalidRequest: it has sections of several fabrics.
    """
    if config.hasSections:
        raise InvalidRequest("a replay is of one fabric: give a configuration without sections [fabrics]")
    return replace(
        config,
        history="",
        standby=False,
        remote=None,
        collectors=(),
        webhooks=(),
        mail=None,
        syslog=None,
        log="",
        files=FileSettings(),
        jobs=(),
    )


class HistoryReplay:
    """
    Lets the counters of a twin grow as in a history, and its links disappear and return, minute by minute,
    from L{start} to L{stop}.
    """

    def __init__(
        self, twin: Twin, store: HistoryStore, begin: int, end: int, speed: float, inThread: InThread
    ) -> None:
        """
        @param begin: beginning of the time, in seconds since 1970; nothing changes any more after C{end}.
        @param speed: factor by which time passes faster than in the history.
        @param inThread: runs a function in a thread.
        """
        self._twin = twin
        self._store = store
        self._begin = self._at = begin
        self._end = end
        self._speed = speed
        self._inThread = inThread
        self._timer = Timer(twin.clock)
        self._growing: set[PortKey] = set()
        self._isStopped = False

    def start(self) -> None:
        """Begin with the first minute."""
        self._next()

    def stop(self) -> None:
        """End the replay, and close the history. Idempotent."""
        if not self._isStopped:
            self._isStopped = True
            self._timer.stop()
            self._inThread(self._store.close)

    def _next(self) -> None:
        if self._at < self._end:
            due = self._twin.clock.seconds() + STEP_SECONDS / self._speed
            begin = self._at
            self._at += STEP_SECONDS
            reading = self._inThread(self._read, begin).addCallback(self._show).addErrback(self._failed)
            reading.addBoth(lambda result: self._nextAt(due))
        else:
            self._show(({}, []))

    def _nextAt(self, due: float) -> None:
        if not self._isStopped:
            self._timer.start(max(0.0, due - self._twin.clock.seconds()), self._next)

    def _read(self, begin: int) -> _Minute:
        end = begin + STEP_SECONDS
        events = self._store.eventsBetween(_CHANGES, begin, end)
        if begin == self._begin:
            events = self._store.statesAt((_GONE,), begin) + events
        return self._store.rates(begin, end, _LEVEL), events

    def _failed(self, failure: Failure) -> None:
        _log.failure("a minute of the history was not replayed", failure)

    def _show(self, minute: _Minute) -> None:
        if self._isStopped:
            return
        rates, events = minute
        twin = self._twin
        ended = {portKey: dict.fromkeys(COUNTERS, 0.0) for portKey in self._growing - rates.keys()}
        self._growing = set(rates)
        twin.growAs({**ended, **rates}, self._speed)
        for event in events:
            if event.subject:  # which changes of version 1 of the history do not have
                for link in readValid([event], linkOf):
                    twin.setLink(link, event.kind != _GONE)


class ReplayService(MonitorService):
    """The monitor of a simulated fabric that takes the states of recordings, one after the other."""

    def __init__(
        self,
        reactor: Any,
        config: MonitorConfig,
        recordings: Sequence[Recording],
        speed: float = 1.0,
        aheadSeconds: Callable[[], float] = lambda: 0.0,
        past: tuple[HistoryStore, int, int] | None = None,
    ) -> None:
        """
        @param recordings: recordings in the order of their times.
        @param speed: factor by which time passes faster than in the recordings.
        @param past: a history to replay in the fabric of the only recording, its beginning and its end.
        """
        # Recordings have forwarding tables, which sweeps of the simulated SM would replace.
        resweepSeconds = None if past is None else RESWEEP_SECONDS
        self._twin = Twin(reactor, recordings, latencySeconds=LATENCY_SECONDS, resweepSeconds=resweepSeconds)
        self._replay: Replay | HistoryReplay = Replay(self._twin, recordings, speed)
        try:
            super().__init__(reactor, silent(config), self._twin.attach, aheadSeconds)
        except BaseException:
            self._twin.close()
            raise
        first, last = (_date(recording) for recording in (recordings[0], recordings[-1]))
        times = first if first == last else f"{first} to {last}"
        if past is not None:
            self._replay = HistoryReplay(self._twin, *past, speed, self._threads.named("replay"))
            times = f"{_dateOf(past[1])} to {_dateOf(past[2])}"
        self._watch.note = f"This is a replay of {times}, not the present state of the fabric."

    def reloadBy(self, read: Callable[[], MonitorConfig]) -> None:
        super().reloadBy(lambda: silent(read()))

    def startService(self) -> None:
        super().startService()
        self._replay.start()

    def stopService(self) -> Deferred[None]:
        self._replay.stop()  # in the thread, which ends after it
        return super().stopService().addBoth(self._ended)

    def _ended(self, result: Any) -> Any:
        self._twin.close()
        return result


def _date(recording: Recording) -> str:
    if not recording.at:
        return "an unknown time"
    return _dateOf(recording.at)


def _dateOf(at: float) -> str:
    return datetime.fromtimestamp(at).isoformat(" ", "seconds")


def openPast(where: str, begin: str) -> tuple[HistoryStore, int, int]:
    """
    Open a history for a replay, and return it with the beginning and the end of the time to replay.

    @param begin: beginning in local time, as C{"2026-11-28 18:00"}; by default a day before the end.
    @raise RDMAError: it cannot be opened, has no minutes, or none of that time.
    """
    try:
        given = int(datetime.fromisoformat(begin).timestamp()) if begin else None
    except (ValueError, OverflowError) as error:
        raise InvalidRequest(f"--begin {begin}: expected a time as 2026-11-28 18:00") from error
    store = HistoryStore(where, isReader=True)
    span = store.span(_LEVEL)
    first, last = (0, 0) if span is None else span
    at = max(first, last - _DAY_SECONDS) if given is None else given // STEP_SECONDS * STEP_SECONDS
    if span is None or not first <= at < last:
        store.close()
        have = "it has no minutes" if span is None else f"it has {_dateOf(first)} to {_dateOf(last)}"
        raise InvalidRequest(f"history {where}: {have}")
    store.detach()  # twistd may fork
    return store, at, last
