"""Faults of links whose cables are moved: whether they follow the cable or stay with the port."""

from __future__ import annotations

from collections.abc import Iterable

from twisted.trial.unittest import SynchronousTestCase

from txrdma.fabric.health import Finding
from txrdma.fabric.model import Fabric, Port, PortKey
from txrdma.iba.types import GUID
from txrdma.iba.verbs import NodeType
from txrdma.mad.layouts.smp import NodeInfo
from txrdma.monitor.diagnosis import cablemoves
from txrdma.monitor.diagnosis.cablemoves import CableMoves, REMEMBERED_SECONDS
from txrdma.monitor.reading.surveyor import Surveyor
from txrdma.test.unit.monitor.test_poller import PollerTestCase


class MoveTests(SynchronousTestCase):
    """Two switches and two hosts, whose links change."""

    def setUp(self) -> None:
        self.fabric = Fabric()
        self.serials: dict[Port, str | None] = {}
        self.moves = CableMoves()
        for number, name in enumerate(("s", "t", "h", "i"), 1):
            kind = NodeType.SWITCH if name in "st" else NodeType.CHANNEL_ADAPTER
            guid = GUID.fromInt(number)
            info = NodeInfo(nodeType=kind, nodeGUID=guid, portGUID=guid, numPorts=4)
            self.fabric.add(info)[0].description = name

    def port(self, name: str) -> Port:
        node = next(node for node in self.fabric.nodes.values() if node.description == name[0])
        return node.port(int(name[1:]))

    def link(self, *pairs: str) -> None:
        """Replace all links."""
        for port in self.fabric.ports():
            port.peer = None
        for pair in pairs:
            self.assertTrue(self.fabric.link(*map(self.port, pair.split("-"))))

    def text(self, name: str, now: float = 1.0, kind: str = "symbol-errors") -> str:
        port = self.port(name)
        finding = Finding(kind, str(port), "many", port.node.guid, port.number)
        (found,) = self.moves.explained(self.fabric, [finding], now, lambda port: self.serials.get(port, ""))
        return found.text.replace(" (0000:0000:0000:000", "").translate({ord(each): None for each in "1234)"})

    def test_cable(self) -> None:
        """The cable of a host that is moved to another port of a switch, with its fault."""
        self.link("s1-h1")
        self.assertEqual(self.text("s1"), "many")
        self.link("s2-h1")
        self.assertIn("follows the cable", self.text("s2", 2.0))
        self.assertIn("follows the cable", self.text("h1", 2.0))
        self.assertIn("follows the cable", self.text("s2", 3.0))  # and it is not forgotten

    def test_port(self) -> None:
        """A port of a switch with the cable of another host."""
        self.link("s1-h1")
        self.text("s1")
        self.link("s1-i1")
        for name in ("s1", "i1"):
            self.assertIn("stays with the port: s", self.text(name, 2.0))

    def test_switches(self) -> None:
        """Between switches, the cable is known by the port that has not changed."""
        self.link("s1-t1")
        self.text("s1")
        self.link("s2-t1")
        self.assertIn("follows the cable", self.text("s2", 2.0))
        self.assertIn("stays with the port: t", self.text("t1", 2.0))

    def test_serials(self) -> None:
        """A serial number decides which cable it is."""
        for serial, expected in (("A", "follows the cable"), ("B", "stays with the port")):
            self.moves = CableMoves()
            self.serials = {self.port("t1"): "A"}
            self.link("s1-t1")
            self.text("t1")
            self.serials = {self.port("t1"): serial}
            self.link("s2-t1")
            for name in ("s2", "t1"):
                self.assertIn(expected, self.text(name, 2.0))

    def test_bothEnds(self) -> None:
        """A cable of which both ends were moved is known by its serial number only."""
        self.serials = {self.port("s1"): "A", self.port("s2"): "A"}
        self.link("s1-t1")
        self.text("s1")
        self.link("s2-t2")
        self.assertRegex(self.text("t2", 2.0), "many; the fault follows the cable: [st] .*had symbol-errors")
        self.assertIn("follows the cable", self.text("s2", 3.0))  # and it is not forgotten
        self.serials = {}
        self.link("s3-t3")
        self.assertEqual(self.text("s3", 4.0), "many")

    def test_doubtful(self) -> None:
        """Nothing is reported of a cable before its serial number is read again."""
        self.serials = {self.port("t1"): "A"}
        self.link("s1-t1")
        self.text("t1")
        self.link("s2-t1")
        self.serials = {self.port("t1"): None}
        self.assertEqual(self.text("t1", 2.0), "many")
        self.serials = {self.port("t1"): "B"}
        self.assertIn("stays with the port: t", self.text("t1", 3.0))

    def test_others(self) -> None:
        """Other kinds, other ports, links that are down, and faults of last week are not compared."""
        self.link("s1-h1")
        self.text("s1")
        self.link("s2-i1")
        self.assertEqual(self.text("s2", 2.0), "many")
        self.link("s2-h1")
        self.assertEqual(self.text("s2", 2.0, kind="discards"), "many")
        self.assertEqual(self.text("s4", 2.0), "many")
        self.assertEqual(self.text("s2", 2.0 + REMEMBERED_SECONDS), "many")

    def test_bound(self) -> None:
        """A limited number of ports is remembered: the latest."""
        self.patch(cablemoves, "MOST_FAULTS", 4)
        for number in range(1, 5):
            self.link(f"s{number}-t{number}")
            self.text(f"s{number}", number)
        self.assertEqual(len(self.moves), 4)
        self.link("s1-t4")
        self.assertIn("the fault", self.text("s1", 9.0))

    def rounds(self, *names: str) -> list[int]:
        """Let these ports have errors in each of four rounds; return the number of events of each."""
        found = [Finding("symbol-errors", "", "many", *key) for key in self.keys(names)]
        numbers = []
        for now in range(4):
            self.moves.explained(self.fabric, found, now, lambda port: self.serials.get(port, ""))
            numbers.append(len(self.moves.events(self.fabric, now)))
        return numbers

    def keys(self, names: Iterable[str]) -> list[PortKey]:
        return [(port.node.guid, port.number) for port in map(self.port, names)]

    def test_modules(self) -> None:
        """A fault at both ends of a link whose modules have different serial numbers is stored once."""
        self.link("s1-t1")
        self.serials = {self.port("s1"): "A", self.port("t1"): "B"}
        self.assertEqual(self.rounds("s1", "t1"), [2, 0, 0, 0])

    def test_tooMany(self) -> None:
        """Of more ports with faults than are remembered, the same ones are, without events in each round."""
        self.patch(cablemoves, "MOST_FAULTS", 4)
        self.link("s1-t1", "s2-t2", "s3-t3")
        self.assertEqual(self.rounds("s1", "s2", "s3"), [4, 0, 0, 0])
        self.assertEqual(len(self.moves), 4)


