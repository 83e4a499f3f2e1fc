"""
C{SECURITY.md}: every statement names a test, and the test exists; and a rule about trust in users.
"""

from __future__ import annotations

import ast
import re
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

import txrdma
from txrdma.test.support.limits import LIMITS
from txrdma.test.unit.test_limits import hasTest

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


class TrustTests(SynchronousTestCase):
    """A single function decides whether a peer belongs to the same user."""

    EXCEPTIONS = frozenset({"unix/sockets.py", "unix/socketdirectory.py"})
    """L{isSameUser} itself, and a directory that calls it for users with the user ID of the process."""

    def comparisons(self, source: str) -> int:
        """Return how many comparisons a module makes with the user of its process."""
        if "uid" not in source:  # saves parsing most modules
            return 0
        return sum(
            isinstance(part, ast.Attribute | ast.Name) and self._nameOf(part) in ("geteuid", "getuid")
            for node in ast.walk(ast.parse(source))
            if isinstance(node, ast.Compare)
            for part in ast.walk(node)
        )

    def _nameOf(self, part: ast.Attribute | ast.Name) -> str:
        return part.attr if isinstance(part, ast.Attribute) else part.id

    def test_oneFunction(self) -> None:
        """No other module compares with C{geteuid} or C{getuid}, which unmapped users may share."""
        package = Path(txrdma.__file__).parent
        found = {
            str(path.relative_to(package))
            for path in package.rglob("*.py")
            if path.relative_to(package).parts[0] != "test" and self.comparisons(path.read_text())
        }
        self.assertEqual(found, self.EXCEPTIONS)

    def test_found(self) -> None:
        """Comparisons are found, and other uses are not."""
        for source, number in (
            ("user == os.geteuid()", 1),
            ("user in (0, getuid())", 1),
            ("os.stat(path).st_uid != os.geteuid()", 1),
            ("name = f'{os.geteuid()}'", 0),
            ("user == 0", 0),
        ):
            self.assertEqual(self.comparisons(source), number, source)
