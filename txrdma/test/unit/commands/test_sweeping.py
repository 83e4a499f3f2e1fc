"""Fabric commands on snapshots and with special devices; node names and progress."""

from __future__ import annotations

import io
import json
import shutil
from contextlib import redirect_stderr
from pathlib import Path
from typing import Any

from twisted.internet.defer import Deferred
from twisted.internet.error import ProcessDone, ProcessTerminated
from twisted.python.failure import Failure
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from txrdma.command import TxrdmaOptions
from txrdma.commands import discover
from txrdma.commands.common.progress import ProgressBar
from txrdma.error import DeviceUnavailable, InvalidRequest
from txrdma.fabric import nodenames
from txrdma.fabric.nodenames import NodeNames, parseNodeNames, readNodeNames
from txrdma.iba.types import GUID
from txrdma.mad.layouts.messages import ClassPortInfo
from txrdma.mad.ports import openMADPort
from txrdma.sim.fabric.agents.pma import PerformanceManagementAgents
from txrdma.sim.fabric.agents.sma import SubnetManagementAgents
from txrdma.sim.strings import fabricOf
from txrdma.test.support.mad.commanding import CommandTestCase, NetFabricTestCase, Output, Terminal
from txrdma.test.support.mad.simulated import TWO_SWITCHES
from txrdma.test.unit.fabric.test_discovery import FDR10
from txrdma.test.unit.kit.test_programs import ProcessClock

NO_DEVICE = "sim:there is no such net"


