"""Connections over an unreliable network: L{txrdma.sim.network} and L{txrdma.testing.verbs.scenario}."""

from __future__ import annotations

from collections.abc import Callable

from twisted.internet.task import Clock
from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.headers import Opcode
from txrdma.iba.verbs import Operation, SendRequest
from txrdma.sim.clock import SimulatedClock
from txrdma.sim.network import FAIR, Faults, RECEIVE_BUFFER, SimulatedNetwork
from txrdma.soft.rc.udp import DatagramHandler, RawAddress
from txrdma.testing.plantests import playingStored
from txrdma.testing.verbs.clients import Atomic, History, playClients
from txrdma.testing.verbs.plans import drawClients, drawPair
from txrdma.testing.verbs.scenario import playPair


class Taker:
    """Collects received datagrams."""

    def __init__(self) -> None:
        self.got: list[bytes] = []
        self.turns = self.rooms = 0

    def received(self, data: memoryview, segment: int, source: RawAddress, codepoint: int = 0) -> None:
        self.got += [bytes(data[at : at + segment]) for at in range(0, len(data), segment)]

    def batchEnded(self) -> None:
        self.turns += 1

    def writable(self) -> None:
        self.rooms += 1

    def callbacks(self) -> tuple[DatagramHandler, Callable[[], None], Callable[[], None]]:
        """Return the arguments of C{start}."""
        return self.received, self.batchEnded, self.writable