class CableTestCase(PollerTestCase):
    """Errors between two switches, at a monitor that reads the serial numbers of cables."""

    def setUp(self) -> None:
        super().setUp()
        self.fabric.haveModules()
        for name in ("left", "right"):
            self.fabric.haveModule(name, 3)
        self.surveyed(35.0)
        self.assertNotIn("the fault", self.textAt("left", 3))

    def surveyed(self, seconds: float) -> None:
        """Let the monitor begin, and read all tables."""
        self.started(seconds)
        surveyor = Surveyor(self.clock, self.agent, self.poller, 900.0)
        surveyor.start()
        self.addCleanup(surveyor.stop)
        self.pump(180.0)

    def textAt(self, name: str, number: int) -> str:
        """Return the text of the finding of errors at a port, which has some for a while."""
        self.fabric.growCounters(name, number, symbolErrorCounter=1.0)
        self.pump(180.0)
        self.fabric.growCounters(name, number, symbolErrorCounter=0.0)
        guid = self.fabric.node(name).guid
        (text,) = (
            entry.finding.text
            for entry in self.poller.findings.log.open.values()
            if (entry.finding.kind, entry.finding.guid, entry.finding.port) == ("symbol-errors", guid, number)
        )
        return text


class SwitchTests(CableTestCase):
    """Cables that are moved while the monitor runs."""

    def test_followed(self) -> None:
        """A cable that was moved at the other end is known by its serial number at the port with errors."""
        self.fabric.move("right", 3, "right", 7)
        self.assertRegex(self.textAt("left", 3), "; the fault follows the cable: right .* port 3 had")

    def test_stayed(self) -> None:
        """With the cable of another link at the port, its serial number shows that the port has the fault."""
        self.fabric.move("left", 3, "left", 7)
        self.fabric.move("left", 4, "left", 3)
        self.assertRegex(self.textAt("left", 3), "; the fault stays with the port: left .* port 3 had")


class MonitorTests(PollerTestCase):
    """A link with symbol errors in a monitored fabric, whose cable is moved."""

    def grow(self, number: int, perSecond: float) -> None:
        self.fabric.growCounters("right", number, symbolErrorCounter=perSecond)

    def faulty(self) -> dict[int | None, str]:
        """Return the texts of open findings of symbol errors, by the port of the right switch."""
        return {
            entry.finding.port: entry.finding.text
            for entry in self.poller.findings.log.open.values()
            if entry.finding.kind == "symbol-errors"
        }

    def setUp(self) -> None:
        super().setUp()
        self.started(60.0)
        self.grow(1, 1.0)
        self.pump(60.0)
        self.assertEqual(["the fault" in text for text in self.faulty().values()], [False])
        self.grow(1, 0.0)
        self.fabric.move("right", 1, "right", 7)
        self.pump(120.0)
        self.assertEqual(self.faulty(), {})  # the errors of the former link are over

    def test_followed(self) -> None:
        """Errors that continue at the other port follow the cable."""
        self.grow(7, 1.0)
        self.pump(60.0)
        (text,) = self.faulty().values()
        self.assertRegex(text, r"; the fault follows the cable: right .* port 1 had symbol-errors before")

    def test_stayed(self) -> None:
        """Errors that continue at the port with the cable of another host stay with the port."""
        self.fabric.move("right", 5, "right", 1)
        self.pump(120.0)
        self.grow(1, 1.0)
        self.pump(60.0)
        (text,) = self.faulty().values()
        self.assertRegex(text, r"; the fault stays with the port: right .* port 1 had .* to c .* port 1")
