"""
Long runs of the monitor: days of random faults in simulated time, churn, and many kills.

C{TXRDMA_DAYS} in the environment is the number of simulated days, C{TXRDMA_KILLS} that of kills; without them
there are few.
"""

from __future__ import annotations

import gc
import json
import math
import os
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from random import Random
from typing import Final

from twisted.trial.unittest import SynchronousTestCase

import txrdma
from txrdma.iba.types import GUID
from txrdma.monitor.diagnosis import journal, topologywatch
from txrdma.monitor.diagnosis.tallies import TallyLimit
from txrdma.monitor.reading.poller import FabricPoller
from txrdma.monitor.reading.settings import PollerSettings
from txrdma.monitor.series import historystore
from txrdma.monitor.series.exposition import exposed, guidText, labels
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.monitor.series.rows import rowOf, TRAFFIC
from txrdma.monitor.web.metrics import Metrics
from txrdma.monitor.web.watch import Watch
from txrdma.sim.nets.fattree import fatTree
from txrdma.sim.nets.netfile import Net
from txrdma.test.support.monitor.killing import HOSTS
from txrdma.test.unit.monitor.test_poller import PollerTestCase

DAYS: Final = float(os.environ.get("TXRDMA_DAYS", "0.25"))
KILLS: Final = int(os.environ.get("TXRDMA_KILLS", "40"))
SEED: Final = 14

SHORT_LIFE: Final = 0.8
"""Longest lifetime in seconds of a process that is killed, on an idle machine."""

ERRORS: Final = {
    "symbol-errors": "symbolErrorCounter",
    "receive-errors": "portRcvErrors",
    "discards": "portXmitDiscards",
}
"""Counters that grow by one in a second, by the findings that they cause."""

PATIENCE: Final = 60.0
"""Seconds within which a monitor announces a finding on any machine."""


class DayTests(PollerTestCase):
    """Days of random faults in a fat tree that loses datagrams."""

    at = "h00000"
    settings = PollerSettings(intervalSeconds=30.0)
    options = {"latencySeconds": 0.0001, "loss": 0.0003, "seed": SEED}
    limits = tuple(TallyLimit(counter, 10, 600.0) for counter in ERRORS.values())

    def net(self) -> Net:
        return fatTree(32)

    def test_randomFaults(self) -> None:
        """Each fault of the simulation's record is raised and cleared once, and memory remains constant."""
        random = Random(SEED)
        self.started(120.0)
        hosts = sorted(name for name, node in self.fabric.nodes.items() if not node.isSwitch)[1:-1]
        rested = dict.fromkeys(hosts, 0.0)
        record: Counter[tuple[str, str]] = Counter()
        ends: list[tuple[float, str, str]] = []
        objects: list[int] = []
        end = self.clock.seconds() + DAYS * 86400.0
        while self.clock.seconds() < end or ends:
            now = self.clock.seconds()
            for one in [one for one in ends if one[0] <= now]:
                ends.remove(one)
                self.mend(one[1], one[2])
                rested[one[2]] = now + 3 * 3600.0  # what comes again soon is the same finding
            idle = [name for name in hosts if rested[name] <= now]
            if now < end and idle and len(ends) < 3 and random.random() < 0.3:
                name, kind = random.choice(idle), random.choice(("node-gone", "node-silent", *ERRORS))
                self.spoil(kind, name)
                rested[name] = float("inf")
                record[kind, self.fabric.node(name).description] += 1
                ends.append((now + random.uniform(150.0, 900.0), kind, name))
            self.pump(random.uniform(30.0, 300.0))
            if not ends and now < end:
                gc.collect()
                objects.append(len(gc.get_objects()))
        self.pump(2 * 3600.0)  # until the last tally is empty
        reported = [
            (what, (kind, where.partition(" (")[0]))
            for _now, what, kind, where in self.changes
            if kind != "unreachable"  # of the switch port of a silent host, which is its cause
        ]
        raised = Counter(which for what, which in reported if what == "raised")
        cleared = Counter(which for what, which in reported if what == "cleared")
        for found in (raised, cleared):  # a whole record would hide its differences
            self.assertEqual((found - record, record - found), (Counter(), Counter()), f"seed {SEED}")
        self.assertGreater(sum(record.values()), 4 * DAYS)
        self.assertEqual(self.poller.findings.log.open, {})
        half = len(objects) // 2
        earlier, later = min(objects[1 : half + 1]), min(objects[half:])
        self.assertLess(later, 1.05 * earlier + 50 * sum(record.values()))  # what was found stays known

    def spoil(self, kind: str, name: str) -> None:
        if kind == "node-gone":
            self.fabric.cut(name)
        elif kind == "node-silent":
            self.fabric.silence(name)
        else:
            self.fabric.growCounters(name, 1, **{ERRORS[kind]: 1.0})

    def mend(self, kind: str, name: str) -> None:
        if kind == "node-gone":
            self.fabric.heal(name)
        elif kind == "node-silent":
            self.fabric.revive(name)
        else:
            self.fabric.growCounters(name, 1, **{ERRORS[kind]: 0.0})


