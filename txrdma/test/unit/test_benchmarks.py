"""
The benchmarks of verbs and of management datagrams run, say what they have measured, and draw it.
"""

from __future__ import annotations

import re
import subprocess
import sys
from pathlib import Path
from runpy import run_path
from statistics import median
from typing import Any
from xml.etree import ElementTree

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from benchmarks import charts
from benchmarks.measuring import Case, Outcome
from benchmarks.report import markdown, pictures
from benchmarks.results import (
    beside,
    factor,
    goal,
    load,
    replaced,
    Results,
    results,
    save,
    Section,
    section,
    shortly,
    stamped,
)
from txrdma.test.support.benchmarks import CHECKOUT, MISSING


def outcome(
    title: str,
    ours: list[float],
    theirs: list[float] | None,
    unit: str = "MB/s",
    why: str = "",
    **reaches: float,
) -> Outcome:
    """What came out of a case that is named as its title is."""
    case = Case(title, title, "", unit, {}, None if theirs is None else {}, {}, **reaches)  # type: ignore[arg-type]  # all of reaches are numbers
    return Outcome(case, ours, theirs or [], failure=why)


def made(*sections: Section, date: str = "2020-02-20") -> Results:
    """A run of these on some machine."""
    return results(
        [stamped(each, date, {"system": "any", "load average at the end": "1.0"}, 3) for each in sections]
    )


class PageTests(SynchronousTestCase):
    """Pages to which several runs add up."""

    if MISSING:
        skip = MISSING

    def setUp(self) -> None:
        folder = Path(self.mktemp())
        folder.mkdir()
        self.page = (folder / "benchmarks-management.md").absolute()

    def run_(self, *arguments: str) -> str:
        command = [sys.executable, "-m", "benchmarks", "--quick", "--pages", f"--mads-page={self.page}"]
        done = subprocess.run(
            [*command, *arguments], cwd=CHECKOUT, capture_output=True, text=True, timeout=110
        )
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        return done.stdout

    def test_part(self) -> None:
        """A part takes the place of what it was, with its date; the others stay as they were."""
        row = outcome("10,000 path records", [9.0], None, "s", mostOfOurs=0.5)
        before = made(section("mad-table", "Old", [row]), section("mad-memory", "Memory", [row], "model"))
        save(beside(self.page), before)
        said = self.run_("--part=mad-table", "--rounds=1")
        self.assertIn("mad-table: part 1 of 1", said)
        after, kept = load(beside(self.page))["sections"]
        self.assertEqual(kept, before["sections"][1])
        self.assertEqual((after["name"], after["title"]), ("mad-table", "A table of subnet administration"))
        self.assertEqual((after["rounds"], len(after["rows"][0]["ours"])), (1, 1))
        self.assertNotEqual(after["date"], kept["date"])
        text = self.page.read_text()
        for told in (after, kept):
            self.assertIn(f"## {told['title']}\n", text)
            self.assertIn(f"Measured on {told['date']}, {told['rounds']} round", text)
        self.assertNotIn("## Old", text)

    def test_first(self) -> None:
        """The first part makes the page."""
        self.run_("--part=mad-table", "--rounds=1")
        self.assertEqual([each["name"] for each in load(beside(self.page))["sections"]], ["mad-table"])
        self.assertTrue(self.page.read_text().startswith("# Benchmarks of management datagrams\n"))

    def test_sameMachine(self) -> None:
        """The machine is told where it is another one than that of the section before."""
        row = outcome("any", [1.0], [2.0])
        first, second = made(section("streams", "One", [row]), section("connects", "Two", [row]))["sections"]
        elsewhere = {**second, "machine": {"system": "other"}}
        page = self.page.with_name("benchmarks.md")
        self.assertIn("3 rounds at most: on the same machine;", markdown(page, results([first, second])))
        self.assertNotIn("the same machine", markdown(page, results([first, elsewhere])))
        self.assertIn("3 rounds at most: other;", markdown(page, results([first, elsewhere])))

    def test_order(self) -> None:
        """Parts stand in their order, whichever was measured first; what there is no more is dropped."""
        one, two, old = made(section("one", ""), section("two", ""), section("old", ""))["sections"]
        self.assertEqual(replaced(results([two, old]), one, ("one", "two"))["sections"], [one, two])

    def test_names(self) -> None:
        """Parts are listed with their cases; a part that is none is told."""
        command = [sys.executable, "-m", "benchmarks", "--list"]
        for arguments, status in (((), 0), (("--part=streams",), 0), (("--part=nothing",), 2)):
            done = subprocess.run(
                [*command, *arguments], cwd=CHECKOUT, capture_output=True, text=True, timeout=110
            )
            self.assertEqual(done.returncode, status, done.stderr)
            names = (done.stdout or done.stderr.replace(",", "")).split()
            self.assertIn("streams", names)
            self.assertEqual("failover" in names, arguments != ("--part=streams",))
            self.assertEqual("throughput-64k" in names, not status)