class SnapshotTests(CommandTestCase):
    device = "sim:fattree:16:4"

    def savedFabric(self, *arguments: str) -> str:
        path = Path(self.mktemp())
        path.write_text(self.output("discover", *arguments).out)
        return str(path)

    def again(self, name: str, path: str, *arguments: str) -> Output:
        return self.output(name, "--load", path, *arguments, device=NO_DEVICE)

    def test_json(self) -> None:
        path = self.savedFabric("--json")
        for name, *arguments in (
            ("discover",),
            ("discover", "--json"),
            ("discover", "-f", "dot"),
            ("discover", "-f", "slurm"),
            ("discover", "-f", "slurm-yaml"),
            ("discover", "-f", "net"),
            ("nodes",),
            ("nodes", "--json", "--switches"),
            ("links",),
            ("links", "--all", "--json"),
            ("links", "--below", "--enabled"),
        ):
            self.assertEqual(
                self.again(name, path, *arguments), self.output(name, *arguments), (name, arguments)
            )

    def test_text(self) -> None:
        nodes, links = self.output("nodes"), self.output("links", "--json").json
        for form in ("text", "net"):
            path = self.savedFabric("-f", form)
            self.assertEqual(self.again("nodes", path), nodes, form)
            found = self.again("links", path, "--json").json
            for link, known in zip(found, links, strict=True):
                for key in ("from", "to", "width", "speed", "state"):
                    self.assertEqual(link[key], known[key], (form, key))

    def test_check(self) -> None:
        path = self.savedFabric("--json")
        output = self.output("check", "--load", path, device="")
        well = "36 nodes, 20 of them switches, with 48 links: all is well"
        text = f"{well}; the snapshot has no tables and counters\n"
        self.assertEqual((output.out, output.status), (text, None))
        reported = json.loads(Path(path).read_text())
        switch = reported["nodes"][0]
        port = next(port for port in switch["ports"] if port["peer"])
        raw = bytearray.fromhex(port["portInfo"])
        raw[31] = 1
        port["portInfo"] = raw.hex()
        host = next(node for node in reported["nodes"] if node["type"] == "CHANNEL_ADAPTER")
        raw = bytearray.fromhex(host["ports"][0]["portInfo"])
        raw[19] ^= 1
        host["ports"][0]["portInfo"] = raw.hex()
        Path(path).write_text(json.dumps(reported))
        output = self.output("check", "--load", path, device="")
        self.assertEqual(
            [line.partition(":")[0] for line in output.out.splitlines()[:-1]], ["width", "other-sm"]
        )
        self.assertEqual(output.status, 1)

    def test_partial(self) -> None:
        """A snapshot of an interrupted sweep is incomplete; the command that reads it is not interrupted."""
        document = json.loads(self.output("discover", "--json").out)
        document["problems"] = [{"kind": "interrupted", "where": "the sweep", "text": "36 nodes were found"}]
        path = Path(self.mktemp())
        path.write_text(json.dumps(document))
        for words in (("nodes",), ("links", "--down"), ("discover", "-f", "dot")):
            output = self.again(words[0], str(path), *words[1:])
            self.assertEqual(output.status, 1)
            self.assertIn("incomplete at the sweep: it was interrupted: 36 nodes", output.errors)

    def test_mistakes(self) -> None:
        path = Path(self.mktemp())
        path.write_text("Switch 2\n")
        output = self.again("nodes", str(path))
        self.assertIn(f"txrdma nodes: snapshot {path}: {path}, line 1: ", str(output.status))

    def test_empty(self) -> None:
        """An empty file, such as that of a failed discovery, is not reported as a healthy fabric."""
        for text in ("", "#\n"):
            path = Path(self.mktemp())
            path.write_text(text)
            output = self.output("check", "--load", str(path), device="")
            self.assertEqual((output.out, output.status), ("", f"txrdma check: snapshot {path}: no nodes"))

    def test_nameless(self) -> None:
        """An empty name of a file, as of an unset variable of a shell, is refused: nothing is sent."""
        for option in ("--load", "--save", "--topology", "--thresholds", "--node-names"):
            error = self.assertRaises(UsageError, TxrdmaOptions().parseOptions, ["check", f"{option}="])
            self.assertIn(f"{option} : expected the name of a file", str(error))

    def test_quoted(self) -> None:
        """A name that contains a quotation mark is not cut in text and net files, which have no escapes."""
        port = openMADPort(self.clock, self.device)
        self.addCleanup(port.close)
        fabricOf(port).node("h00002").description = 'the "best" host'
        for form in ("text", "net"):
            nodes = self.again("nodes", self.savedFabric("-f", form), "--json").json
            self.assertIn("the 'best' host", [node["name"] for node in nodes], form)

    def test_notUnicode(self) -> None:
        """Names in snapshots and topologies may have any bytes, as ibnetdiscover writes them."""
        net, path = Path(self.mktemp()), Path(self.mktemp())
        net.write_bytes(b'Switch 4 "leaf" # "caf\xe9"\n[1] "host"[1]\n\nHca 1 "host" # "m\xfcller"\n')
        device = f"sim:{net}"
        text = self.output("discover", device=device).out
        path.write_bytes(text.encode().replace("caf\ufffd".encode(), b"caf\xe9"))
        self.assertEqual(self.again("nodes", str(path)), self.output("nodes", device=device))
        self.assertIn("m\ufffdller", self.again("nodes", str(net)).out)
        output = self.output("check", "--topology", str(path), device=device)
        self.assertIn("all is well", output.out)

    def test_byteOrderMark(self) -> None:
        """Snapshots may begin with a byte order mark, as some editors write it."""
        for form in ("text", "json"):
            path = Path(self.savedFabric("-f", form))
            before = self.again("nodes", str(path))
            path.write_text(path.read_text(), encoding="utf-8-sig")
            self.assertEqual(self.again("nodes", str(path)), before)


