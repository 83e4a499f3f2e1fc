"""
Blast radius: what a fabric loses without cables or nodes: hosts, paths by the forwarding tables, bandwidth.

Ports of hosts are bits of integers, so that sets of destinations are combined quickly: in a fabric of ten
thousand hosts the paths through a cable are found in less than a second. A path leads from a host's port to
the base LID of a port of another host, and is lost until the subnet manager computes other routes.
"""

from __future__ import annotations

import struct
from collections import Counter, defaultdict
from collections.abc import Callable, Generator, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache
from typing import Final, Union

from txrdma.fabric.model import Fabric, isFirstEnd, Node, Port
from txrdma.fabric.pace import Pace
from txrdma.fabric.routeuse import Linear
from txrdma.fabric.routing import NO_PORT
from txrdma.fabric.slurm import AGGREGATION
from txrdma.kit.graphs import distances

Element = Union[Node, Port]
"""What is removed: a node, or the cable at a port, by either of its ends."""

Jobs = Sequence[Sequence[Sequence[Node]]]
"""Hosts of each job; each host is the list of its nodes, which are its adapters."""

_Vertex = Union[Node, Port]
"""A switch, or a port of a host: hosts do not forward packets from one of their ports to another."""

_JobsOf = dict[Node, list[tuple[int, frozenset[Node]]]]
"""Jobs of each node, by their number, each with all adapters of the host."""

_FEW: Final = 20
"""Number of destinations up to which each is looked up by itself."""

_MANY: Final = 1000
"""Number of nodes from which the levels of switches are computed in a step of their own."""

_MASK_UNITS: Final = 250
"""Work of a set of destinations, in units of L{Pace}."""

_END_UNITS: Final = 20
"""Work of adding a destination to a set, or of removing it."""


@dataclass(frozen=True, slots=True)
class BandwidthLoss:
    """
    Hosts that share links of which some are lost.

    @ivar nodes: switches whose links to the rest of the fabric the hosts share, or one host with several.
    @ivar hosts: hosts that remain connected.
    @ivar before: rate of the links in Gbit/s; C{after}: without those that are lost.
    """

    nodes: list[Node]
    hosts: list[Node]
    before: float
    after: float

    @property
    def share(self) -> float:
        """Share of the rate that remains."""
        return self.after / self.before


@dataclass(frozen=True, slots=True)
class JobLoss:
    """
    Loss of a job.

    @ivar job: number of the job in the argument.
    @ivar cutOff: number of its hosts that are cut off; C{paths}: its lost paths; C{reduced}: number of its
        other hosts with less bandwidth.
    """

    job: int
    cutOff: int
    paths: int
    reduced: int


@dataclass(slots=True)
class Loss:
    """
    What is lost without some elements.

    @ivar cutOff: hosts that cannot reach the largest remaining part of the fabric, and C{switches}.
    @ivar paths: number of lost paths; C{total}: that of all paths.
    @ivar byHost: lost paths from and to each host, those with the most first.
    @ivar reduced: hosts with less bandwidth, those with the smallest share first.
    @ivar jobs: losses of jobs, those with the most hosts cut off first, then by paths.
    @ivar unread: number of switches whose forwarding tables are unknown: paths through them are not counted.
    """

    cutOff: list[Node] = field(default_factory=list)
    switches: list[Node] = field(default_factory=list)
    paths: int = 0
    total: int = 0
    byHost: list[tuple[Node, int]] = field(default_factory=list)
    reduced: list[BandwidthLoss] = field(default_factory=list)
    jobs: list[JobLoss] = field(default_factory=list)
    unread: int = 0

    @property
    def slower(self) -> list[Node]:
        """Hosts with less bandwidth, each once."""
        return list(dict.fromkeys(host for one in self.reduced for host in one.hosts))


