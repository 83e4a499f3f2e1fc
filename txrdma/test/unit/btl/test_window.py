"""Windows of the byte transfer layer: acknowledgements, losses and round trips."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from twisted.trial.unittest import SynchronousTestCase

from txrdma.btl.core.counters import ModuleCounters
from txrdma.btl.core.path import COMMAND, DATA, Message, Path, Sent
from txrdma.btl.core.receiving import ABOVE, BELOW, difference, DUPLICATE, NEW, ReceiveWindow, WINDOW
from txrdma.btl.core.roundtrip import FIRST_TIMEOUT, LONGEST_TIMEOUT, RoundTripEstimate, SHORTEST_TIMEOUT
from txrdma.btl.core.window import FEWEST_TRIES, SendWindow
from txrdma.btl.wire import ACK, BTLSegment, FRAG, SEQUENCE_MASK, VOID
from txrdma.test.support import slow

_SEQUENCES = st.integers(0, SEQUENCE_MASK) | st.integers(SEQUENCE_MASK - 2 * WINDOW, SEQUENCE_MASK)


class ReceiveWindowTests(SynchronousTestCase):
    """The receive window compared with a set of received segments."""

    @given(_SEQUENCES, st.lists(st.integers(-3, 40) | st.integers(WINDOW - 2, WINDOW + 40), max_size=80))
    def test_model(self, first: int, steps: list[int]) -> None:
        """Every segment is accepted once, within the window only, and the acknowledgement covers all."""
        window, seen, following = ReceiveWindow(first), set[int](), 0
        for step in steps:
            number = following + step
            place = window.classify((first + number) & SEQUENCE_MASK)
            expected = (
                BELOW if step < 0 else ABOVE if step >= WINDOW else DUPLICATE if number in seen else NEW
            )
            self.assertEqual(place, expected)
            if place == NEW:
                seen.add(number)
                window.take((first + number) & SEQUENCE_MASK, 1, 0.0)
                while following in seen:
                    following += 1
            self.assertEqual(window.following, (first + following) & SEQUENCE_MASK)
            bitmap = int.from_bytes(window.bitmap(), "little")
            reported = {following + 1 + bit for bit in range(bitmap.bit_length()) if bitmap >> bit & 1}
            self.assertEqual(reported, {each for each in seen if each > following})
            self.assertLessEqual(len(window.bitmap()), WINDOW // 8)

    def test_lateCopy(self) -> None:
        """A copy of a segment is recognized after 65,536 later ones, half a second at full speed."""
        window = ReceiveWindow(5)
        for sequence in range(5, 5 + (1 << 16)):
            self.assertTrue(window.takeNext(sequence, 1, 0.0))
        self.assertEqual(window.classify(5), BELOW)

    def test_owed(self) -> None:
        """A piggybacked acknowledgement suffices, unless there is a gap to report."""
        window = ReceiveWindow(5)
        window.take(5, 1, 1.0)
        self.assertEqual((window.isOwed, window.owedSince), (True, 1.0))
        window.ackPiggybacked()
        self.assertFalse(window.isOwed)
        window.take(7, 1, 2.0)
        window.ackPiggybacked()
        self.assertTrue(window.isOwed)
        window.ackSent()
        self.assertFalse(window.isOwed)


class SendWindowTests(SynchronousTestCase):
    def setUp(self) -> None:
        self.counters = ModuleCounters()
        self.window = SendWindow(SEQUENCE_MASK - 1, self.counters, 10.0)

    def add(self, count: int, channel: int = DATA, now: float = 0.0) -> list[Sent]:
        made = []
        for _each in range(count):
            made.append(Sent(FRAG, 0, b"", Message(FRAG, 0, b"", None)))
            self.window.add(made[-1], channel, now)
        return made

    def receive(
        self,
        acknowledged: int,
        now: float,
        beyond: int = 0,
        latest: int = 0,
        attempt: int = 1,
        again: int = 0,
    ) -> list[Sent] | None:
        """Deliver an acknowledgement of all but C{beyond}; numbers are relative to the first segment."""
        ack = BTLSegment(
            ACK,
            0,
            acknowledged=(SEQUENCE_MASK - 1 + acknowledged) & SEQUENCE_MASK,
            payload=beyond.to_bytes((beyond.bit_length() + 7) // 8, "little"),
            duplicates=again,
            latest=(SEQUENCE_MASK - 1 + latest) & SEQUENCE_MASK,
            latestAttempt=attempt,
        )
        return self.window.acknowledged(ack, now)

    def resend(self, now: float) -> Sent:
        """Let the first timeout expire, and retransmit a segment."""
        self.window.expired(FIRST_TIMEOUT)
        self.assertTrue(self.window.hasLost())
        return self.window.retransmit(now)

    def due(self) -> float:
        """Return the next deadline."""
        deadline = self.window.deadline()
        assert deadline is not None
        return deadline

    def test_nextOnly(self) -> None:
        """The fast path accepts only the acknowledgement of the oldest segment."""
        oldest, _ = self.add(2)
        self.assertIsNone(self.window.arrivedNext(SEQUENCE_MASK, 1.0))
        self.assertIs(self.window.arrivedNext(SEQUENCE_MASK - 1, 1.0), oldest)
        self.assertEqual((self.window.base, self.window.inFlight), (SEQUENCE_MASK, 1))

    @slow("Hypothesis runs many examples")
    @given(st.data())
    def test_model(self, data: st.DataObject) -> None:
        """With any acknowledgements each segment arrives once; invalid ones change nothing."""
        window = SendWindow(data.draw(_SEQUENCES), ModuleCounters())
        first, sent, arrived = window.base, list[Sent](), set[int]()
        for _step in range(data.draw(st.integers(1, 20))):
            for _each in range(data.draw(st.integers(0, 8))):
                sent.append(Sent(FRAG, 0, b"", None))
                window.add(sent[-1], data.draw(st.sampled_from((COMMAND, DATA))), 0.0)
            reported, beyond = data.draw(st.integers(-3, len(sent) + 2)), data.draw(st.integers(0, 255))
            ack = BTLSegment(
                ACK, 0, acknowledged=(first + reported) & SEQUENCE_MASK, payload=bytes((beyond,))
            )
            before = difference(window.base, first)
            named = {*range(reported + 1), *(reported + 2 + bit for bit in range(8) if beyond >> bit & 1)}
            found = window.acknowledged(ack, 0.001)
            if max(named, default=-1) >= len(sent) or reported >= len(sent):
                self.assertIsNone(found)
                continue
            assert found is not None
            numbers = [difference(each.sequence, first) for each in found]
            if reported >= before - 1:
                self.assertEqual(sorted(numbers), sorted(named - arrived - set(range(-9, 0))))
                arrived |= named - set(range(-9, 0))
            else:
                self.assertEqual(numbers, [])
            oldest = next(each for each in range(len(sent) + 1) if each not in arrived)
            self.assertEqual(difference(window.base, first), oldest)
            self.assertEqual(window.inFlight, sum(not (each.isArrived or each.isLost) for each in sent))

    def test_overtaken(self) -> None:
        """A segment that others on its channel have overtaken is retransmitted after a round trip."""
        self.add(1)
        self.receive(0, 0.010)  # a round trip of 10 ms
        self.add(2, now=1.0)
        self.receive(0, 1.005, beyond=0b1, latest=2)
        self.assertFalse(self.window.hasLost())
        due = self.due()
        self.assertTrue(1.01 <= due <= 1.03, due)
        self.window.expired(due)
        self.assertTrue(self.window.hasLost())
        self.assertEqual((self.counters.fastRetrans, self.counters.timeoutRetrans), (1, 0))

    def test_otherChannel(self) -> None:
        """Segments of another channel overtake nothing."""
        self.add(1)
        self.receive(0, 0.010)
        self.add(1, DATA, 1.0)
        self.add(30, COMMAND, 1.0)
        self.receive(0, 1.014, beyond=(1 << 30) - 1, latest=31)
        due = self.due()
        self.window.expired(due - 0.001)
        self.assertEqual((self.counters.fastRetrans, self.window.hasLost()), (0, False))

    def test_oldestFirst(self) -> None:
        sent = self.add(4)
        first = self.resend(0.2)
        self.receive(0, 0.3, latest=0, attempt=2)
        self.assertIs(first, sent[0])
        self.assertIs(self.window.retransmit(0.3), sent[1])

    def test_measuredAgain(self) -> None:
        """Round trips of retransmitted segments are measured: the peer reports which transmission arrived."""
        self.add(1)
        self.resend(0.5)
        self.receive(0, 0.52, latest=0, attempt=2)
        self.assertAlmostEqual(self.window.paths[0].channels[DATA].roundTrip.smoothed, 0.02)

    def test_givesUp(self) -> None:
        """A peer is given up after the requested time, and not before some retries."""
        self.add(1)
        self.assertEqual(self.triesUntilGivenUp(), FEWEST_TRIES - 1)

    def test_givesUpAfterProgress(self) -> None:
        """Retries count from the last acknowledgement on."""
        self.add(2)
        self.resend(FIRST_TIMEOUT)
        self.receive(0, 1.0)
        self.assertEqual(self.triesUntilGivenUp(), FEWEST_TRIES)  # the first one sends the other lost segment

    def triesUntilGivenUp(self) -> int:
        """Return how often the window waits for an answer, after this process has slept."""
        now, tries = 1000.0, 0
        while not self.window.expired(now):
            tries += 1
            if self.window.hasLost():
                self.window.retransmit(now)
            due = self.due()
            now = max(now, due)
        return tries

    def test_refused(self) -> None:
        """A refused segment becomes an empty one, which is sent immediately; its message is reported."""
        sent = self.add(2)
        message = sent[1].message
        self.assertIs(self.window.refused(sent[1].sequence), message)
        self.assertTrue(self.window.hasLost())
        self.assertEqual(self.window.retransmit(0.1).kind, VOID)
        self.assertIsNone(self.window.refused(sent[1].sequence))
        self.assertIsNone(self.window.refused(7))

    def test_spurious(self) -> None:
        """Unnecessary retransmissions are counted, and duplicates of the network are not."""
        self.add(1)
        self.resend(0.2)
        self.receive(0, 0.3, again=5)
        self.assertEqual(self.counters.spuriousResends, 1)

    def test_late(self) -> None:
        """A segment that arrives after its timeout restores the window from before the timeout."""
        self.window.paths[0].congestion.filled()
        for number in range(8):  # of a known path
            self.add(1, now=number * 0.001)
            self.receive(number, number * 0.001 + 0.0005, latest=number)
        before = self.window.paths[0].congestion.size
        sent = self.add(20, now=1.0)
        self.assertFalse(self.window.expired(2.0))
        self.assertEqual((self.window.inFlight, self.counters.timeoutRetrans), (0, 20))
        self.assertLess(self.window.paths[0].congestion.size, before)
        self.assertTrue(self.window.hasLost())
        self.assertIs(self.window.retransmit(2.0), sent[0])
        self.receive(8 + 9, 2.0001, latest=8 + 9)
        self.assertEqual(self.window.paths[0].congestion.size, before)
        self.assertEqual(self.window.inFlight, 10)
        self.assertFalse(self.window.hasLost())
        self.assertGreater(self.window.deadline() or 0.0, 2.0001 + SHORTEST_TIMEOUT)
        self.receive(8 + 19, 2.0002, latest=8 + 19)
        self.assertEqual((self.window.inFlight, self.window.deadline()), (0, None))

    def test_lostNevertheless(self) -> None:
        """A segment that timed out is lost in the end, even if others sent with it were late."""
        sent = self.add(4)
        self.window.expired(FIRST_TIMEOUT)
        self.receive(0, FIRST_TIMEOUT + 0.001)
        self.assertFalse(self.window.hasLost())
        deadline = self.due()
        self.window.expired(deadline)
        self.assertTrue(self.window.hasLost())
        self.assertIs(self.window.retransmit(deadline), sent[1])

    def test_lateTwice(self) -> None:
        """A segment that timed out twice and was late both times is in flight once."""
        self.add(4)
        for number in range(2):
            deadline = self.due()
            self.window.expired(deadline)
            self.assertEqual(self.window.inFlight, 0)
            self.receive(number, deadline + 0.001)
            self.assertEqual(self.window.inFlight, 3 - number)

    def test_timerBeginsAgain(self) -> None:
        """An arrival on a channel restarts the timer of that channel only."""
        self.add(2)
        self.add(1, COMMAND)
        self.receive(0, 0.9 * FIRST_TIMEOUT)
        timeout = max(each.roundTrip.timeout for each in self.window.paths[0].channels)
        self.window.expired(1.1 * timeout)
        self.assertEqual(self.counters.timeoutRetrans, 1)


class SilentPathTests(SynchronousTestCase):
    """A window with two paths, each with a round trip of 10 ms."""

    def setUp(self) -> None:
        self.counters = ModuleCounters()
        self.window = SendWindow(0, self.counters, ports=(0, 1))
        self.first, self.second = self.window.paths
        for path in self.window.paths:
            self.receive(self.sent(path, 0.0), 0.01)

    def sent(self, path: Path, now: float) -> Sent:
        """Return a segment that is sent on a path."""
        made = Sent(FRAG, 0, b"", Message(FRAG, 0, b"", None))
        self.window.add(made, DATA, now, path)
        return made

    def receive(self, sent: Sent, now: float) -> None:
        """Deliver the acknowledgement of one segment."""
        oldest, beyond = self.window.base, sent.sequence - self.window.base
        acknowledged, bits = (oldest - 1, 1 << beyond - 1) if beyond else (oldest, 0)
        payload = bits.to_bytes((bits.bit_length() + 7) // 8, "little")
        ack = BTLSegment(
            ACK, 0, acknowledged=acknowledged, payload=payload, latest=sent.sequence, latestAttempt=1
        )
        self.window.acknowledged(ack, now)

    def test_silent(self) -> None:
        """What was sent on a path is lost when later segments have arrived by another, but not itself."""
        before = [self.sent(self.first, 1.0) for _ in range(2)]
        self.receive(self.sent(self.second, 1.01), 1.05)
        self.assertEqual((self.first.isSilent, self.second.isSilent), (True, False))
        self.assertEqual((self.first.inFlight, self.counters.timeoutRetrans), (0, 2))
        self.assertIs(self.window.retransmissionPath(), self.second)
        self.assertEqual([self.window.retransmit(1.05, self.second) for _ in before], before)

    def test_simultaneous(self) -> None:
        """A path is not silent because of segments that were sent on another at about the same time."""
        self.sent(self.first, 1.0)
        self.receive(self.sent(self.second, 1.0005), 1.05)
        self.assertEqual((self.first.isSilent, self.first.inFlight), (False, 1))


class RoundTripTests(SynchronousTestCase):
    @given(st.lists(st.floats(0, 3), min_size=1, max_size=50))
    def test_bounds(self, samples: list[float]) -> None:
        """The timeout is between its bounds, and a silence doubles it."""
        trip = RoundTripEstimate()
        for sample in samples:
            trip.measured(sample, 0.0)
            self.assertTrue(SHORTEST_TIMEOUT <= trip.timeout <= LONGEST_TIMEOUT)
            self.assertTrue(trip.timeout >= min(trip.overtaken(), LONGEST_TIMEOUT))
        before = trip.timeout
        trip.expired()
        self.assertEqual(trip.timeout, min(2 * before, LONGEST_TIMEOUT))
        trip.answered()
        self.assertEqual(trip.timeout, before)

    def test_borrowed(self) -> None:
        """A sample of the other channel is dropped with the channel's first own sample."""
        path = Path(0, 0)
        trip = path.channels[COMMAND].roundTrip
        path.measured(DATA, 0.5, 0.0)
        self.assertEqual(trip.smoothed, 0.5)
        path.measured(COMMAND, 0.001, 0.0)
        path.measured(DATA, 0.5, 0.0)
        self.assertEqual(trip.smoothed, 0.001)

    def test_base(self) -> None:
        """The base round trip is the shortest one of a minute."""
        trip = RoundTripEstimate()
        trip.measured(0.001, 0.0)
        for second in range(1, 50):
            trip.measured(0.5, float(second))
            self.assertEqual(trip.base, 0.001)
        for second in range(50, 80):
            trip.measured(0.5, float(second))
        self.assertEqual(trip.base, 0.5)
