"""The REST interface on a simulated fabric, and its description."""

from __future__ import annotations

import json
from typing import Any

from twisted.internet.error import ConnectionRefusedError
from twisted.logger import capturedLogs

from txrdma.fabric.cables import Cable
from txrdma.iba.types import GUID
from txrdma.monitor.diagnosis.findinglog import FindingEvent
from txrdma.monitor.reading.surveyor import Surveyor
from txrdma.monitor.series.exposition import guidText
from txrdma.monitor.series.level import DEFAULT_LEVELS
from txrdma.monitor.series.promqlreader import PromQLReader
from txrdma.monitor.series.remotesettings import RemoteSettings
from txrdma.monitor.web.openapi import description
from txrdma.monitor.web.site import MonitorSite
from txrdma.monitor.web.watch import Watch
from txrdma.test.support.httpagents import PreparedAgent
from txrdma.test.support.monitor.fetching import Answer, Connection, fetch
from txrdma.test.unit.monitor.test_poller import PollerTestCase
from txrdma.test.unit.monitor.test_promql_reader import matrix


class SiteTestCase(PollerTestCase):
    site: MonitorSite

    def setUp(self) -> None:
        super().setUp()
        self.watch = Watch(self.poller, None, self.clock.seconds)
        self.site = MonitorSite(self.clock, self.watch)
        self.poller._onRound = lambda began: self.site.hub.fabricChanged()

    def received(self, event: FindingEvent) -> None:
        super().received(event)
        self.site.hub.findingChanged(event)

    def surveyed(self) -> None:
        """Start, and wait until the tables have been read."""
        self.started()
        surveyor = Surveyor(self.clock, self.agent, self.poller, 900.0)
        surveyor.start()
        self.addCleanup(surveyor.stop)
        self.pump(200.0)
        self.assertEqual(surveyor.surveys, 1)

    def guid(self, name: str) -> str:
        return guidText(self.fabric.node(name).guid)

    def get(self, path: str, **heads: str) -> Answer:
        return fetch(self.site.factory, path, **heads)

    def assertHas(self, reported: dict[str, Any], **expected: object) -> None:
        """Assert that an answer has these values."""
        self.assertEqual({name: reported[name] for name in expected}, expected)

    def rows(self, path: str) -> list[dict[str, Any]]:
        answer = self.get(f"/api/v1/{path}")
        self.assertEqual(answer.code, 200, answer)
        found: list[dict[str, Any]] = answer.json["rows"]
        return found


class EngineTests(SiteTestCase):
    """History that is read from a time series engine."""

    def setUp(self) -> None:
        super().setUp()
        self.clock.advance(1000.0)
        self.engine = PreparedAgent()
        settings = RemoteSettings("http://engine/write", "spill", queryURL="http://engine")
        seconds = self.clock.seconds
        self.watch.engine = PromQLReader(self.clock, self.engine, settings, DEFAULT_LEVELS, seconds)
        self.path = f"/api/v1/history/{self.guid('a')}/1/portXmitData"

    def test_points(self) -> None:
        """Points have the growth, its rate and the peak; the page has charts."""
        self.engine.usual = matrix(
            {"seconds": {100.0: 10.0}, "portXmitData": {100.0: 50.0}, "peakXmit": {100.0: 5.5}}
        )
        found = self.get(f"{self.path}?begin=90&end=110").json["points"]
        self.assertEqual(found, [{"at": 100, "seconds": 10.0, "grown": 50, "rate": 5.0, "peak": 5.5}])
        self.started()
        page = self.get(f"/nodes/{self.guid('a')}/ports/1").text
        self.assertIn('id="charts"', page)

    def test_failures(self) -> None:
        """An unreachable engine is 503 with the reason, a time that is too long 400; nothing is logged."""
        self.engine.usual = ConnectionRefusedError()
        answer = self.get(f"{self.path}?begin=90&end=110")
        self.assertEqual((answer.code, "refused" in answer.json["error"]), (503, True))
        self.clock.advance(1e6)
        answer = self.get(f"{self.path}?begin=0&end=1000000000&resolution=readings")
        self.assertEqual((answer.code, "coarser" in answer.json["error"]), (400, True))

    def test_left(self) -> None:
        """A query is cancelled when the browser disconnects."""
        connection = Connection(self.site.factory)
        connection.ask(self.path)
        self.assertEqual((len(self.engine.requests), self.engine.cancelled), (1, 0))
        connection.close()
        self.assertEqual(self.engine.cancelled, 1)


