"""Adaptive routing: all ports of a group are checked, traced and counted; unreadable tables are reported."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from txrdma.fabric import routechecks
from txrdma.fabric.adaptive import NO_GROUP
from txrdma.fabric.health import Finding
from txrdma.fabric.recorder import record
from txrdma.fabric.recording import RecordedRPCs
from txrdma.fabric.routechecks import routeFindings
from txrdma.fabric.routeuse import balances, usesOf
from txrdma.fabric.routing import DirectView, trace
from txrdma.fabric.tables import tableFindings, Tables, TableSurvey
from txrdma.mad.agent import MADAgent
from txrdma.mad.layouts.adaptive import (
    AdaptiveEntry,
    AdaptiveForwardingTable,
    AdaptiveGroupTable,
    AdaptiveRoutingInfo,
    LIDState,
)
from txrdma.sim.fabric.model.adaptive import adaptiveTables
from txrdma.sim.nets.fattree import fatTree
from txrdma.sim.nets.netfile import Net, parseNet
from txrdma.test.support.mad.simulated import FabricTestCase

RING = """
width=3
speed=7

Switch 8 "s0"
[1] "s1"[2]
[2] "s2"[1]
[5] "a"[1]

Switch 8 "s1"
[1] "s2"[2]
[2] "s0"[1]
[5] "b"[1]

Switch 8 "s2"
[1] "s0"[2]
[2] "s1"[1]
[5] "c"[1]

Hca 1 "a"
Hca 1 "b"
Hca 1 "c"
"""
"""Three switches in a ring, whose port 1 leads around it in one direction."""


class LayoutTests(SynchronousTestCase):
    def test_offsets(self) -> None:
        """Fields are at the bits of OpenSM's C{ib_types.h}."""
        info = AdaptiveRoutingInfo.decode(bytes((0, 0, 0x03, 0x01, 0x00, 0x00, 0x58, 0x00)).ljust(64, b"\0"))
        self.assertEqual((info.isEnabled, info.subgroupsActive), (True, 3))
        self.assertEqual((info.groupTop, info.groupCap), (5, 0x800))
        entry = AdaptiveEntry.decode(b"\x43\x07\x91\x23")
        self.assertEqual((entry.state, entry.table), (LIDState.FREE, 3))
        self.assertEqual((entry.staticPort, entry.group), (7, 0x9123))
        self.assertEqual(AdaptiveEntry.decode(b"\xc0\0\0\0").state, LIDState.HASHED)


class AdaptiveTestCase(FabricTestCase):
    def survey(self) -> Tables:
        self.swept = self.sweep()
        end = self.agent.port.endPort
        tables: Tables = self.answerTo(TableSurvey(self.agent, end, self.swept).run())
        self.tables = tables
        return tables

    def found(self) -> list[Finding]:
        tables = self.survey()
        end = self.agent.port.endPort
        work = routeFindings(self.agent, end, self.swept, tables.linear, adaptive=tables.adaptive)
        routes: list[Finding] = self.answerTo(Deferred.fromCoroutine(work), 600.0)
        return [*filter(None, tableFindings(self.swept, tables))] + routes


