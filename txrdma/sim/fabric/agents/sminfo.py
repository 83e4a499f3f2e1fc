"""
State of a subnet manager, as SMInfo shows and changes it.

Follows InfiniBand Architecture vol. 1, 14.4.1 (states and control packets).
"""

from __future__ import annotations

from txrdma.mad.layouts.messages import MADStatus
from txrdma.mad.layouts.smp import SMInfo
from txrdma.mad.layouts.values import SMState
from txrdma.sim.fabric.model.nodes import SimulatedPort

HANDOVER, ACKNOWLEDGE, DISABLE, STANDBY, DISCOVER = 1, 2, 3, 4, 5
"""Attribute modifiers of a Set of SMInfo."""


class SMInfoAgent:
    """
    The SMInfo of the subnet manager at a port.

    @ivar state: current state of the SM.
    """

    def __init__(self, port: SimulatedPort, priority: int) -> None:
        self.port = port
        self.priority = priority
        self.state = SMState.DISCOVERING
        self._answers = 0

    def info(self) -> SMInfo:
        """Return the SMInfo of this SM; as in OpenSM, sweeps and answers are counted as activity."""
        activity = (self.sweeps + self._answers) & 0xFFFFFFFF
        return SMInfo(guid=self.port.guid, actCount=activity, priority=self.priority, smState=self.state)

    def answer(self) -> SMInfo:
        """Return the SMInfo in answer to a Get, and count the activity."""
        info = self.info()
        self._answers += 1
        return info

    def control(self, command: int, info: SMInfo) -> int:
        """Perform a Set of SMInfo by another SM; refuse a command that is invalid in this state."""
        if command != ACKNOWLEDGE and info.smState is not SMState.MASTER:
            return MADStatus.INVALID_FIELD
        states = {
            (SMState.STANDBY, DISABLE): SMState.NOT_ACTIVE,
            (SMState.STANDBY, DISCOVER): SMState.DISCOVERING,
            (SMState.NOT_ACTIVE, STANDBY): SMState.STANDBY,
            (SMState.MASTER, ACKNOWLEDGE): SMState.STANDBY,
        }
        if command == HANDOVER and self.state in (SMState.STANDBY, SMState.MASTER):
            self.handedOver(info)
            return 0
        state = states.get((self.state, command))
        if state is None:
            return MADStatus.INVALID_FIELD
        self.state = state
        return 0

    @property
    def sweeps(self) -> int:
        """The number of sweeps of the SM."""
        return 0

    def handedOver(self, info: SMInfo) -> None:
        """Called when the master, which has this SMInfo, hands over to this SM."""
