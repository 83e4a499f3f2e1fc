"""Commands about whole fabrics, and routes through them, on simulated fabrics."""

from __future__ import annotations

import csv
import io
from contextlib import redirect_stderr, redirect_stdout
from pathlib import Path
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.commands.common.options import INTERRUPTED
from txrdma.commands.common.rows import showRows
from txrdma.commands.ping import Pings
from txrdma.iba.path import IBPath
from txrdma.iba.types import GUID, LID
from txrdma.kit.rawfields import poke
from txrdma.mad.agent import MADAgent
from txrdma.mad.layouts.attributes import ManagementClass
from txrdma.mad.layouts.pma import PortRcvErrorDetails
from txrdma.mad.layouts.smp import (
    LinearForwardingTable,
    MulticastForwardingTable,
    PKeyTable,
    PortInfo,
    SLtoVLMappingTable,
)
from txrdma.mad.registers import AccessRegister
from txrdma.mad.server import MADServer
from txrdma.mad.vendor import servePing, serveSysstat
from txrdma.sim.fabric.agents.pma import PerformanceManagementAgents
from txrdma.sim.fabric.agents.sma import SubnetManagementAgents
from txrdma.sim.fabric.agents.vendor import answerVendor
from txrdma.sim.fabric.wire import wire
from txrdma.test.support.mad.commanding import NetFabricTestCase


class NodesTests(NetFabricTestCase):
    def test_kinds(self) -> None:
        self.assertEqual(len(self.printed("nodes").splitlines()), 7)
        for word, expected in (
            ("--hosts", ["a", "b", "c"]),
            ("--switches", ["left", "right"]),
            ("--routers", ["d"]),
        ):
            self.assertEqual([node["name"] for node in self.answerTo("nodes", word)], expected)
        self.assertEqual(len(self.answerTo("nodes", "--hosts", "--routers")), 4)
        names = Path(self.mktemp())
        names.write_text(f'0x{self.fabric.node("c").guid.raw.hex()} "see"')
        printed = self.printed("nodes", "--node-names", str(names))
        self.assertRegex(printed, rf"host +0x\w{{16}} +1 +{self.lid('c')} +see\n")
        self.assertEqual(self.status, 0)

    def test_formulas(self) -> None:
        """A spreadsheet does not compute the name of a node that looks like a formula."""
        names = ("=1+1", "+1", "-1", "@SUM(A1)")
        for name in names:
            self.fabric.node("c").description = name
            rows = list(csv.DictReader(io.StringIO(self.printed("nodes", "--csv"))))
            self.assertEqual({row["name"] for row in rows} - {"a", "b", "d", "left", "right"}, {f"'{name}"})
            self.assertIn(name, [row["name"] for row in self.answerTo("nodes")])

    def test_cables(self) -> None:
        """Each end of a cable has a row, also with what is unknown, as a table, CSV and JSON."""
        self.fabric.haveModule("left", 3)
        rows = self.answerTo("cables")
        self.assertEqual(len(rows), 14)
        (known,) = self.answerTo("cables", "--known")
        self.assertEqual((known["name"], known["port"], known["peerName"]), ("left", 3, "right"))
        self.assertEqual((known["vendor"], known["metres"], known["celsius"]), ("Mellanox", 10.0, 45.0))
        self.assertEqual({row["serial"] for row in rows}, {None, known["serial"]})
        table = list(csv.DictReader(io.StringIO(self.printed("cables", "--csv", "--known"))))
        self.assertEqual((table[0]["serial"], table[0]["lowDBm"]), (known["serial"], "-10"))
        self.assertRegex(self.printed("cables"), r"left +3 +right +3 +active cable +Mellanox")
        self.assertEqual(len(self.answerTo("cables", "c")), 1)
        (left,) = [row for row in self.answerTo("nodes", "--inventory") if row["name"] == "left"]
        self.assertEqual(left["partNumber"], "SIMULATED")

    def test_unread(self) -> None:
        """A switch, or a device that has answered, has a problem if its firmware or cables are not read."""
        self.fabric.haveModule("left", 3)
        self.fabric.haveModule("b", 1)
        silent: list[tuple[str, bool]] = []

        def answer(port: Any, datagram: bytes) -> Any:
            isRegister = int.from_bytes(datagram[16:18], "big") == AccessRegister.attributeID
            isSilent = (port.node.identifier, isRegister) in silent
            return None if isSilent else answerVendor(port, datagram)

        self.patch(wire, "answerVendor", answer)
        for name, isRegister, lost in (
            ("left", False, "left"),
            ("left", True, "left"),
            ("b", True, "b"),
            ("b", False, ""),
        ):
            silent[:] = [(name, isRegister)]
            self.answerTo("cables", "-t.1")
            self.assertEqual(self.status, 1 if lost else 0, silent)
            self.assertRegex(self.complaints, rf"unreachable at {lost} .*: cables: " if lost else "^$")
        silent[:] = [("left", False)]
        self.answerTo("nodes", "--inventory")
        self.assertEqual(self.status, 1)
        self.assertRegex(self.complaints, r"unreachable at left .*: firmware: ")

    def test_problems(self) -> None:
        self.fabric.silence("c")
        self.assertEqual(len(self.answerTo("nodes")), 5)
        self.assertEqual(self.status, 1)
        self.assertIn("unreachable at DR 0,1,", self.complaints)

    def test_reassigned(self) -> None:
        """Cables and firmware of another node that got the LID since the sweep are not shown."""
        self.fabric.haveModule("left", 3)

        def answer(port: Any, datagram: bytes) -> Any:
            if port.node.identifier == "left":
                port.node.setGUID(GUID.fromInt(int(port.node.guid) + 1))
            return answerVendor(port, datagram)

        self.patch(wire, "answerVendor", answer)
        for words in (("cables", "--known"), ("nodes", "--inventory", "--switches")):
            found = self.answerTo(*words)
            self.assertEqual({row.get("serial") for row in found} - {None}, set(), words)
            self.assertEqual(self.status, 1)
            self.assertIn("it is left out: node ", self.complaints)


