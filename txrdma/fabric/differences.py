"""
Differences between two snapshots of a fabric: nodes, ports, links, rates, LIDs.

What one snapshot lacks only because it was not read is not a difference: what is behind a port whose link is
up, or whose state is unknown, may be there.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

from txrdma.fabric.health import hasLink
from txrdma.fabric.model import Fabric, Node, Port, UNNAMED
from txrdma.iba.types import GUID
from txrdma.kit.graphs import distances


@dataclass(frozen=True, slots=True)
class Difference:
    """
    A single difference between two snapshots of a fabric.

    @ivar kind: C{node-added}, C{node-removed}, C{node-changed}, C{port-changed}, C{link-added},
        C{link-removed}, C{state-changed}, C{rate-changed}, C{lid-changed}.
    @ivar guid: GUID of the node.
    @ivar port: number of the port, or None if the difference is not of a port.
    @ivar before: description of the earlier value; C{""} for none.
    @ivar after: description of the later value; C{""} for none.
    """

    kind: str
    guid: GUID
    name: str
    port: int | None
    before: str
    after: str

    def __str__(self) -> str:
        where = f"{self.name or UNNAMED} ({self.guid})"
        if self.port is not None:
            where += f" port {self.port}"
        if not self.before or not self.after:
            return f"{self.kind}: {where}: {self.before or self.after}".rstrip(": ")
        return f"{self.kind}: {where}: {self.before} -> {self.after}"


def differences(before: Fabric, after: Fabric) -> list[Difference]:
    """Return all differences between two snapshots: nodes and ports, then removed and added links."""
    found: list[Difference] = []
    unread = _unread(before, after) | _unread(after, before)
    for guid in sorted(before.nodes.keys() | after.nodes.keys(), key=lambda guid: guid.raw):
        old, new = before.nodes.get(guid), after.nodes.get(guid)
        if guid in unread:
            continue
        if old is None and new is not None:
            found.append(Difference("node-added", guid, new.description, None, "", _what(new)))
        elif new is None and old is not None:
            found.append(Difference("node-removed", guid, old.description, None, _what(old), ""))
        elif old is not None and new is not None:
            found += _ofNode(old, new)
    for kind, one, other in (("link-removed", before, after), ("link-added", after, before)):
        known = _links(other)
        for key, ends in _links(one).items():
            if key not in known and not _mayBeIn(other, ends, unread):
                found.append(_ofLink(kind, *ends))
    return found


def _unread(one: Fabric, other: Fabric) -> set[GUID]:
    """Return the nodes that a second snapshot lacks, but perhaps only because it has not read them."""

    def absentPeers(node: Node) -> list[Node]:
        return [peer for peer in node.peers() if peer.guid not in other.nodes]

    def isBehindUnread(node: Node) -> bool:
        peers = [port.peer for port in node.linked() if port.peer is not None]
        ends = [other.portAt(peer.node.guid, peer.number) for peer in peers]
        return any(end is not None and _isUnread(end) for end in ends)

    absent = [node for guid, node in one.nodes.items() if guid not in other.nodes]
    return {node.guid for node in distances(filter(isBehindUnread, absent), absentPeers)}


def _isUnread(port: Port) -> bool:
    """Return whether it is unknown what a port is linked to: its link is up, or its state was not read."""
    return port.peer is None and (hasLink(port) or not port.raw)


def _mayBeIn(fabric: Fabric, link: tuple[Port, Port], unread: set[GUID]) -> bool:
    """Return whether a snapshot lacks a link perhaps only because the ends were not read."""
    known = [port for end in link if (port := fabric.portAt(end.node.guid, end.number)) is not None]
    absent = {end.node.guid for end in link} - fabric.nodes.keys()
    return absent <= unread and all(map(_isUnread, known))


def _ofNode(old: Node, new: Node) -> Iterator[Difference]:
    name = new.description or old.description
    for text, was, now in (
        ("type", old.type.name, new.type.name),
        ("ports", str(old.info.numPorts), str(new.info.numPorts)),
        ("description", old.description, new.description),
        ("revision", hex(old.info.revision), hex(new.info.revision)),
    ):
        if was != now:
            yield Difference("node-changed", old.guid, name, None, f"{text} {was}", f"{text} {now}")
    for number in sorted(old.ports.keys() | new.ports.keys()):
        yield from _ofPort(old.ports.get(number), new.ports.get(number), name)


def _ofPort(old: Port | None, new: Port | None, name: str) -> Iterator[Difference]:
    """Yield what has changed at a port; a change of its state hides one of its rate."""
    known = new or old
    assert known is not None  # one of them is known

    def difference(kind: str, was: str, now: str) -> Difference:
        return Difference(kind, known.node.guid, name, known.number, was, now)

    was, now = _guid(old), _guid(new)
    if was and now and was != now:
        yield difference("port-changed", f"GUID {was}", f"GUID {now}")
    if old is None or new is None or not (old.raw and new.raw):
        return
    if old.state != new.state:
        yield difference("state-changed", old.state.name, new.state.name)
    elif (was := _rate(old)) != (now := _rate(new)) and new.peer is not None:
        yield difference("rate-changed", was, now)
    isEnd = (new.number == 0) == new.node.isSwitch
    if isEnd and old.lid != new.lid:
        yield difference("lid-changed", f"LID {old.lid}", f"LID {new.lid}")
    elif isEnd and old.lmc != new.lmc:
        yield difference("lid-changed", f"LMC {old.lmc}", f"LMC {new.lmc}")


def _what(node: Node) -> str:
    return f"{node.type.name} with {node.info.numPorts} ports"


def _guid(port: Port | None) -> str:
    if port is None or port.node.isSwitch:
        return ""
    guid = port.node.portGUID(port.number)
    return "" if guid is None else str(guid)


def _links(fabric: Fabric) -> dict[tuple[GUID, int, GUID, int], tuple[Port, Port]]:
    return {(a.node.guid, a.number, b.node.guid, b.number): (a, b) for a, b in fabric.links()}


def _ofLink(kind: str, one: Port, other: Port) -> Difference:
    text = f"to {other.node.description or UNNAMED} ({other.node.guid}) port {other.number}"
    was, now = (text, "") if kind == "link-removed" else ("", text)
    return Difference(kind, one.node.guid, one.node.description, one.number, was, now)


def _rate(port: Port) -> str:
    return f"{port.width}X {port.speed}"