class ChurnTests(PollerTestCase):
    """
    Misbehaving nodes for days: names and GUIDs that change each minute.

    Data about such nodes is bounded and does not displace that of other nodes.
    """

    at = "h00000"
    settings = PollerSettings(intervalSeconds=30.0, sweepSeconds=60.0)
    changing = ("h00004", "h00005", "h00006", "h00007", "h00008", "h00009")
    mostGone = 300
    mostPorts = 400

    def net(self) -> Net:
        return fatTree(16)

    def made(self) -> FabricPoller:
        self.patch(journal, "MOST_CHANGES", 1000)  # reached in an hour
        self.patch(historystore, "MOST_PORTS", self.mostPorts)
        self.patch(topologywatch, "MOST_GONE", self.mostGone)
        self.store = HistoryStore(self.mktemp())
        self.addCleanup(self.store.close)
        poller = FabricPoller(self.clock, self.agent, self.settings, onRound=self.stored)
        self.metrics = Metrics(Watch(poller, None, self.clock.seconds))
        return poller

    def stored(self, since: float) -> None:
        now = self.clock.seconds()
        rows = (rowOf(TRAFFIC, portKey, meter, now) for portKey, meter in self.poller.meters.items())
        self.store.write([row for row in rows if row is not None], int(now))

    def scraped(self) -> list[str]:
        lines = "".join(exposed(self.metrics.families())).splitlines()
        return [line.rpartition(" ")[0] for line in lines if not line.startswith("#")]

    def test_churn(self) -> None:
        """Series, names, findings, history and memory are bounded; permanently lost nodes remain known."""
        random = Random(SEED)
        self.fabric.correct()
        self.started(120.0)
        usual = len(self.scraped())
        renamed = labels(guid=guidText(self.fabric.node("h00003").guid))[1:-1]
        names: set[str] = set()
        objects: list[int] = []
        self.fabric.cut("h00002")
        minutes = int(DAYS * 1440)
        guids = 0
        for minute in range(minutes):
            self.fabric.node("h00003").description = f"{random.getrandbits(256):064x}"
            for name in self.changing:
                guids += 1
                self.fabric.rename(name, GUID(b"evil" + guids.to_bytes(4, "big")))
            self.pump(60.0)
            scraped = self.scraped()
            series = [one for one in scraped if not one.startswith("txrdma_monitor_finding{")]
            self.assertLessEqual(len(scraped) - len(series), self.mostGone + 50)
            self.assertLessEqual(len(series), usual, f"seed {SEED}, minute {minute}")
            names |= {one for one in series if renamed in one and one.startswith("infiniband_node_info")}
            if minute % 20 == 19:
                gc.collect()
                objects.append(len(gc.get_objects()))
        self.assertLessEqual(len(names), 2 + 11 * math.ceil(DAYS))
        self.assertLessEqual(len(self.poller.topologyWatch.missingNodes), self.mostGone)
        self.assertLessEqual(len(self.store._ports), self.mostPorts)
        self.assertLess(len(self.poller.findings.log.open), self.mostGone + 50)
        self.assertIn(self.fabric.node("h00002").guid, self.poller.topologyWatch.missingNodes)
        self.assertIn(("node-gone", self.fabric.node("h00002").guid), self.found())
        points = self.store.series(self.portKey("leaf0000", 1), "portXmitPkts", 0, 1 << 40, "readings")
        self.assertGreater(len(points), min(minutes, 350))  # two a minute, for six hours
        half = len(objects) // 2
        self.assertLess(min(objects[half:]), 1.02 * min(objects[half // 2 : half]))

    def found(self) -> set[tuple[str, GUID | None]]:
        return {(one.finding.kind, one.finding.guid) for one in self.poller.findings.log.open.values()}


class KillTests(SynchronousTestCase):
    """Complete monitors that are killed at random times."""

    def setUp(self) -> None:
        self.path, self.log = self.mktemp(), self.mktemp()
        self.lives: list[list[str]] = []  # what each process has sent
        environment = {**os.environ, "PYTHONPATH": str(Path(txrdma.__file__).parent.parent)}
        module = "txrdma.test.support.monitor.killing"
        command = [sys.executable, "-m", module, self.path, self.log, str(KILLS)]
        pipe = subprocess.PIPE
        self.program = subprocess.Popen(command, stdin=pipe, stdout=pipe, env=environment, text=True)
        self.addCleanup(self.program.wait)
        self.addCleanup(self.program.communicate)

    def begin(self, number: int, longest: float) -> int:
        """Start a process and return its ID."""
        assert self.program.stdin is not None and self.program.stdout is not None
        self.program.stdin.write(f"{number} {longest}\n")
        self.program.stdin.flush()
        return int(self.program.stdout.readline())

    def kill(self, pid: int) -> None:
        """End a process, wait for its end, and record what it has sent."""
        assert self.program.stdout is not None
        os.kill(pid, signal.SIGKILL)
        self.assertEqual(self.program.stdout.readline(), "ended\n")
        lines = self.written().splitlines()[sum(map(len, self.lives)) :]
        if lines:
            self.lives.append([json.loads(line)["id"] for line in lines])

    def longestLife(self) -> float:
        """
        Measure the time that a monitor needs to announce a finding on this machine, and return 1.5 times
        that.
        """
        begun = time.monotonic()
        pid = self.begin(0, SHORT_LIFE)  # before it no host is cut off, and while it runs the first one is
        while "node-gone" not in self.written() and time.monotonic() < begun + PATIENCE:
            time.sleep(0.01)
        self.kill(pid)
        self.assertIn("node-gone", self.written())
        return max(SHORT_LIFE, 1.5 * (time.monotonic() - begun))

    def written(self) -> str:
        """Return the lines of announcements."""
        path = Path(self.log)
        return path.read_text() if path.exists() else ""

    def announced(self) -> Counter[tuple[str, str]]:
        """Return announcements of lost and returned hosts from the file, without repetitions."""
        alerts = {one["id"]: one for one in map(json.loads, self.written().splitlines())}
        return Counter((one["status"], one["where"]) for one in alerts.values() if one["kind"] == "node-gone")

    def changes(self, store: HistoryStore) -> Counter[tuple[str, str]]:
        """Return findings about such hosts from the stored list of changes."""
        return Counter((one.kind, one.where) for one in store.changes() if one.text.startswith("node-gone: "))

    def test_killed(self) -> None:
        """
        After each kill the history is intact, and all processes together announce nothing twice, except what
        the previous one has sent just before it was killed, and has not stored as sent.
        """
        random, longest = Random(SEED), self.longestLife()
        for number in range(1, KILLS):
            pid = self.begin(number, longest)
            time.sleep(random.uniform(0.0, longest))  # the moment of the kill
            self.kill(pid)
            last = self.lives[-1]
            stored = {one for life in self.lives[:-2] for one in life}.difference(*self.lives[-2:-1])
            self.assertEqual(stored.intersection(last), set(), f"seed {SEED}, kill {number}")
            self.assertEqual(len(set(last)), len(last), f"seed {SEED}, kill {number}")
            store = HistoryStore(self.path)
            with store._transaction():
                self.assertEqual(store._database.execute("PRAGMA quick_check"), [("ok",)])
            twice = {
                one for found in (self.announced(), self.changes(store)) for one in found if found[one] > 1
            }
            store.close()
            self.assertEqual(twice, set(), f"seed {SEED}, kill {number}")
        output = Counter(status for status, _where in self.announced())
        self.assertGreater(output["firing"], HOSTS // 2)
        self.assertGreater(output["resolved"], HOSTS // 4)