@dataclass(frozen=True, slots=True)
class Rank:
    """
    Numbers of what is lost without one cable or switch; see L{Loss}.

    @ivar share: smallest share of bandwidth that remains to the C{slower} hosts; 1 without such hosts.
    @ivar jobsCutOff: number of jobs with hosts that are cut off; C{jobsWithPaths} of jobs that lose paths.
    """

    element: Element
    cutOff: int
    paths: int
    slower: int
    share: float
    jobsCutOff: int = 0
    jobsWithPaths: int = 0

    @property
    def key(self) -> tuple[float, ...]:
        """Key of the order of a ranking: single points of failure first."""
        return -self.cutOff, -self.jobsCutOff, -self.paths, self.share


@dataclass(frozen=True, slots=True)
class _Sharers:
    """Switches that lead upwards from the same switches below them, and the hosts below as bits."""

    nodes: list[Node]
    hosts: int
    gigabits: float


def isEnd(node: Node) -> bool:
    """Return whether a node is a host or a router, and not a switch or the aggregation node of one."""
    return not node.isSwitch and AGGREGATION not in node.description


def gigabits(port: Port) -> float:
    """Return the rate of a port's link in Gbit/s; 0 if it is unknown."""
    return port.width * port.laneGigabits


@lru_cache(None)
def _digits(port: int) -> bytes:
    """Return the translation of output ports to C{1} for this port, and C{0} for others."""
    return bytes(49 if number == port else 48 for number in range(256))


_ROUTED: Final = bytes(48 if number in (0, NO_PORT) else 49 for number in range(256))
"""Translation of output ports to C{1} where packets are forwarded to another node, else C{0}."""


