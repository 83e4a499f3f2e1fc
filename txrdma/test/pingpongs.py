"""
What tests of pingpong need: two links in simulated time, or on a real reactor.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, cast, TYPE_CHECKING

from twisted.internet.interfaces import IReadDescriptor
from twisted.internet.task import Clock

from txrdma.interfaces import IVerbsDevice
from txrdma.pingpong.link import Link
from txrdma.pingpong.plan import LinkSettings
from txrdma.sim.network import Faults, SimulatedNetwork

if TYPE_CHECKING:
    from twisted.trial.unittest import SynchronousTestCase

    Base = SynchronousTestCase
else:
    Base = object


class ReadingClock(Clock):
    """A clock with readers: in simulated time a descriptor is looked at after everything that happens."""

    def __init__(self) -> None:
        super().__init__()
        self.readers: list[IReadDescriptor] = []

    def addReader(self, reader: IReadDescriptor) -> None:
        """Look at it."""
        self.readers.append(reader)

    def removeReader(self, reader: IReadDescriptor) -> None:
        """Don't, any more."""
        if reader in self.readers:
            self.readers.remove(reader)

    def step(self) -> None:
        """On to the next thing that happens."""
        following = min((call.getTime() for call in self.getDelayedCalls()), default=self.rightNow + 0.01)
        self.advance(max(0.0, following - self.rightNow))
        for reader in tuple(self.readers):
            reader.doRead()

    def nanoseconds(self) -> int:
        """As C{perf_counter_ns}."""
        return round(self.seconds() * 1e9)


class SimulatedLinks(Base):
    """A test case with links on a simulated network."""

    def setUp(self) -> None:
        super().setUp()
        self.clock = ReadingClock()
        self.network = SimulatedNetwork(self.clock, seed=7)
        self.devices: list[IVerbsDevice] = []
        for host in (1, 2):
            device = self.network.device(f"192.0.2.{host}")
            self.addCleanup(device.close)
            self.devices.append(device)

    def links(self, settings: LinkSettings, faults: Faults | None = None) -> tuple[Link, Link]:
        """Two, connected."""
        if faults is not None:
            self.network.faults = faults
        one, other = (
            Link(cast(Any, self.clock), device, settings, now=self.clock.nanoseconds)
            for device in self.devices
        )
        self.addCleanup(one.close)
        self.addCleanup(other.close)
        one.connect(other.here)
        other.connect(one.here)
        return one, other

    def runUntil(self, condition: Callable[[], bool], seconds: float = 60.0) -> None:
        """Let the simulated world go on."""
        deadline = self.clock.seconds() + seconds
        while not condition():
            if self.clock.seconds() > deadline:
                self.fail(f"{condition} does not hold after {seconds} seconds")
            self.clock.step()
