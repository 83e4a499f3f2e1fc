"""
Lanes of datagrams between processes of one host, and the doorbell that wakes their reactor.
"""

from __future__ import annotations

import os
import select
from typing import Any
from unittest import mock

from twisted.trial.unittest import SynchronousTestCase

from txrdma.soft.shared._rendezvous import makeBox
from txrdma.soft.shared.datagramlane import DatagramLane
from txrdma.soft.shared.datagrams import MOST_POLLED, RING_BYTES, SharedDatagrams, WATCH_SECONDS
from txrdma.soft.shared.peerdevice import PeerDevice
from txrdma.testing.reactors import ReactorClock


class BellTests(SynchronousTestCase):
    """The doorbell is not rung while nothing has arrived."""

    def setUp(self) -> None:
        self.reactor = ReactorClock()
        reactor: Any = self.reactor
        rendezvous: Any = None
        self.datagrams = SharedDatagrams(reactor, rendezvous, lambda name: None, lambda name, reason: None)
        self.addCleanup(self.datagrams.close)
        self.datagrams.open(PeerDevice(("10.0.0.2", 4791)))

    def isRung(self) -> bool:
        """Return whether the doorbell is readable."""
        return bool(select.select(self.reactor.readers, [], [], 0)[0])

    def test_unansweredInvitationDoesNotSpin(self) -> None:
        self.datagrams.arm()
        self.assertFalse(self.isRung())
        for reader in self.reactor.readers:
            reader.doRead()
        self.datagrams.arm()
        self.assertFalse(self.isRung())

    def test_filledDoorbellCausesNoError(self) -> None:
        for reader in self.reactor.readers:
            os.eventfd_write(reader.fileno(), (1 << 64) - 2)
        self.datagrams.wake()
        self.assertTrue(self.isRung())

    def test_armedPollCoversAllLanes(self) -> None:
        """Packets that have not woken this process are read before it sleeps, and after a timer."""
        received: list[bytes] = []
        self.datagrams.start(lambda _name, found: received.extend(map(bytes, found)), lambda: None)
        remotes = [self.join(number) for number in range(MOST_POLLED + 1)]
        remotes[0].put((b"early",), 5)
        self.assertFalse(self.datagrams.poll())
        self.datagrams.arm()
        self.assertTrue(self.datagrams.poll())
        remotes[0].put((b"late",), 4)
        self.assertTrue(self.datagrams.poll())
        self.assertEqual(received, [b"early", b"late"])

    def test_timerArmsUnlessPollerDoes(self) -> None:
        """After packets a timer arms the lanes, unless a poller has done so before it sleeps."""
        remote = self.join(1)
        for isPolled in (False, True, False):
            remote.put((b"packet",), 6)
            self.datagrams.woken()
            self.assertFalse(self.datagrams._isArmed)
            if isPolled:
                self.datagrams.arm()
                self.assertEqual(self.reactor.getDelayedCalls(), [])
            else:
                self.reactor.pump([WATCH_SECONDS] * 2)
            self.assertTrue(self.datagrams._isArmed)

    def join(self, number: int) -> DatagramLane:
        """Make a lane, and return its other end."""
        link = self.datagrams.open(PeerDevice((f"10.0.1.{number}", 4791)))
        assert link is not None
        descriptor, box = makeBox(RING_BYTES)
        self.addCleanup(box.close)
        doorbell: Any = mock.Mock()
        self.datagrams.join(link, descriptor, doorbell)
        os.close(descriptor)
        remote = DatagramLane(link.lane.name, memoryview(box), lambda: None)
        self.addCleanup(remote.close)
        remote.attach(memoryview(link._own))
        return remote
