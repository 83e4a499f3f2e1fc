"""C{txrdma portstate}."""

from __future__ import annotations

import io
import re
import sys
from contextlib import redirect_stdout
from typing import Any
from unittest.mock import patch

from twisted.internet.defer import CancelledError, Deferred
from twisted.python.failure import Failure
from twisted.python.usage import UsageError
from twisted.trial.unittest import SynchronousTestCase

from txrdma.command import TxrdmaOptions
from txrdma.commands.common.portchanges import OPERATIONS, parsed, PortChange
from txrdma.error import InvalidRequest
from txrdma.iba.types import GUID
from txrdma.iba.verbs import PhysicalState, PortState
from txrdma.kit.rawfields import poke
from txrdma.mad.layouts.attributes import Method
from txrdma.mad.layouts.smp import PortInfo
from txrdma.mad.layouts.values import LinkWidth
from txrdma.sim.fabric.agents import sma
from txrdma.sim.fabric.agents.sma import SubnetManagementAgents
from txrdma.sim.fabric.model.nodes import SimulatedPort
from txrdma.test.support.mad.commanding import CommandTestCase, SharedFabricTestCase, Terminal


class QueryTests(SharedFabricTestCase):
    def test_query(self) -> None:
        reported = self.output("portstate", "0,1", "3", "--json").json
        self.assertEqual((reported["nodeType"], reported["port"]), ("SWITCH", 3))
        self.assertEqual(reported["portInfo"]["portState"], "ACTIVE")
        self.assertEqual(reported["peer"]["lid"], 3)
        self.assertEqual(reported["warnings"], [])
        text = self.output("portstate", "0,1", "3").out
        self.assertIn("SWITCH PortInfo: DR 0,1 port 3", text)
        self.assertIn("Peer PortInfo: port 1", text)

    def test_slower(self) -> None:
        """A link that is narrower than both of its ports allow is reported."""
        setWidth, info = poke(PortInfo, "linkWidthActive"), self.fabric.port("leaf0000", 3).info
        setWidth(info, LinkWidth.X1)
        self.addCleanup(setWidth, info, LinkWidth.X4)
        warning = "the link's width is below what both ends have enabled"
        self.assertEqual(self.output("portstate", "0,1", "3", "--json").json["warnings"], [warning])
        self.assertIn(warning, self.output("portstate", "0,1", "3").out.splitlines())

    def test_several(self) -> None:
        reported = self.output("portstate", "9", "2,4-5", "--json").json
        self.assertEqual([each["port"] for each in reported], [2, 4, 5])
        self.assertEqual(self.output("portstate", "9", "2,4-5").out.count("SWITCH PortInfo: lid 9 port"), 3)


class ChangeTests(SharedFabricTestCase):
    def info(self, lid: str = "9", port: str = "3") -> dict[str, Any]:
        [answer] = self.output("smpquery", "PI", lid, port, "--json").json["answers"]
        fields: dict[str, Any] = answer["fields"]
        return fields

    def test_on(self) -> None:
        output = self.output("portstate", "9", "3", "on", "--yes", "--debug")
        self.assertNotIn("SET PortInfo", output.errors)

    def test_masks(self) -> None:
        for operation, value, field, shown in (
            ("speed", "SDR,DDR", "linkSpeedEnabled", "2.5 Gbps or 5.0 Gbps"),
            ("espeed", "fdr", "linkSpeedExtEnabled", "14.0625 Gbps"),
            ("width", "1x", "linkWidthEnabled", "1X"),
        ):
            output = self.output("portstate", "9", "3", operation, value, "--yes")
            self.assertEqual(output.fields[field], shown)
        self.assertIn(
            "the port supports", str(self.output("portstate", "9", "3", "espeed", "NDR", "--yes").status)
        )

    def test_together(self) -> None:
        output = self.output(
            "portstate", "9", "3", "width", "1x", "mtu", "1024", "vls", "VL0-1", "-y", "--debug"
        )
        self.assertEqual(output.errors.count("SET PortInfo"), 1)
        reported = self.info()
        self.assertEqual(
            (reported["linkWidthEnabled"], reported["neighborMTU"], reported["operationalVLs"]),
            (1, "MTU_1024", 2),
        )
        words = str(self.output("portstate", "9", "3", "mtu", "4096", "vls", "5", "-y").status)
        self.assertIn("the port supports", words)

    def test_ends(self) -> None:
        self.output("portstate", "2", "1", "lid", "0x22", "lmc", "1", "smlid", "7", "mkeylease", "60", "-y")
        reported = self.info("DR 0,1,2", "1")
        self.assertEqual(
            (reported["lid"], reported["lmc"], reported["masterSMLID"], reported["mkeyLeasePeriod"]),
            (0x22, 1, 7, 60),
        )
        words = str(self.output("portstate", "9", "3", "lid", "5", "-y").status)
        self.assertIn("only for port 0", words)

    def test_key(self) -> None:
        self.patch(sys, "stdin", Terminal("y\n"))
        output = self.output("portstate", "3", "1", "mkey", "0x1234", "mkeyprot", "2")
        self.assertEqual(output.status, None)
        self.assertIn("mkey ..., mkeyprot 2 port 1 of lid 3? [y/N]", output.errors)
        self.assertEqual(output.fields["mkeyProtectBits"], "2")
        reported = self.output("smpquery", "PI", "3", "--mkey", "0x1234").fields
        self.assertEqual(reported["mkey"], "0x0000000000001234")

    def test_fdr10(self) -> None:
        self.assertIn(
            "does not support it", str(self.output("portstate", "9", "3", "fdr10", "on", "-y").status)
        )
        self.fabric.runFDR10("h00002")
        for word, number in (("off", 0), ("on", 1)):
            self.assertEqual(self.output("portstate", "9", "3", "fdr10", word, "-y").status, None)
            reported = self.output("smpquery", "MEPI", "9", "3", "--json").json["answers"][0]["fields"]
            self.assertEqual(reported["linkSpeedEnabled"], number)

    def test_confirmation(self) -> None:
        for answer, isDone in (("n\n", False), ("\n", False), ("y\n", True)):
            self.patch(sys, "stdin", Terminal(answer))
            output = self.output("portstate", "9", "4", "disable", "--debug")
            self.assertIn("disable port 4 of lid 9? [y/N]", output.errors)
            self.assertEqual("SET PortInfo" in output.errors, isDone)
        self.patch(sys, "stdin", io.StringIO("y\n"))
        output = self.output("portstate", "9", "5", "disable")
        self.assertEqual(output.status, "disable port 5 of lid 9: this changes the fabric; use --yes")


