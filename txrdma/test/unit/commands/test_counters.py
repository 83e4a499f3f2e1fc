"""C{txrdma perfquery}."""

from __future__ import annotations

import io
import json
import sys
from typing import Any

from twisted.python.usage import UsageError

from txrdma.command import TxrdmaOptions
from txrdma.commands.common.values import portNumbers
from txrdma.commands.perfquery import ALIASES, KINDS
from txrdma.iba.types import GUID
from txrdma.mad.layouts.attributes import Method
from txrdma.sim.fabric.agents.pma import PerformanceManagementAgents
from txrdma.test.support.mad.commanding import SharedFabricTestCase, Terminal


class PerfQueryTests(SharedFabricTestCase):
    def test_own(self) -> None:
        output = self.output("perfquery")
        self.assertIn("# PortCounters: lid 1 port 1\n", output.out)
        self.assertEqual(output.fields["portSelect"], "1")

    def test_ports(self) -> None:
        """Ports are given as numbers and ranges, or as all ports of the node."""
        for arguments, ports in (
            (("9", "2"), [2]),
            (("9", "1,4-6"), [1, 4, 5, 6]),
            (("9", "--loop-ports"), list(range(1, 37))),
            (("2", "--loop-ports"), [1]),
            (("9",), [255]),
            (("9", "--all-ports"), [255]),
            (("2", "--all-ports"), [255]),
            (("9", "all"), [255]),
            (("9", "255"), [255]),
            (("9", "all", "--loop-ports"), list(range(1, 37))),
            (("9", "1-3", "--all-ports"), [255]),
        ):
            reported = self.output("perfquery", *arguments, "--json").json["ports"]
            self.assertEqual([each["portSelect"] for each in reported], ports, arguments)

    def test_enhanced(self) -> None:
        self.fabric.node("leaf0000").switchInfo[16] |= 0x08
        self.assertEqual(self.output("smpquery", "SI", "9").fields["enhancedPort0"], "1")
        reported = self.output("perfquery", "9", "--loop-ports", "--json").json["ports"]
        self.assertEqual([each["portSelect"] for each in reported], list(range(37)))

    def test_kinds(self) -> None:
        for name, kind in KINDS.items():
            output = self.output("perfquery", "9", "1", "--kind", name, "--json")
            if output.status is None:
                self.assertEqual(output.json["attribute"], kind.__name__)
            else:
                self.assertIn("not supported", str(output.status), name)
        for reference, actual in ALIASES.items():
            output = self.output("perfquery", "9", "1", "--kind", reference)
            self.assertEqual(output.out, self.output("perfquery", "9", "1", "--kind", actual).out)
        reported = self.output("perfquery", "9", "1", "-x", "--json").json
        self.assertEqual(reported["attribute"], "PortCountersExtended")

    def test_reset(self) -> None:
        self.fabric.traffic(1000.0, 10.0)
        self.clock.advance(5)
        before = int(self.output("perfquery", "2").fields["portXmitData"])
        self.assertGreater(before, 0)
        self.patch(sys, "stdin", io.StringIO())
        self.assertIn("--yes", str(self.output("perfquery", "2", "--reset").status))
        output = self.output("perfquery", "2", "--reset", "--yes")
        self.assertGreaterEqual(int(output.fields["portXmitData"]), before)
        self.assertLess(int(self.output("perfquery", "2").fields["portXmitData"]), before)
        self.assertEqual(self.output("perfquery", "2", "--reset-only", "--yes").out, "cleared\n")

    def silenced(self, port: int, method: Method) -> None:
        """Let the switch not answer requests of a method for the counters of a port."""
        plain = PerformanceManagementAgents.answer

        def answer(agents: Any, end: Any, datagram: bytes) -> Any:
            isSilent = datagram[3] == method and datagram[65] == port
            return None if isSilent else plain(agents, end, datagram)

        self.patch(PerformanceManagementAgents, "answer", answer)

    def test_notCleared(self) -> None:
        """Counters of ports that may have been cleared are shown, and a port that was not is an error."""
        self.fabric.setCounters("leaf0000", 2, portXmitDiscards=7)
        self.silenced(3, Method.SET)
        output = self.output("perfquery", "9", "2-4", "--reset", "--yes", "-t", "0.1")
        self.assertEqual(output.status, 1)
        self.assertIn("portXmitDiscards:................7", output.out)
        self.assertIn("not cleared: lid 9 port 3: PerformanceSet: no answer", output.errors)
        self.assertNotIn("cleared\n", output.out)
        output = self.output("perfquery", "9", "3", "--reset", "--yes", "-t", "0.1")
        self.assertIn("not cleared: lid 9: PerformanceSet: no answer", output.errors)
        self.assertEqual((output.fields["portSelect"], output.status), ("3", 1))
        again = self.output("perfquery", "9", "2", "--json").json["ports"]
        self.assertEqual(again[0]["portXmitDiscards"], 0)

    def test_otherNode(self) -> None:
        """If the LID was assigned to another node while the prompt waited, nothing is cleared."""
        self.fabric.setCounters("h00001", 1, portXmitDiscards=7)

        class Slow(Terminal):
            def readline(self, size: int = -1, /) -> str:  # type: ignore[override]  # text of a terminal
                node.setGUID(GUID.fromInt(0x77))
                return "y\n"

        node = self.fabric.node("h00001")
        self.patch(sys, "stdin", Slow())
        output = self.output("perfquery", "2", "--reset")
        self.assertIn("another node, or none, is at lid 2 now", str(output.status))
        self.assertEqual(self.output("perfquery", "2").fields["portXmitDiscards"], "7")

    def test_watchPorts(self) -> None:
        """A port that is not read does not affect the rates of others, and has its own since it was read."""
        for number in (2, 3):
            self.fabric.port("leaf0000", number).count().grow(self.clock.seconds(), portRcvPkts=1000.0)
        self.clock.callLater(1.5, self.silenced, 3, Method.GET)
        words = ("perfquery", "9", "2-3", "-w", "1", "-c", "3", "--json", "-t", "0.1", "--retries", "0")
        plain = PerformanceManagementAgents.answer
        self.clock.callLater(2.5, self.patch, PerformanceManagementAgents, "answer", plain)
        output = self.output(*words)
        self.assertEqual(output.errors.count("lid 9 port 3: "), 1)
        lines = [json.loads(line) for line in output.out.splitlines()]
        self.assertEqual([[each["port"] for each in line] for line in lines], [[2, 3], [2], [2, 3]])
        for line in lines:
            for each in line:
                self.assertApproximates(each["rcvPktsPerSecond"], 1000, 20)
        self.assertApproximates(lines[2][1]["seconds"], 2, 0.2)

    def test_mask(self) -> None:
        self.fabric.traffic(1000.0, 10.0)
        self.clock.advance(5)
        output = self.output("perfquery", "2", "-R", "--yes", "--mask", "0x1000", "--debug", "--debug")
        self.assertIn("PortCounters.counterSelect 0x1000", output.errors)

    def test_watch(self) -> None:
        counters = self.fabric.port("h00001").count()
        counters.grow(self.clock.seconds(), portXmitData=250_000.0, portRcvPkts=1000.0)
        output = self.output("perfquery", "2", "--watch", "2", "--count", "3", "--json")
        reported = [json.loads(line) for line in output.out.splitlines()]
        self.assertEqual(len(reported), 3)
        for [port] in reported:
            self.assertAlmostEqual(port["seconds"], 2, places=3)
            self.assertApproximates(port["xmitBytesPerSecond"], 1e6, 1e4)
            self.assertApproximates(port["rcvPktsPerSecond"], 1e3, 10)
        self.assertIn("1.000", self.output("perfquery", "2", "-w", "2", "-c", "1").out)

    def test_watchFull(self) -> None:
        self.fabric.setCounters("h00001", 1, portXmitData=(1 << 32) - 100)
        self.fabric.port("h00001").count().grow(self.clock.seconds(), portXmitData=1000.0)
        arguments = ("perfquery", "2", "--kind", "counters", "--watch", "1", "--count", "2")
        reported = [json.loads(line) for line in self.output(*arguments, "--json").out.splitlines()]
        self.assertEqual([each["saturated"] for [each] in reported], [["portXmitData"], ["portXmitData"]])
        self.assertIn("portXmitData is full: clear it", self.output(*arguments).out)
        self.patch(sys, "stdin", io.StringIO())
        self.assertIn("--yes", str(self.output(*arguments, "--reset").status))
        output = self.output(*arguments, "--reset", "--yes", "--json")
        rates = [json.loads(line)[0] for line in output.out.splitlines()]
        self.assertEqual([each["saturated"] for each in rates], [[], []])
        for each in rates:
            self.assertApproximates(each["xmitBytesPerSecond"], 4000, 100)

    def test_watchErrors(self) -> None:
        self.clock.callLater(0.5, self.fabric.setCounters, "h00001", 1, linkDownedCounter=3)
        output = self.output("perfquery", "2", "--watch", "1", "--count", "1", "--json")
        [port] = json.loads(output.out)
        self.assertEqual(port["counted"]["linkDownedCounter"], 3)
        self.assertIn("portUnicastXmitPkts", port["counted"])
        self.clock.callLater(0.5, self.fabric.setCounters, "h00001", 1, linkDownedCounter=255)
        text = self.output("perfquery", "2", "--watch", "1", "--count", "1").out
        self.assertIn("linkDownedCounter +252, linkDownedCounter is full: clear it\n", text)

    def test_watchLost(self) -> None:
        counters = self.fabric.port("h00001").count()
        counters.grow(self.clock.seconds(), portRcvPkts=1000.0)
        self.clock.callLater(1.5, self.fabric.silence, "h00001")
        self.clock.callLater(2.5, self.fabric.revive, "h00001")
        output = self.output("perfquery", "2", "-w", "1", "-c", "3", "--json", "-t", "0.1", "--retries", "0")
        self.assertEqual(output.errors.count("lid 2: "), 1)
        seconds = [json.loads(line)[0]["seconds"] for line in output.out.splitlines()]
        self.assertApproximates(seconds[0], 1, 0.1)
        self.assertApproximates(seconds[1], 2, 0.2)

    def test_watchLanes(self) -> None:
        self.fabric.setCounters("h00001", 1, portVLXmitWait3=0)
        self.fabric.port("h00001").count().grow(self.clock.seconds(), portVLXmitWait3=10.0)
        output = self.output("perfquery", "2", "--kind", "vlwait", "-w", "1", "-c", "1", "--json")
        counted = json.loads(output.out)[0]["counted"]
        self.assertEqual((counted["portVLXmitWait[3]"], counted["portVLXmitWait[2]"]), (10, 0))

    def test_parallel(self) -> None:
        begun = self.clock.seconds()
        device = "sim:fattree:8:latency=0.01"
        output = self.output("perfquery", "9", "1-36", "--loop-ports", "--json", device=device)
        self.assertEqual([each["portSelect"] for each in output.json["ports"]], list(range(1, 37)))
        self.assertLess(self.clock.seconds() - begun, 36 * 0.01)

    def test_samples(self) -> None:
        control = self.output("perfquery", "9", "2", "--kind", "samples", "--json").json["ports"][0]
        self.assertEqual((control["portSelect"], control["sampleStatus"]), (2, 0))

    def test_extendedSpeeds(self) -> None:
        output = self.output("perfquery", "2", "-R", "--yes", "--kind", "speeds", "--debug", "--debug")
        self.assertIn("counterSelect 0xffffffffffffffff", output.errors)

    def test_mistakes(self) -> None:
        for arguments, words in (
            (["1", "x"], "1,4-7"),
            (["1", "9-3"], "expected 0 to 255"),
            (["1", "300"], "expected 0 to 255"),
            (["--kind", "foo"], "vlwait"),
            (["--watch", "1", "--reset-only"], "don't go together"),
            (["--kind", "samples", "--reset"], "samples have no"),
            (["1", "1", "0xfff"], "--mask"),
            (["1", "-R", "--mask", "0x10000"], "--mask 65536: expected 1 to 65535"),
            (["1", "-R", "--mask", "0"], "--mask 0: expected 1 to 65535"),
            (["1", "-r", "-w", "1", "--mask", "1"], "don't go together"),
            (["1", "-R", "--mask", "9" * 400], "9: expected a number, 0 or more, of at most 64 bits"),
        ):
            error = self.assertRaises(UsageError, TxrdmaOptions().parseOptions, ["perfquery", *arguments])
            self.assertIn(words, str(error))
        self.assertEqual(portNumbers("1,4-6"), [1, 4, 5, 6])
        words = "txrdma perfquery: lid 9 has 36 ports, and no port 99"
        self.assertEqual(self.output("perfquery", "9", "1,99").status, words)
