"""
Debian's saquery understands the administration of simulated fabrics, which it asks through ibsim.
"""

from __future__ import annotations

from collections.abc import Iterator

from txrdma.fabric.discovery import Sweep
from txrdma.mad.agent import MADAgent
from txrdma.mad.layouts import smp
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.server import MADServer
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.nets.netfile import parseNet
from txrdma.test.support.mad.simulated import TWO_SWITCHES
from txrdma.test.system.ibsim.fabric import IbsimTestCase
from txrdma.test.system.ibsim.test_sim_managed import stateless


class SaqueryTests(IbsimTestCase):
    net = TWO_SWITCHES.replace('[5] "b"[2]\n', "")

    async def test_saquery(self) -> None:
        from twisted.internet import reactor

        ours = SimulatedFabric(reactor, parseNet(self.net), managerAt="a", resweepSeconds=None)
        self.addCleanup(ours.close)
        agent = MADAgent(reactor, self.portAt("a", isSM=True), timeoutSeconds=2.0)
        self.addCleanup(agent.close)
        await self.copy(ours, agent)
        assert ours.sa is not None
        MADServer(agent).handle(ManagementClass.SUBN_ADM, ours.sa, (Method.GET, Method.GET_TABLE))
        c, d = ours.port("c").lid, ours.port("d").lid
        out, errors, status = await self.fabric.spawn("saquery", "--src-to-dst", f"{c}:{d}", host="b")
        self.assertEqual((status, ours.sa.asked > 0), (0, True), errors)
        said = dict(reversed(list(_printed(out.decode()))))  # the first one: without RMPP it invents others
        self.assertEqual((said["slid"], said["dlid"]), (str(c), str(d)))
        self.assertIn("0x84", said["mtu"])

    async def copy(self, ours: SimulatedFabric, agent: MADAgent) -> None:
        found = await Sweep(agent).run()
        for node in found.nodes.values():
            mine = next(one for one in ours.nodes.values() if one.guid == node.guid)
            route = node.route
            assert route is not None
            ends = mine.ports[:1] if mine.isSwitch else [mine.ports[1]]
            for end in ends:
                await agent.SubnSet(stateless(smp.PortInfo.decode(end.info)), route, end.number)
            if mine.isSwitch:
                table = bytes(ours.linearOf(mine)).ljust(64, b"\xff")[:64]
                await agent.SubnSet(smp.LinearForwardingTable(ports=table), route)
                await agent.SubnSet(smp.SwitchInfo.decode(mine.switchInfo), route)
        for state in (3, 4):
            for node in found.nodes.values():
                assert node.route is not None
                for port in node.ports.values():
                    if port.number and port.peer is not None:
                        info = await agent.SubnGet(smp.PortInfo, node.route, port.number)
                        changed = stateless(info, state)
                        await agent.SubnSet(changed, node.route, port.number)


def _printed(text: str) -> Iterator[tuple[str, str]]:
    for line in text.splitlines():
        name, _, value = line.strip().partition("...")
        if value:
            yield name, value.strip(".")
