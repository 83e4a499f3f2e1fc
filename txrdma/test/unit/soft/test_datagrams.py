"""
Datagrams between devices of one host: L{txrdma.soft.shared.datagramlane},
L{txrdma.soft.shared.datagrams} and L{txrdma.soft.rc.localpeers}.
"""

from __future__ import annotations

from random import Random

from twisted.trial.unittest import SynchronousTestCase

from txrdma.soft.shared._layout import CONSUMED, FIRST, HEADER_BYTES, LINE, PADDING, PLAIN, WAKE
from txrdma.soft.shared.datagramlane import AT_ONCE, DatagramLane

RING = 4096
NAME = ("192.0.2.1", 4791)
SEEDS = range(200)


class LaneTests(SynchronousTestCase):
    """Two ends of a lane in one process."""

    def setUp(self) -> None:
        self.rings: list[str] = []
        rings = [memoryview(bytearray(HEADER_BYTES + RING)) for _ in range(2)]
        self.one = DatagramLane(NAME, rings[0], lambda: self.rings.append("other"))
        self.other = DatagramLane(NAME, rings[1], lambda: self.rings.append("one"))
        self.box = rings[0]
        self.one.attach(rings[1])
        self.other.attach(rings[0])

    def put(self, packet: bytes) -> bool:
        return self.one.put((packet[:20], memoryview(packet[20:])), len(packet))

    def take(self) -> list[bytes]:
        """Return all packets received by the other end."""
        found = [bytes(packet) for packet in self.other.take()]
        self.other.taken()
        return found

    def test_orderIsPreservedAndOverflowCounted(self) -> None:
        for seed in SEEDS:
            random = Random(f"lane {seed}")
            sent: list[bytes] = []
            found: list[bytes] = []
            before = self.one.lost
            refused = 0
            for _ in range(60):
                packet = random.randbytes(random.randrange(1, 1500))
                if self.put(packet):
                    sent.append(packet)
                else:
                    refused += 1
                if random.random() < 0.4:
                    found += self.take()
            while more := self.take():
                found += more
            self.assertEqual(found, sent, f"seed {seed}")
            self.assertEqual(self.one.lost - before, refused, f"seed {seed}")

    def test_fullRingDropsUntilRead(self) -> None:
        packet = bytes(1000)
        count = 0
        while self.put(packet):
            count += 1
        self.assertEqual(count, RING // 1024 - 1)
        self.assertEqual(len(self.take()), count)
        self.assertTrue(self.put(b"y" * 1000))
        self.assertEqual(self.take(), [b"y" * 1000])

    def test_takenPacketsKeepTheirSpace(self) -> None:
        self.put(bytes(1000))
        polled = self.other.take()
        for _ in range(8):
            self.put(b"\xff" * 1000)
        self.assertEqual(bytes(polled[0]), bytes(1000))

    def test_takesAtMostRequestedCount(self) -> None:
        sent = 0
        while self.put(b"abcd"):
            sent += 1
        self.assertGreater(sent + 1, AT_ONCE - 1)
        found = 0
        while taken := len(self.take()):
            self.assertLessEqual(taken, AT_ONCE)
            found += taken
        self.assertEqual(found, sent)

    def test_doorbellOnlyForSleepingReceiver(self) -> None:
        self.put(b"looked for")
        self.one.announce()
        self.assertEqual(self.rings, [])
        self.other.arm()
        for _ in range(3):
            self.put(b"slept")
            self.one.announce()
        self.assertEqual(self.rings, ["other"])
        self.other.arm()
        self.one.announce()
        self.assertEqual(self.rings, ["other"] * 2)

    def test_incompletePacketOfDeadProcessIsIgnored(self) -> None:
        self.put(b"whole")
        out = FIRST + (LINE >> 3)
        self.box[(out << 3) + 8 : (out << 3) + 40] = b"half" * 8
        self.assertEqual(self.take(), [b"whole"])
        self.assertEqual(self.take(), [])

    def test_impossibleHeadersAreReported(self) -> None:
        whole = RING - 8
        for header in (
            PLAIN << 24 | RING,
            PLAIN << 24 | 0xFFFFFF,
            PADDING << 24 | whole,  # nothing precedes the gap
            PADDING << 24 | 64,
            2 << 24 | 10,
            0xFF << 24,
            1,
        ):
            self.setUp()
            self.box.cast("Q")[FIRST] = header
            self.assertRaises(ValueError, self.other.take)

    def test_arbitraryBytesStayInBounds(self) -> None:
        for seed in SEEDS:
            random = Random(f"garbage {seed}")
            self.setUp()
            words = self.box.cast("Q")
            for at in range(FIRST, len(words)):
                kind = random.choice((PLAIN, PLAIN, PLAIN, PADDING, random.randrange(256)))
                words[at] = kind << 24 | random.choice((random.randrange(200), random.randrange(1 << 24)))
            words[CONSUMED] = random.getrandbits(64)
            words[WAKE] = random.getrandbits(64)
            try:
                for _ in range(100):
                    found = self.other.take()
                    self.assertLessEqual(len(found), AT_ONCE, f"seed {seed}")
                    self.assertLessEqual(sum(map(len, found)), AT_ONCE * RING, f"seed {seed}")
                    self.other.taken()
            except ValueError:
                pass
            self.other.put((b"mine",), 4)
            self.other.announce()

    def test_closeReleasesMemoryAndIsIdempotent(self) -> None:
        for _ in range(2):
            self.one.close()
        self.assertEqual((self.one.isUp, self.one.isClosed), (False, True))
        self.box.release()
