"""The nodes of a simulated subnet, their agents and their links, which its subnet managers and its SA use."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.interfaces import IReactorTime

from txrdma.sim.fabric.agents.mkeys import ManagementKeys
from txrdma.sim.fabric.agents.sma import SubnetManagementAgents
from txrdma.sim.fabric.model.nodes import buildNodes, endPorts, SimulatedPort
from txrdma.sim.fabric.sm.manager import SubnetManager
from txrdma.sim.fabric.wire.madport import SimulatedMADPort
from txrdma.sim.fabric.wire.timetable import SimulatedTimetable
from txrdma.sim.fabric.wire.wire import Wire
from txrdma.sim.nets.netfile import Net


class Subnet:
    """
    A simulated subnet: nodes, links and agents.

    @ivar nodes: nodes by their identifiers in the net file.
    @ivar sma: agents of all nodes, which know the subnet managers.
    @ivar manager: the master SM; None in a subnet without one.
    @ivar timetable: datagrams in flight, and other scheduled calls.
    @ivar wire: the links, which count datagrams; C{latencySeconds}, C{jitterSeconds} and C{loss} can be
        changed at any time.
    """

    def __init__(
        self,
        clock: IReactorTime,
        net: Net,
        changed: Callable[[SimulatedPort], None],
        violated: Callable[[SimulatedPort, bytes], None],
        seed: int,
    ) -> None:
        """
        @param changed: called with each port whose state a Set has changed.
        @param violated: called with a port and a datagram whose M_Key is wrong.
        @param seed: seed of the wire's losses and jitter.
        """
        self.clock = clock
        self.nodes = buildNodes(net)
        self.timetable = SimulatedTimetable(clock)
        self.sma = SubnetManagementAgents(changed, ManagementKeys(clock.seconds, violated))
        self.wire = Wire(clock.seconds, self.timetable.later, self.sma, seed)
        self.manager: SubnetManager | None = None

    def portOf(self, lid: int) -> SimulatedPort | None:
        """Return the port that has this LID, by the SM's assignment or by its PortInfo; None without one."""
        if self.manager is not None:
            for lmc in range(8):
                port = self.manager.ports.get(lid & ~((1 << lmc) - 1))
                if port is not None and port.owns(lid):
                    return port
        for node in self.nodes.values():
            for port in endPorts(node):
                if port.owns(lid):
                    return port
        return None

    def attachTo(self, port: SimulatedPort, name: str = "") -> SimulatedMADPort:
        """Return a management port attached to this port of the fabric."""
        return SimulatedMADPort(self.wire.sent, port, name)
