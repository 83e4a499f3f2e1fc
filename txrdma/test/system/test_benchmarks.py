"""
The benchmarks of verbs and of management datagrams run, say what they have measured, and draw it.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SkipTest, SynchronousTestCase

from benchmarks.results import (
    load,
    Row,
)
from txrdma.mad.layouts.attributes import allAttributes
from txrdma.test.support.benchmarks import CHECKOUT


class VerbsTests(SynchronousTestCase):
    """C{python -m benchmarks.verbs}, from a checkout."""

    def setUp(self) -> None:
        if not (CHECKOUT / "benchmarks").is_dir():
            raise SkipTest("the benchmarks are in a checkout only")
        if len(os.sched_getaffinity(0)) < 2:
            raise SkipTest("two processes need two cores")

    def run_(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        command = [sys.executable, "-m", "benchmarks.verbs", *arguments]
        return subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=110)

    def test_pairs(self) -> None:
        """Two pairs of devices are measured in turns; the table and the JSON have both."""
        name = os.path.abspath(self.mktemp())
        done = self.run_(
            *("--device=soft", "--device=soft", "--name=memory"),
            *("--device=soft:route=rocev2", "--device=soft:route=rocev2"),
            *("--rounds=1", "--iterations=20", "--sizes=64", "--transfers=send", f"--json={name}"),
        )
        self.assertEqual(done.returncode, 0, done.stderr)
        first, _, row = done.stdout.splitlines()
        self.assertIn("memory: MB/s | soft:route=rocev2 - soft:route=rocev2: MB/s", first)
        self.assertEqual(len(row.split("|")), 12)
        told = json.loads(Path(name).read_text())
        self.assertEqual([pair["route"] for pair in told["pairs"]], ["shared-memory", "rocev2"])
        for pair in told["pairs"]:
            kinds = {(test, kind, size) for test, kind, size, _ in pair["values"]}
            self.assertEqual(kinds, {("send", what, 64) for what in ("latency", "bandwidth", "cpu")})
            for *_, rounds in pair["values"]:
                self.assertEqual(len(rounds), 1)
                self.assertGreater(rounds[0][0], 0)

    def test_oneFails(self) -> None:
        """A pair that can't be measured is named with its failure, and the others are measured."""
        done = self.run_(
            *("--device=soft:192.0.2.1", "--device=soft:192.0.2.1", "--name=nowhere"),
            *("--device=soft", "--device=soft"),
            *("--rounds=1", "--iterations=20", "--sizes=64", "--transfers=write"),
        )
        self.assertEqual(done.returncode, 1)
        self.assertIn("nowhere: a process ended with", done.stdout)
        self.assertIn("| write | 64 |", done.stdout)

    def test_wrong(self) -> None:
        """Devices come in pairs."""
        for arguments in ((), ("--device=soft",)):
            done = self.run_(*arguments)
            self.assertEqual((done.returncode, done.stdout), (2, ""))
            self.assertIn("two --device", done.stderr)


