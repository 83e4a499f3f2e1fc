"""
Figures of benchmark results in the text of pages, and control groups of benchmarks.
"""

from __future__ import annotations

import re
from pathlib import Path
from runpy import run_path
from statistics import median
from typing import cast

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from benchmarks.controlgroups import limitedGroup, NoControlGroup
from benchmarks.parts import PARTS
from benchmarks.report import table
from benchmarks.results import load, Row, shortly
from txrdma.test.support import CHECKOUT


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
        """Each figure that a page uses is a number, or belongs to a case that was not measured yet."""
        asked = []
        for page in sorted((CHECKOUT / "docs").glob("*.md")):
            asked += re.findall(r"\{(measured|witnessed)\}`([^`]+)`", page.read_text())
        self.assertIn(("measured", "throughput-64k"), asked)
        for kind, text in asked:
            reported = self.kinds[kind](text)
            if reported != self.notYet:
                self.assertRegex(reported, r"^[\d.,]+( to [\d.]+| [a-zA-Z/]+)?$", text)

    def test_same(self) -> None:
        """A figure equals the value on the benchmark page, absolute or as a ratio."""
        sections = load(CHECKOUT / "docs" / "benchmarks.json")["sections"]
        [row] = (row for each in sections for row in each["rows"] if row["name"] == "roundtrip")
        measured = self.kinds["measured"]
        self.assertEqual(measured("roundtrip tested"), f"{shortly(median(row['tested']))} us")
        self.assertEqual(float(measured("roundtrip ratio")), float(f"{row['ratio']:.2g}"))
        self.assertEqual(float(measured("roundtrip")), float(f"{1 / row['ratio']:.2g}"))
        low, high = sorted((measured("roundtrip ratio"), measured("memory ratio")), key=float)
        self.assertEqual(measured("roundtrip memory cpu range"), f"{low} to {high}")
        self.assertEqual(measured("cpu range"), measured("cpu ratio"))

    def test_readme(self) -> None:
        """The README, which has no roles, states the same figure of a busy machine as the other pages."""
        busy = self.kinds["measured"]("busy-1-0 busy-1-20 busy-1-60 busy-1-200 range")
        text = " ".join((CHECKOUT / "README.md").read_text().split())
        self.assertIn(
            f"Beside a CPU-bound process, on two cores, small round trips take {busy} of TCP's time", text
        )

    def test_targets(self) -> None:
        """Rows of results that were stored before a target changed have its present value."""
        cases = [each for part in PARTS for case in part.cases(False) for each in (case, *case.also)]
        targets = {case.name: case.reaches for case in cases}
        for page in ("benchmarks.json", "benchmarks-compiled.json"):
            rows = [row for each in load(CHECKOUT / "docs" / page)["sections"] for row in each["rows"]]
            found = {row["name"]: row["reaches"] for row in rows if row["name"] in targets}
            self.assertGreater(len(found), 50)
            self.assertEqual(found, {name: targets[name] for name in found})

    def test_unknown(self) -> None:
        """An unknown figure is an error."""
        for kind, text in (
            ("measured", "roundtrips"),
            ("measured", "roundtrip our"),
            ("measured", "roundtrip roundtrips range"),
            ("witnessed", "smc: over pyverbs, client > furlongs"),
            ("witnessed", "nobody > MiB/s each way"),
        ):
            self.assertRaises(ValueError, self.kinds[kind], text)


class TableTests(SynchronousTestCase):
    """Tables of a page."""

    def test_failure(self) -> None:
        """A failure of several lines stays in its row."""
        row = {"title": "training", "unit": "us", "failure": "it ended with 134\nrank 1 failed", "reach": "-"}
        lines = table("gloo", "btl", [cast(Row, row)])
        self.assertEqual(lines[2:], ["| training | us | | | it ended with 134; rank 1 failed | - | |"])


class ControlGroupTests(SynchronousTestCase):
    """Limits of processor time, in a folder with the layout of the kernel's."""

    def setUp(self) -> None:
        self.root = Path(self.mktemp())
        self.root.mkdir()

    def limits(self, share: float) -> dict[str, str]:
        """Create a group; return what was written to its files, which the kernel removes with the group."""
        with limitedGroup(share, self.root) as processes:
            written = {file.name: file.read_text() for file in processes.parent.iterdir()}
            for name in written:
                (processes.parent / name).unlink()
        self.assertFalse(processes.parent.exists())
        return written

    def test_version2(self) -> None:
        """The controller is enabled for the children of the root, and the group gets a quota and a period."""
        (self.root / "cgroup.controllers").write_text("cpuset cpu memory")
        self.assertEqual(self.limits(0.5), {"cpu.max": "50000 100000"})
        self.assertEqual((self.root / "cgroup.subtree_control").read_text(), "+cpu")

    def test_version1(self) -> None:
        """Quota and period are files of the group."""
        (self.root / "cpu").mkdir()
        self.assertEqual(self.limits(0.25), {"cpu.cfs_period_us": "100000", "cpu.cfs_quota_us": "25000"})

    def test_unavailable(self) -> None:
        """Without the controller, the reason is reported, and the block does not run."""
        with self.assertRaisesRegex(NoControlGroup, "no control group can be created: .*No such file"):
            with limitedGroup(0.5, self.root):
                self.fail("the block runs")

    def test_notWritable(self) -> None:
        """If a limit cannot be written, the group is removed."""
        (self.root / "cpu").mkdir()
        write = Path.write_text

        def refused(path: Path, text: str) -> int:
            if path.name == "cpu.cfs_quota_us":
                (path.parent / "cpu.cfs_period_us").unlink()
                raise PermissionError(13, "Permission denied")
            return write(path, text)

        self.patch(Path, "write_text", refused)
        with self.assertRaisesRegex(NoControlGroup, "processor time cannot be limited: .*denied"):
            with limitedGroup(0.5, self.root):
                self.fail("the block runs")
        self.assertEqual(list((self.root / "cpu").iterdir()), [])