class LinksTests(NetFabricTestCase):
    def test_once(self) -> None:
        links = self.answerTo("links")
        self.assertEqual(len(links), 7)
        self.assertEqual(
            {(link["width"], link["speed"], link["gigabitsPerLane"], link["state"]) for link in links},
            {(4, "HDR", 53.125, "ACTIVE")},
        )
        self.assertEqual(len(self.answerTo("links", "--all")), 2 * 8 + 5)
        self.assertEqual(len(self.answerTo("links", "--switches")), 2)
        self.assertIn("DOWN, POLLING", self.printed("links", "--all"))
        down = self.answerTo("links", "--down")
        self.assertEqual({(link["physicalState"], link["to"]) for link in down}, {("POLLING", None)})
        self.assertEqual(len(down), 2 * 8 + 5 - 14)
        self.assertEqual(len(self.printed("links", "--line").splitlines()), 2 * 8 + 5)
        self.assertEqual(self.answerTo("links", "--line"), self.answerTo("links", "--all"))

    def test_unread(self) -> None:
        """A port whose PortInfo was not read is not listed as one without a link, or with an inactive one."""
        plain = SubnetManagementAgents.answer

        def answer(agents: Any, port: Any, datagram: bytes) -> Any:
            attribute, modifier = (
                int.from_bytes(datagram[at:end], "big") for at, end in ((16, 18), (20, 24))
            )
            isUnread = attribute == PortInfo.attributeID and (port.node.identifier, modifier) in unread
            return None if isUnread else plain(agents, port, datagram)

        unread = (("left", 3), ("left", 8))
        down = len(self.answerTo("links", "--down"))
        self.patch(SubnetManagementAgents, "answer", answer)
        self.assertEqual(len(self.answerTo("links", "--down", "-t.1")), down - 1)
        self.assertEqual(self.status, 1)
        states = {link["state"] for link in self.answerTo("links", "-t.1")}
        self.assertIn("NOP", states)
        self.assertEqual(self.answerTo("links", "--below", "--enabled", "-t.1"), [])

    def test_below(self) -> None:
        for end in (self.fabric.port("left", 2), self.fabric.port("b", 1)):
            end.info[62] = 0x10 | end.info[62] & 15
        links = self.answerTo("links", "--below", "--enabled")
        self.assertEqual([(link["from"]["name"], link["from"]["port"]) for link in links], [("left", 2)])
        self.assertEqual((links[0]["couldBe"], links[0]["speed"]), (["53.125 Gbps"], "FDR"))
        self.assertEqual(len(self.answerTo("links", "--below")), 7)
        self.assertIn("could be 12X 53.125 Gbps", self.printed("links"))