class BeginningTests(NetFabricTestCase):
    def names(self, *arguments: str) -> list[str]:
        return sorted(node["name"] for node in self.answerTo("nodes", *arguments))

    def test_from(self) -> None:
        self.assertEqual(self.names("--from", "DR 0,1,3", "--hops", "0"), ["right"])
        self.assertEqual(self.names("--from", "0,1,3", "--hops", "1"), ["b", "c", "d", "left", "right"])
        combined = f"{self.lid('left')} 0,3"
        self.assertEqual(self.names("--from", combined, "--hops", "0"), ["right"])

    def test_bounded(self) -> None:
        for arguments in ((), ("DR 0,1", "--hops", "63"), ("--by", "sa"), ("--by", "lid")):
            self.assertEqual(len(self.names(*arguments)), 6)
            self.assertEqual(len(self.names("--nodes", "3", *arguments)), 3)

    def test_mistakes(self) -> None:
        self.assertIn("--by dr", self.refusedOptions("nodes", "--sa", "--from", "0,1"))
        self.printed("nodes", "--from", self.lid("left"))
        self.assertIn("expected a directed route", str(self.status))


class DeviceTests(NetFabricTestCase):
    net = TWO_SWITCHES.replace("speed=7\nextspeed=7", "speed=7").replace(
        'Switch 8 "', 'vendid=0x2c9\ndevid=0xc738\nsysimgguid=0x99\nSwitch 8 "'
    )

    def test_fdr10(self) -> None:
        for name in ("left", "right"):
            self.fabric.port(name, 3).tables = {(0xFF90, 0): FDR10}
        links = {(link["from"]["port"], link["speed"]) for link in self.answerTo("links", "--switches")}
        self.assertEqual(links, {(3, "FDR10"), (4, "QDR")})
        self.assertRegex(self.printed("links", "--switches"), r"left +4X +FDR10 +ACTIVE")
        self.assertEqual(self.printed("discover").count("4xFDR10"), 2)
        self.assertIn('label="4xFDR10"', self.printed("discover", "-f", "dot"))

    def test_chassis(self) -> None:
        [one] = self.answerTo("discover")["chassis"]
        self.assertEqual((one["guid"], len(one["nodes"])), ("0000:0000:0000:0099", 2))
        output = self.printed("discover", "--chassis")
        self.assertEqual(output.count("# Chassis 1 (guid 0x99)\n"), 1)
        self.assertEqual(output.count("sysimgguid=0x99\t\t# Chassis 1\n"), 2)
        self.assertLess(output.index('"right" base'), output.index("# Non-Chassis Nodes"))
        self.assertIn("subgraph cluster_1", self.printed("discover", "-f", "dot"))

    def test_noGraphviz(self) -> None:
        self.patch(shutil, "which", lambda name: None)
        self.assertEqual(self.printed("discover", "-f", "svg"), "")
        self.assertIn("install graphviz", str(self.status))

    def test_drawn(self) -> None:
        """A graph is written to Graphviz, and its drawing or its complaint is returned."""
        self.patch(shutil, "which", lambda name: "/bin/dot")
        reactor = ProcessClock()
        for isGraph in (True, False):
            done = Deferred.fromCoroutine(discover.drawn(reactor, "graph {}"))
            self.assertEqual(reactor.written, b"graph {}")
            process = reactor.started[-1]
            if isGraph:
                process.outReceived(b"<svg></svg>")
                process.processEnded(Failure(ProcessDone(0)))
                self.assertEqual(self.successResultOf(done), "<svg></svg>")
            else:
                process.errReceived(b"this is no graph\n")
                process.processEnded(Failure(ProcessTerminated(1)))
                failure = self.failureResultOf(done, DeviceUnavailable)
                self.assertEqual(str(failure.value), "dot failed: this is no graph")


