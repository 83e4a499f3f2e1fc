"""Congestion marks: counts, their validation, and paths that do not transmit them."""

from __future__ import annotations

from random import Random

from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.core.events import Event, MessageReceived
from txrdma.btl.core.marks import CE, ECT, FIRST_DATAGRAMS, Marks, MOST_FAILURES, NOT_ECT
from txrdma.btl.core.module import Module
from txrdma.testing.btl.world import BadNetwork, ModuleHost, World


class CountTests(SynchronousTestCase):
    """The counts of one path."""

    def setUp(self) -> None:
        self.marks = Marks()

    def acknowledge(self, arrived: int, received: int, marked: int = 0) -> bool:
        """Process an acknowledgement of segments, with these counts; return whether it has new marks."""
        hasMarks = self.marks.echoed(received, marked)
        self.marks.arrived += arrived
        self.marks.validate()
        return hasMarks

    def test_received(self) -> None:
        """Datagrams whose senders react to marks are counted, and those with marks; the counts wrap."""
        for codepoint in (NOT_ECT, 1, ECT, CE, ECT):
            self.marks.count(codepoint)
        self.assertEqual((self.marks.received, self.marks.marked), (3, 1))
        for _each in range(0x10000):
            self.marks.count(CE)
        self.assertEqual((self.marks.received, self.marks.marked), (3, 1))

    def test_increases(self) -> None:
        """Each increase of the peer's marks is reported once, even if acknowledgements were lost."""
        reported = [self.acknowledge(4, *counts) for counts in ((4, 0), (8, 1), (12, 1), (20, 3))]
        self.assertEqual(reported, [False, True, False, True])
        self.assertTrue(self.marks.isUsed)

    def test_wraps(self) -> None:
        for number in range(1, 100):
            self.assertEqual(self.acknowledge(1000, 1000 * number & 0xFFFF, 999 * number & 0xFFFF), True)
        self.assertTrue(self.marks.isUsed)

    def test_old(self) -> None:
        """Counts of an acknowledgement that arrives late change nothing."""
        self.acknowledge(10, 10, 2)
        self.assertFalse(self.marks.echoed(9, 1))
        self.assertFalse(self.acknowledge(1, 11, 2))
        self.assertTrue(self.marks.isUsed)

    def test_cleared(self) -> None:
        """If segments arrive uncounted in several acknowledgements, marks are not used any more."""
        self.acknowledge(10, 10)
        for number in range(MOST_FAILURES):
            self.assertTrue(self.marks.isUsed)
            self.acknowledge(10, 15 + 5 * number)
        self.assertEqual((self.marks.isUsed, self.marks.hasFailed), (False, True))
        self.assertFalse(self.acknowledge(10, 100, 9))

    def test_oneInvalid(self) -> None:
        """Single acknowledgements with too small counts are tolerated."""
        for number in range(1, 20):
            self.acknowledge(10, 10 * number - (5 if number % 2 else 0))
        self.assertTrue(self.marks.isUsed)

    def test_impossible(self) -> None:
        """Counts with more marks than datagrams are invalid."""
        for number in range(MOST_FAILURES):
            self.assertFalse(self.marks.echoed(10 + number, 20 * number + 20))
        self.assertFalse(self.marks.isUsed)

    def test_allMarked(self) -> None:
        """If a path marks all of the first datagrams, its marks are ignored."""
        self.acknowledge(FIRST_DATAGRAMS - 1, FIRST_DATAGRAMS - 1, FIRST_DATAGRAMS - 1)
        self.assertTrue(self.marks.isUsed)
        self.assertFalse(self.acknowledge(1, FIRST_DATAGRAMS, FIRST_DATAGRAMS))
        self.assertFalse(self.marks.isUsed)

    def test_longQueue(self) -> None:
        """If a path has transmitted a datagram without a mark, it may mark all others."""
        self.acknowledge(1, 1)
        self.assertTrue(self.acknowledge(1000, 1001, 1000))
        self.assertTrue(self.marks.isUsed)

    def test_timeouts(self) -> None:
        """Marks are not used on a path with timeouts, unless datagrams with a codepoint have arrived."""
        proven = Marks()
        proven.echoed(1, 0)
        for _each in range(MOST_FAILURES):
            self.assertTrue(self.marks.isUsed)
            for marks in (self.marks, proven):
                marks.timedOut()
        self.assertEqual((self.marks.isUsed, proven.isUsed), (False, True))


class PathTests(SynchronousTestCase):
    """Two modules on a path that transmits, changes or drops codepoints."""

    MESSAGES = 100

    def play(self, network: BadNetwork) -> Marks:
        """Send messages of several packets on a network; return the marks of the sender's path."""
        world = World(Random(1), network)
        count = 0

        def came(event: Event) -> None:
            nonlocal count
            count += isinstance(event, MessageReceived)

        sender, receiver = (ModuleHost(world, Module(1024, (256, 1024)), came) for _each in range(2))
        peer, _back = sender.meet(receiver)
        for _each in range(self.MESSAGES):
            sender.send(peer, 1, bytes(3000), None)
        sender.turn()
        world.run(10.0, lambda: count == self.MESSAGES)
        self.assertEqual(count, self.MESSAGES)
        self.unmarked, self.counters = sender.module.unmarked, receiver.module.counters
        self.peer = peer
        return peer.sent.paths[0].marks

    def test_transmitted(self) -> None:
        """If a path transmits codepoints, counts are valid despite losses, duplicates and reordering."""
        for network in (BadNetwork(), BadNetwork(loss=0.05, duplication=0.05, jitter=0.001)):
            self.assertTrue(self.play(network).isUsed)
            self.assertEqual(self.unmarked, [])

    def test_changed(self) -> None:
        """ECT(0) is disabled on a path that clears it, marks everything, or drops it; messages arrive."""
        for changed in (NOT_ECT, 1, CE, None):
            remarks = {ECT: changed}
            network = BadNetwork(remark=lambda codepoint: remarks.get(codepoint, codepoint))  # noqa: B023
            self.assertFalse(self.play(network).isUsed, changed)
            self.assertEqual(self.unmarked, [(self.peer, 0)])

    def test_marked(self) -> None:
        """Marks are counted at the receiver, and shrink the sender's window."""
        random = Random(1)

        def sometimes(codepoint: int) -> int:
            return CE if codepoint == ECT and random.random() < 0.1 else codepoint

        self.play(BadNetwork())
        before = self.peer.sent.paths[0].congestion.window
        self.assertTrue(self.play(BadNetwork(remark=sometimes)).isUsed)
        self.assertGreater(self.counters.markedRecvs, 10)
        self.assertLess(self.peer.sent.paths[0].congestion.window, before / 2)