class RESTTests(SiteTestCase):
    def test_cables(self) -> None:
        """Each end of a cable has a row; values of cables that cannot be read are null."""
        self.started()
        portKey = (self.fabric.node("left").guid, 3)
        cable = Cable("copper", "Maker", "PN-1", "A1", "SN1", 2.0, receivedDBm=(0, -3), watts=1.5)
        list(self.poller.cables.reading({portKey: cable}, self.fabrics(), 0.0))
        rows = self.rows("cables")
        self.assertEqual((len(rows), sum(row["isKnown"] for row in rows)), (14, 1))
        (known,) = self.rows("cables?isKnown=true")
        self.assertHas(known, guid=self.guid("left"), port=3, peerName="right", serial="SN1", celsius=None)
        self.assertEqual(self.rows("cables?search=sn1&sort=-metres"), [known])
        self.assertEqual({row["serial"] for row in self.rows("cables?isKnown=false")}, {None})

    def fabrics(self) -> set[GUID]:
        return {node.guid for node in self.fabric.nodes.values()}

    def test_overview(self) -> None:
        """The overview shows a fault while it lasts."""
        self.assertFalse(self.get("/api/v1/overview").json["isWell"])
        self.started()
        self.assertHas(self.get("/api/v1/overview").json, isWell=True, nodes=6, switches=2, links=7)
        self.fabric.cut("c")
        self.pump(20.0)
        found = {"info": 0, "warning": 1, "critical": 0}
        reported = self.get("/api/v1/overview").json
        self.assertHas(reported, isWell=False, worst="warning", nodesGone=1, findings=found)
        self.fabric.heal("c")
        self.pump(60.0)
        self.assertTrue(self.get("/api/v1/overview").json["isWell"])

    def test_nodes(self) -> None:
        """Nodes are listed in pages, filtered, searched and sorted."""
        self.started()
        self.assertEqual(len(self.rows("nodes")), 6)
        page = "sort=name&limit=2&offset=1"
        for query, names in (
            *(("type=switch&sort=-name", ["right", "left"]), ("search=LEF", ["left"])),
            *((page, ["b", "c"]), ("offset=7", [])),
        ):
            self.assertEqual([row["name"] for row in self.rows(f"nodes?{query}")], names)
        self.assertHas(self.get(f"/api/v1/nodes?{page}").json, total=6, offset=1, limit=2)
        self.assertHas(self.get("/api/v1/nodes").json, total=6, offset=0, limit=100)

    def test_node(self) -> None:
        """A node has its ports with their neighbours, and its findings."""
        self.fabric.growCounters("left", 2, portXmitData=1000.0)
        self.started()
        reported = self.get(f"/api/v1/nodes/{self.guid('left')}").json
        self.assertHas(reported, name="left", type="switch", findingRows=[])
        _first, port, *others = reported["portRows"]
        self.assertEqual(len(others), 6)
        self.assertHas(port, port=2, state="ACTIVE", transmitRate=4000.0)
        self.assertAlmostEqual(port["load"], 4000.0 / (port["width"] * 125e6 * 50.0), delta=1e-6)
        peer = self.get(f"/api/v1/ports/{port['peerGuid']}/{port['peerPort']}").json
        self.assertHas(peer, peerName="left", peerPort=2)
        self.assertEqual(peer["counters"]["symbolErrorCounter"], 0)
        self.assertEqual(self.get("/api/v1/nodes/0x0000000000000001").code, 404)
        self.assertEqual(self.get(f"/api/v1/ports/{self.guid('left')}/77").code, 404)

    def test_causes(self) -> None:
        """Known causes of dropped packets are on the port's page, in JSON and in metrics."""
        self.fabric.setCounters("left", 2, portRcvErrors=7, portLocalPhysicalErrors=5)
        self.started(100.0)
        reported = self.get(f"/api/v1/ports/{self.guid('left')}/2").json
        causes = {name: count for name, count in reported["causes"].items() if count is not None}
        self.assertEqual((len(causes), causes["portLocalPhysicalErrors"]), (6, 5))
        reported = self.get(f"/api/v1/ports/{self.guid('left')}/1").json
        self.assertEqual(set(reported["causes"].values()), {None})
        self.assertIsNone(reported["counters"]["qp1Dropped"])  # the agent does not have this counter
        series = f'infiniband_port_local_physical_errors_total{{guid="{self.guid("left")}",port="2"}} 5'
        self.assertIn(series, self.get("/metrics").text)
        where = f"/nodes/{self.guid('left')}/ports"
        self.assertIn("PortLocalPhysicalErrors", self.get(f"{where}/2").text)
        self.assertNotIn("Why packets were dropped", self.get(f"{where}/1").text)

    def test_errorCorrection(self) -> None:
        """Counters of error correction are on a port's page, in JSON and in metrics."""
        self.fabric.correct("left")
        self.fabric.setCounters("left", 2, portFECUncorrectableBlockCtr=7, fecCorrectableSymbolCtrLanes1=5)
        self.started(100.0)
        reported = self.get(f"/api/v1/ports/{self.guid('left')}/2").json
        self.assertEqual(reported["errorCorrection"]["portFECUncorrectableBlockCtr"], 7)
        self.assertEqual(reported["errorCorrectionRates"]["fecCorrectableSymbolCtrLanes1"], 0.0)
        reported = self.get(f"/api/v1/ports/{self.guid('a')}/1").json
        self.assertEqual((reported["errorCorrection"], reported["errorCorrectionRates"]), ({}, {}))
        series = f'infiniband_port_fec_uncorrectable_blocks_total{{guid="{self.guid("left")}",port="2"}} 7'
        self.assertIn(series, self.get("/metrics").text)
        self.assertIn("PortFECUncorrectableBlockCtr", self.get(f"/nodes/{self.guid('left')}/ports/2").text)
        self.assertNotIn("Error correction", self.get(f"/nodes/{self.guid('a')}/ports/1").text)

    def test_links(self) -> None:
        """Each link is listed once, with the load of both directions."""
        self.fabric.growCounters("a", 1, portXmitData=1e9)
        self.started()
        links = self.rows("links")
        self.assertEqual(len(links), 7)
        (link,) = [row for row in links if "a" in (row["name"], row["peerName"])]
        loads = sorted((link["load"], link["peerLoad"]))
        self.assertEqual(loads[0], 0.0)
        self.assertGreater(loads[1], 0.1)
        self.assertEqual(self.rows("links?state=DOWN"), [])

    def test_findings(self) -> None:
        """Current findings are listed before cleared ones; filters select either."""
        self.started()
        self.fabric.cut("c")
        self.pump(20.0)
        (found,) = self.rows("findings?isOpen=true")
        self.assertHas(found, kind="node-gone", guid=self.guid("c"), clearedAt=None)
        self.assertIn("power", found["advice"])
        self.fabric.heal("c")
        self.pump(60.0)
        self.assertEqual(self.rows("findings?isOpen=true"), [])
        (found,) = self.rows("findings?severity=warning")
        self.assertGreater(found["clearedAt"], found["firstSeen"])

    def test_changes(self) -> None:
        """Changes since a time list lost and added nodes and findings, the latest first."""
        self.started()
        self.loseHost()
        middle = self.clock.seconds()
        self.fabric.heal("c")
        self.pump(70.0)
        kinds = ["finding-cleared", "link-came", "node-came", "finding-raised", "node-gone"]
        self.assertEqual([row["kind"] for row in self.rows("changes")], kinds)
        self.assertEqual([row["kind"] for row in self.rows(f"changes?since={middle}")], kinds[:3])
        self.assertEqual(len(self.rows("changes?kind=node-gone")), 1)

    def test_trace(self) -> None:
        """A path has a hop for each node, with the load of the port that packets leave by."""
        self.fabric.growCounters("a", 1, portXmitData=1e9)
        self.surveyed()
        sent = self.agent.sent
        reported = self.get(f"/api/v1/trace?from={self.guid('a')}&to={self.guid('c')}").json
        self.assertEqual(self.agent.sent, sent)
        self.assertHas(reported, isReached=True, reason="", surveyedAt=self.poller.surveyedAt)
        self.assertEqual([hop["name"] for hop in reported["hops"]], ["a", "left", "right", "c"])
        self.assertGreater(reported["hops"][0]["load"], 0.1)
        self.assertEqual([hop["exit"] for hop in reported["hops"]][-1], None)

    def test_topology(self) -> None:
        """Switches of a topology have their hosts counted, and their links in bundles."""
        self.started()
        reported = self.get("/api/v1/topology").json
        hosts = {node["name"]: node["hosts"] for node in reported["nodes"]}
        self.assertEqual(list(hosts.items()), [("left", 2), ("right", 3)])
        (edge,) = reported["edges"]
        self.assertHas(edge, links=2, down=0, load=0.0)

    def test_topologyNames(self) -> None:
        """Names may contain any characters, such as digits that are not decimal ones."""
        self.fabric.node("left").description = "left 10\N{SUPERSCRIPT TWO}"
        self.fabric.node("right").description = "left 9\N{SUPERSCRIPT TWO}"
        self.started()
        names = [node["name"] for node in self.get("/api/v1/topology").json["nodes"]]
        self.assertEqual(names, ["left 9\N{SUPERSCRIPT TWO}", "left 10\N{SUPERSCRIPT TWO}"])

    def test_wrong(self) -> None:
        """An invalid request is refused with a reason; the interface is read-only."""
        self.started()
        for path in ("nodes?limit=0", "nodes?limit=1e3", "nodes?colour=red", "nodes?sort=colour", "trace"):
            answer = self.get(f"/api/v1/{path}")
            self.assertEqual(answer.code, 400, path)
            self.assertTrue(answer.json["error"])
        for path in ("nodes?limit=1&limit=2", "nodes?search=%FF", f"nodes?search={'x' * 201}", "nodes/left"):
            self.assertEqual(self.get(f"/api/v1/{path}").code, 400, path)
        for path in ("", "/", "/nothing", "/events/1", f"/history/{self.guid('a')}/1/portXmitData"):
            self.assertEqual(self.get(f"/api/v1{path}").code, 404, path)
        for path in ("nodes", "events"):
            answer = fetch(self.site.factory, f"/api/v1/{path}", "POST")
            self.assertEqual((answer.code, answer.heads["allow"]), (405, "GET, HEAD"))

    def test_headOnly(self) -> None:
        """A HEAD request, as load balancers send it, gets no body, and logs nothing."""
        self.started()
        for path, code in {
            **dict.fromkeys(("/healthz", "/api/v1/nodes", "/metrics", "/static/monitor.css", "/nodes"), 200),
            **dict.fromkeys(("/static/nothing", "/api/v1/events/1", "/nothing"), 404),
        }.items():
            with capturedLogs() as logs:
                connection = Connection(self.site.factory)
                connection.ask(path, "HEAD")
            self.assertEqual((connection.answer.code, logs), (code, []), path)
            self.assertTrue(connection.transport.value().endswith(b"\r\n\r\n"), path)
            self.clock.advance(0.0)

    def test_description(self) -> None:
        """The description contains each route and every schema that it refers to."""
        reported = self.get("/api/v1/openapi.json").json
        self.assertEqual(reported, description())
        self.assertLessEqual({"/nodes/{guid}", "/trace", "/events"}, set(reported["paths"]))
        named = {part.split('"')[0] for part in json.dumps(reported).split("#/components/schemas/")[1:]}
        self.assertLessEqual(named, set(reported["components"]["schemas"]))

    def test_heads(self) -> None:
        """Every answer forbids foreign scripts and type sniffing; JSON is compressed on request."""
        self.started()
        for path in ("/api/v1/nodes", "/api/v1/nothing", "/metrics", "/nothing"):
            heads = self.get(path).heads
            self.assertIn("script-src 'self'", heads["content-security-policy"])
            self.assertEqual(heads["x-content-type-options"], "nosniff")
        answer = self.get("/api/v1/nodes", Accept_Encoding="gzip")
        self.assertEqual((answer.heads["content-encoding"], len(answer.json["rows"])), ("gzip", 6))

    def test_silence(self) -> None:
        """Counters of a silent host are unknown, not zero."""
        self.started()
        self.fabric.silence("b")
        self.pump(60.0)
        rows = [row for row in self.rows("ports") if row["name"] == "b"]
        self.assertTrue(rows)
        for row in rows:
            self.assertHas(row, transmitRate=None, load=None, errorRate=None)
        self.assertEqual([row["name"] for row in self.rows("nodes?isSilent=true")], ["b"])
