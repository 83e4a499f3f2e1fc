"""Replays of histories by the monitor of a twin."""

from __future__ import annotations

from typing import Any, cast

from twisted.internet.defer import Deferred, execute
from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.fabric.recording import Recording
from txrdma.monitor.diagnosis.fabricstate import Link, LinkState, NodeState, stateEvent
from txrdma.monitor.series.historystore import HistoryStore
from txrdma.sim.twin import Twin
from txrdma.tap.replay import HistoryReplay
from txrdma.test.support.mad.simulated import FabricTestCase


class FakeTwin:
    """Records the rates at which counters grow."""

    def __init__(self, clock: Clock) -> None:
        self.clock = clock
        self.rates: list[Any] = []

    def growAs(self, rates: Any, speed: float) -> None:
        self.rates.append(rates)


class HistoryReplayTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.clock = Clock()
        self.twin = FakeTwin(self.clock)
        self.reads: list[Deferred[Any]] = []
        store = cast(HistoryStore, None)  # it is used in threads only
        self.replay = HistoryReplay(cast(Twin, self.twin), store, 0, 600, 60.0, self.inThread)
        self.replay.start()
        self.reads[0].callback(({}, []))

    def inThread(self, function: Any, *arguments: Any) -> Deferred[Any]:
        self.reads.append(Deferred())
        return self.reads[-1]

    def test_slow(self) -> None:
        """A minute is read when the one before has been read, so that slow reads do not accumulate."""
        self.clock.pump([0.5] * 10)
        self.assertEqual(len(self.reads), 2)
        self.reads[1].callback(({}, []))
        self.clock.advance(0.0)
        self.assertEqual(len(self.reads), 3)

    def test_failed(self) -> None:
        """A minute that cannot be read is logged, and the next one is read."""
        self.clock.advance(1.0)
        self.reads[1].errback(ValueError("no minute"))
        self.assertEqual(len(self.flushLoggedErrors(ValueError)), 1)
        self.clock.advance(1.0)
        self.assertEqual(len(self.reads), 3)


class LinkReplayTests(FabricTestCase):
    """Links of a history are cut and reconnected in a twin."""

    def setUp(self) -> None:
        super().setUp()
        fabric = self.sweep()
        self.twin = Twin(self.clock, [Recording(fabric)], isManaged=False)
        self.addCleanup(self.twin.close)
        self.links: dict[str, Link] = {}
        for one, other in fabric.links():
            names = one.node.description, other.node.description
            self.links[" ".join(sorted(names))] = (one.node.guid, one.number), (other.node.guid, other.number)
        self.store = HistoryStore(self.mktemp())

    def happened(self, at: float, change: str, key: Any) -> None:
        state = LinkState("one", "other") if isinstance(key, tuple) else NodeState("another name", "")
        self.store.append([stateEvent(at, change, key, state)])

    def isUp(self, link: Link) -> bool:
        port = self.twin.portAt(link[0])
        return port is not None and port.neighbor is not None

    def started(self) -> None:
        replay = HistoryReplay(self.twin, self.store, 6000, 7000, 60.0, execute)
        self.addCleanup(replay.stop)
        replay.start()

    def test_links(self) -> None:
        """A link is there from one event to the next, also if its node gets another name meanwhile."""
        link = self.links["c right"]
        self.happened(6010.0, "gone", link)
        self.happened(6070.0, "came", link[0][0])
        self.happened(6130.0, "came", link)
        self.started()
        states = [self.isUp(link)]
        for _minute in range(2):
            self.clock.advance(1.0)
            states.append(self.isUp(link))
        self.assertEqual(states, [False, False, True])

    def test_before(self) -> None:
        """A link that is missing since before the beginning is missing until it comes back."""
        link = self.links["c right"]
        self.happened(5000.0, "gone", link)
        self.happened(6070.0, "came", link)
        self.started()
        self.assertFalse(self.isUp(link))
        self.clock.advance(1.0)
        self.assertTrue(self.isUp(link))

    def test_elsewhere(self) -> None:
        """A link that the recording does not have changes nothing: a host was in another port."""
        link, host = self.links["b left"], self.links["c right"]
        self.happened(6010.0, "gone", (link[0], host[1]))
        self.started()
        self.assertTrue(self.isUp(link))
