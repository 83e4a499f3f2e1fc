"""
Shortest paths through a simulated fabric's switches, as their linear forwarding tables.

Sets of switches are the bits of an integer, so that distances between all of ten thousand are found in a
moment. A switch's table is made when somebody looks at it first. Of ports that are equally near a LID takes
one by its number, and by another part of that number at each level of switches: in fat trees that spreads
destinations evenly.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from txrdma.iba.verbs import PortState
from txrdma.sim.fabric.model.nodes import SimulatedNode

NO_PORT: Final = 0xFF


class _Class(NamedTuple):
    """Switches that are reached by the same ports."""

    members: int
    ports: tuple[int, ...]


class Routing:
    """
    Shortest paths between a fabric's switches, from its links when this is made.

    @ivar switches: in the order of their bits.
    """

    def __init__(self, switches: Sequence[SimulatedNode], top: int) -> None:
        """@param top: the highest LID."""
        self.switches = switches
        self._top = top
        self._bits = {switch: number for number, switch in enumerate(switches)}
        self._neighbours = [self._neighbourPorts(switch) for switch in switches]
        self._atDistance = self._distances()
        self._ends: list[list[tuple[int, int, int]]] = [list(_lidsAt(switch)) for switch in switches]
        self._levels = self._rank()

    def table(self, switch: SimulatedNode) -> bytearray:
        """Linear forwarding table of a switch, up to the highest LID."""
        table = bytearray(b"\xff") * (self._top + 1)
        bit = self._bits.get(switch)
        if bit is None:
            return table
        classes = self._classes(bit)
        if classes:
            widest = max(classes, key=lambda found: found.members.bit_count())
            reached = 1 << bit
            for found in classes:
                reached |= found.members
            if reached == (1 << len(self.switches)) - 1:  # nothing is left out: fill all, then correct
                table[1:] = self._pattern(bit, widest.ports, 1, self._top)
                classes.remove(widest)
        for found in classes:
            for member in _bitsOf(found.members):
                for first, last, _port in self._ends[member]:
                    table[first : last + 1] = self._pattern(bit, found.ports, first, last)
        for first, last, port in self._ends[bit]:
            table[first : last + 1] = bytes((port,)) * (last + 1 - first)
        return table

    def distance(self, one: SimulatedNode, other: SimulatedNode) -> int | None:
        """Number of links between two switches; None when there is no path."""
        wanted = 1 << self._bits[other]
        sets = self._atDistance[self._bits[one]]
        return next((number for number, members in enumerate(sets) if members & wanted), None)

    def _neighbourPorts(self, switch: SimulatedNode) -> dict[int, list[int]]:
        """Neighbours of a switch by their bits, with the ports that lead there."""
        ports: dict[int, list[int]] = {}
        bits = self._bits
        for port in switch.ports[1:]:
            peer = port.neighbor
            if peer is not None and peer.node.isSwitch and port.state >= PortState.INIT:
                ports.setdefault(bits[peer.node], []).append(port.number)
        return ports

    def _distances(self) -> list[list[int]]:
        """Masks of the switches at distance 0, 1, 2... from each switch."""
        count = len(self._neighbours)
        near = [1 << number for number in range(count)]
        found = [[members] for members in near]
        growing = set(range(count))
        while growing:
            wider = list(near)
            for number in growing:
                members = near[number]
                for neighbour in self._neighbours[number]:
                    members |= near[neighbour]
                wider[number] = members
            growing = {number for number in growing if wider[number] != near[number]}
            for number in growing:
                found[number].append(wider[number] & ~near[number])
            near = wider
        return found

    def _rank(self) -> list[int]:
        """Distance of each switch from the nearest one with hosts."""
        withHosts = 0
        for number, ends in enumerate(self._ends):
            if any(port for _first, _last, port in ends):
                withHosts |= 1 << number
        return [
            next((rank for rank, members in enumerate(sets) if members & withHosts), 0)
            for sets in self._atDistance
        ]

    def _classes(self, bit: int) -> list[_Class]:
        """Other switches that can be reached, in classes with the same output ports for shortest paths."""
        mine = self._atDistance[bit]
        everybody = 0
        for members in mine[1:]:
            everybody |= members
        classes = [_Class(everybody, ())] if everybody else []
        for neighbour, ports in self._neighbours[bit].items():
            distances = self._atDistance[neighbour]
            nearer = 0
            for number in range(1, min(len(mine), len(distances) + 1)):
                nearer |= mine[number] & distances[number - 1]
            refined = []
            for members, before in classes:
                if members & nearer:
                    refined.append(_Class(members & nearer, (*before, *ports)))
                if members & ~nearer:
                    refined.append(_Class(members & ~nearer, before))
            classes = refined
        return classes

    def _pattern(self, bit: int, ports: tuple[int, ...], first: int, last: int) -> bytes:
        """Output port for each LID of a range, spread over several ports."""
        many = len(ports)
        length = last + 1 - first
        if many == 1:
            return bytes(ports) * length
        stride: int = many ** self._levels[bit]
        if length < 64:
            return bytes(ports[(lid - 1) // stride % many] for lid in range(first, last + 1))
        period = b"".join(bytes((port,)) * stride for port in ports)
        begin = (first - 1) % len(period)
        return (period * ((begin + length) // len(period) + 1))[begin : begin + length]


def _lidsAt(switch: SimulatedNode) -> Iterator[tuple[int, int, int]]:
    """
    Ranges of LIDs at a switch, with first, last and output port: its own, and those of its neighbours
    other than switches.
    """
    own = switch.ports[0]
    if own.lid:
        yield own.lid, own.lid + (1 << own.lmc) - 1, 0
    for port in switch.ports[1:]:
        peer = port.neighbor
        if peer is not None and not peer.node.isSwitch and peer.lid:
            yield peer.lid, peer.lid + (1 << peer.lmc) - 1, port.number


def _bitsOf(members: int) -> Iterator[int]:
    while members:
        lowest = members & -members
        yield lowest.bit_length() - 1
        members ^= lowest
