"""The monitor's service on a simulated fabric."""

from __future__ import annotations

import errno
import json
import os
import socket
from dataclasses import replace
from pathlib import Path
from typing import Any, cast

from twisted.internet import reactor as theReactor
from twisted.internet.defer import Deferred, maybeDeferred
from twisted.logger import capturedLogs, LogLevel
from twisted.trial.unittest import SynchronousTestCase, TestCase
from twisted.web.client import Agent, readBody
from twisted.web.http_headers import Headers
from twisted.web.resource import Resource
from twisted.web.server import Site

from txrdma.error import DeviceUnavailable, RDMAError
from txrdma.interfaces import IMADPort
from txrdma.kit.spool import Spool
from txrdma.mad import ports
from txrdma.mad.ports import openMADPort
from txrdma.monitor.config import parseConfig
from txrdma.monitor.series.database import leaseOf
from txrdma.monitor.series.exposition import guidText
from txrdma.monitor.series.history import BatchWriter
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.tap import duty, monitor
from txrdma.tap.monitor import MonitorService
from txrdma.test.support.extras import needs
from txrdma.test.support.monitor.alerts import entryOf
from txrdma.test.support.monitor.samples import Sample, samplesIn
from txrdma.test.support.monitor.service import attachedLater, WHOLE
from txrdma.test.unit.monitor.test_promql_reader import matrix
from txrdma.testing.reactors import waitUntil

reactor: Any = theReactor


class _Engine(Resource):
    """An engine that accepts all samples, and answers each query with one point."""

    isLeaf = True

    def __init__(self) -> None:
        super().__init__()
        self.samples: list[Sample] = []

    def render_POST(self, request: Any) -> bytes:
        if request.path == b"/api/v1/query":
            return matrix({"seconds": {100: 10.0}, "portXmitData": {100: 70.0}}).body
        self.samples += samplesIn(request.content.read())
        return b""


def openFiles() -> list[str]:
    """Return the paths of all files that this process has open."""
    return [os.path.realpath(descriptor) for descriptor in Path("/proc/self/fd").iterdir()]


