"""
The pages with first steps for each kind of reader, run unchanged except for the ports.

C{make test-wheel} also runs their installations, from the wheel that it has built: C{PAGES_WHEELS} names its
folder.
"""

from __future__ import annotations

import os
import re
import shutil
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from txrdma.test.support import CHECKOUT
from txrdma.test.support.pages import File, installed, isInstallation, Reader, steps, withFreePorts

DOCS = CHECKOUT / "docs"


class PageTests(SynchronousTestCase):
    """Each page in an empty folder, as its reader runs it."""

    slowBecause = "each command is a process, some of them servers that have to start"

    def page(self, name: str) -> str:
        if not DOCS.exists():
            raise SkipTest("not a checkout")
        for program in ("bash", "curl"):
            if shutil.which(program) is None:
                raise SkipTest(f"{program} is not installed")
        return (DOCS / f"{name}.md").read_text()

    def read(self, name: str) -> None:
        """Follow a page."""
        wheels = os.environ.get("PAGES_WHEELS", "")
        environment: Mapping[str, str] = (
            {**os.environ, "PIP_FIND_LINKS": wheels, "PIP_QUIET": "1"} if wheels else installed()
        )
        reserved = ExitStack()
        self.addCleanup(reserved.close)
        page = withFreePorts(self.page(name), reserved)
        todo = [step for step in steps(page) if wheels or not isInstallation(step)]
        folder = Path(self.mktemp()).absolute()
        folder.mkdir()
        reader = Reader(folder, environment)
        self.addCleanup(reader.close)
        for step in todo:
            reader.do(step)
        self.assertGreater(len(reader.seconds), 2)
        self.assertLess(sum(reader.seconds.values()), 300)

    def test_twisted(self) -> None:
        """A Twisted programmer's server and client use SMC-R, and fall back to TCP."""
        self.read("start-twisted")

    def test_host(self) -> None:
        """A host administrator's proxies carry a service over SMC-R."""
        self.read("start-host")

    def test_fabric(self) -> None:
        """A fabric administrator examines a simulated fabric by commands, in a page, and from Python."""
        self.read("start-fabric")

    def test_HPC(self) -> None:
        """An HPC programmer measures, shares memory, and sends arrays."""
        self.read("start-hpc")


class TextTests(SynchronousTestCase):
    """Contents that pages share with other files."""

    def setUp(self) -> None:
        if not DOCS.exists():
            raise SkipTest("not a checkout")

    def test_examples(self) -> None:
        """The programs on two of the pages are those of C{examples}."""
        for page, names in (
            ("start-twisted", {"server.py": "server.py", "client.py": "client.py", "fetch.py": "fetch.py"}),
            ("start-fabric", {"links.py": "discover.py"}),
        ):
            files = [step for step in steps((DOCS / f"{page}.md").read_text()) if isinstance(step, File)]
            self.assertEqual({each.name for each in files}, {*names})
            for each in files:
                text = (CHECKOUT / "examples" / names[each.name]).read_text()
                self.assertTrue(text.endswith(each.text), each.name)

    def test_extras(self) -> None:
        """Each page installs txrdma, with extras that exist."""
        project = (CHECKOUT / "pyproject.toml").read_text()
        extras = {
            *re.findall(r"^([\w-]+) = \[", project.partition("optional-dependencies]")[2], re.MULTILINE)
        }
        pages = sorted(DOCS.glob("start-*.md"))
        self.assertEqual(len(pages), 4)
        for page in pages:
            [named] = re.findall(r"^\$ pip install 'txrdma\[([\w,-]+)\]'$", page.read_text(), re.MULTILINE)
            self.assertLessEqual({*named.split(",")}, extras)
