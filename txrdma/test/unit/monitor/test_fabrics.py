"""Several fabrics in one process: configuration, pages, REST, metrics and alerts."""

from __future__ import annotations

import json
import os
import signal
from dataclasses import replace
from pathlib import Path
from typing import Any

from twisted.internet.defer import maybeDeferred
from twisted.logger import capturedLogs, formatEvent
from twisted.trial.unittest import SynchronousTestCase

from txrdma.error import DeviceUnavailable, InvalidRequest
from txrdma.interfaces import IMADPort
from txrdma.kit.passwords import PasswordHash
from txrdma.monitor.config import parseConfig
from txrdma.monitor.reading.poller import FabricPoller
from txrdma.monitor.series.exposition import guidText
from txrdma.sim.clock import SimulatedClock
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.nets.fattree import fatTree
from txrdma.tap import monitor
from txrdma.tap.duty import Threads
from txrdma.tap.fabrics import FabricsService
from txrdma.tap.monitor import MonitorService
from txrdma.tap.systemd import SystemNotifier
from txrdma.test.support.monitor.fetching import Answer, Connection, fetch
from txrdma.test.unit.monitor.test_access import basic
from txrdma.test.unit.monitor.test_exposition import parsed

CONFIG = """
[web]
listen = ""

[history]
file = '{folder}/{{fabric}}.db'

[poll]
interval = 4
settle = 0.1
survey = 0
notices = false

[alerts]
delay = 1
group = 0
log = '{folder}/log'

[fabrics.north]
port = "sim:fattree:4"

[fabrics.south]
port = "sim:fattree:8"
poll.interval = 5
"""


class ConfigTests(SynchronousTestCase):
    def test_merged(self) -> None:
        """A fabric has the settings for all fabrics, unless its own section overrides them."""
        expected = ("north", "sim:fattree:4", 4.0), ("south", "sim:fattree:8", 5.0)
        fabrics = parseConfig(CONFIG.format(folder="/x")).fabrics
        for fabric, (name, port, interval) in zip(fabrics, expected, strict=True):
            self.assertEqual((fabric.fabric, fabric.port), (name, port))
            self.assertEqual(fabric.history, f"/x/{name}.db")
            settings = fabric.settings
            self.assertEqual((settings.intervalSeconds, settings.settleSeconds), (interval, 0.1))

    def test_namedInLists(self) -> None:
        """The name of a fabric is inserted in lists of texts, too."""
        path = self.mktemp()
        Path(path).write_text("secret\n")
        text = f"""
            [poll]
            collectors = ["tcp:{{fabric}}-1:9316", "tcp:{{fabric}}-2:9316"]
            collector-key-file = "{path}"
            [alerts.mail]
            host = "mail"
            from = "monitor@example.org"
            to = ["{{fabric}}@example.org"]
            [fabrics.north]
            [fabrics.south]
            """
        for fabric in parseConfig(text).fabrics:
            self.assertEqual(
                fabric.collectors, (f"tcp:{fabric.fabric}-1:9316", f"tcp:{fabric.fabric}-2:9316")
            )
            assert fabric.mail is not None
            self.assertEqual(fabric.mail.receivers, (f"{fabric.fabric}@example.org",))

    def test_without(self) -> None:
        """Without sections there is one fabric, which has no name."""
        config = parseConfig('port = "sim:fattree:4"')
        self.assertEqual((config.fabric, config.fabrics), ("", ()))

    def test_labels(self) -> None:
        """Samples for an engine have the label of the fabric."""
        text = 'remote-write = {url = "http://x/", spill = "/x/{fabric}"}\n[fabrics.north]\n[fabrics.south]\n'
        remotes = [one.remote for one in parseConfig(text).fabrics]
        found = {one.spill: dict(one.labels) for one in remotes if one is not None}
        self.assertEqual(found, {f"/x/{name}": {"fabric": name} for name in ("north", "south")})

    def refused(self, text: str, *lines: str) -> None:
        error = self.assertRaises(InvalidRequest, parseConfig, text, "file")
        self.assertEqual(str(error).split("\n"), list(lines))

    def test_mistakes(self) -> None:
        """Mistakes in sections are reported once, with their lines."""
        text = "poll.interval = 0\n[fabrics.north]\nport = 7\n[fabrics.south]\n[fabrics.south.web]\n"
        least = "is a number of seconds from 0.1 to 3.1536e+07, a year, not 0"
        self.refused(
            text,
            f"file, line 1: poll.interval: {least}",
            "file, line 3: fabrics.north.port: is a text, not 7",
            "file, line 5: fabrics.south.web: is one for all fabrics",
        )
        self.refused("fabrics = 5", "file, line 1: fabrics: is a table")
        self.refused("[fabrics]\nnorth = 5", "file, line 2: fabrics.north: is a table")
        error = self.assertRaises(InvalidRequest, parseConfig, "[fabrics.'a/b']\n")
        self.assertIn("is no name of a fabric", str(error))

    def test_shared(self) -> None:
        """Two fabrics cannot share a history or a file, nor a collector, whose port is in one of them."""
        text = "history.file = '/x'\n[fabrics.north]\n[fabrics.south]\n"
        self.refused(
            text, "file, line 3: fabrics.south.history: fabric north has /x, too: it may contain {fabric}"
        )
        collectors = (
            "poll = {collectors = ['tcp:%s:1'], collector-key-file = '/key'}\n[fabrics.a]\n[fabrics.b]\n"
        )
        self.refused(
            collectors % "r",
            "file, line 3: fabrics.b.poll.collectors: fabric a has tcp:r:1, too: it may contain {fabric}",
        )
        parseConfig(collectors % "{fabric}")
        names = "files.node-names = '/x'\n[fabrics.a]\n[fabrics.b]\n"
        self.refused(names, "file, line 1: files.node-names: fabric a has /x, too: it may contain {fabric}")

    def test_sharedInFabric(self) -> None:
        """A fabric cannot have one path for two files."""
        text = "[files]\nslurm = '/x'\nnode-names = '/x'\n"
        self.refused(text, "file, line 3: files.node-names: files.slurm is /x, too")
        self.refused(
            "history.file = '/x/a'\nfiles.unfit = '/x/{fabric}'\n[fabrics.a]\n",
            "file, line 2: files.unfit: history is /x/a, too",
        )


