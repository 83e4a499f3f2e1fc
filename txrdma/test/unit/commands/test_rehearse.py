"""Rehearsals of faults, and evaluations of histories: C{txrdma rehearse}."""

from __future__ import annotations

import io
import json
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from time import time
from typing import Any, cast
from unittest.mock import patch

from twisted.internet.defer import CancelledError
from twisted.python.failure import Failure
from twisted.python.usage import UsageError

from txrdma.command import run, TxrdmaOptions
from txrdma.commands.common import progress
from txrdma.commands.common.options import IReactor
from txrdma.commands.common.rehearsal import Rehearsal, RehearsalPlan
from txrdma.commands.common.sweeping import recorded
from txrdma.mad.layouts.smp import LinearForwardingTable
from txrdma.monitor.config import parseConfig
from txrdma.monitor.diagnosis.journal import FabricEvent
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.monitor.series.rows import COUNTERS, Row
from txrdma.sim.fabric.agents.sma import SubnetManagementAgents
from txrdma.sim.twin import Twin
from txrdma.test.support.mad.commanding import NetFabricTestCase
from txrdma.test.unit.fabric.test_slurmjobs import squeue

CONFIG = """
[poll]
interval = 30
survey = 0
notices = false

[alerts]
delay = 60
"""

FAULTS = """
snapshot = "site"
config = "config.toml"
warm-up = "2m"
duration = "16m"

[[fault]]
kind = "flap"
at = "1m"
node = "left"
port = 3
expect = ["flapping"]

[[fault]]
kind = "errors"
at = "3m"
node = "c"
counter = "SymbolErrorCounter"
rate = 2
for = "5m"
expect = ["symbol-errors", {kind = "symbol-ber", within = "5m", notified = true}]

[[fault]]
kind = "lost"
at = "9m"
node = "b"
for = "3m"
expect = ["node-gone"]

[[fault]]
kind = "hang"
at = "13m"
node = "c"
expect = ["node-silent"]

[[fault]]
kind = "reset"
at = "15m"
node = "right"
"""

HEAD = FAULTS.partition("[[fault]]")[0]


