"""
A process that sends invalid datagrams through shared memory harms only its own connection.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Sequence
from functools import partial
from typing import Any, cast

from txrdma.soft.rc.routes import DatagramRoute
from txrdma.soft.shared._layout import PLAIN
from txrdma.soft.shared._rendezvous import (
    DatagramRingOffer,
    makeBox,
    RendezvousKind,
)
from txrdma.soft.shared._rings import RingPair
from txrdma.soft.shared.sharedmemoryport import SharedMemoryPort
from txrdma.test.integration.soft.test_datagrams import DatagramCase, DatagramEnd, HEADS, lanesOf, portOf
from txrdma.test.support.soft.neighbours import Added
from txrdma.test.support.soft.pairs import QKEY
from txrdma.test.support.soft.strangers import connectedTo, doorbell, hello, isClosed, sendTo


class StrangeMailTests(DatagramCase):
    """Processes that share memory for datagrams, and break the rules or die."""

    ADDRESS = "127.9.9.9"

    def setUp(self) -> None:
        super().setUp()
        self.good = self.both()
        self.target = DatagramEnd(self.open())
        self.meet(self.good[0], self.target)
        self.check()
        self.added = Added()

    def check(self) -> None:
        """Check that other devices still work."""
        one, other = self.good
        one.sendText(other, b"still")
        self.isAccepted(other, [b"still"])

    def come(self) -> socket.socket:
        """Connect and send the greeting."""
        sock = connectedTo(self.target.device, hello(self.ADDRESS))
        self.addCleanup(sock.close)
        return sock

    def sendText(self, sock: socket.socket, message: bytes, passed: Sequence[int] = ()) -> None:
        sendTo(sock, message, passed)
        for descriptor in passed:
            os.close(descriptor)

    def sendOffer(self, sock: socket.socket, passed: Sequence[int], number: int = 1) -> None:
        """Send a box with that doorbell."""
        offer = DatagramRingOffer(kind=RendezvousKind.DATAGRAM_RING, number=number)
        self.sendText(sock, offer.encode(), passed)

    def mail(self) -> tuple[socket.socket, RingPair]:
        """Connect, and send a box and a doorbell; return the socket, and the box, writable."""
        sock = self.come()
        descriptor, mapping = makeBox(1 << 16)
        self.sendText(sock, doorbell(1), [os.eventfd(0)])
        self.sendOffer(sock, [descriptor])
        self.runUntil(lambda: len(lanesOf(self.target)) == 2)
        return sock, RingPair(memoryview(mapping))

    def packet(self, text: bytes) -> memoryview:
        """Return a datagram for the target, whose length is a multiple of four."""
        head = 0x64 << 56 | 1 << 54 | 0xFFFF << 32 | self.target.qp.number
        return memoryview(HEADS.pack(head, 0, QKEY, 5) + text + bytes(4))

    def write(self, rings: RingPair, packet: memoryview) -> None:
        self.assertTrue(rings.append(PLAIN, 0, (packet,), len(packet)))

    def gone(self, rings: RingPair | None = None) -> None:
        """Assert that nothing of the process remains, and other devices work."""
        if rings is not None:
            rings.close()
        self.check()
        self.runUntil(self.added.isNothing)

    def test_onlyCompleteDatagramsOfDyingProcessArrive(self) -> None:
        sock, rings = self.mail()
        self.write(rings, self.packet(b"last"))
        start = (rings.writeIndex << 3) + 8
        rings.localBytes[start : start + 8] = b"unready!"
        sock.close()
        self.isAccepted(self.target, [b"last"])
        self.gone(rings)

    def test_allDatagramsOfDeadProcessArrive(self) -> None:
        sock, rings = self.mail()
        words = [b"%04d" % number for number in range(DatagramEnd.RECEIVES - 1)]
        for word in words:
            self.write(rings, self.packet(word))
        sock.close()
        self.isAccepted(self.target, words)
        self.gone(rings)

    def test_invalidPacketsAreDroppedAndCounted(self) -> None:
        sock, rings = self.mail()
        for bad in (b"", b"abc", b"x" * 15, b"y" * 17, b"z" * 21, bytes(24), bytes(64), b"\xff" * 64):
            self.write(rings, memoryview(bad))
        for cut in (20, 24):
            padded = bytearray(self.packet(b"")[:cut])
            padded[1] |= 0x30  # with three bytes of padding, which are missing
            self.write(rings, memoryview(padded))
        self.write(rings, self.packet(b"good"))
        self.isAccepted(self.target, [b"good"])
        counters = portOf(self.target).counters
        self.assertGreaterEqual(counters.malformed, 6)
        self.assertEqual(cast(DatagramRoute, cast(Any, self.target.qp)._route).datagrams.dropped, 2)
        sock.close()
        self.gone(rings)

    def test_invalidRecordEndsConnectionAlone(self) -> None:
        sock, rings = self.mail()
        self.write(rings, self.packet(b"good"))
        rings.localWords[rings.writeIndex] = PLAIN << 24 | 0xFFFFFF
        self.isAccepted(self.target, [b"good"])
        self.runUntil(lambda: isClosed(sock))
        self.assertEqual(len(self.flushLoggedErrors()), 0)
        sock.close()
        self.gone(rings)

    def test_packetsOfOtherIPFamilyAreDropped(self) -> None:
        self.patch(self, "ADDRESS", "::1")
        sock, rings = self.mail()
        self.write(rings, self.packet(b"????"))
        for _ in range(5):
            self.reactor.iterate(0.005)
        self.target.pollQueue()
        self.assertEqual(self.target.received, [])
        sock.close()
        self.gone(rings)

    def test_secondBoxIsRefusedAlone(self) -> None:
        sock, rings = self.mail()
        self.sendOffer(sock, [makeBoxOnly()])
        self.runUntil(lambda: self.isRefused(sock))
        self.assertEqual(len(lanesOf(self.target)), 1)
        self.assertFalse(isClosed(sock))
        sock.close()
        self.gone(rings)

    def test_invalidBoxEndsConnection(self) -> None:
        for passed in ((), (os.eventfd(0),), (makeBoxOnly(), makeBoxOnly())):
            sock = self.come()
            self.sendText(sock, doorbell(1), [os.eventfd(0)])
            self.sendOffer(sock, passed)
            self.runUntil(partial(isClosed, sock))
            sock.close()
        self.gone()

    def isRefused(self, sock: socket.socket) -> bool:
        """Return whether the next message refuses a box."""
        try:
            message = sock.recv(1 << 10, socket.MSG_DONTWAIT)
        except BlockingIOError:
            return False
        return message == DatagramRingOffer(kind=RendezvousKind.DATAGRAM_RING).encode()

    def test_boxWithoutDoorbellIsRefusedAlone(self) -> None:
        sock = self.come()
        self.sendOffer(sock, [makeBoxOnly()], 5)
        self.runUntil(lambda: self.isRefused(sock))
        self.assertFalse(isClosed(sock))
        sock.close()
        self.gone()

    def test_peerThatRefusesBoxGetsDatagramsByUDP(self) -> None:
        one, other = DatagramEnd(self.open()), DatagramEnd(self.open())
        shared = cast(SharedMemoryPort, other.device.routes[0])
        self.patch(shared.datagrams, "open", lambda neighbour: None)
        self.watchSocket(one)
        one.sendText(other, b"first")
        self.isAccepted(other, [b"first"])
        self.runUntil(lambda: not lanesOf(one))
        one.sendText(other, b"second")
        self.isAccepted(other, [b"second"])
        self.assertEqual(self.packetsByUDP(one), 2)


def makeBoxOnly() -> int:
    """Return the descriptor of a box without writers."""
    descriptor, mapping = makeBox(4096)
    mapping.close()
    return descriptor
