"""Opening and closing management ports a thousand times leaves nothing behind."""

from __future__ import annotations

from random import Random

from twisted.internet import reactor
from twisted.trial.unittest import TestCase

from txrdma.iba.path import IBDRPath, IBPath
from txrdma.iba.types import GID, QPN
from txrdma.mad.agent import MADAgent
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.pma import PortCounters
from txrdma.mad.layouts.smp import NodeInfo
from txrdma.mad.ports import openMADPort
from txrdma.mad.server import MADServer
from txrdma.test.support.mad.pairs import Answers
from txrdma.testing.repeating import RepeatedUseContract

_COUNTERS = PortCounters(portSelect=1, portXmitData=77)


class VerbsPortTests(RepeatedUseContract, TestCase):
    """A client and a server, at queue pairs of software devices, which are opened and closed as well."""

    async def once(self, what: str) -> None:
        here, there = (f"127.{Random(what).randrange(2, 250)}.7.{end}" for end in (1, 2))
        ports = [openMADPort(reactor, f"vmad:soft:{each}:qpn=1") for each in (here, there)]
        client, other = (MADAgent(reactor, each) for each in ports)
        server = MADServer(other)
        server.handle(ManagementClass.PERFORMANCE, Answers(lambda request: _COUNTERS), (Method.GET,))
        path = IBPath(dgid=GID.fromIP(there), dqpn=QPN(1))
        self.assertEqual(await client.PerformanceGet(PortCounters, path), _COUNTERS)
        server.stop()
        for agent in (client, other):
            agent.close()


class SimulatedPortTests(RepeatedUseContract, TestCase):
    """A port of a simulated fabric, which exists as long as its ports."""

    async def once(self, what: str) -> None:
        agent = MADAgent(reactor, openMADPort(reactor, "sim:fattree:4"))
        info = await agent.SubnGet(NodeInfo, IBDRPath())
        self.assertGreater(info.numPorts, 0)
        agent.close()