class TraceTests(NetFabricTestCase):
    def test_nowhere(self) -> None:
        self.assertIn("left", self.printed("trace", "999"))
        self.assertEqual(self.status, f"txrdma trace: left (LID {self.lid('left')}) has no port for LID 999")
        self.assertFalse(self.answerTo("trace", "999")["reached"])

    def test_silentNode(self) -> None:
        """The path is shown up to the port behind which a node does not answer."""
        target = self.lid("c")
        for silent, names, unknown in (
            ("c", ["a", "left", "right"], "behind port 1 of right"),
            ("right", ["a", "left"], "of left"),
        ):
            self.fabric.silence(silent)
            answer = self.answerTo("trace", target)
            self.assertEqual([hop["name"] for hop in answer["hops"]], names)
            self.assertFalse(answer["reached"])
            self.assertIn(unknown, answer["reason"])
            self.assertIn("no answer", answer["reason"])
            self.assertIn(f'"{names[-1]}"', self.printed("trace", target))
            self.assertIn(unknown, str(self.status))

    def test_illegalPort(self) -> None:
        """A table that contains a port that the switch does not have leads nowhere."""
        table = bytearray(self.fabric.linearOf(self.fabric.node("left")))
        table[int(self.lid("c"))] = 200
        self.fabric.node("left").linear = table
        answer = self.answerTo("trace", self.lid("c"))
        self.assertEqual([hop["name"] for hop in answer["hops"]], ["a", "left"])
        self.assertIn("has 8 ports, and port 200 for LID", answer["reason"])

    def test_silentBranch(self) -> None:
        """A member that does not answer does not hide the other branches of a multicast group."""
        self.setGroup()
        self.fabric.silence("c")
        answer = self.answerTo("trace", "--multicast=0xc000")
        self.assertEqual([hop["name"] for hop in answer["hops"]], ["a", "left", "right", "right", "d"])
        self.assertIn("no answer", answer["reason"])

    def setGroup(self) -> None:
        agent = MADAgent(self.clock, self.fabric.attach("a"))
        self.addCleanup(agent.close)
        for name, mask in (("left", 0b1010), ("right", 0b1110)):
            content = MulticastForwardingTable(portMasks=(mask, *(0,) * 31))
            setting = agent.SubnSet(content, IBPath(dlid=LID(int(self.lid(name)))))
            self.pump(1)
            self.successResultOf(setting)

    def test_multicast(self) -> None:
        self.setGroup()
        lines = self.printed("trace", "--multicast", "0xc000").splitlines()
        self.assertEqual(
            [line.partition("->")[0] for line in lines[1:]], ["[1] ", "  [3] ", "    [1] ", "    [2] "]
        )
        names = [hop["name"] for hop in self.answerTo("trace", "--multicast=0xc000")["hops"]]
        self.assertEqual(names, ["a", "left", "right", "right", "c", "d"])
        groups = self.answerTo("routes", "--multicast", self.lid("right"))[0]["multicast"]
        self.assertEqual(groups, [{"mlid": 0xC000, "ports": [1, 2, 3]}])
        self.assertRegex(self.printed("routes", "-M"), r"\n0xc000 {8}x   x[ x]*\n")

    def test_mistakes(self) -> None:
        self.assertIn("[FROM] TO", self.refusedOptions("trace"))
        self.assertIn("[FROM] TO", self.refusedOptions("trace", "1", "2", "3"))
        self.assertIn("[FROM [TO]]", self.refusedOptions("trace", "1", "2", "3", "--multicast=0xc000"))
        self.printed("trace", "\udcff", "1")  # a byte of the command line that is not UTF-8
        self.assertRegex(str(self.status), "is not a port: .*, and no node has this name")


