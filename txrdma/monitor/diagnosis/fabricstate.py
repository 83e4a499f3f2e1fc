"""
The fabric at a time: which nodes and links it had, and which findings were open, from stored events.

The last event of a node or link until a time is its state then. Two states are compared by L{differences}.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

from txrdma.fabric.model import Fabric, PortKey
from txrdma.iba.types import GUID
from txrdma.iba.verbs import NodeType
from txrdma.kit.values import frozen, record
from txrdma.mad.layouts.smp import NodeInfo
from txrdma.monitor.diagnosis.findinglog import Entry
from txrdma.monitor.diagnosis.journal import entryOf, FabricEvent, readValid

Link = tuple[PortKey, PortKey]
"""A link, by its two ports; that of the lower GUID is first."""

TOPOLOGY_KINDS: Final = ("node-came", "node-gone", "link-came", "link-changed", "link-gone")
"""Kinds of the events that are the state of a node or link."""

STATE_KINDS: Final = (*TOPOLOGY_KINDS, "finding-raised")
"""Kinds of the events that are the state of a fabric at a time."""

DIFFERENCES: Final = (
    *("node-added", "node-removed", "node-changed", "link-added", "link-removed", "link-moved"),
    *("rate-changed", "finding-raised", "finding-cleared"),
)
"""Kinds of differences between two states."""

_MOST_HOST_PORTS: Final = 2
"""A node of an unknown type with more links counts as a switch."""

_TYPES: Final = {int(kind) for kind in NodeType}


class NodeState(NamedTuple):
    """
    State of a node.

    @ivar beyond: name of the port that leads to a host; C{""} for a switch, or if there is none.
    @ivar type: its L{NodeType}; 0 if it is unknown, as in events of older releases.
    """

    name: str
    beyond: str
    type: int = 0


class LinkState(NamedTuple):
    """
    State of a link.

    @ivar name: name of the first port; C{beyond} is that of the second one.
    @ivar width: active lanes; 0 if unknown. C{speed} is the speed of a lane by its name; C{""} if unknown.
    """

    name: str
    beyond: str
    width: int = 0
    speed: str = ""

    @property
    def rate(self) -> str:
        """Width and speed: C{"4x HDR"}; C{""} if they are unknown."""
        return f"{self.width}x {self.speed}" if self.width else ""

    @property
    def linkedTo(self) -> str:
        """The second port, and the rate if it is known: C{"linked to leaf 3 port 7, 4x HDR"}."""
        return f"linked to {self.beyond}" + (f", {self.rate}" if self.rate else "")


def stateEvent(
    now: float, change: str, key: GUID | Link, state: NodeState | LinkState | None = None, text: str = ""
) -> FabricEvent:
    """Return the event of a node, or of a link at its first port; without a state when it is forgotten."""
    name, detail = ("", "") if state is None else (state.name, list(state[1:]))
    if isinstance(key, GUID):
        return FabricEvent(now, f"node-{change}", name, text, key, None, str(key), detail)
    (guid, port), (peer, peerPort) = key
    subject = json.dumps([str(guid), port, str(peer), peerPort])
    return FabricEvent(now, f"link-{change}", name, text, guid, port, subject, detail)


def stateOf(event: FabricEvent) -> tuple[GUID | Link, Any, FabricEvent]:
    """Return the node or link that an event describes, its state, and the event."""
    detail = [event.detail] if isinstance(event.detail, str) else event.detail  # str of older releases
    if event.kind.startswith("node"):
        return GUID.fromString(event.subject), NodeState(event.where, *detail), event
    return linkOf(event), LinkState(event.where, *detail), event


def linkOf(event: FabricEvent) -> Link:
    """Return the link that an event describes."""
    guid, port, peer, peerPort = json.loads(event.subject)
    return (GUID.fromString(guid), int(port)), (GUID.fromString(peer), int(peerPort))


@record
class FabricState:
    """
    A fabric at a time.

    @ivar at: time in seconds since 1970.
    @ivar nodes: nodes that were there; C{links} those between them.
    @ivar missing: links that were missing between nodes that were there.
    @ivar findings: open findings.
    """

    at: float
    nodes: dict[GUID, NodeState]
    links: dict[Link, LinkState]
    missing: dict[Link, LinkState]
    findings: list[Entry]

    @classmethod
    def of(cls, at: float, events: Iterable[FabricEvent]) -> FabricState:
        """
        Return the fabric at a time.

        @param events: the last event of each node, link and finding until then; invalid ones are logged.
        """
        raised: list[FabricEvent] = []
        states: list[FabricEvent] = []
        for event in events:
            (raised if event.kind == "finding-raised" else states).append(event)
        nodes: dict[GUID, NodeState] = {}
        links: dict[Link, LinkState] = {}
        missing: dict[Link, LinkState] = {}
        for key, state, event in readValid(states, stateOf):
            isGone = event.kind.endswith("-gone")
            if isinstance(key, GUID):
                if not isGone:
                    nodes[key] = state
            else:
                (missing if isGone else links)[key] = state
        findings = readValid(raised, entryOf)
        return cls(at, nodes, _between(links, nodes), _between(missing, nodes), findings)

    def isSwitch(self, guid: GUID) -> bool:
        """Return whether a node is known to be a switch."""
        node = self.nodes.get(guid)
        return node is not None and node.type == NodeType.SWITCH


@frozen
class StateDifference:
    """
    A difference between two states.

    @ivar kind: one of L{DIFFERENCES}.
    @ivar where: name of the node or port; C{guid} and C{port} identify it for programs.
    @ivar before: description of the earlier state; C{""} for none. C{after} is that of the later one.
    """

    kind: str
    guid: GUID | None
    where: str
    port: int | None
    before: str
    after: str


def _between(links: dict[Link, LinkState], nodes: Mapping[GUID, NodeState]) -> dict[Link, LinkState]:
    """Return the links of which both nodes are there."""
    return {link: state for link, state in links.items() if link[0][0] in nodes and link[1][0] in nodes}


def fabricOf(nodes: Mapping[GUID, NodeState], links: Iterable[Link]) -> Fabric:
    """
    Return a fabric of these nodes and links, in which LIDs, states, widths and speeds are unknown.

    A link at a port that an earlier one has taken is left out.
    """
    links = [link for link in links if link[0][0] in nodes and link[1][0] in nodes]
    numbers: defaultdict[GUID, list[int]] = defaultdict(list)
    for guid, number in (end for link in links for end in link):
        numbers[guid].append(number)
    fabric = Fabric()
    for guid, state in nodes.items():
        linked = numbers[guid]
        guess = NodeType.SWITCH if len(linked) > _MOST_HOST_PORTS else NodeType.CHANNEL_ADAPTER
        kind = NodeType(state.type) if state.type in _TYPES else guess
        info = NodeInfo(nodeType=kind, nodeGUID=guid, portGUID=guid, numPorts=max(linked, default=1))
        node, _isNew = fabric.add(info)
        node.description = state.name.removesuffix(f" ({guid})")
    for (one, number), (other, peer) in links:
        fabric.link(fabric.nodes[one].port(number), fabric.nodes[other].port(peer))
    return fabric


def differences(before: FabricState, after: FabricState) -> Iterator[StateDifference]:
    """
    Yield the differences between two states, of the kinds L{DIFFERENCES}: nodes, links, then findings.

    Links that were added or removed with one of their nodes are left out.
    """
    yield from _ofNodes(before.nodes, after.nodes)
    both = before.nodes.keys() & after.nodes.keys()
    removed = _only(before.links, after.links, both)
    added = _only(after.links, before.links, both)
    yield from _moved(before, removed, added)
    for link, state in removed.items():
        yield _ofLink("link-removed", link, state, f"linked to {state.beyond}", "")
    for link, state in added.items():
        yield _ofLink("link-added", link, state, "", state.linkedTo)
    for link, state in after.links.items():
        former = before.links.get(link)
        if former is not None and hasOtherRate(former, state):
            yield _ofLink("rate-changed", link, state, former.rate, state.rate)
    known = {(entry.key, entry.firstSeen) for entry in before.findings}
    for entry in after.findings:
        if (entry.key, entry.firstSeen) not in known:
            yield _ofFinding("finding-raised", entry)
    remaining = {(entry.key, entry.firstSeen) for entry in after.findings}
    for entry in before.findings:
        if (entry.key, entry.firstSeen) not in remaining:
            yield _ofFinding("finding-cleared", entry)


def _ofLink(kind: str, link: Link, state: LinkState, before: str, after: str) -> StateDifference:
    guid, number = link[0]
    return StateDifference(kind, guid, state.name, number, before, after)


def hasOtherRate(one: LinkState, other: LinkState) -> bool:
    """Return whether both widths are known, and the width or the speed differs."""
    return bool(one.width and other.width) and one[2:] != other[2:]


def _ofNodes(before: Mapping[GUID, NodeState], after: Mapping[GUID, NodeState]) -> Iterator[StateDifference]:
    for guid, state in before.items():
        if guid not in after:
            yield StateDifference("node-removed", guid, state.name, None, _placeOf(state), "")
    for guid, state in after.items():
        former = before.get(guid)
        if former is None:
            yield StateDifference("node-added", guid, state.name, None, "", _placeOf(state))
        elif former.name != state.name:
            yield StateDifference("node-changed", guid, state.name, None, former.name, state.name)


def _placeOf(state: NodeState) -> str:
    return f"at {state.beyond}" if state.beyond else "it is there"


def _only(
    links: Mapping[Link, LinkState], others: Mapping[Link, LinkState], nodes: set[GUID]
) -> dict[Link, LinkState]:
    """Return the links that are not among C{others}, and whose two nodes are among C{nodes}."""
    return {
        link: state
        for link, state in links.items()
        if link not in others and link[0][0] in nodes and link[1][0] in nodes
    }


def _moved(
    before: FabricState, removed: dict[Link, LinkState], added: dict[Link, LinkState]
) -> Iterator[StateDifference]:
    """
    Take pairs of a removed and an added link at one port out of both: that port is linked elsewhere.

    Ports of hosts come first: where the cables of two hosts were swapped, the hosts have moved.
    """
    for isSwitch in (False, True):
        ends = {end: link for link in removed for end in link if before.isSwitch(end[0]) is isSwitch}
        for link in list(added):
            for at, end in enumerate(link):
                former = ends.get(end)
                if former is not None and former in removed:
                    old, new = removed.pop(former), added.pop(link)
                    name, other = (new.name, new.beyond) if at == 0 else (new.beyond, new.name)
                    was = old.beyond if former[0] == end else old.name
                    texts = f"linked to {was}", f"linked to {other}"
                    yield StateDifference("link-moved", end[0], name, end[1], *texts)
                    break


def _ofFinding(kind: str, entry: Entry) -> StateDifference:
    found = entry.finding
    text = f"{found.kind}: {found.text}"
    was, now = ("", text) if kind == "finding-raised" else (text, "")
    return StateDifference(kind, found.guid, found.where, found.port, was, now)