class FigureTests(SynchronousTestCase):
    """Figures in the text of pages, which are those of results."""

    def setUp(self) -> None:
        if not (CHECKOUT / "docs").is_dir():
            raise SkipTest("the pages are in a checkout only")
        try:
            module = run_path(str(CHECKOUT / "docs" / "_extensions" / "figures.py"))
        except ImportError as error:
            raise SkipTest(str(error)) from None
        self.kinds = {"measured": module["measured"], "witnessed": module["witnessed"]}
        self.notYet = module["NOT_YET"]

    def test_pages(self) -> None:
        """Each figure that a page asks for is a number, or has a case that was not measured yet."""
        asked = []
        for page in sorted((CHECKOUT / "docs").glob("*.md")):
            asked += re.findall(r"\{(measured|witnessed)\}`([^`]+)`", page.read_text())
        self.assertIn(("measured", "throughput-64k"), asked)
        for kind, text in asked:
            told = self.kinds[kind](text)
            if told != self.notYet:
                self.assertRegex(told, r"^[\d.,]+( [a-zA-Z/]+)?$", text)

    def test_same(self) -> None:
        """A figure is that of the page of benchmarks, by itself and in proportion."""
        sections = load(CHECKOUT / "docs" / "benchmarks.json")["sections"]
        [row] = (row for each in sections for row in each["rows"] if row["name"] == "roundtrip")
        measured = self.kinds["measured"]
        self.assertEqual(measured("roundtrip ours"), f"{shortly(median(row['ours']))} us")
        self.assertEqual(float(measured("roundtrip ratio")), float(f"{row['ratio']:.2g}"))
        self.assertEqual(float(measured("roundtrip")), float(f"{1 / row['ratio']:.2g}"))

    def test_unknown(self) -> None:
        """A figure that can't be is an error, and is no word on the page."""
        for kind, text in (
            ("measured", "roundtrips"),
            ("measured", "roundtrip our"),
            ("witnessed", "smc: over pyverbs, client > furlongs"),
            ("witnessed", "nobody > MiB/s each way"),
        ):
            self.assertRaises(ValueError, self.kinds[kind], text)