class RoutesTests(NetFabricTestCase):
    def test_port(self) -> None:
        answer = self.answerTo("routes", self.lid("right"), "--port", "1")
        self.assertEqual([str(each["lid"]) for each in answer[0]["linear"]], [self.lid("c")])

    def test_all(self) -> None:
        answer = self.answerTo("routes")
        self.assertEqual([each["name"] for each in answer], ["left", "right"])
        self.assertEqual(self.answerTo("routes", "--sa"), answer)
        self.assertEqual({len(each["linear"]) for each in answer}, {7})
        destinations = {entry["destination"].rpartition(" ")[2] for entry in answer[0]["linear"]}
        self.assertEqual(destinations, {"'a')", "'b')", "'c')", "'d')", "'left')", "'right')"})
        for options, isShown in ((), False), (("--all",), True):
            self.assertEqual("0x0000 255 : (illegal port)" in self.printed("routes", *options), isShown)

    def test_silent(self) -> None:
        file = self.mktemp()
        self.printed("discover", "--save", file)
        self.fabric.silence("right")
        self.assertEqual([each["name"] for each in self.answerTo("routes", "--load", file)], ["left"])
        self.assertEqual(self.status, 1)
        self.assertIn("right", self.complaints)

    def test_unread(self) -> None:
        """A switch whose table was not read is neither shown with an empty one, nor judged by it."""
        plain = SubnetManagementAgents.answer

        def answer(agents: Any, port: Any, datagram: bytes) -> Any:
            isTable = int.from_bytes(datagram[16:18], "big") == LinearForwardingTable.attributeID
            return None if isTable and port.node.identifier == "right" else plain(agents, port, datagram)

        self.patch(SubnetManagementAgents, "answer", answer)
        for words in ((), ("--balance",)):
            self.assertEqual([each["name"] for each in self.answerTo("routes", "-t.1", *words)], ["left"])
            self.assertEqual(self.status, 1)
        [use] = self.answerTo("routes", "-t.1", self.lid("left"), "--over", "3")
        self.assertEqual((use["from"]["name"], self.status), ("left", 1))

    def test_stale(self) -> None:
        """Tables of another node are not shown as those of a snapshot's switch, nor used with its links."""
        file = self.mktemp()
        self.printed("discover", "--save", file)
        self.fabric.node("right").setGUID(GUID.fromInt(0x77))
        self.assertEqual([each["name"] for each in self.answerTo("routes", "--load", file)], ["left"])
        self.assertEqual(self.status, 1)
        self.assertIn("it is left out: node 0000:0000:0000:0077 has its LID", self.complaints)
        self.printed("routes", "--balance", "--load", file)
        self.assertIn("may be old", str(self.status))

    def test_mistakes(self) -> None:
        self.printed("routes", self.lid("c"))
        self.assertIn("not a switch", str(self.status))
        self.refusedOptions("routes", "--lids", "9-3")
        self.refusedOptions("routes", "1", "2")