class UnconfirmedTests(SharedFabricTestCase):
    """A change that a port does not report is not reported as done."""

    def silence(self, name: str, number: int) -> None:
        """Let a node not answer a Set of the PortInfo of a port."""
        plain = SubnetManagementAgents.answer

        def answer(agents: Any, port: Any, datagram: bytes) -> Any:
            isSet = datagram[3] == Method.SET and datagram[16:18] == PortInfo.attributeID.to_bytes(2, "big")
            isSilent = isSet and (port.node.identifier, datagram[23]) == (name, number)
            return None if isSilent else plain(agents, port, datagram)

        self.patch(SubnetManagementAgents, "answer", answer)

    def test_ignored(self) -> None:
        """A port that accepts a state but does not reach it is an error."""
        self.patch(sma, "setPortInfo", lambda port, content: False)
        for operation, state in (("disable", "ACTIVE, LINK_UP"), ("arm", "ACTIVE, LINK_UP")):
            port = self.fabric.port("leaf0000", 4)
            if operation == "arm":
                port.become(PortState.INIT, PhysicalState.LINK_UP)
                state = "INIT, LINK_UP"
            output = self.output("portstate", "9", "4", operation, "--yes")
            self.assertIn(f"port 4 of lid 9 did not reach the state, and is {state}", str(output.status))

    def test_late(self) -> None:
        """A port that takes time to reach the state is shown in it."""
        port = self.fabric.port("leaf0000", 4)

        def setLater(end: Any, content: bytes) -> bool:
            self.clock.callLater(0.25, port.become, PortState.DOWN, PhysicalState.DISABLED)
            return False

        self.patch(sma, "setPortInfo", setLater)
        output = self.output("portstate", "9", "4", "disable", "--yes", "--json")
        self.assertEqual(output.json["portInfo"]["portPhysicalState"], "DISABLED")
        self.assertEqual(output.status, None)

    def test_lost(self) -> None:
        """A Set to the port on the path that was lost is not taken for one whose response was lost."""
        self.silence("leaf0000", 1)
        for operation, words in (("disable", "did not reach the state"), ("down", "whether it was done")):
            output = self.output("portstate", "9", "1", operation, "--yes", "--force", "-t", "0.1")
            self.assertIn(words, str(output.status))

    def test_several(self) -> None:
        """Ports that were changed before one that failed are shown."""
        self.silence("leaf0000", 4)
        output = self.output("portstate", "9", "3-5", "width", "1x", "--yes", "--json", "-t", "0.1")
        self.assertEqual(
            [(each["port"], bool(each["error"])) for each in output.json], [(3, False), (4, True)]
        )
        self.assertIn("port 4: SubnSet: no answer", output.errors)
        self.assertEqual(output.status, 1)

    def test_hostPort(self) -> None:
        """Port 0 of a host is the port by which it is reached."""
        output = self.output("portstate", "2", "0", "disable", "--yes")
        self.assertIn("port 1 of lid 2 is on the path to it", str(output.status))
        self.assertEqual(self.output("portstate", "2", "0", "--json").json["port"], 1)

    def test_silentPeer(self) -> None:
        """A peer that does not answer is not taken for one that is not there."""
        self.fabric.silence("h00002")
        for words in (("0,1", "3"), ("9", "3")):
            reported = self.output("portstate", *words, "--json", "-t", "0.1").json
            self.assertEqual(reported["warnings"], ["the other end of the link did not answer"])

    def test_unsupported(self) -> None:
        """If one of several operations is not possible, none is done."""
        self.fabric.runFDR10("h00002")
        self.output("portstate", "9", "3", "fdr10", "off", "espeed", "NDR", "-y")
        [answer] = self.output("smpquery", "MEPI", "9", "3", "--json").json["answers"]
        self.assertEqual(answer["fields"]["linkSpeedEnabled"], 1)

    def test_otherNode(self) -> None:
        """Nothing is changed at a node that came to the path while the prompt waited."""

        class Slow(Terminal):
            def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # text of a terminal
                node.setGUID(GUID.fromInt(int(node.guid) + 0x7700))
                return "y\n"

        node = self.fabric.node("h00002")
        for words, where in (
            (("3", "1", "width", "1x"), "another node, or none, is at lid 3 now"),
            (("--everywhere", "width", "1x"), "another node is at DR 0,1,3 now"),
        ):
            self.patch(sys, "stdin", Slow())
            output = self.output("portstate", *words)
            self.assertIn(where, f"{output.status} {output.errors}")
            self.assertTrue(output.status)


