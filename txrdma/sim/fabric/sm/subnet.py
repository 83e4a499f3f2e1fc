"""
The subnet, as managers and the SA of a simulated fabric need it.
"""

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
    A simulated subnet.

    @ivar nodes: by their identifiers.
    @ivar sma: the agents of all nodes, which know who manages the subnet.
    @ivar manager: the master's; None where nobody manages the subnet.
    @ivar timetable: for what is to happen later.
    """

    clock: IReactorTime
    manager: SubnetManager | None

    @property
    def nodes(self) -> Mapping[str, SimulatedNode]:
        """See above."""

    @property
    def sma(self) -> SubnetManagementAgents:
        """See above."""

    @property
    def timetable(self) -> Timetable:
        """See above."""

    def portOf(self, lid: int) -> SimulatedPort | None:
        """The port that has a LID."""

    def attachTo(self, port: SimulatedPort) -> SimulatedMADPort:
        """A management port at a port of the fabric."""

    def lead(self, manager: SubnetManager) -> None:
        """Let this manager be the master from now on."""
