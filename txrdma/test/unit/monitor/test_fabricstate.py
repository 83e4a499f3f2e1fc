"""The fabric at earlier times, from stored events, and differences between two."""

from __future__ import annotations

from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.types import GUID
from txrdma.iba.verbs import NodeType
from txrdma.monitor.diagnosis.fabricstate import (
    differences,
    fabricOf,
    FabricState,
    Link,
    LinkState,
    NodeState,
    stateEvent,
    stateOf,
)
from txrdma.monitor.diagnosis.findinglog import Entry
from txrdma.monitor.diagnosis.journal import FabricEvent
from txrdma.monitor.diagnosis.topologywatch import TopologyWatch
from txrdma.test.support.monitor.alerts import entryOf

SWITCH, ADAPTER = int(NodeType.SWITCH), int(NodeType.CHANNEL_ADAPTER)


def guidOf(name: str) -> GUID:
    return GUID(name.encode().rjust(8, b"\0"))


def fabricState(nodes: str, links: str, *findings: Entry, rate: str = "4x HDR") -> FabricState:
    """
    Return a state.

    @param nodes: names; those of switches are capital letters.
    @param links: such as C{"A1-B1 A2-h1"}.
    """
    states = {guidOf(name): NodeState(name, "", SWITCH if name.isupper() else ADAPTER) for name in nodes}
    width, _x, speed = rate.partition("x ")
    known: dict[Link, LinkState] = {}
    for text in links.split():
        one, other = text.split("-")
        key = (guidOf(one[0]), int(one[1:])), (guidOf(other[0]), int(other[1:]))
        known[key] = LinkState(f"{one[0]} port {one[1:]}", f"{other[0]} port {other[1:]}", int(width), speed)
    return FabricState(1.0, states, known, {}, list(findings))


class DifferenceTests(SynchronousTestCase):
    def between(self, before: FabricState, after: FabricState) -> list[tuple[str, str, str, str]]:
        return [(one.kind, one.where, one.before, one.after) for one in differences(before, after)]

    def test_none(self) -> None:
        """Equal states do not differ."""
        state = fabricState("ABh", "A1-B1 A2-h1", entryOf())
        self.assertEqual(self.between(state, state), [])

    def test_nodes(self) -> None:
        """A node that was added or removed stands for its links."""
        less, more = fabricState("A", ""), fabricState("Ah", "A2-h1")
        self.assertEqual(self.between(less, more), [("node-added", "h", "", "it is there")])
        self.assertEqual(self.between(more, less), [("node-removed", "h", "it is there", "")])

    def test_links(self) -> None:
        less, more = fabricState("AB", "A1-B1"), fabricState("AB", "A1-B1 A2-B2")
        added = ("link-added", "A port 2", "", "linked to B port 2, 4x HDR")
        self.assertEqual(self.between(less, more), [added])
        self.assertEqual(self.between(more, less), [("link-removed", "A port 2", "linked to B port 2", "")])

    def test_moved(self) -> None:
        """A host at another port has moved, and so have two hosts whose cables were swapped."""
        before, after = fabricState("ABh", "A1-B1 A2-h1"), fabricState("ABh", "A1-B1 B7-h1")
        moved = ("link-moved", "h port 1", "linked to A port 2", "linked to B port 7")
        self.assertEqual(self.between(before, after), [moved])
        before, after = fabricState("Agh", "A1-g1 A2-h1"), fabricState("Agh", "A1-h1 A2-g1")
        self.assertEqual(
            self.between(before, after),
            [
                ("link-moved", "h port 1", "linked to A port 2", "linked to A port 1"),
                ("link-moved", "g port 1", "linked to A port 1", "linked to A port 2"),
            ],
        )

    def test_movedBetweenSwitches(self) -> None:
        before, after = fabricState("ABC", "A1-B1"), fabricState("ABC", "A1-C5")
        moved = ("link-moved", "A port 1", "linked to B port 1", "linked to C port 5")
        self.assertEqual(self.between(before, after), [moved])

    def test_rate(self) -> None:
        """A rate has changed if both are known."""
        before, after, unknown = (
            fabricState("AB", "A1-B1", rate=rate) for rate in ("4x HDR", "1x HDR", "0x ")
        )
        self.assertEqual(self.between(before, after), [("rate-changed", "A port 1", "4x HDR", "1x HDR")])
        self.assertEqual(self.between(unknown, after), [])
        added = ("link-added", "A port 1", "", "linked to B port 1")
        self.assertEqual(self.between(fabricState("AB", ""), unknown), [added])

    def test_unknownRate(self) -> None:
        """A change says nothing of the rate of a link of which only the other end has answered."""
        watch, nodes = TopologyWatch(), fabricState("AB", "").nodes
        link = (guidOf("A"), 1), (guidOf("B"), 1)
        list(watch.follow(fabricOf(nodes, []), 1.0))
        (came,) = [event for event in watch.follow(fabricOf(nodes, [link]), 2.0) if event and event.text]
        self.assertRegex(came.text, r"it is linked to B \([0-9a-f:]*\) port 1$")

    def test_findings(self) -> None:
        """A finding that returns is another one."""
        first, again = entryOf(), entryOf()
        again.firstSeen = 2000.0
        self.assertEqual(
            self.between(fabricState("A", "", first), fabricState("A", "", again)),
            [
                ("finding-raised", "leaf 1", "", "width: it is slow"),
                ("finding-cleared", "leaf 1", "width: it is slow", ""),
            ],
        )


class StateTests(SynchronousTestCase):
    def test_events(self) -> None:
        """The event of a state has all of it; events of older releases have a part."""
        node, link = guidOf("A"), ((guidOf("A"), 1), (guidOf("B"), 2))
        states: dict[Any, Any] = {node: NodeState("A", "", 2), link: LinkState("A/1", "B/2", 4, "HDR")}
        for key, state in states.items():
            event = stateEvent(1.0, "came", key, state)
            self.assertEqual(stateOf(event)[:2], (key, state))
        older = FabricEvent(1.0, "node-came", "A", "", node, None, str(node), "B port 7")
        self.assertEqual(stateOf(older)[:2], (node, NodeState("A", "B port 7")))

    def test_fabric(self) -> None:
        """A fabric of states has the types of nodes; a second link at a port is left out."""
        state = fabricState("ABh", "A1-B1 A2-h1 B1-h1")
        fabric = fabricOf(state.nodes, state.links)
        self.assertEqual([node.description for node in fabric.switches()], ["A", "B"])
        self.assertEqual(len(list(fabric.links())), 2)

    def test_rateUnknown(self) -> None:
        """Rates that events of older releases do not have are stored, and are not changes."""
        topologyWatch, state = TopologyWatch(), fabricState("ABh", "A1-B1 A2-h1")
        states = [
            FabricEvent(1.0, one.kind, one.where, "", one.guid, one.port, one.subject, one.detail[0])
            for one in (
                *(stateEvent(1.0, "came", guid, node) for guid, node in state.nodes.items()),
                *(stateEvent(1.0, "came", link, state) for link, state in state.links.items()),
            )
        ]
        topologyWatch.restore(states)
        fabric = fabricOf(state.nodes, state.links)
        for node in fabric.nodes.values():
            node.description = node.description.partition(" (")[0]
        events = [event for event in topologyWatch.follow(fabric, 2.0) if event is not None]
        self.assertEqual([event.text for event in events], [""] * len(events))
        self.assertEqual(topologyWatch.remembered, None)
