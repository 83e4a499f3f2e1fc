"""
The software device and rxe over a bad wire: netem loses, doubles, reorders and spoils packets.

Each kind of trouble, at 1 % and at 5 % of the packets of both directions, and in it twice 16 MiB: asked for
by the software device, then by rxe; at one of the two levels by READ, at the other by SEND and WRITE, since
the emulated machine is slow. So each side sends data, acknowledgements and requests through each kind of
trouble. The bytes have equal hashes, and what netem has done is counted: a test to whose packets nothing has
happened fails.

Batches of UDP_SEGMENT would be lost as a whole, so the software device sends single packets here, but in the
256 MiB without loss.

A spoilt packet is one with one bit changed. UDP's checksum sees that in what our socket sends, and Linux
drops it. rxe sends without such a checksum: what it sends spoilt reaches our ICRC check, which counts it. The
other way round, one test has our socket send without the checksum, so that rxe's ICRC check is the judge.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import replace
from typing import Any, cast

from twisted.trial.unittest import SynchronousTestCase

from txrdma.iba.verbs import Operation
from txrdma.interfaces import IVerbsDevice
from txrdma.soft.device import SoftDevice
from txrdma.soft.rc import udp
from txrdma.soft.rc.counters import RoCECounters
from txrdma.soft.rc.roce import RoCEPort
from txrdma.test.system.kernel import Box, OUTSIDE, record, Witness
from txrdma.test.system.kernel.world import InTheBox, MTU_4096
from txrdma.testing.verbs.bulk import BulkContract, ENDURING, READ, SEND, WRITE
from txrdma.testing.verbs.ends import End
from txrdma.testing.verbs.quirks import OURS, RXE

BOXES = (Box(rxe=False, timeout=600),)

MiB = 1 << 20
_SO_NO_CHECK = 11  # of Linux's sockets: send without UDP's checksum


class BulkTransfers(InTheBox, BulkContract):
    """Bulk transfers between the software device and rxe."""

    mtu = MTU_4096
    quirks = (OURS, RXE)
    soft: SoftDevice

    def makeDevices(self) -> tuple[IVerbsDevice, IVerbsDevice]:
        """The software device, and rxe."""
        self.reactor = self.makeReactor()
        self.soft, rxe = self.world.openSoft(self.reactor), self.world.openRXE(self.reactor)
        for device in (self.soft, rxe):
            self.addCleanup(device.close)
        return self.soft, rxe

    def counters(self) -> RoCECounters:
        """What the software device's port has seen."""
        return cast(RoCEPort, self.soft.routes[0]).counters

    def timed(self, alice: End, bob: End, operation: Any, length: int) -> float:
        """Haul, and say how long it took."""
        begun = time.monotonic()
        self.transfer(alice, bob, operation, length)
        return time.monotonic() - begun