class ChartTests(SynchronousTestCase):
    """Charts of results."""

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
            outcome("memory", [8.0], [4.0], "KiB", mostOfOurs=16.0),
        ]
        alone = [
            outcome("completions", [400.0], None, "/s", leastOfOurs=300.0),
            outcome("calls", [100.0], None, "/s", leastOfOurs=150.0),
            outcome("a table", [], None, "s", why="there is no ibsim", mostOfOurs=1.0),
        ]
        told = {"peers": [self.peer("uvloop, TCP", 5.0), self.peer("MPI")]}
        self.results = made(
            section("streams", "Streams", streams, "SMC-R", "TCP"),
            section("verbs", "Verbs", alone, "ours"),
            section("others", "Others", told=told),
        )

    def peer(self, name: str, *values: float) -> dict[str, Any]:
        """One that is measured besides, or is not there."""
        found = {"throughput-64k": list(values)} if values else {}
        return {"name": name, "values": found, "failure": "" if values else "there is no mpiexec"}

    def drawn(self, name: str, theme: str = "light") -> list[str]:
        """The words of a chart."""
        text = (self.page.parent / "pictures" / self.page.stem / f"{name}-{theme}.svg").read_text()
        found = ElementTree.fromstring(text).iter("{http://www.w3.org/2000/svg}text")
        return [" ".join("".join(each.itertext()).split()) for each in found]

    def test_factors(self) -> None:
        """By how much ours is better, whether more or less is better; reaches in the same terms."""
        more, less, failed, memory = self.results["sections"][0]["rows"]
        self.assertEqual((factor(more), goal(more)), (3.0, 2.0))
        self.assertEqual((factor(less), goal(less)), (5.0, 20.0))
        self.assertEqual((factor(failed), goal(failed)), (None, None))
        self.assertEqual((factor(memory), goal(memory)), (0.5, 0.25))
        alone = self.results["sections"][1]["rows"][0]
        self.assertEqual((factor(alone), goal(alone)), (None, None))

    def test_drawn(self) -> None:
        """Each chart is there for both themes, with its values; what failed and what was missed is named."""
        written = charts.write(self.page, self.results)
        names = [chart.name for chart in charts.charts(self.results)]
        self.assertEqual(names, ["headline", "streams", "verbs-amounts", "others"])
        self.assertEqual(len(written), 2 * len(names))
        for theme in charts.THEMES:
            said = self.drawn("streams", theme)
            for word in ("3×", "5×", "missed 20×", "0.5×"):
                self.assertIn(word, said)
            self.assertIn("not measured: it ended with -9 & said <$no> $more", said)
            self.assertEqual([word for word in said if word.startswith("missed")], ["missed 20×"])
        said = self.drawn("verbs-amounts")
        self.assertIn("missed 150", said)
        self.assertEqual(
            [word for word in said if word in ("completions", "calls", "a table")], ["completions", "calls"]
        )
        said = self.drawn("others")
        self.assertIn("uvloop", said)
        self.assertNotIn("MPI", said)

    def test_same(self) -> None:
        """The same results give the same files, which tell no date; a chart that is no more is removed."""
        first = {file: file.read_text() for file in charts.write(self.page, self.results)}
        again = {file: file.read_text() for file in charts.write(self.page, self.results)}
        self.assertEqual(first, again)
        for text in first.values():
            self.assertNotRegex(text, r"20\d\d-\d\d")
        fewer = results(self.results["sections"][:1])
        charts.write(self.page, fewer)
        left = {file.name for file in (self.page.parent / "pictures" / self.page.stem).iterdir()}
        self.assertEqual(
            left, {f"{name}-{theme}.svg" for name in ("headline", "streams") for theme in charts.THEMES}
        )

    def test_nothing(self) -> None:
        """Where all has failed there is no chart, and the page shows none."""
        failed = [outcome("throughput-64k", [], [], why="no two cores")]
        told = made(section("streams", "Streams", failed, "SMC-R", "TCP"), section("box", "The box"))
        self.assertEqual(charts.write(self.page, told), [])
        self.assertEqual(pictures(self.page, told, "streams"), [])

    def test_again(self) -> None:
        """C{--charts} draws those of saved results again, and measures nothing."""
        first = {file: file.read_text() for file in charts.write(self.page, self.results)}
        save(beside(self.page), self.results)
        for file in first:
            file.unlink()
        command = [sys.executable, "-m", "benchmarks", "--charts"]
        for name in ("page", "mads-page"):
            command.append(f"--{name}={self.page.absolute()}")
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=110)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertEqual(done.stdout.count("drawn: "), len(first))
        self.assertEqual({file: file.read_text() for file in first}, first)

    def test_pages(self) -> None:
        """The pages of this checkout show the charts of the results beside them, and the same medians."""
        pages = [CHECKOUT / "docs" / f"benchmarks{kind}.md" for kind in ("", "-compiled", "-management")]
        for page in pages:
            told, text = load(beside(page)), page.read_text()
            for chart in charts.charts(told):
                shown = "\n".join(charts.picture(page, chart))
                for name in re.findall(r'"(pictures/[^"]+)"', shown):
                    self.assertTrue((page.parent / name).exists(), name)
                self.assertEqual(shown in text, bool(chart.section), chart.name)
            for row in (row for each in told["sections"] for row in each["rows"] if row["ours"]):
                value = median(row["ours"])
                said = f"{value:,.0f}" if value >= 100 else f"{value:.3g}"
                self.assertRegex(text, rf"\| {re.escape(row['title'])} \|.*\| {said} \(")
