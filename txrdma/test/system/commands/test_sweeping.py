"""Fabric commands that are interrupted."""

from __future__ import annotations

import io
import signal
import subprocess
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from twisted.internet.defer import CancelledError

from txrdma.commands.common.options import INTERRUPTED
from txrdma.fabric.errorcounters import CounterSurvey
from txrdma.test.support.mad.commanding import NetFabricTestCase
from txrdma.test.support.processes import started


class InterruptedTests(NetFabricTestCase):
    slowBecause = "starts a process and interrupts it"

    def interrupted(self, name: str, *arguments: str) -> tuple[str, str, object]:
        self.fabric.wire.latencySeconds = 0.01
        out, errors = io.StringIO(), io.StringIO()
        ends: list[Any] = []
        with redirect_stdout(out), redirect_stderr(errors):
            done = self.begin(name, *arguments)
            done.addBoth(ends.append)
            self.pump(0.065)
            self.assertEqual(ends, [])
            done.cancel()
        self.assertTrue(ends)
        error = ends[0].value
        return out.getvalue(), errors.getvalue(), getattr(error, "code", type(error).__name__)

    def test_found(self) -> None:
        for name, words in (("discover", '"left"'), ("nodes", "left"), ("links", "left")):
            out, errors, status = self.interrupted(name)
            self.assertIn(words, out)
            self.assertNotIn('"c"', out)
            self.assertIn("interrupted at the sweep: 4 nodes were found before", errors)
            self.assertEqual(status, INTERRUPTED)

    def test_nothing(self) -> None:
        before = self.mktemp()
        self.printed("discover", "--save", before)
        for name, *arguments in (("check",), ("errors",), ("diff", before)):
            out, errors, status = self.interrupted(name, *arguments)
            self.assertEqual(out, "")
            self.assertIn("interrupted", errors)
            self.assertIn("4 nodes were found before", errors)
            self.assertIn(status, (INTERRUPTED, "CancelledError"))

    def test_counters(self) -> None:
        begun: list[object] = []
        plain = CounterSurvey.run

        def run(survey: CounterSurvey, nodes: Any) -> Any:
            begun.append(survey)
            return plain(survey, nodes)

        self.patch(CounterSurvey, "run", run)
        self.fabric.wire.latencySeconds = 0.01
        for name in ("check", "errors"):
            errors = io.StringIO()
            ends: list[Any] = []
            with redirect_stderr(errors):
                done = self.begin(name)
                done.addBoth(ends.append)
                while not begun:
                    self.pump(0.01)
                self.pump(0.015)
                done.cancel()
            begun.clear()
            self.assertTrue(ends[0].check(CancelledError))
            self.assertRegex(errors.getvalue(), r"interrupted: the counters of \d nodes were read before")

    def test_notSaved(self) -> None:
        path = self.mktemp()
        self.interrupted("discover", "--save", path)
        self.assertFalse(Path(path).exists())

    def test_process(self) -> None:
        words = ["-m", "txrdma", "discover", "-d", "sim:fattree:128:latency=0.2", "--debug"]
        process = started(self, *words, stderr=subprocess.PIPE)
        assert process.stderr is not None
        while "<- SUBN_DIRECTED GET_RESP NodeInfo" not in process.stderr.readline():
            pass
        process.send_signal(signal.SIGINT)
        out, errors = process.communicate(timeout=30)
        self.assertEqual(process.returncode, INTERRUPTED)
        self.assertIn("vendid=", out)
        self.assertIn("interrupted at the sweep", errors)
        self.assertNotIn("Traceback", errors)