class WideErrorsTests(NetFabricTestCase):
    def setUp(self) -> None:
        super().setUp()
        plain = PerformanceManagementAgents.answer

        def answer(agents: Any, port: Any, datagram: bytes) -> Any:
            reply = plain(agents, port, datagram)
            if reply is not None and int.from_bytes(datagram[16:18], "big") == ClassPortInfo.attributeID:
                reply[68:72] = (2 << 5).to_bytes(4, "big")
            return reply

        self.patch(PerformanceManagementAgents, "answer", answer)

    def test_errors(self) -> None:
        self.fabric.setCounters("c", 1, symbolErrorCounter=70000, portXmitData=1 << 30)
        [port] = self.answerTo("errors", "--hosts", "--data")["ports"]
        self.assertEqual(port["errors"], {"symbolErrorCounter": 70000})
        output = self.printed("errors", "--hosts", "--data", "--report-port")
        self.assertIn("[SymbolErrorCounter == 70000 (68.359K)]", output)
        self.assertIn("[PortXmitData == 1073741824 (4.000GB)]", output)
        self.assertRegex(
            output, r'Link info: +\d+ +1\[  \] ==\( *4X +53.125 Gbps Active/ +LinkUp\)==>  0x\w+ .*"right"'
        )


class CounterFaultsTests(NetFabricTestCase):
    def test_refused(self) -> None:
        self.fabric.setCounters("left", 3, portXmitDiscards=7)
        plain = PerformanceManagementAgents.answer

        def answer(agents: Any, port: Any, datagram: bytes) -> Any:
            reply = plain(agents, port, datagram)
            if reply is not None and port.node.identifier == "left" and datagram[65] == 2:
                reply[4:6] = b"\x00\x1c"
            return reply

        self.patch(PerformanceManagementAgents, "answer", answer)
        reported = self.answerTo("errors")
        self.assertEqual([each["port"] for each in reported["ports"]], [None, 3])
        self.assertEqual([each["name"] for each in reported["silent"]], ["left"])
        self.assertIn("port 2", reported["silent"][0]["reason"])
        self.assertEqual((reported["nodesChecked"], reported["portsChecked"]), (5, 20))

    def test_noLink(self) -> None:
        self.fabric.cut("a")
        self.pump(2)
        reported = self.answerTo("check", "--no-errors")
        self.assertEqual([each["kind"] for each in reported["findings"]].count("no-link"), 1)
        self.assertEqual(self.status, 1)

    def test_noLinkElsewhere(self) -> None:
        """Commands that show whole fabrics fail, too: nobody takes a fabric of one node for the whole one."""
        self.fabric.cut("a")
        self.pump(2)
        for arguments in (("discover", "-f", "slurm"), ("nodes",), ("errors",), ("snapshot", self.mktemp())):
            self.printed(*arguments)
            self.assertIn("no-link at a (", self.complaints)
            self.assertEqual(self.status, 1)
        self.printed("nodes", "--hops", "0")
        self.assertEqual((self.status, self.complaints), (0, ""))


class LinkLostTests(NetFabricTestCase):
    """Nodes are not silent because the local port has lost its link while they were queried."""

    def test_counters(self) -> None:
        plain = PerformanceManagementAgents.answer

        def answer(agents: Any, port: Any, datagram: bytes) -> Any:
            self.fabric.cut("a")
            return plain(agents, port, datagram)

        self.patch(PerformanceManagementAgents, "answer", answer)
        for method, arguments in (("errors", ()), ("check", ("--no-tables",))):
            self.fabric.heal("a")
            self.pump(60.0)
            self.assertEqual(self.printed(method, "-t", "0.1", *arguments), "")
            self.assertIn("the link of the local port was lost", str(self.status))

    def test_sweep(self) -> None:
        """A sweep that ends because of that is not a fabric whose other nodes are gone."""
        before = self.mktemp()
        self.printed("discover", "--save", before)
        plain = SubnetManagementAgents.answer

        def answer(agents: Any, port: Any, datagram: bytes) -> Any:
            if port.node.identifier == "right":
                self.fabric.cut("a")
            return plain(agents, port, datagram)

        self.patch(SubnetManagementAgents, "answer", answer)
        self.assertEqual(self.printed("diff", "-t", "0.1", before), "")
        self.assertIn("the link of the local port was lost", str(self.status))


