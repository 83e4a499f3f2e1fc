"""Monitors of several fabrics in one process, with one web site."""

from __future__ import annotations

import os
import signal
from collections.abc import Callable, Mapping
from contextlib import ExitStack
from typing import Any

from twisted.internet.defer import Deferred, DeferredLock, gatherResults
from twisted.logger import Logger

from txrdma.error import RDMAError
from txrdma.interfaces import IMADPort
from txrdma.kit.logs import errorText
from txrdma.monitor.config import MonitorConfig
from txrdma.monitor.process import ProcessMeasures
from txrdma.monitor.web.fabrics import FabricsSite
from txrdma.tap.duty import channelsOf, requireTLS
from txrdma.tap.listening import ListeningService
from txrdma.tap.monitor import accessOf, checkOf, endpointOf, MonitorService
from txrdma.tap.systemd import SystemNotifier

_log = Logger()


class _Notifier(SystemNotifier):
    """Notifies systemd for one of several fabrics: the service is ready when all of them are."""

    def __init__(self, common: SystemNotifier, name: str, statuses: dict[str, str]) -> None:
        self._common = common
        self._name = name
        self._statuses = statuses
        statuses[name] = ""

    def start(self) -> None:
        """Do nothing: the process has one watchdog."""

    def ready(self, status: str) -> None:
        self._statuses[self._name] = status or self._statuses[self._name]
        if all(self._statuses.values()):
            self._common.ready("; ".join(f"{name}: {text}" for name, text in self._statuses.items()))

    def reloading(self) -> None:
        self._common.reloading()

    def stop(self) -> None:
        """Do nothing: the process notifies once."""


def _checkRemotes(config: MonitorConfig) -> None:
    """Raise L{InvalidRequest} if the URL of another monitor needs TLS, which is not installed."""
    for name, url, _authorization in config.remotes:
        if url.startswith("https:"):
            requireTLS(f"fabrics.{name}.url")


class FabricsService(ListeningService):
    """
    The monitors of several fabrics.

    @ivar monitors: services by the names of their fabrics.
    @ivar site: serves the pages of all.
    """

    command = "fabric-monitor"

    def __init__(
        self,
        reactor: Any,
        config: MonitorConfig,
        aheadSeconds: Callable[[], float] = lambda: 0.0,
        reopen: Mapping[str, Callable[[], IMADPort]] | None = None,
    ) -> None:
        """
        @param reopen: functions that open the management ports, by the names of the fabrics.
        @raise RDMAError: a monitor cannot be started.
        @raise ValueError: the name of a port is invalid.
        """
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self._reactor = reactor
        self._reload: Callable[[], MonitorConfig] | None = None
        self._read: MonitorConfig | None = None
        self._notifier = SystemNotifier(reactor, os.environ, self._isAlive)
        self._access = access = accessOf(reactor, config)
        endpoint = endpointOf(reactor, config, access) if config.listen else None
        self.monitors: dict[str, MonitorService] = {}
        _checkRemotes(config)
        names = [*(one.fabric for one in config.fabrics), *(name for name, *_ in config.remotes)]
        statuses: dict[str, str] = {}
        lock = DeferredLock()
        with ExitStack() as undo:
            for one in config.fabrics:
                notifier = _Notifier(self._notifier, one.fabric, statuses)
                opened = (reopen or {}).get(one.fabric)
                service = MonitorService(reactor, one, opened, aheadSeconds, notifier, names, lock)
                undo.callback(service.close)
                self.monitors[one.fabric] = service
                service.setServiceParent(self)  # type: ignore[no-untyped-call]  # of Twisted's
            process = ProcessMeasures(reactor)
            sites = {name: one.site for name, one in self.monitors.items()}
            self.site = FabricsSite(reactor, sites, access, process, config.remotes)
            if endpoint is not None:
                self.listen(endpoint, self.site.factory)
            process.setServiceParent(self)  # type: ignore[no-untyped-call]  # of Twisted's
            undo.pop_all()

    def _isAlive(self) -> bool:
        return all(one.poller.supervisor.isAlive() for one in self.monitors.values())

    def reloadBy(self, read: Callable[[], MonitorConfig]) -> None:
        """Set the function by which SIGHUP reads the configuration again."""
        self._reload = read

        def readOne(name: str) -> MonitorConfig:
            assert self._read is not None, "this is not within reload"
            return next(one for one in self._read.fabrics if one.fabric == name)

        for name, service in self.monitors.items():
            service.reloadBy(lambda name=name: readOne(name))  # type: ignore[misc]  # its default is a name

    def reload(self) -> bool:
        """
        Read the configuration again, and apply it to all fabrics; other fabrics than before need a restart.

        @return: False if nothing has changed.
        """
        if self._reload is None:
            return False
        try:
            self._read = self._reload()
            _checkRemotes(self._read)
            access = accessOf(self._reactor, self._read)
            for one in self._read.fabrics:  # before any of them changes
                channelsOf(self._reactor, one)
                checkOf(one)
        except RDMAError as error:
            _log.error("the configuration was not read again: {why}", why=errorText(error))
            return False
        remotes = {one.name: one for one in self.site.remotes}
        names = {one.fabric for one in self._read.fabrics}, {name for name, *_ in self._read.remotes}
        if names != (set(self.monitors), set(remotes)):
            _log.error("adding or removing fabrics needs a restart: the configuration was not read again")
            return False
        if not self._access.change(access):
            _log.warn("adding or removing tokens or users needs a restart")
        for name, url, authorization in self._read.remotes:
            remotes[name].change(url, authorization)
        results = [service.reload() for service in self.monitors.values()]
        return all(results)

    def _hangupReceived(self, number: int, frame: object) -> None:
        self._reactor.callFromThread(self.reload)

    def startService(self) -> None:
        super().startService()  # type: ignore[no-untyped-call]  # of Twisted's
        self._notifier.start()
        if not self.monitors:
            self._notifier.ready("shows fabrics of other processes")
        self.site.start()
        if self._reload is not None:
            signal.signal(signal.SIGHUP, self._hangupReceived)

    def stopService(self) -> Deferred[Any]:
        self._notifier.stop()
        ended = self.site.stop()
        if self._reload is not None:
            signal.signal(signal.SIGHUP, signal.SIG_IGN)  # else it would end the process before the rest
        stopped: Deferred[None] = super().stopService()  # type: ignore[no-untyped-call]  # of Twisted's
        return gatherResults([ended, stopped]).addBoth(self._stopped)

    def _stopped(self, result: Any) -> Any:
        if self._reload is not None:
            signal.signal(signal.SIGHUP, signal.SIG_DFL)
        return result
