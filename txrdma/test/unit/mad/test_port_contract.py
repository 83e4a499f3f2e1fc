"""The contract of L{IMADPort}, for each kind of management port."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.path import IBPath
from txrdma.iba.types import GID, LID
from txrdma.iba.verbs import AsyncEventKind
from txrdma.interfaces import AsyncEvent, IMADPort, IVerbsDevice
from txrdma.mad.ports.verbsport import IPollingReactor, VerbsPort
from txrdma.sim.clock import SimulatedClock
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.fabric.wire.madport import SimulatedMADPort
from txrdma.sim.network import SimulatedNetwork
from txrdma.test.support.mad.simulated import gmp, route, twoSwitches
from txrdma.test.support.sysfs import INFINIBAND, MLX5
from txrdma.test.unit.mad.test_umad import GIDS, UmadCase
from txrdma.testing.contracts import MADPortContract
from txrdma.testing.reactors import ReactorClock


class ClockContract(MADPortContract):
    """The contract in simulated time."""

    clock: Any

    def step(self) -> None:
        self.clock.step()

    def time(self) -> Clock:
        return cast(Clock, self.clock)


class SimulatedTests(ClockContract, SynchronousTestCase):
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

    def lose(self, number: int) -> None:
        cast(SimulatedMADPort, self.ports[number]).lose("it was pulled out")

    def restore(self, number: int) -> None:
        """Do nothing: the node remains, and only the port was detached from it."""

    def routes(self) -> Sequence[IBPath]:
        return IBPath(dlid=self.fabric.port("c").end.lid), route(1, 3, 1)


class UmadTests(ClockContract, UmadCase):
    rmpp = False

    def makePort(self, number: int) -> IMADPort:
        return self.port(f"roce{number}", self.rmpp)

    def pathTo(self, number: int) -> IBPath:
        return IBPath(dgid=GID.fromString(GIDS[number]))

    names = "umad0", "umad1"

    def lose(self, number: int) -> None:
        self.kernel.pullOut(self.names[number])

    def restore(self, number: int) -> None:
        self.kernel.putBack(self.names[number])


class UmadRMPPTests(UmadTests):
    rmpp = True


class UmadSubnetTests(UmadTests):
    names = "umad3", "umad4"
    lids = 7, 9

    def makePort(self, number: int) -> IMADPort:
        if not self.kernel.cables:
            self.cable()
        return self.port(f"ib{number}", self.rmpp)

    def cable(self) -> None:
        """Add two devices to the host, with a cable between them."""
        kernel = self.kernel
        kernel.hasSMI = True
        for index, (name, lid) in enumerate(zip(self.names, self.lids, strict=True)):
            gid = f"fe80::2:c903:0:{lid}"
            self.sysfs.device(f"ib{index}", MLX5)
            self.sysfs.port(f"ib{index}", 1, {**INFINIBAND, "lid": hex(lid)}, [(gid, "IB/RoCE v1", "")])
            self.sysfs.characterDevice(name, f"ib{index}", 1)
            kernel.gids[name] = GID.fromString(gid)
            kernel.lids[name] = lid
            kernel.cables[name] = self.names[1 - index]

    def pathTo(self, number: int) -> IBPath:
        return gmp(self.lids[number])

    def routes(self) -> Sequence[IBPath]:
        return IBPath(dlid=LID(self.lids[1])), route(1)


class UmadSubnetRMPPTests(UmadSubnetTests):
    rmpp = True


class VerbsTests(ClockContract, SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = ReactorClock()
        self.network = SimulatedNetwork(self.clock)
        self.devices: dict[int, IVerbsDevice] = {}
        self.lost: set[int] = set()
        super().setUp()

    def device(self, number: int) -> IVerbsDevice:
        if number not in self.lost:
            self.devices[number] = self.network.device(f"10.0.0.{number + 1}")
        return self.devices[number]

    def makePort(self, number: int) -> VerbsPort:
        return VerbsPort(cast("IPollingReactor", self.clock), self.device(number))

    def pathTo(self, number: int) -> IBPath:
        return IBPath(dgid=GID.fromIP(f"10.0.0.{number + 1}"), dqpn=cast(VerbsPort, self.ports[number]).qpn)

    def lose(self, number: int) -> None:
        self.lost.add(number)
        cast(VerbsPort, self.ports[number])._asyncEvent(AsyncEvent(AsyncEventKind.DEVICE_FATAL, None))

    def restore(self, number: int) -> None:
        self.lost.remove(number)


class GSITests(VerbsTests):
    def makePort(self, number: int) -> VerbsPort:
        return VerbsPort(cast("IPollingReactor", self.clock), self.device(number), isGSI=True)

    def pathTo(self, number: int) -> IBPath:
        return IBPath(dgid=GID.fromIP(f"10.0.0.{number + 1}"))