class NamesTests(NetFabricTestCase):
    def test_everywhere(self) -> None:
        """Node names appear in text and JSON of findings, differences, errors, links and topologies."""
        path, before = Path(self.mktemp()), self.mktemp()
        guid = self.fabric.node("right").guid
        path.write_text(f'0x{guid.raw.hex()} "core 1"')
        names = ("--node-names", str(path))
        self.printed("discover", "--save", before)
        self.fabric.setCounters("right", 1, portXmitDiscards=7)
        self.fabric.port("right", 1).info[31] = self.fabric.port("c").info[31] = 1
        for name, *arguments in (
            ("discover",),
            ("discover", "-f", "dot"),
            ("discover", "-f", "net"),
            ("discover", "--json"),
            ("nodes",),
            ("links",),
            ("check",),
            ("errors",),
            ("errors", "--json"),
            ("diff", before),
        ):
            self.assertIn("core 1", self.printed(name, *arguments, *names), (name, arguments))
        self.assertIn("SwitchName=core_1 ", self.printed("discover", "-f", "slurm", *names))


class NodeNamesTests(SynchronousTestCase):
    def test_parse(self) -> None:
        self.assertEqual(
            parseNodeNames("0200 decimal, though it begins with a 0").names.keys(), {GUID.fromInt(200)}
        )
        names = parseNodeNames('\n# x\n0x1 "one"\n  0x00ff  "two words"   # said\n')
        self.assertEqual(names.names, {GUID.fromInt(1): "one", GUID.fromInt(255): "two words"})
        self.assertEqual(list(names.guids("one")), [GUID.fromInt(1)])
        for wrong in ('0x2 "two', "two 0x2", '0x2 "two" or three', "0x2two", f'{"9" * 5000} "two"'):
            error = self.assertRaises(InvalidRequest, parseNodeNames, f'0x1 "one"\n{wrong}\n', "map")
            self.assertIn("map, line 2", str(error))

    def test_asTheirs(self) -> None:
        names = parseNodeNames('0x1 one more # x\n255 "two"\n0x1 "again"\n0x3\n')
        self.assertEqual(names.names, {GUID.fromInt(1): "one more", GUID.fromInt(255): "two"})

    def test_mapFiles(self) -> None:
        paths = [Path(self.mktemp()) for _ in range(2)]
        self.patch(nodenames, "MAP_FILES", tuple(paths))
        self.assertEqual(readNodeNames().names, {})
        paths[1].write_text('0x1 "of OpenSM"')
        self.assertEqual(readNodeNames().name(GUID.fromInt(1)), "of OpenSM")
        paths[0].write_text('0x1 "ours"')
        self.assertEqual(readNodeNames().name(GUID.fromInt(1)), "ours")
        self.patch(nodenames, "MAP_FILES", (Path("/" + "x" * 300), paths[1]))  # the first path is too long
        self.assertEqual(readNodeNames().name(GUID.fromInt(1)), "of OpenSM")

    def test_brokenMapFile(self) -> None:
        path = Path(self.mktemp())
        path.write_text("nonsense\n")
        self.patch(nodenames, "MAP_FILES", (path,))
        errors = io.StringIO()
        with redirect_stderr(errors):
            self.assertEqual(readNodeNames().names, {})
        self.assertIn("line 1", errors.getvalue())
        self.assertRaises(InvalidRequest, readNodeNames, str(path))

    def test_descriptions(self) -> None:
        self.assertEqual(NodeNames().name(GUID.fromInt(1), "a\tb\x00"), "a b ")

    def test_missing(self) -> None:
        self.assertRaises(InvalidRequest, readNodeNames, "/no/such/map")


class ProgressTests(SynchronousTestCase):
    def test_terminal(self) -> None:
        for stream, isShown in ((Terminal(), True), (io.StringIO(), False)):
            with ProgressBar("asking", stream) as progress:
                progress._next = 0.0
                progress(3, 10)
                self.assertEqual("3/10" in stream.getvalue(), isShown)

    def test_short(self) -> None:
        stream = Terminal()
        with ProgressBar("asking", stream) as progress:
            progress(1, 2)
        self.assertEqual(stream.getvalue(), "")