class ErrorsTests(NetFabricTestCase):
    def test_text(self) -> None:
        clean = self.printed("errors")
        self.assertIn("## Summary: 6 nodes checked, 0 bad nodes found\n", clean)
        self.assertEqual(self.status, 0)
        self.fabric.setCounters("left", 3, portXmitDiscards=7)
        printed = self.printed("errors")
        guid = f"{int(self.fabric.node('left').guid):#x}"
        self.assertIn(
            f'Errors for {guid} "left"\n   GUID {guid} port ALL: [PortXmitDiscards == 7]\n', printed
        )
        self.assertIn(f"   GUID {guid} port 3: [PortXmitDiscards == 7]\n", printed)
        self.assertIn("21 ports checked, 1 ports have errors beyond threshold", printed)
        self.assertEqual(self.status, 1)

    def test_bearable(self) -> None:
        self.fabric.setCounters("left", 3, portXmitDiscards=7, portRcvSwitchRelayErrors=5)
        path = Path(self.mktemp())
        path.write_text("PortXmitDiscards=7\n")
        answer = self.answerTo("errors", "-T", str(path), "--suppress-common")
        self.assertEqual((answer["ports"], self.status), ([], 0))
        answer = self.answerTo("errors", "--suppress=PortXmitDiscards,PortRcvSwitchRelayErrors")
        self.assertEqual(answer["ports"], [])
        self.assertEqual(self.answerTo("errors", "--hosts")["nodesChecked"], 3)
        self.printed("errors", "--suppress=Nonsense")
        self.assertIn("Nonsense", str(self.status))

    def test_clear(self) -> None:
        """Error and data counters are cleared by separate options."""
        self.printed("errors", "--clear")
        self.assertIn("clear the counters of errors of all ports", str(self.status))
        self.fabric.setCounters("c", 1, portRcvErrors=9, portRcvData=5, portMalformedPacketErrors=9)
        answer = self.answerTo("errors", "--data", "--details", "--clear", "--yes")
        port = next(each for each in answer["ports"] if each["name"] == "c")
        self.assertEqual(
            (port["errors"], port["details"]), ({"portRcvErrors": 9}, {"portMalformedPacketErrors": 9})
        )
        self.assertEqual(port["data"]["portRcvData"], 5)
        again = self.answerTo("errors", "--counters", "--clear-data", "-y")
        port = next(each for each in again["ports"] if each["name"] == "c")
        self.assertEqual((port["errors"], port["data"]["portRcvData"]), ({}, 5))
        again = self.answerTo("errors", "--counters")
        self.assertEqual(
            next(each for each in again["ports"] if each["name"] == "c")["data"]["portRcvData"], 0
        )

    def test_unreadDetails(self) -> None:
        """Causes of errors that a node does not return are reported, with the errors."""
        self.fabric.setCounters("c", 1, portRcvErrors=9, portMalformedPacketErrors=9)
        plain = PerformanceManagementAgents.answer

        def answer(agents: Any, port: Any, datagram: bytes) -> Any:
            isUnread = int.from_bytes(datagram[16:18], "big") == PortRcvErrorDetails.attributeID
            return None if isUnread else plain(agents, port, datagram)

        self.patch(PerformanceManagementAgents, "answer", answer)
        reported = self.answerTo("errors", "--details", "-t.1")
        self.assertEqual([port["errors"] for port in reported["ports"]], [{"portRcvErrors": 9}])
        self.assertIn("port 1: PortRcvErrorDetails: ", reported["silent"][0]["reason"])

    def test_clearUnread(self) -> None:
        """Counters that are not read are not cleared, nor those of nodes that had other LIDs."""
        self.assertIn("are not read", self.refusedOptions("errors", "--counters", "--clear"))
        for option in ("--clear", "--clear-data"):
            self.assertIn("omit --load", self.refusedOptions("errors", option, "--load", "site"))

    def test_moved(self) -> None:
        """Counters of a node that has the LID of a snapshot's node are not shown as those of the latter."""
        path = self.mktemp()
        self.printed("nodes", "--save", path)
        self.fabric.setCounters("c", 1, portRcvErrors=9)
        self.fabric.haveModule("left", 3)
        for name in ("c", "left"):
            self.fabric.node(name).setGUID(GUID.fromInt(int(self.fabric.node(name).guid) + 0x7700))
        answer = self.answerTo("errors", "--load", path)
        self.assertEqual((answer["ports"], answer["nodesChecked"], self.status), ([], 4, 1))
        self.assertIn("c (0000:0000:0010:0006): it is left out: node ", self.complaints)
        self.assertEqual(
            {row["name"] for row in self.answerTo("cables", "--load", path)}, {"a", "b", "d", "right"}
        )
        self.assertIn("it is left out", self.printed("check", "--load", path))
        self.assertIn("copy the file", self.refusedOptions("nodes", "--load", path, "--save", "other"))

    def test_reassigned(self) -> None:
        """Counters are not shown under the name of a node whose LID was assigned anew since the sweep."""
        self.fabric.setCounters("c", 1, portRcvErrors=9)
        plain = PerformanceManagementAgents.answer

        def answer(agents: Any, port: Any, datagram: bytes) -> Any:
            if port.node.identifier == "c" and not moved:
                moved.append(True)
                port.node.setGUID(GUID.fromInt(int(port.node.guid) + 0x7700))
            return plain(agents, port, datagram)

        moved: list[bool] = []
        self.patch(PerformanceManagementAgents, "answer", answer)
        reported = self.answerTo("errors")
        self.assertEqual((reported["ports"], self.status), ([], 1))
        self.assertEqual([each["name"] for each in reported["silent"]], ["c"])
        self.assertIn("has its LID", reported["silent"][0]["reason"])

    def test_clearReassigned(self) -> None:
        """Counters of a node that got the LID since the sweep are not cleared."""
        self.fabric.setCounters("c", 1, portRcvErrors=9)
        plain = SubnetManagementAgents.answer

        def answer(agents: Any, port: Any, datagram: bytes) -> Any:
            if port.node.identifier == "c" and datagram[1] == ManagementClass.SUBN_LID:
                port.node.setGUID(GUID.fromInt(0x77))
            return plain(agents, port, datagram)

        self.patch(SubnetManagementAgents, "answer", answer)
        reported = self.answerTo("errors", "--clear", "--yes")
        self.assertEqual([each["name"] for each in reported["silent"]], ["c"])
        self.assertEqual(
            [port["errors"] for port in self.answerTo("errors")["ports"]], [{"portRcvErrors": 9}]
        )

    def test_clearInterrupted(self) -> None:
        """After Ctrl-C, counters that were cleared before are shown."""
        self.fabric.setCounters("left", 3, portXmitDiscards=7)
        plain = PerformanceManagementAgents.answer
        ended: list[Any] = []

        def answer(agents: Any, port: Any, datagram: bytes) -> Any:
            return None if port.node.identifier == "c" else plain(agents, port, datagram)

        self.patch(PerformanceManagementAgents, "answer", answer)
        out, errors = io.StringIO(), io.StringIO()
        with redirect_stdout(out), redirect_stderr(errors):
            clearing = self.begin("errors", "--clear", "--yes")
            clearing.addErrback(ended.append)
            self.pump(1.0)
            clearing.cancel()
        self.assertIn("port 3: [PortXmitDiscards == 7]", out.getvalue())
        self.assertEqual(int(ended[0].value.code), INTERRUPTED)
        self.assertIn("interrupted at clearing: the counters of 5 nodes", errors.getvalue())


