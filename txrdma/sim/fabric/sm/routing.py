"""
Shortest paths through a simulated fabric's switches, as their linear forwarding tables.

A set of switches is an integer with one bit for each, so that the distances between all of ten thousand are
computed quickly. A switch's table is computed when it is first read. Of several output ports at equal
distance, the LID selects one. Each level of switches uses another part of the LID, which spreads destinations
evenly in fat trees.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final, NamedTuple

from txrdma.iba.verbs import PortState
from txrdma.sim.fabric.model.nodes import SimulatedNode

NO_PORT: Final = 0xFF


class _Class(NamedTuple):
    """A set of switches that are reached by the same output ports."""

    members: int
    ports: tuple[int, ...]


class Routing:
    """
    Shortest paths between a fabric's switches, computed from its links at construction.

    @ivar switches: the switches, in the order of their bits.
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
        """Return the linear forwarding table of a switch, up to the highest LID."""
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
            if reached == (1 << len(self.switches)) - 1:  # all are reachable: fill the table, then correct it
                table[1:] = self._pattern(bit, widest.ports, 1, self._top)
                classes.remove(widest)
        for found in classes:
            for member in _bitsOf(found.members):
                for first, last, _port in self._ends[member]:
                    table[first : last + 1] = self._pattern(bit, found.ports, first, last)
        for first, last, port in self._ends[bit]:
            table[first : last + 1] = bytes((port,)) * (last + 1 - first)
        return table

    def _neighbourPorts(self, switch: SimulatedNode) -> dict[int, list[int]]:
        """Return the neighbours of a switch by their bits, with the ports that lead there."""
        ports: dict[int, list[int]] = {}
        bits = self._bits
        for port in switch.ports[1:]:
            peer = port.neighbor
            bit = None if peer is None else bits.get(peer.node)  # None for hosts and silent switches
            if bit is not None and port.state >= PortState.INIT:
                ports.setdefault(bit, []).append(port.number)
        return ports

    def _distances(self) -> list[list[int]]:
        """Return masks of the switches at distance 0, 1, 2... from each switch."""
        count = len(self._neighbours)
        near = [1 << number for number in range(count)]
        found = [[members] for members in near]
        growing = set(range(count))
        while growing:
            # A set that has not grown in one step never grows again: nothing is farther from its switch.
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
        """Return the distance of each switch from the nearest one with hosts."""
        withHosts = 0
        for number, ends in enumerate(self._ends):
            if any(port for _first, _last, port in ends):
                withHosts |= 1 << number
        return [
            next((rank for rank, members in enumerate(sets) if members & withHosts), 0)
            for sets in self._atDistance
        ]

    def _classes(self, bit: int) -> list[_Class]:
        """Return the other reachable switches, in classes with the same output ports for shortest paths."""
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
            # Split each class into switches that are nearer by this neighbour, and others.
            refined = []
            for members, before in classes:
                if members & nearer:
                    refined.append(_Class(members & nearer, (*before, *ports)))
                if members & ~nearer:
                    refined.append(_Class(members & ~nearer, before))
            classes = refined
        return classes

    def _pattern(self, bit: int, ports: tuple[int, ...], first: int, last: int) -> bytes:
        """Return the output port for each LID of a range, spread over several ports."""
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
    """Yield first LID, last LID and output port for a switch and for its neighbours other than switches."""
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
