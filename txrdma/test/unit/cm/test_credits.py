"""Credits and greetings: their encoding, and that no message arrives without a posted receive."""

from __future__ import annotations

from collections import deque
from random import Random

from twisted.trial.unittest import SynchronousTestCase

from txrdma.cm.connections._credits import Credits, FIRST_RECEIVES, SPARE
from txrdma.cm.terms import Greeting, REP_MAGIC, REQ_MAGIC, splitGreeting, Terms


class End:
    """
    An end that sends and receives by credits.

    @ivar free: number of posted receives that are empty; C{arrived}: messages in the others.
    @ivar flying: messages in flight to the peer: None, or returned credits.
    """

    def __init__(self, local: int, remote: int, total: int) -> None:
        self.credits = Credits(local, remote)
        self.free = min(local, FIRST_RECEIVES) + SPARE
        self.flying: deque[int | None] = deque()
        self.arrived: deque[int | None] = deque()
        self.left = total
        self.taken = 0

    def turn(self) -> None:
        """Send all messages that credits allow, and return credits that are due."""
        while self.left and self.credits.mayPost:
            self.credits.posted()
            self.left -= 1
            self.flying.append(None)
        due = self.credits.due()
        if due:
            self.credits.sentBack(due)
            self.flying.append(due)

    def take(self) -> bool:
        """Take one received message; return False if the peer returned more credits than were used."""
        given = self.arrived.popleft()
        self.free += 1
        if given is not None:
            return self.credits.returned(given)
        self.taken += 1
        self.free += self.credits.reposted()
        return True


class CreditTests(SynchronousTestCase):
    """Two ends that exchange messages never exceed their credits."""

    def play(self, seed: int) -> None:
        """Send, deliver and take messages in any order."""
        random = Random(seed)
        depths = [random.choice((1, 2, 3, 4, 5, 8, 9, 16, 33)) for _ in range(2)]
        ends = [End(depths[0], depths[1], 200), End(depths[1], depths[0], random.choice((0, 1, 200)))]
        totals = [end.left for end in ends]
        retryPolicy = random.random()
        while any(end.left or end.flying or end.arrived for end in ends):
            which = random.randrange(2)
            end, peer = ends[which], ends[1 - which]
            if end.flying and random.random() < 0.7:
                self.assertGreater(peer.free, 0, f"seed {seed}: a message finds no receive")
                peer.free -= 1
                peer.arrived.append(end.flying.popleft())
            elif end.arrived and random.random() < retryPolicy + 0.05:
                self.assertTrue(end.take(), seed)
                end.turn()
            else:
                end.turn()
        self.assertEqual([end.taken for end in ends], totals[::-1], seed)

    def test_everyMessageFindsReceive(self) -> None:
        for seed in range(150):
            self.play(seed)

    def test_unusedCreditsCannotBeReturned(self) -> None:
        credits = Credits(4, 4)
        credits.posted()
        self.assertTrue(credits.returned(1))
        self.assertFalse(credits.returned(1))

    def test_peerWithoutCredits(self) -> None:
        credits = Credits(1, None)
        for _ in range(3):
            self.assertTrue(credits.mayPost)
            credits.posted()
            credits.reposted()
        self.assertEqual(credits.due(), 0)


class GreetingTests(SynchronousTestCase):
    """Greetings at the end of private data."""

    def test_greetingLayout(self) -> None:
        terms = Terms(messageBytes=0x10203, receives=0x405, longest=0x60708)
        output = terms.withGreeting(b"hi", 20, REQ_MAGIC)
        expected = b"hi" + bytes(2) + bytes.fromhex("0405 00 02 00010203 00060708 74784d02")
        self.assertEqual(output, expected)
        greeting, privateData = splitGreeting(output, Terms(), REQ_MAGIC)
        assert greeting is not None
        self.assertEqual((greeting.receives, greeting.messageBytes, privateData), (0x405, 0x10203, b"hi"))
        self.assertEqual(greeting.longest, 0x60708)

    def test_foreignPrivateDataIsNoGreeting(self) -> None:
        """Private data of other programs is no greeting, even if it returns that of a REQ."""
        nothing = bytes(8) + Greeting(magic=REP_MAGIC, receives=1).encode()
        returned = Terms().withGreeting(b"hi", 40, REQ_MAGIC)
        tooLong = bytes(3) + Greeting(magic=REP_MAGIC, messageBytes=1, privateLength=4).encode()
        found = (b"", b"rping", bytes(56), b"rping".ljust(56, b"\0"), nothing, returned, tooLong)
        for output in found:
            self.assertEqual(splitGreeting(output, Terms(), REP_MAGIC), (None, output.rstrip(b"\0")))

    def test_greetingIsSkippedWithoutCredits(self) -> None:
        output = Terms().withGreeting(b"hi", 40, REP_MAGIC)
        self.assertEqual(splitGreeting(output, Terms(usesCredits=False), REP_MAGIC), (None, b"hi"))
