"""The benchmarks: measurements of verbs and of streams, pages and charts."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
from dataclasses import replace
from pathlib import Path
from statistics import median
from xml.etree import ElementTree

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from benchmarks import charts, counts, measuring
from benchmarks.cases import comingAndGoing, SMC, TCP
from benchmarks.measuring import Case, Outcome
from benchmarks.privileges import unprivileged
from benchmarks.results import (
    beside,
    load,
    Results,
    results,
    save,
    Section,
    section,
    stamped,
)
from txrdma.test.support import CHECKOUT
from txrdma.test.support.benchmarks import MISSING
from txrdma.test.support.processes import firstLine, started

SHORT = {"bytes": 1 << 20, "write": 1 << 16}
"""A short transfer."""


def run(*words: str) -> subprocess.CompletedProcess[str]:
    """Run a module of the checkout."""
    command = [sys.executable, "-m", *words]
    return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=110)


class PrivilegesTests(SynchronousTestCase):
    """The measured processes need no privileges."""

    def test_user(self) -> None:
        """Root measures as another user, with Linux's default limits; others as themselves."""
        words = unprivileged()
        if os.geteuid() != 0:
            self.assertEqual(words, [])
        elif not words:
            raise SkipTest("other users cannot run this Python or read this checkout")
        else:
            command = [*words, "sh", "-c", "id -u; id -G; ulimit -Sn; ulimit -l"]
            done = subprocess.run(command, capture_output=True, text=True, check=True)
            self.assertEqual(done.stdout.split(), ["65534", "65534", "1024", "8192"])


BUSY = """
from benchmarks.measuring import busyProcesses

with busyProcesses(2):
    print("begun", flush=True)
    input()
"""


class BusyTests(SynchronousTestCase):
    """CPU-bound processes beside the measured ones."""

    def setUp(self) -> None:
        if not (CHECKOUT / "benchmarks").is_dir():
            raise SkipTest("the benchmarks are in a checkout only")

    def kill(self, group: int) -> None:
        try:
            os.killpg(group, signal.SIGKILL)
        except ProcessLookupError:
            pass  # all have ended

    def test_terminated(self) -> None:
        """They end with the process that has started them: then its output, which they inherit, ends."""
        process = started(self, "-c", BUSY, before=["setsid"])
        self.addCleanup(self.kill, process.pid)
        self.assertEqual(firstLine(process), "begun")
        process.terminate()
        self.assertEqual(process.communicate(timeout=30), ("", None))


class VerbsTests(SynchronousTestCase):
    """C{python -m benchmarks.verbs}, from a checkout."""

    slowBecause = "measures in separate processes"

    def setUp(self) -> None:
        if not (CHECKOUT / "benchmarks").is_dir():
            raise SkipTest("the benchmarks are in a checkout only")
        if len(os.sched_getaffinity(0)) < 2:
            raise SkipTest("two processes need two cores")

    def test_pairs(self) -> None:
        """Two pairs of devices are in the table and in the JSON; a third one is named with its failure."""
        name = os.path.abspath(self.mktemp())
        done = run(
            *("benchmarks.verbs", "--device=soft", "--device=soft", "--name=memory"),
            *("--device=soft:192.0.2.1", "--device=soft:192.0.2.1", "--name=nowhere"),
            *("--device=soft:route=rocev2", "--device=soft:route=rocev2"),
            *("--rounds=1", "--iterations=20", "--sizes=64", "--transfers=send", f"--json={name}"),
        )
        self.assertEqual(done.returncode, 1, done.stderr)
        first, _, row, _, failed = done.stdout.splitlines()
        self.assertEqual(failed, "nowhere: a process ended with 1")
        self.assertIn("memory: MB/s | soft:route=rocev2 - soft:route=rocev2: MB/s", first)
        self.assertEqual(len(row.split("|")), 12)
        reported = json.loads(Path(name).read_text())
        self.assertEqual([pair["route"] for pair in reported["pairs"]], ["shared-memory", "", "rocev2"])
        self.assertEqual(reported["pairs"].pop(1)["values"], [])
        for pair in reported["pairs"]:
            kinds = {(test, kind, size) for test, kind, size, _ in pair["values"]}
            self.assertEqual(kinds, {("send", what, 64) for what in ("latency", "bandwidth", "cpu")})
            for *_, rounds in pair["values"]:
                self.assertEqual(len(rounds), 1)
                self.assertGreater(rounds[0][0], 0)


