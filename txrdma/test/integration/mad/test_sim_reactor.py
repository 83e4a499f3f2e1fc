"""
Simulated fabrics on a real reactor, which must be clean behind them.
"""

from __future__ import annotations

from twisted.internet import reactor
from twisted.trial.unittest import TestCase

from txrdma.fabric.discovery import Sweep
from txrdma.mad.agent import MADAgent
from txrdma.mad.layouts import smp
from txrdma.mad.ports import openMADPort
from txrdma.test.support.mad.simulated import route


class ReactorTests(TestCase):
    """The reactor's own time."""

    timeout = 60

    def agent(self, description: str) -> MADAgent:
        agent = MADAgent(reactor, openMADPort(reactor, description))
        self.addCleanup(agent.close)
        return agent

    async def test_sweep(self) -> None:
        """A sweep finds everything, and takes no less than the latency of its longest chain."""
        agent = self.agent("sim:fattree:16:8:latency=0.01")
        begun = reactor.seconds()
        found = await Sweep(agent).run()
        taken = reactor.seconds() - begun
        self.assertEqual(found.problems, [])
        self.assertGreater(taken, 4 * 0.01)

    async def test_closedWhileWaiting(self) -> None:
        """A port that is closed while something is on its way leaves nothing behind."""
        agent = self.agent("sim:fattree:8:latency=10")
        agent.SubnGet(smp.NodeInfo, route(1)).addErrback(lambda failure: None)
        agent.close()
