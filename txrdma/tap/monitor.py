"""
C{twistd fabric-monitor}: runs the fabric monitor as a service.
"""

from __future__ import annotations

import os
import signal
from collections.abc import Callable
from contextlib import ExitStack
from functools import partial
from importlib.util import find_spec
from typing import Any, Final

from twisted.application.internet import StreamServerEndpointService
from twisted.application.service import IService, MultiService
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.error import CannotListenError
from twisted.internet.interfaces import IAddress, IListeningPort, IStreamServerEndpoint
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python import usage
from twisted.python.threadpool import ThreadPool
from twisted.web.client import Agent

from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError
from txrdma.fabric.cabling import cableFindings, readCables
from txrdma.fabric.health import Finding, placedFindings
from txrdma.fabric.model import Fabric
from txrdma.interfaces import IMADPort
from txrdma.kit.listening import isLoopback
from txrdma.kit.remotesender import RemoteSender
from txrdma.kit.spool import Spool
from txrdma.mad.agent import MADAgent
from txrdma.mad.ports import defaultMADPort, openMADPort
from txrdma.monitor.config import MonitorConfig, parseConfig, readConfig
from txrdma.monitor.diagnosis.findinglog import FindingEvent, Raised, Resumed
from txrdma.monitor.diagnosis.journal import FabricEvent
from txrdma.monitor.diagnosis.thresholds import ErrorThresholds
from txrdma.monitor.events.channels import AlertChannel, LineChannel, MailChannel, WebhookChannel
from txrdma.monitor.events.memory import restoreState, secondsToFind
from txrdma.monitor.events.notifier import Notifier
from txrdma.monitor.files import MaintainedFiles
from txrdma.monitor.reading.poller import FabricPoller
from txrdma.monitor.reading.surveyor import Surveyor
from txrdma.monitor.series.database import leaseOf
from txrdma.monitor.series.history import HistoryWriter, InThread
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.monitor.series.promqlreader import PromQLReader
from txrdma.monitor.series.remotesettings import RemoteSettings
from txrdma.monitor.series.remotewriter import RemoteWriter
from txrdma.monitor.series.rows import correctionRowOf, Row, rowOf
from txrdma.monitor.supervisor import Supervisor
from txrdma.monitor.web.access import readAccess
from txrdma.monitor.web.site import MonitorSite
from txrdma.monitor.web.watch import Watch
from txrdma.tap.steady import SteadyClock
from txrdma.tap.systemd import SystemNotifier

_log = Logger()

_TLS: Final = "OpenSSL"
_SNAPPY: Final = "cramjam"
_SIMULATED: Final = "sim"
_PLAIN: Final = ("tcp:", "tcp4:", "tcp6:", "smc:")
"""Prefixes of endpoint strings without encryption."""

_UNHEARD: Final = (CannotListenError, OSError, OverflowError)
"""Errors of listening at an address; L{OverflowError} is that of a port number above 65535."""

_AHEAD_SECONDS: Final = 60.0
"""Seconds by which the clock may be ahead of the system time without a finding."""

_FIXED: Final = ("port", "listen", "counters", "history", "levels", "events", "remote")
"""Settings whose changes take effect only after a restart."""


def logFinding(event: FindingEvent) -> None:
    """Log a finding that was raised or cleared. A previous process has logged L{Resumed} findings."""
    entry = event.entry
    if isinstance(event, Resumed):
        return
    state = "is there" if isinstance(event, Raised) else "is cleared"
    _log.info(
        "{severity} {kind} {said}: {where}: {text}. {advice}",
        severity=entry.severity.name.lower(),
        kind=entry.finding.kind,
        state=state,
        where=entry.finding.where,
        text=entry.finding.text,
        advice=entry.advice,
    )


def checkOf(config: MonitorConfig) -> Callable[[Fabric], list[Finding]]:
    """
    Return the function that finds the faults of a swept fabric.

    @raise InvalidRequest: the topology file cannot be read or parsed.
    """
    if not config.topology:
        return placedFindings
    plan = readCables(config.topology)
    return lambda fabric: [*placedFindings(fabric), *cableFindings(fabric, plan)]


def portOf(config: MonitorConfig) -> str:
    """
    Return the name of the management port: the configured one, or the first real one.

    @raise DeviceUnavailable: there is no real port. A simulated fabric must be configured explicitly.
    """
    name = config.port or defaultMADPort()
    if not config.port and name.partition(":")[0] == _SIMULATED:
        raise DeviceUnavailable(
            "no management port can be opened: see that there is a device, that ib_umad is loaded, and that "
            'this user may open /dev/infiniband/umad*; port = "sim:fattree:128" watches a simulated fabric'
        )
    return name