class CheckTests(NetFabricTestCase):
    def test_well(self) -> None:
        self.assertEqual(self.printed("check"), "6 nodes, 2 of them switches, with 7 links: all is well\n")
        self.assertEqual((self.printed("check", "-q"), self.status), ("", 0))
        self.assertEqual(self.answerTo("check")["isWell"], True)

    def test_findings(self) -> None:
        self.fabric.setCounters("b", 1, linkDownedCounter=3)
        self.fabric.port("c").info[31] = 1
        self.fabric.port("right", 1).info[31] = 1
        lines = self.printed("check", "-q").splitlines()
        self.assertEqual(self.status, 1)
        self.assertEqual([line.partition(":")[0] for line in lines[:-1]], ["width", "errors"])
        self.assertTrue(lines[-1].endswith("2 findings"))
        answer = self.answerTo("check", "--no-errors")
        self.assertEqual([each["kind"] for each in answer["findings"]], ["width"])
        self.assertFalse(answer["isWell"])
        self.fabric.linearOf(self.fabric.node("left"))[int(self.lid("c"))] = 0xFF
        unread = ["width", "incomplete", "unreachable-lid"]  # c does not answer at its LID
        for options, kinds in ((), unread), (("--no-tables",), ["width"]):
            found = self.answerTo("check", "--no-errors", *options)["findings"]
            self.assertEqual([each["kind"] for each in found], kinds)

    def test_unread(self) -> None:
        """Tables and counters that a node does not return are findings; the summary says that they are."""
        plain = SubnetManagementAgents.answer
        unread: list[int] = []

        def answer(agents: Any, port: Any, datagram: bytes) -> Any:
            isUnread = int.from_bytes(datagram[16:18], "big") in unread
            return None if isUnread and port.node.identifier == "b" else plain(agents, port, datagram)

        self.patch(SubnetManagementAgents, "answer", answer)
        for kind in (SLtoVLMappingTable, PKeyTable):
            path, unread[:] = self.mktemp(), [kind.attributeID]
            for end in (self.fabric.port("left", 2), self.fabric.port("right", 5)):
                poke(PortInfo, "partitionEnforcementInbound")(end.info, 1)
            lines = self.printed("check", "-q").splitlines()
            self.assertRegex(
                lines[0], r"incomplete: b \(.*\): tables of it were not read .* port 1: no answer"
            )
            self.assertRegex(lines[-1], ": 1 finding; not all was read and checked$")
            self.assertEqual(self.status, 1)
            self.printed("snapshot", path)
            self.assertEqual(self.output("check", "-q", "--load", path, device="").out.splitlines(), lines)

    def test_blind(self) -> None:
        for arguments in (["--load", "/nonexistent"], ["-T", "/nonexistent"], ["-d", "sim:/nonexistent"]):
            self.assertEqual(self.printed("check", *arguments), "")
            self.assertIn("txrdma check: ", str(self.status))


