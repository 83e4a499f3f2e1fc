"""
The monitor in ibsim, with OpenSM: links cut and restored, counters, and a manager that ends.

The tools of infiniband-diags must report the same at the same time.
"""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.task import deferLater

from txrdma.mad.agent import MADAgent
from txrdma.monitor.diagnosis.findinglog import CauseChanged, FindingEvent, Raised
from txrdma.monitor.diagnosis.tallies import TallyLimit
from txrdma.monitor.diagnosis.thresholds import ErrorThresholds
from txrdma.monitor.reading.poller import FabricPoller
from txrdma.monitor.reading.settings import PollerSettings
from txrdma.test.system.ibsim.fabric import IbsimTestCase

NET = """
width=3
speed=7
extspeed=7

Switch 8 "left"
[1] "a"[1]
[2] "b"[1]
[3] "right"[3]
[4] "right"[4]

Switch 8 "right"
[1] "c"[1]
[2] "d"[1]
[5] "e"[1]

Hca 1 "a"
Hca 1 "b"
Hca 1 "c"
Hca 1 "d"
Hca 1 "e"
"""

PATIENCE_SECONDS = 60.0
INTERVAL_SECONDS = 1.0


class MonitorTestCase(IbsimTestCase):
    net = NET
    hasSM = True
    smConfiguration = "sm_priority 4\nsweep_interval 0"
    settings = PollerSettings(INTERVAL_SECONDS, 3600.0, 0.3, 3600.0)

    def setUp(self) -> None:
        from twisted.internet import reactor

        super().setUp()
        self.reactor = reactor
        # ibsim delivers requests, including reports, to programs that register as manager
        agent = MADAgent(reactor, self.portAt("a", isSM=True), watchSeconds=0.2)
        self.addCleanup(agent.close)
        self.reported: list[tuple[str, str, str]] = []
        thresholds = ErrorThresholds([TallyLimit("symbolErrorCounter", 10, 600.0)])
        self.poller = self.pollerOf(agent, thresholds)
        self.poller.start()
        self.addCleanup(self.poller.stop)

    def pollerOf(self, agent: MADAgent, thresholds: ErrorThresholds) -> FabricPoller:
        return FabricPoller(self.reactor, agent, self.settings, thresholds=thresholds, notify=self.received)

    def received(self, event: FindingEvent) -> None:
        if isinstance(event, CauseChanged) or event.entry.finding.kind == "no-notices":
            return  # on a busy machine OpenSM accepts the subscription late
        what = "raised" if isinstance(event, Raised) else "cleared"
        found = event.entry.finding
        self.reported.append((what, found.kind, found.where.partition(" (")[0]))

    async def until(self, isSo: Callable[[], bool]) -> int:
        """Wait until a condition is true, and return the number of readings of all counters meanwhile."""
        begin, turns = self.reactor.seconds(), self.poller.statistics.turns
        while not isSo():
            if self.reactor.seconds() - begin >= PATIENCE_SECONDS:
                self.fail(f"{self.reported}\n{self.fabric.log('standby/opensm.log')[-1000:]}")
            await deferLater(self.reactor, 0.02)
        return self.poller.statistics.turns - turns

    async def started(self) -> None:
        subscription = self.poller._subscription
        assert subscription is not None
        await self.until(lambda: self.poller.statistics.turns > 1 and subscription.isStanding)
        await self.until(lambda: self.poller.manager.guid is not None)  # only a known master can change
        self.assertEqual(self.reported, [])

    def linked(self) -> set[tuple[str, int, str, int]]:
        """Return links as the monitor knows them, from both ends."""
        fabric = self.poller.fabric
        assert fabric is not None
        return {
            (one.node.description, one.number, other.node.description, other.number)
            for pair in fabric.links()
            for one, other in (pair, pair[::-1])
        }

    async def linksReported(self) -> set[tuple[str, int, str, int]]:
        """Return links as iblinkinfo prints them, from both ends."""
        out, errors, status = await self.fabric.spawn("iblinkinfo", "-l", host="b")
        self.assertEqual((status, errors), (0, b""))
        found = set()
        for line in out.decode().splitlines():
            words = line.split('"')
            if len(words) >= 5 and "LinkUp" in line:
                here, there = words[1].strip(), words[3].strip()
                number = int(words[2].split()[1].partition("[")[0])
                beyond = int(words[2].rpartition("==>")[2].split()[2].partition("[")[0])
                found |= {(here, number, there, beyond), (there, beyond, here, number)}
        return found

    def raised(self) -> set[tuple[str, str]]:
        return {(kind, where) for what, kind, where in self.reported if what == "raised"}


class MonitorTests(MonitorTestCase):
    async def test_cut(self) -> None:
        await self.started()
        self.assertEqual(self.linked(), await self.linksReported())
        sweeps = self.poller.statistics.sweeps
        self.fabric.console('Unlink "c"[1]')
        turns = await self.until(lambda: ("raised", "node-gone", "c") in self.reported)
        self.assertLessEqual(turns, 2)
        self.assertEqual(self.linked(), await self.linksReported())
        self.fabric.console('ReLink "c"[1]')
        turns = await self.until(lambda: not self.poller.topologyWatch.missingNodes)
        self.assertLessEqual(turns, 2)
        self.assertEqual(self.linked(), await self.linksReported())
        self.assertEqual(self.poller.statistics.sweeps, sweeps)  # only changed parts were queried

    async def test_counters(self) -> None:
        await self.started()
        self.fabric.console('PerformanceSet "left"[2] PortCounters.SymbolErrorCounter=4321')
        turns = await self.until(lambda: ("raised", "symbol-errors", "left") in self.reported)
        self.assertLessEqual(turns, 2)
        fabric = self.poller.fabric
        assert fabric is not None
        left = next(node for node in fabric.switches() if node.description == "left")
        self.assertEqual(self.poller.meters[left.guid, 2].value("symbolErrorCounter"), 4321)
        out, _errors, status = await self.fabric.spawn("perfquery", str(int(left.lid)), "2", host="b")
        lines = dict(line.split(":", 1) for line in out.decode().splitlines() if ":" in line)
        self.assertEqual((status, lines["SymbolErrorCounter"].strip(".")), (0, "4321"))
        out, _errors, _status = await self.fabric.spawn("ibqueryerrors", host="b")
        self.assertIn("[SymbolErrorCounter == 4321]", out.decode())

    async def test_handover(self) -> None:
        self.fabric.standBy("d", "sm_priority 3\nsminfo_polling_timeout 200\npolling_retry_number 3")
        await self.started()
        self.fabric.killManager()
        await self.until(lambda: ("raised", "sm-changed", "subnet manager") in self.reported)
        subscription = self.poller._subscription
        assert subscription is not None
        await self.until(lambda: subscription.isStanding)
        self.assertNotIn(("raised", "node-gone", "c"), self.reported)
        self.fabric.console('Unlink "c"[1]')
        turns = await self.until(lambda: ("raised", "node-gone", "c") in self.reported)
        self.assertLessEqual(turns, 2)
        await self.until(
            lambda: (
                all(entry.finding.kind != "sm-silent" for entry in self.poller.findings.log.open.values())
                or ("cleared", "sm-silent") in [one[:2] for one in self.reported]
            )
        )
