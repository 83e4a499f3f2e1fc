"""
Names of code and of tests in C{docs/}: each exists. The build of the pages notices it, too, but later.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

DOCS = Path(__file__).resolve().parents[3] / "docs"


class NamesTests(SynchronousTestCase):
    if not DOCS.exists():
        skip = "the pages are in a checkout only"

    def setUp(self) -> None:
        self.names = runpy.run_path(str(DOCS / "_extensions" / "names.py"))

    def unknown(self, role: str, isKnown: Callable[[str], object]) -> list[str]:
        """Return the names with this role that do not exist."""
        pages = "\n".join(path.read_text() for path in DOCS.glob("*.md"))
        found = set(re.findall(rf"\{{{role}\}}`([^`]+)`", pages))
        self.assertGreater(len(found), 50)
        return sorted(name for name in found if not isKnown(name))

    def test_tests(self) -> None:
        """Every test that a page names exists."""
        self.assertEqual(self.unknown("shown", self.names["isTest"]), [])

    def test_code(self) -> None:
        """Every module, class and member that a page names exists."""
        self.assertEqual(self.unknown("api", lambda name: self.names["referencePage"](f"txrdma.{name}")), [])

    def test_unknown(self) -> None:
        """A name that does not exist is noticed, also a method of a class that exists."""
        here = "test_docs.NamesTests.test_unknown"
        self.assertTrue(self.names["isTest"](here))
        self.assertFalse(self.names["isTest"](f"{here}2"))
        self.assertFalse(self.names["isTest"]("test_documents"))
        self.assertFalse(self.names["referencePage"]("txrdma.kit.limits.NoLimit"))
