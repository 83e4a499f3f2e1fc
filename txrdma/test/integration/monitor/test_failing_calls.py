"""Each system call fails once while a monitor or a collector starts, runs and stops."""

from __future__ import annotations

import os
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Any

from twisted.internet import reactor as theReactor
from twisted.internet.endpoints import clientFromString
from twisted.trial.unittest import TestCase

from txrdma.error import RDMAError
from txrdma.mad.agent import MADAgent
from txrdma.mad.ports import openMADPort
from txrdma.monitor.collecting import pool as poolModule
from txrdma.monitor.collecting.pool import CollectorPool
from txrdma.monitor.config import parseConfig
from txrdma.monitor.series.database import leaseOf, SQLite
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.tap.fabriccollector import CollectorService, Options
from txrdma.tap.fabrics import FabricsService
from txrdma.tap.monitor import MonitorService
from txrdma.test.support.extras import needs
from txrdma.test.support.openings import CODES, OpeningContract
from txrdma.testing.failingcalls import OPENING_CALLS
from txrdma.testing.reactors import waitUntil

reactor: Any = theReactor

_MONITOR = """
port = "sim:fattree:4"
web = {{listen = "tcp:0:interface=127.0.0.1", tokens = "{folder}/tokens"}}
history.file = "{folder}/history"
remote-write = {{url = "http://127.0.0.1:9/", spill = "{folder}/spill"}}
files.slurm = "{folder}/topology.conf"

[poll]
interval = 2
settle = 0.1
survey = 0
notices = false
collectors = ["unix:{folder}/none"]
collector-key-file = "{folder}/key"

[alerts]
log = "{folder}/log"
syslog.address = "unix:{folder}/syslog"
webhooks.ours.url = "http://127.0.0.1:9/"
"""

_FABRICS = """
web.listen = "tcp:0:interface=127.0.0.1"
poll = {{survey = 0, notices = false}}
history.file = "{folder}/{{fabric}}"

[fabrics.north]
port = "sim:fattree:4"

[fabrics.south]
port = "sim:fattree:4"
"""


class ServiceCase(OpeningContract, TestCase):
    """A service on the real reactor."""

    slowBecause = "each call fails in a service of its own on the real reactor"
    # Twisted calls the others, and leaves its own objects.
    calls = [each for each in OPENING_CALLS if each[1] not in ("addReader", "write")]
    mayCollect = True
    expected = (RDMAError, SystemExit)

    def setUp(self) -> None:
        folder = TemporaryDirectory()  # paths of UNIX sockets must be short
        self.addCleanup(folder.cleanup)
        self.folder = folder.name
        for name in ("tokens", "key"):
            path = Path(folder.name, name)
            path.write_text("a token of some length\n")
            path.chmod(0o600)

    async def ran(self, service: Any) -> None:
        """Start a service, let the reactor run, and stop the service."""
        try:
            service.privilegedStartService()
            service.startService()
            await self.started(service)
        finally:
            await service.stopService()

    async def started(self, service: Any) -> None:
        """Wait until the service works."""
        raise NotImplementedError

    async def attached(self, service: MonitorService) -> None:
        """Read the history, which is open now, even if the first attempt failed."""
        assert service._duty is not None and service._duty.writer is not None
        await service._duty.writer.read(HistoryStore.changes)


class MonitorTests(ServiceCase):
    """The monitor of one fabric, with history, spill, alerts, files, pages and a collector."""

    async def use(self) -> None:
        await self.ran(MonitorService(reactor, self.config))

    async def started(self, service: MonitorService) -> None:
        await self.attached(service)

    async def test_each(self) -> None:
        """The service starts, also without its history, or raises an error of txrdma and leaves nothing."""
        needs("cramjam", "remote-write")
        self.patch(os, "environ", {**os.environ, "NOTIFY_SOCKET": f"{self.folder}/notify"})
        self.config = parseConfig(_MONITOR.format(folder=self.folder))
        await self.check(20)


class FabricsTests(ServiceCase):
    """The monitors of two fabrics in one process."""

    codes = CODES[:1]  # since there are many calls

    async def use(self) -> None:
        await self.ran(FabricsService(reactor, self.config))

    async def started(self, service: FabricsService) -> None:
        for one in service.monitors.values():
            await self.attached(one)

    async def test_each(self) -> None:
        """The services of all fabrics start, or none and an error of txrdma is raised."""
        text = _FABRICS.format(folder=self.folder)
        self.config = parseConfig(text)
        await self.check(20)


class CollectorTests(ServiceCase):
    """A collector, and the monitor's end of the connection."""

    mostLogged = 1  # a connection that cannot be configured is closed

    async def use(self) -> None:
        await self.ran(CollectorService(reactor, self.options))

    async def started(self, service: CollectorService) -> None:
        with MADAgent(reactor, openMADPort(reactor, "sim:fattree:4")) as agent:
            waiting: Any = service.listening._waitingForPort
            address = waiting.result.getHost()
            endpoint = clientFromString(reactor, f"tcp:127.0.0.1:{address.port}")
            pool = CollectorPool(reactor, agent, {"one": endpoint}, b"a token of some length", 1.0, 2, 64)
            pool.start()
            try:
                await waitUntil(reactor, lambda: pool._links)
            finally:
                await pool.stop()
            await waitUntil(reactor, lambda: not service.factory.connections)

    async def test_each(self) -> None:
        """The collector starts or raises an error of txrdma; a monitor connects, also at the next attempt."""
        self.patch(poolModule, "FIRST_PAUSE", 0.01)
        self.options = Options()
        where = ["--listen", "tcp:0:interface=127.0.0.1", "--port", "sim:fattree:4"]
        self.options.parseOptions(["--key-file", f"{self.folder}/key", *where])
        await self.check(5)


class HistoryTests(ServiceCase):
    """A history, which the process may open later."""

    calls = [*OPENING_CALLS, (SQLite, "execute")]

    async def use(self) -> None:
        lease = leaseOf(f"{self.folder}/history")
        store = HistoryStore(f"{self.folder}/history", lease=lease)
        try:
            store.changes()
        finally:
            store.close()

    async def test_each(self) -> None:
        """A history is opened, now or by the next call that needs it, or L{DeviceUnavailable} is raised."""
        await self.check(20)
