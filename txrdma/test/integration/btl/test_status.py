"""Counters of modules, and C{txrdma btl-stats}, which queries processes for them."""

from __future__ import annotations

import os
from typing import Any, cast

from twisted.internet import reactor as installedReactor
from twisted.internet.task import deferLater
from twisted.trial.unittest import TestCase

from txrdma.btl.connections import connect, listen
from txrdma.btl.status import NAMESPACE, report
from txrdma.commands.btl_stats import countersTable, summed
from txrdma.commands.common.counted import ALL
from txrdma.messages.protocol import MessageProtocol
from txrdma.test.support.tables import shown
from txrdma.testing.protocols import Recorders
from txrdma.unix.answers import askAll, IUNIXReactor, processesIn

reactor = cast(IUNIXReactor, installedReactor)


class AskingTests(TestCase):
    async def test_counters(self) -> None:
        """Counters of a process can be queried while it has a module, and continue with its next module."""
        others = report()["gauges"]["modules"]  # modules of tests with simulated time
        client, server = MessageProtocol(), MessageProtocol()
        device = "soft:127.0.0.1:port=0:mtu=4096"
        port: Any = await listen(reactor, 0, Recorders(lambda: server), "127.0.0.1", device)
        await connect(reactor, "127.0.0.1", port.getHost().port, Recorders(lambda: client), device)
        before = await self.ours()
        await client.transport.send(1, bytes(100))
        await client.transport.send(1, bytes(20_000))
        during = await self.ours()
        counters = {name: value - before["counters"][name] for name, value in during["counters"].items()}
        self.assertEqual(counters["num_frag_sends"], 1)
        self.assertEqual(counters["num_chunk_sends"], counters["num_chunk_recvs"])
        self.assertGreaterEqual(counters["num_chunk_sends"], 5)
        self.assertEqual(during["gauges"]["modules"], others + 1)
        text = shown(countersTable([during]))
        for word in ("num_total_sends", f"{during['gauges']['peers']} peers", str(os.getpid())):
            self.assertIn(word, text)
        client.transport.loseConnection()
        await port.stopListening()
        while report()["gauges"]["modules"] > others or os.getpid() in processesIn("txrdma/btl"):
            await deferLater(reactor, 0.01)

    async def ours(self) -> dict[str, Any]:
        """Return the counters of this process."""
        (found,) = [each for each in await askAll(NAMESPACE, reactor, 5.0) if each["pid"] == os.getpid()]
        return found

    def test_sums(self) -> None:
        """Counters of several processes are added, except for maxima."""
        gauges = {"modules": 1, "peers": 1, "queuedBytes": 0}
        found: list[dict[str, Any]] = [
            {
                "pid": n,
                "command": [],
                "counters": {"num_resends": n, "max_sent_window_size": n},
                "gauges": gauges,
            }
            for n in (3, 4)
        ]
        *_processes, every = summed(found)
        self.assertEqual(every["counters"], {"num_resends": 7, "max_sent_window_size": 4})
        self.assertEqual(every["gauges"]["modules"], 2)
        self.assertEqual(summed(found[:1]), found[:1])

    def test_failing(self) -> None:
        """A process that does not answer has a row with the reason, before the sums."""
        text = shown(countersTable([{"pid": 7, "error": "no answer: [why]"}]))
        self.assertIn("no answer: [why]", text)
        gauges = {"modules": 1, "peers": 2, "queuedBytes": 3000}
        counters = {"num_resends": 5, "num_dup_recvs": 0}
        entry = {"pid": ALL, "command": [], "counters": counters, "gauges": gauges, "seconds": 1.0}
        text = shown(countersTable([entry]))
        self.assertIn("3,000 bytes queued", text)
        self.assertNotIn("num_dup_recvs", text)
