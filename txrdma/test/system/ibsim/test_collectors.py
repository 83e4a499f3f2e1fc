"""
The monitor in ibsim, whose counters are read by two processes C{twistd fabric-collector} at other hosts.
"""

from __future__ import annotations

import sys
from functools import partial

from twisted.internet.endpoints import clientFromString

from txrdma.mad.agent import MADAgent
from txrdma.monitor.collecting import pool
from txrdma.monitor.collecting.pool import CollectorPool
from txrdma.monitor.diagnosis.thresholds import ErrorThresholds
from txrdma.monitor.reading.poller import FabricPoller
from txrdma.test.support.processes import Program
from txrdma.test.system.ibsim import test_monitor

COLLECTORS = ("b", "c")


class CollectorTests(test_monitor.MonitorTestCase):
    """A whole monitor and its collectors."""

    def pollerOf(self, agent: MADAgent, thresholds: ErrorThresholds) -> FabricPoller:
        key = self.fabric.folder / "key"
        key.write_text("a common secret\n")
        self.patch(pool, "MISSING_SECONDS", 1000.0)  # the start of a process takes long on a busy machine
        self.programs: dict[str, Program] = {}
        for name in COLLECTORS:
            words = [sys.executable, "-m", "twisted", "fabric-collector", "--key-file", str(key)]
            words += ["--listen", f"unix:{self.fabric.folder}/{name}"]
            words += ["--port", f"ibsim:{name}:{self.fabric.base}"]
            self.programs[name] = Program.start(self, *words)
        endpoints = {
            name: clientFromString(self.reactor, f"unix:{self.fabric.folder}/{name}") for name in COLLECTORS
        }
        self.pool = CollectorPool(self.reactor, agent, endpoints, b"a common secret", 0.5, 2, 64)
        return FabricPoller(
            *(self.reactor, agent, self.settings),
            thresholds=thresholds,
            notify=self.received,
            collectors=self.pool,
        )

    def connected(self) -> int:
        return sum(each.link is not None for each in self.pool._collectors)

    def hasFewerThan(self, count: int) -> bool:
        return self.connected() < count

    async def test_counters(self) -> None:
        """Counters have the values of ibsim while collectors start, are killed, and end in order."""
        await self.until(lambda: self.connected() == 2)
        await self.started()
        for errors, left in enumerate((2, 1, 0), 7):
            self.fabric.console(f'PerformanceSet "right"[1] PortCounters.SymbolErrorCounter={errors}')
            await self.until(partial(self.hasCounted, errors))
            self.assertEqual(self.connected(), left)
            if left:
                program = self.programs[COLLECTORS[-left]]
                program.transport.signalProcess("KILL" if left == 2 else "TERM")
                await program.ended
                await self.until(partial(self.hasFewerThan, left))
        self.assertEqual(self.reported, [])

    def hasCounted(self, errors: int) -> bool:
        """Return whether the monitor has read this number of errors at port 1 of C{right}."""
        fabric = self.poller.fabric
        assert fabric is not None
        (guid,) = (node.guid for node in fabric.nodes.values() if node.description == "right")
        return self.poller.meters[guid, 1].value("symbolErrorCounter") == errors
