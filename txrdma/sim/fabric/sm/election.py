"""
Election of the master among several subnet managers, and handover from one to another.

Follows InfiniBand Architecture vol. 1, 14.4.1 (states of a subnet manager, and SMInfo, by which SMs control
each other). The SMs know each other without sweeps; they poll and control each other by SMPs.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Final

from txrdma.iba.path import IBPath
from txrdma.iba.types import LID
from txrdma.kit.delayedcalls import Timer
from txrdma.mad.agent import MADAgent
from txrdma.mad.layouts.smp import SMInfo
from txrdma.mad.layouts.values import PortCapability, SMState
from txrdma.sim.fabric.agents.sminfo import ACKNOWLEDGE, HANDOVER, SMInfoAgent
from txrdma.sim.fabric.model.nodes import SimulatedPort
from txrdma.sim.fabric.sm.manager import SubnetManager
from txrdma.sim.fabric.sm.subnet import Subnet

PRIORITY: Final = 4
STANDBY_PRIORITY: Final = 3
POLL_SECONDS: Final = 1.0
POLLS: Final = 4
"""Number of unanswered SMPs in one poll after which a standby SM considers the master lost."""


class ManagerCandidate(SMInfoAgent):
    """
    A subnet manager at a port of the fabric: the master, or a standby SM.

    @ivar manager: sweeps the subnet while this SM is the master.
    """

    def __init__(
        self,
        fabric: Subnet,
        port: SimulatedPort,
        lead: Callable[[SubnetManager], None],
        lmc: int = 0,
        priority: int = PRIORITY,
    ) -> None:
        """@param lead: called to make this SM the master."""
        super().__init__(port, priority)
        self.manager = SubnetManager(fabric.nodes, port, lmc)
        self._fabric = fabric
        self._lead = lead
        self._agent: MADAgent | None = None
        self._timer = Timer(fabric.clock)
        fabric.sma.managers[port] = self
        port.capabilities |= PortCapability.SM

    def __repr__(self) -> str:
        return f"<ManagerCandidate at {self.port}: {self.state.name}>"

    @property
    def rank(self) -> tuple[int, int]:
        """Rank in the election; the highest wins: by higher priority, then by lower GUID."""
        return self.priority, -int(self.port.guid)

    def lead(self) -> None:
        """Become the master SM of the fabric."""
        self.state = SMState.MASTER
        self._lead(self.manager)

    def start(self) -> None:
        """Begin to poll the other SMs."""
        if self._agent is None:
            self._agent = MADAgent(self._fabric.clock, self._fabric.attachTo(self.port))
            self._timer.start(POLL_SECONDS, self._turn)

    def close(self) -> None:
        """Stop polling, and close the agent."""
        self._timer.stop()
        agent, self._agent = self._agent, None
        if agent is not None:
            agent.close()

    # SMInfo

    @property
    def sweeps(self) -> int:
        return self.manager.sweeps

    def handedOver(self, info: SMInfo) -> None:
        self._fabric.timetable.later(0.0, self._inherit, self._whereIs(info))

    def _inherit(self, giver: LID) -> None:
        """Become the master after a HANDOVER, and send the old master an ACKNOWLEDGE."""
        self.lead()
        self._command(giver, ACKNOWLEDGE)

    def _whereIs(self, info: SMInfo) -> LID:
        known = (one.lid for one in self._fabric.sma.managers if one.guid == info.guid)
        return next(known, self.port.smLID)

    # Polling of other SMs.

    def _turn(self) -> None:
        self._timer.start(POLL_SECONDS, self._turn)
        if self.port.node.isDead:
            return
        if self.state is SMState.MASTER:
            better = max(self._others(), key=lambda other: other.rank, default=None)
            if better is not None and better.rank > self.rank:
                self._command(better.port.lid, HANDOVER)
        elif self.state is SMState.STANDBY:
            self._poll()
        elif self.state is SMState.DISCOVERING:
            self.discover()

    def discover(self) -> None:
        """Become standby if there is a master or an SM of higher rank; else become the master."""
        others = tuple(self._others())
        if any(other.state is SMState.MASTER or other.rank > self.rank for other in others):
            self.state = SMState.STANDBY
        else:
            self.lead()

    def _others(self) -> Iterator[ManagerCandidate]:
        """Yield the other SMs that a sweep of this one would find, except those in state NOT_ACTIVE."""
        reachable = self.manager.reachable()
        for port, other in self._fabric.sma.managers.items():
            assert isinstance(other, ManagerCandidate)
            isThere = port.node in reachable and not port.node.isDead
            if other is not self and isThere and other.state is not SMState.NOT_ACTIVE:
                yield other

    def _poll(self) -> None:
        """Get the SMInfo of the master; unless a master answers, the state becomes DISCOVERING."""
        master = self.port.smLID
        if self._agent is None or not master:
            self.state = SMState.DISCOVERING
            return
        asked = self._agent.SubnGet(
            SMInfo, IBPath(dlid=master), timeoutSeconds=POLL_SECONDS / POLLS / 2, retries=POLLS - 1
        )
        asked.addCallbacks(self._answered, lambda failure: self._answered(None))

    def _answered(self, info: SMInfo | None) -> None:
        isMaster = info is not None and info.smState is SMState.MASTER
        if not isMaster and self.state is SMState.STANDBY and self._agent is not None:
            self.state = SMState.DISCOVERING

    def _command(self, lid: LID, command: int) -> None:
        if self._agent is not None:
            request = self._agent.SubnSet(self.info(), IBPath(dlid=lid), command)
            request.addErrback(lambda failure: None)  # the next poll shows whether it is available