class BlastRadius:
    """
    Links and paths of a fabric, as they were during L{steps}, which has to run first.

    @ivar hosts: hosts and routers; C{total}: number of paths between them.
    """

    def __init__(self, fabric: Fabric, linear: Linear) -> None:
        """@param linear: forwarding tables; empty if only links are known."""
        self.hosts: list[Node] = []
        self.total = 0
        self._fabric = fabric
        self._linear = linear
        self._peers: dict[Node, dict[int, Port]] = {}
        self._ends: list[Port] = []
        self._attached: dict[Node, list[int]] = defaultdict(list)
        self._own: dict[Node, list[int]] = defaultdict(list)
        self._outs: dict[Node, bytes] = {}
        self._routed: dict[Node, int] = {}
        self._levels: dict[Node, int] = {}
        self._groups: dict[Node, _Sharers] = {}

    def steps(self) -> Generator[None, None, None]:
        """Take links, tables and levels from the fabric, in steps of milliseconds."""
        pace = Pace()
        for node in list(self._fabric.nodes.values()):
            peers = {
                port.number: port.peer for port in node.linked() if port.number and port.peer is not None
            }
            self._peers[node] = peers
            if isEnd(node):
                self.hosts.append(node)
            if pace.isDue(1 + len(peers)):
                yield
        for node, peers in self._peers.items():
            self._peers[node] = {number: peer for number, peer in peers.items() if peer.node in self._peers}
            if pace.isDue(1 + len(peers)):
                yield
        for host in self.hosts:
            for number, peer in self._peers[host].items():
                port = host.port(number)
                if port.lid and peer.node.isSwitch:
                    self._attached[peer.node].append(len(self._ends))
                    self._own[host].append(len(self._ends))
                    self._ends.append(port)
            if pace.isDue(10):
                yield
        lids = [int(port.lid) for port in self._ends]
        most = max(lids, default=0) + 1
        for node in self._peers:
            if node.isSwitch and node.guid in self._linear:
                table = self._linear[node.guid].ljust(most, bytes((NO_PORT,)))
                self._outs[node] = bytes([table[lid] for lid in lids])
                if pace.isDue(len(lids) + 1):
                    yield
        for node, ends in self._attached.items():
            outs = self._outs.get(node, bytes(1))
            routed = self._routed[node] = int(outs.translate(_ROUTED), 2)
            self.total += len(ends) * routed.bit_count() - sum(self._ownIn(routed, end) for end in ends)
            if pace.isDue(_MASK_UNITS * (1 + len(ends) // 8)):
                yield
        yield from () if len(self._peers) < _MANY else (None,)
        bottom = (node for node in self._peers if node.isSwitch and self._hasHosts(node))
        self._levels = distances(bottom, self._switchesAt)

    @property
    def unread(self) -> int:
        """Number of switches whose tables are unknown."""
        return sum(node.isSwitch and node not in self._outs for node in self._peers)

    def has(self, element: Element) -> bool:
        """Return whether the fabric has a node, or a cable at a port."""
        if isinstance(element, Node):
            return element in self._peers
        return element.number in self._peers.get(element.node, {})

    # Sets of destinations.

    def _hasHosts(self, node: Node) -> bool:
        return any(isEnd(peer.node) for peer in self._peers[node].values())

    def _switchesAt(self, node: Node) -> list[Node]:
        return [peer.node for peer in self._peers[node].values() if peer.node.isSwitch]

    def _bit(self, end: int) -> int:
        return 1 << (len(self._ends) - 1 - end)

    def _mask(self, node: Node, port: int) -> int:
        """Return the destinations that a switch forwards by a port; none if its table is unknown."""
        outs = self._outs.get(node)
        return int(outs.translate(_digits(port)), 2) if outs else 0

    def _among(self, port: Port, destinations: int) -> int:
        """Return which of some destinations a switch forwards by a port."""
        if destinations.bit_count() > _FEW:
            return self._mask(port.node, port.number) & destinations
        outs, found = self._outs.get(port.node), 0
        while destinations and outs:
            lowest = destinations & -destinations
            if outs[-lowest.bit_length()] == port.number:
                found |= lowest
            destinations ^= lowest
        return found

    def _ownIn(self, destinations: int, end: int) -> int:
        """Return how many of the destinations are ports of the node of an end."""
        return sum(bool(destinations & self._bit(own)) for own in self._own[self._ends[end].node])

    # Some elements together.

    def without(self, elements: Sequence[Element], jobs: Jobs = ()) -> Generator[None, None, Loss]:
        """Compute, in steps of milliseconds, what is lost without all of the elements together."""
        nodes, cut = self._removed(elements)
        loss = Loss(unread=self.unread)
        loss.cutOff, loss.switches = yield from self._cutOff(nodes, cut)
        lost = yield from self._lostFrom(cut)
        yield from self._count(cut, lost, loss)
        off = set(loss.cutOff)
        yield from self._reduced(nodes, cut, off, loss)
        slower, pace = set(loss.slower), Pace()
        for number, job in enumerate(jobs):
            yield from self._ofJob(number, job, cut, lost, off, slower, loss, pace)
        loss.jobs.sort(key=lambda one: (-one.cutOff, -one.paths))
        return loss

    def _removed(self, elements: Sequence[Element]) -> tuple[set[Node], set[Port]]:
        """Return the nodes among elements, and both ends of all cables that are removed with them."""
        nodes = {each for each in elements if isinstance(each, Node)}
        cut: set[Port] = set()
        for element in elements:
            numbers = self._peers[element] if isinstance(element, Node) else (element.number,)
            node = element if isinstance(element, Node) else element.node
            for number in numbers:
                cut |= {node.port(number), self._peers[node][number]}
        return nodes, cut

    def _cutOff(
        self, nodes: set[Node], cut: set[Port]
    ) -> Generator[None, None, tuple[list[Node], list[Node]]]:
        """Return hosts and switches that have no path to the largest of the parts at the elements."""
        pace = Pace()
        parts: list[list[_Vertex]] = []
        seen = {vertex for vertex in nodes if vertex.isSwitch}
        ends = [port for port in cut if not port.node.isSwitch and port.node not in nodes]
        left = {
            end: [
                peer.node
                for number, peer in self._peers[end.node].items()
                if end.node.port(number) not in cut and peer.node.isSwitch
            ]
            for end in ends
        }
        starts = [port.node for port in cut if port.node.isSwitch and port.node not in nodes]
        starts += [switch for switches in left.values() for switch in switches]
        if self._areJoined(starts, nodes, cut):
            alone = {end.node for end, switches in left.items() if not switches and isEnd(end.node)}
            return sorted(alone | {node for node in nodes if isEnd(node)}, key=_order), []
        for start in dict.fromkeys(starts):
            if start in seen:
                continue
            seen.add(start)
            part: list[_Vertex] = [start]
            for vertex in part:
                if isinstance(vertex, Port):
                    continue
                for number, peer in self._peers[vertex].items():
                    if vertex.port(number) in cut:
                        continue
                    if not peer.node.isSwitch:
                        part.append(peer)
                    elif peer.node not in seen:
                        seen.add(peer.node)
                        part.append(peer.node)
                if pace.isDue(len(self._peers[vertex]) + 1):
                    yield
            parts.append(part)
        parts += [[end] for end in ends]
        gone = _gone(parts) | {node for node in nodes if isEnd(node)}
        largest = max(parts, key=_size, default=[])
        others = (vertex for part in parts if part is not largest for vertex in part)
        switches = (vertex for vertex in others if isinstance(vertex, Node))
        return sorted(gone, key=_order), sorted(switches, key=_order)

    def _areJoined(self, starts: list[Node], nodes: set[Node], cut: set[Port]) -> bool:
        """Return whether switches are connected without the removed elements. This is mostly found nearby."""
        missing = set(starts)
        waiting = starts[:1]
        seen = nodes.union(waiting)
        missing.difference_update(waiting)
        for switch in waiting:
            if not missing:
                break
            for peer in self._peers[switch].values():
                if peer.node.isSwitch and peer.node not in seen and peer not in cut:
                    seen.add(peer.node)
                    waiting.append(peer.node)
                    missing.discard(peer.node)
        return not missing

    def _lostFrom(self, cut: set[Port]) -> Generator[None, None, dict[Node, int]]:
        """Return the destinations to which packets at each switch cross a cut link, from there backwards."""
        pace = Pace()
        lost: dict[Node, int] = defaultdict(int)
        waiting: dict[Node, int] = {}
        for port in cut:
            if port.node.isSwitch:
                waiting[port.node] = waiting.get(port.node, 0) | self._mask(port.node, port.number)
        while waiting:
            node = next(iter(waiting))  # the first, so that sets have arrived from all of its peers
            new = waiting.pop(node) & ~lost[node]
            lost[node] |= new
            if not new:
                continue
            for peer in self._peers[node].values():
                if peer.node.isSwitch:
                    before = self._among(peer, new) & ~lost[peer.node]
                    if before:
                        waiting[peer.node] = waiting.get(peer.node, 0) | before
                    if pace.isDue(_MASK_UNITS):
                        yield
        return lost

    def _lostBy(self, node: Node, end: int, cut: set[Port], lost: dict[Node, int]) -> int:
        """Return the destinations that an end at a switch loses: all if its own cable is cut."""
        return self._routed[node] if self._ends[end] in cut else lost.get(node, 0)

    def _count(self, cut: set[Port], lost: dict[Node, int], loss: Loss) -> Iterator[None]:
        """Count lost paths, as a whole and for each host."""
        pace = Pace()
        loss.total = self.total
        count = len(self._ends)
        counts: Counter[Node] = Counter()
        several: Counter[int] = Counter()
        for node, ends in self._attached.items():
            for end in ends:
                destinations = self._lostBy(node, end, cut, lost)
                own = self._ownIn(destinations, end)
                paths = destinations.bit_count() - own
                loss.paths += paths
                host = self._ends[end].node
                counts[host] += paths - own  # the column has the own ports of the host, too
                several[destinations] += 1
                if pace.isDue(_MASK_UNITS):
                    yield
        columns = 0
        for destinations, sources in several.items():
            if destinations:
                columns += sources * _spread(destinations, count)
            if pace.isDue(_MASK_UNITS * 4):
                yield
        arriving = struct.unpack(f">{count}I", columns.to_bytes(4 * count, "big"))
        for port, paths in zip(self._ends, arriving, strict=True):
            counts[port.node] += paths
            if pace.isDue(2):
                yield
        affected = [(host, paths) for host, paths in counts.items() if paths]
        loss.byHost = sorted(affected, key=lambda one: (-one[1], _order(one[0])))

    def _ofJob(
        self,
        number: int,
        job: Sequence[Sequence[Node]],
        cut: set[Port],
        lost: dict[Node, int],
        off: set[Node],
        slower: set[Node],
        loss: Loss,
        pace: Pace,
    ) -> Iterator[None]:
        """Add the loss of a job to those of others, if it loses anything."""
        mine, paths = 0, 0
        for host in job:
            for end in self._endsOf(host):
                mine |= self._bit(end)
            if pace.isDue(_END_UNITS * len(host)):
                yield
        for host in job:
            ends = self._endsOf(host)
            others = mine & ~sum(map(self._bit, ends))
            for end in ends:
                port = self._ends[end]
                switch = self._peers[port.node][port.number].node
                paths += (self._lostBy(switch, end, cut, lost) & others).bit_count()
            if pace.isDue(_END_UNITS * len(host)):
                yield
        cutOff = sum(bool(host) and off.issuperset(host) for host in job)
        changed = slower | off
        reduced = sum(not changed.isdisjoint(host) and not off.issuperset(host) for host in job)
        if cutOff or paths or reduced:
            loss.jobs.append(JobLoss(number, cutOff, paths, reduced))

    def _endsOf(self, host: Sequence[Node]) -> list[int]:
        return [end for node in host for end in self._own.get(node, ())]

    # Bandwidth.

    def _group(self, node: Node) -> _Sharers:
        """Return the group of a switch: those of its level that have links to switches below it."""
        group = self._groups.get(node)
        if group is None:
            level = self._levels[node]
            below = [peer for peer in self._switchesAt(node) if self._levels[peer] < level]
            several = {node} | {
                peer for one in below for peer in self._switchesAt(one) if self._levels[peer] == level
            }
            nodes = sorted(several, key=_order)
            hosts = 0
            for switch in distances(nodes, self._below):
                for end in self._attached.get(switch, ()):
                    hosts |= self._hostBit(self._ends[end].node)
            rate = sum(
                gigabits(one.port(number))
                for one in nodes
                for number, peer in self._peers[one].items()
                if peer.node.isSwitch and peer.node not in several and self._levels[peer.node] >= level
            )
            group = _Sharers(nodes, hosts, rate)
            for one in nodes:
                self._groups.setdefault(one, group)
        return group

    def _below(self, node: Node) -> list[Node]:
        """Return the switches at a lower level to which a switch has links."""
        return [peer for peer in self._switchesAt(node) if self._levels[peer] < self._levels[node]]

    def _sharing(self, port: Port) -> Iterator[_Sharers]:
        """Yield the groups whose hosts share a link: that of the switch at the lower end, or of both."""
        peer = self._peers[port.node][port.number]
        for one, other in ((port.node, peer.node), (peer.node, port.node)):
            level, beyond = self._levels.get(one), self._levels.get(other)
            if level is not None and beyond is not None and level <= beyond:
                group = self._group(one)
                if other not in group.nodes:
                    yield group

    def _hostBit(self, host: Node) -> int:
        return self._bit(self._own[host][0])

    def _hostsIn(self, bits: int) -> list[Node]:
        text = format(bits, f"0{len(self._ends)}b")
        return [self._ends[at].node for at, digit in enumerate(text) if digit == "1"]

    def _reduced(self, nodes: set[Node], cut: set[Port], off: set[Node], loss: Loss) -> Iterator[None]:
        """Find hosts with less bandwidth: those below lost links of switches, or with several links."""
        pace = Pace()
        rates: dict[int, float] = {}
        groups: dict[int, _Sharers] = {}
        seen: set[Port] = set()
        for port in cut:
            if port in seen:
                continue
            peer = self._peers[port.node][port.number]
            seen |= {port, peer}
            for group in self._sharing(port):
                groups[id(group)] = group
                rates[id(group)] = rates.get(id(group), 0.0) + gigabits(port)
                if pace.isDue(len(self._ends)):
                    yield
        for key, group in groups.items():
            after = group.gigabits - rates[key]
            hosts = [host for host in self._hostsIn(group.hosts) if host not in off]
            if hosts and after > 0 and not nodes.issuperset(group.nodes):
                loss.reduced.append(BandwidthLoss(group.nodes, hosts, group.gigabits, after))
            if pace.isDue(len(self._ends)):
                yield
        for host in dict.fromkeys(port.node for port in cut if isEnd(port.node) and port.node not in off):
            ports = [host.port(number) for number in self._peers[host]]
            left = sum(gigabits(port) for port in ports if port not in cut)
            if left:
                loss.reduced.append(BandwidthLoss([host], [host], sum(map(gigabits, ports)), left))
        loss.reduced.sort(key=lambda one: (one.share, _order(one.nodes[0])))

    # Each element by itself.

    def ranking(self, jobs: Jobs = ()) -> Generator[tuple[int, int] | None, None, list[Rank]]:
        """
        Compute what is lost without each switch and each cable by itself, the greatest losses first; after
        milliseconds of work, yield the work done and its total, or None.
        """
        counts, users = yield from self._followed(jobs)
        jobsOf: _JobsOf = defaultdict(list)
        for number, job in enumerate(jobs):
            for host in job:
                for node in host:
                    jobsOf[node].append((number, frozenset(host)))
        elements = list(self._elements())
        found: list[Rank] = []
        for element in elements:
            cutOff, _switches = yield from self._cutOff(*self._removed([element]))
            gone = set(cutOff)
            jobsOff = {number for node in gone for number, host in jobsOf.get(node, ()) if host <= gone}
            found.append(self._rankOf(element, len(gone), len(jobsOff), counts, users))
            yield len(found), len(elements)
        found.sort(key=lambda one: (*one.key, _order(one.element)))
        return found

    def _elements(self) -> Iterator[Element]:
        """Yield all switches, and each cable by one of its ends."""
        for node, peers in self._peers.items():
            if node.isSwitch:
                yield node
            for number, peer in peers.items():
                port = node.port(number)
                if isFirstEnd(port, peer):
                    yield port

    def _rankOf(
        self,
        element: Element,
        cutOff: int,
        jobsCutOff: int,
        counts: Counter[Port],
        users: dict[Port, set[int]],
    ) -> Rank:
        isSwitch = isinstance(element, Node)
        ports = (
            [element.port(each) for each in self._peers[element]] if isinstance(element, Node) else [element]
        )
        rates: dict[int, float] = defaultdict(float)
        groups: dict[int, _Sharers] = {}
        paths, using, hosts = 0, set[int](), 0
        shares = [1.0]
        for port in ports:
            peer = self._peers[port.node][port.number]
            # Each path through a switch leaves it by one port.
            paths += counts[port] + (0 if isSwitch else counts[peer])
            using |= users.get(port, set()) | users.get(peer, set())
            for group in self._sharing(port):
                groups[id(group)] = group
                rates[id(group)] += gigabits(port)
            if len(self._own.get(peer.node, ())) > 1:
                own = sum(gigabits(peer.node.port(number)) for number in self._peers[peer.node])
                if own > gigabits(peer):
                    hosts |= self._hostBit(peer.node)
                    shares.append(1 - gigabits(peer) / own)
        for key, group in groups.items():
            left = group.gigabits - rates[key]
            if left > 0 and group.nodes != [element]:
                hosts |= group.hosts
                shares.append(left / group.gigabits)
        return Rank(
            *(element, cutOff, paths, hosts.bit_count(), min(shares), jobsCutOff, len(using)),
        )

    def _follower(self, index: dict[Node, int]) -> Callable[[int, int], list[int]]:
        """
        Return a function that follows the path from a switch to an end, and returns its channels.

        @param index: numbers of the switches. A channel is the number of a switch, and in the low octet the
            number of the sending port.
        """
        outs = [self._outs[node] for node in index]
        beyond = [[-1] * 256 for _ in index]
        for node, at in index.items():
            for number, peer in self._peers[node].items():
                beyond[at][number] = index.get(peer.node, -1)

        def follow(at: int, end: int) -> list[int]:
            path: list[int] = []
            passed: list[int] = []
            while at >= 0 and at not in passed:
                out = outs[at][end]
                if out in (0, NO_PORT):
                    break
                passed.append(at)
                path.append(at << 8 | out)
                at = beyond[at][out]
            return path

        return follow

    def _followed(
        self, jobs: Jobs
    ) -> Generator[tuple[int, int], None, tuple[Counter[Port], dict[Port, set[int]]]]:
        """Follow each path; return the paths by sending port, and the jobs whose paths use it."""
        index = {node: at for at, node in enumerate(self._outs)}
        follow = self._follower(index)
        sources = [(index[node], ends) for node, ends in self._attached.items() if node in index]
        leaf = {end: at for at, ends in sources for end in ends}
        ofJobs: dict[int, list[int]] = defaultdict(list)
        members: list[list[int]] = []
        for number, job in enumerate(jobs):
            members.append([end for host in job for node in host for end in self._own[node] if end in leaf])
            for end in members[-1]:
                ofJobs[end].append(number)
        counts: Counter[int] = Counter()
        users: dict[int, set[int]] = defaultdict(set)
        up: Counter[Port] = Counter()
        for end, port in enumerate(self._ends):
            own = self._own[port.node]
            for at, ends in sources:
                count = len(ends) - sum(leaf.get(one) == at for one in own)
                if count:
                    for channel in follow(at, end):
                        counts[channel] += count
            for number in ofJobs.get(end, ()):
                others = [one for one in members[number] if self._ends[one].node is not port.node]
                for at in {leaf[one] for one in others}:
                    for channel in follow(at, end):
                        users[channel].add(number)
                if others:
                    users[-1 - end].add(number)
            yield end, len(self._ends)
        ports: dict[int, Port] = {}
        for node, at in index.items():
            ports.update((at << 8 | number, node.port(number)) for number in self._peers[node])
        for node, ends in self._attached.items():
            routed = self._routed[node]
            for end in ends:
                up[self._ends[end]] = routed.bit_count() - self._ownIn(routed, end)
        up.update({ports[channel]: count for channel, count in counts.items() if channel in ports})
        using = {ports[channel]: found for channel, found in users.items() if channel in ports}
        using.update((self._ends[-1 - channel], found) for channel, found in users.items() if channel < 0)
        return up, using


def _size(part: list[_Vertex]) -> tuple[int, int]:
    """Return the number of ports of hosts in a part, and of all of its vertices."""
    return sum(map(_isHostPort, part)), len(part)


def _isHostPort(vertex: _Vertex) -> bool:
    return isinstance(vertex, Port) and isEnd(vertex.node)


def _hostsOf(part: list[_Vertex]) -> set[Node]:
    return {one.node for one in part if isinstance(one, Port) and isEnd(one.node)}


def _gone(parts: list[list[_Vertex]]) -> set[Node]:
    """Return the hosts without a port in the largest part; a part that is a single host reaches nothing."""
    largest = max(parts, key=_size, default=[])
    remaining = _hostsOf(largest) if len(largest) > 1 else set()
    return set[Node]().union(*map(_hostsOf, parts)) - remaining


def _order(element: Element) -> tuple[bytes, int]:
    return (element.guid.raw, 0) if isinstance(element, Node) else (element.node.guid.raw, element.number)


def _spread(destinations: int, count: int) -> int:
    """Return a set of destinations with 32 bits for each, so that sets can be added up."""
    text = format(destinations, f"0{count}b").replace("0", "x").replace("1", "00000001")
    return int(text.replace("x", "00000000"), 16)
