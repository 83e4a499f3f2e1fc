"""The interface of a simulated subnet that its subnet managers and its SA use."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Protocol

from twisted.internet.interfaces import IReactorTime

from txrdma.sim.fabric.agents.sma import SubnetManagementAgents
from txrdma.sim.fabric.model.nodes import SimulatedNode, SimulatedPort
from txrdma.sim.fabric.sm.manager import SubnetManager
from txrdma.sim.fabric.wire.madport import SimulatedMADPort
from txrdma.sim.fabric.wire.timetable import Timetable


class Subnet(Protocol):
    """
    A simulated subnet, as its SMs and its SA use it.

    @ivar nodes: nodes by their identifiers.
    @ivar sma: agents of all nodes, which know the subnet managers.
    @ivar manager: the master SM; None in a subnet without one.
    @ivar timetable: scheduled calls.
    """

    clock: IReactorTime
    manager: SubnetManager | None

    @property
    def nodes(self) -> Mapping[str, SimulatedNode]:
        """Nodes by their identifiers in the net file."""

    @property
    def sma(self) -> SubnetManagementAgents:
        """Subnet management agents of all nodes."""

    @property
    def timetable(self) -> Timetable:
        """Timetable of scheduled calls."""

    def portOf(self, lid: int) -> SimulatedPort | None:
        """Return the port that has this LID; None if there is none."""

    def attachTo(self, port: SimulatedPort) -> SimulatedMADPort:
        """Return a management port attached to a port of the fabric."""

    def lead(self, manager: SubnetManager) -> None:
        """Make this SM the master."""