def endpointOf(reactor: Any, listen: str) -> IStreamServerEndpoint:
    """
    Return the server endpoint of the pages.

    @raise InvalidRequest: the string is not a valid endpoint, or a file or package that it needs is missing.
    """
    try:
        endpoint: IStreamServerEndpoint = serverFromString(reactor, listen)
    except Exception as error:  # parsers of endpoint strings raise any exception
        if isinstance(error, ImportError) and error.name == _TLS:
            requireTLS(f"web.listen {listen!r}")
        why = str(error) or type(error).__name__
        raise InvalidRequest(f"web.listen {listen!r}: {why}") from error
    return endpoint


def requireTLS(what: str) -> None:
    """
    Check that TLS is installed.

    @raise InvalidRequest: TLS is not installed.
    """
    if find_spec(_TLS) is None:
        raise InvalidRequest(f"{what} needs TLS: pip install 'txrdma[tls]'")


def channelsOf(reactor: Any, config: MonitorConfig) -> list[AlertChannel]:
    """
    Return the channels that report findings: webhooks, mail and a log file.

    @raise InvalidRequest: a channel needs TLS, which is not installed.
    """
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
    if config.log:
        channels.append(LineChannel(config.log))
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
    spool = Spool(settings.spill, settings.mostOctets)
    sender = RemoteSender(
        *(reactor, Agent(reactor), settings.url, settings.allHeaders, settings.timeoutSeconds),
        *(spool, inThread),
    )
    return RemoteWriter(reactor, sender, settings.labels, inThread)


def statusOf(poller: FabricPoller) -> str:
    """Return the status of a fabric in one line, for C{systemctl status}."""
    nodes = 0 if poller.fabric is None else len(poller.fabric.nodes)
    worst = poller.findingLog.worst()
    state = (
        "all is well" if worst is None else f"{len(poller.findingLog.open)} findings, {worst.name.lower()}"
    )
    return f"{nodes} nodes: {state}"


