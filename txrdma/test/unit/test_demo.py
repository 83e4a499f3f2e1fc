"""
The checks and files of the demonstration.
"""

from __future__ import annotations

import sys
from dataclasses import replace
from io import StringIO
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

import txrdma
from txrdma.demo import files
from txrdma.demo.__main__ import DemoOptions
from txrdma.demo.processes import Statuses
from txrdma.demo.report import DemoRun


def connection(**changes: object) -> Statuses:
    """Return the status of an SMC-R connection."""
    reported: Statuses = {
        "mode": "SMC-R",
        "fallbackReason": None,
        "device": "soft",
        "route": "shared-memory",
        "linkGroup": "1",
        "bytesReceived": 100,
        "writes": 1,
        "messagesSent": 2,
    }
    return {**reported, **changes}


GOOD = DemoRun(
    kind="smc",
    expected={"a": "00"},
    hashes={"a": "00"},
    bytes=100,
    seconds=1.0,
    largeBytes=1,
    largeSeconds=1.0,
    cpuSeconds=1.0,
    latencies=[0.1, 0.2],
    near=[connection()],
    far=[connection(bytesReceived=10)],
)


class OptionTests(SynchronousTestCase):
    def test_usage(self) -> None:
        """The help begins with the command line."""
        self.assertTrue(str(DemoOptions()).startswith("Usage: python -m txrdma.demo [options]\n"))

    def test_version(self) -> None:
        """The version is that of txrdma, not of Twisted."""
        printed = StringIO()
        self.patch(sys, "stdout", printed)
        self.assertRaises(SystemExit, DemoOptions().parseOptions, ["--version"])
        self.assertTrue(printed.getvalue().startswith(f"txrdma {txrdma.__version__} ("))


class ComplaintTests(SynchronousTestCase):
    """Complaints about a failed demonstration."""

    def test_good(self) -> None:
        """A good run has no complaints."""
        self.assertEqual(GOOD.complaints(), [])

    def test_bad(self) -> None:
        """
        A file that arrived changed, or not at all, over TCP, too; a connection that fell back at either end;
        a process without an SMC-R connection; and data that used another route: each is one complaint.
        """
        plain = connection(mode="TCP", fallbackReason="NOSMCDEV")
        changes: list[tuple[dict[str, Any], str]] = [
            ({"hashes": {"a": "01"}}, "another SHA-256"),
            ({"hashes": {}}, "another SHA-256"),
            ({"hashes": {}, "kind": "tcp"}, "another SHA-256"),
            ({"near": [connection(), plain]}, "NOSMCDEV"),
            ({"far": [plain]}, "NOSMCDEV"),
            ({"near": []}, "no connection"),
            ({"far": []}, "no connection"),
            ({"bytes": 101}, "not all bytes"),
        ]
        for changed, words in changes:
            [complaint] = replace(GOOD, **changed).complaints()
            self.assertIn(words, complaint)


class FilesTests(SynchronousTestCase):
    def test_files(self) -> None:
        """The folder has sources, one large file, and a hash for each."""
        target = Path(self.mktemp())
        target.mkdir()
        hashes = files.make(target, 3_000_000, 5)
        self.assertEqual(len(hashes), 6)
        self.assertEqual((target / files.LARGE).stat().st_size, 3_000_000)
        for name in hashes:
            self.assertTrue((target / name).is_file())