class DiffTests(NetFabricTestCase):
    def test_now(self) -> None:
        """A snapshot is compared with the current fabric, and with another snapshot."""
        before, after = self.mktemp(), self.mktemp()
        self.printed("discover", "--save", before)
        self.assertEqual((self.printed("diff", before), self.status), ("", 0))
        self.fabric.cut("c")
        self.pump(2)
        lines = self.printed("diff", before, "--save", after).splitlines()
        self.assertEqual(self.status, 1)
        self.assertEqual(
            [line.partition(":")[0] for line in lines], ["node-removed", "state-changed", "link-removed"]
        )
        answer = self.answerTo("diff", before, after)
        self.assertEqual([each["kind"] for each in answer], ["node-removed", "state-changed", "link-removed"])
        values = [answer[1][key] for key in ("name", "port", "before", "after")]
        self.assertEqual(values, ["right", 1, "ACTIVE", "DOWN"])
        back = self.answerTo("diff", after, before)
        self.assertEqual([each["kind"] for each in back], ["node-added", "state-changed", "link-added"])

    def test_mistakes(self) -> None:
        self.assertEqual(self.printed("diff", "/nonexistent"), "")
        self.assertIn("txrdma diff: ", str(self.status))
        self.refusedOptions("diff")
        self.refusedOptions("diff", "a", "b", "c")

    def test_diffWithoutLink(self) -> None:
        """If the local port has no link, the fabric cannot be compared: its nodes are not removed."""
        before, alone = self.mktemp(), self.mktemp()
        self.printed("discover", "--save", before)
        self.fabric.cut("a")
        self.pump(2)
        self.assertEqual(self.printed("diff", before), "")
        self.assertIn("txrdma diff: the local port reaches no other node", str(self.status))
        self.printed("discover", "--save", alone)
        self.assertEqual(self.printed("diff", alone), "")
        self.assertIn("something was not read", str(self.status))
        self.assertIn("node-removed", self.printed("diff", before, alone))

    def test_unread(self) -> None:
        """Nodes that do not answer, and those behind them, are not removed; the exit status is a failure."""
        before, after = self.mktemp(), self.mktemp()
        self.printed("discover", "--save", before)
        self.fabric.silence("right")
        self.printed("discover", "--save", after)
        for files in ((before,), (before, after), (after, before)):
            self.assertEqual(self.printed("diff", *files, "-t.1"), "", files)
            self.assertIn("unreachable at DR 0,1,", self.complaints)
            self.assertEqual(
                self.status, "txrdma diff: nothing differs in what was read, but something was not read"
            )
        self.fabric.cut("b", 1)
        self.pump(2)
        lines = self.printed("diff", before, "-t.1").splitlines()
        self.assertEqual(self.status, 1)
        self.assertEqual(
            [line.partition(" (")[0] for line in lines],
            ["state-changed: left", "link-removed: b"],  # b has a link to the unread switch, too
        )


