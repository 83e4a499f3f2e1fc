"""Alert rules, verified by promtool, and the dashboard."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from hashlib import sha256
from pathlib import Path

from twisted.trial.unittest import SkipTest

import txrdma.monitor.web
from txrdma.monitor.iterations import IterationTimes
from txrdma.monitor.series.exposition import guidText
from txrdma.test.unit.monitor.test_rest import SiteTestCase

FILES = Path(txrdma.monitor.web.__file__).parent / "files"
METRIC = re.compile(r"\b(?:infiniband|txrdma_monitor)_[a-z0-9_]+")


class FileTests(SiteTestCase):
    def known(self) -> set[str]:
        """Return the names of all metrics of a monitor, with all that is measured, and of a front end."""
        self.started()
        reported = set(METRIC.findall(self.get("/metrics").text))
        process = {f"{IterationTimes(None).durations.family().name}_bucket"}
        others = {"txrdma_monitor_history_dropped_total", "txrdma_monitor_remote_age_seconds"}
        return reported | process | others

    def test_rules(self) -> None:
        self.assertIn("12 rules found", self.promtool("check", "rules", str(FILES / "alerts.yml")))

    def promtool(self, *words: str) -> str:
        """Return the output of promtool."""
        promtool = shutil.which("promtool")
        if promtool is None:
            raise SkipTest("promtool is not here: apt-get install prometheus")
        done = subprocess.run([promtool, *words], capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_acknowledged(self) -> None:
        """Rules are silent about findings that an operator has acknowledged."""
        for severity, name in (("critical", "FabricCritical"), ("warning", "FabricWarnings")):
            expr = f'count(ALERTS{{alertname="{name}", alertstate="firing"}}) or vector(0)'
            for acknowledged, number in (("true", 0), ("false", 1)):
                labels = f'severity="{severity}", acknowledged="{acknowledged}"'
                self.check({f"txrdma_monitor_findings{{{labels}}}": "1x40"}, {expr: number})

    def check(
        self, series: dict[str, str], expected: dict[str, int], at: str = "30m", labels: str = "{}"
    ) -> None:
        """Check the values of expressions at a time, by promtool with the rules and with these series."""
        tests = [
            {"expr": expr, "eval_time": at, "exp_samples": [{"labels": labels, "value": value}]}
            for expr, value in expected.items()
        ]
        given = [{"series": name, "values": values} for name, values in series.items()]
        group = {"interval": "1m", "input_series": given, "promql_expr_test": tests}
        path = Path(self.mktemp())
        path.write_text(json.dumps({"rule_files": [str(FILES / "alerts.yml")], "tests": [group]}))
        self.promtool("test", "rules", str(path))

    def test_severalFabrics(self) -> None:
        """Rules find one of several fabrics that is not watched or scraped, whatever others do."""
        for name, series, good, bad in (
            ("FabricMonitorAway", "txrdma_monitor_rounds_total", "0+6x60", "7x60"),
            ("FabricMonitorAway", "txrdma_monitor_rounds_total", "0+6x60", "0+6x5 _x60"),
            ("FabricMonitorStandbyOnly", "txrdma_monitor_active", "1x60", "0x60"),
            ("FabricMonitorUnread", "txrdma_monitor_remote_age_seconds", "9x60", "0+60x60"),
        ):
            given = {f'{series}{{fabric="north"}}': good, f'{series}{{fabric="south"}}': bad}
            expr = f'count by (fabric) (ALERTS{{alertname="{name}", alertstate="firing"}})'
            self.check(given, {expr: 1}, labels='{fabric="south"}')

    def test_removed(self) -> None:
        """A fabric is missed if the monitor that had it is not scraped, but not if that has it no longer."""
        expr = 'count(ALERTS{alertname="FabricMonitorAway", alertstate="firing"}) or vector(0)'
        for isScraped in (0, 1):
            given = {
                'txrdma_monitor_rounds_total{fabric="north"}': "0+6x60",
                'txrdma_monitor_rounds_total{fabric="south", job="x", instance="y"}': "0+6x5 _x60",
                'up{job="x", instance="y"}': f"1x5 {isScraped}x60",
            }
            self.check(given, {expr: 1 - isScraped})

    def test_takeover(self) -> None:
        """Queries of the dashboard have each port, node and finding once while a pair has a takeover."""
        board = json.loads((FILES / "grafana.json").read_text())
        queries = [one["expr"] for panel in board["panels"] for one in panel["targets"]]
        labels = (
            'fabric="x", guid="x", port="1", name="x", kind="x", severity="critical", acknowledged="false"'
        )
        series, expected = {}, {}
        for name in {name for query in queries for name in METRIC.findall(query)}:
            first = "4+0" if name == "infiniband_state_id" else "4+6"
            for instance, values in (("a", f"{first}x10 stale"), ("b", f"_x9 {first}x10")):
                series[f'{name}{{{labels}, le="+Inf", instance="{instance}"}}'] = values
        for query in queries:
            isNone = "true" in query or "warning" in query
            for name, value in {"$fabric": ".*", "$guid": ".*", "$__rate_interval": "5m"}.items():
                query = query.replace(name, value)
            expected[f"count({query}) or vector(0)"] = 0 if isNone else 1
        self.check(series, expected, at="10m")

    def test_sameAlerts(self) -> None:
        """An alert by counters is the same one whichever monitor of a pair is active."""
        name = 'infiniband_symbol_error_total{guid="x", port="1", instance='
        series = {f'{name}"a"}}': "0+9x30 stale", f'{name}"b"}}': "_x29 270+9x60"}
        for at in ("20m", "40m"):
            self.check(series, {'count(ALERTS{alertname="FabricSymbolErrors", instance=""})': 1}, at)

    def test_metrics(self) -> None:
        """Rules and dashboard use only metrics that the monitor has."""
        self.fabric.correct()
        known = self.known()
        for name in ("alerts.yml", "grafana.json"):
            answer = self.get(f"/files/{name}")
            self.assertEqual(answer.code, 200)
            used = set(METRIC.findall(answer.text))
            self.assertGreater(len(used), 5)
            self.assertEqual(used - known, set(), name)

    def test_dashboard(self) -> None:
        """Panels of the dashboard do not overlap, have queries, and use the selected data source."""
        board = json.loads((FILES / "grafana.json").read_text())
        variables = [(each["name"], each["type"]) for each in board["templating"]["list"]]
        self.assertEqual(variables, [("datasource", "datasource"), ("fabric", "query"), ("guid", "query")])
        cells: set[tuple[int, int]] = set()
        for panel in board["panels"]:
            at = panel["gridPos"]
            own = {
                (x, y) for x in range(at["x"], at["x"] + at["w"]) for y in range(at["y"], at["y"] + at["h"])
            }
            self.assertEqual(own & cells, set(), panel["title"])
            self.assertLessEqual(at["x"] + at["w"], 24)
            cells |= own
            self.assertTrue(panel["targets"])
            self.assertEqual({one["datasource"]["uid"] for one in panel["targets"]}, {"${datasource}"})
            for expr in (one["expr"] for one in panel["targets"]):
                ofFabric = [name for name in METRIC.findall(expr) if "iteration" not in name]
                self.assertEqual(expr.count('{fabric=~"$fabric"'), len(ofFabric), expr)
        numbers = [panel["id"] for panel in board["panels"]]
        self.assertEqual(len(numbers), len(set(numbers)))

    def test_names(self) -> None:
        """The dashboard lists nodes by name, from the series of all nodes, and selects them by GUID."""
        self.started()
        *_, node = json.loads((FILES / "grafana.json").read_text())["templating"]["list"]
        self.assertEqual(node["query"]["query"], 'query_result(infiniband_node_info{fabric=~"$fabric"})')
        pattern = re.compile(node["regex"].strip("/").replace("(?<", "(?P<"))
        series = re.findall("^infiniband_node_info.*$", self.get("/metrics").text, re.MULTILINE)
        found = {(match["text"], match["value"]) for match in map(pattern.search, series) if match}
        self.assertEqual(
            found, {(one.description, guidText(one.guid)) for one in self.sweptFabric.nodes.values()}
        )

    def test_vendored(self) -> None:
        """Vendored libraries are unchanged, and each has its licence."""
        folder = FILES.parent / "static" / "vendor"
        sums = dict(line.split()[::-1] for line in (folder / "SHA256SUMS").read_text().splitlines())
        files = {path.name: path for path in folder.iterdir() if path.suffix in (".js", ".css")}
        self.assertEqual({name: sha256(path.read_bytes()).hexdigest() for name, path in files.items()}, sums)
        for name in files:
            kind = name.partition(".")[0].lower()
            self.assertIn("Permission is hereby granted", (folder / f"{kind}.LICENSE").read_text())