class BadWireTests(BulkTransfers, SynchronousTestCase):
    """
    16 MiB by each operation through each kind of trouble.

    In short messages: rxe drops what follows a lost response to a READ, and asks for all of the rest again
    when its timer expires.
    """

    skip = OUTSIDE
    message = 1 << 16
    witness = Witness(
        "software device",
        "rxe",
        "16 MiB by SEND, WRITE, READ; netem: 1 % and 5 % lost, doubled, reordered, spoilt",
    )

    def setUp(self) -> None:
        self.patch(udp, "_canSegment", lambda bound: False)
        super().setUp()

    def endure(self, how: str, happened: Callable[[], int], fromSoft: Operation, fromRXE: Operation) -> None:
        """
        Haul through it.

        @param happened: how much trouble there was so far.
        @param fromSoft: what the software device asks for, and C{fromRXE} what rxe does.
        """
        for isFar in (False, True):
            self.world.spoil(isFar, *how.split())
        self.addCleanup(self.world.mend)
        alice, bob = self.end(0), self.end(1)
        self.connect(alice, bob, replace(ENDURING, timeout=14))
        packets = 0
        for who, one, other, operation in (("us", alice, bob, fromSoft), ("rxe", bob, alice, fromRXE)):
            before, begun = happened(), time.monotonic()
            self.transfer(one, other, operation, 16 * MiB)
            more = happened() - before
            self.assertGreater(more, 10, f"{how}: {operation.name} by {who}")
            packets += more
            record(f"{operation.name} by {who}, MiB/s", round(16 / (time.monotonic() - begun), 1))
        record("packets in trouble", packets)

    # What has happened so far.

    def lost(self) -> int:
        """Packets that netem has dropped, at both ends of the wire."""
        return sum(self.world.trouble(isFar).dropped for isFar in (False, True))

    def doubled(self) -> int:
        """Packets that came, and that nobody sent."""
        fromSoft, fromRXE = self.counters(), self.world.rxeCounter
        return fromRXE("rcvd_pkts") - fromSoft.packetsSent + fromSoft.packetsReceived - fromRXE("sent_pkts")

    def outOfOrder(self) -> int:
        """Requests that came too early, as rxe counts them or is told, and what was asked for again."""
        return sum(
            self.world.rxeCounter(name)
            for name in ("out_of_seq_request", "duplicate_request", "rcvd_seq_err", "completer_retry_err")
        )

    def spoilt(self) -> int:
        """Packets whose ICRC was found wrong by us, or whose UDP or IP checksum was found wrong by Linux."""
        return self.counters().wrongICRC + sum(self.world.wrongChecksums(isFar) for isFar in (False, True))

    def test_loss1(self) -> None:
        """One packet of a hundred is lost."""
        self.endure("loss 1%", self.lost, SEND, WRITE)

    def test_loss5(self) -> None:
        """Five of a hundred are lost."""
        self.endure("loss 5%", self.lost, READ, READ)

    def test_duplication1(self) -> None:
        """One packet of a hundred comes twice."""
        self.endure("duplicate 1%", self.doubled, WRITE, SEND)

    def test_duplication5(self) -> None:
        """Five of a hundred come twice."""
        self.endure("duplicate 5%", self.doubled, READ, READ)

    def test_reordering1(self) -> None:
        """One packet of a hundred overtakes those before it."""
        self.endure("delay 1ms reorder 1%", self.outOfOrder, READ, READ)

    def test_reordering5(self) -> None:
        """Five of a hundred overtake those before them."""
        self.endure("delay 1ms reorder 5%", self.outOfOrder, SEND, WRITE)

    def test_corruption1(self) -> None:
        """A bit of one packet of a hundred is changed."""
        self.endure("corrupt 1%", self.spoilt, READ, READ)
        record("wrong ICRC", self.counters().wrongICRC)
        self.assertGreater(self.counters().wrongICRC, 10)

    def test_corruption5(self) -> None:
        """A bit of five packets of a hundred is changed."""
        self.endure("corrupt 5%", self.spoilt, WRITE, SEND)
        record("wrong ICRC", self.counters().wrongICRC)
        self.assertGreater(self.counters().wrongICRC, 50)


class UncheckedTests(BulkTransfers, SynchronousTestCase):
    """What only rxe's ICRC check can find."""

    skip = OUTSIDE
    witness = Witness("software device", "rxe", "4 MiB by WRITE, spoilt by netem, without UDP checksums")

    def test_spoiltWithoutChecksum(self) -> None:
        """rxe finds what is spoilt among our packets by our ICRC: nothing else tells it."""
        self.patch(udp, "_canSegment", lambda bound: False)
        alice, bob = self.end(0), self.end(1)
        self.connect(alice, bob, ENDURING)
        carrier = cast(Any, self.soft.routes[0])._carrier
        carrier._socket.setsockopt(socket.SOL_SOCKET, _SO_NO_CHECK, 1)
        self.world.spoil(True, "corrupt", "5%")
        self.addCleanup(self.world.mend)
        known = self.world.wrongChecksums(False)
        self.transfer(alice, bob, WRITE, 4 * MiB)
        again = self.world.rxeCounter("out_of_seq_request")
        self.assertGreater(again, 5)
        record("out of sequence at rxe", again)
        headers = self.world.wrongChecksums(False) - known
        self.assertLess(headers, again / 2, "that was UDP's checksum")


class LongHaulTests(BulkTransfers, SynchronousTestCase):
    """A great many bytes over a good wire, by batches of UDP_SEGMENT."""

    skip = OUTSIDE
    witness = Witness("software device", "rxe", "256 MiB by WRITE without loss")

    def test_quarterOfAGigabyte(self) -> None:
        """256 MiB arrive as they were sent."""
        alice, bob = self.end(0), self.end(1)
        self.connect(alice, bob, ENDURING)
        seconds = self.timed(alice, bob, WRITE, 256 * MiB)
        record("MiB/s", round(256 / seconds, 1))
