"""
The checks and files of the demonstration.
"""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

from twisted.trial.unittest import SynchronousTestCase

from txrdma.demo import files
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


class ComplaintTests(SynchronousTestCase):
    """Complaints about a failed demonstration."""

    def complaint(self, **changes: object) -> str:
        # the keys are fields of Run, the values of their types
        [only] = replace(GOOD, **changes).complaints()  # type: ignore[arg-type]
        return only

    def test_good(self) -> None:
        """A good run has no complaints."""
        self.assertEqual(GOOD.complaints(), [])

    def test_hashes(self) -> None:
        """A file that arrived changed, or not at all, is a complaint; over TCP, too."""
        self.assertIn("another SHA-256", self.complaint(hashes={"a": "01"}))
        self.assertIn("another SHA-256", self.complaint(hashes={}))
        self.assertIn("another SHA-256", self.complaint(hashes={}, kind="tcp"))

    def test_fallback(self) -> None:
        """A connection that fell back at either end is a complaint with its reason."""
        plain = connection(mode="TCP", fallbackReason="NOSMCDEV")
        self.assertIn("NOSMCDEV", self.complaint(near=[connection(), plain]))
        self.assertIn("NOSMCDEV", self.complaint(far=[plain]))

    def test_nothing(self) -> None:
        """A process without an SMC-R connection is a complaint."""
        self.assertIn("no connection", self.complaint(near=[]))
        self.assertIn("no connection", self.complaint(far=[]))

    def test_elsewhere(self) -> None:
        """Data that used another route is a complaint."""
        self.assertIn("not all bytes", self.complaint(bytes=101))


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
