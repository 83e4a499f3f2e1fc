"""
The software device and rxe over a bad wire: netem loses, duplicates, reorders and corrupts packets.

Each fault affects 1 % or 5 % of the packets in both directions during two transfers of 16 MiB: one requested
by the software device, one by rxe; one level uses READ, the other SEND and WRITE, since the emulated machine
is slow. So each side sends data, acknowledgements and requests through each fault. Hashes must be equal, and
netem's counters must show the fault.

netem would drop a whole UDP_SEGMENT batch, so the software device sends single packets here, except for the
256 MiB without loss.

A corrupted packet has one changed bit. Linux detects it by the UDP checksum of packets from txrdma's socket,
and drops it. rxe sends without this checksum, so that txrdma's ICRC check detects and counts corruption. For
the opposite direction, one test has txrdma send without the checksum, so that rxe's ICRC check is tested.
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
from txrdma.test.system.kernel import Box, record, Witness
from txrdma.test.system.kernel.world import InTheBox, MTU_4096
from txrdma.testing.verbs.bulk import BulkContract, ENDURING, READ, SEND, WRITE
from txrdma.testing.verbs.quirks import OURS, RXE

BOXES = (Box(rxe=False, timeout=600),)

MiB = 1 << 20
_SO_NO_CHECK = 11  # of Linux sockets: send without UDP checksum


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
        """Return the counters of the software device's port."""
        return cast(RoCEPort, self.soft.routes[0]).counters


class BadWireTests(BulkTransfers, SynchronousTestCase):
    """
    Transfers of 16 MiB by each operation through each fault.

    Messages are short: after a lost READ response rxe drops the following ones, and requests the rest again
    when its timer expires.
    """

    message = 1 << 16
    witness = Witness(
        "software device",
        "rxe",
        "16 MiB by SEND, WRITE, READ; netem: 1 % and 5 % lost, doubled, reordered, corrupted",
    )

    def setUp(self) -> None:
        self.patch(udp, "_canSegment", lambda bound: False)
        super().setUp()

    def endure(self, how: str, happened: Callable[[], int], fromSoft: Operation, fromRXE: Operation) -> None:
        """
        Transfer through a fault.

        @param happened: returns the number of faults so far.
        @param fromSoft: the operation of the software device; C{fromRXE} that of rxe.
        """
        for isFar in (False, True):
            self.world.spoil(isFar, *how.split())
        self.addCleanup(self.world.mend)
        alice, bob = self.end(0), self.end(1)
        self.connect(alice, bob, replace(ENDURING, timeout=14))
        packets = 0
        for who, one, other, operation in (("txrdma", alice, bob, fromSoft), ("rxe", bob, alice, fromRXE)):
            before, begun = happened(), time.monotonic()
            self.transfer(one, other, operation, 16 * MiB)
            more = happened() - before
            self.assertGreater(more, 10, f"{how}: {operation.name} by {who}")
            packets += more
            record(f"{operation.name} by {who}, MiB/s", round(16 / (time.monotonic() - begun), 1))
        record("packets impaired", packets)

    # counters of faults

    def lost(self) -> int:
        """Return the number of packets that netem has dropped at both ends of the wire."""
        return sum(self.world.trouble(isFar).dropped for isFar in (False, True))

    def doubled(self) -> int:
        """Return the number of duplicate packets."""
        fromSoft, fromRXE = self.counters(), self.world.rxeCounter
        return fromRXE("rcvd_pkts") - fromSoft.packetsSent + fromSoft.packetsReceived - fromRXE("sent_pkts")

    def outOfOrder(self) -> int:
        """Return the numbers of requests that rxe counts and NAKs as out of order, and of repeated ones."""
        return sum(
            self.world.rxeCounter(name)
            for name in ("out_of_seq_request", "duplicate_request", "rcvd_seq_err", "completer_retry_err")
        )

    def corrupted(self) -> int:
        """Return the number of packets that failed txrdma's ICRC check or Linux's UDP or IP checksum."""
        return self.counters().wrongICRC + sum(self.world.wrongChecksums(isFar) for isFar in (False, True))

    def test_loss1(self) -> None:
        """Transfers complete with 1 % of packets lost."""
        self.endure("loss 1%", self.lost, SEND, WRITE)

    def test_loss5(self) -> None:
        """Transfers complete with 5 % of packets lost."""
        self.endure("loss 5%", self.lost, READ, READ)

    def test_duplication1(self) -> None:
        """Transfers complete with 1 % of packets duplicated."""
        self.endure("duplicate 1%", self.doubled, WRITE, SEND)

    def test_duplication5(self) -> None:
        """Transfers complete with 5 % of packets duplicated."""
        self.endure("duplicate 5%", self.doubled, READ, READ)

    def test_reordering1(self) -> None:
        """Transfers complete with 1 % of packets reordered."""
        self.endure("delay 1ms reorder 1%", self.outOfOrder, READ, READ)

    def test_reordering5(self) -> None:
        """Transfers complete with 5 % of packets reordered."""
        self.endure("delay 1ms reorder 5%", self.outOfOrder, SEND, WRITE)

    def test_corruption1(self) -> None:
        """Transfers complete with 1 % of packets corrupted."""
        self.endure("corrupt 1%", self.corrupted, READ, READ)
        record("wrong ICRC", self.counters().wrongICRC)
        self.assertGreater(self.counters().wrongICRC, 10)

    def test_corruption5(self) -> None:
        """Transfers complete with 5 % of packets corrupted."""
        self.endure("corrupt 5%", self.corrupted, WRITE, SEND)
        record("wrong ICRC", self.counters().wrongICRC)
        self.assertGreater(self.counters().wrongICRC, 50)


class UncheckedTests(BulkTransfers, SynchronousTestCase):
    """Corruption that only rxe's ICRC check can detect."""

    witness = Witness("software device", "rxe", "4 MiB by WRITE, corrupted by netem, without UDP checksums")

    def test_corruptedWithoutChecksum(self) -> None:
        """rxe detects txrdma's corrupted packets by their ICRC."""
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
        self.assertLess(headers, again / 2, "UDP's checksum detected it")


class LongDistanceTests(BulkTransfers, SynchronousTestCase):
    """A long transfer over a good wire, in batches of UDP_SEGMENT."""

    witness = Witness("software device", "rxe", "256 MiB by WRITE without loss")

    def test_quarterOfAGigabyte(self) -> None:
        """256 MiB arrive unchanged."""
        alice, bob = self.end(0), self.end(1)
        self.connect(alice, bob, ENDURING)
        begun = time.monotonic()
        self.transfer(alice, bob, WRITE, 256 * MiB)
        record("MiB/s", round(256 / (time.monotonic() - begun), 1))
