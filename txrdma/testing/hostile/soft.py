"""
Hostile processes on the same host: the messages with which software devices share memory.

The protocols above are SMC-R, which uses only reliable connections, message connections, which also use
datagrams, and the byte transfer layer, which copies long messages into mapped memory.
"""

from __future__ import annotations

from typing import Any, Final

from txrdma.sim.sharedmemory import SimulatedMemory
from txrdma.testing.hostile.btl import BTLRDMAScenario
from txrdma.testing.hostile.cm import CMScenario
from txrdma.testing.hostile.plans import HostilePlan
from txrdma.testing.hostile.scenario import HostileScenario
from txrdma.testing.hostile.smc import SMCScenario
from txrdma.testing.hostile.wiring import LINE, RC, TamperedLines, TCP, UD
from txrdma.testing.smc.hosts import Host
from txrdma.testing.smc.neighbours import SleepyHost

_RING_BYTES: Final = 16384


class _Processes(HostileScenario):
    """
    A simulation whose hosts are processes on one host, which share memory.

    @cvar hasDatagrams: whether their devices have unreliable datagrams, too.
    """

    hostClass = SleepyHost
    hasDatagrams = False

    _lines: TamperedLines

    def __init__(self, plan: HostilePlan) -> None:
        self._memory: SimulatedMemory | None = None
        super().__init__(plan)
        assert self._memory is not None
        self._lines = TamperedLines(self._memory, self.hostile, self.tamper)

    def makeDevice(self, host: Host) -> Any:
        """Create the device of a process."""
        if self._memory is None:
            self._memory = SimulatedMemory(self.world.clock, 1)
        reactor: Any = host
        carrier = self.world.network.carrier(host.address) if self.hasDatagrams else None
        return self._memory.device(reactor, host.address, ring=_RING_BYTES, carrier=carrier)

    def kill(self, silently: bool) -> None:
        """Kill the hostile process; the system closes its sockets in any case."""
        super().kill(False)
        assert self._memory is not None
        self._memory.kill(self.hostile)

    def close(self) -> None:
        """Release everything, including the descriptors of messages."""
        super().close()
        self._lines.close()


class SMCMemoryScenario(_Processes, SMCScenario):
    """A simulation of SMC-R connections over shared memory."""

    channels = (TCP, RC, LINE, LINE)


class MessagesMemoryScenario(_Processes, CMScenario):
    """A simulation of message connections over shared memory."""

    channels = (UD, RC, LINE, LINE, LINE, LINE)
    hasDatagrams = True


class BTLMemoryScenario(_Processes, BTLRDMAScenario):
    """A simulation of the byte transfer layer over shared memory."""

    channels = (TCP, UD, LINE, LINE)
    hasDatagrams = True
