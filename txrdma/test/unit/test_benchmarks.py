"""
Figures of benchmark results in the text of pages.
"""

from __future__ import annotations

import re
from runpy import run_path
from statistics import median

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from benchmarks.results import (
    load,
    shortly,
)
from txrdma.test.support.benchmarks import CHECKOUT


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
                self.assertRegex(reported, r"^[\d.,]+( [a-zA-Z/]+)?$", text)

    def test_same(self) -> None:
        """A figure equals the value on the benchmark page, absolute or as a ratio."""
        sections = load(CHECKOUT / "docs" / "benchmarks.json")["sections"]
        [row] = (row for each in sections for row in each["rows"] if row["name"] == "roundtrip")
        measured = self.kinds["measured"]
        self.assertEqual(measured("roundtrip tested"), f"{shortly(median(row['tested']))} us")
        self.assertEqual(float(measured("roundtrip ratio")), float(f"{row['ratio']:.2g}"))
        self.assertEqual(float(measured("roundtrip")), float(f"{1 / row['ratio']:.2g}"))

    def test_unknown(self) -> None:
        """An unknown figure is an error."""
        for kind, text in (
            ("measured", "roundtrips"),
            ("measured", "roundtrip our"),
            ("witnessed", "smc: over pyverbs, client > furlongs"),
            ("witnessed", "nobody > MiB/s each way"),
        ):
            self.assertRaises(ValueError, self.kinds[kind], text)