class OwnWayTests(SharedFabricTestCase):
    def test_refused(self) -> None:
        for target, port in (("9", "1"), ("DR 0", "1"), ("2", "1"), ("0,1", "1-3")):
            for operation in ("disable", "down", "reset"):
                output = self.output("portstate", target, port, operation, "--yes", "--debug")
                self.assertIn("use --force", str(output.status))
                self.assertNotIn("SET", output.errors)
        self.assertEqual(self.output("portstate", "9", "1", "width", "4x", "--yes").status, None)

    def test_forced(self) -> None:
        output = self.output("portstate", "9", "1,4", "disable", "--yes", "--force", "-t", "0.1")
        self.assertIn("no answer after disable", output.out)
        self.assertEqual(output.status, 1)
        states = [self.fabric.port("leaf0000", number).physicalState for number in (1, 4)]
        self.assertEqual(list(map(int, states)), [3, 3])

    def test_reset(self) -> None:
        output = self.output("portstate", "9", "1", "reset", "--yes", "--force", "-t", "0.1", "--debug")
        self.assertEqual(len(set(re.findall(r"SET PortInfo modifier 0x1 TID (\w+)", output.errors))), 1)
        self.assertEqual(int(self.fabric.port("leaf0000", 1).physicalState), 5)


class InterruptedResetTests(SharedFabricTestCase):
    """A reset that ends before its second step does not leave the port disabled."""

    device = "sim:fattree:8:latency=0.01"

    def setUp(self) -> None:
        super().setUp()
        self.port = self.fabric.port("leaf0000", 3)
        self.failures: list[Failure] = []

    def disabled(self) -> Deferred[None]:
        """Begin a reset, and return its Deferred when the port is disabled."""
        done = self.begin("portstate", "9", "3", "reset", "--yes")
        done.addErrback(self.failures.append)
        for _ in range(40):
            if self.port.physicalState == PhysicalState.DISABLED:
                return done
            self.clock.advance(0.005)
        self.fail(f"the port was not disabled: {self.failures}")

    def test_cancelled(self) -> None:
        """Ctrl-C enables the port."""
        self.disabled().cancel()
        self.pump(5.0)
        self.assertIsInstance(self.failures[0].value, CancelledError)
        self.assertEqual(self.port.physicalState, PhysicalState.LINK_UP)

    def test_failed(self) -> None:
        """So does an error status of the Get between the steps."""
        plain = SubnetManagementAgents.answer

        def answer(agents: Any, port: Any, datagram: bytes) -> Any:
            reply = plain(agents, port, datagram)
            assert reply is not None
            reply[4:6] = b"\x00\x0c"
            return reply

        with redirect_stdout(io.StringIO()):
            self.disabled()
            with patch.object(SubnetManagementAgents, "answer", answer):
                self.pump(0.015)
            self.pump(30.0)
        self.assertEqual(len(self.failures), 1)
        self.assertEqual(self.port.physicalState, PhysicalState.LINK_UP)


