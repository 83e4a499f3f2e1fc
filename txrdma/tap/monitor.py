"""The fabric monitor of one fabric as a service."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import ExitStack, suppress
from dataclasses import replace
from functools import partial
from itertools import chain
from typing import Any, Final

from twisted.application.service import MultiService
from twisted.internet.defer import Deferred, DeferredLock
from twisted.internet.endpoints import clientFromString, serverFromString
from twisted.internet.interfaces import IAddress, IListeningPort, IStreamClientEndpoint, IStreamServerEndpoint
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger

from txrdma.error import DeviceUnavailable, InvalidRequest, RDMAError
from txrdma.fabric.cableplan import cableFindings, readCables
from txrdma.fabric.health import Finding, locatedFindings
from txrdma.fabric.portcounters import intervalClock
from txrdma.fabric.slurmjobs import queueText
from txrdma.interfaces import IMADPort
from txrdma.kit.httprequests import quietAgent
from txrdma.kit.lease import LEASE_SECONDS, RENEW_SECONDS
from txrdma.kit.logs import errorText
from txrdma.kit.serverstrings import isLoopback
from txrdma.kit.webaccess import AccessControl, readAccess
from txrdma.mad.agent import MADAgent
from txrdma.mad.ports import defaultMADPort, openMADPort
from txrdma.monitor.collecting.pool import CollectorPool
from txrdma.monitor.config import MonitorConfig, secretIn
from txrdma.monitor.diagnosis.fabricdiagnosis import Check
from txrdma.monitor.diagnosis.findinglog import Cleared, FindingEvent, Raised
from txrdma.monitor.diagnosis.journal import FabricEvent
from txrdma.monitor.diagnosis.thresholds import ErrorThresholds
from txrdma.monitor.process import ProcessMeasures
from txrdma.monitor.reading.poller import FabricPoller
from txrdma.monitor.reading.settings import RETRIES
from txrdma.monitor.reading.surveyor import Surveyor, TABLES
from txrdma.monitor.series.database import leaseOf
from txrdma.monitor.series.promqlreader import PromQLReader
from txrdma.monitor.supervisor import SupervisedLoop, Supervisor
from txrdma.monitor.web.site import MonitorSite
from txrdma.monitor.web.watch import Watch
from txrdma.tap.duty import channelsOf, Duty, requireTLS, Threads
from txrdma.tap.listening import CANNOT_LISTEN, ListeningService
from txrdma.tap.systemd import SystemNotifier

_log = Logger()

_TLS: Final = "OpenSSL"
_PLAIN: Final = ("tcp:", "tcp4:", "tcp6:", "smc:")
"""Prefixes of endpoint strings without encryption."""

_AHEAD_SECONDS: Final = 60.0
"""Seconds by which the clock may be ahead of the system time without a finding."""

_JOBS_SECONDS: Final = 10.0
"""Seconds after which the command that prints the jobs of Slurm is killed."""

_TRY_SECONDS: Final = 0.2
"""Seconds between attempts to take the lease at the start."""

_FIXED: Final = (
    "port",
    "listen",
    "counters",
    "history",
    "standby",
    "levels",
    "events",
    "remote",
    "collectors",
    "collectorKeyFile",
)
"""Settings whose changes take effect only after a restart."""


def logFinding(event: FindingEvent) -> None:
    """Log a finding that was raised or cleared."""
    entry = event.entry
    if not isinstance(event, (Raised, Cleared)):
        return
    state = "is there" if isinstance(event, Raised) else "is cleared"
    _log.info(
        "{severity} {kind} {state}: {where}: {text}. {advice}",
        severity=entry.severity.name.lower(),
        kind=entry.finding.kind,
        state=state,
        where=entry.finding.where,
        text=entry.finding.text,
        advice=entry.advice,
    )


def checkOf(config: MonitorConfig) -> Check:
    """Return the function that finds the faults of a swept fabric, with the topology file if there is one."""
    if not config.topology:
        return locatedFindings
    plan = readCables(config.topology)
    return lambda fabric: chain(locatedFindings(fabric), cableFindings(fabric, plan))


def accessOf(reactor: Any, config: MonitorConfig) -> AccessControl:
    """
    Return who may use the pages; passwords are compared with hashes in a thread.

    @raise InvalidRequest: a file of tokens or users cannot be read, or is invalid.
    """

    def inThread(work: Callable[..., bool], *arguments: object) -> Deferred[bool]:
        return deferToThreadPool(reactor, reactor.getThreadPool(), work, *arguments)

    return readAccess(config.tokens, config.users, config.proxy, inThread)


def endpointOf(reactor: Any, config: MonitorConfig, access: AccessControl) -> IStreamServerEndpoint:
    """
    Return the server endpoint of the pages.

    @raise InvalidRequest: the string is not a valid endpoint, or a file or package that it needs is missing.
    """
    listen = config.listen
    try:
        endpoint: IStreamServerEndpoint = serverFromString(reactor, listen)
    except Exception as error:  # parsers of endpoint strings raise any exception
        if isinstance(error, ImportError) and error.name == _TLS:
            requireTLS(f"web.listen {listen!r}")
        raise InvalidRequest(f"web.listen {listen!r}: {errorText(error)}") from error
    if not access.isOpen and listen.startswith(_PLAIN) and not isLoopback(listen):
        _log.warn(
            "tokens and passwords are sent to {listen} unencrypted: use ssl:, or loopback "
            "behind a proxy with TLS",
            listen=listen,
        )
    return endpoint


def collectorsOf(reactor: Any, config: MonitorConfig, agent: MADAgent) -> CollectorPool | None:
    """
    Return the collectors of a monitor; None without any.

    @raise InvalidRequest: an endpoint string is not valid, or the key cannot be read.
    """
    endpoints: dict[str, IStreamClientEndpoint] = {}
    for string in config.collectors:
        try:
            endpoints[string] = clientFromString(reactor, string)
        except Exception as error:  # parsers of endpoint strings raise any exception
            raise InvalidRequest(f"poll.collectors {string!r}: {error}") from error
    if not endpoints:
        return None
    seconds, most = config.settings.timeoutSeconds, config.settings.maxOutstanding
    key = secretIn(config.collectorKeyFile, "poll.collector-key-file").encode()
    return CollectorPool(reactor, agent, endpoints, key, seconds, RETRIES, most)


def engineOf(reactor: Any, config: MonitorConfig) -> PromQLReader | None:
    """Return the reader of the time series engine whose series charts show; None for the history."""
    if config.remote is None or not config.remote.queryURL:
        return None
    return PromQLReader(reactor, quietAgent(reactor), config.remote, config.levels, reactor.seconds)


def statusOf(poller: FabricPoller) -> str:
    """Return the status of a fabric in one line, for C{systemctl status}."""
    nodes = 0 if poller.fabric is None else len(poller.fabric.nodes)
    worst = poller.findings.log.worst()
    state = (
        "all is well" if worst is None else f"{len(poller.findings.log.open)} findings, {worst.name.lower()}"
    )
    return f"{nodes} nodes: {state}"


class MonitorService(ListeningService):
    """
    The monitor of one fabric: its management port, poller, history and pages.

    @ivar poller: polls the fabric while the service runs.
    @ivar site: serves the pages.
    @ivar close: closes the port and the history, and releases the lease: call it if the service
        was never started. Idempotent.
    """

    command = "fabric-monitor"

    def __init__(
        self,
        reactor: Any,
        config: MonitorConfig,
        reopen: Callable[[], IMADPort] | None = None,
        aheadSeconds: Callable[[], float] = lambda: 0.0,
        notifier: SystemNotifier | None = None,
        fabrics: Sequence[str] = (),
        lock: DeferredLock | None = None,
    ) -> None:
        """
        @param lock: lock that the pollers of several fabrics share: see L{FabricPoller}.
        @param notifier: notifies systemd; None for one of this fabric alone.
        @param fabrics: names of all fabrics where there are several.
        @param reopen: opens the management port, first and after each loss; by default the configured port.
        @param aheadSeconds: returns the time by which the reactor's clock is ahead of the system time.
        @raise ValueError: the name of the port is invalid.
        @raise RDMAError: the port, or a file of tokens or users, cannot be opened, or another monitor writes
            to the history. A history that cannot be opened now is opened later.
        """
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self._reactor = reactor
        access = self._access = accessOf(reactor, config)
        endpoint = endpointOf(reactor, config, access) if config.listen else None
        check = checkOf(config)
        reopen = reopen or partial(openMADPort, reactor, config.port or defaultMADPort())
        self._seconds, self._intervalSeconds = reactor.seconds, intervalClock(reactor.seconds)
        self._aheadSeconds = aheadSeconds
        self.config = self._first = config
        self._reload: Callable[[], MonitorConfig] | None = None
        self._threads = Threads(reactor)
        self._lease = leaseOf(config.history) if config.history else None
        self._sureUntil = self._leaseEnds()
        supervisor = Supervisor(reactor)
        self._renewal = SupervisedLoop(reactor, "lease", self._renew, self._untilRenewal, isReported=False)
        self._takeover = SupervisedLoop(reactor, "takeover", self._takeOver, lambda: None, isPeriodic=False)
        if self._lease is not None:
            supervisor.add(self._renewal)
            supervisor.add(self._takeover)
        self._losses = 0
        self._notifier = notifier or SystemNotifier(reactor, os.environ, supervisor.isAlive)
        thresholds = self._thresholds = ErrorThresholds(config.limits, config.flaps, config.mostBitErrors)
        with ExitStack() as undo:
            agent = self._agent = MADAgent(reactor, reopen(), reopen=reopen)
            undo.callback(agent.close)
            self.poller = FabricPoller(
                *(reactor, agent, config.settings, config.rules, thresholds),
                *(self._logFinding, self._read, check, supervisor, collectorsOf(reactor, config, agent)),
                lock,
            )
            duty = self._newDuty()
            self._duty = duty if self._takesLease() else None
            if self._duty is not None:
                duty.open(self._lease)
                undo.callback(duty.close)
                duty.begin()
                duty.detach()  # twistd may fork
            self._surveyor = Surveyor(reactor, agent, self.poller, config.surveySeconds)
            self._watch = Watch(
                *(self.poller, None, reactor.seconds),
                engine=engineOf(reactor, config),
                fabric=config.fabric,
                fabrics=fabrics,
            )
            self._watch.isSure = self._isSure
            self._showDuty()
            self._changeJobs(config)
            process = None if config.fabric else ProcessMeasures(reactor)
            self.site = MonitorSite(reactor, self._watch, config.counters, access, process)
            self._listening = None if endpoint is None else self.listen(endpoint, self.site.factory)
            if process is not None:
                process.setServiceParent(self)  # type: ignore[no-untyped-call]  # of Twisted's
            self.close = undo.pop_all().close

    # Active monitor and standby.

    def _newDuty(self) -> Duty:
        return Duty(self._reactor, self.config, self.poller, self._thresholds, self._threads, self._isSure)

    def _isSure(self) -> bool:
        """Return whether no other monitor can have the lease."""
        lease = self._lease
        if lease is None or not lease.seconds or not self.config.standby:
            return True
        return all(now < until for now, until in zip(self._times(), self._sureUntil, strict=True))

    def _times(self) -> tuple[float, float]:
        """Return two clocks: the first runs slowly after it was set back, the second stops during sleep."""
        return self._seconds(), self._intervalSeconds()

    def _leaseEnds(self) -> tuple[float, ...]:
        """Set the duration of the lease, and return the times at which one that is taken now ends."""
        lease = self._lease
        if lease is not None and self.config.standby:
            lease.replaceWithin(self.config.settings.intervalSeconds)
        return tuple(now + (lease.seconds if lease is not None else 0.0) for now in self._times())

    def _untilRenewal(self) -> float:
        return RENEW_SECONDS if self._lease is None else self._lease.renewSeconds

    def _takesLease(self) -> bool:
        """Return whether this monitor starts as the active one."""
        lease, isAlone = self._lease, not self.config.standby
        if lease is None:
            return True
        # Without a standby it waits for the end of the lease of a process that was killed.
        waits = isAlone * ((LEASE_SECONDS if lease.seconds else 0.0) + RENEW_SECONDS)
        end = time.monotonic() + waits
        with suppress(DeviceUnavailable):  # the history reports it
            while not lease.attempt() and time.monotonic() < end:
                time.sleep(_TRY_SECONDS)
        return lease.isHeld or isAlone

    async def _renew(self) -> bool:
        """Take or renew the lease; become active when it is taken, and a standby when it is lost."""
        lease, ends = self._lease, self._leaseEnds()
        assert lease is not None, "there is no history"
        self._sureUntil = tuple(map(min, self._sureUntil, ends))  # a shorter one may begin without an answer
        isHeld = await self._threads.named("lease")(lease.attempt)
        if isHeld:
            self._sureUntil = ends
        else:
            self._losses += 1
        if isHeld and self._duty is None:
            self._takeover.runNow()  # which may take longer than the lease, and is not waited for
        elif not isHeld and self._duty is not None:
            duty, self._duty = self._duty, None
            _log.warn("{holder} has taken the history: this monitor is a standby now", holder=lease.holder)
            self._showDuty()
            await duty.end()
        self._showDuty()
        return True

    async def _takeOver(self) -> bool:
        """Become the active monitor, unless the lease is lost before the history is open."""
        config, duty, losses = self.config, self._newDuty(), self._losses
        inThread = self._threads.named("history")
        await inThread(duty.open, self._lease)
        if self._losses != losses:
            await inThread(duty.close)
            return False
        try:
            duty.begin()
            if self.config is not config:  # it was read again meanwhile
                duty.change(self.config, channelsOf(self._reactor, self.config))
            duty.start()
        except BaseException:
            await duty.end()
            await inThread(duty.close)  # what was not started, and the lease: the next renewal tries again
            raise
        self._duty = duty
        _log.info("is the active monitor now")
        self._showDuty()
        return True

    def _showDuty(self) -> None:
        """Show on the pages whether this monitor is active, and its history."""
        duty, watch = self._duty, self._watch
        watch.isActive = duty is not None
        watch.active = "" if self._lease is None else self._lease.holder
        watch.history, watch.remote = (None, None) if duty is None else (duty.writer, duty.remote)

    def _changeJobs(self, config: MonitorConfig) -> None:
        """Set how pages read the jobs of Slurm."""
        read = partial(queueText, self._reactor, config.jobs, _JOBS_SECONDS)
        self._watch.readJobs = read if config.jobs else None

    def _logFinding(self, event: FindingEvent) -> None:
        duty, hub = self._duty, self.site.hub
        active = () if duty is None else (logFinding, duty.notifier.findingChanged)
        for receive in (*active, hub.findingChanged):
            with _log.failuresHandled("while {event!r} was reported", event=event):
                receive(event)

    async def _read(self, since: float) -> None:
        """Pass the readings of a round to history, files and pages; an error in one does not stop others."""
        step, duty = self.poller.rounds.step, self._duty
        with step("notifying systemd"):
            self._notifier.ready(("" if duty is not None else "standby: ") + statusOf(self.poller))
        with step("checking the clock"):
            self.poller.findings.report("clock", self._clockFindings())
        if duty is not None:
            with step("adding to the history"):
                await duty.store(since)
            with step("writing files"):
                if self._isSure():
                    await duty.files.update(self.poller)
            self.poller.findings.report("notifications", duty.findings())
        else:  # a standby has neither: the active monitor reports its own
            self.poller.findings.report("history", ())
            self.poller.findings.report("notifications", ())
        if not self.config.surveySeconds:  # former surveys may have found something
            self.poller.findings.report(TABLES, ())
        with step("updating pages"):
            self.site.hub.fabricChanged()

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
            access = accessOf(self._reactor, config)
        except RDMAError as error:
            _log.error("the configuration was not read again: {why}", why=errorText(error))
            return False
        finally:
            self._notifier.ready("")
        if config.hasSections:
            _log.error("adding sections of fabrics needs a restart: the configuration was not read again")
            return False
        for name in _FIXED:
            if getattr(config, name) != getattr(self._first, name):
                _log.warn("{name} has changed, which needs a restart", name=name)
        if config.settings.wantsNotices != self._first.settings.wantsNotices:
            _log.warn("poll.notices has changed, which needs a restart")
        isSame = self._access.admitsSame(access)
        if not self._access.change(access):
            _log.warn("adding or removing tokens or users needs a restart")
        if not isSame:
            self.site.hub.disconnect()  # browsers connect again, if they still may
        self.config = replace(config, **{name: getattr(self._first, name) for name in _FIXED})
        self._thresholds.change(config.limits, config.flaps, config.mostBitErrors)
        self.poller.change(config.settings, config.rules, check)
        self._surveyor.change(config.surveySeconds)
        self._changeJobs(config)
        if self._duty is not None:
            self._duty.change(self.config, channels)
        _log.info("the configuration was read again")
        text = "the configuration was read again"
        reloaded = FabricEvent(self._seconds(), "operator-reloaded", "the monitor", text)
        self.poller.findings.journal.add([reloaded])
        return True

    def _hangupReceived(self, number: int, frame: object) -> None:
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
        """Open the history again after C{twistd} has forked, and start listening."""
        if self._duty is not None:
            self._duty.attach()
        super().privilegedStartService()

    def startService(self) -> None:
        """Start polling and listening; raise L{DeviceUnavailable} if listening failed."""
        try:
            super().startService()  # type: ignore[no-untyped-call]  # of Twisted's
        except CANNOT_LISTEN as error:
            raise DeviceUnavailable(str(error)) from error
        _log.info("watches the fabric of {port}", port=self._agent.port.name)
        self._threads.start()
        if self._duty is not None:
            self._duty.start()
        if self._lease is not None:
            self._takeover.start(None)
            self._renewal.start()
        if self._reload is not None and not self.config.fabric:
            signal.signal(signal.SIGHUP, self._hangupReceived)
        self._notifier.start()
        self.poller.start()
        self._surveyor.start()
        self.site.start()

    def stopService(self) -> Deferred[None]:
        """Stop polling, and write the remaining history."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        self._notifier.stop()
        handlesHangup = self._reload is not None and not self.config.fabric
        if handlesHangup:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # else it would end the process before the rest
        self.site.stop()
        await MultiService.stopService(self)
        self._surveyor.stop()
        await self.poller.stop()
        await self._renewal.stop()
        await self._takeover.stop()
        if self._duty is not None:
            await self._duty.end()
        elif self._lease is not None:
            self._lease.release()
        self._threads.stop()
        self.close()  # after a failed start, also the history
        if handlesHangup:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
