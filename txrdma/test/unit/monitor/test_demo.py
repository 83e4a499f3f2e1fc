"""The demonstration: its faults, and the command that serves it."""

from __future__ import annotations

from twisted.trial.unittest import SynchronousTestCase

from txrdma.commands.demo_fabric import netOf
from txrdma.mad.agent import MADAgent
from txrdma.monitor.diagnosis.findinglog import FindingEvent, Raised
from txrdma.monitor.reading.poller import FabricPoller
from txrdma.monitor.reading.settings import PollerSettings
from txrdma.sim.clock import SimulatedClock
from txrdma.sim.fabric.fabric import SimulatedFabric
from txrdma.sim.faultgenerator import FaultGenerator
from txrdma.test.support.clocks import elapse


class RandomFaultTests(SynchronousTestCase):
    """L{FaultGenerator} on a small fat tree, and a monitor in it."""

    slowBecause = "it polls a fabric for minutes"

    hosts = 16
    seconds = 180.0

    def played(self, seed: int, hasFaults: bool = True) -> tuple[FaultGenerator, FabricPoller, set[str]]:
        """Run some minutes, and return the kinds of findings that were raised."""
        clock = SimulatedClock()
        fabric = SimulatedFabric(clock, netOf(self.hosts))
        agent = MADAgent(clock, fabric.attach())
        self.addCleanup(agent.close)
        raised: set[str] = set()

        def received(event: FindingEvent) -> None:
            if isinstance(event, Raised):
                raised.add(event.entry.finding.kind)

        settings = PollerSettings(intervalSeconds=2.0, sweepSeconds=60.0, settleSeconds=1.0)
        poller = FabricPoller(clock, agent, settings, notify=received)
        faults = FaultGenerator(fabric, seed)
        poller.start()
        faults.start(hasFaults)
        elapse(clock, self.seconds)
        faults.stop()
        return faults, poller, raised

    def test_faults(self) -> None:
        """Within minutes there is a fault of each kind, and the monitor detects it."""
        faults, poller, raised = self.played(1)
        log = " ".join(text for _at, text in faults.log)
        for word in ("degrade", "flaps", "loses power", "hangs"):
            self.assertIn(word, log)
        self.assertLessEqual({"symbol-errors", "flapping", "node-gone"}, raised)

    def test_seed(self) -> None:
        """The same seed makes the same faults, a different seed makes different faults."""

        def log(seed: int) -> list[tuple[float, str]]:
            clock = SimulatedClock()
            faults = FaultGenerator(SimulatedFabric(clock, netOf(32)), seed)
            faults.start(True)
            for _ in range(360):
                clock.advance(1.0)
            faults.stop()
            return list(faults.log)

        first, again, other = (log(seed) for seed in (3, 3, 4))
        self.assertTrue(first)
        self.assertEqual(first, again)
        self.assertNotEqual(first, other)

    def test_calm(self) -> None:
        """Without faults there is traffic, as much into the fabric as out of it, and no findings."""
        faults, poller, raised = self.played(1, hasFaults=False)
        self.assertEqual((faults.log, raised), ([], set()))
        assert poller.fabric is not None
        sums = [0.0, 0.0]
        for node in poller.fabric.hosts():
            meter = poller.meters[node.guid, 1]
            for at, counter in enumerate(("portXmitData", "portRcvData")):
                sums[at] += meter.rate(counter) or 0.0
        self.assertGreater(sums[0], 1e9)
        self.assertAlmostEqual(sums[0] / sums[1], 1.0, delta=0.05)

    def test_fewHosts(self) -> None:
        """Without hosts other than those of the monitor and the subnet manager, there is no traffic."""
        for hosts in range(1, 5):
            clock = SimulatedClock()
            faults = FaultGenerator(SimulatedFabric(clock, netOf(hosts)))
            faults.start()
            for _ in range(150):
                clock.advance(1.0)
            self.assertEqual(bool(faults.log), hosts > 2, hosts)
            faults.stop()