class GroupTests(AdaptiveTestCase):
    """Two switches with two cables between them, of which the left one chooses."""

    def setUp(self) -> None:
        super().setUp()
        self.far = self.lid("c")

    def test_members(self) -> None:
        """The members of a group are the ports of its mask that have a link."""
        self.fabric.routeAdaptively("left", {self.far: (3, 4, 7), self.lid("d"): (4,)})
        table = self.survey().adaptive[self.fabric.node("left").guid]
        self.assertEqual((table.members(self.far), table.members(self.lid("d"))), ({3, 4}, {4}))
        self.assertEqual((table.members(self.lid("a")), table.members(0xBFFF)), (set(), set()))
        self.assertEqual(self.found(), [])

    def test_order(self) -> None:
        """The bit of a port is where OpenSM's C{ar_is_port_in_subgroup} tests it."""
        self.fabric.routeAdaptively("left", {self.far: (3,)})
        tables = self.fabric.node("left").adaptive
        assert tables is not None
        mask = bytearray(64)
        for port in (3, 4, 8):
            mask[31 - port // 8] |= 1 << port % 8
        tables[AdaptiveGroupTable.attributeID, 0] = bytes(mask)
        self.fabric.move("right", 4, "left", 8)
        self.assertEqual(self.survey().adaptive[self.fabric.node("left").guid].members(self.far), {3, 4, 8})

    def test_states(self) -> None:
        """All states but the static one choose among the ports of the group."""
        guid = self.fabric.node("left").guid
        for state in LIDState:
            self.fabric.routeAdaptively("left", {self.far: (3, 4)})
            tables = self.fabric.node("left").adaptive
            assert tables is not None
            key = AdaptiveForwardingTable.attributeID, self.far // 16
            entries = list(AdaptiveForwardingTable.decode(tables[key]).entries)
            entries[self.far % 16] = AdaptiveEntry(state=state)
            tables[key] = AdaptiveForwardingTable(entries=tuple(entries)).encode()
            expected = frozenset() if state is LIDState.STATIC else {3, 4}
            self.assertEqual(self.survey().adaptive[guid].members(self.far), expected)

    def test_subgroups(self) -> None:
        """Groups with subgroups are unknown, since no public source has the order of their masks."""
        self.fabric.routeAdaptively("left", {self.far: (3, 4)})
        tables = self.fabric.node("left").adaptive
        assert tables is not None
        key = (AdaptiveRoutingInfo.attributeID, 0)
        tables[key] = AdaptiveRoutingInfo.decode(tables[key]).replace(subgroupsActive=1).encode()
        (found,) = self.found()
        self.assertEqual((found.kind, self.tables.adaptive), ("adaptive-unknown", {}))
        self.assertIn("subgroups", found.text)

    def test_broken(self) -> None:
        """One port of a group that leads to another host is found, though the static port is right."""
        self.fabric.routeAdaptively("left", {self.far: (2, 3)})
        (found,) = [one for one in self.found() if one.kind != "unbalanced"]
        self.assertEqual((found.kind, found.guid), ("unreachable-lid", self.fabric.node("c").guid))
        self.assertIn("go to another node, b", found.text)

    def test_balance(self) -> None:
        """A LID with two ports counts half at each; both ports are used by it."""
        lids = [self.lid("c"), self.lid("d"), self.lid("b", 2)]
        self.fabric.routeAdaptively("left", dict.fromkeys(lids, (3, 4)))
        tables = self.survey()
        left = self.swept.nodes[self.fabric.node("left").guid]
        even = [one for one in balances(self.swept, tables.linear, tables.adaptive) if one is not None]
        (balance,) = [one for one in even if one.node is left]
        (group,) = balance.groups
        self.assertEqual(group[3], group[4])
        self.assertTrue(balance.isEven)
        for number in (3, 4):
            uses = next(usesOf(self.swept, left.ports[number], tables.linear, tables.adaptive))
            self.assertTrue(set(lids) <= {lid for lid, _end in uses.ends})

    def test_trace(self) -> None:
        """A trace lists the other ports that a switch may choose."""
        table = self.fabric.linearOf(self.fabric.node("left"))
        other = 7 - table[self.far]
        self.fabric.routeAdaptively("left", {self.far: (3, 4)})
        work = trace(DirectView(self.agent), self.far)
        hops = self.answerTo(Deferred.fromCoroutine(work))
        self.assertEqual([hop.others for hop in hops], [(), (other,), (), ()])

    def test_unknown(self) -> None:
        """Tables that contradict the switch are not used; a finding says that checks are of static routes."""
        self.fabric.routeAdaptively("left", {self.far: (3, 200)})
        (found,) = self.found()
        self.assertEqual(found.kind, "adaptive-unknown")
        self.assertIn("port 200, and 8 is the last one", found.text)
        self.assertIn("static routing only", found.text)
        self.assertEqual(self.tables.adaptive, {})
        work = trace(DirectView(self.agent), self.far)
        self.assertEqual({hop.others for hop in self.answerTo(Deferred.fromCoroutine(work))}, {()})

    def test_group(self) -> None:
        """A group beyond the last one is a contradiction, too."""
        self.fabric.routeAdaptively("left", {self.far: (3,), self.lid("d"): (4,)})
        tables = self.fabric.node("left").adaptive
        assert tables is not None
        tables[AdaptiveRoutingInfo.attributeID, 0] = AdaptiveRoutingInfo(isEnabled=True).encode()
        self.assertEqual([one.kind for one in self.found()], ["adaptive-unknown"])

    def test_disabled(self) -> None:
        """Tables of a switch in which adaptive routing is disabled are ignored."""
        self.fabric.routeAdaptively("left", {self.far: (2, 200)})
        tables = self.fabric.node("left").adaptive
        assert tables is not None
        tables[AdaptiveRoutingInfo.attributeID, 0] = AdaptiveRoutingInfo().encode()
        self.assertEqual((self.found(), self.tables.adaptive), ([], {}))


class LoopTests(AdaptiveTestCase):
    """A ring, which has no loop by its static routes, since each pair of switches is linked."""

    def net(self) -> Net:
        return parseNet(RING)

    def choose(self, length: int) -> None:
        """Let switches send packets for a host the long way around, too, for this many of the three hosts."""
        hosts = ("a", "b", "c")
        choices: dict[str, dict[int, tuple[int, ...]]] = {f"s{number}": {} for number in range(3)}
        for target in range(length):
            lid = self.lid(hosts[target])
            choices[f"s{(target + 1) % 3}"][lid] = (1, 2)
        for name, ports in choices.items():
            if ports:
                self.fabric.routeAdaptively(name, ports)

    def test_loop(self) -> None:
        """Groups by which each link waits for the next one around the ring are a credit loop."""
        self.choose(3)
        self.assertEqual([one.kind for one in self.found()], ["credit-loop"])

    def test_recorded(self) -> None:
        """A recording has the lanes of links that depend on each other by adaptive routes."""
        self.choose(3)
        (expected,) = self.found()
        end = self.agent.port.endPort
        work = record(self.agent, end, self.swept, 1.0, 64)
        recording = self.answerTo(Deferred.fromCoroutine(work), 600.0)
        rpcs = RecordedRPCs(recording)
        tables = self.successResultOf(TableSurvey(rpcs, end, self.swept).run())
        again = routeFindings(rpcs, end, self.swept, tables.linear, adaptive=tables.adaptive)
        self.assertEqual(self.successResultOf(Deferred.fromCoroutine(again)), [expected])

    def test_less(self) -> None:
        """If one of the hosts is not reached around the ring, there is no loop."""
        self.choose(2)
        self.assertEqual(self.found(), [])

    def test_circle(self) -> None:
        """Groups by which packets may return to a switch are found."""
        lid = self.lid("c")
        self.fabric.routeAdaptively("s0", {lid: (1, 2)})
        self.fabric.routeAdaptively("s1", {lid: (1, 2)})
        kinds = {one.kind: one.text for one in self.found()}
        self.assertIn("go in circles", kinds["unreachable-lid"])


class TreeTests(AdaptiveTestCase):
    """A fat tree whose leaf switches choose among all uplinks."""

    def net(self) -> Net:
        return fatTree(32, 8)

    def agentAt(self, name: str, number: int | None = None) -> MADAgent:
        return super().agentAt("h00000" if name == "a" else name, number)

    def setUp(self) -> None:
        super().setUp()
        lids = {number: self.lid(f"h{number:05}") for number in range(32)}
        for leaf in range(8):
            far = [lid for number, lid in lids.items() if number // 4 != leaf]
            self.fabric.routeAdaptively(f"leaf{leaf:04}", dict.fromkeys(far, (5, 6, 7, 8)))

    def checked(self, tables: Tables) -> list[Finding]:
        check = routechecks.RouteCheck(self.swept, tables.linear, tables.adaptive)
        exhausted = list(check.steps())
        self.assertGreater(len(exhausted), 8)
        return [one for one in check.found if one.kind != "unbalanced"]

    def test_together(self) -> None:
        """LIDs of the hosts at one switch are followed together, unless switches choose differently."""
        tables = self.survey()
        follow, followed = routechecks._Choices._follow, []

        def following(choices: Any, results: Any, *args: Any) -> Any:
            followed.append(results)
            return follow(choices, results, *args)

        self.patch(routechecks._Choices, "_follow", following)
        self.assertEqual(self.checked(tables), [])
        self.assertEqual(len(followed), 8)
        table = tables.adaptive[self.fabric.node("leaf0000").guid]
        table.groups[self.lid("h00031")] = NO_GROUP
        del followed[:]
        self.assertEqual(self.checked(tables), [])
        self.assertEqual(len(followed), 9)

    def test_broken(self) -> None:
        """Of the LIDs at one switch, that with a wrong port is found."""
        tables = self.survey()
        guid = self.fabric.node("spine0000").guid
        lid = self.lid("h00031")
        wrong = bytearray(tables.linear[guid])
        wrong[lid] = 0xFF
        tables.linear[guid] = bytes(wrong)
        found = self.checked(tables)
        self.assertEqual([one.guid for one in found], [self.fabric.node("h00031").guid])
        self.assertIn("at spine0000", found[0].text)

    def test_balance(self) -> None:
        """A LID whose port is static counts at that port, beside others of its switch that have a group."""
        tables = self.survey()
        guid = self.fabric.node("leaf0000").guid
        table = tables.adaptive[guid]
        static = [self.lid(f"h{number:05}") for number in (28, 30)]
        for lid in static:
            table.groups[lid] = NO_GROUP
        even = [one for one in balances(self.swept, tables.linear, tables.adaptive) if one is not None]
        (balance,) = [one for one in even if one.node.guid == guid]
        expected = dict.fromkeys((5, 6, 7, 8), 26 / 4)
        for lid in static:
            expected[tables.linear[guid][lid]] += 1
        self.assertEqual(balance.groups, [expected])


class TableTests(SynchronousTestCase):
    def test_blocks(self) -> None:
        """Simulated tables have a block for 16 LIDs, and one for two groups."""
        tables = adaptiveTables({20: (1, 2), 3: (4,), 5: (9,)})
        self.assertEqual(sorted(number for _attribute, number in tables), [0, 0, 0, 1, 1])
        self.assertTrue(all(len(block) == 64 for block in tables.values()))