class MonitorService(MultiService):
    """
    The monitor of one fabric: its management port, poller, history and pages.

    @ivar poller: polls the fabric while the service runs.
    @ivar site: serves the pages.
    """

    def __init__(
        self,
        reactor: Any,
        config: MonitorConfig,
        reopen: Callable[[], IMADPort] | None = None,
        aheadSeconds: Callable[[], float] = lambda: 0.0,
    ) -> None:
        """
        @param reopen: opens the management port, first and after each loss; by default the configured port.
        @param aheadSeconds: returns the time by which the reactor's clock is ahead of the system time.
        @raise ValueError: the name of the port is invalid.
        @raise RDMAError: the port, or a file of tokens or users, cannot be opened, or another monitor writes
            to the history. A history that cannot be opened now is opened later.
        """
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self._pools: list[ThreadPool] = []
        self._reactor = reactor
        access = self._access = readAccess(config.tokens, config.users)
        endpoint = endpointOf(reactor, config.listen) if config.listen else None
        if not access.isOpen and config.listen.startswith(_PLAIN) and not isLoopback(config.listen):
            _log.warn(
                "tokens and passwords cross the network as they are, to {listen}: listen by ssl:, or on "
                "loopback behind a proxy with TLS",
                listen=config.listen,
            )
        channels, check = channelsOf(reactor, config), checkOf(config)
        reopen = reopen or partial(openMADPort, reactor, portOf(config))
        store = self._remote = self._writer = None
        with ExitStack() as undo:
            if config.history:
                lease = leaseOf(config.history)
                store = HistoryStore(config.history, config.levels, lease=lease, events=config.events)
                undo.callback(store.close)
            if config.remote is not None:
                self._remote = remoteWriterOf(reactor, config.remote, self._thread("remote write"))
                undo.callback(self._remote.sender.close)
            self._agent = MADAgent(reactor, reopen(), reopen=reopen)
            undo.pop_all()
        if store is not None:
            self._writer = HistoryWriter(reactor, store, self._thread("history"), reactor.seconds)
        self._seconds = reactor.seconds
        self._aheadSeconds = aheadSeconds
        self.config = self._first = config
        self._reload: Callable[[], MonitorConfig] | None = None
        supervisor = Supervisor(reactor)
        if self._writer is not None:
            supervisor.add(self._writer.loop)
        if self._remote is not None:
            supervisor.add(self._remote.loop)
        self._notifier = SystemNotifier(reactor, os.environ, supervisor.isAlive)
        thresholds = self._thresholds = ErrorThresholds(config.limits, config.flaps, config.mostBitErrors)
        self.poller = FabricPoller(
            *(
                reactor,
                self._agent,
                config.settings,
                config.rules,
                thresholds,
                self._logFinding,
                self._read,
                check,
            ),
            supervisor,
        )
        reader = None
        if config.remote is not None and config.remote.queryURL:
            reader = PromQLReader(reactor, Agent(reactor), config.remote, config.levels, reactor.seconds)
        watch = Watch(self.poller, self._agent, self._writer, reactor.seconds, self._remote, reader)
        if store is not None and self._writer is not None:
            self._restore(store)
            self.poller.journal.store = self._writer.append
        self._alerts = Notifier(reactor, config.alerts, channels, self._writer, supervisor)
        self._alerts.expect(self.poller.findingLog.open)
        self._files = MaintainedFiles(config.files)
        self._surveyor = Surveyor(reactor, self._agent, self.poller, config.surveySeconds)
        self.site = MonitorSite(reactor, watch, config.counters, access)
        self._listening: StreamServerEndpointService | None = None
        if endpoint is not None:
            listening = self._listening = StreamServerEndpointService(endpoint, self.site.factory)
            listening._raiseSynchronously = True  # if the port is in use, twistd exits, as in strports
            listening.setServiceParent(self)

    def _thread(self, name: str) -> InThread:
        """Return a function that calls functions in a thread of its own, while the service runs."""
        pool = ThreadPool(1, 1, name)
        self._pools.append(pool)
        return partial(deferToThreadPool, self._reactor, pool)

    def _restore(self, store: HistoryStore) -> None:
        """Restore the state of the previous process; a finding stays until this one could have found it."""
        began: float = self._seconds()
        interval = self.config.settings.intervalSeconds

        def heldUntil(kind: str) -> float:
            return began + secondsToFind(kind, self._thresholds, interval)

        if store.isOpen:
            try:
                poller = self.poller
                restoreState(store, poller.findingLog, poller.presence, poller.journal, heldUntil)
            except RDMAError as error:
                _log.warn("what a former process has found is not known: {why}", why=str(error))

    def _logFinding(self, event: FindingEvent) -> None:
        for receive in (logFinding, self._alerts.findingChanged, self.site.hub.findingChanged):
            with _log.failuresHandled("while {event!r} was reported", event=event):
                receive(event)

    def _read(self, since: float) -> None:
        """Pass the readings of a round to history, files and pages; an error in one does not stop others."""
        step = self.poller.rounds.step
        with step("notifying systemd"):
            self._notifier.ready(statusOf(self.poller))
        with step("adding to the history"):
            self._keep(since)
        with step("writing files"):
            self._files.update(self.poller)
        with step("checking the clock"):
            self.poller.report("clock", self._clockFindings())
        self.poller.report("notifications", self._alerts.findings() + self._files.findings())
        with step("updating pages"):
            self.site.hub.fabricChanged()

    def _keep(self, since: float) -> None:
        """Add the rows of all ports that were read since a time to the history, and to that of the engine."""
        writers = [one for one in (self._writer, self._remote) if one is not None]
        rows = self._rowsSince(since) if writers else []
        for writer in writers:
            writer.add(rows)
        if writers:
            self.poller.report("history", [found for writer in writers for found in writer.findings()])

    def _rowsSince(self, since: float) -> list[Row]:
        """Return history rows of all ports that were read since a time."""
        now = self._seconds()
        read = ((rowOf, self.poller.meters), (correctionRowOf, self.poller.corrections.meters))
        rows = (
            make(portKey, meter, now)
            for make, meters in read
            for portKey, meter in meters.items()
            if meter.readAt >= since
        )
        return [row for row in rows if row is not None]

    def _clockFindings(self) -> list[Finding]:
        """Return a finding if the clock is ahead, since recorded and reported times are then wrong."""
        ahead = self._aheadSeconds()
        if ahead < _AHEAD_SECONDS:
            return []
        text = f"all times are {ahead:.0f} s ahead of the time of day, which was set back"
        return [Finding("clock-ahead", "the monitor", text)]

    def reloadBy(self, read: Callable[[], MonitorConfig]) -> None:
        """Set the function by which SIGHUP reads the configuration again."""
        self._reload = read

    def reload(self) -> bool:
        """
        Read the configuration again, and apply it without losing state.

        @return: False if nothing has changed: no function was set by L{reloadBy}, or an error was logged.
        """
        if self._reload is None:
            return False
        self._notifier.reloading()
        try:
            config = self._reload()
            channels, check = channelsOf(self._reactor, config), checkOf(config)
            access = readAccess(config.tokens, config.users)
        except RDMAError as error:
            _log.error("the configuration was not read again: {why}", why=str(error))
            return False
        finally:
            self._notifier.ready("")
        for name in _FIXED:
            if getattr(config, name) != getattr(self._first, name):
                _log.warn("{name} has changed, which takes a restart", name=name)
        if not self._access.change(access):
            _log.warn("adding or removing tokens or users needs a restart")
        self.config = config
        self._thresholds.change(config.limits, config.flaps, config.mostBitErrors)
        self.poller.change(config.settings, config.rules, check)
        self._surveyor.change(config.surveySeconds)
        self._files.change(config.files)
        self._alerts.change(config.alerts, channels)
        _log.info("the configuration was read again")
        text = "the configuration was read again"
        reloaded = FabricEvent(self._seconds(), "operator-reloaded", "the monitor", text)
        self.poller.journal.add([reloaded])
        return True

    def _hung(self, number: int, frame: object) -> None:
        self._reactor.callFromThread(self.reload)

    def address(self) -> Deferred[IAddress | None]:
        """Return a Deferred of the address at which the pages are served, or of None without pages."""
        bound: Deferred[IAddress | None] = Deferred()

        def listens(port: IListeningPort) -> IListeningPort:
            bound.callback(port.getHost())
            return port

        port: Deferred[IListeningPort] | None = getattr(self._listening, "_waitingForPort", None)
        if port is None:
            bound.callback(None)
        else:
            port.addCallbacks(listens, bound.errback)
        return bound

    def privilegedStartService(self) -> None:
        """
        Start listening, before C{twistd} drops its privileges.

        @raise SystemExit: listening failed: the port is in use, or a permission is missing.
        """
        try:
            super().privilegedStartService()  # type: ignore[no-untyped-call]  # of Twisted's
        except (*_UNHEARD, RDMAError) as error:
            raise SystemExit(f"fabric-monitor: {error}") from error

    def startService(self) -> None:
        """
        Start polling and listening.

        @raise DeviceUnavailable: listening failed: the port is in use, or a permission is missing.
        """
        try:
            super().startService()  # type: ignore[no-untyped-call]  # of Twisted's
        except _UNHEARD as error:
            raise DeviceUnavailable(str(error)) from error
        _log.info("watches the fabric of {port}", port=self._agent.port.name)
        for pool in self._pools:
            pool.start()
        for writer in (self._writer, self._remote):
            if writer is not None:
                writer.start()
        if self._reload is not None:
            signal.signal(signal.SIGHUP, self._hung)
        self._notifier.start()
        self._alerts.start()
        self.poller.start()
        self._surveyor.start()
        self.site.start()

    def stopService(self) -> Deferred[None]:
        """Stop polling, and write the remaining history."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        self._notifier.stop()
        if self._reload is not None:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
        self.site.stop()
        await MultiService.stopService(self)
        self._surveyor.stop()
        await self.poller.stop()
        await self._alerts.stop()
        for writer in (self._writer, self._remote):
            if writer is not None:
                await writer.stop()
        for pool in self._pools:
            pool.stop()
        self._agent.close()


class Options(usage.Options):
    """The command line of C{twistd fabric-monitor}."""

    synopsis = "[options]"
    longdesc = (
        "Watches an InfiniBand fabric: sweeps it, reads the counters of all ports, reports findings, stores "
        "a history, and serves /metrics for Prometheus and /api/v1 as JSON."
    )
    optParameters = [
        ["config", "c", None, "Configuration file (TOML). [default: the default configuration]"],
    ]

    def postOptions(self) -> None:
        """Read the configuration, to report errors before the service starts."""
        try:
            self["read"] = parseConfig("") if self["config"] is None else readConfig(self["config"])
        except RDMAError as error:
            raise usage.UsageError(str(error)) from error


def makeService(options: Options) -> IService:
    """Create the service for C{twistd}."""
    from twisted.internet import reactor

    theReactor: Any = reactor
    clock = theReactor.seconds = SteadyClock()
    try:
        service = MonitorService(reactor, options["read"], aheadSeconds=clock.aheadSeconds)
    except (RDMAError, ValueError) as error:
        raise SystemExit(f"fabric-monitor: {error}") from error
    if options["config"] is not None:
        path = os.path.abspath(options["config"])  # a daemon changes its working directory
        service.reloadBy(lambda: readConfig(path))
    return service
