"""
Checks of forwarding tables: unreachable LIDs, credit loops, and unevenly used links.

The tables show which links depend on each other; L{txrdma.fabric.creditloops} judges those in cycles by their
virtual lanes.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Awaitable, Callable, Generator, Iterable, Iterator, Mapping, Sequence
from itertools import chain
from operator import itemgetter
from typing import Any, Final, NamedTuple

from txrdma.fabric.adaptive import Adaptive, NO_GROUP, NO_GROUPS, STATIC
from txrdma.fabric.creditloops import cyclic, exhaust, Link, loopFindings
from txrdma.fabric.health import Finding, hasLink
from txrdma.fabric.model import Fabric, Node, Port
from txrdma.fabric.pace import Pace
from txrdma.fabric.routeuse import balances, Linear
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

_BATCH: Final = 64
"""Largest number of LIDs whose adaptive routes are compared with each other."""

_EXAMINED: Final = 4
"""Links and LIDs whose examination takes as long as that of a host's port."""

_Channel = int
"""A link in one direction: the index of its switch times 256, and the output port."""


class _Onward(NamedTuple):
    """
    Result of all ports that a switch may choose for a LID.

    @ivar channels: links to other switches; C{switches} are the indices of these, in the same order.
    @ivar beyond: the same switches, each once.
    @ivar failures: what becomes of packets at other ports, unless they reach the LID.
    """

    channels: tuple[_Channel, ...]
    switches: tuple[int, ...]
    beyond: frozenset[int]
    failures: tuple[str, ...]


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
        self._beyond: list[dict[int, Port]] = []
        self._waits: defaultdict[_Channel, set[_Channel]] = defaultdict(set)

    @staticmethod
    def _peers(node: Node) -> dict[int, Port]:
        return {port.number: port.peer for port in node.linked() if port.peer is not None}

    def steps(self) -> Iterator[None]:
        """
        Run the check, and yield after each LID, or after LIDs that are followed together.

        Packets to each LID are followed from the switches that have hosts.
        """
        beside: dict[Node, list[tuple[int, Port]]] = defaultdict(list)
        sources: set[int] = set()
        pace = Pace()
        for node in self._nodes:
            self._beyond.append(self._peers(node))
            if pace.isDue(len(self._beyond[-1])):
                yield
        for port in self._fabric.endPorts():
            if pace.isDue(_EXAMINED + len(port.lids)):
                yield
            if not port.node.isSwitch and port.lid and port.peer is not None:
                beside[port.peer.node] += [(lid, port) for lid in port.lids]
                at = self._index.get(port.peer.node.guid)
                if at is not None:
                    sources.add(at)
        ordered = sorted(sources)
        if self._adaptive and ordered:
            choices = _Choices(self._nodes, self._tables, self._beyond, self._adaptive, self._outcome)
            yield from choices.follow(beside.values(), ordered, self._waits, self.found)
        else:
            for lid, end in chain.from_iterable(beside.values()):
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