class EverywhereTests(SharedFabricTestCase):
    device = "sim:fattree:40"

    def states(self, *exceptOf: SimulatedPort | None) -> set[int]:
        """Return the states of all other ports that have a link."""
        return {
            int(port.state)
            for node in self.fabric.nodes.values()
            for port in node.ports
            if port.number and port.neighbor is not None and port not in exceptOf
        }

    def test_initialized(self) -> None:
        self.assertEqual(self.states(), {PortState.ACTIVE})
        output = self.output("portstate", "--everywhere", "down", "--yes")
        self.assertEqual((output.status, output.errors), (None, ""))
        own = self.fabric.port("h00000")
        others = self.states(own, own.neighbor)
        self.assertEqual((others, int(own.state)), ({PortState.INIT}, PortState.ACTIVE))
        self.output("portstate", "--everywhere", "down", "--yes", "--force")
        self.assertEqual(self.states(), {PortState.INIT})
        self.assertIn("ports of", self.output("portstate", "--everywhere", "arm", "--yes").out)
        self.output("portstate", "--everywhere", "active", "--yes")
        self.assertEqual(self.states(), {PortState.ACTIVE})

    def test_refusals(self) -> None:
        output = self.output("portstate", "--everywhere", "espeed", "NDR", "--yes", "--json")
        self.assertEqual(output.status, 1)
        self.assertTrue(all("supports" in each["error"] for each in output.json))

    def test_silent(self) -> None:
        self.fabric.silence("h00039")
        output = self.output("portstate", "--everywhere", "down", "--yes", "-t", "0.1", "--json")
        self.assertEqual(output.status, 1)
        self.assertEqual([each["port"] for each in output.json if each["error"]], [None])
        self.assertIn("unreachable at DR 0,1,", output.errors)

    def test_noLink(self) -> None:
        """If the local port has no link, nothing was done anywhere else, and the status says so."""
        self.fabric.cut("h00000")
        self.pump(2)
        output = self.output("portstate", "--everywhere", "arm", "--yes")
        self.assertEqual(output.status, 1)
        self.assertIn("no-link at h00000", output.errors)

    def test_mistakes(self) -> None:
        for arguments in (["--everywhere"], ["--everywhere", "lid", "7"]):
            self.assertRaises(UsageError, TxrdmaOptions().parseOptions, ["portstate", *arguments])


class WordsTests(SynchronousTestCase):
    def test_mistakes(self) -> None:
        for arguments, words in (
            (["9"], "TARGET and PORT"),
            (["9", "x"], "1,4-7"),
            (["9", "255"], "from 0 to 254"),
            (["9", "1", "explode"], "there are query"),
            (["9", "1", "speed"], "a value"),
            (["9", "1", "disable", "7"], "no operation '7'"),
            (["9", "1", "width", "7z"], "width 7z: expected one of 1x"),
            (["9", "1", "speed", "9" * 5000], "expected one of sdr"),
            (["9", "1", "query", "disable"], "query excludes"),
            (["9", "1", "mtu", "1000"], "256"),
            (["9", "1", "lmc", "8"], "from 0 to 7"),
            (["9", "1", "lid", "0xc000"], "to 49151"),
            (["9", "1", "fdr10", "perhaps"], "on or off"),
            (["9", "1", "arm", "active"], "arm and active are separate steps"),
            (["--everywhere", "arm", "active"], "one command for each"),
        ):
            error = self.assertRaises(UsageError, TxrdmaOptions().parseOptions, ["portstate", *arguments])
            self.assertIn(words, str(error))

    def test_asked(self) -> None:
        [change] = parsed(["mkey", "x"], lambda prompt: "0x99")
        self.assertEqual((change, str(change)), (PortChange("mkey", "0x99"), "mkey ..."))

        def end(prompt: str) -> str:
            raise EOFError

        self.assertRaises(UsageError, parsed, ["mkey", "x"], end)  # Ctrl-D

    def test_ibportstateOperations(self) -> None:
        reference = (
            "enable disable reset speed espeed fdr10 width query on off down arm active vls mtu lid smlid "
            "lmc mkey mkeylease mkeyprot"
        )
        self.assertEqual(set(OPERATIONS) - set(reference.split()), {"espeed2"})
        self.assertEqual(set(reference.split()) - set(OPERATIONS), set())

    def test_fastest(self) -> None:
        info = PortInfo(linkSpeedExtSupported2=1)
        self.assertEqual(PortChange("espeed2", "XDR").fields(info), {"linkSpeedExtEnabled2": "1"})
        self.assertRaises(InvalidRequest, PortChange("espeed2", "XDR").fields, PortInfo())


class NumbersTests(CommandTestCase):
    def test_missing(self) -> None:
        self.assertIn("has 36 ports", str(self.output("portstate", "9", "37").status))