class StartTests(SynchronousTestCase):
    """Failed starts: each ends with a message, and leaves nothing open."""

    def refused(self, text: str) -> str:
        error = self.assertRaises(RDMAError, MonitorService, reactor, parseConfig(text))
        return str(error)

    def test_noPort(self) -> None:
        """Without a management port the start fails; a simulated fabric is used only on request."""
        self.patch(ports, "availableMADPorts", lambda: ["sim"])
        self.assertIn("no management port", self.refused('web.listen = ""'))

    def test_samePort(self) -> None:
        """A lost port is opened again, and is not replaced by another one."""
        names: list[str] = []

        def opened(reactor: object, name: str) -> IMADPort:
            names.append(name)
            return openMADPort(reactor, "sim:fattree:4")

        self.patch(monitor, "openMADPort", opened)
        self.patch(monitor, "defaultMADPort", lambda: "umad:mlx5_0/1")
        service = MonitorService(reactor, parseConfig('web.listen = ""'))
        self.patch(monitor, "defaultMADPort", lambda: "sim")  # its driver was removed
        self.addCleanup(service._agent.close)
        assert service._agent._reopener is not None
        service._agent._reopener._reopen().close()
        self.assertEqual(names, ["umad:mlx5_0/1"] * 2)

    def test_historyInUse(self) -> None:
        """A second monitor with the same history is refused."""
        path = self.mktemp()
        self.addCleanup(HistoryStore(path, lease=leaseOf(path)).close)
        output = self.refused(f'port = "sim:fattree:4"\n[web]\nlisten = ""\n[history]\nfile = "{path}"')
        self.assertIn("another monitor", output)

    def test_daemon(self) -> None:
        """
        The history is closed when twistd forks and changes its folder, and is opened again before it drops
        its privileges: SQLite's locks would be lost, and another program that reads the file would delete
        transactions in use.
        """
        path = self.mktemp()
        config = parseConfig(f'port = "sim:fattree:4"\nweb.listen = ""\nhistory.file = "{path}"')
        absolute = os.path.realpath(path)
        service = MonitorService(reactor, config)
        self.addCleanup(service._agent.close)
        duty = service._duty
        assert duty is not None and duty.writer is not None
        self.addCleanup(duty.writer._store.close)
        self.assertNotIn(absolute, openFiles())
        self.assertIn(f"{absolute}-owner", openFiles())
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir("/")
        service.privilegedStartService()
        self.assertIn(absolute, openFiles())

    def test_spillInUse(self) -> None:
        """A second monitor with the same spill is refused, and does not lock its history."""
        needs("cramjam", "remote-write")
        path, folder = self.mktemp(), self.mktemp()
        self.addCleanup(Spool(folder, 1 << 20).close)
        engine = f'remote-write = {{url = "http://127.0.0.1:1/", spill = "{folder}"}}'
        text = f'port = "sim:fattree:4"\nweb.listen = ""\nhistory.file = "{path}"\n{engine}'
        self.assertIn("another process", self.refused(text))
        HistoryStore(path, lease=leaseOf(path)).close()

    def test_withoutPackages(self) -> None:
        """Settings that need missing packages are refused with the name of the extra."""
        self.patch(duty, "find_spec", lambda name: None)
        for extra, text in (
            ("remote-write", f'remote-write = {{url = "http://127.0.0.1:1/", spill = "{self.mktemp()}"}}'),
            ("tls", 'alerts.webhooks.chat.url = "https://chat.example.org/hook"'),
            ("tls", "[alerts.mail]\nhost = 'm'\nfrom = 'a@b'\nto = ['a@b']\nuser = 'me'"),
        ):
            output = self.refused(f'port = "sim:fattree:4"\nweb.listen = ""\n{text}')
            self.assertIn(f"pip install 'txrdma[{extra}]'", output)

    def test_withoutHistory(self) -> None:
        """A monitor starts without its database and attaches later; only history is unavailable meanwhile."""
        folder = Path(self.mktemp())
        path = folder / "history.db"
        text = f'port = "sim:fattree:4"\n[web]\nlisten = ""\n[history]\nfile = "{path}"'
        service = MonitorService(reactor, parseConfig(text))
        self.addCleanup(service._agent.close)
        assert service._duty is not None
        writer = service._duty.writer
        assert writer is not None
        self.patch(writer, "_inThread", maybeDeferred)
        self.failureResultOf(Deferred.fromCoroutine(writer._write()), DeviceUnavailable)
        service.poller.findings.report("test", [entryOf().finding])
        folder.mkdir()
        self.successResultOf(Deferred.fromCoroutine(writer._write()))
        self.addCleanup(writer._store.close)
        self.assertEqual(len(writer._store.changes()), 1)
        self.assertIn("another monitor", self.refused(text))

    def test_inPlain(self) -> None:
        """Tokens without TLS cause a warning, except on loopback."""
        token = self.mktemp()
        Path(token).write_text("a token of some length\n")
        os.chmod(token, 0o600)
        for listen, isWarned in (("tcp:0", True), ("tcp:0:interface=127.0.0.1", False), ("smc:0", True)):
            text = f'port = "sim:fattree:4"\nweb.tokens = "{token}"\nweb.listen = "{listen}"'
            with capturedLogs() as logs:
                service = MonitorService(reactor, parseConfig(text))
            service._agent.close()
            warnings = [event for event in logs if event["log_level"] is LogLevel.warn]
            self.assertEqual(bool(warnings), isWarned, listen)

    def test_listen(self) -> None:
        """Invalid endpoints and missing TLS files are reported."""
        needs("OpenSSL", "tls")
        token = self.mktemp()
        Path(token).write_text("a token of some length\n")
        os.chmod(token, 0o600)
        for listen in ("ssl:0:privateKey=/nowhere:certKey=/nowhere", "unix:/run/m:mode=loud"):
            text = f'port = "sim:fattree:4"\nweb.tokens = "{token}"\nweb.listen = "{listen}"'
            self.assertIn(f"web.listen {listen!r}: ", self.refused(text))

    def test_taken(self) -> None:
        """A port in use ends C{twistd} and the command with a message."""
        with socket.create_server(("127.0.0.1", 0)) as taken:
            self.unheard(taken.getsockname()[1], os.strerror(errno.EADDRINUSE))  # musl has another text

    def unheard(self, number: int, why: str) -> None:
        config = parseConfig(f'port = "sim:fattree:4"\nweb.listen = "tcp:{number}:interface=127.0.0.1"')
        for start, kind in (("privilegedStartService", SystemExit), ("startService", RDMAError)):
            service = MonitorService(reactor, config)
            self.addCleanup(service._agent.close)
            error = self.assertRaises(kind, getattr(service, start))
            self.assertIn(why, str(error))


