"""Path resolvers over loopback and with the routes of the kernel."""

from __future__ import annotations

import os
from dataclasses import replace
from typing import Any, cast

from twisted.trial.unittest import SkipTest, TestCase

from txrdma.error import RDMAError
from txrdma.mad.agent import MADAgent
from txrdma.mad.layouts.attributes import ManagementClass, Method
from txrdma.mad.layouts.pma import PortCounters
from txrdma.mad.ports.verbsport import VerbsPort
from txrdma.mad.resolvers import IPPathResolver, sourceAddress
from txrdma.mad.server import MADServer
from txrdma.soft.device import openSoftDevice
from txrdma.test.support.mad.pairs import Answers


class LoopbackTests(TestCase):
    def test_kernelsRoutes(self) -> None:
        self.assertEqual(sourceAddress("127.0.0.1"), "127.0.0.1")
        self.assertIsNone(sourceAddress("nobody.invalid"))
        self.assertIsNone(sourceAddress("fe80::1%nosuch0"))

    async def test_ip(self) -> None:
        """An IP address is resolved by the kernel."""
        from twisted.internet import reactor

        ours = os.getpid()  # one port of RoCE v2 for each address, so each process has its own
        addresses = [f"127.{ours >> 8 & 0x7F}.{ours & 0xFF}.{last}" for last in (11, 12)]
        ports: list[VerbsPort] = []
        try:
            for address in addresses:
                device = openSoftDevice(reactor, (address,), port=4791, route="rocev2")
                ports.append(VerbsPort(cast("Any", reactor), device))
                self.addCleanup(ports[-1].close)
        except RDMAError as error:
            raise SkipTest(f"RoCE's UDP port is in use here: {error}") from error
        agents = [MADAgent(reactor, port, timeoutSeconds=1.0) for port in ports]
        for agent in agents:
            self.addCleanup(agent.close)
        reported = PortCounters(portXmitWait=7)
        MADServer(agents[1]).handle(
            ManagementClass.PERFORMANCE, Answers(lambda request: reported), (Method.GET,)
        )
        path = await IPPathResolver(ports[0].endPort).resolve(addresses[1])
        way = replace(path, dqpn=ports[1].qpn)
        self.assertEqual(await agents[0].PerformanceGet(PortCounters, way), reported)