class RehearsalTests(NetFabricTestCase):
    slowBecause = "it simulates minutes of a fabric with faults"

    def setUp(self) -> None:
        super().setUp()
        self.folder = Path(self.mktemp())
        self.folder.mkdir()
        self.printed("snapshot", str(self.folder / "site"))
        (self.folder / "config.toml").write_text(CONFIG)

    def rehearsed(self, rules: str, *arguments: str) -> str:
        path = self.folder / "rules.toml"
        path.write_text(rules)
        return self.ran(str(path), *arguments)

    def ran(self, *arguments: str) -> str:
        options = TxrdmaOptions()
        options.parseOptions(["rehearse", *arguments])
        out, errors, ended = io.StringIO(), io.StringIO(), list[Any]()
        with redirect_stdout(out), redirect_stderr(errors):
            run(cast(IReactor, self.clock), options).addBoth(ended.append)
            while not ended and self.clock.calls:
                self.clock.advance(max(0.0, self.clock.calls[0].getTime() - self.clock.seconds()))
        self.assertTrue(ended)
        self.status, self.complaints = 0, errors.getvalue()
        if isinstance(ended[0], Failure):
            if not isinstance(ended[0].value, SystemExit):
                ended[0].raiseException()
            self.status = cast(Any, ended[0].value.code)
        return out.getvalue()

    def test_unread(self) -> None:
        """What the snapshot lacks is printed: the rehearsal is not one of the whole fabric."""
        plain = SubnetManagementAgents.answer

        def answer(agents: Any, port: Any, datagram: bytes) -> Any:
            isTable = int.from_bytes(datagram[16:18], "big") == LinearForwardingTable.attributeID
            return None if isTable and port.node.identifier == "right" else plain(agents, port, datagram)

        self.fabric.silence("c")
        with patch.object(SubnetManagementAgents, "answer", answer):
            self.printed("snapshot", str(self.folder / "site"))
        self.rehearsed(HEAD + '[[fault]]\nkind = "reset"\nat = "1m"\nnode = "left"\n')
        self.assertEqual(self.status, 0)
        self.assertIn("unreachable at DR 0,1,", self.complaints)
        self.assertRegex(self.complaints, r"the forwarding tables of right \(.*\) were not read")

    def test_faults(self) -> None:
        """Each fault raises its finding, and the rehearsal ends with status 0."""
        answer = json.loads(self.rehearsed(FAULTS, "--json"))
        self.assertEqual((answer["missing"], self.status), ([], 0))
        raised = {one["kind"]: one for one in answer["happenings"] if one["what"] == "raised"}
        self.assertLessEqual({"flapping", "symbol-errors", "node-gone", "node-silent"}, raised.keys())
        self.assertTrue(60 <= raised["flapping"]["at"] <= 200)
        self.assertTrue(raised["flapping"]["isExpected"])
        sent = [one for one in answer["happenings"] if one["what"] == "alert"]
        self.assertIn("symbol-ber", {one["kind"] for one in sent})
        faults = [one["text"] for one in answer["happenings"] if one["what"] == "fault"]
        self.assertIn("flap at left port 3: 4 times, every 30 s", faults)
        self.assertIn("end of errors at c", faults)

    def test_missing(self) -> None:
        """An expected finding that is not raised is printed, and the status is 1."""
        rules = FAULTS.replace("rate = 2", "rate = 0.001")
        lines = self.rehearsed(rules).splitlines()
        self.assertEqual(self.status, 1)
        expected = "missing: symbol-ber at c within 300 s, and an alert, because of errors at c"
        self.assertIn(expected, lines[-2])
        self.assertIn("3 of 5 expectations were met", lines[-1])

    def test_thresholds(self) -> None:
        """A configuration with other thresholds has other findings."""
        (self.folder / "config.toml").write_text(f"{CONFIG}\n[limits.SymbolErrorCounter]\nmost = 1000000\n")
        self.rehearsed(FAULTS)
        self.assertEqual(self.status, 1)

    def test_strict(self) -> None:
        """With --strict, a finding that is not expected is an error, too."""
        rules = HEAD + '[[fault]]\nkind = "lost"\nat = "1m"\nnode = "right"\n'
        self.rehearsed(rules)
        self.assertEqual(self.status, 0)
        self.assertIn("[not expected]", self.rehearsed(rules, "--strict"))
        self.assertEqual(self.status, 1)

    def test_withoutFaults(self) -> None:
        """Without faults, a rehearsal has no findings but those of the check of the snapshot."""
        self.fabric.standBy("c")
        self.fabric.port("c").info[31] = 1
        self.fabric.port("right", 1).info[31] = 1
        self.fabric.setCounters("a", 1, symbolErrorCounter=0xFFFF, linkDownedCounter=3)
        left, lid = self.fabric.node("left"), int(self.lid("c"))
        self.fabric.linearOf(left)[int(self.lid("b", 2))] = 0xFF
        self.fabric.routeAdaptively("left", {lid: [3, 4]})
        self.printed("snapshot", str(self.folder / "site"))
        checked = json.loads(self.printed("check", "--load", str(self.folder / "site"), "--json"))
        kinds = {one["kind"] for one in checked["findings"]}
        recording = recorded(str(self.folder / "site"))
        rehearsal = Rehearsal(recording, parseConfig(""), RehearsalPlan((), (), 600.0, 600.0), time())
        for _step in rehearsal.run():
            pass
        same = {"counter-full": "errors", "node-silent": "counters-silent"}
        found = {same.get(one.kind, one.kind) for one in rehearsal.happenings}
        self.assertLessEqual({"errors", "unreachable-lid", "width"}, found)
        self.assertLessEqual(found, kinds)

    def test_losses(self) -> None:
        """Each fault of a link or node is listed with the hosts that it cuts off, and their jobs."""
        jobs = self.folder / "jobs"
        jobs.write_text(squeue("7:a,c", "8:a"))
        rules = FAULTS.replace('node = "b"', 'node = "right"', 1)
        answer = json.loads(self.rehearsed(rules, "--json", "--jobs", str(jobs)))
        lost = {one["fault"].partition(" ")[0]: one for one in answer["losses"]}
        self.assertEqual(lost.keys(), {"flap", "lost"})
        self.assertEqual(lost["flap"]["cutOff"], [])
        self.assertEqual([one["name"] for one in lost["lost"]["cutOff"]], ["c", "d"])
        self.assertEqual([one["job"] for one in lost["lost"]["jobs"] if one["hostsCutOff"]], ["7"])
        text = self.rehearsed(rules, "-j", str(jobs))
        self.assertIn("lost at right for 180 s: 2 hosts cut off: c,d; 1 of 2 jobs lose hosts: 7\n", text)
        self.assertIn("flap at left port 3: 4 times, every 30 s: no host is cut off; 0 of 2", text)

    def test_consequences(self) -> None:
        """Nodes that are missing because of a lost switch are not unexpected: their finding has a cause."""
        lost = '[[fault]]\nkind = "lost"\nat = "1m"\nnode = "right"\nexpect = ["node-gone"]\n'
        answer = json.loads(self.rehearsed(HEAD + lost, "--json"))
        gone = {
            one["where"].partition(" ")[0]: one["isExpected"]
            for one in answer["happenings"]
            if one["kind"] == "node-gone" and one["what"] == "raised"
        }
        self.assertEqual((gone["right"], gone["c"]), (True, None))

    def test_before(self) -> None:
        """What the fabric has without the faults is neither expected nor unexpected."""
        self.fabric.port("c").info[31] = 1
        self.fabric.port("right", 1).info[31] = 1
        self.printed("snapshot", str(self.folder / "site"))
        answer = json.loads(self.rehearsed(FAULTS, "--json"))
        (width,) = [one for one in answer["happenings"] if one["kind"] == "width" and one["what"] == "raised"]
        self.assertLess(width["at"], 0)
        self.assertIsNone(width["isExpected"])

    def test_background(self) -> None:
        """The errors of a history are simulated, too."""
        store = HistoryStore(str(self.folder / "history"))
        self.write(store, "c", rate=10)
        store.close()
        answer = json.loads(self.rehearsed(f'history = "history"\n{FAULTS}', "--json"))
        first = next(one for one in answer["happenings"] if one["kind"] == "symbol-errors")
        self.assertLess(first["at"], 60)

    def test_mistakes(self) -> None:
        """Mistakes in the file are reported with what is possible instead."""
        for before, after, message in (
            ('kind = "flap"', 'kind = "burn"', "fault 1: kind is one of flap, cut, errors"),
            ('node = "left"', 'node = "lost"', "there is no node 'lost'"),
            ("port = 3", "port = 99", "'left' has no port 99"),
            ("rate = 2", "rate = -2", "fault 2: SymbolErrorCounter is a number"),
            ('"SymbolErrorCounter"', '"Nonsense"', "fault 2: there is no counter 'Nonsense'"),
            ('expect = ["flapping"]', 'expect = ["lame"]', "fault 1: there is no finding 'lame'"),
            ('at = "1m"', 'at = "soon"', "fault 1: at is a time as 90 or '1h30m'"),
            ('at = "1m"', "", "fault 1: it has no at"),
            ('snapshot = "site"', 'snapshots = "site"', "the file has the unknown key snapshots"),
            ('snapshot = "site"', "", "has no snapshot: give --load"),
            ('config = "config.toml"', 'config = "none"', "none"),
        ):
            self.rehearsed(FAULTS.replace(before, after, 1))
            self.assertIn(message, str(self.status))
        self.rehearsed("warm-up = 1")
        self.assertIn("it has no faults", str(self.status))
        for arguments in ((), ("--strict", "--history", "x"), ("a", "b"), ("--history", "x", "--days", "0")):
            self.assertRaises(UsageError, self.ran, *arguments)

    def test_interrupted(self) -> None:
        """Ctrl-C ends a rehearsal after any simulated event, and stops its monitor."""
        self.patch(progress, "_PAUSE_SECONDS", -1.0)
        stopped: list[object] = []
        self.patch(Twin, "close", lambda twin: stopped.append(twin))
        (self.folder / "rules.toml").write_text(FAULTS)
        options = TxrdmaOptions()
        options.parseOptions(["rehearse", str(self.folder / "rules.toml")])
        running = run(cast(IReactor, self.clock), options)
        self.assertEqual(stopped, [])
        running.cancel()
        self.failureResultOf(running, CancelledError)
        self.assertEqual(len(stopped), 1)

    # Histories.

    def write(self, store: HistoryStore, name: str, rate: int, most: int = 60) -> int:
        """Write an hour of errors of a port, and return its beginning."""
        port = self.fabric.port(name, 1)
        now = int(time()) // 3600 * 3600
        begin = now - 7200
        rows = []
        for minute in range(most):
            counts: list[float | None] = [0] * len(COUNTERS)
            counts[COUNTERS.index("symbolErrorCounter")] = 60 * rate
            values = (60.0, *counts, 0.0, 0.0)
            rows.append(Row((port.node.guid, 1), begin + 60 * minute, values))
        store.write(rows, now)
        return begin

    def history(self) -> str:
        path = str(self.folder / "past")
        store = HistoryStore(path)
        begin = self.write(store, "c", rate=1)
        guid = self.fabric.node("right").guid
        detail = [["sweep", "sm-silent", str(guid), None], "silent", begin, begin, None, 1]
        raised = FabricEvent(begin + 600.0, "finding-raised", "right", "silent", guid, None, "right", detail)
        sent = FabricEvent(begin + 700.0, "alert-raised", "right", "", None, None, "x", {"kind": "sm-silent"})
        store.append([raised, sent])
        store.close()
        return path

    def test_past(self) -> None:
        """The alerts of the past follow from the history and the thresholds of the configuration."""
        path, config = self.history(), str(self.folder / "config.toml")
        arguments = ("--history", path, "--load", str(self.folder / "site"), "--config", config)
        answer = json.loads(self.ran(*arguments, "--json"))
        self.assertEqual(answer["kinds"].keys(), {"symbol-ber", "sm-silent"})
        self.assertEqual(answer["sent"], {"sm-silent": 1})
        errors = [one for one in answer["alerts"] if one["kind"] == "symbol-ber"]
        self.assertEqual([one["raised"] for one in errors][:1], [True])
        self.assertIn("c (", errors[0]["where"])
        text = self.ran(*arguments)
        self.assertIn("symbol-ber: 1 alerts by this configuration, 0 were sent", text)
        more = '[limits.SymbolErrorCounter]\nmost = 100000\n[findings]\nignored = ["sm-silent", "symbol-ber"]'
        Path(config).write_text(f"{CONFIG}\n{more}\n")
        self.assertEqual(json.loads(self.ran(*arguments, "--json"))["kinds"], {})

    def test_noHistory(self) -> None:
        """A history that does not exist is not created."""
        path = self.folder / "absent"
        self.ran("--history", str(path))
        self.assertIn("there is no such file", str(self.status))
        self.assertFalse(path.exists())