class VendorCommandTests(NetFabricTestCase):
    def serve(self) -> None:
        agent = MADAgent(self.clock, self.fabric.attach("c"))
        self.addCleanup(agent.close)
        server = MADServer(agent)
        servePing(server, "c.example")
        serveSysstat(server, "c.example")

    def test_ping(self) -> None:
        self.serve()
        printed = self.printed("ping", self.lid("c"), "-c", "3")
        self.assertEqual(printed.count("Pong from c.example"), 3)
        self.assertIn("3 packets transmitted, 3 received, 0% packet loss, time 2000 ms", printed)
        self.assertEqual(self.status, 0)
        answer = self.answerTo("ping", self.lid("c"), "-c", "20", "--flood")
        self.assertEqual((answer["name"], answer["received"]), ("c.example", 20))
        self.assertLess(answer["seconds"], 1.0)

    def test_lostServer(self) -> None:
        """A server whose port is lost ends with an error: it would answer nobody."""
        ports: list[Any] = []
        plain = self.fabric.attach

        def attach(*at: Any) -> Any:
            ports.append(plain(*at))
            return ports[-1]

        self.patch(self.fabric, "attach", attach)
        for name in ("ping", "sysstat"):
            with redirect_stderr(io.StringIO()):
                serving = self.begin(name, "--server")
                self.pump(1.0)
                self.assertNoResult(serving)
                ports[-1].lose("pulled out")
                self.pump(1.0)
            self.assertIn("pulled out", str(self.failureResultOf(serving, SystemExit).value))

    def test_controlCharacters(self) -> None:
        """Names and texts that nodes send are printed without control characters, in errors as well."""
        self.fabric.node("c").description = "\x1b[2Jhost"
        lid = self.lid("c")
        for words in (
            *(("ping", lid, "-c", "1"), ("sysstat", lid), ("routes", lid), ("trace", lid), ("nodes",)),
            ("trace", lid, "77"),
        ):
            output = self.output(*words)
            everything = f"{output.out}{output.errors}{output.status}"
            self.assertIn("[2Jhost", everything, words)
            self.assertNotIn("\x1b", everything, words)

    def test_nobody(self) -> None:
        self.fabric.silence("c")
        answer = self.answerTo("ping", self.lid("c"), "-c", "2", "-t", "0.1")
        self.assertEqual((answer["sent"], answer["received"], answer["name"], self.status), (2, 0, None, 1))
        self.assertIn("100% packet loss", self.printed("ping", self.lid("c"), "-c1", "-t.1"))
        with redirect_stderr(io.StringIO()):
            asking = self.begin("smpquery", "NodeInfo", self.lid("c"), "--timeout", "0.5", "--retries", "1")
            self.pump(0.9)
            self.assertNoResult(asking)
            self.pump(0.5)
            self.failureResultOf(asking, SystemExit)

    def test_interrupted(self) -> None:
        self.serve()
        out = io.StringIO()
        with redirect_stdout(out):
            ending = self.begin("ping", self.lid("c"))
            self.pump(5.5)
            self.fabric.cut("c")  # so that the next request is not answered before Ctrl-C
            self.pump(0.6)
            self.assertNoResult(ending)
            self.clock.stop()
        self.successResultOf(ending)
        self.assertIn("6 packets transmitted, 6 received", out.getvalue())

    def test_statistics(self) -> None:
        """The summary has the loss of what was sent, and the times of what was answered, and nothing else."""
        self.assertRegex(Pings().text("7"), r"\n0 packets transmitted, 0 received, time 0 ms$")
        self.assertRegex(Pings(2).text("7"), r" 0 received, 100% packet loss, time 0 ms$")
        self.assertIn(" 0.1% packet loss", Pings(1000, [0.001] * 999).text("7"))
        self.assertIn(" 99.9% packet loss", Pings(1000, [0.001]).text("7"))

    def test_servers(self) -> None:
        device, self.device = self.device, f"{self.device}:node=c"
        errors = io.StringIO()
        with redirect_stderr(errors):
            pings, statistics = self.begin("ping", "--server"), self.begin("sysstat", "-S")
            self.device = device
            self.assertEqual(self.answerTo("ping", self.lid("c"), "-c1")["received"], 1)
            self.assertEqual(self.printed("sysstat", self.lid("c"), "ping"), "sysstat ping succeeded\n")
            self.assertEqual(list(self.answerTo("sysstat", self.lid("c"))), ["host", "cpu"])
            self.assertNoResult(pings)
            self.clock.stop()
        self.successResultOf(pings)
        self.successResultOf(statistics)
        self.assertIn("answered 1 requests", errors.getvalue())
        self.assertIn("answered 3 requests", errors.getvalue())

    def test_mistakes(self) -> None:
        for wrong in (
            ("ping",),
            ("ping", "1", "2"),
            ("ping", "1", "-S"),
            ("sysstat",),
            ("sysstat", "1", "disk"),
        ):
            self.refusedOptions(*wrong)


class RowsTests(SynchronousTestCase):
    def test_columns(self) -> None:
        out = io.StringIO()
        with redirect_stdout(out):
            showRows(("A", "Long"), [("first", 1), ("x", "")])
        self.assertEqual(out.getvalue(), "A      Long\nfirst  1\nx\n")

    def test_table(self) -> None:
        out = io.StringIO()
        out.isatty = lambda: True  # type: ignore[method-assign]  # as a terminal is
        with redirect_stdout(out):
            showRows(("A",), [("[bold]name",)])
        self.assertIn("[bold]name", out.getvalue())
        self.assertIn("━", out.getvalue())
