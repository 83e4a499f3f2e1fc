"""HTML pages: all pages and links, names with arbitrary bytes, and missing objects."""

from __future__ import annotations

import re
from html import unescape
from html.parser import HTMLParser

from txrdma.fabric.cables import Cable
from txrdma.monitor.web.layout import ago, amount, MENU, percent
from txrdma.monitor.web.topology import bundles, levels, positions
from txrdma.sim.nets.fattree import fatTree
from txrdma.sim.nets.netfile import Net
from txrdma.test.support.mad.simulated import twoSwitches
from txrdma.test.support.monitor.fetching import Answer, Connection
from txrdma.test.unit.fabric.test_blastradius import completed
from txrdma.test.unit.monitor.test_rest import SiteTestCase

HOSTILE = {
    "a": "<script>alert(1)</script>",
    "b": '" onmouseover="alert(1)" x=\'',
    "c": "\x1b[31mred\x07\r\nHTTP/1.1 200 OK\u202e",
    "left": "\xff" * 31,
    "right": "</title></head><img src=x onerror=alert(1)>&amp;{{7*7}}",
    "d": "javascript:alert(1)//../../\\",
}
"""Names of nodes that are harmful if they are not escaped."""


class Seen(HTMLParser):
    """Parser that records elements and attributes of a page."""

    def __init__(self, text: str) -> None:
        super().__init__()
        self.elements: set[str] = set()
        self.attributes: set[str] = set()
        self.links: set[str] = set()
        self.scripts: list[str | None] = []
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.elements.add(tag)
        self.attributes |= given.keys()
        if given.get("href"):
            self.links.add(str(given["href"]))
        if tag == "script":
            self.scripts.append(given.get("src"))


class PageTestCase(SiteTestCase):
    """A site whose pages may be answered asynchronously."""

    def page(self, path: str, **heads: str) -> Answer:
        connection = Connection(self.site.factory)
        connection.ask(path, **heads)
        self.pump(0.5)
        return connection.answer


