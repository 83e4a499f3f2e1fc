"""
Figures of benchmark results in the text of pages, and control groups of benchmarks.
"""

from __future__ import annotations

import re
from functools import partial
from pathlib import Path
from runpy import run_path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from benchmarks import cases as casesOfStreams
from benchmarks.controlgroups import limitedGroup, NoControlGroup
from benchmarks.parts import PARTS
from benchmarks.results import load
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

    def test_compiled(self) -> None:
        """C{compiled} selects the results with compiled cores."""
        sections = load(CHECKOUT / "docs" / "benchmarks-compiled.json")["sections"]
        rows = {row["name"]: row for each in sections for row in each["rows"]}
        measured = self.kinds["measured"]
        self.assertEqual(measured("compiled roundtrip ratio"), f"{rows['roundtrip']['ratio']:.2g}")
        self.assertNotEqual(measured("compiled roundtrip ratio"), measured("roundtrip ratio"))

    def test_readme(self) -> None:
        """The README, which has no roles, states the same figure of a busy machine as the other pages."""
        busy = self.kinds["measured"]("busy-1-0 busy-1-20 busy-1-60 busy-1-200 range")
        text = " ".join((CHECKOUT / "README.md").read_text().split())
        self.assertIn(
            f"Beside a CPU-bound process, on two cores, small round trips take {busy} of TCP's time", text
        )

    def test_targets(self) -> None:
        """Rows of results that were stored before a target changed have its present value."""
        for page, isCompiled in (("benchmarks.json", False), ("benchmarks-compiled.json", True)):
            self.patch(casesOfStreams, "areCoresCompiled", partial(bool, isCompiled))
            cases = [each for part in PARTS for case in part.cases(False) for each in (case, *case.also)]
            targets = {case.name: case.reaches for case in cases}
            rows = [row for each in load(CHECKOUT / "docs" / page)["sections"] for row in each["rows"]]
            found = {row["name"]: row["reaches"] for row in rows if row["name"] in targets}
            self.assertGreater(len(found), 50)
            self.assertEqual(found, {name: targets[name] for name in found})


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
