"""
Stripes: data over several modules arrives once and complete, though modules are slow, silent or lost.
"""

from __future__ import annotations

from random import Random

from hypothesis import given, settings
from hypothesis import strategies as some

from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.core.assembly import Budget
from txrdma.btl.core.peer import CLOSING, ENDED, LEFT
from txrdma.btl.core.stripes import (
    Arrived,
    Came,
    EAGER,
    MOST_MESSAGES,
    MOST_OF_MODULE,
    Piece,
    PieceHead,
    ROOM,
    SILENCE_SECONDS,
    StripeKind,
    Stripes,
    StripesEnded,
    StripesFailed,
)
from txrdma.btl.core.window import UNHEARD
from txrdma.error import InvalidRequest, PeerViolation, WireError
from txrdma.iba.verbs import Buffer

PLAIN, ORDERED = 5, 6
GIGABIT = 1_000_000_000


class End:
    """One end: its stripes, its memory, and its events."""

    def __init__(self, speeds: list[int], budget: Budget | None = None) -> None:
        self.memory = bytearray(300_000)
        self.stripes = Stripes(speeds, self.write, budget or Budget(MOST_OF_MODULE))
        self.stripes.order.tags.add(ORDERED)
        self.stripes.order.isOrdered = False
        self.came: list[tuple[int, bytes]] = []
        self.arrived: list[object] = []
        self.failed: list[object] = []
        self.hasEnded = False

    def write(self, region: int, at: int, data: Buffer) -> bool:
        if region != 1 or at + len(data) > len(self.memory):
            return False
        self.memory[at : at + len(data)] = data
        return True

    def takeReceived(self) -> None:
        """Take all events, at the end of an iteration."""
        self.stripes.settle()
        for event in self.stripes.events():
            assert not self.hasEnded, event
            if isinstance(event, Came):
                self.came.append((event.tag, bytes(event.data)))
            elif isinstance(event, Arrived):
                self.arrived.append(event.context)
            elif isinstance(event, StripesFailed):
                self.failed.append(event.context)
            else:
                self.hasEnded = True


class Ways:
    """
    The modules between two ends; each is reliable and ordered as long as it lives.

    @ivar silent: modules that temporarily deliver nothing; C{dead}: permanently.
    """

    def __init__(self, seed: int, count: int = 2) -> None:
        self.random = Random(seed)
        self.now = 0.0
        self.ends = (End([GIGABIT] * count), End([GIGABIT] * count))
        self.silent: set[int] = set()
        self.dead: set[int] = set()
        self._queues: dict[tuple[int, int], list[tuple[Piece, bytes]]] = {
            (end, lane): [] for end in (0, 1) for lane in range(count)
        }

    def send(self) -> None:
        """Let both ends send."""
        for number, end in enumerate(self.ends):
            for lane, piece in end.stripes.outgoing(self.now):
                self._queues[number, lane].append((piece, piece.encode()))

    def step(self) -> bool:
        """Deliver one fragment of a working module; return False if there is none."""
        self.send()
        ready = [
            key for key, queue in self._queues.items() if queue and key[1] not in self.silent | self.dead
        ]
        if not ready:
            return False
        number, lane = self.random.choice(ready)
        queue = self._queues[number, lane]
        piece, packet = queue.pop(self.random.randrange(min(3, len(queue))))
        if self.ends[1 - number].stripes.state != ENDED:
            self.ends[1 - number].stripes.received(packet)
            self.ends[1 - number].takeReceived()
            self.ends[number].stripes.arrived(lane, piece, self.now)
        self.ends[number].takeReceived()
        return True

    def run(self) -> None:
        """Deliver everything, also after timeouts."""
        while True:
            while self.step():
                self.now += 0.0001
            times = [end.stripes.deadline() for end in self.ends]
            later = [each for each in times if each is not None]
            if not later:
                return
            self.now = max(self.now, min(later))
            for end in self.ends:
                end.stripes.expired(self.now)

    def lose(self, lane: int) -> None:
        """Report to both ends that a module is dead."""
        self.dead.add(lane)
        for number, end in enumerate(self.ends):
            end.stripes.lost(lane)
            self._queues[number, lane].clear()

    def farewell(self) -> None:
        """Report the end on another channel."""
        for end, other in (self.ends, self.ends[::-1]):
            if end.hasEnded and not other.hasEnded:
                other.stripes.peerEnded(end.stripes.following)
                other.takeReceived()


