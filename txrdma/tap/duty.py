"""
The work of the active monitor of a fabric, which a standby does not do: history, notifications, files, and
samples for a time series engine.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, suppress
from functools import partial
from importlib.util import find_spec
from itertools import islice
from typing import Any, Final

from twisted.internet.task import deferLater
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python.threadpool import ThreadPool

from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError, ResourceExhausted
from txrdma.fabric.cables import CableWatch
from txrdma.fabric.health import Finding
from txrdma.kit.httprequests import quietAgent
from txrdma.kit.lease import Lease
from txrdma.kit.logs import errorText
from txrdma.kit.remotesender import RemoteSender
from txrdma.kit.spool import Spool
from txrdma.monitor.config import MonitorConfig
from txrdma.monitor.diagnosis.cablemoves import CableMoves, FAULT
from txrdma.monitor.diagnosis.cablestates import CABLE, formerCables
from txrdma.monitor.diagnosis.findinglog import FindingLog
from txrdma.monitor.diagnosis.journal import Journal
from txrdma.monitor.diagnosis.thresholds import ErrorThresholds
from txrdma.monitor.diagnosis.topologywatch import TopologyWatch
from txrdma.monitor.events.alerts import FormerAlerts
from txrdma.monitor.events.channels import AlertChannel, LineChannel, MailChannel, WebhookChannel
from txrdma.monitor.events.notifier import Notifier
from txrdma.monitor.events.restoring import restoreState, secondsToFind
from txrdma.monitor.events.syslog import SyslogChannel
from txrdma.monitor.files import MaintainedFiles
from txrdma.monitor.reading.poller import FabricPoller
from txrdma.monitor.series.history import HistoryWriter, InThread
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.monitor.series.remotesettings import RemoteSettings
from txrdma.monitor.series.remotewriter import MOST_ROWS, RemoteWriter
from txrdma.monitor.series.rows import CORRECTIONS, Row, rowOf, TRAFFIC

_log = Logger()

_TLS: Final = "OpenSSL"
_SNAPPY: Final = "cramjam"

_PIECE: Final = 500
"""Number of ports whose rows are made between two pauses."""


def requireTLS(what: str) -> None:
    """Raise L{InvalidRequest} if TLS is not installed."""
    if find_spec(_TLS) is None:
        raise InvalidRequest(f"{what} needs TLS: pip install 'txrdma[tls]'")


def channelsOf(reactor: Any, config: MonitorConfig) -> list[AlertChannel]:
    """Return the channels that report findings: webhooks, mail, syslog and a log file; some need TLS."""
    for name, url, _kind, _authorization in config.webhooks:
        if url.startswith("https:"):
            requireTLS(f"alerts.webhooks.{name}")
    if config.mail is not None and config.mail.user:
        requireTLS("alerts.mail with a user")
    channels: list[AlertChannel] = [
        WebhookChannel(reactor, name, url, kind == "alertmanager", authorization)
        for name, url, kind, authorization in config.webhooks
    ]
    if config.mail is not None:
        channels.append(MailChannel(reactor, config.mail))
    if config.syslog is not None:
        if config.syslog.address.startswith("tls:"):
            requireTLS("alerts.syslog")
        channels.append(SyslogChannel(reactor, config.syslog))
    if config.log:
        channels.append(LineChannel(config.log))
    for channel in channels:
        channel.fabric = config.fabric
    return channels


def remoteWriterOf(reactor: Any, settings: RemoteSettings, inThread: InThread) -> RemoteWriter:
    """
    Return the writer of a time series engine.

    @raise InvalidRequest: a package is missing.
    @raise DeviceUnavailable: the spill cannot be used.
    """
    if find_spec(_SNAPPY) is None:
        raise InvalidRequest("remote-write needs cramjam: pip install 'txrdma[remote-write]'")
    if settings.url.startswith("https:") or settings.queryURL.startswith("https:"):
        requireTLS("remote-write")
    with ExitStack() as undo:
        spool = Spool(settings.spill, settings.mostOctets)
        undo.callback(spool.close)
        sender = RemoteSender(
            *(reactor, quietAgent(reactor), settings.url, settings.allHeaders, settings.timeoutSeconds),
            *(spool, inThread),
        )
        writer = RemoteWriter(reactor, sender, settings.labels, inThread)
        undo.pop_all()
    return writer


class Threads:
    """Threads of a service: one for each kind of work, from L{start} to L{stop}."""

    def __init__(self, reactor: Any) -> None:
        self._reactor = reactor
        self._pools: dict[str, ThreadPool] = {}
        self._isStarted = False

    def named(self, name: str) -> InThread:
        """Return a function that calls functions in the thread of this name."""
        pool = self._pools.get(name)
        if pool is None:
            pool = ThreadPool(1, 1, name)
            if self._isStarted:
                self._startOne(pool)
            self._pools[name] = pool
        return partial(deferToThreadPool, self._reactor, pool)

    def start(self) -> None:
        """Start all threads, or none and raise L{ResourceExhausted}: they would outlive the reactor."""
        self._isStarted = True
        with ExitStack() as undo:
            undo.callback(self.stop)
            for pool in self._pools.values():
                self._startOne(pool)
            undo.pop_all()

    @staticmethod
    def _startOne(pool: ThreadPool) -> None:
        try:
            pool.start()
        except RuntimeError as error:  # of the interpreter
            raise ResourceExhausted(f"no thread for the {pool.name}: {error}") from error

    def stop(self) -> None:
        """End all threads; none is used after that. Idempotent."""
        self._isStarted = False
        pools, self._pools = self._pools, {}
        for pool in pools.values():
            with _log.failuresHandled("while the thread of the {name} stopped", name=pool.name):
                pool.threads = [each for each in pool.threads if each.ident is not None]  # others never ran
                pool.stop()


class Duty:
    """
    The work of the active monitor: L{open}, L{begin}, L{start}, L{end}.

    @ivar close: closes what L{open} has opened and releases the lease, without what L{end} does. Blocks.
    @ivar writer: writes the history, or None. C{remote} sends it to an engine, or is None.
    @ivar notifier: sends alerts. C{files} writes files for other programs.
    """

    def __init__(
        self,
        reactor: Any,
        config: MonitorConfig,
        poller: FabricPoller,
        thresholds: ErrorThresholds,
        threads: Threads,
        isSure: Callable[[], bool] = lambda: True,
    ) -> None:
        """
        @param isSure: returns whether no other monitor can be active now. Alerts and samples for an engine
            wait for that; the engine would add the samples of both monitors.
        @raise InvalidRequest: a package is missing.
        """
        self.writer: HistoryWriter | None = None
        self.remote: RemoteWriter | None = None
        self._reactor = reactor
        self._config = config
        self._poller = poller
        self._thresholds = thresholds
        self._threads = threads
        self._isSure = isSure
        self._channels = channelsOf(reactor, config)
        self.files = MaintainedFiles(reactor, config.files)
        self.notifier = Notifier(reactor, config.alerts, ())  # until the duty begins
        self._store: HistoryStore | None = None
        self._unsure: list[Row] = []
        self._alerts = FormerAlerts({}, {})
        self._findingLog, self._journal = FindingLog(config.rules), Journal()
        self._topologyWatch = TopologyWatch()
        self._cables, self._moves = CableWatch(), CableMoves()

    def open(self, lease: Lease | None) -> None:
        """
        Open the history and the engine, and read the state of the former monitor. Blocks; may be called in a
        thread.

        @param lease: lease of the history; None without a history.
        @raise RDMAError: it could not be opened; nothing is open, and the lease is released.
        """
        config, reactor = self._config, self._reactor
        with ExitStack() as undo:
            if lease is not None:
                undo.callback(lease.release)
                store = HistoryStore(config.history, config.levels, lease=lease, events=config.events)
                undo.callback(store.close)
                self._store = store
                self._restore(store)
                self.writer = HistoryWriter(reactor, store, self._threads.named("history"), reactor.seconds)
            if config.remote is not None:
                self.remote = remoteWriterOf(reactor, config.remote, self._threads.named("remote write"))
                undo.callback(self.remote.sender.close)
            self.close = undo.pop_all().close

    def _restore(self, store: HistoryStore) -> None:
        """Read the state of the former monitor; findings stay open until this monitor could find them."""
        began: float = self._reactor.seconds()
        settings = self._config.settings
        try:
            if not store.isOpen:
                raise DeviceUnavailable("the history is not open")
            self._alerts = restoreState(
                *(store, self._findingLog, self._topologyWatch, self._journal),
                lambda kind: began + secondsToFind(kind, self._thresholds, settings),
            )
            self._moves.restore(store.states(FAULT))
            if self._config.surveySeconds:  # which read them again
                self._cables = formerCables(store.states(CABLE))
        except RDMAError as error:
            if self._config.standby:
                raise
            _log.warn("findings of the former process are unknown: {why}", why=errorText(error))

    def detach(self) -> None:
        """Close the history until L{attach} or L{start}: see L{HistoryStore.detach}."""
        if self._store is not None:
            self._store.detach()

    def attach(self) -> None:
        """Open the history again, if that is possible now."""
        if self._store is not None:
            with suppress(DeviceUnavailable):  # the writer tries again, and reports it
                self._store.attach()

    def begin(self) -> None:
        """Take over: report how the fabric differs from its former state. Nothing is sent before L{start}."""
        supervisor, config, writer = self._poller.supervisor, self._config, self.writer
        for one in self._writers():
            supervisor.add(one.loop)
        self.notifier = Notifier(
            *(self._reactor, config.alerts, self._channels, writer, supervisor, config.standby, self._isSure)
        )
        self.notifier.restore(self._alerts, self._findingLog.open, self._findingLog.closed)
        if writer is not None:
            self._journal.store = writer.append
        self._poller.resume(self._findingLog, self._topologyWatch, self._journal)
        self._poller.cables.former, self._cables = self._cables, CableWatch()
        self._thresholds.moves.resume(self._moves)
        self._applyRules()

    def start(self) -> None:
        """Start to write history and send notifications."""
        for one in self._writers():
            one.start()
        self.notifier.start()

    async def end(self) -> None:
        """Stop notifications, write the remaining data, and release the lease, even after L{begin} raised."""
        self._poller.findings.journal.store = len
        with _log.failuresHandled("while notifications stopped"):
            await self.notifier.stop()
        for one in self._writers():
            with _log.failuresHandled("while {name} stopped", name=one.loop.name):
                await one.stop()
            self._poller.supervisor.remove(one.loop)

    def change(self, config: MonitorConfig, channels: list[AlertChannel]) -> None:
        """Use another configuration."""
        self._config = config
        self.files.change(config.files)
        self._applyRules()
        self.notifier.change(config.alerts, channels, self._poller.findings.log.open.values())

    def _applyRules(self) -> None:
        """Report open findings that have another severity by the present rules than when acknowledged."""
        for event in self._poller.findings.log.change(self._config.rules):
            self._poller.findings.journal.stateChanged(event.entry, self._reactor.seconds())
            self.notifier.findingChanged(event)

    def _writers(self) -> list[HistoryWriter | RemoteWriter]:
        return [one for one in (self.writer, self.remote) if one is not None]

    async def store(self, since: float) -> None:
        """Add the rows of all ports that were read since a time to the history and the engine."""
        if self._writers():
            for number, rows in enumerate(self._rowsSince(since)):
                if number:
                    await deferLater(self._reactor, 0.0)
                self._add(rows)
        found: list[Finding] = [found for one in self._writers() for found in one.findings()]
        self._poller.findings.report("history", found)

    def _add(self, rows: list[Row]) -> None:
        if self.writer is not None:
            self.writer.add(rows)
        if self.remote is not None:
            self._unsure += rows
            del self._unsure[:-MOST_ROWS]
            if self._isSure():
                self.remote.add(self._unsure)
                self._unsure = []

    def _rowsSince(self, since: float) -> Iterator[list[Row]]:
        """Yield history rows of all ports that were read since a time, in pieces of some milliseconds."""
        now = self._reactor.seconds()
        for family, meters in (
            (TRAFFIC, self._poller.meters),
            (CORRECTIONS, self._poller.corrections.meters),
        ):
            left = iter(list(meters))
            while some := list(islice(left, _PIECE)):
                read = ((portKey, meters[portKey]) for portKey in some if portKey in meters)
                rows = (
                    rowOf(family, portKey, meter, now) for portKey, meter in read if meter.readAt >= since
                )
                yield [row for row in rows if row is not None]

    def findings(self) -> list[Finding]:
        """Return findings about channels and files that failed."""
        return self.notifier.findings() + self.files.findings()
