"""C{txrdma blast-radius} on simulated fabrics and snapshots."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

from txrdma.commands.common import progress
from txrdma.mad.layouts.smp import LinearForwardingTable
from txrdma.sim.fabric.agents.sma import SubnetManagementAgents
from txrdma.test.support.mad.commanding import CommandTestCase, NetFabricTestCase
from txrdma.test.unit.fabric.test_slurmjobs import squeue


class BlastRadiusTests(NetFabricTestCase):
    """Two switches with two cables; b has a port at both, and d is a router."""

    def test_switch(self) -> None:
        """A switch by its name, LID or GUID: hosts that are cut off, lost paths, and less bandwidth."""
        for name in ("right", self.lid("right"), str(self.fabric.node("right").guid)):
            answer = self.answerTo("blast-radius", name)
            self.assertEqual(sorted(host["name"] for host in answer["cutOff"]), ["c", "d"])
            self.assertEqual([one["kind"] for one in answer["without"]], ["switch"])
            self.assertGreater(answer["lostPaths"], 0)
        printed = self.printed("blast-radius", "right")
        self.assertEqual(printed.splitlines()[:2], ["Without switch right:", "2 hosts cut off: c,d"])
        self.assertIn("1 host with less bandwidth", printed)
        self.assertIn("50 %", printed)
        self.assertEqual((self.status, self.complaints), (0, ""))

    def test_cable(self) -> None:
        """A cable by its port at a name, LID or GUID."""
        guid = self.fabric.node("right").guid
        for text in ("right:1", f"{self.lid('right')}:1", f"{guid}:1", "c:1"):
            answer = self.answerTo("blast-radius", text)
            self.assertEqual([host["name"] for host in answer["cutOff"]], ["c"], text)
        self.assertIn(
            "Without cable right port 1 to c port 1:\n1 host cut off: c",
            self.printed("blast-radius", "right:1"),
        )

    def test_several(self) -> None:
        """Several elements are removed together."""
        self.assertEqual(self.answerTo("blast-radius", "left:3")["cutOff"], [])
        both = self.answerTo("blast-radius", "left:3", "left:4")
        self.assertEqual([host["name"] for host in both["cutOff"]], ["a"])

    def test_jobs(self) -> None:
        """Jobs lose hosts or paths; hosts of other fabrics are reported."""
        path = Path(self.mktemp())
        path.write_text(squeue("7:a,c", "8:a", "9:elsewhere", "10:"))
        answer = self.answerTo("blast-radius", "right", "--jobs", str(path))
        (found,) = answer["jobs"]
        self.assertEqual(
            (found["job"], found["hosts"], found["hostsCutOff"], found["lostPaths"]), ("7", 2, 1, 2)
        )
        self.assertIn("not in the fabric: elsewhere", self.complaints)
        self.assertIn("Of 3 jobs, 1 lose hosts", self.printed("blast-radius", "right", "-j", str(path)))
        ranks = self.answerTo("blast-radius", "--all", "-j", str(path))
        self.assertEqual(
            {one["name"]: one["jobsCutOff"] for one in ranks if one["kind"] == "switch"}["right"], 1
        )
        self.assertIn("Jobs cut off", self.printed("blast-radius", "--all", "-j", str(path)))

    def test_mistakes(self) -> None:
        """Unknown nodes and ports, ports without a link, and contradictory options are refused."""
        for text, why in (
            ("nowhere", "no node has this name"),
            ("nowhere:1", "no node has this name"),
            ("left:99", "left has no port 99"),
            ("left:0", "left has no port 0"),
            ("left:8", "no link"),
        ):
            self.printed("blast-radius", text)
            self.assertIn(why, str(self.status), text)
        for arguments in ((), ("left", "--all"), ("--all", "--squeue", "--jobs=x"), ("--all", "--load=x")):
            self.refusedOptions("blast-radius", *arguments)
        path = Path(self.mktemp())
        path.write_text("nothing")
        self.printed("blast-radius", "left", "--jobs", str(path))
        self.assertIn(str(path), str(self.status))

    def test_noSqueue(self) -> None:
        """Without squeue the message says so."""
        self.patch(os, "environ", {**os.environ, "PATH": ""})
        self.printed("blast-radius", "left", "--squeue")
        self.assertIn("squeue is not installed here", str(self.status))

    def test_snapshot(self) -> None:
        """What discover saves has no tables, and no paths; that of snapshot has them. Nothing is sent."""
        saved, snapshot = self.mktemp(), self.mktemp()
        self.printed("discover", "--save", saved)
        self.printed("snapshot", snapshot)
        live = self.answerTo("blast-radius", "right")
        without = self.output("blast-radius", "right", "--json", "--load", saved, device="")
        self.assertEqual((without.json["cutOff"], without.json["paths"]), (live["cutOff"], 0))
        self.assertIn("no forwarding tables are known", without.errors)
        whole = self.output("blast-radius", "right", "--json", device=f"sim:{snapshot}")
        self.assertEqual((whole.json, whole.errors), (live, ""))

    def test_silent(self) -> None:
        """A switch whose table cannot be read is reported."""
        plain = SubnetManagementAgents.answer

        def answer(agents: Any, port: Any, datagram: bytes) -> Any:
            isTable = int.from_bytes(datagram[16:18], "big") == LinearForwardingTable.attributeID
            return None if isTable and port.node.identifier == "right" else plain(agents, port, datagram)

        self.patch(SubnetManagementAgents, "answer", answer)
        reported = self.answerTo("blast-radius", "left:3", "-t.1")
        self.assertEqual((reported["switchesWithoutTables"], self.status), (1, 1))
        self.assertIn("tables of 1 switches are unknown", self.complaints)

    def test_pauses(self) -> None:
        """Long work has pauses, in which Ctrl-C is handled."""
        self.patch(progress, "_PAUSE_SECONDS", -1.0)
        self.assertEqual(len(self.answerTo("blast-radius", "--all")), 2 + 7)


class RankingTests(CommandTestCase):
    """All switches and cables of a fat tree."""

    device = "sim:fattree:32:8"

    def test_all(self) -> None:
        """Single points of failure are first: leaves, then cables of hosts, which are one row."""
        output = self.output("blast-radius", "--all", "--most", "100")
        lines = output.out.splitlines()
        self.assertTrue(lines[1].startswith("leaf0"), lines[1])
        (row,) = (line for line in lines if "cables to one host" in line)
        self.assertIn("each of 32 cables to one host", row)
        answer: list[dict[str, Any]] = json.loads(self.output("blast-radius", "--all", "--json").out)
        self.assertEqual([one["hostsCutOff"] for one in answer[:8]], [4] * 8)
        self.assertEqual(len({json.dumps([one["guid"], one["port"]]) for one in answer}), len(answer))

    def test_most(self) -> None:
        """Tables have a few rows, and say how many more there are."""
        output = self.output("blast-radius", "--all", "-m", "3").out.splitlines()
        self.assertEqual(len(output), 5)
        self.assertRegex(output[-1], r"\.\.\. and \d+ more switches and cables")