class ServiceTestCase(SynchronousTestCase):
    """Monitors of two simulated fabrics, whose nodes have the same GUIDs."""

    def setUp(self) -> None:
        self.patch(Threads, "named", lambda threads, name: maybeDeferred)
        self.folder = self.mktemp()
        Path(self.folder).mkdir()
        self.clock = SimulatedClock()
        self.clock.advance(1e6)
        self.fabrics = {
            name: SimulatedFabric(self.clock, fatTree(hosts)) for name, hosts in (("north", 4), ("south", 8))
        }
        config = parseConfig(self.text())
        opened = {name: fabric.attach for name, fabric in self.fabrics.items()}
        self.service = FabricsService(self.clock, config, reopen=opened)
        self.service.startService()
        self.addCleanup(self.ended)
        self.pump(5.0)

    def text(self) -> str:
        """Return the configuration."""
        return CONFIG.format(folder=self.folder)

    def ended(self) -> None:
        self.service.stopService()
        for fabric in self.fabrics.values():
            fabric.close()

    def pump(self, seconds: float) -> None:
        self.clock.pump([0.1] * int(seconds * 10))

    def get(self, path: str, **heads: str) -> Answer:
        return fetch(self.service.site.factory, path, **heads)


class WatchdogTests(ServiceTestCase):
    """systemd's watchdog is notified while no vital loop of a monitor hangs."""

    def setUp(self) -> None:
        self.sent: list[str] = []
        environment = {**os.environ, "NOTIFY_SOCKET": "@nobody", "WATCHDOG_USEC": "3000000"}
        self.patch(os, "environ", environment)
        self.patch(SystemNotifier, "_send", lambda _notifier, text: self.sent.append(text))
        super().setUp()

    def check(self, poller: FabricPoller) -> None:
        """Check that one loop of this poller decides whether the watchdog is notified."""
        vital = [loop for loop in poller.supervisor.loops if loop.isVital]
        self.assertGreater(len(vital), 1)
        for loop in vital:
            for lateBy in (0.0, 1.0, 0.0):
                self.patch(loop, "lateBy", lambda lateBy=lateBy: lateBy)
                self.sent.clear()
                self.pump(3.0)
                self.assertEqual("WATCHDOG=1" in self.sent, not lateBy, loop.name)

    def test_fabrics(self) -> None:
        """The monitor of any fabric that hangs lets systemd restart the process."""
        for service in self.service.monitors.values():
            self.check(service.poller)

    def test_fabric(self) -> None:
        config = replace(parseConfig(self.text()).fabrics[0], fabric="", history="")
        service = MonitorService(self.clock, config, self.fabrics["north"].attach)
        self.addCleanup(service.stopService)
        service.startService()
        self.service._notifier.stop()  # that of the other monitors
        self.check(service.poller)


