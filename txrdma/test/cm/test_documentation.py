"""
The page on the communication manager: its program runs, its pictures are drawn, and what it names is there.
"""

from __future__ import annotations

import re
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from random import Random
from runpy import run_path
from typing import cast
from unittest import SkipTest

from twisted.trial.unittest import SynchronousTestCase

import txrdma
from txrdma.cm.manager import CMConnection, ConnectionManager

CHECKOUT = Path(txrdma.__file__).parent.parent


class PageTests(SynchronousTestCase):
    """docs/cm.md."""

    def setUp(self) -> None:
        path = CHECKOUT / "docs" / "cm.md"
        if not path.exists():
            raise SkipTest("not a checkout")
        self.page = path.read_text()

    def test_program(self) -> None:
        """The program makes a connection over loopback, and ends."""
        (program,) = re.findall(r"^```python\n(.*?)^```$", self.page, re.MULTILINE | re.DOTALL)
        random = Random()
        for address in ("127.0.0.2", "127.0.0.3"):
            other = ".".join(str(random.randrange(2, 250)) for _ in range(3))
            program = program.replace(address, f"127.{other}")
        done = subprocess.run(
            [sys.executable, "-c", program], cwd=CHECKOUT, capture_output=True, text=True, timeout=60
        )
        self.assertEqual((done.returncode, done.stderr), (0, ""))
        self.assertRegex(done.stdout, r"\Awelcome\n<CMConnection 0x[0-9a-f]+ ESTABLISHED>\n\Z")

    def test_names(self) -> None:
        """Requests of the table are methods."""
        for owner, names in re.findall(r"`(manager|connection)\.([a-zA-Z]+)", self.page):
            kind = ConnectionManager if owner == "manager" else CMConnection
            self.assertTrue(hasattr(kind, names), names)

    def test_pictures(self) -> None:
        """Each picture of the page can be drawn, and shows where messages lead."""
        try:
            module = run_path(str(CHECKOUT / "docs" / "_extensions" / "fromcode.py"))
        except ImportError as error:
            raise SkipTest(str(error)) from None
        graph = cast("Callable[[str], str]", module["connectionGraph"])
        parts = re.findall(r"\{connection-machine\} (\w+)", self.page)
        self.assertEqual(set(parts), set(module["_CM"]))
        self.assertIn('"REQ_SENT" -> "REP_RCVD" [label="replied"];', graph("active"))
        self.assertIn('"REP_SENT" -> "ESTABLISHED" [label="confirmed"];', graph("passive"))
        self.assertNotIn("REP_SENT", graph("active").replace("MRA_REP_SENT", ""))
