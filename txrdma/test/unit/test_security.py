"""
C{SECURITY.md}: every statement names a test, and the test exists.
"""

from __future__ import annotations

import re
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from txrdma.kit.limits import LIMITS
from txrdma.test.unit.kit.test_limits import hasTest

PAGE = Path(__file__).resolve().parents[3] / "SECURITY.md"


class PageTests(SynchronousTestCase):
    if not PAGE.exists():
        skip = "the page is in a checkout only"

    def rows(self) -> list[list[str]]:
        """Return the cells of all rows except headers and rules."""
        lines = [line for line in PAGE.read_text().splitlines() if line.startswith("|")]
        cells = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
        return [row for row in cells if row[0] != "Statement" and not set(row[0]) <= {"-"}]

    def test_statements(self) -> None:
        """Every row names one test, which exists."""
        rows = self.rows()
        self.assertGreater(len(rows), 20)
        for statement, test in rows:
            match = re.fullmatch(r"`([\w.]+)`", test)
            assert match is not None, statement
            self.assertTrue(hasTest(match[1]), match[1])

    def test_interfaces(self) -> None:
        """Each interface that has limits has a section."""
        page = PAGE.read_text().lower()
        for part in {limit.part for limit in LIMITS} - {"log", "mad", "UNIX sockets"}:
            self.assertRegex(page, f"\n## .*{re.escape(part.lower().rstrip(':'))}", part)
