"""Simulated fabrics on a simulated clock, with agents."""

from __future__ import annotations

from typing import Any

from twisted.internet.defer import Deferred
from twisted.trial.unittest import SynchronousTestCase

from txrdma.fabric.discovery import Sweep
from txrdma.fabric.model import Fabric
from txrdma.iba.path import GMP_QKEY, IBDRPath, IBPath
from txrdma.iba.types import LID, QPN
from txrdma.mad.agent import MADAgent
from txrdma.sim.clock import SimulatedClock
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.nets.netfile import Net, parseNet

TWO_SWITCHES = """
width=3
speed=7
extspeed=7

Switch 8 "left"
[1] "a"[1]
[2] "b"[1]
[3] "right"[3]
[4] "right"[4]

Switch 8 "right"
[1] "c"[1]
[2] "d"[1]
[5] "b"[2]

Hca 2 "a"
Hca 2 "b"
Hca 1 "c"

rtguid=0x300000
Rt 2 "d"
"""
"""Two switches with two cables between them; b has a port on each, d is a router."""


def twoSwitches() -> Net:
    return parseNet(TWO_SWITCHES)


def route(*ports: int) -> IBDRPath:
    return IBDRPath(drPath=ports)


def gmp(lid: int) -> IBPath:
    return IBPath(dlid=LID(lid), dqpn=QPN(1), qkey=GMP_QKEY)


def names(fabric: Fabric) -> list[str]:
    return sorted(node.description for node in fabric.nodes.values())


def links(fabric: Fabric) -> set[frozenset[str]]:
    return {frozenset((str(one), str(other))) for one, other in fabric.links()}


class FabricTestCase(SynchronousTestCase):
    options: dict[str, Any] = {}

    def setUp(self) -> None:
        self.clock = SimulatedClock()
        self.fabric = SimulatedFabric(self.clock, self.net(), **self.options)
        self.agent = self.agentAt("a")

    def net(self) -> Net:
        return twoSwitches()

    def agentAt(self, name: str, number: int | None = None) -> MADAgent:
        agent = MADAgent(self.clock, self.fabric.attach(name, number))
        self.addCleanup(agent.close)
        return agent

    def lid(self, name: str, number: int | None = None) -> LID:
        return self.fabric.port(name, number).end.lid

    def pump(self, seconds: float = 20.0) -> None:
        end = self.clock.seconds() + seconds
        while self.clock.calls and self.clock.calls[0].getTime() <= end:
            self.clock.advance(max(0.0, self.clock.calls[0].getTime() - self.clock.seconds()))
        self.clock.advance(max(0.0, end - self.clock.seconds()))

    def answerTo(self, deferred: Deferred[Any], seconds: float = 20.0) -> Any:
        self.pump(seconds)
        return self.successResultOf(deferred)

    def sweep(self, seconds: float = 20.0, **options: Any) -> Fabric:
        fabric: Fabric = self.answerTo(Sweep(self.agent, **options).run(), seconds)
        return fabric

    def refused(self, deferred: Deferred[Any], kind: type[Exception], seconds: float = 200.0) -> Any:
        self.pump(seconds)
        return self.failureResultOf(deferred, kind).value
