"""
Simulated fabrics on a real reactor, which must be clean behind them.
"""

from __future__ import annotations

from twisted.internet import reactor
from twisted.internet.defer import gatherResults
from twisted.trial.unittest import TestCase

from txrdma.fabric.discovery import Sweep
from txrdma.mad.agent import MADAgent
from txrdma.mad.errors import MADTimeoutError
from txrdma.mad.layouts import sa, smp
from txrdma.mad.ports import openMADPort
from txrdma.test.support.mad.simulated import gmp, route


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

    async def test_table(self) -> None:
        """A long table comes by RMPP."""
        agent = self.agent("sim:fattree:128:latency=0.0002")
        nodes = await agent.SubnAdmGetTable(sa.NodeRecord, gmp(agent.port.endPort.smLID))
        self.assertEqual(len(nodes), 145)

    async def test_silence(self) -> None:
        """Who does not answer is given up."""
        agent = self.agent("sim:fattree:8")
        await self.assertFailure(
            agent.SubnGet(smp.NodeInfo, route(1, 20), timeoutSeconds=0.01, retries=1), MADTimeoutError
        )

    async def test_two(self) -> None:
        """Agents at two ports of one fabric."""
        agents = [self.agent(f"sim:fattree:8:node=h0000{number}") for number in range(2)]
        told = await gatherResults([agent.SubnGet(smp.NodeDescription, route()) for agent in agents])
        self.assertEqual([one.text for one in told], ["h00000", "h00001"])

    async def test_closedWhileWaiting(self) -> None:
        """A port that is closed while something is on its way leaves nothing behind."""
        agent = self.agent("sim:fattree:8:latency=10")
        agent.SubnGet(smp.NodeInfo, route(1)).addErrback(lambda failure: None)
        agent.close()