class CaseTests(SynchronousTestCase):
    """Cases that take no longer than their processes need to start."""

    slowBecause = "each transport is measured by two processes"

    if not (CHECKOUT / "benchmarks").is_dir():
        skip = "the benchmarks are in a checkout only"

    def setUp(self) -> None:
        if len(os.sched_getaffinity(0)) < 2:
            raise SkipTest("two processes need two cores")

    def outcomes(self, case: Case) -> list[Outcome]:
        """Measure a case and what belongs to it once; return the outcomes."""
        self.addCleanup(os.chdir, os.getcwd())
        os.chdir(CHECKOUT)
        return measuring.run(case, 1)

    def test_fails(self) -> None:
        """Cases of a transport that fails, or that falls back from SMC-R, fail with the reason."""
        case = Case("a", "", "throughput", "MB/s", SMC, TCP, SHORT)
        nowhere = {**TCP, "connect": "tcp:127.0.0.1:1"}
        others = [replace(case, name=f"{tested}", tested=tested, reference=None) for tested in (TCP, nowhere)]
        good, *bad = self.outcomes(replace(case, also=tuple(others)))
        self.assertEqual((good.failure, len(good.tested), len(good.reference)), ("", 1, 1))
        failures = [each.failure for each in bad]
        self.assertEqual(failures, ["this was TCP, not SMC-R", "a process ended with 1"])
        self.assertEqual(bad[1].tested, [])

    def test_counts(self) -> None:
        """Over TCP a message is read in one iteration of the reactor, and the next written in another."""
        result = counts.counted(TCP, 200, True)
        self.assertAlmostEqual(result["iterations"], 2.0, delta=0.1)
        self.assertGreater(result["functions"], 2)
        self.assertGreater(result["bytecodes"]["benchmarks.scenarios.dataReceived"], 10)

    def test_firstBytes(self) -> None:
        """Page faults of a first message are counted, and are few."""
        [case] = (each for each in comingAndGoing(True) if each.name == "first-bytes")
        usual, most = self.outcomes(case)
        self.assertEqual((usual.failure, most.failure), ("", ""))
        self.assertLessEqual(usual.tested[0], most.tested[0])
        self.assertLess(most.tested[0], 256)


def outcome(
    title: str,
    tested: list[float],
    reference: list[float] | None,
    unit: str = "MB/s",
    why: str = "",
    **reaches: float,
) -> Outcome:
    """Return a result of a case with this title."""
    case = Case(title, title, "", unit, {}, None if reference is None else {}, {}, **reaches)  # type: ignore[arg-type]  # all of reaches are numbers
    return Outcome(case, tested, reference or [], failure=why)


def made(*sections: Section, date: str = "2020-02-20") -> Results:
    """Return a run of these cases on a machine."""
    return results(
        [stamped(each, date, {"system": "any", "load average at the end": "1.0"}, 3) for each in sections]
    )