class ServiceTests(TestCase):
    """The whole service, on a simulated fabric and the real reactor."""

    async def test_withoutHistory(self) -> None:
        """A monitor starts although its history cannot be opened, and attaches it later."""
        folder = Path(self.mktemp())
        await attachedLater(str(folder / "history"), folder.mkdir)

    async def test_service(self) -> None:
        """The service sweeps, reads, stores and answers; after it stops, nothing remains open."""
        needs("OpenSSL", "tls")
        needs("cramjam", "remote-write")
        path = self.mktemp()
        text = WHOLE.replace('listen = ""', 'listen = "tcp:0:interface=127.0.0.1"')
        text = text.replace("interval = 1", "interval = 2")
        engine = _Engine()
        receiving = reactor.listenTCP(0, Site(engine), interface="127.0.0.1")
        self.addCleanup(receiving.stopListening)
        where = f"http://127.0.0.1:{receiving.getHost().port}"
        self.patch(BatchWriter, "batchSeconds", 0.2)
        urls = f'url = "{where}/api/v1/write", query-url = "{where}"'
        text = f'remote-write = {{{urls}, spill = "{self.mktemp()}"}}\n{text}'
        config = parseConfig(f'history.file = "{path}"\n{text}')
        config = replace(config, settings=replace(config.settings, intervalSeconds=0.1))
        service = MonitorService(reactor, config)
        listening = service.services[0]
        service.startService()
        await waitUntil(reactor, lambda: service.poller.statistics.turns > 3 and bool(engine.samples))
        port = listening._waitingForPort.result.getHost().port
        agent = Agent(reactor)
        headers = Headers({"Accept-Encoding": ["gzip"]})
        response = cast(Any, await agent.request(b"GET", b"http://127.0.0.1:%d/metrics" % port, headers))
        self.assertEqual(response.headers.getRawHeaders("Content-Encoding"), ["gzip"])
        await readBody(response)
        response = cast(Any, await agent.request(b"GET", b"http://127.0.0.1:%d/api/v1/overview" % port))
        reported = json.loads(await readBody(response))
        self.assertEqual((response.code, reported["isWell"], reported["nodes"]), (200, True, 5))
        portKey = next(iter(service.poller.meters))
        place = (
            f"history/{guidText(portKey[0])}/{portKey[1]}/portXmitData?begin=90&end=110&resolution=readings"
        )
        url = f"http://127.0.0.1:{port}/api/v1/{place}"
        response = cast(Any, await agent.request(b"GET", url.encode()))
        (point,) = json.loads(await readBody(response))["points"]
        self.assertEqual((point["at"], point["grown"], point["rate"]), (100, 70, 7.0))
        await service.stopService()
        store = HistoryStore(path)
        points = store.series(portKey, "portXmitData", 0, 1 << 40, "readings")
        sent = {
            (time // 1000, int(value))
            for labels, value, time in engine.samples
            if labels["column"] == "portXmitData"
            and (labels["guid"], labels["port"]) == (guidText(portKey[0]), str(portKey[1]))
        }
        self.assertGreater(len(sent), 0)
        self.assertLessEqual({at for at, _ in sent}, {point.at for point in points})
        store.close()