class ConstructionTests(SynchronousTestCase):
    def test_later(self) -> None:
        """If a fabric's port cannot be opened, ports and histories of the fabrics before it are closed."""
        folder = self.mktemp()
        Path(folder).mkdir()
        clock = SimulatedClock()
        fabric = SimulatedFabric(clock, fatTree(4))
        self.addCleanup(fabric.close)
        ports: list[IMADPort] = []

        def opened() -> IMADPort:
            ports.append(fabric.attach())
            return ports[-1]

        def refused() -> IMADPort:
            raise DeviceUnavailable("there is no such port")

        config = parseConfig(CONFIG.format(folder=folder))
        with self.assertRaises(DeviceUnavailable):
            FabricsService(clock, config, reopen={"north": opened, "south": refused})
        (port,) = ports
        self.assertNotIn(port, fabric.port("h00000").end.attachments)
        again = MonitorService(clock, config.fabrics[0], opened)
        self.addCleanup(again.close)
        assert again._lease is not None
        self.assertTrue(again._lease.isHeld)


class ServiceTests(ServiceTestCase):
    def test_folders(self) -> None:
        """Paths with nothing but others below them are not there."""
        for path in ("/fabrics", "/fabrics/", "/api", "/nothing", "/fabrics/north/api/v2"):
            for method in ("GET", "HEAD"):
                with capturedLogs() as logs:
                    self.assertEqual(fetch(self.service.site.factory, path, method).code, 404, path)
                self.assertEqual(logs, [], path)

    def test_pages(self) -> None:
        """The first page lists the fabrics, whose pages are below their paths, with links to each other."""
        text = self.get("/").text
        for name in self.fabrics:
            self.assertIn(f'href="/fabrics/{name}/"', text)
            for page in ("", "nodes", "links", "findings", "changes", "topology", "static/monitor.css"):
                self.assertEqual(self.get(f"/fabrics/{name}/{page}").code, 200, page)
        text = self.get("/fabrics/north/nodes").text
        self.assertIn('data-prefix="/fabrics/north"', text)
        self.assertIn('href="/fabrics/north/findings"', text)
        self.assertIn('href="/fabrics/south/nodes"', text)
        self.assertIn('<a href="/fabrics/north/nodes" aria-current="page">north', text)
        self.assertIn('href="/fabrics/south/topology"', self.get("/fabrics/north/topology").text)
        self.assertIn('<a href="/" class="brand">', text)
        self.assertEqual(self.get("/nodes").code, 404)

    def test_unknownFabric(self) -> None:
        """The error page for an unknown fabric uses nothing that Twisted has deprecated."""
        answer = self.get("/fabrics/west/")
        self.assertEqual((answer.code, "There is no such fabric." in answer.text), (404, True))
        self.assertEqual(self.flushWarnings(), [])

    def test_prefix(self) -> None:
        """Behind a proxy, all links have its path."""
        for path in ("/", "/fabrics/north/"):
            text = self.get(path, X_Forwarded_Prefix="/ib").text
            self.assertIn('href="/ib/fabrics/south/"', text)
            self.assertNotIn('href="/fabrics', text)

    def test_rest(self) -> None:
        """Each fabric has all routes, whose rows have its name; a list has the states of all fabrics."""
        for name, hosts in (("north", 4), ("south", 8)):
            answer = self.get(f"/fabrics/{name}/api/v1/nodes?type=host").json
            self.assertEqual((answer["total"], {row["fabric"] for row in answer["rows"]}), (hosts, {name}))
        rows = self.get("/api/v1/fabrics").json["rows"]
        self.assertEqual([row["fabric"] for row in rows], ["north", "south"])
        self.assertEqual([row["isActive"] for row in rows], [True, True])
        self.assertLess(rows[0]["nodes"], rows[1]["nodes"])

    def test_earlierTopologies(self) -> None:
        """Each fabric has a history and earlier topologies of its own, to which its pages link."""
        before = int(self.clock.seconds())
        self.fabrics["south"].cut("h00003")
        self.pump(20.0)

        def answer(path: str) -> Answer:
            connection = Connection(self.service.site.factory)
            connection.ask(path)
            self.pump(1.0)
            return connection.answer

        for name, removed in (("north", 0), ("south", 1)):
            head = f"/fabrics/{name}"
            found = answer(f"{head}/api/v1/topology/difference?from={before}").json
            self.assertEqual(found["differences"]["node-removed"], removed, name)
            times = answer(f"{head}/api/v1/topology/times?begin={before}").json
            self.assertEqual(bool(times["marks"]), bool(removed), name)
            page = answer(f"{head}/topology?from={before}&to=now").text
            self.assertEqual("node removed" in page, bool(removed), name)
            self.assertIn(f'href="{head}/topology?from=', page)

    def test_allRows(self) -> None:
        """Listings below C{/api/v1} have the rows of all fabrics, and the same filters, orders and pages."""
        for name in ("nodes", "ports", "links"):
            totals = [self.get(f"/fabrics/{fabric}/api/v1/{name}").json["total"] for fabric in self.fabrics]
            self.assertEqual(self.get(f"/api/v1/{name}").json["total"], sum(totals), name)
        every = self.get("/api/v1/nodes?type=host&sort=-name").json["rows"]
        names = [row["name"] for row in every]
        self.assertEqual((len(names), names), (12, sorted(names, reverse=True)))
        self.assertEqual({row["fabric"] for row in every[-4:]}, {"north", "south"})
        page = self.get("/api/v1/nodes?type=host&sort=-name&limit=5&offset=5").json
        self.assertEqual((page["total"], page["rows"]), (12, every[5:10]))
        self.assertEqual(self.get("/api/v1/nodes?sort=nothing").code, 400)
        for path in ("nodes/0x0000000000000001", "trace", "overview"):
            self.assertEqual(self.get(f"/api/v1/{path}").code, 404, path)

    def test_allFindings(self) -> None:
        """Findings of all fabrics are listed together, the most severe first, and changes, latest first."""
        self.fabrics["south"].cut("h00003")
        self.pump(20.0)
        self.fabrics["north"].cut("h00002")
        self.pump(20.0)
        self.fabrics["south"].heal("h00003")
        self.pump(60.0)
        self.fabrics["south"].cut("h00001")
        self.pump(20.0)
        rows = self.get("/api/v1/findings").json["rows"]
        found = [(row["fabric"], row["where"].split()[0], row["isOpen"]) for row in rows]
        expected = [("south", "h00001", True), ("north", "h00002", True), ("south", "h00003", False)]
        self.assertEqual(found, expected)
        changes = self.get("/api/v1/changes").json["rows"]
        times = [row["at"] for row in changes]
        self.assertEqual(times, sorted(times, reverse=True))
        kinds = [(row["fabric"], row["kind"]) for row in changes if row["kind"].startswith("node")]
        self.assertEqual([fabric for fabric, _kind in kinds[:3]], ["south", "south", "north"])
        text = self.get("/").text
        self.assertIn("Findings (2)", text)
        places = [text.index(f'href="/fabrics/{fabric}/nodes/0x') for fabric in ("south", "north")]
        self.assertEqual(places, sorted(places))

    def test_descriptions(self) -> None:
        """OpenAPI names the address of each fabric's interface, also below the path of a proxy."""
        whole = self.get("/api/v1/openapi.json").json
        (server,) = whole["servers"]
        self.assertEqual(server["url"], "/fabrics/{fabric}/api/v1")
        self.assertEqual(server["variables"]["fabric"]["enum"], ["north", "south"])
        self.assertEqual(whole["paths"]["/fabrics"]["servers"], [{"url": "/api/v1"}])
        self.assertEqual(whole["paths"]["/ports"]["servers"], [{"url": "/api/v1"}, server])
        self.assertNotIn("servers", whole["paths"]["/trace"])
        content = whole["paths"]["/fabrics"]["get"]["responses"]["200"]["content"]
        (row, _) = self.get("/api/v1/fabrics").json["rows"]
        self.assertEqual(
            set(content["application/json"]["schema"]["properties"]["rows"]["items"]["required"]), {*row}
        )
        for path, headers in (("", {}), ("/monitor", {"X-Forwarded-Prefix": "/monitor"})):
            one = self.get("/fabrics/north/api/v1/openapi.json", **headers).json
            self.assertEqual(one["servers"], [{"url": f"{path}/fabrics/north/api/v1"}])
            self.assertNotIn("/fabrics", one["paths"])

    def test_metrics(self) -> None:
        """All series of both fabrics are in one scrape, each family once, with the label of the fabric."""
        text = self.get("/metrics").text
        heads = [line for line in text.splitlines() if line.startswith("# HELP")]
        self.assertEqual(len(heads), len(set(heads)))
        found: dict[Any, float] = parsed(text)
        process = "txrdma_monitor_garbage_collection_seconds"
        named = {dict(given).get("fabric") for name, given in found if not name.startswith(process)}
        self.assertEqual(named, set(self.fabrics))
        self.assertIn((f"{process}_count", frozenset()), found)
        for name, fabric in self.fabrics.items():
            guid = guidText(fabric.node("h00000").guid)
            key = frozenset({("fabric", name), ("guid", guid), ("port", "1")})
            self.assertIn(("infiniband_port_data_transmitted_bytes_total", key), found)
            self.assertEqual(found["txrdma_monitor_active", frozenset({("fabric", name)})], 1)
        one: dict[Any, float] = parsed(self.get("/metrics?fabric=south&collect[]=counters").text)
        self.assertEqual({dict(given).get("fabric") for _name, given in one}, {"south"})
        self.assertFalse([name for name, _given in one if not name.startswith("infiniband_")])
        answer = self.get("/metrics?fabric=west")
        self.assertEqual((answer.code, "north, south" in answer.text), (400, True))

    def test_alerts(self) -> None:
        """The same fault in both fabrics is reported for each, with its name and another identity."""
        for fabric in self.fabrics.values():
            fabric.cut("h00002")
        self.pump(20.0)
        alerts = [json.loads(line) for line in (Path(self.folder) / "log").read_text().splitlines()]
        gone = [one for one in alerts if one["kind"] == "node-gone"]
        self.assertEqual(sorted(one["fabric"] for one in gone), ["north", "south"])
        self.assertEqual(len({one["id"] for one in gone}), 2)

    def test_probes(self) -> None:
        """The process is ready if all fabrics are ready; otherwise it names those that are not."""
        self.assertEqual(self.get("/readyz").code, 200)
        self.service.monitors["south"].poller.diagnosis.fabric = None
        answer = self.get("/readyz")
        self.assertEqual((answer.code, answer.text), (503, "south: the first sweep is in progress\n"))
        self.assertEqual(self.get("/healthz").code, 200)
        codes = [self.get(f"/fabrics/{name}/readyz").code for name in self.fabrics]
        self.assertEqual(codes, [200, 503])

    def test_reload(self) -> None:
        """A new configuration is applied to all fabrics; other fabrics need a restart."""
        text = CONFIG.format(folder=self.folder)
        changed = text.replace("settle = 0.1", "settle = 3")
        self.service.reloadBy(lambda: parseConfig(changed))
        self.assertTrue(self.service.reload())
        services: list[MonitorService] = list(self.service.monitors.values())
        self.assertEqual([one.config.settings.settleSeconds for one in services], [3.0, 3.0])
        self.assertEqual([one._watch.readJobs for one in services], [None, None])
        self.service.reloadBy(lambda: parseConfig(f"{changed}slurm.jobs = 'squeue'\n"))
        self.assertTrue(self.service.reload())
        self.assertEqual([one._watch.readJobs is None for one in services], [True, False])
        self.service.reloadBy(lambda: parseConfig(text.replace("fabrics.south", "fabrics.west")))
        self.assertFalse(self.service.reload())
        common, north, south = text.partition("[fabrics.north]")[0], *text.split("[fabrics.")[1:]
        self.service.reloadBy(lambda: parseConfig(f"{common}[fabrics.{south}\n[fabrics.{north}"))
        self.assertTrue(self.service.reload())

    def test_reloadWithMistake(self) -> None:
        """If a file that one fabric needs is invalid, no fabric gets the new configuration."""
        changed = CONFIG.format(folder=self.folder).replace("settle = 0.1", "settle = 3")
        topology = Path(self.folder) / "topology"
        topology.write_text("nothing")
        self.service.reloadBy(lambda: parseConfig(f"{changed}findings.topology = '{topology}'\n"))
        self.assertFalse(self.service.reload())
        services: list[MonitorService] = list(self.service.monitors.values())
        self.assertEqual([one.config.settings.settleSeconds for one in services], [0.1, 0.1])

    def test_hangupDuringStop(self) -> None:
        """SIGHUP does not end the process while a service stops and writes the remaining history."""
        handlers: list[Any] = []
        during: list[Any] = []
        self.patch(signal, "signal", lambda number, handler: handlers.append(handler))
        alone = SimulatedFabric(self.clock, fatTree(4))
        self.addCleanup(alone.close)
        one = MonitorService(self.clock, parseConfig("web.listen = ''"), alone.attach)
        several = FabricsService(
            self.clock,
            parseConfig(CONFIG.format(folder=self.mktemp())),
            reopen={name: fabric.attach for name, fabric in self.fabrics.items()},
        )
        stop = FabricPoller.stop

        def stopped(poller: FabricPoller) -> Any:
            during.append(handlers[-1])
            return stop(poller)

        self.patch(FabricPoller, "stop", stopped)
        for service in (one, several):
            service.reloadBy(lambda: parseConfig(""))
            service.startService()
            self.assertTrue(callable(handlers[-1]))
            service.stopService()
            self.pump(5.0)
            self.assertEqual(handlers[-1], signal.SIG_DFL)
        self.assertEqual(during, [signal.SIG_IGN] * 3)


