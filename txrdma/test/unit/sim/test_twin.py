"""Simulations of recorded fabrics, and replays of several recordings."""

from __future__ import annotations

from twisted.internet.defer import Deferred

from txrdma.error import InvalidRequest, WireError
from txrdma.fabric.differences import differences
from txrdma.fabric.model import Fabric
from txrdma.fabric.recorder import record
from txrdma.fabric.recording import Recording
from txrdma.mad.agent import MADAgent
from txrdma.mad.errors import MADTimeoutError
from txrdma.mad.layouts.pma import PortCounters
from txrdma.mad.layouts.smp import SMInfo
from txrdma.mad.layouts.values import SMState
from txrdma.sim.twin import Replay, Twin
from txrdma.test.support.mad.simulated import FabricTestCase, gmp


class TwinTests(FabricTestCase):
    def recorded(self, at: float) -> Recording:
        fabric = self.sweep(60)
        recording = record(self.agent, self.agent.port.endPort, fabric, at, 64)
        found: Recording = self.answerTo(Deferred.fromCoroutine(recording), 60)
        return found

    def seen(self, twin: Twin) -> Fabric:
        """Return the fabric that a sweep of a twin finds."""
        agent, self.agent = self.agent, MADAgent(self.clock, twin.attach())
        try:
            return self.sweep(60)
        finally:
            self.agent.close()
            self.agent = agent

    def errorsAt(self, twin: Twin, name: str) -> int:
        agent = MADAgent(self.clock, twin.attach())
        self.addCleanup(agent.close)
        lid = self.lid(name)
        answer: PortCounters = self.answerTo(agent.PerformanceGet(PortCounters(portSelect=1), gmp(lid)))
        return answer.symbolErrorCounter

    def assertSame(self, one: Fabric, other: Fabric) -> None:
        self.assertEqual([str(each) for each in differences(one, other)], [])

    def test_replay(self) -> None:
        """A twin takes the states of recordings at their times, with counters that grow in between."""
        self.fabric.setCounters("c", 1, symbolErrorCounter=10)
        first = self.recorded(1000.0)
        self.fabric.cut("left", 3)
        self.fabric.setCounters("c", 1, symbolErrorCounter=30)
        self.pump()
        second = self.recorded(2000.0)
        self.fabric.heal("left", 3)
        self.fabric.cut("c")
        self.pump()
        third = self.recorded(3000.0)
        twin = Twin(self.clock, [first, second, third], resweepSeconds=None)
        self.addCleanup(twin.close)
        replay = Replay(twin, [first, second, third], speed=2.0)
        replay.start()
        self.assertEqual(self.errorsAt(twin, "c"), 10)
        self.assertSame(first.fabric, self.seen(twin))
        self.pump(200.0)
        self.assertIn(self.errorsAt(twin, "c"), range(18, 30))
        self.pump(400.0)
        self.assertSame(second.fabric, self.seen(twin))
        self.pump(500.0)
        self.assertSame(third.fabric, self.seen(twin))
        replay.stop()

    def test_otherCounters(self) -> None:
        """Counters that only one of two recordings has do not grow."""
        self.fabric.setCounters("c", 1, symbolErrorCounter=10)
        first, second = self.recorded(1000.0), self.recorded(2000.0)
        del second.answers["PerformanceGet", "PortCounters"]
        twin = Twin(self.clock, [first, second])
        self.addCleanup(twin.close)
        replay = Replay(twin, [first, second])
        self.addCleanup(replay.stop)
        replay.start()
        self.pump(500.0)
        self.assertEqual(self.errorsAt(twin, "c"), 10)

    def test_failedState(self) -> None:
        """A replay continues after a recording whose state cannot be taken."""
        recordings = [self.recorded(at) for at in (1000.0, 2000.0, 3000.0)]
        recordings[1].answers["PerformanceGet", "PortCounters"][self.lid("c"), 1] = b"short"
        twin = Twin(self.clock, recordings)
        self.addCleanup(twin.close)
        self.patch(twin, "_grow", lambda *arguments: None)
        replay = Replay(twin, recordings)
        replay.start()
        self.pump(1000.0)
        self.assertEqual(len(self.flushLoggedErrors(WireError)), 1)
        self.fabric.setCounters("c", 1, symbolErrorCounter=10)
        recordings[2].answers.update(self.recorded(3000.0).answers)
        self.pump(1500.0)
        self.assertEqual(self.errorsAt(twin, "c"), 10)

    def test_damaged(self) -> None:
        """A recording whose answers are too short, or of ports that do not exist, is refused."""
        for name in ("PortCounters", "VLArbitrationTable"):
            recording = self.recorded(1000.0)
            for (_rpc, kind), answers in recording.answers.items():
                if kind == name:
                    lid = self.lid("left")
                    answers[lid, 99] = b"short"
            self.assertRaises(InvalidRequest, Twin, self.clock, [recording])

    def test_stopped(self) -> None:
        """A stopped replay schedules nothing."""
        recording = self.recorded(1000.0)
        later = Recording(recording.fabric, 2000.0, recording.endPort, recording.answers)
        twin = Twin(self.clock, [recording, later])
        replay = Replay(twin, [recording, later])
        replay.start()
        replay.stop()
        replay.stop()
        twin.close()

    def test_fault(self) -> None:
        """After a fault, the simulated subnet manager routes around it."""
        twin = Twin(self.clock, [self.recorded(1000.0)])
        self.addCleanup(twin.close)
        left = twin.node("left")
        twin.cut("left", 3)
        self.pump()
        self.assertNotIn(3, set(twin.linearOf(left)))
        self.assertIn(4, set(twin.linearOf(left)))

    def test_recordedRoutes(self) -> None:
        """Recorded tables hold as long as all cables are there, and again when all have returned."""
        left, lid = self.fabric.node("left"), self.lid("c")
        table = self.fabric.linearOf(left)
        self.assertEqual({3, 4}, {table[lid], 7 - table[lid]})
        table[lid] = 7 - table[lid]
        self.fabric.routeAdaptively("left", {lid: [3, 4]})
        recorded = bytes(table)
        twin = Twin(self.clock, [self.recorded(1000.0)])
        self.addCleanup(twin.close)
        here = twin.node("left")
        groups = here.adaptive

        def routes() -> bytes:
            return bytes(twin.linearOf(here)[: len(recorded)])

        self.assertEqual(groups and groups.keys(), left.adaptive and left.adaptive.keys())
        twin.sweep()
        self.assertEqual(routes(), recorded)
        twin.cut("left", 3)
        self.pump()
        self.assertNotEqual(routes(), recorded)
        self.assertIsNone(here.adaptive)
        twin.heal("left", 3)
        self.pump()
        self.assertEqual((routes(), here.adaptive), (recorded, groups))

    def test_withoutCounters(self) -> None:
        """A node that did not answer for its counters does not in the twin, unless no node was queried."""
        self.fabric.node("c").hasCounters = False
        recording = self.recorded(1000.0)
        lid = self.lid("c")
        for one, isAnswered in ((recording, False), (Recording(recording.fabric), True)):
            twin = Twin(self.clock, [one])
            self.addCleanup(twin.close)
            self.assertEqual(self.errorsAt(twin, "b"), 0)
            agent = MADAgent(self.clock, twin.attach())
            self.addCleanup(agent.close)
            reading = agent.PerformanceGet(PortCounters(portSelect=1), gmp(lid))
            if isAnswered:
                self.answerTo(reading)
            else:
                self.refused(reading, MADTimeoutError)

    def test_standby(self) -> None:
        """A standby subnet manager of the recording answers in the twin as it did."""
        self.fabric.standBy("c")
        self.pump()
        twin = Twin(self.clock, [self.recorded(1000.0)])
        self.addCleanup(twin.close)
        agent = MADAgent(self.clock, twin.attach())
        self.addCleanup(agent.close)
        for name, state in (("c", SMState.STANDBY), ("d", SMState.MASTER)):
            info = self.answerTo(agent.SubnGet(SMInfo, gmp(self.lid(name))))
            self.assertIs(info.smState, state)
