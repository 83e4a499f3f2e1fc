"""
Benchmarks of the first contact, which measure five transports in turns.
"""

from __future__ import annotations

import os
from pathlib import Path

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from benchmarks.results import load, Row
from txrdma.test.support import CHECKOUT
from txrdma.test.system.test_benchmarks import run


class ContactTests(SynchronousTestCase):
    """First connections and those that follow, by version and by number of links."""

    if not (CHECKOUT / "benchmarks").is_dir():
        skip = "the benchmarks are in a checkout only"

    def setUp(self) -> None:
        if len(os.sched_getaffinity(0)) < 2:
            raise SkipTest("two processes need two cores")

    def measured(self, name: str) -> dict[str, Row]:
        """Measure a case and what belongs to it; return the rows."""
        file = os.path.abspath(self.mktemp())
        done = run("benchmarks", "--quick", "--rounds=1", f"--json={file}", f"--only={name}")
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        [reported] = load(Path(file))["sections"]
        return {row["name"]: row for row in reported["rows"]}

    def test_contacts(self) -> None:
        """Versions and numbers of links are measured in turns with TCP, which they share."""
        rows = self.measured("first-rocev2-v1-1")
        kinds = {"first", "later", "contacts"}
        names = {f"{kind}-rocev2-{what}" for kind in kinds for what in ("v1-1", "v2-1", "v2-2")}
        self.assertEqual(rows.keys(), {*names, "links-rocev2-v2-2"})
        for name in names:
            version, links = name[-3], name[-1]
            self.assertEqual(rows[name]["mode"], f"SMC-R rocev2, version {version}, links: {links}")
            self.assertEqual(rows[name]["reference"], rows[f"{name[:-4]}v1-1"]["reference"])
            self.assertGreater(min(*rows[name]["tested"], *rows[name]["reference"]), 0)
        complete, first = (rows[f"{kind}-rocev2-v2-2"] for kind in ("links", "first"))
        self.assertEqual(complete["reference"], [])
        self.assertGreater(complete["tested"][0], first["tested"][0])

    def test_crowd(self) -> None:
        """Many connections are served beside TCP."""
        rows = self.measured("crowd")
        self.assertGreater(min(*rows["crowd"]["tested"], *rows["crowd"]["reference"]), 0)