class ManagementTests(SynchronousTestCase):
    """What C{make bench} measures of management datagrams, where ibsim is not needed."""

    def setUp(self) -> None:
        if not (CHECKOUT / "benchmarks").is_dir():
            raise SkipTest("the benchmarks are in a checkout only")

    def measured(self, scenario: str, **orders: object) -> dict[str, Any]:
        """One process."""
        said = json.dumps({"core": min(os.sched_getaffinity(0)), **orders})
        command = [sys.executable, "-m", "benchmarks.madends", scenario, said]
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=110)
        self.assertEqual(done.returncode, 0, done.stderr)
        told: dict[str, Any] = json.loads(done.stdout)
        return told

    def test_rate(self) -> None:
        """Calls a second, and what each costs, by a port that has the answers ready."""
        told = self.measured("rate", outstanding=16, seconds=0.2)
        self.assertGreater(told["value"], 100)
        self.assertGreater(told["cpu"], 1e-7)

    def test_table(self) -> None:
        """A table comes in segments of 200 bytes."""
        told = self.measured("table", records=1_000)
        self.assertEqual(told["segments"], 1_000 * 64 // 200)
        self.assertGreater(told["value"], 0)

    def test_sweep(self) -> None:
        """In simulated time the limit is near, and is not passed."""
        told = self.measured("sweep", hosts=36, latency=0.001, outstanding=16, real=False)
        self.assertAlmostEqual(told["limit"], told["mads"] / 16_000)
        self.assertGreaterEqual(told["value"], told["limit"])
        self.assertLess(told["value"], told["limit"] * 2)

    def test_codecs(self) -> None:
        """Every structure that is registered has its times."""
        found = self.measured("codecs", seconds=1e-5)["value"]
        self.assertEqual({kind.__name__ for kind in allAttributes().values()} - found.keys(), set())
        self.assertIn("SMPFormatDirected", found)
        for times in found.values():
            self.assertGreater(times["decode"], 0)
            self.assertGreater(times["encode"], 0)

    def test_names(self) -> None:
        """Parts can be chosen by their names; a part that is none is told."""
        command = [sys.executable, "-m", "benchmarks", "--list", "--only"]
        for name, status in (("mad-rate", 0), ("mad-nothing", 2)):
            done = subprocess.run([*command, name], cwd=CHECKOUT, capture_output=True, text=True, timeout=110)
            self.assertEqual(done.returncode, status, done.stderr)
            self.assertIn("mad-rate", done.stdout or done.stderr)


class ShortCase(SynchronousTestCase):
    """Runs cases of C{python -m benchmarks}, in short."""

    if not (CHECKOUT / "benchmarks").is_dir():
        skip = "the benchmarks are in a checkout only"

    def setUp(self) -> None:
        if len(os.sched_getaffinity(0)) < 2:
            raise SkipTest("two processes need two cores")

    def measured(self, *names: str) -> dict[str, Row]:
        """The rows of these cases, and what is printed of them."""
        name = os.path.abspath(self.mktemp())
        command = [sys.executable, "-m", "benchmarks", "--quick", "--rounds=1", f"--json={name}"]
        command += [f"--only={each}" for each in names]
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=110)
        self.assertEqual(done.returncode, 0, done.stdout + done.stderr)
        [told] = load(Path(name))["sections"]
        for row in told["rows"]:
            self.assertIn(f"{row['name']}: ", done.stdout)
        return {row["name"]: row for row in told["rows"]}


class CaseTests(ShortCase):
    """Cases that take no longer than their processes need to start."""

    slowBecause = "each transport is measured by two processes"

    def test_fails(self) -> None:
        """A transport that can't be measured fails what is about it, and no other; its reason is told."""
        code = (
            "import json\n"
            "from dataclasses import replace\n"
            "from benchmarks.cases import SMC, TCP\n"
            "from benchmarks.measuring import Case, run\n"
            "what = ('throughput', 'MB/s')\n"
            "nowhere = {**TCP, 'connect': 'tcp:127.0.0.1:1'}\n"
            "orders = {'bytes': 1 << 20, 'write': 1 << 16}\n"
            "also = (Case('b', '', *what, nowhere, TCP, orders), Case('c', '', *what, TCP, None, orders))\n"
            "case = Case('a', '', *what, SMC, TCP, orders, also=also)\n"
            "print(json.dumps([outcome.asDict() for outcome in run(case, 1)]))\n"
        )
        command = [sys.executable, "-c", code]
        done = subprocess.run(command, cwd=CHECKOUT, capture_output=True, text=True, timeout=110)
        good, nowhere, other = json.loads(done.stdout)
        self.assertEqual((good["failure"], len(good["ours"]), len(good["theirs"])), ("", 1, 1))
        self.assertEqual(nowhere["failure"], "a process ended with 1")
        self.assertEqual(other["failure"], "this was TCP, not SMC-R")

    def test_firstBytes(self) -> None:
        """Page faults of a first message are counted, and are few."""
        rows = self.measured("first-bytes")
        self.assertLessEqual(rows["first-bytes"]["ours"][0], rows["first-bytes-most"]["ours"][0])
        self.assertLess(rows["first-bytes-most"]["ours"][0], 256)

    def test_crowd(self) -> None:
        """Many connections are served beside TCP."""
        rows = self.measured("crowd")
        self.assertGreater(min(*rows["crowd"]["ours"], *rows["crowd"]["theirs"]), 0)
