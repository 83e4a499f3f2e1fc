"""
Names of code and of tests in C{docs/} exist, which the build of the pages checks later as well. Numbers in
their text are those of the code.
"""

from __future__ import annotations

import re
import runpy
from collections.abc import Callable
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from txrdma.commands.common.portchanges import OPERATIONS
from txrdma.commands.perfquery import KINDS
from txrdma.fabric import errorcounters, nodenames, sweepbounds
from txrdma.fabric.model import Problem
from txrdma.kit import webaccess
from txrdma.monitor.web import events, html, site, tables

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

    def test_problems(self) -> None:
        """Each kind of a sweep's problems is described."""
        kinds = re.findall(r"C\{([a-z-]+)\}", (Problem.__doc__ or "").partition("@ivar where")[0])
        self.assertGreater(len(kinds), 5)
        page = (DOCS / "fabric-commands.md").read_text()
        self.assertEqual([kind for kind in kinds if f"`{kind}`" not in page], [])

    def test_unknown(self) -> None:
        """A name that does not exist is noticed, also a method of a class that exists."""
        here = "test_docs.NamesTests.test_unknown"
        self.assertTrue(self.names["isTest"](here))
        self.assertFalse(self.names["isTest"](f"{here}2"))
        self.assertFalse(self.names["isTest"]("test_documents"))
        self.assertFalse(self.names["referencePage"]("txrdma.kit.strings.NoArguments"))


class NumbersTests(SynchronousTestCase):
    """Limits and files that pages document in their text are those of the code."""

    if not DOCS.exists():
        skip = "the pages are in a checkout only"

    def test_limits(self) -> None:
        """Each number and path of these sentences is that of its constant."""
        words = {2: "two", 10: "ten", 60: "minute", 500_000: "half a million"}
        ports = words.get(sweepbounds._MOST_PORTS)
        for page, sentences in (
            (
                "monitor-operation",
                (
                    f"After {words.get(webaccess.MOST_GUESSES)} wrong passwords for a name",
                    f"from that address until the {words.get(int(webaccess.GUESS_SECONDS))} is over",
                    f"a token of {webaccess.FEWEST_CHARACTERS} characters or more",
                    f"At most {site.MOST_CONNECTIONS:,} connections are open",
                    f"and {site.MOST_OF_CLIENT:,} of one address",
                ),
            ),
            (
                "fabric-monitor",
                (
                    f"At most {events.MOST_READERS:,} clients can read events",
                    f"buffer stays full for a {words.get(int(events.STALLED_SECONDS))}",
                    f"pages of 100 rows (`limit`, up to {tables.MOST_ROWS}, and `offset`)",
                    f"Tables of more than {tables.PIECE:,} rows are searched in pieces",
                    f"share the text of a page for {words.get(int(html._SHARED_SECONDS))} seconds",
                ),
            ),
            (
                "fabric-commands",
                (
                    f"({sweepbounds.MOST_NODES:,}, the LIDs of a subnet) or {ports} ports",
                    "else `{}` or `{}` of the host".format(*nodenames.MAP_FILES),
                    f"by default of its file `{errorcounters.DEFAULT_THRESHOLDS}`",
                ),
            ),
        ):
            text = " ".join((DOCS / f"{page}.md").read_text().split())
            self.assertEqual([sentence for sentence in sentences if sentence not in text], [])

    def test_names(self) -> None:
        """Each kind of counters and each operation on ports is on the page of its command."""
        page = (DOCS / "node-commands.md").read_text()
        names = [*KINDS, *(name for name in OPERATIONS if name != "query")]
        self.assertEqual([name for name in names if f"`{name}`" not in page], [])