class NetworkTests(SynchronousTestCase):
    def connect(self, seed: int = 1, faults: Faults = FAIR) -> None:
        self.clock = Clock()
        self.network = SimulatedNetwork(self.clock, seed, faults)
        self.here, self.there = self.network.carrier("10.0.0.1"), self.network.carrier("10.0.0.2")
        self.taker = Taker()
        self.there.start(*self.taker.callbacks())

    def send(self, data: bytes) -> bool:
        return self.here.send(memoryview(data), len(data), ("10.0.0.2", 4791))

    def play(self, faults: Faults, seed: int = 1) -> list[bytes]:
        """Send 1000 numbered datagrams; return what arrives."""
        self.connect(seed, faults)
        for number in range(1000):
            self.send(number.to_bytes(4, "big") * 5)
            self.clock.advance(1e-4)
        self.clock.advance(10)
        return self.taker.got

    def numbers(self, got: list[bytes]) -> list[int]:
        return [int.from_bytes(data[:4], "big") for data in got]

    def test_fair(self) -> None:
        """Without faults everything arrives once, in order."""
        self.assertEqual(self.numbers(self.play(Faults())), list(range(1000)))

    def test_loss(self) -> None:
        """With loss, some datagrams are lost, and the others arrive in order."""
        got = self.numbers(self.play(Faults(loss=0.2)))
        self.assertTrue(700 < len(got) < 900)
        self.assertEqual(got, sorted(set(got)))
        self.assertEqual(self.network.dropped, 1000 - len(got))

    def test_duplication(self) -> None:
        """With duplication, some datagrams arrive twice."""
        got = self.numbers(self.play(Faults(duplication=0.2)))
        self.assertTrue(1100 < len(got) < 1300)
        self.assertEqual(set(got), set(range(1000)))

    def test_reordering(self) -> None:
        """With jitter datagrams are reordered, and all arrive."""
        got = self.numbers(self.play(Faults(jitterSeconds=0.01)))
        self.assertNotEqual(got, sorted(got))
        self.assertEqual(sorted(got), list(range(1000)))

    def test_late(self) -> None:
        """Late datagrams arrive long after later ones."""
        got = self.numbers(self.play(Faults(late=0.1, lateSeconds=1.0)))
        self.assertEqual(sorted(got), list(range(1000)))
        self.assertGreater(max(place - number for place, number in enumerate(got)), 100)

    def test_corruption(self) -> None:
        """Corrupted datagrams are changed in a way that UDP's checksum does not detect."""
        got = self.play(Faults(corruption=0.5))
        spoilt = [data for number, data in enumerate(got) if data != number.to_bytes(4, "big") * 5]
        self.assertGreater(len(spoilt), 100)
        for data in spoilt:
            words = sorted(data[at : at + 2] for at in range(0, 20, 2))
            self.assertEqual(len(set(words)), 2)

    def test_sleep(self) -> None:
        """A process that was suspended receives its socket's buffer in several iterations."""
        self.connect()
        self.network.sleep("10.0.0.2")
        datagram, count = bytes(1000), RECEIVE_BUFFER // 1000 + 100
        for _ in range(count):
            self.send(datagram)
            self.clock.advance(1e-4)
        self.assertEqual((self.taker.got, self.taker.turns), ([], 0))
        self.network.wake("10.0.0.2")
        self.assertEqual(len(self.taker.got), RECEIVE_BUFFER // 1000 + 1)
        self.assertEqual(self.network.dropped, count - len(self.taker.got))
        self.assertTrue(1 < self.taker.turns < len(self.taker.got))
        self.send(datagram)
        self.clock.advance(1)
        self.assertEqual(len(self.taker.got), RECEIVE_BUFFER // 1000 + 2)

    def test_faultsOfAddress(self) -> None:
        """A carrier with a full buffer refuses datagrams until it has room; others are not affected."""
        self.connect()
        self.network.faultsOf["10.0.0.1"] = Faults(congestion=1.0, delaySeconds=2.0)
        self.here.start(*self.taker.callbacks())
        self.assertFalse(self.send(b"data"))
        self.assertTrue(self.there.send(memoryview(b"data"), 4, ("10.0.0.1", self.here.port)))
        self.clock.advance(1.0)
        self.assertEqual((self.taker.got, self.taker.rooms), ([b"data"], 0))
        self.clock.advance(1.0)
        self.assertEqual(self.taker.rooms, 1)

    def test_seed(self) -> None:
        """A seed gives reproducible results, and another seed different ones."""
        bad = Faults(loss=0.1, duplication=0.1, corruption=0.1, late=0.1, jitterSeconds=0.01)
        self.assertEqual(self.play(bad, 5), self.play(bad, 5))
        self.assertNotEqual(self.play(bad, 5), self.play(bad, 6))

    def test_directions(self) -> None:
        """The fate of a datagram depends on its number, and on no other datagram of either direction."""
        faults = Faults(loss=0.2, duplication=0.2, late=0.1, jitterSeconds=0.01)

        def play(answers: int, first: Faults) -> list[int]:
            self.connect(3, first)
            for number in range(200):
                self.send(number.to_bytes(4, "big"))
                for _ in range(answers):
                    self.there.send(memoryview(bytes(4)), 4, ("10.0.0.1", 4791))
                self.clock.advance(1)
                self.network.faults = faults
            return self.numbers(self.taker.got)

        alone = play(0, faults)
        self.assertEqual(play(3, faults), alone)
        self.assertEqual(
            [each for each in play(0, Faults(loss=1.0)) if each], [each for each in alone if each]
        )

    def test_uniform(self) -> None:
        """A datagram whose words are all the same arrives unchanged."""
        self.connect(faults=Faults(corruption=1.0))
        self.send(bytes(20))
        self.clock.advance(1)
        self.assertEqual(self.taker.got, [bytes(20)])

    def test_partition(self) -> None:
        """Nothing passes between two addresses until it is healed."""
        self.connect()
        self.network.partition("10.0.0.2", "10.0.0.1")
        self.send(bytes(20))
        self.clock.advance(1)
        self.assertEqual(self.taker.got, [])
        self.network.heal()
        self.send(bytes(20))
        self.clock.advance(1)
        self.assertEqual(len(self.taker.got), 1)

    def test_drop(self) -> None:
        """Packets can be lost on purpose, a certain number of a certain kind."""
        self.connect()
        self.network.drop(lambda packet: packet.bth.opcode is Opcode.RC_SEND_ONLY, times=2)
        for opcode in (4, 10, 4, 4):
            self.send(bytes((opcode,)) + bytes(35))
        self.clock.advance(1)
        self.assertEqual([data[0] for data in self.taker.got], [10, 4])

    def test_taken(self) -> None:
        """A port is given once; without a number the next free one is."""
        network = SimulatedNetwork(Clock())
        first, second = network.carrier("10.0.0.1"), network.carrier("10.0.0.1")
        self.assertEqual((first.port, second.port), (4791, 4792))
        self.assertRaises(ValueError, network.carrier, "10.0.0.1", 4791)
        first.close()
        self.assertEqual(network.carrier("10.0.0.1").port, 4791)


@playingStored("verbs", "verbs-clients")
class StoredTests(SynchronousTestCase):
    """
    With any faults, operations complete once, in order, with the right bytes, or both sides fail.

    C{make simulate} draws more plans.
    """

    def test_repeats(self) -> None:
        """A plan gives reproducible results."""
        for seed in range(5):
            pair, clients = drawPair(seed), drawClients(seed)
            self.assertEqual(playPair(pair), playPair(pair))
            self.assertEqual(playClients(clients), playClients(clients))


class HistoryTests(SynchronousTestCase):
    """Linearizability of results of atomic operations."""

    def add(self, number: int, original: int | None) -> Atomic:
        return Atomic(SendRequest(0, Operation.FETCH_AND_ADD, operand=number), 0, original)

    def swap(self, compare: int, number: int, original: int | None) -> Atomic:
        return Atomic(
            SendRequest(0, Operation.COMPARE_AND_SWAP, compare=compare, operand=number), 0, original
        )

    def test_known(self) -> None:
        """Sequential operations of two clients have a history."""
        history = History(
            10, [[self.add(1, 10), self.swap(50, 60, 11)], [self.swap(11, 20, 11), self.add(5, 20)]]
        )
        self.assertTrue(history.explains(25))
        self.assertFalse(history.explains(26))

    def test_impossible(self) -> None:
        """Operations that were executed twice, not at all, or in another order are detected."""
        for operations, final in (
            ([[self.add(1, 10)], [self.add(5, 12)]], 17),  # twice
            ([[self.add(1, 10)]], 12),
            ([[self.add(1, 10)], [self.add(5, 10)]], 15),  # two with the same result
            ([[self.add(1, 10)]], 10),  # one without effect
            ([[self.add(1, 15), self.add(5, 10)]], 16),  # the second first
            ([[self.swap(0, 9, 15), self.add(5, 10)]], 15),
        ):
            self.assertFalse(History(10, operations).explains(final), (operations, final))

    def test_open(self) -> None:
        """Operations with unknown results may have been executed, in order and once."""
        operations = [[self.add(1, None), self.add(2, None)], [self.add(5, 11)]]
        self.assertTrue(History(10, operations).explains(16))
        self.assertTrue(History(10, operations).explains(18))
        self.assertFalse(History(10, operations).explains(17))
        self.assertFalse(History(10, [[self.add(1, None)]]).explains(12))
        self.assertTrue(History(10, [[self.swap(7, 8, None), self.add(1, None)]]).explains(11))


class ClockTests(SynchronousTestCase):
    def test_order(self) -> None:
        """Calls run in the order of their times, and calls of the same time in the order of scheduling."""
        clock, called = SimulatedClock(), list[str]()
        for delay, name in ((2, "c"), (1, "a"), (2, "d"), (1, "b"), (0.5, "never"), (3, "moved")):
            call = clock.callLater(delay, called.append, name)
            if name == "never":
                call.cancel()
        call.reset(0)
        clock.advance(5)
        self.assertEqual(called, ["moved", "a", "b", "c", "d"])
        self.assertEqual(clock.calls, [])
