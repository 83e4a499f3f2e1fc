"""
Each kind of management port keeps the promises of L{IMADPort}.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import cast

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.path import IBPath
from txrdma.iba.types import GID
from txrdma.iba.verbs import AsyncEventKind
from txrdma.interfaces import AsyncEvent, IMADPort
from txrdma.mad.ports.verbsport import IReactor, VerbsPort
from txrdma.sim.clock import SimulatedClock
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.fabric.wire.madport import SimulatedMADPort
from txrdma.sim.network import SimulatedNetwork
from txrdma.test.mad.simulated import gmp, route, twoSwitches
from txrdma.test.mad.test_umad import GIDS, UmadCase
from txrdma.test.pingpongs import ReadingClock
from txrdma.testing.mad.ports import MADPortContract


class SimulatedTests(MADPortContract, SynchronousTestCase):
    """Attachments to a simulated fabric."""

    nodes = ("a", "c")

    def setUp(self) -> None:
        self.clock = SimulatedClock()
        self.fabric = SimulatedFabric(self.clock, twoSwitches())
        self.addCleanup(self.fabric.close)
        super().setUp()

    def makePort(self, number: int) -> SimulatedMADPort:
        return self.fabric.attach(self.nodes[number])

    def pathTo(self, number: int) -> IBPath:
        return gmp(self.fabric.port(self.nodes[number]).end.lid)

    def step(self) -> None:
        self.clock.advance(0.001)

    def time(self) -> Clock:
        return self.clock

    def lose(self, number: int) -> None:
        cast(SimulatedMADPort, self.ports[number]).lose("it was pulled out")

    def routes(self) -> Sequence[IBPath]:
        return IBPath(dlid=self.fabric.port("c").end.lid), route(1, 3, 1)


class UmadTests(MADPortContract, UmadCase):
    """The kernel's ports, over a kernel that is made up."""

    rmpp = False

    def makePort(self, number: int) -> IMADPort:
        return self.port(f"roce{number}", self.rmpp)

    def pathTo(self, number: int) -> IBPath:
        return IBPath(dgid=GID.fromString(GIDS[number]))

    def step(self) -> None:
        self.clock.step()

    def time(self) -> Clock:
        return self.clock

    def lose(self, number: int) -> None:
        self.kernel.isGone = True


class UmadRMPPTests(UmadTests):
    """The same where the kernel cuts and joins long messages."""

    rmpp = True


class VerbsTests(MADPortContract, SynchronousTestCase):
    """Queue pairs of software devices, on a simulated network."""

    def setUp(self) -> None:
        self.clock = ReadingClock()
        self.network = SimulatedNetwork(self.clock)
        self.devices = [self.network.device(f"10.0.0.{number}") for number in (1, 2)]
        super().setUp()

    def makePort(self, number: int) -> VerbsPort:
        return VerbsPort(cast("IReactor", self.clock), self.devices[number])

    def pathTo(self, number: int) -> IBPath:
        return IBPath(dgid=GID.fromIP(f"10.0.0.{number + 1}"), dqpn=cast(VerbsPort, self.ports[number]).qpn)

    def step(self) -> None:
        self.clock.step()

    def time(self) -> Clock:
        return self.clock

    def lose(self, number: int) -> None:
        cast(VerbsPort, self.ports[number])._told(AsyncEvent(AsyncEventKind.DEVICE_FATAL, None))


class GSITests(VerbsTests):
    """Queue pairs 1 of software devices: no number has to be known."""

    def makePort(self, number: int) -> VerbsPort:
        return VerbsPort(cast("IReactor", self.clock), self.devices[number], isGSI=True)

    def pathTo(self, number: int) -> IBPath:
        return IBPath(dgid=GID.fromIP(f"10.0.0.{number + 1}"))
