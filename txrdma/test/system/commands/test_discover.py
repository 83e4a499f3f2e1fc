"""C{txrdma discover}, options common to fabric commands, and C{sysstat} over RoCE."""

from __future__ import annotations

import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
from pathlib import Path

from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from txrdma.command import TxrdmaOptions
from txrdma.mad.ports import openMADPort
from txrdma.sim.nets.fattree import fatTree
from txrdma.sim.nets.netfile import parseNet
from txrdma.test.support.mad.commanding import CommandTestCase
from txrdma.test.support.processes import printed, started

SMALL_TREE = "sim:fattree:16:4"
"""A fat tree of three levels of switches, with two hosts at each leaf."""


class DiscoverTests(CommandTestCase):
    def file(self, text: str, suffix: str = "") -> str:
        path = Path(self.mktemp() + suffix)
        path.write_text(text)
        return str(path)

    def test_text(self) -> None:
        """The text output is a net file of the fabric."""
        printed = self.output("discover", device=SMALL_TREE)
        self.assertEqual((printed.errors, printed.status), ("", None))
        known, found = fatTree(16, 4), parseNet(printed.out)
        self.assertEqual(
            {(node.kind, node.ports, node.description) for node in found.nodes.values()},
            {(node.kind, node.ports, node.description) for node in known.nodes.values()},
        )
        names = {node.identifier: node.description for node in found.nodes.values()}
        self.assertEqual(
            {
                (names[node.identifier], number, names[link.peer], link.peerPort)
                for node in found.nodes.values()
                for number, link in node.links.items()
            },
            {
                (node.description, number, known.nodes[link.peer].description, link.peerPort)
                for node in known.nodes.values()
                for number, link in node.links.items()
            },
        )

    def test_json(self) -> None:
        """JSON contains nodes, ports and their peers, with stable keys."""
        answer = self.output("discover", "--json").json
        self.assertEqual(list(answer), ["nodes", "chassis", "problems"])
        self.assertEqual((answer["chassis"], answer["problems"]), ([], []))
        switch, host = answer["nodes"][0], answer["nodes"][1]
        self.assertEqual((switch["type"], switch["name"], switch["numPorts"]), ("SWITCH", "leaf0000", 36))
        self.assertEqual((host["type"], host["route"]), ("CHANNEL_ADAPTER", "DR 0"))
        self.assertEqual(
            host["ports"],
            [
                {
                    "number": 1,
                    "guid": "0000:0000:0010:0001",
                    "lid": host["lid"],
                    "lmc": 0,
                    "state": "ACTIVE",
                    "physicalState": "LINK_UP",
                    "width": 4,
                    "speed": "HDR",
                    "gigabits": 212.5,
                    "peer": {"guid": switch["guid"], "port": 1},
                    "portInfo": host["ports"][0]["portInfo"],
                }
            ],
        )

    def test_dot(self) -> None:
        lines = self.output("discover", "--format", "dot").out.splitlines()
        self.assertEqual(len([line for line in lines if " -- " in line]), 8)
        self.assertEqual(len([line for line in lines if "label=" in line and " -- " not in line]), 9)
        self.assertTrue(all(line.count("{") == line.count("}") for line in lines[1:-1]))

    def test_noSnapshot(self) -> None:
        for path in (self.file("{}"), self.file("no JSON"), "/nowhere"):
            printed = self.output("discover", "--load", path)
            self.assertIn(f"txrdma discover: snapshot {path}: ", str(printed.status))

    def test_problems(self) -> None:
        device = self.device + ":loss=0.05:seed=2:managed=no"
        printed = self.output("discover", "-t", "0.1", "--retries", "0", device=device)
        self.assertEqual(printed.status, 1)
        self.assertIn("unreachable at DR 0", printed.errors)
        self.assertIn("Switch\t36", printed.out)

    def test_svg(self) -> None:
        arguments = [sys.executable, "-m", "txrdma", "discover", "-d", "sim:fattree:4", "-f", "svg"]
        done = subprocess.run(arguments, capture_output=True, text=True, timeout=60)
        self.assertEqual(done.returncode, 0, done.stderr)
        self.assertIn("</svg>", done.stdout)
        self.assertIn("leaf0000", done.stdout)

    if shutil.which("dot") is None:
        test_svg.skip = "Graphviz is not installed"  # type: ignore[attr-defined]  # trial's way