def message(number: int, size: int) -> bytes:
    """Return bytes unique to a message."""
    return (number.to_bytes(4, "big") * (size // 4 + 1))[: max(4, size)]


_SIZES = (4, 500, EAGER, EAGER + 1, 120_000, 700_000)


class StripesTests(SynchronousTestCase):
    """Every message arrives once, ordered ones in order."""

    @settings(max_examples=60, deadline=None)
    @given(
        some.integers(0, 1 << 32), some.integers(2, 4), some.sampled_from(("none", "silent", "lost", "back"))
    )
    def test_once(self, seed: int, lanes: int, trouble: str) -> None:
        """Each message arrives once and is reported once to its sender, whatever happens to a module."""
        ways = Ways(seed, lanes)
        random = ways.random
        wanted: list[tuple[int, bytes]] = []
        count = random.randrange(1, 40)
        for number in range(count):
            tag, data = random.choice((PLAIN, ORDERED)), message(number, random.choice(_SIZES))
            ways.ends[0].stripes.send(tag, data, number, random.random() < 0.2)
            wanted.append((tag, data))
        for _each in range(random.randrange(60)):
            ways.step()
        if trouble == "lost":
            ways.lose(random.randrange(lanes))
        elif trouble != "none":
            ways.silent.add(random.randrange(lanes))
        ways.run()
        came = ways.ends[1].came
        self.assertEqual(sorted(came), sorted(wanted))
        self.assertEqual(sorted(ways.ends[0].arrived), list(range(count)))
        if trouble == "back":
            ways.silent.clear()
            ways.run()
            self.assertEqual(len(ways.ends[1].came), count)
        stripes = ways.ends[0].stripes
        self.assertEqual((stripes.queuedBytes, stripes.isIdle()), (0, True))
        stripes.close()
        ways.run()
        self.assertEqual([end.hasEnded for end in ways.ends], [True, True])
        self.assertEqual([end.failed for end in ways.ends], [[], []])

    def test_recalled(self) -> None:
        """A message of which nothing was sent can be withdrawn; one that was not watched reports nothing."""
        ways = Ways(1)
        stripes = ways.ends[0].stripes
        for context, data in (("short", b"x"), ("long", bytes(100_000)), (None, b"y")):
            stripes.send(PLAIN, data, context, False)
        self.assertTrue(stripes.recall("long"))
        self.assertFalse(stripes.recall("long"))
        stripes.isWatched = True
        ways.run()
        self.assertFalse(stripes.recall("short"))
        self.assertEqual(sorted(ways.ends[1].came), [(PLAIN, b"x"), (PLAIN, b"y")])
        self.assertEqual(ways.ends[0].arrived, ["short", UNHEARD])
        self.assertEqual((stripes.queuedBytes, stripes.isIdle()), (0, True))

    @given(some.integers(0, 1 << 32))
    def test_order(self, seed: int) -> None:
        """Ordered messages arrive in the order of the calls, though fragments overtake each other."""
        ways = Ways(seed, 3)
        sizes = [ways.random.choice(_SIZES) for _each in range(20)]
        for number, size in enumerate(sizes):
            ways.ends[0].stripes.send(ORDERED, message(number, size), number)
        ways.silent.add(1)
        ways.run()
        self.assertEqual(
            ways.ends[1].came, [(ORDERED, message(number, size)) for number, size in enumerate(sizes)]
        )

    def test_bySpeed(self) -> None:
        """A faster module carries more."""
        stripes = Stripes([GIGABIT, 3 * GIGABIT], lambda region, at, data: False, Budget(MOST_OF_MODULE))
        stripes.send(PLAIN, bytes(800_000), None)
        found = [lane for lane, _piece in stripes.outgoing(0.0)]
        self.assertEqual(len(found), 32)
        self.assertAlmostEqual(found.count(1) / found.count(0), 3, delta=0.5)

    def test_room(self) -> None:
        """Modules get no more than they have space for."""
        stripes = Stripes([GIGABIT, 0], lambda region, at, data: False, Budget(MOST_OF_MODULE))
        stripes.send(PLAIN, bytes(4 * ROOM), None)
        pieces = stripes.outgoing(0.0)
        for lane in (0, 1):
            sent = sum(piece.length for each, piece in pieces if each == lane)
            self.assertTrue(ROOM <= sent < ROOM + EAGER, sent)
        self.assertEqual(stripes.outgoing(0.0), [])

    def test_suspect(self) -> None:
        """Data of a silent module is sent again on another one, and new data avoids it."""
        stripes = Stripes([GIGABIT, GIGABIT], lambda region, at, data: False, Budget(MOST_OF_MODULE))
        for _each in range(4):
            stripes.send(PLAIN, bytes(1000), None)
        first = stripes.outgoing(0.0)
        for lane, piece in first:
            if not lane:
                stripes.arrived(0, piece, 0.5)
        self.assertEqual(stripes.deadline(), SILENCE_SECONDS)
        self.assertEqual(stripes.expired(SILENCE_SECONDS - 0.1), [])
        self.assertEqual(stripes.expired(SILENCE_SECONDS), [1])
        again = stripes.outgoing(SILENCE_SECONDS)
        self.assertEqual({lane for lane, _piece in again}, {0})
        self.assertEqual([piece for _lane, piece in again], [piece for lane, piece in first if lane])
        for _lane, piece in first:
            stripes.arrived(1, piece, SILENCE_SECONDS + 0.1)
        stripes.send(PLAIN, bytes(1000), None)
        self.assertEqual(stripes.outgoing(SILENCE_SECONDS)[0][0], 1)

    def test_allSilent(self) -> None:
        """When all modules are silent, as with a busy peer, none sends the same data twice."""
        ways = Ways(1)
        ways.ends[0].stripes.send(PLAIN, bytes(200_000), "long")
        ways.silent.update((0, 1))
        ways.run()
        sent = ways.ends[0].stripes.again
        self.assertLessEqual(sent, 8)
        ways.silent.clear()
        ways.run()
        self.assertEqual((len(ways.ends[1].came), ways.ends[0].arrived), (1, ["long"]))

    def test_everywhere(self) -> None:
        """A fragment in flight on all modules is not sent again on any."""
        stripes = Stripes([GIGABIT, GIGABIT], lambda region, at, data: False, Budget(MOST_OF_MODULE))
        stripes.send(PLAIN, bytes(1000), "x")
        [(first, piece)] = stripes.outgoing(0.0)
        self.assertEqual(stripes.expired(SILENCE_SECONDS), [first])
        self.assertEqual(stripes.outgoing(SILENCE_SECONDS), [(1 - first, piece)])
        self.assertEqual(stripes.expired(2 * SILENCE_SECONDS), [1 - first])
        self.assertEqual(stripes.outgoing(2 * SILENCE_SECONDS), [])

    def test_doubled(self) -> None:
        """A duplicate of a message before its predecessors is not delivered again."""
        end = End([GIGABIT, GIGABIT])
        packet = PieceHead(kind=StripeKind.MESSAGE, tag=PLAIN, number=1, total=1).encode() + b"x"
        for _each in range(2):
            end.stripes.received(packet)
        end.takeReceived()
        self.assertEqual(end.came, [(PLAIN, b"x")])

    def test_allLost(self) -> None:
        """All messages fail when the last module is lost."""
        stripes = Stripes([GIGABIT, GIGABIT], lambda region, at, data: False, Budget(MOST_OF_MODULE))
        stripes.send(PLAIN, bytes(100_000), "begun")
        stripes.send(PLAIN, bytes(3 * ROOM), "long")
        stripes.send(PLAIN, b"x", "waits")
        stripes.outgoing(0.0)
        self.assertTrue(stripes.lost(0))
        self.assertFalse(stripes.lost(1))
        stripes.fail("all is lost")
        failed = [event.context for event in stripes.events() if isinstance(event, StripesFailed)]
        self.assertEqual((failed, stripes.queuedBytes), (["begun", "long", "waits"], 0))
        self.assertRaises(InvalidRequest, stripes.send, PLAIN, b"", None)

    def test_urgent(self) -> None:
        """An urgent message precedes those that have not started."""
        ways = Ways(3)
        ways.ends[0].stripes.send(ORDERED, b"usual", None)
        ways.ends[0].stripes.send(ORDERED, b"urgent", None, True)
        ways.run()
        self.assertEqual([data for _tag, data in ways.ends[1].came], [b"urgent", b"usual"])


class PutTests(SynchronousTestCase):
    """Puts are complete when their sender is notified."""

    @given(some.integers(0, 1 << 32), some.booleans())
    def test_put(self, seed: int, isSilent: bool) -> None:
        """A put uses all modules once; late fragments do not change memory any more."""
        ways = Ways(seed)
        data = ways.random.randbytes(200_000)
        ways.ends[0].stripes.put(1, 1000, data, "put")
        if isSilent:
            ways.send()
            ways.silent.add(0)
        ways.run()
        self.assertEqual(ways.ends[0].arrived, ["put"])
        memory = ways.ends[1].memory
        self.assertEqual(memory[1000:201_000], data)
        memory[:] = bytes(300_000)
        ways.silent.clear()
        ways.run()
        self.assertFalse(any(memory))

    def test_refused(self) -> None:
        """An invalid put fails, and the connection continues."""
        ways = Ways(2)
        ways.ends[0].stripes.put(2, 0, b"x", "no region")
        ways.ends[0].stripes.put(1, 299_999, b"xx", "beyond")
        ways.ends[0].stripes.put(1, 299_999, b"x", "last")
        ways.ends[0].stripes.put(1, 5, b"", "none")
        ways.run()
        self.assertEqual(set(ways.ends[0].failed), {"no region", "beyond"})
        self.assertEqual(set(ways.ends[0].arrived), {"last", "none"})
        self.assertRaises(InvalidRequest, ways.ends[0].stripes.put, 1 << 32, 0, b"", None)


class EndTests(SynchronousTestCase):
    """Connections that one or both ends close."""

    slowBecause = "Hypothesis runs many examples"

    @given(some.integers(0, 1 << 32), some.booleans())
    def test_both(self, seed: int, isSilent: bool) -> None:
        """When both close, each message arrives or is reported as failed; the first to end has sent all."""
        ways = Ways(seed)
        for number, end in enumerate(ways.ends):
            end.stripes.send(PLAIN, message(number, 90_000), number)
            end.stripes.close()
            end.stripes.close()
            self.assertEqual(end.stripes.state, CLOSING)
        if isSilent:
            ways.send()
            ways.silent.add(1)
        ways.run()
        ways.farewell()
        self.assertTrue(any(end.hasEnded for end in ways.ends))
        for number, end in enumerate(ways.ends):
            came = ways.ends[1 - number].came
            self.assertEqual((len(came), end.failed), (1, []) if end.hasEnded else (0, [number]))

    def test_left(self) -> None:
        """Messages not started when the peer ends fail; earlier ones are reported as delivered."""
        ways = Ways(4)
        ways.ends[0].stripes.close()
        ways.send()
        ways.ends[1].stripes.send(PLAIN, bytes(3 * ROOM), "begun")
        ways.ends[1].stripes.send(PLAIN, b"x", "waits")
        ways.ends[1].stripes.outgoing(0.0)
        ways.step()
        self.assertEqual((ways.ends[1].stripes.state, ways.ends[1].failed), (LEFT, ["waits"]))
        self.assertTrue(ways.ends[0].hasEnded)
        ways.farewell()
        self.assertEqual(ways.ends[1].failed, ["waits", "begun"])

    def test_sameTurn(self) -> None:
        """Data that arrives with the last acknowledgement is delivered before the end."""
        ways = Ways(6)
        end = ways.ends[0]
        end.stripes.close()
        [(lane, piece)] = end.stripes.outgoing(0.0)
        end.stripes.arrived(lane, piece, 0.0)
        end.stripes.received(PieceHead(kind=StripeKind.MESSAGE, tag=PLAIN, total=1).encode() + b"x")
        end.takeReceived()
        self.assertEqual((end.came, end.hasEnded, end.stripes.following), ([(PLAIN, b"x")], True, 1))

    def test_told(self) -> None:
        """An end that knows the peer has everything need not be notified of each message."""
        ways = Ways(5)
        ways.ends[0].stripes.send(PLAIN, b"x", "x")
        ways.ends[0].stripes.close()
        ways.send()
        ways.ends[0].stripes.peerEnded(2)
        ways.ends[0].takeReceived()
        self.assertEqual((ways.ends[0].arrived, ways.ends[0].hasEnded), (["x"], True))


class LiarTests(SynchronousTestCase):
    """A peer that breaks the rules is detected."""

    def assertViolation(self, *heads: tuple[PieceHead, bytes]) -> None:
        """Assert that only the last of these breaks the rules."""
        end = End([GIGABIT, GIGABIT])
        for head, data in heads[:-1]:
            end.stripes.received(head.encode() + data)
        head, data = heads[-1]
        self.assertRaises(PeerViolation, end.stripes.received, head.encode() + data)

    def test_violations(self) -> None:
        """Invalid lengths, numbers and kinds are violations."""
        plain = PieceHead(kind=StripeKind.MESSAGE, tag=PLAIN, total=10)
        for head, data in (
            (plain, b"12345678901"),
            (plain.replace(offset=9), b"12"),
            (plain, b""),
            (plain.replace(number=MOST_MESSAGES), b"1"),
            (plain.replace(total=(64 << 20) + 1), b"1"),
            (plain.replace(kind=StripeKind.END), b"1"),
            (plain.replace(kind=StripeKind(9)), b"1"),
            (PieceHead(kind=StripeKind.PROGRESS, at=3), b""),
        ):
            self.assertViolation((head, data))
        piece, double = bytes(EAGER), plain.replace(total=2 * EAGER)
        self.assertViolation((double, piece[1:]))
        self.assertViolation((double, piece), (double.replace(total=2 * EAGER + 1, offset=EAGER), piece))
        self.assertViolation((double, piece), (double.replace(offset=EAGER - 1), piece))
        large = plain.replace(total=64 << 20)
        self.assertViolation(*((large.replace(number=number), piece) for number in range(3)))

    def test_budget(self) -> None:
        """Peers of a module share a budget, to which delivered and discarded messages return."""
        budget = Budget(MOST_OF_MODULE)
        ends = [End([GIGABIT, GIGABIT], budget) for _each in range(5)]
        large = PieceHead(kind=StripeKind.MESSAGE, tag=PLAIN, total=64 << 20)
        for end in ends[:4]:
            for number in range(2):
                end.stripes.received(large.replace(number=number).encode() + bytes(EAGER))
        self.assertEqual(budget.used, budget.most)
        small = PieceHead(kind=StripeKind.MESSAGE, tag=ORDERED, number=1, total=1).encode() + b"b"
        self.assertRaises(PeerViolation, ends[4].stripes.received, small)
        ends[0].stripes.discard()
        self.assertEqual(budget.used, budget.most - (128 << 20))
        used = budget.used
        ends[4].stripes.received(small)  # waits for message 0
        self.assertEqual(budget.used, used + 1)
        ends[4].stripes.received(PieceHead(kind=StripeKind.MESSAGE, tag=ORDERED, total=1).encode() + b"a")
        ends[4].takeReceived()
        self.assertEqual((budget.used, ends[4].came), (used, [(ORDERED, b"a"), (ORDERED, b"b")]))

    def test_short(self) -> None:
        """A fragment with a truncated head is an error of the wire."""
        self.assertRaises(WireError, End([1]).stripes.received, bytes(31))

    @given(some.binary(max_size=60))
    def test_anything(self, packet: bytes) -> None:
        """Any input is accepted, or an error that ends the connection."""
        try:
            End([1]).stripes.received(packet)
        except (PeerViolation, WireError):
            pass

    def test_ended(self) -> None:
        """Input after the end is ignored."""
        end = End([GIGABIT, GIGABIT])
        end.stripes.fail("over")
        end.stripes.received(PieceHead(kind=StripeKind.MESSAGE, tag=PLAIN, total=1).encode() + b"x")
        self.assertEqual(end.stripes.events(), [])
        self.assertNotIn(StripesEnded(), end.stripes.events())
