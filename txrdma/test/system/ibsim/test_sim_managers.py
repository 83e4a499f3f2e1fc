"""
Managers of simulated subnets hand over and take over as OpenSM does.

OpenSM answers a command with its previous state, and refuses with other statuses, so the tests compare
whether a manager obeys, and its next state.
"""

from __future__ import annotations

from txrdma.iba.path import IBDRPath
from txrdma.mad.agent import MADAgent
from txrdma.mad.errors import MADError
from txrdma.mad.layouts import smp
from txrdma.mad.layouts.values import SMState
from txrdma.sim.clock import SimulatedClock
from txrdma.sim.fabric import SimulatedFabric
from txrdma.sim.fabric.agents.sminfo import ACKNOWLEDGE, DISABLE, DISCOVER, HANDOVER, STANDBY
from txrdma.test.support.mad.simulated import TWO_SWITCHES, twoSwitches
from txrdma.test.system.ibsim.fabric import IbsimTestCase

MASTER, OTHER = IBDRPath(drPath=(1, 3, 2)), IBDRPath(drPath=(1, 3, 1))
PATIENCE_SECONDS = 60.0


class HandoverTests(IbsimTestCase):
    net = TWO_SWITCHES
    hasSM = True
    smConfiguration = "sm_priority 4"

    def setUp(self) -> None:
        super().setUp()
        self.fabric.standBy("c", "sm_priority 3\nsminfo_polling_timeout 200\npolling_retry_number 3")
        self.reference = self.agentAt("a")
        self.clock = SimulatedClock()
        self.ours = SimulatedFabric(self.clock, twoSwitches(), managerAt="d")
        self.ours.standBy("c")
        self.addCleanup(self.ours.close)
        self.agent = MADAgent(self.clock, self.ours.attach("a"), timeoutSeconds=0.1, retries=0)
        self.addCleanup(self.agent.close)

    @staticmethod
    def now() -> float:
        from twisted.internet import reactor

        return reactor.seconds()

    async def become(self, other: SMState, master: SMState | None = SMState.MASTER) -> None:
        wanted = [(OTHER, other)] + ([(MASTER, master)] if master is not None else [])
        for _ in range(10):
            self.clock.advance(1.0)
        for path, state in wanted:
            call = self.agent.SubnGet(smp.SMInfo, path)
            self.clock.advance(0)
            self.assertEqual((await call).smState, state)
            end = self.now() + PATIENCE_SECONDS
            while (now := (await self.reference.SubnGet(smp.SMInfo, path)).smState) is not state:
                self.assertLess(self.now(), end, now)

    async def obeys(self, path: IBDRPath, command: int, state: SMState = SMState.MASTER) -> bool:
        info = smp.SMInfo(smState=state)
        ours, reference = (agent.SubnSet(info, path, command) for agent in (self.agent, self.reference))
        self.clock.advance(0)
        output = []
        for call in (ours, reference):
            try:
                await call
                output.append(True)
            except MADError:
                output.append(False)
        self.assertEqual(output[0], output[1], (path, command))
        return output[0]

    async def test_commands(self) -> None:
        await self.become(SMState.STANDBY)
        for command in (0, ACKNOWLEDGE, STANDBY, 6, 9):
            self.assertFalse(await self.obeys(OTHER, command))
        for command in (HANDOVER, DISABLE, DISCOVER):
            self.assertFalse(await self.obeys(OTHER, command, SMState.STANDBY))
        for command in (0, DISABLE, STANDBY, DISCOVER, 9):
            self.assertFalse(await self.obeys(MASTER, command))
        self.assertTrue(await self.obeys(OTHER, DISABLE))
        await self.become(SMState.NOT_ACTIVE)
        for command in (0, HANDOVER, ACKNOWLEDGE, DISABLE, DISCOVER, 9):
            self.assertFalse(await self.obeys(OTHER, command))
        for command in (STANDBY, DISCOVER, HANDOVER):  # and a better manager takes a handed-over subnet back
            self.assertTrue(await self.obeys(OTHER, command))
            await self.become(SMState.STANDBY)

    async def test_death(self) -> None:
        await self.become(SMState.STANDBY)
        self.fabric.stopManager()
        self.ours.silence("d")
        await self.become(SMState.MASTER, None)
        for name, path in (("a", ()), ("left", (1,)), ("b", (1, 2))):
            smLID = int.from_bytes(self.ours.port(name).end.info[18:20], "big")
            self.assertEqual(smLID, self.ours.port("c").lid)
            lid = (await self.reference.SubnGet(smp.PortInfo, OTHER)).lid
            end = self.now() + PATIENCE_SECONDS
            while (await self.reference.SubnGet(smp.PortInfo, IBDRPath(drPath=path))).masterSMLID != lid:
                self.assertLess(self.now(), end, name)