class PageTests(PageTestCase):
    def test_cables(self) -> None:
        """Cables are listed with what is known; text of a module is escaped."""
        self.started()
        nodes = {node.guid for node in self.fabric.nodes.values()}
        cable = Cable("copper", "<b>Maker", "PN-1", serial="SN1", metres=2.0, celsius=45.5, receivedDBm=(-3,))
        list(self.poller.cables.reading({(self.fabric.node("left").guid, 3): cable}, nodes, 0.0))
        text = unescape(self.page("/cables").text)
        for part in ("<b>Maker PN-1 copper", "SN1", "2 m", "45.5 °C", "-3 dBm", "unknown"):
            self.assertIn(part, text)
        self.assertNotIn("<b>Maker", self.page("/cables").text)
        self.assertEqual(self.page("/cables?search=SN1").text.count("/ports/3"), 2)
        self.assertIn("PN-1", self.page(f"/nodes/{self.guid('left')}/ports/3").text)

    def test_links(self) -> None:
        """Every linked page exists, has a unique heading and no inline script."""
        self.fabric.growCounters("left", 3, portXmitData=1e9, symbolErrorCounter=2.0)
        self.started()
        self.loseHost()
        waiting, seen = {link for link, _text in MENU}, set()
        while waiting:
            path = waiting.pop()
            seen.add(path)
            answer = self.page(path)
            self.assertEqual(answer.code, 200, path)
            if not answer.heads["content-type"].startswith("text/html"):
                continue
            page = Seen(answer.text)
            self.assertLessEqual({"h1", "main", "nav", "title"}, page.elements)
            self.assertNotIn("style", page.elements | page.attributes)
            self.assertEqual([name for name in page.attributes if name.startswith("on")], [])
            self.assertNotIn(None, page.scripts)
            links = {link.partition("#")[0] for link in page.links} - {""}
            waiting |= {link for link in links if "sort=" not in link and "since=" not in link} - seen
        self.assertGreater(len(seen), 30)

    def test_beneath(self) -> None:
        """Behind a proxy's path prefix all links and scripts have it; an invalid prefix is ignored."""
        self.started()
        for path in ("/", "/links", "/trace", f"/nodes/{self.guid('left')}/ports/2"):
            seen = Seen(self.page(path, **{"x-forwarded-prefix": "/fabric/one/"}).text)
            links = {link for link in (*seen.links, *seen.scripts) if link and not link.startswith("#")}
            self.assertGreater(len(links), 10)
            self.assertEqual({link for link in links if not link.startswith("/fabric/one/")}, set())
            self.assertIn("data-prefix", seen.attributes)
        plain = Seen(self.page("/").text).links
        for nonsense in ("//evil.example", "/a b", '/"><script>', "javascript:x", "/..", "/" + "x" * 99):
            seen = Seen(self.page("/", **{"x-forwarded-prefix": nonsense}).text)
            self.assertEqual((seen.links, "data-prefix" in seen.attributes), (plain, False), nonsense)

    def test_overview(self) -> None:
        """The overview states whether there are findings, and which."""
        self.assertIn("Discovering the fabric", self.page("/").text)
        self.started()
        self.assertIn("All is well", self.page("/").text)
        self.loseHost()
        text = self.page("/").text
        self.assertNotIn("All is well", text)
        self.assertIn("1 finding", text)
        self.assertIn("See that the node has power", text)

    def test_changes(self) -> None:
        """Changes since yesterday are listed, and earlier ones are not."""
        self.started()
        self.loseHost()
        self.assertIn("node gone", self.page("/changes").text)
        self.poller.stop()
        self.pump(90_000.0)
        self.assertIn("Nothing has changed", self.page("/changes").text)
        self.assertIn("node gone", self.page("/changes?since=0").text)

    def test_trace(self) -> None:
        """A path is found by names and by GUIDs; unknown and ambiguous names are reported."""
        self.surveyed()
        for ends in (f"from=a&to={self.guid('c')}", "from=a&to=c"):
            text = self.page(f"/trace?{ends}").text
            self.assertIn("3 links", text)
            self.assertIn("Out by port", text)
            self.assertIn("By the tables of", text)
        self.assertIn("No node is called", self.page("/trace?from=a&to=nobody").text)
        self.assertIn("expected a GUID", self.page("/trace?from=a&to=0x").text)
        self.poller.linear = {}
        self.assertIn("It does not get there", self.page("/trace?from=b&to=c").text)

    def test_missing(self) -> None:
        """Missing objects and invalid requests get an error page."""
        self.started()
        for path in ("/nothing", "/nodes/0x0000000000000001", f"/nodes/{self.guid('left')}/ports/200"):
            answer = self.page(path)
            self.assertEqual((answer.code, "Not there" in answer.text), (404, True), path)
        for path in ("/nodes/left", "/nodes?sort=colour", "/changes?since=yesterday"):
            self.assertEqual(self.page(path).code, 400, path)
        for path in ("/static/", "/files/", "/static/../site.py", "/static/%2e%2e/site.py"):
            answer = self.page(path)
            self.assertEqual(answer.code, 404, path)
            self.assertNotIn("monitor.css", answer.text)

    def test_search(self) -> None:
        """Searches use only their filled fields."""
        self.started()
        text = self.page("/nodes?search=left&type=").text
        self.assertIn(">left</a>", text)
        self.assertNotIn(">right</a>", text)
        self.assertIn("1 in all", text)

    def test_words(self) -> None:
        """Numbers, shares and durations are rounded for reading."""
        for text, shown in {
            "– / 0 B/s / 999 B/s / 1 kB/s": [amount(value, "B/s") for value in (None, 0, 999.0, 1000.0)],
            "0.126 / 2 / 12.3 M / 1e+05 P": [amount(value) for value in (0.126, 2.0, 12345678.0, 1e20)],
            "– / 0 % / < 1 % / 50 % / 100 %": [percent(share) for share in (None, 0.0, 0.001, 0.5, 1.0)],
            "0 s / 119 s / 2 min / 2 h / 2 d": [ago(each) for each in (-3.0, 119.0, 120.0, 7200.0, 2e5)],
        }.items():
            self.assertEqual(" / ".join(shown), text)