class FabricsTests(CommandTestCase):
    def test_device(self) -> None:
        self.assertIn("there is no kind 'nope'", str(self.output("discover", device="nope:1").status))
        self.assertIn("no/such", str(self.output("discover", device="sim:no/such.net").status))
        self.assertIn(
            "expected the number of hosts", str(self.output("discover", device="sim:fattree:many").status)
        )

    def test_mistakes(self) -> None:
        for arguments, words in (
            (("--by", "hand"), "dr, lid, sa"),
            (("--format", "pdf"), "svg"),
            (("--timeout", "0"), "3600"),
            (("--outstanding", "0"), "expected 1 or more"),
            (("--nope",), "nope"),
        ):
            options = TxrdmaOptions()
            error = self.assertRaises(UsageError, options.parseOptions, ["discover", *arguments])
            self.assertIn(words, str(error))

    def test_debug(self) -> None:
        sizes = []
        for level in range(4):
            printed = self.output("smpquery", "NI", "0,1", *["--debug"] * level)
            sizes.append(len(printed.errors.splitlines()))
            if level:
                self.assertIn("-> DR 0,1: SUBN_DIRECTED GET NodeInfo modifier 0x0", printed.errors)
                self.assertIn("<- SUBN_DIRECTED GET_RESP NodeInfo", printed.errors)
        self.assertEqual(sizes[:2], [0, 2])
        self.assertTrue(sizes[1] < sizes[2] < sizes[3], sizes)

    def test_debuggedError(self) -> None:
        printed = self.output("query", "SubnGet", "SwitchInfo", "1", "--debug")
        self.assertIn("request: SUBN_LID GET SwitchInfo", str(printed.status))
        self.assertIn("reply: SUBN_LID GET_RESP SwitchInfo", str(printed.status))

    def test_retries(self) -> None:
        before = self.clock.seconds()
        printed = self.output("smpquery", "NI", "77", "-t", "2", "--retries", "4", "--debug")
        self.assertEqual(printed.errors.count("-> lid 77"), 5)
        self.assertTrue(10 <= self.clock.seconds() - before < 11)

    def test_patience(self) -> None:
        keep = openMADPort(self.clock, self.device)
        self.addCleanup(keep.close)
        self.output("query", "SubnSet", "PortInfo", "--change", "--yes", "subnetTimeOut=31")
        self.assertEqual(keep.refresh().subnetTimeout, 31)
        before = self.clock.seconds()
        printed = self.output("smpquery", "NI", "77", "--retries", "1")
        self.assertIn("no answer", str(printed.status))
        self.assertTrue(8 <= self.clock.seconds() - before < 9)

    def test_targets(self) -> None:
        for target in ("2", "lid 2", "0x2", "0,1,2", "DR 0,1,2", "fe80::10:3", "0x0000000000100003"):
            self.assertEqual(self.output("smpquery", "ND", target).fields, {"nodeString": "h00001"}, target)
        self.assertEqual(self.output("smpquery", "ND").fields, {"nodeString": "h00000"})
        self.assertIn("is not a port", str(self.output("smpquery", "ND", "h00001!").status))

    def test_namedTargets(self) -> None:
        self.assertEqual(self.output("smpquery", "NI", "leaf0000", "--json").json["path"], "lid 9")
        self.assertEqual(self.output("perfquery", "h00001", "--json").json["path"], "lid 2")
        path = Path(self.mktemp())
        path.write_text('0x100004 "login node"\n0x100006 "twin"\n0x100008 "twin"\n')
        names = ("--node-names", str(path))
        self.assertEqual(self.output("smpquery", "ND", "login node", *names).fields, {"nodeString": "h00002"})
        self.assertIn("several nodes", str(self.output("smpquery", "ND", "twin", *names).status))
        self.assertIn("is not a port", str(self.output("smpquery", "ND", "nobody", *names).status))
        self.assertIn("is not a port", str(self.output("smpquery", "ND", "x" * 99).status))

    def test_unmanaged(self) -> None:
        device = self.device + ":managed=no"
        self.assertEqual(
            self.output("smpquery", "ND", "0,1", device=device).fields, {"nodeString": "leaf0000"}
        )
        toGID = ("smpquery", "ND", "fe80::10:3")
        for arguments in (("saquery",), ("sminfo",), ("smpquery", "ND", "--sa"), toGID):
            self.assertIn("knows no subnet manager", str(self.output(*arguments, device=device).status))
        self.assertIn("has no LID", str(self.output("perfquery", device=device).status))
        self.assertIn("has no LID", str(self.output("perfquery", "0,1", device=device).status))

    def test_interruptedEarly(self) -> None:
        program = """
import os, signal
from twisted.internet import reactor
from txrdma.command import main
reactor.addSystemEventTrigger("before", "startup", os.kill, os.getpid(), signal.SIGINT)
main(["smpquery", "NI", "77", "-d", "sim:fattree:8", "-t", "30"])
"""
        done = printed(program)
        self.assertEqual((done.returncode, done.stderr), (130, ""))


def addresses() -> tuple[str, str]:
    number = os.getpid()
    low = f"{number >> 8 & 255}.{number & 255}"
    return f"127.61.{low}", f"127.62.{low}"


class PingTests(SynchronousTestCase):
    slowBecause = "starts processes that import all of the package"

    def command(self, *words: str) -> subprocess.Popen[str]:
        return started(self, "-m", "txrdma", *words, stderr=subprocess.PIPE)

    def test_ping(self) -> None:
        here, there = addresses()
        server = self.command("sysstat", "--server", "-d", f"vmad:soft:{there}")
        try:
            assert server.stderr is not None
            line = server.stderr.readline()
            match = re.fullmatch(r"serving at vmad:soft:[0-9.]+, LID 0, dqpn (\d+)\n", line)
            self.assertIsNotNone(match, line)
            assert match is not None
            target = f"{there} dqpn {match[1]}"
            asking = self.command("sysstat", target, "host", "--json", "-d", f"vmad:soft:{here}")
            out, errors = asking.communicate(timeout=30)
            self.assertEqual((asking.returncode, errors), (0, ""))
            self.assertEqual(json.loads(out), {"host": socket.gethostname()})
        finally:
            server.send_signal(signal.SIGINT)
            _, errors = server.communicate(timeout=30)
        self.assertEqual((server.returncode, errors), (0, "answered 1 requests\n"))
