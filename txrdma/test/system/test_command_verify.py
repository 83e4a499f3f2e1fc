"""C{txrdma verify} on the software device: reports, Ctrl-C, two hosts."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.test.support.processes import started

SECONDS = 150


class VerifyTests(SynchronousTestCase):
    """The command in a separate process."""

    slowBecause = "each part starts a process, which imports most of the package"

    def setUp(self) -> None:
        self.folder = Path(self.mktemp())
        self.folder.mkdir()

    def begin(self, *words: str) -> subprocess.Popen[str]:
        """Start the command, as a shell does in the foreground."""
        options: dict[str, Any] = {"cwd": self.folder, "stderr": subprocess.PIPE}
        options["env"] = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
        options["preexec_fn"] = lambda: signal.signal(signal.SIGINT, signal.default_int_handler)
        return started(self, "-m", "txrdma", "verify", *words, **options)

    def verified(self, *words: str) -> dict[str, Any]:
        """Run the command, and return its JSON."""
        process = self.begin("--json", *words)
        out, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 0, out + err)
        report: dict[str, Any] = json.loads(out)
        return report

    def test_report(self) -> None:
        """Tests run in another process, and a report is written without names and addresses."""
        report = self.verified("--quick", "--parts", "rdma")
        passed = report["parts"]["rdma"]["passed"]
        self.assertEqual(report["parts"], {"rdma": {"passed": passed, "failed": 0, "skipped": 0}})
        self.assertGreater(passed, 20)
        self.assertEqual(json.loads((self.folder / "txrdma-verify.json").read_text()), report)
        text = (self.folder / "txrdma-verify.md").read_text()
        self.assertIn(f"| rdma | {passed} | 0 | 0 |", text)
        self.assertNotIn(os.uname().nodename, text)

    def test_ports(self) -> None:
        """The other end is another device of this host, or another port of the same device."""
        for part, *words in (
            ("rdma", "--device", "soft:127.0.0.1", "--to", "soft:127.0.0.2"),
            ("verbs", "--device", "soft:127.0.0.1,127.0.0.2", "--to-port", "2"),
        ):
            report = self.verified("--quick", "--parts", part, *words)
            self.assertEqual(len(report["devices"]), 2)
            self.assertEqual((report["parts"][part]["failed"], report["failures"]), (0, []))
            self.assertGreater(report["parts"][part]["passed"], 20)
            self.assertNotIn("127.0.0.2", (self.folder / "txrdma-verify.md").read_text())

    def test_peers(self) -> None:
        """Two processes, as on two hosts, exchange data over every transport, also over IPv6, and measure."""
        server = self.begin("--serve", "--tcp-port", "0", "--device", "soft:127.0.0.1")
        assert server.stderr is not None
        port = server.stderr.readline().split()[-1]
        report = self.verified(
            *("--quick", "--output", "-", "--device", "soft:127.0.0.1"),
            *("--peer", "::1", "--tcp-port", port),
        )
        self.assertEqual(report["parts"]["peer"]["failed"], 0)
        measured = {(row["over"], row["unit"]) for row in report["measurements"]}
        for over in ("tcp:", "smc:", "rsocket:", "btl:"):
            self.assertLessEqual({(over, "us"), (over, "MB/s")}, measured)
        # Not all of them: on a busy host no message may arrive in the time of one measurement.
        self.assertTrue({over for over, _ in measured} & {"send", "write", "read", "ud"})
        self.assertEqual(list(self.folder.iterdir()), [])
        server.send_signal(signal.SIGINT)
        self.assertEqual(server.wait(SECONDS), 0)

    def test_interrupted(self) -> None:
        """Ctrl-C ends the worker and prints partial results; the exit status is 130."""
        process = self.begin("--json", "--parts", "verbs")
        children = Path(f"/proc/{process.pid}/task/{process.pid}/children")
        until = time.monotonic() + SECONDS
        while not (found := children.read_text().split()) and time.monotonic() < until:
            time.sleep(0.01)
        process.send_signal(signal.SIGINT)
        out, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 130, out + err)
        self.assertTrue(json.loads(out)["isInterrupted"])
        self.assertFalse(Path(f"/proc/{found[0]}").exists())

    def test_noDevice(self) -> None:
        """A device that cannot be opened is an error."""
        process = self.begin("--device", "soft:192.0.2.77")
        _out, err = process.communicate(timeout=SECONDS)
        self.assertEqual(process.returncode, 1)
        self.assertIn("192.0.2.77", err)
        self.assertNotIn("Traceback", err)