class PageTests(SynchronousTestCase):
    """Pages combined from several runs."""

    slowBecause = "measures in a process"

    if MISSING:
        skip = MISSING

    def setUp(self) -> None:
        folder = Path(self.mktemp())
        folder.mkdir()
        self.page = (folder / "benchmarks-management.md").absolute()

    def run_(self, *arguments: str) -> str:
        done = run("benchmarks", "--quick", "--pages", f"--mads-page={self.page}", *arguments)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_part(self) -> None:
        """A part replaces its earlier results, with its date; the others do not change."""
        row = outcome("10,000 path records", [9.0], None, "s", mostValue=0.5)
        before = made(section("mad-table", "Old", [row]), section("mad-memory", "Memory", [row], "model"))
        save(beside(self.page), before)
        output = self.run_("--part=mad-table", "--rounds=1")
        self.assertIn("mad-table: part 1 of 1", output)
        after, retained = load(beside(self.page))["sections"]
        self.assertEqual(retained, before["sections"][1])
        self.assertEqual((after["name"], after["title"]), ("mad-table", "A table of subnet administration"))
        self.assertEqual((after["rounds"], len(after["rows"][0]["tested"])), (1, 1))
        self.assertNotEqual(after["date"], retained["date"])
        text = self.page.read_text()
        for reported in (after, retained):
            self.assertIn(f"## {reported['title']}\n", text)
            self.assertIn(f"Measured on {reported['date']}, {reported['rounds']} round", text)
        self.assertNotIn("## Old", text)


class ChartTests(SynchronousTestCase):
    slowBecause = "draws all charts"

    if MISSING:
        skip = MISSING

    def setUp(self) -> None:
        folder = Path(self.mktemp())
        folder.mkdir()
        self.page = folder / "benchmarks-of-today.md"
        streams = [
            outcome("throughput-64k", [8.0, 9.0, 10.0], [3.0], atLeast=2.0),
            outcome("roundtrip", [10.0], [50.0, 40.0, 60.0], "us", atMost=0.05),
            outcome("cpu", [], [], "s/GB", why="it ended with -9 & said <$no> $more"),
            outcome("memory", [8.0], [4.0], "KiB", mostValue=16.0),
        ]
        alone = [
            outcome("completions", [400.0], None, "/s", leastValue=300.0),
            outcome("calls", [100.0], None, "/s", leastValue=150.0),
            outcome("a table", [], None, "s", why="there is no ibsim", mostValue=1.0),
        ]
        again = [outcome("bulk", [9.0], [3.0], atLeast=2.0)]
        self.results = made(
            section("streams", "Streams", streams, "SMC-R", "TCP"),
            section("verbs", "Verbs", alone, "txrdma"),
            section("btl", "Messages", again, "btl", "TCP"),
        )

    def drawn(self, name: str, theme: str = "light") -> list[str]:
        """Return the text of a chart."""
        text = (self.page.parent / "pictures" / self.page.stem / f"{name}-{theme}.svg").read_text()
        found = ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")
        return [" ".join("".join(each.itertext()).split()) for each in found]

    def test_drawn(self) -> None:
        """Each chart exists for both themes with its values; failures and missed goals are named."""
        written = charts.write(self.page, self.results)
        names = [chart.name for chart in charts.charts(self.results)]
        self.assertEqual(names, ["headline", "streams", "btl"])
        self.assertEqual(len(written), 2 * len(names))
        for theme in charts.THEMES:
            output = self.drawn("streams", theme)
            for word in ("3×", "5×", "missed 20×", "0.5×"):
                self.assertIn(word, output)
            self.assertIn("not measured: it ended with -9 & said <$no> $more", output)
            self.assertEqual([word for word in output if word.startswith("missed")], ["missed 20×"])

    def test_pages(self) -> None:
        """The pages of this checkout show the charts of the results beside them, and the same medians."""
        pages = [CHECKOUT / "docs" / f"benchmarks{kind}.md" for kind in ("", "-compiled", "-management")]
        for page in pages:
            reported, text = load(beside(page)), page.read_text()
            for chart in charts.charts(reported):
                shown = "\n".join(charts.picture(page, chart))
                for name in re.findall(r'"(pictures/[^"]+)"', shown):
                    self.assertTrue((page.parent / name).exists(), name)
                self.assertEqual(shown in text, bool(chart.section), chart.name)
            rows = [row for each in reported["sections"] for row in each["rows"]]
            for row in (row for row in rows if row["tested"] and not row["failure"]):
                value = median(row["tested"])
                output = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
                self.assertRegex(text, rf"\| {re.escape(row['title'])} \|.*\| {output} \(")
