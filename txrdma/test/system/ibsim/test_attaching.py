"""
Ports of ours in ibsim's fabrics come and go.
"""

from __future__ import annotations

import threading

from txrdma.iba.path import IBDRPath
from txrdma.mad.layouts.smp import NodeDescription
from txrdma.test.support.mad.simulated import TWO_SWITCHES
from txrdma.test.system.ibsim.fabric import IbsimTestCase


class AttachingTests(IbsimTestCase):
    net = TWO_SWITCHES

    async def test_again(self) -> None:
        others = [self.agentAt("b") for _ in range(2)]  # so that the slot that is free is not the first
        port = self.portAt("a")
        self.fabric.pause()
        port.close()
        goOn = threading.Timer(0.2, self.fabric.goOn)
        goOn.start()
        self.addCleanup(goOn.join)
        agent = self.agentAt("c")
        told = await agent.SubnGet(NodeDescription, IBDRPath())
        self.assertEqual(told.text, "c")
        for other in others:
            self.assertEqual((await other.SubnGet(NodeDescription, IBDRPath())).text, "b")

    async def test_behind(self) -> None:
        agent = self.agentAt("a")
        self.fabric.pause()
        routes = [IBDRPath(), IBDRPath(drPath=(1,)), IBDRPath(drPath=(1, 2))]
        answers = [agent.SubnGet(NodeDescription, routes[number % 3], retries=0) for number in range(5_000)]
        self.assertFalse(any(answer.called for answer in answers))
        self.fabric.goOn()
        told = [(await answer).text for answer in answers]
        self.assertEqual(told, (["a", "left", "b"] * 5_000)[:5_000])

    async def test_manyTimes(self) -> None:
        for _ in range(30):
            agent = self.agentAt("a")
            self.assertEqual((await agent.SubnGet(NodeDescription, IBDRPath())).text, "a")
            agent.close()
