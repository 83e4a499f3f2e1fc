"""Checks of forwarding tables: unreachable LIDs, links that depend on each other, and unevenly used links."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Iterator
from typing import Final

from txrdma.fabric.adaptive import Adaptive, STATIC
from txrdma.fabric.creditloops import cyclic, exhaust, Link, loopFindings
from txrdma.fabric.health import Finding, hasLink
from txrdma.fabric.model import Fabric, Node, Port
from txrdma.fabric.routeuse import balances, Linear, Pace
from txrdma.fabric.routing import NO_PORT
from txrdma.fabric.texts import listed
from txrdma.iba.path import MADEndPort
from txrdma.iba.types import GUID
from txrdma.mad.rpcs import RPCs

_UNEVEN: Final = 1.25
"""Ratio to the mean number of LIDs above which a link counts as unevenly used."""

_FEW: Final = 2
"""Tolerated deviation in LIDs: routing engines do not balance exactly."""

_PORTS: Final = 256

_Channel = int
"""A link in one direction: the index of its switch times 256, and the output port."""


class RouteCheck:
    """
    Check of the unicast forwarding tables. L{steps} does the work LID by LID, in steps of milliseconds.

    Only the paths of packets from hosts are followed; table entries that such packets never use are ignored.

    @ivar found: findings, complete after the last step.
    @ivar cyclic: links that depend on each other in cycles, which may be credit loops.
    """

    def __init__(self, fabric: Fabric, linear: Linear, adaptive: Adaptive = STATIC) -> None:
        """
        @param linear: tables of the switches that were queried. Paths through others, or through nodes that
            the sweep has not discovered, are not judged.
        @param adaptive: groups of switches that route adaptively, of which all ports are followed.
        """
        self.found: list[Finding] = []
        self.cyclic: dict[Link, set[Link]] = {}
        self._fabric = fabric
        self._linear = linear
        self._adaptive = adaptive
        self._nodes = [node for node in fabric.switches() if node.guid in linear]
        self._index: dict[GUID, int] = {node.guid: at for at, node in enumerate(self._nodes)}
        self._tables = [linear[node.guid] for node in self._nodes]
        self._groups = [adaptive.get(node.guid) for node in self._nodes]
        self._beyond: list[dict[int, Port]] = []
        self._waits: dict[_Channel, set[_Channel]] = defaultdict(set)

    @staticmethod
    def _peers(node: Node) -> dict[int, Port]:
        return {port.number: port.peer for port in node.linked() if port.peer is not None}

    def steps(self) -> Iterator[None]:
        """
        Run the check, and yield after each LID.

        Packets to each LID are followed from the switches that have hosts.
        """
        ends: list[Port] = []
        sources: set[int] = set()
        pace = Pace()
        for node in self._nodes:
            self._beyond.append(self._peers(node))
            if pace.isDue(len(self._beyond[-1])):
                yield
        for port in self._fabric.endPorts():
            if pace.isDue(1):
                yield
            if not port.node.isSwitch and port.lid and port.peer is not None:
                ends.append(port)
                at = self._index.get(port.peer.node.guid)
                if at is not None:
                    sources.add(at)
        ordered = sorted(sources)
        for end in ends:
            for lid in end.lids:
                if self._adaptive:
                    yield from self._followAll(end, lid, ordered)
                else:
                    self._follow(end, lid, ordered)
                yield
        yield from self._loops()
        yield from self._evenness()

    def _follow(self, end: Port, lid: int, sources: list[int]) -> None:
        """Follow packets for a LID from all switches with hosts."""
        # The outcome at each switch, so that each is followed once; "" if the LID is reached, or the next
        # switch or its table is not known.
        known: dict[int, str] = {}
        broken: dict[str, list[int]] = {}
        for source in sources:
            path: list[int] = []
            at, why = source, None
            before: _Channel | None = None
            while why is None:
                why = known.get(at)
                if why is None and at in path:
                    why = "in circles"
                table = self._tables[at]
                out = table[lid] if lid < len(table) else NO_PORT
                peer = self._beyond[at].get(out)
                channel = at * _PORTS + out
                # A packet that occupies the one link waits for the other. This edge is new also where the
                # path is known.
                if before is not None and peer is not None and peer.node.isSwitch:
                    self._waits[before].add(channel)
                if why is not None:
                    break
                path.append(at)
                why = self._outcome(at, out, end)
                if why is None:
                    assert peer is not None
                    before, at = channel, self._index[peer.node.guid]
            for each in path:
                known[each] = why or ""
            if why:
                broken.setdefault(why, []).append(source)
        for why, switches in broken.items():
            names = listed([self._nodes[each] for each in switches])
            text = f"LID {lid} is not reached from {names}: packets go {why}"
            self.found.append(Finding("unreachable-lid", str(end), text, end.node.guid, end.number))

    def _outcome(self, at: int, out: int, end: Port) -> str | None:
        """
        Return what becomes of packets behind an output port of a switch: C{""} if they reach the end, or a
        switch whose table is unknown, None if they reach another switch.
        """
        if out in (NO_PORT, 0):
            return "to no port"
        peer = self._beyond[at].get(out)
        if peer is None:
            port = self._nodes[at].known(out)
            isLinked = port is not None and hasLink(port)  # to a node that does not answer
            return "" if isLinked else f"to port {out}, which has no link"
        if not peer.node.isSwitch:
            return "" if peer.node is end.node else f"to another node, {peer.node}"
        return None if peer.node.guid in self._index else ""

    def _followAll(self, end: Port, lid: int, sources: list[int]) -> Iterator[None]:
        """Follow packets for a LID from all switches with hosts, by each port that a switch may choose."""
        after: dict[int, set[int]] = {}
        exits: dict[int, set[_Channel]] = {}
        broken: dict[str, list[int]] = {}
        waiting = list(sources)
        while waiting:
            at = waiting.pop()
            if at in after:
                continue
            after[at], exits[at] = set(), set()
            table, groups = self._tables[at], self._groups[at]
            static = table[lid] if lid < len(table) else NO_PORT
            for out in sorted({static} if groups is None else groups.exits(lid, static)):
                why = self._outcome(at, out, end)
                if why:
                    broken.setdefault(why, []).append(at)
                elif why is None:
                    there = self._index[self._beyond[at][out].node.guid]
                    after[at].add(there)
                    exits[at].add(at * _PORTS + out)
                    waiting.append(there)
        for at, channels in exits.items():
            for channel in channels:
                there = self._index[self._beyond[at][channel % _PORTS].node.guid]
                if exits[there]:
                    self._waits[channel] |= exits[there]
        circle = yield from cyclic({at: there for at, there in after.items() if there})
        if circle:
            broken.setdefault("in circles", []).extend(circle)
        for why, switches in broken.items():
            names = listed([self._nodes[each] for each in sorted(set(switches))])
            text = f"LID {lid} is not reached by all ports that may be chosen: at {names} packets go {why}"
            self.found.append(Finding("unreachable-lid", str(end), text, end.node.guid, end.number))

    def _loops(self) -> Iterator[None]:
        """Find links that depend on each other in cycles."""
        graph = yield from cyclic(self._waits)
        named = {each: (self._nodes[each // _PORTS].guid, each % _PORTS) for each in graph}
        self.cyclic = {named[each]: {named[one] for one in after} for each, after in graph.items()}

    def _evenness(self) -> Iterator[None]:
        """Find switches of whose equivalent links some carry many more LIDs than others."""
        for balance in balances(self._fabric, self._linear, self._adaptive):
            if balance is None:
                yield
                continue
            for group in balance.groups:
                if len(group) < 2:
                    continue
                most, least = max(group.values()), min(group.values())
                if most - least > _FEW and most > _UNEVEN * sum(group.values()) / len(group):
                    shown = ", ".join(f"{port}: {count:g}" for port, count in sorted(group.items()))
                    text = f"of links that lead to the same hosts some carry more LIDs than others: {shown}"
                    found = Finding("unbalanced", str(balance.node), text, balance.node.guid)
                    self.found.append(found)
                    break


async def routeFindings(
    rpcs: RPCs,
    endPort: MADEndPort,
    fabric: Fabric,
    linear: Linear,
    cooperate: Callable[[Iterator[None]], Awaitable[object]] = exhaust,
    adaptive: Adaptive = STATIC,
) -> list[Finding]:
    """
    Check forwarding tables. This takes many seconds with thousands of hosts.

    @param rpcs: queries virtual lanes, where links depend on each other in cycles.
    @param cooperate: runs steps of milliseconds.
    @param adaptive: groups of switches that route adaptively.
    """
    check = RouteCheck(fabric, linear, adaptive)
    await cooperate(check.steps())
    return check.found + await loopFindings(
        *(rpcs, endPort, fabric, linear, check.cyclic, cooperate, adaptive)
    )