class OperatorTests(ServiceTestCase):
    """Two fabrics with one file of users."""

    def text(self) -> str:
        def compared(reactor: object, pool: object, work: Any, *arguments: Any) -> Any:
            return maybeDeferred(work, *arguments)

        self.patch(monitor, "deferToThreadPool", compared)
        clock: Any = self.clock
        clock.getThreadPool = lambda: None
        path = Path(self.folder, "users").resolve()
        if not path.exists():
            self.users(alice="operator", bob="viewer")
        return super().text().replace("[web]", f"[web]\nusers = '{path}'")

    def users(self, **roles: str) -> None:
        """Write a file of users, whose passwords are their names."""
        path = Path(self.folder, "users")
        lines = [f"{name}:{PasswordHash.of(name.encode(), 4)}:{role}\n" for name, role in roles.items()]
        path.write_text("".join(lines))
        path.chmod(0o600)

    def acted(self, fabric: str, name: str, password: str = "", path: str = "") -> int:
        """Acknowledge the finding of a fabric; return the status of the answer."""
        findings = self.service.monitors["south"].poller.findings.log.open.values()
        (identity,) = [one.identity for one in findings]
        body = b'{"action": "acknowledge", "comment": "cable ordered"}'
        connection = Connection(self.service.site.factory)
        lines = (
            f"POST {path or f'/fabrics/{fabric}'}/api/v1/findings/{identity} HTTP/1.1\r\nHost: fabric",
            f"Authorization: {basic(name, password or name)}",
            f"Content-Type: application/json\r\nContent-Length: {len(body)}\r\n\r\n",
        )
        connection.protocol.dataReceived("\r\n".join(lines).encode() + body)
        self.pump(0.5)
        code = connection.answer.code
        connection.close()
        return code

    def test_roles(self) -> None:
        """A role is that for all fabrics; a finding is acknowledged in its own one only."""
        self.fabrics["south"].cut("h00003")
        self.pump(20.0)
        with capturedLogs():
            self.assertEqual(self.acted("south", "alice", "wrong"), 401)
        self.assertEqual(self.acted("south", "bob"), 403)
        self.assertEqual(self.acted("north", "alice"), 404)
        self.assertEqual(self.acted("", "alice", path="/fabrics/south/../south"), 405)
        self.assertEqual(self.acted("west", "alice"), 404)
        (entry,) = self.service.monitors["south"].poller.findings.log.open.values()
        self.assertIsNone(entry.acknowledgement)
        self.assertEqual(self.acted("south", "alice"), 200)
        self.assertEqual(entry.acknowledgement and entry.acknowledgement.user, "alice")

    def test_readers(self) -> None:
        """Readers of events log in again when users have changed, so that a removed user reads no more."""
        self.service.reloadBy(lambda: parseConfig(self.text()))
        connection = Connection(self.service.site.factory)
        connection.ask("/fabrics/south/api/v1/events", Authorization=basic("bob", "bob"))
        readers = self.service.monitors["south"].site.hub.readers
        self.assertEqual(len(readers), 1)
        self.assertTrue(self.service.reload())
        self.assertEqual(len(readers), 1)
        self.users(alice="operator")
        self.assertTrue(self.service.reload())
        self.assertEqual(len(readers), 0)
        self.assertTrue(connection.transport.value().endswith(b"\r\n0\r\n\r\n"))
        for name, number in (("bob", 0), ("alice", 1)):
            connection = Connection(self.service.site.factory)
            with capturedLogs():
                connection.ask("/fabrics/south/api/v1/events", Authorization=basic(name, name))
            self.assertEqual((connection.answer.code, len(readers)), (200 if number else 401, number))
            connection.close()

    def test_reload(self) -> None:
        """Users and roles change while the monitor runs; a wrong file changes nothing."""
        self.fabrics["south"].cut("h00003")
        self.pump(20.0)
        self.service.reloadBy(lambda: parseConfig(self.text()))
        self.assertEqual(self.acted("south", "alice"), 200)
        self.users(alice="viewer", carol="operator")
        self.assertEqual(self.acted("south", "alice"), 200)
        self.assertTrue(self.service.reload())
        with capturedLogs():
            codes = [self.acted("south", name) for name in ("alice", "bob", "carol")]
        self.assertEqual(codes, [403, 401, 200])
        for text, mode in (("carol:nonsense:admin\n$scrypt$", 0o600), ("", 0o600), ("alice:x\n", 0o644)):
            Path(self.folder, "users").write_text(text)
            Path(self.folder, "users").chmod(mode)
            with capturedLogs() as logs:
                self.assertFalse(self.service.reload())
            self.assertIn("was not read again", formatEvent(logs[-1]))
            self.assertEqual(self.acted("south", "carol"), 200)
