"""
Forwarding of packets by a simulated switch: its table, and the output port for a LID.

Follows InfiniBand Architecture vol. 1, 18.2.4.3.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from txrdma.sim.fabric.model.nodes import SimulatedNode, SimulatedPort

_MOST_LINKS: Final = 64
"""Largest number of links that are followed, because tables may contain loops."""


def tableOf(switch: SimulatedNode) -> bytearray:
    """Return the linear forwarding table of a switch, computed by the subnet's routing when first read."""
    if switch.linear is None:
        switch.linear = bytearray() if switch.routing is None else switch.routing(switch)
    return switch.linear


def outOf(switch: SimulatedNode, lid: int) -> SimulatedPort | None:
    """Return the port by which a switch sends packets for a LID; None if its table has no such port."""
    table = switch.linear
    if table is None:
        table = tableOf(switch)
    number = table[lid] if lid < len(table) else 0xFF
    return switch.ports[number] if 0 < number < len(switch.ports) else None


def exits(start: SimulatedPort, lid: int) -> Iterator[SimulatedPort]:
    """
    Yield the ports by which packets from a port to a LID leave nodes, as far as the forwarding tables lead.
    The path ends after the last of these ports, or at the start without one: at the port with the LID, at a
    node that does not forward the packets, or at a link that is down.
    """
    port = start
    for hop in range(_MOST_LINKS):
        if port.end.owns(lid):
            return
        if port.node.isSwitch:
            out = outOf(port.node, lid)
        else:
            out = None if hop else port
        if out is None:
            return
        yield out
        if out.neighbor is None:
            return
        port = out.neighbor
