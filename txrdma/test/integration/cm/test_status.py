"""Counters of communication managers, and C{txrdma cm-stats}, which queries processes for them."""

from __future__ import annotations

import os
from typing import Any, cast

from twisted.internet import reactor as installedReactor
from twisted.internet.defer import Deferred
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from txrdma.cm.connections.endpoints import RDMAClientEndpoint, RDMAServerEndpoint
from txrdma.cm.rping import PingClient, PingServer, TERMS
from txrdma.cm.status import NAMESPACE, report
from txrdma.messages.protocol import MessageFactory
from txrdma.ports.softdevices import softDeviceAt
from txrdma.test.support.processes import loopbackAddress
from txrdma.unix.answers import askAll, IUNIXReactor, processesIn

reactor = cast(IUNIXReactor, installedReactor)


class AskingTests(TestCase):
    async def ours(self) -> dict[str, Any]:
        """Return the counters of this process."""
        (found,) = [each for each in await askAll(NAMESPACE, reactor, 5.0) if each["pid"] == os.getpid()]
        return found

    async def test_counters(self) -> None:
        """Counters of a process can be queried while it has a manager, and continue with its next manager."""
        here, there = loopbackAddress(), loopbackAddress()
        before = report()
        others = before["gauges"]  # managers of tests with simulated time
        served: list[PingServer] = []

        def serve() -> PingServer:
            served.append(PingServer(lambda ping: None))
            return served[-1]

        endpoint = RDMAServerEndpoint(reactor, 7174, softDeviceAt(there), TERMS)
        port: Any = await endpoint.listen(MessageFactory(serve))
        client = PingClient(2, 10, True, lambda ping: None)
        asking = RDMAClientEndpoint(reactor, there, 7174, softDeviceAt(here), TERMS)
        await asking.connect(MessageFactory(lambda: client))
        during = await self.ours()
        self.assertEqual(during["gauges"]["managers"] - others["managers"], 2)
        self.assertEqual(during["gauges"]["listeners"] - others["listeners"], 1)
        made = sum(during["gauges"]["connections"].values()) - sum(others["connections"].values())
        self.assertEqual(made, 2)
        await client.ended
        await served[0].ended
        after = await self.ours()
        for kind in ("REQ", "REP", "RTU", "DREQ", "DREP"):
            old = before["counters"].get(kind, {})
            reported = after["counters"][kind]
            for what in ("sent", "received"):
                self.assertEqual(reported[what] - old.get(what, 0), 1, (kind, what))
        await cast("Deferred[None]", port.stopListening())
        while os.getpid() in processesIn("txrdma/cm"):  # until timewait ends
            await deferLater(reactor, 0.01)
        self.assertEqual(report()["counters"], after["counters"])
        self.assertEqual(report()["gauges"], others)