class HostileTests(PageTestCase):
    """A fabric whose names are scripts, control characters and invalid UTF-8."""

    def net(self) -> Net:
        net = twoSwitches()
        for identifier, node in net.nodes.items():
            node.description = HOSTILE[identifier]
        return net

    def test_names(self) -> None:
        """Names appear only as text on each page, with replacements for unprintable characters."""
        self.started()
        self.loseHost()
        calm = set(
            "a body br button caption code datalist dd div dl dt figcaption figure footer form h1 "
            "h2 head header html input label li link main meta nav noscript option p rect script "
            "section select span strong svg table tbody td th thead time title tr ul".split()
        )
        paths = [link for link, _text in MENU] + [f"/nodes/{self.guid(name)}" for name in ("a", "b", "left")]
        paths += [f"/nodes/{self.guid('right')}/ports/3", f"/trace?from={self.guid('a')}&to={self.guid('d')}"]
        script = "%3Cscript%3E"
        paths += [
            f"/trace?from={script}alert(1)%3C/script%3E&to=%22%3E{script}",
            "/nodes?search=%22%3E%3Cb%3E",
        ]
        reported = ""
        for path in paths:
            answer = self.page(path)
            self.assertEqual(answer.code, 200, path)
            page = Seen(answer.text)
            self.assertEqual(page.elements - calm, set(), path)
            self.assertEqual([name for name in page.attributes if name.startswith("on")], [], path)
            self.assertEqual([link for link in page.links if not link.startswith(("/", "#"))], [], path)
            self.assertIsNone(re.search("[\x00-\x08\x0b-\x1f\x7f-\x9f\u202a-\u202e]", answer.text), path)
            reported += unescape(answer.text)
        for name in ("a", "b", "right", "d"):
            self.assertIn(HOSTILE[name], reported)
        self.assertIn("\ufffd", reported)

    def test_programs(self) -> None:
        """JSON, events and metrics contain the same names without line breaks."""
        reader = Connection(self.site.factory)
        reader.ask("/api/v1/events")
        self.started()
        self.loseHost()
        names = {row["name"] for row in self.rows("nodes")}
        self.assertLessEqual({HOSTILE["a"], HOSTILE["b"], HOSTILE["right"], HOSTILE["d"]}, names)
        for line in reader.answer.text.splitlines():
            self.assertRegex(line, r"^(id: \d+|event: [a-z]+|data: \{.*\}|retry: \d+|: alive|)$")
        for line in self.get("/metrics").text.splitlines():
            self.assertRegex(line, r"^(# (HELP|TYPE) .*|[a-z0-9_]+(\{.*\})? [-+0-9.e]+)$")


class TopologyTests(PageTestCase):
    """Levels of fat trees, and positions of their switches."""

    def net(self) -> Net:
        return fatTree(40, 8)

    at = "h00000"

    def test_levels(self) -> None:
        """A fat tree has three levels, and the switches of a pod are drawn above each other."""
        self.started(60.0)
        fabric = self.sweptFabric
        joined = completed(bundles(fabric))
        level = levels(fabric, joined)
        assert level is not None
        names = {node.description: node.guid for node in fabric.switches()}
        self.assertEqual([level[names[name]] for name in ("leaf0000", "spine0000", "core0000")], [0, 1, 2])
        position = completed(positions(fabric, level, joined))
        self.assertLess(position[names["leaf0000"]], position[names["leaf0009"]])
        self.assertLess(position[names["spine0000"]], position[names["spine0011"]])
        connection = Connection(self.site.factory)
        connection.ask("/api/v1/topology")
        self.clock.pump([0.0] * 500)
        self.assertEqual(connection.answer.json["shape"], "levels")
        less = {ends: ports for ends, ports in joined.items() if names["spine0000"] not in ends}
        less |= {ends: ports for ends, ports in list(joined.items())[::2] if names["spine0000"] in ends}
        self.assertEqual(completed(positions(fabric, level, less)), position)

    def test_changedMeanwhile(self) -> None:
        """A switch may be removed or added while the topology is made in pieces."""
        self.started(60.0)
        fabric = self.sweptFabric
        joined, (gone, *_others) = completed(bundles(fabric)), fabric.switches()
        del fabric.nodes[gone.guid]
        level = levels(fabric, joined)
        assert level is not None
        fabric.nodes[gone.guid] = gone
        self.assertEqual(completed(positions(fabric, level, joined)).keys(), level.keys())

    def test_ring(self) -> None:
        """A fabric with links within a level is not a tree and is drawn with a free layout."""
        self.started(60.0)
        fabric = self.sweptFabric
        leaves = sorted(node.guid for node in fabric.switches() if node.description.startswith("leaf"))
        self.assertIsNone(levels(fabric, [*completed(bundles(fabric)), (leaves[0], leaves[1])]))
