"""
Lanes of datagrams between processes of one host, and the doorbell that wakes their reactor.
"""

from __future__ import annotations

import os
import select
from typing import Any

from twisted.trial.unittest import SynchronousTestCase

from txrdma.soft.shared.datagrams import SharedDatagrams
from txrdma.soft.shared.peerprocess import PeerProcess
from txrdma.testing.reactors import ReactorClock


class BellTests(SynchronousTestCase):
    """The doorbell is not rung while nothing has arrived."""

    def setUp(self) -> None:
        self.reactor = ReactorClock()
        reactor: Any = self.reactor
        rendezvous: Any = None
        self.datagrams = SharedDatagrams(reactor, rendezvous, lambda name: None, lambda name, reason: None)
        self.addCleanup(self.datagrams.close)
        self.datagrams.open(PeerProcess(("10.0.0.2", 4791)))

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
        self.datagrams.arm()
        self.assertTrue(self.isRung())