class _Choices:
    """
    Follows packets by each port that switches may choose.

    Switches choose among the same ports for most LIDs of the hosts at one switch. These are followed
    together: with 2,592 hosts, 32 s of processor time became 1.4 s.
    """

    def __init__(
        self,
        nodes: Sequence[Node],
        tables: Sequence[bytes],
        beyond: Sequence[Mapping[int, Port]],
        adaptive: Adaptive,
        outcome: Callable[[int, int, Port], str | None],
    ) -> None:
        """
        @param tables: forwarding tables of the switches.
        @param beyond: peers of each switch, by the number of the port.
        @param outcome: returns what becomes of packets behind an output port of a switch.
        """
        self._nodes, self._tables, self._beyond, self._outcome = nodes, tables, beyond, outcome
        self._index = {node.guid: at for at, node in enumerate(nodes)}
        self._groups = [adaptive.get(node.guid, NO_GROUPS) for node in nodes]
        self._onward: list[_Onward] = []
        self._numbers: dict[_Onward, int] = {}
        # Numbers of results that are the same for all LIDs: by output ports, and by static port and group.
        self._general: dict[tuple[int, frozenset[int]], int] = {}
        self._known: list[dict[tuple[int, int], int]] = [{} for _ in nodes]
        self._seen: dict[tuple[_Channel, ...], set[Any]] = defaultdict(set)
        self._pace = Pace()

    def follow(
        self,
        targets: Iterable[Sequence[tuple[int, Port]]],
        sources: Iterable[int],
        waits: defaultdict[_Channel, set[_Channel]],
        found: list[Finding],
    ) -> Iterator[None]:
        """
        Follow packets from switches with hosts, and pause after milliseconds.

        @param targets: LIDs with their ports, those of the hosts at one switch together.
        @param waits: receives the links that wait for others. C{found} receives findings.
        """
        for several in targets:
            for begin in range(0, len(several), _BATCH):
                batch = several[begin : begin + _BATCH]
                rows = yield from self._rows(batch)
                alike: dict[tuple[int, ...], list[tuple[int, Port]]] = defaultdict(list)
                for results, target in zip(zip(*rows, strict=True), batch, strict=True):
                    alike[results].append(target)
                for results, same in alike.items():
                    yield
                    broken = yield from self._follow(results, sources, waits)
                    for lid, end in same:
                        found += self._findings(lid, end, broken)
        tables: tuple[Any, ...] = (self._seen, self._known, self._general, self._numbers, self._onward)
        for table in tables:  # freeing the memory of all at once would take long
            yield
            table.clear()

    def _rows(self, targets: Sequence[tuple[int, Port]]) -> Generator[None, None, list[list[int]]]:
        """Return, for each switch, the numbers of its results for some LIDs."""
        rows: list[list[int]] = []
        lids = [lid for lid, _end in targets]
        highest = max(lids)
        for at, known in enumerate(self._known):
            if self._pace.isDue(len(lids)):
                yield
            static, groups = (
                map(table.__getitem__, lids) if highest < len(table) else _items(table, lids, missing)
                for table, missing in ((self._tables[at], NO_PORT), (self._groups[at].groups, NO_GROUP))
            )
            pairs = list(zip(static, groups, strict=True))
            row: list[Any] = list(map(known.get, pairs))
            if None in row:
                if self._pace.isDue(_PORTS * row.count(None)):
                    yield
                for number, (pair, (_lid, end)) in enumerate(zip(pairs, targets, strict=True)):
                    if row[number] is None:
                        row[number] = self._resolved(at, *pair, end)
            rows.append(row)
        return rows

    def _resolved(self, at: int, static: int, group: int, end: Port) -> int:
        """Return the number of the result of a switch for packets to an end."""
        exits = frozenset((static, *self._groups[at].ports.get(group, ())))
        if (at, exits) in self._general:
            number = self._known[at][static, group] = self._general[at, exits]
            return number
        channels, switches, failures = [], [], []
        isGeneral = True
        for out in sorted(exits):
            why = self._outcome(at, out, end)
            peer = self._beyond[at].get(out)
            isGeneral &= peer is None or peer.node.isSwitch
            if why:
                failures.append(why)
            elif why is None:
                assert peer is not None
                channels.append(at * _PORTS + out)
                switches.append(self._index[peer.node.guid])
        onward = _Onward(tuple(channels), tuple(switches), frozenset(switches), tuple(failures))
        number = self._numbers.setdefault(onward, len(self._numbers))
        if number == len(self._onward):
            self._onward.append(onward)
        if isGeneral:
            self._known[at][static, group] = self._general[at, exits] = number
        return number

    def _follow(
        self, results: Sequence[int], sources: Iterable[int], waits: defaultdict[_Channel, set[_Channel]]
    ) -> Generator[None, None, dict[str, list[int]]]:
        """
        Follow packets for a LID, and return the switches at which they go wrong, by what becomes of them.

        @param results: numbers of the results at all switches.
        """
        reached, isCircular = yield from self._reached(results, sources)
        broken: dict[str, list[int]] = defaultdict(list)
        for at in reached:
            onward = self._onward[results[at]]
            for why in onward.failures:
                broken[why].append(at)
            if onward.switches:
                if self._pace.isDue(len(onward.switches)):
                    yield
                self._wait(onward, results, waits)
        if isCircular:
            graph = {at: self._onward[results[at]].beyond for at in reached}
            broken["in circles"] += yield from cyclic({at: after for at, after in graph.items() if after})
        return broken

    def _reached(
        self, results: Sequence[int], sources: Iterable[int]
    ) -> Generator[None, None, tuple[set[int], bool]]:
        """Return the switches that packets may reach, and whether they may return to one (depth first)."""
        reached: set[int] = set()
        isCircular = False
        for source in sources:
            path = [] if source in reached else [source]
            within = set(path)
            while path:
                following = self._onward[results[path[-1]]].beyond - reached
                if not within.isdisjoint(following):
                    isCircular = True
                    following -= within
                if self._pace.isDue(len(following) + 1):
                    yield
                if following:
                    at = next(iter(following))
                    path.append(at)
                    within.add(at)
                else:
                    at = path.pop()
                    within.remove(at)
                    reached.add(at)
        return reached, isCircular

    def _wait(
        self, onward: _Onward, results: Sequence[int], waits: defaultdict[_Channel, set[_Channel]]
    ) -> None:
        """A packet that occupies a link waits for all those that the next switch may choose."""
        following = itemgetter(*onward.switches)(results)
        seen = self._seen[onward.channels]
        if following not in seen:
            seen.add(following)
            for channel, switch in zip(onward.channels, onward.switches, strict=True):
                after = self._onward[results[switch]].channels
                if after:
                    waits[channel].update(after)

    def _findings(self, lid: int, end: Port, broken: Mapping[str, Iterable[int]]) -> Iterator[Finding]:
        for why, switches in broken.items():
            names = listed([self._nodes[each] for each in sorted(set(switches))])
            text = f"LID {lid} is not reached by all ports that may be chosen: at {names} packets go {why}"
            yield Finding("unreachable-lid", str(end), text, end.node.guid, end.number)


def _items(table: Sequence[int], lids: Iterable[int], missing: int) -> Iterator[int]:
    return (table[lid] if lid < len(table) else missing for lid in lids)


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
