"""
Forwarding of packets by a simulated switch: its table, and the output port for a LID.

Follows InfiniBand Architecture vol. 1, 18.2.4.3.
"""

from __future__ import annotations

from txrdma.sim.fabric.model.nodes import SimulatedNode, SimulatedPort


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
