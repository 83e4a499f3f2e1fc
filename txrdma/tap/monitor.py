"""
C{twistd fabric-monitor}: a fabric that is watched for as long as this runs.
"""

from __future__ import annotations

from functools import partial
from typing import Any

from twisted.application.internet import StreamServerEndpointService
from twisted.application.service import IService, MultiService
from twisted.internet.defer import Deferred
from twisted.internet.endpoints import serverFromString
from twisted.internet.threads import deferToThreadPool
from twisted.logger import Logger
from twisted.python import usage
from twisted.python.threadpool import ThreadPool

from txrdma.error import RDMAError
from txrdma.mad.agent import MADAgent
from txrdma.mad.ports import openMADPort
from txrdma.monitor.config import MonitorConfig, parseConfig, readConfig
from txrdma.monitor.history import HistoryWriter
from txrdma.monitor.historystore import HistoryStore, rowOf
from txrdma.monitor.judging import ErrorJudge
from txrdma.monitor.ledger import LedgerEvent, Raised
from txrdma.monitor.pages import pages
from txrdma.monitor.poller import FabricPoller

_log = Logger()


def tell(event: LedgerEvent) -> None:
    """Log a finding that was raised or cleared."""
    entry = event.entry
    said = "is there" if isinstance(event, Raised) else "is cleared"
    _log.info(
        "{severity} {kind} {said}: {where}: {text}. {advice}",
        severity=entry.severity.name.lower(),
        kind=entry.finding.kind,
        said=said,
        where=entry.finding.where,
        text=entry.finding.text,
        advice=entry.advice,
    )


class MonitorService(MultiService):
    """
    Monitor of one fabric: its port, its poller, its history and its pages.

    @ivar poller: watches the fabric while the service runs.
    """

    def __init__(self, reactor: Any, config: MonitorConfig) -> None:
        """
        @raise ValueError: the port's name has no meaning.
        @raise RDMAError: the port cannot be opened, or the history.
        """
        super().__init__()  # type: ignore[no-untyped-call]  # of Twisted's
        self._pool = ThreadPool(1, 1, "history")
        reopen = partial(openMADPort, reactor, config.port)
        store = HistoryStore(config.history) if config.history else None
        try:
            self._agent = MADAgent(reactor, reopen(), reopen=reopen)
        except BaseException:
            if store is not None:
                store.close()
            raise
        self._writer = None
        if store is not None:
            inThread = partial(deferToThreadPool, reactor, self._pool)
            self._writer = HistoryWriter(reactor, store, inThread, reactor.seconds)
        self._seconds = reactor.seconds
        judge = ErrorJudge(config.limits, config.flaps)
        self.poller = FabricPoller(
            reactor, self._agent, config.settings, config.rules, judge, tell, self._read
        )
        if config.listen:
            site = pages(self.poller, self._writer, config.counters)
            listening = StreamServerEndpointService(serverFromString(reactor, config.listen), site)
            listening._raiseSynchronously = True  # a port that is taken ends twistd, as with strports.service
            listening.setServiceParent(self)

    def _read(self, since: float) -> None:
        """Hand what was read in a round to the history."""
        if self._writer is not None:
            now = self._seconds()
            rows = (
                rowOf(place, meter, now)
                for place, meter in self.poller.meters.items()
                if meter.readAt >= since
            )
            self._writer.add([row for row in rows if row is not None])
            self.poller.report("history", self._writer.findings())

    def startService(self) -> None:
        """Begin to watch, and to listen."""
        super().startService()  # type: ignore[no-untyped-call]  # of Twisted's
        if self._writer is not None:
            self._pool.start()
            self._writer.start()
        self.poller.start()

    def stopService(self) -> Deferred[None]:
        """End watching, and write what history there is."""
        return Deferred.fromCoroutine(self._stop())

    async def _stop(self) -> None:
        await MultiService.stopService(self)
        await self.poller.stop()
        if self._writer is not None:
            await self._writer.stop()
            self._pool.stop()
        self._agent.close()


class Options(usage.Options):
    """Options of C{twistd fabric-monitor}: its configuration."""

    synopsis = "[options]"
    longdesc = (
        "Watches an InfiniBand fabric: sweeps it, reads the counters of all ports, tells findings, keeps a "
        "history, and serves /metrics for Prometheus and /api/overview as JSON."
    )
    optParameters = [
        ["config", "c", None, "Configuration, a file in TOML; without one everything is as usual."],
    ]

    def postOptions(self) -> None:
        """Read the configuration, so that mistakes show before anything runs."""
        try:
            self["read"] = readConfig(self["config"]) if self["config"] else parseConfig("")
        except RDMAError as error:
            raise usage.UsageError(str(error)) from error


def makeService(options: Options) -> IService:
    """Make the service that C{twistd} runs."""
    from twisted.internet import reactor

    try:
        return MonitorService(reactor, options["read"])
    except (RDMAError, ValueError) as error:
        raise SystemExit(f"fabric-monitor: {error}") from error
